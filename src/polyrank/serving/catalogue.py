"""Reads and changes an index for HTTP: one change at a time, durable before it is acknowledged.

The index is locked only during changes and for a moment after them, so that other programs can change it too.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from polyrank.index import Filter, Index, IndexWriter, open_catalogue, open_writer
from polyrank.index.checks import metadata_json
from polyrank.index.filters import passing
from polyrank.records import Candidate
from polyrank.serving.errors import HttpError, shown

T = TypeVar("T")

PAGE = 1_000  # candidates that a removal by a filter reads at a time
IDLE_S = 2.0  # the lock is kept this long, because opening a large index for writing reads all its digests


def are_within(filter: Filter | None, candidates: Iterable[Candidate]) -> bool:
    """Whether all candidates pass a filter."""
    return filter is None or all(passing(filter, map(metadata_json, candidates)))


def _matching(index: Index, filter: Filter) -> Iterator[Candidate]:
    """All candidates that pass a filter."""
    after: int | None = 0
    while after is not None:
        page = index.page(after=after, n=PAGE, filter=filter)
        yield from page.candidates
        after = page.next


class Catalogue:
    """One index. Its methods block; any thread may call them.

    Args:
        path: the index folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mutex = threading.Lock()
        self._writer: IndexWriter | None = None
        self._used = 0.0

    def read(self, look: Callable[[Index], T]) -> T:
        """Call a function with the index as of its last change.

        Raises:
            ArtifactError: the index is missing or damaged.
        """
        with open_catalogue(self.path) as index:
            return look(index)

    def add(
        self,
        candidates: Sequence[Candidate],
        vectors: Any,
        *,
        replace: bool,
        previous: Sequence[Candidate] = (),
        fingerprint: str | None = None,
        within: Filter | None = None,
    ) -> int:
        """Add candidates, all or none; identical ones are skipped. Returns how many the index then has.

        Args:
            candidates: to add.
            vectors: theirs.
            replace: whether candidates with the same ids are replaced.
            previous: candidates as the client read them.
            fingerprint: of the encoder that made the vectors.
            within: that all of them must pass, and those that they replace.

        Raises:
            HttpError: one of ``previous`` was changed or removed since, or one does not pass; nothing was added.
            DataError, LockedError, ResourceError: nothing was added.
            ArtifactError: the index now belongs to another encoder.
        """
        with self._mutex:
            writer = self._open(fingerprint)
            stored = writer.find([candidate.id for candidate in (*candidates, *previous)])
            if not are_within(within, [*candidates, *stored.values()]):
                raise HttpError(403, f"this key may only change candidates with {within}", code="filtered_key")
            new = [row for row, candidate in enumerate(candidates) if not candidate.is_same(stored.get(candidate.id))]
            as_given = {candidate.id for candidate in candidates} - {candidates[row].id for row in new}
            for candidate in previous:
                if candidate.id not in as_given and not candidate.is_same(stored.get(candidate.id)):
                    message = f"candidate {shown(candidate.id)} was changed or removed after you read it; read it again"
                    raise HttpError(412, message, param="previous", code="changed")
            writer.add([candidates[row] for row in new], vectors[new], replace=replace)
            return len(writer)

    def remove(self, ids: Sequence[str] | None, within: Filter | None = None) -> tuple[int, int]:
        """Remove candidates by id, of those that pass a filter; returns how many were removed and how many remain.

        Args:
            ids: None: all.
            within: the filter; None: all pass.

        Raises:
            LockedError, ResourceError: nothing was removed.
        """
        with self._mutex:
            writer = self._open(None)
            if within is not None:
                with open_catalogue(self.path) as index:
                    if ids is None:
                        stored = list(_matching(index, within))
                    else:
                        stored = [found for found in index.find(ids).values() if are_within(within, [found])]
                ids = [candidate.id for candidate in stored]
            return writer.remove(ids or ()), len(writer)

    def _open(self, fingerprint: str | None) -> IndexWriter:
        self._used = time.monotonic()
        writer = self._writer
        if writer is not None and not (writer.is_current and fingerprint in (None, writer.fingerprint)):
            self._close()
        if self._writer is None:
            self._writer = open_writer(self.path, fingerprint=fingerprint)
        return self._writer

    def close_if_idle(self) -> None:
        """Release the lock if the last change was IDLE_S ago, and not while closing would keep changes waiting."""
        if self._writer is None or time.monotonic() - self._used < IDLE_S:
            return
        with self._mutex:
            if time.monotonic() - self._used >= IDLE_S and self._writer is not None and not self._writer.is_compacting:
                self._close()

    def close(self) -> None:
        """Release the lock."""
        with self._mutex:
            self._close()

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(Exception):  # every change is durable already
                writer.close()
