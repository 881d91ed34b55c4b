"""The protocols of models that rank. A Cross-encoder cannot encode one side alone, so it is a Scorer only.

Classes that inherit from them get the methods that all models share.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from polyrank.config.checked import whole_number
from polyrank.errors import ArtifactError, UsageError
from polyrank.ranking.top import blank_last, top_rows
from polyrank.records import Candidate, Context, ContextLike, Ranked, contexts_of
from polyrank.scorers.inputs import as_candidates, as_texts, checked_scores, matched_lists, spread

if TYPE_CHECKING:  # BM25 needs no torch
    from polyrank.index.filters import Filter
    from polyrank.ranking.relevance import Relevance
    from polyrank.scorers.explanation import Explanation
    from polyrank.scorers.network import NetworkScorer
    from polyrank.text.cut import Cut

Floats = NDArray[np.float32]


class Composed(Protocol):
    """Has networks, or consists of parts that have them."""

    parts: "Sequence[Composed]" = ()
    """The parts of its score; empty for a network or a formula."""

    @property
    def networks(self) -> "tuple[NetworkScorer[Any], ...]":
        """The scorers of its networks, each once."""
        return tuple({id(network): network for part in self.parts for network in part.networks}.values())

    @property
    def precision(self) -> str:
        """The precision of its networks, such as "int8"; several with commas; empty if it has no network."""
        return ", ".join(sorted({network.precision for network in self.networks}))

    @property
    def cut(self) -> "tuple[Cut, ...]":
        """The texts that were truncated, for each network."""
        return tuple(network.texts.cut for network in self.networks)


@runtime_checkable
class Scorer(Composed, Protocol):
    """Scores candidates for contexts. A context is a Context, one turn, or a list of turns.

    Scores are fp32; higher is better. Scores of different models are not comparable.
    """

    name: str = ""
    """The name that loads it again, from any working directory; empty if it was not loaded by name."""

    fingerprint: str = ""
    """Hex digest of weights, configuration and tokenizer, which an index must match; empty for untrained scorers."""

    relevance: "Relevance | None" = None
    """How probable it is that a candidate with a score is right; None: unknown."""

    corrects: str = ""
    """Of a re-ranker whose scores are only added to those of an encoder: the encoder's fingerprint."""

    first_stage: str = ""
    """Of such a re-ranker: the encoder's name, if it is known."""

    def __repr__(self) -> str:
        dimension = getattr(self, "dimension", None)
        shown = [repr(self.name) if self.name else "", f"{dimension} dimensions" if dimension else ""]
        return f"{type(self).__name__}({', '.join(filter(None, shown))})"

    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Score each context's own candidates: one array of length ``len(candidates[i])`` per context."""

    def score_pool(self, contexts: Sequence[ContextLike], pool: Sequence[str]) -> Floats:
        """Score one shared pool for every context: ``[B, N]``."""
        queries, shared = contexts_of(contexts), as_texts(pool, "pool")
        rows = [checked_scores(self.score([query], [shared])[0], (len(shared),), self) for query in queries]
        return np.array(rows, np.float32).reshape(len(queries), len(shared))

    def rank(self, context: ContextLike, candidates: Sequence[str | Candidate], k: int | None = None) -> list[Ranked]:
        """The best ``k`` candidates, or all of them, best first; ties in the order in which they were given.

        Candidates are read to their end, in chunks; if the context is truncated, a warning is logged once.

        Args:
            context: to answer.
            candidates: texts, whose ids are their positions, or Candidates with their own ids.
            k: how many to return; None: all.

        Raises:
            TypeError: an argument has another type.
            UsageError: ``k`` is less than one, or the scores only correct those of an encoder.
            ArtifactError: a score is not finite.
        """
        if k is not None and whole_number(k, "k") < 1:
            raise UsageError(f"k = {k}; request at least one candidate, or leave k out for all of them")
        if self.corrects:
            raise UsageError(f"{self!r} only corrects an encoder's scores; use what polyrank.load returns")
        choice = as_candidates(candidates)
        from polyrank.scorers.chunks import Chunked

        texts = [candidate.text for candidate in choice]
        scores = checked_scores(Chunked(self).score([context], [texts])[0], (len(choice),), self)
        check_finite(scores)
        scores = blank_last(scores, texts)
        for cut in self.cut:
            cut.warn()
        best = ((choice[row], float(scores[row])) for row in top_rows(scores, len(choice) if k is None else k))
        return [Ranked(candidate.id, candidate.text, score, candidate.metadata) for candidate, score in best]

    @property
    def chooser(self) -> "Scorer":
        """Scores the chunks of long candidates, see ``Chunked``: the part that scores everything."""
        return self

    def follow(self, first_stage: "Scorer") -> None:
        """Take what a first stage computes of the same texts, where a re-ranker can use it."""
        return  # most cannot

    def fitted_to(self, texts: Callable[[], Sequence[str]]) -> "Scorer":
        """A lexical scorer that is not fitted: a copy fitted to texts. Any other scorer: itself."""
        return self

    def explained(self, context: Context, candidate: str, max_words: int) -> "Explanation":
        """How a score comes about; see ``polyrank.explain``. By leaving out words, unless a class knows better."""
        from polyrank.scorers.left_out import left_out

        return left_out(self, context, candidate, max_words)

    def push_to_hub(self, name: str, *, private: bool = False) -> str:
        """Upload the model, as it was loaded from its folder, to the Hugging Face Hub, as ``polyrank push`` does.

        Args:
            name: ``OWNER/MODEL``; the repository is created if it does not exist. ``load`` accepts ``hf:OWNER/MODEL``.
            private: whether a new repository is private.

        Returns:
            The address of the commit.

        Raises:
            UsageError: it is not a trained model from one folder, the name is not valid, or the Hub refuses your token.
            ArtifactError: a file of the model is damaged.
            OfflineError: the Hub cannot be reached.
        """
        from polyrank.loading.sharing import push_model

        if not self.name:
            raise UsageError(f"{self!r} was not loaded from a folder; push what polyrank.load(FOLDER) returns")
        return push_model(self.name, name if name.startswith("hf:") else f"hf:{name}", private=private)


