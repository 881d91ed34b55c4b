"""The published packages are complete: built, installed from the wheel outside the repository, and used."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import polyrank

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.deep


def command(*arguments: str | Path, cwd: Path, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive that it was built from."""
    folder = tmp_path_factory.mktemp("dist")
    command("-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


def test_the_wheel_contains_the_whole_package(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name.startswith(f"polyrank-{polyrank.__version__}-")
    names = set(zipfile.ZipFile(wheel).namelist())
    package = Path(polyrank.__file__).parent
    files = {p.relative_to(package.parent).as_posix() for p in package.rglob("*") if p.is_file()}
    files = {name for name in files if "__pycache__" not in name}
    assert files <= names
    assert "polyrank/sample/train.jsonl" in files
    assert "polyrank/py.typed" in files
    others = {name for name in names - files if ".dist-info/" not in name}
    assert not others


def test_the_archive_of_sources_has_no_results(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"README.md", "LICENSE", "pyproject.toml", "src/polyrank/__init__.py", "CITATION.cff"} <= names
    assert not any(name.startswith(("runs/", "tests/", ".")) for name in names - {".gitignore"})


def test_the_installed_wheel_ranks(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    command("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", tmp_path / "site", wheel, cwd=tmp_path)
    code = (
        "import polyrank; print(polyrank.__file__);"
        "print(polyrank.load('shipped:convert').rank('my wifi is down', ['restart the router', 'bye'])[0].text)"
    )
    where, best = command("-c", code, cwd=tmp_path, PYTHONPATH=str(tmp_path / "site")).splitlines()
    assert Path(where).is_relative_to(tmp_path / "site")
    assert best == "restart the router"
    version = command("-m", "polyrank", "--version", cwd=tmp_path, PYTHONPATH=str(tmp_path / "site"))
    assert version == f"polyrank {polyrank.__version__}\n"


def test_the_compiled_loops_build_from_their_sources(tmp_path: Path) -> None:
    command("-m", "build", "--no-isolation", "--sdist", "--outdir", tmp_path, ROOT / "kernels", cwd=tmp_path)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {Path(name).name for name in opened.getnames()}
    assert {"kernels.c", "tiles.c", "kernels.h", "setup.py", "pyproject.toml", "py.typed"} <= names
    said = (ROOT / "kernels" / "pyproject.toml").read_text("utf-8")
    assert 'version = "0.1.0"' in said  # required by the extra "fast"
