"""Requests of one client that could block others: each is refused or answered at little cost."""

import asyncio
import base64
import contextlib
import gzip
import json
import os
import re
import shutil
import socket
import sqlite3
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import example, given, strategies as st

import polyrank
from polyrank.config.serving import FeedbackSettings, LimitSettings
from polyrank.errors import DataError, DeadlineError, ReadOnlyError, ResourceError, UsageError
from polyrank.feedback import Outcome, Reply, Shown
from polyrank.index.checks import MAX_DEPTH, MAX_METADATA_BYTES, candidate_faults
from polyrank.serving import feedback_log
from polyrank.serving.errors import HttpError, http_error
from polyrank.serving.feedback_log import FeedbackLog
from polyrank.serving.guard import Guard
from polyrank.serving.keys import Keys
from polyrank.serving.routes.ranking import uncalibrated
from polyrank.serving.strict import read_json
from polyrank.storage.sqlite import connect, sqlite_errors
from polyrank.storage.time_limit import TimeLimit, limit_searches, limited_search
from servers import Running, serving
from serving_here import serving_here

JSON = {"content-type": "application/json"}
READER, WRITER, ACCENTED = "a-key-that-reads-only", "a-key-that-writes-too", "clé-d-accès-très-longue"
LARGE = {"tags": [f"tag {i}" for i in range(4_000)]}  # metadata of about 45 KB
SLOW = " or ".join(f'tags > "zone {i}"' for i in range(60))
SETTINGS = """
[limits]
filter_timeout_s = 0.2
[feedback]
file = "feedback.db"
"""


