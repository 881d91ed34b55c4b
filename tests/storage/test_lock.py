"""Locks between processes: who holds one, and what else may happen to the file meanwhile."""

import errno
import os
import re
import socket
from pathlib import Path

import pytest

from polyrank.errors import LockedError
from polyrank.storage import lock

pytestmark = pytest.mark.skipif(lock.fcntl is None, reason="this system's locks are not flock's")
HOST = socket.gethostname()


@pytest.mark.parametrize(
    ("note", "holder"),
    [
        (f"41 {HOST}", "process 41"),
        (f"41 {HOST[:-1]}", "process 41"),  # a long name is truncated
        ("41 elsewhere", "process 41 on elsewhere"),
        (f"41 {HOST}x", f"process 41 on {HOST}x"),
        ("0041", "process 41"),
        ("", "another process"),
        ("no number", "another process"),
        ("\udcff", "another process"),
    ],
)
@pytest.mark.parametrize("at", [0, 64])
def test_a_refusal_names_the_process_that_has_the_lock(tmp_path: Path, at: int, note: str, holder: str) -> None:
    file = tmp_path / "lock"
    file.write_bytes(b"r" * at)
    with lock.hold(file, "first", holder_at=at, holder_size=300) as descriptor:
        lock.write_at(descriptor, note.encode(errors="surrogateescape").ljust(300), at)
        refused = pytest.raises(LockedError, match=rf"^x is used by {re.escape(holder)}; wait until it has finished$")
        with refused, lock.hold(file, "x is used", holder_at=at, holder_size=300):
            pass
    with lock.hold(file, "free again", holder_at=at, holder_size=30):
        own = f"{os.getpid()} {HOST}".encode()[:30].ljust(30)
        assert file.read_bytes()[: at + 30] == b"r" * at + own


def test_a_system_that_writes_at_the_current_place_alone_names_the_process_there_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pwrite")
    file = tmp_path / "lock"
    file.write_bytes(b"r" * 64)
    with lock.hold(file, "first", holder_at=64, holder_size=30):
        assert file.read_bytes() == b"r" * 64 + f"{os.getpid()} {HOST}".encode()[:30].ljust(30)


@pytest.mark.parametrize("replaced", [True, False])
def test_the_lock_of_a_file_that_was_replaced_or_removed_meanwhile_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    file, flock = tmp_path / "lock", lock.fcntl.flock

    def slow(descriptor: int, how: int) -> None:
        flock(descriptor, how)
        file.unlink()
        if replaced:
            file.touch()

    monkeypatch.setattr(lock.fcntl, "flock", slow)
    with pytest.raises(LockedError, match=r"another process has just replaced .*; try again"), lock.hold(file, "x"):
        pass


def test_without_locks_only_a_lock_that_is_not_required_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_with(number: int) -> None:
        raise OSError(number, "no locks")

    monkeypatch.setattr(lock.fcntl, "flock", lambda *_: fail_with(errno.ENOLCK))
    with lock.hold(tmp_path / "lock", "x", required=False):
        assert (tmp_path / "lock").read_bytes().split()[0] == str(os.getpid()).encode()
    with pytest.raises(OSError, match="no locks"), lock.hold(tmp_path / "lock", "x"):
        pass
    for number in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):  # another process holds it, in a system's words
        monkeypatch.setattr(lock.fcntl, "flock", lambda *_, number=number: fail_with(number))
        refused = pytest.raises(LockedError, match=r"^x by process \d+; wait until it has finished$")
        with refused, lock.hold(tmp_path / "lock", "x", required=False):
            pass
