"""Training data in the forms of other libraries, read as candidate lists.

    lists       {"query", "pos": [texts], "neg": [texts]}: FlagEmbedding, Tevatron, DPR, sentence-transformers' triplets
    labelled    {"query", "docs": [texts], "labels": [0 or 1]}, or one document and one label in each row
    pairs       {"query", "answer"}, also as Python literals (AmazonQA)
    judgements  a folder of corpus.jsonl, queries.jsonl and qrels/NAME.tsv (BEIR), or one such file

A text may be an object with ``title`` and ``text``, which are joined by a blank, as BEIR's readers do.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from polyrank.data import fields
from polyrank.data.rows import OnBad
from polyrank.data.values import Row, type_name

QUERIES = ("context", "anchor", "query", "question", "sentence1", "text1", "sentence_A", "prompt")
RIGHT = ("pos", "positive", "positives", "positive_passages", "positive_ctxs", "chosen")
REJECTED = ("hard_negatives", "rejected", "rejected_response")
WRONG = ("neg", "negative", "negatives", "negative_passages", "hard_negative_ctxs", "negative_ctxs", *REJECTED)
NUMBERED = re.compile(r"(?:negative|neg)_(\d+)")
DOCUMENTS = ("docs", "documents", "passages")
DOCUMENT = ("response", "passage", "document", "doc", "answer", "text", "sentence2", "text2", "sentence_B")
ANSWERS = ("answer", "response")
OWN = ("context", "response")
LABELS = ("labels", "label", "relevance", "score")
MARKS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False, "-1": False, "-1.0": False}


def as_candidates(row: Row) -> Row:
    """A row of another library's form as one with ``candidates`` or ``response``; any other row unchanged.

    Args:
        row: with a query under one of its usual names, which becomes the ``context``.

    Raises:
        ValueError: a text or a label is bad.

    >>> as_candidates({"query": "open?", "pos": ["yes"], "neg": ["no", "hi"], "pos_scores": [0.9]})
    {'context': 'open?', 'candidates': ['yes', 'no', 'hi'], 'relevant': [0]}
    >>> as_candidates({"query": "open?", "docs": ["no", {"title": "Hours", "text": "9 to 5"}], "labels": [0, 1]})
    {'context': 'open?', 'candidates': ['no', 'Hours 9 to 5'], 'relevant': [1]}
    >>> as_candidates({"question": "open?", "answer": "yes"})
    {'context': 'open?', 'response': 'yes'}
    """
    query = _first(row, QUERIES)
    if query is None or _is_of_this_library(row):
        return row
    own = {name: row[name] for name in ("id", "background") if name in row} | {"context": row[query]}
    labels = _first(row, LABELS)
    if right := _first(row, RIGHT):
        numbered = {int(match[1]): name for name in row if (match := NUMBERED.fullmatch(name))}
        wrong = [name for name in WRONG if name in row] + [numbered[number] for number in sorted(numbered)]
        texts, others = _texts(row, right), [text for name in wrong for text in _texts(row, name)]
        return own | {"candidates": [*texts, *others], "relevant": [*range(len(texts))]}
    if labels and (documents := _first(row, DOCUMENTS)):
        texts, marks = _texts(row, documents), fields.checked(row[labels], list, labels, "a list of labels")
        if len(texts) != len(marks):
            raise ValueError(f'field "{labels}" has {len(marks)} labels for {len(texts)} texts; give one for each')
        return own | {"candidates": texts, "relevant": [i for i, mark in enumerate(marks) if _is_right(mark)]}
    if query != "context" and (answer := _first(row, ANSWERS)) and not labels:
        rejected = _first(row, ("negatives", *REJECTED))
        return own | {"response": row[answer]} | ({"negatives": row[rejected]} if rejected else {})
    return row


def grouped(numbered: Callable[[OnBad], Iterable[tuple[int, Any]]]) -> Callable[[OnBad], Iterator[tuple[int, Any]]]:
    """Join rows that hold one document and its label to a list for each query, in the order of the queries.

    Rows of another form pass unchanged, and so do pairs of a context and a response if a label among them is neither 0
    nor 1, such as a topic. Labelled rows are kept until the file ends, since they may be shuffled.

    Args:
        numbered: yields line numbers with rows, and calls its argument with the error of each bad row.

    >>> rows = [{"query": q, "passage": p, "label": n} for q, p, n in (("a", "x", 1), ("b", "y", 1), ("a", "z", 0))]
    >>> list(grouped(lambda on_bad: enumerate(rows))(print))[0]
    (0, {'context': 'a', 'docs': ['x', 'z'], 'labels': [1, 0]})
    """

    def joined(on_bad: OnBad) -> Iterator[tuple[int, Any]]:
        kept: list[tuple[int, Row]] = []
        topics = False
        for line, row in numbered(on_bad):
            names = _labelled(row)
            if names is not None and names[:2] == OWN and str(row[names[2]]).strip().casefold() not in MARKS:
                topics = True
                yield from kept
                kept.clear()
            if names is None or (topics and names[:2] == OWN):
                yield line, row
            else:
                kept.append((line, row))
        yield from _lists(kept)

    return joined


def _lists(rows: Iterable[tuple[int, Row]]) -> Iterable[tuple[int, Row]]:
    """One row for each query and its background, with its documents and labels."""
    lists: dict[str, tuple[int, Row]] = {}
    for line, row in rows:
        names = _labelled(row)
        assert names is not None, "only such rows are kept"
        query, document, label = names
        background = {"background": row["background"]} if "background" in row else {}
        start = {"context": row[query], **background, "docs": [], "labels": []}
        _, one = lists.setdefault(repr((row[query], background)), (line, start))
        one["docs"].append(row[document])
        one["labels"].append(row[label])
    return lists.values()


def _labelled(row: object) -> tuple[str, str, str] | None:
    """The fields of query, document and label, if a row holds one of each."""
    if not isinstance(row, Mapping) or _is_of_this_library(row) or _first(row, RIGHT) or _first(row, DOCUMENTS):
        return None
    match [_first(row, names) for names in (QUERIES, DOCUMENT, LABELS)]:
        case ["context", "response", str(label)] if label != "label":  # such as the score of a Reddit comment
            return None
        case [str(query), str(document), str(label)]:
            return query, document, label
    return None


def _is_of_this_library(row: Mapping[str, Any]) -> bool:
    return any(name in row for name in ("candidates", "relevant_ids", "turns"))


def _first(row: Mapping[str, Any], names: Iterable[str]) -> str | None:
    return next((name for name in names if row.get(name) not in (None, "")), None)


def _is_right(label: object) -> bool:
    """Whether a label states that a text is right: 1 or true, as a number or a text.

    >>> _is_right("1"), _is_right(0.0), _is_right(True)
    (True, False, True)
    """
    mark = str(label).strip().casefold()
    if mark in MARKS:
        return MARKS[mark]
    raise ValueError(f"label {mark[:40]!r} is neither 0 nor 1; write 1 for a right text and 0 for a wrong one")


def _texts(row: Row, name: str) -> list[str]:
    """One text or several, each a string or an object with ``text``; none of an empty cell."""
    value = row[name]
    if value in (None, ""):
        return []
    return [_text(item, name) for item in (value if isinstance(value, list) else [value])]


def _text(item: object, name: str) -> str:
    match item:
        case str():
            return item
        case {"text": str(text), **rest}:
            title = rest.get("title")
            return f"{title} {text}".strip() if isinstance(title, str) else text
    raise ValueError(f'field "{name}" holds {type_name(item)}; write texts, or objects with a text')
