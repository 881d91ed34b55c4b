"""The tokens of a filter: strings, numbers, words and marks, each with its position. No torch."""

import json
import re
from dataclasses import dataclass

from polyrank.errors import UsageError

_TOKEN = re.compile(
    r"""\s*(?: (?P<string> "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' )
          | (?P<number> -?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)? )
          | (?P<word> [^\W\d][\w-]* )
          | (?P<mark> <= | >= | != | [=<>(),.] )
          | (?P<end> $ ) )""",
    re.VERBOSE | re.DOTALL,
)
KEYWORDS = ("and", "or", "not", "in", "exists", "true", "false", "null")
EXAMPLE = '; write conditions such as team = "billing" and not lang in ("de", "fr")'


@dataclass(frozen=True, slots=True)
class Token:
    """A part of a filter's text.

    Args:
        kind: string, number, word, mark or end.
        text: as written, quotes included.
        at: number of its first character, counted from 1.
    """

    kind: str
    text: str
    at: int

    @property
    def keyword(self) -> str:
        """The keyword in lower case; empty if the token is not a keyword."""
        return self.text.lower() if self.kind == "word" and self.text.lower() in KEYWORDS else ""

    def __str__(self) -> str:
        """The token as an error message shows it."""
        shortened = self.text if len(self.text) <= 30 else f"{self.text[:30]}..."
        return "the end" if self.kind == "end" else repr(shortened)


def read_tokens(text: str) -> list[Token]:
    """All tokens of a text; the last one is of kind "end".

    Raises:
        UsageError: a quote is not closed, or a character starts no token.
    """
    tokens: list[Token] = []
    start = 0
    while not tokens or tokens[-1].kind != "end":
        match = _TOKEN.match(text, start)
        if match is None:
            at = start + len(text[start:]) - len(text[start:].lstrip())
            what = "this string has no closing quote" if text[at] in "\"'" else f"{text[at]!r} is not allowed here"
            raise UsageError(f"filter, character {at + 1}: {what}; put strings and unusual names in quotes{EXAMPLE}")
        kind = match.lastgroup or ""
        tokens.append(Token(kind, match[kind], match.start(kind) + 1))
        start = match.end()
    return tokens


def unquote(token: Token) -> str:
    r"""The string that a quoted token holds: JSON's escapes, and \' for a single quote.

    Raises:
        UsageError: an escape is not valid, or the string contains NUL.
    """
    inner = re.sub(r"\\.|\"", lambda m: {"\\'": "'", '"': '\\"'}.get(m[0], m[0]), token.text[1:-1], flags=re.DOTALL)
    try:
        text: str = json.loads(f'"{inner}"', strict=False)
        text.encode()
    except ValueError as error:  # an invalid escape, or half of a surrogate pair
        raise UsageError(
            f"filter, character {token.at}: the string has an escape that JSON does not have; write a backslash twice"
        ) from error
    if "\0" in text:
        raise UsageError(f"filter, character {token.at}: a string cannot contain the NUL character; remove it")
    return text


def is_plain_name(name: str) -> bool:
    """Whether a name can be written without quotes."""
    match = _TOKEN.fullmatch(name)
    return match is not None and match["word"] == name and name.lower() not in KEYWORDS
