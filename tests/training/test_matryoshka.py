"""The Matryoshka loss: the mean of the losses of whole vectors and of their first numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

import polyrank
from polyrank.config.models import BiConfig
from polyrank.errors import ConfigError
from polyrank.models import new_model
from polyrank.records import Example
from polyrank.training.steps import InBatchStep
from train_settings import bi_tables

TEXTS = ["restart the router", "the bill is too high", "thanks a lot", "hello again"]


@pytest.mark.parametrize("unit", [True, False])
def test_the_loss_is_the_mean_over_prefixes(unit: bool, tiny_backbone: Path) -> None:
    config = BiConfig(backbone=str(tiny_backbone), normalize=unit, match_self_score=9.0)
    model, texts, _ = new_model(config, None, seed=1, sample=TEXTS)
    model.eval()
    tower: Any = model.context_tower
    cuts = [lambda vectors, n=n: tower.prefix(vectors, n) for n in (8, 3)]
    step = InBatchStep(model, texts, torch.device("cpu"), cuts=cuts)  # type: ignore[arg-type]  # an encoder
    rows = [(i, Example((f"my {text}",), (text,), (0,))) for i, text in enumerate(TEXTS)]
    (found,) = step.losses(step.prepare(rows, 0), 0)
    contexts = model.encode_contexts(texts.contexts([row.query for _, row in rows]))[0][:, 0]  # type: ignore[union-attr,operator]
    candidates = model.encode_candidates(texts.candidates(TEXTS))  # type: ignore[union-attr,operator]
    wanted = []
    for n in (contexts.shape[1], 8, 3):
        a, b = contexts[:, :n], candidates[:, :n]
        if unit:
            a, b = 3.0 * normalize(a, dim=1), 3.0 * normalize(b, dim=1)
        wanted.append(cross_entropy(a @ b.T, torch.arange(4)))
    torch.testing.assert_close(found.mean, torch.stack(wanted).mean())


def test_a_recipe_trains_with_it(task: dict[str, Path], tiny_backbone: Path, tmp_path: Path) -> None:
    method = {"kind": "in_batch", "matryoshka_dims": [8]}
    recipe = bi_tables(task, tiny_backbone, tmp_path / "run", batch_size=8, max_steps=2, method=method)
    (result,) = polyrank.train(recipe)
    whole, cut = polyrank.load(result.model), polyrank.load(result.model, truncate_dim=8)
    vectors = [model.encode_candidates(TEXTS) for model in (whole, cut)]  # type: ignore[attr-defined]  # encoders
    np.testing.assert_array_equal(vectors[0][:, :8], vectors[1])
    for longest in (4096, 32):  # 32 are all of the vector
        recipe["train"]["method"] = {"kind": "in_batch", "matryoshka_dims": [8, longest]}
        with pytest.raises(ConfigError, match=rf"dims = \[8, {longest}\] needs .* of more .*; this BiEncoder has 32"):
            polyrank.train(recipe, overwrite=True)
