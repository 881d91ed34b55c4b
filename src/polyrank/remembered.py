"""Results of functions of texts, kept in memory up to a number of bytes."""

from collections.abc import Callable
from sys import getsizeof
from typing import TypeVar

T = TypeVar("T")

MOST_BYTES = 64 * 2**20
LONGEST = 2_000  # characters; longer texts rarely occur again
ENTRY_BYTES = 200  # of a place in the table, and of small objects
INTEGER_BYTES = 32  # that an element of a tuple takes


class Remembered(dict[str, T]):
    """The results of a function for each text; emptied when full. Faster than ``functools.lru_cache``.

    Args:
        function: of a text; its results are texts, tuples, or sets of texts.
        longest: of texts of more characters, only the latest is kept.
        most_bytes: of all texts and results, estimated.

    >>> lengths = Remembered(len, longest=3)
    >>> lengths["abc"], lengths["abcd"], list(lengths)
    (3, 4, ['abc'])
    """

    def __init__(self, function: Callable[[str], T], longest: int = LONGEST, most_bytes: int = MOST_BYTES) -> None:
        super().__init__()
        self.function, self.longest, self.most_bytes, self.n_bytes = function, longest, most_bytes, 0
        self._latest: tuple[str, T] | None = None  # such as a query, which is paired with each document

    def __missing__(self, text: str) -> T:
        if (latest := self._latest) and latest[0] == text:
            return latest[1]
        value = self.function(text)
        size = ENTRY_BYTES + getsizeof(text) + _size(value)
        if len(text) > self.longest:
            self._latest = (text, value) if size <= self.most_bytes else None
        else:
            if self.n_bytes + size > self.most_bytes:
                self.clear()
            self.n_bytes += size
            self[text] = value
        return value

    def clear(self) -> None:
        """Forget all."""
        super().clear()
        self.n_bytes, self._latest = 0, None


def _size(value: object) -> int:
    """Estimated bytes of a result and what it holds."""
    match value:
        case tuple() | list():
            return getsizeof(value) + (
                INTEGER_BYTES * len(value) if value and isinstance(value[0], int) else sum(map(_size, value))
            )
        case frozenset():
            return getsizeof(value) + sum(map(getsizeof, value))
    return getsizeof(value)
