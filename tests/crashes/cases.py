"""Crash cases: a kill at any moment, a fault at every call, a power loss after every call, a flipped bit anywhere.

Every case runs in a fork of one warm process, in its own folder.
"""

import errno
import os
import random
import re
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crashes import faults
from crashes.disk import NOTE, SYNC, Disk, read_journal
from crashes.workload import (
    INDEX,
    N_STEPS,
    Held,
    Script,
    Session,
    difference,
    held_by,
    held_in,
    run,
    run_stubbornly,
    script,
    stored,
    vector,
    violations,
)
from polyrank.errors import ArtifactError, PolyrankError
from polyrank.index import Index, LocalWriter, open_index, verify_index
from polyrank.records import Candidate

SHOWN = 10  # violations to quote
_ALL = slice(None)
_FREE = re.compile(rb"\0{64,}")  # unused parts of SQLite's pages
Counts = dict[str, Any]


@contextmanager
def workplace() -> Iterator[Path]:
    """A folder in memory if available, since thousands of cases sync thousands of times."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as name:
        yield Path(name).resolve()


def start(work: Callable[[int], None]) -> tuple[int, int]:
    """Run ``work(pipe)`` in a fork; returns its process id and the pipe's reading end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    code = 70
    try:
        os.close(reading)
        work(writing)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # no exit handlers: they are the parent's


def end(child: int, reading: int) -> tuple[bytes, int]:
    """The bytes that the child wrote into the pipe, and its exit status: negative for a signal."""
    said = b""
    while part := os.read(reading, 65536):
        said += part
    os.close(reading)
    return said, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kills(n: int, seed: int = 0) -> Counts:
    """Kill a writer at random moments of random workloads; a kill may also come while everything is closed."""
    chance, found, reached = random.Random(seed), [], Counter[str]()
    for case in range(n):
        plan = script(chance.randrange(50), N_STEPS + chance.randrange(8))
        with workplace() as folder:
            child, reading = start(lambda pipe: run(folder, plan, lambda i: _say(pipe)))  # noqa: B023  # runs at once
            said, wanted = b"", chance.randrange(len(plan.steps))
            watcher: Index | None = None
            while len(said) < wanted and (part := os.read(reading, 1)):
                said += part
                if plan.lively and watcher is None:  # a reader of another process, open across the kill
                    watcher = open_index(folder / INDEX)
            until = time.perf_counter() + chance.random() ** 2 * 0.02
            while time.perf_counter() < until:
                pass
            os.kill(child, signal.SIGKILL)
            rest, status = end(child, reading)
            done = len(said + rest)
            reached[plan.steps[done].name if done < len(plan.steps) else "end"] += 1
            if status not in (0, -signal.SIGKILL):
                found.append(f"kill {case}: the writer ended with {status}")
            found += [f"kill {case}: {text}" for text in _watched(watcher, plan, done)]
            found += [f"kill {case}: {text}" for text in violations(folder, plan, done)]
            if watcher is not None:
                watcher.close()
    return _tally(n, found, killed_in=dict(reached))


def _watched(watcher: Index | None, plan: Script, done: int) -> list[str]:
    """Violations that a reader opened before the kill observes."""
    if watcher is None:
        return []
    try:
        watcher.refresh()
        held = held_in(watcher)
    except (PolyrankError, AssertionError) as error:
        return [f"after {done} steps: an open reader: {type(error).__name__}: {error}"]
    allowed = plan.held[done : done + 2]
    return [] if held in allowed else [f"after {done} steps: an open reader: {difference(held, plan.held[done])}"]


def _say(pipe: int) -> None:
    os.write(pipe, b".")


def calls(seed: int = 0, every: int = 1, n_steps: int = N_STEPS) -> Counts:
    """At every durable call of a workload: die before it, die in the middle of it, or let it fail."""
    plan = script(seed, n_steps)
    with workplace() as folder:
        child, reading = start(lambda pipe: _counted(folder, plan, pipe))
        said, status = end(child, reading)
        if status:
            return _tally(1, [f"the workload itself ended with {status}"])
        total = int(said)
    found: list[str] = []
    n_cases, kinds = 0, Counter[str]()
    for what in (faults.KILL, faults.TEAR):
        for at in range(1 + n_cases % every, total + 1, every):
            n_cases += 1
            with workplace() as folder:
                child, reading = start(lambda pipe: _until(folder, plan, what, at, pipe))  # noqa: B023
                said, status = end(child, reading)
                kinds["killed" if status == -signal.SIGKILL else "outlived it"] += 1
                if status not in (0, -signal.SIGKILL):
                    found.append(f"call {at}: the writer ended with {status}")
                found += [f"call {at}: killed: {text}" for text in violations(folder, plan, len(said))]
    failures = [
        ("EIO", faults.FAIL, errno.EIO),
        ("ENOSPC", faults.FAIL, errno.ENOSPC),
        ("short", faults.SHORT, 0),
        ("full", faults.FULL, 0),
    ]
    for name, what, code in failures:
        for at in range(1 + n_cases % every, total + 1, every):
            n_cases += 1
            with workplace() as folder:
                child, reading = start(lambda pipe: _failing(folder, plan, what, at, code, pipe))  # noqa: B023
                said, status = end(child, reading)
                if status:
                    found.append(f"call {at}: {name}: the writer ended with {status}")
                    continue
                n_failed, *texts = said.decode().split("\0")
                kinds[f"{name}: {'reported' if int(n_failed) else 'absorbed'}"] += 1
                found += [f"call {at}: {name}: {text}" for text in texts]
                if not texts:
                    after = violations(folder, plan, len(plan.steps))
                    found += [f"call {at}: {name}: in the end: {text}" for text in after]
    return _tally(n_cases, found, n_calls=total, outcomes=dict(kinds))


