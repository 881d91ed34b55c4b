"""Filters: their meaning, compared with a second implementation, and that a search returns the best passing rows."""

import json
import operator
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

import polyrank
from polyrank.answering.replies import Replies
from polyrank.errors import ArtifactError, UsageError
from polyrank.index import (
    Block,
    Filter,
    LocalIndex,
    LocalWriter,
    as_filter,
    open_index,
    open_writer,
    read_filter,
    write_index,
)
from polyrank.index.checks import metadata_json
from polyrank.index.filters import MAX_CHARACTERS, MAX_DEPTH, MAX_TERMS, MAX_VALUES, joined, rows_where
from polyrank.index.local import postings
from polyrank.index.local.filtered import COPIED_SHARE, MAX_FILTERS, FilteredViews
from polyrank.index.local.store import Meta, connect, read_meta
from polyrank.loading.folders import INDEX_FILE
from polyrank.ranking.abstention import Abstention, Measure
from polyrank.records import Candidate
from polyrank.scorers.lexical import BM25
from polyrank.scorers.protocols import Encoder
from polyrank.scorers.ranker import Ranker
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.scorers.terms.lexical import LexicalTerm
from polyrank.search import Mode, search
from polyrank.search.ways import WAYS
from polyrank.storage.quantized import Precision, from_rows, to_rows
from processes import run
from test_index import Hashed
from test_store import refresh_matrix

# A filter as a tree: ("and" | "or", [trees]), ("not", tree), ("exists", path), (operator, path, [values])
Tree = tuple[Any, ...]
ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
NAMES = ["a", "b-c", "lang", "first name", "in", "Not", "x.y", "ünï", "it's", "[0]", "7", "$", "%s", "'); --"]


