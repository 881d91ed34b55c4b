"""Errors and output of commands, run in the tests' process: no training, and mostly no torch."""

import io
import json
import re
import runpy
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import polyrank
from polyrank.answering.answers import Answer
from polyrank.cli import arguments
from polyrank.cli.answering import _chat
from polyrank.cli.commands import _fail, app
from polyrank.cli.console import silence_other_ranks
from polyrank.cli.interrupts import discard_partial_output
from polyrank.cli.training import TrainingDisplay
from polyrank.cli.tuning import _weights
from polyrank.config.models import BiConfig, TextPolicy
from polyrank.errors import ArtifactError, DataError, PolyrankError, UsageError
from polyrank.feedback import FeedbackStore
from polyrank.models import new_model
from polyrank.models.artifacts import TensorGroup, load_model, save_model
from polyrank.records import Ranked
from polyrank.scorers.lexical import BM25
from polyrank.scorers.open import load_encoder
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.scorers.terms.lexical import LexicalTerm

REPLIES = ["restart the router", "the bill is too high", "thanks", "did that"]


def invoke(*arguments: str | Path, stdin: str | bytes = "") -> Any:
    return CliRunner().invoke(app, [*map(str, arguments)], input=stdin)


def refusal(*arguments: str | Path, stdin: str | bytes = "") -> str:
    """The message of polyrank's error, or of the command line's."""
    result = invoke(*arguments, stdin=stdin)
    assert result.exit_code != 0
    if isinstance(result.exception, PolyrankError):
        return str(result.exception)
    assert isinstance(result.exception, SystemExit), result.exception
    return str(result.stderr)


