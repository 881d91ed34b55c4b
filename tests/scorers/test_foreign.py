"""Third-party models score as in their own library; unsupported ones are refused with the reason."""

import json
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import polyrank
from polyrank import Context, load
from polyrank.config.models import BiConfig, TextPolicy
from polyrank.devices import choice
from polyrank.errors import ArtifactError, ConfigError, OfflineError, UsageError
from polyrank.loading.folders import is_hugging_face
from polyrank.models import new_model
from polyrank.models.artifacts import load_model, save_model
from polyrank.models.hugging_face import UNEVEN
from polyrank.models.published import read_published
from polyrank.scorers.exported import export_to_sentence_transformers
from polyrank.scorers.open import load_encoder
from polyrank.scorers.protocols import Encoder, Scorer

os.environ["HF_HUB_OFFLINE"] = "1"  # sentence-transformers would query the hub for a local folder
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sentence_transformers import CrossEncoder, SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

QUERIES = ["my wifi is down", "  the Bill is too high, please!  ", "hello", "?"]
DOCUMENTS = [
    "please restart the router",
    "the red light is green",
    "thanks",
    "",
    " ".join(["did that router restart please"] * 40),
    "Ünïcödé ☂ and a tab\tor\ntwo lines",
]
SIZES: dict[str, Any] = {
    "vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
    "initializer_range": 0.3,
}  # fmt: skip
SPECIAL = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any], str]] = {
    "Bert": ("wordpiece", {"max_position_embeddings": 64}, "wordpiece"),
    "Electra": ("wordpiece", {"max_position_embeddings": 64, "embedding_size": 16}, "wordpiece"),
    "DebertaV2": ("wordpiece", {"max_position_embeddings": 64, "relative_attention": True,
                  "pos_att_type": ["p2c", "c2p"], "pooler_hidden_size": 32}, "wordpiece"),
    "DistilBert": ("wordpiece", {"max_position_embeddings": 64, "dim": 32, "n_layers": 2, "n_heads": 2,
                   "hidden_dim": 48}, "wordpiece"),
    "Roberta": ("bytes", {"max_position_embeddings": 66, "type_vocab_size": 1, **SPECIAL}, "bytes"),
    "XLMRoberta": ("pieces", {"max_position_embeddings": 66, "type_vocab_size": 1, **SPECIAL}, "pieces"),
    "MPNet": ("pieces", {"max_position_embeddings": 66, **SPECIAL}, "pieces"),
    "ModernBert": ("bytes", {"max_position_embeddings": 64, "cls_token_id": 0, "sep_token_id": 2,
                   "classifier_pooling": "mean", "global_attn_every_n_layers": 2, "local_attention": 8, **SPECIAL},
                   "bytes"),
}  # fmt: skip
HEADS = sorted(ARCHITECTURES)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three kinds of tokenizers, trained on the texts: word pieces, byte pairs like RoBERTa's, pieces like XLM-R's."""
    names = {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>",
             "eos_token": "</s>", "mask_token": "<mask>"}  # fmt: skip
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    made = {}
    byte_pairs = Tokenizer(models.BPE())
    byte_pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_pairs.decoder = decoders.ByteLevel()
    byte_pairs.train_from_iterator(DOCUMENTS + QUERIES, trainers.BpeTrainer(
        vocab_size=380, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))  # fmt: skip
    byte_pairs.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    pieces = Tokenizer(models.Unigram())
    pieces.pre_tokenizer = pre_tokenizers.Metaspace()
    pieces.train_from_iterator(DOCUMENTS + QUERIES, trainers.UnigramTrainer(
        vocab_size=120, special_tokens=special, unk_token="<unk>", show_progress=False))  # fmt: skip
    pieces.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    bert = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]",
            "mask_token": "[MASK]"}  # fmt: skip
    words = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.train_from_iterator(DOCUMENTS + QUERIES, trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=list(bert.values()), show_progress=False))  # fmt: skip
    words.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    kinds = {"bytes": (byte_pairs, names), "pieces": (pieces, names), "wordpiece": (words, bert)}
    for kind, (tokenizer, tokens) in kinds.items():
        made[kind] = tmp_path_factory.mktemp(kind)
        inputs = ["input_ids", *(["token_type_ids"] if tokens is bert else []), "attention_mask"]
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, model_max_length=64, model_input_names=inputs, **tokens
        ).save_pretrained(made[kind])
    return made


@pytest.fixture(scope="module")
def network(tokenizers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A new folder of a network with random weights and its tokenizer, saved by transformers."""
    made: dict[str, Path] = {}

    def save(architecture: str, kind: str = "Model", **settings: Any) -> Path:
        torch.manual_seed(1)
        key, folder = f"{architecture}{kind}{settings}", tmp_path_factory.mktemp(architecture)
        if key in made:
            return shutil.copytree(made[key], folder, dirs_exist_ok=True)
        tokenizer, sizes, _ = ARCHITECTURES[architecture]
        config = getattr(transformers, f"{architecture}Config")(**{**SIZES, **sizes, **settings})
        getattr(transformers, f"{architecture}{kind}")(config).save_pretrained(folder)
        for file in tokenizers[tokenizer].iterdir():
            shutil.copy(file, folder)
        made[key] = shutil.copytree(folder, tmp_path_factory.mktemp(f"made-{architecture}"), dirs_exist_ok=True)
        return folder

    return save


