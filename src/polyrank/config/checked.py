"""Converts dictionaries from users to frozen dataclasses and back, with checks. Contains no settings."""

import dataclasses
import difflib
import math
import tomllib
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from polyrank.errors import ConfigError, UsageError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """The range of a number, as an annotation of its type.

    Args:
        least: the lowest valid value.
        most: the highest valid value.
        above: the value must be greater than this.

    >>> Limits(least=0, most=1).check(1.5, "share")
    Traceback (most recent call last):
    polyrank.errors.ConfigError: share = 1.5 is outside 0 to 1; choose a value between
    """

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf

    def check(self, value: float, where: str) -> None:
        """Raise ConfigError if ``value`` is outside the range."""
        if value <= self.above:
            raise ConfigError(f"{where} = {value!r} must be above {self.above:g}")
        if value < self.least and self.most == math.inf:
            raise ConfigError(f"{where} = {value!r} must be at least {self.least:g}")
        if not self.least <= value <= self.most:
            raise ConfigError(f"{where} = {value!r} is outside {self.least:g} to {self.most:g}; choose a value between")


Count = Annotated[int, Limits(least=1)]
AtLeastTwo = Annotated[int, Limits(least=2)]
NonNegativeInt = Annotated[int, Limits(least=0)]
Positive = Annotated[float, Limits(above=0)]
NonNegativeFloat = Annotated[float, Limits(least=0)]
Fraction = Annotated[float, Limits(least=0, most=1)]


class Settings:
    """Base of the frozen dataclasses of settings: checks each value against the limits in its type on creation.

    Errors name the key alone; code that reads a table adds the table's name. A class that is one of several kinds
    states its kind in ``kind``.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, hint in field_types(type(self)).items():
            _check(hint, getattr(self, name), name)


_field_types: dict[Any, dict[str, Any]] = {}


def field_types(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields, with the limits in them."""
    if kind not in _field_types:
        hints = get_type_hints(kind, include_extras=True)
        _field_types[kind] = {entry.name: hints[entry.name] for entry in dataclasses.fields(kind)}
    return _field_types[kind]


def from_dict(kind: type[T], values: Any, where: str = "", defaults: T | None = None) -> T:
    """Build the dataclass ``kind``; refuse unknown keys and wrong types.

    Args:
        kind: a dataclass, whose fields may be dataclasses or unions of several kinds.
        values: values by field name.
        where: the table's name, for errors.
        defaults: supplies the fields that ``values`` does not contain; None: the fields' own defaults.

    Raises:
        ConfigError: names the key, and suggests the nearest known key, its right place, or its valid values.

    >>> Size = dataclasses.make_dataclass("Size", [("width", int), ("depth", float, 1.0)])
    >>> from_dict(Size, {"width": 2, "depth": 3})
    Size(width=2, depth=3.0)
    >>> from_dict(Size, {"widht": 2})
    Traceback (most recent call last):
    polyrank.errors.ConfigError: unknown key "widht"; did you mean "width"?
    """
    check_table(values, where)
    hints, prefix = field_types(kind), f"{where}." if where else ""
    for key in values:
        if key not in hints:
            raise unknown_key(key, hints, prefix, nested_keys(hints))
    fields = {}
    for entry in dataclasses.fields(kind):  # type: ignore[arg-type]  # every caller passes a dataclass
        start = entry.default if defaults is None else getattr(defaults, entry.name)
        if entry.name in values:
            fields[entry.name] = _value(hints[entry.name], values[entry.name], prefix + entry.name, start)
        elif start is not dataclasses.MISSING:
            fields[entry.name] = start
        elif entry.default_factory is dataclasses.MISSING:
            raise ConfigError(f'missing key "{prefix}{entry.name}"; add it to the recipe')
    try:
        return kind(**fields)
    except ConfigError as error:
        raise ConfigError(f"{prefix}{error}") from error


def check_table(values: object, where: str) -> None:
    """Raise ConfigError unless the value is a table."""
    if not isinstance(values, dict):
        raise ConfigError(f"{where} = {values!r} is not a table; write [{where}]")


def kinds(union: Any) -> dict[str, Any]:
    """The classes of a union, by their ``kind``."""
    return {option.kind: option for option in without_none(union)}


