"""What is being done, as it is done, for commands of several kinds of work; and lists of numbers in options."""

from typing import Any

from polyrank.cli.console import console, talk
from polyrank.errors import UsageError


def numbers(text: str, kind: Any, option: str) -> list[Any]:
    """Numbers with commas between, as an option takes them."""
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise UsageError(f"{option} {text!r} is no list of numbers; write them with commas between") from error


class WorkDisplay:
    """A live bar for each thing that is done; plain lines where stderr is no terminal."""

    def __init__(self) -> None:
        from rich.progress import Progress

        self.progress = Progress(console=console(), disable=not console().is_terminal, transient=True)
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> "WorkDisplay":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def report(self, what: str, done: int, total: int) -> None:
        """``what`` is a name and, behind a comma, a note that is worth a line of its own."""
        name, comma, _ = what.partition(",")
        if name not in self.tasks:
            self.tasks[name] = self.progress.add_task(name, total=total)
        self.progress.update(self.tasks[name], completed=done, description=what)
        if not console().is_terminal and (comma or done == total):
            talk(what)
