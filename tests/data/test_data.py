"""Reading and writing examples and pools in real files, and the order of batches."""

import codecs
import datetime
import gzip
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from scipy.stats import chi2

import polyrank.data as data
from polyrank.data import lines, read_examples, read_pool, text_id, write_examples, write_pool
from polyrank.data.lines import check_object
from polyrank.data.pool import pool_of, stream_pool
from polyrank.errors import DataError, MissingExtraError, UsageError
from polyrank.negatives.random import sample_negatives
from polyrank.records import Candidate, Context, Example, contexts_of
from polyrank.training import batches
from polyrank.training.batches import BatchOrder, permuted

SHARED = Path(__file__).parents[3] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared corpora are missing")

PAIR = {"context": ["hi", "hello?"], "response": "yes"}


def written(path: Path, *rows: Any) -> Path:
    """Write rows to a file: bytes and texts unchanged, other values as JSON."""
    lines = [
        row if isinstance(row, bytes) else (row if isinstance(row, str) else json.dumps(row)).encode() for row in rows
    ]
    content = b"".join(line + b"\n" for line in lines)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


# reading


def test_pairs_with_background_negatives_and_ids(tmp_path: Path) -> None:
    path = written(
        tmp_path / "train.jsonl",
        {"context": "hi", "response": "hello"},
        "",
        {"id": "x", "context": ["a", ""], "response": "b", "negatives": ["c", "d"], "background": ["i am old"]},
    )
    loaded = read_examples(path)
    assert loaded.examples == [
        Example(("hi",), ("hello",), (0,), "train:1"),
        Example(("a", ""), ("b", "c", "d"), (0,), "x", ("i am old",)),
    ]
    assert (loaded.report.n_rows, loaded.report.n_examples, loaded.report.n_empty_strings) == (2, 2, 1)
    assert str(loaded.report) == "2 rows, 2 examples of 1 to 3 candidates; 1 empty text"


def test_each_turn_answers_all_turns_before_it(tmp_path: Path) -> None:
    turns = [{"speaker": s, "text": t} for s, t in [("user", "a"), ("agent", "b"), ("user", "c"), ("agent", "d")]]
    rows = {"id": "one", "turns": turns}, {"turns": ["only"]}, {"turns": ["x", "y"]}, {"turns": ["x", "", "z"]}
    path = written(tmp_path / "d.jsonl", *rows)
    loaded = read_examples(path)
    assert loaded.examples == [
        Example(("a",), ("b",), (0,), "one#1"),
        Example(("a", "b"), ("c",), (0,), "one#2"),
        Example(("a", "b", "c"), ("d",), (0,), "one#3"),
        Example(("x",), ("y",), (0,), "d:3#1"),
        Example(("x",), ("",), (0,), "d:4#1"),
        Example(("x", ""), ("z",), (0,), "d:4#2"),
    ]
    assert loaded.report.n_skipped == 1
    assert "1 row without an example" in str(loaded.report)


def test_dialogues_of_one_speaker(tmp_path: Path) -> None:
    turns = [{"speaker": s, "text": t} for s, t in [("user", "a"), ("agent", "b"), ("user", "c"), ("agent", "d")]]
    path = written(tmp_path / "d.jsonl", {"id": "one", "turns": turns})
    assert [example.id for example in read_examples(path, speaker="agent").examples] == ["one#1", "one#3"]
    with pytest.raises(DataError, match=r"no turn is by speaker 'Agent'; its speakers are agent, user"):
        read_examples(path, speaker="Agent")
    with pytest.raises(DataError, match=r"d\.jsonl:1: turn 0 has no speaker"):
        read_examples(written(path, {"turns": ["a", "b"]}), speaker="agent")


def test_candidates_and_pool_rows(tmp_path: Path) -> None:
    path = written(
        tmp_path / "test.jsonl.gz",
        {"context": ["q"], "candidates": ["a", "b", "a"], "relevant": 1, "response": "b"},
        {"context": ["q"], "candidates": ["a", "b"], "relevant": []},
    )
    loaded = read_examples(path)
    assert loaded.examples[0] == Example(("q",), ("a", "b", "a"), (1,), "test:1")
    assert (loaded.report.n_duplicate_candidates, loaded.report.n_unanswered) == (1, 1)
    path = written(tmp_path / "q.jsonl", {"context": "q", "relevant_ids": ["r1", 2]})
    assert read_examples(path).examples == [Example(("q",), id="q:1", relevant_ids=("r1", "2"))]


