"""Trains a recipe with Ray Train: each worker calls ``polyrank.train``, which divides the work as under ``torchrun``.

The run folder is the same as for any training. If a node fails, Ray starts as many workers as fit, and they resume from
the checkpoint in that folder.
"""

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import ray

from polyrank import LockedError, LostProcessError, PolyrankError, Recipe, RunResult, load_recipe, train as train_here
from polyrank.devices import distributed
from polyrank.devices.memory import keep_freed_memory
from polyrank_ray.cluster import check_arguments, connected, current_node_id, n_gpus, working_in

ENDING_S = 30.0  # for workers to notice that a training has ended
_running: list[tuple[Any, threading.Event]] = []  # the mailboxes of trainings, and whether they have ended
NODE = "ray.io/node-id"  # runs the mailbox on the node of this process, without which nothing reads its messages


def train(
    recipe: Recipe | str | Path | Mapping[str, Any],
    *,
    workers: int = 1,
    cpus: int = 1,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    address: str = "auto",
    max_failures: int = 3,
    report: Callable[[int, dict[str, Any]], None] = lambda seed, record: None,
    notify: Callable[[str], None] = lambda text: None,
) -> list[RunResult]:
    """Train a recipe on a Ray cluster. The losses are those of one process, whatever the number of workers.

    Args:
        recipe: its input files and its output must be on a disk that all nodes share.
        workers: at most; fewer start if fewer fit, and training continues with the workers that remain.
        cpus: of each worker, which is also its number of threads.
        resume, overwrite: as for ``polyrank.train``.
        device: "auto" (one GPU per worker if the cluster has any), "cpu" or "cuda".
        address: see ``connected``.
        max_failures: how often the run resumes after workers have died.
        report, notify: as for ``polyrank.train``; called in this process, with messages of rank 0.

    Raises:
        OfflineError: no cluster answers.
        LostProcessError: workers have died more than ``max_failures`` times.
        PolyrankError: as for ``polyrank.train``.
    """
    check_arguments(address, device, workers=workers, cpus=cpus)
    plan = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    with connected(address):
        mailbox = ray.remote(num_cpus=0, label_selector={NODE: current_node_id()})(_Mailbox).remote()
        task = {"plan": plan, "resume": resume, "overwrite": overwrite, "device": device, "mailbox": mailbox}
        task["cwd"] = Path.cwd()
        gpus = n_gpus(device)
        shared = next(folder for folder in Path(plan.output).absolute().parents if folder.exists())
        with tempfile.TemporaryDirectory(prefix=".ray-", dir=shared) as own:  # Ray's own files
            arguments = (task, workers, cpus, gpus, max_failures, own)
            fitting = threading.Thread(target=_fit, args=arguments, daemon=True)
            fitting.start()  # in a thread: in the main thread Ray would handle the signals that polyrank handles
            _running.append(training := (mailbox, threading.Event()))
            try:
                return _listen(mailbox, report, notify)
            finally:
                ray.kill(mailbox)  # without the mailbox, the workers stop
                fitting.join(ENDING_S)  # Ray ends a process in which a thread calls it after the connection's end
                _running.remove(training)
                training[1].set()


@contextmanager
def trainer(address: str) -> Iterator[dict[str, Any]]:
    """Arguments of ``polyrank.fit`` that train on one cluster, to which this process stays connected between trainings.

    Args:
        address: see ``connected``.

    Raises:
        OfflineError: no cluster answers.
    """
    with connected(address):
        there = ray.cluster_resources()
        n_trainings = min(2, int(there.get("GPU", there.get("CPU", 1))))
        try:
            yield {"train": partial(train, address=address), "at_once": max(1, n_trainings)}
        finally:
            # those of other threads, after Ctrl-C: a call after the connection's end would start Ray again
            for mailbox, ended in [*_running]:
                ray.kill(mailbox)
                ended.wait(2 * ENDING_S)


