"""Trees of replies become conversations: one for each path from a first message to a last one.

Replies to one message are alternatives, unless they are one talk, in which its author or one of the others speaks
again. A deleted message ends the paths through it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

from polyrank_chats.errors import DataError
from polyrank_chats.messages import Message, Reason
from polyrank_chats.report import Report
from polyrank_chats.wording import counted

REPLIES = 0.25  # the share of replies from which they define the conversations of a chat of more than two people
PAUSE = timedelta(hours=1)  # a message without a reply continues the conversation of its sender for this time
MAX_TURNS = 1_000_000
Key = tuple[str, str]  # the stream and the id of a message
Nodes = dict[Key, Message]
Parents = dict[Key, Key | None]


def threaded(said: Sequence[Message], report: Report) -> list[Message]:
    """Set the conversation of messages with an id but no conversation, once for each path that a message is part of.

    Raises:
        DataError: the paths have more than ``MAX_TURNS`` messages.

    >>> from polyrank_chats.messages import Message
    >>> tree = [("q", ()), ("a", ("q",)), ("b", ("q",))]
    >>> said = [Message("", "", f"by {id_}", id_, id=id_, answers=to) for id_, to in tree]
    >>> [(each.conversation, each.text) for each in threaded(said, Report())]
    [('q', 'q'), ('q', 'a'), ('q:2', 'q'), ('q:2', 'b')]
    """
    nodes: Nodes = {}
    others = []
    for message in said:
        key = (message.stream, message.id or "")
        if message.conversation is not None or not message.id:
            others += [message] if message.left_out is None else []
        elif key not in nodes:
            nodes[key] = message
        elif nodes[key].text == message.text:
            report.left_out[Reason.REPEATED] += message.left_out is None
        else:
            nodes[message.stream, message.where] = message
    parents = _parents(nodes)
    streams: defaultdict[str, list[Key]] = defaultdict(list)
    for key in sorted(nodes, key=lambda key: nodes[key].time or datetime.min):
        streams[key[0]].append(key)
    for keys in streams.values():
        said_there = [key for key in keys if nodes[key].left_out is None]
        n_replies = sum(parents[key] is not None for key in said_there)
        if not nodes[keys[0]].is_chat:
            _join_talks(keys, nodes, parents)
        elif n_replies >= REPLIES * len(said_there) and len({nodes[key].sender for key in said_there}) > 2:
            _continue_talks(said_there, nodes, parents)
            _join_talks(keys, nodes, parents)
        else:
            others += [nodes[key] for key in said_there]
            for key in keys:
                del nodes[key]
    return [*others, *_along_paths(nodes, parents, report)]


def _parents(nodes: Nodes) -> Parents:
    """The message that each one answers: the last known of its ``answers``; a circle is cut."""
    parents: Parents = {}
    for key, each in nodes.items():
        known = [(key[0], id_) for id_ in reversed(each.answers) if (key[0], id_) in nodes]
        parents[key] = next((other for other in known if other != key), None)
    walks: dict[Key, int] = {}
    for walk, start in enumerate(parents):
        key, last = start, start
        while key not in walks:
            walks[key] = walk
            last, key = key, parents[key] or key
        if walks[key] == walk and key != last:
            parents[last] = None
    return parents


def _continue_talks(keys: Sequence[Key], nodes: Nodes, parents: Parents) -> None:
    """Let messages of a chat that answer none continue the conversation in which their senders spoke last.

    If a sender ever names the messages that he answers, only those that nobody answers continue it.
    """
    answered = {parent for parent in parents.values() if parent}
    naming = {nodes[key].sender for key in keys if parents[key]}
    first: dict[Key, Key] = {}
    latest: dict[Key | str, Key] = {}  # by the first message of a conversation, and by sender
    for key in keys:
        each, parent, before = nodes[key], parents[key], latest.get(nodes[key].sender)
        if parent is None and before and not (key in answered and each.sender in naming):
            then = nodes[before].time
            if each.time and then and each.time - then <= PAUSE:
                parent = parents[key] = latest[first[before]]
        first[key] = first.get(parent, parent) if parent else key
        latest |= {first[key]: key, each.sender: key}


def _join_talks(keys: Sequence[Key], nodes: Nodes, parents: Parents) -> None:
    """Let replies to one message follow each other if they are one talk, or if a sender continues."""
    replies: defaultdict[Key, list[Key]] = defaultdict(list)
    for key in keys:
        if parent := parents[key]:
            replies[parent].append(key)
    for parent, own in replies.items():
        names = [nodes[key].sender for key in own]
        if nodes[parent].sender == nodes[parent].role:  # people are unknown
            continue
        is_talk = len({*names, nodes[parent].sender}) <= len(own) and not any(key in replies for key in own)
        for (first, name), (second, next_name) in pairwise(zip(own, names, strict=True)):
            if is_talk or (name == next_name and first not in replies):
                parents[second] = first


def _along_paths(nodes: Nodes, parents: Parents, report: Report) -> Iterator[Message]:
    replies: defaultdict[Key | None, list[Key]] = defaultdict(list)
    for key in nodes:
        replies[parents[key]].append(key)
    first: dict[Key, Key] = {}  # of the tree of each message that stays
    todo = [(root, root, False) for root in reversed(replies[None])]
    while todo:
        key, root, is_below = todo.pop()
        is_below |= nodes[key].left_out == Reason.DELETED
        if is_below:
            report.left_out[Reason.BELOW_DELETED] += nodes[key].left_out is None
        else:
            first[key] = root
        todo += [(reply, root, is_below) for reply in reversed(replies[key])]
    n_replies = Counter(parents[key] for key in first)
    for key in reversed([*first]):
        if nodes[key].left_out and not n_replies[key]:
            del first[key]
            n_replies[parents[key]] -= 1
    n_paths: Counter[Key] = Counter()
    n_turns = 0
    for key, root in first.items():
        if n_replies[key]:
            continue
        path = [key]
        while above := parents[path[-1]]:
            path.append(above)
        n_turns += len(path)
        if n_turns > MAX_TURNS:
            raise DataError(f"{nodes[key].where}: the paths of replies have more than {MAX_TURNS:,} messages")
        n_paths[root] += 1
        name = root[1] if n_paths[root] == 1 else f"{root[1]}:{n_paths[root]}"
        for each in map(nodes.__getitem__, reversed(path)):
            if each.left_out is None:
                yield replace(each, conversation=name)
    if n := n_paths.total() - len(n_paths):
        report.note(f"replies branch, so {counted(n, 'more conversation')} share their first messages with another")
