"""Transformer backbones: any Hugging Face encoder, from a local folder, the Hub, or "embedded".

Tokens ``[B, T]`` in, outputs ``[B, T, D]`` out. Weights come from safetensors only. A model's code is never run.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyrank.errors import ConfigError
from polyrank.models.bert import BertConfig, BertModel, PlainConfig, is_plain_bert
from polyrank.models.hugging_face import encoder_class, load_pretrained, max_positions, read_pretrained_config
from polyrank.models.narrow_linear import narrow_weights
from polyrank.models.packing import PackedAttention
from polyrank.models.static import STATIC, StaticNetwork
from polyrank.text import Tokens, is_static
from polyrank.text.tokens import like_lengths, to_device

GROUP_PADDING = 128
"""Padding tokens per group of similar lengths on a device: a further group takes about as long, to start its layers."""

DROPOUTS = (  # the names of dropout in the configurations of Hugging Face encoders
    "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "hidden_dropout",
    "embedding_dropout", "mlp_dropout", "dropout_rate",
)  # fmt: skip


class Backbone(nn.Module):
    """A Hugging Face encoder as a function of Tokens.

    Args:
        network: the encoder, without its pooler.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        untyped: Any = network
        if getattr(network, "pooler", None) is not None:
            # polyrank does not use it, so its weights would be saved but never trained; some networks need one to call
            untyped.pooler = nn.Identity()
        self.network = network
        self.config: Any = untyped.config
        self.dimension = int(self.config.hidden_size)
        self._narrow = False
        self.takes_segments = int(getattr(self.config, "type_vocab_size", 0) or 0) > 1

    def forward(self, tokens: Tokens) -> Tensor:
        """Token outputs ``[B, T, D]``.

        Inference sorts texts by length. A training's batches are not sorted: on a CPU ``training.encoding`` avoids
        their padding. On other devices polyrank's BERT computes real tokens only, if its attention has a kernel;
        otherwise, and in other networks, groups of similar length are computed.
        """
        if not self.training or tokens.ids.device.type == "cpu" or tokens.is_full is not False:
            return self._outputs(tokens)
        assert tokens.lengths is not None, "else is_full is None"
        if isinstance(self.network, BertModel) and (kernel := self.network.varlen_kernel()) is not None:
            return self._outputs(tokens, PackedAttention.of(tokens.mask, tokens.lengths, kernel))
        groups = [torch.tensor(group) for group in like_lengths(tokens.lengths.tolist(), GROUP_PADDING)]
        parts = [self._outputs(tokens.part(group)) for group in groups]
        width = tokens.ids.shape[1]
        joined = torch.cat([F.pad(part, (0, 0, 0, width - part.shape[1])) for part in parts])
        return joined.index_select(0, to_device(torch.cat(groups).argsort(), joined.device))

    def _outputs(self, tokens: Tokens, packed: PackedAttention | None = None) -> Tensor:
        segments = {"token_type_ids": tokens.segments} if self.takes_segments else {}
        # without padding polyrank's BERT is faster without a mask; other networks may need one
        mask = None if tokens.is_full and isinstance(self.network, BertModel) else tokens.mask.long()
        more = {} if packed is None else {"packed": packed}
        output = self.network(input_ids=tokens.ids, attention_mask=mask, **segments, **more).last_hidden_state
        return output.float() if self._narrow else output  # type: ignore[no-any-return]  # untyped library

    def narrow(self, dtype: torch.dtype) -> None:
        """Hold the weights in bf16 from now on, or those of linear layers in int8.

        Outputs stay fp32, so reductions and scores are computed exactly.
        """
        narrow_weights(self.network, dtype)
        self._narrow = dtype == torch.bfloat16

    def compute_first_output_only(self) -> None:
        """Skip the other outputs of a BERT's last layer; other networks are not changed.

        The same numbers with a sixth of the layer's work.
        """
        encoder: Any = getattr(self.network, "encoder", None)
        if self.config.model_type != "bert" or self.config.is_decoder:
            return
        if not isinstance(encoder.layer[-1], FirstOutput):  # a shared tower is changed once
            encoder.layer[-1] = FirstOutput(encoder.layer[-1])

    @property
    def max_positions(self) -> int:
        """The longest input in tokens."""
        return max_positions(self.network)

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


class FirstOutput(nn.Module):
    """A BERT layer that computes only its first output. For inference: it has no dropout.

    The attention of one output needs all keys and values, but only its own query, projection and feed-forward part.

    Args:
        layer: a ``BertLayer``.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer: Any = layer

    def forward(self, hidden: Tensor, mask: Tensor | None = None, *_: object, **__: object) -> Tensor:
        """``[B, 1, D]`` from ``hidden`` ``[B, T, D]`` and a mask ``[B, 1, 1 or T, T]``, additive or boolean."""
        attention, first = self.layer.attention.self, hidden[:, :1]
        query, key, value = (
            projection(inputs).unflatten(-1, (-1, attention.attention_head_size)).transpose(1, 2)
            for projection, inputs in ((attention.query, first), (attention.key, hidden), (attention.value, hidden))
        )
        mask = None if mask is None else mask[:, :, :1]
        read = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=attention.scaling)
        attended = self.layer.attention.output(read.transpose(1, 2).flatten(2), first)
        return self.layer.feed_forward_chunk(attended)  # type: ignore[no-any-return]  # untyped library


def load_backbone(folder: Path, dropout: float | None = None) -> Backbone:
    """A backbone with its trained weights, in fp32.

    Raises:
        ConfigError: ``dropout`` is given, and the network's configuration has no known dropout.
    """
    if is_static(folder):
        return Backbone(StaticNetwork.read(folder))
    if (bert := BertConfig.read(folder)) is not None:
        _set_dropout(bert, dropout)
        if (plain := BertModel.read(folder, bert)) is not None:
            return Backbone(plain)
    config = read_pretrained_config(folder)
    _set_dropout(config, dropout)
    return Backbone(load_pretrained(folder, config, encoder_class(config)))


def _set_dropout(config: Any, dropout: float | None) -> None:
    names = [name for name in DROPOUTS if hasattr(config, name)]
    if dropout is not None and not names:
        raise ConfigError(f"train.dropout = {dropout}: a {config.model_type} network has no dropout; leave it out")
    for name in names if dropout is not None else ():
        setattr(config, name, dropout)


def empty_backbone(config: dict[str, Any], dropout: float | None = None) -> Backbone:
    """A backbone from a saved configuration, for weights to be restored into."""
    if config.get("model_type") == STATIC:
        return Backbone(StaticNetwork(PlainConfig(**config)))
    if is_plain_bert(config):
        bert = BertConfig(**config)
        _set_dropout(bert, dropout)
        return Backbone(BertModel.empty(bert))
    import transformers

    values = dict(config)
    settings = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    _set_dropout(settings, dropout)
    return Backbone(getattr(transformers, encoder_class(settings)).from_config(settings).float())
