"""Input and output of the command line: messages and progress on stderr, lines of stdin, examples, paths of plots."""

import os
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import typer

from polyrank.cli import interrupts
from polyrank.cli.arguments import as_options
from polyrank.devices.distributed import launched_as
from polyrank.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from polyrank.records import Example
    from polyrank.scorers.protocols import Scorer

T = TypeVar("T")
STDIN = Path("stdin")
LINE_SECONDS = 60.0
PLOT_ENDINGS = (".png", ".svg", ".pdf")
DISTRIBUTED = ("pretrain", "train", "evaluate", "mine", "index", "build")  # commands that several processes can share


@cache
def console() -> "Console":
    """The console on stderr; in a distributed run only rank 0 prints."""
    return make_console(stderr=True, highlight=False, quiet=launched_as()[0] > 0)


def make_console(**options: Any) -> "Console":
    """A console of rich that keeps ``:100:`` in ``chats.jsonl:100: ...``, which rich prints as an emoji by default."""
    from rich.console import Console

    return Console(emoji=False, **options)


def silence_other_ranks(context: typer.Context) -> None:
    """In a distributed run, discard the stdout of all ranks but rank 0.

    Raises:
        UsageError: the command cannot be distributed.
    """
    rank, n_processes = launched_as()
    if n_processes > 1 and context.invoked_subcommand not in DISTRIBUTED:
        raise UsageError(
            f"{context.invoked_subcommand} runs in one process, and {n_processes} were started; start it without"
            " torchrun (pretrain, train, evaluate, mine and index build can be distributed)"
        )
    if rank > 0:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # for the process's whole life


def print_error(message: str) -> None:
    """Print a line on stderr, from any rank."""
    rank, n_processes = launched_as()
    prefix = f"process {rank + 1} of {n_processes}: " if rank else ""
    text = f"{prefix}{as_options(message)}"
    make_console(stderr=True, highlight=False).print(text, soft_wrap=True, markup=False)


def notify(message: str) -> None:
    """Print a line on stderr, unwrapped and without markup, because file names may contain any character."""
    console().print(as_options(message), soft_wrap=True, markup=False)


def as_line(text: str) -> str:
    """A text on one line; characters that a terminal would obey are escaped.

    >>> print(as_line("two\\n lines, \\x1b[31mred"))
    two lines, \\x1b[31mred
    """
    line = " ".join(text.split())
    return "".join(letter if unicodedata.category(letter) not in ("Cc", "Cf") else _escaped(letter) for letter in line)


def _escaped(letter: str) -> str:
    joins = letter in "\u200c\u200d"  # within words of Persian or Hindi, and emoji
    return letter if joins else letter.encode("unicode_escape").decode()


def report_cut_texts(scorer: "Scorer", *, settable: bool = False) -> None:
    """Report which texts were cut, and how to read more of them.

    Args:
        scorer: after it has encoded the texts.
        settable: whether the user can set the lengths.
    """
    remedy = "; `max_candidate_tokens` and `max_context_tokens` set how much is read" if settable else ""
    for cut in filter(None, scorer.cut):
        notify(f"{cut}{remedy}")


class ProgressDisplay:
    """Progress bars on stderr; hidden if stderr is not a terminal.

    Args:
        columns: of each bar; none: rich's default columns.
        transient: remove the bars at the end.
    """

    def __init__(self, *columns: Any, transient: bool = False) -> None:
        from rich.progress import Progress

        self.progress = Progress(*columns, console=console(), disable=not console().is_terminal, transient=transient)
        self._last_line = time.monotonic()

    def line_is_due(self, also: bool = False) -> bool:
        """Whether to print a line of progress, without bars: every minute, and if ``also`` is true."""
        due = also or time.monotonic() - self._last_line >= LINE_SECONDS
        if due:
            self._last_line = time.monotonic()
        return due and not console().is_terminal

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()


def track(label: str, items: Iterable[Any], total: int | None = None) -> Iterable[Any]:
    """Iterate with a progress bar."""
    from rich.progress import track as rich_track

    return rich_track(items, label, total=total, console=console(), disable=not console().is_terminal, transient=True)


