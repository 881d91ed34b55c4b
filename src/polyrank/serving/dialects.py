"""Requests and answers of other services whose clients can use polyrank.

A dialect is a class: its names for the fields, and the shape of its answers. The user of an application cannot remove a
field that it sends. So nulls and fields that cannot change the result are accepted, a field that would change it is
refused only if its value does, and other fields are reported, or refused with ``unknown_fields = "refuse"``.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from polyrank.serving.wire import Name, RequestId, ScoreRequest, ServedName, Text, TextList, Usage

NO_EFFECT = {
    "additional_data", "cache_salt", "drop_params", "extra_body", "is_truncated", "keep_alive", "metadata",
    "mm_processor_kwargs", "modality", "options", "overlap_tokens", "priority", "request_id", "return_len", "timeout",
    "user",
}  # fmt: skip
UNUSUAL = re.compile(r"[^\w.-]", re.ASCII)

CohereMeta = Annotated[dict[str, JsonValue], Field(description="Version and billed units, as in Cohere's API.")]
LENIENT = WithJsonSchema({"type": ["boolean", "number", "string"]})  # some clients send "true", or 1
Flag = Annotated[bool, Field(strict=False), LENIENT]
Number = Annotated[int, Field(strict=False), LENIENT]
SIDE = r"(?i)^([\w-]+[._])?(query|passage|document|candidate)$|^(classification|clustering|text-matching|separation)$"


class Document(BaseModel):
    """A document as an object: its text is ranked, its other fields are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)
    text: Text = Field(description="The text.")


def text_of(value: Text | Document) -> str:
    """The text of a document."""
    return value if isinstance(value, str) else value.text


Documents = Annotated[
    list[Text | Document],
    Field(
        min_length=1, fail_fast=True, description="Candidates: texts, or objects with a text.", examples=[["pay it"]]
    ),
]
TopN = Annotated[Number | None, Field(ge=0, description="Number of results; 0 or null: all.")]
ReturnTexts = Annotated[Flag, Field(description="Whether results include the texts.")]


def _may_be_null(schema: dict[str, Any]) -> None:
    """State in a JSON schema that null is the same as a field that is left out."""
    for name in schema["properties"].keys() - {*schema.get("required", ())}:
        alone = schema["properties"][name]
        schema["properties"][name] = {"description": alone["description"], "anyOf": [alone, {"type": "null"}]}


class Dialect(BaseModel):
    """The fields that requests of several services have."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, json_schema_extra=_may_be_null)
    names_models: ClassVar[bool] = True  # otherwise the service has one model, and clients may send any name
    model: Name = None
    max_tokens: Number | None = Field(
        None,
        validation_alias=AliasChoices("max_tokens_per_doc", "truncate_prompt_tokens", "max_tokens"),
        description="Tokens that are read of each candidate, or of each text to encode; 0 or less: all. Also"
        " truncate_prompt_tokens, max_tokens.",
    )
    truncate: Flag | Literal["NONE", "START", "END"] | None = Field(
        None,
        validation_alias=AliasChoices("truncate", "truncation"),
        description="false or NONE: refuse texts that are too long. Contexts are truncated at the start, candidates at"
        " the end; with the other end, such texts are refused too. Also truncation.",
    )
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = Field(
        None, description="left: as START, right: as END."
    )

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: Any) -> Any:
        return {key: value for key, value in body.items() if value is not None} if isinstance(body, dict) else body

    @property
    def unknown(self) -> list[str]:
        """Names of fields that may have an effect elsewhere, as messages quote them."""
        return [UNUSUAL.sub("?", name[:40]) for name in sorted({*(self.model_extra or ())} - NO_EFFECT)[:8]]

    @classmethod
    def sent(cls, name: str) -> str:
        """A field's name in requests."""
        return cls.model_fields[name].alias or name

    def whole(self, end: Literal["START", "END"]) -> bool:
        """Whether texts that are too long are refused, as the model truncates them at this end."""
        stated = {"left": "START", "right": "END"}.get((self.truncation_direction or "").lower(), end)
        return self.truncate not in (None, True, end) or stated != end


