"""Writes all kinds of files that must survive a power loss, in one process that logs each durable call.

    LD_PRELOAD=... python -m crashes.works DISK JOURNAL BACKBONE

A work creates files below its own folder and changes them step by step; the log has a note before and after each step.
``crashes.disk`` computes from the log which files a power loss at any moment would leave.
"""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crashes import faults
from polyrank.config.checked import from_dict
from polyrank.config.models import BiConfig, TextPolicy
from polyrank.config.recipe import DataConfig, Recipe
from polyrank.config.train import TrainConfig
from polyrank.data import write_examples
from polyrank.data.pool import write_pool
from polyrank.evaluation import evaluate, write_scores
from polyrank.feedback import FeedbackStore, Outcome, Reply, Shown
from polyrank.index import LocalWriter, write_index
from polyrank.models import new_model
from polyrank.models.artifacts import save_model
from polyrank.records import Candidate, Context, Example
from polyrank.scorers.exported import export_to_sentence_transformers
from polyrank.scorers.lexical import BM25
from polyrank.scorers.open import load
from polyrank.scorers.protocols import Encoder
from polyrank.scorers.ranker import Ranker
from polyrank.scorers.terms.counts import Counts
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.storage.durable import make_folders, sync_folder, write_file
from polyrank.training import train
from polyrank.training.signals import InterruptedTraining
from polyrank.tuning.intents import IntentClassifier, save_intents
from polyrank.tuning.intents.head import Head

WORDS = ["wifi", "router", "light", "bill", "restart", "thanks"]
REPLIES = [f"{word} please" for word in WORDS]
POLICY = TextPolicy(max_context_tokens=16, max_candidate_tokens=8)
NOT_SYNCED = ("writer.lock", "checked")  # after a power loss it may hold an earlier note, which is harmless
GROWING = ("metrics.jsonl", "tensorboard")  # files that grow line by line during a training


@dataclass(frozen=True, slots=True)
class Work:
    """A kind of file or folder that is written and changed.

    Args:
        steps: functions of the folder; a step's effect is durable when it returns.
        whole: each step is atomic: at any moment the files are those before it or those after it.
        passing: files and folders that need not survive.
    """

    steps: tuple[Callable[[Path], object], ...]
    whole: bool = True
    passing: tuple[str, ...] = NOT_SYNCED


@cache
def _backbone() -> str:
    return sys.argv[3]


def _model(path: Path, turn: int) -> None:
    config = BiConfig(backbone=_backbone(), shared_towers=True, reduction="mean")
    model, texts, resolved = new_model(config, POLICY, seed=turn, sample=REPLIES)
    save_model(path, model, texts, resolved, metadata={"turn": turn}, replace=True)


@cache
def _saved() -> Path:
    """A model outside the logged disk."""
    path = Path(sys.argv[2]).parent / "saved"
    _model(path, 1)
    return path


@cache
def _encoder() -> Encoder:
    found = load(_saved(), device="cpu", precision="fp32")
    assert isinstance(found, Encoder)
    return found


def _examples(turn: int) -> list[Example]:
    return [Example((f"my {word} {turn}",), tuple(REPLIES), (i,), id=f"{i}") for i, word in enumerate(WORDS)]


def _ranker(path: Path, turn: int) -> None:
    counts = Counts.of(dict.fromkeys(REPLIES, turn))
    Ranker([(EncoderTerm(_encoder()), [1.0]), (counts, [0.5 * turn])]).save(path, replace=True)


def _intents(path: Path, turn: int) -> None:
    torch.manual_seed(turn)
    head = Head(_encoder().dimension, 4, 2, 0.0)
    save_intents(path, IntentClassifier(_encoder(), str(_saved()), head, ("a", "b")), replace=True)


def _index(path: Path, turn: int) -> None:
    pool = [Candidate(str(i), f"{text} {turn}") for i, text in enumerate(REPLIES)]
    vectors = np.full((len(pool), 4), turn, np.float32)
    write_index(path, pool, vectors, fingerprint="f", model="m", overwrite=True, precision="int8")


def _add(folder: Path) -> None:
    with LocalWriter(folder / "index") as writer:
        writer.add([Candidate("new", "hello")], np.ones((1, 4), np.float32))


def _compact(folder: Path) -> None:
    with LocalWriter(folder / "index") as writer:
        writer.remove(["1"])
        writer.compact()


def _snapshot(folder: Path) -> None:
    with LocalWriter(folder / "index") as writer:
        writer.snapshot(folder / "copies" / "snapshot")


