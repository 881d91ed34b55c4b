"""Style, generated pages that are current, links that lead somewhere, and limits of the pages."""

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import polyrank
from polyrank import errors
from syntax import nodes

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = ("commands.md", "recipe.md", "results.md", "layouts.md")


@pytest.mark.parametrize("name", ["commands", "recipe"])
def test_references_are_current(name: str) -> None:
    written = runpy.run_path(str(DOCS / "reference.py"))[name]()
    assert (DOCS / f"{name}.md").read_text("utf-8") == written, "run python docs/reference.py"


@pytest.mark.deep
def test_results_are_current() -> None:
    command = [sys.executable, str(ROOT / "runs/tables.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, f"run python runs/tables.py: {checked.stdout}{checked.stderr}"


@pytest.mark.parametrize("check", ["runs/words.py", "-m ruff check .", "-m ruff format --check ."])
def test_style(check: str) -> None:
    checked = subprocess.run([sys.executable, *check.split()], cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md")), ROOT / "chats/README.md", ROOT / "cluster/README.md"]
OTHERS = {"SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "README.md"}  # pages of the site outside docs/


def anchors(page: Path) -> set[str]:
    """The anchors of a page's titles, as GitHub and docs/site.py make them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    "page",
    PAGES,
    ids=lambda page: page.name,
)
def test_links_have_targets(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        name, _, anchor = link.partition("#")
        if not name.startswith("http"):
            target = page.parent / name if name else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_the_reference_describes_every_public_name() -> None:
    text = (DOCS / "api.md").read_text("utf-8").replace("answering.opening.open_replies", "open")
    assert sorted(re.findall(r"^::: polyrank\.(\w+)$", text, re.MULTILINE)) == polyrank.__all__


@pytest.mark.deep
def test_quoted_messages_exist() -> None:
    """The first column of each table in messages.md is a part of a message in the package."""
    strings = []
    for path in [file for folder in ("src", "chats", "cluster") for file in (ROOT / folder).rglob("*.py")]:
        for node in nodes(path.read_text("utf-8")):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            strings.append("".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts))
    known = "\n".join(strings)
    tables = (DOCS / "messages.md").read_text("utf-8").partition("## Arguments")[2]
    quoted = re.findall(r"^\| `([^`]+)` \|", tables, re.MULTILINE)
    assert len(quoted) > 30
    assert not [text for text in quoted if text not in known and not text.startswith("file:line")]


def test_every_error_has_the_exit_code_that_the_tables_state() -> None:
    """In the docstring's tree, which also shows each error's base class, and on the page of messages."""
    tree = re.findall(r"^([^\w\n]*)(\w+Error) +(\d)", errors.__doc__ or "", re.MULTILINE)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert [(name, int(code)) for _, name, code in tree] == [(kind.__name__, kind.exit_code) for kind in kinds]
    above = [
        next((kind for indent, kind, _ in tree[n::-1] if len(indent) < len(tree[n][0])), "") for n in range(len(tree))
    ]
    assert above[1:] == [kind.__bases__[0].__name__ for kind in kinds[1:]]
    rows = re.findall(r"^\| (\d) \| (`.*?`) \|", (DOCS / "messages.md").read_text("utf-8"), re.MULTILINE)
    assert [int(code) for code, _ in rows] == sorted({kind.exit_code for kind in kinds})
    for code, names in rows:
        assert {getattr(errors, name).exit_code for name in re.findall(r"\w+", names)} == {int(code)}


def test_every_public_name_has_an_example() -> None:
    pages = [ROOT / "README.md", *DOCS.glob("*.md")]
    text = "".join(page.read_text("utf-8") for page in pages)
    code = "".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert not [name for name in polyrank.__all__ if not re.search(rf"\b{name}\b", code)]


def test_every_page_is_on_the_site() -> None:
    listed = set(re.findall(r"([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))
    assert listed == {page.name for page in DOCS.glob("*.md")} | {
        "SECURITY.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "README.md",
    }


def words(page: Path) -> int:
    """How many words a page has outside tables that runs/tables.py writes."""
    text = re.sub(r"<!-- ([\w-]+) -->\n.*?<!-- /\1 -->", "", page.read_text("utf-8"), flags=re.DOTALL)
    return len(text.split())


def test_pages_are_short() -> None:
    assert sum(words(page) for page in DOCS.glob("*.md") if page.name not in GENERATED) <= 25_000
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 140


def test_decisions_are_few_short_records_about_existing_code() -> None:
    records = (DOCS / "decisions.md").read_text("utf-8").split("\n## ")[1:]
    assert len(records) <= 30
    for record in records:
        title, *lines = record.strip().splitlines()
        names = [line.partition(":")[0] for line in lines if line.startswith("-")]
        assert names == ["- Context", "- Decision", "- Consequence", "- Code"], title
        for path in re.findall(r"`([^`]+)`", lines[-1]):
            assert any((home / path).exists() for home in (ROOT, ROOT / "src/polyrank")), f"{title}: {path}"
