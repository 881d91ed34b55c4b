"""A way into a Ray cluster, and what its workers need to know of the process that asks them."""

import contextlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from polyrank.errors import MissingExtraError, OfflineError, UsageError

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when ray is imported: nothing is reported to anybody
os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")

try:
    import ray
except ImportError as error:
    raise MissingExtraError("ray", "ray") from error

LOCAL = "local"
OURS = "POLYRANK_"  # variables that say how to compute; workers have to compute alike


@contextmanager
def connected(address: str = "auto") -> Iterator[None]:
    """Use a Ray cluster in here; one that this process has joined already is used as it is.

    Args:
        address: "auto": the cluster that runs on this machine; ``HOST:PORT`` of another's head; "local": one that is
            started for this, with all cores of this machine, and ends with it.

    Raises:
        OfflineError: there is no cluster.
    """
    if ray.is_initialized():
        yield
        return
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
        raise OfflineError(
            f"no Ray cluster answers at {address!r}; start one with `ray start --head`, name another as HOST:PORT, or"
            f' use "{LOCAL}" for this machine alone'
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


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
def working_in(folder: str) -> Iterator[None]:
    """Paths mean here what they mean where the work was asked for.

    Raises:
        UsageError: this node has no such folder.
    """
    try:
        with contextlib.chdir(folder):
            yield
    except FileNotFoundError as error:
        if error.filename != folder:
            raise
        raise UsageError(f"a node of the Ray cluster has no folder {folder}; start from one that all nodes see") from error
