"""The term of BM25 or TF-IDF: its statistics are its own, whatever list or catalogue it scores."""

import numpy as np
import pytest

from polyrank import BM25, Example, TfIdf
from polyrank.errors import UsageError
from polyrank.scorers.lexical import LexicalScorer
from polyrank.scorers.protocols import Scorer
from polyrank.scorers.terms.lexical import LexicalTerm
from polyrank.scorers.terms.protocol import Offer

TEXTS = ["wifi is down", "restart the router", "the bill is high", "thanks"]


def refused(name: str) -> Scorer:
    raise AssertionError(f"a lexical term names no model, and {name} was opened")


@pytest.mark.parametrize("scorer", [BM25(), BM25(k1=1.2, b=0.3), TfIdf()])
def test_a_term_is_stored_with_its_statistics(scorer: LexicalScorer) -> None:
    term = LexicalTerm(scorer.fit(TEXTS))
    state, tensors = term.to_dict()
    again = LexicalTerm.from_dict(state, tensors, refused)
    assert again.fingerprint == term.fingerprint
    contexts = ["is my wifi down", ["the bill", "restart it"]]
    for texts in (TEXTS, TEXTS[:1], [*TEXTS, "wifi wifi"]):
        for before, after in zip(term.score(contexts, [texts] * 2), again.score(contexts, [texts] * 2), strict=True):
            np.testing.assert_array_equal(before, after)
    alone = [term.score(contexts[:1], [[text]])[0][0] for text in TEXTS]
    np.testing.assert_array_equal(term.score(contexts[:1], [TEXTS])[0], alone)


def test_named_scorers_are_fitted_to_the_candidates_of_the_lists() -> None:
    lists = [Example(("hi",), tuple(TEXTS[:3]), (0,)), Example(("hi",), tuple(TEXTS[1:]), (0,))]
    first, second = LexicalTerm.offered(Offer((BM25(), TfIdf()), lists))
    assert (first.name, second.name) == ("bm25", "tfidf")
    assert first.fingerprint == LexicalTerm(BM25().fit(TEXTS)).fingerprint != second.fingerprint
    assert first.fingerprint != LexicalTerm(BM25().fit(TEXTS[:3])).fingerprint
    named = BM25()
    fitted = named.fitted_to(lambda: TEXTS * 2)
    assert fitted is not named
    assert fitted.statistics == BM25().fit(TEXTS).statistics  # type: ignore[attr-defined]  # each text once
    assert not named.is_fitted
    with pytest.raises(UsageError, match="the lexical scorer was not fitted; call fit with texts like those to rank"):
        _ = named.statistics
