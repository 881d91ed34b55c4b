"""WhatsApp's export of a chat: lines such as ``12/31/23, 9:15 PM - Name: text`` or ``[31.12.23, 21:15:03] Name: text``.

KakaoTalk's mobile app and signal-export, for Signal, write lines of the same form.
"""

import re
import unicodedata
from itertools import islice

from polyrank_chats.errors import DataError
from polyrank_chats.files.file import File
from polyrank_chats.messages import ATTACHMENT, DELETED, EMPTY, SYSTEM, Message, Messages
from polyrank_chats.times import HALVES

N_LINES_LOOKED_AT = 100
MARKS = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
DATE = r"(?:\d{4}[년年] ?\d{1,2}[월月] ?\d{1,2}[일日]|\d{1,4}[./-] ?\d{1,2}[./-] ?\d{1,4}\.?(?: г\.?)?)"
HALF = rf"(?:[apAP]\.? ?[mM]\.?|{'|'.join(map(re.escape, HALVES))})"
CLOCK = rf"(?:{HALF} ?)?\d{{1,2}}(?:[:.]| h )\d\d(?:[:.]\d\d)?(?: ?{HALF})?"
STAMPS = [
    (
        rf"(?P<date{n}>{DATE})[,،]? (?:(?!{HALF})[^\W\d]{{1,4}} )?(?P<clock{n}>{CLOCK})",
        rf"(?P<clock{n}>{CLOCK}), (?P<date{n}>{DATE})",
    )
    for n in range(3)
]
NAME = r"[^\W\d_][^:\n<>\[\]\t]{0,39}"
ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z| ?[+-]\d\d:?\d\d)?"
LINE = re.compile(
    rf"(?:{STAMPS[0][0]}(?: [-–~|]|,) |\[{STAMPS[1][0]}\] |{STAMPS[2][1]} [-–~|] "
    rf"|\[?(?P<iso>{ISO})\]?(?: ?[-–~|,]|)[ \t]+(?=<|\[|{NAME}(?:: |:$|\t)))(?P<rest>.*)",
    re.DOTALL,
)
BRACKETED = re.compile(
    r"\A(?:<[ @+%&~]?(?P<name>[^<>\n]{1,40})> |\[(?P<other>[^\[\]\n]{1,40})\]:? |(?P<tabbed>[^:\t]{1,40})\t)"
)
BUDDHIST = re.compile(r"\b25\d\d\b")
SENDER = re.compile(r"(?P<name>[^:\"“„«]{1,80}): ?(?P<text>.*)", re.DOTALL)
# in every language a placeholder for a file is in angle brackets (Android), or has a mark before it (iPhone)
PLACEHOLDER = re.compile(r"<[^<>\n]{3,60}>")
ATTACHED = re.compile(r"\S[^\n]*\.\w{2,5} \([^()\n]{4,40}\)(?:\n(?P<caption>.*))?", re.DOTALL)
REACTIONS = re.compile(r"^\(- .* -\)$", re.MULTILINE)  # below a message of signal-export
PICTURE = re.compile(r"!\[[^\]\n]*\]\([^)\n]*\)")
EDITED = re.compile("\\s*\u200e?<\\w+(?: \\w+){2,5}[.。]?>$")
GONE = re.compile(
    r"(?:this message was deleted|you deleted this message"
    r"|diese nachricht wurde gelöscht|du hast diese nachricht gelöscht"
    r"|(?:se )?eliminó este mensaje|eliminaste este mensaje|ce message a été supprimé|vous avez supprimé ce message"
    r"|questo messaggio è stato eliminato|hai eliminato questo messaggio|(?:esta )?mensagem (?:foi )?apagada"
    r"|você apagou esta mensagem|dit bericht is verwijderd|данное сообщение удалено|bu mesaj silindi"
    r"|ta wiadomość została usunięta|usunięto tę wiadomość|ezt az üzenetet törölték|törölted ezt az üzenetet"
    r"|това съобщение беше изтрито|tin nhắn này đã bị xóa|bạn đã xóa tin nhắn này"
    r"|삭제된 메시지입니다|이 메시지는 삭제되었습니다|(?:この)?メッセージ(?:は削除されました|を削除しました)"
    r"|(?:此|你已|您已)(?:删除此消息|刪除此訊息|消息已删除|訊息已刪除)|ข้อความนี้ถูกลบแล้ว|คุณลบข้อความนี้แล้ว"
    r"|null)[.。]?",  # a view-once message
    re.IGNORECASE,
)


