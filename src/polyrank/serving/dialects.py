"""Requests and answers of the services that clients were written for: Cohere, OpenAI, text-embeddings-inference.

Their fields are honoured or refused by name. What is ignored would mislead its sender.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, JsonValue, Tag
from pydantic_core import PydanticCustomError

from polyrank.serving.wire import Name, Request, RequestId, Served, Text, Texts, Usage

Meta = Annotated[dict[str, JsonValue], Field(description="Version and units, as in Cohere's answers.")]
Direction = Literal["left", "right", "Left", "Right"] | None


class Document(BaseModel):
    """A document as an object: its text is ranked, its other fields are data of the client's."""

    model_config = ConfigDict(extra="ignore", strict=True)
    text: Text = Field(description="What is ranked.")


class CohereRerankRequest(Request):
    """As Cohere's, Jina's and their clients'."""

    model: Name = None
    query: Text = Field(description="A context of one turn.", examples=["my wifi is down"])
    documents: Annotated[list[Text | Document], Field(fail_fast=True)] = Field(
        description="Candidates: texts, or objects with a text.", examples=[["restart the router", "pay the bill"]]
    )
    top_n: int | None = Field(None, ge=1, description="How many are answered; null: all.")
    return_documents: bool | None = Field(None, description="Whether their texts are answered, too.")
    max_tokens_per_doc: int | None = Field(None, description="Refused where the model reads more of a text.")
    max_chunks_per_doc: int | None = Field(None, ge=1, le=1, description="A document is read as one chunk.")
    rank_fields: list[Literal["text"]] | None = Field(None, description="The field that is ranked is text.")
    priority: int | None = Field(None, ge=0, le=0, description="All requests have the same.")
    raw_scores: bool = Field(False, description="Scores as the model gives them, instead of numbers from 0 to 1.")


class CohereResult(BaseModel):
    """A document and its score."""

    index: int = Field(description="Among the documents of the request, from 0.")
    relevance_score: float = Field(description="From 0 to 1, in the order of the scores; with raw_scores, the score.")
    document: dict[str, JsonValue] | None = Field(None, description="With return_documents: its text.")


class CohereRerankAnswer(BaseModel):
    """Documents, best first."""

    id: RequestId
    model: Served
    results: list[CohereResult] = Field(description="Best first.")
    meta: Meta
    usage: Usage


class TeiRerankRequest(Request):
    """As text-embeddings-inference's."""

    query: Text = Field(description="A context of one turn.")
    texts: Texts = Field(description="Candidates.")
    raw_scores: bool = Field(False, description="Scores as the model gives them, instead of numbers from 0 to 1.")
    return_text: bool = Field(False, description="Whether texts are answered, too.")
    truncate: bool | None = Field(None, description="false: texts that are too long are refused; else they are cut.")
    truncation_direction: Direction = Field(
        None, description="The ends of texts are cut; left: texts that are too long are refused."
    )


class TeiResult(BaseModel):
    """A text and its score."""

    index: int = Field(description="Among the texts of the request, from 0.")
    score: float = Field(description="From 0 to 1, in the order of the scores; with raw_scores, the score.")
    text: str | None = Field(None, description="With return_text.")


def _dialect(body: Any) -> str:
    return "Cohere" if isinstance(body, dict) and "documents" in body else "Tei"


Reranks = Annotated[
    Annotated[TeiRerankRequest, Tag("Tei")] | Annotated[CohereRerankRequest, Tag("Cohere")],
    Discriminator(_dialect),
]


def _no_tokens(value: Any) -> Any:
    """Refuse token ids by name: they are the numbers of another vocabulary."""
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, int | list):
        raise PydanticCustomError(
            "token_ids",
            "token ids belong to another vocabulary; send texts (of langchain's OpenAIEmbeddings:"
            " check_embedding_ctx_length=False)",
        )
    return value


class EmbeddingsRequest(Request):
    """As OpenAI's, with ``input_type`` for models whose two sides differ."""

    model: Name = None
    input: Annotated[Text | Texts, BeforeValidator(_no_tokens)] = Field(
        description="A text or texts; token ids are refused.", examples=[["restart the router"]]
    )
    encoding_format: Literal["float", "base64"] = Field("float", description="Numbers, or little-endian float32.")
    dimensions: int | None = Field(None, ge=1, description="Refused, unless it is the model's own dimension.")
    input_type: Literal["query", "document", "search_query", "search_document"] | None = Field(
        None, description="Whether the texts are contexts (query) or candidates (document); left out: as model says."
    )
    user: str | None = Field(None, description="Who asks, as OpenAI's clients may say; nothing depends on it.")


