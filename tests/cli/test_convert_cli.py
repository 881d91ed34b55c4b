"""A ConveRT from the command line, end to end: train, info, evaluate, compare, rank, index, respond."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyrank.cli import main

RECIPE = """
output = "run"
[model]
kind = "convert"
embedding_dim = 16
attention_dim = 4
ffn_dim = 24
spans = [2, 48]
side_dim = 20
output_dim = 12
multi_context = true
[text]
min_count = 2
[data]
train = "train.jsonl"
valid = "valid.jsonl"
[train]
optimizer = "adamw"
lr = 0.01
batch_size = 8
epochs = 2
method.scale_steps = 5
"""
Run = Callable[..., str]


@pytest.fixture
def polyrank(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process; returns its output, and raises its error."""

    def run(*arguments: str | Path, stdin: str = "") -> str:
        monkeypatch.setattr(sys, "argv", ["polyrank", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8"))
        capsys.readouterr()
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
        return capsys.readouterr().out

    return run


def test_every_command_works_with_a_trained_convert(polyrank: Run, task: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE, "utf-8")
    trained = json.loads(polyrank("train", tmp_path / "recipe.toml", "--threads", "1", "--json"))
    model = Path(trained[0]["model"])
    assert trained[0]["best"]["R@1"] > 0

    shown = json.loads(polyrank("info", model, "--json"))
    assert shown["kind"] == "convert"
    assert {part["name"]: part["dtypes"] for part in shown["parts"]}["layers"] == ["fp16"]
    assert shown["n_bytes_fp32"] == 4 * sum(part["n_parameters"] for part in shown["parts"])
    assert shown["n_bytes"] < 0.55 * shown["n_bytes_fp32"]
    table = polyrank("info", model)
    assert "response_side" in table
    assert f"{shown['n_parameters']:,}" in table

    figures = json.loads(polyrank("evaluate", model, task["valid"], "--scores", tmp_path / "s.jsonl", "--json"))
    assert figures["metrics"]["R@1"] == pytest.approx(trained[0]["best"]["R@1"])
    assert json.loads(polyrank("compare", tmp_path / "s.jsonl", "--json"))[0]["metrics"] == figures["metrics"]

    row: dict[str, Any] = {"context": ["hi", "my router"], "candidates": ["router thanks", "light thanks", "猫"]}
    scores = json.loads(polyrank("rank", model, "--scores-only", stdin=json.dumps(row) + "\n"))["scores"]
    assert len(scores) == 3
    assert max(map(abs, scores)) <= 12**0.5 + 1e-4  # at most a cosine times sqrt(12)

    (tmp_path / "replies.txt").write_text("router thanks\nlight thanks\nred thanks\n", "utf-8")
    polyrank("index", "build", model, tmp_path / "replies.txt", "-o", tmp_path / "index")
    answer = json.loads(polyrank("respond", tmp_path / "index", "-k", "3", "hi", "my router"))
    found = {reply["text"]: reply["score"] for reply in answer["results"]}
    assert found["router thanks"] == pytest.approx(scores[0], abs=1e-4)
    assert found["light thanks"] == pytest.approx(scores[1], abs=1e-4)


def test_info_refuses_other_files(polyrank: Run, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as end:
        polyrank("info", tmp_path)
    assert end.value.code == 4