def begins(line: str) -> bool:
    """Whether a line is the first line of a message.

    >>> begins("31/12/2023, 21:15 - Ann: hi"), begins("[2023-12-31, 9:15:03 p.m.] Ann: hi"), begins("and more")
    (True, True, False)
    """
    return LINE.match(_plain(line)) is not None


def _plain(line: str) -> str:
    """Convert digits and blanks of every script to ASCII, and remove marks of direction."""
    return "".join(
        str(unicodedata.decimal(sign)) if sign.isdecimal() else " " if sign.isspace() else sign
        for sign in MARKS.sub("", line)
    )


def whatsapp(file: File) -> Messages | None:
    """A message ends before the next line that begins with a date; messages without a sender are system messages."""
    looked_at = () if file.text is None else islice(file.text.split("\n"), N_LINES_LOOKED_AT)
    return _messages(file, file.text or "") if any(map(begins, looked_at)) else None


def _messages(file: File, text: str) -> Messages:
    start, lines = 0, list[str]()
    parts: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if begins(line):
            parts.append((start, "\n".join(lines)))
            start, lines = number, [line]
        elif lines:
            lines.append(line)
        elif line.strip():
            yield DataError(f"{file.path}:{number}: is before the first date; remove it")
    for number, raw in [*parts[1:], (start, "\n".join(lines))] if lines else ():
        yield _message(file, number, raw)


def _message(file: File, number: int, raw: str) -> Message | str:
    first, _, more = raw.partition("\n")
    stamp = LINE.match(_plain(first))
    assert stamp is not None  # how the line was found
    rest = BRACKETED.sub(lambda found: f"{found[found.lastgroup or 0]}: ", _behind(first, stamp.start("rest")), count=1)
    if not SENDER.match(MARKS.sub("", rest)):
        return SYSTEM
    name, _, said = f"{rest}\n{more}".partition(":")
    said = EDITED.sub("", REACTIONS.sub("", said).strip())
    text = MARKS.sub("", said).strip()
    if GONE.fullmatch(text):
        return DELETED
    if attached := ATTACHED.fullmatch(text):
        said = text = (attached["caption"] or "").strip()
    if (attached and not text) or PLACEHOLDER.fullmatch(text) or PICTURE.fullmatch(text):
        return ATTACHMENT
    if said.startswith("\u200e"):
        return ATTACHMENT if len(text.split()) < 5 else SYSTEM
    if not text:
        return EMPTY
    sender = MARKS.sub("", name).strip().removeprefix("~").strip()  # ~ marks senders who are not contacts
    return Message(f"{file.path}:{number}", file.stem, sender, said, time=stamp["iso"] or _time(stamp))


def _time(stamp: re.Match[str]) -> str:
    """The date and the time of day, in a form that does not depend on the language."""
    date, clock = (next(filter(None, map(stamp.group, (f"{what}{n}" for n in range(3))))) for what in ("date", "clock"))
    day = re.sub(r"[년年월月]", "-", re.sub(r"[\s일日г]", "", date)).rstrip(".")
    day = BUDDHIST.sub(lambda year: str(int(year[0]) - 543), day)
    return f"{day} {re.sub(r'(?<=[0-9])(?:[.]| h )(?=[0-9])', ':', clock)}"


def _behind(line: str, n: int) -> str:
    """The rest of a line after ``n`` characters, not counting marks."""
    for position, sign in enumerate(line):
        if n == 0:
            return line[position:]
        n -= not MARKS.match(sign)
    return ""
