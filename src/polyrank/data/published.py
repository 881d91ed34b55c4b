"""Training data in the forms of other libraries, read as candidate lists or dialogues.

    lists       {"query", "pos": [texts], "neg": [texts]}: FlagEmbedding, Tevatron, DPR, sentence-transformers' triplets
    labelled    {"query", "docs": [texts], "labels": [0 or 1]}, or one document and one label in each row
    pairs       {"query", "answer"}, also as Python literals (AmazonQA)
    judgements  a folder of corpus.jsonl, queries.jsonl and qrels/NAME.tsv (BEIR), or one such file
    messages    {"messages": [...]} of OpenAI, ShareGPT, MultiWOZ, SGD, Taskmaster, Wizard of Wikipedia, UltraChat:
                dialogues, in which each turn of the assistant is a reply; also the list without the object

Forms of ``forms.toml`` are read too, also as one JSON object per file. A text may be an object with ``title`` and
``text``, which are joined by a blank, as BEIR's readers do.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from polyrank.data import fields, forms
from polyrank.data.forms import WORDS, texts_of_messages
from polyrank.data.lines import OnBad
from polyrank.data.values import Row, items_of, type_name

OWN_FIELDS = ("candidates", "relevant_ids")
OWN = ("context", "response")
MARKS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False, "-1": False, "-1.0": False}


def as_own(row: Row) -> Row:
    """A row of another library's form as a dialogue, a pair or a list; any other row unchanged.

    Raises:
        ValueError: a text or a label is bad, or polyrank does not read the form.
    """
    made = as_candidates(row)
    return forms.as_dialogue(made) if "turns" in made or not ({*OWN_FIELDS, "response"} & made.keys()) else made


def as_candidates(row: Row) -> Row:
    """A row of another library's form as one with ``candidates`` or ``response``; any other row unchanged.

    Args:
        row: with a query under one of its usual names, which becomes the ``context``.

    Raises:
        ValueError: a text or a label is bad, or polyrank does not read the form.

    >>> as_candidates({"query": "open?", "pos": ["yes"], "neg": ["no", "hi"], "pos_scores": [0.9]})
    {'context': 'open?', 'candidates': ['yes', 'no', 'hi'], 'relevant': [0]}
    >>> as_candidates({"query": "open?", "docs": ["no", {"title": "Hours", "text": "9 to 5"}], "labels": [0, 1]})
    {'context': 'open?', 'candidates': ['no', 'Hours 9 to 5'], 'relevant': [1]}
    >>> as_candidates({"question": "open?", "answer": "yes"})
    {'context': 'open?', 'response': 'yes'}
    """
    if _is_of_this_library(given := row):
        return row
    query = _first(row := forms.renamed(row), "queries")
    if (chosen := texts_of_messages(row.get("chosen")) or [])[1:]:  # with its prompt
        query, row = "query", row | {"query": chosen[:-1]}
    if query is None or _is_of_this_library(row):
        return row
    match row[query]:
        case [str(), *_] if row is given and query != "context":
            raise ValueError(f'field "{query}" is a list of texts; name turns context, or give each query its own row')
    context = texts_of_messages(row[query]) or row[query]
    own: Row = {name: row[name] for name in ("id", "background") if name in row}
    own["context"] = forms.context_of([row["history"], context]) if row.get("history") else context
    wrong = [text for name in _named(row, "wrong") for text in _texts(row, name, chosen[:-1])]
    labels = _first(row, "labels")
    if right := _named(row, "right"):
        texts = [text for name in right for text in _texts(row, name)]
        return own | {"candidates": [*texts, *wrong], "relevant": [*range(len(texts))]}
    if labels and (documents := _first(row, "documents")):
        texts, marks = _texts(row, documents), fields.checked(row[labels], list, labels, "a list of labels")
        if len(texts) != len(marks):
            raise ValueError(f'field "{labels}" has {len(marks)} labels for {len(texts)} texts; give one for each')
        return own | {"candidates": texts, "relevant": [i for i, mark in enumerate(marks) if _is_right(mark)]}
    if (answer := _first(row, "answers")) and not labels and (query != "context" or wrong):
        own = row if query == "context" else own
        return own | {"response": _last(row[answer])} | ({"negatives": wrong} if wrong else {})
    return row


def grouped(numbered: Callable[[OnBad], Iterable[tuple[int, Any]]]) -> Callable[[OnBad], Iterator[tuple[int, Any]]]:
    """Join rows that hold one document and its label to a list for each query, in the order of the queries.

    Rows of another form pass unchanged, and so do pairs of a context and a response if a label among them is neither 0
    nor 1, such as a topic. Labelled rows are kept until the file ends, since they may be shuffled.

    Args:
        numbered: yields line numbers with rows, and calls its argument with the error of each bad row.

    >>> rows = [{"query": q, "passage": p, "label": n} for q, p, n in (("a", "x", 1), ("b", "y", 1), ("a", "z", 0))]
    >>> list(grouped(lambda on_bad: enumerate(rows))(print))[0]
    (0, {'query': 'a', 'docs': ['x', 'z'], 'labels': [1, 0]})
    """

    def joined(on_bad: OnBad) -> Iterator[tuple[int, Any]]:
        kept: list[tuple[int, Row]] = []
        topics = False
        for line, row in each_row(numbered(on_bad)):
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


def each_row(numbered: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Rows, also those in objects, with their lines; several rows of a line have numbers that increase."""
    last = -1
    for line, row in numbered:
        for one in forms.opened(row) if isinstance(row, dict) else (row,):
            last = max(line, last + 1)
            yield last, one


