"""The models inside a model: a folder names them, and they must be those with which it was made."""

from pathlib import Path

from polyrank.errors import ArtifactError, UsageError
from polyrank.scorers.protocols import Scorer


def check_not_itself(path: Path, *names: str) -> None:
    """Refuse a path of a model that would be a part of itself.

    Args:
        path: the folder to make.
        names: of the models of which it will consist.

    Raises:
        UsageError: one of them is at the path.
    """
    if any(Path(name).resolve() == path.resolve() for name in names):
        raise UsageError(f"{path} would be a part of itself; choose another path")


def check_part(path: Path, what: str, part: Scorer, fingerprint: str, remedy: str) -> None:
    """Refuse a model that has changed since a folder was made with it.

    Args:
        path: the folder.
        what: what the model is there, for the message.
        part: the one that the folder names.
        fingerprint: of the one with which the folder was made.
        remedy: what the user can do, for the message.

    Raises:
        ArtifactError: the fingerprints differ.
    """
    if part.fingerprint != fingerprint:
        raise ArtifactError(
            f"{path} was made with {what} {fingerprint[:12]}, {part.name} is {part.fingerprint[:12]}; {remedy}"
        )
