"""ConveRT's subwords: segmentation, stability, learning from counts, and the layout of contexts."""

import hashlib
import json
import os
import subprocess
import sys
import unicodedata
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from polyrank.config.models import ConvertText
from polyrank.errors import ArtifactError, ConfigError
from polyrank.records import Context
from polyrank.remembered import Remembered
from polyrank.text import ConvertSubwords, ConvertTexts, learn_subwords, load_convert_subwords, read_convert_subwords
from polyrank.text.convert_subwords import longest_prefixes, split_words
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
    """The rule, character by character, without cache and regular expression."""
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


@given(
    st.lists(
        st.text("abcde,!1é", min_size=1, max_size=4).flatmap(lambda s: st.sampled_from([s, s + " "])), unique=True
    ),
    st.text(LETTERS, max_size=40),
)
def test_segmentation_is_the_greedy_longest_prefix(subwords: list[str], text: str) -> None:
    own = ConvertSubwords(subwords, n_buckets=7)
    assert list(own.encode(text)) == reference_ids(text, subwords, own.bucket)


@given(st.text(max_size=60))
def test_any_text_is_segmented_and_every_id_has_a_row(text: str) -> None:
    own = LEARNT
    ids = own.encode(text)
    assert list(ids) == reference_ids(text, list(own.subwords), own.bucket)
    assert all(0 <= i < len(own) for i in ids)
    assert (len(ids) == 0) == (not unicodedata.normalize("NFC", text.lower()).split())


def test_long_texts_are_segmented_like_short_ones() -> None:
    own = learn_subwords(CORPUS, min_count=3)
    text = " ".join(CORPUS * 10)
    assert len(text) > 2_000  # such texts are not cached whole
    assert own.encode(text) == tuple(i for part in CORPUS * 10 for i in own.encode(part))


def test_buckets_are_the_same_on_every_machine() -> None:
    own = ConvertSubwords(["a"], n_buckets=1000)
    assert [own.bucket(c) for c in ("€", "猫", "\U0001f600")] == [
        1 + 422,
        1 + 304,
        1 + 756,
    ]  # CRC-32 from its definition
    assert own.encode("猫") == (own.bucket("猫"),)
    assert own.encode("\ud800") == (own.bucket("\ud800"),)  # half a surrogate pair, as in broken files


def test_learning_does_not_depend_on_order() -> None:
    there, back = learn_subwords(CORPUS, min_count=4), learn_subwords(CORPUS[::-1], min_count=4)
    assert there.to_bytes() == back.to_bytes()


@pytest.mark.deep
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


def test_learned_subwords_obey_the_limits_and_are_frequent() -> None:
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
    assert learn_subwords(CORPUS, size=9, n_buckets=8).n_buckets == 8


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b'{"convert_subwords": 1}',
        b'{"convert_subwords": 1, "n_buckets": "9", "subwords": []}',
        b'{"convert_subwords": 1, "n_buckets": 9, "subwords": [3]}',
        b'{"convert_subwords": 1, "n_buckets": 9, "subwords": ["a", "a"]}',
    ],
)
def test_other_files_are_refused_as_a_vocabulary(data: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"there\.json.*; restore"):
        read_convert_subwords(data, "there.json")


def test_a_vocabulary_of_a_newer_format_requires_an_upgrade() -> None:
    with pytest.raises(ArtifactError, match=r"there\.json: in format 99, this version reads format 1; upgrade"):
        read_convert_subwords(b'{"convert_subwords": 99, "n_buckets": 9, "subwords": ["a"]}', "there.json")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ConvertSubwords(["a"], n_buckets=0), "n_buckets = 0"),
        (lambda: ConvertSubwords([" "]), "empty"),
        (lambda: learn_subwords(CORPUS, min_count=0), "min_count = 0"),
        (lambda: learn_subwords(CORPUS, min_count=0, size=9), "min_count = 0"),
        (lambda: learn_subwords(CORPUS, size=0), "vocabulary_size = 0"),
        (lambda: learn_subwords([], min_count=1), "lower text.min_count"),
        (lambda: learn_subwords(["a b"], min_count=9), "lower text.min_count"),
        (lambda: load_convert_subwords(Path("nowhere.json")), "cannot read the vocabulary nowhere.json"),
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


