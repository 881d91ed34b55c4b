"""Trains only an attention over the token outputs of a trained, frozen Bi-encoder, and measures its gain in R@1.

    python runs/frozen_codes.py MODEL TRAIN TEST BUDGET [SPEAKER]

The script computes outputs once, and trains the attention on pairs of TRAIN outside the BUDGET that MODEL used. It
prints R@1 on the test lists for

- the mean of the outputs (the Bi-encoder itself);
- vectors that need no training: the last turn's mean, each turn's mean, all outputs;
- trained codes: 64 at several learning rates, a single one, and 64 together with a trained temperature of the last
  softmax, a trained map from outputs to keys, or trained position vectors (from the end) added to the keys. For these
  it also prints the paired difference from the mean, and the loss on held-out pairs before and after.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from polyrank.config.recipe import DataConfig
from polyrank.data import read_examples
from polyrank.models import BiEncoder
from polyrank.models.losses import cross_entropy
from polyrank.ranking.statistics import paired_t
from polyrank.records import Context
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.network import inference
from polyrank.scorers.open import load
from polyrank.text import BackboneTexts, pad
from polyrank.text.tokens import token_batches
from polyrank.training.data import load_data

N_TRAIN, N_HELD_OUT, BATCH, STEPS = 7680, 960, 64, 600
PLACES = 128
FORMS = {
    "64 codes, learning rate 0.1": (64, "", 0.1),
    "64 codes, learning rate 0.01": (64, "", 0.01),
    "64 codes, learning rate 0.001": (64, "", 0.001),
    "1 code": (1, "", 0.01),
    "64 codes and a temperature of the last softmax": (64, "temperature", 0.01),
    "64 codes and keys by a map of the outputs": (64, "keys", 0.001),
    "64 codes and keys with the place from the end": (64, "places", 0.01),
}
Part = tuple[Tensor, Tensor]
"""Token outputs ``[T, D]`` and token ids ``[T]`` of one context."""
Vectors = Callable[[Tensor, Tensor], Tensor]
"""Maps a context's outputs and ids to its vectors ``[M, D]``."""


def outputs(scorer: EncoderScorer, contexts: Sequence[Context]) -> list[Part]:
    """Token outputs and ids of each context."""
    assert isinstance(scorer.model, BiEncoder)
    assert isinstance(scorer.texts, BackboneTexts)
    rows = [scorer.texts.context_ids(context) for context in contexts]
    found: dict[int, Part] = {}
    for batch in token_batches([len(row) for row in rows], 1024):
        tokens = pad([rows[i] for i in batch], pad_id=scorer.texts.subwords.pad_id)
        with inference(scorer.model, scorer.device, scorer.dtype):
            values = scorer.model.context_tower(tokens)
        for place, i in enumerate(batch):
            found[i] = values[place][tokens.mask[place]].clone(), tokens.ids[place][tokens.mask[place]]
    return [found[i] for i in range(len(rows))]


def turns(values: Tensor, ids: Tensor) -> Tensor:
    """The mean of each turn. A turn's last token is a separator, and so is the text's."""
    ends = (ids == ids[-1]).nonzero().flatten() + 1
    return torch.stack([part.mean(0) for part in torch.tensor_split(values, ends[:-1].tolist())])


def soft_scores(contexts: Tensor, candidates: Tensor, heat: Tensor) -> Tensor:
    """``sum_i softmax(heat s)_i s_i``: heat 1 is a Poly-encoder's, 0 the mean.

    ``[B, K]`` of contexts ``[B, M, D]`` and candidates ``[B or 1, K, D]``.
    """
    dots = candidates @ contexts.transpose(1, 2)
    return (torch.softmax(heat * dots, dim=-1) * dots).sum(-1)


class Attention(nn.Module):
    """Trained codes that start near zero, hence at the mean. The extra parameters start where they change nothing."""

    def __init__(self, n_codes: int, more: str, dimension: int) -> None:
        super().__init__()
        self.codes = nn.Parameter(0.02 * torch.randn(n_codes, dimension, generator=torch.Generator().manual_seed(0)))
        self.heat = nn.Parameter(torch.ones(()), requires_grad=more == "temperature")
        self.keys = nn.Parameter(torch.eye(dimension), requires_grad=more == "keys")
        self.places = nn.Parameter(torch.zeros(PLACES, dimension), requires_grad=more == "places")

    def forward(self, parts: Sequence[Part], candidates: Tensor) -> Tensor:
        """Scores ``[B, K]`` of candidates ``[B or 1, K, D]``."""
        outputs = torch.nn.utils.rnn.pad_sequence([values for values, _ in parts], batch_first=True)
        lengths = torch.tensor([[len(values)] for values, _ in parts])
        place = torch.arange(outputs.shape[1])
        keys = outputs @ self.keys + self.places[(lengths - 1 - place).clamp(0, PLACES - 1)]
        dots = (self.codes @ keys.transpose(1, 2)).masked_fill((place >= lengths)[:, None, :], -torch.inf)
        return soft_scores(torch.softmax(dots, dim=-1) @ outputs, candidates, self.heat)


