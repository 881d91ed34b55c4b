"""Pre-training as a batch source and a step of the one loop: pairs of texts in parts, and their losses.

What is masked and drawn is a function of (seed, step).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from polyrank.config.pretraining import Objective, PretrainRecipe
from polyrank.devices import processes
from polyrank.devices.choice import choose_dtype
from polyrank.models.pretraining import PretrainingNetwork
from polyrank.text import Subwords
from polyrank.training.learner import LossParts
from polyrank.training.pretraining.batches import Batch, Batches, Masking, make_batch
from polyrank.training.pretraining.objectives import OBJECTIVES, StepScalars, counts, figures, tell
from polyrank.training.pretraining.tokens import Pairs

VALID_SEED = 20191202  # of masks and random responses in validation: the same for every run


class PairBatch(NamedTuple):
    """Pairs in parts that are computed one after another, and what is learnt from them."""

    objectives: tuple[Objective, ...]
    parts: list[Batch]


class Reading:
    """Pairs as batches for the objectives in turns: the loop's source.

    Args:
        pairs: to read.
        subwords: their vocabulary.
        recipe: budgets, masks and objectives.
        seed: of all choices.
    """

    def __init__(self, pairs: Pairs, subwords: Subwords, recipe: PretrainRecipe, seed: int) -> None:
        self.train, self.text, self.seed = recipe.train, recipe.text, seed
        self.pairs, self.subwords = pairs, subwords
        self.n_steps = recipe.train.steps
        self.turns = OBJECTIVES[self.train.objectives]
        separator = subwords.id_of(separator_of(subwords, recipe.text.turn_separator))
        self.masking = Masking.of(subwords, separator)
        self.orders = [
            Batches(
                pairs,
                recipe.text,
                random_half="next_utterance" in objectives,  # words alone are learnt from true pairs
                batch_tokens=self.train.batch_tokens,
                window=self.train.length_window,
                seed=(seed, number),
            )
            for number, objectives in enumerate(self.turns)
        ]

    def batch(self, number: int) -> PairBatch:
        """What the batch of 0-based update ``number`` is for, and the batch in its parts."""
        position, turn = divmod(number, len(self.turns))
        return PairBatch(self.turns[turn], self._parts(turn, position))

    def counts(self, batch: PairBatch) -> dict[str, int]:
        """Its tokens, without padding."""
        return {"n_tokens": sum(int(part.tokens.mask.sum()) for part in batch.parts)}

    def check(self, done: int) -> dict[str, float] | None:
        """Empty where a validation is due after ``done`` updates."""
        return {} if done % self.train.evaluate_steps == 0 or done == self.n_steps else None

    def too_large(self, batch: PairBatch) -> str:
        """The setting that needs less memory."""
        n_tokens = sum(part.tokens.ids.numel() for part in batch.parts)
        smaller = (self.train.micro_batch_tokens or self.train.batch_tokens) // 2
        return (
            f"{n_tokens:,} tokens do not fit into memory; try train.micro_batch_tokens={smaller}, which changes no"
            " update"
        )

    def epoch(self, turn: int) -> list[Batch]:
        """The parts of all batches of the first epoch of one turn's objectives."""
        return [part for position in range(self.orders[turn].n_first()) for part in self._parts(turn, position)]

    def _parts(self, turn: int, position: int) -> list[Batch]:
        generator = np.random.Generator(np.random.PCG64((self.seed, turn, position, 1)))
        masking = self.masking if "masked_lm" in self.turns[turn] else None
        chosen, budget, n = self.orders[turn].at(position), self.train.micro_batch_tokens, processes.count()
        if n > 1:  # each has a part at least, and what is masked does not depend on parts
            budget = min(budget or self.train.batch_tokens, max(self.train.batch_tokens // n, self.text.max_tokens))
        batch = make_batch(self.pairs, chosen, self.text, self.subwords, masking, generator)
        return batch.parts(chosen.lengths, budget)


def separator_of(subwords: Subwords, name: str) -> str:
    """The token between two turns: of vocabularies without "[SEP]" the one that ends a text."""
    return subwords.names["end"] if name == "[SEP]" and subwords.known([name]) is None else name


@dataclass(frozen=True, slots=True)
class PretrainStep:
    """The losses of pre-training, means over a batch, which the processes of a run share.

    Args:
        network: that learns, on its device.
        device: where to compute.
    """

    network: PretrainingNetwork
    device: torch.device

    def losses(self, batch: PairBatch, number: int) -> Iterator[LossParts]:
        """The loss of the one network."""
        del number
        yield self._loss(batch)

    def _loss(self, batch: PairBatch) -> LossParts:
        n = {name: sum(counts(part)[name] for part in batch.parts) for name in batch.objectives}
        told: list[dict[Objective, StepScalars]] = []
        for part in _own(batch.parts):
            results = tell(self.network, part.to(self.device), batch.objectives)
            yield torch.stack([result.loss / n[name] for name, result in results.items()]).sum()
            told.append(results)
        return figures(_of_all(told))


def validate(network: PretrainingNetwork, reading: Reading, device: torch.device) -> dict[str, float]:
    """Losses and accuracies over all pairs, always with the same masks and random responses; "loss" is their sum."""
    network.eval()
    dtype = choose_dtype(reading.train.precision, device)
    values: dict[str, float] = {}
    for turn, objectives in enumerate(reading.turns):
        with torch.inference_mode(), torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            told = [tell(network, part.to(device), objectives) for part in _own(reading.epoch(turn))]
        values |= figures(_of_all(told))
    return {"loss": sum(value for name, value in values.items() if name.endswith("_loss")), **values}


def _own(parts: Sequence[Batch]) -> Sequence[Batch]:
    """Those that this process computes: of like length, as neighbours are, each has as many."""
    return parts[processes.number() :: processes.count()]


def _of_all(told: Sequence[dict[Objective, StepScalars]]) -> list[dict[Objective, StepScalars]]:
    """What every process was told, in the order of the parts; the first has no fewer than others."""
    plain = [{name: replace(own, loss=own.loss.detach().cpu()) for name, own in part.items()} for part in told]
    shares = processes.gathered(plain)
    return [share[i] for i in range(len(shares[0])) for share in shares if i < len(share)]
