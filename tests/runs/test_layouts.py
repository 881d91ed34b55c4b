"""Every layout and architecture of runs/layouts.py scores as in its own library, to 1e-5."""

import functools
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import polyrank
from polyrank import Context, Example, build_index, load, tune
from polyrank.config.models import BiConfig, CrossConfig, PolyConfig, TextPolicy
from polyrank.errors import ArtifactError, ConfigError
from polyrank.models import new_model
from polyrank.models.artifacts import save_model
from polyrank.models.published import read_published
from polyrank.models.start import start_model
from polyrank.scorers.cross import CrossScorer
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.exported import export_to_sentence_transformers

sys.path.insert(0, str(Path(__file__).parents[2] / "runs"))

from layouts import (
    BYTES,
    DECODER,
    DOCUMENTS,
    LAYOUTS,
    PAGE,
    QUERIES,
    REFUSED,
    RERANKER,
    WORDS,
    Dense,
    Normalize,
    Pooling,
    SentenceTransformer,
    Transformer,
    difference,
    edited,
    encoder,
    network,
    plain_pairs,
    routed,
    theirs,
    tokenizer,
)


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder of a layout, which tests must not change."""
    return functools.cache(lambda name: LAYOUTS[name](tmp_path_factory.mktemp("layout")))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.deep if i % 9 else ()) for i, name in enumerate(LAYOUTS)]
)
def test_a_layout_scores_like_its_library(name: str, layout: Callable[[str], Path]) -> None:
    assert difference(layout(name)) <= 1e-5


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.deep if i % 9 else ()) for i, name in enumerate(REFUSED)]
)
def test_a_layout_that_would_score_differently_is_refused(name: str, tmp_path: Path) -> None:
    reason, layout = REFUSED[name]
    with pytest.raises(ArtifactError, match=reason):
        load(layout(tmp_path), device="cpu")


def test_the_page_lists_every_layout() -> None:
    page = PAGE.read_text("utf-8")
    rows = re.findall(r"^\| (.*) \| (\d.*) \|$", page, flags=re.MULTILINE)
    assert [name for name, _ in rows] == list(LAYOUTS)
    assert all(float(value) <= 1e-5 for _, value in rows)
    assert all(f"| {name} | {reason} |" in page for name, (reason, _) in REFUSED.items())


ENCODERS = [name for name in LAYOUTS if re.search("encoder|decoder|mbedding", name)]
UNTRAINED = ("messages", "left padding", "two poolings", "three poolings", "truncated", "without the prompts", "Router")


@pytest.mark.deep
@pytest.mark.parametrize("name", ENCODERS)
def test_a_training_starts_at_the_scores_of_the_loaded_model(
    name: str, layout: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A Bi-encoder on the folder, before its first step, and the folder that it saves; or the folder is refused."""
    folder = layout(name)
    policy = TextPolicy(max_context_tokens=120, max_candidate_tokens=120)
    config = BiConfig(backbone=str(folder))
    if any(reason in name for reason in UNTRAINED):
        with pytest.raises((ArtifactError, ConfigError), match=r"does not train|a training by one"):
            new_model(config, policy, seed=1, sample=DOCUMENTS)
        return
    model, texts, resolved = new_model(config, policy, seed=1, sample=DOCUMENTS)
    assert not [record for record in caplog.records if record.name.startswith("polyrank")]
    wanted = theirs(folder)
    save_model(tmp_path / "saved", model, texts, resolved)
    for scorer in (EncoderScorer(model, texts), load(tmp_path / "saved", device="cpu")):
        found = np.stack(scorer.score(QUERIES, [DOCUMENTS] * len(QUERIES)))
        factor = 20.0 if resolved.normalize else float((found * wanted).sum() / (wanted * wanted).sum())
        np.testing.assert_allclose(found / factor, wanted, rtol=1e-4, atol=1e-5)
    again = load(f"untuned:{folder}", device="cpu")
    np.testing.assert_allclose(np.stack(again.score(QUERIES, [DOCUMENTS] * 4)), wanted, rtol=1e-5, atol=1e-5)


