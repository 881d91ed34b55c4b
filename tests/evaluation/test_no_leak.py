"""Choices depend only on the part for choosing: another test part changes nothing, another development part does.

The parts contradict each other here, so that choosing on the wrong one would change the result.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from polyrank.answering.calibration import choose_settings, outcomes, try_threshold
from polyrank.answering.pipeline import make_retriever
from polyrank.loading.answering import read_pipeline
from polyrank.tuning.maps import MapConfig, Pairs, Ranking, fit_map, fit_response_map
from polyrank.tuning.sums import fit_sum

from polyrank.config.models import ConvertConfig, ConvertText
from polyrank.config.pipeline import PipelineConfig
from polyrank.index import write_index
from polyrank.ranking.abstention import Abstention, confidence
from polyrank.ranking.ensembles import SCALES, choose_ensemble, combine
from polyrank.records import Candidate, Context, Example
from polyrank.scorers.protocols import Encoder
from polyrank.tuning.intents import (
    Grid,
    IntentClassifier,
    IntentResult,
    IntentSplits,
    Utterance,
    calibrate_rejection,
    few_shot,
    fit_head,
    split_off,
    train_intents,
)
from polyrank.tuning.intents.head import Encoded, HeadConfig
from processes import run

D = 6


class StepScalars(Encoder):
    """An Encoder of numeric texts: the text determines the vector."""

    fingerprint = "scalars"
    dimension = D

    def encode_contexts(self, contexts: Sequence[Context]) -> tuple[np.ndarray, np.ndarray]:
        vectors = np.array([json.loads(context.turns[-1]) for context in contexts], np.float32).reshape(-1, 1, D)
        return vectors, np.ones(vectors.shape[:2], np.bool_)

    def encode_candidates(self, candidates: Sequence[str]) -> np.ndarray:
        return np.array([json.loads(text) for text in candidates], np.float32).reshape(-1, D)

    def score(self, contexts: Sequence[Context], candidates: Sequence[Sequence[str]]) -> list[np.ndarray]:
        vectors, _ = self.encode_contexts(contexts)
        return [self.encode_candidates(texts) @ row[0] for row, texts in zip(vectors, candidates, strict=True)]

    def score_pool(self, contexts: Sequence[Context], pool: Sequence[str]) -> np.ndarray:
        return np.stack(self.score(contexts, [pool] * len(contexts)))


def text_of(vector: np.ndarray) -> str:
    return json.dumps([round(float(value), 4) for value in vector])


def utterances(n: int, seed: int, *, spread: float = 0.8, turned: int = 0, n_outside: int = 0) -> tuple[Utterance, ...]:
    """Utterances of three intents, each near its own direction; ``turned`` shifts the intents' names."""
    generator = np.random.Generator(np.random.PCG64(seed))
    inside = [
        Utterance(text_of(2 * np.eye(D)[i % 3] + spread * generator.normal(size=D)), "abc"[(i + turned) % 3])
        for i in range(n)
    ]
    return (*inside, *(Utterance(text_of(spread * generator.normal(size=D)), None) for _ in range(n_outside)))


def vectors_of(part: Sequence[Utterance]) -> np.ndarray:
    return np.array([json.loads(utterance.text) for utterance in part], np.float32)


def labels_of(part: Sequence[Utterance]) -> np.ndarray:
    return np.array([-1 if u.intent is None else "abc".index(u.intent) for u in part])


def trained(splits: IntentSplits, **options: Any) -> IntentResult:
    settings = {"grid": Grid(hidden_dim=(8,), dropout=(0.0,), lr=(0.05, 0.4)), "max_epochs": 12, **options}
    return train_intents(splits, StepScalars(), encoder_name="scalars", **settings)


def same(a: IntentClassifier, b: IntentClassifier) -> bool:
    """Whether two classifiers are equal bit for bit, in weights and threshold."""
    weights = zip(a.head.state_dict().values(), b.head.state_dict().values(), strict=True)
    return a.abstention == b.abstention and all(x.shape == y.shape and torch.equal(x, y) for x, y in weights)


# intents

TRAIN, DEV = utterances(60, 1), utterances(45, 2, n_outside=30)
TEST, OTHER_TEST = utterances(45, 3, n_outside=30), utterances(60, 4, spread=2.0, turned=1, n_outside=9)


