"""Where candidates live: a durable store with a matrix to be searched, and the lexical scorers. No torch."""

from polyrank.index.matrix import Block
from polyrank.index.reader import Index, open_index
from polyrank.index.verify import verify_index
from polyrank.index.writer import KnownVectors, Writer, write_index

__all__ = [
    "Block",
    "Index",
    "KnownVectors",
    "Writer",
    "open_index",
    "verify_index",
    "write_index",
]
