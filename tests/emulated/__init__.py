"""The compiled loops with emulated instructions, on any machine: see emulated.h.

This tests the loops' AVX-512, VNNI and AMX code on machines without these instructions, and simulates processors that
lack some of them. For ARM, QEMU runs a separate process: elsewhere.c.
"""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
ARM_COMPILER, ARM_EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
FILES = ("kernels.c", "registers.c", "tiles.c")
SOURCES = Path(os.environ.get("POLYRANK_KERNELS_SOURCES", HERE.parent.parent / "kernels" / "polyrank_kernels"))


def missing() -> str:
    """The missing requirement of a build on this machine; empty if there is none."""
    if not shutil.which("cc"):
        return "cc is not installed"
    include = Path(sysconfig.get_paths()["include"])
    return "" if (include / "Python.h").exists() else "the headers of Python are not installed"


def build(folder: Path, *, plain: bool = False) -> Path:
    """Build the package ``polyrank_kernels`` in ``folder``, for ``sys.path``; returns its library.

    plain: without intrinsics, for this machine.
    """
    package = folder / "polyrank_kernels"
    package.mkdir(parents=True)
    shutil.copy(SOURCES / "__init__.py", package)
    library = package / "_kernels.so"
    form = ["-std=c11", "-pedantic-errors", "-DPOLYRANK_PLAIN"] if plain else ["-std=gnu11", "-DPOLYRANK_EMULATED"]
    command = ["cc", *form, "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-Wno-psabi"]
    command += [
        f"-I{HERE}",
        f"-isystem{sysconfig.get_paths()['include']}",
        f"-I{SOURCES}",
        "-undefined",
        "dynamic_lookup",
    ]
    if os.uname().sysname != "Darwin":
        command[-2:] = ["-fopenmp"]
    sources = [str(SOURCES / name) for name in FILES]
    subprocess.run([*command, *sources, "-o", str(library), "-lm"], check=True)
    return library


def missing_for_arm() -> str:
    """The missing requirement for building and running on ARM; empty if there is none."""
    absent = [name for name in ("cc", ARM_COMPILER, ARM_EMULATOR) if not shutil.which(name)]
    return f"{absent[0]} is not installed" if absent else ""


def build_for_arm(folder: Path) -> Path:
    """Build the package in ``folder``; the returned program computes its functions."""
    package = folder / "polyrank_kernels"
    package.mkdir(parents=True)
    shutil.copy(SOURCES / "__init__.py", package)
    bridge, library, program = str(HERE / "elsewhere.c"), package / "elsewhere.so", folder / "loops"
    (package / "_kernels.py").write_text(f"__file__ = {str(library)!r}\n")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", bridge, "-o", str(library)], check=True)
    flags = ["-std=gnu11", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi", "-fopenmp", "-static"]
    defined = ["-DPOLYRANK_SERVER", "-DPOLYRANK_ALONE", f"-I{SOURCES}"]
    sources = [bridge, *(str(SOURCES / name) for name in FILES)]
    subprocess.run([ARM_COMPILER, *flags, *defined, *sources, "-o", str(program), "-lm"], check=True)
    return program
