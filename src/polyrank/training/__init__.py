"""Training: one loop, the steps it is given, checkpoints, and the recipe that ties them together."""

from polyrank.training.fitting import FitResult, fit_together, phased
from polyrank.training.mutual import DistillStep, Imitation, MutualStep
from polyrank.training.run import RunResult, train
from polyrank.training.steps import InBatchStep, ListwiseStep, Step

__all__ = [
    "DistillStep",
    "FitResult",
    "Imitation",
    "InBatchStep",
    "ListwiseStep",
    "MutualStep",
    "RunResult",
    "Step",
    "fit_together",
    "phased",
    "train",
]
