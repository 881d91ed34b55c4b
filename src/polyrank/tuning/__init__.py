"""The fit of a ranker on frozen models: selection of terms, weights, threshold; and classifiers of intents."""

from polyrank.tuning.tune import Tuning as Tuning, tune as tune