def _lists(rows: Iterable[tuple[int, Row]]) -> Iterable[tuple[int, Row]]:
    """One row for each query and its background, with its documents and labels."""
    lists: dict[str, tuple[int, Row]] = {}
    for line, row in rows:
        names = _labelled(row)
        assert names is not None, "only such rows are kept"
        query, document, label = names
        around: Row = {name: row[name] for name in ("background", "history") if name in row}
        start: Row = {query: row[query], **around, "docs": [], "labels": []}
        _, one = lists.setdefault(repr((row[query], around)), (line, start))
        one["docs"].append(row[document])
        one["labels"].append(row[label])
    return lists.values()


def _labelled(row: object) -> tuple[str, str, str] | None:
    """The fields of query, document and label, if a row holds one of each."""
    if not isinstance(row, Mapping) or _is_of_this_library(row) or _named(row, "right") or _first(row, "documents"):
        return None
    match [_first(row, names) for names in ("queries", "document", "labels")]:
        case ["context", "response", "score"]:  # such as that of a Reddit comment
            return None
        case [str(query), str(document), str(label)]:
            return query, document, label
    return None


def _is_of_this_library(row: Mapping[str, Any]) -> bool:
    turns = isinstance(row.get("turns"), list) and forms.field_of_turns(dict(row)) != "turns"
    return turns or any(name in row for name in OWN_FIELDS)


def _first(row: Mapping[str, Any], kind: str) -> str | None:
    return next((name for name in WORDS[kind] if row.get(name) not in (None, "")), None)


def _named(row: Mapping[str, Any], kind: str) -> list[str]:
    """The fields with such names that are not empty, ordered by their numbers.

    >>> _named({"negative_10": "c", "negative": "a", "negative_2": "b", "neg_scores": [0.1]}, "wrong")
    ['negative', 'negative_2', 'negative_10']
    """
    pattern = forms.PATTERNS[kind]
    found = [(match, name) for name in row if (match := pattern.fullmatch(name)) and row[name] not in (None, "")]
    return [name for _, name in sorted(found, key=lambda one: int(one[0][1] or 0))]


def _is_right(label: object) -> bool:
    """Whether a label states that a text is right: 1 or true, as a number or a text.

    >>> _is_right("1"), _is_right(0.0), _is_right(True)
    (True, False, True)
    """
    mark = str(label).strip().casefold()
    if mark in MARKS:
        return MARKS[mark]
    raise ValueError(f"label {mark[:40]!r} is neither 0 nor 1; write 1 for a right text and 0 for a wrong one")


def _texts(row: Row, name: str, context: list[str] | None = None) -> list[str]:
    """One text or several, each a string, an object with ``text``, or the last message after ``context``."""
    said = texts_of_messages(row[name]) or [row[name]]
    if context and said[:-1] not in ([], context):
        raise ValueError(f'"{name}" answers another context than "chosen"; leave the row out')
    return [_text(_last(item), name) for item in items_of(said[-1])]


def _last(value: Any) -> Any:
    """The text of the last of several messages; any other value unchanged."""
    return (texts_of_messages(value) or [value])[-1]


def _text(item: object, name: str) -> str:
    match item:
        case str():
            return item
        case {"text": str(text), **rest}:
            title = rest.get("title")
            return f"{title} {text}".strip() if isinstance(title, str) else text
    raise ValueError(f'field "{name}" holds {type_name(item)}; write texts, or objects with a text')
