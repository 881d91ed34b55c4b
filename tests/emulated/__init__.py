"""The compiled loops for a processor that has every instruction, on any machine: see emulated.h.

What the loops do with AVX-512, its VNNI and AMX can so be tested where these are not, and a processor that lacks some
of them can be had by saying so. What they do on ARM is tested in a process of its own that QEMU emulates: elsewhere.c.
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
    """What a build needs and this machine has not; empty if all is there."""
    if not shutil.which("cc"):
        return "there is no C compiler"
    include = Path(sysconfig.get_paths()["include"])
    return "" if (include / "Python.h").exists() else "the headers of Python are not installed"


def build(folder: Path, *, plain: bool = False) -> Path:
    """The package ``polyrank_kernels`` in ``folder``, to be put on the path; returns its library.

    plain: as compilers that know only C see it, for the machine itself.
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
    """The same for a build for ARM, and for running it."""
    absent = [name for name in ("cc", ARM_COMPILER, ARM_EMULATOR) if not shutil.which(name)]
    return f"there is no {absent[0]}" if absent else ""


def build_for_arm(folder: Path) -> Path:
    """The package in ``folder``, whose functions are computed by the program that is returned."""
    package = folder / "polyrank_kernels"
    package.mkdir(parents=True)
    shutil.copy(SOURCES / "__init__.py", package)
    ours, library, program = str(HERE / "elsewhere.c"), package / "elsewhere.so", folder / "loops"
    (package / "_kernels.py").write_text(f"__file__ = {str(library)!r}\n")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", ours, "-o", str(library)], check=True)
    flags = ["-std=gnu11", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi", "-fopenmp", "-static"]
    defined = ["-DPOLYRANK_SERVER", "-DPOLYRANK_ALONE", f"-I{SOURCES}"]
    sources = [ours, *(str(SOURCES / name) for name in FILES)]
    subprocess.run([ARM_COMPILER, *flags, *defined, *sources, "-o", str(program), "-lm"], check=True)
    return program