class Shape(NamedTuple):
    """The shape of a dialect's answers.

    Args:
        rows: the field of the results; empty: the answer is their list.
        score, text: fields of a result.
        nested: whether the text is in an object.
        raw: whether scores are raw.
        more: further fields of the answer.
    """

    rows: str = "results"
    score: str = "relevance_score"
    text: str = "document"
    nested: bool = False
    raw: bool = False
    more: Mapping[str, JsonValue] = {}


class Rerank(Dialect):
    """In the format of Cohere, Jina, vLLM, SiliconFlow, Xinference and Infinity."""

    shape: ClassVar[Shape] = Shape(nested=True)
    query: Text | Document = Field(description="A context of one turn.", examples=["my wifi is down"])
    documents: Documents
    top_n: TopN = None
    return_documents: ReturnTexts = False
    raw_scores: Flag = Field(
        default=False,
        validation_alias=AliasChoices("raw_scores", "return_raw_scores"),
        description="Return raw scores instead of numbers from 0 to 1.",
    )
    activation: Flag = Field(
        default=True,
        validation_alias=AliasChoices("activation", "use_activation"),
        description="false: as raw_scores.",
    )
    max_chunks_per_doc: Number | None = Field(None, ge=1, description="Chunks that are read of a long document.")
    rank_fields: list[str] | None = Field(None, description="Must be text, if documents are objects.")

    @model_validator(mode="after")
    def _ranks_texts(self) -> "Rerank":
        if self.rank_fields not in (None, ["text"]) and not all(isinstance(one, str) for one in self.documents):
            raise PydanticCustomError("rank_fields", 'rank_fields ranks other fields than text; send ["text"]')
        return self

    @property
    def raw(self) -> bool:
        """Whether scores are raw."""
        return self.shape.raw or self.raw_scores or not self.activation

    def answer(self, ranked: Sequence[tuple[int, float]], rest: Mapping[str, Any]) -> Any:
        """The answer to positions with their scores; ``rest`` has the fields that do not depend on the dialect."""
        results = self._results(self.shape, ranked)
        if not self.shape.rows:
            return results
        # without a number, Voyage's requests may have the same fields as Cohere's
        both = {"data": self._results(VoyageRerank.shape, ranked)} if type(self) is Rerank and not self.top_n else {}
        return {**self.shape.more, self.shape.rows: results, **both, **rest}

    def _results(self, shape: Shape, ranked: Sequence[tuple[int, float]]) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = []
        for row, score in ranked[: self.top_n or None]:
            results.append({"index": row, shape.score: score})
            if self.return_documents:
                text = text_of(self.documents[row])
                results[-1][shape.text] = {"text": text} if shape.nested else text
        return results


class TeiRerank(Rerank):
    """In the format of text-embeddings-inference."""

    names_models: ClassVar[bool] = False
    shape: ClassVar[Shape] = Shape("", "score", "text")
    documents: Documents = Field(alias="texts")
    return_documents: ReturnTexts = Field(default=False, alias="return_text")


class VoyageRerank(Rerank):
    """In the format of Voyage."""

    shape: ClassVar[Shape] = Shape("data", more={"object": "list"})
    top_n: TopN = Field(None, alias="top_k")


class MixedbreadRerank(Rerank):
    """In the format of mixedbread."""

    shape: ClassVar[Shape] = Shape("data", "score", "input", more={"object": "list"})
    documents: Documents = Field(alias="input")
    top_n: TopN = Field(None, alias="top_k")
    return_documents: ReturnTexts = Field(default=False, alias="return_input")


