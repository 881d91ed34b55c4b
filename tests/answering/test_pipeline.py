"""The pipeline folder: settings chosen on validation examples, saved, and loaded from one path."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from polyrank.answering.calibration import choose_settings, curve_of, is_right, outcomes, try_threshold
from polyrank.answering.pipeline import (
    PIPELINE,
    Pipeline,
    catalogue,
    make_retriever,
    open_pipeline,
    read_mode,
    write_pipeline,
)
from polyrank.loading.answering import read_pipeline

from polyrank.answering.build import build_index
from polyrank.answering.retrievers import LexicalRetriever, Retriever
from polyrank.answering.two_stage import TwoStage
from polyrank.cli.answering import respond as respond_command
from polyrank.cli.explaining import explain as explain_command
from polyrank.cli.mining import mine as mine_command
from polyrank.config.checked import from_dict
from polyrank.config.models import BiConfig, CrossConfig, TextPolicy
from polyrank.config.pipeline import PipelineConfig
from polyrank.errors import ArtifactError, ConfigError, DataError, PolyrankError, UsageError
from polyrank.evaluation import plot_coverage
from polyrank.loading import resolve_ranker
from polyrank.loading.folders import INDEX_FILE
from polyrank.models import new_model
from polyrank.models.artifacts import save_model
from polyrank.ranking.abstention import Abstention, area, calibrate
from polyrank.ranking.ensembles import SCALES, Ensemble
from polyrank.records import Candidate, Context, Example, Ranked
from polyrank.scorers.lexical import BM25, TfIdf, corpus_of
from polyrank.scorers.open import load_encoder, open_ranker
from polyrank.storage.document import read_document, seal
from processes import files_open_in

REPLIES = ["restart the router", "the bill is too high", "thanks", "did that", "the light is red", "wifi is down"]
POOL = [Candidate(f"r{i}", text) for i, text in enumerate(REPLIES)]
CONTEXTS = [Context(("my wifi is down",)), Context(("hi", "router light red?"))]


@pytest.fixture(scope="module")
def models(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A Bi- and a Cross-encoder with random weights, and an index by the Bi-encoder."""
    folder = tmp_path_factory.mktemp("models")
    policy = TextPolicy(max_context_tokens=24, max_candidate_tokens=12)
    configs = {"bi": BiConfig(backbone=str(tiny_backbone)), "cross": CrossConfig(backbone=str(tiny_backbone))}
    for name, config in configs.items():
        model, texts, resolved = new_model(config, policy, seed=1, sample=REPLIES)  # type: ignore[arg-type]
        save_model(folder / name, model, texts, resolved)
    build_index(folder / "index", load_encoder(folder / "bi"), POOL, model=str(folder / "bi"))
    return {name: folder / name for name in ("bi", "cross", "index")}


def test_a_reloaded_pipeline_answers_equally(models: dict[str, Path], tmp_path: Path) -> None:
    config = PipelineConfig(
        index=str(models["index"]), reranker=str(models["cross"]), n_retrieved=4, ensemble="z-score",
        measure="margin", threshold=0.0,
    )  # fmt: skip
    write_pipeline(tmp_path / "p", config)
    known, _ = read_pipeline(tmp_path / "p")
    assert replace(known, index="", reranker="") == replace(config, index="", reranker="")
    found = open_pipeline(tmp_path / "p")
    assert isinstance(found.retriever, TwoStage)
    assert found.respond(CONTEXTS, 3) == make_retriever(config).respond(CONTEXTS, 3)
    for answer, ranked in zip(found.answer_all(CONTEXTS, 3), found.respond(CONTEXTS, 3), strict=True):
        assert list(answer.ranked) == ranked
        assert not answer.abstained
        assert answer.confidence is not None
        assert all(set(reply.stages) == {"retriever", "reranker"} for reply in ranked)


