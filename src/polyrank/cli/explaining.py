"""``polyrank explain``: explains the score of a reply, as a drawing or as JSON."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated
from unicodedata import category

from typer import Argument, Option

from polyrank.cli.answering import given_contexts, print_row
from polyrank.cli.console import console, make_console, use_processor
from polyrank.cli.options import Device, FilterText, MovedModel, Runtime, Threads
from polyrank.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from polyrank.scorers.explanation import Explanation, TokenShare, VectorShare

BAR = 12  # characters of the longest bar
STRONGEST = 5  # words, and context vectors, to list with their numbers
MEANINGS = {
    "sum of tokens": "the shares add up to the score",
    "sum of words": "the shares add up to the score",
    "counts": "how often the reply was said; no word has a share",
    "hubs": "the score of the reply in other contexts, negated; no word has a share",
    "left out": "a share is the loss of score without the turn or the word",
    "sum": "a share is the weighted sum of its shares in the terms",
}
ALONE = "a number of the reply alone; no word has a share"


def explain(
    path: Annotated[str, Argument(metavar="PATH", help="An index, or (with --reply) a model or ranker.")],
    context: Annotated[list[str] | None, Argument(help="The turns, oldest first. Default: lines of stdin.")] = None,
    reply: Annotated[str | None, Option(help="The text of the reply. Default: the best reply.")] = None,
    candidate_id: Annotated[str | None, Option("--id", metavar="ID", help="The id of the reply in the index.")] = None,
    words: Annotated[
        int, Option(min=0, help="For shares by omission: maximum number of words to omit one by one, per side.")
    ] = 64,
    filter: FilterText = None,
    json_: Annotated[bool, Option("--json", help="Print one line of JSON.")] = False,
    model: MovedModel = None,
    device: Device = "auto",
    backend: Runtime = "torch",
    threads: Threads = None,
) -> None:
    """Explain a reply's score: the share of each turn and each word.

    For Bi- and Poly-encoders, BM25, TF-IDF and sums of them, the shares add up to the score. For other models a share
    is the loss of score without the turn or the word.
    """
    from polyrank.index import as_filter, is_index

    if reply is not None and candidate_id is not None:
        raise UsageError(f"--reply and --id {candidate_id} name two replies; give one of them")
    if not context and sys.stdin.isatty():
        raise UsageError("the context is missing; write its turns after the path, oldest first")
    queries, answers = given_contexts(context), is_index(path)
    if not answers and (reply is None or model is not None or filter is not None):
        needless = "--filter" if model is None else "--model"
        what = f"{needless} needs an index; leave it out" if reply is not None else "give one with --reply TEXT"
        raise UsageError(f"{path} is not an index and contains no replies; {what}")
    from polyrank.answering.explain import explain as explain_scorer
    from polyrank.answering.opening import open_replies
    from polyrank.scorers.open import load

    use_processor(threads)
    condition = as_filter(filter)
    with ExitStack() as opened:
        if answers:
            replies = opened.enter_context(open_replies(path, model=model, device=device, backend=backend))
            why = partial(replies.explain, text=reply, candidate_id=candidate_id, max_words=words, filter=condition)
        else:
            scorer = load(path, device=device, backend=backend)
            why = partial(explain_scorer, scorer, candidate=reply or "", max_words=words)
        for query in queries:
            with console().status("explaining"):
                explanation = why(query)
            if json_:
                print_row(explanation.as_dict(), path)
            else:
                _draw(make_console(highlight=False), explanation, explanation.candidate.text)


def _draw(out: "Console", explanation: "Explanation", title: str, whole: str = "") -> None:
    """Draw an explanation, and below it those of its parts and of their parts.

    Args:
        out: the console.
        explanation: of a score.
        title: shown next to the score.
        whole: the beginning of the titles of the parts.
    """
    out.print(f"{explanation.score:.4f}", _plain(title), style="bold")
    out.print(f"{explanation.method}: {MEANINGS.get(explanation.method, ALONE)}", style="dim")
    table = _table()
    texts = [("background", fact) for fact in explanation.background]
    texts += [(f"turn {number}", turn) for number, turn in enumerate(explanation.turns, 1)]
    longest = max((abs(text.share) for _, text in texts), default=0.0)
    for name, text in texts:
        table.add_row(name, f"{text.share:+.3f}", _bar(text.share, longest), _painted(text.text, text.tokens))
        if strongest := _strongest(text.tokens):
            table.add_row("", "", "", strongest)
    side = explanation.candidate
    if texts:
        table.add_row("rest", f"{explanation.rest:+.3f}", _bar(explanation.rest, longest), "")
    if side.tokens:
        table.add_row("reply", "", "", _painted(side.text, side.tokens))
        table.add_row("", "", "", _strongest(side.tokens))
    out.print(table)
    if side.method != explanation.method:
        out.print(f"reply by {side.method}: {MEANINGS.get(side.method, ALONE)}", style="dim")
    if explanation.vectors:
        _draw_vectors(out, explanation.vectors)
    for name, part in explanation.parts.items():
        out.print()
        weight = "" if part.weight is None else f" (weight {part.weight:.4g})"
        _draw(out, part, f"{whole}{name}{weight}", f"{whole}{name}: ")


def _draw_vectors(out: "Console", vectors: "Sequence[VectorShare]") -> None:
    out.print(
        "context vectors with the highest weights for the reply, and the tokens that each attends to", style="dim"
    )
    table = _table()
    for vector in vectors[:STRONGEST]:
        looks = ", ".join(f"{look.text or '·'} {look.weight:.2f}" for look in vector.tokens[:STRONGEST])
        table.add_row(f"vector {vector.index}", f"{vector.weight:.2f} x {vector.dot:.3f}", "", _plain(looks))
    out.print(table)


def _table() -> "Table":
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    return table


def _bar(share: float, longest: float) -> str:
    return "█" * round(BAR * min(abs(share) / longest, 1)) if longest else ""


def _painted(text: str, tokens: "Sequence[TokenShare]") -> "Text":
    """The text with its tokens in green or red: bold above half of the greatest share, struck through if cut off."""
    painted = _plain(text)
    greatest = max((abs(token.share) for token in tokens), default=0.0)
    for token in tokens:
        colour = "green" if token.share > 0 else "red"
        if not token.read:
            painted.stylize("dim strike", token.start, token.end)
        elif abs(token.share) > greatest / 2:
            painted.stylize(f"bold {colour}", token.start, token.end)
        elif abs(token.share) > greatest / 8:
            painted.stylize(colour, token.start, token.end)
    return painted


def _strongest(tokens: "Sequence[TokenShare]") -> "Text":
    """The tokens with the greatest shares as numbers, and how many were cut off: readable without colours."""
    best = sorted((token for token in tokens if token.share), key=lambda token: -abs(token.share))[:STRONGEST]
    listed = [f"{token.text} {token.share:+.3f}" for token in best]
    n_cut = sum(not token.read for token in tokens)
    return _plain(", ".join([*listed, *([f"{n_cut} not read"] if n_cut else [])]))


def _plain(text: str) -> "Text":
    """Text without markup, in one line; white space and control characters become spaces."""
    from rich.text import Text

    return Text("".join(" " if c.isspace() or category(c) == "Cc" else c for c in text))
