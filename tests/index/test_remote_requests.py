"""Requests of a remote index and its handling of answers, with a scripted client instead of pymilvus's."""

import contextlib
import errno
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from polyrank.errors import (
    ArtifactError,
    DataError,
    DeadlineError,
    LockedError,
    OfflineError,
    ResourceError,
    UsageError,
)
from polyrank.index import check_target, is_index
from polyrank.index.filters import read_filter
from polyrank.index.remote import (
    Address,
    RemoteIndex,
    RemoteWriter,
    drop_collection,
    list_collections,
    read_address,
    write_remote,
)
from polyrank.index.remote.address import REMOTE, write_address
from polyrank.index.remote.collections import StoredCollection
from polyrank.index.remote.facts import MILVUS, Columns, condition, fact_name, facts
from polyrank.index.remote.milvus import MilvusCollection, build_settings, search_settings
from polyrank.index.remote.postgresql import PostgresqlTable
from polyrank.index.remote.qdrant import DIGITS, MAX_PARTS, QdrantCollection
from polyrank.index.remote.rows import key_of, make_rows, read_row, request_batches
from polyrank.index.remote.store import TIMEOUT_S, CollectionDescription, Row
from polyrank.index.remote.stores import read_kind
from polyrank.records import Candidate
from polyrank.storage.document import seal
from polyrank.storage.time_limit import TimeLimit, limit_searches
from test_filters import ORDERS, numbers, passes, texts, values, written

pymilvus = pytest.importorskip("pymilvus", reason="pymilvus is not installed; install polyrank[milvus]")

ADDRESS = Address("http://127.0.0.1:19530", "replies")
Ask = Callable[..., Any]


