"""polyrank's BERT returns the same bits as the transformers library for the same files."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

from polyrank.answering.build import build_index
from polyrank.loading.backbones import resolve_backbone
from polyrank.models.backbone import load_backbone
from polyrank.models.bert import BertModel
from polyrank.records import Candidate
from polyrank.scorers.open import load_encoder
from polyrank.text import load_subwords


def ids(*lengths: int) -> dict[str, Tensor]:
    """Random padded ids of texts with these lengths; the second half of each is its second segment."""
    width = max(lengths)
    mask = torch.tensor([[position < length for position in range(width)] for length in lengths])
    words = torch.randint(5, 70, mask.shape, generator=torch.Generator().manual_seed(1)) * mask
    segments = torch.tensor([[int(length / 2 <= position < length) for position in range(width)] for length in lengths])
    return {"input_ids": words, "attention_mask": mask.long(), "token_type_ids": segments}


@pytest.fixture
def both(tiny_backbone: Path) -> tuple[BertModel, Any]:
    """polyrank's and the library's network with the same weights."""
    own = load_backbone(tiny_backbone).network
    assert isinstance(own, BertModel)
    return own, AutoModel.from_pretrained(tiny_backbone, add_pooling_layer=False)


@pytest.mark.parametrize("lengths", [(7,), (9, 9), (3, 12, 1), (128, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_are_the_same_bits(both: tuple[BertModel, Any], lengths: tuple[int, ...], dtype: torch.dtype) -> None:
    own, theirs = (network.to(dtype) for network in both)
    with torch.inference_mode():
        found, expected = (network(**ids(*lengths)).last_hidden_state for network in (own, theirs))
    assert torch.equal(found, expected)
    assert found.dtype == dtype


def test_training_moves_weights_to_the_same_bits_with_dropout(both: tuple[BertModel, Any]) -> None:
    for network in both:
        network.train()
        torch.manual_seed(5)
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
        for lengths in ((4, 9), (6, 6, 2)):
            loss = network(**ids(*lengths)).last_hidden_state.square()[:, :, 1:].mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    assert [name for name, _ in both[0].named_parameters()] == [name for name, _ in both[1].named_parameters()]
    for (name, own), (_, theirs) in zip(both[0].named_parameters(), both[1].named_parameters(), strict=True):
        assert torch.equal(own, theirs), name


def test_new_words_do_not_change_the_others(both: tuple[BertModel, Any]) -> None:
    for network in both:
        network.resize_token_embeddings(100, mean_resizing=False)
    own, theirs = (network.get_input_embeddings() for network in both)
    assert own.weight.shape == theirs.weight.shape == (100, 32)
    assert (own.num_embeddings, own.padding_idx) == (theirs.num_embeddings, theirs.padding_idx)
    assert both[0].config.to_dict()["vocab_size"] == 100
    assert torch.equal(own.weight[:77], theirs.weight[:77])


@pytest.fixture
def copied(tiny_backbone: Path, tmp_path: Path) -> Path:
    """A copy of a backbone's folder that a test may change."""
    return Path(shutil.copytree(tiny_backbone, tmp_path / "backbone"))


def set_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


@pytest.mark.parametrize("changes", [
        {"hidden_act": "relu"}, {"is_decoder": True}, {"model_type": "roberta"},
        {"auto_map": {"AutoTokenizer": ["own.Tokenizer", None]}},
    ],
)  # fmt: skip
def test_other_networks_come_from_the_library(copied: Path, changes: dict[str, Any]) -> None:
    set_config(copied, **changes)
    before = logging.is_progress_bar_enabled(), logging.get_verbosity()
    for dropout, expected, bars, verbosity in ((None, 0.1, True, logging.INFO), (0.3, 0.3, False, logging.ERROR)):
        (logging.enable_progress_bar if bars else logging.disable_progress_bar)()
        logging.set_verbosity(verbosity)
        backbone = load_backbone(copied, dropout)
        assert (logging.is_progress_bar_enabled(), logging.get_verbosity()) == (bars, verbosity)
        assert type(backbone.network).__module__.startswith("transformers.")
        assert backbone.config.hidden_size == 32
        assert {module.p for module in backbone.modules() if isinstance(module, torch.nn.Dropout)} == {expected}
    (logging.enable_progress_bar if before[0] else logging.disable_progress_bar)()
    logging.set_verbosity(before[1])


