"""The machine of a benchmark."""

import os
import platform
from collections.abc import Callable, Mapping
from importlib import metadata
from statistics import median
from time import perf_counter
from typing import Any, TypeVar

import torch

from polyrank.devices.choice import cpu_info
from polyrank.search import kernels

F = TypeVar("F")
FLAGS = (
    *("avx2", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8"),
    *("asimd", "asimddp", "i8mm", "bf16"),
)
LIBRARIES = ("polyrank", "polyrank-kernels", "numpy", "torch", "faiss-cpu", "transformers")


def describe_machine() -> dict[str, Any]:
    """The CPU, its relevant instructions, those that loops and torch use, cores, threads, memory and versions.

    >>> sorted(describe_machine())
    ['cores', 'cpu', 'flags', 'gpu', 'memory_gb', 'system', 'threads', 'used', 'versions']
    """
    model, flags = cpu_info()
    return {
        "cpu": model,
        "flags": [flag for flag in FLAGS if flag in flags],
        "used": {
            "polyrank-kernels": kernels.FORMS[kernels.best_form() - 1] if kernels.best_form() else None,
            "torch": torch.backends.cpu.get_cpu_capability(),
        },
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {"python": platform.python_version(), **_versions()},
    }


def median_seconds(forms: Mapping[F, Callable[[], object]], repeats: int) -> dict[F, float]:
    """Median seconds of each form. The forms take turns, so that other load on the machine affects all of them."""
    times: dict[F, list[float]] = {form: [] for form in forms}
    for _ in range(repeats):
        for form, run in forms.items():
            started = perf_counter()
            run()
            times[form].append(perf_counter() - started)
    return {form: median(seconds) for form, seconds in times.items()}


def _versions() -> dict[str, str]:
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
