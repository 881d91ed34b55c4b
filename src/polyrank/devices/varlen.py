"""Attention within texts of different lengths, without padding: where torch has it, and how it is called.

torch's nested tensors call the same operators, but take a millisecond per layer; ``torch.nn.attention.varlen`` has no
dropout. Shapes: B texts, N tokens of all, H heads, d dimensions of a head.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.backends import cuda

Kernel = Literal["flash", "efficient"]
MAX_HEAD_SIZE = 128  # above, some GPUs compute no gradients


def varlen_kernel(weight: Tensor, head_size: int) -> Kernel | None:
    """The kernel for attention without padding on a device; None: there is none, or it is uncertain.

    It needs CUDA, on NVIDIA's GPUs, and heads of a multiple of 8 dimensions, at most 128. torch decides the rest from
    the GPU, the type and the program's settings: "flash" computes in bf16 and fp16 from the Ampere generation,
    "efficient" also in fp32, and in fp16 on older GPUs.

    Args:
        weight: of the network, whose device and type count; autocast changes the type.
        head_size: d.
    """
    device, dtype = weight.device, weight.dtype
    if device.type != "cuda" or torch.version.hip is not None or head_size % 8 or head_size > MAX_HEAD_SIZE:
        return None
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    heads = torch.empty(1, 1, 8, head_size, device=device, dtype=dtype)
    question = cuda.SDPAParams(heads, heads, heads, None, 0.0, False, False)  # no mask, not causal, no shared heads
    if cuda.can_use_flash_attention(question):
        return "flash"
    return "efficient" if cuda.can_use_efficient_attention(question) else None


def varlen_attention(
    kernel: Kernel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    longest: int,
    *,
    dropout: float,
    scale: float,
) -> Tensor:
    """Attention of each token to the tokens of its text.

    Args:
        kernel: from ``varlen_kernel``.
        query, key, value: ``[N, H, d]``, text by text.
        starts: ``[B + 1]`` int32: the first token of each text, and N. No text is empty.
        longest: tokens of the longest text.
        dropout: share of the weights to drop.
        scale: of the products.

    Returns:
        ``[N, H, d]``.
    """
    texts = (starts, starts, longest, longest)  # of queries and of keys
    result: Tensor
    if kernel == "flash":
        result = torch.ops.aten._flash_attention_forward(query, key, value, *texts, dropout, False, False, scale=scale)[
            0
        ]
        return result
    batch = (heads[None] for heads in (query, key, value))
    result = torch.ops.aten._efficient_attention_forward(
        *batch, None, *texts, dropout, 0, torch.is_grad_enabled(), scale=scale
    )[0]
    return result[0]
