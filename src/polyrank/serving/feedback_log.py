"""A server's feedback: writes shown replies after their answers are sent, and outcomes before acknowledging them."""

import asyncio
import logging
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from polyrank.errors import DataError, PolyrankError, ResourceError
from polyrank.feedback import FeedbackStore, Outcome, Shown
from polyrank.serving.jobs import OverloadedError

log = logging.getLogger("polyrank.serving")

MAX_SHOWN = 10_000  # lists that may wait for the disk; further ones are counted and dropped
MAX_CHARACTERS = 16 * 2**20  # of their texts
MAX_OUTCOMES = 128  # that may wait, each with its client
BATCH = 1_000  # entries per transaction, with one sync


class FeedbackLog:
    """A FeedbackStore behind one thread, so that entries are written in the order in which they arrive.

    Shown lists wait until the disk is free; then one sync writes all of them. If the disk fails they keep waiting, and
    each new entry triggers another attempt.

    Args:
        path: of the file.
        keep_text: whether users' texts are stored.
    """

    def __init__(self, path: Path, keep_text: bool) -> None:
        self.store = FeedbackStore(path, keep_text=keep_text)
        self._thread = ThreadPoolExecutor(1, "polyrank-feedback")
        self._waiting: deque[Shown] = deque()
        self._counting = threading.Lock()  # of the characters
        self._n_characters = self._n_outcomes = 0
        self._scheduled = self._failing = False
        self.n_lost = 0
        self.reporting = asyncio.Lock()  # a report reads the whole file, and several would keep others from the disk

    def __len__(self) -> int:
        """Number of shown lists that wait for the disk."""
        return len(self._waiting)

    def show(self, shown: Shown) -> None:
        """Queue a shown list for writing; the answer does not wait for the disk."""
        size = _characters(shown)
        if len(self) >= MAX_SHOWN or (len(self) and self._n_characters + size > MAX_CHARACTERS):
            self.lose(f"{len(self)} lists wait already")
            return
        self._waiting.append(shown)
        with self._counting:
            self._n_characters += size
        if not self._scheduled:
            self._scheduled = True
            self._thread.submit(self._try_to_write)

    def lose(self, reason: str) -> None:
        """Log that a shown list is not recorded."""
        self.n_lost += 1
        log.error("shown replies are not recorded: %s, %d are lost", reason, self.n_lost)

    async def record(self, *entries: Shown | Outcome) -> int:
        """Write and sync entries; returns how many were new. See ``FeedbackStore.record``.

        Raises:
            OverloadedError: too many entries wait for the disk.
        """
        if self._n_outcomes >= MAX_OUTCOMES:
            raise OverloadedError(1.0)
        self._n_outcomes += 1
        future = asyncio.get_running_loop().run_in_executor(self._thread, self._record, entries)
        future.add_done_callback(self._recorded)
        return await asyncio.shield(future)

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

    def _recorded(self, future: "asyncio.Future[int]") -> None:
        self._n_outcomes -= 1
        future.cancelled() or future.exception()  # marks the error as seen: the client may have left

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
                size = _characters(self._waiting.popleft())
                with self._counting:
                    self._n_characters -= size
        self._failing = False


def _characters(shown: Shown) -> int:
    context = () if shown.context is None else (*shown.context.turns, *shown.context.background)
    return sum(map(len, context)) + sum(len(reply.text or "") + len(reply.id) for reply in shown.replies)
