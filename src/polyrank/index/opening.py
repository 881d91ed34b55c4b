"""An index by its path, wherever its candidates live: in the folder, or on a server that the folder names. No torch.

Both kinds have one surface, and who only searches, lists, adds and removes need not know which it is.
"""

from pathlib import Path
from typing import TypeAlias

from polyrank.index.reader import Index, check_fingerprint
from polyrank.index.remote import RemoteIndex, RemoteWriter, is_remote
from polyrank.index.store import FILE
from polyrank.index.writer import Writer
from polyrank.storage.durable import AnyPath

AnyIndex: TypeAlias = Index | RemoteIndex
AnyWriter: TypeAlias = Writer | RemoteWriter


def is_index(path: AnyPath) -> bool:
    """Whether a folder is that of an index."""
    return (Path(path) / FILE).is_file() or is_remote(Path(path))


def open_index(path: AnyPath, *, fingerprint: str | None = None) -> AnyIndex:
    """Open an index for reading; what is read is verified first.

    Args:
        path: the folder.
        fingerprint: of the encoder that will query it; None: not checked now.

    Raises:
        ArtifactError: missing, damaged, too new, or made by another encoder.
        OfflineError: it is on a server, which does not answer.
    """
    index = RemoteIndex(path) if is_remote(Path(path)) else Index(Path(path))
    if fingerprint is not None:
        check_fingerprint(index.fingerprint, fingerprint, index.path)
    return index


def open_writer(path: AnyPath, *, fingerprint: str | None = None) -> AnyWriter:
    """Open an index to change it, as the only one of this machine.

    Args:
        path: the folder.
        fingerprint: of the encoder that makes the vectors; None: not checked.

    Raises:
        LockedError: another writer has it.
        ArtifactError: missing, damaged, or made by another encoder.
        OfflineError: it is on a server, which does not answer.
    """
    if is_remote(Path(path)):
        return RemoteWriter(path, fingerprint=fingerprint)
    return Writer(path, fingerprint=fingerprint)