@pytest.fixture(scope="module")
def folder(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    texts = ["restart the router", "pay the bill", "the light is red"]
    candidates = [polyrank.Candidate(f"r{i}", text) for i, text in enumerate(texts)]
    candidates += [polyrank.Candidate(f"large{i}", f"hello {i}", LARGE) for i in range(60)]
    polyrank.build_index(folder / "index", polyrank.load(f"untuned:{tiny_backbone}"), candidates)
    shutil.copytree(folder / "index", folder / "keyed")
    (folder / "settings.toml").write_text(SETTINGS, "utf-8")
    (folder / "keys").write_text(f"{ACCENTED}\nshop read {READER}\nteam write {WRITER}\n", "utf-8-sig")
    (folder / "keys").chmod(0o644)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    with serving_here(f"support={folder / 'index'}", config=folder / "settings.toml") as running:
        yield running


@pytest.fixture
def client(server: Running) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client
        assert client.post("/v1/respond", json={"context": "hi", "k": 1}).status_code == 200


def cpu_s(server: Running) -> float:
    """Processor seconds of the event loop's process."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def message(answer: httpx.Response) -> str:
    body = answer.json()
    return str(body.get("message") or body["error"]["message"])


@pytest.mark.deep
def test_a_list_of_wrong_types_costs_little(folder: Path) -> None:
    with serving(f"support={folder / 'index'}", "--config", folder / "settings.toml") as server, server.client() as one:
        for path, field in (("/v2/rerank", "documents"), ("/v1/score", "candidates")):
            first = {"query": "a"} if field == "documents" else {"context": "a"}
            before = cpu_s(server)
            for n, said in [
                (1_300_000, f"{field} has 1,300,000 entries, the limit is 2,048"),
                (90_000, f"{field} has 90,000 entries, the limit is 2,048"),
            ]:
                answer = one.post(path, content=json.dumps({**first, field: [1] * n}), headers=JSON)
                assert (answer.status_code, said in message(answer)) == (422, True), message(answer)
            wrong = one.post(path, json={**first, field: [1] * 2_000})
            assert f"{field}[0]" in message(wrong)
            assert f"{field}[1]" not in message(wrong)  # only the first error is reported
            assert cpu_s(server) - before < 2  # it was 100 once


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"context": "a", **{f"x{i}": 1 for i in range(70)}}, "the body has 71 fields, the limit is 64"),
        ({"context": ["a"] * 1_001}, "context has 1,001 turns, the limit is 1,000"),
        ({"context": "a" * 100_001}, "context has 100,001 characters"),
        ({"candidates": [{"id": "a" * 100_001}]}, "candidates[0].id has 100,001 characters"),
        ({"shown": [[[[[[[[[[1]]]]]]]]]]}, "is nested deeper than 8"),
    ],
)
def test_limits_come_before_fields(body: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=said.replace("[", r"\[")):
        read_json(json.dumps(body).encode(), LimitSettings())


def test_a_long_conversation_is_not_explained(client: httpx.Client) -> None:
    answer = client.post("/v1/explain", json={"context": ["a " * 30_000] * 2, "text": "hi"})
    assert (answer.status_code, "context has 120,002 characters in all" in message(answer)) == (422, True)


def test_values_within_texts_are_not_counted() -> None:
    text = "[1,2," * 10_000
    assert read_json(json.dumps({"context": text}).encode(), LimitSettings(values=10)) == {"context": text}


def test_trailers_end_at_a_limit(server: Running, client: httpx.Client) -> None:
    head = b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    for part in (b"x: " + b"a" * 65_536, b"x: a\r\n" * 10_000):  # one long line, or many
        with socket.create_connection(server.address, timeout=30) as connection:
            connection.sendall(head + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n")
            n_sent = 0
            with contextlib.suppress(ConnectionError):  # closed
                while n_sent < 2**26:
                    n_sent += connection.send(part)
                    part = b"a" * 65_536 if part.startswith(b"x: aa") else part
            assert n_sent < 2**26


@pytest.mark.parametrize(("n_chunks", "status"), [(4_000, b"200"), (20_000, b"400")])
def test_a_body_comes_in_a_limited_number_of_chunks(server: Running, n_chunks: int, status: bytes) -> None:
    body = b'{"context": "hi", "candidates": ["a"]}' + b" " * n_chunks
    head = b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.create_connection(server.address, timeout=30) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(head + b"transfer-encoding: chunked\r\n\r\n")
        connection.sendall(b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
        assert connection.makefile("rb").readline().split()[1] == status


def test_an_upgrade_is_ignored(server: Running, client: httpx.Client) -> None:
    body = b'{"context": "hi", "candidates": ["restart the router"]}'
    lines = b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nupgrade: h2c\r\n"
    lines += b"connection: Upgrade, HTTP2-Settings\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
    request = lines + b"content-length: %d\r\n\r\n" % len(body) + body
    expected = client.post("/v1/score", content=body, headers=JSON).json()["scores"]
    for parts in ([request, request], [request[:30], request[30:200], request[200:]]):  # also split over packets
        with socket.create_connection(server.address, timeout=30) as connection:
            for part in parts:
                connection.sendall(part)
            reader = connection.makefile("rb")
            for _ in range(2 if parts[0] == request else 1):
                assert reader.readline().startswith(b"HTTP/1.1 200")
                length = 0
                while (line := reader.readline()) != b"\r\n":
                    length = int(line[16:]) if line.startswith(b"content-length: ") else length
                assert json.loads(reader.read(length))["scores"] == expected


def test_metadata_end_at_a_limit(client: httpx.Client) -> None:
    deep: Any = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    fitting = {"a": "x" * (MAX_METADATA_BYTES - 9)}
    for metadata, said in [
        (fitting, None),
        (
            {"a": "x" * MAX_METADATA_BYTES},
            f"metadata have {MAX_METADATA_BYTES + 9:,} bytes as JSON, the limit is 65,536",
        ),
        ({"a": deep}, "metadata are nested deeper than 16"),
    ]:
        faults = candidate_faults([polyrank.Candidate("a", "b", metadata)])  # also used by importers and index add
        assert said is None if not faults else said is not None and said in faults[0]
        answer = client.post("/v1/candidates", json={"candidates": [{"id": "m", "text": "b", "metadata": metadata}]})
        assert answer.status_code == (200 if said is None else 422)
        assert said is None or said in message(answer)
    assert client.delete("/v1/candidates/m").json()["removed"] == 1


@pytest.mark.deep
def test_a_filter_has_a_deadline(client: httpx.Client) -> None:
    asked = {"context": "hi", "filter": SLOW}
    for answer in (client.post("/v1/respond", json=asked), client.get("/v1/candidates", params={"filter": SLOW})):
        assert answer.status_code == 504, answer.text
        assert answer.json()["error"]["message"].startswith("the search took longer than 0.2 s")
    assert client.post("/v1/respond", json={"context": "hi", "filter": "not exists tags"}).status_code == 200


def counting(path: Path) -> sqlite3.Connection:
    """A table of one row; ``ENDLESS`` counts forever."""
    connection = connect(path, "rwc")
    connection.execute("CREATE TABLE IF NOT EXISTS t (a)")
    return connection


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


def test_a_search_ends_at_its_deadline_or_when_its_client_leaves(tmp_path: Path) -> None:
    connection = counting(tmp_path / "db")
    limit = TimeLimit(0.05)
    late = pytest.raises(DeadlineError, match=r"longer than 0.05 s")
    with limit_searches(limit), late, sqlite_errors(tmp_path, "-"), limited_search():
        connection.execute(ENDLESS)
    limit = TimeLimit(600)
    threading.Timer(0.05, limit.cancel).start()
    with limit_searches(limit), pytest.raises(DeadlineError), sqlite_errors(tmp_path, "-"), limited_search():
        connection.execute(ENDLESS)
    connection.close()


def test_a_read_only_disk_is_named(tmp_path: Path) -> None:
    counting(tmp_path / "db").close()
    connection = connect(tmp_path / "db", "ro")
    with pytest.raises(ReadOnlyError, match="make it writable") as error, sqlite_errors(tmp_path, "-"):
        connection.execute("INSERT INTO t VALUES (1)")
    connection.close()
    answer = http_error(error.value)
    assert (answer.status, answer.message) == (507, "the server's disk cannot be written to; nothing was written")


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as on a read-only disk; root passes all other checks
    with pytest.raises(ReadOnlyError, match="make it writable"), sqlite_errors(tmp_path / "db", "-"):
        sqlite3.connect(tmp_path / "missing" / "db")


def test_requests_of_disconnected_clients_are_cancelled() -> None:
    """For every method, since a GET may also search for long."""
    ended: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(scope["method"])
            raise

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    guard = Guard(
        app,
        keys=Keys(),
        limits=LimitSettings(),
        check_capacity=lambda: None,
        on_answer=lambda route, status, seconds: None,
        computing=frozenset(),
        changes=lambda method, path: False,
    )
    scope = {"type": "http", "method": "GET", "path": "/v1/candidates", "headers": [(b"host", b"localhost")]}
    asyncio.run(asyncio.wait_for(guard(scope, receive, send), 30))
    assert ended == ["GET"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("threshold", [0.0, -2.5, 1e5])
@given(scores=st.lists(st.floats(-1e6, 1e6).map(lambda score: round(score, 3)), min_size=2, unique=True))
@example(scores=[999_999.0, 1e6])
def test_shares_keep_the_order_of_scores(scores: list[float], threshold: float, dtype: type[np.floating]) -> None:
    """Where a sigmoid is 1.0 for all scores above 37."""
    values = np.unique(np.array(scores, dtype))  # the smallest first
    shares = uncalibrated(values, threshold).tolist()
    assert shares == sorted(set(shares))
    assert 0 < shares[0] <= shares[-1] < 1
    assert [share >= 0.5 for share in shares] == (values >= threshold).tolist()


def shown(number: int, characters: int = 10) -> Shown:
    return Shown(f"request-{number}", (Reply("a", 1.0, "x" * characters),))


def test_waiting_feedback_is_written_with_one_sync(tmp_path: Path) -> None:
    log = FeedbackLog(FeedbackSettings(file=str(tmp_path / "feedback.db")))
    commits: list[str] = []
    log.store._connection.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
    other = sqlite3.connect(tmp_path / "feedback.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # the disk is busy
    for number in range(300):
        log.show(shown(number))
    other.execute("COMMIT")
    other.close()
    assert asyncio.run(log.record(Outcome("request-299", "taken", "a"))) == 1
    assert len(log.store) == 300
    assert len(commits) <= 3
    log.close()


def test_a_full_disk_loses_no_shown_reply(tmp_path: Path) -> None:
    log = FeedbackLog(FeedbackSettings(file=str(tmp_path / "feedback.db"), keep_text=True))
    pages = log.store._connection.execute("PRAGMA page_count").fetchone()[0]
    log.store._connection.execute(f"PRAGMA max_page_count={pages}")
    log.show(shown(1, 100_000))
    with pytest.raises(ResourceError):  # status 507
        asyncio.run(log.record(Outcome("request-1", "taken", "a")))
    log.store._connection.execute("PRAGMA max_page_count=1000000")
    assert asyncio.run(log.record(Outcome("request-1", "taken", "a"))) == 1
    assert len(log) == 0
    log.close()


def test_feedback_waiting_for_the_disk_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feedback_log, "MAX_SHOWN", 20)
    log = FeedbackLog(FeedbackSettings(file=str(tmp_path / "feedback.db")))
    other = sqlite3.connect(tmp_path / "feedback.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for number in range(25):
        log.show(shown(number))
    assert (len(log), log.n_lost) == (20, 5)
    other.execute("COMMIT")
    other.close()
    with pytest.raises(ResourceError, match="send them with the outcome"):
        asyncio.run(log.record(Outcome("request-24", "taken", "a")))
    with pytest.raises(DataError, match="reply 'b' was not shown for request 'request-3'"):  # another fault
        asyncio.run(log.record(Outcome("request-3", "taken", "b")))
    log.close()


def test_texts_waiting_for_the_disk_are_limited(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = FeedbackLog(FeedbackSettings(file=str(tmp_path / "feedback.db")))
    other = sqlite3.connect(tmp_path / "feedback.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for number in range(20):  # 17 of them fit into 16 MiB
        log.show(shown(number, 980_000))
    assert (len(log), log.n_lost) == (17, 3)
    assert caplog.messages[-1] == "shown replies are not recorded: 17 lists wait already, 3 are lost"
    other.execute("COMMIT")
    other.close()
    log.close()
    assert not log._waiting


class Measured(str):
    """A text whose length a thread computes while the main thread does something else."""

    __slots__ = ()
    begun, done = threading.Event(), threading.Event()

    def __len__(self) -> int:
        if threading.current_thread() is not threading.main_thread():
            self.begun.set()
            self.done.wait(60)
        return super().__len__()


def test_texts_that_begin_to_wait_while_others_are_written_are_counted(tmp_path: Path) -> None:
    log = FeedbackLog(FeedbackSettings(file=str(tmp_path / "feedback.db"), keep_text=True))
    log.show(Shown("first", (Reply("a", 1.0, Measured("x")),)))
    assert Measured.begun.wait(60)
    log.show(shown(2))
    Measured.done.set()
    log.close()
    assert log._n_queued == log._n_written


def test_the_file_and_each_key_have_a_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = FeedbackLog(FeedbackSettings(file=str(tmp_path / "feedback.db"), key_bytes=5_000, file_bytes=200_000))
    log.show(shown(1, 3_000), "ann")
    assert asyncio.run(log.record(Outcome("request-1", "taken", "a"), key="ann")) == 1
    with pytest.raises(HttpError, match=r"this key's feedback of today has reached 5,000 bytes; wait, or") as refused:
        asyncio.run(log.record(shown(2, 3_000), key="ann"))
    assert refused.value.status == 429
    assert 1 <= int(refused.value.headers["retry-after"]) <= 86_400
    log.show(shown(3, 3_000), "ann")  # the answer is sent all the same
    assert log.n_lost == 1
    assert "today has reached" in caplog.messages[-1]
    assert asyncio.run(log.record(shown(2, 3_000), key="bob")) == 1
    log._day -= 1  # until the day ends
    assert asyncio.run(log.record(shown(3, 3_000), key="ann")) == 1
    log.store.record(*(shown(number) for number in range(4, 1_000)))
    with pytest.raises(HttpError, match=r"has 200,000 bytes; start a new one, or raise feedback.file_bytes") as full:
        asyncio.run(log.record(shown(1_000), key="carol"))
    assert full.value.status == 507
    log.close()


def test_replies_lost_at_the_end_are_counted_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = FeedbackLog(FeedbackSettings(file=str(tmp_path / "feedback.db"), keep_text=True))
    pages = log.store._connection.execute("PRAGMA page_count").fetchone()[0]
    log.store._connection.execute(f"PRAGMA max_page_count={pages}")  # a full disk
    for number in range(2):
        log.show(shown(number, 100_000))
    log.close()
    assert caplog.messages[0] == "shown replies cannot be recorded at present: ResourceError"
    assert caplog.messages[1:] == ["2 lists of shown replies could not be recorded"]


def test_a_context_too_long_for_feedback_is_refused_first(client: httpx.Client) -> None:
    batches = 'polyrank_batch_jobs_count{operation="respond"}'
    before = [line for line in client.get("/metrics").text.splitlines() if line.startswith(batches)]
    answer = client.post("/v1/respond", json={"context": ["x" * 95_000] * 11})
    assert (answer.status_code, "1,045,000 characters, the limit is 1,000,000" in message(answer)) == (422, True)
    assert [line for line in client.get("/metrics").text.splitlines() if line.startswith(batches)] == before
    assert client.post("/v1/respond", json={"context": ["", "hi"], "conversation": " "}).status_code == 200


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Forwarded-Host", "Forwarded", "Via"])
def test_without_keys_a_proxy_is_refused(client: httpx.Client, header: str) -> None:
    answer = client.delete("/v1/candidates/r0", headers={header: "for=192.0.2.1"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "no_keys")


@contextlib.contextmanager
def proxy(server: Running, added: dict[str, str]) -> Iterator[str]:
    """A reverse proxy on this machine, as nginx's ``proxy_pass``: the request names the server as its host."""

    class Forward(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            hop = {"host", "connection", "content-length"}
            headers = {name: value for name, value in self.headers.items() if name.lower() not in hop}
            headers |= {"connection": "close"} | added
            answer = upstream.request(self.command, server.url + self.path, headers=headers, content=body)
            self.send_response(answer.status_code)
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_POST = do_DELETE = do_PUT = do_GET  # noqa: N815  # the standard library's names

        def log_message(self, *_: object) -> None:
            pass

    with httpx.Client(timeout=60) as upstream, ThreadingHTTPServer(("127.0.0.1", 0), Forward) as own:
        threading.Thread(target=own.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{own.server_port}"
        own.shutdown()


@pytest.mark.deep
@pytest.mark.parametrize("added", [{}, {"x-forwarded-for": "192.0.2.1"}, {"via": "1.1 proxy"}])
def test_without_keys_a_proxy_passes_no_changes(server: Running, client: httpx.Client, added: dict[str, str]) -> None:
    """The defaults of nginx (nothing added), of HAProxy, Caddy and Traefik (addresses), and of Squid and Varnish."""
    before = client.get("/v1/candidates").json()["n_candidates"]
    with (
        proxy(server, added) as url,
        httpx.Client(base_url=url, headers={"host": "support.example"}, timeout=60) as stranger,
    ):
        one = {"candidates": [{"id": "foreign", "text": "send money"}], "replace": True}
        for key in ({}, {"authorization": "Bearer " + "k" * 32}, {"authorization": "Basic Og=="}):
            for answer in (
                stranger.post("/v1/candidates", json=one, headers=key),
                stranger.post("/v1/candidates/remove", json={"ids": ["r0"]}, headers=key),
                stranger.delete("/v1/candidates/r0", headers=key),
                stranger.put("/v1/candidates/r0", json={}, headers=key),
                stranger.post("//v1/candidates", json=one, headers=key),
                stranger.post("/v1//candidates", json=one, headers=key),
                stranger.post("/v1/%63andidates", json=one, headers=key),
            ):
                assert answer.status_code in (401, 403, 404, 405), answer.text
                assert server.key not in answer.text
        assert stranger.get("/openapi.json").status_code == (403 if added else 200)
    page = client.get("/v1/candidates").json()
    assert (page["n_candidates"], page["candidates"][0]["id"]) == (before, "r0")


def test_without_keys_the_printed_address_may_change_candidates(server: Running) -> None:
    assert len(server.key) >= 32
    with httpx.Client(base_url=server.url, timeout=60) as own:
        refused = own.delete("/v1/candidates/r0")
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert refused.headers["www-authenticate"].startswith("Basic ")  # so that browsers prompt for it
        assert own.post("/v1/candidates", json={"candidates": []}, auth=("", server.key)).status_code == 200
    with polyrank.Client(f"{server.url}/#key={server.key}") as client:
        assert client.add([{"id": "own", "text": "my text"}]) == ["own"]
        assert client.remove(["own"]) == 1
        assert server.key not in repr(client)
    with polyrank.Client(server.url) as client, pytest.raises(UsageError, match="the key that the server printed"):
        client.remove(["r0"])


def test_a_host_is_one_name_of_this_machine(server: Running, client: httpx.Client) -> None:
    for host in ("[::1].evil", "localhost.evil", "localhost:", "127.0.0.1:80:80", "[::1]x"):
        assert client.get("/v1/models", headers={"host": host}).status_code == 403, host
    for host in ("LOCALHOST", "127.0.0.1:80", "[::1]:8600"):
        assert client.get("/v1/models", headers={"host": host}).status_code == 200, host
    with socket.create_connection(server.address, timeout=30) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nhost: evil\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 400"


@pytest.mark.deep
def test_keys_have_rights_and_names(folder: Path) -> None:
    served = serving_here(f"support={folder / 'keyed'}", api_key_file=folder / "keys")
    with served as server, server.client() as client:
        server.wait_for("other users can read or write")

        def asked(method: str, path: str, key: str | bytes, **body: Any) -> int:
            value = key if isinstance(key, bytes) else f"Bearer {key}".encode()
            headers = {"authorization": value}
            return client.request(method, path, headers=headers, **({"json": body} if body else {})).status_code  # type: ignore[dict-item]

        assert asked("POST", "/v1/respond", READER, context="hi") == 200
        assert asked("DELETE", "/v1/candidates/none", READER) == 403
        assert asked("POST", "/v1/candidates", READER, candidates=[{"text": "a"}]) == 403
        assert asked("POST", "/v1/candidates/remove", READER, ids=["none"]) == 403
        assert asked("DELETE", "/v1/candidates/none", WRITER) == 200
        for header in (
            b"Bearer " + ACCENTED.encode(),
            b"Bearer " + ACCENTED.encode("latin-1"),
            b"Basic " + base64.b64encode(f"me:{ACCENTED}".encode()),
        ):
            assert asked("DELETE", "/v1/candidates/none", header) == 200
        assert asked("GET", "/v1/models", "a-key-that-is-no-key") == 401
        server.wait_for('"key": null')
        rows = [(row["key"], row["client"], row["status"]) for row in server.log if row.get("route")]
        assert {("shop", "127.0.0.1", 403), ("team", "127.0.0.1", 200), ("key-1", "127.0.0.1", 200)} <= set(rows)
        with polyrank.Client(server.url, api_key=READER) as reading:
            assert reading.models()[0].id == "support"
        for wrong in (None, "another-key-of-some-length"):
            with polyrank.Client(server.url, api_key=wrong) as refused, pytest.raises(UsageError, match="key"):
                refused.models()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("shop see a-key-that-reads-only", "line 1 of .* is not a key"),
        ("shop read short", "has 5 characters; use at least 16"),
        ("a read a-key-that-reads-only\na write another-key-of-length", "two keys with the name a"),
        ("two words-that-are-no-key", "line 1 of .* is not a key"),
    ],
)
def test_a_file_without_keys_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(UsageError, match=said):
        Keys.read(tmp_path / "keys")


def test_adding_the_same_again_changes_nothing(client: httpx.Client) -> None:
    body = {"candidates": [{"id": "line\nbreak", "text": "please restart", "metadata": {"a": 1}}]}
    first, second = (client.post("/v1/candidates", json=body) for _ in range(2))
    assert (first.status_code, second.status_code, first.json()) == (200, 200, second.json())
    body["candidates"][0]["text"] = "please restart it"
    other = client.post("/v1/candidates", json=body)
    assert other.status_code == 422
    assert 'set `"replace": true` to replace it' in message(other)
    assert "--" not in message(other)  # an option of the command line
    assert client.get("/v1/candidates/line%0Abreak").json()["text"] == "please restart"
    assert client.delete("/v1/candidates/line%0Abreak").json()["removed"] == 1


def test_messages_mention_fields_and_routes(client: httpx.Client) -> None:
    """Never commands and their options, which clients do not use."""
    two = [{"id": "r0", "text": "a"}, {"id": "r0", "text": "b"}]
    context = {"context": "hi"}
    bodies: list[tuple[str, Any]] = [
        ("/v1/respond", context | {"filter": text})
        for text in ("a", "a =", "(", "a = 1 and", "b in ()", "a < null", " or ".join(["a = 1"] * 200), "a" * 5_000)
    ]
    bodies += [("/v1/respond", context | {"k": k}) for k in (0, 10**6, "five", 2_000)]
    bodies += [("/v1/respond", context | {"model": "none"}), ("/v1/respond", {"context": []})]
    bodies += [("/v1/explain", context | fields) for fields in ({}, {"text": "a", "id": "r0"}, {"id": "none"})]
    bodies += [
        ("/v1/candidates", {"candidates": rows})
        for rows in (two, [{"text": ""}], [{"id": "", "text": "a"}], [{"id": "r0", "text": "other"}], [{"id": "b"}])
    ]
    bodies += [("/v1/feedback", {"request_id": "none", "action": "taken"}), ("/v1/candidates/remove", {"ids": "a"})]
    answers = [client.post(path, json=body) for path, body in bodies]
    answers += [client.get(f"/v1/candidates{rest}") for rest in ("?filter=(", "?after=x", "?limit=0", "/none")]
    assert {answer.status_code for answer in answers} <= {400, 404, 422}
    for answer in answers:
        assert not re.search(r"(^| |`)--?[a-z]|polyrank [a-z]+|\.py\b|/tmp", message(answer)), message(answer)


def test_health_routes_of_other_services(client: httpx.Client) -> None:
    for path in ("/live", "/ready", "/health"):
        assert (client.head(path).status_code, client.head(path).content) == (200, b"")
        assert client.options(path).headers["allow"] == "GET, HEAD, OPTIONS"
    assert client.get("/health").content == b""
    info = client.get("/info").json()
    assert (info["model_id"], info["max_client_batch_size"], info["model_type"]) == (
        "support",
        512,  # of 8 KB each in a body of 4 MiB
        {"embedding": {"pooling": "mean"}},
    )


def test_fields_of_other_services_are_supported_or_refused(client: httpx.Client) -> None:
    long = " ".join(["hello"] * 3_000)
    for path, body, status in [
        ("/v1/embeddings", {"input": "a", "dimensions": 7}, 400),
        ("/v1/embeddings", {"input": ["a"] * 2_048, "user": "me"}, 200),
        ("/v1/embeddings", {"input": [1, 2]}, 400),
        ("/v1/embeddings", {"input": []}, 400),
        ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, 400),
        ("/v1/embeddings", {"input": "a", "encoding_format": None, "user": None}, 200),
        ("/v1/embeddings", {"input": ["a"] * 2_049}, 400),
        ("/v2/rerank", {"query": "a", "documents": []}, 422),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "max_chunks_per_doc": 10}, 200),
        ("/v1/embed", {"texts": []}, 422),
        ("/embed", {"inputs": []}, 422),
        ("/rerank", {"query": "a", "texts": []}, 422),
        ("/v1/embeddings", {"input": "a", "model": "support:query", "input_type": "document"}, 400),
        ("/v1/embeddings", {"input": "a", "model": "support:other"}, 404),
        ("/v2/embed", {"texts": ["a"], "output_dimension": 7}, 400),
        ("/v2/embed", {"texts": [long], "truncate": "NONE"}, 400),
        ("/v2/embed", {"texts": [long], "truncate": "START"}, 400),
        ("/v2/embed", {"texts": [long], "truncate": "END"}, 200),
        ("/v2/embed", {"texts": ["a"], "truncate": "NONE"}, 200),
        ("/v2/embed", {"texts": ["a"], "images": ["data:"]}, 422),
        ("/v2/rerank", {"query": "a", "documents": ["hello hi"], "max_tokens_per_doc": 1}, 200),
        ("/v2/rerank", {"query": "a", "documents": ["b"], "max_tokens_per_doc": 1}, 200),
        ("/v2/embed", {"texts": ["hello hi"], "max_tokens": 1}, 200),
        ("/v2/embed", {"texts": ["hello hi"], "max_tokens": 1, "truncate": "NONE"}, 400),
        ("/v2/rerank", {"query": "a", "documents": ["b"], "max_tokens_per_doc": 4_096}, 200),
        ("/v1/rerank", {"query": "a", "documents": [{"text": "b"}], "rank_fields": ["title"]}, 422),
        ("/embed", {"inputs": long, "truncate": False}, 413),
        ("/embed", {"inputs": long, "truncate": True}, 200),
        ("/embed", {"inputs": long, "truncation_direction": "right"}, 200),
        ("/embed", {"inputs": long, "truncation_direction": "left"}, 413),
        ("/embed", {"inputs": long, "truncation_direction": "Left", "prompt_name": "query"}, 200),
        ("/rerank", {"query": long, "texts": ["a"], "truncate": False}, 413),
        ("/rerank", {"query": "a", "texts": [long], "truncation_direction": "Left"}, 200),
        ("/v1/respond", {"context": "a", "kk": 2}, 422),
        ("/embed", {"inputs": "a", "prompt_name": "title"}, 422),
    ]:
        answer = client.post(path, json=body)
        assert answer.status_code == status, (path, list(body), answer.text[:200])
        if status != 200 and path in ("/embed", "/rerank"):
            assert {"error", "error_type"} <= set(answer.json())
            assert answer.json()["error_type"] == "Validation"


