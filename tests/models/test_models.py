"""Networks and scoring compared with references from the formulas, and properties that published ports broke."""

import copy
import dataclasses
import json
import shutil
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings, strategies as st
from safetensors.torch import load_file

from polyrank.config.models import BiConfig, CrossConfig, PolyConfig, Reduction, TextPolicy
from polyrank.errors import ArtifactError, ConfigError
from polyrank.loading.backbones import BackboneRef, resolve_backbone
from polyrank.loading.recipes import load_recipe
from polyrank.models import BiEncoder, CrossEncoder, PolyEncoder, new_model
from polyrank.models.artifacts import save_model
from polyrank.models.backbone import empty_backbone, load_backbone
from polyrank.models.bi_encoder import Tower
from polyrank.models.build import fit_output_scale, grow_embeddings, resolve
from polyrank.models.foreign.files import HeadLayer, _routed, describe, read_pooling
from polyrank.models.foreign.networks import SentenceEncoder, positive_label, read_layers
from polyrank.models.foreign.rerankers import prompting_of
from polyrank.models.hugging_face import max_positions
from polyrank.models.published import read_published
from polyrank.models.scoring import scores
from polyrank.models.sentence_layers import build_layer, without_last_units
from polyrank.records import Context
from polyrank.scorers.cross import CrossScorer
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.load import make_scorer
from polyrank.storage.tensors import to_bytes
from polyrank.text import BackboneTexts, Tokens, pad

POLICY = TextPolicy(max_context_tokens=40, max_candidate_tokens=12)
CONTEXTS = [
    Context(("hello",)),
    Context(("my wifi is down", "hi", "the router light is red please restart it")),
    Context(("",)),
    Context(("x",)),
]
REPLIES = ["thanks", "restart the router", "", "the bill is too high", "a b c d e f g h i j k l m n"]
HEAD_DROPOUTS = ("qa_dropout", "seq_classif_dropout", "classifier_dropout", "classifier_dropout_prob")
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
    return make(backbone, PolyConfig(backbone=str(backbone), n_codes=m, code_init="normal", **changes))


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
            h = model.context_tower(texts.contexts([context]))[0]  # [T, D], without padding
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
def test_poly_with_one_vector_equals_the_bi_encoder(tiny_backbone: Path, codes: Any) -> None:
    bi, texts = make(
        tiny_backbone, BiConfig(backbone=str(tiny_backbone), reduction="first" if codes == "first" else "mean")
    )
    one, _ = poly(tiny_backbone, 1, codes=codes, reduction=bi.reduction)
    if one.codes is not None:
        torch.nn.init.zeros_(one.codes)  # a zero code attends uniformly: the mean
    with torch.inference_mode():
        a, mask = bi.encode_contexts(texts.contexts(CONTEXTS))
        b, other = one.encode_contexts(texts.contexts(CONTEXTS))
    assert mask.shape == other.shape
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("reduction", ["first", "mean", "mean_of_first", "sqrt_n"])
def test_reductions_ignore_padding(tiny_backbone: Path, reduction: Any) -> None:
    own: Any = {"reduction_tokens": 3} if reduction == "mean_of_first" else {}
    model, texts = make(tiny_backbone, BiConfig(backbone=str(tiny_backbone), reduction=reduction, **own))
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


def test_towers_start_equal_and_are_separate_unless_shared(tiny_backbone: Path) -> None:
    two, _ = make(tiny_backbone, BiConfig(backbone=str(tiny_backbone)))
    one, _ = make(tiny_backbone, BiConfig(backbone=str(tiny_backbone), shared_towers=True))
    assert sum(p.numel() for p in two.parameters()) == 2 * sum(p.numel() for p in one.parameters())
    for a, b in zip(two.context_tower.parameters(), two.candidate_tower.parameters(), strict=True):
        assert a is not b
        torch.testing.assert_close(a, b, atol=0, rtol=0)


def test_code_initialisations(tiny_backbone: Path) -> None:
    uniform, _ = make(
        tiny_backbone, PolyConfig(backbone=str(tiny_backbone), n_codes=64)
    )  # no mean pooling: as in the papers
    assert isinstance(uniform, PolyEncoder)
    assert uniform.codes is not None
    assert 0 <= uniform.codes.min() < 0.1
    assert 0.9 < uniform.codes.max() < 1
    normal, _ = make(tiny_backbone, PolyConfig(backbone=str(tiny_backbone), n_codes=64, code_init="near_zero"))
    codes = normal.codes.detach()
    assert abs(float(codes.std()) - 0.02) < 0.002
    assert abs(float(codes.mean())) < 0.002


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_learned_codes_near_zero_have_a_rate_of_their_own(tiny_backbone: Path, variant: dict[str, Any]) -> None:
    for start in ("uniform", "normal", "near_zero"):
        model, _ = make(tiny_backbone, PolyConfig(backbone=str(tiny_backbone), n_codes=2, code_init=start, **variant))
        assert model.new_rate == (25 if (variant["codes"], start) == ("learnt", "near_zero") else 1)


