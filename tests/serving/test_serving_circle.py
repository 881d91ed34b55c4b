"""The feedback loop: served replies are taken, exported, trained on and reopened, and answers improve."""

from pathlib import Path
from typing import Any

import httpx
import pytest

import polyrank
from polyrank.data import read_examples
from processes import run
from servers import serving

FIRST = ("hi", "please", "thanks", "that", "high", "too")
HELD_OUT = ("hello", "did", "restart")


def recipe(train: Path, backbone: Path, output: Path, **settings: Any) -> dict[str, Any]:
    return {
        "output": str(output),
        "model": {"kind": "bi", "backbone": str(backbone), "reduction": "mean", "shared_towers": True},
        "text": {"max_context_tokens": 24, "max_candidate_tokens": 8},
        "data": {"train": str(train)},
        "train": {"batch_size": 12, "lr": 2e-3, "precision": "fp32", "dropout": 0.0} | settings,
    }


def respond(client: httpx.Client, context: list[str], k: int = 12) -> dict[str, Any]:
    answer = client.post("/v1/respond", json={"context": context, "k": k})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def mrr(client: httpx.Client, right: dict[str, str], firsts: tuple[str, ...]) -> float:
    ranks = []
    for turn, text in right.items():
        for first in firsts:
            texts = [reply["text"] for reply in respond(client, [first, turn])["results"]]
            ranks.append(1 / (1 + texts.index(text)))
    return sum(ranks) / len(ranks)


@pytest.mark.deep
@pytest.mark.slow
def test_taken_replies_improve_the_server(task: dict[str, Path], tiny_backbone: Path, tmp_path: Path) -> None:
    (before,) = polyrank.train(recipe(task["train"], tiny_backbone, tmp_path / "before", epochs=1))
    words = sorted({example.context[1].removeprefix("my ") for example in read_examples(task["train"]).examples})
    right = {f"my {word}": f"{word} thanks" for word in words}
    index, kept = tmp_path / "index", tmp_path / "feedback.db"
    polyrank.build_index(index, before.model, right.values())
    with serving(f"support={index}", "--feedback", kept, "--keep-text") as server, server.client() as client:
        scores = mrr(client, right, FIRST), mrr(client, right, HELD_OUT)
        for first in FIRST:
            for turn, text in right.items():
                answer = respond(client, [first, turn], k=6)
                liked = [reply["id"] for reply in answer["results"] if reply["text"] == text]
                said = {"action": "taken", "candidate_id": liked[0]} if liked else {"action": "refused"}
                said |= {} if liked else {"final_text": text}
                body = {"request_id": answer["request_id"], **said}
                assert client.post("/v1/feedback", json=body).json() == {"recorded": True}
                assert client.post("/v1/feedback", json=body).json() == {"recorded": False}
        other = {"request_id": answer["request_id"], "action": "edited", "candidate_id": "nobody", "final_text": "a"}
        assert client.post("/v1/feedback", json=other).status_code == 422
        assert client.post("/v1/feedback", json={"request_id": "x", "action": "refused"}).status_code == 422
        figures = client.get("/v1/feedback/report").json()
        assert figures["taken"] + figures["refused"] == len(FIRST) * len(right)
        assert figures["taken"] > 0

        assert run("feedback", "export", kept, "-o", tmp_path / "used.jsonl").returncode == 0
        settings = {"init_from": str(before.model), "epochs": 3, "negatives": {"sources": ["given"], "n": 3}}
        (after,) = polyrank.train(recipe(tmp_path / "used.jsonl", tiny_backbone, tmp_path / "after", **settings))
        polyrank.build_index(index, after.model, right.values(), overwrite=True)
        # the next request uses the new index with its new model
        assert mrr(client, right, FIRST) > scores[0] + 0.1
        assert mrr(client, right, HELD_OUT) >= scores[1]
        added = client.post("/v1/candidates", json={"candidates": [{"text": "something new"}]})
        assert added.status_code == 200, added.text
        assert client.get("/v1/models").json()["data"][0]["fingerprint"] == after.load(device="cpu").fingerprint
        assert server.stop() == 0
