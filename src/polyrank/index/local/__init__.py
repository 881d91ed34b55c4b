"""A local index: a folder with a SQLite file of candidates and vectors, and a memory-mapped matrix. No torch."""

from polyrank.index.local.reader import LocalIndex as LocalIndex
from polyrank.index.local.verify import local_problems as local_problems
from polyrank.index.local.writer import LocalWriter as LocalWriter, write_local as write_local
