"""The best ranker of some models for a user's lists: every term scored once, chosen by held-out likelihood, one fit.

Shapes: L lists, K candidates of each, F features of a term.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import DataError, UsageError
from polyrank.evaluation.tables import dialogues_of, mean_with_interval
from polyrank.ranking.frames import data_frame
from polyrank.ranking.metrics import hit_at, placement_of, reciprocal_rank, with_duplicates
from polyrank.ranking.notebook import table
from polyrank.ranking.weights import fit_weights
from polyrank.records import Example
from polyrank.scorers.joined import PROBE
from polyrank.scorers.protocols import Floats, Scorer
from polyrank.scorers.ranker import Ranker
from polyrank.scorers.terms import term_kinds
from polyrank.scorers.terms.cross import CrossTerm
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.scorers.terms.protocol import Offer, Term
from polyrank.scorers.two_stage import SHORTLIST, shortlist_of
from polyrank.storage.durable import write_file
from polyrank.tuning.durations import milliseconds
from polyrank.tuning.selection import Block, HeldOut, Selection
from polyrank.tuning.threshold import choose_threshold

BATCH = 32
MAX_LISTS = 1000
N_RERANKED = 25
"""Candidates that a Cross-encoder scores: more cost time and rarely change the best reply."""
Progress = Callable[[str, list[range]], Iterable[range]]


@dataclass(frozen=True, slots=True)
class Tuning:
    """A ranker and how it was chosen.

    Args:
        ranker: the best one; of one term if no other measurably helps.
        is_better: whether it has several terms and the interval of its gain excludes 0, or the user fixed weights.
        alone: the name of the best model alone.
        rows: for each term, ready for JSON: ``kind``, ``name``, ``weights``, ``milliseconds`` per answer; ``with``:
            what R@1 and MRR gain with it, after the terms before; ``without``: what they would change without it, each with
            a 95% interval over dialogues. Terms that were tried and not chosen have no weights.
        curve: the rankers of the first terms: ``terms``, ``milliseconds``, ``R@1`` and ``MRR``.
        gain: of the ranker over the best model alone: ``log_likelihood``, ``R@1`` and ``MRR`` with intervals.
        n_lists: on how many lists it was fitted.
    """

    ranker: Ranker
    is_better: bool
    alone: str
    rows: list[dict[str, Any]]
    curve: list[dict[str, Any]]
    gain: dict[str, dict[str, float]]
    n_lists: int

    def __repr__(self) -> str:
        return f"Tuning({self.ranker!r}, R@1 {_signed(self.gain['R@1'])} over {self.alone}, {self.n_lists:,} lists)"

    def _repr_html_(self) -> str:
        """The table of terms, for notebooks."""
        header = ["term", "weight", "R@1 with it", "R@1 without it", "ms"]
        rows = [
            [
                row["name"],
                ", ".join(f"{weight:.3g}" for weight in row["weights"].values()),
                _signed(row["with"]["R@1"]) if "with" in row else "",
                _signed(row["without"]["R@1"]) if "without" in row else "",
                float(row["milliseconds"]),
            ]
            for row in self.rows
        ]
        return table(header, rows, repr(self))

    def to_pandas(self) -> Any:
        """A pandas DataFrame with a row for each term.

        Raises:
            UsageError: pandas is not installed.
        """
        return data_frame([{key: row[key] for key in ("kind", "name", "milliseconds")} for row in self.rows])


def tune(
    models: Sequence[Scorer],
    valid: Sequence[Example],
    *,
    dialogues: Sequence[Example] = (),
    installed: Sequence[Scorer] = (),
    without: Collection[str] = (),
    weights: Mapping[str, float] | None = None,
    ms: float | None = None,
    catalogue: int | None = None,
    precision: float | None = None,
    max_lists: int = MAX_LISTS,
    seed: int = 0,
    cache: Path | None = None,
    progress: Progress = lambda _, batches: batches,
    notify: Callable[[str], None] = lambda line: None,
) -> Tuning:
    """The ranker that fits validation lists best.

    Candidates for its terms are the models, and what each kind of term offers: counts and hubs of the dialogues, the
    words of contexts and replies, re-rankers that are installed for one of the encoders. Each term scores the lists
    once. The best model alone is the start; then the term that raises the held-out likelihood most is added, as long as
    the gain exceeds its standard error: ten folds of the dialogues, three times. One convex fit on all lists gives the
    weights, in units of the first encoder's score.

    Args:
        models: frozen; anything with a method ``score``, and with vectors if it is to be searched. Rankers count as
            their models.
        valid: candidate lists with a right answer.
        dialogues: pairs of the training part, for counts and hubs.
        installed: re-rankers that may be used without being named.
        without: kinds or names of terms that are not tried.
        weights: fixed weights by the kind or name of a term, in units of the first model's score.
        ms: the longest time of an answer on this machine; terms that would exceed it are not added.
        catalogue: how many replies are searched, for the times; None: the distinct ones of the lists.
        precision: the share of answers that have to be right; sets the threshold, on answers from all candidates of the
            lists. None: no threshold.
        max_lists: use the first so many lists.
        seed: of the partitions.
        cache: a folder for the scores of terms, from which an interrupted call continues; None: none.
        progress: called with the name of each term and the list of its batches, which it wraps.
        notify: called with lines for the user.

    Raises:
        DataError: no list has a right and a wrong candidate.
        UsageError: no model is named, a name does not exist, or two models give contexts several vectors.
    """
    lists = lists_to_fit(valid)[:max_lists]
    scored = _Scored(lists, cache, progress)
    named = _flat(models)
    if not named:
        raise UsageError("0 models to combine; name at least one")
    fixed = dict(weights or {})
    terms = _terms(named, lists, dialogues, installed, without, scored)
    searched = [number for number, term in enumerate(terms) if not isinstance(term, CrossTerm)]
    mains = [number for number, term in enumerate(terms) if isinstance(term, EncoderTerm)] or searched[:1]
    if unknown := [name for name in fixed if not any(name in (term.kind, term.name) for term in terms)]:
        raise UsageError(
            f"no term is called {unknown[0]!r}; fix the weight of one of {', '.join(t.name for t in terms)}"
        )
    several = [n for n in mains if _n_vectors(terms[n]) > 1]
    # first all terms that score every candidate of a list
    features = {number: scored.features(terms[number]) for number in searched}
    durations = {n: milliseconds(terms[n], lists, catalogue, n_reranked=N_RERANKED) for n in range(len(terms))}
    held = {number: _fixed_weight(terms[number], fixed) for number in searched}
    base = _columns(terms, features, searched, mains[0], held)
    selection = Selection(base.features, scored.relevant, scored.dialogues, base.blocks, seed=seed)
    affordable = [b for b in range(len(base.numbers)) if ms is None or durations[base.numbers[b]] <= ms]
    alone = max(
        [b for b in affordable if base.numbers[b] in mains] or [0],
        key=lambda b: float(selection.held_out([b]).log_likelihood.mean()),
    )
    start = [alone]
    if fixed and base.numbers[alone] != mains[0]:
        start = [0]
    chosen = _forward(selection, start, base.numbers, durations, ms, several)
    order = [base.numbers[b] for b in chosen]
    first_result = selection.held_out([alone])
    steps = [selection.held_out(chosen[: n + 1]) for n in range(len(chosen))]
    losses = {base.numbers[b]: selection.held_out([c for c in chosen if c != b]) for b in chosen if len(chosen) > 1}
    final = {base.numbers[b]: w for b, w in selection.weights(chosen).items()}
    likelihood_gain = steps[-1].log_likelihood - first_result.log_likelihood
    # then the re-rankers of the best candidates, together with the chosen terms
    crosses = [n for n, term in enumerate(terms) if isinstance(term, CrossTerm)]
    n_retrieved = SHORTLIST
    spent = sum(durations[n] for n in order)
    crosses = [n for n in crosses if ms is None or spent + durations[n] <= ms]
    if crosses:
        second = _reranked(terms, order, final, crosses, features, scored, held, seed)
        added = second.selection.forward(list(range(len(order))), range(len(order), len(order) + len(crosses)))
        if len(added) > len(order):
            n_retrieved = N_RERANKED
            numbers = [*order, *crosses]
            base_result = second.selection.held_out(range(len(order)))
            results = [second.selection.held_out(added[: n + 1]) for n in range(len(order), len(added))]
            likelihood_gain = likelihood_gain + results[-1].log_likelihood - base_result.log_likelihood
            steps = [*steps[:-1], base_result, *results]
            losses = {
                numbers[b]: second.selection.held_out([c for c in added if c != b])
                for b in added
                if numbers[b] in crosses or len(order) > 1
            }
            order = [numbers[b] for b in added]
            final = {numbers[b]: w for b, w in second.selection.weights(added).items()}
    final |= {n: (weight * final[mains[0]][0],) for n, weight in held.items() if weight is not None}
    order += [n for n, weight in held.items() if weight is not None]
    order = [n for n in order if any(final[n])]
    gain = {
        "log_likelihood": mean_with_interval(likelihood_gain, scored.dialogues),
        "R@1": mean_with_interval(steps[-1].hit - first_result.hit, scored.dialogues),
        "MRR": mean_with_interval(steps[-1].reciprocal_rank - first_result.reciprocal_rank, scored.dialogues),
    }
    name = terms[base.numbers[alone]].name
    is_better = bool(fixed) or (len(order) > 1 and (gain["log_likelihood"]["low"] > 0 or gain["MRR"]["low"] > 0))
    if not is_better:
        order, final = [base.numbers[alone]], {base.numbers[alone]: selection.weights([alone])[alone]}
    ranker = _ranker(terms, order, final, several, n_retrieved)
    rows = _rows(terms, order, ranker, steps, losses, durations, scored)
    curve = _curve(order, terms, steps, durations, scored)
    figures = {"n_lists": len(lists), "alone": name, "terms": rows, "curve": curve, "gain": gain}
    if precision is not None:
        rule, seen = choose_threshold(ranker, lists, precision=precision, progress=progress)
        figures["threshold"] = seen
        ranker.abstention = rule
    ranker.figures = figures
    return Tuning(ranker, is_better, name, rows, curve, gain, len(lists))


def lists_to_fit(valid: Sequence[Example]) -> list[Example]:
    """The examples with a right and a wrong candidate.

    Raises:
        DataError: there are none.
    """
    lists = [e for e in valid if 0 < len(with_duplicates(e.candidates, e.relevant)) < len(e.candidates)]
    if not lists:
        raise DataError("no example has a right answer among candidates; tune on candidate lists")
    return lists


class _Scored:
    """The features of terms on lists, each computed once.

    Args:
        lists: with right answers.
        cache: a folder of features from an earlier call, by the fingerprints of terms and lists; None: none.
        progress: see ``tune``.
    """

    def __init__(self, lists: Sequence[Example], cache: Path | None, progress: Progress) -> None:
        self.lists, self.cache, self.progress = lists, cache, progress
        self.relevant = [sorted(with_duplicates(e.candidates, e.relevant)) for e in lists]
        self.dialogues = dialogues_of([example.id for example in lists])
        stated = json.dumps([[e.context, e.background, e.candidates] for e in lists])
        self.digest = hashlib.sha256(stated.encode("utf-8", "surrogatepass")).hexdigest()

    def features(self, term: Term, candidates: Sequence[Sequence[str]] | None = None) -> list[Floats]:
        """The features ``[K, F]`` of each list, or of some of its candidates."""
        shown = [example.candidates for example in self.lists] if candidates is None else candidates
        part = "" if candidates is None else hashlib.sha256(json.dumps(list(map(list, shown))).encode()).hexdigest()
        ends = np.cumsum([len(texts) for texts in shown])[:-1]
        file = None
        if self.cache is not None and term.fingerprint:
            key = hashlib.sha256(f"{term.kind} {term.fingerprint} {self.digest} {part}".encode()).hexdigest()
            file = self.cache / f"{key[:32]}.npy"
            if file.is_file():
                return np.split(np.load(file), ends)
        batches = [range(i, min(i + BATCH, len(shown))) for i in range(0, len(shown), BATCH)]
        features: list[Floats] = []
        for batch in self.progress(term.name, batches):
            contexts = [self.lists[n].query for n in batch]
            features += term.score(contexts, [list(shown[n]) for n in batch])
        flat = np.concatenate(features) if features else np.zeros((0, len(term.features)), np.float32)
        if not np.isfinite(flat).all():
            raise DataError(f"{term.name} gives a score that is not finite; its weights are damaged or diverged")
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            buffer = BytesIO()
            np.save(buffer, flat)
            write_file(file, buffer.getvalue())
        return np.split(flat, ends)


def _flat(models: Sequence[Scorer]) -> list[Scorer]:
    """The models; those of rankers in their places, each once."""
    flat: dict[int, Scorer] = {}
    for model in models:
        if not hasattr(model, "score"):
            raise UsageError(f"{model!r} has no method `score`; give what polyrank.load(NAME) returns")
        parts = [getattr(each.term, "scorer", None) for each in model.terms] if isinstance(model, Ranker) else [model]
        flat |= {id(part): part for part in parts if part is not None}
    return list(flat.values())


def _terms(
    named: Sequence[Scorer],
    lists: Sequence[Example],
    dialogues: Sequence[Example],
    installed: Sequence[Scorer],
    without: Collection[str],
    scored: _Scored,
) -> list[Term]:
    """The terms to try: encoders first, then what the other kinds offer."""
    offer = Offer(tuple(named), lists, dialogues, installed=tuple(installed))
    encoders = list(EncoderTerm.offered(offer))
    alone = [fit_weights(scored.features(term), scored.relevant)[0] for term in encoders]
    offer = replace(offer, scales=tuple(alone))
    others = [kind for name, kind in sorted(term_kinds().items()) if name not in without and kind is not EncoderTerm]
    terms: list[Term] = [*encoders, *(term for kind in others for term in kind.offered(offer))]
    terms = [term for term in terms if term.name not in without and term.kind not in without]
    if not terms:
        raise UsageError(f"no term is left without {', '.join(sorted(without))}; leave one of them in")
    return terms


@dataclass(frozen=True, slots=True)
class _Columns:
    """Features of several terms side by side, with the block of each term and its number."""

    features: list[NDArray[np.floating]]
    blocks: list[Block]
    numbers: list[int]


def _columns(
    terms: Sequence[Term],
    features: Mapping[int, Sequence[Floats]],
    numbers: Sequence[int],
    main: int,
    held: Mapping[int, float | None],
) -> _Columns:
    """The features of terms; one with a fixed weight is added to the main one's."""
    free = [n for n in numbers if n == main or held.get(n) is None]
    blocks, start = [], 0
    for n in free:
        width = len(terms[n].features)
        blocks.append(Block(tuple(range(start, start + width)), terms[n].deviation, terms[n].signed))
        start += width
    joined = []
    for row in range(len(features[main])):
        parts = [np.asarray(features[n][row], np.float64) for n in free]
        for n, weight in held.items():
            if n != main and weight is not None and n in features:
                parts[free.index(main)] = parts[free.index(main)] + weight * features[n][row]
        joined.append(np.concatenate(parts, axis=1))
    return _Columns(joined, blocks, free)


