"""Measures the benefit and cost of a second stage: hits, MRR and milliseconds against the length of the shortlist.

    python runs/stages.py DATA --index INDEX [--lexical] [--rerank MODEL] [--precision TYPE] [-n LENGTH]
        [--combine none|raw|z-score|as-printed] [--plot FILE]

prints one JSON object; most options may be repeated.

Contexts come one at a time, as from a user. A re-ranker scores the shortlist in parts, from each length to the next, so
that one pass returns the figures for every length. A late Cross-encoder encodes the candidates before the clock starts,
as on a server that has run for a while.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from papers.combining import COMBINE

from polyrank.answering.conditions import Conditions, search_until_kept
from polyrank.answering.opening import catalogue, open_replies
from polyrank.bench.machine import describe_machine
from polyrank.data import read_examples
from polyrank.errors import DataError, UsageError
from polyrank.evaluation.plots import new_figure
from polyrank.evaluation.tables import dialogues_of, mean_with_interval
from polyrank.ranking.metrics import Placement, hit_at, placement_of, reciprocal_rank
from polyrank.ranking.top import top_rows
from polyrank.records import Candidate, Context, Example, Ranked
from polyrank.scorers.kept import Kept
from polyrank.scorers.late import Inputs, LateScorer
from polyrank.scorers.lexical import BM25
from polyrank.scorers.open import load_stage
from polyrank.scorers.protocols import Responds, Scorer

Floats = NDArray[np.float32]
KS = (1, 2, 5, 10, 50)
DEPTH = 1000  # replies per retriever; a right answer that is not among them counts as missed
LENGTHS = (10, 25, 50, 100)


class LexicalRetriever:
    """BM25 over candidates; its word statistics come from them."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.scorer, self.candidates = BM25(), tuple(candidates)
        self.texts = [candidate.text for candidate in candidates]

    def respond(self, contexts: Sequence[Context], k: int = 5) -> list[list[Ranked]]:
        """The best ``k`` to each context, each text once and no turn of the context, as an index returns them."""
        return [
            self._best(context, values, k)
            for context, values in zip(contexts, self.scorer.score_pool(contexts, self.texts), strict=True)
        ]

    def _best(self, context: Context, values: Floats, k: int) -> list[Ranked]:
        def search(n: int) -> tuple[list[Ranked], None]:
            best = [(self.candidates[row], float(values[row])) for row in top_rows(values, n)]
            return [Ranked(reply.id, reply.text, score, reply.metadata) for reply, score in best], None

        return search_until_kept(search, partial(Conditions(k).of, context=context, distinct=True), k)[0]


def is_right(example: Example, reply: Ranked) -> bool:
    """Whether a reply is a right answer, by its id or by its text."""
    return reply.id in example.relevant_ids or reply.text in {example.candidates[i] for i in example.relevant}


