"""A server under hostile clients and failures: it answers, frees resources and continues.

test_serving_jobs.py tests the queue of jobs; runs/serving/load.py is a longer version.
"""

import asyncio
import contextlib
import http.client
import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

import polyrank
from polyrank.index import LocalWriter
from polyrank.records import Context
from polyrank.scorers.load import untuned_scorer
from polyrank.serving.guard import LARGE_BODIES
from polyrank.serving.pool import Computed, Pool, RefusedError, WorkerDiedError
from polyrank.serving.tasks import ScoredTexts, ScoreTask
from polyrank.serving.worker import Setup
from processes import run
from servers import Running, serving
from serving_here import serving_here

REPLIES = ["restart the router", "pay the bill", "the light is red", "hello hi", "thanks"]
JSON = {"content-type": "application/json"}
KEY = "correct-horse-battery"
QUEUE, CONNECTIONS, BODY = 8, 60, 100_000
LIMITS = f"""
drain_s = 0.5
threads = 1
[limits]
queue = {QUEUE}
connections = {CONNECTIONS}
body_bytes = {BODY}
body_timeout_s = 1.0
"""


def make_index(path: Path, backbone: Path, names: str = "r") -> Path:
    encoder = polyrank.load(f"untuned:{backbone}")
    candidates = [polyrank.Candidate(f"{names}{i}", text) for i, text in enumerate(REPLIES)]
    end = time.monotonic() + 30
    while True:
        try:
            polyrank.build_index(path, encoder, candidates, overwrite=True)
            return path
        except polyrank.LockedError:  # a server holds the lock for two seconds after a change
            if time.monotonic() > end:
                raise