def test_reduction_tokens_of_another_reduction_are_named(
    tiny_backbone: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = BiConfig(backbone=str(tiny_backbone), reduction="mean_of_first", reduction_tokens=3)
    save_model(tmp_path / "m", *new_model(first, POLICY, seed=1, sample=REPLIES))
    for reduction in (None, "mean"):
        make(tiny_backbone, dataclasses.replace(first, reduction=reduction))
    assert caplog.messages == ["settings without effect on this model: model.reduction_tokens"] * 2
    tables = {"output": str(tmp_path / "run"), "train": {"init_from": str(tmp_path / "m")}}
    for own, inherited in (({}, 3), ({"reduction": "mean"}, 16)):  # another reduction does not inherit them
        assert load_recipe({"model": {"kind": "bi", **own}, **tables}).model.reduction_tokens == inherited


@pytest.mark.parametrize("projection_dim", [None, 8])
def test_output_scale_is_fitted(tiny_backbone: Path, projection_dim: int | None) -> None:
    config = BiConfig(backbone=str(tiny_backbone), match_self_score=20.0, projection_dim=projection_dim)
    model, texts = make(tiny_backbone, config)
    vectors = model.encode_candidates(texts.candidates([reply for reply in REPLIES if reply])).detach()
    assert float(vectors.square().sum(1).mean()) == pytest.approx(20.0, rel=1e-3)
    model, texts = make(tiny_backbone, BiConfig(backbone=str(tiny_backbone), match_output_std=0.5))
    tokens = texts.candidates([reply for reply in REPLIES if reply])
    real = model.context_tower(tokens)[tokens.mask].detach()
    assert float(real.std(correction=0)) == pytest.approx(0.5, rel=1e-3)
    with pytest.raises(ConfigError, match="only one"):
        make(tiny_backbone, BiConfig(backbone=str(tiny_backbone), match_self_score=20.0, output_scale=2.0))


@pytest.mark.parametrize("kind", [BiConfig, PolyConfig])
def test_normalized_vectors_have_length_one(tiny_backbone: Path, kind: type[BiConfig]) -> None:
    model, texts = make(tiny_backbone, kind(backbone=str(tiny_backbone), match_self_score=9.0, normalize=True))
    contexts, mask = model.encode_contexts(texts.contexts(CONTEXTS))
    candidates = model.encode_candidates(texts.candidates([reply for reply in REPLIES if reply]))
    for vectors in (contexts[mask], candidates):
        torch.testing.assert_close(vectors.norm(dim=-1), torch.full(vectors.shape[:-1], 3.0))
    for other in ({"output_scale": 2.0}, {"match_output_std": 0.5}):
        with pytest.raises(ConfigError, match="normalize = true makes scores match_self_score times a cosine"):
            make(tiny_backbone, kind(backbone=str(tiny_backbone), normalize=True, **other))  # type: ignore[arg-type]


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
def test_bf16_applies_only_to_the_transformer(tiny_backbone: Path, config: Any) -> None:
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
    replay = iter(outputs)  # the same outputs of the transformer, then fp32
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


def test_encoders_and_scorers_are_distinguished(tiny_backbone: Path) -> None:
    from polyrank.scorers.protocols import Encoder, Scorer

    bi, texts = make(tiny_backbone, BiConfig(backbone=str(tiny_backbone)))
    cross, pairs = make(tiny_backbone, CrossConfig(backbone=str(tiny_backbone)))
    assert isinstance(bi, BiEncoder)
    assert isinstance(EncoderScorer(bi, texts), Encoder)
    assert isinstance(CrossScorer(cross, pairs), Scorer)
    assert not isinstance(CrossScorer(cross, pairs), Encoder)


def test_a_wrong_number_of_codes_is_refused_before_any_work() -> None:
    for n_codes in (1, 512):
        assert PolyConfig(n_codes=n_codes).n_codes == n_codes
    for n_codes in (0, 513):
        with pytest.raises(ConfigError, match=f"n_codes = {n_codes} is outside 1 to 512; choose a value between"):
            PolyConfig(n_codes=n_codes)


# networks around a backbone


def test_a_sentence_encoders_backbone_keeps_its_settings(mean_pooled_backbone: Path, tiny_backbone: Path) -> None:
    plain, pooled = read_published(str(tiny_backbone)), read_published(str(mean_pooled_backbone))
    assert pooled.poolings == ("mean",)
    own: dict[str, Any] = {"normalize": False}
    assert resolve(BiConfig(), plain) == BiConfig(reduction="first", **own)
    assert resolve(BiConfig(), pooled) == BiConfig(reduction="mean", match_self_score=20.0, **own)
    assert resolve(PolyConfig(), plain) == PolyConfig(reduction="first", code_init="uniform", **own)
    wanted = PolyConfig(reduction="mean", code_init="near_zero", match_self_score=20.0, **own)
    assert resolve(PolyConfig(), pooled) == wanted
    assert resolve(CrossConfig(), pooled) == CrossConfig()
    assert resolve(BiConfig(normalize=True), plain) == BiConfig(
        reduction="first", match_self_score=20.0, normalize=True
    )
    for given_scale in ({"output_scale": 2.0}, {"match_output_std": 0.5}, {"match_self_score": 5.0}):
        found = resolve(BiConfig(reduction="sqrt_n", **given_scale), pooled)  # type: ignore[arg-type]
        assert found == BiConfig(reduction="sqrt_n", **given_scale, **own)
    set_all = PolyConfig(reduction="first", code_init="uniform", output_scale=1.0, normalize=False)
    assert resolve(set_all, pooled) == set_all
    cosine = dataclasses.replace(pooled, cosine=True)
    assert resolve(BiConfig(), cosine) == BiConfig(reduction="mean", match_self_score=20.0, normalize=True)
    assert resolve(BiConfig(), dataclasses.replace(cosine, name="embedded")).normalize is False  # type: ignore[union-attr]
    for plain_scale in ({"output_scale": 2.0}, {"match_output_std": 0.5}):  # of vectors that are not normalized
        assert resolve(BiConfig(**plain_scale), cosine).normalize is False  # type: ignore[union-attr, arg-type]
    assert resolve(PolyConfig(), cosine).normalize is False  # type: ignore[union-attr]
    others: list[tuple[Reduction, ...]] = [("mean", "max"), ("max", "mean"), ("max",), ("first",), ()]
    for poolings in others:  # only the mean of the outputs is the vector that codes near zero start from
        other = dataclasses.replace(pooled, poolings=poolings)
        assert resolve(PolyConfig(reduction="mean"), other).code_init == "uniform"  # type: ignore[union-attr]


def test_only_the_first_output_of_a_decoder_is_refused(tiny_backbone: Path) -> None:
    sizes = {"vocab_size": 9, "n_embd": 8, "n_layer": 1, "n_head": 1}
    plain = read_published(str(tiny_backbone))
    decoder = dataclasses.replace(plain, name="it", backbone=empty_backbone({"model_type": "gpt2", **sizes}))
    assert (plain.reduction(), decoder.reduction()) == ("first", "last")
    for reduction in ("first", "last", "mean"):
        plain.check_reduction(reduction)
        with pytest.raises(ConfigError, match="it is a decoder") if reduction == "first" else nullcontext():
            decoder.check_reduction(reduction)


@pytest.mark.parametrize(("context", "candidate", "n_reported"), [(40, 40, 0), (41, 8, 1), (8, 41, 1), (90, 90, 1)])
def test_a_budget_above_the_length_of_a_models_training_is_reported(
    context: int, candidate: int, n_reported: int, mean_pooled_backbone: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = dataclasses.replace(read_published(str(mean_pooled_backbone)), name="it", max_tokens=40)
    policy = TextPolicy(max_context_tokens=context, max_candidate_tokens=candidate)
    for config in (BiConfig(reduction="mean", normalize=True), CrossConfig()):
        caplog.clear()
        known.report_left_out(config, policy)
        dataclasses.replace(known, max_tokens=None).report_left_out(config, policy)
        dataclasses.replace(known, name="embedded").report_left_out(config, policy)
        assert caplog.messages == ["the training starts from it without its limit of 40 tokens"] * n_reported
        caplog.clear()
        own = dataclasses.replace(known, cosine=True, max_tokens=None)  # the default backbone's vectors are short sums
        for name in ("it", "embedded"):
            dataclasses.replace(own, name=name).report_left_out(BiConfig(reduction="mean", normalize=False), policy)
        assert caplog.messages == ["the training starts from it without its cosine (model.normalize)"]


@pytest.mark.parametrize(
    ("labels", "label"),
    [
        (["x"], 0), (["no", "yes"], 1), (["YES", "No"], 0), (["not_entailment", "Entailment"], 1), (["a", "b"], None),
        (["yes", "true"], None), (["no", "yes", "maybe"], None), (["LABEL_0", "LABEL_1"], 1), (["0", "1"], 1),
    ],
)  # fmt: skip
def test_the_score_is_that_of_the_label_of_pairs_that_belong_together(labels: list[str], label: int | None) -> None:
    assert positive_label(dict(enumerate(labels))) == label


@pytest.mark.parametrize(
    ("path", "settings", "token"),
    [
        ("Qwen3-Reranker-0.6B", {"model_type": "qwen3"}, "yes"),
        ("my-QWEN3-RERANKER", {"model_type": "qwen3"}, "yes"),
        ("Qwen3-Reranker-0.6B", {"model_type": "gemma"}, None),
        ("models--BAAI--bge-reranker-v2-gemma/snapshots/0a1b", {"model_type": "gemma"}, "Yes"),
        ("bge-reranker-v2-gemma/inner", {"model_type": "gemma"}, None),
        ("m", {"model_type": "gemma", "_name_or_path": "BAAI/BGE-Reranker-v2-Gemma"}, "Yes"),
        ("m", {"model_type": "gemma"}, None),
    ],
)
def test_a_language_model_is_known_by_its_type_and_a_name(
    path: str, settings: dict[str, str], token: str | None, tmp_path: Path
) -> None:
    """The name is that of the folder, of the cache of the Hub, or in config.json."""
    found = prompting_of(tmp_path / "x" / "y" / path, settings)
    assert (found and found.token) == token


def test_a_folder_records_its_pooling(tiny_backbone: Path, tmp_path: Path) -> None:
    assert resolve_backbone(str(tiny_backbone)) == BackboneRef(tiny_backbone, str(tiny_backbone))
    assert read_pooling(tiny_backbone) == ()
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    (tmp_path / "1_Pooling").mkdir()
    pooling = tmp_path / "1_Pooling" / "config.json"
    for said, value, wanted in (("_mean_tokens", True, "mean"), ("", "cls", "first"), ("", ["mean"], "mean")):
        pooling.write_text(json.dumps({f"pooling_mode{said}": value}), "utf-8")
        assert read_pooling(tmp_path) == (wanted,)
    for unset in (
        {},
        {"pooling_mode_cls_token": False},
        {"pooling_mode_max_tokens": False, "word_embedding_dimension": 8},
    ):
        pooling.write_text(json.dumps(unset), "utf-8")
        assert read_pooling(tmp_path) == ("mean",)  # as in that library
    old = {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True, "pooling_mode_lasttoken": True}
    pooling.write_text(json.dumps(old), "utf-8")
    assert read_pooling(tmp_path) == ("max", "mean", "last")
    pooling.write_text('{"pooling_mode": 3}', "utf-8")
    with pytest.raises(ArtifactError, match=r"1_Pooling has a setting of a wrong type \(pooling_mode = 3 is int"):
        read_pooling(tmp_path)
    for damaged in ("{", "[1]"):
        pooling.write_text(damaged, "utf-8")
        with pytest.raises(ArtifactError, match=r"1_Pooling/config\.json is damaged .*; download the model again"):
            read_pooling(tmp_path)
    with pytest.raises(ArtifactError, match=r"has no \.safetensors weights"):
        resolve_backbone(str(tmp_path / "1_Pooling"))


@pytest.mark.deep
@pytest.mark.parametrize("what", ["match_self_score", "match_output_std"])
def test_the_scale_is_fitted_to_the_first_256_nonempty_texts(tiny_backbone: Path, what: str) -> None:
    model, texts = make(tiny_backbone, BiConfig(backbone=str(tiny_backbone), output_scale=1.0, reduction="mean"))
    sample = [f"my {'wifi ' * (i % 5)}{'abcdefgh'[i % 8]}" for i in range(256)]
    config = BiConfig(reduction="mean", **{what: 3.0})  # type: ignore[arg-type]
    model.backbone.train()
    found = fit_output_scale(model.backbone, texts, config, ["", *sample[:100], "", *sample[100:], *["hello"] * 50])
    assert model.backbone.training
    model.backbone.eval()
    sizes = []
    with torch.inference_mode():
        for text in sample:
            outputs = model.backbone(texts.candidates([text]))[0].double()
            sizes += (
                outputs.flatten().tolist() if what == "match_output_std" else [float(outputs.mean(0).square().sum())]
            )
    wanted = 3.0 / pstdev(sizes) if what == "match_output_std" else (3.0 / fmean(sizes)) ** 0.5
    assert found == pytest.approx(wanted, rel=1e-4)
    assert fit_output_scale(model.backbone, texts, BiConfig(reduction="mean"), []) == 1.0
    with pytest.raises(ConfigError, match="no candidate text to fit the output scale on"):
        fit_output_scale(model.backbone, texts, config, ["", ""])


def test_outputs_are_scaled_to_the_requested_standard_deviation(tiny_backbone: Path) -> None:
    """The root mean square of numbers around 2 is not their spread."""
    model, texts = make(tiny_backbone, BiConfig(backbone=str(tiny_backbone), output_scale=1.0))

    class Shifted(torch.nn.Module):
        def forward(self, tokens: Tokens) -> torch.Tensor:
            return model.backbone(tokens) + 2.0

    scale = fit_output_scale(Shifted(), texts, BiConfig(match_output_std=0.5), REPLIES)
    model.backbone.eval()
    with torch.inference_mode():
        numbers = torch.cat([Shifted()(texts.candidates([text]))[0].flatten() for text in REPLIES if text])
    assert float((scale * numbers).std(correction=0)) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_a_cross_encoders_head_starts_as_berts_own_layers(tiny_backbone: Path, head: Any) -> None:
    weights, biases = [], []
    for seed in range(20):
        model, _, _ = new_model(CrossConfig(backbone=str(tiny_backbone), head=head), POLICY, seed=seed, sample=())
        assert isinstance(model, CrossEncoder)
        layers = [module for module in model.head if isinstance(module, torch.nn.Linear)]
        assert [tuple(layer.weight.shape) for layer in layers] == [*([(32, 32)] if head == "mlp" else []), (1, 32)]
        weights += [layer.weight.detach().flatten() for layer in layers]
        biases += [layer.bias.detach() for layer in layers]
        assert list(model.new_parameters()) == [p for layer in layers for p in (layer.weight, layer.bias)]
    trained = CrossEncoder(model.backbone, head=head, reduction="learnt")
    assert trained.pooling.code in {*trained.new_parameters()}
    assert float(torch.cat(weights).std()) == pytest.approx(0.02, rel=0.12)
    assert not torch.cat(biases).any()


def test_new_words_start_like_others_and_unlike_each_other(tiny_backbone: Path) -> None:
    new = tuple(f"[W{i}]" for i in range(40))
    policy = dataclasses.replace(POLICY, new_tokens=new)
    model, texts, _ = new_model(BiConfig(backbone=str(tiny_backbone)), policy, seed=1, sample=REPLIES)
    assert isinstance(model, BiEncoder)
    plain = make(tiny_backbone, BiConfig(backbone=str(tiny_backbone)))[0].backbone.embeddings().weight.detach()
    found: Any = model.backbone.embeddings()
    weight, n = found.weight.detach(), len(plain)
    assert len(weight) == n + 40 == len(texts.subwords)
    assert torch.equal(weight[:n], plain)
    added = weight[n:]
    assert len(torch.unique(added, dim=0)) == 40
    off = (added - plain.mean(0)) / plain.std(0)
    assert abs(float(off.mean())) < 0.1
    assert float(off.std()) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(("kind", "longest"), [("bert", 128), ("roberta", 126), ("xlm-roberta", 126)])
def test_positions_up_to_the_padding_id_do_not_count(kind: str, longest: int) -> None:
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    backbone = empty_backbone(
        {"model_type": kind, "vocab_size": 20, "max_position_embeddings": 128, "pad_token_id": 1, **shape}
    )
    assert backbone.max_positions == longest
    if kind == "bert":  # uninitialized until weights are restored
        backbone = backbone.to_empty(device="cpu")
    n = torch.full((1, longest), 5)
    tokens = Tokens(n, torch.ones_like(n, dtype=torch.bool), torch.zeros_like(n))
    assert backbone(tokens).shape == (1, longest, 8)  # the network accepts the longest input
    assert len(backbone.layers()) == 1


def test_the_default_budgets_fit_the_network(tiny_backbone: Path, tmp_path: Path) -> None:
    for longest, budgets in ((128, (128, 72)), (40, (40, 40))):
        folder = shutil.copytree(tiny_backbone, tmp_path / str(longest))
        values = json.loads((folder / "config.json").read_text("utf-8")) | {"max_position_embeddings": longest}
        (folder / "config.json").write_text(json.dumps(values), "utf-8")
        tensors, positions = load_file(folder / "model.safetensors"), "embeddings.position_embeddings.weight"
        (folder / "model.safetensors").write_bytes(to_bytes(tensors | {positions: tensors[positions][:longest]}))
        _, texts, _ = new_model(BiConfig(backbone=str(folder)), None, seed=0, sample=REPLIES)
        assert isinstance(texts, BackboneTexts)
        assert (texts.policy.max_context_tokens, texts.policy.max_candidate_tokens) == budgets


@pytest.mark.parametrize("dropout", [None, 0.0, 0.4])
def test_dropout_is_the_backbones_or_the_requested_one(tiny_backbone: Path, dropout: float | None) -> None:
    model, _, _ = new_model(BiConfig(backbone=str(tiny_backbone)), POLICY, seed=0, sample=REPLIES, dropout=dropout)
    shares = {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}
    assert shares == {0.1 if dropout is None else dropout}
    sizes = {"vocab_size": 9, "n_embd": 8, "n_layer": 1, "n_head": 1}
    if dropout is not None:
        with pytest.raises(ConfigError, match=f"dropout = {dropout}: a gpt2 network has no dropout; leave it out"):
            empty_backbone({"model_type": "gpt2", **sizes}, dropout)


@pytest.mark.parametrize("kind", ["bert", "distilbert", "roberta", "modernbert", "t5", "albert", "falcon"])
def test_every_dropout_of_a_network_is_the_requested_one(kind: str) -> None:
    sizes = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
             "intermediate_size": 8, "dim": 8, "hidden_dim": 8, "n_layers": 1, "n_heads": 1, "embedding_size": 8,
             "d_model": 8, "d_kv": 8, "d_ff": 8, "num_layers": 1, "pad_token_id": 0}  # fmt: skip
    backbone = empty_backbone({"model_type": kind, **sizes}, dropout=0.3)
    stated = {
        name: value
        for name, value in backbone.config.to_dict().items()
        if "dropout" in name and name not in HEAD_DROPOUTS and isinstance(value, float)
    }
    assert stated
    assert {*stated.values()} == {0.3}
    shares = {module.p for module in backbone.modules() if isinstance(module, torch.nn.Dropout)}
    assert shares == {0.3}


def test_no_code_of_a_network_is_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    own = f"from transformers import DistilBertConfig, DistilBertModel\nopen({str(ran)!r}, 'w').close()\n"
    (tmp_path / "own.py").write_text(own, "utf-8")
    config = transformers.DistilBertConfig(vocab_size=9, dim=8, hidden_dim=8, n_layers=1, n_heads=1)
    transformers.DistilBertModel(config).save_pretrained(tmp_path)
    stated = json.loads((tmp_path / "config.json").read_text("utf-8"))
    network = {"AutoModel": "own.DistilBertModel"}
    for auto in (network, {**network, "AutoConfig": "own.DistilBertConfig"}):
        for more in ({}, {"model_type": "own"}, {"is_causal": False}):
            (tmp_path / "config.json").write_text(json.dumps({**stated, "auto_map": auto, **more}), "utf-8")
            if "is_causal" in more:  # then the network is transformers' own
                load_backbone(tmp_path)
            else:
                with pytest.raises(ArtifactError, match="polyrank runs no code of models"):
                    load_backbone(tmp_path)
    assert not ran.exists()


def test_the_seed_determines_only_codes_heads_and_new_words(tiny_backbone: Path) -> None:
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    config = PolyConfig(backbone=str(tiny_backbone), n_codes=4)
    codes = [new_model(config, POLICY, seed=seed, sample=REPLIES)[0].codes for seed in (1, 1, 2)]  # type: ignore[union-attr]
    assert torch.equal(codes[0], codes[1])  # type: ignore[arg-type]
    assert not torch.equal(codes[0], codes[2])  # type: ignore[arg-type]
    policy = dataclasses.replace(POLICY, new_tokens=("[EOT]",))
    models: list[Any] = [new_model(config, policy, seed=seed, sample=REPLIES)[0] for seed in (1, 1, 2)]
    words = [model.backbone.embeddings().weight for model in models]
    assert torch.equal(words[0], words[1])
    assert [torch.equal(words[0][:-1], words[2][:-1]), torch.equal(words[0][-1], words[2][-1])] == [True, False]
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("length", [None, 4.0])
def test_vectors_of_a_tower_are_cut_scaled_and_taken_apart_alike(length: float | None) -> None:
    backbone: Any = torch.nn.Identity()
    backbone.dimension = 5
    tower = Tower(backbone, 4, 2.0, length=length)
    outputs, weights = torch.randn(1, 3, 5), torch.tensor([[[0.5, 0.25, 0.25]]])
    for dimension in (4, 3):
        tower.dimension = dimension
        mixture = tower.mixture(weights, outputs, torch.ones(1, 1, dtype=torch.bool))
        vector = tower.finish((weights @ outputs)[0, 0])
        torch.testing.assert_close((mixture.weights @ mixture.outputs)[0, 0], vector)
        assert len(vector) == dimension
        assert length is None or vector.norm().item() == pytest.approx(length)
    dense = build_layer({"kind": "Dense", "n_in": 5, "n_out": 4, "bias": True, "residual": False, "adds_inputs": False,
                         "activation": "Tanh"})  # fmt: skip
    layered = Tower(backbone, None, 2.0, layers=[dense])
    torch.testing.assert_close(layered.finish(outputs[0]), 2.0 * dense(outputs[0]))  # the scale is that of vectors


def test_each_of_two_projections_is_new_and_weights_are_copied(tiny_backbone: Path) -> None:
    config = BiConfig(backbone=str(tiny_backbone), projection_dim=4)
    model, other = (new_model(config, POLICY, seed=seed, sample=REPLIES)[0] for seed in (1, 2))
    assert [id(one) for one in model.new_parameters()] == [
        id(tower.projection.weight)
        for tower in (model.context_tower, model.candidate_tower)  # type: ignore[attr-defined]  # of a Bi-encoder
    ]
    tensors = {name: tensor.clone() for name, tensor in model.stored().items()}
    other.restore(tensors)
    for tensor in tensors.values():
        tensor.fill_(7)
    for name, tensor in other.stored().items():
        assert torch.equal(tensor, model.stored()[name]), name


def test_scores_of_half_precision_are_computed_in_full() -> None:
    contexts, candidates = torch.randn(2, 3, 8).bfloat16(), torch.randn(1, 4, 8).bfloat16()
    mask = torch.ones(2, 3, dtype=torch.bool)
    assert torch.equal(scores(contexts, candidates, mask), scores(contexts.float(), candidates.float(), mask))


def test_without_a_stated_length_a_backbone_accepts_512_tokens() -> None:
    sizes = {"vocab_size": 9, "num_layers": 1, "n_layer": 1, "d_model": 8, "d_ff": 8, "d_inner": 8}
    relative = transformers.T5EncoderModel(transformers.T5Config(**sizes, num_heads=1, d_kv=8))
    assert not hasattr(relative.config, "max_position_embeddings")
    endless = transformers.XLNetModel(transformers.XLNetConfig(**sizes, n_head=1))
    assert endless.config.max_position_embeddings == -1
    assert (max_positions(relative), max_positions(endless)) == (512, 512)
    relative.config.max_position_embeddings = None
    assert max_positions(relative) == 512


@pytest.mark.parametrize("sizes", [(), (5,), (5, 3), (3, 5), (0, 5, 0), (5, 0, 3, 0)])
@pytest.mark.parametrize("projection_dim", [None, 2])
def test_a_tower_has_the_dimension_of_its_last_layer_that_changes_it(
    sizes: tuple[int, ...], projection_dim: int | None, tiny_backbone: Path
) -> None:
    backbone = empty_backbone(json.loads((tiny_backbone / "config.json").read_text()))
    layers, n_in = [], backbone.dimension
    for n_out in sizes:
        dense = {"kind": "Dense", "n_in": n_in, "n_out": n_out, "bias": True, "residual": False, "adds_inputs": False}
        layers.append(build_layer(dense | {"activation": "Tanh"} if n_out else {"kind": "Normalize"}))
        n_in = n_out or n_in
    tower = Tower(backbone, projection_dim, 1.0, layers=layers)
    vectors = tower.finish(torch.ones(4, backbone.dimension))
    assert vectors.shape == (4, tower.dimension) == (4, projection_dim or n_in)


def test_all_normalizations_at_the_end_are_left_out() -> None:
    dense = build_layer({"kind": "Dense", "n_in": 3, "n_out": 3, "bias": True, "residual": False, "adds_inputs": False,
                         "activation": "Tanh"})  # fmt: skip
    unit, norm = build_layer({"kind": "Normalize"}), build_layer({"kind": "LayerNorm", "n_out": 3})
    for kept in ([], [dense], [norm], [unit, dense], [unit, unit, norm]):
        for n in range(4):
            assert without_last_units([*kept, *[unit] * n]) == kept


def test_dropout_after_a_transformer_is_left_out(tmp_path: Path) -> None:
    """It has no effect on a trained model."""
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("Dropout", {"dropout": 0.5}), ("Pooling", {"pooling_mode": ["mean", "max"]}), ("Dropout", {}),
        ("Normalize", {}),
    ]  # fmt: skip
    modes, (layer,), dimension = read_layers([HeadLayer(kind, tmp_path, settings) for kind, settings in kinds], 8)
    assert (modes, layer.settings["kind"], dimension) == (("mean", "max"), "Normalize", 16)


