"""Chains of replies become conversations: a message belongs to the conversation of the message that it answers."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from polyrank.data.chats.messages import Message


def threaded(messages: Iterable[Message]) -> Iterator[Message]:
    """Set the conversation of messages that have an id but no conversation. Ids are those of one stream.

    >>> chain = [Message("", "", "Ann", "hi", id="a"), Message("", "", "Ben", "yes?", id="b", answers=("a",))]
    >>> [message.conversation for message in threaded([*chain, Message("", "", "Cy", "hello")])]
    ['a', 'a', None]
    """
    held = list(messages)
    answered: dict[str, dict[str, tuple[str, ...]]] = {}
    for message in held:
        if message.id:
            answered.setdefault(message.stream, {})[message.id] = message.answers
    for message in held:
        if message.id and message.conversation is None:
            message = replace(message, conversation=_first(message.id, answered[message.stream]))
        yield message


def _first(id_: str, answered: dict[str, tuple[str, ...]]) -> str:
    seen = {id_}
    while answers := [each for each in answered.get(id_, ()) if each not in seen]:
        id_ = next((each for each in reversed(answers) if each in answered), answers[0])
        seen.add(id_)
    return id_
