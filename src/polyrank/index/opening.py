"""An index by its path, of whatever kind: the only module that tells kinds apart. No torch."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from polyrank.errors import UsageError
from polyrank.index.checks import Vectors
from polyrank.index.local import LocalIndex, LocalWriter, local_problems, write_local
from polyrank.index.local.writer import OURS
from polyrank.index.protocol import Index, IndexWriter, check_fingerprint
from polyrank.index.remote import Address, RemoteIndex, RemoteWriter, remote_problems, write_remote
from polyrank.index.remote.address import OURS as OURS_REMOTE
from polyrank.loading.folders import FolderKind, folder_kind
from polyrank.records import Candidate
from polyrank.storage.durable import AnyPath, check_replaceable
from polyrank.storage.quantized import Precision


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of index.

    Args:
        files: all that its folder holds.
        index, catalogue, writer: open it to search it, to look candidates up, and to change it.
        problems: everything that is wrong with one, as sentences.
    """

    files: Sequence[str]
    index: Callable[[Path], Index]
    catalogue: Callable[[Path], Index]
    writer: Callable[..., IndexWriter]
    problems: Callable[[Path], list[str]]


LOCAL = Kind(OURS, LocalIndex, partial(LocalIndex, searched=False), LocalWriter, local_problems)
KINDS: dict[FolderKind, Kind] = {
    "index": LOCAL,
    "remote": Kind(OURS_REMOTE, RemoteIndex, RemoteIndex, RemoteWriter, remote_problems),
}


def _kind_of(path: AnyPath) -> Kind:
    """The kind of a folder; of one that is not an index, the local one, whose errors say so."""
    return KINDS.get(folder_kind(Path(path)), LOCAL)


def is_index(path: AnyPath) -> bool:
    """Whether a folder is that of an index."""
    return folder_kind(Path(path)) in KINDS


def open_index(path: AnyPath, *, fingerprint: str | None = None) -> Index:
    """Open an index for searching; what is read is verified first.

    Args:
        path: the folder.
        fingerprint: of the encoder that will query it; None: not checked now.

    Raises:
        ArtifactError: missing, damaged, too new, or made by another encoder.
        OfflineError: it is on a server, which does not answer.
    """
    index = _kind_of(path).index(Path(path))
    if fingerprint is not None:
        check_fingerprint(index.fingerprint, fingerprint, index.path)
    return index


def open_catalogue(path: AnyPath) -> Index:
    """Open an index to look candidates up, which reads no vectors; it cannot be searched.

    Raises:
        ArtifactError: missing, damaged or too new.
        OfflineError: it is on a server, which does not answer.
    """
    return _kind_of(path).catalogue(Path(path))


def open_writer(path: AnyPath, *, fingerprint: str | None = None) -> IndexWriter:
    """Open an index to change it, as the only one of this machine.

    Args:
        path: the folder.
        fingerprint: of the encoder that makes the vectors; None: not checked.

    Raises:
        LockedError: another writer has it.
        ArtifactError: missing, damaged, or made by another encoder.
        OfflineError: it is on a server, which does not answer.
    """
    return _kind_of(path).writer(Path(path), fingerprint=fingerprint)


def verify_index(path: AnyPath) -> list[str]:
    """Read every byte that matters; empty when the index is sound."""
    return _kind_of(path).problems(Path(path))


def check_target(
    path: AnyPath, *, precision: Precision = "fp32", remote: str | None = None, overwrite: bool = False
) -> None:
    """Refuse a place where no index can be written, before anything is encoded; see ``write_index``.

    Raises:
        UsageError: something is at the path, or the server's address cannot be read.
    """
    if remote is not None:
        Address.of(remote)
        if precision != "fp32":
            raise UsageError(f"a remote index holds fp32, not {precision}; leave the precision out")
    check_replaceable(Path(path), own_files=KINDS["index" if remote is None else "remote"].files, replace=overwrite)


def write_index(
    path: AnyPath,
    candidates: Sequence[Candidate],
    vectors: Vectors | Iterable[Vectors],
    *,
    fingerprint: str,
    model: str,
    ann: str = "",
    precision: Precision = "fp32",
    remote: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write an index, whole or not at all.

    Args:
        path: the folder to make.
        candidates: with distinct ids and texts that are not empty; metadata that JSON can hold.
        vectors: ``[N, D]``, one for each, finite and not zero; or an iterable of arrays ``[n, D]``, so that they need
            not all be in memory.
        fingerprint: of the encoder.
        model: where the encoder's folder is, for whoever opens the index.
        ann: kind of inner-product index to keep with the vectors ("auto": by size); empty for none. Approximate
            searches use it. Of a remote index: "" or "flat": the server compares every vector; "hnsw": it walks a
            graph, and nothing is proven.
        precision: vectors are rounded to it when they are stored, and every search, exact ones too, is of what is
            stored: "bf16" takes half the space, "int8" about a quarter.
        remote: where candidates and vectors live, ``http://HOST:PORT/COLLECTION`` of a Milvus server; the folder then
            only names it.
        overwrite: whether an existing index may be replaced.

    Raises:
        DataError: names the first five faulty candidates by position; nothing is written.
        UsageError: something is at ``path``, there is no such kind of inner-product index, or its library is missing.
        LockedError: another process is writing to the index that would be replaced.
        ResourceError: the disk is full; an earlier index is intact.
        OfflineError: the server does not answer.
    """
    check_target(path, precision=precision, remote=remote, overwrite=overwrite)
    write = partial(write_local, path, precision=precision)
    if remote is not None:
        write = partial(write_remote, path, Address.of(remote))
    write(candidates, vectors, fingerprint=fingerprint, model=model, ann=ann, overwrite=overwrite)
