"""Models that other programs made: encoders and Cross-encoders of Hugging Face's form."""

from polyrank.models.foreign.files import Description, describe
from polyrank.models.foreign.networks import PairEncoder, SentenceEncoder, build_foreign

__all__ = ["Description", "PairEncoder", "SentenceEncoder", "build_foreign", "describe"]
