"""Resolves a path to data files, with the format of each."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from polyrank.errors import DataError
from polyrank.storage.durable import AnyPath

Form = Literal["json", "csv", "parquet", "text"]
_FORMS: dict[str, Form] = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".arrow": "parquet", ".txt": "text"}
ENDINGS = (".jsonl", ".jsonl.gz", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".arrow")
"""Endings of the files that polyrank reads from a folder."""


@dataclass(frozen=True, slots=True)
class DataRef:
    """A data file.

    Args:
        path: of the file.
        form: its format, from the ending of its name; "json" is one object per line, or one list of objects.
        stem: its name without the endings, used in ids.
    """

    path: Path
    form: Form
    stem: str


def resolve_data(path: AnyPath) -> tuple[DataRef, ...]:
    """The file at a path, or all files in a folder or of a pattern such as ``data/part-*.parquet``, sorted by name.

    Hidden files, such as those that other programs are still writing, are left out.

    Raises:
        DataError: the folder or the pattern matches no data file.

    >>> resolve_data("data/train.JSONL.gz")
    (DataRef(path=PosixPath('data/train.JSONL.gz'), form='json', stem='train'),)
    """
    path = Path(path)
    files = [path]
    if path.is_dir():
        files = [file for file in _visible(path, "*") if file.name.lower().endswith(ENDINGS)]
    elif not path.exists() and any(sign in path.name for sign in "*?["):
        files = _visible(path.parent, path.name)
    if not files:
        raise DataError(f"{path}: matches no data file; give files that end in {', '.join(ENDINGS)}")
    return tuple(data_file(file) for file in files)


def plain_name(path: Path) -> str:
    """The name without ``.gz``, in capitals or not.

    >>> plain_name(Path("data/A.CSV.GZ"))
    'A.CSV'
    """
    return path.name[:-3] if path.name.lower().endswith(".gz") else path.name


def _visible(folder: Path, pattern: str) -> list[Path]:
    return [file for file in sorted(folder.glob(pattern)) if not file.name.startswith(".") and file.is_file()]


def data_file(path: Path) -> DataRef:
    """A single data file; the ending of its name determines its format."""
    plain = Path(plain_name(path))
    return DataRef(path, _FORMS.get(plain.suffix.lower(), "json"), plain.stem)
