"""Batching does not change results: neither order nor vectors, for any budget, batch mates and precision."""

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from transformers import BertModel, PreTrainedTokenizerFast

import convert_models
from polyrank.config.models import BiConfig, ConvertConfig, CrossConfig, ModelConfig, PolyConfig, TextPolicy
from polyrank.models import Backbone, new_model
from polyrank.models.artifacts import load_model, save_model
from polyrank.models.backbone import FirstOutput
from polyrank.models.exported import ExportedEncoder
from polyrank.records import Candidate, Context
from polyrank.scorers.cross import CrossScorer
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.load import _fingerprint, make_scorer, saved_scorer, untuned_scorer
from polyrank.scorers.network import inference
from polyrank.scorers.open import load
from polyrank.scorers.ranker import Ranker
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.scorers.terms.protocol import Term
from polyrank.text import BackboneTexts, load_subwords, pad
from polyrank.text.tokens import like_lengths, token_batches
from shared_fixtures import WORDS

POLICY = TextPolicy(max_context_tokens=48, max_candidate_tokens=16)
texts = st.lists(st.lists(st.sampled_from(WORDS), max_size=20).map(" ".join), min_size=1, max_size=30)


def scorer(
    backbone: Path, config: ModelConfig | None = None, precision: str = "fp32", frozen: bool = False
) -> EncoderScorer | CrossScorer:
    model, words, _ = new_model(config or BiConfig(backbone=str(backbone)), POLICY, seed=0, sample=["hello router"])
    return make_scorer(model, words, device="cpu", precision=precision, frozen=frozen)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def encoder(tiny_backbone: Path) -> EncoderScorer:
    """A Bi-encoder in fp32."""
    found = scorer(tiny_backbone)
    assert isinstance(found, EncoderScorer)
    return found


