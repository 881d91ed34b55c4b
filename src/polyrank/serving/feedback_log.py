"""Feedback as a server keeps it: what is shown is written behind the answers, what became of it before the answer."""

import asyncio
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from polyrank.feedback import FeedbackStore, Outcome, Shown

log = logging.getLogger("polyrank.serving")


class FeedbackLog:
    """A FeedbackStore behind one thread, so that entries are written in the order in which they come.

    Args:
        path: of the file.
        keep_text: whether what users wrote is stored.
    """

    def __init__(self, path: Path, keep_text: bool) -> None:
        self.store = FeedbackStore(path, keep_text=keep_text)
        self._thread = ThreadPoolExecutor(1, "polyrank-feedback")

    def show(self, shown: Shown) -> None:
        """Have it written that replies were shown; the answer does not wait for the disk."""
        self._thread.submit(self.store.record, shown).add_done_callback(_tell)

    async def record(self, *entries: Shown | Outcome) -> int:
        """Write and sync; how many entries were new. See ``FeedbackStore.record``."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: self.store.record(*entries))

    def close(self) -> None:
        """Write what is under way, and close the file."""
        self._thread.shutdown()
        self.store.close()


def _tell(future: "Future[int]") -> None:
    if error := future.exception():
        log.error("what was shown could not be recorded: %s", type(error).__name__)