OTHERS = [name for name in LAYOUTS if name not in ENCODERS]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.deep if i % 8 else ()) for i, name in enumerate(OTHERS)]
)
def test_a_training_from_a_reranker_reports_its_head_or_is_refused(
    name: str, layout: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    policy = TextPolicy(max_context_tokens=60, max_candidate_tokens=60)
    config = CrossConfig(backbone=str(layout(name)), reduction="mean")
    messages = ["without its scoring head"] * ("plain" in name)  # a language model has no head
    try:
        new_model(config, policy, seed=1, sample=DOCUMENTS)
    except ArtifactError as error:
        messages.append(str(error))
    assert re.search(
        "without its scoring head|does not train; choose another backbone", "".join(messages) + caplog.text
    )


def test_a_trained_start_keeps_its_layers_or_reports_them(
    layout: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = layout("Bert encoder, Dense (LaBSE)")
    policy = TextPolicy(max_context_tokens=120, max_candidate_tokens=120, context_prefix="my ")
    made = new_model(BiConfig(backbone=str(folder)), policy, seed=1, sample=DOCUMENTS)
    assert caplog.messages == [f"the training starts from {folder} without its prompts"]
    caplog.clear()
    save_model(tmp_path / "saved", *made)
    same = BiConfig(backbone=str(folder), normalize=True)
    wanted = np.stack(EncoderScorer(made[0], made[1]).score(QUERIES, [DOCUMENTS] * 4))  # type: ignore[arg-type]
    again, texts, _ = start_model(same, made[1].policy, seed=2, sample=DOCUMENTS, start=tmp_path / "saved")
    found = np.stack(EncoderScorer(again, texts).score(QUERIES, [DOCUMENTS] * 4))  # type: ignore[arg-type]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert not caplog.messages
    poly = PolyConfig(backbone=str(folder), n_codes=2)
    start_model(poly, made[1].policy, seed=2, sample=DOCUMENTS, start=tmp_path / "saved")
    assert caplog.messages == [f"the training starts from {folder} without its layers after the pooling"]


@pytest.mark.deep
@pytest.mark.parametrize(
    "name",
    [
        "Qwen3-Embedding",
        "EmbeddingGemma",
        "Bert encoder, Dense, dot product",
        "Bert encoder, LayerNorm",
        "Bert encoder, max pooling",
        "Llama encoder, weighted mean (SGPT)",
        "Roberta encoder, lower case and prompts",
        "T5 encoder",
        "Static embeddings, normalized, with prompts",
    ],
)
def test_a_model_is_exported_as_it_came(name: str, layout: Callable[[str], Path], tmp_path: Path) -> None:
    folder = layout(name)
    config = BiConfig(backbone=str(folder), shared_towers=True)
    made = new_model(config, TextPolicy(max_context_tokens=120, max_candidate_tokens=120), seed=1, sample=DOCUMENTS)
    squares = np.square(EncoderScorer(made[0], made[1]).encode_candidates(DOCUMENTS)).sum(1)  # type: ignore[arg-type]
    assert squares.mean() == pytest.approx(20, rel=1e-4)
    save_model(tmp_path / "saved", *made)
    export_to_sentence_transformers(tmp_path / "saved", tmp_path / "out")
    wanted, found = theirs(folder), theirs(tmp_path / "out")
    factor = 1.0 if made[2].normalize else float((found * wanted).sum() / (wanted * wanted).sum())
    np.testing.assert_allclose(found / factor, wanted, rtol=1e-4, atol=1e-5)


def test_vectors_of_one_length_are_compared_by_their_cosine(layout: Callable[[str], Path]) -> None:
    """Also if the model states a dot product."""
    for name, cosine in (("normalized, dot product", True), ("dot product", False), ("mean pooling", True)):
        assert read_published(str(layout(f"Bert encoder, {name}"))).cosine == cosine


@pytest.mark.parametrize("n_out", [32, 16])
def test_a_skip_connection_is_exported_with_its_weights_or_without(n_out: int, tmp_path: Path) -> None:
    """A layer of equal sizes adds its inputs, another one a linear map of them."""
    folder = encoder(tmp_path, "BertModel", Pooling(32, "mean"), Dense(32, n_out, use_residual=True), text=WORDS)
    config = BiConfig(backbone=str(folder), shared_towers=True)
    made = new_model(config, TextPolicy(max_context_tokens=120, max_candidate_tokens=120), seed=1, sample=DOCUMENTS)
    save_model(tmp_path / "saved", *made)
    export_to_sentence_transformers(tmp_path / "saved", tmp_path / "out")
    np.testing.assert_allclose(theirs(tmp_path / "out"), theirs(folder), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["Bert encoder, Dense (LaBSE)", "Static embeddings, model2vec"])
def test_two_towers_are_exported_as_a_router(name: str, layout: Callable[[str], Path], tmp_path: Path) -> None:
    config = BiConfig(backbone=str(layout(name)), projection_dim=8, normalize=False, output_scale=0.5)
    budgets = {"max_context_tokens": 120, "max_candidate_tokens": 120}
    policy = TextPolicy(**budgets, context_prefix="the query: ")
    model, texts, resolved = new_model(config, policy, seed=1, sample=DOCUMENTS)
    for parameter in model.context_tower.parameters():  # type: ignore[union-attr]  # of a Bi-encoder
        parameter.data.mul_(1.1)
    save_model(tmp_path / "saved", model, texts, resolved)
    export_to_sentence_transformers(tmp_path / "saved", tmp_path / "out")
    found = np.stack(load(tmp_path / "saved", device="cpu").score(QUERIES, [DOCUMENTS] * 4))
    np.testing.assert_allclose(found, theirs(tmp_path / "out"), rtol=1e-5, atol=1e-5)
    again = load(tmp_path / "out", device="cpu")
    np.testing.assert_allclose(np.stack(again.score(QUERIES, [DOCUMENTS] * 4)), found, rtol=1e-6, atol=1e-6)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("query", "document"),
    [
        (["BertModel", WORDS, Pooling(32, "mean")], ["RobertaModel", BYTES, Pooling(32, "mean", include_prompt=False)]),
        (["RobertaModel", BYTES, Pooling(32, "mean", include_prompt=False)], ["BertModel", WORDS, Pooling(32, "mean")]),
        (["BertModel", {"pad_token": "<far>"}, Pooling(32, "mean")], ["Static", WORDS]),
    ],
)
def test_each_side_of_a_router_has_its_own_prompt_and_padding(
    query: list[Any], document: list[Any], tmp_path: Path
) -> None:
    """The prompts have other lengths, and the other side lacks the word of the last padding."""
    prompts = {"query": "the query: ", "document": "passage of a text, which is long: "}
    folder = routed(tmp_path, query, document, Normalize(), prompts=prompts)
    assert difference(folder) <= 1e-5


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("modules", [[], [Normalize()], [Normalize(), Normalize()]], ids=len)
def test_vectors_are_cut_after_their_normalization(similarity: str, modules: list[Any], tmp_path: Path) -> None:
    others = {"text": WORDS, "similarity_fn_name": similarity, "truncate_dim": 12}
    assert difference(encoder(tmp_path, "BertModel", Pooling(32, "mean"), *modules, **others)) <= 1e-5


@pytest.mark.parametrize("name", ["Bert encoder, left padding", "Bert encoder, left padding by its model"])
def test_padding_on_the_left_is_noticed_wherever_it_is_set(name: str, tmp_path: Path) -> None:
    """Positions of a BERT then depend on the longest text of a batch."""
    with pytest.raises(ArtifactError, match=r"depend on the padding of a batch .*; set its padding_side to right"):
        load(REFUSED[name][1](tmp_path), device="cpu")


@pytest.mark.deep
def test_settings_that_change_vectors_change_the_fingerprint(tmp_path: Path) -> None:
    """Of either side of a Router; all files are the same otherwise."""
    folder = routed(tmp_path, ["BertModel", WORDS, Pooling(32, "mean")], ["BertModel", WORDS, Pooling(32, "mean")])
    ways: list[tuple[str, dict[str, Any]]] = [
        ("query_1_Pooling/config.json", {"pooling_mode": "max"}),
        ("document_1_Pooling/config.json", {"pooling_mode": "max"}),
        ("document_1_Pooling/config.json", {"pooling_mode": ["mean"]}),
        ("config_sentence_transformers.json", {"truncate_dim": 12}),
        ("config_sentence_transformers.json", {"truncate_dim": 16}),
        ("config_sentence_transformers.json", {"similarity_fn_name": "dot"}),
        ("config_sentence_transformers.json", {"prompts": {"query": "a ", "document": ""}}),
        ("config_sentence_transformers.json", {"prompts": {"query": "", "document": "a "}}),
    ]
    copies = [shutil.copytree(folder, tmp_path / str(n)) for n in range(3 + len(ways))]
    for copied, side in zip(copies[-3:], ("query", "document"), strict=False):
        (words,) = copied.glob(f"{side}_*/tokenizer.json")
        words.write_text(words.read_text("utf-8").replace('"wifi"', '"wife"'), "utf-8")
    for copied, (file, changes) in zip(copies, ways, strict=False):
        edited(copied, file, **changes)
    fingerprints = [load(one, device="cpu").fingerprint for one in (folder, *copies)]
    assert fingerprints[0] == fingerprints[-1]
    assert len({*fingerprints}) == 3 + len(ways)
    edited(folder, "document_1_Pooling/config.json", pooling_mode=["mean", "max"])
    with pytest.raises(ArtifactError, match="has query vectors of dimension 32 and document vectors of 64; choose"):
        load(folder, device="cpu")
    edited(folder, "document_0_Transformer/sentence_bert_config.json", max_seq_length=0)
    with pytest.raises(ArtifactError, match="has max_seq_length = 0, not a number of tokens"):
        load(folder, device="cpu")


@pytest.mark.deep
def test_a_router_of_two_vocabularies_is_explained(tmp_path: Path) -> None:
    """Each side by its own tokens; and its texts are cut at the limits of their sides."""
    folder = LAYOUTS["Router of a Bert and a Qwen3 encoder, dot product, truncated"](tmp_path)
    edited(folder, "document_0_Transformer/sentence_bert_config.json", max_seq_length=12)
    found: Any = load(folder, device="cpu")
    explained = polyrank.explain(found, QUERIES[0], DOCUMENTS[0])
    np.testing.assert_allclose(explained.score, found.score(QUERIES[:1], [DOCUMENTS[:1]])[0][0], rtol=1e-5)
    assert all(token.read for text in (*explained.turns, explained.candidate) for token in text.tokens)
    found.encode_candidates(["the red light " * 9])
    assert [str(cut) for cut in found.cut] == ["1 candidate did not fit into 12 tokens, so its end was not read"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"structure": {"query": ["query_0_Transformer", "query_1_Pooling"]}}, "without a route of document texts"),
        pytest.param(
            {"parameters": {"route_mappings": {"(query": "document"}}}, "damaged route_mappings", marks=pytest.mark.deep
        ),
        pytest.param({"types": {}}, "has a setting of a wrong type", marks=pytest.mark.deep),
    ],
)
def test_a_router_that_is_damaged_is_refused(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    folder = LAYOUTS["Router of a Bert and a Roberta encoder, prompts"](tmp_path)
    with pytest.raises(ArtifactError, match=reason):
        load(edited(folder, "router_config.json", **change), device="cpu")


@pytest.mark.deep
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("Bert encoder, mean pooling", {"reduction": "first", "head": "mlp"}),
        ("Roberta encoder", {"reduction": "mean"}),
        ("Qwen3-Embedding", {"reduction": "last", "head": "mlp"}),
    ],
)
def test_a_trained_cross_encoder_is_exported_with_its_scores(
    name: str, settings: dict[str, Any], layout: Callable[[str], Path], tmp_path: Path
) -> None:
    config = CrossConfig(backbone=str(layout(name)), **settings)
    policy = TextPolicy(max_context_tokens=120, max_candidate_tokens=120, context_prefix="query: ")
    model, texts, resolved = new_model(config, policy, seed=1, sample=DOCUMENTS)
    for parameter in model.new_parameters():
        parameter.data.add_(0.1)
    save_model(tmp_path / "saved", model, texts, resolved)
    export_to_sentence_transformers(tmp_path / "saved", tmp_path / "out")
    wanted = theirs(tmp_path / "out")
    for folder in ("saved", "out"):
        found = np.stack(load(tmp_path / folder, device="cpu").score(QUERIES, [DOCUMENTS] * 4))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_static_embeddings_are_a_first_stage(layout: Callable[[str], Path], tmp_path: Path) -> None:
    """They are a term of a ranker that is tuned, saved, indexed and asked, also if their vectors are cut."""
    folder = f"{layout('Static embeddings, model2vec')}#truncate_dim=24"
    assert load(folder, max_context_tokens=2**16).networks  # a table of vectors reads texts of any length
    said = [*DOCUMENTS, *QUERIES]
    lists = [Example((text,), tuple(said), (row,), f"d{row}") for row, text in enumerate(said)]
    tuning = tune([folder, "bm25"], lists, without=["words", "cross"])
    assert [row["name"] for row in tuning.rows if row["weights"]] == [folder]
    tuning.ranker.save(tmp_path / "best")
    build_index(tmp_path / "index", tmp_path / "best", said)
    with polyrank.open(tmp_path / "index") as replies:
        for text in QUERIES:  # which no reply repeats
            others = [one for one in said if one != text]
            assert replies.respond([text], 1)[0][0].text == load(tmp_path / "best").rank(text, others, 1)[0].text


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("", "Bert encoder, Dense (LaBSE)"),
        ("", "Bert encoder, dot product"),
        ("", "Bert encoder, LayerNorm"),
        ("", "Static embeddings"),
        ("untuned:", "Bert encoder, Dense (LaBSE)"),
        ("untuned:", "Static embeddings"),
    ],
)
def test_vectors_are_cut_as_in_their_library(name: str, prefix: str, layout: Callable[[str], Path]) -> None:
    folder = layout(name)
    wanted = theirs(folder, truncate_dim=12)
    found = load(f"{prefix}{folder}", truncate_dim=12, device="cpu")
    np.testing.assert_allclose(found.score_pool(QUERIES, DOCUMENTS), wanted, rtol=1e-5, atol=1e-5)
    assert found.dimension == 12  # type: ignore[attr-defined]  # of an encoder
    same = load(f"{prefix}{folder}#truncate_dim=12", device="cpu")
    assert (same.fingerprint, same.name) == (found.fingerprint, found.name)
    assert found.fingerprint != load(f"{prefix}{folder}", device="cpu").fingerprint


