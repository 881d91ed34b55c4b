"""Models that other programs made: encoders and Cross-encoders of Hugging Face's form, and ParlAI's."""

from polyrank.models.foreign.files import Description, describe
from polyrank.models.foreign.networks import PairEncoder, SentenceEncoder, build_foreign
from polyrank.models.foreign.parlai import Imported, import_parlai

__all__ = ["Description", "Imported", "PairEncoder", "SentenceEncoder", "build_foreign", "describe", "import_parlai"]
