"""Times finding the ten best of N candidates for one context: the papers' form, a plain scan, exact search.

    python runs/timing/scoring.py [-n 100000] [-d 768] [-m 16 ...] [--growth 10000 ...] [--repeats 5] [--device cuda]

Forms take turns in one process, so that other load on the machine affects all of them. Figures are medians. Prints one
JSON object.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from polyrank.bench.machine import describe_machine, median_seconds
from polyrank.devices.choice import choose_device, set_threads
from polyrank.search import score_rows, search
from polyrank.search.blocks import Floats
from polyrank.search.ways import WAYS

Regime = Literal["isotropic", "trained", "wide"]
Answer = tuple[NDArray[np.int64], Floats, int, str]  # rows, scores, how many were scored in full, ways of scanning
PLAIN = ("plain", "plain tiles")  # ways that score every candidate in fp32
K = 10
CHUNK = 4096  # rows, of the papers' form
DIRECTIONS = 16  # around the mean of a trained context
DEVIATION = 0.05  # of a trained context's vectors from their mean, relative to it


@dataclass(frozen=True, slots=True)
class Pool:
    """Candidates to search.

    Args:
        vectors: ``[N, D]``.
        rows: ``[N]``
        alive: None: all.
        offsets: None: nothing is added.
    """

    vectors: Floats
    rows: NDArray[np.int64]
    alive: NDArray[np.bool_] | None = None
    offsets: Floats | None = None


def make_inputs(regime: Regime, n: int, d: int, m: int, seed: int = 0) -> tuple[Floats, Floats]:
    """A context and candidates with vectors of one regime.

    - ``isotropic``: independent normal numbers, products of unit scale. The hardest case, unlike any encoder.
    - ``trained``: as measured on trained Poly-encoders of 64 codes. Candidates have norms about 5.5 and a spectrum
      that falls like 1 / (j + 8). The context's vectors have norm 3.3 and deviate by 5% from their mean, along 16
      directions whose scales fall by a quarter each; the mean lies between a candidate and a random direction.
    - ``wide``: independent normal numbers, not scaled; products deviate by sqrt(d), 28 for 768.

    Returns:
        ``[M, D]`` and ``[N, D]``.
    """
    rng = np.random.default_rng(seed)
    candidates = rng.standard_normal((n, d), np.float32)
    if regime != "trained":
        context = rng.standard_normal((m, d), np.float32)
        return (context / np.float32(sqrt(d)) if regime == "isotropic" else context), candidates
    scales = np.sqrt(1.0 / (np.arange(d) + 8.0)).astype(np.float32)
    scales *= np.float32(5.5) / np.linalg.norm(scales)
    rotation = np.linalg.qr(rng.standard_normal((d, d)))[0].astype(np.float32) * scales[:, None]
    for start in range(0, n, CHUNK):
        candidates[start : start + CHUNK] = candidates[start : start + CHUNK] @ rotation
    directions = rng.standard_normal((1 + DIRECTIONS, d), np.float32) @ rotation
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    mean = candidates[n // 2] / np.linalg.norm(candidates[n // 2]) + directions[0]
    mean *= 3.3 / np.linalg.norm(mean)
    falling = 0.75 ** np.arange(DIRECTIONS)
    falling *= DEVIATION * 3.3 / np.linalg.norm(falling)
    around = (rng.standard_normal((m, DIRECTIONS)) * falling) @ directions[1:]
    return (mean + around).astype(np.float32), candidates


class Papers:
    """Scoring as in the papers: attention weights, attended vectors, their products; in chunks, fp32.

    Its buffers are allocated once, so that allocations do not slow it down.

    Args:
        context: ``[M, D]``.
        candidates: ``[N, D]``.
    """

    def __init__(self, context: Floats, candidates: Floats) -> None:
        self._context, self._candidates = torch.from_numpy(context), torch.from_numpy(candidates)
        m, d = context.shape
        self._products, self._weights = torch.empty(CHUNK, m), torch.empty(CHUNK, m)
        self._attended = torch.empty(CHUNK, d)
        self._scores = torch.empty(len(candidates))

    def flushed(self) -> tuple[NDArray[np.int64], Floats]:
        """The same with weights below 1e-38 flushed to 0 in this thread, because processors are slow at denormals."""
        torch.set_flush_denormal(True)
        try:
            return self()
        finally:
            torch.set_flush_denormal(False)

    def __call__(self) -> tuple[NDArray[np.int64], Floats]:
        """The best rows and their scores."""
        for start in range(0, len(self._candidates), CHUNK):
            chunk = self._candidates[start : start + CHUNK]
            n = len(chunk)
            torch.mm(chunk, self._context.T, out=self._products[:n])
            torch.softmax(self._products[:n], -1, out=self._weights[:n])
            torch.mm(self._weights[:n], self._context, out=self._attended[:n])
            torch.sum(self._attended[:n].mul_(chunk), -1, out=self._scores[start : start + n])
        values, rows = torch.topk(self._scores, min(K, len(self._scores)))
        return rows.numpy(), values.numpy()


def bench_scoring(
    *,
    n: int = 100_000,
    d: int = 768,
    vectors: Sequence[int] = (16, 64, 360),
    regimes: Sequence[Regime] = ("isotropic", "trained", "wide"),
    growth: Sequence[int] = (10_000, 100_000, 1_000_000),
    growth_d: int = 384,
    repeats: int = 5,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Time the forms of Poly-encoder scoring, including the selection of the top 10.

    Args:
        n: candidates.
        d: dimensions.
        vectors: numbers of context vectors; the wide regime is measured only with the largest.
        regimes: of the inputs, see ``make_inputs``.
        growth: numbers of candidates for the growth of time and memory, trained regime, 64 vectors; may be empty.
        growth_d: dimensions of the growth rows.
        repeats: rounds; each times every form once.
        device: "cuda" also times the exact search on it, the form "device"; the copy of the candidates is made before.
        progress: called with the name of the next step.

    Returns:
        ``machine``, and ``rows`` of ``what`` (the regime), ``n``, ``d``, ``m``, ``form``, ``ms`` (median), ``ratio``
        (the papers' form's time divided by this), ``max_abs_error`` (of the returned scores, against fp64),
        ``recall_at_10``, ``n_scored``, ``ways`` (the chosen ways of scanning), and in growth rows ``peak_mb`` (memory
        of a search in addition to its inputs). The wide regime has one more form, "papers, flushed".
    """
    rows: list[dict[str, Any]] = []
    for regime in regimes:
        for m in (max(vectors),) if regime == "wide" else vectors:
            progress(f"{regime}, {n} candidates, {m} vectors")
            rows += _compare(regime, n, d, m, repeats, device)
    for size in growth:
        progress(f"growth, {size} candidates")
        rows += _compare("trained", size, growth_d, 64, max(repeats // 2, 1), device, what="growth")
    return {"machine": describe_machine(), "rows": rows}


def _compare(
    regime: Regime, n: int, d: int, m: int, repeats: int, device: str, what: str | None = None
) -> list[dict[str, Any]]:
    """Time all forms on the same inputs, in turns."""
    context, candidates = make_inputs(regime, n, d, m)
    pool = Pool(candidates, np.arange(n))
    contexts, mask = context[None], np.ones((1, m), np.bool_)
    papers = Papers(context, candidates)

    def exact(ways: Sequence[str], device: str = "cpu") -> Answer:
        result = search(contexts, mask, [pool], K, ways=ways, device=device)[0]
        return result.rows, result.scores, result.n_scored, ", ".join(result.ways)

    forms: dict[str, Callable[[], Answer]] = {
        "papers": lambda: (*papers(), n, ""),
        "plain": lambda: exact(PLAIN),
        "exact": lambda: exact(tuple(WAYS)),
    }
    if choose_device(device).type == "cuda":
        forms["device"] = lambda: exact(tuple(WAYS), device)
    if regime == "wide":  # it has denormal weights
        forms["papers, flushed"] = lambda: (*papers.flushed(), n, "")
    answers = {form: run() for form, run in forms.items()}  # the first round allocates and derives
    peaks = {form: _peak_mb(run) for form, run in forms.items()} if what == "growth" else {}
    seconds = median_seconds(forms, repeats)
    truth = set(answers["plain"][0].tolist())
    result = []
    for form, (best, scores, n_scored, ways) in answers.items():
        precise = score_rows(context, mask[0], candidates[best])
        row: dict[str, Any] = {
            "what": what or regime,
            "n": n,
            "d": d,
            "m": m,
            "form": form,
            "ms": round(1e3 * seconds[form], 3),
            "ratio": round(seconds["papers"] / seconds[form], 2),
            "max_abs_error": float(np.abs(precise - scores).max()),
            "recall_at_10": len(truth & set(best.tolist())) / len(truth),
            "n_scored": n_scored,
            "ways": ways,
        }
        result.append(row | ({"peak_mb": peaks[form]} if form in peaks else {}))
    return result


def _peak_mb(run: Callable[[], object]) -> float | None:
    """Peak memory of a call in addition to the memory before it; ``None`` if the system does not report it."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    try:
        reset.write_text("5")  # resets the peak to the resident memory
        before = _status_mb(status, "VmRSS")
        run()
        return round(max(_status_mb(status, "VmHWM") - before, 0.0), 1)
    except (OSError, StopIteration):
        return None


def _status_mb(status: Path, key: str) -> float:
    line = next(line for line in status.read_text("utf-8").splitlines() if line.startswith(key))
    return int(line.split()[1]) / 1024


def main() -> None:
    """Read the options, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=100_000, help="candidates")
    parser.add_argument("-d", type=int, default=768, help="dimensions")
    parser.add_argument("-m", type=int, action="append", help="context vectors; repeatable")
    parser.add_argument("--growth", type=int, action="append", default=[], help="sizes to measure the growth of time")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu", help="cuda: also search on it")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    set_threads(options.threads)
    result = bench_scoring(
        n=options.n,
        d=options.d,
        vectors=options.m or (16, 64, 360),
        growth=options.growth,
        repeats=options.repeats,
        device=options.device,
        progress=lambda line: print(line, file=sys.stderr),
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
