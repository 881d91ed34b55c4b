"""Changing a remote index: checked before the first request, acknowledged after the last. No torch."""

import json
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np

from polyrank.errors import PolyrankError, UsageError
from polyrank.index.checks import (
    Vectors,
    as_vectors,
    candidate_faults,
    check_candidates,
    id_faults,
    refuse,
    vector_faults,
)
from polyrank.index.protocol import IndexWriter, check_fingerprint
from polyrank.index.remote.address import OURS, Address, read_address, write_address
from polyrank.index.remote.milvus import TIMEOUT_S, MilvusCollection
from polyrank.index.remote.reader import CollectionInfo, RemoteIndex
from polyrank.index.remote.rows import ROWS_AT_A_TIME, key_of, requests, rows_of
from polyrank.records import Candidate
from polyrank.storage import lock
from polyrank.storage.durable import AnyPath, check_replaceable, unwritable

KINDS = {"": "FLAT", "flat": "FLAT", "hnsw": "HNSW"}


class RemoteWriter(IndexWriter):
    """Changes a remote index.

    One writer works at a time of those that use the same folder; others elsewhere should take turns, since of two that
    write the same id at once the server keeps one. A request is repeated while the server is away and there is time.

    A change of more than a few hundred candidates takes several requests, and the server knows no transaction over
    them. When one of them fails, those before it are there, and the same change, made again, makes it whole.

    Args:
        path: the folder of the index.
        fingerprint: of the encoder that makes the vectors; None: not checked.
        timeout_s: as of ``RemoteIndex``.

    Raises:
        LockedError: another writer has it.
        ArtifactError: missing, damaged, or made by another encoder.
        OfflineError: the server does not answer.
    """

    def __init__(self, path: AnyPath, *, fingerprint: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self.path = Path(path)
        with ExitStack() as resources:
            read_address(self.path)
            try:
                resources.enter_context(lock.hold(self.path / OURS[1], f"{self.path} is being written to"))
            except OSError as error:
                raise unwritable(self.path, error) from error
            self._index = resources.enter_context(RemoteIndex(self.path, timeout_s=timeout_s))
            if fingerprint is not None:
                check_fingerprint(self._index.fingerprint, fingerprint, self.path)
            self._resources = resources.pop_all()
        self._last = 0

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
        """See ``IndexWriter``. An error of the server says how many candidates it has acknowledged."""
        self._index.refresh()
        array, faults = as_vectors(vectors, len(candidates), self._index.dimension)
        rows, too_long = rows_of(candidates, array, self._next_row(len(candidates)))
        if not replace:
            faults |= id_faults(candidates, self._index.find([candidate.id for candidate in candidates]))
        refuse(vector_faults(array) | faults | too_long | candidate_faults(candidates))
        n = 0
        try:
            for part in requests(rows):
                self._index.server.write(part)
                n += len(part)
        except PolyrankError as error:
            raise type(error)(
                f"{error} ({n:,} of {len(rows):,} candidates were acknowledged; add them all again, with"
                " `replace=True`)"
            ) from error
        self._index.n_changes += 1
        return self.change

    def _next_row(self, n: int) -> int:
        """Behind every row that is there: microseconds, since no engine tells the largest number."""
        first = max(time.time_ns() // 1000, self._last + 1)
        self._last = first + n
        return first

    def remove(self, ids: Sequence[str]) -> int:
        there = list(self._index.find(ids))
        for start in range(0, len(there), ROWS_AT_A_TIME):
            self._index.server.delete([key_of(id_) for id_ in there[start : start + ROWS_AT_A_TIME]])
        self._index.n_changes += bool(there)
        return len(there)

    def compact(self) -> None:
        """Have the server write into files what was added, which it searches faster."""
        self._index.server.flush()

    def snapshot(self, path: AnyPath) -> None:
        raise UsageError(
            f"{self.path} lives in {self._index.server.address}; back up the server, or write the candidates to {path}"
            " with polyrank index dump"
        )

    def close(self) -> None:
        """Let others write."""
        self._resources.close()


def write_remote(
    path: AnyPath,
    address: Address,
    candidates: Sequence[Candidate],
    vectors: Vectors | Iterable[Vectors],
    *,
    fingerprint: str,
    model: str,
    ann: str = "",
    overwrite: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Make a remote index, whole or not at all: a new collection that takes the address's name when it is full.

    Args:
        path: the folder to make, which names it.
        address: of the server, and a name there that is free, or that of an index that is replaced.
        candidates, vectors, fingerprint, model: as of ``polyrank.index.write_index``.
        ann: "" or "flat": the server compares every vector; "hnsw": it looks into a graph, and nothing is proven.
        overwrite: whether an existing index may be replaced.
        timeout_s: for each request.

    Raises:
        DataError: names the first five faulty candidates by position; nothing is left behind.
        UsageError: the path or the name is taken, there is no such kind, or there are no candidates.
        OfflineError: the server does not answer.
    """
    if ann not in KINDS:
        raise UsageError(f"a remote index keeps no {ann} index; use flat or hnsw")
    target = Path(path)
    check_replaceable(target, own_files=OURS, replace=overwrite)
    check_candidates(candidates)
    if not candidates:  # nothing tells D
        raise UsageError(f"{address} cannot be built of 0 candidates; give one at least")
    parts = iter([vectors] if isinstance(vectors, np.ndarray) else vectors)
    server = MilvusCollection(address, timeout_s=timeout_s)
    collection = f"{address.collection}_{os.urandom(4).hex()}"
    try:
        old = server.alias()
        if old is not None and not overwrite:
            raise UsageError(f"{address} is there already; choose another name or pass `overwrite=True`")
        said = json.dumps(asdict(CollectionInfo(fingerprint, model)))
        n, dimension = 0, None
        try:
            for part in parts:
                batch = candidates[n : n + len(part)]
                array, faults = as_vectors(part, len(batch), dimension)
                rows, too_long = rows_of(batch, array, 1 + n)
                refuse({n + i: what for i, what in (vector_faults(array) | faults | too_long).items()})
                if dimension is None:
                    dimension = array.shape[1]
                    server.create(collection, dimension=dimension, kind=KINDS[ann], said=said)
                for some in requests(rows):
                    server.write(some, collection=collection)
                n += len(batch)
            as_vectors([], len(candidates) - n, None)  # one vector for each candidate
            server.flush(collection=collection)
            server.name(collection, instead=old)
        except BaseException:
            if dimension is not None:
                with suppress(PolyrankError):
                    server.drop(collection)
            raise
        write_address(target, address, replace=overwrite)
        if old is not None:
            server.drop(old)
    finally:
        server.close()
