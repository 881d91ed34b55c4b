"""ConveRT's network equals its formula with any padding; errors name impossible sizes."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from convert_models import ABLATIONS, BATCH, CONTEXTS, CORPUS, OTHERS, POLICY, REPLIES, TINY, Array, make, step_of
from polyrank.config.models import BiConfig, ConvertConfig, ConvertText, TextPolicy
from polyrank.errors import ArtifactError, ConfigError
from polyrank.models import Convert, new_model
from polyrank.models.artifacts import load_model, save_model
from polyrank.models.convert.quantization import from_eight_bits
from polyrank.models.start import start_model
from polyrank.records import Context
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.load import make_scorer
from polyrank.text import ConvertTexts, learn_subwords, pad
from train_settings import loss_of


class Formula:
    """The paper's network for one text in float64, partly written subword by subword for clarity."""

    def __init__(self, tensors: dict[str, torch.Tensor], config: ConvertConfig) -> None:
        self.w = {name: tensor.double().numpy() for name, tensor in tensors.items()}
        if config.quantization != "none":
            self.w["subwords.weight"] = from_eight_bits(tensors["subwords.weight"], tensors["subwords.seen"]).numpy()
        self.config = config

    def r(self, ids: list[int]) -> Array:
        c, w, n = self.config, self.w, len(ids)
        x = w["subwords.weight"][ids].astype(np.float64) * (math.sqrt(c.embedding_dim) if c.scale_embeddings else 1.0)
        for table, period in enumerate(c.position_periods):
            x = x + w[f"positions.{table}.weight"][[place % period for place in range(n)]]
        for number, span in enumerate(c.spans):
            name = f"layers.{number}"
            queries, keys = x @ w[f"{name}.queries.weight"].T, x @ w[f"{name}.keys.weight"].T
            bias = w.get(f"{name}.bias.weight")
            attended = []
            for head in range(c.n_heads):
                part = slice(head * c.attention_dim, (head + 1) * c.attention_dim)
                a = np.zeros((n, n))
                for i in range(n):
                    near = [j for j in range(n) if abs(j - i) <= span]
                    dots = [queries[i, part] @ keys[j, part] / math.sqrt(c.attention_dim) for j in near]
                    if bias is not None:
                        dots = [dot + bias[j - i + span, head] for dot, j in zip(dots, near, strict=True)]
                    a[i, near] = np.exp(dots) / np.exp(dots).sum()
                values = x if c.n_heads == 1 else (x @ w[f"{name}.values.weight"].T)[:, part]
                attended.append(a @ values)
            y = attended[0] if c.n_heads == 1 else np.hstack(attended) @ w[f"{name}.output.weight"].T
            x = self.norm(x + y, f"{name}.attention_norm")
            x = self.norm(
                x + self.linear(gelu(self.linear(x, f"{name}.expand")), f"{name}.contract"), f"{name}.ffn_norm"
            )
        heads = []
        queries, keys = x @ w["reduction.queries.weight"].T, x @ w["reduction.keys.weight"].T
        for head in range(c.reduction_heads):
            part = slice(head * c.attention_dim, (head + 1) * c.attention_dim)
            dots = np.exp(queries[:, part] @ keys[:, part].T / math.sqrt(c.attention_dim))
            attended = (dots / dots.sum(1, keepdims=True)) @ x
            heads.append(attended.sum(0) / math.sqrt(n))
        return np.concatenate(heads)

    def side(self, r: Array, name: str) -> Array:
        x = r
        for number in range(self.config.side_layers):
            y = gelu(self.linear(x, f"{name}.layers.{number}"))
            if self.config.side_skips:
                y = y + (x if len(x) == len(y) else self.w[f"{name}.skip.weight"] @ x)
            x = self.norm(y, f"{name}.norms.{number}")
        h = self.linear(x, f"{name}.output")
        unit: Array = h / np.linalg.norm(h)
        return unit

    def context(self, immediate: list[int], earlier: list[int]) -> Array:
        h = self.side(self.r(immediate), "context_side")
        if not self.config.multi_context:
            return h
        mean = (h + self.side(self.r(earlier), "earlier_side")) / 2 if earlier else h
        if self.config.combination == "mean":
            unit: Array = mean / np.linalg.norm(mean)
            return unit
        return self.side(mean, "combined_side")

    def response(self, ids: list[int]) -> Array:
        return self.side(self.r(ids), "response_side")

    def linear(self, x: Array, name: str) -> Array:
        y: Array = x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]
        return y

    def norm(self, x: Array, name: str) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        y: Array = scaled * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]
        return y


