"""The figures of tables: means with bootstrap intervals, also by context length, and paired tests of two scorers."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.config.checked import whole_number
from polyrank.errors import DataError
from polyrank.evaluation.protocols import Evaluation, Record
from polyrank.ranking.metrics import metric_values
from polyrank.ranking.statistics import student_t, wilson

KS = (1, 2, 5, 10, 50)
Floats = NDArray[np.float64]
TURNS = (0, 1, 2, 4, 8, 16)
"""Lower ends of the classes of a breakdown; the last is open. 0: contexts that are only a background."""
Evaluations = Evaluation | Sequence[Evaluation]
"""One evaluation, or one for each seed of a model, on the same examples; their values are averaged by example."""


def _each(evaluations: Evaluations) -> tuple[Evaluation, ...]:
    return (evaluations,) if isinstance(evaluations, Evaluation) else tuple(evaluations)


def dialogues_of(ids: Sequence[str]) -> NDArray[np.int64]:
    """A dialogue number for each example, from 0: the same for ids that are equal up to a last ``#`` and a number.

    An example without an id is a dialogue alone. If all examples are of one dialogue, each gets its own number: then
    nothing is known about other dialogues.

    >>> dialogues_of(["a#1", "b#1", "a#3", "c"]).tolist()
    [0, 1, 0, 2]
    >>> dialogues_of(["a#1", "", "", "a#2"]).tolist(), dialogues_of(["a#1", "a#3"]).tolist()
    ([0, 1, 2, 0], [0, 1])
    """
    if len(set(fronts := _fronts(ids))) == 1:
        return np.arange(len(ids))
    rows = {front: row for row, front in enumerate(dict.fromkeys(fronts))}
    return np.array([rows[front] for front in fronts], np.int64)


def _fronts(ids: Sequence[str]) -> list[str | int]:
    """The part of each id that examples of one dialogue share; for an example without an id, its number."""
    parts = [name.rpartition("#") for name in ids]
    return [
        (front if number.isdecimal() and mark else name) or row
        for row, (name, (front, mark, number)) in enumerate(zip(ids, parts, strict=True))
    ]


def count_dialogues(ids: Sequence[str]) -> int:
    """The number of dialogues of examples with these ids.

    >>> count_dialogues(["a#1", "a#3"]), count_dialogues(["a#1", "", "", "a#2"])
    (1, 3)
    """
    return len(set(_fronts(ids)))


def summarise(
    evaluation: Evaluations, *, ks: Sequence[int] = KS, n_bootstrap: int = 2000, seed: int = 0
) -> dict[str, Any]:
    """Means over examples with 95% percentile bootstrap intervals, ready for JSON.

    Examples without a right answer are left out of the means and counted as ``n_unanswerable``. Dialogues are resampled
    if ids name them, because examples of one dialogue are alike; otherwise examples.

    Args:
        evaluation: the results, or those of each seed.
        ks: for R@k; a k that is not below the number of candidates is left out.
        n_bootstrap: resamples of the dialogues.
        seed: of the resampling.

    Returns:
        ``n_examples``, ``n_candidates`` (a number, or [smallest, largest]), ``n_unanswerable``, ``ties`` (share of
        examples whose right answer ties with a wrong one), ``metrics`` and ``intervals`` as fractions. For several
        seeds also ``std`` over them, and ``by_seed``, the metrics of each; the intervals are of their means. If
        dialogues have several examples, also ``n_dialogues``; 1 means that other dialogues may differ. If all
        examples are right, or all are wrong, the interval is Wilson's.

    Raises:
        DataError: no example has a right answer, or the seeds were evaluated on different examples.
    """
    whole_number(n_bootstrap, "n_bootstrap", least=1)
    evaluations = _each(evaluation)
    first = evaluations[0]
    records = first.answerable
    if not records:
        raise DataError("no example has a right answer, so nothing can be measured; give examples with right answers")
    by_seed = [metric_values([r.placement for r in each.answerable], ks) for each in _alike(evaluations)]
    values = {name: np.mean([numbers[name] for numbers in by_seed], axis=0) for name in by_seed[0]}
    sizes = sorted({record.placement.n_candidates for record in first.records})
    tied = [any(g.n_tied > g.n_relevant for g in r.placement.groups) for each in evaluations for r in each.answerable]
    ids = [record.id for record in records]
    dialogues = dialogues_of(ids)
    summary: dict[str, Any] = {
        "n_examples": len(first.records),
        "n_candidates": sizes[0] if len(sizes) == 1 else [sizes[0], sizes[-1]],
        "n_unanswerable": len(first.records) - len(records),
        "ties": float(np.mean(tied)),
        "metrics": {name: float(numbers.mean()) for name, numbers in values.items()},
        "intervals": _intervals(values, dialogues, n_bootstrap, seed, shares=True),
        **({"n_dialogues": n} if (n := count_dialogues(ids)) < len(ids) else {}),
    }
    if len(evaluations) > 1:
        means = [{name: float(numbers.mean()) for name, numbers in each.items()} for each in by_seed]
        summary["std"] = {name: float(np.std([each[name] for each in means], ddof=1)) for name in values}
        summary["by_seed"] = means
    return summary


def _alike(evaluations: tuple[Evaluation, ...]) -> tuple[Evaluation, ...]:
    """Validate that evaluations have the same examples in the same order."""
    shapes = [[(r.id, r.relevant, r.placement.n_candidates) for r in evaluation.records] for evaluation in evaluations]
    if any(shape != shapes[0] for shape in shapes):
        raise DataError("the seeds of one model were evaluated on different examples; evaluate them on one file")
    return evaluations


def _resamples(n: int, n_bootstrap: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Draws of n out of n with replacement, in blocks of bounded memory: ``[b, n]``."""
    generator = np.random.Generator(np.random.PCG64(seed))
    block = max(1, 2_000_000 // n)
    for start in range(0, n_bootstrap, block):
        yield generator.integers(n, size=(min(block, n_bootstrap - start), n))


def _intervals(
    values: Mapping[str, Floats], dialogues: NDArray[np.int64], n_bootstrap: int, seed: int, *, shares: bool = False
) -> dict[str, list[float]]:
    """95% percentile intervals of means over examples, by resampling their dialogues.

    Two corrections matter for few dialogues G: resamples deviate by sqrt((G - 1) / G) too little, and Student's t with
    G - 1 degrees of freedom replaces the normal distribution.
    Values are from 0 to 1, or differences of such values. No resample changes values that are all 0 or all 1:
    Wilson's interval of ``shares`` replaces the bootstrap's, and differences of 0 may be as large as the share of
    differences that ``n`` of them do not show.

    Source: Cameron, Gelbach and Miller, Bootstrap-Based Improvements for Inference with Clustered Errors (2008).
    """
    sizes = np.bincount(dialogues).astype(float)
    sums = {name: np.bincount(dialogues, numbers) for name, numbers in values.items()}
    means: dict[str, list[Floats]] = {name: [] for name in values}
    n = len(sizes)
    for draws in _resamples(n, n_bootstrap, seed):
        drawn = sizes[draws].sum(1)
        for name, totals in sums.items():
            means[name].append(totals[draws].sum(1) / drawn)
    wider = student_t(0.05, n - 1) / 1.959964 * (n / (n - 1)) ** 0.5 if n > 1 else 1.0
    result = {}
    for name, parts in means.items():
        if shares and values[name].min() == values[name].max() in (0, 1):
            result[name] = list(wilson(n * int(values[name][0]), n))
            continue
        if not shares and not values[name].any():
            unseen = wilson(0, n)[1]
            result[name] = [-unseen, unseen]
            continue
        mean, ends = values[name].mean(), np.quantile(np.concatenate(parts), [0.025, 0.975])
        low, high = values[name].min(), values[name].max()  # those of log-likelihoods have no limits
        spread = np.clip(mean + wider * (ends - mean), 0.0 if low >= 0 else min(low, -1.0), max(high, 1.0))
        result[name] = [float(end) for end in spread]
    return result


def mean_with_interval(
    values: Sequence[float] | Floats, dialogues: NDArray[np.int64], *, shares: bool = False
) -> dict[str, float]:
    """The mean over examples, with a 95% percentile interval from resampled dialogues (see ``summarise``).

    Args:
        values: ``[n]``, one per example, from 0 to 1, or differences of such values or of log-likelihoods.
        dialogues: ``[n]``, see ``dialogues_of``.
        shares: the values are shares, not differences: if all are 0 or all are 1, the interval is Wilson's.

    >>> mean_with_interval([0.5, 0.5, 0.5], dialogues_of(["a#1", "a#2", "b#1"]))
    {'mean': 0.5, 'low': 0.5, 'high': 0.5}
    >>> round(mean_with_interval([1, 1, 1], dialogues_of(["a", "b", "c"]), shares=True)["low"], 3)
    0.439
    """
    numbers = np.asarray(values, np.float64)
    low, high = _intervals({"mean": numbers}, dialogues, n_bootstrap=2000, seed=0, shares=shares)["mean"]
    return {"mean": float(numbers.mean()), "low": low, "high": high}


def breakdown(
    evaluation: Evaluations,
    *,
    length: Callable[[Record], int] = attrgetter("n_turns"),
    edges: Sequence[int] = TURNS,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """R@1 and MRR by the length of the context.

    Args:
        evaluation: the results, or those of each seed.
        length: of a record's context.
        edges: lower ends of the classes; the last is open.
        seed: of the bootstrap.

    Returns:
        One row for each class with examples: ``from``, ``to`` (None: open), ``n_examples``, ``metrics``, ``intervals``.
    """
    rows = []
    evaluations = _alike(_each(evaluation))
    records = evaluations[0].answerable
    lengths = [length(record) for record in records]
    by_seed = [metric_values([r.placement for r in one.answerable], (1,)) for one in evaluations]
    all_values = {name: np.mean([figures[name] for figures in by_seed], axis=0) for name in ("R@1", "MRR") if lengths}
    all_dialogues = dialogues_of([record.id for record in records])
    for low, high in zip(edges, [*edges[1:], None], strict=True):
        inside = [i for i, n in enumerate(lengths) if low <= n and (high is None or n < high)]
        if inside:
            values = {name: numbers[inside] for name, numbers in all_values.items()}
            dialogues = np.unique(all_dialogues[inside], return_inverse=True)[1]
            if not dialogues.any():  # all of one dialogue
                dialogues = np.arange(len(inside))
            rows.append(
                {
                    "from": low,
                    "to": None if high is None else high - 1,
                    "n_examples": len(inside),
                    "metrics": {name: float(numbers.mean()) for name, numbers in values.items()},
                    "intervals": _intervals(values, dialogues, 1000, seed, shares=True),
                }
            )
    return rows


Seeds = tuple[Record, ...]
"""The records of one example, one for each seed."""


def _in_pairs(a: Evaluations, b: Evaluations) -> tuple[list[Seeds], list[Seeds]]:
    """The examples that both sides have, in the order of the first one."""
    first, second = (
        list(zip(*(evaluation.answerable for evaluation in _alike(_each(side))), strict=True)) for side in (a, b)
    )
    names, others = ([records[0].id for records in side] for side in (first, second))
    if names and names == others:  # an id may then repeat, such as that of a conversation
        return first, second
    for side in (names, others):
        if (most := Counter(side).most_common(1)) and most[0][1] > 1:
            raise DataError(
                f"two examples have the id {most[0][0]!r}, so the examples of the two sides cannot be paired; give both"
                " sides the same examples, or distinct ids"
            )
    pairs = dict(zip(others, second, strict=True))
    common = [records for records in first if records[0].id in pairs]
    if not common or len(common) != min(len(first), len(second)):
        raise DataError(
            f"a paired test needs the same examples on both sides; {len(set(names) ^ set(others))} of"
            f" {len(set(names) | set(others))} ids differ"
        )
    return common, [pairs[records[0].id] for records in common]


def paired_test(
    a: Evaluations, b: Evaluations, *, metric: str = "R@1", n_permutations: int = 10_000, seed: int = 0
) -> dict[str, Any]:
    """``paired_tests`` of one metric."""
    return paired_tests(a, b, [metric], n_permutations=n_permutations, seed=seed)[0]


def paired_tests(
    a: Evaluations, b: Evaluations, metrics: Sequence[str], *, n_permutations: int = 10_000, seed: int = 0
) -> list[dict[str, Any]]:
    """Paired randomisation tests: is the mean difference a - b larger than if the two were swapped at random?

    The p value is two-sided, ``(1 + #{|swapped| >= |observed|}) / (1 + n_permutations)``. If one side has only a part
    of the other's examples, that part is compared. The test swaps dialogues if ids name them, otherwise examples, each
    with its mean over the seeds. So it generalizes to other dialogues, not to other seeds.

    Raises:
        DataError: neither side's examples are a part of the other's, ids repeat and the sides differ, or one id means
            different examples on the two sides.

    Returns:
        For each metric ``metric``, ``n_examples``, ``difference``, ``interval`` (95%, bootstrap) and ``p``; if
        dialogues have several examples, also ``n_dialogues``.
    """
    whole_number(n_permutations, "n_permutations", least=1)
    first, second = _in_pairs(a, b)
    for (x, *_), (y, *_) in zip(first, second, strict=True):
        if (x.placement.n_candidates, x.relevant) != (y.placement.n_candidates, y.relevant):
            raise DataError(
                f"example {x.id!r} has other candidates or right answers on the two sides; a paired test needs"
                " scores of the same data"
            )
    left, right = _metrics_of(first, metrics), _metrics_of(second, metrics)
    common = [records[0].id for records in first]
    differences = {metric: left[metric] - right[metric] for metric in metrics}
    dialogues = dialogues_of(common)
    matrix = np.stack([np.bincount(dialogues, values) for values in differences.values()], axis=1) / len(common)
    n_dialogues = len(matrix)
    observed = np.abs(matrix.sum(0))
    generator = np.random.Generator(np.random.PCG64(seed))
    block = max(1, 2_000_000 // n_dialogues)
    counts = np.zeros(len(metrics), np.int64)
    for start in range(0, n_permutations, block):
        signs = generator.integers(2, size=(min(block, n_permutations - start), n_dialogues)) * 2 - 1
        # a small tolerance, so that sums in another order still count as equal
        counts += (np.abs(signs @ matrix) >= observed - 1e-12).sum(0)
    intervals = _intervals(differences, dialogues, 2000, seed)
    return [
        {
            "metric": metric,
            "n_examples": len(common),
            **({"n_dialogues": n} if (n := count_dialogues(common)) < len(common) else {}),
            "difference": float(differences[metric].mean()),
            "interval": intervals[metric],
            "p": (1 + int(count)) / (1 + n_permutations),
        }
        for metric, count in zip(metrics, counts, strict=True)
    ]


def _metrics_of(records: Sequence[Seeds], metrics: Sequence[str]) -> dict[str, Floats]:
    """Each metric's value for each example, averaged over its records."""
    ks = [int(k) for metric in metrics if (k := metric.partition("@")[2]).isdecimal() and int(k)]
    by_seed = [metric_values([record.placement for record in seed], ks) for seed in zip(*records, strict=True)]
    for metric in metrics:
        if metric not in by_seed[0]:
            raise DataError(
                f"{metric} cannot be measured on these examples; choose R@k with k below their candidates, or MRR"
            )
    return {metric: np.mean([values[metric] for values in by_seed], axis=0) for metric in metrics}
