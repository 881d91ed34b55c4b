"""Settings of a pipeline that need data: prior, ensemble and threshold, chosen on some examples, tested on others."""

from collections.abc import Iterator, Sequence
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
from polyrank.answering.two_stage import TwoStage
from polyrank.config.pipeline import SHORTLIST, Ensemble, PipelineConfig
from polyrank.errors import DataError, UsageError
from polyrank.evaluation.tables import dialogues_of, mean_with_interval
from polyrank.index import COUNT_FIELD, as_count, open_index
from polyrank.negatives.mine import with_texts
from polyrank.ranking.abstention import N_SCORES, Point, area, calibrate, confidence, coverage_curve
from polyrank.ranking.ensembles import choose_ensemble, reciprocal_ranks
from polyrank.records import Context, Example, Ranked

BATCH = 32  # contexts that are answered at once
PRIOR_RATIOS = tuple(2.0**step for step in range(-3, 4))
FEWEST_FOR_PRIOR = 4  # examples: fewer cannot measure the gain of a weight that the others chose


def choose_settings(
    config: PipelineConfig,
    examples: Sequence[Example],
    *,
    prior: float | Literal["auto"] | None = None,
    ensemble: Ensemble | Literal["auto"] | None = None,
    precision: float | None = None,
    no_answer: float = 0.0,
    seed: int = 0,
    device: str = "auto",
) -> tuple[PipelineConfig, dict[str, Any]]:
    """Choose prior, ensemble and threshold on validation examples.

    Args:
        config: the settings to complete.
        examples: contexts with right answers by id (``relevant_ids``) or by text.
        prior: the weight of ``log(1 + count)`` in the retriever's scores; "auto": the best on the examples, or 0 where
            that is not measurably better, see ``choose_prior``; None: that of ``config``.
        ensemble: a scale; "auto": the best of them on the examples.
        precision: required share of right answers; None: no threshold.
        no_answer: hide the right answers of this share of the examples, so that they have none. Examples whose right
            answer is not in the index have none anyway.
        seed: selects the hidden ones.
        device: for networks.

    Returns:
        The settings, and figures: ``n_lacking``, the number of examples without a right answer in the index; the
        figures of ``choose_prior`` (``prior``); the mean reciprocal rank of each ensemble, and of the first stage
        alone, of both and of their difference with 95% intervals (``stages``; each half of the dialogues has the best
        ensemble of the other half); and the precision/coverage curve.

    Raises:
        DataError: ``examples`` is empty, no candidate has a count or is right, or no threshold is precise enough.
    """
    if not examples:
        raise DataError("0 validation examples; give a file with at least one")
    tuning: dict[str, Any] = {"n_examples": len(examples)}
    examples, tuning["n_lacking"] = _with_answer_texts(config, examples)
    if prior == "auto":
        config, tuning["prior"] = choose_prior(config, examples, device=device)
    elif prior is not None:
        config = replace(config, prior=prior)
    if ensemble == "auto" and config.reranker is not None:
        config = replace(config, ensemble="raw")  # any, because a correcting re-ranker may need one
    with make_retriever(config, device=device) as retriever:
        if retriever.n_stages == 2 and ensemble is not None:
            if ensemble == "auto":
                ensemble, chosen = _best_ensemble(retriever, config.n_retrieved, examples)
                tuning |= chosen
            config, retriever = replace(config, ensemble=ensemble), retriever.with_ensemble(ensemble)
        if "prior" in tuning or "ensembles" in tuning or precision is not None:
            tuning["fingerprints"] = retriever.fingerprints()
        if precision is not None:
            hidden = _choose_hidden(len(examples), no_answer, seed)
            scores, right = outcomes(retriever, examples, hidden.tolist())
            try:
                abstention, curve = calibrate(scores, right, precision=precision)
            except DataError as error:
                raise DataError(f"{error}; {lacking_text(tuning)}") from error
            config = replace(config, measure=abstention.measure, threshold=abstention.threshold)
            point = min((p for p in curve if p.threshold >= abstention.threshold), key=attrgetter("threshold"))
            usable = [asdict(p) for p in curve if np.isfinite(p.threshold)]
            tuning |= {"no_answer": float(hidden.mean()), "chosen": asdict(point), "curve": usable}
    return config, tuning


