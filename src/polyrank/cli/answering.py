"""``polyrank respond`` and ``polyrank rank``."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyrank.cli.console import console, talk
from polyrank.errors import DataError

if TYPE_CHECKING:
    from polyrank.pipeline import Pipeline
    from polyrank.records import Ranked


def respond(
    place: Annotated[Path, typer.Argument(metavar="INDEX", help="An index or a pipeline folder.")],
    context: Annotated[list[str] | None, typer.Argument(help="The turns, oldest first.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many replies.")] = 5,
    model: Annotated[Path | None, typer.Option(help="The model, where it has moved since the index was built.")] = None,
    mode: Annotated[
        str | None, typer.Option(help="fast, exact or certified, which find the same, or approximate.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    backend: Annotated[str, typer.Option(help="torch, or an export of the model: onnx, openvino.")] = "torch",
) -> None:
    """The best replies: a chat in a terminal; in a pipe, JSON for each line of stdin (a list of turns, or text)."""
    from polyrank.backends import read_backend
    from polyrank.pipeline import open_pipeline, read_mode
    from polyrank.records import Context

    pipeline = open_pipeline(place, model=model, mode=read_mode(mode), device=device, backend=read_backend(backend))

    def answer(turns: tuple[str, ...]) -> None:
        found = pipeline.answer([Context(turns)], k)[0]
        row: dict[str, Any] = {"context": turns, "results": [_row(reply) for reply in found.ranked]}
        if found.confidence is not None:
            row |= {"confidence": found.confidence, "abstained": found.abstained}
        if found.exact is not None:
            row |= {"exact": found.exact, "n_scored": found.n_scored}
        print(json.dumps(row, ensure_ascii=False), flush=True)

    if context:
        answer(tuple(context))
    elif sys.stdin.isatty():
        _chat(pipeline, k)
    else:
        for number, line in enumerate(sys.stdin, 1):
            if line.strip():
                answer(_turns(line, number))


def _row(reply: "Ranked") -> dict[str, Any]:
    row = {"id": reply.id, "text": reply.text, "score": reply.score, "metadata": reply.metadata}
    return row | ({"stages": reply.stages} if reply.stages else {})


def _turns(line: str, number: int) -> tuple[str, ...]:
    """A line of stdin as turns: a JSON list of strings, {"context": [...]}, or plain text as one turn."""
    text = line.strip()
    if not text.startswith(("[", "{")):
        return (text,)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DataError(f"stdin:{number}: broken JSON ({error}); write a list of turns or plain text") from error
    turns = value.get("context") if isinstance(value, dict) else value
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise DataError(f'stdin:{number}: not a list of turns; write for example ["hello", "hi, my wifi is down"]')
    return tuple(turns)


def _chat(pipeline: "Pipeline", k: int) -> None:
    """Type a turn, see the best replies; the first one is taken as said. An empty line starts anew."""
    from polyrank.records import Context

    talk("Type what the customer says. An empty line starts a new conversation, Ctrl-D leaves.")
    turns: list[str] = []
    while True:
        try:
            text = console().input("[bold]> [/]").strip()
        except EOFError:
            return
        if not text:
            turns = []
            talk("(new conversation)")
            continue
        turns.append(text)
        answer = pipeline.answer([Context(tuple(turns))], k)[0]
        if answer.abstained:
            talk("(no good answer; the nearest are)" if answer.ranked else "(no good answer)")
        for place, reply in enumerate(answer.ranked):
            print(f"  {reply.score:7.2f}  {'→ ' if place == 0 and not answer.abstained else '  '}{reply.text}")
        if not answer.abstained:
            turns.append(answer.ranked[0].text)


def rank(
    model: Annotated[str, typer.Argument(help="A model folder, bm25, tfidf, untuned:BACKBONE or shipped:convert.")],
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    backend: Annotated[str, typer.Option(help="torch, or an export of the model: onnx, openvino.")] = "torch",
) -> None:
    """Score candidates: lines of {"context": [...], "candidates": [...]} on stdin, lines of {"scores": [...]} out."""
    from polyrank.backends import read_backend
    from polyrank.records import Context
    from polyrank.scorers import open_scorer

    scorer = open_scorer(model, device=device, backend=read_backend(backend))
    for number, line in enumerate(sys.stdin, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            context, candidates = row["context"], row["candidates"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f'stdin:{number}: needs "context" and "candidates" ({error})') from error
        turns = (context,) if isinstance(context, str) else tuple(map(str, context))
        print(
            json.dumps({"scores": scorer.score([Context(turns)], [list(map(str, candidates))])[0].tolist()}), flush=True
        )
