"""Fields that requests of several services have."""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, JsonValue, WithJsonSchema, model_validator

from polyrank.serving.wire import Name, Text

NO_EFFECT = {
    "additional_data", "cache_salt", "drop_params", "extra_body", "is_truncated", "keep_alive", "metadata",
    "mm_processor_kwargs", "modality", "model-id", "options", "overlap_tokens", "priority", "request_id", "return_len",
    "timeout", "user",
}  # fmt: skip
UNUSUAL = re.compile(r"[^\w.-]", re.ASCII)

CohereMeta = Annotated[dict[str, JsonValue], Field(description="Version and billed units, as in Cohere's API.")]
LENIENT = WithJsonSchema({"type": ["boolean", "number", "string"]})  # some clients send "true", or 1
Flag = Annotated[bool, Field(strict=False), LENIENT]
Number = Annotated[int, Field(strict=False), LENIENT]


class Document(BaseModel):
    """A document as an object: its text is ranked, its other fields are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)
    text: Text = Field(description="The text.")


def text_of(value: Text | Document) -> str:
    """The text of a document."""
    return value if isinstance(value, str) else value.text


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
