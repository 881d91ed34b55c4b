"""Resolves names and run folders to the models of a comparison, grouped by seed, before any model is opened."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyrank.config.models import MODEL
from polyrank.config.pipeline import Ensemble
from polyrank.config.runs import MODEL_FOLDER, NETWORKS, seed_of, seeds_inside, without_seed
from polyrank.errors import ArtifactError, DataError, UsageError
from polyrank.loading.answering import RankerRef, resolve_stages
from polyrank.loading.folders import INSIDE, SUM, is_trained, models_inside
from polyrank.loading.models import DEFAULT_LENGTHS, Backend, Lengths, check_backend
from polyrank.storage.document import has_document, read_document


@dataclass(frozen=True, slots=True)
class Member:
    """A model of a comparison.

    Args:
        name: the name to open it with.
        group: the name that all seeds of the model share.
        seed: the seed of its training, or None if unknown.
        figures: of its validation in training; empty if it was not validated.
    """

    name: str
    group: str
    seed: int | None
    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A member of a comparison, ready to rank.

    Args:
        member: the model.
        ranker: the model alone, or with a second stage.
        name: the name of its group, with the second stage.
    """

    member: Member
    ranker: RankerRef
    name: str


def resolve_contestants(
    names: Sequence[str],
    *,
    rerank: str | None = None,
    n_retrieved: int | None = None,
    ensemble: Ensemble | None = None,
    backend: Backend = "torch",
    lengths: Lengths = DEFAULT_LENGTHS,
) -> list[Contestant]:
    """Resolve names to models for a comparison; a run folder expands to each of its models.

    Args:
        names: model, run or pipeline folders, or other names that ``polyrank.load`` accepts.
        rerank, n_retrieved, ensemble, backend: see ``resolve_ranker``.
        lengths: how much of each text the models read, for the models where it can be set.

    Raises:
        UsageError: a model does not exist or is named twice, or a setting applies to no model.
    """
    members = resolve_runs(names)
    every = [member.name for member in members]
    if twice := [name for name in every if every.count(name) > 1]:
        raise UsageError(f"{twice[0]} is named twice; name each model once")
    rankers = [
        resolve_stages(name, rerank=rerank, n_retrieved=n_retrieved, ensemble=ensemble, backend=backend)
        for name in every
    ]
    check_backend([stage for ranker in rankers for stage in ranker.stages], backend)
    # if no model has settable lengths, with_lengths of the first one raises the error
    any_settable = any(ranker.has_settable_lengths for ranker in rankers)
    ranked = [
        ranker.with_lengths(lengths) if ranker.has_settable_lengths or not any_settable else ranker
        for ranker in rankers
    ]
    suffix = "" if rerank is None else f", re-ranked by {rerank}"
    return [Contestant(member, ranker, member.group + suffix) for member, ranker in zip(members, ranked, strict=True)]


def resolve_runs(names: Sequence[str], labels: Sequence[str | None] | None = None) -> list[Member]:
    """Resolve names to models; a run folder expands to each of its models.

    Args:
        names: model folders, run folders, or other names that ``polyrank.load`` accepts.
        labels: the name of each group; None: derived from the name of the model.
    """
    result = []
    for name, label in zip(names, labels or [None] * len(names), strict=True):
        for path, inside in _models_in(name):
            result.append(_member(path, "/".join(filter(None, (label or _without_seed(name), inside)))))
    return result


def _without_seed(name: str) -> str:
    path = _inside(name)
    return name if seed_of(path) is None else without_seed(path).removesuffix(f"/{MODEL_FOLDER}")


def _inside(name: str) -> str:
    """A path that states its folder, even if this is the working directory."""
    path = Path(name).as_posix()
    return f"./{path}" if path.startswith("seed-") else path


def unfinished_seeds(name: str) -> list[Path]:
    """The seed folders of a run that have no model yet."""
    return [folder for folder in seeds_inside(Path(name)) if not _has_model(folder)]


def is_run(path: Path) -> bool:
    """Whether a path is a model folder or a run folder."""
    return any(is_trained(Path(name)) for name, _ in _models_in(str(path)))


def validation_figures(inputs: Sequence[tuple[str | None, Path]]) -> dict[str, dict[int, dict[str, float]]]:
    """Validation figures of the models in run folders, by group and seed.

    Args:
        inputs: folders, each with a label for its group, or None.

    Raises:
        DataError: a model was not validated.
        UsageError: two models of a group have the same seed.
    """
    models: dict[str, dict[int, dict[str, float]]] = {}
    for member in resolve_runs([str(path) for _, path in inputs], [label for label, _ in inputs]):
        if not member.figures:
            raise DataError(
                f"{member.name} was not validated in training; write scores files with polyrank evaluate --scores and"
                " compare those"
            )
        seeds = models.setdefault(member.group, {})
        seed = len(seeds) if member.seed is None else member.seed
        if seed in seeds:
            raise UsageError(
                f"{member.group} has seed {seed} twice; give each run a name, as NAME=PATH, or leave one out"
            )
        seeds[seed] = member.figures
    return models


def _has_model(run: Path) -> bool:
    return any(is_trained(run / inside) for inside in INSIDE)


def _models_in(name: str) -> list[tuple[str, str]]:
    """The models of a run folder, each with its network in a mutual training; for other names, the name itself."""
    folder = Path(name)
    if is_trained(folder):
        return [(name, "")]
    models = [
        (str(model), model.parent.name if model.parent.name in NETWORKS else "") for model in models_inside(folder)
    ]
    return models or [(name, "")]


def _member(name: str, group: str) -> Member:
    metadata = _metadata(Path(name))
    seed = metadata.get("seed")
    if seed is None:
        seed = seed_of(_inside(name))
    return Member(name, group, seed, metadata.get("validation") or {})


def _metadata(folder: Path) -> dict[str, Any]:
    """The metadata that training wrote into a polyrank model; empty for other models."""
    try:
        return dict(read_document(folder, SUM if has_document(folder, SUM) else MODEL)["metadata"])
    except (ArtifactError, KeyError, TypeError, OSError):
        return {}
