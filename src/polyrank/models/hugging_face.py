"""Writing a network and its vocabulary as files that the Hugging Face libraries read."""

import json
from pathlib import Path
from typing import Any

from torch import nn

from polyrank.storage.tensors import to_bytes
from polyrank.text import Subwords


def write_network(network: nn.Module, folder: Path) -> None:
    """Write config.json and model.safetensors."""
    config: Any = network.config
    (folder / "model.safetensors").write_bytes(to_bytes(network.state_dict(), {"format": "pt"}))
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
