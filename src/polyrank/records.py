"""The records that pass through polyrank: a Context to answer, an Example to train or evaluate on, a Ranked reply.

They are frozen dataclasses and do not depend on files, tokens or models.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from polyrank.errors import UsageError
from polyrank.notebook import table
from polyrank.wording import brief

SHOWN = 10
"""Candidates of an example that a notebook shows."""


@dataclass(frozen=True, slots=True)
class Context:
    """The conversation that needs a reply.

    Args:
        turns: the conversation so far, oldest first; a string is one turn.
        background: facts that hold throughout, such as persona lines; a string is one fact.

    Raises:
        TypeError: a turn or a fact is not a text.

    >>> Context("hello")
    Context(turns=('hello',), background=())
    """

    turns: tuple[str, ...]
    background: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "turns", _texts(self.turns, "turns"))
        object.__setattr__(self, "background", _texts(self.background, "background"))

    @classmethod
    def of(cls, value: "ContextLike", background: Iterable[str] = ()) -> "Context":
        """Return a Context unchanged, or build one from a turn, a list of turns, or messages (see ``turns_of``).

        >>> Context.of(["hi", "hello?"])
        Context(turns=('hi', 'hello?'), background=())
        >>> Context.of([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello?"}]).turns
        ('hi', 'hello?')

        Raises:
            TypeError: the value has another type.
            UsageError: no turn and no fact has a visible character.
        """
        if isinstance(value, Context):
            return value
        context = cls(turns_of(value), as_tuple(background, "background"))
        if not any(text.strip() for text in (*context.turns, *context.background)):
            raise UsageError("the context is empty; give it a turn with a visible character")
        return context


Message: TypeAlias = Mapping[str, Any]
"""A turn with the role of its speaker: ``{"role": "user", "content": "..."}``."""

ContextLike: TypeAlias = Context | str | Sequence[str] | Sequence[Message]
"""The type of every context argument: a turn, a list of turns or of messages (oldest first), or a Context."""

SKIPPED_ROLES = frozenset({"system", "developer", "tool", "function"})


def turns_of(value: str | Iterable[str] | Iterable[Message]) -> tuple[str, ...]:
    """The turns in a turn, a list of turns, or a list of messages.

    If the content of a message is a list of parts, its text parts are joined. Messages with the roles system,
    developer, tool and function are skipped, and so are messages without text, such as tool calls.

    Raises:
        TypeError: the value has another type.

    >>> turns_of([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}])
    ('hi',)
    """
    values = as_tuple(value, "turns")
    if not any(isinstance(turn, Mapping) for turn in values):
        return _texts(values, "turns")
    return tuple(filter(str.strip, (_message_text(turn, position) for position, turn in enumerate(values))))


def _message_text(message: object, position: int) -> str:
    """The text of a message; empty if its role is skipped."""
    match message:
        case {"role": str() as role, "content": content}:
            parts = content or ()
        case {"role": str() as role, "tool_calls": _} | {"role": str() as role, "function_call": _}:
            parts = ()
        case _:
            raise TypeError(f"turns[{position}] = {brief(message)} is not a message; give it a role and a content")
    match parts:
        case str():
            texts = [parts]
        case list() | tuple():
            texts = [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
        case _:
            raise TypeError(f"turns[{position}] has content {parts!r}; give a text or a list of parts")
    return "" if role in SKIPPED_ROLES else "\n".join(texts)


def contexts_of(values: Iterable[ContextLike]) -> list[Context]:
    """Apply ``Context.of`` to each value.

    Raises:
        TypeError: ``values`` is a single context, or one of them has another type.
        UsageError: a context is empty.
    """
    is_one = isinstance(values, str | Context | Mapping)
    values = values if is_one else list(values)
    if is_one or any(isinstance(value, Mapping) for value in values):
        raise TypeError(f"{values!r} is one context, not a list of contexts; write [{values!r}]")
    return [Context.of(value) for value in values]


@dataclass(frozen=True, slots=True, repr=False)
class Example:
    """A context with candidate replies, some of which may be right.

    Args:
        context: turns, oldest first; a string is one turn.
        candidates: texts to rank. A training pair has one candidate, its response; an example that is ranked against
            a pool may have no candidates.
        relevant: indices of the right candidates; empty if no candidate is right or the example is unlabelled.
        id: the example's name in reports.
        background: persona or other facts.
        relevant_ids: ids of the right candidates in a pool, for examples that are ranked against a pool.
        grades: how relevant each of ``relevant_ids`` is, for nDCG; empty: no grades.

    Raises:
        ValueError: an index in ``relevant`` is outside ``candidates``.
        TypeError: a value is not a text, or ``candidates`` is a single string.
    """

    context: tuple[str, ...]
    candidates: tuple[str, ...] = ()
    relevant: tuple[int, ...] = ()
    id: str = ""
    background: tuple[str, ...] = ()
    relevant_ids: tuple[str, ...] = ()
    grades: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "context", _texts(self.context, "context"))
        object.__setattr__(self, "background", _texts(self.background, "background"))
        if isinstance(self.candidates, str):
            raise TypeError(f"candidates = {self.candidates!r} is one text; write a list of candidates")
        object.__setattr__(self, "candidates", _texts(self.candidates, "candidates"))
        for index in self.relevant:
            if not 0 <= index < len(self.candidates):
                raise ValueError(
                    f"relevant index {index} is outside the {len(self.candidates)} candidates of example {self.id!r};"
                    f" use 0 to {len(self.candidates) - 1}"
                )

    def __repr__(self) -> str:
        """One line: long texts and lists are cut."""
        return f"Example({', '.join(f'{one.name}={brief(getattr(self, one.name))}' for one in fields(self))})"

    def _repr_html_(self) -> str:
        """The turns and the candidates as a table, for notebooks."""
        rows = [["background", fact] for fact in self.background] + [["turn", turn] for turn in self.context]
        rows += [["right" if n in self.relevant else "wrong", text] for n, text in enumerate(self.candidates[:SHOWN])]
        n_more = len(self.candidates) - SHOWN
        return table(["", "text"], rows, f"{self.id}, {n_more:,} more candidates" if n_more > 0 else self.id)

    @property
    def query(self) -> Context:
        """The context and the background, without the candidates."""
        context = object.__new__(Context)  # this class has checked its texts, and training makes one at every step
        object.__setattr__(context, "turns", self.context)
        object.__setattr__(context, "background", self.background)
        return context

    @property
    def response(self) -> str | None:
        """The first right candidate, or None if no candidate is right.

        >>> Example(("hi",), ("no", "hello"), (1,)).response
        'hello'
        """
        return self.candidates[self.relevant[0]] if self.relevant else None


def _texts(values: Iterable[str], name: str) -> tuple[str, ...]:
    """A string as one text, any other iterable as several."""
    if isinstance(values, tuple) and {*map(type, values)} <= {str}:  # the common case, checked once per example
        return values
    texts = as_tuple(values, name)
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{position}] = {brief(text)} is {type(text).__name__}; give a text")
    return texts


def as_tuple(values: Any, name: str) -> tuple[Any, ...]:
    """A string as one value, any other iterable as several.

    >>> as_tuple("hi", "turns"), as_tuple(["hi", "hello?"], "turns")
    (('hi',), ('hi', 'hello?'))

    Raises:
        TypeError: the value is an object or not iterable.
    """
    if isinstance(values, str):
        return (values,)
    if isinstance(values, Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"{name} = {brief(values)} is {type(values).__name__}; give a text or a list of texts")
    return tuple(values)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A reply in a catalogue or pool."""

    id: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)

    def is_same(self, other: "Candidate | None") -> bool:
        """Whether both are equal, also for filters, which distinguish ``true`` from 1.

        >>> one, other = Candidate("a", "hi", {"vip": 1}), Candidate("a", "hi", {"vip": True})
        >>> one == other, one.is_same(other)
        (True, False)
        """
        if other is None or self != other:
            return False
        return json.dumps(self.metadata, sort_keys=True) == json.dumps(other.metadata, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate with its score.

    Args:
        id, metadata: those of the candidate.
        text: of the candidate; in an answer, with the values of its slots, as far as the context has them.
        score: a raw score, not a probability; higher is better.
        stages: the score of each stage, such as ``{"retriever": 3.1, "reranker": 0.4}``.
        template: text of the candidate, with slots such as ``{order}``; empty: ``text``.
        slots: the value of each slot by its name; None: a gap, which ``text`` shows as ``{order}``.
    """

    id: str
    text: str
    score: float
    metadata: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)
    template: str = ""
    slots: dict[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "template", self.template or self.text)
