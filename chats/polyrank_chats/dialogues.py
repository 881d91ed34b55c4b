"""Build rows of dialogues from messages: sort them by time, divide streams at long pauses, and join messages.

This module does not know file formats.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import accumulate, groupby, pairwise

from polyrank_chats.errors import DataError
from polyrank_chats.messages import Message, Reason
from polyrank_chats.options import Options
from polyrank_chats.report import Report
from polyrank_chats.roles import is_system
from polyrank_chats.values import Row

PEOPLE = "people"  # the field of a row with the speakers of the senders, whose names ``importer`` replaces and removes
Talk = tuple[str, list[Message]]  # the id of a conversation and its messages
# of one conversation: every message answers all messages before it, so a longer one is an undivided stream
MAX_MESSAGES = 5_000


def conversations(messages: Sequence[Message], options: Options) -> Iterator[Talk]:
    """The ids and messages of conversations, in the order of their streams and first messages in the file.

    Args:
        messages: all messages.
        options: with the longest pause in a stream, and the report, which gets the number of repeated messages.

    Raises:
        DataError: a conversation has more than ``MAX_MESSAGES`` messages.
    """
    streams: defaultdict[str, dict[str | None, list[Message]]] = defaultdict(dict)
    in_file: defaultdict[str, list[Message]] = defaultdict(list)
    for each in messages:
        streams[each.stream].setdefault(each.conversation, []).append(each)
        in_file[each.stream].append(each)
    n_streams = Counter(name for groups in streams.values() for name in groups)
    for stream, groups in streams.items():
        falling = newest_first(groups.values(), in_file[stream])
        for name, unsorted in groups.items():
            group = in_order(unsorted, options.report, falling=falling)
            for number, part in enumerate([group] if name else divided(group, options.gap), 1):
                if len(part) > MAX_MESSAGES:
                    raise DataError(
                        f"{part[0].where}: the conversation that begins here has {len(part):,} messages, the limit is"
                        f" {MAX_MESSAGES:,}; name the column of conversations or of times"
                    )
                within = f"{stream}/{name}" if name else f"{stream}:{number}"
                yield (name if name and n_streams[name] == 1 else within), part


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
    # a message without a time stays after the one before it
    keys = [*accumulate((each.time for each in kept), lambda last, time: time or last, initial=datetime.min)][1:]
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


def dialogue(id_: str, messages: list[Message], speaker: Callable[[Message], str], report: Report) -> Row | None:
    """The row of a conversation; None if it has fewer than two turns.

    Args:
        id_: its id.
        messages: oldest first.
        speaker: returns the speaker of a message.
        report: updated with the outcome of each message.
    """
    talk = [each for each in messages if not is_system(each)]
    groups = [[*group] for _, group in groupby(talk, lambda each: (each.sender, speaker(each)))]
    report.left_out[Reason.SYSTEM] += len(messages) - len(talk)
    if len(groups) < 2:
        report.left_out[Reason.UNANSWERED] += len(talk)
        return None
    report.n_turns += len(groups)
    report.n_joined += len(talk) - len(groups)
    began = [each.time.isoformat(timespec="seconds") for each in talk if each.time][:1]
    named = [(*each.names, (each.sender, speaker(each))) for each in talk]
    return {
        "id": id_,
        **dict(zip(["time"], began, strict=False)),
        "turns": [{"speaker": speaker(group[0]), "text": "\n".join(each.text for each in group)} for group in groups],
        PEOPLE: {name: part for names in named for name, part in names},
    }