def prefixed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    heads = {"cls.predictions.bias": torch.zeros(77), "classifier.weight": torch.zeros(2, 32)}
    return {f"bert.{name}": tensor for name, tensor in tensors.items()} | heads


def with_earlier_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }


def in_16_bits(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.half() for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("layout", "own"), [(prefixed, True), (in_16_bits, True), (with_earlier_names, False), (dict, True)]
)
def test_weights_are_read_as_the_library_reads_them(
    copied: Path, layout: Callable[[dict[str, Tensor]], dict[str, Tensor]], own: bool
) -> None:
    path = copied / "model.safetensors"
    save_file(layout(load_file(path)), path, {"format": "pt"})
    found = load_backbone(copied).network
    assert isinstance(found, BertModel) == own
    expected = AutoModel.from_pretrained(copied, dtype=torch.float32).state_dict()
    for name, tensor in found.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
        assert tensor.dtype == torch.float32


def test_the_embedded_vocabulary_equals_the_librarys() -> None:
    folder = resolve_backbone("embedded").folder
    found, expected = load_subwords(folder), AutoTokenizer.from_pretrained(folder)
    assert found.tokenizer.to_str() == without_padding(expected)
    assert list(found.names.values()) == [expected.cls_token, expected.sep_token, expected.pad_token]


def without_padding(tokenizer: Any) -> str:
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return str(backend.to_str())


@pytest.mark.deep
@pytest.mark.parametrize(
    "changes",
    [
        {"do_lower_case": False},
        {"strip_accents": True},
        {"tokenizer_class": "PreTrainedTokenizerFast"},
        {"sep_token": "."},
        {"tokenize_chinese_chars": False},
        {"added_tokens_decoder": {"1012": {"content": ".", "special": True}}},
    ],
)
def test_two_tokenizer_files_that_differ_use_the_library(tmp_path: Path, changes: dict[str, Any]) -> None:
    embedded = resolve_backbone("embedded").folder
    for name in ("config.json", "tokenizer.json", "vocab.txt"):
        shutil.copy(embedded / name, tmp_path)
    settings = json.loads((embedded / "tokenizer_config.json").read_text("utf-8"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | changes), "utf-8")
    found, expected = load_subwords(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert found.tokenizer.to_str() == without_padding(expected)
    assert list(found.names.values()) == [expected.cls_token, expected.sep_token, expected.pad_token]


@pytest.mark.deep
def test_texts_are_lower_cased_for_a_model_that_requires_it(tmp_path: Path) -> None:
    """Its own tokenizer distinguishes them; both files agree, so polyrank reads them without transformers."""
    folder = shutil.copytree(resolve_backbone("embedded").folder, tmp_path / "cased")
    document = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    document["normalizer"] |= {"lowercase": False}
    (folder / "tokenizer.json").write_text(json.dumps(document), "utf-8")
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8")) | {"do_lower_case": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    plain, lowered = load_subwords(folder), load_subwords(folder, lower_case=True)
    assert plain.encode("HELLO there") != plain.encode("hello there") == lowered.encode("HELLO there")


@pytest.mark.parametrize("model", [pytest.param("untuned:embedded", marks=pytest.mark.deep), "shipped:convert"])
def test_answering_imports_neither_transformers_nor_a_compiler(tmp_path: Path, model: str) -> None:
    """These imports take longer than the rest of a command."""
    build_index(tmp_path / "index", load_encoder(model), [Candidate("a", "restart the router")], name=model)
    program = """
import sys
from polyrank.cli import main
try:
    main()
finally:
    print(*sorted({"transformers", "sympy", "torch._dynamo", "scipy"} & set(sys.modules)), file=sys.stderr)
"""
    command = [sys.executable, "-c", program, "respond", str(tmp_path / "index"), "hi"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout)["results"][0]["id"] == "a"
    assert not ended.stderr.strip()