def positions_where(candidates: Sequence[Candidate], filter: Filter) -> NDArray[np.int64]:
    """Positions of the candidates that pass, ascending."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE candidates (row INTEGER PRIMARY KEY, metadata TEXT)")
        rows = [(row, metadata_json(candidate)) for row, candidate in enumerate(candidates, 1)]
        connection.executemany("INSERT INTO candidates VALUES (?, ?)", rows)
        return rows_where(connection, filter) - 1


def passes(tree: Tree, metadata: dict[str, Any]) -> bool:
    """The rules of docs/filters.md, applied to one candidate."""
    kind, *rest = tree
    if kind in ("and", "or"):
        return (all if kind == "and" else any)(passes(part, metadata) for part in rest[0])
    if kind == "not":
        return not passes(rest[0], metadata)
    if kind in ("!=", "not in"):
        return not passes(("in", *rest), metadata)
    value: Any = metadata
    for part in rest[0]:
        if not isinstance(value, dict) or part not in value:
            return False
        value = value[part]
    if kind == "exists":
        return True
    return any(
        ORDERS[kind](one, wanted) if kind in ORDERS else one == wanted
        for one in (value if isinstance(value, list) else [value])
        for wanted in rest[1]
        if sort(one) == sort(wanted) and not isinstance(one, list | dict)
    )


def sort(value: Any) -> type:
    return float if isinstance(value, int) and not isinstance(value, bool) else type(value)


def written(tree: Tree, quote: Callable[[str], str]) -> str:
    """The text of a tree, with redundant parentheses."""
    kind, *rest = tree
    if kind in ("and", "or"):
        return f" {kind.upper()} ".join(f"({written(part, quote)})" for part in rest[0])
    if kind == "not":
        return f"not ({written(rest[0], quote)})"
    name = ".".join(part if part in ("a", "b-c", "lang", "ünï") else quote(part) for part in rest[0])
    if kind == "exists":
        return f"exists {name}"
    values = [quote(value) if isinstance(value, str) else json.dumps(value) for value in rest[1]]
    return f"{name} {kind}({','.join(values)})" if kind in ("in", "not in") else f"{name}{kind}{values[0]}"


def in_single_quotes(text: str) -> str:
    return "'" + json.dumps(text)[1:-1].replace('\\"', '"').replace("'", "\\'") + "'"


texts = st.sampled_from(["", "x", "X", "é", "it's", 'a "hi"', "back\\slash", "a\nb", "😀", "10", "true"])
numbers = st.sampled_from([0, -0.0, 1, 1.0, 10, -3, 2.5, 1e300, 2**53 + 1, -(2**62), 0.1, 1e-7])
values = st.one_of(texts, numbers, st.booleans(), st.none())
anything = st.recursive(
    values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)
metadata_of = st.dictionaries(st.sampled_from(NAMES), anything, max_size=4)
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=2)
terms = st.one_of(
    st.tuples(st.just("exists"), paths),
    st.tuples(st.sampled_from(["=", "!="]), paths, st.lists(values, min_size=1, max_size=1)),
    st.tuples(st.sampled_from(["in", "not in"]), paths, st.lists(values, min_size=1, max_size=4)),
    st.tuples(st.sampled_from(list(ORDERS)), paths, st.lists(texts | numbers, min_size=1, max_size=1)),
)
trees = st.recursive(
    terms,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3)),
    ),
    max_leaves=5,
)


@given(trees, st.lists(metadata_of, max_size=8), st.booleans())
def test_a_filter_matches_its_tree(tree: Tree, rows: list[dict[str, Any]], single: bool) -> None:
    text = written(tree, in_single_quotes if single else json.dumps)
    condition = read_filter(text)
    assert str(read_filter(str(condition))) == str(condition)
    pool = [Candidate(str(i), "text", metadata) for i, metadata in enumerate(rows)]
    expected = [i for i, metadata in enumerate(rows) if passes(tree, metadata)]
    assert positions_where(pool, condition).tolist() == expected, text
    assert positions_where(pool, read_filter(str(condition))).tolist() == expected, str(condition)


ROW = {
    "lang": "en",
    "tier": 2,
    "price": 2.0,
    "vip": True,
    "left": None,
    "tags": ["new", 3, None],
    "empty": [],
    "customer": {"tier": "gold", "first name": "Ann"},
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lang = 'en'", True),
        ("lang = 'EN'", False),
        ("lang != 'en'", False),
        # a missing key: every comparison is false, and its negation true
        ("team = 'a'", False),
        ("team != 'a'", True),
        ("team < 5", False),
        ("not team < 5", True),
        ("team not in ('a')", True),
        ("team = null", False),
        ("exists team", False),
        # a number never equals a text, true never equals 1, and null is a value
        ("tier = '2'", False),
        ("tier = 2.0", True),
        ("price = 2", True),
        ("vip = 1", False),
        ("vip = true", True),
        ("left = null", True),
        ("exists left", True),
        ("left != 'x'", True),
        ("left in (1, null)", True),
        # order exists between numbers and between texts
        ("tier > '1'", False),
        ("lang > 1", False),
        ("tier >= 2 and tier <= 2.0", True),
        ("lang > 'em' and lang < 'eo'", True),
        # an array matches by any of its elements, never as a whole
        ("tags = 'new'", True),
        ("tags in (4, 3)", True),
        ("tags > 2", True),
        ("tags = null", True),
        ("tags != 'old'", True),
        ("tags != 'new'", False),
        ("empty = null or empty != empty.x", None),
        ("exists empty", True),
        ("exists customer.tier", True),
        ("customer.tier = 'gold'", True),
        ("customer = 'gold'", False),
        ("customer.\"first name\" = 'Ann'", True),
        ("lang.length = 2", False),
        ("tags.0 = 'new'", None),
        ("tags.\"0\" = 'new'", False),
        # precedence: not, and, or; keywords in any case
        ("not vip = true or lang = 'en'", True),
        ("lang = 'fr' AND vip = true OR tier = 2", True),
        ("lang = 'fr' and (vip = true or tier = 2)", False),
        ("NOT NOT VIP = true", False),
        ("Exists lang", True),
    ],
)
def test_the_page_of_filters(text: str, expected: bool | None) -> None:
    pool = [Candidate("a", "text", ROW)]
    if expected is None:
        with pytest.raises(UsageError):
            read_filter(text)
    else:
        assert positions_where(pool, read_filter(text)).tolist() == [0] * expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "character 1: expected a name (put keywords and names with other characters in quotes), not the end"),
        ("lang", "character 5: expected"),
        ("lang = en", "character 8: expected a string in quotes, a number, true, false or null, not 'en'; put strings"),
        ("lang == 'en'", "character 7: expected a string"),
        ("lang = 'en", "character 8: this string has no closing quote"),
        ("lang = 'en' and", "character 16: expected a name"),
        ("lang = 'en' tier = 2", 'character 13: expected "and", "or" or the end, not \'tier\''),
        ("(lang = 'en'", 'character 13: expected "and", "or" or ")", not the end'),
        ("lang in 'en'", 'character 9: expected "(", not "\'en\'"'),
        ("lang in ()", "character 10: expected a string"),
        ("lang in ('en' 'fr')", 'character 15: expected "," or ")"'),
        ("lang not = 'en'", 'character 10: expected "in"'),
        ("vip > true", "character 7: expected a string or a number"),
        ("left <= null", "character 9: expected a string or a number"),
        ("tier = 1e999", "character 8: the number is too large"),
        ("tier = 007", 'character 9: expected "and", "or" or the end'),
        ("tier = ٣", "character 8: '٣' is not allowed here"),
        ("in = 1", "character 1: expected a name"),
        ("'' = 1", "character 1: a name cannot be empty"),
        ("'a\"b' = 1", "character 1: a name cannot be"),
        ("'a\\nb' = 1", "character 1: a name cannot be"),
        ("a = '\\x'", "character 5: the string has an escape"),
        ("a = '\\ud800'", "character 5: the string has an escape"),
        ("a = '\ud800'", "character 6: this is not valid Unicode"),
        ("a = '\\u0000'", "character 5: a string cannot contain the NUL character"),
        ("a = 'x\0'", "character 5: a string cannot contain the NUL character"),
        ("a = 1; DROP TABLE candidates", "character 6: ';' is not allowed here"),
        ("a = 1 -- ", "character 7: '-' is not allowed here"),
        ("(" * (MAX_DEPTH + 1) + "a = 1", f"character {MAX_DEPTH + 1}: more than {MAX_DEPTH} parentheses"),
        ("not " * (MAX_DEPTH + 1) + "a = 1", f"more than {MAX_DEPTH} parentheses and nots"),
        (" or ".join(["a = 1"] * (MAX_TERMS + 1)), f"more than {MAX_TERMS} terms"),
        (f"a in ({','.join('1' * (MAX_VALUES + 1))})", f"more than {MAX_VALUES} values"),
        ("a = '" + "x" * MAX_CHARACTERS + "'", f"has 4,102 characters, the limit is {MAX_CHARACTERS:,}"),
        ("a " + "x" * 30, f", not '{'x' * 30}'; write"),
        ("a " + "x" * 31, f", not '{'x' * 30}...'; write"),
    ],
    ids=range(35),
)
def test_an_invalid_filter_is_refused_with_its_position(text: str, problem: str) -> None:
    started = perf_counter()
    with pytest.raises(UsageError) as refused:
        read_filter(text)
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)
    assert perf_counter() - started < 0.5


@given(st.text(max_size=60) | st.text("ab=<>!()'\"\\.,0-9 andortin", max_size=60))
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    try:
        condition = read_filter(text)
    except UsageError:
        return
    positions_where([Candidate("a", "text", ROW)], condition)
    assert read_filter(str(condition)) == condition


def test_the_limits_are_those_of_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "filters.md").read_text("utf-8")
    limits = f"{MAX_CHARACTERS:,} characters, {MAX_TERMS} terms, {MAX_VALUES} values and {MAX_DEPTH} nested parentheses"
    assert f"A filter has at most {limits}" in page


def test_the_largest_filter_is_evaluated() -> None:
    values = ",".join(["7"] * (MAX_VALUES - MAX_TERMS + 1))
    text = " or ".join(["a=0"] * (MAX_TERMS - 1) + [f"a in ({values})"])
    nested = "(" * MAX_DEPTH + text + ")" * MAX_DEPTH
    pool = [Candidate("x", "text", {"a": 7}), Candidate("y", "text", {"a": 8})]
    assert positions_where(pool, read_filter(nested)).tolist() == [0]
    level = " or ".join(["(not a = 0)"] * (MAX_DEPTH + 1))  # only what is nested counts as depth
    assert positions_where(pool, read_filter(level)).tolist() == [0, 1]


def test_a_joined_filter_passes_what_both_pass() -> None:
    pool = [Candidate(f"{a}{b}{c}", "text", {"a": a, "b": b, "c": c}) for a in (0, 1) for b in (0, 1) for c in (0, 1)]
    texts = [
        "a = 1",
        "not b = 1",
        "a = 1 and b = 1",
        "b = 1 or c = 1",
        "not (a = 1 or c = 1)",
        "a = 0 or b = 1 and c = 1",
    ]
    rows = [positions_where(pool, read_filter(text)).tolist() for text in texts]
    for first, of_first in zip(texts, rows, strict=True):
        for second, of_second in zip(texts, rows, strict=True):
            both = joined(read_filter(first), read_filter(second))
            assert both is not None
            assert str(both) == str(read_filter(f"({first}) and ({second})"))
            assert positions_where(pool, both).tolist() == sorted({*of_first} & {*of_second}), (first, second)
        assert joined(read_filter(first), None) == joined(None, read_filter(first)) == read_filter(first)
    assert joined(None, None) is None
    # the limits are those of a text that somebody writes, not of what a key or a language adds to it
    for longest in (" or ".join(["a = 1"] * MAX_TERMS), "not " * MAX_DEPTH + "b = 1", f'a != "{"x" * 4000}"'):
        for one, other in ((longest, texts[3]), (texts[3], longest), (longest, longest)):
            both = joined(read_filter(one), read_filter(other))
            assert both is not None
            passing_both = [{*positions_where(pool, read_filter(text)).tolist()} for text in (one, other)]
            assert positions_where(pool, both).tolist() == sorted(passing_both[0] & passing_both[1])


def test_filters_are_values() -> None:
    one, other = read_filter("a=1 and (b in ('x'))"), read_filter('a = 1 AND b in ("x")')
    assert one == other
    assert hash(one) == hash(other)
    assert str(one) == 'a = 1 and b in ("x")'
    levels = {"a = 1 or b = 1 and c = 1": 0, "a = 1 and (b = 1 or c = 1)": 1, "a = 1": 2, "not (a = 1 or b = 1)": 2}
    assert {text: read_filter(text).level for text in levels} == levels
    # equal in Python
    assert len({read_filter("a = 1"), read_filter("a = true"), read_filter("a = 1.0")}) == 3
    assert as_filter(None) is None
    assert as_filter(one) is one
    assert as_filter(str(one)) == one
    for empty in ("", " ", "()"):  # not "all candidates": a variable that was not set must not remove every one
        with pytest.raises(UsageError, match="expected a name"):
            as_filter(empty)
    for wrong in (5, 0, False, (), b""):
        with pytest.raises(UsageError, match=f"is {type(wrong).__name__}"):
            as_filter(wrong)  # type: ignore[arg-type]


# In search

LANGUAGES = ["en", "de", "fr"]
FILTERS = {
    "lang = 'en'": lambda m: m["lang"] == "en",
    "n = 3": lambda m: m["n"] == 3,  # few rows: their vectors are copied
    "n != 3": lambda m: m["n"] != 3,
    "lang in ('de', 'fr') and n < 10": lambda m: m["lang"] != "en" and m["n"] < 10,
    "n > 18 and not lang in ('en', 'fr')": lambda m: m["n"] > 18 and m["lang"] == "de",  # one in sixty
    "n in (4, 14) and n >= 4": lambda m: m["n"] in (4, 14),  # few, with the last of each addition
    "exists lang": lambda m: True,
    "lang = 'it'": lambda m: False,
}


def pool_of(n: int, start: int = 0) -> list[Candidate]:
    return [
        Candidate(f"c{i}", f"text {i % 7}", {"lang": LANGUAGES[i % 3], "n": i % 20}) for i in range(start, start + n)
    ]


def vectors_of(generator: np.random.Generator, n: int, d: int = 8) -> np.ndarray:
    """Vectors with duplicates, so that scores tie."""
    vectors = generator.standard_normal((n, d)).astype(np.float32)
    vectors[n // 2 :: 3] = vectors[: len(vectors[n // 2 :: 3])]
    return vectors


def expected_rows(
    held: dict[int, tuple[Candidate, np.ndarray]], context: np.ndarray, k: int, keep: Callable[[Any], bool]
) -> list[int]:
    """The result by computing every score."""
    rows = [row for row, (candidate, _) in held.items() if keep(candidate.metadata)]
    vectors = np.array([held[row][1] for row in rows], np.float64).reshape(len(rows), 1, context.shape[1])
    products = (vectors * context.astype(np.float64)).sum(2)
    weights = np.exp(products - products.max(1, keepdims=True))
    scores = ((weights * products).sum(1) / weights.sum(1)).astype(np.float32)
    return [rows[i] for i in np.lexsort((rows, -scores))[:k]]


@pytest.mark.deep
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_the_best_passing_rows_are_returned_after_any_change(precision: Precision, tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    pool, vectors = pool_of(300), vectors_of(generator, 300)
    write_index(tmp_path / "i", pool, vectors, fingerprint="f", model="m", precision=precision)
    rounded = from_rows(to_rows(vectors, precision), precision)
    held = dict(enumerate(zip(pool, rounded, strict=True), 1))
    last = 300
    context = generator.standard_normal((2, 8)).astype(np.float32)
    with open_index(tmp_path / "i") as index, LocalWriter(tmp_path / "i") as writer:

        def check() -> None:
            index.refresh()
            for text, keep in FILTERS.items():
                blocks, _ = index.view(read_filter(text))
                result = search(context[None], np.ones((1, 2), np.bool_), blocks, 10)[0]
                assert result.rows.tolist() == expected_rows(held, context, 10, keep), text
                assert result.exact
                assert index.rows_where(read_filter(text)).tolist() == [
                    row for row in sorted(held) if keep(held[row][0].metadata)
                ]

        def add(n: int, start: int) -> None:
            nonlocal last
            new, more = pool_of(n, start), vectors_of(generator, n)
            writer.add(new, more, replace=True)
            ids = {c.id for c in new}
            for row in [row for row, (candidate, _) in held.items() if candidate.id in ids]:
                del held[row]
            for candidate, vector in zip(new, from_rows(to_rows(more, precision), precision), strict=True):
                held[last := last + 1] = candidate, vector

        check()
        for step in range(12):  # more than an index keeps as separate blocks
            add(15, 290 + 10 * step)
            check()
            gone = [f"c{i}" for i in generator.integers(0, 290 + 10 * step, 8)]
            writer.remove(gone)
            held = {row: pair for row, pair in held.items() if pair[0].id not in gone}
            check()
        writer.compact()
        check()
    with open_index(tmp_path / "i") as index:
        check()


def test_filtered_views_are_cached_between_searches(tmp_path: Path) -> None:
    vectors = vectors_of(np.random.default_rng(1), 400)
    write_index(tmp_path / "i", pool_of(400), vectors, fingerprint="f", model="m")
    few, many = read_filter("n = 3"), read_filter("n != 3")
    with open_index(tmp_path / "i") as index, LocalWriter(tmp_path / "i") as writer:
        view = index.view(few)
        assert index.view(read_filter("n=3")) is view
        assert len(view[0][0].rows) == 20 <= COPIED_SHARE * 400
        assert index.view(many)[0][0].vectors is index.blocks()[0].vectors  # a search has derived data from it
        writer.remove(["c3"])
        writer.add(pool_of(2, 1003), vectors[:2])
        index.refresh()
        after = index.view(few)
        assert after[0][0].vectors is view[0][0].vectors
        assert index.rows_where(few).tolist() == [*range(24, 401, 20), 401]
        assert index.view(many)[0][0].vectors is index.blocks()[0].vectors
        for i in range(MAX_FILTERS):
            index.view(read_filter(f"n = {i + 5}"))
        assert index.view(few) is not after  # no longer cached
        assert index.rows_where(few).tolist() == [*range(24, 401, 20), 401]


def test_a_row_passes_once_however_often_a_filter_was_evaluated(tmp_path: Path) -> None:
    """A compaction moves rows of several additions into one block, of which few pass."""
    pool = [Candidate(f"c{i}", "text", {"lang": LANGUAGES[i % 3], "n": i}) for i in range(430)]
    vectors = vectors_of(np.random.default_rng(6), 430)
    write_index(tmp_path / "i", pool[:400], vectors[:400], fingerprint="f", model="m")
    texts = {
        "n > 396": range(397, 430),
        'lang = "en" and n > 396': range(399, 430, 3),
        "not n < 396 or n = 7": [7, *range(396, 430)],
    }

    def check() -> None:
        for text, wanted in texts.items():
            assert index.rows_where(read_filter(text)).tolist() == [n + 1 for n in wanted if n < last], text

    with open_index(tmp_path / "i") as index, LocalWriter(tmp_path / "i") as writer:
        last = 400
        check()
        for last in (403, 406, 412, 418, 424):
            n = len(index)
            writer.add(pool[n:last], vectors[n:last])
            index.refresh()
            check()
        writer.compact()
        refresh_matrix(index)
        assert index.info()["blocks"] == [424]
        check()
        last = 430
        writer.add(pool[424:], vectors[424:])
        index.refresh()
        check()


VALUES: list[Any] = [
    1, 1.0, True, False, None, "1", "true", "null", "", "é", "a\0b", "a", 2**53 + 1, 2**63, 2**63 - 1, 2**70, -0.0, 0.1,
    [1, "a", [2], {"b": 3}, None, 1], [], [[]], {"a": 1}, ["a", "a"], 1e300, 10**300,
]  # fmt: skip


def test_equal_values_are_those_that_sqlite_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, vectors = tmp_path / "i", vectors_of(np.random.default_rng(3), len(VALUES))
    rows = [Candidate(f"c{i}", "text", {"v": value, "team": {"n": i % 3}}) for i, value in enumerate(VALUES)]
    write_index(path, rows, vectors, fingerprint="f", model="m")
    scalars = [value for value in VALUES if not isinstance(value, list | dict) and "\0" not in str(value)]
    texts = [f"v = {json.dumps(value)}" for value in [*scalars, 3, 1.5, 2.0**53]]
    texts += [f"v in (5, {', '.join(map(json.dumps, scalars[i::4]))})" for i in range(4)]
    texts += [f"team.n = 1 and {text}" for text in texts] + [f"{text} or team.n = 2" for text in texts]
    texts += [
        'v = "a" and team.n >= 1',
        "v = 1 and not team.n = 0",
        "v = 1 or exists team.x",
        "v = 1 and team.n = 1 and team.n = 2",
    ]
    with open_index(path) as index, LocalWriter(path) as writer:
        for limit in (MAX_VALUES, 3):  # with fewer values, SQLite evaluates every filter
            for text in texts:
                with closing(connect(path, write=False)) as connection:
                    expected = rows_where(connection, read_filter(text)).tolist()
                assert index.rows_where(read_filter(text)).tolist() == expected, text
            monkeypatch.setattr(postings, "MAX_VALUES", limit)
            writer.remove(["c0", "c5"])
            writer.add([Candidate(f"d{limit}", "text", {"v": 1}), Candidate(f"e{limit}", "text", {})], vectors[:2])
            index.refresh()


def test_filters_for_other_values_of_a_field_read_no_metadata(tmp_path: Path) -> None:
    path, n = tmp_path / "i", 500
    rows = [Candidate(f"c{i}", "text", {"tenant": f"t{i % 50}"}) for i in range(n)]
    write_index(path, rows, vectors_of(np.random.default_rng(3), n), fingerprint="f", model="m")
    with closing(connect(path, write=False)) as connection:
        meta = read_meta(connection, path)
    own = postings.Postings(path)
    others = [f"other{i}" for i in range(postings.MAX_FIELDS)]
    for name in [*others[:-1], "tenant", others[0], others[-1]]:
        assert own.candidates(read_filter(f'{name} = "t0"').tree, meta) is not None, name
    path.rename(tmp_path / "elsewhere")
    for i in range(50):
        found = own.candidates(read_filter(f'tenant = "t{i}"').tree, meta)
        assert found is not None
        assert (found[0].tolist(), found[1]) == ([*range(i + 1, n + 1, 50)], True)
    for name in (others[0], *others[2:]):  # the fields that were used last
        assert own.candidates(read_filter(f"{name} = 1").tree, meta) is not None, name
    with pytest.raises(ArtifactError, match="not an index"):
        own.candidates(read_filter(f"{others[1]} = 1").tree, meta)
    with pytest.raises(ArtifactError, match="not an index"):
        own.candidates(read_filter("team = 1").tree, meta)


def test_postings_of_several_fields_are_read_in_parts_and_after_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows in several parts, more fields than are kept, rows with several values, an earlier and another index."""
    monkeypatch.setattr(postings, "ROWS_AT_A_TIME", 3)
    monkeypatch.setattr(postings, "MAX_FIELDS", 2)
    path, generator = tmp_path / "i", np.random.default_rng(4)
    choices: list[Any] = ["x", "y", ["x", "x"], ["y", "x", 1], 1, 2.5, True, None, [], "z"]
    added: list[Candidate] = []

    def more(n: int) -> list[Candidate]:
        start = len(added)
        added.extend(
            Candidate(f"c{i}", "text", {name: choices[int(generator.integers(10))] for name in "abc"})
            for i in range(start, start + n)
        )
        return added[start:]

    def found(own: postings.Postings, text: str, meta: Meta) -> tuple[list[int], bool] | None:
        candidates = own.candidates(read_filter(text).tree, meta)
        return None if candidates is None else (candidates[0].tolist(), candidates[1])

    def having(name: str, *values: Any) -> list[int]:
        held = [c.metadata[name] if isinstance(c.metadata[name], list) else [c.metadata[name]] for c in added]
        keys = {(type(value) is bool, value) for value in values}
        return [row for row, own in enumerate(held, 1) if keys & {(type(value) is bool, value) for value in own}]

    def meta() -> Meta:
        with closing(connect(path, write=False)) as connection:
            return read_meta(connection, path)

    write_index(path, more(8), vectors_of(generator, 8), fingerprint="f", model="m")
    own, first = postings.Postings(path), meta()
    with LocalWriter(path) as writer:
        for n in (0, 1, 5, 9):
            writer.add(more(n), vectors_of(generator, n))
            now = meta()
            for name, other in (("a", "b"), ("b", "c"), ("c", "a"), ("a", "b")):
                for value in ("x", "y", 1, 2.5, True, "none"):
                    rows = having(name, value)
                    assert found(own, f"{name} = {json.dumps(value)}", now) == (rows, True), (name, value)
                either = sorted({*having(name, "x", 1), *having(other, "y")})
                assert found(own, f'{name} in ("x", 1) or {other} = "y"', now) == (either, True)
                both = sorted({*having(name, "x")} & {*having(other, "y")})
                assert found(own, f'{name} = "x" and {other} = "y"', now) == (both, True)
                assert found(own, f'{name} = "x" and {other} > 1', now) == (having(name, "x"), False)
                assert found(own, f'{name} = "x" or {other} > 1', now) is None
                some = {*having(name, "x"), *having(other, "y")} & {*having(name, "x", 1)}
                inside = f'{name} in ("x", 1) and ({name} = "x" or ({other} = "y" and {name} > 1))'
                assert found(own, inside, now) == (sorted(some), False)
        assert found(own, 'a = "x"', first) is None  # as of an earlier change
        assert found(own, 'a = "x"', now) == (having("a", "x"), True)
    other = postings.Postings(path)
    write_index(path, added[:3], vectors_of(generator, 3), fingerprint="f", model="m", overwrite=True)
    assert found(other, 'b = "x"', now) is None  # of the index that was here before
    assert found(other, 'b = "x"', meta()) == ([row for row in having("b", "x") if row <= 3], True)


