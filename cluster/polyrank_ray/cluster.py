"""Connects to a Ray cluster and passes this process's settings to the workers."""

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Literal

from polyrank import OfflineError, UsageError
from polyrank.config.checked import read_choice, whole_number

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when ray is imported: Ray sends no usage reports
os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")

import ray

Device = Literal["auto", "cpu", "cuda"]
LOCAL = "local"
CONNECTING_S = 5.0
PREFIX = "POLYRANK_"  # of environment variables that control computation; workers need the same values


@contextmanager
def connected(address: str = "auto") -> Iterator[None]:
    """Use a Ray cluster inside the ``with`` block; an existing connection of this process is used as it is.

    Args:
        address: "auto": the cluster that runs on this machine; ``HOST:PORT`` of another cluster's head; "local": a
            cluster of all cores of this machine that exists only inside the block.

    Raises:
        OfflineError: no cluster answers.
        UsageError: the address is invalid.
    """
    if ray.is_initialized():
        yield
        return
    _check_answers(address)
    handler = signal.getsignal(signal.SIGTERM)
    variables = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
    try:
        ray.init(
            address=address,
            runtime_env={"env_vars": variables} if variables else None,
            logging_level=logging.ERROR,
            log_to_driver=False,
            **({"include_dashboard": False} if address == LOCAL else {}),
        )
    except Exception as error:  # of a node that does not start in time, Ray raises a bare one
        raise _absent(address) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray has replaced it
    try:
        yield
    finally:
        ray.shutdown()


def check_arguments(address: str, device: str, **counts: int) -> None:
    """Check the address, the device and numbers of at least 1 before anything is read or connected.

    Raises:
        UsageError: one of them is invalid.
    """
    for name, count in counts.items():
        whole_number(count, name, least=1)
    if address not in ("auto", LOCAL):
        _host_and_port(address)
    read_choice(device, Device, "device of a Ray cluster")


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise UsageError(f'{address!r} is not the address of a Ray cluster; use "auto", "{LOCAL}" or HOST:PORT')
    return host, int(port)


def _check_answers(address: str) -> None:
    """Fail quickly: Ray itself waits for minutes and prints messages meanwhile."""
    if address in ("auto", LOCAL):
        return
    host, port = _host_and_port(address)
    try:
        socket.create_connection((host, port), timeout=CONNECTING_S).close()
    except (OSError, OverflowError) as error:
        raise _absent(address) from error


def _absent(address: str) -> OfflineError:
    if address == LOCAL:
        return OfflineError("Ray did not start on this machine; try again when it is less busy, or work without Ray")
    return OfflineError(
        f"no Ray cluster answers at {address!r}; start one with `ray start --head`, use another HOST:PORT, or use"
        f' "{LOCAL}" for this machine alone'
    )


def n_gpus(device: str) -> int:
    """Number of GPUs per worker: 1 if ``device`` is "cuda", or "auto" and the cluster has a GPU; otherwise 0.

    Raises:
        UsageError: ``device`` is "cuda" and the cluster has no GPU.
    """
    available = ray.cluster_resources().get("GPU", 0) >= 1
    if device == "cuda" and not available:
        raise UsageError("the Ray cluster has no GPU; use `device=cpu`, or add a node with a GPU")
    return int(available and device in ("auto", "cuda"))


def share_of_gpus(device: str, n: int) -> float:
    """GPUs of each of n processes of the cluster, as for ``n_gpus``: one, or a part of one if there are fewer GPUs."""
    return n_gpus(device) and 1.0 / ceil(n / ray.cluster_resources()["GPU"])


def current_node_id() -> str:
    """Id of the node that this process runs on."""
    return ray.get_runtime_context().get_node_id()  # type: ignore[no-any-return]


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Change to the folder in which the caller started the work, so that relative paths keep their meaning.

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
            f"a node of the Ray cluster has no folder {folder}; start from a folder that all nodes share"
        ) from error
