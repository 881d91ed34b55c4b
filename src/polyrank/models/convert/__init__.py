"""ConveRT: subword layers shared by both sides, a network for each side, and weights rounded as the file holds them."""

from polyrank.models.convert.build import build_convert, empty_convert, new_convert
from polyrank.models.convert.network import ContextEncodings, Convert

__all__ = ["ContextEncodings", "Convert", "build_convert", "empty_convert", "new_convert"]
