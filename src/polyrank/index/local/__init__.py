"""A local index: a folder with a SQLite file of candidates and vectors, and a memory-mapped matrix. No torch."""

from polyrank.index.local.reader import LocalIndex
from polyrank.index.local.verify import local_problems
from polyrank.index.local.writer import LocalWriter, write_local

__all__ = ["LocalIndex", "LocalWriter", "local_problems", "write_local"]
