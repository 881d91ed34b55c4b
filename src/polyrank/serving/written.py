"""Answers as bytes of JSON: parts that other processes wrote are put together, large ones away from the event loop."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from fastapi import Response

from polyrank.serving.context import Server

MEDIA_TYPE = "application/json"


async def json_response(server: Server, value: Any) -> Response:
    """A value of dictionaries, lists, texts and numbers as an answer."""
    return Response(await server.aside(_size(value), orjson.dumps, value), media_type=MEDIA_TYPE)


def _size(value: Any) -> int:
    """About how many bytes it takes; exact enough to know the large ones."""
    if isinstance(value, str):
        return len(value)
    entries: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 16 + sum(map(_size, entries))


async def assembled(server: Server, body: Mapping[str, Any], **written: list[bytes] | bytes) -> Response:
    """A JSON object, some of whose values are JSON already: a value, or the entries of a list."""
    size = sum(len(value) if isinstance(value, bytes) else sum(map(len, value)) for value in written.values())
    return Response(await server.aside(size, _assembled, body, written), media_type=MEDIA_TYPE)


def _assembled(body: Mapping[str, Any], written: Mapping[str, list[bytes] | bytes]) -> bytes:
    parts = [orjson.dumps(body)[:-1]]
    for name, value in written.items():
        parts.append(b',"%s":' % name.encode())
        parts += [value] if isinstance(value, bytes) else [b"[", b",".join(value), b"]"]
    return b"".join([*parts, b"}"])


def merged(body: Mapping[str, Any], written: bytes) -> Response:
    """A JSON object, and after its fields those of one that is JSON already."""
    return Response(orjson.dumps(body)[:-1] + b"," + written[1:], media_type=MEDIA_TYPE)
