"""The records of metrics.jsonl as curves: in TensorBoard, Weights & Biases or MLflow, as ``train.log_to`` names them.

Each place is a context manager around a function that adds figures at a step. A run resumes its own curves: its id is
a file in the run folder. metrics.jsonl has every record, so a place that fails during a training is left out from then
on, and the training continues.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from polyrank.config.train import LogTo
from polyrank.devices import distributed
from polyrank.errors import MissingExtraError, UsageError
from polyrank.storage.durable import write_file
from polyrank.training.learner import Report
from polyrank.training.run_folder import dotted

PROJECT = "polyrank"
CURVES = ("tensorboard", "wandb", "wandb-run-id", "mlflow-run-id")
"""The files in a run folder."""
MLFLOW_SECONDS = 5.0  # a request for every step would slow down short steps
MLFLOW_BATCH = 100  # MLflow's limit of parameters in a request
Add = Callable[[int, Mapping[str, float]], None]


class Place(Protocol):
    """Where curves go."""

    def __call__(self, folder: Path, name: str, settings: Mapping[str, Any]) -> AbstractContextManager[Add]:
        """Open the curves of a run; the result adds figures at a step.

        Args:
            folder: of the run.
            name: of the run, for people.
            settings: the recipe's tables.
        """
        ...


def check_log_to(log_to: Sequence[LogTo]) -> None:
    """Check that the libraries are installed, before any work.

    Raises:
        MissingExtraError: one is not; the message names the extra.
    """
    for name in log_to:
        if find_spec(name) is None:
            raise MissingExtraError(name, name)


@contextmanager
def draw_curves(
    log_to: Sequence[LogTo], folder: Path, name: str, settings: Mapping[str, Any], notify: Callable[[str], None]
) -> Iterator[Report]:
    """Open the curves of a run, and yield a function that draws a record of metrics.jsonl.

    Args:
        log_to: the places; only rank 0 draws.
        folder, name, settings: as for ``Place``.
        notify: called with a line if a place fails during the training.

    Raises:
        UsageError: a place cannot be opened.
    """
    with ExitStack() as stack:
        adding: dict[str, Add] = {}

        def open_all() -> None:
            for place in log_to:
                manager = PLACES[place](folder, name, settings)
                try:
                    adding[place] = manager.__enter__()
                except Exception as error:  # of a library, such as a missing key or server
                    raise UsageError(
                        f'train.log_to = "{place}" cannot start: {_first_line(error)}; correct its settings, or leave'
                        " it out"
                    ) from error
                stack.push(partial(close, place, manager))

        def close(place: str, manager: AbstractContextManager[Add], *failure: Any) -> None:
            try:
                manager.__exit__(*failure)
            except Exception as error:
                give_up(place, error)

        def draw(record: dict[str, Any]) -> None:
            figures = curves_of(record)
            for place, add in list(adding.items()):
                try:
                    add(record["step"], figures)
                except Exception as error:
                    del adding[place]
                    give_up(place, error)

        def give_up(place: str, error: Exception) -> None:
            """A server that is away must not end the training."""
            notify(f"{place} has no further curves of this run ({_first_line(error)}); metrics.jsonl has them all")

        distributed.on_rank_zero(open_all)
        yield draw


def curves_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The finite figures of a record by the names of their curves.

    >>> curves_of({"step": 3, "loss": 0.5, "lr": 0.1, "n_steps": 9, "n_examples": 12})
    {'train/loss': 0.5, 'train/lr': 0.1}
    >>> curves_of({"step": 3, "epoch": 1.0, "valid": {"loss": None, "R@1": 0.4}})
    {'valid/R@1': 0.4}
    """
    valid = record.get("valid")
    if valid is None:
        found = {f"train/{name}": value for name, value in record.items() if name == "lr" or _is_figure(name)}
    else:
        found = {f"valid/{name}": value for name, value in valid.items()}
    return {name: value for name, value in found.items() if value is not None}  # None: a number that is not finite


def _is_figure(name: str) -> bool:
    return name.endswith(("loss", "_accuracy"))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


@contextmanager
def _tensorboard(folder: Path, name: str, settings: Mapping[str, Any]) -> Iterator[Add]:
    """Event files in the run folder; a resumed run replaces the curves from its first record on."""
    from torch.utils.tensorboard import SummaryWriter

    with ExitStack() as stack:
        writers: list[Any] = []

        def add(step: int, figures: Mapping[str, float]) -> None:
            if not writers:
                writers.append(stack.enter_context(SummaryWriter(str(folder / "tensorboard"), purge_step=step)))
            for curve, value in figures.items():
                writers[0].add_scalar(curve, value, step)

        yield add


@contextmanager
def _wandb(folder: Path, name: str, settings: Mapping[str, Any]) -> Iterator[Add]:
    """A run of Weights & Biases, which drops the steps that a resumed run repeats; they are equal."""
    import wandb

    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=name,
        id=_run_id(folder, "wandb", lambda: uuid.uuid4().hex[:8]),
        resume="allow",
        dir=folder,
        config=dict(settings),
        settings=wandb.Settings(console="off"),  # else it would record the progress bar
        reinit="create_new",  # two networks have a run each
    )
    with run:
        yield lambda step, figures: run.log(dict(figures), step=step)


@contextmanager
def _mlflow(folder: Path, name: str, settings: Mapping[str, Any]) -> Iterator[Add]:
    """A run of MLflow, at ``MLFLOW_TRACKING_URI`` or MLflow's own default."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient()

    def new_run() -> str:
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = client.get_experiment_by_name(title)
        experiment = client.create_experiment(title) if known is None else known.experiment_id
        run_id: str = client.create_run(experiment, run_name=name).info.run_id
        parameters = [Param(key, str(value)) for key, value in dotted(dict(settings)).items()]
        for start in range(0, len(parameters), MLFLOW_BATCH):
            client.log_batch(run_id, params=parameters[start : start + MLFLOW_BATCH])
        return run_id

    run_id, waiting, sent = _run_id(folder, "mlflow", new_run), list[Metric](), time.monotonic()
    client.update_run(run_id, status="RUNNING")

    def add(step: int, figures: Mapping[str, float]) -> None:
        nonlocal sent
        now = int(time.time() * 1000)
        # MLflow refuses the @ of R@1
        waiting.extend(Metric(curve.replace("@", "_at_"), value, now, step) for curve, value in figures.items())
        if time.monotonic() - sent >= MLFLOW_SECONDS or len(waiting) >= MLFLOW_BATCH:
            send()
            sent = time.monotonic()

    def send() -> None:
        client.log_batch(run_id, metrics=waiting)
        waiting.clear()

    status = "FAILED"
    try:
        yield add
        status = "FINISHED"
    finally:
        send()
        client.set_terminated(run_id, status)


def _run_id(folder: Path, place: str, new: Callable[[], str]) -> str:
    """The id of the run's curves, which a resumed run continues."""
    file = folder / f"{place}-run-id"
    if not file.exists():
        write_file(file, new().encode())
    return file.read_text("utf-8")


PLACES: Mapping[LogTo, Place] = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}