def kind_from_dict(union: Any, values: Any, where: str, defaults: Any = None) -> Any:
    """Build the dataclass of a union that the key ``kind`` names.

    Args:
        union: of the dataclasses; the caller narrows the result to it.
        values: the table.
        where: the table's name, for errors.
        defaults: an instance that supplies the default kind, and values for the fields that both kinds have.

    Raises:
        ConfigError: the kind is unknown, or a key is wrong or belongs to another kind.
    """
    options = kinds(union)
    if not isinstance(values, dict):
        raise ConfigError(f'{where} = {values!r} is not a table; write {where}.kind = "{values}"')
    name = values.get("kind", getattr(defaults, "kind", None))
    if not isinstance(name, str) or name not in options:
        raise ConfigError(f"{where}.kind = {name!r} is not one of {', '.join(options)}")
    rest = {key: value for key, value in values.items() if key != "kind"}
    hints = field_types(options[name])
    for key in rest.keys() - hints.keys():
        if others := [f'"{other}"' for other, kind in options.items() if key in field_types(kind)]:
            raise ConfigError(
                f'{where}.{key} is a key of kind {" or ".join(others)}, and {where}.kind is "{name}"; leave it'
                " out or change the kind"
            )
    shared = {key: getattr(defaults, key) for key in hints if hasattr(defaults, key)}
    return from_dict(options[name], shared | rest, where)


def to_dict(settings: Settings) -> dict[str, Any]:
    """The inverse of ``from_dict`` and ``kind_from_dict``, ready for JSON."""
    values = {"kind": settings.kind} if hasattr(settings, "kind") else {}
    for name in field_types(type(settings)):
        value = getattr(settings, name)
        values[name] = to_dict(value) if isinstance(value, Settings) else value
    return values


def read_choice(name: str, options: Any, what: str, *, also: str = "") -> Any:
    """Check that a name from the user is one of the values of a Literal.

    Args:
        name: the user's input.
        options: the Literal; the caller narrows the result to it.
        what: the kind of thing that the name denotes, for the error.
        also: a further valid name that the caller handles itself, for the error.

    Raises:
        UsageError: the name is unknown.

    >>> read_choice("rows", Literal["rows", "columns"], "count")
    'rows'
    >>> read_choice("row", Literal["rows", "columns"], "count")
    Traceback (most recent call last):
    polyrank.errors.UsageError: unknown count 'row'; choose rows or columns
    """
    *others, last = get_args(options)
    if name not in (*others, last):
        names = [also, *others] if also else others
        raise UsageError(f"unknown {what} {name!r}; choose {', '.join(names)} or {last}")
    return name


def whole_number(value: object, name: str, *, least: int | None = None) -> int:
    """Check that an argument is a whole number of at most 64 bits.

    Args:
        value: of the argument.
        name: of the argument, for the error.
        least: the lowest valid value; None: any.

    Raises:
        UsageError: it is not, or is too low.

    >>> whole_number(2.5, "k")
    Traceback (most recent call last):
    polyrank.errors.UsageError: k = 2.5 is float; give a whole number
    >>> whole_number(0, "n", least=1)
    Traceback (most recent call last):
    polyrank.errors.UsageError: n is 0; give 1 or more
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UsageError(f"{name} = {value!r} is {type(value).__name__}; give a whole number")
    number = int(value)
    if abs(number) >= 2**63:
        raise UsageError(f"{name} is a whole number of more than 64 bits; give a smaller one")
    if least is not None and number < least:
        raise UsageError(f"{name} is {number}; give {least} or more")
    return number


def without_none(hint: Any) -> list[Any]:
    """The options of a union, without None."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return [option for option in options if option is not type(None)]


def is_settings(option: object) -> bool:
    """Whether a type is that of a table."""
    return isinstance(option, type) and issubclass(option, Settings)


