"""The scripts of runs/: results by record.py, and imports."""

import ast
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

RUNS = Path(__file__).parents[2] / "runs"
RECORD = RUNS / "record.py"


def record(results: Path, *words: str | Path, said: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"RESULTS": str(results)}
    command = [sys.executable, str(RECORD), *map(str, words)]
    return subprocess.run(command, input=said, capture_output=True, text=True, env=environment)


@pytest.mark.deep
def test_a_result_is_one_line_and_replaces_an_earlier_one(tmp_path: Path) -> None:
    results = tmp_path / "home/runs/results"
    text = '{"loss": 1e-07, "scores": "PLACE/runs/work/a.jsonl", "é": [0.1, 3]}'.replace(
        "PLACE", str(tmp_path / "home")
    )
    assert record(results, "best/star/bi", said="[1]").returncode == 0
    assert record(results, "best/sgd/bi", said="{}").returncode == 0
    assert record(results, "best/star/bi", said=text).returncode == 0
    lines = (results / "best.jsonl").read_text("utf-8")
    commits = re.findall(r'"commit": "([0-9a-f]{10}\+?|)"', lines)
    assert len(commits) == 2
    assert re.sub(r'"commit": "[^"]*", ', "", lines) == (
        '{"name": "best/sgd/bi", "result": {}}\n'
        '{"name": "best/star/bi", "result": {"loss": 1e-07, "scores": "runs/work/a.jsonl", "é": [0.1, 3]}}\n'
    )
    assert json.loads(record(results, "--show", "best/star/bi").stdout)["é"] == [0.1, 3]
    assert [record(results, "--has", f"best/{name}/bi").returncode for name in ("star", "sgd", "medquad")] == [0, 0, 1]


def test_a_file_of_lines_is_stored_as_a_list(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 1}\n', "utf-8")
    assert record(tmp_path / "results", "mutual/star/bi.metrics", metrics).returncode == 0
    assert json.loads(record(tmp_path / "results", "--show", "mutual/star/bi.metrics").stdout) == [{"step": 1}]


@pytest.mark.deep
def test_scripts_that_store_results_concurrently_lose_none(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: record(tmp_path, f"best/star/{i:02}", said=str(i)), range(12)))
    lines = map(json.loads, (tmp_path / "best.jsonl").read_text("utf-8").splitlines())
    assert [(line["name"], line["result"]) for line in lines] == [(f"best/star/{i:02}", i) for i in range(12)]


@pytest.mark.parametrize("path", sorted(RUNS.rglob("*.py")), ids=lambda path: path.name)
def test_scripts_import_names_that_exist(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("polyrank."):
            module = importlib.import_module(str(node.module))
            missing = [one.name for one in node.names if not hasattr(module, one.name)]
            modules = {one.name for one in pkgutil.iter_modules(getattr(module, "__path__", ()))}
            assert not set(missing) - modules