@pytest.fixture(scope="module")
def files(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index, lists, pairs and dialogues."""
    folder = tmp_path_factory.mktemp("commands")
    candidates = [polyrank.Candidate(f"c{i}", text, {"n": i}) for i, text in enumerate(REPLIES)]
    polyrank.build_index(folder / "index", f"untuned:{tiny_backbone}", candidates)
    rows: dict[str, list[dict[str, Any]]] = {
        "lists": [{"context": ["my wifi"], "candidates": REPLIES, "relevant": [i % 4]} for i in range(4)],
        "pairs": [{"context": [f"my {i}"], "response": REPLIES[i % 4]} for i in range(8)],
        "dialogues": [
            {
                "id": f"d{i}",
                "turns": [{"speaker": "user", "text": f"hi {i}"}, {"speaker": "agent", "text": REPLIES[i % 3]}],
            }
            for i in range(30)
        ],
    }
    rows["replies"] = [{"text": text, "count": 2} for text in REPLIES]
    for name, each in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in each), "utf-8")
    return folder


@pytest.fixture(scope="module")
def trained_bi(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a Bi-encoder."""
    folder = tmp_path_factory.mktemp("trained") / "bi"
    config = BiConfig(backbone=str(tiny_backbone), shared_towers=True, reduction="mean")
    save_model(folder, *new_model(config, TextPolicy(max_context_tokens=40), seed=1, sample=REPLIES))
    return folder


# --- errors -----------------------------------------------------------------------------------------------------------

OVER_AN_INPUT = (
    "feedback export REPLIES -o REPLIES",
    "feedback export STORE -o REPLIES --contexts REPLIES",
    "feedback export STORE -o REPLIES --index REPLIES",
    "mine REPLIES --from bm25 -o REPLIES",
    "mine PAIRS --from bm25 --pool REPLIES -o REPLIES",
    "split REPLIES -o REPLIES",
    "import replies REPLIES -o REPLIES",
    "import corpus pairs REPLIES -o REPLIES",
    "import corpus dstc7 LISTS --answers REPLIES -o REPLIES",
    "evaluate bm25 PAIRS --pool REPLIES --scores REPLIES",
    "evaluate bm25 PAIRS --against REPLIES --scores REPLIES",
    "evaluate bm25 PAIRS --pool REPLIES --suspects REPLIES",
)
WITHOUT_DIALOGUES = (
    "evaluate bm25 PAIRS",
    "export shipped:convert --to int8 --check --valid LISTS",
    "import replies PAIRS -o OUT --from-dialogues",
    "mine PAIRS --from bm25 -o OUT",
    "split PAIRS -o OUT",
    "tune shipped:convert --valid LISTS -o OUT",
)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("respond INDEX hi --plot x", "No such option"),
        ("explain INDEX hi --reply a --id b", "name two replies; give one of them"),
        ("explain bm25 hi", "bm25 is not an index and contains no replies; give one with --reply"),
        ("explain bm25 hi --reply a --filter n=1", "no replies; --filter needs an index; leave it out"),
        ("explain bm25 hi --reply a --model b", "no replies; --model needs an index; leave it out"),
        ("evaluate bm25 LISTS --metric MRR,loss", "--metric 'loss' is not one of R@k, recall@k, MRR, MAP and nDCG@10"),
        ("compare a.jsonl --metric loss", "--metric 'loss' is not one of R@k, recall@k, MRR, MAP and nDCG@10"),
        *((f"{command} --metric {metric}", f"--metric '{metric}' is not one of R@k, recall@k, MRR, MAP and nDCG@10")
          for command in ("evaluate bm25 LISTS", "compare a.jsonl")
          for metric in ("R@0", "recall@0", "R@05", "R@", "R@-1", "recall", "mrr", "MRR@5", "nDCG@5", "map@1")),
        ("compare a.jsonl --metric ,", "--metric ',' is not one of R@k, recall@k, MRR, MAP and nDCG@10"),
        ("rank bm25 hi LISTS --max-context-tokens 9", "does not apply to bm25, whose text lengths are fixed; leave it"),
        ("mine PAIRS -o OUT --from bm25 --ranks 5", "--ranks '5' is not FIRST:LAST; write for example 1:50"),
        ("mine PAIRS -o OUT --from bm25 --ranks a:b", "--ranks 'a:b' is not FIRST:LAST; write for example 1:50"),
        ("mine PAIRS -o OUT --from bm25 --ranks 1:", "--ranks '1:' is not FIRST:LAST; write for example 1:50"),
        ("mine PAIRS -o OUT --from bm25 --ranks 0:3", "ranks 0 to 3 are empty; count from 1 and give the lower rank"),
        ("mine PAIRS -o OUT --from bm25 --ranks 3:2", "ranks 3 to 2 are empty; count from 1 and give the lower rank"),
        ("fit DIALOGUES -o OUT --ms 0", "30 minutes, 0.0 ms, 1 trainings at once; give numbers above 0"),
        ("fit DIALOGUES -o OUT --minutes 2.5 --ms 0", "2.5 minutes, 0.0 ms, 1 trainings at once"),
        ("fit DIALOGUES -o OUT --minutes 0.1 --replies nowhere.txt", "nowhere.txt: no such file"),
        ("import corpus pairs LISTS -o OUT --part valid", "`part` does not apply to pairs; leave it out"),
        ("import corpus pairs LISTS -o OUT --as-released", "`as_released` does not apply to pairs; leave it out"),
        ("import corpus dstc7-candidates LISTS -o OUT --part valid", "dstc7-candidates only has --overwrite"),
        ("tune bm25 --valid LISTS -o OUT --weight counts", "--weight 'counts' is not TERM=WEIGHT; write for example"),
        ("feedback export STORE -o OUT --since soon", "--since 'soon' is not a date; write 2026-05-31 or"),
        *((f"split PAIRS -o lists.jsonl {option}", "--valid, --test and --by need a folder; give one instead of lists")
          for option in ("--valid 0.2", "--test 0.2", "--by id", "--by time")),
        ("import replies LISTS -o OUT --speaker a", "need --from-dialogues; add it or leave them out"),
        ("import replies LISTS -o OUT --min-count 2", "need --from-dialogues; add it or leave them out"),
        ("import replies LISTS -o OUT --top 2", "need --from-dialogues; add it or leave them out"),
        ("import replies LISTS -o OUT --skip-bad", "need --from-dialogues; add it or leave them out"),
        ("import replies LISTS -o OUT --from-dialogues --text a", "apply to tables; leave them out"),
        ("import replies LISTS -o OUT --from-dialogues --sheet a", "apply to tables; leave them out"),
        ("import replies LISTS -o OUT --from-dialogues --encoding a", "apply to tables; leave them out with --from"),
        ("import corpus pairs LISTS -o OUT --answers x", "`answers` does not apply to pairs; leave it out"),
        ("import corpus pairs LISTS -o OUT --every-turn", "`every_turn` does not apply to pairs; leave it out"),
        ("import corpus dstc7-candidates LISTS -o OUT --skip-bad", "dstc7-candidates only has --overwrite"),
        *((f"index remove INDEX {ids} --filter n=1", "ids and a filter cannot be combined; remove by ids first")
          for ids in ("c0", "--file REPLIES", "c0 --file REPLIES")),
        ("index remove INDEX", "no ids were given; give ids, a file of ids with --file, or a --filter"),
        ("index update-counts INDEX REPLIES --feedback STORE", "feedback.db does not exist; use a feedback file that"),
        *((f"{command} --overwrite", "replies.jsonl already exists and is read by this command")
          for command in OVER_AN_INPUT),
        *((f"{command} --speaker nobody", "nobody")
          for command in ("evaluate bm25 DIALOGUES", "mine DIALOGUES --from bm25 -o OUT", "split DIALOGUES -o OUT",
                          "import replies DIALOGUES -o OUT --from-dialogues",
                          "export shipped:convert --to int8 --check --valid DIALOGUES")),
        *((f"{command} --speaker {name}", f"speaker '{name}' applies only to dialogues")
          for command in WITHOUT_DIALOGUES for name in ("agent", "*")),
        ("mine LISTS --from shipped:convert -o OUT --margin 1", "--margin 1 applies to a re-ranker's scores; name it"),
        ("export shipped:convert --to int8 --check --speaker a", "--speaker a applies to candidate lists; give them"),
        ("compare a.jsonl --plot curve.txt", "curve.txt has no known ending of a plot; use .png, .svg, .pdf"),
        ("serve bm25 --keep-text --hook zendesk", "`keep_text` needs a file; name one with `feedback`"),
        ("serve bm25 --host :: --keep-text --feedback f.db --hook zendesk", "the hook zendesk needs hook.url"),
        ("compare a.jsonl --plot nowhere/curve.png", "folder nowhere of curve.png does not exist; make it first"),
    ],
)  # fmt: skip
def test_refusals_name_the_cause(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"INDEX": files / "index", "OUT": tmp_path / "out"}
    names |= {"STORE": tmp_path / "feedback.db"}
    names |= {name.upper(): files / f"{name}.jsonl" for name in ("lists", "pairs", "dialogues", "replies")}
    words = [str(names.get(word, word)) for word in arguments.split()]
    assert problem in " ".join(refusal(*words).split())
    assert list(tmp_path.iterdir()) == []


