"""The papers' table: how long one context takes from its text to the ten best of N candidates, for each kind of model.

Networks have random codes or heads: speed does not depend on what they have learnt, but for the search, whose
shortcuts are as good as context vectors are alike. Candidates are cached, as they would be. Beside each encoder runs
the same in the papers' form: all of it in fp32, with attention weights and attended vectors.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch

from polyrank.bench.encoding import long_context
from polyrank.bench.machine import describe_machine
from polyrank.bench.scoring import Papers, Pool
from polyrank.config.models import BiConfig, CrossConfig, PolyConfig, TextPolicy
from polyrank.errors import UsageError
from polyrank.models import CrossEncoder, new_model
from polyrank.models.backbone import save_random_base
from polyrank.records import Context
from polyrank.scorers.cross import CrossScorer
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.load import make_scorer
from polyrank.search import search
from polyrank.search.blocks import Floats

K = 10
MEASURED_PAIRS = 100  # of a Cross-encoder, whose time is proportional to the number of pairs
KINDS: dict[str, BiConfig | PolyConfig | CrossConfig] = {
    "Bi": BiConfig(),
    "Poly-16": PolyConfig(n_codes=16),
    "Poly-64": PolyConfig(n_codes=64),
    "Poly-360": PolyConfig(n_codes=360),
    "Cross": CrossConfig(),
    "Poly-first-16": PolyConfig(n_codes=16, codes="first"),
    "Poly-first-64": PolyConfig(n_codes=64, codes="first"),
    "Poly-first-360": PolyConfig(n_codes=360, codes="first"),
}
USUAL = ("Bi", "Poly-16", "Poly-64", "Poly-360", "Cross")
PAPERS = ", papers"


def check_kinds(kinds: Sequence[str]) -> None:
    """Refuse an unknown kind of model.

    Raises:
        UsageError: one of them is not in ``KINDS``.
    """
    unknown = set(kinds) - set(KINDS)
    if unknown:
        raise UsageError(f"{sorted(unknown)[0]!r} is no kind of model; choose {', '.join(KINDS)}")


def bench_responding(
    texts: Sequence[str],
    *,
    sizes: Sequence[int] = (1_000, 100_000),
    kinds: Sequence[str] = USUAL,
    backbone: str = "embedded",
    n_words: int = 100,
    repeats: int = 5,
    device: str = "auto",
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Time a whole answer.

    Args:
        texts: replies; candidate vectors are theirs and mixtures of them, up to each size.
        sizes: numbers of candidates.
        kinds: of ``KINDS``; "Poly-first-16" has the first 16 outputs as they are, as in the papers' Table 9.
        backbone: "embedded", "base" (the size of BERT-base, with random weights), a folder or hf:OWNER/MODEL.
        n_words: of the context.
        repeats: rounds; each times every kind once.
        device: for networks: "auto", "cpu" or "cuda".
        progress: told what comes next.

    Returns:
        ``machine``, and ``rows`` of ``what`` ("respond"), ``n``, ``d``, ``m``, ``form`` (the kind, or "KIND, papers"),
        ``ms`` (median, encoding of the context included), ``encode_ms``, ``ratio`` (the Cross-encoder's time over
        this), ``papers_ratio`` (that of the papers' form over this), ``max_abs_error`` (of the best score, against the
        papers' form), and ``extrapolated``: a Cross-encoder is timed on 100 pairs.

    Raises:
        UsageError: a kind is unknown, or there are too few texts.
    """
    check_kinds(kinds)
    if len(texts) < MEASURED_PAIRS:
        raise UsageError(f"{len(texts)} texts are too few; give {MEASURED_PAIRS} at least")
    policy = TextPolicy(max_context_tokens=256, max_candidate_tokens=72)
    context = long_context(texts, n_words)
    runs: dict[tuple[str, int], Run] = {}
    shapes: dict[str, tuple[int, int]] = {}
    with TemporaryDirectory() as folder:
        untrained = backbone == "base"
        if untrained:
            backbone = save_random_base(Path(folder))
        for kind in kinds:
            progress(f"making a {kind}")
            config = replace(KINDS[kind], backbone=backbone)
            model_and_texts = new_model(config, policy, seed=0, sample=list(texts[:256]))[:2]
            scorer = make_scorer(*model_and_texts, device=device, frozen=True)
            if isinstance(scorer, CrossScorer):
                assert isinstance(scorer.model, CrossEncoder), "it was made in torch"
                shapes[kind] = (0, scorer.model.backbone.dimension)
                runs |= {(kind, n): _cross_run(scorer, context, texts, n) for n in sizes}
                continue
            plain = make_scorer(
                *new_model(config, policy, seed=0, sample=list(texts[:256]))[:2], precision="fp32", device=device
            )
            assert isinstance(plain, EncoderScorer), "of the same kind"
            encoded = plain.encode_candidates(list(texts[: max(sizes)]))
            vectors, mask = plain.encode_contexts([context])
            shapes[kind] = shapes[kind + PAPERS] = (mask.shape[1], plain.dimension)
            if untrained:  # all texts are nearly alike to it; apart, with products that deviate by one, they are usual
                encoded = encoded - encoded.mean(0)
                encoded /= np.std(encoded @ vectors[0, 0])
            for n in sizes:
                pool = _mixtures(encoded, n)
                runs[kind, n] = _search_run(scorer, context, Pool(pool, np.arange(n)))
                runs[kind + PAPERS, n] = _papers_run(plain, context, pool)
    times: dict[tuple[str, int], list[float]] = {key: [] for key in runs}
    encoding: dict[tuple[str, int], list[float]] = {key: [] for key in runs}
    best = {key: run()[1] for key, run in runs.items()}
    for turn in range(repeats):
        progress(f"round {turn + 1} of {repeats}")
        for key, run in runs.items():
            started = perf_counter()
            encoding[key].append(run()[0])
            times[key].append(perf_counter() - started)
    rows = []
    for (kind, n), seconds in times.items():
        factor = n / MEASURED_PAIRS if kind == "Cross" else 1.0
        cross = median(times["Cross", n]) * n / MEASURED_PAIRS if ("Cross", n) in times else None
        m, d = shapes[kind]
        usual = kind.removesuffix(PAPERS) + PAPERS, n
        rows.append(
            {
                "what": "respond",
                "n": n,
                "d": d,
                "m": m,
                "form": kind,
                "ms": round(1e3 * median(seconds) * factor, 2),
                "encode_ms": round(1e3 * median(encoding[kind, n]), 2),
                "ratio": None if cross is None else round(cross / (median(seconds) * factor), 1),
                "papers_ratio": round(median(times[usual]) / median(seconds), 2) if usual in times else None,
                "max_abs_error": abs(best[kind, n] - best[usual]) if usual in times else None,
                "extrapolated": kind == "Cross" and n != MEASURED_PAIRS,
            }
        )
    return {"machine": describe_machine(), "rows": rows}