@pytest.fixture(scope="module")
def bert(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny backbone with the tokenizer of a BERT, which a process opens in half the time, without transformers."""
    folder = shutil.copytree(tiny_backbone, tmp_path_factory.mktemp("bert"), dirs_exist_ok=True)
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"tokenizer_class": "BertTokenizer"}))
    return folder


@pytest.fixture(scope="module")
def folder(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    make_index(folder / "index", bert)
    (folder / "limits.toml").write_text(LIMITS, "utf-8")
    (folder / "keys").write_text(f"# for tests\n{KEY}\nanother-key-of-length\n", "utf-8")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    with serving(f"support={folder / 'index'}", "--config", folder / "limits.toml") as running:
        yield running


@pytest.fixture
def client(server: Running) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client
        # the next request gets the right answer in any case
        assert client.get("/ready").status_code == 200
        answer = client.post("/v1/score", json={"context": "hi", "candidates": ["thanks", "hello hi"]})
        assert answer.status_code == 200
        assert len(answer.json()["scores"]) == 2


def talk(server: Running, *parts: bytes) -> socket.socket:
    """A connection after sending some bytes."""
    connection = socket.create_connection(server.address, timeout=30)
    for part in parts:
        connection.sendall(part)
    return connection


def status(connection: socket.socket) -> int:
    """The status of the next answer; 0: the server closed the connection without an answer."""
    answer = http.client.HTTPResponse(connection)
    try:
        answer.begin()
        answer.read()
    except (http.client.BadStatusLine, ConnectionError):
        return 0
    return answer.status


def closed(connection: socket.socket) -> bool:
    """Whether the server closes the connection, after any output."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(65536):
            pass
    return True


def head(path: str = "/v1/respond", length: int | None = None, *lines: str, method: str = "POST") -> bytes:
    sized = [] if length is None else [f"content-length: {length}"]
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: localhost", *sized, *lines, "", ""]).encode()


TYPED = "content-type: application/json"


def post(body: dict[str, object], path: str = "/v1/score") -> bytes:
    data = json.dumps(body).encode()
    return head(path, len(data), TYPED) + data


def figure(client: httpx.Client, name: str) -> float:
    """A value of /metrics."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", client.get("/metrics").text, re.MULTILINE)
    return float(found[1]) if found else 0.0


@contextlib.contextmanager
def held(server: Running) -> Iterator[None]:
    """The worker process is stopped, so that requests wait."""
    (worker,) = server.workers
    os.kill(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(worker, signal.SIGCONT)


def score_request(context: str, candidates: list[str] = REPLIES) -> bytes:
    return post({"context": context, "candidates": candidates})


def until(client: httpx.Client, name: str, value: float) -> None:
    """Wait until a value of /metrics equals ``value``."""
    end = time.monotonic() + 30
    while (now := figure(client, name)) != value:
        assert time.monotonic() < end, f"{name} is {now}, not {value}"


def test_the_start_reports_each_index_and_its_size(server: Running) -> None:
    assert f"ready: support, index of {len(REPLIES)} candidates" in server.lines


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", 422),
        (b"{", 400),
        (b"[]", 422),
        (b"nul", 400),
        (b'{"context": "a"}}', 400),
        (b'{"context": "\xff"}', 400),
        ('{"context": "a"}'.encode("utf-16"), 400),
        (b'{"context": "a", "x": NaN}', 400),
        (b'{"context": "a", "k": Infinity}', 400),
        (b'{"context": "a", "k": 1e999}', 422),
        (b'{"context": "a", "k": 5e0}', 422),
        (b'{"context": "a", "k": "5"}', 422),
        (b'{"context": "a", "k": true}', 422),
        (b'{"context": "a", "k": 1' + b"0" * 3000 + b"}", 422),
        (b'{"context": "a", "k": 1' + b"0" * 9000 + b"}", 400),
        (b'{"context": ' + b"[" * 40_000, 400),
        (b'{"context": "a", "x": ' + b"[" * 40_000 + b"]" * 40_000 + b"}", 400),
        (b'{"context": "a", "x": ' + b'{"y":' * 16_000 + b"1" + b"}" * 16_000 + b"}", 400),
        (b'{"context": "a\\ud800"}', 400),
        (b'{"context": "a", "x": "\\uDFFF"}', 400),
        (b'{"context": "a", "\\ud800": 1}', 400),
        (b'{"context": {"a": "b"}}', 422),
        (b'{"context": ["a", null]}', 422),
        (b'{"context": []}', 422),
        (b'{"context": "a\\u0000b", "model": "\\u0000"}', 404),
        (b'{"context": "a", "filter": "' + b"(" * 5_000 + b'"}', 400),
        (b'{"context": "a", "filter": "' + b"not " * 5_000 + b'x = 1"}', 400),
        (b'{"context": "\\ud83d\\ude00 \\u0000 \\u05d0", "k": 1}', 200),
    ],
    ids=range(28),
)
def test_a_malformed_body_is_refused(client: httpx.Client, body: bytes, expected: int) -> None:
    answer = client.post("/v1/respond", content=body, headers=JSON)
    assert answer.status_code == expected, answer.text
    assert len(answer.content) < 1_000


@pytest.mark.parametrize(
    "metadata", ['{"a": NaN}', '{"a": "\\udc00"}', "[" * 900 + "]" * 900, '{"a": ' + "[" * 800 + "]" * 800 + "}"]
)
def test_metadata_that_an_index_cannot_store_is_refused(client: httpx.Client, metadata: str) -> None:
    body = f'{{"candidates": [{{"text": "odd", "id": "odd", "metadata": {metadata}}}]}}'
    answer = client.post("/v1/candidates", content=body, headers=JSON)
    assert answer.status_code in (400, 422), answer.text
    assert client.get("/v1/candidates/odd").status_code == 404


def test_ids_that_look_like_paths(client: httpx.Client) -> None:
    for id_ in ("../../etc/passwd", "a/b", "%2e%2e", "?x", "a\u0000b", "\u202e", "x" * 600):
        answer = client.get("/v1/candidates/" + "".join(f"%{byte:02x}" for byte in id_.encode()))
        assert answer.status_code in (400, 404), id_
    for path in ("/page/../../config/serving.py", "/page/%2e%2e/%2e%2e/errors.py", "//etc/passwd", "/v1/../live%00"):
        connection_ = client.build_request("GET", client.base_url.copy_with(raw_path=path.encode()))
        assert client.send(connection_).status_code == 404, path


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 403),
        (b"GET\r\n\r\n", 400),
        (head("/live", -5), 400),
        (head("/live", 5, "content-length: 6"), 400),
        (head("/live", 5, "transfer-encoding: chunked"), 400),
        (head("/live", None, "x: a\x00b"), 400),
        (b"GET /live\xff HTTP/1.1\r\nhost: localhost\r\n\r\n", 400),
        (head("*", method="OPTIONS"), 404),
        (head("/live", method="GET"), 200),
        (head("http://elsewhere/live", method="GET"), 404),
        (head("/live", method="HEAD"), 200),
        (head("/live", method="TRACE"), 405),
        (head("/v1/models", method="PUT"), 405),
        (head("/v1/respond", 0), 422),
        (head("/v1/respond", BODY + 1, TYPED), 413),
        (head("/v1/respond", 10**25, TYPED), 400),
        (head("/v1/respond", 3, "content-type: text/plain") + b"a=b", 415),
        (head("/v1/respond", None, TYPED, "transfer-encoding: chunked") + b"zz\r\n", 400),
    ],
    ids=range(19),
)
def test_malformed_http_is_refused(server: Running, client: httpx.Client, sent: bytes, expected: int) -> None:
    with talk(server, sent) as connection:
        answer = http.client.HTTPResponse(connection, method="HEAD" if sent.startswith(b"HEAD") else None)
        answer.begin()
        assert answer.status == expected


def test_a_chunked_body_ends_at_the_limit(server: Running, client: httpx.Client) -> None:
    with talk(server, head("/v1/respond", None, TYPED, "transfer-encoding: chunked")) as connection:
        with contextlib.suppress(ConnectionError):  # the server closes before the end
            for _ in range(BODY // 1_000 + 50):
                connection.sendall(b"3e8\r\n" + b" " * 1_000 + b"\r\n")
        assert status(connection) == 413


def test_headers_end_at_a_limit(server: Running, client: httpx.Client) -> None:
    for flood in (b"x-%d: 1\r\n", b"%d" + b"x" * 2_000):  # many headers, and one endless header
        with talk(server, b"GET /live HTTP/1.1\r\nhost: localhost\r\nx: ") as connection:
            with contextlib.suppress(ConnectionError):
                for number in range(50_000):
                    connection.sendall(flood % number)
            assert status(connection) in (0, 400)
    with talk(server, head("/live", None, method="GET")[:-2] + b"y: 1\r\n" * 500 + b"\r\n") as connection:
        assert status(connection) == 200


@pytest.mark.deep
def test_a_missing_body_times_out(server: Running, client: httpx.Client) -> None:
    with talk(server, head("/v1/respond", 100, TYPED), b'{"context": ') as connection:
        assert status(connection) == 408
        assert closed(connection)


def test_a_missing_request_times_out(server: Running, client: httpx.Client) -> None:
    with talk(server) as silent, talk(server, b"GET /live HTT") as half:
        assert status(half) == 408
        assert status(silent) == 0


@pytest.mark.deep
@pytest.mark.parametrize("sent", [head("/live", 10**12, method="GET"), head("/v1/score", 10**6, method="DELETE")])
def test_an_unneeded_body_is_not_waited_for(server: Running, client: httpx.Client, sent: bytes) -> None:
    with talk(server, sent, b"x" * 1000) as connection:
        assert status(connection) in (200, 405)
        stop = threading.Event()

        def drip() -> None:  # which must not keep it open
            with contextlib.suppress(OSError):
                while not stop.is_set():
                    connection.sendall(b"x")
                    select.select([], [], [], 0.05)

        with ThreadPoolExecutor(1) as threads:
            dripping = threads.submit(drip)
            assert closed(connection)
            stop.set()
            dripping.result()


@pytest.mark.deep
def test_an_unread_log_does_not_block_the_server(folder: Path) -> None:
    unread, written = os.pipe()
    command = [sys.executable, "-m", "polyrank", "serve", f"m={folder / 'index'}", "--port", "0"]
    with subprocess.Popen(command, stderr=written) as process:
        os.close(written)
        said = b""
        while b"listening at" not in said or b";" not in said:
            said += os.read(unread, 1000)
        url = re.search(rb"http://[\d.:]+", said)
        assert url
        with httpx.Client(base_url=url[0].decode(), timeout=60) as own:
            for _ in range(1_000):  # a log line of 150 bytes each; a pipe holds 65,536
                assert own.get("/none", timeout=10).status_code == 404
            assert own.get("/live").status_code == 200
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(30) == 0
        finally:
            process.kill()
            os.close(unread)


def test_requests_sent_ahead_are_answered_one_by_one(server: Running, client: httpx.Client) -> None:
    for n, requests in ((20, [head("/live", method="GET")] * 20), (500, [head("/live", method="GET") * 500])):
        with talk(server, *requests) as connection:
            said = b""
            while said.count(b"HTTP/1.1 200") < n:
                part = connection.recv(65_536)
                assert part, said
                said += part
    with talk(server, head("/live", method="GET")) as connection:
        assert status(connection) == 200


def test_idle_connections_are_closed_for_new_ones(server: Running, client: httpx.Client) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS + 40):
            stack.enter_context(talk(server, b"POST /v1/respond HTTP/1.1\r\n"))
        with server.client() as other:
            assert other.get("/live").status_code == 200
            assert other.post("/v1/score", json={"context": "hi", "candidates": ["thanks"]}).status_code == 200


@pytest.mark.deep
def test_excess_connections_are_refused_and_live_answers(server: Running, client: httpx.Client) -> None:
    with contextlib.ExitStack() as stack:
        halves = [
            stack.enter_context(talk(server, head("/v1/respond", 50, TYPED), b"{")) for _ in range(CONNECTIONS + 20)
        ]
        with server.client() as other:
            assert other.get("/live").status_code == 200
        assert Counter(map(status, halves)) == {408: CONNECTIONS, 503: 20}


def test_large_bodies_do_not_fill_the_memory(server: Running, client: httpx.Client) -> None:
    """Incomplete bodies share a limit of memory; small requests still get through."""
    half = head("/v1/respond", BODY, TYPED) + b" " * (BODY - 10)
    with contextlib.ExitStack() as stack:
        halves = [stack.enter_context(talk(server, half)) for _ in range(CONNECTIONS - 10)]
        assert client.post("/v1/score", json={"context": "hi", "candidates": ["thanks"]}).status_code == 200
        counts = Counter(map(status, halves))
    assert set(counts) == {408, 503}
    assert counts[408] >= LARGE_BODIES


def test_excess_requests_are_refused_at_once_and_accepted_ones_answered(server: Running, client: httpx.Client) -> None:
    before = figure(client, 'polyrank_requests_total{route="/v1/score",status="200"}')
    with contextlib.ExitStack() as stack:
        with held(server):
            first = stack.enter_context(talk(server, score_request("hi")))  # the worker has begun with it
            until(client, "polyrank_waiting_requests", 0)
            taken = []
            for number in range(QUEUE):
                taken.append(stack.enter_context(talk(server, score_request(f"hi {number}"))))
                until(client, "polyrank_waiting_requests", number + 1)
            started = time.monotonic()
            for _ in range(20):
                answer = client.post("/v1/score", json={"context": "a", "candidates": ["b"]})
                assert answer.status_code == 429
                assert int(answer.headers["retry-after"]) >= 1
            assert client.get("/live").status_code == 200
            assert time.monotonic() - started < 5  # although nothing is computed
        assert [status(connection) for connection in [first, *taken]] == [200] * (QUEUE + 1)
    until(client, 'polyrank_requests_total{route="/v1/score",status="200"}', before + QUEUE + 1)  # counted once sent


def test_requests_of_gone_clients_are_not_computed(server: Running, client: httpx.Client) -> None:
    computed = 'polyrank_batch_jobs_sum{operation="score"}'
    before, since = figure(client, computed), len(server.lines)
    with talk(server) as first, talk(server) as stays:
        with held(server):
            first.sendall(score_request("one"))
            server_has(client, 0)
            leaves = talk(server, score_request("two"))
            until(client, "polyrank_waiting_requests", 1)
            stays.sendall(score_request("three"))
            until(client, "polyrank_waiting_requests", 2)
            leaves.close()
            server.wait_for('"status": 499', since)
        assert status(first) == status(stays) == 200
    assert figure(client, computed) == before + 2


def server_has(client: httpx.Client, n: int) -> None:
    """Wait until ``n`` requests are queued, with one more in the worker."""
    until(client, "polyrank_waiting_requests", n)


@pytest.mark.deep
def test_answers_do_not_get_mixed_up(server: Running, client: httpx.Client, bert: Path) -> None:
    """Eight parallel clients, each with its own contexts: scores equal those of each request alone."""
    scorer = untuned_scorer(str(bert))
    words = ["my", "wifi", "is", "down", "hello", "hi", "thanks", "the", "router", "light", "red", "green", "please"]
    contexts = [f"{first} {second}" for first in words for second in words][:160]
    expected = {context: scorer.score([context], [REPLIES])[0] for context in contexts}

    def ask(part: list[str]) -> None:
        with server.client() as own:
            for context in part:
                answer = own.post("/v1/score", json={"context": context, "candidates": REPLIES})
                if answer.status_code != 429:
                    np.testing.assert_allclose(answer.json()["scores"], expected[context], atol=1e-5)
                    right.append(context)

    right: list[str] = []
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, [contexts[start::8] for start in range(8)]))
    assert len(right) > len(contexts) / 2


@pytest.mark.deep
def test_one_bad_item_of_a_batch_fails_alone(folder: Path, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dispatcher survives an item that cannot be sent, and an error in a callback."""
    monkeypatch.setattr("polyrank.serving.pool.ATTEMPTS", 1)
    batches: list[int] = []

    def watched(batch: Sequence[object] | None, seconds: float) -> None:
        batches.append(len(batch or ()))
        if batch is None:
            raise ZeroDivisionError

    async def three() -> list[Computed[ScoredTexts] | BaseException]:
        setup = Setup({"m": f"untuned:{bert}"}, "cpu", "torch", 1)
        pool = Pool(setup, on_batch=watched)
        pool.start()
        try:
            with pytest.raises(WorkerDiedError):
                await pool.compute("m", [ScoreTask(Context(("hi",)), [lambda: "hi"])], [50])  # type: ignore[list-item]
            asked = [ScoreTask(Context((text,)), REPLIES) for text in ("hello", "\ud800", "my wifi")]
            return await asyncio.gather(*(pool.compute("m", [task], [50]) for task in asked), return_exceptions=True)
        finally:
            await pool.close()

    good, bad, also_good = asyncio.run(three())
    assert batches == [0, 3]
    assert isinstance(bad, RefusedError)
    assert isinstance(good, Computed)
    assert isinstance(also_good, Computed)
    scores = untuned_scorer(str(bert)).score(["hello", "my wifi"], [REPLIES, REPLIES])
    np.testing.assert_allclose(good.values[0].scores, scores[0], atol=1e-5)
    np.testing.assert_allclose(also_good.values[0].scores, scores[1], atol=1e-5)


@pytest.mark.deep
@pytest.mark.slow
def test_each_process_keeps_its_number(bert: Path) -> None:
    async def names() -> list[list[str]]:
        pool = Pool(Setup({"m": f"untuned:{bert}"}, "cpu", "torch", 1), 2)
        pool.start()
        found = []
        try:
            for _ in range(2):
                while pool.n_ready < 2:
                    await asyncio.sleep(0)
                found.append([worker.process.name for _, worker in sorted(pool._workers.items())])
                pool._workers[1].process.kill()
                while pool.n_ready == 2:
                    await asyncio.sleep(0)
        finally:
            await pool.close()
        return found

    assert asyncio.run(names()) == [[f"polyrank-worker-{number}" for number in range(2)]] * 2


@pytest.mark.deep
def test_a_process_that_cannot_be_started_is_tried_again(bert: Path) -> None:
    async def work() -> Computed[ScoredTexts]:
        pool = Pool(Setup({"m": f"untuned:{bert}"}, "cpu", "torch", 1))
        pool.start()
        await pool.until_ready()
        used, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))  # no pipe can be opened
        try:
            os.kill(pool.pids[0], signal.SIGKILL)
            while pool.failure is None:
                await asyncio.sleep(0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (used, most))
        try:
            return await pool.compute("m", [ScoreTask(Context(("hi",)), REPLIES)], [50])
        finally:
            await pool.close()

    assert len(asyncio.run(work()).values[0].scores) == len(REPLIES)


