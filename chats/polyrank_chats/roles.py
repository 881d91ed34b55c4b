"""Determine the agents: from the user's option, else from the roles in the file, else from the senders' names."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

from polyrank_chats.errors import DataError, UsageError
from polyrank_chats.messages import Message
from polyrank_chats.names import NAMES, words_in
from polyrank_chats.options import Options
from polyrank_chats.wording import listed

AGENT, CUSTOMER, BOT = "agent", "customer", "bot"
EVERYONE = "*"  # as a customer: all who are not named as agents
MIN_TALKS = 3  # of a sender, to tell its part by what it does
MIN_SHARE = 0.8  # of the conversations in which agents are one side
SYSTEM_WORDS = {*NAMES["system_senders"], "service message"}


@lru_cache(maxsize=2**12)
def part_of(word: str) -> str | None:
    """The part that a role or a name implies: agent, customer, bot, or None.

    >>> part_of("assistant"), part_of("end-user"), part_of("Customer Support"), part_of("Help desk"), part_of("Ann")
    ('agent', 'customer', 'agent', 'agent', None)
    """
    found = {*words_in(word)}
    if found.intersection(NAMES["bots"]):
        return BOT
    if found.intersection(NAMES["agents"]):  # before CUSTOMER, for "customer service"
        return AGENT
    return CUSTOMER if found.intersection(NAMES["customers"]) else None


def is_system(message: Message) -> bool:
    """Whether the sender is a system, not a participant of the conversation."""
    return (message.role or message.sender).strip().casefold() in SYSTEM_WORDS


def speaker_of(talks: Sequence[Sequence[Message]], options: Options, where: object) -> Callable[[Message], str]:
    """A function that returns the speaker of a message: agent, customer or bot; or its sender if no agent is found.

    Args:
        talks: the messages of each conversation in the order of time, without those of systems.
        options: the names, ids or roles of agents (empty: by roles and names, else by behaviour) and of others.
            The report gets a note about the detected agents, and the senders.
        where: the file, for messages.

    Raises:
        DataError: a name of the options is not a sender.
        UsageError: a sender who is not in the options looks like an agent.
    """
    messages = [message for talk in talks for message in talk]
    wanted, others = ({name.strip().casefold() for name in names} for names in (options.agent, options.customer))
    customers = {message.sender for message in messages if names_of(message) & others}
    report, usual = options.report, answerers(talks) - customers
    report.senders = Counter(dict(Counter(message.sender for message in messages).most_common()))
    known = {EVERYONE, *(name for message in messages for name in names_of(message))}
    unknown = [name for name in (*options.agent, *options.customer) if name.strip().casefold() not in known]
    if messages and unknown:
        raise DataError(f"{where}: has no sender {unknown[0]!r}; its senders are {listed(report.senders)}")
    if options.agent:
        return _by_name(talks, usual, wanted, others, where)

    def label(message: Message) -> str:
        return CUSTOMER if message.sender in customers else _label(message)

    labels = Counter(map(label, messages))
    parts = _parts_of({*labels})
    if AGENT not in parts.values() and _alone_with_bots(talks, lambda message: parts[label(message)] == BOT):
        parts = {label: AGENT if part == BOT else part for label, part in parts.items()}
    detected = Counter({label: n for label, n in labels.items() if parts[label] == AGENT})
    if 0 < len(detected) < len(parts):  # staff without a word for it, next to "Support", are also agents
        report.note(f"agents by role or name: {_counted(detected)} (choose others with the option agent)")
        return lambda message: parts[label(message)] or (AGENT if message.sender in usual else CUSTOMER)
    report.guessed = sorted(usual, key=lambda name: -report.senders[name])
    if usual:
        shown = _counted(Counter({name: report.senders[name] for name in usual}))
        report.note(f"agents by their behaviour: {shown} (choose others with the option agent)")
        return lambda message: AGENT if message.sender in usual else CUSTOMER
    shown = _counted(report.senders)
    report.note(f"no agent found, so speakers keep their names: {shown} (choose agents with the option agent)")
    return lambda message: message.sender


def _parts_of(labels: set[str]) -> dict[str, str | None]:
    """The part of each label; "user" next to "contact" is an agent, and "operator" next to "teammate" is a bot."""
    parts = {label: part_of(label) for label in labels}
    others = {part for label, part in parts.items() if label.casefold() != "user"}
    if CUSTOMER in others and AGENT not in others:
        parts |= {label: AGENT for label in labels if label.casefold() == "user"}
    if any(label.casefold() in ("teammate", "admin") for label in labels):  # Intercom's words
        parts |= {label: BOT for label in labels if label.casefold() == "operator"}
    return parts


def answerers(talks: Sequence[Sequence[Message]]) -> set[str]:
    """The senders who answer the others: those in the most conversations, or with the mail domain in the most.

    Of the senders in at least n conversations, for every n, those count who are one of the sides in most conversations.
    Of two people who talk only to each other, the one who answers counts. Empty: no senders fit.
    """
    several = [talk for talk in talks if len({message.sender for message in talk}) > 1]
    domains = {m.sender: (m.sender_id or m.sender).rpartition("@")[2] for talk in several for m in talk}
    by_mail = all("@" in (m.sender_id or m.sender) for talk in several for m in talk)
    for label_of in ([domains] if by_mail else []) + [{name: name for name in domains}]:
        groups = [[label_of[message.sender] for message in talk] for talk in several]
        if labels := _one_side(groups):
            return {name for name, label in label_of.items() if label in labels}
    return set()


def _one_side(groups: Sequence[Sequence[str]]) -> set[str]:
    n_in = Counter(name for group in groups for name in set(group))
    n_begun = Counter(group[0] for group in groups)
    best: set[str] = set()
    share = MIN_SHARE
    for least in sorted({n for n in n_in.values() if n >= MIN_TALKS}):
        side = {name for name, n in n_in.items() if n >= least}
        n_both = sum(bool(side.intersection(group)) and not side.issuperset(group) for group in groups)
        if len(groups) > MIN_TALKS and n_both > share * len(groups):
            best, share = side, n_both / len(groups)
    if not best and len(n_in) == 2 and len(groups) > MIN_TALKS:
        best = {name for name in n_in if len(groups) - n_begun[name] >= MIN_SHARE * len(groups)}
    return best


def _label(message: Message) -> str:
    return message.role if message.role and part_of(message.role) else message.sender


def _alone_with_bots(talks: Sequence[Sequence[Message]], is_bot: Callable[[Message], bool]) -> bool:
    """Whether most conversations with a bot have only one person, so that the bots are the agents."""
    with_bots = [talk for talk in talks if any(map(is_bot, talk))]
    n_people = [len({message.sender for message in talk if not is_bot(message)}) for talk in with_bots]
    return 2 * sum(n > 1 for n in n_people) < sum(n > 0 for n in n_people)


def names_of(message: Message) -> set[str]:
    """The sender's name, id and role in small letters."""
    return {name.strip().casefold() for name in (message.sender, message.sender_id, message.role) if name}