def test_earlier_turns_follow_the_boundary_newest_first() -> None:
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
    assert str(own.cut) == (
        "1 candidate did not fit into 3 tokens, so its end was not read; 1 context did not fit into 2 tokens, so its"
        " start was not read; 1 earlier part did not fit into 3 tokens, so its start was not read"
    )


@pytest.mark.parametrize(("turns", "n"), [(("a b c", "d"), 0), (("a b c d", "e"), 1), (("z", "a b c", "d"), 1)])
def test_earlier_turns_that_do_not_fit_are_counted(turns: tuple[str, ...], n: int) -> None:
    own = texts(max_earlier_tokens=3)
    own.context_ids(Context(turns))
    assert len(own.cut.earlier) == n
    assert bool(own.cut) == bool(n)
    own.cut.clear()
    assert not own.cut


def test_at_most_ten_earlier_turns_are_used_by_default() -> None:
    turns = tuple("abcdefghijklmn")
    assert read(texts(), Context(turns)) == "n | m l k j i h g f e d"


def test_background_follows_the_turns_or_is_ignored() -> None:
    context = Context(("a", "b"), ("c d",))
    assert read(texts(), context) == "b | a"
    assert read(texts(background="after"), context) == "b | a c d"
    assert read(texts(background="after"), Context(("b",), ("c d",))) == "b | c d"
    for n, n_cut in ((4, 1), (5, 0)):  # facts count with the earlier turns
        short = texts(background="after", max_earlier_tokens=n)
        assert read(short, Context(("a b", "p"), ("c d", "e"))) == f"p | {'a b c d e'[: 2 * n - 1]}"
        assert len(short.cut.earlier) == n_cut
    with pytest.raises(ConfigError, match="does not support pairs; use a Cross-encoder"):
        texts().pairs([(context, "a")])


def test_what_a_network_reads_is_in_the_key() -> None:
    """Tokens on disk are shared by policies with one key."""
    assert len({texts().key, texts(multi_context=False).key, texts(max_earlier_turns=3).key}) == 3


@given(st.text(LETTERS + "ß", max_size=40))
def test_spans_of_subwords_follow_each_other(text: str) -> None:
    spans = LEARNT.encode_spans(text)
    assert [token for token, _, _ in spans] == [*LEARNT.encode(text)]
    ends = [0, *(end for _, _, end in spans)]
    assert all(before <= start < end for before, (_, start, end) in zip(ends, spans, strict=False))
    assert "".join(text[start:end] for _, start, end in spans) == "".join(text.split())


def test_spans_are_of_the_characters_that_the_user_wrote() -> None:
    own = ConvertSubwords(["caf", "é ", "e ", "i", "한 "], n_buckets=3)
    for text, expected in (
        ("Cafe\u0301 e", ["Caf", "e\u0301", "e"]),  # composed for the vocabulary
        ("\u0130e", ["\u0130", "\u0130", "e"]),  # lower case is an i and a dot
        ("e \u1112\u1161\u11ab e", ["e", "\u1112\u1161\u11ab", "e"]),
    ):
        spans = own.encode_spans(text)
        assert [text[start:end] for _, start, end in spans] == expected
        assert [token for token, _, _ in spans] == [*own.encode(text)]


def test_tokens_are_padded_and_masked() -> None:
    own = texts()
    tokens = own.contexts([Context(("a b c",)), Context(("d",)), Context(("",))])
    assert tokens.ids.shape == tokens.mask.shape == (3, 3)
    assert tokens.mask.sum(1).tolist() == [3, 1, 0]
    assert own.candidates(["", ""]).ids.shape[0] == 2


def test_hundreds_of_combining_marks_take_linear_time() -> None:
    assert split_words("cafe\u0301 ...") == ["caf\u00e9", "..."]
    marks = "\u0301\u0323" * 500_000  # quadratic time would be an hour
    words = split_words(f"a{marks} b")
    assert (words[-1], sum(map(len, words)) < 40) == ("b", True)
    dots = "." * 100_000
    assert split_words(f"\u00e9{dots}") == ["\u00e9", dots]