class NvidiaRerank(Rerank):
    """In the format of NVIDIA, whose scores are raw."""

    shape: ClassVar[Shape] = Shape("rankings", "logit", "text", raw=True)
    documents: Documents = Field(alias="passages")
    top_n: TopN = Field(None, validation_alias=AliasChoices("top_n", "top_k"))


class DashScopeRerank(Rerank):
    """In the format of DashScope, whose fields and results are nested."""

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, body: Any) -> Any:
        parts = [{"model": body.get("model")}, body["input"], body.get("parameters")]
        return {name: value for part in parts if isinstance(part, dict) for name, value in part.items()}

    def answer(self, ranked: Sequence[tuple[int, float]], rest: Mapping[str, Any]) -> Any:
        """See ``Rerank``."""
        return {"output": {"results": self._results(self.shape, ranked)}, "request_id": rest["id"], **rest}


def _dialect(body: Any) -> str:
    sent = set(body) if isinstance(body, dict) else set()
    if isinstance(body, dict) and isinstance(body.get("input"), dict):
        return "DashScope"
    told_by = {"texts": "Tei", "passages": "Nvidia", "input": "Mixedbread", "top_k": "Voyage"}
    if "documents" in sent:
        told_by = {"top_n": "Cohere", "top_k": "Voyage", "truncation": "Voyage", "documents": "Cohere"}
    return next((dialect for field, dialect in told_by.items() if field in sent), "Cohere")


Reranks = Annotated[
    Annotated[TeiRerank, Tag("Tei")]
    | Annotated[DashScopeRerank, Tag("DashScope")]
    | Annotated[NvidiaRerank, Tag("Nvidia")]
    | Annotated[MixedbreadRerank, Tag("Mixedbread")]
    | Annotated[VoyageRerank, Tag("Voyage")]
    | Annotated[Rerank, Tag("Cohere")],
    Discriminator(_dialect),
]


class VllmScore(Dialect):
    """In the format of vLLM: a text and texts, or pairs of texts."""

    first: Text | TextList = Field(
        validation_alias=AliasChoices("text_1", "queries", "data_1"), description="A context, or one for each text_2."
    )
    second: Text | TextList = Field(
        validation_alias=AliasChoices("text_2", "documents", "items", "data_2"), description="Candidates."
    )
    activation: Flag = Field(
        default=True,
        validation_alias=AliasChoices("activation", "use_activation"),
        description="false: raw scores instead of numbers from 0 to 1.",
    )


def _scores(body: Any) -> str:
    return "Vllm" if isinstance(body, dict) and {"text_1", "queries", "data_1"} & set(body) else "Own"


Scores = Annotated[
    Annotated[ScoreRequest, Tag("Own")] | Annotated[VllmScore, Tag("Vllm")],
    Discriminator(_scores),
]


class Sentences(Dialect):
    """A text, and texts to compare with it."""

    source_sentence: Text = Field(description="A context of one turn.")
    sentences: TextList = Field(min_length=1, description="Candidates.")


class TeiSimilarity(Dialect):
    """In the format of text-embeddings-inference."""

    names_models: ClassVar[bool] = False
    inputs: Annotated[Sentences, Field(description="A text, and texts to compare with it.")]


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


class TeiResult(BaseModel):
    """A text and its score."""

    index: int = Field(description="Position in the request's texts, from 0.")
    score: float = Field(description="From 0 to 1, in the order of the scores; with raw_scores, the score.")
    text: str | None = Field(None, description="Its text, with return_text.")


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


Form = Literal["float", "base64"]
Inputs = Annotated[
    Text | Document | Annotated[list[Text | Document], Field(fail_fast=True)],
    BeforeValidator(_no_tokens),
    Field(description="A text or texts, or objects with a text; token ids are refused.", examples=[["pay the bill"]]),
]