def saved(model: Any, folder: Path) -> Path:
    """A folder saved by a sentence-transformers model."""
    model.save(str(folder), create_model_card=False)
    return folder


def sentences(folder: Path, *modules: Any, **settings: Any) -> Any:
    return SentenceTransformer(modules=[Transformer(str(folder)), *modules], device="cpu", **settings)


def theirs(model: Any, queries: list[str], documents: list[str]) -> Any:
    return model.similarity(model.encode_query(queries), model.encode_document(documents)).numpy()


# sentence encoders


@pytest.mark.parametrize("architecture", HEADS)
def test_a_sentence_encoder_scores_like_its_library(architecture: str, network: Any, tmp_path: Path) -> None:
    folder = saved(sentences(network(architecture), Pooling(32, "mean")), tmp_path / "m")
    found = load(folder, device="cpu")
    assert isinstance(found, Encoder)
    wanted = theirs(SentenceTransformer(str(folder), device="cpu"), QUERIES, DOCUMENTS)
    np.testing.assert_allclose(found.score_pool(QUERIES, DOCUMENTS), wanted, atol=1e-5)
    for row, scores in zip(wanted, found.score(QUERIES, [DOCUMENTS] * len(QUERIES)), strict=True):
        np.testing.assert_allclose(scores, row, atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "similarity"), [*((mode, "dot") for mode in Pooling.POOLING_MODES), ("cls", "cosine"), ("mean", "cosine")]
)
def test_pooling_and_similarity_come_from_the_files(mode: str, similarity: str, network: Any, tmp_path: Path) -> None:
    model = sentences(network("Bert"), Pooling(32, mode), similarity_fn_name=similarity)
    folder = saved(model, tmp_path / "m")
    wanted = theirs(SentenceTransformer(str(folder), device="cpu"), QUERIES, DOCUMENTS)
    np.testing.assert_allclose(load(folder, device="cpu").score_pool(QUERIES, DOCUMENTS), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "modules",
    [
        lambda: [Pooling(32, ("cls", "max", "mean")), Dense(96, 16), Normalize()],
        lambda: [Pooling(32, "mean"), Dense(32, 24, bias=False, activation_function=torch.nn.Identity())],
        lambda: [
            Pooling(32, "mean"),
            Normalize(),
            Dense(32, 32, activation_function=torch.nn.GELU(), use_residual=True),
        ],
        lambda: [Pooling(32, "mean"), Dense(32, 8, use_residual=True), Dense(8, 4)],
    ],
)
def test_layers_after_the_pooling_are_applied(modules: Any, network: Any, tmp_path: Path) -> None:
    torch.manual_seed(2)
    folder = saved(sentences(network("Bert"), *modules(), similarity_fn_name="dot"), tmp_path / "m")
    wanted = theirs(SentenceTransformer(str(folder), device="cpu"), QUERIES, DOCUMENTS)
    np.testing.assert_allclose(load(folder, device="cpu").score_pool(QUERIES, DOCUMENTS), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("modules", "mixed"),
    [
        (lambda: [Pooling(32, "mean")], True),
        (lambda: [Pooling(32, "mean"), Normalize()], True),
        (lambda: [Pooling(32, "mean"), Normalize(), Dense(32, 8)], False),
        (lambda: [Pooling(32, "max")], False),
    ],
    ids=["mean", "unit", "dense", "max"],
)
def test_token_mixtures_are_applied(modules: Any, mixed: bool, network: Any, tmp_path: Path) -> None:
    folder = saved(sentences(network("Bert"), *modules(), similarity_fn_name="dot"), tmp_path / "m")
    scorer: Any = load(folder, device="cpu")
    mixture = scorer.context_mixture(Context((QUERIES[0],)))
    assert (mixture is not None) == mixed
    if mixture is not None:
        wanted = SentenceTransformer(str(folder), device="cpu").encode_query(QUERIES[:1])
        np.testing.assert_allclose((mixture.weights @ mixture.outputs)[0].numpy(), wanted, rtol=1e-5, atol=1e-5)


BOTH_PROMPTS = {"query": "the query: ", "document": "passage: "}


@pytest.mark.parametrize(
    ("architecture", "prompts"),
    [*((name, BOTH_PROMPTS) for name in ("Bert", "Roberta", "XLMRoberta")), ("Roberta", {"query": "my "})],
)
def test_prompts_precede_texts(architecture: str, prompts: dict[str, str], network: Any, tmp_path: Path) -> None:
    folder = saved(sentences(network(architecture), Pooling(32), prompts=prompts), tmp_path / "m")
    wanted = theirs(SentenceTransformer(str(folder), device="cpu"), QUERIES, DOCUMENTS)
    plain = theirs(sentences(network(architecture), Pooling(32)), QUERIES, DOCUMENTS)
    np.testing.assert_allclose(load(folder, device="cpu").score_pool(QUERIES, DOCUMENTS), wanted, atol=1e-5)
    assert np.abs(wanted - plain).max() > 1e-3


