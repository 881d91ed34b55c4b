"""A fit with trainings that is killed again and again makes the same ranker as one that runs through."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

import polyrank
from test_fit import few


@pytest.mark.deep
@pytest.mark.slow
def test_a_killed_fit_makes_the_same_ranker(tmp_path: Path) -> None:
    data, generator = few(tmp_path / "data", 4), random.Random(5)

    def command(name: str) -> list[str]:
        options = ["-o", str(tmp_path / name), "--minutes", "60", "--resume"]
        return [sys.executable, "-m", "polyrank", "fit", str(data), *options]

    subprocess.run(command("whole"), check=True, capture_output=True)
    for _ in range(5):
        process = subprocess.Popen(command("killed"), stderr=subprocess.DEVNULL)
        try:
            process.wait(generator.uniform(3, 20))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    subprocess.run(command("killed"), check=True, capture_output=True)
    one, other = (polyrank.load(tmp_path / name / "ranker") for name in ("whole", "killed"))
    assert one.fingerprint == other.fingerprint
    weights = [(tmp_path / name / "ranker" / "ranker.safetensors").read_bytes() for name in ("whole", "killed")]
    assert weights[0] == weights[1]
