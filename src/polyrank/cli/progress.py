"""A display for several concurrent tasks."""

from typing import Any

from polyrank.cli.console import ProgressDisplay, console, notify


class WorkDisplay(ProgressDisplay):
    """A progress bar for each task; plain lines if stderr is not a terminal."""

    def __init__(self) -> None:
        super().__init__(transient=True)
        self.tasks: dict[str, Any] = {}

    def report(self, what: str, done: int, total: int) -> None:
        """Update the bar of a task. ``what`` is its name, optionally followed by a comma and a note."""
        name, comma, _ = what.partition(",")
        if name not in self.tasks:
            self.tasks[name] = self.progress.add_task(name, total=total)
        self.progress.update(self.tasks[name], completed=done, description=what)
        if not console().is_terminal and (comma or done == total):
            notify(what)
