"""Terms that are chosen one after the other: what each adds, what it costs, and the ranker of the chosen ones."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import UsageError
from polyrank.evaluation.tables import mean_with_interval
from polyrank.ranking.relevance import Relevance, fit_relevance
from polyrank.scorers.joined import PROBE
from polyrank.scorers.ranker import Ranker
from polyrank.scorers.terms.encoder import EncoderTerm, ScorerTerm
from polyrank.scorers.terms.protocol import Term
from polyrank.scorers.two_stage import SHORTLIST
from polyrank.tuning.scored import ScoredLists, Shortlists
from polyrank.tuning.selection import HeldOut, Selection, TermColumns

N_RERANKED = 25
"""Candidates that a Cross-encoder scores: more cost time and rarely change the best reply."""


class Choice:
    """Terms in the order in which they were chosen.

    Args:
        terms: that may be chosen.
        scored: their features.
        fixed: weights of terms that the user fixed, in units of the first term's score: their features are a part of
            the first term's.
        durations: milliseconds of each term in an answer.
        ms: the longest time of an answer; None: any.
        seed: of the partitions.
        shortlists: the candidates that are ranked; None: all.
    """

    def __init__(
        self,
        terms: Sequence[Term],
        scored: ScoredLists,
        fixed: Mapping[Term, float],
        durations: Mapping[Term, float],
        ms: float | None,
        seed: int,
        shortlists: Shortlists | None = None,
    ) -> None:
        self.terms, self.scored, self.fixed = [term for term in terms if term not in fixed], scored, fixed
        self.durations, self.ms, self.seed, self.shortlists = durations, ms, seed, shortlists
        self.selection = self._selection()
        self.several = [term for term in terms if _n_vectors(term) > 1]
        self.alone = self.terms[0]  # the best model alone, and what it reaches
        self.first = self.held_out([self.alone])
        self.order = [self.alone]
        self.steps = [self.first]  # what the first terms of the order reach
        self.likelihood = np.zeros(len(scored.lists))  # its gain in log-likelihood over the best model alone

    def _selection(self) -> Selection:
        blocks, start = [], 0
        for term in self.terms:
            end = start + len(term.features)
            blocks.append(TermColumns(tuple(range(start, end)), term.deviation, term.signed))
            start = end
        columns = {term: self.scored.features(term, self.shortlists) for term in (*self.terms, *self.fixed)}
        features: list[NDArray[np.floating]] = []
        for row in range(len(self.scored.lists)):
            parts = [np.asarray(columns[term][row], np.float64) for term in self.terms]
            for term, weight in self.fixed.items():
                parts[0] = parts[0] + weight * columns[term][row]
            features.append(np.concatenate(parts, axis=1))
        short, dialogues, seed = self.shortlists, self.scored.dialogues, self.seed
        if short is None:
            return Selection(features, self.scored.relevant, dialogues, blocks, seed=seed)
        active, figures = short.active, short.figures
        return Selection(features, short.relevant, dialogues, blocks, active=active, figures=figures, seed=seed)

    def start(self, alone: "Choice | None" = None) -> None:
        """Choose the best model alone: an encoder, if there is one, that fits into the time.

        Args:
            alone: a choice that has started, without fixed weights: then the first term and the fixed ones are chosen.

        Raises:
            UsageError: none fits.
        """
        models: list[Term] = [term for term in self.terms if isinstance(term, EncoderTerm)] or self.terms
        models = [term for term in models if isinstance(term, ScorerTerm)] or models
        models = self.terms[:1] if self.fixed else models
        if not (fit := [term for term in models if self.ms is None or self._milliseconds([term]) <= self.ms]):
            fastest = min(models, key=lambda term: self.durations[term])
            fixed = " with the terms of fixed weights" if self.fixed else ""
            raise UsageError(
                f"no model answers in {self.ms:g} ms: {fastest.name}, the fastest, takes"
                f" {self._milliseconds([fastest]):.1f}{fixed}; permit more"
            )
        best = max(fit, key=lambda term: self.selection.log_likelihood(self._numbers([term])))
        self.alone, self.first = (best, self.held_out([best])) if alone is None else (alone.alone, alone.first)
        self.order = [best]
        self.steps = [self.held_out(self.order)]
        self.likelihood = self.steps[0].log_likelihood - self.first.log_likelihood

    def add(self, candidates: Sequence[Term]) -> None:
        """Add terms one after the other, each the best, while one surely helps; see ``Selection.best``."""
        while True:
            left = [term for term in candidates if term in self.terms and term not in self.order and self._fits(term)]
            best = self.selection.best(self._numbers(self.order), self._numbers(left))
            if best is None:
                return
            self.order.append(self.terms[best])
            self.steps.append(self.held_out(self.order))
            self.likelihood = self.likelihood + self.steps[-1].log_likelihood - self.steps[-2].log_likelihood

    def _fits(self, term: Term) -> bool:
        """Whether a term may be added: in time, and only one encoder gives contexts several vectors."""
        attends = term in self.several and any(other in self.several for other in (*self.order, *self.fixed))
        return not attends and (self.ms is None or self._milliseconds([*self.order, term]) <= self.ms)

    def _milliseconds(self, terms: Sequence[Term]) -> float:
        """Of an answer by these terms and the fixed ones."""
        return float(sum(self.durations[term] for term in (*terms, *self.fixed)))

    def with_rerankers(self, rerankers: Sequence[Term]) -> "Choice":
        """The choice with re-rankers of the best candidates of the search; itself if none of them helps."""
        tried = [term for term in rerankers if self._fits(term)]
        if not tried:
            return self
        weights = self.weights(self.order)
        used = [term for term in weights if any(weights[term])]
        searched = [(term, weights[term]) for term in used if term.encoder(weights[term]) is not None]
        if not searched:
            return self
        shortlists = Shortlists.of(searched, self.scored, N_RERANKED)
        if not shortlists.active.any():
            return self
        terms = [*self.order, *self.fixed, *tried]
        second = Choice(terms, self.scored, self.fixed, self.durations, self.ms, self.seed, shortlists)
        second.alone, second.first, second.likelihood = self.alone, self.first, self.likelihood
        second.order, second.steps = list(self.order), [*self.steps[:-1], second.held_out(self.order)]
        second.add(tried)
        return second if len(second.order) > len(self.order) else self

    def held_out(self, terms: Sequence[Term]) -> HeldOut:
        """The figures of some terms together."""
        return self.selection.held_out(self._numbers(terms))

    def weights(self, terms: Sequence[Term]) -> dict[Term, tuple[float, ...]]:
        """The weights of some terms and of the fixed ones, with which their sum is log-odds."""
        fitted = {self.terms[n]: w for n, w in self.selection.weights(self._numbers(terms)).items()}
        first = fitted.get(self.terms[0], (0.0,))[0]
        return fitted | {term: (weight * first,) for term, weight in self.fixed.items()}

    def ranker(self, order: Sequence[Term]) -> Ranker:
        """Some terms, with weights in units of one encoder's score: of the one that attends, or the first."""
        weights = self.weights(order)
        used = [term for term in order if any(weights[term])] or order[:1]
        encoders = [term for term in used if isinstance(term, EncoderTerm)]
        unit = next((term for term in encoders if term in self.several), (encoders or used)[0])
        scale = abs(weights[unit][0]) or 1.0  # of words it may be negative
        # rounded as printed, so that users can give the same weights again
        listed = {term: [float(f"{weight / scale:.4g}") for weight in values] for term, values in weights.items()}
        if not any(listed[unit]):  # of a model that ranks the lists no better than chance, alone
            listed[unit] = [1.0]
        chosen = [unit, *(term for term in (*order, *self.fixed) if term is not unit and any(listed[term]))]
        n_retrieved = SHORTLIST if self.shortlists is None else N_RERANKED
        terms = [(term, listed[term]) for term in chosen]
        return Ranker(terms, n_retrieved=n_retrieved, scale=float(f"{scale:.4g}"))

    def relevance(self, ranker: Ranker) -> Relevance:
        """How probable it is that a candidate with the ranker's score is right, of those that all its terms score."""
        totals: list[NDArray[np.floating]] = [np.zeros(1)] * len(self.scored.lists)
        for weighed in ranker.terms:
            features = self.scored.features(weighed.term, self.shortlists)
            totals = [total + part @ weighed.weights for total, part in zip(totals, features, strict=True)]
        relevant = self.scored.relevant if self.shortlists is None else self.shortlists.relevant
        return fit_relevance(totals, relevant, self.scored.dialogues)

    def rows(self, ranker: Ranker, every: Sequence[Term]) -> list[dict[str, Any]]:
        """The terms of the ranker, then the others that were tried; see ``Tuning``."""
        weights = {one.term: dict(zip(one.term.features, one.weights, strict=True)) for one in ranker.terms}
        rows = []
        for term in dict.fromkeys((*self.order, *self.fixed, *every)):
            row: dict[str, Any] = {"kind": term.kind, "name": term.name, "weights": weights.get(term, {})}
            row["milliseconds"] = self.durations[term]
            place = self.order.index(term) if term in self.order else 0
            if place:
                row["with"] = self._difference(self.steps[place], self.steps[place - 1])
            if term in self.order and len(self.order) > 1:
                others = self.held_out([other for other in self.order if other is not term])
                row["without"] = self._difference(others, self.steps[-1])
            rows.append(row)
        return rows

    def curve(self) -> list[dict[str, Any]]:
        """Time and accuracy of the first terms; see ``Tuning``."""
        return [
            {
                "terms": [term.name for term in self.order[: n + 1]],
                "milliseconds": self._milliseconds(self.order[: n + 1]),
                "R@1": mean_with_interval(step.hit, self.scored.dialogues),
                "MRR": mean_with_interval(step.reciprocal_rank, self.scored.dialogues),
            }
            for n, step in enumerate(self.steps)
        ]

    def gain(self) -> dict[str, dict[str, float]]:
        """Of the chosen terms over the best model alone, with intervals over dialogues."""
        likelihood = mean_with_interval(self.likelihood, self.scored.dialogues)
        return {"log_likelihood": likelihood, **self._difference(self.steps[-1], self.first)}

    def _difference(self, after: HeldOut, before: HeldOut) -> dict[str, dict[str, float]]:
        differences = {"R@1": after.hit - before.hit, "MRR": after.reciprocal_rank - before.reciprocal_rank}
        return {name: mean_with_interval(values, self.scored.dialogues) for name, values in differences.items()}

    def _numbers(self, terms: Sequence[Term]) -> list[int]:
        return [self.terms.index(term) for term in terms]


def _n_vectors(term: Term) -> int:
    """How many vectors a term gives a context, at most; 0: it has none."""
    encoder = term.encoder((1.0,)) if isinstance(term, EncoderTerm) else None
    return 0 if encoder is None else int(encoder.encode_contexts([PROBE])[0].shape[1])
