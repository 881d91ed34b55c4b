"""A way into a Ray cluster, and what its workers need to know of the process that asks them."""

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from polyrank.config.checked import read_choice
from polyrank.errors import MissingExtraError, OfflineError, UsageError

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when ray is imported: nothing is reported to anybody
os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
os.environ.setdefault("RAY_DATA_LOG_LEVEL", "CRITICAL")  # what fails there is told here

try:
    import ray
except ImportError as error:
    raise MissingExtraError("ray", "ray") from error

Device = Literal["auto", "cpu", "cuda"]
LOCAL = "local"
CONNECTING_S = 5.0
OURS = "POLYRANK_"  # variables that say how to compute; workers have to compute alike


@contextmanager
def connected(address: str = "auto") -> Iterator[None]:
    """Use a Ray cluster in here; one that this process has joined already is used as it is.

    Args:
        address: "auto": the cluster that runs on this machine; ``HOST:PORT`` of another's head; "local": one that is
            started for this, with all cores of this machine, and ends with it.

    Raises:
        OfflineError: there is no cluster.
        UsageError: the address is none.
    """
    if ray.is_initialized():
        yield
        return
    _check_answers(address)
    heard = signal.getsignal(signal.SIGTERM)
    variables = {name: value for name, value in os.environ.items() if name.startswith(OURS)}
    try:
        ray.init(
            address=address,
            runtime_env={"env_vars": variables} if variables else None,
            logging_level=logging.ERROR,
            log_to_driver=False,
            **({"include_dashboard": False} if address == LOCAL else {}),
        )
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        raise _absent(address) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, heard)  # which Ray takes for itself
    try:
        yield
    finally:
        ray.shutdown()


def check_arguments(address: str, device: str) -> None:
    """Refuse what cannot be meant, before anything is read or connected.

    Raises:
        UsageError: the address or the device is none.
    """
    if address not in ("auto", LOCAL):
        _host_and_port(address)
    read_choice(device, Device, "device of a Ray cluster")


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise UsageError(f'{address!r} is no address of a Ray cluster; give "auto", "{LOCAL}" or HOST:PORT')
    return host, int(port)


def _check_answers(address: str) -> None:
    """Ray itself waits for minutes, and talks meanwhile."""
    if address in ("auto", LOCAL):
        return
    host, port = _host_and_port(address)
    try:
        socket.create_connection((host, port), timeout=CONNECTING_S).close()
    except (OSError, OverflowError) as error:
        raise _absent(address) from error


def _absent(address: str) -> OfflineError:
    return OfflineError(
        f"no Ray cluster answers at {address!r}; start one with `ray start --head`, name another as HOST:PORT, or use"
        f' "{LOCAL}" for this machine alone'
    )


def n_gpus(device: str) -> int:
    """How many GPUs a worker has: one where it is asked for, or where the cluster has any and nothing is said.

    Raises:
        UsageError: there is none, and one was asked for.
    """
    there = ray.cluster_resources().get("GPU", 0) >= 1
    if device == "cuda" and not there:
        raise UsageError("the Ray cluster has no GPU; use --device cpu, or add a node that has one")
    return int(there and device in ("auto", "cuda"))


def here() -> str:
    """The id of the node that this process is on."""
    return ray.get_runtime_context().get_node_id()  # type: ignore[no-any-return]


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Paths mean here what they mean where the work was asked for.

    Raises:
        UsageError: this node has no such folder.
    """
    try:
        with contextlib.chdir(folder):
            yield
    except FileNotFoundError as error:
        if folder.is_dir():
            raise
        raise UsageError(
            f"a node of the Ray cluster has no folder {folder}; start from one that all nodes see"
        ) from error
