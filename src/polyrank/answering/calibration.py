"""Settings of a pipeline that need data: ensemble and threshold, chosen on some examples and tried on others."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from polyrank.answering.choice import Choice
from polyrank.answering.pipeline import make_retriever
from polyrank.answering.protocol import Answer, Answering
from polyrank.config.pipeline import Ensemble, PipelineConfig
from polyrank.errors import DataError, UsageError
from polyrank.index import open_index
from polyrank.negatives.mine import with_texts
from polyrank.ranking.abstention import N_SCORES, Point, area, calibrate, confidence, coverage_curve
from polyrank.ranking.ensembles import choose_ensemble, reciprocal_ranks
from polyrank.ranking.statistics import mean_with_interval
from polyrank.records import Context, Example, Ranked
from polyrank.scorers.two_stage import total_score


def choose_settings(
    config: PipelineConfig,
    examples: Sequence[Example],
    *,
    ensemble: Ensemble | Literal["auto"] | None = None,
    precision: float | None = None,
    no_answer: float = 0.0,
    seed: int = 0,
    device: str = "auto",
) -> tuple[PipelineConfig, dict[str, Any]]:
    """Settle ensemble and threshold on validation examples.

    Args:
        config: what to tune.
        examples: contexts whose right answers are named by id (``relevant_ids``) or by text.
        ensemble: a scale; "auto": the best of them on the examples.
        precision: wanted share of right answers; None: no threshold.
        no_answer: hide the right answers of this share of the examples, so that they have none. Examples whose right
            answer the index does not hold have none anyway.
        seed: of the choice of the hidden ones.
        device: for networks.

    Returns:
        The settings, and what was seen: ``n_lacking``, examples of whose right answers the index holds none; the mean
        reciprocal rank of each ensemble, and of the first stage alone, of both and of their difference with 95%
        intervals (``stages``); and the precision/coverage curve.

    Raises:
        DataError: there are no examples, or no threshold is precise enough.
    """
    if not examples:
        raise DataError("there are no validation examples; give a file with at least one")
    tuning: dict[str, Any] = {"n_examples": len(examples)}
    with make_retriever(config, device=device) as retriever:
        examples, tuning["n_lacking"] = _named(config, examples)
        if retriever.n_stages == 2 and ensemble is not None:
            if ensemble == "auto":
                ensemble, chosen = _best_ensemble(retriever, config.n_retrieved, examples)
                tuning |= chosen
            config, retriever = replace(config, ensemble=ensemble), retriever.with_ensemble(ensemble)
        if "ensembles" in tuning or precision is not None:
            tuning["fingerprints"] = retriever.fingerprints()
        if precision is not None:
            hidden = _hidden(len(examples), no_answer, seed)
            scores, right = outcomes(retriever, examples, hidden.tolist())
            try:
                abstention, curve = calibrate(scores, right, precision=precision)
            except DataError as error:
                raise DataError(f"{error}; {lacking(tuning)}") from error
            config = replace(config, measure=abstention.measure, threshold=abstention.threshold)
            point = min((p for p in curve if p.threshold >= abstention.threshold), key=attrgetter("threshold"))
            tuning |= {"no_answer": float(hidden.mean()), "chosen": asdict(point), "curve": [asdict(p) for p in curve]}
    return config, tuning


def try_threshold(
    config: PipelineConfig,
    examples: Sequence[Example],
    *,
    no_answer: float = 0.0,
    seed: int = 0,
    device: str = "auto",
) -> tuple[dict[str, float], list[Point]]:
    """How the threshold does on examples that it was not chosen on.

    Args:
        config: of a pipeline with a threshold.
        examples, no_answer, seed: see ``choose_settings``.
        device: for networks.

    Returns:
        ``n_examples``; ``no_answer``, the share whose answer was hidden; ``coverage``, ``precision`` and ``low`` as in
        ``Point``; ``answered_without``, the share of the hidden ones that got an answer all the same; ``area`` under
        the curve; and the curve.

    Raises:
        DataError: there are no examples.
        UsageError: the pipeline has no threshold.
    """
    if not examples:
        raise DataError("there are no examples; give a file with at least one")
    if config.measure is None or config.threshold is None:
        raise UsageError("this pipeline has no threshold; make one with polyrank pipeline create --valid --precision")
    hidden = _hidden(len(examples), no_answer, seed)
    with make_retriever(config, device=device) as retriever:
        examples, _ = _named(config, examples)
        scores, right = outcomes(retriever, examples, hidden.tolist())
    confidences = np.array([confidence(row, config.measure) for row in scores])
    curve = coverage_curve(confidences, right)
    answered = confidences >= config.threshold
    # the point of the curve that this threshold is, whether or not it is the confidence of an example
    point = next((p for p in reversed(curve) if p.threshold >= config.threshold), Point(config.threshold, 0, 0, 0))
    return {
        "n_examples": len(examples),
        "no_answer": float(hidden.mean()),
        "coverage": point.coverage,
        "precision": point.precision,
        "low": point.low,
        "answered_without": float(answered[hidden].mean()) if hidden.any() else 0.0,
        "area": area(curve),
    }, curve


def lacking(tuning: dict[str, Any]) -> str:
    """How many examples no threshold and no re-ranker can answer."""
    return f"the index lacks the right answers of {tuning['n_lacking']:,} of {tuning['n_examples']:,} examples"


def _named(config: PipelineConfig, examples: Sequence[Example]) -> tuple[list[Example], int]:
    """With the texts of right answers that are named by id: of equal texts the retriever gives one, whatever its id.

    Also how many examples have right answers of which the index holds none.
    """
    with open_index(Path(config.index)) as index:
        candidates = [candidate for _, candidate in index.iter_candidates()]
    named, texts = with_texts(examples, candidates), {candidate.text for candidate in candidates}
    rights = [{example.candidates[i] for i in example.relevant} for example in named]
    n_lacking = sum(
        bool(right or example.relevant_ids) and not right & texts for example, right in zip(named, rights, strict=True)
    )
    return named, n_lacking


def outcomes(
    retriever: Answering, examples: Sequence[Example], hidden: Sequence[bool]
) -> tuple[list[list[float]], list[bool]]:
    """Scores of the best replies to each example, best first, and whether the best one is right.

    Args:
        retriever: answers.
        examples: with right answers by id or by text.
        hidden: whether an example's right answers are taken out of the replies.
    """
    scores, right = [], []
    for start in range(0, len(examples), 32):
        part = examples[start : start + 32]
        # right answers go before the second stage: an ensemble's scales depend on all of the shortlist
        source = retriever.with_retriever(partial(_Without, part, hidden[start : start + 32]))
        for example, ranked in zip(part, source.respond([e.query for e in part], N_SCORES), strict=True):
            scores.append([reply.score for reply in ranked])
            right.append(bool(ranked) and is_right(example, ranked[0]))
    return scores, right


class _Without(Answering):
    """Answers to these examples as if right answers were not there.

    Args:
        examples: one for each context, in order.
        hidden: whether an example's right answers are missing.
        retriever: of one stage.
    """

    def __init__(self, examples: Sequence[Example], hidden: Sequence[bool], retriever: Answering) -> None:
        self.examples, self.hidden, self.retriever = examples, hidden, retriever
        self.scorer, self.encoder, self.index = retriever.scorer, retriever.encoder, retriever.index

    def best(self, contexts: Sequence[Context], choice: Choice) -> list[Answer]:
        """The best of what is left."""
        without_answer = [e for e, hidden in zip(self.examples, self.hidden, strict=True) if hidden]
        n = choice.k + max((len(e.relevant_ids) + len(e.relevant) for e in without_answer), default=0)
        while True:
            results = [answer.ranked for answer in self.retriever.best(contexts, replace(choice, k=n))]
            filtered = [
                tuple(reply for reply in ranked if not (hidden and is_right(example, reply)))[: choice.k]
                for example, hidden, ranked in zip(self.examples, self.hidden, results, strict=True)
            ]
            # a text may stand in an index many times, and all its copies are right
            if all(len(row) == choice.k or len(ranked) < n for row, ranked in zip(filtered, results, strict=True)):
                return [Answer(row, None, not row) for row in filtered]
            n *= 2


def is_right(example: Example, reply: Ranked) -> bool:
    """Whether a reply is a right answer, by its id or by its text."""
    return reply.id in example.relevant_ids or reply.text in {example.candidates[i] for i in example.relevant}


def _hidden(n: int, no_answer: float, seed: int) -> NDArray[np.bool_]:
    """Which of the examples lose their right answers."""
    return np.random.Generator(np.random.PCG64(seed)).random(n) < no_answer


def _best_ensemble(
    both: Answering, n_retrieved: int, examples: Sequence[Example]
) -> tuple[Ensemble | None, dict[str, Any]]:
    """By the scores of each stage alone, whatever the ensemble is now. And what was seen: ``choose_settings``."""
    first, second, right = [], [], []
    for start in range(0, len(examples), 32):
        part = examples[start : start + 32]
        for example, ranked in zip(part, both.respond([e.query for e in part], n_retrieved), strict=True):
            if ranked:
                first.append(np.array([reply.stages["retriever"] for reply in ranked], np.float32))
                second.append(np.array([reply.stages["reranker"] for reply in ranked], np.float32))
                right.append([i for i, reply in enumerate(ranked) if is_right(example, reply)])
    ensemble, figures = choose_ensemble(first, second, right)
    totals = [total_score(g, s, ensemble) for g, s in zip(first, second, strict=True)]
    alone, chosen = (np.array(reciprocal_ranks(lists, right)) for lists in (first, totals))
    seen: dict[str, Any] = {"ensembles": figures}
    if len(alone) > 1:
        seen["stages"] = {
            name: mean_with_interval(values.tolist())
            for name, values in (("first", alone), ("both", chosen), ("difference", chosen - alone))
        }
    return ensemble, seen


def curve_of(tuning: dict[str, Any]) -> list[Point]:
    """The precision/coverage curve that a pipeline's threshold was chosen on, from the strictest threshold."""
    return [Point(**point) for point in tuning.get("curve", [])]
