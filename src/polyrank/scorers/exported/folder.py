"""An export on disk: graphs and export.json, in the folder ``backends/NAME`` of the model that they were made from.

export.json carries the fingerprint of the model and the SHA-256 of every file, so a damaged export is refused, and so
is one of weights that the model no longer has.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from polyrank import __version__
from polyrank.config.models import CrossConfig
from polyrank.devices import Precision, choose_dtype
from polyrank.errors import ArtifactError, UsageError
from polyrank.models.artifacts import Artifact, load_model
from polyrank.models.exported import ExportedCross, ExportedEncoder
from polyrank.scorers.cross import CrossScorer
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.exported.sessions import Backend, open_session
from polyrank.storage.durable import sha256_file

FORMAT = 1
FILE = "export.json"


def export_folder(model: Path, backend: Backend) -> Path:
    """Where a model folder keeps its export."""
    return model / "backends" / backend


def write_manifest(folder: Path, *, backend: Backend, fingerprint: str, dimension: int, graphs: dict[str, str]) -> None:
    """Write export.json beside the graphs that are in a folder.

    Args:
        folder: of the export; every file in it counts.
        backend: which runtime reads it.
        fingerprint: of the model that it was made from.
        dimension: D of the vectors; 0 for scores.
        graphs: file names by what they compute.
    """
    document: dict[str, Any] = {
        "format": FORMAT,
        "written_by": __version__,
        "backend": backend,
        "fingerprint": fingerprint,
        "dimension": dimension,
        "graphs": graphs,
        "files": {entry.name: sha256_file(entry) for entry in sorted(folder.iterdir()) if entry.name != FILE},
    }
    document["checksum"] = _checksum(document)
    (folder / FILE).write_text(json.dumps(document, indent=2, sort_keys=True), "utf-8")


def read_manifest(folder: Path, *, model: Path, backend: Backend, fingerprint: str) -> dict[str, Any]:
    """export.json, checked together with every file that it names.

    Raises:
        UsageError: there is no such export.
        ArtifactError: it is damaged, too new, or of other weights.
    """
    remedy = f"make it again with: polyrank export {model} --to {backend} --overwrite"
    place = folder / FILE
    if not place.exists():
        raise UsageError(f"{model} has no {backend} export; make it with: polyrank export {model} --to {backend}")
    try:
        document: dict[str, Any] = json.loads(place.read_bytes())
        sound = document.get("checksum") == _checksum(document)
    except (ValueError, AttributeError) as error:
        raise ArtifactError(f"{place} is damaged ({error}); {remedy}") from error
    if not sound:
        raise ArtifactError(f"{place} is damaged: its checksum does not match; {remedy}")
    if document["format"] > FORMAT:
        raise ArtifactError(f"{place} is in format {document['format']}, this reads up to {FORMAT}; upgrade polyrank")
    if document["fingerprint"] != fingerprint:
        raise ArtifactError(
            f"{folder} is stale: it was made from weights {document['fingerprint'][:12]}, the model's are"
            f" {fingerprint[:12]}; {remedy}"
        )
    for name, digest in document["files"].items():
        if not (folder / name).exists() or sha256_file(folder / name) != digest:
            raise ArtifactError(f"{folder / name} is damaged or missing: its SHA-256 does not match; {remedy}")
    return document


def _checksum(document: dict[str, Any]) -> str:
    values = {key: value for key, value in document.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def load_exported(
    path: Path, backend: Backend, *, device: str = "auto", precision: Precision = "auto"
) -> EncoderScorer | CrossScorer:
    """A model folder as a Scorer that computes in an exported graph, and as an Encoder unless it is a Cross-encoder.

    Args:
        path: the model folder.
        backend: "onnx" or "openvino".
        device: "auto" or "cpu".
        precision: "auto" is bf16 where the runtime and the processor have it.

    Raises:
        UsageError: there is no such export, or the device is not the CPU.
        MissingExtraError: the runtime is not installed.
        ArtifactError: model or export are damaged, or the export is of other weights.
    """
    if device not in ("auto", "cpu"):
        raise UsageError(f"backend {backend} computes on the CPU, not on {device}; use --device cpu or --backend torch")
    found = load_model(path)
    folder = export_folder(path, backend)
    document = read_manifest(folder, model=path, backend=backend, fingerprint=found.fingerprint)
    return open_export(folder, document, found, precision=precision)


def open_export(
    folder: Path, document: dict[str, Any], found: Artifact, *, precision: Precision = "auto"
) -> EncoderScorer | CrossScorer:
    """An export whose files are known to be sound as a Scorer.

    Args:
        folder: of the export.
        document: its export.json.
        found: the model that it was made from.
        precision: see ``load_exported``.
    """
    texts = found.texts
    dtype = choose_dtype(precision, torch.device("cpu"))
    backend = document["backend"]
    runs = {name: open_session(folder / file, backend, dtype) for name, file in document["graphs"].items()}
    cpu = torch.device("cpu")
    if isinstance(found.config, CrossConfig):
        return CrossScorer(ExportedCross(runs["pairs"]), texts, fingerprint=found.fingerprint, device=cpu)
    network = ExportedEncoder(runs.get("contexts"), runs["candidates"], document["dimension"])
    return EncoderScorer(network, texts, fingerprint=found.fingerprint, device=cpu)
