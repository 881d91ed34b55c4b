"""Vectors, as OpenAI, Cohere and text-embeddings-inference give them."""

import base64
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from numpy.typing import NDArray

from polyrank.serving.context import Here, Server, parts
from polyrank.serving.errors import HttpError
from polyrank.serving.strict import StrictRoute
from polyrank.serving.wire import (
    CohereEmbedAnswer,
    CohereEmbedRequest,
    Embedding,
    EmbeddingsAnswer,
    EmbeddingsRequest,
    TeiEmbedRequest,
)

router = APIRouter(route_class=StrictRoute, tags=["embeddings"])
QUERIES = ("query", "search_query")


async def vectors_of(
    server: Server, name: str, texts: list[str], input_type: str, param: str
) -> tuple[NDArray[np.float32], int]:
    """Vectors ``[n, D]``, and how many tokens were read."""
    dimension = server.pool.info[name]["dimension"]
    if dimension is None:
        raise HttpError(400, f"{name} has no vectors; ask it to rerank", param="model", code="no_embeddings")
    server.check_texts(texts, param)
    if not texts:
        return np.empty((0, dimension), np.float32), 0
    side = "query" if input_type in QUERIES else "document"
    tokens = [server.tokens(name, [text], "context" if side == "query" else "candidate") for text in texts]
    cut = parts(texts, tokens)
    payloads = [{"texts": texts[part], "input_type": side} for part in cut]
    computed = await server.compute("embed", name, payloads, [sum(tokens[part]) for part in cut])
    vectors = np.concatenate([value["vectors"] for value in computed.values])
    return vectors, sum(value["n_tokens"] for value in computed.values)


@router.post("/v1/embeddings", summary="Vectors, as OpenAI's")
async def embeddings(asked: EmbeddingsRequest, server: Here) -> EmbeddingsAnswer:
    """Of candidates, unless ``input_type`` says query: the two sides of a model may differ."""
    name = server.name_of(asked.model)
    texts = [asked.input] if isinstance(asked.input, str) else list(asked.input)
    if any(not isinstance(text, str) for text in texts):
        raise HttpError(
            400,
            "input holds token ids, which belong to another vocabulary; send texts (of langchain's OpenAIEmbeddings:"
            " check_embedding_ctx_length=False)",
            param="input",
            code="token_ids",
        )
    dimension = server.pool.info[name]["dimension"]
    if asked.dimensions not in (None, dimension):
        raise HttpError(400, f"{name} gives vectors of {dimension} numbers, and no others", param="dimensions")
    vectors, n_tokens = await vectors_of(server, name, [str(text) for text in texts], asked.input_type, "input")
    return EmbeddingsAnswer(
        data=[
            Embedding(index=row, embedding=_base64(vector) if asked.encoding_format == "base64" else vector.tolist())
            for row, vector in enumerate(vectors)
        ],
        model=name,
        usage={"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    )


@router.post("/v2/embed", summary="Vectors, as Cohere's")
async def cohere_embed(asked: CohereEmbedRequest, request: Request, server: Here) -> CohereEmbedAnswer:
    """Of candidates, unless ``input_type`` is search_query."""
    name = server.name_of(asked.model)
    vectors, n_tokens = await vectors_of(server, name, list(asked.texts), asked.input_type, "texts")
    shapes: dict[str, list[Any]] = {}
    for kind in dict.fromkeys(asked.embedding_types):
        shapes[kind] = vectors.tolist() if kind == "float" else [_base64(vector) for vector in vectors]
    return CohereEmbedAnswer(
        id=request.scope["state"]["request_id"],
        embeddings=shapes,
        texts=list(asked.texts),
        meta={"api_version": {"version": "2"}, "billed_units": {"input_tokens": n_tokens}},
    )


@router.post("/embed", summary="Vectors, as text-embeddings-inference's")
async def tei_embed(asked: TeiEmbedRequest, server: Here) -> list[list[float]]:
    """Of candidates."""
    name = server.name_of(None)
    texts = [asked.inputs] if isinstance(asked.inputs, str) else list(asked.inputs)
    vectors, _ = await vectors_of(server, name, texts, "document", "inputs")
    if asked.normalize:
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    rows: list[list[float]] = vectors.tolist()
    return rows


def _base64(vector: NDArray[np.float32]) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
