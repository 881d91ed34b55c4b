"""``polyrank respond``. Lines of stdin follow the same rules as rows of data files."""

import json
import math
import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from polyrank.cli import interrupts
from polyrank.cli.console import console, notify, parsed_lines, use_processor
from polyrank.cli.options import AllowEcho, Device, FilterText, MovedModel, Runtime, Threads
from polyrank.config.names import Mode
from polyrank.errors import ArtifactError, DataError
from polyrank.records import Context, Ranked

if TYPE_CHECKING:
    from polyrank.answering.answers import Answer

COMMAND = re.compile(r"/[A-Za-z]*")  # does not match the turn "/etc/hosts is gone"
MEANT_AS_JSON = re.compile(r'\[\s*(\{\s*)?"|\{\s*"')  # does not match the turn "[laughs] hello"


def respond(
    path: Annotated[Path, Argument(metavar="INDEX", help="An index folder.")],
    context: Annotated[list[str] | None, Argument(help="The turns, oldest first.")] = None,
    k: Annotated[int, Option("-k", min=1, help="Number of replies.")] = 5,
    model: MovedModel = None,
    mode: Annotated[Mode | None, Option(help="Search mode.")] = None,
    filter: FilterText = None,
    allow_echo: AllowEcho = False,
    diverse: Annotated[
        bool | None,
        Option("--diverse/--no-diverse", help="Replies that differ, from the best 50. Default: only in the chat."),
    ] = None,
    duplicates: Annotated[
        bool, Option("--duplicates", help="Return every candidate, even if several have the same text.")
    ] = False,
    any_language: Annotated[
        bool, Option("--any-language", help="Also return replies in other languages than the context's.")
    ] = False,
    device: Device = "auto",
    backend: Runtime = "torch",
    threads: Threads = None,
) -> None:
    """Find the best replies to a context: as a chat in a terminal, or as JSON for each line of stdin in a pipe.

    A line is text, a list of turns or of messages with role and content, or {"context": [...], "background": [...]}.
    """
    from polyrank.answering.opening import open_replies
    from polyrank.index import as_filter

    queries = given_contexts(context)
    condition = as_filter(filter)  # checked before the model loads
    use_processor(threads)
    with open_replies(path, model=model, mode=mode, distinct=not duplicates, device=device, backend=backend) as replies:
        answer = partial(replies.answer, k=k, filter=condition, allow_echo=allow_echo, any_language=any_language)
        if not context and sys.stdin.isatty():
            _chat(partial(answer, diverse=diverse is not False))
            return
        for query in queries:
            _print_answer(query, answer(query, diverse=diverse is True), str(path))


def _print_answer(context: Context, result: "Answer", name: str) -> None:
    """Print the best replies to one context as a line of JSON."""
    for note in result.notes:
        notify(note)
    row: dict[str, Any] = {"context": context.turns, "results": [_row(reply) for reply in result.ranked]}
    if result.confidence is not None:
        # with too few replies it is minus infinity, which JSON cannot represent
        confidence = None if math.isinf(result.confidence) else result.confidence
        row |= {"confidence": confidence, "abstained": result.abstained}
    if result.exact is not None:
        row |= {"exact": result.exact, "n_scored": result.n_scored, "ways": result.ways}
    print_row(row, name)


def _row(reply: Ranked) -> dict[str, Any]:
    row = {"id": reply.id, "text": reply.text, "score": reply.score, "metadata": reply.metadata}
    row |= {"template": reply.template, "slots": reply.slots} if reply.slots else {}
    return row | ({"stages": reply.stages} if reply.stages else {})


def print_row(row: dict[str, Any], model: str) -> None:
    """Print one line of JSON.

    Raises:
        ArtifactError: a score is not finite.
    """
    try:
        line = json.dumps(row, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise ArtifactError(
            f"{model} returned a score that is not finite; its weights are damaged or diverged, so train it again"
        ) from error
    print(line, flush=True)


def given_contexts(turns: list[str] | None) -> Iterable[Context]:
    """The context on the command line, checked at once, or the contexts of stdin, line by line.

    Raises:
        DataError: names the line and the error.
    """
    if not turns:
        return parsed_lines(lambda number, line: context_of_line(line))
    try:
        return [context_of_row({"context": turns})]
    except ValueError as error:
        raise DataError(f"the context on the command line: {error}") from error


def context_of_line(line: str) -> Context:
    """Parse a line as a context: a JSON list of turns, an object as in data files, or plain text as one turn.

    Raises:
        ValueError: the line is JSON, valid or broken, but not a context.
    """
    from polyrank.data.lines import strict_json

    if not line.startswith(("[", "{")):
        return Context((line,))
    try:
        value = strict_json.decode(line)
    except json.JSONDecodeError as error:
        if not MEANT_AS_JSON.match(line):
            return Context((line,))
        raise ValueError(f"broken JSON ({error}); write a list of turns or plain text") from error
    except RecursionError as error:
        raise ValueError("nested too deeply; write a list of turns or plain text") from error
    return context_of_row({"context": value} if isinstance(value, list) else value)


def context_of_row(row: dict[str, Any]) -> Context:
    """Parse the context of a row, by the rules of data files.

    Raises:
        ValueError: a field is missing or has the wrong type.
        UsageError: the context is empty.
    """
    from polyrank.data import fields
    from polyrank.data.lines import check_object

    check_object(row, escaped=True)
    return Context.of(fields.context(row), fields.optional_texts(row, "background"))


CHAT_COMMANDS = {
    "/new": "start a new conversation; an empty line does the same",
    "/help": "show these lines",
    "/quit": "end the chat; /exit and Ctrl-D do the same",
}


def _chat(answer: "Callable[[list[str]], Answer]") -> None:
    """Read turns and show the best replies; the best one joins the context. A word after a slash is a command."""
    notify(
        f"Type the customer's turn. Commands: {', '.join(CHAT_COMMANDS)}. An empty line starts again, Ctrl-D ends it."
    )
    turns: list[str] = []
    while True:
        interrupts.raise_if_interrupted()
        try:
            text = console().input("[bold]> [/]").strip()
        except EOFError:
            return
        except UnicodeDecodeError:
            notify("that line is not UTF-8; type it again")
            continue
        if text in ("/quit", "/exit"):
            return
        if text in ("", "/new"):
            turns = []
            notify("(new conversation)")
        elif text == "/help":
            for command, meaning in CHAT_COMMANDS.items():
                notify(f"  {command:7} {meaning}")
        elif COMMAND.fullmatch(text):
            notify(f"{text} is not a command; use {', '.join(CHAT_COMMANDS)}")
        else:
            turns = _turn(answer, [*turns, text])


def _turn(answer: "Callable[[list[str]], Answer]", turns: list[str]) -> list[str]:
    """Show the best replies; returns the turns with the best reply added."""
    result = answer(turns)
    replies, good = result.ranked, not result.abstained
    for note in result.notes:
        notify(note)
    if not good:
        notify("(no good answer; the nearest replies are)" if replies else "(no good answer)")
    for rank, reply in enumerate(replies):
        print(f"  {reply.score:7.2f}  {'→ ' if rank == 0 and good else '  '}{reply.text}")
    return [*turns, replies[0].text] if good else turns
