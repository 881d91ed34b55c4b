"""Filters over candidates' metadata: a small language, and the SQL that it means. No torch.

    filter  =  all { "or" all }
    all     =  one { "and" one }
    one     =  "not" one  |  "(" filter ")"  |  "exists" name  |  name test
    test    =  ( "=" | "!=" | "<" | "<=" | ">" | ">=" ) value  |  [ "not" ] "in" "(" value { "," value } ")"
    name    =  part { "." part }       part   =  word | string
    value   =  string | number | "true" | "false" | "null"

SQLite evaluates the whole over ``candidates.metadata``. Its SQL is made of fixed pieces; names and values are bound.
"""

import json
import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite
from typing import Any, Literal, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import DataError, UsageError
from polyrank.index.checks import metadata_json
from polyrank.records import Candidate
from polyrank.storage.time_limit import limited_search

MAX_CHARACTERS = 4096
MAX_TERMS, MAX_VALUES = 64, 512  # a term takes SQLite about a microsecond for each candidate
MAX_DEPTH = 32

Value: TypeAlias = str | int | float | bool | None
# ("and" | "or", tree, tree, ...), ("not", tree), ("exists", path), ("in", path, values), (order, path, value)
Tree: TypeAlias = tuple[Any, ...]

_TOKEN = re.compile(
    r"""\s*(?: (?P<string> "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' )
          | (?P<number> -?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)? )
          | (?P<word> [^\W\d][\w-]* )
          | (?P<mark> <= | >= | != | [=<>(),.] )
          | (?P<end> $ ) )""",
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS = ("and", "or", "not", "in", "exists", "true", "false", "null")
_CONSTANTS = {"true": True, "false": False, "null": None}
_ORDERS = ("<", "<=", ">", ">=")
_NUMBER = "type IN ('integer', 'real') AND value"
_READ_NUMBER = "json_extract(?, '$')"  # by the parser of the metadata, so that what is written alike is equal


def value_kind(value: Value) -> Literal["text", "number", "constant"]:
    """What a value is to a filter: true, false and null are neither texts nor numbers."""
    if isinstance(value, str):
        return "text"
    return "constant" if value is None or isinstance(value, bool) else "number"


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition on candidates' metadata; ``read_filter`` makes one. Two are equal when their texts are.

    Args:
        text: in its canonical form, of which ``read_filter`` makes the same filter.
        where: the SQL condition on a column ``metadata``, with a mark for each bound value.
        bound: those values.
        tree: the same for engines other than SQL, see ``Tree``.
        level: 0 where its terms are joined by "or", 1 by "and", 2 where it needs no parentheses anywhere.
    """

    text: str
    where: str = field(compare=False, repr=False)
    bound: tuple[str, ...] = field(compare=False, repr=False)
    tree: Tree = field(default=(), compare=False, repr=False)
    level: int = field(default=2, compare=False, repr=False)

    def __str__(self) -> str:
        return self.text

    def within(self, level: int) -> str:
        """Its text as a part of another: in parentheses where that joins its terms more closely."""
        return self.text if self.level >= level else f"({self.text})"


@lru_cache(maxsize=64)
def read_filter(text: str) -> Filter:
    """A filter from its text, such as ``lang = "en" and team in ("billing", "tech")``. See docs/filters.md.

    Args:
        text: at most 4,096 characters, 64 terms, 512 values, and 32 parentheses and ``not`` inside each other.

    Raises:
        UsageError: says at which character what was expected.

    >>> print(read_filter("NOT (team in ('a','b')) and customer.tier>=2 or exists 'first seen'"))
    not team in ("a", "b") and customer.tier >= 2 or exists "first seen"
    >>> read_filter("lang == 'en'")
    Traceback (most recent call last):
    polyrank.errors.UsageError: filter, character 7: expected a text in quotes, a number, true, false or null, not '='
    """
    if len(text) > MAX_CHARACTERS:
        raise UsageError(
            f"the filter has {len(text):,} characters, the limit is {MAX_CHARACTERS:,}; write a shorter one"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"filter, character {error.start + 1}: this is no Unicode text; write it in UTF-8") from error
    return _Parser(text).whole()


def as_filter(filter: Filter | str | None) -> Filter | None:
    """A filter as it may be given wherever one is taken.

    Raises:
        UsageError: it cannot be read, or is something else.
    """
    if filter is None or isinstance(filter, Filter):
        return filter
    if not isinstance(filter, str):
        raise UsageError(f"filter = {filter!r} is {type(filter).__name__}; write it as a text such as 'lang = \"en\"'")
    return read_filter(filter)


def fields_of(filter: Filter) -> dict[str, Filter]:
    """The fields that a filter names, each with the filter that they are there.

    >>> [str(there) for there in fields_of(read_filter('not lang = "en" and customer.tier > 1')).values()]
    ['exists lang', 'exists customer.tier']
    """

    def paths(tree: Tree) -> list[tuple[str, ...]]:
        if tree[0] in ("and", "or", "not"):
            return [path for part in tree[1:] for path in paths(part)]
        return [tree[1]]

    names = [".".join(part if _is_plain(part) else _written(part) for part in path) for path in paths(filter.tree)]
    return {name: read_filter(f"exists {name}") for name in names}


def rows_where(connection: sqlite3.Connection, filter: Filter, *, after: int = 0) -> NDArray[np.int64]:
    """Numbers of the rows of ``candidates`` above ``after`` that pass, ascending."""
    query = f"SELECT row FROM candidates WHERE row > ? AND {filter.where} ORDER BY row"
    with limited_search():
        return np.fromiter((row for (row,) in connection.execute(query, (after, *filter.bound))), np.int64)


def positions_where(candidates: Sequence[Candidate], filter: Filter) -> NDArray[np.int64]:
    """Positions of the candidates that pass, ascending; of candidates in memory.

    Raises:
        DataError: the metadata of one cannot be written as JSON.

    >>> pool = [Candidate("a", "hi", {"lang": "en"}), Candidate("b", "salut", {"lang": "fr"}), Candidate("c", "hm")]
    >>> positions_where(pool, read_filter('lang = "en"')), positions_where(pool, read_filter('lang != "en"'))
    (array([0]), array([1, 2]))
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE candidates (row INTEGER PRIMARY KEY, metadata TEXT)")
        connection.execute("BEGIN")
        for row, candidate in enumerate(candidates, 1):
            try:
                connection.execute("INSERT INTO candidates VALUES (?, ?)", (row, metadata_json(candidate)))
            except (TypeError, ValueError, RecursionError) as error:
                raise DataError(f"candidate {row - 1}: its metadata cannot be written as JSON ({error})") from error
        return rows_where(connection, filter) - 1


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int

    @property
    def keyword(self) -> str:
        return self.text.lower() if self.kind == "word" and self.text.lower() in _KEYWORDS else ""


class _Parser:
    """By recursive descent, one method for each rule of the grammar."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = 0
        self._depth = self._n_terms = self._n_values = 0

    def whole(self) -> Filter:
        part = self._any()
        if self._now.kind != "end":
            self._fault('"and", "or" or the end')
        return part

    def _any(self) -> Filter:
        return self._joined(self._all, "or", 0)

    def _all(self) -> Filter:
        return self._joined(self._one, "and", 1)

    def _joined(self, operand: Callable[[], Filter], word: str, level: int) -> Filter:
        parts = [operand()]
        while self._take(word):
            parts.append(operand())
        if len(parts) == 1:
            return parts[0]
        text = f" {word} ".join(part.within(level) for part in parts)
        where = f" {word.upper()} ".join(part.where for part in parts)
        bound, tree = tuple(value for part in parts for value in part.bound), (word, *(part.tree for part in parts))
        return Filter(text, f"({where})", bound, tree, level)

    def _one(self) -> Filter:
        start = self._now
        if self._take("not"):
            with_not = self._deeper(self._one, start)
            tree = ("not", with_not.tree)
            return Filter(f"not {with_not.within(2)}", f"NOT {with_not.where}", with_not.bound, tree)
        if self._take("("):
            inner = self._deeper(self._any, start)
            self._must(")", '"and", "or" or ")"')
            return inner
        self._n_terms += 1
        if self._n_terms > MAX_TERMS:
            raise UsageError(
                f"filter, character {start.at}: there are more than {MAX_TERMS} terms; use in (...), or fewer"
            )
        if self._take("exists"):
            text, path = self._name()
            return Filter(f"exists {text}", "json_type(metadata, ?) IS NOT NULL", (_path(path),), ("exists", path))
        return self._test(*self._name())

    def _deeper(self, rule: Callable[[], Filter], start: _Token) -> Filter:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UsageError(
                f"filter, character {start.at}: more than {MAX_DEPTH} parentheses and nots are inside each other;"
                " leave some out"
            )
        part = rule()
        self._depth -= 1
        return part

    def _test(self, name: str, path: tuple[str, ...]) -> Filter:
        for order in _ORDERS:
            if self._take(order):
                at = self._now
                value = self._value()
                if value_kind(value) == "constant":
                    self._fault(f'a text or a number after "{order}"', at)
                text = f"{name} {order} {_written(value)}"
                return _term(text, (order, path, value), *_ordered(order, value))
        if self._take("="):
            value = self._value()
            return _term(f"{name} = {_written(value)}", ("in", path, (value,)), *_equal([value]))
        if self._take("!="):
            value = self._value()
            return _term(f"{name} != {_written(value)}", ("in", path, (value,)), *_equal([value]), negated=True)
        negated = self._take("not")
        self._must("in", '"in"' if negated else '"=", "!=", "<", "<=", ">", ">=", "in" or "not in"')
        self._must("(", '"("')
        values = [self._value()]
        while self._take(","):
            values.append(self._value())
        self._must(")", '"," or ")"')
        text = f"{name} {'not in' if negated else 'in'} ({', '.join(map(_written, values))})"
        return _term(text, ("in", path, tuple(values)), *_equal(values), negated=negated)

    def _name(self) -> tuple[str, tuple[str, ...]]:
        """A name in its canonical form, and its parts."""
        parts = [self._part_of_name()]
        while self._take("."):
            parts.append(self._part_of_name())
        text = ".".join(part if _is_plain(part) else _written(part) for part in parts)
        return text, tuple(parts)

    def _part_of_name(self) -> str:
        token = self._now
        if token.kind == "word" and not token.keyword:
            self._next += 1
            return token.text
        if token.kind != "string":
            self._fault("a name (a keyword, or one with other characters, in quotes)")
        self._next += 1
        name = _unquoted(token)
        # which a path of SQLite's cannot hold in all its versions
        if not name or any(character < " " or character in '"\\' for character in name):
            raise UsageError(
                f"filter, character {token.at}: a name cannot be empty, or hold double quotes, backslashes or control"
                " characters; filter by another key"
            )
        return name

    def _value(self) -> Value:
        token = self._now
        self._n_values += 1
        if self._n_values > MAX_VALUES:
            raise UsageError(f"filter, character {token.at}: there are more than {MAX_VALUES} values; name fewer")
        if token.kind == "string":
            self._next += 1
            return _unquoted(token)
        if token.kind == "number":
            self._next += 1
            number: int | float = json.loads(token.text)
            if not isfinite(float(token.text)):
                raise UsageError(f"filter, character {token.at}: the number is too large; use one up to 1.7e308")
            return number
        if token.keyword not in _CONSTANTS:
            hint = f'; texts go in quotes: "{token.text}"' if token.kind == "word" else ""
            self._fault("a text in quotes, a number, true, false or null", hint=hint)
        self._next += 1
        return _CONSTANTS[token.keyword]

    @property
    def _now(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, text: str) -> bool:
        """Whether this mark or keyword is next, which is then behind."""
        token = self._now
        taken = token.keyword == text or (token.kind == "mark" and token.text == text)
        self._next += taken
        return taken

    def _must(self, text: str, expected: str) -> None:
        if not self._take(text):
            self._fault(expected)

    def _fault(self, expected: str, at: _Token | None = None, hint: str = "") -> NoReturn:
        token = at or self._now
        there = "the end" if token.kind == "end" else repr(_shortened(token.text))
        raise UsageError(f"filter, character {token.at}: expected {expected}, not {there}{hint}")


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    start = 0
    while not tokens or tokens[-1].kind != "end":
        match = _TOKEN.match(text, start)
        if match is None:
            at = start + len(text[start:]) - len(text[start:].lstrip())
            what = "this text has no closing quote" if text[at] in "\"'" else f"{text[at]!r} means nothing here"
            raise UsageError(f"filter, character {at + 1}: {what}; put texts and unusual names in quotes")
        kind = match.lastgroup or ""
        tokens.append(_Token(kind, match[kind], match.start(kind) + 1))
        start = match.end()
    return tokens


def _unquoted(token: _Token) -> str:
    """What a string says, with JSON's escapes and one for single quotes."""
    inner = re.sub(r"\\.|\"", lambda m: {"\\'": "'", '"': '\\"'}.get(m[0], m[0]), token.text[1:-1], flags=re.DOTALL)
    try:
        text: str = json.loads(f'"{inner}"', strict=False)
        text.encode()
    except ValueError as error:  # a broken escape, or half of a surrogate pair
        raise UsageError(
            f"filter, character {token.at}: the text has an escape that is none of JSON's; write a backslash twice"
        ) from error
    if "\0" in text:
        raise UsageError(f"filter, character {token.at}: a text cannot hold the character NUL; leave it out")
    return text


def _is_plain(name: str) -> bool:
    match = _TOKEN.fullmatch(name)
    return match is not None and match["word"] == name and name.lower() not in _KEYWORDS


def _written(value: Value) -> str:
    return json.dumps(value, ensure_ascii=False)


def _path(parts: Sequence[str]) -> str:
    return "$" + "".join(f'."{part}"' for part in parts)  # SQLite's


def _shortened(text: str) -> str:
    return text if len(text) <= 30 else f"{text[:30]}..."


def _term(text: str, tree: Tree, test: str, bound: Sequence[str], *, negated: bool = False) -> Filter:
    """True where the value at the path, or where it is an array one of its elements, passes the test."""
    where = (
        f"{'NOT ' if negated else ''}EXISTS (SELECT 1 FROM json_each(metadata, ?)"
        f" WHERE json_type(metadata, ?) <> 'object' AND ({test}))"
    )
    path = _path(tree[1])
    return Filter(text, where, (path, path, *bound), ("not", tree) if negated else tree)


def _ordered(order: str, value: Value) -> tuple[str, list[str]]:
    if value_kind(value) == "text":
        return f"type = 'text' AND value {order} ?", [str(value)]
    return f"{_NUMBER} {order} {_READ_NUMBER}", [_written(value)]


def _equal(values: Sequence[Value]) -> tuple[str, list[str]]:
    texts = [str(value) for value in values if value_kind(value) == "text"]
    constants = [_written(value) for value in values if value_kind(value) == "constant"]
    numbers = [_written(value) for value in values if value_kind(value) == "number"]
    tests = [
        f"{test} IN ({', '.join([mark] * len(group))})"
        for test, mark, group in (
            ("type = 'text' AND value", "?", texts),
            ("type", "?", constants),
            (_NUMBER, _READ_NUMBER, numbers),
        )
        if group
    ]
    return " OR ".join(tests), [*texts, *constants, *numbers]
