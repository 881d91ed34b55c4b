"""``/v1/respond``: the best replies to a conversation; ``/v1/explain``: why a reply has its score."""

import math
from typing import Any

from fastapi import APIRouter, Request, Response

from polyrank.feedback import Reply, Shown
from polyrank.feedback.records import MAX_CHARACTERS, MAX_REPLIES
from polyrank.index.filters import read_filter
from polyrank.records import Context
from polyrank.serving.context import ANSWERS, Here
from polyrank.serving.errors import HttpError
from polyrank.serving.strict import StrictRoute
from polyrank.serving.tasks import ExplainTask, Responded, RespondTask
from polyrank.serving.wire import ExplainRequest, RespondAnswer, RespondRequest
from polyrank.serving.written import assembled, merged

router = APIRouter(route_class=StrictRoute, tags=["replies"])


@router.post("/v1/respond", summary="The best replies to a conversation", response_model=RespondAnswer)
async def respond(asked: RespondRequest, request: Request, server: Here) -> Response:
    """Replies of an index or a pipeline, best first."""
    name = server.name_of(asked.model, ANSWERS, "replies")
    context = server.context(asked.context, asked.background)
    if asked.k > server.limits.k:
        raise HttpError(422, f"k = {asked.k:,}, the limit is {server.limits.k:,}; send a smaller one", param="k")
    if asked.filter is not None:
        read_filter(asked.filter)
    texts = [*context.turns, *context.background]
    if server.feedback is not None and (n_characters := sum(map(len, texts))) > MAX_CHARACTERS:
        said = f"context has {n_characters:,} characters, the limit is {MAX_CHARACTERS:,}; send the last turns"
        raise HttpError(422, said, param="context")
    n_tokens = server.tokens(name, texts, "context")
    task = RespondTask(context, asked.k, asked.filter, asked.allow_echo, asked.diverse)
    computed = await server.compute(name, [task], [n_tokens])
    (responded,) = computed.values
    answer = responded.answer
    request_id = request.scope["state"]["request_id"]
    if server.feedback is not None:
        server.feedback.show(_shown(request_id, name, context, asked.conversation or "", responded))
    body = {
        "request_id": request_id,
        "model": name,
        "abstained": answer.abstained,
        # without a second reply to compare with it is infinite, which JSON cannot say
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
    return await assembled(server, body, results=responded.rows)


def _shown(request_id: str, name: str, context: Context, conversation: str, responded: Responded) -> Shown:
    """What is recorded of an answer: as many replies as a record takes, and their texts where they fit into it."""
    turns, facts = (tuple(filter(str.strip, texts)) for texts in (context.turns, context.background))
    shown = responded.shown[:MAX_REPLIES]
    fits = sum(map(len, [*turns, *facts, *(text for *_, text in shown)])) <= MAX_CHARACTERS
    replies = tuple(Reply(id_, score, text if fits else None) for id_, score, text in shown)
    known = Context(turns, facts) if turns else None
    return Shown(request_id, replies, known, conversation.strip(), name, responded.fingerprint, responded.change)


@router.post("/v1/explain", summary="Why a reply has its score", response_model=dict[str, Any])
async def explain(asked: ExplainRequest, server: Here) -> Response:
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
    return merged({"model": name}, explanation)
