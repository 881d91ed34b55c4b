"""Batches in groups of texts of similar length: the same vectors and gradients, from fewer tokens."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from convert_models import make
from polyrank.config.models import BiConfig, CrossConfig, PolyConfig, TextPolicy
from polyrank.models import new_model
from polyrank.records import Context
from polyrank.text import Tokens, pad
from polyrank.training.encoding import GROUP, encode_in_parts

# 90 texts of 1 to 40 words in random order; padded to the longest the batch has the tokens of three groups
CONTEXTS = [Context(("my wifi is down", " ".join(["restart"] * (1 + 7 * i % 40)))) for i in range(90)]
POLICY = TextPolicy(max_context_tokens=48, max_candidate_tokens=48)
KINDS: dict[str, Any] = {
    "Bi": BiConfig(reduction="mean"),
    "Poly": PolyConfig(n_codes=4, code_init="near_zero", reduction="mean"),
    "Poly, last outputs": PolyConfig(n_codes=60, codes="last", reduction="mean"),
    "Cross": CrossConfig(),
}


def encoding(kind: str, backbone: Path) -> tuple[Any, Callable[[Tokens], Any], Tokens]:
    """A network in fp64, its encoding function, and texts."""
    if kind == "ConveRT":
        convert, words, _ = make(multi_context=True)
        return convert.double().eval(), convert.context_encodings, words.contexts(CONTEXTS)
    model, texts, _ = new_model(replace(KINDS[kind], backbone=str(backbone)), POLICY, seed=1, sample=["hi"])
    if kind == "Cross":
        return model.double().eval(), model, texts.pairs([(context, "hello") for context in CONTEXTS])
    return model.double().eval(), model.encode_contexts, texts.contexts(CONTEXTS)  # type: ignore[union-attr]


def parts_of(outputs: Any) -> list[Tensor]:
    """Each tensor; masked context vectors are left out, since their values are undefined."""
    parts = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    if len(parts) == 2 and parts[1].dtype == torch.bool:
        parts[0] = parts[0] * parts[1][..., None]
    return parts


@pytest.mark.parametrize("kind", [*KINDS, "ConveRT"])
def test_vectors_and_gradients_equal_those_of_the_whole_batch(
    kind: str, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)  # fp64 shows small differences
    model, encode, tokens = encoding(kind, tiny_backbone)
    assert tokens.ids.numel() > GROUP
    generator = torch.Generator().manual_seed(3)
    sides: list[tuple[list[Tensor], dict[str, Tensor]]] = []
    for outputs in (parts_of(encode(tokens)), parts_of(encode_in_parts(encode, tokens))):
        generator.manual_seed(3)
        numbers = [part for part in outputs if part.is_floating_point()]
        loss = sum((part * torch.randn(part.shape, generator=generator)).sum() for part in numbers)
        model.zero_grad()
        assert isinstance(loss, Tensor)
        loss.backward()  # type: ignore[no-untyped-call]
        sides.append((outputs, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}))
    (whole, expected), (grouped, gradients) = sides
    for one, other in zip(grouped, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    assert gradients.keys() == expected.keys() != set()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-9, msg=name)


def test_every_text_is_computed_once_in_groups_within_their_size_with_less_padding() -> None:
    lengths = [1 + 37 * i % 100 for i in range(100)]
    tokens = pad([[n] * n for n in lengths])
    shapes = []

    def encode(part: Tokens) -> Tensor:
        shapes.append(part.ids.shape)
        return part.ids[:, 0]

    assert encode_in_parts(encode, tokens).tolist() == lengths
    assert sum(n for n, _ in shapes) == 100
    assert all(n * width <= GROUP for n, width in shapes)
    assert sum(n * width for n, width in shapes) < 0.6 * tokens.ids.numel()  # 5,050 real tokens of 10,000


def test_a_small_batch_is_one_unchanged_group() -> None:
    tokens = pad([[1], [2, 3]])
    assert encode_in_parts(lambda part: part.ids, tokens) is tokens.ids
