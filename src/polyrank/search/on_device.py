"""Scans on a device, which keeps a copy of the candidates and bounds all scores; the CPU scores the best in full.

The copy holds vectors as they are stored (bf16, int8), or fp32 ones rounded to bf16. The device multiplies in fp32, so
the bounds allow for this rounding and for sums of fp32 in any order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polyrank.devices.choice import full_products
from polyrank.index.protocol import Block
from polyrank.search.best import Best
from polyrank.search.blocks import ROUNDING, SMALLEST, as_tensor, derive, norms_of, to_bf16
from polyrank.search.scan import COLUMNS, LOWEST, SPENT
from polyrank.search.scoring import loose_bounds
from polyrank.storage.quantized import AnyVectors, PackedVectors

LEAST = 4096  # candidates of a block; the CPU scans fewer as fast
ROWS_AT_A_TIME = 65_536  # copied to the device
NUMBERS = 2**26  # of a chunk's vectors or products: 256 MB
BOUNDS = 2**29  # kept at a time: 2 GB


@dataclass(frozen=True, slots=True)
class DeviceVectors:
    """A block's vectors on a device.

    Args:
        values: ``[n, D]``, in bf16 or int8.
        scales: ``[n]``, of int8; None: bf16.
        norms: ``[n]``, of the stored vectors, never too small.
        row_errors: ``[n]``, norms of stored vectors less these, never too small.
    """

    values: Tensor
    scales: Tensor | None
    norms: Tensor
    row_errors: Tensor

    def __getitem__(self, part: slice) -> Tensor:
        """Vectors ``[n, D]`` in fp32."""
        vectors = self.values[part].float()
        return vectors if self.scales is None else vectors.mul_(self.scales[part, None])


def device_vectors(vectors: AnyVectors, device: torch.device) -> DeviceVectors | None:
    """The copy of a block's vectors, made once; None: it would take more than half of the device's free memory."""
    (copy,) = derive(f"on {device}", vectors, lambda array: (_copy(array, device),))
    return copy


def _copy(vectors: AnyVectors, device: torch.device) -> DeviceVectors | None:
    (n, d), packed = vectors.shape, vectors if isinstance(vectors, PackedVectors) else None
    scales = None if packed is None or packed.scales is None else as_tensor(packed.scales)
    if n * (d * (2 if scales is None else 1) + 8) > torch.cuda.mem_get_info(device)[0] // 2:
        return None
    values = torch.empty((n, d), dtype=torch.bfloat16 if scales is None else torch.int8, device=device)
    row_errors = torch.zeros(n, device=device)
    for start in range(0, n, ROWS_AT_A_TIME):
        part = slice(start, start + ROWS_AT_A_TIME)
        if packed is None:
            rounded, errors = to_bf16(as_tensor(vectors[part]))
            row_errors[part] = errors.to(device)
        elif scales is None:
            rounded = as_tensor(packed.values[part].view("<i2")).view(torch.bfloat16)
        else:
            rounded = as_tensor(packed.values[part])
        values[part] = rounded.to(device)
    norms = torch.from_numpy(norms_of(vectors)).to(device)
    return DeviceVectors(values, None if scales is None else scales.to(device), norms, row_errors)


def scan_on_device(bests: Sequence[Best], block: Block, copy: DeviceVectors) -> None:
    """Offer each context all candidates of a block that may be among its best.

    Args:
        bests: collect the results, one for each context.
        block: not empty.
        copy: its vectors.
    """
    device = copy.values.device
    added = None if block.offsets is None else as_tensor(block.offsets).to(device)
    dead = None if block.alive is None else torch.from_numpy(~block.alive).to(device)
    for some in _passes(bests, len(block.rows)):
        with full_products(device):
            bounds = upper_bounds(some, copy)
        if added is not None:
            bounds += added
            bounds += 4.0 * ROUNDING * bounds.abs()  # the sum is rounded, and so is the score's
        if dead is not None:
            bounds.masked_fill_(dead, SPENT)
        for best, limits in zip(some, bounds, strict=True):
            _offer(best, block, limits)


def upper_bounds(bests: Sequence[Best], copy: DeviceVectors) -> Tensor:
    """Upper bounds ``[B, n]`` of the scores, before offsets."""
    contexts = torch.cat([best.contexts for best in bests]).to(copy.values.device).T.contiguous()
    sizes = [len(best.contexts) for best in bests]
    n, d = copy.values.shape
    result = torch.empty((len(bests), n), device=copy.values.device)
    n_rows = max(NUMBERS // max(contexts.shape[1], d), 1)
    for start in range(0, n, n_rows):
        part = slice(start, min(start + n_rows, n))
        products = copy[part] @ contexts
        for number, (best, dots) in enumerate(zip(bests, torch.split(products, sizes, 1), strict=True)):
            error = copy.norms[part] * best.rounding + SMALLEST
            error += copy.row_errors[part] * (best.norm * (1.0 + 1e-6) + best.rounding)
            result[number, part] = loose_bounds(dots, error, compiled=False)
    return result


def _passes(bests: Sequence[Best], n: int) -> Iterator[list[Best]]:
    """Contexts that are bounded together: limited in vectors and in bounds."""
    some: list[Best] = []
    for best in bests:
        full = sum(len(one.contexts) for one in some) + len(best.contexts) > COLUMNS or (len(some) + 1) * n > BOUNDS
        if some and full:
            yield some
            some = []
        some.append(best)
    yield some


def _offer(best: Best, block: Block, bounds: Tensor) -> None:
    """Offer the few largest bounds, which sets the threshold, then all that reach it."""
    if best.threshold == -np.inf:
        values, first = bounds.topk(min(2 * best.k, len(bounds)))
        best.offer(block, first.cpu().numpy(), values.cpu().numpy())
        bounds[first] = SPENT
    # NaN reaches too, and is refused later
    reach = torch.nonzero(~(bounds < max(best.threshold, LOWEST)))[:, 0]
    best.offer(block, reach.cpu().numpy(), bounds[reach].cpu().numpy())
    best.ways.append("device")
