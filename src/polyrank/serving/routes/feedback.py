"""``/v1/feedback``: outcomes of shown replies. These routes exist only if the server has a feedback file."""

from typing import Any

from fastapi import APIRouter, Request

from polyrank.feedback import Outcome, Reply, Shown, report
from polyrank.serving.context import CurrentServer
from polyrank.serving.strict import StrictRoute
from polyrank.serving.wire import FeedbackAnswer, FeedbackRequest

router = APIRouter(route_class=StrictRoute, tags=["feedback"])


@router.post("/v1/feedback", summary="Record the outcome of shown replies")
async def feedback(payload: FeedbackRequest, request: Request, server: CurrentServer) -> FeedbackAnswer:
    """Durable when this answers; sending the same again changes nothing."""
    log = server.feedback
    assert log is not None, "this route exists only with a feedback file"
    entries: list[Shown | Outcome] = []
    if payload.shown is not None:
        context = server.context(payload.shown.context, payload.shown.background) if payload.shown.context else None
        entries.append(
            Shown(
                payload.request_id,
                tuple(Reply(reply.id, reply.score, reply.text) for reply in payload.shown.results),
                context,
                conversation=payload.shown.conversation or "",
                model=payload.shown.model or "",
            )
        )
    entries.append(Outcome(payload.request_id, payload.action, payload.candidate_id, payload.final_text))
    return FeedbackAnswer(recorded=await log.record(*entries, key=request.scope["state"].get("key", "")) > 0)


@router.get("/v1/feedback/report", summary="How often suggestions are used")
async def figures(server: CurrentServer) -> dict[str, Any]:
    """Rates by rank, by week and by model, with 95% intervals."""
    log = server.feedback
    assert log is not None, "this route exists only with a feedback file"
    async with log.reporting:
        return await server.run_search(lambda: report(log.store.requests()))
