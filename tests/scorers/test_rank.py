"""``Scorer.rank``: arguments, results, and the command."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from polyrank import BM25, Candidate, Context, TfIdf, load
from polyrank.cli import app
from polyrank.errors import ArtifactError, PolyrankError, UsageError
from polyrank.scorers.open import encoder_of
from polyrank.scorers.own import as_scorer
from polyrank.scorers.protocols import Encoder, Floats, Scorer
from processes import run as run_process
from two_stages import Alone

TEXTS = ["hello", "restart the router", "my wifi is red", "restart the router", "the bill"]


@pytest.fixture(params=["bm25", "tfidf", "shipped:convert", "untuned", "two stages"])
def scorer(request: pytest.FixtureRequest, tiny_backbone: Path) -> Scorer:
    if request.param == "two stages":
        return Alone(BM25(), load(f"untuned:{tiny_backbone}"), n_retrieved=2)
    return load(f"untuned:{tiny_backbone}" if request.param == "untuned" else request.param, device="cpu")


# arguments


def test_a_context_may_be_a_text_turns_or_a_context(scorer: Scorer) -> None:
    for same in (["my wifi", ["my wifi"], ("my wifi",), Context("my wifi")], (Context(("my wifi",)),) * 4):
        rows = scorer.score(same, [TEXTS] * 4)
        assert all(np.array_equal(rows[0], row) for row in rows)
        wanted = [scorer.score_pool([Context(("my wifi",))], TEXTS)[0]] * 4
        np.testing.assert_allclose(scorer.score_pool(same, TEXTS), wanted, rtol=1e-5)
    assert not np.array_equal(scorer.score(["my wifi"], [TEXTS]), scorer.score(["the bill"], [TEXTS]))


@pytest.mark.parametrize(
    ("contexts", "candidates", "error", "reason"),
    [
        (["a", "b"], [TEXTS], UsageError, "2 contexts and 1 list of candidates; give each context its own list"),
        (["a"], [TEXTS, TEXTS], UsageError, "1 context and 2 lists of candidates"),
        ("a", [TEXTS], TypeError, r"'a' is one context, not a list of contexts; write \['a'\]"),
        (Context("a"), [TEXTS], TypeError, "is one context, not a list of contexts"),
        ([{"role": "user", "content": "a"}], [TEXTS], TypeError, "is one context, not a list of contexts"),
        ([["a", {"content": "a"}]], [TEXTS], TypeError, r"turns\[0\] = 'a' is not a message; give it a role"),
        ([3], [TEXTS], TypeError, "= 3 is int; give a text or a list of texts"),
        (["a"], TEXTS, TypeError, r"candidates\[0\] = 'hello' is not a list of texts; write \['hello'\]"),
        (["a"], "hello", TypeError, "candidates = 'hello' is one text"),
        (["a"], [["b", None]], TypeError, r"candidates\[0\]\[1\] = None is not a text"),
        (["a"], [[Candidate("1", "b")]], TypeError, r"candidates\[0\]\[0\] = .* is not a text"),
    ],
)
def test_wrong_types_are_refused_by_rank(
    contexts: Any, candidates: Any, error: type[Exception], reason: str, scorer: Scorer
) -> None:
    with pytest.raises(error, match=reason):
        scorer.score(contexts, candidates)


def test_other_entry_points_check_types_too(scorer: Scorer) -> None:
    with pytest.raises(TypeError, match="is one context, not a list of contexts"):
        scorer.score_pool("a", TEXTS)
    with pytest.raises(TypeError, match=r"(pool|candidates) = 'hello' is not a list of texts"):
        scorer.score_pool(["a"], "hello")
    assert scorer.score([], []) == []
    assert [len(row) for row in scorer.score(["a", "b"], [[], TEXTS])] == [0, 5]
    assert scorer.score_pool([], TEXTS).shape == (0, 5)
    assert scorer.score_pool(["a", "b"], []).shape == (2, 0)
    if isinstance(scorer, Encoder):
        assert scorer.encode_contexts(["a", ["a", "b"]])[0].shape[0] == 2
        with pytest.raises(TypeError, match="is one context"):
            scorer.encode_contexts("a")
        with pytest.raises(TypeError, match="candidates = 'a' is not a list of texts"):
            scorer.encode_candidates("a")


# rank


def test_the_best_come_first_and_ties_keep_their_order(scorer: Scorer) -> None:
    scores = scorer.score(["my wifi"], [TEXTS])[0]
    ranked = scorer.rank("my wifi", TEXTS)
    order = sorted(range(5), key=lambda i: (-scores[i], i))
    assert [(reply.id, reply.text, reply.score) for reply in ranked] == [
        (str(i), TEXTS[i], float(scores[i])) for i in order
    ]
    assert scorer.rank(["hi", "my wifi"], TEXTS) == scorer.rank(Context(("hi", "my wifi")), TEXTS)
    assert scorer.rank("my wifi", TEXTS, 2) == scorer.rank("my wifi", iter(TEXTS), k=2) == ranked[:2]
    assert scorer.rank("my wifi", TEXTS, 99) == ranked
    assert scorer.rank("my wifi", []) == []
    for texts in (["", "the bill", " ", "hello"], ["the bill", "hello", "\n"]):  # a text of nothing is never the best
        scores = scorer.score(["my wifi"], [texts])[0]
        order = sorted(range(len(texts)), key=lambda i: (not texts[i].strip(), -scores[i] if texts[i].strip() else i))
        assert [one.text for one in scorer.rank("my wifi", texts)] == [texts[i] for i in order]


def test_truncation_is_logged_once(tiny_backbone: Path, caplog: pytest.LogCaptureFixture) -> None:
    scorer = load(f"untuned:{tiny_backbone}", max_context_tokens=6)
    scorer.rank("my wifi", ["the bill", "hello"])
    for reranker in (scorer, Alone(BM25(), load(f"untuned:{tiny_backbone}", max_context_tokens=6))):
        assert not caplog.messages
        reranker.rank("the bill is too high please", ["hello", "my wifi " * 100])
        reranker.rank("the router is too high please", ["hello"])
        assert [text[:66] for text in caplog.messages] == [
            "1 context did not fit into 6 tokens, so its start was not read; it"
        ]
        caplog.clear()
        assert [(len(cut.contexts), len(cut.candidates)) for cut in reranker.cut] == [(2, 0)]


def test_candidates_keep_their_ids_and_metadata() -> None:
    pool = [Candidate("r1", "the bill"), Candidate("r2", "my wifi", {"kind": "tech"}), Candidate("r1", "my wifi")]
    ranked = BM25().rank("my wifi", pool)
    assert [(reply.id, reply.metadata) for reply in ranked] == [("r2", {"kind": "tech"}), ("r1", {}), ("r1", {})]
    assert [reply.id for reply in TfIdf().rank("my wifi", [pool[1], "my wifi is"])] == ["r2", "1"]


def test_candidates_that_cannot_be_ranked() -> None:
    for k in (0, -1):
        with pytest.raises(UsageError, match=f"k = {k}; request at least one"):
            BM25().rank("a", TEXTS, k)
    with pytest.raises(TypeError, match="'hello' is one candidate"):
        BM25().rank("a", "hello")
    with pytest.raises(TypeError, match=r"candidates\[1\] = 3 is not a text"):
        BM25().rank("a", ["b", 3])  # type: ignore[list-item]

    class Broken(Scorer):
        def score(self, contexts: Sequence[Any], candidates: Sequence[Sequence[str]]) -> list[Floats]:
            return [np.full(len(texts), np.nan, np.float32) for texts in candidates]

    with pytest.raises(ArtifactError, match="a score is not finite"):
        Broken().rank("a", TEXTS)

    class Short(Scorer):
        def score(self, contexts: Sequence[Any], candidates: Sequence[Sequence[str]]) -> list[Floats]:
            return [np.ones(len(texts) - 1, np.float32) for texts in candidates]

    for call in (lambda: Short().rank("a", TEXTS), lambda: Short().score_pool(["a", "b"], TEXTS)):
        with pytest.raises(
            UsageError, match=r"Short\(\) returned scores of shape \[4\] for \[5\] candidates; return one"
        ):
            call()
    reranker = Broken()
    reranker.corrects = "f" * 64
    with pytest.raises(UsageError, match="only corrects an encoder's scores; use what polyrank"):
        reranker.rank("a", TEXTS)
    with pytest.raises(UsageError, match=r"^Broken\(\) has no vectors; give the encoder whose scores it corrects"):
        encoder_of(reranker)
    assert np.isnan(Broken().score_pool(["a", "b"], TEXTS)).all()  # every scorer inherits the shared methods


class Own:
    """A user's object, which returns what it is given."""

    def __init__(self, **given: Any) -> None:
        self.given = given

    def score(self, contexts: list[Context], candidates: list[list[str]]) -> Any:
        assert [*map(type, contexts)] == [Context] * len(contexts)
        return self.given["scores"]


