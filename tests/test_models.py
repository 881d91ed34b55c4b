"""Networks and scoring against references written from the formulas, and the properties that published ports broke."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrank.config.models import BiConfig, CrossConfig, PolyConfig, TextPolicy
from polyrank.errors import ConfigError
from polyrank.models import BiEncoder, CrossEncoder, PolyEncoder, new_model
from polyrank.models.scoring import scores
from polyrank.records import Context
from polyrank.scorers.cross import CrossScorer
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.load import make_scorer
from polyrank.text import pad

POLICY = TextPolicy(max_context_tokens=40, max_candidate_tokens=12)
CONTEXTS = [
    Context(("hello",)),
    Context(("my wifi is down", "hi", "the router light is red please restart it")),
    Context(("",)),
    Context(("x",)),
]
REPLIES = ["thanks", "restart the router", "", "the bill is too high", "a b c d e f g h i j k l m n"]
VARIANTS: list[dict[str, Any]] = [
    {"codes": "learnt"},
    {"codes": "first"},
    {"codes": "last"},
    {"codes": "last_h1"},
]


def make(backbone: Path, config: Any) -> tuple[Any, Any]:
    model, texts, _ = new_model(config, POLICY, seed=1, sample=REPLIES)
    return model.eval(), texts


def poly(backbone: Path, m: int, **changes: Any) -> tuple[PolyEncoder, Any]:
    return make(backbone, PolyConfig(backbone=str(backbone), n_codes=m, code_init="normal", code_std=1.0, **changes))


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.integers(1, 3), st.booleans(), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_scores_equal_the_attended_vector_written_out(b: int, m: int, k: int, d: int, shared: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    contexts = torch.randn(b, m, d, generator=generator, dtype=torch.float64).float() * 3
    candidates = torch.randn(1 if shared else b, k, d, generator=generator)
    mask = torch.rand(b, m, generator=generator) < 0.7
    mask[:, 0] = True
    got = scores(contexts, candidates, mask)
    for i in range(b):
        real = contexts[i][mask[i]]
        for j in range(k):
            candidate = candidates[0 if shared else i, j]
            weights = torch.softmax(real @ candidate, 0)
            attended = (weights[:, None] * real).sum(0)
            assert got[i, j] == pytest.approx(float(attended @ candidate), abs=1e-4)
            dots = real @ candidate
            assert dots.max() - np.log(len(real)) - 1e-4 <= got[i, j] <= dots.max() + 1e-4


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("m", [1, 3, 100])
def test_poly_encoder_equals_its_formula(tiny_backbone: Path, variant: dict[str, Any], m: int) -> None:
    model, texts = poly(tiny_backbone, m, reduction="first", **variant)
    with torch.inference_mode():
        vectors, mask = model.encode_contexts(texts.contexts(CONTEXTS))
        for i, context in enumerate(CONTEXTS):
            h = model.context_tower(texts.contexts([context]))[0]  # [T, D], alone: no padding
            n = len(h)
            if variant["codes"] == "learnt":
                expected = torch.stack([(torch.softmax(h @ code, 0)[:, None] * h).sum(0) for code in model.codes])
            elif variant["codes"] == "first":
                expected = h[:m]
            elif variant["codes"] == "last" or n <= m:
                expected = h[-m:]
            else:
                expected = torch.cat([h[:1], h[-m:]])
            torch.testing.assert_close(vectors[i][mask[i]], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("codes", ["learnt", "first"])
def test_poly_with_one_vector_is_the_bi_encoder(tiny_backbone: Path, codes: Any) -> None:
    bi, texts = make(
        tiny_backbone, BiConfig(backbone=str(tiny_backbone), reduction="first" if codes == "first" else "mean")
    )
    one, _ = poly(tiny_backbone, 1, codes=codes, reduction=bi.reduction)
    if one.codes is not None:
        torch.nn.init.zeros_(one.codes)  # a zero code attends evenly: the mean
    with torch.inference_mode():
        a, mask = bi.encode_contexts(texts.contexts(CONTEXTS))
        b, other = one.encode_contexts(texts.contexts(CONTEXTS))
    assert mask.shape == other.shape
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("reduction", ["first", "mean", "mean_of_first", "sqrt_n"])
def test_reductions_ignore_padding(tiny_backbone: Path, reduction: Any) -> None:
    model, texts = make(tiny_backbone, BiConfig(backbone=str(tiny_backbone), reduction=reduction, reduction_tokens=3))
    together = model.encode_candidates(texts.candidates(REPLIES))
    for i, reply in enumerate(REPLIES):
        torch.testing.assert_close(
            together[i], model.encode_candidates(texts.candidates([reply]))[0], atol=1e-5, rtol=1e-4
        )


@pytest.mark.parametrize(
    "config",
    [
        BiConfig(),
        BiConfig(shared_towers=True, projection_dim=8),
        *(PolyConfig(n_codes=5, **variant) for variant in VARIANTS),
        CrossConfig(),
        CrossConfig(head="mlp"),
    ],
)
def test_scores_do_not_depend_on_batch_mates(tiny_backbone: Path, config: Any) -> None:
    import dataclasses

    model, texts = make(tiny_backbone, dataclasses.replace(config, backbone=str(tiny_backbone)))
    scorer = make_scorer(model, texts, device="cpu", precision="fp32")
    together = scorer.score(CONTEXTS, [REPLIES] * len(CONTEXTS))
    pool = scorer.score_pool(CONTEXTS, REPLIES)
    for i, context in enumerate(CONTEXTS):
        alone = np.array([scorer.score([context], [[reply]])[0][0] for reply in REPLIES])
        np.testing.assert_allclose(together[i], alone, atol=2e-4)
        np.testing.assert_allclose(pool[i], alone, atol=2e-4)
        assert np.isfinite(alone).all()


def test_towers_start_equal_and_are_two_unless_shared(tiny_backbone: Path) -> None:
    two, _ = make(tiny_backbone, BiConfig(backbone=str(tiny_backbone)))
    one, _ = make(tiny_backbone, BiConfig(backbone=str(tiny_backbone), shared_towers=True))
    assert sum(p.numel() for p in two.parameters()) == 2 * sum(p.numel() for p in one.parameters())
    for a, b in zip(two.context_tower.parameters(), two.candidate_tower.parameters(), strict=True):
        assert a is not b
        torch.testing.assert_close(a, b, atol=0, rtol=0)


def test_code_initialisations(tiny_backbone: Path) -> None:
    uniform, _ = make(
        tiny_backbone, PolyConfig(backbone=str(tiny_backbone), n_codes=64)
    )  # no mean pooling: the papers'
    assert isinstance(uniform, PolyEncoder)
    assert uniform.codes is not None
    assert 0 <= uniform.codes.min() < 0.1
    assert 0.9 < uniform.codes.max() < 1
    normal, _ = make(
        tiny_backbone, PolyConfig(backbone=str(tiny_backbone), n_codes=64, code_init="normal", code_std=0.02)
    )
    codes = normal.codes.detach()
    assert abs(float(codes.std()) - 0.02) < 0.002
    assert abs(float(codes.mean())) < 0.002


def test_output_scale_is_fitted(tiny_backbone: Path) -> None:
    model, texts = make(tiny_backbone, BiConfig(backbone=str(tiny_backbone), match_self_score=20.0))
    vectors = model.encode_candidates(texts.candidates([reply for reply in REPLIES if reply])).detach()
    assert float(vectors.square().sum(1).mean()) == pytest.approx(20.0, rel=1e-3)
    model, texts = make(tiny_backbone, BiConfig(backbone=str(tiny_backbone), match_output_std=0.5))
    tokens = texts.candidates([reply for reply in REPLIES if reply])
    real = model.context_tower(tokens)[tokens.mask].detach()
    assert float(real.square().mean().sqrt()) == pytest.approx(0.5, rel=1e-3)
    with pytest.raises(ConfigError, match="only one"):
        make(tiny_backbone, BiConfig(backbone=str(tiny_backbone), match_self_score=20.0, output_scale=2.0))


def test_cross_encoder_sees_segments_and_order(tiny_backbone: Path) -> None:
    model, texts = make(tiny_backbone, CrossConfig(backbone=str(tiny_backbone)))
    assert isinstance(model, CrossEncoder)
    ids, segments = texts.pair_ids(CONTEXTS[0], "thanks")
    with torch.inference_mode():
        right = model(pad([ids], [segments]))
        flat = model(pad([ids], [[0] * len(ids)]))
    assert not torch.allclose(right, flat)


@pytest.mark.parametrize(
    "config", [BiConfig(projection_dim=8), PolyConfig(n_codes=3, code_init="uniform"), CrossConfig(head="mlp")]
)
def test_bf16_is_for_the_transformer_alone(tiny_backbone: Path, config: Any) -> None:
    model, texts = make(tiny_backbone, dataclasses.replace(config, backbone=str(tiny_backbone)))
    inside: list[torch.Tensor] = []
    model.backbone.register_forward_hook(lambda *call: inside.append(call[-1]))
    if not isinstance(model, CrossEncoder):
        model.candidate_tower.backbone.register_forward_hook(lambda *call: inside.append(call[-1]))

    def values(narrow: bool) -> torch.Tensor:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            if isinstance(model, CrossEncoder):
                return model(texts.pairs([(CONTEXTS[0], text) for text in REPLIES]))
            vectors, mask = model.encode_contexts(texts.contexts(CONTEXTS))
            return scores(vectors, model.encode_candidates(texts.candidates(REPLIES))[None], mask)

    narrow = values(True)
    assert narrow.dtype == torch.float32
    outputs = list(inside)
    replay = iter(outputs)  # the same outputs of the transformer, and fp32 from there on
    model.backbone.register_forward_hook(lambda *call: next(replay))
    if not isinstance(model, CrossEncoder):
        model.candidate_tower.backbone.register_forward_hook(lambda *call: next(replay))
    assert torch.equal(narrow, values(False))


def test_gradients_reach_every_trained_part(tiny_backbone: Path) -> None:
    model, texts = poly(tiny_backbone, 4, reduction="mean")
    vectors, mask = model.encode_contexts(texts.contexts(CONTEXTS))
    scores(vectors, model.encode_candidates(texts.candidates(REPLIES))[None], mask).sum().backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None]
    assert silent == []


def test_encoders_and_scorers_are_told_apart(tiny_backbone: Path) -> None:
    from polyrank.scorers.protocols import Encoder, Scorer

    bi, texts = make(tiny_backbone, BiConfig(backbone=str(tiny_backbone)))
    cross, pairs = make(tiny_backbone, CrossConfig(backbone=str(tiny_backbone)))
    assert isinstance(bi, BiEncoder)
    assert isinstance(EncoderScorer(bi, texts), Encoder)
    assert isinstance(CrossScorer(cross, pairs), Scorer)
    assert not isinstance(CrossScorer(cross, pairs), Encoder)


def test_too_many_codes_are_refused(tiny_backbone: Path) -> None:
    with pytest.raises(ConfigError, match="n_codes = 0 is outside 1 to 512"):
        make(tiny_backbone, PolyConfig(backbone=str(tiny_backbone), n_codes=0))
