"""Records of use: a Shown list of replies and its Outcome, validated on creation.

Plain frozen dataclasses; this module opens no files.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, get_args

from polyrank.data.values import is_number
from polyrank.errors import DataError
from polyrank.records import Context

Action = Literal["taken", "edited", "refused"]
ACTIONS: tuple[Action, ...] = get_args(Action)
MAX_ID_CHARACTERS = 512
MAX_REPLIES = 1000
MAX_CHARACTERS = 1_000_000  # of all texts of a record, so that an exported line stays within the readers' limit


def now() -> datetime:
    """The current time in UTC."""
    return datetime.now(UTC)


def in_utc(time: datetime) -> datetime:
    """A time in UTC; a time without a zone is interpreted as UTC.

    Raises:
        DataError: the value is not a datetime, or UTC cannot express it.
    """
    if not isinstance(time, datetime):
        raise DataError(f"time {time!r} is not a datetime; pass one, or omit it for the current time")
    try:
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except OverflowError as error:
        raise DataError(f"time {time.isoformat()} lies outside the years 1 to 9999 in UTC; write one inside") from error


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply that was shown.

    Args:
        id: of the candidate.
        score: raw; None: unknown.
        text: None: unknown or not kept.

    Raises:
        DataError: the id is empty or too long, the text is empty, or the score is not a finite number.
    """

    id: str
    score: float | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        _check_id("a reply's id", self.id)
        if self.text is not None:
            _check_texts("the text of a reply", [self.text])
        if self.score is not None and not (is_number(self.score) and abs(self.score) <= sys.float_info.max):
            raise DataError(f"the score {self.score!r} of reply {self.id!r} is not a finite number; omit it")


