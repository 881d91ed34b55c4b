"""The late Cross-encoder: in the lower layers each side is alone, in the upper layers one side reads the other.

The lower layers are not trained, so what they compute of a candidate does not depend on the context and can be kept.
Shapes: P pairs, R texts of the reading side of T tokens, N real tokens of these in all pairs, O texts of the other side
of U tokens, J joined layers, D dimensions, H heads.
"""

import copy
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from polyrank.config.models import PairReduction, Side
from polyrank.devices.choice import full_precision
from polyrank.errors import ConfigError
from polyrank.models.backbone import Backbone
from polyrank.models.bert import BertModel, draw_as_bert
from polyrank.models.cross_encoder import PairNetwork
from polyrank.models.packing import Packing
from polyrank.models.reductions import Pooling
from polyrank.text import Tokens


class OneSide(nn.Module):
    """The transformer of one side.

    Args:
        backbone: a BERT.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def inputs(self, tokens: Tokens, layers: range) -> Tensor:
        """The inputs ``[B, T, len(layers), D]`` of layers, by number from the bottom, in fp32."""
        network: Any = self.backbone.network
        mask = None if tokens.is_full else tokens.mask[:, None, None, :]
        hidden, inputs = network.embeddings(tokens.ids, None, None), []
        for number in range(layers.stop):
            if number in layers:
                inputs.append(hidden)
            if number + 1 < layers.stop:
                hidden = network.encoder.layer[number](hidden, mask, None)
        return torch.stack(inputs, 2).float()


class LateCrossEncoder(PairNetwork):
    """A Cross-encoder over the outputs of two frozen transformers: only its joined layers and its head are trained.

    In the last J layers a token of the reader attends to the tokens of both sides. The other side's tokens attend to
    their own side in all layers. The score is a linear function of the mean, or another reduction, of the reader's
    outputs.

    Args:
        backbone: the transformer that both sides start from.
        joined_layers: J.
        reader: "context" or "candidate".
        reduction: "mean", "first" or "learnt".
        dropout: before the head.

    Raises:
        ConfigError: the backbone is not a BERT, or has too few layers.

    Source: MacAvaney et al., PreTTR (SIGIR 2020), https://arxiv.org/abs/2004.14255, section 4 (layers that join late);
        Gao et al., MORES (EMNLP 2020), https://arxiv.org/abs/2010.10469, section 3 (one side reads the other).
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        joined_layers: int,
        reader: Side,
        reduction: PairReduction = "mean",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if not isinstance(backbone.network, BertModel):
            raise ConfigError(f'model.kind = "late" is for BERTs, not {backbone.config.model_type}; use "cross"')
        n_layers = len(backbone.network.encoder.layer)
        if joined_layers >= n_layers:
            raise ConfigError(
                f"model.joined_layers = {joined_layers} leaves none of {n_layers} layers alone; give at most"
                f" {n_layers - 1}"
            )
        self.reader, self.dropout = reader, dropout
        self.context_tower, self.candidate_tower = OneSide(backbone), OneSide(copy.deepcopy(backbone))
        own, other = self.context_tower, self.candidate_tower
        if reader == "candidate":
            own, other = other, own
        bert, read = own.backbone.network, other.backbone.network
        assert isinstance(bert, BertModel)
        assert isinstance(read, BertModel), "a copy"
        del read.encoder.layer[-1]  # whose outputs nothing reads
        first = n_layers - joined_layers
        self._own_layers, self._other_layers = range(first, first + 1), range(first, n_layers)
        self.pooling = Pooling(reduction, backbone.dimension)
        self.head = nn.Linear(backbone.dimension, 1)
        self.head.apply(draw_as_bert)
        self.requires_grad_(False)
        for module in (self.pooling, self.head, *bert.encoder.layer[first:]):
            module.requires_grad_(True)

    @property
    def backbone(self) -> Backbone:
        """The reader's transformer."""
        return self.transformer(self.reader).backbone

    def inputs(self, side: Side, tokens: Tokens) -> Tensor:
        """The inputs of the joined layers for texts of a side: ``[B, T, 1, D]`` if it reads, else ``[B, T, J, D]``."""
        return self.transformer(side).inputs(tokens, self.layers_of(side))

    def layers_of(self, side: Side) -> range:
        """The layers whose inputs are needed of a side."""
        return self._own_layers if side == self.reader else self._other_layers

    def transformer(self, side: Side) -> OneSide:
        """The transformer of a side."""
        return self.context_tower if side == "context" else self.candidate_tower

    def forward(
        self,
        own: Tensor,
        own_mask: Tensor,
        other: Tensor,
        other_mask: Tensor,
        own_of: Tensor,
        other_of: Tensor,
        lengths: NDArray[np.int64] | None = None,
    ) -> Tensor:
        """Scores ``[P]`` of pairs, raw fp32.

        Args:
            own: the reader's inputs ``[R, T, 1, D]``.
            own_mask: ``[R, T]``, true on real tokens.
            other: the other side's inputs ``[O, U, J, D]``.
            other_mask: ``[O, U]``.
            own_of, other_of: the rows of each pair, ``[P]``.
            lengths: the reader's tokens of each pair ``[P]`` in host memory, to avoid waiting for a device; None:
                unknown.
        """
        bert: Any = self.backbone.network
        dtype = bert.embeddings.LayerNorm.weight.dtype  # bf16 if the weights are
        real = own_mask[own_of]
        packing, mask = Packing.of(real, lengths), torch.cat([real, other_mask[other_of]], 1)[:, None, None, :]
        hidden, other = packing.pack(own[own_of, :, 0].to(dtype)), other.to(dtype)
        *below, top = bert.encoder.layer[self._own_layers.start :]
        for number, layer in enumerate(below):
            hidden = _read(layer, hidden, packing, other[:, :, number], other_of, mask)
        first_only = self.pooling.reduction == "first"
        hidden = _read(top, hidden, packing, other[:, :, -1], other_of, mask, first_only=first_only)
        values = hidden.float() if first_only else self.pooling(packing.pad(hidden.float()), real)
        with full_precision(values):
            return self.head(F.dropout(values, self.dropout, self.training))[:, 0]  # type: ignore[no-any-return]  # nn.Module calls are untyped

    def shape(self) -> dict[str, Any]:
        """The configuration of the reader's transformer."""
        return dict(self.backbone.config.to_dict())

    def trunks(self) -> list[Backbone]:
        """None, because recipes cannot choose which layers are trained."""
        return []


