"""A Ray cluster of two nodes on this machine whose nodes a test can kill."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # otherwise a leftover thread of Ray reconnects
    "RAY_worker_niceness": "0",  # otherwise other processes have priority
    "RAY_health_check_failure_threshold": "5",
    "RAY_health_check_period_ms": "1000",
}
MEMORY = 80 * 2**20  # bytes of a node's object store


class Nodes:
    """A head and further nodes, each with one CPU.

    Args:
        folder: folder of the cluster's files, with a short path, since paths of sockets are limited.
    """

    def __init__(self, folder: str) -> None:
        from ray.cluster_utils import Cluster

        self._node = {"num_cpus": 1, "object_store_memory": MEMORY}
        head = {**self._node, "include_dashboard": False, "temp_dir": folder}
        self.cluster = Cluster(initialize_head=True, connect=False, head_node_args=head)
        self.add()

    @property
    def address(self) -> str:
        """The value for ``--address``."""
        return str(self.cluster.address)

    def add(self) -> None:
        """Start another node."""
        self.other = self.cluster.add_node(**self._node)

    def kill(self) -> None:
        """Kill all processes of the latest node, like a power cut."""
        (started,) = self.other.all_processes["raylet"]
        for pid in [*descendants(started.process.pid), started.process.pid]:
            end(pid)
        self.cluster.remove_node(self.other, allow_graceful=False)


@contextmanager
def two_nodes() -> Iterator[Nodes]:
    """Start a cluster, and end it with all of its processes at the end of the block."""
    resource_tracker.ensure_running()  # otherwise it starts with the cluster, and ends with it
    folder, before = tempfile.mkdtemp(prefix="ray"), descendants(os.getpid())
    (Path(folder) / "ray").mkdir()  # Ray expects this folder, and writes the head's address for "auto" into it
    nodes: Any = None
    with patch.dict(os.environ, RAY_TMPDIR=folder):  # apart from a cluster of the user
        try:
            nodes = Nodes(folder)
            yield nodes
        finally:
            started = [pid for pid in descendants(os.getpid()) if pid not in before]
            if nodes is not None:
                import ray

                ray.shutdown()
                with suppress(ValueError):  # Ray may still count this process to a dead node; all end below
                    nodes.cluster.shutdown()
            for pid in started:
                end(pid)
            shutil.rmtree(folder, ignore_errors=True)


def end(pid: int) -> None:
    """Kill a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def processes() -> dict[int, tuple[int, str]]:
    """Parent and name of each process."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = dict(
                line.split(":\t", 1) for line in (folder / "status").read_text().splitlines() if ":\t" in line
            )
            name = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except (OSError, ProcessLookupError):
            continue  # the process has ended
        if not status["State"].startswith("Z"):
            found[int(folder.name)] = (int(status["PPid"]), name or status["Name"])
    return found


def descendants(root: int) -> list[int]:
    """All descendants of a process."""
    parents = {pid: parent for pid, (parent, _) in processes().items()}
    below = {root}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return sorted(below - {root})
