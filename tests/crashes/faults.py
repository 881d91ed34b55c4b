"""Builds, loads and controls the preloaded library of faults.c."""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

COUNT, KILL, TEAR, FAIL, SHORT, FULL, LOSE = range(7)  # the effect at the chosen call
SOURCE = Path(__file__).with_name("faults.c")
LIBRARY = "polyrank-faults.so"


def compiler() -> str | None:
    """The path of a C compiler, or None."""
    return shutil.which("cc") or shutil.which("gcc")


def preload() -> None:
    """Restart this program with the library loaded, without returning; returns if it is already loaded."""
    loaded = Path(os.environ.get("LD_PRELOAD", ""))
    if loaded.name == LIBRARY:
        shutil.rmtree(loaded.parent, ignore_errors=True)  # already mapped
        return
    library = build(Path(tempfile.mkdtemp()))
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {"LD_PRELOAD": str(library)})


def build(folder: Path) -> Path:
    """Compile the library into a folder; returns the path for LD_PRELOAD."""
    program = compiler()
    if program is None:
        raise SystemExit("this part needs a C compiler; install gcc")
    library = folder / LIBRARY
    subprocess.run([program, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library


def arm(folder: Path, what: int = COUNT, at: int = 0, code: int = 0, journal: int = -1) -> None:
    """Count calls that change files below ``folder`` from now on, and do ``what`` at call ``at``, counted from 1.

    Args:
        folder: without symbolic links in its path.
        what: COUNT; KILL before the call; TEAR: kill after half of it; FAIL with ``code`` once; SHORT: write half
            once; FULL: no space from then on; LOSE: fail sync number ``at`` and lose its data.
        at: number of the call.
        code: errno.
        journal: file descriptor for the log; -1: none.
    """
    _library().faults_arm(os.fsencode(folder), what, ctypes.c_long(at), code, journal)


def disarm() -> None:
    """Stop counting and failing."""
    _library().faults_disarm()


def count() -> int:
    """Number of calls since ``arm``."""
    return int(_library().faults_count())


def note(text: str) -> None:
    """Write a note into the log."""
    _library().faults_note(text.encode())


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.faults_count.restype = ctypes.c_long
    return library
