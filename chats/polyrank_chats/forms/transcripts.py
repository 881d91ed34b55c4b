"""Plain text with lines such as ``Name: text``; blank lines and rules separate conversations.

In WebVTT, SubRip, and texts with headings such as ``Ann Lee  0:03``, the lines have times; a file is a conversation.
Cells of a table may hold transcripts.
"""

import html
import re
from collections.abc import Iterable, Iterator

from polyrank_chats.errors import row_error
from polyrank_chats.files.file import File
from polyrank_chats.messages import Message, Messages
from polyrank_chats.patterns import pattern
from polyrank_chats.texts import plain
from polyrank_chats.values import Row, text_of

LINE, HEADING = pattern("transcript_line"), pattern("transcript_heading")
CUE = re.compile(r"(?:\d+:)?\d\d:\d\d[.,]\d{3} --> ")
VOICE = re.compile(r"(?:<v(?:\.[^\s<>]*)? ([^<>]+)>|\[([^\W\d_][^\]\n]{0,39})\] ?: )")
Lines = list[tuple[int, str]]  # with their numbers


def is_transcript(text: str) -> bool:
    """Whether most lines begin with a name, and at least two names repeat or are all names.

    >>> is_transcript("Agent: hi\\nAnn: hello\\n\\nAgent: bye"), is_transcript("Dear Ann,\\nnote: all is well.")
    (True, False)
    """
    lines = [line for line in text.split("\n") if line.strip()][:200]
    names = [_name(found) for line in lines if (found := LINE.match(line.strip()))]
    return len(set(names)) > 1 and 2 * len(names) >= len(lines) and 2 * len(set(names)) <= len(names) + 2


def transcript(file: File) -> Messages | None:
    """Each block is a conversation; if no block has two messages, the whole file is one conversation."""
    options = file.options
    has_columns = any((options.sender, options.text, options.question, options.answer))
    if file.text is None:
        return None
    if text := untimed(file.text):
        return _messages(file, text, is_timed=True)
    first = next(filter(None, map(str.strip, file.text.split("\n"))), "")
    is_header = not LINE.match(first) and re.search(r"[,;\t|]", first)
    if options.form is None and (has_columns or is_header or not is_transcript(file.text)):
        return None
    return _messages(file, file.text)


def untimed(text: str) -> str:
    """The lines of a timed transcript with the speaker before each text; empty for other texts.

    >>> untimed("WEBVTT\\n\\n00:01.000 --> 00:02.000\\n<v Ann>It <i>is</i>.").split("\\n")
    ['', '', '', '**Ann:** It is.']
    """
    if text.startswith("WEBVTT") or re.search(rf"^{CUE.pattern}", text[:500], re.MULTILINE):
        lines, is_cue, last = list[str](), False, ""
        for line in text.split("\n"):
            is_start = CUE.match(line) is not None
            is_cue = bool(line.strip()) and (is_cue or is_start)
            if (voice := VOICE.search(line)) and is_cue:
                name, line = voice[1] or voice[2], VOICE.sub("", line, count=1)
                line, last = line if name == last else f"**{name}:** {line}", name
            lines.append(html.unescape(re.sub(r"<[^<>]*>", "", line)) if is_cue and not is_start else "")
        return "\n".join(lines)
    names = HEADING.findall(text[:20_000])
    is_headed = len(set(names)) > 1 and 6 * len(names) > text[:20_000].count("\n")
    return HEADING.sub(lambda heading: f"**{heading[1].strip()}:**", text) if is_headed else ""


def _messages(file: File, text: str, *, is_timed: bool = False) -> Messages:
    blocks = list(_blocks(text))
    alone = all(sum(LINE.match(line) is not None for _, line in block) < 2 for block in blocks)
    found = [LINE.match(line) for block in blocks for _, line in block]
    if is_timed or any(each and not each["text"] for each in found):  # texts are below their names
        blocks = [[line for block in blocks for line in block]]
    for block_number, block in enumerate(blocks, 1):
        conversation = file.stem if alone or len(blocks) == 1 else f"{file.stem}:{block_number}"
        for number, name, words in _spoken(block):
            if not name:
                yield row_error(file.path, number, "does not begin with a name; write lines such as Ann: hello")
            elif said := " ".join(words.split()) if is_timed else words:  # its lines end where a subtitle does
                yield Message(f"{file.path}:{number}", file.stem, name, said, conversation)


def spoken(text: str) -> list[tuple[str, str]]:
    """Name and text of each message; a line without a name continues the message before.

    >>> spoken("Agent: hi\\nall\\n\\nAnn: hello")
    [('Agent', 'hi\\nall'), ('Ann', 'hello')]
    """
    return [(name, words) for _, name, words in _spoken(line for block in _blocks(text) for line in block) if name]


def _spoken(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str, str]]:
    """Line, name and text of each message; the name is empty for lines before the first name."""
    start, name, words = 0, "", list[str]()
    held = [(number, line, LINE.match(line)) for number, line in lines]
    stamped = [found for _, _, found in held if found and found["at"]]
    for number, line, found in held:
        if found and not found["at"] and len(stamped) > 1:  # such as Chat started: 9:00
            found = None
        if name and not found:
            words.append(line)
            continue
        if name:
            yield start, name, "\n".join(words).strip()
        start, name, words = (number, _name(found), [found["text"] or ""]) if found else (number, "", [])
        if not found:
            yield number, "", line
    if name:
        yield start, name, "\n".join(words).strip()


def _name(found: re.Match[str]) -> str:
    return (found["nick"] or found["bold"] or found["name"]).strip()


def _blocks(text: str) -> Iterator[Lines]:
    """Blocks of stripped lines between blank lines and rules, such as -----."""
    block: Lines = []
    for number, line in enumerate([*re.sub(r"(?m)^[-=_~#* \t]{3,}\r?$", "", text).split("\n"), ""], 1):
        if line.strip():
            block.append((number, line.strip()))
        elif block:
            yield block
            block = []


def holds_transcripts(rows: Iterable[Row], key: str) -> bool:
    """Whether most cells of a column are transcripts of several lines."""
    texts = [text for row in rows if (text := plain(text_of(row.get(key))))]
    return bool(texts) and sum("\n" in text and is_transcript(text) for text in texts) >= 0.8 * len(texts)
