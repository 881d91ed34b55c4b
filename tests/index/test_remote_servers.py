"""A Milvus server as it is run: its collections, databases, kinds of indexes, certificates and credentials."""

import base64
import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from milvus import Milvus
from polyrank.cli.commands import app
from polyrank.errors import ArtifactError, OfflineError, UsageError
from polyrank.index import open_index
from polyrank.index.remote import (
    Address,
    RemoteIndex,
    RemoteWriter,
    drop_collection,
    find_collection,
    list_collections,
    write_remote,
)
from polyrank.index.remote.milvus import MilvusCollection
from polyrank.records import Candidate
from polyrank.search import NearestSearch

pytest.importorskip("pymilvus", reason="pymilvus is not installed; install polyrank[milvus]")
pytest.importorskip("milvus_lite", reason="milvus-lite, the server of these tests, is not installed")

POOL = [Candidate("a", "one"), Candidate("b", "two")]
VECTORS = np.eye(2, dtype=np.float32)


def build(path: Path, address: Address, **settings: Any) -> str:
    """Build an index; returns the name of its collection."""
    write_remote(path, address, POOL, VECTORS, fingerprint="f" * 64, model="m", **settings)
    with RemoteIndex(path) as index:
        return index.collection


def orphan(address: Address) -> Address:
    """A collection as an interrupted build leaves it."""
    with MilvusCollection(address).of(f"{address.collection}_0a1b2c3d") as server:
        server.create(width=2, kind="FLAT", n=1, info="{}")
        return server.address


def foreign(address: Address) -> Address:
    """A collection that polyrank did not make."""
    other = Address(address.uri, f"{address.collection}_of_others", address.database)
    with contextlib.closing(MilvusCollection(other)) as server:
        server._call("create_collection", other.collection, dimension=2)
    return other


# --- collections ------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_collections_are_listed_with_the_index_that_uses_them(milvus: Milvus, tmp_path: Path) -> None:
    address = milvus.address()
    name = build(tmp_path / "ix", address)
    lost, other = orphan(address), foreign(address)
    found = {one.name: one for one in list_collections(Address(address.uri, ""))}
    assert found[name].indexes == (address.collection,)
    assert found[lost.collection].indexes == ()
    assert other.collection not in found
    assert list(found) == sorted(found)


@pytest.mark.deep
def test_an_orphan_and_an_index_are_dropped_and_nothing_else(milvus: Milvus, tmp_path: Path) -> None:
    address = milvus.address()
    name = build(tmp_path / "ix", address)
    lost, other = orphan(address), foreign(address)
    with pytest.raises(ArtifactError, match="is not an index of polyrank"):
        drop_collection(other)
    with pytest.raises(UsageError, match=f"holds the index {address.collection}; drop the index by that name"):
        drop_collection(Address(address.uri, name))
    with open_index(tmp_path / "ix") as index:
        assert len(index) == 2
    drop_collection(lost)
    with pytest.raises(ArtifactError, match="does not exist"):
        drop_collection(lost)
    assert find_collection(address).name == name
    drop_collection(address)
    assert not {name, lost.collection} & {one.name for one in list_collections(address)}
    with pytest.raises(ArtifactError, match="does not exist; build it"):
        open_index(tmp_path / "ix")
    with contextlib.closing(MilvusCollection(address)) as server:
        assert other.collection in server._call("list_collections")
    build(tmp_path / "again", address)  # the name is free


@pytest.mark.deep
def test_the_command_builds_an_index_on_the_server(milvus: Milvus, tmp_path: Path) -> None:
    address = milvus.address()
    (tmp_path / "replies.txt").write_text("restart it\nthanks\n", "utf-8")
    line = ["index", "build", "shipped:convert", str(tmp_path / "replies.txt"), "-o", str(tmp_path / "ix")]
    assert CliRunner().invoke(app, [*line, "--remote", str(address)]).exit_code == 0
    with RemoteIndex(tmp_path / "ix") as index:
        assert index.collection in {found.name for found in list_collections(address)}
        assert len(index) == 2


