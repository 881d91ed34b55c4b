"""ConveRT: subword layers that both sides share, a network for each side, and weights rounded as in the file."""

from polyrank.models.convert.build import (
    build_convert as build_convert,
    empty_convert as empty_convert,
    new_convert as new_convert,
)
from polyrank.models.convert.network import ContextEncodings as ContextEncodings, Convert as Convert
