"""The parts of a ConveRT network: attention with a span, its layer, the reduction, and the network of a side.

The real subwords of a batch are packed without padding, so only attention is computed on padding.
Shapes: B texts, T subwords of the longest, N real subwords of all, D dimensions, H heads.
"""

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyrank.models.convert.quantization import Linear, Norm, Table
from polyrank.models.packing import Packing


def gelu(x: Tensor) -> Tensor:
    """The fast approximation: ``x * sigmoid(1.702 x)``.

    >>> gelu(torch.tensor([-100.0, 0.0, 100.0])).abs()
    tensor([  0.,   0., 100.])
    """
    return x * torch.sigmoid(1.702 * x)


def unit(x: Tensor) -> Tensor:
    """Vectors ``[..., D]`` scaled to length 1, in fp32; a zero vector stays, with a gradient of 0 instead of 1e12.

    A new network, whose biases are 0, encodes an empty text as zero.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    x = x.float()
    return F.normalize(x.masked_fill((x == 0).all(-1, keepdim=True), 0.0), dim=-1)


def attention_weights(queries: Tensor, keys: Tensor, packing: Packing, span: int | None, bias: Tensor | None) -> Tensor:
    """``softmax(queries . keys / sqrt(d) + bias[offset])`` over real keys at most ``span`` away, in fp32.

    Args:
        queries, keys: ``[B, H, T, d]``.
        packing: of the batch.
        span: the largest offset; None: no limit.
        bias: ``[2 span + 1, H]`` by offset, from ``-span`` to ``span``, or None.

    Returns:
        ``[B, H, T, T]``. The rows of padding queries are finite and not used.
    """
    dots = (queries @ keys.transpose(-1, -2)).float() / math.sqrt(queries.shape[-1])
    allowed = packing.mask[:, None, None, :]
    if span is not None:
        if bias is not None:
            dots = dots + bias[(packing.offsets.clamp(-span, span) + span)].permute(2, 0, 1)
        allowed = allowed & (packing.offsets.abs() <= span)
    # the lowest number instead of minus infinity: a padding query may have no key, and must not produce NaN
    return torch.softmax(dots.masked_fill(~allowed, torch.finfo(dots.dtype).min), dim=-1)


def split_heads(packed: Tensor, packing: Packing, n_heads: int) -> Tensor:
    """``[N, H d]`` to ``[B, H, T, d]``."""
    padded = packing.pad(packed)
    return padded.view(*padded.shape[:2], n_heads, packed.shape[1] // n_heads).transpose(1, 2)


class Layer(nn.Module):
    """A transformer layer: attention, then a feed-forward network, each followed by a skip connection and a norm.

    A single head averages the layer's inputs; several heads average projected values, which are projected back.

    Args:
        dimension: D.
        attention_dim: of queries and keys, per head.
        ffn_dim: inside the feed-forward network.
        span: the largest distance that is attended to.
        n_heads: H.
        relative_bias: whether attention scores get a learned bias by offset.
        dropout: after attention.
        dtype: that weights are rounded to.

    Source: Henderson et al., ConveRT (2020), section 2.1; Vaswani et al., Attention is all you need (2017).
    """

    def __init__(
        self,
        dimension: int,
        *,
        attention_dim: int,
        ffn_dim: int,
        span: int,
        n_heads: int,
        relative_bias: bool,
        dropout: float,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.span, self.n_heads, self.dropout = span, n_heads, dropout
        self.queries = Linear(dimension, n_heads * attention_dim, dtype, bias=False)
        self.keys = Linear(dimension, n_heads * attention_dim, dtype, bias=False)
        self.bias = Table(2 * span + 1, n_heads, dtype) if relative_bias else None
        self.values = Linear(dimension, n_heads * attention_dim, dtype, bias=False) if n_heads > 1 else None
        self.output = Linear(n_heads * attention_dim, dimension, dtype, bias=False) if n_heads > 1 else None
        self.attention_norm = Norm(dimension, dtype)
        self.expand, self.contract = Linear(dimension, ffn_dim, dtype), Linear(ffn_dim, dimension, dtype)
        self.ffn_norm = Norm(dimension, dtype)

    def forward(self, packed: Tensor, packing: Packing) -> Tensor:
        """``[N, D]`` to ``[N, D]``."""
        attended = F.dropout(self._attended(packed, packing), self.dropout, self.training)
        packed = self.attention_norm(packed + attended)
        ffn = self.contract(gelu(self.expand(packed)))
        return self.ffn_norm(packed + ffn)  # type: ignore[no-any-return]  # nn.Module calls are untyped

    def _attended(self, packed: Tensor, packing: Packing) -> Tensor:
        bias = None if self.bias is None else self.bias.rounded(self.bias.weight)
        queries = split_heads(self.queries(packed), packing, self.n_heads)
        keys = split_heads(self.keys(packed), packing, self.n_heads)
        weights = attention_weights(queries, keys, packing, self.span, bias)
        if self.values is None or self.output is None:
            return packing.pack(weights[:, 0].to(packed.dtype) @ packing.pad(packed))
        values = split_heads(self.values(packed), packing, self.n_heads)
        joined = (weights.to(values.dtype) @ values).transpose(1, 2).flatten(2)
        return self.output(packing.pack(joined))  # type: ignore[no-any-return]  # nn.Module calls are untyped


class Reduction(nn.Module):
    """Square-root-of-N reduction: each head attends, and the attended sequence is summed and divided by sqrt(n).

    The weights are summed before they are applied: ``r_h = sum_j (sum_i A_ij / sqrt(n)) x_j``; they add up to sqrt(n).

    Args:
        dimension: D of the sequence.
        attention_dim: of queries and keys, per head.
        n_heads: H.
        dtype: that weights are rounded to.

    Source: Henderson et al., ConveRT (2020), section 2.1 and footnote 8.
    """

    def __init__(self, dimension: int, *, attention_dim: int, n_heads: int, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.n_heads, self.dimension = n_heads, n_heads * dimension
        self.queries = Linear(dimension, n_heads * attention_dim, dtype, bias=False)
        self.keys = Linear(dimension, n_heads * attention_dim, dtype, bias=False)

    def forward(self, packed: Tensor, packing: Packing) -> Tensor:
        """``[N, D]`` to r ``[B, H D]``, which is zero for an empty text."""
        queries = split_heads(self.queries(packed), packing, self.n_heads)
        keys = split_heads(self.keys(packed), packing, self.n_heads)
        weights = attention_weights(queries, keys, packing, None, None)
        lengths = packing.mask.sum(1).clamp(min=1).sqrt()
        reduced = (weights * packing.mask[:, None, :, None]).sum(2) / lengths[:, None, None]  # [B, H, T]
        return (reduced.to(packed.dtype) @ packing.pad(packed)).flatten(1)


class SideNetwork(nn.Module):
    """The network of one side: layers with skips and norms, then a linear map to unit vectors.

    Args:
        n_inputs: the dimension of r.
        dimension: of the layers.
        n_layers: how many.
        skips: whether a layer adds its input, which the first layer projects if the widths differ.
        output_dim: D of the encodings.
        dtype: that weights are rounded to.

    Source: Henderson et al., ConveRT (2020), section 2.1 ("feed-forward 2").
    """

    def __init__(
        self, n_inputs: int, *, dimension: int, n_layers: int, skips: bool, output_dim: int, dtype: torch.dtype | None
    ) -> None:
        super().__init__()
        widths = [n_inputs, *[dimension] * n_layers]
        self.layers = nn.ModuleList(Linear(a, b, dtype) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(Norm(dimension, dtype) for _ in range(n_layers))
        self.skips = skips
        projects = skips and n_layers > 0 and n_inputs != dimension
        self.skip = Linear(n_inputs, dimension, dtype, bias=False) if projects else None
        self.output = Linear(widths[-1], output_dim, dtype)

    def forward(self, r: Tensor) -> Tensor:
        """``[B, n_inputs]`` to unit vectors ``[B, D]``, in fp32."""
        x = r
        for number, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            y = gelu(layer(x))
            if self.skips:
                y = y + (self.skip(x) if number == 0 and self.skip is not None else x)
            x = norm(y)
        return unit(self.output(x))
