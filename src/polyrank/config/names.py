"""Names: of backends and ways to search, and of the models and the data that ship with polyrank."""

from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from polyrank.errors import UsageError

Backend = Literal["torch", "onnx", "onnx-int8", "openvino"]
"""PyTorch, or a runtime that computes an exported network."""
Mode = Literal["exact", "approximate"]
"""How an index is searched, see ``polyrank.search.search``."""
SHIPPED = "shipped:"
SAMPLE = Path(__file__).parent.parent / "sample"
"""The data that ships with polyrank: a support desk."""
_HERE = Path(__file__).parent.parent / "shipped"
MODELS_PACKAGE = "polyrank_models"  # a separate package for models that are too large for this one


def model_folder(name: str | Path) -> Path:
    """The folder of a model.

    >>> model_folder("runs/a/model").as_posix(), model_folder("shipped:convert").name
    ('runs/a/model', 'convert')

    Raises:
        UsageError: no model of that name ships with polyrank.
    """
    if not str(name).startswith(SHIPPED):
        return Path(name)
    more = find_spec(MODELS_PACKAGE)
    folders = [_HERE, *map(Path, more.submodule_search_locations or () if more else ())]
    shipped = {folder.name: folder for parent in folders for folder in sorted(parent.glob("[!_]*")) if folder.is_dir()}
    wanted = str(name).removeprefix(SHIPPED)
    if wanted not in shipped:
        others = "" if more else "; install polyrank-models for more"
        names = ", ".join(shipped)
        raise UsageError(f"{name} does not ship with polyrank; use one of {names}, or give a model folder{others}")
    return shipped[wanted]
