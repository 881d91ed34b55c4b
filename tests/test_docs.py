"""The written references say what the commands and the settings say, the pages of results what the runs printed."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import polyrank

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


def anchors(page: Path) -> set[str]:
    """Of a page's titles, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        name, _, anchor = link.partition("#")
        if not name.startswith("http"):
            target = page.parent / name if name else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_the_public_names_are_those_that_the_page_describes() -> None:
    text = (DOCS / "python.md").read_text("utf-8")
    table = text.partition("## ")[0].split("\n| ")[1:]
    described = {name for row in table for name in re.findall(r"`(\w+)`", row.partition(" | ")[0])}
    assert described == set(polyrank.__all__)


def test_decisions_are_few_records_of_five_lines_about_code_that_is_there() -> None:
    records = (DOCS / "decisions.md").read_text("utf-8").split("\n## ")[1:]
    assert len(records) <= 30
    for record in records:
        title, *lines = record.strip().splitlines()
        names = [line.partition(":")[0] for line in lines if line]
        assert names == ["- Context", "- Decision", "- Consequence", "- Code", "- Date"], title
        for path in re.findall(r"`([^`]+)`", lines[-2]):
            assert any((home / path).exists() for home in (ROOT, ROOT / "src/polyrank")), f"{title}: {path}"