def test_an_index_that_replaces_another_has_its_own_rows(tmp_path: Path) -> None:
    generator, condition = np.random.default_rng(2), read_filter("lang = 'en'")
    write_index(tmp_path / "i", pool_of(9), vectors_of(generator, 9), fingerprint="f", model="m")
    with open_index(tmp_path / "i") as index:
        assert index.rows_where(condition).tolist() == [1, 4, 7]
        other = pool_of(9, start=1)
        write_index(tmp_path / "i", other, vectors_of(generator, 9), fingerprint="f", model="m", overwrite=True)
        # not yet evaluated by this filter or another
        assert index.rows_where(condition).tolist() == [1, 4, 7]
        assert index.rows_where(read_filter("lang != 'fr'")).tolist() == [1, 3, 4, 6, 7, 9]
        assert index.rows_where(condition).tolist() == [3, 6, 9]
        assert index.opening == 2
        shutil.rmtree(tmp_path / "i")
        with pytest.raises(ArtifactError, match="is not an index"):
            index.rows_where(read_filter("n = 1"))


def test_views_and_rows_come_from_one_change(tmp_path: Path) -> None:
    """A row removed before a filter was evaluated might have passed: an earlier view would miss it."""
    path, condition = tmp_path / "i", read_filter("lang = 'en'")
    vectors = vectors_of(np.random.default_rng(2), 9)
    write_index(path, pool_of(9), vectors, fingerprint="f", model="m")

    def meta() -> Meta:
        with closing(connect(path, write=False)) as connection:
            return read_meta(connection, path)

    filtered, before = FilteredViews(path), meta()
    with open_index(path) as early, LocalWriter(path) as writer:
        writer.add(pool_of(3), vectors[:3], replace=True)
        with open_index(path) as late:
            assert filtered.view(condition, early.view(), before) is None
            blocks, _ = filtered.view(condition, late.view(), meta()) or ((), ())
            assert sum(len(b.rows) if b.alive is None else int(b.alive.sum()) for b in blocks) == 3
            assert filtered.view(condition, early.view(), before) is None


