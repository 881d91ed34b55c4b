"""The pairs of each batch, and which of their tokens are masked: pure functions of (seed, step).

Shapes: N pairs, B of them in a batch, T tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.config.pretrain import PretrainText
from polyrank.text import Subwords, Tokens, pad
from polyrank.training.pretraining.tokens import Pairs

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
TRIES = 8  # to draw a response that differs from the true one
MASKED = 0.15  # of the tokens, to be predicted
NO_TARGET = -100  # torch's cross-entropy ignores it


@dataclass(frozen=True, slots=True)
class Chosen:
    """The pairs of a batch.

    Args:
        rows: ``[B]``, the numbers of the pairs that the contexts come from.
        responses: ``[B]``, the numbers of the pairs that the responses come from.
        random: ``[B]``, true if the response is another pair's.
        lengths: ``[B]`` in tokens, ascending.
    """

    rows: Ints
    responses: Ints
    random: Bools
    lengths: Ints

    def __getitem__(self, part: slice) -> "Chosen":
        return Chosen(self.rows[part], self.responses[part], self.random[part], self.lengths[part])


def pair_lengths(table: Ints, text: PretrainText, rows: Ints, responses: Ints) -> tuple[Ints, Ints]:
    """How many tokens of each context and of each response fit.

    >>> table = np.array([[0, 9, 10, 14, 0], [14, 18, 20, 22, 0]])
    >>> settings = PretrainText(max_tokens=13, max_response_tokens=3)
    >>> [n.tolist() for n in pair_lengths(table, settings, np.array([0, 0, 1]), np.array([0, 1, 0]))]
    [[7, 8, 4], [3, 2, 3]]
    """
    n_responses = np.minimum(table[responses, 3] - table[responses, 2], text.max_response_tokens)
    n_contexts = np.minimum(table[rows, 1] - table[rows, 0], text.max_tokens - 3 - n_responses)
    return n_contexts, n_responses


@dataclass(slots=True)
class Batches:
    """The batches of a training, by position, one epoch after the other.

    Args:
        pairs: to train on.
        text: the limits of lengths.
        random_half: give each context, with probability one half, the response of another pair.
        batch_tokens: per batch, padding included.
        window: contexts that are sorted together.
        seed: of the run and of the objective.
    """

    pairs: Pairs
    text: PretrainText
    random_half: bool
    batch_tokens: int
    window: int
    seed: tuple[int, int]
    _epoch: int = -1
    _start: int = 0
    _order: list[Chosen] = field(default_factory=list)

    def at(self, position: int) -> Chosen:
        """The batch at a 0-based position; ascending positions are cheap."""
        if position < self._start:
            self._epoch, self._start, self._order = -1, 0, []
        while position >= self._start + len(self._order):
            self._start += len(self._order)
            self._epoch += 1
            self._order = self.epoch(self._epoch)
        return self._order[position - self._start]

    def epoch(self, number: int) -> list[Chosen]:
        """The batches of an epoch: every context exactly once, grouped by similar length, within the token budget.

        The pairs are shuffled and cut into windows, and each window is sorted by length. Batches do not span two
        windows, unless one window holds too few tokens for a batch. The batches are shuffled.
        """
        table, window = self.pairs.table, self.window
        generator = np.random.Generator(np.random.PCG64((*self.seed, number)))
        n = len(table)
        rows = generator.permutation(n)
        responses = rows.copy()
        if self.random_half:
            wanted = generator.random(n) < 0.5
            for _ in range(TRIES):
                same = wanted & (table[responses, 4] == table[rows, 4])
                responses[same] = generator.integers(n, size=int(same.sum()))
        random = table[responses, 4] != table[rows, 4]
        responses = np.where(random, responses, rows)
        n_contexts, n_responses = pair_lengths(table, self.text, rows, responses)
        lengths = n_contexts + n_responses + 3
        order = np.lexsort((lengths, np.arange(n) // window)) if window > 1 else np.arange(n)
        all_ = Chosen(rows[order], responses[order], random[order], lengths[order])
        span = window if window * lengths.mean() >= self.batch_tokens else n  # a smaller one would not fill a batch
        batches = [
            all_[part]
            for start in range(0, n, span)
            for part in _cut(all_.lengths, start, min(n, start + span), self.batch_tokens)
        ]
        return [batches[i] for i in generator.permutation(len(batches))]


def _cut(lengths: Ints, start: int, end: int, budget: int) -> Iterator[slice]:
    """Slices of at most ``budget`` tokens, padded to the longest, and at least one pair."""
    while start < end:
        most = max(1, min(end - start, budget // int(lengths[start])))
        longest = np.maximum.accumulate(lengths[start : start + most])
        n = max(1, int(np.searchsorted(longest * np.arange(1, most + 1), budget, side="right")))
        yield slice(start, start + n)
        start += n


@dataclass(frozen=True, slots=True)
class MaskedPairs:
    """Pairs as input of the network.

    Args:
        tokens: ``[B, T]``, some of them masked.
        targets: ``[B, T]``: the original ids of tokens to predict, and -100 elsewhere.
        random: ``[B]`` int64: 1 if the response is random.
    """

    tokens: Tokens
    targets: Tensor
    random: Tensor

    def to(self, device: torch.device) -> "MaskedPairs":
        """The same batch on another device."""
        return MaskedPairs(self.tokens.to(device), self.targets.to(device), self.random.to(device))

    def parts(self, lengths: Ints, budget: int | None) -> "list[MaskedPairs]":
        """The batch in parts of at most ``budget`` tokens each; None: in one part.

        Args:
            lengths: ``[B]`` in tokens, ascending.
            budget: tokens per part; a longer pair is a separate part.
        """
        if budget is None:
            return [self]
        rows = torch.arange(len(lengths))
        return [self._part(rows[part]) for part in _cut(lengths, 0, len(lengths), budget)]

    def _part(self, rows: Tensor) -> "MaskedPairs":
        tokens = self.tokens.part(rows)
        return MaskedPairs(tokens, self.targets[rows, : tokens.ids.shape[1]], self.random[rows])


@dataclass(frozen=True, slots=True)
class Masking:
    """How tokens are masked: 15% are chosen, of which 80% become [MASK], 10% a random word, and 10% stay.

    Args:
        mask: id of [MASK].
        words: ids of the random words.
        special: ids that are never chosen.

    Source: Devlin et al., BERT (NAACL 2019), section 3.1.
    """

    mask: int
    words: Ints
    special: Ints

    @classmethod
    def of(cls, subwords: Subwords, also_special: int) -> "Masking":
        """The masking of a vocabulary with a mask token."""
        special = np.array(sorted({*subwords.special_ids(), also_special}), np.int64)
        mask = subwords.mask
        assert mask is not None, "continued_backbone adds it to a vocabulary without one"
        words = np.setdiff1d(np.arange(len(subwords)), special)
        return cls(subwords.id_of(mask), words, special)

    def mask_tokens(self, ids: Ints, generator: np.random.Generator) -> tuple[Ints, Ints]:
        """Ids with some masked, and the targets: the original ids of chosen tokens, -100 elsewhere.

        Args:
            ids: of any number of concatenated texts.
            generator: of the choice.
        """
        chance = generator.random(len(ids))
        chosen = (chance < MASKED) & ~np.isin(ids, self.special)
        what = generator.random(len(ids))
        others = self.words[generator.integers(len(self.words), size=len(ids))]
        masked = np.where(chosen & (what < 0.8), self.mask, ids)
        masked = np.where(chosen & (what >= 0.9), others, masked)
        return masked, np.where(chosen, ids, NO_TARGET)


def make_batch(
    pairs: Pairs,
    chosen: Chosen,
    text: PretrainText,
    subwords: Subwords,
    masking: Masking | None,
    generator: np.random.Generator,
) -> MaskedPairs:
    """``[S] context [S] response [S]`` with segments 0 and 1, and some tokens masked.

    Args:
        pairs: of the data.
        chosen: the pairs of the batch.
        text: the limits of lengths.
        subwords: the vocabulary.
        masking: None: no token is masked.
        generator: of the masks.
    """
    n_contexts, n_responses = pair_lengths(pairs.table, text, chosen.rows, chosen.responses)
    start, end = (np.array([2 * i], np.uint32) for i in (subwords.start_id, subwords.end_id))
    parts = []
    lasts, firsts = pairs.table[chosen.rows, 1], pairs.table[chosen.responses, 2]
    for last, first, n_context, n_response in zip(lasts, firsts, n_contexts, n_responses, strict=True):
        parts += [start, pairs.ids[last - n_context : last], end, pairs.ids[first : first + n_response], end]
    flat = np.concatenate(parts).astype(np.int64)
    ids = flat >> 1  # the lowest bit marks a token that continues a word
    targets = np.full(len(ids), NO_TARGET, np.int64)
    if masking is not None:
        ids, targets = masking.mask_tokens(ids, generator)
    ends = np.cumsum(chosen.lengths)[:-1]
    segments = [[0] * (n + 2) + [1] * (m + 1) for n, m in zip(n_contexts, n_responses, strict=True)]
    tokens = pad(np.split(ids, ends), segments, subwords.pad_id)
    padded = torch.full(tokens.ids.shape, NO_TARGET)
    padded[tokens.mask] = torch.from_numpy(targets)
    return MaskedPairs(tokens, padded, torch.from_numpy(chosen.random.astype(np.int64)))