def gelu(x: Array) -> Array:
    return x / (1 + np.exp(-1.702 * x))


@pytest.mark.parametrize("name", [*ABLATIONS, *OTHERS])
def test_the_network_matches_the_formula(name: str) -> None:
    changes, text = {**ABLATIONS, **OTHERS}[name]
    model, texts, config = make(policy=dataclasses.replace(POLICY, **text), **changes)
    formula = Formula(model.stored(), config)
    scorer = make_scorer(model, texts, device="cpu", precision="fp32")
    assert isinstance(scorer, EncoderScorer)
    contexts, replies = CONTEXTS[:3], REPLIES[:3]
    vectors, mask = scorer.encode_contexts(contexts)
    assert vectors.shape == (3, 1, config.output_dim)
    assert mask.all()
    scale = math.sqrt(config.output_dim)
    wanted = [formula.context(texts.immediate_ids(c), texts.earlier_ids(c)) * scale for c in contexts]
    np.testing.assert_allclose(vectors[:, 0], wanted, atol=2e-5)
    wanted = [formula.response(texts.candidate_ids(reply)) for reply in replies]
    np.testing.assert_allclose(scorer.encode_candidates(replies), wanted, atol=1e-5)


@pytest.mark.parametrize("name", ["default", "A multi-head", "single", "mean"])
def test_neither_padding_nor_batch_mates_matter(name: str) -> None:
    model, texts, _ = make(**{**ABLATIONS, **OTHERS}[name][0])
    model.eval()
    rows = [texts.context_ids(context) for context in CONTEXTS]
    with torch.inference_mode():
        together = model.encode_contexts(pad(rows, pad_id=0))[0]
        for row, found in zip(rows, together, strict=True):
            torch.testing.assert_close(model.encode_contexts(pad([row], pad_id=0))[0][0], found, atol=1e-5, rtol=0)
        tokens = texts.candidates(REPLIES)
        wide = dataclasses.replace(
            tokens,
            ids=torch.nn.functional.pad(tokens.ids, (0, 9), value=3),
            mask=torch.nn.functional.pad(tokens.mask, (0, 9)),
            segments=torch.nn.functional.pad(tokens.segments, (0, 9)),
        )
        torch.testing.assert_close(model.encode_candidates(tokens), model.encode_candidates(wide), atol=1e-5, rtol=0)


def test_empty_texts_have_finite_vectors_of_length_one() -> None:
    model, texts, _ = make()
    scorer = make_scorer(model, texts, device="cpu", precision="fp32")
    assert isinstance(scorer, EncoderScorer)
    np.testing.assert_allclose(np.linalg.norm(scorer.encode_candidates(["", "...", " \n"]), axis=1), 1, rtol=1e-5)
    vectors, _ = scorer.encode_contexts([Context(()), Context(("", "")), Context(("hi", ""))])
    np.testing.assert_allclose(np.linalg.norm(vectors[:, 0], axis=1), math.sqrt(12), rtol=1e-5)


def test_without_earlier_turns_only_the_immediate_context_counts() -> None:
    model, texts, _ = make()
    model.eval()
    found = model.context_encodings(texts.contexts([Context(("my wifi is down",)), Context(("hi", "my wifi is down"))]))
    assert found.has_earlier.tolist() == [False, True]
    torch.testing.assert_close(found.immediate[0], found.immediate[1])
    assert not found.earlier[0].any()
    assert model.combined_side is not None
    torch.testing.assert_close(found.both[0], model.combined_side(found.immediate[:1])[0])
    assert not torch.allclose(found.both[0], found.both[1])
    mean, texts, _ = make(combination="mean")
    found = mean.eval().context_encodings(texts.contexts([Context(("my wifi is down",))]))
    torch.testing.assert_close(found.both, found.immediate)


def test_a_context_has_earlier_turns_if_the_network_reads_some() -> None:
    model, texts, _ = make()
    end = [texts.subwords.boundary_id]
    contexts = [("wifi",), ("hi", "wifi"), ("", "wifi"), ("hi", ""), ("", ""), ("hi", "", "wifi"), ()]
    rows = [[*texts.context_ids(Context(turns))] for turns in contexts] + [[1], [1, *end], [1, *end, 2], end, []]
    found = model.eval().context_encodings(pad(rows, pad_id=0)).has_earlier.tolist()
    assert [model.has_earlier(row) for row in rows] == found
    assert found[:3] == [False, True, False]
    assert found[-5:] == [False, False, True, False, False]


