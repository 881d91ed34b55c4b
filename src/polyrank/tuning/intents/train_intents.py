"""Training a classifier on labelled utterances: split the data, encode once, search the grid, compare seeds.

Shapes: N utterances, D dimensions, L intents.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from polyrank.errors import DataError, DivergedError, UsageError
from polyrank.evaluation.tables import mean_with_interval
from polyrank.scorers.protocols import Encoder
from polyrank.tuning.intents.classifier import IntentClassifier, encode
from polyrank.tuning.intents.head import Encoded, Floats, HeadConfig, HeadFit, Labels, fit_head
from polyrank.tuning.intents.reading import IntentSplits, Utterance, Utterances

DEV_SHARE = 0.1
GRID = tuple(HeadConfig(dropout=dropout, lr=lr) for dropout in (0.3, 0.6) for lr in (0.02, 0.06, 0.2))


@dataclass(frozen=True, slots=True)
class IntentResult:
    """The result of a training.

    Args:
        classifier: of the seed that did best on the development part.
        figures: ready for JSON: counts, the grid, each seed, the accuracy on the test part with its 95% interval, the
            effect of the threshold, and the most frequent mistakes.
    """

    classifier: IntentClassifier
    figures: dict[str, Any]


def few_shot(utterances: Sequence[Utterance], n: int, *, seed: int) -> Utterances:
    """Draw ``n`` utterances of each intent by the seed; a smaller ``n`` draws a subset of a larger one.

    Utterances that are out of scope are left out.

    Raises:
        DataError: an intent has fewer than ``n``.
    """
    return tuple(utterances[i] for i in _few_shot_rows(utterances, n, seed))


def split_off(utterances: Sequence[Utterance], share: float, *, seed: int) -> tuple[Utterances, Utterances]:
    """Split off a part: this share of each intent and of the out-of-scope utterances, at least one of each.

    Returns the rest and the part. Copies of a text stay together, so no text is in both. A text with several intents
    and the single text of an intent stay in the rest.

    >>> rest, part = split_off([Utterance(text, "x") for text in "aabb"], 0.5, seed=1)
    >>> sorted({u.text for u in rest} & {u.text for u in part}), len(rest), len(part)
    ([], 2, 2)
    """
    outside = [i for i, utterance in enumerate(utterances) if utterance.intent is None]
    groups = [*_by_intent(utterances).values(), *([outside] if outside else [])]
    n_groups = Counter(text for group in groups for text in {utterances[i].text for i in group})
    rows: set[int] = set()
    for number, group in enumerate(groups):
        copies: dict[str, list[int]] = {}
        for i in group:
            if n_groups[utterances[i].text] == 1:
                copies.setdefault(utterances[i].text, []).append(i)
        n = max(0, min(max(1, round(share * len(copies))), len(copies) - 1))
        firsts = [same[0] for same in copies.values()]
        rows.update(i for first in _shuffled(firsts, seed, number)[:n] for i in copies[utterances[first].text])
    rest = tuple(utterance for i, utterance in enumerate(utterances) if i not in rows)
    return rest, tuple(utterances[i] for i in sorted(rows))


def held_out(splits: IntentSplits, share: float = DEV_SHARE) -> IntentSplits:
    """Split the training part in three: ``share`` for development, ``share`` for a test, the rest for training.

    With 0.1, this is the 80/10/10 of ConveRT (2020), section 3. ``split_off`` draws the same parts in every run.

    >>> parts = held_out(IntentSplits(tuple(Utterance(f"{i}", "x") for i in range(10))))
    >>> len(parts.train), len(parts.dev), len(parts.test)
    (8, 1, 1)
    """
    rest, test = split_off(splits.train, share, seed=0)
    train, dev = split_off(rest, share / (1 - share), seed=1)
    return IntentSplits(train, dev, test)


def _by_intent(utterances: Sequence[Utterance]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for i, utterance in enumerate(utterances):
        if utterance.intent is not None:
            groups.setdefault(utterance.intent, []).append(i)
    return {name: groups[name] for name in sorted(groups)}


def _few_shot_rows(utterances: Sequence[Utterance], n: int, seed: int) -> list[int]:
    groups = _by_intent(utterances)
    name, group = min(groups.items(), key=lambda item: len(item[1]))
    if len(group) < n:
        raise DataError(
            f"intent {name!r} has {len(group):,} utterances, fewer than the requested {n:,} (without a dev part, some"
            " are split off for it first); request fewer"
        )
    return sorted(i for number, group in enumerate(groups.values()) for i in _shuffled(group, seed, number)[:n])


def _shuffled(group: list[int], seed: int, number: int) -> list[int]:
    order = np.random.Generator(np.random.PCG64([seed, number])).permutation(len(group))
    return [group[i] for i in order]


def train_intents(
    splits: IntentSplits,
    encoder: Encoder,
    *,
    encoder_name: str,
    grid: Sequence[HeadConfig] = GRID,
    n_few_shot: int | None = None,
    seeds: Sequence[int] = (1,),
    patience: int = 5,
    max_epochs: int = 200,
    report: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> IntentResult:
    """Encode once, search the grid with the first seed, train the best sizes with every seed, evaluate on the test.

    Without a development part, a tenth of the training part becomes it, drawn by the first seed. For few-shot training
    both parts are cut to n per intent, drawn again with each seed, so no other labels are used. Out-of-scope utterances
    are never trained on; in the development part they calibrate the threshold.

    Args:
        splits: the data.
        encoder: frozen.
        encoder_name: to open it again.
        grid: the sizes to try.
        n_few_shot: utterances per intent; None: all.
        seeds: of weights, order, dropout and few-shot samples.
        patience: epochs without an improvement on the development part.
        max_epochs: the maximum number of epochs.
        report: called with the name of the work, the amount done, and the total.

    Raises:
        UsageError: no seeds, or a number that is too small.
        DataError: too little data, or an intent without training utterances.
        DivergedError: every learning rate diverges.
    """
    if not seeds or min(max_epochs, 1 if n_few_shot is None else n_few_shot) < 1:
        raise UsageError("give at least one seed, one epoch, and one utterance per intent")
    train, dev = (splits.train, splits.dev) if splits.dev else split_off(splits.train, DEV_SHARE, seed=seeds[0])
    intents = tuple(_by_intent(train))
    if len(intents) < 2:
        raise DataError(f"the training part has {len(intents)} intents; give at least two")

    def encoded(name: str, part: Utterances) -> Encoded:
        labels = _labels(part, intents, name)
        texts = [utterance.text for utterance in part]
        return Encoded(encode(encoder, texts, lambda done, total: report(f"encoding {name}", done, total)), labels)

    vectors, dev_vectors = encoded("train", train), encoded("dev", dev)
    drawn = {seed: _rows(train, dev, n_few_shot, seed) for seed in seeds}
    if not all(dev_rows for _, dev_rows in drawn.values()):
        raise DataError("the development part has no utterance in scope; give some")

    def fit(config: HeadConfig, seed: int) -> HeadFit:
        rows, dev_rows = drawn[seed]
        parts = vectors.rows(rows), dev_vectors.rows(dev_rows)
        return fit_head(*parts, len(intents), config, seed=seed, patience=patience, max_epochs=max_epochs)

    trials: list[HeadFit] = []
    for number, config in enumerate(grid, 1):
        with suppress(DivergedError):
            trials.append(fit(config, seeds[0]))
        report("grid", number, len(grid))
    if not trials:
        raise DivergedError("every point of the grid diverged; give smaller learning rates")
    fits = {seeds[0]: max(trials, key=lambda trial: trial.rank)}
    for seed in seeds[1:]:
        fits[seed] = fit(fits[seeds[0]].config, seed)
        report("seeds", len(fits), len(seeds))
    seed, best = max(fits.items(), key=lambda item: item[1].rank)
    classifier = IntentClassifier(encoder, encoder_name, best.head, intents)
    rows, dev_rows = drawn[seed]
    outside = np.flatnonzero(dev_vectors.labels < 0).tolist()
    if outside:
        chosen_on = dev_vectors.rows(sorted([*dev_rows, *outside]))
        threshold = fit_threshold(classifier.scores_of(chosen_on.vectors), chosen_on.labels)
        classifier = replace(classifier, threshold=threshold)
    figures: dict[str, Any] = {
        "encoder": encoder_name,
        "n_intents": len(intents),
        "n_few_shot": n_few_shot,
        "n_train": len(rows),
        "n_dev": len(dev_rows),
        "n_test": sum(utterance.intent is not None for utterance in splits.test),
        "grid": [_described(trial) for trial in trials],
        "chosen": {**_described(best), "seed": seed},
    }
    name = "test" if splits.test else "dev"
    measured = _figures(classifier, encoded("test", splits.test) if splits.test else dev_vectors, fits)
    return IntentResult(replace(classifier, metadata=figures), {**figures, "judged_on": name, **measured})


def _described(fit: HeadFit) -> dict[str, Any]:
    return {**asdict(fit.config), "dev": fit.accuracy, "n_epochs": fit.n_epochs}


def _labels(part: Utterances, intents: Sequence[str], name: str) -> Labels:
    numbers: dict[str | None, int] = {None: -1, **{intent: i for i, intent in enumerate(intents)}}
    for utterance in part:
        if utterance.intent not in numbers:
            raise DataError(
                f"intent {utterance.intent!r} of the {name} part has no training utterance; add one, or remove it"
            )
    return np.array([numbers[utterance.intent] for utterance in part], np.int64)


def _rows(train: Utterances, dev: Utterances, n: int | None, seed: int) -> tuple[list[int], list[int]]:
    """The rows of in-scope utterances that this seed trains on, and of those that stop it early."""
    if n is None:
        rows, dev_rows = ([i for i, one in enumerate(part) if one.intent is not None] for part in (train, dev))
        return rows, dev_rows
    rows = [i for number, group in enumerate(_by_intent(dev).values()) for i in _shuffled(group, seed, number)[:n]]
    return _few_shot_rows(train, n, seed), sorted(rows)


def fit_threshold(scores: Floats, labels: Labels) -> float | None:
    """The threshold of the best score with the highest mean of the accuracy in scope and the recall out of scope.

    Thresholds are midpoints between neighbouring scores; of equally good ones the lowest is chosen.

    Args:
        scores: ``[N, L]``.
        labels: ``[N]``, -1 for out of scope.

    >>> fit_threshold(np.array([[3, 0], [0, 2], [1, 0]], np.float32), np.array([0, 1, -1]))
    1.5
    """
    best, right, outside = scores.max(1).astype(np.float64), scores.argmax(1) == labels, labels < 0
    if outside.all() or not outside.any():
        return None
    levels = np.unique(best)
    thresholds = [levels[0], *(levels[1:] + levels[:-1]) / 2]
    values = [(right & (best >= t))[~outside].mean() + (best < t)[outside].mean() for t in thresholds]
    return float(thresholds[int(np.argmax(values))])


def _figures(classifier: IntentClassifier, part: Encoded, fits: dict[int, HeadFit]) -> dict[str, Any]:
    """Accuracy in scope by seed; for the chosen seed also the effect of the threshold and the mistakes."""
    labels = part.labels
    outside = labels < 0
    right = [replace(classifier, head=fit.head).scores_of(part.vectors).argmax(1) == labels for fit in fits.values()]
    shares = np.mean(right, axis=0)[~outside]
    values = [float(row[~outside].mean()) if len(shares) else 0.0 for row in right]
    rows = np.arange(len(shares))
    interval = mean_with_interval(shares, rows, shares=True) if len(shares) else {"low": 0.0, "high": 1.0}
    scores = classifier.scores_of(part.vectors)
    best, correct = scores.argmax(1), scores.argmax(1) == labels
    wrong = ~correct & ~outside
    mistakes = Counter(zip(labels[wrong].tolist(), best[wrong].tolist(), strict=True))
    figures = {
        "seeds": [
            {"seed": seed, "dev": fit.accuracy, "accuracy": value, "n_epochs": fit.n_epochs}
            for (seed, fit), value in zip(fits.items(), values, strict=True)
        ],
        "accuracy": statistics.mean(values),
        "accuracy_std": statistics.stdev(values) if len(values) > 1 else None,
        "interval": [interval["low"], interval["high"]],
        "most_confused": [
            {"intent": classifier.intents[label], "classified_as": classifier.intents[guess], "count": n}
            for (label, guess), n in mistakes.most_common(10)
        ],
        "out_of_scope": None,
    }
    if classifier.threshold is not None:
        rejected = scores.max(1) < classifier.threshold
        figures["out_of_scope"] = {
            "threshold": classifier.threshold,
            "n_out_of_scope": int(outside.sum()),
            "recall": float(rejected[outside].mean()) if outside.any() else None,
            "precision": float(outside[rejected].mean()) if rejected.any() else None,
            "in_scope_accuracy": float((correct & ~rejected)[~outside].mean()) if len(shares) else None,
        }
    return figures
