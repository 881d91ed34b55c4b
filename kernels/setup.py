"""Builds the C file as an extension module, so that wheels are made for each platform."""

from setuptools import Extension, setup

FLAGS = ["-O3", "-fvisibility=hidden", "-ffp-contract=fast"]
setup(ext_modules=[Extension("polyrank_kernels._kernels", ["polyrank_kernels/kernels.c"], extra_compile_args=FLAGS)])