def test_a_pipeline_can_be_moved_with_its_index_and_models(models: dict[str, Path], tmp_path: Path) -> None:
    import shutil

    home = tmp_path / "home"
    home.mkdir()
    shutil.copytree(models["index"], home / "index")
    shutil.copytree(models["bi"], home / "bi")
    write_pipeline(home / "p", PipelineConfig(index=str(home / "index"), model=str(home / "bi")))
    want = open_pipeline(home / "p").respond(CONTEXTS, 2)
    home.rename(tmp_path / "moved")
    assert open_pipeline(tmp_path / "moved" / "p").respond(CONTEXTS, 2) == want


def test_an_index_is_a_pipeline_of_one_stage(models: dict[str, Path]) -> None:
    answers = open_pipeline(models["index"]).answer_all(CONTEXTS, 2)
    assert [len(answer.ranked) for answer in answers] == [2, 2]
    assert [(answer.confidence, answer.abstained) for answer in answers] == [(None, False)] * 2


def test_a_strict_threshold_abstains_and_still_shows_the_nearest(models: dict[str, Path], tmp_path: Path) -> None:
    config = PipelineConfig(index=str(models["index"]), retriever="bm25", measure="score", threshold=0.5)
    write_pipeline(tmp_path / "p", config)
    sure, lost = open_pipeline(tmp_path / "p").answer_all([Context(("the bill is high",)), Context(("zebra",))], 2)
    assert sure.ranked[0].text == "the bill is too high"
    assert not sure.abstained
    assert lost.abstained
    assert len(lost.ranked) == 2
    assert lost.confidence == 0


def examples() -> list[Example]:
    """Half of the contexts repeat the right reply's words, half are unrelated to any reply."""
    good = [Example((f"{text} please",), relevant_ids=(f"r{i}",)) for i, text in enumerate(REPLIES)]
    by_text = [Example((f"well {text}",), (text,), (0,)) for text in REPLIES]
    return [*good, *by_text, *(Example((f"zebra {i}",)) for i in range(12))]


def test_threshold_and_ensemble_are_chosen_on_examples(models: dict[str, Path], tmp_path: Path) -> None:
    config = PipelineConfig(index=str(models["index"]), retriever="bm25")
    tuned, seen = choose_settings(config, examples(), precision=1.0)
    assert seen["chosen"]["precision"] == 1.0
    assert seen["chosen"]["coverage"] == 0.5  # exactly the answerable ones
    pipeline = Pipeline(make_retriever(tuned))
    assert pipeline.abstention is None
    write_pipeline(tmp_path / "p", tuned, seen)
    answers = open_pipeline(tmp_path / "p").answer_all([e.query for e in examples()], 1)
    assert [answer.abstained for answer in answers] == [False] * 12 + [True] * 12
    assert curve_of(read_pipeline(tmp_path / "p")[1])[-1].coverage == 1.0
    plot_coverage({"bm25": curve_of(seen)}, tmp_path / "curve.svg")
    assert (tmp_path / "curve.svg").stat().st_size > 1000

    both = replace(config, reranker=str(models["cross"]), n_retrieved=6)
    tuned, seen = choose_settings(both, examples(), ensemble="auto")
    assert {"none", *SCALES} <= set(seen["ensembles"]) <= {"none", "weight", *SCALES}
    stages = seen["stages"]
    assert stages["both"]["mean"] == pytest.approx(max(seen["ensembles"].values()))
    assert stages["difference"]["mean"] == pytest.approx(stages["both"]["mean"] - stages["first"]["mean"])
    assert stages["difference"]["low"] <= 0, "a re-ranker with random weights must not be better"
    assert seen["n_lacking"] == 0
    with pytest.raises(DataError, match="no example has a right answer among its best 6, so no ensemble can be chosen"):
        choose_settings(both, [Example(("zebra",))] * 3, ensemble="auto")
    assert choose_settings(replace(config, prior=0.5), examples(), precision=0.5)[0].prior == 0.5
    with pytest.raises(DataError, match=r"0% right if .* lacks the right answers of 1 of 1 examples"):
        choose_settings(config, [Example(("the bill",), ("an outage",), (0,))], precision=0.5)
    best = max(seen["ensembles"], key=lambda name: seen["ensembles"][name])
    assert tuned.ensemble == {"none": None}.get(best, best) or (best == "weight" and float(tuned.ensemble or 0) > 0)