@pytest.mark.parametrize("options", [{}, {"seeds": (1, 2, 3)}, {"n_few_shot": 5, "seeds": (1, 2)}])
def test_intent_classifiers_do_not_depend_on_the_test_part(options: dict[str, Any]) -> None:
    one, other = (trained(IntentSplits(TRAIN, DEV, test), **options) for test in (TEST, OTHER_TEST))
    assert one.figures["accuracy"] > 0.7 > 0.4 > other.figures["accuracy"]
    assert same(one.classifier, other.classifier)
    assert one.figures["chosen"] == other.figures["chosen"]
    moved = trained(IntentSplits(TRAIN, utterances(45, 5, spread=2.0, n_outside=9), TEST), **options)
    assert not same(one.classifier, moved.classifier)


def test_a_threshold_of_intents_is_chosen_on_the_development_part() -> None:
    found = trained(IntentSplits(TRAIN, DEV, OTHER_TEST)).classifier
    drawn = {
        name: calibrate_rejection(found.scores_of(vectors_of(part)), labels_of(part))[0]
        for name, part in (("dev", DEV), ("test", OTHER_TEST), ("train", (*TRAIN, *DEV[-30:])))
    }
    assert found.abstention == drawn["dev"]
    assert drawn["test"] != drawn["dev"] != drawn["train"]


def test_a_threshold_for_a_precision_is_chosen_on_the_development_part() -> None:
    """The test part holds only mistakes, so that no threshold exists on it; the training part has almost none."""
    dev = utterances(90, 6, spread=1.2)
    test = utterances(60, 7, turned=1)
    found = trained(IntentSplits(TRAIN, dev, test), precision=0.9).classifier
    assert found.abstention is not None
    scores = found.scores_of(vectors_of(dev))
    sure = np.array([confidence(-np.sort(-row), found.abstention.measure) for row in scores])
    right = scores.argmax(1) == labels_of(dev)
    answered = sure >= found.abstention.threshold
    assert right.mean() < 0.9 <= right[answered].mean()
    # and no lower threshold reaches the precision
    lower = [right[sure >= level].mean() for level in sure if level < found.abstention.threshold]
    assert max(lower) < 0.9


def test_sizes_and_seeds_are_chosen_on_the_development_part() -> None:
    grid = Grid(hidden_dim=(2, 16), dropout=(0.0, 0.5), lr=(0.02, 0.3))
    dev = utterances(60, 8, spread=1.5)
    result = trained(IntentSplits(TRAIN, dev, OTHER_TEST), grid=grid, seeds=(1, 2, 3), max_epochs=4)
    figures = result.figures
    assert len({trial["dev"] for trial in figures["grid"]}) > 2
    best = max(figures["grid"], key=lambda trial: trial["dev"])
    assert figures["seeds"][0]["dev"] == best["dev"]
    assert figures["chosen"]["dev"] == max(seed["dev"] for seed in figures["seeds"])
    scores = result.classifier.scores_of(vectors_of(dev))
    assert figures["chosen"]["dev"] == np.mean(scores.argmax(1) == labels_of(dev))


def test_training_stops_by_the_development_part() -> None:
    """With wrong names in the development part every step away from chance is a loss, so epoch 1 is the best."""
    train, wrong, right = (
        Encoded(vectors_of(part), labels_of(part)) for part in (TRAIN, utterances(60, 9, turned=1), utterances(60, 9))
    )
    config = HeadConfig(hidden_dim=8, dropout=0.0, lr=0.3)
    early, late = (fit_head(train, dev, 3, config, seed=1, max_epochs=15, patience=3) for dev in (wrong, right))
    assert early.n_epochs == 1 < late.n_epochs
    assert early.accuracy < 1 / 3 < late.accuracy


def test_only_the_training_part_scales_the_encodings() -> None:
    found = trained(IntentSplits((*TRAIN, *DEV[-30:]), utterances(45, 2, spread=3, n_outside=5), TEST)).classifier.head
    want = vectors_of(TRAIN).astype(np.float64)  # without out-of-scope utterances
    np.testing.assert_allclose(found.mean.numpy(), want.mean(0), atol=1e-5)
    assert float(found.scale) == pytest.approx(np.sqrt(((want - want.mean(0)) ** 2).mean()), rel=1e-5)


