"""Plain text in which a line is ``Name: what they say``, and a blank line parts conversations."""

import re
from collections.abc import Iterator

from polyrank.data.chats.files import File
from polyrank.data.chats.messages import Message, Messages, ReadOptions
from polyrank.data.rows import row_error

LINE = re.compile(r"(?:[\[(][\d:., APMapm]+[\])] *)?(?P<name>[^\W\d_][^:\n,;\t]{0,39}?) ?: +(?P<text>\S.*)")


def is_transcript(text: str) -> bool:
    """Whether most lines begin with a name, and two names come more than once or all there are.

    >>> is_transcript("Agent: hi\\nAnn: hello\\n\\nAgent: bye"), is_transcript("Dear Ann,\\nnote: all is well.")
    (True, False)
    """
    lines = [line for line in text.split("\n") if line.strip()][:200]
    names = [found["name"] for line in lines if (found := LINE.match(line.strip()))]
    return len(set(names)) > 1 and 2 * len(names) > len(lines) and 2 * len(set(names)) <= len(names) + 2


def transcript(file: File) -> Messages | None:
    """Each block is a conversation; where no block has a second line, the whole file is one."""
    options = file.options
    if file.text is None or (options.form is None and (_named(options) or not is_transcript(file.text))):
        return None
    return _messages(file, file.text)


def _named(options: ReadOptions) -> bool:
    """Whether the user has named columns."""
    return any((options.sender, options.text, options.question, options.answer))


def _messages(file: File, text: str) -> Messages:
    blocks = list(_blocks(text))
    alone = all(sum(LINE.match(line) is not None for _, line in block) < 2 for block in blocks)
    for block_number, block in enumerate(blocks, 1):
        conversation = file.stem if alone or len(blocks) == 1 else f"{file.stem}:{block_number}"
        start, name, said = 0, "", list[str]()
        for number, line in [*block, (0, "")]:
            found = LINE.match(line)
            if said and (found or not line):
                yield Message(f"{file.path}:{start}", file.stem, name, "\n".join(said), conversation)
                said = []
            if found:
                start, name, said = number, found["name"], [found["text"]]
            elif line and said:
                said.append(line)
            elif line:
                file.options.log.bad.add(row_error(file.path, number, "begins with no name; write as: Ann: hello"))


def spoken(text: str) -> Iterator[tuple[str, str]]:
    """Who says what, line by line; a line without a name goes on with the one before.

    >>> list(spoken("Agent: hi\\nall\\n\\nAnn: hello"))
    [('Agent', 'hi\\nall'), ('Ann', 'hello')]
    """
    name, words = "", list[str]()
    for line in filter(None, map(str.strip, text.split("\n"))):
        if found := LINE.match(line):
            if words:
                yield name, "\n".join(words)
            name, words = found["name"], [found["text"]]
        elif words:
            words.append(line)
    if words:
        yield name, "\n".join(words)


def _blocks(text: str) -> Iterator[list[tuple[int, str]]]:
    block: list[tuple[int, str]] = []
    for number, line in enumerate([*text.split("\n"), ""], 1):
        if line.strip():
            block.append((number, line.strip()))
        elif block:
            yield block
            block = []