def test_commands_list_and_drop_collections(milvus: Milvus, tmp_path: Path) -> None:
    address = milvus.address()
    name = build(tmp_path / "ix", address)
    lost = orphan(address)
    runner = CliRunner()
    lines = runner.invoke(app, ["index", "remote-list", address.uri]).stdout.splitlines()
    assert {f"{name}\t{address.collection}", f"{lost.collection}\t"} <= set(lines)
    refused = runner.invoke(app, ["index", "remote-drop", str(lost)]).exception  # no terminal to ask in
    assert str(refused) == f"{lost} would be deleted; confirm it with --yes"
    assert lost.collection in {found.name for found in list_collections(address)}
    assert runner.invoke(app, ["index", "remote-drop", str(lost), "--yes"]).exit_code == 0
    assert lost.collection not in {found.name for found in list_collections(address)}


# --- databases --------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_indexes_of_two_databases_are_apart(milvus: Milvus, tmp_path: Path) -> None:
    address = milvus.address()
    shop = Address.of(f"{address.uri}/shop/{address.collection}")
    with contextlib.closing(MilvusCollection(address)) as server:
        server._call("create_database", "shop")
    build(tmp_path / "ix", address)
    build(tmp_path / "shop", shop)
    with RemoteWriter(tmp_path / "shop") as writer:
        writer.remove(["a"])
    with open_index(tmp_path / "ix") as index, open_index(tmp_path / "shop") as other:
        assert (len(index), len(other)) == (2, 1)
        assert other.info()["remote"] == str(shop)
    assert {one.indexes for one in list_collections(Address.of(f"{address.uri}/shop/", named=False))} == {
        (shop.collection,)
    }
    drop_collection(shop)
    with open_index(tmp_path / "ix") as index:
        assert len(index) == 2


# --- kinds of indexes -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def in_process(servicer: Any, folder: Path, **settings: Any) -> Iterator[int]:
    """A Milvus Lite in this process whose methods a test may change. Yields its port.

    Args:
        servicer: makes the methods of a database.
        folder: of the data.
        settings: ``interceptors`` and ``credentials`` of the server.
    """
    import grpc
    from milvus_lite.db import MilvusLite
    from pymilvus.grpc_gen import milvus_pb2_grpc

    database, credentials = MilvusLite(str(folder)), settings.pop("credentials", None)
    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads, **settings)
        milvus_pb2_grpc.add_MilvusServiceServicer_to_server(servicer(database), server)
        local = "127.0.0.1:0"
        port = server.add_secure_port(local, credentials) if credentials else server.add_insecure_port(local)
        server.start()
        yield port
        server.stop(grace=None).wait()
    database.close()


@pytest.mark.parametrize(
    ("ann", "kind", "searched"),
    [("diskann", "DISKANN", {"search_list": 128}), ("ivfpq", "IVF_PQ", {"nprobe": 64}), ("", "FLAT", {})],
)
def test_a_server_gets_the_kind_of_index(tmp_path: Path, ann: str, kind: str, searched: dict[str, int]) -> None:
    """A server that claims not to be a Milvus Lite, and records what it is sent."""
    from milvus_lite.adapter.grpc.servicer import MilvusServicer
    from pymilvus.grpc_gen import common_pb2, milvus_pb2

    sent: dict[str, Any] = {}

    def values(pairs: Any) -> dict[str, str]:
        return {pair.key: pair.value for pair in pairs}

    def recorder(database: Any) -> Any:
        servicer = MilvusServicer(database)

        def recorded(name: str, method: Any) -> Any:
            def answer(request: Any, context: Any) -> Any:
                sent[name] = request
                return method(request, context)

            return answer

        for name in ("CreateIndex", "Search"):
            setattr(servicer, name, recorded(name, getattr(servicer, name)))
        version = milvus_pb2.GetVersionResponse(status=common_pb2.Status(), version="v2.6.0")
        servicer.GetVersion = lambda *_: version
        return servicer

    with in_process(recorder, tmp_path / "data") as port:
        build(tmp_path / "ix", Address(f"http://127.0.0.1:{port}", "replies"), ann=ann)
        assert values(sent["CreateIndex"].extra_params)["index_type"] == kind
        with open_index(tmp_path / "ix") as index:
            ((found, result),) = index.search(NearestSearch(np.eye(2)[None, :1], np.ones((1, 1), np.bool_), 2))
        assert [one.id for one in found] == ["a", "b"]
        assert (result.exact, result.ways) == (not ann, (f"remote {kind.lower()}",))
        assert json.loads(values(sent["Search"].search_params)["params"]) == {"metric_type": "IP", **searched}


