"""Recognize greetings and thanks by their words, in English, French, German and Spanish."""

from typing import Literal

from polyrank.data.same_words import same_words
from polyrank.slots import SLOT
from polyrank.slots.data import WORDS

SmallTalk = Literal["greeting", "thanks"]
KIND_FIELD = "kind"  # the metadata field of replies that are greetings or thanks
_THANKS, _GREETINGS, _OTHERS = (set(WORDS[name].split()) for name in ("thanked", "greeted", "polite"))


def small_talk(text: str) -> SmallTalk | None:
    """Whether a text is nothing but a greeting or thanks.

    >>> small_talk("Hi {customer}! How can I help you today?"), small_talk("You're welcome, have a nice day!")
    ('greeting', 'thanks')
    >>> small_talk("Thanks, your order is on its way"), small_talk("Can I help you?")
    (None, None)
    """
    words = set(same_words(SLOT.sub(" ", text)).split())
    if not words <= _THANKS | _GREETINGS | _OTHERS:
        return None
    return "thanks" if words & _THANKS else "greeting" if words & _GREETINGS else None
