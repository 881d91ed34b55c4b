"""Errors in the formats of other services."""

from pydantic import BaseModel, Field


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
