"""A ranker: the weighted sum of terms, with its threshold, as one Scorer; and its folder.

Shapes: B contexts, K candidates of each, N rows of a pool, F features of a term.
"""

import hashlib
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from polyrank.config.checked import whole_number
from polyrank.errors import ArtifactError, UsageError
from polyrank.index import COUNT_FIELD, as_count
from polyrank.loading.folders import RANKER
from polyrank.loading.models import portable_name, resolved_name
from polyrank.ranking.abstention import Abstention
from polyrank.ranking.relevance import Relevance
from polyrank.records import Candidate, Context, ContextLike, Ranked, contexts_of
from polyrank.scorers.explanation import Explanation, of_candidate, sum_explanations
from polyrank.scorers.inputs import as_texts, matched_lists
from polyrank.scorers.joined import Joined
from polyrank.scorers.own import as_scorer
from polyrank.scorers.protocols import Encoder, Floats, Scorer
from polyrank.scorers.terms import term_kind
from polyrank.scorers.terms.counts import Counts
from polyrank.scorers.terms.cross import CrossTerm
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.scorers.terms.protocol import Offer, Term, Weighed
from polyrank.scorers.two_stage import SHORTLIST, rerank


class Ranker(Scorer):
    """``score = sum_t weights_t . features_t(context, reply)`` over its terms t.

    Terms with vectors, or with numbers of the reply alone, score every candidate, and an index searches them. The other
    terms score the ``n_retrieved`` best of those; the rest come after them, in the order of the search.

    Args:
        terms: each with the weights of its features.
        n_retrieved: how many candidates the terms without vectors score.
        scale: the factor with which scores are log-odds: ``softmax(scale * scores)`` of a list are probabilities.
        abstention: when an answer is not good enough; None: always answer.
        relevance: see ``Scorer.relevance``.
        figures: of the fit, ready for JSON.

    Raises:
        UsageError: a term is missing, or a weight is not a finite number.
    """

    def __init__(
        self,
        terms: Sequence[tuple[Term, Sequence[float]]],
        *,
        n_retrieved: int = SHORTLIST,
        scale: float = 1.0,
        abstention: Abstention | None = None,
        relevance: Relevance | None = None,
        figures: Mapping[str, Any] | None = None,
    ) -> None:
        self.terms = tuple(Weighed(term, weights) for term, weights in terms)
        self.parts = tuple(weighed.term for weighed in self.terms)
        if not self.terms:
            raise UsageError("0 terms; give a ranker at least one")
        self.n_retrieved = whole_number(n_retrieved, "n_retrieved", least=1)
        self.scale, self.abstention, self.figures = float(scale), abstention, dict(figures or {})
        self.relevance = relevance
        stated = [" ".join([weighed.term.fingerprint, *(w.hex() for w in weighed.weights)]) for weighed in self.terms]
        whole = f"{self.n_retrieved} " + " + ".join(stated)
        identified = all(weighed.term.fingerprint for weighed in self.terms)
        self.fingerprint = hashlib.sha256(whole.encode()).hexdigest() if identified else ""
        self._counts = [weighed for weighed in self.terms if isinstance(weighed.term, Counts)]
        searched = [encoder for weighed in self.terms if weighed not in self._counts and (encoder := weighed.encoder)]
        self.encoder: Encoder | None = None
        if any(isinstance(weighed.term, EncoderTerm) for weighed in self.terms):
            self.encoder = searched[0] if len(searched) == 1 else Joined(searched)
        self.rerankers = tuple(
            weighed
            for weighed in self.terms
            if self.encoder is None or (weighed.encoder is None and weighed not in self._counts)
        )
        if self.encoder is not None:
            for weighed in self.rerankers:
                weighed.term.follow(self.encoder)

    @property
    def prior(self) -> float:
        """The weight of ``log(1 + count)``, which a search adds by the counts of an index; see Counts."""
        return sum(weighed.weights[0] for weighed in self._counts)

    @property
    def chooser(self) -> Scorer:
        """See ``Scorer``."""
        return self.encoder or self

    def __repr__(self) -> str:
        terms = " + ".join(f"{weighed} {weighed.term.name}" for weighed in self.terms)
        return f"Ranker({terms})"

    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        queries, lists = matched_lists(contexts, candidates)
        if self.encoder is None:
            return self.scores_of(self.rerankers, queries, lists)
        first = self.encoder.score(queries, lists)
        if self._counts:
            first = [a + b for a, b in zip(first, self.scores_of(self._counts, queries, lists), strict=True)]
        return self._reranked(queries, first, lists)

    def score_pool(
        self, contexts: Sequence[ContextLike], pool: Sequence[str], *, excluded: Sequence[Collection[int]] = ()
    ) -> Floats:
        """One shared pool for every context: ``[B, N]``; ``excluded`` rows of each are not re-ranked."""
        queries, shared = contexts_of(contexts), as_texts(pool, "pool")
        if self.encoder is None:
            return np.array(self.score(queries, [shared] * len(queries)), np.float32).reshape(len(queries), len(shared))
        first = self.encoder.score_pool(queries, shared)
        if self._counts:
            first = first + np.array(self.scores_of(self._counts, queries[:1], [shared])[:1], np.float32)
        rows = self._reranked(queries, list(first), [shared] * len(queries), excluded)
        return np.array(rows, np.float32).reshape(len(queries), len(shared))

    def rank(self, context: ContextLike, candidates: Sequence[str | Candidate], k: int | None = None) -> list[Ranked]:
        """The best ``k`` candidates, or all of them, best first; ties in the order in which they were given.

        See ``Scorer.rank``. A candidate's metadata field ``count`` takes the place of the count of its text, as in an
        index.
        """
        counted = [c.metadata.get(COUNT_FIELD) if isinstance(c, Candidate) else None for c in candidates]
        if not self._counts or all(count is None for count in counted):
            return super().rank(context, candidates, k)
        return _WithCounts(self, counted).rank(context, candidates, k)

    def scores_of(
        self, terms: Sequence[Weighed], contexts: Sequence[Context], lists: Sequence[Sequence[str]]
    ) -> list[Floats]:
        """The sum of some of its terms, ``[K]`` per context."""
        totals = [np.zeros(len(texts), np.float32) for texts in lists]
        for weighed in terms:
            totals = [total + part for total, part in zip(totals, weighed.score(contexts, lists), strict=True)]
        return totals

    def _reranked(
        self,
        queries: Sequence[Context],
        first: Sequence[Floats],
        lists: Sequence[Sequence[str]],
        excluded: Sequence[Collection[int]] = (),
    ) -> list[Floats]:
        if not self.rerankers:
            return list(first)

        def second(texts: Sequence[Sequence[str]]) -> list[Floats]:
            return self.scores_of(self.rerankers, queries, texts)

        return rerank(first, lists, self.n_retrieved, second, np.add, excluded)

    def explained(self, context: Context, candidate: str, max_words: int, *, count: float | None = None) -> Explanation:
        """The explanation of each term, and their sum by word.

        Args:
            context, candidate, max_words: see ``polyrank.explain``.
            count: how often the candidate was said, if an index knows better; see Counts.
        """
        parts = []
        for number, weighed in enumerate(self.terms, 1):
            alone = len(weighed.weights) == 1  # then its weight is shown next to the score without it
            weight, weights = (weighed.weights[0], (1.0,)) if alone else (1.0, weighed.weights)
            if count is not None and isinstance(weighed.term, Counts):
                part = of_candidate(context, candidate, math.log1p(count), weighed.term.kind)
            else:
                part = weighed.term.explain(context, candidate, weights, max_words)
            parts.append((f"{number} {weighed.term.name}", weight, part))
        if len(parts) == 1 and parts[0][1] == 1.0:
            return parts[0][2]
        return sum_explanations(math.fsum(weight * part.score for _, weight, part in parts), parts)

    def save(self, path: str | Path, *, replace: bool = False) -> None:
        """Write the ranker's folder: ``ranker.json`` with its terms, and a file of their tensors.

        Args:
            path: the folder to make.
            replace: whether an earlier ranker may be replaced.

        Raises:
            UsageError: the path exists, a model was not loaded by a name, or the ranker would be a part of itself.
            ResourceError: the disk is full.
        """
        from polyrank.storage.tensors import write_tensors

        path = Path(path)
        terms: list[dict[str, Any]] = []
        tensors: dict[str, Any] = {}
        for number, weighed in enumerate(self.terms):
            state, arrays = weighed.term.to_dict()
            if "model" in state:
                state["model"] = _name_to_store(state["model"], weighed.term, path)
            tensors |= {f"{number}.{name}": array for name, array in arrays.items()}
            named = {"kind": weighed.term.kind, "fingerprint": weighed.term.fingerprint, "name": weighed.term.name}
            terms.append(
                named | {"weights": dict(zip(weighed.term.features, weighed.weights, strict=True)), "state": state}
            )
        rule = self.abstention
        document = {
            "terms": terms,
            "n_retrieved": self.n_retrieved,
            "scale": self.scale,
            "threshold": None if rule is None else {"measure": rule.measure, "threshold": rule.threshold},
            "relevance": None if self.relevance is None else asdict(self.relevance),
            "fingerprint": self.fingerprint,
            "figures": self.figures,
        }
        document = _portable(document, path)
        write_tensors(path, RANKER, document, tensors, replace=replace)