def test_lengths_come_from_the_files_unless_set(network: Any, tmp_path: Path) -> None:
    model = sentences(network("Bert"), Pooling(32))
    model.max_seq_length = 12
    folder = saved(model, tmp_path / "m")
    long = DOCUMENTS[4]
    found = load(folder, device="cpu")
    wanted = theirs(SentenceTransformer(str(folder), device="cpu"), QUERIES[:1], [long])
    np.testing.assert_allclose(found.score_pool(QUERIES[:1], [long]), wanted, atol=1e-5)
    assert [str(cut) for cut in found.cut] == ["1 candidate did not fit into 12 tokens, so its end was not read"]
    model.max_seq_length = 40
    longer = load(folder, device="cpu", max_candidate_tokens=40)
    np.testing.assert_allclose(longer.score_pool(QUERIES[:1], [long]), theirs(model, QUERIES[:1], [long]), atol=1e-5)
    assert longer.fingerprint != found.fingerprint
    with pytest.raises(ConfigError, match="max_candidate_tokens = 65 is outside 4 to 64"):
        load(folder, max_candidate_tokens=65)


@pytest.mark.parametrize(
    ("lengths", "wanted"),
    [({}, (20, 20)), ({"query_length": 7}, (7, 20)), ({"document_length": 9}, (20, 9)),
     ({"query_length": 7, "document_length": 9}, (7, 9))],
)  # fmt: skip
def test_each_side_may_have_its_own_length(bi: Path, lengths: dict[str, int], wanted: tuple[int, int]) -> None:
    edited(bi, "sentence_bert_config.json", lambda values: values | {"max_seq_length": 20} | lengths)
    long = " ".join(DOCUMENTS * 3)

    def sizes(**settings: int) -> tuple[int, int]:
        texts: Any = load(bi, device="cpu", **settings).networks[0].texts  # type: ignore[arg-type]
        return len(texts.context_ids(Context((long,)))), len(texts.candidate_ids(long))

    assert sizes() == wanted
    assert sizes(max_context_tokens=12) == (12, wanted[1])
    assert sizes(max_candidate_tokens=30) == (wanted[0], 30)
    untuned: Any = load(f"untuned:{bi}", device="cpu", max_context_tokens=12, max_candidate_tokens=30)
    texts = untuned.networks[0].texts
    assert (len(texts.context_ids(Context((long,)))), len(texts.candidate_ids(long))) == (12, 30)


def test_a_dense_layer_without_an_activation_has_a_tanh(bi: Path) -> None:
    scores = load(bi, device="cpu").score_pool(QUERIES, DOCUMENTS)
    for name in (None, "tanh"):  # written by old versions of the library
        edited(bi, "2_Dense/config.json", lambda values, name=name: values | {"activation_function": name})
        edited(bi, "config_sentence_transformers.json", lambda values: values | {"similarity_fn_name": None})
        np.testing.assert_array_equal(load(bi, device="cpu").score_pool(QUERIES, DOCUMENTS), scores)


def test_vectors_that_the_files_cut_are_other_vectors(bi: Path) -> None:
    whole = load_encoder(bi, device="cpu")
    short = load_encoder(
        edited(bi, "config_sentence_transformers.json", lambda v: v | {"truncate_dim": 4}), device="cpu"
    )
    assert (whole.dimension, short.dimension) == (8, 4)
    assert whole.fingerprint != short.fingerprint


def test_vectors_are_never_cut_to_more_numbers_than_they_have(bi: Path) -> None:
    for length, dimension in ((5, 5), (8, 8), (9, 8)):
        edited(bi, "config_sentence_transformers.json", lambda values, n=length: values | {"truncate_dim": n})
        encoder: Any = load(bi, device="cpu")
        assert (encoder.dimension, encoder.encode_candidates(["hello"]).shape) == (dimension, (1, dimension))


def test_a_training_puts_around_texts_what_the_tokenizer_of_the_model_puts(bi: Path) -> None:
    """Also if that is nothing, and the tokenizer names boundary tokens."""
    for change, around in ((lambda v: v, ([2], [3])), (lambda v: v | {"post_processor": None}, ([], []))):
        edited(bi, "tokenizer.json", change)
        published, texts = read_published(str(bi), 0.3), load(bi, device="cpu").texts  # type: ignore[attr-defined]
        subwords, modules = published.subwords, published.backbone.modules()
        assert {module.p for module in modules if isinstance(module, torch.nn.Dropout)} == {0.3}
        assert (subwords.before, subwords.after) == around == (texts.subwords.before, texts.subwords.after)


def test_a_classifier_that_states_no_labels_has_the_two_of_its_library(network: Any) -> None:
    folder = network("Bert", "ForSequenceClassification", num_labels=2)
    before = load(folder, device="cpu").score(QUERIES, [DOCUMENTS] * len(QUERIES))
    names = ("id2label", "label2id", "num_labels")
    edited(folder, "config.json", lambda values: {key: values[key] for key in values if key not in names})
    for row, wanted in zip(load(folder, device="cpu").score(QUERIES, [DOCUMENTS] * len(QUERIES)), before, strict=True):
        np.testing.assert_array_equal(row, wanted)


def test_texts_are_lower_cased_if_the_files_require_it(network: Any, tmp_path: Path) -> None:
    folder = saved(sentences(network("Roberta"), Pooling(32)), tmp_path / "m")
    quiet, loud = DOCUMENTS[:1], [DOCUMENTS[0].upper()]
    cased = load(folder, device="cpu")
    assert cased.score_pool(QUERIES, quiet).tolist() != cased.score_pool(QUERIES, loud).tolist()
    lowered = load(edited(folder, "sentence_bert_config.json", lambda v: v | {"do_lower_case": True}), device="cpu")
    assert lowered.score_pool(QUERIES, quiet).tolist() == lowered.score_pool(QUERIES, loud).tolist()