@pytest.mark.deep
def test_while_another_process_writes_changes_are_refused(server: Running, client: httpx.Client, folder: Path) -> None:
    one = {"candidates": [{"text": "one more", "id": "more"}]}
    with LocalWriter(folder / "index"):
        refused = client.post("/v1/candidates", json=one)
        assert refused.status_code == 409
        assert "retry-after" in refused.headers
        assert client.delete("/v1/candidates/r0").status_code == 409
        assert client.post("/v1/respond", json={"context": "hi"}).status_code == 200
    assert client.post("/v1/candidates", json=one).status_code == 200
    # the server releases the lock when it is idle
    end = time.monotonic() + 30
    while True:
        with contextlib.suppress(polyrank.LockedError), LocalWriter(folder / "index") as writer:
            # and the next request sees another process's change
            assert writer.remove(["more"]) == 1
            break
        assert time.monotonic() < end
        client.get("/live")
    answer = client.post("/v1/respond", json={"context": "one more", "k": 20}).json()
    assert "more" not in [reply["id"] for reply in answer["results"]]
    assert client.get("/v1/candidates/more").status_code == 404


def test_a_full_disk_is_reported_and_nothing_is_added(server: Running, client: httpx.Client, folder: Path) -> None:
    """A limit on the size of files makes writes fail as on a full disk."""
    many = {"candidates": [{"text": f"reply {i} " + "x" * 200, "id": f"n{i}"} for i in range(100)]}
    _, most = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (20_000, most))
    try:
        refused = client.post("/v1/candidates", json=many)
        assert refused.status_code == 507
        assert str(folder) not in refused.text
        assert client.get("/v1/candidates").json()["n_candidates"] == len(REPLIES)
        assert client.post("/v1/respond", json={"context": "hi"}).status_code == 200
    finally:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (most, most))
    assert client.post("/v1/candidates", json=many).json()["n_candidates"] == len(REPLIES) + 100
    removed = client.post("/v1/candidates/remove", json={"ids": [f"n{i}" for i in range(100)]})
    assert removed.json()["n_candidates"] == len(REPLIES)


