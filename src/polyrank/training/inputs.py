"""The inputs of a training step: tokens, candidates and masks of a batch, prepared on the host before the step.

Preparing is a pure function of the batch and touches neither networks nor devices, so it may run in another thread.
Shapes: B contexts, K candidates, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.negatives.random import Negatives, RightAnswers, right_answers, text_key
from polyrank.records import Example
from polyrank.text import Texts
from polyrank.text.tokens import Row, to_device
from polyrank.training.shares import Share, share_of
from polyrank.training.stored_tokens import StoredTokens

Positions = Sequence[tuple[int, Example]]
"""Examples with their positions in the data."""


@dataclass(frozen=True, slots=True)
class InBatch:
    """The candidates that all contexts of a batch share.

    Args:
        examples: B of them.
        texts: the distinct candidates, to be encoded once each.
        columns: the text of each of the K candidates: the B responses in order, then each other text once.
        contexts, candidates: tokens of the contexts and of ``texts``.
        keys: for each candidate the number of its text, ``[K]``.
        allowed: which candidates may be negatives of which example, ``[B, K]``: false for its right answers and those
            that other examples give to the same context.
    """

    examples: list[Example]
    texts: list[str]
    columns: list[str]
    contexts: Share
    candidates: Share
    keys: Tensor
    allowed: Tensor

    def to(self, device: torch.device) -> "InBatch":
        """The same batch with its tensors on a device."""
        return InBatch(
            self.examples,
            self.texts,
            self.columns,
            self.contexts.to(device),
            self.candidates.to(device),
            to_device(self.keys, device),
            to_device(self.allowed, device),
        )


def in_batch(
    batch: Positions,
    others: Sequence[str],
    *,
    texts: Texts,
    stored: StoredTokens | None = None,
    rights: RightAnswers,
) -> InBatch:
    """Prepare a batch whose contexts share all candidates.

    Args:
        batch: the examples.
        others: further candidates, each of which is left out if it is a response as well.
        texts: the text policy.
        stored: the tokens of the training data; None: texts are tokenized now.
        rights: all right answers to each context in the training data.
    """
    examples = [example for _, example in batch]
    responses = [response_of(example) for example in examples]
    of_response: dict[str, int] = {}
    for (position, _), response in zip(batch, responses, strict=True):
        of_response.setdefault(response, position)
    distinct = list(dict.fromkeys([*of_response, *others]))
    key_of = {text: key for key, text in enumerate(distinct)}
    more = distinct[len(of_response) :]
    keys = np.array([*map(key_of.__getitem__, responses), *range(len(of_response), len(distinct))])
    rows: list[Row]
    if stored is None:
        rows = [texts.candidate_ids(text) for text in distinct]
    else:
        rows = [*stored.responses(of_response.values()), *(texts.candidate_ids(text) for text in more)]
    return InBatch(
        examples,
        distinct,
        [*responses, *more],
        share_of(context_rows(batch, texts, stored), pad_id=texts.subwords.pad_id),
        share_of(rows, pad_id=texts.subwords.pad_id),
        torch.from_numpy(keys),
        torch.from_numpy(_wrong(batch, key_of, rights, stored)[:, keys]),
    )


def _wrong(
    batch: Positions, texts: dict[str, int], rights: RightAnswers, stored: StoredTokens | None
) -> NDArray[np.bool_]:
    """Which of the distinct texts, with their numbers, are wrong for which example: ``[B, number of texts]``."""
    wrong = np.ones((len(batch), len(texts)), np.bool_)
    rows, columns = [], []
    of_key = {} if stored is None else {text_key(text): column for text, column in texts.items()}
    for row, (position, example) in enumerate(batch):
        if stored is not None and (keys := stored.rights(position)):
            right = [of_key[key] for key in keys if key in of_key]
        else:
            known = right_answers(example, {} if stored is not None else rights)
            right = [texts[text] for text in known if text in texts]
        rows += [row] * len(right)
        columns += right
    wrong[rows, columns] = False
    return wrong


def context_rows(batch: Positions, texts: Texts, stored: StoredTokens | None) -> Sequence[Row]:
    """The ids of the contexts of a batch."""
    if stored is not None:
        return stored.contexts(position for position, _ in batch)
    return [texts.context_ids(example.query) for _, example in batch]


def negatives_of(batch: Positions, epoch: int, negatives: Negatives | None) -> list[str]:
    """The negatives of all examples of a batch."""
    return [] if negatives is None else [text for at, example in batch for text in negatives(at, example, epoch)]


def response_of(example: Example) -> str:
    """The response of a training example."""
    response = example.response
    assert response is not None, "load_data keeps only examples with a response"
    return response


@dataclass(frozen=True, slots=True)
class Lists:
    """Each context's own list of candidates, as input of one network.

    Args:
        examples: B of them.
        lists: the candidates of each.
        allowed: ``[B, K]``, true for the candidates of each list, which come first.
        keys: ``[B, K]``: the number of each candidate's text among ``candidates``, or of its pair among ``pairs``.
        contexts, candidates: an encoder's tokens: of the contexts, and of the distinct candidates.
        pairs: a Cross-encoder's tokens of all pairs, row by row.
    """

    examples: list[Example]
    lists: list[list[str]]
    allowed: Tensor
    keys: Tensor
    contexts: Share | None = None
    candidates: Share | None = None
    pairs: Share | None = None

    def to(self, device: torch.device) -> "Lists":
        """The same lists with their tensors on a device."""
        shares = (self.contexts, self.candidates, self.pairs)
        return Lists(
            self.examples,
            self.lists,
            to_device(self.allowed, device),
            to_device(self.keys, device),
            *(None if share is None else share.to(device) for share in shares),
        )


def in_lists(
    batch: Positions, lists: list[list[str]], *, texts: Texts, stored: StoredTokens | None = None, pairwise: bool
) -> Lists:
    """Prepare lists for an encoder, or for a Cross-encoder (``pairwise``)."""
    examples, width = [example for _, example in batch], max(map(len, lists))
    allowed = np.arange(width) < np.array([len(row) for row in lists])[:, None]
    keys, pad_id = np.zeros_like(allowed, np.int64), texts.subwords.pad_id
    shown = torch.from_numpy(allowed)
    if pairwise:
        pairs = [
            texts.pair_ids(example.query, text) for example, row in zip(examples, lists, strict=True) for text in row
        ]
        keys[allowed] = np.arange(len(pairs))
        share = share_of([ids for ids, _ in pairs], [segments for _, segments in pairs], pad_id=pad_id)
        return Lists(examples, lists, shown, torch.from_numpy(keys), pairs=share)
    key_of = {text: key for key, text in enumerate(dict.fromkeys(text for row in lists for text in row))}
    keys[allowed] = [key_of[text] for row in lists for text in row]
    return Lists(
        examples,
        lists,
        shown,
        torch.from_numpy(keys),
        share_of(context_rows(batch, texts, stored), pad_id=pad_id),
        share_of([texts.candidate_ids(text) for text in key_of], pad_id=pad_id),
    )
