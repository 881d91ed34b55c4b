"""What comes before every route: who asks, how much, and whether there is room; and what is noted of each request.

An ASGI layer, since it must refuse before a body is read. It knows no route and no model.
"""

import asyncio
import json
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from contextlib import suppress
from typing import Any

from polyrank.config.serving import LimitSettings
from polyrank.serving.errors import HttpError, http_error
from polyrank.serving.keys import Keys

log = logging.getLogger("polyrank.access")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]

OPEN = ("/live", "/ready", "/health")  # to everybody
SMALL_BODY = 64 * 1024  # bytes that a request may always bring
LARGE_BODIES = 16  # of the greatest size, that may be in memory at once
LEFT = 499  # noted where a client did not wait for its answer
LOCAL = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
PROXIES = ("x-forwarded-", "forwarded", "via", "x-real-ip")  # headers that begin so tell of others who ask
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Guard:
    """The layer around an app.

    Args:
        app: what is guarded.
        keys: that open it.
        limits: of requests.
        check_room: raises where there is no room for a request that computes.
        noted: called with the route, the status and the seconds of each request.
        computing: paths of routes that compute.
        changes: whether a method and a path change what is served.
        stopping: whether clients should go elsewhere.
    """

    def __init__(
        self,
        app: App,
        *,
        keys: Keys,
        limits: LimitSettings,
        check_room: Callable[[], None],
        noted: Callable[[str, int, float], None],
        computing: frozenset[str],
        changes: Callable[[str, str], bool],
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.app, self.keys, self.limits = app, keys, limits
        self._check_room, self._noted, self._computing, self._stopping = check_room, noted, computing, stopping
        self._changes = changes
        self._n_active = 0
        self._n_bytes = 0  # of large bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or hand it on."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008})
            return
        request = _Request(scope, receive, send)
        self._n_active += 1
        try:
            await self._answer(request)
        except Exception as error:
            if request.status and not request.complete:
                raise  # half an answer: the connection ends with it
            answer = http_error(error)
            if not request.complete:
                await refuse(answer, scope, request.send)
            if not isinstance(error, HttpError) and answer.status == 500:
                log.error("%s", json.dumps({"request_id": request.id, "error": type(error).__name__}))
        finally:
            self._n_active -= 1
            self._n_bytes -= request.n_bytes
            self._note(request)

    async def _answer(self, request: "_Request") -> None:
        """Hand a request on, once its body is there, for as long as its client waits.

        Raises:
            HttpError: it may not come in.
        """
        scope = request.scope
        request.last = self._stopping()
        if scope["path"] in OPEN:
            return await self.app(scope, request.receive, request.send)
        if self._n_active > self.limits.connections:
            raise _crowded("too many requests are open")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self._check_caller(request, headers)
        body = b""
        if scope["method"] in ("POST", "PUT", "PATCH"):
            self._check_kind(scope, headers)
            body = await self._body(request)
        work = asyncio.create_task(self.app(scope, request.replay(body), request.send))
        gone = asyncio.create_task(request.until_gone())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            work.cancel()  # of no effect where it is done
        with suppress(asyncio.CancelledError):
            await work
        request.status = request.status or LEFT
        return None

    def _check_kind(self, scope: Scope, headers: dict[str, str]) -> None:
        if scope["path"] in self._computing:
            self._check_room()
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        none = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
        if kind != "application/json" and not kind.endswith("+json") and not none:
            raise HttpError(415, "the content type is not application/json; send JSON and say so", headers=CLOSE)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self.limits.body_bytes:
            raise self._too_long()

    def _check_caller(self, request: "_Request", headers: dict[str, str]) -> None:
        scope = request.scope
        if sum(name == b"host" for name, _ in scope["headers"]) > 1:
            raise HttpError(400, "the request has two Host headers; send one", headers=CLOSE)
        if self.keys:
            key = self.keys.admit(headers.get("authorization", "").encode("latin-1"))
            if key is None:
                said = {"www-authenticate": 'Basic realm="polyrank", charset="UTF-8"'}
                raise HttpError(
                    401, "no valid key; send one as Authorization: Bearer KEY", code="invalid_api_key", headers=said
                )
            request.key = key.name
            if key.right == "read" and self._changes(scope["method"], scope["path"]):
                raise HttpError(403, "this key may not change candidates; use one that may write", code="read_only_key")
            return
        # without keys only this machine may ask; a page elsewhere could reach it under a name that leads here
        if not LOCAL.fullmatch(headers.get("host", "")):
            raise HttpError(
                403, "without keys only localhost is answered; start the server with an API key file", code="no_keys"
            )
        if any(name.startswith(PROXIES) for name in headers):
            raise HttpError(
                403,
                "without keys no proxy is answered: it would let everybody in; start the server with an API key file",
                code="no_keys",
            )

    async def _body(self, request: "_Request") -> bytes:
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.body_timeout_s):
                while True:
                    message = await request.receive()
                    if message["type"] == "http.disconnect":
                        raise HttpError(LEFT, "the client left")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self.limits.body_bytes:
                        raise self._too_long()
                    if size > SMALL_BODY:
                        self._hold(request, size)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise HttpError(
                408,
                f"the request did not come whole within {self.limits.body_timeout_s:g} s; send it faster",
                headers=CLOSE,
            ) from None

    def _hold(self, request: "_Request", size: int) -> None:
        """Count a large body among those in memory, as far as it has come."""
        self._n_bytes += size - request.n_bytes
        request.n_bytes = size
        if self._n_bytes > LARGE_BODIES * self.limits.body_bytes:
            raise _crowded("too many large requests are open")

    def _too_long(self) -> HttpError:
        return HttpError(
            413, f"the body is longer than {self.limits.body_bytes:,} bytes; send less at a time", headers=CLOSE
        )

    def _note(self, request: "_Request") -> None:
        scope, seconds = request.scope, time.perf_counter() - request.started
        # the route as it was written, since a path may hold what a user wrote
        known = scope["path"] in OPEN or scope["path"] in self._computing  # refused before it came to its route
        route = getattr(scope.get("route"), "path_format", None) or (scope["path"] if known else "none")
        self._noted(route, request.status, seconds)
        if route in OPEN:  # asked every second, by whoever waits or watches
            return
        log.info(
            "%s",
            json.dumps(
                {
                    "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                    "request_id": request.id,
                    "method": scope["method"] if scope["method"].isalpha() and len(scope["method"]) < 10 else "?",
                    "route": route,
                    "status": request.status,
                    "ms": round(seconds * 1000, 1),
                    "client": (scope.get("client") or ("",))[0],
                    "key": request.key,
                }
            ),
        )


