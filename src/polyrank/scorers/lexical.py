"""BM25 and TF-IDF as Scorers: the baselines that a learnt model has to beat, and a fast first stage.

Text becomes lower-case words; nothing is stemmed or dropped, and a language written without spaces comes out as long
words. Word statistics come from a corpus given to ``fit``, or else from the distinct candidates of the call.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from math import log, sqrt
from typing import Self

import numpy as np
from numpy.typing import NDArray

from polyrank.records import Context, ContextLike, contexts_of
from polyrank.scorers.inputs import as_texts, paired
from polyrank.scorers.protocols import Floats, Scorer

Weights = dict[str, float]
_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Lower-case words.

    >>> words("Don't PANIC, it's 5 o'clock")
    ['don', 't', 'panic', 'it', 's', '5', 'o', 'clock']
    """
    return _WORD.findall(text.lower())


def located_words(text: str) -> Iterator[tuple[str, int, int]]:
    """``words``, each with the start and the end of its characters in the text.

    >>> list(located_words("My WiFi"))
    [('my', 0, 2), ('wifi', 3, 7)]
    """
    lower = text.lower()
    # some letters become two, and none becomes none
    origins = [position for position, letter in enumerate(text) for _ in letter.lower()]
    for match in _WORD.finditer(lower):
        yield match[0], origins[match.start()], origins[match.end() - 1] + 1


