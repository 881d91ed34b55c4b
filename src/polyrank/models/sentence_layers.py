"""The layers between the reduced outputs of a sentence encoder and its vectors, as in sentence-transformers."""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

LAYERS = "sentence_layers"
"""The key of these layers in the shape of a network."""


class SentenceLayer(nn.Module):
    """A layer ``[B, in]`` to ``[B, out]``.

    Args:
        settings: rebuild the layer; see ``build_layer``.
        n_out: its dimension; 0: that of its inputs.
    """

    def __init__(self, settings: dict[str, Any], n_out: int = 0) -> None:
        super().__init__()
        self.settings, self.n_out = settings, n_out


class Dense(SentenceLayer):
    """A linear layer with an activation and an optional skip connection."""

    def __init__(self, settings: dict[str, Any]) -> None:
        n_in, n_out = settings["n_in"], settings["n_out"]
        super().__init__(settings, n_out)
        self.linear = nn.Linear(n_in, n_out, bias=settings["bias"])
        self.residual = nn.Linear(n_in, n_out, bias=False) if settings["residual"] else None
        self.activation: nn.Module = getattr(nn, settings["activation"])()

    def forward(self, vectors: Tensor) -> Tensor:
        """``[B, in]`` to ``[B, out]``."""
        values: Tensor = self.activation(self.linear(vectors))
        if self.settings["adds_inputs"]:
            values = values + (vectors if self.residual is None else self.residual(vectors))
        return values


class VectorNorm(SentenceLayer):
    """Normalizes the numbers of a vector to mean 0 and variance 1, with a trained scale and offset."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings, settings["n_out"])
        self.norm = nn.LayerNorm(self.n_out)

    def forward(self, vectors: Tensor) -> Tensor:
        """``[B, D]`` to ``[B, D]``."""
        return self.norm(vectors)  # type: ignore[no-any-return]  # nn.Module calls are untyped


class Unit(SentenceLayer):
    """Normalizes vectors to length 1."""

    def forward(self, vectors: Tensor) -> Tensor:
        """``[B, D]`` to ``[B, D]``."""
        return F.normalize(vectors, dim=-1)


def build_layer(settings: dict[str, Any]) -> SentenceLayer:
    """A layer with new weights.

    Args:
        settings: its "kind": "Dense", with n_in, n_out, bias, residual (whether it has weights for the skip
            connection), adds_inputs and the name of its activation in torch.nn; "LayerNorm", with n_out; "Normalize".

    >>> build_layer({"kind": "Normalize"})(Tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """
    kinds = {"Dense": Dense, "LayerNorm": VectorNorm, "Normalize": Unit}
    return kinds[settings["kind"]](settings)


def without_last_units(layers: Sequence[SentenceLayer]) -> list[SentenceLayer]:
    """The layers up to the last one that changes more than lengths."""
    kept = list(layers)
    while kept and isinstance(kept[-1], Unit):
        kept.pop()
    return kept
