"""Build rows of dialogues from messages: sort them by time, divide streams at long pauses, and join messages.

This module does not know file formats.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby, pairwise

from polyrank_chats.errors import DataError
from polyrank_chats.messages import Message, Reason
from polyrank_chats.options import Options
from polyrank_chats.report import Report
from polyrank_chats.roles import is_system
from polyrank_chats.values import Row

PEOPLE = "people"
"""The field of a row with the speakers of the senders, whose names ``importer`` replaces and removes."""
Talk = tuple[str, list[Message]]
"""The id of a conversation and its messages."""
MAX_MESSAGES = 5_000
"""Of one conversation: every message answers all messages before it, so a longer one is an undivided stream."""


def conversations(messages: Sequence[Message], options: Options) -> Iterator[Talk]:
    """The ids and messages of conversations, in the order of their first messages in the file.

    Args:
        messages: all messages.
        options: with the longest pause in a stream, and the report, which gets the number of repeated messages.

    Raises:
        DataError: a conversation has more than ``MAX_MESSAGES`` messages.
    """
    groups: defaultdict[tuple[str, str | None], list[Message]] = defaultdict(list)
    in_file: defaultdict[str, list[Message]] = defaultdict(list)
    for each in messages:
        groups[each.stream, each.conversation].append(each)
        in_file[each.stream].append(each)
    n_streams = Counter(name for _, name in groups)
    of_stream: defaultdict[str, list[list[Message]]] = defaultdict(list)
    for (stream, _), group in groups.items():
        of_stream[stream].append(group)
    falling = {stream: newest_first(of_stream[stream], held) for stream, held in in_file.items()}
    for (stream, name), unsorted in groups.items():
        group = in_order(unsorted, options.report, falling=falling[stream])
        parts = (
            [(name if n_streams[name] == 1 else f"{stream}/{name}", group)]
            if name
            else [(f"{stream}:{number}", part) for number, part in enumerate(divided(group, options.gap), 1)]
        )
        for id_, part in parts:
            if len(part) > MAX_MESSAGES:
                raise DataError(
                    f"{part[0].where}: the conversation that begins here has {len(part):,} messages, the limit"
                    f" is {MAX_MESSAGES:,}; name the column of conversations or of times"
                )
            yield id_, part


def newest_first(groups: Iterable[Sequence[Message]], in_file: Sequence[Message]) -> bool:
    """Whether times decrease from message to message far more often than they increase.

    Args:
        groups: the conversations of a stream; they decide unless all messages of each have the same time.
        in_file: the messages of the stream.
    """
    for held in (groups, [in_file]):
        pairs = [(a.time, b.time) for group in held for a, b in pairwise(group) if a.time and b.time]
        falling: list[bool] = [a > b for a, b in pairs if a != b]
        if falling:
            return 3 * sum(falling) > 2 * len(falling)
    return False


def in_order(group: list[Message], report: Report, *, falling: bool) -> list[Message]:
    """Sort by time, oldest first. Messages with equal times keep the order of the file, or its reverse if ``falling``.

    Identical messages of a sender at the same time are left out.
    """
    known: dict[object, Message] = {}
    for each in group:
        known.setdefault((each.time, each.sender, each.text) if each.time else id(each), each)
    kept = list(known.values())
    report.left_out[Reason.REPEATED] += len(group) - len(kept)
    if falling:
        kept.reverse()
    latest = datetime.min
    keys = []
    for each in kept:
        latest = each.time or latest  # a message without a time stays after the one before it
        keys.append(latest)
    return [kept[i] for i in sorted(range(len(kept)), key=keys.__getitem__)]


def divided(messages: Iterable[Message], gap: float) -> Iterator[list[Message]]:
    """Divide a stream into conversations at pauses longer than ``gap`` hours."""
    part: list[Message] = []
    last: datetime | None = None
    for each in messages:
        if part and each.time and last and each.time - last > timedelta(hours=gap):
            yield part
            part = []
        part.append(each)
        last = each.time or last
    if part:
        yield part


def dialogue(id_: str, messages: list[Message], speaker: Callable[[Message], str], options: Options) -> Row | None:
    """The row of a conversation; None if it has fewer than two turns.

    Args:
        id_: its id.
        messages: oldest first.
        speaker: returns the speaker of a message.
        options: with ``keep_system``, system messages before all others become its background; the report is updated.
    """
    talk = [each for each in messages if not is_system(each)]
    before = messages[: messages.index(talk[0])] if talk and options.keep_system else []
    background = [each.text for each in before]
    groups = [[*group] for _, group in groupby(talk, lambda each: (each.sender, speaker(each)))]
    turns = [{"speaker": speaker(group[0]), "text": "\n".join(each.text for each in group)} for group in groups]
    report = options.report
    report.left_out[Reason.SYSTEM] += len(messages) - len(talk) - len(background)
    if len(turns) < 2:
        report.left_out[Reason.UNANSWERED] += len(talk)
        report.left_out[Reason.SYSTEM] += len(background)
        return None
    report.n_turns += len(turns)
    report.n_joined += len(talk) - len(turns)
    report.n_background += len(background)
    began = next((each.time for each in talk if each.time), None)
    row: Row = {"id": id_}
    if began is not None:
        row["time"] = began.isoformat(timespec="seconds")
    if background:
        row["background"] = background
    named = [(*each.names, (each.sender, speaker(each))) for each in talk]
    return row | {"turns": turns, PEOPLE: {name: part for names in named for name, part in names}}
