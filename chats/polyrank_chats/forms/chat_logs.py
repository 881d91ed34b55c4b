"""Logs of chat programs: IRC as irssi and WeeChat write it, and the chat that Zoom saves of a meeting."""

import re
from collections.abc import Callable

from polyrank_chats.errors import DataError
from polyrank_chats.files.file import File
from polyrank_chats.messages import SYSTEM, Message, Messages
from polyrank_chats.times import read_time

N_LOOKED_AT = 50
OPENED = re.compile(r"--- (?:Log opened|Day changed) \w{3} (?P<day>\w{3} \d\d)(?: [\d:]{8})? (?P<year>\d{4})$")
IRSSI = re.compile(r"(?P<clock>\d\d:\d\d(?::\d\d)?) (?:<[ @+%&~]?(?P<name>[^\s>]+)> (?P<text>.+)|-!- .*| \* .*|\S+ .*)")
WEECHAT = re.compile(r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\t(?P<name>[^\t]*)\t(?P<text>.*)")
EVENTS = {"", "--", "-->", "<--", "=!=", "*"}  # in the place of WeeChat's names
ZOOM = re.compile(
    r"(?P<time>\d\d:\d\d:\d\d)\s+From\s+(?P<name>.+?)(?:\s+to\s+(?P<to>[^:]+?)\s*)?(?::\s*$|\s+:\s+(?P<text>.*)$)"
)
REPLYING = re.compile(r'Replying to ".*"')


def chat_log(file: File) -> Messages | None:
    """An IRC channel is a stream; a meeting is a conversation without dates."""
    lines = (file.text or "").split("\n")
    forms: tuple[tuple[re.Pattern[str], Callable[[File, list[str]], Messages]], ...] = (
        (OPENED, _irssi),
        (WEECHAT, _weechat),
        (ZOOM, _zoom),
    )
    for pattern, messages in forms:
        if pattern.match(next((line.rstrip() for line in lines[:N_LOOKED_AT] if line.strip()), "")):
            return messages(file, lines)
    return None


def _irssi(file: File, lines: list[str]) -> Messages:
    day = ""
    for number, line in enumerate(lines, 1):
        if opened := OPENED.match(line.rstrip()):
            try:
                at = read_time(f"{opened['day']} {opened['year']}")  # knows months of other languages
            except ValueError as error:
                yield DataError(f"{file.path}:{number}: {error}")
            else:
                day = "" if at is None else at.date().isoformat()
        elif said := IRSSI.match(line):
            if said["name"]:
                where = f"{file.path}:{number}"
                yield Message(where, file.stem, said["name"], said["text"], time=f"{day} {said['clock']}")
            else:
                yield SYSTEM


def _weechat(file: File, lines: list[str]) -> Messages:
    for number, line in enumerate(lines, 1):
        if said := WEECHAT.match(line):
            name, text = said["name"].strip().lstrip("@+%&~"), said["text"].strip()
            if name in EVENTS or not text:
                yield SYSTEM
            else:
                yield Message(f"{file.path}:{number}", file.stem, name, text, time=said["time"])


def _zoom(file: File, lines: list[str]) -> Messages:
    """A message ends before the next line that begins with a time; an answer quotes a part of its message first."""
    starts = [number for number, line in enumerate(lines) if ZOOM.match(line)]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        said = ZOOM.match(lines[start])
        assert said is not None  # how the line was found
        words = [line.strip() for line in ([said["text"]] if said["text"] else []) + lines[start + 1 : end]]
        text = "\n".join(line for line in words if line and not REPLYING.fullmatch(line))
        if text:
            yield Message(f"{file.path}:{start + 1}", file.stem, said["name"].strip(), text, file.stem)
