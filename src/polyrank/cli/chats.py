"""``polyrank import chats``."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from polyrank.cli.console import console, talk
from polyrank.cli.options import Json, Overwrite, SkipBad
from polyrank.errors import DataError, UsageError

SHOWN_TURNS, SHOWN_LETTERS = 8, 200
# named here too, since reading them from polyrank.data would slow every --help down; a test compares the two
GAP_HOURS = 8.0


def chats(
    source: Annotated[Path, typer.Argument(help="The file, folder or zip to read.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="JSON lines of dialogues to write; .gz compresses.")],
    agent: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Who is to be learnt from: a sender's name, id or role. Repeat it for more."),
    ] = None,
    conversation: Annotated[str | None, typer.Option(metavar="COLUMN", help="Names the conversation.")] = None,
    time: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="The time; repeat it where date and clock have their own."),
    ] = None,
    sender: Annotated[str | None, typer.Option(metavar="COLUMN", help="Who wrote it.")] = None,
    text: Annotated[str | None, typer.Option(metavar="COLUMN", help="What was written.")] = None,
    question: Annotated[str | None, typer.Option(metavar="COLUMN", help="The question, in a table of answers.")] = None,
    answer: Annotated[str | None, typer.Option(metavar="COLUMN", help="The answer, in a table of answers.")] = None,
    form: Annotated[
        str | None, typer.Option("--as", metavar="FORM", help="What to read it as: table, whatsapp, mail, ...")
    ] = None,
    join: Annotated[bool, typer.Option("--join/--no-join", help="One turn of a sender's messages in a row.")] = True,
    gap: Annotated[
        float, typer.Option(metavar="HOURS", help="A silence that ends a conversation where none is named.")
    ] = GAP_HOURS,
    date_order: Annotated[
        str | None, typer.Option(metavar="FIRST", help="What comes first in 3/4/24: day, month or year.")
    ] = None,
    keep_system: Annotated[
        bool, typer.Option("--keep-system", help="Keep a system's text before all others, as background.")
    ] = False,
    encoding: Annotated[str | None, typer.Option(help="Of text files, such as cp1252.")] = None,
    sheet: Annotated[list[str] | None, typer.Option(help="A sheet of a workbook. Repeat it for more.")] = None,
    max_bytes: Annotated[int, typer.Option(min=1, help="Bytes that a file may have, or unpack to.")] = 2**30,
    redact: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A text with a name per line, to be replaced by [name].")
    ] = None,
    keep_personal: Annotated[
        bool,
        typer.Option("--keep-personal", help="Keep addresses, links, and numbers of phones, cards, accounts."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask whether the first conversation is right.")] = False,
    skip_bad: SkipBad = False,
    overwrite: Overwrite = False,
    json_: Json = False,
) -> None:
    """Turn own chats into a file of dialogues: CSV, sheets, JSON, and exports of help desks and messengers.

    What the file is and which column is which is seen from it, and said; any option that is given is not guessed.
    """
    import dataclasses

    from polyrank.data import import_chats, write_dialogues
    from polyrank.storage.durable import check_output

    check_output(output, inputs=(source, redact), overwrite=overwrite)
    with console().status(f"reading {source}"):
        chats = import_chats(
            source,
            form=form,
            conversation=conversation,
            time=time,
            sender=sender,
            text=text,
            question=question,
            answer=answer,
            agent=agent or (),
            join=join,
            gap_hours=gap,
            date_order=date_order,  # type: ignore[arg-type]  # it is looked at there
            keep_system=keep_system,
            encoding=encoding,
            sheet=sheet or (),
            max_bytes=max_bytes,
            redact=[] if redact is None else read_names(redact),
            keep_personal=keep_personal,
            skip_bad=skip_bad,
        )
    for note in (f"read as {chats.report.form}", *chats.report.notes, str(chats.report)):
        talk(f"{source}: {note}")
    show_first(chats.dialogues)
    if not yes and sys.stdin.isatty() and sys.stderr.isatty() and not typer.confirm("Is it right?", True, err=True):
        raise UsageError(
            "nothing is written; name what is wrong with --as, --conversation, --time, --sender, --text or --agent"
        )
    write_dialogues(output, chats.dialogues)
    talk(f"wrote {output}")
    if json_:
        print(json.dumps(dataclasses.asdict(chats.report)))


def read_names(path: Path) -> list[str]:
    """The names of a text with one per line.

    Raises:
        DataError: it cannot be read, or holds none.
    """
    try:
        names = path.read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 ({error}); give a text with one name per line") from error
    if not any(map(str.strip, names)):
        raise DataError(f"{path}: holds no names; give a text with one name per line")
    return names


def show_first(dialogues: Sequence[Mapping[str, Any]]) -> None:
    """Print the first conversation as it was understood, long turns and long conversations cut."""
    first = dialogues[0]
    turns = first["turns"]
    began = f", {first['time']}" if "time" in first else ""
    talk(f"the first conversation ({first['id']}{began}):")
    for turn in turns[:SHOWN_TURNS]:
        text = " ".join(turn["text"].split())
        talk(f"  {turn['speaker']}: {text[:SHOWN_LETTERS]}{'...' if len(text) > SHOWN_LETTERS else ''}")
    if len(turns) > SHOWN_TURNS:
        talk(f"  and {len(turns) - SHOWN_TURNS:,} more turns")
