"""What users give, checked: dictionaries to frozen dataclasses and back, names of choices. Knows no setting."""

import dataclasses
import difflib
import math
import tomllib
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from polyrank.errors import ConfigError, UsageError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a number may be, as a note in its type.

    Args:
        least: not below this.
        most: not above this.
        above: not this either, nor below.

    >>> Limits(least=0, most=1).check(1.5, "share")
    Traceback (most recent call last):
    polyrank.errors.ConfigError: share = 1.5 is outside 0 to 1; choose a value between
    """

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf

    def check(self, value: float, where: str) -> None:
        """Raises ConfigError where it is outside."""
        if value <= self.above:
            raise ConfigError(f"{where} = {value!r} must be above {self.above:g}")
        if value < self.least and self.most == math.inf:
            raise ConfigError(f"{where} = {value!r} must be at least {self.least:g}")
        if not self.least <= value <= self.most:
            raise ConfigError(f"{where} = {value!r} is outside {self.least:g} to {self.most:g}; choose a value between")


Count = Annotated[int, Limits(least=1)]
Several = Annotated[int, Limits(least=2)]
Whole = Annotated[int, Limits(least=0)]
Positive = Annotated[float, Limits(above=0)]
NotNegative = Annotated[float, Limits(least=0)]
Share = Annotated[float, Limits(least=0, most=1)]


class Settings:
    """What frozen dataclasses of settings have in common: values are checked against their types' limits when made.

    Errors name the key alone; who reads a table puts the table's name before it. A class that is one kind of several
    says which in ``kind``.
    """

    __slots__ = ()
    moved: ClassVar[Mapping[str, str]] = {}
    """Keys that this table once had, and where they are now."""
    dropped: ClassVar[Mapping[str, Any]] = {}
    """Keys that this table once had, and the value that now always applies: files from before may still say it."""

    def __post_init__(self) -> None:
        for name, hint in field_types(type(self)).items():
            _check(hint, getattr(self, name), name)


_field_types: dict[Any, dict[str, Any]] = {}


def field_types(kind: type[Any]) -> dict[str, Any]:
    """The fields of a dataclass with their types and the limits in them."""
    if kind not in _field_types:
        hints = get_type_hints(kind, include_extras=True)
        _field_types[kind] = {entry.name: hints[entry.name] for entry in dataclasses.fields(kind)}
    return _field_types[kind]


def from_dict(kind: type[T], values: Any, where: str = "", defaults: T | None = None) -> T:
    """Build the dataclass ``kind``, refusing unknown keys and wrong types.

    Args:
        kind: a dataclass, whose fields may be dataclasses, or one kind of several.
        values: by name of the field.
        where: the table's name, for errors.
        defaults: what to take where ``values`` say nothing; None: the fields' own defaults.

    Raises:
        ConfigError: names the key, and suggests the nearest known one, where it belongs, or what it may be.

    >>> Size = dataclasses.make_dataclass("Size", [("width", int), ("depth", float, 1.0)])
    >>> from_dict(Size, {"width": 2, "depth": 3})
    Size(width=2, depth=3.0)
    >>> from_dict(Size, {"widht": 2})
    Traceback (most recent call last):
    polyrank.errors.ConfigError: unknown key "widht"; did you mean "width"?
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{where} = {values!r} is no table; write [{where}]")
    hints, moved, dropped = field_types(kind), getattr(kind, "moved", {}), getattr(kind, "dropped", {})
    prefix = f"{where}." if where else ""
    for key in values:
        if key in dropped and values[key] == dropped[key]:
            continue
        if key in dropped:
            raise ConfigError(
                f'"{prefix}{key}" is no longer a setting, and {dropped[key]!r} always applies; leave it out'
            )
        if key in moved:
            raise ConfigError(f'"{prefix}{key}" is written "{prefix}{moved[key]}" now')
        if key not in hints:
            raise unknown_key(key, hints, prefix, keys_inside(hints))
    known = {}
    for entry in dataclasses.fields(kind):  # type: ignore[arg-type]  # every caller passes a dataclass
        start = entry.default if defaults is None else getattr(defaults, entry.name)
        if entry.name in values:
            known[entry.name] = _value(hints[entry.name], values[entry.name], prefix + entry.name, start)
        elif start is not dataclasses.MISSING:
            known[entry.name] = start
        elif entry.default_factory is dataclasses.MISSING:
            raise ConfigError(f'missing key "{prefix}{entry.name}"; add it to the recipe')
    try:
        return kind(**known)
    except ConfigError as error:
        raise ConfigError(f"{prefix}{error}") from error


def kinds(union: Any) -> dict[str, Any]:
    """The classes of a union by the kind that each says it is."""
    return {option.kind: option for option in _without_none(union)}


