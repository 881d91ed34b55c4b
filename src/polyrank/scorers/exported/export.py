"""Make an export of a model folder, check it against fp32, and keep it only if it is faithful."""

import copy
from collections.abc import Sequence
from pathlib import Path

from polyrank.errors import ArtifactError
from polyrank.loading.models import Backend, export_folder
from polyrank.models import EncoderNetwork
from polyrank.models.artifacts import Artifact, load_model
from polyrank.records import Example
from polyrank.scorers.exported.agreement import (
    MAX_LOSS,
    MIN_COSINE,
    MIN_OVERLAP,
    Agreement,
    agreement,
    sample_lists,
    sample_texts,
    worst_cosine,
)
from polyrank.scorers.exported.folder import OURS, open_export, read_manifest, write_manifest
from polyrank.scorers.exported.graphs import write_graphs
from polyrank.scorers.exported.sessions import check_installed
from polyrank.scorers.load import make_scorer
from polyrank.storage.durable import check_replaceable, new_folder


def export_model(
    path: Path, backend: Backend, *, replace: bool = False, examples: Sequence[Example] = ()
) -> float | Agreement:
    """Write a model's export into the model folder, as ``backends/NAME``.

    The export is read back, run on the shipped sample's texts in this machine's precision, and compared with the
    network in fp32. An unfaithful export is not kept. An export in 8 bits is judged by its rankings.

    Args:
        path: the model folder.
        backend: "onnx", "onnx-int8" or "openvino".
        replace: whether an earlier export may be replaced.
        examples: lists on which 8 bits are judged; empty: those of the shipped sample.

    Returns:
        The worst cosine to fp32, see ``polyrank.scorers.exported.agreement.worst_cosine``; for 8 bits, the Agreement.

    Raises:
        UsageError: an export exists and ``replace`` is false, or the model is a ConveRT.
        MissingExtraError: a library is not installed.
        ArtifactError: the model is damaged, the worst cosine is below 0.999, or 8 bits rank differently.
        DataError: no example has two candidates to rank.
    """
    check_installed(backend)
    folder = export_folder(path, backend)
    check_replaceable(folder, own_files=OURS, replace=replace)
    artifact = load_model(path)
    with new_folder(folder, replace=replace, own_files=OURS) as temporary:
        model = copy.deepcopy(artifact.model)  # the reference below is the unchanged network
        model.read_first_outputs_only()
        graphs = write_graphs(model, temporary, backend)
        dimension = artifact.model.dimension if isinstance(artifact.model, EncoderNetwork) else 0
        write_manifest(temporary, backend=backend, fingerprint=artifact.fingerprint, dimension=dimension, graphs=graphs)
        return _check(path, temporary, backend, artifact, examples)


def check_export(path: Path, backend: Backend, examples: Sequence[Example] = ()) -> float | Agreement:
    """Compare a model's export with the network in fp32, on this machine.

    Returns:
        The worst cosine; for 8 bits, the Agreement.

    Raises:
        UsageError: the export does not exist.
        ArtifactError: the model or the export is damaged, or the export is stale or not faithful.
    """
    return _check(path, export_folder(path, backend), backend, load_model(path), examples)


def _check(
    path: Path, folder: Path, backend: Backend, artifact: Artifact, examples: Sequence[Example]
) -> float | Agreement:
    document = read_manifest(folder, model=path, backend=backend, fingerprint=artifact.fingerprint)
    reference = make_scorer(artifact.model, artifact.texts, device="cpu", precision="fp32")
    if backend == "onnx-int8":
        alike = agreement(reference, open_export(folder, document, artifact), examples or sample_lists())
        if not alike.kept:
            raise ArtifactError(
                f"{path} does not rank in 8 bits as in fp32: {alike}; R@1 may fall by {MAX_LOSS:.1%}, and"
                f" {MIN_OVERLAP:.0%} of the best ten must stay; export to onnx or openvino instead"
            )
        return alike
    worst = worst_cosine(reference, open_export(folder, document, artifact), *sample_texts())
    if worst < MIN_COSINE:
        other = "onnx" if backend == "openvino" else "openvino"
        raise ArtifactError(
            f"the {backend} export of {path} is not faithful: its worst cosine to fp32 is {worst:.4f}, the limit"
            f" is {MIN_COSINE}; export to {other}, set POLYRANK_PRECISION=fp32 against bf16, or use the torch backend"
        )
    return worst
