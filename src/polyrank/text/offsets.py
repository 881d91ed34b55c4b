"""Where each token comes from: which text, and which characters of it.

The text policy itself is run, on texts and ids that remember where they come from, so these are the very ids that a
network reads. This module knows nothing of networks.
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
    """Characters of a text.

    Args:
        kind: a turn, a fact of the background, or the candidate.
        number: of the turn or the fact, oldest first.
        start, end: the characters ``text[start:end]``.
    """

    kind: Kind
    number: int
    start: int
    end: int


Spans = list[Span | None]
"""One for each token; None for those of no text: boundaries, separators, prefixes and prompts."""


def context_spans(texts: Texts, context: Context) -> tuple[list[int], Spans]:
    """``texts.context_ids(context)``, and where each id comes from."""
    return _split(_tracing(texts).context_ids(_marked(context)))


def candidate_spans(texts: Texts, candidate: str) -> tuple[list[int], Spans]:
    """``texts.candidate_ids(candidate)``, and where each id comes from."""
    return _split(_tracing(texts).candidate_ids(_Text.of(candidate, "candidate", 0)))


def pair_spans(texts: Texts, context: Context, candidate: str) -> tuple[list[int], Spans]:
    """The ids of ``texts.pair_ids(context, candidate)``, and where each comes from."""
    return _split(_tracing(texts).pair_ids(_marked(context), _Text.of(candidate, "candidate", 0))[0])


def text_spans(texts: Texts, text: str) -> list[tuple[int, int]]:
    """Start and end of each token of a text by itself, all of it."""
    whole = _Text.of(text, "turn", 0)
    spans = (whole.span(start, end) for _, start, end in texts.subwords.encode_spans(text))
    return [(span.start, span.end) for span in spans if span is not None]


class _Text(str):
    """A text that knows which one it is, also behind what is put before it."""

    kind: Kind
    number: int
    before: int  # characters that are not its own

    @classmethod
    def of(cls, text: str, kind: Kind, number: int, before: int = 0) -> "_Text":
        marked = cls(text)
        marked.kind, marked.number, marked.before = kind, number, before
        return marked

    def __radd__(self, prefix: str) -> "_Text":
        return _Text.of(prefix + str(self), self.kind, self.number, self.before + len(prefix))

    def span(self, start: int, end: int) -> Span | None:
        start = max(start, self.before)
        while start < end - 1 and self[start].isspace():  # of tokens that begin with the space before a word
            start += 1
        if start >= end:
            return None
        return Span(self.kind, self.number, start - self.before, end - self.before)


class _Id(int):
    """An id that knows where it comes from."""

    span: Span | None

    @classmethod
    def of(cls, token: int, span: Span | None) -> "_Id":
        marked = cls(token)
        marked.span = span
        return marked


class _TracingSubwords:
    """A vocabulary whose ids of marked texts are marked."""

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
    """The same policy, which marks ids and counts nothing as cut."""
    traced: Any = copy(texts)
    traced.subwords = _TracingSubwords(texts.subwords)
    traced.cut = Cut(texts.cut.max_context_tokens, texts.cut.max_candidate_tokens)
    return traced  # type: ignore[no-any-return]  # whatever kind of texts it is


def _marked(context: Context) -> Context:
    return Context(
        tuple(_Text.of(turn, "turn", number) for number, turn in enumerate(context.turns)),
        tuple(_Text.of(fact, "background", number) for number, fact in enumerate(context.background)),
    )


def _split(ids: Sequence[int]) -> tuple[list[int], Spans]:
    return [int(token) for token in ids], [getattr(token, "span", None) for token in ids]
