"""Distributed batches: each process encodes a share of the texts, and all processes gather the candidates' vectors.

Each process encodes and scores the contexts of its share. If candidates are shared by the batch, their scores are too
many to exchange: each process computes the loss of its contexts (``row_losses``). The few scores of lists are
gathered; every process computes the loss of the whole batch from them, and propagates the gradients of those that it
computed. In both cases the sum of gradients over processes is exactly the batch's gradient.

In fp32, results equal those of one process up to rounding: the order in which a product of matrices adds depends on
their shape, and a process has fewer rows. A first loss differs by up to 5e-7 of itself or of the largest score, if
that is larger; later losses of a single process with another number of threads differ as much.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.devices import distributed
from polyrank.text import Tokens, pad
from polyrank.text.tokens import Row, to_device
from polyrank.training.encoding import Vectors, encode_in_parts


@dataclass(frozen=True, slots=True)
class Share:
    """The texts of a batch that this process encodes.

    Args:
        tokens: of the process's own texts; of one that it need not encode if it has none, so that it knows the shape
            of vectors and has a graph.
        counts: how many texts each process has.
        rows: the ids of all texts of the batch, in host memory.
        own: the places in the batch of the texts that this process has, in host memory.
        back: ``[B]``: the place of each text of the batch in the concatenation of all shares; None: one process.
    """

    tokens: Tokens
    counts: tuple[int, ...]
    rows: Sequence[Row]
    own: Tensor
    back: Tensor | None = None

    def to(self, device: torch.device) -> "Share":
        """The same share on a device."""
        back = None if self.back is None else to_device(self.back, device)
        return Share(self.tokens.to(device), self.counts, self.rows, self.own, back)


def share_of(rows: Sequence[Row], segments: Sequence[Sequence[int]] | None = None, *, pad_id: int) -> Share:
    """The share of this process in the texts of a batch, padded, with the work of a process like any other's.

    Args:
        rows: the ids of each text; the same in all processes.
        segments: as for ``pad``.
        pad_id: the padding id.
    """
    n, rank = distributed.world_size(), distributed.rank()
    shares = [np.arange(len(rows))] if n == 1 else deal([len(row) for row in rows], n)
    encoded = shares[rank] if len(shares[rank]) else shares[0][:1]
    return Share(
        pad([rows[i] for i in encoded], segments and [segments[i] for i in encoded], pad_id),
        tuple(map(len, shares)),
        rows,
        torch.from_numpy(shares[rank]),
        None if n == 1 else torch.from_numpy(np.concatenate(shares).argsort()),
    )


def deal(lengths: Sequence[int], n: int) -> list[NDArray[np.intp]]:
    """The places of the texts of each of n processes, which take turns from the longest text to the shortest.

    >>> [places.tolist() for places in deal([5, 9, 7], 2)]
    [[1, 0], [2]]
    """
    order = np.argsort(-np.asarray(lengths), kind="stable")
    return [order[first::n] for first in range(n)]


def encode_own(encode: Callable[[Tokens], Vectors], share: Share, size: int | None) -> Vectors:
    """The encodings of the texts of this process, in the order of ``share.own``.

    Args:
        encode: as for ``encode_in_parts``.
        share: of this process.
        size: texts per chunk, within a process's share.
    """
    vectors, n = encode_in_parts(encode, share.tokens, size), len(share.own)
    if n == len(share.tokens.ids):
        return vectors
    if isinstance(vectors, Tensor):
        return cast(Vectors, vectors[:n])  # type: ignore[redundant-cast]  # for one of the two kinds
    return cast(Vectors, tuple(part[:n] for part in vectors))


def encode_in_shares(encode: Callable[[Tokens], Tensor], share: Share, size: int | None) -> Tensor:
    """The encodings of all texts of a batch, of which each process encodes its share, with the same result in each.

    Gradients reach the weights of the process that encoded the text. They come from the losses of all processes, of
    which each has a part, see ``row_losses``.

    Args:
        encode: as for ``encode_in_parts``.
        share: of this process.
        size: texts per chunk, within a process's share.
    """
    return _gathered(encode_own(encode, share, size), share, of_parts=True)


def gathered(rows: Tensor, share: Share) -> Tensor:
    """The rows of all texts of a batch, in order; each process then computes the whole loss from them.

    Args:
        rows: ``[n, ...]``: of the texts of this process, in the order of ``share.own``.
        share: of this process.
    """
    return _gathered(rows, share, of_parts=False)


def _gathered(rows: Tensor, share: Share, of_parts: bool) -> Tensor:
    if share.back is None:
        return rows
    return cast(Tensor, _Gathered.apply(rows, share.counts, of_parts))[share.back]  # type: ignore[no-untyped-call]  # untyped in torch


class _Gathered(torch.autograd.Function):
    """The rows of all processes. Their gradients are complete if each computes the whole loss, else summed."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: Sequence[int], of_parts: bool) -> Tensor:
        ctx.of_parts = of_parts
        start = sum(counts[: distributed.rank()])
        ctx.rows = slice(start, start + len(rows))
        return distributed.all_gather_rows(rows, counts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        gradient = gradients[0]
        if ctx.of_parts:
            gradient = gradient.clone(memory_format=torch.contiguous_format)
            distributed.all_reduce_sum(gradient)
        return gradient[ctx.rows], None, None
