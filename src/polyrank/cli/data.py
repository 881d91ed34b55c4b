"""``polyrank import``: published formats to JSON lines of Examples."""

from pathlib import Path
from typing import Annotated

import typer

from polyrank.cli.console import talk


def import_(
    format_: Annotated[str, typer.Argument(metavar="FORMAT", help="polyrank import list . names them all.")],
    source: Annotated[Path, typer.Argument(help="The file to read.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="JSON lines to write; .gz compresses.")],
) -> None:
    """Turn a public corpus into a file of examples, and print what was read."""
    from polyrank.data import import_examples, write_examples

    loaded = import_examples(format_, source)
    write_examples(output, loaded.examples)
    talk(f"{source}: {loaded.report}")
    talk(f"wrote {output}")