def test_a_long_word_is_looked_up_in_proportion_to_its_length() -> None:
    class Counted(set[str]):
        looked_up = 0

        def __contains__(self, piece: object) -> bool:
            self.looked_up += 1
            return super().__contains__(piece)

    known = Counted({"abcdef"})
    assert list(longest_prefixes("x" * 1000 + " ", known, 6)) == ["x"] * 1000
    assert known.looked_up <= 5 * 1000  # pieces of 2 to 6 characters from each position


def test_long_words_are_not_cached() -> None:
    subwords = learn_subwords(["hello there"] * 300)
    subwords.encode("x" * 5000 + " hello")
    assert all(len(text) <= 100 for memory in (subwords._words, subwords._chunks) for text in memory)


def test_late_words_are_counted_in_a_full_table() -> None:
    texts = [f"w{i} w{i}" for i in range(1000)] + ["late"] * 500
    assert count_words(texts, max_words=1000)["late"] == 500


def test_at_most_thirty_marks_in_a_row_are_kept() -> None:
    for n, kept in ((29, 29), (30, 30), (31, 30), (90, 30)):
        assert split_words("x" + "\u0301" * n) == ["x", "\u0301" * kept]
    mixed = "\u0301" * 20 + "." + "\u0301" * 20  # on two characters
    assert split_words(mixed) == [mixed]


def test_a_vocabulary_has_rows_for_its_subwords_and_buckets() -> None:
    own = ConvertSubwords(["a", "b "])
    assert (own.n_buckets, len(own), own.boundary_id, own.pad_id) == (1000, 1002, 1002, 0)
    for character in map(chr, range(0x4E00, 0x4E00 + 300)):
        assert 2 <= own.bucket(character) < 1002
    small = ConvertSubwords(["a"], n_buckets=2)
    assert {small.bucket(chr(c)) for c in range(0x4E00, 0x4E20)} == {1, 2}


def test_the_papers_limits_are_the_defaults() -> None:
    assert learn_subwords(["hi"] * 250).n_buckets == 1000
    assert set(learn_subwords(["hi"] * 250).subwords) == {"hi ", "h", "i"}
    with pytest.raises(ConfigError, match=r"text\.min_count = 250 times in the 249 words"):
        learn_subwords(["hi"] * 249)


def test_half_a_surrogate_pair_is_never_in_a_vocabulary() -> None:
    own = learn_subwords(["\ud800 \udfff \ue000 \ud7ff"] * 5, min_count=2)
    assert set(own.subwords) == {"\ue000 ", "\ue000", "\ud7ff ", "\ud7ff"}
    assert own.encode("\ud800") == (own.bucket("\ud800"),)


def learned_by_the_rule(words: Mapping[str, int], min_count: int) -> dict[str, int]:
    """Subwords with their counts, by the module's four steps: counts every piece of every word."""
    letters: Counter[str] = Counter()
    for word, n in words.items():
        for letter in word:
            letters[letter] += n
    letters = Counter({letter: n for letter, n in letters.items() if n >= min_count})
    vocabulary: dict[str, int] = dict(letters)
    for _ in range(4):
        counts: Counter[str] = Counter()
        for word, n in words.items():
            marked, start = word + " ", 0
            while start < len(word):
                for end in range(start + 1, len(marked) + 1):
                    counts[marked[start:end]] += n
                known = [len(s) for s in vocabulary if marked.startswith(s, start)]
                start += max(known, default=1)
        digits = [s for s in counts if any(s[i : i + 5].isdigit() and len(s[i : i + 5]) == 5 for i in range(len(s)))]
        allowed = {s: n for s, n in counts.items() if len(s.strip()) <= 20 and s not in digits}
        kept = {}
        for subword in sorted(allowed, key=len, reverse=True):
            if allowed[subword] >= min_count:
                kept[subword] = allowed[subword]
                for end in range(1, len(subword)):
                    allowed[subword[:end]] -= kept[subword]
        for letter, n in letters.items():
            kept[letter] = max(n, kept.get(letter, 0))
        if set(kept) == set(vocabulary):
            break
        vocabulary = kept
    return vocabulary


