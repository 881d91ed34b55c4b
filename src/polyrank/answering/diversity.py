"""Replies that differ: greedy maximal marginal relevance over the best candidates, without a model or an index."""

import re
from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np

from polyrank.data.same_words import same_words, template
from polyrank.data.small_talk import KIND_FIELD, SmallTalk
from polyrank.records import Ranked
from polyrank.scorers.protocols import Floats

N_BEST = 50  # replies are chosen from so many, or from k if that is more
RELEVANCE = 0.7  # lambda; docs/search.md compares others
_NAME = re.compile(r"(?<=[\w,;] )[A-Z][\w'’-]*")  # a capitalized word inside a sentence

_GERMAN = re.compile(r"\b(?:der|das|den|dem|und|ist|nicht|ich|wir|eine?[nmr]?|für|zu|ihre?[nmr]?)\b", re.IGNORECASE)

Similarity = Callable[[int], Floats]
"""Similarities of one candidate to all, ``[n]``; 1 for a copy."""


def choose_diverse(
    ranked: Sequence[Ranked], k: int, similarity: Similarity, relevance: float = RELEVANCE, *, small_talk: bool = True
) -> list[Ranked]:
    """Up to ``k`` replies that differ, in their order; the best is always one of them.

    Each step chooses the candidate c with the largest ``lambda * score(c) - (1 - lambda) * max_s similarity(c, s)``
    over the replies s chosen so far, with scores scaled to 0 to 1. Near-copies, which differ only in names and
    numbers, count as one reply, so the result may have fewer than ``k``.

    Args:
        ranked: candidates to choose from, best first.
        k: how many.
        similarity: of a candidate to all of ``ranked``.
        relevance: lambda; 1: only near-copies are dropped.
        small_talk: False: at most one reply whose metadata field ``kind`` is "greeting" or "thanks".

    Source: Carbonell and Goldstein, The Use of MMR, Diversity-Based Reranking (1998).

    >>> texts = ["It is 5 pm.", "It is 6 pm.", "it is at 5 pm", "Which day?"]
    >>> replies = [Ranked(text, text, 9.0 - i) for i, text in enumerate(texts)]
    >>> [reply.text for reply in choose_diverse(replies, 2, word_similarity(texts), 0.5)]
    ['It is 5 pm.', 'Which day?']
    """
    first: dict[str, int] = {}
    for row, reply in enumerate(ranked):
        talks = not small_talk and reply.metadata.get(KIND_FIELD) in get_args(SmallTalk)
        first.setdefault(KIND_FIELD if talks else near_copy_key(reply.text), row)
    left = list(first.values())
    scores = np.array([reply.score for reply in ranked], np.float64)
    scores = (scores - scores.min(initial=np.inf)) / max(float(np.ptp(scores)) if len(scores) else 0.0, 1e-12)
    chosen: list[int] = []
    nearest: Floats = np.zeros(len(ranked), np.float32)
    while left and len(chosen) < k:
        values = relevance * scores[left] - (1 - relevance) * nearest[left]
        chosen.append(left.pop(int(values.argmax())))
        similar = similarity(chosen[-1])
        nearest = np.maximum(nearest, similar) if len(chosen) > 1 else similar  # cosines may be below 0
    return [ranked[row] for row in sorted(chosen)]


def near_copy_key(text: str) -> str:
    """The key that near-copies share: the words without numbers, and without names, as far as capitals show them.

    German capitalizes every noun, so a text with common German words keeps its capitalized words.

    >>> near_copy_key("Hi Ann, your flight to New York is at 5."), near_copy_key("Hi Bo! Your flight to Rome is at 12")
    ('hi your flight to is at 0', 'hi your flight to is at 0')
    >>> near_copy_key("Wir haben Ihre Rechnung."), near_copy_key("Wir haben Ihre Adresse.")
    ('wir haben ihre rechnung', 'wir haben ihre adresse')
    """
    rest = _NAME.sub("", text)
    few = 2 * len(rest.split()) < len(text.split())  # the text is in capitals
    return template(text if few or _GERMAN.search(text) else rest)


def vector_similarity(vectors: Floats) -> Similarity:
    """The cosine of candidates' vectors ``[n, D]``."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return lambda row: np.asarray(unit @ unit[row], np.float32)


def word_similarity(texts: Sequence[str]) -> Similarity:
    """The share of two texts' words that both contain (Jaccard)."""
    words = [set(same_words(text).split()) for text in texts]

    def similarity(row: int) -> Floats:
        return np.array([len(said & words[row]) / max(len(said | words[row]), 1) for said in words], np.float32)

    return similarity
