"""What requests and answers look like: our own, and those of the services that clients were written for.

Of requests, fields that we do not know are passed over, as those services do; values of other types are refused.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Text = str
Texts = list[Text]
Turns = Text | Annotated[list[Text], Field(min_length=1)]
Name = Annotated[str | None, Field(description="Of what is served; left out: the first that can do it.")]


class Request(BaseModel):
    """What all requests have in common."""

    model_config = ConfigDict(allow_inf_nan=False, extra="ignore", strict=True)


class Background(Request):
    """A conversation to answer."""

    model: Name = None
    context: Turns = Field(description="One turn, or turns, oldest first.", examples=[["my wifi is down"]])
    background: Texts = Field([], description="Facts that hold throughout, such as persona lines.")


class RespondRequest(Background):
    """A context to find replies for."""

    k: int = Field(5, ge=1, le=1_000_000, description="How many replies.")
    conversation: str | None = Field(None, max_length=512, description="Whose requests belong together, for feedback.")
    filter: str | None = Field(None, min_length=1, description='On metadata, such as lang = "en".', examples=[None])


class RespondReply(BaseModel):
    """A candidate that answers."""

    id: str
    text: str
    score: float = Field(description="Raw, higher is better.")
    retrieval_score: float | None = Field(None, description="Of the first of two stages.")
    rerank_score: float | None = Field(None, description="Of the second of two stages.")
    metadata: dict[str, JsonValue]


class RespondAnswer(BaseModel):
    """Replies, best first."""

    request_id: str
    model: str
    results: list[RespondReply]
    abstained: bool = Field(description="There is no good answer.")
    confidence: float | None = None
    exact: bool | None = Field(
        None, description="Whether these are proven to be the best; null: the search does not say."
    )
    n_scored: int | None = None
    ways: list[str] = []
    timings_ms: dict[str, float]


class NewCandidate(Request):
    """A candidate to add."""

    text: Text = Field(min_length=1)
    id: str | None = Field(None, min_length=1, max_length=512, description="Left out: it comes from the text.")
    metadata: dict[str, JsonValue] = {}


class AddRequest(Request):
    """Candidates to add: all of them, or none."""

    model: Name = None
    candidates: list[NewCandidate] = Field(min_length=1)
    replace: bool = Field(False, description="Whether those of the same ids are replaced; else they are an error.")


class RemoveRequest(Request):
    """Candidates to remove. Ids that are not there are fine."""

    model: Name = None
    ids: list[str] = Field(min_length=1)


class CandidateRow(BaseModel):
    """A candidate of the catalogue."""

    id: str
    text: str
    metadata: dict[str, JsonValue]


class AddAnswer(BaseModel):
    """What was added, durably."""

    ids: list[str]
    n_candidates: int


class RemoveAnswer(BaseModel):
    """How many were there."""

    removed: int
    n_candidates: int


class CandidatesAnswer(BaseModel):
    """A page of the catalogue."""

    candidates: list[CandidateRow]
    next: str | None = Field(None, description="Ask with after = this for the next page; null: there is none.")
    n_candidates: int


class Document(Request):
    """A document as an object; other fields than the text are passed over."""

    text: Text


class CohereRerankRequest(Request):
    """As Cohere's, Jina's and their clients'."""

    model: Name = None
    query: Text = Field(examples=["my wifi is down"])
    documents: list[Text | Document] = Field(examples=[["restart the router", "pay the bill"]])
    top_n: int | None = Field(None, ge=1)
    return_documents: bool | None = None
    max_tokens_per_doc: int | None = Field(None, description="Passed over: a model reads as much as it was made for.")
    raw_scores: bool = Field(False, description="Scores as the model gives them, instead of their sigmoid.")


class CohereResult(BaseModel):
    """A document and its score."""

    index: int
    relevance_score: float
    document: dict[str, JsonValue] | None = None


class CohereRerankAnswer(BaseModel):
    """Documents, best first."""

    id: str
    model: str
    results: list[CohereResult]
    meta: dict[str, JsonValue]
    usage: dict[str, int]


class TeiRerankRequest(Request):
    """As text-embeddings-inference's."""

    query: Text
    texts: Texts
    raw_scores: bool = False
    return_text: bool = False
    truncate: bool = Field(False, description="Passed over: texts that are too long are always cut.")


class TeiResult(BaseModel):
    """A text and its score."""

    index: int
    score: float
    text: str | None = None


class ScoreRequest(Request):
    """Scores for candidates, in their order."""

    model: Name = None
    context: Turns = Field(examples=[["my wifi is down"]])
    background: Texts = []
    candidates: Texts = Field(examples=[["restart the router", "pay the bill"]])


class ScoreAnswer(BaseModel):
    """Raw scores, in the order of the candidates."""

    model: str
    scores: list[float]
    usage: dict[str, int]


class EmbeddingsRequest(Request):
    """As OpenAI's, with ``input_type`` for models whose two sides differ."""

    model: Name = None
    input: Text | Texts | list[int] | list[list[int]] = Field(examples=[["restart the router"]])
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
    input_type: Literal["query", "document", "search_query", "search_document"] = "document"


class Embedding(BaseModel):
    """A vector: numbers, or the base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingsAnswer(BaseModel):
    """Vectors, in the order of the inputs."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: dict[str, int]


class CohereEmbedRequest(Request):
    """As Cohere's."""

    model: Name = None
    texts: Texts = Field(examples=[["restart the router"]])
    input_type: str = "search_document"
    embedding_types: list[Literal["float", "base64"]] = ["float"]


class CohereEmbedAnswer(BaseModel):
    """Vectors by type."""

    id: str
    embeddings: dict[str, list[Any]]
    texts: list[str]
    meta: dict[str, JsonValue]
    response_type: Literal["embeddings_by_type"] = "embeddings_by_type"


class TeiEmbedRequest(Request):
    """As text-embeddings-inference's."""

    inputs: Text | Texts = Field(examples=["restart the router"])
    truncate: bool = Field(False, description="Passed over: texts that are too long are always cut.")
    normalize: bool = Field(False, description="Whether vectors are made of length one.")


class ExplainRequest(Background):
    """A reply to explain: by its text, or the id of a candidate."""

    text: Text | None = Field(None, examples=["restart the router"])
    id: str | None = None


class ShownReply(Request):
    """A reply that somebody saw."""

    id: str
    score: float | None = None
    text: Text | None = None


class ShownList(Request):
    """What somebody saw, where this server did not answer it."""

    model: str | None = None
    context: Text | Texts = []
    background: Texts = []
    conversation: str | None = None
    results: list[ShownReply]


class FeedbackRequest(Request):
    """What became of replies."""

    request_id: str = Field(description="Of the answer to /v1/respond, or of what was shown.")
    action: Literal["taken", "edited", "refused"]
    candidate_id: str | None = Field(None, description="The reply that was taken or edited.")
    final_text: Text | None = Field(None, description="What was said in the end, where it was edited or refused.")
    shown: ShownList | None = None


class FeedbackAnswer(BaseModel):
    """Whether this is new; what was recorded before is not recorded again."""

    recorded: bool


class ModelRow(BaseModel):
    """Something that is served."""

    model_config = ConfigDict(extra="allow")
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "polyrank"


class ModelsAnswer(BaseModel):
    """All that is served."""

    object: Literal["list"] = "list"
    data: list[ModelRow]


class Status(BaseModel):
    """In a word."""

    status: str


class ErrorDetail(BaseModel):
    """What is wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(BaseModel):
    """An error as OpenAI's clients expect it."""

    error: ErrorDetail


class CohereError(BaseModel):
    """An error as Cohere's clients expect it."""

    message: str
