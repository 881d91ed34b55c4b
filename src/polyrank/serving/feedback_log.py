"""A server's feedback: writes shown replies after their answers are sent, and outcomes before acknowledging them."""

import asyncio
import json
import time
from collections import Counter, deque
from itertools import islice

from polyrank.config.serving import FeedbackSettings
from polyrank.errors import DataError, PolyrankError, ResourceError
from polyrank.feedback import FeedbackStore, Outcome, Shown
from polyrank.serving.errors import HttpError
from polyrank.serving.jobs import WaitingThreads
from polyrank.serving.log import log
from polyrank.storage.sqlite import log_size

MAX_SHOWN = 10_000  # lists that may wait for the disk; further ones are counted and dropped
MAX_CHARACTERS = 16 * 2**20  # of their texts
MAX_OUTCOMES = 128  # that may wait, each with its client
BATCH = 1_000  # entries per transaction, with one sync
ENTRY_BYTES = 500  # of an entry's ids, time and hash
DAY_S = 86_400


class FeedbackLog:
    """A FeedbackStore behind one thread, so that entries are written in the order in which they arrive.

    Shown lists wait until the disk is free; then one sync writes all of them. If the disk fails they keep waiting, and
    each new entry triggers another attempt.

    Args:
        settings: with a file.
    """

    def __init__(self, settings: FeedbackSettings) -> None:
        assert settings.file is not None
        self.settings, self.store = settings, FeedbackStore(settings.file, keep_text=settings.keep_text)
        self._bytes_of, self._day = Counter[str](), 0.0  # of each key on that day
        self._thread = WaitingThreads(1, "polyrank-feedback", MAX_OUTCOMES)
        self._waiting: deque[Shown] = deque()
        self._n_queued = self._n_written = 0  # characters; each is changed by one thread
        self._scheduled = self._failing = False
        self.n_lost = 0
        self.reporting = asyncio.Lock()  # a report reads the whole file, and several would keep others from the disk

    def __len__(self) -> int:
        """Number of shown lists that wait for the disk."""
        return len(self._waiting)

    def show(self, shown: Shown, key: str = "") -> None:
        """Queue a shown list for writing; the answer, to a key, does not wait for the disk."""
        try:
            self._count(key, shown)
        except HttpError as error:
            self.lose(error.message)
            return
        size = _characters(shown)
        if len(self) >= MAX_SHOWN or (len(self) and self._n_queued - self._n_written + size > MAX_CHARACTERS):
            self.lose(f"{len(self)} lists wait already")
            return
        self._waiting.append(shown)
        self._n_queued += size
        if not self._scheduled:
            self._scheduled = True
            self._thread.submit(self._try_to_write)

    def lose(self, reason: str) -> None:
        """Log that a shown list is not recorded."""
        self.n_lost += 1
        log.error("shown replies are not recorded: %s, %d are lost", reason, self.n_lost)

    async def record(self, *entries: Shown | Outcome, key: str = "") -> int:
        """Write and sync entries of a key; returns how many were new. See ``FeedbackStore.record``.

        Raises:
            HttpError: the file is full, or the key has sent too much today.
            OverloadedError: too many entries wait for the disk.
        """
        self._count(key, *entries)
        return await asyncio.shield(self._thread.call(self._record, entries))

    def _count(self, key: str, *entries: Shown | Outcome) -> None:
        """Count the bytes of a key's entries.

        Raises:
            HttpError: see ``record``.
        """
        path, (day, seconds) = self.store.path, divmod(time.time(), DAY_S)
        n_file, n_key = self.settings.file_bytes, self.settings.key_bytes
        if log_size(path) + (path.stat().st_size if path.exists() else 0) > n_file:
            message = f"the feedback file has {n_file:,} bytes; start a new one, or raise feedback.file_bytes"
            raise HttpError(507, message, code="feedback_full")
        if day != self._day:
            self._day, self._bytes_of = day, Counter()
        size = sum(ENTRY_BYTES + len(json.dumps(entry.content(), ensure_ascii=False).encode()) for entry in entries)
        if self._bytes_of[key] + size > n_key:
            message = f"this key's feedback of today has reached {n_key:,} bytes; wait, or raise feedback.key_bytes"
            raise HttpError(429, message, code="feedback_quota", retry_after=DAY_S - seconds)
        self._bytes_of[key] += size

    def close(self) -> None:
        """Write the waiting lists and close the file."""
        self._thread.submit(self._try_to_write)
        self._thread.shutdown()
        if self._waiting:
            log.error("%d lists of shown replies could not be recorded", len(self))
        self.store.close()

    def _record(self, entries: tuple[Shown | Outcome, ...]) -> int:
        self._write()
        try:
            return self.store.record(*entries)
        except DataError as error:
            if self.n_lost and "is unknown" in str(error):
                raise ResourceError("the shown replies could not be recorded; send them with the outcome") from error
            raise

    def _try_to_write(self) -> None:
        self._scheduled = False
        try:
            self._write()
        except PolyrankError as error:
            if not self._failing:
                log.error("shown replies cannot be recorded at present: %s", type(error).__name__)
            self._failing = True

    def _write(self) -> None:
        """Write everything that waits; lists that cannot be written stay in the queue."""
        while batch := list(islice(self._waiting, BATCH)):
            try:
                self.store.record(*batch)
            except DataError:  # one of them is invalid
                batch = batch[:1]
                try:
                    self.store.record(*batch)
                except DataError as error:
                    log.error("shown replies could not be recorded: %s", type(error).__name__)
            for _ in batch:
                self._n_written += _characters(self._waiting.popleft())
        self._failing = False


def _characters(shown: Shown) -> int:
    context = () if shown.context is None else (*shown.context.turns, *shown.context.background)
    return sum(map(len, context)) + sum(len(reply.text or "") + len(reply.id) for reply in shown.replies)
