"""Where candidates live: an index folder of texts and vectors, and the lexical scorers. No torch."""

from polyrank.index.folder import Index, open_index, verify_index, write_index
from polyrank.index.lexical import BM25, TfIdf

__all__ = ["BM25", "Index", "TfIdf", "open_index", "verify_index", "write_index"]
