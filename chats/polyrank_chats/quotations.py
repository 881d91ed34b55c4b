"""Remove from the text of a mail what its author did not write for it: quotations, forwarded mails and signatures.

The words of each language are in ``names.toml``. On the 128 mails in 12 languages of ``tests/test_mail.py``,
mail-parser-reply 1.36 is right for 67, since it knows fewer closings, and email-reply-parser 0.5 for 13.
"""

import re
from itertools import dropwhile

from polyrank_chats.patterns import pattern

QUOTED, DATED = re.compile(r"\s*>"), re.compile(r"\d:\d\d|\b20\d\d\b|@")
ABOVE_QUOTE, REST, SIGNATURE, CLOSING = map(pattern, ("above_quote", "other_mail", "signature", "closing"))
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
    dated = [each for each in ABOVE_QUOTE.finditer(text) if DATED.search(each[0])]
    end = next((each.start() for each in dated if not QUOTED.match(text, each.end())), len(text))
    text = ABOVE_QUOTE.sub(lambda each: "" if DATED.search(each[0]) else each[0], text[:end])
    if found := SIGNATURE.search(text):
        below = text[found.end() :].split("\n")  # keep what follows a quotation after the signature
        text = text[: found.start()] + "\n".join(dropwhile(lambda line: not QUOTED.match(line), below))
    lines = [line.rstrip() for line in text.split("\n") if not QUOTED.match(line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(_without_closing(lines))).strip()


def _without_closing(lines: list[str]) -> list[str]:
    """The lines above the last closing, such as "Kind regards"; a text of nothing else stays."""
    while lines and not lines[-1]:
        lines.pop()
    for at in range(len(lines) - 1, max(0, len(lines) - SIGNATURE_LINES - 2), -1):
        if CLOSING.fullmatch(lines[at]) and any(lines[:at]):
            return lines[:at]
    return lines
