"""The command ``polyrank-chats``, which is also ``polyrank import chats``; the rest is its help.

Convert chats to a file of dialogues: CSV, sheets, JSON, and exports of help
desks and messengers. The form and the columns are inferred and reported;
options override them.

Examples:
  {program} export.csv -o chats.jsonl
  {program} "WhatsApp Chat.txt" -o chats.jsonl --agent Anna --redact names.txt
"""

import errno
import re
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from polyrank_chats.errors import ChatsError, DataError, UsageError
from polyrank_chats.importer import import_chats
from polyrank_chats.options import Options, Several
from polyrank_chats.output import check_output, write_dialogues
from polyrank_chats.report import Report
from polyrank_chats.wording import counted

SHOWN_TURNS, SHOWN_LETTERS, SHOWN_SENDERS = 8, 200, 20
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
    """The arguments of the command: the fields of ``Options``, described by its docstring, and those of the output."""
    parser = ArgumentParser(
        program,
        usage=f"{program} SOURCE -o FILE [OPTIONS]",
        description=(__doc__ or "").partition("\n\n")[2].format(program=program),
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("path", type=Path, metavar="SOURCE", help="the file, folder or zip to read")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="JSON lines; .gz compresses")
    described = dict(re.findall(r"^ {8}(\w+): (.*?)\.?$", Options.__doc__ or "", re.MULTILINE))
    for each in fields(Options)[:-1]:
        text = described.get(each.name, "")
        how: dict[str, Any] = {"metavar": "VALUE", "default": each.default}
        if each.type is bool:
            how = {"action": "store_true"}
        elif each.name == "redact":
            how |= {"type": read_names, "metavar": "FILE"}
            text += "; a text file with one name per line"
        elif each.type == Several:
            how |= {"action": "append", "default": None}
            text = f"{text}; repeatable"
        elif not isinstance(each.default, str | None):
            how["type"] = type(each.default)
        parser.add_argument(f"--{each.name.replace('_', '-')}", help=text, **how)
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    parser.add_argument("--yes", action="store_true", help="skip the question whether the first conversation is right")
    return parser


def convert(arguments: Namespace) -> None:
    """Import the chats, show the first conversation, and write all.

    Raises:
        ChatsError: an argument or the data are wrong, or the user rejects the first conversation.
    """
    options = vars(arguments)
    source, output, overwrite, is_sure = options["path"], *map(options.pop, ("output", "overwrite", "yes"))
    check_output(output, inputs=[source], overwrite=overwrite)
    chats = import_chats(**options)
    asks = not is_sure and sys.stdin.isatty() and sys.stderr.isatty()
    if asks and chats.report.guessed is not None and (agents := chosen_agents(chats.report)):
        chats = import_chats(**options | {"agent": agents})
    for note in (f"read as {' and '.join(chats.report.forms)}", *chats.report.notes, str(chats.report)):
        notify(f"{source}: {note}")
    show_first(chats.dialogues)
    if asks and answer("Is it right? [Y/n]: ").lower() not in ("", "y", "yes"):
        raise UsageError("nothing was written; correct it with --form, --conversation, --time, --sender or --agent")
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
    senders = list(dict.fromkeys((*(report.guessed or ()), *report.senders)))[:SHOWN_SENDERS]
    notify("who are the agents?")
    for number, name in enumerate(senders, 1):
        guess = ", looks like an agent" if name in (report.guessed or ()) else ""
        notify(f"  {number} {name} ({counted(report.senders[name], 'message')}{guess})")
    given = answer(f"Numbers, or Enter for {'those that look like agents' if report.guessed else 'none'}: ")
    numbers = given.replace(",", " ").split()
    if not all(number.isdecimal() and 0 < int(number) <= len(senders) for number in numbers):
        raise UsageError(f"{given!r} is not a list of numbers from 1 to {len(senders)}; name the agents with --agent")
    return [senders[int(number) - 1] for number in numbers]


def read_names(path: str) -> list[str]:
    """Read a text file with one name per line.

    Raises:
        DataError: the file cannot be read, or is empty.
    """
    try:
        names = Path(path).read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 ({error}); give a text with one name per line") from error
    if not any(map(str.strip, names)):
        raise DataError(f"{path}: has no names; give a text with one name per line")
    return names


def show_first(dialogues: Sequence[Mapping[str, Any]]) -> None:
    """Print the first conversation, with long turns and long conversations cut."""
    first, turns = dialogues[0], dialogues[0]["turns"]
    notify(f"the first conversation ({', '.join(first[name] for name in ('id', 'time') if name in first)}):")
    for turn in turns[:SHOWN_TURNS]:
        text = " ".join(turn["text"].split())
        notify(f"  {turn['speaker']}: {text[:SHOWN_LETTERS]}{'...' if len(text) > SHOWN_LETTERS else ''}")
    if len(turns) > SHOWN_TURNS:
        notify(f"  and {len(turns) - SHOWN_TURNS:,} more turns")
