"""The gradient cache: batches of any size in the memory of one chunk, with the gradients of the whole batch.

The loss sees the vectors of all texts. They are encoded chunk by chunk without a graph; on the way back each chunk is
encoded once more, with the same random numbers and with a graph, and takes the gradients of its vectors on to the
weights. That is about one forward pass more than a plain step has. Knows no loss and no network.

Source: Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup (2021), section 3,
https://arxiv.org/abs/2101.06983
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from polyrank.text import Tokens
from polyrank.training.grouped import Vectors, in_groups, in_order


def in_chunks(encode: Callable[[Tokens], Vectors], tokens: Tokens, size: int | None) -> Vectors:
    """``encode(tokens)``; where the texts are more than ``size``, a graph keeps nothing but the results of it.

    Texts of like length share a chunk. Gradients reach weights by ``backward``; ``torch.autograd.grad`` does not see
    them.

    Args:
        encode: each text by itself, to one tensor or several that are ``[B]``, ``[B, D]`` or ``[B, M, D]``, no two of
            them the same. Where M differs from chunk to chunk, the rows of the shorter ones end in zeros; a mask
            ``[B, M]`` among the tensors is false there.
        tokens: of the batch.
        size: texts of a chunk; None: all at once, in the usual way.
    """
    if size is None or len(tokens.ids) <= size:
        return in_groups(encode, tokens)
    order = tokens.mask.sum(1).argsort(descending=True, stable=True)
    start = torch.empty(0, device=order.device, requires_grad=True)  # what a graph without weights begins with
    chunks: list[Any] = [_Chunk.apply(start, _Replay(encode, tokens.part(rows))) for rows in order.split(size)]  # type: ignore[no-untyped-call]  # untyped in torch
    return cast(Vectors, in_order(chunks, [order]))


class _Replay:
    """An encoding that can be repeated: it draws the same numbers again, and nobody else draws others for that."""

    def __init__(self, encode: Callable[[Tokens], Any], tokens: Tokens) -> None:
        self.encode, self.tokens, self.device = encode, tokens, tokens.ids.device
        # a backward pass has autocast settings of its own
        self.dtype = torch.get_autocast_dtype(self.device.type)
        self.narrows = torch.is_autocast_enabled(self.device.type)
        self.cuda = [self.device] if self.device.type == "cuda" else []
        self.random = torch.get_rng_state(), [torch.cuda.get_rng_state(device) for device in self.cuda]

    def __call__(self) -> Tensor | tuple[Tensor, ...]:
        # no narrow weights are kept: made without a graph, older versions of torch give them to those who need one
        with torch.autocast(self.device.type, self.dtype, self.narrows, cache_enabled=False):
            return in_groups(self.encode, self.tokens)  # type: ignore[no-any-return]  # one tensor or several

    def again(self) -> Tensor | tuple[Tensor, ...]:
        with torch.random.fork_rng(devices=self.cuda), torch.enable_grad():
            own, others = self.random
            torch.set_rng_state(own)
            for device, state in zip(self.cuda, others, strict=True):
                torch.cuda.set_rng_state(state, device)
            return self()


class _Chunk(torch.autograd.Function):
    """A chunk's vectors, a single node to those who take gradients back."""

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
            torch.autograd.backward(*zip(*pairs, strict=True))  # type: ignore[arg-type]  # two tuples
        return None, None
