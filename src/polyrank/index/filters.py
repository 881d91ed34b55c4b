"""Filters over candidates' metadata: a small language and its translation to SQL. No torch.

    filter  =  all { "or" all }
    all     =  one { "and" one }
    one     =  "not" one  |  "(" filter ")"  |  "exists" name  |  name test
    test    =  ( "=" | "!=" | "<" | "<=" | ">" | ">=" ) value  |  [ "not" ] "in" "(" value { "," value } ")"
    name    =  part { "." part }       part   =  word | string
    value   =  string | number | "true" | "false" | "null"

SQLite evaluates a filter over ``candidates.metadata``. The SQL is made of fixed pieces; names and values are bound.
"""

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite
from typing import Any, Literal, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import UsageError
from polyrank.index.filter_tokens import EXAMPLE, Token, is_plain_name, read_tokens, unquote
from polyrank.storage.time_limit import limited_search

MAX_CHARACTERS = 4096
MAX_TERMS, MAX_VALUES = 64, 512  # SQLite needs about a microsecond per term and candidate
MAX_DEPTH = 32

Value: TypeAlias = str | int | float | bool | None
# ("and" | "or", tree, tree, ...), ("not", tree), ("exists", path), ("in", path, values), (order, path, value)
Tree: TypeAlias = tuple[Any, ...]

_CONSTANTS = {"true": True, "false": False, "null": None}
_ORDERS = ("<", "<=", ">", ">=")
_NUMBER = "type IN ('integer', 'real') AND value"
_READ_NUMBER = "json_extract(?, '$')"  # SQLite parses both sides: equal spellings are equal numbers


def value_kind(value: Value) -> Literal["text", "number", "constant"]:
    """How a filter compares a value: true, false and null are neither texts nor numbers."""
    match value:
        case str():
            return "text"
        case None | bool():
            return "constant"
    return "number"


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition on candidates' metadata; ``read_filter`` makes one. Filters are equal if their texts are.

    Args:
        text: canonical form; ``read_filter`` turns it into the same filter.
        where: the SQL condition on a column ``metadata``, with a placeholder for each bound value.
        bound: those values.
        tree: the same condition for engines other than SQL, see ``Tree``.
        level: 0 if "or" joins its terms, 1 if "and" does, 2 if it never needs parentheses.
    """

    text: str
    where: str = field(compare=False, repr=False)
    bound: tuple[str, ...] = field(compare=False, repr=False)
    tree: Tree = field(default=(), compare=False, repr=False)
    level: int = field(default=2, compare=False, repr=False)

    def __str__(self) -> str:
        return self.text

    def text_within(self, level: int) -> str:
        """The text as a part of a larger filter, in parentheses if that filter binds its terms more tightly."""
        return self.text if self.level >= level else f"({self.text})"


@lru_cache(maxsize=64)
def read_filter(text: str) -> Filter:
    """Parse a filter such as ``lang = "en" and team in ("billing", "tech")``. See docs/filters.md.

    Args:
        text: at most 4,096 characters, 64 terms, 512 values, and 32 nested parentheses and ``not``.

    Raises:
        UsageError: the text is not a filter; the message names the character and what was expected there.

    >>> print(read_filter("NOT (team in ('a','b')) and customer.tier>=2 or exists 'first seen'"))
    not team in ("a", "b") and customer.tier >= 2 or exists "first seen"
    >>> read_filter("lang == 'en'")  # doctest: +NORMALIZE_WHITESPACE
    Traceback (most recent call last):
    polyrank.errors.UsageError: filter, character 7: expected a string in quotes, a number, true, false or null, not
    '='; write conditions such as team = "billing" and not lang in ("de", "fr")
    """
    if len(text) > MAX_CHARACTERS:
        raise UsageError(
            f"the filter has {len(text):,} characters, the limit is {MAX_CHARACTERS:,}; write a shorter filter"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"filter, character {error.start + 1}: this is not valid Unicode; use UTF-8") from error
    return _Parser(text).parse()


def as_filter(filter: Filter | str | None) -> Filter | None:
    """The filter, its text parsed if it is a string.

    Raises:
        UsageError: it is not a filter, a string or None, or the text cannot be parsed.
    """
    match filter:
        case None | Filter():
            return filter
        case str():
            return read_filter(filter)
    raise UsageError(f"filter = {filter!r} is {type(filter).__name__}; write a string such as 'lang = \"en\"'")


def fields_of(filter: Filter) -> dict[str, Filter]:
    """The fields that a filter names, each with a filter for candidates that have it.

    >>> [str(there) for there in fields_of(read_filter('not lang = "en" and customer.tier > 1')).values()]
    ['exists lang', 'exists customer.tier']
    """

    def paths(tree: Tree) -> list[tuple[str, ...]]:
        if tree[0] in ("and", "or", "not"):
            return [path for part in tree[1:] for path in paths(part)]
        return [tree[1]]

    return {name: read_filter(f"exists {name}") for name in map(_name_text, paths(filter.tree))}


def rows_where(
    connection: sqlite3.Connection, filter: Filter, *, after: int = 0, among: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Row numbers in ``candidates`` above ``after`` that pass, ascending; only some rows, if ``among`` is given."""
    rows = "row > ?" if among is None else "row IN (SELECT value FROM json_each(?))"
    start = after if among is None else json.dumps(among.tolist())
    query = f"SELECT row FROM candidates WHERE {rows} AND {filter.where} ORDER BY row"
    with limited_search():
        return np.fromiter((row for (row,) in connection.execute(query, (start, *filter.bound))), np.int64)


