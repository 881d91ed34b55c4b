"""Sums of encoders: the sum of their scores, its folder, its search, and the choice of weights."""

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from polyrank.scorers.popularity import Popularity, save_popularity
from polyrank.scorers.summed import SumEncoder, load_sum, save_sum
from polyrank.tuning.sums import fit_sum

import polyrank
from polyrank.answering.build import add_to_index, build_index
from polyrank.answering.retrievers import Retriever
from polyrank.config.models import BiConfig, ConvertConfig, ConvertText, CrossConfig, PolyConfig, TextPolicy
from polyrank.errors import ArtifactError, DataError, UsageError
from polyrank.index import LocalWriter, open_index
from polyrank.loading.models import read_sum
from polyrank.models import new_model
from polyrank.models.artifacts import save_model
from polyrank.models.exported import ExportedEncoder
from polyrank.ranking.weights import fit_weights, totals_by_halves
from polyrank.records import Candidate, Context, Example
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.exported import export_model
from polyrank.scorers.open import load, load_encoder
from polyrank.scorers.protocols import Encoder
from polyrank.storage.quantized import Precision
from processes import run

WORDS = ["wifi", "router", "light", "bill", "red", "green", "thanks", "hello"]
REPLIES = [f"{a} {b}" for a in WORDS for b in WORDS]
CONTEXTS = [Context(("my wifi is down",)), Context(("hi", "router light red?"), ("the bill is high",))]
SMALL = ConvertConfig(embedding_dim=16, ffn_dim=32, spans=(3, 5), side_dim=16, side_layers=1, output_dim=8)
SUMS = {
    "bi + bi": (("bi", "other"), (1, 0.7)),
    "poly + bi": (("poly", "other"), (1, 2.5)),
    "bi + first": (("other", "first"), (0.3, 1)),
    "poly + convert": (("poly", "convert"), (1, 3)),
    "convert + bi": (("convert", "bi"), (2, 0.01)),
    "poly + popularity": (("poly", "popularity"), (1, 0.5)),
    "bi + poly + convert": (("bi", "poly", "convert"), (0.2, 1, 4)),
}