OUT_OF_RANGE = (
    "mine PAIRS -o OUT --from bm25 --seed -1",
    "mine PAIRS -o OUT --from bm25 -n 0",
    "mine PAIRS -o OUT --from bm25 --limit 0",
    "tune bm25 --valid LISTS -o OUT --max-lists 0",
    "tune bm25 --valid LISTS -o OUT --catalogue 0",
    "tune bm25 --valid LISTS -o OUT --ms -1",
    "tune bm25 --valid LISTS -o OUT --precision 1.1",
    "fit DIALOGUES -o OUT --minutes 0",
    "fit DIALOGUES -o OUT --precision -0.1",
    "intents train LISTS -o OUT --few-shot 0",
    "intents train LISTS -o OUT --seeds 0",
    "intents predict OUT hi -k 0",
    "split PAIRS -o OUT --candidates 1",
    "split PAIRS -o OUT --valid 1.1",
    "split PAIRS -o OUT --test -0.1",
    "split PAIRS -o OUT --seed -1",
    "import replies DIALOGUES -o OUT --from-dialogues --min-count 0",
    "import replies DIALOGUES -o OUT --from-dialogues --top 0",
    "evaluate bm25 LISTS --limit 0",
    "evaluate bm25 LISTS --max-context-tokens 3",
    "rank bm25 hi REPLIES --max-candidate-tokens 3",
    "rank bm25 hi REPLIES --top 0",
    "rank bm25 hi REPLIES --threads 0",
    "respond INDEX hi -k 0",
    "explain INDEX hi --words -1",
    "index list INDEX --limit 0",
    "index compact INDEX --wait -1",
    "bench respond bm25 -n 0",
    "serve bm25 --port 65536",
    "serve bm25 --port -1",
    "serve bm25 --threads 0",
    "train PAIRS --threads 0",
)