def joined(first: Filter | None, second: Filter | None) -> Filter | None:
    """The filter that passes what both pass; None passes everything.

    >>> print(joined(read_filter("a = 1 or b = 2"), read_filter("c = 3")))
    (a = 1 or b = 2) and c = 3
    """
    if first is None or second is None:
        return first or second
    return _of_parts([first, second], "and", 1)


def _of_parts(parts: Sequence[Filter], word: str, level: int) -> Filter:
    """Filters joined by "and" or "or"; unlike a text, without limits."""
    text = f" {word} ".join(part.text_within(level) for part in parts)
    where = f" {word.upper()} ".join(part.where for part in parts)
    bound, tree = tuple(value for part in parts for value in part.bound), (word, *(part.tree for part in parts))
    return Filter(text, f"({where})", bound, tree, level)


def passing(filter: Filter, metadata: Iterable[str]) -> list[bool]:
    """Whether candidates pass, by their metadata as JSON."""
    query = f"SELECT {filter.where} FROM (SELECT ? AS metadata)"
    with closing(sqlite3.connect(":memory:")) as connection:
        return [bool(connection.execute(query, (*filter.bound, text)).fetchone()[0]) for text in metadata]


class _Parser:
    """Recursive descent, one method for each rule of the grammar."""

    def __init__(self, text: str) -> None:
        self._tokens = read_tokens(text)
        self._next = 0
        self._depth = self._n_terms = self._n_values = 0

    def parse(self) -> Filter:
        filter = self._any()
        if self._now.kind != "end":
            self._fail('"and", "or" or the end')
        return filter

    def _any(self) -> Filter:
        return self._joined(self._all, "or", 0)

    def _all(self) -> Filter:
        return self._joined(self._one, "and", 1)

    def _joined(self, operand: Callable[[], Filter], word: str, level: int) -> Filter:
        parts = [operand()]
        while self._accept(word):
            parts.append(operand())
        return parts[0] if len(parts) == 1 else _of_parts(parts, word, level)

    def _one(self) -> Filter:
        start = self._now
        if self._accept("not"):
            inner = self._deeper(self._one, start)
            return Filter(f"not {inner.text_within(2)}", f"NOT {inner.where}", inner.bound, ("not", inner.tree))
        if self._accept("("):
            inner = self._deeper(self._any, start)
            self._expect(")", '"and", "or" or ")"')
            return inner
        self._n_terms += 1
        if self._n_terms > MAX_TERMS:
            raise UsageError(f"filter, character {start.at}: more than {MAX_TERMS} terms; use in (...), or fewer terms")
        if self._accept("exists"):
            name, path = self._name()
            where = "json_type(metadata, ?) IS NOT NULL"
            return Filter(f"exists {name}", where, (sqlite_path(path),), ("exists", path))
        return self._test(*self._name())

    def _deeper(self, rule: Callable[[], Filter], start: Token) -> Filter:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UsageError(
                f"filter, character {start.at}: more than {MAX_DEPTH} parentheses and nots are nested; remove some"
            )
        part = rule()
        self._depth -= 1
        return part

    def _test(self, name: str, path: tuple[str, ...]) -> Filter:
        for sign in ("=", "!=", *_ORDERS):
            if not self._accept(sign):
                continue
            at = self._now
            value = self._value()
            text = f"{name} {sign} {_json(value)}"
            if sign not in _ORDERS:
                return _term(text, ("in", path, (value,)), *_equal([value]), negated=sign == "!=")
            if value_kind(value) == "constant":
                self._fail(f'a string or a number after "{sign}"', at)
            return _term(text, (sign, path, value), *_ordered(sign, value))
        negated = self._accept("not")
        self._expect("in", '"in"' if negated else '"=", "!=", "<", "<=", ">", ">=", "in" or "not in"')
        self._expect("(", '"("')
        values = [self._value()]
        while self._accept(","):
            values.append(self._value())
        self._expect(")", '"," or ")"')
        text = f"{name} {'not in' if negated else 'in'} ({', '.join(map(_json, values))})"
        return _term(text, ("in", path, tuple(values)), *_equal(values), negated=negated)

    def _name(self) -> tuple[str, tuple[str, ...]]:
        """A name in its canonical form, and its parts."""
        parts = [self._part_of_name()]
        while self._accept("."):
            parts.append(self._part_of_name())
        return _name_text(parts), tuple(parts)

    def _part_of_name(self) -> str:
        token = self._now
        if token.kind == "word" and not token.keyword:
            self._next += 1
            return token.text
        if token.kind != "string":
            self._fail("a name (put keywords and names with other characters in quotes)")
        self._next += 1
        name = unquote(token)
        # not every version of SQLite can have these characters in a path
        if not name or any(character < " " or character in '"\\' for character in name):
            raise UsageError(
                f"filter, character {token.at}: a name cannot be empty, or contain double quotes, backslashes or"
                " control characters; filter by another key"
            )
        return name

    def _value(self) -> Value:
        token = self._now
        self._n_values += 1
        if self._n_values > MAX_VALUES:
            raise UsageError(f"filter, character {token.at}: more than {MAX_VALUES} values; list fewer")
        if token.kind == "string":
            self._next += 1
            return unquote(token)
        if token.kind == "number":
            self._next += 1
            number: int | float = json.loads(token.text)
            if not isfinite(float(token.text)):
                raise UsageError(f"filter, character {token.at}: the number is too large; the limit is 1.7e308")
            return number
        if token.keyword not in _CONSTANTS:
            hint = f'; put strings in quotes: "{token.text}"' if token.kind == "word" else EXAMPLE
            self._fail("a string in quotes, a number, true, false or null", hint=hint)
        self._next += 1
        return _CONSTANTS[token.keyword]

    @property
    def _now(self) -> Token:
        return self._tokens[self._next]

    def _accept(self, text: str) -> bool:
        """Whether the next token is this mark or keyword; if so, move past it."""
        token = self._now
        accepted = token.keyword == text or (token.kind == "mark" and token.text == text)
        self._next += accepted
        return accepted

    def _expect(self, text: str, expected: str) -> None:
        if not self._accept(text):
            self._fail(expected)

    def _fail(self, expected: str, at: Token | None = None, hint: str = EXAMPLE) -> NoReturn:
        token = at or self._now
        raise UsageError(f"filter, character {token.at}: expected {expected}, not {token}{hint}")