@given(lengths=st.lists(st.integers(0, 50), max_size=60), budget=st.integers(1, 200))
def test_batches_hold_every_text_once_within_the_budget(lengths: Sequence[int], budget: int) -> None:
    batches = token_batches(lengths, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    assert all(len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= budget for batch in batches)
    longest = [max(lengths[i] for i in batch) for batch in batches]
    assert longest == sorted(longest, reverse=True)


@given(lengths=st.lists(st.integers(0, 50), max_size=60), padding=st.integers(0, 200))
def test_groups_hold_every_text_once_and_end_where_padding_exceeds_its_limit(
    lengths: Sequence[int], padding: int
) -> None:
    groups = like_lengths(lengths, padding)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    found = [lengths[i] for group in groups for i in group]
    assert found == sorted(found, reverse=True)
    added = [sum(lengths[group[0]] - lengths[i] for i in group) for group in groups]
    assert max(added, default=0) <= padding
    for group, own, after in zip(groups, added, groups[1:], strict=False):
        assert own + lengths[group[0]] - lengths[after[0]] > padding


@given(rows=st.lists(st.lists(st.integers(1, 99), max_size=9), max_size=9), pad_id=st.integers(0, 3))
def test_padding_is_on_the_right(rows: list[list[int]], pad_id: int) -> None:
    tokens = pad(rows, [[1] * len(row) for row in rows], pad_id)
    assert [ids[real].tolist() for ids, real in zip(tokens.ids, tokens.mask, strict=True)] == rows
    assert (tokens.ids[~tokens.mask] == pad_id).all()
    assert (tokens.segments == tokens.mask).all()
    assert tokens.ids.shape == tokens.mask.shape == (len(rows), max(map(len, rows), default=0))


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(candidates=texts, budget=st.sampled_from([1, 40, 4096]))
def test_vectors_come_back_in_order_and_do_not_depend_on_batches(
    encoder: EncoderScorer, candidates: list[str], budget: int
) -> None:
    encoder.max_tokens = budget
    encoder.forget()
    together = encoder.encode_candidates(candidates)
    encoder.forget()
    alone = np.concatenate([encoder.encode_candidates([text]) for text in candidates])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    contexts = [Context((text, text)) for text in candidates]
    together = encoder.encode_contexts(contexts)[0]
    alone = np.concatenate([encoder.encode_contexts([context])[0] for context in contexts])
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_many_texts_have_the_same_ids_as_each_alone(tiny_backbone: Path) -> None:
    words = BackboneTexts(load_subwords(tiny_backbone), POLICY, 128)
    many = [" ".join(WORDS[i % 20 :][: 1 + i % 19]) + "é ﬁ \x00 [SEP]" * (i % 3) for i in range(200)] + ["", " "]
    assert words.all_candidate_ids(many) == [words.candidate_ids(text) for text in many]


@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(candidates=texts, budget=st.sampled_from([1, 4096]))
def test_scores_of_pairs_do_not_depend_on_batches(tiny_backbone: Path, candidates: list[str], budget: int) -> None:
    cross = scorer(tiny_backbone, CrossConfig(backbone=str(tiny_backbone)))
    cross.max_tokens = budget
    context = Context(("hello", "my wifi is down"))
    together = cross.score([context, context], [candidates, candidates[::-1]])
    alone = np.concatenate([cross.score([context], [[text]])[0] for text in candidates])
    np.testing.assert_allclose(together[0], alone, atol=1e-5)
    np.testing.assert_allclose(together[1][::-1], alone, atol=1e-5)


def test_narrow_weights_change_scores_slightly_and_only_the_backbone_has_them(tiny_backbone: Path) -> None:
    candidates = [" ".join(WORDS[i:]) for i in range(18)]
    contexts = [Context((text, "thanks")) for text in candidates]
    config = PolyConfig(backbone=str(tiny_backbone), n_codes=3, projection_dim=16)
    exact, narrow = scorer(tiny_backbone, config), scorer(tiny_backbone, config, "bf16", frozen=True)
    assert isinstance(exact, EncoderScorer)
    assert isinstance(narrow, EncoderScorer)
    for a, b in (
        (exact.encode_candidates(candidates), narrow.encode_candidates(candidates)),
        (exact.encode_contexts(contexts)[0], narrow.encode_contexts(contexts)[0]),
    ):
        assert a.dtype == b.dtype == np.float32
        cosines = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
        assert cosines.min() > 0.999
        assert not np.array_equal(a, b)
    assert narrow.dtype == torch.float32
    inside = {p.dtype for m in narrow.model.modules() if isinstance(m, Backbone) for p in m.parameters()}
    narrowed = {id(p) for m in narrow.model.modules() if isinstance(m, Backbone) for p in m.parameters()}
    outside = {p.dtype for p in narrow.model.parameters() if id(p) not in narrowed}
    assert (inside, outside) == ({torch.bfloat16}, {torch.float32})


def test_a_model_in_training_is_never_narrowed(tiny_backbone: Path) -> None:
    bf16 = scorer(tiny_backbone, precision="bf16")
    bf16.score([Context(("hi",))], [["hello", "thanks"]])
    assert {p.dtype for p in bf16.model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (CrossConfig, {"head": "mlp"}),
        (BiConfig, {"reduction": "first"}),
        (BiConfig, {"reduction": "first", "shared_towers": True}),
        (BiConfig, {"reduction": "mean"}),
        (PolyConfig, {"reduction": "first", "n_codes": 3}),
        (PolyConfig, {"reduction": "first", "n_codes": 3, "shared_towers": True}),
    ],
)
def test_a_last_layer_of_only_used_outputs_does_not_change_scores(
    tiny_backbone: Path, kind: type[Any], options: dict[str, Any]
) -> None:
    config: ModelConfig = kind(backbone=str(tiny_backbone), **options)
    contexts = [Context(("my wifi is down",)), Context(("hi", "please restart it", "did that"))]
    candidates = [["hello", "the light is red", ""], ["thanks " * 9, "too high"]]
    expected = scorer(tiny_backbone, config).score(contexts, candidates)
    frozen = scorer(tiny_backbone, config)
    frozen.model.read_first_outputs_only()
    for found, right in zip(frozen.score(contexts, candidates), expected, strict=True):
        np.testing.assert_allclose(found, right, atol=1e-5)
    sides = ["backbone"] if kind is CrossConfig else ["context_tower", "candidate_tower"]
    parts = {side: getattr(frozen.model, side).modules() for side in sides}
    shortened = {side for side, modules in parts.items() if any(isinstance(m, FirstOutput) for m in modules)}
    poly = {"candidate_tower"} if isinstance(config, PolyConfig) and not config.shared_towers else set()
    whole = poly if kind is PolyConfig else set(sides)
    assert shortened == (whole if options.get("reduction") != "mean" else set())