def try_threshold(
    config: PipelineConfig,
    examples: Sequence[Example],
    *,
    no_answer: float = 0.0,
    seed: int = 0,
    device: str = "auto",
) -> tuple[dict[str, float], list[Point]]:
    """Test a threshold on other examples than those it was chosen on.

    Args:
        config: of a pipeline with a threshold.
        examples, no_answer, seed: see ``choose_settings``.
        device: for networks.

    Returns:
        ``n_examples``; ``no_answer``, the share whose answer was hidden; ``coverage``, ``precision`` and ``low`` as in
        ``Point``; ``answered_without``, the share of hidden ones that got an answer nevertheless; ``area`` under the
        curve; and the curve.

    Raises:
        DataError: ``examples`` is empty.
        UsageError: the pipeline has no threshold.
    """
    if not examples:
        raise DataError("0 examples; give a file with at least one")
    if config.measure is None or config.threshold is None:
        raise UsageError("this pipeline has no threshold; make one with polyrank pipeline create --valid --precision")
    hidden = _choose_hidden(len(examples), no_answer, seed)
    with make_retriever(config, device=device) as retriever:
        examples, _ = _with_answer_texts(config, examples)
        scores, right = outcomes(retriever, examples, hidden.tolist())
    confidences = np.array([confidence(row, config.measure) for row in scores])
    curve = coverage_curve(confidences, right)
    answered = confidences >= config.threshold
    # the point of the curve at this threshold, which need not be the confidence of an example
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


def lacking_text(tuning: dict[str, Any]) -> str:
    """How many examples cannot be answered, for messages."""
    return f"the index lacks the right answers of {tuning['n_lacking']:,} of {tuning['n_examples']:,} examples"


def _with_answer_texts(config: PipelineConfig, examples: Sequence[Example]) -> tuple[list[Example], int]:
    """Examples with the texts of right answers named by id, because the retriever returns equal texts once.

    Also how many examples with right answers have none of them in the index.
    """
    with open_index(Path(config.index)) as index:
        candidates = [candidate for _, candidate in index.iter_candidates()]
    named, texts = with_texts(examples, candidates), {candidate.text for candidate in candidates}
    rights = [_right_texts(example) for example in named]
    n_lacking = sum(
        bool(right or example.relevant_ids) and not right & texts for example, right in zip(named, rights, strict=True)
    )
    return named, n_lacking


def outcomes(
    retriever: Answering, examples: Sequence[Example], hidden: Sequence[bool]
) -> tuple[list[list[float]], list[bool]]:
    """Scores of the best replies to each example, best first, and whether the best one is right.

    Args:
        retriever: of one stage or two.
        examples: with right answers by id or by text.
        hidden: for each example, whether its right answers are removed from the replies.
    """
    scores, right = [], []
    for start in range(0, len(examples), BATCH):
        part = examples[start : start + BATCH]
        # right answers are removed before the second stage, because an ensemble's scales depend on the whole shortlist
        source = retriever.with_retriever(partial(_WithoutAnswers, part, hidden[start : start + BATCH]))
        for example, ranked in zip(part, source.respond([e.query for e in part], N_SCORES), strict=True):
            scores.append([reply.score for reply in ranked])
            right.append(bool(ranked) and is_right(example, ranked[0]))
    return scores, right


