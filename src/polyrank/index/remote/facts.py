"""What a candidate's metadata say, as keys that a vector database can filter by, and filters as conditions on those.

A filter means here what it means to SQLite (``polyrank.index.filters``), to the last corner: so no engine is asked to
read JSON, compare values or negate what is missing. Each term of a filter is whether a *fact* is there, and the engine
only looks it up:

- ``e...``: there is something at a path;
- ``v...``: the value at a path, or an element of the array there, is this one;
- ``n...`` and ``t...``: there are numbers, or texts, at a path, of which these are the least (``...l``) and the largest
  (``...h``), in digits that are in the order of what they stand for: an element is above 5 where the largest one is.

A fact is named by a hash, a bound is digits: nothing that anybody wrote stands in a condition. No torch.

>>> from polyrank.index.filters import read_filter
>>> condition(read_filter('lang = "en"').tree) == f'(exists $meta["{_name("v", ["lang"], "en")}"])'
True
>>> sorted(facts({"tier": 2}))[0] == _name("e", ["tier"])
True
"""

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from polyrank.index.filters import Tree, value_kind

Facts: TypeAlias = dict[str, str | bool]


def facts(metadata: Mapping[str, Any]) -> Facts:
    """All facts of one candidate, by name.

    Args:
        metadata: as JSON reads them.
    """
    result: Facts = {}
    for path, value in _paths(metadata, ()):
        result[_name("e", path)] = True
        ordered: dict[str, list[str]] = {}
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, list | dict):
                continue
            result[_name("v", path, one)] = True
            if value_kind(one) != "constant":
                kind, digits = _ordered(one)
                ordered.setdefault(kind, []).append(digits)
        for kind, values in ordered.items():
            name = _name(kind, path)
            result |= {f"{name}l": min(values), f"{name}h": max(values)}
    return result


def condition(tree: Tree) -> str:
    """A filter as an expression of Milvus, which is true or false for every candidate, never unknown."""
    kind, *rest = tree
    if kind in ("and", "or"):
        return f"({f' {kind} '.join(map(condition, rest))})"
    if kind == "not":
        return f"(not {condition(rest[0])})"
    if kind == "exists":
        return f"({_there(_name('e', rest[0]))})"
    path, value = rest
    if kind == "in":
        return f"({' or '.join(dict.fromkeys(_there(_name('v', path, one)) for one in value))})"
    sort, digits = _ordered(value)
    name = _name(sort, path) + ("l" if kind in ("<", "<=") else "h")
    # where the first part is false, it does not matter what an engine makes of the second
    return f'({_there(name)} and $meta["{name}"] {kind} "{digits}")'


def _there(name: str) -> str:
    return f'exists $meta["{name}"]'


def _paths(value: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every path through objects, and what is there."""
    for key, inner in value.items():
        path = (*above, key)
        yield path, inner
        if isinstance(inner, dict):
            yield from _paths(inner, path)


def _name(kind: str, path: Sequence[str], *value: Any) -> str:
    """Of a fact: 96 bits of SHA-256 say which."""
    parts: list[Any] = [kind, *path]
    for one in value:
        plain = value_kind(one) == "constant"
        parts.append([json.dumps(one)] if plain else [*_ordered(one)])  # in a list: no part of the path
    return kind + hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _ordered(value: str | int | float) -> tuple[str, str]:
    """Digits in the order of the values: of texts by their characters' Unicode numbers, of numbers as SQLite has it.

    >>> numbers = [-(2**62), -1, -1e-300, 0, 0.5, 1, 2**53, 2**53 + 1, 2.0**53 + 2, 2**63 - 1, 2.0**63, 1e300, 10**400]
    >>> [_ordered(a) < _ordered(b) for a, b in zip(numbers, numbers[1:])] == [True] * 12
    True
    >>> _ordered(2) == _ordered(2.0), _ordered(-0.0) == _ordered(0), _ordered("") < _ordered("a") < _ordered("aé")
    (True, True, True)
    """
    if isinstance(value, str):
        return "t", value.partition("\0")[0].encode().hex()  # SQLite reads a text up to there
    if isinstance(value, int) and not -(2**63) <= value < 2**63:  # SQLite reads it as a double
        try:
            value = float(value)
        except OverflowError:
            value = float("inf") if value > 0 else float("-inf")
    near = float(value) + 0.0  # no negative zero
    (bits,) = struct.unpack(">q", struct.pack(">d", near))
    rest = value - int(near) if isinstance(value, int) else 0  # what the nearest double lacks: at most 512
    return "n", f"{(bits if bits >= 0 else ~bits ^ -(2**63)) + 2**63:016x}{rest + 1024:04x}"
