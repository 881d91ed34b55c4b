"""Detect the language of texts, by py3langid: its model knows 97 languages, and equal texts have equal results."""

from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import islice
from typing import Any

LANGUAGE_FIELD = "language"
"""The metadata field of a reply's language, as an ISO 639-1 code."""
N_TEXTS = 500
N_CHARACTERS = 2000
SURE = 0.5
"""The least probability of a detected language; of short texts without typical words it is lower."""


def detect(text: str) -> str | None:
    """The ISO 639-1 code of a text's language; None if it is not clear.

    >>> detect("Wo ist denn die Rechnung?"), detect("Where is my parcel?"), detect("ok 1234")
    ('de', 'en', None)
    """
    code, probability = _identifier().classify(text[:N_CHARACTERS])
    return str(code) if probability >= SURE else None


def language_of(texts: Iterable[str]) -> str | None:
    """The language of more than half of the texts whose language is clear; None if there is none.

    >>> language_of(["Is it the router?", "It is not", "ok"]), language_of(["ok", "1234"])
    ('en', None)
    """
    codes = Counter(code for text in islice(texts, N_TEXTS) if (code := detect(text)))
    most = codes.most_common(1)
    return most[0][0] if most and 2 * most[0][1] > codes.total() else None


def not_english(what: str, texts: Iterable[str]) -> str | None:
    """A warning that the shipped encoders do not know the language of the texts; None if they do, or it is unknown.

    Args:
        what: the texts are, in the plural.
        texts: to detect the language of.

    >>> print(not_english("replies", ["Wo ist denn die Rechnung?"]))
    most replies seem to be in another language than English (de); the shipped encoders were trained only on English, so
    start from a multilingual one (model.backbone)
    """
    if (language := language_of(texts)) in (None, "en"):
        return None
    return (
        f"most {what} seem to be in another language than English ({language}); the shipped encoders were trained only"
        " on English, so start from a multilingual one (model.backbone)"
    )


@cache
def _identifier() -> Any:
    from py3langid.langid import LanguageIdentifier  # reads its model, which takes half a second

    return LanguageIdentifier.from_model_file("data/model.npz.xz", norm_probs=True)
