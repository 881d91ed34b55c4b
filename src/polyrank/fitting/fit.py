"""The steps of a fit, cheapest first, within its minutes: each is kept if the ranker measurably gains on validation.

A folder of a fit holds ``index/``, which ``polyrank serve`` opens, ``ranker/``, the report, and what they were made of:
``data/``, ``replies.jsonl``, ``runs/`` of the trainings, ``scores/`` of ``tune``, and ``steps/``, a file for each
finished step.
"""

import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from polyrank.answering.build import build_index
from polyrank.bench import describe_machine
from polyrank.config.starter_recipe import best_start
from polyrank.data import write_pool
from polyrank.devices.choice import choose_device
from polyrank.errors import DataError, PolyrankError, UsageError
from polyrank.evaluation import evaluate, summarise
from polyrank.evaluation.tables import dialogues_of, mean_with_interval
from polyrank.fitting.budget import Budget, make_clock
from polyrank.fitting.data import FEW_REPEATS, FitData, make_parts, part_files, read_parts
from polyrank.fitting.recipes import FEWEST_STEPS, Pace, Planned, planned_trainings
from polyrank.fitting.report import Line, answers_of, commands_of, figure_of, ranked_last, write_report
from polyrank.index.opening import FITTED
from polyrank.loading.models import portable_name, resolve_model, resolved_name
from polyrank.scorers.lexical import corpus_of
from polyrank.scorers.open import load, open_model
from polyrank.scorers.protocols import Scorer
from polyrank.scorers.ranker import Ranker
from polyrank.scorers.terms import term_kinds
from polyrank.scorers.terms.counts import Counts, count_replies
from polyrank.storage.durable import check_replaceable, make_folders, sha256_file
from polyrank.storage.journal import Journal
from polyrank.storage.lock import hold
from polyrank.training import RunResult, train as train_here
from polyrank.training.data import examples_digest
from polyrank.training.signals import InterruptedTraining
from polyrank.tuning import Tuning, tune
from polyrank.tuning.scored import Progress
from polyrank.tuning.threshold import choose_threshold

