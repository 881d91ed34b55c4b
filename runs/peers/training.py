"""How many pairs per second a Bi-encoder trains on: with polyrank's step, and with the caller's libraries.

Each form runs in its own process, because the allocator's setting is per process; they take turns on the same pairs.
polyrank is timed on random batches, on batches of examples of similar length, and optionally on large batches of
similar length through the gradient cache. All forms cut both sides at 128 tokens.
"""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory, mkdtemp
from time import perf_counter
from typing import Any

import torch

from polyrank.bench.machine import describe_machine
from polyrank.config.models import BiConfig, TextPolicy
from polyrank.config.train import LENGTH_WINDOW, NetworkTraining
from polyrank.devices.choice import choose_device, choose_dtype
from polyrank.devices.memory import keep_freed_memory
from polyrank.errors import ResourceError
from polyrank.loading.backbones import resolve_backbone
from polyrank.models import EncoderNetwork, new_model
from polyrank.records import Example
from polyrank.training.batches import BatchOrder
from polyrank.training.learner import Learner, TrainState
from polyrank.training.steps import InBatchStep

POLICY = TextPolicy(max_context_tokens=128, max_candidate_tokens=128)
LIKE_LENGTHS = "polyrank, like lengths"
Update = Callable[[Sequence[int]], None]
Start = Callable[[Sequence[Example], Path], tuple[list[int], Update]]
"""From examples and an empty folder to the length of each example, and a function that trains on a batch."""


@dataclass(frozen=True, slots=True)
class Form:
    """A way to train.

    Args:
        start: called once, at the start of the process.
        batch_size: contexts per update.
        like_lengths: whether a batch has examples of similar length.
    """

    start: Start
    batch_size: int
    like_lengths: bool = False


def bench_training(
    examples: Sequence[Example],
    *,
    batch_size: int = 32,
    large_batch: int | None = None,
    repeats: int = 3,
    backbone: str = "embedded",
    device: str = "auto",
    peers: Mapping[str, Start] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Time an epoch of in-batch training from a backbone, shared towers, AdamW.

    Args:
        examples: pairs of a context and a response.
        batch_size: contexts per update.
        large_batch: also train with so many contexts per update, in chunks of ``batch_size`` texts.
        repeats: rounds; in each, every form trains for one epoch.
        backbone: "embedded", a folder or hf:OWNER/MODEL.
        device: of polyrank's forms: "auto", "cpu", "cuda" or "mps".
        peers: other libraries by name, the reference first; functions that a new process can import.
        progress: called with the name of the next step.

    Returns:
        ``machine``, ``load`` (the load averages before the start, if the system has them), and ``rows`` of ``what``
        ("train"), ``n`` (pairs), ``d``, ``m``, ``form``, ``ms`` (median of an epoch), ``ratio`` (the first peer's time
        divided by this; None without peers) and ``per_second``.

    Raises:
        ResourceError: a process died.
    """
    own = partial(_start, backbone=backbone, device=str(choose_device(device)))
    forms = {"polyrank": Form(own, batch_size), LIKE_LENGTHS: Form(own, batch_size, like_lengths=True)}
    if large_batch is not None:
        cached = partial(own, chunk_size=batch_size)
        forms[f"{LIKE_LENGTHS}, {large_batch} in chunks"] = Form(cached, large_batch, like_lengths=True)
    peers = peers or {}
    forms |= {name: Form(start, batch_size) for name, start in peers.items()}
    load: tuple[float, ...] = getattr(os, "getloadavg", tuple)()
    times: dict[str, list[float]] = {form: [] for form in forms}
    context = get_context("spawn")
    workers = {}
    folders = TemporaryDirectory()  # here, because a process that is terminated does not delete its own
    try:
        for form, made in forms.items():
            progress(f"starting {form}")
            pipe, other_end = context.Pipe()
            folder = Path(mkdtemp(dir=folders.name))
            process = context.Process(
                target=_work, args=(made, list(examples), folder, torch.get_num_threads(), other_end), daemon=True
            )
            with _without_interrupts():  # this process handles Ctrl-C, and terminates the others
                process.start()
            other_end.close()
            workers[form] = (process, pipe)
            _answer(pipe, form)
        for number in range(repeats):
            for form, (_, pipe) in workers.items():
                progress(f"round {number + 1} of {repeats}: {form}")
                pipe.send(number)
                times[form].append(_answer(pipe, form))
    except BaseException:
        for process, _ in workers.values():
            process.terminate()
        raise
    finally:
        for process, pipe in workers.values():
            pipe.close()  # which ends the process
            process.join()
        folders.cleanup()
    usual = times.get(next(iter(peers), ""))
    dimension = json.loads((resolve_backbone(backbone).folder / "config.json").read_bytes())["hidden_size"]
    rows = [
        {
            "what": "train",
            "n": len(examples),
            "d": dimension,
            "m": 1,
            "form": form,
            "ms": round(1e3 * median(seconds), 3),
            "ratio": None if usual is None else round(median(usual) / median(seconds), 2),
            "per_second": round(len(examples) / median(seconds), 2),
        }
        for form, seconds in times.items()
    ]
    return {"machine": describe_machine(), "load": [round(value, 2) for value in load], "rows": rows}


@contextmanager
def _without_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _answer(pipe: Connection, form: str) -> float:
    try:
        return float(pipe.recv())
    except EOFError as error:
        raise ResourceError(
            f"the process of {form} died, possibly because memory ran out; use smaller batches"
        ) from error


def _work(form: Form, examples: Sequence[Example], folder: Path, threads: int, pipe: Connection) -> None:
    """Run in a process: train one epoch for every number received, and send back its seconds."""
    torch.set_num_threads(threads)
    lengths, update = form.start(examples, folder)
    window = LENGTH_WINDOW if form.like_lengths else 1
    update(range(form.batch_size))  # the first update allocates memory once
    pipe.send(0.0)
    while True:
        try:
            epoch = pipe.recv()
        except EOFError:
            return
        order = BatchOrder(len(lengths), lengths, form.batch_size, seed=1, window=window).epoch(epoch)
        started = perf_counter()
        for batch in order:
            update([int(i) for i in batch])
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # a GPU may still compute the last update
        pipe.send(perf_counter() - started)


def _start(
    examples: Sequence[Example], folder: Path, backbone: str, device: str, chunk_size: int | None = None
) -> tuple[list[int], Update]:
    keep_freed_memory(all_sizes=True)
    place = choose_device(device)
    config = BiConfig(backbone=backbone, shared_towers=True, output_scale=1.0)
    model, texts, _ = new_model(config, POLICY, seed=0, sample=())
    assert isinstance(model, EncoderNetwork), "a Bi-encoder is an encoder"
    model.to(place)
    step, settings = InBatchStep(model, texts, place, chunk_size=chunk_size), NetworkTraining(lr=5e-5)
    learner = Learner(model=model, settings=settings, folder=folder, save_best=lambda _: None)
    trainee = TrainState(learner, 1, place, choose_dtype("auto", place))

    def update(batch: Sequence[int]) -> None:
        trainee.update(step.losses(step.prepare([(i, examples[i]) for i in batch], 0), 0))

    return [len(texts.context_ids(example.query)) for example in examples], update