def test_answers_have_the_fields_of_other_services(client: httpx.Client) -> None:
    """A field that was not requested is absent, not null; each version names itself; errors have Jina's field."""
    body = {"query": "wifi", "documents": ["restart", "pay"]}
    for path, version in (("/v1/rerank", "1"), ("/v2/rerank", "2"), ("/rerank", "2")):
        answer = client.post(path, json=body).json()
        assert [set(result) for result in answer["results"]] == [{"index", "relevance_score"}] * 2
        assert answer["meta"]["api_version"]["version"] == version
    texts = client.post("/rerank", json={"query": "wifi", "texts": ["restart"]}).json()
    assert [set(result) for result in texts] == [{"index", "score"}]
    wrong = client.post("/v1/rerank", json={"query": "wifi"}).json()
    assert wrong["detail"] == wrong["message"]
    for path in ("/v1/ranking", "/v1/retrieval/nvidia/reranking"):  # NVIDIA's, as in RFC 9457
        refused = client.post(path, json={"query": "wifi"})
        assert refused.json() == {"status": 422, "title": refused.reason_phrase, "detail": "documents: Field required"}
    assert client.get("/info").json()["tokenization_workers"] == 1


def test_unknown_parameters_are_refused_by_name(client: httpx.Client) -> None:
    for method, path in (
        ("GET", "/v1/candidates?limt=5"),
        ("DELETE", "/v1/candidates/a?limt=5"),
        ("POST", "/embed?limt=5"),
    ):
        answer = client.request(method, path, json={"inputs": "a"} if method == "POST" else None)
        assert (answer.status_code, "limt" in answer.text) == (422, True), path


