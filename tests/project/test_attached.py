"""Processes that tests start end with them, even if the tests are killed."""

import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ray_nodes import descendants

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux to end children with their parent"),
]
HERE = Path(__file__).parents[1]
PATIENCE_S = 60

STARTS = """
import signal
import time

from milvus import Milvus
from processes import start
from servers import serving


def test_that_waits_to_be_killed(tmp_path):
    server = Milvus(tmp_path).start()
    child = start(signal.pause)
    with serving("shipped:convert"):
        print("all are there", child.pid, server.process.pid, flush=True)
        signal.pause()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_test_run_leaves_no_process(number: signal.Signals, tmp_path: Path) -> None:
    pytest.importorskip("milvus_lite")
    (tmp_path / "test_starts.py").write_text(STARTS)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "test_starts.py"]
    command += ["-c", os.devnull, "--rootdir", str(tmp_path), "--basetemp", str(tmp_path / "base")]
    paths = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    with (
        tempfile.TemporaryDirectory() as temporary,  # a killed run deletes nothing, and socket paths must be short
        subprocess.Popen(
            command,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths, "TMPDIR": temporary},
        ) as tests,
    ):
        assert tests.stdout is not None
        try:
            said = next((line for line in tests.stdout if "all are there" in line), "")
            started = descendants(tests.pid)
            assert len(started) >= 4, said  # the server of vectors, the fork server, its child, and polyrank serve
            ends = [os.pidfd_open(pid) for pid in started]
        finally:
            tests.send_signal(number)
        tests.wait(PATIENCE_S)
    waiting = set(ends)
    while waiting:
        ended, _, _ = select.select(waiting, [], [], PATIENCE_S)
        assert ended, [pid for pid, end in zip(started, ends, strict=True) if end in waiting]
        waiting -= set(ended)
    for end in ends:
        os.close(end)
