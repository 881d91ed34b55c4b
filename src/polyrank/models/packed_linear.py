"""Linear layers whose bf16 weights lie as the processor multiplies them, for inference on a CPU.

Otherwise oneDNN lays the weights out anew in every pass, which for one context of a hundred words is a third of the
time. The two functions are those that torch's own compiler puts in place of a linear layer; they are not documented,
so where a torch has none, or the processor no instructions for bf16, layers stay as they are.
"""

from typing import Any

import torch
from torch import Tensor, nn

from polyrank.devices.choice import cpu_has_bf16

TYPICAL_TOKENS = 256  # of a pass, between one context and a batch; others are right too, and hardly slower


class PackedLinear(nn.Module):
    """A linear layer that can be neither trained nor saved.

    Args:
        layer: in bf16, on a CPU.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), TYPICAL_TOKENS)
        self.bias = None if layer.bias is None else layer.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return result


def pack_linear_layers(network: nn.Module) -> None:
    """Replace a network's linear layers in bf16 by packed ones, where torch and the processor can.

    A subclass of a linear layer may compute something else, and is left alone.
    """
    library: Any = torch.ops.mkldnn
    if not cpu_has_bf16() or not hasattr(library, "_reorder_linear_weight"):
        return
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child.weight.dtype == torch.bfloat16 and child.weight.device.type == "cpu":
                setattr(module, name, PackedLinear(child))
