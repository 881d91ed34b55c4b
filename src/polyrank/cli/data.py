"""``polyrank import``: published formats to JSON lines of Examples."""

from pathlib import Path
from typing import Annotated

import typer

from polyrank.cli.console import talk

# named here too, since reading them from polyrank.data would slow every --help down; a test compares the two
FORMATS = ("convai2", "dstc7", "dstc7-pool", "pairs", "triplets", "ubuntu-v2", "wikipedia")


def import_(
    format_: Annotated[str, typer.Argument(metavar="FORMAT", help=", ".join(FORMATS))],
    source: Annotated[Path, typer.Argument(help="The file to read.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="JSON lines to write; .gz compresses.")],
) -> None:
    """Turn a public corpus into a file of examples, and print what was read."""
    from polyrank.data import import_examples, write_examples

    loaded = import_examples(format_, source)
    write_examples(output, loaded.examples)
    talk(f"{source}: {loaded.report}")
    talk(f"wrote {output}")
