"""Checks before every route: API keys, sizes and capacity; and a log line for each request.

An ASGI layer, because it must refuse requests before their bodies are read. It knows no routes and no models.
"""

import asyncio
import ipaddress
import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from polyrank.config.serving import LimitSettings
from polyrank.serving.errors import HttpError, http_error
from polyrank.serving.keys import Keys
from polyrank.serving.log import name_of

log = logging.getLogger("polyrank.access")

OPEN = ("/live", "/ready", "/health", "/v1/cluster/auth")  # need no key
SMALL_BODY = 64 * 1024  # bytes; smaller bodies are always accepted
LARGE_BODIES = 16  # bodies of the maximum size that may be in memory at once
CLIENT_LEFT = 499  # logged if a client did not wait for its answer
LOCAL = re.compile(r"(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
PROXIES = ("x-forwarded-", "forwarded", "via", "x-real-ip")  # beginnings of headers that proxies add
OWN_ID = re.compile(rb"[\w.:/+=@-]{1,128}", re.ASCII)  # of a request, from a client or a proxy
TRACE = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")  # W3C Trace Context
FREE_PATHS = "/v1/candidates/"  # ids may contain and end in slashes
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Guard:
    """The ASGI layer around an app.

    Args:
        app: the app.
        keys: valid API keys.
        limits: of requests.
        check_capacity: raises if the server has no capacity for a request that computes.
        on_answer: called with the route, the status and the seconds of each request.
        computing: paths of routes that compute.
        prefix: removed from the beginning of paths.
        changes: whether a request with this method and path changes candidates.
        stopping: whether clients should use another server.
        signed: paths that need no key, because their routes check signatures.
    """

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]],
        *,
        keys: Keys,
        limits: LimitSettings,
        check_capacity: Callable[[], None],
        on_answer: Callable[[str, int, float], None],
        computing: frozenset[str],
        changes: Callable[[str, str], bool],
        stopping: Callable[[], bool] = lambda: False,
        signed: frozenset[str] = frozenset(),
        prefix: str = "",
    ) -> None:
        self.app, self.keys, self.limits = app, keys, limits
        self._check_capacity, self._on_answer, self._computing = check_capacity, on_answer, computing
        self._changes, self._stopping, self._signed = changes, stopping, signed
        self._prefix = prefix.rstrip("/")
        self._n_active = 0
        self._n_bytes = 0  # of large bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008})
            return
        scope["path"] = self._path(scope["path"])
        request = _Request(scope, receive, send)
        self._n_active += 1
        try:
            await self._answer(request)
        except Exception as error:
            if request.status and not request.complete:
                raise  # part of the answer was sent: the connection ends
            answer = http_error(error)
            if not request.complete:
                await refuse(answer, scope, request.send)
            if not isinstance(error, HttpError) and answer.status == 500:
                log.error("%s", json.dumps({"request_id": request.id, "error": name_of(error)}))
        finally:
            self._n_active -= 1
            self._n_bytes -= request.n_bytes
            self._note(request)

    def _path(self, path: str) -> str:
        """A path without the prefix, repeated slashes and slashes at its end, which clients' base URLs lead to."""
        rest = path.removeprefix(self._prefix)
        path = rest if rest.startswith("/") else "/" if not rest else path
        is_free = path.startswith(FREE_PATHS) and path != FREE_PATHS
        return path if is_free else re.sub("/+", "/", path).rstrip("/") or "/"

    async def _answer(self, request: "_Request") -> None:
        """Pass a request to the app once its body has arrived, for as long as its client waits.

        Raises:
            HttpError: the request is refused.
        """
        scope = request.scope
        request.last = self._stopping()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if {"content-length", "transfer-encoding"} <= headers.keys():  # a proxy may read another body from it
            raise HttpError(400, "the request has a Content-Length and a Transfer-Encoding; send one", headers=CLOSE)
        if scope["path"] in OPEN:
            return await self.app(scope, request.receive, request.send)
        if self._n_active > self.limits.connections:
            raise _overloaded("too many requests are open")
        self._check_caller(request, headers)
        body = b""
        if scope["method"] in ("POST", "PUT", "PATCH"):
            self._check_body(scope, headers)
            body = await self._body(request)
        work = asyncio.create_task(self.app(scope, request.replay(body), request.send))
        gone = asyncio.create_task(request.until_gone())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            work.cancel()  # no effect if it is done
        with suppress(asyncio.CancelledError):
            await work
        request.status = request.status or CLIENT_LEFT
        return None

    def _check_body(self, scope: Scope, headers: dict[str, str]) -> None:
        if scope["path"] in self._computing:
            self._check_capacity()
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        none = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
        # browsers always send an origin; without one, a type is not needed to keep pages elsewhere out
        if not kind and "origin" not in headers:
            scope["headers"] = [*scope["headers"], (b"content-type", b"application/json")]
        elif kind != "application/json" and not kind.endswith("+json") and not none:
            raise HttpError(415, "the content type is not application/json; send JSON with that type", headers=CLOSE)
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise HttpError(415, "the body is compressed; send it without Content-Encoding", headers=CLOSE)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self.limits.body_bytes:
            raise self._too_long()

    def _check_caller(self, request: "_Request", headers: dict[str, str]) -> None:
        scope = request.scope
        if sum(name == b"host" for name, _ in scope["headers"]) > 1:
            raise HttpError(400, "the request has two Host headers; send one", headers=CLOSE)
        if scope["path"] in self._signed:
            return
        changes = self._changes(scope["method"], scope["path"])
        sent = headers.get("authorization") or f"Bearer {headers.get('api-key', '')}"  # as Azure's clients send it
        key = self.keys.admit(sent.encode("latin-1"))
        if not self.keys:
            self._check_local(headers)
        if key is not None:
            request.key = scope["state"]["key"] = key.name
            scope["state"]["filter"] = key.filter
            if changes and key.right == "read":
                raise HttpError(403, "this key may not change candidates; use a write key", code="read_only_key")
        elif self.keys or changes:
            which = "no valid key; send one" if self.keys else "changes need the key that the server printed; send it"
            message, basic = f"{which} as Authorization: Bearer KEY", 'Basic realm="polyrank", charset="UTF-8"'
            raise HttpError(401, message, code="invalid_api_key", headers={"www-authenticate": basic})

    @staticmethod
    def _check_local(headers: dict[str, str]) -> None:
        # without keys only this machine has access; a web page elsewhere could use a name that resolves to it
        problem = "" if LOCAL.fullmatch(headers.get("host", "")) else "only localhost has access"
        if any(name.startswith(PROXIES) for name in headers):
            problem = problem or "proxies are refused, because they would open the server to everyone"
        if problem:
            raise HttpError(403, f"without keys {problem}; start the server with an API key file", code="no_keys")

    async def _body(self, request: "_Request") -> bytes:
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.body_timeout_s):
                while True:
                    message = await request.receive()
                    if message["type"] == "http.disconnect":
                        raise HttpError(CLIENT_LEFT, "the client left")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self.limits.body_bytes:
                        raise self._too_long()
                    if size > SMALL_BODY:
                        self._count_large(request, size)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            late = f"the request did not arrive within {self.limits.body_timeout_s:g} s; send it faster"
            raise HttpError(408, late, headers=CLOSE) from None

    def _count_large(self, request: "_Request", size: int) -> None:
        """Count the bytes of a large body that have arrived."""
        self._n_bytes += size - request.n_bytes
        request.n_bytes = size
        if self._n_bytes > LARGE_BODIES * self.limits.body_bytes:
            raise _overloaded("too many large requests are open")

    def _too_long(self) -> HttpError:
        return HttpError(
            413, f"the body is longer than {self.limits.body_bytes:,} bytes; send less at a time", headers=CLOSE
        )

    def _note(self, request: "_Request") -> None:
        scope, seconds = request.scope, time.perf_counter() - request.started
        # the route's pattern, because a path may contain a user's text
        named = scope["path"] in OPEN or scope["path"] in self._computing  # may have been refused before routing
        route = getattr(scope.get("route"), "path_format", None) or (scope["path"] if named else "none")
        self._on_answer(route, request.status, seconds)
        if route in OPEN:  # monitoring requests them every second
            return
        row = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "request_id": request.id,
            **({"traceparent": request.trace.decode()} if request.trace else {}),
            "method": scope["method"] if scope["method"].isalpha() and len(scope["method"]) < 10 else "?",
            "route": route,
            "status": request.status,
            "ms": round(seconds * 1000, 1),
            "client": _address((scope.get("client") or ("",))[0]),
            "key": request.key,
            **({"warnings": request.warnings} if request.warnings else {}),
        }
        log.info("%s", json.dumps(row))


