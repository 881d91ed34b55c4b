"""torch's operators of attention without padding, for a simulated device: on the CPU, text by text, from the formula.

Only the kernels are replaced. Arguments, devices and the derivative of the operators are torch's.
Shapes: N tokens of all texts, H heads, d dimensions of a head.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor


@contextmanager
def varlen_kernels(monkeypatch: pytest.MonkeyPatch, kernel: str = "flash") -> Iterator[list[int]]:
    """Inside, the simulated device has this kernel. Yields the number of tokens of each call."""
    sizes: list[int] = []

    def forward(query: Tensor, key: Tensor, value: Tensor, starts: Tensor, dropout: float, scale: float) -> Any:
        sizes.append(len(query))
        seed = torch.randint(2**40, (2,))
        parts = []
        for one, weights, kept in _texts(query, key, starts, dropout, scale, seed):
            parts.append(torch.einsum("hqk,khd->qhd", weights * kept, value[one]))
        return torch.cat(parts), seed

    def backward(
        gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, starts: Tensor, dropout: float, scale: float,
        seed: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        of_query, of_key, of_value = map(torch.empty_like, (query, key, value))
        for one, weights, kept in _texts(query, key, starts, dropout, scale, seed):
            of_weights = kept * torch.einsum("qhd,khd->hqk", gradient[one], value[one])
            of_dots = scale * weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True))
            of_query[one] = torch.einsum("hqk,khd->qhd", of_dots, key[one])
            of_key[one] = torch.einsum("hqk,qhd->khd", of_dots, query[one])
            of_value[one] = torch.einsum("hqk,qhd->khd", weights * kept, gradient[one])
        return of_query, of_key, of_value

    def flash(
        q: Tensor, k: Tensor, v: Tensor, starts: Tensor, same: Tensor, longest: int, other: int, dropout: float,
        causal: bool, debug: bool, *, scale: float,
    ) -> Any:  # fmt: skip
        _check(starts, same, longest, other, len(q))
        assert not causal
        assert not debug
        attended, seed = forward(q, k, v, starts, dropout, scale)
        return attended, q.new_zeros(q.shape[1], len(q)), seed, seed[:0], q[:0]

    def flash_backward(
        g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, starts: Tensor, same: Tensor,
        longest: int, other: int, dropout: float, causal: bool, seed: Tensor, unused: Tensor, *, scale: float,
    ) -> Any:  # fmt: skip
        return backward(g, q, k, v, starts, dropout, scale, seed)

    def efficient(
        q: Tensor, k: Tensor, v: Tensor, bias: None, starts: Tensor, same: Tensor, longest: int, other: int,
        dropout: float, mask: int, sums: bool, *, scale: float,
    ) -> Any:  # fmt: skip
        _check(starts, same, longest, other, q.shape[1])
        assert mask == 0
        assert sums == torch.is_grad_enabled()
        attended, seed = forward(q[0], k[0], v[0], starts, dropout, scale)
        return attended[None], q.new_zeros(1, q.shape[2], q.shape[1]), seed[0].clone(), seed[1].clone(), longest, other

    def efficient_backward(
        g: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: None, out: Tensor, starts: Tensor, same: Tensor,
        longest: int, other: int, sums: Tensor, dropout: float, seed: Tensor, offset: Tensor, mask: int, of_bias: bool,
        *, scale: float,
    ) -> Any:  # fmt: skip
        gradients = backward(g[0], q[0], k[0], v[0], starts, dropout, scale, seed[None])
        return *(each[None] for each in gradients), torch.empty(0)

    for name in ("flash", "efficient"):
        monkeypatch.setattr(torch.backends.cuda, f"can_use_{name}_attention", lambda _, own=name: own == kernel)
    with torch.library._scoped_library("aten", "IMPL") as library:
        for name, function in (("flash", flash), ("efficient", efficient)):
            library.impl(f"_{name}_attention_forward", function, "CPU")
        library.impl("_flash_attention_backward", flash_backward, "CPU")
        library.impl("_efficient_attention_backward", efficient_backward, "CPU")
        yield sizes


def _texts(
    query: Tensor, key: Tensor, starts: Tensor, dropout: float, scale: float, seed: Tensor
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Of each text its tokens, its weights ``[H, q, k]``, and the factors by which dropout multiplies them."""
    generator = torch.Generator().manual_seed(int(seed[0]))
    for first, end in pairwise(starts.tolist()):
        one = slice(first, end)
        weights = torch.softmax(scale * torch.einsum("qhd,khd->hqk", query[one], key[one]), -1)
        yield one, weights, (torch.rand(weights.shape, generator=generator) >= dropout) / (1 - dropout)


def _check(starts: Tensor, same: Tensor, longest: int, other: int, n: int) -> None:
    """Check what the kernels require."""
    lengths = starts.diff()
    assert starts.dtype == torch.int32
    assert torch.equal(starts, same)
    assert (int(starts[0]), int(starts[-1])) == (0, n)
    assert int(lengths.min()) > 0
    assert int(lengths.max()) <= longest == other
