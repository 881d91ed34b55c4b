"""Compiled loops for ``polyrank.search`` as a library of C functions; polyrank also works without them."""

import ctypes

from polyrank_kernels import _kernels

API = 4  # raised when the functions' arguments change
library = ctypes.CDLL(_kernels.__file__)
_pointer, _size = ctypes.c_void_p, ctypes.c_int64
_count = ctypes.c_int


class Numbers(ctypes.Structure):
    """A subspace's part of the bounds: pointers to ``centre`` and ``weights`` in float32, and five numbers."""

    _fields_ = [
        *((name, _pointer) for name in ("centre", "weights")),
        *((name, ctypes.c_float) for name in ("radius", "residual", "slack", "rounding", "size")),
    ]


library.polyrank_has.argtypes = [_count]
library.polyrank_has.restype = _count
library.polyrank_products.argtypes = [*[_pointer] * 6, *[_size] * 3, _count, _count]
library.polyrank_products.restype = _count
library.polyrank_bounds.argtypes = [_pointer, *[_size] * 3, *[_pointer] * 5, _count, _count]
library.polyrank_bounds.restype = None
library.polyrank_means.argtypes = [_pointer, *[_size] * 3, *[_pointer] * 3, _count, _count]
library.polyrank_means.restype = None
library.polyrank_tiles_size.argtypes = [_count, _size, _size, _count]
library.polyrank_tiles_size.restype = _size
for _lay in (library.polyrank_lay_codes, library.polyrank_lay_floats):
    _lay.argtypes = [_count, _pointer, _size, _size, _pointer]
    _lay.restype = None
library.polyrank_bounds_in_tiles.argtypes = [_count, _count, *[_pointer] * 6, *[_size] * 3, *[_pointer] * 3, _count]
library.polyrank_bounds_in_tiles.restype = _count
