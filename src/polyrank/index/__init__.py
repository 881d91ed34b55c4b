"""Indexes of candidates, in a folder or on a server, with many readers and one writer. No torch."""

from polyrank.index.counts import COUNT_FIELD as COUNT_FIELD, as_count as as_count
from polyrank.index.filters import Filter as Filter, as_filter as as_filter, read_filter as read_filter
from polyrank.index.local import LocalIndex as LocalIndex, LocalWriter as LocalWriter
from polyrank.index.local.reader import KnownVectors as KnownVectors
from polyrank.index.opening import (
    check_target as check_target,
    is_index as is_index,
    open_catalogue as open_catalogue,
    open_index as open_index,
    open_writer as open_writer,
    verify_index as verify_index,
    write_index as write_index,
)
from polyrank.index.protocol import (
    Block as Block,
    CandidatePage as CandidatePage,
    Index as Index,
    IndexWriter as IndexWriter,
    check_fingerprint as check_fingerprint,
)
