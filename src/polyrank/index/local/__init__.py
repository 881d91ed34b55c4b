"""A local index: candidates and vectors in the files of a folder, SQLite's and a matrix to be mapped. No torch."""

from polyrank.index.local.reader import LocalIndex
from polyrank.index.local.verify import local_problems
from polyrank.index.local.writer import LocalWriter, write_local

__all__ = ["LocalIndex", "LocalWriter", "local_problems", "write_local"]
