"""The same work on a Ray cluster, whose nodes may die meanwhile: a recipe trained, candidates encoded, an app served.

Whatever is named by a path has to lie on a disk that all nodes see. Nothing here computes: each of Ray's workers calls
what one process alone would call. The vectors that a cluster writes are read by ``blocks``, which needs no Ray.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyrank.integrations.ray.cluster import connected
    from polyrank.integrations.ray.encoding import encode
    from polyrank.integrations.ray.serving import serve
    from polyrank.integrations.ray.training import train

__all__ = ["connected", "encode", "serve", "train"]

MODULES = {"connected": "cluster", "encode": "encoding", "serve": "serving", "train": "training"}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
