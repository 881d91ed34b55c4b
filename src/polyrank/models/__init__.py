"""Networks: from token ids to vectors or scores."""

from polyrank.models.backbone import Backbone
from polyrank.models.bi_encoder import BiEncoder
from polyrank.models.build import build_model, new_model
from polyrank.models.convert import Convert
from polyrank.models.cross_encoder import CrossEncoder
from polyrank.models.late_cross_encoder import LateCrossEncoder
from polyrank.models.network import EncoderNetwork, Network
from polyrank.models.poly_encoder import PolyEncoder

__all__ = [
    "Backbone",
    "BiEncoder",
    "Convert",
    "CrossEncoder",
    "EncoderNetwork",
    "LateCrossEncoder",
    "Network",
    "PolyEncoder",
    "build_model",
    "new_model",
]