@pytest.mark.deep
def test_a_killed_process_loses_nothing(server: Running, client: httpx.Client) -> None:
    with contextlib.ExitStack() as stack:
        with held(server):
            waiting = [stack.enter_context(talk(server, score_request("hi"))) for _ in range(4)]
            until(client, "polyrank_waiting_requests", 3)
            (worker,) = server.workers
            os.kill(worker, signal.SIGKILL)
        assert list(map(status, waiting)) == [200] * 4
    assert figure(client, "polyrank_worker_deaths_total") == 1
    assert client.get("/ready").status_code == 200


@pytest.mark.deep
def test_a_replaced_index_is_reopened_without_losing_a_request(
    server: Running, client: httpx.Client, folder: Path, bert: Path, mean_pooled_backbone: Path
) -> None:
    body = {"context": "my wifi is down", "candidates": REPLIES}

    def scores() -> list[float]:
        answer = client.post("/v1/score", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["scores"]

    def until_scores(backbone: Path) -> None:
        expected = untuned_scorer(str(backbone)).score([str(body["context"])], [REPLIES])[0]
        end = time.monotonic() + 60
        while not np.allclose(scores(), expected, atol=1e-5):
            assert time.monotonic() < end

    until_scores(bert)
    make_index(folder / "index", mean_pooled_backbone, "new")
    until_scores(mean_pooled_backbone)
    answer = client.post("/v1/respond", json={"context": "hi"}).json()
    assert {reply["id"][:3] for reply in answer["results"]} == {"new"}
    # a damaged one is not opened, and the old one continues
    since = len(server.lines)
    shutil.copytree(folder / "index", folder / "broken")
    with (folder / "broken" / "candidates.db").open("r+b") as file:
        file.write(b"\0" * 4096)
    (folder / "index").rename(folder / "aside")
    (folder / "broken").rename(folder / "index")
    until_scores(mean_pooled_backbone)
    server.wait_for("keeping the old support", since)
    shutil.rmtree(folder / "index")
    (folder / "aside").rename(folder / "index")
    make_index(folder / "index", bert)
    until_scores(bert)


@pytest.mark.deep
def test_a_replaced_index_is_described_anew(folder: Path, bert: Path, mean_pooled_backbone: Path) -> None:
    path = make_index(folder / "unwatched", bert)
    with serving(f"m={path}") as running, running.client() as own:

        def known() -> str:
            return own.get("/v1/models").json()["data"][0]["fingerprint"]  # type: ignore[no-any-return]

        assert known() == untuned_scorer(str(bert)).fingerprint
        make_index(path, mean_pooled_backbone, "new")
        assert own.post("/v1/respond", json={"context": "hi"}).json()["results"][0]["id"].startswith("new")
        assert known() == untuned_scorer(str(mean_pooled_backbone)).fingerprint


def test_the_log_contains_no_traceback(server: Running, client: httpx.Client) -> None:
    assert not any("Traceback" in line for line in server.lines)


@pytest.mark.deep
def test_a_killed_server_keeps_acknowledged_candidates(folder: Path, bert: Path) -> None:
    path = make_index(folder / "killed", bert)
    with serving(f"m={path}") as running:
        (worker,) = running.workers
        acknowledged: list[str] = []
        enough = threading.Event()

        def add(name: str) -> None:
            with running.client() as own, contextlib.suppress(httpx.TransportError):
                for number in range(1_000):
                    one = {"id": f"{name}{number}", "text": f"reply {name} {number}"}
                    if own.post("/v1/candidates", json={"candidates": [one]}).status_code == 200:
                        acknowledged.append(one["id"])
                        if len(acknowledged) >= 40:
                            enough.set()

        with ThreadPoolExecutor(3) as threads:
            adding = [threads.submit(add, name) for name in "xyz"]
            assert enough.wait(60)
            child = os.pidfd_open(worker)
            running.process.kill()
            [one.result() for one in adding]
        assert select.select([child], [], [], 30)[0], "the worker process must end with the server"
        os.close(child)
    with polyrank.open(path) as replies:
        ids = {candidate.id for _, candidate in replies.index.iter_candidates()}
    assert set(acknowledged) <= ids
    assert len(ids) - len(REPLIES) - len(acknowledged) <= 3  # additions in progress


@pytest.mark.deep
def test_a_signal_loses_no_request(folder: Path, bert: Path) -> None:
    """Clients leave when /ready answers 503; until then every request is answered."""
    elsewhere = threading.Event()
    counts: Counter[int] = Counter()
    going = threading.Barrier(5)
    path = make_index(folder / "stopped", bert)
    (folder / "drain.toml").write_text("drain_s = 0.5\n", "utf-8")
    with serving(f"m={path}", "--config", folder / "drain.toml") as running:

        def ask() -> None:
            with running.client() as own:
                own.get("/live")
                going.wait()
                while not elsewhere.is_set():
                    counts[own.post("/v1/respond", json={"context": "my wifi is down"}).status_code] += 1

        def watch() -> list[int]:
            with running.client() as own:
                assert own.get("/ready").status_code == 200
                going.wait()
                running.process.send_signal(signal.SIGTERM)
                while own.get("/ready").status_code == 200:
                    pass
                live = own.get("/live")
                elsewhere.set()
                return [live.status_code, live.headers["connection"] == "close"]

        with ThreadPoolExecutor(5) as threads:
            asking = [threads.submit(ask) for _ in range(4)]
            assert threads.submit(watch).result() == [200, True]
            [one.result() for one in asking]
        assert running.process.wait(30) == 0
    assert set(counts) == {200}
    assert not any("Traceback" in line for line in running.lines)


@pytest.mark.deep
def test_a_signal_while_models_open_ends_the_server(folder: Path) -> None:
    with serving(f"m={folder / 'index'}", wait=False) as running:
        assert httpx.get(running.url + "/live").status_code == 200
        assert httpx.get(running.url + "/ready").status_code == 503
        early = httpx.post(running.url + "/v1/respond", json={"context": "hi"}, timeout=60)
        assert early.status_code == 503
        assert early.headers["retry-after"]
        assert running.stop(signal.SIGINT) == 0


@pytest.fixture(scope="module")
def guarded(folder: Path, bert: Path) -> Iterator[Running]:
    with serving_here(f"m=untuned:{bert}", api_key_file=folder / "keys", host="0.0.0.0") as running:
        yield running


@pytest.mark.deep
def test_without_a_key_an_answer_reveals_nothing(guarded: Running) -> None:
    with guarded.client() as client:
        document = client.get("/openapi.json", headers={"authorization": f"Bearer {KEY}"}).json()
        routes = [(method, path) for path, methods in document["paths"].items() for method in methods]
        routes += [("get", "/"), ("get", "/page/app.js"), ("get", "/openapi.json"), ("get", "/none"), ("put", "/live/")]
        assert len(routes) > 15
        for method, path in routes:
            open_ = path.rstrip("/") in ("/live", "/ready", "/health")
            for sent in ({}, {"authorization": f"Bearer {KEY}x"}, {"authorization": KEY}):
                answer = client.request(method, path.replace("{", "").replace("}", ""), headers=sent)
                assert (answer.status_code == 401) == (not open_), (method, path)
                if not open_:
                    assert answer.headers["www-authenticate"].startswith("Basic")
                    assert KEY not in answer.text


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (f"Bearer {KEY}", 200),
        (f"bearer  {KEY}", 200),
        ("Bearer another-key-of-length", 200),
        ("Bearer # for tests", 401),
        ("Bearer", 401),
        ("Basic !!!", 401),
        ("Basic", 401),
        ("Digest abc", 401),
        ("B\u00e9arer \u00ff\u00fe", 401),
    ],
    ids=range(9),
)
def test_only_an_exact_key_is_accepted(guarded: Running, sent: str, expected: int) -> None:
    answer = httpx.get(guarded.url + "/openapi.json", headers={"authorization": sent.encode("latin-1")})
    assert answer.status_code == expected


