"""Training a classifier on labelled utterances: split the data, encode once, search the grid, compare seeds.

Shapes: N utterances, D dimensions, L intents.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import ConfigError, DataError, UsageError
from polyrank.evaluation.tables import mean_with_interval
from polyrank.ranking.abstention import Abstention, calibrate
from polyrank.scorers.protocols import Encoder
from polyrank.tuning.intents.classifier import IntentClassifier
from polyrank.tuning.intents.confusion import confusion, most_confused, per_intent, predict_labels
from polyrank.tuning.intents.encoding import Floats, encode, read_layer
from polyrank.tuning.intents.head import Encoded, Grid, HeadFit, Labels, fit_head, search
from polyrank.tuning.intents.reading import IntentSplits, Utterance, Utterances
from polyrank.tuning.intents.rejection import Aim, calibrate_rejection, evaluate_rejection

DEV_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class IntentResult:
    """The result of a training.

    Args:
        classifier: of the seed that did best on the development part.
        figures: ready for JSON: counts, the grid, each seed, test, out of scope, per intent.
        matrix: confusion ``[L + 1, L + 1]`` on the test part, else on the development part.
        unreached: the reason, if no threshold reaches the requested precision; else empty.
    """

    classifier: IntentClassifier
    figures: dict[str, Any]
    matrix: NDArray[np.int64]
    unreached: str = ""


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
        firsts = [own[0] for own in copies.values()]
        rows.update(i for first in _shuffled(firsts, seed, number)[:n] for i in copies[utterances[first].text])
    rest = tuple(utterance for i, utterance in enumerate(utterances) if i not in rows)
    return rest, tuple(utterances[i] for i in sorted(rows))


def _by_intent(utterances: Sequence[Utterance]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for i, utterance in enumerate(utterances):
        if utterance.intent is not None:
            groups.setdefault(utterance.intent, []).append(i)
    return {name: groups[name] for name in sorted(groups)}


def _few_shot_rows(utterances: Sequence[Utterance], n: int, seed: int) -> list[int]:
    groups = _by_intent(utterances)
    small = [(name, len(group)) for name, group in groups.items() if len(group) < n]
    if small:
        name, count = min(small, key=lambda item: item[1])
        raise DataError(
            f"intent {name!r} has {count:,} utterances, fewer than the requested {n:,}"
            " (without a dev part, some are split off for it first); request fewer"
        )
    return sorted(i for number, group in enumerate(groups.values()) for i in _shuffled(group, seed, number)[:n])


def _shuffled(group: list[int], seed: int, number: int) -> list[int]:
    order = np.random.Generator(np.random.PCG64([seed, number])).permutation(len(group))
    return [group[i] for i in order]


def check_share(share: float) -> None:
    """Check a share that will be held out twice.

    Raises:
        UsageError: the share is outside (0, 0.5).
    """
    if not 0 < share < 0.5:
        raise UsageError(f"the share {share} to hold out twice is outside 0 to 0.5; give a number between")


def held_out(splits: IntentSplits, share: float) -> IntentSplits:
    """Split the training part in three: ``share`` for development, ``share`` for a test, the rest for training.

    With 0.1, this is the 80/10/10 of ConveRT (2020), section 3. ``split_off`` draws the same parts in every run.

    Args:
        splits: with only a training part.
        share: above 0 and below 0.5.

    Raises:
        UsageError: the data has other parts, or the share is out of range.

    >>> parts = held_out(IntentSplits(tuple(Utterance(f"{i}", "x") for i in range(10))), 0.1)
    >>> len(parts.train), len(parts.dev), len(parts.test)
    (8, 1, 1)
    """
    check_share(share)
    if splits.dev or splits.test:
        raise UsageError("the data already has a development or test part; do not hold out a share")
    rest, test = split_off(splits.train, share, seed=0)
    train, dev = split_off(rest, share / (1 - share), seed=1)
    return IntentSplits(train, dev, test)


def train_intents(
    splits: IntentSplits,
    encoder: Encoder,
    *,
    encoder_name: str,
    layer: str = "auto",
    grid: Grid | None = None,
    n_few_shot: int | None = None,
    seeds: Sequence[int] = (1,),
    aim: Aim = "balanced",
    precision: float | None = None,
    patience: int = 5,
    max_epochs: int = 200,
    cache: Path | None = None,
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
        layer: see ``read_layer``.
        grid: of sizes; None: the default grid.
        n_few_shot: utterances per intent; None: all.
        seeds: of weights, order, dropout and few-shot samples.
        aim: of the threshold, see ``calibrate_rejection``.
        precision: if no development utterance is out of scope: choose the threshold so that this share of answers is
            right; None, or if no threshold reaches it: no threshold.
        patience: epochs without an improvement on the development part.
        max_epochs: the maximum number of epochs.
        cache: folder of encodings.
        report: called with the name of the work, the amount done, and the total.

    Raises:
        ConfigError: no seeds, or a size out of range.
        DataError: too little data, or an intent without training utterances.
        DivergedError: every learning rate diverges.
    """
    if not seeds:
        raise ConfigError("seeds is empty; give at least one")
    if n_few_shot is not None and n_few_shot < 1:
        raise UsageError(f"{n_few_shot} utterances per intent are too few; give at least 1")
    train, dev = (splits.train, splits.dev) if splits.dev else split_off(splits.train, DEV_SHARE, seed=seeds[0])
    intents = tuple(_by_intent(train))
    if precision is not None and any(utterance.intent is None for utterance in dev):
        raise UsageError(
            f"precision {precision} is set, but the development part has out-of-scope utterances, which determine the"
            " threshold; leave precision out"
        )
    if len(intents) < 2:
        raise DataError(f"the training part has {len(intents)} intents; give at least two")
    layer_name = read_layer(layer, encoder)

    def encoded(part: Utterances, name: str) -> tuple[Floats, Labels]:
        texts = [utterance.text for utterance in part]
        vectors = encode(
            encoder,
            texts,
            layer_name,
            cache=cache,
            progress=lambda done, total: report(f"encoding {name}", done, total),
        )
        return vectors, _labels(part, intents, name)

    parts = {name: encoded(part, name) for name, part in (("train", train), ("dev", dev), ("test", splits.test))}
    trials: list[HeadFit] = []
    fits: list[tuple[int, HeadFit, tuple[list[int], list[int]]]] = []
    for seed in seeds:
        rows, dev_rows = _rows(train, dev, n_few_shot, seed)
        own = _encoded_rows(parts["train"], rows), _encoded_rows(parts["dev"], dev_rows)
        if not len(own[1].labels):
            raise DataError("the development part has no utterance in scope; give some with `dev`")
        if not trials:
            best, trials = search(
                *own,
                len(intents),
                grid or Grid(),
                seed=seed,
                patience=patience,
                max_epochs=max_epochs,
                report=lambda fit, done, total: report(f"grid, {fit.accuracy:.1%} at {_named(fit)}", done, total),
            )
        else:
            best = fit_head(*own, len(intents), best.config, seed=seed, patience=patience, max_epochs=max_epochs)
        fits.append((seed, best, (rows, dev_rows)))
        report("seeds", len(fits), len(seeds))
    seed, fit, (rows, dev_rows) = max(fits, key=lambda item: item[1].rank)
    classifier = IntentClassifier(encoder, encoder_name, layer_name, fit.head, intents)
    judges = sorted([*dev_rows, *np.flatnonzero(parts["dev"][1] < 0).tolist()])
    abstention, unreached = None, ""
    try:
        abstention = _threshold(classifier, _encoded_rows(parts["dev"], judges), aim, precision)
    except DataError as error:  # the classifier is kept without a threshold
        unreached = str(error)
    figures: dict[str, Any] = {
        "encoder": encoder_name,
        "layer": layer_name,
        "n_intents": len(intents),
        "n_few_shot": n_few_shot,
        "n_train": len(rows),
        "n_dev": len(dev_rows),
        "n_test": int((parts["test"][1] >= 0).sum()),
        "grid": [{**asdict(t.config), "dev": t.accuracy, "n_epochs": t.n_epochs} for t in trials],
        "chosen": {**asdict(fit.config), "seed": seed, "dev": fit.accuracy, "n_epochs": fit.n_epochs},
    }
    metadata = dict(figures)
    classifier = replace(classifier, abstention=abstention, metadata=metadata)
    test_figures, matrix = _figures(classifier, parts, fits)
    return IntentResult(classifier, {**figures, **test_figures}, matrix, unreached)


