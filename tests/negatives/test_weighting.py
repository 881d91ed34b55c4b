"""Frequent responses are frequent negatives; `negatives_weighting` removes that effect from the loss."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from convert_models import make as make_convert, step_of
from polyrank.config.methods import ConvertMethod, InBatchMethod
from polyrank.config.models import BiConfig, TextPolicy
from polyrank.config.train import NegativesConfig, TrainConfig
from polyrank.errors import ConfigError
from polyrank.models import BiEncoder, new_model
from polyrank.models.losses import LogQ, cross_entropy
from polyrank.models.scoring import scores
from polyrank.records import Context, Example
from polyrank.scorers.load import make_scorer
from polyrank.text import BackboneTexts
from polyrank.training.methods import make_step
from polyrank.training.ranker import Ranker
from polyrank.training.steps import InBatchStep
from train_settings import loss_of

CPU = torch.device("cpu")
POLICY = TextPolicy(max_context_tokens=16, max_candidate_tokens=8)
SAID = {"thanks": 12, "too high": 6, "restart it": 2}
DATA = [Example((f"{text} {i}",), (text,), (0,)) for text, n in SAID.items() for i in range(n)]
BATCH = [(i, DATA[i]) for i in (0, 1, 12, 18)]
REPLIES = ["thanks", "thanks", "too high", "restart it"]
WRONG = [[2, 3], [2, 3], [0, 1, 3], [0, 1, 2]]  # columns with another text


def tiny(backbone: Path) -> tuple[BiEncoder, BackboneTexts]:
    config = BiConfig(backbone=str(backbone), reduction="mean", shared_towers=True)
    model, texts, _ = new_model(config, POLICY, seed=1, sample=["hi"])
    assert isinstance(model, BiEncoder)
    assert isinstance(texts, BackboneTexts)
    return model.eval(), texts


def all_scores(model: BiEncoder, texts: BackboneTexts, contexts: list[str], replies: list[str]) -> torch.Tensor:
    vectors, mask = model.encode_contexts(texts.contexts([Context((text,)) for text in contexts]))
    return scores(vectors, model.encode_candidates(texts.candidates(replies))[None], mask)


def next_loss(kind: Any, backbone: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """The step's loss on the batch, and the raw scores of its contexts and responses."""
    model, texts = tiny(backbone)
    ranker = Ranker(model, texts, make_scorer(model, texts), save=lambda path, metadata: None)
    config = TrainConfig(method=InBatchMethod(negatives_weighting=kind))
    step = make_step([ranker], config, DATA, device=CPU, seed=1, folder=Path())
    values = all_scores(model, texts, ["thanks 0", "thanks 1", "too high 0", "restart it 0"], REPLIES)
    return loss_of(step, BATCH), values


def by_hand(values: torch.Tensor, wrong: list[list[int]]) -> torch.Tensor:
    rows = enumerate(wrong)
    return -torch.stack([values[i, i] - torch.logsumexp(values[i, [i, *others]], 0) for i, others in rows]).mean()


def test_logq_equals_its_formula(tiny_backbone: Path) -> None:
    """Every score minus the log of its text's frequency, including the right one's."""
    loss, values = next_loss("logq", tiny_backbone)
    corrected = values - torch.tensor([12.0, 12.0, 6.0, 2.0]).log()
    torch.testing.assert_close(loss, by_hand(corrected, WRONG), atol=1e-5, rtol=1e-5)


def test_the_scores_of_a_convert_are_corrected_too() -> None:
    """By hand, with the full scale; two contexts have the same response."""
    model, texts, _ = make_convert(multi_context=False)
    model.eval()
    batch = [(i, Example((f"hello {i}",), (text,), (0,))) for i, text in enumerate(REPLIES)]
    with torch.no_grad():
        loss = loss_of(step_of(model, texts, smoothing=0.0, weighting=LogQ(SAID)), batch, number=9)
        contexts = model.context_encodings(texts.contexts([example.query for _, example in batch])).both
        values = math.sqrt(12) * contexts @ model.encode_candidates(texts.candidates(REPLIES)).T
    corrected = values - torch.tensor([12.0, 12.0, 6.0, 2.0]).log()
    torch.testing.assert_close(loss, by_hand(corrected, WRONG), atol=1e-5, rtol=1e-5)


def test_weighting_has_no_effect_without_repeated_responses(tiny_backbone: Path) -> None:
    model, texts = tiny(tiny_backbone)
    examples = [Example((f"hi {text}",), (text,), (0,)) for text in SAID]
    batch = list(enumerate(examples))
    plain, corrected = (
        loss_of(InBatchStep(model, texts, CPU, weighting=weighting), batch)
        for weighting in (None, LogQ(dict.fromkeys(SAID, 1)))
    )
    torch.testing.assert_close(corrected, plain, atol=1e-5, rtol=1e-5)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("make", "least", "most"),
    [
        (lambda counts: None, -0.05, 0.05),
        (LogQ, 0.97, 1.03),
    ],
)
def test_the_loss_is_minimal_at_the_right_slope(make: Callable[[Any], Any], least: float, most: float) -> None:
    """One context for all, and scores ``a log(count)``: the loss is minimal at the a that training reaches.

    For log-probabilities as scores, a = 1. The loss is convex in a, and its derivative is 0 at the minimum.
    """
    counts = {str(i): 2 ** (i % 7) if i % 7 < 5 else 1 for i in range(280)}
    weighting, names = make(counts), list(counts)
    logs = torch.tensor(list(counts.values())).log()
    generator = torch.Generator().manual_seed(1)
    batches = torch.multinomial(logs.exp(), 256 * 150, replacement=True, generator=generator).view(150, 256)

    def slope_of_loss(a: float) -> float:
        share = torch.tensor(a, requires_grad=True)
        for drawn in batches:
            values, allowed = (share * logs[drawn])[None].expand(256, 256), drawn[:, None] != drawn
            if weighting is not None:
                values = weighting(values, [names[i] for i in drawn.tolist()])
            cross_entropy(values, torch.arange(256), allowed).backward()  # type: ignore[no-untyped-call]
        assert share.grad is not None
        return share.grad.item()

    assert slope_of_loss(least) < 0 < slope_of_loss(most)


@pytest.mark.parametrize("method", [InBatchMethod, ConvertMethod])
def test_weighting_applies_only_to_the_batch(method: Any) -> None:
    with pytest.raises(ConfigError, match=r"^method.negatives_weighting = .logq. corrects"):
        TrainConfig(method=method(negatives_weighting="logq"), negatives=NegativesConfig(n=2))
