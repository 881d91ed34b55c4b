"""Times building, opening, searching and changing a stored index of N candidates. Prints one JSON object.

    python runs/timing/search.py -n 10000 -n 100000 [-d 384] [-m 64] [--ann none] [--precision fp32]

All steps use the disk as for a user: SQLite with fsync, a mapped matrix, and texts read from the store.
"""

import argparse
import json
import resource
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from polyrank.bench.machine import describe_machine
from polyrank.devices.choice import set_threads
from polyrank.index import Block, LocalIndex, LocalWriter, write_index
from polyrank.records import Candidate
from polyrank.search import Mode, search
from polyrank.search.ways import WAYS
from polyrank.storage.quantized import Precision, read_precision
from timing.scoring import PLAIN, make_inputs

K = 10
ROWS_AT_A_TIME = 8192


def time_search(
    *,
    sizes: Sequence[int] = (10_000, 100_000),
    d: int = 384,
    m: int = 64,
    ann: str = "auto",
    precision: Precision = "fp32",
    n_queries: int = 5,
    folder: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Build, open, search and change an index of each size.

    Args:
        sizes: numbers of candidates.
        d: dimension of the vectors.
        m: vectors per context; 1 for a Bi-encoder.
        ann: kind of inner-product index, see ``polyrank.index.local.ann``; "none": an approximate search scans.
        precision: precision of the stored vectors. A search is exact for the rounded ones; recall compares with fp32.
        n_queries: contexts to search in each mode.
        folder: where to build the indexes; None: a temporary folder.
        progress: called with a description of each step.

    Returns:
        ``machine``, and ``rows`` of ``what`` ("build", "open", "plain" for scoring every candidate in fp32, "exact",
        "approximate", "add 1", and so on), ``n``, ``d``, ``m``, ``form``, ``ms`` (median), ``ratio`` (the plain
        search's time divided by this one), and where they apply ``recall_at_10``, ``exact`` (share of answers proven
        exact), ``n_scored``, ``ways`` (of the last answer) and ``peak_mb`` of the process.
    """
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        for n in sizes:
            rows += _one_size(
                Path(temporary) / str(n), n, d, m, "" if ann == "none" else ann, precision, n_queries, progress
            )
    return {"machine": describe_machine(), "rows": rows}


def _one_size(
    path: Path, n: int, d: int, m: int, ann: str, precision: Precision, n_queries: int, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def row(what: str, seconds: float, **more: Any) -> None:
        form = f"{ann or 'scan'} {precision}"
        rows.append({"what": what, "n": n, "d": d, "m": m, "form": form, "ms": round(1e3 * seconds, 3), **more})

    progress(f"building {n:,} candidates")
    _, vectors = make_inputs("trained", n, d, m)
    contexts = contexts_near(vectors, m, n_queries)
    pool = [Candidate(f"c{i}", f"reply number {i}") for i in range(n)]
    started = perf_counter()
    parts = (vectors[i : i + ROWS_AT_A_TIME] for i in range(0, n, ROWS_AT_A_TIME))
    write_index(path, pool, parts, fingerprint="bench", model="bench", ann=ann, precision=precision)
    row("build", perf_counter() - started, bytes=sum(p.stat().st_size for p in path.rglob("*") if p.is_file()))
    mask, whole = np.ones((1, m), np.bool_), Block(vectors, np.arange(1, n + 1))  # row numbers start at 1
    truth = [search(c[None], mask, [whole], K, ways=PLAIN)[0].rows.tolist() for c in contexts]
    del vectors, pool, whole
    started = perf_counter()
    index = LocalIndex(path)
    row("open", perf_counter() - started)
    blocks, indexes = index.view()
    plain_seconds = 0.0
    for what in ("plain", "exact", "approximate"):
        progress(f"{what} search of {n:,}")
        mode: Mode = "approximate" if what == "approximate" else "exact"
        ways = PLAIN if what == "plain" else tuple(WAYS)
        taken, recall, proven, scored = [], [], [], []
        for number, context in enumerate(contexts):
            started = perf_counter()
            result = search(context[None], mask, blocks, K, mode=mode, indexes=indexes, ways=ways)[0]
            index.candidates(result.rows.tolist())
            taken.append(perf_counter() - started)
            recall.append(len(set(result.rows.tolist()) & set(truth[number])) / K)
            proven.append(result.exact)
            scored.append(result.n_scored)
        plain_seconds = plain_seconds or median(taken)
        figures: dict[str, Any] = {"recall_at_10": float(np.mean(recall)), "exact": float(np.mean(proven))}
        ratio = round(plain_seconds / median(taken), 2)
        figures |= {"n_scored": int(np.mean(scored)), "peak_mb": _peak_mb(), "ways": ", ".join(result.ways)}
        row(what, median(taken), ratio=ratio, **figures)
    progress("adding and removing")
    _changes(path, contexts[0], row)
    index.close()
    return rows


def contexts_near(vectors: Any, m: int, n: int) -> list[Any]:
    """Contexts ``[M, D]`` near some of the candidates."""
    generator = np.random.Generator(np.random.PCG64(1))
    rows = generator.integers(len(vectors), size=n)
    spread = generator.standard_normal((n, m, vectors.shape[1]), np.float32)
    spread *= 0.05 * 3.3 / np.linalg.norm(spread, axis=2, keepdims=True)
    means = vectors[rows] / np.linalg.norm(vectors[rows], axis=1, keepdims=True) * np.float32(3.3)
    return list(means[:, None] + spread)


def _changes(path: Path, context: Any, row: Callable[..., None]) -> None:
    """Time single and batched changes, each durable when it returns, while another thread searches."""
    generator = np.random.Generator(np.random.PCG64(2))
    d = context.shape[1]
    opened, stop = threading.Event(), threading.Event()
    searches: list[float] = []

    def read() -> None:
        mask = np.ones((1, len(context)), np.bool_)
        try:
            index = LocalIndex(path)
            search(context[None], mask, index.blocks(), K)  # warm-up: derives cached data
        finally:
            opened.set()
        with index:
            while not stop.is_set() or not searches:
                started = perf_counter()
                index.refresh()
                search(context[None], mask, index.blocks(), K)
                searches.append(perf_counter() - started)

    with LocalWriter(path) as writer:
        one, many = [], []
        for i in range(20):
            started = perf_counter()
            writer.add([Candidate(f"one{i}", "one more")], generator.standard_normal((1, d), np.float32))
            one.append(perf_counter() - started)
        row("add 1", median(one))
        reader = threading.Thread(target=read)
        reader.start()
        opened.wait()
        for i in range(5):
            batch = [Candidate(f"many{i} {j}", "one of many") for j in range(100)]
            started = perf_counter()
            writer.add(batch, generator.standard_normal((100, d), np.float32))
            many.append(perf_counter() - started)
        stop.set()
        reader.join()
        row("add 100 while searching", median(many))
        row("search while adding", median(searches))
        started = perf_counter()
        writer.remove([f"one{i}" for i in range(20)])
        row("remove 20", perf_counter() - started)


def _peak_mb() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, action="append", help="candidates; repeatable")
    parser.add_argument("-d", type=int, default=384, help="dimensions")
    parser.add_argument("-m", type=int, default=64, help="context vectors")
    parser.add_argument("--ann", default="none", help="auto, flat, sq8, ivfpq, hnsw, or none")
    parser.add_argument("--precision", type=read_precision, default="fp32")
    parser.add_argument("--folder", type=Path, help="where to build indexes")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    set_threads(options.threads)
    result = time_search(
        sizes=options.n or (10_000, 100_000),
        d=options.d,
        m=options.m,
        ann=options.ann,
        precision=options.precision,
        folder=options.folder,
        progress=lambda line: print(line, file=sys.stderr),
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
