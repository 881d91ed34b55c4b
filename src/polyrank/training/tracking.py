"""The records of metrics.jsonl as curves for TensorBoard, in the run folder.

Other trackers get the records through the ``report`` of ``polyrank.train``.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from polyrank.errors import MissingExtraError
from polyrank.training.learner import Report

CURVES = "tensorboard"  # the folder of event files in a run folder


def check_tensorboard(wanted: bool) -> None:
    """Check that TensorBoard is installed if the recipe wants it, before any work.

    Raises:
        MissingExtraError: it is not.
    """
    if wanted and find_spec("tensorboard") is None:
        raise MissingExtraError("tensorboard", "tensorboard")


@contextmanager
def with_curves(report: Report, folder: Path, *, wanted: bool) -> Iterator[Report]:
    """Yield ``report``, which also draws each record if curves are wanted.

    A resumed run replaces the curves from its first record on.

    Args:
        report: receives each record.
        folder: of the run.
        wanted: see ``train.tensorboard``.
    """
    if not wanted:
        yield report
        return
    from torch.utils.tensorboard import SummaryWriter

    with ExitStack() as stack:
        writers: list[Any] = []

        def draw(record: dict[str, Any]) -> None:
            report(record)
            if not writers:
                writer = SummaryWriter(str(folder / CURVES), purge_step=record["step"])
                writers.append(stack.enter_context(writer))
            for name, value in curves_of(record).items():
                writers[0].add_scalar(name, value, record["step"])

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
        figures = {f"train/{name}": record[name] for name in record if name.endswith(("lr", "loss", "_accuracy"))}
    else:
        figures = {f"valid/{name}": value for name, value in valid.items()}
    return {name: value for name, value in figures.items() if value is not None}  # None: a number that is not finite
