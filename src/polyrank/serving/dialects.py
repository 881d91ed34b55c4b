"""Requests and answers of other services whose clients can use polyrank: Cohere, OpenAI, text-embeddings-inference.

Each of their fields is either supported or refused by name, because ignoring one would mislead the client.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, JsonValue, Tag
from pydantic_core import PydanticCustomError

from polyrank.serving.wire import Name, Request, RequestId, ServedName, Text, TextList, Usage

CohereMeta = Annotated[dict[str, JsonValue], Field(description="Version and billed units, as in Cohere's API.")]
Direction = Literal["left", "right", "Left", "Right"] | None


class Document(BaseModel):
    """A document as an object: its text is ranked, its other fields are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)
    text: Text = Field(description="The text to rank.")


class CohereRerankRequest(Request):
    """In the format of Cohere and Jina."""

    model: Name = None
    query: Text = Field(description="A context of one turn.", examples=["my wifi is down"])
    documents: Annotated[list[Text | Document], Field(min_length=1, fail_fast=True)] = Field(
        description="Candidates: texts, or objects with a text.", examples=[["restart the router", "pay the bill"]]
    )
    top_n: int | None = Field(None, ge=1, description="Number of results; null: all.")
    return_documents: bool | None = Field(None, description="Whether results include the texts.")
    max_tokens_per_doc: int | None = Field(None, description="Refused if the model reads more tokens of a text.")
    max_chunks_per_doc: int | None = Field(None, ge=1, description="Chunks that are read of a long document.")
    rank_fields: list[Literal["text"]] | None = Field(None, description="Must be text.")
    priority: int | None = Field(None, ge=0, le=0, description="Must be 0: all requests have the same priority.")
    raw_scores: bool = Field(False, description="Return raw scores instead of numbers from 0 to 1.")


class CohereResult(BaseModel):
    """A document and its score."""

    index: int = Field(description="Position in the request's documents, from 0.")
    relevance_score: float = Field(description="From 0 to 1, in the order of the scores; with raw_scores, the score.")
    document: dict[str, JsonValue] | None = Field(None, description="Its text, with return_documents.")


class CohereRerankAnswer(BaseModel):
    """Documents, best first."""

    id: RequestId
    model: ServedName
    results: list[CohereResult] = Field(description="Best first.")
    meta: CohereMeta
    usage: Usage


class TeiRerankRequest(Request):
    """In the format of text-embeddings-inference."""

    query: Text = Field(description="A context of one turn.")
    texts: TextList = Field(min_length=1, description="Candidates.")
    raw_scores: bool = Field(False, description="Return raw scores instead of numbers from 0 to 1.")
    return_text: bool = Field(False, description="Whether results include the texts.")
    truncate: bool | None = Field(None, description="false: refuse texts that are too long instead of truncating them.")
    truncation_direction: Direction = Field(
        None, description="TextList are truncated at their end; left: refuse texts that are too long."
    )


class TeiResult(BaseModel):
    """A text and its score."""

    index: int = Field(description="Position in the request's texts, from 0.")
    score: float = Field(description="From 0 to 1, in the order of the scores; with raw_scores, the score.")
    text: str | None = Field(None, description="Its text, with return_text.")


def _dialect(body: Any) -> str:
    return "Cohere" if isinstance(body, dict) and "documents" in body else "Tei"


Reranks = Annotated[
    Annotated[TeiRerankRequest, Tag("Tei")] | Annotated[CohereRerankRequest, Tag("Cohere")],
    Discriminator(_dialect),
]


def _no_tokens(value: Any) -> Any:
    """Refuse token ids by name, because they come from another vocabulary."""
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, int | list):
        raise PydanticCustomError(
            "token_ids",
            "token ids belong to another vocabulary; send texts (with langchain's OpenAIEmbeddings:"
            " check_embedding_ctx_length=False)",
        )
    return value


class EmbeddingsRequest(Request):
    """In OpenAI's format, with ``input_type`` for models that encode contexts and candidates differently."""

    model: Name = None
    input: Annotated[Text | TextList, BeforeValidator(_no_tokens)] = Field(
        description="A text or texts; token ids are refused.", examples=[["restart the router"]]
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="Little-endian float32, or (float, the default) numbers."
    )
    dimensions: int | None = Field(None, ge=1, description="Refused unless it is the model's dimension.")
    input_type: Literal["query", "document", "search_query", "search_document"] | None = Field(
        None, description="Contexts (query) or candidates (document); omitted: the suffix of model decides."
    )
    user: str | None = Field(None, description="The user's id, as in OpenAI's API; ignored.")


