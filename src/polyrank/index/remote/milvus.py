"""One collection of a Milvus server: the only module that speaks to one. No torch.

Every call has a time limit; a server that is away is asked again until then, on a new connection, which is safe
because each call here does the same when it is made twice. What it answers is believed, see ``rows`` for the rest.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

from polyrank.errors import ArtifactError, MissingExtraError, OfflineError, ResourceError, UsageError
from polyrank.index.checks import Vectors
from polyrank.index.remote.address import Address
from polyrank.storage.time_limit import check_time_left, seconds_left

TOKEN = "POLYRANK_MILVUS_TOKEN"
TIMEOUT_S = 20.0  # less than a request to polyrank serve has
PAUSE_S = 0.2  # between two attempts
MAX_LIST = 16_384  # hits of one vector, as Milvus has it
MAX_STRING = 65_535  # bytes
ROWS_AT_A_TIME = 2048  # that a scan asks for, about
PROPERTY = "polyrank"  # of a collection: what the index says of itself
KEY = "key"  # the primary one
NO_COLLECTION, NOT_LOADED = 100, 101
NOT_CONNECTED = 2
Row = dict[str, Any]


class MilvusCollection:
    """One collection or alias of a server.

    Args:
        address: of both.
        timeout_s: for each call, with all its attempts.

    Raises:
        MissingExtraError: pymilvus is not installed.
    """

    def __init__(self, address: Address, *, timeout_s: float = TIMEOUT_S) -> None:
        self.address, self.timeout_s = address, timeout_s
        self._library, self._errors = _pymilvus()
        self._lock = threading.Lock()
        self._client: Any = None

    def create(self, name: str, *, dimension: int, kind: str, said: str) -> None:
        """Make a collection, under a name of its own.

        Args:
            name: of the collection.
            dimension: D.
            kind: "FLAT" or "HNSW".
            said: what the index says of itself.
        """
        kinds, new = self._library.DataType, self._library.MilvusClient
        schema = new.create_schema(auto_id=False, enable_dynamic_field=True)
        schema.add_field(KEY, kinds.VARCHAR, is_primary=True, max_length=32)
        schema.add_field("row", kinds.INT64)
        for text in ("id", "text", "metadata"):
            schema.add_field(text, kinds.VARCHAR, max_length=MAX_STRING)
        schema.add_field("digest", kinds.VARCHAR, max_length=64)
        schema.add_field("norm", kinds.DOUBLE)
        schema.add_field("vector", kinds.FLOAT_VECTOR, dim=dimension)
        indexes = new.prepare_index_params()
        graph = {"M": 32, "efConstruction": 128} if kind == "HNSW" else {}
        indexes.add_index("vector", index_type=kind, metric_type="IP", params=graph)
        self._ask(
            "create_collection",
            name,
            schema=schema,
            index_params=indexes,
            consistency_level="Strong",  # what was acknowledged is seen by whoever asks next
            properties={PROPERTY: said},
        )

    def describe(self) -> tuple[str, str, int]:
        """The collection's own name, what the index says of itself, and D.

        Raises:
            ArtifactError: there is no such collection, or none of ours.
        """
        name = self.address.collection
        known = self._ask("describe_collection", name)
        said = dict(known.get("properties") or {}).get(PROPERTY)
        vectors = [field for field in known["fields"] if field["name"] == "vector"]
        if said is None or len(vectors) != 1:
            raise ArtifactError(
                f"{self.address} is no index of polyrank's; name another collection, or build one with `overwrite=True`"
            )
        return str(known["collection_name"]), str(said), int(vectors[0]["params"]["dim"])

    def kind(self) -> str:
        """Of the index of vectors, such as FLAT; empty: there is none of inner products."""
        index = self._ask("describe_index", self.address.collection, index_name="vector") or {}
        return str(index.get("index_type", "")) if index.get("metric_type") == "IP" else ""

    def alias(self) -> str | None:
        """The collection that the address is another name of; None: there is nothing of that name.

        Raises:
            UsageError: it is a collection's own name.
        """
        name = self.address.collection
        for collection in self._ask("list_collections"):
            if collection == name:
                raise UsageError(f"{self.address} is a collection that polyrank did not build; choose another name")
            if name in self._ask("list_aliases", collection).get("aliases", ()):
                return str(collection)
        return None

    def name(self, collection: str, *, instead: str | None) -> None:
        """Give a collection the name of the address, at once, in place of another one's."""
        self._ask("create_alias" if instead is None else "alter_alias", collection, self.address.collection)

    def drop(self, collection: str) -> None:
        """Drop a collection."""
        self._ask("drop_collection", collection)

    def write(self, rows: Sequence[Row], *, collection: str | None = None) -> None:
        """Add rows, or replace those of the same keys; durable when this returns, as far as the server is."""
        answer = self._ask("upsert", collection or self.address.collection, list(rows))
        if answer.get("upsert_count") != len(rows):
            raise ResourceError(f"{self.address} took {answer.get('upsert_count')} of {len(rows)} rows; do it again")

    def flush(self, *, collection: str | None = None) -> None:
        """Have the server write into files what it holds in memory, which it searches faster."""
        self._ask("flush", collection or self.address.collection)

    def delete(self, keys: Sequence[str]) -> None:
        """Remove rows by key."""
        self._ask("delete", self.address.collection, ids=list(keys))

    def nearest(self, vectors: Vectors, n: int, condition: str, *, graph: bool) -> list[list[tuple[str, float]]]:
        """Keys and products of the ``n`` largest products with each of ``[m, D]``, best first."""
        answer = self._ask(
            "search",
            self.address.collection,
            data=[row.tolist() for row in vectors],
            anns_field="vector",
            filter=condition,
            limit=n,
            search_params={"metric_type": "IP", "params": {"ef": max(n, 128)} if graph else {}},
        )
        return [[(str(hit[KEY]), float(hit["distance"])) for hit in hits] for hits in answer]

    def get(self, keys: Sequence[str], fields: Sequence[str]) -> list[Row]:
        """Rows by key, in any order, of those that are there."""
        return list(self._ask("get", self.address.collection, ids=list(keys), output_fields=list(fields)))

    def first(self, condition: str, field: str) -> Any:
        """The field of any row that meets a condition; None: no row does."""
        rows = self._ask("query", self.address.collection, filter=condition, output_fields=[field], limit=1)
        return rows[0][field] if rows else None

    def count(self) -> int:
        """Rows."""
        rows = self._ask("query", self.address.collection, filter="", output_fields=["count(*)"])
        return int(rows[0]["count(*)"])

    def scan(self, condition: str, fields: Sequence[str]) -> Iterator[Row]:
        """All rows that meet a condition, in any order; a range of keys at a time, each as of when it is asked for."""
        n = self.count() // ROWS_AT_A_TIME + 1
        bounds = [f"{i * 2**32 // n:08x}" for i in range(n)]  # keys are hashes: they are spread evenly
        for low, high in zip(bounds, [*bounds[1:], "g"], strict=True):
            within = f'{KEY} >= "{low}" and {KEY} < "{high}"'
            check_time_left()
            yield from self._ask(
                "query",
                self.address.collection,
                filter=f"{within} and {condition}" if condition else within,
                output_fields=[KEY, *fields],
                limit=MAX_LIST,
            )

    def close(self) -> None:
        """Let go of the connection; the next call makes another."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):  # it is given up either way
                client.close()

    def _ask(self, what: str, *arguments: Any, **settings: Any) -> Any:
        """Call the library, again while the server is away and there is time.

        Raises:
            OfflineError: the server did not answer in time.
            DeadlineError: nor in the time that a search has.
            ArtifactError: there is no such collection.
            ResourceError: the server refuses.
        """
        deadline, loaded = time.monotonic() + min(self.timeout_s, seconds_left()), False
        while True:
            left = max(deadline - time.monotonic(), PAUSE_S)
            try:
                return getattr(self._connected(left), what)(*arguments, timeout=left, **settings)
            except self._errors as error:
                code = _code(error)
                if code == str(NOT_LOADED) and not loaded and what != "load_collection":
                    self._ask("load_collection", self.address.collection)  # as after a restart of the server
                    loaded = True
                    continue
                self.close()
                check_time_left(PAUSE_S)
                if code in ("UNAVAILABLE", str(NOT_CONNECTED)) and time.monotonic() + PAUSE_S < deadline:
                    time.sleep(PAUSE_S)
                    continue
                raise self._named(what, code, error) from error

    def _connected(self, timeout_s: float) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._library.MilvusClient(
                    uri=self.address.uri,
                    token=os.environ.get(TOKEN, ""),
                    timeout=timeout_s,
                    dedicated=True,
                    # else a new connection waits for as long as the lost one would have
                    grpc_options={"grpc.use_local_subchannel_pool": 1},
                )
            return self._client

    def _named(self, what: str, code: str, error: Exception) -> Exception:
        if code in ("UNAVAILABLE", "DEADLINE_EXCEEDED", str(NOT_CONNECTED)):
            return OfflineError(
                f"{self.address.uri} did not answer within {self.timeout_s:g} seconds; start the server, then do it"
                " again"
            )
        if code in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
            return UsageError(f"{self.address.uri} refuses whoever asks; set {TOKEN} to USER:PASSWORD or a token")
        if code == str(NO_COLLECTION):
            return ArtifactError(f"{self.address} is not there; build it with polyrank index build --remote")
        reason = " ".join(str(getattr(error, "message", error)).split())[:300]
        return ResourceError(f"{self.address} refuses to {what.replace('_', ' ')} ({reason}); see the server's log")


def _pymilvus() -> tuple[ModuleType, tuple[type[Exception], ...]]:
    """The library, and what its calls raise."""
    try:
        import pymilvus
        from grpc import RpcError
    except ImportError as error:
        raise MissingExtraError("pymilvus", "milvus") from error
    for name in ("pymilvus", "pymilvus.milvus_client"):  # it logs each error as a traceback, and raises it besides
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return pymilvus, (RpcError, pymilvus.exceptions.MilvusException)


def _code(error: Any) -> str:
    """Of an error of the library, which is a number or a name; or of gRPC, which has it for each call."""
    code = error.code() if callable(error.code) else error.code
    return getattr(code, "name", None) or str(code)