def test_numbers_out_of_range_are_refused_by_the_name_of_their_option(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"INDEX": files / "index", "OUT": tmp_path / "out"}
    names |= {name.upper(): files / f"{name}.jsonl" for name in ("lists", "pairs", "dialogues", "replies")}
    for line in OUT_OF_RANGE:
        words = [str(names.get(word, word)) for word in line.split()]
        assert f"Invalid value for '{words[-2]}'" in refusal(*words), line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"query": "a", "documents": 5}', 'field "documents" holds a number; write a list of texts'),
        (b'{"query": "a", "documents": ["b", 5]}', "at position 1; write texts, or objects with a text"),
        (b'{"query": "a"}', "candidates"),
        (b'{"documents": ["b"]}', "context"),
        (b'{"query": "\xff"}', "byte 12 of the line is not UTF-8; send UTF-8"),
        (b"[" + b"1," * 17_000_000 + b"1]", "bytes; split or shorten it"),
        (b"plain", "not JSON at character 1"),
    ],
)
def test_lines_to_rank_are_read_strictly(line: bytes, problem: str) -> None:
    result = invoke("rank", "bm25", stdin=b"\n" + line + b"\n")
    assert isinstance(result.exception, DataError)
    assert str(result.exception).startswith("stdin:2: ")
    assert problem in str(result.exception)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('["a", "b"', "broken JSON"),
        ("[" * 60_000 + '"a"', "nested too deeply; write a list of turns or plain text"),
        ("[]", "context"),
        ('{"context": 5}', "context"),
    ],
)
def test_lines_to_answer_are_read_strictly(files: Path, line: str, problem: str) -> None:
    result = invoke("respond", files / "index", "--device", "cpu", stdin=f"\ufeffhello\n\n{line}\n")
    assert isinstance(result.exception, DataError)
    assert problem in str(result.exception)
    assert str(result.exception).startswith("stdin:3: ")
    assert json.loads(result.stdout)["context"] == ["hello"]  # without the byte order mark


def test_feedback_trains_the_encoder_of_a_ranker_whatever_else_it_has(trained_bi: Path, tmp_path: Path) -> None:
    FeedbackStore(tmp_path / "kept.db").close()
    lexical, encoder = LexicalTerm(BM25().fit(REPLIES)), EncoderTerm(load_encoder(str(trained_bi)))
    for terms in ([lexical, encoder], [encoder, lexical]):
        polyrank.Ranker([(term, [1.0]) for term in terms]).save(tmp_path / "ranker", replace=True)
        said = refusal("feedback", "train", tmp_path / "kept.db", tmp_path / "ranker", "-o", tmp_path / "next")
        assert "kept.db: none of 0 requests yields an example" in said  # the model is accepted
    polyrank.Ranker([(lexical, [1.0])]).save(tmp_path / "ranker", replace=True)
    said = refusal("feedback", "train", tmp_path / "kept.db", tmp_path / "ranker", "-o", tmp_path / "next")
    assert "has no encoder that polyrank trained; give one, such as my-run/model" in said


@pytest.mark.parametrize("code", [130, 143])
def test_a_saved_interruption_is_not_called_an_error(code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert _fail("stopped and saved", code) == code
    assert capsys.readouterr().err == "stopped and saved\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("stream", ["__stdout__", "__stderr__"])
def test_output_that_cannot_be_written_is_discarded(stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, stream, full)
        full.write("lost")
        discard_partial_output()
        full.flush()  # does not fail again


def test_messages_name_a_commands_options_instead_of_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["polyrank", "mine", "data", "--seed", "1"])
    monkeypatch.setattr(arguments, "_options", {})
    arguments.take_options(typer.main.get_command(app))
    said = arguments.as_options("set `margin=0.5`, `n`, `overwrite=True` or `retriever`; `data` is not `limits`")
    assert said == "set --margin 0.5, -n, --overwrite or --from; DATA is not `limits`"


# --- output -----------------------------------------------------------------------------------------------------------


def test_documents_of_text_files_are_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("restart it\n\n  \nthe bill\n", "utf-8-sig")
    (tmp_path / "b.txt").write_text("my bill is high\nand the wifi\n", "utf-8")

    def ids(*files: Path) -> list[str]:
        result = invoke("rank", "bm25", "my bill", *files, "--json")
        assert result.exit_code == 0, result.exception
        return [row["id"] for row in json.loads(result.stdout)["results"]]

    found = ids(tmp_path / "a.txt")
    assert sorted(found) == ["1", "4"]
    assert found[0] == "4"
    assert ids(tmp_path / "a.txt", tmp_path / "b.txt")[0] == f"{tmp_path / 'b.txt'}:1"
    (tmp_path / "b.txt").write_bytes(b"ab\xff")
    said = refusal("rank", "bm25", "my bill", tmp_path / "a.txt", tmp_path / "b.txt")
    assert "byte 3 of the line is not UTF-8" in said


