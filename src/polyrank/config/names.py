"""What a model's name means: a folder, "untuned:BACKBONE", "shipped:NAME", or a model of the Hugging Face hub."""

import os
import re
from importlib.util import find_spec
from pathlib import Path

from polyrank.errors import UsageError

UNTUNED = "untuned:"
SHIPPED = "shipped:"
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_HERE = Path(__file__).parent.parent / "shipped"
MORE = "polyrank_models"  # a package of its own, for those that are too large to come along


def model_folder(name: str | Path) -> Path:
    """The folder of a model by its name.

    >>> model_folder("runs/a/model").as_posix(), model_folder("shipped:convert").name
    ('runs/a/model', 'convert')

    Raises:
        UsageError: no model of that name is shipped.
    """
    if not str(name).startswith(SHIPPED):
        return Path(name)
    more = find_spec(MORE)
    folders = [_HERE, *map(Path, more.submodule_search_locations or () if more else ())]
    shipped = {folder.name: folder for parent in folders for folder in sorted(parent.glob("[!_]*")) if folder.is_dir()}
    wanted = str(name).removeprefix(SHIPPED)
    if wanted not in shipped:
        others = "" if more else "; polyrank-models has more"
        known = ", ".join(shipped)
        raise UsageError(f"{name} does not come with the package; take one of {known}, or give a folder{others}")
    return shipped[wanted]


def is_there(name: str) -> bool:
    """Whether a model of that name can be looked for: it needs no folder, or has one.

    >>> is_there("untuned:embedded"), is_there("shipped:convert"), is_there("no/such/folder")
    (True, True, False)
    """
    return name.startswith(UNTUNED) or is_hub_name(name) or model_folder(name).is_dir()


def is_hub_name(name: str) -> bool:
    """Whether a name can only mean a model of the Hugging Face hub: an owner and a model, and no path.

    >>> is_hub_name("cross-encoder/ms-marco-MiniLM-L6-v2"), is_hub_name("./model"), is_hub_name("runs/a/model")
    (True, False, False)
    """
    return bool(HUB_NAME.fullmatch(name)) and not Path(name).exists() and not Path(name).parent.is_dir()


def lasting_name(name: str) -> str:
    """A name that means the same from any working directory.

    >>> lasting_name("untuned:embedded"), lasting_name("shipped:convert")
    ('untuned:embedded', 'shipped:convert')
    """
    prefix, path = _parted(name)
    return prefix + str(Path(path).resolve()) if Path(path).is_dir() else name


def portable_name(name: str, folder: Path) -> str:
    """A name as a folder beside the model should remember it: the model's folder relative to ``folder``.

    >>> portable_name("untuned:embedded", Path("a/map"))
    'untuned:embedded'
    """
    prefix, path = _parted(name)
    return prefix + os.path.relpath(Path(path).resolve(), folder.resolve()) if Path(path).is_dir() else name


def resolved_name(name: str, folder: Path) -> str:
    """The inverse of ``portable_name``, for the folder where it now is.

    >>> resolved_name("untuned:embedded", Path("a/map"))
    'untuned:embedded'
    """
    prefix, path = _parted(name)
    there = (folder / path).resolve()
    # what went up to find its folder and no longer does must not find another from where the user happens to be
    return prefix + str(there) if there.is_dir() or path.startswith((os.pardir, os.curdir)) else name


def _parted(name: str) -> tuple[str, str]:
    return (UNTUNED, name.removeprefix(UNTUNED)) if name.startswith(UNTUNED) else ("", name)


TWO = ("retriever", "reranker")


"""The names of two networks in one training, and of their folders."""
