"""Networks: from token ids to vectors or scores."""

from polyrank.models.backbone import Backbone as Backbone
from polyrank.models.bi_encoder import BiEncoder as BiEncoder
from polyrank.models.build import build_model as build_model, new_model as new_model
from polyrank.models.convert import Convert as Convert
from polyrank.models.cross_encoder import CrossEncoder as CrossEncoder
from polyrank.models.late_cross_encoder import LateCrossEncoder as LateCrossEncoder
from polyrank.models.network import EncoderNetwork as EncoderNetwork, Network as Network
from polyrank.models.poly_encoder import PolyEncoder as PolyEncoder