class OwnVectors(Own):
    """A user's object that also encodes."""

    dimension = 2

    def encode_contexts(self, contexts: list[Context]) -> Any:
        assert [*map(type, contexts)] == [Context] * len(contexts)
        return self.given["contexts"]

    def encode_candidates(self, candidates: list[str]) -> Any:
        return self.given["candidates"]


def test_a_users_object_scores_by_itself_or_by_its_vectors() -> None:
    lists = [["a", "b"], ["c"]]
    one, other = as_scorer(Own(scores=iter([(1, 2.5), [3]]))).score(["hi", ["hi", "you"]], lists)
    assert (one.tolist(), other.tolist(), one.dtype) == ([1, 2.5], [3], np.float32)
    vectors, candidates = [[1, 2], [3, 4]], [[1, 0], [0, 1], [1, 1]]
    one, other = as_scorer(OwnVectors(contexts=vectors, candidates=candidates)).score(["hi", "you"], lists)
    assert (one.tolist(), other.tolist()) == ([1, 2], [7])
    several = [[[1, 2], [9, 9]], [[9, 9], [3, 4]]], [[True, False], [False, True]]  # only one of two is real
    one, other = as_scorer(OwnVectors(contexts=several, candidates=candidates)).score(["hi", "you"], lists)
    assert (one.tolist(), other.tolist()) == ([1, 2], [7])
    assert as_scorer(OwnVectors(scores=[])).fingerprint == as_scorer(Own(scores=[])).fingerprint == ""  # unknown
    undecided = OwnVectors(scores=[[5.0]])
    assert isinstance(as_scorer(undecided), Encoder)
    undecided_class = type("Named", (Own,), {"encode_contexts": None, "encode_candidates": None})
    named = as_scorer(undecided_class(scores=[[5.0]]))  # without a dimension, it only scores
    assert (named.score(["hi"], [["a"]])[0].tolist(), named.name, repr(named)) == ([5], "Named", "OwnScorer('Named')")
    for kind, shown in ((Own, "OwnScorer('mine')"), (OwnVectors, "OwnEncoder('mine', 2 dimensions)")):
        known = as_scorer(type("Known", (kind,), {"name": "mine", "fingerprint": "f1"})())
        assert (known.fingerprint, repr(known)) == ("f1", shown)


