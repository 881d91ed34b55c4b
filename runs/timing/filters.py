"""Times filtered searches of a stored index: the first with a filter, later ones, and searches without a filter.

    python runs/timing/filters.py [-n 100000] [-d 128] [-m 16] [--share 0.001 ...] [--precision int8]

Prints one JSON object.
"""

import argparse
import json
import sys
import tempfile
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
from polyrank.errors import UsageError
from polyrank.index import Filter, LocalIndex, LocalWriter, read_filter, write_index
from polyrank.records import Candidate
from polyrank.search import search
from polyrank.storage.quantized import Precision, read_precision
from timing.scoring import make_inputs
from timing.search import ROWS_AT_A_TIME, contexts_near

K = 10
PARTS = 1000  # random parts of the candidates; a filter passes some of the parts
SHARES = (0.001, 0.01, 0.1, 0.25, 0.5, 1.0)
TURNS = 3  # repetitions of a measurement that works only once per filter
CHANGED = Candidate("new", "one more", {"part": 0, "lang": "en"})


def time_filters(
    *,
    n: int = 100_000,
    d: int = 128,
    m: int = 16,
    precision: Precision = "int8",
    shares: Sequence[float] = SHARES,
    n_queries: int = 9,
    folder: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Build an index of random candidates with metadata, and search it with filters that pass more and more of them.

    Args:
        n: number of candidates.
        d: dimension of the vectors.
        m: vectors per context; 1 for a Bi-encoder.
        precision: precision of the stored vectors.
        shares: shares of the candidates that pass, multiples of 0.001.
        n_queries: number of contexts.
        folder: where to build the index; None: a temporary folder.
        progress: called with a description of each step.

    Returns:
        ``machine``, and ``rows`` of ``what`` ("first": the filter is new to the index; "next": the index has
        evaluated it before; "after a change": the same, and one candidate was added since; "without": the same contexts
        without a filter), ``share``, ``n_passing``, ``n``, ``d``, ``m``, ``form``, ``ms`` (median), ``ratio`` (the time
        without a filter divided by this one) and ``ways`` of the last search.

    Raises:
        UsageError: a share is not a multiple of 0.001 between 0.001 and 1.
    """
    for share in shares:
        if not 1 <= round(share * PARTS, 6) <= PARTS or round(share * PARTS, 6) % 1:
            raise UsageError(f"the share {share} is not a multiple of 0.001 in 0.001 to 1; use 0.001, 0.002 ... 1")
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        path = Path(temporary) / "index"
        progress(f"building {n:,} candidates")
        contexts = _build(path, n, d, m, precision, n_queries)
        with LocalIndex(path) as index:
            _seconds(index, contexts[0], None)  # warm-up: derives the data that every search uses
            rows = []
            for share in shares:
                progress(f"{share:.1%} of them pass")
                sized = {"share": share, "n": n, "d": d, "m": m, "form": precision}
                rows += [sized | row for row in _one_share(path, index, contexts, share)]
    return {"machine": describe_machine(), "rows": rows}


def _build(path: Path, n: int, d: int, m: int, precision: Precision, n_queries: int) -> list[Any]:
    """Write the index; returns contexts ``[M, D]``."""
    _, vectors = make_inputs("trained", n, d, m)
    generator = np.random.Generator(np.random.PCG64(3))
    parts = generator.permutation(np.arange(n) * PARTS // n).tolist()
    pool = [
        Candidate(f"c{i}", f"reply number {i}", {"part": part, "lang": "en", "customer": {"tier": i % 3}})
        for i, part in enumerate(parts)
    ]
    slices = (vectors[i : i + ROWS_AT_A_TIME] for i in range(0, n, ROWS_AT_A_TIME))
    write_index(path, pool, slices, fingerprint="bench", model="bench", precision=precision)
    return contexts_near(vectors, m, n_queries)


def _one_share(path: Path, index: LocalIndex, contexts: Sequence[Any], share: float) -> list[dict[str, Any]]:
    limit = round(share * PARTS)
    # different filters that pass the same candidates
    filters = [read_filter(f'lang = "en" and part < {limit - turn / 10:.1f}') for turn in range(TURNS)]
    taken: dict[str, list[float]] = {"first": [], "next": [], "after a change": [], "without": []}
    ways: dict[str, str] = {}

    def measure(what: str, context: Any, condition: Filter | None) -> None:
        seconds, ways[what] = _seconds(index, context, condition)
        taken[what].append(seconds)

    for turn, condition in enumerate(filters):
        measure("first", contexts[turn % len(contexts)], condition)
    for context in contexts:
        measure("without", context, None)
        measure("next", context, filters[-1])
    vector = contexts[0][:1]
    with LocalWriter(path) as writer:
        for turn in range(TURNS):
            writer.add([CHANGED], vector, replace=True)
            measure("after a change", contexts[turn % len(contexts)], filters[-1])
        writer.remove([CHANGED.id])
    index.refresh()
    without, n_passing = median(taken["without"]), len(index.rows_where(filters[-1]))
    return [
        {
            "what": what,
            "n_passing": n_passing,
            "ms": round(1e3 * median(seconds), 3),
            "ratio": round(without / median(seconds), 2),
            "ways": ways[what],
        }
        for what, seconds in taken.items()
    ]


def _seconds(index: LocalIndex, context: Any, condition: Filter | None) -> tuple[float, str]:
    """Seconds from a context to the texts of the ten best, and the ways of the search."""
    started = perf_counter()
    index.refresh()
    blocks, _ = index.view(condition)
    result = search(context[None], np.ones((1, len(context)), np.bool_), blocks, K)[0]
    index.candidates(result.rows.tolist())
    return perf_counter() - started, ", ".join(result.ways)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=100_000, help="candidates")
    parser.add_argument("-d", type=int, default=128, help="dimensions")
    parser.add_argument("-m", type=int, default=16, help="context vectors")
    parser.add_argument("--share", type=float, action="append", help="share of the candidates that pass; repeatable")
    parser.add_argument("--precision", type=read_precision, default="int8")
    parser.add_argument("--folder", type=Path, help="where to build the index")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    set_threads(options.threads)
    result = time_filters(
        n=options.n,
        d=options.d,
        m=options.m,
        precision=options.precision,
        shares=options.share or SHARES,
        folder=options.folder,
        progress=lambda line: print(line, file=sys.stderr),
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
