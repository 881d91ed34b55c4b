"""Training methods as steps: a function from a batch of examples to a loss, and the length of each example.

Steps know nothing of optimizers, files or schedules.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from polyrank.models import CrossEncoder, EncoderNetwork, Network
from polyrank.models.losses import cross_entropy, distinct
from polyrank.models.scoring import scores
from polyrank.negatives.random import Negatives, RightAnswers, right_answers
from polyrank.records import Context, Example
from polyrank.text import Texts, Tokens
from polyrank.training.queue import CandidateQueue
from polyrank.training.shares import encode_in_shares
from polyrank.training.weighting import Weighting


class Step(Protocol):
    """A training method for one network; ``phased`` adapts it for the loop."""

    def length(self, example: Example) -> int:
        """Tokens of an example, for grouping."""
        ...

    def __call__(self, batch: Sequence[tuple[int, Example]], epoch: int, number: int) -> Tensor:
        """The mean loss, with a gradient, of a batch of (position in the data, example) in update ``number``."""
        ...


@runtime_checkable
class PhasedStep(Protocol):
    """A training method for one network or several."""

    def length(self, example: Example) -> int:
        """Tokens of an example, for grouping."""
        ...

    def phases(self, batch: Sequence[tuple[int, Example]], epoch: int, number: int) -> Iterator[Tensor]:
        """Yield a loss for each network in turn; code after a ``yield`` runs with that network updated."""
        ...


@dataclass(frozen=True, slots=True)
class InBatchStep:
    """Cross-entropy with the other responses of the batch as negatives, except those that are right as well.

    Args:
        model: a Bi- or Poly-encoder.
        texts: its tokenized text policy.
        device: where to compute.
        smoothing: the probability that is spread over the wrong candidates.
        rights: all right answers to each context in the training data; a context that is missing has the example's own.
        negatives: further negatives of each example, which all contexts of the batch share; None: none.
        chunk_size: texts whose activations are in memory at once, see ``cached``; None: the whole batch.
        queue: of earlier batches' candidates as further negatives; None: no queue.
        weighting: corrects the loss for the frequency of responses, see ``weighting``; None: no correction.

    Source: Humeau et al., Poly-encoders (ICLR 2020), section 4.2.
    """

    model: EncoderNetwork
    texts: Texts
    device: torch.device
    smoothing: float = 0.0
    rights: RightAnswers = field(default_factory=dict)
    negatives: Negatives | None = None
    chunk_size: int | None = None
    queue: CandidateQueue | None = None
    weighting: Weighting | None = None

    def length(self, example: Example) -> int:
        """Tokens of the context, which is the longer side and decides the cost."""
        return len(self.texts.context_ids(example.query))

    def __call__(self, batch: Sequence[tuple[int, Example]], epoch: int, number: int = 0) -> Tensor:
        """The mean loss of the batch."""
        self.model.observe_weights()
        examples = [example for _, example in batch]
        others = negatives_of(batch, epoch, self.negatives)
        columns, keys, allowed = in_batch_columns(examples, others, self.rights, self.device)
        vectors = encode_in_shares(
            self.model.encode_candidates, self.texts.candidates(columns).to(self.device), self.chunk_size
        )
        candidates = vectors[keys]
        if self.queue is not None:
            candidates, allowed = with_queue(self.queue, candidates, allowed, columns, examples, self.rights)
            self.queue.push(columns, vectors)
        contexts, mask = encode_in_shares(
            self.model.encode_contexts,
            self.texts.contexts([example.query for example in examples]).to(self.device),
            self.chunk_size,
        )
        values = scores(contexts, candidates[None], mask)
        target = torch.arange(len(examples), device=self.device)
        if self.weighting is not None:
            values, allowed = self.weighting(values, allowed, [columns[key] for key in keys.tolist()], number)
        return cross_entropy(values, target, allowed, self.smoothing)


def negatives_of(batch: Sequence[tuple[int, Example]], epoch: int, negatives: Negatives | None) -> list[str]:
    """The negatives of all examples of a batch."""
    return [] if negatives is None else [text for at, example in batch for text in negatives(at, example, epoch)]


def in_batch_columns(
    examples: Sequence[Example], others: Sequence[str], rights: RightAnswers, device: torch.device
) -> tuple[list[str], Tensor, Tensor]:
    """The K candidates of a batch: the B responses in order, then each of the ``others`` that is not a response, once.

    Returns:
        The distinct texts, to be encoded once each; for each candidate the number of its text, ``[K]``; and which
        candidates may be negatives of which example, ``[B, K]``: false for its right answers and those that other
        examples give to the same context (``rights``).
    """
    responses = [response_of(example) for example in examples]
    texts = list(dict.fromkeys([*responses, *others]))
    key_of = {text: key for key, text in enumerate(texts)}
    columns = [*responses, *texts[len(set(responses)) :]]
    keys = torch.tensor([key_of[text] for text in columns], device=device)
    allowed = distinct(keys, len(examples))
    for row, example in enumerate(examples):
        if len(right := right_answers(example, rights)) > 1:
            right_keys = [key_of[text] for text in right if text in key_of]
            allowed[row] &= ~torch.isin(keys, torch.tensor(right_keys, device=device))
    return texts, keys, allowed


def with_queue(
    queue: CandidateQueue,
    candidates: Tensor,
    allowed: Tensor,
    texts: Sequence[str],
    examples: Sequence[Example],
    rights: RightAnswers,
) -> tuple[Tensor, Tensor]:
    """Append the queue's candidates to those of a batch, with the mask of possible negatives ``[B, K + n]``.

    Args:
        queue: of n candidates.
        candidates: of the batch, ``[K, D]``.
        allowed: the batch's mask, ``[B, K]``.
        texts: the batch's distinct texts.
        examples: the batch.
        rights: right answers to each context in the training data.
    """
    wrong = queue.wrong(texts, [right_answers(example, rights) for example in examples])
    return torch.cat([candidates, queue.vectors]), torch.cat([allowed, wrong], dim=1)


@dataclass(frozen=True, slots=True)
class ListwiseStep:
    """Cross-entropy over each context's own list of candidates: the response and its negatives.

    Encoders encode every distinct candidate of a batch once; a Cross-encoder scores each pair.

    Args:
        model: any polyrank network; a Cross-encoder scores B x (1 + n_negatives) pairs.
        texts: its tokenized text policy.
        device: where to compute.
        negatives: the wrong candidates of each context.
        sigmoid: apply a sigmoid to a Cross-encoder's scores.
        chunk_size: texts, or pairs, whose activations are in memory at once, see ``cached``; None: the whole batch.

    Source: Humeau et al., Poly-encoders (ICLR 2020), sections 4.3 and 5.1; of the sigmoid, Tao et al., Eq. 5.
    """

    model: Network
    texts: Texts
    device: torch.device
    negatives: Negatives
    sigmoid: bool = False
    chunk_size: int | None = None

    def length(self, example: Example) -> int:
        """Tokens of the context."""
        return len(self.texts.context_ids(example.query))

    def lists(self, batch: Sequence[tuple[int, Example]], epoch: int) -> list[list[str]]:
        """The list of each context: the response, then its negatives."""
        return [[response_of(example), *self.negatives(position, example, epoch)] for position, example in batch]

    def __call__(self, batch: Sequence[tuple[int, Example]], epoch: int, number: int = 0) -> Tensor:
        """The mean loss of the batch."""
        del number
        lists = self.lists(batch, epoch)
        values, allowed = self.values([example.query for _, example in batch], lists)
        return listwise_loss(values, allowed)

    def values(self, contexts: Sequence[Context], lists: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Scores ``[B, K]`` of lists, padded with zeros to the longest list, and their mask."""
        width = max(map(len, lists))
        allowed = torch.tensor([[i < len(row) for i in range(width)] for row in lists], device=self.device)
        values = torch.zeros(len(lists), width, device=self.device)
        values[allowed] = self._score(contexts, lists)
        return values, allowed

    def _score(self, contexts: Sequence[Context], lists: Sequence[Sequence[str]]) -> Tensor:
        """Scores of all pairs, row by row: ``[sum of lengths]``."""
        if isinstance(self.model, CrossEncoder):
            pairs = [(context, text) for context, row in zip(contexts, lists, strict=True) for text in row]
            score: Callable[[Tokens], Tensor] = self.model
            values = encode_in_shares(score, self.texts.pairs(pairs).to(self.device), self.chunk_size)
            return values.sigmoid() if self.sigmoid else values
        assert isinstance(self.model, EncoderNetwork), "a network is a Cross-encoder or an encoder"
        if self.model.training:
            self.model.observe_weights()
        tokens = self.texts.contexts(contexts).to(self.device)
        vectors, mask = encode_in_shares(self.model.encode_contexts, tokens, self.chunk_size)
        number = {text: i for i, text in enumerate(dict.fromkeys(text for row in lists for text in row))}
        tokens = self.texts.candidates(list(number)).to(self.device)
        unique = encode_in_shares(self.model.encode_candidates, tokens, self.chunk_size)
        parts = []
        for i, row in enumerate(lists):
            keys_of_row = torch.tensor([number[text] for text in row], device=self.device)
            parts.append(scores(vectors[i : i + 1], unique[keys_of_row][None], mask[i : i + 1])[0])
        return torch.cat(parts)


def listwise_loss(values: Tensor, allowed: Tensor) -> Tensor:
    """Mean cross-entropy of lists ``[B, K]`` whose first candidate is right."""
    return cross_entropy(values, torch.zeros(len(values), dtype=torch.int64, device=values.device), allowed)


def response_of(example: Example) -> str:
    """The response of a training example."""
    response = example.response
    assert response is not None, "load_data keeps only examples with a response"
    return response
