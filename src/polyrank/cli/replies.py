"""``polyrank import replies``."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from polyrank.cli.console import notify
from polyrank.cli.examples import load_examples
from polyrank.cli.options import JsonLines, Overwrite, Speaker
from polyrank.errors import UsageError


def replies(
    source: Annotated[Path, Argument(help="A table, JSON, a text with one reply per line, or conversations.")],
    output: JsonLines,
    column: Annotated[str | None, Option("--text", metavar="COLUMN", help="The column of replies.")] = None,
    encoding: Annotated[str | None, Option(help="Encoding of text files, such as cp1252.")] = None,
    sheet: Annotated[str | None, Option(help="The sheet of a workbook, or the table of an SQLite database.")] = None,
    from_dialogues: Annotated[
        bool, Option("--from-dialogues", help="Use the most frequent replies in dialogues or pairs.")
    ] = False,
    speaker: Speaker = None,
    min_count: Annotated[
        int | None, Option(min=1, help="With --from-dialogues: the minimum count of a reply. Default: 2.")
    ] = None,
    top: Annotated[int | None, Option(min=1, help="With --from-dialogues: only the N most frequent.")] = None,
    skip_bad: Annotated[bool, Option("--skip-bad", help="With --from-dialogues: count and skip bad rows.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Make a catalogue of replies to index, from a table or a text, or from the frequent replies in conversations."""
    from polyrank.data import frequent_replies, read_replies, write_pool
    from polyrank.storage.durable import check_output
    from polyrank.wording import counted

    check_output(output, inputs=(source,), overwrite=overwrite)
    if not from_dialogues and (skip_bad or any(option is not None for option in (speaker, min_count, top))):
        raise UsageError("--speaker, --min-count, --top and --skip-bad need --from-dialogues; add it or leave them out")
    if from_dialogues and any(option is not None for option in (column, encoding, sheet)):
        raise UsageError("--text, --encoding and --sheet apply to tables; leave them out with --from-dialogues")
    if from_dialogues:
        examples = load_examples(source, speaker, skip_bad=skip_bad)
        replies = frequent_replies(examples, min_count=min_count or 2, top=top, notify=notify)
    else:
        replies = read_replies(source, column=column, encoding=encoding, sheet=sheet, notify=notify)
    write_pool(output, replies)
    notify(f"wrote {output}: {counted(len(replies), 'reply')}; next: polyrank index build MODEL {output} -o INDEX")
