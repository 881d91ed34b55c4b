"""Reads TOML files as tables and applies changes from the command line. Contains no settings."""

import copy
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from polyrank.config.checked import parse_value
from polyrank.errors import ConfigError

Source = str | Path | Mapping[str, Any]
"""A TOML file, or its tables as dictionaries."""


def read_tables(
    source: Source, changes: Sequence[str] = (), paths: Collection[str] = ()
) -> tuple[dict[str, Any], Path]:
    """Read the tables of a TOML file and apply ``changes``; also returns the folder that its paths are relative to.

    Args:
        source: the file, or its tables.
        changes: each KEY=VALUE, with values in TOML syntax.
        paths: keys that hold paths. They become absolute: those of the file are relative to its folder, those in
            changes (and of tables) to the working directory.

    Raises:
        ConfigError: the file does not exist or is not TOML, or a change is not KEY=VALUE.
    """
    if isinstance(source, Mapping):
        values, base = copy.deepcopy(dict(source)), Path.cwd()
    else:
        path = Path(source)
        values, base = _read_toml(path), path.resolve().parent
    _make_absolute(values, paths, base)
    for change in changes:
        _apply(change, values)
    _make_absolute(values, paths, Path.cwd())
    return values, base


def _make_absolute(values: dict[str, Any], paths: Collection[str], base: Path) -> None:
    for key in paths:
        *tables, last = key.split(".")
        table: Any = values
        for name in tables:
            table = table.get(name) if isinstance(table, dict) else None
        if isinstance(table, dict) and isinstance(table.get(last), str):
            table[last] = str(base / table[last])


def _apply(change: str, values: dict[str, Any]) -> None:
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise ConfigError(f"`changes` {change!r} is not KEY=VALUE; write for example train.lr=5e-5")
    *tables, last = key.strip().split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise ConfigError(f"`changes` {change!r}: {table} is not a table; give a key inside a table")
    values[last] = parse_value(text.strip())


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))  # some editors start a file with a byte order mark
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist; give the path of a .toml file") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{path} is a folder; give the path of a .toml file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8, which TOML requires; save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}; fix it in the file") from error
