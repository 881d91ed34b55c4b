"""A recipe carried out: data read, model made, fit, the best model saved, once for each seed.

A run folder holds recipe.json (as resolved), metrics.jsonl, tensorboard/ where that is installed, model/, and
result.json when it has ended; run.lock while it runs, and checkpoint.safetensors too, which stays if the run can be
extended. Of two networks each has such a folder in it, retriever/ and reranker/, for all but recipe, checkpoint and
result.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from polyrank.config.models import NETWORKS, SumConfig
from polyrank.config.recipe import Recipe, recipe_from_dict, recipe_to_dict
from polyrank.config.training import Precision
from polyrank.devices import processes
from polyrank.devices.choice import choose_device
from polyrank.errors import ConfigError, UsageError
from polyrank.evaluation import evaluate, summarise
from polyrank.loading.recipes import NetworkPlan, TrainingPlan, resolve_recipe
from polyrank.models.artifacts import OURS
from polyrank.records import Example
from polyrank.scorers.open import load
from polyrank.scorers.protocols import Scorer
from polyrank.storage.document import DocumentKind, has_document, read_document
from polyrank.storage.durable import check_replaceable
from polyrank.training.checkpoints import CHECKPOINT, read_progress
from polyrank.training.data import load_data, n_given, read_lists
from polyrank.training.fitting import FitResult, check_steps, count_steps, fit_together, phased
from polyrank.training.learner import METRICS, Learner, Report
from polyrank.training.methods import make_step
from polyrank.training.ranker import Ranker, make_learner, new_ranker
from polyrank.training.run_folder import MODEL, RunKind, alone_in, begins_alike
from polyrank.training.sums import OURS_OF_A_SUM, new_sum
from polyrank.training.tensorboard import TensorBoard

RECIPE, RESULT = (
    DocumentKind(
        name="run folder",
        file=file,
        missing="check the path",
        remedy="train again with --overwrite",
        seal_optional=True,
    )
    for file in ("recipe.json", "result.json")
)
FOLDERS = ("", *(f"{name}/" for name in NETWORKS))
SEEDS = ("", "seed-*/")
TRAINING = RunKind(
    recipe=RECIPE,
    result=RESULT,
    begun=tuple(f"{name}{file}" for name in FOLDERS for file in (CHECKPOINT, RESULT.file, METRICS, MODEL)),
    other=("tensorboard", "teacher-scores.sqlite*", "mined-*.npy", *NETWORKS),
    cleared=tuple(
        f"{seed}{file}"
        for seed in SEEDS
        for file in (
            CHECKPOINT,
            RESULT.file,
            "mined-*.npy",
            *(f"{name}{file}" for name in FOLDERS for file in (METRICS, "tensorboard")),
        )
    ),
    may_differ=("output", "data.cache", "train.seeds", "train.epochs", "train.max_steps", "train.checkpoint_steps"),
)


@dataclass(frozen=True, slots=True)
class RunResult:
    """One seed's training.

    Args:
        seed: of the run.
        model: the folder of the best model.
        fit: how it went.
        network: "retriever" or "reranker" where there are two.
        test: figures of the model on the recipe's ``data.test``, as ``polyrank.summarise`` gives them; empty without.
    """

    seed: int
    model: Path
    fit: FitResult
    network: str = ""
    test: dict[str, Any] = field(default_factory=dict)

    def load(self, *, device: str = "auto") -> Scorer:
        """The model, to rank with."""
        return load(self.model, device=device)


def train(
    recipe: Recipe | str | Path | Mapping[str, Any],
    examples: Iterable[Any] | None = None,
    valid: Iterable[Any] | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    report: Callable[[int, dict[str, Any]], None] = lambda seed, record: None,
    notify: Callable[[str], None] = lambda text: None,
) -> list[RunResult]:
    """Carry out a recipe; several seeds go to ``seed-N`` folders below its output.

    Under ``torchrun`` all processes have to call this; they share the work, and the first one writes and reports.

    Args:
        recipe: what to do: a Recipe, its file, or its tables as dictionaries.
        examples, valid: to learn from and to choose the best step by, in place of the recipe's files: Examples, rows,
            or tables as ``polyrank.read_examples`` takes them.
        resume: go on from checkpoints. Finished seeds are not trained again; where the recipe asks for more epochs or
            steps, and their rates so far do not depend on how many, they are trained on. The number of processes may
            be another one.
        overwrite: start again where there is an earlier run.
        device: "auto", "cpu" or "cuda".
        report: called with the seed and each record of metrics.jsonl.
        notify: called with lines for the user.

    Raises:
        UsageError: an earlier run is there, and neither ``resume`` nor ``overwrite`` is set.
        LockedError: another process trains there.
        ConfigError: the recipe asks for something that the networks cannot do, or is not that of the earlier run.
        DataError: the data cannot be read or holds nothing to learn from.
        LostProcessError: of several processes another one has ended.
    """
    plan = resolve_recipe(recipe)
    with processes.together(), alone_in(plan.output):
        tell = notify if processes.is_first() else lambda text: None
        processes.by_first(partial(_check_folders, plan, resume, overwrite))
        data = plan.recipe.data
        learnt, judged = load_data(data, examples, valid, tell)
        if plan.recipe.train.negatives is None and (n := n_given(learnt)):
            tell(
                f"{n:,} of {len(learnt):,} training examples come with wrong candidates, which are not trained on; to"
                ' add them to the other responses of the batch, set train.negatives.sources to ["given"]'
            )
        held_out = [] if data.test is None else read_lists(data, "test", notify=tell)
        runs = [
            Run(
                plan=plan,
                seed=seed,
                folder=folder,
                examples=learnt,
                valid=judged,
                device=device,
                resume=resume,
                overwrite=overwrite,
                report=report,
                notify=tell,
            )
            for seed, folder in plan.folders.items()
        ]
        results = [result for run in runs for result in run.carry_out()]
    if held_out:
        tell(f"evaluating on the {len(held_out):,} examples of {data.test}")
        results = [replace(own, test=summarise(evaluate(own.load(device=device), held_out))) for own in results]
    return results


def make_ranker(
    network: NetworkPlan, examples: Sequence[Example], *, precision: Precision, seed: int, device: torch.device
) -> Ranker:
    """The model of a resolved recipe, started from what it names.

    Raises:
        ConfigError: the weights to start from do not fit.
    """
    model, train = network.model, network.train
    if isinstance(model, SumConfig):
        return new_sum(model, network.parts, train, precision=precision, device=device)
    return new_ranker(
        model, network.text, train, examples, start=network.start, precision=precision, seed=seed, device=device
    )


def _check_folders(plan: TrainingPlan, resume: bool, overwrite: bool) -> None:
    """Refuse the folders of a training before any work.

    Raises:
        UsageError: an earlier run, or something else, is there, and nothing says what to do about it; or a model's
            folder, which will be replaced, holds what would be lost.
        ConfigError: the run that would be resumed was started with other settings; names them.
    """
    for folder in plan.folders.values():
        for network in plan.networks:
            ours = OURS_OF_A_SUM if network.parts else OURS
            check_replaceable(folder / network.name / MODEL, ours=ours, replace=True)
            for part in network.parts:  # a resumed run would miss what the model took the place of
                if part.resolve().is_relative_to(folder.resolve()):
                    raise UsageError(f"{part}, which the sum starts from, lies in {folder}; choose another output")
        TRAINING.check_folder(folder, resume=resume, overwrite=overwrite)
        if resume and not overwrite and TRAINING.has_begun(folder) and has_document(folder, RECIPE):
            TRAINING.check_same(folder, recipe_to_dict(earlier_recipe(folder)), recipe_to_dict(plan.recipe))


def earlier_recipe(folder: Path) -> Recipe:
    """The recipe that a run was started with; settings that did not exist when it was written have defaults."""
    document = read_document(folder, RECIPE)
    try:
        return recipe_from_dict(document)
    except ConfigError as error:
        raise ConfigError(
            f"{folder / RECIPE.file} cannot be read as a recipe of today ({error}); start again with --overwrite"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One seed of a recipe at work: all that its parts need, handed on as one.

    Args:
        plan: the recipe, resolved.
        seed: of everything random.
        folder: of the run.
        examples: to learn from.
        valid: lists to choose the best step by; none: the last step's model is kept.
        device: where to compute.
        resume, overwrite: what to do about an earlier run.
        report, notify: as for ``train``.
    """

    plan: TrainingPlan
    seed: int
    folder: Path
    examples: Sequence[Example]
    valid: Sequence[Example]
    device: str
    resume: bool
    overwrite: bool
    report: Callable[[int, dict[str, Any]], None]
    notify: Callable[[str], None]

    def carry_out(self) -> list[RunResult]:
        """Train; what came of each network."""
        fits = processes.by_first(self._begin)
        if fits is None:
            fits = self._fit()
            processes.by_first(partial(self._end, fits))
        return [
            RunResult(self.seed, self.folder / network.name / MODEL, own, network.name)
            for network, own in zip(self.plan.networks, fits, strict=True)
        ]

    def _begin(self) -> list[FitResult] | None:
        """Make the folder ready; gives how the run went if it has ended and is to have no more steps."""
        longer = None if self.overwrite and not self.resume else self.resume and self._is_longer()
        extended = bool(longer) and has_document(self.folder, RESULT)
        known = TRAINING.begin(self.folder, recipe_to_dict(self.plan.recipe), longer=longer, notify=self.notify)
        if known is not None:
            return [FitResult(**(known[network.name] if network.name else known)) for network in self.plan.networks]
        if extended and self.valid:
            train, last = self.plan.recipe.train, int(read_progress(self.folder / CHECKPOINT)["step"])
            if last not in check_steps(*count_steps(train, len(self.examples)), train.evaluate_per_epoch):
                self.notify(f"it was validated after step {last:,}, as an uninterrupted run would not have been")
        return None

    def _is_longer(self) -> bool:
        if not has_document(self.folder, RECIPE):
            return False
        before, now = (
            count_steps(recipe.train, len(self.examples))[0]
            for recipe in (earlier_recipe(self.folder), self.plan.recipe)
        )
        return TRAINING.is_longer(self.folder, [network.train for network in self.plan.networks], before, now)

    def _fit(self) -> list[FitResult]:
        """Make the networks and train them."""
        device, train = choose_device(self.device), self.plan.recipe.train
        rankers = [
            make_ranker(network, self.examples, precision=train.precision, seed=self.seed, device=device)
            for network in self.plan.networks
        ]
        step = make_step(rankers, train, self.examples, device=device, seed=self.seed, folder=self.folder)
        n_parameters = sum(p.numel() for ranker in rankers for p in ranker.model.parameters())
        with_others = f", {n} processes" if (n := processes.count()) > 1 else ""
        self.notify(f"seed {self.seed}: {n_parameters:,} parameters on {device}{with_others}")
        metadata = {"recipe": recipe_to_dict(self.plan.recipe), "seed": self.seed}
        curves = [TensorBoard(self.folder / network.name / "tensorboard") for network in self.plan.networks]
        learners: list[Learner] = [
            make_learner(
                ranker,
                network.train,
                self.folder / network.name,
                self.valid,
                metadata=metadata,
                report=self._reporter(network.name, drawn),
                name=network.name,
            )
            for ranker, network, drawn in zip(rankers, self.plan.networks, curves, strict=True)
        ]
        fits = fit_together(
            learners,
            phased(step),
            self.examples,
            train,
            seed=self.seed,
            folder=self.folder,
            device=device,
            resume=self.resume,
            memory=getattr(step, "queue", None),
        )
        for drawn in curves:
            drawn.close()
        return fits

    def _reporter(self, name: str, drawn: Report) -> Report:
        def report(record: dict[str, Any]) -> None:
            drawn(record)
            self.report(self.seed, {"network": name, **record} if name else record)

        return report

    def _end(self, fits: Sequence[FitResult]) -> None:
        """Write how it went, and drop what only a run that may be extended needs."""
        names = [network.name for network in self.plan.networks]
        results = {name: dataclasses.asdict(own) for name, own in zip(names, fits, strict=True)}
        TRAINING.end(self.folder, results.get("", results))
        n_steps, _ = count_steps(self.plan.recipe.train, len(self.examples))
        if not all(begins_alike(network.train, n_steps, 2 * n_steps, n_steps) for network in self.plan.networks):
            for path in [*self.folder.glob(CHECKPOINT), *self.folder.glob("mined-*.npy")]:
                path.unlink()
