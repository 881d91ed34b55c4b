"""State that a fork copies: a child process uses and closes none of its parent's files, connections and locks.

A child has none of its parent's threads, so a lock that one of them held would never be released. Objects that hold
such things are watched: before a child continues, each one gives up what it has, and opens its own when it needs it.

Source: https://www.sqlite.org/howtocorrupt.html (section 2.6, carrying an open database across a fork)
"""

import ctypes
import os
import threading
import time
import weakref
from typing import Any, Protocol


class Watched(Protocol):
    """An object that holds something which a child must not share."""

    def after_fork(self) -> None:
        """Give up what belongs to the parent, without closing it. Called in the child, before anything else."""


_watched: weakref.WeakSet[Any] = weakref.WeakSet()
_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_held: list[Any] = []
WAIT_S = 2.0  # at a fork, for another thread that has a lock


def watch(holder: Watched) -> None:
    """Call ``after_fork`` of an object in every child process, as long as the object lives."""
    _watched.add(holder)


def new_lock() -> threading.Lock:
    """A lock that is free in a child process, even if a thread of the parent held it when the process forked."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def new_rlock() -> Any:
    """As ``new_lock``, for a lock that its owner may take again."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def abandon(*objects: object) -> None:
    """Keep objects alive until the process ends, so that nothing closes them: the parent still uses what they hold."""
    for held in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))


def release_descriptor(descriptor: int) -> None:
    """Let go of a file that the parent has open, and of its lock; the number stays taken, as its owner may close it."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _before() -> None:
    """Wait until no other thread is inside a transaction, which SQLite would take for one of the child's own."""
    end = time.monotonic() + WAIT_S
    _held.extend(lock for lock in list(_locks) if lock.acquire(timeout=max(end - time.monotonic(), 0.0)))


def _in_parent() -> None:
    while _held:
        _held.pop().release()


def _in_child() -> None:
    _held.clear()
    for lock in list(_locks):
        lock._at_fork_reinit()  # as Python's own modules do
    for holder in list(_watched):
        holder.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no forks
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
