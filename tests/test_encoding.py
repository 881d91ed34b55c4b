"""Batches change nothing: not the order, not the vectors, whatever the budget, the batch mates or the precision."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import WORDS
from polyrank.config.models import BiConfig, CrossConfig, ModelConfig, PolyConfig, TextPolicy
from polyrank.models import Backbone, new_model
from polyrank.models.first_output import FirstOutput
from polyrank.records import Context
from polyrank.scorers.cross import CrossScorer
from polyrank.scorers.encoder import EncoderScorer, token_batches
from polyrank.scorers.load import make_scorer
from polyrank.text import BackboneTexts, load_subwords, pad

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


@given(rows=st.lists(st.lists(st.integers(1, 99), max_size=9), max_size=9), pad_id=st.integers(0, 3))
def test_padding_is_right_of_the_ids(rows: list[list[int]], pad_id: int) -> None:
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


def test_many_texts_have_the_ids_that_each_has_alone(tiny_backbone: Path) -> None:
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


def test_narrow_weights_give_nearly_the_same_and_only_the_backbone_is_narrow(tiny_backbone: Path) -> None:
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
def test_a_last_layer_that_computes_only_what_is_read_gives_the_same_scores(
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
    encode = scorer._encode
    scorer._encode = lambda texts: (asked.append(len(texts)), encode(texts))[1]  # type: ignore[method-assign]
    pool = ["wifi", "bill", "router", "thanks", "hello"]
    for _ in range(3):
        scorer.score_pool([Context(("hi",))], pool)
    assert sum(asked) == 5