def test_static_embeddings_get_new_words_and_the_length_of_their_tokenizer(tmp_path: Path) -> None:
    folder = LAYOUTS["Static embeddings"](tmp_path)
    policy = TextPolicy(max_context_tokens=120, max_candidate_tokens=120, new_tokens=("[EOT]",), turn_separator="[EOT]")
    made = new_model(BiConfig(backbone=str(folder)), policy, seed=1, sample=DOCUMENTS)
    save_model(tmp_path / "saved", *made)
    contexts = [["the light", query] for query in QUERIES]
    wanted = EncoderScorer(made[0], made[1]).score_pool(contexts, DOCUMENTS)  # type: ignore[arg-type]
    np.testing.assert_array_equal(load(tmp_path / "saved", device="cpu").score_pool(contexts, DOCUMENTS), wanted)
    file = next(folder.rglob("tokenizer.json"))
    cut = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
    edited(file.parent, file.name, truncation=cut)
    found: Any = load(folder, device="cpu")
    assert len(found.texts.candidate_ids("the red light " * 9)) == 5
    short = [0, 2, 3]  # of longer queries polyrank reads the end
    np.testing.assert_allclose(found.score_pool(QUERIES, DOCUMENTS)[short], theirs(folder)[short], atol=1e-5)


def test_word_vectors_that_are_damaged_are_refused(tmp_path: Path) -> None:
    folder = LAYOUTS["Static embeddings, model2vec"](tmp_path)
    save_file({"embeddings": torch.ones(3, 32)}, folder / "model.safetensors")
    with pytest.raises(ArtifactError, match=r"the word vectors in .* are damaged \(3 vectors for "):
        load(folder, device="cpu")


