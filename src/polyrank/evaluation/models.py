"""Evaluate several models on one task: load one after the other, score, and test them against each other."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from polyrank.devices.distributed import is_rank_zero
from polyrank.evaluation.comparison import ModelScores, compare_models, group_by_model
from polyrank.evaluation.protocols import Evaluation, evaluate
from polyrank.evaluation.scores_file import read_scores, write_scores
from polyrank.evaluation.task import RankingTask
from polyrank.loading.runs import Contestant, Member
from polyrank.notebook import table
from polyrank.ranking.frames import data_frame
from polyrank.scorers.lexical import corpus_of
from polyrank.scorers.open import open_ranking
from polyrank.scorers.own import as_scorer

Progress = Callable[[str, list[range]], Iterable[range]]


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Models with their figures.

    Args:
        rows: one for each model, ready for JSON; see ``polyrank.evaluation.comparison.compare_models``. The row of a
            model with networks has their ``precision``: "auto" depends on the machine, and figures depend on it.
        models: the results of each example, by model and seed.
    """

    rows: list[dict[str, Any]]
    models: list[ModelScores]

    def __repr__(self) -> str:
        """R@1 of each model; MRR, if R@1 was not requested."""
        metric = "R@1" if all("R@1" in row["metrics"] for row in self.rows) else "MRR"
        shown = (f"{row['name']} {100 * row['metrics'][metric]:.1f}" for row in self.rows)
        return f"Comparison({metric}: {', '.join(shown)})"

    def _repr_html_(self) -> str:
        """The models and their metrics as a table, for notebooks."""
        names = list(dict.fromkeys(name for row in self.rows for name in row["metrics"]))
        rows = [[row["name"], *(row["metrics"].get(name, "") for name in names)] for row in self.rows]
        return table(["model", *names], rows)

    def to_pandas(self) -> Any:
        """A pandas DataFrame with a row for each model: its name, number of examples, metrics and their intervals.

        Raises:
            UsageError: pandas is not installed.
        """
        return data_frame(
            [
                {"name": row["name"], "n_examples": row["n_examples"], **row["metrics"]}
                | {
                    f"{name} {end}": value
                    for name, interval in row["intervals"].items()
                    for end, value in zip(("low", "high"), interval, strict=True)
                }
                for row in self.rows
            ]
        )


def evaluate_models(
    models: Sequence[Contestant | Any],
    task: RankingTask,
    *,
    metrics: Sequence[str] | None = None,
    against: Path | None = None,
    by_turns: bool = False,
    scores: Sequence[Path | None] | None = None,
    device: str = "auto",
    progress: Progress = lambda name, batches: batches,
    notify: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Rank the task by each model and test them; the seeds of one model make one row.

    Args:
        models: see ``polyrank.loading.resolve_contestants``; or what ``polyrank.load`` returns, or any object with
            ``score``, under its attribute ``name`` or the name of its class.
        task: see ``read_task``.
        metrics: to test, the main one first; None: the default ones.
        against: a scores file to test against; None: the first of several models.
        by_turns: R@1 also by the number of turns.
        scores: for each model, the file to which its scores are written.
        device: for networks.
        progress: called with the name of each model and the list of its batches, which it returns or wraps.
        notify: called with lines for the user.

    Raises:
        UsageError: two models with the same name have the same seed.
        ArtifactError: a model is damaged.
        DataError: ``against`` is not a scores file, or has other examples.
    """
    base = None if against is None else ModelScores(str(against), (None,), (read_scores(against),))
    scored: list[ModelScores] = []
    precisions: dict[str, set[str]] = {}  # by the name of a row
    fingerprints: dict[str, dict[str, str]] = {}
    for given, file in zip(models, scores or [None] * len(models), strict=True):
        if isinstance(given, Contestant):
            model, settable = given.member, given.ref.has_settable_lengths
            scorer = open_ranking(given.ref, device=device, corpus=corpus_of(task.examples, task.pool))
        else:
            scorer, settable = as_scorer(given), False
            name = scorer.name or type(scorer).__name__
            model = Member(name, name, None)
        shown = partial(progress, "scoring" if len(models) == 1 else model.name)
        result = evaluate(scorer, task.examples, pool=task.pool, progress=shown)
        if not scored:
            _report_absent_answers(task, result, notify)
        if file is not None and is_rank_zero():
            about = {} if model.seed is None else {"seed": str(model.seed)}
            about |= {name: value for name in ("precision", "fingerprint") if (value := getattr(scorer, name))}
            write_scores(file, result, scorer=model.name, model=model.group, data=task.source, **about)
            notify(f"wrote {file}")
        precisions.setdefault(model.group, set()).add(scorer.precision)
        named = [(model.name, scorer), *((term.name, term) for term in getattr(scorer, "parts", ()))]
        fingerprints.setdefault(model.group, {}).update((name, p.fingerprint) for name, p in named if p.fingerprint)
        scored.append(ModelScores(model.group, (model.seed,), (result,)))
        for cut in filter(None, scorer.cut):
            remedy = "; `max_candidate_tokens` and `max_context_tokens` set the lengths" if settable else ""
            notify(f"{cut}{remedy}")
        del scorer, named  # frees its memory before the next one is loaded
    joined = group_by_model(scored)
    rows = compare_models(joined, metrics, base, by_turns=by_turns) if is_rank_zero() else []
    for row in rows:
        row["n_left_out"] = task.n_left_out
        if precision := ", ".join(sorted(precisions[row["name"]])):
            row["precision"] = precision
        row["fingerprints"] = fingerprints[row["name"]]  # of every model, so that a stored row states what it is of
    return Comparison(rows, joined)


def _report_absent_answers(task: RankingTask, result: Evaluation, notify: Callable[[str], None]) -> None:
    """Report how many examples have no right answer in the pool; the figures leave them out."""
    pairs = zip(task.examples, result.records, strict=True)
    n, n_absent = len(task.examples), sum(bool(example.relevant) and not record.relevant for example, record in pairs)
    if n_absent and not task.n_left_out:
        notify(f"{n_absent} of {n} examples cannot be answered: the pool holds none of their right answers")
