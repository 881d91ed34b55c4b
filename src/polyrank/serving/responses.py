"""JSON answers: combines parts that other processes have encoded, large ones outside the event loop."""

from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import Request, Response

from polyrank.serving.context import Server
from polyrank.serving.dialects.fields import Dialect
from polyrank.serving.errors import HttpError, shown

MEDIA_TYPE = "application/json"


def warn(request: Request, message: str) -> None:
    """Warn the client of a request: in ``meta.warnings``, in the header ``x-warnings``, and in the log.

    Args:
        request: that is answered.
        message: in ASCII, without users' texts.
    """
    warnings: list[str] = request.scope["state"]["warnings"]
    if message not in warnings:
        warnings.append(message)


def check_fields(request: Request, payload: Dialect, model: str | None = None) -> str | None:
    """The model that a request in another service's format names; reports its unknown fields.

    Args:
        request: that is answered.
        payload: its body.
        model: that its address names.

    Raises:
        HttpError: it has an unknown field, and the settings refuse them; or it names two models.
    """
    server: Server = request.app.state.server
    if unknown := payload.unknown:
        if server.settings.unknown_fields == "refuse":
            raise HttpError(422, f"{unknown[0]} is not a field of this route", param=unknown[0], code="invalid_value")
        warn(request, f"ignored, because this server has no such field: {', '.join(unknown)}")
    if payload.model and not payload.names_models and not server.serves(payload.model):
        warn(request, "the model that the body names is not served; model=NAME in the address selects one")
        return model
    if model and payload.model and payload.model != model:
        message = f"the body names model {shown(payload.model)} and the address {shown(model)}"
        raise HttpError(422, message, param="model")
    return payload.model or model


def meta_of(request: Request, meta: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The field ``meta`` of an answer, with the warnings of its request; no field if it would be empty."""
    warnings = request.scope["state"]["warnings"]
    whole = {**(meta or {}), **({"warnings": warnings} if warnings else {})}
    return {"meta": whole} if whole else {}


def json_response(value: Any) -> Response:
    """An answer from dictionaries, lists, texts and numbers, which hold no more than a request."""
    return Response(orjson.dumps(value), media_type=MEDIA_TYPE)


async def assemble_response(server: Server, body: Mapping[str, Any], **encoded: list[bytes] | bytes) -> Response:
    """An answer with further fields that are encoded already: each a value, or the entries of a list."""
    size = sum(len(value) if isinstance(value, bytes) else sum(map(len, value)) for value in encoded.values())
    return Response(await server.off_loop(size, _assemble, body, encoded), media_type=MEDIA_TYPE)


def _assemble(body: Mapping[str, Any], encoded: Mapping[str, list[bytes] | bytes]) -> bytes:
    parts = [orjson.dumps(body)[:-1]]
    for name, value in encoded.items():
        parts.append(b',"%s":' % name.encode())
        parts += [value] if isinstance(value, bytes) else [b"[", b",".join(value), b"]"]
    return b"".join([*parts, b"}"])


def merge_response(body: Mapping[str, Any], encoded: bytes) -> Response:
    """An answer with the fields of a body, then those of an object that is encoded already."""
    return Response(orjson.dumps(body)[:-1] + b"," + encoded[1:], media_type=MEDIA_TYPE)
