"""Model folders: config.json, model.safetensors, tokenizer.json. They are written atomically and verified when read.

config.json holds the SHA-256 of the other two files and a checksum of itself, so a damaged file is refused before it is
parsed. No file is a pickle. A folder may leave out weights that are those of another model, its base. The fingerprint
identifies everything that the vectors of an index depend on. A README.md written by a training is not verified: readers
may edit it.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from polyrank.config.checked import from_dict, kind_from_dict, to_dict
from polyrank.config.models import CARD, MODEL, ModelConfig
from polyrank.config.names import model_folder
from polyrank.errors import ArtifactError, ConfigError, UsageError
from polyrank.loading.folders import is_hugging_face
from polyrank.loading.models import portable_name, resolved_name
from polyrank.models.build import empty_model, saved_texts
from polyrank.models.network import Network
from polyrank.models.transfer import common_weights
from polyrank.storage.document import check_part, checksum, read_document, seal
from polyrank.storage.durable import new_folder
from polyrank.storage.tensors import read_file, to_bytes
from polyrank.text import Texts

MODEL_FILES = (MODEL.file, "model.safetensors", "tokenizer.json", "backends", CARD)  # "backends" holds exports
SIGNATURE = "\n<!-- polyrank replaces this file as long as nobody edits it: {} -->\n"


@dataclass(frozen=True, slots=True)
class Artifact:
    """A model with everything that is needed to use it.

    Args:
        model: the network, on the CPU, in evaluation mode when loaded.
        texts: its tokenized text policy.
        config: resolved settings.
        fingerprint: hex digest of settings, weights and tokenizer.
        metadata: written by the training, such as its recipe.
    """

    model: Network
    texts: Texts
    config: ModelConfig
    fingerprint: str
    metadata: dict[str, Any]


def save_model(
    path: Path,
    model: Network,
    texts: Texts,
    config: ModelConfig,
    *,
    metadata: dict[str, Any] | None = None,
    replace: bool = False,
    half: bool = False,
    base: str | None = None,
) -> str:
    """Write a model folder atomically.

    Args:
        path: of the folder.
        model, texts, config: the model.
        metadata: of its origin; not part of the fingerprint.
        replace: whether an existing model folder may be replaced.
        half: store weights in 16 bits (float16), which rounds them.
        base: the name of a model; weights equal to its weights are left out, and the folder needs it from then on.

    Returns:
        The model's fingerprint.

    Raises:
        UsageError: the folder exists and ``replace`` is false.
        ResourceError: the disk is full.
    """
    tensors, needs = model.stored(), {}
    if base is not None:
        other = load_model(model_folder(base))
        shared = common_weights(model, other.model)
        tensors = {
            name: value for name, value in tensors.items() if name not in shared or not torch.equal(value, shared[name])
        }
        needs = {"base": {"model": portable_name(base, path), "fingerprint": other.fingerprint}}
    if half:
        tensors = {name: value.half() if value.is_floating_point() else value for name, value in tensors.items()}
    files = {"model.safetensors": to_bytes(tensors), "tokenizer.json": texts.subwords.to_bytes()}
    document: dict[str, Any] = {
        "model": to_dict(config),
        "text": asdict(texts.policy),
        "backbone": _plain(model.shape()),
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
        "metadata": metadata or {},
        **needs,
    }
    fingerprint = checksum({key: document[key] for key in ("model", "text", "backbone", "files", *needs)})
    whole = seal({**document, "fingerprint": fingerprint}, MODEL)
    with new_folder(path, replace=replace, own_files=MODEL_FILES) as folder:
        keep_edited_card(path, folder)
        for name, data in files.items():
            (folder / name).write_bytes(data)
        (folder / MODEL.file).write_bytes(whole)
    return fingerprint


def sign_card(text: str) -> str:
    """A card with a checksum at its end, which reveals whether somebody has edited it."""
    return text + SIGNATURE.format(hashlib.sha256(text.encode()).hexdigest())


def signed(folder: Path) -> bool:
    """Whether a model folder has a card that polyrank wrote and nobody edited."""
    try:
        card = (folder / CARD).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return card == sign_card(card[: -len(sign_card(""))])


def keep_edited_card(old: Path, new: Path) -> None:
    """Copy the card of a model folder that will be replaced, unless polyrank wrote it and nobody edited it."""
    if (old / CARD).is_file() and not signed(old):
        shutil.copyfile(old / CARD, new / CARD)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """A backbone's configuration without paths and versions, so that equal models have equal fingerprints."""
    drop = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "architectures")
    return {key: value for key, value in json.loads(json.dumps(values, default=str)).items() if key not in drop}


