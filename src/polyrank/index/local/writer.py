"""Changes a local index: one writer at a time, all or nothing, durable before it is acknowledged. No torch.

A background thread rebuilds the matrix when enough rows were added and removed since; readers never wait for it.
"""

import dataclasses
import logging
import os
import shutil
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import numpy as np

from polyrank.errors import ArtifactError, LockedError, MissingExtraError, PolyrankError, ResourceError, UsageError
from polyrank.index import checks
from polyrank.index.local import lock, store
from polyrank.index.local.ann import check_library, read_kind
from polyrank.index.local.checked import CHECKED, is_checked, record_check
from polyrank.index.local.matrix import write_matrix
from polyrank.index.local.store import Meta
from polyrank.index.protocol import IndexWriter, check_fingerprint
from polyrank.loading.folders import INDEX_FILE
from polyrank.records import Candidate
from polyrank.storage import forks
from polyrank.storage.durable import AnyPath, check_replaceable, disk_error, new_folder, sync_folder
from polyrank.storage.quantized import Precision

INDEX_FILES = (
    INDEX_FILE,
    f"{INDEX_FILE}-*",
    lock.LOCK,
    CHECKED,
    "matrix-*",
    ".matrix-*",
)  # patterns of every file in an index folder
MIN_STALE, STALE_SHARE = 10_000, 0.2  # rows added and removed since the matrix was built; above both, it is rebuilt
ROWS_AT_A_TIME = 1024
BUSY_TIMEOUT_MS = 1000
_log = logging.getLogger(__name__)


def write_local(
    path: AnyPath,
    candidates: Sequence[Candidate],
    vectors: checks.Vectors | Iterable[checks.Vectors],
    *,
    fingerprint: str,
    model: str,
    ann: str = "",
    precision: Precision = "fp32",
    overwrite: bool = False,
) -> None:
    """Write an index folder, completely or not at all; see ``polyrank.index.write_index``."""
    target, kind = Path(path), read_kind(ann)  # checked now, although a small index does not use it until it has grown
    check_library(kind)
    check_replaceable(target, own_files=INDEX_FILES, replace=overwrite)
    if isinstance(vectors, np.ndarray):
        whole, faults = checks.as_vectors(vectors, len(candidates), None)
        checks.refuse(checks.vector_faults(whole) | faults | checks.candidate_faults(candidates))
        vectors = (whole[start : start + ROWS_AT_A_TIME] for start in range(0, max(len(whole), 1), ROWS_AT_A_TIME))
    else:
        checks.check_candidates(candidates)
    with ExitStack() as guard:
        if locked := overwrite and target.exists():
            lock.hold(guard, target)
        meta = Meta(fingerprint, model, dimension=0, change=1, ann=kind, precision=precision)
        with new_folder(target, replace=locked, own_files=INDEX_FILES) as folder:
            _write(folder, candidates, vectors, meta)
            if overwrite and not locked and target.exists():  # it may hold changes
                raise LockedError(f"another process has made {target} meanwhile; run it again to replace it")


def _write(folder: Path, candidates: Sequence[Candidate], parts: Iterable[checks.Vectors], meta: Meta) -> None:
    with closing(store.create(folder, meta)) as connection, store.sqlite_errors(folder):
        for part in parts:
            batch = candidates[meta.n : meta.n + len(part)]
            array, faults = checks.as_vectors(part, len(batch), meta.dimension or None)
            checks.refuse({meta.n + i: what for i, what in (checks.vector_faults(array) | faults).items()})
            meta = store.insert(connection, dataclasses.replace(meta, dimension=array.shape[1]), batch, array)
        checks.as_vectors([], len(candidates) - meta.n, None)  # raises unless every candidate has a vector
        meta = _write_new_matrix(connection, folder, meta)
        store.write_meta(connection, meta)
        store.finish(connection)
    lock.write_lock_file(folder, meta.change)
    record_check(folder, meta)


