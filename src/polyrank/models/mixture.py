"""Vectors as weighted sums of token outputs, which show how much each token contributes.

Shapes: B texts, T tokens, M vectors per text, D dimensions.
"""

from dataclasses import dataclass

from torch import Tensor

from polyrank.text import Tokens


@dataclass(frozen=True, slots=True)
class Mixture:
    """``vectors = weights @ outputs``.

    Args:
        weights: ``[B, M, T]``, zero on padding.
        outputs: of the tokens, ``[B, T, D]``, after all linear maps.
        mask: ``[B, M]``, true for real vectors.
    """

    weights: Tensor
    outputs: Tensor
    mask: Tensor

    def unit(self, length: float = 1.0) -> "Mixture":
        """The mixture with its vectors scaled to ``length``."""
        norms = (self.weights @ self.outputs).norm(dim=-1, keepdim=True).clamp(min=1e-12)
        return Mixture(length * self.weights / norms, self.outputs, self.mask)


class TwoSides:
    """A network with a side for contexts and one for candidates, with defaults of what some of them can do."""

    pairwise = False

    inner_layers: tuple[str, ...] = ()
    """The names of inner encodings that ``inner`` returns."""

    def inner(self, layer: str, tokens: Tokens) -> Tensor:
        """The encoding ``[B, R]`` of contexts by one of ``inner_layers``."""
        raise NotImplementedError(f"this network has no layer {layer!r}")

    def context_mixture(self, tokens: Tokens) -> Mixture | None:
        """Context vectors as weighted sums of token outputs; None if they are not such sums."""
        return None

    def candidate_mixture(self, tokens: Tokens) -> Mixture | None:
        """Candidate vectors (M = 1) as weighted sums of token outputs; None if they are not such sums."""
        return None