class _Request:
    """One request, and its time, id and status."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope, self.receive, self._send = scope, receive, send
        self.started = time.perf_counter()
        self.key: str | None = None  # name of the key that it was sent with
        sent = dict(scope["headers"])
        wanted, trace = sent.get(b"x-request-id", b""), sent.get(b"traceparent", b"")
        own = secrets.token_hex(12)
        self.id = wanted.decode() if OWN_ID.fullmatch(wanted) else own
        self.trace = trace if TRACE.fullmatch(trace) else b""
        # clients may send an id again; feedback needs one for each answer
        scope.setdefault("state", {}).update(request_id=self.id, answer_id=own)
        self.warnings: list[str] = scope["state"].setdefault("warnings", [])
        self.status = 0  # until the answer starts
        self.complete = False
        self.last = False  # on its connection
        self.n_bytes = 0  # of its body, if it is large

    async def send(self, message: Message) -> None:
        """Send a part of the answer, with the headers of all answers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            fixed = [(b"x-request-id", self.id.encode()), *HEADERS]
            if self.trace:
                fixed += [(b"traceparent", self.trace)]
            if self.last:
                fixed += [(b"connection", b"close")]
            if self.warnings:  # some clients' answers are lists, which have no field for them
                fixed += [(b"x-warnings", "; ".join(self.warnings).encode("ascii", "replace"))]
            message = {**message, "headers": [*message.get("headers", ()), *fixed]}
        await self._send(message)
        self.complete = message["type"] == "http.response.body" and not message.get("more_body")

    def replay(self, body: bytes) -> Receive:
        """A receive function that returns the body that was read already."""
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return messages.pop() if messages else await self.receive()

        return receive

    async def until_gone(self) -> None:
        """Wait until the client has left or has its answer."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


CLOSE = {"connection": "close"}  # the rest of the body is not read


def _address(text: str) -> str:
    """A client's address for the log; a proxy may have copied any text of its header."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return "?"


def _overloaded(message: str) -> HttpError:
    return HttpError(503, f"{message}; try again in a moment", code="overloaded", retry_after=1, headers=CLOSE)


async def refuse(error: HttpError, scope: Scope, send: Send) -> None:
    """Send an error as the answer."""
    body = b"" if scope["method"] == "HEAD" else json.dumps(error.body(scope["path"])).encode()
    answer = Response(body, error.status, error.headers, "application/json")
    await send({"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers})
    await send({"type": "http.response.body", "body": body})
