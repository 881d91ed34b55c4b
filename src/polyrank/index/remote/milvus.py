"""One collection of a Milvus server: the only module that imports its client. No torch.

Replies are trusted; ``rows`` checks the rows.
"""

import logging
from collections.abc import Iterator, Sequence
from math import isqrt
from typing import Any, ClassVar

from polyrank.errors import ArtifactError, MissingExtraError, OfflineError, PolyrankError, ResourceError, UsageError
from polyrank.index.checks import Vectors
from polyrank.index.filters import Tree
from polyrank.index.remote.address import Address
from polyrank.index.remote.facts import COLUMN, PARTITION, Columns
from polyrank.index.remote.store import (
    FIELDS,
    KEY,
    MAX_STRING,
    PROPERTY,
    TIMEOUT_S,
    CollectionDescription,
    Row,
    Store,
    norm_property,
    read_norm,
)
from polyrank.storage.time_limit import check_time_left

MAX_LIST = 16_384  # Milvus's limit on the hits of one vector
ROWS_AT_A_TIME = 2048  # of a scan, approximately
OF_LITE = ("FLAT", "HNSW", "IVF_SQ8")  # Milvus Lite accepts any kind, and compares every vector for those it lacks
BREADTH = 128  # nodes of a graph that a search visits at least
MOST_LISTS, PROBED = 1024, 64  # Milvus builds lists for each segment of at most a few hundred thousand vectors
NOT_LOADED = "101"
FAULTS: dict[str, type[PolyrankError]] = {
    "UNAVAILABLE": OfflineError,
    "DEADLINE_EXCEEDED": OfflineError,
    "2": OfflineError,  # not connected
    "UNAUTHENTICATED": UsageError,
    "PERMISSION_DENIED": UsageError,
    "100": ArtifactError,  # no such collection
}


