"""JSON bodies within limits: the first error ends the check, so that a refusal is cheap.

A thread parses large bodies, because the event loop serves all clients.
"""

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json

from polyrank.config.serving import LimitSettings
from polyrank.serving.errors import HttpError

FIELDS = 64  # per object, except in metadata
DEPTH = 8  # of nested lists and objects, except in metadata
FREE = "metadata"  # any JSON; the index limits its size and depth
TURNS = ("context", "background")


class StrictRoute(APIRoute):
    """A route whose body is parsed strictly, and whose query has only known parameters, each once."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, which then uses the parsed body."""
        handle = super().get_route_handler()
        names = {parameter.alias for parameter in self.dependant.query_params}

        async def strict(request: Request) -> Response:
            if unknown := set(request.query_params) - names:
                name = min(unknown)[:100]
                raise HttpError(422, f"{name} is not a parameter of this route", param=name, code="invalid_value")
            for name in names:
                if (n := len(request.query_params.getlist(name))) > 1:  # all but the last would be ignored
                    raise HttpError(422, f"{name} is sent {n:,} times; send it once", param=name, code="invalid_value")
            if self.body_field is not None and (body := await request.body()):
                server = request.app.state.server
                request._json = await server.off_loop(len(body), read_json, body, server.limits)
            return await handle(request)

        return strict


def read_json(body: bytes, limits: LimitSettings) -> Any:
    """Parse a body.

    Raises:
        HttpError: it is not JSON, or exceeds a limit.
    >>> read_json(b'{"k": 5}', LimitSettings())
    {'k': 5}
    """
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError:
        raise HttpError(400, "the body is not JSON; send one JSON object in UTF-8", code="invalid_json") from None
    check_sizes(value, limits)
    return value


def check_sizes(value: Any, limits: LimitSettings) -> None:
    """Refuse lists and texts that are too long, in any field.

    Raises:
        HttpError: names the first one.

    >>> check_sizes({"documents": [1, 1, 1]}, LimitSettings(items=2))
    Traceback (most recent call last):
    polyrank.serving.errors.HttpError: documents has 3 entries, the limit is 2; send fewer
    """
    waiting = deque([("", "", value, 0)])  # path in the body, name of the field that contains it, value, depth
    n = 0
    while waiting:
        field, name, value, depth = waiting.popleft()
        if depth > DEPTH and isinstance(value, list | dict):
            message = f"{field} is nested deeper than {DEPTH} levels; flatten it"
            raise HttpError(422, message, param=field, code="too_deep")
        n += len(value) if isinstance(value, list | dict) else 0
        if isinstance(value, str) and len(value) > limits.characters:
            refuse_size(field, len(value), "characters", limits.characters, "a shorter text")
        elif isinstance(value, list):
            if name in TURNS and len(value) > limits.turns:
                refuse_size(field, len(value), "turns", limits.turns, "the last ones")
            if len(value) > limits.items:
                refuse_size(field, len(value), "entries", limits.items)
            if n > limits.values:
                refuse_size("", n, "JSON values", limits.values)
            waiting.extend((f"{field}[{position}]", name, entry, depth + 1) for position, entry in enumerate(value))
        elif isinstance(value, dict):
            if len(value) > FIELDS:
                refuse_size(field, len(value), "fields", FIELDS)
            inside = ((key[:100], key, entry) for key, entry in value.items() if key != FREE)
            waiting.extend((f"{field}.{part}" if field else part, key, entry, depth + 1) for part, key, entry in inside)


def refuse_size(field: str, n: int, what: str, limit: int, remedy: str = "fewer") -> None:
    name = field or "the body"
    raise HttpError(
        422, f"{name} has {n:,} {what}, the limit is {limit:,}; send {remedy}", param=field or None, code="too_many"
    )
