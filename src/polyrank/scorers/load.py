"""Scorers: a model bound to its text policy, device and precision, ready to rank.

Two narrow protocols. A Cross-encoder cannot honestly encode, so it is a Scorer only.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import torch

from polyrank.config.models import BiConfig, TextPolicy, model_to_dict
from polyrank.config.names import model_folder
from polyrank.devices import Precision, choose_device, choose_dtype
from polyrank.models import BiEncoder, CrossEncoder, EncoderNetwork, Network, new_model
from polyrank.models.artifacts import load_model
from polyrank.scorers.cross import CrossScorer
from polyrank.scorers.encoder import CosineScorer, EncoderScorer
from polyrank.text import Texts


def freeze(model: Network, dtype: torch.dtype) -> torch.dtype:
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


def load_scorer(
    path: str | Path, *, device: str = "auto", precision: Precision = "auto"
) -> EncoderScorer | CrossScorer:
    """A model folder, or "shipped:convert", as a Scorer, and as an Encoder unless it is a Cross-encoder.

    Raises:
        ArtifactError: the folder is damaged, missing or too new.
    """
    artifact = load_model(model_folder(path))
    return make_scorer(
        artifact.model,
        artifact.texts,
        fingerprint=artifact.fingerprint,
        device=device,
        precision=precision,
        frozen=True,
    )


def untuned_scorer(
    name: str, policy: TextPolicy | None = None, *, device: str = "auto", precision: Precision = "auto"
) -> EncoderScorer:
    """A backbone as it comes: its own reduction, cosine as the score. The baseline that fine-tuning must beat."""
    model, texts, config = new_model(
        BiConfig(backbone=name, shared_towers=True, output_scale=1.0), policy, seed=0, sample=()
    )
    assert isinstance(model, BiEncoder)
    chosen = choose_device(device)
    settings = {
        key: value for key, value in model_to_dict(config).items() if key != "backbone"
    }  # its path says nothing
    digest = hashlib.sha256(b"cosine" + json.dumps([settings, asdict(texts.policy)], sort_keys=True).encode())
    digest.update(texts.subwords.to_bytes())
    for _, weight in sorted(model.state_dict().items()):
        digest.update(weight.contiguous().numpy().tobytes())
    dtype = choose_dtype(precision, chosen)
    dtype = freeze(model, dtype)
    return CosineScorer(model.to(chosen), texts, fingerprint=digest.hexdigest(), device=chosen, dtype=dtype)
