"""A pipeline: retriever, re-ranker, ensemble and threshold. It answers, adds and removes candidates, and has one path.

Its folder holds one file, pipeline.json, which names an index and models (relative to the folder if possible) and the
settings chosen on validation data. Models and index stay in their folders.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from polyrank.answering.build import add_to_index
from polyrank.answering.choice import Choice
from polyrank.answering.explain import explain
from polyrank.answering.explanation import Explanation
from polyrank.answering.protocol import Answer, Answering
from polyrank.answering.retrievers import LexicalRetriever, Retriever
from polyrank.answering.two_stage import TwoStage
from polyrank.config.checked import read_choice
from polyrank.config.pipeline import Ensemble, PipelineConfig
from polyrank.data.pool import CandidateLike, pool_of
from polyrank.devices.choice import choose_device
from polyrank.errors import ArtifactError, UsageError
from polyrank.index import Filter, Index, IndexWriter, open_index, open_writer
from polyrank.loading.answering import resolve_answering
from polyrank.loading.folders import PIPELINE
from polyrank.loading.models import Backend, portable_name, resolve_model
from polyrank.ranking.abstention import N_SCORES, Abstention, confidence
from polyrank.records import Candidate, Context, ContextLike
from polyrank.scorers.lexical import BM25, TfIdf
from polyrank.scorers.open import encoder_of_index, open_model
from polyrank.scorers.protocols import Encoder, Floats
from polyrank.search import Mode
from polyrank.storage.document import seal
from polyrank.storage.durable import AnyPath, new_folder


class Pipeline(Answering):
    """Replies with their confidence, from candidates that may change at any time.

    Changes that other processes make in the index show in the next answer. The first change made here locks the index;
    ``close``, or the end of a ``with`` block, releases the lock.

    Args:
        retriever: one stage or two.
        abstention: the threshold below which the pipeline abstains; None: it always answers.
        open_encoder: loads the encoder of the index, if the retriever has none.
    """

    def __init__(
        self,
        retriever: Answering,
        abstention: Abstention | None = None,
        *,
        open_encoder: Callable[[str], Encoder] = encoder_of_index,
    ) -> None:
        self.retriever, self.abstention, self._open_encoder = retriever, abstention, open_encoder
        self.scorer, self.encoder, self.n_stages = retriever.scorer, retriever.encoder, retriever.n_stages
        self._writer: IndexWriter | None = None
        self._writer_lock = threading.Lock()  # threads must not open two
        self._closed = False

    def best(self, contexts: Sequence[Context], choice: Choice) -> list[Answer]:
        """The best replies to each context, and whether the best one is good enough; see ``Answering``.

        The threshold applies to the best reply of the choice. Many contexts at once are faster than one by one.
        """
        if self._closed:
            raise UsageError("the pipeline is closed; open it again with polyrank.open")
        if (known := self.abstention) is None:
            return self.retriever.best(contexts, choice)
        answers = []
        for answer in self.retriever.best(contexts, replace(choice, k=max(choice.k, N_SCORES))):
            scores = [reply.score for reply in answer.ranked]
            sure, abstained = confidence(scores, known.measure), known.abstains(scores)
            answers.append(replace(answer, ranked=answer.ranked[: choice.k], confidence=sure, abstained=abstained))
        return answers

    def __repr__(self) -> str:
        threshold = "" if self.abstention is None else f", {self.abstention!r}"
        return f"{'closed ' if self._closed else ''}Pipeline({self.retriever!r}{threshold})"

    def any_passes(self, filter: Filter) -> bool:
        return self.retriever.any_passes(filter)

    def vectors(self, ids: Sequence[str]) -> dict[str, Floats]:
        return self.retriever.vectors(ids)

    def candidate(self, id_: str) -> Candidate:
        return self.retriever.candidate(id_)

    def explained(self) -> Answering:
        return self.retriever

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

        Both stages of a two-stage pipeline are explained. The explained score is the encoder's; scores from vectors
        that the index stores in bf16 or int8 differ a little.

        Args:
            context: that it answers.
            text: the reply, from the index or not.
            candidate_id: the reply's id, instead of its text. Without both: the best reply.
            max_words: see ``polyrank.explain``.
            filter: of the answer.

        Raises:
            UsageError: both are given, no candidate has the id, or the index is empty.
        """
        if text is not None and candidate_id is not None:
            raise UsageError(f"candidate_id = {candidate_id!r} excludes a text; give one of them")
        if candidate_id is not None:
            text = self.candidate(candidate_id).text
        elif text is None:
            (ranked,) = self.respond([context], 1, filter=filter)
            if not ranked:
                raise UsageError("no reply matches, so none can be explained; add one to the index, or give a text")
            text = ranked[0].text
        return explain(self.retriever, context, text, max_words=max_words, filter=filter)

    @property
    def index(self) -> Index:  # type: ignore[override]  # methods that need it fail without one
        """The candidates.

        Raises:
            UsageError: the candidates are a list in memory.
        """
        if (index := self.retriever.index) is None:
            raise UsageError("the candidates are a list in memory, which cannot be changed; open an index instead")
        return index

    def index_encoder(self) -> Encoder:
        """The encoder of the index: the retriever's, or, for a lexical retriever, the one that the index names."""
        if self.encoder is None:
            self.encoder = self._open_encoder(self.index.model)
        return self.encoder

    def __len__(self) -> int:
        self.index.refresh()
        return len(self.index)

    def add(self, candidates: Iterable[CandidateLike], *, replace: bool = False) -> list[str]:
        """Add candidates: all of them, or none if there is an error. They are durable when this returns.

        Args:
            candidates: texts, rows with "text" and optionally "id" and "metadata", or Candidates. A missing id is
                derived from the text.
            replace: whether candidates of the same ids are replaced; otherwise they are an error.

        Returns:
            Their ids.

        Raises:
            DataError: names faulty candidates by position.
            LockedError: another process is changing the index.
            ResourceError: the disk is full; nothing was added.
        """
        new = pool_of(candidates)
        add_to_index(self._changing(), self.index_encoder(), new, replace=replace)
        return [candidate.id for candidate in new]

    def replace(self, candidates: Iterable[CandidateLike]) -> list[str]:
        """Add candidates, or replace those of the same ids; see ``add``."""
        return self.add(candidates, replace=True)

    def remove(self, ids: Sequence[str]) -> int:
        """Remove candidates by id, ignoring unknown ids. Returns how many were removed."""
        if isinstance(ids, str):
            raise TypeError(f"ids = {ids!r} is one id; write a list of ids")
        return self._changing().remove(ids)

    def snapshot(self, path: AnyPath) -> None:
        """Copy the present index into a new folder, whole or not at all.

        Raises:
            UsageError: the path exists or is inside the index.
        """
        self._changing().snapshot(path)

    def close(self) -> None:
        """Close the index and release its lock."""
        with self._writer_lock, ExitStack() as both:
            both.callback(self.retriever.close)
            if self._writer is not None:
                both.callback(self._writer.close)
            self._writer = None
            self._closed = True

    def _changing(self) -> IndexWriter:
        with self._writer_lock:
            if self._closed:
                raise UsageError("the pipeline is closed; open it again with polyrank.open")
            if self._writer is not None and not self._writer.is_current:
                self._writer.close()
                self._writer = None
            if self._writer is None:
                self._writer = open_writer(self.index.path)
            return self._writer


