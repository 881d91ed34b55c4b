"""Networks equal references with the same weights: transformers, sentence-transformers, the papers' equations."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel, PreTrainedTokenizerFast

from polyrank.config.models import BiConfig, ConvertConfig, CrossConfig, PolyConfig, TextPolicy
from polyrank.models import BiEncoder, Convert, CrossEncoder, PolyEncoder, new_model
from polyrank.models.backbone import FirstOutput
from polyrank.models.convert.build import build_convert
from polyrank.models.convert.layers import Layer, Reduction, SideNetwork
from polyrank.models.packing import Packing
from polyrank.records import Context
from polyrank.scorers.load import make_scorer
from polyrank.text import Tokens, pad

Array = NDArray[np.float64]
TURNS = [
    ("hello",),
    ("my wifi is down", "hi", "the router light is red please restart it"),
    ("thanks", "did that help it"),
]
CONTEXTS = [Context(turns) for turns in TURNS]
JOINED = [" [SEP] ".join(turns) for turns in TURNS]
REPLIES = ["thanks", "restart the router", "the bill is too high and the light green", "x"]
POLICY = TextPolicy(max_context_tokens=60, max_candidate_tokens=40)


@pytest.fixture(scope="module")
def tokenizer(tiny_backbone: Path) -> PreTrainedTokenizerFast:
    """transformers' own tokenizer: special tokens and segments come from its template."""
    names = ["input_ids", "token_type_ids", "attention_mask"]
    found = AutoTokenizer.from_pretrained(str(tiny_backbone), model_input_names=names)
    specials = [(name, found.convert_tokens_to_ids(name)) for name in ("[CLS]", "[SEP]")]
    found.backend_tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=specials
    )
    return found


def fresh(config: Any) -> tuple[Any, Any]:
    """A model whose parts all have different weights, so that swapped parts are detected."""
    model, texts, _ = new_model(config, POLICY, seed=5, sample=REPLIES)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model.eval(), texts


def bert_of(network: Any) -> BertModel:
    """transformers' network with the weights of polyrank's."""
    bert = BertModel(BertConfig(**network.config.to_dict()), add_pooling_layer=False)
    bert.load_state_dict(network.state_dict())
    return bert.eval()


