"""HTTP/1.1 that limits the time of clients that send or read slowly; uvicorn limits the size of a request's head."""

import asyncio
import math
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_BYTES = 64 * 1024  # of a request's first line and headers
READING_S = 60.0  # for a client that does not read its answer
CHUNKS, CHUNK_BYTES = 8_192, 64  # a body in more chunks than this, and of fewer bytes each, costs more time than it may
LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Requests(h11.Connection):
    """Parses requests; refuses a body that comes in very many small chunks, since h11 takes microseconds for each."""

    _chunks = _bytes = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next part of a request. Raises ``h11.RemoteProtocolError`` after too many small chunks."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
        elif isinstance(event, h11.Data):
            self._chunks, self._bytes = self._chunks + 1, self._bytes + len(event.data)
            if self._chunks > CHUNKS + self._bytes / CHUNK_BYTES:
                raise h11.RemoteProtocolError(f"more than {CHUNKS:,} chunks of a few bytes; send larger ones")
        return event


class PatientProtocol(H11Protocol):
    """A connection that is closed if the head of its next request does not arrive in time.

    uvicorn starts its timer after an answer and stops it with the first byte that follows. Here it also runs before the
    first request, and until a whole head has arrived. If too many connections are open, the one whose timer ends first
    is closed.
    """

    head_s: ClassVar[float]  # ``serve`` sets these from the limits
    max_connections: ClassVar[int]
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Wait for the first request of a new connection."""
        super().connection_made(transport)
        self.conn = Requests(h11.SERVER, HEAD_BYTES)
        self._wait(self.head_s)
        if len(self.connections) > self.max_connections:
            others = [other for other in self.connections if isinstance(other, PatientProtocol) and other is not self]
            first = min(others, key=lambda other: other.ends)
            if first.ends < math.inf:
                first.timeout_keep_alive_handler()

    @property
    def ends(self) -> float:
        """When its timer ends; infinite without a timer."""
        timer = None if self.transport.is_closing() else self.timeout_keep_alive_task
        return math.inf if timer is None else timer.when()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP, unless its answer has begun, and close the connection."""
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            super().send_400_response(msg)
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Parse a part of a request. As uvicorn's, except that the timer keeps running."""
        self.conn.receive_data(data)
        self.handle_events()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of a body that the answer did not need."""
        super().on_response_complete()
        if self.cycle.more_body and not self.transport.is_closing():
            self._wait(self.head_s)

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection; answer a client that has sent a part of a request."""
        if self.conn.trailing_data[0] and self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.write(LATE)
        super().timeout_keep_alive_handler()

    def pause_writing(self) -> None:
        """Start a timer when the client does not read."""
        super().pause_writing()
        self._reading = self.loop.call_later(READING_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop that timer when it reads again."""
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()

    def _wait(self, seconds: float) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)
