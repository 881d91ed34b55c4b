"""``polyrank import``: published formats to JSON lines of Examples, or of the candidates of a pool."""

from pathlib import Path
from typing import Annotated

import typer

from polyrank.cli.console import Overwrite, talk
from polyrank.errors import UsageError

# named here too, since reading them from polyrank.data would slow every --help down; a test compares the two
FORMATS = ("convai2", "dstc7", "dstc7-pool", "pairs", "triplets", "ubuntu-v2", "wikipedia")
CANDIDATES = "dstc7-candidates"


def import_(
    format_: Annotated[str, typer.Argument(metavar="FORMAT", help=", ".join((*FORMATS, CANDIDATES)))],
    source: Annotated[Path, typer.Argument(help="The file to read.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="JSON lines to write; .gz compresses.")],
    answers: Annotated[
        Path | None, typer.Option(help="For dstc7 and dstc7-pool: the published answers of the test set.")
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Count and skip bad rows.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Turn a public corpus into a file of examples, or of candidates, and print what was read."""
    from polyrank.data import import_examples, import_pool, write_examples
    from polyrank.storage.durable import check_output

    check_output(output, inputs=(source, answers), overwrite=overwrite)
    if answers is not None and format_ not in ("dstc7", "dstc7-pool"):
        raise UsageError(f"--answers goes with dstc7 and dstc7-pool only, not with {format_}; leave it out")
    if format_ == CANDIDATES:
        if skip_bad:
            raise UsageError(f"--skip-bad does not go with {CANDIDATES}, for examples name its rows; leave it out")
        talk(f"{source}: {import_pool(source, output):,} candidates")
    else:
        options = {} if answers is None else {"answers": answers}
        loaded = import_examples(format_, source, skip_bad=skip_bad, **options)
        write_examples(output, loaded.examples)
        talk(f"{source}: {loaded.report}")
    talk(f"wrote {output}")
