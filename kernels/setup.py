"""Builds the C files as an extension module, so that wheels are made for each platform."""

import sys
import sysconfig

from setuptools import Extension, setup

FOLDER = "polyrank_kernels"
SOURCES = [f"{FOLDER}/{name}.c" for name in ("kernels", "registers", "tiles")]
HEADERS = [f"{FOLDER}/{name}.h" for name in ("kernels", "registers")]
GNU = ["-O3", "-fvisibility=hidden", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi"]
if sysconfig.get_platform().startswith("win"):
    FLAGS, LINK = ["/O2", "/openmp", "/std:c11"], []  # loops in plain C; MSVC has no vectors
elif sys.platform == "darwin":
    FLAGS, LINK = GNU, []  # Apple's compiler has no OpenMP: one thread there
else:
    FLAGS, LINK = [*GNU, "-fopenmp"], ["-fopenmp"]
extension = Extension("polyrank_kernels._kernels", SOURCES, depends=HEADERS, extra_compile_args=FLAGS, extra_link_args=LINK)
setup(ext_modules=[extension])
