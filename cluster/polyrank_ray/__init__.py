"""Train, encode and serve with polyrank on a Ray cluster whose nodes may fail.

Every path must be on a disk that all nodes share. This package computes nothing itself: each Ray worker calls the
functions of polyrank that a single process calls. ``blocks`` reads the vectors that a cluster wrote, without Ray.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyrank_ray.cluster import connected
    from polyrank_ray.encoding import encode
    from polyrank_ray.serving import serve
    from polyrank_ray.training import train

__all__ = ["connected", "encode", "serve", "train"]

MODULES = {"connected": "cluster", "encode": "encoding", "serve": "serving", "train": "training"}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
