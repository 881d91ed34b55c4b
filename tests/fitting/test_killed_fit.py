"""A fit with trainings that is killed again and again makes the same ranker as one that runs through."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polyrank.storage.durable import sha256_file
from test_fit import few

EMBEDDED_ONLY = """
from polyrank.config import names
names.MODELS_PACKAGE = "none"  # its larger models train longer
from polyrank.cli import program
program()
"""


@pytest.mark.deep
@pytest.mark.slow
def test_a_killed_fit_makes_the_same_ranker(tmp_path: Path) -> None:
    data, generator = few(tmp_path / "data", 4, 3), random.Random(5)

    def command(name: str) -> list[str]:
        options = ["-o", str(tmp_path / name), "--minutes", "60", "--resume"]
        return [sys.executable, "-c", EMBEDDED_ONLY, "fit", str(data), *options]

    subprocess.run(command("whole"), check=True, capture_output=True)
    for _ in range(5):
        process = subprocess.Popen(command("killed"), stderr=subprocess.DEVNULL)
        try:
            process.wait(generator.uniform(3, 12))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    subprocess.run(command("killed"), check=True, capture_output=True)
    one, other = (results(tmp_path / name) for name in ("whole", "killed"))
    assert one == other
    assert sum(name.endswith(".safetensors") for name in one) > 4  # the ranker and its trained candidates


def results(folder: Path) -> dict[str, Any]:
    """The lines of a fit's report without times, and the digests of the ranker and of the trained models."""
    report = json.loads((folder / "report.json").read_text("utf-8"))
    times = ("milliseconds", "minutes")
    lines = [{key: value for key, value in line.items() if key not in times} for line in report["lines"]]
    files = [path for path in folder.rglob("*.safetensors") if path.name != "checkpoint.safetensors"]  # it holds times
    weights = {str(path.relative_to(folder)): sha256_file(path) for path in files}
    return {"ranker": report["ranker"], "lines": lines, **weights}
