"""The same work on a Ray cluster, whose nodes may die meanwhile: a recipe trained, candidates encoded, an app served.

Whatever is named by a path has to lie on a disk that all nodes see. Nothing here computes: each of Ray's workers calls
what one process alone would call.
"""

from polyrank.integrations.ray.cluster import connected
from polyrank.integrations.ray.encoding import encode
from polyrank.integrations.ray.serving import serve
from polyrank.integrations.ray.training import train

__all__ = ["connected", "encode", "serve", "train"]
