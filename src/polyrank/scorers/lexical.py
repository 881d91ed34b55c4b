"""BM25 and TF-IDF as Scorers: the baselines that a trained model has to beat, and a fast first stage.

Texts are split into lower-case words without stemming or stop words; text without spaces becomes long words. Word
statistics come from a corpus given to ``fit``, or else from each context's candidates; evaluation fits them to all.
"""

from abc import abstractmethod
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from math import log, sqrt
from typing import Self

import numpy as np
from numpy.typing import NDArray

from polyrank.data.same_words import word_pattern
from polyrank.errors import UsageError
from polyrank.records import Candidate, Context, ContextLike, Example, contexts_of
from polyrank.scorers.explanation import CandidateShare, Explanation, TextShare, TokenShare
from polyrank.scorers.inputs import as_texts, matched_lists
from polyrank.scorers.protocols import Floats, Scorer

Weights = Mapping[str, float]
OF_WORDS = "sum of words"


def words(text: str) -> list[str]:
    """Lower-case words.

    >>> words("Don't PANIC, it's 5 o'clock")
    ['don', 't', 'panic', 'it', 's', '5', 'o', 'clock']
    """
    return word_pattern().findall(text.lower())


def located_words(text: str) -> Iterator[tuple[str, int, int]]:
    """Each of ``words`` with the start and the end of its characters in the text.

    >>> list(located_words("My WiFi"))
    [('my', 0, 2), ('wifi', 3, 7)]
    """
    lower = text.lower()
    # some letters become two in lower case
    origins = [position for position, letter in enumerate(text) for _ in letter.lower()]
    for match in word_pattern().finditer(lower):
        yield match[0], origins[match.start()], origins[match.end() - 1] + 1


def query_words(context: Context) -> Counter[str]:
    """Words of background and turns with their counts."""
    return Counter(word for text in (*context.background, *context.turns) for word in words(text))


@dataclass(frozen=True, slots=True)
class Statistics:
    """Word statistics of a corpus.

    Args:
        n: number of texts.
        holding: for each word, how many texts contain it.
        mean_words: mean number of words in a text.
    """

    n: int
    holding: Counter[str]
    mean_words: float

    @classmethod
    def of(cls, corpus: Sequence[str]) -> Self:
        """Count the words of a corpus.

        >>> Statistics.of(["a b", "a a a c"])
        Statistics(n=2, holding=Counter({'a': 2, 'b': 1, 'c': 1}), mean_words=3.0)
        """
        holding: Counter[str] = Counter()
        n_words = 0
        for text in corpus:
            listed = words(text)
            n_words += max(len(listed), 1)  # so that the mean is never 0
            holding.update(set(listed))
        return cls(len(corpus), holding, n_words / len(corpus) if corpus else 1.0)


def corpus_of(examples: Iterable[Example] = (), pool: Iterable[Candidate] | None = None) -> list[str]:
    """Texts for the word statistics of lexical scorers: all candidates, right or wrong."""
    if pool is not None:
        return [candidate.text for candidate in pool]
    return [text for example in examples for text in example.candidates]


