"""The folder of a model that comes with the package, by its name."""

from importlib.util import find_spec
from pathlib import Path

from polyrank.errors import UsageError

SHIPPED = "shipped:"
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