def _listen(
    mailbox: Any, report: Callable[[int, dict[str, Any]], None], notify: Callable[[str], None]
) -> list[RunResult]:
    results: list[RunResult] = []
    failure: Exception | None = None  # of a worker other than rank 0
    while True:
        for kind, value in ray.get(mailbox.receive.remote()):
            if kind == "report":
                report(*value)
            elif kind == "notify":
                notify(value)
            elif kind == "failed":
                raise value
            elif kind == "failed elsewhere":
                failure = value
            elif kind == "done":
                results = value
            elif failure or value:
                raise failure or value
            else:
                return results


class _Mailbox:
    """An actor that collects rank 0's messages, counts attempts, and decides whether late workers may start."""

    def __init__(self) -> None:
        import asyncio

        self.messages: list[tuple[str, Any]] = []
        self.attempts = 0
        self.failed = False
        self.arrived = asyncio.Event()

    async def may_start(self) -> bool:
        return not self.failed

    async def start_attempt(self) -> int:
        self.attempts += 1
        return self.attempts

    async def send(self, kind: str, value: Any) -> None:
        self.messages.append((kind, value))
        self.failed |= kind.startswith("failed")
        self.arrived.set()

    async def receive(self) -> list[tuple[str, Any]]:
        await self.arrived.wait()
        self.arrived.clear()
        messages, self.messages = self.messages, []
        return messages


def _fit(task: dict[str, Any], workers: int, cpus: int, gpus: int, max_failures: int, own: str) -> None:
    """Run Ray's trainer and report the end to the mailbox."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
    from ray.train.torch import TorchConfig, TorchTrainer

    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    # after this time Ray starts fewer workers, because a dead node's resources are missing
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "10")
    resources = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
    trainer = TorchTrainer(
        _work,
        train_loop_config=task,
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if gpus else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=workers if workers == 1 else (1, workers), use_gpu=bool(gpus), resources_per_worker=resources
        ),
        run_config=RunConfig(storage_path=own, failure_config=FailureConfig(max_failures=max_failures)),
    )
    end: tuple[str, Any] = ("end", None)
    try:
        trainer.fit()
    except WorkerGroupError as error:
        reasons = [f"{type(reason).__name__}: {reason}".splitlines()[0] for reason in error.worker_failures.values()]
        message = (
            f"workers have died {max_failures + 1} times, the last of {reasons[0]}; see Ray's logs, and resume with"
            " `resume=True`"
        )
        end = ("end", LostProcessError(message))
    except Exception as error:
        end = ("end", error)
    with suppress(Exception):  # the mailbox may be gone, as after an interrupt
        ray.get(task["mailbox"].send.remote(*end))


def _work(task: dict[str, Any]) -> None:
    """Each worker's task, while the mailbox exists."""
    with suppress(ray.exceptions.RayActorError):
        if ray.get(task["mailbox"].may_start.remote()):
            _train(task)


def _train(task: dict[str, Any]) -> None:
    """Train, and report polyrank's own errors: Ray repeats what raises, which helps only after a worker was lost."""
    mailbox = task["mailbox"]

    def tell(kind: str, value: Any) -> None:
        if distributed.launched_as()[0] == 0:
            ray.get(mailbox.send.remote(kind, value))

    attempt = 0
    try:
        with working_in(task["cwd"]), distributed.process_group():
            keep_freed_memory(all_sizes=True)  # a worker is a separate process
            attempt = distributed.on_rank_zero(lambda: ray.get(mailbox.start_attempt.remote()))
            results = train_here(
                task["plan"],
                resume=task["resume"] or attempt > 1,
                overwrite=task["overwrite"] and attempt == 1,
                device=task["device"],
                report=lambda seed, record: tell("report", (seed, record)),
                notify=lambda text: tell("notify", text),
            )
        tell("done", results)
    except LostProcessError:
        raise
    except PolyrankError as error:
        if isinstance(error, LockedError) and attempt > 1:
            raise  # the worker that held the folder is dying
        kind = "failed" if distributed.launched_as()[0] == 0 else "failed elsewhere"
        ray.get(mailbox.send.remote(kind, _portable(error)))


def _portable(error: PolyrankError) -> PolyrankError:
    """An error that pickle restores; a class with other arguments than its message becomes a PolyrankError."""
    if type(error).__init__ is PolyrankError.__init__:
        return error
    plain = PolyrankError(str(error))
    plain.exit_code = error.exit_code
    return plain
