"""From the name of a model to a ModelRef: what it is, where it is, and which settings it takes. Nothing is opened."""

import os
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from polyrank.config.checked import read_choice
from polyrank.config.names import model_folder as model_folder
from polyrank.errors import UsageError
from polyrank.loading.folders import SUM, read_model
from polyrank.loading.hub import HUB, hub_folder, hub_name
from polyrank.storage.document import read_document

Backend = Literal["torch", "onnx", "onnx-int8", "openvino"]
ModelKind = Literal["lexical", "untuned", "foreign", "map", "sum", "popularity", "trained", "encoder of an index"]
LEXICAL = ("bm25", "tfidf")
UNTUNED = "untuned:"
NAMES = "give a model folder, hf:OWNER/MODEL of the Hub, bm25, tfidf, untuned:embedded or shipped:convert"


@dataclass(frozen=True, slots=True)
class Lengths:
    """How much of a text is read, in tokens; None: what the model says."""

    max_context_tokens: int | None = None
    max_candidate_tokens: int | None = None

    def check(self, name: str, settable: bool) -> None:
        """Refuse lengths that are not for a model of that name, or are none."""
        for key, value in asdict(self).items():
            if value is not None and not settable:
                raise UsageError(f"`{key}` is not for {name}, which reads as much as it was made for; leave it out")
            if value is not None and value < 1:
                raise UsageError(f"`{key}` = {value!r} is no number of tokens; give one of 4 or more")


USUAL = Lengths()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRef:
    """A model that was found by its name.

    Args:
        name: as it was given.
        kind: what it is: "lexical", a backbone as it comes ("untuned"), another library's ("foreign"), ours
            ("trained", "map", "sum", "popularity"), or the one that an index names.
        folder: of it, or of the index; None: it has none, or its backbone is looked up when it is opened.
        fingerprint: of the weights, as the folder says; empty: known once they are read.
        backend: what computes it.
        lengths: how much of a text is read.
        parts: the encoders of a sum, or the one under a map.
    """

    name: str
    kind: ModelKind
    folder: Path | None = None
    fingerprint: str = ""
    backend: Backend = "torch"
    lengths: Lengths = USUAL
    parts: tuple["ModelRef", ...] = ()

    @property
    def has_settable_lengths(self) -> bool:
        """Whether the user may say how much of a text is read; ours read what they were trained with."""
        return self.kind in ("untuned", "foreign")

    @property
    def backbone(self) -> str:
        """The name of an untuned model's backbone."""
        return self.name.removeprefix(UNTUNED)

    @property
    def lasting(self) -> str:
        """A name that means the same from any working directory."""
        return lasting_name(self.name)


def resolve_model(
    name: str | Path,
    *,
    backend: Backend = "torch",
    lengths: Lengths = USUAL,
    bare_hub_names: bool = True,
) -> ModelRef:
    """The model that a name means.

    Args:
        name: what ``polyrank.load`` takes; a Path is never a model of the Hub.
        backend: "torch", or an export that the model's folder has.
        lengths: how much of a text is read, of untuned and of other people's models.
        bare_hub_names: whether ``OWNER/MODEL`` may be the Hub, or only ``hf:OWNER/MODEL``.

    Raises:
        UsageError: there is no such model, or a setting is not for it.
        ArtifactError: its folder is damaged, or written by a later version.
        OfflineError: it is on the Hub, not stored on this machine, and there is no network.

    >>> resolve_model("bm25").kind, resolve_model("shipped:convert").kind
    ('lexical', 'trained')
    """
    ref = _resolved(str(name), backend, lengths, bare_hub_names and isinstance(name, str))
    lengths.check(str(name), ref.has_settable_lengths)
    return ref


def resolve_encoder(name: str | Path, *, backend: Backend = "torch", bare_hub_names: bool = True) -> ModelRef:
    """As ``resolve_model``, where vectors are wanted.

    Raises:
        UsageError: it is not there, or reads words.
    """
    if str(name) in LEXICAL:
        raise UsageError(
            f"{name} has no vectors and needs no index of them; give a Bi- or Poly-encoder, or put {name} over an"
            f" index's texts with: polyrank pipeline create INDEX --retriever {name}"
        )
    return resolve_model(name, backend=backend, bare_hub_names=bare_hub_names)


def resolve_encoder_of_index(built_with: str, moved: Path | None = None, *, backend: Backend = "torch") -> ModelRef:
    """The encoder of an index.

    Args:
        built_with: what the index says.
        moved: its folder, where that has moved.
        backend: of a model folder.

    Raises:
        UsageError: it is not there.
    """
    if not is_there(str(moved or built_with)):
        instead = f" and is to be searched with {moved}" if moved else ""
        raise UsageError(
            f"the index was built with {built_with}{instead}, which is not there; give the model's folder as `model`"
        )
    return resolve_encoder(moved or built_with, backend=backend)


