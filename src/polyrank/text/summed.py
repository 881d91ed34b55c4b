"""The texts of several encoders as one: rows of ids side by side, each id with the number of the encoder it is for.

What batches, pads, caches and measures rows of ids then needs to know nothing of sums.
"""

from collections.abc import Sequence

import torch

from polyrank.config.models import SumText
from polyrank.errors import ConfigError
from polyrank.records import Context
from polyrank.text.cut import Cut
from polyrank.text.texts import Texts, Vocabulary
from polyrank.text.tokens import Tokens, pad

BITS = 32  # of an id that are its own; those above number the encoder


class SumTexts:
    """Text policies at work, each for its own encoder.

    Args:
        parts: of the encoders, in their order.
    """

    policy = SumText()

    def __init__(self, parts: Sequence[Texts]) -> None:
        self.parts = tuple(parts)

    @property
    def subwords(self) -> Vocabulary:
        """Those of the first part, with whose padding rows are filled."""
        return self.parts[0].subwords

    @property
    def cut(self) -> Cut:
        """What was too long for the first part."""
        return self.parts[0].cut

    def context_ids(self, context: Context) -> list[int]:
        """A context as each part reads it."""
        return _numbered([part.context_ids(context) for part in self.parts])

    def candidate_ids(self, text: str) -> list[int]:
        """A candidate as each part reads it."""
        return _numbered([part.candidate_ids(text) for part in self.parts])

    def all_candidate_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """``candidate_ids`` of many texts."""
        rows = [part.all_candidate_ids(texts) for part in self.parts]
        return [_numbered(row) for row in zip(*rows, strict=True)]

    def pair_ids(self, context: Context, candidate: str) -> tuple[list[int], list[int]]:
        """A sum of encoders reads no pairs: raises ConfigError."""
        raise ConfigError("a sum of encoders reads no pairs; a Cross-encoder does")

    def contexts(self, contexts: Sequence[Context]) -> Tokens:
        """Contexts as padded tokens."""
        return pad([self.context_ids(context) for context in contexts], pad_id=self.subwords.pad_id)

    def candidates(self, texts: Sequence[str]) -> Tokens:
        """Candidates as padded tokens."""
        return pad([self.candidate_ids(text) for text in texts], pad_id=self.subwords.pad_id)

    def pairs(self, pairs: Sequence[tuple[Context, str]]) -> Tokens:
        """A sum of encoders reads no pairs: raises ConfigError."""
        return pad([self.pair_ids(context, candidate)[0] for context, candidate in pairs])


def _numbered(rows: Sequence[Sequence[int]]) -> list[int]:
    return [number << BITS | i for number, row in enumerate(rows) for i in row]


def split_parts(tokens: Tokens, pad_ids: Sequence[int]) -> list[Tokens]:
    """What ``SumTexts`` joined, for each encoder the tokens that its own texts would have given.

    Args:
        tokens: of all of them.
        pad_ids: what the padding of each consists of.

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
        mask = columns < lengths[:, None]  # [B, T] of this part
        positions = (start[:, None] + columns).clamp(max=max(width - 1, 0))
        ids = (tokens.ids.gather(1, positions) & (1 << BITS) - 1).masked_fill(~mask, pad_id)
        parts.append(Tokens(ids, mask, torch.zeros_like(ids), known))
        start = start + lengths
    return parts
