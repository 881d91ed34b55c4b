"""Text exports of LINE, and of KakaoTalk for desktop computers: a heading for each day, and a time of day in each line.

Lines of KakaoTalk's mobile app have full dates; ``whatsapp`` reads them.
"""

import re

from polyrank_chats.files.file import File
from polyrank_chats.forms.whatsapp import CLOCK
from polyrank_chats.messages import ATTACHMENT, SYSTEM, Message, Messages

LINES = (
    re.compile(rf"(?P<clock>{CLOCK})\t(?P<name>[^\t]*)(?:\t(?P<text>.*))?"),  # LINE: 10:15<TAB>Ann<TAB>hello
    re.compile(rf"\[(?P<name>[^\]\n]+)\] \[(?P<clock>{CLOCK})\] (?P<text>.*)"),  # KakaoTalk: [Ann] [10:15 AM] hello
)
DAY = re.compile(  # with a four-digit year and a weekday: 2024/05/01(Wed), Wed, 5/1/2024, --- 2024년 5월 1일 수요일 ---
    r"-* ?(?P<day>(?:[^\W\d_]+\.?, )?(?:\d{4}(?:[./]\d\d?[./]\d\d?|[년年] ?\d\d?[월月] ?\d\d?[일日])"
    r"|\d\d?/\d\d?/\d{4}|[A-Z][a-z]+ \d\d?, \d{4}))\.? ?(?:\(\w+\)|[^\W\d_]+)? ?-*"
)
PLACEHOLDER = re.compile(
    r"\[[^\[\]\n]{2,20}\]|☎.*|(?:사진|동영상|이모티콘|삭제된 메시지입니다\.|Photo|Video|Emoticons?)(?: \d+장)?"
)


def line_kakaotalk(file: File) -> Messages | None:
    """A file is a stream; lines without a sender are system messages, and other lines continue a message."""
    lines = (file.text or "").split("\n")
    is_log = any(map(_match, lines[:200])) and any(map(DAY.fullmatch, lines[:200]))
    return _messages(file, lines) if is_log else None


def _match(line: str) -> re.Match[str] | None:
    return next(filter(None, (form.fullmatch(line) for form in LINES)), None)


def _messages(file: File, lines: list[str]) -> Messages:
    day = ""
    entries: list[tuple[int, str, re.Match[str], list[str]]] = []
    for number, line in enumerate(lines, 1):
        if heading := DAY.fullmatch(line):
            numbers = re.findall(r"\d+", heading["day"])
            day = "-".join(numbers) if len(numbers[0]) == 4 else heading["day"]
        elif found := _match(line):
            entries.append((number, f"{day} {found['clock']}", found, []))
        elif entries:
            entries[-1][3].append(line)
    for number, time, found, more in entries:
        text = "\n".join([found["text"] or "", *more]).strip().strip('"').strip()  # LINE quotes texts of several lines
        if not found["name"] or found["text"] is None:
            yield SYSTEM
        elif not text or PLACEHOLDER.fullmatch(text):
            yield ATTACHMENT
        else:
            yield Message(f"{file.path}:{number}", file.stem, found["name"].strip(), text, time=time)
