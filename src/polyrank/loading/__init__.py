"""Resolves names and paths from users to typed references, once.

No other package interprets a name or inspects the contents of a path. A reference describes a model, an index or data
without opening it. This package does not import torch.
"""

from polyrank.loading.backbones import BackboneRef, resolve_backbone
from polyrank.loading.data import DataRef, resolve_data
from polyrank.loading.models import (
    Backend,
    Lengths,
    ModelRef,
    absolute_name,
    read_backend,
    resolve_encoder,
    resolve_model,
)
from polyrank.loading.runs import Contestant, resolve_contestants

__all__ = [
    "BackboneRef",
    "Backend",
    "Contestant",
    "DataRef",
    "Lengths",
    "ModelRef",
    "absolute_name",
    "read_backend",
    "resolve_backbone",
    "resolve_contestants",
    "resolve_data",
    "resolve_encoder",
    "resolve_model",
]
