"""Rows of published forms as rows of polyrank's, by the fields that ``forms.toml`` declares.

A file of one object becomes its rows, a conversation becomes a row with ``turns``, and the fields of a declared form
get their usual names. Forms that are not read are refused by name. This module does not read files.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polyrank.data.values import Row, items_of, object_of, objects_in

_declared = tomllib.loads(Path(__file__).with_name("forms.toml").read_text("utf-8"))
FORMS: list[dict[str, Any]] = _declared.pop("form")
PATTERNS = {name: re.compile("|".join(one), re.DOTALL | re.I) for name, one in _declared.pop("patterns").items()}
OWN = {"turns", "candidates", "relevant_ids", "response"}  # fields of polyrank's rows, whose other fields are ignored
WORDS: dict[str, list[str]] = {name: words.split() for name, words in _declared.items()}


def opened(row: Row) -> Iterator[Row]:
    """The rows in a row: the items of its lists of rows, with the fields around them, or the row itself.

    Names of fields may begin with a capital or be in capitals, as in tables that people write. An object whose names
    are questions and whose values are texts is a list of questions and answers.

    >>> list(opened({"data": [{"title": "t", "paragraphs": [{"context": "c", "qas": [{"question": "q"}]}]}]}))
    [{'title': 't', 'context': 'c', 'question': 'q'}]
    >>> list(opened({"Question": "q", "ANSWER": "a", "Notes": "n"}))
    [{'question': 'q', 'answer': 'a', 'notes': 'n'}]
    >>> list(opened({"Where is it?": "Here.", "When?": "Now."}))
    [{'question': 'Where is it?', 'answer': 'Here.'}, {'question': 'When?', 'answer': 'Now.'}]
    >>> list(opened({"MUL1.json": {"log": [{"text": "hi"}]}}))
    [{'id': 'MUL1.json', 'log': [{'text': 'hi'}]}]
    >>> list(opened({"messages": {"role": ["user", "assistant"], "content": ["hi", "hello"]}}))
    [{'messages': [{'role': 'user', 'content': 'hi'}, {'role': 'assistant', 'content': 'hello'}]}]
    """
    row = {name: _objects(value) for name, value in row.items()}
    lists = [name for name in WORDS["rows"] if objects_in(row.get(name))]
    if row and all(name.endswith(("?", "\uff1f", "\u061f")) and isinstance(value, str) for name, value in row.items()):
        yield from ({"question": name, "answer": value} for name, value in row.items())
    elif row and all(field_of_turns(object_of(one)) for one in row.values()):
        yield from ({"id": name} | one for name, one in row.items())
    elif lists and not _form_of(row) and not field_of_turns(row) and not OWN & row.keys():
        around = {name: value for name, value in row.items() if name != lists[0]}
        for one in objects_in(row[lists[0]]):
            yield from opened(around | one)
    else:
        names = {name: name.lower() if name.istitle() or name.isupper() else name for name in row}
        yield {names[name]: value for name, value in row.items()} if len({*names.values()}) == len(row) else row


def renamed(row: Row) -> Row:
    r"""A row of a declared form with the usual names of its fields; any other row unchanged.

    Raises:
        ValueError: polyrank does not read the form.

    >>> renamed({"instruction": "Translate.", "input": "oui", "output": "yes"})
    {'query': ['Translate.\noui'], 'answer': 'yes'}
    >>> renamed({"gold_label": "neutral"})
    Traceback (most recent call last):
    ValueError: a row of SNLI, which polyrank does not read; write the entailments of a premise as positive ...
    """
    form = _form_of(row)
    if form is None:
        return row
    if "do" in form:
        raise ValueError(f"a row of {form['name']}, which polyrank does not read; {form['do']}")
    made = _id_of(row)
    for name, paths in form["fields"].items():
        made[name] = context_of([_at(row, path) for path in paths]) if isinstance(paths, list) else _at(row, paths)
    if "exchanges" in form:
        lists = [[one for one in items_of(_at(row, path)) if one is not None] for path in form["exchanges"]]
        if not len(lists[0]) == len(lists[-1]) > 0:
            raise ValueError(f"{len(lists[0])} questions and {len(lists[-1])} answers; give each question one answer")
        exchanges = zip(*lists, strict=True)
        made["turns"] = list(_turns([text for exchange in exchanges for text in exchange], alternating=True))
    if "if" in form:
        answers = _at(row, form["if"])
        is_right = any(answers.values()) if isinstance(answers, dict) else bool(answers)
        made |= {"candidates": [made["candidates"]], "relevant": [0] if is_right else []}
    return made


def as_dialogue(row: Row) -> Row:
    """A conversation as a row with ``turns``; any other row unchanged.

    Prompts, calls of tools and their results are left out. Assistants of any name are "assistant"; their turns with
    weight 0, which are not for training, have another speaker, so that they are not replies.

    Raises:
        ValueError: no turn has a text.

    >>> turns = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]
    >>> as_dialogue({"conversations": turns})["turns"]
    [{'speaker': 'human', 'text': 'hi'}, {'speaker': 'assistant', 'text': 'hello'}]
    """
    name = field_of_turns(row)
    if name is None:
        return row
    turns = list(_turns(row[name], alternating=name in WORDS["alternating"]))
    if not turns:
        raise ValueError(f'no turn of "{name}" has a text of a speaker; leave the row out')
    return _id_of(row) | {"turns": turns}


def texts_of_messages(value: Any) -> list[str] | None:
    """The texts of a message, of a list of messages, or of a text in which marks precede them; None of other values.

    >>> texts_of_messages([{"role": "system", "content": "Be kind."}, {"role": "assistant", "content": "Hi!"}])
    ['Hi!']
    >>> texts_of_messages("\\n\\nHuman: Hi\\n\\nAssistant: Hello.")
    ['Hi', 'Hello.']
    """
    if isinstance(value, str):
        before, *said = PATTERNS["marks"].split(value)
        return [text.strip() for text in said if text.strip()] if said and not before else None
    messages = items_of(value)
    if not messages or not all(_first(object_of(one), "speaker") and _first(one, "text") for one in messages):
        return None
    return [turn["text"] for turn in _turns(messages)]


def _form_of(row: Row) -> dict[str, Any] | None:
    likely = (form for form in FORMS if form["has"][0].partition(".")[0] in row)
    return next((form for form in likely if all(_at(row, path) is not None for path in form["has"])), None)


def _at(value: Any, path: str) -> Any:
    """The value at a path with dots: in a list, that of each item, unless no item has one.

    >>> _at({"qas": [{"answer": {"text": "a"}}, {"answer": {"text": "b"}}]}, "qas.answer.text")
    ['a', 'b']
    """
    if isinstance(value, list):
        values = [_at(one, path) for one in value]
        return None if values.count(None) == len(values) else values
    name, _, rest = path.partition(".")
    found = object_of(value).get(name)
    return _at(found, rest) if rest else found


def _objects(value: Any) -> Any:
    """A list of objects, which datasets stores as an object of lists, as that list; other values unchanged."""
    lists = [*value.values()] if isinstance(value, dict) else []
    if len(lists) > 1 and all(isinstance(one, list) and len(one) == len(lists[0]) > 0 for one in lists):
        return [dict(zip(value, items, strict=True)) for items in zip(*lists, strict=True)]
    return value


def _first(row: Row, kind: str) -> str | None:
    """The first field of a row that holds this."""
    return next((name for name in WORDS[kind] if name in row), None)


def _id_of(row: Row) -> Row:
    name = _first(row, "id")
    return {"id": row[name]} if name else {}


def holds_texts(name: str) -> bool:
    """Whether a field of this name holds turns, texts or labels in some form.

    >>> holds_texts("negative_2"), holds_texts("query"), holds_texts("tags")
    (True, True, False)
    """
    kinds = ("turns", "queries", "documents", "document", "answers", "labels")
    named = any(name in WORDS[kind] for kind in kinds)
    return named or any(PATTERNS[kind].fullmatch(name) for kind in ("right", "wrong"))


def field_of_turns(row: Row) -> str | None:
    """The field with the turns of a conversation of another form."""
    for name in WORDS["turns"]:
        match row.get(name):
            case [dict(first), *_] if _first(first, "text"):
                is_own = name == "turns" and "text" in first and "speaker" in first
                if not is_own and (_first(first, "speaker") or name in WORDS["alternating"]):
                    return name
            case [str(), *_] if name != "turns":
                return name
    return None


def _turns(items: list[Any], *, alternating: bool = False) -> Iterator[Row]:
    """The turns of a list: texts, messages, or pairs of a question and its answer."""
    for number, item in enumerate(items):
        if isinstance(item, list | tuple):
            yield from _turns([*item], alternating=True)
            continue
        turn = item if isinstance(item, dict) else {"text": item}
        if isinstance(item, str) and (spoken := PATTERNS["spoken"].match(item)):
            turn = {"speaker": spoken[1], "text": item[spoken.end() :]}
        text, field = turn.get(_first(turn, "text") or ""), _first(turn, "speaker")
        if isinstance(text, list):  # parts of a message
            text = "\n".join(part["text"] for part in map(object_of, text) if isinstance(part.get("text"), str))
        speaker = str(turn[field]) if field else ("user", "assistant")[number % 2] if alternating else None
        word = re.sub(r"^\d+_", "", speaker or "").casefold()
        is_prompt = word in WORDS["skipped"] and not (word == "system" and field == "speaker")
        text = PATTERNS["thought"].sub("", text) if isinstance(text, str) and turn.get("channel") != "analysis" else ""
        if not text.strip() or is_prompt or PATTERNS["not_said"].match(text):
            continue
        if word in WORDS["assistants"]:
            is_trained = 0 not in map(turn.get, ("weight", "train", "loss"))  # False is 0
            speaker = "assistant" if is_trained else "assistant with weight 0"
        yield {"speaker": speaker, "text": text}


def context_of(values: list[Any]) -> list[str]:
    """A context of texts and of lists of turns: the turns, then the texts, joined by line breaks."""
    turns = [turn["text"] for value in values if isinstance(value, list) for turn in _turns(value)]
    text = "\n".join(value for value in values if isinstance(value, str) and value)
    return [*turns, text] if text else turns
