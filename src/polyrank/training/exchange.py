"""Distributed processes sum their gradients while the backward pass still computes others.

The weights of a network are dealt to buckets, last layers first, which is the order of the backward pass. A bucket is
sent when all its gradients are complete and the buckets before it are sent; the backward pass continues meanwhile.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from polyrank.devices import distributed

BUCKET = 2**22
"""Numbers per bucket, at least one weight: 16 MB in fp32, enough to use a network well, few enough to start early."""


class _Accumulation:
    def __init__(self) -> None:
        self.depth = 0


_accumulation = _Accumulation()


@contextmanager
def accumulating() -> Iterator[None]:
    """Inside, backward passes compute a part of the gradients only: more follows, so none is complete."""
    _accumulation.depth += 1
    try:
        yield
    finally:
        _accumulation.depth -= 1


@contextmanager
def summed_gradients(model: nn.Module) -> Iterator[None]:
    """At the end, the gradients that were computed inside are replaced by their sums over all processes.

    A weight stays without a gradient if it has one in no process. All but the last of several backward passes must be
    inside ``accumulating``; gradients that follow such passes only are sent at the end.

    Args:
        model: its weights have no gradients before.
    """
    if distributed.world_size() == 1:
        yield
        return
    exchange = _Exchange([weight for weight in model.parameters() if weight.requires_grad][::-1])
    hooks = [weight.register_post_accumulate_grad_hook(exchange.complete) for weight in exchange.incomplete]  # type: ignore[no-untyped-call]  # untyped in torch
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    exchange.finish()


class _Exchange:
    """The sums of one backward pass.

    Args:
        weights: in the order in which they are sent.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self.incomplete = dict.fromkeys(weights)
        self._buckets = _buckets(weights)
        self._sent: list[tuple[Tensor, Callable[[], None]]] = []
        self._start = distributed.start_sums()

    def complete(self, weight: Tensor) -> None:
        """Note that a gradient is complete; send the buckets that are."""
        if _accumulation.depth:
            return
        self.incomplete.pop(weight, None)
        for bucket in self._buckets[len(self._sent) :]:
            if not self.incomplete.keys().isdisjoint(bucket):
                break
            self._send(bucket)

    def finish(self) -> None:
        """Send the other buckets, and set all gradients."""
        for bucket in self._buckets[len(self._sent) :]:
            self._send(bucket)
        for _, wait in self._sent:
            wait()
        flags = torch.cat([sums[: len(bucket)] for (sums, _), bucket in zip(self._sent, self._buckets, strict=True)])
        n_with = iter(flags.tolist())
        for (sums, _), bucket in zip(self._sent, self._buckets, strict=True):
            parts = sums[len(bucket) :].split_with_sizes([weight.numel() for weight in bucket])
            for weight, total in zip(bucket, parts, strict=True):
                assert weight.grad is None, "a gradient was changed after it was sent; see accumulating"
                weight.grad = total.view_as(weight) if next(n_with) else None

    def _send(self, bucket: Sequence[Tensor]) -> None:
        there = torch.tensor([weight.grad is not None for weight in bucket]).to(bucket[0])
        parts = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in bucket]
        sums = torch.cat([there, *(part.reshape(-1) for part in parts)])
        for weight in bucket:
            weight.grad = None  # the memory for other gradients
        self._sent.append((sums, self._start(sums)))


def _buckets(weights: Sequence[Tensor]) -> list[list[Tensor]]:
    """Consecutive weights of at most ``BUCKET`` numbers together.

    >>> [[len(weight) for weight in bucket] for bucket in _buckets([torch.empty(n) for n in (1, BUCKET, 2, 3)])]
    [[1], [4194304], [2, 3]]
    """
    buckets: list[list[Tensor]] = []
    n = BUCKET
    for weight in weights:
        n += weight.numel()
        if n > BUCKET:
            buckets.append([])
            n = weight.numel()
        buckets[-1].append(weight)
    return buckets
