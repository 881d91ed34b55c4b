"""Where candidates live: a durable store with a matrix to be searched, and the lexical scorers. No torch."""

from polyrank.index.filters import Filter, as_filter, read_filter
from polyrank.index.matrix import Block
from polyrank.index.reader import Index, open_index
from polyrank.index.verify import verify_index
from polyrank.index.writer import KnownVectors, Writer, write_index

__all__ = [
    "Block",
    "Filter",
    "Index",
    "KnownVectors",
    "Writer",
    "as_filter",
    "open_index",
    "read_filter",
    "verify_index",
    "write_index",
]