@dataclass(frozen=True, slots=True)
class Shown:
    """The replies that a user was shown.

    Args:
        request_id: unique id of the request.
        replies: in the order shown, with distinct ids; empty: polyrank found no good answer.
        context: the context that they reply to; None: unknown or not kept.
        conversation: id of the conversation that the request belongs to; empty: unknown.
        model: name of the model that answered.
        fingerprint: of its weights.
        change: of the index, see ``polyrank.index.Index.change``; None: no index.
        time: of the answer; interpreted as UTC if it has no zone.

    Raises:
        DataError: names the value, the limit and the fix.
    """

    kind: ClassVar[Literal["shown"]] = "shown"

    request_id: str
    replies: tuple[Reply, ...]
    context: Context | None = None
    conversation: str = ""
    model: str = ""
    fingerprint: str = ""
    change: int | None = None
    time: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        _check_id("a request's id", self.request_id)
        for what, name in (("a conversation", self.conversation), ("a model", self.model)):
            if name:
                _check_id(f"the name of {what}", name)
        if self.fingerprint:
            _check_id("a fingerprint", self.fingerprint)
        if self.change is not None and (type(self.change) is not int or self.change < 0):
            raise DataError(f"the index's change {self.change!r} is not an integer from 0; omit it without an index")
        object.__setattr__(self, "replies", tuple(self.replies))
        if len(self.replies) > MAX_REPLIES:
            raise DataError(
                f"request {self.request_id!r} shows {len(self.replies):,} replies, the limit is {MAX_REPLIES:,}; send"
                " only the replies that the user saw"
            )
        ids = [reply.id for reply in self.replies]
        if len(set(ids)) < len(ids):
            twice = next(id_ for i, id_ in enumerate(ids) if id_ in ids[:i])
            raise DataError(f"request {self.request_id!r} shows reply {twice!r} twice; send each reply once")
        texts = [reply.text for reply in self.replies if reply.text is not None]
        if self.context is not None:
            if not self.context.turns:
                raise DataError(
                    f"the context of request {self.request_id!r} has no turns; add one, or omit the context"
                )
            _check_texts("a turn", self.context.turns)
            _check_texts("a background line", self.context.background)
            texts += [*self.context.turns, *self.context.background]
        _check_length(self.request_id, texts)
        object.__setattr__(self, "time", in_utc(self.time))

    def rank(self, reply_id: str | None) -> int | None:
        """The position of a reply, counted from 1; None: it was not shown.

        >>> Shown("r", (Reply("a"), Reply("b"))).rank("b")
        2
        """
        return next((rank for rank, reply in enumerate(self.replies, 1) if reply.id == reply_id), None)

    def content(self, *, with_texts: bool = True) -> dict[str, Any]:
        """All fields except the request and the time, ready for JSON; without texts: None in their place."""
        context = self.context if with_texts else None
        return {
            "context": None if context is None else [context.turns, context.background],
            "replies": [(reply.id, reply.score, reply.text if with_texts else None) for reply in self.replies],
            "conversation": self.conversation,
            "model": self.model,
            "fingerprint": self.fingerprint,
            "change": self.change,
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """A record of the user's action on the shown replies.

    Args:
        request_id: of the Shown.
        action: "taken": the user sent a reply unchanged; "edited": after changes; "refused": used none of them.
        reply_id: the reply that was taken or edited.
        final_text: the text that the user sent, after editing a reply or instead of the refused replies.
        time: of the action; interpreted as UTC if it has no zone.

    Raises:
        DataError: names the value, the limit and the fix.
    """

    kind: ClassVar[Literal["outcome"]] = "outcome"

    request_id: str
    action: Action
    reply_id: str | None = None
    final_text: str | None = None
    time: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        _check_id("a request's id", self.request_id)
        if self.action not in ACTIONS:
            raise DataError(f"action {self.action!r} is unknown; use {', '.join(ACTIONS)}")
        if (self.reply_id is None) != (self.action == "refused"):
            remedy = "omit its id" if self.reply_id is not None else "add its id"
            which = "refused names a reply" if self.reply_id is not None else f"{self.action} names no reply"
            raise DataError(f"request {self.request_id!r}: {which}; {remedy}")
        if self.reply_id is not None:
            _check_id("a reply's id", self.reply_id)
        if self.final_text is not None:
            if self.action == "taken":
                raise DataError(f"request {self.request_id!r}: taken with a final text; omit it, or send edited")
            _check_texts("the final text", [self.final_text])
            _check_length(self.request_id, [self.final_text])
        object.__setattr__(self, "time", in_utc(self.time))

    def content(self, *, with_texts: bool = True) -> dict[str, Any]:
        """As ``Shown.content``."""
        return {"action": self.action, "reply_id": self.reply_id, "final_text": self.final_text if with_texts else None}


@dataclass(frozen=True, slots=True)
class RequestFeedback:
    """A Shown and, if it was recorded, its Outcome.

    Args:
        shown, outcome: as recorded, without texts that were not kept.
        context_code: of the context, see ``context_code``; None: the context is unknown.
    """

    shown: Shown
    outcome: Outcome | None = None
    context_code: str | None = None

    @property
    def rank(self) -> int | None:
        """Position of the reply that was taken or edited, counted from 1; None: no reply was."""
        return None if self.outcome is None else self.shown.rank(self.outcome.reply_id)


def _check_id(what: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{what} is {value!r}; it needs 1 to {MAX_ID_CHARACTERS} characters")
    if len(value) > MAX_ID_CHARACTERS:
        raise DataError(f"{what} has {len(value):,} characters, the limit is {MAX_ID_CHARACTERS}; shorten it")
    _check_texts(what, [value])


def _check_texts(what: str, values: Sequence[object]) -> None:
    for value in values:
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{what} is {value!r}; use a non-empty string")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{what} contains a lone surrogate at {error.start}; use valid Unicode") from error


def _check_length(request_id: str, texts: Sequence[str]) -> None:
    if (n := sum(map(len, texts))) > MAX_CHARACTERS:
        raise DataError(
            f"the texts of request {request_id!r} have {n:,} characters, the limit is {MAX_CHARACTERS:,}; shorten them"
        )
