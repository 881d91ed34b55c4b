"""Intents: a small classifier on frozen encodings, with few-shot training and a threshold for out-of-scope texts."""

from polyrank.tuning.intents.classifier import (
    IntentClassifier as IntentClassifier,
    Prediction as Prediction,
    load_intents as load_intents,
    save_intents as save_intents,
)
from polyrank.tuning.intents.head import (
    Encoded as Encoded,
    Head as Head,
    HeadConfig as HeadConfig,
    HeadFit as HeadFit,
    fit_head as fit_head,
)
from polyrank.tuning.intents.reading import (
    IntentSplits as IntentSplits,
    Utterance as Utterance,
    read_intents as read_intents,
)
from polyrank.tuning.intents.train_intents import (
    GRID as GRID,
    IntentResult as IntentResult,
    few_shot as few_shot,
    fit_threshold as fit_threshold,
    held_out as held_out,
    split_off as split_off,
    train_intents as train_intents,
)
