"""Translates metadata to keys that a vector database can filter by, and filters to conditions on those keys.

A filter has exactly the meaning that it has in SQLite (``polyrank.index.filters``). To guarantee that, the server
never parses JSON, compares values or negates missing ones. Each term of a filter becomes the existence of a *fact*,
which the server only looks up:

- ``e...``: a value exists at a path;
- ``v...``: the value at a path, or an element of the array there, equals this value;
- ``n...`` and ``t...``: numbers, or texts, exist at a path; ``...l`` holds the least of them and ``...h`` the largest,
  encoded as digits in the order of the values: some element is above 5 if the largest one is.

If a field divides the collection, a row also has a partition, and a filter that demands values of this field reads
their partitions only.

A hash names each fact, and bounds are digits, so a condition never contains text that a user wrote. No torch.
>>> condition(read_filter('exists lang').tree, MILVUS) == f'(exists facts["{fact_name("e", ["lang"])}"])'
True
>>> sorted(facts({"tier": 2}))[0] == fact_name("e", ["tier"])
True
"""

import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from polyrank.errors import UsageError
from polyrank.index.filters import Tree, read_filter, value_kind

Facts: TypeAlias = dict[str, str | bool]
C = TypeVar("C")
COLUMN = "facts"
PARTITION = "partition"
REST = "-"  # the partition of rows without a single value of the field


def facts(metadata: Mapping[str, Any]) -> Facts:
    """All facts about one candidate, by name.

    Args:
        metadata: as the JSON parser returns them.
    """
    result: Facts = {}
    for path, value in paths_of(metadata):
        result[fact_name("e", path)] = True
        ordered: dict[str, list[str]] = {}
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, list | dict):
                continue
            result[fact_name("v", path, one)] = True
            if value_kind(one) != "constant":
                kind, digits = _ordered(one)
                ordered.setdefault(kind, []).append(digits)
        for kind, values in ordered.items():
            name = fact_name(kind, path)
            result |= {f"{name}l": min(values), f"{name}h": max(values)}
    return result


@dataclass(frozen=True, slots=True)
class Language(Generic[C]):
    """How a server writes conditions.

    Args:
        exists: the condition that a fact with this name exists.
        compare: that a bound, by its name, is ``<``, ``<=``, ``>`` or ``>=`` some digits; a missing one is not.
        join: "and" or "or" of conditions.
        negate: not.
    """

    exists: Callable[[str], C]
    compare: Callable[[str, str, str], C]
    join: Callable[[str, list[C]], C]
    negate: Callable[[C], C]


def condition(tree: Tree, language: Language[C]) -> C:
    """A filter as a condition, which is true or false for every candidate, never unknown."""
    kind, *rest = tree
    if kind in ("and", "or"):
        return language.join(kind, [condition(part, language) for part in rest])
    if kind == "not":
        return language.negate(condition(rest[0], language))
    if kind == "exists":
        return language.exists(fact_name("e", rest[0]))
    path, value = rest
    if kind == "in":
        names = dict.fromkeys(fact_name("v", path, one) for one in value)
        return language.join("or", [language.exists(name) for name in names])
    sort, digits = _ordered(value)
    return language.compare(fact_name(sort, path) + ("l" if kind in ("<", "<=") else "h"), kind, digits)


def _exists(name: str) -> str:  # some versions of Milvus read "exists a and b" as "exists (a and b)"
    return f'(exists {COLUMN}["{name}"])'


MILVUS: Language[str] = Language(
    _exists,
    # if the first part is false, the server's result for the second does not matter
    lambda name, kind, digits: f'({_exists(name)} and {COLUMN}["{name}"] {kind} "{digits}")',
    lambda kind, parts: f"({f' {kind} '.join(parts)})",
    lambda part: f"(not {part})",
)


