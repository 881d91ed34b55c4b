"""Strict JSON bodies within limits: no NaN, no number beyond a double's range, no repeated key, no lone surrogate.

Limits are checked first, and the first error ends the check, so that a refusal is cheap. A thread parses large bodies,
because the event loop serves all clients.
"""

import json
import math
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from polyrank.config.serving import LimitSettings
from polyrank.serving.errors import HttpError

FIELDS = 64  # per object, except in metadata
DEPTH = 8  # of nested lists and objects, except in metadata
FREE = "metadata"  # any JSON; the index limits its size and depth
TURNS = ("context", "background")
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)  # also without a closing quote, for linear time


class StrictRoute(APIRoute):
    """A route whose body is parsed strictly, and whose query has only known parameters, each once."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, which then uses the parsed body."""
        handle = super().get_route_handler()
        known = {parameter.alias for parameter in self.dependant.query_params}

        async def strict(request: Request) -> Response:
            if unknown := set(request.query_params) - known:
                name = min(unknown)[:100]
                raise HttpError(422, f"{name} is not a parameter of this route", param=name, code="invalid_value")
            for name in known:
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
        HttpError: it exceeds a limit, is not JSON, or is JSON that parsers interpret differently.
    >>> read_json(b'{"k": 5}', LimitSettings())
    {'k': 5}
    """
    if has_more_values(body, limits.values):
        raise HttpError(
            422, f"the body has more than {limits.values:,} JSON values; send fewer at a time", code="too_many"
        )
    try:
        value = json.loads(
            body.decode(), object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_float
        )
    except HttpError:
        raise
    except (ValueError, RecursionError):
        raise _invalid("the body is not JSON; send one JSON object in UTF-8") from None
    check_sizes(value, limits)
    if SURROGATE.search(body):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise HttpError(422, "a text contains a lone surrogate; send valid UTF-8", code="invalid_value") from None
    return value


def has_more_values(body: bytes, limit: int) -> bool:
    """Whether a body has more than ``limit`` JSON values; stops reading as soon as that is known.

    >>> has_more_values(b'{"a": [1, 2]}', 3), has_more_values(b'["1, 2, 3"]', 3)
    (True, False)
    """
    if _n_marks(body) < limit:  # marks inside texts are counted too
        return False
    n, end = 1, 0
    for text in STRING.finditer(body):
        n += _n_marks(body[end : text.start()])
        if n > limit:
            return True
        end = text.end()
    return n + _n_marks(body[end:]) > limit


def _n_marks(part: bytes) -> int:
    """Number of marks that a value follows or precedes."""
    return sum(map(part.count, (b",", b"[", b"{")))


def check_sizes(value: Any, limits: LimitSettings, field: str = "", name: str = "", depth: int = 0) -> None:
    """Refuse lists and texts that are too long, in any field.

    Args:
        value: parsed JSON.
        limits: of requests.
        field: path of the value in the body, for messages.
        name: of the field that contains it.
        depth: number of lists and objects around it.

    Raises:
        HttpError: names the first one.

    >>> check_sizes({"documents": [1, 1, 1]}, LimitSettings(items=2))
    Traceback (most recent call last):
    polyrank.serving.errors.HttpError: documents has 3 entries, the limit is 2; send fewer
    """
    if depth > DEPTH and type(value) in (list, dict):
        raise HttpError(422, f"{field} is nested deeper than {DEPTH} levels; flatten it", param=field, code="too_deep")
    match value:
        case str() if len(value) > limits.characters:
            refuse_size(field, len(value), "characters", limits.characters, "a shorter text")
        case list():
            if name in TURNS and len(value) > limits.turns:
                refuse_size(field, len(value), "turns", limits.turns, "the last ones")
            if len(value) > limits.items:
                refuse_size(field, len(value), "entries", limits.items)
            for position, entry in enumerate(value):
                check_sizes(entry, limits, f"{field}[{position}]", name, depth + 1)
        case dict():
            if len(value) > FIELDS:
                refuse_size(field or "the body", len(value), "fields", FIELDS)
            for key, entry in value.items():
                if key != FREE:
                    check_sizes(entry, limits, f"{field}.{key[:100]}" if field else key[:100], key, depth + 1)


def refuse_size(field: str, n: int, what: str, limit: int, remedy: str = "fewer") -> None:
    raise HttpError(
        422, f"{field} has {n:,} {what}, the limit is {limit:,}; send {remedy}", param=field or None, code="too_many"
    )


def _object(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise _invalid("a key of the body is repeated; send each key once")
    return values


def _refuse_constant(name: str) -> None:
    raise _invalid(f"the body contains {name}, which is not JSON; send null or a number")


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _invalid("a number of the body is beyond 1.8e308; send a smaller one")
    return number


def _invalid(message: str) -> HttpError:
    return HttpError(400, message, code="invalid_json")
