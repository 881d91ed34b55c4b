"""How tests run: their processes, order, and settings of the environment. Fixtures are in ``shared_fixtures``."""

import gc
import importlib
import os
import random
import sys
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

# Imports and collection make millions of objects that stay.
gc.disable()

# A test file may import from one of another folder, which pytest may not have collected yet.
FILES = sorted(Path(__file__).parent.rglob("test_*.py"), key=lambda path: path.name)
sys.path += sorted({str(path.parent) for path in FILES} - set(sys.path))

if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
    # pytest's workers use all cores; more threads per process would only wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Results must not depend on the machine; tests of bf16 set it explicitly.
os.environ.setdefault("POLYRANK_PRECISION", "fp32")

# nor on a GPU, which computes in TF32; only test_cuda.py uses one
if not os.environ.get("POLYRANK_TEST_GPU"):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

# gRPC, which a remote index's client loads, would restart its threads in a forked child (preexec_fn) and log to its
# stderr.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# A sync matters only when the power fails. test_durable.py and the crash tests check the syncs and their order.
os.fsync = os.fstat

# Few cases per property by default; `--hypothesis-profile=deep` tries many.
settings.register_profile("few", max_examples=50, deadline=None)
settings.register_profile("deep", max_examples=400, deadline=None)
settings.load_profile("few")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than cores, since tests that wait for servers, clusters and killed processes leave a core idle."""
    return (os.cpu_count() or 1) + 1


def pytest_configure(config: pytest.Config) -> None:
    """Import the fixtures where tests run: the process that only distributes them starts its workers sooner."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("shared_fixtures")
    else:
        # on a busy machine, a worker needs longer to end and to remove its temporary folders
        importlib.import_module("xdist.workermanage").NodeManager.EXIT_TIMEOUT = 60


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Begin to import test files in another place in each worker: each compiles its part, and reads the others'."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    names = [path.stem for path in FILES]
    first = int(worker["workerid"].removeprefix("gw")) * len(names) // worker["workercount"]
    for name in names[first:] + names[:first]:
        with suppress(Exception, pytest.skip.Exception):  # the collection imports it again, and reports
            importlib.import_module(name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order files with slow tests first, then by size, so that no worker starts a long one when the others are done."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    sizes = {path: path.stat().st_size for path in {item.path for item in items}}
    items.sort(key=lambda item: (item.path not in slow, "src" in item.path.parts, -sizes[item.path]))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed what draws without an explicit seed by the test's name; ``POLYRANK_TEST_SEED`` gives other draws."""
    seed = zlib.crc32(f"{os.environ.get('POLYRANK_TEST_SEED', '')}{item.nodeid}".encode())
    random.seed(seed)
    np.random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def pytest_collection_finish() -> None:
    """Leave what the collection made out of all later garbage collections."""
    gc.freeze()
    gc.enable()
