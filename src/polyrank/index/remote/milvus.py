"""One collection of a Milvus server. No torch.

Repeating any of these calls has no further effect, so the connection may repeat them. Replies are trusted; ``rows``
checks the rows.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, isqrt
from typing import Any

from polyrank.errors import ArtifactError, ResourceError, UsageError
from polyrank.index.checks import Vectors
from polyrank.index.remote.address import Address
from polyrank.index.remote.connection import TIMEOUT_S, Connection
from polyrank.index.remote.facts import COLUMN, PARTITION
from polyrank.storage.time_limit import check_time_left

MAX_LIST = 16_384  # Milvus's limit on the hits of one vector
MAX_STRING = 65_535  # bytes
ROWS_AT_A_TIME = 2048  # of a scan, approximately
PROPERTY = "polyrank"  # of a collection: holds the index's description of itself
NORM = "polyrank_norm_"  # of a collection: starts properties that bound the norms of its vectors
KEY = "key"  # the primary key
# FLAT compares every vector. The others list candidates approximately, from a graph or from lists of vectors in fewer
# bits; polyrank then scores the listed candidates with the stored vectors.
KINDS = {"": "FLAT", "flat": "FLAT", "hnsw": "HNSW", "sq8": "IVF_SQ8", "ivfpq": "IVF_PQ", "diskann": "DISKANN"}
OF_LITE = ("flat", "hnsw", "sq8")  # Milvus Lite accepts any name, and compares every vector for those that it lacks
LOSE_PARTITIONS = ("2.2.", "2.3.")  # versions that do not find written rows by their partition
BREADTH = 128  # nodes of a graph that a search visits at least
MOST_LISTS, PROBED = 1024, 64  # Milvus builds lists for each segment of at most a few hundred thousand vectors
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


class MilvusCollection:
    """One collection or alias of a server.

    Args:
        address: of the server and the collection.
        timeout_s: for each call, including its repetitions.

    Raises:
        MissingExtraError: pymilvus is not installed.
    """

    def __init__(self, address: Address, *, timeout_s: float = TIMEOUT_S) -> None:
        self.address = address
        self.connection = Connection(address, timeout_s)
        self._call = self.connection.call

    def check_offered(self, ann: str, *, divided: bool) -> None:
        """Refuse what some servers accept but do not do; others refuse it themselves in ``create``.

        Args:
            ann: of the vectors, a key of ``KINDS``.
            divided: whether rows name the partition that they belong to.

        Raises:
            UsageError: the server lacks the kind of vector index, or loses rows of divided collections.
        """
        if ann in ("", *OF_LITE) and not divided:
            return
        version = str(self._call("get_server_version"))
        if ann not in ("", *OF_LITE) and version.startswith("milvus_lite"):
            raise UsageError(
                f"{self.address.uri} is a Milvus Lite, which offers the index types {', '.join(OF_LITE)}; use one of"
                " these, or a standalone or distributed Milvus"
            )
        if divided and version.removeprefix("v").startswith(LOSE_PARTITIONS):
            raise UsageError(
                f"{self.address.uri} is Milvus {version}, which loses rows of divided collections; leave out"
                " `partition_by`, or use a later version"
            )

    def create(
        self,
        name: str,
        *,
        width: int,
        kind: str,
        settings: dict[str, int],
        info: str,
        norm_exponent: int,
        divided: bool = False,
    ) -> None:
        """Make a collection that can be searched.

        Args:
            name: of the new collection.
            width: numbers per vector.
            kind: of the vectors' index.
            settings: of this kind.
            info: the index's description of itself.
            norm_exponent: see ``allow_norms``.
            divided: whether rows name the partition that they belong to.

        Raises:
            UsageError: the server does not offer the kind of index.
            ResourceError: it refuses for another reason.
        """
        library = self.connection.library
        kinds, new = library.DataType, library.MilvusClient
        schema = new.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field(KEY, kinds.VARCHAR, is_primary=True, max_length=32)
        schema.add_field("row", kinds.INT64)
        for text in ("id", "text", "metadata"):
            schema.add_field(text, kinds.VARCHAR, max_length=MAX_STRING)
        schema.add_field("digest", kinds.VARCHAR, max_length=64)
        schema.add_field(COLUMN, kinds.JSON)
        if divided:
            schema.add_field(PARTITION, kinds.VARCHAR, max_length=32, is_partition_key=True)
        schema.add_field("vector", kinds.FLOAT_VECTOR, dim=width)
        with _accept_if(lambda: bool(self._call("has_collection", name))):
            self._call(
                "create_collection",
                name,
                schema=schema,
                consistency_level="Strong",  # every later request gets what was acknowledged
                properties={PROPERTY: info} | _norm_property(norm_exponent),
            )
        indexes = new.prepare_index_params()
        indexes.add_index("vector", index_type=kind, metric_type="IP", params=settings)
        try:
            with _accept_if(lambda: bool(self._call("list_indexes", name))):
                self._call("create_index", name, indexes)
        except ResourceError as error:
            raise UsageError(f"{error}; use another index type") from error
        self._call("load_collection", name)

    def allow_norms(self, collection: str, exponent: int) -> None:
        """Record that vectors may have norms below ``2 ** exponent``, before such vectors are written.

        Each exponent has its own property, and the largest counts, so writers cannot undo each other's.
        """
        self._call("alter_collection_properties", collection, properties=_norm_property(exponent))

    def describe(self) -> CollectionDescription:
        """The server's description of the collection.

        Raises:
            ArtifactError: the collection does not exist, or polyrank did not make it.
        """
        if (description := self._describe(self.address.collection)) is None:
            raise ArtifactError(
                f"{self.address} is not an index of polyrank; use another collection, or build one with"
                " `overwrite=True`"
            )
        return description

    def collections(self) -> list[CollectionDescription]:
        """All collections of the database that polyrank made, by name."""
        every = map(self._describe, sorted(self._call("list_collections")))
        return [description for description in every if description is not None]

    def _describe(self, name: str) -> CollectionDescription | None:
        found = self._call("describe_collection", name)
        properties = dict(found.get("properties") or {})
        norms = [float(value) for key, value in properties.items() if key.startswith(NORM)]
        widths = [int(field["params"]["dim"]) for field in found["fields"] if field["name"] == "vector"]
        if PROPERTY not in properties or len(widths) != 1:
            return None
        info, norm = str(properties[PROPERTY]), max(norms, default=inf)
        return CollectionDescription(str(found["collection_name"]), info, widths[0], norm)

    def kind(self) -> str:
        """Type of the vectors' index, such as FLAT; empty if it has no index of inner products."""
        index = self._vector_index()
        return str(index.get("index_type", "")) if index.get("metric_type") == "IP" else ""

    def n_indexed(self) -> int:
        """Number of vectors that the index holds; the server compares the others with each query."""
        return int(self._vector_index().get("indexed_rows", 0))

    def _vector_index(self) -> dict[str, Any]:
        return dict(self._call("describe_index", self.address.collection, index_name="vector") or {})

    def alias(self) -> str | None:
        """The collection that the address is an alias of; None: the name is free.

        Raises:
            UsageError: the address is a collection's own name.
        """
        name = self.address.collection
        for collection in self._call("list_collections"):
            if collection == name:
                raise UsageError(f"{self.address} is a collection that polyrank did not build; choose another name")
            if name in self.aliases(collection):
                return str(collection)
        return None

    def aliases(self, collection: str) -> tuple[str, ...]:
        """Other names of a collection."""
        try:
            return tuple(self._call("list_aliases", collection).get("aliases", ()))
        except ArtifactError:  # Milvus 2.3 looks for the collection in the default database only
            return tuple(self._call("describe_collection", collection).get("aliases", ()))

    def set_alias(self, collection: str, *, replace: bool) -> None:
        """Make the address an alias of a collection; ``replace``: instead of the one that it refers to now."""
        with _accept_if(lambda: self.address.collection in self.aliases(collection)):
            self._call("alter_alias" if replace else "create_alias", collection, self.address.collection)

    def drop_alias(self, alias: str) -> None:
        """Drop an alias."""
        self._call("drop_alias", alias)

    def drop(self, collection: str) -> None:
        """Drop a collection."""
        self._call("drop_collection", collection)

    def write(self, rows: Sequence[Row], *, collection: str | None = None) -> None:
        """Add rows, replacing those with the same keys; when this returns they are as durable as the server is."""
        answer = self._call("upsert", collection or self.address.collection, list(rows))
        if answer.get("upsert_count") != len(rows):
            raise ResourceError(f"{self.address} wrote {answer.get('upsert_count')} of {len(rows)} rows; try again")

    def flush(self, *, collection: str | None = None) -> None:
        """Have the server write its buffered rows to files, which it searches faster."""
        self._call("flush", collection or self.address.collection)

    def delete(self, keys: Sequence[str], *, collection: str | None = None) -> None:
        """Remove rows by key."""
        self._call("delete", collection or self.address.collection, ids=list(keys))

    def nearest(self, vectors: Vectors, n: int, condition: str, *, kind: str) -> list[list[tuple[str, float]]]:
        """Keys and products of the ``n`` largest products with each of ``[m, W]``, best first.

        Args:
            vectors: as many numbers each as the stored ones.
            n: at most ``MAX_LIST``.
            condition: of the listed rows; empty: none.
            kind: of the vectors' index.
        """
        answer = self._call(
            "search",
            self.address.collection,
            data=[row.tolist() for row in vectors],
            anns_field="vector",
            filter=condition,
            limit=n,
            search_params={"metric_type": "IP", "params": search_settings(kind, n)},
        )
        # servers before 2.4 do not name the primary key, which pymilvus then calls "id"
        return [[(str(hit.get(KEY, hit.get("id"))), float(hit["distance"])) for hit in hits] for hits in answer]

    def get(self, keys: Sequence[str], fields: Sequence[str]) -> list[Row]:
        """Rows by key, in any order; unknown keys are left out."""
        return list(self._call("get", self.address.collection, ids=list(keys), output_fields=list(fields)))

    def count(self, condition: str = "", *, collection: str | None = None) -> int:
        """Number of rows that meet a condition."""
        name = collection or self.address.collection
        rows = self._call("query", name, filter=condition, output_fields=["count(*)"])
        return int(rows[0]["count(*)"])

    def scan(self, condition: str, fields: Sequence[str]) -> Iterator[Row]:
        """All rows that meet a condition, in any order. Each request shows one range of keys at its moment."""
        n = self.count() // ROWS_AT_A_TIME + 1
        bounds = [f"{i * 2**32 // n:08x}" for i in range(n)]  # keys are hashes and therefore evenly spread
        for low, high in zip(bounds, [*bounds[1:], "g"], strict=True):
            within = f'{KEY} >= "{low}" and {KEY} < "{high}"'
            check_time_left()
            yield from self._call(
                "query",
                self.address.collection,
                filter=f"{within} and {condition}" if condition else within,
                output_fields=[KEY, *fields],
                limit=MAX_LIST,
            )

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        self.connection.close()


