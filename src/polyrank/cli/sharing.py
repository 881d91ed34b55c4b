"""``polyrank push``."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from polyrank.cli.console import notify


def push(
    model: Annotated[Path, Argument(help="A model folder that training wrote.")],
    name: Annotated[str, Argument(help="hf:OWNER/MODEL; the repository is created if it does not exist.")],
    private: Annotated[bool, Option("--private", help="Make a new repository private.")] = False,
) -> None:
    """Upload a trained model to the Hugging Face Hub; every command then accepts it as hf:OWNER/MODEL."""
    from polyrank.loading.sharing import push_model

    address = push_model(model, name, private=private)
    notify(f"{model}: uploaded to {address}; load it with {name}")