def test_a_browser_sends_the_key_as_a_password(guarded: Running) -> None:
    for user, password, expected in (("any", KEY, 200), ("", KEY, 200), (KEY, "", 401), ("any", "wrong", 401)):
        assert httpx.get(guarded.url + "/openapi.json", auth=(user, password)).status_code == expected


def test_clients_of_azure_and_xinference_send_their_key(guarded: Running, client: httpx.Client) -> None:
    """Azure's send it in another header, Xinference's only after the server states that it needs one."""
    for sent, expected in (
        ({"api-key": KEY}, 200), ({"api-key": f"{KEY}x"}, 401), ({"api-key": ""}, 401),
        ({"api-key": KEY, "authorization": f"Bearer {KEY}x"}, 401),
        ({"api-key": f"{KEY}x", "authorization": f"Bearer {KEY}"}, 200),
    ):  # fmt: skip
        answer = httpx.get(guarded.url + "/v1/models/m", headers=sent)
        assert answer.status_code == expected, sent
    assert httpx.get(guarded.url + "/v1/cluster/auth").json() == {"auth": True}
    assert client.get("/v1/cluster/auth").json() == {"auth": False}
    (listed,) = client.get("/v1/models").json()["data"]
    assert listed["model_type"] == "embedding"


@pytest.mark.deep
def test_a_process_that_does_not_answer_is_noticed_and_replaced(bert: Path, tmp_path: Path) -> None:
    """Its deadline ends the work itself; nobody has to wait for it, or to restart the server."""
    settings, body = tmp_path / "settings.toml", {"context": "hi", "candidates": ["a", "b"]}
    settings.write_text("[limits]\ntimeout_s = 6.0\n")
    with serving(f"m=untuned:{bert}", "--config", settings) as running, running.client() as client:
        for request in (None, body):
            (process,) = running.workers
            os.kill(process, signal.SIGSTOP)
            if request is not None:
                assert client.post("/v1/score", json=request).status_code == 503
            end, statuses = time.monotonic() + 60, []
            while running.workers in ([process], []) or statuses[-1] != 200:
                statuses.append(client.get("/ready").status_code)
                assert time.monotonic() < end
            assert 503 in statuses
            assert client.post("/v1/score", json=body).status_code == 200


