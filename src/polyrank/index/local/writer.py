"""Changing an index: one writer at a time, all or nothing, durable before it is acknowledged. No torch.

The matrix is made anew in a background thread when enough was added and removed since; readers are never held up.
"""

import dataclasses
import logging
import os
import shutil
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np

from polyrank.errors import ArtifactError, MissingExtraError, UsageError
from polyrank.index.checks import (
    Vectors,
    as_vectors,
    candidate_faults,
    check_candidates,
    id_faults,
    refuse,
    vector_faults,
)
from polyrank.index.local import lock, store
from polyrank.index.local.ann import check_library, read_kind
from polyrank.index.local.matrix import write_matrix
from polyrank.index.local.store import FILE, Meta
from polyrank.index.protocol import IndexWriter, check_fingerprint
from polyrank.records import Candidate
from polyrank.storage.durable import AnyPath, check_replaceable, disk_error, new_folder, sync_folder, unwritable
from polyrank.storage.quantized import Precision

OURS = (FILE, f"{FILE}-*", lock.LOCK, "matrix-*", ".matrix-*")  # all that an index folder holds
MIN_STALE, STALE_SHARE = 10_000, 0.2  # rows added and removed since the matrix, beyond which it is made anew
ROWS_AT_A_TIME = 1024
PATIENCE_MS = 1000
_log = logging.getLogger(__name__)


def write_local(
    path: AnyPath,
    candidates: Sequence[Candidate],
    vectors: Vectors | Iterable[Vectors],
    *,
    fingerprint: str,
    model: str,
    ann: str = "",
    precision: Precision = "fp32",
    overwrite: bool = False,
) -> None:
    """Write an index folder, whole or not at all; see ``polyrank.index.write_index``."""
    target, kind = Path(path), read_kind(ann)  # at once: a small index has no use for it until it has grown
    check_library(kind)
    check_replaceable(target, own_files=OURS, replace=overwrite)
    if isinstance(vectors, np.ndarray):
        vectors, faults = as_vectors(vectors, len(candidates), None)
        refuse(vector_faults(vectors) | faults | candidate_faults(candidates))
        vectors = _slices(vectors)
    else:
        check_candidates(candidates)
    with ExitStack() as guard:
        if overwrite and (target / FILE).exists():
            _take(guard, target)
        meta = Meta(fingerprint, model, dimension=0, change=1, ann=kind, precision=precision)
        with new_folder(target, replace=overwrite, own_files=OURS) as folder:
            _write(folder, candidates, vectors, meta)


def _write(folder: Path, candidates: Sequence[Candidate], parts: Iterable[Vectors], meta: Meta) -> None:
    connection = store.create(folder, meta)
    try:
        with store.sqlite_errors(folder):
            for part in parts:
                batch = candidates[meta.n : meta.n + len(part)]
                array, faults = as_vectors(part, len(batch), meta.dimension or None)
                refuse({meta.n + i: what for i, what in (vector_faults(array) | faults).items()})
                meta = store.insert(connection, dataclasses.replace(meta, dimension=array.shape[1]), batch, array)
            as_vectors([], len(candidates) - meta.n, None)  # one vector for each candidate
            meta = _new_matrix(connection, folder, meta)
            store.write_meta(connection, meta)
            store.finish(connection)
    finally:
        connection.close()
    lock.write_lock(folder, meta.change)


def _slices(vectors: Vectors) -> Iterator[Vectors]:
    for start in range(0, max(len(vectors), 1), ROWS_AT_A_TIME):
        yield vectors[start : start + ROWS_AT_A_TIME]


def _new_matrix(connection: sqlite3.Connection, path: Path, meta: Meta) -> Meta:
    """Write the matrix of the live rows as the connection sees them; returns the Meta that names it."""
    name = f"matrix-{meta.change}-{os.urandom(4).hex()}"
    rows = ((row.row, row.vector) for row in store.scan_rows(connection, path))
    write_matrix(path / name, rows, meta)
    return dataclasses.replace(meta, matrix=name, matrix_change=meta.change)


