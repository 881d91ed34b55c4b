"""sentence-transformers on the same examples: its losses from the same MiniLM, polyrank's metrics.

    python runs/peers/sentence_transformers_bi.py VARIANT SET --data FOLDER --budget 11520 --limit 1000

"default": MultipleNegativesRankingLoss (cosine x 20) and the trainer's defaults: truncation on the right, learning rate
5e-5 with linear decay.
"matched": truncation on the left, and the learning rate, warm-up and dropout of polyrank's recipe.
"distinct": as "matched", in batches in which no text occurs twice (BatchSamplers.NO_DUPLICATES).
"guided": as "matched", with GISTEmbedLoss, guided by the initial encoder: negatives that the guide finds closer than
the right answer are left out.
With --start FOLDER, a folder of that library, all begin from it; turns are then joined by [SEP], as in polyrank's
exports.
The loop is plain torch around the library's model and loss, so that the script needs no further dependency. Both use a
shared tower, mean reduction, and 128 tokens on both sides.
"""

import numpy as np
import torch
from common import arguments, report, train, training_pairs
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import GISTEmbedLoss, MultipleNegativesRankingLoss

from polyrank.loading.backbones import resolve_backbone
from polyrank.records import Context


class Peer:
    """The library's model as a Scorer by cosine."""

    def __init__(self, model: SentenceTransformer, between: str) -> None:
        self.model, self.between = model, between
        self.known: dict[str, np.ndarray] = {}

    def encode(self, texts: list[str]) -> np.ndarray:
        new = [text for text in dict.fromkeys(texts) if text not in self.known]
        if new:
            vectors = self.model.encode(new, normalize_embeddings=True, batch_size=64, show_progress_bar=False)
            self.known.update(zip(new, vectors, strict=True))
        return np.stack([self.known[text] for text in texts])

    def score(self, contexts: list[Context], candidates: list[list[str]]) -> list[np.ndarray]:
        queries = self.encode([self.between.join((*context.background, *context.turns)) for context in contexts])
        return [self.encode(texts) @ query for query, texts in zip(queries, candidates, strict=True)]


def main() -> None:
    args = arguments(["default", "matched", "distinct", "guided"])
    torch.manual_seed(1)
    start = str(args.start or resolve_backbone("embedded").folder)
    between = " [SEP] " if args.start else " "
    matched = args.variant != "default"
    model = loaded(start, truncated="left" if matched else "right")
    if matched:
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = args.dropout
    loss: torch.nn.Module = MultipleNegativesRankingLoss(model)
    if args.variant == "guided":
        loss = GISTEmbedLoss(model, guide=loaded(start, truncated="left").eval(), temperature=0.05)  # cosine x 20
    model.train()
    seconds = train(
        list(model.parameters()),
        training_pairs(args, between),
        lambda columns: loss([model.preprocess(texts) for texts in columns], torch.zeros(len(columns[0]))),
        batch_size=64,
        lr=2e-4 if matched else 5e-5,
        warmup=20 if matched else 0,
        args=args,
        distinct=args.variant == "distinct",
    )
    model.eval()
    report(f"sentence-transformers-{args.variant}", Peer(model, between), seconds, args, against=args.against)


def loaded(start: str, *, truncated: str) -> SentenceTransformer:
    """The model of a folder, which reads 128 tokens."""
    model = SentenceTransformer(start, device="cpu")
    model.max_seq_length = 128
    model.tokenizer.truncation_side = truncated
    return model


if __name__ == "__main__":
    main()
