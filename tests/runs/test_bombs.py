"""Files and requests that take little space: reading or refusing them takes little memory."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

RUNS = Path(__file__).parents[2] / "runs"
MOST_BYTES = 500 * 10**6
LONG = ("json-objects.json", "txt-chat.txt", "mbox-headers.mbox", "safetensors-names.safetensors")


@pytest.mark.deep
@pytest.mark.slow
def test_no_bomb_takes_much_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the files without those of a million rows, which take a minute each, and all requests."""
    monkeypatch.syspath_prepend(RUNS)
    bombs = import_module("bombs")
    third = [name for name in [*bombs.BOMBS, *bombs.FOLDERS][2::3] if name not in LONG]
    names = [*third, "http"]
    done = subprocess.run([sys.executable, RUNS / "bombs.py", tmp_path, *names], stdout=subprocess.PIPE, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["bomb"] for row in rows} > {*third}
    assert not [row for row in rows if row["bytes"] > MOST_BYTES or row["outcome"].startswith("failed")]