@pytest.mark.deep
@pytest.mark.parametrize(
    ("name", "side"),
    [
        *((name, "right") for name in ("Qwen3Model", "Qwen3ForCausalLM", "MistralForCausalLM", "LlamaModel")),
        *(("GPT2Model", side) for side in ("left", "right")),
        ("Qwen3ForCausalLM", "left"),
    ],
)
def test_a_plain_decoder_is_read_at_its_last_token(name: str, side: str, tmp_path: Path) -> None:
    settings = {"n_embd": 32, "n_layer": 2, "n_head": 2} if name == "GPT2Model" else {}
    folder = tokenizer(network(tmp_path / "m", name, **settings), start="GPT2" not in name, padding_side=side)
    inner = Transformer(str(folder))
    wanted = SentenceTransformer(modules=[inner, Pooling(32, "lasttoken")], device="cpu")
    vectors = [np.stack([wanted.encode(text) for text in texts]) for texts in (QUERIES, DOCUMENTS)]
    cosines = np.asarray(wanted.similarity(*vectors))
    found = load(f"untuned:{folder}", device="cpu", max_candidate_tokens=120)
    np.testing.assert_allclose(np.stack(found.score(QUERIES, [DOCUMENTS] * 4)), cosines, rtol=1e-5, atol=1e-5)
    with pytest.raises(ConfigError, match=r'is a decoder, .*; set model\.reduction = "last"'):
        new_model(CrossConfig(backbone=str(folder)), None, seed=1, sample=DOCUMENTS)
    cross, texts, _ = new_model(CrossConfig(backbone=str(folder), reduction="last"), None, seed=1, sample=DOCUMENTS)
    scores = CrossScorer(cross, texts).score(QUERIES, [DOCUMENTS] * 4)
    assert len({*np.stack(scores).round(5).flatten().tolist()}) == 24


