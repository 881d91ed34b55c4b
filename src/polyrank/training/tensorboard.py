"""The records of metrics.jsonl as TensorBoard curves, if TensorBoard is installed (``pip install tensorboard``)."""

import importlib.util
from pathlib import Path
from typing import Any


class TensorBoard:
    """Writes each record that it is called with; does nothing without TensorBoard.

    Args:
        folder: for event files. A resumed run replaces the curves from its first record on.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: Any = None
        self._installed = importlib.util.find_spec("tensorboard") is not None

    def __call__(self, record: dict[str, Any]) -> None:
        """Add a record's loss and learning rate, or its validation figures, at its step."""
        if not self._installed:
            return
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # the import takes a second and may fail

            self._writer = SummaryWriter(str(self.folder), purge_step=record["step"])
        curves = {f"valid/{name}": value for name, value in record.get("valid", {}).items()}
        curves |= {f"train/{name}": record[name] for name in ("loss", "lr") if record.get(name) is not None}
        for name, value in curves.items():
            if value is not None:  # None stands for a number that is not finite
                self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Flush and close the event file."""
        if self._writer is not None:
            self._writer.close()
