"""Usual names of columns and words of roles, from ``names.toml``, to which new languages are added."""

import tomllib
from importlib.resources import files

_TEXT = (files("polyrank_chats") / "names.toml").read_text("utf-8")
NAMES: dict[str, tuple[str, ...]] = {
    kind: tuple(name.replace("~", " ") for name in names.split()) for kind, names in tomllib.loads(_TEXT).items()
}
"""The names of each kind; earlier names are preferred."""
for _kind, _fields in (("sender", "person_fields"), ("role", "role_fields")):  # such as author.name, createdBy.type
    NAMES[_kind] += tuple(person + field for field in NAMES[_fields] for person in NAMES["persons"])