@pytest.mark.parametrize(
    ("name", "config", "missing"),
    [
        ("Bert encoder, Dense (LaBSE)", PolyConfig(n_codes=2), "layers after the pooling, cosine (model.normalize)"),
        ("Bert encoder, mean pooling", BiConfig(reduction="first"), "pooling, limit of 119 tokens"),
        ("Bert encoder, mean pooling", BiConfig(normalize=False), "cosine (model.normalize)"),
        ("Bert encoder, prompts", BiConfig(), "prompts"),
        ("Qwen3 classifier", BiConfig(), "scoring head"),
    ],
)
def test_what_a_training_leaves_out_is_reported(
    name: str, config: BiConfig, missing: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = LAYOUTS.get(name, lambda path: plain_pairs(path, "Qwen3ForSequenceClassification", DECODER))
    policy = TextPolicy(
        max_context_tokens=120, max_candidate_tokens=120, context_prefix="my " if "pr" in name else None
    )
    folder = made(tmp_path)
    if "limit" in missing:
        edited(folder, "sentence_bert_config.json", max_seq_length=119)
    new_model(replace(config, backbone=str(folder)), policy, seed=1, sample=DOCUMENTS)
    assert caplog.messages == [f"the training starts from {folder} without its {missing}"]


def logits(folder: Path, rows: list[list[int]]) -> torch.Tensor:
    """The logits ``[rows, V]`` after each row, by transformers."""
    network = AutoModelForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        return torch.stack([network(torch.tensor([row])).logits[0, -1] for row in rows])


def test_qwen3_reranker_is_read_as_on_its_card(tmp_path: Path) -> None:
    special = ["yes", "no", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    folder = plain_pairs(
        tmp_path / "Qwen3-Reranker-tiny", "Qwen3ForCausalLM", {**DECODER, "additional_special_tokens": special}
    )
    reader = AutoTokenizer.from_pretrained(folder)
    before = reader.encode(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct"
        ' provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
        add_special_tokens=False,
    )
    after = reader.encode("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", add_special_tokens=False)
    task = "Given a web search query, retrieve relevant passages that answer the query"
    texts = [f"<Instruct>: {task}\n<Query>: {query}\n<Document>: {text}" for query in QUERIES for text in DOCUMENTS[:4]]
    rows = [[*before, *reader(text, add_special_tokens=False)["input_ids"], *after] for text in texts]
    values = logits(folder, rows)[:, reader.convert_tokens_to_ids(["no", "yes"])]
    wanted = values.softmax(1)[:, 1].reshape(4, 4).numpy()
    found = load(edited(folder, "tokenizer_config.json", model_max_length=1000), device="cpu")
    np.testing.assert_allclose(np.stack(found.score(QUERIES, [DOCUMENTS[:4]] * 4)), wanted, atol=1e-5)


def test_bge_reranker_v2_gemma_is_read_as_on_its_card(tmp_path: Path) -> None:
    settings = {"end": False, "model_max_length": 1000, "additional_special_tokens": ["Yes"]}
    folder = plain_pairs(tmp_path / "m", "GemmaForCausalLM", settings, max_position_embeddings=512)
    edited(folder, "config.json", _name_or_path="BAAI/bge-reranker-v2-gemma")
    reader = AutoTokenizer.from_pretrained(folder)
    prompt = (
        "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a"
        " prediction of either 'Yes' or 'No'."
    )

    def ids(text: str) -> list[int]:
        return list(reader(text, add_special_tokens=False)["input_ids"])

    rows = [
        [reader.bos_token_id, *ids(f"A: {query}"), *ids("\n"), *ids(f"B: {text}"), *ids("\n"), *ids(prompt)]
        for query in QUERIES
        for text in DOCUMENTS[:4]
    ]
    wanted = logits(folder, rows)[:, ids("Yes")[0]].reshape(4, 4).numpy()
    found = load(folder, device="cpu")
    np.testing.assert_allclose(np.stack(found.score(QUERIES, [DOCUMENTS[:4]] * 4)), wanted, atol=1e-5)


@pytest.mark.deep
def test_mxbai_rerank_v2_is_read_as_in_its_library(tmp_path: Path) -> None:
    settings = {
        **DECODER,
        "end": False,
        "model_max_length": 4000,
        "additional_special_tokens": ["<|im_start|>", "0", "1"],
    }
    folder = plain_pairs(tmp_path / "mxbai-rerank-base-v2", "Qwen2ForCausalLM", settings, max_position_embeddings=4000)
    reader = AutoTokenizer.from_pretrained(folder)
    task = (
        "You are a search relevance expert who evaluates how well documents match search queries. For each"
        " query-document pair, carefully analyze the semantic relationship between them, then provide your binary"
        " relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:"
    )
    system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."

    def ids(*texts: str) -> list[int]:
        return [token for text in texts for token in reader(text, add_special_tokens=False)["input_ids"]]

    start = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n"
    end = "<|im_end|>\n<|im_start|>assistant\n"
    rows = [
        ids(start, f"query: {query}", "\n", f"document: {text}", "\n", task, end)
        for query in QUERIES
        for text in DOCUMENTS[:4]
    ]
    found = load(folder, device="cpu")
    values = logits(folder, rows)[:, ids("1", "0")]
    wanted = (values[:, 0] - values[:, 1]).reshape(4, 4).numpy()
    np.testing.assert_allclose(np.stack(found.score(QUERIES, [DOCUMENTS[:4]] * 4)), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tokens", [{"true_token_id": 400}, {"true_token_id": None}, {"false_token_id": "no"}])
def test_tokens_of_a_score_must_exist(tokens: dict[str, Any], tmp_path: Path) -> None:
    folder = LAYOUTS["Gemma2 re-ranker, yes alone"](tmp_path)
    edited(folder, "1_LogitScore/config.json", **tokens)
    with pytest.raises(ArtifactError, match=r"scores by the tokens .*; download the model again"):
        load(folder, device="cpu")


def test_a_language_model_without_both_tokens_is_refused(tmp_path: Path) -> None:
    folder = plain_pairs(tmp_path, "Qwen3ForCausalLM", {**WORDS, "chat_template": RERANKER})
    whole = (folder / "tokenizer.json").read_text("utf-8")
    for name in ("yes", "no"):
        assert f'"{name}":' in whole
        (folder / "tokenizer.json").write_text(whole.replace(f'"{name}":', '"another":'), "utf-8")
        with pytest.raises(ArtifactError, match="has no token yes or no; choose another re-ranker"):
            load(folder, device="cpu")


def test_a_language_model_of_another_type_is_not_taken_for_a_reranker(tmp_path: Path) -> None:
    folder = plain_pairs(tmp_path / "Qwen3-Reranker-tiny", "LlamaForCausalLM", DECODER)
    with pytest.raises(ArtifactError, match="holds a LlamaForCausalLM without a scoring head"):
        load(folder, device="cpu")


def test_a_classifier_without_padding_is_refused(tmp_path: Path) -> None:
    folder = plain_pairs(tmp_path, "Qwen3ForSequenceClassification", DECODER, pad_token_id=None)
    with pytest.raises(ArtifactError, match=r"config\.json has no pad_token_id, .*; set it"):
        load(folder, device="cpu")


def test_a_template_without_the_roles_of_pairs_is_refused(tmp_path: Path) -> None:
    template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    folder = plain_pairs(tmp_path, "Qwen3ForSequenceClassification", {**DECODER, "chat_template": template})
    with pytest.raises(ArtifactError, match="reads messages, and its chat template leaves out the roles query and"):
        load(folder, device="cpu")


def test_a_template_that_fails_is_the_reason(tmp_path: Path) -> None:
    template = "{{ raise_exception('no roles') }}"
    folder = plain_pairs(tmp_path, "Qwen3ForSequenceClassification", {**DECODER, "chat_template": template})
    with pytest.raises(ArtifactError, match=r"reads messages, and its chat template fails \(no roles\)"):
        load(folder, device="cpu")


def test_messages_that_are_too_long_keep_their_template(tmp_path: Path) -> None:
    folder = plain_pairs(
        tmp_path, "Qwen3ForSequenceClassification", {**DECODER, "chat_template": RERANKER, "model_max_length": 60}
    )
    found = load(folder, device="cpu")
    texts = found.texts  # type: ignore[attr-defined]  # a network's
    whole, _ = texts.pair_ids(Context(("red",)), "light")
    for context, candidate in (("red " * 90, "light"), ("red", "light " * 90), ("red " * 90, "light " * 90)):
        ids, segments = texts.pair_ids(Context((context,)), candidate)
        assert len(ids) == len(segments) <= 60
        assert len(ids) > 50
        assert ids[:7] == whole[:7]
        assert ids[-1] == whole[-1]
    assert [len(part) for part in found.cut[0].texts] == [1, 1, 0, 0]  # each of the two texts, once
    with pytest.raises(ConfigError, match="for its chat template alone, and 10 are allowed"):
        load(folder, device="cpu", max_context_tokens=5, max_candidate_tokens=5).score(["a"], [["b"]])


def test_a_long_message_of_one_side_keeps_its_template(tmp_path: Path) -> None:
    folder = LAYOUTS["Qwen3 encoder, saved with messages"](tmp_path)
    found = load(folder, device="cpu", max_context_tokens=40, max_candidate_tokens=40)
    texts = found.texts  # type: ignore[attr-defined]  # a network's
    context, candidate = texts.context_ids(Context(("red " * 90, "down"))), texts.candidate_ids("light " * 90)
    assert len(context) == len(candidate) == 40
    assert context[:3] == candidate[:3] == texts.context_ids(Context(("hello",)))[:3]  # <s>user:
    assert context[-1] == candidate[-1] == texts.subwords.end_id
    assert len(found.score(QUERIES, [DOCUMENTS] * 4)[0]) == len(DOCUMENTS)
    fingerprints = [load(folder, device="cpu").fingerprint]
    for file in folder.rglob("chat_template.jinja"):
        file.write_text(file.read_text("utf-8").replace("m.role", "m.role | upper"), "utf-8")
    assert load(folder, device="cpu").fingerprint not in fingerprints  # another template makes other vectors
