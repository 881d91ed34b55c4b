"""The names that users import: the same for programs and for type checkers."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import polyrank

USER = """
import polyrank
from polyrank import Candidate, Scorer, UsageError, evaluate, evaluate_models, read_task, resolve_contestants


def best(folder: str) -> str | None:
    try:
        with polyrank.open(folder) as support:
            answer: polyrank.Answer = support.answer("my wifi is down")
    except UsageError:
        return None
    return answer.text


ranker: Scorer = polyrank.load("bm25")
replies: list[polyrank.Ranked] = ranker.rank("is tea ready", [Candidate("1", "tea is ready")])
rows = evaluate_models(resolve_contestants(["bm25"]), read_task("pairs.jsonl")).rows
"""


def test_type_checkers_and_programs_have_the_same_names() -> None:
    tree = ast.parse(Path(polyrank.__file__).read_text("utf-8"))
    (checked,) = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    imported["open"] = imported.pop("open_replies")
    there = {name: source.split(":") for name, source in polyrank._SOURCES.items()}
    assert {name: (module, own[0] if own else name) for name, (module, *own) in there.items()} == imported
    assert len(imported) > 40


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'polyrank' has no attribute 'Reranker'"):
        _ = polyrank.Reranker
    assert getattr(polyrank, "Reranker", None) is None


@pytest.mark.slow
@pytest.mark.deep
def test_a_users_program_passes_a_strict_type_checker(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(USER, "utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", "cache", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout) == (0, "Success: no issues found in 1 source file\n")
