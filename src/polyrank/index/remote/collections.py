"""Lists and drops the collections of remote indexes, also those that an interrupted build left. No torch."""

from dataclasses import dataclass

from polyrank.errors import UsageError
from polyrank.index.remote.address import Address
from polyrank.index.remote.store import TIMEOUT_S
from polyrank.index.remote.stores import open_store


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
    with open_store(address, timeout_s=timeout_s) as server:
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
    with open_store(address) as server:
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
    with open_store(address) as server:
        for index in found.indexes:
            server.drop_alias(index)
        server.drop(found.name)
