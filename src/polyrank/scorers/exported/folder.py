"""An export on disk: graphs and export.json, in the folder ``backends/NAME`` of their model.

export.json holds the fingerprint of the model and the SHA-256 of every file, so that damaged exports and exports of
other weights are refused.
"""

from pathlib import Path
from typing import Any

import torch

from polyrank.config.models import CrossConfig
from polyrank.devices.choice import Precision, choose_dtype
from polyrank.errors import ArtifactError, UsageError
from polyrank.loading.models import Backend, export_folder
from polyrank.models.artifacts import Artifact, load_model
from polyrank.models.exported import ExportedCross, ExportedEncoder
from polyrank.ranking.relevance import RELEVANCE, Relevance
from polyrank.scorers.cross import CrossScorer
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.exported.sessions import open_session
from polyrank.storage.document import DocumentKind, check_part, has_document, read_document, seal
from polyrank.storage.durable import sha256_file

FILE = "export.json"
OURS = (FILE, "*.onnx", "*.xml", "*.bin")  # all files of an export


def write_manifest(folder: Path, *, backend: Backend, fingerprint: str, dimension: int, graphs: dict[str, str]) -> None:
    """Write export.json next to the graphs in a folder.

    Args:
        folder: of the export; every file in it is listed.
        backend: the runtime that reads it.
        fingerprint: of the model.
        dimension: D of the vectors; 0 for scores.
        graphs: file names by output.
    """
    document: dict[str, Any] = {
        "backend": backend,
        "fingerprint": fingerprint,
        "dimension": dimension,
        "graphs": graphs,
        "files": {entry.name: sha256_file(entry) for entry in sorted(folder.iterdir()) if entry.name != FILE},
    }
    (folder / FILE).write_bytes(seal(document, _kind(folder, backend)))


def read_manifest(folder: Path, *, model: Path, backend: Backend, fingerprint: str) -> dict[str, Any]:
    """Read export.json, and verify every file that it lists.

    Raises:
        UsageError: the export does not exist.
        ArtifactError: it is damaged, too new, or of other weights.
    """
    kind = _kind(model, backend)
    if not has_document(folder, kind):
        raise UsageError(f"{model} has no {backend} export; {kind.missing}")
    document = read_document(folder, kind)
    if document["fingerprint"] != fingerprint:
        raise ArtifactError(
            f"{folder} is stale: it was made from weights {document['fingerprint'][:12]}, the model's are"
            f" {fingerprint[:12]}; {kind.remedy}"
        )
    for name, digest in document["files"].items():
        check_part(folder / name, digest, kind)
    return document


def _kind(model: Path, backend: Backend) -> DocumentKind:
    command = f"polyrank export {model} --to {backend}"
    remedy = f"make it again with: {command} --overwrite"
    return DocumentKind(name=f"{backend} export", file=FILE, missing=f"make it with: {command}", remedy=remedy)


def load_exported(
    path: Path, backend: Backend, *, device: str = "auto", precision: Precision = "auto"
) -> EncoderScorer | CrossScorer:
    """A model folder as a Scorer that runs an exported graph; it is an Encoder unless the model is a Cross-encoder.

    Args:
        path: the model folder.
        backend: "onnx" or "openvino".
        device: "auto" or "cpu".
        precision: "auto" is bf16 if the runtime and the processor support it; "fp32", or "bf16" of "openvino".

    Raises:
        UsageError: the export does not exist, the device is not the CPU, or the runtime does not have the precision.
        MissingExtraError: the runtime is not installed.
        ArtifactError: the model or the export is damaged, or the export is of other weights.
    """
    if device not in ("auto", "cpu"):
        raise UsageError(f"backend {backend} computes on the CPU, not on {device}; use `device=cpu` or `backend=torch`")
    if precision not in (names := ("auto", "fp32", "bf16") if backend == "openvino" else ("auto", "fp32")):
        raise UsageError(
            f"backend {backend} does not compute in {precision}; use {' or '.join(names)}, or `backend=torch`"
        )
    artifact = load_model(path)
    folder = export_folder(path, backend)
    document = read_manifest(folder, model=path, backend=backend, fingerprint=artifact.fingerprint)
    scorer = open_export(folder, document, artifact, precision=precision)
    scorer.relevance = Relevance.read(artifact.metadata.get(RELEVANCE))
    return scorer


def open_export(
    folder: Path, document: dict[str, Any], artifact: Artifact, *, precision: Precision = "auto"
) -> EncoderScorer | CrossScorer:
    """A verified export as a Scorer.

    Args:
        folder: of the export.
        document: its export.json.
        artifact: its model.
        precision: see ``load_exported``.
    """
    texts, backend = artifact.texts, document["backend"]
    cpu = torch.device("cpu")
    dtype = choose_dtype(precision, cpu)
    runs = {name: open_session(folder / file, backend, dtype) for name, file in document["graphs"].items()}
    if isinstance(artifact.config, CrossConfig):
        return CrossScorer(ExportedCross(runs["pairs"]), texts, fingerprint=artifact.fingerprint, device=cpu)
    network = ExportedEncoder(runs.get("contexts"), runs["candidates"], document["dimension"])
    return EncoderScorer(network, texts, fingerprint=artifact.fingerprint, device=cpu)
