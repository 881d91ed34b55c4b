"""Training: one loop, the steps it is given, checkpoints, and the recipe that ties them together."""

from polyrank.training.loop import FitResult, fit
from polyrank.training.recipe import RunResult, train
from polyrank.training.steps import InBatchStep, ListwiseStep, Step

__all__ = ["FitResult", "InBatchStep", "ListwiseStep", "RunResult", "Step", "fit", "train"]