class _Request:
    """One request and what is known of it: when it came, what it is called, how it was answered."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope, self.receive, self._send = scope, receive, send
        self.started = time.perf_counter()
        self.key: str | None = None  # the name of the key that it came with
        self.id = scope.setdefault("state", {})["request_id"] = secrets.token_hex(12)
        self.status = 0  # until it is answered
        self.complete = False
        self.last = False  # of its connection
        self.n_bytes = 0  # of its body, if that is large

    async def send(self, message: Message) -> None:
        """Answer, with the headers that all answers have."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            fixed = [(b"x-request-id", self.id.encode()), *HEADERS]
            if self.last:
                fixed += [(b"connection", b"close")]
            message = {**message, "headers": [*message.get("headers", ()), *fixed]}
        await self._send(message)
        self.complete = message["type"] == "http.response.body" and not message.get("more_body")

    def replay(self, body: bytes) -> Receive:
        """The body, as if it came only now."""
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return messages.pop() if messages else await self.receive()

        return receive

    async def until_gone(self) -> None:
        """Wait until the client leaves, or has its answer."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


CLOSE = {"connection": "close"}  # what is left of the body is not read


def _crowded(message: str) -> HttpError:
    return HttpError(503, f"{message}; try again in a moment", code="overloaded", retry_after=1, headers=CLOSE)


async def refuse(error: HttpError, scope: Scope, send: Send) -> None:
    """Answer with an error."""
    body = b"" if scope["method"] == "HEAD" else json.dumps(error.body(scope["path"])).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    await send(
        {
            "type": "http.response.start",
            "status": error.status,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})