def load_ranker(path: Path, load: Callable[[str], Scorer]) -> Ranker:
    """Read the folder of a ranker.

    Args:
        path: the folder.
        load: opens a model by its name.

    Raises:
        ArtifactError: the folder is damaged, or a model has changed since.
    """
    from polyrank.storage.tensors import read_tensors

    document, tensors = read_tensors(path, RANKER)
    opened: dict[str, Scorer] = {}

    def once(name: str) -> Scorer:
        resolved = resolved_name(name, path)
        if resolved not in opened:
            opened[resolved] = load(resolved)
        return opened[resolved]

    terms = []
    for number, stated in enumerate(document["terms"]):
        kind = term_kind(stated["kind"])
        prefix = f"{number}."
        arrays = {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
        term = kind.from_dict(stated["state"], arrays, once)
        if term.fingerprint != stated["fingerprint"]:
            raise ArtifactError(
                f"{path} was made with {stated['name']} of fingerprint {stated['fingerprint'][:12]}, which is now"
                f" {term.fingerprint[:12]}; {RANKER.remedy}"
            )
        terms.append((term, [stated["weights"].get(feature, 0.0) for feature in term.features]))
    rule = document["threshold"]
    return Ranker(
        terms,
        n_retrieved=document["n_retrieved"],
        scale=document["scale"],
        abstention=None if rule is None else Abstention(rule["measure"], rule["threshold"]),
        relevance=Relevance.read(document["relevance"]),
        figures=document["figures"],
    )


def as_ranker(model: Any) -> Ranker:
    """A ranker itself; any other scorer as a ranker of one term.

    >>> from polyrank.scorers.lexical import BM25
    >>> as_ranker(BM25().fit(["wifi", "bill"]))
    Ranker(1 bm25)
    """
    if isinstance(model, Ranker):
        return model
    scorer = as_scorer(model)
    kinds = ("encoder",) if isinstance(scorer, Encoder) else ("lexical", "cross")
    (term,) = (term for kind in kinds for term in term_kind(kind).offered(Offer((scorer,), ())))
    ranker = Ranker([(term, (1.0,))])
    ranker.name, ranker.relevance = scorer.name, scorer.relevance
    return ranker


def corrected(encoder: Encoder, reranker: Scorer, *, n_retrieved: int = SHORTLIST) -> Ranker:
    """``g + s``: an encoder, and the sum with a re-ranker that corrects its scores for the best of them.

    Args:
        encoder: scores everything.
        reranker: scores the best of it.
        n_retrieved: how many.

    Source: Tao et al., Building an Efficient and Effective Retrieval-based Dialogue System via Mutual Learning, Eq. 10.
    """
    terms: list[Term] = [EncoderTerm(encoder), CrossTerm(reranker)]
    return Ranker([(term, (1.0,)) for term in terms], n_retrieved=n_retrieved)


class _WithCounts(Scorer):
    """A ranker of candidates of which some have a count in their metadata; only for ``Ranker.rank``."""

    def __init__(self, ranker: Ranker, counts: Sequence[Any]) -> None:
        self.ranker, self.counts, self.parts = ranker, counts, (ranker,)

    @property
    def chooser(self) -> Scorer:
        """See ``Scorer``."""
        return self.ranker.chooser

    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """The scores of the one list of candidates."""
        ranker = self.ranker
        (query,), (texts,) = matched_lists(contexts, candidates)
        of_texts = Counts.of_texts(ranker._counts[0].term, texts)  # type: ignore[arg-type]  # it is the term of counts
        counts = [n if given is None else as_count(given) for n, given in zip(of_texts, self.counts, strict=True)]
        first = np.float32(ranker.prior) * np.log1p(np.array(counts, np.float64)).astype(np.float32)
        if ranker.encoder is None:
            others = [weighed for weighed in ranker.rerankers if weighed not in ranker._counts]
            return [first + ranker.scores_of(others, [query], [texts])[0]]
        return ranker._reranked([query], [first + ranker.encoder.score([query], [texts])[0]], [texts])


def _portable(value: Any, path: Path) -> Any:
    """A document whose names of model folders are relative to the ranker's folder."""
    match value:
        case dict():
            return {key: _portable(part, path) for key, part in value.items()}
        case list() | tuple():
            return [_portable(part, path) for part in value]
        case str() if value.startswith(os.sep):
            return portable_name(value, path)
    return value


def _name_to_store(name: str, term: Term, path: Path) -> str:
    if not name or not term.fingerprint:
        raise UsageError(f"{term!r} was not loaded by a name, so the ranker could not load it again; load it by name")
    if Path(name).resolve() == path.resolve():
        raise UsageError(f"{path} would be a part of itself; choose another path")
    return portable_name(name, path)
