"""A frozen teacher's scores, kept in a file: each pair of context and candidate is scored once, whatever the epochs.

The file is SQLite. Scores are found by the pair's words and by the fingerprint of the teacher's weights, so one file
serves several teachers, runs and seeds, and a teacher that was trained again finds nothing of its predecessor.
"""

import hashlib
import json
import sqlite3
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from polyrank.devices import processes
from polyrank.errors import ArtifactError, ResourceError
from polyrank.records import Context, ContextLike
from polyrank.scorers.inputs import paired
from polyrank.scorers.protocols import Floats, Scorer
from polyrank.storage.durable import make_folders
from polyrank.storage.sqlite import use_log


class RememberedScores(Scorer):
    """A Scorer that asks another one only for pairs that its file does not hold.

    Args:
        path: the file; made where there is none.
        scorer: the teacher.
        fingerprint: of the teacher's weights, settings and precision.

    Raises:
        ArtifactError: the file is damaged, or something else.
    """

    def __init__(self, path: Path, scorer: Scorer, fingerprint: str) -> None:
        self.path, self.scorer, self.fingerprint = path, scorer, fingerprint
        self.n_asked = 0
        self._files = ExitStack()
        # ``close`` calls it, or the collector where nobody does, in any thread
        self._release = weakref.finalize(self, self._files.close)
        processes.by_first(self._open)

    def _open(self) -> None:
        """In the first process alone: where two close a file at once, SQLite leaves its log behind."""
        make_folders(self.path.parent)
        if self.path.is_dir():
            raise ArtifactError(f"{self.path} is a folder; name a file for the teacher's scores")
        self._file = sqlite3.connect(self.path, isolation_level=None, timeout=60.0, check_same_thread=False)
        self._files.callback(self._file.close)
        try:
            use_log(self._file)  # a second training may use the same file
            self._file.execute("CREATE TABLE IF NOT EXISTS scores (pair BLOB PRIMARY KEY, score REAL) WITHOUT ROWID")
        except sqlite3.DatabaseError as error:
            self.close()
            raise ArtifactError(f"{self.path} is no file of scores ({error}); delete it or name another one") from error

    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        queries, lists = paired(contexts, candidates)
        pairs = [[self._key(query, text) for text in texts] for query, texts in zip(queries, lists, strict=True)]
        known = processes.by_first(lambda: self._find([key for row in pairs for key in row]))
        missing = [[i for i, key in enumerate(row) if key not in known] for row in pairs]
        rows = [row for row, columns in enumerate(missing) if columns]
        if rows:
            texts = [[lists[row][i] for i in missing[row]] for row in rows]
            new: dict[bytes, float] = {}
            for row, values in zip(rows, self.scorer.score([queries[row] for row in rows], texts), strict=True):
                new |= {pairs[row][i]: float(value) for i, value in zip(missing[row], values, strict=True)}
            self.n_asked += len(new)
            if processes.is_first():
                self._keep(new)
            known |= new
        return [np.array([known[key] for key in row], np.float32) for row in pairs]

    def close(self) -> None:
        """Close the file."""
        self._release()

    def _key(self, context: Context, text: str) -> bytes:
        content = json.dumps([self.fingerprint, context.turns, context.background, text])
        return hashlib.blake2b(content.encode(), digest_size=16).digest()

    def _find(self, keys: Sequence[bytes]) -> dict[bytes, float]:
        known: dict[bytes, float] = {}
        try:
            for start in range(0, len(keys), 500):  # SQLite takes a limited number of parameters
                part = keys[start : start + 500]
                marks = ", ".join("?" * len(part))
                known |= dict(self._file.execute(f"SELECT pair, score FROM scores WHERE pair IN ({marks})", part))
        except sqlite3.DatabaseError as error:
            raise ArtifactError(f"{self.path} is damaged ({error}); delete it, the scores are made again") from error
        return known

    def _keep(self, new: dict[bytes, float]) -> None:
        try:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.executemany("INSERT OR IGNORE INTO scores VALUES (?, ?)", new.items())
            self._file.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if self._file.in_transaction:  # else the file stays locked for everyone
                self._file.execute("ROLLBACK")
            raise ResourceError(
                f"cannot write {self.path}: {error}; free some space and go on with --resume"
            ) from error
