"""Indexes of candidates, in a folder or on a server, with many readers and one writer. No torch."""

from polyrank.index.counts import COUNT_FIELD, as_count
from polyrank.index.filters import Filter, as_filter, read_filter
from polyrank.index.local import LocalIndex, LocalWriter
from polyrank.index.local.reader import KnownVectors
from polyrank.index.opening import (
    check_target,
    is_index,
    open_catalogue,
    open_index,
    open_writer,
    verify_index,
    write_index,
)
from polyrank.index.protocol import Block, CandidatePage, Index, IndexWriter, check_fingerprint

__all__ = [
    "COUNT_FIELD",
    "Block",
    "CandidatePage",
    "Filter",
    "Index",
    "IndexWriter",
    "KnownVectors",
    "LocalIndex",
    "LocalWriter",
    "as_count",
    "as_filter",
    "check_fingerprint",
    "check_target",
    "is_index",
    "open_catalogue",
    "open_index",
    "open_writer",
    "read_filter",
    "verify_index",
    "write_index",
]
