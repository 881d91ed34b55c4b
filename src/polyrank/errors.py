"""The errors that polyrank raises on purpose, with their exit codes on the command line.

    PolyrankError                 1  the root; on its own, a bug in polyrank
    ├── UsageError                2  wrong arguments
    │   ├── ConfigError           2  an unknown key or an invalid value in a recipe
    │   └── MissingExtraError     2  an optional dependency is not installed
    ├── DataError                 3  bad input data; the message names file and line
    ├── ArtifactError             4  a corrupt or incompatible model, index or checkpoint
    ├── ResourceError             5  out of disk or memory
    │   ├── DeadlineError         5  a query exceeded its time limit
    │   ├── ReadOnlyError         5  the disk or the folder is not writable
    │   └── LostProcessError      5  another process of the same run has stopped
    ├── LockedError               6  another process holds the lock
    ├── DivergedError             7  training diverged
    └── OfflineError              8  the network is needed but absent

Each message names the value, the limit and the fix in one sentence.
"""

from collections.abc import Iterator
from contextlib import contextmanager

FULL_MEMORY = ("out of memory", "not enough memory", "allocate memory", "alloc_failed")
"""Words of torch's errors: of CUDA, two of the CPU's allocator, and of CUDA's libraries."""


class PolyrankError(Exception):
    """The root of the tree: catch it to catch every error that polyrank raises on purpose."""

    exit_code = 1


class UsageError(PolyrankError):
    """An argument is invalid, or two arguments contradict each other."""

    exit_code = 2


class ConfigError(UsageError):
    """A recipe or a setting has an unknown key or an invalid value."""


class MissingExtraError(UsageError):
    """An optional dependency is not installed.

    >>> str(MissingExtraError("pyarrow", "parquet"))
    'pyarrow is not installed; install it with: pip install "polyrank[parquet]"'
    """

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(f'{library} is not installed; install it with: pip install "polyrank[{extra}]"')


@contextmanager
def needs(library: str, extra: str) -> Iterator[None]:
    """Import a library of an extra inside.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(library, extra) from error


class DataError(PolyrankError):
    """Input data is invalid; the message starts with file:line where the data has lines."""

    exit_code = 3


class ArtifactError(PolyrankError):
    """A file of polyrank is corrupt, was written by a later version, or belongs to another model."""

    exit_code = 4


class ResourceError(PolyrankError):
    """Disk or memory ran out."""

    exit_code = 5


class DeadlineError(ResourceError):
    """A query exceeded its time limit."""


class ReadOnlyError(ResourceError):
    """The disk is read-only, or the process lacks permission to write there."""


class LostProcessError(ResourceError):
    """Another process of a distributed run has ended or does not respond."""


class LockedError(PolyrankError):
    """Another process holds the lock."""

    exit_code = 6


class DivergedError(PolyrankError):
    """Training produced too many non-finite losses in a row."""

    exit_code = 7


class OfflineError(PolyrankError):
    """A download is necessary and the network is not reachable."""

    exit_code = 8


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the memory of the machine or of a GPU is full; libraries raise several.

    >>> [is_out_of_memory(error) for error in (MemoryError(), RuntimeError("CUDA out of memory"), KeyError())]
    [True, True, False]
    """
    text = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in text for words in FULL_MEMORY)
    )
