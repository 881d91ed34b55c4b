"""An index under a ranker: it answers, and candidates may be added and removed at any time. It has one path."""

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from polyrank.answering.answers import Answer, filled
from polyrank.answering.build import add_to_index
from polyrank.answering.conditions import Conditions, search_until_kept
from polyrank.answering.diversity import N_BEST, Similarity, choose_diverse, vector_similarity, word_similarity
from polyrank.answering.explain import explain
from polyrank.answering.languages import Languages, in_language
from polyrank.config.checked import whole_number
from polyrank.data.pool import CandidateLike, pool_of
from polyrank.data.small_talk import small_talk
from polyrank.errors import UsageError
from polyrank.index import COUNT_FIELD, Filter, Index, IndexWriter, as_count, as_filter, check_fingerprint, open_writer
from polyrank.index.filters import fields_of
from polyrank.ranking.abstention import N_SCORES, confidence
from polyrank.ranking.top import top_rows
from polyrank.records import Candidate, Context, ContextLike, Ranked, contexts_of
from polyrank.scorers.explanation import Explanation
from polyrank.scorers.open import encoder_of
from polyrank.scorers.protocols import Encoder, Floats, Scorer, check_finite
from polyrank.scorers.ranker import as_ranker
from polyrank.scorers.two_stage import below
from polyrank.search import Mode, NearestSearch, Result
from polyrank.storage.closing import Closing
from polyrank.storage.durable import AnyPath
from polyrank.storage.forks import new_lock

log = logging.getLogger("polyrank")

WAIT_S = 5.0  # for other processes that change the index
TURN_S = 0.01  # between two changes of one process, in which others that wait get a turn


