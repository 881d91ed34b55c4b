"""The command ``polyrank-chats``, which is also ``polyrank import chats``."""

import dataclasses
import errno
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from polyrank_chats.errors import ChatsError, DataError, UsageError
from polyrank_chats.importer import GAP_HOURS, import_chats
from polyrank_chats.output import check_output, write_dialogues

SHOWN_TURNS, SHOWN_LETTERS = 8, 200
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def notify(message: str) -> None:
    """Print a line on stderr."""
    typer.echo(message, err=True)


@app.command()
def chats(
    source: Annotated[Path, Argument(help="The file, folder or zip to read.")],
    output: Annotated[Path, Option("-o", "--output", help="JSON lines to write; .gz compresses.")],
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
    skip_bad: Annotated[bool, Option("--skip-bad", help="Count and skip bad rows.")] = False,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an existing file.")] = False,
    json_: Annotated[bool, Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Convert chats to a file of dialogues: CSV, sheets, JSON, and exports of help desks and messengers.

    The format and the columns are inferred and reported; options override them.
    """
    check_output(output, inputs=(source, redact), overwrite=overwrite)
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


def main(arguments: Sequence[str] | None = None, program: str = "polyrank-chats") -> None:
    """Run the command; every error is one line on stderr.

    Args:
        arguments: None: those of the process.
        program: name of the command in its help.

    Raises:
        SystemExit: always, with 0, or with the exit code of the error: 2 usage, 3 bad data, 5 out of disk.
    """
    try:
        app(args=arguments, prog_name=program)
    except ChatsError as error:
        notify(f"error: {error}")
        raise SystemExit(error.exit_code) from error
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise SystemExit(0) from error
        notify(f"error: cannot use {error.filename or 'the input or output'}: {error.strerror}; check disk and path")
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
        raise SystemExit(5 if full else UsageError.exit_code) from error
