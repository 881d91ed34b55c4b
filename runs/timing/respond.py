"""The papers' table: the time for one context from its text to the ten best of N candidates, for each kind of model.

    python runs/timing/respond.py [-n 1000 -n 100000] [--kind Bi --kind Poly-16 ...] [--backbone base] [--device cuda]

Networks have random codes or heads. Training does not change their speed, except that of the search, which prunes more
if context vectors are similar. Candidates' vectors are cached. Next to each encoder, the same runs in the papers' form:
all in fp32, with attention weights and attended vectors. Prints one JSON object.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from polyrank.bench.machine import describe_machine
from polyrank.bench.responding import long_context, mixtures
from polyrank.config.models import BiConfig, CrossConfig, PolyConfig, TextPolicy
from polyrank.config.names import SAMPLE
from polyrank.data import read_pool
from polyrank.devices.choice import set_threads
from polyrank.loading.backbones import resolve_backbone
from polyrank.models import CrossEncoder, new_model
from polyrank.records import Context
from polyrank.scorers.cross import CrossScorer
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.load import make_scorer
from polyrank.search import search
from polyrank.search.blocks import Floats
from timing.scoring import Papers, Pool

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


def save_random_base(folder: Path) -> str:
    """Save a network of BERT-base's size with random weights and the embedded vocabulary, for measuring speed.

    Returns:
        Its name for a model's settings.
    """
    from transformers import BertConfig, BertModel

    embedded = resolve_backbone("embedded").folder
    for file in {*embedded.glob("*token*"), embedded / "vocab.txt"}:
        shutil.copy(file, folder)
    BertModel(BertConfig()).save_pretrained(folder)
    return str(folder)


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
    """Time whole answers.

    Args:
        texts: replies; candidate vectors are their vectors, and mixtures of them up to each size.
        sizes: numbers of candidates.
        kinds: of ``KINDS``; the vectors of "Poly-first-16" are the first 16 outputs, as in the papers' Table 9.
        backbone: "embedded", "base" (the size of BERT-base, with random weights), a folder or hf:OWNER/MODEL.
        n_words: of the context.
        repeats: rounds; each times every kind once.
        device: for networks: "auto", "cpu", "cuda" or "mps".
        progress: called with the name of the next step.

    Returns:
        ``machine``, and ``rows`` of ``what`` ("respond"), ``n``, ``d``, ``m``, ``form`` (the kind, or "KIND, papers"),
        ``ms`` (median, including the context's encoding), ``encode_ms``, ``ratio`` (the Cross-encoder's time divided by
        this), ``papers_ratio`` (the papers' form's time divided by this), ``max_abs_error`` (of the best score, against
        the papers' form), and ``extrapolated``: a Cross-encoder is timed on 100 pairs.
    """
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
                assert isinstance(scorer.model, CrossEncoder), "not an export"
                shapes[kind] = (0, scorer.model.backbone.dimension)
                runs |= {(kind, n): _cross_run(scorer, context, texts, n) for n in sizes}
                continue
            plain = make_scorer(
                *new_model(config, policy, seed=0, sample=list(texts[:256]))[:2], precision="fp32", device=device
            )
            assert isinstance(plain, EncoderScorer), "same kind as scorer"
            encoded = plain.encode_candidates(list(texts[: max(sizes)]))
            vectors, mask = plain.encode_contexts([context])
            shapes[kind] = shapes[kind + PAPERS] = (mask.shape[1], plain.dimension)
            if untrained:  # its vectors are nearly equal
                encoded = _spread(encoded, vectors[0, 0])
            for n in sizes:
                pool = mixtures(encoded, n)
                runs[kind, n] = _encoder_run(scorer, context, partial(_searched, Pool(pool, np.arange(n))))
                papers = Papers(vectors[0, mask[0]], pool)  # allocates its buffers once
                runs[kind + PAPERS, n] = _encoder_run(plain, context, partial(_by_papers, papers))
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
"""Returns the seconds of the context's encoding, and the best score."""


def _encoder_run(scorer: EncoderScorer, context: Context, scores: Callable[[Floats, Any], Floats]) -> Run:
    """``scores``: the best scores, best first, for the context's vectors and mask."""

    def run() -> tuple[float, float]:
        started = perf_counter()
        vectors, mask = scorer.encode_contexts([context])
        encoded = perf_counter() - started
        return encoded, float(scores(vectors, mask)[0])

    return run


def _searched(pool: Pool, vectors: Floats, mask: Any) -> Floats:
    return search(vectors, mask, [pool], K)[0].scores


def _by_papers(papers: Papers, _vectors: Floats, _mask: Any) -> Floats:
    return papers()[1]


def _cross_run(scorer: CrossScorer, context: Context, texts: Sequence[str], n: int) -> Run:
    shortlist = list(texts[:MEASURED_PAIRS])

    def run() -> tuple[float, float]:
        values = torch.from_numpy(scorer.score([context], [shortlist])[0])
        return 0.0, float(torch.topk(values, K)[0][0])

    return run


def _spread(vectors: Floats, query: Floats) -> Floats:
    """The vectors with a mean of 0, scaled so that their products with the query have a deviation of 1."""
    centred: Floats = vectors - vectors.mean(0)
    spread: Floats = centred / np.std(centred @ query)
    return spread


def main() -> None:
    """Read the options, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, action="append", help="candidates; repeatable")
    parser.add_argument("--kind", action="append", choices=KINDS, help="repeatable; default: " + ", ".join(USUAL))
    parser.add_argument("--backbone", default="embedded", help="base: the size of BERT-base, with random weights")
    parser.add_argument("--texts", type=Path, default=SAMPLE / "replies.jsonl")
    parser.add_argument("--words", type=int, default=100, help="of the context")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    set_threads(options.threads)
    result = bench_responding(
        [candidate.text for candidate in read_pool(options.texts)],
        sizes=options.n or (1_000, 100_000),
        kinds=options.kind or USUAL,
        backbone=options.backbone,
        n_words=options.words,
        repeats=options.repeats,
        device=options.device,
        progress=lambda line: print(line, file=sys.stderr),
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
