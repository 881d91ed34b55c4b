"""Builds the C files as an extension module, so that wheels are made for each platform."""

import sys

from setuptools import Extension, setup

OPENMP = [] if sys.platform == "darwin" else ["-fopenmp"]  # Apple's compiler has none: one thread there
FLAGS = ["-O3", "-fvisibility=hidden", "-ffp-contract=fast", *OPENMP]
SOURCES = ["polyrank_kernels/kernels.c", "polyrank_kernels/tiles.c"]
HEADERS = ["polyrank_kernels/kernels.h"]
extension = Extension(
    "polyrank_kernels._kernels", SOURCES, depends=HEADERS, extra_compile_args=FLAGS, extra_link_args=OPENMP
)
setup(ext_modules=[extension])
