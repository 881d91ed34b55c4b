"""A recipe under Ray Train: each worker calls ``polyrank.train``, which shares the work as under ``torchrun``.

The run folder is the one that any training writes. When a node dies, Ray starts as many workers as it finds room for,
and they go on from the checkpoint in it.
"""

import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray

from polyrank.config.recipe import Recipe
from polyrank.devices import distributed
from polyrank.devices.choice import keep_freed_memory
from polyrank.errors import LockedError, LostProcessError, PolyrankError
from polyrank.integrations.ray.cluster import check_arguments, connected, here, n_gpus, working_in
from polyrank.loading.recipes import load_recipe
from polyrank.training import RunResult
from polyrank.training import train as train_here

Message = tuple[str, Any]
NODE = "ray.io/node-id"  # where the desk is: with this process, for nobody would listen without it


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
    """Carry out a recipe on a Ray cluster. Losses are those of one process, whatever the number of workers.

    Args:
        recipe: what to do; its files and its output lie on a disk that all nodes see.
        workers: at most; as many as there is room for start, and as many as are left go on.
        cpus: of each worker, which computes on as many threads.
        resume, overwrite: as for ``polyrank.train``.
        device: "auto" (a GPU for each worker where the cluster has any), "cpu" or "cuda".
        address: see ``connected``.
        max_failures: how often the run goes on after workers have died.
        report, notify: as for ``polyrank.train``; called here, with what the first worker says.

    Raises:
        OfflineError: there is no cluster.
        LostProcessError: workers have died more often than ``max_failures``.
        PolyrankError: as for ``polyrank.train``.
    """
    check_arguments(address, device)
    plan = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    with connected(address):
        desk = ray.remote(num_cpus=0, label_selector={NODE: here()})(_ReportDesk).remote()
        ask = {
            "plan": plan,
            "resume": resume,
            "overwrite": overwrite,
            "device": device,
            "desk": desk,
            "cwd": Path.cwd(),
        }
        gpus = n_gpus(device)
        output = Path(plan.output).absolute()
        existing = next(folder for folder in output.parents if folder.exists())
        with tempfile.TemporaryDirectory(prefix=".ray-", dir=existing) as own:  # Ray wants a disk that all nodes see
            fitting = threading.Thread(target=_fit, args=(ask, workers, cpus, gpus, max_failures, own), daemon=True)
            fitting.start()  # not here: a signal is for us, and Ray would take it in the main thread
            try:
                results = _listen(desk, report, notify)
                fitting.join()
                return results
            finally:
                ray.kill(desk)  # without it nobody goes on


def _listen(desk: Any, report: Callable[[int, dict[str, Any]], None], notify: Callable[[str], None]) -> list[RunResult]:
    results: list[RunResult] = []
    failure: Exception | None = None  # of a worker that is not the first
    while True:
        for kind, value in ray.get(desk.take.remote()):
            if kind == "report":
                report(*value)
            elif kind == "say":
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


class _ReportDesk:
    """Where the first worker says how it goes, and is told whether it is the first one to try."""

    def __init__(self) -> None:
        import asyncio

        self.messages: list[Message] = []
        self.attempts = 0
        self.failed = False
        self.come = asyncio.Event()

    async def is_wanted(self) -> bool:
        return not self.failed

    async def begin(self) -> int:
        self.attempts += 1
        return self.attempts

    async def tell(self, kind: str, value: Any) -> None:
        self.messages.append((kind, value))
        self.failed |= kind.startswith("failed")
        self.come.set()

    async def take(self) -> list[Message]:
        await self.come.wait()
        self.come.clear()
        messages, self.messages = self.messages, []
        return messages


def _fit(ask: dict[str, Any], workers: int, cpus: int, gpus: int, max_failures: int, own: str) -> None:
    """Run it by Ray's trainer, and tell the desk of the end."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
    from ray.train.torch import TorchConfig, TorchTrainer

    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    # what is left is asked for only after so long a wait for the room that a dead node had
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "10")
    resources = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
    trainer = TorchTrainer(
        _work,
        train_loop_config=ask,
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if gpus else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=workers if workers == 1 else (1, workers), use_gpu=bool(gpus), resources_per_worker=resources
        ),
        run_config=RunConfig(storage_path=own, failure_config=FailureConfig(max_failures=max_failures)),
    )
    end: Message = ("end", None)
    try:
        trainer.fit()
    except WorkerGroupError as error:
        reasons = [f"{type(reason).__name__}: {reason}".splitlines()[0] for reason in error.worker_failures.values()]
        end = (
            "end",
            LostProcessError(
                f"workers have died {max_failures + 1} times, the last of {reasons[0]}; see what Ray's logs say of"
                " them, and go on with --resume"
            ),
        )
    except Exception as error:
        end = ("end", error)
    with suppress(Exception):  # nobody listens any more, as after an interrupt
        ray.get(ask["desk"].tell.remote(*end))


def _work(ask: dict[str, Any]) -> None:
    """What each worker does, for as long as somebody listens."""
    with suppress(ray.exceptions.RayActorError):
        if ray.get(ask["desk"].is_wanted.remote()):
            _train(ask)


def _train(ask: dict[str, Any]) -> None:
    """Ray would try again what fails, so an error of ours is an outcome, and the loss of a worker is not."""
    desk = ask["desk"]

    def tell(kind: str, value: Any) -> None:
        if distributed.launched_as()[0] == 0:
            ray.get(desk.tell.remote(kind, value))

    attempt = 0
    try:
        with working_in(ask["cwd"]), distributed.process_group():
            keep_freed_memory()  # a worker is a process of its own
            attempt = distributed.on_rank_zero(lambda: ray.get(desk.begin.remote()))
            results = train_here(
                ask["plan"],
                resume=ask["resume"] or attempt > 1,
                overwrite=ask["overwrite"] and attempt == 1,
                device=ask["device"],
                report=lambda seed, record: tell("report", (seed, record)),
                notify=lambda text: tell("say", text),
            )
        tell("done", results)
    except LostProcessError:
        raise
    except PolyrankError as error:
        if isinstance(error, LockedError) and attempt > 1:
            raise  # whoever had the folder is dying
        kind = "failed" if distributed.launched_as()[0] == 0 else "failed elsewhere"
        ray.get(desk.tell.remote(kind, _portable(error)))


def _portable(error: PolyrankError) -> PolyrankError:
    """An error that pickle brings over whole; one that is made of other things than its message loses its kind."""
    if len(error.args) == 1 and type(error).__init__ is PolyrankError.__init__:
        return error
    plain = PolyrankError(str(error))
    plain.exit_code = error.exit_code
    return plain
