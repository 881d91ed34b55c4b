"""The layout of help texts: commands in groups with whole first sentences, and examples at the end."""

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

F = TypeVar("F", bound=Callable[..., Any])
PROMPT = "$ "
PASSED_ON: dict[str, Any] = {  # settings of a command that passes its arguments on to another command line
    "add_help_option": False,
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
}


class Command(TyperCommand):
    """A command whose epilog is Markdown, for the written reference; its help prints the examples as plain lines."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Print the examples."""
        lines = [line for line in (self.epilog or "").splitlines() if line.startswith(PROMPT)]
        with formatter.section("Examples" if len(lines) > 1 else "Example"):
            for line in lines:
                formatter.write(f"{'':{formatter.current_indent}}{line.removeprefix(PROMPT)}\n")


class CommandGroup(TyperGroup):
    """A group of commands whose help lists them in sections, each with its first sentence."""

    panels: ClassVar[dict[str, str]]
    """The names of the commands, by the title of their section."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the commands, in the order of the help."""
        return " ".join(self.panels.values()).split()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Print the sections."""
        for title, names in self.panels.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str()) for name in names.split()])


def add_command(
    app: typer.Typer, name: str, *examples: str, text: str | None = None, **settings: Any
) -> Callable[[F], F]:
    """Register a function as a command.

    Args:
        app: the group of the command.
        name: of the command.
        examples: command lines, from the first argument on.
        text: the help; None: the function's docstring.
        settings: of Typer's command.
    """
    prefix = " ".join(filter(None, (f"{PROMPT}polyrank", app.info.name if app.info.name != "polyrank" else "", name)))
    lines = "\n".join(f"{prefix} {example}".rstrip() for example in examples or ("",))
    epilog = f"**Example{'s' if len(examples) > 1 else ''}**:\n\n```console\n{lines}\n```"

    def register(function: F) -> F:
        short_help = first_sentence(text or function.__doc__ or "")
        return app.command(name, cls=Command, help=text, short_help=short_help, epilog=epilog, **settings)(function)

    return register


def command_group(name: str, text: str, **settings: Any) -> typer.Typer:
    """An empty group of commands; without a command it prints its help."""
    return typer.Typer(name=name, no_args_is_help=True, help=text, short_help=first_sentence(text), **settings)


def first_sentence(text: str) -> str:
    """The first sentence of a help text, without its period.

    >>> first_sentence("Copy an index. It stays searchable.")
    'Copy an index'
    """
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].removesuffix(".")
