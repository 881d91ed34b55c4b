"""``/v1/candidates``: the catalogue of an index or a pipeline, which may change while it is searched."""

import json
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.convertors import PathConvertor, register_url_convertor

from polyrank.data.pool import text_id
from polyrank.index import Index
from polyrank.index.checks import check_candidates
from polyrank.index.filters import read_filter
from polyrank.records import Candidate
from polyrank.serving.context import ANSWERS, Here, Server, parts
from polyrank.serving.guard import SMALL_BODY
from polyrank.serving.strict import StrictRoute
from polyrank.serving.tasks import EmbedTask
from polyrank.serving.wire import (
    AddAnswer,
    AddRequest,
    CandidateRow,
    CandidatesAnswer,
    RemoveAnswer,
    RemoveRequest,
)
from polyrank.serving.written import MEDIA_TYPE


class _AnyText(PathConvertor):
    """The rest of a path, line breaks too."""

    regex = "(?s:.*)"


register_url_convertor("text", _AnyText())
router = APIRouter(route_class=StrictRoute, tags=["candidates"])
ModelName = Annotated[str | None, Query(description="Of the index or pipeline; left out: the first.")]
Id = Annotated[str, Path(alias="id", description="Of the candidate; a / in it may be sent as it is, or as %2F.")]


@router.post("/v1/candidates", summary="Add candidates, all or none")
async def add(asked: AddRequest, request: Request, server: Here) -> AddAnswer:
    """Candidates are encoded, written and synced before this answers; the next request finds them."""
    import numpy as np

    name = server.name_of(asked.model, ANSWERS, "candidates")
    texts = [candidate.text for candidate in asked.candidates]
    candidates = [Candidate(one.id or text_id(one.text), one.text, dict(one.metadata)) for one in asked.candidates]
    n_bytes = int(request.headers.get("content-length", SMALL_BODY + 1))
    await server.aside(n_bytes, check_candidates, candidates, server.limits.metadata_bytes)
    tokens = [server.tokens(name, [text], "candidate") for text in texts]
    cut = parts(texts, tokens)
    tasks = [EmbedTask(texts[part]) for part in cut]
    computed = await server.compute(name, tasks, [sum(tokens[part]) for part in cut])
    vectors = np.concatenate([value.vectors for value in computed.values if value.vectors is not None])
    fingerprint = computed.values[0].fingerprint
    catalogue = server.catalogue(name)
    n = await server.blocking(
        lambda: catalogue.add(candidates, vectors, replace=asked.replace, fingerprint=fingerprint)
    )
    return AddAnswer(ids=[candidate.id for candidate in candidates], n_candidates=n)


@router.post("/v1/candidates/remove", summary="Remove candidates, all in one change")
async def remove(asked: RemoveRequest, server: Here) -> RemoveAnswer:
    """Ids that are not there are fine."""
    return await _remove(server, asked.model, asked.ids)


@router.delete("/v1/candidates/{id:text}", summary="Remove a candidate")
async def remove_one(server: Here, id_: Id, model: ModelName = None) -> RemoveAnswer:
    """An id that is not there is fine."""
    return await _remove(server, model, [id_])


async def _remove(server: Server, model: str | None, ids: list[str]) -> RemoveAnswer:
    name = server.name_of(model, ANSWERS, "candidates")
    server.check_texts(ids, "ids")
    removed, n = await server.blocking(server.catalogue(name).remove, ids)
    return RemoveAnswer(removed=removed, n_candidates=n)


@router.get("/v1/candidates/{id:text}", summary="A candidate", response_model=CandidateRow)
async def get(server: Here, id_: Id, model: ModelName = None) -> Response:
    """As it was added."""
    name = server.name_of(model, ANSWERS, "candidates")
    return Response(_written(await server.candidate(name, id_)), media_type=MEDIA_TYPE)


@router.get(
    "/v1/candidates", summary="A page of candidates, all or those with some words", response_model=CandidatesAnswer
)
async def candidates(
    server: Here,
    model: ModelName = None,
    after: Annotated[str | None, Query(pattern=r"^[0-9]{1,18}$", description="The last page's next.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Candidates in one page.")] = 50,
    q: Annotated[str, Query(max_length=500, description="Words that text or id must hold.")] = "",
    filter: Annotated[str | None, Query(description='On metadata, such as lang = "en".')] = None,
) -> Response:
    """In the order in which they were added; a page of long ones has fewer than ``limit``."""
    name = server.name_of(model, ANSWERS, "candidates")
    passing = None if filter is None else read_filter(filter)

    def written(index: Index) -> bytes:
        page = index.page(after=int(after or 0), n=limit, words=q.split(), filter=passing)
        rows = map(_written, page.candidates)
        return b'{"candidates":[%s],"next":%s,"n_candidates":%d}' % (
            b",".join(rows),
            b"null" if page.next is None else b'"%d"' % page.next,
            page.n,
        )

    return Response(await server.searching(server.catalogue(name).read, written), media_type=MEDIA_TYPE)


def _written(candidate: Candidate) -> bytes:
    """A candidate as JSON; metadata may hold integers of any length."""
    row = {"id": candidate.id, "text": candidate.text, "metadata": candidate.metadata}
    return json.dumps(row, ensure_ascii=False).encode()