def _counted(folder: Path, plan: Script, pipe: int) -> None:
    faults.arm(folder)
    run(folder, plan, lambda i: None)
    os.write(pipe, str(faults.count()).encode())


def _until(folder: Path, plan: Script, what: int, at: int, pipe: int) -> None:
    faults.arm(folder, what, at)
    run(folder, plan, lambda i: _say(pipe))


def _failing(folder: Path, plan: Script, what: int, at: int, code: int, pipe: int) -> None:
    faults.arm(folder, what, at, code)
    n_failed, found = run_stubbornly(folder, plan, faults.disarm)
    os.write(pipe, "\0".join([str(n_failed), *found]).encode())


def power(seed: int = 0, every: int = 1, draws: int = 2, n_steps: int = N_STEPS) -> Counts:
    """Lose power after every durable call: without anything un-synced, and with random parts of it."""
    plan, chance, found, n_cases = script(seed, n_steps), random.Random(seed), [], 0
    with workplace() as folder:
        journal = folder / "journal"
        (folder / "disk").mkdir()
        child, reading = start(lambda pipe: _logged(folder / "disk", plan, journal))
        _, status = end(child, reading)
        if status:
            return _tally(1, [f"the workload itself ended with {status}"])
        changes = list(read_journal(journal))
        disk, done = Disk(folder / "disk"), 0
        for at, change in enumerate(changes):
            done += change.kind == NOTE
            disk.apply(change)
            if (at + chance.randrange(every)) % every:
                continue
            for draw in range(draws):
                n_cases += 1
                with workplace() as left:
                    disk.leave(left, random.Random(chance.random()) if draw else None)
                    texts = violations(left, plan, done)
                    found += [f"after call {at} of {len(changes)}, draw {draw}: {text}" for text in texts]
    return _tally(n_cases, found, n_calls=len(changes))


def _logged(disk: Path, plan: Script, journal: Path) -> None:
    descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT)
    faults.arm(disk, journal=descriptor)
    run(disk, plan, lambda i: faults.note(str(i)))


def losses(seed: int = 0, every: int = 1, n_steps: int = N_STEPS) -> Counts:
    """Each sync fails once and loses what it should have written; later the power is cut too."""
    plan, chance, found, n_cases = script(seed, n_steps), random.Random(seed), [], 0
    at, n_syncs = 1, 1
    while at <= n_syncs:
        with workplace() as folder:
            journal = folder / "journal"
            (folder / "disk").mkdir()
            child, reading = start(lambda pipe: _losing(folder / "disk", plan, at, journal, pipe))  # noqa: B023
            said, status = end(child, reading)
            texts = [f"the writer ended with {status}"] if status else said.decode().split("\0")[1:]
            changes = list(read_journal(journal))
            n_syncs = 1 + sum(change.kind == SYNC for change in changes)
            notes = [place for place, change in enumerate(changes) if change.kind == NOTE]
            cuts = {*chance.sample(notes, min(3, len(notes))), *notes[-1:]}
            disk, done = Disk(folder / "disk"), 0
            for place, change in enumerate(changes):
                disk.apply(change)
                done += change.kind == NOTE
                for what in (None, random.Random(chance.random())) if place in cuts else ():
                    n_cases += 1
                    with workplace() as left:
                        disk.leave(left, what)
                        texts += [f"power lost: {text}" for text in violations(left, plan, done)]
            found += [f"sync {at}: {text}" for text in texts]
        at += every
    return _tally(n_cases, found, n_syncs=n_syncs)


def _losing(disk: Path, plan: Script, at: int, journal: Path, pipe: int) -> None:
    descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT)
    faults.arm(disk, faults.LOSE, at, journal=descriptor)
    _, found = run_stubbornly(disk, plan, lambda: None, lambda i: faults.note(str(i)))
    faults.disarm()
    os.write(pipe, "\0".join(["", *found]).encode())


