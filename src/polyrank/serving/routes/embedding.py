"""Vectors, as OpenAI, Cohere and text-embeddings-inference give them.

A model may encode contexts and candidates by different networks. ``NAME:query`` and ``NAME:candidate`` are names of its
two sides, for clients that send nothing but a model's name; ``NAME`` alone is the candidates' side, unless a field of
the request says otherwise.

A thousand vectors are some megabytes of JSON. The processes that compute write it, and here it is put together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from polyrank.serving.context import Here, Server, parts
from polyrank.serving.dialects import (
    CohereEmbedAnswer,
    CohereEmbedRequest,
    EmbeddingsAnswer,
    EmbeddingsRequest,
    FirstCohereEmbedAnswer,
    TeiEmbedRequest,
)
from polyrank.serving.errors import HttpError
from polyrank.serving.strict import StrictRoute
from polyrank.serving.tasks import EmbedTask, Side
from polyrank.serving.written import MEDIA_TYPE, assembled

router = APIRouter(route_class=StrictRoute, tags=["embeddings"])
ROLES: dict[str, Side] = {"": "document", "query": "query", "candidate": "document"}
SIDES: dict[str, Side] = {"query": "query", "search_query": "query"}  # all other types of input are candidates
ENDS = {"query": ("START", "left"), "document": ("END", "right")}  # which end of a text that is too long is cut
ModelName = Annotated[
    str | None, Query(description="Of what is served, with :query or :candidate; left out: the first.")
]


@dataclass(frozen=True, slots=True)
class ModelSide:
    """One side of a served model.

    Args:
        name: of what is served.
        side: "query" or "document".
    """

    name: str
    side: Side

    @property
    def kind(self) -> Literal["context", "candidate"]:
        """What its texts are."""
        return "context" if self.side == "query" else "candidate"

    @classmethod
    def of(cls, server: Server, model: str | None, input_type: str | None) -> "ModelSide":
        """What a request is for.

        Raises:
            HttpError: nothing of that name is served, it has no vectors, or two fields of the request disagree.
        """
        name, _, role = (model or "").partition(":")
        if role not in ROLES:
            raise HttpError(404, f"{name} has the sides :query and :candidate; send one of them", param="model")
        typed = ROLES[role] if input_type is None else SIDES.get(input_type, "document")
        if role and typed != ROLES[role]:
            raise HttpError(
                422, f"input_type is {input_type} and model ends in :{role}; send one of them", param="model"
            )
        name = server.name_of(name or None)
        if server.pool.info[name].dimension is None:
            raise HttpError(400, f"{name} has no vectors; ask it to rerank", param="model", code="no_embeddings")
        return cls(name, typed)

    def check_dimension(self, server: Server, asked: int | None, param: str) -> None:
        """Refuse vectors of another length than the model's.

        Raises:
            HttpError: they are.
        """
        dimension = server.pool.info[self.name].dimension
        if asked not in (None, dimension):
            raise HttpError(400, f"{self.name} gives vectors of {dimension} numbers, and no others", param=param)


async def vectors_of(
    server: Server, side: ModelSide, texts: Sequence[str], param: str, forms: Sequence[str], *, whole: bool = False
) -> tuple[dict[str, list[bytes]], int]:
    """Vectors as JSON in each form, see ``polyrank.serving.served.written``, and how many tokens were read.

    ``whole``: texts that do not fit are refused, not cut.
    """
    server.check_texts(texts, param)
    if not texts:
        return {form: [] for form in forms}, 0
    tokens = [server.tokens(side.name, [text], side.kind) for text in texts]
    cut = parts(texts, tokens)
    tasks = [EmbedTask(texts[part], side.side, forms) for part in cut]
    values = (await server.compute(side.name, tasks, [sum(tokens[part]) for part in cut])).values
    if whole:
        server.check_whole(side.name, values, param)
    rows = {form: [row for value in values for row in value.rows[form]] for form in forms}
    return rows, sum(value.n_tokens for value in values)


@router.post("/v1/embeddings", summary="Vectors, as OpenAI's", response_model=EmbeddingsAnswer)
async def embeddings(asked: EmbeddingsRequest, server: Here) -> Response:
    """Of candidates, unless ``model`` ends in :query or ``input_type`` says so: a model's sides may differ."""
    side = ModelSide.of(server, asked.model, asked.input_type)
    side.check_dimension(server, asked.dimensions, "dimensions")
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    form = asked.encoding_format
    rows, n_tokens = await vectors_of(server, side, texts, "input", [form])
    data = [b'{"object":"embedding","index":%d,"embedding":%s}' % row for row in enumerate(rows[form])]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return await assembled(server, {"object": "list", "model": asked.model or side.name, "usage": usage}, data=data)


