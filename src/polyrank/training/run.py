"""Running a recipe: read the data, build the model, train it, save the best version; once for each seed.

A run folder holds recipe.json (resolved), metrics.jsonl, the curves of ``train.tensorboard``, model/, result.json
once the run has finished, run.lock while it runs, and checkpoint.safetensors, which stays if the run can be extended.
Two networks have their own folders in it, retriever/ and reranker/, for everything but recipe, checkpoint and result.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from polyrank.config.effects import without_effect
from polyrank.config.recipe import Recipe, recipe_to_dict
from polyrank.config.runs import MODEL_FOLDER, NETWORK_FOLDERS, NETWORKS, SEED_FOLDERS
from polyrank.devices import distributed
from polyrank.devices.choice import choose_device, cpu_has_int8
from polyrank.evaluation import evaluate, summarise
from polyrank.loading.models import portable_name
from polyrank.loading.recipes import NetworkPlan, TrainingPlan, resolve_recipe
from polyrank.models.artifacts import MODEL_FILES
from polyrank.models.losses import LossFunction
from polyrank.records import Example
from polyrank.scorers.in_int8 import check_int8, read_record
from polyrank.scorers.open import load, load_encoder, load_stage
from polyrank.scorers.protocols import Scorer
from polyrank.scorers.ranker import corrected
from polyrank.storage.document import has_document
from polyrank.storage.durable import check_replaceable
from polyrank.training.card import DataPart, describe_part, write_card
from polyrank.training.checkpoints import CHECKPOINT, read_progress
from polyrank.training.data import load_data, n_given, read_lists
from polyrank.training.fitting import check_steps, count_steps, fit_together
from polyrank.training.learner import METRICS, Learner, explain_out_of_memory
from polyrank.training.loop import FitResult
from polyrank.training.methods import make_step
from polyrank.training.ranker import make_learner, new_ranker
from polyrank.training.rerank import RerankStep, judged
from polyrank.training.run_document import RECIPE, name_of, read_run_recipe, run_document
from polyrank.training.run_folder import RunKind, hold_run_folder, same_first_rates, stopped_by_minutes
from polyrank.training.teacher import TEACHER_SCORES
from polyrank.training.tracking import CURVES, check_tensorboard, with_curves

RESULT = replace(RECIPE, file="result.json")
INT8_LISTS = 200  # validation lists on which the rankings in int8 are compared: a list is half a point of R@1
TRAINING = RunKind(
    recipe=RECIPE,
    result=RESULT,
    begun=tuple(
        f"{name}{file}" for name in NETWORK_FOLDERS for file in (CHECKPOINT, RESULT.file, METRICS, MODEL_FOLDER)
    ),
    other=(CURVES, TEACHER_SCORES, "mined-*.npy", *NETWORKS),
    cleared=tuple(
        f"{seed}{file}"
        for seed in ("", f"{SEED_FOLDERS}/")
        for file in (
            CHECKPOINT,
            RESULT.file,
            TEACHER_SCORES,
            "mined-*.npy",
            *(f"{name}{file}" for name in NETWORK_FOLDERS for file in (METRICS, CURVES)),
        )
    ),
    may_differ=(
        "output",
        "data.cache",
        *(f"train.{key}" for key in ("seeds", "epochs", "max_steps", "minutes", "checkpoint_steps", "tensorboard")),
    ),
)


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of one seed's training.

    Args:
        seed: of the run.
        model: the folder of the best model.
        fit: how the training went.
        network: "retriever" or "reranker" if there are two networks; else empty.
        test: figures of the model on the recipe's ``data.test``, from ``polyrank.summarise``; empty without a test.
    """

    seed: int
    model: Path
    fit: FitResult
    network: str = ""
    test: dict[str, Any] = field(default_factory=dict)

    def load(self, *, device: str = "auto") -> Scorer:
        """Load the model, to rank with it; see ``polyrank.load``."""
        return load(self.model, device=device)


