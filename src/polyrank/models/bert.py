"""BERT with exactly the outputs of the transformers library, without importing that library.

Most encoders are BERTs, and importing transformers takes longer than a torch process needs to answer. Weights have the
same names, so either library reads the files of the other. Other encoders use the transformers library.

Shapes: B texts, T tokens, D dimensions, H heads, V words. If packed, hidden states are ``[N, D]``, else
``[B, T, D]``.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyrank.devices.varlen import Kernel, varlen_kernel
from polyrank.models.packing import PackedAttention
from polyrank.storage.tensors import read_file

DEFAULTS: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "is_decoder": False,
}
SUPPORTED = {  # settings that change the network, with the only values that this module supports
    "model_type": "bert",
    "hidden_act": "gelu",
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "chunk_size_feed_forward": 0,
    "pruned_heads": {},
    "quantization_config": None,
    "auto_map": None,
}
UNUSED = ("pooler.", "cls.", "classifier.", "embeddings.position_ids")  # weights that the outputs do not depend on


class PlainConfig(SimpleNamespace):
    """The settings of a config.json."""

    def to_dict(self) -> dict[str, Any]:
        """All settings."""
        return dict(vars(self))


class BertConfig(PlainConfig):
    """The settings of a Hugging Face config.json; missing settings have BERT's defaults."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**{**DEFAULTS, **values})

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The settings of a folder; None if it has no config.json, or another network's."""
        try:
            values = json.loads((folder / "config.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return cls(**values) if isinstance(values, dict) and is_plain_bert(values) else None


def is_plain_bert(values: Mapping[str, Any]) -> bool:
    """Whether a config.json describes a network that this module computes.

    >>> is_plain_bert({"model_type": "bert"}), is_plain_bert({"model_type": "bert", "hidden_act": "relu"})
    (True, False)
    """
    return "model_type" in values and all(values.get(name, value) == value for name, value in SUPPORTED.items())


class BertModel(nn.Module):
    """The outputs of BERT's last layer.

    Args:
        config: its sizes.

    Source: Devlin et al., BERT (NAACL 2019).
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = _Embeddings(config)
        self.encoder = _Layers(config)

    def forward(
        self,
        *,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None = None,
        packed: PackedAttention | None = None,
    ) -> SimpleNamespace:
        """``last_hidden_state`` ``[B, T, D]`` from ids and a mask ``[B, T]``, 1 on real tokens; None: no padding.

        If ``packed``, only real tokens are computed, and other outputs are zero.
        """
        mask = None if attention_mask is None else attention_mask.bool()[:, None, None, :]
        hidden = self.encoder(self.embeddings(input_ids, token_type_ids, packed), mask, packed)
        return SimpleNamespace(last_hidden_state=hidden if packed is None else packed.packing.pad(hidden))

    def varlen_kernel(self) -> Kernel | None:
        """The kernel with which ``packed`` texts can be computed now; None: there is none."""
        return varlen_kernel(
            self.embeddings.word_embeddings.weight, self.config.hidden_size // self.config.num_attention_heads
        )

    def get_input_embeddings(self) -> nn.Embedding:
        """The word embeddings."""
        return self.embeddings.word_embeddings

    def resize_token_embeddings(self, n_words: int, **_: object) -> None:
        """Resize the table of words; the caller sets the vectors of new words."""
        resize_table(self.embeddings.word_embeddings, n_words)
        self.config.vocab_size = n_words

    @classmethod
    def empty(cls, config: BertConfig) -> Self:
        """A network without memory for its weights; ``load_state_dict(..., assign=True)`` assigns them."""
        with torch.device("meta"):
            return cls(config)

    @classmethod
    def read(cls, folder: Path, config: BertConfig) -> Self | None:
        """A network with the weights of a Hugging Face folder; None if the file has an unusual layout."""
        try:
            tensors, _ = read_file(folder / "model.safetensors")
        except ValueError:  # missing or damaged
            return None
        tensors = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
        tensors = {
            name: tensor.to(torch.float32, copy=True)  # into memory that torch allocates, which is aligned
            for name, tensor in tensors.items()
            if not name.startswith(UNUSED)
        }
        network = cls.empty(config)
        if {name: t.shape for name, t in tensors.items()} != {n: t.shape for n, t in network.state_dict().items()}:
            return None
        network.load_state_dict(tensors, assign=True)
        return network.eval()


def resize_table(words: nn.Embedding, n_words: int) -> None:
    """Add rows of zeros to a table of words."""
    new = words.weight.new_zeros(n_words, words.embedding_dim)
    new[: len(words.weight)] = words.weight.detach()
    words.weight, words.num_embeddings = nn.Parameter(new), n_words


class _Embeddings(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word_embeddings = empty_table(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.position_embeddings = empty_table(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = empty_table(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, ids: Tensor, segments: Tensor | None, packed: PackedAttention | None) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        segments = torch.zeros_like(ids) if segments is None else segments
        if packed is not None:
            ids, segments, positions = map(packed.packing.pack, (ids, segments, positions.expand(ids.shape)))
        # in the order of the transformers library, for equal bits
        sums = self.word_embeddings(ids) + self.token_type_embeddings(segments) + self.position_embeddings(positions)
        return self.dropout(self.LayerNorm(sums))  # type: ignore[no-any-return]  # nn.Module calls are untyped


def empty_table(n: int, size: int, padding: int | None = None) -> nn.Embedding:
    """An uninitialized table: initializing on the meta device would load torch's compiler, which takes seconds."""
    return nn.Embedding(n, size, padding, _weight=torch.empty(n, size), _freeze=False)


class _Layers(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList([_Layer(config) for _ in range(config.num_hidden_layers)])

    def forward(self, hidden: Tensor, mask: Tensor | None, packed: PackedAttention | None) -> Tensor:
        for layer in self.layer:
            hidden = layer(hidden, mask, packed)
        return hidden


class _Layer(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = _Attention(config)
        self.intermediate = _Intermediate(config)
        self.output = _Output(config.intermediate_size, config)

    def forward(self, hidden: Tensor, mask: Tensor | None, packed: PackedAttention | None) -> Tensor:
        return self.feed_forward_chunk(self.attention(hidden, mask, packed))

    def feed_forward_chunk(self, attended: Tensor) -> Tensor:
        """The feed-forward part of the layer."""
        return self.output(self.intermediate(attended), attended)  # type: ignore[no-any-return]


class _Attention(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.self = _SelfAttention(config)
        self.output = _Output(config.hidden_size, config)

    def forward(self, hidden: Tensor, mask: Tensor | None, packed: PackedAttention | None) -> Tensor:
        return self.output(self.self(hidden, mask, packed), hidden)  # type: ignore[no-any-return]


class _SelfAttention(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention_head_size = config.hidden_size // config.num_attention_heads
        self.scaling = self.attention_head_size**-0.5
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)
        self.shared_input: Callable[[Tensor], Any] = nn.Identity()  # of the projections; in 8 bits, rounded once

    def forward(self, hidden: Tensor, mask: Tensor | None, packed: PackedAttention | None) -> Tensor:
        shared = self.shared_input(hidden)
        query, key, value = (
            projection(shared).unflatten(-1, (-1, self.attention_head_size))
            for projection in (self.query, self.key, self.value)
        )
        share = self.dropout.p if self.training else 0.0
        if packed is not None:
            return packed.attention(query, key, value, share, self.scaling).flatten(1)
        query, key, value = (heads.transpose(1, 2) for heads in (query, key, value))
        read = F.scaled_dot_product_attention(query, key, value, mask, share, scale=self.scaling)
        return read.transpose(1, 2).flatten(2)


class _Intermediate(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)

    def forward(self, hidden: Tensor) -> Tensor:
        return F.gelu(self.dense(hidden))


class _Output(nn.Module):
    """A linear map back to D, the skip connection, and layer normalization."""

    def __init__(self, size: int, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, before: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(self.dense(hidden)) + before)  # type: ignore[no-any-return]


def draw_as_bert(module: nn.Module) -> None:
    """Draw the weights of a layer as those of BERT start."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        with torch.no_grad():
            module.weight[module.padding_idx].zero_()
