"""The preloaded library of faults.c: built, loaded, and told what to do."""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

COUNT, KILL, TEAR, FAIL, SHORT, FULL, LOSE = range(7)  # what happens at the chosen call
SOURCE = Path(__file__).with_name("faults.c")
LIBRARY = "polyrank-faults.so"


def compiler() -> str | None:
    """A C compiler, where there is one."""
    return shutil.which("cc") or shutil.which("gcc")


def preload() -> None:
    """Start this program again with the library loaded, unless it is. Does not return if it was not."""
    loaded = Path(os.environ.get("LD_PRELOAD", ""))
    if loaded.name == LIBRARY:
        shutil.rmtree(loaded.parent, ignore_errors=True)  # mapped by now
        return
    library = build(Path(tempfile.mkdtemp()))
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {"LD_PRELOAD": str(library)})


def build(folder: Path) -> Path:
    """Compile the library into a folder; what LD_PRELOAD is to name."""
    program = compiler()
    if program is None:
        raise SystemExit("there is no C compiler, which this part needs; install gcc")
    library = folder / LIBRARY
    subprocess.run([program, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library


def arm(folder: Path, what: int = COUNT, at: int = 0, code: int = 0, journal: int = -1) -> None:
    """From now on count the calls that change what is below ``folder``, and do ``what`` at call ``at``, from 1.

    Args:
        folder: without symbolic links in its path.
        what: COUNT; KILL before the call; TEAR: kill after half of it; FAIL with ``code`` once; SHORT: write half
            once; FULL: no space from then on; LOSE: fail sync number ``at``, and what it should have written is lost.
        at: the call.
        code: errno.
        journal: descriptor of a file for the log; -1: none.
    """
    _library().faults_arm(os.fsencode(folder), what, ctypes.c_long(at), code, journal)


def disarm() -> None:
    """Let everything through again."""
    _library().faults_disarm()


def count() -> int:
    """How many calls there were since ``arm``."""
    return int(_library().faults_count())


def note(text: str) -> None:
    """Write a note into the log."""
    _library().faults_note(text.encode())


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.faults_count.restype = ctypes.c_long
    return library