def test_a_layer_of_another_size_is_refused(tmp_path: Path) -> None:
    pooling = HeadLayer("Pooling", tmp_path, {"pooling_mode": "mean"})
    for kind, tensors in (
        ("LayerNorm", {"norm.weight": torch.ones(6), "norm.bias": torch.ones(6)}),
        ("Dense", {"linear.weight": torch.ones(4, 6), "linear.bias": torch.ones(4)}),
    ):
        (tmp_path / "model.safetensors").write_bytes(to_bytes(tensors))
        layer = HeadLayer(kind, tmp_path, {})
        assert read_layers([pooling, layer], 6)[2] == len(tensors[next(iter(tensors))])
        with pytest.raises(ArtifactError, match=f"{tmp_path} needs vectors of dimension 6, and gets 8; download"):
            read_layers([pooling, layer], 8)


def test_the_most_particular_route_of_a_side_is_taken(tmp_path: Path) -> None:
    """Routes are mapped by task and kind of input; without a mapping they are named by the side, or for all texts."""
    keys = (("query", "text"), ("query", None), (None, "text"), (None, None))
    (tmp_path / "router").mkdir()
    for n in range(32):
        mapped = [key for bit, key in enumerate(keys) if n >> bit & 1]
        names = [*map(str, mapped), *(["query"] if n & 16 else []), "text", "document"]
        router = {
            "types": {f"{name}/{part}": f"type of {part}" for name in names for part in "ab"},
            "structure": {name: [f"{name}/a", f"{name}/b"] for name in names},
            "parameters": {"route_mappings": {str(key): str(key) for key in [*reversed(mapped), ("document", "text")]}},
        }
        (tmp_path / "router" / "router_config.json").write_text(json.dumps(router))
        listed = [{"path": "router", "type": "sentence_transformers.models.Router"}, {"path": "", "type": "Normalize"}]
        found = _routed(tmp_path, listed, "query")
        assert found == [
            *({"path": f"router/{names[0]}/{part}", "type": f"type of {part}"} for part in "ab"), listed[1]
        ]  # fmt: skip
        others = [listed[0] | {"type": "my_modules.Router"}, listed[0] | {"path": "../router"}]
        assert _routed(tmp_path / "router", others, "query") == others  # code of its author, and a path outside


