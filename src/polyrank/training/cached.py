"""The gradient cache: batches of any size in the memory of one chunk, with the gradients of the whole batch.

The loss is computed from the vectors of all texts. The forward pass encodes them chunk by chunk without a graph. The
backward pass encodes each chunk again, with the same random numbers and a graph, and propagates the gradients of its
vectors to the weights. This costs about one forward pass more than a plain step. It works with any loss and network.

Source: Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup (2021), section 3,
https://arxiv.org/abs/2101.06983
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from polyrank.devices.random_state import random_state, restored_random_state, set_random_state
from polyrank.text import Tokens
from polyrank.training.exchange import accumulating
from polyrank.training.grouped import Vectors, encode_in_groups, in_order


def encode_in_chunks(encode: Callable[[Tokens], Vectors], tokens: Tokens, size: int | None) -> Vectors:
    """``encode(tokens)``; with more than ``size`` texts, the graph keeps only the results.

    Texts of similar length share a chunk. Gradients reach the weights through ``backward``; ``torch.autograd.grad``
    does not support this.

    Args:
        encode: encodes each text on its own, to one tensor or several distinct tensors of shape ``[B]``, ``[B, D]`` or
            ``[B, M, D]``. If M differs between chunks, the rows of smaller chunks are padded with zeros, and a mask
            ``[B, M]`` with false.
        tokens: of the batch.
        size: texts per chunk; None: all at once, without the cache.
    """
    if size is None or len(tokens.ids) <= size:
        return encode_in_groups(encode, tokens)
    lengths = tokens.mask.sum(1).cpu().numpy() if tokens.lengths is None else tokens.lengths
    order = torch.from_numpy((-lengths).argsort(kind="stable"))
    start = torch.empty(0, device=tokens.ids.device, requires_grad=True)  # the leaf of a graph without weights
    chunks: list[Any] = [_Chunk.apply(start, _Replay(encode, tokens.part(rows))) for rows in order.split(size)]  # type: ignore[no-untyped-call]  # untyped in torch
    return cast(Vectors, in_order(chunks, [order]))


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
            return encode_in_groups(self.encode, self.tokens)  # type: ignore[no-any-return]  # one tensor or several

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