def test_damaged_metadata_is_reported(tmp_path: Path) -> None:
    write_index(tmp_path / "i", pool_of(5), vectors_of(np.random.default_rng(2), 5), fingerprint="f", model="m")
    path = tmp_path / "i" / INDEX_FILE
    data = path.read_bytes()
    assert data.count(b'{"lang": "de", "n": 4}') == 1
    path.write_bytes(data.replace(b'{"lang": "de", "n": 4}', b'{"lang": "de"; "n": 4}'))
    with open_index(tmp_path / "i") as index, pytest.raises(ArtifactError, match="is damaged"):
        index.view(read_filter("n = 1"))


def test_an_empty_index_has_no_passing_rows(tmp_path: Path) -> None:
    write_index(tmp_path / "i", [], np.empty((0, 8), np.float32), fingerprint="f", model="m")
    with open_index(tmp_path / "i") as index:
        assert index.view(read_filter("exists lang")) == ((), ())
        assert index.rows_where(read_filter("not exists lang")).tolist() == []


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivfpq"])
@pytest.mark.parametrize("share", [0.002, 0.3, 1.0])
def test_an_approximate_filtered_search_returns_k(kind: str, share: float, tmp_path: Path) -> None:
    """Passing candidates are far from the context, so that a shortlist of all candidates would hold none."""
    pytest.importorskip("faiss")
    generator = np.random.default_rng(3)
    vectors = generator.standard_normal((1500, 16)).astype(np.float32)
    context = generator.standard_normal((3, 16)).astype(np.float32)
    vectors = vectors[np.argsort(vectors @ context.mean(0))]
    pool = [Candidate(f"c{i}", f"text {i}", {"n": i}) for i in range(1500)]
    write_index(tmp_path / "i", pool, vectors, fingerprint="f", model="m", ann=kind)
    n = int(1500 * share)
    held = dict(enumerate(zip(pool, vectors, strict=True), 1))
    contexts, mask = (
        np.stack([context, -context]),
        np.ones((2, 3), np.bool_),
    )  # the second's nearest
    with open_index(tmp_path / "i") as index:
        blocks, indexes = index.view(read_filter(f"n < {n}"))
        far, near = search(contexts, mask, blocks, 20, mode="approximate", indexes=indexes)
    expected = expected_rows(held, context, 20, lambda m: m["n"] < n)
    for result in (far, near):
        assert len(result.rows) == min(20, n) == len(set(result.rows.tolist()))
        assert (result.rows <= n).all()
        assert (np.diff(result.scores) <= 0).all()
    if kind == "flat" and share < 1.0:  # the shortlist did not help
        assert far.exact
    if far.exact:
        assert far.rows.tolist() == expected
    else:
        assert far.ways == ("shortlist",)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n_live", [5, 2000])
