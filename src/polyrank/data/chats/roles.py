"""Who is an agent: the ones that the user names, else by the roles that the file gives, else by the senders' names."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from polyrank.data.chats.columns import listed, words
from polyrank.data.chats.messages import Message
from polyrank.errors import DataError

AGENT, CUSTOMER, BOT = "agent", "customer", "bot"
AGENT_WORDS = frozenset(
    words(
        """
    agent agents assistant support supporter operator admin administrator staff representative rep csr advisor
    adviser employee helpdesk gpt chatgpt model outbound outgoing company business seller technician service wizard
    mitarbeiter mitarbeiterin berater beraterin kundenservice kundendienst agente conseiller operatore soporte
    """
    )
)
CUSTOMER_WORDS = frozenset(
    words(
        """
    customer client user human visitor guest requester contact lead consumer buyer patient inbound incoming
    caller enduser prompter kunde kundin cliente klant usuario utilisateur utente
    """
    )
)
BOT_WORDS = frozenset(words("bot chatbot botagent virtual automation workflow"))
SYSTEM_WORDS = {"system", "developer", "tool", "function", "service message", "notification", "event", "observation"}


def part_of(word: str) -> str | None:
    """The part that a role or a name tells of: agent, customer, bot, or None.

    >>> part_of("assistant"), part_of("end-user"), part_of("Customer Support"), part_of("Ann")
    ('agent', 'customer', 'agent', None)
    """
    said = set(re.findall(r"[^\W_\d]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", word).casefold()))
    if said & BOT_WORDS:
        return BOT
    if said & AGENT_WORDS:  # also of customer service
        return AGENT
    return CUSTOMER if said & CUSTOMER_WORDS else None


def is_system(message: Message) -> bool:
    """Whether a program said it, of a role that has no part in the conversation."""
    return (message.role or message.sender).strip().casefold() in SYSTEM_WORDS


def speakers(
    messages: Sequence[Message], agents: Sequence[str], note: Callable[[str], None], where: object
) -> list[str]:
    """The speaker of each message: agent, customer or bot, or, where no agent can be told, the sender's name.

    Args:
        messages: all of a file.
        agents: names, ids or roles of those who are agents; none: seen from the file.
        note: takes what was seen.
        where: the file, for messages.

    Raises:
        DataError: one of ``agents`` is nobody's name.
    """
    if agents:
        return _by_name(messages, agents, where)
    told = [message.role if message.role and part_of(message.role) else message.sender for message in messages]
    parts = {word: part_of(word) for word in set(told)}
    if AGENT not in parts.values() and _alone_with_bots(messages, told, parts):
        parts = {word: AGENT if part == BOT else part for word, part in parts.items()}
    ours = Counter(word for word in told if parts[word] == AGENT)
    if 0 < len(ours) < len(parts):
        note(f"taken for agents by role or name: {_counted(ours)} (the option agent names others)")
        return [parts[word] or CUSTOMER for word in told]
    counts = Counter(message.sender for message in messages)
    note(f"no agent can be told, so all speak under their own names: {_counted(counts)} (the option agent names some)")
    return [message.sender for message in messages]


def _alone_with_bots(messages: Sequence[Message], told: Sequence[str], parts: Mapping[str, str | None]) -> bool:
    """Whether people talk with programs only, so that these are the ones to learn from."""
    people: dict[tuple[str, str | None], set[str]] = {}
    with_bots = set()
    for message, word in zip(messages, told, strict=True):
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
        raise DataError(f"{where}: nobody is called {unknown[0]!r}; its senders are {senders}")
    bots = (part_of(message.role or message.sender) == BOT for message in messages)
    return [AGENT if own & wanted else BOT if bot else CUSTOMER for own, bot in zip(names, bots, strict=True)]


def _counted(counts: Counter[str]) -> str:
    """The most frequent ones, with how many messages they wrote."""
    shown = ", ".join(f"{name} ({n:,})" for name, n in counts.most_common(5))
    return shown + (f" and {len(counts) - 5:,} more" if len(counts) > 5 else "")