class EmbeddingRow(BaseModel):
    """A vector, as numbers or as the base64 of little-endian float32."""

    object: Literal["embedding"] = Field(default="embedding", description="As in OpenAI's API.")
    index: int = Field(description="Position in the request's inputs, from 0.")
    embedding: list[float] | str = Field(description="The vector, of the model's dimension.")


class EmbeddingsAnswer(BaseModel):
    """Vectors, in the order of the inputs."""

    object: Literal["list"] = Field(default="list", description="As in OpenAI's API.")
    data: list[EmbeddingRow] = Field(description="One per input.")
    model: ServedName
    usage: Usage
    meta: dict[str, JsonValue] | None = Field(None, description="warnings: what the answer does not do as requested.")


class CohereEmbedRequest(Request):
    """In Cohere's format."""

    model: Name = None
    texts: TextList = Field(description="Contexts or candidates.", examples=[["restart the router"]])
    input_type: Literal["search_query", "search_document", "classification", "clustering"] | None = Field(
        None, description="Contexts (search_query) or candidates (all others); omitted: the suffix of model decides."
    )
    embedding_types: list[Literal["float", "base64"]] | None = Field(
        None, min_length=1, description="Numbers, the base64 of little-endian float32, or both; omitted: numbers."
    )
    truncate: Literal["NONE", "START", "END"] | None = Field(
        None,
        description="NONE: refuse texts that are too long. Contexts are truncated at the start, candidates at the end.",
    )
    output_dimension: int | None = Field(None, ge=1, description="Refused unless it is the model's dimension.")
    max_tokens: int | None = Field(None, ge=1, description="Refused if the model reads more tokens of a text.")
    priority: int | None = Field(None, ge=0, le=0, description="Must be 0: all requests have the same priority.")


class FirstCohereEmbedAnswer(BaseModel):
    """Vectors as Cohere's v1 returns them if the request names no type."""

    id: RequestId
    embeddings: list[list[float]] = Field(description="In the order of the texts.")
    texts: list[str] = Field(description="The request's texts.")
    meta: CohereMeta
    response_type: Literal["embeddings_floats"] = Field(default="embeddings_floats", description="As in Cohere's API.")


class CohereEmbedAnswer(BaseModel):
    """Vectors by type."""

    id: RequestId
    embeddings: dict[str, list[Any]] = Field(description="By type, in the order of the texts.")
    texts: list[str] = Field(description="The request's texts.")
    meta: CohereMeta
    response_type: Literal["embeddings_by_type"] = Field(
        default="embeddings_by_type", description="As in Cohere's API."
    )


class TeiEmbedRequest(Request):
    """In the format of text-embeddings-inference."""

    inputs: Text | TextList = Field(description="A candidate, or candidates.", examples=["restart the router"])
    truncate: bool | None = Field(None, description="false: refuse texts that are too long instead of truncating them.")
    truncation_direction: Direction = Field(
        None,
        description="Contexts are truncated on the left, candidates on the right; else: refuse too long texts.",
    )
    normalize: bool = Field(True, description="Whether vectors are scaled to length 1.")
    prompt_name: Literal["query", "candidate", "document", "passage"] | None = Field(
        None, description="Contexts (query) or candidates; omitted: candidates."
    )
    dimensions: int | None = Field(None, ge=1, description="Refused unless it is the model's dimension.")


class TeiInfo(BaseModel):
    """The description of a text-embeddings-inference server."""

    model_id: ServedName
    model_sha: str | None = Field(description="Fingerprint of the weights.")
    model_dtype: str = Field(description="Type of the vectors.")
    model_type: dict[str, dict[str, Any]] = Field(description="embedding or reranker.")
    max_concurrent_requests: int = Field(description="limits.queue.")
    max_input_length: int | None = Field(description="Number of tokens of a candidate that the model reads.")
    max_batch_tokens: int = Field(description="limits.tokens.")
    max_client_batch_size: int = Field(description="limits.items.")
    auto_truncate: bool = Field(description="Whether texts that are too long are truncated unless truncate is false.")
    tokenization_workers: int = Field(description="Number of model processes.")
    version: str = Field(description="Version of polyrank.")


class TeiError(BaseModel):
    """An error in the format of text-embeddings-inference."""

    error: str = Field(description="The problem and how to fix it.")
    error_type: str = Field(description="Depends on the status.")


class CohereError(BaseModel):
    """An error in Cohere's format."""

    message: str = Field(description="The problem and how to fix it.")