@pytest.mark.parametrize("equal", [True, False])
def test_equal_sides_are_those_of_contexts_replies_and_earlier_turns(equal: bool) -> None:
    config = dataclasses.replace(TINY, equal_sides=equal)
    model = new_model(config, POLICY, seed=1, sample=(), corpus=CORPUS)[0]
    assert isinstance(model, Convert)
    weights = [
        [tuple(weight.flatten().tolist()) for weight in (side.layers[0].weight, side.output.weight)]  # type: ignore[union-attr, operator]  # of linear maps
        for side in (model.context_side, model.response_side, model.earlier_side)
        if side is not None
    ]
    assert len(weights) == 3
    assert [one == weights[0] for one in weights] == [True, equal, equal]
    assert len({id(side) for side in (model.context_side, model.response_side, model.earlier_side)}) == 3
    for side in (model.context_side, model.response_side, model.earlier_side, model.combined_side):
        for layer in (*side.layers, side.output):  # type: ignore[union-attr, misc]  # of linear maps
            rows = layer.weight if len(layer.weight) <= layer.weight.shape[1] else layer.weight.T  # type: ignore[union-attr, arg-type, index]
            torch.testing.assert_close(rows @ rows.T, torch.eye(len(rows)), atol=1e-5, rtol=0)  # type: ignore[operator, union-attr, arg-type]
    drawn = {name: weight.detach() for name, weight in model.named_parameters()}
    for name, room in (("subwords.weight", 0.1), ("positions.0.weight", 0.5)):
        assert float(16 * drawn[name].square().mean()) == pytest.approx(1, rel=room)  # of 16 dimensions
    for name in ("layers.0.expand.weight", "reduction.keys.weight"):
        bound = math.sqrt(6 / sum(drawn[name].shape))  # Glorot's
        assert 0.9 * bound < float(drawn[name].abs().max()) <= bound
    assert not any(layer.bias.weight.any() for layer in model.layers)  # type: ignore[union-attr, operator]  # no offset is preferred


def test_equal_sides_start_from_word_similarity() -> None:
    config = dataclasses.replace(TINY, equal_sides=True, combination="mean")
    model, texts, _ = new_model(config, POLICY, seed=1, sample=(), corpus=CORPUS)
    scorer = make_scorer(model, texts, device="cpu", precision="fp32")
    for reply in REPLIES[:3]:
        other = [text for text in REPLIES[:3] if text != reply]
        values = scorer.score([Context((reply,))], [[reply, *other]])[0]
        assert values[0] == pytest.approx(math.sqrt(12), rel=1e-5)
        assert values[0] > values[1:].max()


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_changes_the_network_and_trains(name: str) -> None:
    changes, text = ABLATIONS[name]
    policy = dataclasses.replace(POLICY, **text)
    whole, (model, texts, _) = make()[0], make(policy=policy, **changes)
    if name.startswith("C"):  # as many layer weights, but more offsets
        assert model.layers[0].span != whole.layers[0].span
    shapes = [{n: tuple(p.shape) for n, p in m.named_parameters()} for m in (whole, model)]
    assert shapes[0] != shapes[1]
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    step = step_of(model, texts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for number in range(7):  # in the first five, the scale grows
        optimizer.zero_grad()
        loss = loss_of(step, BATCH, 0, number)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == set(before)  # every weight has a gradient


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embedding_dim": 0}, "embedding_dim = 0"),
        ({"spans": ()}, "spans"),
        ({"spans": (3, 0)}, "spans"),
        ({"position_periods": ()}, "position_periods"),
        ({"reduction_heads": 0}, "reduction_heads = 0"),
        ({"dropout": 1.5}, "dropout = 1.5"),
        ({"dropout": 1.0}, "dropout = 1.0 is outside 0 to 1"),
    ],
)
def test_impossible_sizes_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**changes)


def test_text_settings_of_another_kind_are_refused(tiny_backbone: Path) -> None:
    with pytest.raises(ConfigError, match="ConvertText"):
        new_model(TINY, TextPolicy(), seed=1, sample=())
    with pytest.raises(ConfigError, match="ConveRT"):
        new_model(BiConfig(backbone=str(tiny_backbone)), POLICY, seed=1, sample=())


