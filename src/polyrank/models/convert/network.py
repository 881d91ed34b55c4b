"""ConveRT: from subwords to unit vectors, by a small transformer for both sides and a network for each side.

Shapes: B contexts or candidates, T subwords, D dimensions, R dimensions of r.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from polyrank.models.convert import quantization
from polyrank.models.convert.layers import Layer, Reduction, SideNetwork, unit
from polyrank.models.network import EncoderNetwork, Trunk, check_tensor_names
from polyrank.models.packing import Packing
from polyrank.text import Tokens
from polyrank.text.tokens import Row, to_device

Probe = Literal["immediate", "earlier", "both"]


class ContextEncodings(NamedTuple):
    """The encodings of a context by a multi-context ConveRT.

    Args:
        immediate: h_x ``[B, D]``, of the last turn.
        earlier: h_z ``[B, D]``, of the turns before it; zeros without earlier turns.
        both: h_xz ``[B, D]``.
        has_earlier: ``[B]``, true if the context has earlier turns.
    """

    immediate: Tensor
    earlier: Tensor
    both: Tensor
    has_earlier: Tensor


class Convert(EncoderNetwork):
    """A single- or multi-context ConveRT.

    A context's ids may contain the boundary id (one past the embeddings), after which the earlier turns follow.

    Args:
        n_subwords: rows of the embedding table, buckets included.
        embedding_dim, attention_dim, ffn_dim: of the layers.
        spans: of each layer.
        scale_embeddings: whether subwords are multiplied by ``sqrt(embedding_dim)``.
        position_periods: rows of each position table.
        n_heads: of attention.
        relative_bias: by offset.
        reduction_heads: weighted sums in r.
        side_dim, side_layers, side_skips: of the side networks.
        output_dim: D.
        multi_context: whether earlier turns are used.
        combination: of h_x and h_z: their mean, or another side network on it.
        dropout: after embeddings and attention.
        dtype: 16-bit type that weights are rounded to (embeddings: 8 bits), or None.

    Source: Henderson et al., ConveRT (2020), section 2.
    """

    scale: Tensor
    inner_layers = ("r",)
    probe: Probe = "both"
    """The context encoding that is ranked by."""

    def __init__(
        self,
        n_subwords: int,
        *,
        embedding_dim: int,
        attention_dim: int,
        ffn_dim: int,
        spans: tuple[int, ...],
        scale_embeddings: bool,
        position_periods: tuple[int, ...],
        n_heads: int,
        relative_bias: bool,
        reduction_heads: int,
        side_dim: int,
        side_layers: int,
        side_skips: bool,
        output_dim: int,
        multi_context: bool,
        combination: Literal["feed_forward", "mean"],
        dropout: float,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.n_subwords, self.boundary_id = n_subwords, n_subwords
        self.dimension, self.dtype, self.dropout = output_dim, dtype, dropout
        self.multi_context = multi_context
        self.final_scale = math.sqrt(output_dim)
        self.subword_scale = math.sqrt(embedding_dim) if scale_embeddings else 1.0
        self.register_buffer("scale", torch.tensor(self.final_scale))
        self.subwords = quantization.SubwordEmbedding(n_subwords, embedding_dim, dtype)
        self.positions = nn.ModuleList(quantization.Table(period, embedding_dim, dtype) for period in position_periods)
        self.layers = nn.ModuleList(
            Layer(
                embedding_dim,
                attention_dim=attention_dim,
                ffn_dim=ffn_dim,
                span=span,
                n_heads=n_heads,
                relative_bias=relative_bias,
                dropout=dropout,
                dtype=dtype,
            )
            for span in spans
        )
        self.reduction = Reduction(embedding_dim, attention_dim=attention_dim, n_heads=reduction_heads, dtype=dtype)

        def side(n_inputs: int) -> SideNetwork:
            return SideNetwork(
                n_inputs, dimension=side_dim, n_layers=side_layers, skips=side_skips, output_dim=output_dim, dtype=dtype
            )

        self.context_side, self.response_side = side(self.reduction.dimension), side(self.reduction.dimension)
        self.earlier_side = side(self.reduction.dimension) if multi_context else None
        joins = multi_context and combination == "feed_forward"
        self.combined_side = side(output_dim) if joins else None

    def reduced(self, tokens: Tokens) -> Tensor:
        """r ``[B, R]`` of padded texts: the encoding that transfers best to other tasks (section 4)."""
        packing = Packing.of(tokens.mask, tokens.lengths)
        B, T = tokens.mask.shape
        positions = packing.pack(torch.arange(T, device=tokens.mask.device).expand(B, T))
        packed = self.subwords(packing.pack(tokens.ids)) * self.subword_scale
        for table in self.positions:
            packed = packed + table(positions)
        packed = F.dropout(packed, self.dropout, self.training)
        for layer in self.layers:
            packed = layer(packed, packing)
        return self.reduction(packed, packing)  # type: ignore[no-any-return]  # nn.Module calls are untyped

    def split(self, tokens: Tokens) -> tuple[Tokens, Tokens, NDArray[np.int64]]:
        """The immediate contexts ``[B, ...]``, the earlier turns after the boundary, and the contexts that have any.

        The boundaries are found in host memory, so no device is waited for.
        """
        ids, lengths = tokens.on_host()
        columns = np.arange(ids.shape[1])
        boundary = (ids == self.boundary_id) & (columns < lengths[:, None])
        ends = np.where(boundary, columns, lengths[:, None]).min(1, initial=ids.shape[1])
        n_earlier = np.maximum(lengths - ends - 1, 0)
        rows = np.flatnonzero(n_earlier)
        starts, n_earlier = ends[rows] + 1, n_earlier[rows]
        places = starts[:, None] + np.arange(n_earlier.max(initial=0))
        earlier = ids[rows[:, None], places.clip(max=max(ids.shape[1] - 1, 0))]
        device = tokens.ids.device
        return _tokens(ids, ends, device), _tokens(earlier, n_earlier, device), rows

    def has_earlier(self, ids: Row) -> bool:
        """Whether the ids of a context include earlier turns."""
        return self.boundary_id in ids[:-1]

    def context_encodings(self, tokens: Tokens) -> ContextEncodings:
        """h_x, h_z and h_xz, all unit vectors. Without earlier turns the mean is h_x."""
        now, before, rows = self.split(tokens)
        immediate = self.context_side(self.reduced(now))
        has_earlier = np.zeros(len(immediate), np.bool_)
        has_earlier[rows] = True
        present = to_device(torch.from_numpy(has_earlier), immediate.device)
        if self.earlier_side is None:
            return ContextEncodings(immediate, torch.zeros_like(immediate), immediate, present)
        earlier = torch.zeros_like(immediate)
        if len(rows):
            encoded = self.earlier_side(self.reduced(before))
            earlier = earlier.index_copy(0, to_device(torch.from_numpy(rows), immediate.device), encoded)
        mean = (immediate + earlier) / (1 + present[:, None].float())
        both = unit(mean) if self.combined_side is None else self.combined_side(mean)
        return ContextEncodings(immediate, earlier, both, present)

    def encode_contexts(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Context vectors ``[B, 1, D]``, whose length is the scale of the cosine, and their mask ``[B, 1]``."""
        encodings = self.context_encodings(tokens)
        chosen: Tensor = getattr(encodings, self.probe)
        vector = (chosen * self.scale)[:, None, :]
        return vector, torch.ones(vector.shape[:2], dtype=torch.bool, device=vector.device)

    def encode_candidates(self, tokens: Tokens) -> Tensor:
        """Candidate unit vectors ``[N, D]``."""
        return self.response_side(self.reduced(tokens))  # type: ignore[no-any-return]  # untyped call

    def inner(self, layer: str, tokens: Tokens) -> Tensor:
        """r ``[B, R]`` of the immediate contexts."""
        return self.reduced(self.split(tokens)[0])

    def shape(self) -> dict[str, Any]:
        """The number of embeddings."""
        return {"n_subwords": self.n_subwords}

    def trunks(self) -> list[Trunk]:
        """Embeddings and layers; the reduction and the side networks are not part of the transformer."""
        return [_SharedLayers(self)]

    def observe_weights(self) -> None:
        """Update the range of the embeddings, which rounding needs."""
        self.subwords.update_range()

    def new_parameters(self) -> list[nn.Parameter]:
        """Empty: a ConveRT has no backbone."""
        return []

    def stored(self) -> dict[str, Tensor]:
        """The tensors for a file: int8 embeddings, 16-bit weights, and the few other numbers in fp32."""
        state = {name: tensor.detach() for name, tensor in self.state_dict().items()}
        if self.dtype is None:
            return state
        weights = {name for name, _ in self.named_parameters()}
        state = {name: t.to(self.dtype) if name in weights else t for name, t in state.items()}
        state["subwords.weight"] = quantization.to_eight_bits(self.subwords.weight.detach(), self.subwords.seen)
        return state

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Load tensors from ``stored``. The weights are then rounded as in a forward pass of training."""
        state = self.state_dict()
        check_tensor_names(tensors, state)
        if self.dtype is not None:
            weight = quantization.from_eight_bits(tensors["subwords.weight"], tensors["subwords.seen"])
            tensors = {**tensors, "subwords.weight": weight}
        self.load_state_dict({name: t.to(state[name].dtype, copy=True) for name, t in tensors.items()}, assign=True)
        for module in self.modules():
            if isinstance(module, quantization.Rounding):
                module.on_grid = True

    @torch.no_grad()
    def start(self, equal_sides: bool = False) -> None:
        """Initialize the weights: embeddings of variance 1 after scaling, Glorot layers, orthogonal sides, zero biases.

        Args:
            equal_sides: copy the weights of the context's network to those of the response and the earlier turns.
        """
        for module in self.modules():
            if isinstance(module, quantization.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, quantization.Norm):
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
            elif isinstance(module, quantization.SubwordEmbedding | quantization.Table):
                nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)
        for layer in self.layers:
            if isinstance(layer, Layer) and layer.bias is not None:
                nn.init.zeros_(layer.bias.weight)
        for side in (module for module in self.modules() if isinstance(module, SideNetwork)):
            for module in side.modules():
                if isinstance(module, quantization.Linear):
                    nn.init.orthogonal_(module.weight)
        if equal_sides:
            for other in (self.response_side, self.earlier_side):
                if other is not None:
                    other.load_state_dict(self.context_side.state_dict())
        self.subwords.update_range()


@dataclass(frozen=True, slots=True)
class _SharedLayers:
    """The transformer that both sides share."""

    network: Convert

    def embeddings(self) -> nn.Module:
        return self.network.subwords

    def layers(self) -> list[nn.Module]:
        return list(self.network.layers)

    def parameters(self) -> Iterator[nn.Parameter]:
        for part in (self.network.subwords, self.network.positions, self.network.layers):
            yield from part.parameters()


def _tokens(ids: NDArray[np.int64], lengths: NDArray[np.int64], device: torch.device) -> Tokens:
    """Tokens of ids in host memory, without the columns that are padding in every row."""
    width = int(lengths.max(initial=0))
    ids, mask = ids[:, :width], np.arange(width) < lengths[:, None]
    array = torch.from_numpy(np.ascontiguousarray(ids))
    return Tokens(array, torch.from_numpy(mask), torch.zeros_like(array), lengths).to(device)