class LexicalScorer(Scorer):
    """A score is the sum, over the words that both have, of a context's weight times a text's weight."""

    _fitted: Statistics | None = None
    _pool: "tuple[tuple[str, ...], Statistics, _Postings] | None" = None

    def fit(self, corpus: Sequence[str]) -> Self:
        """Learn word statistics."""
        self._fitted, self._pool = Statistics.of(corpus), None
        return self

    @property
    def is_fitted(self) -> bool:
        """Whether ``fit`` was called; otherwise word statistics come from each list of candidates."""
        return self._fitted is not None

    def fitted_to(self, texts: Callable[[], Sequence[str]]) -> Scorer:
        return self if self.is_fitted else copy(self).fit(list(dict.fromkeys(texts())))

    @property
    def statistics(self) -> Statistics:
        """Those of ``fit``.

        Raises:
            UsageError: it was not fitted.
        """
        if self._fitted is None:
            raise UsageError("the lexical scorer was not fitted; call fit with texts like those to rank")
        return self._fitted

    @statistics.setter
    def statistics(self, fitted: Statistics) -> None:
        self._fitted, self._pool = fitted, None

    @abstractmethod
    def query_weights(self, context: Context, fitted: Statistics) -> Weights:
        """The weight of each word of a context."""

    @abstractmethod
    def text_weights(self, text: str, fitted: Statistics) -> Weights:
        """The weight of each word of a candidate."""

    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        queries, lists = matched_lists(contexts, candidates)
        if self._fitted is None and len(lists) > 1:  # a list's scores do not depend on the others
            return [self.score([query], [texts])[0] for query, texts in zip(queries, lists, strict=True)]
        distinct = list(dict.fromkeys(text for texts in lists for text in texts))
        fitted = self._fitted or Statistics.of(distinct)
        weights = {text: self.text_weights(text, fitted) for text in distinct}
        scores = []
        for context, texts in zip(queries, lists, strict=True):
            query = self.query_weights(context, fitted)
            scores.append(np.array([sum(_products(query, weights[text]).values()) for text in texts], np.float32))
        return scores

    def score_pool(self, contexts: Sequence[ContextLike], pool: Sequence[str]) -> Floats:
        """One shared pool for every context: ``[B, N]``. The weights of the latest pool are kept."""
        queries, key = contexts_of(contexts), tuple(as_texts(pool, "pool"))
        held = self._pool  # another thread may replace it
        if held is None or held[0] != key:
            fitted = self._fitted or Statistics.of(list(dict.fromkeys(key)))
            held = self._pool = key, fitted, _Postings.of(key, lambda text: self.text_weights(text, fitted))
        _, fitted, postings = held
        result = np.empty((len(queries), len(key)), np.float32)
        for row, context in enumerate(queries):
            result[row] = postings.score(self.query_weights(context, fitted))
        return result

    def explained(self, context: Context, candidate: str, max_words: int) -> Explanation:
        """The share of each word; each of its occurrences has the same."""
        totals = self.word_shares(context, candidate)

        def shared(texts: Sequence[str]) -> tuple[TextShare, ...]:
            located = [list(located_words(text)) for text in texts]
            counts = Counter(word for words in located for word, _, _ in words)
            result = []
            for text, words in zip(texts, located, strict=True):
                tokens = tuple(
                    TokenShare(text[start:end], start, end, totals.get(word, 0.0) / counts[word])
                    for word, start, end in words
                )
                result.append(TextShare(text, sum(token.share for token in tokens), tokens))
            return tuple(result)

        both, (reply,) = shared((*context.background, *context.turns)), shared([candidate])
        n = len(context.background)
        score = float(self.score([context], [[candidate]])[0][0])
        side = CandidateShare(candidate, reply.tokens, 0.0, OF_WORDS, exact=True)
        return Explanation(score, OF_WORDS, True, both[n:], both[:n], 0.0, side)

    def word_shares(self, context: Context, candidate: str) -> Weights:
        """How much each word adds to the score, over all its occurrences in the context."""
        fitted = self._fitted or Statistics.of([candidate])
        return _products(self.query_weights(context, fitted), self.text_weights(candidate, fitted))


def _products(query: Weights, text: Weights) -> Weights:
    return {word: weight * query[word] for word, weight in text.items() if word in query}


