"""An index as an MCP server: the official client starts it and speaks to it over stdio."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("mcp", reason="polyrank[mcp] is not installed")

from mcp import Client, StdioServerParameters

import polyrank
from polyrank.answering.replies import Replies
from polyrank.index import open_index
from polyrank.integrations.mcp import make_server
from polyrank.ranking.abstention import Abstention
from polyrank.ranking.relevance import Relevance
from polyrank.records import ContextLike, contexts_of
from polyrank.scorers.protocols import Floats
from polyrank.scorers.ranker import as_ranker
from word_models import WordEncoder

REPLIES = ["restart the router", "pay the bill", "the light is red", "hello hi", "thanks"]
ASKED = ["hello", "my wifi is down"]


@pytest.fixture(scope="module")
def index(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mcp")
    ranker = as_ranker(polyrank.load(f"untuned:{tiny_backbone}"))
    ranker.relevance = Relevance(1.0, 0.0, 0.01)
    ranker.save(folder / "ranker")
    pool = [polyrank.Candidate(f"r{i}", text, {"long": len(text) > 8}) for i, text in enumerate(REPLIES)]
    polyrank.build_index(folder / "index", polyrank.load(folder / "ranker"), pool)
    return folder / "index"


def process(index: Path, *options: str) -> StdioServerParameters:
    """The server as a process, which a client starts."""
    command = ["-m", "polyrank", "mcp", str(index), *options]
    return StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))


async def called(server: Any, calls: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """The names of the tools, and the result of each call: its content, or the text of its error."""
    async with Client(server) as client:
        listed = await client.list_tools()
        results: list[Any] = [sorted(tool.name for tool in listed.tools)]
        for name, arguments in calls:
            result = await client.call_tool(name, arguments)
            text = getattr(result.content[0], "text", "") if result.content else ""
            results.append(text if result.is_error else result.structured_content)
        return results


@pytest.mark.parametrize("over", ["memory", pytest.param("stdio", marks=pytest.mark.deep)])
def test_an_agent_suggests_ranks_explains_and_adds(over: str, index: Path) -> None:
    with polyrank.open(index) as replies:
        best = replies.answer(ASKED, 3, diverse=True).ranked
        ranked = replies.scorer.rank(ASKED, REPLIES[::-1], 2)
        explained = replies.explain(ASKED, candidate_id="r1").as_dict()
    opened = polyrank.open(index)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("suggest", {"conversation": ASKED}),
        ("suggest", {"conversation": ASKED, "k": 5, "filter": "long = false"}),
        ("rank", {"conversation": ASKED, "candidates": REPLIES[::-1], "k": 2}),
        ("explain", {"conversation": ASKED, "reply_id": "r1"}),
        ("add", {"text": "please restart it", "reply_id": "new", "metadata": {"long": True}}),
        ("suggest", {"conversation": ["please restart it now"], "k": 6}),
        ("suggest", {"conversation": []}),
        ("suggest", {"conversation": ASKED, "filter": "long = ="}),
        ("explain", {"conversation": ASKED, "reply_id": "nobody"}),
        ("add", {"text": " "}),
    ]
    tools, suggested, short, sorted_, why, added, later, *errors = asyncio.run(
        called(process(index) if over == "stdio" else make_server(opened), calls)
    )
    opened.close()
    assert tools == ["add", "explain", "rank", "suggest"]
    assert suggested["abstained"] is False
    assert [(one["id"], one["text"]) for one in suggested["replies"]] == [(reply.id, reply.text) for reply in best]
    for one in (*suggested["replies"], *sorted_["replies"]):
        assert one["relevance"] == pytest.approx(float(Relevance(1.0, 0.0, 0.0).of(one["score"])))
    assert [one["id"] for one in short["replies"]] == [one.id for one in best if one.id in ("r3", "r4")] or short
    assert {one["id"] for one in short["replies"]} == {"r3", "r4"}
    assert [one["index"] for one in sorted_["replies"]] == [int(reply.id) for reply in ranked]
    assert why["score"] == pytest.approx(explained["score"], abs=1e-5)
    assert len(why["turns"]) == 2
    assert added == {"id": "new"}
    assert "new" in [one["id"] for one in later["replies"]]
    expected = ["the context is empty", "character", "nobody", "text"]
    assert all(words in text for words, text in zip(expected, errors, strict=True)), errors
    with polyrank.open(index) as replies:
        assert (replies.candidate("new").text, replies.candidate("new").metadata) == (
            "please restart it",
            {"long": True},
        )
        replies.remove(["new"])


def test_a_server_may_be_read_only_abstain_and_rank_all(index: Path) -> None:
    with polyrank.open(index) as replies:
        ranked = replies.scorer.rank(ASKED, REPLIES)
        explained = replies.explain(ASKED, "thanks a lot").as_dict()
        replies.add([{"id": "copy", "text": "Restart the router!", "metadata": {"long": True}}])
        diverse = replies.answer(ASKED, 9, diverse=True).ranked
        calls: list[tuple[str, dict[str, Any]]] = [
            ("rank", {"conversation": ASKED, "candidates": REPLIES}),
            ("explain", {"conversation": ASKED, "text": "thanks a lot"}),
            ("suggest", {"conversation": ASKED, "k": 9}),
        ]
        tools, sorted_, why, suggested = asyncio.run(called(make_server(replies, read_only=True), calls))
        assert tools == ["explain", "rank", "suggest"]
        assert [(one["index"], one["text"]) for one in sorted_["replies"]] == [(int(r.id), r.text) for r in ranked]
        assert why["score"] == pytest.approx(explained["score"], abs=1e-5)
        assert [one["metadata"] for one in suggested["replies"]] == [reply.metadata for reply in diverse]
        assert {str(reply.metadata) for reply in diverse} == {"{'long': True}", "{'long': False}"}
        assert len(diverse) == len(REPLIES)  # one of two near-copies
        replies.scorer.abstention = Abstention("score", 1e9)
        replies.scorer.relevance = None
        new: tuple[str, dict[str, Any]] = ("add", {"text": "have you tried to turn it off"})
        _, nothing, all_of_them, added = asyncio.run(called(make_server(replies), [calls[2], calls[0], new]))
        assert added == {"id": polyrank.data.text_id(new[1]["text"])}
        assert replies.candidate(added["id"]) == polyrank.Candidate(added["id"], new[1]["text"], {})
        assert nothing["abstained"] is True
        assert {*all_of_them["replies"][0]} == {"index", "text", "score"}
        replies.remove(["copy", added["id"]])


class Picky(WordEncoder):
    """A user's own model, which raises a TypeError for some texts."""

    def encode_contexts(self, contexts: Sequence[ContextLike]) -> tuple[Floats, NDArray[np.bool_]]:
        self.check([turn for context in contexts_of(contexts) for turn in context.turns])
        return super().encode_contexts(contexts)

    def encode_candidates(self, candidates: Sequence[str]) -> Floats:
        self.check(candidates)
        return super().encode_candidates(candidates)

    def check(self, texts: Sequence[str]) -> None:
        if any("7" in text for text in texts):
            raise TypeError("write numbers as words")


