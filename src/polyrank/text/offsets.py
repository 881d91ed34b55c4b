"""The origin of each token: its text and its characters.

The tracer runs the text policy itself on strings and ids that record their origin, so the ids are exactly those that
the network gets. This module does not know networks.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal

from polyrank.records import Context
from polyrank.text.cut import Cut
from polyrank.text.texts import Texts, Vocabulary

Kind = Literal["turn", "background", "candidate"]


@dataclass(frozen=True, slots=True)
class Span:
    """A range of characters of a text.

    Args:
        kind: a turn, a background fact, or the candidate.
        number: index of the turn or fact, oldest first.
        start, end: the characters ``text[start:end]``.
    """

    kind: Kind
    number: int
    start: int
    end: int


Spans = list[Span | None]
"""The origin of each token; None for boundaries, separators, prefixes and prompts."""


def context_spans(texts: Texts, context: Context) -> tuple[list[int], Spans]:
    """``texts.context_ids(context)``, and the origin of each id."""
    return _split(_tracing(texts.of_side("context")).context_ids(_traced(context)))


def candidate_spans(texts: Texts, candidate: str) -> tuple[list[int], Spans]:
    """``texts.candidate_ids(candidate)``, and the origin of each id."""
    return _split(_tracing(texts.of_side("candidate")).candidate_ids(_Text.of(candidate, "candidate", 0)))


def pair_spans(texts: Texts, context: Context, candidate: str) -> tuple[list[int], Spans]:
    """The ids of ``texts.pair_ids(context, candidate)``, and the origin of each."""
    return _split(_tracing(texts).pair_ids(_traced(context), _Text.of(candidate, "candidate", 0))[0])


def text_spans(texts: Texts, text: str) -> list[tuple[int, int]]:
    """Start and end of each token of a single text without a budget."""
    whole = _Text.of(text, "turn", 0)
    spans = (whole.span(start, end) for _, start, end in texts.subwords.encode_spans(text))
    return [(span.start, span.end) for span in spans if span is not None]


class _Text(str):
    """A string that records which text it is, even after a prefix is added."""

    kind: Kind
    number: int
    n_prefix: int  # characters of the prefix

    @classmethod
    def of(cls, text: str, kind: Kind, number: int, n_prefix: int = 0) -> "_Text":
        traced = cls(text)
        traced.kind, traced.number, traced.n_prefix = kind, number, n_prefix
        return traced

    def __radd__(self, prefix: str) -> "_Text":
        return _Text.of(prefix + str(self), self.kind, self.number, self.n_prefix + len(prefix))

    def span(self, start: int, end: int) -> Span | None:
        start = max(start, self.n_prefix)
        while start < end - 1 and self[start].isspace():  # some tokens begin with the space before a word
            start += 1
        if start >= end:
            return None
        return Span(self.kind, self.number, start - self.n_prefix, end - self.n_prefix)


class _Id(int):
    """An id that records its origin."""

    span: Span | None

    @classmethod
    def of(cls, token: int, span: Span | None) -> "_Id":
        traced = cls(token)
        traced.span = span
        return traced


class _TracingSubwords:
    """A vocabulary that returns ids with their origin for ``_Text`` strings."""

    def __init__(self, subwords: Vocabulary) -> None:
        self.subwords = subwords

    def __getattr__(self, name: str) -> Any:
        return getattr(self.subwords, name)

    def encode(self, text: str) -> tuple[int, ...]:
        if not isinstance(text, _Text):
            return self.subwords.encode(text)
        return tuple(
            _Id.of(token, text.span(start, end)) for token, start, end in self.subwords.encode_spans(str(text))
        )


def _tracing(texts: Texts) -> Texts:
    """A copy of the policy whose ids record their origin; ``texts.cut`` does not count the traced texts."""
    tracing: Any = copy(texts)
    tracing.subwords = _TracingSubwords(texts.subwords)
    tracing.cut = Cut(
        texts.cut.max_context_tokens,
        texts.cut.max_candidate_tokens,
        texts.cut.max_background_tokens,
        texts.cut.max_earlier_tokens,
    )
    return tracing  # type: ignore[no-any-return]  # a copy of texts


def _traced(context: Context) -> Context:
    return Context(
        tuple(_Text.of(turn, "turn", number) for number, turn in enumerate(context.turns)),
        tuple(_Text.of(fact, "background", number) for number, fact in enumerate(context.background)),
    )


def _split(ids: Sequence[int]) -> tuple[list[int], Spans]:
    return [int(token) for token in ids], [getattr(token, "span", None) for token in ids]
