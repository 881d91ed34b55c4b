"""BM25 and TF-IDF as Scorers: the baselines that a learnt model has to beat, and a fast first stage.

Text becomes lower-case words; nothing is stemmed or dropped. Word statistics come from a corpus given to ``fit``, or
else from the distinct candidates of the call.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Protocol, Self

import bm25s
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Contextual(Protocol):
    """What a lexical scorer looks at in a context (``records.Context`` is one)."""

    @property
    def turns(self) -> tuple[str, ...]: ...

    @property
    def background(self) -> tuple[str, ...]: ...


def words(text: str) -> list[str]:
    """Lower-case words.

    >>> words("Don't PANIC, it's 5 o'clock")
    ['don', 't', 'panic', 'it', 's', '5', 'o', 'clock']
    """
    return re.findall(r"\w+", text.lower())


def query_words(context: Contextual) -> Counter[str]:
    """Words of background and turns with their counts; a word said twice counts twice."""
    return Counter(word for text in (*context.background, *context.turns) for word in words(text))


class BM25:
    """Okapi BM25 with Lucene's idf.

    ``sum over query words of idf(w) tf / (tf + k1 (1 - b + b n_words / mean_words))``, with
    ``idf(w) = ln(1 + (N - df + 0.5) / (df + 0.5))``. Words that the corpus does not hold score nothing.

    Args:
        k1: how soon repetition stops helping.
        b: how much long texts are held back.

    Source: Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond (2009); Lu, BM25S
        (https://arxiv.org/abs/2407.03618).
    """

    def __init__(self, *, k1: float = 1.5, b: float = 0.75) -> None:
        self.k1, self.b = k1, b
        self._idf: dict[str, float] | None = None
        self._mean_words = 1.0
        self._pool: tuple[tuple[str, ...], bm25s.BM25] | None = None

    def fit(self, corpus: Sequence[str]) -> Self:
        """Learn word statistics."""
        self._idf, self._mean_words = _statistics(corpus, lambda n, df: float(np.log(1 + (n - df + 0.5) / (df + 0.5))))
        self._pool = None
        return self

    def score(self, contexts: Sequence[Contextual], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        known = self if self._idf is not None else BM25(k1=self.k1, b=self.b).fit(_distinct(candidates))
        return [known._list(query_words(c), texts) for c, texts in zip(contexts, candidates, strict=True)]

    def _list(self, query: Counter[str], texts: Sequence[str]) -> Floats:
        assert self._idf is not None, "score() fits first"
        result = np.zeros(len(texts), np.float32)
        for place, text in enumerate(texts):
            found = words(text)
            norm = self.k1 * (1 - self.b + self.b * len(found) / self._mean_words)
            total = 0.0
            for word, tf in Counter(found).items():
                if word in query and word in self._idf:
                    total += query[word] * self._idf[word] * tf / (tf + norm)
            result[place] = total
        return result

    def score_pool(self, contexts: Sequence[Contextual], pool: Sequence[str]) -> Floats:
        """One shared pool for every context: ``[B, N]``. The pool is indexed once and remembered.

        Unless fitted before, the pool itself is the corpus.
        """
        if self._idf is not None and not self._fitted_on(pool):
            return np.stack(self.score(contexts, [pool] * len(contexts)))
        index = self._indexed(tuple(pool))
        result = np.zeros((len(contexts), len(pool)), np.float32)
        for row, context in enumerate(contexts):
            for word, count in query_words(context).items():
                if word in index.vocab_dict:
                    result[row] += count * index.get_scores([word])
        return result

    def _fitted_on(self, pool: Sequence[str]) -> bool:
        """Whether word statistics are those of the pool, so that its index gives the same scores."""
        same = BM25(k1=self.k1, b=self.b).fit(pool) if self._pool is None or self._pool[0] != tuple(pool) else self
        return same is self or (same._idf == self._idf and same._mean_words == self._mean_words)

    def _indexed(self, pool: tuple[str, ...]) -> "bm25s.BM25":
        if self._pool is None or self._pool[0] != pool:
            index = bm25s.BM25(k1=self.k1, b=self.b, method="lucene")
            index.index([words(text) or [""] for text in pool], show_progress=False)
            self._pool = (pool, index)
        return self._pool[1]


class TfIdf:
    """Cosine of tf-idf vectors: ``tf (1 + ln((1 + N) / (1 + df)))``. Words unknown to the corpus count with df = 0."""

    def __init__(self) -> None:
        self._idf: dict[str, float] | None = None
        self._unknown = 1.0

    def fit(self, corpus: Sequence[str]) -> Self:
        """Learn word statistics."""
        self._idf, _ = _statistics(corpus, lambda n, df: 1 + float(np.log((1 + n) / (1 + df))))
        self._unknown = 1 + float(np.log(1 + len(corpus)))
        return self

    def score(self, contexts: Sequence[Contextual], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        known = self if self._idf is not None else TfIdf().fit(_distinct(candidates))
        vectors: dict[str, dict[str, float]] = {}
        results = []
        for context, texts in zip(contexts, candidates, strict=True):
            query = known._unit(query_words(context))
            row = np.zeros(len(texts), np.float32)
            for place, text in enumerate(texts):
                if text not in vectors:
                    vectors[text] = known._unit(Counter(words(text)))
                row[place] = sum(weight * query.get(word, 0.0) for word, weight in vectors[text].items())
            results.append(row)
        return results

    def score_pool(self, contexts: Sequence[Contextual], pool: Sequence[str]) -> Floats:
        """One shared pool for every context: ``[B, N]``."""
        return np.stack(self.score(contexts, [pool] * len(contexts)))

    def _unit(self, counts: Counter[str]) -> dict[str, float]:
        assert self._idf is not None, "score() fits first"
        weights = {word: tf * self._idf.get(word, self._unknown) for word, tf in counts.items()}
        norm = float(np.sqrt(sum(weight**2 for weight in weights.values()))) or 1.0
        return {word: weight / norm for word, weight in weights.items()}


def _distinct(candidates: Sequence[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(text for texts in candidates for text in texts))


class _Idf(Protocol):
    def __call__(self, n: int, df: int, /) -> float: ...


def _statistics(corpus: Sequence[str], idf: _Idf) -> tuple[dict[str, float], float]:
    """Inverse document frequencies, and the mean number of words."""
    frequencies: Counter[str] = Counter()
    n_words = 0
    for text in corpus:
        found = words(text)
        n_words += max(len(found), 1)  # bm25s takes no empty document, so an empty text is one blank word there
        frequencies.update(set(found))
    return {word: idf(len(corpus), df) for word, df in frequencies.items()}, max(n_words / max(len(corpus), 1), 1e-9)
