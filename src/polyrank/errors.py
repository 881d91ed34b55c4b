"""Every error that polyrank raises on purpose, and the exit code that each one has on the command line.

    PolyrankError                 1  our bug, if nothing below fits
    ├── UsageError                2  wrong arguments
    │   ├── ConfigError           2  an unknown or impossible key of a recipe
    │   └── MissingExtraError     2  an optional dependency is not installed
    ├── DataError                 3  bad input data: names file and line
    ├── ArtifactError             4  a corrupt or incompatible model, index or checkpoint
    ├── ResourceError             5  out of disk or memory
    │   ├── DeadlineError         5  a query took longer than it may
    │   ├── ReadOnlyError         5  the disk, or the folder, cannot be written to
    │   └── LostProcessError      5  another process of the same run is gone
    ├── LockedError               6  another process is writing here
    ├── DivergedError             7  training diverged
    └── OfflineError              8  the network is needed but absent

Messages name the value, the limit and the remedy in one sentence. This module knows nothing of the rest.
"""


class PolyrankError(Exception):
    """The root: catch this to catch everything that polyrank raises on purpose."""

    exit_code = 1


class UsageError(PolyrankError):
    """The caller asked for something that cannot be."""

    exit_code = 2


class ConfigError(UsageError):
    """A recipe or a setting is unknown or impossible."""


class MissingExtraError(UsageError):
    """An optional dependency is not installed.

    >>> str(MissingExtraError("pyarrow", "parquet"))
    'pyarrow is not installed; install it with: pip install "polyrank[parquet]"'
    """

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(f'{library} is not installed; install it with: pip install "polyrank[{extra}]"')


class DataError(PolyrankError):
    """Input data cannot be read; the message starts with file:line where there is one."""

    exit_code = 3


class ArtifactError(PolyrankError):
    """A file of ours is corrupt, too new, or made by another model."""

    exit_code = 4


class ResourceError(PolyrankError):
    """Disk or memory ran out."""

    exit_code = 5


class DeadlineError(ResourceError):
    """A query took longer than it may."""


class ReadOnlyError(ResourceError):
    """The disk is read-only, or the process may not write there."""


class LostProcessError(ResourceError):
    """Of several processes that work together another one has ended, or is silent."""


class LockedError(PolyrankError):
    """Another process holds the lock."""

    exit_code = 6


class DivergedError(PolyrankError):
    """Training produced too many non-finite losses in a row."""

    exit_code = 7


class OfflineError(PolyrankError):
    """Something must be fetched and there is no network."""

    exit_code = 8
