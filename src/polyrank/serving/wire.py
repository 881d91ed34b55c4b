"""Requests and answers of polyrank's own routes; ``dialects`` has those of other services.

Unknown fields and values of other types are refused by name, because ignoring them would mislead the client.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from polyrank.data.fields import turns_if_messages

Text = str
TextList = Annotated[list[Text], Field(fail_fast=True)]  # the first wrong entry ends the check


def _turns(value: Any) -> Any:
    """Convert messages to turns; other values are checked as they are."""
    try:
        return turns_if_messages(value)
    except TypeError as error:
        raise PydanticCustomError("message", "{reason}", {"reason": str(error)[:200]}) from error


class Message(BaseModel):
    """A turn with the role of its speaker, as in chat APIs."""

    model_config = ConfigDict(extra="allow")
    role: str = Field(description="user or assistant; messages of system, developer, tool and function are skipped.")
    content: Text | list[dict[str, Any]] | None = Field(description="A text, or parts, of which only texts are used.")


Turns = Annotated[
    Text | Annotated[list[Text], Field(min_length=1, fail_fast=True)],
    BeforeValidator(_turns, json_schema_input_type=Text | list[Text] | list[Message]),
]
Name = Annotated[str | None, Field(description="Name of a model, ranker or index; omitted: the first suitable one.")]
Id = Annotated[str, Field(description="Id of the candidate.")]
Metadata = Annotated[dict[str, Any], Field(description="JSON that was added with the candidate.")]
CatalogueSize = Annotated[int, Field(description="Number of candidates in the index after the change.")]
ServedName = Annotated[str, Field(description="Name of the model, ranker or index that answered.")]
RequestId = Annotated[str, Field(description="Same as the header x-request-id, unless the client sent that.")]
Usage = Annotated[dict[str, int], Field(description="Number of tokens that the model read.")]
Facts = Annotated[TextList, Field(description="Facts about the whole conversation, such as persona lines.")]
ConversationId = Annotated[str | None, Field(description="Id of the conversation, which groups requests for feedback.")]


class Request(BaseModel):
    """The base of all requests."""

    model_config = ConfigDict(allow_inf_nan=False, extra="forbid", strict=True)


class Background(Request):
    """A conversation to answer."""

    model: Name = None
    context: Turns = Field(
        description="One turn, or a list of turns or messages, oldest first.", examples=[["my wifi is down"]]
    )
    background: Facts = []


class RespondRequest(Background):
    """A context to find replies for."""

    k: int = Field(5, ge=1, le=1_000_000, description="Number of replies.")
    conversation: ConversationId = Field(None, max_length=512)
    filter: str | None = Field(
        None, min_length=1, description='Condition on metadata, such as lang = "en".', examples=[None]
    )
    diverse: bool = Field(False, description="Skip near-copies of better replies; may return fewer than k.")
    any_language: bool = Field(False, description="Also return replies in other languages than the context's.")
    allow_echo: bool = Field(False, description="Also return replies that repeat a turn of the context.")


class RespondReply(BaseModel):
    """A reply."""

    id: Id
    text: str = Field(description="The reply with the values of its slots, as far as the context has them.")
    template: str = Field(description="The candidate's text, with slots such as {order}.")
    slots: dict[str, str | None] = Field(description="The value of each slot; null: a gap, which text shows.")
    score: float = Field(description="Raw score, higher is better.")
    retrieval_score: float | None = Field(None, description="Score of the retriever, if a second stage re-ranks.")
    rerank_score: float | None = Field(None, description="Score of the re-ranker, if there is one.")
    metadata: Metadata


class RespondAnswer(BaseModel):
    """Replies, best first."""

    request_id: RequestId
    model: ServedName
    results: list[RespondReply] = Field(description="Best first.")
    abstained: bool = Field(description="Whether no reply is good enough.")
    confidence: float | None = Field(
        None, description="The value that is compared with the threshold; null: no threshold, or too few replies."
    )
    exact: bool | None = Field(None, description="Whether these are proven to be the best; null: unknown.")
    n_scored: int | None = Field(None, description="Number of candidates that were scored; null: unknown.")
    ways: list[str] = Field([], description="The search methods that were used.")
    notes: list[str] = Field([], description="Warnings, such as a filter on a field that no candidate has.")
    timings_ms: dict[str, float] = Field(
        description="Waiting for a process, computing (with others' requests), and in the model."
    )


class NewCandidate(Request):
    """A candidate to add."""

    text: Text = Field(min_length=1, description="Text of the reply.")
    id: str | None = Field(None, min_length=1, max_length=512, description="Omitted: derived from the text.")
    metadata: dict[str, Any] = Field({}, description="JSON to store with it, for filters and clients.")


class KnownCandidate(NewCandidate):
    """A candidate of the catalogue, as a client read it."""

    id: Id


class AddRequest(Request):
    """Candidates to add, all or none."""

    model: Name = None
    candidates: Annotated[list[NewCandidate], Field(fail_fast=True)] = Field(description="May be empty.")
    replace: bool = Field(
        False, description="Whether candidates with the same ids are replaced; otherwise they are an error."
    )
    previous: Annotated[list[KnownCandidate], Field(fail_fast=True)] = Field(
        [], description="Candidates as you read them: refused with 412 if one was changed or removed since."
    )


class RemoveRequest(Request):
    """Candidates to remove, by id or by a filter; unknown ids are ignored."""

    model: Name = None
    ids: TextList | None = Field(None, description="Ids of candidates; may be empty.")
    filter: str | None = Field(
        None, min_length=1, description='Instead of ids, a condition on metadata, such as lang = "en".', examples=[None]
    )


class CandidateRow(BaseModel):
    """A candidate in the catalogue."""

    id: Id
    text: str = Field(description="Text of the reply.")
    metadata: Metadata


class AddAnswer(BaseModel):
    """The ids of the added candidates, which are durable."""

    ids: list[str] = Field(description="In the order of the request.")
    n_candidates: CatalogueSize


class RemoveAnswer(BaseModel):
    """The number of removed candidates."""

    removed: int = Field(description="Number of candidates that were removed.")
    n_candidates: CatalogueSize


class CandidatesAnswer(BaseModel):
    """A page of the catalogue."""

    candidates: list[CandidateRow] = Field(description="In the order in which they were added.")
    next: str | None = Field(None, description="Send it as `after` to get the next page; null: this is the last page.")
    n_candidates: CatalogueSize


class ScoreRequest(Background):
    """Scores for candidates, in their order."""

    candidates: TextList = Field(description="Texts to score.", examples=[["restart the router", "pay the bill"]])


class ScoreAnswer(BaseModel):
    """Raw scores, in the order of the candidates."""

    model: ServedName
    scores: list[float] = Field(description="Higher is better.")
    usage: Usage


class ExplainRequest(Background):
    """A reply to explain: its text, or the id of a candidate."""

    text: Text | None = Field(None, min_length=1, description="Any text.", examples=["restart the router"])
    id: str | None = Field(None, description="Id of a candidate of the index.")
    filter: str | None = Field(None, min_length=1, description="The filter of the request.", examples=[None])


class ShownReply(Request):
    """A reply that the user was shown."""

    id: Id
    score: float | None = Field(None, description="Its score in the answer.")
    text: Text | None = Field(None, description="Stored only if the server keeps texts.")


class ShownList(Request):
    """Replies that a user was shown, if this server did not return them."""

    model: str | None = Field(None, description="Name of the model that answered, for the report.")
    context: Text | TextList = Field([], description="One turn, or a list of turns, oldest first; empty: unknown.")
    background: Facts = []
    conversation: ConversationId = None
    results: Annotated[list[ShownReply], Field(fail_fast=True)] = Field(description="In the order shown.")


class FeedbackRequest(Request):
    """The outcome of shown replies."""

    request_id: str = Field(description="Id of the answer of /v1/respond, or of `shown`.")
    action: Literal["taken", "edited", "refused"] = Field(
        description="The user sent a reply as it was, or edited it, or refused all replies."
    )
    candidate_id: str | None = Field(None, description="Id of the reply that was taken or edited.")
    final_text: Text | None = Field(None, description="The text that the user sent after editing or refusing.")
    shown: ShownList | None = Field(None, description="The shown replies, if this server did not return them.")


class FeedbackAnswer(BaseModel):
    """Whether the outcome is new; the same outcome is recorded once."""

    recorded: bool = Field(description="false: it was recorded before.")


class ModelRow(BaseModel):
    """A model, ranker or index."""

    model_config = ConfigDict(extra="allow")
    id: str = Field(description="The name that requests use.")
    object: Literal["model"] = Field(default="model", description="As in OpenAI's API.")
    created: int = Field(description="Start time of the server, in seconds since 1970.")
    owned_by: str = Field(default="polyrank", description="As in OpenAI's API.")
    stats: dict[str, Any] = Field(default={}, description="Empty; clients of Infinity need it.")


class ModelsAnswer(BaseModel):
    """All models, rankers and indexes."""

    object: Literal["list"] = Field(default="list", description="As in OpenAI's API.")
    data: list[ModelRow] = Field(description="Requests without a name use the first suitable one.")


class Status(BaseModel):
    """The state of the server."""

    status: str = Field(description="live or ready.")


class ErrorDetail(BaseModel):
    """A description of the error."""

    message: str = Field(description="The problem and how to fix it.")
    type: str = Field(description="Depends on the status, as in OpenAI's API.")
    param: str | None = Field(None, description="The wrong field.")
    code: str | None = Field(None, description="A short name for programs.")


class ErrorAnswer(BaseModel):
    """An error in the format of OpenAI's API."""

    error: ErrorDetail = Field(description="The error.")