@pytest.fixture(scope="module")
def models(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model of each kind with random weights and different text budgets."""
    folder = tmp_path_factory.mktemp("models")
    backbone = str(tiny_backbone)
    configs = {
        "bi": BiConfig(backbone=backbone),
        "poly": PolyConfig(backbone=backbone, n_codes=4, code_init="normal", code_std=1.0),
        "first": PolyConfig(backbone=backbone, n_codes=3, codes="first"),
        "cross": CrossConfig(backbone=backbone),
        "other": BiConfig(backbone=backbone, projection_dim=24),
    }
    for seed, (name, config) in enumerate(configs.items()):
        policy = TextPolicy(max_context_tokens=16 + seed, max_candidate_tokens=12)
        save_model(folder / name, *new_model(config, policy, seed=seed, sample=REPLIES))
    made = new_model(SMALL, ConvertText(min_count=1, n_buckets=16), seed=1, sample=(), corpus=REPLIES)
    save_model(folder / "convert", *made)
    save_popularity(folder / "popularity", Popularity.of(dict(zip(REPLIES, range(1, 99), strict=False))))
    return {name: folder / name for name in (*configs, "convert", "popularity")}


def sum_of(models: dict[str, Path], name: str) -> SumEncoder:
    parts, weights = SUMS[name]
    return SumEncoder([load_encoder(models[part], device="cpu") for part in parts], weights)


@pytest.mark.parametrize("name", SUMS)
def test_the_score_is_the_weighted_sum_of_the_parts_scores(models: dict[str, Path], name: str) -> None:
    made = sum_of(models, name)
    assert isinstance(made, Encoder)
    want = sum(w * part.score_pool(CONTEXTS, REPLIES) for w, part in zip(made.weights, made.parts, strict=True))
    pool = made.score_pool(CONTEXTS, REPLIES)
    np.testing.assert_allclose(pool, want, rtol=1e-5, atol=1e-5)
    for row, texts in zip(made.score(CONTEXTS, [REPLIES[:3], REPLIES[5:]]), (slice(3), slice(5, None)), strict=True):
        assert row.shape == (len(REPLIES[texts]),)
    np.testing.assert_allclose(made.score(CONTEXTS[1:], [REPLIES])[0], pool[1], rtol=1e-5, atol=1e-5)
    assert made.score([], []) == []
    assert made.score_pool([], REPLIES).shape == (0, len(REPLIES))


def test_the_attention_of_a_poly_encoder_uses_only_its_products(models: dict[str, Path]) -> None:
    """By the formula: softmax over only the Poly-encoder's products."""
    made = sum_of(models, "poly + convert")
    poly, convert = made.parts
    vectors, mask = poly.encode_contexts(CONTEXTS)
    assert vectors.shape[1] == 4
    other, _ = convert.encode_contexts(CONTEXTS)
    pool = made.score_pool(CONTEXTS, REPLIES)
    for i in range(len(CONTEXTS)):
        for j, reply in enumerate(REPLIES[:5]):
            dots = vectors[i][mask[i]].astype(np.float64) @ poly.encode_candidates([reply])[0]
            weights = np.exp(dots - dots.max())
            attended = (weights * dots).sum() / weights.sum()
            added = 3 * float(other[i, 0].astype(np.float64) @ convert.encode_candidates([reply])[0])
            assert pool[i, j] == pytest.approx(attended + added, rel=1e-5, abs=1e-5)
    assert np.ptp(vectors[0] @ poly.encode_candidates(REPLIES[:1])[0]) > 1e-3, "the vectors must differ"


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("name", SUMS)
def test_exact_search_equals_brute_force(
    models: dict[str, Path], tmp_path: Path, name: str, precision: Precision
) -> None:
    made = sum_of(models, name)
    build_index(tmp_path / "index", made, REPLIES[:50], model="m", precision=precision)
    with LocalWriter(tmp_path / "index") as writer:
        add_to_index(writer, made, [Candidate(f"new{i}", reply) for i, reply in enumerate(REPLIES[50:])])
    retriever = Retriever(made, open_index(tmp_path / "index"))
    for context, ranked in zip(CONTEXTS, retriever.respond(CONTEXTS, len(REPLIES)), strict=True):
        assert len(ranked) == len(REPLIES)
        given = dict(zip(REPLIES, made.score_pool([context], REPLIES)[0], strict=True))
        assert all(a.score >= b.score for a, b in pairwise(ranked))
        close = 1e-4 if precision == "fp32" else 0.02 * float(max(map(abs, given.values())))
        assert [reply.score for reply in ranked] == pytest.approx([given[r.text] for r in ranked], abs=close)
        if precision == "fp32":
            best = sorted(given.values(), reverse=True)
            assert [reply.score for reply in ranked[:10]] == pytest.approx(best[:10], abs=1e-4)


def test_each_part_uses_its_own_export(models: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    shutil.copytree(models["bi"], tmp_path / "bi")
    parts = [load_encoder(path, device="cpu") for path in (tmp_path / "bi", models["convert"])]
    made = SumEncoder(parts, [1, 2])
    save_sum(tmp_path / "sum", made)
    with pytest.raises(UsageError, match=r"no encoder of .* has an onnx export .*polyrank export MODEL --to"):
        load(tmp_path / "sum", backend="onnx")
    export_model(tmp_path / "bi", "onnx")
    exported = load(tmp_path / "sum", device="cpu", precision="fp32", backend="onnx")
    assert isinstance(exported, SumEncoder)
    bi, convert = exported.parts
    assert isinstance(bi, EncoderScorer)
    assert isinstance(bi.model, ExportedEncoder)
    assert isinstance(convert, EncoderScorer)
    assert not isinstance(convert.model, ExportedEncoder)
    assert exported.fingerprint == made.fingerprint
    np.testing.assert_allclose(exported.score_pool(CONTEXTS, REPLIES), made.score_pool(CONTEXTS, REPLIES), rtol=1e-3)


def test_models_that_cannot_form_a_sum_are_refused(models: dict[str, Path]) -> None:
    bi, poly, first = (load_encoder(models[name], device="cpu") for name in ("bi", "poly", "first"))
    with pytest.raises(UsageError, match=r"poly and .*first both give a context several vectors.*`rerank=MODEL`"):
        SumEncoder([poly, bi, first], [1, 1, 1])
    with pytest.raises(UsageError, match="a sum of 1; give two"):
        SumEncoder([bi], [1])
    with pytest.raises(UsageError, match="weights 1 for 2 encoders"):
        SumEncoder([bi, poly], [1])
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="must be above 0"):
            SumEncoder([bi, poly], [wrong, 1])
    # a Poly-encoder's attention depends on its scale, so only the other parts can be scaled
    with pytest.raises(UsageError, match=r"weights 3,0.5: .* give 6,1, which"):
        SumEncoder([bi, poly], [3, 0.5])
    assert SumEncoder([bi, SumEncoder([poly, bi], [1, 2])], [6, 1]).dimension == 2 * bi.dimension + poly.dimension


class Turns(Encoder):
    """One vector per turn after the first two: their number is not known in advance."""

    dimension = 2

    def encode_contexts(self, contexts: list[Context]) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[override]
        widths = [max(len(context.turns) - 2, 1) for context in contexts]
        mask = np.arange(max(widths)) < np.array(widths)[:, None]
        return np.ones((*mask.shape, 2), np.float32) * mask[..., None], mask

    def encode_candidates(self, candidates: list[str]) -> np.ndarray:  # type: ignore[override]
        return np.array([[len(text), 1] for text in candidates], np.float32)


def test_a_part_with_unexpectedly_several_vectors_is_refused(models: dict[str, Path]) -> None:
    made = SumEncoder([Turns(), load_encoder(models["poly"], device="cpu")], [1, 1])
    assert made.fingerprint == ""
    assert made.score(CONTEXTS, [REPLIES, REPLIES])[0].shape == (len(REPLIES),)
    with pytest.raises(UsageError, match=r"encoder 1 and .*poly both give"):
        made.score([list("abcde")], [REPLIES])
    # as the only part with several vectors, each context keeps its own number in a batch
    bi = load_encoder(models["bi"], device="cpu")
    made = SumEncoder([bi, Turns()], [2, 1])
    contexts = [Context(tuple("abcde")), Context(("hi",))]
    together = made.score_pool(contexts, REPLIES)
    assert made.encode_contexts(contexts)[1].tolist() == [[True, True, True], [True, False, False]]
    want = 2 * bi.score_pool(contexts, REPLIES) + Turns().score_pool(contexts, REPLIES)
    np.testing.assert_allclose(together, want, rtol=1e-5)


@pytest.mark.parametrize("name", SUMS)
def test_a_reloaded_sum_scores_the_same_bits(models: dict[str, Path], tmp_path: Path, name: str) -> None:
    made = sum_of(models, name)
    save_sum(tmp_path / "sum", made, metadata={"n_valid": 3})
    opened = load(str(tmp_path / "sum"), device="cpu")
    assert isinstance(opened, SumEncoder)
    assert (opened.weights, opened.fingerprint) == (made.weights, made.fingerprint)
    np.testing.assert_array_equal(opened.score_pool(CONTEXTS, REPLIES), made.score_pool(CONTEXTS, REPLIES))
    assert opened.name == str(tmp_path / "sum")
    assert read_sum(tmp_path / "sum")["metadata"] == {"n_valid": 3}
    # an index stores its name and answers with it
    build_index(tmp_path / "index", opened, REPLIES)
    answer = polyrank.open(tmp_path / "index").respond(CONTEXTS, 1)[0][0]
    assert answer.text == REPLIES[int(made.score_pool(CONTEXTS, REPLIES)[0].argmax())]


def test_the_fingerprint_covers_parts_and_weights(models: dict[str, Path]) -> None:
    bi, other, convert = (load_encoder(models[name], device="cpu") for name in ("bi", "other", "convert"))
    made = [
        SumEncoder(parts, weights)
        for parts, weights in (
            ([bi, other], [1, 2]),
            ([bi, other], [1, 2.0000000001]),
            ([bi, other], [2, 1]),
            ([other, bi], [1, 2]),
            ([bi, convert], [1, 2]),
            ([bi, other, convert], [1, 2, 1]),
        )
    ]
    assert len({each.fingerprint for each in made}) == len(made)
    assert SumEncoder([bi, other], [1, 2]).fingerprint == made[0].fingerprint


def test_the_folder_moves_with_its_parts_and_refuses_others(models: dict[str, Path], tmp_path: Path) -> None:
    home = tmp_path / "home"
    for name in ("bi", "convert"):
        shutil.copytree(models[name], home / name)
    made = SumEncoder([load_encoder(home / "bi", device="cpu"), load_encoder(home / "convert", device="cpu")], [1, 2])
    save_sum(home / "sum", made)
    home.rename(tmp_path / "moved")
    path = tmp_path / "moved" / "sum"
    assert load_encoder(path, device="cpu").fingerprint == made.fingerprint
    shutil.rmtree(tmp_path / "moved" / "bi")
    with pytest.raises(UsageError, match=r"moved/bi, which does not exist; restore it or make the sum again"):
        load(str(path))
    shutil.copytree(models["other"], tmp_path / "moved" / "bi")
    with pytest.raises(ArtifactError, match=r"was made with encoder .*moved/bi is .*; make the sum again"):
        load(str(path))
    shutil.rmtree(tmp_path / "moved" / "bi")
    shutil.copytree(models["cross"], tmp_path / "moved" / "bi")
    with pytest.raises(UsageError, match="has no vectors"):
        load(str(path))
    text = (path / "sum.json").read_text("utf-8")
    (path / "sum.json").write_text(text.replace("2.0", "3.0"), "utf-8")
    with pytest.raises(ArtifactError, match=r"checksum does not match\); make the sum again"):
        load_sum(path, [made.parts[0]] * 2)


def test_a_sum_cannot_contain_itself(models: dict[str, Path], tmp_path: Path) -> None:
    bi, other = (load_encoder(models[name], device="cpu") for name in ("bi", "other"))
    save_sum(tmp_path / "a", SumEncoder([bi, other], [1, 2]))
    save_sum(tmp_path / "b", SumEncoder([load_encoder(tmp_path / "a", device="cpu"), bi], [1, 1]))
    b = load_encoder(tmp_path / "b", device="cpu")
    with pytest.raises(UsageError, match="a would be a part of itself"):
        save_sum(tmp_path / "a", SumEncoder([b, other], [1, 1]), replace=True)
    with pytest.raises(UsageError, match="was not loaded by a name"):
        save_sum(tmp_path / "c", SumEncoder([b, Turns()], [1, 1]))
    with pytest.raises(UsageError, match="already exists"):
        save_sum(tmp_path / "a", SumEncoder([bi, other], [1, 3]))
    save_sum(tmp_path / "a", SumEncoder([bi, other], [1, 3]), replace=True)
    with pytest.raises(ArtifactError, match="was made with encoder"):  # b contains the earlier one
        load(str(tmp_path / "b"))


def lists_of(rng: np.random.Generator, n: int, quality: float, scale: float) -> list[np.ndarray]:
    """Scores of ten candidates; the first is right."""
    return [(scale * (rng.normal(size=10) + quality * (np.arange(10) == 0))).astype(np.float32) for _ in range(n)]


def test_weights_do_not_depend_on_the_scales_of_the_scores() -> None:
    rng = np.random.default_rng(1)
    a, b = lists_of(rng, 400, 1.0, 1.0), lists_of(rng, 400, 1.0, 1.0)
    relevant = [(0,)] * 400
    one, two = fit_weights([a, b], relevant)
    assert 0.8 < two / one < 1.25  # equal quality and spread: about equal weights
    wide = fit_weights([a, [1000 * row for row in b]], relevant)
    assert wide == pytest.approx((one, two / 1000), rel=1e-5)
    # shifts do not matter either, and the better scorer gets more weight
    shifted = fit_weights([a, [row + i for i, row in enumerate(b)]], relevant)
    assert shifted == pytest.approx((one, two), rel=1e-4)
    better = fit_weights([a, lists_of(rng, 400, 3.0, 1.0)], relevant)
    assert better[1] / better[0] > 1.3
    always_right = [np.array([5.0, 1.0], np.float32)] * 3
    one, two = fit_weights([always_right, always_right], [(0,)] * 3)
    assert (one == two, one < 100) == (True, True)


@pytest.mark.parametrize("seed", range(6))
def test_the_fitted_weights_have_the_least_cross_entropy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_lists, n_parts = (30, 3) if seed % 2 else (4, 4)
    sizes = rng.integers(2, 9, n_lists)
    scores = [[10.0**part * rng.normal(size=n) for n in sizes] for part in range(n_parts)]
    scores[1] = [row + 0.1 * other for row, other in zip(scores[0], scores[1], strict=True)]  # alike
    relevant = [tuple(rng.choice(n, size=1 + number % 2, replace=False)) for number, n in enumerate(sizes)]
    deviations = [np.sqrt(np.mean([row.var() for row in lists])) for lists in scores]

    def loss(weights: tuple[float, ...]) -> float:
        found = 0.0
        for row, right in zip(zip(*scores, strict=True), relevant, strict=True):
            total = sum(w * x for w, x in zip(weights, row, strict=True))
            shares = np.log(np.exp(total - total.max()) / np.exp(total - total.max()).sum())
            found -= shares[[*right]].mean()
        return found / n_lists + sum((w * d) ** 2 for w, d in zip(weights, deviations, strict=True)) / (200 * n_lists)

    weights = fit_weights(scores, relevant)
    assert min(weights) >= 0
    least = loss(weights)
    for number in range(n_parts):
        for change in (0.01, -0.01, 0.3, -0.3):
            other = max(weights[number] + change / deviations[number], 0.0)
            if other != weights[number]:
                assert loss((*weights[:number], other, *weights[number + 1 :])) > least


def test_what_adds_nothing_changes_nothing(models: dict[str, Path]) -> None:
    rng = np.random.default_rng(3)
    a, b = lists_of(rng, 50, 1.0, 3.0), lists_of(rng, 50, 1.0, 1.0)
    constant = [np.full(10, 7.0, np.float32) + np.float32(1e-6) * i for i in range(50)]
    relevant = [(0,)] * 50
    one, nothing, two, misleading = fit_weights([a, constant, b, lists_of(rng, 50, -1.0, 1.0)], relevant)
    assert (nothing, misleading) == (0, 0)
    assert (one, two) == pytest.approx(fit_weights([a, b], relevant))

    class Constant(Turns):
        def encode_candidates(self, candidates: list[str]) -> np.ndarray:  # type: ignore[override]
            return np.ones((len(candidates), 2), np.float32)

    bi, convert = (load_encoder(models[name], device="cpu") for name in ("bi", "convert"))
    lists = [Example(("hi",), tuple(REPLIES[n : n + 8]), (0,), str(n)) for n in range(56)]
    right = SumEncoder([bi, convert], [1, 1]).score([one.query for one in lists], [one.candidates for one in lists])
    lists = [replace(one, relevant=(int(scores.argmax()),)) for one, scores in zip(lists, right, strict=True)]
    made, figures = fit_sum([bi, Constant(), convert], lists)
    without, same = fit_sum([bi, convert], lists)
    assert (figures["idle"], same["idle"], figures["sum"]) == ([1], [], same["sum"])
    assert made.weights == (without.weights[0], 0.001, without.weights[1])
    assert figures["gain"]["difference"] == same["gain"]["difference"]


@pytest.mark.parametrize("scale", [0.01, 1.0, 300.0])
def test_the_scale_of_fitted_weights_is_that_of_log_probabilities(scale: float) -> None:
    rng = np.random.default_rng(5)
    lists = [scale * rng.normal(size=12) for _ in range(400)]
    probabilities = [np.exp(3 * values / scale) / np.exp(3 * values / scale).sum() for values in lists]
    relevant = [(int(rng.choice(12, p=p)),) for p in probabilities]
    (found,) = fit_weights([lists], [*relevant[:-1], ()])
    assert found * scale == pytest.approx(3, rel=0.1)


def test_no_list_measures_weights_that_it_chose() -> None:
    rng = np.random.default_rng(7)
    relevant = [(0,)] * 40
    noise = [[rng.normal(size=10) for _ in relevant] for _ in range(30)]

    def loss(totals: list[np.ndarray]) -> float:
        return float(np.mean([np.log(np.exp(row).sum()) - row[0] for row in totals]))

    weights = fit_weights(noise, relevant)
    on_itself = [sum(w * x for w, x in zip(weights, row, strict=True)) for row in zip(*noise, strict=True)]
    assert loss(on_itself) < np.log(10) < loss(totals_by_halves(noise, relevant, np.arange(40)))
    np.testing.assert_allclose(totals_by_halves(noise, relevant, np.zeros(40, np.int64)), on_itself)
    (first,) = totals_by_halves([lists[:1] for lists in noise], relevant[:1], np.zeros(1, np.int64))
    assert np.isfinite(first).all()
    assert fit_weights([[np.array([1.0, 0.0])]], [()]) == (0.0,)


EXAMPLES = [
    Example(("hi", f"my {word}"), tuple(f"{other} please" for other in WORDS), (i,)) for i, word in enumerate(WORDS)
]


def test_figures_equal_those_of_evaluating_each(models: dict[str, Path]) -> None:
    parts = [load_encoder(models[name], device="cpu") for name in ("convert", "poly")]
    seen: list[str] = []

    def progress(name: str, batches: list[range]) -> list[range]:
        seen.append(Path(name).name)
        return batches

    useless = [Example(("hi",), ("a", "b")), Example(("hi",), ("a",), (0,)), Example(("hi",), ("a", "a"), (0,))]
    made, figures = fit_sum(parts, [*useless, *EXAMPLES], progress=progress)
    assert seen == ["convert", "poly"]
    assert made.weights[1] == 1  # the Poly-encoder's weight stays 1
    assert figures["n_valid"] == len(EXAMPLES)
    for scorer, own in zip((*parts, made), (*figures["parts"], figures["sum"]), strict=True):
        metrics = polyrank.summarise(polyrank.evaluate(scorer, EXAMPLES))["metrics"]
        assert own == {name: pytest.approx(metrics[name]) for name in ("R@1", "MRR")}
    several = [Example(("hi",), tuple(REPLIES), (first, first + 1), str(first)) for first in range(4)]
    made, figures = fit_sum(parts, several)
    metrics = polyrank.summarise(polyrank.evaluate(made, several))["metrics"]
    assert figures["sum"] == {name: pytest.approx(metrics[name]) for name in ("R@1", "MRR")}
    assert fit_sum(parts, [*useless, Example(("hi",), ("thanks", "please"), (0,))])[1]["n_valid"] == 1
    with pytest.raises(DataError, match="no example has a right answer among candidates"):
        fit_sum(parts, useless[:2])
    with pytest.raises(UsageError, match="both give a context several vectors"):
        fit_sum([parts[1], parts[1]], EXAMPLES)


def test_the_commands_output_works_with_other_commands(
    models: dict[str, Path], task: dict[str, Path], tmp_path: Path
) -> None:
    path = tmp_path / "sum"
    made = run("sum", models["bi"], models["convert"], "-o", path, "--valid", task["valid"], "--json")
    assert made.returncode == 0, made.stderr
    document = json.loads(made.stdout)
    assert [Path(part["model"]) for part in document["parts"]] == [models["bi"], models["convert"]]
    assert document["metadata"]["valid"] == "valid.jsonl"
    assert json.loads(run("info", path, "--json").stdout) == document
    evaluated = json.loads(run("evaluate", path, task["valid"], "--json").stdout)
    assert evaluated["metrics"]["MRR"] == pytest.approx(document["metadata"]["sum"]["MRR"])
    shown = run("info", path).stdout
    assert "weights chosen on 12 lists of valid.jsonl" in shown
    assert f"{document['metadata']['sum']['MRR']:.4f}" in shown

    same = run("sum", models["bi"], models["bi"], "-o", path, "--valid", task["valid"], "--overwrite")
    assert same.returncode == 0, same.stderr
    assert f"R@1 +0.0 points (+0.0 to +0.0) over {models['bi']} alone" in same.stderr
    assert "may be no better" in same.stderr

    given = run("sum", path, models["poly"], "-o", tmp_path / "three", "--weights", "0.5,1")
    assert given.returncode == 0, given.stderr
    assert "MRR" not in given.stdout
    assert load(tmp_path / "three", device="cpu").score_pool(CONTEXTS, REPLIES).shape == (2, len(REPLIES))
    drawn = run("sum", models["bi"], models["convert"], "-o", tmp_path / "drawn", "--valid", task["train"], "--json")
    assert json.loads(drawn.stdout)["metadata"]["n_valid"] == 72, drawn.stderr


def test_the_command_reports_errors(models: dict[str, Path], task: dict[str, Path], tmp_path: Path) -> None:
    save_sum(tmp_path / "sum", sum_of(models, "bi + bi"))
    cases = {
        ("sum", models["bi"], models["poly"], "-o", tmp_path / "x"): "give either --valid FILE",
        ("sum", models["bi"], "-o", tmp_path / "x", "--weights", "1"): "a sum of 1",
        ("sum", models["bi"], tmp_path / "sum", "-o", tmp_path / "sum", "--valid", task["valid"], "--overwrite"): (
            "would be a part of itself"
        ),
        ("sum", models["bi"], "bm25", "-o", tmp_path / "x", "--weights", "1,1"): "bm25 has no vectors",
        ("sum", models["bi"], models["poly"], "-o", tmp_path / "x", "--weights", "1,2"): "give 0.5,1, which rank",
        ("sum", models["bi"], models["bi"], "-o", tmp_path / "sum", "--weights", "1,2"): "already exists",
        ("export", tmp_path / "sum", "--to", "onnx"): "has no network; export its parts one by one: ",
        ("evaluate", tmp_path / "sum", task["valid"], "--backend", "onnx"): "no encoder of",
    }
    for arguments, message in cases.items():
        failed = run(*arguments)
        assert failed.returncode == 2, arguments
        assert message in failed.stderr
    assert not (tmp_path / "x").exists()