@pytest.mark.parametrize("seeds", [(1,), (5, 1)])
def test_a_development_part_that_is_split_off_is_not_trained_on(seeds: tuple[int, ...]) -> None:
    rest, part = split_off(TRAIN, 0.1, seed=seeds[0])
    found = trained(IntentSplits(TRAIN, test=TEST), seeds=seeds)
    assert same(found.classifier, trained(IntentSplits(rest, part, TEST), seeds=seeds).classifier)
    np.testing.assert_allclose(found.classifier.head.mean.numpy(), vectors_of(rest).mean(0), atol=1e-5)
    assert (found.figures["n_train"], found.figures["n_dev"]) == (54, 6)
    assert found.figures["judged_on"] == "test"


def test_few_shot_training_uses_only_the_drawn_utterances() -> None:
    seed = 4
    drawn = few_shot(TRAIN, 5, seed=seed)
    garbled = tuple(u if u in drawn else Utterance(text_of(np.full(D, 9.0)), u.intent) for u in TRAIN)
    kept = few_shot(DEV, 5, seed=seed)
    other_dev = tuple(
        u if u in kept or u.intent is None else Utterance(text_of(np.full(D, 9.0)), u.intent) for u in DEV
    )
    results = [
        trained(IntentSplits(train, dev, TEST), n_few_shot=5, seeds=(seed,))
        for train, dev in ((TRAIN, DEV), (garbled, DEV), (TRAIN, other_dev))
    ]
    assert same(results[0].classifier, results[1].classifier)
    assert same(results[0].classifier, results[2].classifier)
    np.testing.assert_allclose(results[0].classifier.head.mean.numpy(), vectors_of(drawn).mean(0), atol=1e-5)
    # all out-of-scope utterances are used for the threshold
    fewer = trained(IntentSplits(TRAIN, DEV[:-20], TEST), n_few_shot=5, seeds=(seed,))
    assert results[0].classifier.abstention != fewer.classifier.abstention
    # and each seed draws again
    assert few_shot(TRAIN, 5, seed=seed + 1) != drawn
    again = trained(IntentSplits(TRAIN, DEV, TEST), n_few_shot=5, seeds=(seed + 1,))
    np.testing.assert_allclose(
        again.classifier.head.mean.numpy(), vectors_of(few_shot(TRAIN, 5, seed=seed + 1)).mean(0), atol=1e-5
    )


def test_figures_of_intents_come_from_the_test_part() -> None:
    for n_seeds in (1, 3):
        result = trained(IntentSplits(TRAIN, DEV, OTHER_TEST), seeds=tuple(range(n_seeds)))
        vectors, labels = vectors_of(OTHER_TEST), labels_of(OTHER_TEST)
        inside = labels >= 0
        scores = result.classifier.scores_of(vectors)
        right = scores.argmax(1) == labels
        figures = result.figures
        (chosen,) = [s for s in figures["seeds"] if s["seed"] == figures["chosen"]["seed"]]
        assert chosen["test"] == pytest.approx(right[inside].mean())
        assert figures["accuracy"] == pytest.approx(np.mean([s["test"] for s in figures["seeds"]]))
        if n_seeds > 1:
            assert figures["accuracy_std"] == pytest.approx(np.std([s["test"] for s in figures["seeds"]], ddof=1))
        assert (figures["n_train"], figures["n_dev"], figures["n_test"]) == (60, 45, 60)
        abstention = result.classifier.abstention
        assert abstention is not None
        rejected = np.array([abstention.abstains(-np.sort(-row)) for row in scores])
        assert figures["out_of_scope"]["recall"] == pytest.approx(rejected[~inside].mean())
        assert figures["out_of_scope"]["in_scope_accuracy"] == pytest.approx((right & ~rejected)[inside].mean())
        assert result.matrix.sum(1).tolist() == [20, 20, 20, 9]
        assert result.matrix[:, 3].sum() == rejected.sum()


