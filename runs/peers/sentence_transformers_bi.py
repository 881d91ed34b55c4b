"""The usual library on the same examples: MultipleNegativesRankingLoss from the same MiniLM, evaluated by our metrics.

    python runs/peers/sentence_transformers_bi.py default|matched SET --data FOLDER --budget 1920 --limit 1000

"default": cosine x 20, right-hand truncation, learning rate 5e-5 with linear decay, as its trainer does by default.
"matched": left truncation, and the learning rate and warm-up of our recipe.
The loop is plain torch around the library's model and loss, so that no further dependency is needed; shared tower, mean
reduction, 128 tokens on both sides.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.losses import MultipleNegativesRankingLoss

from polyrank.config import DataConfig, PolyConfig, Recipe
from polyrank.data import batch_order, read_examples
from polyrank.evaluation import evaluate, paired_test, read_scores, summarise, write_scores
from polyrank.models import find_backbone
from polyrank.records import Context
from polyrank.training.recipe import load_data


class Peer:
    """The library's model as a Scorer: turns joined by spaces, cosine."""

    def __init__(self, model: SentenceTransformer) -> None:
        self.model = model
        self.known: dict[str, np.ndarray] = {}

    def encode(self, texts: list[str]) -> np.ndarray:
        new = [text for text in dict.fromkeys(texts) if text not in self.known]
        if new:
            vectors = self.model.encode(new, normalize_embeddings=True, batch_size=64, show_progress_bar=False)
            self.known.update(zip(new, vectors, strict=True))
        return np.stack([self.known[text] for text in texts])

    def score(self, contexts: list[Context], candidates: list[list[str]]) -> list[np.ndarray]:
        queries = self.encode([" ".join(context.turns) for context in contexts])
        return [self.encode(texts) @ query for query, texts in zip(queries, candidates, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("variant", choices=["default", "matched"])
    parser.add_argument("set")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--budget", type=int, default=1920)
    parser.add_argument("--limit", type=int, default=1000)
    args = parser.parse_args()
    folder = args.data / args.set
    dialogues = folder / "train.dialogues.jsonl.gz"
    data = (
        DataConfig(train=str(dialogues), speaker="agent", max_train=args.budget)
        if dialogues.exists()
        else DataConfig(train=str(folder / "train.jsonl.gz"), max_train=args.budget)
    )
    examples, _ = load_data(Recipe(model=PolyConfig(), data=data, output=""), print)

    torch.manual_seed(1)
    model = SentenceTransformer(str(find_backbone("embedded").folder), device="cpu")
    model.max_seq_length = 128
    matched = args.variant == "matched"
    if matched:
        model.tokenizer.truncation_side = "left"
    loss = MultipleNegativesRankingLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4 if matched else 5e-5)
    pairs = [(" ".join(example.context), example.response or "") for example in examples]
    order = batch_order([len(context) for context, _ in pairs], 64, seed=1, epoch=0)
    warmup = 20 if matched else 0
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / (warmup + 1), (len(order) - step) / max(1, len(order) - warmup)),
    )
    model.train()
    started = time.monotonic()
    for number, batch in enumerate(order):
        columns = zip(*(pairs[i] for i in batch), strict=True)
        value = loss([model.preprocess(list(texts)) for texts in columns], torch.zeros(len(batch)))
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        print(f"step {number + 1}/{len(order)} loss {float(value.detach()):.3f}", flush=True)
    seconds = time.monotonic() - started
    model.eval()
    test = read_examples(folder / "test.jsonl.gz").examples[: args.limit]
    result = evaluate(Peer(model), test)
    name = f"sentence-transformers-{args.variant}"
    work = Path("runs/work") / args.set
    work.mkdir(parents=True, exist_ok=True)
    write_scores(work / f"{name}.scores.jsonl", result, scorer=name)
    summary = {"name": name, "train_seconds": seconds, **summarise(result)}
    if (work / "bi.scores.jsonl").exists():
        summary["against"] = {"scores": "bi", **paired_test(result, read_scores(work / "bi.scores.jsonl"))}
    place = Path("runs/results") / args.set
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{name}.json").write_text(json.dumps(summary) + "\n", "utf-8")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