@dataclass(slots=True)
class _Measured:
    """Measurements of one row of the table."""

    placements: list[Placement] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def measure(
    retrievers: Mapping[str, Responds],
    rerankers: Mapping[str, Scorer],
    examples: Sequence[Example],
    *,
    lengths: Sequence[int] = LENGTHS,
    combine: Sequence[str] = ("none",),
) -> dict[str, Any]:
    """Answer every example by each retriever alone and by each re-ranker over its shortlist.

    Args:
        retrievers: first stages by name, all over the same candidates.
        rerankers: second stages by name; may be empty.
        examples: their right answers are named by id or by text.
        lengths: lengths of the shortlist.
        combine: keys of COMBINE.

    Returns:
        ``machine``, and ``rows`` of ``what`` (the retriever), ``form`` ("alone", or the re-ranker and how both scores
        are combined), ``n`` (length of the shortlist; 0 alone), ``n_examples``, ``ms`` (median of a case, from text
        to order), ``hits@1`` to ``hits@50`` and ``MRR`` as fractions; a missed right answer counts as 0. Re-ranked
        rows have ``gain``, hits@1 above the retriever alone, and ``over_first``, above the first form of re-ranking
        with the same ``n``, each with a 95% interval.

    Raises:
        DataError: ``examples`` is empty, or an example has no right answer.
        UsageError: ``retrievers`` is empty, or a length is not positive.
    """
    if not retrievers or min(lengths, default=0) < 1:
        raise UsageError(
            "no retriever, or a length of the shortlist is below 1; give at least one retriever, and lengths from 1"
        )
    if not examples:
        raise DataError("the file holds 0 examples; give at least one")
    if without := [e.id for e in examples if not (e.relevant or e.relevant_ids)]:
        raise DataError(f"example {without[0]!r} has no right answer; leave such examples out")
    measured: dict[tuple[str, str, int], _Measured] = {}
    bounds = sorted(set(lengths))
    for name, retriever in retrievers.items():
        retriever.respond([examples[0].query], DEPTH)  # warm-up: opens files, allocates buffers
        for example in examples:
            started = perf_counter()
            found = retriever.respond([example.query], max(DEPTH, *bounds))[0]
            seconds = perf_counter() - started
            right = [i for i, reply in enumerate(found) if is_right(example, reply)]
            first = np.array([reply.score for reply in found], np.float32)
            _note(measured, (name, "alone", 0), placement_of(first, right), seconds)
            for other, reranker in rerankers.items():
                for n, second, more in _read(reranker, example, found, bounds):
                    for how in combine:
                        total = COMBINE[how](first[:n], second)
                        form = other if how == "none" else f"{other} + {how}"
                        placement = placement_of(_behind(total, first), right)
                        _note(measured, (name, form, n), placement, seconds + more)
    rows = [_row(*key, one) for key, one in measured.items()]
    hits = {key: np.array([hit_at(placement, 1) for placement in one.placements]) for key, one in measured.items()}
    dialogues = dialogues_of([example.id for example in examples])
    first_form = next((form for _, form, n in measured if n), "alone")
    for (what, _, n), own, row in zip(hits, hits.values(), rows, strict=True):
        if n:
            row["gain"] = mean_with_interval(own - hits[what, "alone", 0], dialogues)
            row["over_first"] = mean_with_interval(own - hits[what, first_form, n], dialogues)
    return {"machine": describe_machine(), "rows": rows}


def _read(
    reranker: Scorer, example: Example, found: Sequence[Ranked], bounds: Sequence[int]
) -> list[tuple[int, Floats, float]]:
    """For each length ``n``: ``n``, the re-ranker's scores of the first ``n`` replies, and its seconds for them."""
    result = []
    scores, seconds = np.empty(0, np.float32), 0.0
    for n in bounds:
        part = [reply.text for reply in found[len(scores) : n]]
        if part:
            if isinstance(reranker, LateScorer):
                reranker.candidate_inputs(list(dict.fromkeys(part)))
            started = perf_counter()
            more = reranker.score([example.query], [part])[0]
            seconds += perf_counter() - started
            scores = np.concatenate([scores, more])
        result.append((n, scores, seconds))
    return result


def _behind(total: Floats, first: Floats) -> Floats:
    """New scores ``[n]`` of the shortlist, extended to ``[N]``: the others rank below it in the retriever's order."""
    rest = first[len(total) :]
    if not len(total) or not len(rest):
        return total if len(total) else first
    return np.concatenate([total, rest - rest.max() + total.min() - 1]).astype(np.float32)


def _note(
    measured: dict[tuple[str, str, int], _Measured], key: tuple[str, str, int], placement: Placement, seconds: float
) -> None:
    row = measured.setdefault(key, _Measured())
    row.placements.append(placement)
    row.seconds.append(seconds)


def _row(what: str, form: str, n: int, one: _Measured) -> dict[str, Any]:
    hits = {f"hits@{k}": float(np.mean([hit_at(placement, k) for placement in one.placements])) for k in KS}
    rank = {"MRR": float(np.mean([reciprocal_rank(placement) for placement in one.placements]))}
    ms = round(1e3 * median(one.seconds), 2)
    return {"what": what, "form": form, "n": n, "n_examples": len(one.placements), "ms": ms, **hits, **rank}


