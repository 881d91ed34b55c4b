"""Writes deploy/requirements.txt: the container's packages, pinned as in constraints.txt, with hashes. Needs a network.

    python runs/lock.py

The file lists the packages that polyrank[serve,embedded] needs in this environment, except torch, whose CPU build comes
from PyTorch's own index, which this script does not query. Hashes are those of the wheels that pip selects for the
container's Python on x86-64 and ARM, so that pip install --require-hashes rejects another file of the same version.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib.metadata import requires, version
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYTHON = "3.12"  # of deploy/Containerfile
MACHINES = ("x86_64", "aarch64")
PLATFORMS = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_27", "manylinux_2_26", "manylinux2014", "manylinux_2_17")
EXTRAS = ("serve", "embedded")
TARGET = Path("deploy/requirements.txt")
HEAD = "# Made by runs/lock.py for Python {} on {}; torch is not among them.\n"


def needed(name: str, extras: Sequence[str], python: str, seen: set[str]) -> Iterator[str]:
    """A package's requirements on Linux, recursively, except torch's libraries for GPUs."""
    environment = {
        **default_environment(),
        "python_version": python,
        "sys_platform": "linux",
        "platform_system": "Linux",
    }
    for text in requires(name) or ():
        one = Requirement(text)
        used = one.marker is None or any(one.marker.evaluate(environment | {"extra": each}) for each in ("", *extras))
        key = canonicalize_name(one.name) + ",".join(sorted(one.extras))
        if used and key not in seen and not key.startswith(("nvidia", "cuda", "triton")):
            seen.add(key)
            yield canonicalize_name(one.name)
            yield from needed(one.name, sorted(one.extras), python, seen)


def hashes(pins: Sequence[str], python: str, machine: str) -> Iterator[tuple[str, str]]:
    """Pairs of a pin and the hash of the file that pip selects for it."""
    with tempfile.TemporaryDirectory() as folder:
        file, report = Path(folder) / "pins.txt", Path(folder) / "report.json"
        file.write_text("\n".join(pins))
        platforms = [word for platform in PLATFORMS for word in ("--platform", f"{platform}_{machine}")]
        command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--no-deps"]
        command += ["--only-binary", ":all:", "--python-version", python, *platforms, "--target", folder]
        clean = {name: value for name, value in os.environ.items() if name not in ("PIP_FIND_LINKS", "PIP_CONSTRAINT")}
        clean |= {"PIP_CONFIG_FILE": os.devnull}  # this machine's local files may differ from the index's
        subprocess.run([*command, "--report", str(report), "-r", str(file)], check=True, env=clean)
        for one in json.loads(report.read_text())["install"]:
            pin = f"{canonicalize_name(one['metadata']['name'])}=={one['metadata']['version']}"
            yield pin, one["download_info"]["archive_info"]["hashes"]["sha256"]


def main(python: str = PYTHON, target: Path = TARGET) -> None:
    """Write the file."""
    lines = [line.partition(";")[0].strip() for line in Path("constraints.txt").read_text().splitlines()]
    known = {canonicalize_name(line.partition("==")[0]): line for line in lines if "==" in line}
    names = sorted(set(needed("polyrank", EXTRAS, python, set())) - {"torch"})
    pins = [known.get(name, f"{name}=={version(name)}") for name in names]
    found: dict[str, set[str]] = defaultdict(set)
    for machine in MACHINES:
        for pin, sha in hashes(pins, python, machine):
            found[pin].add(sha)
    rows = [
        " \\\n    ".join([pin, *(f"--hash=sha256:{sha}" for sha in sorted(all_))])
        for pin, all_ in sorted(found.items())
    ]
    target.write_text(HEAD.format(python, " and ".join(MACHINES)) + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(Path, sys.argv[2:3]))
