"""The Cross-encoder: one network encodes context and candidate together and returns a score.

Shapes: P pairs, T tokens.
"""

from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from polyrank.config.models import PairReduction
from polyrank.devices.choice import full_precision
from polyrank.models.backbone import Backbone
from polyrank.models.bert import draw_as_bert
from polyrank.models.network import Network
from polyrank.models.reductions import Pooling
from polyrank.text import Tokens


class PairNetwork(Network):
    """A network that scores pairs by a head on what it reads of a transformer's outputs."""

    pairwise = True
    pooling: Pooling
    head: nn.Module

    def zero_head(self) -> None:
        """Set the last layer to zero, so that every score is 0 until the network is trained."""
        for parameter in [*self.head.modules()][-1].parameters():
            nn.init.zeros_(parameter)

    def new_parameters(self) -> list[nn.Parameter]:
        """The head, with what it reads."""
        return [*self.pooling.parameters(), *self.head.parameters()]


class CrossEncoder(PairNetwork):
    """A Cross-encoder: a head on the outputs of the pair.

    Args:
        backbone: the transformer.
        head: "linear", h_1 W as in Humeau et al.; "mlp", a tanh layer first as in Tao et al. (the layout of a BERT
            sequence classifier: pooler, then classifier).
        reduction: what the head reads: the "first" output, or the "mean" or "learnt" mean of all outputs.
        dropout: before each linear layer of the head.

    Source: Humeau et al., Poly-encoders (ICLR 2020), section 4.3; Tao et al., Efficient and Effective Retrieval-based
        Dialogue via Mutual Learning, section 3.
    """

    head: nn.Sequential

    def __init__(
        self,
        backbone: Backbone,
        *,
        head: Literal["linear", "mlp"],
        reduction: PairReduction = "first",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dropout, self.backbone = dropout, backbone
        size = backbone.dimension
        self.pooling = Pooling(reduction, size)
        hidden = [nn.Linear(size, size), nn.Tanh()] if head == "mlp" else []
        self.head = nn.Sequential(*hidden, nn.Linear(size, 1))
        self.head.apply(draw_as_bert)

    def forward(self, tokens: Tokens) -> Tensor:
        """Scores ``[P]`` of pairs, raw fp32."""
        values: Tensor = self.pooling(self.backbone(tokens).float(), tokens.mask)
        with full_precision(values):
            for layer in self.head:
                if isinstance(layer, nn.Linear):
                    values = F.dropout(values, self.dropout, self.training)
                values = layer(values)
        return values[:, 0]

    def shape(self) -> dict[str, Any]:
        """The backbone's configuration."""
        return dict(self.backbone.config.to_dict())

    def trunks(self) -> list[Backbone]:
        """The one transformer."""
        return [self.backbone]

    def read_first_outputs_only(self) -> None:
        """Compute only the first output of the last layer, if the head reads no other."""
        if self.pooling.reduction == "first":
            self.backbone.compute_first_output_only()
