"""Compares polyrank with sentence-transformers on models with random weights, of every layout and architecture.

python runs/layouts.py [NAME...]

Without names, it writes docs/layouts.md. A layout is a function that saves a small model in a folder with that library
or with transformers; each is loaded by both, and the largest difference of their scores is printed.
"""

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # sentence-transformers would query the hub for a local folder
import numpy as np
import torch
import transformers
from model2vec import StaticModel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from polyrank import load

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers.utils.logging.disable_progress_bar()
    from sentence_transformers import CrossEncoder, SentenceTransformer
    from sentence_transformers.cross_encoder.modules import LogitScore
    from sentence_transformers.sentence_transformer.modules import (
        Dense,
        LayerNorm,
        Normalize,
        Pooling,
        Router,
        StaticEmbedding,
        Transformer,
    )

PAGE = Path(__file__).parents[1] / "docs" / "layouts.md"
QUERIES = ["my wifi is down", "  the Bill is too high, please!  ", "hello", "?"]
DOCUMENTS = [
    "please restart the router",
    "the red light is green",
    "thanks",
    "yes, no",
    "Ünïcödé ☂ and a tab\tor\ntwo lines",
    " ".join(["did that router restart please"] * 4),
]
SIZES: dict[str, Any] = {
    "vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
    "initializer_range": 0.3, "max_position_embeddings": 256, "num_key_value_heads": 2, "head_dim": 16,
    "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
PLAIN = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
PARTS = "{% for m in messages %}<s>{{ m.role }}: {{ m.content[0].text }}</s>{% endfor %}"
RERANKER = (
    '{{ messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("Judge.") }}'
    '<s>query: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first | trim }}\n'
    'document: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}</s>'
    "{% if add_generation_prompt %}answer:{% endif %}"
)


def tokenizer(folder: Path, *, words: bool = False, start: bool = True, end: bool = True, **settings: Any) -> Path:
    """Save a tokenizer in a folder: BERT's word pieces, or byte pairs with a start and an end token as required."""
    texts = [*QUERIES, *DOCUMENTS, "query document system user answer Judge"]
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>", "eos_token": "</s>"}
    if words:
        made = Tokenizer(models.WordPiece(unk_token="<unk>"))
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        made.train_from_iterator(
            texts, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
        )
        made.post_processor = processors.BertProcessing(("</s>", 2), ("<s>", 0))
        names |= {"cls_token": "<s>", "sep_token": "</s>"}
    else:
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        made.train_from_iterator(
            texts,
            trainers.BpeTrainer(vocab_size=380, special_tokens=special, show_progress=False, initial_alphabet=alphabet),
        )
        before, after = "<s> " * start, " </s>" * end
        made.post_processor = processors.TemplateProcessing(
            single=f"{before}$A{after}", pair=f"{before}$A{after} $B{after}", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
        names |= {"bos_token": "<s>"} if start else {}
    inputs = ["input_ids", *(["token_type_ids"] if words else []), "attention_mask"]
    settings = {"model_max_length": 128, "model_input_names": inputs} | names | settings
    PreTrainedTokenizerFast(tokenizer_object=made, **settings).save_pretrained(folder)
    return folder


def network(folder: Path, name: str, **settings: Any) -> Path:
    """Save a network of transformers with random weights in a folder."""
    kind = next(end for end in ("ForSequenceClassification", "ForCausalLM", "EncoderModel", "Model") if end in name)
    config = getattr(transformers, name.replace(kind, "") + settings.pop("config", "Config"))
    torch.manual_seed(1)
    getattr(transformers, name)(config(**SIZES | settings)).save_pretrained(folder)
    return folder


def saved(model: Any, folder: Path) -> Path:
    """Save a model of sentence-transformers."""
    model.save(str(folder), create_model_card=False)
    return folder


def encoder(
    folder: Path, name: str, *modules: Any, text: dict[str, Any] | None = None, settings: Any = None, **others: Any
) -> Path:
    """Save a sentence encoder: a network, its tokenizer, and the modules after it."""
    inner = tokenizer(network(folder / "network", name, **(settings or {})), **(text or {}))
    torch.manual_seed(2)
    made = [make() if callable(make) and not isinstance(make, torch.nn.Module) else make for make in modules]
    return saved(SentenceTransformer(modules=[Transformer(str(inner)), *made], device="cpu", **others), folder / "m")


def plain_pairs(folder: Path, name: str, text: dict[str, Any], **settings: Any) -> Path:
    """Save a sequence classifier with transformers."""
    return tokenizer(network(folder, name, **{"num_labels": 1} | settings), **text)


def saved_pairs(folder: Path, name: str, text: dict[str, Any], **others: Any) -> Path:
    """Save a sequence classifier with sentence-transformers."""
    plain = plain_pairs(folder / "network", name, text)
    return saved(CrossEncoder(str(plain), device="cpu", **others), folder / "m")


def generator(folder: Path, name: str, text: dict[str, Any], against: int | None) -> Path:
    """Save a language model that scores by the logits of one or two tokens."""
    inner = Transformer(str(tokenizer(network(folder / "inner", name), **text)), transformer_task="text-generation")
    return saved(CrossEncoder(modules=[inner, LogitScore(9, against)], device="cpu"), folder / "m")


def static(folder: Path, *modules: Any, **others: Any) -> Path:
    """Save a table of word vectors with sentence-transformers."""
    words = Tokenizer.from_file(str(tokenizer(folder / "words", **WORDS) / "tokenizer.json"))
    torch.manual_seed(1)
    made = StaticEmbedding(words, embedding_weights=torch.randn(words.get_vocab_size(), 32))
    return saved(SentenceTransformer(modules=[made, *modules], device="cpu", **others), folder / "m")


def routed(folder: Path, query: list[Any], document: list[Any], *modules: Any, **others: Any) -> Path:
    """Save a model of two paths: each a network's name, the settings of its tokenizer, and the modules after it."""
    paths = []
    for side, (name, text, *layers) in {"query": query, "document": document}.items():
        if name == "Static":
            words = Tokenizer.from_file(str(tokenizer(folder / side, **text) / "tokenizer.json"))
            first: Any = StaticEmbedding(words, embedding_weights=torch.randn(words.get_vocab_size(), 32))
        else:
            settings = {"pad_token_id": 3, "type_vocab_size": 1} if name == "RobertaModel" else {}
            first = Transformer(str(tokenizer(network(folder / side, name, **settings), **text)))
        paths.append([first, *layers])
    made = [Router.for_query_document(*paths), *modules]
    return saved(SentenceTransformer(modules=made, device="cpu", **others), folder / "m")


def model2vec(folder: Path, **settings: Any) -> Path:
    """Save a table of word vectors with model2vec."""
    words = Tokenizer.from_file(str(tokenizer(folder / "words", **WORDS) / "tokenizer.json"))
    words.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    generator, n = np.random.default_rng(1), words.get_vocab_size()
    if settings.pop("quantized", False):
        settings |= {"token_mapping": generator.integers(0, 40, n), "weights": generator.random(n)}
    rows = generator.normal(size=(40 if "weights" in settings else n, 32)).astype(np.float32)
    StaticModel(rows, words, **settings).save_pretrained(str(folder / "m"))
    return folder / "m"


def pairs_of_modules(folder: Path, *modules: Any) -> Path:
    """Save a Cross-encoder whose head consists of modules."""
    inner = Transformer(str(tokenizer(network(folder / "network", "BertModel"), **WORDS)))
    return saved(CrossEncoder(modules=[inner, *modules], device="cpu"), folder / "m")


def edited(folder: Path, file: str, **settings: Any) -> Path:
    """Change settings in a JSON file of a folder."""
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | settings), "utf-8")
    return folder


