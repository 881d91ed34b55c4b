"""Strings become token ids here, and only here: turn joining, special tokens, truncation and padding."""

from polyrank.text.policy import Texts
from polyrank.text.subwords import Subwords, load_subwords, read_subwords
from polyrank.text.tokens import Tokens, pad

__all__ = ["Subwords", "Texts", "Tokens", "load_subwords", "pad", "read_subwords"]
