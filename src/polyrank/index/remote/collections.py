"""Lists, drops and tries the collections of remote indexes, also those that an interrupted build left. No torch."""

from contextlib import closing
from dataclasses import dataclass

from polyrank.errors import UsageError
from polyrank.index.remote.address import Address
from polyrank.index.remote.connection import TIMEOUT_S
from polyrank.index.remote.facts import COLUMN, PARTITION
from polyrank.index.remote.milvus import KEY, MilvusCollection, Row

N_ROWS = 8  # one could be in the right partition by chance


@dataclass(frozen=True, slots=True)
class StoredCollection:
    """A collection that polyrank made.

    Args:
        name: of the collection.
        indexes: names of indexes that use it; none: its build was interrupted, or is running.
    """

    name: str
    indexes: tuple[str, ...]


def list_collections(address: Address, *, timeout_s: float = TIMEOUT_S) -> list[StoredCollection]:
    """The collections that polyrank made in a database, by name.

    Args:
        address: of the server and the database; its collection is ignored.
        timeout_s: for each request.

    Raises:
        OfflineError: the server does not answer.
    """
    with closing(MilvusCollection(address, timeout_s=timeout_s)) as server:
        return [StoredCollection(one.name, server.aliases(one.name)) for one in server.collections()]


def find_collection(address: Address) -> StoredCollection:
    """The collection of an address that may be dropped.

    Args:
        address: of an index, or of a collection that no index uses.

    Raises:
        ArtifactError: it does not exist, or polyrank did not make it.
        UsageError: it is a collection that an index uses.
        OfflineError: the server does not answer.
    """
    with closing(MilvusCollection(address)) as server:
        found = server.describe()
        indexes = server.aliases(found.name)
    if indexes and address.collection == found.name:
        raise UsageError(f"{address} holds the index {indexes[0]}; drop the index by that name")
    return StoredCollection(found.name, indexes)


def drop_collection(address: Address) -> None:
    """Drop an index with its collection, or a collection that no index uses. It cannot be undone.

    Raises:
        ArtifactError, UsageError, OfflineError: as in ``find_collection``.
    """
    found = find_collection(address)
    with closing(MilvusCollection(address)) as server:
        for index in found.indexes:
            server.drop_alias(index)
        server.drop(found.name)


def check_partitions(server: MilvusCollection, collection: str, width: int) -> None:
    """Try a new collection before it is filled: write, move and delete rows.

    Milvus 2.3 does not find written rows by their partition.

    Args:
        server: has the collection.
        collection: divided, and empty.
        width: numbers per vector.

    Raises:
        UsageError: the server loses rows.
    """
    empty: Row = {"row": 0, "id": "", "text": "", "metadata": "", "digest": "", COLUMN: {}, "vector": [1.0] * width}
    keys = [f"{i:032x}" for i in range(N_ROWS)]
    parts = {letter: [f"{letter}{key[1:]}" for key in keys] for letter in "ab"}
    for into in parts.values():
        rows = [empty | {KEY: key, PARTITION: part} for key, part in zip(keys, into, strict=True)]
        server.write(rows, collection=collection)
    found = {
        letter: [server.count(f'{PARTITION} == "{part}"', collection=collection) for part in into]
        for letter, into in parts.items()
    }
    if found != {"a": [0] * N_ROWS, "b": [1] * N_ROWS}:
        raise UsageError(
            f"{server.address.uri} loses rows of divided collections, as Milvus 2.3 does; leave out `partition_by`, or"
            " use a later version"
        )
    server.delete(keys, collection=collection)
