"""Functions that read a user's text take time that grows with the text, also for texts made to be slow."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from polyrank.answering.diversity import near_copy_key, word_similarity
from polyrank.data.language import not_english
from polyrank.data.same_words import same_words, template
from polyrank.errors import PolyrankError
from polyrank.index.filters import read_filter
from polyrank.records import Context
from polyrank.scorers.lexical import query_words, words
from polyrank.slots import data_in, values_of
from polyrank.slots import template as slots_of
from polyrank.text.convert_subwords import ConvertSubwords

SIZES = 5_000, 50_000
LIMIT = 25  # of the times of the two sizes: 10 if linear, 100 if quadratic; the machine may be busy
SMALL_S = 0.05  # a larger text that takes less is fast enough
PIECES = (
    *(
        "a\u0301\u0316",
        "\u0301\u0316",
        "\u3099",
        "\u00e9",
        "\ud55c",
        "\u0915\u094d",
        "\U0001f600\u200d",
        "\ufdfa",
        "ß",
        "İ",
    ),
    *(
        "1",
        "+1 ",
        "12-",
        "1.000,",
        "1.",
        "0 ",
        "a@",
        "a.",
        "http://",
        "{",
        "{a}",
        "a_",
        "(",
        "'",
        "<",
        "&amp;",
        "$",
        "=",
    ),
    *("Aa ", "Hi Ab, ", "I'm Ab Cd. ", " ", "\n", "\t."),
)
SUBWORDS = ConvertSubwords(["hello ", "wor", "ld "])
FUNCTIONS: dict[str, Callable[[str], object]] = {
    "same words": same_words,
    "templates": template,
    "near copies": near_copy_key,
    "similarity": lambda text: word_similarity([text, text])(0),
    "language": lambda text: not_english("texts", [text]),
    "words": words,
    "query words": lambda text: query_words(Context((text,))),
    "data": data_in,
    "slots": lambda text: slots_of(text, {"ab": "customer"}),
    "values": lambda text: values_of(Context((text,) * 3)),
    "subwords": SUBWORDS.encode,
    "spans": SUBWORDS.encode_spans,
    "filters": read_filter,
}


def seconds(function: Callable[[str], Any], text: str) -> float:
    """The processor time of a call, which may refuse the text."""
    started = time.thread_time()
    with suppress(PolyrankError):
        function(text)
    return time.thread_time() - started


@pytest.mark.deep
@pytest.mark.parametrize("name", FUNCTIONS)
def test_time_grows_with_the_text(name: str) -> None:
    slow = []
    for piece in PIECES:
        small, large = (min(seconds(FUNCTIONS[name], (piece * n)[:n]) for _ in range(2)) for n in SIZES)
        if large > max(SMALL_S, LIMIT * small):
            slow.append(f"{piece!r}: {small:.4f} s, then {large:.4f} s")
    assert not slow, "\n".join(slow)
