"""HTTP/1.1 that limits the memory and time of slow, silent or greedy clients."""

import asyncio
from typing import ClassVar

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 * 1024  # of a request's first line and headers
UPGRADING = (b"upgrade", b"http2-settings")
MAX_PIPELINED = 64  # requests that a client may send on one connection before their answers
READING_S = 60.0  # for a client that does not read its answer
LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class PatientProtocol(HttpToolsProtocol):
    """A connection. Bytes after an answer that are not a request do not keep it open.

    If too many connections are open, the one that has been without a complete request for longest is closed.
    """

    head_s: ClassVar[float]  # ``serve`` sets these from the limits
    max_connections: ClassVar[int]
    _idle: ClassVar[dict["PatientProtocol", None]] = {}  # longest idle first
    _timer: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None
    _begun = False  # a request whose headers are incomplete
    _upgrading = False  # its headers request another protocol
    _n_head = 0
    _n_silent = 0  # bytes after the headers that are not body: framing of chunks, and trailers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request of a new connection."""
        super().connection_made(transport)  # type: ignore[arg-type]  # TCP
        self._expect(self.head_s)
        if len(self.connections) > self.max_connections and (longest := next(iter(self._idle))) is not self:
            longest._close()

    def data_received(self, data: bytes) -> None:
        """Parse a part of a request, or of several."""
        self._n_silent += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        if self._begun:
            self._n_head += len(data)
        if (self._begun and self._n_head > HEAD_BYTES) or self._n_silent > HEAD_BYTES:
            self._close(TOO_LARGE)

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            if self._upgrading:  # the parser skips the body of such a request, so parse it without that header
                self._upgrading, head = False, self._without_upgrade()
                self.parser = HttpRequestParser(self)
                self._parse(head + data[upgrade.args[0] :])
        except HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _without_upgrade(self) -> bytes:
        """The head of the request without headers that request another protocol."""
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                tokens = (token.strip() for token in value.split(b","))
                value = b", ".join(token for token in tokens if token.lower() not in UPGRADING)
            if name not in UPGRADING:
                lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        """Start to count the bytes of a request."""
        super().on_message_begin()
        self._begun, self._n_head, self._n_silent = True, 0, 0
        self._expect(self.head_s)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; trailers are ignored."""
        if self._begun:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop the timer for the headers; the app limits the time for the body."""
        self._begun = False
        self._stop_idle_timer()
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._upgrading = True
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many requests at once")  # the parser then answers 400
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass on a part of a body."""
        self._n_silent = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._n_silent = 0
        if not self._upgrading:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request; the answer may have been sent before the whole request arrived."""
        super().on_response_complete()
        if not self.pipeline and not self._begun:
            self._expect(self.head_s if self.cycle.more_body else self.timeout_keep_alive)

    def pause_writing(self) -> None:
        """Start a timer when the client does not read."""
        super().pause_writing()
        self._reading = self._reading or self.loop.call_later(READING_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop that timer when it reads again."""
        super().resume_writing()
        self._stop_reading_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        self._stop_idle_timer()
        self._stop_reading_timer()
        super().connection_lost(exc)

    def _expect(self, seconds: float) -> None:
        """Wait for the next request's headers for at most this long."""
        self._stop_idle_timer()
        if not self.transport.is_closing():
            self._idle[self] = None
            self._timer = self.loop.call_later(seconds, self._close)

    def _stop_idle_timer(self) -> None:
        self._idle.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_reading_timer(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _close(self, answer: bytes = LATE) -> None:
        self._stop_idle_timer()
        if not self.transport.is_closing():
            if self._begun or (answer is TOO_LARGE and self.cycle and not self.cycle.response_started):
                self.transport.write(answer)
            self.transport.close()
