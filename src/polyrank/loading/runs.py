"""Resolves names and run folders to the models of a comparison, grouped by seed, before any model is opened."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyrank.config.models import MODEL
from polyrank.config.runs import MODEL_FOLDER, NETWORKS, seed_of, seeds_inside, without_seed
from polyrank.errors import ArtifactError, UsageError
from polyrank.loading.folders import INSIDE, is_trained, models_inside
from polyrank.loading.models import DEFAULT_LENGTHS, Backend, Lengths, ModelRef, check_backend, resolve_model
from polyrank.storage.document import read_document


@dataclass(frozen=True, slots=True)
class Member:
    """A model of a comparison.

    Args:
        name: the name to open it with.
        group: the name that all seeds of the model share.
        seed: the seed of its training, or None if unknown.
    """

    name: str
    group: str
    seed: int | None


@dataclass(frozen=True, slots=True)
class Contestant:
    """A member of a comparison, ready to rank.

    Args:
        member: the model.
        ref: the model or ranker.
    """

    member: Member
    ref: ModelRef

    @property
    def name(self) -> str:
        """The name of its group."""
        return self.member.group


def resolve_contestants(
    names: Sequence[str], *, backend: Backend = "torch", lengths: Lengths = DEFAULT_LENGTHS
) -> list[Contestant]:
    """Resolve names to models for a comparison; a run folder expands to each of its models.

    Args:
        names: model, run or ranker folders, or other names that ``polyrank.load`` accepts.
        backend: of every model that has such an export.
        lengths: how much of each text the models read, for the models where it can be set.

    Raises:
        UsageError: a model does not exist or is named twice, or a setting applies to no model.
    """
    members = resolve_runs(names)
    every = [member.name for member in members]
    if twice := [name for name in every if every.count(name) > 1]:
        raise UsageError(f"{twice[0]} is named twice; name each model once")
    refs = [resolve_model(name, backend=backend) for name in every]
    check_backend(refs, backend)
    if not any(ref.has_settable_lengths for ref in refs):
        lengths.check(refs[0].name, settable=False)
    refs = [replace(ref, lengths=lengths) if ref.has_settable_lengths else ref for ref in refs]
    return [Contestant(member, ref) for member, ref in zip(members, refs, strict=True)]


def resolve_runs(names: Sequence[str]) -> list[Member]:
    """Resolve names to models; a run folder expands to each of its models.

    Args:
        names: model folders, run folders, or other names that ``polyrank.load`` accepts.
    """
    return [
        _member(path, "/".join(filter(None, (_without_seed(name), inside))))
        for name in names
        for path, inside in _models_in(name)
    ]


def _without_seed(name: str) -> str:
    path = _inside(name)
    return name if seed_of(path) is None else without_seed(path).removesuffix(f"/{MODEL_FOLDER}")


def _inside(name: str) -> str:
    """A path that states its folder, even if this is the working directory."""
    path = Path(name).as_posix()
    return f"./{path}" if path.startswith("seed-") else path


def unfinished_seeds(name: str) -> list[Path]:
    """The seed folders of a run that have no model yet."""
    return [folder for folder in seeds_inside(Path(name)) if not any(is_trained(folder / inside) for inside in INSIDE)]


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
    seed = _metadata(Path(name)).get("seed")
    return Member(name, group, seed_of(_inside(name)) if seed is None else seed)


def _metadata(folder: Path) -> dict[str, Any]:
    """The metadata that training wrote into a polyrank model; empty for other models."""
    try:
        return dict(read_document(folder, MODEL)["metadata"])
    except (ArtifactError, KeyError, TypeError, OSError):
        return {}