@pytest.mark.deep
def test_a_signal_reloads_the_keys(bert: Path, tmp_path: Path) -> None:
    """The old key stops working within a second; a file without keys changes nothing."""
    keys, old, new = tmp_path / "keys", KEY, "another-key-of-length"
    keys.write_text(old)
    with serving(f"m=untuned:{bert}", "--api-key-file", keys) as running:

        def statuses() -> list[int]:
            return [httpx.get(running.url + "/openapi.json", auth=("", key)).status_code for key in (old, new)]

        assert statuses() == [200, 401]
        keys.write_text(new)
        running.process.send_signal(signal.SIGHUP)
        running.wait_for("the keys were read again")
        assert statuses() == [401, 200]
        keys.write_text("# none")
        running.process.send_signal(signal.SIGHUP)
        running.wait_for("keeping the old keys")
        assert statuses() == [401, 200]
        with running.client() as client:

            def wait_for(key: str, status: int, seconds: float = 30) -> None:
                end = time.monotonic() + seconds
                while client.get("/openapi.json", auth=("", key)).status_code != status:
                    assert time.monotonic() < end, f"{key} does not get {status}"

            for kept, removed, n in ((old, new, 100), (new, old, 3), (old, new, 0)):  # signals; none: it is noticed
                keys.write_text(removed)
                wait_for(removed, 200)
                for content in (f"{kept}\n{removed}", kept):
                    for _ in range(n):
                        running.process.send_signal(signal.SIGHUP)
                    keys.write_text(content)
                    for _ in range(n):
                        running.process.send_signal(signal.SIGHUP)
                wait_for(removed, 401, 1.0)
                wait_for(kept, 200, 1.0)