def _value(hint: Any, value: Any, where: str, start: Any = None) -> Any:
    """Convert ``value`` to its type: lists become tuples, whole numbers floats, tables dataclasses."""
    options = without_none(hint)
    if value is None and type(None) in get_args(hint):
        return None
    if is_settings(options[0]):
        if len(options) > 1:
            return kind_from_dict(hint, value, where, start)
        return from_dict(options[0], value, where, start if isinstance(start, Settings) else None)
    option = _option(hint, value)
    hint = get_args(option)[0] if get_origin(option) is Annotated else option
    if get_origin(hint) is Literal:
        return "none" if value is None else value  # KEY=none is None for every key
    if get_origin(hint) is tuple:
        if isinstance(value, str) and get_origin(get_args(hint)[0]) is Literal:
            value = [value]  # one word needs no list
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} = {value!r} is not a list; write {_as_list(get_args(hint)[0], value)}")
        return tuple(_value(get_args(hint)[0], item, where) for item in value)
    if type(value) is int and abs(value) >= 2**63:
        raise ConfigError(f"{where} is a whole number of more than 64 bits; give a smaller one")
    if hint is float and type(value) is int:
        return float(value)
    if not isinstance(value, hint) or (hint is int and type(value) is bool):
        raise ConfigError(f"{where} = {value!r} is {type(value).__name__}; it must be {hint.__name__}")
    return value


def _option(hint: Any, value: Any) -> Any:
    """The type that a value must have; in a union of names and numbers, a number has the last one."""
    options = without_none(hint)
    return options[-1 if get_origin(options[0]) is Literal and isinstance(value, int | float) else 0]


def _as_list(item: Any, value: Any) -> str:
    """The list that the user probably meant by ``value``, or an example of a list."""
    parts = [parse_value(part.strip()) for part in value.strip("()").split(",")] if isinstance(value, str) else [value]
    try:
        return str([_value(item, part, "") for part in parts])
    except ConfigError:
        return "one such as [1, 2]"


def _check(hint: Any, value: Any, where: str) -> None:
    """Raise ConfigError if ``value``, of the right type, violates the limits of its type."""
    hint = _option(hint, value)
    origin = get_origin(hint)
    if value is None:
        return
    if origin is Annotated:
        _check(get_args(hint)[0], value, where)
        get_args(hint)[1].check(value, where)
    elif origin is Literal and value not in get_args(hint):
        raise ConfigError(f"{where} = {value!r} is not one of {', '.join(map(repr, get_args(hint)))}")
    elif origin is tuple:
        if Ellipsis not in get_args(hint) and len(value) != len(get_args(hint)):
            raise ConfigError(f"{where} = {list(value)} has {len(value)} numbers; give {len(get_args(hint))}")
        for item in value:
            _check(get_args(hint)[0], item, where)
    elif hint is float and not math.isfinite(value):
        raise ConfigError(f"{where} = {value!r} is not finite; give a number")


def nested_keys(hints: Mapping[str, Any]) -> list[str]:
    """The keys of the tables among some fields, such as ``train.lr``."""
    return [
        f"{name}.{key}"
        for name, hint in hints.items()
        for table in without_none(hint)
        if is_settings(table)
        for key in field_types(table)
    ]


def unknown_key(key: str, known: Iterable[str], prefix: str = "", nested: Iterable[str] = ()) -> ConfigError:
    """The error for an unknown key; suggests the same key in a nested table, or the nearest known key."""
    names = sorted(known)
    near = [name for name in nested if name.endswith(f".{key}")] or difflib.get_close_matches(key, names, n=1)
    others = f"known keys: {', '.join(names)}" if names else "this table has no keys; leave it out"
    hint = f'did you mean "{prefix}{near[0]}"?' if near else others
    return ConfigError(f'unknown key "{prefix}{key}"; {hint}')


def recipe_tables(kind: Any, values: Mapping[str, Any], required: Iterable[str]) -> dict[str, Any]:
    """All tables of a recipe and its key ``output``; missing tables are empty, or None if they are optional.

    Args:
        kind: the recipe's dataclass.
        values: the tables from the user.
        required: names that may not be missing.

    Raises:
        ConfigError: a key is unknown or missing, a value is not a table, or the output is not a text.
    """
    hints = field_types(kind)
    for key in values:
        if key not in hints:
            raise unknown_key(key, hints, nested=nested_keys(hints))
    for name in required:
        if name not in values:
            raise ConfigError(f'missing key "{name}"; add it to the recipe')
    if not isinstance(output := values["output"], str):
        raise ConfigError(f"output = {output!r} is not a folder; write its path in quotes")
    tables = {name: None if type(None) in get_args(hint) else {} for name, hint in hints.items()} | dict(values)
    for name, table in tables.items():
        if name != "output" and table is not None:
            check_table(table, name)
    return tables


def parse_value(text: str) -> Any:
    """Parse a value in TOML syntax; "none" is None, and other invalid TOML is a string."""
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