def test_a_users_object_that_returns_other_shapes_is_refused() -> None:
    two = [[1, 2]] * 2
    for own, problem in (
        (Own(scores=[[1, 2]]), "Own returned scores of 1 contexts for 2; return one row for each"),
        (Own(scores=[[1, 2], [3], [4]]), "Own returned scores of 3 contexts for 2; return one row for each"),
        (Own(scores=[[1], [3]]), r"'Own' returned scores of shape \[1\] for \[2\] candidates; return one for each"),
        (Own(scores=[[1, 2], [[3]]]), r"'Own' returned scores of shape \[1, 1\] for \[1\] candidates"),
        (Own(scores=[[1, 2], ["x"]]), "'Own' returned list, not an array of scores; return one"),
        (OwnVectors(contexts=two[:1]), r"encode_contexts returned shape \[1, 1, 2\] for 2 contexts; return \[2, 2\]"),
        (OwnVectors(contexts=[[1, 2, 3]] * 2), r"returned shape \[2, 1, 3\] for 2 contexts; return \[2, 2\], or"),
        (OwnVectors(contexts=([[[1, 2]]] * 2, [[True]])), r"returned shape \[2, 1, 2\] for 2 contexts; .* their mask"),
        (OwnVectors(contexts=two, candidates=two * 2), r"returned shape \[4, 2\] for 3 texts; return \[3, 2\]"),
        (OwnVectors(contexts=two, candidates=[[1]] * 3), r"returned shape \[3, 1\] for 3 texts; return \[3, 2\]"),
        (Candidate("1", "b"), "is Candidate; give an object with score, or with dimension"),
    ):
        with pytest.raises(UsageError, match=problem):
            as_scorer(own).score(["hi", ["hi", "you"]], [["a", "b"], ["c"]])


