"""The command ``polyrank-chats``, which is also ``polyrank import chats``."""

import errno
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyrank_chats.errors import ChatsError, DataError, UsageError
from polyrank_chats.files.members import MAX_BYTES
from polyrank_chats.importer import GAP_HOURS, import_chats
from polyrank_chats.output import check_output, write_dialogues
from polyrank_chats.report import Report
from polyrank_chats.wording import counted

SHOWN_TURNS, SHOWN_LETTERS, SHOWN_SENDERS = 8, 200, 20
DESCRIPTION = """\
Convert chats to a file of dialogues: CSV, sheets, JSON, and exports of help
desks and messengers. The form and the columns are inferred and reported;
options override them."""
EXAMPLES = """\
Examples:
  {program} export.csv -o chats.jsonl
  {program} "WhatsApp Chat.txt" -o chats.jsonl --agent Anna --redact names.txt"""
REPEATABLE = {
    "agent": "the agent, whose replies to train on: a name, id or role",
    "customer": "a sender who looks like an agent but is not; '*': all others",
    "time": "the column of times; two, if date and time of day are separate",
    "country": "of phone numbers without a country code, such as FR",
    "sheet": "a sheet of a workbook, or a table of an SQLite database",
}
COLUMNS = {
    "conversation": "the conversation's id",
    "sender": "the sender",
    "text": "the text",
    "question": "the question, in a table of answers",
    "answer": "the answer, in a table of answers",
    "messages": "in JSON, the lists of messages: thread.events",
}
SWITCHES = {
    "keep-system": "keep a system message at the start as background",
    "keep-personal": "keep names, addresses, links, numbers and passwords",
    "skip-bad": "count and skip bad rows",
    "overwrite": "replace an existing file",
    "yes": "skip the question whether the first conversation is right",
}
DISK_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(arguments: Sequence[str] | None = None, program: str = "polyrank-chats") -> None:
    """Run the command; every error is one line on stderr.

    Args:
        arguments: None: those of the process.
        program: name of the command in its help.

    Raises:
        SystemExit: with the exit code of an error: 2 usage, 3 bad data, 5 out of disk; 130 after Ctrl-C.
    """
    try:
        convert(make_parser(program).parse_args(arguments))
    except ChatsError as error:
        notify(f"error: {error}")
        raise SystemExit(error.exit_code) from error
    except OSError as error:
        notify(f"error: cannot use {error.filename or 'the output'}: {error.strerror}; check the disk and the path")
        raise SystemExit(5 if error.errno in DISK_TROUBLE else UsageError.exit_code) from error
    except KeyboardInterrupt as error:
        raise SystemExit(130) from error


def make_parser(program: str) -> ArgumentParser:
    """The arguments of the command; most have the names of those of ``import_chats``."""
    parser = ArgumentParser(
        program,
        usage=f"{program} SOURCE -o FILE [OPTIONS]",
        description=DESCRIPTION,
        epilog=EXAMPLES.format(program=program),
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("path", type=Path, metavar="SOURCE", help="the file, folder or zip to read")
    add("-o", "--output", type=Path, required=True, metavar="FILE", help="JSON lines to write; .gz compresses")
    for name, text in REPEATABLE.items():
        add(f"--{name}", action="append", default=[], metavar="NAME", help=f"{text}; repeatable")
    for name, text in COLUMNS.items():
        add(f"--{name}", metavar="COLUMN", help=text)
    add("--as", dest="form", metavar="FORM", help="the form: table, chat_log, mail, ...; default: inferred")
    pause = "without ids of conversations: the pause that ends one; default: 8"
    add("--gap", dest="gap_hours", type=float, default=GAP_HOURS, metavar="HOURS", help=pause)
    add("--date-order", metavar="FIRST", help="the first part of dates such as 3/4/24: day, month or year")
    add("--encoding", metavar="NAME", help="the encoding of text files, such as cp1252")
    add(
        "--max-bytes", type=int, default=MAX_BYTES, metavar="N", help="the size of a file, also unpacked; default: 2^30"
    )
    add("--redact", type=Path, metavar="FILE", help="a text file of names, one per line; {name} replaces them")
    for name, text in SWITCHES.items():
        add(f"--{name}", action="store_true", help=text)
    return parser


def convert(arguments: Namespace) -> None:
    """Import the chats, show the first conversation, and write all.

    Raises:
        ChatsError: an argument or the data are wrong, or the user rejects the first conversation.
    """
    options = vars(arguments)
    source, output, names = arguments.path, options.pop("output"), options.pop("redact")
    overwrite, is_sure = options.pop("overwrite"), options.pop("yes")
    check_output(output, inputs=(source, names), overwrite=overwrite)
    options["redact"] = [] if names is None else read_names(names)
    chats = import_chats(**options)
    asks = not is_sure and sys.stdin.isatty() and sys.stderr.isatty()
    if asks and chats.report.guessed is not None and (agents := chosen_agents(chats.report)):
        chats = import_chats(**options | {"agent": agents})
    for note in (f"read as {' and '.join(chats.report.forms)}", *chats.report.notes, str(chats.report)):
        notify(f"{source}: {note}")
    show_first(chats.dialogues)
    if asks and answer("Is it right? [Y/n]: ").lower() not in ("", "y", "yes"):
        raise UsageError(
            "nothing was written; correct it with --as, --conversation, --time, --sender, --text or --agent"
        )
    write_dialogues(output, chats.dialogues)
    notify(f"wrote {output}")


def notify(message: str) -> None:
    """Print a line on stderr."""
    print(message, file=sys.stderr)


def answer(question: str) -> str:
    """The answer of the user at the terminal."""
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()


def chosen_agents(report: Report) -> list[str]:
    """Ask who the agents are; empty: as guessed.

    Raises:
        UsageError: the answer is not numbers of the list.
    """
    senders = [*(report.guessed or ()), *(name for name, _ in report.senders.most_common())]
    senders = list(dict.fromkeys(senders))[:SHOWN_SENDERS]
    notify("who are the agents?")
    for number, name in enumerate(senders, 1):
        guess = ", looks like an agent" if name in (report.guessed or ()) else ""
        notify(f"  {number} {name} ({counted(report.senders[name], 'message')}{guess})")
    given = answer(f"Numbers, or Enter for {'those that look like agents' if report.guessed else 'none'}: ")
    numbers = given.replace(",", " ").split()
    if not all(number.isdecimal() and 0 < int(number) <= len(senders) for number in numbers):
        raise UsageError(f"{given!r} is not a list of numbers from 1 to {len(senders)}; name the agents with --agent")
    return [senders[int(number) - 1] for number in numbers]


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