def test_pairs_are_read_in_one_way_with_their_prompt(tmp_path: Path) -> None:
    """polyrank would score them differently from their library."""
    library, sizes = "sentence_transformers.models.", {"linear.weight": torch.ones(1, 8), "linear.bias": torch.ones(1)}
    modules = [
        {"path": "", "type": f"{library}Transformer"}, {"path": "1", "type": f"{library}Pooling"},
        {"path": "2", "type": f"{library}Dense"},
    ]  # fmt: skip
    pairs = {"model_type": "CrossEncoder", "prompts": {"a": "the "}, "default_prompt_name": "a"}
    for include_prompt, kinds, reason in (
        (True, ["Dense", "Dense"], ""), (True, ["Dense", "Normalize"], "has a Router of pairs"),
        (False, ["Dense", "Dense"], "leaves the prompt of its pairs out of the pooling"),
    ):  # fmt: skip
        router = {
            "types": {f"{side}_0": f"{library}{kind}" for side, kind in zip(("query", "document"), kinds, strict=True)},
            "structure": {"query": ["query_0"], "document": ["document_0"]}, "parameters": {},
        }  # fmt: skip
        files: dict[str, Any] = {
            "config_sentence_transformers.json": pairs, "config.json": {}, "2/config.json": {},
            "1/config.json": {"pooling_mode": "mean", "include_prompt": include_prompt},
            "3/router_config.json": router, "3/query_0/config.json": {}, "3/document_0/config.json": {},
            "modules.json": modules + [{"path": "3", "type": f"{library}Router"}] * ("Normalize" in kinds),
        }  # fmt: skip
        for name, values in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(json.dumps(values), "utf-8")
        (tmp_path / "model.safetensors").write_bytes(to_bytes(sizes))
        if reason:
            with pytest.raises(ArtifactError, match=reason):
                describe(tmp_path)
        else:
            assert (describe(tmp_path).kind, describe(tmp_path).prompts) == ("pairs", ("the ", ""))


