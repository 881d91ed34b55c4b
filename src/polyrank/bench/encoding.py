"""How fast texts become vectors and pairs become scores: ours, and the usual library's where it is installed.

Forms take turns in one process on the same texts, with the same backbone; what differs is how batches are made, the
precision, and where padding goes. Medians are told.
"""

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.bench.machine import describe_machine
from polyrank.config import CrossConfig, TextPolicy
from polyrank.errors import UsageError
from polyrank.inference import CrossScorer, EncoderScorer, make_scorer, untuned_scorer
from polyrank.models import find_backbone, new_model
from polyrank.records import Context

CONTEXT_WORDS = 100
Run = Callable[[], NDArray[np.float32]]


def bench_encoding(
    texts: Sequence[str],
    *,
    n_pairs: int = 100,
    n_words: int = CONTEXT_WORDS,
    repeats: int = 3,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Time bulk encoding, the encoding of one context, and the re-ranking of a shortlist.

    Args:
        texts: to encode; the first ``n_pairs`` are the shortlist.
        n_pairs: length of the shortlist.
        n_words: of the context.
        repeats: rounds; each times every form once.
        progress: told what comes next.

    Returns:
        ``machine``, and ``rows`` of ``what``, ``n`` (texts or pairs), ``d``, ``form``, ``ms`` (median), ``ratio`` (the
        library's time over this; None without it), ``per_second`` and ``max_abs_error`` (against our fp32).

    Raises:
        UsageError: there are too few texts.
    """
    if len(texts) < n_pairs or n_pairs < 1 or repeats < 1:
        raise UsageError(f"{len(texts)} texts are too few for {n_pairs} pairs; give more")
    policy = TextPolicy(max_context_tokens=256, max_candidate_tokens=72)
    encoder = untuned_scorer("embedded", policy)
    reference = untuned_scorer("embedded", policy, precision="fp32")
    context = Context((" ".join((" ".join(texts).split() * n_words)[:n_words]),))
    peer = _Peer.find()
    distinct = list(dict.fromkeys(texts))

    progress(f"encoding {len(distinct):,} texts")
    bulk: dict[str, Run] = {"polyrank": lambda: _fresh(encoder, distinct)}
    if peer is not None:
        bulk["sentence-transformers"] = lambda: peer.encode(distinct)
    rows = _compare("bulk", len(distinct), encoder.dimension, bulk, _fresh(reference, distinct), repeats)

    progress("encoding one context")
    one: dict[str, Run] = {"polyrank": lambda: encoder.encode_contexts([context])[0][:, 0]}
    if peer is not None:
        one["sentence-transformers"] = lambda: peer.encode(list(context.turns))
    rows += _compare("context", 1, encoder.dimension, one, reference.encode_contexts([context])[0][:, 0], 4 * repeats)

    progress(f"re-ranking {n_pairs} candidates")
    shortlist = list(texts[:n_pairs])
    cross, exact = _cross(policy, "auto"), _cross(policy, "fp32")
    pairs: dict[str, Run] = {"polyrank": lambda: cross.score([context], [shortlist])[0]}
    if peer is not None:
        pairs["sentence-transformers"] = lambda: peer.rank(context.turns[0], shortlist)
    rows += _compare("rerank", n_pairs, encoder.dimension, pairs, exact.score([context], [shortlist])[0], repeats)
    return {"machine": describe_machine(), "rows": rows}


def _fresh(encoder: EncoderScorer, texts: Sequence[str]) -> NDArray[np.float32]:
    encoder.forget()
    return encoder.encode_candidates(texts)


def _cross(policy: TextPolicy, precision: Any) -> CrossScorer:
    model, texts, _ = new_model(CrossConfig(), policy, seed=0, sample=())
    scorer = make_scorer(model, texts, precision=precision)
    assert isinstance(scorer, CrossScorer), "a Cross-encoder was made"
    return scorer


def _compare(
    what: str, n: int, d: int, forms: dict[str, Run], reference: NDArray[np.float32], repeats: int
) -> list[dict[str, Any]]:
    answers = {form: run() for form, run in forms.items()}  # the first round loads what is loaded once
    times: dict[str, list[float]] = {form: [] for form in forms}
    for _ in range(repeats):
        for form, run in forms.items():
            started = perf_counter()
            run()
            times[form].append(perf_counter() - started)
    usual = times.get("sentence-transformers")
    rows = []
    for form, taken in times.items():
        seconds = median(taken)
        row: dict[str, Any] = {"what": what, "n": n, "d": d, "m": 1, "form": form, "ms": round(1e3 * seconds, 3)}
        row["ratio"] = None if usual is None else round(median(usual) / seconds, 2)
        row["per_second"] = round(n / seconds, 1)
        # the library's Cross-encoder has another, random head: only ours can be compared
        same = form == "polyrank" or what != "rerank"
        row["max_abs_error"] = float(np.abs(answers[form] - reference).max()) if same else None
        rows.append(row)
    return rows


class _Peer:
    """The usual library with the same backbone, as it comes."""

    def __init__(self, encoder: Any, cross: Any) -> None:
        self.encoder, self.cross = encoder, cross

    @classmethod
    def find(cls) -> "_Peer | None":
        try:
            from sentence_transformers import CrossEncoder, SentenceTransformer
        except ImportError:
            return None
        folder = str(find_backbone("embedded").folder)
        return cls(SentenceTransformer(folder, device="cpu"), CrossEncoder(folder, num_labels=1, device="cpu"))

    def encode(self, texts: list[str]) -> NDArray[np.float32]:
        return np.asarray(self.encoder.encode(texts, normalize_embeddings=True, show_progress_bar=False))

    def rank(self, query: str, texts: list[str]) -> NDArray[np.float32]:
        return np.asarray(self.cross.predict([(query, text) for text in texts], show_progress_bar=False))