class MilvusCollection(Store):
    """See ``Store``."""

    kinds: ClassVar = {**Store.kinds, "sq8": "IVF_SQ8", "ivfpq": "IVF_PQ", "diskann": "DISKANN"}
    divides, credentials = True, "USER:PASSWORD or a token"

    def __init__(self, address: Address, *, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(address, timeout_s=timeout_s)
        try:
            import pymilvus
            from grpc import RpcError
        except ImportError as error:
            raise MissingExtraError("pymilvus", "milvus") from error
        for name in ("pymilvus", "pymilvus.milvus_client"):  # they log a traceback of each error that they raise
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self.library, self._errors = pymilvus, (RpcError, pymilvus.exceptions.MilvusException)

    def _open(self, timeout_s: float) -> Any:
        return self.library.MilvusClient(
            uri=self.address.uri,
            db_name=self.address.database,
            token=self.address.token,
            server_pem_path=self.address.authority,
            timeout=timeout_s,
            dedicated=True,
            # otherwise a new connection waits as long as the lost one would have
            grpc_options={"grpc.use_local_subchannel_pool": 1},
        )

    def _request(self, client: Any, timeout_s: float, method: str, *arguments: Any, **settings: Any) -> Any:
        try:
            return getattr(client, method)(*arguments, timeout=timeout_s, **settings)
        except self._errors as error:
            if _code(error) != NOT_LOADED or method == "load_collection":
                raise
            client.load_collection(self.address.collection, timeout=timeout_s)  # needed after a restart of the server
            return getattr(client, method)(*arguments, timeout=timeout_s, **settings)

    def _fault(self, error: Any) -> type[PolyrankError]:
        """A failed connection's cause shows whether the server refused the credentials."""
        fault = FAULTS.get(_code(error), ResourceError)
        return UsageError if FAULTS.get(_code(error.__cause__)) is UsageError else fault

    def create(self, *, width: int, kind: str, n: int, info: str, divided: bool = False) -> None:
        name, kinds, new = self.address.collection, self.library.DataType, self.library.MilvusClient
        if kind not in OF_LITE and str(self._call("get_server_version")).startswith("milvus_lite"):
            offered = ", ".join(ann for ann, own in self.kinds.items() if ann and own in OF_LITE)
            raise UsageError(
                f"{self.address.uri} is a Milvus Lite, which offers the index types {offered}; use one of these, or a"
                " standalone or distributed Milvus"
            )
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
        # "Strong": every later request gets what was acknowledged
        described = {"consistency_level": "Strong", "properties": {PROPERTY: info}}
        self._call("create_collection", name, schema=schema, **described)
        indexes = new.prepare_index_params()
        indexes.add_index("vector", index_type=kind, metric_type="IP", params=build_settings(kind, n, width))
        try:
            self._call("create_index", name, indexes)
        except ResourceError as error:
            raise UsageError(f"{error}; use another index type") from error
        self._call("load_collection", name)

    def allow_norms(self, exponent: int) -> None:
        self._call("alter_collection_properties", self.address.collection, properties=norm_property(exponent))

    def names(self) -> list[str]:
        return list(self._call("list_collections"))

    def described(self, name: str) -> CollectionDescription | None:
        found = self._call("describe_collection", name)
        properties = dict(found.get("properties") or {})
        widths = [int(field["params"]["dim"]) for field in found["fields"] if field["name"] == "vector"]
        if PROPERTY not in properties or len(widths) != 1:
            return None
        own, info = str(found["collection_name"]), str(properties[PROPERTY])
        return CollectionDescription(own, info, widths[0], read_norm(properties))

    def kind(self) -> str:
        index = self._vector_index()
        return str(index.get("index_type", "")) if index.get("metric_type") == "IP" else ""

    def n_indexed(self) -> int:
        return int(self._vector_index().get("indexed_rows", 0))

    def _vector_index(self) -> dict[str, Any]:
        return dict(self._call("describe_index", self.address.collection, index_name="vector") or {})

    def aliases(self, collection: str) -> tuple[str, ...]:
        return tuple(self._call("list_aliases", collection).get("aliases", ()))

    def set_alias(self, alias: str, *, replace: bool) -> None:
        self._call("alter_alias" if replace else "create_alias", self.address.collection, alias)

    def drop_alias(self, alias: str) -> None:
        self._call("drop_alias", alias)

    def drop(self, collection: str) -> None:
        self._call("drop_collection", collection)

    def write(self, rows: Sequence[Row]) -> None:
        answer = self._call("upsert", self.address.collection, list(rows))
        if answer.get("upsert_count") != len(rows):
            raise ResourceError(f"{self.address} wrote {answer.get('upsert_count')} of {len(rows)} rows; try again")

    def delete(self, keys: Sequence[str]) -> None:
        self._call("delete", self.address.collection, ids=list(keys))

    def flush(self) -> None:
        self._call("flush", self.address.collection)

    def condition(self, columns: Columns, tree: Tree) -> str:
        return columns.condition(tree)

    def nearest(self, vectors: Vectors, n: int, condition: str, *, kind: str) -> list[list[tuple[str, float]]]:
        answer = self._call(
            "search",
            self.address.collection,
            data=[row.tolist() for row in vectors],
            anns_field="vector",
            filter=condition,
            limit=n,
            search_params={"metric_type": "IP", "params": search_settings(kind, n)},
        )
        return [[(str(hit[KEY]), float(hit["distance"])) for hit in hits] for hits in answer]

    def get(self, keys: Sequence[str]) -> list[Row]:
        return list(self._call("get", self.address.collection, ids=list(keys), output_fields=list(FIELDS)))

    def count(self) -> int:
        rows = self._call("query", self.address.collection, filter="", output_fields=["count(*)"])
        return int(rows[0]["count(*)"])

    def scan(self, condition: str) -> Iterator[Row]:
        n = self.count() // ROWS_AT_A_TIME + 1
        bounds = [f"{i * 2**32 // n:08x}" for i in range(n)]  # keys are hashes and therefore evenly spread
        for low, high in zip(bounds, [*bounds[1:], "g"], strict=True):
            within = f'{KEY} >= "{low}" and {KEY} < "{high}"'
            check_time_left()
            yield from self._call(
                "query",
                self.address.collection,
                filter=f"{within} and {condition}" if condition else within,
                output_fields=[KEY, *FIELDS],
                limit=MAX_LIST,
            )


def _code(error: Any) -> str:
    """The code of an exception: pymilvus's is a number or a name, gRPC's is a method."""
    code = getattr(error, "code", None)
    code = code() if callable(code) else code
    return getattr(code, "name", None) or str(code)


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
