"""Intents: a small classifier on frozen encodings, with few-shot training and a threshold for out-of-scope texts."""

from polyrank.tuning.intents.classifier import (
    IntentClassifier,
    Prediction,
    load_intents,
    open_encoder,
    save_intents,
)
from polyrank.tuning.intents.confusion import confusion, most_confused, per_intent
from polyrank.tuning.intents.encoding import encode, read_layer
from polyrank.tuning.intents.head import Grid, Head, HeadConfig, fit_head, search
from polyrank.tuning.intents.plots import plot_confusion
from polyrank.tuning.intents.reading import IntentSplits, Utterance, read_intents, read_utterances
from polyrank.tuning.intents.rejection import Rejection, calibrate_rejection, evaluate_rejection, read_aim
from polyrank.tuning.intents.train_intents import IntentResult, few_shot, held_out, split_off, train_intents

__all__ = [
    "Grid",
    "Head",
    "HeadConfig",
    "IntentClassifier",
    "IntentResult",
    "IntentSplits",
    "Prediction",
    "Rejection",
    "Utterance",
    "calibrate_rejection",
    "confusion",
    "encode",
    "evaluate_rejection",
    "few_shot",
    "fit_head",
    "held_out",
    "load_intents",
    "most_confused",
    "open_encoder",
    "per_intent",
    "plot_confusion",
    "read_aim",
    "read_intents",
    "read_layer",
    "read_utterances",
    "save_intents",
    "search",
    "split_off",
    "train_intents",
]
