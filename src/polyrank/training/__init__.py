"""Training: one loop, the steps it is given, checkpoints, and the recipe that ties them together."""

from polyrank.training.fitting import fit_together
from polyrank.training.learner import Loss
from polyrank.training.loop import FitResult, Step
from polyrank.training.mutual import DistillStep, Imitation, MutualStep
from polyrank.training.run import RunResult, train
from polyrank.training.steps import InBatchStep, ListwiseStep

__all__ = [
    "DistillStep",
    "FitResult",
    "Imitation",
    "InBatchStep",
    "ListwiseStep",
    "Loss",
    "MutualStep",
    "RunResult",
    "Step",
    "fit_together",
    "train",
]
