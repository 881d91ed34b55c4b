"""Requests to a server as values, and what their answers mean: results and errors. Sends nothing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from polyrank import errors
from polyrank.answering.answers import Answer
from polyrank.data.pool import CandidateLike, pool_of
from polyrank.records import Candidate, Context, ContextLike, Ranked

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Call(Generic[T_co]):
    """A request.

    Args:
        method: the HTTP method.
        path: the route, with its query.
        read: converts the answer's JSON to the result.
        body: sent as JSON; None: no body.
        missing: the result for a 404 with the code ``not_found``; None: the 404 is an error.
    """

    method: str
    path: str
    read: Callable[[Any], T_co]
    body: Mapping[str, Any] | None = None
    missing: Callable[[], T_co] | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a catalogue.

    Args:
        candidates: in the order in which they were added.
        next: where the next page starts; None on the last page.
    """

    candidates: tuple[Candidate, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class ServedModel:
    """An index, a ranker or a model on a server.

    Args:
        id: its name in requests.
        kind: "index" or "model"; empty while the server is opening it.
        facts: the server's description of it, such as ``n_candidates``, ``scorer`` and ``fingerprint``.
    """

    id: str
    kind: str
    facts: Mapping[str, Any] = field(repr=False)


_ERRORS: dict[int, type[errors.PolyrankError]] = {
    409: errors.LockedError,
    412: errors.DataError,
    422: errors.DataError,
    429: errors.ResourceError,
    500: errors.ArtifactError,
    503: errors.ResourceError,
    504: errors.ResourceError,
    507: errors.ResourceError,
}
_ERRORS_BY_CODE = {"deadline": errors.DeadlineError, "offline": errors.OfflineError, "read_only": errors.ReadOnlyError}


def error_of(status: int, content: Any) -> errors.PolyrankError:
    """Convert an error answer to the exception that a local index would raise.

    Args:
        status: the HTTP status.
        content: the answer's JSON, or its text if it is not JSON.

    >>> error_of(409, {"error": {"message": "another process is writing to this index", "code": "locked"}})
    LockedError('another process is writing to this index')
    """
    kind = _ERRORS.get(status, errors.UsageError if status < 500 else errors.PolyrankError)
    kind = _ERRORS_BY_CODE.get(error_code(content), kind)
    return kind(_error(content).get("message") or f"the server answered {status}; see its log")


def error_code(content: Any) -> str:
    """The machine-readable code in an error's JSON; empty if it has none."""
    return str(_error(content).get("code") or "")


def _error(content: Any) -> Mapping[str, Any]:
    """The object that holds message and code; empty if there is none, as in the page of a proxy."""
    detail = content.get("error", content) if isinstance(content, Mapping) else {}
    return detail if isinstance(detail, Mapping) else {}


def context_fields(context: ContextLike) -> dict[str, Any]:
    """The fields of a body that state a context."""
    query = Context.of(context)
    return {"context": list(query.turns)} | given(background=list(query.background) or None)


def candidate_rows(candidates: Iterable[CandidateLike]) -> list[dict[str, Any]]:
    """Candidates as they are sent."""
    return [{"id": one.id, "text": one.text, "metadata": one.metadata} for one in pool_of(candidates)]


def listed(values: Sequence[str], name: str) -> list[str]:
    """A list of texts; ``name`` is that of the argument, for errors."""
    if isinstance(values, str):
        raise TypeError(f"{name} = {values!r} is one text; give a list of texts")
    return list(values)


def given(**values: Any) -> dict[str, Any]:
    """The values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def with_query(path: str, **values: str | None) -> str:
    """A route with those parameters that are not None."""
    query = "&".join(f"{name}={quoted(value)}" for name, value in given(**values).items())
    return f"{path}?{query}" if query else path


def quoted(text: str) -> str:
    """A text as a part of a URL."""
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as error:
        raise not_unicode(error) from error


def not_unicode(error: UnicodeEncodeError) -> errors.DataError:
    """The error of a text that cannot be sent."""
    return errors.DataError(f"a text contains the lone surrogate {error.object[error.start]!r}; use valid Unicode")


def read_candidate(row: Mapping[str, Any]) -> Candidate:
    """A candidate of an answer."""
    return Candidate(row["id"], row["text"], dict(row["metadata"]))


def read_page(content: Mapping[str, Any]) -> Page:
    """A page of an answer."""
    return Page(tuple(map(read_candidate, content["candidates"])), content["next"])


def read_models(content: Mapping[str, Any]) -> list[ServedModel]:
    """The served models of an answer."""
    return [ServedModel(row["id"], row.get("kind", ""), row) for row in content["data"]]


def read_answer(content: Mapping[str, Any]) -> Answer:
    """Replies of an answer."""
    return Answer(
        tuple(_ranked(row) for row in content["results"]),
        content["confidence"],
        content["abstained"],
        content["exact"],
        content["n_scored"],
        tuple(content["ways"]),
        content["request_id"],
        tuple(content.get("notes", ())),
    )


def _ranked(row: Mapping[str, Any]) -> Ranked:
    stages = {"retriever": row["retrieval_score"], "reranker": row["rerank_score"]}
    return Ranked(
        row["id"],
        row["text"],
        row["score"],
        dict(row["metadata"]),
        given(**stages),
        row["template"],
        dict(row["slots"]),
    )