def test_verify_reports_whether_an_index_is_sound(files: Path, tmp_path: Path) -> None:
    copy = tmp_path / "i"
    assert invoke("index", "snapshot", files / "index", "-o", copy).exit_code == 0
    found = invoke("index", "verify", copy)
    assert (found.exit_code, found.stderr) == (0, f"{copy}: sound\n")
    info = json.loads(invoke("index", "info", copy).stdout)
    assert (info["n"], info["dimension"]) == (4, 32)
    block = next(path for path in sorted(copy.rglob("*")) if path.suffix not in (".db", ".lock", "") and path.is_file())
    block.write_bytes(block.read_bytes()[:-1])
    found = invoke("index", "verify", copy)
    assert isinstance(found.exception, ArtifactError)
    assert str(found.exception) == f"{copy} has {len(found.stderr.splitlines())} problem(s), listed above"


@pytest.mark.deep
def test_a_split_prints_counts_and_the_next_command(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "parts"
    result = invoke("split", files / "dialogues.jsonl", "-o", out, "--speaker", "agent", "--candidates", "3", "--json")
    assert result.exit_code == 0, result.exception
    counts = json.loads(result.stdout)
    assert (counts["by"], counts["speaker"], counts["n_candidates"], counts["n_repeated"]) == ("id", "agent", 3, 0)
    parts = ("train", "valid", "test")
    assert sum(counts[name]["n_conversations"] for name in parts) == 30
    for name in parts:
        lines = (out / f"{name}.jsonl").read_text().splitlines()
        assert counts[name]["times"] is None
        if name != "train":
            assert len(lines) == counts[name]["n_examples"]
            assert all(len(json.loads(line)["candidates"]) == 3 for line in lines)
    recipe = (out / "recipe.toml").read_text()
    assert 'speaker = "agent"' in recipe
    assert all(f'{name} = "{name}.jsonl"' in recipe for name in parts)
    assert f"wrote {out}; next: polyrank train {out / 'recipe.toml'}" in " ".join(result.stderr.split())
    same = invoke(
        "split", files / "dialogues.jsonl", "-o", tmp_path / "same", "--speaker", "agent", "--candidates", "3"
    )
    other = invoke(
        "split", files / "dialogues.jsonl", "-o", tmp_path / "other", "--speaker", "agent", "--candidates", "2",
        "--seed", "5", "--valid", "0.3",
    )  # fmt: skip
    assert other.exit_code == 0, other.exception
    texts = [(tmp_path / name / "valid.jsonl").read_text() for name in ("parts", "same", "other")]
    assert texts[0] == texts[1]
    assert texts[2].count("\n") > texts[0].count("\n")
    assert "random by id; each valid and test example has 3 candidates from its part" in " ".join(same.stdout.split())
    again = ("split", files / "dialogues.jsonl", "-o", out, "--speaker", "agent", "--candidates", "3")
    assert "already exists" in refusal(*again)
    assert invoke(*again, "--overwrite").exit_code == 0


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ("", [24, 3, 3]),
        ("--valid 0", [27, 0, 3]),
        ("--test 0", [27, 3, 0]),
        ("--valid 0.2 --test 0.4", [12, 6, 12]),
    ],
)
def test_a_split_has_the_requested_shares(shares: str, expected: list[int], tmp_path: Path) -> None:
    rows = [{"id": f"p{i}", "context": [f"where {i}"], "response": f"at {i}"} for i in range(30)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    made = invoke("split", tmp_path / "pairs.jsonl", "-o", tmp_path / "out", "--json", *shares.split())
    assert made.exit_code == 0, made.exception
    counts, recipe = json.loads(made.stdout), (tmp_path / "out" / "recipe.toml").read_text("utf-8")
    for name, n in zip(("train", "valid", "test"), expected, strict=True):
        assert counts[name]["n_conversations"] == n
        assert (f'{name} = "{name}.jsonl"' in recipe) == (n > 0)


def test_a_limit_of_mined_examples_does_not_hide_the_right_answers_of_the_others(tmp_path: Path) -> None:
    said = [("my wifi", "restart it"), ("my router", "reset it"), ("my light", "press it"), ("my wifi", "reset it")]
    rows = [{"context": [context], "response": response} for context, response in said]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    for limit in (2, 3, 4):
        out = tmp_path / f"{limit}.jsonl"
        made = invoke("mine", tmp_path / "pairs.jsonl", "--from", "bm25", "-o", out, "-n", "3", "--limit", str(limit))
        assert made.exit_code == 0, made.exception
        mined = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
        wrong = [{*row["candidates"]} - {row["candidates"][n] for n in row["relevant"]} for row in mined]
        assert wrong[0] == {"press it"} - ({"press it"} if limit == 2 else set())
        assert wrong[1] == {"restart it", "press it"} - ({"press it"} if limit == 2 else set())
        assert len(mined) == limit


def test_negatives_are_mined_from_the_ranks_and_by_the_seed(tmp_path: Path) -> None:
    """BM25 ranks the replies to each context by how many of its words they repeat."""
    words = ["wifi", "router", "light", "bill", "help"]
    rows = [{"context": [" ".join([*words, "please"])], "response": "restart it"}]
    rows += [{"context": [f"question {n}"], "response": " ".join(words[:n])} for n in range(1, 6)]
    rows += [{"context": [f"other {n}"], "response": f"answer {n}"} for n in range(50)]
    rows += [{"context": 3}]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    ranked = [" ".join(words[:n]) for n in (5, 4, 3, 2, 1)]

    out = tmp_path / "out.jsonl"
    command = ("mine", tmp_path / "pairs.jsonl", "--from", "bm25", "-o", out)
    assert "pairs.jsonl:57: " in refusal(*command)

    def mined(*options: str) -> list[str]:
        made = invoke(*command, "--overwrite", "--skip-bad", *options)
        assert made.exit_code == 0, made.exception
        row = json.loads(out.read_text("utf-8").splitlines()[0])
        assert (row["candidates"][0], row["relevant"]) == ("restart it", [0])
        return list(row["candidates"][1:])

    every = mined("-n", "99")
    assert (every[:5], len(every)) == (ranked, 50)  # the ranks are 1 to 50 by default
    for first, last in ((1, 1), (2, 2), (1, 3), (2, 3), (4, 5)):
        assert mined("-n", "5", "--ranks", f"{first}:{last}") == ranked[first - 1 : last]
    drawn = [mined("-n", "2", "--ranks", "1:4", "--seed", str(seed)) for seed in range(6)]
    assert all(texts == [text for text in ranked[:4] if text in texts] and len(texts) == 2 for texts in drawn)
    assert len({*map(tuple, drawn)}) > 1
    assert mined("-n", "2", "--ranks", "1:4") == drawn[0] == mined("-n", "2", "--ranks", "1:4", "--seed", "0")


def test_frequent_replies_become_a_catalogue(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "replies.jsonl"
    arguments = ("import", "replies", files / "dialogues.jsonl", "--from-dialogues", "--speaker", "agent")
    result = invoke(*arguments, "-o", out)
    assert result.exit_code == 0, result.exception
    said = " ".join(result.stderr.split())
    assert f"{files / 'dialogues.jsonl'}: 30 rows, 30 examples" in said
    assert f"wrote {out}: 3 replies; next: polyrank index build MODEL {out} -o INDEX" in said
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(row["text"] for row in rows) == sorted(REPLIES[:3])
    assert invoke(*arguments, "-o", out, "--overwrite", "--top", "2").exit_code == 0
    assert len(out.read_text().splitlines()) == 2
    assert isinstance(invoke(*arguments, "-o", out, "--overwrite", "--min-count", "11").exception, DataError)


def test_an_answer_reports_its_search(files: Path) -> None:
    result = invoke("respond", files / "index", "hi", "my wifi", "-k", "2", "--filter", "n >= 1", "--device", "cpu")
    assert result.exit_code == 0, result.exception
    row = json.loads(result.stdout)
    assert row["context"] == ["hi", "my wifi"]
    assert len(row["results"]) == 2
    assert all(set(reply) == {"id", "text", "score", "metadata"} for reply in row["results"])
    assert all(reply["metadata"]["n"] >= 1 for reply in row["results"])
    assert row["exact"] is True
    assert row["n_scored"] >= 2
    assert row["ways"]
    assert "confidence" not in row
    listed = invoke("respond", files / "index", stdin='["hi", "my wifi"]\n')
    assert (
        json.loads(listed.stdout)["results"][0]["id"]
        == json.loads(invoke("respond", files / "index", "hi", "my wifi").stdout)["results"][0]["id"]
    )


def test_commands_of_one_process_refuse_torchrun(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    for command in (
        "respond INDEX hi",
        "index list INDEX",
        "index add INDEX x",
        "bench profile",
        "fit x -o y",
        "info x",
    ):
        words = [str(files / "index") if word == "INDEX" else word for word in command.split()]
        name = words[1] if words[0] == "index" else words[0]
        assert refusal(*words).startswith(f"{name} runs in one process, and 2 were started; start it without torchrun")


@pytest.mark.parametrize("command", ["pretrain", "train", "evaluate", "mine", "index", "build"])
def test_only_rank_0_prints_results(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("WORLD_SIZE", "3")):
        monkeypatch.setenv(name, value)
    printed = []
    for rank in ("0", "1", "2"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("LOCAL_RANK", rank)
        monkeypatch.setattr(sys, "stdout", stream := io.StringIO())
        silence_other_ranks(SimpleNamespace(invoked_subcommand=command))  # type: ignore[arg-type]  # it reads only this
        print("results")
        printed.append(stream.getvalue())
        if sys.stdout is not stream:
            sys.stdout.close()
    assert printed == ["results\n", "", ""]


def test_distributed_messages_name_their_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyrank.cli.console import print_error

    said: list[str] = []
    for rank in ("0", "1"):
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("WORLD_SIZE", "3")
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("LOCAL_RANK", rank)
        monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
        print_error("it went wrong [here]")
        said.append(stream.getvalue())
    assert said == ["it went wrong [here]\n", "process 2 of 3: it went wrong [here]\n"]


class Terminal(io.StringIO):
    """Decodes each line when it has been typed."""

    def __init__(self, lines: list[bytes]) -> None:
        super().__init__()
        self.lines = lines

    def readline(self, size: int | None = -1, /) -> str:
        return self.lines.pop(0).decode() if self.lines else ""


def asked_in_a_chat(index: Path) -> list[list[str]]:
    """The contexts of a chat whose turns are read from stdin."""
    asked: list[list[str]] = []
    with polyrank.open(index, device="cpu") as replies:

        def answer(turns: list[str]) -> Any:
            asked.append(turns)
            return replies.answer(turns, 2)

        _chat(answer)
    return asked


def test_a_line_that_is_not_utf_8_does_not_end_a_chat(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal([b"caf\xe9\n", b"my wifi\n"]))
    assert asked_in_a_chat(files / "index") == [["my wifi"]]
    said = capsys.readouterr()
    assert "that line is not UTF-8; type it again" in said.out + said.err


def test_a_chat_marks_the_best_reply_and_goes_on_from_it(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with polyrank.open(files / "index", device="cpu") as replies:
        best = [reply.text for reply in replies.answer(["my wifi"], 2).ranked]
    monkeypatch.setattr(sys, "stdin", io.StringIO("my wifi\nagain\n/new\nhi\n/quit\nnever read\n"))
    assert asked_in_a_chat(files / "index") == [["my wifi"], ["my wifi", best[0], "again"], ["hi"]]
    lines = [line for line in capsys.readouterr().out.splitlines() if any(text in line for text in REPLIES)]
    assert len(lines) == 6
    assert [line.endswith(f"→ {best[0]}") for line in lines[:2]] == [True, False]
    assert lines[1].endswith(f"  {best[1]}")
    assert ["→" in line for line in lines] == [True, False] * 3


@pytest.mark.parametrize("end", ["/quit", "/exit"])
def test_a_chat_starts_again_and_ends(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def answer(turns: list[str]) -> Any:
        asked.append(turns)
        return Answer((Ranked("a", "yes", 1.5),), None, False)

    spoken = ["one", "", "two", "  ", "three", "/new", "/etc/hosts is gone", "/wrong", "four", end, "never read"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(spoken)))
    _chat(answer)
    assert asked == [["one"], ["two"], ["three"], ["/etc/hosts is gone"], ["/etc/hosts is gone", "yes", "four"]]


def test_the_module_is_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []  # the program itself would keep its handlers of signals
    monkeypatch.setattr("polyrank.cli.program", lambda: called.append("program"))
    runpy.run_module("polyrank", run_name="__main__")
    assert called == ["program"]


# --- names of models --------------------------------------------------------------------------------------------------

NAMING = (
    "info MODEL --json",
    "evaluate MODEL LISTS",
    "rank MODEL hi REPLIES",
    "explain MODEL hi --reply thanks",
    "tune MODEL --valid LISTS -o OUT --without counts --without cross",
    "mine PAIRS --from MODEL -o OUT --ranks 1:2",
    "index build MODEL REPLIES -o OUT",
    "bench respond MODEL -n 4",
    "intents train INTENTS --encoder MODEL -o OUT",
)


@pytest.mark.parametrize(
    "command", [pytest.param(one, marks=pytest.mark.deep if number else ()) for number, one in enumerate(NAMING)]
)
def test_every_command_takes_every_name_of_a_model(
    files: Path, trained_bi: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """A folder, a name with a setting, one that ships, and one of the Hub, of which a copy is here."""
    from huggingface_hub import constants

    cache = tmp_path / "hub" / "models--somebody--a-model"
    shutil.copytree(trained_bi, cache / "snapshots" / "abc")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc", "utf-8")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "intents.csv").write_text(
        "text,intent\n" + "".join(f"my {word} {n},{word}\n" for n in range(20) for word in ("wifi", "bill")), "utf-8"
    )
    known = {name.upper(): files / f"{name}.jsonl" for name in ("lists", "pairs", "replies")}
    names = (
        trained_bi,
        f"{trained_bi}#truncate_dim=8",
        f"untuned:{tiny_backbone}#truncate_dim=8",
        "hf:somebody/a-model#truncate_dim=8",
        "somebody/a-model",
        "shipped:convert",
    )
    end = ".jsonl" if command.startswith("mine") else ""
    for number, model in enumerate(names):
        words = {**known, "INTENTS": tmp_path / "intents.csv", "OUT": tmp_path / f"{number}{end}", "MODEL": model}
        result = invoke(*(words.get(word, word) for word in command.split()))
        assert result.exit_code == 0, (model, result.exception, result.stderr)


def test_an_export_holds_whole_vectors(trained_bi: Path, tmp_path: Path) -> None:
    message = refusal("export", f"{trained_bi}#truncate_dim=8", "--to", "sentence-transformers", "-o", tmp_path / "x")
    assert message == "an export holds whole vectors; leave #truncate_dim=8 out, and cut what it gives"


@pytest.mark.parametrize("name", ["a", "runs/lr=1e-3/model", "=", "a=b=c"])
@pytest.mark.parametrize("value", ["0.5", "-2", "1e-3"])
def test_weights_of_terms_may_be_of_paths_with_an_equals_sign(name: str, value: str) -> None:
    assert _weights([f"{name}={value}", "counts=7"]) == {name: float(value), "counts": 7.0}


@pytest.mark.parametrize("argument", ["counts", "counts=", "=1", "counts=x", "", "1"])
def test_a_weight_that_is_none_is_shown(argument: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--weight {argument!r} is not TERM=WEIGHT")):
        _weights(["a=1", argument, "b=2"])


def test_each_training_has_its_own_speed() -> None:
    display = TrainingDisplay()
    reports = [(0, 100, 1.0), (1, 500, 2.0), (0, 300, 2.0), (1, 900, 3.0), (0, 700, 4.0)]
    shown = [display._speed(run, {"n_examples": n, "seconds": seconds}) for run, n, seconds in reports]
    assert shown == [f"{speed} examples/s" for speed in (100, 250, 200, 400, 200)]


def test_the_sizes_of_a_model_are_those_of_its_parts(trained_bi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [TensorGroup("one", 2_000_000, 2_500_000, ("int8", "fp32")), TensorGroup("two", 30_000, 60_000, ("fp16",))]
    monkeypatch.setattr("polyrank.models.artifacts.read_sizes", lambda folder: parts)
    shown = json.loads(invoke("info", trained_bi, "--json").stdout)
    assert [shown[name] for name in ("n_parameters", "n_bytes", "n_bytes_fp32")] == [2_030_000, 2_560_000, 8_120_000]
    assert [(part["name"], part["n_parameters"]) for part in shown["parts"]] == [("one", 2_000_000), ("two", 30_000)]
    cut = json.loads(invoke("info", f"{trained_bi}#truncate_dim=8", "--json").stdout)
    assert cut == {**shown, "fingerprint": polyrank.load(f"{trained_bi}#truncate_dim=8", device="cpu").fingerprint}
    assert cut["fingerprint"] != shown["fingerprint"] == load_model(trained_bi).fingerprint
    lines = [re.findall(r"[^\s│]+", line) for line in invoke("info", trained_bi).stdout.splitlines()]
    assert [line for line in lines if line[0] in ("one", "two", "all")] == [
        ["one", "int8,", "fp32", "2,000,000", "2.50", "8.00", "3.2"],
        ["two", "fp16", "30,000", "0.06", "0.12", "2.0"],
        ["all", "2,030,000", "2.56", "8.12", "3.2"],
    ]
