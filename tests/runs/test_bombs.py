"""Files and requests that take little space: reading or refusing them takes little memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

MOST_BYTES = 500 * 10**6


@pytest.mark.deep
@pytest.mark.slow
def test_no_bomb_takes_much_memory(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "runs" / "bombs.py"
    done = subprocess.run([sys.executable, script, tmp_path], stdout=subprocess.PIPE, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len({row["bomb"] for row in rows}) > 300
    assert not [row for row in rows if row["bytes"] > MOST_BYTES or row["outcome"].startswith("failed")]