def with_code(folder: Path, **classes: str) -> Path:
    """A folder whose classes are code of its author."""
    return edited(folder, "config.json", auto_map=classes)


def sharded(folder: Path) -> Path:
    """A folder whose weights are in several files."""
    loaded = transformers.AutoModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    loaded.save_pretrained(folder, max_shard_size="20KB")
    return folder


def lower_cased(folder: Path) -> Path:
    """A folder whose texts are lower-cased first."""
    return edited(folder, "sentence_bert_config.json", do_lower_case=True)


def old_layout(folder: Path) -> Path:
    """A folder in the layout of the library's first versions, with the transformer in a subfolder."""
    modules = json.loads((folder / "modules.json").read_text("utf-8"))
    inner = folder / "0_Transformer"
    inner.mkdir()
    for file in list(folder.iterdir()):
        if file.is_file() and file.name not in ("modules.json", "config_sentence_transformers.json"):
            file.rename(inner / file.name)
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules), "utf-8")
    return folder


def own_module(folder: Path) -> Path:
    """A folder whose pooling is code of its author."""
    modules = json.loads((folder / "modules.json").read_text("utf-8"))
    modules[1]["type"] = "my_modules.Pooling"
    (folder / "modules.json").write_text(json.dumps(modules), "utf-8")
    return folder