class Embed(Dialect):
    """In OpenAI's format, with the fields that Jina, Voyage, NVIDIA and mixedbread add."""

    texts: Inputs = Field(alias="input")
    forms: Form | Annotated[list[Form], Field(min_length=1, max_length=1)] = Field(
        "float",
        validation_alias=AliasChoices("encoding_format", "embedding_type"),
        description="Little-endian float32 in base64, or numbers. Also embedding_type.",
    )
    output_dtype: Literal["float"] = Field("float", description="Must be float.")
    dimensions: Number | None = Field(
        None,
        ge=0,
        validation_alias=AliasChoices("dimensions", "output_dimension"),
        description="Refused unless it is 0 or the model's dimension. Also output_dimension.",
    )
    input_type: str | None = Field(
        None,
        pattern=SIDE,
        validation_alias=AliasChoices("input_type", "task", "prompt_name"),
        description="Contexts (query, search_query, retrieval.query) or candidates (passage, document, search_document,"
        " clustering, ...); omitted: the suffix of model decides, otherwise candidates. Also task, prompt_name.",
    )
    normalize: Flag = Field(
        default=False,
        validation_alias=AliasChoices("normalize", "normalized"),
        description="Whether vectors are scaled to length 1. Also normalized.",
    )
    late_chunking: Annotated[Literal[False], LENIENT] = Field(default=False, description="Must be false.")

    @property
    def listed(self) -> list[str]:
        """The texts."""
        return list(map(text_of, self.texts if isinstance(self.texts, list) else [self.texts]))


class CohereEmbed(Embed):
    """In Cohere's format."""

    texts: Inputs = Field(alias="texts")
    forms: list[Form] | None = Field(  # type: ignore[assignment]
        None,
        min_length=1,
        alias="embedding_types",
        description="Numbers, the base64 of little-endian float32, or both; omitted: numbers.",
    )
    images: list[Any] = Field([], max_length=0, description="Must be empty.")


class TeiEmbed(Embed):
    """In the format of text-embeddings-inference."""

    names_models: ClassVar[bool] = False
    texts: Inputs = Field(alias="inputs")
    normalize: Flag = Field(default=True, description="Whether vectors are scaled to length 1.")


class OllamaEmbed(Embed):
    """In Ollama's format."""

    normalize: Flag = Field(default=True, description="Whether vectors are scaled to length 1.")


class FirstOllamaEmbed(Embed):
    """In Ollama's first format, of one text."""

    texts: Inputs = Field(alias="prompt")


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
    meta: dict[str, JsonValue] | None = Field(None, description="warnings, if there are any.")


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


class TeiInfo(BaseModel):
    """The description of a text-embeddings-inference server."""

    model_id: ServedName
    model_sha: str | None = Field(description="Fingerprint of the weights.")
    model_dtype: str = Field(description="Type of the vectors.")
    model_type: dict[str, dict[str, Any]] = Field(description="embedding or reranker.")
    max_concurrent_requests: int = Field(description="limits.queue.")
    max_input_length: int | None = Field(description="Number of tokens of a candidate that the model reads.")
    max_batch_tokens: int = Field(description="limits.tokens.")
    max_client_batch_size: int = Field(description="limits.items, or as many long texts as limits.body_bytes allow.")
    auto_truncate: bool = Field(description="Whether texts that are too long are truncated unless truncate is false.")
    tokenization_workers: int = Field(description="Number of model processes.")
    version: str = Field(description="Version of polyrank.")


class OllamaError(BaseModel):
    """An error in Ollama's format."""

    error: str = Field(description="The problem and how to fix it.")


class TeiError(OllamaError):
    """An error in the format of text-embeddings-inference."""

    error_type: str = Field(description="Depends on the status.")


class NvidiaError(BaseModel):
    """An error in NVIDIA's format, that of RFC 9457."""

    status: int = Field(description="The status of the answer.")
    title: str = Field(description="The phrase of the status.")
    detail: str = Field(description="The problem and how to fix it.")


class CohereError(BaseModel):
    """An error in Cohere's format."""

    message: str = Field(description="The problem and how to fix it.")
