"""How a learning rate changes in a training: each schedule a class of its own, with the keys that it reads."""

import math
from dataclasses import dataclass
from typing import ClassVar

from polyrank.config.checked import NotNegative, Settings, Share, Whole


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSchedule(Settings):
    """After the warm-up the rate falls in a line, to zero behind the last step.

    Args:
        warmup_steps: linear warm-up; at most half of the training.
    """

    kind: ClassVar[str] = "linear"

    warmup_steps: Whole = 100

    def after_warmup(self, step: int, warmup: int, n_steps: int, lr: float) -> float:
        """The factor on the learning rate ``lr`` in 0-based ``step`` of ``n_steps``, ``warmup`` of which are behind.

        >>> [LinearSchedule().after_warmup(step, 2, 6, 1.0) for step in range(2, 6)]
        [1.0, 0.75, 0.5, 0.25]
        """
        return max(0.0, (n_steps - step) / max(1, n_steps - warmup))


@dataclass(frozen=True, slots=True, kw_only=True)
class CosineSchedule(Settings):
    """After the warm-up the rate falls by half a turn of a cosine.

    Args:
        warmup_steps: linear warm-up; at most half of the training.
        final_lr: the rate of the last step.
    """

    kind: ClassVar[str] = "cosine"

    warmup_steps: Whole = 100
    final_lr: NotNegative = 0.0

    def after_warmup(self, step: int, warmup: int, n_steps: int, lr: float) -> float:
        """As for ``LinearSchedule``.

        >>> [round(CosineSchedule(final_lr=0.5).after_warmup(step, 0, 3, 1.0), 3) for step in range(3)]
        [1.0, 0.75, 0.5]
        """
        last = self.final_lr / lr if lr else 0.0
        done = (step - warmup) / max(1, n_steps - 1 - warmup)
        return last + (1 - last) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class InverseSqrtSchedule(Settings):
    """After the warm-up the rate falls with 1 / sqrt(step): ``min(step / warmup, sqrt(warmup / step))``, from step 1.

    Args:
        warmup_steps: linear warm-up; at most half of the training.

    Source: Vaswani et al., Attention Is All You Need (2017), section 5.3, where the peak is 1 / sqrt(dim * warmup).
    """

    kind: ClassVar[str] = "inverse_sqrt"

    warmup_steps: Whole = 100

    def after_warmup(self, step: int, warmup: int, n_steps: int, lr: float) -> float:
        """As for ``LinearSchedule``.

        >>> [InverseSqrtSchedule().after_warmup(step, 4, 100, 1.0) for step in (3, 15, 63)]
        [1.0, 0.5, 0.25]
        """
        return math.sqrt(max(1, warmup) / (step + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlateauSchedule(Settings):
    """After the warm-up the rate stays until the validation loss stalls, and then shrinks.

    Args:
        warmup_steps: linear warm-up; at most half of the training.
        factor: the rate is multiplied by this.
        patience: checks without gain that are forgiven.
    """

    kind: ClassVar[str] = "plateau"

    warmup_steps: Whole = 100
    factor: Share = 0.4
    patience: Whole = 0

    def after_warmup(self, step: int, warmup: int, n_steps: int, lr: float) -> float:
        """1; what validation says comes on top."""
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantSchedule(Settings):
    """After the warm-up the rate stays.

    Args:
        warmup_steps: linear warm-up; at most half of the training.
    """

    kind: ClassVar[str] = "constant"

    warmup_steps: Whole = 100

    def after_warmup(self, step: int, warmup: int, n_steps: int, lr: float) -> float:
        """1."""
        return 1.0


ScheduleConfig = LinearSchedule | CosineSchedule | InverseSqrtSchedule | PlateauSchedule | ConstantSchedule
PLATEAU = PlateauSchedule()
