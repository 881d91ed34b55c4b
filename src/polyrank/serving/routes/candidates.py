"""``/v1/candidates``: the catalogue of an index, which can change while it is searched."""

import json
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.convertors import PathConvertor, register_url_convertor

from polyrank.data.pool import text_id
from polyrank.index import Index
from polyrank.index.checks import check_candidates
from polyrank.index.filters import Filter
from polyrank.records import Candidate
from polyrank.serving import wire
from polyrank.serving.context import CurrentServer, Server, filter_of
from polyrank.serving.errors import HttpError
from polyrank.serving.guard import SMALL_BODY
from polyrank.serving.responses import MEDIA_TYPE
from polyrank.serving.strict import StrictRoute
from polyrank.serving.tasks import EmbedTask, Side


class _AnyText(PathConvertor):
    """The rest of a path, including line breaks."""

    regex = "(?s:.*)"


register_url_convertor("text", _AnyText())
router = APIRouter(route_class=StrictRoute, tags=["candidates"])
ModelName = Annotated[str | None, Query(description="Name of the index; omitted: the first.")]
Id = Annotated[str, Path(alias="id", description="Id of the candidate; send a / in it as it is, or as %2F.")]


@router.post("/v1/candidates", summary="Add candidates, all or none")
async def add(payload: wire.AddRequest, request: Request, server: CurrentServer) -> wire.AddAnswer:
    """Candidates are encoded, written and synced before this answers; the next request includes them."""
    import numpy as np

    name = server.resolve_name(payload.model, "candidates")
    texts = [candidate.text for candidate in payload.candidates]
    candidates, previous = _records(payload.candidates), _records(payload.previous)
    n_bytes = int(request.headers.get("content-length", SMALL_BODY + 1))
    await server.off_loop(n_bytes, check_candidates, candidates, server.limits.metadata_bytes)
    tokens = [server.tokens(name, [text], "candidate") for text in texts]
    sided: list[tuple[Side, str]] = [("document", text) for text in texts]
    embedded = await server.compute_texts(name, sided, tokens, EmbedTask)
    vectors = np.concatenate([value.vectors for value in embedded if value.vectors is not None])
    fingerprint = embedded[0].fingerprint
    catalogue = server.catalogue(name)
    within = filter_of(request)

    def changed() -> int:
        replace = payload.replace
        return catalogue.add(
            candidates, vectors, replace=replace, previous=previous, fingerprint=fingerprint, within=within
        )

    n = await server.run_blocking(changed)
    return wire.AddAnswer(ids=[candidate.id for candidate in candidates], n_candidates=n)


def _records(rows: Sequence[wire.NewCandidate]) -> list[Candidate]:
    return [Candidate(row.id or text_id(row.text), row.text, dict(row.metadata)) for row in rows]


@router.post("/v1/candidates/remove", summary="Remove candidates, all in one change")
async def remove(payload: wire.RemoveRequest, request: Request, server: CurrentServer) -> wire.RemoveAnswer:
    """Unknown ids are ignored."""
    if (payload.ids is None) == (payload.filter is None):
        raise HttpError(422, "send either ids or a filter", param="ids")
    return await _remove(server, payload.model, payload.ids, filter_of(request, payload.filter))


@router.delete("/v1/candidates/{id:text}", summary="Remove a candidate")
async def remove_one(request: Request, server: CurrentServer, id_: Id, model: ModelName = None) -> wire.RemoveAnswer:
    """An unknown id is ignored."""
    return await _remove(server, model, [id_], filter_of(request))


async def _remove(server: Server, model: str | None, ids: list[str] | None, within: Filter | None) -> wire.RemoveAnswer:
    name = server.resolve_name(model, "candidates")
    removed, n = await server.run_blocking(server.catalogue(name).remove, ids, within)
    return wire.RemoveAnswer(removed=removed, n_candidates=n)


@router.get("/v1/candidates/{id:text}", summary="A candidate", response_model=wire.CandidateRow)
async def get(request: Request, server: CurrentServer, id_: Id, model: ModelName = None) -> Response:
    """Returns the candidate as it was added."""
    name = server.resolve_name(model, "candidates")
    return Response(_as_json(await server.candidate(name, id_, filter_of(request))), media_type=MEDIA_TYPE)


@router.get(
    "/v1/candidates",
    summary="A page of candidates, all or those with given words",
    response_model=wire.CandidatesAnswer,
)
async def candidates(
    request: Request,
    server: CurrentServer,
    model: ModelName = None,
    after: Annotated[str | None, Query(pattern=r"^[0-9]{1,18}$", description="`next` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Candidates in one page.")] = 50,
    q: Annotated[str, Query(max_length=500, description="Words that the text or the id must contain.")] = "",
    filter: Annotated[str | None, Query(description='On metadata, such as lang = "en".')] = None,
) -> Response:
    """In the order in which they were added; a page of long candidates has fewer than ``limit``."""
    name = server.resolve_name(model, "candidates")
    passing = filter_of(request, filter)

    def page_as_json(index: Index) -> bytes:
        page = index.page(after=int(after or 0), n=limit, words=q.split(), filter=passing)
        rows = map(_as_json, page.candidates)
        return b'{"candidates":[%s],"next":%s,"n_candidates":%d}' % (
            b",".join(rows),
            b"null" if page.next is None else b'"%d"' % page.next,
            page.n,
        )

    return Response(await server.run_search(server.catalogue(name).read, page_as_json), media_type=MEDIA_TYPE)


def _as_json(candidate: Candidate) -> bytes:
    """A candidate as JSON; the standard library's encoder, because metadata may have integers of any length."""
    row = {"id": candidate.id, "text": candidate.text, "metadata": candidate.metadata}
    return json.dumps(row, ensure_ascii=False).encode()
