"""Resolves the name of a model to a ModelRef: its kind, its folder and its settings. Opens nothing."""

import os
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self

from polyrank.config.names import SHIPPED, Backend as Backend, model_folder as model_folder
from polyrank.errors import ArtifactError, UsageError
from polyrank.loading.folders import RANKER, models_inside, read_model
from polyrank.loading.hub import HUB, hub_folder, hub_name

ModelKind = Literal["lexical", "untuned", "foreign", "trained", "ranker"]
LEXICAL = ("bm25", "tfidf")
UNTUNED = "untuned:"
CUT = "#truncate_dim="
"""After the name of an encoder: how many of the first numbers of its vectors are kept."""
SHIPPED_RERANKERS = ("shipped:late",)
"""Models that correct the scores of a shipped encoder; ``tune`` tries those that are installed."""

NAMES = "give a model folder, hf:OWNER/MODEL of the Hub, bm25, tfidf, untuned:embedded or shipped:convert"


@dataclass(frozen=True, slots=True)
class Lengths:
    """How many tokens of a text a model reads; None: the model's own limit."""

    max_context_tokens: int | None = None
    max_candidate_tokens: int | None = None

    def check(self, name: str, settable: bool) -> None:
        """Refuse lengths below 4, and any length if the lengths of model ``name`` are fixed."""
        for key, value in asdict(self).items():
            if value is not None and not settable:
                raise UsageError(f"`{key}` does not apply to {name}, whose text lengths are fixed; leave it out")
            if value is not None and value < 4:
                raise UsageError(f"`{key}` = {value!r} is not a number of tokens; give 4 or more")


DEFAULT_LENGTHS = Lengths()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRef:
    """A model that exists, located by its name.

    Args:
        name: as the user gave it.
        kind: "lexical", "untuned" (a backbone without fine-tuning), "foreign" (from another library), "trained" (by
            polyrank), or "ranker".
        folder: of the model; None if the model has no folder, or the backbone is located on opening.
        fingerprint: of the weights, as the folder states it; empty if it is computed on opening.
        backend: the runtime that computes the model.
        lengths: how much of each text the model reads.
        corrects: for a re-ranker that corrects an encoder's scores: that encoder's fingerprint.
        first_stage: for the same: that encoder's name, if the folder states it.
        truncate_dim: how many of the first numbers of each vector are kept; None: all.
        parts: the models of a ranker.
    """

    name: str
    kind: ModelKind
    folder: Path | None = None
    fingerprint: str = ""
    backend: Backend = "torch"
    lengths: Lengths = DEFAULT_LENGTHS
    corrects: str = ""
    first_stage: str = ""
    truncate_dim: int | None = None
    parts: tuple["ModelRef", ...] = ()

    @property
    def has_settable_lengths(self) -> bool:
        """Whether the text lengths can be set; polyrank models always use those from training."""
        return self.kind in ("untuned", "foreign")

    @property
    def corrected(self) -> str:
        """The name of the encoder whose scores it corrects, or else the start of its fingerprint."""
        return self.first_stage or self.corrects[:12]

    def alone(self) -> Self:
        """This model, to rank by itself.

        Raises:
            UsageError: its scores only correct those of another model.
        """
        if self.corrects:
            raise UsageError(
                f"{self.name} only corrects the scores of another encoder, {self.corrected}, and cannot rank alone;"
                " combine both with polyrank tune"
            )
        return self

    def stages(self, backend: Backend = "torch") -> tuple["ModelRef", ...]:
        """This model; or the encoder whose scores it corrects, and this model.

        Args:
            backend: of the encoder, if it has such an export.

        Raises:
            UsageError: it corrects an encoder that it does not name, or that does not exist any more.
            ArtifactError: the encoder has changed since.
        """
        if not self.corrects or not self.first_stage:
            return (self.alone(),)
        if not model_exists(self.first_stage):
            raise UsageError(
                f"{self.name} corrects the scores of {self.first_stage}, which does not exist; restore it, or"
                " combine this model and the encoder with polyrank tune"
            )
        runtime = backend if has_export(model_folder(self.first_stage), backend) else "torch"
        encoder = resolve_encoder(self.first_stage, backend=runtime)
        if encoder.fingerprint and encoder.fingerprint != self.corrects:
            raise ArtifactError(
                f"{self.name} corrects the scores of encoder {self.corrects[:12]}, but {self.first_stage} is now"
                f" {encoder.fingerprint[:12]}; restore that encoder, or make this re-ranker again"
            )
        return (encoder, self)

    @property
    def backbone(self) -> str:
        """The name of an untuned model's backbone."""
        return self.name.removeprefix(UNTUNED).partition(CUT)[0]


