"""sentence-transformers' Cross-encoder on the same examples, from the same MiniLM, with polyrank's metrics.

    python runs/peers/sentence_transformers_cross.py default|matched SET --data FOLDER --budget 1920 --limit 200

"default": its MultipleNegativesRankingLoss (4 random negatives of the batch, 10 x sigmoid), truncation of the pair on
the right to 176 tokens, learning rate 5e-5 with linear decay.
"matched": contexts truncated on the left before the library gets them, and the learning rate and warm-up of polyrank's
recipe.
The loop is plain torch around the library's model and loss, so that the script needs no further dependency.
"""

import numpy as np
import torch
from common import arguments, report, train, training_pairs
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder.losses import MultipleNegativesRankingLoss

from polyrank.loading.backbones import resolve_backbone
from polyrank.records import Context

CONTEXT_TOKENS = 128


class Peer:
    """The library's model as a Scorer: turns joined by spaces."""

    def __init__(self, model: CrossEncoder, cut: bool) -> None:
        self.model, self.cut = model, cut

    def last(self, text: str) -> str:
        """The text itself, or its last tokens."""
        if not self.cut:
            return text
        spans = self.model.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        return text if len(spans) <= CONTEXT_TOKENS else text[spans[-CONTEXT_TOKENS][0] :]

    def score(self, contexts: list[Context], candidates: list[list[str]]) -> list[np.ndarray]:
        results = []
        for context, texts in zip(contexts, candidates, strict=True):
            query = self.last(" ".join((*context.background, *context.turns)))
            pairs = [(query, text) for text in texts]
            values = self.model.predict(
                pairs, batch_size=25, show_progress_bar=False, activation_fn=torch.nn.Identity()
            )
            results.append(np.asarray(values, np.float32))
        return results


def main() -> None:
    args = arguments(["default", "matched"])
    torch.manual_seed(1)
    model = CrossEncoder(str(resolve_backbone("embedded").folder), num_labels=1, max_length=176, device="cpu")
    matched = args.variant == "matched"
    peer = Peer(model, matched)
    loss = MultipleNegativesRankingLoss(model)
    pairs = [(peer.last(context), response) for context, response in training_pairs(args)]
    model.train()
    seconds = train(
        list(model.parameters()),
        pairs,
        lambda columns: loss(columns, torch.zeros(len(columns[0]))),
        batch_size=16,
        lr=1e-4 if matched else 5e-5,
        warmup=20 if matched else 0,
        args=args,
    )
    model.eval()
    report(f"sentence-transformers-cross-{args.variant}", peer, seconds, args, against="cross")


if __name__ == "__main__":
    main()
