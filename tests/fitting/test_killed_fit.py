"""A fit with trainings that is killed again and again makes the same ranker as one that runs through."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

import polyrank
from polyrank.storage.durable import sha256_file
from processes import join, start
from small_start import make_package, start_small
from test_fit import few


def fit_small(package: Path, data: Path, output: Path) -> None:
    start_small(package, pytest.MonkeyPatch())
    polyrank.fit(data, output, minutes=60, resume=True)


@pytest.mark.deep
@pytest.mark.slow
def test_a_killed_fit_makes_the_same_ranker(tiny_backbone: Path, tmp_path: Path) -> None:
    data, generator = few(tmp_path / "data", 4, 3), random.Random(5)
    package = make_package(tiny_backbone, tmp_path / "package")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert join([start(fit_small, package, data, whole)]) == [0]
    for _ in range(5):
        process = start(fit_small, package, data, killed)
        process.join(generator.uniform(0.5, 4))
        process.kill()
        process.join()
    assert join([start(fit_small, package, data, killed)]) == [0]
    one, other = results(whole), results(killed)
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