def test_a_context_that_is_too_long_keeps_its_end_and_its_prompt(network: Any, tmp_path: Path) -> None:
    folder = saved(sentences(network("Bert"), Pooling(32), prompts={"query": "the query: "}), tmp_path / "m")
    found: Any = load(folder, device="cpu", max_context_tokens=10)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    turns = ["hello"] * 20 + ["my wifi is down"]
    prompt = tokenizer.encode("the query: ", add_special_tokens=False)
    end = tokenizer.encode("[SEP] my wifi is down", add_special_tokens=False)[-(8 - len(prompt)) :]
    start, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert found.texts.context_ids(Context(turns)) == [start, *prompt, *end, sep]
    assert [str(cut) for cut in found.cut] == ["1 context did not fit into 10 tokens, so its start was not read"]
    with pytest.raises(ConfigError, match="leaves too few tokens after a prompt"):
        load(folder, max_context_tokens=4)


# Cross-encoders


@pytest.mark.parametrize(
    ("form", "architecture"),
    [
        *(("transformers", name) for name in HEADS if name != "MPNet"),
        *(("sentence-transformers", name) for name in ("Bert", "ModernBert", "XLMRoberta")),
    ],
)
def test_a_cross_encoder_scores_like_its_library(architecture: str, form: str, network: Any, tmp_path: Path) -> None:
    folder = network(architecture, "ForSequenceClassification", num_labels=1)
    model = CrossEncoder(str(folder), device="cpu")
    if form == "sentence-transformers":
        model.activation_fn = torch.nn.Identity()
        folder = saved(model, tmp_path / "m")
        model = CrossEncoder(str(folder), device="cpu")
    found = load(folder, device="cpu")
    assert isinstance(found, Scorer)
    assert not isinstance(found, Encoder)
    pairs = [[(query, text) for text in DOCUMENTS] for query in QUERIES]
    for scores, listed in zip(found.score(QUERIES, [DOCUMENTS] * len(QUERIES)), pairs, strict=True):
        np.testing.assert_allclose(scores, model.predict(listed), rtol=1e-5, atol=1e-5)
    # rank reads longer ones in chunks, and blank ones are last
    short = [text for text in DOCUMENTS if 0 < len(text.strip()) < 100]
    ranked, wanted = found.rank(QUERIES[0], short, k=3), model.rank(QUERIES[0], short, top_k=3)
    assert [int(reply.id) for reply in ranked] == [row["corpus_id"] for row in wanted]