@pytest.mark.deep
@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "0.0.0.0", ""])
def test_without_keys_other_host_names_are_refused(client: httpx.Client, host: str) -> None:
    """DNS rebinding: a foreign page may resolve its own host name to this machine."""
    assert client.get("/v1/models", headers={"host": host}).status_code == 403
    assert client.get("/live", headers={"host": host}).status_code == 200
    for own in ("localhost", "LOCALHOST:1", "127.0.0.1:80", "[::1]:80"):
        assert client.get("/v1/models", headers={"host": own}).status_code == 200


REFUSED = [
    ("m={index}", ["--host", "0.0.0.0"], "", "--api-key-file"),
    ("m={index}", ["--host", "::"], "", "--api-key-file"),
    ("m={index}", ["--host", ""], "", "--api-key-file"),
    ("m={index}", ["--host", "203.0.113.1", "--api-key-file", "{keys}"], "", "cannot listen"),
    ("m={index}", ["--api-key-file", "{none}"], "", "cannot read keys"),
    ("m={index}", ["--api-key-file", "{short}"], "", "the key in line 1 of"),
    ("m={index}", ["--api-key-file", "{empty}"], "", "has no keys"),
    ("m=nobody/here", [], "", "hf:"),
    ("M!={index}", [], "", "is not a valid name"),
    ("", [], "", "nothing to serve"),
    ("m={index}", [], 'prot = 80', 'did you mean "port"'),
    ("m={index}", [], "[limits]\nquue = 3", 'did you mean "limits.queue"'),
    ("m={index}", [], "[limits]\nqueue = 0", "at least 1"),
    ("m={index}", [], "port = 70000", "outside 0 to 65535"),
    ("m={index}", [], "host = 5", "host"),
    ("m={index}", [], '[models]\nm = "other"', "is already the name of"),
    ("", [], '[models]\n"A B" = "other"', "is not a valid name"),
    ("m={index}", [], "port = = 3", "line 1"),
    ("m={index}", [], 'backend = "tpu"', "is not one of 'torch'"),
    ("m={index}", ["--keep-text"], "", "--feedback"),
    ("m={index}", ["--config", "{none}"], "", "does not exist"),
]  # fmt: skip


