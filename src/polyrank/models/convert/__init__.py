"""ConveRT: subword layers that both sides share, a network for each side, and weights rounded as in the file."""

from polyrank.models.convert.build import build_convert, empty_convert, new_convert
from polyrank.models.convert.network import ContextEncodings, Convert

__all__ = ["ContextEncodings", "Convert", "build_convert", "empty_convert", "new_convert"]
