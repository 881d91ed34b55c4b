"""Responses that are said often are negatives often; `uniform_negatives` takes that out of the loss."""

from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import WORDS
from polyrank.config.models import BiConfig, TextPolicy
from polyrank.config.training import InBatchMethod, NegativesConfig, TrainConfig
from polyrank.errors import ConfigError
from polyrank.models import BiEncoder, new_model
from polyrank.models.scoring import scores
from polyrank.records import Context, Example
from polyrank.scorers.load import make_scorer
from polyrank.text import BackboneTexts
from polyrank.training.methods import make_step
from polyrank.training.network import Ranker
from polyrank.training.steps import InBatchStep, frequencies

CPU = torch.device("cpu")
POLICY = TextPolicy(max_context_tokens=16, max_candidate_tokens=8)
SAID = {"thanks": 12, "too high": 6, "restart it": 2}


def tiny(backbone: Path) -> tuple[BiEncoder, BackboneTexts]:
    config = BiConfig(backbone=str(backbone), reduction="mean", shared_towers=True)
    model, texts, _ = new_model(config, POLICY, seed=1, sample=["hi"])
    assert isinstance(model, BiEncoder)
    assert isinstance(texts, BackboneTexts)
    return model.eval(), texts


def all_scores(model: BiEncoder, texts: BackboneTexts, contexts: list[str], replies: list[str]) -> torch.Tensor:
    vectors, mask = model.encode_contexts(texts.contexts([Context((text,)) for text in contexts]))
    return scores(vectors, model.encode_candidates(texts.candidates(replies))[None], mask)


def test_the_loss_is_its_formula(tiny_backbone: Path) -> None:
    model, texts = tiny(tiny_backbone)
    data = [Example((f"{text} {i}",), (text,), (0,)) for text, n in SAID.items() for i in range(n)]
    method = InBatchMethod(uniform_negatives=True)
    ranker = Ranker(model, texts, make_scorer(model, texts), save=lambda path, metadata: None)
    step = make_step([ranker], TrainConfig(method=method), data, device=CPU, seed=1, folder=Path())
    batch = [(i, data[i]) for i in (0, 1, 12, 18)]
    loss = step(batch, 0, 0)  # type: ignore[operator]
    replies = ["thanks", "thanks", "too high", "restart it"]
    values = all_scores(model, texts, ["thanks 0", "thanks 1", "too high 0", "restart it 0"], replies)
    weights = torch.tensor([12 / 20, 12 / 20, 6 / 20, 2 / 20]) * 3  # their shares, beside a third for each
    others = [[2, 3], [2, 3], [0, 1, 3], [0, 1, 2]]
    expected = []
    for i, wrong in enumerate(others):
        right = values[i, i].exp()
        expected.append(-(right / (right + (values[i, wrong].exp() / weights[wrong]).sum())).log())
    torch.testing.assert_close(loss, torch.stack(expected).mean(), atol=1e-5, rtol=1e-5)


def test_it_changes_nothing_where_no_response_comes_twice(tiny_backbone: Path) -> None:
    model, texts = tiny(tiny_backbone)
    examples = [Example((f"hi {text}",), (text,), (0,)) for text in SAID]
    batch = list(enumerate(examples))
    plain, corrected = (
        InBatchStep(model, texts, CPU, frequencies=shares)(batch, 0) for shares in (None, frequencies(list(SAID)))
    )
    torch.testing.assert_close(corrected, plain, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("uniform", "least", "most"), [(False, -0.3, 0.5), (True, 0.75, 1.25)])
def test_what_is_said_often_is_learnt_to_be_likely(
    uniform: bool, least: float, most: float, tiny_backbone: Path
) -> None:
    """All have one context, so that how often a reply is said is all there is to learn; slope 1: the log of it."""
    model, texts = tiny(tiny_backbone)
    counts = {word: (1, 3, 9)[i % 3] for i, word in enumerate(WORDS[:15])}
    said = [text for text, n in counts.items() for _ in range(n)]
    step = InBatchStep(model, texts, CPU, frequencies=frequencies(said) if uniform else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    random = np.random.Generator(np.random.PCG64(1))
    last = []
    for number in range(300):
        batch = [(0, Example(("hi",), (said[i],), (0,))) for i in random.choice(len(said), 8)]
        optimizer.zero_grad()
        step(batch, 0).backward()
        optimizer.step()
        if number >= 200:
            with torch.no_grad():
                last.append(all_scores(model, texts, ["hi"], list(counts))[0])
    slope = np.polyfit(np.log(list(counts.values())), torch.stack(last).mean(0).numpy(), 1)[0]
    assert least < slope < most


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: InBatchMethod(uniform_negatives=True, queue=4), "queue = 4"),
        (
            lambda: TrainConfig(method=InBatchMethod(uniform_negatives=True), negatives=NegativesConfig(n=2)),
            "^method.uniform_negatives is for",
        ),
    ],
)
def test_it_is_for_the_batch_alone(make: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()  # type: ignore[operator]