def outputs_alone(bert: BertModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[Tensor]:
    """Outputs ``[T, D]`` of each text, computed without padding."""
    with torch.inference_mode():
        return [bert(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in texts]


def as_one(outputs: Tensor, reduction: str, n_tokens: int) -> Tensor:
    """One vector from a text's outputs, without padding."""
    if reduction == "first":
        return outputs[0]
    kept = outputs[:n_tokens] if reduction == "mean_of_first" else outputs
    total = torch.zeros(outputs.shape[1])
    for output in kept:
        total = total + output
    return total / (len(kept) ** 0.5 if reduction == "sqrt_n" else len(kept))


def test_a_padded_batch_with_segments_has_the_outputs_of_transformers(
    tiny_backbone: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    model, texts = fresh(CrossConfig(backbone=str(tiny_backbone)))
    bert = bert_of(model.backbone.network)
    pairs = list(zip(JOINED, REPLIES, strict=False))
    theirs = tokenizer(pairs, padding=True, return_tensors="pt")
    tokens = texts.pairs([(context, reply) for context, reply in zip(CONTEXTS, REPLIES, strict=False)])
    assert tokens.ids.tolist() == theirs["input_ids"].tolist()
    assert tokens.segments.tolist() == theirs["token_type_ids"].tolist()
    assert tokens.mask.long().tolist() == theirs["attention_mask"].tolist()
    with torch.inference_mode():
        own = model.backbone(tokens)
        for row, pair in enumerate(pairs):
            alone = bert(**tokenizer(*pair, return_tensors="pt")).last_hidden_state[0]
            torch.testing.assert_close(own[row, : len(alone)], alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("reduction", ["first", "mean", "mean_of_first", "sqrt_n"])
@pytest.mark.parametrize("changes", [{}, {"projection_dim": 8, "output_scale": 0.4}, {"shared_towers": True}])
def test_a_bi_encoder_scores_like_two_plain_berts(
    tiny_backbone: Path, tokenizer: PreTrainedTokenizerFast, reduction: Any, changes: dict[str, Any]
) -> None:
    tokens: Any = {"reduction_tokens": 5} if reduction == "mean_of_first" else {}
    config = BiConfig(backbone=str(tiny_backbone), reduction=reduction, **tokens, **changes)
    model, texts = fresh(config)
    assert isinstance(model, BiEncoder)
    scorer = make_scorer(model, texts, device="cpu", precision="fp32")
    sides = []
    for tower, lines in ((model.context_tower, JOINED), (model.candidate_tower, REPLIES)):
        outputs = outputs_alone(bert_of(tower.backbone.network), tokenizer, lines)
        vectors = torch.stack([as_one(output, reduction, 5) for output in outputs]) * changes.get("output_scale", 1.0)
        sides.append(vectors @ tower.projection.weight.T if "projection_dim" in changes else vectors)
    expected = (sides[0] @ sides[1].T).detach().numpy()
    np.testing.assert_allclose(scorer.score_pool(CONTEXTS, REPLIES), expected, atol=1e-3, rtol=1e-4)
    np.testing.assert_allclose(np.stack(scorer.score(CONTEXTS, [REPLIES] * 3)), expected, atol=1e-3, rtol=1e-4)
    rows = np.abs(np.diff(expected, axis=0)).max(), np.abs(np.diff(expected, axis=1)).max()
    assert min(rows) > 0.05  # texts have different scores, so the comparison is meaningful


@pytest.mark.parametrize("size", [None, 5.0])
@pytest.mark.parametrize("projection_dim", [None, 8])
def test_a_normalized_bi_encoder_scores_cosines(
    tiny_backbone: Path, tokenizer: PreTrainedTokenizerFast, size: float | None, projection_dim: int | None
) -> None:
    config = BiConfig(
        backbone=str(tiny_backbone),
        reduction="mean",
        projection_dim=projection_dim,
        match_self_score=size,
        normalize=True,
    )
    model, texts = fresh(config)
    assert isinstance(model, BiEncoder)
    sides = []
    for tower, lines in ((model.context_tower, JOINED), (model.candidate_tower, REPLIES)):
        outputs = outputs_alone(bert_of(tower.backbone.network), tokenizer, lines)
        vectors = torch.stack([as_one(output, "mean", 5) for output in outputs])
        sides.append(vectors if projection_dim is None else vectors @ tower.projection.weight.T)
    expected = torch.nn.functional.cosine_similarity(sides[0][:, None], sides[1][None], dim=-1).detach().numpy()
    scorer = make_scorer(model, texts, device="cpu", precision="fp32")
    np.testing.assert_allclose(scorer.score_pool(CONTEXTS, REPLIES), (size or 20.0) * expected, atol=1e-4)
    assert np.ptp(expected) > 0.02


@pytest.mark.parametrize(
    ("reduction", "mode"), [("first", "cls"), ("mean", "mean"), ("sqrt_n", "mean_sqrt_len_tokens")]
)
def test_a_bi_encoder_scores_like_sentence_transformers(
    tiny_backbone: Path, tokenizer: PreTrainedTokenizerFast, tmp_path: Path, reduction: Any, mode: str
) -> None:
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    model, texts = fresh(BiConfig(backbone=str(tiny_backbone), reduction=reduction))
    encoded = []
    for number, (tower, lines) in enumerate(((model.context_tower, JOINED), (model.candidate_tower, REPLIES))):
        folder = tmp_path / str(number)
        bert_of(tower.backbone.network).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        transformer = Transformer(str(folder))
        theirs = library.SentenceTransformer(modules=[transformer, Pooling(32, pooling_mode=mode)], device="cpu")
        encoded.append(theirs.encode(lines, show_progress_bar=False))
    scorer = make_scorer(model, texts, device="cpu", precision="fp32")
    expected = encoded[0] @ encoded[1].T
    np.testing.assert_allclose(scorer.score_pool(CONTEXTS, REPLIES), expected, atol=1e-3, rtol=1e-4)


def classifier_of(model: CrossEncoder) -> BertForSequenceClassification:
    """A BERT sequence classifier with one class and the weights of a Cross-encoder with an mlp head."""
    config = BertConfig(**model.backbone.config.to_dict(), num_labels=1)
    theirs = BertForSequenceClassification(config)
    pooler, classifier = model.head[0], model.head[2]
    assert isinstance(pooler, torch.nn.Linear)
    assert isinstance(classifier, torch.nn.Linear)
    network = model.backbone.network.state_dict().items()
    missing, unexpected = theirs.load_state_dict(
        {
            **{f"bert.{name}": weight for name, weight in network},
            "bert.pooler.dense.weight": pooler.weight.data,
            "bert.pooler.dense.bias": pooler.bias.data,
            "classifier.weight": classifier.weight.data,
            "classifier.bias": classifier.bias.data,
        }
    )
    assert not missing
    assert not unexpected
    return theirs.eval()


def test_a_cross_encoder_with_an_mlp_head_is_a_bert_classifier(
    tiny_backbone: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    model, texts = fresh(CrossConfig(backbone=str(tiny_backbone), head="mlp"))
    theirs = classifier_of(model)
    scorer = make_scorer(model, texts, device="cpu", precision="fp32")
    found = scorer.score(CONTEXTS, [REPLIES] * 3)
    with torch.inference_mode():
        for row, context in enumerate(JOINED):
            for column, reply in enumerate(REPLIES):
                expected = theirs(**tokenizer(context, reply, return_tensors="pt")).logits[0, 0]
                assert found[row][column] == pytest.approx(float(expected), abs=2e-5)
    assert np.ptp(np.stack(found)) > 0.01


def test_a_cross_encoder_with_a_linear_head_is_one_product_with_the_first_output(
    tiny_backbone: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    model, texts = fresh(CrossConfig(backbone=str(tiny_backbone)))
    bert = bert_of(model.backbone.network)
    weight, bias = (parameter.detach().double().numpy() for parameter in model.head.parameters())
    found = make_scorer(model, texts, device="cpu", precision="fp32").score_pool(CONTEXTS, REPLIES)
    with torch.inference_mode():
        for (row, context), (column, reply) in itertools.product(enumerate(JOINED), enumerate(REPLIES)):
            first = bert(**tokenizer(context, reply, return_tensors="pt")).last_hidden_state[0, 0].double().numpy()
            expected = sum(first[i] * weight[0, i] for i in range(32)) + bias[0]
            assert found[row, column] == pytest.approx(expected, abs=2e-5)


def test_a_cross_encoder_scores_like_sentence_transformers(
    tiny_backbone: Path, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    library = pytest.importorskip("sentence_transformers")
    model, texts = fresh(CrossConfig(backbone=str(tiny_backbone), head="mlp"))
    classifier_of(model).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    theirs = library.CrossEncoder(str(tmp_path), num_labels=1, device="cpu", local_files_only=True)
    pairs = [(context, reply) for context in JOINED for reply in REPLIES]
    expected = theirs.predict(pairs, activation_fn=torch.nn.Identity(), show_progress_bar=False).reshape(3, 4)
    found = make_scorer(model, texts, device="cpu", precision="fp32").score_pool(CONTEXTS, REPLIES)
    np.testing.assert_allclose(found, expected, atol=2e-5)


# the Poly-encoder, from the equations of section 4.4


def softmax(values: Sequence[float]) -> list[float]:
    largest = max(values)
    powers = [math.exp(value - largest) for value in values]
    return [power / sum(powers) for power in powers]


def context_vectors(h: Array, codes: Array | None, kind: str, m: int) -> list[Array]:
    """y_1 to y_m of one text's outputs h_1 to h_N."""
    if codes is not None:
        found = []
        for code in codes:
            weights = softmax([float(sum(code * output)) for output in h])
            found.append(sum((w * output for w, output in zip(weights, h, strict=True)), np.zeros(h.shape[1])))
        return found
    if kind == "first":
        return list(h[:m])
    last = [h[i] for i in range(max(len(h) - m, 0), len(h))]
    return [h[0], *last] if kind == "last_h1" and len(h) > m else last


@pytest.mark.parametrize("kind", ["learnt", "first", "last", "last_h1"])
@pytest.mark.parametrize("m", [1, 4, 30])
@pytest.mark.parametrize("changes", [{"output_scale": 0.3}, {"projection_dim": 8, "shared_towers": True}])
def test_a_poly_encoder_scores_like_its_equations(
    tiny_backbone: Path, tokenizer: PreTrainedTokenizerFast, kind: Any, m: int, changes: dict[str, Any]
) -> None:
    config = PolyConfig(
        backbone=str(tiny_backbone), codes=kind, n_codes=m, reduction="mean", code_init="normal", **changes
    )
    model, texts = fresh(config)
    assert isinstance(model, PolyEncoder)
    scale = changes.get("output_scale", 1.0)
    outputs = {}
    for side, tower, lines in (("y", model.context_tower, JOINED), ("c", model.candidate_tower, REPLIES)):
        found = outputs_alone(bert_of(tower.backbone.network), tokenizer, lines)
        outputs[side] = [output.double().numpy() * scale for output in found]
    codes = None if model.codes is None else model.codes.detach().double().numpy()
    contexts = [context_vectors(h, codes, kind, m) for h in outputs["y"]]
    candidates = [h.mean(0) for h in outputs["c"]]
    if "projection_dim" in changes:
        weights = [t.projection.weight.detach().double().numpy() for t in (model.context_tower, model.candidate_tower)]
        contexts = [[weights[0] @ y for y in ys] for ys in contexts]
        candidates = [weights[1] @ c for c in candidates]
    attended = np.zeros((3, 4, len(candidates[0])))  # [B, K, D]
    for row, ys in enumerate(contexts):
        for column, c in enumerate(candidates):
            for weight, y in zip(softmax([float(y @ c) for y in ys]), ys, strict=True):
                attended[row, column] += weight * y
    expected = [[sum(attended[i, j] * candidates[j]) for j in range(4)] for i in range(3)]
    scorer = make_scorer(model, texts, device="cpu", precision="fp32")
    np.testing.assert_allclose(scorer.score_pool(CONTEXTS, REPLIES), expected, atol=2e-3, rtol=2e-4)
    np.testing.assert_allclose(np.stack(scorer.score(CONTEXTS, [REPLIES] * 3)), expected, atol=2e-3, rtol=2e-4)
    vectors, mask = scorer.encode_contexts(CONTEXTS)
    assert mask.sum(1).tolist() == [len(ys) for ys in contexts]
    for row, ys in enumerate(contexts):
        np.testing.assert_allclose(vectors[row][mask[row]], ys, atol=1e-4, rtol=1e-4)


# one output of the last layer


@pytest.mark.parametrize("config", [BiConfig(), BiConfig(shared_towers=True), PolyConfig(n_codes=3), CrossConfig()])
def test_computing_only_the_first_output_changes_no_number(tiny_backbone: Path, config: Any) -> None:
    model, texts = fresh(dataclasses.replace(config, backbone=str(tiny_backbone)))
    before = make_scorer(model, texts, device="cpu", precision="fp32").score(CONTEXTS, [REPLIES] * 3)
    model.read_first_outputs_only()
    model.read_first_outputs_only()  # a second call is harmless
    after = make_scorer(model, texts, device="cpu", precision="fp32").score(CONTEXTS, [REPLIES] * 3)
    np.testing.assert_allclose(np.stack(after), np.stack(before), atol=1e-4, rtol=1e-4)
    towers = [model] if isinstance(model, CrossEncoder) else [model.context_tower, model.candidate_tower]
    short = [isinstance(tower.backbone.network.encoder.layer[-1], FirstOutput) for tower in towers]
    assert short == [not (isinstance(model, PolyEncoder) and tower is model.context_tower) for tower in towers]
    assert not any(isinstance(tower.backbone.network.encoder.layer[0], FirstOutput) for tower in towers)


@pytest.mark.parametrize(
    "config",
    [
        BiConfig(reduction="mean"),
        PolyConfig(n_codes=3, reduction="mean_of_first"),
        PolyConfig(n_codes=3, reduction="first", shared_towers=True),
    ],
)
def test_networks_that_need_more_outputs_compute_all(tiny_backbone: Path, config: Any) -> None:
    model, _ = fresh(dataclasses.replace(config, backbone=str(tiny_backbone)))
    model.read_first_outputs_only()
    assert not any(isinstance(module, FirstOutput) for module in model.modules())


# ConveRT, number by number from section 2.1


def wild(module: torch.nn.Module, seed: int = 0) -> dict[str, Array]:
    """Put random weights into a module, and return them as arrays."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5 + 0.1)
            if name == "subwords.weight":
                parameter *= 2
    return {name: parameter.detach().double().numpy() for name, parameter in module.named_parameters()}


def product(weight: Array, x: Sequence[float], bias: Array | None = None) -> list[float]:
    rows = [sum(w * value for w, value in zip(row, x, strict=True)) for row in weight]
    return rows if bias is None else [value + b for value, b in zip(rows, bias, strict=True)]


def fast_gelu(x: Sequence[float]) -> list[float]:
    return [value * (1 / (1 + math.exp(-1.702 * value))) for value in x]


def normed(x: Sequence[float], w: dict[str, Array], name: str) -> list[float]:
    mean = sum(x) / len(x)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in x) / len(x) + 1e-5)
    weight, bias = w[f"{name}.weight"], w[f"{name}.bias"]
    return [(value - mean) / deviation * g + b for value, g, b in zip(x, weight, bias, strict=True)]


def layer_by_hand(x: list[list[float]], w: dict[str, Array], span: int, prefix: str = "") -> list[list[float]]:
    """Single-head attention over subwords at most ``span`` away; values are the layer's inputs themselves."""
    queries = [product(w[f"{prefix}queries.weight"], row) for row in x]
    keys = [product(w[f"{prefix}keys.weight"], row) for row in x]
    size, found = len(queries[0]), []
    for i in range(len(x)):
        near = range(max(0, i - span), min(len(x) - 1, i + span) + 1)
        dots = [
            sum(q * k for q, k in zip(queries[i], keys[j], strict=True)) / math.sqrt(size)
            + w[f"{prefix}bias.weight"][j - i + span][0]
            for j in near
        ]
        weights = softmax(dots)
        read = [sum(p * x[j][d] for p, j in zip(weights, near, strict=True)) for d in range(len(x[0]))]
        middle = normed([a + b for a, b in zip(x[i], read, strict=True)], w, f"{prefix}attention_norm")
        wide = fast_gelu(product(w[f"{prefix}expand.weight"], middle, w[f"{prefix}expand.bias"]))
        ffn = product(w[f"{prefix}contract.weight"], wide, w[f"{prefix}contract.bias"])
        found.append(normed([a + b for a, b in zip(middle, ffn, strict=True)], w, f"{prefix}ffn_norm"))
    return found


def reduction_by_hand(x: list[list[float]], w: dict[str, Array], n_heads: int, prefix: str = "") -> list[float]:
    """Each head's attended rows, summed and divided by the square root of their number, concatenated."""
    queries = [product(w[f"{prefix}queries.weight"], row) for row in x]
    keys = [product(w[f"{prefix}keys.weight"], row) for row in x]
    size, r = len(queries[0]) // n_heads, []
    for head in range(n_heads):
        total = [0.0] * len(x[0])
        for query in queries:
            own = range(head * size, (head + 1) * size)
            weights = softmax([sum(query[d] * key[d] for d in own) / math.sqrt(size) for key in keys])
            for weight, row in zip(weights, x, strict=True):
                total = [t + weight * value for t, value in zip(total, row, strict=True)]
        r += [t / math.sqrt(len(x)) for t in total]
    return r


def side_by_hand(r: Sequence[float], w: dict[str, Array], n_layers: int, prefix: str = "") -> list[float]:
    """Layers with skips, the first skip through a map if widths differ; a last map; normalized."""
    x = list(r)
    for number in range(n_layers):
        y = fast_gelu(product(w[f"{prefix}layers.{number}.weight"], x, w[f"{prefix}layers.{number}.bias"]))
        skip = product(w[f"{prefix}skip.weight"], x) if number == 0 and f"{prefix}skip.weight" in w else x
        x = normed([a + b for a, b in zip(y, skip, strict=True)], w, f"{prefix}norms.{number}")
    h = product(w[f"{prefix}output.weight"], x, w[f"{prefix}output.bias"])
    length = math.sqrt(sum(value * value for value in h))
    return [value / length for value in h]


def padded_rows(lengths: Sequence[int], dimension: int) -> tuple[Tensor, Packing, list[list[list[float]]]]:
    """A batch's packed rows, their positions, and each text's rows as arrays."""
    mask = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]
    packed = torch.randn(sum(lengths), dimension, generator=torch.Generator().manual_seed(3))
    return packed, Packing.of(mask), [part.double().tolist() for part in packed.split(list(lengths))]


@pytest.mark.parametrize("span", [1, 3, 48])
def test_a_convert_layer_is_attention_within_its_span_by_hand(span: int) -> None:
    layer = Layer(
        6, attention_dim=4, ffn_dim=10, span=span, n_heads=1, relative_bias=True, dropout=0.0, dtype=None
    ).eval()
    w = wild(layer)
    packed, packing, texts = padded_rows((9, 2, 1), 6)
    with torch.inference_mode():
        found = layer(packed, packing)
    expected = [row for text in texts for row in layer_by_hand(text, w, span)]
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("n_heads", [1, 2, 3])
def test_the_reduction_sums_what_each_head_attends_to_over_the_root_of_the_length(n_heads: int) -> None:
    reduction = Reduction(5, attention_dim=4, n_heads=n_heads, dtype=None)
    w = wild(reduction)
    packed, packing, texts = padded_rows((7, 1, 4), 5)
    with torch.inference_mode():
        found = reduction(packed, packing)
    assert reduction.dimension == found.shape[1] == n_heads * 5
    np.testing.assert_allclose(found, [reduction_by_hand(text, w, n_heads) for text in texts], atol=1e-4)


@pytest.mark.parametrize(("n_inputs", "n_layers"), [(8, 3), (8, 1), (6, 2), (8, 0)])
def test_a_side_network_adds_its_inputs_layer_by_layer(n_inputs: int, n_layers: int) -> None:
    side = SideNetwork(n_inputs, dimension=6, n_layers=n_layers, skips=True, output_dim=5, dtype=None)
    w = wild(side)
    r = torch.randn(3, n_inputs, generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        found = side(r)
    np.testing.assert_allclose(found, [side_by_hand(row, w, n_layers) for row in r.double().tolist()], atol=1e-5)
    assert (side.skip is not None) == (n_inputs != 6 and n_layers > 0)


def test_a_convert_of_sixty_subwords_by_hand() -> None:
    """Positions repeat after 47 and after 11; spans grow; context and response have separate sides."""
    config = ConvertConfig(
        embedding_dim=6, attention_dim=3, ffn_dim=8, spans=(3, 48), side_dim=7, output_dim=5, quantization="none"
    )
    assert config.position_periods == (47, 11)
    model = build_convert(config, n_subwords=20).eval()
    assert isinstance(model, Convert)
    w = wild(model)
    ids = np.random.default_rng(0).integers(0, 20, 60).tolist()
    rows = []
    for text in (ids, ids[:4]):
        x = [
            [
                w["subwords.weight"][subword][d] * math.sqrt(6)
                + w["positions.0.weight"][place % 47][d]
                + w["positions.1.weight"][place % 11][d]
                for d in range(6)
            ]
            for place, subword in enumerate(text)
        ]
        for number, span in enumerate((3, 48)):
            x = layer_by_hand(x, w, span, f"layers.{number}.")
        rows.append(reduction_by_hand(x, w, 2, "reduction."))
    tokens: Tokens = pad([ids, ids[:4]])
    with torch.inference_mode():
        np.testing.assert_allclose(model.reduced(tokens), rows, atol=2e-3)
        contexts, mask = model.encode_contexts(tokens)
        found = model.encode_candidates(tokens)
    expected = [side_by_hand(r, w, 3, "response_side.") for r in rows]
    np.testing.assert_allclose(found, expected, atol=1e-3)
    expected = [[math.sqrt(5) * value for value in side_by_hand(r, w, 3, "context_side.")] for r in rows]
    np.testing.assert_allclose(contexts[:, 0], expected, atol=2e-3)
    assert mask.tolist() == [[True], [True]]
