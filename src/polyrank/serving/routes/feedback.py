"""``/v1/feedback``: what became of replies that were shown; only where the server was given a file to keep it in."""

from typing import Any

from fastapi import APIRouter

from polyrank.feedback import Outcome, Reply, Shown, report
from polyrank.serving.context import Here
from polyrank.serving.errors import HttpError
from polyrank.serving.strict import StrictRoute
from polyrank.serving.wire import FeedbackAnswer, FeedbackRequest

router = APIRouter(route_class=StrictRoute, tags=["feedback"])


@router.post("/v1/feedback", summary="What became of replies that were shown")
async def feedback(asked: FeedbackRequest, server: Here) -> FeedbackAnswer:
    """Durable when this answers; the same again changes nothing."""
    log = server.feedback
    assert log is not None, "the route is there only with a file"
    entries: list[Shown | Outcome] = []
    if asked.shown is not None:
        context = server.context(asked.shown.context, asked.shown.background) if asked.shown.context else None
        entries.append(
            Shown(
                asked.request_id,
                tuple(Reply(reply.id, reply.score, reply.text) for reply in asked.shown.results),
                context,
                conversation=asked.shown.conversation or "",
                model=asked.shown.model or "",
            )
        )
    entries.append(Outcome(asked.request_id, asked.action, asked.candidate_id, asked.final_text))
    return FeedbackAnswer(recorded=await log.record(*entries) > 0)


@router.get("/v1/feedback/report", summary="How suggestions are taken")
async def figures(server: Here) -> dict[str, Any]:
    """By rank, by week and by model, with 95% intervals."""
    log = server.feedback
    if log is None:
        raise HttpError(404, "no feedback is kept", code="not_found")
    return await server.searching(lambda: report(log.store.requests()))
