"""Reads and writes Hugging Face folders, with weights in safetensors only. A model's code is never run."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from polyrank.errors import ArtifactError
from polyrank.storage.tensors import to_bytes
from polyrank.text import Subwords

CLASSIFIER = "AutoModelForSequenceClassification"


def read_pretrained_config(folder: Path) -> Any:
    """The configuration of a Hugging Face model folder.

    Raises:
        ArtifactError: transformers cannot read it.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library raises many kinds of errors
        raise _unreadable(folder, error) from error
    if (quantized := getattr(config, "quantization_config", None)) is not None:
        method = quantized.get("quant_method") if isinstance(quantized, dict) else None
        raise ArtifactError(
            f"{folder} has weights quantized by {method or 'another library'}, which polyrank does not read; choose the"
            " model without quantization"
        )
    if config.model_type in UNEVEN:
        raise ArtifactError(
            f"{folder} is of the type {config.model_type}, whose scores depend on the padding of a batch or on types of"
            " tokens that libraries treat differently; choose another model"
        )
    code = {name: value for name, value in (getattr(config, "auto_map", None) or {}).items() if name != "AutoTokenizer"}
    if code and config.model_type not in ADOPTED and getattr(config, "is_causal", True):
        raise ArtifactError(
            f"{folder} computes by code of its author ({next(iter(code.values()))}), and polyrank runs no code of"
            f" models; choose another model, or remove auto_map from its config.json if a plain {config.model_type} is"
            " meant"
        )
    return config


ENCODER_DECODERS = ("t5", "mt5", "umt5")  # the types of networks with an encoder that is used alone
ADOPTED = ("eurobert", "gte", "jina_embeddings_v3", "nomic_bert")  # whose authors' code transformers took over
# whose outputs depend on the padding of a batch or on types of tokens that tokenizers do not give alike
UNEVEN = ("canine", "convbert", "flaubert", "fnet", "nystromformer", "xlm", "yoso")


def encoder_class(config: Any) -> str:
    """The class of transformers that reads an encoder by its configuration."""
    return "AutoModelForTextEncoding" if config.model_type in ENCODER_DECODERS else "AutoModel"


def load_pretrained(folder: Path, config: Any, kind: str) -> nn.Module:
    """A network with its trained weights, in fp32.

    Args:
        folder: of the model.
        config: its configuration.
        kind: a class of transformers, such as "AutoModel".

    Raises:
        ArtifactError: transformers cannot read it, or the weights do not fit the network.
    """
    import transformers
    from transformers.utils import logging

    config.return_dict = True  # which a folder can turn off
    bar, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()  # a second bar would break polyrank's
    logging.set_verbosity_error()  # its report on weights is checked below
    try:
        network, report = getattr(transformers, kind).from_pretrained(
            str(folder),
            config=config,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
        )
    except Exception as error:
        raise _unreadable(folder, error) from error
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()
    unknown = {name for name in report["missing_keys"] if ".pooler." not in f".{name}" or kind == CLASSIFIER}
    if unknown or report["mismatched_keys"]:
        names = sorted(unknown) or [str(key) for key in report["mismatched_keys"]]
        raise ArtifactError(
            f"the weights in {folder} do not fit a {type(network).__name__} ({names[0]} is missing or has another"
            " shape); download the model again, and if that does not help, choose another"
        )
    return network  # type: ignore[no-any-return]  # untyped library


def _unreadable(folder: Path, error: Exception) -> ArtifactError:
    message = " ".join(str(error).split())
    remedy = "download the model again"
    if "trust_remote_code" in message or "model type" in message or "Unrecognized" in message:
        remedy = "polyrank runs no code of models; choose a model of a type that this version of transformers has"
    return ArtifactError(f"transformers cannot read {folder} ({type(error).__name__}: {message[:200]}); {remedy}")


def max_positions(network: nn.Module) -> int:
    """The longest input in tokens. RoBERTa and similar networks count positions from the padding id + 1."""
    config: Any = network.config
    positions = int(getattr(config, "max_position_embeddings", 512) or 512)
    for name, module in network.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return positions - module.padding_idx - 1
    return positions if positions > 0 else 512


def write_network(network: nn.Module, folder: Path) -> None:
    """Write config.json and model.safetensors."""
    config: Any = network.config
    once = {name for name, _ in (*network.named_parameters(), *network.named_buffers())}  # T5's words have two names
    tensors = {name: tensor for name, tensor in network.state_dict().items() if name in once}
    (folder / "model.safetensors").write_bytes(to_bytes(tensors, {"format": "pt"}))
    document = {**config.to_dict(), "architectures": [type(network).__name__], "dtype": "float32"}
    document.pop("_name_or_path", None)
    write_json(folder / "config.json", json.loads(json.dumps(document, default=str)))


def write_tokenizer(subwords: Subwords, folder: Path, max_tokens: int, *, segments: bool = False) -> None:
    """Write tokenizer.json and tokenizer_config.json.

    Args:
        subwords: the vocabulary.
        folder: must exist.
        max_tokens: the network's longest input.
        segments: whether the network has segment embeddings for the two texts of a pair.
    """
    write_json(folder / "tokenizer.json", subwords.with_boundaries())
    write_json(folder / "tokenizer_config.json", subwords.settings(max_tokens, segments=segments))


def write_json(path: Path, document: Any) -> None:
    """Write a JSON file, and create its folder."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False), "utf-8")
