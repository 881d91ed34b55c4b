"""The order of batches: a pure function of (seed, epoch, position), so a resumed run repeats it.

Shapes: N examples, B of them in a batch.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
ROUNDS = 10
BLOCK = 64  # consecutive batches whose permutations are computed together: each call costs as much as 2,000 numbers
CACHED_WINDOWS = 64  # batches of a small set return to the same windows


class BatchOrder:
    """Which examples each batch holds: every example once per epoch, examples of similar length together.

    The examples are shuffled and cut into windows of ``window`` batches. Each window is sorted by length, which keeps
    padding small, and cut into batches, and the batches are shuffled. A short last batch is kept. Both shuffles are
    permutations computed on demand, so neither the time until the first batch nor memory grows with N.

    Args:
        n: how many examples, N.
        sizes: a function from the numbers of examples ``[K]`` to their lengths ``[K]``; or all lengths ``[N]``.
        batch_size: B.
        seed: the order is a function of it and the epoch.
        window: batches that are sorted together; 1 for no sorting.

    Raises:
        ValueError: ``batch_size`` is below 1.

    >>> order = BatchOrder(3, [3, 1, 2], 2, seed=1)
    >>> len(order), sorted(int(i) for position in range(2) for i in order.batch(0, position))
    (2, [0, 1, 2])
    """

    def __init__(
        self, n: int, sizes: Callable[[Ints], Ints] | Sequence[int], batch_size: int, *, seed: int, window: int = 50
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size {batch_size} is below 1; use at least 1")
        if not callable(sizes):
            sizes = np.asarray(sizes, dtype=np.int64).__getitem__
        self._n, self._sizes, self._batch_size = n, sizes, batch_size
        self._seed, self._window = seed, max(1, window)
        self._members = lru_cache(CACHED_WINDOWS)(self._sorted_members)
        self._numbers, self._plain = lru_cache(1)(self._numbers_of), lru_cache(1)(self._plain_batches)

    def __len__(self) -> int:
        """Batches per epoch."""
        return -(-self._n // self._batch_size)

    def batch(self, epoch: int, position: int) -> Ints:
        """The numbers of the examples ``[B]`` of a batch.

        Raises:
            IndexError: ``position`` is outside the epoch.
        """
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} of an epoch of {len(self)} batches")
        block, place = divmod(position, BLOCK)
        if self._window == 1:
            return self._plain(epoch, block)[place]
        window, row = divmod(int(self._numbers(epoch, block)[place]), self._window)
        return self._members(epoch, window)[row * self._batch_size : (row + 1) * self._batch_size]

    def epoch(self, epoch: int) -> list[Ints]:
        """All batches of an epoch."""
        return [self.batch(epoch, position) for position in range(len(self))]

    def _numbers_of(self, epoch: int, block: int) -> Ints:
        """The numbers of the batches at the positions of a block."""
        positions = np.arange(block * BLOCK, min(len(self), (block + 1) * BLOCK))
        return permuted(positions, len(self), (self._seed, epoch, 1))

    def _plain_batches(self, epoch: int, block: int) -> list[Ints]:
        """The batches of a block, without sorting."""
        starts = self._numbers_of(epoch, block) * self._batch_size
        positions = (starts[:, None] + np.arange(self._batch_size)).ravel()
        members = permuted(positions[positions < self._n], self._n, (self._seed, epoch, 0))
        return np.split(members, np.minimum(self._batch_size, self._n - starts).cumsum()[:-1])

    def _sorted_members(self, epoch: int, window: int) -> Ints:
        span = self._window * self._batch_size
        positions = np.arange(window * span, min(self._n, (window + 1) * span))
        members = permuted(positions, self._n, (self._seed, epoch, 0))
        return members[np.argsort(self._sizes(members), kind="stable")]


def permuted(positions: Ints, n: int, key: Sequence[int]) -> Ints:
    """The images of some positions under a random permutation of ``0 ... n - 1``.

    A Feistel network permutes all numbers with as many bits as ``n - 1``, rounded up to an even count. A number that
    is mapped to ``n`` or above is mapped again, until the result is below ``n``.

    Args:
        positions: below ``n``.
        n: how many positions the permutation has.
        key: selects the permutation.

    Source: Black and Rogaway, Ciphers with Arbitrary Finite Domains (CT-RSA 2002), cycle walking,
    https://www.cs.ucdavis.edu/~rogaway/papers/subset.pdf

    >>> sorted(permuted(np.arange(5), 5, [1]).tolist())
    [0, 1, 2, 3, 4]
    """
    keys = np.random.SeedSequence(list(key)).generate_state(ROUNDS, np.uint64).astype(np.uint64)
    half = np.uint64(max(1, -(-max(n - 1, 1).bit_length() // 2)))
    mask = np.uint64((1 << int(half)) - 1)
    values = positions.astype(np.uint64)
    outside = np.ones(len(values), bool)
    while outside.any():
        values[outside] = _feistel(values[outside], keys, half, mask)
        outside &= values >= n
    return values.astype(np.int64)


def _feistel(values: Words, keys: Words, half: np.uint64, mask: np.uint64) -> Words:
    left, right = values >> half, values & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right + key) & mask)
    return (left << half) | right


def _mixed(values: Words) -> Words:
    """A 64-bit hash. Source: Steele et al., Fast Splittable Pseudorandom Number Generators (OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
