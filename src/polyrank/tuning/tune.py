"""The best ranker of some models for a user's lists: every term scored once, chosen by held-out likelihood, one fit."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyrank.config.checked import whole_number
from polyrank.errors import UsageError
from polyrank.loading.models import SHIPPED_RERANKERS, absolute_name, resolve_model, shipped_rerankers
from polyrank.notebook import table
from polyrank.ranking.frames import data_frame
from polyrank.ranking.weights import fit_weights
from polyrank.records import Example
from polyrank.scorers.open import open_model
from polyrank.scorers.own import as_scorer
from polyrank.scorers.protocols import Encoder, Scorer
from polyrank.scorers.ranker import Ranker
from polyrank.scorers.terms import term_kinds
from polyrank.scorers.terms.cross import CrossTerm
from polyrank.scorers.terms.encoder import EncoderTerm, ScorerTerm
from polyrank.scorers.terms.protocol import Offer, Term
from polyrank.tuning.choice import N_RERANKED, Choice
from polyrank.tuning.durations import milliseconds
from polyrank.tuning.scored import Progress, ScoredLists, lists_to_fit
from polyrank.tuning.selection import HeldOut
from polyrank.tuning.threshold import choose_threshold
from polyrank.wording import percent

MAX_LISTS = 1000


@dataclass(frozen=True, slots=True)
class Tuning:
    """A ranker and how it was chosen.

    Args:
        ranker: the best one; of one term if no other measurably helps.
        is_better: whether it has several terms and the interval of its gain excludes 0, or the user fixed weights.
        alone: the name of the best model alone.
        rows: for each term, ready for JSON: ``kind``, ``name``, ``weights``, ``milliseconds`` per answer; ``with``:
            what R@1 and MRR gain with it, after the terms before; ``without``: what they would change without it, each
            with a 95% interval over dialogues. Terms that were tried and not chosen have no weights.
        curve: the rankers of the first terms: ``terms``, ``milliseconds``, ``R@1`` and ``MRR``.
        gain: of the ranker over the best model alone: ``log_likelihood``, ``R@1`` and ``MRR`` with intervals.
        n_lists: on how many lists it was fitted.
        held_out: the figures of the ranker on each list, to compare it with another one.
    """

    ranker: Ranker
    is_better: bool
    alone: str
    rows: list[dict[str, Any]]
    curve: list[dict[str, Any]]
    gain: dict[str, dict[str, float]]
    n_lists: int
    held_out: HeldOut

    def __repr__(self) -> str:
        gain = percent(self.gain["R@1"], signed=True)
        return f"Tuning({self.ranker!r}, R@1 {gain} over {self.alone}, {self.n_lists:,} lists)"

    def _repr_html_(self) -> str:
        """The table of terms, for notebooks."""
        header = ["term", "weight", "R@1 with it", "R@1 without it", "ms"]
        rows = [
            [
                row["name"],
                ", ".join(f"{weight:.3g}" for weight in row["weights"].values()),
                percent(row["with"]["R@1"], signed=True) if "with" in row else "",
                percent(row["without"]["R@1"], signed=True) if "without" in row else "",
                float(row["milliseconds"]),
            ]
            for row in self.rows
        ]
        return table(header, rows, repr(self))

    def to_pandas(self) -> Any:
        """A pandas DataFrame with a row for each term: its kind, name, time, weights, and what R@1 gains with it.

        Raises:
            UsageError: pandas is not installed.
        """
        return data_frame(
            [
                {key: row[key] for key in ("kind", "name", "milliseconds")}
                | {f"weight of {name}": weight for name, weight in row["weights"].items()}
                | {f"R@1 {when}": row[when]["R@1"]["mean"] for when in ("with", "without") if when in row}
                for row in self.rows
            ]
        )


def tune(
    models: Sequence[Any],
    valid: Sequence[Example],
    *,
    dialogues: Sequence[Example] = (),
    without: Collection[str] = (),
    weights: Mapping[str, float] | None = None,
    ms: float | None = None,
    catalogue: int | None = None,
    precision: float | None = None,
    max_lists: int = MAX_LISTS,
    seed: int = 0,
    device: str = "auto",
    cache: Path | None = None,
    progress: Progress = lambda _, batches: batches,
) -> Tuning:
    """The ranker that fits validation lists best.

    Candidates for its terms are the models, and what each kind of term offers: counts and hubs of the dialogues, the
    words of contexts and replies, re-rankers that ship for one of the encoders. Each term scores the lists
    once. The best model alone is the start; then the term that raises the held-out likelihood most is added, as long as
    the gain exceeds its standard error: ten folds of the dialogues, three times. Then the same is done for re-rankers,
    on the best candidates of the search. One convex fit on all lists gives the weights, in units of an encoder's score.

    Args:
        models: names for ``polyrank.load``, what it returns, or objects with ``score``, or with ``dimension``,
            ``encode_contexts`` and ``encode_candidates``, which are searched. Rankers count as their models.
        valid: candidate lists with a right answer.
        dialogues: pairs of the training part, for counts and hubs.
        without: kinds or names of terms that are not tried.
        weights: fixed weights by the kind or name of a term, in units of the first model's score.
        ms: the longest time of an answer on this machine; terms that would exceed it are not added.
        catalogue: how many replies are searched, for the times; None: the distinct ones of the lists.
        precision: the share of answers that have to be right; sets the threshold, on answers from all candidates of the
            lists. None: no threshold.
        max_lists: use the first so many lists.
        seed: of the partitions.
        device: for networks.
        cache: a folder for the scores of terms, from which an interrupted call continues; None: none.
        progress: called with the name of each term and the list of its batches, which it wraps.

    Raises:
        DataError: no list has a right and a wrong candidate, or no threshold is precise enough.
        UsageError: no model is named, a name does not exist, or no model fits into the time.
    """
    lists = lists_to_fit(valid)[: whole_number(max_lists, "max_lists", least=1)]
    scored = ScoredLists(lists, cache, progress)
    terms = _terms(_opened(models, device), dialogues, without, scored, device)
    durations = {term: milliseconds(term, lists, catalogue, n_reranked=N_RERANKED) for term in terms}
    retrieves = any(isinstance(term, EncoderTerm) for term in terms)
    rerankers = [term for term in terms if retrieves and isinstance(term, CrossTerm)]
    others = [term for term in terms if term not in rerankers]
    searched = Choice(others, scored, {}, durations, ms, seed)
    searched.start()
    choice = searched
    if weights:
        choice = Choice(others, scored, _fixed(others, weights), durations, ms, seed)
        choice.start(searched)
    choice.add(others)
    choice = choice.with_rerankers(rerankers)
    gain, alone = choice.gain(), choice.alone
    measurable = max(gain[name]["low"] for name in ("log_likelihood", "MRR")) > 0
    is_better = bool(weights) or (len(choice.order) > 1 and measurable)
    best, order = (choice, choice.order) if is_better else (searched, [alone])
    ranker = best.ranker(order)
    ranker.relevance = best.relevance(ranker)
    rows, curve = choice.rows(ranker, terms), choice.curve()
    figures = {"n_lists": len(lists), "alone": alone.name, "terms": rows, "curve": curve, "gain": gain}
    if precision is not None:
        rule, figures["threshold"] = choose_threshold(ranker, lists, precision=precision, progress=progress)
        ranker.abstention = rule
    ranker.figures = figures
    held_out = choice.steps[-1] if is_better else choice.first
    return Tuning(ranker, is_better, alone.name, rows, curve, gain, len(lists), held_out)


def _opened(models: Sequence[Any], device: str) -> list[Scorer]:
    """The models; those of rankers in their places, each once.

    Raises:
        UsageError: there is none, or one neither scores nor encodes.
    """
    opened: dict[int, Scorer] = {}
    for model in models:
        if isinstance(model, str | Path):
            model = open_model(resolve_model(model), device=device)
        scorer = as_scorer(model)
        terms = [weighed.term for weighed in scorer.terms] if isinstance(scorer, Ranker) else [ScorerTerm(scorer)]
        opened |= {id(term.scorer): term.scorer for term in terms if isinstance(term, ScorerTerm)}
    if not opened:
        raise UsageError("0 models to combine; name at least one")
    return list(opened.values())


def _terms(
    models: Sequence[Scorer], dialogues: Sequence[Example], without: Collection[str], scored: ScoredLists, device: str
) -> list[Term]:
    """The terms to try: encoders first, then what the other kinds offer.

    Raises:
        UsageError: none is left, or no kind, model or re-ranker has the name of one that is not tried.
    """
    names = [*term_kinds(), *(model.name for model in models), *SHIPPED_RERANKERS]
    no_encoder = EncoderTerm.kind in without
    models = [one for one in models if one.name not in without and not (no_encoder and isinstance(one, Encoder))]
    present = {network.fingerprint for model in models for network in model.networks}
    shipped = [] if CrossTerm.kind in without else shipped_rerankers(present)
    new = [ref for ref in shipped if ref.name not in without and ref.fingerprint not in present]
    installed = tuple(open_model(ref, device=device) for ref in new)
    offer = Offer(tuple(models), scored.lists, dialogues, installed=installed)
    encoders = list(EncoderTerm.offered(offer))
    scales = tuple(fit_weights(scored.features(term), scored.relevant)[0] for term in encoders)
    offer = replace(offer, scales=scales)
    kinds = [kind for name, kind in term_kinds().items() if name not in without and kind is not EncoderTerm]
    every: list[Term] = [*encoders, *(term for kind in kinds for term in kind.offered(offer))]
    names = list(dict.fromkeys((*names, *(term.name for term in every))))
    if unknown := [name for name in without if name not in names]:
        raise UsageError(f"no term is called {unknown[0]!r}; leave out one of {', '.join(filter(None, names))}")
    terms = [term for term in every if term.name not in without]
    if not terms:
        raise UsageError(f"no term is left without {', '.join(sorted(without))}; leave one of them in")
    return terms


def _fixed(terms: Sequence[Term], weights: Mapping[str, float]) -> dict[Term, float]:
    """The terms with a fixed weight, which is given by their name or kind.

    Raises:
        UsageError: a name is unknown, or its term has several weights or is the first, which is the unit.
    """
    fixed = {}
    for name, weight in weights.items():
        chosen = [term for term in terms if {name, absolute_name(name)} & {term.name, term.kind}]
        if not chosen:
            names = ", ".join(term.name for term in terms)
            raise UsageError(f"no term is called {name!r}; fix the weight of one of {names}")
        for term in chosen:
            if len(term.features) > 1 or term is terms[0]:
                why = "is the unit of the weights" if term is terms[0] else f"has {len(term.features)} weights"
                raise UsageError(f"{term.name} {why}, so {weight:g} cannot be fixed; leave it out")
            fixed[term] = weight
    return fixed
