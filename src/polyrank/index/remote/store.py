"""The interface of a server that stores remote indexes. No torch.

To add a kind of server, subclass ``Store`` in a new module, list it in ``polyrank.index.remote.stores`` and its
addresses in ``polyrank.index.remote.address.PORTS``.

An index is a collection of rows, and its name is an alias of the collection. The conditions that ``condition`` returns
go to ``nearest`` and ``scan`` as they are.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar, Self

from polyrank.errors import ArtifactError, LockedError, OfflineError, PolyrankError, UsageError
from polyrank.index.checks import Vectors
from polyrank.index.filters import Tree
from polyrank.index.remote.address import Address
from polyrank.index.remote.facts import Columns
from polyrank.storage import forks
from polyrank.storage.closing import Closing
from polyrank.storage.time_limit import check_time_left, seconds_left

TIMEOUT_S = 20.0  # less than a request to polyrank serve may take
PAUSE_S = 0.2  # between two attempts
MAX_STRING = 65_535  # bytes, Milvus's limit
PROPERTY = "polyrank"  # of a collection: holds the index's description of itself
NORM = "polyrank_norm_"  # of a collection: starts properties that bound the norms of its vectors
KEY = "key"  # the primary key
FIELDS = ("row", "id", "text", "metadata", "digest", "vector")  # of a row: the digest and everything that it covers
FLAT = "FLAT"  # the kind of index that compares every vector
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CollectionDescription:
    """A collection that polyrank made, as a server describes it.

    Args:
        name: its own, not an alias.
        info: the index's description of itself.
        width: numbers per stored vector.
        norm: every stored vector is shorter.
    """

    name: str
    info: str
    width: int
    norm: float


class Store(Closing, ABC):
    """One collection or alias of a server. Threads share its connection, which the first call opens.

    Every call has a time limit. Until then it is repeated on a new connection while the server is unreachable.

    Args:
        address: of the server and the collection.
        timeout_s: for each call, including its repetitions.

    Attributes:
        kinds: names of kinds of vector indexes, and the server's names of them. All but ``FLAT`` list candidates
            approximately, from a graph or from vectors in fewer bits; polyrank scores the listed candidates with the
            stored vectors.
        divides: whether a collection can be divided by a field.
        credentials: what the environment variable with the token holds.

    Raises:
        MissingExtraError: the server's client is not installed.
    """

    kinds: ClassVar[dict[str, str]] = {"": FLAT, "flat": FLAT, "hnsw": "HNSW"}
    divides: ClassVar[bool] = False
    credentials: ClassVar[str] = "USER:PASSWORD"
    _errors: tuple[type[Exception], ...]  # that the client raises; a subclass sets them

    def __init__(self, address: Address, *, timeout_s: float = TIMEOUT_S) -> None:
        self.address, self.timeout_s = address, timeout_s
        self._client: Any = None
        self._lock = forks.new_lock()
        forks.watch(self)

    def of(self, collection: str) -> Self:
        """Another collection of the same server."""
        return type(self)(replace(self.address, collection=collection), timeout_s=self.timeout_s)

    def after_fork(self) -> None:
        """In a child process: leave the connection to the parent. The next call opens another."""
        forks.abandon(self._client)
        self._client = None

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):  # the connection is abandoned either way
                client.close()

    @abstractmethod
    def _open(self, timeout_s: float) -> Any:
        """A new connection: the server's client."""

    @abstractmethod
    def _request(self, client: Any, timeout_s: float, method: str, *arguments: Any, **settings: Any) -> Any:
        """Call a method of the client."""

    @abstractmethod
    def _fault(self, error: Any) -> type[PolyrankError]:
        """The kind of error that ``_call`` raises; before an ``OfflineError`` it repeats the call."""

    def _call(self, method: str, *arguments: Any, **settings: Any) -> Any:
        """Call a method of the client; repeat it while the server is unreachable and time is left.

        Raises:
            OfflineError: the server did not answer in time.
            DeadlineError: the search has no time left.
            UsageError: the server refuses the credentials.
            ArtifactError: the collection does not exist.
            LockedError: another process has the files open.
            ResourceError: the server refuses for another reason.
        """
        deadline = time.monotonic() + min(self.timeout_s, seconds_left())
        while True:
            left, client = max(deadline - time.monotonic(), PAUSE_S), None
            try:
                with self._lock:
                    client = self._client = self._client or self._open(left)
                return self._request(client, left, method, *arguments, **settings)
            except self._errors as error:
                check_time_left(PAUSE_S)
                fault = OfflineError if self._client is not client else self._fault(error)  # another thread closed it
                if fault is OfflineError:
                    if self._client is client:
                        self.close()
                    if time.monotonic() + PAUSE_S < deadline:
                        time.sleep(PAUSE_S)
                        continue
                raise fault(self._message(fault, method, error)) from error

    def _message(self, fault: type[PolyrankError], method: str, error: Exception) -> str:
        where, variable = self.address, self.address.variable
        if fault is OfflineError:
            hint = f", or set {variable}_CA if its certificate is your own" if where.encrypted else ""
            return f"{where.uri} did not answer within {self.timeout_s:g} seconds; start the server and try again{hint}"
        if fault is UsageError:
            fix = f"set {variable}_TOKEN to {self.credentials}, and {variable}_URI to that address"
            return f"{where.uri} refuses the credentials; {fix}"
        if fault is ArtifactError:
            return f"{where} does not exist; build it with polyrank index build --remote"
        if fault is LockedError:
            return f"{where.uri} is open in another process; close it, or start a server"
        reason = " ".join(str(getattr(error, "message", error)).split())[:300]
        return f"{where} refuses to {method.replace('_', ' ')} ({reason}); see the server's log"

    @abstractmethod
    def create(self, *, width: int, kind: str, n: int, info: str, divided: bool = False) -> None:
        """Make the collection, so that it can be searched.

        Args:
            width: numbers per vector.
            kind: of the vectors' index.
            n: expected number of vectors.
            info: the index's description of itself.
            divided: whether rows name the partition that they belong to.

        Raises:
            UsageError: the server does not offer the kind of index.
            ResourceError: it refuses for another reason.
        """

    @abstractmethod
    def allow_norms(self, exponent: int) -> None:
        """Record that vectors may have norms below ``2 ** exponent``, before such vectors are written.

        Each exponent has its own property, and the largest counts, so writers cannot undo each other's.
        """

    def describe(self) -> CollectionDescription:
        """The server's description of the collection.

        Raises:
            ArtifactError: the collection does not exist, or polyrank did not make it.
        """
        if (description := self.described(self.address.collection)) is None:
            raise ArtifactError(
                f"{self.address} is not an index of polyrank; use another collection, or build one with"
                " `overwrite=True`"
            )
        return description

    def collections(self) -> list[CollectionDescription]:
        """All collections of the database that polyrank made, by name."""
        every = map(self.described, sorted(self.names()))
        return [description for description in every if description is not None]

    @abstractmethod
    def names(self) -> list[str]:
        """Names of all collections of the database."""

    @abstractmethod
    def described(self, name: str) -> CollectionDescription | None:
        """The description of a collection or alias; None: polyrank did not make it."""

    @abstractmethod
    def kind(self) -> str:
        """Type of the vectors' index, such as FLAT; empty if it has no index of inner products."""

    @abstractmethod
    def n_indexed(self) -> int:
        """Number of vectors that the index holds; the server compares the others with each query."""

    def alias(self) -> str | None:
        """The collection that the address is an alias of; None: the name is free.

        Raises:
            UsageError: the address is a collection's own name.
        """
        try:
            found = self.described(self.address.collection)
        except ArtifactError:
            return None
        if found is None or found.name == self.address.collection:
            raise UsageError(f"{self.address} is a collection that polyrank did not build; choose another name")
        return found.name

    @abstractmethod
    def aliases(self, collection: str) -> tuple[str, ...]:
        """Other names of a collection."""

    @abstractmethod
    def set_alias(self, alias: str, *, replace: bool) -> None:
        """Make a name an alias of the collection; ``replace``: instead of the one that it refers to now."""

    @abstractmethod
    def drop_alias(self, alias: str) -> None:
        """Drop an alias."""

    @abstractmethod
    def drop(self, collection: str) -> None:
        """Drop a collection."""

    @abstractmethod
    def write(self, rows: Sequence[Row]) -> None:
        """Add rows, replacing those with the same keys; when this returns they are as durable as the server is."""

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> None:
        """Remove rows by key."""

    def flush(self) -> None:
        """Have the server write its buffered rows to files, which it searches faster."""

    @abstractmethod
    def condition(self, columns: Columns, tree: Tree) -> Any:
        """A filter as the server's condition on the columns of a collection."""

    @abstractmethod
    def nearest(self, vectors: Vectors, n: int, condition: Any, *, kind: str) -> list[list[tuple[str, float]]]:
        """Keys and products of the ``n`` largest products with each of ``[m, W]``, best first.

        Args:
            vectors: as many numbers each as the stored ones.
            n: at most ``polyrank.search.lists.LONGEST``.
            condition: of the listed rows; empty: none.
            kind: of the vectors' index.
        """

    @abstractmethod
    def get(self, keys: Sequence[str]) -> list[Row]:
        """Rows by key, in any order, with at least ``FIELDS``; unknown keys are left out."""

    @abstractmethod
    def count(self) -> int:
        """Number of rows."""

    @abstractmethod
    def scan(self, condition: Any) -> Iterator[Row]:
        """All rows that meet a condition, in any order. Each request shows one range of keys at its moment."""


def norm_property(exponent: int) -> dict[str, str]:
    """A property of a collection, see ``Store.allow_norms``."""
    return {f"{NORM}{exponent}": str(2.0**exponent)}


def read_norm(properties: Mapping[str, Any]) -> float:
    """The bound of the norms that the properties of a collection record; infinite: none.

    >>> read_norm(norm_property(-1) | norm_property(3)), read_norm({})
    (8.0, inf)
    """
    return max((float(value) for key, value in properties.items() if key.startswith(NORM)), default=inf)