def _read(
    layer: Any,
    hidden: Tensor,
    packing: Packing,
    other: Tensor,
    other_of: Tensor,
    mask: Tensor,
    *,
    first_only: bool = False,
) -> Tensor:
    """A BERT layer's outputs ``[N, D]`` of tokens that attend to each other and to those of another text.

    Args:
        layer: of a BERT.
        hidden: ``[N, D]``, of the real tokens of all pairs; only attention computes padding.
        packing: of the reader's tokens ``[P, T]``.
        other: ``[O, U, D]``, whose keys and values are computed once for all pairs.
        other_of: the other text of each pair, ``[P]``.
        mask: ``[P, 1, 1, T + U]``, true on real tokens.
        first_only: compute only each pair's first output, ``[P, D]``.
    """
    own, size = layer.attention.self, layer.attention.self.attention_head_size

    def heads(projected: Tensor) -> Tensor:  # [..., T, D] to [..., H, T, D / H]
        return projected.unflatten(-1, (-1, size)).transpose(1, 2)  # type: ignore[no-any-return, no-untyped-call]  # untyped in torch

    shared, shared_other = own.shared_input(hidden), own.shared_input(other)
    asking = packing.pad(hidden)[:, 0] if first_only else hidden
    query = own.query(asking if first_only else shared)
    query = heads(query[:, None] if first_only else packing.pad(query))
    key, value = (
        torch.cat([heads(packing.pad(projection(shared))), heads(projection(shared_other))[other_of]], 2)
        for projection in (own.key, own.value)
    )
    share = own.dropout.p if own.training else 0.0
    read = F.scaled_dot_product_attention(query, key, value, mask, share, scale=own.scaling)
    read = read.transpose(1, 2).flatten(2)
    read = read[:, 0] if first_only else packing.pack(read)
    return layer.feed_forward_chunk(layer.attention.output(read, asking))  # type: ignore[no-any-return]  # untyped library