def paths_of(value: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every path through nested objects, and the value there."""
    for key, inner in value.items():
        path = (*above, key)
        yield path, inner
        if isinstance(inner, dict):
            yield from paths_of(inner, path)


def fact_name(kind: str, path: Sequence[str], *value: Any) -> str:
    """A fact's name: its kind and 96 bits of SHA-256 of its path and value."""
    parts: list[Any] = [kind, *path]
    for one in value:
        plain = value_kind(one) == "constant"
        parts.append([json.dumps(one)] if plain else [*_ordered(one)])  # in a list, so that it is not part of the path
    return kind + hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _ordered(value: str | int | float) -> tuple[str, str]:
    """Digits in the order of the values: texts by code points, numbers as SQLite compares them.

    >>> numbers = [-(2**62), -1, -1e-300, 0, 0.5, 1, 2**53, 2**53 + 1, 2.0**53 + 2, 2**63 - 1, 2.0**63, 1e300, 10**400]
    >>> [_ordered(a) < _ordered(b) for a, b in zip(numbers, numbers[1:])] == [True] * 12
    True
    >>> _ordered(2) == _ordered(2.0), _ordered(-0.0) == _ordered(0), _ordered("") < _ordered("a") < _ordered("aé")
    (True, True, True)
    """
    if isinstance(value, str):
        return "t", value.partition("\0")[0].encode().hex()  # SQLite reads a text up to the first NUL
    if isinstance(value, int) and not -(2**63) <= value < 2**63:  # SQLite reads it as a double
        try:
            value = float(value)
        except OverflowError:
            value = float("inf") if value > 0 else float("-inf")
    near = float(value) + 0.0  # no negative zero
    (bits,) = struct.unpack(">q", struct.pack(">d", near))
    rest = value - int(near) if isinstance(value, int) else 0  # difference from the nearest double: at most 512
    return "n", f"{(bits if bits >= 0 else ~bits ^ -(2**63)) + 2**63:016x}{rest + 1024:04x}"


@dataclass(frozen=True, slots=True)
class Columns:
    """How a collection stores what filters need.

    Args:
        field: the path of the field that divides the rows; empty: nothing does.
    """

    field: tuple[str, ...] = ()

    def of(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a row's columns.

        Args:
            metadata: of the candidate, as the JSON parser returns them.

        >>> Columns(("lang",)).of({"lang": ["en", "de"]})["partition"]
        '-'
        """
        row: dict[str, Any] = {COLUMN: facts(metadata)}
        if self.field:
            value = dict(paths_of(metadata)).get(self.field, [])
            row[PARTITION] = REST if isinstance(value, list | dict) else fact_name("v", self.field, value)
        return row

    def condition(self, tree: Tree) -> str:
        """A filter as a Milvus expression that names the partitions to read, if it demands values of the field."""
        passes, read = condition(tree, MILVUS), self.partitions(tree)
        return passes if read is None else f"{PARTITION} in {json.dumps(sorted(read))} and {passes}"

    def partitions(self, tree: Tree) -> frozenset[str] | None:
        """Partitions that hold all candidates that pass a filter; None: any may.

        >>> def n_read(text): return len(Columns(("lang",)).partitions(read_filter(text).tree) or ())
        >>> n_read('lang = "en"'), n_read('lang in ("en", "de") and tier > 1'), n_read('lang = "en" or tier > 1')
        (2, 3, 0)
        """
        kind, *rest = tree
        if kind == "in" and self.field and tuple(rest[0]) == self.field:  # an array may hold the value
            return frozenset([REST, *(fact_name("v", self.field, one) for one in rest[1])])
        if kind not in ("and", "or"):
            return None
        parts = [self.partitions(part) for part in rest]
        known = [part for part in parts if part is not None]
        if kind == "and":
            return frozenset.intersection(*known) if known else None
        return frozenset.union(*known) if len(known) == len(parts) else None


def read_field(text: str) -> tuple[str, ...]:
    """The path of a field, written as in a filter; empty if the text is.

    Raises:
        UsageError: the text is not the name of a field.

    >>> read_field("customer.tier"), read_field("")
    (('customer', 'tier'), ())
    """
    try:
        kind, *rest = read_filter(f"exists {text}").tree if text else ("exists", ())
    except UsageError:
        kind = ""
    if kind != "exists":
        raise UsageError(f'a collection cannot be divided by {text!r}; name one field, such as lang or "first seen"')
    return tuple(rest[0])
