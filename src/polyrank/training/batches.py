"""The order of batches, and random negatives: pure functions of (seed, epoch, position), so a resumed run repeats."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def batch_order(
    lengths: Sequence[int], batch_size: int, *, seed: int, epoch: int, window: int = 50
) -> list[NDArray[np.int64]]:
    """Indices of each batch of an epoch: every example exactly once, those of like length together.

    All are shuffled, cut into windows of ``window`` batches, sorted by length in each window (so that padding is
    small), cut into batches, and the batches shuffled. A short last batch stays.

    Args:
        lengths: tokens of each example.
        batch_size: examples per batch.
        seed, epoch: what the order is a function of. To resume at position p, take ``[p:]``.
        window: batches that are sorted together; 1 for no sorting.

    Raises:
        ValueError: ``batch_size`` is below 1.

    >>> sorted(int(i) for batch in batch_order([3, 1, 2], 2, seed=1, epoch=0) for i in batch)
    [0, 1, 2]
    """
    if batch_size < 1:
        raise ValueError(f"batch_size {batch_size} is below 1; use at least 1")
    generator = np.random.Generator(np.random.PCG64([seed, epoch]))
    sizes = np.asarray(lengths, dtype=np.int64)
    shuffled = generator.permutation(len(sizes))
    span = max(1, window) * batch_size
    batches: list[NDArray[np.int64]] = []
    for start in range(0, len(shuffled), span):
        part = shuffled[start : start + span]
        if window > 1:
            part = part[np.argsort(sizes[part], kind="stable")]
        batches += [part[i : i + batch_size] for i in range(0, len(part), batch_size)]
    return [batches[i] for i in generator.permutation(len(batches))]
