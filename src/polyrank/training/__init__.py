"""Training: one loop, the steps it is given, checkpoints, and the recipe that ties them together."""

from polyrank.training.fitting import fit_together as fit_together
from polyrank.training.learner import Loss as Loss
from polyrank.training.loop import FitResult as FitResult, Step as Step
from polyrank.training.mutual import DistillStep as DistillStep, Imitation as Imitation, MutualStep as MutualStep
from polyrank.training.run import RunResult as RunResult, train as train
from polyrank.training.steps import InBatchStep as InBatchStep, ListwiseStep as ListwiseStep
