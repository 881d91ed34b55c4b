"""From a path to the files of rows that it means, with the form of each."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from polyrank.errors import DataError
from polyrank.storage.durable import AnyPath

Form = Literal["json", "csv", "parquet", "text"]
_FORMS: dict[str, Form] = {".csv": "csv", ".parquet": "parquet", ".txt": "text"}
ENDINGS = (".jsonl", ".jsonl.gz", ".csv", ".csv.gz", ".parquet")
"""Of the files that are read of a folder."""


@dataclass(frozen=True, slots=True)
class DataRef:
    """A file of rows.

    Args:
        path: of the file.
        form: of its rows, by the ending of its name: "json" is one object in each line, or one list of them.
        stem: its name without the endings, for making ids.
    """

    path: Path
    form: Form
    stem: str


def resolve_data(path: AnyPath) -> tuple[DataRef, ...]:
    """The file of a path; or those of a folder or of a pattern such as ``data/part-*.parquet``, in order of names.

    Raises:
        DataError: the folder or the pattern names no file of rows.

    >>> resolve_data("data/train.JSONL.gz")
    (DataRef(path=PosixPath('data/train.JSONL.gz'), form='json', stem='train'),)
    """
    path = Path(path)
    files = [path]
    if path.is_dir():
        files = [file for file in sorted(path.iterdir()) if file.name.lower().endswith(ENDINGS)]
    elif any(sign in path.name for sign in "*?["):
        files = sorted(path.parent.glob(path.name))
    if not files:
        raise DataError(f"{path}: names no file of rows; give files that end in {', '.join(ENDINGS)}")
    return tuple(data_file(file) for file in files)


def data_file(path: Path) -> DataRef:
    """One file of rows; its name says of which form."""
    plain = Path(path.name.removesuffix(".gz"))
    return DataRef(path, _FORMS.get(plain.suffix.lower(), "json"), plain.stem)