def read_config(path: Path) -> dict[str, Any]:
    """A model folder's verified config.json.

    Raises:
        ArtifactError: the file is missing, damaged, or written by a later version.
    """
    if is_hugging_face(path):
        raise ArtifactError(
            f"{path} is a Hugging Face model, which can rank, be evaluated and fill an index, but this needs a polyrank"
            f" model folder; train one with model.backbone = {str(path)!r}"
        )
    return read_document(path, MODEL)


def load_model(path: Path, *, dropout: float | None = None) -> Artifact:
    """Read a model folder; every byte is verified before it is parsed.

    Args:
        path: the folder.
        dropout: for further training, see ``new_model``; None: the dropout that it was trained with.

    Raises:
        ArtifactError: a file is missing, damaged, or written by a later version.
    """
    document = read_config(path)
    for name, digest in document["files"].items():
        check_part(path / name, digest, MODEL)
    try:
        config: ModelConfig = kind_from_dict(ModelConfig, document["model"], "model")
        policy = from_dict(config.text_kind, document["text"], "text")
    except ConfigError as error:
        raise ArtifactError(f"{path / 'config.json'}: {error}") from error
    model = empty_model(config, document["backbone"], dropout)
    tensors = read_file(path / "model.safetensors")[0]
    if "base" in document:
        common = common_weights(model, _base(path, document["base"]))
        tensors = {name: common[name] for name in model.stored() if name in common} | tensors
    model.restore(tensors)
    tokenizer = path / "tokenizer.json"
    texts = saved_texts(model, policy, tokenizer.read_bytes(), str(tokenizer))
    return Artifact(model.eval(), texts, config, document["fingerprint"], document["metadata"])


def _base(path: Path, needed: dict[str, str]) -> Network:
    """The network whose weights a folder left out.

    Raises:
        ArtifactError: it is missing, or has changed since.
    """
    name = resolved_name(needed["model"], path)
    remedy = f"{path} holds only what differs from {name}, which {{}}; install both again, from the same version"
    try:
        folder = model_folder(name)
    except UsageError as error:  # it ships, but is not installed
        raise ArtifactError(remedy.format("is missing")) from error
    if not folder.is_dir():
        raise ArtifactError(remedy.format("is missing"))
    base = load_model(folder)
    if base.fingerprint != needed["fingerprint"]:
        raise ArtifactError(remedy.format("has changed since"))
    return base.model


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """A group of a model's stored tensors.

    Args:
        name: the first part of the tensors' names.
        n_parameters: how many numbers, including stored buffers such as a scale.
        n_bytes: their size in the file.
        dtypes: their types, such as "fp16".
    """

    name: str
    n_parameters: int
    n_bytes: int
    dtypes: tuple[str, ...]


def read_sizes(path: Path) -> list[TensorGroup]:
    """The groups of a model folder's verified weights, sorted by name.

    Raises:
        ArtifactError: the folder is not a model folder, or its weights are damaged.
    """
    weights = check_part(path / "model.safetensors", read_config(path)["files"].get("model.safetensors"), MODEL)
    return sizes_of(read_file(weights)[0])


def sizes_of(tensors: Mapping[str, torch.Tensor]) -> list[TensorGroup]:
    """The groups of some weights, sorted by name."""
    groups: dict[str, list[torch.Tensor]] = {}
    for name, tensor in tensors.items():
        groups.setdefault(name.partition(".")[0], []).append(tensor)
    return [
        TensorGroup(
            name,
            sum(tensor.numel() for tensor in tensors),
            sum(tensor.nbytes for tensor in tensors),
            tuple(sorted({dtype_name(tensor.dtype) for tensor in tensors})),
        )
        for name, tensors in sorted(groups.items())
    ]


def dtype_name(dtype: torch.dtype) -> str:
    """A type as polyrank names it.

    >>> dtype_name(torch.bfloat16), dtype_name(torch.float32), dtype_name(torch.int8)
    ('bf16', 'fp32', 'int8')
    """
    return str(dtype).removeprefix("torch.").replace("bfloat", "bf").replace("float", "fp")
