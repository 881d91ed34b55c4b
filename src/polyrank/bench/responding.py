"""The papers' table: how long one context takes from its text to the ten best of N candidates, for each kind of model.

Networks are the embedded backbone with random codes or heads: speed does not depend on what they have learnt, but for
the fast search, whose shortcuts are as good as context vectors are alike. Candidates are cached, as they would be.
"""

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from polyrank.bench.encoding import long_context
from polyrank.bench.machine import describe_machine
from polyrank.bench.scoring import Pool
from polyrank.config import BiConfig, CrossConfig, ModelConfig, PolyConfig, TextPolicy
from polyrank.errors import UsageError
from polyrank.inference import CrossScorer, EncoderScorer, make_scorer
from polyrank.models import CrossEncoder, new_model
from polyrank.records import Context
from polyrank.search import search

K = 10
MEASURED_PAIRS = 100  # of a Cross-encoder, whose time is proportional to the number of pairs
KINDS: dict[str, ModelConfig] = {
    "Bi": BiConfig(),
    "Poly-16": PolyConfig(n_codes=16),
    "Poly-64": PolyConfig(n_codes=64),
    "Poly-360": PolyConfig(n_codes=360),
    "Cross": CrossConfig(),
}


def bench_responding(
    texts: Sequence[str],
    *,
    sizes: Sequence[int] = (1_000, 100_000),
    kinds: Sequence[str] = tuple(KINDS),
    n_words: int = 100,
    repeats: int = 5,
    device: str = "auto",
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Time a whole answer.

    Args:
        texts: replies; candidate vectors are theirs and mixtures of them, up to each size.
        sizes: numbers of candidates.
        kinds: of ``KINDS``.
        n_words: of the context.
        repeats: rounds; each times every kind once.
        device: for networks: "auto", "cpu" or "cuda".
        progress: told what comes next.

    Returns:
        ``machine``, and ``rows`` of ``what`` ("respond"), ``n``, ``d``, ``m``, ``form`` (the kind), ``ms`` (median,
        encoding of the context included), ``encode_ms``, ``ratio`` (the Cross-encoder's time over this), and
        ``extrapolated``: a Cross-encoder is timed on 100 pairs.

    Raises:
        UsageError: a kind is unknown, or there are too few texts.
    """
    unknown = set(kinds) - set(KINDS)
    if unknown:
        raise UsageError(f"{sorted(unknown)[0]!r} is no kind of model; choose {', '.join(KINDS)}")
    if len(texts) < MEASURED_PAIRS:
        raise UsageError(f"{len(texts)} texts are too few; give {MEASURED_PAIRS} at least")
    policy = TextPolicy(max_context_tokens=256, max_candidate_tokens=72)
    context = long_context(texts, n_words)
    runs: dict[tuple[str, int], Callable[[], float]] = {}
    shapes: dict[str, tuple[int, int]] = {}
    for kind in kinds:
        progress(f"making a {kind}")
        model, words, _ = new_model(KINDS[kind], policy, seed=0, sample=list(texts[:256]))
        scorer = make_scorer(model, words, device=device, frozen=True)
        if isinstance(scorer, CrossScorer):
            assert isinstance(scorer.model, CrossEncoder), "it was made in torch"
            shapes[kind] = (0, scorer.model.backbone.dimension)
            runs |= {(kind, n): _cross_run(scorer, context, texts, n) for n in sizes}
        else:
            found = scorer.encode_candidates(list(texts[: max(sizes)]))
            shapes[kind] = (scorer.encode_contexts([context])[1].shape[1], scorer.dimension)
            for n in sizes:
                runs[kind, n] = _search_run(scorer, context, Pool(_mixtures(found, n), np.arange(n)))
    times: dict[tuple[str, int], list[float]] = {key: [] for key in runs}
    encoding: dict[tuple[str, int], list[float]] = {key: [] for key in runs}
    for run in runs.values():
        run()
    for turn in range(repeats):
        progress(f"round {turn + 1} of {repeats}")
        for key, run in runs.items():
            started = perf_counter()
            encoding[key].append(run())
            times[key].append(perf_counter() - started)
    rows = []
    for (kind, n), taken in times.items():
        factor = n / MEASURED_PAIRS if kind == "Cross" else 1.0
        cross = median(times["Cross", n]) * n / MEASURED_PAIRS if ("Cross", n) in times else None
        m, d = shapes[kind]
        rows.append(
            {
                "what": "respond",
                "n": n,
                "d": d,
                "m": m,
                "form": kind,
                "ms": round(1e3 * median(taken) * factor, 2),
                "encode_ms": round(1e3 * median(encoding[kind, n]), 2),
                "ratio": None if cross is None else round(cross / (median(taken) * factor), 1),
                "max_abs_error": 0.0,
                "extrapolated": kind == "Cross" and n != MEASURED_PAIRS,
            }
        )
    return {"machine": describe_machine(), "rows": rows}


def _search_run(scorer: EncoderScorer, context: Context, pool: Pool) -> Callable[[], float]:
    def run() -> float:
        started = perf_counter()
        vectors, mask = scorer.encode_contexts([context])
        encoded = perf_counter() - started
        search(vectors, mask, [pool], K)
        return encoded

    return run


def _cross_run(scorer: CrossScorer, context: Context, texts: Sequence[str], n: int) -> Callable[[], float]:
    shortlist = list(texts[:MEASURED_PAIRS])

    def run() -> float:
        values = torch.from_numpy(scorer.score([context], [shortlist])[0])
        torch.topk(values, K)
        return 0.0

    return run


def _mixtures(vectors: np.ndarray[Any, np.dtype[np.float32]], n: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """``n`` vectors ``[n, D]`` that lie like the given ones: they themselves, then random pairs of them mixed."""
    if n <= len(vectors):
        return np.ascontiguousarray(vectors[:n])
    generator = np.random.Generator(np.random.PCG64(0))
    result = np.empty((n, vectors.shape[1]), np.float32)
    result[: len(vectors)] = vectors
    for start in range(len(vectors), n, 8192):
        size = min(8192, n - start)
        left, right = generator.integers(len(vectors), size=(2, size))
        share = generator.random((size, 1), np.float32)
        mixed = share * vectors[left] + (1 - share) * vectors[right]
        norms = np.linalg.norm(vectors[left], axis=1, keepdims=True)
        result[start : start + size] = mixed / np.linalg.norm(mixed, axis=1, keepdims=True) * norms
    return result
