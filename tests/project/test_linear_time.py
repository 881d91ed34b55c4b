"""Functions that read a user's text take time that grows with the text, also for texts made to be slow."""

import gc
import json
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from itertools import pairwise
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
from polyrank.scorers.chunks import Chunked
from polyrank.scorers.explanation import TokenShare, by_word, words_of
from polyrank.scorers.lexical import query_words, words
from polyrank.slots import data_in, template as slots_of, values_of
from polyrank.text.convert_subwords import ConvertSubwords
from polyrank_chats import import_chats
from polyrank_chats.errors import ChatsError
from polyrank_chats.forms.transcripts import untimed
from polyrank_chats.people import without_names
from polyrank_chats.quotations import unquoted
from polyrank_chats.redact import Redactor
from polyrank_chats.texts import from_html
from polyrank_chats.times import date_form, read_time

SIZES = 1_000, 8_000, 64_000
LIMIT = 16  # of the times of a size and the next: 8 if linear, within a factor of two
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
    *("<v ", "</", "<!--", "<b a='", "<p>", "(a ", "1:", "12:00 ", "1/", "2024-01-01 ", "Jan ", "\u0663"),
    *("4111 ", "06 12 34 56 78, ", "1.1.1.1 ", "GB82 ", "a@b.", "pin is ", "www.", "[1] ", "Ann ", "Dear Ann, "),
    *("---a", "> ", "On 1:01 wrote:\n>\n", "Regards, a", "From a to ", "Ann: hi\n", "{customer} ", "\u200e<a "),
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


def shares(text: str) -> object:
    """The words of a text in the explanation of a sum."""
    tokens = [TokenShare(text[start:end], start, end, 0.0) for start, end in words_of(text)]
    return by_word(text, [(tokens, 1.0, True)] * 2)


def chats(name: str, form: str) -> Callable[[str], object]:
    """The import of a file with a text in two messages."""

    def imported(text: str) -> object:
        with TemporaryDirectory() as folder:
            (path := Path(folder) / name).write_text("".join(form.format(who, text) for who in ("Ann", "Bea")), "utf-8")
            return import_chats(path)

    return imported


SLOTS = {"ann": "{customer}", "ann bea": "{customer}", "\ud55c": "{agent}"}
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
    "shares": shares,
    "chunks": lambda text: [len(chunk) for chunk in Chunked(replies().scorer).chunks(Context(("hi",)), text)],
    "bm25": lambda text: words_model().score([text], [[text, "yes"]]),
    "tokens": lambda text: subwords().encode(text),
    "spans of tokens": lambda text: subwords().encode_spans(text),
    "import": imported,
    "redaction": lambda text: Redactor(["Ann Lee"])(text, SLOTS),
    "names": lambda text: without_names(text, SLOTS, {"ann"}),
    "dates": lambda text: (date_form([text] * 2), read_time(text)),
    "WebVTT": lambda text: untimed("WEBVTT\n\n00:01.000 --> 00:02.000\n" + text.replace("\n", " ")),
    "headings": untimed,
    "markup": lambda text: from_html("<p>" + text),
    "mail": unquoted,
    "chat log": chats("a.txt", "[01/02/2024, 10:00:00] {}: {}\n"),
    "transcript": chats("a.txt", "{}: {}\n"),
    "sheet": chats("a.csv", 'sender,text\n{},"{}"\n'),
    "subtitles": chats("a.srt", "1\n00:00:00,000 --> 00:00:01,000\n{}: {}\n\n"),
    "mails": chats("a.mbox", "From a Thu Jan  1 00:00:00 2024\nFrom: {}@b.c\nDate: x\n\n{}\n\n"),
}


COSTLY = {"respond", "explain", "rank", "import", "chat log", "transcript", "sheet", "subtitles", "mails"}
"""They call others of the list, or write files: a part of the pieces is enough."""


def seconds(function: Callable[[str], Any], text: str) -> float:
    """The processor time of a call, which may refuse the text."""
    gc.disable()  # its time depends on all objects of the process
    started = time.thread_time()
    with suppress(PolyrankError, ChatsError, ValueError):
        function(text)
    took = time.thread_time() - started
    gc.enable()
    return took


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_time_grows_with_the_text(name: str) -> None:
    slow = []
    for piece in PIECES[:: 8 if name in COSTLY else 1]:
        for _ in range(3):  # the machine may be busy
            took = [seconds(FUNCTIONS[name], (piece * n)[:n]) for n in SIZES]
            if all(after <= max(SMALL_S, LIMIT * before) for before, after in pairwise(took)):
                break
        else:
            slow.append(f"{piece!r}: {took}")
    assert not slow, "\n".join(slow)
