"""Requests for vectors, in the formats of other services, and the answers."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, JsonValue
from pydantic_core import PydanticCustomError

from polyrank.serving.dialects.fields import LENIENT, CohereMeta, Dialect, Document, Flag, Number, text_of
from polyrank.serving.wire import RequestId, ServedName, Text, Usage

SIDE = r"(?i)^([\w-]+[._])?(query|passage|document|candidate)$|^(classification|clustering|text-matching|separation)$"


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
    """Texts to encode, with the fields that Jina, Voyage, NVIDIA and mixedbread add to OpenAI's."""

    texts: Inputs = Field(alias="input")
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


class OpenAIEmbed(Embed):
    """In OpenAI's format, whose vectors are numbers or base64."""

    forms: Form | Annotated[list[Form], Field(min_length=1, max_length=1)] = Field(
        "float",
        validation_alias=AliasChoices("encoding_format", "embedding_type"),
        description="Little-endian float32 in base64, or numbers. Also embedding_type.",
    )


class CohereEmbed(Embed):
    """In Cohere's format."""

    texts: Inputs = Field(alias="texts")
    forms: list[Form] | None = Field(
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


class CohereEmbedAnswer(BaseModel):
    """Vectors in the order of the texts: by type, or a list in v1 if the request names no type."""

    id: RequestId
    embeddings: dict[str, list[Any]] | list[list[float]] = Field(description="In the order of the texts.")
    texts: list[str] = Field(description="The request's texts.")
    meta: CohereMeta
    response_type: Literal["embeddings_by_type", "embeddings_floats"] = Field(description="As in Cohere's API.")
