"""How fast models answer on this machine: whole answers from an index, encoding alone, and scoring given candidates."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.answering.replies import Replies
from polyrank.bench.machine import describe_machine, median_seconds
from polyrank.errors import UsageError
from polyrank.index import open_index, write_index
from polyrank.loading.models import Backend
from polyrank.records import Candidate, Context
from polyrank.scorers.open import load
from polyrank.scorers.protocols import Encoder

N_SCORED = 100


def bench_responding(
    models: Sequence[str],
    texts: Sequence[str],
    *,
    sizes: Sequence[int] = (1_000, 100_000),
    n_words: int = 100,
    backends: Sequence[Backend] = ("torch",),
    repeats: int = 5,
    device: str = "auto",
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Time each model on a context of ``n_words`` words, those of the texts.

    Args:
        models: names, as for ``polyrank.load``.
        texts: replies. A larger index is filled with mixtures of their vectors, which are searched like vectors of
            further replies.
        sizes: numbers of replies in the index.
        n_words: length of the context.
        backends: time each model with each of these.
        repeats: rounds; each times every step once.
        device: for networks: "auto", "cpu", "cuda" or "mps".
        progress: called with the name of the next step.

    Returns:
        ``machine``, and ``rows`` of ``model``, ``what``, ``n``, ``ms`` (median) and ``per_second``. ``what`` is "encode
        replies" (n texts, once), "encode a context", "answer" (the context's encoding, the exact search of the ten best
        of n replies and a ranker's other stages), or "score" (n given replies, by a model without vectors).

    Raises:
        UsageError: there are too few texts, a number is below 1, or a model or device is not available.
    """
    if len(texts) < N_SCORED or min(repeats, n_words, *sizes) < 1:
        raise UsageError(f"give at least {N_SCORED} texts (here {len(texts)}), and sizes and counts of 1 or more")
    context = long_context(texts, n_words)
    rows = []
    for name, backend in ((name, backend) for name in models for backend in backends):
        shown = name if backend == "torch" else f"{name} {backend}"
        progress(shown)
        scorer = load(name, device=device, backend=backend, corpus=texts)
        encoder = scorer if isinstance(scorer, Encoder) else getattr(scorer, "encoder", None)
        steps: dict[tuple[str, int], Callable[[], object]] = {}
        seconds: dict[tuple[str, int], float] = {}
        with TemporaryDirectory() as folder:
            if encoder is not None:
                encoder.encode_candidates(texts[:1])  # libraries load lazily
                started = perf_counter()
                vectors = encoder.encode_candidates(texts)
                seconds["encode replies", len(texts)] = perf_counter() - started
                steps["encode a context", 1] = partial(encoder.encode_contexts, [context])
                for n in sizes:
                    # texts of usual lengths, since a second stage reads them
                    pool = [Candidate(str(row), f"{texts[row % len(texts)]} {row}") for row in range(n)]
                    write_index(index := Path(folder) / str(n), pool, mixtures(vectors, n),
                                fingerprint=encoder.fingerprint, model=scorer.name)  # fmt: skip
                    steps["answer", n] = partial(Replies(scorer, open_index(index)).answer, context)
            else:
                steps["score", N_SCORED] = partial(scorer.score, [context], [texts[:N_SCORED]])
            for step in steps.values():
                step()  # the first call allocates
            seconds |= median_seconds(steps, repeats)
        rows += [
            {"model": shown, "what": what, "n": n, "ms": round(1e3 * one, 3), "per_second": _per_second(what, n, one)}
            for (what, n), one in seconds.items()
        ]
    return {"machine": describe_machine(), "rows": rows}


def long_context(texts: Sequence[str], n_words: int) -> Context:
    """One turn of ``n_words`` words, those of the texts, repeated if they are too few.

    >>> long_context(["hello there", "you"], 5).turns
    ('hello there you hello there',)
    """
    return Context((" ".join(islice(cycle(" ".join(texts[:n_words]).split()), n_words)),))


def mixtures(vectors: NDArray[np.float32], n: int) -> NDArray[np.float32]:
    """``n`` vectors ``[n, D]`` with a similar distribution: the given ones, then mixtures of random pairs."""
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


def _per_second(what: str, n: int, seconds: float) -> float:
    return round((1 if what == "answer" else n) / seconds, 1)
