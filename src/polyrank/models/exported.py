"""Exported networks, which run outside torch, with the interface of torch networks.

They call a function of arrays, which hides the runtime. Shapes: B texts, T tokens, M vectors per context, D dimensions.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from polyrank.models.network import TwoSides
from polyrank.text import Tokens

Run = Callable[[Mapping[str, NDArray[np.int64]]], list[NDArray[np.generic]]]


class ExportedEncoder(nn.Module, TwoSides):
    """A Bi- or Poly-encoder whose two sides are exported graphs.

    Args:
        contexts: ``ids``, ``mask`` to context vectors ``[B, M, D]`` and their mask ``[B, M]``; None if both sides
            encode a text in the same way.
        candidates: ``ids``, ``mask`` to candidate vectors ``[B, D]``.
        dimension: D.
    """

    def __init__(self, contexts: Run | None, candidates: Run, dimension: int) -> None:
        super().__init__()
        self.contexts, self.candidates, self.dimension = contexts, candidates, dimension

    def encode_contexts(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Context vectors ``[B, M, D]`` and their mask ``[B, M]``."""
        if self.contexts is None:
            vector = self.encode_candidates(tokens)[:, None, :]
            return vector, torch.ones(vector.shape[:2], dtype=torch.bool)
        vectors, mask = self.contexts(_arrays(tokens))
        return torch.from_numpy(vectors), torch.from_numpy(mask).bool()

    def encode_candidates(self, tokens: Tokens) -> Tensor:
        """Candidate vectors ``[B, D]``."""
        return torch.from_numpy(self.candidates(_arrays(tokens))[0])


class ExportedCross(nn.Module):
    """A Cross-encoder as an exported graph.

    Args:
        pairs: ``ids``, ``mask``, ``segments`` to scores ``[B]``.
    """

    def __init__(self, pairs: Run) -> None:
        super().__init__()
        self.pairs = pairs

    def forward(self, tokens: Tokens) -> Tensor:
        """Scores ``[B]`` of pairs, raw fp32."""
        return torch.from_numpy(self.pairs({**_arrays(tokens), "segments": tokens.segments.numpy()})[0])


def _arrays(tokens: Tokens) -> dict[str, NDArray[np.int64]]:
    return {"ids": tokens.ids.numpy(), "mask": tokens.mask.long().numpy()}
