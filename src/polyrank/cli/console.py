"""Where the command line talks and listens: stderr, through rich, which is loaded when there is something to say; the
lines of stdin; and where it draws."""

import os
import sys
from collections.abc import Iterator
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from polyrank.cli import interrupts
from polyrank.cli.arguments import as_options
from polyrank.devices.distributed import launched_as
from polyrank.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from polyrank.scorers.protocols import Scorer

STDIN = Path("stdin")
FIGURES = (".png", ".svg", ".pdf")


WITH_OTHERS = ("pretrain", "train", "evaluate", "mine", "index", "build")  # commands that several processes share


@cache
def console() -> "Console":
    """The console on stderr; of several processes the first one's, and the others are silent."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, quiet=launched_as()[0] > 0)


def one_speaks(context: typer.Context) -> None:
    """Of several processes that a launcher has started, let the first one alone write to stdout.

    Raises:
        UsageError: the command is not one that several processes share.
    """
    number, count = launched_as()
    if count > 1 and context.invoked_subcommand not in WITH_OTHERS:
        raise UsageError(
            f"{context.invoked_subcommand} is of one process, and {count} were started; start it without torchrun"
            " (pretrain, train, evaluate, mine and index build can be shared)"
        )
    if number > 0:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # for the process's whole life


def complain(message: str) -> None:
    """A line on stderr from whichever process has something to say of an error."""
    from rich.console import Console

    number, count = launched_as()
    who = f"process {number + 1} of {count}: " if number else ""
    Console(stderr=True, highlight=False).print(f"{who}{as_options(message)}", soft_wrap=True, markup=False)


def talk(message: str) -> None:
    """A line on stderr, unwrapped and taken literally, as users' file names must be."""
    console().print(as_options(message), soft_wrap=True, markup=False)


def say_cut(scorer: "Scorer", *, settable: bool = False) -> None:
    """Say which texts were too long to be read whole, and what can be done about it.

    Args:
        scorer: has read them.
        settable: whether the user may say how much is read.
    """
    remedy = "; `max_candidate_tokens` and `max_context_tokens` set how much is read" if settable else ""
    for cut in filter(None, scorer.cut):
        talk(f"{cut}{remedy}")


def stdin_lines() -> Iterator[tuple[int, str]]:
    """The lines of stdin that are not blank, with their numbers.

    Raises:
        DataError: a line is too long or not UTF-8.
    """
    from polyrank.data.rows import MAX_LINE_BYTES, row_error

    for number, raw in enumerate(iter(partial(sys.stdin.buffer.readline, MAX_LINE_BYTES + 1), b""), 1):
        if len(raw) > MAX_LINE_BYTES:
            raise row_error(STDIN, number, f"the line is longer than {MAX_LINE_BYTES:,} bytes; split or shorten it")
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError as error:
            raise row_error(STDIN, number, f"byte {error.start + 1} of the line is not UTF-8; send UTF-8") from error
        if line:
            yield number, line
            interrupts.check()  # between lines, whatever has become of it in one


def drawable(path: Path | None) -> Path | None:
    """Where a figure is to be drawn, looked at before the work is done.

    Raises:
        UsageError: its ending is unknown, its folder is not there, or what draws is not installed.
    """
    if path is not None and find_spec("matplotlib") is None:
        raise MissingExtraError("matplotlib", "plots")
    if path is not None and path.suffix.lower() not in FIGURES:
        raise UsageError(f"{path} names no kind of figure; let it end in {', '.join(FIGURES)}")
    if path is not None and not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent} for {path.name}; make it first")
    return path


def use_threads(n: int | None) -> None:
    """Compute on so many threads, where a number is given."""
    if n is not None:
        from polyrank.devices.choice import set_threads

        set_threads(n)