class _WithoutAnswers(Answering):
    """Answers as if the right answers of some examples were not in the index.

    Args:
        examples: one for each context, in order.
        hidden: for each example, whether its right answers are missing.
        retriever: of one stage.
    """

    def __init__(self, examples: Sequence[Example], hidden: Sequence[bool], retriever: Answering) -> None:
        self.examples, self.hidden, self.retriever = examples, hidden, retriever
        self.scorer, self.encoder, self.index = retriever.scorer, retriever.encoder, retriever.index

    def best(self, contexts: Sequence[Context], choice: Choice) -> list[Answer]:
        """The best of the other replies."""
        without_answer = [e for e, hidden in zip(self.examples, self.hidden, strict=True) if hidden]
        n = choice.k + max((len(e.relevant_ids) + len(e.relevant) for e in without_answer), default=0)
        while True:
            results = [answer.ranked for answer in self.retriever.best(contexts, replace(choice, k=n))]
            filtered = [
                tuple(reply for reply in ranked if not (hidden and is_right(example, reply)))[: choice.k]
                for example, hidden, ranked in zip(self.examples, self.hidden, results, strict=True)
            ]
            # an index may contain a text many times, and all its copies are right
            if all(len(row) == choice.k or len(ranked) < n for row, ranked in zip(filtered, results, strict=True)):
                return [Answer(row, None, not row) for row in filtered]
            n *= 2


def is_right(example: Example, reply: Ranked) -> bool:
    """Whether a reply is a right answer, by its id or by its text."""
    return reply.id in example.relevant_ids or reply.text in _right_texts(example)


def _right_texts(example: Example) -> set[str]:
    return {example.candidates[i] for i in example.relevant}


def _choose_hidden(n: int, no_answer: float, seed: int) -> NDArray[np.bool_]:
    """A mask of the examples that lose their right answers: this share of them, at random."""
    hidden = np.zeros(n, np.bool_)
    hidden[np.random.Generator(np.random.PCG64(seed)).permutation(n)[: round(n * no_answer)]] = True
    return hidden


def choose_prior(
    config: PipelineConfig, examples: Sequence[Example], *, device: str = "auto"
) -> tuple[PipelineConfig, dict[str, Any]]:
    """Choose the weight of ``log(1 + count)`` in the scores of the first stage, by mean reciprocal rank in the index.

    The candidate weights let the prior vary an eighth to 8 times as much as the scores of the best replies. Each half
    of the dialogues measures the gain of the weight that is best on the other half, so no example measures a weight
    that it chose. The weight itself is the best on all examples, or 0 if the 95% interval of the gain includes 0 or
    fewer than ``FEWEST_FOR_PRIOR`` examples have a right answer in the index.

    Args:
        config: of one stage or two.
        examples: contexts with the texts of right answers, see ``choose_settings``.
        device: for networks.

    Returns:
        The settings with the weight, and figures: ``n_examples`` with a right answer in the index; ``n_counted``, the
        number of candidates with a count; and, unless the examples are too few, ``weights``,
        the mean reciprocal rank of each weight; R@1 and MRR without the prior and with the best weight (``without``,
        ``with``), on the examples that chose it; and ``gain``, the gain in MRR with its interval.

    Raises:
        DataError: no candidate has a count.
    """
    with open_index(Path(config.index)) as index:
        pool = {candidate.text: candidate for _, candidate in index.iter_candidates()}
    logs = np.log1p([as_count(candidate.metadata.get(COUNT_FIELD)) for candidate in pool.values()])
    if not logs.any():
        raise DataError(
            f"no candidate of {config.index} has a field {COUNT_FIELD!r}; make its replies with polyrank import replies"
            " --from-dialogues, or add counts with polyrank index update-counts"
        )
    judged = [example for example in examples if _right_texts(example) & pool.keys()]
    seen: dict[str, Any] = {"n_examples": len(judged), "n_counted": int(np.count_nonzero(logs))}
    if len(judged) < FEWEST_FOR_PRIOR:
        return replace(config, prior=0.0), seen
    with make_retriever(replace(config, reranker=None, ensemble=None, prior=0.0), device=device) as retriever:
        plain, spread = _reciprocal_ranks(retriever, judged)
        unit = spread / (float(logs.std()) or 1.0)
        ranks = {0.0: plain}
        for ratio in PRIOR_RATIOS:
            retriever.prior = float(f"{unit * ratio:.4g}")
            ranks[retriever.prior], _ = _reciprocal_ranks(retriever, judged)

    def best(part: NDArray[np.bool_]) -> float:
        return max(ranks, key=lambda weight: float(ranks[weight][part].mean()))

    dialogues = dialogues_of([example.id for example in judged])
    odd = dialogues % 2 == 1
    gains = np.where(odd, ranks[best(~odd)] - plain, ranks[best(odd)] - plain)
    weight = best(np.ones_like(odd))
    gain = mean_with_interval(gains, dialogues)
    seen |= {
        "weights": {f"{tried:g}": float(values.mean()) for tried, values in ranks.items()},
        "best": weight,
        "without": _figures(plain),
        "with": _figures(ranks[weight]),
        "gain": gain,
    }
    return replace(config, prior=weight if gain["low"] > 0 else 0.0), seen


