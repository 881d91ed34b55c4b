"""Detect the language of texts by their script or their most common words; a simple check for eight languages."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from itertools import islice

N_TEXTS = 500
WORDS = {
    "English": "the and you is it to of that for not have are with this can what we your i do no",
    "German": "der die das und ist nicht ich sie es ein eine mit auf für den wie auch haben",
    "French": "le la les et est pas je vous un une des que pour dans avec sur nous ce",
    "Spanish": "el los las y es no que un una por para con su se lo pero está como",
    "Italian": "il gli e è non che un una per con sono ho mi di della anche questo si",
    "Portuguese": "o os as e é não que um uma por para com eu você do da está mas",
    "Dutch": "de het een en is niet ik je dat van op met voor maar zijn ook wel hebt",
    "Polish": "nie to jest się na w z że i do jak ale czy mam co tak już proszę",
}
SCRIPTS = {
    "CYRILLIC": "Cyrillic script",
    "CJK": "Chinese or Japanese",
    "HIRAGANA": "Japanese",
    "KATAKANA": "Japanese",
    "HANGUL": "Korean",
    "ARABIC": "Arabic script",
    "HEBREW": "Hebrew",
    "GREEK": "Greek",
    "DEVANAGARI": "Devanagari script",
    "THAI": "Thai",
}


def language_of(texts: Iterable[str]) -> str | None:
    """The language of most texts; None if unknown.

    >>> language_of(["Wo ist denn die Rechnung?", "Das ist nicht die Rechnung"]), language_of(["ok", "1234"])
    ('German', None)
    >>> language_of(["Is it the router?", "It is not"]), language_of(["Где мой заказ?"])
    ('English', 'Cyrillic script')
    """
    by_word: dict[str, list[str]] = {}
    for language, words in WORDS.items():
        for word in words.split():
            by_word.setdefault(word, []).append(language)
    votes: Counter[str] = Counter()
    for text in islice(texts, N_TEXTS):
        scripts = Counter(map(_script, re.findall(r"[^\W\d_]", text[:200])))
        if scripts.total() > 2 * scripts[None]:
            del scripts[None]
            votes["Japanese" if "Japanese" in scripts else str(scripts.most_common(1)[0][0])] += 1
            continue
        hits: Counter[str] = Counter()
        for word in re.findall(r"[^\W\d_]+", text[:1000].casefold()):
            hits.update(by_word.get(word, ()))
        ahead = hits.most_common(2)
        if ahead and (len(ahead) == 1 or ahead[0][1] > ahead[1][1]):
            votes[ahead[0][0]] += 1
    most = votes.most_common(1)
    return most[0][0] if most and 2 * most[0][1] > votes.total() else None


def not_english(what: str, texts: Iterable[str]) -> str | None:
    """A warning that the shipped encoders do not know the language of the texts; None if they do, or it is unknown.

    Args:
        what: the texts are, in the plural.
        texts: to detect the language of.

    >>> print(not_english("replies", ["Wo ist denn die Rechnung?"]))
    most replies seem to be German, by their most common words; the shipped encoders were trained only on English, so
    start from a multilingual one (model.backbone)
    """
    if (language := language_of(texts)) in (None, "English"):
        return None
    return (
        f"most {what} seem to be {language}, by their most common words; the shipped encoders were trained only on"
        " English, so start from a multilingual one (model.backbone)"
    )


def _script(letter: str) -> str | None:
    return None if letter < "\u0370" else SCRIPTS.get(unicodedata.name(letter, "").partition(" ")[0])
