"""One collection of a Qdrant server, or of Qdrant's local mode in a folder: the only module that imports its client.

Facts are keywords in a point's payload. Qdrant compares numbers but not texts, so bounds are numbers of 12 hexadecimal
digits each, which are compared one after the other. No torch.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from math import ceil
from threading import Lock
from typing import Any
from uuid import UUID

from polyrank.errors import (
    ArtifactError,
    LockedError,
    MissingExtraError,
    OfflineError,
    PolyrankError,
    ResourceError,
    UsageError,
)
from polyrank.index.checks import Vectors
from polyrank.index.filters import Tree
from polyrank.index.remote.address import IN_FILES, Address
from polyrank.index.remote.facts import COLUMN, Columns, Language, condition
from polyrank.index.remote.store import (
    FLAT,
    KEY,
    PROPERTY,
    TIMEOUT_S,
    CollectionDescription,
    Row,
    Store,
    norm_property,
    read_norm,
)
from polyrank.storage.time_limit import check_time_left

ROWS_AT_A_TIME = 1024  # of a scan
DIGITS, MAX_PARTS = 12, 20  # of a bound's number, which a double holds exactly; and numbers of a bound
KIND = "polyrank_kind"  # of a collection: the kind of its vectors' index
LOCAL_LOCK = Lock()  # one client can have a folder open, so each request opens it


class QdrantCollection(Store):
    """See ``Store``. Vectors are compared by inner products."""

    credentials = "its API key"

    def __init__(self, address: Address, *, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(address, timeout_s=timeout_s)
        try:
            from qdrant_client import QdrantClient, models
            from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse
        except ImportError as error:
            raise MissingExtraError("qdrant-client", "qdrant") from error
        self._new, self._models = QdrantClient, models
        # local mode raises the latter two
        self._errors = (ResponseHandlingException, UnexpectedResponse, ValueError, RuntimeError)
        self._away = ResponseHandlingException
        self._folder = address.uri.removeprefix(f"{IN_FILES}://") if address.uri.startswith(IN_FILES) else ""

    def _open(self, timeout_s: float) -> Any:
        uri, key = self.address.uri.partition("+")[2], self.address.token or None
        if self._folder:
            return self._folder
        verify = self.address.authority or True
        return self._new(url=uri, api_key=key, timeout=ceil(self.timeout_s), check_compatibility=False, verify=verify)

    def _request(self, client: Any, timeout_s: float, method: str, *arguments: Any, **settings: Any) -> Any:
        if not self._folder:
            return getattr(client, method)(*arguments, **settings)
        with LOCAL_LOCK, closing(self._new(path=self._folder)) as opened:
            return getattr(opened, method)(*arguments, **settings)

    def _fault(self, error: Any) -> type[PolyrankError]:
        status, reason = getattr(error, "status_code", None), str(error) if self._folder else ""
        if isinstance(error, self._away):
            return OfflineError
        if status in (401, 403):
            return UsageError
        if status == 404 or "not found" in reason:
            return ArtifactError
        return LockedError if "already accessed" in reason else ResourceError

    def create(self, *, width: int, kind: str, n: int, info: str, divided: bool = False) -> None:
        graph = self._models.HnswConfigDiff(m=0) if kind == FLAT else None
        vectors = self._models.VectorParams(size=width, distance=self._models.Distance.DOT, hnsw_config=graph)
        name, metadata = self.address.collection, {PROPERTY: info, KIND: kind}
        self._call("create_collection", name, vectors_config=vectors, metadata=metadata)
        if not self._folder:
            self._call("create_payload_index", name, COLUMN, self._models.PayloadSchemaType.KEYWORD, wait=True)

    def allow_norms(self, exponent: int) -> None:
        self._call("update_collection", self.address.collection, metadata=norm_property(exponent))

    def names(self) -> list[str]:
        return [one.name for one in self._call("get_collections").collections]

    def described(self, name: str) -> CollectionDescription | None:
        collections = {one.alias_name: one.collection_name for one in self._call("get_aliases").aliases}
        config = self._call("get_collection", name).config
        properties, vectors = config.metadata or {}, config.params.vectors
        if PROPERTY not in properties or not hasattr(vectors, "size"):
            return None
        own, info = collections.get(name, name), str(properties[PROPERTY])
        return CollectionDescription(own, info, vectors.size, read_norm(properties))

    def kind(self) -> str:
        return str((self._call("get_collection", self.address.collection).config.metadata or {}).get(KIND, ""))

    def n_indexed(self) -> int:
        return int(self._call("get_collection", self.address.collection).indexed_vectors_count or 0)

    def aliases(self, collection: str) -> tuple[str, ...]:
        return tuple(one.alias_name for one in self._call("get_collection_aliases", collection).aliases)

    def set_alias(self, alias: str, *, replace: bool) -> None:
        name = self._models.CreateAlias(collection_name=self.address.collection, alias_name=alias)
        self._call("update_collection_aliases", [self._models.CreateAliasOperation(create_alias=name)])

    def drop_alias(self, alias: str) -> None:
        name = self._models.DeleteAlias(alias_name=alias)
        self._call("update_collection_aliases", [self._models.DeleteAliasOperation(delete_alias=name)])

    def drop(self, collection: str) -> None:
        self._call("delete_collection", collection)

    def write(self, rows: Sequence[Row]) -> None:
        new = self._models.PointStruct
        points = [new(id=str(UUID(row[KEY])), vector=row["vector"], payload=_payload(row)) for row in rows]
        self._call("upsert", self.address.collection, points, wait=True)

    def delete(self, keys: Sequence[str]) -> None:
        points = self._models.PointIdsList(points=[str(UUID(key)) for key in keys])
        self._call("delete", self.address.collection, points, wait=True)

    def condition(self, columns: Columns, tree: Tree) -> Any:
        return self._models.Filter(must=[condition(tree, self._language())])

    def nearest(self, vectors: Vectors, n: int, condition: Any, *, kind: str) -> list[list[tuple[str, float]]]:
        # local mode compares every vector anyway
        parameters = None if self._folder else self._models.SearchParams(exact=kind == FLAT, hnsw_ef=max(n, 128))
        requests = [
            self._models.QueryRequest(
                query=row.tolist(), filter=condition or None, limit=n, params=parameters, with_payload=False
            )
            for row in vectors
        ]
        answers = self._call("query_batch_points", self.address.collection, requests)
        return [[(_key(point), float(point.score)) for point in answer.points] for answer in answers]

    def get(self, keys: Sequence[str]) -> list[Row]:
        ids = [str(UUID(key)) for key in keys]
        found = self._call("retrieve", self.address.collection, ids, with_payload=True, with_vectors=True)
        return list(map(_row, found))

    def count(self) -> int:
        return int(self._call("count", self.address.collection, exact=True).count)

    def scan(self, condition: Any) -> Iterator[Row]:
        start = None
        while True:
            check_time_left()
            points, start = self._call(
                "scroll",
                self.address.collection,
                scroll_filter=condition or None,
                limit=ROWS_AT_A_TIME,
                offset=start,
                with_payload=True,
                with_vectors=True,
            )
            yield from map(_row, points)
            if start is None:
                return

    def _language(self) -> Language[Any]:
        models = self._models

        def number(name: str, **bound: float) -> Any:
            return models.FieldCondition(key=name, range=models.Range(**bound))

        def exists(name: str) -> Any:
            return models.FieldCondition(key=COLUMN, match=models.MatchValue(value=name))

        def above(name: str, parts: list[int], *, or_equal: bool) -> Any:
            equal = [number(f"{name}_{i}", gte=part, lte=part) for i, part in enumerate(parts)]
            ways = [[*equal[:i], number(f"{name}_{i}", gt=part)] for i, part in enumerate(parts)]
            ways.append(equal if or_equal else [*equal, number(f"{name}_{len(parts)}", gte=0)])
            return models.Filter(must=[exists(name)], should=[models.Filter(must=way) for way in ways])

        def compare(name: str, kind: str, digits: str) -> Any:
            if len(parts := _parts(digits)) > MAX_PARTS:
                limit = MAX_PARTS * DIGITS // 2
                raise UsageError(f"Qdrant orders texts by up to {limit} bytes; shorten the filter's text")
            if kind in (">", ">="):
                return above(name, parts, or_equal=kind == ">=")
            return models.Filter(must=[exists(name)], must_not=[above(name, parts, or_equal=kind == "<")])

        return Language(
            exists,
            compare,
            lambda kind, parts: models.Filter(**{"must" if kind == "and" else "should": parts}),
            lambda part: models.Filter(must_not=[part]),
        )


def _parts(digits: str) -> list[int]:
    """Hexadecimal digits as numbers; that of fewer digits is that of more, followed by zeros.

    >>> _parts("00000000000a8")
    [10, 140737488355328]
    """
    return [int(digits[i : i + DIGITS].ljust(DIGITS, "0"), 16) for i in range(0, len(digits), DIGITS)]


def _payload(row: Row) -> dict[str, Any]:
    """The payload of a row: names of its facts, and the numbers of their bounds."""
    payload = {name: value for name, value in row.items() if name not in (KEY, "vector", COLUMN)}
    for name, value in row[COLUMN].items():
        if isinstance(value, str):
            payload |= {f"{name}_{i}": part for i, part in enumerate(_parts(value)[: MAX_PARTS + 1])}
    return payload | {COLUMN: list(row[COLUMN])}


def _key(point: Any) -> str:
    return UUID(str(point.id)).hex


def _row(point: Any) -> Row:
    return {**point.payload, KEY: _key(point), "vector": point.vector}
