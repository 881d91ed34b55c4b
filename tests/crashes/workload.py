"""A scripted workload on an index: its steps, and the index's expected content after each.

The harness uses only the index's public functions, and knows when it compacts in the background.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from polyrank.errors import PolyrankError, ResourceError
from polyrank.index import Index, KnownVectors, LocalWriter, open_index, verify_index, write_index
from polyrank.index.local import writer as index_writer
from polyrank.records import Candidate
from polyrank.storage.quantized import Precision, pack

DIMENSION = 8
N_STEPS = 16
INDEX = Path("indexes", "index")  # the parent folder does not exist at first
MAKERS = ("create", "recreate", "rebuild")
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "int8")
HAS_FAISS = find_spec("faiss") is not None
Held = dict[str, tuple[str, tuple[tuple[str, object], ...], bytes]]  # id -> text, metadata, vector


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of the workload.

    Args:
        name: create, recreate, rebuild (from its content), add, replace, remove, compact, snapshot or reopen.
        candidates: candidates to add.
        ids: ids to remove.
        place: path of a snapshot, below the workload's folder.
    """

    name: str
    candidates: tuple[Candidate, ...] = ()
    ids: tuple[str, ...] = ()
    place: str = ""


@dataclass(frozen=True, slots=True)
class Script:
    """Steps, and the expected content after each.

    Args:
        steps: steps in order.
        held: the index's content before the first step, and after each.
        snapshots: each snapshot's content, and the step that makes it.
        lively: a reader is open throughout, and the index compacts in the background and has an inner-product index.
        precision: precision of the stored vectors.
    """

    steps: tuple[Step, ...]
    held: tuple[Held | None, ...]
    snapshots: dict[str, tuple[int, Held]] = field(default_factory=dict)
    lively: bool = False
    precision: Precision = "fp32"


def vector(candidate: Candidate) -> np.ndarray:
    """The candidate's vector: ``[D]``, from its text."""
    seed = int.from_bytes(candidate.text.encode()[:32], "little")
    return np.random.default_rng(seed).normal(size=DIMENSION).astype(np.float32)


def stored(candidate: Candidate, precision: Precision) -> bytes:
    """The candidate's vector as a reader must return it."""
    return np.asarray(pack(vector(candidate)[None], precision)[:], np.float32).tobytes()


