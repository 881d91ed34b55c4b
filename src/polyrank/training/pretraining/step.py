"""Pre-training as a batch source and a step of the training loop: pairs of texts in parts, and their losses.

Masks and random responses are functions of (seed, step).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from polyrank.config.pretrain import Objective, PretrainRecipe
from polyrank.devices import distributed
from polyrank.devices.choice import choose_dtype
from polyrank.models.pretraining import PretrainingNetwork
from polyrank.text import Subwords
from polyrank.training.learner import Loss
from polyrank.training.pretraining.batches import Batches, Chosen, MaskedPairs, Masking, make_batch
from polyrank.training.pretraining.objectives import OBJECTIVES, LossSum, compute_losses, count_targets, figures
from polyrank.training.pretraining.tokens import Pairs

VALID_SEED = 20191202  # of masks and random responses in validation: the same for every run


class PairRows(NamedTuple):
    """The pairs of a batch, and its place: the position among the batches of its turn of objectives."""

    turn: int
    position: int
    chosen: Chosen


class PairBatch(NamedTuple):
    """A batch's objectives, and its pairs in parts that are computed one after another."""

    objectives: tuple[Objective, ...]
    parts: list[MaskedPairs]


class PairBatches:
    """Pairs as a batch source, with batches for each of the objectives in turns.

    Args:
        pairs: to train on.
        subwords: their vocabulary.
        recipe: budgets, masks and objectives.
        seed: of all choices.
    """

    ahead = True

    def __init__(self, pairs: Pairs, subwords: Subwords, recipe: PretrainRecipe, seed: int) -> None:
        self.train, self.text, self.seed = recipe.train, recipe.text, seed
        self.pairs, self.subwords = pairs, subwords
        self.n_steps = recipe.train.steps
        self.turns = OBJECTIVES[self.train.objectives]
        separator = subwords.id_of(turn_separator(subwords, recipe.text.turn_separator))
        self.masking = Masking.of(subwords, separator)
        self.orders = [
            Batches(
                pairs,
                recipe.text,
                random_half="next_utterance" in objectives,  # masked words alone are learned from true pairs
                batch_tokens=self.train.batch_tokens,
                window=self.train.length_window,
                seed=(seed, number),
            )
            for number, objectives in enumerate(self.turns)
        ]

    def rows(self, number: int) -> tuple[PairRows, int]:
        """The pairs of 0-based update ``number``; the epoch is part of them."""
        position, turn = divmod(number, len(self.turns))
        return PairRows(turn, position, self.orders[turn].at(position)), 0

    def counts(self, rows: PairRows) -> dict[str, int]:
        """The number of tokens, without padding."""
        return {"n_tokens": int(rows.chosen.lengths.sum())}

    def check(self, done: int) -> dict[str, float] | None:
        """An empty table if a validation is due after ``done`` updates; else None."""
        return {} if done % self.train.evaluate_steps == 0 or done == self.n_steps else None

    def too_large(self, rows: PairRows) -> str:
        """The error, with a setting that needs less memory."""
        n_tokens = len(rows.chosen.lengths) * int(rows.chosen.lengths.max())
        smaller = (self.train.micro_batch_tokens or self.train.batch_tokens) // 2
        return (
            f"{n_tokens:,} tokens do not fit into memory; try train.micro_batch_tokens={smaller}, which leaves the"
            " updates as they are"
        )

    def epoch(self, turn: int) -> list[MaskedPairs]:
        """The parts of all batches in the first epoch of one turn."""
        rows = [PairRows(turn, position, chosen) for position, chosen in enumerate(self.orders[turn].epoch(0))]
        return [part for one in rows for part in self.parts(one)]

    def parts(self, rows: PairRows) -> list[MaskedPairs]:
        """The tokens of a batch, in parts that are computed one after another."""
        generator = np.random.Generator(np.random.PCG64((self.seed, rows.turn, rows.position, 1)))
        masking = self.masking if "masked_lm" in self.turns[rows.turn] else None
        budget, n = self.train.micro_batch_tokens, distributed.world_size()
        if n > 1:  # at least one part per process; masks do not depend on the parts
            budget = min(budget or self.train.batch_tokens, max(self.train.batch_tokens // n, self.text.max_tokens))
        batch = make_batch(self.pairs, rows.chosen, self.text, self.subwords, masking, generator)
        return batch.parts(rows.chosen.lengths, budget)


def turn_separator(subwords: Subwords, name: str) -> str:
    """The token between two turns: ``name``, or the end token if ``name`` is "[SEP]" and the vocabulary lacks it."""
    return subwords.names["end"] if name == "[SEP]" and subwords.first_known([name]) is None else name


@dataclass(frozen=True, slots=True)
class PretrainStep:
    """The losses of pre-training, as means over a batch whose parts the processes share.

    Args:
        network: to train, on its device.
        device: where to compute.
        batches: make the tokens of a batch.
    """

    network: PretrainingNetwork
    device: torch.device
    batches: PairBatches

    def prepare(self, rows: PairRows, epoch: int) -> PairBatch:
        """The tokens of a batch, some of them masked."""
        return PairBatch(self.batches.turns[rows.turn], self.batches.parts(rows))

    def losses(self, batch: PairBatch, number: int) -> Iterator[Loss]:
        """The loss of the network, in parts."""
        counts = [count_targets(part) for part in batch.parts]
        # at least 1, so that the mean of no losses is 0
        n = {name: max(1, sum(count[name] for count in counts)) for name in batch.objectives}
        losses: list[dict[Objective, LossSum]] = []
        mean = torch.zeros((), device=self.device, requires_grad=True)  # a process may have no part
        for part in _own_parts(batch.parts):
            if losses:
                yield Loss(mean, last=False)
            losses.append(compute_losses(self.network, part.to(self.device), batch.objectives))
            mean = torch.stack([result.loss / n[name] for name, result in losses[-1].items()]).sum()
        yield Loss(mean, figures=figures(_gather(losses)))


def validate(network: PretrainingNetwork, batches: PairBatches, device: torch.device) -> dict[str, float]:
    """Losses and accuracies over all pairs, always with the same masks and random responses; "loss" is their sum."""
    network.eval()
    dtype = choose_dtype(batches.train.precision, device)
    values: dict[str, float] = {}
    for turn, objectives in enumerate(batches.turns):
        with torch.inference_mode(), torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            losses = [compute_losses(network, part.to(device), objectives) for part in _own_parts(batches.epoch(turn))]
        values |= figures(_gather(losses))
    return {"loss": sum(value for name, value in values.items() if name.endswith("_loss")), **values}


def _own_parts(parts: Sequence[MaskedPairs]) -> Sequence[MaskedPairs]:
    """The parts that this process computes. Neighbours have similar lengths, so every process has similar work."""
    return parts[distributed.rank() :: distributed.world_size()]


def _gather(losses: Sequence[dict[Objective, LossSum]]) -> list[dict[Objective, LossSum]]:
    """The losses of all processes, in the order of the parts; no process has more parts than rank 0."""
    plain = [{name: replace(total, loss=total.loss.detach().cpu()) for name, total in part.items()} for part in losses]
    shares = distributed.all_gather(plain)
    return [share[i] for i in range(len(shares[0])) for share in shares if i < len(share)]
