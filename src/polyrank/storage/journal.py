"""The results of finished steps, each in a file: a job that was killed at any moment continues after the last one."""

from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from polyrank._version import __version__
from polyrank.errors import ArtifactError
from polyrank.storage.document import DocumentKind, checksum, read_document, seal
from polyrank.storage.durable import make_folders, write_file

Result = dict[str, Any]


class Journal:
    """Results by the name of a step and everything that determines them.

    Args:
        folder: of the files.
        clock: its seconds so far.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     journal = Journal(Path(folder), clock=lambda: 0.0)
    ...     journal.recall("one", {"n": 1}, lambda: {"value": 1}), journal.recall("one", {"n": 1}, lambda: {"value": 2})
    ({'value': 1}, {'value': 1})
    """

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self.folder, self.clock = folder, clock
        self.versions = {"polyrank": __version__} | {name: version(name) for name in ("numpy", "torch", "transformers")}
        self.seconds = 0.0
        """The time that the recalled steps took when they were computed."""

    def recall(self, name: str, settings: Mapping[str, Any], compute: Callable[[], Result]) -> Result:
        """The stored result of a step with these settings and versions; otherwise compute and store it.

        Args:
            name: of the step, and of its file.
            settings: values of JSON, such as fingerprints of the data and the results of earlier steps.
            compute: returns values of JSON.

        Raises:
            ResourceError: the disk is full.
        """
        kind = DocumentKind(name="result of a step", file=f"{name}.json", missing="run it", remedy="run it again")
        key = checksum({"settings": settings, "versions": self.versions})
        try:
            stored = read_document(self.folder, kind)
        except ArtifactError:  # missing or damaged: computed again
            stored = {}
        if stored.get("key") != key:
            began = self.clock()
            result = compute()
            stored = {"key": key, "settings": settings, "seconds": self.clock() - began, "result": result}
            make_folders(self.folder)
            write_file(self.folder / kind.file, seal(stored, kind))
        else:
            self.seconds += stored["seconds"]
        return dict(stored["result"])
