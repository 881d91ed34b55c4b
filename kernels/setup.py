"""Builds the C files as an extension module, so that each platform gets its own wheel."""

import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = "polyrank_kernels"
OPENMP = [] if sys.platform == "darwin" else ["-fopenmp"]  # Apple's compiler lacks OpenMP: one thread
GNU = ["-O3", "-fvisibility=hidden", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi"]
MSVC = ["/O2", "/std:c11", "/openmp"]  # no vector extensions or attributes: loops in plain C


class Build(build_ext):
    """Passes each compiler its flags."""

    def build_extensions(self) -> None:
        msvc = self.compiler.compiler_type == "msvc"
        for extension in self.extensions:
            extension.extra_compile_args = MSVC if msvc else [*GNU, *OPENMP]
            extension.extra_link_args = [] if msvc else OPENMP
        super().build_extensions()


sources = [f"{FOLDER}/{name}.c" for name in ("kernels", "registers", "tiles")]
headers = [f"{FOLDER}/{name}.h" for name in ("kernels", "registers")]
setup(ext_modules=[Extension("polyrank_kernels._kernels", sources, depends=headers)], cmdclass={"build_ext": Build})
