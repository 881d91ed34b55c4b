"""The protocol of terms: what a ranker adds up. Each term scores a context and a reply by one number or a few.

Shapes: B contexts, K candidates of each, N texts, F features, D dimensions.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import UsageError
from polyrank.ranking.weights import PRIOR_DEVIATION
from polyrank.records import Context, ContextLike, Example, contexts_of
from polyrank.scorers.explanation import Explanation, of_candidate
from polyrank.scorers.inputs import as_texts
from polyrank.scorers.protocols import Composed, Encoder, Floats, Scorer

if TYPE_CHECKING:  # counts and words need no torch
    from torch import Tensor

State = dict[str, Any]
"""The values from which a term is made again, ready for JSON; under "model" the name of a model."""
Tensors: TypeAlias = "Mapping[str, Tensor]"
LoadModel = Callable[[str], Scorer]
"""Opens a model by the name that a state holds; the same object for the same name."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What ``tune`` has, from which each kind of term makes those that are worth trying.

    Args:
        models: the scorers that the user named.
        lists: the validation lists.
        dialogues: pairs of the training part; empty if there are none.
        scales: for each of ``encoders``, the factor with which its scores on the lists are log-odds; 0: none.
        installed: scorers that ship for one of the encoders, such as a re-ranker.
    """

    models: tuple[Scorer, ...]
    lists: Sequence[Example]
    dialogues: Sequence[Example] = ()
    scales: tuple[float, ...] = ()
    installed: tuple[Scorer, ...] = ()

    @property
    def encoders(self) -> tuple[Encoder, ...]:
        """The named models that have vectors."""
        return tuple(model for model in self.models if isinstance(model, Encoder))

    @property
    def rerankers(self) -> tuple[Scorer, ...]:
        """The other ones, and those that ship for an encoder."""
        return tuple(model for model in (*self.models, *self.installed) if not isinstance(model, Encoder))


class Term(Composed, ABC):
    """A term of a ranker: ``sum_f weight_f feature_f(context, reply)``.

    Terms with vectors, or with numbers of the reply alone, are searched; those without re-rank the best of the search.

    Attributes:
        kind: the name of the term's module.
        features: names of the numbers that it gives a context and a reply.
        signed: whether weights may be below 0. Scores are reasons for a reply, so theirs are not.
        deviation: of the weights' prior, see ``fit_weights``; small, if few lists would suggest large weights by
            chance.
        name: for tables and messages.
        fingerprint: identifies what determines the features; empty if it is unknown.
    """

    kind: ClassVar[str] = ""
    features: ClassVar[tuple[str, ...]] = ("score",)
    signed: ClassVar[bool] = False
    deviation: ClassVar[float] = PRIOR_DEVIATION
    name: str = ""
    fingerprint: str = ""

    @abstractmethod
    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """The features of each context's own candidates: one array ``[K, F]`` per context."""

    def encoder(self, weights: Sequence[float]) -> Encoder | None:
        """An Encoder whose scores are ``features @ weights``; None: the term needs both sides, so it re-ranks."""
        return None

    def explain(self, context: Context, candidate: str, weights: Sequence[float], max_words: int) -> Explanation:
        """How the score ``features @ weights`` comes about: by leaving out words, unless a kind knows better.

        Args:
            context, candidate: to score.
            weights: ``[F]``.
            max_words: see ``polyrank.explain``.
        """
        return Weighed(self, weights).explained(context, candidate, max_words)

    @classmethod
    def offered(cls, offer: Offer) -> Iterable[Self]:
        """The terms of this kind that ``tune`` tries; none by default."""
        return ()

    def to_dict(self) -> tuple[State, Tensors]:
        """What ``from_dict`` needs: values for JSON, and tensors."""
        return {}, {}

    @classmethod
    def from_dict(cls, state: State, tensors: Tensors, load: LoadModel) -> Self:
        """The term of a state.

        Args:
            state, tensors: of ``to_dict``.
            load: opens the models that the state names.
        """
        return cls()

    def follow(self, first_stage: Scorer) -> None:
        """Take what the search computes of the same texts, where a re-ranker can use it."""
        return  # most cannot

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class ReplyTerm(Term):
    """A term whose features are numbers of the reply alone: searched, as one number more of each vector.

    To add one, define ``numbers``; see CONTRIBUTING.md.
    """

    size: float = 16.0
    """The number of each context's vector. A candidate's is the score divided by it, and so about as large as the
    numbers of other encoders' vectors, as int8 needs."""

    @abstractmethod
    def numbers(self, texts: Sequence[str]) -> Floats:
        """The features of texts ``[N, F]``."""

    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """The features of each context's own candidates: one array ``[K, F]`` per context."""
        ends = np.cumsum([len(texts) for texts in candidates]).tolist()
        flat = self.numbers([text for texts in candidates for text in texts]).reshape(-1, len(self.features))
        return [flat[end - len(texts) : end] for end, texts in zip(ends, candidates, strict=True)]

    def encoder(self, weights: Sequence[float]) -> Encoder | None:
        """One dimension: ``[size]`` for contexts, ``[features @ weights / size]`` for candidates."""
        return _Numbers(self, weights)

    def explain(self, context: Context, candidate: str, weights: Sequence[float], max_words: int) -> Explanation:
        """The whole score belongs to the candidate, and none of it to a word."""
        score = float(self.numbers([candidate])[0] @ np.asarray(weights, np.float32))
        return of_candidate(context, candidate, score, self.kind)


class _Numbers(Encoder):
    """See ``ReplyTerm.encoder``."""

    dimension = 1

    def __init__(self, term: ReplyTerm, weights: Sequence[float]) -> None:
        self.term, self.weights = term, np.asarray(weights, np.float32)
        parts = [term.kind, term.fingerprint, *(float(weight).hex() for weight in weights)]
        self.fingerprint = hashlib.sha256(" ".join(parts).encode()).hexdigest() if term.fingerprint else ""

    def encode_contexts(self, contexts: Sequence[ContextLike]) -> tuple[Floats, NDArray[np.bool_]]:
        n = len(contexts_of(contexts))
        return np.full((n, 1, 1), self.term.size, np.float32), np.ones((n, 1), np.bool_)

    def encode_candidates(self, candidates: Sequence[str]) -> Floats:
        texts = as_texts(candidates, "candidates")
        scores = self.term.numbers(texts).reshape(len(texts), len(self.term.features)) @ self.weights
        vectors: Floats = (scores / self.term.size).astype(np.float32)[:, None]
        return vectors


class Weighed(Scorer):
    """A term with its weights as a Scorer: ``score = features @ weights``.

    Args:
        term: any.
        weights: one for each of its features, ``[F]``.

    Raises:
        UsageError: there is another number of weights, or one is not finite.
    """

    def __init__(self, term: Term, weights: Sequence[float]) -> None:
        self.term, self.weights, self.name, self.parts = term, tuple(map(float, weights)), term.name, (term,)
        if len(self.weights) != len(term.features):
            raise UsageError(
                f"{len(self.weights)} weights for the features {', '.join(term.features)} of {term.name}; give one each"
            )
        if not all(map(math.isfinite, self.weights)):
            raise UsageError(f"weights {self} of {term.name}; give finite numbers")

    def __str__(self) -> str:
        """The weights as the command line takes them."""
        return ",".join(f"{weight:g}" for weight in self.weights)

    @property
    def encoder(self) -> Encoder | None:
        """See ``Term.encoder``."""
        return self.term.encoder(self.weights)

    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        weights = np.asarray(self.weights, np.float32)
        return [features @ weights for features in self.term.score(contexts, candidates)]