def kind_from_dict(union: Any, values: Any, where: str, defaults: Any = None) -> Any:
    """Build that dataclass of a union which the key ``kind`` names.

    Args:
        union: of the dataclasses; whoever asks returns it as such.
        values: the table.
        where: its name, for errors.
        defaults: the kind to take without that key; what another kind shares with it is taken as well.

    Raises:
        ConfigError: no such kind, or one of its keys is wrong or another kind's.
    """
    known = kinds(union)
    if not isinstance(values, dict):
        raise ConfigError(f'{where} = {values!r} is no table; write {where}.kind = "{values}"')
    name = values.get("kind", getattr(defaults, "kind", None))
    if not isinstance(name, str) or name not in known:
        raise ConfigError(f"{where}.kind = {name!r} is not one of {', '.join(known)}")
    rest = {key: value for key, value in values.items() if key != "kind"}
    own = field_types(known[name])
    for key in rest.keys() - own.keys():
        if others := [f'"{other}"' for other, kind in known.items() if key in field_types(kind)]:
            raise ConfigError(
                f'{where}.{key} is a key of kind {" or ".join(others)}, and {where}.kind is "{name}"; leave it'
                " out or change the kind"
            )
    shared = {key: getattr(defaults, key) for key in own if hasattr(defaults, key)}
    return from_dict(known[name], shared | rest, where)


def to_dict(settings: Settings) -> dict[str, Any]:
    """The inverse of ``from_dict`` and ``kind_from_dict``, ready for JSON."""
    values = {"kind": settings.kind} if hasattr(settings, "kind") else {}
    for name in field_types(type(settings)):
        value = getattr(settings, name)
        values[name] = to_dict(value) if isinstance(value, Settings) else value
    return values


def read_choice(name: str, options: Any, what: str, *, also: str = "") -> Any:
    """A name that a user gave, if it is one of those that a Literal lists.

    Args:
        name: as given.
        options: the Literal; whoever asks returns it as such.
        what: it would be.
        also: a further name, which the caller takes itself and which the error must not forget.

    Raises:
        UsageError: there is none of that name.

    >>> read_choice("rows", Literal["rows", "columns"], "way to count")
    'rows'
    >>> read_choice("row", Literal["rows", "columns"], "way to count")
    Traceback (most recent call last):
    polyrank.errors.UsageError: 'row' is no way to count; choose rows or columns
    """
    *others, last = get_args(options)
    if name not in (*others, last):
        known = [also, *others] if also else others
        raise UsageError(f"{name!r} is no {what}; choose {', '.join(known)} or {last}")
    return name


def _without_none(hint: Any) -> list[Any]:
    """What a type may be besides None."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return [option for option in options if option is not type(None)]


def _value(hint: Any, value: Any, where: str, start: Any = None) -> Any:
    """``value`` as its type wants it: lists become tuples, whole numbers floats, tables dataclasses."""
    options = _without_none(hint)
    if value is None and type(None) in get_args(hint):
        return None
    if isinstance(options[0], type) and issubclass(options[0], Settings):
        if len(options) > 1:
            return kind_from_dict(hint, value, where, start)
        return from_dict(options[0], value, where, start if isinstance(start, Settings) else None)
    hint = get_args(options[0])[0] if get_origin(options[0]) is Annotated else options[0]
    if get_origin(hint) is Literal:
        return "none" if value is None and "none" in get_args(hint) else value  # --set has one word for both
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} = {value!r} is not a list; write {_as_list(get_args(hint)[0], value)}")
        return tuple(_value(get_args(hint)[0], item, where) for item in value)
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ConfigError(f"{where} is a whole number of more than 64 bits; no setting is as large")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ConfigError(f"{where} = {value!r} is {type(value).__name__}; it must be {hint.__name__}")
    return value


def _as_list(item: Any, value: Any) -> str:
    """What was meant by a value that should be a list of numbers, or an example of one."""
    parts = [parsed(part.strip()) for part in value.strip("()").split(",")] if isinstance(value, str) else [value]
    try:
        return str([_value(item, part, "") for part in parts])
    except ConfigError:
        return "one such as [1, 2]"


def _check(hint: Any, value: Any, where: str) -> None:
    """Raises ConfigError where ``value``, of the right type, is none that it may be."""
    hint, origin = _without_none(hint)[0], get_origin(_without_none(hint)[0])
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


def keys_inside(hints: Mapping[str, Any]) -> list[str]:
    """Keys of the tables among some fields, such as ``train.lr``."""
    tables = {name: _without_none(hint)[0] for name, hint in hints.items()}
    return [
        f"{name}.{key}"
        for name, table in tables.items()
        if isinstance(table, type) and dataclasses.is_dataclass(table)
        for key in field_types(table)
    ]


def unknown_key(key: str, known: Iterable[str], prefix: str = "", inside: Iterable[str] = ()) -> ConfigError:
    """What to say about a key that nobody knows: the same in a table, or the nearest known one."""
    names = sorted(known)
    near = [name for name in inside if name.endswith(f".{key}")] or difflib.get_close_matches(key, names, n=1)
    others = f"known keys: {', '.join(names)}" if names else "there are no keys here; leave it out"
    hint = f'did you mean "{prefix}{near[0]}"?' if near else others
    return ConfigError(f'unknown key "{prefix}{key}"; {hint}')


def parsed(text: str) -> Any:
    """A value as TOML writes it, or else the text itself; "none" is None."""
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
