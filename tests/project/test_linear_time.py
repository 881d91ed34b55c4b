"""Functions that read a user's text take time that grows with the text, also for texts made to be slow."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import polyrank
from polyrank.answering.diversity import near_copy_key, word_similarity
from polyrank.data.language import not_english
from polyrank.data.same_words import same_words, template
from polyrank.errors import PolyrankError
from polyrank.index.filters import read_filter
from polyrank.records import Context
from polyrank.scorers.lexical import query_words, words
from polyrank.slots import data_in, template as slots_of, values_of
from polyrank.text.convert_subwords import ConvertSubwords

SIZES = 10_000, 100_000
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
REPLIES = ["Restart it, {customer}.", "Your order {order} is on its way.", "Thanks!"]


@cache
def replies() -> Any:
    """An index, in a folder that lives as long as it."""
    folder = TemporaryDirectory()
    polyrank.build_index(Path(folder.name) / "index", "shipped:convert", REPLIES)
    opened = polyrank.open(Path(folder.name) / "index")
    opened.folder = folder
    return opened


@cache
def words_model() -> polyrank.BM25:
    return polyrank.BM25().fit(REPLIES)


@cache
def subwords() -> Any:
    """The fast tokenizer of a BERT."""
    return polyrank.load("untuned:embedded").texts.subwords


def imported(text: str) -> object:
    """A dialogue and a candidate from files."""
    with TemporaryDirectory() as name:
        (folder := Path(name)).joinpath("dialogue.jsonl").write_text(json.dumps({"context": [text], "response": text}))
        (folder / "replies.csv").write_text("text\n" + json.dumps(text, ensure_ascii=False), "utf-8")
        return polyrank.read_examples(folder / "dialogue.jsonl"), polyrank.read_pool(folder / "replies.csv")


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
    "values of filters": lambda text: read_filter(f"a = {json.dumps(text[:4_000])}"),
    "respond": lambda text: replies().answer([text] * 2, filter="exists a", diverse=True),
    "explain": lambda text: replies().explain([text] * 2, text),
    "rank": lambda text: replies().scorer.score([[text]], [[text, "yes"]]),
    "bm25": lambda text: words_model().score([text], [[text, "yes"]]),
    "tokens": lambda text: subwords().encode(text),
    "spans of tokens": lambda text: subwords().encode_spans(text),
    "import": imported,
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
        small, large = ((piece * n)[:n] for n in SIZES)
        for _ in range(3):  # the machine may be busy
            before, took = seconds(FUNCTIONS[name], small), seconds(FUNCTIONS[name], large)
            if took <= max(SMALL_S, LIMIT * before):
                break
        else:
            slow.append(f"{piece!r}: {before:.4f} s, then {took:.4f} s")
    assert not slow, "\n".join(slow)