def test_hidden_replies_are_never_right(models: dict[str, Path]) -> None:
    config = PipelineConfig(index=str(models["index"]), retriever="bm25")
    with pytest.raises(DataError, match=r"no threshold reaches a precision of 50\.0%"):
        choose_settings(config, examples(), precision=0.5, no_answer=1.0)
    _, seen = choose_settings(config, examples(), precision=0.1, no_answer=0.5, seed=3)
    assert seen["no_answer"] == 0.5
    assert seen["curve"][-1]["precision"] < 0.5
    with pytest.raises(DataError, match="0 validation examples"):
        choose_settings(config, [], precision=0.5)


@pytest.mark.parametrize(
    "ensemble",
    [None, *(pytest.param(one, marks=() if one == "z-score" else pytest.mark.deep) for one in (*SCALES, 0.5))],
)
def test_a_hidden_answer_counts_as_no_answer(
    models: dict[str, Path], tmp_path: Path, ensemble: Ensemble | None
) -> None:
    config = PipelineConfig(index=str(models["index"]), reranker=str(models["cross"]), n_retrieved=4, ensemble=ensemble)
    known = [example for example in examples() if example.relevant or example.relevant_ids]
    for i, example in enumerate(known):
        gone = [False] * i + [True] + [False] * (len(known) - i - 1)
        scores, right = outcomes(make_retriever(config), known, gone)
        left = [c for c in POOL if c.id not in example.relevant_ids and c.text not in example.candidates]
        build_index(tmp_path / f"{i}", load_encoder(models["bi"]), left, model=str(models["bi"]))
        truth, _ = outcomes(make_retriever(replace(config, index=str(tmp_path / f"{i}"))), [example], [False])
        assert not right[i]
        assert scores[i] == pytest.approx(truth[0], rel=1e-4, abs=1e-5)


def test_a_threshold_is_tested_on_other_examples(models: dict[str, Path]) -> None:
    config, _ = choose_settings(PipelineConfig(index=str(models["index"]), retriever="bm25"), examples(), precision=1.0)
    figures, curve = try_threshold(config, examples())
    assert (figures["coverage"], figures["precision"], figures["no_answer"]) == (0.5, 1.0, 0.0)
    assert figures["area"] == area(curve)
    figures, _ = try_threshold(config, examples(), no_answer=1.0)
    assert (figures["precision"], figures["answered_without"]) == (0.0, figures["coverage"])
    figures, _ = try_threshold(replace(config, threshold=1e9), examples(), no_answer=0.5)
    assert (figures["coverage"], figures["answered_without"]) == (0, 0)
    with pytest.raises(UsageError, match="has no threshold"):
        try_threshold(replace(config, threshold=None), examples())
    with pytest.raises(DataError, match="0 examples"):
        try_threshold(config, [])


def test_a_pipeline_ranks_lists_like_its_two_models(models: dict[str, Path], tmp_path: Path) -> None:
    write_pipeline(
        tmp_path / "p",
        PipelineConfig(index=str(models["index"]), reranker=str(models["cross"]), n_retrieved=3, ensemble="softmax"),
    )
    one = open_ranker(resolve_ranker(str(tmp_path / "p"))).score(CONTEXTS, [REPLIES] * 2)
    second: dict[str, Any] = {"rerank": str(models["cross"]), "n_retrieved": 3, "ensemble": "softmax"}
    two = open_ranker(resolve_ranker(str(models["bi"]), **second)).score(CONTEXTS, [REPLIES] * 2)
    np.testing.assert_array_equal(one, two)
    pool = open_ranker(resolve_ranker(str(tmp_path / "p")), corpus=corpus_of(pool=POOL)).score_pool(CONTEXTS, REPLIES)
    np.testing.assert_allclose(pool, np.stack(one), rtol=1e-5)
    found = open_pipeline(tmp_path / "p").respond(CONTEXTS, 3)
    assert [reply.text for reply in found[0]] == [REPLIES[i] for i in np.argsort(-one[0])[:3]]