def test_the_server_introduces_itself_and_every_tool_explains_its_refusals(tmp_path: Path) -> None:
    """An agent learns from them when to use the tools, and how to correct a call."""
    polyrank.build_index(tmp_path / "i", Picky("picky"), REPLIES)
    calls: list[tuple[str, dict[str, Any], str]] = [
        ("suggest", {"conversation": ["7 bills"]}, "write numbers as words"),
        ("rank", {"conversation": ["hi"], "candidates": ["7 bills"]}, "write numbers as words"),
        ("explain", {"conversation": ["hi"], "text": "7 bills"}, "write numbers as words"),
        ("add", {"text": "7 bills"}, "write numbers as words"),
        ("suggest", {"conversation": ["hi"], "k": 0}, "request at least one reply"),
        ("rank", {"conversation": ["hi"], "candidates": REPLIES, "k": 0}, "request at least one candidate"),
        ("explain", {"conversation": ["hi"], "text": "a", "reply_id": "b"}, "give one of them"),
        ("add", {"text": "bye", "reply_id": polyrank.data.text_id(REPLIES[0])}, "in the index"),
    ]

    async def introduced(server: Any) -> tuple[Any, ...]:
        async with Client(server) as client:
            tools = (await client.list_tools()).tools
            return client.server_info.name, client.server_info.version, client.instructions, tools

    with Replies(Picky("picky"), open_index(tmp_path / "i")) as replies:
        name, version, instructions, tools = asyncio.run(introduced(make_server(replies)))
        assert (name, version) == ("polyrank", polyrank.__version__)
        assert "Call suggest with the conversation, oldest turn first, before you answer" in instructions
        assert all(len(tool.description or "") > 50 for tool in tools)
        _, *found = asyncio.run(called(make_server(replies), [call[:2] for call in calls]))
        for (tool, _, reason), refusal in zip(calls, found, strict=True):
            assert reason in refusal, (tool, refusal)
        assert len(replies) == len(REPLIES)


@pytest.mark.deep
def test_a_process_may_be_read_only(index: Path) -> None:
    (tools,) = asyncio.run(called(process(index, "--read-only"), []))
    assert tools == ["explain", "rank", "suggest"]
