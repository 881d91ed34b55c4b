"""Measures the processor time of each test, including the processes that it starts.

    python runs/durations.py                       the README's selection, then the deep one; writes
                                                   runs/work/durations.jsonl
    python runs/durations.py tests/test_x.py ...   only these files; prints

Processor time depends far less than wall time on the machine's other work. A test's time is the time of its worker and
of all its descendants, from set-up to teardown. A shared fixture counts for the first test that uses it. Imports and
collection are counted as "outside tests".

Needs the packages of ``dev``, and Linux.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SEEN = ROOT / "runs" / "work" / "durations.jsonl"  # of this commit and machine: not stored
SELECTIONS = ("not deep", "deep")
SHORTEST = 0.5  # seconds; shorter tests appear only in their file's sum
TICK = os.sysconf("SC_CLK_TCK")


# --- in pytest: -p durations ------------------------------------------------------------------------------------------


def spent() -> float:
    """Processor seconds of this process and of its descendants, including those that have ended."""
    total, waiting = 0, [os.getpid()]
    for pid in waiting:
        process = Path(f"/proc/{pid}")
        try:
            total += sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:15]))
            for thread in (process / "task").iterdir():
                waiting += map(int, (thread / "children").read_text().split())
        except OSError:  # the process has ended meanwhile
            continue
    return total / TICK


def write(**row: Any) -> None:
    with (Path(os.environ["DURATIONS"]) / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before = spent()
    try:
        return (yield)
    finally:
        write(test=item.nodeid, seconds=spent() - before)


def pytest_sessionfinish(session: pytest.Session) -> None:
    controls = session.config.pluginmanager.hasplugin("dsession")  # xdist's workers write their own
    write(total=sum(os.times()[:2]) if controls else spent())


# --- outside ----------------------------------------------------------------------------------------------------------


def measure(*arguments: str) -> list[dict[str, Any]]:
    """Rows for everything, for each file and for each test, slowest first."""
    with tempfile.TemporaryDirectory() as folder:
        paths = os.pathsep.join(filter(None, [str(ROOT / "runs"), os.environ.get("PYTHONPATH")]))
        variables = {"DURATIONS": folder, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}  # as in a worker
        command = [sys.executable, "-m", "pytest", "-p", "durations", "--durations=0", *arguments]
        code = subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}).returncode
        if code not in (0, 1):
            sys.exit(code)
        rows = [json.loads(line) for file in Path(folder).iterdir() for line in file.read_text("utf-8").splitlines()]
    tests = {row["test"]: row["seconds"] for row in rows if "test" in row}
    files: dict[str, list[float]] = defaultdict(list)
    for test, seconds in tests.items():
        files[test.partition("::")[0]].append(seconds)
    total = sum(row["total"] for row in rows if "total" in row)
    by_time = sorted(tests.items(), key=lambda row: -row[1])
    return [
        {"all": len(tests), "seconds": round(total, 1), "outside tests": round(total - sum(tests.values()), 1)},
        *(
            {"file": file, "tests": len(s), "seconds": round(sum(s), 1)}
            for file, s in sorted(files.items(), key=lambda row: -sum(row[1]))
        ),
        *({"test": test, "seconds": round(seconds, 2)} for test, seconds in by_time if seconds >= SHORTEST),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arguments", nargs="*", help="arguments for pytest")
    arguments = parser.parse_args().arguments
    if arguments:
        for row in measure("-n", "0", *arguments):
            print(json.dumps(row, ensure_ascii=False))
        return
    SEEN.parent.mkdir(exist_ok=True)
    rows = [{"selection": name, **row} for name in SELECTIONS for row in measure("-m", name)]
    SEEN.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


if __name__ == "__main__":
    main()
