"""Compares the values of ``negatives_weighting`` on maps of responses over a frozen encoder, which fit in seconds.

    N_TRAIN=8000 N_LISTS=600 N_CANDIDATES=100 python runs/weighting.py [SET ...]

Sets are star, sgd, ubuntu-irc and self-dialogue in DATA (../shared/data). The stored figures of star used these sizes,
those of the others N_TRAIN=4000 N_LISTS=300 N_CANDIDATES=20: the right answer and the first others of each list.

Each value is fitted on the same pairs with three seeds, in batches as large as those of `polyrank split`'s recipe. The
epoch with the best R@1 on validation lists ranks the test lists once. Stores weighting/SET/VALUE/SEED with
runs/record.py, R@1 of each test list in runs/work/weighting, and weighting/SET/VALUE-difference: the mean difference of
R@1 from "as_said", with an interval over dialogues. A stopped run resumes when you start it again.
"""

import json
import math
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import record
import torch
from papers.response_map import Pairs, Remembered, encode_pairs, hits

from polyrank.config.methods import NegativesWeighting
from polyrank.config.recipe import DataConfig
from polyrank.data import read_examples
from polyrank.evaluation.tables import dialogues_of, mean_with_interval
from polyrank.models.losses import LogQ, cross_entropy
from polyrank.records import Example
from polyrank.scorers.open import load
from polyrank.scorers.protocols import Encoder, Floats
from polyrank.training.data import load_data
from polyrank.training.inputs import response_of

DATA = Path(os.environ.get("DATA", "../shared/data"))
WORK = Path("runs/work/weighting")
ENCODER = "untuned:embedded"
N_TRAIN, N_LISTS, N_CANDIDATES = (
    int(os.environ.get(key, usual)) for key, usual in (("N_TRAIN", 8000), ("N_LISTS", 600), ("N_CANDIDATES", 100))
)
CONTEXT_TOKENS, BATCH, MAX_EPOCHS, PATIENCE = 64, 32, 15, 3
RATE, DECAY, SEEDS = 1e-3, 1e-3, (1, 2, 3)
VALUES: tuple[NegativesWeighting, ...] = ("as_said", "logq")
SPEAKERS = {"star": "agent", "sgd": "agent", "self-dialogue": "*"}


def examples_of(name: str) -> tuple[Sequence[Example], list[Example], list[Example]]:
    """Training pairs, validation and test lists."""
    train = DATA / name / ("train.dialogues.jsonl.gz" if name in SPEAKERS else "train.jsonl.gz")
    pairs, _ = load_data(DataConfig(train=str(train), speaker=SPEAKERS.get(name), max_train=N_TRAIN))
    parts = ((f"{part}.jsonl.gz", n) for part, n in (("dev", N_LISTS // 2), ("test", N_LISTS)))
    valid, test = ([*map(shortened, islice(read_examples(DATA / name / file).examples, n))] for file, n in parts)
    return pairs, valid, test


def shortened(example: Example) -> Example:
    """The example with its first right answer and its first wrong ones, in their order."""
    right = example.relevant[0]
    wrong = [i for i in range(len(example.candidates)) if i not in example.relevant][: N_CANDIDATES - 1]
    places = sorted((right, *wrong))
    candidates = tuple(example.candidates[i] for i in places)
    return replace(example, candidates=candidates, relevant=(places.index(right),))


def fit(
    pairs: Pairs,
    texts: Sequence[str],
    encoder: Encoder,
    valid: Sequence[Example],
    weighting: LogQ | None,
    seed: int,
) -> tuple[float, int, Floats]:
    """Fit ``W = s (I + A)`` by ``-log softmax(h_c . W h_r) + DECAY |A|^2``.

    Returns the best epoch's validation R@1, its number, and its W.
    """
    contexts, responses = pairs.contexts, pairs.responses
    identity = torch.eye(responses.shape[1])
    change = torch.zeros_like(identity, requires_grad=True)
    size = float(contexts.norm(dim=1).mean() * responses.norm(dim=1).mean())
    log_scale = torch.tensor(math.log(20.0 / size), requires_grad=True)
    optimizer = torch.optim.Adam([change, log_scale], lr=RATE)
    best = (-1.0, 0, identity.numpy())
    for epoch in range(1, MAX_EPOCHS + 1):
        order = np.random.Generator(np.random.PCG64([seed, epoch])).permutation(len(pairs.keys))
        for rows in np.split(order[: len(order) // BATCH * BATCH], len(order) // BATCH):
            own = responses[pairs.keys[rows]]
            values = contexts[rows] @ (log_scale.exp() * (own + own @ change.T)).T
            allowed = pairs.wrong(rows)
            if weighting is not None:
                values = weighting(values, [texts[key] for key in pairs.keys[rows]])
            loss = cross_entropy(values, torch.arange(len(rows)), allowed) + DECAY * change.square().sum()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        matrix: Floats = (log_scale.exp() * (identity + change)).detach().numpy()
        accuracy = float(np.mean(hits(encoder, matrix, valid)))
        if accuracy > best[0]:
            best = accuracy, epoch, matrix
        elif epoch - best[1] >= PATIENCE:
            break
    return best


def measure(name: str) -> None:
    """Measure all values and seeds of a set."""
    wanted = [(value, seed) for value in VALUES for seed in SEEDS if not record.has(f"weighting/{name}/{value}/{seed}")]
    if not wanted:
        return
    examples, valid, test = examples_of(name)
    encoder = Remembered(load(ENCODER, max_context_tokens=CONTEXT_TOKENS, device="cpu"))  # type: ignore[arg-type]
    pairs = encode_pairs(encoder, examples)
    texts = [*dict.fromkeys(example.response or "" for example in examples)]
    for value, seed in wanted:
        weighting = LogQ(Counter(map(response_of, examples))) if value == "logq" else None
        accuracy, epochs, matrix = fit(pairs, texts, encoder, valid, weighting, seed)
        found = hits(encoder, matrix, test)
        WORK.mkdir(parents=True, exist_ok=True)
        rows = [{"id": example.id, "R@1": hit} for example, hit in zip(test, found, strict=True)]
        (WORK / f"{name}-{value}-{seed}.json").write_text(json.dumps(rows))
        figures = {"R@1": float(np.mean(found)), "valid R@1": accuracy, "epochs": epochs}
        sizes = {
            "n_train": len(pairs.keys),
            "n_responses": len(texts),
            "n_valid": len(valid),
            "n_test": len(test),
            "n_candidates": len(test[0].candidates),
        }
        record.write(f"weighting/{name}/{value}/{seed}", {"encoder": ENCODER, **figures, **sizes})
        print(name, value, seed, figures, flush=True)
    for value in VALUES[1:]:
        record.write(f"weighting/{name}/{value}-difference", difference(name, value))


def difference(name: str, value: NegativesWeighting) -> dict[str, float]:
    """The mean over seeds of R@1 less that of "as_said", on the same test lists."""
    seeds = {
        kind: [json.loads((WORK / f"{name}-{kind}-{seed}.json").read_text()) for seed in SEEDS]
        for kind in (value, VALUES[0])
    }
    own, usual = (np.mean([[row["R@1"] for row in rows] for rows in seeds[kind]], axis=0) for kind in seeds)
    return mean_with_interval(own - usual, dialogues_of([row["id"] for row in seeds[value][0]]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for one in sys.argv[1:] or ["star", "sgd", "ubuntu-irc", "self-dialogue"]:
        measure(one)