def test_a_second_stage_over_an_index_equals_a_pipeline(models: dict[str, Path], tmp_path: Path) -> None:
    index, cross = models["index"], str(models["cross"])
    config = PipelineConfig(index=str(index), reranker=cross, n_retrieved=3, ensemble="z-score")
    write_pipeline(tmp_path / "p", config)
    named = open_pipeline(index, rerank=cross, n_retrieved=3, ensemble="z-score")
    assert named.respond(CONTEXTS, 2) == open_pipeline(tmp_path / "p").respond(CONTEXTS, 2)


def test_invalid_stages_are_refused(models: dict[str, Path], tmp_path: Path) -> None:
    bi, cross = str(models["bi"]), str(models["cross"])
    write_pipeline(tmp_path / "p", PipelineConfig(index=str(models["index"])))
    with pytest.raises(UsageError, match=re.escape(f"write {bi} with `rerank={cross}`")):
        resolve_ranker(f"{bi} > {cross}")
    with pytest.raises(UsageError, match="name the second with `rerank`"):
        resolve_ranker(bi, ensemble="raw")
    with pytest.raises(UsageError, match="already has its stages"):
        resolve_ranker(str(tmp_path / "p"), rerank=cross)
    with pytest.raises(UsageError, match="already has its stages"):
        open_pipeline(tmp_path / "p", rerank=cross)


def test_every_flipped_byte_is_detected(models: dict[str, Path], tmp_path: Path) -> None:
    write_pipeline(tmp_path / "p", PipelineConfig(index=str(models["index"]), n_retrieved=7))
    place = tmp_path / "p" / "pipeline.json"
    data = place.read_bytes()
    for i in range(len(data)):
        place.write_bytes(data[:i] + bytes([data[i] ^ (1 << (i % 8))]) + data[i + 1 :])
        with pytest.raises(ArtifactError, match=r"pipeline\.json"):
            read_pipeline(tmp_path / "p")
    document = json.loads(data)
    place.write_text(json.dumps({**document, "format": 9, "written_by": "9.0"}))
    with pytest.raises(ArtifactError, match=r"written by polyrank 9.0 in format 9, this version reads format 1"):
        read_pipeline(tmp_path / "p")


def test_impossible_settings_are_refused(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="not a pipeline"):
        read_pipeline(tmp_path)
    write_pipeline(tmp_path / "p", PipelineConfig(index=str(models["index"]), model=str(tmp_path / "gone")))
    with pytest.raises(UsageError, match=r"gone does not exist, and the index needs its encoder .* as `model`"):
        open_pipeline(tmp_path / "p")
    assert open_pipeline(tmp_path / "p", model=models["bi"]).respond(CONTEXTS, 1)
    with pytest.raises(UsageError, match="already exists"):
        write_pipeline(tmp_path / "p", PipelineConfig(index="x"))
    with pytest.raises(ConfigError, match="retriever = 'sparse' is not one of"):
        from_dict(PipelineConfig, {"index": "x", "retriever": "sparse"})


def test_a_pipeline_resolves_prefixes_and_moved_folders(models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    shutil.copytree(models["index"], tmp_path / "a" / "index")
    (tmp_path / "a" / "backbone").mkdir()
    config = PipelineConfig(
        index=str(tmp_path / "a" / "index"), retriever="bm25", reranker=f"untuned:{tmp_path / 'a' / 'backbone'}"
    )
    write_pipeline(tmp_path / "a" / "p", config)
    known, _ = read_pipeline(tmp_path / "a" / "p")
    assert known.reranker == f"untuned:{(tmp_path / 'a' / 'backbone').resolve()}"
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "p").rename(tmp_path / "b" / "p")
    assert read_pipeline(tmp_path / "b" / "p")[0].index == str((tmp_path / "b" / "index").resolve())  # its own index