@dataclass(frozen=True, slots=True)
class _Postings:
    """The distinct texts that contain each word, with the weight of the word in each.

    Args:
        texts: for each word, the numbers of the distinct texts and the weights.
        positions: the number of the distinct text at each position of the pool, ``[N]``.
    """

    texts: Mapping[str, tuple[NDArray[np.int64], NDArray[np.float64]]]
    positions: NDArray[np.int64]

    @classmethod
    def of(cls, pool: Sequence[str], weigh: Callable[[str], Weights]) -> Self:
        """Those of a pool; ``weigh`` returns the weights of a text."""
        numbers = {text: number for number, text in enumerate(dict.fromkeys(pool))}
        columns: dict[str, tuple[array[int], array[float]]] = defaultdict(lambda: (array("q"), array("d")))
        for text, number in numbers.items():
            for word, weight in weigh(text).items():
                texts, weights = columns[word]
                texts.append(number)
                weights.append(weight)
        arrays = {word: (np.array(texts), np.array(weights)) for word, (texts, weights) in columns.items()}
        return cls(arrays, np.array([numbers[text] for text in pool], np.int64))

    def score(self, query: Weights) -> NDArray[np.float64]:
        """The whole pool for one query, ``[N]``."""
        totals = np.zeros(self.positions.max(initial=-1) + 1)
        for word, weight in query.items():
            if word in self.texts:
                texts, weights = self.texts[word]
                totals[texts] += weight * weights  # a word has a text once
        return totals[self.positions]


class BM25(LexicalScorer):
    """Okapi BM25 with Lucene's idf.

    ``sum over query words of idf(w) tf / (tf + k1 (1 - b + b n_words / mean_words))``, with
    ``idf(w) = ln(1 + (N - df + 0.5) / (df + 0.5))``. A query word that occurs twice counts twice. Words that the
    corpus does not contain score 0.

    Args:
        k1: how soon repetitions of a word stop raising the score.
        b: how much the length of a text lowers the score.

    Source: Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond (2009).

    >>> from polyrank.records import Context
    >>> BM25(b=0.0).fit(["wifi", "bill"]).score([Context(("my wifi",))], [["wifi", "bill"]])[0].round(4)  # ln 2 / 2.5
    array([0.2773, 0.    ], dtype=float32)
    """

    def __init__(self, *, k1: float = 1.5, b: float = 0.75) -> None:
        self.k1, self.b = k1, b

    def query_weights(self, context: Context, fitted: Statistics) -> Weights:
        """How often each word occurs."""
        return query_words(context)

    def text_weights(self, text: str, fitted: Statistics) -> Weights:
        """The score of a query with the word once."""
        counts = Counter(words(text))
        norm = self.k1 * (1 - self.b + self.b * counts.total() / fitted.mean_words)
        return {
            word: _lucene_idf(fitted, word) * tf / (tf + norm) for word, tf in counts.items() if word in fitted.holding
        }


def _lucene_idf(corpus: Statistics, word: str) -> float:
    df = corpus.holding[word]
    return log(1 + (corpus.n - df + 0.5) / (df + 0.5))


class TfIdf(LexicalScorer):
    """Cosine of tf-idf vectors, whose entries are ``tf (1 + ln((1 + N) / (1 + df)))``.

    ``tf`` is the plain count, in contexts and in candidates. A word that the corpus does not contain has df = 0.

    >>> from polyrank.records import Context
    >>> TfIdf().fit(["wifi", "bill"]).score([Context(("wifi bill",))], [["wifi", "thanks"]])[0].round(4)  # 1 / sqrt 2
    array([0.7071, 0.    ], dtype=float32)
    """

    def query_weights(self, context: Context, fitted: Statistics) -> Weights:
        """The unit vector of a context."""
        return _unit(query_words(context), fitted)

    def text_weights(self, text: str, fitted: Statistics) -> Weights:
        """The unit vector of a text."""
        return _unit(Counter(words(text)), fitted)


def _unit(counts: Counter[str], fitted: Statistics) -> Weights:
    weights = {word: tf * (1 + log((1 + fitted.n) / (1 + fitted.holding[word]))) for word, tf in counts.items()}
    norm = sqrt(sum(weight**2 for weight in weights.values())) or 1.0
    return {word: weight / norm for word, weight in weights.items()}