class Script:
    """Scripted pymilvus connections: answers by method name, and a record of all calls."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.made: list[dict[str, Any]] = []
        self.n_closed = 0

    def of(self, name: str) -> list[dict[str, Any]]:
        return [settings for what, _, settings in self.asked if what == name]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    script = Script()

    class Client(pymilvus.MilvusClient):  # type: ignore[misc]  # schemas are made by it
        def __init__(self, **settings: Any) -> None:
            script.made.append(settings)

        def __getattribute__(self, name: str) -> Any:
            def ask(*arguments: Any, **settings: Any) -> Any:
                script.asked.append((name, arguments, settings))
                answer = script.answers.get(name)
                answer = next(answer) if isinstance(answer, Iterator) else answer
                if isinstance(answer, Exception):
                    raise answer
                return answer(*arguments, **settings) if callable(answer) else answer

            return ask

        def __del__(self) -> None:
            """No connection to close."""

    Client.close = None
    monkeypatch.setattr(pymilvus, "MilvusClient", Client)
    return script


def refused(code: int, message: str = "no") -> Exception:
    error: Exception = pymilvus.exceptions.MilvusException(code=code, message=message)
    return error


# --- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "uri", "collection"),
    [
        ("http://localhost/replies", "http://localhost:19530", "replies"),
        ("https://example.org:443/_a1", "https://example.org:443", "_a1"),
        ("http://[::1]:5/B", "http://[::1]:5", "B"),
        (f"http://h:1/{'a' * 255}", "http://h:1", "a" * 255),
        ("http://h:1/shop/replies", "http://h:1", "shop replies"),
        (f"postgresql://h/shop/{'a' * 63}", "postgresql://h:5432", f"shop {'a' * 63}"),
        ("qdrant+https://h:7/replies", "qdrant+https://h:7", "replies"),
    ],
)
def test_an_address_names_a_server_and_a_collection(text: str, uri: str, collection: str) -> None:
    whole = Address(uri, *reversed(collection.split()))
    assert Address.of(text) == whole
    assert Address.of(str(whole)) == whole


@pytest.mark.parametrize(("text", "database"), [("http://h:1", ""), ("http://h:1/", ""), ("http://h:1/shop/", "shop")])
def test_an_address_of_a_whole_database_ends_with_a_slash(text: str, database: str) -> None:
    assert Address.of(text, named=False) == Address("http://h:1", "", database)
    with pytest.raises(
        UsageError, match=f"'{text}' names no collection; add its name, as in {text.rstrip('/')}/replies"
    ):
        Address.of(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ftp://h:1/replies", "is not the address of a collection"),
        ("h:1/replies", "is not the address of a collection"),
        ("http:///replies", "is not the address of a collection"),
        ("http://h:1/replies?a=b", "is not the address of a collection"),
        ("http://h:1/replies#a", "is not the address of a collection"),
        ("http://h:x/replies", "is not the address of a collection"),
        ("http://user@h:1/replies", "the address contains a password"),
        ("http://:secret@h:1/replies", "the address contains a password"),
        ("http://h:1/", "names no collection; add its name, as in http://h:1/replies"),
        ("http://h:1/1a", "is not a collection name"),
        ("http://h:1/a/b/c", "'a/b' is not a database name"),
        (f"http://h:1/{'a' * 256}", "is not a collection name"),
        (f"postgresql://h/shop/{'a' * 64}", "is not a collection name; use up to 63 letters"),
        (f"postgresql://h/{'a' * 64}/replies", "is not a database name; use up to 63 letters"),
        ("postgresql://h/replies", "names no database; write postgresql://HOST:PORT/DATABASE/NAME"),
        ("qdrant+http://h/shop/replies", "names a database, which Qdrant lacks; leave 'shop' out"),
    ],
)
def test_an_incomplete_address_is_refused(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as error:
        Address.of(text)
    assert "secret" not in str(error.value)


def test_a_folder_keeps_the_address(tmp_path: Path) -> None:
    write_address(tmp_path / "i", ADDRESS)
    assert is_index(tmp_path / "i")
    assert not is_index(tmp_path)
    assert read_address(tmp_path / "i") == ADDRESS
    assert [entry.name for entry in (tmp_path / "i").iterdir()] == ["remote.json"]
    with pytest.raises(UsageError):
        write_address(tmp_path / "i", Address("http://h:1", "other"))
    write_address(tmp_path / "i", Address("http://h:1", "other", "shop"), replace=True)
    assert read_address(tmp_path / "i") == Address("http://h:1", "other", "shop")
    check_target(tmp_path / "i", remote="http://h:1/other", overwrite=True)
    for remote in (None, "http://h:1/other"):  # it is not a local index; it is not to be replaced
        with pytest.raises(UsageError):
            check_target(tmp_path / "i", remote=remote, overwrite=remote is None)
    (tmp_path / "i" / "remote.json").write_bytes(seal({"uri": "http://h:1"}, REMOTE))
    with pytest.raises(ArtifactError, match=r"remote\.json has no 'collection': .*; build it again with polyrank"):
        read_address(tmp_path / "i")


# --- rows -------------------------------------------------------------------------------------------------------------


def one(text: str = "hi", id_: str = "a", **metadata: Any) -> Candidate:
    return Candidate(id_, text, metadata)


def made(candidates: Sequence[Candidate], vectors: np.ndarray, first: int = 1) -> tuple[list[Row], dict[int, str]]:
    """Rows to write, and faults."""
    return make_rows(candidates, vectors, first, None, Columns())[:2]


def test_a_row_holds_a_whole_candidate() -> None:
    vectors = np.array([[3.0, 4.0], [0.5, -0.5]], np.float32)
    candidates = [one("hello", "é", lang="en"), one("bye", "b", tier=[2, 7])]
    rows, faults = made(candidates, vectors, 41)
    assert faults == {}
    assert [(row["row"], row["key"], row["id"], row["text"]) for row in rows] == [
        (41, key_of("é"), "é", "hello"),
        (42, key_of("b"), "b", "bye"),
    ]
    assert [json.loads(row["metadata"]) for row in rows] == [{"lang": "en"}, {"tier": [2, 7]}]
    for row, vector, candidate in zip(rows, vectors, candidates, strict=True):
        assert row["facts"] == facts(candidate.metadata)
        number, again, found = read_row(row, ADDRESS)
        assert (number, again, found[:2].tolist()) == (row["row"], candidate, vector.tolist())
        assert found[2:].tolist() == [0.0] * 6
    assert key_of("é") != key_of("e")
    assert len(key_of("é")) == 32
    assert key_of("\ud800") == ""


@pytest.mark.parametrize("field", ["row", "id", "text", "metadata", "digest", "vector"])
def test_a_row_with_a_changed_field_is_damaged(field: str) -> None:
    ((row,), _) = made([one("hello", "name", lang="en")], np.ones((1, 2), np.float32), 7)
    other: dict[str, Any] = {
        "row": 8, "id": "name2", "text": "hell", "metadata": "{}", "digest": "0" * 64, "vector": [1.0, 2.0]
    }  # fmt: skip
    for damaged in ({**row, field: other[field]}, {key: row[key] for key in row if key != field}, {**row, field: None}):
        with pytest.raises(ArtifactError, match=rf"^{ADDRESS} is damaged: candidate '?[Nn].* is not what was written"):
            read_row(damaged, ADDRESS)


def test_values_that_the_server_cannot_store_are_named() -> None:
    vectors = np.ones((1, 2), np.float32)
    assert made([one("a" * 65_535)], vectors)[1] == {}
    assert made([one("é" * 32_768)], vectors)[1] == {0: "its text has 65,536 bytes, the server's limit is 65,535"}
    assert made([one(id_="a" * 65_536)], vectors)[1] == {0: "its id has 65,536 bytes, the server's limit is 65,535"}
    most = one(a="x" * 16_332, b={}, c={})
    assert len(json.dumps(facts(most.metadata))) == 65_536
    assert made([most], vectors)[1] == {}
    assert made([one(a="x" * 16_341, b={})], vectors)[1] == {
        0: "its metadata make 65,537 bytes to filter by, the limit is 65,536"
    }


def sized(n: int, text: str = "hi", metadata: str = "{}", d: int = 2) -> list[dict[str, Any]]:
    return [{"vector": [0.0] * d, "text": text, "metadata": metadata, "row": row} for row in range(n)]


def test_a_request_is_limited_in_rows_and_bytes() -> None:
    assert [len(part) for part in request_batches(sized(1025))] == [512, 512, 1]
    assert [len(part) for part in request_batches(sized(1024))] == [512, 512]
    assert list(request_batches([])) == []
    most = 16 * 2**20
    for rows, size in (
        (sized(100, d=50_000), 12 * 50_000 + 8 + 16),
        (sized(100, text="a" * 200_000), 24 + 800_000 + 16),
        (sized(100, metadata="a" * 100_000), 24 + 8 + 800_000),
    ):
        parts = list(request_batches(rows))
        assert [row["row"] for part in parts for row in part] == list(range(100))
        assert len(parts[0]) == most // size + 1  # the row that exceeds the limit is the last one
        assert len(parts) > 1


# --- facts ------------------------------------------------------------------------------------------------------------


def meets(metadata: dict[str, Any], text: str) -> bool:
    """Evaluate a Milvus condition on facts."""
    known = facts(metadata)
    expression = condition(read_filter(text).tree, MILVUS)
    for name in known:
        expression = expression.replace(f'exists facts["{name}"]', "True").replace(
            f'facts["{name}"]', repr(str(known[name]))
        )
    while 'exists facts["' in expression:
        before, _, rest = expression.partition('exists facts["')
        expression = before + "False" + rest.partition('"]')[2]
    while 'facts["' in expression:
        before, _, rest = expression.partition('facts["')
        expression = before + "''" + rest.partition('"]')[2]
    return bool(eval(expression))  # it contains only hashes and digits


@pytest.mark.parametrize(
    ("metadata", "text", "expected"),
    [
        ({"a": 1}, "a = 1", True),
        ({"a": 1}, "a = 2", False),
        ({"a": 1.0}, "a = 1", True),
        ({"a": True}, "a = true", True),
        ({"a": True}, "a = 1", False),
        ({"a": True}, "a > 0", False),
        ({"a": "1"}, "a = 1", False),
        ({"a": "true"}, "a = true", False),
        ({"a": None}, "exists a", True),
        ({}, "exists a", False),
        ({"a": {"b": 2}}, "a.b >= 2", True),
        ({"a": {"b": 2}}, "exists a", True),
        ({"a": [1, 5, 9]}, "a > 8", True),
        ({"a": [1, 5, 9]}, "a >= 9", True),
        ({"a": [1, 5, 9]}, "a > 9", False),
        ({"a": [3, 5, 9]}, "a < 4", True),
        ({"a": [3, 5, 9]}, "a <= 3", True),
        ({"a": [3, 5, 9]}, "a < 3", False),
        ({"a": [5, 9, 1, 4]}, "a > 8", True),
        ({"a": [5, 9, 1, 4]}, "a < 2", True),
        ({"a": ["m", "z", "b", "n"]}, 'a < "c" and a > "y"', True),
        ({"a": [3, "x"]}, 'a < "y"', True),
        ({"a": [3, "x"]}, 'a > "x"', False),
        ({"a": ["x", "y"]}, 'a in ("y", "z")', True),
        ({"a": ["x", "y"]}, 'a in ("w", "z")', False),
        ({"a": 1, "b": 2}, "a = 1 and b = 2", True),
        ({"a": 1, "b": 3}, "a = 1 and b = 2", False),
        ({"a": 1, "b": 3}, "a = 1 or b = 2", True),
        ({"a": 1}, "not a = 1", False),
        ({}, "not a = 1", True),
        ({"a": -5}, "a < -4", True),
        ({"a": -5}, "a > -6", True),
        ({"a": 0.5}, "a < 0", False),
        ({"a": 2**63 + 1}, f"a = {2**63}", True),  # both round to the same double
        ({"a": -(2**63) - 1}, f"a = {-(2**63)}", True),
        ({"a": 2**63 - 1}, f"a = {2**63}", False),
    ],
)
def test_facts_answer_filters(metadata: dict[str, Any], text: str, expected: bool) -> None:
    assert meets(metadata, text) is expected


@given(
    st.lists(values, min_size=1, max_size=4),
    st.sampled_from([*ORDERS, "in"]),
    st.lists(texts | numbers, min_size=1, max_size=1),
)
def test_facts_compare_any_element_of_an_array(elements: list[Any], kind: str, wanted: list[Any]) -> None:
    stored = json.loads(json.dumps({"a": elements}))
    assert meets(stored, written((kind, ["a"], wanted), json.dumps)) is passes((kind, ["a"], wanted), stored)


# --- requests ---------------------------------------------------------------------------------------------------------


def test_a_connection_is_made_once_with_the_token_of_the_environment(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYRANK_MILVUS_TOKEN", "me:secret")
    monkeypatch.setenv("POLYRANK_MILVUS_URI", ADDRESS.uri)
    script.answers["query"] = [{"count(*)": 3}]
    server = MilvusCollection(Address(ADDRESS.uri, "replies", "shop"), timeout_s=5)
    assert (server.count(), server.count()) == (3, 3)
    (made,) = script.made
    assert (made["uri"], made["token"], made["dedicated"]) == (ADDRESS.uri, "me:secret", True)
    assert (made["db_name"], made["server_pem_path"]) == ("shop", "")
    assert made["grpc_options"] == {"grpc.use_local_subchannel_pool": 1}
    assert 1 < made["timeout"] <= 5
    assert all(0 < settings["timeout"] <= 5 for settings in script.of("query"))
    server.close()
    server.close()
    assert len(script.of("close")) == 1
    assert server.count() == 3
    assert len(script.made) == 2


def test_a_search_requests_inner_products(script: Script) -> None:
    script.answers["search"] = [[{"key": "k1", "distance": 2}, {"key": "k2", "distance": 1.5}], []]
    vectors = np.array([[1, 2], [3, 4]], np.float32)
    server = MilvusCollection(ADDRESS)
    assert server.nearest(vectors, 200, "x", kind="HNSW") == [[("k1", 2.0), ("k2", 1.5)], []]
    for kind in ("HNSW", "FLAT", "IVF_SQ8", "IVF_PQ", "DISKANN"):
        server.nearest(vectors, 5, "", kind=kind)
    first, few, plain, *others = script.of("search")
    assert (first["data"], first["anns_field"], first["filter"], first["limit"]) == (
        [[1, 2], [3, 4]],
        "vector",
        "x",
        200,
    )
    assert first["search_params"] == {"metric_type": "IP", "params": {"ef": 200}}
    assert few["search_params"]["params"] == {"ef": 128}
    assert plain["search_params"]["params"] == {}
    assert [one["search_params"]["params"] for one in others] == [{"nprobe": 64}, {"nprobe": 64}, {"search_list": 128}]


@pytest.mark.parametrize(("n", "ranges"), [(0, 1), (2047, 1), (2048, 2), (10_000, 5)])
def test_a_scan_requests_each_key_once(script: Script, n: int, ranges: int) -> None:
    def query(_: str, filter: str, output_fields: Sequence[str], **settings: Any) -> list[dict[str, Any]]:
        if output_fields == ["count(*)"]:
            assert filter == ""
            return [{"count(*)": n}]
        assert list(output_fields) == ["key", "row", "id", "text", "metadata", "digest", "vector"]
        assert settings["limit"] == 16_384
        return [{"key": filter}]

    script.answers["query"] = query
    server = MilvusCollection(ADDRESS)
    asked = [row["key"] for row in server.scan("")]
    assert len(asked) == ranges
    bounds = [text.removeprefix('key >= "').removesuffix('"').split('" and key < "') for text in asked]
    assert [low for low, _ in bounds] == [f"{i * 2**32 // ranges:08x}" for i in range(ranges)]
    assert [high for _, high in bounds] == [*(low for low, _ in bounds[1:]), "g"]
    assert [row["key"] for row in server.scan("(c)")] == [f"{text} and (c)" for text in asked]


def test_a_collection_fits_the_written_rows(script: Script) -> None:
    server = MilvusCollection(ADDRESS).of("replies_1")
    server.create(width=7, kind="HNSW", n=10, info="{}")
    assert [(name, arguments[0]) for name, arguments, _ in script.asked] == [
        ("create_collection", "replies_1"),
        ("create_index", "replies_1"),
        ("load_collection", "replies_1"),
    ]
    (_, _, made), (_, (_, indexes), _), _ = script.asked
    assert made["consistency_level"] == "Strong"
    assert made["properties"] == {"polyrank": "{}"}
    schema = made["schema"].to_dict()
    assert (schema["auto_id"], schema["enable_dynamic_field"]) == (False, False)
    fields = {field["name"]: field for field in schema["fields"]}
    assert set(fields) == {"key", "row", "id", "text", "metadata", "digest", "facts", "vector"}
    assert fields["key"]["is_primary"] is True
    assert not any(field.get("is_partition_key") for field in fields.values())
    lengths = {name: field.get("params", {}).get("max_length") for name, field in fields.items()}
    strings = {"id": 65_535, "text": 65_535, "metadata": 65_535, "digest": 64, "key": 32}
    assert lengths == {name: strings.get(name) for name in fields}
    assert fields["vector"]["params"]["dim"] == 7
    (index,) = indexes
    assert (index.index_type, index.field_name) == ("HNSW", "vector")
    described = index.to_dict()
    assert described["metric_type"] == "IP"
    assert {**described, **described.get("params", {})}["M"] == 32


def test_settings_of_an_index_fit_the_number_of_vectors() -> None:
    assert build_settings("FLAT", 10, 8) == build_settings("DISKANN", 10, 8) == {}
    assert build_settings("HNSW", 10, 8) == {"M": 32, "efConstruction": 128}
    assert [build_settings("IVF_SQ8", n, 8)["nlist"] for n in (1, 100, 10_000, 10**9)] == [2, 20, 200, 1024]
    assert build_settings("IVF_PQ", 100, 392) == {"nlist": 20, "m": 98, "nbits": 8}
    assert [search_settings("DISKANN", n)["search_list"] for n in (1, 128, 129)] == [128, 128, 129]
    with pytest.raises(UsageError, match="'scann'; use none, flat, hnsw, sq8, ivfpq, diskann"):
        read_kind("scann", ADDRESS)


def test_a_divided_collection_has_a_column_of_partitions(script: Script) -> None:
    server = MilvusCollection(ADDRESS)
    server.create(width=8, kind="FLAT", n=1, info="{}", divided=True)
    ((_, _, made), *_) = script.asked
    (column,) = (field for field in made["schema"].to_dict()["fields"] if field.get("is_partition_key"))
    assert (column["name"], column["params"]) == ("partition", {"max_length": 32})


@pytest.mark.parametrize(
    ("refused_method", "error", "words"),
    [
        ("create_index", UsageError, "create index (no such thing).*; use another index type$"),
        ("load_collection", ResourceError, "load collection (no such thing)"),
    ],
)
def test_a_kind_that_a_server_lacks_is_named(
    script: Script, refused_method: str, error: type[Exception], words: str
) -> None:
    script.answers[refused_method] = refused(65535, "no such thing")
    with pytest.raises(error, match=words.replace("(", r"\(").replace(")", r"\)")):
        MilvusCollection(ADDRESS).create(width=8, kind="DISKANN", n=1, info="{}")


@pytest.mark.parametrize(
    ("version", "kind", "words"),
    [
        ("milvus_lite-3.2.2", "DISKANN", "offers the index types flat, hnsw, sq8; use one of these"),
        ("milvus_lite-3.2.2", "IVF_SQ8", ""),
        ("v2.6.0", "IVF_PQ", ""),
    ],
)
def test_what_a_server_accepts_but_does_not_do_is_refused(script: Script, version: str, kind: str, words: str) -> None:
    script.answers["get_server_version"] = version
    with pytest.raises(UsageError, match=words) if words else contextlib.nullcontext():
        MilvusCollection(ADDRESS).create(width=8, kind=kind, n=1, info="{}", divided=True)
    assert bool(script.of("create_collection")) is not bool(words)


def test_only_indexes_of_polyrank_are_read(script: Script) -> None:
    vector = {"name": "vector", "params": {"dim": 5}}
    properties = {"polyrank": "said", "polyrank_norm_2": "4.0", "polyrank_norm_5": "32.0", "polyrank_norm_-1": "0.5"}
    whole = {"collection_name": "replies_1", "properties": properties, "fields": [{"name": "row"}, vector]}
    server = MilvusCollection(ADDRESS)
    script.answers["describe_collection"] = whole
    assert server.describe() == CollectionDescription("replies_1", "said", 5, 32.0)
    for less in ({"properties": None}, {"properties": {}}, {"fields": []}, {"fields": [vector, vector]}):
        script.answers["describe_collection"] = {**whole, **less}
        with pytest.raises(ArtifactError, match=f"^{ADDRESS} is not an index of polyrank"):
            server.describe()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"index_type": "FLAT", "metric_type": "IP"}, "FLAT"),
        ({"index_type": "FLAT", "metric_type": "L2"}, ""),
        ({"metric_type": "IP"}, ""),
        (None, ""),
    ],
)
def test_the_index_uses_inner_products(script: Script, answer: Any, kind: str) -> None:
    script.answers["describe_index"] = answer
    assert MilvusCollection(ADDRESS).kind() == kind


def test_a_name_is_free_or_an_alias(script: Script) -> None:
    server = MilvusCollection(ADDRESS)
    describe(script, "b")
    assert server.alias() == "b"
    script.answers["describe_collection"] = refused(100)
    assert server.alias() is None
    describe(script, "replies")
    with pytest.raises(UsageError, match="is a collection that polyrank did not build; choose another name"):
        server.alias()
    describe(script, "b")
    script.answers["describe_collection"]["properties"] = {}
    with pytest.raises(UsageError, match="is a collection that polyrank did not build; choose another name"):
        server.alias()
    server.of("new").set_alias("replies", replace=False)
    server.of("new").set_alias("replies", replace=True)
    assert [(name, arguments) for name, arguments, _ in script.asked[-2:]] == [
        ("create_alias", ("new", "replies")),
        ("alter_alias", ("new", "replies")),
    ]


def test_written_rows_are_counted(script: Script) -> None:
    server = MilvusCollection(ADDRESS)
    script.answers["upsert"] = {"upsert_count": 2}
    server.write([{"key": "a"}, {"key": "b"}])
    server.of("other").write([{"key": "a"}, {"key": "b"}])
    assert [arguments[0] for _, arguments, _ in script.asked] == ["replies", "other"]
    with pytest.raises(ResourceError, match=f"^{ADDRESS} wrote 2 of 1 rows; try again"):
        server.write([{"key": "a"}])
    server.flush()
    server.of("other").flush()
    server.delete(["a"])
    server.drop("old")
    assert [(name, arguments) for name, arguments, _ in script.asked[3:]] == [
        ("flush", ("replies",)),
        ("flush", ("other",)),
        ("delete", ("replies",)),
        ("drop_collection", ("old",)),
    ]
    assert script.of("delete")[0]["ids"] == ["a"]


# --- errors -----------------------------------------------------------------------------------------------------------


def test_a_request_is_repeated_on_a_new_connection(script: Script) -> None:
    script.answers["query"] = iter([refused(2), refused(2), [{"count(*)": 4}]])
    assert MilvusCollection(ADDRESS, timeout_s=30).count() == 4
    assert len(script.made) == 3
    assert len(script.of("close")) == 2


def test_a_server_that_stays_unavailable_causes_an_error(script: Script) -> None:
    script.answers["query"] = refused(2)
    with pytest.raises(OfflineError, match=r"^http://127\.0\.0\.1:19530 did not answer within 0\.5 seconds; start"):
        MilvusCollection(ADDRESS, timeout_s=0.5).count()
    assert 1 < len(script.of("query")) <= 3
    assert len(script.of("close")) == len(script.made) == len(script.of("query"))
    # the remaining time, but long enough for an answer
    assert all(0.2 <= settings["timeout"] <= 0.5 for settings in script.of("query"))


def test_a_collection_that_is_not_loaded_is_loaded_once(script: Script) -> None:
    script.answers["query"] = iter([refused(101), [{"count(*)": 4}]])
    assert MilvusCollection(ADDRESS).count() == 4
    assert [name for name, *_ in script.asked] == ["query", "load_collection", "query"]
    script.answers["query"] = refused(101, "not loaded\nat all")
    with pytest.raises(ResourceError, match=r"refuses to query \(not loaded at all\); see the server's log"):
        MilvusCollection(ADDRESS).count()
    assert len(script.of("load_collection")) == 2


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (100, ArtifactError, f"{ADDRESS} does not exist; build it with polyrank index build --remote"),
        (65535, ResourceError, f"{ADDRESS} refuses to describe collection (no); see the server's log"),
    ],
)
def test_each_refusal_is_an_error_of_its_kind(script: Script, code: int, kind: type[Exception], words: str) -> None:
    script.answers["describe_collection"] = refused(code)
    with pytest.raises(kind) as error:
        MilvusCollection(ADDRESS).describe()
    assert str(error.value) == words
    assert len(script.asked) == 1
    script.answers["describe_collection"] = refused(1, f"{'x' * 150}\n{'y' * 150}")
    with pytest.raises(ResourceError, match=r"\(x{150} y{149}\); see the server's log$"):
        MilvusCollection(ADDRESS).describe()


def test_a_file_of_certificates_that_does_not_exist_is_named(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYRANK_MILVUS_CA", "/nowhere/ca.pem")
    with pytest.raises(UsageError, match=r"^/nowhere/ca.pem does not exist; set POLYRANK_MILVUS_CA to a file"):
        MilvusCollection(ADDRESS).count()
    assert script.made == []


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("DEADLINE_EXCEEDED", OfflineError, "did not answer within 0.1 seconds"),
        ("UNAUTHENTICATED", UsageError, "refuses the credentials; set POLYRANK_MILVUS_TOKEN"),
        ("PERMISSION_DENIED", UsageError, "refuses the credentials; set POLYRANK_MILVUS_TOKEN"),
    ],
)
def test_errors_of_the_connection(script: Script, code: str, kind: type[Exception], words: str) -> None:
    import grpc

    class Lost(grpc.RpcError):  # type: ignore[misc]  # grpc ships no types
        def code(self) -> Any:
            return grpc.StatusCode[code]

    script.answers["query"] = Lost()
    with pytest.raises(kind, match=words):
        MilvusCollection(ADDRESS, timeout_s=0.1).count()
    assert len(script.of("query")) == 1


def test_errors_from_outside_the_library_are_not_hidden(script: Script) -> None:
    script.answers["query"] = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError, match="a bug"):
        MilvusCollection(ADDRESS).count()


def test_a_request_is_repeated_when_another_thread_has_closed_the_connection(script: Script) -> None:
    server = MilvusCollection(ADDRESS)
    asked = iter((True, False))

    def query(*_: Any, **__: Any) -> list[dict[str, int]]:
        if next(asked):
            other = threading.Thread(target=server.close)  # as after an error in the other thread
            other.start()
            other.join()
            raise refused(1, "Cannot invoke RPC on closed channel!")
        return [{"count(*)": 3}]

    script.answers["query"] = query
    assert (server.count(), len(script.made)) == (3, 2)


def test_a_late_error_leaves_another_threads_new_connection_open(script: Script) -> None:
    server = MilvusCollection(ADDRESS)
    asked = iter((True, False, False))

    def query(*_: Any, **__: Any) -> list[dict[str, int]]:
        if next(asked):
            for call in (server.close, server.count):  # the other thread failed first, and connected again
                other = threading.Thread(target=call)
                other.start()
                other.join()
            raise refused(1, "Cannot invoke RPC on closed channel!")
        return [{"count(*)": 3}]

    script.answers["query"] = query
    assert (server.count(), len(script.of("query")), len(script.made)) == (3, 3, 2)


def test_threads_share_a_connection(script: Script) -> None:
    script.answers["query"] = [{"count(*)": 4}]
    server = MilvusCollection(ADDRESS)
    threads = [threading.Thread(target=server.count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(script.made) == 1


# --- PostgreSQL and Qdrant --------------------------------------------------------------------------------------------

TABLE = Address("postgresql://h:5432", "replies", "shop")


class Connections:
    """Answers by the start of a statement, and a record of all statements and connections."""

    def __init__(self) -> None:
        self.answers: dict[str, list[tuple[Any, ...]]] = {}
        self.asked: list[tuple[str, list[Any]]] = []
        self.made: list[dict[str, Any]] = []

    def open(self, **settings: Any) -> Any:
        self.made.append(settings)
        return SimpleNamespace(execute=self.execute, close=lambda: None)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        self.asked.append((statement, list(values)))
        rows = next((rows for start, rows in self.answers.items() if statement.startswith(start)), None)
        return SimpleNamespace(description=rows is not None, fetchall=lambda: rows)


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Connections:
    """Scripted psycopg connections."""
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed; install polyrank[postgresql]")
    connections = Connections()
    monkeypatch.setattr(psycopg, "connect", connections.open)
    return connections


def test_a_connection_to_a_database_is_of_its_user_and_limited_in_time(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYRANK_POSTGRESQL_TOKEN", "me:secret")
    monkeypatch.setenv("POLYRANK_POSTGRESQL_URI", TABLE.uri)
    connections.answers["select count"] = [(3,)]
    table = PostgresqlTable(TABLE, timeout_s=2.5)
    assert (table.count(), table.count()) == (3, 3)
    (made,) = connections.made
    found = [made[name] for name in ("host", "port", "dbname", "user", "password", "connect_timeout")]
    assert found == ["h", "5432", "shop", "me", "secret", 3]  # whole seconds, of which 0 would be no limit


def test_a_table_is_searched_described_and_changed_by_these_statements(connections: Connections) -> None:
    table, vectors = PostgresqlTable(TABLE), np.ones((3, 2), np.float32)
    connections.answers["select q.i"] = [(1, "a", 3), (1, "b", 2), (3, "b", 5)]
    best, by_graph = [[("a", 3.0), ("b", 2.0)], [], [("b", 5.0)]], "vector <#> q.v"
    for n, kind, passing, order in (
        (200, "HNSW", "", by_graph), (201, "HNSW", "", "product desc"), (5, "FLAT", "", "product desc"),
        (5, "HNSW", "(facts ? 'e')", "product desc"),
    ):  # fmt: skip
        assert table.nearest(vectors, n, passing, kind=kind) == best
        statement, values = connections.asked[-1]
        assert f'from "replies" where {passing or "true"} order by {order} limit {n})' in statement
        assert values == [["[1.0, 1.0]"] * 3]
    connections.answers["select relkind"] = [("r", 'polyrank FLAT {"a": 1}', 8)]
    for norm, bound in ((None, 1.0), (3.9, 4.0), (4.0, 8.0), (4.1, 8.0)):  # above the norms of all vectors
        connections.answers["select max(vector_norm"] = [(norm,)]
        assert table.described("replies") == CollectionDescription("replies", '{"a": 1}', 8, bound)
    assert table.kind() == "FLAT"
    table.delete(["a", "b"])
    table.drop_alias("name")
    table.drop("other")
    assert connections.asked[-3:] == [
        ('delete from "replies" where key = any(%s)', [["a", "b"]]),
        ('drop view "name"', []),
        ('drop table "other"', []),
    ]
    name = fact_name("n", ["n"]) + "h"
    digits = facts({"n": 3})[name]
    expected = f"""((facts ? '{name}') and facts ->> '{name}' > '{digits}' collate "C")"""
    assert table.condition(Columns(), read_filter("n > 3").tree) == expected


def test_errors_of_a_database_are_of_their_kind(connections: Connections) -> None:
    from psycopg import OperationalError, errors

    for error, kind in (
        (OperationalError("connection refused"), OfflineError),
        (errors.ConnectionFailure("the connection is lost"), OfflineError),
        (errors.AdminShutdown("terminating connection"), OfflineError),
        (errors.DiskFull("no space left"), ResourceError),
        (OperationalError('database "shop" does not exist'), ResourceError),
        (errors.SyntaxError("at or near"), ResourceError),
        (errors.UndefinedTable('"replies"'), ArtifactError),
        (errors.InvalidPassword("wrong"), UsageError),
        (OperationalError("fe_sendauth: no password supplied"), UsageError),
        (OperationalError("password authentication failed"), UsageError),
    ):
        assert PostgresqlTable(TABLE)._fault(error) is kind, error


def test_qdrant_orders_texts_of_limited_length() -> None:
    pytest.importorskip("qdrant_client", reason="qdrant-client is not installed; install polyrank[qdrant]")
    server = QdrantCollection(Address.of("qdrant+file:///nowhere/replies"))
    assert server.condition(Columns(), read_filter(f'lang < "{"x" * 120}"').tree)
    with pytest.raises(UsageError, match="Qdrant orders texts by up to 120 bytes; shorten the filter's text"):
        server.condition(Columns(), read_filter(f'lang < "{"x" * 121}"').tree)


def test_the_documentation_names_the_limits() -> None:
    page = (Path(__file__).parents[2] / "docs" / "remote.md").read_text("utf-8")
    assert f"polyrank retries for {TIMEOUT_S:g} seconds, then fails" in page
    assert f"Qdrant orders texts by up to {MAX_PARTS * DIGITS // 2} bytes." in page


# --- an index on top --------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(script: Script, tmp_path: Path) -> Path:
    """The folder of an index whose description comes from the test."""
    write_address(tmp_path / "i", ADDRESS)
    describe(script, "replies_1")
    script.answers["describe_index"] = {"index_type": "FLAT", "metric_type": "IP"}
    return tmp_path / "i"


def describe(script: Script, name: str, **said: Any) -> None:
    document = {"fingerprint": "f" * 64, "model": "nowhere", "dimension": 5, "format": 4, "written_by": "0"} | said
    script.answers["describe_collection"] = {
        "collection_name": name,
        "properties": {"polyrank": json.dumps(document), "polyrank_norm_4": "16.0"},
        "fields": [{"name": "vector", "params": {"dim": 8}}],
    }


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOLCK, errno.ENOSPC])
def test_a_lock_that_cannot_be_made_names_the_folder(
    number: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Any, *_: Any) -> int:
        assert Path(path).parent == folder
        raise OSError(number, "trouble")

    monkeypatch.setattr("os.open", fail)
    with pytest.raises(ResourceError, match=f"cannot (write to|lock) {re.escape(str(folder))}: trouble; "):
        RemoteWriter(folder)


def test_an_index_notices_that_it_was_replaced(script: Script, folder: Path) -> None:
    with RemoteIndex(folder) as index:
        assert (index.opening, index.change, index.exact, index.dimension) == (1, 1, True, 5)
        assert (index.fingerprint, index.model) == ("f" * 64, "nowhere")
        assert index.refresh() is True
        assert (index.opening, index.change) == (1, 2)
        describe(script, "replies_2", model="elsewhere")
        script.answers["describe_index"] = {"index_type": "HNSW", "metric_type": "IP", "indexed_rows": 3}
        assert index.refresh() is True
        assert (index.opening, index.change, index.exact, index.model) == (2, 3, False, "elsewhere")
        describe(script, "replies_3", fingerprint="e" * 64)
        with pytest.raises(ArtifactError, match="encoder"):
            index.refresh()
        assert index.fingerprint == "f" * 64
        script.answers["query"] = [{"count(*)": 4}]
        assert index.info() == {
            "fingerprint": "f" * 64, "model": "elsewhere", "format": 4, "written_by": "0", "n": 4, "n_indexed": 3,
            "dimension": 5, "precision": "fp32", "remote": str(ADDRESS), "collection": "replies_2", "kind": "HNSW",
            "partition_by": "",
        }  # fmt: skip
        assert script.of("close") == []
    assert len(script.of("close")) == 1


def test_an_index_of_a_later_format_is_refused(script: Script, folder: Path) -> None:
    describe(script, "replies_1", format=5, written_by="9.9")
    with pytest.raises(
        ArtifactError, match=r"written by polyrank 9\.9 in format 5, this version reads format 4; upgrade"
    ):
        RemoteIndex(folder)
    describe(script, "replies_1", format=3)
    with pytest.raises(ArtifactError, match="in format 3, this version reads format 4; build it again with `overwrite"):
        RemoteIndex(folder)
    for said in (
        "[]",
        "{",
        '{"model": "m", "format": 4}',
        '{"format": 4, "fingerprint": "f", "model": "m", "more": 1}',
    ):
        script.answers["describe_collection"]["properties"] = {"polyrank": said}
        with pytest.raises(ArtifactError, match="lacks a valid description; build it again with `overwrite=True`"):
            RemoteIndex(folder)


def test_the_bound_of_norms_is_recorded_before_longer_vectors_are_written(
    script: Script, folder: Path, held: dict[str, Any]
) -> None:
    with RemoteWriter(folder) as writer:
        script.asked.clear()
        writer.add([one("a", "a")], np.full((1, 5), 7.0, np.float32))  # norm 15.7
        assert script.of("alter_collection_properties") == []
        writer.add([one("b", "b")], np.full((1, 5), 7.2, np.float32))  # norm 16.1
    names = [name for name, *_ in script.asked if name in ("upsert", "alter_collection_properties")]
    assert names == ["upsert", "alter_collection_properties", "upsert"]
    assert script.of("alter_collection_properties")[0]["properties"] == {"polyrank_norm_5": "32.0"}
    (asked,) = [arguments for name, arguments, _ in script.asked if name == "alter_collection_properties"]
    assert asked == ("replies_1",)  # not the alias, which may have moved


def test_a_build_records_the_longest_norm(script: Script, tmp_path: Path, held: dict[str, Any]) -> None:
    script.answers["describe_collection"] = refused(100)
    parts = [np.full((1, 5), length, np.float32) for length in (1.0, 7.2, 0.1)]
    write(tmp_path / "new", [one("a", f"c{i}") for i in range(3)], iter(parts))
    assert [settings["properties"] for settings in script.of("alter_collection_properties")] == [
        {"polyrank_norm_2": "4.0"},
        {"polyrank_norm_5": "32.0"},
    ]


def test_rows_are_fetched_in_parts_and_in_their_order(script: Script, folder: Path) -> None:
    candidates = [one(f"text {i}", f"c{i}") for i in range(1100)]
    rows, _ = made(candidates, np.arange(5500, dtype=np.float32).reshape(1100, 5) + 1, 10)
    by_key = {row["key"]: row for row in rows}
    script.answers["get"] = lambda _, ids, **__: [by_key[key] for key in reversed(ids) if key in by_key]
    index = RemoteIndex(folder)
    found = index.find([c.id for c in candidates] + ["c1", "none", "\ud800"])
    assert found == {c.id: c for c in candidates}
    assert [len(settings["ids"]) for settings in script.of("get")] == [512, 512, 77]
    fields = ["row", "id", "text", "metadata", "digest", "vector"]
    assert all(settings["output_fields"] == fields for settings in script.of("get"))
    assert index.candidate("c3") == candidates[3]
    with pytest.raises(UsageError, match="has no candidate 'none'; use an id that polyrank respond prints"):
        index.candidate("none")
    engine = index.engine()
    block = engine.fetch([key_of(f"c{i}") for i in (5, 2, 9)] + [key_of("none")])
    assert block.rows.tolist() == [12, 15, 19]
    assert block.vectors[:, 0].tolist() == [11, 26, 46]
    assert engine.candidates == {12: candidates[2], 15: candidates[5], 19: candidates[9]}
    nothing = engine.fetch([key_of("none")])
    assert (nothing.vectors.shape, nothing.rows.tolist()) == ((0, 5), [])
    script.answers["query"] = lambda _, output_fields, **__: (
        [{"count(*)": 1100}] if output_fields == ["count(*)"] else list(reversed(rows))
    )
    assert [row for row, _ in index.iter_candidates()] == list(range(10, 1110))
    assert [candidate for _, candidate in index.iter_candidates()] == candidates


@pytest.mark.parametrize("away", [False, True])
def test_a_search_for_words_ends_at_its_deadline_and_where_its_client_left(
    script: Script, folder: Path, away: bool
) -> None:
    """It does not wait for the last request, nor for the whole time that a server has to come back."""
    limit = TimeLimit(0.1 if away else 600)

    def query(*_: Any, output_fields: Sequence[str], **settings: Any) -> list[dict[str, Any]]:
        assert settings["timeout"] <= (0.2 if away else 20)
        if away:
            raise refused(2)
        if output_fields == ["count(*)"]:
            return [{"count(*)": 100_000}]
        limit.cancel()
        return []

    index = RemoteIndex(folder)
    script.answers["query"] = query
    with limit_searches(limit), pytest.raises(DeadlineError, match=f"longer than {limit.seconds:g} s"):
        index.page(words=["wifi"])
    assert len(script.of("query")) == (1 if away else 2)


def test_lists_of_the_server_are_keys_and_products(script: Script, folder: Path) -> None:
    script.answers["search"] = [[{"key": "a", "distance": 2.5}, {"key": "b", "distance": -1}], []]
    engine = RemoteIndex(folder).engine(read_filter("a = 1"))
    assert engine.exact
    first, second = engine.nearest(np.ones((2, 5), np.float32), 3)
    assert (first[0], first[1].tolist(), first[1].dtype) == (["a", "b"], [2.5, -1.0], np.float32)
    assert (second[0], second[1].tolist()) == ([], [])
    (settings,) = script.of("search")
    assert settings["filter"] == condition(read_filter("a = 1").tree, MILVUS)
    assert settings["search_params"]["params"] == {}


def test_damaged_rows_are_reported_one_by_one(script: Script, folder: Path) -> None:
    from polyrank.index import verify_index

    rows, _ = made([one("a", "x"), one("b", "y"), one("c", "z")], np.ones((3, 5), np.float32))
    wrong, _ = made([one("d", "w")], np.ones((1, 9), np.float32), 4)
    n = [5]
    there = [rows[0], {**rows[1], "text": "B"}, {**rows[2], "key": key_of("q")}, *wrong]
    script.answers["query"] = lambda _, output_fields, **__: (
        [{"count(*)": n[0]}] if output_fields == ["count(*)"] else there
    )
    problems = verify_index(folder)
    assert [problem.removeprefix(str(ADDRESS)) for problem in problems] == [
        " is damaged: candidate 'y' is not what was written; add it again, or build the index again",
        ": candidate 'z' has the wrong key; add it again",
        ": candidate 'w' has the wrong key; add it again",
        " lists 4 candidates but counts 5; build it again",
    ]
    there, n[0] = rows, 3
    assert verify_index(folder) == []
    (there, _), n[0] = made([one("a", "x")], np.full((1, 5), 7.2, np.float32)), 1
    assert verify_index(folder) == [f"{ADDRESS}: candidate 'x' has a longer vector than recorded; add it again"]


# --- changes ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def held(script: Script, folder: Path) -> dict[str, dict[str, Any]]:
    """Rows of a scripted server that stores what it receives, by key."""
    rows: dict[str, dict[str, Any]] = {}

    def upsert(_: str, data: list[dict[str, Any]], **__: Any) -> dict[str, int]:
        rows.update({row["key"]: row for row in data})
        return {"upsert_count": len(data)}

    def delete(_: str, ids: list[str], **__: Any) -> None:
        for key in ids:
            del rows[key]

    script.answers |= {"upsert": upsert, "delete": delete}
    script.answers["get"] = lambda _, ids, **__: [rows[key] for key in ids if key in rows]
    script.answers["query"] = lambda *_, **__: [{"count(*)": len(rows)}]
    return rows


def test_changes_are_counted_and_keep_their_order(script: Script, folder: Path, held: dict[str, Any]) -> None:
    vectors = np.ones((600, 5), np.float32)
    pool = [one(f"text {i}", f"c{i}") for i in range(600)]
    with RemoteWriter(folder, fingerprint="f" * 64) as writer:
        before = writer.change
        assert writer.add(pool, vectors) == writer.change == before + 2  # one of them for the lookup before the change
        assert [len(arguments[1]) for name, arguments, _ in script.asked if name == "upsert"] == [512, 88]
        assert (len(writer), writer.fingerprint) == (600, "f" * 64)
        numbers = [held[key_of(candidate.id)]["row"] for candidate in pool]
        assert numbers == list(range(numbers[0], numbers[0] + 600))
        with pytest.raises(DataError, match=r"candidate 1: id 'c7' is already in the index; set `replace=True`"):
            writer.add([one("new", "new"), one("x", "c7")], vectors[:2])
        assert len(held) == 600
        writer.add([one("x", "c7")], vectors[:1], replace=True)
        assert held[key_of("c7")]["row"] > numbers[-1]  # after all others
        assert writer.find(["c7"]) == {"c7": one("x", "c7")}
        change = writer.change
        assert writer.remove(["none"]) == 0
        assert writer.change == change
        assert writer.remove([candidate.id for candidate in pool] + ["none"]) == 600
        assert writer.change == change + 1
        assert [len(settings["ids"]) for settings in script.of("delete")] == [512, 88]
        assert held == {}
        writer.compact()
        assert len(script.of("flush")) == 1
        with pytest.raises(UsageError, match=f"is on {ADDRESS}; back up the server, or write"):
            writer.snapshot("copy")
        with pytest.raises(LockedError, match="is being written to"):
            RemoteWriter(folder)
        with pytest.raises(LockedError, match="is being written to"):
            write(folder, pool, np.ones((len(pool), 5), np.float32), overwrite=True)
    with pytest.raises(ArtifactError, match="encoder"):
        RemoteWriter(folder, fingerprint="e" * 64)
    RemoteWriter(folder).close()  # the lock is free


def test_rows_added_within_a_microsecond_keep_their_order(
    script: Script, folder: Path, held: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    monkeypatch.setattr(time, "time_ns", lambda: 5_000_999)
    with RemoteWriter(folder) as writer:
        writer.add([one("a", "a"), one("b", "b")], np.ones((2, 5), np.float32))
        writer.add([one("c", "c")], np.ones((1, 5), np.float32))
    numbers = [held[key_of(name)]["row"] for name in "abc"]
    assert numbers[:2] == [5000, 5001]
    assert numbers[2] > 5001


def test_a_failure_reports_the_acknowledged_rows(script: Script, folder: Path) -> None:
    script.answers["get"] = []
    script.answers["upsert"] = iter([{"upsert_count": 512}, refused(65535)])
    with RemoteWriter(folder) as writer:
        change = writer.change
        with pytest.raises(ResourceError, match=r"\(512 of 600 candidates were acknowledged; add them all again"):
            writer.add([one("a", f"c{i}") for i in range(600)], np.ones((600, 5), np.float32))
        assert writer.change == change + 1


def test_wrong_input_is_reported_before_any_write(script: Script, folder: Path, held: dict[str, Any]) -> None:
    vectors = np.ones((4, 5), np.float32)
    vectors[3] = np.nan
    with RemoteWriter(folder) as writer, pytest.raises(DataError) as error:
        writer.add([one("a", "a"), one("", "b"), one("é" * 40_000, "c"), one("d", "d")], vectors)
    assert all(f"candidate {number}" in str(error.value) for number in (1, 2, 3))
    assert "candidate 0" not in str(error.value)
    assert held == {}


def write(path: Path, candidates: Sequence[Candidate], vectors: Any, **settings: Any) -> None:
    write_remote(path, ADDRESS, candidates, vectors, fingerprint="f" * 64, model="nowhere", **settings)


def test_an_index_is_built_under_a_temporary_name_and_renamed_at_the_end(
    script: Script, tmp_path: Path, held: dict[str, Any]
) -> None:
    script.answers["describe_collection"] = refused(100)
    pool = [one(f"text {i}", f"c{i}") for i in range(5)]
    script.asked.clear()
    write(tmp_path / "new", pool, iter([np.ones((3, 5), np.float32), np.ones((2, 5), np.float32)]), ann="hnsw")
    names = [name for name, *_ in script.asked]
    made = ["create_collection", "create_index", "load_collection", "alter_collection_properties"]
    assert names == ["describe_collection", *made, "upsert", "upsert", "flush", "create_alias", "close", "close"]
    collection = script.asked[1][1][0]
    assert collection.startswith("replies_")
    assert {arguments[0] for _, arguments, _ in script.asked[1:-2]} == {collection}
    said = json.loads(script.of("create_collection")[0]["properties"]["polyrank"])
    assert (said["fingerprint"], said["model"], said["format"], said["dimension"]) == ("f" * 64, "nowhere", 4, 5)
    assert script.of("create_collection")[0]["schema"].to_dict()["fields"][-1]["params"]["dim"] == 8
    (index,) = script.asked[2][1][1]
    assert index.index_type == "HNSW"
    assert [len(row["vector"]) for row in held.values()] == [8] * 5
    assert [held[key_of(candidate.id)]["row"] for candidate in pool] == [1, 2, 3, 4, 5]
    assert read_address(tmp_path / "new") == ADDRESS


def test_an_index_replaces_another(script: Script, tmp_path: Path, held: dict[str, Any]) -> None:
    describe(script, "old")
    pool, vectors = [one("a", "a")], np.ones((1, 5), np.float32)
    with pytest.raises(UsageError, match=f"{ADDRESS} already exists; choose another name or pass `overwrite=True`"):
        write(tmp_path / "new", pool, vectors)
    assert script.of("create_collection") == []
    script.asked.clear()
    write(tmp_path / "new", pool, vectors, overwrite=True)
    assert [name for name, *_ in script.asked][-5:] == ["flush", "alter_alias", "drop_collection", "close", "close"]
    assert script.asked[-3][1] == ("old",)
    with pytest.raises(UsageError, match="already exists"):
        write(tmp_path / "new", pool, vectors)
    write(tmp_path / "new", pool, vectors, overwrite=True)  # and its folder
    assert read_address(tmp_path / "new") == ADDRESS


def test_the_names_of_an_index_are_dropped_before_its_collection(script: Script, folder: Path) -> None:
    script.answers["list_aliases"] = {"aliases": ["replies", "other"]}
    script.answers["list_collections"] = ["replies_1"]
    assert list_collections(ADDRESS) == [StoredCollection("replies_1", ("replies", "other"))]
    script.asked.clear()
    drop_collection(ADDRESS)
    assert [(name, arguments) for name, arguments, _ in script.asked if name.startswith("drop")] == [
        ("drop_alias", ("replies",)),
        ("drop_alias", ("other",)),
        ("drop_collection", ("replies_1",)),
    ]


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([np.ones((2, 5)), np.array([[1.0] * 5, [np.inf] * 5])], "candidate 3"),
        ([np.ones((2, 5)), np.ones((2, 4))], "4"),
        ([np.ones((2, 5)), np.ones((1, 5))], "1"),
        ([np.ones((2, 5)), np.ones((3, 5))], "3"),
    ],
)
def test_a_failed_build_leaves_nothing(
    script: Script, tmp_path: Path, held: dict[str, Any], parts: list[Any], problem: str
) -> None:
    script.answers["describe_collection"] = refused(100)
    pool = [one("a", f"c{i}") for i in range(4)]
    with pytest.raises(DataError, match=problem):
        write(tmp_path / "new", pool, iter(parts))
    assert [name for name, *_ in script.asked][-3:] == ["drop_collection", "close", "close"]
    assert script.asked[-3][1] == script.asked[1][1]  # the new collection is dropped
    assert not (tmp_path / "new").exists()


def test_wrong_settings_are_refused_before_the_first_request(script: Script, tmp_path: Path) -> None:
    vectors = np.ones((1, 5), np.float32)
    for pool, settings, problem in (
        ([one("a")], {"ann": "auto"}, "a remote index cannot have index type 'auto'; use none, flat, hnsw, sq8"),
        ([], {}, "cannot be built from 0 candidates; pass at least one"),
    ):
        with pytest.raises(UsageError, match=problem):
            write(tmp_path / "new", pool, vectors, **settings)
    with pytest.raises(DataError, match="candidate 0"):
        write(tmp_path / "new", [one("")], vectors)
    assert script.asked == []
    assert script.made == []