def _by_name(
    talks: Sequence[Sequence[Message]], usual: Collection[str], wanted: set[str], others: set[str], where: object
) -> Callable[[Message], str]:
    def speaker(message: Message) -> str:
        if names_of(message) & wanted:
            return AGENT
        return BOT if part_of(message.role or message.sender) == BOT and not names_of(message) & others else CUSTOMER

    without = [talk for talk in talks if AGENT not in map(speaker, talk)]
    n_in = Counter(name for talk in without for name in {message.sender for message in talk})
    n_begun = Counter(talk[0].sender for talk in without if len({message.sender for message in talk}) > 1)
    forgotten = Counter(
        message.sender
        for talk in talks
        for message in talk
        if speaker(message) == CUSTOMER and not names_of(message) & others
        if message.sender in usual
        or part_of(message.role or message.sender) == AGENT
        or (n_in[message.sender] >= MIN_TALKS and 3 * n_begun[message.sender] < n_in[message.sender])
    )
    if forgotten and EVERYONE not in others:
        raise UsageError(
            f"{where}: other senders look like agents: {_counted(forgotten)}; name them too with the option agent, or"
            " with the option customer ('*' for all)"
        )
    return speaker


def _counted(counts: Counter[str]) -> str:
    """The most frequent names with their numbers of messages."""
    shown = ", ".join(f"{name} ({n:,})" for name, n in counts.most_common(5))
    return shown + (f" and {len(counts) - 5:,} more" if len(counts) > 5 else "")