# the command

Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    for name, text in {"a.txt": "pay the bill\n", "b.txt": "my wifi is red\n\nrestart it\n"}.items():
        Path(name).write_text(text, "utf-8")

    def call(*arguments: object, stdin: str = "") -> Any:
        return CliRunner().invoke(app, ["rank", *map(str, arguments)], input=stdin)

    return call


def results(found: Any) -> list[tuple[str, str]]:
    assert found.exit_code == 0, found.stderr
    return [(row["id"], row["text"]) for row in json.loads(found.stdout)["results"]]


def test_documents_of_several_files_have_the_names_of_their_files(run: Run) -> None:
    found = run("bm25", "my wifi", "a.txt", "b.txt")
    assert results(found) == [("b.txt:1", "my wifi is red"), ("a.txt:1", "pay the bill"), ("b.txt:3", "restart it")]
    scores = [row["score"] for row in json.loads(found.stdout)["results"]]
    assert scores[0] > scores[1] == scores[2] == 0
    assert json.loads(found.stdout)["query"] == "my wifi"
    assert results(run("bm25", "my wifi", "a.txt", "b.txt", "--top", "1")) == results(found)[:1]


def test_a_query_may_be_longer_than_a_path(run: Run) -> None:
    assert results(run("bm25", "my wifi " * 80, "a.txt", "b.txt"))[0][0] == "b.txt:1"


def test_lines_are_documents(run: Run) -> None:
    lines = [("1", "my wifi is red"), ("3", "restart it")]
    found = run("bm25", "my wifi", "b.txt")
    assert results(found) == lines
    assert results(run("bm25", "my wifi", stdin=Path("b.txt").read_text("utf-8"))) == lines
    assert results(run("bm25", "my wifi", "-", stdin='[x] wifi\n{"id": 7, "text": "my wifi"}')) == [
        ("7", "my wifi"),
        ("1", "[x] wifi"),
    ]


def test_tables_have_a_document_in_each_row(run: Run) -> None:
    Path("t.csv").write_text("id,text,kind\nr1,pay the bill,money\nr2,my wifi,tech\n", "utf-8")
    Path("t.jsonl").write_text('{"text": "hello"}\n{"text": "wifi"}\n', "utf-8")
    found = run("bm25", "my wifi", "t.csv")
    assert results(found) == [("r2", "my wifi"), ("r1", "pay the bill")]
    assert json.loads(found.stdout)["results"][0]["metadata"] == {"kind": "tech"}
    ids = [name for name, _ in results(run("bm25", "my wifi", "t.csv", "t.jsonl", "a.txt"))]
    assert ids == ["t.csv:r2", "t.jsonl:2", "t.csv:r1", "t.jsonl:1", "a.txt:1"]