Run = Callable[[], tuple[float, float]]
"""Seconds that the context's encoding took, and the best score."""


def _search_run(scorer: EncoderScorer, context: Context, pool: Pool) -> Run:
    def run() -> tuple[float, float]:
        started = perf_counter()
        vectors, mask = scorer.encode_contexts([context])
        encoded = perf_counter() - started
        return encoded, float(search(vectors, mask, [pool], K)[0].scores[0])

    return run


def _papers_run(scorer: EncoderScorer, context: Context, candidates: Floats) -> Run:
    def run() -> tuple[float, float]:
        started = perf_counter()
        scorer.encode_contexts([context])
        encoded = perf_counter() - started
        return encoded, float(papers()[1][0])

    vectors, mask = scorer.encode_contexts([context])
    papers = Papers(vectors[0, mask[0]], candidates)  # which keeps its buffers
    return run


def _cross_run(scorer: CrossScorer, context: Context, texts: Sequence[str], n: int) -> Run:
    shortlist = list(texts[:MEASURED_PAIRS])

    def run() -> tuple[float, float]:
        values = torch.from_numpy(scorer.score([context], [shortlist])[0])
        return 0.0, float(torch.topk(values, K)[0][0])

    return run


def _mixtures(vectors: Floats, n: int) -> Floats:
    """``n`` vectors ``[n, D]`` that lie like the given ones: they themselves, then random pairs of them mixed."""
    if n <= len(vectors):
        return np.ascontiguousarray(vectors[:n])
    generator = np.random.Generator(np.random.PCG64(0))
    result = np.empty((n, vectors.shape[1]), np.float32)
    result[: len(vectors)] = vectors
    for start in range(len(vectors), n, 8192):
        size = min(8192, n - start)
        first, second = generator.integers(len(vectors), size=(2, size))
        share = generator.random((size, 1), np.float32)
        mixed = share * vectors[first] + (1 - share) * vectors[second]
        norms = np.linalg.norm(vectors[first], axis=1, keepdims=True)
        result[start : start + size] = mixed / np.linalg.norm(mixed, axis=1, keepdims=True) * norms
    return result