def test_every_way_of_scanning_applies_the_filter(way: str, n_live: int) -> None:
    """The best of all do not pass; the passing ones are few or many in a chunk."""
    generator = np.random.default_rng(7)
    vectors = generator.standard_normal((9000, 24)).astype(np.float32)
    context = generator.standard_normal((4, 24)).astype(np.float32)
    vectors = vectors[np.argsort(-(vectors @ context.mean(0)))]
    alive = np.zeros(9000, np.bool_)
    alive[generator.choice(np.arange(3000, 9000), n_live, replace=False)] = True
    live = Block(vectors, np.arange(9000), alive)
    try:
        result = search(context[None], np.ones((1, 4), np.bool_), [live], 10, ways=[way])[0]
    except UsageError:
        pytest.skip("this machine does not support this way of scanning")
    held = {row: (Candidate("x", "x"), vectors[row]) for row in np.flatnonzero(alive).tolist()}
    assert result.rows.tolist() == expected_rows(held, context, 10, lambda _: True)
    assert result.exact
    assert result.n_scored <= n_live


# In retrievers

REPLIES = [
    Candidate("r0", "restart the router", {"team": "tech"}),
    Candidate("r1", "restart the router", {"team": "sales"}),
    Candidate("r2", "pay the bill", {"team": "billing"}),
    Candidate("r3", "restart the modem", {"team": "tech"}),
    Candidate("r4", "restart it"),
    Candidate("r5", "restart the router", {"team": "tech"}),
    Candidate("r6", "the router light is red", {"team": "sales"}),
]


