"""The inputs of a training step: tokens, candidates and masks of a batch, prepared on the host before the step.

Preparing is a pure function of the batch and touches neither networks nor devices, so it may run in another thread.
Shapes: B contexts, K candidates, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
        targets: for each of the n contexts of this process the number of its right candidate, ``[n]``.
        allowed: which candidates may be their negatives, ``[n, K]``: false for right answers, also those that other
            examples give to the same context.
    """

    examples: list[Example]
    texts: list[str]
    columns: list[str]
    contexts: Share
    candidates: Share
    keys: Tensor
    targets: Tensor
    allowed: Tensor

    def to(self, device: torch.device) -> "InBatch":
        """The same batch with its tensors on a device."""
        return replace(
            self,
            contexts=self.contexts.to(device),
            candidates=self.candidates.to(device),
            keys=to_device(self.keys, device),
            targets=to_device(self.targets, device),
            allowed=to_device(self.allowed, device),
        )


def in_batch(
    batch: Positions, others: Sequence[str], *, texts: Texts, stored: StoredTokens | None = None, rights: RightAnswers
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
    rows, pad_id = context_rows(batch, texts, stored), texts.subwords.pad_id
    wrong = _wrong(batch, key_of, rights, stored)
    new: list[Row] = [texts.candidate_ids(text) for text in (distinct if stored is None else more)]
    read = [] if stored is None else stored.responses(of_response.values())
    contexts = share_of(rows, pad_id=pad_id)
    return InBatch(
        examples,
        distinct,
        [*responses, *more],
        contexts,
        share_of([*read, *new], pad_id=pad_id),
        torch.from_numpy(keys),
        contexts.own,
        torch.from_numpy(wrong[contexts.own.numpy()][:, keys]),
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
            answers = right_answers(example, {} if stored is not None else rights)
            right = [texts[text] for text in answers if text in texts]
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
        inputs: tokens of the contexts for an encoder, or of all pairs, row by row, for a Cross-encoder.
        keys: for an encoder ``[n, K]``: the number of each candidate's text among ``candidates``, for the n contexts of
            this process; for a Cross-encoder ``[B, K]``: the number of each candidate's pair among ``inputs``.
        candidates: an encoder's tokens of the distinct candidates.
    """

    examples: list[Example]
    lists: list[list[str]]
    allowed: Tensor
    inputs: Share
    keys: Tensor
    candidates: Share | None = None

    def to(self, device: torch.device) -> "Lists":
        """The same lists with their tensors on a device."""
        return replace(
            self,
            allowed=to_device(self.allowed, device),
            inputs=self.inputs.to(device),
            keys=to_device(self.keys, device),
            candidates=self.candidates and self.candidates.to(device),
        )


def in_pairs(batch: Positions, lists: list[list[str]], texts: Texts) -> Lists:
    """Prepare lists for a Cross-encoder."""
    examples, allowed = [example for _, example in batch], _mask(lists)
    pairs = [texts.pair_ids(example.query, text) for example, row in zip(examples, lists, strict=True) for text in row]
    keys = np.zeros_like(allowed, np.int64)
    keys[allowed] = np.arange(len(pairs))
    share = share_of([ids for ids, _ in pairs], [segments for _, segments in pairs], pad_id=texts.subwords.pad_id)
    return Lists(examples, lists, torch.from_numpy(allowed), share, torch.from_numpy(keys))


def in_lists(batch: Positions, lists: list[list[str]], *, texts: Texts, stored: StoredTokens | None = None) -> Lists:
    """Prepare lists for an encoder, which encodes each distinct candidate once."""
    allowed, rows, pad_id = _mask(lists), context_rows(batch, texts, stored), texts.subwords.pad_id
    key_of = {text: key for key, text in enumerate(dict.fromkeys(text for row in lists for text in row))}
    keys = np.zeros_like(allowed, np.int64)
    keys[allowed] = [key_of[text] for row in lists for text in row]
    contexts = share_of(rows, pad_id=pad_id)
    return Lists(
        [example for _, example in batch],
        lists,
        torch.from_numpy(allowed),
        contexts,
        torch.from_numpy(keys[contexts.own.numpy()]),
        share_of([texts.candidate_ids(text) for text in key_of], pad_id=pad_id),
    )


def _mask(lists: list[list[str]]) -> NDArray[np.bool_]:
    """``[B, K]``, true for the candidates of each list."""
    lengths = np.array([len(row) for row in lists])
    return np.arange(lengths.max()) < lengths[:, None]
