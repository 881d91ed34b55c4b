"""The written references say what the commands and the settings say, the pages of results what the runs printed."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("name", ["commands", "recipe"])
def test_references_are_current(name: str) -> None:
    written = runpy.run_path(str(DOCS / "reference.py"))[name]()
    assert (DOCS / f"{name}.md").read_text("utf-8") == written, "run python docs/reference.py"


def test_results_are_current() -> None:
    command = [sys.executable, str(ROOT / "runs/tables.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, f"run python runs/tables.py: {checked.stdout}{checked.stderr}"
