"""The Bi-encoder: a vector for the context, a vector for the candidate, their dot product the score.

Shapes: B contexts, N candidates, T tokens, D dimensions.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyrank.config.models import Reduction
from polyrank.devices.choice import full_precision
from polyrank.models.backbone import Backbone
from polyrank.models.first_output import shorten
from polyrank.models.mixture import Mixture
from polyrank.models.network import EncoderNetwork
from polyrank.models.reductions import reduce, reduction_weights
from polyrank.text import Tokens


class Tower(nn.Module):
    """One side of an encoder: backbone, output scale, optional projection, optional length.

    Args:
        backbone: the transformer.
        projection_dim: D of a learnt linear map on reduced vectors, or None.
        scale: constant that multiplies token outputs (ICLR 2020, section 5.3).
        length: of every vector; None: as it comes.
        dropout: before the projection.
    """

    scale: Tensor

    def __init__(
        self,
        backbone: Backbone,
        projection_dim: int | None,
        scale: float,
        *,
        length: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.register_buffer("scale", torch.tensor(scale))
        self.projection: nn.Module = (
            nn.Identity() if projection_dim is None else nn.Linear(backbone.dimension, projection_dim, bias=False)
        )
        self.length = length
        self.dropout = 0.0 if projection_dim is None else dropout
        self.dimension = projection_dim or backbone.dimension

    def forward(self, tokens: Tokens) -> Tensor:
        """Scaled token outputs ``[B, T, H]``, before any projection."""
        return self.backbone(tokens).float() * self.scale  # type: ignore[no-any-return]  # nn.Module calls are untyped

    def project(self, vectors: Tensor) -> Tensor:
        """Vectors ``[..., H]`` through the learnt map, in fp32: ``[..., D]``."""
        with full_precision(vectors):
            return self.projection(F.dropout(vectors, self.dropout, self.training))  # type: ignore[no-any-return]  # nn.Module calls are untyped

    def finish(self, vectors: Tensor) -> Tensor:
        """Reduced vectors ``[..., H]`` through the learnt map and to their length: ``[..., D]``."""
        vectors = self.project(vectors)
        return vectors if self.length is None else self.length * F.normalize(vectors, dim=-1)

    def mixture(self, weights: Tensor, outputs: Tensor, mask: Tensor) -> Mixture:
        """Vectors as sums of token outputs ``[B, T, H]``, see ``Mixture``."""
        mixture = Mixture(weights, self.project(outputs), mask)
        return mixture if self.length is None else mixture.unit(self.length)


def backbones_of(*towers: Tower) -> list[Backbone]:
    """The towers' transformers; a tower that stands for both sides counts once."""
    return [tower.backbone for tower in dict.fromkeys(towers)]


def tower_mixture(tower: Tower, tokens: Tokens, reduction: Reduction, n_tokens: int) -> Mixture | None:
    """A tower's reduced vectors of their tokens; None by "first", whose one output says nothing of the others."""
    if reduction == "first":
        return None
    weights = reduction_weights(tokens.mask, reduction, n_tokens)[:, None]
    return tower.mixture(weights, tower(tokens), torch.ones_like(tokens.mask[:, :1]))


class BiEncoder(EncoderNetwork):
    """A Bi-encoder.

    Args:
        context_tower, candidate_tower: the two sides; the same object when they share weights.
        reduction: how outputs become one vector.
        reduction_tokens: for "mean_of_first".

    Source: Humeau et al., Poly-encoders (ICLR 2020), section 4.2.
    """

    def __init__(
        self, context_tower: Tower, candidate_tower: Tower, *, reduction: Reduction, reduction_tokens: int
    ) -> None:
        super().__init__()
        self.context_tower, self.candidate_tower = context_tower, candidate_tower
        self.reduction, self.reduction_tokens = reduction, reduction_tokens
        self.dimension = candidate_tower.dimension

    def encode_contexts(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Context vectors ``[B, 1, D]`` and their mask ``[B, 1]``."""
        vector = self._reduced(self.context_tower, tokens)[:, None, :]
        return vector, torch.ones(vector.shape[:2], dtype=torch.bool, device=vector.device)

    def encode_candidates(self, tokens: Tokens) -> Tensor:
        """Candidate vectors ``[N, D]``."""
        return self._reduced(self.candidate_tower, tokens)

    def _reduced(self, tower: Tower, tokens: Tokens) -> Tensor:
        reduced = reduce(tower(tokens), tokens.mask, self.reduction, self.reduction_tokens)
        return tower.finish(reduced)

    def context_mixture(self, tokens: Tokens) -> Mixture | None:
        """The context vector of its tokens; None by "first", which reads one output alone."""
        return tower_mixture(self.context_tower, tokens, self.reduction, self.reduction_tokens)

    def candidate_mixture(self, tokens: Tokens) -> Mixture | None:
        """The candidate vector of its tokens; None by "first"."""
        return tower_mixture(self.candidate_tower, tokens, self.reduction, self.reduction_tokens)

    @property
    def backbone(self) -> Backbone:
        """The context side's transformer."""
        return self.context_tower.backbone

    def shape(self) -> dict[str, Any]:
        """The backbone's configuration."""
        return dict(self.backbone.config.to_dict())

    def trunks(self) -> list[Backbone]:
        """One transformer or two."""
        return backbones_of(self.context_tower, self.candidate_tower)

    def read_first_outputs_only(self) -> None:
        """Compute no more of the last layers than is read: by "first", one output."""
        if self.reduction == "first":
            for backbone in self.trunks():
                shorten(backbone)

    def new_parameters(self) -> list[nn.Parameter]:
        """Parameters that did not come with the backbone."""
        return [*self.context_tower.projection.parameters(), *self.candidate_tower.projection.parameters()]