def test_repeated_parameters_are_refused_by_name(client: httpx.Client) -> None:
    for method, path in (
        ("GET", "/v1/candidates?filter=exists%20a&limit=1&filter=exists%20b"),
        ("DELETE", "/v1/candidates/a?model=none&model=none"),
    ):
        answer = client.request(method, path)
        assert answer.status_code == 422, path
    assert answer.json()["error"]["message"] == "model is sent 2 times; send it once"


def test_compressed_bodies_are_refused_by_name(client: httpx.Client) -> None:
    body, headers = gzip.compress(b'{"input": "a"}'), {"content-type": "application/json"}
    answer = client.post("/v1/embeddings", content=body, headers=headers | {"content-encoding": "gzip"})
    assert (answer.status_code, "Content-Encoding" in answer.text) == (415, True)
    for same in ("identity", "Identity"):
        plain = client.post("/v1/embeddings", json={"input": "a"}, headers={"content-encoding": same})
        assert plain.status_code == 200


def test_each_side_can_be_requested(client: httpx.Client) -> None:
    def vector(model: str, **fields: str) -> list[float]:
        answer = client.post("/v1/embeddings", json={"input": "my wifi is down", "model": model, **fields})
        return list(answer.json()["data"][0]["embedding"])

    assert vector("support:query") == vector("support", input_type="query")
    assert vector("support:candidate") == vector("support") == vector("support", input_type="document")
    for side in ("query", "candidate"):
        assert client.get(f"/v1/models/support:{side}").json()["id"] == "support"
    floats = client.post("/v1/embed", json={"texts": ["my wifi is down"], "input_type": "search_query"}).json()
    assert (floats["response_type"], floats["embeddings"]) == ("embeddings_floats", [vector("support:query")])
    typed = client.post("/v1/embed", json={"texts": ["hi"], "model": "support", "embedding_types": ["float"]}).json()
    assert list(typed["embeddings"]) == ["float"]
    query = client.post("/embed?model=support:query", json={"inputs": "my wifi is down", "normalize": False}).json()
    assert query == [vector("support:query")]
    named = client.post("/embed", json={"inputs": "my wifi is down", "prompt_name": "query"}).json()
    assert named[0] == pytest.approx(
        client.post("/embed?model=support:query", json={"inputs": "my wifi is down"}).json()[0]
    )
    assert sum(number**2 for number in named[0]) == pytest.approx(1, abs=1e-5)  # normalize defaults to true
