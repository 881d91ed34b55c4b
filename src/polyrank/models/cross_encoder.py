"""The Cross-encoder: one network encodes context and candidate together and returns a score.

Shapes: P pairs, T tokens.
"""

from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from polyrank.devices.choice import full_precision
from polyrank.models.backbone import Backbone
from polyrank.models.first_output import shorten
from polyrank.models.network import Network
from polyrank.text import Tokens


class CrossEncoder(Network):
    """A Cross-encoder: a head on the first output of the pair.

    Args:
        backbone: the transformer.
        head: "linear", h_1 W as in Humeau et al.; "mlp", a tanh layer first as in Tao et al. (the layout of a BERT
            sequence classifier: pooler, then classifier).
        dropout: before each linear layer of the head.

    Source: Humeau et al., Poly-encoders (ICLR 2020), section 4.3; Tao et al., Efficient and Effective Retrieval-based
        Dialogue via Mutual Learning, section 3.
    """

    def __init__(self, backbone: Backbone, *, head: Literal["linear", "mlp"], dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.backbone = backbone
        size = backbone.dimension
        hidden = [nn.Linear(size, size), nn.Tanh()] if head == "mlp" else []
        self.head = nn.Sequential(*hidden, nn.Linear(size, 1))
        for module in self.head:
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)  # as BERT's own layers start
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tokens) -> Tensor:
        """Scores ``[P]`` of pairs, raw fp32."""
        values: Tensor = self.backbone(tokens)[:, 0].float()
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
        """Compute only the first output of the last layer, which is the head's only input."""
        shorten(self.backbone)

    def new_parameters(self) -> list[nn.Parameter]:
        """The head."""
        return list(self.head.parameters())