def ranker_of(encoder: Encoder, **settings: Any) -> Ranker:
    """An encoder and word statistics, which re-rank."""
    words = LexicalTerm(BM25().fit([reply.text for reply in REPLIES]))
    return Ranker([(EncoderTerm(encoder), (1.0,)), (words, (0.5,))], **settings)


@pytest.fixture(params=["exact", "approximate", "ranker"])
def retriever(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    encoder = Hashed()
    vectors = encoder.encode_candidates([reply.text for reply in REPLIES])
    kind: str = request.param
    ann = "flat" if kind == "approximate" else ""
    if ann:
        pytest.importorskip("faiss")
    write_index(tmp_path / "i", REPLIES, vectors, fingerprint=encoder.fingerprint, model="m", ann=ann)
    mode: Mode = "approximate" if ann else "exact"
    with open_index(tmp_path / "i") as index:
        yield Replies(ranker_of(encoder) if kind == "ranker" else encoder, index, mode=mode)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("team = 'tech'", {"r0", "r3"}),  # each text once
        ("team != 'tech'", {"r1", "r2", "r4", "r6"}),
        ("team in ('sales', 'billing')", {"r1", "r2", "r6"}),
        ("not exists team", {"r4"}),
        ("team = 'none'", set()),
    ],
)
def test_every_retriever_returns_the_best_passing_replies(retriever: Any, text: str, ids: set[str]) -> None:
    contexts = ["please restart the router", ["my bill", "is the router light red"]]
    for k in (1, 3, 10):
        for given_as in (text, read_filter(text)):
            for ranked in retriever.respond(contexts, k, filter=given_as):
                assert {reply.id for reply in ranked} <= ids
                assert len(ranked) == min(k, len(ids))
                assert [reply.score for reply in ranked] == sorted((r.score for r in ranked), reverse=True)
    answer = retriever.answer("please restart the router", filter=text)
    assert answer.abstained is not bool(ids)
    # a filter does not change scores
    everything = {r.id: r.score for r in retriever.respond(["please restart the router"], 10)[0]}
    for reply in retriever.respond(["please restart the router"], 10, filter=text)[0]:
        assert reply.score == everything.get(reply.id, reply.score)