@pytest.mark.parametrize(
    ("architecture", "n_types"), [("Roberta", 1), ("Roberta", 2), ("DebertaV2", 0), ("DebertaV2", 1), ("DebertaV2", 2)]
)
def test_a_network_gets_only_the_types_of_tokens_that_it_has(
    architecture: str, n_types: int, network: Any, tokenizers: dict[str, Path]
) -> None:
    """Some RoBERTas, such as KLUE's, have BERT's tokenizer: it gives candidates the type 1, which the network lacks."""
    folder = network(architecture, "ForSequenceClassification", num_labels=1, type_vocab_size=n_types)
    for file in folder.glob("*token*"):
        file.unlink()
    for file in tokenizers["wordpiece"].iterdir():
        shutil.copy(file, folder)
    found: Any = load(folder, device="cpu")
    assert {*found.texts.pair_ids(Context(("light",)), "down")[1]} == {0, 1}
    if n_types < 2:  # as the library does if its tokenizer leaves them out
        edited(folder, "tokenizer_config.json", lambda v: v | {"model_input_names": ["input_ids", "attention_mask"]})
    wanted = CrossEncoder(str(folder), device="cpu").predict([(QUERIES[0], text) for text in DOCUMENTS])
    np.testing.assert_allclose(found.score(QUERIES[:1], [DOCUMENTS])[0], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("where", ["sentence_transformers", "sbert_ce_default_activation_function"])
def test_the_activation_comes_from_config_json(where: str, network: Any) -> None:
    name = "torch.nn.modules.linear.Identity"
    value = {"activation_fn": name} if where == "sentence_transformers" else name
    folder = network("Bert", "ForSequenceClassification", num_labels=1, **{where: value})
    found = load(folder, device="cpu").score(QUERIES[:1], [DOCUMENTS])[0]
    wanted = CrossEncoder(str(folder), device="cpu").predict([(QUERIES[0], text) for text in DOCUMENTS])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert (wanted < 0).any() or (wanted > 1).any()


def test_a_pair_with_a_prompt_scores_like_its_library(network: Any, tmp_path: Path) -> None:
    folder = network("Bert", "ForSequenceClassification", num_labels=1)
    model = CrossEncoder(str(folder), device="cpu", prompts={"q": "the red "}, default_prompt_name="q")
    folder = saved(model, tmp_path / "m")
    found = load(folder, device="cpu").score(QUERIES[:1], [DOCUMENTS])[0]
    np.testing.assert_allclose(found, model.predict([(QUERIES[0], text) for text in DOCUMENTS]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("words", [1, 5, 6, 7, 8, 9, 10, 11, 12, 13])
def test_a_pair_keeps_its_prompt_and_both_texts_share_the_rest(words: int, network: Any, tmp_path: Path) -> None:
    folder = network("Bert", "ForSequenceClassification", num_labels=1, max_position_embeddings=16)
    prompt = "red " * words
    model = CrossEncoder(str(folder), device="cpu", prompts={"q": prompt}, default_prompt_name="q")
    folder = saved(model, tmp_path / "m")
    if words > 11:  # of 16 tokens, 3 are boundaries
        with pytest.raises(ConfigError, match=f"= 16 leaves too few tokens after a prompt of {words} tokens; raise"):
            load(folder, device="cpu")
        return
    found: Any = load(folder, device="cpu")
    red, light, down = (found.texts.subwords.encode(word)[0] for word in ("red", "light", "down"))
    for n_left, n_right in ((1, 1), (1, 50), (50, 1), (50, 50)):
        ids, segments = found.texts.pair_ids(Context(("light " * n_left,)), "down " * n_right)
        counts = ids.count(red), ids.count(light), ids.count(down)
        rest = 13 - words
        wanted = {(1, 1): (1, 1), (1, 50): (1, rest - 1), (50, 1): (rest - 1, 1)}
        assert counts == (words, *wanted.get((n_left, n_right), (rest - rest // 2, rest // 2)))
        assert len(ids) == len(segments) == sum(counts) + 3 <= 16
    assert np.isfinite(found.score([("light " * 50,)], [["down " * 50]])).all()


def test_a_decoder_whose_last_token_is_the_vector(tokenizers: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(tokenizers["bytes"], tmp_path / "decoder")
    config = transformers.Qwen2Config(**SIZES, num_key_value_heads=2, max_position_embeddings=64, **SPECIAL)
    torch.manual_seed(4)
    transformers.Qwen2Model(config).save_pretrained(tmp_path / "decoder")
    folder = saved(sentences(tmp_path / "decoder", Pooling(32, "lasttoken")), tmp_path / "m")
    wanted = theirs(SentenceTransformer(str(folder), device="cpu"), QUERIES, DOCUMENTS)
    np.testing.assert_allclose(load(folder, device="cpu").score_pool(QUERIES, DOCUMENTS), wanted, atol=1e-5)


def test_a_cross_encoder_of_modules_scores_like_its_library(network: Any, tmp_path: Path) -> None:
    torch.manual_seed(5)
    score = Dense(32, 1, activation_function=torch.nn.Identity(), module_output_name="scores")
    model = CrossEncoder(
        modules=[Transformer(str(network("ModernBert"))), Pooling(32, "cls"), Dense(32, 32), score], device="cpu"
    )
    folder = saved(model, tmp_path / "m")
    wanted = CrossEncoder(str(folder), device="cpu").predict([(QUERIES[0], text) for text in DOCUMENTS])
    found = load(folder, device="cpu").score(QUERIES[:1], [DOCUMENTS])[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert np.ptp(wanted) > 0.01
    with pytest.raises(UsageError, match=r"is a Cross-encoder, whose head untuned: ignores; give .*/m without"):
        load(f"untuned:{folder}", device="cpu")


def test_a_network_is_in_the_precision_and_on_the_device_that_are_requested(
    network: Any, bi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    pairs = network("Bert", "ForSequenceClassification", num_labels=1)
    for folder in (bi, pairs):
        for precision in ("fp32", "bf16", "int8"):
            scorer: Any = load(folder, device="cpu", precision=precision)
            assert scorer.precision == precision
            narrow = {weight.dtype for weight in scorer.model.parameters()} - {torch.float32}
            assert narrow == ({torch.bfloat16} if precision == "bf16" else set())
            assert scorer.dtype == torch.float32  # the weights have their type, so nothing is converted
    for name in (bi, pairs, f"untuned:{bi}", "untuned:embedded", "shipped:convert"):
        with pytest.raises(UsageError, match="device 'mps' is not available on this machine; use cpu"):
            load(name, device="mps")


@pytest.mark.deep
def test_bf16_scores_are_close(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for architecture in ("Bert", "Roberta", "DistilBert"):  # outputs of all layers are a tuple
        folder = network(architecture, "ForSequenceClassification", num_labels=1, output_hidden_states=True)
        exact, near = (
            load(folder, device="cpu", precision=p).score(QUERIES, [DOCUMENTS] * 4) for p in ("fp32", "bf16")
        )
        assert all(not np.array_equal(a, b) for a, b in zip(exact, near, strict=True))
        np.testing.assert_allclose(np.stack(near), np.stack(exact), atol=0.15)
    monkeypatch.delenv("POLYRANK_PRECISION")
    monkeypatch.setattr(choice, "cpu_has_bf16", lambda: True)
    assert load(folder, device="cpu").precision == "fp32"  # the scores are those of the library


# unsupported models


def edited(folder: Path, file: str, change: Callable[[Any], Any]) -> Path:
    """A copy of the folder with changes in a JSON file."""
    path = folder / file
    path.write_text(json.dumps(change(json.loads(path.read_text("utf-8")))), "utf-8")
    return folder


@pytest.fixture(scope="module")
def saved_bi(network: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(sentences(network("Bert"), Pooling(32), Dense(32, 8)), tmp_path_factory.mktemp("saved") / "bi")


@pytest.fixture
def bi(saved_bi: Path, tmp_path: Path) -> Path:
    """A copy, which a test may change."""
    return shutil.copytree(saved_bi, tmp_path / "bi")


@pytest.mark.parametrize(
    ("file", "change", "reason"),
    [
        ("modules.json", lambda v: [*v, {"path": "", "type": "sentence_transformers.models.LSTM"}], "a module LSTM"),
        (
            "modules.json",
            lambda v: [v[0], v[1] | {"type": "my_modules.Pooling"}],
            "module my_modules.Pooling, which is",
        ),
        ("modules.json", lambda v: [v[0] | {"type": "custom_st.Transformer"}, *v[1:]], "runs no code of models"),
        ("modules.json", lambda v: v[1:], "begins with Pooling, not with a Transformer"),
        ("modules.json", lambda v: v[:1], "has no Pooling"),
        ("modules.json", lambda v: [v[0], v[2], v[1]], "Dense before the Pooling"),
        ("modules.json", lambda v: {"a": 1}, "lists no modules"),
        ("modules.json", lambda v: [v[0] | {"path": "../other"}, *v[1:]], "outside its folder"),
        ("modules.json", lambda v: [v[0] | {"path": "/etc"}, *v[1:]], "outside its folder"),
        ("config_sentence_transformers.json", lambda v: v | {"similarity_fn_name": "manhattan"}, "by manhattan"),
        ("config_sentence_transformers.json", lambda v: v | {"model_type": "SparseEncoder"}, "is a SparseEncoder"),
        ("config_sentence_transformers.json", lambda v: v | {"truncate_dim": "8"}, "truncate_dim = '8', not"),
        ("config_sentence_transformers.json", lambda v: v | {"truncate_dim": 0}, "truncate_dim = 0, not"),
        (
            "sentence_bert_config.json",
            lambda v: (
                v
                | {
                    "modality_config": {"text": {}, "message": {}},
                    "processing_kwargs": {"chat_template": {"truncation": True}},
                }
            ),
            "sets truncation of its chat template",
        ),
        ("1_Pooling/config.json", lambda v: v | {"pooling_mode": "best"}, "pools by best"),
        ("modules.json", lambda v: [v[0], v[1] | {"path": "3_Pooling"}], r"3_Pooling/config\.json is missing"),
        ("2_Dense/config.json", lambda v: v | {"activation_function": "torch.save"}, "uses the activation torch.save"),
        ("2_Dense/config.json", lambda v: v | {"module_input_name": "token_embeddings"}, "reads token_embeddings"),
        ("2_Dense/config.json", lambda v: v | {"module_output_name": "other"}, "2_Dense writes other"),
        (
            "sentence_bert_config.json",
            lambda v: v | {"config_args": {"num_hidden_layers": 1}},
            "sets num_hidden_layers",
        ),
        (
            "sentence_bert_config.json",
            lambda v: v | {"tokenizer_args": {"model_max_length": 9}},
            "sets model_max_length",
        ),
        (
            "sentence_bert_config.json",
            lambda v: v | {"modality_config": {"text": {"method": "get_text_features"}}},
            "sets modality_config of text",
        ),
        (
            "modules.json",
            lambda v: [v[0] | {"type": "sentence_transformers.models.CLIPModel"}],
            "begins with CLIPModel",
        ),
        ("sentence_bert_config.json", lambda v: v | {"transformer_task": "text-generation"}, "by text-generation"),
        ("sentence_bert_config.json", lambda v: v | {"modality_config": {"image": {}}}, "media instead of texts"),
        ("sentence_bert_config.json", lambda v: v | {"modality_config": {"message": {}}}, "reads messages, but its"),
        ("sentence_bert_config.json", lambda v: v | {"processing_kwargs": {"text": {}}}, "sets text, which"),
        ("sentence_bert_config.json", lambda v: v | {"max_seq_length": "128"}, "max_seq_length = '128', not a number"),
        ("sentence_bert_config.json", lambda v: v | {"modality_config": None}, "has a setting of a wrong type"),
        ("config_sentence_transformers.json", lambda v: v | {"prompts": ["a"]}, "has a setting of a wrong type"),
        ("config.json", lambda v: [], "is not a JSON object"),
        ("config.json", lambda v: v | {"is_encoder_decoder": True}, "encoder-decoder"),
        (
            "config.json",
            lambda v: v | {"model_type": "nosuch"},
            "transformers cannot read .*nosuch.*; polyrank runs no code",
        ),
        ("config.json", lambda v: v | {"quantization_config": {"quant_method": "bitsandbytes"}}, "quantized by bitsan"),
        ("config.json", lambda v: v | {"quantization_config": {}}, "quantized by another library"),
        *(
            ("sentence_bert_config.json", lambda v, key=key: v | {key: 0}, f"has {key} = 0, not a number of tokens")
            for key in ("max_seq_length", "query_length", "document_length")
        ),
        *(
            (
                "config.json",
                lambda v, kind=kind: v | {"model_type": kind},
                f"is of the type {kind}, whose scores depend",
            )
            for kind in UNEVEN
        ),
        ("config.json", lambda v: v | {"hidden_size": 64}, "transformers cannot read|do not fit a BertModel"),
        ("config.json", lambda v: v | {"num_hidden_layers": 3}, "do not fit a BertModel .encoder.layer.2"),
    ],
)
def test_unsupported_models_are_refused_with_the_reason(file: str, change: Any, reason: str, bi: Path) -> None:
    with pytest.raises(ArtifactError, match=reason):
        load(edited(bi, file, change), device="cpu")


def test_damaged_and_unsafe_files_are_refused(bi: Path) -> None:
    weights = bi / "2_Dense" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(ArtifactError, match="2_Dense is damaged"):
        load(bi)
    weights.rename(weights.with_name("pytorch_model.bin"))
    with pytest.raises(ArtifactError, match=r"2_Dense/pytorch_model\.bin is a pickle"):
        load(bi)
    whole = (bi / "model.safetensors").read_bytes()
    (bi / "model.safetensors").write_bytes(whole[:1000])
    with pytest.raises(ArtifactError, match=f"cannot read {bi}"):
        load(bi)
    (bi / "model.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"has no \.safetensors"):
        load(bi)
    (bi / "modules.json").write_text("[", "utf-8")
    with pytest.raises(ArtifactError, match=r"modules\.json is damaged"):
        load(bi)


def test_a_tokenizer_that_cannot_be_read_is_the_reason(bi: Path) -> None:
    (bi / "tokenizer.json").write_text("{}", "utf-8")
    with pytest.raises(ArtifactError, match="cannot read the tokenizer"):
        load(bi)


def test_a_tokenizer_without_its_fast_form_is_the_reason(bi: Path) -> None:
    for name in ("tokenizer.json", "vocab.txt", "special_tokens_map.json"):
        (bi / name).unlink(missing_ok=True)
    (bi / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}', "utf-8")
    with pytest.raises(ArtifactError, match=r"cannot read the tokenizer in .* \(it has no tokenizer.json\)"):
        load(bi)


def test_a_tokenizer_that_is_only_a_sentencepiece_model(
    network: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(sentences(network("XLMRoberta"), Pooling(32, "mean")), tmp_path / "m")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter((DOCUMENTS + QUERIES) * 9), model_prefix=str(folder / "sentencepiece.bpe"),
        vocab_size=60, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    scores = load(folder).score(QUERIES[:1], [DOCUMENTS[:3]])
    assert scores[0] == pytest.approx(theirs(SentenceTransformer(str(folder)), QUERIES[:1], DOCUMENTS[:3])[0], abs=1e-5)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(UsageError, match=r'sentencepiece is not installed; .* "polyrank\[sentencepiece\]"'):
        load(folder)


def test_missing_heads_are_never_initialized_randomly(network: Any) -> None:
    plain = network("Bert")
    with pytest.raises(ArtifactError, match="holds a BertModel without a scoring head"):
        load(plain)
    with pytest.raises(ArtifactError, match="do not fit a BertForSequenceClassification"):
        load(edited(plain, "config.json", lambda v: v | {"architectures": ["BertForSequenceClassification"],
                                                         "id2label": {"0": "x"}}))  # fmt: skip
    two = network("Bert", "ForSequenceClassification", id2label={0: "no", 1: "maybe", 2: "yes"})
    with pytest.raises(ArtifactError, match=r"has 3 labels \(no, maybe, yes\)"):
        load(two)
    one = network("Bert", "ForSequenceClassification", num_labels=1)
    with pytest.raises(UsageError, match="is a BertForSequenceClassification, whose head untuned: ignores"):
        load(f"untuned:{one}")
    with pytest.raises(UsageError, match="has no onnx export"):
        load(one, backend="onnx")
    with pytest.raises(ArtifactError, match=r"is a Hugging Face model, .* needs a polyrank model folder"):
        load_model(one)


@pytest.mark.parametrize("part", ["pooler.dense.weight", "classifier.bias", "encoder.layer.1.output.dense.weight"])
def test_a_classifier_with_a_missing_part_is_refused(part: str, network: Any) -> None:
    """A pooler, too: its scores depend on it, unlike the vectors of an encoder, which leaves its pooler out."""
    for kind, is_read in (("ForSequenceClassification", False), ("Model", part.startswith("pooler"))):
        folder = network("Bert", kind, **({"num_labels": 1} if "For" in kind else {}))
        tensors = load_file(folder / "model.safetensors")
        if len(left := {name: tensor for name, tensor in tensors.items() if not name.endswith(part)}) == len(tensors):
            continue
        save_file(left, folder / "model.safetensors", {"format": "pt"})
        if is_read:
            assert load(f"untuned:{folder}", device="cpu").fingerprint
            continue
        with pytest.raises(ArtifactError, match=rf"do not fit a Bert.*{re.escape(part)}"):
            load(folder if "For" in kind else f"untuned:{folder}", device="cpu")


def test_polyrank_models_are_distinguished_from_foreign_ones(bi: Path, tmp_path: Path) -> None:
    assert is_hugging_face(bi)
    assert not is_hugging_face(tmp_path / "nothing")
    for own, expected in (({}, True), ({"fingerprint": "0"}, False)):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", **own}), "utf-8")
        assert is_hugging_face(tmp_path) == expected
    (tmp_path / "config.json").write_text("[" * 100_000, "utf-8")
    assert not is_hugging_face(tmp_path)
    with pytest.raises(ArtifactError, match="is damaged"):
        load(tmp_path)


# names


def test_a_hub_name_is_found_among_earlier_downloads(bi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    cache = tmp_path / "hub" / "models--somebody--a-model"
    shutil.copytree(bi, cache / "snapshots" / "abc")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc", "utf-8")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    wanted = load(bi, device="cpu").score_pool(QUERIES, DOCUMENTS)
    np.testing.assert_array_equal(load("somebody/a-model", device="cpu").score_pool(QUERIES, DOCUMENTS), wanted)
    with pytest.raises(OfflineError, match="somebody/else is not a local folder and has not been downloaded"):
        load("somebody/else")


def test_names_that_refer_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in ("runs/x", "run/model/config.json", "index/candidates.db"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    for name in ("nosuch", "runs/model", "a/b/c", "../x", "/nowhere", ""):
        with pytest.raises(UsageError, match="is not a model folder; give a model folder, hf:OWNER/MODEL"):
            load(name)
    for name, reason in (
        ("run", "give the model in it, run/model"),
        ("index", "index is an index, not a model; get answers"),
    ):
        with pytest.raises(UsageError, match=reason):
            load(name)
    with pytest.raises(UsageError, match="`max_context_tokens` does not apply to bm25"):
        load("bm25", max_context_tokens=3)
    with pytest.raises(UsageError, match="`max_candidate_tokens` does not apply to shipped:convert"):
        load("shipped:convert", max_candidate_tokens=30)


def test_lengths_of_an_untuned_backbone_are_settings(tiny_backbone: Path) -> None:
    documents = [f"{' '.join(['wifi'] * 80)} {word}" for word in ("hello", "bill", "router")]
    short, long = load(f"untuned:{tiny_backbone}"), load(f"untuned:{tiny_backbone}", max_candidate_tokens=100)
    assert len(set(short.score(["my wifi"], [documents])[0].tolist())) == 1
    assert len(set(long.score(["my wifi"], [documents])[0].tolist())) == 3
    assert [str(cut) for cut in short.cut] == ["3 candidates did not fit into 72 tokens, so their ends were not read"]
    assert not any(long.cut)
    with pytest.raises(ConfigError, match="max_candidate_tokens = 129 is outside 4 to 128"):
        load(f"untuned:{tiny_backbone}", max_candidate_tokens=129)
    with pytest.raises(UsageError, match="`max_candidate_tokens` = 0 is not a number of tokens"):
        load(f"untuned:{tiny_backbone}", max_candidate_tokens=0)


# other commands


def test_an_index_of_a_sentence_encoder_stores_its_fingerprint(bi: Path, tmp_path: Path) -> None:
    from polyrank import Candidate, Replies, build_index
    from polyrank.answering.opening import scorer_of_index
    from polyrank.index import open_index

    encoder: Any = load(bi, device="cpu")
    pool = [Candidate(str(i), text) for i, text in enumerate(DOCUMENTS) if 0 < len(text) < 100]
    build_index(tmp_path / "index", encoder, pool)
    with open_index(tmp_path / "index") as index:
        again = scorer_of_index(index.model, device="cpu")
        found = Replies(again, index).respond([Context(QUERIES[0])], 3)[0]
        wanted = encoder.rank(QUERIES[0], pool, 3)
        assert [reply.id for reply in found] == [reply.id for reply in wanted]
        np.testing.assert_allclose([r.score for r in found], [r.score for r in wanted], atol=1e-5)
        edited(bi, "2_Dense/config.json", lambda v: v | {"activation_function": "torch.nn.modules.linear.Identity"})
        with pytest.raises(ArtifactError, match="was made by encoder"):
            Replies(load(bi, device="cpu"), index)


# training from any encoder

PAIRS = [{"context": [f"меня зовут {i} 你好", "wie geht es"], "response": f"gut, danke {i}"} for i in range(12)]


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        pytest.param(name, kind, marks=() if name == "XLMRoberta" else pytest.mark.deep)
        for name in HEADS
        for kind in ("bi", "poly", "cross")
    ],
)
def test_a_training_starts_from_any_encoder(architecture: str, kind: str, network: Any, tmp_path: Path) -> None:
    data = tmp_path / "pairs.jsonl"
    data.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS), "utf-8")
    recipe = {
        "output": str(tmp_path / "run"),
        "model": {"kind": kind, "backbone": str(network(architecture)), **({"n_codes": 2} if kind == "poly" else {})},
        "text": {"max_context_tokens": 40, "max_candidate_tokens": 20},
        "data": {"train": str(data)},
        "train": {"batch_size": 6, "max_steps": 2, "precision": "fp32", "train_layers": "all"}
        | ({"method": {"kind": "listwise"}, "negatives": {"n": 3}} if kind == "cross" else {}),
    }
    (result,) = polyrank.train(recipe)
    scorer = load(result.model, device="cpu")
    texts = [pair["response"] for pair in PAIRS]
    together = scorer.score_pool(["wie geht es"], texts)
    assert np.isfinite(together).all()
    alone = [float(scorer.score_pool(["wie geht es"], [text])[0, 0]) for text in texts]
    np.testing.assert_allclose(together[0], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("architecture", ["Bert", "Roberta"])
def test_an_export_names_the_separator_of_its_vocabulary(architecture: str, network: Any, tmp_path: Path) -> None:
    config = BiConfig(backbone=str(network(architecture)), shared_towers=True, reduction="mean", output_scale=1.0)
    policy = TextPolicy(max_context_tokens=40, max_candidate_tokens=20)
    save_model(tmp_path / "model", *new_model(config, policy, seed=1, sample=QUERIES))
    export_to_sentence_transformers(tmp_path / "model", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    (separator,) = re.findall(r"Join the turns of a context by `(.*)`", card)
    encoder = load_encoder(tmp_path / "model", device="cpu", precision="fp32")
    wanted = encoder.encode_contexts([QUERIES[:2]])[0][0]
    found = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode([separator.join(QUERIES[:2])])
    np.testing.assert_allclose(found, wanted, atol=1e-5)