def _named(fit: HeadFit) -> str:
    return f"H {fit.config.hidden_dim}, dropout {fit.config.dropout}, lr {fit.config.lr}"


def _labels(part: Utterances, intents: Sequence[str], name: str) -> Labels:
    numbers = {intent: i for i, intent in enumerate(intents)}
    for utterance in part:
        if utterance.intent is not None and utterance.intent not in numbers:
            raise DataError(
                f"intent {utterance.intent!r} of the {name} part has no training utterance; add one, or remove it"
            )
    return np.array([-1 if u.intent is None else numbers[u.intent] for u in part], np.int64)


def _rows(train: Utterances, dev: Utterances, n: int | None, seed: int) -> tuple[list[int], list[int]]:
    """The rows of in-scope utterances that this seed trains on, and of those that stop it early."""
    if n is None:
        rows, dev_rows = ([i for i, own in enumerate(part) if own.intent is not None] for part in (train, dev))
        return rows, dev_rows
    rows = [i for number, group in enumerate(_by_intent(dev).values()) for i in _shuffled(group, seed, number)[:n]]
    return _few_shot_rows(train, n, seed), sorted(rows)


def _encoded_rows(part: tuple[Floats, Labels], rows: list[int]) -> Encoded:
    return Encoded(part[0][rows], part[1][rows])