def flips(
    seed: int = 0, places: slice = _ALL, *, n_steps: int = 4, all_bits: bool = False, killed: bool = False
) -> Counts:
    """Flip bits, and cut each file, of an index: it is refused, or holds exactly the same.

    Args:
        seed: seed of the workload that made the index.
        places: bytes to try.
        n_steps: steps of the workload; 4 result in a matrix and later additions and removals.
        all_bits: flip every bit that is in use and one in each byte of free space; else one in each byte.
        killed: the writer did not close the index, so that a part of it is in SQLite's log.
    """
    outcomes, found = Counter[str](), []
    with workplace() as folder:
        child, reading = start(lambda pipe: _left(folder, script(seed, n_steps), killed=killed))
        status = end(child, reading)[1]
        if status:
            return _tally(1, [f"the workload itself ended with {status}"])
        index = folder / INDEX
        files = {path: path.read_bytes() for path in sorted(index.rglob("*")) if path.is_file()}
        shared = index / "candidates.db-shm"  # shared memory, which does not survive a crash
        files.pop(shared, None)
        log = index / "candidates.db-wal"
        assert (log in files) == killed, "the log exists after a close, or is missing after a kill"
        shared.unlink(missing_ok=True)
        _restore(files)
        expected = held_by(index)
        for path, data in files.items():
            free = {place for run in _FREE.finditer(data) for place in range(*run.span())}
            bits = [
                (place, bit)
                for place in range(len(data))[places]
                for bit in (range(8) if all_bits and place not in free else [_bit(place)])
            ]
            lengths = {0, 1, len(data) // 2, len(data) - 1, *range(0, len(data), 512 * (places.step or 1))} - {
                len(data),
                -1,
            }
            for place, bit in bits:
                damaged = data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]
                what = f"{path.relative_to(index)}: bit {bit} of byte {place}"
                found += _damaged(index, files, path, damaged, expected, what, outcomes, check=bit == _bit(place))
            for length in sorted(lengths):
                what = f"{path.relative_to(index)}: cut to {length} bytes"
                found += _damaged(index, files, path, data[:length], expected, what, outcomes)
        _restore(files)
        found += [f"verify finds fault with a sound index: {text}" for text in verify_index(index)]
    return _tally(sum(outcomes.values()), found, outcomes=dict(outcomes), n_bytes=sum(map(len, files.values())))


def _bit(place: int) -> int:
    """The bit of a byte to flip; all eight bits occur for any selection of places."""
    return (place + place // 8) % 8


def _left(folder: Path, plan: Script, *, killed: bool) -> None:
    """Run the workload; a killed writer leaves its log."""
    session = Session(folder, lively=plan.lively, precision=plan.precision)
    for step in plan.steps:
        session.do(step)
    if not killed:
        session.close()


def _restore(files: dict[Path, bytes]) -> None:
    """Restore the index's original files."""
    log = next(path for path in files if path.name == "candidates.db").with_name("candidates.db-wal")
    if log not in files:
        log.unlink(missing_ok=True)
    for path, data in files.items():
        path.write_bytes(data)


def _damaged(
    index: Path,
    files: dict[Path, bytes],
    path: Path,
    data: bytes,
    expected: Held | None,
    what: str,
    outcomes: Counter[str],
    *,
    check: bool = True,
) -> list[str]:
    try:
        path.write_bytes(data)
        try:
            held = held_by(index)
        except ArtifactError:
            outcomes["refused"] += 1
            return [] if not check or verify_index(index) else [f"{what}: refused, and verify finds nothing"]
        outcomes["harmless"] += held == expected
        return [] if held == expected else [f"{what}: another content, silently"]
    except Exception as error:
        return [f"{what}: {type(error).__name__}: {error}"]
    finally:
        if any(folded.name == "candidates.db-wal" for folded in files):  # reading may have folded the log in
            _restore(files)
        else:
            path.write_bytes(files[path])


def lost_removals(seed: int = 0, places: slice = _ALL) -> Counts:
    """Flip bits of the truth and let a writer remove a candidate and add one: it is refused, or just that is done."""
    found: list[str] = []
    outcomes = Counter[str]()
    with workplace() as folder:
        plan = script(seed, 4)
        run(folder, plan, lambda i: None)
        held = plan.held[4] or {}
        id_ = sorted(held)[len(held) // 2]
        new = Candidate("new", "added to what is damaged")
        expected = {key: value for key, value in held.items() if key != id_}
        expected["new"] = (new.text, (), stored(new, plan.precision))
        data = (folder / INDEX / "candidates.db").read_bytes()
        for place in range(len(data))[places]:
            copy = folder / "copy"
            shutil.copytree(folder / INDEX, copy)
            damaged = bytearray(data)
            damaged[place] ^= 1 << _bit(place)
            (copy / "candidates.db").write_bytes(damaged)
            try:
                with LocalWriter(copy) as writer:
                    writer.remove([id_])
                    writer.add([new], vector(new)[None])
                now = held_by(copy)
                outcomes["removed"] += 1
                if now != expected:
                    found.append(f"bit {_bit(place)} of byte {place}: a removal went wrong, silently")
            except PolyrankError:
                outcomes["refused"] += 1
            except Exception as error:
                found.append(f"bit {_bit(place)} of byte {place}: {type(error).__name__}: {error}")
            shutil.rmtree(copy)
    return _tally(sum(outcomes.values()), found, outcomes=dict(outcomes))


def _tally(n: int, found: list[str], **more: Any) -> Counts:
    return {"n": n, "n_violations": len(found), "violations": found[:SHOWN], **more}


__all__ = ["calls", "flips", "kills", "losses", "lost_removals", "power"]
