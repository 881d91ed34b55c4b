"""How the columns of a product by torch lie in memory: the faster of two ways, whose times differ up to fourfold.

Which one is faster depends on the processor, on its matrix library and on the number of columns.
"""

from collections.abc import Callable
from functools import cache
from time import perf_counter

import torch
from torch import Tensor

ROWS, DIMENSION = 2048, 768  # of a timed product
LEAST = 16_384  # candidates; a scan of fewer takes less time than the timing saves
MOST = 64  # columns of a timed product; more are alike
REPEATS = 4


def lay_out(columns: Tensor, n_rows: int) -> Tensor:
    """Columns ``[q, D]`` as ``[D, q]``, in memory as a product with candidates reads them fastest.

    The first call for about as many columns times both ways, which takes up to 30 milliseconds. The products differ in
    rounding only.

    Args:
        columns: in fp32 or bf16.
        n_rows: how many candidates will be multiplied with them.

    >>> lay_out(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), 10)
    tensor([[1., 4.],
            [2., 5.],
            [3., 6.]])
    """
    about = min(1 << (len(columns) - 1).bit_length(), MOST)
    if n_rows >= LEAST and _is_faster_as_rows(about, columns.dtype, torch.get_num_threads()):
        return columns.contiguous().T
    return columns.T.contiguous()


def shortest(run: Callable[[], object]) -> float:
    """Seconds of the fastest of some calls, except the first, which allocates memory."""
    seconds = []
    for _ in range(REPEATS + 1):
        start = perf_counter()
        run()
        seconds.append(perf_counter() - start)
    return min(seconds[1:])


@cache
def _is_faster_as_rows(n_columns: int, dtype: torch.dtype, _: int) -> bool:
    """Whether a product is faster if each column's numbers lie together; the last argument is the number of threads."""
    rows, columns = torch.ones(ROWS, DIMENSION, dtype=dtype), torch.ones(n_columns, DIMENSION, dtype=dtype)
    products, apart = torch.empty(ROWS, n_columns, dtype=dtype), columns.T.contiguous()
    together = shortest(lambda: torch.mm(rows, columns.T, out=products))
    return together < shortest(lambda: torch.mm(rows, apart, out=products))
