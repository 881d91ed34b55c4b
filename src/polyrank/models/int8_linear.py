"""Linear layers with 8-bit weights, for inference on a CPU.

Weights have a scale for each output, inputs a scale and a smallest value for each token, so a token's outputs do not
depend on its batch or on padding. Sums of products are exact integers. torch's compiler uses the same two functions of
oneDNN; they are not documented, so ``devices.choice.cpu_has_int8`` looks for them.

Shapes: N tokens, I inputs, O outputs.

Source: Dettmers et al., LLM.int8() (NeurIPS 2022), section 2 (vector-wise and zero-point quantization).
"""

import torch
from torch import Tensor, nn

INPUT_LEVELS = 255
WEIGHT_LEVELS = 64
"""Processors without VNNI add pairs of products in 16 bits, which overflow if weights use all 8 bits."""

SMALLEST = 1e-20
"""The least range of a token's inputs, so that its inverse is finite."""


class Int8Linear(nn.Module):
    """A linear layer in 8 bits, for inference; it cannot be trained or saved.

    Args:
        layer: in fp32, on the CPU.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach()
        scale = weight.abs().amax(1, keepdim=True).clamp_min(SMALLEST) / WEIGHT_LEVELS
        rounded = (weight / scale).round_()
        self.scale, self.sums = scale[:, 0].contiguous(), (rounded * scale).sum(1)
        self.bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach()
        self.zeros = torch.zeros(len(weight), dtype=torch.int32)
        self.weight = torch.ops.onednn.qlinear_prepack(rounded.to(torch.int8), None)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., I]`` to ``[..., O]``."""
        low = x.amin(-1, keepdim=True)
        scale = (x.amax(-1, keepdim=True) - low).clamp_min_(SMALLEST) / INPUT_LEVELS
        # x = middle + scale * signed; torch converts to signed bytes three times as fast as to unsigned ones
        middle = low + 128 * scale
        signed = (x - middle).div_(scale).round_().to(torch.int8)
        unsigned = signed.view(torch.uint8).bitwise_xor_(128)  # adds 128
        products = torch.ops.onednn.qlinear_pointwise(
            unsigned, 1.0, 128, self.weight, self.scale, self.zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        result: Tensor = torch.addcmul(self.bias, middle, self.sums).addcmul_(products, scale)
        return result


def quantize_linear_layers(network: nn.Module) -> None:
    """Replace a network's linear layers, on the CPU.

    Subclasses of ``nn.Linear`` are not replaced, because they may compute something else.
    """
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, Int8Linear(child))
