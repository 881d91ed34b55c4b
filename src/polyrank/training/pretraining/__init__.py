"""Pre-training a transformer on unlabelled texts: masked words, and whether a response follows a context."""

from polyrank.training.pretraining.run import PretrainResult as PretrainResult, pretrain as pretrain
