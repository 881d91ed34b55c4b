"""What attention over a trained Bi-encoder's token outputs can add: its transformer frozen, only codes learn.

    python runs/frozen_codes.py MODEL TRAIN TEST [SPEAKER]

Outputs are computed once. Prints R@1 on 1,000 test lists with the mean of the outputs (the Bi-encoder itself), with
vectors that are taken without learning (the last turn's mean, each turn's, all outputs), and with 64 learnt codes for
several learning rates; for these the loss on pairs that were held out before and after as well.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from polyrank.data import read_examples
from polyrank.models import BiEncoder
from polyrank.models.losses import cross_entropy, distinct
from polyrank.models.poly_encoder import attend
from polyrank.models.scoring import scores
from polyrank.records import Context, Example
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.network import inference, token_batches
from polyrank.scorers.open import load
from polyrank.text import BackboneTexts, pad

N_TRAIN, N_TEST, N_CODES, BATCH, STEPS = 3840, 1000, 64, 64, 600
RATES = (1e-3, 1e-2, 1e-1)
Vectors = Callable[[Tensor, Tensor], Tensor]
"""Outputs ``[T, D]`` and token ids ``[T]`` of one context to its vectors ``[M, D]``."""


def outputs(scorer: EncoderScorer, contexts: Sequence[Context]) -> list[tuple[Tensor, Tensor]]:
    """Token outputs and ids of each context."""
    assert isinstance(scorer.model, BiEncoder)
    assert isinstance(scorer.texts, BackboneTexts)
    rows = [scorer.texts.context_ids(context) for context in contexts]
    found: dict[int, tuple[Tensor, Tensor]] = {}
    for batch in token_batches([len(row) for row in rows], 1024):
        tokens = pad([rows[i] for i in batch], pad_id=scorer.texts.subwords.pad_id)
        with inference(scorer.model, scorer.device, scorer.dtype):
            values = scorer.model.context_tower(tokens)
        for place, i in enumerate(batch):
            found[i] = values[place][tokens.mask[place]].clone(), tokens.ids[place][tokens.mask[place]]
    return [found[i] for i in range(len(rows))]


def turns(values: Tensor, ids: Tensor) -> Tensor:
    """The mean of each turn: what stands up to a separator, which ends the text too."""
    ends = (ids == ids[-1]).nonzero().flatten() + 1
    return torch.stack([part.mean(0) for part in torch.tensor_split(values, ends[:-1].tolist())])


def attended(codes: Tensor, parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Context vectors ``[B, M, D]`` of learnt codes."""
    padded = torch.nn.utils.rnn.pad_sequence([values for values, _ in parts], batch_first=True)
    mask = torch.arange(padded.shape[1]) < torch.tensor([[len(values)] for values, _ in parts])
    return attend(codes, padded, mask)


def pair_loss(codes: Tensor, parts: Sequence[tuple[Tensor, Tensor]], responses: Tensor, keys: Tensor) -> Tensor:
    """In-batch cross-entropy; responses ``[B, D]``, and keys ``[B]`` that are equal for copies, which are masked."""
    vectors = attended(codes, parts)
    values = scores(vectors, responses[None], torch.ones(vectors.shape[:2], dtype=torch.bool))
    return cross_entropy(values, torch.arange(len(keys)), distinct(keys, len(keys)))


def main(model: Path, train: Path, test: Path, speaker: str | None = None) -> None:
    """Print one JSON object."""
    scorer = load(model, device="cpu", precision="fp32")
    assert isinstance(scorer, EncoderScorer)
    examples: list[Example] = read_examples(train, speaker=speaker).examples
    order = np.random.Generator(np.random.PCG64(0)).permutation(len(examples))[:N_TRAIN]
    examples, lists = [examples[i] for i in order], read_examples(test).examples[:N_TEST]
    texts = [example.response or "" for example in examples]
    place = {text: i for i, text in enumerate(texts)}
    keys = torch.tensor([place[text] for text in texts])
    known, responses = outputs(scorer, [e.query for e in examples]), torch.from_numpy(scorer.encode_candidates(texts))
    asked = outputs(scorer, [e.query for e in lists])
    candidates = [torch.from_numpy(scorer.encode_candidates(e.candidates)) for e in lists]

    def hits(vectors: Vectors) -> float:
        found = []
        for (values, ids), own, example in zip(asked, candidates, lists, strict=True):
            context = vectors(values, ids)
            row = scores(context[None], own[None], torch.ones(1, len(context), dtype=torch.bool))[0]
            best = row == row.max()
            found.append(float(best[list(example.relevant)].sum() / best.sum()))
        return float(np.mean(found))

    figures: dict[str, object] = {
        "mean of all outputs": hits(lambda values, ids: values.mean(0, keepdim=True)),
        "mean of the last turn": hits(lambda values, ids: turns(values, ids)[-1:]),
        "means of each turn": hits(turns),
        "all outputs": hits(lambda values, ids: values),
    }
    held, taught = np.split(np.random.Generator(np.random.PCG64(1)).permutation(len(examples)), [N_TRAIN // 8])

    def loss(codes: Tensor, places: Sequence[int]) -> Tensor:
        return pair_loss(codes, [known[i] for i in places], responses[list(places)], keys[list(places)])

    def held_out(codes: Tensor) -> float:
        with torch.no_grad():
            parts = [held[start : start + BATCH].tolist() for start in range(0, len(held) - BATCH + 1, BATCH)]
            return float(np.mean([float(loss(codes, part)) for part in parts]))

    for rate in RATES:
        start = 0.02 * torch.randn(N_CODES, scorer.dimension, generator=torch.Generator().manual_seed(0))
        codes = start.clone().requires_grad_()
        optimizer, random = torch.optim.Adam([codes], lr=rate), np.random.Generator(np.random.PCG64(2))
        for step in range(STEPS):
            optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / 20) * (1.0 - step / STEPS)
            optimizer.zero_grad()
            loss(codes, random.choice(taught, BATCH, replace=False).tolist()).backward()
            optimizer.step()
        learnt = codes.detach()
        figures[f"{N_CODES} codes, learning rate {rate:g}"] = {
            "R@1": hits(lambda values, ids, learnt=learnt: attended(learnt, [(values, ids)])[0]),  # type: ignore[misc]
            "loss before": held_out(start),
            "loss after": held_out(learnt),
        }
    print(json.dumps({"model": str(model), "n_train": len(taught), "n_test": len(lists), "steps": STEPS, **figures}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), *sys.argv[4:])
