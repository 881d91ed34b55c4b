"""A lightweight HTTP/1.1 client on asyncio with many connections and one request at a time on each."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

LENGTH = b"content-length: "


@dataclass(slots=True)
class Answer:
    """The answer to a request.

    Args:
        status: HTTP status; 0: the connection ended without an answer.
        body: body of the answer.
        retry: whether the answer has a Retry-After header.
        last: whether the server closes the connection.
        seconds: time since the request was due.
    """

    status: int
    body: bytes = b""
    retry: bool = False
    last: bool = False
    seconds: float = 0.0


class Connection(asyncio.Protocol):
    """One keep-alive connection."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.open = False
        self._data = b""
        self._answer: asyncio.Future[Answer] | None = None

    def connection_made(self, transport: Any) -> None:
        """The connection is open."""
        self.transport, self.open = transport, True

    def data_received(self, data: bytes) -> None:
        """A part of an answer arrived, often the whole answer."""
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._data[:end].lower()
        start = head.find(LENGTH)
        length = int(head[start + len(LENGTH) :].split(b"\r", 1)[0]) if start >= 0 else 0
        if len(self._data) < end + 4 + length:
            return
        body, self._data = self._data[end + 4 : end + 4 + length], self._data[end + 4 + length :]
        last = b"connection: close" in head
        self.open = self.open and not last
        self._settle(Answer(int(head[9:12]), body, b"retry-after:" in head, last))

    def connection_lost(self, error: Exception | None) -> None:
        """The connection ended."""
        self.open = False
        self._settle(Answer(0))

    def send(self, request: bytes) -> "asyncio.Future[Answer]":
        """Send a request."""
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._answer

    def _settle(self, answer: Answer) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)


class Client:
    """A pool of connections, as many as there are requests at the same time.

    Args:
        address: host and port of the server.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self._free: list[Connection] = []

    async def send(self, request: bytes, due: float | None = None) -> Answer:
        """Send a request and return its answer. ``due``: planned time by ``time.perf_counter``; None: now."""
        due = time.perf_counter() if due is None else due
        connection = None
        while self._free and (connection is None or not connection.open):
            connection = self._free.pop()
        if connection is None or not connection.open:
            try:
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_connection(Connection, *self.address)
            except OSError:
                return Answer(0, seconds=time.perf_counter() - due)
        answer = await connection.send(request)
        answer.seconds = time.perf_counter() - due
        if connection.open:
            self._free.append(connection)
        return answer

    def close(self) -> None:
        """Close all connections."""
        for connection in self._free:
            connection.transport.close()
        self._free.clear()


def post(path: str, body: bytes, key: str = "") -> bytes:
    """A POST request, with the key that the server prints if it changes candidates."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    head += f"\r\nauthorization: Bearer {key}" if key else ""
    return head.encode() + b"\r\n\r\n" + body


def get(path: str) -> bytes:
    """A GET request."""
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()


async def closed_loop(client: Client, requests: Iterable[bytes], n: int, seconds: float) -> list[Answer]:
    """``n`` parallel clients, each of which sends the next request when it has its answer."""
    answers: list[Answer] = []
    source, end = iter(requests), time.perf_counter() + seconds

    async def one() -> None:
        while time.perf_counter() < end:
            answers.append(await client.send(next(source)))

    await asyncio.gather(*(one() for _ in range(n)))
    return answers


async def open_loop(
    send: Callable[[bytes, float], Awaitable[Answer]], requests: Iterable[bytes], rate: float, seconds: float, seed: int
) -> list[Answer]:
    """``rate`` requests per second at random times, whether or not earlier ones have their answers."""
    draw, source, tasks = random.Random(seed), iter(requests), []
    due = start = time.perf_counter()
    while (due := due + draw.expovariate(rate)) < start + seconds:
        if (pause := due - time.perf_counter()) > 0:
            await asyncio.sleep(pause)
        tasks.append(asyncio.ensure_future(send(next(source), due)))
    return await asyncio.gather(*tasks)