def open_pipeline(
    path: AnyPath,
    *,
    model: AnyPath | None = None,
    mode: Mode | None = None,
    rerank: str | None = None,
    n_retrieved: int | None = None,
    ensemble: Ensemble | None = None,
    distinct: bool = True,
    device: str = "auto",
    backend: Backend = "torch",
) -> Pipeline:
    """Open a pipeline folder, or an index folder as a pipeline of one stage: ``polyrank.open``.

    Args:
        path: the folder.
        model: the encoder's folder, if it has moved.
        mode: of the dense search; None: the pipeline's.
        rerank: a second stage for an index; a pipeline has its own.
        n_retrieved, ensemble: with ``rerank``, see ``TwoStage``.
        distinct: return each text once.
        device: for networks.
        backend: of every model, see ``polyrank.load``.

    Raises:
        ArtifactError: the folder is neither, or something in it is damaged.
        UsageError: a model is missing, the folder has a second stage already, or no stage has one of the settings.
    """
    ref = resolve_answering(
        path,
        model=model,
        mode=mode,
        rerank=rerank,
        n_retrieved=n_retrieved,
        ensemble=ensemble,
        distinct=distinct,
        backend=backend,
    )
    config = ref.config
    abstention = None
    if config.measure is not None and config.threshold is not None:
        abstention = Abstention(config.measure, config.threshold)
    with ExitStack() as opened:  # closes the retriever if it is refused
        retriever = opened.enter_context(make_retriever(config, distinct=distinct, device=device, backend=backend))
        for name, expected in ref.seen.get("fingerprints", {}).items():
            if (actual := retriever.fingerprints().get(name)) != expected:
                raise ArtifactError(
                    f"the settings of {path} were chosen with another {name} (fingerprint {expected[:12]}, now"
                    f" {str(actual)[:12]}); choose them again with polyrank pipeline create --overwrite"
                )
        opened.pop_all()
    open_encoder = partial(encoder_of_index, device=device, backend=backend)
    return Pipeline(retriever, abstention, open_encoder=open_encoder)


