"""The ten best of N random candidates: a server's answers beside the local ones, and what both take.

python runs/remote.py [N] [D] [ADDRESS]

Without an address (http://HOST:PORT/COLLECTION) a Milvus Lite is started for it. Contexts have one vector, or 16 that
are close to their mean as those of a trained Poly-encoder are. Prints one JSON object for each number of vectors.
"""

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
from polyrank.answering.dense import DenseSearch, search_of

from polyrank.bench.machine import describe_machine
from polyrank.index import LocalIndex, write_index
from polyrank.index.remote import Address, RemoteIndex, write_remote
from polyrank.records import Candidate

K, N_CONTEXTS, SPREAD = 10, 10, 0.3


@contextmanager
def milvus_lite(folder: Path) -> Iterator[str]:
    """The address of a server, which ends with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "milvus_lite", "server", "--data-dir", str(folder), "--host", "127.0.0.1"]
    server = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}/measured"
    finally:
        server.kill()
        server.wait()


def measure(n: int, d: int, address: str, folder: Path) -> None:
    """Build both, ask both, compare."""
    random = np.random.default_rng(0)
    vectors = random.normal(size=(n, d)).astype(np.float32) / np.float32(d**0.25)
    pool = [Candidate(str(i), f"reply {i}", {"n": i}) for i in range(n)]
    taken = {}
    for name, write in (("local", write_index), ("remote", write_remote)):
        start = perf_counter()
        where = (folder / name,) if name == "local" else (folder / name, Address.of(address))
        write(*where, pool, (vectors[i : i + 4096] for i in range(0, n, 4096)), fingerprint="random", model="random")
        taken[name] = perf_counter() - start
    with LocalIndex(folder / "local") as local, RemoteIndex(folder / "remote", timeout_s=120) as remote:
        for m in (1, 16):
            contexts = random.normal(size=(N_CONTEXTS, 1, d)) + SPREAD * (m > 1) * random.normal(
                size=(N_CONTEXTS, m, d)
            )
            contexts = contexts.astype(np.float32) / np.float32(d**0.25)
            rows = {"local": ask(search_of(local), contexts), "remote": ask(search_of(remote), contexts)}
            pairs = list(zip(rows["local"][0], rows["remote"][0], strict=True))
            report = {
                "n": n,
                "d": d,
                "m": m,
                "equal": sum(ranked == other for (ranked, _), (other, _) in pairs) / N_CONTEXTS,
                "proven": sum(result.exact for _, (_, result) in pairs) / N_CONTEXTS,
                "n_scored": median(result.n_scored for _, (_, result) in pairs),
                "build_s": {name: round(seconds, 1) for name, seconds in taken.items()},
                "ms": {name: round(milliseconds) for name, (_, milliseconds) in rows.items()},
                "machine": describe_machine(),
            }
            print(json.dumps(report), flush=True)


def ask(search: DenseSearch, contexts: np.ndarray) -> tuple[list, float]:
    """Answers to contexts asked one by one, after one that is not counted, and the median of milliseconds."""
    mask = np.ones((1, contexts.shape[1]), np.bool_)
    search(contexts[:1], mask, K, "exact", None)
    answers, taken = [], []
    for context in contexts:
        start = perf_counter()
        answers += search(context[None], mask, K, "exact", None)
        taken.append(1000 * (perf_counter() - start))
    return answers, median(taken)


if __name__ == "__main__":
    number, dimension = (int(sys.argv[i]) if len(sys.argv) > i else default for i, default in ((1, 100_000), (2, 384)))
    with tempfile.TemporaryDirectory() as name:
        if len(sys.argv) > 3:
            measure(number, dimension, sys.argv[3], Path(name))
        else:
            with milvus_lite(Path(name) / "milvus") as started:
                measure(number, dimension, started, Path(name))