def _fixed_weight(term: Term, fixed: Mapping[str, float]) -> float | None:
    weight = fixed.get(term.name, fixed.get(term.kind))
    if weight is not None and len(term.features) > 1:
        raise UsageError(f"{term.name} has several weights, for {', '.join(term.features)}; leave it free or out")
    return weight


def _forward(
    selection: Selection,
    start: list[int],
    numbers: Sequence[int],
    durations: Mapping[int, float],
    ms: float | None,
    several: Sequence[int],
) -> list[int]:
    """Forward selection of terms that fit into the time, with at most one encoder of several vectors."""
    chosen = start
    while True:
        spent = sum(durations[numbers[b]] for b in chosen)
        attends = any(numbers[b] in several for b in chosen)
        left = [
            b
            for b in range(len(numbers))
            if b not in chosen
            and (ms is None or spent + durations[numbers[b]] <= ms)
            and not (attends and numbers[b] in several)
        ]
        longer = selection.forward(chosen, left)[: len(chosen) + 1]
        if len(longer) == len(chosen):
            return chosen
        chosen = longer


@dataclass(frozen=True, slots=True)
class _Shortlists:
    selection: Selection


def _reranked(
    terms: Sequence[Term],
    order: Sequence[int],
    weights: Mapping[int, Sequence[float]],
    crosses: Sequence[int],
    features: Mapping[int, Sequence[Floats]],
    scored: _Scored,
    held: Mapping[int, float | None],
    seed: int,
) -> _Shortlists:
    """The choice among re-rankers of the best candidates of the search; lists whose right one it misses stay."""
    searchable = [n for n in order if terms[n].encoder(weights[n]) is not None]
    rows, active, relevant = [], np.zeros(len(scored.lists), np.bool_), []
    ranks, hits = np.zeros(len(scored.lists)), np.zeros(len(scored.lists))
    for number, example in enumerate(scored.lists):
        total = sum(features[n][number] @ np.asarray(weights[n]) for n in searchable)
        values = np.asarray(total, np.float32)
        rows.append(shortlist_of(values, example.candidates, N_RERANKED))
        right = [place for place, row in enumerate(rows[-1]) if row in scored.relevant[number]]
        texts = {example.candidates[row] for row in scored.relevant[number]}
        right = [place for place, row in enumerate(rows[-1]) if example.candidates[row] in texts]
        active[number] = 0 < len(right) < len(rows[-1])
        relevant.append(right)
        placement = placement_of(values, scored.relevant[number])
        ranks[number], hits[number] = reciprocal_rank(placement), hit_at(placement, 1)
    shown = [[e.candidates[row] for row in listed] for e, listed in zip(scored.lists, rows, strict=True)]
    short = {n: [values[listed] for values, listed in zip(features[n], rows, strict=True)] for n in features}
    short |= {n: scored.features(terms[n], shown) for n in crosses}
    columns = _columns(terms, short, [*order, *crosses], order[0], held)
    return _Shortlists(
        Selection(
            columns.features,
            relevant,
            scored.dialogues,
            columns.blocks,
            active=active,
            figures=(ranks, hits),
            seed=seed,
        )
    )


