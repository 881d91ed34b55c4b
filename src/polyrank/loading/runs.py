"""Models by name or by run folder, told apart by what they are and by their seeds, before any is opened."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyrank.config.models import MODEL, TWO
from polyrank.config.pipeline import SHORTLIST, Ensemble
from polyrank.errors import ArtifactError, DataError, UsageError
from polyrank.loading.answering import RankerRef, resolve_ranker
from polyrank.loading.folders import SUM
from polyrank.loading.models import USUAL, Backend, Lengths
from polyrank.storage.document import has_document, read_document

SEED = re.compile(r"/seed-(\d+)(?=/|$)")
INSIDE = ("model", *(f"{name}/model" for name in TWO))


@dataclass(frozen=True, slots=True)
class Member:
    """A model of a comparison.

    Args:
        name: what it is opened by.
        group: its name without the seed: what the models of other seeds are called too.
        seed: that it was trained with; None where it is not known.
        figures: of its validation in training, if there was one.
    """

    name: str
    group: str
    seed: int | None
    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A member of a comparison that ranks.

    Args:
        member: the model.
        ranker: what it ranks by, alone or with a second stage.
        name: of its group, with the second stage.
    """

    member: Member
    ranker: RankerRef
    name: str


def resolve_contestants(
    names: Sequence[str],
    *,
    rerank: str | None = None,
    n_retrieved: int = SHORTLIST,
    ensemble: Ensemble | None = None,
    backend: Backend = "torch",
    lengths: Lengths = USUAL,
) -> list[Contestant]:
    """The models that names mean, to be compared; a run folder means each of its models.

    Args:
        names: model, run or pipeline folders, or anything else that ``polyrank.load`` takes.
        rerank, n_retrieved, ensemble, backend: see ``resolve_ranker``.
        lengths: how much of a text is read, of those that have such a setting.

    Raises:
        UsageError: a model is not there or is named twice, or a setting is for none of them.
    """
    found = resolve_runs(names)
    every = [member.name for member in found]
    if twice := [name for name in every if every.count(name) > 1]:
        raise UsageError(f"{twice[0]} is named twice; name each model once")
    rankers = [
        resolve_ranker(member.name, rerank=rerank, n_retrieved=n_retrieved, ensemble=ensemble, backend=backend)
        for member in found
    ]
    # where none has a length to set, the first refuses it
    adjustable = [ranker.has_settable_lengths for ranker in rankers]
    adjustable = adjustable if any(adjustable) else [True] * len(rankers)
    ranked = [ranker.with_lengths(lengths) if own else ranker for ranker, own in zip(rankers, adjustable, strict=True)]
    suffix = "" if rerank is None else f", re-ranked by {rerank}"
    return [Contestant(member, ranker, member.group + suffix) for member, ranker in zip(found, ranked, strict=True)]


def resolve_runs(names: Sequence[str], labels: Sequence[str | None] | None = None) -> list[Member]:
    """The models that names mean: a run folder means each of its models.

    Args:
        names: model folders, run folders, or anything else that ``polyrank.load`` takes.
        labels: what to call each one's group instead; None: as it is named.
    """
    result = []
    for name, label in zip(names, labels or [None] * len(names), strict=True):
        for path, inside in _models_in(name):
            result.append(_member(path, "/".join(filter(None, (label or _without_seed(name), inside)))))
    return result


def _without_seed(name: str) -> str:
    path = Path(name).as_posix()
    return SEED.sub("", path).removesuffix("/model") if SEED.search(path) else name


def unfinished(name: str) -> list[Path]:
    """The seeds of a run folder that have no model yet."""
    seeds = sorted(folder for folder in Path(name).glob("seed-*") if folder.is_dir())
    return [folder for folder in seeds if not _has_model(folder)]


def is_run(path: Path) -> bool:
    """Whether it is a model's or a run's folder."""
    return any(_is_model(Path(name)) for name, _ in _models_in(str(path)))


def validation_figures(inputs: Sequence[tuple[str | None, Path]]) -> dict[str, dict[int, dict[str, float]]]:
    """Validation figures of models in run folders, by group and seed.

    Args:
        inputs: folders, each with a label for its group, or None.

    Raises:
        DataError: a model was not validated.
        UsageError: two models of a group have one seed.
    """
    models: dict[str, dict[int, dict[str, float]]] = {}
    for member in resolve_runs([str(path) for _, path in inputs], [label for label, _ in inputs]):
        if not member.figures:
            raise DataError(f"{member.name} was not validated in training; compare scores files of evaluate --scores")
        seeds = models.setdefault(member.group, {})
        seed = len(seeds) if member.seed is None else member.seed
        if seed in seeds:
            raise UsageError(f"{member.group} has seed {seed} twice; name them apart, as NAME=PATH, or leave one out")
        seeds[seed] = member.figures
    return models


def _has_model(run: Path) -> bool:
    return any(_is_model(run / inside) for inside in INSIDE)


def _is_model(folder: Path) -> bool:
    return has_document(folder, MODEL) or has_document(folder, SUM)


def _models_in(name: str) -> list[tuple[str, str]]:
    """The models of a run folder, each with its network where there are two; else the name itself."""
    folder = Path(name)
    if _is_model(folder):
        return [(name, "")]
    seeds = sorted(
        (seed for seed in folder.glob("seed-*") if seed.name[5:].isdigit()), key=lambda seed: int(seed.name[5:])
    )
    runs = [run for run in (folder, *seeds) if _has_model(run)]
    models = [
        (str(run / inside), inside.removesuffix("model").rstrip("/"))
        for inside in INSIDE
        for run in runs
        if _is_model(run / inside)
    ]
    return models or [(name, "")]


def _member(name: str, group: str) -> Member:
    metadata = _metadata(Path(name))
    seed = metadata.get("seed")
    by_name = SEED.search(Path(name).as_posix())
    if seed is None and by_name:
        seed = int(by_name[1])
    return Member(name, group, seed, metadata.get("validation") or {})


def _metadata(folder: Path) -> dict[str, Any]:
    """What training wrote about a model of ours; others say nothing."""
    try:
        return dict(read_document(folder, SUM if has_document(folder, SUM) else MODEL)["metadata"])
    except (ArtifactError, KeyError, TypeError, OSError):
        return {}
