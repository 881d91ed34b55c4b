"""TOML files of settings as tables, with the changes of a command line. Knows no setting."""

import copy
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from polyrank.config.checked import parsed
from polyrank.errors import ConfigError

Source = str | Path | Mapping[str, Any]
"""A TOML file, or its tables as dictionaries."""


def read_tables(
    source: Source, changes: Sequence[str] = (), paths: Collection[str] = ()
) -> tuple[dict[str, Any], Path]:
    """The tables of a TOML file with ``changes`` made, and the folder that its paths are relative to.

    Args:
        source: the file, or its tables.
        changes: each KEY=VALUE, values as TOML writes them.
        paths: keys of paths; those of changes are relative to the working directory, and made absolute.

    Raises:
        ConfigError: no file, no TOML, or a change that is none.
    """
    if isinstance(source, Mapping):
        values, base = copy.deepcopy(dict(source)), Path.cwd()
    else:
        path = Path(source)
        values, base = _read_toml(path), path.resolve().parent
    for change in changes:
        _make(change, values, paths)
    return values, base


def _make(change: str, values: dict[str, Any], paths: Collection[str]) -> None:
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {change!r} is not KEY=VALUE; write for example train.lr=5e-5")
    *tables, last = key.strip().split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {change!r}: {table} is no table")
    value = parsed(text.strip())
    values[last] = str(Path.cwd() / value) if key.strip() in paths and isinstance(value, str) else value


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))  # some editors begin a file with a byte order mark
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file {path}; give the path of a .toml file") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{path} is a folder; give the path of a .toml file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8, as TOML is; save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}; correct it there") from error
