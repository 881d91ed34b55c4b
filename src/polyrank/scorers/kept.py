"""Arrays in memory, up to a number of bytes."""

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

from polyrank.storage.forks import new_rlock

K = TypeVar("K")
A = TypeVar("A", bound=NDArray[Any])


class Kept(Generic[K, A]):
    """Arrays by key, for several threads. If they exceed the limit, the oldest are dropped.

    Args:
        max_bytes: the limit.

    >>> import numpy as np
    >>> kept = Kept(max_bytes=10); kept.add([("a", np.zeros(6, "u1")), ("b", np.zeros(5, "u1"))])
    >>> [*kept]
    ['b']
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._arrays: dict[K, A] = {}
        self.n_bytes = 0
        self._lock = new_rlock()

    def __iter__(self) -> Iterator[K]:
        return iter(self._arrays)

    def get(self, key: K) -> A | None:
        """The array; None if it is not kept."""
        return self._arrays.get(key)

    def add(self, arrays: Iterable[tuple[K, A]]) -> None:
        """Keep arrays, also in place of earlier ones."""
        with self._lock:
            for key, array in arrays:
                self.pop(key)
                self._arrays[key] = array
                self.n_bytes += array.nbytes
            while self.n_bytes > self.max_bytes:
                self.pop(next(iter(self._arrays)))

    def pop(self, key: K) -> A | None:
        """Remove and return the array; None if it was not kept."""
        with self._lock:
            array = self._arrays.pop(key, None)
            self.n_bytes -= 0 if array is None else array.nbytes
        return array
