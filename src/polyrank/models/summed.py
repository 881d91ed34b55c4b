"""Encoders that are trained together as one network, whose score is the weighted sum of their scores.

Shapes: B contexts, N candidates, M vectors per context, D dimensions; P parts.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from polyrank.models.network import EncoderNetwork, Trunk
from polyrank.text import Tokens, split_parts


class SumNetwork(EncoderNetwork):
    """``score = sum_p w_p score_p``: the parts' vectors are concatenated, scaled by ``sqrt(w_p)`` on both sides.

    ``scorers.summed.SumEncoder`` explains why this is exactly the sum, and ranks with a trained network. A weight is
    its start times ``exp(growth)``, so it stays above 0.

    Args:
        parts: the networks.
        weights: to start from.
        pad_ids: the padding id of each part.
        attending: the part with several vectors per context, whose weight stays 1; None: no part has several.
        train_weights: whether the other weights are trained.
    """

    new_rate = 25.0  # so in a thousand steps at 5e-5 a weight can triple instead of growing by 5%
    free: Tensor

    def __init__(
        self,
        parts: Sequence[EncoderNetwork],
        weights: Sequence[float],
        *,
        pad_ids: Sequence[int],
        attending: int | None,
        train_weights: bool,
    ) -> None:
        super().__init__()
        self.parts: Sequence[EncoderNetwork] = nn.ModuleList(parts)  # type: ignore[assignment]  # it reads as one
        self.start, self.pad_ids = tuple(weights), tuple(pad_ids)
        self.growth = nn.Parameter(torch.zeros(len(parts)), requires_grad=train_weights)
        free = [float(number != attending) for number in range(len(parts))]
        self.register_buffer("free", torch.tensor(free), persistent=False)
        self.dimension = sum(part.dimension for part in parts)

    @property
    def weights(self) -> list[float]:
        """The current weights."""
        growth = (self.growth.detach() * self.free).tolist()
        return [start * math.exp(grown) for start, grown in zip(self.start, growth, strict=True)]

    def _roots(self) -> Tensor:
        """``sqrt(w)``: ``[P]``."""
        return torch.tensor(self.start, device=self.growth.device).sqrt() * (self.growth * self.free / 2).exp()

    def encode_contexts(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Context vectors ``[B, M, D]`` and their mask ``[B, M]``; D is the sum of the parts' dimensions."""
        encoded = [
            part.encode_contexts(own) for part, own in zip(self.parts, split_parts(tokens, self.pad_ids), strict=True)
        ]
        width = max(vectors.shape[1] for vectors, _ in encoded)
        sides = [
            root * vectors.float().expand(-1, width, -1)
            for root, (vectors, _) in zip(self._roots(), encoded, strict=True)
        ]
        masks = [mask.expand(-1, width) for _, mask in encoded]
        return torch.cat(sides, dim=-1), torch.stack(masks).all(0)

    def encode_candidates(self, tokens: Tokens) -> Tensor:
        """Candidate vectors ``[N, D]``."""
        own = split_parts(tokens, self.pad_ids)
        encoded = [part.encode_candidates(texts).float() for part, texts in zip(self.parts, own, strict=True)]
        return torch.cat([root * vectors for root, vectors in zip(self._roots(), encoded, strict=True)], dim=-1)

    def shape(self) -> dict[str, Any]:
        """The shapes of the parts."""
        return {"parts": [part.shape() for part in self.parts]}

    def trunks(self) -> list[Trunk]:
        """The parts' transformers."""
        return [trunk for part in self.parts for trunk in part.trunks()]

    def new_parameters(self) -> list[nn.Parameter]:
        """The weights; the parts, with their codes and projections, are already trained."""
        return [self.growth]

    def observe_weights(self) -> None:
        """Call it on each part."""
        for part in self.parts:
            part.observe_weights()
