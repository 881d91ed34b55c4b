"""MAP: a learnt linear map of response vectors into the context space of a frozen encoder."""

from polyrank.response_map.encoder import KIND, MapEncoder, check_map_place, load_map, save_map
from polyrank.response_map.fitting import MapConfig, MapFit, Pairs, Ranking, fit_map, fit_response_map

__all__ = [
    "KIND",
    "MapConfig",
    "MapEncoder",
    "MapFit",
    "Pairs",
    "Ranking",
    "check_map_place",
    "fit_map",
    "fit_response_map",
    "load_map",
    "save_map",
]