class Replies(Closing):
    """The candidates of an index, ranked.

    Changes that other processes make in the index show in the next answer. A change made here locks the index, waits
    for up to ``wait_s`` if another process changes it, and releases the lock.

    Args:
        scorer: an encoder, or a ranker with one.
        index: candidates encoded by it, local or on a server.
        mode: of the search: "exact" returns the best replies; "approximate" nearly the best, by the index's
            inner-product index. See ``polyrank.search.search``.
        distinct: return each text once, with the id of its best candidate.
        device: for the search of a local index.
        wait_s: see above.

    Raises:
        UsageError: the scorer has no vectors.
        ArtifactError: the index was made by another encoder.
    """

    def __init__(
        self,
        scorer: Scorer,
        index: Index,
        *,
        mode: Mode = "exact",
        distinct: bool = True,
        device: str = "cpu",
        wait_s: float = WAIT_S,
    ) -> None:
        self.scorer, self.index, self.wait_s = as_ranker(scorer), index, wait_s
        self.encoder: Encoder = encoder_of(self.scorer)
        check_fingerprint(index.fingerprint, self.encoder.fingerprint, index.path)
        if self.scorer.prior and not any(COUNT_FIELD in c.metadata for c in index.page(n=50).candidates):
            log.warning("%s has no counts, which its ranker adds; set them by polyrank index update-counts", index.path)
        self.mode, self.distinct, self.device = mode, distinct, device
        self.n_stages = 2 if self.scorer.rerankers else 1
        self._writer: IndexWriter | None = None
        self._released = 0.0
        self._writer_lock = new_lock()  # threads must not open two
        self._closed = False
        self._languages = Languages(index)

    def answer_all(
        self,
        contexts: Sequence[ContextLike],
        k: int = 5,
        *,
        filter: Filter | str | None = None,
        allow_echo: bool = False,
        diverse: bool = False,
        any_language: bool = False,
    ) -> list[Answer]:
        """The best ``k`` replies to each context, best first, ties by row; fewer if there are fewer candidates.

        Args:
            contexts: each one is one turn, a list of turns, oldest first, or a Context.
            k: how many.
            filter: keeps candidates whose metadata pass, such as ``lang = "en"``; see ``polyrank.read_filter``.
                None: all.
            allow_echo: also return replies that repeat a turn of the context, in the same words except for case and
                punctuation.
            diverse: replies that differ, chosen from the best 50; fewer than ``k`` if the others are near-copies,
                which differ only in names and numbers. See ``polyrank.answering.diversity.choose_diverse``.
            any_language: also return replies in other languages than the context's. By default, if the metadata field
                ``language`` of the candidates has several values, a context gets replies in its language.

        Raises:
            UsageError: ``k`` is less than one, or the filter cannot be read.
            ArtifactError: the index is damaged, or the scores are not finite.
        """
        if whole_number(k, "k") < 1:
            raise UsageError(f"k is {k}; request at least one reply")
        conditions = Conditions(max(k, N_BEST) if diverse else k, as_filter(filter), allow_echo)
        queries = contexts_of(contexts)
        answers = self._in_their_languages(queries, conditions) if not any_language else self.best(queries, conditions)
        if conditions.filter is not None and not all(one.ranked for one in answers):
            notes = tuple(
                f"no candidate has the field {name} of the filter"
                for name, there in fields_of(conditions.filter).items()
                if not self.index.page(n=1, filter=there).candidates
            )
            answers = [one if one.ranked else replace(one, notes=notes) for one in answers]
        if diverse:
            for number, (one, query) in enumerate(zip(answers, queries, strict=True)):
                talk = bool(query.turns) and small_talk(query.turns[-1]) is not None
                few = choose_diverse(one.ranked, k, self._similarity(one.ranked), small_talk=talk)
                answers[number] = replace(one, ranked=tuple(few))
        return [filled(one, context) for one, context in zip(answers, queries, strict=True)]

    def answer(
        self,
        context: ContextLike,
        k: int = 5,
        *,
        filter: Filter | str | None = None,
        allow_echo: bool = False,
        diverse: bool = False,
        any_language: bool = False,
    ) -> Answer:
        """As ``answer_all``, for one context."""
        options = {"allow_echo": allow_echo, "diverse": diverse, "any_language": any_language}
        return self.answer_all([context], k, filter=filter, **options)[0]

    def respond(
        self,
        contexts: Sequence[ContextLike],
        k: int = 5,
        *,
        filter: Filter | str | None = None,
        allow_echo: bool = False,
        diverse: bool = False,
        any_language: bool = False,
    ) -> list[list[Ranked]]:
        """As ``answer_all``, but only the replies, good enough or not."""
        options = {"allow_echo": allow_echo, "diverse": diverse, "any_language": any_language}
        answers = self.answer_all(contexts, k, filter=filter, **options)
        return [list(answer.ranked) for answer in answers]

    def _in_their_languages(self, queries: Sequence[Context], conditions: Conditions) -> list[Answer]:
        """The best replies in the language of each context; in any language if none in its own passes."""
        codes = self._languages.of(queries)
        answers: dict[int, Answer] = {}
        for code in dict.fromkeys(codes):
            numbers = [number for number, said in enumerate(codes) if said == code]
            filter = conditions.filter if code is None else in_language(conditions.filter, code)
            best = self.best([queries[number] for number in numbers], replace(conditions, filter=filter))
            answers |= zip(numbers, best, strict=True)
        for number, answer in answers.items():
            if codes[number] is not None and not answer.ranked:
                (answers[number],) = self.best([queries[number]], conditions)
        return [answers[number] for number in range(len(queries))]

    def _similarity(self, ranked: Sequence[Ranked]) -> Similarity:
        """Similarity by vectors; by words if a reply has no vector, or was removed meanwhile."""
        vectors = self.index.vectors([reply.id for reply in ranked])
        if any(reply.id not in vectors for reply in ranked) or not ranked:
            return word_similarity([reply.text for reply in ranked])
        return vector_similarity(np.stack([vectors[reply.id] for reply in ranked]))

    def candidate(self, id_: str) -> Candidate:
        """The candidate of an id.

        Raises:
            UsageError: no candidate has the id.
        """
        self.index.refresh()
        return self.index.candidate(id_)

    def best(self, contexts: Sequence[Context], conditions: Conditions) -> list[Answer]:
        """The best replies to each context, and whether the best one is good enough.

        The threshold applies to the best reply. Many contexts at once are faster than one by one.
        """
        if self._closed:
            raise UsageError("the index is closed; open it again with polyrank.open")
        ranker, rule = self.scorer, self.scorer.abstention
        k = conditions.k if rule is None else max(conditions.k, N_SCORES)
        if ranker.rerankers:
            k = max(k, ranker.n_retrieved)
        answers = self._searched(contexts, replace(conditions, k=k))
        if ranker.rerankers:
            answers = self._reranked(contexts, answers)
        if rule is None:
            return [replace(answer, ranked=answer.ranked[: conditions.k]) for answer in answers]
        judged = []
        for answer in answers:
            scores = [reply.score for reply in answer.ranked]
            sure, abstained = confidence(scores, rule.measure), rule.abstains(scores)
            judged.append(replace(answer, ranked=answer.ranked[: conditions.k], confidence=sure, abstained=abstained))
        return judged

    def _searched(self, contexts: Sequence[Context], conditions: Conditions) -> list[Answer]:
        """The best by the terms that are searched."""
        self.index.refresh()
        vectors, mask = self.encoder.encode_contexts(contexts)
        at_once = self._search(vectors, mask, conditions.k, conditions.filter)

        def answer(i: int, context: Context) -> Answer:
            def search(n: int) -> tuple[list[Ranked], Result]:
                return (
                    at_once[i] if n == conditions.k else self._search(vectors[[i]], mask[[i]], n, conditions.filter)[0]
                )

            keep = partial(conditions.of, context=context, distinct=self.distinct)
            ranked, result = search_until_kept(search, keep, conditions.k)
            return Answer(tuple(ranked), None, not ranked, result.exact, result.n_scored, result.ways)

        return [answer(i, context) for i, context in enumerate(contexts)]

    def _search(
        self, vectors: Floats, mask: NDArray[np.bool_], k: int, filter: Filter | None
    ) -> list[tuple[list[Ranked], Result]]:
        query = NearestSearch(vectors, mask, k, self.mode, self.scorer.prior, self.device)
        return [
            (
                [Ranked(c.id, c.text, float(s), c.metadata) for c, s in zip(candidates, result.scores, strict=True)],
                result,
            )
            for candidates, result in self.index.search(query, filter)
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
        self.index.refresh()
        most, after = 0.0, 0
        while True:
            page = self.index.page(after=after, n=1000, words=[text[:1000]], filter=filter)  # that hold the text
            most = max([most, *(as_count(c.metadata.get(COUNT_FIELD)) for c in page.candidates if c.text == text)])
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
            LockedError: another process is still changing the index after ``wait_s``.
            ResourceError: the disk is full; nothing was added.
        """
        new = pool_of(candidates)
        with self._changing() as writer:
            add_to_index(writer, self.scorer, new, replace=replace)
        return [candidate.id for candidate in new]

    def replace(self, candidates: Iterable[CandidateLike]) -> list[str]:
        """Add candidates, or replace those of the same ids; see ``add``."""
        return self.add(candidates, replace=True)

    def remove(self, ids: Sequence[str]) -> int:
        """Remove candidates by id, ignoring unknown ids. Returns how many were removed."""
        if isinstance(ids, str):
            raise TypeError(f"ids = {ids!r} is one id; write a list of ids")
        with self._changing() as writer:
            return writer.remove(ids)

    def snapshot(self, path: AnyPath) -> None:
        """Copy the present index into a new folder, whole or not at all.

        Raises:
            UsageError: the path exists or is inside the index.
        """
        with self._changing() as writer:
            writer.snapshot(path)

    def close(self) -> None:
        """Close the index; if a change made here started a compaction, wait for it and release the lock."""
        with self._writer_lock, ExitStack() as both:
            both.callback(self.index.close)
            both.callback(self._release)
            self._closed = True

    @contextmanager
    def _changing(self) -> Iterator[IndexWriter]:
        """The writer, for one change by one thread; closed afterwards, or when its compaction has ended."""
        with self._writer_lock:
            if self._closed:
                raise UsageError("the index is closed; open it again with polyrank.open")
            if self._writer is not None and not self._writer.is_current:
                self._release()
            if self._writer is None:
                time.sleep(max(0.0, self._released + TURN_S - time.monotonic()))
            writer = self._writer = self._writer or open_writer(self.index.path, wait_s=self.wait_s)
            try:
                yield writer
            finally:
                if not writer.is_compacting:
                    self._release()
                else:
                    threading.Thread(target=self._release_later, args=(writer,), daemon=True).start()

    def _release_later(self, writer: IndexWriter) -> None:
        writer.wait_compacted()
        with self._writer_lock:
            if self._writer is writer and not writer.is_compacting:
                self._release()

    def _release(self) -> None:
        """Close the writer, if there is one."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
            self._released = time.monotonic()