@contextmanager
def _accept_if(is_done: Callable[[], bool]) -> Iterator[None]:
    """Ignore a refusal of what is done already: Milvus Lite refuses to create a thing again after a lost answer."""
    try:
        yield
    except ResourceError:
        if not is_done():
            raise


def _norm_property(exponent: int) -> dict[str, str]:
    return {f"{NORM}{exponent}": str(2.0**exponent)}


def read_kind(name: str) -> str:
    """Check the name of a kind; "none" becomes "".

    Raises:
        UsageError: the kind is unknown.

    >>> read_kind("diskann"), read_kind("none")
    ('diskann', '')
    """
    name = "" if name == "none" else name
    if name not in KINDS:
        raise UsageError(f"a remote index cannot have index type {name!r}; use none, {', '.join(filter(None, KINDS))}")
    return name


def build_settings(kind: str, n: int, width: int) -> dict[str, int]:
    """Milvus's settings to build an index.

    Args:
        kind: Milvus's name.
        n: number of vectors.
        width: numbers per vector, a multiple of four.

    >>> build_settings("IVF_PQ", 10_000, 392)
    {'nlist': 200, 'm': 98, 'nbits': 8}
    >>> build_settings("IVF_SQ8", 10**6, 392), build_settings("FLAT", 5, 8)
    ({'nlist': 1024}, {})
    """
    lists = {"nlist": max(min(2 * isqrt(n), MOST_LISTS), 1)}
    return {
        "HNSW": {"M": 32, "efConstruction": 128},
        "IVF_SQ8": lists,
        "IVF_PQ": {**lists, "m": width // 4, "nbits": 8},
    }.get(kind, {})


def search_settings(kind: str, n: int) -> dict[str, int]:
    """Milvus's settings to list ``n`` products.

    >>> [search_settings(kind, 200) for kind in ("FLAT", "HNSW", "IVF_SQ8", "IVF_PQ", "DISKANN")]
    [{}, {'ef': 200}, {'nprobe': 64}, {'nprobe': 64}, {'search_list': 200}]
    >>> search_settings("HNSW", 10)  # a graph is searched more widely than the list is long
    {'ef': 128}
    """
    breadth = max(n, BREADTH)
    return {
        "HNSW": {"ef": breadth},
        "IVF_SQ8": {"nprobe": PROBED},
        "IVF_PQ": {"nprobe": PROBED},
        "DISKANN": {"search_list": breadth},
    }.get(kind, {})