def _resolved(name: str, backend: Backend, lengths: Lengths, bare: bool) -> ModelRef:
    own: dict[str, Any] = {"name": name, "backend": backend, "lengths": lengths}
    if name in LEXICAL:
        return ModelRef(kind="lexical", **own | {"backend": "torch"})
    if name.startswith(UNTUNED):
        _check_backend(name, backend)
        return ModelRef(kind="untuned", **own)
    if hub_name(name, bare=bare) is not None:
        folder = hub_folder(name)
    elif name and (folder := model_folder(name)).is_dir():
        pass
    else:
        near = get_close_matches(name, (*LEXICAL, "shipped:convert", "shipped:minilm"), n=1)
        hint = f"did you mean {near[0]}?" if near else NAMES
        raise UsageError(f"{name or 'an empty name'} is no model folder; {hint}")
    kind, document = read_model(folder)
    own |= {"folder": folder, "fingerprint": document.get("fingerprint", "")}
    match kind:
        case "training":
            raise UsageError(f"{name} is the folder of a training; give the model in it, {folder / 'model'}")
        case "pipeline" | "index" | "remote":
            raise UsageError(f"{name} answers from a catalogue and ranks no lists; polyrank.open and respond take it")
        case "foreign":
            _check_backend(name, backend)
            return ModelRef(kind="foreign", **own)
        case "popularity":
            return ModelRef(kind="popularity", **own | {"backend": "torch"})
        case "map":
            names, remedy = [resolved_name(document["encoder"], folder)], "fit the map again"
            return ModelRef(kind="map", parts=_parts(folder, names, backend, backend, remedy), **own)
        case "sum":
            names = [resolved_name(part["model"], folder) for part in document["parts"]]
            parts = _parts(folder, names, backend, "torch", "make the sum again")
            if backend != "torch" and not any(part.backend == backend for part in parts):
                raise UsageError(
                    f"none of the encoders of {folder} has an {backend} export ({', '.join(names)}); use the torch"
                    f" backend, or export one with: polyrank export MODEL --to {backend}"
                )
            return ModelRef(kind="sum", parts=parts, **own)
    return ModelRef(kind="trained", **own)


def _parts(folder: Path, names: list[str], backend: Backend, instead: Backend, remedy: str) -> tuple[ModelRef, ...]:
    """The encoders that a folder names, in another backend where they have no export to this one."""
    for name in names:
        if not is_there(name):
            raise UsageError(f"{folder} needs the encoder {name}, which is not there; put it back or {remedy}")
    own = [backend if has_export(model_folder(name), backend) else instead for name in names]
    return tuple(resolve_encoder(name, backend=each) for name, each in zip(names, own, strict=True))


def _check_backend(name: str, backend: Backend) -> None:
    if backend != "torch":
        raise UsageError(f"{name} has no {backend} export, only model folders of ours have; use the torch backend")


def read_sum(path: Path) -> dict[str, Any]:
    """What the folder of a sum says, with the names of its parts as seen from here; the parts are not looked at.

    Raises:
        ArtifactError: it is missing, damaged, or newer than this program.
    """
    document = read_document(path, SUM)
    for part in document["parts"]:
        part["model"] = resolved_name(part["model"], path)
    return document


def read_backend(name: str) -> Backend:
    """A backend by its name.

    Raises:
        UsageError: there is none of that name.
    """
    backend: Backend = read_choice(name, Backend, "backend")
    return backend


def export_folder(model: Path, backend: Backend) -> Path:
    """Where a model folder keeps its export."""
    return model / "backends" / backend


def has_export(model: Path, backend: Backend) -> bool:
    """Whether a model folder has such an export, sound or not."""
    return (export_folder(model, backend) / "export.json").is_file()


def is_there(name: str) -> bool:
    """Whether a model of that name can be looked for: it needs no folder, or has one.

    >>> is_there("untuned:embedded"), is_there("shipped:convert"), is_there("no/such/folder")
    (True, True, False)
    """
    return name.startswith(UNTUNED) or hub_name(name) is not None or model_folder(name).is_dir()


def lasting_name(name: str) -> str:
    """A name that means the same from any working directory.

    >>> lasting_name("untuned:embedded"), lasting_name("shipped:convert"), lasting_name("owner/model")
    ('untuned:embedded', 'shipped:convert', 'hf:owner/model')
    """
    prefix, path = _parted(name)
    if Path(path).is_dir():
        return prefix + str(Path(path).resolve())
    return prefix + HUB + path if hub_name(path) == path else name


def portable_name(name: str, folder: Path) -> str:
    """A name as a folder beside the model should remember it: the model's folder relative to ``folder``.

    >>> portable_name("untuned:embedded", Path("a/map"))
    'untuned:embedded'
    """
    prefix, path = _parted(name)
    return prefix + os.path.relpath(Path(path).resolve(), folder.resolve()) if Path(path).is_dir() else name


def resolved_name(name: str, folder: Path) -> str:
    """The inverse of ``portable_name``, for the folder where it now is.

    >>> resolved_name("untuned:embedded", Path("a/map"))
    'untuned:embedded'
    """
    prefix, path = _parted(name)
    there = (folder / path).resolve()
    # what went up to find its folder and no longer does must not find another from where the user happens to be
    return prefix + str(there) if there.is_dir() or path.startswith((os.pardir, os.curdir)) else name


def _parted(name: str) -> tuple[str, str]:
    return (UNTUNED, name.removeprefix(UNTUNED)) if name.startswith(UNTUNED) else ("", name)
