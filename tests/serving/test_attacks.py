"""Three hundred requests that could block a server: during each of them ``/live`` answers, and memory stays small.

Other work slows the machine down, too: the kernel reports how long the server's threads waited for a core, and each
test measures an idle server's times just before. A request's cost is the processor time of the server process.
"""

import contextlib
import json
import os
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import polyrank
from servers import Running, serving

pytestmark = [pytest.mark.deep, pytest.mark.slow]

MEDIAN_S, WORST_S, CPU_S, MEMORY_BYTES = 0.05, 0.5, 2.0, 1.5e9
BUSY = 5  # allowed factor over the idle server's times, if these alone exceed the bounds
ROUTES = {
    "/v1/respond": "context", "/v1/explain": "context", "/v1/score": "candidates", "/v1/candidates": "candidates",
    "/v1/candidates/remove": "ids", "/v1/feedback": "shown", "/v1/rerank": "documents", "/v2/rerank": "documents",
    "/rerank": "texts", "/v1/embeddings": "input", "/v1/embed": "texts", "/v2/embed": "texts", "/embed": "inputs",
}  # fmt: skip
SIZE = 4 * 2**20 - 200  # size of most bodies, just below the limit
VALUES = {
    "numbers": b"[" + b"1," * (SIZE // 2 - 2) + b"1]",
    "as many numbers as may be": b"[" + b"1," * 90_000 + b"1]",
    "lists": b"[" + b"[]," * (SIZE // 3 - 2) + b"[]]",
    "objects": b"[" + b'{"a":1},' * (SIZE // 8 - 2) + b"{}]",
    "objects of long lists": b"[" + b'{"text":[' + b"1," * 90_000 + b"1]}]",
    "texts": b"[" + b'"a",' * (SIZE // 4 - 2) + b'"a"]',
    "as many texts as may be": b"[" + b'"a",' * 2_047 + b'"a"]',
    "texts as long as may be": json.dumps(["hello " * 16_600] * 40).encode(),
    "one text": b'"' + b"a" * (SIZE - 2) + b'"',
    "emoji": b'"' + "😀".encode() * (SIZE // 4 - 2) + b'"',
    "escapes": b'"' + b"\\u0041" * (SIZE // 6 - 2) + b'"',
    "commas in a text without an end": b'"' + b'\\"' * (SIZE // 4) + b"," * (SIZE // 4),
    "halves of characters": b'"' + b"\\ud800" * (SIZE // 6 - 2) + b'"',
    "depth": b"[" * 90_000,
    "depth of objects": b'{"a":' * 50_000,
    "a long number": b"1" * (SIZE - 2),
    "a large number": b"1e" + b"9" * 1_000,
    "many fields": b"{" + b",".join(b'"k%d":1' % i for i in range(90_000)) + b"}",
    "no number": b"[NaN]",
    "spaces": b" " * (SIZE - 2) + b"1",
    "no UTF-8": b'"' + b"\xff" * (SIZE - 2) + b'"',
    "nothing": b"",
}
FIRST = {"documents": b'"query":"a",', "candidates": b'"context":"a",', "texts": b'"query":"a",'}
SECRET = b"the key that the server prints"
TYPED = b"content-type: application/json\r\nauthorization: Bearer " + SECRET + b"\r\n"


def head(method: str, path: str, lines: bytes = b"") -> bytes:
    return f"{method} {path} HTTP/1.1\r\n".encode() + b"host: localhost\r\n" + lines + b"\r\n"


def post(path: str, body: bytes) -> bytes:
    return head("POST", path, TYPED + b"content-length: %d\r\n" % len(body)) + body


def cases() -> Iterator[tuple[str, bytes]]:
    """Pairs of a name and the bytes to send on one connection."""
    for path, field in ROUTES.items():
        first = FIRST.get(field, b"") if path != "/v1/candidates" else b""
        for name, value in VALUES.items():
            yield f"{path}: {name}", post(path, b"{" + first + b'"%s":' % field.encode() + value + b"}")
    metadata = b",".join(b'"k%d":"%s"' % (i, b"v" * 50) for i in range(60_000))
    yield "metadata", post("/v1/candidates", b'{"candidates":[{"text":"a","metadata":{' + metadata + b"}}]}")
    terms = " or ".join(f'exists k{i}."a b"' for i in range(64)).replace(" ", "%20").replace('"', "%22")
    for path in (f"/v1/candidates?filter={terms}", f"/v1/candidates?filter={'(' * 5_000}", "/v1/candidates?limit=1000"):
        yield path[:40], head("GET", path)
    yield "words", head("GET", f"/v1/candidates?q={'%20'.join('abcdefghij' * 5)}")
    yield "a long address", head("GET", "/" + "a" * 60_000)
    yield "an address of escapes", head("GET", "/v1/candidates/" + "%00" * 15_000)
    chunked = head("POST", "/v1/score", TYPED + b"transfer-encoding: chunked\r\n")
    yield "trailers", chunked + b"2\r\n{}\r\n0\r\n" + b"x: a\r\n" * 2_000_000
    yield "one long trailer", chunked + b"2\r\n{}\r\n0\r\nx: " + b"a" * 12_000_000
    yield "chunks of a byte", chunked + b"1\r\n1\r\n" * 500_000 + b"0\r\n\r\n"
    yield "extensions of chunks", chunked + b"1;" + b"a" * 4_000_000
    yield "headers", b"GET /live HTTP/1.1\r\n" + b"x: a\r\n" * 1_000_000
    yield "requests ahead", head("GET", "/v1/models") * 20_000
    yield "upgrades", head("GET", "/v1/models", b"connection: upgrade\r\nupgrade: h2c\r\n") * 5_000
    yield "no request", b"\x16\x03\x01" * 1_000_000


@pytest.fixture(scope="module")
def server(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("attacked")
    candidates = [polyrank.Candidate(f"r{i}", f"hello {i}", {"tags": ["a" * 50] * 1_000}) for i in range(200)]
    polyrank.build_index(folder / "index", polyrank.load(f"untuned:{tiny_backbone}"), candidates)
    with serving(f"support={folder / 'index'}", "--feedback", folder / "feedback.db") as running:
        yield running


class Probe:
    """Requests ``/live`` repeatedly on one connection, and records each answer's time."""

    def __init__(self, server: Running) -> None:
        self.took: list[float] = []
        self._asked = threading.Condition()
        self._ended = False
        self._server = server
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        with self._server.client() as client:
            while not self._ended:
                started = time.perf_counter()
                client.get("/live").raise_for_status()
                with self._asked:
                    self.took.append(time.perf_counter() - started)
                    self._asked.notify_all()

    def more(self, n: int = 5) -> list[float]:
        """At least ``n`` times since the last call."""
        with self._asked:
            assert self._asked.wait_for(lambda: len(self.took) >= n or not self._thread.is_alive(), 120)
            assert self._thread.is_alive(), "/live does not answer"
            took, self.took = self.took, []
            return took

    def end(self) -> None:
        self._ended = True
        self._thread.join()


def cpu_s(server: Running) -> float:
    """Processor seconds of the event loop's process."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def waited_s(server: Running) -> float:
    """Seconds that threads of the server or the test waited for a core used by other work. Linux only."""
    files = [
        path for pid in (server.process.pid, os.getpid()) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")
    ]
    return sum(int(path.read_text().split()[1]) for path in files if path.exists()) / 1e9


def memory(server: Running) -> int:
    """Peak bytes of the server and its workers."""
    lines = [Path(f"/proc/{pid}/status").read_text() for pid in (server.process.pid, *server.workers)]
    return sum(int(text.partition("VmHWM:")[2].split()[0]) for text in lines) * 1024


def send(server: Running, data: bytes) -> bytes:
    """Send the bytes, and wait until an answer begins or the connection ends; its first bytes."""
    with socket.create_connection(server.address, timeout=60) as connection, contextlib.suppress(OSError):
        connection.sendall(data.replace(SECRET, server.key.encode(), 1))
        return connection.recv(2**20)
    return b""


def slowness(server: Running, probe: Probe, data: bytes) -> str:
    """A description of how long other requests waited during a request; empty if within the bounds."""
    idle = probe.more()
    before, waited = cpu_s(server), waited_s(server)
    send(server, data)
    took = probe.more()
    others = waited_s(server) - waited  # time of other programs does not count
    median, worst, cpu = statistics.median(took), max(took), cpu_s(server) - before
    if (
        median - others / len(took) > max(MEDIAN_S, BUSY * statistics.median(idle))
        or worst - others > WORST_S
        or cpu > CPU_S + sum(took)  # a part of it comes from the probe's own requests
    ):
        return f"median {median:.3f} s, worst {worst:.3f} s, {cpu:.2f} s of processor time"
    return ""


def test_no_request_blocks_the_others(server: Running) -> None:
    """A request must be slow three times to fail; once may be due to the machine."""
    every = list(cases())
    assert len(every) >= 300
    probe, slow, seen = Probe(server), [], ""
    try:
        for name, data in every:
            if all(seen := slowness(server, probe, data) for _ in range(3)):
                slow.append(f"{name}: {seen}")
    finally:
        probe.end()
    assert not slow, "\n".join(slow)
    assert memory(server) < MEMORY_BYTES
    with server.client() as client:
        assert client.post("/v1/respond", json={"context": "hello", "k": 1}).status_code == 200
