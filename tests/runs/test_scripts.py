"""Scripts and recipes of runs/, and the commands of the documentation, name what exists. Nothing is run."""

import ast
import importlib
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from polyrank.cli.commands import app
from polyrank.errors import PolyrankError
from polyrank.loading.recipes import load_pretrain_recipe, load_recipe

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "runs"
OURS = {"polyrank", "polyrank_chats"}
PASSED_ON = {"chats", "ray"}  # the options are those of another command line
PAGES = [page for page in (*ROOT.glob("docs/*.md"), ROOT / "README.md") if page.name != "commands.md"]


def files(ending: str) -> list[Path]:
    found = [path.relative_to(RUNS) for path in RUNS.rglob(f"*{ending}")]
    return [RUNS / path for path in sorted(found) if path.parts[0] not in ("work", "equivalent")]


@pytest.mark.deep
def test_scripts_import_names_that_exist() -> None:
    missing = []
    for path in files(".py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in OURS:
                module = importlib.import_module(str(node.module))
                missing += [f"{path}: {node.module}.{name.name}" for name in node.names if not _has(module, name.name)]
    assert missing == []


def _has(module: Any, name: str) -> bool:
    if hasattr(module, name):
        return True
    try:
        importlib.import_module(f"{module.__name__}.{name}")
    except ImportError:
        return False
    return True


def fault(words: list[str]) -> str | None:
    """The part of a command line that does not exist; None if all of it does.

    >>> fault(["index", "build", "m", "--an", "auto"]), fault(["sum", "a"]), fault(["evaluate", "m", "--json"])
    ('index build has no option --an', 'unknown command sum', None)
    """
    command, names, rest = get_command(app), list[str](), list(words)
    while hasattr(command, "commands"):
        if not rest or rest[0] not in command.commands:
            return None if not rest or rest[0].startswith("-") else f"unknown command {' '.join([*names, rest[0]])}"
        names.append(rest.pop(0))
        command = command.commands[names[-1]]
    if names[-1] in PASSED_ON:
        return None
    options = {"--help", *(name for one in command.params for name in (*one.opts, *one.secondary_opts))}
    given = (word.partition("=")[0] for word in rest if re.match(r"--[a-z]", word))
    return next((f"{' '.join(names)} has no option {name}" for name in given if name not in options), None)


def calls(path: Path) -> Iterator[list[str]]:
    """The arguments of each call of polyrank in a script, or in the sh blocks of a page."""
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        text = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    text = re.sub(r"^\s*#.*$", "", text.replace("\\\n", " "), flags=re.MULTILINE)
    for found in re.finditer(r"(?:^|[\s;&(`$])polyrank ((?!=)[^`|;&)\n]*)", text):
        try:
            yield shlex.split(found[1], comments=True)
        except ValueError:  # a quotation that continues after a sign that ends a call
            yield found[1].split()


@pytest.mark.parametrize("path", [*files(".sh"), *PAGES], ids=lambda path: path.name)
def test_scripts_and_pages_call_commands_and_options_that_exist(path: Path) -> None:
    assert [problem for words in calls(path) if (problem := fault(words))] == []


def test_calls_are_found() -> None:
    assert sum(len([*calls(path)]) for path in files(".sh")) > 50
    assert sum(len([*calls(path)]) for path in PAGES) > 40


@pytest.mark.parametrize("path", [p for p in files(".toml") if p.name != "published.toml"], ids=lambda path: path.name)
def test_recipes_are_resolved(path: Path) -> None:
    tables = tomllib.loads(path.read_text("utf-8"))
    changes = ["train.init_from=shipped:convert"] if "init_from" in tables.get("train", {}) else []
    try:
        load_recipe(path, changes)
    except PolyrankError:
        load_pretrain_recipe(path, changes)


def test_the_scripts_can_fail(tmp_path: Path) -> None:
    script = tmp_path / "x.sh"
    script.write_text(
        "polyrank sum a b\npolyrank evaluate m \\\n  x.jsonl --no-such && polyrank index list ix\n", "utf-8"
    )
    assert [fault(words) for words in calls(script)] == [
        "unknown command sum", "evaluate has no option --no-such", None,
    ]  # fmt: skip
