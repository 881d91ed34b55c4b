"""A prior over the replies of an index: score + weight * log(1 + count) in every retriever, and counts that change."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polyrank.answering.calibration import choose_prior, choose_settings
from polyrank.answering.pipeline import Pipeline, make_retriever
from typer.testing import CliRunner

import polyrank
from polyrank.answering.build import add_to_index, build_index, update_counts
from polyrank.answering.explain import explain
from polyrank.answering.protocol import Answering
from polyrank.answering.retrievers import LexicalRetriever, Retriever
from polyrank.answering.two_stage import TwoStage
from polyrank.cli.commands import app
from polyrank.config.pipeline import PipelineConfig
from polyrank.errors import ConfigError, DataError
from polyrank.feedback import FeedbackStore, Outcome, Reply, Shown
from polyrank.index import LocalWriter, as_filter, open_index
from polyrank.records import Candidate, Example, Ranked
from polyrank.scorers.lexical import BM25
from polyrank.scorers.open import load_encoder
from polyrank.scorers.protocols import Encoder
from polyrank.storage.quantized import Precision

TEXTS = ["restart the router", "the bill is too high", "thanks", "did that", "the light is red", "wifi is down", "hi"]
COUNTS: list[Any] = [3, 700, 12.5, "41", None, True, "many"]
NUMBERS = [3, 700, 12.5, 41, 0, 0, 0]
POOL = [
    Candidate(f"r{i}", text, {"even": i % 2 == 0} | ({} if count is None else {"count": count}))
    for i, (text, count) in enumerate(zip(TEXTS, COUNTS, strict=True))
]
CONTEXTS = ["my wifi is down please", ["hello", "router light red"]]


def scores_of(answering: Answering, k: int = 99, **options: Any) -> list[dict[str, float]]:
    return [{reply.id: reply.score for reply in row} for row in answering.respond(CONTEXTS, k, **options)]


def by_hand(without: dict[str, float], weight: float, counts: Sequence[float] = NUMBERS) -> list[tuple[str, float]]:
    """Ids and scores, best first, ties in the order of the catalogue."""
    total = {id_: np.float32(score + weight * np.log1p(counts[int(id_[1:])])) for id_, score in without.items()}
    return [(id_, pytest.approx(float(total[id_]), abs=1e-5)) for id_ in sorted(total, key=lambda i: (-total[i], i))]


@pytest.mark.parametrize("kind", ["bi", "poly", "bm25"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_replies_rank_by_score_plus_weighted_log_count(
    kind: str, precision: Precision, tiny_encoders: dict[str, Path], tmp_path: Path
) -> None:
    build_index(tmp_path / "index", str(tiny_encoders.get(kind, tiny_encoders["bi"])), POOL, precision=precision)

    def opened(weight: float) -> Answering:
        index = open_index(tmp_path / "index")
        if kind == "bm25":
            return LexicalRetriever(BM25(), index, prior=weight)
        return Retriever(load_encoder(tiny_encoders[kind]), index, prior=weight)

    with opened(0.0) as plain, opened(0.25) as weighted:
        for options in ({}, {"filter": "even = true"}):
            for k in (2, 99):
                want = [by_hand(row, 0.25)[:k] for row in scores_of(plain, **options)]
                assert [list(row.items()) for row in scores_of(weighted, k, **options)] == want
        weighted.prior = 0.0
        assert scores_of(weighted) == scores_of(plain)
        weighted.prior = 0.25
        # the index changes while it is open
        pipeline = Pipeline(weighted, open_encoder=lambda _: load_encoder(tiny_encoders.get(kind, tiny_encoders["bi"])))
        pipeline.remove(["r1"])
        pipeline.replace([Candidate("r2", TEXTS[2], {"count": 4, "even": True})])
        pipeline.add([Candidate("r7", "please restart it", {"count": 9000, "even": True})])
        counts = [*NUMBERS, 9000]
        counts[2] = 4
        for options in ({}, {"filter": "even = true"}):
            expected = [by_hand(row, 0.25, counts) for row in scores_of(plain, **options)]
            found = [list(row.items()) for row in scores_of(weighted, **options)]
            assert [sorted(row, key=lambda one: one[0]) for row in found] == [
                sorted(row, key=lambda one: one[0]) for row in expected
            ]
            assert [[id_ for id_, _ in row][:3] for row in found] == [[id_ for id_, _ in row][:3] for row in expected]
        pipeline.close()


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=30), st.floats(0.01, 100), st.integers(1, 9))
def test_any_counts_and_weight(counts: list[int], weight: float, k: int) -> None:
    pool = [Candidate(f"r{i}", f"wifi {'x ' * (i % 5)}{i}", {"count": count}) for i, count in enumerate(counts)]
    plain, weighted = (LexicalRetriever(BM25(), pool, prior=prior) for prior in (0.0, weight))
    totals = {
        reply.id: reply.score + weight * np.log1p(counts[int(reply.id[1:])])
        for reply in plain.answer("wifi", 99).ranked
    }
    want = sorted(totals.values(), reverse=True)[:k]
    assert [reply.score for reply in weighted.answer("wifi", k).ranked] == pytest.approx(want, rel=1e-5)


def test_without_a_weight_scores_are_unchanged(tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    without = [Candidate(one.id, one.text) for one in POOL]
    for name, pool in (("counted", POOL), ("plain", without)):
        build_index(tmp_path / name, str(tiny_encoders["poly"]), pool)
    counted, plain = (make_retriever(PipelineConfig(index=str(tmp_path / name))) for name in ("counted", "plain"))
    assert scores_of(counted) == scores_of(plain)


def test_approximate_search_shortlists_frequent_replies(tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    pool = [Candidate(f"r{i}", f"{'wifi ' * (i % 7)}{i}", {"count": 10**6 if i == 777 else 1}) for i in range(1000)]
    build_index(tmp_path / "index", str(tiny_encoders["bi"]), pool, ann="flat")
    config = PipelineConfig(index=str(tmp_path / "index"), mode="approximate", prior=100.0)
    with make_retriever(config) as retriever:
        answer = retriever.answer("wifi")
        assert answer.ranked[0].id == "r777"
        assert answer.ways == ("shortlist",)


def test_the_reranker_gets_the_shortlist_with_the_prior(tmp_path: Path) -> None:
    lexical = LexicalRetriever(BM25(), POOL, prior=5.0)
    stages = TwoStage(lexical, BM25().fit(TEXTS), n_retrieved=2, ensemble="raw")
    ranked = stages.answer("wifi down", 9).ranked
    assert {reply.id for reply in ranked} == {"r1", "r3"}
    assert all(reply.stages["retriever"] >= 5 * np.log1p(41) - 1e-4 for reply in ranked)


@pytest.mark.parametrize("retriever", ["dense", "bm25"])
def test_the_count_has_its_own_share(retriever: Any, tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    build_index(tmp_path / "index", str(tiny_encoders["bi"]), POOL)
    config = PipelineConfig(index=str(tmp_path / "index"), retriever=retriever, prior=0.5)
    with Pipeline(make_retriever(config)) as pipeline:
        for id_, count in (("r1", 700), ("r4", 0)):
            why = pipeline.explain(CONTEXTS[1], candidate_id=id_)
            own, share = why.parts.values()
            assert (share.method, share.score) == ("count of replies", pytest.approx(np.log1p(count)))
            score = next(row[id_] for row in scores_of(pipeline)[1:])
            assert why.score == pytest.approx(own.score + 0.5 * share.score) == pytest.approx(score, abs=1e-5)
            assert why.rest + sum(turn.share for turn in why.turns) == pytest.approx(why.score, abs=1e-4)
        assert pipeline.explain("hi", "never said").parts["2 count"].score == 0
        second = TwoStage(pipeline.retriever, BM25().fit(TEXTS), n_retrieved=3, ensemble="raw")
        assert explain(second, "wifi down", "wifi is down").parts["retriever"].parts["2 count"].method == share.method


def test_equal_texts_have_the_largest_count(tmp_path: Path) -> None:
    pool = [Candidate("a", "hi", {"count": 2}), Candidate("b", "hi", {"count": 5}), Candidate("c", "hi there")]
    listed = LexicalRetriever(BM25(), pool, prior=1.0)
    assert listed.count("hi") == 5
    assert listed.answer("x").ranked[0].id == "b"


class _Refusing(Encoder):
    """An encoder that must not be called."""

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint

    def encode_candidates(self, candidates: Sequence[str]) -> Any:
        assert not candidates, "a text was encoded again"
        return np.empty((0, 32), np.float32)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_counts_change_without_encoding(precision: Precision, tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    model, index = tmp_path / "model", tmp_path / "index"
    shutil.copytree(tiny_encoders["bi"], model)
    build_index(index, str(model), POOL, precision=precision)
    with open_index(index) as opened:
        vectors, fingerprint = opened.vectors([one.id for one in POOL]), opened.fingerprint
    replies = tmp_path / "replies.jsonl"
    rows = [{"text": TEXTS[1], "count": 5}, {"text": TEXTS[4], "count": 8}, {"text": TEXTS[0], "count": 3}]
    replies.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"text": "not there", "count": 9}]), "utf-8")
    shutil.rmtree(model)
    result = CliRunner().invoke(app, ["index", "update-counts", str(index), str(replies)])
    assert result.exit_code == 0, result.output
    with open_index(index) as opened:
        now = {one.id: one for _, one in opened.iter_candidates()}
        assert {id_: one.metadata.get("count") for id_, one in now.items()} == {
            "r0": 3, "r1": 5, "r2": 12.5, "r3": "41", "r4": 8, "r5": True, "r6": "many",
        }  # fmt: skip
        assert all(now[one.id].metadata["even"] == one.metadata["even"] for one in POOL)
        for id_, vector in opened.vectors(list(vectors)).items():
            np.testing.assert_array_equal(vector, vectors[id_])
    assert polyrank.index.verify_index(index) == []
    assert update_counts(index, {TEXTS[1]: 5}) == 0
    # metadata alone, replaced by the general way
    with LocalWriter(index) as writer:
        changed = [Candidate(one.id, one.text, {"count": 1}) for one in POOL]
        assert add_to_index(writer, _Refusing(fingerprint), changed, replace=True) == len(POOL)  # type: ignore[arg-type]
    with open_index(index) as opened:
        assert opened.candidate("r6").metadata == {"count": 1}
        for id_, vector in opened.vectors(list(vectors)).items():
            np.testing.assert_array_equal(vector, vectors[id_])


def test_replies_that_users_sent_count_too(tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    index, feedback, replies = (tmp_path / name for name in ("index", "feedback.db", "replies.jsonl"))
    build_index(index, str(tiny_encoders["bi"]), POOL)
    replies.write_text(json.dumps({"text": TEXTS[0], "count": 3}) + "\n", "utf-8")
    actions = [
        ("taken", "r0"),
        ("taken", "r4"),
        ("taken", "r4"),
        ("edited", "r6"),
        ("refused", None),
        ("taken", "gone"),
    ]
    with FeedbackStore(feedback) as store:
        for number, (action, reply) in enumerate(actions):
            shown = Shown(f"q{number}", tuple(map(Reply, ("r0", "r4", "r6", "gone"))))
            store.record(shown, Outcome(shown.request_id, action, reply))  # type: ignore[arg-type]  # a Literal
    line = ["index", "update-counts", str(index), str(replies), "--feedback", str(feedback)]
    for changed in (2, 0):  # the second time nothing changes: counts are set, not added to
        result = CliRunner().invoke(app, line)
        assert result.exit_code == 0, result.output
        assert f"updated the counts of {changed} candidates" in result.output
    before = {one.id: one.metadata.get("count") for one in POOL}
    with open_index(index) as opened:
        now = {one.id: one.metadata.get("count") for _, one in opened.iter_candidates()}
    assert now == before | {"r0": 4, "r4": 2}
    replies.write_text("".join(json.dumps({"id": one.id, "text": one.text}) + "\n" for one in POOL), "utf-8")
    assert "no field `count`" in str(CliRunner().invoke(app, line[:-2]).exception)
    assert CliRunner().invoke(app, line).exit_code == 0
    with open_index(index) as opened:
        counts = {one.id: one.metadata.get("count") or 0 for _, one in opened.iter_candidates()}
    assert {name: count for name, count in counts.items() if count} == {"r0": 1, "r4": 2}  # those that users sent


def test_a_long_update_comes_in_parts(
    tiny_encoders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(tmp_path / "index", str(tiny_encoders["bi"]), POOL)
    monkeypatch.setattr("polyrank.answering.build.ROWS_AT_A_TIME", 2)
    assert update_counts(tmp_path / "index", dict.fromkeys(TEXTS, 6)) == len(POOL)
    with open_index(tmp_path / "index") as opened:
        assert {one.metadata["count"] for _, one in opened.iter_candidates()} == {6}


WORDS = ["wifi", "bill", "router", "light"]


def lists(right: Callable[[int], str]) -> list[Example]:
    return [Example((f"my {WORDS[i % 4]} x{i}",), (right(i),), (0,)) for i in range(40)]


@pytest.fixture
def counted(tiny_encoders: dict[str, Path], tmp_path: Path) -> Path:
    """Two replies per word with equal BM25 scores; the second one is frequent."""
    pool = [Candidate(f"{word} {n}", f"{word} {n}", {"count": n}) for word in WORDS for n in (1, 500)]
    build_index(tmp_path / "index", str(tiny_encoders["bi"]), pool)
    return tmp_path / "index"


def test_a_weight_is_chosen_where_it_helps(counted: Path) -> None:
    config = PipelineConfig(index=str(counted), retriever="bm25")
    examples = lists(lambda i: f"{WORDS[i % 4]} 500")
    tuned, seen = choose_prior(config, examples)
    assert tuned.prior == seen["best"] > 0
    assert seen["with"] == {"R@1": 1.0, "MRR": 1.0}
    assert seen["without"] == {"R@1": 0.0, "MRR": 0.5}
    assert (seen["gain"]["mean"], seen["n_counted"], seen["n_examples"]) == (0.5, 8, 40)
    assert len(seen["weights"]) == 8
    whole, tuning = choose_settings(config, examples, prior="auto", precision=0.9)
    assert (whole.prior, tuning["prior"]) == (tuned.prior, seen)
    assert tuning["chosen"]["precision"] == 1.0


def test_the_weight_stays_0_if_counts_do_not_help(counted: Path) -> None:
    config = PipelineConfig(index=str(counted), retriever="bm25")
    for right in (lambda i: f"{WORDS[i % 4]} 1", lambda i: f"{WORDS[i % 4]} {(1, 500)[i // 4 % 2]}"):
        tuned, seen = choose_prior(config, lists(right))
        assert tuned.prior == 0.0
        assert seen["gain"]["low"] <= 0
    assert seen["weights"]["0"] == seen["without"]["MRR"]


def in_dialogues(*dialogues: tuple[int, int]) -> list[Example]:
    """Dialogues of ``n`` examples each, whose right answers are replies with a certain count: 500 or 1."""
    return [
        Example((f"my {WORDS[i % 4]}",), (f"{WORDS[i % 4]} {count}",), (0,), id=f"dialogue {number}#{i}")
        for number, (count, n) in enumerate(dialogues)
        for i in range(n)
    ]


@pytest.mark.parametrize(
    "examples",
    [
        # in either half one dialogue gains and one loses, and four dialogues are few
        in_dialogues((500, 30), (500, 30), (1, 10), (1, 10)),
        # the weight that the even dialogues choose makes the odd ones worse
        in_dialogues(*[(500, 4), (1, 1)] * 20),
    ],
    ids=["few", "different"],
)
def test_the_gain_is_measured_by_dialogue(counted: Path, examples: list[Example]) -> None:
    config = PipelineConfig(index=str(counted), retriever="bm25")
    alone = [dataclasses.replace(one, id=str(i)) for i, one in enumerate(examples)]
    assert choose_prior(config, alone)[0].prior > 0  # examples that look independent are convincing
    assert choose_prior(config, examples)[0].prior == 0


def test_weights_that_cannot_be_chosen_are_refused(tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    build_index(tmp_path / "plain", str(tiny_encoders["bi"]), ["hi"])
    with pytest.raises(DataError, match="has a field 'count'"):
        choose_prior(PipelineConfig(index=str(tmp_path / "plain")), lists(lambda i: "hi"))
    with pytest.raises(ConfigError, match="prior"):
        PipelineConfig(index="x", prior=-1.0)


def test_from_the_command_line(counted: Path, tmp_path: Path) -> None:
    valid = tmp_path / "valid.jsonl"
    examples = lists(lambda i: f"{WORDS[i % 4]} 500")
    rows = [{"context": list(one.context), "response": one.candidates[0]} for one in examples]
    valid.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")

    def run(*arguments: str) -> Any:
        given = ["pipeline", "create", str(counted), "-o", str(tmp_path / "p"), "--retriever", "bm25", "--overwrite"]
        return CliRunner().invoke(app, [*given, *arguments])

    result = run("--prior", "auto", "--valid", str(valid))
    assert result.exit_code == 0, result.output
    with polyrank.open(tmp_path / "p") as pipeline:
        best: Ranked = pipeline.answer("my wifi").ranked[0]
        assert best.text == "wifi 500"
        assert pipeline.retriever.prior > 0
    assert run("--prior", "0.5").exit_code == 0
    with polyrank.open(tmp_path / "p") as pipeline:
        assert pipeline.retriever.prior == 0.5
    valid.write_text("".join(json.dumps(row) + "\n" for row in rows[:3]), "utf-8")
    few = run("--prior", "auto", "--valid", str(valid))
    assert "prior 0, because only 3 validation examples have a right answer in the index" in few.output
    with polyrank.open(tmp_path / "p") as pipeline:
        assert pipeline.retriever.prior == 0
    assert isinstance(run("--prior", "auto").exception, ConfigError)
    assert "give 0 or more, or auto" in str(run("--prior", "much").exception)
    assert isinstance(run("--prior", "-1").exception, ConfigError)


def test_an_explanation_takes_the_count_of_candidates_that_pass(tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    pool = [Candidate(f"r{n}", "thanks", {"lang": lang, "count": n}) for n, lang in ((2, "en"), (1000, "de"))]
    long = Candidate("long", "wifi " * 12_000, {"lang": "en", "count": 5})
    build_index(tmp_path / "index", str(tiny_encoders["bi"]), [*pool, long])
    with open_index(tmp_path / "index") as index:
        for retriever in (
            Retriever(load_encoder(tiny_encoders["bi"]), index, prior=0.5),
            LexicalRetriever(BM25(), index, prior=0.5),
            LexicalRetriever(BM25(), [*pool, long], prior=0.5),
        ):
            for filter, count in (('lang = "en"', 2), (None, 1000)):
                (best,) = retriever.respond([["thanks"]], 9, filter=filter, allow_echo=True)
                explanation = explain(retriever, ["thanks"], "thanks", filter=filter)
                scores = [reply.score for reply in best if reply.text == "thanks"]
                assert explanation.score == pytest.approx(scores[0], abs=1e-4)
                assert retriever.count("thanks", as_filter(filter)) == count
            assert retriever.count(long.text) == 5
