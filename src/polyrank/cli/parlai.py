"""``polyrank import parlai``."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from polyrank.cli.console import notify
from polyrank.cli.options import Overwrite

NAMES = {"bi": "a Bi-encoder", "poly": "a Poly-encoder", "cross": "a Cross-encoder"}


def parlai(
    model: Annotated[Path, Argument(help="The file of weights, with .opt, .dict and .dict.codecs next to it.")],
    output: Annotated[Path, Option("-o", "--output", help="The model folder to write.")],
    overwrite: Overwrite = False,
) -> None:
    """Convert a Bi-, Poly- or Cross-encoder of ParlAI, such as those of the Poly-encoder paper, to a model folder."""
    from polyrank.models.foreign import import_parlai

    imported = import_parlai(model, output, replace=overwrite)
    notify(f"{model}: {NAMES[imported.kind]} with {imported.n_parameters:,} parameters")
    if imported.random_codes:
        notify("The file has no codes, so they are random; train the model before you use it.")
    notify(f"wrote {output}")