def _write_new_matrix(connection: sqlite3.Connection, path: Path, meta: Meta) -> Meta:
    """Write the matrix of the live rows in the connection's view; returns the Meta that names it."""
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
        LockedError: another writer has it open.
        ArtifactError: missing, damaged, or made by another encoder.
    """

    def __init__(self, path: AnyPath, *, fingerprint: str | None = None) -> None:
        self.path = Path(path)
        self._mutex = forks.new_rlock()
        self._compaction: threading.Thread | None = None
        self._failure: Exception | None = None
        self._open(fingerprint)
        forks.watch(self)

    def _open(self, fingerprint: str | None) -> None:
        """Take the lock and open the file."""
        self._inherited = False
        with ExitStack() as resources:
            store.check_exists(self.path)
            # lock before opening the file; otherwise an index that replaces this one meanwhile loses the changes
            self._lock = lock.hold(resources, self.path)
            self._connection = store.connect(self.path, write=True)
            resources.callback(self._connection.close)
            expected = lock.acknowledged_change(self.path)
            self._meta = self._checked_meta()
            self._n_stale = store.count_since(self._connection, self.path, self._meta.matrix_change)
            lock.check_acknowledged(self.path, self._meta.change, expected)
            check_fingerprint(self._meta.fingerprint, fingerprint, self.path)
            self._remove_leftovers()
            try:
                sync_folder(self.path)  # SQLite continues if the name of its new log cannot be made durable
            except OSError as error:
                raise disk_error(self.path, error) from error
            # ``close`` or garbage collection releases the file and the lock
            self._release = weakref.finalize(self, resources.pop_all().close)
            self._release.atexit = False  # a compaction may still be running

    def after_fork(self) -> None:
        """In a child process: leave the file and the lock to the parent. The next change takes its own."""
        if (resources := self._release.detach()) is not None:
            forks.abandon(resources)
            self._lock.leave()
        self._compaction, self._inherited = None, True

    def _checked_meta(self) -> Meta:
        """Check before any change: with a damaged table of ids, ``remove`` could miss a candidate."""
        with store.transaction(self._connection, self.path, write=False):
            meta = store.read_meta(self._connection, self.path)
            if is_checked(self.path, meta):
                return meta
            faults = [str(row[0]) for row in self._connection.execute("PRAGMA integrity_check(candidates)")]
            digests = [row[0] for row in self._connection.execute("SELECT digest FROM candidates")]
        if faults != ["ok"]:
            raise ArtifactError(f"{self.path / INDEX_FILE} is damaged ({faults[0]}); {store.REMEDY}")
        total = sum(int.from_bytes(digest, "little") for digest in digests if isinstance(digest, bytes))
        store.check_rows(self.path, meta, len(digests), total)
        return meta

    def _remove_leftovers(self) -> None:
        """Remove matrices of writers that died, and of compactions that failed."""
        for entry in self.path.iterdir():
            if entry.name.startswith((".matrix-", "matrix-")) and entry.name != self._meta.matrix:
                shutil.rmtree(entry, ignore_errors=True)

    @property
    def is_current(self) -> bool:
        return self._lock.is_current

    @property
    def is_compacting(self) -> bool:
        return self._compaction is not None and self._compaction.is_alive()

    def wait_compacted(self) -> None:
        if (running := self._compaction) is not None:
            running.join()

    @property
    def change(self) -> int:
        return self._meta.change

    @property
    def fingerprint(self) -> str:
        return self._meta.fingerprint

    def __len__(self) -> int:
        return self._meta.n

    def add(
        self,
        candidates: Sequence[Candidate],
        vectors: checks.Vectors | Sequence[checks.Vectors],
        *,
        replace: bool = False,
    ) -> int:
        """See ``IndexWriter``; adds all of them or, after any error, none."""
        with self._exclusive():
            # an empty index without a dimension adopts that of its first vectors
            array, faults = checks.as_vectors(vectors, len(candidates), self._meta.dimension or None)
            old_rows = store.row_numbers(self._connection, self.path, [candidate.id for candidate in candidates])
            if not replace:
                faults |= checks.id_faults(candidates, old_rows)
            checks.refuse(checks.vector_faults(array) | faults | checks.candidate_faults(candidates))
            if not candidates:
                return self._meta.change

            def change(meta: Meta) -> Meta:
                meta = store.delete(self._connection, meta, self.path, sorted(old_rows.values()))
                meta = dataclasses.replace(meta, dimension=array.shape[1])
                return store.insert(self._connection, meta, candidates, array)

            return self._commit(change, len(old_rows) + len(candidates)).change

    def remove(self, ids: Sequence[str]) -> int:
        with self._exclusive():
            old_rows = store.row_numbers(self._connection, self.path, ids)
            if old_rows:
                rows = sorted(old_rows.values())
                self._commit(lambda meta: store.delete(self._connection, meta, self.path, rows), len(rows))
            return len(old_rows)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Lock out other threads and read the state: an exception may have interrupted a commit that is durable."""
        with self._mutex:
            if self._inherited:
                self._open(self._meta.fingerprint)
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._meta = store.read_meta(self._connection, self.path)
            self._check_current()
            yield

    def _check_current(self) -> None:
        """Refuse changes that SQLite would write to the old folder, which nobody reads."""
        if not self.is_current:
            raise LockedError(f"{self.path} was moved, removed or replaced since it was opened; open it again")

    def find(self, ids: Sequence[str]) -> dict[str, Candidate]:
        with self._exclusive():
            return store.find(self._connection, self.path, ids)

    def _commit(self, change: Callable[[Meta], Meta], n_rows: int) -> Meta:
        """Apply a change that adds and removes this many rows."""
        with store.transaction(self._connection, self.path, write=True):
            meta = change(dataclasses.replace(self._meta, change=self._meta.change + 1))
            store.write_meta(self._connection, meta)
        self._meta = meta
        self._lock.acknowledge(meta.change)
        self._n_stale += n_rows
        with suppress(RuntimeError):  # the change is durable even if no thread can be started
            if self._n_stale > max(MIN_STALE, STALE_SHARE * meta.n):
                self._start_compaction()
        return meta

    def compact(self) -> None:
        """Rebuild the matrix from SQLite and wait for it. Readers use the old one until they refresh.

        Raises:
            ResourceError: the disk is full or failing; the old matrix stays in use.
            ArtifactError: a row is damaged.
        """
        with self._mutex:
            self._start_compaction()
        if (failure := self._join_compaction()) is not None:
            raise failure

    def _start_compaction(self) -> None:
        if not self.is_compacting:
            self._failure = None  # the new compaction makes up for an earlier failed one
            self._compaction = threading.Thread(target=self._compact, name="polyrank-compaction", daemon=True)
            self._compaction.start()

    def _compact(self) -> None:
        try:
            self._check_current()
            with store.reading(self.path) as connection:
                meta = store.read_meta(connection, self.path)
                try:
                    check_library(meta.ann)
                except MissingExtraError:  # searches work without; a compaction where it is installed builds it
                    meta = dataclasses.replace(meta, ann="")
                new = _write_new_matrix(connection, self.path, meta)
            with self._exclusive():
                old = self._meta.matrix
                with store.transaction(self._connection, self.path, write=True):
                    meta = dataclasses.replace(self._meta, matrix=new.matrix, matrix_change=new.matrix_change)
                    store.write_meta(self._connection, meta)
                    self._connection.execute("DELETE FROM removed WHERE change <= ?", (new.matrix_change,))
                self._meta = meta
                self._n_stale = store.count_since(self._connection, self.path, meta.matrix_change)
            if old:
                self._remove_matrix(self.path / old)
        except Exception as error:
            self._failure = error
            with suppress(PolyrankError, OSError), self._exclusive():  # the matrix may be written, and the disk full
                self._remove_leftovers()

    def _remove_matrix(self, matrix: Path) -> None:
        """Rename it first, so that readers find it missing as a whole, and open its successor."""
        with suppress(OSError):
            shutil.rmtree(matrix.rename(matrix.with_name(f".{matrix.name}")), ignore_errors=True)

    def _join_compaction(self) -> Exception | None:
        """Wait for a running compaction; returns the error that it failed with."""
        self.wait_compacted()
        failure, self._failure = self._failure, None
        return failure

    def snapshot(self, path: AnyPath) -> None:
        check_snapshot_path(self.path, path)
        with self._exclusive(), new_folder(Path(path)) as folder, store.sqlite_errors(self.path):
            with closing(sqlite3.connect(folder / INDEX_FILE, isolation_level=None)) as copy:
                try:
                    self._connection.backup(copy)
                except sqlite3.OperationalError as error:  # of either file
                    raise ResourceError(f"cannot copy {self.path} to {path}: {error}; free some space there") from error
            if self._meta.matrix and (self.path / self._meta.matrix).is_dir():
                (folder / self._meta.matrix).mkdir()
                for part in sorted((self.path / self._meta.matrix).iterdir()):
                    shutil.copyfile(part, folder / self._meta.matrix / part.name)
            lock.write_lock_file(folder, self._meta.change)

    def close(self) -> None:
        """Wait for a running compaction, write SQLite's log into the file, and release the lock.

        A full disk at this point is not the caller's concern, because all changes are durable; it is logged.
        """
        if not self._release.alive:
            return
        try:
            if (failure := self._join_compaction()) is not None:
                _log.warning("%s: rebuilding its matrix failed; polyrank tries again later: %s", self.path, failure)
            with self._mutex, store.sqlite_errors(self.path):
                self._connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")  # for readers in a transaction
                (busy, *_) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                meta = store.read_meta(self._connection, self.path)
                if not busy and self.is_current and not is_checked(self.path, meta):
                    record_check(self.path, meta)
        except ResourceError as error:
            _log.warning("%s: all changes are durable, but its log stays: %s", self.path, error)
        finally:
            self._release()


def check_snapshot_path(index: Path, path: AnyPath) -> None:
    """Refuse a snapshot to a path that exists or is inside the index, whose replacement would delete it.

    Raises:
        UsageError: the path exists or is inside the index.
    """
    if Path(path).exists():
        raise UsageError(f"{path} already exists; choose another path for the snapshot")
    if Path(path).resolve().is_relative_to(index.resolve()):
        raise UsageError(f"{path} is inside the index {index}; choose a path outside for the snapshot")