def share_reading(rerankers: Sequence[LateScorer]) -> None:
    """Let late Cross-encoders of one first stage read a candidate once: their frozen layers are equal."""
    shared: dict[Any, Kept[str, Inputs]] = {}
    for reranker in rerankers:
        reranker.kept.max_bytes = 64 << 20  # for one shortlist
        frozen = reranker.model.candidate_tower.state_dict() if reranker.model.reader == "context" else {}
        key = tuple((name, float(tensor.double().sum())) for name, tensor in frozen.items()) or id(reranker)
        if reranker.precision == "fp32":
            reranker.kept = shared.setdefault((reranker.model.layers_of("candidate"), key), reranker.kept)


def short_names(models: Iterable[str], *taken: str) -> dict[str, str]:
    """Short names for a table; the full path where two short names are equal."""
    short = {model: _name(model) for model in models}
    counts = Counter((*short.values(), *taken))
    return {model: name if counts[name] == 1 else model for model, name in short.items()}


def _name(model: str) -> str:
    """The name of the model's folder, or of the run's folder for RUN/model."""
    path = Path(model)
    return path.parent.name if path.name == "model" and path.parent.name else path.name


def plot(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot hits@1 against milliseconds, and these against the length of the shortlist; dotted: the retriever alone."""
    figure = new_figure(width=11)
    left, right = figure.subplots(1, 2)
    lines: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        lines.setdefault((row["what"], row["form"]), []).append(row)
    for i, ((what, form), points) in enumerate(lines.items()):
        color = f"C{i % 10}"
        if form == "alone":
            left.axhline(points[0]["hits@1"], color=color, linestyle=":", label=what)
            continue
        points.sort(key=lambda row: row["n"])
        for axes, x, y in ((left, "ms", "hits@1"), (right, "n", "ms")):
            axes.plot(
                [row[x] for row in points],
                [row[y] for row in points],
                color=color,
                marker="o",
                label=f"{what} > {form}",
            )
    left.set(xlabel="ms per context", ylabel="hits@1")
    right.set(xlabel="length of the shortlist", ylabel="ms per context")
    right.legend(fontsize="small")
    figure.savefig(path)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="examples whose right answers are in the indexes")
    parser.add_argument("--index", action="append", required=True, help="an index, searched by its own model")
    parser.add_argument("--lexical", action="store_true", help="also retrieve from the first index with BM25")
    parser.add_argument("--rerank", action="append", default=[], help="a model that re-ranks")
    parser.add_argument("--precision", action="append", help="of the re-rankers: fp32, bf16, int8 or auto")
    parser.add_argument("-n", type=int, action="append", help="length of the shortlist")
    parser.add_argument("--combine", action="append", choices=COMBINE, help="how both scores become one")
    parser.add_argument("--limit", type=int, help="use the first N examples only")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    retrievers: dict[str, Responds] = {}
    if options.lexical:
        retrievers["bm25"] = LexicalRetriever(catalogue(options.index[0]))
    for index, name in short_names(options.index, *retrievers).items():
        retrievers[name] = open_replies(index, device=options.device)
    precisions = options.precision or ["auto"]
    rerankers = {
        f"{name} {precision}" if len(precisions) > 1 else name: load_stage(
            model, device=options.device, precision=precision
        )
        for model, name in short_names(options.rerank).items()
        for precision in precisions
    }
    share_reading([reranker for reranker in rerankers.values() if isinstance(reranker, LateScorer)])
    table = measure(
        retrievers,
        rerankers,
        read_examples(options.data).examples[: options.limit],
        lengths=options.n or LENGTHS,
        combine=options.combine or ("none",),
    )
    if options.plot is not None:
        plot(table["rows"], options.plot)
    print(json.dumps(table))


if __name__ == "__main__":
    main()
