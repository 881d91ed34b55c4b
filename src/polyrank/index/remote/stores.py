"""Opens the collection of an address, on a server of any kind. No torch."""

from polyrank.errors import UsageError
from polyrank.index.remote.address import Address
from polyrank.index.remote.facts import Columns, read_field
from polyrank.index.remote.milvus import MilvusCollection
from polyrank.index.remote.postgresql import PostgresqlTable
from polyrank.index.remote.qdrant import QdrantCollection
from polyrank.index.remote.store import TIMEOUT_S, Store

STORES: dict[str, type[Store]] = {"milvus": MilvusCollection, "qdrant": QdrantCollection, "postgresql": PostgresqlTable}


def open_store(address: Address, *, timeout_s: float = TIMEOUT_S) -> Store:
    """The collection of an address; the first call connects.

    Raises:
        MissingExtraError: the server's client is not installed.
    """
    return STORES[address.store](address, timeout_s=timeout_s)


def read_kind(name: str, address: Address) -> str:
    """Check the name of a kind of vector index on a server; "none" becomes "".

    Raises:
        UsageError: the kind is unknown there.

    >>> read_kind("diskann", Address.of("http://h/c")), read_kind("none", Address.of("qdrant+http://h/c"))
    ('diskann', '')
    """
    name, kinds = "" if name == "none" else name, STORES[address.store].kinds
    if name not in kinds:
        raise UsageError(f"a remote index cannot have index type {name!r}; use none, {', '.join(filter(None, kinds))}")
    return name


def read_columns(partition_by: str, address: Address) -> Columns:
    """The columns of a collection that a field divides; empty: none.

    Raises:
        UsageError: the text is not the name of a field, or the server cannot divide a collection.

    >>> read_columns("lang", Address.of("qdrant+http://h/c"))
    Traceback (most recent call last):
    polyrank.errors.UsageError: qdrant+http://h:6333/c cannot be divided by a field; leave out partition_by
    """
    if partition_by and not STORES[address.store].divides:
        raise UsageError(f"{address} cannot be divided by a field; leave out partition_by")
    return Columns(read_field(partition_by))
