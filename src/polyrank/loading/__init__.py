"""Strings from outside to typed references, once: what a name means, what a folder holds, which settings it takes.

No other package inspects a name or a path's contents. References say what is there; nothing is opened here. No torch.
"""

from polyrank.loading.answering import (
    PipelineRef,
    RankerRef,
    resolve_answering,
    resolve_ranker,
)
from polyrank.loading.backbones import BackboneRef, resolve_backbone
from polyrank.loading.data import DataRef, resolve_data
from polyrank.loading.models import Backend, Lengths, ModelRef, read_backend, resolve_encoder, resolve_model
from polyrank.loading.runs import Contestant, resolve_contestants

__all__ = [
    "BackboneRef",
    "Backend",
    "Contestant",
    "DataRef",
    "Lengths",
    "ModelRef",
    "PipelineRef",
    "RankerRef",
    "read_backend",
    "resolve_answering",
    "resolve_backbone",
    "resolve_contestants",
    "resolve_data",
    "resolve_encoder",
    "resolve_model",
    "resolve_ranker",
]
