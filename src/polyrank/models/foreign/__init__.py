"""Models that other programs made: encoders and Cross-encoders of Hugging Face's form."""

from polyrank.models.foreign.files import Description as Description, describe as describe
from polyrank.models.foreign.networks import (
    PairEncoder as PairEncoder,
    SentenceEncoder as SentenceEncoder,
    build_foreign as build_foreign,
    check_padding as check_padding,
)