def script(seed: int, n_steps: int = N_STEPS) -> Script:
    """A workload that creates, adds, replaces, removes, compacts, copies and opens again.

    Every other seed is lively; precisions alternate.
    """
    chance, precision = random.Random(seed), PRECISIONS[seed % len(PRECISIONS)]
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
    names += ["add", "recreate", "add", "compact", "rebuild", "remove"]
    names += chance.choices(
        ["add", "replace", "remove", "compact", "snapshot", "reopen", "rebuild"], k=max(0, n_steps - len(names))
    )
    for name in names[:n_steps]:
        now = dict(held or {})
        step = Step(name)
        if name in ("create", "recreate"):
            step, now = Step(name, some(chance.choice([3, 12]))), {}
        elif name == "rebuild":
            kept = chance.sample(sorted(now), len(now) // 2)
            step = Step(name, (*(Candidate(id_, now[id_][0], dict(now[id_][1])) for id_ in kept), *some(2)))
            now = {}
        elif name == "add":
            step = Step(name, some(chance.choice([1, 5, 40])))
        elif name == "replace":
            step = Step(name, some(min(2, len(now)), chance.sample(sorted(now), min(2, len(now)))) + some(1))
        elif name == "remove":
            step = Step(name, ids=(*chance.sample(sorted(now), min(3, len(now))), "unknown"))
        elif name == "snapshot":
            step = Step(name, place=f"copies/{len(steps)}/snapshot")
            snapshots[step.place] = (len(steps), now)
        for gone in step.ids:
            now.pop(gone, None)
        now |= {c.id: (c.text, tuple(c.metadata.items()), stored(c, precision)) for c in step.candidates}
        held = now
        steps.append(step)
        states.append(held)
    return Script(tuple(steps), tuple(states), snapshots, lively=seed % 2 == 1, precision=precision)


class Session:
    """Runs steps below a folder, with one LocalWriter at a time."""

    def __init__(self, folder: Path, *, lively: bool = False, precision: Precision = "fp32") -> None:
        self.precision = precision
        self.folder, self.index, self.ann = folder, folder / INDEX, "flat" if lively and HAS_FAISS else ""
        self.writer: LocalWriter | None = None
        self.reader: Index | None = None
        self._lively = lively
        index_writer.MIN_STALE = 8 if lively else 10_000

    def do(self, step: Step) -> None:
        """Run one step; its effect is durable when it returns."""
        vectors = np.array([vector(c) for c in step.candidates], np.float32).reshape(-1, DIMENSION)
        if step.name in (*MAKERS, "reopen"):
            self.close()
        if step.name == "rebuild":
            with open_index(self.index) as index:
                known = KnownVectors(index)
                vectors = np.array([known[c.text] if c.text in known else vector(c) for c in step.candidates])
        if step.name in MAKERS:
            again = step.name != "create"
            write_index(
                self.index, step.candidates, vectors, fingerprint="f" * 64, model="m", ann=self.ann,
                precision=self.precision, overwrite=again,
            )  # fmt: skip
            return
        if self.writer is None:
            self.writer = LocalWriter(self.index)
        if step.name in ("add", "replace"):
            self.writer.add(step.candidates, vectors, replace=step.name == "replace")
        elif step.name == "remove":
            self.writer.remove(step.ids)
        elif step.name == "compact":
            self.writer.compact()
        elif step.name == "snapshot":
            self.writer.snapshot(self.folder / step.place)

    def seen(self) -> Held | None:
        """The content by a reader: alternately one that stays open, and a new one."""
        if not self._lively or not self.index.exists():
            return held_by(self.index)
        if self.reader is None:
            self.reader = open_index(self.index)
        self.reader.refresh()
        return held_in(self.reader)

    def close(self) -> None:
        """Close the writer, so that others can write."""
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.close()


def held_by(path: Path) -> Held | None:
    """The content of an index by a reader, with a check that its two ways of reading agree; None without an index.

    Raises:
        PolyrankError: the index is refused.
        AssertionError: the two ways of reading disagree.
    """
    if not path.exists():
        return None
    with open_index(path) as index:
        return held_in(index)


def held_in(index: Index) -> Held:
    """The content of an open index."""
    vectors: dict[int, bytes] = {}
    for block, ann in zip(*index.view(), strict=True):
        rows_of = np.asarray(block.vectors[:], np.float32)
        for i, row in enumerate(block.rows.tolist()):
            if block.alive is None or block.alive[i]:
                vectors[row] = rows_of[i].tobytes()
        if ann is not None:
            best = (rows_of @ rows_of[0]).max()
            assert np.allclose(ann.search(rows_of[:1], 1)[0], best, rtol=1e-4), "inner products differ"
    listed = dict(index.iter_candidates())
    assert listed.keys() == vectors.keys(), "blocks and candidates hold different rows"
    rows = sorted(vectors)
    assert index.candidates(rows) == [listed[row] for row in rows], "candidates differ from their listing"
    assert len(index) == len(rows), "the index's length differs from its number of rows"
    return {c.id: (c.text, tuple(c.metadata.items()), vectors[row]) for row, c in listed.items()}


def violations(folder: Path, plan: Script, done: int, *, began: bool = True) -> list[str]:
    """Violations in the files that a crash left, as sentences.

    Args:
        folder: the workload's folder.
        plan: the script that was running.
        done: number of acknowledged steps.
        began: whether the next step may have begun, so that its whole effect may be present.
    """
    found: list[str] = []
    index = folder / INDEX
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
            found += _still_works(index, held, plan.precision)
    except (PolyrankError, AssertionError) as error:
        found.append(f"after {done} steps: unreadable: {type(error).__name__}: {error}")
    return found


def _still_works(index: Path, held: Held, precision: Precision) -> list[str]:
    new = Candidate("after", "added after the crash")
    with LocalWriter(index) as writer:
        writer.add([new], vector(new)[None])
        writer.remove(sorted(held)[:1])
    expected = {id_: value for id_, value in held.items() if id_ not in sorted(held)[:1]}
    expected |= {"after": (new.text, (), stored(new, precision))}
    now = held_by(index)
    found = [] if now == expected else [f"a writer after the crash: {difference(now, expected)}"]
    return found + [f"verify: {problem}" for problem in verify_index(index)]


def difference(held: Held | None, expected: Held | None) -> str:
    """A description of how two contents differ."""
    if held is None or expected is None:
        return f"{'nothing' if held is None else 'an index'} where {'nothing' if expected is None else 'an index'} was"
    lost, back = sorted(expected.keys() - held.keys()), sorted(held.keys() - expected.keys())
    other = sorted(id_ for id_ in held.keys() & expected.keys() if held[id_] != expected[id_])
    return f"lost {lost[:3]} ({len(lost)}), back {back[:3]} ({len(back)}), altered {other[:3]} ({len(other)})"


def run(folder: Path, plan: Script, acknowledge: Callable[[int], None]) -> None:
    """Run the whole workload; calls ``acknowledge(i)`` after step ``i``."""
    session = Session(folder, lively=plan.lively, precision=plan.precision)
    for i, step in enumerate(plan.steps):
        session.do(step)
        acknowledge(i)
        if plan.lively:
            held = session.seen()
            assert held == plan.held[i + 1], f"a reader after step {i}: {difference(held, plan.held[i + 1])}"
    session.close()


def run_stubbornly(
    folder: Path, plan: Script, lift: Callable[[], None], acknowledge: Callable[[int], None] = lambda i: None
) -> tuple[int, list[str]]:
    """Run the workload on a disk that fails once: a failed step must change nothing and work when repeated.

    Args:
        folder: working folder.
        plan: the steps.
        lift: ends the fault; called after a step has failed and the index has been read.
        acknowledge: called with ``i`` after step ``i``.

    Returns:
        Number of failed steps, and violations.
    """
    session, found, failed = Session(folder, lively=plan.lively, precision=plan.precision), [], 0
    for i, step in enumerate(plan.steps):
        try:
            session.do(step)
        except ResourceError:
            failed += 1
            try:
                held = session.seen()  # reading still works
                lift()
                if held != plan.held[i]:
                    found.append(f"step {i} ({step.name}) failed, yet: {difference(held, plan.held[i])}")
                if step.name in MAKERS and held == plan.held[i + 1]:
                    continue  # reported above; continue from the current content
                session.do(step)
                held = session.seen()
                if held != plan.held[i + 1]:
                    found.append(f"step {i} ({step.name}) done again: {difference(held, plan.held[i + 1])}")
            except Exception as error:
                found.append(f"step {i} ({step.name}) done again: {type(error).__name__}: {error}")
                break
        except Exception as error:
            found.append(f"step {i} ({step.name}): {type(error).__name__}: {error}")
            break
        acknowledge(i)
    try:
        session.close()
    except ResourceError:
        failed += 1
        lift()
    return failed, found
