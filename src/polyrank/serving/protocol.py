"""HTTP/1.1 for clients that may be slow, silent or greedy: each holds little, and none for long."""

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 * 1024  # of a request's first line and headers
PIPELINED = 64  # requests that one connection may send ahead
READING_S = 60.0  # for a client that does not take its answer
LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class PatientProtocol(HttpToolsProtocol):
    """A connection. What is sent after an answer, and is no request, does not keep it open.

    Where there are too many, the one that has been without a whole request for longest makes room.
    """

    head_s: ClassVar[float] = 10.0
    most: ClassVar[int] = 4096
    _idle: ClassVar[dict["PatientProtocol", None]] = {}  # the longest first
    _timer: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None
    _begun = False  # a request whose headers are not all there
    _n_head = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A new connection, from which nothing has come yet."""
        super().connection_made(transport)  # type: ignore[arg-type]  # TCP
        self._expect(self.head_s)
        if len(self.connections) > self.most and (longest := next(iter(self._idle))) is not self:
            longest._leave()

    def data_received(self, data: bytes) -> None:
        """A part of a request, or of several."""
        super().data_received(data)
        if self._begun:
            self._n_head += len(data)
            if self._n_head > HEAD_BYTES:
                self._leave(TOO_LARGE)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._begun, self._n_head = True, 0
        self._expect(self.head_s)

    def on_headers_complete(self) -> None:
        """All headers are there; who sends the body too slowly is told so by the app."""
        self._begun = False
        self._forget()
        if len(self.pipeline) >= PIPELINED:
            raise ValueError("too many requests at once")  # which the parser answers with 400
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """An answer was sent, maybe before its request had come whole."""
        super().on_response_complete()
        if not self.pipeline and not self._begun:
            self._expect(self.head_s if self.cycle.more_body else self.timeout_keep_alive)

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        self._reading = self._reading or self.loop.call_later(READING_S, self.transport.abort)

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        self._read()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._forget()
        self._read()
        super().connection_lost(exc)

    def _expect(self, seconds: float) -> None:
        """Wait for the headers of the next request."""
        self._forget()
        if not self.transport.is_closing():
            self._idle[self] = None
            self._timer = self.loop.call_later(seconds, self._leave)

    def _forget(self) -> None:
        self._idle.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _read(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _leave(self, answer: bytes = LATE) -> None:
        self._forget()
        if not self.transport.is_closing():
            if self._begun:
                self.transport.write(answer)
            self.transport.close()
