"""Patterns of lines, mails and personal data, from ``patterns.toml``, to which new programs are added."""

import re
import tomllib
from importlib.resources import files
from typing import Any

from polyrank_chats.names import NAMES

_TEXTS: dict[str, Any] = tomllib.loads((files("polyrank_chats") / "patterns.toml").read_text("utf-8"))


def pattern(name: str) -> re.Pattern[str]:
    """The pattern of a name.

    >>> pattern("closing").fullmatch("Kind regards, Ann")[0], pattern("link").search("at www.shop.example/faq.")[0]
    ('Kind regards, Ann', 'www.shop.example/faq')
    """
    return re.compile(_expanded(name))


def replacements(name: str) -> list[tuple[re.Pattern[str], str]]:
    """Patterns with their replacements, in the order of their use."""
    return [(re.compile(text), to) for text, to in _TEXTS[name].items()]


def _expanded(name: str) -> str:
    """Its text, with other patterns and words in place of their names."""
    if name not in _TEXTS:
        return "|".join(re.escape(word).replace(r"\ ", "[ _-]?") for word in NAMES[name])
    return re.sub(r"§(\w+)§", lambda part: f"(?:{_expanded(part[1])})", _TEXTS[name].replace("\n", ""))
