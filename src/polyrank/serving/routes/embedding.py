"""Vectors, as OpenAI, Cohere and text-embeddings-inference give them.

A thousand vectors are some megabytes of JSON. The processes that compute write it, and here it is put together, so that
nobody waits for it but who asked.
"""

import json
from collections.abc import Sequence

from fastapi import APIRouter, Request, Response

from polyrank.serving.context import Here, Server, parts
from polyrank.serving.errors import HttpError
from polyrank.serving.strict import StrictRoute
from polyrank.serving.tasks import EmbedTask, Side
from polyrank.serving.wire import (
    CohereEmbedAnswer,
    CohereEmbedRequest,
    EmbeddingsAnswer,
    EmbeddingsRequest,
    TeiEmbedRequest,
)

router = APIRouter(route_class=StrictRoute, tags=["embeddings"])
QUERIES = ("query", "search_query")


async def vectors_of(
    server: Server, name: str, texts: Sequence[str], input_type: str, param: str, forms: Sequence[str]
) -> tuple[dict[str, list[bytes]], int]:
    """Vectors as JSON in each form, see ``polyrank.serving.served.written``, and how many tokens were read."""
    if server.pool.info[name].dimension is None:
        raise HttpError(400, f"{name} has no vectors; ask it to rerank", param="model", code="no_embeddings")
    server.check_texts(texts, param)
    if not texts:
        return {form: [] for form in forms}, 0
    side: Side = "query" if input_type in QUERIES else "document"
    tokens = [server.tokens(name, [text], "context" if side == "query" else "candidate") for text in texts]
    cut = parts(texts, tokens)
    tasks = [EmbedTask(texts[part], side, forms) for part in cut]
    values = (await server.compute(name, tasks, [sum(tokens[part]) for part in cut])).values
    rows = {form: [row for value in values for row in value.rows[form]] for form in forms}
    return rows, sum(value.n_tokens for value in values)


def listed(rows: Sequence[bytes]) -> bytes:
    """A JSON list of what is JSON already."""
    return b"[" + b",".join(rows) + b"]"


def answered(body: dict[str, object], **written: bytes) -> Response:
    """A JSON object, some of whose values are JSON already."""
    own = json.dumps(body, ensure_ascii=False)[:-1].encode()
    added = b"".join(b',"%s":%s' % (name.encode(), value) for name, value in written.items())
    return Response(own + added + b"}", media_type="application/json")


@router.post("/v1/embeddings", summary="Vectors, as OpenAI's", response_model=EmbeddingsAnswer)
async def embeddings(asked: EmbeddingsRequest, server: Here) -> Response:
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
    dimension = server.pool.info[name].dimension
    if asked.dimensions not in (None, dimension):
        raise HttpError(400, f"{name} gives vectors of {dimension} numbers, and no others", param="dimensions")
    form = asked.encoding_format
    rows, n_tokens = await vectors_of(server, name, [str(text) for text in texts], asked.input_type, "input", [form])
    data = [b'{"object":"embedding","index":%d,"embedding":%s}' % row for row in enumerate(rows[form])]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return answered({"object": "list", "model": name, "usage": usage}, data=listed(data))


@router.post("/v2/embed", summary="Vectors, as Cohere's", response_model=CohereEmbedAnswer)
async def cohere_embed(asked: CohereEmbedRequest, request: Request, server: Here) -> Response:
    """Of candidates, unless ``input_type`` is search_query."""
    name = server.name_of(asked.model)
    forms = list(dict.fromkeys(asked.embedding_types))
    rows, n_tokens = await vectors_of(server, name, list(asked.texts), asked.input_type, "texts", forms)
    meta = {"api_version": {"version": "2"}, "billed_units": {"input_tokens": n_tokens}}
    shapes = b",".join(b'"%s":%s' % (form.encode(), listed(rows[form])) for form in forms)
    body = {"id": request.scope["state"]["request_id"], "texts": list(asked.texts), "meta": meta}
    body["response_type"] = "embeddings_by_type"
    return answered(body, embeddings=b"{" + shapes + b"}")


@router.post("/embed", summary="Vectors, as text-embeddings-inference's", response_model=list[list[float]])
async def tei_embed(asked: TeiEmbedRequest, server: Here) -> Response:
    """Of candidates."""
    name = server.name_of(None)
    texts = [asked.inputs] if isinstance(asked.inputs, str) else list(asked.inputs)
    form = "unit" if asked.normalize else "float"
    rows, _ = await vectors_of(server, name, texts, "document", "inputs", [form])
    return Response(listed(rows[form]), media_type="application/json")
