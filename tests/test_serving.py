"""The server over HTTP: real processes, real sockets."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

import polyrank
from servers import Running, serving

REPLIES = ["restart the router", "pay the bill", "the light is red", "hello hi", "thanks"]


@pytest.fixture(scope="module")
def index(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    encoder = polyrank.load(f"untuned:{tiny_backbone}")
    candidates = [
        polyrank.Candidate(f"r{i}", text, {"team": "billing" if "bill" in text else "tech"})
        for i, text in enumerate(REPLIES)
    ]
    polyrank.build_index(folder / "index", encoder, candidates)
    return folder / "index"


@pytest.fixture(scope="module")
def server(index: Path) -> Iterator[Running]:
    with serving(f"support={index}") as running:
        yield running


@pytest.fixture
def client(server: Running) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def test_replies_are_those_of_the_library(client: httpx.Client, index: Path) -> None:
    with polyrank.open(index) as pipeline:
        expected = pipeline.answer(["hello", "my wifi is down"], 3)
    answer = client.post("/v1/respond", json={"context": ["hello", "my wifi is down"], "k": 3}).json()
    assert [reply["id"] for reply in answer["results"]] == [reply.id for reply in expected.ranked]
    scores = [reply["score"] for reply in answer["results"]]
    assert scores == pytest.approx([reply.score for reply in expected.ranked], abs=1e-5)
    assert answer["exact"] is True
    assert answer["abstained"] is False


def test_a_filter_leaves_those_that_pass(client: httpx.Client) -> None:
    answer = client.post("/v1/respond", json={"context": "hi", "k": 5, "filter": 'team = "billing"'}).json()
    assert [reply["id"] for reply in answer["results"]] == ["r1"]
    refused = client.post("/v1/respond", json={"context": "hi", "filter": "team = = 1"})
    assert refused.status_code == 400
    assert "character" in refused.json()["error"]["message"]


def test_rerank_in_three_dialects(client: httpx.Client, tiny_backbone: Path) -> None:
    scores = polyrank.load(f"untuned:{tiny_backbone}").score(["my wifi"], [REPLIES])[0]
    order = np.argsort(-scores, kind="stable").tolist()
    cohere = client.post("/v2/rerank", json={"query": "my wifi", "documents": REPLIES, "top_n": 3}).json()
    assert [result["index"] for result in cohere["results"]] == order[:3]
    expected = [1 / (1 + np.exp(-float(scores[row]))) for row in order[:3]]
    assert [result["relevance_score"] for result in cohere["results"]] == pytest.approx(expected, abs=1e-5)
    objects = client.post(
        "/v1/rerank",
        json={"query": "my wifi", "documents": [{"text": text} for text in REPLIES], "return_documents": True},
    ).json()
    assert [result["document"]["text"] for result in objects["results"]] == [REPLIES[row] for row in order]
    tei = client.post("/rerank", json={"query": "my wifi", "texts": REPLIES, "raw_scores": True}).json()
    assert [row["index"] for row in tei] == order
    assert [row["score"] for row in tei] == pytest.approx(scores[order].tolist(), abs=1e-5)


def test_vectors_in_three_dialects(client: httpx.Client, tiny_backbone: Path) -> None:
    expected = polyrank.load(f"untuned:{tiny_backbone}").encode_candidates(REPLIES[:2])  # type: ignore[attr-defined]
    floats = client.post("/v1/embeddings", json={"input": REPLIES[:2]}).json()
    got = np.array([row["embedding"] for row in floats["data"]], np.float32)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    packed = client.post("/v1/embeddings", json={"input": REPLIES[:2], "encoding_format": "base64"}).json()
    vectors = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in packed["data"]]
    np.testing.assert_allclose(np.array(vectors), expected, atol=1e-5)
    cohere = client.post("/v2/embed", json={"texts": REPLIES[:2], "embedding_types": ["float"]}).json()
    np.testing.assert_allclose(np.array(cohere["embeddings"]["float"]), expected, atol=1e-5)
    tei = client.post("/embed", json={"inputs": REPLIES[:2]}).json()
    np.testing.assert_allclose(np.array(tei), expected, atol=1e-5)


def test_a_candidate_that_is_added_is_there_for_the_next_request(client: httpx.Client) -> None:
    added = client.post("/v1/candidates", json={"candidates": [{"text": "please restart", "metadata": {"a": 1}}]})
    (id_,) = added.json()["ids"]
    answer = client.post("/v1/respond", json={"context": "please restart", "k": 9}).json()
    assert id_ in [reply["id"] for reply in answer["results"]]
    assert client.get(f"/v1/candidates/{id_}").json() == {"id": id_, "text": "please restart", "metadata": {"a": 1}}
    again = client.post("/v1/candidates", json={"candidates": [{"text": "please restart"}, {"text": "new one"}]})
    assert again.status_code == 422
    assert client.get("/v1/candidates", params={"q": "new one"}).json()["candidates"] == []  # all or none
    assert client.delete(f"/v1/candidates/{id_}").json()["removed"] == 1
    assert client.delete(f"/v1/candidates/{id_}").json()["removed"] == 0
    assert client.get(f"/v1/candidates/{id_}").status_code == 404


def test_the_log_knows_no_text(server: Running, client: httpx.Client) -> None:
    client.post("/v1/respond", json={"context": "the secret of the pyramid"})
    client.get("/v1/candidates", params={"q": "pyramid"})
    client.get("/pyramid")
    assert not any("pyramid" in line for line in server.lines)
    assert any(row.get("route") == "/v1/respond" for row in server.log)


@pytest.mark.parametrize(
    ("path", "body", "status", "shape"),
    [
        ("/v1/respond", {"context": []}, 422, "error"),
        ("/v1/respond", {"context": "a", "k": 0}, 422, "error"),
        ("/v1/respond", {"context": "a", "model": "nobody"}, 404, "error"),
        ("/v2/rerank", {"query": "a"}, 422, "message"),
        ("/v2/rerank", {"query": 1, "documents": ["a"]}, 422, "message"),
        ("/v1/embeddings", {"input": [1, 2, 3]}, 400, "error"),
        ("/v1/candidates", {"candidates": [{"text": " "}]}, 422, "error"),
        ("/nowhere", {}, 404, "error"),
    ],
)
def test_what_is_wrong_is_told_in_the_clients_shape(
    client: httpx.Client, path: str, body: dict[str, object], status: int, shape: str
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == status
    assert list(answer.json()) == [shape]


def test_bodies_that_are_none(client: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    deep = "[" * 100_000
    for body, status in [("{", 400), (deep, 400), ('{"context": "\\ud800"}', 422), ("NaN", 422), (b"\xff", 400)]:
        answer = client.post("/v1/respond", content=body, headers=headers)
        assert answer.status_code == status, body[:20]
    assert client.post("/v1/respond", content="a=b").status_code == 415
    assert client.post("/v1/respond", content=b"x" * 5_000_000, headers=headers).status_code == 413


def test_openapi_names_every_route(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    assert {"/v1/respond", "/v2/rerank", "/v1/embeddings", "/v1/candidates", "/live"} <= set(document["paths"])
    assert "HTTPValidationError" not in json.dumps(document)