def test_settings_chosen_with_other_models_are_refused(models: dict[str, Path], tmp_path: Path) -> None:
    config = PipelineConfig(index=str(models["index"]), reranker=str(models["cross"]), n_retrieved=4)
    tuned, seen = choose_settings(config, examples(), ensemble="auto")
    assert set(seen["fingerprints"]) == {"retriever", "re-ranker"}
    write_pipeline(tmp_path / "p", tuned, seen)
    assert open_pipeline(tmp_path / "p").respond(CONTEXTS, 1)
    write_pipeline(tmp_path / "q", replace(tuned, reranker="bm25"), seen)
    with pytest.raises(ArtifactError, match="were chosen with another re-ranker"):
        open_pipeline(tmp_path / "q")


def test_an_error_leaves_no_index_open(models: dict[str, Path], tmp_path: Path) -> None:
    index = Path(shutil.copytree(models["index"], tmp_path / "index"))
    config = PipelineConfig(index=str(index), reranker="bm25", n_retrieved=4)
    write_pipeline(tmp_path / "p", config, {"fingerprints": {"retriever": "f" * 64}})
    write_pipeline(tmp_path / "q", config)
    data, missing = tmp_path / "data.jsonl", str(tmp_path / "missing")
    data.write_text('{"context": ["hi"], "response": "an unrelated reply"}\n')
    mine: Any = {"retriever": str(tmp_path / "q"), "output": tmp_path / "mined.jsonl", "rerank": missing}
    attempts: list[tuple[str, Callable[[], Any]]] = [
        ("were chosen with another retriever", lambda: open_pipeline(tmp_path / "p")),
        ("missing", lambda: make_retriever(replace(config, reranker=missing))),
        ("missing", lambda: make_retriever(replace(config, model=missing))),
        ("no threshold reaches", lambda: choose_settings(config, [Example(("hi",))], precision=2.0)),
        ("nobody", lambda: explain_command(str(tmp_path / "q"), ["hi"], candidate_id="nobody")),
        ("k is 0", lambda: respond_command(index, ["hi"], k=0)),
        ("missing", lambda: mine_command(data, **mine)),
    ]
    for message, attempt in attempts:
        with pytest.raises(PolyrankError, match=message) as failed:
            attempt()
        assert files_open_in(index, f"{INDEX_FILE}*") == [], message  # even while the traceback holds references
        assert failed.tb is not None


def test_copies_of_a_hidden_answer_do_not_empty_the_replies(tmp_path: Path) -> None:
    texts = ["thanks a lot"] * 40 + ["thanks for nothing", "a lot of rain", "bye"]
    retriever = LexicalRetriever(BM25(), [Candidate(f"{i}", text) for i, text in enumerate(texts)])
    asked = [Example(("thanks a lot",), ("thanks a lot",), (0,))]
    (scores,), (right,) = outcomes(retriever, asked, [True])
    assert (len(scores), right) == (3, False)


def test_a_single_reply_has_no_threshold() -> None:
    found, _ = calibrate([[1.0], [0.5], []], [True, False, False], precision=1.0)
    assert (found.measure, found.threshold) == ("score", 1.0 - 2.0**-6)
    with pytest.raises(DataError, match="with a finite confidence"):
        calibrate([[], []], [False, False], precision=0.5)


def test_a_threshold_for_an_index_of_one_reply_is_finite(models: dict[str, Path], tmp_path: Path) -> None:
    build_index(tmp_path / "one", models["bi"], [Candidate("0", REPLIES[0])])
    asked = [Example((f"{REPLIES[0]} {i}",), (REPLIES[0],), (0,), f"{i}") for i in range(10)]
    config, tuning = choose_settings(PipelineConfig(index=str(tmp_path / "one")), asked, precision=0.5, no_answer=0.2)
    assert config.threshold is not None
    assert np.isfinite([config.threshold, *(point["threshold"] for point in tuning["curve"])]).all()