def test_milvus_lite_names_what_it_offers(milvus: Milvus, tmp_path: Path) -> None:
    address = milvus.address()
    with pytest.raises(UsageError, match="is a Milvus Lite, which offers the index types flat, hnsw, sq8; use"):
        build(tmp_path / "ix", address, ann="diskann")
    assert not [one for one in list_collections(address) if one.name.startswith(address.collection + "_")]


# --- certificates and credentials -------------------------------------------------------------------------------------

SECRET = "root:a-secret"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A private key, and a certificate for 127.0.0.1 that no system trusts."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("certificate")
    key, own = folder / "key.pem", folder / "own.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", own]
    subprocess.run(
        [*command, "-days", "1", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True,
        capture_output=True,
    )
    return key, own


@pytest.fixture
def secured(certificate: tuple[Path, Path], tmp_path: Path) -> Iterator[Address]:
    """A server that encrypts and requires credentials."""
    import grpc
    from milvus_lite.adapter.grpc.servicer import MilvusServicer

    class Guard(grpc.ServerInterceptor):  # type: ignore[misc]  # grpc ships no types
        def intercept_service(self, continuation: Any, call: Any) -> Any:
            said = dict(call.invocation_metadata).get("authorization", "")
            if said == base64.b64encode(SECRET.encode()).decode():
                return continuation(call)
            return grpc.unary_unary_rpc_method_handler(
                lambda _, context: context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")
            )

    key, own = (file.read_bytes() for file in certificate)
    credentials = grpc.ssl_server_credentials([(key, own)])
    with in_process(MilvusServicer, tmp_path / "data", interceptors=[Guard()], credentials=credentials) as port:
        yield Address(f"https://127.0.0.1:{port}", "replies")


@pytest.mark.deep
def test_a_server_with_its_own_certificate_and_credentials(
    secured: Address, certificate: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYRANK_MILVUS_TOKEN", SECRET)
    monkeypatch.setenv("POLYRANK_MILVUS_URI", f"{secured.uri}/")
    with pytest.raises(OfflineError, match="set POLYRANK_MILVUS_CA if its certificate is your own"):
        build(tmp_path / "ix", secured, timeout_s=1)
    monkeypatch.setenv("POLYRANK_MILVUS_CA", str(certificate[1]))
    build(tmp_path / "ix", secured)
    with open_index(tmp_path / "ix") as index:
        assert [candidate for _, candidate in index.iter_candidates()] == POOL
        assert SECRET not in repr(index) + str(index.info())
    assert SECRET.encode() not in (tmp_path / "ix" / "remote.json").read_bytes()
    monkeypatch.setenv("POLYRANK_MILVUS_URI", "https://milvus.example.org")  # the token is for another server
    with pytest.raises(UsageError, match="refuses the credentials"):
        open_index(tmp_path / "ix")
    monkeypatch.setenv("POLYRANK_MILVUS_URI", secured.uri)
    monkeypatch.setenv("POLYRANK_MILVUS_TOKEN", "root:wrong-secret")
    with pytest.raises(UsageError, match="refuses the credentials; set POLYRANK_MILVUS_TOKEN") as error:
        open_index(tmp_path / "ix")
    assert "secret" not in str(error.value)