@pytest.mark.deep
@pytest.mark.parametrize(("path", "options", "config", "said"), REFUSED, ids=range(len(REFUSED)))
def test_impossible_settings_are_refused_at_the_start(
    folder: Path, tmp_path: Path, path: str, options: list[str], config: str, said: str
) -> None:
    files = {name: tmp_path / name for name in ("none", "short", "empty")}
    files["short"].write_text("abc\n")
    files["empty"].write_text("# none\n\n")
    known = {"index": folder / "index", "keys": folder / "keys", **files}
    arguments = [part.format(**known) for part in [path, *options] if part or part != path]
    if config:
        (tmp_path / "serve.toml").write_text(config, "utf-8")
        arguments += ["--config", str(tmp_path / "serve.toml")]
    done = run("serve", *arguments, "--port", "0")
    assert done.returncode == 2, done.stderr
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.deep
@pytest.mark.parametrize("phases", ["examples,coverage", "fuzzing"])
def test_answers_match_the_openapi_description(server: Running, phases: str) -> None:
    """A short run of schemathesis: no 5xx, no undocumented status, every answer matches its schema.

    Its thousands of systematic cases ask one path of each handler: those with the same body.
    """
    with server.client() as client:
        methods = client.get("/openapi.json").json()["paths"]
    bodies = {path: str(methods[path]["post"]["requestBody"]) for path in methods if "post" in methods[path]}
    asked = {body: path for path, body in sorted(bodies.items(), key=lambda item: "{" not in item[0])}
    others = bodies.keys() - asked.values() if "coverage" in phases else ()
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", server.url + "/openapi.json", "--max-examples", "3",
        "--phases", phases, *(f"--exclude-path={path}" for path in others), "--seed", "1", "--no-shrink",
        "--continue-on-failure", "--generation-database", "none", "--header", f"authorization: Bearer {server.key}",
        "--checks",
        "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
        "response_schema_conformance,negative_data_rejection",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-60000:]