def test_a_pool_of_any_size_is_encoded_once(tiny_backbone: Path) -> None:
    model, texts, _ = new_model(BiConfig(backbone=str(tiny_backbone)), POLICY, seed=1, sample=())
    scorer = make_scorer(model, texts, device="cpu")
    scorer.max_remembered = 3
    asked: list[int] = []
    encode = texts.all_candidate_ids
    texts.all_candidate_ids = lambda new: (asked.append(len(new)), encode(new))[1]  # type: ignore[method-assign]
    pool = ["wifi", "bill", "router", "thanks", "hello"]
    for _ in range(3):
        scorer.score_pool([Context(("hi",))], pool)
    assert sum(asked) == 5


# every kind of model

KINDS: dict[str, Any] = {
    "bi": BiConfig(reduction="first"),
    "bi, mean, one tower, projected": BiConfig(reduction="mean", shared_towers=True, projection_dim=8),
    "bi, root of n": BiConfig(reduction="sqrt_n"),
    "poly, learnt": PolyConfig(n_codes=5, code_init="normal"),
    "poly, first": PolyConfig(codes="first", n_codes=5),
    "poly, last": PolyConfig(codes="last", n_codes=5),
    "poly, last and first": PolyConfig(codes="last_h1", n_codes=5, shared_towers=True),
    "cross": CrossConfig(),
    "cross, two layers": CrossConfig(head="mlp"),
    "convert": convert_models.TINY,
    "convert, one context": dataclasses.replace(convert_models.TINY, multi_context=False),
}
LONG = Context(tuple(f"{a} {b} please" for a in WORDS[:4] for b in WORDS[4:8]))
MIXED = [Context(("hi",)), LONG, Context(("my wifi is down", "did that")), Context(("",)), Context(("the light", "x"))]
LISTS = [
    ["thanks", "restart the router", "the bill is too high " * 3],
    [""],
    ["did that", "thanks"],
    ["hello the light is green", "a b c d e f g h i j", "restart it", "thanks"],
    ["the router"],
]


