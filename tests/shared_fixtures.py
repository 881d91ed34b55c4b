"""Shared fixtures: a tiny random backbone saved as a real Hugging Face folder, and small files of examples."""

import functools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.testing
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from milvus import Milvus
from polyrank.config.models import BiConfig, PolyConfig, TextPolicy
from polyrank.index.remote import list_collections
from polyrank.models import new_model
from polyrank.models.artifacts import save_model
from postgresql import Postgresql

if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
    torch.set_num_threads(1)

# A Typer app makes all its commands again at every call, which takes longer than most calls in tests.
typer.testing._get_command = functools.cache(typer.testing._get_command)

WORDS = [
    "my",
    "wifi",
    "is",
    "down",
    "hello",
    "hi",
    "thanks",
    "the",
    "router",
    "light",
    "red",
    "green",
    "please",
    "restart",
    "it",
    "did",
    "that",
    "bill",
    "too",
    "high",
]


@pytest.fixture(scope="session")
def tiny_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer BERT of 32 dimensions with random weights and a word-piece vocabulary."""
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast  # takes seconds, which forks need not wait

    folder = tmp_path_factory.mktemp("tiny")
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters), *WORDS]
    backend = Tokenizer(WordPiece({word: i for i, word in enumerate(dict.fromkeys(vocabulary))}, unk_token="[UNK]"))
    backend.normalizer = BertNormalizer(lowercase=True)
    backend.pre_tokenizer = BertPreTokenizer()
    names = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
    tokens = {f"{kind}_token": name for kind, name in names.items()}
    PreTrainedTokenizerFast(tokenizer_object=backend, **tokens).save_pretrained(folder)
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=backend.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        initializer_range=0.2,
    )
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def mean_pooled_backbone(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same backbone with the configuration files of a sentence encoder."""
    folder = tmp_path_factory.mktemp("pooled") / "backbone"
    shutil.copytree(tiny_backbone, folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}', "utf-8")
    return folder


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, Any], Path]:
    """Write text, bytes or JSON to a file in the test's folder."""

    def write(name: str, content: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        held = content if isinstance(content, bytes | str) else json.dumps(content)
        path.write_bytes(held.encode() if isinstance(held, str) else held)
        return path

    return write


@pytest.fixture
def write_rows(tmp_path: Path) -> Callable[[str, list[dict[str, Any]]], Path]:
    """Write rows as JSON lines to a file in the test's folder."""

    def write(name: str, rows: list[dict[str, Any]]) -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        return path

    return write


@pytest.fixture
def task(write_rows: Callable[[str, list[dict[str, Any]]], Path]) -> dict[str, Path]:
    """A learnable toy task: the reply repeats the last word of the context."""
    pairs = [{"context": [f"hello {a}", f"my {b}"], "response": f"{b} thanks"} for a in WORDS[:6] for b in WORDS[4:16]]
    replies = [f"{b} thanks" for b in WORDS[4:16]]
    lists = [{"context": ["hi", f"my {b}"], "candidates": replies, "relevant": [i]} for i, b in enumerate(WORDS[4:16])]
    return {"train": write_rows("train.jsonl", pairs), "valid": write_rows("valid.jsonl", lists)}


@pytest.fixture
def uneven_task(task: dict[str, Path], write_rows: Callable[[str, list[dict[str, Any]]], Path]) -> dict[str, Path]:
    """The toy task with contexts of different lengths."""
    rows = [json.loads(line) for line in task["train"].read_text("utf-8").splitlines()]
    for number, row in enumerate(rows):
        row["context"][0] = " ".join([row["context"][0]] * (1 + number % 4))
    return {**task, "train": write_rows("uneven.jsonl", rows)}


@pytest.fixture(scope="session")
def word_task(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A learnable toy task of eight words: training pairs, and validation and test lists; nobody may change it."""
    folder = tmp_path_factory.mktemp("words")
    words = ["wifi", "bill", "router", "light", "high", "down", "red", "green"]
    pairs = [{"context": [f"my {word}"], "response": f"{word} thanks"} for word in words]
    lists = [
        {"context": [f"my {w}"], "candidates": [f"{v} thanks" for v in words], "relevant": [i]}
        for i, w in enumerate(words)
    ]
    files = {}
    for name, rows in (("train", pairs * 4), ("valid", lists), ("test", lists)):
        files[name] = folder / f"{name}.jsonl"
        files[name].write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return files


@pytest.fixture(scope="session")
def tiny_encoders(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A Bi-encoder and a Poly-encoder on the tiny backbone, untrained, as model folders that tests must not change."""
    folder, backbone = tmp_path_factory.mktemp("encoders"), str(tiny_backbone)
    policy = TextPolicy(max_context_tokens=32, max_candidate_tokens=16)
    poly = PolyConfig(backbone=backbone, n_codes=4, code_init="normal")
    for name, config in {"bi": BiConfig(backbone=backbone), "poly": poly}.items():
        save_model(folder / name, *new_model(config, policy, seed=1, sample=["restart the router", "thanks"]))
    return {name: folder / name for name in ("bi", "poly")}


@pytest.fixture
def fp64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace fp32 by fp64, to distinguish equal results from nearly equal ones."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Milvus]:
    """A running server for the tests of a module."""
    server = Milvus(tmp_path_factory.mktemp("milvus")).start()
    list_collections(server.address(), timeout_s=120)  # a busy machine starts it slowly
    yield server
    server.kill()


@pytest.fixture(scope="module")
def postgresql() -> Iterator[Postgresql]:
    """A running server with pgvector for the tests of a module."""
    server = Postgresql.start()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("POLYRANK_POSTGRESQL_URI", f"postgresql://127.0.0.1:{server.port}")
        environment.setenv("POLYRANK_POSTGRESQL_TOKEN", "postgres:any")
        list_collections(server.address(), timeout_s=120)
        yield server
    server.stop()
