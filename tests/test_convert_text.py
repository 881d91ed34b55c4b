"""ConveRT's subwords: cut as the rule says, stable everywhere, learnt from counts alone; and how contexts are read."""

import hashlib
import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrank.config.models import ConvertText
from polyrank.errors import ArtifactError, ConfigError
from polyrank.records import Context
from polyrank.text import ConvertSubwords, ConvertTexts, learn_subwords, load_convert_subwords, read_convert_subwords
from polyrank.text.convert_vocabulary import MAX_CHARACTERS, count_words

CORPUS = [
    "Hello, is the router on? The red light is on.",
    "hello! restart the router, please; the light should go green",
    "thanks, that worked... the light is green now :)",
    "my bill is too high: 12345678 euros for 1234 minutes?!",
] * 5
LEARNT = learn_subwords(CORPUS, min_count=3, n_buckets=5)
LETTERS = "abcde é_,!?12 \t"


def reference_ids(text: str, subwords: list[str], bucket: Any) -> list[int]:
    """The rule, character by character: no cache, no regular expression."""
    lowered = unicodedata.normalize("NFC", text.lower())
    words, kind = [], None
    for character in lowered:
        now = None if character.isspace() else "letters" if character.isalnum() else "marks"
        if now is not None:
            if now != kind:
                words.append("")
            words[-1] += character
        kind = now
    ids = []
    for word in words:
        marked, start = word + " ", 0
        while start < len(word):
            known = [s for s in subwords if marked.startswith(s, start)]
            best = max(known, key=len, default=None)
            ids.append(bucket(marked[start]) if best is None else subwords.index(best))
            start += 1 if best is None else len(best)
    return ids


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.text("abcde,!1é", min_size=1, max_size=4).flatmap(lambda s: st.sampled_from([s, s + " "])), unique=True
    ),
    st.text(LETTERS, max_size=40),
)
def test_segmentation_is_the_greedy_longest_prefix(subwords: list[str], text: str) -> None:
    own = ConvertSubwords(subwords, n_buckets=7)
    assert list(own.encode(text)) == reference_ids(text, subwords, own.bucket)


@settings(deadline=None, max_examples=150)
@given(st.text(max_size=60))
def test_any_text_is_cut_and_every_id_has_a_row(text: str) -> None:
    own = LEARNT
    ids = own.encode(text)
    assert list(ids) == reference_ids(text, list(own.subwords), own.bucket)
    assert all(0 <= i < len(own) for i in ids)
    assert (len(ids) == 0) == (not unicodedata.normalize("NFC", text.lower()).split())


def test_long_texts_are_cut_like_short_ones() -> None:
    own = learn_subwords(CORPUS, min_count=3)
    text = " ".join(CORPUS * 10)
    assert len(text) > 2_000  # these are not remembered whole
    assert own.encode(text) == tuple(i for part in CORPUS * 10 for i in own.encode(part))


def test_buckets_are_the_same_on_every_machine() -> None:
    own = ConvertSubwords(["a"], n_buckets=1000)
    assert [own.bucket(c) for c in ("€", "猫", "\U0001f600")] == [
        1 + 422,
        1 + 304,
        1 + 756,
    ]  # by CRC-32 from its definition
    assert own.encode("猫") == (own.bucket("猫"),)
    assert own.encode("\ud800") == (own.bucket("\ud800"),)  # half a surrogate pair, as broken files have them


def test_learning_does_not_depend_on_order() -> None:
    there, back = learn_subwords(CORPUS, min_count=4), learn_subwords(CORPUS[::-1], min_count=4)
    assert there.to_bytes() == back.to_bytes()


def test_learning_does_not_depend_on_the_process() -> None:
    code = (
        "import json, sys, hashlib; from polyrank.text import learn_subwords;"
        "print(hashlib.sha256(learn_subwords(json.load(sys.stdin), min_count=4).to_bytes()).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(CORPUS),
        env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
    )
    here = learn_subwords(CORPUS, min_count=4).to_bytes()
    assert done.stdout.strip() == hashlib.sha256(here).hexdigest()


def test_learnt_subwords_obey_the_limits_and_are_frequent() -> None:
    long_word = "pneumonoultramicroscopicsilicovolcanoconiosis"
    own = learn_subwords([*CORPUS, *[long_word] * 9, *["999999999"] * 9], min_count=4)
    assert max(len(s.rstrip(" ")) for s in own.subwords) <= MAX_CHARACTERS
    assert not any("99999" in s or "12345" in s for s in own.subwords)
    assert "9999" in own.subwords or "9999 " in own.subwords
    text = " ".join([*CORPUS, *[long_word] * 9]).lower()
    assert all(text.count(s.rstrip(" ")) >= 4 for s in own.subwords if "9" not in s)
    assert "the " in own.subwords  # seen 30 times


def test_frequent_characters_have_no_bucket() -> None:
    own = learn_subwords(CORPUS, min_count=5)
    assert max(own.encode(" ".join(CORPUS))) < len(own.subwords)
    assert max(own.encode("ζ")) >= len(own.subwords)


