"""A scripted workload on an index: what each step does, and what the index holds after it.

The harness knows an index by its public functions only.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from polyrank.errors import PolyrankError, ResourceError
from polyrank.index import Writer, open_index, verify_index, write_index
from polyrank.records import Candidate

DIMENSION = 8
Held = dict[str, tuple[str, tuple[tuple[str, object], ...], bytes]]  # id -> text, metadata, vector
NOTHING: Held | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of the workload.

    Args:
        name: create, recreate, add, replace, remove, compact, snapshot or reopen.
        candidates: of an addition.
        ids: of a removal.
        place: of a snapshot, below the workload's folder.
    """

    name: str
    candidates: tuple[Candidate, ...] = ()
    ids: tuple[str, ...] = ()
    place: str = ""


@dataclass(frozen=True, slots=True)
class Script:
    """Steps, and what must be there after each.

    Args:
        steps: in order.
        held: what the index holds before the first step, and after each.
        snapshots: what each snapshot holds, and the step that makes it.
    """

    steps: tuple[Step, ...]
    held: tuple[Held | None, ...]
    snapshots: dict[str, tuple[int, Held]] = field(default_factory=dict)


def vector(candidate: Candidate) -> np.ndarray:
    """The candidate's vector: ``[D]``, from its text."""
    seed = int.from_bytes(candidate.text.encode()[:32], "little")
    return np.random.default_rng(seed).normal(size=DIMENSION).astype(np.float32)


def script(seed: int, n_steps: int = 14) -> Script:
    """A workload that creates, adds, replaces, removes, compacts, copies and opens again."""
    chance = random.Random(seed)
    held: Held | None = None
    steps: list[Step] = []
    states: list[Held | None] = [None]
    snapshots: dict[str, tuple[int, Held]] = {}
    number = 0

    def some(n: int, ids: Sequence[str] = ()) -> tuple[Candidate, ...]:
        nonlocal number
        result = []
        for i in range(n):
            number += 1
            text = f"{number} of {seed}: " + "reply " * chance.choice([1, 4, 60])
            result.append(Candidate(ids[i] if ids else f"c{number}", text, {"n": number} if number % 3 else {}))
        return tuple(result)

    names = ["create", "add", "replace", "remove", "compact", "add", "snapshot", "reopen", "remove", "compact"]
    names += ["add", "recreate", "add", "compact"]
    names += chance.choices(
        ["add", "replace", "remove", "compact", "snapshot", "reopen"], k=max(0, n_steps - len(names))
    )
    for name in names[:n_steps]:
        now = dict(held or {})
        step = Step(name)
        if name in ("create", "recreate"):
            step, now = Step(name, some(chance.choice([3, 12]))), {}
        elif name == "add":
            step = Step(name, some(chance.choice([1, 5, 40])))
        elif name == "replace":
            step = Step(name, some(min(2, len(now)), chance.sample(sorted(now), min(2, len(now)))) + some(1))
        elif name == "remove":
            step = Step(name, ids=(*chance.sample(sorted(now), min(3, len(now))), "unknown"))
        elif name == "snapshot":
            step = Step(name, place=f"snapshot-{len(steps)}")
            snapshots[step.place] = (len(steps), now)
        for gone in step.ids:
            now.pop(gone, None)
        now |= {c.id: (c.text, tuple(c.metadata.items()), vector(c).tobytes()) for c in step.candidates}
        held = now
        steps.append(step)
        states.append(held)
    return Script(tuple(steps), tuple(states), snapshots)


