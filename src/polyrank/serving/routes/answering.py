"""``/v1/respond``: the best replies to a conversation; ``/v1/explain``: why a reply has its score."""

import math
from typing import Any

from fastapi import APIRouter, Request

from polyrank.feedback import Reply, Shown
from polyrank.index.filters import read_filter
from polyrank.serving.context import ANSWERS, Here
from polyrank.serving.errors import HttpError
from polyrank.serving.strict import StrictRoute
from polyrank.serving.tasks import ExplainTask, RespondTask
from polyrank.serving.wire import ExplainRequest, RespondAnswer, RespondReply, RespondRequest

router = APIRouter(route_class=StrictRoute, tags=["replies"])


@router.post("/v1/respond", summary="The best replies to a conversation")
async def respond(asked: RespondRequest, request: Request, server: Here) -> RespondAnswer:
    """Replies of an index or a pipeline, best first."""
    name = server.name_of(asked.model, ANSWERS, "replies")
    context = server.context(asked.context, asked.background)
    if asked.k > server.limits.k:
        raise HttpError(422, f"k = {asked.k:,}, the limit is {server.limits.k:,}; ask for fewer", param="k")
    if asked.filter is not None:
        read_filter(asked.filter)
    n_tokens = server.tokens(name, [*context.turns, *context.background], "context")
    computed = await server.compute(name, [RespondTask(context, asked.k, asked.filter)], [n_tokens])
    (responded,) = computed.values
    answer = responded.answer
    request_id = request.scope["state"]["request_id"]
    if server.feedback is not None:
        replies = tuple(Reply(reply.id, reply.score, reply.text) for reply in answer.ranked)
        conversation, made_by = asked.conversation or "", (name, responded.fingerprint, responded.change)
        server.feedback.show(Shown(request_id, replies, context, conversation, *made_by))
    return RespondAnswer(
        request_id=request_id,
        model=name,
        results=[
            RespondReply(
                id=reply.id,
                text=reply.text,
                score=reply.score,
                metadata=reply.metadata,
                retrieval_score=reply.stages.get("retriever"),
                rerank_score=reply.stages.get("reranker"),
            )
            for reply in answer.ranked
        ],
        abstained=answer.abstained,
        # without a second reply to compare with it is infinite, which JSON cannot say
        confidence=None if answer.confidence is None or math.isinf(answer.confidence) else answer.confidence,
        exact=answer.exact,
        n_scored=answer.n_scored,
        ways=list(answer.ways),
        timings_ms={
            "waiting": round(computed.waiting_ms, 3),
            "computing": round(computed.computing_ms, 3),
            "model": round(responded.model_ms, 3),
        },
    )


@router.post("/v1/explain", summary="Why a reply has its score")
async def explain(asked: ExplainRequest, server: Here) -> dict[str, Any]:
    """What each turn and token of the conversation, and of the reply, brings to the score."""
    context = server.context(asked.context, asked.background)
    if (asked.text is None) == (asked.id is None):
        raise HttpError(422, "name the reply by its text or by its id, one of both", param="text")
    name = server.name_of(asked.model, () if asked.id is asked.filter is None else ANSWERS, "candidates")
    if asked.id is not None:
        text = (await server.candidate(name, asked.id)).text
    else:
        assert asked.text is not None, "one of both is given"
        server.check_texts([asked.text], "text")
        text = asked.text
    # some models are asked once for each token, others once
    n_tokens = 16 * server.tokens(name, [*context.turns, text], "context")
    task = ExplainTask(context, text, asked.filter)
    (explanation,) = (await server.compute(name, [task], [n_tokens])).values
    return {"model": name, **explanation}