def many() -> list[Example]:
    """More examples than one batch, all different."""
    return [
        Example(
            (f"{REPLIES[i % 6]} {REPLIES[(i * 5 + 1) % 6]} {'thanks ' * (i % 4)}",), (REPLIES[i % 6],), (0,), str(i)
        )
        for i in range(70)
    ]


def test_outcomes_equal_those_of_each_example_alone(models: dict[str, Path]) -> None:
    retriever = make_retriever(PipelineConfig(index=str(models["index"]), retriever="bm25"))
    hidden = [i % 3 == 0 for i in range(70)]
    scores, right = outcomes(retriever, many(), hidden)
    alone = [outcomes(retriever, [e], [h]) for e, h in zip(many(), hidden, strict=True)]
    assert scores == [row for (row,), _ in alone]
    assert right == [flag for _, (flag,) in alone]
    assert 10 < sum(right) < 47
    assert not any(r for r, h in zip(right, hidden, strict=True) if h)
    assert {len(row) for row in scores} == {5, 6}  # all replies of the index minus hidden ones
    assert all(row == sorted(row, reverse=True) for row in scores)


def test_a_shortlist_without_a_hidden_answer_is_as_long(models: dict[str, Path]) -> None:
    config = PipelineConfig(index=str(models["index"]), reranker=str(models["cross"]), n_retrieved=3)
    scores, _ = outcomes(make_retriever(config), examples(), [True] * len(examples()))
    assert {len(row) for row in scores} == {3}


def test_k_below_1_is_refused_for_an_empty_list_too(models: dict[str, Path]) -> None:
    retriever = make_retriever(PipelineConfig(index=str(models["index"]), model=str(models["bi"])))
    assert retriever.respond([], 1) == []
    with pytest.raises(UsageError, match="k is 0"):
        retriever.respond([], 0)


def test_right_is_by_id_or_by_text() -> None:
    asked = Example(("x",), ("yes", "no"), (0,), relevant_ids=("7",))
    replies = [Ranked(name, text, 1.0) for name, text in (("7", "a"), ("8", "yes"), ("8", "no"), ("yes", "7"))]
    assert [is_right(asked, reply) for reply in replies] == [True, True, False, False]


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_share_without_an_answer_is_drawn_by_the_seed(models: dict[str, Path], share: float) -> None:
    config = PipelineConfig(index=str(models["index"]), retriever="bm25", measure="score", threshold=-1.0)
    draws = [try_threshold(config, many() * 3, no_answer=share, seed=seed)[0] for seed in (0, 1, 0)]
    assert draws[0] == draws[2]
    assert [draw["no_answer"] for draw in draws] == pytest.approx([share] * 3, abs=0.08)
    assert (draws[0] == draws[1]) == (share in (0, 1))
    assert all(draw["coverage"] == 1 for draw in draws)
    assert all(draw["answered_without"] == (share > 0) for draw in draws)
    assert draws[0]["n_examples"] == 210


def test_a_threshold_is_chosen_with_the_chosen_ensemble(models: dict[str, Path]) -> None:
    base = PipelineConfig(index=str(models["index"]), retriever="tfidf", reranker=str(models["cross"]), n_retrieved=4)
    for ensemble in ("raw", "auto"):
        tuned, seen = choose_settings(base, many(), ensemble=ensemble, precision=0.3, no_answer=0.2, seed=2)  # type: ignore[arg-type]
        assert ensemble == "auto" or tuned.ensemble == "raw"
        hidden = np.isin(np.arange(70), np.random.Generator(np.random.PCG64(2)).permutation(70)[:14])
        scores, right = outcomes(make_retriever(replace(base, ensemble=tuned.ensemble)), many(), hidden.tolist())
        want, curve = calibrate(scores, right, precision=0.3)
        assert (tuned.measure, tuned.threshold) == (want.measure, pytest.approx(want.threshold, rel=1e-4))
        assert seen["no_answer"] == hidden.mean()
        assert seen["chosen"]["coverage"] == max(p.coverage for p in curve if p.precision >= 0.3)
        assert seen["chosen"] in seen["curve"]
        assert [point["coverage"] for point in seen["curve"]] == pytest.approx([point.coverage for point in curve])
    # one stage has no ensemble
    alone, seen = choose_settings(replace(base, reranker=None), many(), ensemble="auto")
    assert (alone.ensemble, "ensembles" in seen, "fingerprints" in seen) == (None, False, False)


