"""The term ``encoder``: the score of a model with vectors, such as a Bi- or Poly-encoder or a ConveRT."""

from collections.abc import Iterable, Sequence
from typing import Self

from polyrank.records import Context, ContextLike
from polyrank.scorers.explanation import Explanation
from polyrank.scorers.joined import Scaled
from polyrank.scorers.own import as_scorer
from polyrank.scorers.protocols import Encoder, Floats, Scorer
from polyrank.scorers.terms.protocol import LoadModel, Offer, State, Tensors, Term


class ScorerTerm(Term):
    """A term that is the score of one model.

    Args:
        scorer: the model.
    """

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = as_scorer(scorer)
        self.parts = (self.scorer,)
        self.name, self.fingerprint = self.scorer.name or type(scorer).__name__, self.scorer.fingerprint

    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """The features of each context's own candidates: one array ``[K, 1]`` per context."""
        return [values[:, None] for values in self.scorer.score(contexts, candidates)]

    def explain(self, context: Context, candidate: str, weights: Sequence[float], max_words: int) -> Explanation:
        """The explanation of the model."""
        if weights[0] != 1.0:
            return super().explain(context, candidate, weights, max_words)
        return self.scorer.explained(context, candidate, max_words)

    def to_dict(self) -> tuple[State, Tensors]:
        """The model's name, which loads it again."""
        return {"model": self.scorer.name}, {}

    @classmethod
    def from_dict(cls, state: State, tensors: Tensors, load: LoadModel) -> Self:
        """The term of the named model."""
        return cls(load(state["model"]))


class EncoderTerm(ScorerTerm):
    """How similar an encoder finds context and reply: candidates are encoded once and searched.

    Args:
        scorer: the encoder.
    """

    kind = "encoder"
    scorer: Encoder

    def encoder(self, weights: Sequence[float]) -> Encoder | None:
        """The encoder itself if its weight is 1; otherwise its vectors with the root of the weight on both sides."""
        (weight,) = weights
        return self.scorer if weight == 1.0 else Scaled(self.scorer, weight)

    @classmethod
    def offered(cls, offer: Offer) -> Iterable[Self]:
        """Each encoder that the user named."""
        return (cls(encoder) for encoder in offer.encoders)
