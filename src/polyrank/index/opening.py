"""Opens an index of any kind by its path: the only module that distinguishes kinds. No torch."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from polyrank.errors import LockedError, UsageError
from polyrank.index.checks import Vectors
from polyrank.index.local import LocalIndex, LocalWriter, local_problems, write_local
from polyrank.index.local.writer import INDEX_FILES
from polyrank.index.protocol import Index, IndexWriter, check_fingerprint
from polyrank.index.remote import Address, RemoteIndex, RemoteWriter, remote_problems, write_remote
from polyrank.index.remote.address import FOLDER_FILES
from polyrank.index.remote.stores import read_columns
from polyrank.loading.folders import FolderKind, folder_kind
from polyrank.records import Candidate
from polyrank.storage.durable import AnyPath, check_replaceable
from polyrank.storage.quantized import Precision

POLL_S = 0.005  # between two attempts to become the writer


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of index.

    Args:
        files: patterns of every file that its folder may contain.
        index, catalogue, writer: functions that open it to search, to look up candidates, and to change it.
        problems: a function that lists everything wrong with it, one sentence each.
    """

    files: Sequence[str]
    index: Callable[[Path], Index]
    catalogue: Callable[[Path], Index]
    writer: Callable[..., IndexWriter]
    problems: Callable[[Path], list[str]]


FITTED = "index"
"""The index in the folder of a fit."""
LOCAL = Kind(INDEX_FILES, LocalIndex, partial(LocalIndex, searched=False), LocalWriter, local_problems)
KINDS: dict[FolderKind, Kind] = {
    "index": LOCAL,
    "remote": Kind(FOLDER_FILES, RemoteIndex, RemoteIndex, RemoteWriter, remote_problems),
}


def _located(path: AnyPath) -> tuple[Kind, Path]:
    """The kind and the folder of an index: the given one, or ``index`` in a folder of ``polyrank fit``.

    "local" for a folder that is not an index, because its errors explain that.
    """
    folder = Path(path)
    if folder_kind(folder) == "other" and folder_kind(folder / "ranker") == "ranker":
        folder /= FITTED
    return KINDS.get(folder_kind(folder), LOCAL), folder


def is_index(path: AnyPath) -> bool:
    """Whether a folder is an index, or holds one that ``polyrank fit`` made."""
    return folder_kind(_located(path)[1]) in KINDS


def open_index(path: AnyPath, *, fingerprint: str | None = None) -> Index:
    """Open an index for searching; everything that is read is verified first.

    Args:
        path: the folder.
        fingerprint: of the encoder that will encode the queries; None: not checked.

    Raises:
        ArtifactError: missing, damaged, too new, or made by another encoder.
        OfflineError: the index is on a server that does not answer.
    """
    kind, folder = _located(path)
    with ExitStack() as opened:
        index = opened.enter_context(kind.index(folder))
        check_fingerprint(index.fingerprint, fingerprint, index.path)
        opened.pop_all()
    return index


def open_catalogue(path: AnyPath) -> Index:
    """Open an index to look up candidates. It reads no vectors and cannot be searched.

    Raises:
        ArtifactError: missing, damaged or too new.
        OfflineError: the index is on a server that does not answer.
    """
    kind, folder = _located(path)
    return kind.catalogue(folder)


def open_writer(path: AnyPath, *, fingerprint: str | None = None, wait_s: float = 0.0) -> IndexWriter:
    """Open an index to change it, as the only writer on this machine.

    Args:
        path: the folder.
        fingerprint: of the encoder that makes the vectors; None: not checked.
        wait_s: seconds to wait while another writer has it open.

    Raises:
        LockedError: another writer still has it open.
        ArtifactError: missing, damaged, or made by another encoder.
        OfflineError: the index is on a server that does not answer.
    """
    kind, folder = _located(path)
    end = time.monotonic() + wait_s
    while True:
        try:
            return kind.writer(folder, fingerprint=fingerprint)
        except LockedError:
            if time.monotonic() >= end:
                raise
        time.sleep(POLL_S)


def verify_index(path: AnyPath) -> list[str]:
    """Read every byte that matters and list the problems; empty if the index is sound."""
    kind, folder = _located(path)
    return kind.problems(folder)


def check_target(
    path: AnyPath,
    *,
    precision: Precision = "fp32",
    remote: str | None = None,
    partition_by: str = "",
    overwrite: bool = False,
) -> None:
    """Check that an index can be written at a path, before anything is encoded; see ``write_index``.

    Raises:
        UsageError: the path already exists, or the server's address is invalid.
    """
    if remote is None and partition_by:
        raise UsageError(f"`partition_by` is {partition_by!r}, and a local index is one part; leave it out")
    if remote is not None:
        read_columns(partition_by, Address.of(remote))
        if precision != "fp32":
            raise UsageError(f"a remote index holds fp32, not {precision}; omit the precision")
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
    partition_by: str = "",
    overwrite: bool = False,
) -> None:
    """Write an index, completely or not at all.

    Args:
        path: the folder to make.
        candidates: with distinct ids, non-empty texts, and metadata that JSON can represent.
        vectors: ``[N, D]``, one row per candidate, finite and not zero; or an iterable of arrays ``[n, D]``, so that
            they need not all fit in memory.
        fingerprint: of the encoder.
        model: path of the encoder's folder, stored for processes that open the index.
        ann: kind of inner-product index to store with the vectors, for approximate searches ("auto": by size); empty:
            none. For a remote index: "" or "flat": the server compares every vector; "hnsw", "sq8", "ivfpq" and
            "diskann": it lists candidates approximately, and results are approximate.
        precision: vectors are rounded to it when they are stored, and every search, also an exact one, uses the
            stored vectors: "bf16" takes half the space of fp32, "int8" about a quarter.
        remote: the server that stores candidates and vectors, such as ``http://HOST:PORT/NAME`` of Milvus; the folder
            then only names it. See docs/remote.md.
        partition_by: the metadata field, written as in a filter, that divides a remote index: a search with a filter
            such as ``lang = "en"`` then reads the candidates of that value only; empty: it is not divided.
        overwrite: whether an existing index may be replaced.

    Raises:
        DataError: names the first five invalid candidates by position; nothing is written.
        UsageError: ``path`` already exists, the kind of inner-product index is unknown, or its library is missing.
        LockedError: another process is writing to the index that would be replaced, or has made one at ``path``
            meanwhile.
        ResourceError: the disk is full; an earlier index is intact.
        OfflineError: the server does not answer.
    """
    check_target(path, precision=precision, remote=remote, partition_by=partition_by, overwrite=overwrite)
    write = partial(write_local, path, precision=precision)
    if remote is not None:
        write = partial(write_remote, path, Address.of(remote), partition_by=partition_by)
    write(candidates, vectors, fingerprint=fingerprint, model=model, ann=ann, overwrite=overwrite)