def _run(folder: Path, *, resume: bool) -> None:
    """A training that is interrupted after its fifth step, or resumes and finishes."""
    data = {"train": folder.parents[1] / "train.jsonl", "valid": folder.parents[1] / "valid.jsonl"}
    if not resume:
        write_examples(data["train"], [Example(e.context, (REPLIES[i],), (0,)) for i, e in enumerate(_examples(0))])
        write_examples(data["valid"], _examples(0))
    settings: dict[str, Any] = {
        "batch_size": 2, "epochs": 3, "lr": 3e-3, "precision": "fp32", "dropout": 0.0, "checkpoint_steps": 2,
        "method": {"kind": "listwise"}, "schedule": {"kind": "linear"},
        "negatives": {"n": 2, "sources": ["mined", "random"], "remine_ranks": (1, 3)},
    }  # fmt: skip
    plan = Recipe(
        model=BiConfig(backbone=_backbone(), shared_towers=True, reduction="mean"),
        text=POLICY,
        data=DataConfig(**{name: str(path) for name, path in data.items()}),
        train=from_dict(TrainConfig, settings, "train"),
        output=str(folder / "run"),
    )

    def report(seed: int, record: dict[str, Any]) -> None:
        if record["step"] == 5 and not resume:
            os.kill(os.getpid(), signal.SIGINT)

    try:
        train(plan, resume=resume, device="cpu", report=report)
    except InterruptedTraining:
        if resume:
            raise


_stores: list[FeedbackStore] = []


def _feedback(folder: Path, turn: int) -> None:
    """A store that stays open from the first step to the last."""
    if turn == 1:
        _stores.append(FeedbackStore(folder / "new" / "feedback.db", keep_text=True))
    shown = Shown(f"{turn}", (Reply("a", text=REPLIES[0]), Reply("b", text=REPLIES[1])), Context(f"my wifi {turn}"))
    _stores[0].record(shown, Outcome(f"{turn}", "taken", "b"))
    if turn == 3:
        _stores.pop().close()


def _file(folder: Path, data: bytes) -> None:
    write_file(folder / "a" / "b" / "file", data)


def _twice(write: Callable[[Path, int], object], name: str) -> tuple[Callable[[Path], object], ...]:
    """Steps that write a file or folder, and then replace it."""
    return (lambda folder: write(folder / name, 1), lambda folder: write(folder / name, 2))


WORKS: dict[str, Work] = {
    "file": Work((lambda folder: _file(folder, b"one" * 999), lambda folder: _file(folder, b"other"))),
    "folders": Work((lambda folder: make_folders(folder / "x" / "y" / "z"),)),
    "model": Work(_twice(_model, "model")),
    "ranker": Work(_twice(_ranker, "ranker")),
    "intents": Work(_twice(_intents, "intents")),
    "export": Work(
        _twice(lambda path, turn: export_to_sentence_transformers(_saved(), path, replace=True), "exported")
    ),
    "examples": Work(_twice(lambda path, turn: write_examples(path, _examples(turn)), "examples.jsonl.gz")),
    "pool": Work(
        _twice(
            lambda path, turn: write_pool(path, [Candidate("a", f"{turn} {text}") for text in REPLIES]), "pool.jsonl"
        )
    ),
    "scores": Work(
        _twice(
            lambda path, turn: write_scores(
                path, evaluate(BM25().fit(REPLIES), _examples(turn)), scorer="bm25", data=f"{turn}"
            ),
            "scores.jsonl",
        )
    ),
    "index": Work(_twice(_index, "index")),
    "store": Work(
        (lambda folder: _index(folder / "index", 1), _add, _compact, _snapshot),
        whole=False,
        passing=(*NOT_SYNCED, "candidates.db-shm"),
    ),
    "feedback": Work(
        tuple(lambda folder, turn=turn: _feedback(folder, turn) for turn in (1, 2, 3)),
        whole=False,
        passing=("feedback.db-shm",),
    ),
    "run": Work(
        (lambda folder: _run(folder, resume=False), lambda folder: _run(folder, resume=True)),
        whole=False,
        passing=GROWING,
    ),
}


def main() -> None:
    """Run all works."""
    torch.set_num_threads(1)
    disk = Path(sys.argv[1])
    _encoder()
    faults.arm(disk, journal=os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT))
    for name, work in WORKS.items():
        (disk / name).mkdir()
        sync_folder(disk)
        for number, step in enumerate(work.steps):
            faults.note(f"begin {name} {number}")
            step(disk / name)
            faults.note(f"end {name} {number}")
    faults.disarm()


if __name__ == "__main__":
    main()
