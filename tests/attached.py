"""Processes that end together with the process that started them.

A killed test run cannot stop the servers of its fixtures. Linux sends them a signal instead.
"""

import ctypes
import signal
import sys

SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def end_with_parent() -> None:
    """Let Linux kill this process when the thread that started it ends; also usable as ``preexec_fn``."""
    if _libc is not None:
        _libc.prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