def test_figures_of_ensembles_are_mean_reciprocal_ranks_over_all_examples(models: dict[str, Path]) -> None:
    base = PipelineConfig(index=str(models["index"]), retriever="tfidf", reranker=str(models["cross"]), n_retrieved=6)
    _, seen = choose_settings(base, many(), ensemble="auto")
    del seen["ensembles"]["weight"]  # has one weight for each half of the examples
    for name, figure in seen["ensembles"].items():
        both = make_retriever(replace(base, ensemble=None if name == "none" else name))
        ranks = []
        for example, ranked in zip(many(), both.respond([e.query for e in many()], 6), strict=True):
            (own,) = [reply.score for reply in ranked if is_right(example, reply)]
            above, tied = (sum(r.score > own for r in ranked), sum(r.score == own for r in ranked))
            ranks.append(np.mean([1 / (above + j) for j in range(1, tied + 1)]))
        assert figure == pytest.approx(np.mean(ranks), abs=2e-3)


def test_confidence_uses_ten_replies_for_any_k(models: dict[str, Path]) -> None:
    retriever = make_retriever(PipelineConfig(index=str(models["index"]), retriever="bm25"))
    pipeline = Pipeline(retriever, Abstention("softmax", 0.9))
    one, six = (pipeline.answer_all(CONTEXTS, k) for k in (1, 6))
    assert [len(answer.ranked) for answer in (*one, *six)] == [1, 1, 6, 6]
    for a, b in zip(one, six, strict=True):
        scores = np.array([reply.score for reply in b.ranked])
        assert a.confidence == b.confidence == pytest.approx(1 / np.exp(scores - scores[0]).sum())
        assert a.abstained == (a.confidence < 0.9)
    assert [len(answer.ranked) for answer in pipeline.answer_all(CONTEXTS)] == [5, 5]
    assert [len(row) for row in pipeline.respond(CONTEXTS)] == [5, 5]
    nothing = Pipeline(LexicalRetriever(BM25(), [])).answer_all(CONTEXTS)
    assert [(answer.ranked, answer.confidence, answer.abstained) for answer in nothing] == [((), None, True)] * 2


@pytest.mark.parametrize("mode", ["fast", "certified"])
def test_earlier_names_of_exact_search_are_read_as_exact(mode: str, models: dict[str, Path], tmp_path: Path) -> None:
    write_pipeline(tmp_path / "earlier", PipelineConfig(index=str(models["index"])))
    document = read_document(tmp_path / "earlier", PIPELINE)
    document["pipeline"]["mode"] = mode
    (tmp_path / "earlier" / PIPELINE.file).write_bytes(seal(document, PIPELINE))
    assert read_pipeline(tmp_path / "earlier")[0].mode == "exact"