def train(
    recipe: Recipe | str | Path | Mapping[str, Any],
    examples: Iterable[Any] | None = None,
    valid: Iterable[Any] | None = None,
    *,
    loss: LossFunction | None = None,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    report: Callable[[int, dict[str, Any]], None] = lambda seed, record: None,
    notify: Callable[[str], None] = lambda text: None,
) -> list[RunResult]:
    """Train by a recipe; several seeds are written to ``seed-N`` folders below its output.

    Under ``torchrun`` all processes have to call this. They share the work, and rank 0 writes files and reports.

    Args:
        recipe: a Recipe, its file, or its tables as dictionaries.
        examples, valid: training and validation data instead of the recipe's files: Examples, rows, or tables, as
            ``polyrank.read_examples`` accepts them.
        loss: a function of scores ``[B, K]``, the right columns ``[B]`` and the mask of columns that count ``[B, K]``,
            in place of the cross-entropy and its smoothing; see ``polyrank.models.losses.LossFunction``.
        resume: continue from checkpoints. Finished seeds are trained further if the recipe now has more epochs or
            steps, and their learning rates so far do not depend on the number; else they are not trained again. The
            number of processes may change.
        overwrite: start again, replacing an earlier run.
        device: "auto", "cpu", "cuda" or "mps".
        report: called with the seed and each record of metrics.jsonl.
        notify: called with lines for the user.

    Raises:
        UsageError: the output holds an earlier run, and neither ``resume`` nor ``overwrite`` is set.
        LockedError: another process trains in the same folder.
        ConfigError: the networks do not support a setting, or the recipe differs from that of the resumed run.
        DataError: the data cannot be read, or has no example with a right answer.
        LostProcessError: another process of a distributed run has ended.
    """
    plan = resolve_recipe(recipe, resume=resume)
    check_tensorboard(plan.recipe.train.tensorboard)
    with distributed.process_group(), hold_run_folder(plan.output):
        notify = notify if distributed.is_rank_zero() else lambda text: None
        distributed.on_rank_zero(partial(_check_folders, plan, resume, overwrite))
        data = plan.recipe.data
        train_examples, valid_examples = load_data(data, examples, valid, notify)
        test_examples = [] if data.test is None else read_lists(data, "test", notify=notify)
        for line in without_effect(plan.recipe, validated=bool(valid_examples)):
            notify(f"warning: {line}")
        if plan.recipe.train.negatives is None and (n := n_given(train_examples)):
            notify(
                f"{n:,} of {len(train_examples):,} training examples come with wrong candidates, which are not trained"
                ' on; to add them to the other responses of the batch, set train.negatives.sources to ["given"]'
            )
        described = [
            ("train", data.train if examples is None else None, len(train_examples)),
            ("valid", data.valid if valid is None else None, len(valid_examples)),
            ("test", data.test, len(test_examples)),
        ]
        parts = distributed.on_rank_zero(lambda: [describe_part(*part) for part in described if part[2]])
        results: list[RunResult] = []
        for seed, folder in plan.folders.items():
            run = SeedRun(
                plan=plan,
                seed=seed,
                folder=folder,
                examples=train_examples,
                valid=valid_examples,
                test=test_examples,
                parts=parts,
                device=device,
                loss=loss,
                resume=resume,
                overwrite=overwrite,
                report=report,
                notify=notify,
            )
            results += run.train()
    return results


