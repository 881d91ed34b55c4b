"""What answers: a pipeline or an index, opened by its path, asked, and changed while it is asked."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from polyrank.answering.build import add_to_index
from polyrank.answering.explain import explain
from polyrank.answering.explanation import Explanation
from polyrank.answering.pipeline import dense, fingerprints, make_retriever
from polyrank.answering.retrievers import LexicalRetriever, Retriever
from polyrank.answering.two_stage import TwoStage
from polyrank.config.pipeline import SHORTLIST, Ensemble
from polyrank.data.pool import CandidateLike, pool_of
from polyrank.errors import ArtifactError, UsageError
from polyrank.index import AnyIndex, AnyWriter, Filter, open_writer
from polyrank.loading.answering import check_stages, read_pipeline
from polyrank.loading.folders import PIPELINE
from polyrank.loading.models import Backend
from polyrank.ranking.abstention import N_SCORES, Abstention, confidence
from polyrank.records import ContextLike, Ranked, contexts_of
from polyrank.scorers.open import encoder_of_index, load
from polyrank.scorers.protocols import Encoder, Responds
from polyrank.search import Mode
from polyrank.storage.closing import Closing
from polyrank.storage.document import has_document
from polyrank.storage.durable import AnyPath


@dataclass(frozen=True, slots=True)
class Answer:
    """Replies to one context.

    Args:
        ranked: best first; given also when they are not good enough.
        confidence: in the best one; None where no threshold was calibrated.
        abstained: there is no good answer.
        exact: whether these are proven to be the best of the index; None where the search does not say.
        n_scored: how many candidates were scored in full; None where the search does not say.
        ways: how they were looked for, see ``polyrank.search.Result``; empty where the search does not say.
    """

    ranked: tuple[Ranked, ...]
    confidence: float | None
    abstained: bool
    exact: bool | None = None
    n_scored: int | None = None
    ways: tuple[str, ...] = ()

    @property
    def text(self) -> str | None:
        """The best reply; None where there is no good one."""
        return None if self.abstained else self.ranked[0].text


class Pipeline(Closing):
    """Replies with their confidence, from candidates that may change at any time.

    What other processes change in the index shows in the next answer. The first change made here takes the index's
    lock, which ``close``, or the end of a ``with`` block, gives back.

    Args:
        retriever: one stage or two.
        abstention: when to give no answer; None: always answer.
    """

    def __init__(self, retriever: Responds, abstention: Abstention | None = None) -> None:
        self.retriever, self.abstention = retriever, abstention
        self._encoder: Encoder | None = None
        self._writer: AnyWriter | None = None

    def answer(self, context: ContextLike, k: int = 5, *, filter: Filter | str | None = None) -> Answer:
        """The best ``k`` replies to one context, and whether the best of them is a good answer.

        Args:
            context: one turn, a list of turns, oldest first, or a Context.
            k: how many.
            filter: leaves the candidates whose metadata pass, such as ``lang = "en"``; see ``polyrank.read_filter``.
                A threshold is asked of the best of them.

        Raises:
            UsageError: ``k`` is less than one, or the filter cannot be read.
        """
        return self.answer_all([context], k, filter=filter)[0]

    def answer_all(
        self, contexts: Sequence[ContextLike], k: int = 5, *, filter: Filter | str | None = None
    ) -> list[Answer]:
        """The same for many contexts at once, which is faster than one by one."""
        n = k if self.abstention is None else max(k, N_SCORES)
        if isinstance(self.retriever, Retriever):
            return [
                replace(self._answer_from(ranked, k), exact=result.exact, n_scored=result.n_scored, ways=result.ways)
                for ranked, result in self.retriever.find(contexts, n, filter=filter)
            ]
        return [self._answer_from(ranked, k) for ranked in self.respond(contexts, n, filter=filter)]

    def respond(
        self, contexts: Sequence[ContextLike], k: int = 5, *, filter: Filter | str | None = None
    ) -> list[list[Ranked]]:
        """The best ``k`` replies to each context, best first, good enough or not."""
        return self.retriever.respond(contexts_of(contexts), k, filter=filter)

    def explain(
        self,
        context: ContextLike,
        text: str | None = None,
        *,
        candidate_id: str | None = None,
        max_words: int = 64,
        filter: Filter | str | None = None,
    ) -> Explanation:
        """Why a reply has its score, see ``polyrank.explain``.

        Of a pipeline of two stages, both are explained. Vectors that the index holds in bf16 or int8 give scores that
        differ a little from those explained here, which the encoder gives.

        Args:
            context: what it answers.
            text: the reply, of the index or any other.
            candidate_id: instead of its text, its id. None of the two: the best reply.
            max_words: see ``polyrank.explain``.
            filter: what it was answered through.

        Raises:
            UsageError: both are given, there is no such id, or no reply at all.
        """
        if text is not None and candidate_id is not None:
            raise UsageError(f"candidate_id = {candidate_id!r} and a text are two replies; give one of them")
        if candidate_id is not None:
            first = self._first_stage
            if not isinstance(first, Retriever | LexicalRetriever):
                raise UsageError(f"this retriever finds no reply by its id {candidate_id!r}; give its text")
            text = first.candidate(candidate_id).text
        elif text is None:
            (ranked,) = self.respond([context], 1, filter=filter)
            if not ranked:
                raise UsageError("there is no reply to explain; add one to the index, or give a text")
            text = ranked[0].text
        return explain(self.retriever, context, text, max_words=max_words, filter=filter)

    def _answer_from(self, ranked: Sequence[Ranked], k: int) -> Answer:
        if self.abstention is None:
            return Answer(tuple(ranked[:k]), None, not ranked)
        scores = [reply.score for reply in ranked]
        return Answer(tuple(ranked[:k]), confidence(scores, self.abstention.measure), self.abstention.abstains(scores))

    @property
    def index(self) -> AnyIndex:
        """The candidates.

        Raises:
            UsageError: they are a list in memory.
        """
        if (index := self._index) is None:
            raise UsageError("the candidates are a list in memory, which cannot be changed; open an index instead")
        return index

    @property
    def _first_stage(self) -> Responds:
        return self.retriever.retriever if isinstance(self.retriever, TwoStage) else self.retriever

    @property
    def _index(self) -> AnyIndex | None:
        first = self._first_stage
        return first.index if isinstance(first, Retriever | LexicalRetriever) else None

    def __len__(self) -> int:
        self.index.refresh()
        return len(self.index)

    def add(self, candidates: Iterable[CandidateLike], *, replace: bool = False) -> list[str]:
        """Add candidates: all of them or, with an error, none; durable when this returns.

        Args:
            candidates: texts, rows with "text" and maybe "id" and "metadata", or Candidates. The id of one without
                comes from its text.
            replace: whether candidates of the same ids are replaced; else they are an error.

        Returns:
            Their ids.

        Raises:
            DataError: names faulty candidates by position.
            LockedError: another process is changing the index.
            ResourceError: the disk is full; nothing was added.
        """
        new = pool_of(candidates)
        add_to_index(self._changing(), self._encoder_of_index(), new, replace=replace)
        return [candidate.id for candidate in new]

    def replace(self, candidates: Iterable[CandidateLike]) -> list[str]:
        """Add candidates in place of those of the same ids, as ``add`` does."""
        return self.add(candidates, replace=True)

    def remove(self, ids: Sequence[str]) -> int:
        """Remove candidates by id; ids that are not there are fine. Returns how many were there."""
        if isinstance(ids, str):
            raise TypeError(f"ids = {ids!r} is one id; write a list of ids")
        return self._changing().remove(ids)

    def snapshot(self, path: AnyPath) -> None:
        """Copy the index as it is now into a new folder, whole or not at all.

        Raises:
            UsageError: something is there already.
        """
        self._changing().snapshot(path)

    def close(self) -> None:
        """Give back the index and its lock."""
        with ExitStack() as both:
            if self._index is not None:
                both.callback(self._index.close)
            if self._writer is not None:
                both.callback(self._writer.close)
            self._writer = None

    def _changing(self) -> AnyWriter:
        if self._writer is None:
            self._writer = open_writer(self.index.path)
        return self._writer

    def _encoder_of_index(self) -> Encoder:
        """What makes the index's vectors: the retriever's own, or, where that reads words, the one that it names."""
        if isinstance(first := self._first_stage, Retriever):
            return first.encoder
        if self._encoder is None:
            self._encoder = encoder_of_index(self.index.model)
        return self._encoder


def open_pipeline(
    path: AnyPath,
    *,
    model: AnyPath | None = None,
    mode: Mode | None = None,
    rerank: str | None = None,
    n_retrieved: int = SHORTLIST,
    ensemble: Ensemble | None = None,
    distinct: bool = True,
    device: str = "auto",
    backend: Backend = "torch",
) -> Pipeline:
    """Open a pipeline folder, or an index folder as a pipeline of one stage: ``polyrank.open``.

    Args:
        path: the folder.
        model: the encoder's folder, where it has moved.
        mode: of the dense search; None: the pipeline's.
        rerank: the second stage over an index; a pipeline has its own.
        n_retrieved, ensemble: see ``TwoStage``; with ``rerank``.
        distinct: give each text once, whatever else in the index has that text.
        device: for networks.
        backend: of every model, see ``polyrank.load``.

    Raises:
        ArtifactError: it is neither, or something in it is damaged.
        UsageError: a model is not where it should be, the folder leaves no room for a second stage, or a setting is
            one that nothing in the pipeline heeds.
    """
    path, model = Path(path), None if model is None else Path(model)
    check_stages(path, rerank, ensemble)
    if not has_document(path, PIPELINE):
        first = dense(path, model, mode or "exact", distinct, device, backend)
        if rerank is None:
            return Pipeline(first)
        second = load(rerank, device=device, backend=backend)
        return Pipeline(TwoStage(first, second, n_retrieved=n_retrieved, ensemble=ensemble))
    config, tuning = read_pipeline(path)
    if config.retriever != "dense" and (mode or model):
        raise UsageError(f"{path} retrieves by {config.retriever}, which takes no model and no mode; leave them out")
    if config.retriever != "dense" and config.reranker is None and backend != "torch":
        raise UsageError(f"{path} retrieves by {config.retriever}, which has no {backend} export; leave it out")
    if config.threshold is not None and not distinct:
        raise UsageError(f"the threshold of {path} was chosen with each text once; ask its index for all of them")
    if mode is not None:
        config = replace(config, mode=mode)
    if model is not None:
        config = replace(config, model=str(model))
    abstention = None
    if config.measure is not None and config.threshold is not None:
        abstention = Abstention(config.measure, config.threshold)
    retriever = make_retriever(config, distinct=distinct, device=device, backend=backend)
    for name, expected in tuning.get("fingerprints", {}).items():
        if (actual := fingerprints(retriever).get(name)) != expected:
            raise ArtifactError(
                f"the settings of {path} were chosen with another {name} (fingerprint {expected[:12]}, now"
                f" {str(actual)[:12]}); choose them again with polyrank pipeline create --overwrite"
            )
    return Pipeline(retriever, abstention)