def of_kind(backbone: Path, kind: str) -> tuple[Any, Any, Any]:
    """A network with its texts and its configuration."""
    config = KINDS[kind]
    if isinstance(config, ConvertConfig):
        return convert_models.make(multi_context=config.multi_context)
    return new_model(dataclasses.replace(config, backbone=str(backbone)), POLICY, seed=1, sample=["hello router"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_score_depends_only_on_its_own_pair(tiny_backbone: Path, kind: str) -> None:
    """For any batch mates, any padding, and any division into batches."""
    found = make_scorer(*of_kind(tiny_backbone, kind)[:2], device="cpu", precision="fp32")
    pool = list(dict.fromkeys(text for texts in LISTS for text in texts))

    def score(budget: int, contexts: list[Context], lists: list[list[str]]) -> list[Any]:
        found.max_tokens = budget
        found.forget()
        return found.score(contexts, lists)

    alone = [
        [float(score(1, [context], [[text]])[0][0]) for text in texts]
        for context, texts in zip(MIXED, LISTS, strict=True)
    ]
    assert len({round(value, 3) for row in alone for value in row}) > 6  # different pairs have different scores
    for budget in (60, 10_000):
        for got, row in zip(score(budget, MIXED, LISTS), alone, strict=True):
            np.testing.assert_allclose(got, row, atol=5e-5, rtol=1e-5)
    turned = score(60, MIXED[::-1], [texts[::-1] for texts in LISTS[::-1]])
    for got, row in zip(turned, alone[::-1], strict=True):
        np.testing.assert_allclose(got[::-1], row, atol=5e-5, rtol=1e-5)
    found.forget()
    whole = found.score_pool(MIXED, pool)
    for row, (values, texts) in enumerate(zip(alone, LISTS, strict=True)):
        np.testing.assert_allclose(whole[row, [pool.index(t) for t in texts]], values, atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_it_scores_the_same_bits(tiny_backbone: Path, tmp_path: Path, kind: str) -> None:
    model, texts, config = of_kind(tiny_backbone, kind)
    before = make_scorer(model, texts, device="cpu", precision="fp32")
    fingerprint = save_model(tmp_path / "m", model, texts, config)
    after = load(tmp_path / "m", device="cpu", precision="fp32")
    assert (after.fingerprint, type(after)) == (fingerprint, type(before))
    if isinstance(config, ConvertConfig):  # saving rounds the weights; loading does not
        found = load_model(tmp_path / "m")
        save_model(tmp_path / "again", found.model, found.texts, found.config)
        before, after = after, load(tmp_path / "again", device="cpu", precision="fp32")
        assert after.fingerprint == fingerprint
    for a, b in zip(before.score(MIXED, LISTS), after.score(MIXED, LISTS), strict=True):
        assert np.array_equal(a, b)
    assert np.array_equal(before.score_pool(MIXED, LISTS[3]), after.score_pool(MIXED, LISTS[3]))


@pytest.mark.parametrize("kind", ["bi", "poly, learnt", "cross", "convert"])
def test_scoring_does_not_change_a_model_in_training(tiny_backbone: Path, kind: str) -> None:
    """Scoring has no dropout and no gradients, and restores the model's mode, also after an error."""
    model, texts, _ = of_kind(tiny_backbone, kind)
    found = make_scorer(model, texts, device="cpu", precision="fp32")
    model.eval()
    calm = found.score(MIXED, LISTS)
    found.forget()
    model.train()
    for a, b in zip(calm, found.score(MIXED, LISTS), strict=True):
        assert np.array_equal(a, b)
    assert model.training
    seen: list[tuple[bool, bool]] = []

    def fail() -> None:
        with inference(model, torch.device("cpu"), torch.float32):
            seen.append((model.training, torch.is_grad_enabled()))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert seen == [(False, False)]
    assert model.training
    assert torch.is_grad_enabled()


def test_a_text_in_bf16_has_the_same_padding_in_every_batch(tiny_backbone: Path) -> None:
    """Rounding makes differences of a percent from those that padding makes in the last bits."""
    model, texts = of_kind(tiny_backbone, "bi")[:2]
    scorer = make_scorer(model, texts, device="cpu", precision="bf16")

    def widths(*lengths: int) -> dict[int, int]:
        """The padded length of rows of these lengths in batches."""
        computed = scorer.batches(lambda tokens: tokens.ids, [[5] * n for n in lengths])
        return {lengths[place]: ids.shape[1] for places, ids in computed for place in places}

    lengths = range(1, texts.max_positions + 1)
    alone = {n: widths(n)[n] for n in lengths}
    assert widths(*lengths) == widths(*lengths[::3], *lengths[1::3], *lengths[2::3]) == alone
    assert all(n <= width <= min(n + 7, texts.max_positions) for n, width in alone.items())


@pytest.mark.parametrize("kind", ["bi", "cross", "convert"])
def test_a_precision_applies_only_to_large_products(tiny_backbone: Path, kind: str) -> None:
    """In bf16 scores are fp32 numbers, close to those in fp32 but not equal."""
    model, texts, _ = of_kind(tiny_backbone, kind)
    exact = make_scorer(model, texts, device="cpu", precision="fp32").score(MIXED, LISTS)
    rough = make_scorer(model, texts, device="cpu", precision="bf16").score(MIXED, LISTS)
    for a, b in zip(exact, rough, strict=True):
        assert a.dtype == b.dtype == np.float32
    flat, near = np.concatenate(exact), np.concatenate(rough)
    assert not np.array_equal(flat, near)
    assert np.corrcoef(flat, near)[0, 1] > 0.98


def test_a_saved_model_is_opened_frozen(tiny_backbone: Path, tmp_path: Path) -> None:
    save_model(tmp_path / "m", *of_kind(tiny_backbone, "bi"))
    weights = saved_scorer(tmp_path / "m", device="cpu", precision="bf16").model.parameters()
    assert torch.bfloat16 in {weight.dtype for weight in weights}


def test_only_frozen_bf16_models_have_narrow_weights(tiny_backbone: Path) -> None:
    def dtypes(kind: str, precision: Any, *, frozen: bool) -> tuple[set[torch.dtype], torch.dtype]:
        found = make_scorer(*of_kind(tiny_backbone, kind)[:2], device="cpu", precision=precision, frozen=frozen)
        return {p.dtype for p in found.model.parameters() if p.is_floating_point()}, found.dtype

    wide, both = {torch.float32}, {torch.float32, torch.bfloat16}
    assert dtypes("bi", "fp32", frozen=True) == (wide, torch.float32)
    assert dtypes("bi", "bf16", frozen=False) == (wide, torch.bfloat16)
    assert dtypes("bi, mean, one tower, projected", "bf16", frozen=True) == (both, torch.float32)
    assert dtypes("cross", "bf16", frozen=True) == (both, torch.float32)
    assert dtypes("convert", "bf16", frozen=True) == (wide, torch.bfloat16)


# any network: an encoder's scorer on given vectors


def rows_of(arrays: Any) -> Any:
    """``[B, 3]``: sums of sines, cosines and squares over a text's real ids, independent of the batch."""
    ids, mask = arrays["ids"].astype(np.float64), arrays["mask"]
    parts = [np.sin(ids), np.cos(2 * ids), (ids / 50) ** 2]
    return np.stack([(part * mask).sum(1) for part in parts], 1).astype(np.float32)


def many_rows_of(arrays: Any) -> list[Any]:
    """One vector per id of a context, up to the batch's width, ``[B, T, 3]``; and the mask."""
    ids = arrays["ids"].astype(np.float32)
    return [np.stack([np.sin(ids), np.cos(2 * ids), ids / 50], 2), arrays["mask"]]


@pytest.fixture
def simple(tiny_backbone: Path) -> EncoderScorer:
    """An encoder with trivial arithmetic."""
    words = BackboneTexts(load_subwords(tiny_backbone), POLICY, 128)
    return EncoderScorer(ExportedEncoder(many_rows_of, lambda arrays: [rows_of(arrays)], 3), words)


def attended(contexts: Any, candidate: Any) -> float:
    """The score of one candidate ``[D]`` for the real vectors ``[M, D]`` of one context, in fp64."""
    dots = contexts.astype(np.float64) @ candidate.astype(np.float64)
    weights = np.exp(dots - dots.max())
    return float((weights / weights.sum()) @ dots)


def test_scoring_a_large_pool_in_parts_does_not_change_scores(simple: EncoderScorer) -> None:
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    pool = [f"{a} {b} {c}" for a in letters for b in letters for c in letters[:13]][:8300]
    got = simple.score_pool(MIXED[:2], pool)
    ids = [simple.texts.candidate_ids(text) for text in pool]
    assert {len(row) for row in ids} == {5}
    vectors = rows_of({"ids": np.array(ids), "mask": np.ones((len(ids), 5))})
    for row, context in enumerate(MIXED[:2]):
        asked = np.array([simple.texts.context_ids(context)])
        real = many_rows_of({"ids": asked, "mask": asked > 0})[0][0]
        wanted = [attended(real, vectors[i]) for i in (0, 1, 4000, 8190, 8191, 8192, 8193, 8299)]
        np.testing.assert_allclose(got[row, [0, 1, 4000, 8190, 8191, 8192, 8193, 8299]], wanted, rtol=1e-4, atol=1e-4)
    assert np.isfinite(got).all()


@pytest.mark.parametrize("budget", [1, 40, 4096])
def test_contexts_of_other_widths_keep_their_vectors_and_their_masks(simple: EncoderScorer, budget: int) -> None:
    simple.max_tokens = budget
    vectors, mask = simple.encode_contexts(MIXED)
    lengths = [len(simple.texts.context_ids(context)) for context in MIXED]
    assert vectors.shape == (5, max(lengths), 3)
    assert mask.sum(1).tolist() == lengths
    for row, context in enumerate(MIXED):
        ids = np.array([simple.texts.context_ids(context)])
        assert mask[row, : lengths[row]].all()
        np.testing.assert_array_equal(vectors[row, : lengths[row]], many_rows_of({"ids": ids, "mask": ids})[0][0])
    nothing, none = simple.encode_contexts([])
    assert (nothing.shape, none.shape) == ((0, 1, 3), (0, 1))


def test_vectors_are_right_for_any_state_of_the_cache(simple: EncoderScorer) -> None:
    """Texts repeat, alone, twice, together with new ones, and after the cache has been cleared."""

    def wanted(texts: list[str]) -> Any:
        ids = [simple.texts.candidate_ids(text) for text in texts]
        return np.concatenate([rows_of({"ids": np.array([row]), "mask": np.ones((1, len(row)))}) for row in ids])

    simple.max_remembered = 3
    for asked in (["wifi", "red"], ["red", "wifi", "red"], ["red", "bill"], ["wifi", "high", "too"], ["too", "red"]):
        np.testing.assert_allclose(simple.encode_candidates(asked), wanted(asked), rtol=1e-6)
        assert len(simple._remembered) <= 3
    assert simple.encode_candidates([]).shape == (0, 3)
    simple.model.candidates = lambda arrays: [2 * rows_of(arrays)]  # other weights
    np.testing.assert_allclose(simple.encode_candidates(["red"]), wanted(["red"]), rtol=1e-6)
    simple.forget()
    np.testing.assert_allclose(simple.encode_candidates(["red"]), 2 * wanted(["red"]), rtol=1e-6)


def test_a_cache_that_is_not_full_keeps_everything(simple: EncoderScorer) -> None:
    n_encoded = 0

    def count(arrays: Any) -> list[Any]:
        nonlocal n_encoded
        n_encoded += len(arrays["ids"])
        return [rows_of(arrays)]

    simple.model.candidates = count
    simple.max_remembered = 4
    for asked in (["a", "b"], ["c", "d"], ["a", "b", "c", "d"]):
        simple.encode_candidates(asked)
    assert n_encoded == 4


def test_texts_above_the_longest_are_encoded_each_time(simple: EncoderScorer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a hundred thousand documents would stay in memory."""
    monkeypatch.setattr("polyrank.scorers.encoder.LONGEST", 6)
    sizes: list[int] = []

    def count(arrays: Any) -> list[Any]:
        sizes.append(len(arrays["ids"]))
        return [rows_of(arrays)]

    simple.model.candidates = count
    texts = ["a", "wifi is", "wifi a", "", "my bill is", "wifi is"]  # of 1, 7, 6, 0 and 10 characters
    first = simple.encode_candidates(texts)
    for repeats in (1, 2):
        np.testing.assert_array_equal(simple.encode_candidates(texts), first)
        np.testing.assert_array_equal(*simple.encode_lists([texts[1:3], texts[1:3]]))
        assert sum(sizes) == 5 + repeats * (2 + 1 + 1)


def test_texts_of_similar_length_share_a_batch_longest_first() -> None:
    assert token_batches([1, 5, 3, 5, 2], max_tokens=10) == [[1, 3], [2, 4, 0]]
    assert token_batches([0, 0, 0], max_tokens=2) == [[0, 1], [2]]  # an empty text counts as one token
    assert token_batches([4, 4, 4], max_tokens=8) == [[0, 1], [2]]
    assert token_batches([7, 2], max_tokens=3) == [[0], [1]]


# an untuned backbone


def hugging_face_means(backbone: Path, texts: list[str]) -> Any:
    """Normalized means of token outputs, by transformers alone."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(backbone)
    network = BertModel.from_pretrained(backbone).eval()
    rows = []
    for text in texts:
        ids = torch.tensor([tokenizer.encode(f"[CLS] {text} [SEP]", add_special_tokens=False)])
        with torch.inference_mode():
            rows.append(network(input_ids=ids).last_hidden_state[0].double().mean(0).numpy())
    return np.stack([row / np.linalg.norm(row) for row in rows])


def test_an_untuned_backbone_scores_by_the_cosine_of_its_own_reduction(mean_pooled_backbone: Path) -> None:
    found = untuned_scorer(str(mean_pooled_backbone), device="cpu", precision="fp32")
    queries, replies = ["my wifi is down", "hello"], ["thanks", "please restart the router", "the light is red"]
    wanted = hugging_face_means(mean_pooled_backbone, queries) @ hugging_face_means(mean_pooled_backbone, replies).T
    contexts = [Context((query,)) for query in queries]
    np.testing.assert_allclose(found.score_pool(contexts, replies), wanted, atol=1e-5)
    for row, listed in enumerate(found.score(contexts, [replies, replies[:1]])):
        np.testing.assert_allclose(listed, wanted[row, : len(listed)], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found.encode_candidates(replies), axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found.encode_contexts(contexts)[0], axis=2), 1, atol=1e-6)


def test_an_untuned_backbones_fingerprint_covers_all_settings_of_its_vectors(
    mean_pooled_backbone: Path, tmp_path: Path
) -> None:
    def fingerprint(name: str, policy: TextPolicy | None = None) -> str:
        return untuned_scorer(str(tmp_path / name), policy, device="cpu", precision="fp32").fingerprint

    for name in ("same", "moved", "weight", "words", "first"):
        shutil.copytree(mean_pooled_backbone, tmp_path / name)
    network = BertModel.from_pretrained(tmp_path / "weight")
    with torch.no_grad():
        network.encoder.layer[1].output.dense.bias[3] += 1e-4
    network.save_pretrained(tmp_path / "weight")
    tokenizer = tmp_path / "words" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text("utf-8").replace('"wifi"', '"wife"'), "utf-8")
    shutil.rmtree(tmp_path / "first" / "1_Pooling")
    policy = TextPolicy(max_context_tokens=48, max_candidate_tokens=16)
    same = fingerprint("same", policy)
    assert fingerprint("same", policy) == fingerprint("moved", policy) == same
    others = {fingerprint(name, policy) for name in ("weight", "words", "first")}
    others |= {fingerprint("same"), fingerprint("same", dataclasses.replace(policy, turn_separator=" . "))}
    others.add(fingerprint("same", dataclasses.replace(policy, max_earlier_turns=3)))
    assert len(others - {same}) == 6


def test_a_setting_of_a_later_version_keeps_the_fingerprint_of_an_untuned_backbone(mean_pooled_backbone: Path) -> None:
    """Indexes that were built before ``max_earlier_turns`` existed accept the backbone."""
    scorer = untuned_scorer(str(mean_pooled_backbone), device="cpu", precision="fp32")
    keys = [field.name for field in dataclasses.fields(TextPolicy) if field.name != "max_earlier_turns"]
    now = _fingerprint("cosine", {}, scorer.texts, scorer.model)
    values = [getattr(scorer.texts.policy, key) for key in keys]
    scorer.texts.policy = dataclasses.make_dataclass("Earlier", keys)(*values)
    assert _fingerprint("cosine", {}, scorer.texts, scorer.model) == now


@pytest.mark.parametrize("kind", ["bi", "cross"])
def test_copies_of_a_text_have_equal_scores(tiny_backbone: Path, kind: str) -> None:
    made = scorer(tiny_backbone, (BiConfig if kind == "bi" else CrossConfig)(backbone=str(tiny_backbone)))
    for n in range(1, 20):  # matrix products compute the last rows in another way than the first
        (scores,) = made.score(["my wifi is down"], [["restart the router"] * n])
        assert len(set(scores.tolist())) == 1
        ranked = made.rank("my wifi is down", [Candidate(str(i), "restart the router") for i in range(n)])
        assert [reply.id for reply in ranked] == [str(i) for i in range(n)]


def test_an_encoder_with_fewer_dimensions_is_another_one(tiny_encoders: dict[str, Path]) -> None:
    def cut(*dimensions: int) -> EncoderScorer:
        one = load(str(tiny_encoders["bi"]), device="cpu")
        assert isinstance(one, EncoderScorer)
        for dimension in dimensions:
            one.truncate(dimension)
        return one

    whole, eight = cut(), cut(8)
    assert len({whole.fingerprint, eight.fingerprint, cut(4).fingerprint}) == 3
    assert eight.fingerprint == cut(8).fingerprint
    np.testing.assert_allclose(cut(whole.dimension).encode_candidates(["hi"]), whole.encode_candidates(["hi"]))
    kept = cut()
    kept.encode_candidates(["hello"])
    kept.truncate(8)
    np.testing.assert_array_equal(kept.encode_candidates(["hello"]), eight.encode_candidates(["hello"]))
    vectors = whole.encode_candidates(["hello", "restart the router"])[:, :8]
    found = eight.encode_candidates(["hello", "restart the router"])
    assert found.shape == (2, 8)
    cosines = (vectors * found).sum(1) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(found, axis=1)
    assert np.allclose(cosines, 1)


def test_each_network_of_a_ranker_warns_once_of_what_it_did_not_read(
    tiny_backbone: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parts: list[tuple[Term, tuple[float, ...]]] = []
    for n in (40, 12, 8):  # the first one reads the whole context
        policy = TextPolicy(max_context_tokens=n, max_candidate_tokens=16)
        model, words, _ = new_model(BiConfig(backbone=str(tiny_backbone)), policy, seed=n, sample=["hello router"])
        parts.append((EncoderTerm(make_scorer(model, words, device="cpu")), (1.0,)))
    ranker = Ranker(parts)
    for _ in range(2):
        ranker.rank("restart the router " * 5, ["hello", "thanks"])
    said = [record.getMessage().partition(",")[0] for record in caplog.records]
    assert said == [f"1 context did not fit into {n} tokens" for n in (12, 8)]