def test_each_side_is_pooled_in_its_own_way(tiny_backbone: Path) -> None:
    model, _ = make(tiny_backbone, BiConfig(backbone=str(tiny_backbone), shared_towers=True))
    tower, tokens = model.context_tower.eval(), pad([[2, 9, 8, 7, 3], [2, 5, 3]])
    ways: list[tuple[Reduction, ...]] = [("first",), ("mean", "last"), ("sqrt_n",)]
    with torch.no_grad():
        alone = {way: SentenceEncoder([tower], [way]).encode_candidates(tokens) for way in ways}
        for context, candidate in product(ways, ways):
            encoder = SentenceEncoder([tower], [context, candidate])
            torch.testing.assert_close(encoder.encode_contexts(tokens)[0][:, 0], alone[context])
            torch.testing.assert_close(encoder.encode_candidates(tokens), alone[candidate])
            assert encoder.is_plain == (context == candidate and len(context) == 1)
            mixtures = encoder.context_mixture(tokens), encoder.candidate_mixture(tokens)
            if candidate != context or context != ("sqrt_n",):  # of one output, or of more than one sum
                assert mixtures == (None, None)
                continue
            for mixture in mixtures:
                assert mixture is not None
                torch.testing.assert_close((mixture.weights @ mixture.outputs)[:, 0], alone[context])
    for name, value in (("skipped", (0, 1)), ("skipped", (1, 0)), ("pad_id", 0)):
        encoder = SentenceEncoder([tower], [("sqrt_n",)])
        setattr(encoder, name, value)
        assert (encoder.context_mixture(tokens), encoder.candidate_mixture(tokens)) == (None, None)
    first: list[tuple[list[tuple[Reduction, ...]], tuple[int, int]]] = [
        ([("first", "max")], (0, 0)), ([("first",), ("mean",)], (0, 0)), ([("first",)], (0, 1)), ([("first",)], (0, 0)),
    ]  # fmt: skip
    for poolings, skipped in first:  # in bf16 and int8 only the outputs that are pooled are computed
        encoder = SentenceEncoder([copy.deepcopy(tower)], poolings)
        encoder.skipped = skipped
        with torch.no_grad():
            before = encoder.encode_contexts(tokens)[0], encoder.encode_candidates(tokens)
            encoder.read_first_outputs_only()
            torch.testing.assert_close((encoder.encode_contexts(tokens)[0], encoder.encode_candidates(tokens)), before)


def test_new_words_have_the_mean_and_the_deviation_of_each_dimension(tiny_backbone: Path) -> None:
    def grown(seed: int) -> torch.Tensor:
        backbone = load_backbone(tiny_backbone)
        network: Any = backbone.network
        table = network.get_input_embeddings().weight
        with torch.no_grad():
            table[:, 0], table[::2, 1], table[1::2, 1] = 7.0, 100.0, -100.0
        before = table.detach().clone()
        grow_embeddings(backbone, range(len(before) + 400), seed)  # type: ignore[arg-type]  # only its length counts
        after: torch.Tensor = network.get_input_embeddings().weight.detach()
        assert torch.equal(after[: len(before)], before)
        assert len(after) == len(before) + 400
        return after[len(before) :]

    new = grown(1)
    assert torch.equal(new[:, 0], torch.full((400,), 7.0))
    assert 80 < float(new[:, 1].std()) < 120
    assert float(new[:, 2:].std(0).max()) < 1
    assert len({tuple(row) for row in new.tolist()}) == 400
    assert torch.equal(new, grown(1))
    assert not torch.equal(new, grown(2))
