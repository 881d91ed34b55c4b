"""Changes a remote index: checks before the first request, acknowledges after the last. No torch."""

import json
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from math import inf
from pathlib import Path

import numpy as np

from polyrank.errors import PolyrankError, UsageError
from polyrank.index.checks import Vectors, as_vectors, candidate_faults, check_candidates, id_faults, refuse
from polyrank.index.protocol import IndexWriter, check_fingerprint
from polyrank.index.remote.address import FOLDER_FILES, LOCK, Address, read_address, write_address
from polyrank.index.remote.reader import CollectionInfo, RemoteIndex
from polyrank.index.remote.rows import ROWS_AT_A_TIME, key_of, make_rows, request_batches, stored_width
from polyrank.index.remote.store import TIMEOUT_S
from polyrank.index.remote.stores import open_store, read_columns, read_kind
from polyrank.records import Candidate
from polyrank.storage import lock
from polyrank.storage.durable import AnyPath, check_replaceable, unwritable


class RemoteWriter(IndexWriter):
    """Changes a remote index.

    A lock in the folder lets one writer work at a time. Writers that use other folders for the same collection must
    take turns: if two write the same id at once, the server keeps one of them. Requests are repeated while the server
    is unreachable and time is left.

    Changes of more than a few hundred candidates need several requests, and the server has no transaction over them.
    If one fails, the earlier ones stay applied; making the same change again completes it.

    Args:
        path: the folder of the index.
        fingerprint: of the encoder that makes the vectors; None: not checked.
        timeout_s: as in ``RemoteIndex``.

    Raises:
        LockedError: another writer has it open.
        ArtifactError: missing, damaged, or made by another encoder.
        OfflineError: the server does not answer.
    """

    def __init__(self, path: AnyPath, *, fingerprint: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self.path = Path(path)
        with ExitStack() as resources:
            read_address(self.path)
            self._lock = self.path / LOCK
            self._descriptor = _hold_lock(resources, self.path)
            self._index = resources.enter_context(RemoteIndex(self.path, timeout_s=timeout_s))
            check_fingerprint(self._index.fingerprint, fingerprint, self.path)
            self._resources = resources.pop_all()
        self._last = 0

    @property
    def is_current(self) -> bool:
        return lock.is_still(self._descriptor, self._lock)

    @property
    def change(self) -> int:
        return self._index.change

    @property
    def fingerprint(self) -> str:
        return self._index.fingerprint

    def __len__(self) -> int:
        return len(self._index)

    def find(self, ids: Sequence[str]) -> dict[str, Candidate]:
        return self._index.find(ids)

    def add(
        self, candidates: Sequence[Candidate], vectors: Vectors | Sequence[Vectors], *, replace: bool = False
    ) -> int:
        """See ``IndexWriter``. A server's error reports how many candidates it has acknowledged."""
        self._index.refresh()
        first, dimension, columns = self._next_row(len(candidates)), self._index.dimension, self._index.columns
        rows, faults, exponent = make_rows(candidates, vectors, first, dimension, columns)
        if not replace:
            faults |= id_faults(candidates, self._index.find([candidate.id for candidate in candidates]))
        refuse(faults | candidate_faults(candidates))
        if 2.0**exponent > self._index.norm_bound():
            self._index.server.of(self._index.collection).allow_norms(exponent)
        n = 0
        try:
            for part in request_batches(rows):
                self._index.server.write(part)
                n += len(part)
        except PolyrankError as error:
            raise type(error)(
                f"{error} ({n:,} of {len(rows):,} candidates were acknowledged; add them all again, with"
                " `replace=True`)"
            ) from error
        self._index.change += 1
        return self.change

    def _next_row(self, n: int) -> int:
        """A number above every existing row: microseconds, because the server cannot return the largest number."""
        first = max(time.time_ns() // 1000, self._last + 1)
        self._last = first + n
        return first

    def remove(self, ids: Sequence[str]) -> int:
        known = list(self._index.find(ids))
        for start in range(0, len(known), ROWS_AT_A_TIME):
            self._index.server.delete([key_of(id_) for id_ in known[start : start + ROWS_AT_A_TIME]])
        self._index.change += bool(known)
        return len(known)

    def compact(self) -> None:
        """Have the server write its buffered rows to files, which it searches faster."""
        self._index.server.flush()

    def snapshot(self, path: AnyPath) -> None:
        raise UsageError(
            f"{self.path} is on {self._index.server.address}; back up the server, or write the candidates to a"
            " file with polyrank index list --json"
        )

    def close(self) -> None:
        """Close the connection and release the lock."""
        self._resources.close()


def _hold_lock(resources: ExitStack, path: Path) -> int:
    try:
        return resources.enter_context(lock.hold(path / LOCK, f"{path} is being written to"))
    except OSError as error:
        raise unwritable(path, error) from error


def write_remote(
    path: AnyPath,
    address: Address,
    candidates: Sequence[Candidate],
    vectors: Vectors | Iterable[Vectors],
    *,
    fingerprint: str,
    model: str,
    ann: str = "",
    partition_by: str = "",
    overwrite: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Build a remote index, completely or not at all: the address becomes an alias of a new, filled collection.

    Args:
        path: the folder to make, which stores the address.
        address: of the server, and a name that is free or that of an index to replace.
        candidates, vectors, fingerprint, model: as in ``polyrank.index.write_index``.
        ann, partition_by: as in ``polyrank.index.write_index``.
        overwrite: whether an existing index may be replaced.
        timeout_s: for each request.

    Raises:
        DataError: names the first five invalid candidates by position; nothing is left behind.
        UsageError: the path or the name is taken, the kind is unknown, ``partition_by`` is not a field, no
            candidates were passed, or the server loses rows of divided collections.
        LockedError: another process is writing to the index that would be replaced.
        OfflineError: the server does not answer.
    """
    ann, columns = read_kind(ann, address), read_columns(partition_by, address)
    target = Path(path)
    check_replaceable(target, own_files=FOLDER_FILES, replace=overwrite)
    check_candidates(candidates)
    if not candidates:  # D is unknown
        raise UsageError(f"{address} cannot be built from 0 candidates; pass at least one")
    parts = [vectors] if isinstance(vectors, np.ndarray) else vectors
    with ExitStack() as resources:
        if overwrite and target.exists():  # a writer's changes would be lost with the old collection
            _hold_lock(resources, target)
        server = resources.enter_context(open_store(address, timeout_s=timeout_s))
        old = server.alias()
        if old is not None and not overwrite:
            raise UsageError(f"{address} already exists; choose another name or pass `overwrite=True`")
        collection = f"{address.collection[: address.longest - 9]}_{os.urandom(4).hex()}"
        new = resources.enter_context(server.of(collection))
        n, dimension, largest = 0, None, -inf
        try:
            for part in parts:
                batch = candidates[n : n + len(part)]
                rows, faults, exponent = make_rows(batch, part, 1 + n, dimension, columns)
                refuse({n + i: what for i, what in faults.items()})
                if dimension is None:
                    dimension = np.shape(part)[1]
                    info = json.dumps(asdict(CollectionInfo(fingerprint, model, dimension, partition_by)))
                    width, divided = stored_width(dimension), bool(columns.field)
                    new.create(width=width, kind=new.kinds[ann], n=len(candidates), info=info, divided=divided)
                if exponent > largest:
                    largest = exponent
                    new.allow_norms(exponent)
                for request in request_batches(rows):
                    new.write(request)
                n += len(batch)
            as_vectors([], len(candidates) - n, None)  # raises unless every candidate has a vector
            new.flush()
            new.set_alias(address.collection, replace=old is not None)
        except BaseException:
            if dimension is not None:
                with suppress(PolyrankError):
                    new.drop(collection)
            raise
        write_address(target, address, replace=overwrite)
        if old is not None:
            server.drop(old)
