"""Chooses the weights of a general ranker on development lists of several sets, and makes its folder.

    python runs/second_numbers.py DATA WORDS OUTPUT [--first shipped:minilm] [--second shipped:late] [--limit 500]

One set of numbers for all sets: by maximum likelihood of right answers among the 25 best of the first stage, each set
with the same weight. WORDS holds the rows whose replies are counted, from runs/second_data.py. Stores second/numbers
with runs/record.py: the numbers, and R@1 of each set by the first stage, by all numbers, by numbers chosen on the other
sets alone, by comparing words alone, and by the Cross-encoder alone (each with its own numbers).
"""

import argparse
import json
from pathlib import Path

import numpy as np
import record
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from polyrank.data import read_examples, read_pool
from polyrank.records import Example
from polyrank.scorers.open import load_encoder, load_stage
from polyrank.scorers.protocols import Encoder
from polyrank.scorers.ranker import Ranker
from polyrank.scorers.terms.cross import CrossTerm
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.scorers.terms.protocol import Term
from polyrank.scorers.terms.words import WordCounts, Words
from polyrank.scorers.two_stage import shortlist_of

N_BEST, AT_A_TIME = 25, 100
NONE, LATE, COMPARED = slice(0, 0), slice(-1, None), slice(1, -1)  # of the terms
SETS = ("sgd", "convai2-valid", "medquad", "mutual", "star", "ubuntu-irc", "self-dialogue")

Values = tuple[Tensor, Tensor]
"""Of a set: the terms of each candidate ``[lists, 25, terms]``, and whether it is right."""


def best(encoder: Encoder, data: Path, name: str, limit: int) -> tuple[list[Example], list[np.ndarray]]:
    """Lists of the first stage's best candidates, and its scores."""
    if name == "medquad":
        pool = read_pool(data / "medquad/answers.jsonl.gz")
        examples = read_examples(data / "medquad/dev.pool.jsonl.gz").examples[:limit]
        texts = [tuple(one.text for one in pool)] * len(examples)
        rights = [{one.text for one in pool if one.id in example.relevant_ids} for example in examples]
        scored = list(encoder.score_pool([example.query for example in examples], texts[0]))
    else:
        part = "train" if name == "mutual" else "dev"  # mutual's dev part is its test
        examples = read_examples(data / f"{name}/{part}.jsonl.gz").examples
        examples = examples[-limit:] if name == "mutual" else examples[:limit]
        texts = [example.candidates for example in examples]
        rights = [{example.candidates[i] for i in example.relevant} for example in examples]
        scored = encoder.score([example.query for example in examples], texts)
    lists, values = [], []
    for example, candidates, right, scores in zip(examples, texts, rights, scored, strict=True):
        rows = shortlist_of(scores, candidates, min(N_BEST, len(set(candidates))))
        shown = tuple(candidates[row] for row in rows)
        relevant = tuple(i for i, text in enumerate(shown) if text in right)
        lists.append(Example(example.context, shown, relevant, example.id, example.background))
        values.append(scores[rows])
    return lists, values


def values_of(encoder: Encoder, terms: list[Term], data: Path, name: str, limit: int) -> Values:
    """The encoder's score and the features of the terms for a set."""
    lists, first = best(encoder, data, name, limit)
    width = max(len(one.candidates) for one in lists)
    n_features = 1 + sum(len(term.features) for term in terms)
    values, right = np.full((len(lists), width, n_features), -1e4), np.zeros((len(lists), width), np.bool_)
    for start in range(0, len(lists), AT_A_TIME):
        some = lists[start : start + AT_A_TIME]
        queries, texts = [one.query for one in some], [one.candidates for one in some]
        found = [term.score(queries, texts) for term in terms]
        for row, one in enumerate(some):
            n = len(one.candidates)
            columns = [first[start + row][:, None], *(features[row] for features in found)]
            values[start + row, :n] = np.concatenate(columns, axis=1)
            values[start + row, n:, 1:] = 0
            right[start + row, list(one.relevant)] = True
    return torch.from_numpy(values), torch.from_numpy(right)


def fit(sets: list[Values], without: slice = NONE) -> Tensor:
    """The factors, that of the first stage 1, which are most likely over lists with a right answer; some stay 0."""
    kept = [(values[right.any(1)], right[right.any(1)].int().argmax(1)) for values, right in sets]
    factors = torch.full((kept[0][0].shape[2],), 0.05, dtype=torch.float64)
    factors[0] = 1
    factors.requires_grad_(True)
    optimizer = torch.optim.LBFGS([factors], max_iter=300, line_search_fn="strong_wolfe")

    def used() -> Tensor:
        mask = torch.ones_like(factors)
        mask[without] = 0
        return factors * mask

    def closure() -> float:
        optimizer.zero_grad()
        losses = [cross_entropy(values @ used(), target) for values, target in kept]
        loss = torch.stack(losses).mean() + 1e-3 * (factors[1:] ** 2).sum()
        loss.backward()
        return loss.item()

    optimizer.step(closure)
    return (used() / factors[0]).detach()


def r1(values: Values, factors: Tensor) -> float:
    """The share of lists whose highest candidate is right."""
    terms, right = values
    return round(float(right[torch.arange(len(right)), (terms @ factors).argmax(1)].double().mean()), 4)


def main() -> None:
    """Choose the numbers, save the second stage, store the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("data", type=Path)
    parser.add_argument("words", type=Path, help="a folder with first.jsonl.gz and second.jsonl.gz")
    parser.add_argument("output", type=Path)
    parser.add_argument("--first", default="shipped:minilm")
    parser.add_argument("--second", default="shipped:late")
    parser.add_argument("--limit", type=int, default=500)
    options = parser.parse_args()
    encoder, late = load_encoder(options.first), load_stage(options.second)
    rows = [row for name in ("first", "second") for row in read_examples(options.words / f"{name}.jsonl.gz").examples]
    # passages come with wrong answers
    counts = WordCounts.of(row.candidates[0] for row in rows if len(row.candidates) == 1)
    words, cross = Words(counts), CrossTerm(late)
    sets = {name: values_of(encoder, [words, cross], options.data, name, options.limit) for name in SETS}
    factors = fit([*sets.values()])
    rounded = [float(f"{value:.3g}") for value in factors[1:].tolist()]
    numbers = dict(zip((*words.features, "weight"), rounded, strict=True))
    chosen = torch.tensor([1.0, *numbers.values()], dtype=torch.float64)
    alone = torch.zeros_like(chosen)
    alone[0] = 1
    words_alone, late_alone = (fit([*sets.values()], without) for without in (LATE, COMPARED))
    figures = {
        name: {
            "n": len(sets[name][1]),
            "first": r1(sets[name], alone),
            "chosen": r1(sets[name], chosen),
            "words": r1(sets[name], words_alone),
            "late": r1(sets[name], late_alone),
            "on_others": r1(sets[name], fit([values for other, values in sets.items() if other != name])),
        }
        for name in SETS
    }
    weights = [*numbers.values()]
    ranker = Ranker([(EncoderTerm(encoder), [1.0]), (words, weights[:-1]), (cross, weights[-1:])], n_retrieved=N_BEST)
    ranker.save(options.output, replace=options.output.exists())
    record.write("second/numbers", {"numbers": numbers, "n_texts": counts.n_texts, "sets": figures})
    print(json.dumps({"numbers": numbers, "sets": figures}, indent=1))


if __name__ == "__main__":
    main()
