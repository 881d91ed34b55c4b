"""An index under a ranker: it answers, and candidates may be added and removed at any time. It has one path."""

import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.answering.build import add_to_index
from polyrank.answering.choice import Choice, search_until_kept
from polyrank.answering.explain import explain
from polyrank.answering.protocol import Answer, Answering
from polyrank.config.checked import read_choice
from polyrank.data.pool import CandidateLike, pool_of
from polyrank.devices.choice import choose_device
from polyrank.errors import UsageError
from polyrank.index import (
    COUNT_FIELD,
    Filter,
    Index,
    IndexWriter,
    as_count,
    check_fingerprint,
    open_index,
    open_writer,
)
from polyrank.loading.models import Backend, model_exists, resolve_encoder
from polyrank.ranking.abstention import N_SCORES, confidence
from polyrank.ranking.top import top_rows
from polyrank.records import Candidate, Context, ContextLike, Ranked
from polyrank.scorers.explanation import Explanation
from polyrank.scorers.open import encoder_of, open_ranking
from polyrank.scorers.protocols import Encoder, Floats, Scorer, check_finite
from polyrank.scorers.ranker import Ranker, as_ranker
from polyrank.scorers.two_stage import below
from polyrank.search import Mode, NearestSearch, Result
from polyrank.storage.durable import AnyPath
from polyrank.storage.forks import new_lock

log = logging.getLogger("polyrank")


class Replies(Answering):
    """The candidates of an index, ranked.

    Changes that other processes make in the index show in the next answer. The first change made here locks the index;
    ``close``, or the end of a ``with`` block, releases the lock.

    Args:
        scorer: an encoder, or a ranker with one.
        index: candidates encoded by it, local or on a server.
        mode: of the search: "exact" returns the best replies; "approximate" nearly the best, by the index's
            inner-product index. See ``polyrank.search.search``.
        distinct: return each text once, with the id of its best candidate.
        device: for the search of a local index.

    Raises:
        UsageError: the scorer has no vectors.
        ArtifactError: the index was made by another encoder.
    """

    encoder: Encoder
    index: Index
    scorer: Ranker

    def __init__(
        self, scorer: Scorer, index: Index, *, mode: Mode = "exact", distinct: bool = True, device: str = "cpu"
    ) -> None:
        self.scorer, self.index = as_ranker(scorer), index
        self.encoder = encoder_of(self.scorer)
        check_fingerprint(index.fingerprint, self.encoder.fingerprint, index.path)
        if self.scorer.prior and not any(COUNT_FIELD in c.metadata for c in index.page(n=50).candidates):
            log.warning("%s has no counts, which its ranker adds; set them by polyrank index update-counts", index.path)
        self.mode, self.distinct, self.device = mode, distinct, device
        self.n_stages = 2 if self.scorer.rerankers else 1
        self._writer: IndexWriter | None = None
        self._writer_lock = new_lock()  # threads must not open two
        self._closed = False

    def best(self, contexts: Sequence[Context], choice: Choice) -> list[Answer]:
        """The best replies to each context, and whether the best one is good enough; see ``Answering``.

        The threshold applies to the best reply of the choice. Many contexts at once are faster than one by one.
        """
        if self._closed:
            raise UsageError("the index is closed; open it again with polyrank.open")
        ranker, rule = self.scorer, self.scorer.abstention
        k = choice.k if rule is None else max(choice.k, N_SCORES)
        if ranker.rerankers:
            k = max(k, ranker.n_retrieved)
        answers = self._searched(contexts, replace(choice, k=k))
        if ranker.rerankers:
            answers = self._reranked(contexts, answers)
        if rule is None:
            return [replace(answer, ranked=answer.ranked[: choice.k]) for answer in answers]
        judged = []
        for answer in answers:
            scores = [reply.score for reply in answer.ranked]
            sure, abstained = confidence(scores, rule.measure), rule.abstains(scores)
            judged.append(replace(answer, ranked=answer.ranked[: choice.k], confidence=sure, abstained=abstained))
        return judged

    def _searched(self, contexts: Sequence[Context], choice: Choice) -> list[Answer]:
        """The best by the terms that are searched."""
        self.index.refresh()
        vectors, mask = self.encoder.encode_contexts(contexts)
        at_once = self._search(vectors, mask, choice.k, choice.filter)

        def answer(i: int, context: Context) -> Answer:
            def search(n: int) -> tuple[list[Ranked], Result]:
                return at_once[i] if n == choice.k else self._search(vectors[[i]], mask[[i]], n, choice.filter)[0]

            keep = partial(choice.of, context=context, distinct=self.distinct)
            ranked, result = search_until_kept(search, keep, choice.k)
            return Answer(tuple(ranked), None, not ranked, result.exact, result.n_scored, result.ways)

        return [answer(i, context) for i, context in enumerate(contexts)]

    def _search(
        self, vectors: Floats, mask: NDArray[np.bool_], k: int, filter: Filter | None
    ) -> list[tuple[list[Ranked], Result]]:
        query = NearestSearch(vectors, mask, k, self.mode, self.scorer.prior, self.device)
        return [
            ([Ranked(c.id, c.text, float(s), c.metadata) for c, s in zip(found, result.scores, strict=True)], result)
            for found, result in self.index.search(query, filter)
        ]

    def _reranked(self, contexts: Sequence[Context], answers: Sequence[Answer]) -> list[Answer]:
        """The ``n_retrieved`` best of each answer by all terms, then the rest in the order of the search."""
        n, ranker = self.scorer.n_retrieved, self.scorer
        texts = [[reply.text for reply in answer.ranked[:n]] for answer in answers]
        results = []
        for answer, second in zip(answers, ranker.scores_of(ranker.rerankers, contexts, texts), strict=True):
            check_finite(second)
            first = np.array([reply.score for reply in answer.ranked], np.float32)
            total = first[:n] + second
            ranked = [
                replace(
                    answer.ranked[i],
                    score=float(total[i]),
                    stages={"retriever": float(first[i]), "reranker": float(second[i])},
                )
                for i in top_rows(total, len(total))
            ]
            rest = below(total.min(initial=np.inf), first)[n:]
            ranked += [replace(reply, score=float(low)) for reply, low in zip(answer.ranked[n:], rest, strict=True)]
            results.append(replace(answer, ranked=tuple(ranked)))
        return results

    def __repr__(self) -> str:
        return f"{'closed ' if self._closed else ''}Replies({self.scorer!r}, {self.index!r})"

    def explained(self, context: Context, candidate: str, max_words: int, filter: Filter | None = None) -> Explanation:
        """How the ranker's score comes about, with the count of the index."""
        count = self.count(candidate, filter) if self.scorer.prior else None
        return self.scorer.explained(context, candidate, max_words, count=count)

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

        The explained score is that of the texts; scores from vectors that the index stores in bf16 or int8 differ a
        little.

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
            text = ranked[0].template
        return explain(self, context, text, max_words=max_words, filter=filter)

    def count(self, text: str, filter: Filter | None = None) -> float:
        """How often a reply was said: the largest metadata field ``count`` of the candidates with this text, or 0.

        Args:
            text: of the reply.
            filter: that the candidates pass; None: all.
        """
        most, after = 0.0, 0
        while True:
            page = self.index.page(after=after, n=1000, words=[text[:1000]], filter=filter)  # that hold the text
            counts = [as_count(c.metadata.get(COUNT_FIELD)) for c in page.candidates if c.text == text]
            most = max([most, *counts])
            if page.next is None:
                return most
            after = page.next

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
        add_to_index(self._changing(), self.scorer, new, replace=replace)
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
            both.callback(self.index.close)
            if self._writer is not None:
                both.callback(self._writer.close)
            self._writer = None
            self._closed = True

    def _changing(self) -> IndexWriter:
        with self._writer_lock:
            if self._closed:
                raise UsageError("the index is closed; open it again with polyrank.open")
            if self._writer is not None and not self._writer.is_current:
                self._writer.close()
                self._writer = None
            if self._writer is None:
                self._writer = open_writer(self.index.path)
            return self._writer


