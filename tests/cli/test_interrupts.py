"""SIGINT and SIGTERM: a command ends, prints one line, and returns the exit code of the signal."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from polyrank.training.signals import stop_on_signals
from processes import start

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
ROW = b'{"context": "a", "candidates": ["a", "b"]}\n'
PATIENCE = 120.0  # seconds until a command that ignores the signal ends by itself, and the test fails


def swallow(number: int) -> None:
    with suppress(BaseException):
        signal.raise_signal(number)


def turn_into_an_error(number: int) -> None:
    try:
        signal.raise_signal(number)
    except BaseException:
        raise ImportError("cannot import name 'x'") from None


def leave(number: int) -> None:
    try:
        signal.raise_signal(number)
    finally:
        sys.exit(1)


class Lines(io.RawIOBase):
    """A stdin with one row, then a signal at the second read, and more rows or none."""

    def __init__(self, happens: Callable[[int], None], number: int, *, more: bool, waits: bool) -> None:
        self.happens, self.number, self.more, self.waits = happens, number, more, waits
        self.n_read = 0

    def readable(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> bytes:
        self.n_read += 1
        if self.n_read == 2:
            self.happens(self.number)
            until = time.monotonic() + PATIENCE
            while self.waits and time.monotonic() < until:
                pass
        return ROW if self.n_read == 1 or (self.more and self.n_read < 100_000) else b""


def rank_lines(lines: tuple[Any, ...], folder: str) -> None:
    """``polyrank rank bm25`` in this process, with its streams in files."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT), descriptor)
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    happens, number, more, waits = lines
    sys.stdin = io.TextIOWrapper(io.BytesIO())
    read = {"buffer": Lines(happens, number, more=more, waits=waits), "isatty": lambda _: False}
    sys.stdin = type("Stdin", (), read)()
    sys.argv = ["polyrank", "rank", "bm25"]
    from polyrank.cli import program

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        program()
    finally:
        for late in (signal.SIGTERM, signal.SIGINT):  # after the work, when they change nothing
            signal.raise_signal(late)


def interrupted(folder: Path, happens: Callable[[int], None], number: int, **how: bool) -> tuple[int | None, int, str]:
    """Exit code, number of answers and stderr of a command in which ``happens`` runs after its first answer."""
    child = start(rank_lines, (happens, number, how.get("more", False), how.get("waits", False)), str(folder))
    child.join(2 * PATIENCE)
    answers = [json.loads(line) for line in (folder / "stdout").read_text().splitlines()]
    return child.exitcode, len(answers), (folder / "stderr").read_text()


@BOTH
@pytest.mark.parametrize("happens", [swallow, turn_into_an_error, leave])
def test_the_exit_code_reports_an_interrupt_in_any_case(
    tmp_path: Path, happens: Callable[[int], None], number: int
) -> None:
    """The signal comes when all work is done; the printed answer stays."""
    assert interrupted(tmp_path, happens, number) == (128 + number, 1, "interrupted\n")


def fill_the_disk(number: int) -> None:
    """Part of a line is written, and the disk is full; then a signal comes."""
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    print("part of a line", end="")
    signal.raise_signal(number)


def close_the_pipe(number: int) -> None:
    """Part of a line is written into a pipe that nobody reads any more; then a signal comes."""
    reader, writer = os.pipe()
    os.dup2(writer, 1)
    os.close(reader)
    print("part of a line", end="")
    signal.raise_signal(number)


@pytest.mark.parametrize(("happens", "number"), [(fill_the_disk, signal.SIGINT), (close_the_pipe, signal.SIGTERM)])
def test_an_interrupt_counts_even_if_the_rest_of_the_output_cannot_be_written(
    tmp_path: Path, happens: Callable[[int], None], number: int
) -> None:
    """At the exit, Python would try to write it again, and fail with another code and message."""
    assert interrupted(tmp_path, happens, number) == (128 + number, 1, "interrupted\n")


def test_a_swallowed_interrupt_ends_the_reading_of_lines(tmp_path: Path) -> None:
    code, n_answers, said = interrupted(tmp_path, swallow, signal.SIGINT, more=True)
    assert (code, said) == (130, "interrupted\n")
    assert n_answers <= 2


def raise_twice(number: int) -> None:
    """A second signal comes while the first one's exception propagates."""
    try:
        signal.raise_signal(number)
    finally:
        signal.raise_signal(signal.SIGTERM)


@BOTH
def test_a_second_signal_ends_at_once(tmp_path: Path, number: int) -> None:
    assert interrupted(tmp_path, raise_twice, number) == (143, 1, "")