def test_without_a_test_part_figures_are_of_the_development_part() -> None:
    result = trained(IntentSplits(TRAIN, DEV))
    assert (result.figures["judged_on"], result.figures["n_test"]) == ("dev", 0)
    assert result.figures["accuracy"] == result.figures["chosen"]["dev"]
    assert result.matrix.sum() == len(DEV)


def test_the_command_uses_each_file_as_its_part(tmp_path: Path) -> None:
    from polyrank.models import new_model
    from polyrank.models.artifacts import save_model

    small = ConvertConfig(embedding_dim=16, ffn_dim=16, spans=(3,), side_dim=8, side_layers=1, output_dim=8)
    model = new_model(small, ConvertText(min_count=1, n_buckets=8), seed=1, sample=(), corpus=["wifi down", "bill"])
    save_model(tmp_path / "model", *model)
    words = {"wifi": "wifi router light", "bill": "bill high thanks"}
    for name, n in (("train", 4), ("dev", 3), ("test", 2), ("other", 2)):
        rows = [{"text": f"{text} {name} {i}", "intent": intent} for intent, text in words.items() for i in range(n)]
        rows += [{"text": f"zebra {i}", "intent": "oos"} for i in range(n + 2)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    options = ("--hidden", "4", "--dropout", "0", "--lr", "0.1", "--max-epochs", "3", "--json", "--layer", "final")
    made = run(
        "intents", "train", tmp_path / "train.jsonl", "--dev", tmp_path / "dev.jsonl",
        "--test", tmp_path / "test.jsonl", "--encoder", tmp_path / "model", "-o", tmp_path / "c", *options,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    figures = json.loads(made.stdout)
    assert (figures["n_train"], figures["n_dev"], figures["n_test"], figures["judged_on"]) == (8, 6, 4, "test")
    assert figures["out_of_scope"]["n_out_of_scope"] == 4  # of the test part


# pipelines

REPLIES = ["restart the router", "the bill is too high", "thanks", "did that", "the light is red", "wifi is down"]
POOL = [Candidate(f"r{i}", text) for i, text in enumerate(REPLIES)]


@pytest.fixture
def config(tmp_path: Path) -> PipelineConfig:
    write_index(tmp_path / "index", POOL, np.eye(6, dtype=np.float32), fingerprint="f", model="m")
    return PipelineConfig(index=str(tmp_path / "index"), retriever="bm25")


def examples_with(repeats: Callable[[int], int], n: int = 12) -> list[Example]:
    """Contexts with a right reply; repeated words raise its score."""
    return [
        Example((" ".join([REPLIES[i % 6]] * repeats(i)),), relevant_ids=(f"r{i % 6}",), id=str(i)) for i in range(n)
    ] + [Example((REPLIES[i % 6],), id=f"none {i}") for i in range(n)]


def test_a_threshold_is_chosen_on_the_given_examples(config: PipelineConfig) -> None:
    valid, fresh = examples_with(lambda i: 2), examples_with(lambda i: 4)
    (low, seen), (high, _) = (choose_settings(config, part, precision=1.0) for part in (valid, fresh))
    assert low.threshold is not None
    assert high.threshold is not None
    assert low.threshold < high.threshold
    assert seen["n_examples"] == 24
    # on other examples the same threshold applies, not the best one for them
    assert [try_threshold(*pair)[0]["coverage"] for pair in ((low, valid), (high, fresh))] == [0.5, 0.5]
    assert try_threshold(high, valid)[0]["coverage"] < 0.2
    figures, _ = try_threshold(low, fresh)
    scores, right = outcomes(make_retriever(low), fresh, [False] * 24)
    answered = [not Abstention(low.measure or "score", low.threshold).abstains(row) for row in scores]
    assert figures["coverage"] == np.mean(answered)
    assert figures["precision"] == np.mean([r for r, a in zip(right, answered, strict=True) if a])


def test_an_ensemble_is_chosen_on_the_given_examples() -> None:
    """The retriever is right on one part and wrong on the other, so that their best ensembles differ."""
    generator = np.random.Generator(np.random.PCG64(1))
    right = [(int(i),) for i in generator.integers(10, size=80)]
    truth = np.eye(10)[[i for (i,) in right]]
    sharp, dull = truth * 3 + generator.normal(size=(80, 10)), generator.normal(size=(80, 10))
    one, figures, _ = choose_ensemble(
        list((100 * sharp).astype(np.float32)), list(dull.astype(np.float32)), right, np.arange(80)
    )
    other, _, _ = choose_ensemble(
        list((100 * dull).astype(np.float32)), list(sharp.astype(np.float32)), right, np.arange(80)
    )
    assert (one, other) == ("raw", None)
    for how in SCALES:
        totals = [combine(a, b, how) for a, b in zip(100 * sharp, dull, strict=True)]
        ranks = [1 + (total > total[i]).sum() for total, (i,) in zip(totals, right, strict=True)]
        assert figures[how] == pytest.approx(np.mean(1 / np.array(ranks)), abs=0.01)


def test_the_command_uses_its_validation_file(config: PipelineConfig, tmp_path: Path) -> None:
    rows = {"valid": examples_with(lambda i: 2), "fresh": examples_with(lambda i: 4)}
    for name, part in rows.items():
        lines = [{"context": list(e.context), "relevant_ids": list(e.relevant_ids), "id": e.id} for e in part]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    made = run(
        "pipeline", "create", config.index, "-o", tmp_path / "p", "--retriever", "bm25", "--valid",
        tmp_path / "valid.jsonl", "--precision", "1", "--no-answer", "0",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    before = (tmp_path / "p" / "pipeline.json").read_bytes()
    want, _ = choose_settings(config, rows["valid"], precision=1.0)
    known, _ = read_pipeline(tmp_path / "p")
    assert (known.measure, known.threshold) == (want.measure, want.threshold)
    tried = run("pipeline", "test", tmp_path / "p", tmp_path / "fresh.jsonl", "--no-answer", "0", "--json")
    assert json.loads(tried.stdout) == try_threshold(want, rows["fresh"])[0]
    assert (tmp_path / "p" / "pipeline.json").read_bytes() == before


# MAP


def pairs_and_lists(turn: np.ndarray, n: int, seed: int) -> tuple[Pairs, Ranking]:
    """Each response is its context multiplied by a matrix; each list holds the right response and nine others."""
    generator = np.random.Generator(np.random.PCG64(seed))
    contexts = generator.normal(size=(n, len(turn)))
    contexts /= np.linalg.norm(contexts, axis=1, keepdims=True)
    left, right = contexts[:, None].astype(np.float32), (contexts @ turn).astype(np.float32)
    mask, rows = np.ones((n, 1), np.bool_), tuple((np.arange(10) + i) % n for i in range(n))
    return Pairs(left, mask, right, np.arange(n), np.arange(n)), Ranking(left, mask, right, rows, ((0,),) * n)


def test_a_map_is_chosen_and_stopped_by_the_validation_lists() -> None:
    generator = np.random.Generator(np.random.PCG64(2))
    turn, _ = np.linalg.qr(generator.normal(size=(8, 8)))
    pairs, like_training = pairs_and_lists(turn, 200, 1)
    _, plain = pairs_and_lists(np.eye(8), 80, 2)
    _, turned = pairs_and_lists(turn, 80, 3)
    config = MapConfig(lr=(3e-2, 3e-3), l2=(1e-4,), batch_size=32, max_epochs=8, patience=3)
    # on validation lists ordered by similarity, training only lowers the accuracy
    kept = fit_map(pairs, plain, config)
    assert kept.accuracy == kept.similarity == 1
    np.testing.assert_allclose(kept.matrix / kept.matrix[0, 0], np.eye(8), atol=1e-6)
    assert like_training.accuracy(kept.matrix) < 0.5
    # on lists like the training pairs, the higher learning rate is better
    trained = fit_map(pairs, turned, config)
    assert trained.accuracy == turned.accuracy(trained.matrix) == max(trial["R@1"] for trial in trained.trials)
    fast, slow = (trial["R@1"] for trial in trained.trials)
    assert fast > slow
    assert plain.accuracy(trained.matrix) < trained.accuracy
    # on lists in between, an earlier epoch is the best
    _, between = pairs_and_lists(np.eye(8), 40, 4)
    mixed = replace(
        turned,
        contexts=np.concatenate([turned.contexts, between.contexts]),
        mask=np.ones((120, 1), np.bool_),
        candidates=np.concatenate([turned.candidates, between.candidates]),
        rows=(*turned.rows, *(rows + 80 for rows in between.rows)),
        relevant=((0,),) * 120,
    )
    stopped = fit_map(pairs, mixed, replace(config, lr=(3e-2,)))
    assert stopped.accuracy == mixed.accuracy(stopped.matrix)
    assert stopped.trials[0]["n_epochs"] <= trained.trials[0]["n_epochs"]


def test_a_map_is_trained_on_the_examples_and_evaluated_on_the_lists() -> None:
    generator = np.random.Generator(np.random.PCG64(3))
    turn, _ = np.linalg.qr(generator.normal(size=(D, D)))
    contexts = generator.normal(size=(120, D))
    texts = [(text_of(row), text_of(row @ turn)) for row in contexts]
    examples = [Example((a,), (b,), (0,)) for a, b in texts[:80]]
    replies = [b for _, b in texts[80:90]]
    lists = [Example((a,), tuple(replies), (i,)) for i, (a, _) in enumerate(texts[80:90])]
    config = MapConfig(lr=(3e-2,), l2=(1e-3,), batch_size=16, max_epochs=15, patience=15)
    made, figures = fit_response_map(StepScalars(), examples, lists, config)
    assert (figures["n_train"], figures["n_responses"], figures["n_valid"]) == (80, 80, 10)
    right = [np.argmax(row) == i for i, row in enumerate(made.score_pool([e.query for e in lists], replies))]
    assert figures["map"] == np.mean(right) > figures["similarity"]
    # the order of the lists and copies of a reply do not matter; other pairs do
    doubled = [Example(e.context, (*e.candidates, e.candidates[0]), e.relevant) for e in lists[::-1]]
    again, _ = fit_response_map(StepScalars(), examples, doubled, config)
    assert again.matrix.tobytes() == made.matrix.tobytes()
    other, _ = fit_response_map(StepScalars(), examples[:40], lists, config)
    assert other.matrix.tobytes() != made.matrix.tobytes()


class Half(StepScalars):
    """Scores a candidate by one half of its numbers, independent of the context."""

    def __init__(self, half: slice) -> None:
        self.name, self.half = str(half), half

    def encode_contexts(self, contexts: Sequence[Context]) -> tuple[np.ndarray, np.ndarray]:
        return np.ones((len(contexts), 1, D), np.float32), np.ones((len(contexts), 1), np.bool_)

    def encode_candidates(self, candidates: Sequence[str]) -> np.ndarray:
        vectors = np.zeros((len(candidates), D), np.float32)
        vectors[:, self.half] = super().encode_candidates(candidates)[:, self.half]
        return vectors


def lists_decided_by(half: slice, seed: int) -> list[Example]:
    """Lists of five: one half usually scores the right answer highest, the other half usually does not."""
    generator = np.random.Generator(np.random.PCG64(seed))
    examples = []
    for number in range(60):
        candidates = 0.8 * generator.normal(size=(5, D))
        candidates[0] -= 0.4
        candidates[0, half] += 1.2
        right = number % 5
        order = np.roll(np.arange(5), right)
        examples.append(Example(("hi",), tuple(text_of(candidates[i]) for i in order), (right,)))
    return examples


def test_the_weights_of_a_sum_come_from_the_given_lists() -> None:
    first, second = slice(D // 2), slice(D // 2, D)
    parts = [Half(first), Half(second)]
    dev, test = lists_decided_by(first, 1), lists_decided_by(second, 2)
    on_dev, on_test = (fit_sum(parts, lists)[0].weights for lists in (dev, test))  # type: ignore[arg-type]
    assert 2 * on_dev[1] < on_dev[0]
    assert 2 * on_test[0] < on_test[1]
    # the order of the lists, copies in them and uninformative lists do not matter
    same = [Example(e.context, (*e.candidates, e.candidates[e.relevant[0]]), e.relevant) for e in dev[::-1]]
    quiet = [Example(e.context, e.candidates) for e in test]
    assert fit_sum(parts, [*dev[::-1], *quiet])[0].weights == on_dev  # type: ignore[arg-type]
    copied, figures = fit_sum(parts, same)  # type: ignore[arg-type]
    assert 2 * copied.weights[1] < copied.weights[0]
    assert figures["n_valid"] == 60