SYLLABLES = st.lists(st.sampled_from(["ab", "b", "abc", "1", "23", "c", "é"]), min_size=1, max_size=5).map("".join)


@given(st.dictionaries(SYLLABLES, st.integers(1, 5), min_size=1, max_size=8), st.integers(1, 6))
def test_learning_follows_its_four_steps(often: dict[str, int], min_count: int) -> None:
    words = count_words(f"{word} " * n for word, n in often.items())
    expected = learned_by_the_rule(words, min_count)
    texts = [f"{word} " * n for word, n in often.items()]
    if not expected:
        with pytest.raises(ConfigError, match=r"lower text\.min_count"):
            learn_subwords(texts, min_count=min_count)
        return
    order = sorted(expected, key=lambda s: (len(s) == 1, -expected[s], s))
    assert learn_subwords(texts, min_count=min_count).subwords == tuple(order)


@pytest.mark.parametrize("word", ["x" * 19, "x" * 20, "x" * 21, "abcdefghijklmnopqrstu", "1234", "12345", "a1234567b"])
def test_long_words_and_numbers_follow_the_four_steps(word: str) -> None:
    expected = learned_by_the_rule({word: 3, "abc": 4}, 2)
    found = learn_subwords([f"{word} {word} {word} abc abc abc abc"], min_count=2).subwords
    assert found == tuple(sorted(expected, key=lambda s: (len(s) == 1, -expected[s], s)))


@pytest.fixture(scope="module")
def by_count() -> dict[int, dict[str, int]]:
    """The subwords of the corpus for each minimal count."""
    words = count_words(CORPUS)
    return {n: learned_by_the_rule(words, n) for n in (*range(1, 12), 15, 20, 25, 30, 35, 40, 60)}


@pytest.mark.parametrize("size", [1, 2, 5, 9, 14, 20, 35, 50, 60, 120])
def test_a_size_is_reached_from_a_slightly_larger_vocabulary(by_count: Any, size: int) -> None:
    """Characters come before subwords, then the most frequent ones. A small corpus contributes all of its subwords."""
    enough = [n for n, learned in by_count.items() if len(learned) >= size] or [1]
    wanted = []
    for n in enough:
        if n == max(enough) or len(by_count[n]) <= 1.02 * size:
            counts = by_count[n]
            kept = sorted(counts, key=lambda s, counts=counts: (len(s) > 1, -counts[s], s))[:size]
            wanted.append(tuple(sorted(kept, key=lambda s, counts=counts: (len(s) == 1, -counts[s], s))))
    assert learn_subwords(CORPUS, size=size).subwords in wanted


def test_words_are_dropped_at_one_and_a_half_times_the_limit() -> None:
    assert count_words(["a", "b", "c", "a b"], max_words=2) == {"a": 2, "b": 2}  # three during counting are allowed
    assert count_words(["a", "b", "c", "d", "a a"], max_words=2) == {"a": 2}  # four are too many: single ones go
    assert count_words(["a a", "b b", "c", "d", "c"], max_words=2) == {"a": 2, "b": 2}  # the first two outlast the rest
    assert count_words(["a", "b"], max_words=2) == {"a": 1, "b": 1}
    assert count_words(["a,", "b,"], max_words=2) == {",": 2}  # three words out of two texts


def test_results_of_texts_are_kept_up_to_a_number_of_bytes() -> None:
    kept = Remembered(lambda text: tuple(range(1_000, 1_000 + len(text))), most_bytes=1_000_000)
    for number in range(2_000):
        text = f"{number:06d}" + "x" * 994
        assert kept[text] == kept[text] == tuple(range(1_000, 2_000))
        assert kept.n_bytes <= kept.most_bytes
    assert 0 < len(kept) <= 30  # 41 KB each
    assert kept["x" * 2_001] == tuple(range(1_000, 3_001))
    assert "x" * 2_001 not in kept
    kept.clear()
    assert kept.n_bytes == 0
