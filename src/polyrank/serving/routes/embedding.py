"""Vectors, in the formats of OpenAI, Cohere and text-embeddings-inference.

A model may have different networks for contexts and candidates. ``NAME:query`` and ``NAME:candidate`` select one of
them, for clients that send only a model's name; ``NAME`` alone means candidates, unless a field of the request selects
the other.

A thousand vectors make several megabytes of JSON, so the model processes encode it, and this module combines it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from polyrank.records import as_tuple
from polyrank.serving.context import CurrentServer, Server
from polyrank.serving.dialects import (
    CohereEmbedAnswer,
    CohereEmbedRequest,
    EmbeddingsAnswer,
    EmbeddingsRequest,
    FirstCohereEmbedAnswer,
    TeiEmbedRequest,
)
from polyrank.serving.errors import HttpError
from polyrank.serving.responses import MEDIA_TYPE, assemble_response, meta_of, warn
from polyrank.serving.strict import StrictRoute
from polyrank.serving.tasks import EmbedTask, Side

router = APIRouter(route_class=StrictRoute, tags=["embeddings"])
ROLES: dict[str, Side] = {"": "document", "query": "query", "candidate": "document"}
SIDES: dict[str, Side] = {"query": "query", "search_query": "query"}  # all other input types are candidates
ENDS = {"query": ("START", "left"), "document": ("END", "right")}  # the end at which too long texts are truncated
GUESSED = (
    "{0} encodes contexts and candidates differently and the request names no side, so its texts were encoded as"
    " candidates; send model {0}:query or an input_type for contexts, or set query_prefix"
)
ModelName = Annotated[
    str | None, Query(description="Name of a model, may end in :query or :candidate; omitted: the first.")
]


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

    @property
    def kind(self) -> Literal["context", "candidate"]:
        """The kind of its texts."""
        return "context" if self.side == "query" else "candidate"

    @classmethod
    def of(cls, server: Server, model: str | None, input_type: str | None) -> "ModelSide":
        """The side that a request selects.

        Raises:
            HttpError: the name is unknown, the model has no vectors, or two fields of the request disagree.
        """
        name, _, role = (model or "").partition(":")
        if role not in ROLES:
            raise HttpError(404, f"{name} has the sides :query and :candidate; use one of them", param="model")
        typed = ROLES[role] if input_type is None else SIDES.get(input_type, "document")
        if role and typed != ROLES[role]:
            raise HttpError(
                422, f"input_type is {input_type} and model ends in :{role}; send one of them", param="model"
            )
        name = server.resolve_name(name or None)
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

    def check_dimension(self, server: Server, requested: int | None, param: str) -> None:
        """Refuse requests for vectors of another dimension than the model's.

        Raises:
            HttpError: the dimensions differ.
        """
        dimension = server.pool.info[self.name].dimension
        if requested not in (None, dimension):
            raise HttpError(400, f"{self.name} has vectors of {dimension} numbers; omit {param}", param=param)


async def vectors_of(
    request: Request, side: ModelSide, texts: Sequence[str], param: str, forms: Sequence[str], *, whole: bool = False
) -> tuple[dict[str, list[bytes]], int]:
    """Vectors as JSON in each form, see ``polyrank.serving.served.vectors_as_json``, and the number of tokens.

    ``whole``: refuse texts that are too long instead of truncating them.

    Raises:
        HttpError: the list is empty, or a text is too long.
    """
    if not texts:
        raise HttpError(422, f"{param} is empty; send at least one text", param=param)
    server: Server = request.app.state.server
    sided = side.sided(server, texts, request)
    tokens = [server.tokens(side.name, [text], "context" if kind == "query" else "candidate") for kind, text in sided]
    values = await server.compute_texts(side.name, sided, tokens, lambda part: EmbedTask(part, forms))
    if whole:
        server.check_whole(side.name, values, param)
    rows = {form: [row for value in values for row in value.rows[form]] for form in forms}
    return rows, sum(value.n_tokens for value in values)


@router.post("/v1/embeddings", summary="Vectors, in OpenAI's format", response_model=EmbeddingsAnswer)
async def embeddings(payload: EmbeddingsRequest, request: Request, server: CurrentServer) -> Response:
    """Encodes candidates, unless ``model`` ends in :query or ``input_type`` selects queries."""
    side = ModelSide.of(server, payload.model, payload.input_type)
    side.check_dimension(server, payload.dimensions, "dimensions")
    texts = as_tuple(payload.input, "input")
    form = payload.encoding_format or "float"
    rows, n_tokens = await vectors_of(request, side, texts, "input", [form])
    data = [b'{"object":"embedding","index":%d,"embedding":%s}' % row for row in enumerate(rows[form])]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    body = {"object": "list", "model": payload.model or side.name, "usage": usage, **meta_of(request)}
    return await assemble_response(server, body, data=data)


@router.post("/v2/embed", summary="Vectors, in Cohere's format", response_model=CohereEmbedAnswer)
async def cohere_embed(payload: CohereEmbedRequest, request: Request, server: CurrentServer) -> Response:
    """Encodes candidates, unless ``input_type`` is search_query or ``model`` ends in :query."""
    forms = list(dict.fromkeys(payload.embedding_types or ["float"]))
    rows, body = await _cohere_vectors(payload, request, server, forms, "2")
    shapes = b",".join(b'"%s":[%s]' % (form.encode(), b",".join(rows[form])) for form in forms)
    return await assemble_response(server, body | {"response_type": "embeddings_by_type"}, embeddings=b"{%s}" % shapes)


@router.post(
    "/v1/embed",
    summary="Vectors, in the format of Cohere's v1",
    response_model=FirstCohereEmbedAnswer | CohereEmbedAnswer,
)
async def first_cohere_embed(payload: CohereEmbedRequest, request: Request, server: CurrentServer) -> Response:
    """Like /v2/embed; without ``embedding_types``, the vectors are a list."""
    if payload.embedding_types is not None:
        return await cohere_embed(payload, request, server)
    rows, body = await _cohere_vectors(payload, request, server, ["float"], "1")
    return await assemble_response(server, body | {"response_type": "embeddings_floats"}, embeddings=rows["float"])


async def _cohere_vectors(
    payload: CohereEmbedRequest, request: Request, server: Server, forms: Sequence[str], version: str
) -> tuple[dict[str, list[bytes]], dict[str, object]]:
    """Vectors, and the other fields of the answer."""
    side = ModelSide.of(server, payload.model, payload.input_type)
    side.check_dimension(server, payload.output_dimension, "output_dimension")
    server.check_token_limit(side.name, payload.texts, side.kind, payload.max_tokens, "max_tokens")
    whole = payload.truncate not in (None, ENDS[side.side][0])
    rows, n_tokens = await vectors_of(request, side, payload.texts, "texts", forms, whole=whole)
    meta = {"api_version": {"version": version}, "billed_units": {"input_tokens": n_tokens}}
    return rows, {"id": request.scope["state"]["request_id"], "texts": payload.texts, **meta_of(request, meta)}


@router.post("/embed", summary="Vectors, in text-embeddings-inference's format", response_model=list[list[float]])
async def tei_embed(
    payload: TeiEmbedRequest, request: Request, server: CurrentServer, model: ModelName = None
) -> Response:
    """Encodes candidates, unless ``prompt_name`` is query or ``model`` ends in :query."""
    side = ModelSide.of(server, model, payload.prompt_name)
    side.check_dimension(server, payload.dimensions, "dimensions")
    texts = as_tuple(payload.inputs, "inputs")
    form = "unit" if payload.normalize else "float"
    direction = payload.truncation_direction or ENDS[side.side][1]
    whole = payload.truncate is False or direction.lower() != ENDS[side.side][1]
    rows, _ = await vectors_of(request, side, texts, "inputs", [form], whole=whole)
    return Response(b"[%s]" % b",".join(rows[form]), media_type=MEDIA_TYPE)
