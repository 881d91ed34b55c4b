"""``polyrank respond``: lines of stdin are read and checked as rows of data files are."""

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyrank.cli import interrupts
from polyrank.cli.console import STDIN, console, stdin_lines, talk, use_threads
from polyrank.cli.options import AllowEcho, Device, EnsembleName, FilterText, NRetrieved, Rerank, Runtime, Threads
from polyrank.errors import ArtifactError, DataError, UsageError

if TYPE_CHECKING:
    from polyrank.answering.protocol import Answer
    from polyrank.records import Context, Ranked

COMMAND = re.compile(r"/[A-Za-z]*")  # unlike the turn "/etc/hosts is gone"
MEANT_AS_JSON = re.compile(r'\[\s*(\{\s*)?"|\{\s*"')  # unlike the turn "[laughs] hello"


def respond(
    path: Annotated[Path, typer.Argument(metavar="INDEX", help="An index or a pipeline folder.")],
    context: Annotated[list[str] | None, typer.Argument(help="The turns, oldest first.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many replies.")] = 5,
    model: Annotated[Path | None, typer.Option(help="The model, where it has moved since the index was built.")] = None,
    mode: Annotated[str | None, typer.Option(help="exact, or approximate by the index's own shortlist.")] = None,
    rerank: Rerank = None,
    n_retrieved: NRetrieved = 100,
    ensemble: EnsembleName = "none",
    filter: FilterText = None,
    allow_echo: AllowEcho = False,
    diverse: Annotated[
        bool | None,
        typer.Option("--diverse/--no-diverse", help="Replies that differ, from the best 50; by default in the chat."),
    ] = None,
    duplicates: Annotated[
        bool, typer.Option("--duplicates", help="List every candidate of a text, where several have the same.")
    ] = False,
    device: Device = "auto",
    backend: Runtime = "torch",
    threads: Threads = None,
) -> None:
    """The best replies: a chat in a terminal; in a pipe, JSON for each line of stdin.

    A line is text, a list of turns or of messages with role and content, or {"context": [...], "background": [...]}.
    """
    from polyrank.answering.pipeline import open_pipeline, read_mode
    from polyrank.index import as_filter
    from polyrank.loading.models import read_backend
    from polyrank.ranking.ensembles import read_ensemble

    asked = given_contexts(context)
    condition = as_filter(filter)  # before a model is loaded
    use_threads(threads)
    with open_pipeline(
        path,
        model=model,
        mode=read_mode(mode),
        rerank=rerank,
        n_retrieved=n_retrieved,
        ensemble=read_ensemble(ensemble),
        distinct=not duplicates,
        device=device,
        backend=read_backend(backend),
    ) as pipeline:
        answer = partial(pipeline.answer, k=k, filter=condition, allow_echo=allow_echo)
        if not context and sys.stdin.isatty():
            _chat(partial(answer, diverse=diverse is not False))
            return
        for query in asked:
            _print_answer(query, answer(query, diverse=diverse is True), str(path))


def _print_answer(context: "Context", result: "Answer", name: str) -> None:
    """The best replies to one context as a line of JSON."""
    for note in result.notes:
        talk(note)
    row: dict[str, Any] = {"context": context.turns, "results": [_row(reply) for reply in result.ranked]}
    if result.confidence is not None:
        # without a second reply to compare with it is infinite, which JSON cannot say
        confidence = None if math.isinf(result.confidence) else result.confidence
        row |= {"confidence": confidence, "abstained": result.abstained}
    if result.exact is not None:
        row |= {"exact": result.exact, "n_scored": result.n_scored, "ways": result.ways}
    print_row(row, name)


def _row(reply: "Ranked") -> dict[str, Any]:
    row = {"id": reply.id, "text": reply.text, "score": reply.score, "metadata": reply.metadata}
    return row | ({"stages": reply.stages} if reply.stages else {})


def print_row(row: dict[str, Any], model: str) -> None:
    """One line of JSON on stdout.

    Raises:
        ArtifactError: a score is not finite.
    """
    try:
        print(json.dumps(row, ensure_ascii=False, allow_nan=False), flush=True)
    except ValueError as error:
        raise ArtifactError(
            f"{model} gave a score that is not finite; its weights are damaged or diverged in training, train it again"
        ) from error


def given_contexts(turns: list[str] | None) -> "Iterable[Context]":
    """The context on the command line, checked at once; without one, those of stdin, line by line.

    Raises:
        DataError: names what is wrong, and the line.
    """
    if not turns:
        return _stdin_contexts()
    try:
        return [context_of_row({"context": turns})]
    except ValueError as error:
        raise DataError(f"the context on the command line: {error}") from error


def _stdin_contexts() -> "Iterator[Context]":
    from polyrank.data.rows import row_error

    for number, line in stdin_lines():
        try:
            yield context_of_line(line)
        except (ValueError, UsageError) as error:
            raise row_error(STDIN, number, error) from error


def context_of_line(line: str) -> "Context":
    """A line as a context: a JSON list of turns, an object as in data files, or plain text as one turn.

    Raises:
        ValueError: it is JSON, or meant as such, and says no context.
    """
    from polyrank.data.rows import strict_json
    from polyrank.records import Context

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


def context_of_row(row: dict[str, Any]) -> "Context":
    """The context of a row, by the rules of data files.

    Raises:
        ValueError: a field is missing or holds something else.
        UsageError: the context is empty.
    """
    from polyrank.data import fields
    from polyrank.data.rows import check_object
    from polyrank.records import Context

    check_object(row, escaped=True)
    return Context.of(fields.context(row), fields.optional_texts(row, "background"))


CHAT_COMMANDS = {
    "/new": "start a new conversation; so does an empty line",
    "/help": "these lines",
    "/quit": "leave; so do /exit and Ctrl-D",
}


def _chat(answer: "Callable[[list[str]], Answer]") -> None:
    """Type a turn, see the best replies; the first one is taken as said. What begins with a slash is a command."""
    talk(f"Type what the customer says. {', '.join(CHAT_COMMANDS)}: an empty line starts anew, Ctrl-D leaves.")
    turns: list[str] = []
    while True:
        interrupts.check()
        try:
            text = console().input("[bold]> [/]").strip()
        except EOFError:
            return
        if text in ("/quit", "/exit"):
            return
        if text in ("", "/new"):
            turns = []
            talk("(new conversation)")
        elif text == "/help":
            for command, meaning in CHAT_COMMANDS.items():
                talk(f"  {command:7} {meaning}")
        elif COMMAND.fullmatch(text):
            talk(f"{text} is no command; there are {', '.join(CHAT_COMMANDS)}")
        else:
            turns = _turn(answer, [*turns, text])


def _turn(answer: "Callable[[list[str]], Answer]", turns: list[str]) -> list[str]:
    """Show the best replies; the turns with the one that is taken as said."""
    result = answer(turns)
    replies, good = result.ranked, not result.abstained
    for note in result.notes:
        talk(note)
    if not good:
        talk("(no good answer; the nearest are)" if replies else "(no good answer)")
    for rank, reply in enumerate(replies):
        print(f"  {reply.score:7.2f}  {'→ ' if rank == 0 and good else '  '}{reply.text}")
    return [*turns, replies[0].text] if good else turns
