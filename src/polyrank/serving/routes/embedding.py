"""Vectors, in the formats of other services, see ``polyrank.serving.dialects``.

A model may have different networks for contexts and candidates. ``NAME:query`` and ``NAME:candidate`` select one of
them, for clients that send only a model's name; ``NAME`` alone means candidates, unless a field of the request selects
the other.

A thousand vectors make several megabytes of JSON, so the model processes encode it, and this module combines it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import Discriminator, Tag

from polyrank.serving.context import CurrentServer, Server
from polyrank.serving.dialects import embedding as dialects
from polyrank.serving.dialects.ranking import TeiRerank, TeiResult, TeiSimilarity
from polyrank.serving.errors import HttpError
from polyrank.serving.responses import MEDIA_TYPE, assemble_response, check_fields, json_response, meta_of, warn
from polyrank.serving.routes.ranking import NAMED, rerank, similarity, usage_of
from polyrank.serving.strict import StrictRoute
from polyrank.serving.tasks import EmbedTask, Side

router = APIRouter(route_class=StrictRoute, tags=["embeddings"])
ROLES: dict[str, Side] = {"": "document", "query": "query", "candidate": "document"}
ENDS: dict[Side, Literal["START", "END"]] = {"query": "START", "document": "END"}  # where long texts are truncated
GUESSED = (
    "{0} encodes contexts and candidates differently and the request names no side, so its texts were encoded as"
    " candidates; send model {0}:query or an input_type for contexts, or set query_prefix"
)
ModelName = Annotated[
    str | None, Query(description="Name of a model, may end in :query or :candidate; omitted: the first.")
]
AzureVersion = Annotated[str | None, Query(alias="api-version", description="Of Azure's API; has no effect.")]


@dataclass(frozen=True, slots=True)
class ModelSide:
    """One side of a served model.

    Args:
        name: of the model.
        side: "query" or "document".
        is_stated: whether the request selects the side.
    """

    name: str
    side: Side
    is_stated: bool = True

    @classmethod
    def of(cls, server: Server, model: str | None, input_type: str | None) -> "ModelSide":
        """The side that a request selects.

        Raises:
            HttpError: the name is unknown, the model has no vectors, or two fields of the request disagree.
        """
        name, role = model or "", ""
        if name not in server.models and ":" in name:
            name, _, role = name.rpartition(":")
        role = "" if role == "latest" else role  # Ollama's clients add it
        if role not in ROLES:
            raise HttpError(404, f"{name} has the sides :query and :candidate; use one of them", param="model")
        typed = ROLES[role] if input_type is None else "query" if input_type.lower().endswith("query") else "document"
        if role and typed != ROLES[role]:
            raise HttpError(
                422, f"input_type is {input_type} and model ends in :{role}; send one of them", param="model"
            )
        name = server.resolve_name(name or None, "vectors")
        if server.pool.info[name].dimension is None:
            raise HttpError(400, f"{name} has no vectors; use it to rerank", param="model", code="no_embeddings")
        return cls(name, typed, bool(role or input_type))

    def sided(self, server: Server, texts: Sequence[str], request: Request) -> list[tuple[Side, str]]:
        """Each text with its side: that of its prefix, which is removed, or that of the request."""
        prefixes: list[tuple[str, Side]] = [
            (server.settings.query_prefix, "query"), (server.settings.document_prefix, "document")
        ]  # fmt: skip
        set_ = [(prefix, side) for prefix, side in prefixes if prefix]
        if not self.is_stated and not set_ and server.pool.info[self.name].two_sides:
            warn(request, GUESSED.format(self.name))
        begins = [next((row for row in set_ if text.startswith(row[0])), ("", self.side)) for text in texts]
        return [(side, text.removeprefix(prefix)) for (prefix, side), text in zip(begins, texts, strict=True)]


async def _vectors(
    payload: dialects.Embed, request: Request, server: Server, forms: Sequence[str], model: str | None = None
) -> tuple[str, dict[str, list[bytes]], int]:
    """The model, its vectors as JSON in each form, and the number of tokens.

    Raises:
        HttpError: the list is empty, or the model does not support a value of the request.
    """
    named = check_fields(request, payload, model)
    side, texts = ModelSide.of(server, named, payload.input_type), payload.listed
    name, param, info = side.name, payload.sent("texts"), server.pool.info[side.name]
    if payload.dimensions not in (None, 0, info.dimension):
        message = f"{name} has vectors of {info.dimension} numbers; send this number of dimensions, or none"
        raise HttpError(400, message, param="dimensions")
    if not texts:
        raise HttpError(422, f"{param} is empty; send at least one text", param=param)
    sided = side.sided(server, texts, request)
    tokens = [server.tokens(name, [text], "context" if kind == "query" else "candidate") for kind, text in sided]
    scaled = [f"unit-{form}" if payload.normalize else form for form in forms]
    values = await server.compute_texts(name, sided, tokens, lambda part: EmbedTask(part, scaled, payload.max_tokens))
    if any(payload.whole(ENDS[kind]) for kind, _ in sided):
        server.check_whole(name, values, param, payload.max_tokens)
    rows = {form: [row for value in values for row in value.rows[key]] for form, key in zip(forms, scaled, strict=True)}
    return name, rows, sum(value.n_tokens for value in values)


@router.post("/v1/embeddings", summary="Vectors, in OpenAI's format", response_model=dialects.EmbeddingsAnswer)
@router.post("/embeddings", summary="As /v1/embeddings", response_model=dialects.EmbeddingsAnswer)
@router.post("/infinity/embeddings", summary="As /v1/embeddings", response_model=dialects.EmbeddingsAnswer)
@router.post(
    "/openai/deployments/{name:path}/embeddings",
    summary="As /v1/embeddings, at the addresses of Azure",
    response_model=dialects.EmbeddingsAnswer,
    openapi_extra=NAMED,
)
async def embeddings(
    payload: dialects.OpenAIEmbed, request: Request, server: CurrentServer, _version: AzureVersion = None
) -> Response:
    """Encodes candidates, unless ``model`` ends in :query or ``input_type`` selects queries."""
    form = payload.forms if isinstance(payload.forms, str) else payload.forms[0]
    if (named := request.path_params.get("name")) and payload.model not in server.models:
        # Azure's clients send the name of the model that a deployment has there; polyrank's may be of a side
        named = payload.model if payload.model and payload.model.rpartition(":")[0] == named else named
        payload.model = None
    name, rows, n_tokens = await _vectors(payload, request, server, [form], named)
    data = [b'{"object":"embedding","index":%d,"embedding":%s}' % row for row in enumerate(rows[form])]
    body = {"object": "list", "model": payload.model or name, "usage": usage_of(n_tokens), **meta_of(request)}
    return await assemble_response(server, body, data=data)


@router.post("/v2/embed", summary="Vectors, in Cohere's format", response_model=dialects.CohereEmbedAnswer)
@router.post("/v1/embed", summary="Vectors, in Cohere's first format", response_model=dialects.CohereEmbedAnswer)
async def cohere_embed(payload: dialects.CohereEmbed, request: Request, server: CurrentServer) -> Response:
    """Encodes candidates, unless ``input_type`` is search_query or ``model`` ends in :query.

    In v1, without ``embedding_types``, the vectors are a list.
    """
    forms = list(dict.fromkeys(payload.forms or ["float"]))
    version = "1" if request.url.path == "/v1/embed" else "2"
    _, rows, n_tokens = await _vectors(payload, request, server, forms)
    meta = {"api_version": {"version": version}, "billed_units": {"input_tokens": n_tokens}}
    body = {"id": request.scope["state"]["request_id"], "texts": payload.listed, **meta_of(request, meta)}
    if version == "1" and payload.forms is None:
        body["response_type"] = "embeddings_floats"
        return await assemble_response(server, body, embeddings=rows["float"])
    shapes = b",".join(b'"%s":[%s]' % (form.encode(), b",".join(rows[form])) for form in forms)
    return await assemble_response(server, body | {"response_type": "embeddings_by_type"}, embeddings=b"{%s}" % shapes)


@router.post("/embed", summary="Vectors, in text-embeddings-inference's format", response_model=list[list[float]])
@router.post(
    "/pipeline/feature-extraction/{name:path}",
    summary="As /embed, at the addresses of Hugging Face",
    response_model=list[list[float]],
    openapi_extra=NAMED,
)
async def tei_embed(
    payload: dialects.TeiEmbed, request: Request, server: CurrentServer, model: ModelName = None
) -> Response:
    """Encodes candidates, unless ``prompt_name`` is query or ``model`` ends in :query."""
    _, rows, _ = await _vectors(payload, request, server, ["float"], request.path_params.get("name", model))
    return Response(b"[%s]" % b",".join(rows["float"]), media_type=MEDIA_TYPE)


@router.post("/api/embed", summary="Vectors, in Ollama's format", response_model=dict[str, Any])
async def ollama_embed(payload: dialects.OllamaEmbed, request: Request, server: CurrentServer) -> Response:
    """Encodes candidates, unless ``model`` ends in :query; vectors have length 1."""
    name, rows, n_tokens = await _vectors(payload, request, server, ["float"])
    body = {"model": payload.model or name, "prompt_eval_count": n_tokens, **meta_of(request)}
    return await assemble_response(server, body, embeddings=rows["float"])


@router.post("/api/embeddings", summary="One vector, in Ollama's first format", response_model=dict[str, Any])
async def first_ollama_embed(payload: dialects.FirstOllamaEmbed, request: Request, server: CurrentServer) -> Response:
    """Encodes a candidate, unless ``model`` ends in :query."""
    name, rows, _ = await _vectors(payload, request, server, ["float"])
    body = {"model": payload.model or name, **meta_of(request)}
    return await assemble_response(server, body, embedding=rows["float"][0])


def _task(body: Any) -> str:
    if isinstance(body, dict) and isinstance(body.get("inputs"), dict) and "text" not in body["inputs"]:
        return "Similarity"
    return "Rerank" if isinstance(body, dict) and "texts" in body else "Embed"


@router.post(
    "/", summary="As /embed, /rerank or /similarity", response_model=list[list[float]] | list[TeiResult] | list[float]
)
async def tei(
    payload: Annotated[
        Annotated[dialects.TeiEmbed, Tag("Embed")]
        | Annotated[TeiRerank, Tag("Rerank")]
        | Annotated[TeiSimilarity, Tag("Similarity")],
        Discriminator(_task),
    ],
    request: Request,
    server: CurrentServer,
    model: ModelName = None,
) -> Response:
    """For clients that have only an address; the fields of the request select the task."""
    if isinstance(payload, TeiSimilarity):
        return json_response(await similarity(payload, request, server, model))
    if isinstance(payload, dialects.TeiEmbed):
        return await tei_embed(payload, request, server, model)
    return await rerank(payload, request, server, model)
