"""HTTP/1.1 for clients that may be slow, silent or greedy: each holds little, and none for long."""

import asyncio
from typing import ClassVar

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 * 1024  # of a request's first line and headers
UPGRADING = (b"upgrade", b"http2-settings")
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
    _upgrading = False  # its headers ask for another protocol
    _n_head = 0
    _n_silent = 0  # bytes behind the headers that were no body: what chunks and trailers say of themselves

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A new connection, from which nothing has come yet."""
        super().connection_made(transport)  # type: ignore[arg-type]  # TCP
        self._expect(self.head_s)
        if len(self.connections) > self.most and (longest := next(iter(self._idle))) is not self:
            longest._leave()

    def data_received(self, data: bytes) -> None:
        """A part of a request, or of several."""
        self._n_silent += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        if self._begun:
            self._n_head += len(data)
        if (self._begun and self._n_head > HEAD_BYTES) or self._n_silent > HEAD_BYTES:
            self._leave(TOO_LARGE)

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            if self._upgrading:  # the parser drops the body of such a request, so one reads it that sees no such header
                self._upgrading, head = False, self._without_upgrade()
                self.parser = HttpRequestParser(self)
                self._parse(head + data[upgrade.args[0] :])
        except HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _without_upgrade(self) -> bytes:
        """The head of the request, as a client of HTTP/1.1 alone would have sent it."""
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                tokens = (token.strip() for token in value.split(b","))
                value = b", ".join(token for token in tokens if token.lower() not in UPGRADING)
            if name not in UPGRADING:
                lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._begun, self._n_head, self._n_silent = True, 0, 0
        self._expect(self.head_s)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; those behind a body are thrown away."""
        if self._begun:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """All headers are there; who sends the body too slowly is told so by the app."""
        self._begun = False
        self._forget()
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._upgrading = True
            return
        if len(self.pipeline) >= PIPELINED:
            raise ValueError("too many requests at once")  # which the parser answers with 400
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        self._n_silent = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of a request."""
        self._n_silent = 0
        if not self._upgrading:
            super().on_message_complete()

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
            if self._begun or (answer is TOO_LARGE and self.cycle and not self.cycle.response_started):
                self.transport.write(answer)
            self.transport.close()