def _threshold(classifier: IntentClassifier, dev: Encoded, aim: Aim, precision: float | None) -> Abstention | None:
    scores, labels = classifier.scores_of(dev.vectors), dev.labels
    if (labels < 0).any():
        return calibrate_rejection(scores, labels, aim=aim)[0]
    if precision is None:
        return None
    ordered = -np.sort(-scores, axis=1)
    return calibrate(list(ordered), scores.argmax(1) == labels, precision=precision)[0]


def _interval(shares: NDArray[np.float64]) -> list[float]:
    """The 95% bootstrap interval of the mean over utterances; each share is the mean over seeds."""
    if not len(shares):
        return [0.0, 0.0]
    found = mean_with_interval(shares, np.arange(len(shares)))
    return [found["low"], found["high"]]


def _figures(
    classifier: IntentClassifier, parts: dict[str, tuple[Floats, Labels]], fits: Sequence[tuple[int, HeadFit, Any]]
) -> tuple[dict[str, Any], NDArray[np.int64]]:
    """Accuracy in scope by seed; for the chosen seed also the figures of the threshold and of each intent."""
    name = "test" if len(parts["test"][1]) else "dev"
    vectors, labels = parts[name]
    inside = labels >= 0
    right = [
        replace(classifier, head=fit.head).scores_of(vectors[inside]).argmax(1) == labels[inside] for _, fit, _ in fits
    ]
    values = [float(row.mean()) if len(row) else 0.0 for row in right]
    seeds = [
        {"seed": seed, "dev": fit.accuracy, name: value, "n_epochs": fit.n_epochs}
        for (seed, fit, _), value in zip(fits, values, strict=True)
    ]
    scores = classifier.scores_of(vectors)
    matrix = confusion(labels, predict_labels(scores, classifier.abstention), len(classifier.intents))
    figures: dict[str, Any] = {
        "judged_on": name,
        "seeds": seeds,
        "accuracy": statistics.mean(values),
        "accuracy_std": statistics.stdev(values) if len(values) > 1 else None,
        "interval": _interval(np.mean(right, axis=0)),
        "out_of_scope": None,
        "per_intent": per_intent(matrix, classifier.intents),
        "most_confused": most_confused(matrix, classifier.intents),
    }
    if classifier.abstention is not None:
        rejection = evaluate_rejection(scores, labels, classifier.abstention)
        figures["out_of_scope"] = {**asdict(classifier.abstention), **rejection.to_dict()}
    return figures, matrix
