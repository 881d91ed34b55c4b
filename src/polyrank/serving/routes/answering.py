"""``/v1/respond``: the best replies to a conversation; ``/v1/explain``: why a reply has its score."""

import math
from typing import Any

from fastapi import APIRouter, Request

from polyrank.feedback import Reply, Shown
from polyrank.index.browse import candidate_of
from polyrank.index.filters import read_filter
from polyrank.records import Context
from polyrank.serving.context import ANSWERS, Here
from polyrank.serving.errors import HttpError
from polyrank.serving.strict import StrictRoute
from polyrank.serving.wire import ExplainRequest, RespondAnswer, RespondReply, RespondRequest

router = APIRouter(route_class=StrictRoute, tags=["replies"])


@router.post("/v1/respond", summary="The best replies to a conversation")
async def respond(asked: RespondRequest, request: Request, server: Here) -> RespondAnswer:
    """Replies of an index or a pipeline, best first."""
    name = server.name_of(asked.model, ANSWERS, "replies")
    payload: dict[str, Any] = server.context(asked.context, asked.background)
    if asked.k > server.limits.k:
        raise HttpError(422, f"k = {asked.k:,}, the limit is {server.limits.k:,}; ask for fewer", param="k")
    if asked.filter is not None:
        read_filter(asked.filter)
    payload |= {"k": asked.k, "filter": asked.filter}
    n_tokens = server.tokens(name, [*payload["context"], *payload["background"]], "context")
    computed = await server.compute("respond", name, [payload], [n_tokens])
    (answer,) = computed.values
    request_id = request.scope["state"]["request_id"]
    if server.feedback is not None:
        replies = tuple(Reply(id_, score, text) for id_, text, score, *_ in answer["ranked"])
        context = Context(tuple(payload["context"]), tuple(payload["background"]))
        server.feedback.show(
            Shown(request_id, replies, context, asked.conversation or "", name, answer["fingerprint"], answer["change"])
        )
    confidence = answer["confidence"]
    return RespondAnswer(
        request_id=request_id,
        model=name,
        results=[
            RespondReply(
                id=id_,
                text=text,
                score=score,
                metadata=metadata,
                retrieval_score=stages.get("retriever"),
                rerank_score=stages.get("reranker"),
            )
            for id_, text, score, metadata, stages in answer["ranked"]
        ],
        abstained=answer["abstained"],
        # without a second reply to compare with it is infinite, which JSON cannot say
        confidence=None if confidence is None or math.isinf(confidence) else confidence,
        exact=answer["exact"],
        n_scored=answer["n_scored"],
        ways=list(answer["ways"]),
        timings_ms={
            "waiting": round(computed.waiting_ms, 3),
            "computing": round(computed.computing_ms, 3),
            "model": round(answer["model_ms"], 3),
        },
    )


@router.post("/v1/explain", summary="Why a reply has its score")
async def explain(asked: ExplainRequest, server: Here) -> dict[str, Any]:
    """What each turn and token of the conversation, and of the reply, brings to the score."""
    payload: dict[str, Any] = server.context(asked.context, asked.background)
    if (asked.text is None) == (asked.id is None):
        raise HttpError(422, "name the reply by its text or by its id, one of both", param="text")
    payload["filter"] = asked.filter
    name = server.name_of(asked.model, () if asked.id is asked.filter is None else ANSWERS, "candidates")
    if asked.id is not None:
        candidate = await server.blocking(candidate_of, server.index_path(name), asked.id)
        if candidate is None:
            raise HttpError(404, "no candidate has this id", param="id", code="not_found")
        payload["candidate"] = candidate.text
    else:
        assert asked.text is not None, "one of both is given"
        server.check_texts([asked.text], "text")
        payload["candidate"] = asked.text
    # some models are asked once for each token, others once
    n_tokens = 16 * server.tokens(name, [*payload["context"], payload["candidate"]], "context")
    (explanation,) = (await server.compute("explain", name, [payload], [n_tokens])).values
    return {"model": name, **explanation}