def test_the_first_good_row_decides_the_kind(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", "{", PAIR, {"turns": ["a", "b"]})
    loaded = read_examples(path, skip_bad=True)
    assert (loaded.report.n_rows, loaded.report.n_examples, loaded.report.n_bad) == (3, 1, 2)
    assert loaded.report.messages[1].startswith(f'{path}:3: missing field "context"; ')


def test_arguments_that_do_not_go_with_the_kind(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", PAIR)
    with pytest.raises(UsageError, match="applies only to dialogues"):
        read_examples(path, speaker="agent")
    with pytest.raises(UsageError, match="kind 'pears' is unknown"):
        read_examples(path, kind="pears")  # type: ignore[arg-type]


def test_duplicate_pairs_are_counted(tmp_path: Path) -> None:
    assert read_examples(written(tmp_path / "x.jsonl", PAIR, PAIR, PAIR)).report.n_duplicate_pairs == 2


def test_odd_but_good_texts(tmp_path: Path) -> None:
    texts = ["", "😀", "שלום", "漢字", "a\0b", "long " * 100_000, "line\nbreak", "\u2028"]
    path = written(tmp_path / "x.jsonl", {"context": [""], "candidates": texts, "relevant": [0]})
    assert read_examples(path).examples[0].candidates == tuple(texts)
    # an escaped pair of surrogates is one character
    assert read_examples(written(path, r'{"context": "a", "response": "\ud83d\ude00"}')).examples[0].response == "😀"


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", b"\xef\xbb\xbf" + json.dumps(PAIR).encode() + b"\r")
    assert read_examples(path).examples[0].response == "yes"


# bad input, reported with its position

BAD_LINES = {
    "broken UTF-8": (b'{"context": "\xff"}', "byte 14 of the line is not UTF-8"),
    "bad JSON": (
        '{"context": "a",}',
        "not JSON at character 1[67]",
    ),  # the comma in newer Pythons, or after it
    "cut off": ('{"context": "a"', "not JSON at character 16"),
    "NaN": ('{"context": "a", "response": "b", "weight": NaN}', "NaN is not JSON"),
    "infinite": ('{"context": "a", "response": "b", "weight": 1e999}', "the number 1e999 is too large"),
    "nested": ("[" * 100_000, "nested too deeply"),
    "repeated key": ('{"context": "a", "response": "b", "response": "c"}', 'the key "response" is repeated; write it'),
    "list": ("[1]", "holds a list, not an object"),
    "missing": ({"context": "a"}, 'missing field "response"; add it to the row, which has context'),
    "type of context": ({"context": 3, "response": "b"}, 'field "context" holds a number'),
    "type of a turn": ({"context": ["a", None], "response": "b"}, 'field "context" holds null at position 1'),
    "no turns": ({"context": [], "response": "b"}, 'field "context" is an empty list'),
    "type of response": ({"context": "a", "response": ["b"]}, 'field "response" holds a list'),
    "type of id": ({"id": True, "context": "a", "response": "b"}, 'field "id" holds true or false'),
    "surrogate": (r'{"context": "a", "response": "\ud800"}', r"lone surrogate \\ud800"),
    "surrogate in a name": (r'{"context": "a", "response": "b", "\uDFFF": 1}', r"lone surrogate \\udfff"),
    "too long": ({"context": "a" * 5000, "response": "b"}, "longer than 4,000 bytes"),
}


def test_a_deep_row_in_memory_is_named() -> None:
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    row = {"text": "b", "metadata": {"x": deep}}
    with pytest.raises(DataError, match=r"^row 1: nested too deeply; write flat objects"):
        pool_of([{"text": "a"}, row])
    with pytest.raises(ValueError, match=r"^nested too deeply; write flat objects"):
        check_object(row, escaped=True)


@pytest.mark.parametrize("case", BAD_LINES)
@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_bad_line_is_named_and_can_be_skipped(
    tmp_path: Path, case: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, message = BAD_LINES[case]
    path = written(tmp_path / name, PAIR, row, PAIR)
    if case == "too long":
        monkeypatch.setattr(lines, "MAX_LINE_BYTES", 4_000)
    with pytest.raises(DataError, match=rf"^{path}:2: .*{message}"):
        read_examples(path)
    loaded = read_examples(path, skip_bad=True)
    assert (loaded.report.n_rows, loaded.report.n_bad, len(loaded.examples)) == (3, 1, 2)
    assert loaded.report.messages[0].startswith(f"{path}:2: ")
    assert loaded.report.messages[0] in str(loaded.report)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"context": "a", "candidates": ["b"], "relevant": [1]}, "relevant index 1 is outside the 1 candidates"),
        ({"context": "a", "candidates": ["b"], "relevant": -1}, "relevant index -1 is outside"),
        (
            {"context": "a", "candidates": [], "relevant": [0]},
            'field "relevant" holds a position, but "candidates" is empty',
        ),
        ({"context": "a", "candidates": ["b"], "relevant": [True]}, 'field "relevant" holds true or false'),
        ({"context": "a", "candidates": ["b"], "relevant": [0, 0]}, 'field "relevant" repeats a position'),
        ({"context": "a", "candidates": ["b"]}, 'missing field "relevant"'),
        ({"context": "a", "candidates": "xyz", "relevant": [0]}, 'field "candidates" holds a text; write a list'),
        ({"context": "a", "relevant_ids": ["b", "b"]}, 'field "relevant_ids" repeats an id'),
        ({"context": "a", "relevant_ids": [1.5]}, 'field "relevant_ids" holds a number'),
        ({"turns": "a"}, 'field "turns" is not a list'),
        ({"turns": ["a", 1]}, "the text of turn 1 is a number"),
        ({"turns": ["a", {"speaker": "b"}]}, "the text of turn 1 is null"),
        ({"turns": [{"speaker": 1, "text": "b"}]}, "the speaker of turn 0 is a number"),
        ({"text": "a"}, 'unknown kind of row: it needs one of "turns"'),
    ],
)
def test_bad_first_row(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = written(tmp_path / "x.jsonl", row)
    with pytest.raises(DataError, match=rf"^{path}:1: {message}"):
        read_examples(path)


def test_only_three_messages_are_kept(tmp_path: Path) -> None:
    report = read_examples(written(tmp_path / "x.jsonl", *["{"] * 5, PAIR), skip_bad=True).report
    assert (report.n_bad, len(report.messages)) == (5, 3)


def test_no_rows_and_no_good_rows(tmp_path: Path) -> None:
    for name in ("x.jsonl", "x.jsonl.gz", "x.csv"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(DataError, match=r"holds no rows"):
            read_examples(tmp_path / name)
        if not name.endswith(".gz"):
            (tmp_path / name).write_bytes(codecs.BOM_UTF8)
            with pytest.raises(DataError, match=r"holds no rows"):
                read_examples(tmp_path / name)
    with pytest.raises(DataError, match=r"none of its 1 row gives an example; the first bad one: .*:1: not JSON"):
        read_examples(written(tmp_path / "x.jsonl", "{"), skip_bad=True)


def test_default_limit_of_a_line(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", PAIR, {"context": "a" * 10_000_000, "response": "b"}, PAIR)
    with pytest.raises(DataError, match=r"x\.jsonl:2: the line is longer than 8,388,608 bytes"):
        read_examples(path)
    assert len(read_examples(path, skip_bad=True).examples) == 2


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.jsonl: no such file"):
        read_examples(tmp_path / "absent.jsonl")
    with pytest.raises(DataError, match=r"matches no data file; give files that end in"):
        read_examples(tmp_path)
    (tmp_path / "a.jsonl.gz").write_text("{}")
    with pytest.raises(DataError, match=r"named \.gz but is not gzip"):
        read_examples(tmp_path / "a.jsonl.gz")
    (tmp_path / "a.jsonl").write_bytes(gzip.compress(b"{}"))
    with pytest.raises(DataError, match=r"is gzip but not named \.gz"):
        read_examples(tmp_path / "a.jsonl")


@pytest.mark.parametrize("skip_bad", [False, True])
def test_damaged_gzip_is_an_error_not_the_end(tmp_path: Path, skip_bad: bool) -> None:
    generator = np.random.Generator(np.random.PCG64(1))
    rows = [{"context": generator.bytes(3000).hex(), "response": "b"} for _ in range(100)]
    path = written(tmp_path / "x.jsonl.gz", *rows)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"x\.jsonl\.gz:[3-6]\d: the gzip stream is truncated"):  # near the middle
        read_examples(path, skip_bad=skip_bad)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    path.write_bytes(flipped)
    with pytest.raises(DataError, match=r"x\.jsonl\.gz:\d+: "):
        read_examples(path)


# CSV and Parquet


def test_csv_pairs(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", "id,context,response", 'a,"hi, you\nthere",hello', ',"call ""x""",', "c,d,e")
    loaded = read_examples(path)
    assert loaded.examples == [
        Example(("hi, you\nthere",), ("hello",), (0,), "a"),
        Example(('call "x"',), ("",), (0,), "x:4"),
        Example(("d",), ("e",), (0,), "c"),
    ]


@pytest.mark.parametrize("sign", [";", "\t"])
def test_cells_may_be_separated_by_semicolons_or_tabs(tmp_path: Path, sign: str) -> None:
    rows = ('"context"', "response", '"my, note"'), ('"a, b"', "c", ""), ("d", f'"e{sign}f"', "")
    examples = read_examples(written(tmp_path / "x.csv", *map(sign.join, rows))).examples
    assert [(example.context, example.response) for example in examples] == [(("a, b",), "c"), (("d",), f"e{sign}f")]


def test_empty_csv_cells_are_none(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", "context,response,background,negatives", "a,b,,", "a,,c,d")
    assert read_examples(path).examples == [
        Example(("a",), ("b",), (0,), "x:2"),
        Example(("a",), ("", "d"), (0,), "x:3", ("c",)),
    ]
    rows = read_examples(written(tmp_path / "y.csv", "context,relevant_ids", "a,", "b,7")).examples
    assert [example.relevant_ids for example in rows] == [(), ("7",)]


def test_bad_csv_records_keep_their_lines(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", "context,response", '"a\nb",c', "d", b"\xff,e", '"f"g,h', "i,j", '"k')
    loaded = read_examples(path, skip_bad=True)
    assert [example.context for example in loaded.examples] == [("a\nb",), ("i",)]
    assert loaded.report.n_bad == 4
    assert loaded.report.messages[0] == f"{path}:4: 1 cells, but the header names 2; check its commas and quotes"
    assert loaded.report.messages[1].startswith(f"{path}:5: byte 1 of the line is not UTF-8")
    assert loaded.report.messages[2].startswith(f"{path}:6: not CSV: ")
    path.write_bytes(b"context,response\ra,b\r")  # lines as old versions of Excel for Mac end them
    with pytest.raises(DataError, match=r"x\.csv:1: not CSV: .*; end its lines with LF or CRLF"):
        read_examples(path)
    with pytest.raises(DataError, match=r"x\.csv:2: unknown kind of row: .* and has frage, antwort"):
        read_examples(written(path, "frage,antwort", "a,b"))
    with pytest.raises(DataError, match=r"x\.csv:1: two columns have the same name"):
        read_examples(written(path, "a,a", "1,2"))
    for first, problem in ((b"\xff,a", "byte 1 of the line is not UTF-8"), ('"a"b,c', "not CSV: ")):
        with pytest.raises(DataError, match=rf"x\.csv:1: {problem}"):  # the next line is not the header
            read_examples(written(path, first, "context,response", "a,b"), skip_bad=True)


def test_the_rest_of_a_bad_csv_record_is_not_a_record(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", "context,response", '"first line', b"\xff\xff", 'last line",b', "c,d")
    loaded = read_examples(path, skip_bad=True)
    assert loaded.examples == [Example(("c",), ("d",), (0,), "x:5")]
    assert loaded.report.messages == (f"{path}:3: byte 1 of the line is not UTF-8; save the file as UTF-8",)


def test_long_csv_cells(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", "context,response", f"{'a' * 200_000},b")
    assert len(read_examples(path).examples[0].context[0]) == 200_000


def test_parquet_pairs(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "x.parquet"
    parquet.write_table(pyarrow.table({"context": [["a", "b"], ["c"]], "response": ["d", None]}), path)
    assert read_examples(path, skip_bad=True).examples == [Example(("a", "b"), ("d",), (0,), "x:1")]
    with pytest.raises(DataError, match=r'x\.parquet:2: field "response" holds null'):
        read_examples(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"x\.parquet: not a valid Parquet file"):
        read_examples(path)


def test_arrow_files_and_folders_of_datasets(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"query": ["a", "b"], "positive": ["c", "d"], "negative": ["e", "f"]})
    saved = tmp_path / "saved" / "data-00000-of-00001.arrow"
    saved.parent.mkdir()
    for path, new in ((saved, pyarrow.ipc.new_stream), (tmp_path / "x.arrow", pyarrow.ipc.new_file)):
        with new(str(path), table.schema) as stream:
            stream.write_table(table, max_chunksize=1)  # in two batches
    for path in (saved.parent, saved, tmp_path / "x.arrow"):
        assert [example.candidates for example in read_examples(path).examples] == [("c", "e"), ("d", "f")]
    saved.with_name("y.arrow").write_bytes(saved.read_bytes()[:300])
    with pytest.raises(DataError, match=r"y\.arrow: not a valid Arrow file"):
        read_examples(saved.with_name("y.arrow"))
    # the first text would end behind all texts
    buffers = [pyarrow.py_buffer(buffer) for buffer in (b"\x01", np.array([0, 3, 2], np.int32), b"ab")]
    texts = pyarrow.Array.from_buffers(pyarrow.string(), 2, buffers)
    table = pyarrow.table({"query": texts, "positive": ["c", "d"]})
    for new in (pyarrow.ipc.new_stream, pyarrow.ipc.new_file):
        with new(str(tmp_path / "x.arrow"), table.schema) as stream:
            stream.write_table(table)
        with pytest.raises(
            DataError, match=r"x\.arrow: not a valid Arrow file \(In column 0: Invalid: Offset invariant"
        ):
            read_examples(tmp_path / "x.arrow")
    with pytest.raises(DataError, match=r"is a folder of 2 files; give one, such as data-00000-of-00001\.arrow"):
        read_examples(saved.parent)


def test_parquet_that_is_not_utf8(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "x.parquet"
    for before in (0, 1, 1200):  # in the first batch or the second
        raw = pyarrow.array([*[b"d"] * before, b"\xff", b"e"])
        texts = pyarrow.Array.from_buffers(pyarrow.string(), len(raw), raw.buffers())
        parquet.write_table(pyarrow.table({"context": ["a"] * len(raw), "response": texts}), path)
        ids = [example.id for example in read_examples(path, skip_bad=True).examples]
        assert ids == [f"x:{line}" for line in (*range(1, before + 1), before + 2)]
        with pytest.raises(DataError, match=rf"x\.parquet:{before + 1}: holds text that is not UTF-8"):
            read_examples(path)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"polyrank\[parquet\]"):
        read_examples(tmp_path / "x.parquet")


# pools


def test_pools_of_every_format(tmp_path: Path) -> None:
    path = written(tmp_path / "p.jsonl", {"id": 7, "text": "a", "metadata": {"k": 1}}, {"text": ""})
    assert read_pool(path) == [Candidate("7", "a", {"k": 1}), Candidate(text_id(""), "")]
    assert read_pool(written(tmp_path / "p.csv", "id,text", "x,y")) == [Candidate("x", "y")]
    assert read_pool(written(tmp_path / "p.txt", "hello", "", "bye \r")) == [
        Candidate(text_id("hello"), "hello"),
        Candidate(text_id("bye "), "bye "),
    ]
    assert read_pool(written(tmp_path / "p.txt.gz", "hello")) == [Candidate(text_id("hello"), "hello")]


ReadPool = Callable[..., list[Candidate]]


def streamed(path: Path, **settings: Any) -> list[Candidate]:
    return [*stream_pool(path, **settings)]


@pytest.mark.parametrize("read", [read_pool, streamed])
def test_a_folder_of_pools_is_read_file_by_file_and_an_error_names_both(tmp_path: Path, read: ReadPool) -> None:
    (tmp_path / "b.csv").write_text("id,text\n3,three\n1,one\n", "utf-8")
    (tmp_path / "a.jsonl").write_text('{"id": "1", "text": "one"}\n{"id": "2", "text": "two"}\n', "utf-8")
    for name in ("notes.md", "._b.csv", ".a.new.jsonl"):
        (tmp_path / name).write_text("not read", "utf-8")
    said: list[str] = []
    pool = read(tmp_path, notify=said.append)
    assert [(c.id, c.text) for c in pool] == [("1", "one"), ("2", "two"), ("3", "three")]
    assert said == [f"{tmp_path}: 1 of 4 replies repeat an earlier one and count once"]
    assert [c.id for c in read(tmp_path / "*.csv")] == ["3", "1"]
    (tmp_path / "c.jsonl").write_text('{"id": "2", "text": "zwei"}\n', "utf-8")
    with pytest.raises(
        DataError, match=rf"c\.jsonl:1: id '2' is already used at {re.escape(str(tmp_path))}/a\.jsonl:2"
    ):
        read(tmp_path)


def test_other_fields_of_a_pool_row_are_metadata(tmp_path: Path) -> None:
    path = written(tmp_path / "p.jsonl", {"text": "a", "topic": ["x"], "k": 0, "none": None, "metadata": {"k": 1}})
    assert read_pool(path) == [Candidate(text_id("a"), "a", {"topic": ["x"], "k": 1})]
    assert read_pool(written(tmp_path / "p.csv", "text,topic", "a,x")) == [Candidate(text_id("a"), "a", {"topic": "x"})]
    dated = {"text": "a", "metadata": {"day": datetime.date(2024, 1, 2)}, "other": datetime.date(2024, 3, 4)}
    assert [one.metadata for one in pool_of([dated])] == [{"other": "2024-03-04", "day": "2024-01-02"}]
    with pytest.raises(DataError, match=r"candidate 0: Out of range float values are not JSON"):
        pool_of([{"text": "a", "metadata": {"n": float("inf")}}])
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for value in (float("inf"), -float("inf"), [1.0, float("nan")]):  # which an index could not store
        empty: Any = [] if isinstance(value, list) else float("nan")
        parquet.write_table(pyarrow.table({"text": ["a", "b"], "n": [empty, value]}), tmp_path / "p.parquet")
        with pytest.raises(DataError, match=r"p\.parquet:2: Out of range float values are not JSON"):
            read_pool(tmp_path / "p.parquet")


@pytest.mark.parametrize("read", [read_pool, streamed])
def test_duplicates_count_once_and_are_reported(tmp_path: Path, read: ReadPool) -> None:
    said: list[str] = []
    path = written(tmp_path / "p.txt", "hello", "bye", "hello", "hello")
    assert [candidate.text for candidate in read(path, notify=said.append)] == ["hello", "bye"]
    assert said == [f"{path}: 2 of 4 replies repeat an earlier one and count once"]
    rows = [{"text": "a", "topic": "x"}, {"text": "a", "topic": "x"}, {"id": "1", "text": "a"}]
    assert len(read(written(tmp_path / "p.jsonl", *rows), notify=said.append)) == 2
    rows = [{"text": "a", "x": 1, "y": {"p": 2, "q": 3}}, {"y": {"q": 3, "p": 2}, "x": 1, "text": "a"}]
    assert len(read(written(tmp_path / "o.jsonl", *rows))) == 1  # the order of fields does not matter
    read(written(tmp_path / "q.txt", "hello", "bye"), notify=said.append)
    assert len(said) == 2


def test_repeated_texts_in_memory_count_once_if_all_else_is_equal() -> None:
    rows = [{"text": "a", "topic": "x"}, "b", {"text": "a", "topic": "x"}, {"id": "1", "text": "a"}, "b"]
    assert [(one.id, one.text) for one in pool_of(rows)] == [(text_id("a"), "a"), (text_id("b"), "b"), ("1", "a")]
    for other in ({"text": "a"}, {"text": "a", "topic": "y"}):
        with pytest.raises(DataError, match=r"^candidate 1: its text is repeated with other metadata; give each"):
            pool_of([rows[0], other])


@pytest.mark.parametrize("read", [read_pool, streamed])
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": "a", "text": "x"}, {"id": "a", "text": "y"}], r":2: id 'a' is already used at line 1; give"),
        ([{"text": "x", "k": 1}, {"text": "x"}], r":2: the text of line 1 is repeated with other metadata; give each"),
        ([{"id": "a"}], r':1: missing field "text"'),
        ([{"text": "a", "metadata": 1}], r':1: field "metadata" holds a number'),
        (["{"], r":1: not JSON"),
        ([], r": holds no candidates"),
    ],
)
def test_bad_pools(tmp_path: Path, read: ReadPool, rows: list[Any], message: str) -> None:
    path = written(tmp_path / "p.jsonl", *rows)
    with pytest.raises(DataError, match=f"^{path}{message}"):
        read(path)


def test_ids_from_texts_are_distinct() -> None:
    texts = ["", " ", "a", "A", "a ", "é", "e\u0301", "\ud800", "😀", *(f"reply {i}" for i in range(2000))]
    ids = [text_id(text) for text in texts]
    assert len(set(ids)) == len(texts)
    assert ids == [text_id(text) for text in texts]
    assert not any(id_.isdecimal() and len(id_) < 16 for id_ in ids)  # none looks like a line number


def test_bad_line_of_a_text_pool(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"p\.txt:2: byte 1"):
        read_pool(written(tmp_path / "p.txt", "a", b"\xff"))


# writing

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)


@st.composite
def examples(draw: st.DrawFn) -> Example:
    candidates = draw(TEXTS)
    relevant = draw(st.sets(st.sampled_from(range(len(candidates))))) if candidates else set()
    return Example(
        context=(draw(TEXT), *draw(TEXTS)),
        candidates=candidates,
        relevant=tuple(relevant),
        id=draw(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)),
        background=draw(TEXTS),
        relevant_ids=tuple(draw(st.sets(TEXT, max_size=2))),
    )


@pytest.mark.deep
@given(st.lists(examples(), min_size=1, max_size=4), st.sampled_from(["x.jsonl", "x.jsonl.gz"]))
def test_written_examples_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, found: list[Example], name: str
) -> None:
    path = tmp_path_factory.mktemp("round") / name
    write_examples(path, found)
    assert read_examples(path).examples == found
    first = path.read_bytes()
    write_examples(path, found)
    assert path.read_bytes() == first


@pytest.mark.deep
@given(st.dictionaries(TEXT.filter(bool), TEXT, min_size=1, max_size=4))
def test_pool_round_trip(tmp_path_factory: pytest.TempPathFactory, texts: dict[str, str]) -> None:
    path = tmp_path_factory.mktemp("round") / "p.jsonl"
    pool = [Candidate(id_, text, {"n": 1} if text else {}) for id_, text in texts.items()]
    write_pool(path, pool)
    assert read_pool(path) == pool


def test_unreadable_examples_are_not_written(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with pytest.raises(DataError, match=r"x\.jsonl:1: example 'e' has no turns"):
        write_examples(path, [Example((), ("a",), id="e")])
    with pytest.raises(DataError, match=r"x\.jsonl:1: holds a lone surrogate"):
        write_examples(path, [Example(("\ud800",))])
    with pytest.raises(DataError, match=r"x\.jsonl:1: holds a number that is not finite"):
        write_pool(path, [Candidate("a", "b", {"x": float("nan")})])
    assert not path.exists()


# batches


def batch_order(
    lengths: Sequence[int], batch_size: int, *, seed: int, epoch: int, window: int = 50
) -> list[NDArray[np.int64]]:
    return BatchOrder(len(lengths), lengths, batch_size, seed=seed, window=window).epoch(epoch)


@given(
    st.lists(st.integers(0, 50), max_size=60),
    st.integers(1, 7),
    st.integers(0, 2**32),
    st.integers(0, 9),
    st.integers(1, 4),
)
def test_every_index_once_per_epoch(lengths: list[int], batch_size: int, seed: int, epoch: int, window: int) -> None:
    order = batch_order(lengths, batch_size, seed=seed, epoch=epoch, window=window)
    assert sorted(int(i) for batch in order for i in batch) == list(range(len(lengths)))
    assert sum(len(batch) < batch_size for batch in order) <= 1
    for n_together in (batches.BLOCK, 2):  # batches whose permutations are computed together
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batches, "BLOCK", n_together)
            again = batch_order(lengths, batch_size, seed=seed, epoch=epoch, window=window)
        assert all(np.array_equal(a, b) for a, b in zip(order, again, strict=True))


def test_batches_hold_similar_lengths_and_epochs_differ() -> None:
    lengths = np.random.Generator(np.random.PCG64(0)).integers(1, 200, 1000).tolist()
    widths = {
        window: sum(max(lengths[int(i)] for i in b) for b in batch_order(lengths, 10, seed=1, epoch=0, window=window))
        for window in (1, 50)
    }
    assert widths[50] < 0.7 * widths[1]
    first, second = (np.concatenate(batch_order(lengths, 10, seed=1, epoch=epoch)) for epoch in (0, 1))
    assert not np.array_equal(first, second)
    with pytest.raises(ValueError, match="batch_size 0 is below 1"):
        batch_order([1], 0, seed=0, epoch=0)
    with pytest.raises(IndexError, match="position 2 of an epoch of 2 batches"):
        BatchOrder(3, [1, 1, 1], 2, seed=1).batch(0, 2)


def test_epochs_and_seeds_differ_in_their_batches_and_in_the_order_of_these() -> None:
    lengths = list(range(400))
    for window in (1, 10):
        drawn = [
            {tuple(sorted(batch.tolist())) for batch in batch_order(lengths, 4, seed=seed, epoch=epoch, window=window)}
            for seed, epoch in ((1, 0), (1, 1), (2, 0))
        ]
        assert len(set.union(*drawn)) > 290  # of 3 x 100: nearly all are in one epoch only
    # in a single window all batches are the same, and their order is drawn
    orders = [
        [int(batch[0]) for batch in batch_order(lengths, 4, seed=seed, epoch=epoch, window=100)]
        for seed, epoch in ((1, 0), (1, 1), (2, 0))
    ]
    assert [sorted(order) for order in orders] == [[*range(0, 400, 4)]] * 3
    assert orders[1] != orders[0] != orders[2]


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(0, 2**32), st.integers(0, 9))
def test_a_permutation_is_complete_and_can_be_computed_in_parts(n: int, seed: int, epoch: int) -> None:
    whole = permuted(np.arange(n), n, (seed, epoch))
    assert np.array_equal(np.sort(whole), np.arange(n))
    some = np.random.default_rng(seed).integers(0, n, 20)
    assert np.array_equal(permuted(some, n, (seed, epoch)), whole[some])


@pytest.mark.parametrize("n", [3, 10, *(pytest.param(n, marks=pytest.mark.deep) for n in (5, 30))])
def test_permutations_are_fair(n: int) -> None:
    """Each number is equally frequent at each position, and so are pairs of neighbours: chi-squared, n = 750."""
    drawn = np.array([permuted(np.arange(n), n, (key, n)) for key in range(750)])
    counts = np.zeros((n, n))
    np.add.at(counts, (np.arange(n), drawn), 1)
    expected = len(drawn) / n
    assert chi2.sf(((counts - expected) ** 2 / expected).sum(), (n - 1) ** 2) > 1e-3
    pairs = np.zeros((n, n))
    np.add.at(pairs, (drawn[:, 0], drawn[:, 1]), 1)
    off = pairs[~np.eye(n, dtype=bool)]
    assert chi2.sf(((off - off.mean()) ** 2 / off.mean()).sum(), len(off) - 1) > 1e-3


def test_a_batch_of_a_hundred_million_examples_is_immediate() -> None:
    """It reads only the lengths in its window."""
    asked = []

    def sizes(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        asked.append(len(numbers))
        return numbers % 97

    order = BatchOrder(100_000_000, sizes, 32, seed=1, window=10)
    batch = order.batch(3, len(order) // 2)
    assert len(batch) == 32
    assert batch.min() >= 0
    assert batch.max() < 100_000_000
    assert np.all(np.diff(batch % 97) >= 0)
    assert asked == [320]


def test_the_lengths_of_a_window_are_read_once_per_epoch() -> None:
    """Although its batches come at any time among those of others."""
    asked: list[int] = []

    def sizes(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        asked.extend(numbers.tolist())
        return numbers % 7

    order = BatchOrder(240, sizes, 4, seed=1, window=5)
    for epoch in range(2):
        asked.clear()
        order.epoch(epoch)
        assert sorted(asked) == list(range(240))


@given(st.integers(0, 30), st.integers(0, 12), st.integers(0, 99))
def test_negatives_are_distinct_and_repeatable(n_pool: int, count: int, index: int) -> None:
    found = sample_negatives(n_pool, count, seed=3, epoch=1, index=index).tolist()
    assert len(found) == len(set(found)) == min(count, n_pool)
    assert set(found) <= set(range(n_pool))
    assert found == sample_negatives(n_pool, count, seed=3, epoch=1, index=index).tolist()


def test_negatives_are_drawn_evenly() -> None:
    drawn = [int(i) for index in range(3000) for i in sample_negatives(5, 2, seed=0, epoch=0, index=index)]
    assert np.all(np.abs(np.bincount(drawn, minlength=5) - 1200) < 150)


# real corpora


@needs_shared
def test_star_dialogues() -> None:
    loaded = read_examples(SHARED / "star" / "train.dialogues.jsonl.gz", speaker="agent")
    assert loaded.report.n_rows == 4822
    assert loaded.report.n_bad == 0
    assert all(len(example.context) == int(example.id.rpartition("#")[2]) for example in loaded.examples)


@needs_shared
def test_ubuntu_pool() -> None:
    pool = read_pool(SHARED / "ubuntu-irc" / "pool.jsonl.gz")
    assert len(pool) == 51113
    loaded = read_examples(SHARED / "ubuntu-irc" / "test.pool.jsonl.gz")
    assert len(loaded.examples) == 4022
    assert loaded.report.max_candidates == loaded.report.n_unanswered == 0


@needs_shared
def test_candidate_lists() -> None:
    report = read_examples(SHARED / "mutual" / "dev.jsonl.gz").report
    assert (report.n_examples, report.min_candidates, report.max_candidates) == (886, 4, 4)


# counts, and positions of rows


def test_every_count_of_a_report(tmp_path: Path) -> None:
    path = written(
        tmp_path / "x.jsonl",
        {"context": ["a", " "], "candidates": ["b", "", "b", "\t"], "relevant": [0, 1]},
        {"context": ["a", " "], "candidates": ["x", "b", ""], "relevant": [1, 2]},  # the same answers, in another list
        {"context": ["a", " "], "candidates": ["x", "b"], "relevant": [1]},
        {"context": ["a", " "], "candidates": ["x", "b"], "relevant": [1], "background": ["z"]},
        {"context": ["q"], "candidates": [], "relevant": []},
        {"context": ["q"], "candidates": [], "relevant": []},  # an example without an answer is not a repetition
        "{",
    )
    report = read_examples(path, skip_bad=True).report
    assert (report.n_rows, report.n_examples, report.n_skipped, report.n_bad) == (7, 6, 0, 1)
    assert (report.min_candidates, report.max_candidates) == (0, 4)
    assert (report.n_unanswered, report.n_duplicate_candidates, report.n_duplicate_pairs) == (2, 1, 1)
    assert report.n_empty_strings == 3 + 2 + 1 + 1  # of the first four rows


def test_pool_rows_that_repeat_their_answers_are_counted(tmp_path: Path) -> None:
    rows = [{"context": "q", "relevant_ids": ids} for ids in (["a"], ["b"], ["a"], ["a", "b"], [], [])]
    report = read_examples(written(tmp_path / "x.jsonl", *rows)).report
    assert (report.n_duplicate_pairs, report.n_unanswered) == (1, 2)


def test_a_report_in_words() -> None:
    report = data.ReadReport(
        n_rows=12_345,
        n_examples=1,
        n_skipped=1,
        n_bad=2,
        messages=("m1", "m2"),
        min_candidates=1,
        max_candidates=1,
        n_unanswered=2_000,
        n_empty_strings=1,
        n_duplicate_candidates=3,
        n_duplicate_pairs=1,
    )
    assert str(report) == (
        "12,345 rows, 1 example of 1 candidate; 1 row without an example; 2,000 examples without a right answer;"
        " 1 empty text; 3 repeated candidates; 1 repeated pair; 2 bad rows left out (m1 | m2)"
    )
    assert str(data.ReadReport(n_rows=1, n_examples=2, max_candidates=3)) == "1 row, 2 examples of 0 to 3 candidates"
    assert str(data.ReadReport(n_rows=1, n_examples=1)) == "1 row, 1 example"


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
@pytest.mark.parametrize("name", ["x.jsonl", "x.csv"])
def test_a_line_may_be_as_long_as_its_limit_with_its_end(
    tmp_path: Path, name: str, end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = b"context,response\n" if name == "x.csv" else b""
    line = b"a" * 50 + b",b" if name == "x.csv" else json.dumps({"context": "a" * 40, "response": "b"}).encode()
    path = tmp_path / name
    path.write_bytes(first + line + end)
    limit = len(line + end)
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", limit)
    assert len(read_examples(path).examples) == 1
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", limit - 1)
    with pytest.raises(DataError, match=rf"{name}:{2 if first else 1}: the line is longer than {limit - 1} bytes"):
        read_examples(path)


@pytest.mark.parametrize("n", [101, 150, 200, 201, 202, 400])
def test_lines_after_a_too_long_one_keep_their_numbers(tmp_path: Path, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 100)
    path = written(tmp_path / "x.jsonl", PAIR, "x" * n, PAIR, "y" * n, {"context": "last", "response": "one"})
    loaded = read_examples(path, skip_bad=True)
    assert [example.id for example in loaded.examples] == ["x:1", "x:3", "x:5"]
    assert [message.split(":")[1] for message in loaded.report.messages] == ["2", "4"]


def test_only_the_first_line_loses_a_byte_order_mark(tmp_path: Path) -> None:
    mark = codecs.BOM_UTF8
    path = written(tmp_path / "x.jsonl", mark + json.dumps(PAIR).encode(), mark + json.dumps(PAIR).encode())
    with pytest.raises(DataError, match=r"x\.jsonl:2: not JSON at character 1"):
        read_examples(path)
    path = written(tmp_path / "x.csv", mark + b"context,response", b"a,b")
    assert read_examples(path).examples == [Example(("a",), ("b",), (0,), "x:2")]


def test_a_file_may_have_signs_of_patterns_in_its_name(tmp_path: Path) -> None:
    for name in ("replies[1].txt", "replies1.txt"):
        (tmp_path / name).write_text(f"{name}\nother\n", "utf-8")
    assert read_pool(tmp_path / "replies[1].txt")[0].text == "replies[1].txt"


def test_formats_are_known_by_name_in_any_case(tmp_path: Path) -> None:
    for name in ("x.CSV", "x.csv.gz", "x.y.csv"):
        path = written(tmp_path / name, "context,response", "a,b")
        assert read_examples(path).examples[0].id == f"{name.removesuffix('.gz')[:-4]}:2"
    assert read_examples(written(tmp_path / "x.txt", PAIR)).examples[0].id == "x:1"


def test_a_given_kind_overrides_the_fields(tmp_path: Path) -> None:
    row = {
        "turns": ["a", "b"],
        "candidates": ["c"],
        "relevant": 0,
        "response": "d",
        "context": "e",
        "relevant_ids": "f",
    }
    path = written(tmp_path / "x.jsonl", row)
    assert read_examples(path).examples == [Example(("a",), ("b",), (0,), "x:1#1")]
    assert read_examples(path, kind="dialogues").examples == [Example(("a",), ("b",), (0,), "x:1#1")]
    assert read_examples(path, kind="candidates").examples == [Example(("e",), ("c",), (0,), "x:1", (), ("f",))]
    assert read_examples(path, kind="pairs").examples == [Example(("e",), ("d",), (0,), "x:1")]
    assert read_examples(path, kind="pool").examples == [Example(("e",), (), (), "x:1", (), ("f",))]
    del row["turns"]
    assert read_examples(written(path, row)).examples[0].candidates == ("c",)
    del row["candidates"]
    assert read_examples(written(path, row)).examples[0].candidates == ("d",)
    del row["response"]
    assert read_examples(written(path, row)).examples[0].candidates == ()


def test_ids_and_background_of_every_kind(tmp_path: Path) -> None:
    common = {"id": 0, "background": ["old", "tall"]}
    facts = ("old", "tall")
    rows: list[tuple[dict[str, Any], list[Example]]] = [
        ({"context": "a", "response": "b", "negatives": "c"}, [Example(("a",), ("b", "c"), (0,), "0", facts)]),
        (
            {"turns": ["a", "b", "c"]},
            [Example(("a",), ("b",), (0,), "0#1", facts), Example(("a", "b"), ("c",), (0,), "0#2", facts)],
        ),
        (
            {"context": "a", "candidates": ["b"], "relevant": [], "relevant_ids": None},
            [Example(("a",), ("b",), (), "0", facts)],
        ),
        (
            {"context": "a", "candidates": ["b", "c"], "relevant": [1, 0]},
            [Example(("a",), ("b", "c"), (1, 0), "0", facts)],
        ),
        ({"context": "a", "relevant_ids": [3, "x"]}, [Example(("a",), (), (), "0", facts, ("3", "x"))]),
    ]
    for row, expected in rows:
        assert read_examples(written(tmp_path / "x.jsonl", row | common)).examples == expected
        for nothing in ({"id": None, "background": None}, {"id": "", "background": ""}, {}):
            found = read_examples(written(tmp_path / "x.jsonl", row | nothing)).examples
            assert [example.id.split("#")[0] for example in found] == ["x:1"] * len(expected)
            assert [example.background for example in found] == [()] * len(expected)


def test_a_speakers_context_is_all_earlier_turns(tmp_path: Path) -> None:
    said = [("a", "0"), ("a", "1"), ("b", "2"), ("a", "3"), ("c", "4")]
    path = written(tmp_path / "d.jsonl", {"turns": [{"speaker": s, "text": t} for s, t in said]})
    found = {speaker: read_examples(path, speaker=speaker).examples for speaker in "abc"}
    assert found["a"] == [
        Example(("0",), ("1",), (0,), "d:1#1"),
        Example(("0", "1", "2"), ("3",), (0,), "d:1#3"),
    ]
    assert found["b"] == [Example(("0", "1"), ("2",), (0,), "d:1#2")]
    assert found["c"] == [Example(("0", "1", "2", "3"), ("4",), (0,), "d:1#4")]
    mixed = written(tmp_path / "m.jsonl", {"turns": ["x", {"text": "y"}, {"speaker": None, "text": "z"}]})
    assert [example.response for example in read_examples(mixed).examples] == ["y", "z"]
    alone = written(tmp_path / "a.jsonl", {"turns": [{"speaker": "a", "text": "0"}]})
    with pytest.raises(DataError, match=r"none of its 1 row gives an example; check its kind and format"):
        read_examples(alone, speaker="a")  # present, but without an answer


@pytest.mark.parametrize(
    ("found", "rows"),
    [
        (
            [Example(("a",), ("b",), (0,), "i", ("f",))],
            [{"id": "i", "background": ["f"], "context": ["a"], "response": "b"}],
        ),
        ([Example(("a",), ("b",), (0,))], [{"context": ["a"], "response": "b"}]),
        (
            [Example(("a",), ("b",), (0,)), Example(("c",), ("d", "e"), (1,))],
            [
                {"context": ["a"], "candidates": ["b"], "relevant": [0]},
                {"context": ["c"], "candidates": ["d", "e"], "relevant": [1]},
            ],
        ),
        ([Example(("a",), ("b",))], [{"context": ["a"], "candidates": ["b"], "relevant": []}]),
        (
            [Example(("a",), relevant_ids=("r",)), Example(("b",))],
            [{"context": ["a"], "relevant_ids": ["r"]}, {"context": ["b"], "relevant_ids": []}],
        ),
        (
            [Example(("a",), ("b",), (0,), relevant_ids=("r",))],
            [{"context": ["a"], "candidates": ["b"], "relevant": [0], "relevant_ids": ["r"]}],
        ),
        (
            [Example(("a",)), Example(("c",), ("d",), (0,))],
            [
                {"context": ["a"], "candidates": [], "relevant": []},
                {"context": ["c"], "candidates": ["d"], "relevant": [0]},
            ],
        ),
    ],
)
def test_written_rows_are_of_the_simplest_kind_that_holds_all(
    tmp_path: Path, found: list[Example], rows: list[dict[str, Any]]
) -> None:
    write_examples(tmp_path / "x.jsonl", found)
    assert [json.loads(line) for line in (tmp_path / "x.jsonl").read_text("utf-8").splitlines()] == rows


def test_a_line_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    good = Example(("a",), ("b",), (0,), "g")
    for bad, message in ((Example((), id="e"), "example 'e' has no turns"), (Example(("\udc00",)), "holds a lone")):
        with pytest.raises(DataError, match=rf"x\.jsonl:3: {message}"):
            write_examples(tmp_path / "x.jsonl", [good, good, bad])


def test_parquet_rows_are_counted_through_all_batches(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    responses = [None if i == 2050 else str(i) for i in range(2100)]
    parquet.write_table(pyarrow.table({"context": ["a"] * 2100, "response": responses}), tmp_path / "x.parquet")
    loaded = read_examples(tmp_path / "x.parquet", skip_bad=True)
    assert [example.id for example in loaded.examples] == [f"x:{i + 1}" for i in range(2100) if i != 2050]
    assert [example.response for example in loaded.examples] == [str(i) for i in range(2100) if i != 2050]
    assert loaded.report.messages[0].split(": ")[0].endswith("x.parquet:2051")


# records


def test_a_context_is_one_turn_or_turns_or_itself() -> None:
    assert Context.of("hi") == Context(("hi",))
    assert Context.of(["hi", "you"]) == Context.of(("hi", "you")) == Context(("hi", "you"))
    own = Context(("hi",), ("old",))
    assert Context.of(own) is own
    for empty in ([], "", [" "], [{"role": "system", "content": "Be brief."}]):
        with pytest.raises(UsageError, match="the context is empty"):
            Context.of(empty)
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {}}]
    called = {"role": "assistant", "content": None, "tool_calls": []}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "hi"}, called, {"role": "user", "content": parts}]
    assert Context.of(messages) == Context(("hi", "see"))
    for wrong in ([*messages, "hi"], [{"content": "hi"}], [{"role": "user", "content": 5}]):
        with pytest.raises(TypeError, match=r"turns\[\d\]"):
            Context.of(wrong)
    with pytest.raises(TypeError, match="is one context, not a list of contexts"):
        contexts_of(messages)


def test_query_and_response_of_an_example() -> None:
    example = Example(("a", "b"), ("x", "y", "z"), (2, 0), background=("f",))
    assert example.query == Context(("a", "b"), ("f",))
    assert example.response == "z"
    assert Example(("a",), ("x",)).response is None
    for index in (-1, 3):
        with pytest.raises(ValueError, match=rf"relevant index {index} is outside the 3 candidates of example 'e'"):
            Example(("a",), ("x", "y", "z"), (0, index), "e")


@pytest.mark.parametrize(
    ("name", "start", "what"),
    [
        ("a.xlsx", b"PK\x03\x04", "an Excel workbook or another zip archive; save the sheet as CSV"),
        ("a.csv", b"PK\x03\x04", "an Excel workbook"),
        ("a.xls", b"\xd0\xcf\x11\xe0\xa1\xb1", "an old Excel workbook"),
        ("a.jsonl", b"PAR1", r"a Parquet file; give it the ending \.parquet"),
        ("a.jsonl", b"\xff\xff\xff\xff", r"an Arrow stream; give it the ending \.arrow"),
        ("a.feather", b"ARROW1", r"an Arrow file; give it the ending \.arrow"),
        ("a.db", b"SQLite format 3", "an SQLite database"),
    ],
)
def test_errors_name_the_type_of_binary_files(tmp_path: Path, name: str, start: bytes, what: str) -> None:
    (tmp_path / name).write_bytes(start + bytes(range(256)))
    for read in (read_examples, read_pool):
        with pytest.raises(DataError, match=what):
            read(tmp_path / name)


@pytest.mark.parametrize("name", ["train.jsonl.gz", "train.csv.gz", "train.json.gz"])
def test_gzip_that_unpacks_to_far_more_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(gzip.compress((b"[" if ".json." in name else b"") + (b" " * 2**20 + b"\n") * 20))
    for read in (read_examples, read_pool):
        with pytest.raises(DataError, match="unpacks to more than 100 times its size"):
            read(tmp_path / name)


def test_parquet_that_unpacks_to_far_more_is_refused(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for texts in (["a" * 5_000] * 2_000, pyarrow.array(["a" * 5_000] * 2_000).dictionary_encode()):
        table = pyarrow.table({"context": texts, "response": ["b"] * 2_000})
        parquet.write_table(table, tmp_path / "a.parquet", compression="zstd")
        with pytest.raises(DataError, match="unpacks to more than 100 times its size"):
            read_examples(tmp_path / "a.parquet")


def test_the_end_of_a_damaged_file_is_not_a_bad_row(tmp_path: Path) -> None:
    rows = {
        "a.csv.gz": b"context,response\n" + b"hi,hello\n" * 99,
        "a.jsonl.gz": b'{"context": "a", "response": "b"}\n' * 99,
    }
    for name, whole in rows.items():
        (tmp_path / name).write_bytes(gzip.compress(whole, 0)[:-20])
        with pytest.raises(DataError, match="truncated"):
            read_examples(tmp_path / name, skip_bad=True)
    generator = np.random.Generator(np.random.PCG64(1))
    path = written(tmp_path / "b.csv.gz", "context,response", *(f"{generator.bytes(3000).hex()},b" for _ in range(100)))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])  # after many whole rows
    with pytest.raises(DataError, match=r"b\.csv\.gz:[3-6]\d: the gzip stream is truncated"):
        read_examples(path, skip_bad=True)


@pytest.mark.parametrize("grades", [[1], [1, 2, 3], [1, 0], [-1, 1]])
def test_each_relevant_id_has_a_grade_above_0(grades: list[int]) -> None:
    row = {"context": ["q"], "relevant_ids": ["a", "b"]}
    (example,) = read_examples([row | {"grades": [1, 3]}]).examples
    assert (example.relevant_ids, example.grades) == (("a", "b"), (1, 3))
    with pytest.raises(DataError, match="write a whole number above 0 for each relevant id"):
        read_examples([row | {"grades": grades}])
