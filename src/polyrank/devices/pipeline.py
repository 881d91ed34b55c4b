"""Work that overlaps: a background thread prepares the next items, and a device's results are read late.

Results do not depend on how far the thread is ahead: items are prepared in order, and each is a pure function of its
input. A single thread is enough: tokenizers and torch release Python's lock during most of their work.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")
AHEAD = 2  # items: one is ready when the caller needs it, and a slow one does not stop the caller at once


def prefetched(
    make: Callable[[Item], Result], items: Iterable[Item], *, ahead: int = AHEAD
) -> Generator[Result, None, None]:
    """``map(make, items)``, with the next results prepared in a background thread.

    The thread ends with the generator, which callers therefore close. An error of ``make`` is raised when its result
    is due.

    Args:
        make: prepares an item, in the thread.
        items: read by the caller's thread, at most ``ahead`` items before they are needed.
        ahead: how many results to prepare in advance; 0: none, in the caller's thread.

    >>> [*prefetched(lambda number: number**2, range(2, 5))]
    [4, 9, 16]
    """
    if not ahead:
        yield from map(make, items)
        return
    thread = ThreadPoolExecutor(1, thread_name_prefix="polyrank-batches")
    try:
        for future in late((thread.submit(make, item) for item in items), ahead):
            yield future.result()
    finally:
        thread.shutdown(cancel_futures=True)


def late(items: Iterable[Item], by: int) -> Iterator[Item]:
    """The same items, each after the next ``by`` items were read, so that their work has started.

    >>> [*late("abc", 1)]
    ['a', 'b', 'c']
    """
    waiting: deque[Item] = deque()
    for item in items:
        waiting.append(item)
        if len(waiting) > by:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()


def read_later(values: "Tensor") -> Callable[[], NDArray[np.float32]]:
    """Start to copy a tensor to the host as fp32; the returned function waits for this copy, but not for later work."""
    import torch

    if not values.is_cuda:
        return lambda: values.float().cpu().numpy()
    copy = values.float().to("cpu", non_blocking=True)  # into pinned memory
    copied = torch.cuda.current_stream(values.device).record_event()

    def read() -> NDArray[np.float32]:
        copied.synchronize()
        return copy.numpy()

    return read
