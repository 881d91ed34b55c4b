"""The Bi-encoder: the score is the dot product of the context's vector and the candidate's vector.

Shapes: B contexts, N candidates, T tokens, D dimensions.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyrank.config.models import Reduction, Side
from polyrank.devices.choice import full_precision
from polyrank.models.backbone import Backbone
from polyrank.models.network import EncoderNetwork, Mixture
from polyrank.models.reductions import reduce, reduction_weights
from polyrank.models.sentence_layers import LAYERS, SentenceLayer
from polyrank.text import Tokens


class Tower(nn.Module):
    """One side of an encoder: backbone, output scale, optional projection, optional length.

    Args:
        backbone: the transformer.
        projection_dim: D of a learned linear map on reduced vectors; None: no map.
        scale: constant that multiplies token outputs (ICLR 2020, section 5.3).
        length: to which every vector is normalized; None: no normalization.
        dropout: before the projection.
        layers: of a sentence encoder, between reduced vectors and the projection; the scale then multiplies their
            outputs.
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
        layers: Sequence[SentenceLayer] = (),
    ) -> None:
        super().__init__()
        self.backbone, self.layers = backbone, nn.Sequential(*layers)
        self.register_buffer("scale", torch.tensor(scale))
        size = next((layer.n_out for layer in reversed(layers) if layer.n_out), backbone.dimension)
        self.projection: nn.Module = (
            nn.Identity() if projection_dim is None else nn.Linear(size, projection_dim, bias=False)
        )
        self.length = length
        self.dropout = 0.0 if projection_dim is None else dropout
        self.dimension = projection_dim or size

    def forward(self, tokens: Tokens) -> Tensor:
        """Token outputs ``[B, T, H]``, before any projection; scaled, unless layers follow."""
        outputs: Tensor = self.backbone(tokens).float()
        return outputs if len(self.layers) else outputs * self.scale

    def project(self, vectors: Tensor) -> Tensor:
        """Apply the learned map to vectors ``[..., H]``, in fp32: ``[..., D]``."""
        with full_precision(vectors):
            if len(self.layers):
                vectors = self.layers(vectors) * self.scale
            return self.projection(F.dropout(vectors, self.dropout, self.training))  # type: ignore[no-any-return]  # nn.Module calls are untyped

    def finish(self, vectors: Tensor) -> Tensor:
        """Apply the learned map and the normalization to reduced vectors ``[..., H]``: ``[..., D]``."""
        return self.prefix(self.project(vectors), self.dimension)

    def prefix(self, vectors: Tensor, dimension: int) -> Tensor:
        """The first numbers of vectors ``[..., D]``, normalized if whole vectors are."""
        vectors = vectors[..., :dimension]
        return vectors if self.length is None else self.length * F.normalize(vectors, dim=-1)

    def mixture(self, weights: Tensor, outputs: Tensor, mask: Tensor) -> Mixture:
        """Vectors as sums of token outputs ``[B, T, H]``, see ``Mixture``."""
        mixture = Mixture(weights, self.project(outputs)[..., : self.dimension], mask)
        return mixture if self.length is None else mixture.unit(self.length)


class TwoTowers(EncoderNetwork):
    """An encoder with a transformer for each side, whose candidates are reduced to one vector.

    Args:
        context_tower, candidate_tower: the two sides; the same object if they share weights.
        reduction: how outputs become one vector.
        reduction_tokens: for "mean_of_first".
    """

    def __init__(
        self, context_tower: Tower, candidate_tower: Tower, *, reduction: Reduction, reduction_tokens: int
    ) -> None:
        super().__init__()
        self.context_tower, self.candidate_tower = context_tower, candidate_tower
        self.reduction, self.reduction_tokens = reduction, reduction_tokens
        self.dimension = candidate_tower.dimension

    def tower(self, side: Side) -> Tower:
        """The tower of a side."""
        return self.context_tower if side == "context" else self.candidate_tower

    def truncate(self, dimension: int) -> None:
        """Keep only the first numbers of every vector from now on."""
        self.dimension = self.context_tower.dimension = self.candidate_tower.dimension = dimension

    def encode_candidates(self, tokens: Tokens) -> Tensor:
        """Candidate vectors ``[N, D]``."""
        return self.reduced(self.candidate_tower, tokens)

    def reduced(self, tower: Tower, tokens: Tokens) -> Tensor:
        """One vector per text, ``[B, D]``."""
        return tower.finish(reduce(tower(tokens), tokens.mask, self.reduction, self.reduction_tokens))

    def reduced_mixture(self, tower: Tower, tokens: Tokens) -> Mixture | None:
        """``reduced`` as mixtures of token outputs; None for single outputs, maxima, and vectors with more layers."""
        if self.reduction in ("first", "last", "max") or len(tower.layers):
            return None
        weights = reduction_weights(tokens.mask, self.reduction, self.reduction_tokens)[:, None]
        return tower.mixture(weights, tower(tokens), torch.ones_like(tokens.mask[:, :1]))

    def candidate_mixture(self, tokens: Tokens) -> Mixture | None:
        """The candidate vector as a mixture of token outputs; see ``reduced_mixture``."""
        return self.reduced_mixture(self.candidate_tower, tokens)

    @property
    def backbone(self) -> Backbone:
        """The context side's transformer."""
        return self.context_tower.backbone

    def shape(self) -> dict[str, Any]:
        """The backbone's configuration, and the layers after it."""
        layers = [layer.settings for layer in self.candidate_tower.layers]
        return {**self.backbone.config.to_dict(), **({LAYERS: layers} if layers else {})}

    def trunks(self) -> list[Backbone]:
        """The transformers; a shared tower counts once."""
        return [tower.backbone for tower in dict.fromkeys((self.context_tower, self.candidate_tower))]

    def new_parameters(self) -> list[nn.Parameter]:
        """The projections."""
        return [*self.context_tower.projection.parameters(), *self.candidate_tower.projection.parameters()]


class BiEncoder(TwoTowers):
    """A Bi-encoder.

    Source: Humeau et al., Poly-encoders (ICLR 2020), section 4.2.
    """

    def encode_contexts(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Context vectors ``[B, 1, D]`` and their mask ``[B, 1]``."""
        vector = self.reduced(self.context_tower, tokens)[:, None, :]
        return vector, torch.ones(vector.shape[:2], dtype=torch.bool, device=vector.device)

    def context_mixture(self, tokens: Tokens) -> Mixture | None:
        """The context vector as a mixture of token outputs; see ``reduced_mixture``."""
        return self.reduced_mixture(self.context_tower, tokens)

    def read_first_outputs_only(self) -> None:
        """Compute only the first output of the last layers, if the reduction is "first"."""
        if self.reduction == "first":
            for backbone in self.trunks():
                backbone.compute_first_output_only()