def main(model: Path, train: Path, test: Path, budget: int, speaker: str | None = None) -> None:
    """Print one JSON object."""
    scorer = load(model, device="cpu", precision="fp32")
    assert isinstance(scorer, EncoderScorer)
    everything, _ = load_data(DataConfig(train=str(train), speaker=speaker))
    read, _ = load_data(DataConfig(train=str(train), speaker=speaker, max_train=budget))
    unread = sorted(set(everything) - set(read), key=lambda example: (example.id, example.context))
    order = np.random.Generator(np.random.PCG64(0)).permutation(len(unread))[: N_TRAIN + N_HELD_OUT]
    examples, lists = [unread[i] for i in order], read_examples(test).examples
    texts = [example.response or "" for example in examples]
    place = {text: i for i, text in enumerate(texts)}
    keys = torch.tensor([place[text] for text in texts])
    known, responses = outputs(scorer, [e.query for e in examples]), torch.from_numpy(scorer.encode_candidates(texts))
    asked = outputs(scorer, [e.query for e in lists])
    candidates = [torch.from_numpy(scorer.encode_candidates(e.candidates)) for e in lists]

    def hits(score: Callable[[Part, Tensor], Tensor]) -> list[float]:
        found = []
        for part, own, example in zip(asked, candidates, lists, strict=True):
            row = score(part, own[None])[0]
            best = row == row.max()
            found.append(float(best[list(example.relevant)].sum() / best.sum()))
        return found

    def untrained(vectors: Vectors) -> list[float]:
        return hits(lambda part, own: soft_scores(vectors(*part)[None], own, torch.ones(())))

    plain = {
        "mean of all outputs": untrained(lambda values, ids: values.mean(0, keepdim=True)),
        "mean of the last turn": untrained(lambda values, ids: turns(values, ids)[-1:]),
        "means of each turn": untrained(turns),
        "all outputs": untrained(lambda values, ids: values),
    }
    mean = plain["mean of all outputs"]
    figures: dict[str, object] = {name: float(np.mean(found)) for name, found in plain.items()}
    held, taught = np.split(np.arange(len(examples)), [len(examples) - N_TRAIN])

    def loss(attention: Attention, places: Sequence[int]) -> Tensor:
        own = keys[list(places)]
        values = attention([known[i] for i in places], responses[list(places)][None])
        return cross_entropy(values, torch.arange(len(own)), own[:, None] != own[None])

    @torch.no_grad()
    def held_out(attention: Attention) -> float:
        parts = [held[start : start + BATCH].tolist() for start in range(0, len(held), BATCH)]
        return float(np.mean([float(loss(attention, part)) for part in parts]))

    for name, (n_codes, more, rate) in FORMS.items():
        attention = Attention(n_codes, more, scorer.dimension)
        before = held_out(attention)
        optimizer = torch.optim.Adam((p for p in attention.parameters() if p.requires_grad), lr=rate)
        random = np.random.Generator(np.random.PCG64(2))
        for step in range(STEPS):
            optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / 20) * (1.0 - step / STEPS)
            optimizer.zero_grad()
            loss(attention, random.choice(taught, BATCH, replace=False).tolist()).backward()
            optimizer.step()
        with torch.no_grad():
            found = hits(lambda part, own, trained=attention: trained([part], own))  # type: ignore[misc]
        test_of = paired_t((np.array(found) - mean).tolist())
        figures[name] = {
            "R@1": float(np.mean(found)), "difference": test_of["difference"], "p": test_of["p"],
            "loss before": before, "loss after": held_out(attention), "heat": attention.heat.item(),
        }  # fmt: skip
        print(name, figures[name], file=sys.stderr)
    print(json.dumps({"model": str(model), "n_train": len(taught), "n_test": len(lists), "steps": STEPS, **figures}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), int(sys.argv[4]), *sys.argv[5:])
