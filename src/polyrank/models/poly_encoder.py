"""The Poly-encoder: m vectors for the context and one for the candidate, compared by attention.

Shapes: B contexts, N candidates, T tokens, M vectors per context, D dimensions.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from polyrank.config.models import Reduction
from polyrank.devices.choice import full_precision
from polyrank.models.bi_encoder import Tower, TwoTowers
from polyrank.models.network import Mixture
from polyrank.models.reductions import each_alone, first_outputs, last_outputs
from polyrank.text import Tokens

NEAR_ZERO = 0.02  # a standard deviation of codes that attend almost evenly
RATE_OF_CODES = 25.0  # times the learning rate, for codes that start near zero and have to grow (runs/recipes)
Codes = Literal["learnt", "first", "last", "last_h1"]
CodeInit = Literal["uniform", "normal", "near_zero"]


class PolyEncoder(TwoTowers):
    """A Poly-encoder.

    With learned codes c_i, ``y_i = sum_j softmax(c_i . h)_j h_j``: plain dot products, no scaling, no projections.
    The other kinds use token outputs as vectors; a context with fewer tokens than m has fewer vectors.

    Args:
        context_tower, candidate_tower, reduction, reduction_tokens: as for ``TwoTowers``; only candidates are reduced.
        codes: the source of the context vectors.
        n_codes: m.
        code_init: "uniform" on [0, 1), or "normal" or "near_zero", with standard deviations 1 and 0.02.

    Source: Humeau et al., Poly-encoders (ICLR 2020), section 4.4 and appendix C.
    """

    def __init__(
        self,
        context_tower: Tower,
        candidate_tower: Tower,
        *,
        reduction: Reduction,
        reduction_tokens: int,
        codes: Codes,
        n_codes: int,
        code_init: CodeInit,
    ) -> None:
        super().__init__(context_tower, candidate_tower, reduction=reduction, reduction_tokens=reduction_tokens)
        self.kind, self.n_codes = codes, n_codes
        self.codes: nn.Parameter | None = None
        self.new_rate = RATE_OF_CODES if codes == "learnt" and code_init == "near_zero" else 1.0
        if codes == "learnt":
            start = torch.empty(n_codes, context_tower.backbone.dimension)
            std = NEAR_ZERO if code_init == "near_zero" else 1.0
            self.codes = nn.Parameter(start.uniform_() if code_init == "uniform" else start.normal_(std=std))

    def encode_contexts(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Context vectors ``[B, M, D]`` and their mask ``[B, M]``."""
        outputs = self.context_tower(tokens)
        if self.codes is not None:
            vectors = attend(self.codes, outputs, tokens.mask)
            mask = torch.ones(vectors.shape[:2], dtype=torch.bool, device=vectors.device)
        else:
            vectors, mask = self._chosen(outputs, tokens.mask)
        return self.context_tower.finish(vectors), mask

    def _chosen(self, outputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Select outputs ``[B, M, D]`` from ``[B, T, D]``, with their mask ``[B, M]``."""
        if self.kind == "first":
            return first_outputs(outputs, mask, self.n_codes)
        return last_outputs(outputs, mask, self.n_codes, self.kind == "last_h1")

    def context_mixture(self, tokens: Tokens) -> Mixture:
        """Context vectors as mixtures of token outputs: by the codes' attention, or each of a single output."""
        outputs = self.context_tower(tokens)
        if self.codes is not None:
            weights = attention(self.codes, outputs, tokens.mask)
            mask = torch.ones(weights.shape[:2], dtype=torch.bool, device=weights.device)
        else:
            weights, mask = self._chosen(each_alone(tokens.mask), tokens.mask)
        return self.context_tower.mixture(weights, outputs, mask)

    def read_first_outputs_only(self) -> None:
        """Compute only the first output of the candidates' last layer, if it suffices; contexts need all outputs."""
        if self.reduction == "first" and self.candidate_tower is not self.context_tower:
            self.candidate_tower.backbone.compute_first_output_only()

    def new_parameters(self) -> list[nn.Parameter]:
        """The codes and projections."""
        return [*([] if self.codes is None else [self.codes]), *super().new_parameters()]


def attend(codes: Tensor, outputs: Tensor, mask: Tensor) -> Tensor:
    """Each code's weighted mean of the token outputs: ``softmax(codes . outputs) . outputs``, in fp32.

    Args:
        codes: ``[M, D]``.
        outputs: ``[B, T, D]``.
        mask: ``[B, T]``, true on real tokens.

    Returns:
        ``[B, M, D]``.

    >>> attend(torch.zeros(1, 1), torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]]))
    tensor([[[2.]]])
    """
    with full_precision(outputs):
        return attention(codes, outputs, mask) @ outputs.float()


def attention(codes: Tensor, outputs: Tensor, mask: Tensor) -> Tensor:
    """The weight of each token's output in each code's vector, ``[B, M, T]``: ``softmax(codes . outputs)``, in fp32.

    Args:
        codes, outputs, mask: see ``attend``.

    >>> attention(torch.zeros(1, 1), torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]]))
    tensor([[[0.5000, 0.5000, 0.0000]]])
    """
    with full_precision(outputs):
        dots = codes.float() @ outputs.float().transpose(1, 2)
        return torch.softmax(dots.masked_fill(~mask[:, None, :], -torch.inf), dim=-1)
