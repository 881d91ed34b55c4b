"""Bodies as JSON is defined, within limits: no NaN, no number beyond a double's, no key twice, no half of a character.

Limits are checked before anything else, and the first error ends it, so that a refusal costs little. What is large is
parsed by a thread, since the event loop answers everybody.
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

FIELDS = 64  # of one object, but for metadata
DEPTH = 8  # of lists and objects inside each other, but for metadata
FREE = "metadata"  # any JSON: the index limits its bytes and depth
TURNS = ("context", "background")
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)  # one without an end, too: then it is linear


class StrictRoute(APIRoute):
    """A route whose body is read strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As FastAPI's, which finds the body read already."""
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            if self.body_field is not None and (body := await request.body()):
                server = request.app.state.server
                request._json = await server.aside(len(body), read_json, body, server.limits)
            return await handle(request)

        return strict


def read_json(body: bytes, limits: LimitSettings) -> Any:
    """What a body holds.

    Raises:
        HttpError: it is too much, not JSON, or what every program reads differently.

    >>> read_json(b'{"k": 5}', LimitSettings())
    {'k': 5}
    """
    if holds_more(body, limits.values):
        raise HttpError(
            422, f"the body holds more than {limits.values:,} JSON values; send less at a time", code="too_many"
        )
    try:
        value = json.loads(body.decode(), object_pairs_hook=_object, parse_constant=_no_number, parse_float=_float)
    except HttpError:
        raise
    except (ValueError, RecursionError):
        raise _refused("the body is not JSON; send one JSON object in UTF-8") from None
    check_sizes(value, limits)
    if SURROGATE.search(body):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise HttpError(422, "a text holds a lone surrogate; send UTF-8", code="invalid_value") from None
    return value


def holds_more(body: bytes, limit: int) -> bool:
    """Whether there are more values in a body; it is read no further than that takes.

    >>> holds_more(b'{"a": [1, 2]}', 3), holds_more(b'["1, 2, 3"]', 3)
    (True, False)
    """
    if _n_marks(body) < limit:  # of texts, too
        return False
    n, end = 1, 0
    for text in STRING.finditer(body):
        n += _n_marks(body[end : text.start()])
        if n > limit:
            return True
        end = text.end()
    return n + _n_marks(body[end:]) > limit


def _n_marks(part: bytes) -> int:
    """Marks before which or after which a value is."""
    return sum(map(part.count, (b",", b"[", b"{")))


def check_sizes(value: Any, limits: LimitSettings, field: str = "", name: str = "", depth: int = 0) -> None:
    """Refuse lists and texts that are too long, whatever field they are in.

    Args:
        value: of JSON.
        limits: of requests.
        field: where the value is in the body, for messages.
        name: of the field in which it is.
        depth: of lists and objects around it.

    Raises:
        HttpError: names the first.

    >>> check_sizes({"documents": [1, 1, 1]}, LimitSettings(items=2))
    Traceback (most recent call last):
    polyrank.serving.errors.HttpError: documents has 3 entries, the limit is 2; send fewer
    """
    if isinstance(value, str):
        if len(value) > limits.characters:
            _too_much(field, len(value), "characters", limits.characters)
        return
    if not isinstance(value, list | dict):
        return
    if depth > DEPTH:
        raise HttpError(422, f"{field} is nested deeper than {DEPTH}; send it flat", param=field, code="too_deep")
    if isinstance(value, list):
        if name in TURNS and len(value) > limits.turns:
            _too_much(field, len(value), "turns", limits.turns, "the last ones")
        if len(value) > limits.items:
            _too_much(field, len(value), "entries", limits.items)
        for position, entry in enumerate(value):
            check_sizes(entry, limits, f"{field}[{position}]", name, depth + 1)
        return
    if len(value) > FIELDS:
        _too_much(field or "the body", len(value), "fields", FIELDS)
    for key, entry in value.items():
        if key != FREE:
            check_sizes(entry, limits, f"{field}.{key[:100]}" if field else key[:100], key, depth + 1)


def _too_much(field: str, n: int, what: str, limit: int, remedy: str = "fewer") -> None:
    raise HttpError(
        422, f"{field} has {n:,} {what}, the limit is {limit:,}; send {remedy}", param=field or None, code="too_many"
    )


def _object(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise _refused("a key of the body is there twice; send it once")
    return values


def _no_number(name: str) -> None:
    raise _refused(f"the body holds {name}, which JSON has no word for; send null or a number")


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _refused("a number of the body is beyond 1.8e308; send a smaller one")
    return number


def _refused(message: str) -> HttpError:
    return HttpError(400, message, code="invalid_json")
