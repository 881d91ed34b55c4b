"""HTTP errors: a status, the shape that the route's clients expect, and one sentence that quotes little input."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from http.client import responses
from typing import Any

from polyrank import errors
from polyrank.serving.jobs import OverloadedError
from polyrank.serving.pool import RefusedError, WorkerDiedError

SHOWN = 100  # characters of input that a message quotes
RANKINGS = ("/v1/ranking", "/ranking", "/v1/retrieval/{name:path}/reranking")  # NVIDIA's
DASHSCOPE = "/api/v1/services/rerank/text-rerank/text-rerank"
ZERO_ENTROPY = ("/v1/models/rerank", "/models/rerank")
RERANKS = (
    *("/v1/rerank", "/v2/rerank", "/v1/reranks", "/reranks", "/v1/reranking", "/reranking"),
    *(DASHSCOPE, *RANKINGS, *ZERO_ENTROPY),
)
COHERE = ("/rerank", *RERANKS, "/v1/embed", "/v2/embed")
TEI = ("/rerank", "/embed", "/similarity", "/info", "/health", "/")
TEI_TYPES = {429: "Overloaded", 503: "Unhealthy"}
OPENAI = ("/v1/embeddings", "/embeddings", "/openai/", "/infinity/embeddings")  # beginnings
OLLAMA = ("/api/embed", "/api/embeddings", "/api/rerank")
NO_DETAIL = ("/rerank", "/v2/rerank", "/v1/embed", "/v2/embed")  # Jina's and Voyage's errors have this field

NVIDIA = re.compile("(/v1)?/ranking|/v1/retrieval/.*")  # whose errors are problem details, as in RFC 9457

TYPES = {  # others below 500: invalid_request_error, from 500: server_error
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    412: "conflict_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    507: "storage_error",
}


class HttpError(Exception):
    """An error answer.

    Args:
        status: HTTP status code.
        message: one sentence.
        param: the field that is wrong.
        code: a short name for programs.
        retry_after: seconds after which a retry may succeed.
        headers: additional headers.
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

    def status_of(self, path: str) -> int:
        """The status that clients of a route expect: OpenAI answers 400 to invalid values, Cohere to long texts."""
        invalid = (path.startswith(OPENAI) and self.status == 422) or (path in COHERE[1:] and self.code == "too_long")
        return 400 if invalid else self.status

    def body(self, path: str) -> dict[str, Any]:
        """The error in the shape that clients of a route expect."""
        if NVIDIA.fullmatch(path):
            return {"status": self.status, "title": responses.get(self.status, ""), "detail": self.message}
        if path in COHERE or path in TEI:
            kind = TEI_TYPES.get(self.status, "Validation" if self.status < 500 else "Backend")
            body = {"message": self.message} if path in COHERE else {}
            body |= {"detail": self.message} if path in RERANKS and path not in NO_DETAIL else {}
            return body | ({"error": self.message, "error_type": kind} if path in TEI else {})
        if path in OLLAMA:
            return {"error": self.message}
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def shown(text: str) -> str:
    """Input as a message quotes it.

    >>> shown("a" * 200) == "'" + "a" * 97 + "...'"
    True
    """
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 3] + "...")


def of_validation(details: Iterable[Mapping[str, Any]]) -> HttpError:
    """Describe the fields that are missing or wrong, without quoting their values."""
    problems: list[str] = []
    param = None
    for error in details:
        unknown = error.get("type") == "extra_forbidden"
        field = _field(error.get("loc", ())[1:], unknown)  # the first part is body, query or path
        if error.get("type") == "token_ids":
            return HttpError(400, f"{field}: {error['msg']}", param=field, code="token_ids")
        if error.get("type") == "json_invalid":
            return HttpError(400, "the body is not JSON; send one JSON object in UTF-8", code="invalid_json")
        if not field:
            return HttpError(422, "the body is not a JSON object; send one", code="invalid_value")
        param = param or field
        problems.append(
            f"{field} is not a field of this route" if unknown else f"{field}: {error.get('msg', 'is wrong')}"
        )
    message = "; ".join(dict.fromkeys(problems[:3])) or "the request is wrong"
    return HttpError(422, message, param=param, code="invalid_value")


# of several possible types, pydantic lists those it tried as fields
_TYPE = re.compile(r"[A-Z]\w*|.*\[.*|str|int|bool|float")


def _field(where: Sequence[Any], unknown: bool) -> str:
    """The path of a field; the last part is the client's name of an unknown field, which may look like a type."""
    text = ""
    for place, part in enumerate(where, 1):
        if isinstance(part, str) and _TYPE.fullmatch(part) and not (unknown and place == len(where)):
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{str(part)[:SHOWN]}" if text else str(part)[:SHOWN]
    return text


def http_error(error: Exception) -> HttpError:
    """The answer to an exception that was raised while a request was handled."""
    match error:
        case HttpError():
            return error
        case OverloadedError():
            return HttpError(429, str(error), code="overloaded", retry_after=error.retry_after)
        case TimeoutError():
            return HttpError(503, "the request timed out; try again later, or send less", code="timeout", retry_after=2)
        case WorkerDiedError():
            return HttpError(500, "the model's process died during this request; send less", code="worker_died")
        case RefusedError():
            return _of_refusal(error.kind, str(error))
        case errors.PolyrankError():
            return _of_refusal(type(error).__name__, str(error))
    return HttpError(500, "internal error", code="internal")


# status, code, and a message that replaces the error's, which may name files of the server; empty: the error's own
_REFUSALS = {
    errors.UsageError.__name__: (400, "refused", ""),
    errors.MissingExtraError.__name__: (400, "refused", ""),
    errors.DataError.__name__: (422, "refused", ""),
    errors.LockedError.__name__: (
        409,
        "locked",
        "another process is writing to this index; try again when it has finished",
    ),
    errors.ResourceError.__name__: (507, "storage", "the disk is full or failing; nothing was written"),
    errors.ReadOnlyError.__name__: (507, "read_only", "the server's disk cannot be written to; nothing was written"),
    errors.DeadlineError.__name__: (504, "deadline", ""),
    errors.OfflineError.__name__: (
        503,
        "offline",
        "the server that stores the candidates does not answer; try again later; a change may be partly applied",
    ),
}
_DAMAGED = 500, "internal", "the model or index is damaged or was replaced; the server's log states the reason"


_QUOTED = re.compile(rf"""(['"])((?:(?!\1).){{{SHOWN - 3}}})(?:(?!\1).){{4,}}\1""")  # quotes that are too long

_ARGUMENT = re.compile(r"`(\w+)=True`")  # as in Python; over HTTP it is a field


def _of_refusal(kind: str, message: str) -> HttpError:
    status, code, general = _REFUSALS.get(kind, _DAMAGED)
    return HttpError(
        status,
        general or _ARGUMENT.sub(r'`"\1": true`', _QUOTED.sub(r"\1\2...\1", message))[:1000],
        code=code,
        retry_after=5 if code in ("locked", "offline", "storage") else None,
    )
