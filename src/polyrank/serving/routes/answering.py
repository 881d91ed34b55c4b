"""``/v1/respond``: the best replies to a conversation; ``/v1/explain``: why a reply has its score."""

import math
from typing import Any

from fastapi import APIRouter, Request, Response

from polyrank.errors import DataError
from polyrank.feedback import Reply, Shown
from polyrank.feedback.records import MAX_CHARACTERS, MAX_REPLIES
from polyrank.index.filters import as_filter
from polyrank.records import Context
from polyrank.serving.context import CurrentServer, filter_of
from polyrank.serving.errors import HttpError
from polyrank.serving.responses import assemble_response, merge_response
from polyrank.serving.strict import StrictRoute, refuse_size
from polyrank.serving.tasks import ExplainTask, Responded, RespondTask
from polyrank.serving.wire import ExplainRequest, RespondAnswer, RespondRequest

router = APIRouter(route_class=StrictRoute, tags=["replies"])


@router.post("/v1/respond", summary="The best replies to a conversation", response_model=RespondAnswer)
async def respond(payload: RespondRequest, request: Request, server: CurrentServer) -> Response:
    """Replies of an index, best first."""
    name = server.resolve_name(payload.model, "replies")
    context = server.context(payload.context, payload.background)
    if payload.k > server.limits.k:
        raise HttpError(422, f"k = {payload.k:,}, the limit is {server.limits.k:,}; send a smaller k", param="k")
    passing = filter_of(request, payload.filter)
    texts = [*context.turns, *context.background]
    if server.feedback is not None and (n_characters := sum(map(len, texts))) > MAX_CHARACTERS:
        message = f"context has {n_characters:,} characters, the limit is {MAX_CHARACTERS:,}; send the last turns"
        raise HttpError(422, message, param="context")
    n_tokens = server.tokens(name, texts, "context")
    options = payload.allow_echo, payload.diverse, payload.any_language
    task = RespondTask(context, payload.k, passing, *options)
    computed = await server.compute(name, [task], [n_tokens])
    (responded,) = computed.values
    answer = responded.answer
    request_id = request.scope["state"]["answer_id"]
    if server.feedback is not None:
        try:
            shown = _shown(request_id, name, context, payload.conversation or "", responded)
            server.feedback.show(shown, request.scope["state"].get("key", ""))
        except DataError as error:  # such as an id that is too long: the answer does not depend on it
            server.feedback.lose(str(error))
    body = {
        "request_id": request_id,
        "model": name,
        "abstained": answer.abstained,
        # infinite without a second reply to compare with, which JSON cannot express
        "confidence": None if answer.confidence is None or math.isinf(answer.confidence) else answer.confidence,
        "exact": answer.exact,
        "n_scored": answer.n_scored,
        "ways": list(answer.ways),
        "notes": list(answer.notes),
        "timings_ms": {
            "waiting": round(computed.waiting_ms, 3),
            "computing": round(computed.computing_ms, 3),
            "model": round(responded.model_ms, 3),
        },
    }
    return await assemble_response(server, body, results=responded.rows)


def _shown(request_id: str, name: str, context: Context, conversation: str, responded: Responded) -> Shown:
    """The feedback record of an answer: at most MAX_REPLIES replies, with their texts if they fit."""
    turns, facts = (tuple(filter(str.strip, texts)) for texts in (context.turns, context.background))
    shown = responded.shown[:MAX_REPLIES]
    fits = sum(map(len, [*turns, *facts, *(text for *_, text in shown)])) <= MAX_CHARACTERS
    replies = tuple(Reply(id_, score, text if fits else None) for id_, score, text in shown)
    visible = Context(turns, facts) if turns else None
    return Shown(request_id, replies, visible, conversation.strip(), name, responded.fingerprint, responded.change)


@router.post("/v1/explain", summary="Why a reply has its score", response_model=dict[str, Any])
async def explain(payload: ExplainRequest, request: Request, server: CurrentServer) -> Response:
    """The contribution of each turn and token of the conversation, and of the reply, to the score."""
    context = server.context(payload.context, payload.background)
    if (payload.text is None) == (payload.id is None):
        raise HttpError(422, "send either the reply's text or its id", param="text")
    name = server.resolve_name(payload.model, "" if payload.id is payload.filter is None else "candidates")
    passing = filter_of(request, payload.filter) if server.pool.info[name].index else as_filter(payload.filter)
    text = payload.text or (await server.candidate(name, payload.id or "", passing)).text
    if (n := sum(map(len, [*context.turns, *context.background, text]))) > server.limits.characters:
        refuse_size("context", n, "characters in all", server.limits.characters, "the last turns")
    # some methods score once per token, others once
    n_tokens = 16 * server.tokens(name, [*context.turns, *context.background, text], "context")
    task = ExplainTask(context, text, passing)
    (explanation,) = (await server.compute(name, [task], [n_tokens])).values
    return merge_response({"model": name}, explanation)
