"""The term ``lexical``: BM25 or TF-IDF, with the word statistics of the texts on which it was fitted."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any, Self

from polyrank.errors import UsageError
from polyrank.scorers.lexical import BM25, LexicalScorer, Statistics, TfIdf, corpus_of
from polyrank.scorers.terms.encoder import ScorerTerm
from polyrank.scorers.terms.protocol import LoadModel, Offer, State, Tensors


class LexicalTerm(ScorerTerm):
    """A search by words: the score of BM25 or TF-IDF re-ranks the best of the search.

    Its word statistics are part of the ranker, so a score does not depend on the list or the catalogue.

    Args:
        scorer: fitted.
    """

    kind = "lexical"
    scorer: LexicalScorer

    def __init__(self, scorer: LexicalScorer) -> None:
        if not scorer.is_fitted:
            raise UsageError("a lexical term needs word statistics; call fit with texts like those to rank first")
        super().__init__(scorer)
        self.name = "bm25" if isinstance(scorer, BM25) else "tfidf"
        self.fingerprint = hashlib.sha256(json.dumps(self.to_dict()[0], sort_keys=True).encode()).hexdigest()

    @classmethod
    def offered(cls, offer: Offer) -> Iterable[Self]:
        """Those that the user named, fitted to the candidates of the lists."""
        corpus = list(dict.fromkeys(corpus_of(offer.lists)))
        fitted = (scorer.fitted_to(lambda: corpus) for scorer in offer.rerankers if isinstance(scorer, LexicalScorer))
        return (cls(scorer) for scorer in fitted if isinstance(scorer, LexicalScorer))

    def to_dict(self) -> tuple[State, Tensors]:
        """The formula with its settings, and the word statistics."""
        fitted = self.scorer.statistics
        settings: dict[str, Any] = {"k1": self.scorer.k1, "b": self.scorer.b} if isinstance(self.scorer, BM25) else {}
        words = {"n": fitted.n, "mean_words": fitted.mean_words, "holding": dict(sorted(fitted.holding.items()))}
        return {"formula": self.name, **settings, **words}, {}

    @classmethod
    def from_dict(cls, state: State, tensors: Tensors, load: LoadModel) -> Self:
        """The term with the stored statistics."""
        scorer: LexicalScorer = BM25(k1=state["k1"], b=state["b"]) if state["formula"] == "bm25" else TfIdf()
        scorer.statistics = Statistics(state["n"], Counter(state["holding"]), state["mean_words"])
        return cls(scorer)
