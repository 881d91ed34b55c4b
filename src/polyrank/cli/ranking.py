"""``polyrank rank``: sorts documents by a model's scores, for one query or for many."""

import re
import sys
from collections.abc import Iterator, Sequence
from os.path import isfile
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from polyrank.cli.answering import MEANT_AS_JSON, context_of_row, print_row
from polyrank.cli.console import make_console, notify, parsed_lines, report_cut_texts, use_processor
from polyrank.cli.options import CandidateTokens, ContextTokens, Device, Runtime, Threads
from polyrank.errors import DataError, UsageError
from polyrank.records import Candidate, Context, Ranked


def rank(
    model: Annotated[
        str,
        Argument(
            help="A model or ranker folder, a Hugging Face model, bm25, tfidf, untuned:BACKBONE or shipped:convert."
        ),
    ],
    query: Annotated[str | None, Argument(help="The query. Default: each line of stdin has one.")] = None,
    files: Annotated[list[Path] | None, Argument(help="Files of documents. Default: the lines of stdin.")] = None,
    top: Annotated[int | None, Option("--top", "-k", min=1, help="Show only the best N.")] = None,
    scores_only: Annotated[
        bool, Option("--scores-only", help='Print {"scores": [...]} in the order of the documents.')
    ] = False,
    json_: Annotated[bool, Option("--json", help="Print JSON in a terminal too.")] = False,
    max_context_tokens: ContextTokens = None,
    max_candidate_tokens: CandidateTokens = None,
    device: Device = "auto",
    backend: Runtime = "torch",
    threads: Threads = None,
) -> None:
    """Rank documents for a query: as a table in a terminal, or as a line of JSON for each query in a pipe.

    With a query, the documents are those of files or the lines of stdin. A .txt file has one document per line; JSON
    lines, CSV and Parquet have one per row, with a text and optionally an id.

    Without a query, each line of stdin is an object: {"query": "...", "documents": ["...", ...]}, or {"context": [...],
    "candidates": [...]}. A query may be a list of turns, a document may be {"id": ..., "text": ...}, and the object may
    have a background, as in data files.
    """
    from polyrank.loading import Lengths, resolve_model
    from polyrank.scorers.chunks import Chunked
    from polyrank.scorers.open import open_ranking

    if scores_only and top is not None:
        raise UsageError(f"--scores-only prints all scores in the order of the documents; leave out --top {top}")
    if query is not None and not query.strip():
        raise UsageError("the query is empty; give a query with a visible character")
    if query is not None and isfile(query):  # noqa: PTH113  # false for a query that is longer than a path
        raise UsageError(f"the query {query!r} is a file; give the query first, and then the files to rank")
    lengths = Lengths(max_context_tokens, max_candidate_tokens)
    reference = resolve_model(model, backend=backend, lengths=lengths)
    given = None if query is None else (_asked(query), list(_documents(files or [])))
    if given is not None and not given[1]:
        raise DataError("nothing to rank: give files of documents, or send one document in each line of stdin")
    use_processor(threads)
    scorer = open_ranking(reference, device=device)
    chunked = Chunked(scorer)
    for cut in scorer.cut:
        cut.warned = True  # reported below, with the final counts
    show_table = sys.stdout.isatty() and not json_
    if given is None and sys.stdin.isatty():
        notify('Type lines such as {"query": "...", "documents": ["...", "..."]}; Ctrl-D ends the input.')
    for row, context, documents in parsed_lines(_query_of_line) if given is None else [({}, *given)]:
        if scores_only:
            texts = [document.text for document in documents]
            print_row(row | {"scores": chunked.score([context], [texts])[0].tolist()}, model)
            continue
        ranked = scorer.rank(context, documents, top)
        if show_table:
            _table(context, ranked)
        else:
            said = context.turns[0] if len(context.turns) == 1 else context.turns
            print_row(row | {"query": said, "results": [_result(reply) for reply in ranked]}, model)
    report_cut_texts(scorer, settable=reference.has_settable_lengths)


def _result(reply: Ranked) -> dict[str, Any]:
    row = {"id": reply.id, "score": reply.score, "text": reply.text}
    return row | ({"metadata": reply.metadata} if reply.metadata else {})


def _table(context: Context, ranked: Sequence[Ranked]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(context.turns[-1]), title_justify="left", box=None, pad_edge=False)
    table.add_column("", justify="right")
    table.add_column("score", justify="right")
    table.add_column("id", overflow="fold")
    table.add_column("text", no_wrap=True, overflow="ellipsis", ratio=1)
    for number, reply in enumerate(ranked, 1):
        table.add_row(str(number), f"{reply.score:.4f}", Text(reply.id), Text(re.sub(r"\s+", " ", reply.text)))
    make_console().print(table)


def _documents(files: Sequence[Path]) -> Iterator[Candidate]:
    """The documents of the files, or of stdin. With several files, ids start with the name of the file."""
    from dataclasses import replace

    from polyrank.data.pool import numbered_candidates, text_id

    if files in ([], [Path("-")]):
        if sys.stdin.isatty():
            notify("Type one document per line; Ctrl-D ends the list.")
        yield from parsed_lines(_document_of_line)
        return
    for path in files:
        for number, document in numbered_candidates(path):
            name = str(number) if document.id == text_id(document.text) else document.id
            yield replace(document, id=name if len(files) == 1 else f"{path}:{name}")


def _document_of_line(number: int, line: str) -> Candidate:
    """A plain line, or an object with a text and optionally an id."""
    from polyrank.data.lines import parse_object

    meant_as_json = line.startswith("{") and MEANT_AS_JSON.match(line)
    return _document(parse_object(line) if meant_as_json else line, str(number), "the line")


def _document(value: object, default_id: str, where: str) -> Candidate:
    from polyrank.data import fields
    from polyrank.data.values import type_name

    if isinstance(value, str):
        return Candidate(default_id, value)
    if not isinstance(value, dict):
        raise ValueError(
            f"{where} holds {type_name(value)} at position {default_id}; write texts, or objects with a text"
        )
    return Candidate(fields.optional_id(value, default_id), fields.text(value, "text"))


def _query_of_line(_number: int, line: str) -> tuple[dict[str, Any], Context, list[Candidate]]:
    """Parse a line: its id, if it has one, its context, and its documents.

    Raises:
        ValueError: the line is not a JSON object, or a field is missing or has the wrong type.
    """
    from polyrank.data.lines import parse_object

    row = parse_object(line)
    return {"id": row["id"]} if "id" in row else {}, _context(row), _listed(row)


def _asked(query: str) -> Context:
    try:
        return _context({"query": query})
    except ValueError as error:
        raise UsageError(f"the query is not valid text: {error}") from error


def _context(row: dict[str, Any]) -> Context:
    """The query or context of a row.

    Raises:
        ValueError: a field is missing or has the wrong type.
    """
    if "query" in row and "context" not in row:
        from polyrank.data import fields

        row = {**row, "context": list(fields.context(row, "query"))}
    return context_of_row(row)


def _listed(row: dict[str, Any]) -> list[Candidate]:
    """The documents or candidates of a row.

    Raises:
        ValueError: the field is missing, or a document has the wrong type.
    """
    from polyrank.data import fields

    name = "documents" if "documents" in row and "candidates" not in row else "candidates"
    values = fields.field(row, name)
    listed = [values] if isinstance(values, str) else fields.checked(values, list, name, "a list of texts")
    return [_document(value, f"{position}", f'field "{name}"') for position, value in enumerate(listed)]
