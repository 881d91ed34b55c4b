"""Feedback as a server keeps it: what is shown is written behind the answers, what became of it before the answer."""

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from polyrank.errors import DataError, PolyrankError, ResourceError
from polyrank.feedback import FeedbackStore, Outcome, Shown
from polyrank.serving.jobs import OverloadedError

log = logging.getLogger("polyrank.serving")

MOST_SHOWN = 10_000  # that wait for the disk; more are counted and lost
MOST_CHARACTERS = 16 * 2**20  # of their texts
MOST_OUTCOMES = 128  # that wait, each with its client
TOGETHER = 1_000  # in one transaction, with one sync for all of them


class FeedbackLog:
    """A FeedbackStore behind one thread, so that entries are written in the order in which they come.

    What is shown waits until the disk is free, then all of it is written with one sync. A disk that fails keeps it
    waiting: it is tried again with each new entry.

    Args:
        path: of the file.
        keep_text: whether what users wrote is stored.
    """

    def __init__(self, path: Path, keep_text: bool) -> None:
        self.store = FeedbackStore(path, keep_text=keep_text)
        self._thread = ThreadPoolExecutor(1, "polyrank-feedback")
        self._waiting: deque[Shown] = deque()
        self._n_characters = self._n_outcomes = 0
        self._scheduled = self._failing = False
        self.n_lost = 0

    def __len__(self) -> int:
        """Shown lists that wait to be written."""
        return len(self._waiting)

    def show(self, shown: Shown) -> None:
        """Have it written that replies were shown; the answer does not wait for the disk."""
        size = _characters(shown)
        if len(self) >= MOST_SHOWN or (len(self) and self._n_characters + size > MOST_CHARACTERS):
            self.n_lost += 1
            log.error("what was shown is not recorded: %d wait already, %d are lost", len(self), self.n_lost)
            return
        self._waiting.append(shown)
        self._n_characters += size
        if not self._scheduled:
            self._scheduled = True
            self._thread.submit(self._try_to_write)

    async def record(self, *entries: Shown | Outcome) -> int:
        """Write and sync; how many entries were new. See ``FeedbackStore.record``.

        Raises:
            OverloadedError: too many wait for the disk.
        """
        if self._n_outcomes >= MOST_OUTCOMES:
            raise OverloadedError(1.0)
        self._n_outcomes += 1
        future = asyncio.get_running_loop().run_in_executor(self._thread, self._record, entries)
        future.add_done_callback(self._recorded)
        return await asyncio.shield(future)

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._thread.submit(self._try_to_write)
        self._thread.shutdown()
        if self._waiting:
            log.error("%d lists of what was shown could not be recorded", len(self))
        self.store.close()

    def _record(self, entries: tuple[Shown | Outcome, ...]) -> int:
        self._write()
        try:
            return self.store.record(*entries)
        except DataError as error:
            if self.n_lost and "is not known" in str(error):
                raise ResourceError("what was shown could not be recorded; send it along with its outcome") from error
            raise

    def _recorded(self, future: "asyncio.Future[int]") -> None:
        self._n_outcomes -= 1
        future.cancelled() or future.exception()  # which nobody may have waited for

    def _try_to_write(self) -> None:
        self._scheduled = False
        try:
            self._write()
        except PolyrankError as error:
            if not self._failing:
                log.error("what was shown cannot be recorded at present: %s", type(error).__name__)
            self._failing = True

    def _write(self) -> None:
        """Everything that waits; what cannot be written stays."""
        while batch := list(islice(self._waiting, TOGETHER)):
            try:
                self.store.record(*batch)
            except DataError:  # of one among them
                batch = batch[:1]
                try:
                    self.store.record(*batch)
                except DataError as error:
                    log.error("what was shown could not be recorded: %s", type(error).__name__)
            for shown in batch:
                self._waiting.popleft()
                self._n_characters -= _characters(shown)
        self._failing = False


def _characters(shown: Shown) -> int:
    context = () if shown.context is None else (*shown.context.turns, *shown.context.background)
    return sum(map(len, context)) + sum(len(reply.text or "") + len(reply.id) for reply in shown.replies)
