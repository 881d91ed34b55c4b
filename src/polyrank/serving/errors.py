"""Errors as clients expect them: a status, a shape, and one sentence that repeats little of what was sent."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from polyrank.errors import (
    DataError,
    DeadlineError,
    LockedError,
    MissingExtraError,
    OfflineError,
    PolyrankError,
    ReadOnlyError,
    ResourceError,
    UsageError,
)
from polyrank.serving.jobs import OverloadedError
from polyrank.serving.pool import DiedError, RefusedError

SHOWN = 100  # characters of what was sent
COHERE = ("/rerank", "/v1/rerank", "/v2/rerank", "/v1/embed", "/v2/embed")
TEI = ("/rerank", "/embed", "/info", "/health")
TEI_TYPES = {408: "timeout", 413: "validation", 429: "overloaded", 503: "unhealthy", 504: "timeout"}

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "overloaded_error",
    504: "timeout_error",
    507: "storage_error",
}


class HttpError(Exception):
    """What is answered instead of a result.

    Args:
        status: of HTTP.
        message: one sentence.
        param: the field that is wrong.
        code: a word for programs.
        retry_after: seconds until it is worth another try.
        headers: further ones.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["retry-after"] = str(max(1, math.ceil(retry_after)))

    def body(self, path: str) -> dict[str, Any]:
        """The shape that clients of a route expect."""
        if path in COHERE or path in TEI:
            kind = TEI_TYPES.get(self.status, "validation" if self.status < 500 else "backend")
            cohere = {"message": self.message} if path in COHERE else {}
            return cohere | ({"error": self.message, "error_type": kind} if path in TEI else {})
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def shown(text: str) -> str:
    """What a message may repeat of what was sent.

    >>> shown("a" * 200) == "'" + "a" * 97 + "...'"
    True
    """
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 3] + "...")


def of_validation(errors: Iterable[Mapping[str, Any]]) -> HttpError:
    """What a request lacks or has too much of, without repeating it."""
    problems: list[str] = []
    param = None
    for error in errors:
        field = _field(error.get("loc", ())[1:])  # behind body, query or path
        if error.get("type") == "token_ids":
            return HttpError(400, f"{field}: {error['msg']}", param=field, code="token_ids")
        if error.get("type") == "json_invalid":
            return HttpError(400, "the body is not JSON; send one JSON object in UTF-8", code="invalid_json")
        if not field:
            return HttpError(422, "the body is no JSON object; send one", code="invalid_value")
        param = param or field
        unknown = error.get("type") == "extra_forbidden"
        problems.append(
            f"{field} is not a field of this route" if unknown else f"{field}: {error.get('msg', 'is wrong')}"
        )
    said = "; ".join(dict.fromkeys(problems[:3])) or "the request is wrong"
    return HttpError(422, said, param=param, code="invalid_value")


_TYPE = re.compile(r"[A-Z]\w*|.*\[.*|str|int")  # pydantic names which of several types it tried, among the fields


def _field(where: Iterable[Any]) -> str:
    text = ""
    for part in where:
        if isinstance(part, str) and _TYPE.fullmatch(part):
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{str(part)[:SHOWN]}" if text else str(part)[:SHOWN]
    return text


def http_error(error: Exception) -> HttpError:
    """The answer to what went wrong while a request was worked on."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, OverloadedError):
        return HttpError(429, str(error), code="overloaded", retry_after=error.retry_after)
    if isinstance(error, TimeoutError):
        return HttpError(
            503, "it was not done in time; try again later, or ask for less", code="timeout", retry_after=2
        )
    if isinstance(error, DiedError):
        return HttpError(500, "the model's process died of this request; ask for less", code="worker_died")
    if isinstance(error, RefusedError):
        return _of_refusal(error.kind, str(error))
    if isinstance(error, PolyrankError):
        return _of_refusal(type(error).__name__, str(error))
    return HttpError(500, "internal error", code="internal")


_STATUS = {
    UsageError.__name__: 400,
    MissingExtraError.__name__: 400,
    DataError.__name__: 422,
    LockedError.__name__: 409,
    ResourceError.__name__: 507,
    ReadOnlyError.__name__: 507,
    DeadlineError.__name__: 504,
    OfflineError.__name__: 503,
}
_HIDING = {  # what names files of the server says something general instead
    409: "another process is writing to this index; try again when it has finished",
    507: "the disk is full or failing; nothing was written",
    503: "the server that holds the candidates does not answer; try again later, a change too: it may be there in part",
    500: "what is served is damaged or was replaced; its owner finds the reason in the server's log",
}


_QUOTED = re.compile(rf"""(['"])((?:(?!\1).){{{SHOWN - 3}}})(?:(?!\1).){{4,}}\1""")  # too long to be repeated


def _of_refusal(kind: str, message: str) -> HttpError:
    status = _STATUS.get(kind, 500)
    if kind == ReadOnlyError.__name__:
        return HttpError(status, "the server's disk cannot be written to; nothing was written", code="read_only")
    return HttpError(
        status,
        _HIDING.get(status, _QUOTED.sub(r"\1\2...\1", message)[:1000]),
        code={409: "locked", 503: "offline", 504: "deadline", 507: "storage", 500: "internal"}.get(status, "refused"),
        retry_after=5 if status in (409, 503, 507) else None,
    )
