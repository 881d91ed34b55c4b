"""Each request to a server as a value: a method, a route, JSON, and how its answer is read. Sends nothing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote

from polyrank.answering.explanation import Explanation
from polyrank.answering.protocol import Answer
from polyrank.data.pool import CandidateLike, pool_of
from polyrank.errors import (
    ArtifactError,
    DataError,
    LockedError,
    OfflineError,
    PolyrankError,
    ResourceError,
    UsageError,
)
from polyrank.records import Candidate, Context, ContextLike, Ranked

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Action = Literal["taken", "edited", "refused"]


@dataclass(frozen=True, slots=True)
class Call(Generic[T_co]):
    """A request.

    Args:
        method: of HTTP.
        path: the route, with its query.
        read: the answer's JSON -> what the caller gets.
        body: to be sent as JSON; None: nothing.
        missing: what a 404 that says ``not_found`` means; None: an error.
    """

    method: str
    path: str
    read: Callable[[Any], T_co]
    body: Mapping[str, Any] | None = None
    missing: Callable[[], T_co] | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Some candidates of a catalogue.

    Args:
        candidates: in the order in which they were added.
        next: where the next page starts; None: there is none.
    """

    candidates: tuple[Candidate, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Something that a server serves.

    Args:
        id: the name that requests call it by.
        kind: "index", "pipeline" or "model".
        facts: all that the server tells of it, such as ``n_candidates``, ``scorer`` and ``fingerprint``.
    """

    id: str
    kind: str
    facts: Mapping[str, Any] = field(repr=False)


def respond(
    context: ContextLike,
    k: int,
    *,
    model: str | None,
    filter: str | None,
    conversation: str | None,
    allow_echo: bool,
    diverse: bool,
) -> Call[Answer]:
    """The best replies."""
    given = _given(model=model, filter=filter, conversation=conversation)
    given |= {name: True for name, wanted in (("allow_echo", allow_echo), ("diverse", diverse)) if wanted}
    body = _context(context) | {"k": k} | given
    return Call("POST", "/v1/respond", _answer, body)


def explain(
    context: ContextLike, *, text: str | None, candidate_id: str | None, model: str | None, filter: str | None
) -> Call[Explanation]:
    """Why a reply has its score."""
    if (text is None) == (candidate_id is None):
        raise UsageError(f"text = {text!r} and candidate_id = {candidate_id!r}; name the reply by one of both")
    body = _context(context) | _given(text=text, id=candidate_id, model=model, filter=filter)
    return Call("POST", "/v1/explain", Explanation.from_dict, body)


def score(context: ContextLike, candidates: Sequence[str], *, model: str | None) -> Call[list[float]]:
    """Raw scores."""
    body = _context(context) | {"candidates": list(candidates)} | _given(model=model)
    return Call("POST", "/v1/score", lambda answer: list(map(float, answer["scores"])), body)


def add(candidates: Iterable[CandidateLike], *, replace: bool, model: str | None) -> Call[list[str]]:
    """Candidates, durable when it answers."""
    rows = [{"id": one.id, "text": one.text, "metadata": one.metadata} for one in pool_of(candidates)]
    body = {"candidates": rows, "replace": replace} | _given(model=model)
    return Call("POST", "/v1/candidates", lambda answer: list(answer["ids"]), body)


def remove(ids: Sequence[str], *, model: str | None) -> Call[int]:
    """How many candidates were there."""
    body = {"ids": list(ids)} | _given(model=model)
    return Call("POST", "/v1/candidates/remove", lambda answer: int(answer["removed"]), body)


def candidate(candidate_id: str, *, model: str | None) -> Call[Candidate | None]:
    """One candidate; None where there is none."""
    path = f"/v1/candidates/{quote(candidate_id, safe='')}"
    return Call("GET", _with_query(path, model=model), _candidate, missing=lambda: None)


def candidates(words: str, *, filter: str | None, model: str | None, after: str | None, limit: int) -> Call[Page]:
    """A page of the catalogue."""
    path = _with_query("/v1/candidates", q=words or None, filter=filter, model=model, after=after, limit=str(limit))
    return Call("GET", path, lambda page: Page(tuple(map(_candidate, page["candidates"])), page["next"]))


def feedback(request: Answer | str, action: Action, *, candidate_id: str | None, final_text: str | None) -> Call[bool]:
    """Whether the outcome is new."""
    request_id = request if isinstance(request, str) else request.request_id
    if not request_id:
        raise UsageError("the answer has no request_id, because no server gave it; pass one of respond")
    body = {"request_id": request_id, "action": action} | _given(candidate_id=candidate_id, final_text=final_text)
    return Call("POST", "/v1/feedback", lambda answer: bool(answer["recorded"]), body)


def report() -> Call[dict[str, Any]]:
    """How suggestions are used."""
    return Call("GET", "/v1/feedback/report", dict)


def models() -> Call[list[ServedModel]]:
    """What is served."""
    return Call(
        "GET",
        "/v1/models",
        lambda all_: [ServedModel(one["id"], one.get("kind", "model"), one) for one in all_["data"]],
    )


_ERRORS: dict[int, type[PolyrankError]] = {
    409: LockedError,
    422: DataError,
    429: ResourceError,
    500: ArtifactError,
    504: ResourceError,
    507: ResourceError,
}


def error_of(status: int, content: Any) -> PolyrankError:
    """The error that the same fault raises in this process.

    Args:
        status: of HTTP.
        content: the answer's JSON, or its text where it is none.

    >>> error_of(409, {"error": {"message": "another process is writing to this index", "code": "locked"}})
    LockedError('another process is writing to this index')
    """
    detail = content.get("error", content) if isinstance(content, Mapping) else {}
    message = detail.get("message") if isinstance(detail, Mapping) else None
    code = detail.get("code") if isinstance(detail, Mapping) else None
    if status == 503:
        kind: type[PolyrankError] = OfflineError if code == "offline" else ResourceError
    else:
        kind = _ERRORS.get(status, UsageError if status < 500 else PolyrankError)
    return kind(message or f"the server answered {status}; see its log")


def code_of(content: Any) -> str | None:
    """The word for programs of an error's JSON."""
    detail = content.get("error") if isinstance(content, Mapping) else None
    return detail.get("code") if isinstance(detail, Mapping) else None


def _context(context: ContextLike) -> dict[str, Any]:
    read = Context.of(context)
    return {"context": list(read.turns)} | ({"background": list(read.background)} if read.background else {})


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _with_query(path: str, **values: str | None) -> str:
    given = "&".join(f"{name}={quote(value, safe='')}" for name, value in _given(**values).items())
    return f"{path}?{given}" if given else path


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
    return Ranked(row["id"], row["text"], row["score"], dict(row["metadata"]), _given(**stages))
