"""Bodies as JSON is defined: no NaN, no number beyond a double's, no key twice, no half of a character."""

import json
import math
import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from polyrank.serving.errors import HttpError

SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class StrictRoute(APIRoute):
    """A route whose body is read strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As FastAPI's, which finds the body read already."""
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            if self.body_field is not None and (body := await request.body()):
                request._json = read_json(body)
            return await handle(request)

        return strict


def read_json(body: bytes) -> Any:
    """What a body holds.

    Raises:
        HttpError: it is not JSON, or what every program reads differently.

    >>> read_json(b'{"k": 5}')
    {'k': 5}
    """
    try:
        value = json.loads(body.decode(), object_pairs_hook=_object, parse_constant=_no_number, parse_float=_float)
    except HttpError:
        raise
    except (ValueError, RecursionError):
        raise _refused("the body is not JSON; send one JSON object in UTF-8") from None
    if SURROGATE.search(body):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise HttpError(422, "a text holds a lone surrogate; send UTF-8", code="invalid_value") from None
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
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
