"""PyLate's ColBERT on the same examples: its contrastive loss over the batch, polyrank's metrics.

    python runs/peers/pylate_colbert.py colbert SET --data FOLDER --budget 3840 --name same --start FOLDER

The model adds a random projection to 128 dimensions to the encoder in FOLDER (see runs/same_start.sh). Settings are
polyrank's: 128 tokens, truncation on the left, learning rate, warm-up, dropout. Contexts are not padded by [MASK]. Run
with PyLate 1.6, sentence-transformers 5.3 and transformers 5.3, which pip does not install with this torch, because
PyLate's index needs another one; the script does not use the index. Install them with ``--no-deps`` in its
own environment, which also sees polyrank's packages, and give PYTHONPATH=src.
"""

import torch
from common import arguments, report, train, training_pairs
from pylate import losses, models
from torch import Tensor

from polyrank.records import Context

BATCH = 64


class Peer:
    """The library's model as a Scorer: each context token's largest cosine with a candidate token, summed."""

    def __init__(self, model: models.ColBERT, between: str) -> None:
        self.model, self.between = model, between
        self.known: dict[str, Tensor] = {}

    def encode(self, texts: list[str], *, contexts: bool = False) -> list[Tensor]:
        found = self.model.encode(
            texts, is_query=contexts, batch_size=BATCH, convert_to_numpy=False, show_progress_bar=False
        )
        return [vectors.float() for vectors in found]

    def score(self, contexts: list[Context], candidates: list[list[str]]) -> list[object]:
        new = list({text: None for texts in candidates for text in texts if text not in self.known})
        if new:
            self.known.update(zip(new, self.encode(new), strict=True))
        queries = self.encode(
            [self.between.join((*context.background, *context.turns)) for context in contexts], contexts=True
        )
        return [
            torch.stack([(query @ self.known[text].T).amax(1).sum() for text in texts]).numpy()
            for query, texts in zip(queries, candidates, strict=True)
        ]


def main() -> None:
    args = arguments(["colbert"])
    torch.manual_seed(1)
    model = models.ColBERT(
        str(args.start), device="cpu", query_length=128, document_length=128, do_query_expansion=False
    )
    model.tokenizer.truncation_side = "left"
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = args.dropout
    loss = losses.Contrastive(model)
    model.train()
    between = " [SEP] "
    seconds = train(
        list(model.parameters()),
        training_pairs(args, between),
        lambda columns: loss([model.tokenize(texts, is_query=side == 0) for side, texts in enumerate(columns)]),
        batch_size=BATCH,
        lr=2e-4,
        warmup=20,
        args=args,
    )
    report("pylate-colbert", Peer(model, between), seconds, args, against=args.against)


if __name__ == "__main__":
    main()
