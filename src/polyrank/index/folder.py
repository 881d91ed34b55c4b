"""The index: an immutable folder of candidates and their vectors, written whole, verified before it is read.

index.json         format, encoder's fingerprint, sizes and SHA-256 of the rest, and a checksum of itself
candidates.jsonl   id, text and metadata, in row order
vectors.npy        float32 [N, D], memory-mapped read-only
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank import __version__
from polyrank.durable import new_folder, sha256_file
from polyrank.errors import ArtifactError, DataError
from polyrank.records import Candidate

FORMAT = 1
MAX_TEXT_CHARACTERS = 100_000
PARTS = ("candidates.jsonl", "vectors.npy")


@dataclass(frozen=True, slots=True)
class Index:
    """An open index.

    Args:
        path: its folder.
        candidates: in row order.
        vectors: ``[N, D]``, read-only.
        document: index.json.
    """

    path: Path
    candidates: tuple[Candidate, ...]
    vectors: NDArray[np.float32]
    document: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """Of the encoder that made the vectors."""
        return str(self.document["fingerprint"])

    def info(self) -> dict[str, Any]:
        """What it holds, ready for JSON."""
        return {key: value for key, value in self.document.items() if key != "checksum"}


def write_index(
    path: Path,
    candidates: Sequence[Candidate],
    vectors: NDArray[np.float32],
    *,
    fingerprint: str,
    model: str,
    replace: bool = False,
) -> None:
    """Write an index folder, whole or not at all.

    Args:
        path: the folder to make.
        candidates: with distinct ids and texts that are not empty.
        vectors: ``[N, D]``, one per candidate, finite and not zero.
        fingerprint: of the encoder.
        model: where the encoder's folder is, for whoever opens the index.
        replace: whether an existing index may be replaced.

    Raises:
        DataError: names the first five faulty candidates by position; nothing is written.
    """
    problems = list(_problems(candidates, vectors))
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise DataError(f"{'; '.join(problems[:5])}{more}; correct them, nothing was written")
    matrix = np.ascontiguousarray(vectors, dtype=np.float32)
    with new_folder(path, replace=replace) as folder:
        lines = (
            json.dumps({"id": c.id, "text": c.text, "metadata": c.metadata}, ensure_ascii=False) for c in candidates
        )
        (folder / "candidates.jsonl").write_text("".join(line + "\n" for line in lines), "utf-8")
        np.save(folder / "vectors.npy", matrix)
        document: dict[str, Any] = {
            "format": FORMAT,
            "written_by": __version__,
            "fingerprint": fingerprint,
            "model": model,
            "n": len(candidates),
            "dimension": int(matrix.shape[1]),
            "files": {name: sha256_file(folder / name) for name in PARTS},
        }
        document["checksum"] = _checksum(document)
        (folder / "index.json").write_text(json.dumps(document, indent=2, sort_keys=True), "utf-8")


def _problems(candidates: Sequence[Candidate], vectors: NDArray[np.float32]) -> list[str]:
    if vectors.ndim != 2 or len(vectors) != len(candidates):
        return [f"{len(candidates)} candidates came with vectors of shape {vectors.shape}"]
    found: list[str] = []
    seen: dict[str, int] = {}
    finite: NDArray[np.bool_] = np.asarray(np.isfinite(vectors).all(1))
    zero: NDArray[np.bool_] = np.asarray(~vectors.any(1))
    for place, candidate in enumerate(candidates):
        what = None
        if candidate.id in seen:
            what = f"id {candidate.id!r} is that of candidate {seen[candidate.id]} too"
        elif not candidate.text.strip():
            what = "its text is empty"
        elif len(candidate.text) > MAX_TEXT_CHARACTERS:
            what = f"its text has {len(candidate.text):,} characters, the limit is {MAX_TEXT_CHARACTERS:,}"
        elif not finite[place]:
            what = "its vector holds NaN or infinity"
        elif zero[place]:
            what = "its vector is zero"
        seen.setdefault(candidate.id, place)
        if what:
            found.append(f"candidate {place}: {what}")
    return found


def _checksum(document: dict[str, Any]) -> str:
    rest = {key: value for key, value in document.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _read_document(path: Path) -> dict[str, Any]:
    place = path / "index.json"
    try:
        document = json.loads(place.read_bytes())
        version = document["format"]
    except FileNotFoundError as error:
        raise ArtifactError(f"{path} is no index: it has no index.json; build one with polyrank index build") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{place} is damaged ({error}); build the index again") from error
    if isinstance(version, int) and version > FORMAT:
        raise ArtifactError(
            f"{place}: written by polyrank {document.get('written_by')} in format {version}, this reads up to {FORMAT};"
            " upgrade polyrank"
        )
    if document.get("checksum") != _checksum(document):
        raise ArtifactError(f"{place} is damaged: its checksum does not match; build the index again")
    return dict(document)


def verify_index(path: Path) -> list[str]:
    """Everything that is wrong with an index, as sentences; empty when it is sound."""
    try:
        document = _read_document(path)
    except ArtifactError as error:
        return [str(error)]
    problems = []
    for name, digest in document["files"].items():
        if not (path / name).exists():
            problems.append(f"{path / name} is missing; build the index again")
        elif sha256_file(path / name) != digest:
            problems.append(f"{path / name} is damaged: its SHA-256 does not match index.json; build the index again")
    return problems


def open_index(path: Path, *, fingerprint: str | None = None) -> Index:
    """Open an index; every byte is verified before it is parsed.

    Args:
        path: the folder.
        fingerprint: of the encoder that will query it; None: not checked now.

    Raises:
        ArtifactError: missing, damaged, too new, or made by another encoder.
    """
    problems = verify_index(path)
    if problems:
        raise ArtifactError(problems[0])
    document = _read_document(path)
    if fingerprint is not None:
        check_fingerprint(document["fingerprint"], fingerprint, path)
    rows = [json.loads(line) for line in (path / "candidates.jsonl").read_text("utf-8").split("\n") if line]
    candidates = tuple(Candidate(row["id"], row["text"], row["metadata"]) for row in rows)
    # an empty array cannot be mapped
    mode = "r" if document["n"] and document["dimension"] else None
    return Index(path, candidates, np.load(path / "vectors.npy", mmap_mode=mode, allow_pickle=False), document)  # type: ignore[arg-type]


def check_fingerprint(of_index: str, of_encoder: str, path: Path) -> None:
    """Refuse to compare vectors of two encoders.

    Raises:
        ArtifactError: with both fingerprints.
    """
    if of_index != of_encoder:
        raise ArtifactError(
            f"{path} was made by encoder {of_index[:16]}, and this one is {of_encoder[:16]}; build the index again"
        )