def check_finite(scores: Floats) -> None:
    """Refuse scores that cannot be ordered.

    Raises:
        ArtifactError: a score is not finite.
    """
    if not np.isfinite(scores).all():
        raise ArtifactError("a score is not finite; the model's weights are damaged or diverged in training")


@runtime_checkable
class Encoder(Scorer, Protocol):
    """A Scorer that encodes contexts and candidates separately, so that candidates are encoded once and searched."""

    dimension: int
    """D, the length of each vector."""

    def encode_contexts(self, contexts: Sequence[ContextLike]) -> tuple[Floats, NDArray[np.bool_]]:
        """Context vectors ``[B, M, D]`` and a mask ``[B, M]``, true where a vector is real."""

    def encode_candidates(self, candidates: Sequence[str]) -> Floats:
        """Candidate vectors ``[N, D]``."""

    def truncate(self, dimension: int) -> None:
        """Keep only the first numbers of every vector from now on; cosines stay cosines.

        Raises:
            UsageError: its vectors are shorter, or cannot be cut.
        """
        raise UsageError(f"the vectors of {self!r} cannot be cut; leave truncate_dim out")

    def encode_lists(self, lists: Iterable[Sequence[str]]) -> Generator[Floats, None, None]:
        """Candidate vectors ``[N, D]`` of each list of texts, in order: the same as ``encode_candidates`` returns.

        An encoder on a GPU reads a few lists ahead and tokenizes them in a thread, which ends with the generator.
        """
        for texts in lists:
            yield self.encode_candidates(texts)

    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Score each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        from polyrank.scorers.encoded import score_lists  # imports torch, which the protocols do not need

        queries, lists = matched_lists(contexts, candidates)
        vectors, mask = self.encode_contexts(queries)
        distinct = [list(dict.fromkeys(texts)) for texts in lists]  # so that copies have equal scores
        encoded = self.encode_candidates([text for texts in distinct for text in texts])
        scores = score_lists(vectors, mask, encoded, [len(texts) for texts in distinct])
        return [spread(*row) for row in zip(scores, distinct, lists, strict=True)]

    def score_pool(self, contexts: Sequence[ContextLike], pool: Sequence[str]) -> Floats:
        """Score one shared pool for every context: ``[B, N]``."""
        from polyrank.scorers.encoded import score_shared

        return score_shared(*self.encode_contexts(contexts), self.encode_candidates(pool))


class Responds(Protocol):
    """Finds replies, as an open index does."""

    def respond(
        self, contexts: Sequence[ContextLike], k: int = 5, *, filter: "Filter | str | None" = None
    ) -> list[list[Ranked]]:
        """The best ``k`` replies to each context, best first, of those whose metadata pass the filter."""