def test_a_threshold_applies_to_the_best_passing_reply(tmp_path: Path) -> None:
    vectors = Hashed().encode_candidates([reply.text for reply in REPLIES])
    write_index(tmp_path / "i", REPLIES, vectors, fingerprint=Hashed().fingerprint, model="m")

    def with_rule(measure: Measure, threshold: float) -> Replies:
        return Replies(ranker_of(Hashed(), abstention=Abstention(measure, threshold)), open_index(tmp_path / "i"))

    best = with_rule("score", 0.0).respond(["please restart the router"], 1, filter="team = 'tech'")[0][0].score
    comparing: tuple[Measure, ...] = ("margin", "softmax")  # the only passing reply cannot be compared
    for measure in comparing:
        strict = with_rule(measure, 0.0)
        assert not strict.answer("please restart the router").abstained
        only = strict.answer("please restart the router", filter="team = 'billing'")
        assert (len(only.ranked), only.abstained, only.confidence) == (1, True, -np.inf)
    replies = with_rule("score", best - 1e-3)
    assert not replies.answer("please restart the router").abstained
    assert not replies.answer("please restart the router", filter="team = 'tech'").abstained
    assert replies.answer("please restart the router", filter="team = 'billing'").abstained
    nothing = replies.answer("please restart the router", filter="team = 'none'")
    assert nothing.abstained
    assert nothing.ranked == ()
    assert nothing.text is None


