"""Pre-training of a transformer on texts without labels: masked words, and whether a response follows."""

from polyrank.training.pretraining.run import PretrainFit, PretrainResult, pretrain

__all__ = ["PretrainFit", "PretrainResult", "pretrain"]
