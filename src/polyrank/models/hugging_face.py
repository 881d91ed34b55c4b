"""A network and its vocabulary as files that the libraries of Hugging Face read. Written by hand, file by file."""

import json
from pathlib import Path
from typing import Any

from torch import nn

from polyrank.storage.tensors import to_bytes
from polyrank.text import Subwords


def write_network(network: nn.Module, folder: Path) -> None:
    """config.json and model.safetensors."""
    config: Any = network.config
    (folder / "model.safetensors").write_bytes(to_bytes(network.state_dict(), {"format": "pt"}))
    document = {**config.to_dict(), "architectures": [type(network).__name__], "dtype": "float32"}
    document.pop("_name_or_path", None)
    write_json(folder / "config.json", json.loads(json.dumps(document, default=str)))


def write_tokenizer(subwords: Subwords, folder: Path, max_tokens: int, *, segments: bool = False) -> None:
    """tokenizer.json and tokenizer_config.json.

    Args:
        subwords: the vocabulary.
        folder: is there.
        max_tokens: the longest text that the network takes.
        segments: whether it is told which text of a pair a token is of.
    """
    write_json(folder / "tokenizer.json", subwords.with_boundaries())
    write_json(folder / "tokenizer_config.json", subwords.settings(max_tokens, segments=segments))


def write_json(path: Path, document: Any) -> None:
    """A document of one of those files; its folder is made."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False), "utf-8")
