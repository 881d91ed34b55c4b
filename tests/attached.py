"""Processes that end with the one that started them, however that ends.

A fixture that is killed does not stop the server that it has started. Linux sends the server a signal instead.
"""

import ctypes
import signal
import sys

SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def end_with_parent() -> None:
    """From now on this process is killed when the thread that started it ends; for ``preexec_fn``, too."""
    if _libc is not None:
        _libc.prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
