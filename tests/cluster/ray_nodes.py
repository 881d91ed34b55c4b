"""A Ray cluster of two nodes on this machine whose nodes a test can kill.

It has its own process, and so must everything that connects to it: Ray ends a process that calls it after its
shutdown, even from a leftover thread (https://github.com/ray-project/ray/pull/19115). A worker of pytest would end in
the middle of a later test.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from processes import join, start

os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # otherwise a leftover thread of Ray reconnects
    "RAY_worker_niceness": "0",  # otherwise other processes have priority
    "RAY_health_check_failure_threshold": "5",
    "RAY_health_check_period_ms": "1000",
}
MEMORY = 80 * 2**20  # bytes of a node's object store


class Nodes:
    """A running cluster: a head and another node, each with one CPU. It can be passed to another process.

    Args:
        folder: of the cluster's files.
        address: the value for ``--address``.
        process: a connection to the process that runs it.
    """

    def __init__(self, folder: str, address: str, process: "Connection[Any, Any]") -> None:
        self.folder, self.address, self._process = folder, address, process

    def kill(self) -> None:
        """Kill all processes of the latest node, like a power cut."""
        self._call("kill")

    def add(self) -> None:
        """Start another node."""
        self._call("add")

    def _call(self, name: str) -> None:
        self._process.send(name)
        self._process.recv()

    def run(self, work: Callable[..., None], *arguments: Any) -> None:
        """Call a module's function with this cluster in a new process that is connected to it."""
        assert join([start(_connected, work, self, *arguments)]) == [0]

    def processes(self) -> list[str]:
        """The names of its processes."""
        mark = f"RAY_TMPDIR={self.folder}".encode()
        found = []
        for pid, (_, name) in processes().items():
            with suppress(OSError):  # the process has ended
                if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.append(name)
        return found


def _connected(work: Callable[..., None], nodes: Nodes, *arguments: Any) -> None:
    from polyrank_ray.cluster import connected

    with connected(nodes.address):
        work(nodes, *arguments)


class _Cluster:
    """The cluster, in its own process."""

    def __init__(self, folder: str) -> None:
        from ray.cluster_utils import Cluster

        self._node = {"num_cpus": 1, "object_store_memory": MEMORY}
        head = {**self._node, "include_dashboard": False, "temp_dir": folder}
        self.cluster = Cluster(initialize_head=True, connect=False, head_node_args=head)
        self.add()

    def add(self) -> None:
        self.other = self.cluster.add_node(**self._node)

    def kill(self) -> None:
        (started,) = self.other.all_processes["raylet"]
        for pid in [*descendants(started.process.pid), started.process.pid]:
            end(pid)
        self.cluster.remove_node(self.other, allow_graceful=False)


def _run(folder: str, tests: "Connection[Any, Any]") -> None:
    """Start a cluster, and change it as the tests ask, until they end."""
    os.environ["RAY_TMPDIR"] = folder  # apart from a cluster of the user
    (Path(folder) / "ray").mkdir()  # Ray expects this folder, and writes the head's address for "auto" into it
    try:
        nodes = _Cluster(folder)
        tests.send(str(nodes.cluster.address))
        with suppress(EOFError):
            while True:
                getattr(nodes, tests.recv())()
                tests.send(None)
    finally:
        for pid in descendants(os.getpid()):
            end(pid)


@contextmanager
def two_nodes() -> Iterator[Nodes]:
    """Start a cluster, and end it with all of its processes at the end of the block."""
    folder = tempfile.mkdtemp(prefix="ray")  # a short path, since paths of sockets are limited
    own, theirs = Pipe()
    process = start(_run, folder, theirs)
    theirs.close()
    try:
        yield Nodes(folder, own.recv(), own)
    finally:
        own.close()
        process.join(60)
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
