"""The breadth of the package: lines of code, and words that name one thing."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from syntax import nodes

ROOT = Path(__file__).parents[2]
PACKAGE, CHATS = ROOT / "src" / "polyrank", ROOT / "chats" / "polyrank_chats"
MOST_LINES = {PACKAGE: 31_570, CHATS: 3_000}  # a change that needs more removes something first
MOST_REPEATED_NAMES = 4  # of classes, in several modules


def code_of(text: str) -> tuple[int, list[str]]:
    """Lines with code: without docstrings, comments and blank lines, but with all lines of other texts; and classes.

    >>> code_of('"A module."\\n\\nx = (  # two\\n    1\\n)\\n# three\\ny = \\'\\'\\'\\n\\n#\\'\\'\\'\\nclass A: ...\\n')
    (7, ['A'])
    """
    docstrings: set[int] = set()
    texts: set[int] = set()
    classes: list[str] = []
    for node in nodes(text):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                classes += [node.name] if isinstance(node, ast.ClassDef) else []
                match node.body:
                    case [ast.Expr(value=ast.Constant(value=str())) as doc, *_]:
                        docstrings.update(range(doc.lineno, (doc.end_lineno or doc.lineno) + 1))
            case ast.Constant(value=str()) | ast.JoinedStr():
                texts.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    rows = enumerate(text.splitlines(), 1)
    lines = texts | {number for number, row in rows if row.strip() and row.lstrip()[0] != "#"}
    return len(lines - docstrings), classes


@cache
def codes(package: Path) -> dict[Path, tuple[int, list[str]]]:
    """Of each module."""
    return {file: code_of(file.read_text("utf-8")) for file in package.rglob("*.py")}


@pytest.mark.parametrize("package", MOST_LINES, ids=lambda package: package.name)
def test_a_package_stays_small(package: Path) -> None:
    sizes = Counter({file: n for file, (n, _) in codes(package).items()})
    assert sizes.total() <= MOST_LINES[package], sizes.most_common(10)


def test_a_name_means_one_class() -> None:
    names = Counter(name for _, classes in codes(PACKAGE).values() for name in classes)
    repeated = sorted(name for name, count in names.items() if count > 1)
    assert len(repeated) <= MOST_REPEATED_NAMES, repeated
