"""Usual names of columns and words of roles, from ``names.toml``, to which new languages are added."""

import tomllib
from importlib.resources import files

_TEXT = (files("polyrank_chats") / "names.toml").read_text("utf-8")
NAMES: dict[str, tuple[str, ...]] = {kind: tuple(names.split()) for kind, names in tomllib.loads(_TEXT).items()}
"""The names of each kind; earlier names are preferred."""