def _n_vectors(term: Term) -> int:
    encoder = term.encoder((1.0,)) if isinstance(term, EncoderTerm) else None
    return 1 if encoder is None else int(encoder.encode_contexts([PROBE])[0].shape[1])


def _ranker(
    terms: Sequence[Term],
    order: Sequence[int],
    weights: Mapping[int, Sequence[float]],
    several: Sequence[int],
    n_retrieved: int,
) -> Ranker:
    """The terms with weights in units of one encoder's score: of the one with several vectors, or else the first."""
    encoders = [n for n in order if isinstance(terms[n], EncoderTerm)]
    unit = next((n for n in encoders if n in several), encoders[0] if encoders else order[0])
    scale = weights[unit][0] or 1.0
    listed = [(terms[n], [float(f"{weight / scale:.4g}") for weight in weights[n]]) for n in order]
    listed.sort(key=lambda each: each[0] is not terms[unit])  # the unit first; the sort is stable
    return Ranker(listed, n_retrieved=n_retrieved, scale=float(f"{scale:.4g}"))


def _rows(
    terms: Sequence[Term],
    order: Sequence[int],
    ranker: Ranker,
    steps: Sequence[HeldOut],
    losses: Mapping[int, HeldOut],
    durations: Mapping[int, float],
    scored: _Scored,
) -> list[dict[str, Any]]:
    weights = {id(each.term): dict(zip(each.term.features, each.weights, strict=True)) for each in ranker.terms}
    interval = partial(mean_with_interval, dialogues=scored.dialogues)

    def difference(after: HeldOut, before: HeldOut) -> dict[str, Any]:
        ranks = interval(after.reciprocal_rank - before.reciprocal_rank)
        return {"R@1": interval(after.hit - before.hit), "MRR": ranks}

    rows = []
    for place, number in enumerate(order):
        term = terms[number]
        row: dict[str, Any] = {"kind": term.kind, "name": term.name, "weights": weights[id(term)]}
        row["milliseconds"] = durations[number]
        if 0 < place < len(steps):
            row["with"] = difference(steps[place], steps[place - 1])
        if number in losses and len(order) > 1:
            row["without"] = difference(losses[number], steps[-1])
        rows.append(row)
    others = [n for n in range(len(terms)) if n not in order]
    rows += [
        {"kind": terms[n].kind, "name": terms[n].name, "weights": {}, "milliseconds": durations[n]} for n in others
    ]
    return rows


def _curve(
    order: Sequence[int],
    terms: Sequence[Term],
    steps: Sequence[HeldOut],
    durations: Mapping[int, float],
    scored: _Scored,
) -> list[dict[str, Any]]:
    curve = []
    for n, step in enumerate(steps[: len(order)]):
        curve.append(
            {
                "terms": [terms[number].name for number in order[: n + 1]],
                "milliseconds": float(sum(durations[number] for number in order[: n + 1])),
                "R@1": mean_with_interval(step.hit, scored.dialogues),
                "MRR": mean_with_interval(step.reciprocal_rank, scored.dialogues),
            }
        )
    return curve


def _signed(figure: Mapping[str, float]) -> str:
    """A difference of R@1 in points, with its interval.

    >>> _signed({"mean": 0.1, "low": 0.05, "high": 0.15})
    '+10.0 (+5.0 to +15.0)'
    """
    return f"{100 * figure['mean']:+.1f} ({100 * figure['low']:+.1f} to {100 * figure['high']:+.1f})"
