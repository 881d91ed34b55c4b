"""Training methods as steps: a function from a batch of examples to a loss, and the length of each example.

Steps know nothing of optimizers, files or schedules.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from polyrank.models import CrossEncoder, EncoderNetwork, Network
from polyrank.models.losses import cross_entropy
from polyrank.models.scoring import scores
from polyrank.negatives.random import Negatives, RightAnswers, right_answers
from polyrank.records import Example
from polyrank.scorers.late import LateScorer
from polyrank.scorers.protocols import Scorer
from polyrank.text import Texts, Tokens
from polyrank.text.tokens import to_device
from polyrank.training.inputs import InBatch, Lists, Positions, in_batch, in_lists, negatives_of, response_of
from polyrank.training.learner import Measured
from polyrank.training.queue import CandidateQueue
from polyrank.training.row_losses import mean_loss
from polyrank.training.shares import Share, encode_in_shares, encode_own, gathered
from polyrank.training.stored_tokens import StoredTokens
from polyrank.training.weighting import Weighting

Prepared = TypeVar("Prepared")


class Step(Protocol):
    """A training method for one network; ``phased`` adapts it for the loop."""

    def length(self, example: Example) -> int:
        """Tokens of an example, for grouping."""
        ...

    def __call__(self, batch: Positions, epoch: int, number: int) -> Tensor:
        """The mean loss, with a gradient, of a batch of (position in the data, example) in update ``number``."""
        ...


@runtime_checkable
class PreparedStep(Protocol[Prepared]):
    """A training method for one network or several that prepares its batches in advance."""

    def length(self, example: Example) -> int:
        """Tokens of an example, for grouping."""
        ...

    def prepare(self, batch: Positions, epoch: int) -> Prepared:
        """Everything that the step needs of a batch; runs in another thread, without networks and devices."""
        ...

    def losses(self, prepared: Prepared, number: int) -> Iterator[Tensor | Measured]:
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
        stored: the tokens of the training data; None: each text is tokenized when it is needed.

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
    stored: StoredTokens | None = None

    def length(self, example: Example) -> int:
        """Tokens of the context, which is the longer side and decides the cost."""
        return len(self.texts.context_ids(example.query))

    def prepare(self, batch: Positions, epoch: int) -> InBatch:
        """The candidates and tokens of a batch."""
        others = negatives_of(batch, epoch, self.negatives)
        return in_batch(batch, others, texts=self.texts, stored=self.stored, rights=self.rights)

    def losses(self, prepared: InBatch, number: int) -> Iterator[Tensor]:
        """The mean loss of the batch."""
        yield self._loss(prepared.to(self.device), number)

    def __call__(self, batch: Positions, epoch: int, number: int = 0) -> Tensor:
        """The mean loss of the batch."""
        return next(self.losses(self.prepare(batch, epoch), number))

    def _loss(self, batch: InBatch, number: int) -> Tensor:
        self.model.observe_weights()
        vectors = encode_in_shares(self.model.encode_candidates, batch.candidates, self.chunk_size)
        candidates, allowed = with_queue(self.queue, batch, vectors, self.rights)
        contexts, mask = encode_own(self.model.encode_contexts, batch.contexts, self.chunk_size)

        def loss(target: Tensor, allowed: Tensor, mask: Tensor, contexts: Tensor, candidates: Tensor) -> Tensor:
            values = scores(contexts, candidates[None], mask)
            if self.weighting is not None:
                values, allowed = self.weighting(values, allowed, batch.columns, number)
            return cross_entropy(values, target, allowed, self.smoothing)

        own, n = to_device(batch.contexts.own, self.device), len(batch.examples)
        allowed = allowed if len(own) == n else allowed[own]
        return mean_loss(
            loss, own, allowed, mask, contexts, candidates=candidates, n_contexts=n, n_vectors=contexts.shape[1]
        )


def with_queue(
    queue: CandidateQueue | None, batch: InBatch, vectors: Tensor, rights: RightAnswers
) -> tuple[Tensor, Tensor]:
    """The candidates ``[K + n, D]`` of a batch and of a queue of n, with the mask of possible negatives ``[B, K + n]``.

    The batch's candidates are added to the queue.

    Args:
        queue: None: the batch's candidates alone.
        batch: on its device.
        vectors: of the batch's distinct texts.
        rights: right answers to each context in the training data.
    """
    candidates, allowed = vectors[batch.keys], batch.allowed
    if queue is None:
        return candidates, allowed
    wrong = queue.wrong(batch.texts, [right_answers(example, rights) for example in batch.examples])
    candidates, allowed = torch.cat([candidates, queue.vectors]), torch.cat([allowed, wrong], dim=1)
    queue.push(batch.texts, vectors)
    return candidates, allowed


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
        stored: as for ``InBatchStep``, for the contexts of an encoder.
        late: keeps what a late Cross-encoder's frozen layers compute; None: the model is another one.

    Source: Humeau et al., Poly-encoders (ICLR 2020), sections 4.3 and 5.1; of the sigmoid, Tao et al., Eq. 5.
    """

    model: Network
    texts: Texts
    device: torch.device
    negatives: Negatives
    sigmoid: bool = False
    chunk_size: int | None = None
    stored: StoredTokens | None = None
    late: LateScorer | None = None

    def length(self, example: Example) -> int:
        """Tokens of the context."""
        return len(self.texts.context_ids(example.query))

    def lists(self, batch: Positions, epoch: int) -> list[list[str]]:
        """The list of each context: the response, then its negatives."""
        return [[response_of(example), *self.negatives(position, example, epoch)] for position, example in batch]

    def inputs(self, batch: Positions, lists: list[list[str]]) -> Lists:
        """The tokens of lists for this network."""
        return in_lists(
            batch, lists, texts=self.texts, stored=self.stored, pairwise=isinstance(self.model, CrossEncoder)
        )

    def prepare(self, batch: Positions, epoch: int) -> Lists:
        """The lists and tokens of a batch."""
        return self.inputs(batch, self.lists(batch, epoch))

    def losses(self, prepared: Lists, number: int) -> Iterator[Tensor]:
        """The mean loss of the batch."""
        del number
        yield listwise_loss(*self.values(prepared))

    def __call__(self, batch: Positions, epoch: int, number: int = 0) -> Tensor:
        """The mean loss of the batch."""
        return next(self.losses(self.prepare(batch, epoch), number))

    def values(self, lists: Lists) -> tuple[Tensor, Tensor]:
        """Scores ``[B, K]`` of lists, padded with zeros to the longest list, and their mask."""
        lists = lists.to(self.device)
        return torch.where(lists.allowed, self._score(lists), 0.0), lists.allowed

    def _score(self, lists: Lists) -> Tensor:
        """Scores ``[B, K]`` of lists; those of the padding are arbitrary."""
        if isinstance(self.model, CrossEncoder):
            assert lists.pairs is not None, "prepared for another network"
            score: Callable[[Tokens], Tensor] = self.model
            values = gathered(encode_own(score, lists.pairs, self.chunk_size), lists.pairs)
            return (values.sigmoid() if self.sigmoid else values)[lists.keys]
        assert lists.contexts is not None, "prepared for another network"
        if self.late is not None:
            values = self._score_late(lists, self.late, lists.contexts)
            return values.sigmoid() if self.sigmoid else values
        assert isinstance(self.model, EncoderNetwork), "a network is a Cross-encoder or an encoder"
        assert lists.candidates is not None, "prepared for another network"
        if self.model.training:
            self.model.observe_weights()
        vectors, mask = encode_own(self.model.encode_contexts, lists.contexts, self.chunk_size)
        unique = encode_in_shares(self.model.encode_candidates, lists.candidates, self.chunk_size)
        own = to_device(lists.contexts.own, self.device)
        keys = lists.keys if len(own) == len(lists.keys) else lists.keys[own]
        return gathered(scores(vectors, unique[keys], mask), lists.contexts)

    def _score_late(self, lists: Lists, late: LateScorer, share: Share) -> Tensor:
        """The same by a late Cross-encoder; each process scores its own contexts."""
        contexts = late.context_inputs([example.query for example in lists.examples])
        place = {text: i for i, text in enumerate(dict.fromkeys(text for row in lists.lists for text in row))}
        candidates = late.candidate_inputs(list(place))
        own = share.own.tolist() or [0]  # a process without contexts needs a graph too
        pairs = [(row, place[text]) for row in own for text in lists.lists[row]]
        values = late.joined(contexts, candidates, pairs, self.chunk_size)
        allowed = lists.allowed[to_device(torch.tensor(own), self.device)]
        own_lists = values.new_zeros(allowed.shape).masked_scatter(allowed, values)
        return gathered(own_lists[: len(share.own)], share)


def listwise_loss(values: Tensor, allowed: Tensor) -> Tensor:
    """Mean cross-entropy of lists ``[B, K]`` whose first candidate is right."""
    return cross_entropy(values, torch.zeros(len(values), dtype=torch.int64, device=values.device), allowed)


def fixed_scores(scorer: Scorer, lists: Lists) -> Tensor:
    """A trained model's scores ``[B, K]`` of lists, zero on the padding."""
    scored = scorer.score([example.query for example in lists.examples], lists.lists)
    values = np.zeros(lists.allowed.shape, np.float32)
    values[lists.allowed.numpy()] = np.concatenate(scored)
    return torch.from_numpy(values)
