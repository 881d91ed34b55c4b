"""ConveRT's training step: cosines with a growing scale, smoothed in-batch cross-entropy, up to three losses.

Everything that changes over time is a function of the update's number, so a resumed run repeats it. The range of the
8-bit embeddings is a buffer of the model, which checkpoints hold.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from polyrank.devices.choice import full_precision
from polyrank.models import Convert
from polyrank.models.convert import ContextEncodings
from polyrank.text.tokens import to_device
from polyrank.training.inputs import InBatch, Positions
from polyrank.training.learner import Loss
from polyrank.training.row_losses import mean_loss
from polyrank.training.shares import encode_in_shares, encode_own
from polyrank.training.steps import InBatchStep


def annealed_scale(number: int, n_steps: int, final: float) -> float:
    """The scale of the cosine in 0-based update ``number``: linear from 1 to ``final`` within ``n_steps``.

    >>> [annealed_scale(i, 4, 9.0) for i in (0, 1, 4, 100)], annealed_scale(0, 0, 9.0)
    ([1.0, 3.0, 9.0, 9.0], 9.0)
    """
    return final if number >= n_steps else 1.0 + (final - 1.0) * number / n_steps


@dataclass(frozen=True, slots=True)
class ConvertStep:
    """In-batch cross-entropy of scaled cosines, with the candidates and negatives of ``InBatchStep``.

    A multi-context ConveRT has the sum of three losses: of the immediate context, of the earlier turns (over the
    contexts that have any), and of both together.

    Args:
        model: the network.
        in_batch: prepares its batches, and has the loss of the scores of each context.
        scale_steps: updates until the scale reaches its final value.
        summed: if the loop multiplies the mean loss by the batch size; the loss of the earlier turns is then scaled to
            a sum over the contexts that have any.
        range_steps: updates between two measurements of the range of the 8-bit embeddings.

    Source: Henderson et al., ConveRT (2020), sections 2.1 and 3; how the losses are weighted is not published.
    """

    model: Convert
    in_batch: InBatchStep
    scale_steps: int
    summed: bool = False
    range_steps: int = 100

    def prepare(self, rows: Positions, epoch: int) -> InBatch:
        """The candidates and tokens of a batch."""
        return self.in_batch.prepare(rows, epoch)

    def losses(self, batch: InBatch, number: int) -> Iterator[Loss]:
        """The loss of the batch."""
        device, size = self.in_batch.device, self.in_batch.chunk_size
        batch, n = batch.to(device), len(batch.examples)
        if number % self.range_steps == 0:
            self.model.observe_weights()
        self.model.scale.fill_(annealed_scale(number, self.scale_steps, self.model.final_scale))
        vectors = encode_in_shares(self.model.encode_candidates, batch.candidates, size)
        candidates = vectors[batch.keys] * self.model.scale

        def loss(targets: Tensor, allowed: Tensor, encodings: Tensor, candidates: Tensor) -> Tensor:
            with full_precision(candidates):
                values = encodings.float() @ candidates.float().T
            if self.in_batch.weighting is not None:
                values = self.in_batch.weighting(values, batch.columns)
            return self.in_batch.loss(values, targets, allowed)

        targets, allowed = batch.targets, batch.allowed
        mean = partial(mean_loss, loss, candidates=candidates)
        if not self.model.multi_context:
            whole = encode_own(lambda part: self.model.context_encodings(part).both, batch.contexts, size)
            yield Loss(mean(targets, allowed, whole, n_contexts=n), n)
            return
        encodings = ContextEncodings(*encode_own(self.model.context_encodings, batch.contexts, size))
        of_last, of_both = (
            mean(targets, allowed, vectors, n_contexts=n) for vectors in (encodings.immediate, encodings.both)
        )
        total = of_last + of_both
        with_earlier = np.array([self.model.has_earlier(row) for row in batch.contexts.rows])
        if n_earlier := int(with_earlier.sum()):
            rows = to_device(torch.from_numpy(np.flatnonzero(with_earlier[batch.contexts.own.numpy()])), device)
            share = n_earlier / n if self.summed else 1.0
            parts = targets[rows], allowed[rows], encodings.earlier[rows]
            total = total + share * mean(*parts, n_contexts=n_earlier)
        yield Loss(total, n)
