"""Encoding the texts of a batch in parts: in the memory of a few texts, or with little padding.

Chunks are for memory, whatever the batch's size. The loss is computed from the vectors of all texts. The forward pass
encodes them chunk by chunk without a graph. The backward pass encodes each chunk again, with the same random numbers
and a graph, and propagates the gradients of its vectors to the weights. This costs about one forward pass more than a
plain step. It works with any loss and network. Groups are for speed on a CPU, where time depends on tokens and not on
calls; on other devices networks pack the texts, see ``models.backbone``.

Source of chunks: Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup (2021), section 3,
https://arxiv.org/abs/2101.06983
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from polyrank.devices.random_state import random_state, restored_random_state, set_random_state
from polyrank.text import Tokens
from polyrank.text.tokens import to_device, token_batches
from polyrank.training.exchange import accumulating

Vectors = TypeVar("Vectors", Tensor, tuple[Tensor, ...])

GROUP = 1024
"""Padded tokens per group: few enough for similar lengths, enough for matrices that keep a core busy."""


def encode_in_parts(encode: Callable[[Tokens], Vectors], tokens: Tokens, size: int | None = None) -> Vectors:
    """``encode(tokens)``; with more than ``size`` texts, the graph keeps only the results.

    Texts of similar length share a part. Gradients of chunks reach the weights through ``backward``;
    ``torch.autograd.grad`` does not support this.

    Args:
        encode: encodes each text on its own, to one tensor or several distinct tensors of shape ``[B]``, ``[B, D]`` or
            ``[B, M, D]``. If M differs between parts, the rows of smaller parts are padded with zeros, and a mask
            ``[B, M]`` with false.
        tokens: of the batch, ``[B, T]``.
        size: texts per chunk; None: all at once.
    """
    if size is not None and len(tokens.ids) > size:
        order = torch.from_numpy((-tokens.host_lengths()).argsort(kind="stable"))
        parts: Sequence[Tensor] = order.split(size)  # type: ignore[no-untyped-call]  # untyped in torch
        start = torch.empty(0, device=tokens.ids.device, requires_grad=True)  # the leaf of a graph without weights
        chunks: list[Any] = [_Chunk.apply(start, _Replay(encode, tokens.part(rows))) for rows in parts]  # type: ignore[no-untyped-call]  # untyped in torch
        return cast(Vectors, _in_order(chunks, parts))
    if tokens.ids.device.type != "cpu" or tokens.ids.numel() <= GROUP:
        return encode(tokens)
    groups = [torch.tensor(group) for group in token_batches(tokens.host_lengths().tolist(), GROUP)]
    return _in_order([encode(tokens.part(group)) for group in groups], groups)


def _in_order(parts: Sequence[Vectors], rows: Sequence[Tensor]) -> Vectors:
    """Concatenate the results of parts of a batch, in the order of the batch.

    Args:
        parts: for each part, one tensor or several, ``[B, ...]``.
        rows: for each part, the numbers of its texts in the batch, in host memory.
    """
    first = parts[0] if isinstance(parts[0], Tensor) else parts[0][0]
    back = to_device(torch.cat(list(rows)).argsort(), first.device)
    if isinstance(parts[0], Tensor):
        return cast(Vectors, _joined(cast(Sequence[Tensor], parts))[back])  # type: ignore[redundant-cast]  # for one of the two kinds
    return cast(Vectors, tuple(_joined(column)[back] for column in zip(*parts, strict=True)))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate parts, padded to the widest."""
    if parts[0].dim() < 2:
        return torch.cat(list(parts))
    width = max(part.shape[1] for part in parts)
    return torch.cat([F.pad(part, (*[0, 0] * (part.dim() - 2), 0, width - part.shape[1])) for part in parts])


class _Replay:
    """An encoding that can be repeated with the same random numbers, without changing the global random state."""

    def __init__(self, encode: Callable[[Tokens], Any], tokens: Tokens) -> None:
        self.encode, self.tokens, self.device = encode, tokens, tokens.ids.device
        # the backward pass runs with other autocast settings
        self.dtype = torch.get_autocast_dtype(self.device.type)
        self.narrows = torch.is_autocast_enabled(self.device.type)
        self.random = random_state(self.device)

    def __call__(self) -> Tensor | tuple[Tensor, ...]:
        # no cache of narrow weights: those made without a graph would be reused where a graph is needed
        with torch.autocast(self.device.type, self.dtype, self.narrows, cache_enabled=False):
            return encode_in_parts(self.encode, self.tokens)  # type: ignore[no-any-return]  # one tensor or several

    def again(self) -> Tensor | tuple[Tensor, ...]:
        with restored_random_state(self.device), torch.enable_grad():
            set_random_state(self.random, self.device)
            return self()


class _Chunk(torch.autograd.Function):
    """The vectors of a chunk as a single node of the graph."""

    @staticmethod
    def forward(ctx: Any, start: Tensor, replay: _Replay) -> Tensor | tuple[Tensor, ...]:
        ctx.replay = replay
        ctx.set_materialize_grads(False)
        return replay()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, None]:
        again = ctx.replay.again()
        outputs = (again,) if isinstance(again, Tensor) else again
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if gradient is not None and output.requires_grad
        ]
        if pairs:
            with accumulating():
                torch.autograd.backward(*zip(*pairs, strict=True))  # type: ignore[arg-type]  # two tuples
        return None, None
