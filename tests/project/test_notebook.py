"""The notebook of the docs runs from its first cell to its last, in an empty folder."""

import ast
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "first-hour.ipynb"


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """The value of the cell's last expression; a line that starts with ! is a command."""
    if source.startswith("!"):
        subprocess.run(shlex.split(source[1:]), check=True)
        return None
    *body, last = ast.parse(source).body
    exec(compile(ast.Module(body if isinstance(last, ast.Expr) else [*body, last], []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if isinstance(last, ast.Expr) else None


@pytest.mark.deep
@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    names: dict[str, Any] = {}
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    try:
        shown = [run_cell("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]
    finally:
        if "server" in names and names["server"].poll() is None:
            names["server"].kill()
            names["server"].wait()
    frame, tuning, answer, why = (value for value in shown if hasattr(value, "_repr_html_") and value is not shown[-2])
    assert frame["name"].tolist() == ["bm25", "shipped:convert", str(names["run"].model)]
    assert frame["MRR"].between(0.05, 1).all()
    assert tuning.rows[0]["name"] == str(names["run"].model)
    replies = {json.loads(line)["text"] for line in (tmp_path / "replies.jsonl").read_text("utf-8").splitlines()}
    assert len(answer.ranked) == 3
    assert {reply.text for reply in answer.ranked} <= replies
    assert "<table" in answer._repr_html_()
    assert "<span" in why._repr_html_()
    assert names["served"].ranked == answer.ranked
    assert names["server"].returncode == 0


def test_the_stored_notebook_has_no_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
