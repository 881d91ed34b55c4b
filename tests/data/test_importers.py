"""Importers of published formats, on small files in those formats."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from typer.testing import CliRunner

from polyrank.cli.commands import app
from polyrank.data import IMPORTERS, import_examples, import_pool, read_examples, read_pool, write_examples
from polyrank.data.json_list import listed_rows
from polyrank.errors import DataError, UsageError
from polyrank.records import Candidate, Example
from processes import run

SHARED = Path(__file__).parents[3] / "shared" / "data"


def written(path: Path, *lines: str | bytes) -> Path:
    content = b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def test_every_format_is_named() -> None:
    with pytest.raises(UsageError, match=r"format 'list' is unknown; use convai2, .* or wikipedia"):
        import_examples("list", ".")


@pytest.mark.parametrize("name", IMPORTERS)
def test_absent_and_empty_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="absent: no such file"):
        import_examples(name, tmp_path / "absent")
    with pytest.raises(DataError, match="holds no rows"):
        import_examples(name, written(tmp_path / "empty"))


@pytest.mark.parametrize("name", IMPORTERS)
def test_broken_utf8_is_named(tmp_path: Path, name: str) -> None:
    first = {"dstc7": "[", "dstc7-pool": "[", "convai2": "1 a\tb", "wikipedia": "a\tb"}.get(name, "")
    with pytest.raises(DataError, match=r"/x:2: .*not UTF-8"):
        import_examples(name, written(tmp_path / "x", first, b'{"a": "\xff"}'))


# ConvAI2


def test_convai2_with_candidates(tmp_path: Path) -> None:
    source = written(
        tmp_path / "valid.txt",
        "1 your persona: i like cats.",
        "2 partner's persona: i like dogs.",
        "3 __SILENCE__\thello\t\tbye|hello",
        "4 hi\thow are you|how do you do\t\thow do you do|no|how are you|no",
        r"5 fine\nand you\tgood\t\t|good|",
        "1 your persona: i am new.",
        "2 hey\tyo\t\tyo|no",
    )
    source.write_text(source.read_text().replace("\\t", "\t"))
    loaded = import_examples("convai2", source)
    first = ("i like cats.", "partner's persona: i like dogs.")
    assert loaded.examples == [
        # without an earlier turn "hello" is not an answer, but it is a turn
        Example(("hello", "hi"), ("how do you do", "no", "how are you", "no"), (0, 2), "valid:4", first),
        Example(("hello", "hi", "how are you", "fine\nand you"), ("", "good", ""), (1,), "valid:5", first),
        Example(("hey",), ("yo", "no"), (0,), "valid:7", ("i am new.",)),
    ]
    assert loaded.report.n_skipped == 4
    assert loaded.report.n_duplicate_candidates == 2


def test_convai2_without_candidates(tmp_path: Path) -> None:
    source = written(
        tmp_path / "x.txt.gz", "1 hi\thello", "2 nobody answers this", "3 well?\t__SILENCE__", "4 so\tso what\t"
    )
    assert import_examples("convai2", source).examples == [
        Example(("hi",), ("hello",), (0,), "x:1"),
        Example(("hi", "hello", "nobody answers this", "well?", "so"), ("so what",), (0,), "x:4"),
    ]


def test_convai2_persona_within_the_first_text(tmp_path: Path) -> None:
    source = written(
        tmp_path / "x.txt",
        "1 your persona: a.\\npartner's persona: b.\\nhi there\\nyour persona: no\thello",
        "2 bye\tciao",
        "1 your persona: c.\thello",
        "2 you?\tfine",
    )
    background = ("a.", "partner's persona: b.")
    first = "hi there\nyour persona: no"
    assert import_examples("convai2", source).examples == [
        Example((first,), ("hello",), (0,), "x:1", background),
        Example((first, "hello", "bye"), ("ciao",), (0,), "x:2", background),
        Example(("hello", "you?"), ("fine",), (0,), "x:4", ("c.",)),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2 a\tb\t\tc|d", "label 'b' is not among the 2 candidates"),
        ("hello\tthere", "the line does not begin with a number"),
        ("0 a\tb", "is numbered 0 after 1; a new dialogue begins with 1"),
    ],
)
def test_bad_convai2_line(tmp_path: Path, line: str, message: str) -> None:
    source = written(tmp_path / "x.txt", "1 a\tb", line)
    with pytest.raises(DataError, match=rf"x\.txt:2: {message}"):
        import_examples("convai2", source)
    assert import_examples("convai2", source, skip_bad=True).report.n_bad == 1


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared corpora are missing")
def test_real_convai2_file(tmp_path: Path) -> None:
    loaded = import_examples("convai2", SHARED / "convai2-valid" / "valid_self_original_no_cands.txt")
    assert len(loaded.examples) == 7801
    assert all(example.background for example in loaded.examples)
    prepared = read_examples(SHARED / "convai2-valid" / "all.jsonl.gz").examples
    assert [(e.context, e.response) for e in loaded.examples] == [(e.context, e.response) for e in prepared]
    write_examples(tmp_path / "x.jsonl.gz", loaded.examples)
    assert read_examples(tmp_path / "x.jsonl.gz").examples == loaded.examples


# DSTC7


def option(id_: str, text: str) -> dict[str, str]:
    return {"candidate-id": id_, "utterance": text}


def item(number: int, options: list[dict[str, str]], correct: list[dict[str, str]] | None) -> dict[str, Any]:
    messages = [{"speaker": "participant_1", "utterance": "help"}, {"speaker": "participant_1", "utterance": "please"}]
    found: dict[str, Any] = {"data-split": "train", "example-id": number, "messages-so-far": messages}
    if correct is not None:
        found["options-for-correct-answers"] = correct
    return found | {"options-for-next": options}


OPTIONS = [option("A", "no"), option("B", ""), option("C", "yes")]


@pytest.mark.parametrize("indent", [None, 4])
def test_dstc7(tmp_path: Path, indent: int | None) -> None:
    items = [item(1, OPTIONS, [option("C", "yes")]), item(2, OPTIONS, []), item(3, OPTIONS, None)]
    source = written(tmp_path / "x.json", json.dumps(items, indent=indent))
    loaded = import_examples("dstc7", source)
    turns, texts = ("help", "please"), ("no", "", "yes")
    assert loaded.examples == [
        Example(turns, texts, (2,), "1"),
        Example(turns, texts, (), "2"),
        Example(turns, texts, (), "3"),
    ]
    assert (loaded.report.n_unanswered, loaded.report.n_empty_strings) == (2, 3)


def test_dstc7_with_published_answers(tmp_path: Path) -> None:
    source = written(tmp_path / "x.json", json.dumps([item(1, OPTIONS, None), item(2, OPTIONS, None)]))
    answers = written(tmp_path / "answers.tsv", "1\tB\t", "2\tNONE\t", "")
    assert [e.relevant for e in import_examples("dstc7", source, answers=answers).examples] == [(1,), ()]
    assert [e.relevant_ids for e in import_examples("dstc7-pool", source, answers=answers).examples] == [("B",), ()]
    with pytest.raises(DataError, match=r"answers\.tsv:1: no tab"):
        import_examples("dstc7", source, answers=written(answers, "1 B"))


def test_dstc7_pool(tmp_path: Path) -> None:
    row = item(1, [], [option("B", "b"), option("B", "b")])
    del row["options-for-next"]
    source = written(tmp_path / "x.json", json.dumps([row]))
    assert import_examples("dstc7-pool", source).examples == [Example(("help", "please"), id="1", relevant_ids=("B",))]
    published = written(tmp_path / "pool.tsv", "A\ta\twith tab", "B\t")
    assert import_pool(published, tmp_path / "pool.jsonl.gz") == 2
    assert read_pool(tmp_path / "pool.jsonl.gz") == [Candidate("A", "a\twith tab"), Candidate("B", "")]
    for lines, message in ((["A\ta", "A\tb"], ":2: id 'A' is already used at line 1"), (["A"], ":1: no tab")):
        with pytest.raises(DataError, match=rf"pool\.tsv{message}"):
            import_pool(written(published, *lines), tmp_path / "out.jsonl")


@pytest.mark.deep
def test_dstc7_is_completed_from_the_command_line(tmp_path: Path) -> None:
    def imported(*arguments: str | Path) -> str:
        found = run("import", "corpus", *arguments)
        return f"{found.returncode} {found.stderr}"

    source = written(tmp_path / "x.json", json.dumps([item(1, OPTIONS, None), {}, item(2, OPTIONS, None)]))
    answers, published = written(tmp_path / "answers.tsv", "1\tB\t"), written(tmp_path / "pool.tsv", "A\ta", "B\tb")
    out, pool = tmp_path / "out.jsonl", tmp_path / "pool.jsonl"
    assert "1 bad row left out" in imported("dstc7-pool", source, "--answers", answers, "--skip-bad", "-o", out)
    assert "0 " in imported("dstc7-candidates", published, "-o", pool)[:2]
    assert [e.relevant_ids for e in read_examples(out).examples] == [("B",), ()]
    other = tmp_path / "other.jsonl"
    assert imported("pairs", source, "--answers", answers, "-o", other).startswith(
        "2 error: --answers does not apply to pairs"
    )
    assert f"{published}: 2 candidates\n" in imported("dstc7-candidates", published, "--overwrite", "-o", pool)
    said = imported("dstc7-candidates", published, "--skip-bad", "-o", other)
    assert said.startswith("2 error: dstc7-candidates only has")


def test_bad_dstc7_item_is_named_by_its_line(tmp_path: Path) -> None:
    good = json.dumps(item(1, OPTIONS, []))
    for bad, message in (
        ('{"example-id": 2}', 'missing field "messages-so-far"'),
        ('{"example-id": 2, "messages-so-far": []}', 'field "messages-so-far" is empty'),
        ('{"example-id": 2, "messages-so-far": "a"}', 'field "messages-so-far" holds a text'),
        ('{"example-id": 2, "messages-so-far": ["a"]}', 'field "messages-so-far" holds a text at position 0'),
        (r'{"example-id": "\ud800"}', r"lone surrogate \\ud800"),
        (r'{"example-id": "\uDBFF"}', r"lone surrogate \\udbff"),
    ):
        source = written(tmp_path / "x.json", "[", good + ",", "", bad + ",", good, "]")
        with pytest.raises(DataError, match=rf"x\.json:4: {message}"):
            import_examples("dstc7", source)
        report = import_examples("dstc7", source, skip_bad=True).report
        assert (report.n_rows, report.n_bad) == (3, 1)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["2"], r":1: not a JSON list"),
        (["[{}]", "[{}]"], r":2: something follows the end of the list"),
        (["", "3"], r":2: not a JSON list"),
        (["[", "{}", "{}]"], r":3: a comma or the end of the list is missing"),
        (["[", "{},", "3]"], r":3: the list is truncated or holds something other than objects"),
        (["[", "{},"], r":3: the list is truncated"),
        (["[", '{"a": 1,', '"b": }]'], r":3: not JSON: Expecting value"),
        (["[", '{"a": NaN}]'], r":2: not JSON: NaN is not JSON"),
    ],
)
def test_broken_list(tmp_path: Path, lines: list[str], message: str) -> None:
    source = written(tmp_path / "x.json", *lines)
    with pytest.raises(DataError, match=rf"x\.json{message}"):
        list(listed_rows(source))


def test_deep_items_and_cut_gzip(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x\.json:2: not JSON: "):
        list(listed_rows(written(tmp_path / "x.json", "[", '{"a": ' + "[" * 100_000)))
    source = written(tmp_path / "x.json.gz", "[", json.dumps({"a": "b" * 5000}) + ",", "{}]")
    source.write_bytes(source.read_bytes()[:-12])
    with pytest.raises(DataError, match=r"x\.json\.gz:\d: the gzip stream is truncated"):
        list(listed_rows(source))


@pytest.mark.deep
@given(
    st.lists(
        st.dictionaries(
            st.text(st.characters(codec="utf-8"), max_size=3), st.integers() | st.text("é😀\n}", max_size=5)
        )
    ),
    st.sampled_from([None, 2]),
    st.booleans(),
)
def test_lists_are_read_completely(
    tmp_path_factory: pytest.TempPathFactory,
    items: list[dict[str, Any]],
    indent: int | None,
    ascii_: bool,
) -> None:
    path = tmp_path_factory.mktemp("list") / "x.json"
    path.write_text(json.dumps(items, indent=indent, ensure_ascii=ascii_), encoding="utf-8")
    found = list(listed_rows(path))
    assert [row for _, row in found] == items
    lengths = [json.dumps(item, indent=indent).count("\n") + 1 for item in items]
    starts = [1 if indent is None else 2 + sum(lengths[:number]) for number in range(len(items))]
    assert [line for line, _ in found] == starts


# Ubuntu version 2


def test_ubuntu_v2_training(tmp_path: Path) -> None:
    source = written(
        tmp_path / "train.csv",
        "Context,Utterance,Label",
        "hi __eou__ there __eou__ __eot__ yes ? __eou__ __eot__ ,try __eou__ this __eou__,1.0",
        "a __eou__ __eot__,b __eou__,0",
        "__eou__ __eot__,b __eou__,1",
    )
    loaded = import_examples("ubuntu-v2", source)
    assert loaded.examples == [
        Example(("hi there", "yes ?"), ("try this",), (0,), "train:2"),
        Example(("",), ("b",), (0,), "train:4"),
    ]
    assert loaded.report.n_skipped == 1
    with pytest.raises(DataError, match=r"train\.csv:2: label '2' is neither 0 nor 1"):
        import_examples("ubuntu-v2", written(source, "Context,Utterance,Label", "a,b,2"))


def test_ubuntu_v2_lists(tmp_path: Path) -> None:
    names = [f"Distractor_{i}" for i in (0, 10, 9, *range(1, 9))]
    source = written(
        tmp_path / "valid.csv",
        ",".join(["Context", "Ground Truth Utterance", *names]),
        ",".join(["a __eot__", "right __eou__", *(name[11:] for name in names)]),
    )
    assert import_examples("ubuntu-v2", source).examples == [
        Example(("a",), ("right", *(str(i) for i in range(11))), (0,), "valid:2")
    ]
    with pytest.raises(DataError, match=r'valid\.csv:2: missing field "Ground Truth Utterance"'):
        import_examples("ubuntu-v2", written(source, "Context,Utterance", "a,b"))


# every turn as a response


def test_every_turn_of_dstc7_is_a_response_and_the_last_keeps_its_candidates(tmp_path: Path) -> None:
    row = item(1, OPTIONS, [option("C", "yes")])
    row["messages-so-far"] += [{"utterance": ""}, {"utterance": "is it on?"}]
    loaded = import_examples("dstc7", written(tmp_path / "x.json", json.dumps([row])), every_turn=True)
    turns = ("help", "please", "", "is it on?")
    assert loaded.examples == [
        Example(("help",), ("please",), (0,), "1#1"),
        Example(("help", "please", ""), ("is it on?",), (0,), "1#3"),
        Example(turns, ("no", "", "yes"), (2,), "1"),
    ]
    write_examples(tmp_path / "x.jsonl", loaded.examples)
    assert read_examples(tmp_path / "x.jsonl").examples == loaded.examples


def test_dstc7_as_released_keeps_speakers_and_every_second_turn_back_is_a_response(tmp_path: Path) -> None:
    row = item(1, OPTIONS, [option("C", "yes")])
    row["messages-so-far"] = [
        {"speaker": f"participant_{i % 2 + 1}", "utterance": text} for i, text in enumerate("abcde")
    ]
    source = written(tmp_path / "x.json", json.dumps([row]))
    turns = ("participant 1: a", "participant 2: b", "participant 1: c", "participant 2: d", "participant 1: e")
    last = Example(turns, ("no", "", "yes"), (2,), "1")
    assert import_examples("dstc7", source, as_released=True).examples == [last]
    assert import_examples("dstc7", source, as_released=True, every_turn=True).examples == [
        Example(turns[:1], ("b",), (0,), "1#1"),
        Example(turns[:3], ("d",), (0,), "1#3"),
        last,
    ]
    command = ["import", "corpus", "dstc7", str(source), "-o", str(tmp_path / "out.jsonl"), "--as-released"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert read_examples(tmp_path / "out.jsonl").examples == [last]


def test_pairs_are_read_without_an_import(tmp_path: Path) -> None:
    row = '{"context": "now", "context/0": "before", "context/10": "", "context/2": "first", "response": "yes"}'
    source = written(tmp_path / "x.jsonl", row)
    assert read_examples(source).examples == import_examples("pairs", source).examples
    assert read_examples(source).examples[0].context == ("first", "before", "now")


def test_every_turn_of_ubuntu_v2_is_a_response(tmp_path: Path) -> None:
    lines = ("Context,Utterance,Label", "hi __eou__ there __eot__ yes ? __eot__ so,try,1", "a __eot__ b,c,0")
    loaded = import_examples("ubuntu-v2", written(tmp_path / "train.csv", *lines), every_turn=True)
    assert loaded.examples == [
        Example(("hi there",), ("yes ?",), (0,), "train:2#1"),
        Example(("hi there", "yes ?"), ("so",), (0,), "train:2#2"),
        Example(("hi there", "yes ?", "so"), ("try",), (0,), "train:2"),
    ]
    assert loaded.report.n_skipped == 1


def test_every_turn_of_convai2_is_a_response_once_and_the_partner_has_the_other_persona(tmp_path: Path) -> None:
    source = written(
        tmp_path / "x.txt", "1 your persona: i like cats.", "2 partner's persona: i like dogs.",
        "3 hi\thello\t\tbye|hello", "4 __SILENCE__\tstill here", "5 sure", "1 yo\tyes", "2 so?\t__SILENCE__",
    )  # fmt: skip
    own, other = (
        ("i like cats.", "partner's persona: i like dogs."),
        ("i like dogs.", "partner's persona: i like cats."),
    )
    assert import_examples("convai2", source, every_turn=True).examples == [
        Example(("hi",), ("bye", "hello"), (1,), "x:3", own),
        Example(("hi", "hello"), ("still here",), (0,), "x:4", own),
        Example(("hi", "hello", "still here"), ("sure",), (0,), "x:5#partner", other),
        Example(("yo",), ("yes",), (0,), "x:6"),
        Example(("yo", "yes"), ("so?",), (0,), "x:7#partner"),
    ]


@pytest.mark.deep
def test_every_turn_from_the_command_line(tmp_path: Path) -> None:
    source = written(tmp_path / "x.json", json.dumps([item(1, OPTIONS, [option("C", "yes")])]))
    done = run("import", "corpus", "dstc7", source, "--every-turn", "-o", tmp_path / "x.jsonl")
    assert (done.returncode, len(read_examples(tmp_path / "x.jsonl").examples)) == (0, 2)
    refused = run("import", "corpus", "pairs", source, "--every-turn", "-o", tmp_path / "y.jsonl")
    assert (refused.returncode, "--every-turn does not apply to pairs" in refused.stderr) == (2, True)


# texts


def test_wikipedia(tmp_path: Path) -> None:
    source = written(tmp_path / "w.txt", "one a.\ttwo b.\tthree c.", "alone", " x \t\ty y y")
    loaded = import_examples("wikipedia", source, seed=5)
    assert [example.id for example in loaded.examples] == ["w:1", "w:3"]
    assert loaded.report.n_skipped == 1
    for example, sentences in zip(loaded.examples, (["one a.", "two b.", "three c."], ["x", "y y y"]), strict=True):
        assert example.candidates == (" ".join(s for s in sentences if s != example.context[0]),)
        assert example.context[0] in sentences
    # the sentence depends only on the seed and the line
    assert (
        import_examples("wikipedia", written(source, "one a.\ttwo b.\tthree c."), seed=5).examples
        == loaded.examples[:1]
    )
    chosen = {import_examples("wikipedia", source, seed=seed).examples[0].context[0] for seed in range(20)}
    assert chosen == {"one a.", "two b.", "three c."}
    short = import_examples("wikipedia", source, seed=5, max_words=2).examples[0]
    assert short.candidates[0] == " ".join(loaded.examples[0].candidates[0].split()[:2])


def test_conversational_pairs_go_back_in_time(tmp_path: Path) -> None:
    row = {
        "context/1": "Hello, how are you?",
        "context/0": "I am fine. And you?",
        "context": "Great.",
        "response": "Yes.",
    }
    many = {f"context/{i}": str(i) for i in range(12)} | {"context": "now", "response": "r", "context/12": ""}
    source = written(tmp_path / "x.json", json.dumps(row), json.dumps(many))
    assert import_examples("pairs", source).examples == [
        Example(("Hello, how are you?", "I am fine. And you?", "Great."), ("Yes.",), (0,), "x:1"),
        Example((*map(str, reversed(range(12))), "now"), ("r",), (0,), "x:2"),
    ]
    with pytest.raises(DataError, match=r'x\.json:1: field "context/0" holds a number'):
        import_examples("pairs", written(source, '{"context": "a", "context/0": 1, "response": "b"}'))


# the fields of each format


def test_convai2_lines_are_counted_with_the_blank_ones(tmp_path: Path) -> None:
    source = written(tmp_path / "x.txt", "1 hi\thello", "", "3 how\tfine", "7 __SILENCE__\tanyone there", "8 a|b\tc|d")
    assert import_examples("convai2", source).examples == [
        Example(("hi",), ("hello",), (0,), "x:1"),
        Example(("hi", "hello", "how"), ("fine",), (0,), "x:3"),
        Example(("hi", "hello", "how", "fine"), ("anyone there",), (0,), "x:4"),
        Example(("hi", "hello", "how", "fine", "anyone there", "a|b"), ("c", "d"), (0, 1), "x:5"),
    ]


def test_convai2_turns_stay_in_the_context_despite_bad_candidates(tmp_path: Path) -> None:
    source = written(
        tmp_path / "x.txt", "1 a\tb\t\tc|d", "2 e\tf\t\tf|g", "2 h\ti", "x", "3 j\tk|__SILENCE__", "4 l\tm"
    )
    loaded = import_examples("convai2", source, skip_bad=True)
    assert loaded.examples == [
        Example(("a", "b", "e"), ("f", "g"), (0,), "x:2"),
        Example(("a", "b", "e", "f", "j", "k", "l"), ("m",), (0,), "x:6"),
    ]
    assert (loaded.report.n_rows, loaded.report.n_bad, loaded.report.n_skipped) == (6, 3, 1)
    assert [message.partition(": ")[2].split(";")[0] for message in loaded.report.messages] == [
        "label 'b' is not among the 2 candidates",
        "is numbered 2 after 2",
        "the line does not begin with a number",
    ]
    assert [message.split(":")[1] for message in loaded.report.messages] == ["1", "3", "4"]
    with pytest.raises(DataError, match=r"x\.txt:1: the line does not begin with a number"):
        import_examples("convai2", written(source, "² hi\thello"))  # a digit for Python, but not for ParlAI


def test_convai2_personas_start_again_with_each_dialogue(tmp_path: Path) -> None:
    source = written(
        tmp_path / "x.txt",
        "1 your persona: a.",
        "2 your persona: b.",
        "3 hi\thello",
        "4 your persona: c.",
        "5 so\tyes",
        "1 bye\tciao",
    )
    loaded = import_examples("convai2", source)
    assert loaded.examples == [
        Example(("hi",), ("hello",), (0,), "x:3", ("a.", "b.")),
        Example(("hi", "hello", "so"), ("yes",), (0,), "x:5", ("a.", "b.", "c.")),
        Example(("bye",), ("ciao",), (0,), "x:6"),
    ]
    assert (loaded.report.n_rows, loaded.report.n_skipped) == (6, 3)


def test_dstc7_messages_candidates_and_answers_keep_their_order(tmp_path: Path) -> None:
    row = {
        "example-id": "e-9",
        "messages-so-far": [{"speaker": s, "utterance": u} for s, u in [("a", "one"), ("a", "two"), ("b", "three")]],
        "options-for-correct-answers": [option("D", "four"), option("A", "no"), option("D", "four"), option("Z", "?")],
        "options-for-next": [option("A", "no"), option("B", "maybe"), option("D", "four")],
    }
    numbered = {
        **row,
        "options-for-next": [{"candidate-id": 7, "utterance": "x"}, {"candidate-id": 8, "utterance": ""}],
    }
    numbered |= {"example-id": 3, "options-for-correct-answers": [{"candidate-id": 8, "utterance": ""}]}
    source = written(tmp_path / "x.json", json.dumps([row, numbered]))
    turns = ("one", "two", "three")
    assert import_examples("dstc7", source).examples == [
        Example(turns, ("no", "maybe", "four"), (0, 2), "e-9"),
        Example(turns, ("x", ""), (1,), "3"),
    ]
    assert import_examples("dstc7-pool", source).examples == [
        Example(turns, id="e-9", relevant_ids=("D", "A", "Z")),
        Example(turns, id="3", relevant_ids=("8",)),
    ]


def test_dstc7_answers_belong_to_their_example(tmp_path: Path) -> None:
    items = [item(number, OPTIONS, [option("A", "no")]) for number in (1, 2, 3, 4)]
    source = written(tmp_path / "x.json", json.dumps(items))
    answers = written(tmp_path / "a.tsv", "2\tC\tyes", "", "1\tB\t", "2\tA\tno\r", "3\tNONE", "9\tA\tno")
    found = import_examples("dstc7", source, answers=answers)
    assert [example.relevant for example in found.examples] == [
        (1,),
        (0, 2),
        (),
        (),
    ]  # not the file's own answers
    pool = import_examples("dstc7-pool", source, answers=answers)
    assert [example.relevant_ids for example in pool.examples] == [("B",), ("C", "A"), (), ()]
    for line, message in ((b"\xff\tA", "byte 1 of the line is not UTF-8"), ("nothing", "no tab")):
        with pytest.raises(DataError, match=rf"a\.tsv:3: {message}"):
            import_examples("dstc7", source, answers=written(answers, "1\tB", "", line))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"example-id": 1.5}, 'field "example-id" holds a number'),
        ({"messages-so-far": [{"text": "a"}]}, 'missing field "utterance"'),
        ({"options-for-next": None}, 'field "options-for-next" holds null'),
        ({"options-for-next": [{"candidate-id": "A"}]}, 'missing field "utterance"'),
        ({"options-for-next": [{"utterance": "A"}]}, 'missing field "candidate-id"'),
        ({"options-for-correct-answers": [{"utterance": "A"}]}, 'missing field "candidate-id"'),
        ({"options-for-correct-answers": [{"candidate-id": True}]}, 'field "candidate-id" holds true or false'),
    ],
)
def test_bad_dstc7_fields_are_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    source = written(tmp_path / "x.json", json.dumps([{**item(1, OPTIONS, [option("A", "no")]), **row}]))
    with pytest.raises(DataError, match=rf"x\.json:1: {message}"):
        import_examples("dstc7", source)


@pytest.mark.parametrize(("label", "kept"), [("1", 1), ("1.0", 1), (" 1 ", 1), ("0", 0), ("0.0", 0)])
def test_ubuntu_v2_labels(tmp_path: Path, label: str, kept: int) -> None:
    source = written(tmp_path / "x.csv", "Context,Utterance,Label", "a,b,1", f"c,d,{label}")
    report = import_examples("ubuntu-v2", source).report
    assert (report.n_rows, report.n_examples, report.n_skipped) == (2, 1 + kept, 1 - kept)
    for bad in ("", "2", "10", "01", "yes"):
        with pytest.raises(DataError, match=rf"x\.csv:3: label '{bad}' is neither 0 nor 1"):
            import_examples("ubuntu-v2", written(source, "Context,Utterance,Label", "a,b,1", f"c,d,{bad}"))


def test_ubuntu_v2_turns_without_text_are_dropped(tmp_path: Path) -> None:
    contexts = ["a __eou__ b __eou__ __eot__ __eou__ __eot__  c  d __eot__", "x", "", "__eot__ __eot__"]
    lines = [f"{context},r __eou__ s __eou__ __eot__,1" for context in contexts]
    source = written(tmp_path / "x.csv", "Context,Utterance,Label", *lines)
    assert import_examples("ubuntu-v2", source).examples == [
        Example(("a b", "c d"), ("r s",), (0,), "x:2"),
        Example(("x",), ("r s",), (0,), "x:3"),
        Example(("",), ("r s",), (0,), "x:4"),
        Example(("",), ("r s",), (0,), "x:5"),
    ]


def test_wikipedia_sentences_are_drawn_evenly_and_line_by_line(tmp_path: Path) -> None:
    source = written(tmp_path / "w.txt", *["a a\tb b\tc c\td d"] * 400)
    drawn = [example.context[0] for example in import_examples("wikipedia", source, seed=3).examples]
    assert all(abs(drawn.count(sentence) - 100) < 40 for sentence in ("a a", "b b", "c c", "d d"))
    assert drawn == [example.context[0] for example in import_examples("wikipedia", source, seed=3).examples]
    assert drawn != [example.context[0] for example in import_examples("wikipedia", source).examples]
    assert drawn[:399] != drawn[1:]
    whole = import_examples("wikipedia", source, seed=3).examples
    for n in (1, 3, 5, 6, 9):
        cut = import_examples("wikipedia", source, seed=3, max_words=n).examples
        assert [e.candidates[0].split() for e in cut] == [e.candidates[0].split()[:n] for e in whole]
    assert {len(example.candidates[0].split()) for example in whole} == {6}


def test_wikipedia_articles_of_two_sentences_count_and_of_one_do_not(tmp_path: Path) -> None:
    source = written(tmp_path / "w.txt", "one.\t\t \t", "one.\ttwo.", "\t", "", "x.\ty.")
    loaded = import_examples("wikipedia", source)
    assert [example.id for example in loaded.examples] == ["w:2", "w:5"]
    assert {(*e.context, *e.candidates) for e in loaded.examples} <= {
        *(("one.", "two."), ("two.", "one."), ("x.", "y."), ("y.", "x."))
    }
    assert (loaded.report.n_rows, loaded.report.n_skipped, loaded.report.n_bad) == (5, 3, 0)


def test_conversational_pairs_leave_padding_out_and_keep_ids(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": "q7", "context/10": "oldest", "context/2": None, "context/1": "", "context/0": "before", "context": ""},
        {"id": 0, "context": "now", "context/x": 3, "subreddit": "tips", "contexts/0": "no"},
        {"id": "", "context": "now", "context/00": "before"},
    ]
    source = written(tmp_path / "x.json", *[json.dumps(row | {"response": "r"}) for row in rows])
    assert import_examples("pairs", source).examples == [
        Example(("oldest", "before", ""), ("r",), (0,), "q7"),
        Example(("now",), ("r",), (0,), "0"),
        Example(("before", "now"), ("r",), (0,), "x:3"),
    ]


@pytest.mark.parametrize(
    ("name", "lines", "counts"),
    [
        ("convai2", ["1 a\tb", "oops", "2 c\td"], (3, 2, 0, 1)),
        ("pairs", ['{"context": "a", "response": "b"}', "{", '{"context": "a", "response": "c"}'], (3, 2, 0, 1)),
        ("wikipedia", [b"a\tb", b"\xff", b"alone", b"c\td"], (4, 2, 1, 1)),
    ],
)
def test_bad_rows_and_rows_without_an_example_are_counted_separately(
    tmp_path: Path, name: str, lines: list[str | bytes], counts: tuple[int, ...]
) -> None:
    source = written(tmp_path / "x.txt", *lines)
    report = import_examples(name, source, skip_bad=True).report
    assert (report.n_rows, report.n_examples, report.n_skipped, report.n_bad) == counts
    assert [message.startswith(f"{source}:2: ") for message in report.messages] == [True]
    with pytest.raises(DataError, match=r"x\.txt:2: "):
        import_examples(name, source)


# lists


def test_items_of_a_list_have_the_lines_that_they_start_on(tmp_path: Path) -> None:
    source = written(tmp_path / "x.json", "", "[{", '"a": 1}', ",", "", '{"b": [', "2]}, {}", ",{}", "]")
    assert list(listed_rows(source)) == [(2, {"a": 1}), (6, {"b": [2]}), (7, {}), (8, {})]


def test_lists_at_their_edges(tmp_path: Path) -> None:
    source = tmp_path / "x.json"
    source.write_bytes(b"\xef\xbb\xbf[{}]")  # a byte order mark does not count
    assert list(listed_rows(source)) == [(1, {})]
    assert list(listed_rows(written(source, "[]"))) == []
    source.write_bytes(b"\n\n[{}, {\xff}]")
    with pytest.raises(DataError, match=r"x\.json:3: not UTF-8"):
        list(listed_rows(source))