def catalogue(path: Path) -> list[Candidate]:
    """All candidates of an index folder, or of a pipeline's index."""
    with open_index(resolve_answering(path).config.index) as opened:
        return [candidate for _, candidate in opened.iter_candidates()]


def read_mode(name: str | None) -> Mode | None:
    """Validate the name of a search mode.

    Raises:
        UsageError: the mode is unknown.
    """
    if name is None:
        return None
    mode: Mode = read_choice(name, Mode, "way to search")
    return mode


def make_retriever(
    config: PipelineConfig, *, distinct: bool = True, device: str = "auto", backend: Backend = "torch"
) -> Answering:
    """The stages of a pipeline; paths are absolute or relative to the working directory.

    Args:
        config: the settings.
        distinct: see ``Retriever``.
        device: for networks and the search of a local index.
        backend: of every model, see ``polyrank.load``.
    """
    retriever: Answering
    with ExitStack() as opened:  # closes the index if a model is missing or another one
        index = opened.enter_context(open_index(Path(config.index)))
        if config.retriever == "dense":
            model = None if config.model is None else Path(config.model)
            encoder = encoder_of_index(index.model, model, device=device, backend=backend)
            searched_on = str(choose_device(device))
            retriever = Retriever(
                encoder, index, mode=config.mode, distinct=distinct, prior=config.prior, device=searched_on
            )
        else:
            lexical = BM25() if config.retriever == "bm25" else TfIdf()
            retriever = LexicalRetriever(lexical, index, distinct=distinct, prior=config.prior)
        if config.reranker is not None:
            reranker = open_model(resolve_model(config.reranker, backend=backend), device=device)
            retriever = TwoStage(retriever, reranker, n_retrieved=config.n_retrieved, ensemble=config.ensemble)
        opened.pop_all()
    return retriever


def write_pipeline(
    path: Path, config: PipelineConfig, tuning: dict[str, Any] | None = None, *, replace: bool = False
) -> None:
    """Write a pipeline folder.

    Args:
        path: the folder to make.
        config: its settings; paths are relative to the working directory.
        tuning: the figures by which the settings were chosen.
        replace: whether an earlier pipeline may be replaced.
    """
    names = {
        name: portable_name(value, path)
        for name in ("index", "model", "reranker")
        if (value := getattr(config, name)) is not None
    }
    document = seal({"pipeline": asdict(config) | names, "seen": tuning or {}}, PIPELINE)
    with new_folder(path, replace=replace) as folder:
        (folder / PIPELINE.file).write_bytes(document)
