"""What requests and answers of polyrank's own routes look like; those of other services are in ``dialects``.

Fields that are unknown and values of other types are refused by name. What is ignored would mislead its sender.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from polyrank.records import turns_of

Text = str
Texts = Annotated[list[Text], Field(fail_fast=True)]  # the first that is wrong ends it


def _turns(value: Any) -> Any:
    """Of messages the turns; anything else is checked as it is."""
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        return value
    try:
        return list(turns_of(value))
    except TypeError as error:
        raise PydanticCustomError("message", "{reason}", {"reason": str(error)[:200]}) from error


class Message(BaseModel):
    """A turn with the role of its speaker, as chat services have it."""

    model_config = ConfigDict(extra="allow")
    role: str = Field(description="user or assistant; system, developer, tool and function are no turns.")
    content: Text | list[dict[str, Any]] | None = Field(description="A text, or parts of which those of text count.")


Turns = Annotated[
    Text | Annotated[list[Text], Field(min_length=1, fail_fast=True)],
    BeforeValidator(_turns, json_schema_input_type=Text | list[Text] | list[Message]),
]
Name = Annotated[str | None, Field(description="Of what is served; left out: the first that can do it.")]
Id = Annotated[str, Field(description="Of the candidate.")]
Metadata = Annotated[dict[str, Any], Field(description="JSON that was given with the candidate.")]
Size = Annotated[int, Field(description="Candidates in the index by now.")]
Served = Annotated[str, Field(description="The name of what answered.")]
RequestId = Annotated[str, Field(description="As in the header x-request-id.")]
Usage = Annotated[dict[str, int], Field(description="Tokens that were read.")]
Facts = Annotated[Texts, Field(description="Facts that hold throughout, such as persona lines.")]
Conversation = Annotated[str | None, Field(description="Whose requests belong together, for feedback.")]


class Request(BaseModel):
    """What all requests have in common."""

    model_config = ConfigDict(allow_inf_nan=False, extra="forbid", strict=True)


class Background(Request):
    """A conversation to answer."""

    model: Name = None
    context: Turns = Field(description="One turn, or turns or messages, oldest first.", examples=[["my wifi is down"]])
    background: Facts = []


class RespondRequest(Background):
    """A context to find replies for."""

    k: int = Field(5, ge=1, le=1_000_000, description="How many replies.")
    conversation: Conversation = Field(None, max_length=512)
    filter: str | None = Field(None, min_length=1, description='On metadata, such as lang = "en".', examples=[None])
    diverse: bool = Field(False, description="Replies that differ: fewer than k where the others are near-copies.")
    allow_echo: bool = Field(False, description="Also give what the context already contains, in the same words.")


class RespondReply(BaseModel):
    """A candidate that answers."""

    id: Id
    text: str = Field(description="The reply.")
    score: float = Field(description="Raw, higher is better.")
    retrieval_score: float | None = Field(None, description="Of the first of two stages.")
    rerank_score: float | None = Field(None, description="Of the second of two stages.")
    metadata: Metadata


class RespondAnswer(BaseModel):
    """Replies, best first."""

    request_id: RequestId
    model: Served
    results: list[RespondReply] = Field(description="Best first.")
    abstained: bool = Field(description="There is no good answer.")
    confidence: float | None = Field(
        None, description="What a pipeline's threshold is compared with; null: it has none, or there is one reply only."
    )
    exact: bool | None = Field(
        None, description="Whether these are proven to be the best; null: the search does not say."
    )
    n_scored: int | None = Field(None, description="Candidates that were scored; null: the search does not say.")
    ways: list[str] = Field([], description="How they were searched for.")
    notes: list[str] = Field([], description="Such as a filter on a field that no candidate has.")
    timings_ms: dict[str, float] = Field(
        description="waiting for a process, computing (with others' requests), and in the model."
    )


class NewCandidate(Request):
    """A candidate to add."""

    text: Text = Field(min_length=1, description="The reply.")
    id: str | None = Field(None, min_length=1, max_length=512, description="Left out: it comes from the text.")
    metadata: dict[str, Any] = Field({}, description="JSON to be kept with it, which filters ask for.")


class AddRequest(Request):
    """Candidates to add: all of them, or none."""

    model: Name = None
    candidates: Annotated[list[NewCandidate], Field(fail_fast=True)] = Field(min_length=1, description="At least one.")
    replace: bool = Field(False, description="Whether those of the same ids are replaced; else they are an error.")


class RemoveRequest(Request):
    """Candidates to remove. Ids that are not there are fine."""

    model: Name = None
    ids: Texts = Field(min_length=1, description="Of candidates, at least one.")


class CandidateRow(BaseModel):
    """A candidate of the catalogue."""

    id: Id
    text: str = Field(description="The reply.")
    metadata: Metadata


class AddAnswer(BaseModel):
    """What was added, durably."""

    ids: list[str] = Field(description="In the order of the request.")
    n_candidates: Size


class RemoveAnswer(BaseModel):
    """How many were there."""

    removed: int = Field(description="Candidates that were there, and are not any more.")
    n_candidates: Size


class CandidatesAnswer(BaseModel):
    """A page of the catalogue."""

    candidates: list[CandidateRow] = Field(description="In the order in which they were added.")
    next: str | None = Field(None, description="Ask with after = this for the next page; null: there is none.")
    n_candidates: Size


class ScoreRequest(Background):
    """Scores for candidates, in their order."""

    candidates: Texts = Field(description="Texts to be scored.", examples=[["restart the router", "pay the bill"]])


class ScoreAnswer(BaseModel):
    """Raw scores, in the order of the candidates."""

    model: Served
    scores: list[float] = Field(description="Higher is better.")
    usage: Usage


class ExplainRequest(Background):
    """A reply to explain: by its text, or the id of a candidate."""

    text: Text | None = Field(None, min_length=1, description="Any text.", examples=["restart the router"])
    id: str | None = Field(None, description="Of a candidate of the index.")
    filter: str | None = Field(None, min_length=1, description="What it was answered through.", examples=[None])


class ShownReply(Request):
    """A reply that somebody saw."""

    id: Id
    score: float | None = Field(None, description="As it was answered.")
    text: Text | None = Field(None, description="Stored only where the server keeps texts.")


class ShownList(Request):
    """What somebody saw, where this server did not answer it."""

    model: str | None = Field(None, description="What answered, for the report.")
    context: Text | Texts = Field([], description="One turn, or turns, oldest first; empty: not known.")
    background: Facts = []
    conversation: Conversation = None
    results: Annotated[list[ShownReply], Field(fail_fast=True)] = Field(
        description="In the order in which they were shown."
    )


class FeedbackRequest(Request):
    """What became of replies."""

    request_id: str = Field(description="Of the answer to /v1/respond, or of what was shown.")
    action: Literal["taken", "edited", "refused"] = Field(description="refused: nothing fitted.")
    candidate_id: str | None = Field(None, description="The reply that was taken or edited.")
    final_text: Text | None = Field(None, description="What was said in the end, where it was edited or refused.")
    shown: ShownList | None = Field(None, description="Where this server did not answer the request: what was shown.")


class FeedbackAnswer(BaseModel):
    """Whether this is new; what was recorded before is not recorded again."""

    recorded: bool = Field(description="false: it was known.")


class ModelRow(BaseModel):
    """Something that is served."""

    model_config = ConfigDict(extra="allow")
    id: str = Field(description="The name that requests call it by.")
    object: Literal["model"] = Field(default="model", description="As OpenAI says.")
    created: int = Field(description="When the server was started, in seconds since 1970.")
    owned_by: str = Field(default="polyrank", description="As OpenAI says.")


class ModelsAnswer(BaseModel):
    """All that is served."""

    object: Literal["list"] = Field(default="list", description="As OpenAI says.")
    data: list[ModelRow] = Field(description="The first is what requests without a name are for, if it can do it.")


class Status(BaseModel):
    """In a word."""

    status: str = Field(description="live, or ready.")


class ErrorDetail(BaseModel):
    """What is wrong."""

    message: str = Field(description="What is wrong, and what to do.")
    type: str = Field(description="By the status, as OpenAI says.")
    param: str | None = Field(None, description="The field that is wrong.")
    code: str | None = Field(None, description="A word for programs.")


class ErrorAnswer(BaseModel):
    """An error as OpenAI's clients expect it."""

    error: ErrorDetail = Field(description="All that is told of it.")