class Embedding(BaseModel):
    """A vector: numbers, or the base64 of little-endian float32."""

    object: Literal["embedding"] = Field(default="embedding", description="As OpenAI says.")
    index: int = Field(description="Among the inputs of the request, from 0.")
    embedding: list[float] | str = Field(description="Of the model's dimension.")


class EmbeddingsAnswer(BaseModel):
    """Vectors, in the order of the inputs."""

    object: Literal["list"] = Field(default="list", description="As OpenAI says.")
    data: list[Embedding] = Field(description="One for each input.")
    model: Served
    usage: Usage


class CohereEmbedRequest(Request):
    """As Cohere's."""

    model: Name = None
    texts: Texts = Field(description="Contexts or candidates.", examples=[["restart the router"]])
    input_type: Literal["search_query", "search_document", "classification", "clustering"] | None = Field(
        None, description="Contexts (search_query), or candidates (all others); left out: as model says."
    )
    embedding_types: list[Literal["float", "base64"]] | None = Field(
        None, min_length=1, description="Numbers, the base64 of little-endian float32, or both; left out: numbers."
    )
    truncate: Literal["NONE", "START", "END"] | None = Field(
        None,
        description="NONE: texts that are too long are refused. Of contexts the start is cut, of candidates the end.",
    )
    output_dimension: int | None = Field(None, ge=1, description="Refused, unless it is the model's own dimension.")
    max_tokens: int | None = Field(None, ge=1, description="Refused where the model reads more of a text.")
    priority: int | None = Field(None, ge=0, le=0, description="All requests have the same.")


class FirstCohereEmbedAnswer(BaseModel):
    """Vectors as Cohere's first version gives them where no type was named."""

    id: RequestId
    embeddings: list[list[float]] = Field(description="In the order of the texts.")
    texts: list[str] = Field(description="Those of the request.")
    meta: Meta
    response_type: Literal["embeddings_floats"] = Field(default="embeddings_floats", description="As Cohere says.")


class CohereEmbedAnswer(BaseModel):
    """Vectors by type."""

    id: RequestId
    embeddings: dict[str, list[Any]] = Field(description="By type, in the order of the texts.")
    texts: list[str] = Field(description="Those of the request.")
    meta: Meta
    response_type: Literal["embeddings_by_type"] = Field(default="embeddings_by_type", description="As Cohere says.")


class TeiEmbedRequest(Request):
    """As text-embeddings-inference's."""

    inputs: Text | Texts = Field(description="A candidate, or candidates.", examples=["restart the router"])
    truncate: bool | None = Field(None, description="false: texts that are too long are refused; else they are cut.")
    truncation_direction: Direction = Field(
        None,
        description="Contexts are cut on the left, candidates on the right; the other: too long texts are refused.",
    )
    normalize: bool = Field(True, description="Whether vectors are made of length one.")
    prompt_name: Literal["query", "candidate", "document", "passage"] | None = Field(
        None, description="Whether the texts are contexts (query) or candidates; left out: candidates."
    )
    dimensions: int | None = Field(None, ge=1, description="Refused, unless it is the model's own dimension.")


class TeiInfo(BaseModel):
    """What text-embeddings-inference says of itself."""

    model_id: Served
    model_sha: str | None = Field(description="The fingerprint of the weights.")
    model_dtype: str = Field(description="Of the vectors.")
    model_type: dict[str, dict[str, str]] = Field(description="embedding or reranker.")
    max_concurrent_requests: int = Field(description="limits.queue.")
    max_input_length: int | None = Field(description="Tokens of a candidate that the model reads.")
    max_batch_tokens: int = Field(description="limits.tokens.")
    max_client_batch_size: int = Field(description="limits.items.")
    auto_truncate: bool = Field(description="Whether texts that are too long are cut unless truncate is false.")
    version: str = Field(description="Of polyrank.")


class TeiError(BaseModel):
    """An error as clients of text-embeddings-inference expect it."""

    error: str = Field(description="What is wrong, and what to do.")
    error_type: str = Field(description="By the status.")


class CohereError(BaseModel):
    """An error as Cohere's clients expect it."""

    message: str = Field(description="What is wrong, and what to do.")