class LocalWriter(IndexWriter):
    """Changes an index in a folder.

    Args:
        path: the index folder.
        fingerprint: of the encoder that makes the vectors; None: not checked.

    Raises:
        LockedError: another writer has it.
        ArtifactError: missing, damaged, or made by another encoder.
    """

    def __init__(self, path: AnyPath, *, fingerprint: str | None = None) -> None:
        self.path = Path(path)
        self._mutex = threading.RLock()
        self._compaction: threading.Thread | None = None
        self._failure: Exception | None = None
        with ExitStack() as resources:
            store.check_there(self.path)
            # before anything is opened: an index that is replaced meanwhile would be written to in vain
            self._lock = _take(resources, self.path)
            self._connection = store.connect(self.path, write=True)
            resources.callback(self._connection.close)
            expected = lock.acknowledged(self.path)
            self._meta = self._checked_meta()
            self._n_stale = store.count_since(self._connection, self.path, self._meta.matrix_change)
            lock.check_acknowledged(self.path, self._meta.change, expected)
            if fingerprint is not None:
                check_fingerprint(self._meta.fingerprint, fingerprint, self.path)
            self._sweep()
            try:
                sync_folder(self.path)  # SQLite goes on when the name of its new log cannot be made durable
            except OSError as error:
                raise disk_error(self.path, error) from error
            # ``close`` releases the file and the lock, or the collector where nobody calls it
            self._release = weakref.finalize(self, resources.pop_all().close)
            self._release.atexit = False  # a compaction may still be at work

    def _checked_meta(self) -> Meta:
        """A damaged list of ids could hide a candidate from ``remove``, so it is checked before anything is changed."""
        with store.transaction(self._connection, self.path, write=False):
            meta = store.read_meta(self._connection, self.path)
            faults = [str(row[0]) for row in self._connection.execute("PRAGMA integrity_check(candidates)")]
            digests = [row[0] for row in self._connection.execute("SELECT digest FROM candidates")]
        if faults != ["ok"]:
            raise ArtifactError(f"{self.path / FILE} is damaged ({faults[0]}); {store.REMEDY}")
        total = sum(int.from_bytes(digest, "little") for digest in digests if isinstance(digest, bytes))
        store.check_sum(self.path, meta, len(digests), total)
        return meta

    def _sweep(self) -> None:
        """Drop what writers that died have left."""
        for entry in self.path.iterdir():
            if entry.name.startswith((".matrix-", "matrix-")) and entry.name != self._meta.matrix:
                shutil.rmtree(entry, ignore_errors=True)

    @property
    def change(self) -> int:
        return self._meta.change

    @property
    def fingerprint(self) -> str:
        return self._meta.fingerprint

    def __len__(self) -> int:
        return self._meta.n

    def add(
        self, candidates: Sequence[Candidate], vectors: Vectors | Sequence[Vectors], *, replace: bool = False
    ) -> int:
        """See ``IndexWriter``; all of them or, with any error, none."""
        with self._turn():
            # an empty index of no dimension takes that of its first vectors
            array, faults = as_vectors(vectors, len(candidates), self._meta.dimension or None)
            old_rows = store.rows_of(self._connection, self.path, [candidate.id for candidate in candidates])
            if not replace:
                faults |= id_faults(candidates, old_rows)
            refuse(vector_faults(array) | faults | candidate_faults(candidates))
            if not candidates:
                return self._meta.change

            def change(meta: Meta) -> Meta:
                meta = store.delete(self._connection, meta, self.path, sorted(old_rows.values()))
                meta = dataclasses.replace(meta, dimension=array.shape[1])
                return store.insert(self._connection, meta, candidates, array)

            return self._commit(change, len(old_rows) + len(candidates)).change

    def remove(self, ids: Sequence[str]) -> int:
        with self._turn():
            old_rows = store.rows_of(self._connection, self.path, ids)
            if old_rows:
                rows = sorted(old_rows.values())
                self._commit(lambda meta: store.delete(self._connection, meta, self.path, rows), len(rows))
            return len(old_rows)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Alone, and sure of what is there: what interrupts a commit may come when it is durable already."""
        with self._mutex:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._meta = store.read_meta(self._connection, self.path)
            yield

    def find(self, ids: Sequence[str]) -> dict[str, Candidate]:
        with self._turn():
            return store.find(self._connection, self.path, ids)

    def _commit(self, change: Callable[[Meta], Meta], n_rows: int) -> Meta:
        """Make a change that adds and removes so many rows."""
        with store.transaction(self._connection, self.path, write=True):
            meta = change(dataclasses.replace(self._meta, change=self._meta.change + 1))
            store.write_meta(self._connection, meta)
        self._meta = meta
        self._lock.acknowledge(meta.change)
        self._n_stale += n_rows
        with suppress(RuntimeError):  # the change is durable, whether or not a thread can be had
            if self._n_stale > max(MIN_STALE, STALE_SHARE * meta.n):
                self._start_compaction()
        return meta

    def compact(self) -> None:
        """Make the matrix anew from the truth and wait for it. Readers go on with the old one until they refresh.

        Raises:
            ResourceError: the disk is full or failing; the old matrix is still in use.
            ArtifactError: a row is damaged.
        """
        with self._mutex:
            self._start_compaction()
        if (failure := self._waited()) is not None:
            raise failure

    def _start_compaction(self) -> None:
        if self._compaction is None or not self._compaction.is_alive():
            self._failure = None  # of one that this one makes up for
            self._compaction = threading.Thread(target=self._compact, name="polyrank-compaction", daemon=True)
            self._compaction.start()

    def _compact(self) -> None:
        try:
            reading = store.connect(self.path, write=False)
            try:
                with store.transaction(reading, self.path, write=False):
                    meta = store.read_meta(reading, self.path)
                    try:
                        check_library(meta.ann)
                    except MissingExtraError:  # searches do without; a compaction where it is installed makes it again
                        meta = dataclasses.replace(meta, ann="")
                    new = _new_matrix(reading, self.path, meta)
            finally:
                reading.close()
            with self._turn():
                old = self._meta.matrix
                with store.transaction(self._connection, self.path, write=True):
                    meta = dataclasses.replace(self._meta, matrix=new.matrix, matrix_change=new.matrix_change)
                    store.write_meta(self._connection, meta)
                    self._connection.execute("DELETE FROM removed WHERE change <= ?", (new.matrix_change,))
                self._meta = meta
                self._n_stale = store.count_since(self._connection, self.path, meta.matrix_change)
            self._drop(self.path / old) if old else None
        except Exception as error:
            self._failure = error

    def _drop(self, matrix: Path) -> None:
        """Readers that are about to open it find it gone as a whole, and look for its successor."""
        with suppress(OSError):
            gone = matrix.rename(matrix.with_name(f".{matrix.name}"))
            shutil.rmtree(gone, ignore_errors=True)

    def _waited(self) -> Exception | None:
        """What a compaction under way failed of, once it has ended."""
        if self._compaction is not None:
            self._compaction.join()
        failure, self._failure = self._failure, None
        return failure

    def snapshot(self, path: AnyPath) -> None:
        check_snapshot_path(path)
        with self._turn(), new_folder(Path(path)) as folder, store.sqlite_errors(self.path):
            copy = sqlite3.connect(folder / FILE, isolation_level=None)
            try:
                self._connection.backup(copy)
            finally:
                copy.close()
            if self._meta.matrix and (self.path / self._meta.matrix).is_dir():
                (folder / self._meta.matrix).mkdir()
                for part in sorted((self.path / self._meta.matrix).iterdir()):
                    shutil.copyfile(part, folder / self._meta.matrix / part.name)
            lock.write_lock(folder, self._meta.change)

    def close(self) -> None:
        """Wait for a compaction under way, fold the log into the file, and let others write."""
        try:
            if (failure := self._waited()) is not None:  # of one that nobody asked for: all changes are durable
                _log.warning("%s: its matrix was not made anew, which is tried again later: %s", self.path, failure)
            with self._mutex, store.sqlite_errors(self.path):
                self._connection.execute(f"PRAGMA busy_timeout={PATIENCE_MS}")  # for readers in the midst of it
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            self._release()


def check_snapshot_path(path: AnyPath) -> None:
    """Refuse a path that a snapshot must not take.

    Raises:
        UsageError: something is there already.
    """
    if Path(path).exists():
        raise UsageError(f"{path} already exists; choose another path for the snapshot")


def _take(resources: ExitStack, path: Path) -> lock.Lock:
    try:
        return resources.enter_context(lock.hold(path))
    except OSError as error:
        raise unwritable(path, error) from error