def test_a_filter_that_cannot_be_read_is_refused_before_any_work(retriever: Any) -> None:
    with pytest.raises(UsageError, match="filter, character 8"):
        retriever.respond(["hi"], filter="team = tech")


@pytest.mark.deep
def test_no_candidate_is_missed_while_all_are_replaced(tmp_path: Path) -> None:
    """Each of twelve candidates always exists in one of its forms, and passes in each form."""
    encoder, texts = Hashed(), [f"word{i}" for i in range(12)]

    def forms(version: int) -> list[Candidate]:
        return [Candidate(str(i), text, {"keep": True, "version": version}) for i, text in enumerate(texts)]

    others = [Candidate(f"other{i}", f"other{i}", {"keep": False}) for i in range(200)]
    pool = [*others, *forms(0)]
    vectors = encoder.encode_candidates([candidate.text for candidate in pool])
    write_index(tmp_path / "i", pool, vectors, fingerprint=encoder.fingerprint, model="m")
    stop, failures, n_answers = threading.Event(), [], [0]
    with open_index(tmp_path / "i") as index, LocalWriter(tmp_path / "i") as writer:
        retriever = Replies(encoder, index)

        def read(number: int) -> None:
            try:
                while not stop.is_set():
                    # new filters are evaluated for the first time, repeatedly
                    text = "keep = true" if number == 0 else f"keep = true and version >= -{n_answers[0] % 200}"
                    ranked = retriever.respond(["word3 word5"], 20, filter=text)[0]
                    n_answers[0] += 1
                    if sorted(int(reply.id) for reply in ranked) != list(range(12)):
                        failures.append((text, ranked))
            except Exception as error:
                failures.append(error)

        readers = [threading.Thread(target=read, args=(number,)) for number in range(3)]
        for reader in readers:
            reader.start()
        version = 0
        while version < 20 or (n_answers[0] < 40 and version < 5000 and not failures):
            version += 1
            writer.add(forms(version), vectors[-12:], replace=True)
        stop.set()
        for reader in readers:
            reader.join()
        assert not failures, failures[0]
        assert n_answers[0] >= 40
        index.refresh()
        assert len(index.rows_where(read_filter(f"version = {version}"))) == 12


# On the command line


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filters")
    rows = [{"id": r.id, "text": r.text, **r.metadata} for r in REPLIES]
    (folder / "replies.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    built = run("index", "build", "shipped:convert", folder / "replies.jsonl", "-o", folder / "index")
    assert built.returncode == 0, built.stderr
    return folder / "index"


def ids_of(done: Any) -> list[str]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["id"] for line in done.stdout.splitlines()]


@pytest.mark.deep
def test_commands_take_filters(catalogue: Path, tmp_path: Path) -> None:
    index = Path(shutil.copytree(catalogue, tmp_path / "index"))
    assert ids_of(run("index", "list", index, "--json", "--filter", "team = 'tech'")) == ["r0", "r3", "r5"]
    assert ids_of(run("index", "list", index, "--json", "--filter", "team = 'tech'", "--limit", "1")) == ["r0"]
    asked = run("respond", index, "my router", "--filter", "team = 'sales'", "-k", "9")
    assert asked.returncode == 0, asked.stderr
    assert {reply["id"] for reply in json.loads(asked.stdout)["results"]} == {"r1", "r6"}
    piped = run("respond", index, "--filter", "team = 'none'", stdin="my router\nmy bill\n")
    assert [json.loads(line)["results"] for line in piped.stdout.splitlines()] == [[], []]
    with open_writer(index) as writer:
        writer.add(
            [Candidate("e\x1b[2J", "red\x1b[31m\u202e\ntext\x07")],
            [next(iter(LocalIndex(index).vectors(["r0"]).values()))],
        )
    listed = run("index", "list", index).stdout
    assert "e\\x1b[2J\tred\\x1b[31m\\u202e text\\x07\n" in listed
    assert run("index", "remove", index, "e\x1b[2J", "--wait", "1").returncode == 0
    gone = run("index", "remove", index, "--filter", "team = 'tech' or not exists team")
    assert "removed 4, now 3" in gone.stderr
    assert ids_of(run("index", "list", index, "--json")) == ["r1", "r2", "r6"]


@pytest.mark.deep
@pytest.mark.parametrize(
    "arguments",
    [("respond", "hi"), ("index", "list"), ("index", "remove")],
    ids=["respond", "list", "remove"],
)
def test_a_wrong_filter_is_one_line(arguments: Sequence[str], catalogue: Path) -> None:
    words = [*arguments[:1], catalogue, *arguments[1:]] if arguments[0] == "respond" else [*arguments, catalogue]
    refused = run(*words, "--filter", "team = 'x'); DROP TABLE candidates; --")
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: filter, character 12: ';' is not allowed here")
    assert len(refused.stderr.splitlines()) == 1
    with open_index(catalogue) as index:
        assert len(index) == len(REPLIES)


def test_ids_and_a_filter_are_not_removed_together(catalogue: Path) -> None:
    refused = run("index", "remove", catalogue, "r1", "--filter", "exists team")
    assert refused.returncode == 2
    assert "ids and a filter cannot be combined" in refused.stderr


def test_names_in_public() -> None:
    assert polyrank.read_filter("lang = 'en'") == polyrank.Filter('lang = "en"', "", ())
    assert isinstance(LocalIndex.rows_where, Callable)