def resolve_model(
    name: str | Path, *, backend: Backend = "torch", lengths: Lengths = DEFAULT_LENGTHS, bare_hub_names: bool = True
) -> ModelRef:
    """Resolve the name of a model.

    Args:
        name: a name that ``polyrank.load`` accepts; a Path never means the Hub.
        backend: "torch", or an export in the model's folder.
        lengths: how much of each text the model reads, for untuned and Hugging Face models.
        bare_hub_names: whether ``OWNER/MODEL`` may mean the Hub; if False, only ``hf:OWNER/MODEL`` does.

    Raises:
        UsageError: the model does not exist, or a setting does not apply to it.
        ArtifactError: the folder is damaged, or a later version wrote it.
        OfflineError: the model is on the Hub, has not been downloaded, and the network is not reachable.

    >>> resolve_model("bm25").kind, resolve_model("shipped:convert").kind
    ('lexical', 'trained')
    """
    path, cut, length = str(name).partition(CUT)
    ref = _resolved(path, backend, lengths, bare_hub_names and isinstance(name, str))
    lengths.check(path, ref.has_settable_lengths)
    if not cut:
        return ref
    if ref.kind in ("lexical", "ranker"):
        raise UsageError(f"{path} has no vectors to cut; leave {CUT}{length} out")
    if not length.isdecimal() or int(length) < 1:
        raise UsageError(f"{name} cuts vectors to {length!r} numbers; write for example {path}{CUT}64")
    return replace(ref, name=str(name), truncate_dim=int(length))


def resolve_encoder(name: str | Path, *, backend: Backend = "torch") -> ModelRef:
    """Resolve the name of a model that has vectors.

    Raises:
        UsageError: the model does not exist, or is lexical.
    """
    if str(name) in LEXICAL:
        raise UsageError(
            f"{name} has no vectors; give a Bi- or Poly-encoder, and combine it with {name} by polyrank tune"
        )
    return resolve_model(name, backend=backend)


def _resolved(name: str, backend: Backend, lengths: Lengths, bare: bool) -> ModelRef:
    facts: dict[str, Any] = {"name": name, "backend": backend, "lengths": lengths}
    if name in LEXICAL:
        return ModelRef(kind="lexical", **facts | {"backend": "torch"})
    if name.startswith(UNTUNED):
        _check_backend(name, backend)
        return ModelRef(kind="untuned", **facts)
    if hub_name(name, bare=bare) is not None:
        folder = hub_folder(name)
    elif not name or not (folder := model_folder(name)).is_dir():
        near = get_close_matches(name, (*LEXICAL, "shipped:convert", "shipped:minilm", "shipped:rerank"), n=1)
        hint = f"did you mean {near[0]}?" if near else NAMES
        raise UsageError(f"{name or 'an empty name'} is not a model folder; {hint}")
    kind, document = read_model(folder)
    facts |= {"folder": folder, "fingerprint": document.get("fingerprint", "")}
    match kind:
        case "training":
            raise UsageError(f"{name} is the folder of a training; give the model in it, {models_inside(folder)[0]}")
        case "intents":
            raise UsageError(f"{name} predicts intents and does not rank; use it with polyrank intents predict")
        case "index" | "remote":
            raise UsageError(
                f"{name} is an index, not a model; get answers from it with polyrank respond or polyrank.open, show it"
                " with polyrank index info, or name a model"
            )
        case "foreign":
            _check_backend(name, backend)
            return ModelRef(kind="foreign", **facts)
        case "ranker":
            stated = (term["state"].get("model") for term in document["terms"])
            names = dict.fromkeys(resolved_name(model, folder) for model in stated if model)
            parts = tuple(_part(folder, model, backend) for model in names)
            if backend != "torch" and not any(part.backend == backend for part in parts):
                raise UsageError(
                    f"no model of {folder} has an {backend} export ({', '.join(names)}); use the torch backend, or"
                    f" export one with: polyrank export MODEL --to {backend}"
                )
            return ModelRef(kind="ranker", parts=parts, **facts)
    metadata = document["metadata"]
    if corrects := metadata.get("first_stage", ""):
        named = metadata.get("first_stage_name", "")  # empty: only its fingerprint is known
        facts |= {"corrects": corrects, "first_stage": resolved_name(named, folder) if named else ""}
        recipe = metadata.get("recipe")  # in which a path is relative to a folder that is not known
        if (
            not facts["first_stage"]
            and recipe
            and not model_is_path(stated := recipe["train"]["method"]["first_stage"])
        ):
            facts["first_stage"] = stated
    return ModelRef(kind="trained", **facts)


def named_folder(name: str) -> Path:
    """The folder of a name, which may not exist; of ``hf:OWNER/MODEL``, its local copy."""
    return model_folder(name) if hub_name(name, bare=False) is None else hub_folder(name)


def _part(folder: Path, name: str, backend: Backend) -> ModelRef:
    """A model that a ranker's folder names, on the Hub only by ``hf:``; without an export for ``backend``, by torch."""
    if not model_exists(name):
        raise UsageError(f"{folder} needs the model {name}, which does not exist; restore it or {RANKER.remedy}")
    runtime = backend if has_export(model_folder(name), backend) else "torch"
    return resolve_model(name, backend=runtime, bare_hub_names=False)


