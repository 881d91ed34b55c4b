"""Usual names of columns and words of roles, from ``names.toml``, to which new languages are added."""

import re
import tomllib
from importlib.resources import files

_TEXT = (files("polyrank_chats") / "names.toml").read_text("utf-8")
# the names of each kind; earlier names are preferred
NAMES: dict[str, tuple[str, ...]] = {
    kind: tuple(name.replace("~", " ") for name in names.split()) for kind, names in tomllib.loads(_TEXT).items()
}
for _kind, _fields in (("sender", "person_fields"), ("role", "role_fields")):  # such as author.name, createdBy.type
    NAMES[_kind] += tuple(person + field for field in NAMES[_fields] for person in NAMES["persons"])


def words_in(name: str) -> list[str]:
    """The words of a name of a column, a role or a direction in small letters.

    >>> words_in("MessageToVisitor"), words_in("end-user 2")
    (['message', 'to', 'visitor'], ['end', 'user'])
    """
    return re.findall(r"[^\W\d_]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).casefold())
