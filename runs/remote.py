"""Compares the ten best of N random candidates from a Milvus server with those of a local index, and times both.

Also times the server's own search for the keys of the largest products with each vector of the context: as many as the
first lists of polyrank's search have, and ten.

python runs/remote.py [N] [D] [ADDRESS]

Without an address (http://HOST:PORT/COLLECTION) the script starts a Milvus Lite. Contexts have one vector, or 16 near
their mean, like those of a trained Poly-encoder. Prints one JSON object per number of vectors.
"""

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import truediv
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TypeVar

import numpy as np

from polyrank.bench.machine import describe_machine
from polyrank.index import Index, LocalIndex, write_index
from polyrank.index.remote import Address, RemoteIndex, write_remote
from polyrank.records import Candidate
from polyrank.search import NearestSearch, Result
from polyrank.search.lists import FIRST

K, N_CONTEXTS, SPREAD = 10, 20, 0.3
T = TypeVar("T")


@contextmanager
def milvus_lite(folder: Path) -> Iterator[str]:
    """Start a server and yield its address; the server ends with the block."""
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
    """Build and search both indexes, and print the comparison."""
    random = np.random.default_rng(0)
    vectors = random.normal(size=(n, d)).astype(np.float32) / np.float32(d**0.25)
    pool = [Candidate(str(i), f"reply {i}", {"n": i}) for i in range(n)]
    build_s = {}
    for name, write in (("local", write_index), ("remote", partial(write_remote, timeout_s=120))):
        start = perf_counter()
        where = (folder / name,) if name == "local" else (folder / name, Address.of(address))
        write(*where, pool, (vectors[i : i + 4096] for i in range(0, n, 4096)), fingerprint="random", model="random")
        build_s[name] = perf_counter() - start
    with LocalIndex(folder / "local") as local, RemoteIndex(folder / "remote", timeout_s=120) as remote:
        for m in (1, 16):
            contexts = random.normal(size=(N_CONTEXTS, 1, d)) + SPREAD * (m > 1) * random.normal(
                size=(N_CONTEXTS, m, d)
            )
            contexts = contexts.astype(np.float32) / np.float32(d**0.25)
            times: dict[str, list[float]] = {}
            answers = [search_all(local, contexts, "local", times), search_all(remote, contexts, "remote", times)]
            pairs = list(zip(*answers, strict=True))
            report = {
                "n": n,
                "d": d,
                "m": m,
                "equal": sum(ranked(*answer) == ranked(*other) for answer, other in pairs) / N_CONTEXTS,
                "proven": sum(result.exact for _, (_, result) in pairs) / N_CONTEXTS,
                "n_scored": median(result.n_scored for _, (_, result) in pairs),
                "build_s": {name: round(seconds, 1) for name, seconds in build_s.items()},
                "ms": {name: round(median(some)) for name, some in times.items()},
                "least_ms": {name: round(min(some)) for name, some in times.items()},
                "ratio": {
                    name: round(median(map(truediv, times["remote"], times[name])), 2)
                    for name in ("server", "server, lists of ten")
                },
                "machine": describe_machine(),
            }
            print(json.dumps(report), flush=True)


def ranked(candidates: Sequence[Candidate], result: Result) -> list[tuple[str, float]]:
    """Ids and scores, best first."""
    return [(candidate.id, score) for candidate, score in zip(candidates, result.scores.tolist(), strict=True)]


def search_all(
    index: Index, contexts: np.ndarray, name: str, times: dict[str, list[float]]
) -> list[tuple[list[Candidate], Result]]:
    """Answers to contexts searched one by one; their milliseconds, without a first search, are added to ``times``."""
    mask, answers = np.ones((1, contexts.shape[1]), np.bool_), []
    index.search(NearestSearch(contexts[:1], mask, K, "exact"), None)

    def timed(of: str, work: Callable[[], T]) -> T:
        start = perf_counter()
        result = work()
        times.setdefault(of, []).append(1000 * (perf_counter() - start))
        return result

    for context in contexts:

        def search(context: np.ndarray = context) -> list[tuple[list[Candidate], Result]]:
            index.refresh()
            return index.search(NearestSearch(context[None], mask, K, "exact"), None)

        answers += timed(name, search)
        if isinstance(index, RemoteIndex):
            engine = index.engine()
            asked = engine.weighing(context, 0.0)
            for of, length in (("server", 2 * K + FIRST), ("server, lists of ten", K)):
                timed(of, partial(engine.nearest, asked, length))
    return answers


if __name__ == "__main__":
    number, dimension = (int(sys.argv[i]) if len(sys.argv) > i else default for i, default in ((1, 100_000), (2, 384)))
    with tempfile.TemporaryDirectory() as name:
        if len(sys.argv) > 3:
            measure(number, dimension, sys.argv[3], Path(name))
        else:
            with milvus_lite(Path(name) / "milvus") as started:
                measure(number, dimension, started, Path(name))
