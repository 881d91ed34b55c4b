"""Timed transcripts: WebVTT, as meetings give it, and SubRip. A cue's speaker is in ``<v Name>`` or before a colon."""

import html
import re
from itertools import groupby

from polyrank.data.chats.files import File
from polyrank.data.chats.messages import Message, Messages
from polyrank.data.rows import row_error

CUE = re.compile(r"^(?:\d+:)?\d\d:\d\d[.,]\d{3} --> ", re.MULTILINE)
VOICE = re.compile(r"<v(?:\.[^\s>]*)? ([^>]+)>")
NAMED = re.compile(r"\[?(?P<name>[^\W\d_][^:\n,;\]]{0,39}?)\]? ?: +(?P<text>\S.*)", re.DOTALL)


def webvtt(file: File) -> Messages | None:
    """A file is a conversation without dates; cues of one speaker in a row are one message."""
    text = file.text
    return None if text is None or not (text.startswith("WEBVTT") or CUE.search(text[:500])) else _messages(file, text)


def _messages(file: File, text: str) -> Messages:
    cues: list[tuple[int, str, str]] = []
    line = 1
    for block in re.split(r"(\n\s*\n)", text):
        if found := CUE.search(block):
            said = block[found.end() :].partition("\n")[2].strip()
            name, words = _said(said)
            speaker = name or (cues[-1][1] if cues else "")
            if words and not speaker:
                file.options.log.bad.add(row_error(file.path, line, "nobody is named in this cue; add <v Name>"))
            elif words:
                cues.append((line, speaker, words))
        line += block.count("\n")
    for speaker, group in groupby(cues, key=lambda cue: cue[1]):
        own = list(group)
        words = " ".join(words for _, _, words in own)
        yield Message(f"{file.path}:{own[0][0]}", file.stem, speaker, words, file.stem)


def _said(cue: str) -> tuple[str, str]:
    """The speaker and the words of a cue, on one line."""
    voice = VOICE.search(cue)
    named = None if voice else NAMED.match(cue)
    name, words = (voice[1], cue) if voice else (named["name"], named["text"]) if named else ("", cue)
    return name.strip(), " ".join(html.unescape(re.sub(r"</?[^>]*>", "", words)).split())