def _answered(retriever: Answering, examples: Sequence[Example], k: int) -> Iterator[tuple[Example, list[Ranked]]]:
    """Each example with its best ``k`` replies; contexts are answered in batches."""
    for start in range(0, len(examples), BATCH):
        part = examples[start : start + BATCH]
        yield from zip(part, retriever.respond([example.query for example in part], k), strict=True)


def _reciprocal_ranks(retriever: Answering, examples: Sequence[Example]) -> tuple[NDArray[np.float64], float]:
    """1 / rank of the first right answer to each example, 0 beyond the best 100; and the spread of their scores."""
    ranks, spreads = [], []
    for example, ranked in _answered(retriever, examples, SHORTLIST):
        hits = (1 / rank for rank, reply in enumerate(ranked, 1) if is_right(example, reply))
        ranks.append(next(hits, 0.0))
        spreads.append(float(np.var([reply.score for reply in ranked])) if ranked else 0.0)
    return np.array(ranks), float(np.sqrt(np.mean(spreads))) or 1.0


def _figures(reciprocal_ranks: NDArray[np.float64]) -> dict[str, float]:
    return {"R@1": float((reciprocal_ranks == 1).mean()), "MRR": float(reciprocal_ranks.mean())}


def _best_ensemble(
    both: Answering, n_retrieved: int, examples: Sequence[Example]
) -> tuple[Ensemble | None, dict[str, Any]]:
    """The best ensemble by the scores of each stage, and the figures of ``choose_settings``."""
    first, second, right, ids = [], [], [], []
    for example, ranked in _answered(both, examples, n_retrieved):
        own = [i for i, reply in enumerate(ranked) if is_right(example, reply)]
        if own:  # the others have no rank
            ids.append(example.id)
            first.append(np.array([reply.stages["retriever"] for reply in ranked], np.float32))
            second.append(np.array([reply.stages["reranker"] for reply in ranked], np.float32))
            right.append(own)
    if not right:
        raise DataError(
            f"no example has a right answer among its best {n_retrieved}, so no ensemble can be chosen; retrieve more,"
            " or give other examples"
        )
    corrects = isinstance(both, TwoStage) and bool(both.reranker.corrects)
    dialogues = dialogues_of(ids)
    ensemble, figures, totals = choose_ensemble(first, second, right, dialogues, alone=not corrects)
    alone, chosen = (np.array(reciprocal_ranks(lists, right)) for lists in (first, totals))
    seen: dict[str, Any] = {"ensembles": figures}
    if len(alone) > 1:
        seen["stages"] = {
            name: mean_with_interval(values, dialogues)
            for name, values in (("first", alone), ("both", chosen), ("difference", chosen - alone))
        }
    return ensemble, seen


def curve_of(tuning: dict[str, Any]) -> list[Point]:
    """The precision/coverage curve on which a threshold was chosen, strictest threshold first."""
    return [Point(**point) for point in tuning.get("curve", [])]
