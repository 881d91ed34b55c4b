"""A cache of a teacher's scores: each pair of context and candidate is scored once, in any number of epochs.

The cache is a SQLite file. Its keys hash the pair's texts and the fingerprint of the teacher, so several teachers, runs
and seeds can share one file, and the scores of an earlier version of a teacher are never used.
"""

import hashlib
import json
import sqlite3
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from polyrank.devices import distributed
from polyrank.errors import ArtifactError, ResourceError
from polyrank.records import Context, ContextLike
from polyrank.scorers.inputs import matched_lists
from polyrank.scorers.protocols import Floats, Scorer
from polyrank.storage.durable import make_folders
from polyrank.storage.sqlite import use_log


class CachedScorer(Scorer):
    """A Scorer that reads scores from a file, and calls another Scorer for pairs that the file lacks.

    Args:
        path: the file; created if it does not exist.
        scorer: the teacher.
        fingerprint: of the teacher's weights, settings and precision.

    Raises:
        ArtifactError: the file is damaged or not a file of scores.
    """

    def __init__(self, path: Path, scorer: Scorer, fingerprint: str) -> None:
        self.path, self.scorer, self.fingerprint = path, scorer, fingerprint
        self.n_scored = 0
        self._files = ExitStack()
        # called by ``close``, or else by the garbage collector, in any thread
        self._release = weakref.finalize(self, self._files.close)
        distributed.on_rank_zero(self._open)

    def _open(self) -> None:
        """Open the file, on rank 0 only: if two processes close it at once, SQLite leaves its log behind."""
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
            raise ArtifactError(f"{self.path} is not a file of scores ({error}); delete it or name another") from error

    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Score each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        queries, lists = matched_lists(contexts, candidates)
        pairs = [[self._key(query, text) for text in texts] for query, texts in zip(queries, lists, strict=True)]
        known = distributed.on_rank_zero(lambda: self._find([key for row in pairs for key in row]))
        missing = [[i for i, key in enumerate(row) if key not in known] for row in pairs]
        rows = [row for row, columns in enumerate(missing) if columns]
        if rows:
            texts = [[lists[row][i] for i in missing[row]] for row in rows]
            new: dict[bytes, float] = {}
            for row, values in zip(rows, self.scorer.score([queries[row] for row in rows], texts), strict=True):
                new |= {pairs[row][i]: float(value) for i, value in zip(missing[row], values, strict=True)}
            self.n_scored += len(new)
            if distributed.is_rank_zero():
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
            for start in range(0, len(keys), 500):  # SQLite limits the number of parameters
                part = keys[start : start + 500]
                marks = ", ".join("?" * len(part))
                known |= dict(self._file.execute(f"SELECT pair, score FROM scores WHERE pair IN ({marks})", part))
        except sqlite3.DatabaseError as error:
            raise ArtifactError(
                f"{self.path} is damaged ({error}); delete it, and the scores are computed again"
            ) from error
        return known

    def _keep(self, new: dict[bytes, float]) -> None:
        try:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.executemany("INSERT OR IGNORE INTO scores VALUES (?, ?)", new.items())
            self._file.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if self._file.in_transaction:  # else the file stays locked for other processes
                self._file.execute("ROLLBACK")
            raise ResourceError(
                f"cannot write {self.path}: {error}; free some space and continue with `resume=True`"
            ) from error
