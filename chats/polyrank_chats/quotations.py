"""Remove from the text of a mail what its author did not write for it: quotations, forwarded mails and signatures.

The words of each language are in ``names.toml``. On the 128 mails in 12 languages of ``tests/test_mail.py``,
mail-parser-reply 1.36 is right for 67, since it knows fewer closings, and email-reply-parser 0.5 for 13.
"""

import re
from itertools import dropwhile

from polyrank_chats.names import NAMES


def _any(kind: str) -> str:
    return "|".join(map(re.escape, NAMES[kind]))


QUOTED = re.compile(r"^\s*>")
WROTE = f"(?:{_any('wrote')})"
ABOVE_QUOTE = re.compile(  # "On Monday, Ann wrote:", over up to three lines, of limited length to take linear time
    rf"^[ \t]*(?:(?:(?:{_any('quoted_on')})\b[^\n]{{0,300}}(?:\n(?!>)[^\n]{{0,300}}?){{0,2}}"
    rf"|[^\n]{{0,300}}(?:\d[:.]\d\d|@)[^\n]{{0,200}}(?:\n<[^<>\s]{{1,300}}>[^\n]{{0,50}})?){WROTE}[^\n]{{0,300}}(?:\n(?!>)[^\n]{{0,80}})?"
    r"|[^\n]{0,300}(?:\d:\d\d|\b20\d\d\b)[^\n]{0,300}@[^\n]{0,300}(?=[:：]\s*\n[ \t]*>))[:：][ \t]*$",
    re.MULTILINE | re.IGNORECASE,
)
DATED = re.compile(r"\d:\d\d|\b20\d\d\b|@")
DASHED = r"[ \t]*(?:-{3,}[^\n-]*[^\W\d_][^\n-]*-{3,}|_{10,})[ \t]*"
REST = re.compile(  # a line that begins another mail: dashes around words, "reply above this line", names of headers
    rf"^(?:{DASHED}|[#=\-– ]*[^\n]{{0,40}}(?:{_any('above_line')})[^\n]{{0,60}}"
    rf"|[ \t]*(?:{_any('forwarded')})[^\n]{{0,60}}:?[ \t]*)$"
    rf"|^[ \t*]*(?:{_any('mail_from')})[ *]*[:：][^\n]+\n(?:[^\n]*\n)?[ \t*]*(?:{_any('mail_headers')})[ *]*[:：]",
    re.MULTILINE | re.IGNORECASE,
)
SIGNATURE = re.compile(rf"^(?:-- ?|\s*(?:{_any('sent_from')})\b[^\n]*)$", re.MULTILINE | re.IGNORECASE)
CLOSING = re.compile(
    rf"[ \t]*(?:{_any('closings')})(?:[ \t]*[,.!;。]?|[,!] (?:[^\W\d_][\w.'’-]* ?){{1,3}})[ \t]*", re.IGNORECASE
)
SIGNATURE_LINES = 8  # below a closing


def unquoted(text: str) -> str:
    """Remove quotations, forwarded mails and signatures.

    >>> unquoted("Yes.\\n\\nOn Mon, 6 May 2024, Ann\\n<ann@x.org> wrote:\\n> Is it on?\\n\\nAll of it.\\n-- \\nBen")
    'Yes.\\n\\nAll of it.'
    >>> unquoted("Danke!\\n\\nViele Grüße\\nBen\\n\\nVon: Ann\\nGesendet: Montag\\nAn: Ben\\n\\nGeht es?")
    'Danke!'
    """
    text = text.replace("\r\n", "\n").replace("\xa0", " ")
    if found := REST.search(text):
        text = text[: found.start()]
    while found := next((each for each in ABOVE_QUOTE.finditer(text) if DATED.search(each[0])), None):
        rest = text[found.end() :]
        marked = any(map(QUOTED.match, rest.strip().split("\n")[:1]))
        text = text[: found.start()] + (rest if marked else "")
    if found := SIGNATURE.search(text):
        below = text[found.end() :].split("\n")  # keep what follows a quotation after the signature
        text = text[: found.start()] + "\n".join(dropwhile(lambda line: not QUOTED.match(line), below))
    lines = [line.rstrip() for line in text.split("\n") if not QUOTED.match(line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(_without_closing(lines))).strip()


def _without_closing(lines: list[str]) -> list[str]:
    """The lines above the last closing, such as "Kind regards"; a text of nothing else stays."""
    while lines and not lines[-1]:
        lines.pop()
    for at in range(len(lines) - 1, max(0, len(lines) - SIGNATURE_LINES), -1):
        if CLOSING.fullmatch(lines[at]) and any(lines[:at]):
            return lines[:at]
    return lines
