"""The last layer of a BERT if only its first output is used: the same numbers with a sixth of the layer's work.

The attention of one output needs all keys and values, but only its own query, projection and feed-forward part.
Shapes: B texts, T tokens, D dimensions, H heads.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from polyrank.models.backbone import Backbone


class FirstOutput(nn.Module):
    """A BERT layer that computes only its first output. For inference: it has no dropout.

    Args:
        layer: a ``BertLayer``.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer: Any = layer

    def forward(self, hidden: Tensor, mask: Tensor | None = None, *_: object, **__: object) -> Tensor:
        """``[B, 1, D]`` from ``hidden`` ``[B, T, D]`` and a mask ``[B, 1, 1 or T, T]``, additive or boolean."""
        own, first = self.layer.attention.self, hidden[:, :1]
        query, key, value = (
            projection(inputs).unflatten(-1, (-1, own.attention_head_size)).transpose(1, 2)
            for projection, inputs in ((own.query, first), (own.key, hidden), (own.value, hidden))
        )
        mask = None if mask is None else mask[:, :, :1]
        read = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=own.scaling)
        attended = self.layer.attention.output(read.transpose(1, 2).flatten(2), first)
        return self.layer.feed_forward_chunk(attended)  # type: ignore[no-any-return]  # untyped library


def shorten(backbone: Backbone) -> None:
    """Make a BERT's last layer compute only its first output; other networks are not changed."""
    encoder: Any = getattr(backbone.network, "encoder", None)
    if backbone.config.model_type != "bert" or backbone.config.is_decoder:
        return
    if not isinstance(encoder.layer[-1], FirstOutput):  # a shared tower is shortened once
        encoder.layer[-1] = FirstOutput(encoder.layer[-1])