def _check_folders(plan: TrainingPlan, resume: bool, overwrite: bool) -> None:
    """Check the folders of a training before any work.

    Raises:
        UsageError: a folder holds an earlier run or other files, and neither option is set; or a model folder, which
            training replaces, holds other files, which would be lost.
        ConfigError: the run to resume was started with other settings; the message lists them.
    """
    for folder in plan.folders.values():
        for network in plan.networks:
            check_replaceable(folder / network.name / MODEL_FOLDER, own_files=MODEL_FILES, replace=True)
        TRAINING.check_folder(folder, resume=resume, overwrite=overwrite)
        if resume and TRAINING.has_begun(folder) and has_document(folder, RECIPE):
            TRAINING.check_same(folder, recipe_to_dict(read_run_recipe(folder)), recipe_to_dict(plan.recipe))


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRun:
    """The training of one seed.

    Args:
        plan: the resolved recipe.
        seed: of everything random.
        folder: of the run.
        examples: to train on.
        valid: validation lists, which choose the best step; if empty, the last step's model is kept.
        test: lists on which the trained model is evaluated; may be empty.
        parts: the three, for the model's card.
        device: where to compute.
        loss, resume, overwrite, report, notify: as for ``train``.
    """

    plan: TrainingPlan
    seed: int
    folder: Path
    examples: Sequence[Example]
    valid: Sequence[Example]
    test: Sequence[Example]
    parts: list[DataPart]
    device: str
    loss: LossFunction | None
    resume: bool
    overwrite: bool
    report: Callable[[int, dict[str, Any]], None]
    notify: Callable[[str], None]

    def train(self) -> list[RunResult]:
        """Train and test, and return the result of each network."""
        fits = distributed.on_rank_zero(self._begin)
        if fits is None:
            fits = self._fit()
            if all(fit.finished for fit in fits):
                distributed.on_rank_zero(partial(self._end, fits))
            else:
                self.notify(stopped_by_minutes(self.plan.recipe.train.minutes, fits[0].n_steps))
        return [self._result(network, fit) for network, fit in zip(self.plan.networks, fits, strict=True)]

    def _result(self, network: NetworkPlan, fit: FitResult) -> RunResult:
        """Check the trained model in int8, evaluate it on the test lists, and write its card."""
        folder, valid, test = self.folder / network.name / MODEL_FOLDER, self.valid, dict[str, Any]()
        may_use_int8 = network.model.kind in ("bi", "poly") and cpu_has_int8()
        # before the test, which is of the model as it will be loaded; several processes do not check
        if valid and may_use_int8 and distributed.world_size() == 1 and read_record(folder) is None:
            check_int8(folder, valid[:: -(-len(valid) // INT8_LISTS)])
        if self.test:
            self.notify(f"evaluating {folder} on the {len(self.test):,} examples of {self.plan.recipe.data.test}")
            scorer = self._trained(folder)
            test = {**summarise(evaluate(scorer, self.test)), "precision": scorer.precision}
        n_steps, _ = count_steps(self.plan.recipe.train, len(self.examples))
        distributed.on_rank_zero(
            lambda: write_card(
                folder, self.plan.recipe, network, self.parts, seed=self.seed, fit=fit, n_steps=n_steps, test=test
            )
        )
        return RunResult(self.seed, folder, fit, network.name, test)

    def _trained(self, folder: Path) -> Scorer:
        """The trained model; a re-ranker with its first stage."""
        first_stage, scorer = self.plan.recipe.train.method.corrects, load_stage(folder, device=self.device)
        if first_stage is None:
            return scorer
        return corrected(load_encoder(first_stage, device=self.device), scorer)

    def _begin(self) -> list[FitResult] | None:
        """Prepare the folder; returns the fits of a finished run that gets no more steps, else None."""
        longer = None if self.overwrite and not self.resume else self.resume and self._is_longer()
        extended = bool(longer) and has_document(self.folder, RESULT)
        resumed = self.resume and TRAINING.has_begun(self.folder)
        document = run_document(
            self.plan, self.examples, self.loss, valid=self.valid, resumed=self.folder if resumed else None
        )
        result = TRAINING.begin(self.folder, document, longer=longer, notify=self.notify)
        if result is not None:
            return [FitResult(**(result[network.name] if network.name else result)) for network in self.plan.networks]
        if extended and self.valid:
            train, last = self.plan.recipe.train, int(read_progress(self.folder / CHECKPOINT)["step"])
            if last not in check_steps(*count_steps(train, len(self.examples)), train.evaluate_per_epoch):
                self.notify(f"the run was validated after step {last:,}; an uninterrupted run would not have been")
        return None

    def _is_longer(self) -> bool:
        if not has_document(self.folder, RECIPE):
            return False
        before, now = (
            count_steps(recipe.train, len(self.examples))[0]
            for recipe in (read_run_recipe(self.folder), self.plan.recipe)
        )
        return TRAINING.is_longer(self.folder, [network.train for network in self.plan.networks], before, now)

    def _fit(self) -> list[FitResult]:
        """Build the networks and train them."""
        device, train, examples = choose_device(self.device), self.plan.recipe.train, self.examples
        with explain_out_of_memory(f"the network does not fit into the free memory of {device}; use another device"):
            rankers = [
                new_ranker(
                    network,
                    examples,
                    precision=train.precision,
                    seed=self.seed,
                    device=device,
                    lora_rank=train.lora_rank,
                )
                for network in self.plan.networks
            ]
        step = make_step(
            rankers,
            train,
            examples,
            device=device,
            seed=self.seed,
            folder=self.folder,
            loss=self.loss,
            notify=self.notify,
        )
        n_parameters = sum(p.numel() for ranker in rankers for p in ranker.model.parameters())
        with_others = f", {n} processes" if (n := distributed.world_size()) > 1 else ""
        self.notify(f"seed {self.seed}: {n_parameters:,} parameters on {device}{with_others}")
        metadata = {"recipe": recipe_to_dict(self.plan.recipe), "seed": self.seed}
        if self.loss is not None:
            metadata["loss"] = name_of(self.loss)
        if isinstance(step, RerankStep):
            metadata["first_stage"] = step.first_stage.fingerprint
            metadata["first_stage_name"] = portable_name(step.first_stage.name, self.folder / MODEL_FOLDER)
        with ExitStack() as stack:
            learners: list[Learner] = []
            for ranker, network in zip(rankers, self.plan.networks, strict=True):
                folder = self.folder / network.name
                report = stack.enter_context(
                    with_curves(partial(self._report, network.name), folder, wanted=train.tensorboard)
                )
                learner = make_learner(
                    ranker,
                    network.train,
                    folder,
                    self.valid,
                    metadata=metadata,
                    report=report,
                    name=network.name,
                    judged=judged(step, ranker.scorer, train),
                )
                learners.append(learner)
            return fit_together(
                learners,
                step,
                examples,
                train,
                length=rankers[0].length,
                seed=self.seed,
                folder=self.folder,
                device=device,
                resume=self.resume,
                notify=self.notify,
            )

    def _report(self, name: str, record: dict[str, Any]) -> None:
        """Report a record of a network; the name of a single one is empty."""
        self.report(self.seed, {"network": name, **record} if name else record)

    def _end(self, fits: Sequence[FitResult]) -> None:
        """Write the result, and delete the files that only a run that can be extended needs."""
        results = {network.name: dataclasses.asdict(fit) for network, fit in zip(self.plan.networks, fits, strict=True)}
        TRAINING.end(self.folder, results.get("", results))
        n_steps, _ = count_steps(self.plan.recipe.train, len(self.examples))
        if not all(same_first_rates(network.train, n_steps, 2 * n_steps, n_steps) for network in self.plan.networks):
            for path in [*self.folder.glob(CHECKPOINT), *self.folder.glob("mined-*.npy")]:
                path.unlink()
