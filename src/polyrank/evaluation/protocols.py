"""Evaluation protocols: rank candidate lists, or contexts against one pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import DataError, UsageError
from polyrank.notebook import table
from polyrank.ranking.frames import data_frame
from polyrank.ranking.metrics import Placement, metric_values, placement_of, with_duplicates
from polyrank.records import Candidate, Example
from polyrank.scorers.chunks import Chunked
from polyrank.scorers.inputs import checked_scores
from polyrank.scorers.lexical import corpus_of
from polyrank.scorers.own import as_scorer
from polyrank.wording import brief

if TYPE_CHECKING:
    from polyrank.scorers.protocols import Scorer


@dataclass(frozen=True, slots=True)
class Record:
    """The result of one example.

    Args:
        id: of the example.
        n_turns: of its context.
        relevant: indices of right candidates, including copies of their texts.
        scores: ``[C]`` for candidate lists; None for pools, which keep only the placement.
        placement: the ranks of the right candidates.
    """

    id: str
    n_turns: int
    relevant: tuple[int, ...]
    scores: NDArray[np.float32] | None
    placement: Placement


@dataclass(frozen=True, slots=True, repr=False)
class Evaluation:
    """All results of one scorer on one set of examples.

    Args:
        records: one for each example that can be ranked, in order.
        protocol: "lists" or "pool".
    """

    records: tuple[Record, ...]
    protocol: str

    def __repr__(self) -> str:
        """The number of examples, and R@1 and MRR of those that can be answered."""
        figures = ", ".join(f"{name} {100 * value:.1f}" for name, value in self._means().items())
        return f"Evaluation({len(self.records):,} examples, {self.protocol}{figures and ', '}{figures})"

    def _repr_html_(self) -> str:
        """The figures as a table, for notebooks."""
        means = self._means()
        return table(["examples", *means], [[str(len(self.records)), *means.values()]], self.protocol)

    def _means(self) -> dict[str, float]:
        records = self.answerable
        values = metric_values([record.placement for record in records], (1, 10)) if records else {}
        return {name: float(np.mean(numbers)) for name, numbers in values.items()}

    @property
    def answerable(self) -> tuple[Record, ...]:
        """Records with a right and a wrong candidate; the others cannot be ranked well or badly."""
        return tuple(r for r in self.records if 0 < r.placement.n_relevant < r.placement.n_candidates)

    def to_pandas(self, ks: Sequence[int] = (1, 2, 5, 10, 50)) -> Any:
        """A pandas DataFrame with a row for each answerable example; the means of its metrics are the figures.

        Args:
            ks: for R@k, as in ``summarise``.

        Returns:
            Columns ``id``, ``n_turns``, ``n_candidates``, ``n_relevant``, ``rank`` (of the best right candidate, from
            1, before ties), and the metrics.

        Raises:
            UsageError: pandas is not installed.
        """
        records = self.answerable
        values = metric_values([record.placement for record in records], ks)
        return data_frame(
            [
                {
                    "id": record.id,
                    "n_turns": record.n_turns,
                    "n_candidates": record.placement.n_candidates,
                    "n_relevant": record.placement.n_relevant,
                    "rank": 1 + record.placement.groups[0].n_above,
                    **{name: float(numbers[row]) for name, numbers in values.items()},
                }
                for row, record in enumerate(records)
            ]
        )


def against_responses(examples: Sequence[Example]) -> tuple[list[Example], list[Candidate]]:
    """Turn pairs into retrieval: each context is ranked against the right answers of all examples.

    Args:
        examples: with their right answers as texts; some may have none.

    Returns:
        The examples with ``relevant_ids`` in place of candidates; and the pool, the distinct right answers in order of
        first appearance.

    Raises:
        DataError: an example names its right answer only by id, or no example has one.
    """
    pool: dict[str, Candidate] = {}
    examples_with_pool = []
    for example in examples:
        if example.relevant_ids and not example.relevant:
            raise DataError(
                f"example {example.id!r} names its right answers only by id; give their texts as `pool=FILE`"
            )
        right = dict.fromkeys(example.candidates[i] for i in example.relevant)
        ids = tuple(pool.setdefault(text, Candidate(str(len(pool)), text)).id for text in right)
        grades = example.grades if len(example.grades) == len(ids) else ()  # several ids may have one text, or none
        examples_with_pool.append(replace(example, candidates=(), relevant=(), relevant_ids=ids, grades=grades))
    if not pool:
        raise DataError("no example has a right answer, so the pool of responses is empty; give a `pool=FILE`")
    return examples_with_pool, list(pool.values())


def rankable(examples: Sequence[Example], pool: Sequence[Candidate] | None = None) -> list[Example]:
    """Examples without those that every scorer ranks perfectly: lists of one candidate, or of only right ones.

    Args:
        examples: with candidate lists, or to be ranked against the pool.
        pool: shared candidates.

    Raises:
        DataError: there is nothing to rank.

    >>> lists = [Example(("hi",), texts, (0,)) for texts in (("a",), ("a", "a"), ("a", "b"))]
    >>> rankable(lists) == lists[2:]
    True
    """
    if not examples:
        raise DataError("0 examples to evaluate; give a file with at least one")
    if pool is not None:
        if len(pool) < 2:
            raise DataError(f"a pool of {len(pool)} leaves nothing to rank; give one of two or more candidates")
        return list(examples)
    result = [e for e in examples if len(with_duplicates(e.candidates, e.relevant)) < len(e.candidates) > 1]
    if not result:
        raise DataError(
            "no example has two or more candidates to rank, a wrong one among them; rank all against one pool, with"
            " `pool=FILE`, or `pool=responses` for all right answers of the data"
        )
    return result


def evaluate(
    scorer: Scorer,
    examples: Sequence[Example],
    *,
    pool: Sequence[Candidate] | None = None,
    batch_size: int = 32,
    progress: Callable[[list[range]], Iterable[range]] = lambda batches: batches,
) -> Evaluation:
    """Score every example that is ``rankable``. Candidates of lists are read to their end, in chunks.

    Args:
        scorer: any Scorer; a lexical one that is not fitted is fitted to all candidates (``corpus_of``).
        examples: with candidate lists. If a pool is given, their right answers are looked up in it: by
            ``relevant_ids``, and by the texts of the right candidates. Examples without a right answer in the pool
            count as unanswerable.
        pool: shared candidates.
        batch_size: contexts per call.
        progress: wraps the list of batches, as ``rich.progress.track`` does.

    Raises:
        UsageError: the scorer or the examples have another type, or the scorer returns other numbers of scores.
        DataError: no example can be ranked.
    """
    if hasattr(examples, "score") and not hasattr(scorer, "score"):
        raise UsageError("evaluate(examples, scorer) has its arguments swapped; write evaluate(scorer, examples)")
    scorer = as_scorer(scorer)
    is_list = isinstance(examples, Iterable) and not isinstance(examples, str)
    examples = list(examples) if is_list else [examples]  # type: ignore[list-item]  # refused below
    if wrong := [given for given in examples if not isinstance(given, Example)]:
        raise UsageError(f"{brief(wrong[0])} is not an Example; give polyrank.read_examples(FILE).examples")
    examples = rankable(examples, pool)
    scorer = scorer.fitted_to(lambda: corpus_of(examples, pool))
    scorer = Chunked(scorer) if pool is None else scorer  # a pool stands for an index, which has a vector for each
    batches = [range(i, min(i + batch_size, len(examples))) for i in range(0, len(examples), batch_size)]
    score = _score_lists if pool is None else _PoolScoring(pool).score
    records = [record for batch in progress(batches) for record in score(scorer, [examples[i] for i in batch], batch)]
    return Evaluation(tuple(records), "lists" if pool is None else "pool")


def _record(
    example: Example,
    relevant: tuple[int, ...],
    scores: NDArray[np.float32],
    keep: bool,
    grades: Mapping[int, int] | None = None,
) -> Record:
    try:
        placement = placement_of(scores, relevant, grades)
    except ValueError as error:
        raise DataError(f"example {example.id!r}: {error}") from error
    return Record(example.id, len(example.context), relevant, scores if keep else None, placement)


def _score_lists(scorer: Scorer, examples: Sequence[Example], numbers: range) -> list[Record]:
    # some corpora put the right answer at a fixed position, which must not help any scorer
    orders = [
        np.random.Generator(np.random.PCG64([7, number])).permutation(len(example.candidates))
        for number, example in zip(numbers, examples, strict=True)
    ]
    shuffled = [[e.candidates[i] for i in order] for e, order in zip(examples, orders, strict=True)]
    rows = list(scorer.score([e.query for e in examples], shuffled))
    if len(rows) != len(examples):
        raise UsageError(f"{scorer!r} returned scores of {len(rows)} contexts for {len(examples)}; return one row each")
    records = []
    for example, order, values in zip(examples, orders, rows, strict=True):
        scores = np.empty(len(order), np.float32)
        scores[order] = checked_scores(values, (len(order),), scorer)
        records.append(_record(example, with_duplicates(example.candidates, example.relevant), scores, keep=True))
    return records


class _PoolScoring:
    """Ranks against a pool, by scores alone: only answers hide repetitions. Copies of a right text are right too."""

    def __init__(self, pool: Sequence[Candidate]) -> None:
        self.texts = [candidate.text for candidate in pool]
        self.number = {candidate.id: i for i, candidate in enumerate(pool)}
        self.copies: dict[str, list[int]] = {}
        for i, text in enumerate(self.texts):
            self.copies.setdefault(text, []).append(i)

    def score(self, scorer: Scorer, examples: Sequence[Example], numbers: range) -> list[Record]:
        scores = scorer.score_pool([example.query for example in examples], self.texts)
        values = checked_scores(scores, (len(examples), len(self.texts)), scorer)
        records = []
        for example, row in zip(examples, values, strict=True):
            relevant = self._relevant(example)
            records.append(_record(example, relevant, row, keep=False, grades=self._grades(example, relevant)))
        return records

    def _grades(self, example: Example, relevant: tuple[int, ...]) -> dict[int, int] | None:
        """The grade of each right candidate; a copy has the grade of its text."""
        if not example.grades:
            return None
        pairs = zip(example.relevant_ids, example.grades, strict=True)
        grade_of = {self.texts[self.number[name]]: grade for name, grade in pairs if name in self.number}
        return {i: grade_of.get(self.texts[i], 1) for i in relevant}

    def _relevant(self, example: Example) -> tuple[int, ...]:
        right = {self.texts[self.number[name]] for name in example.relevant_ids if name in self.number}
        right |= {example.candidates[i] for i in example.relevant}
        return tuple(sorted(i for text in right for i in self.copies.get(text, ())))
