"""The records of metrics.jsonl as TensorBoard curves, where TensorBoard is installed (``pip install tensorboard``)."""

import importlib.util
from pathlib import Path
from typing import Any


class TensorBoard:
    """Draws each record that it is called with; does nothing where TensorBoard is missing.

    Args:
        folder: for event files. A resumed run goes on in it: curves are dropped from its first record on.
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
            from torch.utils.tensorboard import SummaryWriter  # takes a second, and is not always there

            self._writer = SummaryWriter(str(self.folder), purge_step=record["step"])
        curves = {f"valid/{name}": value for name, value in record.get("valid", {}).items()}
        curves |= {f"train/{name}": record[name] for name in ("loss", "lr") if record.get(name) is not None}
        for name, value in curves.items():
            if value is None:  # it was not finite
                continue
            self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Write what is still in memory."""
        if self._writer is not None:
            self._writer.close()
