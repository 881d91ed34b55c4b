"""Compiled loops for ``polyrank.search``, as a library of C functions; polyrank works without them."""

import ctypes

from polyrank_kernels import _kernels

library = ctypes.CDLL(_kernels.__file__)
_pointer, _size = ctypes.c_void_p, ctypes.c_int64
library.polyrank_products.argtypes = [*[_pointer] * 5, *[_size] * 3, ctypes.c_int]
library.polyrank_products.restype = ctypes.c_int
library.polyrank_means.argtypes = [_pointer, _size, _size, _size, _pointer, _pointer]
library.polyrank_means.restype = None
