"""Determine the agents: from the user's option, else from the roles in the file, else from the senders' names."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from polyrank_chats.columns import listed
from polyrank_chats.errors import DataError
from polyrank_chats.messages import Message
from polyrank_chats.names import NAMES

AGENT, CUSTOMER, BOT = "agent", "customer", "bot"
SYSTEM_WORDS = {"system", "developer", "tool", "function", "service message", "notification", "event", "observation"}


@lru_cache(maxsize=2**12)
def part_of(word: str) -> str | None:
    """The part that a role or a name implies: agent, customer, bot, or None.

    >>> part_of("assistant"), part_of("end-user"), part_of("Customer Support"), part_of("Help desk"), part_of("Ann")
    ('agent', 'customer', 'agent', 'agent', None)
    """
    found = set(re.findall(r"[^\W_\d]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", word).casefold()))
    if found.intersection(NAMES["bots"]):
        return BOT
    if found.intersection(NAMES["agents"]):  # before CUSTOMER, for "customer service"
        return AGENT
    return CUSTOMER if found.intersection(NAMES["customers"]) else None


def is_system(message: Message) -> bool:
    """Whether the sender is a system, not a participant of the conversation."""
    return (message.role or message.sender).strip().casefold() in SYSTEM_WORDS


def speakers(
    messages: Sequence[Message], agents: Sequence[str], note: Callable[[str], None], where: object
) -> list[str]:
    """The speaker of each message: agent, customer or bot; or the sender's name if no agent is found.

    Args:
        messages: all messages of a file.
        agents: names, ids or roles of agents; empty: detected.
        note: called with a note about the detected agents.
        where: the file, for messages.

    Raises:
        DataError: one of ``agents`` is not a sender.
    """
    if agents:
        return _by_name(messages, agents, where)
    labels = [message.role if message.role and part_of(message.role) else message.sender for message in messages]
    parts = {label: part_of(label) for label in set(labels)}
    if AGENT not in parts.values() and CUSTOMER in {part for label, part in parts.items() if label.lower() != "user"}:
        parts = {label: AGENT if label.lower() == "user" else part for label, part in parts.items()}  # of the help desk
    if AGENT not in parts.values() and _alone_with_bots(messages, labels, parts):
        parts = {label: AGENT if part == BOT else part for label, part in parts.items()}
    detected = Counter(label for label in labels if parts[label] == AGENT)
    if 0 < len(detected) < len(parts):
        note(f"agents by role or name: {_counted(detected)} (choose others with the option agent)")
        return [parts[label] or CUSTOMER for label in labels]
    counts = Counter(message.sender for message in messages)
    note(f"no agent found, so speakers keep their names: {_counted(counts)} (choose agents with the option agent)")
    return [message.sender for message in messages]


def _alone_with_bots(messages: Sequence[Message], labels: Sequence[str], parts: Mapping[str, str | None]) -> bool:
    """Whether most conversations with a bot have only one person, so that the bots are the agents."""
    people: dict[tuple[str, str | None], set[str]] = {}
    with_bots = set()
    for message, word in zip(messages, labels, strict=True):
        group = (message.stream, message.conversation)
        if parts[word] == BOT:
            with_bots.add(group)
        else:
            people.setdefault(group, set()).add(message.sender)
    return 2 * sum(len(people.get(group, ())) > 1 for group in with_bots) < len(with_bots)


def _by_name(messages: Sequence[Message], agents: Sequence[str], where: object) -> list[str]:
    wanted = {name.strip().casefold() for name in agents}
    names = [{name.strip().casefold() for name in (m.sender, m.sender_id, m.role) if name} for m in messages]
    known = set[str]().union(*names)
    if unknown := [name for name in agents if name.strip().casefold() not in known]:
        senders = listed(name for name, _ in Counter(message.sender for message in messages).most_common())
        raise DataError(f"{where}: has no sender {unknown[0]!r}; its senders are {senders}")
    bots = (part_of(message.role or message.sender) == BOT for message in messages)
    return [AGENT if own & wanted else BOT if bot else CUSTOMER for own, bot in zip(names, bots, strict=True)]


def _counted(counts: Counter[str]) -> str:
    """The most frequent names with their numbers of messages."""
    shown = ", ".join(f"{name} ({n:,})" for name, n in counts.most_common(5))
    return shown + (f" and {len(counts) - 5:,} more" if len(counts) > 5 else "")
