"""Linear layers whose bf16 weights have the memory layout of the processor's instructions, for inference on a CPU.

Otherwise oneDNN reorders the weights in every forward pass, which for one context of a hundred words takes a third of
the time. torch's compiler replaces linear layers by the same two functions. They are not documented, so if torch lacks
them, or the processor has no bf16 instructions, layers are not changed.
"""

from typing import Any

import torch
from torch import Tensor, nn

from polyrank.devices.choice import cpu_has_bf16
from polyrank.models.int8_linear import quantize_linear_layers

TYPICAL_TOKENS = 256  # per pass, between one context and a batch; other numbers are correct, and hardly slower


class PackedLinear(nn.Module):
    """A linear layer for inference; it cannot be trained or saved.

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


def narrow_weights(network: nn.Module, dtype: torch.dtype) -> None:
    """Hold a network's weights in bf16, or those of its linear layers in int8."""
    if dtype == torch.int8:
        quantize_linear_layers(network)
        return
    network.to(torch.bfloat16)
    pack_linear_layers(network)


def pack_linear_layers(network: nn.Module) -> None:
    """Replace a network's bf16 linear layers by packed ones, if torch and the processor support it.

    Subclasses of ``nn.Linear`` are not replaced, because they may compute something else.
    """
    library: Any = torch.ops.mkldnn
    if not cpu_has_bf16() or not hasattr(library, "_reorder_linear_weight"):
        return
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child.weight.dtype == torch.bfloat16 and child.weight.device.type == "cpu":
                setattr(module, name, PackedLinear(child))
