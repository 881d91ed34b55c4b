"""A teacher's scores of lists: computed for each batch, or once and then read from a file if the lists repeat.

Shapes: N examples, B of them in a batch, K candidates.
"""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from polyrank.devices import distributed
from polyrank.errors import ArtifactError
from polyrank.scorers.protocols import Floats, Scorer
from polyrank.storage.durable import write_file
from polyrank.training.inputs import Lists

TEACHER_SCORES = "teacher-scores-*.npy"
"""The files of scores in a run folder."""


class Teacher:
    """A trained model that is not trained further.

    Args:
        scorer: the model.
        file: for its scores, if each example has the same list in every epoch; None: it scores every batch. The name
            states the model and its precision.
        n_examples: N.
        n_candidates: the most candidates of a list.

    Raises:
        ArtifactError: the file is damaged.
    """

    def __init__(self, scorer: Scorer, file: Path | None = None, *, n_examples: int = 0, n_candidates: int = 0) -> None:
        self.scorer, self.file, self._shape = scorer, file, (n_examples, n_candidates)
        if file is not None:
            distributed.on_rank_zero(lambda: self._make(file))

    def scores(self, positions: Sequence[int], lists: Lists) -> Tensor:
        """The scores ``[B, K]`` of the lists of examples at some positions, zero on the padding."""
        allowed, file = lists.allowed.numpy(), self.file
        width = allowed.shape[1]
        values = np.full(allowed.shape, np.nan, np.float32)
        if file is not None:
            values = distributed.on_rank_zero(lambda: np.array(self._map(file)[positions, :width]))
        if np.isnan(values[allowed]).any():  # all again, so that they depend on the batch alone
            scored = self.scorer.score([example.query for example in lists.examples], lists.lists)
            values[allowed] = np.concatenate(scored)
            if file is not None and distributed.is_rank_zero():
                self._map(file)[positions, :width] = values
        return torch.from_numpy(np.where(allowed, values, np.float32(0)))

    def _make(self, file: Path) -> None:
        if not file.exists():
            stream = io.BytesIO()
            np.save(stream, np.full(self._shape, np.nan, np.float32))
            write_file(file, stream.getvalue())
        self._map(file)

    def _map(self, file: Path) -> Floats:
        try:
            scores: Floats = np.load(file, mmap_mode="r+")
        except (ValueError, EOFError) as error:
            raise ArtifactError(f"{file} is damaged ({error}); delete it, and the scores are computed again") from error
        if scores.shape != self._shape or scores.dtype != np.float32:
            raise ArtifactError(f"{file} does not fit the examples; delete it, and the scores are computed again")
        return scores
