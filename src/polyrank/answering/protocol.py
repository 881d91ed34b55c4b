"""The protocol of what answers contexts with replies, such as an open index, and its answers."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polyrank.answering.choice import Choice
from polyrank.answering.diversity import N_BEST, Similarity, choose_diverse, vector_similarity, word_similarity
from polyrank.config.checked import whole_number
from polyrank.data.language import LANGUAGE_FIELD, detect
from polyrank.data.small_talk import small_talk
from polyrank.errors import UsageError
from polyrank.index import Filter, Index, as_filter
from polyrank.index.filters import fields_of, read_filter
from polyrank.notebook import table
from polyrank.ranking.frames import data_frame
from polyrank.records import Candidate, Context, ContextLike, Ranked, contexts_of
from polyrank.scorers.explanation import Explanation
from polyrank.scorers.protocols import Encoder, Floats, Scorer
from polyrank.slots import GAPS_FIELD, fill, slots_in, values_of
from polyrank.storage.closing import Closing

N_FIRST = 1000
"""Candidates whose languages are those of the catalogue; a catalogue starts with the most frequent replies."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Replies to one context.

    Args:
        ranked: best first, even if none is good enough.
        confidence: in the best one; None without a calibrated threshold.
        abstained: whether no reply is good enough.
        exact: whether these are proven to be the best of the index; None if unknown.
        n_scored: how many candidates were scored in full; None if unknown.
        ways: how the search was done, see ``polyrank.search.Result``; empty if unknown.
        notes: remarks for the user, such as a filter on a field that no candidate has.
        request_id: identifies the answer of a server, for feedback; empty: not from a server.
    """

    ranked: tuple[Ranked, ...]
    confidence: float | None
    abstained: bool
    exact: bool | None = None
    n_scored: int | None = None
    ways: tuple[str, ...] = ()
    request_id: str = ""
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str | None:
        """The best reply; None if none is good enough."""
        return None if self.abstained else self.ranked[0].text

    def to_pandas(self) -> Any:
        """A pandas DataFrame with a row for each reply: ``id``, ``text``, ``score``, the stages, and the metadata.

        Raises:
            UsageError: pandas is not installed.
        """
        own = [{"id": one.id, "text": one.text, "score": one.score} | one.stages for one in self.ranked]
        columns = ["id", "text", "score", *(name for row in own for name in row)]
        return data_frame([one.metadata | row for one, row in zip(self.ranked, own, strict=True)], columns)

    def _repr_html_(self) -> str:
        """The answer as a table, for notebooks."""
        stages = list(dict.fromkeys(stage for reply in self.ranked for stage in reply.stages))
        rows = [[one.text, one.score, *(one.stages.get(name, "") for name in stages), one.id] for one in self.ranked]
        return table(["reply", "score", *stages, "id"], rows, "no good answer" if self.abstained else "")


def filled(answer: Answer, context: Context) -> Answer:
    """An answer whose replies have the values of their slots, from the context; see ``polyrank.slots``."""
    if not any(slots_in(reply.template) for reply in answer.ranked):
        return answer
    values, ranked = values_of(context), []
    for reply in answer.ranked:
        gaps = reply.metadata.get(GAPS_FIELD)
        text, slots = fill(reply.template, values, gaps if isinstance(gaps, list) else ())
        ranked.append(replace(reply, text=text, slots=slots))
    return replace(answer, ranked=tuple(ranked))


def _in_language(filter: Filter | None, code: str) -> Filter:
    """A filter with the condition that a candidate is in a language, or its language is unknown."""
    own = f'({LANGUAGE_FIELD} = "{code}" or not exists {LANGUAGE_FIELD})'
    return read_filter(own if filter is None else f"({filter}) and {own}")


class Answering(Closing):
    """Answers contexts with replies. ``close``, or the end of a ``with`` block, closes its index.

    Attributes:
        scorer: determines the final order of the replies.
        encoder: makes the vectors of the index; None: no stage encodes.
        index: the candidates; None: a list in memory.
        n_stages: number of stages.
    """

    scorer: Scorer
    encoder: Encoder | None
    index: Index | None
    n_stages = 1
    _known_languages: tuple[object, frozenset[str]] = None, frozenset()  # by the version of the index

    @abstractmethod
    def best(self, contexts: Sequence[Context], choice: Choice) -> list[Answer]:
        """The best replies of a choice to each context, best first, ties by row; fewer if there are fewer."""

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
        choice = Choice(max(k, N_BEST) if diverse else k, as_filter(filter), allow_echo)
        queries = contexts_of(contexts)
        answers = self._in_their_languages(queries, choice) if not any_language else self.best(queries, choice)
        if choice.filter is not None and not all(one.ranked for one in answers):
            notes = tuple(
                f"no candidate has the field {name} of the filter"
                for name, there in fields_of(choice.filter).items()
                if not self.any_passes(there)
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

    def _in_their_languages(self, queries: Sequence[Context], choice: Choice) -> list[Answer]:
        """The best replies in the language of each context, if the catalogue has several and knows this one."""
        languages = self._languages()
        codes = [detect("\n".join(query.turns)) if len(languages) > 1 else None for query in queries]
        answers: dict[int, Answer] = {}
        for code in {code if code in languages else None for code in codes}:
            numbers = [number for number, own in enumerate(codes) if (own if own in languages else None) == code]
            own = choice if code is None else replace(choice, filter=_in_language(choice.filter, code))
            answers |= zip(numbers, self.best([queries[number] for number in numbers], own), strict=True)
        for number, answer in answers.items():
            if codes[number] in languages and not answer.ranked:
                (answers[number],) = self.best([queries[number]], choice)
        return [answers[number] for number in range(len(queries))]

    def _languages(self) -> frozenset[str]:
        """The languages of the first candidates, from their metadata."""
        if self.index is None:
            return frozenset()
        self.index.refresh()
        if self._known_languages[0] != self.index.version:
            first = self.index.page(n=N_FIRST).candidates
            codes = (candidate.metadata.get(LANGUAGE_FIELD) for candidate in first)
            self._known_languages = self.index.version, frozenset(code for code in codes if isinstance(code, str))
        return self._known_languages[1]

    def any_passes(self, filter: Filter) -> bool:
        """Whether any candidate passes a filter."""
        return self.index is not None and bool(self.index.page(n=1, filter=filter).candidates)

    def vectors(self, ids: Sequence[str]) -> dict[str, Floats]:
        """Vectors of candidates by id, of candidates that have one."""
        return {} if self.index is None else self.index.vectors(ids)

    def _similarity(self, ranked: Sequence[Ranked]) -> Similarity:
        """Similarity by vectors; by words if a reply has no vector, or was removed meanwhile."""
        vectors = self.vectors([reply.id for reply in ranked])
        if any(reply.id not in vectors for reply in ranked) or not ranked:
            return word_similarity([reply.text for reply in ranked])
        return vector_similarity(np.stack([vectors[reply.id] for reply in ranked]))

    def candidate(self, id_: str) -> Candidate:
        """The candidate of an id.

        Raises:
            UsageError: no candidate has the id.
        """
        if self.index is None:
            raise UsageError(
                f"the id {id_!r} needs an index, and the candidates are a list; give the text of the reply"
            )
        self.index.refresh()
        return self.index.candidate(id_)

    def explained(self, context: Context, candidate: str, max_words: int, filter: Filter | None = None) -> Explanation:
        """How the scorer's score comes about; see ``polyrank.explain``."""
        return self.scorer.explained(context, candidate, max_words)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.scorer!r}, {self.index!r})"

    def close(self) -> None:
        if self.index is not None:
            self.index.close()
