"""``polyrank import chats``."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from polyrank.cli.console import console, notify
from polyrank.cli.options import Json, JsonLines, Overwrite, SkipBad
from polyrank.errors import DataError, UsageError

SHOWN_TURNS, SHOWN_LETTERS = 8, 200
# repeated from polyrank.data, because importing it would slow down every --help; a test compares the two
GAP_HOURS = 8.0


def chats(
    source: Annotated[Path, Argument(help="The file, folder or zip to read.")],
    output: JsonLines,
    agent: Annotated[
        list[str] | None,
        Option(metavar="NAME", help="The agent, whose replies to train on: a name, id or role. Repeatable."),
    ] = None,
    conversation: Annotated[str | None, Option(metavar="COLUMN", help="The conversation's id.")] = None,
    time: Annotated[
        list[str] | None,
        Option(metavar="COLUMN", help="The time; repeat it if date and time of day are separate columns."),
    ] = None,
    sender: Annotated[str | None, Option(metavar="COLUMN", help="The sender.")] = None,
    text: Annotated[str | None, Option(metavar="COLUMN", help="The text.")] = None,
    question: Annotated[str | None, Option(metavar="COLUMN", help="The question, in a table of answers.")] = None,
    answer: Annotated[str | None, Option(metavar="COLUMN", help="The answer, in a table of answers.")] = None,
    form: Annotated[
        str | None, Option("--as", metavar="FORM", help="The format: table, whatsapp, mail, ... Default: inferred.")
    ] = None,
    join: Annotated[
        bool, Option("--join/--no-join", help="Join consecutive messages of a sender into one turn.")
    ] = True,
    gap: Annotated[
        float, Option(metavar="HOURS", help="Without ids of conversations: the pause that ends one.")
    ] = GAP_HOURS,
    date_order: Annotated[
        str | None, Option(metavar="FIRST", help="The first part of dates such as 3/4/24: day, month or year.")
    ] = None,
    keep_system: Annotated[
        bool, Option("--keep-system", help="Keep a system message at the start as background.")
    ] = False,
    encoding: Annotated[str | None, Option(help="Encoding of text files, such as cp1252.")] = None,
    sheet: Annotated[
        list[str] | None, Option(help="A sheet of a workbook, or a table of an SQLite database. Repeatable.")
    ] = None,
    max_bytes: Annotated[int, Option(min=1, help="Maximum size of a file, also unpacked, in bytes.")] = 2**30,
    redact: Annotated[
        Path | None, Option(metavar="FILE", help="A text file of names, one per line; [name] replaces them.")
    ] = None,
    keep_personal: Annotated[
        bool, Option("--keep-personal", help="Keep addresses, links, and phone, card and account numbers.")
    ] = False,
    yes: Annotated[bool, Option("--yes", help="Skip the question whether the first conversation is right.")] = False,
    skip_bad: SkipBad = False,
    overwrite: Overwrite = False,
    json_: Json = False,
) -> None:
    """Convert chats to a file of dialogues: CSV, sheets, JSON, and exports of help desks and messengers.

    polyrank infers the format and the columns, and reports what it inferred; options override it.
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
            date_order=date_order,  # type: ignore[arg-type]  # import_chats checks it
            keep_system=keep_system,
            encoding=encoding,
            sheet=sheet or (),
            max_bytes=max_bytes,
            redact=[] if redact is None else read_names(redact),
            keep_personal=keep_personal,
            skip_bad=skip_bad,
        )
    for note in (f"read as {chats.report.form}", *chats.report.notes, str(chats.report)):
        notify(f"{source}: {note}")
    show_first(chats.dialogues)
    if not yes and sys.stdin.isatty() and sys.stderr.isatty() and not typer.confirm("Is it right?", True, err=True):
        raise UsageError(
            "nothing was written; correct it with --as, --conversation, --time, --sender, --text or --agent"
        )
    write_dialogues(output, chats.dialogues)
    notify(f"wrote {output}")
    if json_:
        print(json.dumps(dataclasses.asdict(chats.report)))


def read_names(path: Path) -> list[str]:
    """Read a text file with one name per line.

    Raises:
        DataError: the file cannot be read, or is empty.
    """
    try:
        names = path.read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 ({error}); give a text with one name per line") from error
    if not any(map(str.strip, names)):
        raise DataError(f"{path}: has no names; give a text with one name per line")
    return names


def show_first(dialogues: Sequence[Mapping[str, Any]]) -> None:
    """Print the first conversation, with long turns and long conversations cut."""
    first = dialogues[0]
    turns = first["turns"]
    began = f", {first['time']}" if "time" in first else ""
    notify(f"the first conversation ({first['id']}{began}):")
    for turn in turns[:SHOWN_TURNS]:
        text = " ".join(turn["text"].split())
        notify(f"  {turn['speaker']}: {text[:SHOWN_LETTERS]}{'...' if len(text) > SHOWN_LETTERS else ''}")
    if len(turns) > SHOWN_TURNS:
        notify(f"  and {len(turns) - SHOWN_TURNS:,} more turns")
