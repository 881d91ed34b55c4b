"""Requests to a server as values: method, route, JSON body, and a function that parses the answer. Sends nothing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from polyrank.answering.protocol import Answer
from polyrank.data.pool import CandidateLike, pool_of
from polyrank.errors import (
    ArtifactError,
    DataError,
    DeadlineError,
    LockedError,
    OfflineError,
    PolyrankError,
    ReadOnlyError,
    ResourceError,
    UsageError,
)
from polyrank.feedback.records import Action
from polyrank.records import Candidate, Context, ContextLike, Ranked
from polyrank.scorers.explanation import Explanation

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


def respond(
    context: ContextLike,
    k: int,
    model: str | None,
    filter: str | None,
    conversation: str | None,
    allow_echo: bool,
    diverse: bool,
) -> Call[Answer]:
    """Get the best replies."""
    if k < 1:
        raise UsageError(f"k is {k}; request at least one reply")
    given = _given(model=model, filter=filter, conversation=conversation)
    given |= _given(allow_echo=allow_echo or None, diverse=diverse or None)
    return Call("POST", "/v1/respond", _answer, _context(context) | {"k": k} | given)


def explain(
    context: ContextLike, *, text: str | None, candidate_id: str | None, model: str | None, filter: str | None
) -> Call[Explanation]:
    """Explain the score of a reply."""
    if (text is None) == (candidate_id is None):
        raise UsageError(f"text = {text!r} and candidate_id = {candidate_id!r}; give exactly one of the two")
    body = _context(context) | _given(text=text, id=candidate_id, model=model, filter=filter)
    return Call("POST", "/v1/explain", Explanation.from_dict, body)


def score(context: ContextLike, candidates: Sequence[str], *, model: str | None) -> Call[list[float]]:
    """Get raw scores."""
    body = _context(context) | {"candidates": _texts(candidates, "candidates")} | _given(model=model)
    return Call("POST", "/v1/score", lambda answer: list(map(float, answer["scores"])), body)


def add(
    candidates: Iterable[CandidateLike], *, replace: bool, previous: Iterable[CandidateLike], model: str | None
) -> Call[list[str]]:
    """Add candidates; they are on disk when the server answers."""
    new, known = (
        [{"id": one.id, "text": one.text, "metadata": one.metadata} for one in pool_of(side)]
        for side in (candidates, previous)
    )
    body = {"candidates": new, "replace": replace} | _given(previous=known or None, model=model)
    return Call("POST", "/v1/candidates", lambda answer: list(answer["ids"]), body)


def remove(ids: Sequence[str], *, model: str | None) -> Call[int]:
    """Remove candidates; the result is how many were in the catalogue."""
    body = {"ids": _texts(ids, "ids")} | _given(model=model)
    return Call("POST", "/v1/candidates/remove", lambda answer: int(answer["removed"]), body)


def _texts(values: Sequence[str], name: str) -> list[str]:
    if isinstance(values, str):
        raise TypeError(f"{name} = {values!r} is one text; give a list of texts")
    return list(values)


def candidate(candidate_id: str, *, model: str | None) -> Call[Candidate | None]:
    """Get one candidate, or None if the catalogue does not have it."""
    name = _quoted(candidate_id)
    if name in (".", ".."):  # paths lose these
        name = name.replace(".", "%2E")
    path = f"/v1/candidates/{name}"
    return Call("GET", _with_query(path, model=model), _candidate, missing=lambda: None)


def candidates(words: str, *, filter: str | None, model: str | None, after: str | None, limit: int) -> Call[Page]:
    """Get a page of the catalogue."""
    path = _with_query("/v1/candidates", q=words or None, filter=filter, model=model, after=after, limit=str(limit))
    return Call("GET", path, lambda page: Page(tuple(map(_candidate, page["candidates"])), page["next"]))


def feedback(request: Answer | str, action: Action, *, candidate_id: str | None, final_text: str | None) -> Call[bool]:
    """Report the outcome of an answer; the result is whether the server did not know it yet."""
    request_id = request if isinstance(request, str) else request.request_id
    if not request_id:
        raise UsageError("the answer has no request_id because it does not come from a server; give one from respond")
    body = {"request_id": request_id, "action": action} | _given(candidate_id=candidate_id, final_text=final_text)
    return Call("POST", "/v1/feedback", lambda answer: bool(answer["recorded"]), body)


def report() -> Call[dict[str, Any]]:
    """Get acceptance rates."""
    return Call("GET", "/v1/feedback/report", dict)


def models() -> Call[list[ServedModel]]:
    """List the indexes, rankers and models of the server."""
    return Call(
        "GET",
        "/v1/models",
        lambda all_: [ServedModel(one["id"], one.get("kind", ""), one) for one in all_["data"]],
    )


_ERRORS: dict[int, type[PolyrankError]] = {
    409: LockedError,
    412: DataError,
    422: DataError,
    429: ResourceError,
    500: ArtifactError,
    503: ResourceError,
    504: ResourceError,
    507: ResourceError,
}
_ERRORS_BY_CODE = {"deadline": DeadlineError, "offline": OfflineError, "read_only": ReadOnlyError}


def error_of(status: int, content: Any) -> PolyrankError:
    """Convert an error answer to the exception that a local index would raise.

    Args:
        status: the HTTP status.
        content: the answer's JSON, or its text if it is not JSON.

    >>> error_of(409, {"error": {"message": "another process is writing to this index", "code": "locked"}})
    LockedError('another process is writing to this index')
    """
    kind = _ERRORS.get(status, UsageError if status < 500 else PolyrankError)
    kind = _ERRORS_BY_CODE.get(error_code(content), kind)
    return kind(_error(content).get("message") or f"the server answered {status}; see its log")


def error_code(content: Any) -> str:
    """The machine-readable code in an error's JSON; empty if it has none."""
    return str(_error(content).get("code") or "")


def _error(content: Any) -> Mapping[str, Any]:
    """The object that holds message and code; empty if there is none, as in the page of a proxy."""
    detail = content.get("error", content) if isinstance(content, Mapping) else {}
    return detail if isinstance(detail, Mapping) else {}


def _context(context: ContextLike) -> dict[str, Any]:
    query = Context.of(context)
    return {"context": list(query.turns)} | _given(background=list(query.background) or None)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _with_query(path: str, **values: str | None) -> str:
    given = "&".join(f"{name}={_quoted(value)}" for name, value in _given(**values).items())
    return f"{path}?{given}" if given else path


def _quoted(text: str) -> str:
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as error:
        raise not_unicode(error) from error


def not_unicode(error: UnicodeEncodeError) -> DataError:
    """The error of a text that cannot be sent."""
    return DataError(f"a text contains the lone surrogate {error.object[error.start]!r}; use valid Unicode")


def _candidate(row: Mapping[str, Any]) -> Candidate:
    return Candidate(row["id"], row["text"], dict(row["metadata"]))


def _answer(content: Mapping[str, Any]) -> Answer:
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
        _given(**stages),
        row["template"],
        dict(row["slots"]),
    )
