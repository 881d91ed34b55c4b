"""Reuses the vectors of texts that an index already contains. No torch."""

import numpy as np

from polyrank.index.checks import Vectors
from polyrank.index.local.reader import LocalIndex


class KnownVectors:
    """Vectors by text, so that no text is encoded twice.

    Args:
        index: made by the encoder that would otherwise encode the texts.
    """

    def __init__(self, index: LocalIndex) -> None:
        self._blocks = index.blocks()
        rows = {row for block in self._blocks for row in block.rows.tolist()}
        # rows that a writer has added since are not in the blocks
        self._rows = {candidate.text: row for row, candidate in index.iter_candidates() if row in rows}

    def __contains__(self, text: str) -> bool:
        return text in self._rows

    def __getitem__(self, text: str) -> Vectors:
        row = self._rows[text]
        for block in self._blocks:
            at = int(np.searchsorted(block.rows, row))
            if at < len(block.rows) and block.rows[at] == row:
                vector: Vectors = block.vectors[np.array([at])][0]
                return vector
        raise KeyError(text)