def open_replies(
    path: AnyPath,
    *,
    model: Any = None,
    mode: Mode | None = None,
    distinct: bool = True,
    device: str = "auto",
    backend: Backend = "torch",
) -> Replies:
    """Open an index folder under its model or ranker: ``polyrank.open``.

    Args:
        path: the folder.
        model: the folder of the model or ranker, if it has moved or another ranker searches the same vectors; or an
            opened one, or an object of yours with which the index was built.
        mode: of the search; None: "exact".
        distinct: return each text once.
        device: for networks and the search of a local index.
        backend: of every model, see ``polyrank.load``.

    Raises:
        ArtifactError: the folder is not an index, something in it is damaged, or the model has changed since.
        UsageError: the model is missing, or has no vectors.
    """
    if Path(path).is_file():
        raise UsageError(
            f"{path} is a file; make an index of its replies with polyrank index build MODEL {path} -o INDEX"
        )
    with ExitStack() as opened:  # closes the index if the model is missing or another one
        index = opened.enter_context(open_index(path))
        if model is None or isinstance(model, str | os.PathLike):
            model = scorer_of_index(index.model, model, device=device, backend=backend)
        searched_on = str(choose_device(device))
        replies = Replies(model, index, mode=mode or "exact", distinct=distinct, device=searched_on)
        opened.pop_all()
    return replies


def scorer_of_index(
    built_with: str, moved: AnyPath | None = None, *, device: str = "auto", backend: Backend = "torch"
) -> Scorer:
    """The model or ranker of an index.

    Args:
        built_with: the name that the index recorded.
        moved: its folder, if it has moved.
        device, backend: see ``polyrank.load``.

    Raises:
        UsageError: it does not exist.
    """
    name = str(moved or built_with)
    if not model_exists(name):
        raise UsageError(
            f"{name} does not exist, and the index needs it (it was built with {built_with}); give the folder of the"
            " model or ranker as `model`"
        )
    return open_ranking(resolve_encoder(name, backend=backend), device=device)


def catalogue(path: AnyPath) -> list[Candidate]:
    """All candidates of an index folder."""
    with open_index(path) as opened:
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
