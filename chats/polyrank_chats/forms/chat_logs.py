"""Logs of chats: a message begins at a line with its time and ends before the next one.

WhatsApp, signal-export, KakaoTalk, LINE, IRC clients, the chat of a meeting that Zoom saves, and others: lines have
dates, or times of day below headings of days.
"""

import re
import unicodedata
from contextlib import suppress
from datetime import datetime

from polyrank_chats.errors import DataError
from polyrank_chats.files.file import File
from polyrank_chats.messages import Message, Messages, Reason
from polyrank_chats.names import NAMES
from polyrank_chats.patterns import pattern

N_LINES_LOOKED_AT = 200
GONE = {text.replace("_", " ") for text in NAMES["deleted_texts"]}
MARKS = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
LINE, NAME, DAY, BELOW_DAY = map(pattern, ("log_line", "log_name", "log_day", "log_below_day"))
IMESSAGE = pattern("imessage")
FILE, ASIDE = map(pattern, ("log_file", "log_aside"))
EVENT = re.compile(r"\s*(?:-!- |\*+ |-->|<--|=!=|--\s)")  # of IRC clients
UNDATED = re.compile(r"\d\d:\d\d:\d\d\s+From\s|\[?\d\d:\d\d(:\d\d)?\]? <[ @+%&~]?[^<>\s]+> ")  # of Zoom, and of IRC
BUDDHIST = re.compile(r"\b25\d\d\b")
SENDER = re.compile(r"(?P<name>[^:\"“„«]{1,80}): ?(?P<text>.*)", re.DOTALL)
# in every language a placeholder for a file is in angle brackets (Android), or has a mark before it (iPhone)
ATTACHED = re.compile(r"\S[^\n]*\.\w{2,5} \([^()\n]{4,40}\)(?:\n(?P<caption>.*))?", re.DOTALL)


def begins(line: str) -> bool:
    """Whether a line is the first line of a message with a date.

    >>> begins("31/12/2023, 21:15 - Ann: hi"), begins("[2023-12-31, 9:15:03 p.m.] Ann: hi"), begins("and more")
    (True, True, False)
    """
    return LINE.match(_plain(line)) is not None


def _plain(line: str) -> str:
    """Convert digits and blanks of every script to ASCII, and remove marks of direction."""
    return "".join(
        str(unicodedata.decimal(sign)) if sign.isdecimal() else " " if sign.isspace() and sign != "\t" else sign
        for sign in MARKS.sub("", line)
    )


def chat_log(file: File) -> Messages | None:
    """A file is a stream; without dates, as that of a meeting, it is a conversation."""
    lines = IMESSAGE.sub(_in_one_line, file.text or "").split("\n")
    first = [line for line in lines[:N_LINES_LOOKED_AT] if line.strip()]
    if any(map(begins, first)):
        return _messages(file, lines, LINE)
    has_days = any(DAY.fullmatch(line.strip()) for line in first)
    if any(BELOW_DAY.match(_plain(line)) for line in first) and (has_days or any(map(UNDATED.match, first[:9]))):
        return _messages(file, lines, BELOW_DAY)
    return None


def _in_one_line(found: re.Match[str]) -> str:
    with suppress(ValueError):  # such as the 99th
        sent = datetime.strptime(" ".join(found["time"].split()), "%b %d, %Y %I:%M:%S %p")
        return f"{sent:%Y-%m-%dT%H:%M:%S} [{found['name']}] "
    return found[0]


Entry = tuple[int, str, str, list[str]]  # the line of a message, its time, the rest of the line, the lines below it


def _messages(file: File, lines: list[str], form: re.Pattern[str]) -> Messages:
    """The messages of lines of ``form``: ``LINE``, which has dates, or ``BELOW_DAY``."""
    day = ""
    entry: Entry | None = None
    for number, line in enumerate(lines, 1):
        heading = None if form is LINE else DAY.fullmatch(line.strip())
        stamp = form.match(_plain(line))
        if entry and (heading or stamp):
            yield _message(file, *entry)
            entry = None
        if heading:
            numbers = re.findall(r"\d+", heading["day"])
            is_iso = len(numbers) == 3 and len(numbers[0]) == 4
            day = "-".join(numbers) if is_iso else re.sub(r" [\d:]{8}", "", heading["day"])
        elif stamp:
            rest = _behind(line, stamp.start("rest"))
            if form is LINE:
                entry = (number, stamp["iso"] or _time(stamp), rest, [])
            else:
                clock = stamp["clock"] or stamp["bracketed"]
                rest = f"{stamp['who']}: {rest}" if stamp["who"] else rest
                entry = (number, f"{day} {clock}" if day else "", rest, [])
        elif entry:
            entry[3].append(line.lstrip("\t"))
        elif form is LINE and line.strip():
            yield DataError(f"{file.path}:{number}: is before the first date; remove it")
    if entry:
        yield _message(file, *entry)


def _message(file: File, number: int, time: str, line: str, more: list[str]) -> Message | Reason:
    rest = NAME.sub(lambda found: f"{found[found.lastgroup or 0]}: ", line, count=1)
    if EVENT.match(line) or not SENDER.match(MARKS.sub("", rest)):
        return Reason.SYSTEM
    name, _, said = "\n".join([rest, *more]).partition(":")
    said = ASIDE.sub("", said).strip()
    if more and said.startswith('"') and said.endswith('"'):  # LINE quotes texts of several lines
        said = said[1:-1]
    text = MARKS.sub("", said).strip()
    if text.casefold().rstrip(".。") in GONE:
        return Reason.DELETED
    if attached := ATTACHED.fullmatch(text):
        said = text = (attached["caption"] or "").strip()
    if (attached and not text) or FILE.fullmatch(text):
        return Reason.ATTACHMENT
    if said.startswith("\u200e"):
        return Reason.ATTACHMENT if len(text.split()) < 5 else Reason.SYSTEM
    sender = MARKS.sub("", name).strip().removeprefix("~").strip()  # ~ marks senders who are not contacts
    if not any(map(str.isalnum, sender)):
        return Reason.SYSTEM
    where = f"{file.path}:{number}"
    return Message(where, file.stem, sender, said, None if time else file.stem, time or None) if text else Reason.EMPTY


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
