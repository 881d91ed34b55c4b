"""Interpolates between trained weights and earlier ones; scores mixtures on sets outside the training data.

    python runs/mixtures.py RUN/model DATA 0.4 0.6 0.8 1 [--earlier MODEL] [--name NAME]

The earlier weights are the backbone's, or those of another model. Stores general/NAME with runs/record.py: R@1 for
each share of the trained weights on the first 300 dev lists of sgd and convai2-valid, on 600 of mutual's training
lists, and on 500 dev questions of medquad, whose pool holds their answers and a fifth of all others.

Source: Wortsman et al., Robust fine-tuning of zero-shot models (2022), https://arxiv.org/abs/2109.01903.
"""

import argparse
import dataclasses
from itertools import cycle
from pathlib import Path

import numpy as np
import record
import torch

from polyrank.data import read_examples, read_pool
from polyrank.evaluation import evaluate, summarise
from polyrank.loading.backbones import resolve_backbone
from polyrank.models import BiEncoder
from polyrank.models.artifacts import Artifact, load_model
from polyrank.models.backbone import load_backbone
from polyrank.models.build import saved_texts
from polyrank.records import Example
from polyrank.scorers.load import make_scorer
from polyrank.text import Texts


def mix(trained: Artifact, share: float, earlier: Path | None = None) -> None:
    """Replace the transformer's weights by ``share`` of them plus ``1 - share`` of the earlier ones."""
    assert isinstance(trained.model, BiEncoder)
    if earlier is None:
        starts = [load_backbone(resolve_backbone(trained.config.backbone).folder).state_dict()]  # type: ignore[union-attr]
    else:
        other = load_model(earlier).model
        assert isinstance(other, BiEncoder)
        starts = [trunk.state_dict() for trunk in other.trunks()]
    with torch.no_grad():
        for trunk, start in zip(trained.model.trunks(), cycle(starts), strict=False):
            for name, weight in trunk.state_dict().items():
                if weight.is_floating_point():
                    weight.lerp_(start[name].to(weight), 1 - share)


def with_tokens(trained: Artifact, path: Path, n: int) -> Texts:
    """The model's texts with ``n`` tokens per context and per candidate."""
    policy = dataclasses.replace(trained.texts.policy, max_context_tokens=n, max_candidate_tokens=n)
    return saved_texts(trained.model, policy, (path / "tokenizer.json").read_bytes(), "its tokenizer")


def lists(data: Path) -> dict[str, list[Example]]:
    """Examples of sets that no training here uses."""
    pool = read_pool(data / "medquad/answers.jsonl.gz")
    questions = read_examples(data / "medquad/dev.pool.jsonl.gz").examples[:500]
    right = {id_ for example in questions for id_ in example.relevant_ids}
    some = [candidate for number, candidate in enumerate(pool) if candidate.id in right or number % 5 == 0]
    texts, position = tuple(one.text for one in some), {one.id: number for number, one in enumerate(some)}
    medquad = [
        Example(one.context, texts, tuple(position[id_] for id_ in one.relevant_ids), one.id, one.background)
        for one in questions
    ]
    return {
        "sgd": read_examples(data / "sgd/dev.jsonl.gz").examples[:300],
        "convai2-valid": read_examples(data / "convai2-valid/dev.jsonl.gz").examples[:300],
        "medquad": medquad,
        "mutual": read_examples(data / "mutual/train.jsonl.gz").examples[:600],
    }


def main() -> None:
    """Evaluate each share on each set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("trained", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("shares", type=float, nargs="+")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--earlier", type=Path)
    parser.add_argument("--name", default="mixtures")
    options = parser.parse_args()
    result = f"general/{options.name}"
    torch.set_num_threads(1)
    examples, rows = lists(options.data), []
    for share in options.shares:
        trained = load_model(options.trained)
        mix(trained, share, options.earlier)
        scorer = make_scorer(
            trained.model, with_tokens(trained, options.trained, options.tokens), device="cpu", precision="auto"
        )
        found = {name: summarise(evaluate(scorer, some))["metrics"]["R@1"] for name, some in examples.items()}
        rows.append({"share": share, **{name: round(float(value), 4) for name, value in found.items()}})
        rows[-1]["mean"] = round(float(np.mean(list(found.values()))), 4)
        print(rows[-1], flush=True)
    known = record.read(result)["rows"] if record.has(result) else []
    rows += [row for row in known if row["share"] not in options.shares]
    rows.sort(key=lambda row: float(row["share"]))
    record.write(result, {"rows": rows})


if __name__ == "__main__":
    main()