def check_apart(path: Path, models: Sequence[ModelRef]) -> None:
    """Refuse a path of a model that would be a part of itself.

    Args:
        path: the folder to make.
        models: of which the model there will consist.

    Raises:
        UsageError: one of them, or a part of one, is at the path.
    """
    for model in models:
        if model.folder is not None and model.folder.resolve() == path.resolve():
            raise UsageError(f"{path} would be a part of itself; choose another path")
        check_apart(path, model.parts)


def check_backend(models: Sequence[ModelRef], backend: Backend) -> None:
    """Refuse a backend that none of some models uses.

    Raises:
        UsageError: they are all lexical or counts of replies, which have no networks.
    """
    if models and all(model.backend != backend for model in models):
        _check_backend(models[0].name, backend)


def _check_backend(name: str, backend: Backend) -> None:
    if backend != "torch":
        raise UsageError(f"{name} has no {backend} export; only polyrank model folders have; use the torch backend")


def export_folder(model: Path, backend: Backend) -> Path:
    """The folder of an export inside its model folder."""
    return model / "backends" / backend


def has_export(model: Path, backend: Backend) -> bool:
    """Whether a model folder has an export for a backend; does not verify the export."""
    return (export_folder(model, backend) / "export.json").is_file()


def shipped_rerankers(fingerprints: Collection[str]) -> list[ModelRef]:
    """The installed models that correct one of some encoders.

    >>> shipped_rerankers(["that of another encoder"])
    []
    """
    refs = []
    for name in SHIPPED_RERANKERS:
        try:
            refs.append(resolve_model(name))
        except UsageError:  # not installed
            continue
    return [ref for ref in refs if ref.corrects in fingerprints]


def model_is_path(name: str) -> bool:
    """Whether a name can only be that of a local folder.

    >>> model_is_path("run/model"), model_is_path("shipped:minilm"), model_is_path("hf:owner/model")
    (True, False, False)
    """
    return not name.startswith((SHIPPED, UNTUNED, HUB)) and name not in LEXICAL


def model_exists(name: str) -> bool:
    """Whether the encoder of this name can be located.

    >>> model_exists("untuned:embedded"), model_exists("shipped:convert"), model_exists("no/such/folder")
    (True, True, False)
    """
    path = name.partition(CUT)[0]
    return name.startswith(UNTUNED) or hub_name(path) is not None or model_folder(path).is_dir()


def absolute_name(name: str) -> str:
    """A name that means the same model from any working directory.

    >>> absolute_name("untuned:embedded"), absolute_name("shipped:convert"), absolute_name("owner/model")
    ('untuned:embedded', 'shipped:convert', 'hf:owner/model')
    """
    prefix, path, cut = _split(name)
    if Path(path).is_dir() and not _is_reserved(prefix, path):
        return prefix + str(Path(path).resolve()) + cut
    return prefix + HUB + path + cut if hub_name(path) == path else name


def portable_name(name: str, folder: Path) -> str:
    """A name to store in ``folder``: the path of a model folder becomes relative to ``folder``.

    >>> portable_name("untuned:embedded", Path("a/map"))
    'untuned:embedded'
    """
    prefix, path, cut = _split(name)
    if not Path(path).is_dir() or _is_reserved(prefix, path):
        return name
    relative = os.path.relpath(Path(path).resolve(), folder.resolve())
    return prefix + (relative if relative.startswith(os.pardir) else f"{os.curdir}{os.sep}{relative}") + cut


def resolved_name(name: str, folder: Path) -> str:
    """The inverse of ``portable_name``, for the present place of ``folder``.

    >>> resolved_name("untuned:embedded", Path("a/map"))
    'untuned:embedded'
    """
    prefix, path, cut = _split(name)
    if _is_reserved(prefix, path):
        return name
    there = (folder / path).resolve()
    # a relative path whose model is gone must not match a folder in the user's working directory
    return prefix + str(there) + cut if there.is_dir() or path.startswith((os.pardir, os.curdir)) else name


def moved_name(name: str, near: Path) -> str:
    """A recorded name, or that of the folder that has moved together with ``near``, which is next to it as before.

    >>> moved_name("shipped:convert", Path("index"))
    'shipped:convert'
    """
    prefix, path, cut = _split(name)
    if not Path(path).is_absolute() or Path(path).is_dir():
        return name
    parts = Path(path).parts[1:]
    ends = [Path(*parts[start:]) for start in range(len(parts))]
    places = [folder / end for folder in near.resolve().parents for end in ends if (folder / end).is_dir()]
    return prefix + str(places[0]) + cut if places else name


def _is_reserved(prefix: str, path: str) -> bool:
    """Whether a name means the same next to a folder of that name."""
    return path == "embedded" if prefix else path in LEXICAL


def _split(name: str) -> tuple[str, str, str]:
    """``untuned:``, the path, and the number of dimensions that are kept."""
    path, *cut = name.removeprefix(UNTUNED).partition(CUT)
    return UNTUNED if name.startswith(UNTUNED) else "", path, "".join(cut)