def test_the_size_is_a_result_or_a_target() -> None:
    sizes = [len(learn_subwords(CORPUS, min_count=n).subwords) for n in (2, 5, 20)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(learn_subwords(CORPUS, size=50).subwords) == 50
    assert len(learn_subwords(CORPUS, size=10**6).subwords) < 10**4  # the corpus has no more


def test_counting_is_exact_below_its_limit_and_flat_above() -> None:
    assert count_words(["a b", "b,b"]) == {"a": 1, "b": 3, ",": 1}
    counts = count_words((f"w{i} often" for i in range(5000)), max_words=100)
    assert len(counts) <= 100
    assert counts["often"] == 5000


def test_a_vocabulary_is_one_json_file(tmp_path: Path) -> None:
    own = learn_subwords([*CORPUS, "naïve 猫"] * 3, min_count=3, n_buckets=9)
    (tmp_path / "vocabulary.json").write_bytes(own.to_bytes())
    again = load_convert_subwords(tmp_path / "vocabulary.json")
    assert again.to_bytes() == own.to_bytes()
    assert again.encode("Naïve 猫 ζ") == own.encode("Naïve 猫 ζ")
    assert json.loads(own.to_bytes())["n_buckets"] == 9


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b'{"convert_subwords": 1}',
        b'{"convert_subwords": 1, "n_buckets": "9", "subwords": []}',
        b'{"convert_subwords": 1, "n_buckets": 9, "subwords": [3]}',
        b'{"convert_subwords": 1, "n_buckets": 9, "subwords": ["a", "a"]}',
        b'{"convert_subwords": 99, "n_buckets": 9, "subwords": ["a"]}',
    ],
)
def test_what_is_no_vocabulary_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"there\.json.*; restore"):
        read_convert_subwords(data, "there.json")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ConvertSubwords(["a"], n_buckets=0), "n_buckets = 0"),
        (lambda: ConvertSubwords([" "]), "empty"),
        (lambda: learn_subwords(CORPUS, min_count=0), "min_count = 0"),
        (lambda: learn_subwords(CORPUS, size=0), "vocabulary_size = 0"),
        (lambda: learn_subwords([], min_count=1), "lower text.min_count"),
        (lambda: learn_subwords(["a b"], min_count=9), "lower text.min_count"),
        (lambda: load_convert_subwords(Path("nowhere.json")), "no vocabulary nowhere.json"),
        (lambda: texts(max_earlier_tokens=0), "max_earlier_tokens = 0"),
    ],
)
def test_wrong_settings_are_named(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


def texts(multi_context: bool = True, **changes: Any) -> ConvertTexts:
    subwords = ConvertSubwords([*(f"{c} " for c in "abcdefghijklmnop"), *(f"{i} " for i in range(10))], n_buckets=2)
    return ConvertTexts(subwords, ConvertText(n_buckets=2, **changes), multi_context)


def read(own: ConvertTexts, context: Context) -> str:
    names = [*(subword.strip() for subword in own.subwords.subwords), "?", "?", "|"]
    return " ".join(names[i] for i in own.context_ids(context))


def test_earlier_turns_come_newest_first_behind_the_boundary() -> None:
    assert read(texts(), Context(("a b", "c", "d e"))) == "d e | c a b"
    assert read(texts(number_prefixes=True), Context(("a b", "c", "d e"))) == "d e | 0 c 1 a b"
    assert read(texts(multi_context=False), Context(("a b", "c", "d e"))) == "d e"
    assert read(texts(), Context(("d e",))) == "d e"
    assert read(texts(), Context(())) == ""
    assert read(texts(), Context(("a", ""))) == "| a"


def test_budgets_keep_the_end_of_the_context_the_newest_turns_and_the_start_of_a_candidate() -> None:
    own = texts(max_context_tokens=2, max_candidate_tokens=3, max_earlier_tokens=3, max_earlier_turns=2)
    assert read(own, Context(("a b", "c d", "e f", "g h i"))) == "h i | e f c"
    assert read(own, Context(("a", "b", "c", "d"))) == "d | c b"
    assert own.candidate_ids("a b c d") == list(own.subwords.encode("a b c"))


def test_at_most_ten_earlier_turns_are_read_by_default() -> None:
    turns = tuple("abcdefghijklmn")
    assert read(texts(), Context(turns)) == "n | m l k j i h g f e d"


def test_background_is_read_after_the_turns_or_not() -> None:
    context = Context(("a", "b"), ("c d",))
    assert read(texts(), context) == "b | a"
    assert read(texts(background="after"), context) == "b | a c d"
    assert read(texts(background="after"), Context(("b",), ("c d",))) == "b | c d"


def test_tokens_are_padded_and_masked() -> None:
    own = texts()
    tokens = own.contexts([Context(("a b c",)), Context(("d",)), Context(("",))])
    assert tokens.ids.shape == tokens.mask.shape == (3, 3)
    assert tokens.mask.sum(1).tolist() == [3, 1, 0]
    assert own.candidates(["", ""]).ids.shape[0] == 2


def test_hundreds_of_marks_on_a_letter_take_no_time_and_few_are_composed() -> None:
    from polyrank.text.convert_subwords import split_words

    assert split_words("cafe\u0301 ...") == ["caf\u00e9", "..."]
    marks = "\u0301\u0323" * 500_000  # the square of this would take an hour
    words = split_words(f"a{marks} b")
    assert (words[-1], sum(map(len, words)) < 40) == ("b", True)
    dots = "." * 100_000
    assert split_words(f"\u00e9{dots}") == ["\u00e9", dots]


def test_long_words_are_not_remembered() -> None:
    subwords = learn_subwords(["hello there"] * 300)
    subwords.encode("x" * 5000 + " hello")
    assert all(len(text) <= 100 for memory in (subwords._words, subwords._stretches) for text in memory)


def test_what_comes_late_is_counted_though_the_table_is_full() -> None:
    texts = [f"w{i} w{i}" for i in range(1000)] + ["late"] * 500
    assert count_words(texts, max_words=1000)["late"] == 500
