"""An index as a server of the Model Context Protocol: agents answer from its replies instead of inventing them."""

from typing import Any

from polyrank._version import __version__
from polyrank.answering.replies import Replies
from polyrank.errors import PolyrankError, needs
from polyrank.records import Ranked
from polyrank.scorers.ranker import Ranker

with needs("mcp", "mcp"):
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

INSTRUCTIONS = (
    "A catalogue of approved replies. Call suggest with the conversation, oldest turn first, before you answer, and use"
    " a suggested reply if one fits. If abstained is true, none is good enough."
)


def make_server(replies: Replies, *, read_only: bool = False) -> MCPServer:
    """A server with the tools ``suggest``, ``rank``, ``explain`` and ``add``.

    Args:
        replies: returned by ``polyrank.open``; the server does not close it.
        read_only: leave out ``add``.
    """
    server = MCPServer("polyrank", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING")

    @server.tool(structured_output=True)
    async def suggest(conversation: list[str], k: int = 3, filter: str | None = None) -> dict[str, Any]:
        """The k best approved replies to a conversation (turns, oldest first), best first.

        abstained: none is good enough. filter: a condition on metadata, such as: team = "billing".
        """
        with _Refusals():
            answer = replies.answer(conversation, k, filter=filter, diverse=True)
        shown = [{"id": one.id, "metadata": one.metadata, **_scored(replies.scorer, one)} for one in answer.ranked]
        return {"replies": shown, "abstained": answer.abstained}

    @server.tool(structured_output=True)
    async def rank(conversation: list[str], candidates: list[str], k: int | None = None) -> dict[str, Any]:
        """Your own candidate replies to a conversation, best first; index is the position in candidates."""
        with _Refusals():
            ranked = replies.scorer.rank(conversation, candidates, k)
        return {"replies": [{"index": int(one.id), **_scored(replies.scorer, one)} for one in ranked]}

    @server.tool(structured_output=True)
    async def explain(conversation: list[str], text: str | None = None, reply_id: str | None = None) -> dict[str, Any]:
        """Why a reply has its score: the share of each word. Give its text or its id; neither: the best one."""
        with _Refusals():
            return replies.explain(conversation, text, candidate_id=reply_id).as_dict()

    if not read_only:

        @server.tool(structured_output=True)
        async def add(text: str, reply_id: str | None = None, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
            """Add an approved reply to the catalogue. Only add what a person has approved."""
            with _Refusals():
                row = {"text": text, "metadata": metadata or {}} | ({"id": reply_id} if reply_id else {})
                (added,) = replies.add([row])
            return {"id": added}

    return server


def _scored(ranker: Ranker, reply: Ranked) -> dict[str, Any]:
    """The text and the score of a reply, and how probable it is that it is right, if the ranker knows."""
    row: dict[str, Any] = {"text": reply.text, "score": reply.score}
    return row if ranker.relevance is None else row | {"relevance": float(ranker.relevance.of(reply.score))}


class _Refusals:
    """Passes errors to the agent, which can then correct its call."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, PolyrankError | TypeError):
            raise ToolError(str(error)) from error
