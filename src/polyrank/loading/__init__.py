"""Resolves names and paths from users to typed references, once.

No other package interprets a name or inspects the contents of a path. A reference describes a model, an index or data
without opening it. This package does not import torch.
"""

from polyrank.loading.backbones import BackboneRef as BackboneRef, resolve_backbone as resolve_backbone
from polyrank.loading.data import DataRef as DataRef, resolve_data as resolve_data
from polyrank.loading.models import (
    Backend as Backend,
    Lengths as Lengths,
    ModelRef as ModelRef,
    absolute_name as absolute_name,
    resolve_encoder as resolve_encoder,
    resolve_model as resolve_model,
)
from polyrank.loading.runs import Contestant as Contestant, resolve_contestants as resolve_contestants
