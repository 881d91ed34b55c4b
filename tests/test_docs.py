"""The written references say what the commands and the settings say."""

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("name", ["commands", "recipe"])
def test_references_are_current(name: str) -> None:
    written = runpy.run_path(str(DOCS / "reference.py"))[name]()
    assert (DOCS / f"{name}.md").read_text("utf-8") == written, "run python docs/reference.py"
