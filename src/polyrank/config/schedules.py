"""Learning-rate schedules: one class each, with only the keys that it uses."""

import math
from dataclasses import dataclass
from typing import ClassVar

from polyrank.config.checked import Fraction, NonNegativeFloat, NonNegativeInt, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(Settings):
    """A linear warm-up, followed by the curve of ``after_warmup``.

    Args:
        warmup_steps: length of the linear warm-up; at most half of the training.
    """

    warmup_steps: NonNegativeInt = 100

    def after_warmup(self, step: int, warmup: int, n_steps: int, lr: float) -> float:
        """The factor on the learning rate in one step.

        Args:
            step: counted from 0, at least ``warmup``.
            warmup: steps of the warm-up.
            n_steps: steps of the training.
            lr: the peak learning rate.
        """
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSchedule(Schedule):
    """After the warm-up the rate falls linearly and reaches zero after the last step."""

    kind: ClassVar[str] = "linear"

    def after_warmup(self, step: int, warmup: int, n_steps: int, lr: float) -> float:
        """See ``Schedule``.

        >>> [LinearSchedule().after_warmup(step, 2, 6, 1.0) for step in range(2, 6)]
        [1.0, 0.75, 0.5, 0.25]
        """
        return max(0.0, (n_steps - step) / max(1, n_steps - warmup))


@dataclass(frozen=True, slots=True, kw_only=True)
class CosineSchedule(Schedule):
    """After the warm-up the rate falls along half a period of a cosine.

    Args:
        final_lr: the rate of the last step.
    """

    kind: ClassVar[str] = "cosine"

    final_lr: NonNegativeFloat = 0.0

    def after_warmup(self, step: int, warmup: int, n_steps: int, lr: float) -> float:
        """See ``Schedule``.

        >>> [round(CosineSchedule(final_lr=0.5).after_warmup(step, 0, 3, 1.0), 3) for step in range(3)]
        [1.0, 0.75, 0.5]
        """
        last = self.final_lr / lr if lr else 0.0
        done = (step - warmup) / max(1, n_steps - 1 - warmup)
        return last + (1 - last) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class InverseSqrtSchedule(Schedule):
    """After the warm-up the rate falls with 1 / sqrt(step): ``min(step / warmup, sqrt(warmup / step))``, from step 1.

    Source: Vaswani et al., Attention Is All You Need (2017), section 5.3, where the peak is 1 / sqrt(dim * warmup).
    """

    kind: ClassVar[str] = "inverse_sqrt"

    def after_warmup(self, step: int, warmup: int, n_steps: int, lr: float) -> float:
        """See ``Schedule``.

        >>> [InverseSqrtSchedule().after_warmup(step, 4, 100, 1.0) for step in (3, 15, 63)]
        [1.0, 0.5, 0.25]
        """
        return math.sqrt(max(1, warmup) / (step + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlateauSchedule(Schedule):
    """After the warm-up the rate stays constant until the validation loss stops improving, then shrinks.

    Args:
        factor: multiplies the rate at each reduction.
        patience: validations without an improvement before a reduction.
    """

    kind: ClassVar[str] = "plateau"

    factor: Fraction = 0.4
    patience: NonNegativeInt = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantSchedule(Schedule):
    """After the warm-up the rate stays constant."""

    kind: ClassVar[str] = "constant"


ScheduleConfig = LinearSchedule | CosineSchedule | InverseSqrtSchedule | PlateauSchedule | ConstantSchedule
PLATEAU = PlateauSchedule()