WORDS, BYTES, DECODER = {"words": True}, {}, {"start": False}
PROMPTS = {"query": "the query: ", "document": "passage: "}
Layout = Callable[[Path], Path]
ENCODERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # settings of the network and of the tokenizer
    "Albert": ({"embedding_size": 16}, WORDS),
    "Camembert": ({"type_vocab_size": 1}, BYTES),
    "DebertaV2": ({"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, WORDS),
    "DistilBert": ({"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48}, WORDS),
    "Electra": ({"embedding_size": 16}, WORDS),
    "Longformer": ({"attention_window": [4, 4]}, BYTES),
    "MPNet": ({}, WORDS),
    "MobileBert": ({"embedding_size": 32, "true_hidden_size": 32, "intra_bottleneck_size": 32}, WORDS),
    "ModernBert": ({"cls_token_id": 0, "sep_token_id": 2}, BYTES),
    "NomicBert": ({}, WORDS),
    "Roberta": ({"type_vocab_size": 1}, BYTES),
    "XLMRoberta": ({"type_vocab_size": 1}, BYTES),
}
DECODERS: dict[str, dict[str, Any]] = {
    "Bloom": {"n_layer": 2, "n_head": 2},
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 2},
    "GPTNeoX": {},
    "Gemma": {},
    "Lfm2": {},
    "Llama": {},
    "Mamba": {"state_size": 4},
    "OPT": {"word_embed_proj_dim": 32, "ffn_dim": 48},
    "Phi3": {},
    "Qwen2": {},
}
CLASSIFIERS = ("DebertaV2", "DistilBert", "Electra", "ModernBert", "Roberta", "XLMRoberta")
LAYOUTS: dict[str, Layout] = {
    "Qwen3 classifier, chat template": lambda folder: plain_pairs(
        folder, "Qwen3ForSequenceClassification", {**DECODER, "chat_template": RERANKER}
    ),
    "Qwen3 classifier, chat template, left padding": lambda folder: plain_pairs(
        folder, "Qwen3ForSequenceClassification", {**DECODER, "chat_template": RERANKER, "padding_side": "left"}
    ),
    "Qwen3 classifier, chat template of parts": lambda folder: plain_pairs(
        folder, "Qwen3ForSequenceClassification", {**DECODER, "chat_template": PARTS}
    ),
    "Qwen3 classifier, saved with messages": lambda folder: saved_pairs(
        folder, "Qwen3ForSequenceClassification", {**DECODER, "chat_template": PLAIN}
    ),
    "Qwen3 classifier, saved with messages and a prompt": lambda folder: saved_pairs(
        folder,
        "Qwen3ForSequenceClassification",
        {**DECODER, "chat_template": RERANKER},
        prompts={"web": "the red "},
        default_prompt_name="web",
    ),
    "Bert classifier": lambda folder: plain_pairs(folder, "BertForSequenceClassification", WORDS),
    "Bert classifier, labels without names": lambda folder: edited(
        plain_pairs(folder, "BertForSequenceClassification", WORDS), "config.json", num_labels=1, id2label=None
    ),
    "Roberta classifier, outputs as a tuple": lambda folder: edited(
        plain_pairs(folder, "RobertaForSequenceClassification", BYTES, type_vocab_size=1),
        "config.json",
        return_dict=False,
    ),
    "Bert classifier, two labels": lambda folder: plain_pairs(
        folder, "BertForSequenceClassification", WORDS, num_labels=2
    ),
    "Bert classifier, two labels, saved": lambda folder: saved(
        CrossEncoder(
            str(plain_pairs(folder / "inner", "BertForSequenceClassification", WORDS, num_labels=2)), device="cpu"
        ),
        folder / "m",
    ),
    "Bert classifier, two labels, softmax": lambda folder: saved(
        CrossEncoder(
            str(plain_pairs(folder / "inner", "BertForSequenceClassification", WORDS, num_labels=2)),
            device="cpu",
            activation_fn=torch.nn.Softmax(dim=-1),
        ),
        folder / "m",
    ),
    **{
        f"{kind} re-ranker, {name}": lambda folder, kind=kind, text=text, against=against: generator(
            folder, f"{kind}ForCausalLM", text, against
        )
        for kind, name, text, against in (
            ("Qwen3", "yes against no, messages", {"start": False, "chat_template": RERANKER}, 7),
            ("Qwen3", "yes against no, pairs", {"padding_side": "left"}, 7),
            ("Gemma2", "yes alone", {}, None),
        )
    },
    "Bert re-ranker of a Pooling and two Dense": lambda folder: pairs_of_modules(
        folder,
        Pooling(32, "mean"),
        Dense(32, 16),
        Dense(16, 1, activation_function=torch.nn.Identity(), module_output_name="scores"),
    ),
    "T5 classifier": lambda folder: plain_pairs(
        folder,
        "T5ForSequenceClassification",
        {"start": False},
        d_model=32,
        d_kv=16,
        d_ff=48,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=1,
    ),
    "Qwen3 re-ranker, plain, messages": lambda folder: plain_pairs(
        folder, "Qwen3ForCausalLM", {**DECODER, "chat_template": RERANKER, "additional_special_tokens": ["yes", "no"]}
    ),
    "Qwen3 encoder, saved with messages": lambda folder: encoder(
        folder, "Qwen3Model", Pooling(32, "lasttoken"), Normalize(), text={"start": False, "chat_template": PLAIN}
    ),
    "Qwen3 encoder, saved with messages and prompts": lambda folder: encoder(
        folder, "Qwen3Model", Pooling(32, "lasttoken"), text={"chat_template": PARTS}, prompts=PROMPTS
    ),
    "Bert encoder, saved with messages": lambda folder: encoder(
        folder, "BertModel", Pooling(32, "mean"), text={"words": True, "chat_template": PLAIN}
    ),
    **{
        f"Bert encoder, {mode} pooling": lambda folder, mode=mode: encoder(
            folder, "BertModel", Pooling(32, mode), text=WORDS
        )
        for mode in Pooling.POOLING_MODES
    },
    "Bert encoder, dot product": lambda folder: encoder(
        folder, "BertModel", Pooling(32, "cls"), text=WORDS, similarity_fn_name="dot"
    ),
    "Bert encoder, normalized, dot product": lambda folder: encoder(
        folder, "BertModel", Pooling(32, "cls"), Normalize(), text=WORDS, similarity_fn_name="dot"
    ),
    "Bert encoder, two poolings": lambda folder: encoder(folder, "BertModel", Pooling(32, ("mean", "max")), text=WORDS),
    "Bert encoder, three poolings, Dense, sharded weights": lambda folder: sharded(
        encoder(
            folder,
            "BertModel",
            Pooling(32, ("cls", "max", "mean")),
            lambda: Dense(96, 32, bias=False, activation_function=torch.nn.Identity()),
            lambda: Dense(32, 24, activation_function=torch.nn.GELU()),
            text=WORDS,
        )
    ),
    "Bert encoder, Dense (LaBSE)": lambda folder: encoder(
        folder, "BertModel", Pooling(32, "cls"), lambda: Dense(32, 32), Normalize(), text=WORDS
    ),
    "Bert encoder, Dense, dot product": lambda folder: encoder(
        folder, "BertModel", Pooling(32, "mean"), lambda: Dense(32, 16), text=WORDS, similarity_fn_name="dot"
    ),
    "Bert encoder, normalized, truncated, dot product": lambda folder: encoder(
        folder, "BertModel", Pooling(32, "mean"), Normalize(), text=WORDS, similarity_fn_name="dot", truncate_dim=10
    ),
    "Bert encoder, LayerNorm, truncated": lambda folder: encoder(
        folder, "BertModel", Pooling(32, "mean"), LayerNorm(32), text=WORDS, truncate_dim=16
    ),
    "Bert encoder, LayerNorm": lambda folder: encoder(
        folder, "BertModel", Pooling(32, "mean"), LayerNorm(32), Normalize(), text=WORDS
    ),
    "Bert encoder, prompts": lambda folder: encoder(
        folder, "BertModel", Pooling(32, "mean"), text=WORDS, prompts=PROMPTS
    ),
    **{
        f"Bert encoder, {mode} pooling without the prompts": lambda folder, mode=mode: encoder(
            folder, "BertModel", Pooling(32, mode, include_prompt=False), text=WORDS, prompts=PROMPTS
        )
        for mode in Pooling.POOLING_MODES
    },
    "Bert encoder, lower case": lambda folder: lower_cased(
        encoder(folder, "BertModel", Pooling(32, "mean"), text=WORDS)
    ),
    "Roberta encoder, lower case and prompts": lambda folder: lower_cased(
        encoder(folder, "RobertaModel", Pooling(32, "mean"), prompts=PROMPTS, settings={"type_vocab_size": 1})
    ),
    "Bert encoder, 0_Transformer": lambda folder: old_layout(
        encoder(folder, "BertModel", Pooling(32, "max"), lambda: Dense(32, 16), text=WORDS)
    ),
    "Qwen3-Embedding": lambda folder: encoder(
        folder,
        "Qwen3Model",
        Pooling(32, "lasttoken"),
        Normalize(),
        text={**DECODER, "padding_side": "left"},
        prompts={"query": "Instruct: find the answer\nQuery:", "document": ""},
    ),
    "EmbeddingGemma": lambda folder: encoder(
        folder,
        "Gemma3TextModel",
        Pooling(32, "mean"),
        lambda: Dense(32, 48, bias=False, activation_function=torch.nn.Identity()),
        lambda: Dense(48, 32, bias=False, activation_function=torch.nn.Identity()),
        Normalize(),
        settings={"use_bidirectional_attention": True, "sliding_window": 8},
        prompts={"query": "task: search result | query: ", "document": "title: none | text: "},
    ),
    "Mistral encoder": lambda folder: encoder(
        folder, "MistralModel", Pooling(32, "lasttoken"), Normalize(), text={"padding_side": "left"}
    ),
    "Mistral encoder without an end token": lambda folder: encoder(
        folder, "MistralModel", Pooling(32, "lasttoken"), text={"end": False}
    ),
    "Llama encoder, weighted mean (SGPT)": lambda folder: encoder(
        folder, "LlamaModel", Pooling(32, "weightedmean"), text={"start": False, "end": False}
    ),
    **{
        f"{name} encoder": lambda folder, name=name: encoder(
            folder, f"{name}Model", Pooling(32, "mean"), settings=ENCODERS[name][0], text=ENCODERS[name][1]
        )
        for name in ENCODERS
    },
    **{
        f"{name} decoder": lambda folder, name=name: encoder(
            folder, f"{name}Model", Pooling(32, "lasttoken"), settings=DECODERS[name], text=DECODER
        )
        for name in DECODERS
    },
    **{
        f"{name} classifier": lambda folder, name=name: plain_pairs(
            folder, f"{name}ForSequenceClassification", ENCODERS[name][1], **ENCODERS[name][0]
        )
        for name in CLASSIFIERS
    },
    **{
        f"{name} classifier": lambda folder, name=name: plain_pairs(
            folder, f"{name}ForSequenceClassification", BYTES, pad_token_id=1
        )
        for name in ("Gemma", "Llama", "Qwen3")
    },
    "Roberta encoder, left padding": lambda folder: encoder(
        folder,
        "RobertaModel",
        Pooling(32, ("cls", "weightedmean")),
        text={"padding_side": "left"},
        settings={"type_vocab_size": 1},
    ),
    "Qwen2 encoder of both directions, its author's code": lambda folder: edited(
        encoder(folder, "Qwen2Model", Pooling(32, "lasttoken"), Normalize(), text=DECODER),
        "config.json",
        is_causal=False,
        auto_map={"AutoModel": "modeling_qwen.Qwen2Model"},
    ),
    "NomicBert encoder, its author's code": lambda folder: edited(
        encoder(folder, "NomicBertModel", Pooling(32, "mean"), text=WORDS, prompts=PROMPTS),
        "config.json",
        auto_map={"AutoModel": "modeling_hf_nomic_bert.NomicBertModel"},
    ),
    "Llama classifier, left padding": lambda folder: plain_pairs(
        folder, "LlamaForSequenceClassification", {"padding_side": "left"}
    ),
    "Static embeddings": lambda folder: static(folder),
    "Static embeddings, normalized, with prompts": lambda folder: static(folder, Normalize(), prompts=PROMPTS),
    "Static embeddings, Dense, truncated, dot product": lambda folder: static(
        folder, Dense(32, 16), similarity_fn_name="dot", truncate_dim=8
    ),
    "Static embeddings, model2vec": lambda folder: model2vec(folder, normalize=True),
    "Static embeddings, model2vec, quantized vocabulary": lambda folder: model2vec(folder, quantized=True),
    "Router of static queries and Bert documents": lambda folder: routed(
        folder, ["Static", WORDS], ["BertModel", WORDS, Pooling(32, "mean")], Dense(32, 16)
    ),
    "Router of a Bert and a Roberta encoder, prompts": lambda folder: routed(
        folder,
        ["BertModel", WORDS, Pooling(32, "mean", include_prompt=False)],
        ["RobertaModel", BYTES, Pooling(32, "cls"), Dense(32, 32)],
        Normalize(),
        prompts=PROMPTS,
    ),
    "Router of a Bert and a Qwen3 encoder, dot product, truncated": lambda folder: routed(
        folder,
        ["BertModel", WORDS, Pooling(32, ("mean", "max")), Dense(64, 32)],
        ["Qwen3Model", {"padding_side": "left"}, Pooling(32, "lasttoken")],
        similarity_fn_name="dot",
        truncate_dim=12,
    ),
    "Bert encoder, Router of two Dense": lambda folder: encoder(
        folder,
        "BertModel",
        Pooling(32, "mean"),
        lambda: Router.for_query_document([Dense(32, 16)], [Dense(32, 16)]),
        text=WORDS,
    ),
    "SqueezeBert encoder": lambda folder: encoder(
        folder,
        "SqueezeBertModel",
        Pooling(32, "mean"),
        text=WORDS,
        settings={
            "embedding_size": 32,
            "q_groups": 2,
            "k_groups": 2,
            "v_groups": 2,
            "post_attention_groups": 1,
            "intermediate_groups": 2,
            "output_groups": 2,
        },
    ),
    "T5 encoder": lambda folder: encoder(
        folder,
        "T5EncoderModel",
        Pooling(32, "mean"),
        Dense(32, 16),
        Normalize(),
        text={"start": False},
        settings={
            "d_model": 32,
            "d_kv": 16,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 2,
            "decoder_start_token_id": 1,
            "initializer_factor": 1.0,
        },
    ),
    "MT5 encoder": lambda folder: encoder(
        folder,
        "MT5EncoderModel",
        Pooling(32, "mean"),
        text={"start": False},
        settings={"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 1},
    ),
}

PADDING, CODE = "depend on the padding of a batch or on types of tokens", "code of its author"
REFUSED: dict[str, tuple[str, Layout]] = {  # the reason, and the layout
    "Roberta classifier, left padding": (
        PADDING,
        lambda folder: plain_pairs(
            folder, "RobertaForSequenceClassification", {"padding_side": "left"}, type_vocab_size=1
        ),
    ),
    "Bert encoder, left padding": (
        PADDING,
        lambda folder: encoder(folder, "BertModel", Pooling(32, "mean"), text={**WORDS, "padding_side": "left"}),
    ),
    "Bert encoder, left padding by its model": (
        PADDING,
        lambda folder: edited(
            encoder(folder, "BertModel", Pooling(32, "mean"), text=WORDS),
            "sentence_bert_config.json",
            processor_kwargs={"padding_side": "left"},
        ),
    ),
    "Bert encoder, outputs of its first layer": (
        "sets modality_config of text",
        lambda folder: edited(
            encoder(folder, "BertModel", Pooling(32, "mean"), text=WORDS),
            "sentence_bert_config.json",
            modality_config={"text": {"method": "forward", "method_output_name": ["hidden_states", 1]}},
        ),
    ),
    "Bert classifier, activation with settings": (
        "which torch.nn does not have without settings",
        lambda folder: edited(
            plain_pairs(folder, "BertForSequenceClassification", WORDS),
            "config.json",
            sentence_transformers={"activation_fn": "torch.nn.modules.activation.Threshold"},
        ),
    ),
    "GPT-2 encoder, left padding": (
        PADDING,
        lambda folder: encoder(
            folder,
            "GPT2Model",
            Pooling(32, "lasttoken"),
            text={"padding_side": "left"},
            settings={"n_embd": 32, "n_layer": 2, "n_head": 2},
        ),
    ),
    "GPT-2 classifier with types of tokens": (
        PADDING,
        lambda folder: plain_pairs(
            folder,
            "GPT2ForSequenceClassification",
            {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]},
            n_embd=32,
            n_layer=2,
            n_head=2,
        ),
    ),
    "FNet encoder": (PADDING, lambda folder: encoder(folder, "FNetModel", Pooling(32, "mean"), text=WORDS)),
    "Bert classifier, truncated on the left": (
        "cuts the starts of texts",
        lambda folder: plain_pairs(folder, "BertForSequenceClassification", {**WORDS, "truncation_side": "left"}),
    ),
    "Mistral encoder of both directions, its author's code": (
        CODE,
        lambda folder: with_code(
            encoder(folder, "MistralModel", Pooling(32, "mean"), text=DECODER),
            AutoModel="modeling_gritlm7b.MistralModel",
        ),
    ),
    "Bert encoder, its author's code": (
        CODE,
        lambda folder: with_code(
            encoder(folder, "BertModel", Pooling(32, "mean"), text=WORDS),
            AutoModel="jinaai/jina-bert-implementation--modeling_bert.JinaBertModel",
        ),
    ),
    "Qwen3 re-ranker, its author's settings": (
        CODE,
        lambda folder: with_code(
            plain_pairs(
                folder,
                "Qwen3ForCausalLM",
                {**DECODER, "chat_template": RERANKER, "additional_special_tokens": ["yes", "no"]},
            ),
            AutoConfig="modeling_zeranker.ZEConfig",
        ),
    ),
    "Bert encoder, a module of its author": (
        CODE,
        lambda folder: own_module(encoder(folder, "BertModel", Pooling(32, "mean"), text=WORDS)),
    ),
}


def theirs(folder: Path, **settings: Any) -> np.ndarray[Any, Any]:
    """The scores of sentence-transformers, ``[queries, documents]``, of a model loaded with settings."""
    config = json.loads((folder / "config.json").read_text("utf-8")) if (folder / "config.json").exists() else {}
    model_file = folder / "config_sentence_transformers.json"
    kind = json.loads(model_file.read_text("utf-8")).get("model_type") if model_file.exists() else None
    architecture = next(iter(config.get("architectures") or ()), "")
    if kind == "CrossEncoder" or (kind is None and architecture.endswith(("Classification", "CausalLM"))):
        model = CrossEncoder(str(folder), device="cpu")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a softmax that was saved does not state its dimension
            rows = [model.predict([(query, text) for text in DOCUMENTS]) for query in QUERIES]
        scores = np.stack(rows)
        return scores[..., 1] if scores.ndim == 3 else scores
    encoder = SentenceTransformer(str(folder), device="cpu", **settings)
    similarity = encoder.similarity(encoder.encode_query(QUERIES), encoder.encode_document(DOCUMENTS))
    return similarity.numpy()  # type: ignore[no-any-return]  # of a library without types


def difference(folder: Path) -> float:
    """The largest difference of polyrank's scores from those of sentence-transformers."""
    scores = load(folder, device="cpu").score(QUERIES, [DOCUMENTS] * len(QUERIES))
    return float(np.abs(np.stack(scores) - theirs(folder)).max())


HEAD = """<!-- written by runs/layouts.py -->

# Models of sentence-transformers

polyrank scores models of the Hugging Face Hub as their authors meant, or refuses them. The table shows
the largest difference from sentence-transformers in fp32, on random weights; a test allows 0.00001.

Qwen3-Reranker, bge-reranker-v2-gemma and mxbai-rerank-v2 score by their authors' prompts, other plain language models
by "yes" against "no" after a chat template with the roles query and document.

fp16 and bf16 weights are computed in fp32; sentence-transformers computes them narrow, which moves scores by about
0.001 (fp16) or 0.01 (bf16). Of texts over the limit, polyrank keeps a context's end and a candidate's start.
Tokenizers that are only a SentencePiece model need `polyrank[sentencepiece]`.
CANINE, ConvBERT, FNet, Nystromformer, XLM, Flaubert and YOSO are refused, and when it loads a model, polyrank checks
that its scores do not depend on the padding of a batch.

`MODEL#truncate_dim=64` keeps the first 64 numbers; `train.method.matryoshka_dims = [64]` trains for it.

A training starts with the same scores. Prompts become `text.context_prefix` and `text.candidate_prefix`. Models that
read messages, concatenate several poolings, cut vectors, leave prompts out of the pooling, or have a Router cannot be
trained.

| model | largest difference |
|---|---:|
"""


def main(names: Sequence[str]) -> None:
    """Measure the named layouts; or all, and write the page."""
    rows = {}
    for name in names or LAYOUTS:
        with tempfile.TemporaryDirectory() as folder:
            rows[name] = difference(LAYOUTS[name](Path(folder)))
        print(f"{name}: {rows[name]:.1e}")
    if not names:
        table = "".join(f"| {name} | {value:.0e} |\n" for name, value in rows.items())
        refused = "".join(f"| {name} | {reason} |\n" for name, (reason, _) in REFUSED.items())
        PAGE.write_text(f"{HEAD}{table}\n| refused | reason |\n|---|---|\n{refused}", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