def nothing(number: int) -> None:
    """Send no signal."""


def test_without_a_signal_nothing_changes(tmp_path: Path) -> None:
    assert interrupted(tmp_path, nothing, 0) == (0, 1, "")


def test_signal_handlers_are_restored_after_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyrank.cli import main

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.setattr(sys, "argv", ["polyrank", "--version"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_an_interrupt_without_a_signal_is_like_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A library may raise it, or a notebook, in which polyrank's handlers are not set."""
    from polyrank.cli import main

    class Interrupting(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, _: Any) -> int:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Interrupting())))
    monkeypatch.setattr(sys, "argv", ["polyrank", "rank", "bm25"])
    with pytest.raises(SystemExit) as left:
        main()
    assert (left.value.code, capfd.readouterr()) == (130, ("", "interrupted\n"))


def test_main_works_where_handlers_cannot_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyrank.cli import main

    codes: list[object] = []

    def work() -> None:
        try:
            main()
        except SystemExit as leaving:
            codes.append(leaving.code)

    monkeypatch.setattr(sys, "argv", ["polyrank", "--version"])
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(PATIENCE)
    assert codes == [0]


def test_a_signal_after_trainings_last_check_is_passed_on() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with stop_on_signals() as request:
            assert request.signal_number is None
            signal.raise_signal(signal.SIGTERM)
            assert heard == []
        assert heard == [signal.SIGTERM]
        with stop_on_signals() as request:
            signal.raise_signal(signal.SIGTERM)
            assert request.signal_number == signal.SIGTERM  # the caller must handle it
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def reset_signals() -> None:
    """Processes of a shell's background job ignore SIGINT."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def deaf() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def rank(**how: Any) -> "subprocess.Popen[bytes]":
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
    return subprocess.Popen([sys.executable, "-m", "polyrank", "rank", "bm25"], **pipes)


@pytest.mark.deep
@BOTH
def test_a_process_that_waits_for_a_line_ends(number: int) -> None:
    with rank(preexec_fn=reset_signals) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(ROW)
        process.stdin.flush()
        assert b"results" in process.stdout.readline()
        process.send_signal(number)
        out, said = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, said) == (128 + number, b"", b"interrupted\n")


@pytest.mark.deep
def test_initially_ignored_signals_stay_ignored() -> None:
    with rank(preexec_fn=deaf) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(ROW)
        process.stdin.flush()
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(ROW, timeout=PATIENCE)
    assert (process.returncode, out, said) == (0, first, b"")


IN_A_TEXT = """
import signal, sys, types
def readline(size):
    exec("import signal; signal.raise_signal(signal.SIGTERM)")
sys.stdin = types.SimpleNamespace(buffer=types.SimpleNamespace(readline=readline), isatty=lambda: False)
sys.argv = ["polyrank", "rank", "bm25"]
from polyrank.cli import program
program()
"""


@pytest.mark.deep
def test_the_exit_code_is_kept_where_python_would_kill_itself(tmp_path: Path) -> None:
    """Python kills itself at the end of a module if a plain KeyboardInterrupt came out of code that it executed."""
    (tmp_path / "asks.py").write_text(IN_A_TEXT, "utf-8")
    found = subprocess.run(
        [sys.executable, "-m", "asks"], cwd=tmp_path, preexec_fn=reset_signals, stderr=subprocess.PIPE, timeout=PATIENCE
    )
    assert (found.returncode, found.stderr) == (143, b"interrupted\n")


@pytest.mark.deep
def test_an_interrupted_training_saves_its_state_and_resumes(tiny_backbone: Path, tmp_path: Path) -> None:
    pairs = [{"context": [f"my wifi {i}"], "response": f"restart it {i}"} for i in range(64)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs), "utf-8")
    recipe = f'output = "run"\n[model]\nkind = "bi"\nbackbone = "{tiny_backbone}"\n[data]\ntrain = "pairs.jsonl"\n'
    recipe += "[text]\nmax_context_tokens = 32\nmax_candidate_tokens = 32\n"
    (tmp_path / "recipe.toml").write_text(f"{recipe}[train]\nbatch_size = 8\nepochs = 100000\n", "utf-8")
    command = [sys.executable, "-m", "polyrank", "train", "recipe.toml"]
    for options in ([], ["--resume"]):
        with subprocess.Popen(
            [*command, *options], cwd=tmp_path, preexec_fn=reset_signals, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                if re.search(r"step \d+/", line):
                    process.send_signal(signal.SIGINT)
        assert process.returncode == 130, said
        assert re.fullmatch("stopped by SIGINT; saved in .*run; continue with .*--resume.*", said[-1].strip()), said