def _name_text(parts: Sequence[str]) -> str:
    return ".".join(part if is_plain_name(part) else _json(part) for part in parts)


def _json(value: Value) -> str:
    return json.dumps(value, ensure_ascii=False)


def sqlite_path(parts: Sequence[str]) -> str:
    """A field's path in SQLite's syntax."""
    return "$" + "".join(f'."{part}"' for part in parts)


def _term(text: str, tree: Tree, test: str, bound: Sequence[str], *, negated: bool = False) -> Filter:
    """True if the value at the path, or any element of an array there, passes the test."""
    where = (
        f"{'NOT ' if negated else ''}EXISTS (SELECT 1 FROM json_each(metadata, ?)"
        f" WHERE json_type(metadata, ?) <> 'object' AND ({test}))"
    )
    path = sqlite_path(tree[1])
    return Filter(text, where, (path, path, *bound), ("not", tree) if negated else tree)


def _ordered(order: str, value: Value) -> tuple[str, list[str]]:
    if value_kind(value) == "text":
        return f"type = 'text' AND value {order} ?", [str(value)]
    return f"{_NUMBER} {order} {_READ_NUMBER}", [_json(value)]


def _equal(values: Sequence[Value]) -> tuple[str, list[str]]:
    tests, bound = [], []
    for kind, test, mark in (
        ("text", "type = 'text' AND value", "?"),
        ("constant", "type", "?"),
        ("number", _NUMBER, _READ_NUMBER),
    ):
        if group := [value for value in values if value_kind(value) == kind]:
            tests.append(f"{test} IN ({', '.join([mark] * len(group))})")
            bound += [str(value) if kind == "text" else _json(value) for value in group]
    return " OR ".join(tests), bound
