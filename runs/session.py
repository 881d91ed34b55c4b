"""Records a chat with an index of the sample's replies as docs/session.svg: python runs/session.py

The script runs the command in a new pseudo-terminal, types a question at each prompt, and draws the terminal's content.
"""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.text import Text

import polyrank

SESSION = Path(__file__).parents[1] / "docs/session.svg"
COMMAND = ("polyrank", "respond", "support", "-k", "3")
TYPED = ("my wifi is down", "", "how do I change my wifi password?")  # the empty line starts a new conversation
PROMPT, END = b"> ", b"\x04"
COLUMNS, LINES = 96, 24
PATIENCE = 120  # seconds without output from the command


def converse(folder: Path) -> str:
    """The terminal's content: the command's output and the typed questions."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    command = subprocess.Popen(
        [sys.executable, "-m", *COMMAND],
        cwd=folder,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(follower)
    shown, lines = b"", [*(line.encode() + b"\n" for line in TYPED), END]
    while select.select([leader], [], [], PATIENCE)[0]:
        try:
            part = os.read(leader, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
        if lines and Text.from_ansi(shown.decode("utf-8", "replace")).plain.encode().endswith(PROMPT):
            os.write(leader, lines.pop(0))
    os.close(leader)  # ends a command that still waits for input
    if command.wait() or lines:
        raise SystemExit(f"the chat ended early:\n{shown.decode('utf-8', 'replace')}")
    return shown.decode()


def main() -> None:
    sample = Path(polyrank.__file__).parent / "sample"
    with TemporaryDirectory() as name:
        folder = Path(name)
        model = "untuned:embedded"
        replies = polyrank.read_pool(sample / "replies.jsonl")
        polyrank.build_index(folder / "support", model, replies)
        shown = converse(folder)
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "bold green"), " ".join(COMMAND)))
    console.print(Text.from_ansi(shown.replace("\r\n", "\n").strip()))
    drawn = console.export_svg(title="polyrank respond", unique_id="session")
    fonts = re.compile(r"@font-face {[^}]*}\s*")  # no fonts from the network: browsers use their own monospaced font
    SESSION.write_text(fonts.sub("", drawn), "utf-8")


if __name__ == "__main__":
    main()
