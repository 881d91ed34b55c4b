"""Tables: means with bootstrap intervals, breakdown by context length, paired tests between two scorers."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.markup import escape
from rich.table import Table

from polyrank.errors import DataError
from polyrank.evaluation.protocols import Evaluation, Record
from polyrank.ranking.metrics import metric_values

KS = (1, 2, 5, 10, 50)
Floats = NDArray[np.float64]


def summarise(
    evaluation: Evaluation, *, ks: Sequence[int] = KS, n_bootstrap: int = 2000, seed: int = 0
) -> dict[str, Any]:
    """Means over examples with 95% percentile bootstrap intervals, ready for JSON.

    Examples without a right answer take no part in the means and are counted as ``n_unanswerable``.

    Args:
        evaluation: the outcomes.
        ks: for R@k; those not below the number of candidates are left out.
        n_bootstrap: resamples of the examples.
        seed: of the resampling.

    Returns:
        ``n_examples``, ``n_candidates`` (a number, or [smallest, largest]), ``n_unanswerable``, ``ties`` (share of
        examples whose right answer ties with a wrong one), ``metrics`` and ``intervals`` as fractions.
    """
    records = evaluation.answerable
    if not records:
        raise DataError("no example has a right answer; there is nothing to measure")
    values = metric_values([record.placement for record in records], ks)
    sizes = sorted({record.placement.n_candidates for record in evaluation.records})
    tied = [any(g.n_tied > g.n_relevant for g in record.placement.groups) for record in records]
    return {
        "n_examples": len(evaluation.records),
        "n_candidates": sizes[0] if len(sizes) == 1 else [sizes[0], sizes[-1]],
        "n_unanswerable": len(evaluation.records) - len(records),
        "ties": float(np.mean(tied)),
        "metrics": {name: float(numbers.mean()) for name, numbers in values.items()},
        "intervals": _intervals(values, n_bootstrap, seed),
    }


def _resamples(n: int, n_bootstrap: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Draws of n out of n with replacement, in blocks of bounded memory: ``[b, n]``."""
    generator = np.random.Generator(np.random.PCG64(seed))
    block = max(1, 2_000_000 // n)
    for start in range(0, n_bootstrap, block):
        yield generator.integers(n, size=(min(block, n_bootstrap - start), n))


def _intervals(values: dict[str, Floats], n_bootstrap: int, seed: int) -> dict[str, list[float]]:
    n = len(next(iter(values.values())))
    means: dict[str, list[Floats]] = {name: [] for name in values}
    for draws in _resamples(n, n_bootstrap, seed):
        for name, numbers in values.items():
            means[name].append(numbers[draws].mean(1))
    return {
        name: [float(q) for q in np.quantile(np.concatenate(parts), [0.025, 0.975])] for name, parts in means.items()
    }


def breakdown(
    evaluation: Evaluation, *, by: str = "turns", edges: Sequence[int] = (1, 2, 4, 8, 16), seed: int = 0
) -> list[dict[str, Any]]:
    """R@1 and MRR by the length of the context.

    Args:
        evaluation: the outcomes.
        by: "turns" or "words".
        edges: lower ends of the classes; the last is open.
        seed: of the bootstrap.

    Returns:
        One row per class that has examples: ``from``, ``to`` (None: open), ``n_examples``, ``metrics``, ``intervals``.
    """
    rows = []
    for low, high in zip(edges, [*edges[1:], None], strict=True):
        records = [
            r for r in evaluation.answerable if low <= _length(r, by) and (high is None or _length(r, by) < high)
        ]
        if records:
            values = metric_values([record.placement for record in records], (1,))
            values = {name: values[name] for name in ("R@1", "MRR")}
            rows.append(
                {
                    "from": low,
                    "to": None if high is None else high - 1,
                    "n_examples": len(records),
                    "metrics": {name: float(numbers.mean()) for name, numbers in values.items()},
                    "intervals": _intervals(values, 1000, seed),
                }
            )
    return rows


def _length(record: Record, by: str) -> int:
    return record.n_turns if by == "turns" else record.n_words


def _by_id(evaluation: Evaluation) -> dict[str, Record]:
    records: dict[str, Record] = {}
    for record in evaluation.answerable:
        if record.id in records:
            raise DataError(f"id {record.id!r} names two examples; a paired test needs an id of its own for each")
        records[record.id] = record
    return records


def paired_test(
    a: Evaluation, b: Evaluation, *, metric: str = "R@1", n_permutations: int = 10_000, seed: int = 0
) -> dict[str, Any]:
    """Paired randomisation test: is the mean difference a - b larger than swapping the two at random would make it?

    The p value is two-sided, ``(1 + #{|swapped| >= |observed|}) / (1 + n_permutations)``. Where one was measured on a
    part of the other's examples, that part is compared.

    Raises:
        DataError: neither was measured on a part of the other's examples, an id names two examples, or one id names
            different examples on the two sides.

    Returns:
        ``metric``, ``n_examples``, ``difference``, ``interval`` (95%, bootstrap) and ``p``.
    """
    first, second = _by_id(a), _by_id(b)
    common = [name for name in first if name in second]
    if not common or len(common) != min(len(first), len(second)):
        raise DataError(
            f"a paired test needs the same examples on both sides; {len(set(first) ^ set(second))} of"
            f" {len(set(first) | set(second))} ids differ"
        )
    for name in common:
        x, y = first[name], second[name]
        if (x.placement.n_candidates, x.relevant) != (y.placement.n_candidates, y.relevant):
            raise DataError(
                f"example {name!r} differs on the two sides in its number of candidates or in which are right; a paired"
                " test needs scores of the same data"
            )
    k = int(metric.partition("@")[2] or 1)
    if metric not in metric_values([first[name].placement for name in common], (k,)):
        raise DataError(f"{metric} is not measured on these examples; choose R@k with k below their candidates, or MRR")
    ours, theirs = (metric_values([side[name].placement for name in common], (k,))[metric] for side in (first, second))
    differences = ours - theirs
    observed = abs(differences.mean())
    generator = np.random.Generator(np.random.PCG64(seed))
    block = max(1, 2_000_000 // len(differences))
    count = 0
    for start in range(0, n_permutations, block):
        signs = generator.integers(2, size=(min(block, n_permutations - start), len(differences))) * 2 - 1
        # a hair of room, so that sums in another order still count as equal
        count += int((np.abs((signs * differences).mean(1)) >= observed - 1e-12).sum())
    return {
        "metric": metric,
        "n_examples": len(differences),
        "difference": float(differences.mean()),
        "interval": _intervals({metric: differences}, 2000, seed)[metric],
        "p": (1 + count) / (1 + n_permutations),
    }


SHOWN = ("R@1", "R@5", "R@10", "MRR")


def table(summaries: Sequence[dict[str, Any]], metrics: Sequence[str] = SHOWN) -> Table:
    """Summaries (each with a ``name``) side by side, in percent, the 95% interval below each figure."""
    result = Table(show_lines=True)
    for heading in ("scorer", "n", "C", *metrics):
        result.add_column(heading, justify="left" if heading == "scorer" else "right", overflow="fold")
    for summary in summaries:
        cells = [_cell(summary, name).replace(" (", "\n").rstrip(")") for name in metrics]
        result.add_row(escape(str(summary.get("name", ""))), f"{summary['n_examples']:,}", _size(summary), *cells)
    return result


def _size(summary: dict[str, Any]) -> str:
    size = summary["n_candidates"]
    return f"{size:,}" if isinstance(size, int) else f"{size[0]:,}-{size[1]:,}"


def _cell(summary: dict[str, Any], name: str) -> str:
    if name not in summary["metrics"]:
        return ""
    low, high = summary["intervals"][name]
    return f"{100 * summary['metrics'][name]:.1f} ({100 * low:.1f}-{100 * high:.1f})"
