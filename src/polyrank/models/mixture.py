"""Vectors as weighted sums of token outputs, for networks whose vectors are such: what says how much each token adds.

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
        outputs: of the tokens, ``[B, T, D]``, behind every linear map.
        mask: ``[B, M]``, true where a vector is real.
    """

    weights: Tensor
    outputs: Tensor
    mask: Tensor

    def unit(self, length: float = 1.0) -> "Mixture":
        """The same vectors with this length."""
        norms = (self.weights @ self.outputs).norm(dim=-1, keepdim=True).clamp(min=1e-12)
        return Mixture(length * self.weights / norms, self.outputs, self.mask)


class MixtureSource:
    """A network with two sides that says, where it can, of what its vectors are mixed."""

    def context_mixture(self, tokens: Tokens) -> Mixture | None:
        """Context vectors as weighted sums of token outputs; None where they are something else."""
        return None

    def candidate_mixture(self, tokens: Tokens) -> Mixture | None:
        """Candidate vectors (M = 1) as weighted sums of token outputs; None where they are something else."""
        return None
