"""A Ray cluster of two nodes on this machine, whose nodes can be killed."""

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
    "RAY_ENABLE_AUTO_CONNECT": "0",  # else a thread of Ray's that outlives a connection makes another one
    "RAY_worker_niceness": "0",  # else whatever else runs comes first
    "RAY_health_check_failure_threshold": "5",
    "RAY_health_check_period_ms": "1000",
}
MEMORY = 80 * 2**20  # of a node's object store


class Nodes:
    """A head, and other nodes, each of one CPU.

    Args:
        folder: of the cluster's own files; its path is short, since those of sockets are limited.
    """

    def __init__(self, folder: str) -> None:
        from ray.cluster_utils import Cluster

        self._node = {"num_cpus": 1, "object_store_memory": MEMORY}
        head = {**self._node, "include_dashboard": False, "temp_dir": folder}
        self.cluster = Cluster(initialize_head=True, connect=False, head_node_args=head)
        self.add()

    @property
    def address(self) -> str:
        """For ``--address``."""
        return str(self.cluster.address)

    def add(self) -> None:
        """One more node."""
        self.other = self.cluster.add_node(**self._node)

    def kill(self) -> None:
        """End all processes of the node that came last, as a power cut would."""
        (started,) = self.other.all_processes["raylet"]
        for pid in [*descendants(started.process.pid), started.process.pid]:
            end(pid)
        self.cluster.remove_node(self.other, allow_graceful=False)


@contextmanager
def two_nodes() -> Iterator[Nodes]:
    """A cluster that ends with the block, with all of its processes."""
    resource_tracker.ensure_running()  # else it starts with the cluster, and would end with it
    folder, before = tempfile.mkdtemp(prefix="ray"), descendants(os.getpid())
    (Path(folder) / "ray").mkdir()  # Ray expects it there, and writes into it where "auto" finds the head
    nodes: Any = None
    with patch.dict(os.environ, RAY_TMPDIR=folder):  # not where a cluster of the user has its own
        try:
            nodes = Nodes(folder)
            yield nodes
        finally:
            started = [pid for pid in descendants(os.getpid()) if pid not in before]
            if nodes is not None:
                import ray

                ray.shutdown()
                with suppress(ValueError):  # of a node that Ray takes this process to be part of still; all end below
                    nodes.cluster.shutdown()
            for pid in started:
                end(pid)
            shutil.rmtree(folder, ignore_errors=True)


def end(pid: int) -> None:
    """End a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def processes() -> dict[int, tuple[int, str]]:
    """Parent and name by process."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = dict(
                line.split(":\t", 1) for line in (folder / "status").read_text().splitlines() if ":\t" in line
            )
            name = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except (OSError, ProcessLookupError):
            continue  # it has ended
        if not status["State"].startswith("Z"):
            found[int(folder.name)] = (int(status["PPid"]), name or status["Name"])
    return found


def descendants(root: int) -> list[int]:
    """All processes below one."""
    parents = {pid: parent for pid, (parent, _) in processes().items()}
    below = {root}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return sorted(below - {root})
