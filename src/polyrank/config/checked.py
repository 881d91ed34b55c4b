"""What users give, checked: dictionaries to frozen dataclasses, names of choices. Nothing here knows a setting."""

import dataclasses
import difflib
import math
import tomllib
import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

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
Whole = Annotated[int, Limits(least=0)]
Positive = Annotated[float, Limits(above=0)]
NotNegative = Annotated[float, Limits(least=0)]
Share = Annotated[float, Limits(least=0, most=1)]


def from_dict(kind: type[T], values: dict[str, Any], where: str = "") -> T:
    """Build the dataclass ``kind``, refusing unknown keys, wrong types, and numbers outside the limits in their types.

    Raises:
        ConfigError: names the key, and suggests the nearest known one or says the limit.

    >>> Size = dataclasses.make_dataclass("Size", [("width", int), ("depth", float, 1.0)])
    >>> from_dict(Size, {"width": 2, "depth": 3})
    Size(width=2, depth=3.0)
    >>> from_dict(Size, {"widht": 2})
    Traceback (most recent call last):
    polyrank.errors.ConfigError: unknown key "widht"; did you mean "width"?
    """
    hints = get_type_hints(kind, include_extras=True)
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]  # every caller passes a dataclass
    prefix = f"{where}." if where else ""
    for key in values:
        if key not in hints:
            raise unknown_key(key, hints, prefix)
    for entry in fields:
        required = entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
        if required and entry.name not in values:
            raise ConfigError(f'missing key "{prefix}{entry.name}"; add it to the recipe')
    return kind(**{key: _value(hints[key], value, prefix + key) for key, value in values.items()})


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


def _value(hint: Any, value: Any, where: str) -> Any:
    """Check ``value`` against a type hint; lists become tuples and whole numbers become floats where one is due."""
    origin, options = get_origin(hint), get_args(hint)
    if origin is Annotated:
        found = _value(options[0], value, where)
        options[1].check(found, where)
        return found
    if origin is Literal:
        if value is None and "none" in options:  # --set has one word for both
            return "none"
        if value not in options:
            raise ConfigError(f"{where} = {value!r} is not one of {', '.join(map(repr, options))}")
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in options:
            return None
        return _value(next(option for option in options if option is not type(None)), value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} = {value!r} is not a list; write [{value!r}]")
        return tuple(_value(options[0], item, where) for item in value)
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ConfigError(f"{where} is a whole number of more than 64 bits; no setting is as large")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is float and isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where} = {value!r} is not finite; give a number")
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ConfigError(f"{where} = {value!r} is {type(value).__name__}; it must be {hint.__name__}")
    return value


def unknown_key(key: str, known: Iterable[str], prefix: str = "") -> ConfigError:
    """What to say about a key that nobody knows: the nearest known one."""
    names = sorted(known)
    near = difflib.get_close_matches(key, names, n=1)
    hint = f'did you mean "{prefix}{near[0]}"?' if near else f"known keys: {', '.join(names)}"
    return ConfigError(f'unknown key "{prefix}{key}"; {hint}')


def parsed(text: str) -> Any:
    """A value as TOML writes it, or else the text itself; "none" is None."""
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
