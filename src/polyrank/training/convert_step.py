"""ConveRT's training step: cosines with a growing scale, smoothed in-batch cross-entropy, up to three losses.

Everything that changes over time is a function of the update's number, so a resumed run repeats it. The range of the
8-bit embeddings is a buffer of the model, which checkpoints hold.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from polyrank.devices.choice import full_precision
from polyrank.models import Convert
from polyrank.models.convert import ContextEncodings
from polyrank.models.losses import cross_entropy
from polyrank.negatives.random import Negatives, RightAnswers
from polyrank.records import Example
from polyrank.text import Texts
from polyrank.text.tokens import to_device
from polyrank.training.inputs import InBatch, Positions, in_batch, negatives_of
from polyrank.training.queue import CandidateQueue
from polyrank.training.row_losses import mean_loss
from polyrank.training.shares import encode_in_shares, encode_own
from polyrank.training.steps import with_queue
from polyrank.training.stored_tokens import StoredTokens
from polyrank.training.weighting import Weighting


def annealed_scale(number: int, n_steps: int, final: float) -> float:
    """The scale of the cosine in 0-based update ``number``: linear from 1 to ``final`` within ``n_steps``.

    >>> [annealed_scale(i, 4, 9.0) for i in (0, 1, 4, 100)], annealed_scale(0, 0, 9.0)
    ([1.0, 3.0, 9.0, 9.0], 9.0)
    """
    return final if number >= n_steps else 1.0 + (final - 1.0) * number / n_steps


@dataclass(frozen=True, slots=True)
class ConvertStep:
    """In-batch cross-entropy of scaled cosines, with the candidates and negatives of ``InBatchStep``.

    A multi-context ConveRT has a weighted sum of three losses: of the immediate context, of the earlier turns (over
    the contexts that have any), and of both together.

    Args:
        model: the network.
        texts: its tokenized text policy.
        device: where to compute.
        smoothing: the probability that is spread over the wrong responses.
        scale_steps: updates until the scale reaches its final value.
        loss_weights: of the three losses.
        range_steps: updates between two measurements of the range of the 8-bit embeddings.
        rights, negatives, chunk_size, queue, weighting, stored: as for ``InBatchStep``.
        loss: "sum" if the loop multiplies the mean loss by the batch size; the loss of the earlier turns is then scaled
            to a sum over the contexts that have any.

    Source: Henderson et al., ConveRT (2020), sections 2.1 and 3; the loss weights are not published.
    """

    model: Convert
    texts: Texts
    device: torch.device
    smoothing: float
    scale_steps: int
    loss_weights: tuple[float, ...]
    range_steps: int
    rights: RightAnswers = field(default_factory=dict)
    negatives: Negatives | None = None
    chunk_size: int | None = None
    queue: CandidateQueue | None = None
    weighting: Weighting | None = None
    loss: Literal["mean", "sum"] = "mean"
    stored: StoredTokens | None = None

    def length(self, example: Example) -> int:
        """Characters of the last turn: they group texts as well as subwords do, without segmenting them."""
        return len(example.context[-1]) if example.context else 0

    def prepare(self, batch: Positions, epoch: int) -> InBatch:
        """The candidates and tokens of a batch."""
        others = negatives_of(batch, epoch, self.negatives)
        return in_batch(batch, others, texts=self.texts, stored=self.stored, rights=self.rights)

    def losses(self, prepared: InBatch, number: int) -> Iterator[Tensor]:
        """The loss of the batch."""
        yield self._loss(prepared.to(self.device), number)

    def __call__(self, batch: Positions, epoch: int, number: int) -> Tensor:
        """The loss of the batch."""
        return next(self.losses(self.prepare(batch, epoch), number))

    def _loss(self, batch: InBatch, number: int) -> Tensor:
        if number % self.range_steps == 0:
            self.model.observe_weights()
        self.model.scale.fill_(annealed_scale(number, self.scale_steps, self.model.final_scale))
        vectors = encode_in_shares(self.model.encode_candidates, batch.candidates, self.chunk_size)
        candidates, allowed = with_queue(self.queue, batch, vectors, self.rights)
        candidates = candidates * self.model.scale

        def loss(rows: Tensor, allowed: Tensor, encodings: Tensor, candidates: Tensor) -> Tensor:
            with full_precision(candidates):
                values = encodings.float() @ candidates.float().T
            if self.weighting is not None:
                values, allowed = self.weighting(values, allowed, batch.columns, number)
            return cross_entropy(values, rows, allowed, self.smoothing)

        contexts, n = batch.contexts, len(batch.examples)
        own = to_device(contexts.own, self.device)
        allowed = allowed if len(own) == n else allowed[own]
        mean = partial(mean_loss, loss, candidates=candidates)
        if not self.model.multi_context:
            whole = encode_own(lambda part: self.model.context_encodings(part).both, contexts, self.chunk_size)
            return mean(own, allowed, whole, n_contexts=n)
        encodings = ContextEncodings(*encode_own(self.model.context_encodings, contexts, self.chunk_size))
        immediate, earlier, both = self.loss_weights
        total = immediate * mean(own, allowed, encodings.immediate, n_contexts=n)
        total = total + both * mean(own, allowed, encodings.both, n_contexts=n)
        with_earlier = np.array([self.model.has_earlier(row) for row in contexts.rows])
        if not with_earlier.any():
            return total
        n_earlier = int(with_earlier.sum())
        rows = to_device(torch.from_numpy(np.flatnonzero(with_earlier[contexts.own.numpy()])), self.device)
        share = n_earlier / n if self.loss == "sum" else 1.0
        parts = own[rows], allowed[rows], encodings.earlier[rows]
        return total + share * earlier * mean(*parts, n_contexts=n_earlier)
