"""Where candidates live: a durable store with a matrix to be searched, and the lexical scorers. No torch."""

from polyrank.index.filters import Filter, as_filter, read_filter
from polyrank.index.known_vectors import KnownVectors
from polyrank.index.matrix import Block
from polyrank.index.opening import AnyIndex, AnyWriter, is_index, open_index, open_writer
from polyrank.index.reader import Index
from polyrank.index.verify import verify_index
from polyrank.index.writer import Writer, write_index

__all__ = [
    "AnyIndex",
    "AnyWriter",
    "Block",
    "Filter",
    "Index",
    "KnownVectors",
    "Writer",
    "as_filter",
    "is_index",
    "open_index",
    "open_writer",
    "read_filter",
    "verify_index",
    "write_index",
]
