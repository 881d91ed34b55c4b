"""WhatsApp's export of a chat: a line is ``12/31/23, 9:15 PM - Name: text`` or ``[31.12.23, 21:15:03] Name: text``."""

import re
import unicodedata

from polyrank.data.chats.files import Member
from polyrank.data.chats.messages import ATTACHMENT, DELETED, EMPTY, SYSTEM, Message, Messages, ReadLog
from polyrank.data.chats.times import HALVES
from polyrank.errors import DataError

MARKS = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
DATE = r"(?:\d{1,4}[./-] ?\d{1,2}[./-] ?\d{1,4}\.?)"
HALF = rf"(?:[apAP]\.? ?[mM]\.?|{'|'.join(map(re.escape, HALVES))})"
CLOCK = rf"(?:{HALF} ?)?\d{{1,2}}[:.]\d\d(?:[:.]\d\d)?(?: ?{HALF})?"
STAMP = rf"(?P<date>{DATE})[,،]? (?:[^\W\d]{{1,4}} )?(?P<clock>{CLOCK})"
BRACKETED = STAMP.replace("<date>", "<date2>").replace("<clock>", "<clock2>")
LINE = re.compile(rf"(?:{STAMP}(?: [-–]|,) |\[{BRACKETED}\] )(?P<rest>.*)", re.DOTALL)
SENDER = re.compile(r"(?P<name>[^:\"“„«]{1,80}): ?(?P<text>.*)", re.DOTALL)
# in every language what stands for a file is in angle brackets (Android), or marked as no text of the sender's (iPhone)
PLACEHOLDER = re.compile(r"<[^<>\n]{3,60}>")
ATTACHED = re.compile(r"\S[^\n]*\.\w{2,5} \([^()\n]{4,40}\)(?:\n(?P<caption>.*))?", re.DOTALL)
EDITED = re.compile("\\s*\u200e?<\\w+(?: \\w+){2,5}>$")
GONE = re.compile(
    r"(?:this message was deleted|you deleted this message"
    r"|diese nachricht wurde gelöscht|du hast diese nachricht gelöscht"
    r"|(?:se )?eliminó este mensaje|eliminaste este mensaje|ce message a été supprimé|vous avez supprimé ce message"
    r"|questo messaggio è stato eliminato|hai eliminato questo messaggio|(?:esta )?mensagem (?:foi )?apagada"
    r"|você apagou esta mensagem|dit bericht is verwijderd|данное сообщение удалено|bu mesaj silindi"
    r"|null)\.?",  # a message that is shown once
    re.IGNORECASE,
)


def begins(line: str) -> bool:
    """Whether a line is the first of a message.

    >>> begins("31/12/2023, 21:15 - Ann: hi"), begins("[2023-12-31, 9:15:03 p.m.] Ann: hi"), begins("and more")
    (True, True, False)
    """
    return LINE.match(_plain(line)) is not None


def _plain(line: str) -> str:
    """Digits and blanks of every script as those of ASCII, without marks of direction."""
    return "".join(
        str(unicodedata.decimal(sign)) if sign.isdecimal() else " " if sign.isspace() else sign
        for sign in MARKS.sub("", line)
    )


def whatsapp(member: Member, text: str, log: ReadLog) -> Messages:
    """Messages of several lines go on until a line begins with a date; lines without a sender are the system's."""
    start, lines = 0, list[str]()
    parts: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if begins(line):
            parts.append((start, "\n".join(lines)))
            start, lines = number, [line]
        elif lines:
            lines.append(line)
        elif line.strip():
            log.bad.add(DataError(f"{member.path}:{number}: stands before the first date; remove it"))
    for number, raw in [*parts[1:], (start, "\n".join(lines))] if lines else ():
        if found := _message(member, number, raw, log):
            yield found


def _message(member: Member, number: int, raw: str, log: ReadLog) -> Message | None:
    first, _, more = raw.partition("\n")
    stamp = LINE.match(_plain(first))
    assert stamp is not None  # how the line was found
    date, clock = stamp["date"] or stamp["date2"], stamp["clock"] or stamp["clock2"]
    rest = _behind(first, stamp.start("rest"))
    if not SENDER.match(MARKS.sub("", rest)):
        log.skip(SYSTEM)
        return None
    name, _, said = f"{rest}\n{more}".partition(":")
    said = EDITED.sub("", said.strip())
    text = MARKS.sub("", said).strip()
    if GONE.fullmatch(text):
        log.skip(DELETED)
        return None
    if attached := ATTACHED.fullmatch(text):
        said = text = (attached["caption"] or "").strip()
    if (attached and not text) or PLACEHOLDER.fullmatch(text):
        log.skip(ATTACHMENT)
        return None
    if said.startswith("\u200e"):
        log.skip(ATTACHMENT if len(text.split()) < 5 else SYSTEM)
        return None
    if not text:
        log.skip(EMPTY)
        return None
    day = re.sub(r"\s", "", date).rstrip(".")
    time = f"{day} {re.sub(r'(?<=[0-9])[.](?=[0-9])', ':', clock)}"
    sender = MARKS.sub("", name).strip().removeprefix("~").strip()  # ~ marks who is not in the phone's book
    return Message(f"{member.path}:{number}", member.stem, sender, said, time=time)


def _behind(line: str, n: int) -> str:
    """What follows the first ``n`` characters, marks not counted."""
    for position, sign in enumerate(line):
        if n == 0:
            return line[position:]
        n -= not MARKS.match(sign)
    return ""
