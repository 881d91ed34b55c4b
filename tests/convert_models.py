"""Small ConveRTs for tests, one per ablation and setting."""

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyrank.config.models import ConvertConfig, ConvertText
from polyrank.models import Convert, new_model
from polyrank.models.losses import cross_entropy
from polyrank.records import Context, Example
from polyrank.text import ConvertTexts
from polyrank.training.convert_step import ConvertStep
from polyrank.training.steps import InBatchStep

CORPUS = ["my wifi is down", "the router light is red", "please restart it", "hello, did that help? thanks!"] * 3
TINY = ConvertConfig(
    embedding_dim=16,
    attention_dim=4,
    ffn_dim=24,
    spans=(1, 3, 48),
    position_periods=(5, 3),
    side_dim=20,
    output_dim=12,
    multi_context=True,
)
POLICY = ConvertText(min_count=3, n_buckets=4, max_earlier_tokens=20)
CONTEXTS = [
    Context(("hello", "my wifi is down, what should I do with the router?")),
    Context(("hi",)),
    Context(("the light is red", "did that help", "it is down")),
    Context(("thanks", "")),
]
REPLIES = ["please restart it", "thanks!", "is the light on the router red or did that help?", "", "猫"]
CPU = torch.device("cpu")
Array = NDArray[np.float64]

ABLATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "A multi-head": ({"n_heads": 2}, {}),
    "B no relative bias": ({"relative_bias": False}, {}),
    "C equal spans": ({"spans": (48, 48, 48)}, {}),
    "D one bucket": ({}, {"n_buckets": 1}),
    "E one reduction": ({"reduction_heads": 1}, {}),
    "F no skips": ({"side_skips": False}, {}),
}
OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no sqrt(d)": ({"scale_embeddings": False}, {}),
    "default": ({}, {}),
    "mean": ({"combination": "mean"}, {}),
    "single": ({"multi_context": False}, {}),
    "fp32": ({"quantization": "none"}, {}),
    "bfloat16": ({"quantization": "bfloat16"}, {}),
    "no projection": ({"side_dim": 32, "output_dim": 32}, {}),
    "one layer": ({"spans": (2,), "side_layers": 1}, {}),
}


def make(seed: int = 1, policy: ConvertText = POLICY, **changes: Any) -> tuple[Convert, ConvertTexts, ConvertConfig]:
    config = dataclasses.replace(TINY, **changes)
    if not config.multi_context:
        policy = dataclasses.replace(policy, max_earlier_tokens=ConvertText().max_earlier_tokens)
    model, texts, resolved = new_model(config, policy, seed=seed, sample=(), corpus=CORPUS)
    assert isinstance(model, Convert)
    assert isinstance(texts, ConvertTexts)
    assert isinstance(resolved, ConvertConfig)
    with torch.no_grad():
        # biases and norms start at 0 and 1; other values reveal mistakes
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model, texts, resolved


BATCH = [
    (0, Example(("hello", "my wifi is down"), ("please restart it",), (0,))),
    (1, Example(("the light is red", "it is down"), ("did that help?",), (0,))),
    (2, Example(("thanks",), ("hello",), (0,))),
]


def step_of(model: Convert, texts: ConvertTexts, **changes: Any) -> ConvertStep:
    loss = partial(cross_entropy, smoothing=changes.pop("smoothing", 0.2))
    of_step = {key: changes.pop(key) for key in ("scale_steps", "summed", "range_steps") if key in changes}
    in_batch = InBatchStep(model, texts, CPU, loss, **changes)
    return ConvertStep(model, in_batch, **{"scale_steps": 4, "range_steps": 2, **of_step})
