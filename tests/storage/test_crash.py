"""Crashes, failing disks and damage: a short version of runs/crash.py."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from crashes import faults
from crashes.disk import CREATE, EXCHANGE, LOST, MKDIR, RENAME, SYNC, UNLINK, WRITE, Change, Disk
from crashes.workload import held_by, script

COMMAND = Path(__file__).parents[2] / "runs" / "crash.py"

preloads = pytest.mark.skipif(
    sys.platform != "linux" or faults.compiler() is None, reason="needs Linux and a C compiler to intercept calls"
)


def crash(*options: str) -> dict[str, Any]:
    """Run the script and return its summary."""
    done = subprocess.run(
        [sys.executable, COMMAND, "--bare", *options], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    parts: dict[str, Any] = {key.partition(",")[0]: part for key, part in summary["parts"].items()}
    assert [text for part in parts.values() for text in part["violations"]] == []
    assert done.returncode == 0
    return parts


@pytest.mark.deep
def test_a_killed_writer_loses_and_restores_nothing() -> None:
    assert crash("--kills", "8", "--seed", "5")["kills"]["n"] == 8


@pytest.mark.deep
@preloads
def test_every_durable_call_may_fail_or_be_interrupted() -> None:
    found = crash("--calls", "1", "--every", "97", "--seed", "1")["calls"]
    assert found["n_calls"] > 300
    assert found["outcomes"]["killed"] > 3
    assert found["outcomes"]["EIO: reported"] > 1


@pytest.mark.deep
@preloads
def test_a_power_loss_keeps_acknowledged_steps() -> None:
    found = crash("--power", "1", "--losses", "1", "--every", "31", "--seed", "2")
    assert found["power"]["n"] > 20
    assert found["losses"]["n"] > 20


@pytest.mark.deep
def test_damage_is_refused_or_harmless() -> None:
    found = crash("--flips", "1", "--log-flips", "1", "--removals", "1", "--every", "701", "--seed", "3")
    assert found["flips"]["outcomes"]["refused"] > 10
    assert found["log flips"]["outcomes"]["refused"] > 50
    assert found["removals"]["outcomes"]["refused"] > 0


def test_the_workloads_steps_match_its_content() -> None:
    plan = script(0)
    assert plan.held[0] is None
    assert [step.name for step in plan.steps].count("recreate") == 1
    for step, before, after in zip(plan.steps[1:], plan.held[1:], plan.held[2:], strict=False):
        assert before is not None
        assert after is not None
        if step.name == "remove":
            assert set(before) - set(after) == set(step.ids) - {"unknown"}
        if step.name in ("compact", "snapshot", "reopen"):
            assert before == after


def test_a_missing_folder_has_no_content(tmp_path: Path) -> None:
    assert held_by(tmp_path / "none") is None


def test_a_power_loss_keeps_synced_data(tmp_path: Path) -> None:
    """By hand: bytes need a sync of the file, names a sync of the folder; a rename is atomic."""
    disk, root = Disk(Path("/d")), tmp_path

    def left(*changes: tuple[int, str, str, bytes]) -> dict[str, bytes]:
        for kind, path, other, data in changes:
            disk.apply(Change(kind, path, other, 0, data))
        place = root / str(len(list(root.iterdir())))
        place.mkdir()
        disk.leave(place, None)
        return {str(p.relative_to(place)): p.read_bytes() for p in sorted(place.rglob("*")) if p.is_file()}

    assert left((CREATE, "/d/a", "", b""), (WRITE, "/d/a", "", b"one"), (SYNC, "/d/a", "", b"")) == {}
    assert left((SYNC, "/d", "", b"")) == {"a": b"one"}
    assert left((WRITE, "/d/a", "", b"two"), (MKDIR, "/d/f", "", b""), (RENAME, "/d/a", "/d/b", b"")) == {"a": b"one"}
    assert left((SYNC, "/d", "", b"")) == {"b": b"one"}
    assert left((SYNC, "/d/b", "", b""), (CREATE, "/d/f/c", "", b""), (SYNC, "/d/f", "", b"")) == {
        "b": b"two",
        "f/c": b"",
    }
    assert left((EXCHANGE, "/d/f", "/d/b", b""), (SYNC, "/d", "", b"")) == {"b/c": b"", "f": b"two"}
    assert left((WRITE, "/d/f", "", b"TWO"), (LOST, "/d/f", "", b""), (SYNC, "/d/f", "", b"")) == {
        "b/c": b"",
        "f": b"two",
    }
    assert left((UNLINK, "/d/f", "", b"")) == {"b/c": b"", "f": b"two"}
