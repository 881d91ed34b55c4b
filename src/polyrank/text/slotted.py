"""A vocabulary that reads texts with slots in place of their data: a model then learns from words, not from values."""

from collections.abc import Sequence
from typing import Any

from polyrank.remembered import Remembered
from polyrank.slots import masked
from polyrank.text.texts import Vocabulary

_masked = Remembered(masked)  # every turn of a dialogue is part of all later contexts


class SlottedSubwords:
    """The ids of texts with slots, see ``polyrank.slots.masked``; everything else is the vocabulary's.

    Args:
        plain: the vocabulary.
    """

    def __init__(self, plain: Vocabulary) -> None:
        self.plain = plain

    def __getattr__(self, name: str) -> Any:
        if name == "plain":  # while a copy is made
            raise AttributeError(name)
        return getattr(self.plain, name)

    def encode(self, text: str) -> tuple[int, ...]:
        """See ``Vocabulary``."""
        return self.plain.encode(_masked[text][0])

    def encode_all(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """The ids of each text."""
        encode_all: Any = getattr(self.plain, "encode_all")  # noqa: B009
        return encode_all([_masked[text][0] for text in texts])  # type: ignore[no-any-return]

    def encode_spans(self, text: str) -> list[tuple[int, int, int]]:
        """See ``Vocabulary``; the characters of a slot are those of its value."""
        made, places = _masked[text]
        return [
            (i, places[start][0], places[max(end - 1, start)][1]) for i, start, end in self.plain.encode_spans(made)
        ]


def with_slots(subwords: Any, slots: bool) -> Any:
    """A vocabulary that reads slots in place of data, or the plain one.

    Args:
        subwords: of either kind.
        slots: whether it reads slots.
    """
    plain = subwords.plain if isinstance(subwords, SlottedSubwords) else subwords
    return SlottedSubwords(plain) if slots else plain
