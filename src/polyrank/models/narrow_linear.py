"""Linear layers with narrow weights, for inference on a CPU: in 8 bits, or in bf16 as the processor reads them.

8 bits: weights have a scale for each output, inputs a scale and a smallest value for each token, so a token's outputs
do not depend on its batch or on padding. Sums of products are exact integers. torch's compiler uses the same two
functions of oneDNN; they are not documented, so ``devices.choice.cpu_has_int8`` looks for them.

bf16: without the memory layout of the instructions, oneDNN reorders the weights in every forward pass, which for one
context of a hundred words takes a third of the time. If torch lacks the functions for it, or the processor has no bf16
instructions, layers are not changed.

Shapes: N tokens, I inputs, O outputs.

Source: Dettmers et al., LLM.int8() (NeurIPS 2022), section 2 (vector-wise and zero-point quantization).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from polyrank.devices.choice import cpu_has_bf16

INPUT_LEVELS = 255
WEIGHT_LEVELS = 64
"""Processors without VNNI add pairs of products in 16 bits, which overflow if weights use all 8 bits."""

SMALLEST = 1e-20
"""The least range of a token's inputs, so that its inverse is finite."""

TYPICAL_TOKENS = 256  # per pass, between one context and a batch; other numbers are correct, and hardly slower


@dataclass(frozen=True, slots=True)
class Rounded:
    """Inputs in 8 bits, which layers may share: x = middle + scale (unsigned - 128).

    Args:
        unsigned: ``[..., I]``.
        scale, middle: of each token, ``[..., 1]``.
    """

    unsigned: Tensor
    scale: Tensor
    middle: Tensor

    @classmethod
    def of(cls, x: Tensor) -> Self:
        """Round inputs ``[..., I]`` in fp32."""
        low = x.amin(-1, keepdim=True)
        scale = (x.amax(-1, keepdim=True) - low).clamp_min_(SMALLEST) / INPUT_LEVELS
        middle = low + 128 * scale
        signed = (x - middle).div_(scale).round_().to(torch.int8)  # three times as fast as to unsigned bytes
        return cls(signed.view(torch.uint8).bitwise_xor_(128), scale, middle)  # adds 128


class _Rounding(nn.Module):
    def forward(self, x: Tensor) -> Rounded:
        return Rounded.of(x)


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

    def forward(self, x: Tensor | Rounded) -> Tensor:
        """``[..., I]`` to ``[..., O]``."""
        x = x if isinstance(x, Rounded) else Rounded.of(x)
        products: Tensor = torch.ops.onednn.qlinear_pointwise(
            x.unsigned, 1.0, 128, self.weight, self.scale, self.zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        # in place: another block of this size would cost a page fault per 4 KiB, which takes as long as the products
        return products.mul_(x.scale).addcmul_(x.middle, self.sums).add_(self.bias)


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
    else:
        pack_linear_layers(network.to(torch.bfloat16))


def quantize_linear_layers(network: nn.Module) -> None:
    """Replace a network's linear layers, on the CPU; those with a ``shared_input`` then share its rounding."""
    _replace_linear_layers(network, Int8Linear, lambda weight: True)
    for module in network.modules():
        if hasattr(module, "shared_input"):
            module.shared_input = _Rounding()


def pack_linear_layers(network: nn.Module) -> None:
    """Replace a network's bf16 linear layers by packed ones, if torch and the processor support it."""
    library: Any = torch.ops.mkldnn
    if cpu_has_bf16() and hasattr(library, "_reorder_linear_weight"):
        fits = lambda weight: weight.dtype == torch.bfloat16 and weight.device.type == "cpu"  # noqa: E731
        _replace_linear_layers(network, PackedLinear, fits)


def _replace_linear_layers(
    network: nn.Module, kind: Callable[[nn.Linear], nn.Module], fits: Callable[[Tensor], bool]
) -> None:
    """Subclasses of ``nn.Linear`` are not replaced, because they may compute something else."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and fits(child.weight):
                setattr(module, name, kind(child))
