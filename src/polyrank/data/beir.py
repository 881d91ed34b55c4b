"""Folders in BEIR's form: ``corpus.jsonl``, ``queries.jsonl``, and relevance judgements in ``qrels/NAME.tsv``.

The documents that are judged above 0 are right answers, and the whole corpus is the pool.

Source: Thakur et al., BEIR: A Heterogeneous Benchmark for Zero-shot Evaluation of Information Retrieval Models (2021),
    https://github.com/beir-cellar/beir
"""

from collections.abc import Iterator
from pathlib import Path

from polyrank.data import fields
from polyrank.data.lines import Numbered, OnBad, csv_rows, raise_bad, row_error
from polyrank.data.pool import numbered_candidates, read_pool
from polyrank.data.rows import rows
from polyrank.data.values import Row
from polyrank.errors import DataError
from polyrank.records import Candidate

CORPUS, QUERIES, JUDGEMENTS = "corpus.jsonl", "queries.jsonl", "qrels"


def example_rows(path: Path, on_bad: OnBad = raise_bad) -> Numbered:
    """The rows of examples of a file, or of a folder in BEIR's form, with their line numbers."""
    if judgements := judgements_of(path):
        return judged_queries(judgements, on_bad)
    return rows(path, on_bad)


def judgements_of(path: Path) -> Path | None:
    """The file of judgements that a path means: itself, or the only one of a folder; None if the path is another file.

    Raises:
        DataError: the folder has none, or several.
    """
    if path.parent.name == JUDGEMENTS and (path.parent.parent / CORPUS).is_file():
        return path
    if not (path / CORPUS).is_file():
        return None
    files = sorted((path / JUDGEMENTS).glob("*.tsv"))
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "no judgements"
        raise DataError(f"{path}: {JUDGEMENTS}/ has {names}; give one file, such as {path / JUDGEMENTS}/test.tsv")
    return files[0]


def judged_queries(judgements: Path, on_bad: OnBad = raise_bad) -> Iterator[tuple[int, Row]]:
    """The judged queries as rows with the texts and ids of their right answers, in the order of the judgements."""
    folder = judgements.parent.parent
    right: dict[str, tuple[int, dict[str, int]]] = {}
    for line, row in csv_rows(judgements, on_bad):
        try:
            query, document, grade = (fields.text(row, name) for name in ("query-id", "corpus-id", "score"))
            right.setdefault(query, (line, {}))[1][document] = int(grade)
        except ValueError as error:
            on_bad(row_error(judgements, line, error))
    judged = {document for _, grades in right.values() for document in grades}
    text_of = {candidate.id: candidate.text for candidate in corpus_of(judgements) if candidate.id in judged}
    queries = {query.id: query.text for _, query in numbered_candidates(folder / QUERIES)}
    for name, (line, grades) in right.items():
        if name not in queries:
            on_bad(row_error(judgements, line, f"query {name!r} is not in {QUERIES}; add it, or leave the line out"))
            continue
        ids = [document for document, grade in grades.items() if grade > 0]
        texts = [text_of[document] for document in ids if document in text_of]
        yield line, {"id": name, "context": queries[name], "candidates": texts, "relevant": [*range(len(texts))],
                     "relevant_ids": ids, "grades": [grades[document] for document in ids]}  # fmt: skip


def corpus_of(judgements: Path) -> list[Candidate]:
    """All documents of the folder, each with its title before its text."""
    return read_pool(judgements.parent.parent / CORPUS)
