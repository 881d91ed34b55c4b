"""The features of terms on validation lists, each computed once and kept for later calls.

Shapes: L lists, K candidates of each, F features of a term.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import DataError
from polyrank.evaluation.tables import dialogues_of
from polyrank.ranking.metrics import hit_at, placement_of, reciprocal_rank, with_duplicates
from polyrank.records import Example
from polyrank.scorers.protocols import Floats
from polyrank.scorers.terms.protocol import Term
from polyrank.scorers.two_stage import shortlist_of
from polyrank.storage.durable import make_folders, write_file

BATCH = 32
Progress = Callable[[str, list[range]], Iterable[range]]


def lists_to_fit(valid: Sequence[Example]) -> list[Example]:
    """The examples with a right and a wrong candidate.

    Raises:
        DataError: there are none.
    """
    lists = [e for e in valid if 0 < len(with_duplicates(e.candidates, e.relevant)) < len(e.candidates)]
    if not lists:
        raise DataError("no example has a right answer among candidates; tune on candidate lists")
    return lists


class ScoredLists:
    """Lists with the features of terms. A candidate is scored once, whatever the shortlists that it is in.

    Args:
        lists: with right answers, see ``lists_to_fit``.
        cache: a folder of features from earlier calls, by the fingerprints of terms and lists; None: none.
        progress: called with the name of each term and the list of its batches, which it wraps.
    """

    def __init__(self, lists: Sequence[Example], cache: Path | None, progress: Progress) -> None:
        self.lists, self.cache, self.progress = lists, cache, progress
        self.relevant = [sorted(with_duplicates(e.candidates, e.relevant)) for e in lists]
        self.dialogues = dialogues_of([example.id for example in lists])
        self._kept: dict[Term, list[Floats]] = {}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the texts, in hex."""
        stated = json.dumps([[e.context, e.background, e.candidates] for e in self.lists])
        return hashlib.sha256(stated.encode("utf-8", "surrogatepass")).hexdigest()

    def features(self, term: Term, shortlists: "Shortlists | None" = None) -> list[Floats]:
        """The features ``[K, F]`` of each list, or of the candidates of its shortlist.

        Raises:
            DataError: a score is not finite.
            ResourceError: the disk is full.
        """
        if term not in self._kept:
            self._kept[term] = self._read(term)
        values = self._kept[term]
        rows = [[*range(len(e.candidates))] for e in self.lists] if shortlists is None else shortlists.rows
        missing = {n: [row for row in chosen if np.isnan(values[n][row, 0])] for n, chosen in enumerate(rows)}
        if missing := {n: chosen for n, chosen in missing.items() if chosen}:
            self._compute(term, values, missing)
        return [whole[chosen] for whole, chosen in zip(values, rows, strict=True)]

    def _read(self, term: Term) -> list[Floats]:
        """The features of an earlier call; NaN where it computed none."""
        ends = np.cumsum([len(e.candidates) for e in self.lists])
        if (file := self._file(term)) is not None and file.is_file():
            return np.split(np.load(file), ends[:-1])
        return np.split(np.full((ends[-1], len(term.features)), np.nan, np.float32), ends[:-1])

    def _compute(self, term: Term, values: list[Floats], missing: Mapping[int, list[int]]) -> None:
        numbers = [*missing]
        for batch in self.progress(
            term.name, [range(i, min(i + BATCH, len(numbers))) for i in range(0, len(numbers), BATCH)]
        ):
            chosen = [numbers[place] for place in batch]
            texts = [[self.lists[n].candidates[row] for row in missing[n]] for n in chosen]
            for n, scores in zip(chosen, term.score([self.lists[n].query for n in chosen], texts), strict=True):
                if not np.isfinite(scores).all():
                    raise DataError(
                        f"{term.name} gives a score that is not finite; its weights are damaged, so leave it out"
                    )
                values[n][missing[n]] = scores
        if (file := self._file(term)) is not None:
            make_folders(file.parent)
            stream = BytesIO()
            np.save(stream, np.concatenate(values))
            write_file(file, stream.getvalue())

    def _file(self, term: Term) -> Path | None:
        """Where the features are kept; None: nowhere."""
        if self.cache is None or not term.fingerprint:
            return None
        key = f"{term.kind} {term.fingerprint} {self.digest}"
        return self.cache / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npy"


@dataclass(frozen=True, slots=True, eq=False)
class Shortlists:
    """The best candidates of each list, which re-rankers score.

    Args:
        rows: of the candidates, best first.
        texts: of the candidates.
        relevant: places of the right ones in the shortlist.
        active: whether a re-ranker can change the ranks, ``[L]``: a right and a wrong candidate are in the shortlist.
        figures: reciprocal rank and hit of each list before, ``[L]`` each.
    """

    rows: list[list[int]]
    texts: list[list[str]]
    relevant: list[list[int]]
    active: NDArray[np.bool_]
    figures: tuple[NDArray[np.float64], NDArray[np.float64]]

    @classmethod
    def of(cls, terms: Sequence[tuple[Term, Sequence[float]]], scored: ScoredLists, n: int) -> Self:
        """The n best by some terms with their weights."""
        features = [(scored.features(term), np.asarray(weights)) for term, weights in terms]
        rows, texts, relevant, figures = [], [], [], []
        for number, example in enumerate(scored.lists):
            total = sum(values[number] @ weights for values, weights in features)
            scores = np.asarray(total, np.float32)
            best = shortlist_of(scores, example.candidates, n)
            right = {example.candidates[row] for row in scored.relevant[number]}
            rows.append(best)
            texts.append([example.candidates[row] for row in best])
            relevant.append([place for place, text in enumerate(texts[-1]) if text in right])
            placement = placement_of(scores, scored.relevant[number])
            figures.append((reciprocal_rank(placement), hit_at(placement, 1)))
        active = np.array([0 < len(right) < len(best) for right, best in zip(relevant, rows, strict=True)])
        ranks, hits = np.array(figures, np.float64).T
        return cls(rows, texts, relevant, active, (ranks, hits))
