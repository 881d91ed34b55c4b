"""Models evaluated side by side on one task: opened one after the other, scored, and tested against each other."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from polyrank.devices.distributed import is_rank_zero
from polyrank.evaluation.comparison import Scored, by_model, compared
from polyrank.evaluation.protocols import Evaluation, evaluate
from polyrank.evaluation.scores_file import read_scores, write_scores
from polyrank.evaluation.tables import By
from polyrank.evaluation.task import Task
from polyrank.loading.runs import Contestant
from polyrank.scorers.open import corpus_of, open_ranker, probe_encoding

Progress = Callable[[str, list[range]], Iterable[range]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Models with their figures.

    Args:
        rows: one for each model, ready for JSON: see ``polyrank.evaluation.comparison.compared``.
        models: the outcomes of each example, by model and seed.
    """

    rows: list[dict[str, Any]]
    models: list[Scored]


def evaluate_models(
    models: Sequence[Contestant],
    task: Task,
    *,
    metrics: Sequence[str] | None = None,
    against: Path | None = None,
    by: Sequence[By] = (),
    probe: str | None = None,
    scores: Sequence[Path | None] | None = None,
    device: str = "auto",
    progress: Progress = lambda name, batches: batches,
    notify: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Rank the task by each model and test them; the seeds of one model make one row.

    Args:
        models: see ``polyrank.loading.resolve_contestants``.
        task: see ``read_task``.
        metrics: that are tested, the foremost first; None: the usual ones.
        against: a scores file to test against; None: the first of several models.
        by: R@1 is also given by the length of the context in each of these.
        probe: rank by one encoding of multi-context ConveRTs: "immediate" or "earlier".
        scores: files that the scores of each model are written to.
        device: for networks.
        progress: is told the name of each model, and wraps the list of its batches.
        notify: takes lines for the user.

    Raises:
        UsageError: two models of one name have one seed, or ``probe`` is for none of them.
        ArtifactError: a model is damaged.
        DataError: ``against`` is no scores file, or of other examples.
    """
    base = None if against is None else Scored(str(against), (None,), (read_scores(against),))
    scored: list[Scored] = []
    for model, file in zip(models, scores or [None] * len(models), strict=True):
        scorer = open_ranker(model.ranker, device=device, corpus=corpus_of(task.examples, task.pool))
        if probe is not None:
            probe_encoding(scorer, model.member.name, probe)
        shown = "scoring" if len(models) == 1 else model.member.name
        shown_progress = partial(progress, shown)
        result = evaluate(scorer, task.examples, pool=task.pool, allow_echo=task.allow_echo, progress=shown_progress)
        if not scored:
            _say_what_is_absent(task, result, notify)
        if file is not None and is_rank_zero():
            seed = {} if model.member.seed is None else {"seed": str(model.member.seed)}
            write_scores(file, result, scorer=model.member.name, model=model.name, data=task.source, **seed)
            notify(f"wrote {file}")
        scored.append(Scored(model.name, (model.member.seed,), (result,)))
        for cut in filter(None, scorer.cut):
            settable = "; `max_candidate_tokens` and `max_context_tokens` set how much is read"
            notify(f"{cut}{settable if model.ranker.has_settable_lengths else ''}")
        del scorer  # before the next one is read
    joined = by_model(scored)
    rows = compared(joined, metrics, base, by=by) if is_rank_zero() else []
    for row in rows:
        row["n_left_out"] = task.n_left_out
    return Comparison(rows, joined)


def _say_what_is_absent(task: Task, result: Evaluation, notify: Callable[[str], None]) -> None:
    """What could not be ranked, which is not in the figures."""
    pairs = zip(task.examples, result.records, strict=True)
    n_absent = sum(bool(example.relevant) and not record.relevant for example, record in pairs)
    if n_absent and not task.n_left_out:
        n = len(task.examples)
        notify(f"{n_absent} of {n} examples cannot be answered: the pool holds none of their right answers")