def query_words(context: Context) -> Counter[str]:
    """Words of background and turns with their counts; a word said twice counts twice."""
    return Counter(word for text in (*context.background, *context.turns) for word in words(text))


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of a corpus.

    Args:
        n: texts.
        holding: how many texts hold a word.
        mean_words: words in a text, on average.
    """

    n: int
    holding: Counter[str]
    mean_words: float

    @classmethod
    def of(cls, corpus: Sequence[str]) -> Self:
        """Count.

        >>> Statistics.of(["a b", "a a a c"])
        Statistics(n=2, holding=Counter({'a': 2, 'b': 1, 'c': 1}), mean_words=3.0)
        """
        holding: Counter[str] = Counter()
        n_words = 0
        for text in corpus:
            own_words = words(text)
            n_words += max(len(own_words), 1)  # bm25s takes no empty document, so an empty text is one blank word there
            holding.update(set(own_words))
        return cls(len(corpus), holding, n_words / len(corpus) if corpus else 1.0)


class BM25(Scorer):
    """Okapi BM25 with Lucene's idf.

    ``sum over query words of idf(w) tf / (tf + k1 (1 - b + b n_words / mean_words))``, with
    ``idf(w) = ln(1 + (N - df + 0.5) / (df + 0.5))``. A word said twice counts twice. Words that the corpus does not
    hold score nothing.

    Args:
        k1: how soon repetition stops helping.
        b: how much long texts are held back.

    Source: Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond (2009); Lu, BM25S
        (https://arxiv.org/abs/2407.03618).

    >>> from polyrank.records import Context
    >>> BM25(b=0.0).fit(["wifi", "bill"]).score([Context(("my wifi",))], [["wifi", "bill"]])[0].round(4)  # ln 2 / 2.5
    array([0.2773, 0.    ], dtype=float32)
    """

    def __init__(self, *, k1: float = 1.5, b: float = 0.75) -> None:
        self.k1, self.b = k1, b
        self._fitted: Statistics | None = None
        self._pool: tuple[tuple[str, ...], _Postings] | None = None

    def fit(self, corpus: Sequence[str]) -> Self:
        """Learn word statistics."""
        self._fitted, self._pool = Statistics.of(corpus), None
        return self

    @property
    def is_fitted(self) -> bool:
        """Whether it has word statistics of its own; else they come from what it ranks."""
        return self._fitted is not None

    def fitted_to(self, texts: Callable[[], Sequence[str]]) -> Scorer:
        return self if self.is_fitted else copy(self).fit(list(dict.fromkeys(texts())))

    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        queries, lists = paired(contexts, candidates)
        fitted = self._fitted or Statistics.of(_distinct(lists))
        return _score_lists(map(query_words, queries), lists, lambda text: self._weigh(text, fitted))

    def word_shares(self, context: Context, candidate: str) -> Weights:
        """What each word adds to the score, however often the context has it."""
        own = self._weigh(candidate, self._fitted or Statistics.of([candidate]))
        return {word: count * own[word] for word, count in query_words(context).items() if word in own}

    def _weigh(self, text: str, fitted: Statistics) -> Weights:
        """What each word of a text adds to its score when it is asked for once."""
        own_words = words(text)
        norm = self.k1 * (1 - self.b + self.b * len(own_words) / fitted.mean_words)
        return {
            word: _lucene_idf(fitted, word) * tf / (tf + norm)
            for word, tf in Counter(own_words).items()
            if word in fitted.holding
        }

    def score_pool(self, contexts: Sequence[ContextLike], pool: Sequence[str]) -> Floats:
        """One shared pool for every context: ``[B, N]``. The pool is indexed once and remembered."""
        queries, key = contexts_of(contexts), tuple(as_texts(pool, "pool"))
        if not key:
            return np.zeros((len(queries), 0), np.float32)
        if self._pool is None or self._pool[0] != key:
            self._pool = key, self._index(key)
        postings = self._pool[1]
        result = np.empty((len(queries), len(key)), np.float32)
        for row, context in enumerate(queries):
            result[row] = postings.score(query_words(context))
        return result

    def _index(self, pool: tuple[str, ...]) -> "_Postings":
        # imported here because it brings scipy, a third of a second that only pools need
        import bm25s

        logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to DEBUG when it is imported
        positions = {text: position for position, text in enumerate(dict.fromkeys(pool))}
        own = Statistics.of(list(positions))
        fitted = self._fitted or own
        # bm25s takes mean length and idf from what it indexes. The length norm of the fitted corpus is that of the
        # pool with other constants: k1' (1 - b') = k1 (1 - b) and k1' b' / own mean = k1 b / fitted mean.
        flat, slope = self.k1 * (1 - self.b), self.k1 * self.b * own.mean_words / fitted.mean_words
        index = bm25s.BM25(k1=flat + slope, b=slope / ((flat + slope) or 1.0), method="lucene")
        index.index([words(text) or [""] for text in positions], show_progress=False)
        weights, rows, starts = (index.scores[name] for name in ("data", "indices", "indptr"))
        # and idf is a factor of each word's weights
        columns = {word: column for word, column in index.vocab_dict.items() if word}
        factors = np.zeros(len(starts) - 1)
        for word, column in columns.items():
            if word in fitted.holding:
                factors[column] = _lucene_idf(fitted, word) / _lucene_idf(own, word)
        weights = weights * np.repeat(factors, np.diff(starts))
        return _Postings(columns, starts, rows, weights, np.array([positions[text] for text in pool]))


@dataclass(frozen=True, slots=True)
class _Postings:
    """Which distinct texts hold a word, and what it adds to their scores.

    Args:
        columns: of words.
        starts: a column's rows and weights are those from ``starts[column]`` to ``starts[column + 1]``.
        rows: distinct texts.
        weights: one for each of ``rows``.
        positions: the distinct text at each position of the pool, ``[N]``.
    """

    columns: dict[str, int]
    starts: NDArray[np.int64]
    rows: NDArray[np.int32]
    weights: NDArray[np.float64]
    positions: NDArray[np.int64]

    def score(self, query: Counter[str]) -> NDArray[np.float64]:
        """The whole pool for one query, ``[N]``."""
        totals = np.zeros(int(self.positions.max()) + 1)
        for word, count in query.items():
            column = self.columns.get(word)
            if column is not None:
                part = slice(self.starts[column], self.starts[column + 1])
                totals[self.rows[part]] += count * self.weights[part]  # a text stands once in a column
        return totals[self.positions]


def _lucene_idf(corpus: Statistics, word: str) -> float:
    df = corpus.holding[word]
    return log(1 + (corpus.n - df + 0.5) / (df + 0.5))


class TfIdf(Scorer):
    """Cosine of tf-idf vectors, whose entries are ``tf (1 + ln((1 + N) / (1 + df)))``.

    ``tf`` is the plain count, in the context as in candidates. A word that the corpus does not hold has df = 0.

    >>> from polyrank.records import Context
    >>> TfIdf().fit(["wifi", "bill"]).score([Context(("wifi bill",))], [["wifi", "thanks"]])[0].round(4)  # 1 / sqrt 2
    array([0.7071, 0.    ], dtype=float32)
    """

    def __init__(self) -> None:
        self._fitted: Statistics | None = None
        self._pool: tuple[tuple[str, ...], Statistics, dict[str, Weights]] | None = None

    def fit(self, corpus: Sequence[str]) -> Self:
        """Learn word statistics."""
        self._fitted, self._pool = Statistics.of(corpus), None
        return self

    @property
    def is_fitted(self) -> bool:
        """Whether it has word statistics of its own; else they come from what it ranks."""
        return self._fitted is not None

    def fitted_to(self, texts: Callable[[], Sequence[str]]) -> Scorer:
        return self if self.is_fitted else copy(self).fit(list(dict.fromkeys(texts())))

    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        queries, lists = paired(contexts, candidates)
        fitted = self._fitted or Statistics.of(_distinct(lists))
        vectors = (_unit(query_words(query), fitted) for query in queries)
        return _score_lists(vectors, lists, lambda text: _unit(Counter(words(text)), fitted))

    def word_shares(self, context: Context, candidate: str) -> Weights:
        """What each word adds to the score, however often the context has it."""
        fitted = self._fitted or Statistics.of([candidate])
        query, own = _unit(query_words(context), fitted), _unit(Counter(words(candidate)), fitted)
        return {word: weight * own[word] for word, weight in query.items() if word in own}

    def score_pool(self, contexts: Sequence[ContextLike], pool: Sequence[str]) -> Floats:
        """One shared pool for every context: ``[B, N]``. The pool's vectors are computed once and remembered."""
        queries, key = contexts_of(contexts), tuple(as_texts(pool, "pool"))
        if self._pool is None or self._pool[0] != key:
            fitted = self._fitted or Statistics.of(_distinct([key]))
            self._pool = key, fitted, {text: _unit(Counter(words(text)), fitted) for text in _distinct([key])}
        _, fitted, vectors = self._pool
        result = np.zeros((len(queries), len(key)), np.float32)
        for row, context in enumerate(queries):
            query = _unit(query_words(context), fitted)
            result[row] = [_dot(query, vectors[text]) for text in key]
        return result


def _unit(counts: Counter[str], fitted: Statistics) -> Weights:
    weights = {word: tf * (1 + log((1 + fitted.n) / (1 + fitted.holding[word]))) for word, tf in counts.items()}
    norm = sqrt(sum(weight**2 for weight in weights.values())) or 1.0
    return {word: weight / norm for word, weight in weights.items()}


def _score_lists(
    queries: Iterable[Mapping[str, float]], candidates: Sequence[Sequence[str]], weigh: Callable[[str], Weights]
) -> list[Floats]:
    """Products of queries and texts. A text that stands in many lists is weighed once."""
    known = {text: weigh(text) for text in _distinct(candidates)}
    return [
        np.array([_dot(query, known[text]) for text in texts], np.float32)
        for query, texts in zip(queries, candidates, strict=True)
    ]


def _dot(query: Mapping[str, float], text: Weights) -> float:
    return sum(weight * query[word] for word, weight in text.items() if word in query)


def _distinct(candidates: Iterable[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(text for texts in candidates for text in texts))
