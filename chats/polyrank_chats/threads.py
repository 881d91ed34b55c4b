"""Chains of replies become conversations: a message belongs to the conversation of the message that it answers."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from polyrank_chats.messages import Message


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
    firsts: dict[str, dict[str, str]] = {stream: {} for stream in answered}
    for message in held:
        if message.id and message.conversation is None:
            first = _first(message.id, answered[message.stream], firsts[message.stream])
            message = replace(message, conversation=first)
        yield message


def _first(id_: str, answered: dict[str, tuple[str, ...]], firsts: dict[str, str]) -> str:
    """The first message of a chain. ``firsts`` keeps it for each message of the chain, so none is passed twice."""
    chain = {id_}
    while id_ not in firsts and (answers := [each for each in answered.get(id_, ()) if each not in chain]):
        id_ = next((each for each in reversed(answers) if each in answered), answers[0])
        chain.add(id_)
    first = firsts.get(id_, id_)
    firsts |= dict.fromkeys(chain, first)
    return first