LOCK = "fit.lock"
OWN_FILES = (FITTED, "ranker", "data", "chats.jsonl", "replies.jsonl", "runs", "scores", "steps", "report.*", LOCK)
MAX_TESTS = 3000  # more lists hardly narrow the intervals
WITHOUT_TRAINING = [kind for kind in term_kinds() if kind != "encoder"]


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fitted ranker and how it came about.

    Args:
        folder: of the fit: for ``polyrank serve`` and ``polyrank.open``, with ``ranker`` and the report in it.
        report: everything in report.json: ``lines`` of the steps (see ``Line``), those ``untried`` with their estimated
            minutes, ``test`` with the figures of ``ranker`` and ``BM25`` from ``polyrank.summarise``, and others.
    """

    folder: Path
    report: dict[str, Any] = field(repr=False)


def fit(
    data: Path | str,
    output: Path | str,
    *,
    minutes: float = 30.0,
    ms: float | None = None,
    precision: float = 0.8,
    replies: Path | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    train: Callable[..., list[RunResult]] = train_here,
    at_once: int = 1,
    show: Callable[[Line], None] = lambda line: None,
    progress: Progress = lambda _, batches: batches,
    report: Callable[[str, dict[str, Any]], None] = lambda name, record: None,
    notify: Callable[[str], None] = lambda text: None,
) -> Fitted:
    """The best ranker of a user's data that these minutes reach, its index, and a report.

    Baselines and shipped encoders come first, then terms that need no training, then trainings: a Bi-encoder, an
    encoder of another kind, a second stage, another seed. After each, ``tune`` fits the ranker on validation lists. A
    model is kept if the interval of its gain in likelihood or MRR excludes 0. The end of the minutes, or Ctrl-C, gives
    the best ranker so far. The test lists are ranked once, by the final ranker.

    Args:
        data: an export of chats, a file of dialogues or pairs, or a folder of ``polyrank split``.
        output: the folder to make.
        minutes: for everything, on this machine; on a processor, those that other programs take do not count.
        ms: the longest time of an answer on this machine; None: any.
        precision: the share of answers that have to be right; sets the threshold, if one reaches it and leaves at least
            5% of the validation contexts an answer.
        replies: a file of the catalogue; None: replies that were given twice or more.
        resume: continue an interrupted call, or a finished one with more minutes; finished steps are not repeated.
        overwrite: replace an earlier fit.
        device: for networks.
        train: trains a recipe, called like ``polyrank.train``: ``polyrank_ray.train`` does it on a cluster, whose time
            the minutes then count as it passes.
        at_once: trainings that ``train``, called in threads, computes at the same time.
        show: called with each line.
        progress: see ``polyrank.tune``.
        report: called with the name of a training, as in ``lines``, and each of its records.
        notify: called with messages for the user.

    Raises:
        UsageError: the output exists, or no model answers in ``ms``.
        DataError: the data cannot be read, or are too few to split.
        LockedError: another process fits there.
    """
    folder, catalogue = Path(output), None if replies is None else Path(replies)
    if not (minutes > 0 and (ms is None or ms > 0) and at_once > 0):
        raise UsageError(f"{minutes:g} minutes, {ms} ms, {at_once} trainings at once; give numbers above 0")
    if not resume:
        if not overwrite and (folder / "steps").is_dir():
            raise UsageError(f"{folder} holds a fit; pass `resume=True` to continue it, or `overwrite=True`")
        check_replaceable(folder, own_files=OWN_FILES, replace=overwrite)
    make_folders(folder)
    budget = Budget(minutes, clock=make_clock(on_processor=choose_device(device).type == "cpu" and train is train_here))
    with hold(folder / LOCK, f"{folder} is being fitted in", required=False):
        for path in () if resume else (path for name in OWN_FILES if name != LOCK for path in folder.glob(name)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        run = FitRun(folder, budget, ms, device, train, at_once, show, progress, report, notify)
        try:
            run.read(Path(data), catalogue)
        except PolyrankError:
            if not resume:  # nothing is there yet that a corrected call could continue
                shutil.rmtree(folder)
            raise
        try:
            run.run()
        except (KeyboardInterrupt, InterruptedTraining) as stop:
            if not run.models or signal.SIGTERM in (*stop.args, getattr(stop, "exit_code", 0) - 128):
                raise
            notify("stopped; finishing with the best ranker so far; continue with `resume=True`")
        return run.finish(str(data), precision)


@dataclass(slots=True)
class FitRun:
    """The state of a fit: the models that are kept, by their label in tables, and the ranker of them.

    Args:
        folder: of the fit.
        budget: its minutes.
        ms, device, train, at_once, show, progress, report, notify: see ``fit``.
    """

    folder: Path
    budget: Budget
    ms: float | None
    device: str
    train: Callable[..., list[RunResult]]
    at_once: int
    show: Callable[[Line], None]
    progress: Progress
    report: Callable[..., None]
    notify: Callable[[str], None]
    data: FitData = field(init=False)
    settings: dict[str, Any] = field(init=False)
    journal: Journal = field(init=False)
    models: dict[str, Scorer] = field(default_factory=dict)
    tuning: Tuning | None = None
    tuned_in: float = 0.0  # minutes of the last call of ``tune``
    lines: list[Line] = field(default_factory=list)
    untried: dict[str, Planned] = field(default_factory=dict)
    paces: dict[str, Pace] = field(default_factory=dict)

    def read(self, source: Path, replies: Path | None) -> None:
        """Import, split and read the data."""
        self.journal = Journal(self.folder / "steps", self.budget.clock)
        self.budget.spent = lambda: self.journal.seconds / 60
        read = [*part_files(source).values()] or (sorted(source.rglob("*")) if source.is_dir() else [source])
        inputs = {str(path): sha256_file(path) for path in [*read, *filter(None, [replies])] if path.is_file()}

        self.journal.recall("data", inputs, lambda: make_parts(source, self.folder, self.notify))
        files = part_files(source) or part_files(self.folder / "data")
        self.data = read_parts(files, replies, self.notify)
        write_pool(self.folder / "replies.jsonl", self.data.replies)
        digests = [examples_digest(part) for part in (self.data.pairs, self.data.lists, self.data.tests)]
        self.settings = {"data": digests, "replies": len(self.data.replies), "ms": self.ms}

    def run(self) -> None:
        """All steps that fit into the minutes."""
        planned = planned_trainings(self.data)
        self.untried = {one.name: one for one in planned}
        self._step("baselines", {}, self._baselines)
        self._step("shipped", {}, self._shipped)
        self._step("terms", {}, self._terms)
        self.budget.reserve(len(self.data.lists), min(len(self.data.tests), MAX_TESTS), self.tuned_in)
        self.train_all(planned)

    def train_all(self, planned: Sequence[Planned]) -> None:
        """Train ``at_once`` at a time, as long as minutes are left."""
        for first in range(0, len(planned), self.at_once):
            if self.budget.left > 0:
                self._train(planned[first : first + self.at_once])

    def _step(self, name: str, settings: Mapping[str, Any], compute: Callable[[], list[Line]]) -> None:
        """Do a step, or recall the lines and models of an earlier call."""

        def result() -> dict[str, Any]:
            began = time.process_time()
            first, *others = compute()
            lines = [asdict(first) | {"minutes": (time.process_time() - began) / 60}, *map(asdict, others)]
            models = {label: portable_name(model.name, self.folder) for label, model in self.models.items()}
            return {"lines": lines, "models": models, "tuned_in": self.tuned_in}

        before = {label: model.fingerprint for label, model in self.models.items()}
        stored = self.journal.recall(name, {**self.settings, **settings, "models": before}, result)
        self.tuned_in = stored["tuned_in"]
        new = {label: name for label, name in stored["models"].items() if label not in self.models}
        self.models |= {label: self._opened(resolved_name(name, self.folder)) for label, name in new.items()}
        for line in (Line(**line) for line in stored["lines"]):
            self.lines.append(line)
            self.show(line)

    def _baselines(self) -> list[Line]:
        """BM25 and the frequency of replies."""
        bm25 = load("bm25", corpus=corpus_of(self.data.lists))
        counts = Ranker([(Counts.of(count_replies(self.data.pairs)), (1.0,))])
        return [Line("BM25", self._ranked(bm25)), Line("reply frequency", self._ranked(counts))]

    def _shipped(self) -> list[Line]:
        """The encoders that are installed, as they are."""
        names = (best_start().replace("embedded", "untuned:embedded"), "shipped:convert")
        models = {name: self._opened(name) for name in names}
        alone = {name: self._tuned({name: model}, WITHOUT_TRAINING, alone=True) for name, model in models.items()}
        self.tuning = self._tuned(models, WITHOUT_TRAINING)
        used = {row["name"] for row in self.tuning.rows if row["weights"]}
        ms = {name: one.curve[0]["milliseconds"] for name, one in alone.items()}
        fastest = [] if self.ms is None else [min(ms, key=lambda name: ms[name])]  # if another's time differs later
        self.models = {name: model for name, model in models.items() if name in (*used, *fastest)}
        return [Line(n, self._metrics(one), kept=n in used, milliseconds=ms[n]) for n, one in alone.items()]

    def _terms(self) -> list[Line]:
        """Terms without training: counts of replies, hubs, words, and re-rankers that are installed."""
        self.tuning = self._tuned(self.models)
        lines, points = [], {point["terms"][-1]: point for point in self.tuning.curve}
        for row in (row for row in self.tuning.rows if row["kind"] != "encoder"):
            point = points.get(row["name"], {}) if row["weights"] else {}
            metrics = {name: figure for name, figure in point.items() if name in ("MRR", "R@1")}
            gain, ms = row.get("with", {}).get("MRR", {}), point.get("milliseconds")
            lines.append(Line(self._label(row["name"]), metrics, gain, bool(row["weights"]), milliseconds=ms))
        return lines

    def _train(self, group: Sequence[Planned]) -> None:
        """Train those that fit into the minutes, at the same time, and keep each model if the ranker gains."""
        chosen = [(one, plan) for one in group if (plan := self.plan(one, len(group)))]
        runs: list[Callable[[], Scorer]] = [partial(self._trained, one, plan["n_steps"]) for one, plan in chosen]
        pool = ThreadPoolExecutor(self.at_once)
        try:
            if len(runs) > 1:
                runs = [pool.submit(run).result for run in runs]
            for (one, plan), run in zip(chosen, runs, strict=True):
                step = one.folder if one.is_kept else f"{one.folder}-alone"
                self._step(step, plan, partial(self._judged, one, run))
                del self.untried[one.name]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def plan(self, planned: Planned, n_together: int) -> dict[str, Any]:
        """All that determines a training; empty if the minutes that are left are too few for it."""
        pace, n_steps = self._pace(planned), planned.n_steps(self.data)
        stated = {**self.settings, "recipe": planned.tables, "pace": asdict(pace)}
        affordable = min(n_steps, pace.affordable(self.budget.left - n_together * self.tuned_in, planned.n_checks))
        key = {**stated, "minutes": self.budget.minutes}
        plan = self.journal.recall(f"{planned.folder}-plan", key, lambda: {"n_steps": affordable})
        return {**stated, **plan} if plan["n_steps"] >= min(n_steps, FEWEST_STEPS) else {}

    def _trained(self, planned: Planned, n_steps: int) -> Scorer:
        recipe = planned.recipe(self.data, self.folder / "runs" / f"{planned.folder}-{n_steps}", max_steps=n_steps)
        return self._model_of(recipe, partial(self.report, planned.name), resume=True)

    def _model_of(self, recipe: dict[str, Any], report: Callable[[dict[str, Any]], None], **options: bool) -> Scorer:
        (trained, *_) = self.train(recipe, device=self.device, report=lambda seed, record: report(record), **options)
        return self._opened(str(trained.model.resolve()))

    def _judged(self, planned: Planned, trained: Callable[[], Scorer]) -> list[Line]:
        """The ranker with a model, compared with the ranker before."""
        model = trained()
        if not planned.is_kept:
            metrics = self._metrics(self._tuned({planned.name: model}, WITHOUT_TRAINING, alone=True))
            return [Line(planned.name, metrics, note="alone, without other terms")]
        models = {**self.models, planned.name: model}
        before = self.tuning = self.tuning or self._tuned(self.models)  # after a resumption, from stored scores
        tuning = self._tuned(models)
        line = self.compared(planned.name, before, tuning)
        if line.kept:
            self.tuning, self.models = tuning, models
        return [line]

    def _pace(self, planned: Planned) -> Pace:
        """How long its updates take here, measured once for those that are alike."""
        folder = self.folder / "runs" / f"{planned.folder}-pace"

        def measure() -> dict[str, Any]:
            train = partial(self._model_of, overwrite=True)
            return asdict(Pace.measured(planned, self.data, folder, train, self.budget.clock))

        name = planned.like or planned.folder
        self.paces[name] = Pace(**self.journal.recall(f"{name}-pace", self.settings, measure))
        return self.paces[name]

    def forecast(self, planned: Planned) -> float | None:
        """Minutes of a training that was not tried; None if nothing is known of its pace."""
        pace = self.paces.get(planned.like or planned.folder)
        return None if pace is None else pace.minutes(planned.n_steps(self.data), planned.n_checks) + self.tuned_in

    def _opened(self, name: str) -> Scorer:
        return open_model(resolve_model(name), device=self.device)

    def _ranked(self, scorer: Scorer) -> dict[str, dict[str, float]]:
        """MRR and R@1 of a baseline, with intervals."""
        summary = summarise(evaluate(scorer, self.data.lists))
        return {name: figure_of(summary, name) for name in ("MRR", "R@1")}

    def _tuned(self, models: Mapping[str, Scorer], without: Sequence[str] = (), alone: bool = False) -> Tuning:
        """The ranker of some models, from scores that are kept; of one alone, however long it takes."""
        began = self.budget.clock()
        tuning = tune(
            list(models.values()),
            self.data.lists,
            dialogues=self.data.pairs,
            without={*without, *(["counts"] if self.data.repeated < FEW_REPEATS else [])},
            ms=None if alone else self.ms,
            catalogue=len(self.data.replies),
            device=self.device,
            cache=self.folder / "scores",
            progress=self.progress,
        )
        self.tuned_in = (self.budget.clock() - began) / 60
        return tuning

    def _label(self, name: str) -> str:
        """The name of a term with the labels of models in place of their paths."""
        for label, model in self.models.items():
            name = name.replace(model.name, label)
        return name

    def _metrics(self, tuning: Tuning) -> dict[str, dict[str, float]]:
        """MRR and R@1 of a ranker, held out, with intervals."""
        values, dialogues = tuning.held_out, dialogues_of([one.id for one in self.data.lists])
        figures = {"MRR": values.reciprocal_rank, "R@1": values.hit}
        return {name: mean_with_interval(each, dialogues) for name, each in figures.items()}

    def compared(self, step: str, before: Tuning, after: Tuning) -> Line:
        """The held-out gain of a ranker, list by list, and whether it is measurable."""
        old, new, dialogues = before.held_out, after.held_out, dialogues_of([one.id for one in self.data.lists])
        likelihood = mean_with_interval(new.log_likelihood - old.log_likelihood, dialogues)
        gain = mean_with_interval(new.reciprocal_rank - old.reciprocal_rank, dialogues)
        kept = max(likelihood["low"], gain["low"]) > 0
        note = "" if kept else f"no measurable gain on {after.n_lists:,} lists"
        ms = float(sum(row["milliseconds"] for row in after.rows if row["weights"]))
        return Line(step, self._metrics(after), gain, kept, milliseconds=ms, note=note)

    def finish(self, source: str, precision: float) -> Fitted:
        """Set the threshold, write ranker and index, rank the test lists once, and write the report."""
        tuning = self.tuning or self._tuned(self.models)
        ranker, threshold = tuning.ranker, dict[str, Any](precision=precision)
        try:
            rule, chosen = choose_threshold(ranker, self.data.lists, precision=precision, progress=self.progress)
            if (share := chosen["chosen"]["coverage"]) < 0.05:  # a ranker that hardly ever answers is of no use
                raise DataError(f"only {share:.1%} of contexts would get an answer if {precision:.0%} had to be right")
            ranker.abstention, threshold = rule, threshold | chosen
        except DataError as error:
            threshold["problem"] = str(error)
        ranker.figures = {**ranker.figures, "threshold": threshold}
        ranker.save(self.folder / "ranker", replace=True)
        build_index(self.folder / FITTED, self._opened(str(self.folder / "ranker")), self.data.replies, overwrite=True)
        settings = {**self.settings, "ranker": ranker.fingerprint}
        test = self.journal.recall("test", settings, lambda: self._tested(ranker))
        last = ranked_last(self.data.lists, tuning.held_out.reciprocal_rank.tolist())[:20]
        minutes, used = self.budget.minutes, self.budget.used
        stated = {"data": source, "minutes": minutes, "used": used, "ms": self.ms, "precision": precision}
        models = [row["name"] for row in tuning.rows if row["weights"] and row["kind"] in ("encoder", "cross")]
        figures = {
            "lines": [asdict(line) for line in self.lines],
            "untried": {name: self.forecast(one) for name, one in self.untried.items()},
            "terms": [{**row, "name": self._label(row["name"])} for row in tuning.rows],
            "chosen": asdict(self.compared("chosen", tuning, tuning)),
            "threshold": threshold,
            "test": test,
            "data": {**self.data.facts(), "suspects": [[one.context[-1], one.response] for one in last]},
            "settings": stated,
            "ranker": ranker.fingerprint,
            "commands": commands_of(self.folder, self.data.files, models, stated),
            "machine": describe_machine(),
        }
        write_report(self.folder, figures)
        return Fitted(self.folder, figures)

    def _tested(self, ranker: Ranker) -> dict[str, Any]:
        """Figures of the test lists, and some answers with reasons."""
        tests = self.data.tests[:MAX_TESTS]
        evaluation = evaluate(ranker, tests, progress=lambda batches: self.progress("test", batches))
        bm25 = evaluate(load("bm25", corpus=corpus_of(tests)), tests)
        answers = answers_of(ranker, tests, evaluation, self._label)
        return {"ranker": summarise(evaluation), "BM25": summarise(bm25), "answers": answers}