def test_options_of_open_override_the_folder(models: dict[str, Path], tmp_path: Path) -> None:
    write_pipeline(tmp_path / "dense", PipelineConfig(index=str(models["index"]), mode="approximate"))
    dense = open_pipeline(tmp_path / "dense").retriever
    assert isinstance(dense, Retriever)
    assert dense.mode == "approximate"
    assert open_pipeline(tmp_path / "dense", mode="exact").retriever.mode == "exact"  # type: ignore[attr-defined]
    assert open_pipeline(models["index"]).retriever.mode == "exact"  # type: ignore[attr-defined]
    answers = open_pipeline(tmp_path / "dense").answer_all(CONTEXTS, 2)
    assert [(answer.exact, answer.n_scored) for answer in answers] == [(True, len(POOL))] * 2
    write_pipeline(tmp_path / "bm25", PipelineConfig(index=str(models["index"]), retriever="bm25"))
    for options in ({"mode": "exact"}, {"model": models["bi"]}):
        with pytest.raises(UsageError, match="retrieves with bm25, which has no model and no mode"):
            open_pipeline(tmp_path / "bm25", **options)  # type: ignore[arg-type]
    assert [c.id for c in catalogue(tmp_path / "bm25")] == [c.id for c in catalogue(models["index"])]


@pytest.mark.parametrize("retriever", ["dense", "bm25"])
def test_a_pipeline_returns_each_text_once_by_default(models: dict[str, Path], tmp_path: Path, retriever: Any) -> None:
    twice = [*POOL, Candidate("again", REPLIES[0])]
    build_index(tmp_path / "index", load_encoder(models["bi"]), twice, model=str(models["bi"]))
    write_pipeline(tmp_path / "p", PipelineConfig(index=str(tmp_path / "index"), retriever=retriever))
    for distinct, n in ((True, 1), (False, 2)):
        (found,) = open_pipeline(tmp_path / "p", distinct=distinct).respond([REPLIES[0]], 7, allow_echo=True)
        assert [reply.text for reply in found].count(REPLIES[0]) == n


def test_models_of_indexes_and_pipelines_use_the_requested_device(models: dict[str, Path], tmp_path: Path) -> None:
    write_pipeline(tmp_path / "p", PipelineConfig(index=str(models["index"])))
    for folder in (models["index"], tmp_path / "p"):
        with pytest.raises(UsageError, match="device 'abacus' is unknown"):
            open_pipeline(folder, device="abacus")
    assert [c.text for c in catalogue(models["index"])] == REPLIES
    assert (read_mode(None), read_mode("exact")) == (None, "exact")
    with pytest.raises(UsageError, match="unknown way to search 'slow'"):
        read_mode("slow")


def test_a_threshold_needs_its_measure_and_both_are_read_back(models: dict[str, Path], tmp_path: Path) -> None:
    base = PipelineConfig(index=str(models["index"]), retriever="tfidf", measure="margin", threshold=0.125)
    write_pipeline(tmp_path / "p", base, {"n_examples": 3})
    assert open_pipeline(tmp_path / "p").abstention == Abstention("margin", 0.125)
    config, seen = read_pipeline(tmp_path / "p")
    assert (config.retriever, config.measure, config.threshold, seen) == ("tfidf", "margin", 0.125, {"n_examples": 3})
    for half in ({"measure": None}, {"threshold": None}):
        write_pipeline(tmp_path / "p", replace(base, **half), replace=True)  # type: ignore[arg-type]
        assert open_pipeline(tmp_path / "p").abstention is None
    retrieved = open_pipeline(tmp_path / "p").respond(CONTEXTS, 6)
    want = LexicalRetriever(TfIdf(), POOL).respond(CONTEXTS, 6)
    assert retrieved == want != LexicalRetriever(BM25(), POOL).respond(CONTEXTS, 6)


def test_ranking_by_a_lexical_pipeline_and_by_one_stage(models: dict[str, Path], tmp_path: Path) -> None:
    write_pipeline(tmp_path / "p", PipelineConfig(index=str(models["index"]), retriever="bm25"))
    write_pipeline(tmp_path / "q", PipelineConfig(index=str(models["index"])))
    for place, name in ((tmp_path / "p", "bm25"), (tmp_path / "q", str(models["bi"]))):
        got, want = (
            open_ranker(resolve_ranker(str(n)), corpus=corpus_of(pool=POOL)).score(CONTEXTS, [REPLIES] * 2)
            for n in (place, name)
        )
        np.testing.assert_array_equal(got, want)
