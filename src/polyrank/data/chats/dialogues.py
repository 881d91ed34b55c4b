"""Messages to rows of dialogues: dated, sorted, divided where a stream falls silent, and joined.

Knows no forms of files; what a row of dialogues is, ``polyrank.data.examples`` says.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from operator import attrgetter

from polyrank.data.chats.messages import REPEATED, SYSTEM, UNANSWERED, Message
from polyrank.data.chats.roles import is_system
from polyrank.data.rows import Row
from polyrank.errors import DataError

MAX_MESSAGES = 5_000
"""Of one conversation: each is answered by the next with all before it, so a longer one is several without borders."""


@dataclass(frozen=True, slots=True)
class DatedMessage:
    """A message with its time, and as whom its sender spoke."""

    message: Message
    time: datetime | None
    speaker: str


@dataclass(slots=True)
class Counts:
    """What became of the messages."""

    n_turns: int = 0
    n_joined: int = 0
    n_background: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


def dialogues(
    said: Sequence[DatedMessage], counts: Counts, *, join: bool, gap: timedelta, keep_system: bool
) -> Iterator[Row]:
    """Rows of dialogues, in the order in which their first messages stand in the file.

    Args:
        said: all messages.
        counts: where what becomes of them is counted.
        join: make one turn of what a sender says without being interrupted.
        gap: silence that ends a conversation of a stream.
        keep_system: what a system says before all others is the conversation's background.

    Raises:
        DataError: a conversation is too long to be one.
    """
    groups: dict[tuple[str, str | None], list[DatedMessage]] = {}
    for each in said:
        groups.setdefault((each.message.stream, each.message.conversation), []).append(each)
    n_streams = Counter(name for _, name in groups)
    of_stream: dict[str, list[list[DatedMessage]]] = {}
    for (stream, _), group in groups.items():
        of_stream.setdefault(stream, []).append(group)
    falling = {stream: newest_first(held) for stream, held in of_stream.items()}
    for (stream, name), unsorted in groups.items():
        group = in_order(unsorted, counts, falling=falling[stream])
        parts = (
            [(name if n_streams[name] == 1 else f"{stream}/{name}", group)]
            if name
            else [(f"{stream}:{number}", part) for number, part in enumerate(divided(group, gap), 1)]
        )
        for id_, part in parts:
            if len(part) > MAX_MESSAGES:
                raise DataError(
                    f"{part[0].message.where}: the conversation that begins here has {len(part):,} messages, over"
                    f" {MAX_MESSAGES:,}; name the column of conversations or of times"
                )
            row = dialogue(id_, part, counts, join=join, keep_system=keep_system)
            if row is not None:
                yield row


def newest_first(groups: Iterable[Sequence[DatedMessage]]) -> bool:
    """Whether times fall from message to message far more often than they rise."""
    pairs = [(a.time, b.time) for group in groups for a, b in pairwise(group) if a.time and b.time]
    return sum(a > b for a, b in pairs) > 2 * sum(a < b for a, b in pairs)


def in_order(group: list[DatedMessage], counts: Counts, *, falling: bool) -> list[DatedMessage]:
    """By time, oldest first; where times are equal, as in the file, or the other way where its newest come first.

    What a sender repeats at one time is left out.
    """
    known: dict[object, DatedMessage] = {}
    for each in group:
        known.setdefault((each.time, each.message.sender, each.message.text) if each.time else id(each), each)
    kept = list(known.values())
    counts.left_out[REPEATED] += len(group) - len(kept)
    if falling:
        kept.reverse()
    latest = datetime.min
    keys = []
    for each in kept:
        latest = each.time or latest  # one without a time stays behind the one before it
        keys.append(latest)
    return [kept[i] for i in sorted(range(len(kept)), key=keys.__getitem__)]


def divided(said: Iterable[DatedMessage], gap: timedelta) -> Iterator[list[DatedMessage]]:
    """A stream's conversations: one ends where nobody says anything for so long."""
    part: list[DatedMessage] = []
    last: datetime | None = None
    for each in said:
        if part and each.time and last and each.time - last > gap:
            yield part
            part = []
        part.append(each)
        last = each.time or last
    if part:
        yield part


def dialogue(id_: str, said: list[DatedMessage], counts: Counts, *, join: bool, keep_system: bool) -> Row | None:
    """The row of a conversation; None where nobody answers."""
    talk = [each for each in said if not is_system(each.message)]
    background = [each.message.text for each in said[: said.index(talk[0])]] if talk and keep_system else []
    turns = list(_turns(talk, join=join))
    counts.left_out[SYSTEM] += len(said) - len(talk) - len(background)
    if len(turns) < 2:
        counts.left_out[UNANSWERED] += len(talk)
        counts.left_out[SYSTEM] += len(background)
        return None
    counts.n_turns += len(turns)
    counts.n_joined += len(talk) - len(turns)
    counts.n_background += len(background)
    began = next((each.time for each in talk if each.time), None)
    row: Row = {"id": id_}
    if began is not None:
        row["time"] = began.isoformat(timespec="seconds")
    if background:
        row["background"] = background
    return row | {"turns": turns}


def _turns(talk: list[DatedMessage], *, join: bool) -> Iterator[dict[str, str]]:
    groups = (list(group) for _, group in groupby(talk, attrgetter("message.sender", "speaker")))
    for group in groups if join else ([each] for each in talk):
        yield {"speaker": group[0].speaker, "text": "\n".join(each.message.text for each in group)}
