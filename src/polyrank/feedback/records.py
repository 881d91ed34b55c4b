"""What is recorded of a use: a Shown list of replies, and the Outcome, checked where they are made.

Plain frozen dataclasses; they know nothing of files.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isfinite
from typing import Literal, get_args

from polyrank.errors import DataError
from polyrank.records import Context

Action = Literal["taken", "edited", "refused"]
ACTIONS: tuple[Action, ...] = get_args(Action)
MAX_ID_CHARACTERS = 512
MAX_REPLIES = 1000
MAX_CHARACTERS = 1_000_000  # of all texts of a record together, so that a line of what is exported can be read again


def now() -> datetime:
    """This moment, in UTC."""
    return datetime.now(UTC)


def in_utc(time: datetime) -> datetime:
    """A time in UTC; one without a zone is taken for it.

    Raises:
        DataError: it is no time.
    """
    if not isinstance(time, datetime):
        raise DataError(f"time {time!r} is no datetime; give one, or leave it out for this moment")
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply that was shown.

    Args:
        id: of the candidate.
        score: raw; None: not known.
        text: None: not known, or not kept.

    Raises:
        DataError: the id is empty or too long, the text is empty, or the score is no number.
    """

    id: str
    score: float | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        _check_id("a reply's id", self.id)
        if self.text is not None:
            _check_texts("the text of a reply", [self.text])
        if self.score is not None and (
            isinstance(self.score, bool) or not isinstance(self.score, int | float) or not isfinite(self.score)
        ):
            raise DataError(f"the score {self.score!r} of reply {self.id!r} is no finite number; leave it out")


@dataclass(frozen=True, slots=True)
class Shown:
    """What somebody was shown.

    Args:
        request_id: names the request, once.
        replies: in the order in which they were shown, of distinct ids; none: there was no good answer.
        context: what they answer; None: not known, or not kept.
        conversation: whose requests belong together, as an id; empty: not known.
        model: name of what answered.
        fingerprint: of its weights.
        change: of the index, see ``polyrank.index.Index.change``; None: no index.
        time: of the answer; without a zone it is taken for UTC.

    Raises:
        DataError: names the value, the limit and what to do.
    """

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
            raise DataError(f"the index's change {self.change!r} is no number from 0; leave it out where there is none")
        object.__setattr__(self, "replies", tuple(self.replies))
        if len(self.replies) > MAX_REPLIES:
            raise DataError(
                f"request {self.request_id!r} shows {len(self.replies):,} replies, the limit is {MAX_REPLIES:,}; send"
                " those that somebody has seen"
            )
        ids = [reply.id for reply in self.replies]
        if len(set(ids)) < len(ids):
            twice = next(id_ for i, id_ in enumerate(ids) if id_ in ids[:i])
            raise DataError(f"request {self.request_id!r} shows reply {twice!r} twice; send each once")
        texts = [reply.text for reply in self.replies if reply.text is not None]
        if self.context is not None:
            if not self.context.turns:
                raise DataError(f"the context of request {self.request_id!r} has no turns; give one, or no context")
            _check_texts("a turn", self.context.turns)
            _check_texts("a line of the background", self.context.background)
            texts += [*self.context.turns, *self.context.background]
        _check_length(self.request_id, texts)
        object.__setattr__(self, "time", in_utc(self.time))

    def rank(self, reply_id: str | None) -> int | None:
        """Where a reply was shown, counted from 1; None: nowhere.

        >>> Shown("r", (Reply("a"), Reply("b"))).rank("b")
        2
        """
        return next((rank for rank, reply in enumerate(self.replies, 1) if reply.id == reply_id), None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of it.

    Args:
        request_id: of what was shown.
        action: a reply was "taken" as it stood; or "edited"; or all were "refused".
        reply_id: the reply that was taken or edited.
        final_text: what was said in the end, where it was edited; or said instead, where all were refused.
        time: of the action; without a zone it is taken for UTC.

    Raises:
        DataError: names the value, the limit and what to do.
    """

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
            remedy = "leave out its id" if self.reply_id is not None else "give its id"
            which = "refused names a reply" if self.reply_id is not None else f"{self.action} names no reply"
            raise DataError(f"request {self.request_id!r}: {which}; {remedy}")
        if self.reply_id is not None:
            _check_id("a reply's id", self.reply_id)
        if self.final_text is not None:
            if self.action == "taken":
                raise DataError(f"request {self.request_id!r}: what was taken has no final text; call it edited")
            _check_texts("the final text", [self.final_text])
            _check_length(self.request_id, [self.final_text])
        object.__setattr__(self, "time", in_utc(self.time))


@dataclass(frozen=True, slots=True)
class RequestFeedback:
    """What was shown and, where it is known, what became of it.

    Args:
        shown, outcome: as they were recorded, less the texts that were not kept.
        context_code: of the context, see ``FeedbackStore.context_code``; None: the context was not known.
    """

    shown: Shown
    outcome: Outcome | None = None
    context_code: str | None = None

    @property
    def rank(self) -> int | None:
        """Where the reply was shown that was taken or edited, counted from 1; None: none was."""
        return None if self.outcome is None else self.shown.rank(self.outcome.reply_id)


def _check_id(what: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{what} is {value!r}; give a text of 1 to {MAX_ID_CHARACTERS} characters")
    if len(value) > MAX_ID_CHARACTERS:
        raise DataError(f"{what} has {len(value):,} characters, the limit is {MAX_ID_CHARACTERS}; give a shorter one")
    _check_texts(what, [value])


def _check_texts(what: str, values: Sequence[object]) -> None:
    for value in values:
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{what} is {value!r}; give a text that is not empty")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{what} holds a lone surrogate at {error.start}; write whole characters") from error


def _check_length(request_id: str, texts: Sequence[str]) -> None:
    if (n := sum(map(len, texts))) > MAX_CHARACTERS:
        raise DataError(
            f"the texts of request {request_id!r} have {n:,} characters, the limit is {MAX_CHARACTERS:,}; send shorter"
            " ones"
        )
