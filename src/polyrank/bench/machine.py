"""What a benchmark ran on."""

import os
import platform
from importlib import metadata
from typing import Any

import torch

from polyrank.devices.choice import cpu_info
from polyrank.search import kernels

FLAGS = (
    *("avx2", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8"),
    *("asimd", "asimddp", "i8mm", "bf16"),
)
LIBRARIES = ("polyrank", "polyrank-kernels", "numpy", "torch", "faiss-cpu", "transformers")


def describe_machine() -> dict[str, Any]:
    """CPU with the instructions that matter here, those that loops and torch use, cores, threads, memory, versions.

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


def _versions() -> dict[str, str]:
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
