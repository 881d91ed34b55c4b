"""Training methods as steps: a batch of examples in, a loss out. They know no optimiser, file or schedule.

A step also says how long each example is (for batches of like length) and what text it could use as negatives.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from polyrank.models import CrossEncoder, EncoderNetwork, Network
from polyrank.models.losses import cross_entropy, distinct
from polyrank.models.scoring import scores
from polyrank.negatives.random import Negatives, Rights, right_answers
from polyrank.records import Context, Example
from polyrank.text import Texts, Tokens
from polyrank.training.queue import CandidateQueue
from polyrank.training.shares import in_shares
from polyrank.training.weighting import Weighting


class Step(Protocol):
    """What ``phased`` takes: a training method for one network."""

    def length(self, example: Example) -> int:
        """Tokens of an example, for grouping."""
        ...

    def __call__(self, batch: Sequence[tuple[int, Example]], epoch: int, number: int) -> Tensor:
        """The mean loss of a batch of (position in the data, example), in update ``number``: has a gradient."""
        ...


@runtime_checkable
class PhasedStep(Protocol):
    """What ``fit_together`` asks of a training method for several networks."""

    def length(self, example: Example) -> int:
        """Tokens of an example, for grouping."""
        ...

    def phases(self, batch: Sequence[tuple[int, Example]], epoch: int, number: int) -> Iterator[Tensor]:
        """A loss for each network in turn; what comes after a ``yield`` sees that network updated."""
        ...


@dataclass(frozen=True, slots=True)
class InBatchStep:
    """Cross-entropy where the other responses of the batch are the negatives, unless they are right as well.

    Args:
        model: a Bi- or Poly-encoder.
        texts: its text policy at work.
        device: where to compute.
        smoothing: how much probability is spread over the wrong candidates.
        rights: all right answers to a context in the training data; of one that is not there, the example's own.
        negatives: of each example, join as further columns for everyone; None: no others.
        chunk_size: texts whose activations are in memory at once, see ``cached``; None: all of the batch.
        queue: of earlier batches' candidates, which are negatives too; None: none.
        weighting: takes out of the loss how often a response is said, see ``weighting``; None: negatives count as
            often as they are said.

    Source: Humeau et al., Poly-encoders (ICLR 2020), section 4.2.
    """

    model: EncoderNetwork
    texts: Texts
    device: torch.device
    smoothing: float = 0.0
    rights: Rights = field(default_factory=dict)
    negatives: Negatives | None = None
    chunk_size: int | None = None
    queue: CandidateQueue | None = None
    weighting: Weighting | None = None

    def length(self, example: Example) -> int:
        """Tokens of the context; the longer side decides the cost."""
        return len(self.texts.context_ids(example.query))

    def __call__(self, batch: Sequence[tuple[int, Example]], epoch: int, number: int = 0) -> Tensor:
        """The mean loss of the batch."""
        self.model.observe_weights()
        examples = [example for _, example in batch]
        others = negatives_of(batch, epoch, self.negatives)
        columns, keys, allowed = in_batch_columns(examples, others, self.rights, self.device)
        vectors = in_shares(
            self.model.encode_candidates, self.texts.candidates(columns).to(self.device), self.chunk_size
        )
        candidates = vectors[keys]
        if self.queue is not None:
            candidates, allowed = with_queue(self.queue, candidates, allowed, columns, examples, self.rights)
            self.queue.push(columns, vectors)
        contexts, mask = in_shares(
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
    """Those of all examples of a batch."""
    return [] if negatives is None else [text for at, example in batch for text in negatives(at, example, epoch)]


def in_batch_columns(
    examples: Sequence[Example], others: Sequence[str], rights: Rights, device: torch.device
) -> tuple[list[str], Tensor, Tensor]:
    """The candidates of a batch: the B responses in order, then the ``others`` that are none of these, each once.

    Returns:
        Their distinct texts, to be encoded once each; the text of each candidate, ``[K]``; and which may be negatives
        of which example, ``[B, K]``: those whose text is none of its right answers, nor one of the same context
        elsewhere (``rights``).
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
    rights: Rights,
) -> tuple[Tensor, Tensor]:
    """The candidates ``[K, D]`` of a batch with those of a queue behind them, and which may be negatives of which.

    Args:
        queue: of n candidates.
        candidates: of the batch.
        allowed: ``[B, K]``, of these.
        texts: of these.
        examples: the batch.
        rights: right answers elsewhere.
    """
    wrong = queue.wrong(texts, [right_answers(example, rights) for example in examples])
    return torch.cat([candidates, queue.vectors]), torch.cat([allowed, wrong], dim=1)


@dataclass(frozen=True, slots=True)
class ListwiseStep:
    """Cross-entropy over each context's own candidates: the response and its wrong ones.

    Every distinct candidate of a batch is encoded once; a Cross-encoder has to read each pair.

    Args:
        model: any model here; a Cross-encoder reads B x (1 + n_negatives) pairs.
        texts: its text policy at work.
        device: where to compute.
        negatives: the wrong candidates of each context.
        sigmoid: give a Cross-encoder's scores as sigmoids of them.
        chunk_size: texts, or pairs, whose activations are in memory at once, see ``cached``; None: all of the batch.

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
        """The candidates of each context: the response, then its negatives."""
        return [[response_of(example), *self.negatives(position, example, epoch)] for position, example in batch]

    def __call__(self, batch: Sequence[tuple[int, Example]], epoch: int, number: int = 0) -> Tensor:
        """The mean loss of the batch."""
        del number
        lists = self.lists(batch, epoch)
        values, allowed = self.values([example.query for _, example in batch], lists)
        return listwise_loss(values, allowed)

    def values(self, contexts: Sequence[Context], lists: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Scores ``[B, K]`` of lists, zero where a list is short of the longest one, and a mask that is false there."""
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
            values = in_shares(score, self.texts.pairs(pairs).to(self.device), self.chunk_size)
            return values.sigmoid() if self.sigmoid else values
        assert isinstance(self.model, EncoderNetwork), "there is no third kind"
        if self.model.training:
            self.model.observe_weights()
        tokens = self.texts.contexts(contexts).to(self.device)
        vectors, mask = in_shares(self.model.encode_contexts, tokens, self.chunk_size)
        number = {text: i for i, text in enumerate(dict.fromkeys(text for row in lists for text in row))}
        tokens = self.texts.candidates(list(number)).to(self.device)
        unique = in_shares(self.model.encode_candidates, tokens, self.chunk_size)
        parts = []
        for i, row in enumerate(lists):
            keys_of_row = torch.tensor([number[text] for text in row], device=self.device)
            parts.append(scores(vectors[i : i + 1], unique[keys_of_row][None], mask[i : i + 1])[0])
        return torch.cat(parts)


def listwise_loss(values: Tensor, allowed: Tensor) -> Tensor:
    """Mean cross-entropy of lists ``[B, K]`` whose first candidate is the right one."""
    return cross_entropy(values, torch.zeros(len(values), dtype=torch.int64, device=values.device), allowed)


def response_of(example: Example) -> str:
    response = example.response
    assert response is not None, "recipe.py keeps only examples with a response"
    return response
