"""Training methods for one network: from rows of examples to a loss.

Steps know nothing of optimizers, files or schedules; ``loop.Step`` is their protocol.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from polyrank.models import CrossEncoder, EncoderNetwork, Network
from polyrank.models.losses import LogQ, LossFunction, cross_entropy
from polyrank.models.scoring import scores
from polyrank.negatives.random import Negatives, RightAnswers
from polyrank.scorers.late import LateScorer
from polyrank.text import Texts, Tokens
from polyrank.training import inputs as prepared
from polyrank.training.learner import Loss
from polyrank.training.row_losses import mean_loss
from polyrank.training.shares import encode_in_shares, encode_own, gathered
from polyrank.training.stored_tokens import StoredTokens


@dataclass(frozen=True, slots=True)
class InBatchStep:
    """The other responses of the batch are the negatives, except those that are right as well.

    Args:
        model: a Bi- or Poly-encoder.
        texts: its tokenized text policy.
        device: where to compute.
        loss: of the scores of each context.
        rights: all right answers to each context in the training data; a context that is missing has the example's own.
        negatives: further negatives of each example, which all contexts of the batch share; None: none.
        chunk_size: texts whose activations are in memory at once, see ``cached``; None: the whole batch.
        weighting: corrects scores for the frequency of responses; None: no correction.
        stored: the tokens of the training data; None: each text is tokenized when it is needed.
        cuts: functions from vectors to the first of their numbers, whose losses count as much as that of the whole.

    Source: Humeau et al., Poly-encoders (ICLR 2020), section 4.2.
    """

    model: EncoderNetwork
    texts: Texts
    device: torch.device
    loss: LossFunction = cross_entropy
    rights: RightAnswers = field(default_factory=dict)
    negatives: Negatives | None = None
    chunk_size: int | None = None
    weighting: LogQ | None = None
    stored: StoredTokens | None = None
    cuts: Sequence[Callable[[Tensor], Tensor]] = ()

    def prepare(self, rows: prepared.Positions, epoch: int) -> prepared.InBatch:
        """The candidates and tokens of a batch."""
        others = prepared.negatives_of(rows, epoch, self.negatives)
        return prepared.in_batch(rows, others, texts=self.texts, stored=self.stored, rights=self.rights)

    def losses(self, batch: prepared.InBatch, number: int) -> Iterator[Loss]:
        """The loss of the batch."""
        batch, n = batch.to(self.device), len(batch.examples)
        self.model.observe_weights()
        candidates = encode_in_shares(self.model.encode_candidates, batch.candidates, self.chunk_size)[batch.keys]
        contexts, mask = encode_own(self.model.encode_contexts, batch.contexts, self.chunk_size)

        def loss(target: Tensor, allowed: Tensor, mask: Tensor, contexts: Tensor, candidates: Tensor) -> Tensor:
            losses = []
            for a, b in [(contexts, candidates), *((cut(contexts), cut(candidates)) for cut in self.cuts)]:
                values = scores(a, b[None], mask)
                if self.weighting is not None:
                    values = self.weighting(values, batch.columns)
                losses.append(self.loss(values, target, allowed))
            return torch.stack(losses).mean() if self.cuts else losses[0]

        rows = (batch.targets, batch.allowed, mask, contexts)
        mean = mean_loss(loss, *rows, candidates=candidates, n_contexts=n, n_vectors=contexts.shape[1])
        yield Loss(mean, n)


@dataclass(frozen=True, slots=True)
class ListwiseStep:
    """Each context ranks its own list of candidates: the response and its negatives.

    Encoders encode every distinct candidate of a batch once; a Cross-encoder scores each pair.

    Args:
        model: any polyrank network; a Cross-encoder scores B x (1 + n_negatives) pairs.
        texts: its tokenized text policy.
        device: where to compute.
        negatives: the wrong candidates of each context.
        loss: of the scores of each list.
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
    loss: LossFunction = cross_entropy
    sigmoid: bool = False
    chunk_size: int | None = None
    stored: StoredTokens | None = None
    late: LateScorer | None = None

    def lists(self, rows: prepared.Positions, epoch: int) -> list[list[str]]:
        """The list of each context: the response, then its negatives."""
        return [
            [prepared.response_of(example), *self.negatives(position, example, epoch)] for position, example in rows
        ]

    def inputs(self, rows: prepared.Positions, lists: list[list[str]]) -> prepared.Lists:
        """The tokens of lists for this network."""
        if isinstance(self.model, CrossEncoder):
            return prepared.in_pairs(rows, lists, self.texts)
        return prepared.in_lists(rows, lists, texts=self.texts, stored=self.stored)

    def prepare(self, rows: prepared.Positions, epoch: int) -> prepared.Lists:
        """The lists and tokens of a batch."""
        return self.inputs(rows, self.lists(rows, epoch))

    def losses(self, batch: prepared.Lists, number: int) -> Iterator[Loss]:
        """The loss of the batch."""
        values, allowed = self.values(batch)
        yield Loss(first_is_right(self.loss, values, allowed), len(batch.examples))

    def values(self, lists: prepared.Lists) -> tuple[Tensor, Tensor]:
        """Scores ``[B, K]`` of lists, padded with zeros to the longest list, and their mask."""
        lists = lists.to(self.device)
        if self.late is not None:
            rows = lists.inputs.own.tolist() or [0]  # a process without contexts needs a graph too
            queries, allowed = [example.query for example in lists.examples], lists.allowed[rows]
            flat = self.late.joined_scores(queries, lists.lists, rows, self.chunk_size)
            scored = flat.new_zeros(allowed.shape).masked_scatter(allowed, flat)
            values = gathered(scored[: len(lists.inputs.own)], lists.inputs)
        elif isinstance(self.model, CrossEncoder):
            score: Callable[[Tokens], Tensor] = self.model
            values = gathered(encode_own(score, lists.inputs, self.chunk_size), lists.inputs)[lists.keys]
        else:
            assert isinstance(self.model, EncoderNetwork), "a network is a Cross-encoder or an encoder"
            assert lists.candidates is not None, "prepared for another network"
            if self.model.training:
                self.model.observe_weights()
            contexts, mask = encode_own(self.model.encode_contexts, lists.inputs, self.chunk_size)
            candidates = encode_in_shares(self.model.encode_candidates, lists.candidates, self.chunk_size)
            values = gathered(scores(contexts, candidates[lists.keys], mask), lists.inputs)
        if self.sigmoid and self.model.pairwise:
            values = values.sigmoid()
        return torch.where(lists.allowed, values, 0.0), lists.allowed


def first_is_right(loss: LossFunction, values: Tensor, allowed: Tensor) -> Tensor:
    """The loss of lists ``[B, K]`` whose first candidate is right."""
    return loss(values, torch.zeros(len(values), dtype=torch.int64, device=values.device), allowed)
