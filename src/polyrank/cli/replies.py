"""``polyrank import replies``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyrank.cli.console import talk
from polyrank.cli.options import Overwrite, Speaker
from polyrank.errors import UsageError

if TYPE_CHECKING:
    from polyrank.records import Candidate


def replies(
    source: Annotated[Path, typer.Argument(help="A table, JSON, a text with one reply per line; or conversations.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="JSON lines to write; .gz compresses.")],
    text: Annotated[str | None, typer.Option(metavar="COLUMN", help="What holds the replies.")] = None,
    encoding: Annotated[str | None, typer.Option(help="Of text files, such as cp1252.")] = None,
    sheet: Annotated[str | None, typer.Option(help="The sheet of a workbook.")] = None,
    from_dialogues: Annotated[
        bool, typer.Option("--from-dialogues", help="Take what is said most often in dialogues or pairs.")
    ] = False,
    speaker: Speaker = None,
    min_count: Annotated[
        int | None, typer.Option(min=1, help="With --from-dialogues: said so often at least; 2 by default.")
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, help="With --from-dialogues: only the N most frequent.")] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="With --from-dialogues: count and skip bad rows.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Make a catalogue of replies to index: of a table or a text, or of what is said again and again."""
    from polyrank.data import read_replies, write_pool
    from polyrank.storage.durable import check_output

    check_output(output, inputs=(source,), overwrite=overwrite)
    if not from_dialogues and (skip_bad or any(option is not None for option in (speaker, min_count, top))):
        raise UsageError(
            "--speaker, --min-count, --top and --skip-bad go with --from-dialogues; add it or leave them out"
        )
    if from_dialogues and any(option is not None for option in (text, encoding, sheet)):
        raise UsageError("--text, --encoding and --sheet are of tables; with --from-dialogues leave them out")
    if from_dialogues:
        replies = _frequent(source, speaker, 2 if min_count is None else min_count, top, skip_bad)
    else:
        replies = read_replies(source, column=text, encoding=encoding, sheet=sheet, notify=talk)
    write_pool(output, replies)
    talk(f"wrote {output}: {len(replies):,} replies; next: polyrank index build MODEL {output} -o INDEX")


def _frequent(source: Path, speaker: str | None, min_count: int, top: int | None, skip_bad: bool) -> "list[Candidate]":
    from polyrank.data import choose_speaker, frequent_replies, read_examples

    loaded = read_examples(source, speaker=choose_speaker(source, speaker, notify=talk), skip_bad=skip_bad)
    talk(f"{source}: {loaded.report}")
    return frequent_replies(loaded.examples, min_count=min_count, top=top, notify=talk)
