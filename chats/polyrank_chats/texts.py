"""Plain text of message bodies: HTML and lists of parts."""

import re
from html.parser import HTMLParser
from typing import Any

from polyrank_chats.patterns import pattern

LOOKS_LIKE_HTML = pattern("html")
BREAKS = {"br", "p", "div", "li", "tr", "ul", "ol", "table", "blockquote", "h1", "h2", "h3", "h4", "h5", "h6", "pre"}
MARKED = re.compile(r"<!\[(?!CDATA\[)[^>]*>?")  # such as Word's <![if !vml]>, on some of which the parser fails
HIDDEN = {"script", "style", "head", "title"}
VOID = {"br", "img", "hr", "input", "meta", "link", "col", "area", "base", "wbr"}


def from_html(body: str) -> str:
    """The text of an HTML body without quoted mail; any other text unchanged.

    >>> from_html("<p>Hi Ann,</p><p>it is <b>5 &lt; 6</b>.<br>Bye</p>")
    'Hi Ann,\\nit is 5 < 6.\\nBye'
    >>> from_html("a < b and b > c")
    'a < b and b > c'
    """
    if not LOOKS_LIKE_HTML.search(body):
        return body
    reader = _Text()
    end = body.rfind(">") + 1  # the parser looks for the end of each tag
    reader.feed(MARKED.sub(" ", body[:end]) + body[end:].replace("<", "&lt;"))
    reader.close()
    return "\n".join(filter(None, (" ".join(line.split()) for line in "".join(reader.pieces).split("\n"))))


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self.hidden: list[str] = []  # the innermost hidden element and open elements inside it

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        quoted = values.get("type") == "cite" or "gmail_quote" in (values.get("class") or "")
        if tag not in VOID and (self.hidden or tag in HIDDEN or quoted):
            self.hidden.append(tag)
        if tag in BREAKS:
            self.pieces.append("\n")
        if tag == "emoji":  # of Teams
            self.pieces.append(values.get("alt") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.hidden:
            while self.hidden.pop() != tag:
                pass
        if tag in BREAKS:
            self.pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.pieces.append(data.replace("\n", " "))


def plain(value: Any) -> str:
    """The text of a field: a text, a number, or a list of parts, some of which have a text.

    >>> plain(["see ", {"type": "link", "text": "polyrank.org"}, {"type": "image_url", "image_url": {}}])
    'see polyrank.org'
    """
    match value:
        case None | bool():
            return ""
        case str():
            return from_html(value).strip()
        case list() | tuple():
            return "".join(map(plain_part, value)).strip()
        case dict():
            return next(filter(None, (plain(value.get(key)) for key in ("text", "value", "content", "html"))), "")
    return str(value)


def plain_part(part: Any) -> str:
    """As ``plain``, but keeps the blanks between parts."""
    part = part.get("text", plain(part)) if isinstance(part, dict) else part
    return part if isinstance(part, str) else plain(part)
