"""Networks to scorers: ours, backbones as they come, and other people's models."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from polyrank.config.checked import to_dict
from polyrank.config.models import BiConfig, TextPolicy
from polyrank.devices.choice import Precision, choose_device, choose_dtype
from polyrank.errors import UsageError
from polyrank.loading.backbones import resolve_backbone
from polyrank.models import BiEncoder, CrossEncoder, EncoderNetwork, Network, new_model
from polyrank.models.artifacts import load_model
from polyrank.models.bert import BertConfig
from polyrank.models.foreign import PairEncoder, SentenceEncoder, build_foreign, describe
from polyrank.models.foreign.files import CLASSIFIER
from polyrank.models.pretrained import read_pretrained_config
from polyrank.scorers.cross import CrossScorer
from polyrank.scorers.encoder import CosineScorer, EncoderScorer
from polyrank.text import BackboneTexts, Texts, load_template_texts


def freeze(model: Network | SentenceEncoder | PairEncoder, dtype: torch.dtype) -> torch.dtype:
    """Make a model faster in bf16 for good, at the price that it can be neither trained nor saved.

    The backbones' weights are held in bf16, which beats converting them in every pass and takes half the memory; what
    is behind them stays fp32. Where only the first output is read, the last layer computes no other. In fp32 nothing
    changes: what is loaded scores bit for bit as what was saved.

    Args:
        model: to be changed.
        dtype: of the large products.

    Returns:
        The type that passes are still to be converted to: none, that is fp32, once the weights are in bf16. A ConveRT
        has weights of its own kind and is left as it is.
    """
    return torch.float32 if dtype != torch.float32 and model.hold_in_bf16() else dtype


def make_scorer(
    model: Network,
    texts: Texts,
    *,
    fingerprint: str = "",
    device: str = "auto",
    precision: Precision = "auto",
    frozen: bool = False,
) -> EncoderScorer | CrossScorer:
    """Bind a model to where and how it computes.

    Args:
        model, texts, fingerprint: of the artifact.
        device: "auto", "cpu" or "cuda".
        precision: "auto" is bf16 where the hardware is fast at it.
        frozen: the model will be neither trained nor saved, so it may be changed to be faster: in bf16 its weights are
            held in it, and last layers compute only what is read.
    """
    chosen = choose_device(device)
    dtype = choose_dtype(precision, chosen)
    model.to(chosen)
    if frozen:
        dtype = freeze(model, dtype)
    if isinstance(model, CrossEncoder):
        return CrossScorer(model, texts, fingerprint=fingerprint, device=chosen, dtype=dtype)
    assert isinstance(model, EncoderNetwork), "there is no third kind"
    return EncoderScorer(model, texts, fingerprint=fingerprint, device=chosen, dtype=dtype)


def saved_scorer(path: Path, *, device: str = "auto", precision: Precision = "auto") -> EncoderScorer | CrossScorer:
    """A model folder of ours as a Scorer, and as an Encoder unless it is a Cross-encoder.

    Raises:
        ArtifactError: the folder is damaged, missing or too new.
    """
    artifact = load_model(path)
    return make_scorer(
        artifact.model,
        artifact.texts,
        fingerprint=artifact.fingerprint,
        device=device,
        precision=precision,
        frozen=True,
    )


def untuned_scorer(
    name: str,
    policy: TextPolicy | None = None,
    *,
    device: str = "auto",
    precision: Precision = "auto",
    max_context_tokens: int | None = None,
    max_candidate_tokens: int | None = None,
) -> EncoderScorer:
    """A backbone as it comes: its own reduction, cosine as the score. The baseline that fine-tuning must beat.

    Args:
        name: of the backbone.
        policy: its text settings; None: the defaults, as far as the network can take them.
        device, precision: see ``make_scorer``.
        max_context_tokens, max_candidate_tokens: other budgets than the policy's.

    Raises:
        UsageError: it is a Cross-encoder, whose outputs mean nothing without its head.
    """
    folder = resolve_backbone(name).folder
    known = BertConfig.read(folder) or read_pretrained_config(folder)
    architecture = next(iter(getattr(known, "architectures", None) or ()), "")
    if architecture.endswith(CLASSIFIER):
        raise UsageError(f"{name} is a {architecture}, whose head untuned: leaves out; give {name} without untuned:")
    model, texts, config = new_model(
        BiConfig(backbone=name, shared_towers=True, output_scale=1.0), policy, seed=0, sample=()
    )
    assert isinstance(model, BiEncoder)
    assert isinstance(texts, BackboneTexts)
    if max_context_tokens or max_candidate_tokens:
        policy = texts.policy
        policy = replace(
            policy,
            max_context_tokens=max_context_tokens or policy.max_context_tokens,
            max_candidate_tokens=max_candidate_tokens or policy.max_candidate_tokens,
        )
        texts = BackboneTexts(texts.subwords, policy, texts.max_positions)
    settings = to_dict(config)
    del settings["backbone"]  # its path says nothing
    fingerprint = _fingerprint("cosine", settings, texts, model)
    chosen = choose_device(device)
    dtype = freeze(model.to(chosen), choose_dtype(precision, chosen))
    return CosineScorer(model, texts, fingerprint=fingerprint, device=chosen, dtype=dtype)


def foreign_scorer(
    folder: Path,
    *,
    device: str = "auto",
    precision: Precision = "auto",
    max_context_tokens: int | None = None,
    max_candidate_tokens: int | None = None,
) -> EncoderScorer | CrossScorer:
    """A model of Hugging Face or sentence-transformers, with the scores that it has there.

    Args:
        folder: of the model.
        device: see ``make_scorer``.
        precision: "auto" is fp32, so that scores are the library's.
        max_context_tokens, max_candidate_tokens: budgets; None: what the model's files say.

    Raises:
        ArtifactError: it is damaged, or cannot be scored here; the message says why.
        ConfigError: a budget is outside what the network takes.
    """
    description = describe(folder)
    model = build_foreign(description)
    texts = load_template_texts(
        description.transformer,
        model.max_positions,
        max_tokens=description.max_tokens,
        max_context_tokens=max_context_tokens or description.max_context_tokens,
        max_candidate_tokens=max_candidate_tokens or description.max_candidate_tokens,
        lower_case=description.lower_case,
        prompts=description.prompts,
    )
    layers = [[layer.kind, layer.settings] for layer in description.layers]
    settings = {"layers": layers, "output": description.output, "prompts": description.prompts}
    fingerprint = _fingerprint(description.kind, settings, texts, model)
    chosen = choose_device(device)
    dtype = freeze(model.to(chosen), choose_dtype("fp32" if precision == "auto" else precision, chosen))
    kind: Any = CrossScorer if isinstance(model, PairEncoder) else EncoderScorer
    scorer: EncoderScorer | CrossScorer = kind(model, texts, fingerprint=fingerprint, device=chosen, dtype=dtype)
    return scorer


def _fingerprint(kind: str, settings: Mapping[str, Any], texts: Texts, model: nn.Module) -> str:
    """Of all that decides the scores of a model without a sealed config.json."""
    digest = hashlib.sha256(kind.encode() + json.dumps([settings, asdict(texts.policy)], sort_keys=True).encode())
    digest.update(texts.subwords.to_bytes())
    for _, weight in sorted(model.state_dict().items()):
        digest.update(weight.contiguous().numpy().tobytes())
    return digest.hexdigest()
