"""BERT's two heads on a backbone, for pre-training: the word of a masked token, and whether a response follows.

Shapes: B pairs, T tokens, P masked tokens, D outputs, E word embeddings, V words.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyrank.config.pretrain import ContinuedModel, ScratchModel
from polyrank.errors import ConfigError
from polyrank.loading.backbones import resolve_backbone
from polyrank.models.backbone import Backbone, load_backbone
from polyrank.models.bert import BertConfig, BertModel, draw_as_bert
from polyrank.models.build import grow_embeddings
from polyrank.models.hugging_face import write_network, write_tokenizer
from polyrank.models.network import Network, Trunk
from polyrank.storage.durable import new_folder
from polyrank.text import Subwords, Tokens, load_subwords

POOLING = "1_Pooling/config.json"
BACKBONE_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "1_Pooling")
"""The files of a pre-trained backbone's folder."""


class PretrainingNetwork(Network):
    """A backbone with heads that share its word embeddings.

    Args:
        backbone: any Hugging Face encoder.

    Source: Devlin et al., BERT (NAACL 2019), section 3.1.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        n_words, word_dimension = self._words(backbone).shape
        self.backbone = backbone
        self.transform = nn.Linear(backbone.dimension, word_dimension)
        self.norm = nn.LayerNorm(word_dimension, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(n_words))
        self.pooler = nn.Linear(backbone.dimension, backbone.dimension)
        self.relationship = nn.Linear(backbone.dimension, 2)
        for layer in (self.transform, self.pooler, self.relationship):
            draw_as_bert(layer)

    @staticmethod
    def _words(backbone: Backbone) -> Tensor:
        words: Any = backbone.embeddings()
        return words.weight  # type: ignore[no-any-return]

    def word_logits(self, outputs: Tensor) -> Tensor:
        """Scores ``[P, V]`` of the words for outputs ``[P, D]`` of masked tokens."""
        return F.linear(self.norm(F.gelu(self.transform(outputs))), self._words(self.backbone), self.bias)

    def pair_logits(self, outputs: Tensor) -> Tensor:
        """Scores ``[B, 2]`` from outputs ``[B, T, D]``: the response follows, and it is random."""
        return self.relationship(torch.tanh(self.pooler(outputs[:, 0])))  # type: ignore[no-any-return]

    def forward(self, tokens: Tokens) -> Tensor:
        """Token outputs ``[B, T, D]``."""
        return self.backbone(tokens)  # type: ignore[no-any-return]

    def shape(self) -> dict[str, Any]:
        """The backbone's configuration."""
        return dict(self.backbone.config.to_dict())

    def trunks(self) -> Sequence[Trunk]:
        """The backbone."""
        return [self.backbone]

    def new_parameters(self) -> list[nn.Parameter]:
        """The heads."""
        own = {id(parameter) for parameter in self.backbone.parameters()}
        return [parameter for parameter in self.parameters() if id(parameter) not in own]


def new_bert(sizes: ScratchModel, n_words: int, *, padding: int, dropout: float, seed: int) -> Backbone:
    """A new BERT with BERT's initialization: normal with std 0.02, biases 0.

    Args:
        sizes: of the network.
        n_words: V.
        padding: id of the padding token, whose embedding is 0.
        dropout: of outputs and attention.
        seed: of the weights.
    """
    config = BertConfig(
        vocab_size=n_words,
        hidden_size=sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.ffn,
        max_position_embeddings=sizes.positions,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        pad_token_id=padding,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Backbone(BertModel(config).apply(draw_as_bert))


def continued_backbone(model: ContinuedModel, separator: str, *, dropout: float | None, seed: int) -> "Start":
    """A trained backbone with its vocabulary; a mask token and the separator are added if they are missing.

    Args:
        model: names the backbone.
        separator: token between turns.
        dropout: of the backbone; None: the backbone's own value.
        seed: of the new tokens' embeddings.
    """
    source = resolve_backbone(model.backbone, bare_hub_names=False)
    backbone, subwords = load_backbone(source.folder, dropout), load_subwords(source.folder)
    if subwords.add([separator] * (subwords.first_known([separator]) is None) + ["[MASK]"] * (subwords.mask is None)):
        grow_embeddings(backbone, subwords, seed)
    pooling = source.folder / POOLING
    return backbone, subwords, pooling if pooling.is_file() else None


Start = tuple[Backbone, Subwords, Path | None]
"""A backbone, its vocabulary, and the file of its pooling, if it has one."""


def pretraining_network(backbone: Backbone, seed: int) -> PretrainingNetwork:
    """A backbone with new heads.

    Raises:
        ConfigError: the network's word embeddings cannot be found.
    """
    if not isinstance(getattr(backbone.embeddings(), "weight", None), Tensor):
        raise ConfigError(f"a {backbone.config.model_type} network has no table of words; choose another backbone")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return PretrainingNetwork(backbone)


def save_backbone(path: Path, backbone: Backbone, subwords: Subwords, pooling: Path | None = None) -> None:
    """Write a Hugging Face folder atomically, over any earlier one that polyrank wrote.

    Args:
        path: the folder.
        backbone: without heads.
        subwords: its vocabulary.
        pooling: the sentence-transformers file of its pooling, to copy; None: none.

    Raises:
        UsageError: the folder holds other files.
        ResourceError: the disk is full or failing.
    """
    with new_folder(path, replace=True, own_files=BACKBONE_FILES) as folder:
        write_network(backbone.network, folder)
        write_tokenizer(subwords, folder, backbone.max_positions, segments=backbone.takes_segments)
        if pooling is not None:
            json.loads(pooling.read_text("utf-8"))  # raises if it is damaged
            (folder / POOLING).parent.mkdir()
            shutil.copyfile(pooling, folder / POOLING)
