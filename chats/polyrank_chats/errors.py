"""The errors that polyrank-chats raises on purpose, with their exit codes on the command line.

    ChatsError                    1  the root
    ├── UsageError                2  wrong arguments
    │   └── MissingLibraryError   2  an optional library is not installed
    └── DataError                 3  bad input data; the message names file and line

Each message names the value, the limit and the fix in one sentence.
"""

from pathlib import Path


class ChatsError(Exception):
    """The root of the tree: catch it to catch every error that polyrank-chats raises on purpose."""

    exit_code = 1


class UsageError(ChatsError):
    """An argument is invalid, or two arguments contradict each other."""

    exit_code = 2


class MissingLibraryError(UsageError):
    """An optional library is not installed.

    >>> str(MissingLibraryError("pyarrow", "parquet"))
    'pyarrow is not installed; install it with: pip install "polyrank-chats[parquet]"'
    """

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(f'{library} is not installed; install it with: pip install "polyrank-chats[{extra}]"')


class DataError(ChatsError):
    """Input data is invalid; the message starts with file:line where the data has lines."""

    exit_code = 3


def row_error(path: Path, line: int, problem: object) -> DataError:
    """An error that starts with the file and the line.

    >>> str(row_error(Path("chats.csv"), 3, "not CSV"))
    'chats.csv:3: not CSV'
    """
    return DataError(f"{path}:{line}: {problem}")
