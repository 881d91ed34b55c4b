"""Compare models, each with its seeds: one row for each model, tested against the first one."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyrank.errors import DataError, UsageError
from polyrank.evaluation.layout import SHOWN
from polyrank.evaluation.protocols import Evaluation
from polyrank.evaluation.scores_file import read_scores_and_header
from polyrank.evaluation.tables import KS, breakdown, paired_tests, summarise
from polyrank.ranking.metrics import metric_values
from polyrank.ranking.statistics import holm, paired_t


@dataclass(frozen=True, slots=True)
class ModelScores:
    """The evaluations of a model, one for each seed.

    Args:
        name: of the model.
        seeds: of its trainings; None: unknown.
        evaluations: one for each seed, on the same examples.
    """

    name: str
    seeds: tuple[int | None, ...]
    evaluations: tuple[Evaluation, ...]


def read_scored(inputs: Sequence[tuple[str | None, Path]]) -> list[ModelScores]:
    """Read scores files. If a model has several seeds, its files get its name; other files get their own names.

    Args:
        inputs: files, or folders of files, each with another name or None.

    Raises:
        UsageError: a folder has no scores files.
        DataError: a file is not a scores file.
    """
    files: list[tuple[str | None, Path]] = []
    for label, path in inputs:
        inside = sorted(path.glob("*.jsonl*")) if path.is_dir() else [path]
        if not inside:
            raise UsageError(f"{path} has no scores files; write some with polyrank evaluate --scores")
        files += [(label, file) for file in inside]
    full = len({file.name for _, file in files}) < len({file for _, file in files})
    scored: list[ModelScores] = []
    models: list[str | None] = []
    for label, file in files:
        evaluation, header = read_scores_and_header(file)
        seed = int(header["seed"]) if str(header.get("seed", "")).isdecimal() else None
        models.append(header.get("model") if label is None and seed is not None else None)
        name = str(file) if full else file.name
        if file not in [path for _, path in inputs]:  # it is in a folder
            name = str(header.get("model", name))
        scored.append(ModelScores(label or name, (seed,), (evaluation,)))
    for i, ((label, file), model) in enumerate(zip(files, models, strict=True)):
        if model is not None and models.count(model) > 1:
            scored[i] = replace(scored[i], name=model)
        elif label is None and (n := files[:i].count((None, file))):  # the same file again
            scored[i] = replace(scored[i], name=f"{scored[i].name} ({n + 1})")
    return scored


def group_by_model(scored: Sequence[ModelScores]) -> list[ModelScores]:
    """Join evaluations with the same name into one model, in order of first appearance.

    Raises:
        UsageError: two of them have the same seed.
    """
    groups: dict[str, list[ModelScores]] = {}
    for scores in scored:
        groups.setdefault(scores.name, []).append(scores)
    joined: list[ModelScores] = []
    for name, group in groups.items():
        seeds = tuple(seed for scores in group for seed in scores.seeds)
        named = [seed for seed in seeds if seed is not None]
        if twice := [seed for seed in named if named.count(seed) > 1]:
            raise UsageError(f"{name} has seed {twice[0]} twice; name them apart, as NAME=PATH, or leave one out")
        joined.append(ModelScores(name, seeds, tuple(one for scores in group for one in scores.evaluations)))
    return joined


def compare_models(
    models: Sequence[ModelScores],
    metrics: Sequence[str] | None = None,
    against: ModelScores | None = None,
    *,
    by_turns: bool = False,
) -> list[dict[str, Any]]:
    """One row for each model, ready for JSON and for ``polyrank.evaluation.layout``.

    Args:
        models: the others are tested against the first.
        metrics: to test, the main one first; None: those of ``SHOWN``.
        against: test against this model instead.
        by_turns: add a ``breakdown``.

    Raises:
        DataError: the models were evaluated on different examples.
    """
    rows = []
    ks = KS if metrics is None else sorted({int(k) for name in metrics if (k := name.partition("@")[2]).isdecimal()})
    for model in models:
        row = {"name": model.name, **summarise(model.evaluations, ks=ks)}
        if len(model.seeds) > 1:
            row["seeds"] = list(model.seeds)
            row["by_seed"] = [
                {"seed": seed, "metrics": figures} for seed, figures in zip(model.seeds, row["by_seed"], strict=True)
            ]
        if by_turns:
            row["by_turns"] = breakdown(model.evaluations)
        rows.append(row)
    base = models[0] if against is None else against
    tested = [(row, model) for row, model in zip(rows, models, strict=True) if model is not base]
    for row, model in tested:
        shown = [name for name in dict.fromkeys(metrics or SHOWN) if name in row["metrics"]]
        if not shown:
            raise DataError(f"{model.name} has none of the requested metrics; choose R@k with a lower k, or MRR")
        first, *others = paired_tests(model.evaluations, base.evaluations, shown)
        row["against"] = {"scores": base.name, **first, **({"others": others} if others else {})}
        common, metric = _ids(model) & _ids(base), first["metric"]
        if paired := _over_seeds(_figures(model, metric, common), _figures(base, metric, common)):
            row["against"]["over_seeds"] = paired
    _adjust([row["against"] for row, _ in tested])
    return rows


def _ids(model: ModelScores) -> set[str]:
    return {record.id for record in model.evaluations[0].answerable}


def _figures(model: ModelScores, metric: str, ids: Set[str]) -> dict[int, float]:
    """A metric by seed, over the examples with these ids."""
    k = int(metric.partition("@")[2] or 1)
    return {
        seed: float(metric_values([r.placement for r in evaluation.answerable if r.id in ids], (k,))[metric].mean())
        for seed, evaluation in zip(model.seeds, model.evaluations, strict=True)
        if seed is not None
    }


def _over_seeds(values: Mapping[int, float], base: Mapping[int, float]) -> dict[str, float] | None:
    """The paired test over the seeds that both have; None for fewer than two."""
    common = [seed for seed in values if seed in base]
    return paired_t([values[seed] - base[seed] for seed in common]) if len(common) > 1 else None


def _adjust(tests: Sequence[dict[str, Any]]) -> None:
    """Add ``p_adjusted`` to tests of several models against one, separately for each metric."""
    by_metric: dict[str, list[dict[str, Any]]] = {}
    for test in tests:
        for figure in (test, *test.get("others", ())):
            by_metric.setdefault(figure["metric"], []).append(figure)
    for same in by_metric.values():
        for figure, p in zip(same, holm([test["p"] for test in same]), strict=True):
            figure["p_adjusted"] = p