class Session:
    """Carries out steps below a folder, with one Writer at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.index, self.writer = folder, folder / "index", None

    def do(self, step: Step) -> None:
        """One step; when it returns, its effect is durable."""
        vectors = np.array([vector(c) for c in step.candidates], np.float32).reshape(-1, DIMENSION)
        if step.name in ("create", "recreate", "reopen"):
            self.close()
        if step.name in ("create", "recreate"):
            again = step.name == "recreate"
            write_index(self.index, step.candidates, vectors, fingerprint="f" * 64, model="m", overwrite=again)
            return
        if self.writer is None:
            self.writer = Writer(self.index)
        if step.name in ("add", "replace"):
            self.writer.add(step.candidates, vectors, replace=step.name == "replace")
        elif step.name == "remove":
            self.writer.remove(step.ids)
        elif step.name == "compact":
            self.writer.compact()
        elif step.name == "snapshot":
            self.writer.snapshot(self.folder / step.place)

    def close(self) -> None:
        """Let go of the index."""
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.close()


def held_by(path: Path) -> Held | None:
    """What a reader finds in an index, its two ways of reading compared; None where there is nothing.

    Raises:
        PolyrankError: it is refused.
        AssertionError: the ways disagree.
    """
    if not path.exists():
        return None
    with open_index(path) as index:
        vectors: dict[int, bytes] = {}
        for block in index.blocks():
            for i, row in enumerate(block.rows.tolist()):
                if block.alive is None or block.alive[i]:
                    vectors[row] = block.vectors[i].tobytes()
        listed = dict(index.iter_candidates())
        assert listed.keys() == vectors.keys(), "blocks and candidates hold different rows"
        rows = sorted(vectors)
        assert index.candidates(rows) == [listed[row] for row in rows], "candidates differ from their listing"
        assert len(index) == len(rows), "the index's length is another"
        return {c.id: (c.text, tuple(c.metadata.items()), vectors[row]) for row, c in listed.items()}


def violations(folder: Path, plan: Script, done: int, *, began: bool = True) -> list[str]:
    """What is wrong with what a crash left, as sentences.

    Args:
        folder: of the workload.
        plan: what was going on.
        done: how many steps were acknowledged.
        began: whether the next step may have begun, so that it may be there, whole.
    """
    found: list[str] = []
    index = folder / "index"
    allowed = [plan.held[done]] + ([plan.held[done + 1]] if began and done < len(plan.steps) else [])
    try:
        held = held_by(index)
        if held not in allowed:
            found.append(f"after {done} steps: {difference(held, plan.held[done])}")
        for name, (step, expected) in plan.snapshots.items():
            copy = held_by(folder / name)
            if copy is None and step < done:
                found.append(f"after {done} steps: {name} is gone")
            elif copy is not None and copy != expected:
                found.append(f"after {done} steps: {name}: {difference(copy, expected)}")
        if held is not None:
            found += _still_works(index, held)
    except (PolyrankError, AssertionError) as error:
        found.append(f"after {done} steps: unreadable: {type(error).__name__}: {error}")
    return found


def _still_works(index: Path, held: Held) -> list[str]:
    new = Candidate("after", "added after the crash")
    with Writer(index) as writer:
        writer.add([new], vector(new)[None])
        writer.remove(sorted(held)[:1])
    expected = {id_: value for id_, value in held.items() if id_ not in sorted(held)[:1]}
    expected |= {"after": (new.text, (), vector(new).tobytes())}
    now = held_by(index)
    found = [] if now == expected else [f"a writer after the crash: {difference(now, expected)}"]
    return found + [f"verify: {problem}" for problem in verify_index(index)]


def difference(held: Held | None, expected: Held | None) -> str:
    """How two contents differ."""
    if held is None or expected is None:
        return f"{'nothing' if held is None else 'an index'} where {'nothing' if expected is None else 'an index'} was"
    lost, back = sorted(expected.keys() - held.keys()), sorted(held.keys() - expected.keys())
    other = sorted(id_ for id_ in held.keys() & expected.keys() if held[id_] != expected[id_])
    return f"lost {lost[:3]} ({len(lost)}), back {back[:3]} ({len(back)}), altered {other[:3]} ({len(other)})"


def run(folder: Path, plan: Script, acknowledge: Callable[[int], None]) -> None:
    """The whole workload; ``acknowledge(i)`` once step ``i`` has returned."""
    session = Session(folder)
    for i, step in enumerate(plan.steps):
        session.do(step)
        acknowledge(i)
    session.close()


def run_stubbornly(folder: Path, plan: Script, lift: Callable[[], None]) -> tuple[int, list[str]]:
    """The workload on a disk that fails once: a failed step must change nothing and work when done again.

    Args:
        folder: to work in.
        plan: the steps.
        lift: frees the disk again, once a step has failed.

    Returns:
        How many steps failed, and what was wrong.
    """
    session, found, failed = Session(folder), [], 0
    for i, step in enumerate(plan.steps):
        try:
            session.do(step)
        except ResourceError:
            failed += 1
            lift()
            try:
                held = held_by(folder / "index")
                if held != plan.held[i]:
                    found.append(f"step {i} ({step.name}) failed, yet: {difference(held, plan.held[i])}")
                if step.name in ("create", "recreate") and held == plan.held[i + 1]:
                    continue  # reported above; go on from what is there
                session.do(step)
            except Exception as error:
                found.append(f"step {i} ({step.name}) done again: {type(error).__name__}: {error}")
                break
        except Exception as error:
            found.append(f"step {i} ({step.name}): {type(error).__name__}: {error}")
            break
    try:
        session.close()
    except ResourceError:
        failed += 1
        lift()
    return failed, found
