"""The cases: a kill at any moment, a fault at every call, a power loss after every call, a flipped bit anywhere.

Every case works in a fork of one warm process and a folder of its own.
"""

import errno
import os
import random
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
from crashes.disk import NOTE, Disk, read_journal
from crashes.workload import Script, Session, held_by, run, run_stubbornly, script, violations
from polyrank.errors import ArtifactError, PolyrankError
from polyrank.index import Writer, verify_index

SHOWN = 10  # violations that are quoted
Tally = dict[str, Any]


@contextmanager
def workplace() -> Iterator[Path]:
    """A folder in memory where there is one: thousands of cases sync thousands of times."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as name:
        yield Path(name).resolve()


def start(work: Callable[[int], None]) -> tuple[int, int]:
    """Run ``work(pipe)`` in a fork; its process and the pipe's reading end."""
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
    """What the child wrote into the pipe, and its status once it is gone: negative for a signal."""
    said = b""
    while part := os.read(reading, 65536):
        said += part
    os.close(reading)
    return said, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kills(n: int, seed: int = 0) -> Tally:
    """Kill a writer at random moments of random workloads; a kill may also come while everything is closed."""
    chance, found, reached = random.Random(seed), [], Counter[str]()
    for case in range(n):
        plan = script(chance.randrange(50), 14 + chance.randrange(8))
        with workplace() as folder:
            child, reading = start(lambda pipe: run(folder, plan, lambda i: _say(pipe)))  # noqa: B023  # runs at once
            said, wanted = b"", chance.randrange(len(plan.steps))
            while len(said) < wanted and (part := os.read(reading, 1)):
                said += part
            until = time.perf_counter() + chance.random() ** 2 * 0.02
            while time.perf_counter() < until:
                pass
            os.kill(child, signal.SIGKILL)
            rest, status = end(child, reading)
            done = len(said + rest)
            reached[plan.steps[done].name if done < len(plan.steps) else "end"] += 1
            if status not in (0, -signal.SIGKILL):
                found.append(f"kill {case}: the writer ended with {status}")
            found += [f"kill {case}: {text}" for text in violations(folder, plan, done)]
    return _tally(n, found, killed_in=dict(reached))


def _say(pipe: int) -> None:
    os.write(pipe, b".")


def calls(seed: int = 0, every: int = 1, n_steps: int = 14) -> Tally:
    """At every durable call of a workload: die before it, die in the middle of it, or see it fail."""
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


def power(seed: int = 0, every: int = 1, draws: int = 2, n_steps: int = 14) -> Tally:
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


def flips(seed: int = 0, every: int = 1, n_steps: int = 4, all_bits: int = 0) -> Tally:
    """Flip a bit of each byte, and cut each file, of a closed index: it is refused, or holds exactly the same.

    Args:
        seed: of the workload that made the index.
        every: try each ``every``-th byte only.
        n_steps: of the workload; 4 leave a matrix and later additions and removals.
        all_bits: of how many first bytes of each file every bit is tried.
    """
    found: list[str] = []
    outcomes = Counter[str]()
    chance = random.Random(seed)
    with workplace() as folder:
        run(folder, script(seed, n_steps), lambda i: None)
        index = folder / "index"
        expected = held_by(index)
        for name in ("candidates.db-wal", "candidates.db-shm"):
            (index / name).unlink(missing_ok=True)
        files = sorted(path for path in index.rglob("*") if path.is_file())
        for path in files:
            data = path.read_bytes()
            places = [(place, place % 8) for place in range(chance.randrange(every), len(data), every)]
            places += [(place, bit) for place in range(min(all_bits, len(data))) for bit in range(8)]
            for place, bit in places:
                damaged = bytearray(data)
                damaged[place] ^= 1 << bit
                what = f"{path.relative_to(index)}: bit {bit} of byte {place}"
                found += _damaged(index, path, bytes(damaged), expected, what, outcomes)
            lengths = {0, 1, len(data) // 2, len(data) - 1, *range(0, len(data), 512 * every)} - {len(data), -1}
            for length in sorted(lengths):
                what = f"{path.relative_to(index)}: cut to {length} bytes"
                found += _damaged(index, path, data[:length], expected, what, outcomes)
            path.write_bytes(data)
        found += [f"verify finds fault with a sound index: {text}" for text in verify_index(index)]
    return _tally(sum(outcomes.values()), found, outcomes=dict(outcomes))


def _damaged(index: Path, path: Path, data: bytes, expected: object, what: str, outcomes: Counter[str]) -> list[str]:
    path.write_bytes(data)
    try:
        for name in ("candidates.db-wal", "candidates.db-shm"):
            (index / name).unlink(missing_ok=True)
        try:
            held = held_by(index)
        except ArtifactError:
            outcomes["refused"] += 1
            return [] if verify_index(index) else [f"{what}: refused, and verify finds nothing"]
        except (PolyrankError, AssertionError) as error:
            return [f"{what}: {type(error).__name__}: {error}"]
        outcomes["harmless"] += held == expected
        return [] if held == expected else [f"{what}: another content, silently"]
    except Exception as error:
        return [f"{what}: {type(error).__name__}: {error}"]


def lost_removals(seed: int = 0, every: int = 1) -> Tally:
    """Flip bits of the truth and let a writer remove a candidate: it is refused, or the candidate is gone."""
    found: list[str] = []
    outcomes = Counter[str]()
    with workplace() as folder:
        plan = script(seed, 4)
        run(folder, plan, lambda i: None)
        held = plan.held[4] or {}
        id_ = sorted(held)[len(held) // 2]
        data = (folder / "index" / "candidates.db").read_bytes()
        for place in range(0, len(data), every):
            copy = folder / "copy"
            shutil.copytree(folder / "index", copy)
            damaged = bytearray(data)
            damaged[place] ^= 1 << (place % 8)
            (copy / "candidates.db").write_bytes(damaged)
            try:
                with Writer(copy) as writer:
                    writer.remove([id_])
                now = held_by(copy)
                outcomes["removed"] += 1
                if now != {key: value for key, value in held.items() if key != id_}:
                    found.append(f"bit {place % 8} of byte {place}: a removal went wrong, silently")
            except PolyrankError:
                outcomes["refused"] += 1
            except Exception as error:
                found.append(f"bit {place % 8} of byte {place}: {type(error).__name__}: {error}")
            shutil.rmtree(copy)
    return _tally(sum(outcomes.values()), found, outcomes=dict(outcomes))


def _tally(n: int, found: list[str], **more: Any) -> Tally:
    return {"n": n, "n_violations": len(found), "violations": found[:SHOWN], **more}


__all__ = ["Session", "calls", "flips", "kills", "lost_removals", "power", "workplace"]