@router.post("/v2/embed", summary="Vectors, as Cohere's", response_model=CohereEmbedAnswer)
async def cohere_embed(asked: CohereEmbedRequest, request: Request, server: Here) -> Response:
    """Of candidates, unless ``input_type`` is search_query or ``model`` ends in :query."""
    forms = list(dict.fromkeys(asked.embedding_types or ["float"]))
    rows, body = await _cohere_vectors(asked, request, server, forms, "2")
    shapes = b",".join(b'"%s":[%s]' % (form.encode(), b",".join(rows[form])) for form in forms)
    return await assembled(server, body | {"response_type": "embeddings_by_type"}, embeddings=b"{%s}" % shapes)


@router.post(
    "/v1/embed",
    summary="Vectors, as Cohere's first version",
    response_model=FirstCohereEmbedAnswer | CohereEmbedAnswer,
)
async def first_cohere_embed(asked: CohereEmbedRequest, request: Request, server: Here) -> Response:
    """As /v2/embed; where no ``embedding_types`` are named, vectors are a list."""
    if asked.embedding_types is not None:
        return await cohere_embed(asked, request, server)
    rows, body = await _cohere_vectors(asked, request, server, ["float"], "1")
    return await assembled(server, body | {"response_type": "embeddings_floats"}, embeddings=rows["float"])


async def _cohere_vectors(
    asked: CohereEmbedRequest, request: Request, server: Server, forms: Sequence[str], version: str
) -> tuple[dict[str, list[bytes]], dict[str, object]]:
    """Vectors, and the rest of the answer."""
    side = ModelSide.of(server, asked.model, asked.input_type)
    side.check_dimension(server, asked.output_dimension, "output_dimension")
    server.check_cut(side.name, asked.texts, side.kind, asked.max_tokens, "max_tokens")
    whole = asked.truncate not in (None, ENDS[side.side][0])
    rows, n_tokens = await vectors_of(server, side, asked.texts, "texts", forms, whole=whole)
    meta = {"api_version": {"version": version}, "billed_units": {"input_tokens": n_tokens}}
    return rows, {"id": request.scope["state"]["request_id"], "texts": asked.texts, "meta": meta}


@router.post("/embed", summary="Vectors, as text-embeddings-inference's", response_model=list[list[float]])
async def tei_embed(asked: TeiEmbedRequest, server: Here, model: ModelName = None) -> Response:
    """Of candidates, unless ``prompt_name`` is query or ``model`` ends in :query."""
    side = ModelSide.of(server, model, asked.prompt_name)
    side.check_dimension(server, asked.dimensions, "dimensions")
    texts = [asked.inputs] if isinstance(asked.inputs, str) else asked.inputs
    form = "unit" if asked.normalize else "float"
    direction = asked.truncation_direction or ENDS[side.side][1]
    whole = asked.truncate is False or direction.lower() != ENDS[side.side][1]
    rows, _ = await vectors_of(server, side, texts, "inputs", [form], whole=whole)
    return Response(b"[%s]" % b",".join(rows[form]), media_type=MEDIA_TYPE)