@contextmanager
def encoding_progress() -> Iterator[Callable[[int, int], None]]:
    """A progress bar, as a function of the number of encoded texts and their total."""
    with ProgressDisplay(transient=True) as display:
        task = display.progress.add_task("encoding", total=None)

        def report(done: int, total: int) -> None:
            display.progress.update(task, completed=done, total=total)
            if display.line_is_due():
                notify(f"encoded {done:,} of {total:,} texts")

        yield report


def stdin_lines() -> Iterator[tuple[int, str]]:
    """The lines of stdin that are not blank, with their numbers.

    Raises:
        DataError: a line is too long or not UTF-8.
    """
    from polyrank.data.lines import MAX_LINE_BYTES, row_error

    for number, raw in enumerate(iter(partial(sys.stdin.buffer.readline, MAX_LINE_BYTES + 1), b""), 1):
        if len(raw) > MAX_LINE_BYTES:
            raise row_error(STDIN, number, f"the line is longer than {MAX_LINE_BYTES:,} bytes; split or shorten it")
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError as error:
            raise row_error(STDIN, number, f"byte {error.start + 1} of the line is not UTF-8; send UTF-8") from error
        if line:
            yield number, line
            interrupts.raise_if_interrupted()  # in case a library swallowed the signal's exception


def parsed_lines(parse: Callable[[int, str], T]) -> Iterator[T]:
    """What ``parse`` makes of the number and the text of each line of stdin.

    Raises:
        DataError: names the line and the error, a ValueError or UsageError of ``parse``.
    """
    from polyrank.data.lines import row_error

    for number, line in stdin_lines():
        try:
            yield parse(number, line)
        except (ValueError, UsageError) as error:
            raise row_error(STDIN, number, error) from error


def check_plot_path(path: Path | None) -> Path | None:
    """Check the path of a plot before the work starts.

    Raises:
        UsageError: its ending is unknown, its folder does not exist, or matplotlib is not installed.
    """
    if path is not None and find_spec("matplotlib") is None:
        raise MissingExtraError("matplotlib", "plots")
    if path is not None and path.suffix.lower() not in PLOT_ENDINGS:
        raise UsageError(f"{path} has no known ending of a plot; use {', '.join(PLOT_ENDINGS)}")
    if path is not None and not path.parent.is_dir():
        raise UsageError(f"folder {path.parent} of {path.name} does not exist; make it first")
    return path


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, n_left: int = 1) -> None:
    """Print a table on stdout.

    Args:
        headings: of the columns.
        rows: texts, printed without markup.
        n_left: how many columns are left-aligned, from the first on.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < n_left else "right")
    for row in rows:
        table.add_row(*map(Text, row))
    make_console().print(table)


def use_processor(threads: int | None, *, trains: bool = False) -> None:
    """Set the number of CPU threads, unless it is None, and keep freed memory: this process runs nothing else.

    Args:
        threads: how many.
        trains: keep blocks of all sizes, as for a training.
    """
    from polyrank.devices.memory import keep_freed_memory

    keep_freed_memory(all_sizes=trains)
    if threads is not None:
        from polyrank.devices.choice import set_threads

        set_threads(threads)


def load_examples(path: Path, speaker: str | None, *, skip_bad: bool = False) -> "list[Example]":
    """Read the examples of a file."""
    from polyrank.data import choose_speaker, read_examples

    loaded = read_examples(path, speaker=choose_speaker(path, speaker, notify=notify), skip_bad=skip_bad)
    notify(f"{path}: {loaded.report}")
    return loaded.examples


def load_lists(path: Path, speaker: str | None) -> "list[Example]":
    """Read the examples of a file with their candidate lists; for pairs and dialogues, draw the lists."""
    from polyrank.data import draw_candidates
    from polyrank.data.candidate_lists import have_lists

    examples = load_examples(path, speaker)
    return examples if have_lists(examples) else draw_candidates(examples, what=str(path))
