"""sentence-transformers on the same examples: MultipleNegativesRankingLoss from the same MiniLM, polyrank's metrics.

    python runs/peers/sentence_transformers_bi.py default|matched SET --data FOLDER --budget 11520 --limit 1000

"default": the trainer's defaults: cosine x 20, truncation on the right, learning rate 5e-5 with linear decay.
"matched": truncation on the left, and the learning rate, warm-up and dropout of polyrank's recipe.
The loop is plain torch around the library's model and loss, so that the script needs no further dependency. Both use a
shared tower, mean reduction, and 128 tokens on both sides.
"""

import numpy as np
import torch
from common import arguments, report, train, training_pairs
from sentence_transformers import SentenceTransformer
from sentence_transformers.losses import MultipleNegativesRankingLoss

from polyrank.loading.backbones import resolve_backbone
from polyrank.records import Context


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
        queries = self.encode([" ".join((*context.background, *context.turns)) for context in contexts])
        return [self.encode(texts) @ query for query, texts in zip(queries, candidates, strict=True)]


def main() -> None:
    args = arguments(["default", "matched"])
    torch.manual_seed(1)
    model = SentenceTransformer(str(resolve_backbone("embedded").folder), device="cpu")
    model.max_seq_length = 128
    matched = args.variant == "matched"
    if matched:
        model.tokenizer.truncation_side = "left"
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = args.dropout
    loss = MultipleNegativesRankingLoss(model)
    model.train()
    seconds = train(
        list(model.parameters()),
        training_pairs(args),
        lambda columns: loss([model.preprocess(texts) for texts in columns], torch.zeros(len(columns[0]))),
        batch_size=64,
        lr=2e-4 if matched else 5e-5,
        warmup=20 if matched else 0,
        args=args,
    )
    model.eval()
    report(f"sentence-transformers-{args.variant}", Peer(model), seconds, args)


if __name__ == "__main__":
    main()