def test_each_line_may_have_its_own_query(run: Run) -> None:
    rows = [
        {"id": "q1", "query": "my wifi", "documents": ["pay", "wifi", {"id": "x", "text": "my wifi"}]},
        {"context": ["hi", "my wifi"], "candidates": ["pay", "wifi"], "background": "wifi"},
        {"query": ["hi", "pay"], "candidates": ["pay", "pay"]},
    ]
    found = run("bm25", stdin="\n".join(map(json.dumps, rows)))
    assert found.exit_code == 0, found.stderr
    first, second, third = map(json.loads, found.stdout.splitlines())
    assert (first["id"], first["query"], [row["id"] for row in first["results"]]) == ("q1", "my wifi", ["x", "1", "0"])
    assert (second["query"], [row["id"] for row in second["results"]]) == (["hi", "my wifi"], ["1", "0"])
    assert [(row["id"], row["text"]) for row in third["results"]] == [("0", "pay"), ("1", "pay")]
    found = run("bm25", "--scores-only", stdin=json.dumps(rows[0]))
    wanted = BM25().score(["my wifi"], [["pay", "wifi", "my wifi"]])[0].tolist()
    assert json.loads(found.stdout) == {"id": "q1", "scores": wanted}


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "problem"),
    [
        (["bm25", "q", "nosuch.txt", "a.txt"], "", 3, "nosuch.txt: no such file"),
        (["bm25", "q", "."], "", 3, ".: matches no data file"),
        (["bm25", "a.txt", "b.txt"], "", 2, "the query 'a.txt' is a file; give the query first"),
        (["bm25", "q"], "", 3, "nothing to rank: give files of documents"),
        (["bm25", " "], "x", 2, "the query is empty"),
        (["bm25", "q", "bytes", "a.txt"], "", 3, "bytes:1: byte 1 of the line is not UTF-8"),
        (["bm25", "q"], '{"id": 1}', 3, 'stdin:1: missing field "text"'),
        (["bm25", "q"], '{"text": 1}', 3, 'field "text" holds a number'),
        (["bm25"], "plain", 3, "stdin:1: not JSON"),
        (["bm25"], '{"query": "a"}', 3, 'missing field "candidates"'),
        (["bm25"], '{"documents": ["a"]}', 3, 'missing field "context"'),
        (["bm25"], '{"query": {"a": 1}, "documents": ["a"]}', 3, 'field "query" holds an object'),
        (["bm25"], '{"query": "a", "documents": [3]}', 3, 'field "documents" holds a number at position 0'),
        (["bm25", "q", "--top", "2", "--scores-only"], "x", 2, "leave out --top 2"),
        (["bm25", "q", "--max-context-tokens", "9"], "x", 2, "max_context_tokens` does not apply to bm25"),
        (["bm25", "wifi " * 80 + "\udce9", "a.txt"], "", 2, "the query is not valid text: lone surrogate"),
        (["nosuch", "q"], "x", 2, "nosuch is not a model folder; give a model folder, hf:OWNER/MODEL of the Hub"),
    ],
)
def test_wrong_input_to_rank_prints_one_line(
    arguments: list[str], stdin: str, code: int, problem: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bytes").write_bytes(b"\xff\xfe")
    found = run(*arguments, stdin=stdin)
    assert isinstance(found.exception, PolyrankError)
    assert found.exception.exit_code == code
    assert problem in str(found.exception)
    assert found.stdout == ""


def test_truncation_is_reported_once_with_a_remedy(run: Run, tiny_backbone: Path) -> None:
    for i, word in enumerate(("hello", "bill", "router")):
        Path(f"{i}.txt").write_text(f"{'wifi ' * 80}{word}", "utf-8")
    files = ["0.txt", "1.txt", "2.txt"]
    long, name = "wifi " * 400, f"untuned:{tiny_backbone}"
    found = run_process("rank", name, long, *files, "--json")
    assert len({row["score"] for row in json.loads(found.stdout)["results"]}) > 1  # read to their ends
    said = "1 context did not fit into 128 tokens, so its start was not read; --max-candidate-tokens and"
    assert found.stderr.count(said) == 1
    line = json.dumps({"query": "my wifi", "documents": [Path(file).read_text("utf-8") for file in files]})
    for options in ((), ("--scores-only",)):
        found = run(name, *options, stdin=line)
        (row,) = map(json.loads, found.stdout.splitlines())
        assert len(set(row.get("scores") or [one["score"] for one in row["results"]])) == 3
        assert "fit into" not in found.stderr


def test_a_terminal_gets_a_table(run: Run, tmp_path: Path) -> None:
    lead, follow = pty.openpty()
    command = [sys.executable, "-m", "polyrank", "rank", "bm25", "my wifi", "a.txt", "b.txt"]
    environment = {**os.environ, "COLUMNS": "60"}
    subprocess.run(command, stdout=follow, stdin=subprocess.DEVNULL, check=True, env=environment, cwd=tmp_path)
    os.close(follow)
    lines = [line for line in os.read(lead, 10_000).decode().splitlines() if ".txt" in line]
    os.close(lead)
    assert [line.split()[2] for line in lines] == ["b.txt:1", "a.txt:1", "b.txt:3"]
    assert "my wifi is red" in lines[0]
