"""Texts for a sum of encoders: the ids of all encoders in one row, each id marked with the number of its encoder.

Code that batches, pads, caches or measures rows of ids can then treat a sum like a single encoder.
"""

from collections.abc import Sequence

import numpy as np
import torch

from polyrank.config.models import SumText
from polyrank.records import Context
from polyrank.text.texts import Texts
from polyrank.text.tokens import Tokens

BITS = 32  # the lower bits of an id; the upper bits hold the number of the encoder


class SumTexts(Texts):
    """The text policies of several encoders. Padding and ``cut`` are those of the first.

    Args:
        parts: the text policy of each encoder.
    """

    policy = SumText()
    id_type = np.dtype("<i8")

    def __init__(self, parts: Sequence[Texts]) -> None:
        self.parts = tuple(parts)
        self.subwords, self.cut = self.parts[0].subwords, self.parts[0].cut

    @property
    def key(self) -> str:
        """See ``Texts``."""
        return " + ".join(part.key for part in self.parts)

    def context_ids(self, context: Context) -> list[int]:
        """The ids of a context for each encoder."""
        return _numbered([part.context_ids(context) for part in self.parts])

    def candidate_ids(self, text: str) -> list[int]:
        """The ids of a candidate for each encoder."""
        return _numbered([part.candidate_ids(text) for part in self.parts])

    def all_candidate_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """``candidate_ids`` of many texts."""
        rows = [part.all_candidate_ids(texts) for part in self.parts]
        return [_numbered(row) for row in zip(*rows, strict=True)]


def _numbered(rows: Sequence[Sequence[int]]) -> list[int]:
    return [number << BITS | i for number, row in enumerate(rows) for i in row]


def split_parts(tokens: Tokens, pad_ids: Sequence[int]) -> list[Tokens]:
    """Split the rows of ``SumTexts`` into the tokens of each encoder.

    Args:
        tokens: rows with the ids of all encoders.
        pad_ids: the padding id of each encoder.

    >>> from polyrank.text.tokens import pad
    >>> rows = pad([[5, 6, 1 << BITS | 7], [8, 1 << BITS | 9, 1 << BITS | 3]])
    >>> [part.ids.tolist() for part in split_parts(rows, pad_ids=[0, 2])]
    [[[5, 6], [8, 0]], [[7, 2], [9, 3]]]
    """
    device, width = tokens.ids.device, tokens.ids.shape[1]
    start = torch.zeros(len(tokens.ids), dtype=torch.int64, device=device)
    parts = []
    for number, pad_id in enumerate(pad_ids):
        lengths = ((tokens.ids >> BITS == number) & tokens.mask).sum(1)  # [B]
        known = lengths.cpu().numpy()
        columns = torch.arange(int(known.max(initial=0)), device=device)
        mask = columns < lengths[:, None]  # [B, T] of this encoder
        positions = (start[:, None] + columns).clamp(max=max(width - 1, 0))
        ids = (tokens.ids.gather(1, positions) & (1 << BITS) - 1).masked_fill(~mask, pad_id)
        parts.append(Tokens(ids, mask, torch.zeros_like(ids), known))
        start = start + lengths
    return parts
