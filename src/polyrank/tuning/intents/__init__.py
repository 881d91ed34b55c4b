"""Intents: a small classifier on frozen encodings, with few-shot training and a threshold for out-of-scope texts."""

from polyrank.tuning.intents.classifier import IntentClassifier, Prediction, load_intents, save_intents
from polyrank.tuning.intents.head import Encoded, Head, HeadConfig, HeadFit, fit_head
from polyrank.tuning.intents.reading import IntentSplits, Utterance, read_intents
from polyrank.tuning.intents.train_intents import (
    GRID,
    IntentResult,
    few_shot,
    fit_threshold,
    held_out,
    split_off,
    train_intents,
)

__all__ = [
    "GRID",
    "Encoded",
    "Head",
    "HeadConfig",
    "HeadFit",
    "IntentClassifier",
    "IntentResult",
    "IntentSplits",
    "Prediction",
    "Utterance",
    "few_shot",
    "fit_head",
    "fit_threshold",
    "held_out",
    "load_intents",
    "read_intents",
    "save_intents",
    "split_off",
    "train_intents",
]