@pytest.mark.parametrize("dropout", [None, 0.0, 0.4])
def test_a_training_may_have_another_dropout_and_none_at_all(dropout: float | None) -> None:
    model, _, config = new_model(
        dataclasses.replace(TINY, dropout=0.2), POLICY, seed=1, sample=(), corpus=CORPUS, dropout=dropout
    )
    assert isinstance(model, Convert)
    assert isinstance(config, ConvertConfig)
    wanted = 0.2 if dropout is None else dropout
    assert [model.dropout, *(layer.dropout for layer in model.layers)] == [wanted] * (1 + len(model.layers))
    assert config.dropout == 0.2


def test_a_restored_network_has_its_own_copy_of_the_weights() -> None:
    model, _, _ = make(quantization="none")
    stored = {name: tensor.clone() for name, tensor in model.stored().items()}
    model.restore(stored)
    for tensor in stored.values():
        tensor.zero_()
    assert all(weight.any() for name, weight in model.stored().items() if name.endswith("output.weight"))


def test_dropout_follows_the_embeddings_and_the_attention_of_each_layer() -> None:
    model, texts, _ = make()
    tokens, parts = texts.candidates(REPLIES[:2]), [model, *model.layers]
    for part in (None, *parts):
        for each in parts:
            each.dropout = 0.5 if each is part else 0.0
        vectors = [torch.manual_seed(seed) and model.train().encode_candidates(tokens) for seed in (1, 1, 2)]
        assert torch.equal(vectors[0], vectors[1])
        assert torch.equal(vectors[0], vectors[2]) == (part is None)


def test_a_vocabulary_with_other_buckets_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "v.json"
    path.write_bytes(learn_subwords(CORPUS, min_count=3, n_buckets=9).to_bytes())
    with pytest.raises(ConfigError, match="n_buckets = 4"):
        make(policy=ConvertText(n_buckets=4, vocabulary=str(path)))


@pytest.mark.parametrize(
    ("model", "text", "unused"),
    [
        ({}, {"vocabulary": "V", "min_count": 4, "vocabulary_size": 9}, "text.min_count, text.vocabulary_size"),
        ({}, {"vocabulary": "V", "count_repeats": True}, "text.count_repeats"),
        ({}, {"vocabulary_size": 9, "min_count": 4}, "text.min_count"),
        ({"multi_context": False}, {"min_count": 4, "max_earlier_tokens": 9}, "text.max_earlier_tokens"),
        ({"multi_context": False}, {"min_count": 4, "max_earlier_turns": 1}, "text.max_earlier_turns"),
        ({"multi_context": False}, {"min_count": 4, "background": "after"}, "text.background"),
        ({}, {"min_count": 4, "background": "after"}, ""),
    ],
)
def test_text_settings_without_effect_are_named(
    model: dict[str, Any], text: dict[str, Any], unused: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "v.json").write_bytes(learn_subwords(CORPUS, min_count=3).to_bytes())
    text = {key: str(tmp_path / "v.json") if value == "V" else value for key, value in text.items()}
    config = dataclasses.replace(TINY, **model)
    _, texts, _ = new_model(config, ConvertText(**text), seed=1, sample=(), corpus=CORPUS)
    assert isinstance(texts, ConvertTexts)
    assert (len(texts.subwords.subwords) == 9) == ("vocabulary_size" in text and "vocabulary" not in text)
    assert texts.policy.vocabulary is None  # the folder of the model holds it
    assert caplog.messages == ([f"settings without effect on this model: {unused}"] if unused else [])


def test_a_start_has_its_own_vocabulary_and_settings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Settings inherited from the start are not named, also those that the new model does not use."""
    model, texts, config = make()
    save_model(tmp_path / "m", model, texts, config)
    alone = dataclasses.replace(config, multi_context=False, combination="mean")
    start_model(alone, texts.policy, seed=1, sample=(), start=tmp_path / "m")
    assert caplog.messages == []
    file = dataclasses.replace(texts.policy, vocabulary="v.json")
    with pytest.raises(ConfigError, match=r"vocabulary = v\.json, but train\.init_from has its own vocabulary"):
        start_model(config, file, seed=1, sample=(), start=tmp_path / "m")
    policy = dataclasses.replace(texts.policy, min_count=7, vocabulary_size=9, count_repeats=True)
    start_model(config, policy, seed=1, sample=(), start=tmp_path / "m")
    names = "text.min_count, text.vocabulary_size, text.count_repeats"
    assert caplog.messages == [f"settings without effect on this model: {names}"]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_damaged_folders_are_refused(tmp_path: Path, name: str) -> None:
    model, texts, config = make()
    save_model(tmp_path / "m", model, texts, config)
    path = tmp_path / "m" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ArtifactError, match=name):
        load_model(tmp_path / "m")
