"""Timed transcripts: WebVTT of meetings, SubRip, and texts with headings such as ``Ann Lee  0:03``.

The speaker of a cue is in ``<v Name>`` or before a colon.
"""

import html
import re
from collections.abc import Iterable, Iterator
from itertools import groupby, zip_longest

from polyrank_chats.errors import row_error
from polyrank_chats.files.file import File
from polyrank_chats.messages import Message, Messages

CUE = re.compile(r"^(?:\d+:)?\d\d:\d\d[.,]\d{3} --> ", re.MULTILINE)
VOICE = re.compile(r"<v(?:\.[^\s>]*)? ([^>]+)>")
HEADING = re.compile(
    r"^([^\W\d_][^:\n,;|\t]{0,39}?)(?: [-–|])?[ \t]+(?:\d[\d./-]{5,9},? )?[(\[]?(?:\d+:)?\d{1,2}:\d\d[)\]]?:?[ \t]*$",
    re.MULTILINE,
)
NAMED = re.compile(r"\[?(?P<name>[^\W\d_][^:\n,;\]]{0,39}?)\]? ?: +(?P<text>\S.*)", re.DOTALL)


def webvtt(file: File) -> Messages | None:
    """A file is a conversation without dates; consecutive cues of a speaker are one message."""
    text = file.text
    if text is not None and (text.startswith("WEBVTT") or CUE.search(text[:500])):
        return _messages(file, _cues(text))
    names = [] if text is None else HEADING.findall(text[:20_000])
    if text is not None and len(set(names)) > 1 and 6 * len(names) > text[:20_000].count("\n"):
        return _messages(file, _headed(text))
    return None


def _headed(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, name and text below each heading."""
    found = list(HEADING.finditer(text))
    for heading, following in zip_longest(found, found[1:]):
        words = " ".join(text[heading.end() : following.start() if following else len(text)].split())
        if words:
            yield text.count("\n", 0, heading.start()) + 1, heading[1].strip(), words


def _cues(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, speaker and text of each cue; a cue without a speaker has that of the cue before, or an empty one."""
    line, speaker = 1, ""
    for block in re.split(r"(\n\s*\n)", text):
        if found := CUE.search(block):
            name, words = _said(block[found.end() :].partition("\n")[2].strip())
            speaker = name or speaker
            if words:
                yield line, speaker, words
        line += block.count("\n")


def _messages(file: File, cues: Iterable[tuple[int, str, str]]) -> Messages:
    for speaker, group in groupby(cues, key=lambda cue: cue[1]):
        own = list(group)
        words = " ".join(words for _, _, words in own)
        if speaker:
            yield Message(f"{file.path}:{own[0][0]}", file.stem, speaker, words, file.stem)
        else:
            yield from (row_error(file.path, line, "this cue has no speaker; add <v Name>") for line, _, _ in own)


def _said(cue: str) -> tuple[str, str]:
    """Speaker and text of a cue; the text becomes one line."""
    voice = VOICE.search(cue)
    named = None if voice else NAMED.match(cue)
    name, words = (voice[1], cue) if voice else (named["name"], named["text"]) if named else ("", cue)
    return name.strip(), " ".join(html.unescape(re.sub(r"</?[^>]*>", "", words)).split())
