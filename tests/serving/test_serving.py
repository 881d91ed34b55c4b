"""The server over HTTP, with real sockets."""

import base64
import dataclasses
import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pydantic
import pytest
from safetensors.numpy import load_file, save_file

import polyrank
from polyrank.config.serving import FeedbackSettings, LimitSettings, ServingSettings, read_serving
from polyrank.serving import wire
from polyrank.serving.dialects import fields, ranking
from polyrank.serving.routes.ranking import uncalibrated
from servers import Running, serving
from serving_here import serving_here

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
    names = ("support", "rerank-v3.5", "BAAI/bge-reranker-v2-m3", "text-embedding-3-small")  # of one model
    with serving_here(*(f"{name}={index}" for name in names)) as running:
        yield running


@pytest.fixture
def client(server: Running) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def test_replies_equal_those_of_the_library(client: httpx.Client, index: Path) -> None:
    with polyrank.open(index) as replies:
        expected = replies.answer(["hello", "my wifi is down"], 3)
    answer = client.post("/v1/respond", json={"context": ["hello", "my wifi is down"], "k": 3}).json()
    assert [reply["id"] for reply in answer["results"]] == [reply.id for reply in expected.ranked]
    scores = [reply["score"] for reply in answer["results"]]
    assert scores == pytest.approx([reply.score for reply in expected.ranked], abs=1e-5)
    assert answer["exact"] is True
    assert answer["abstained"] is False


def test_a_filter_keeps_passing_replies(client: httpx.Client) -> None:
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
    shown = [result["relevance_score"] for result in cohere["results"]]
    assert shown == pytest.approx(uncalibrated(scores[order[:3]]), abs=1e-5)
    objects = client.post(
        "/v1/rerank",
        json={"query": "my wifi", "documents": [{"text": text} for text in REPLIES], "return_documents": True},
    ).json()
    assert [result["document"]["text"] for result in objects["results"]] == [REPLIES[row] for row in order]
    tei = client.post("/rerank", json={"query": "my wifi", "texts": REPLIES, "raw_scores": True}).json()
    assert [row["index"] for row in tei] == order
    assert [row["score"] for row in tei] == pytest.approx(scores[order].tolist(), abs=1e-5)


@pytest.fixture(scope="module")
def encoder(tiny_backbone: Path) -> polyrank.Scorer:
    return polyrank.load(f"untuned:{tiny_backbone}")


CLIENTS = [json.loads(line) for line in (Path(__file__).parent / "clients.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("sent", CLIENTS, ids=[f"{row['client']} {row['path']}" for row in CLIENTS])
def test_bodies_of_real_clients(sent: dict[str, Any], client: httpx.Client, encoder: polyrank.Scorer) -> None:
    """``reads``, ``texts``: where the client looks for its values. Bodies as libraries and applications send them."""
    answer = client.post(sent["path"], json=sent["body"])
    assert answer.status_code == 200, answer.text
    content, body = answer.json(), sent["body"]
    place, _, what = sent["reads"].partition(".")
    rows = content[place] if place in content and place else content["data"] if place == "score" else content
    if place == "output":
        rows, body = rows["results"], body | body["input"] | body["parameters"]
    if {"query", "text_1", "queries"} & set(body):
        raw = encoder.score(["my wifi is down"], [REPLIES])[0].astype(float)
        values = raw if what in ("logit", "raw") else uncalibrated(raw)
        order = np.argsort(-raw, kind="stable") if place != "score" else range(len(REPLIES))
        expected = [(int(row), pytest.approx(values[row], abs=1e-5)) for row in order]
        n = body.get("top_n") or body.get("top_k") or len(REPLIES)
        field = "relevance_score" if what == "raw" else what
        assert [(row["index"], row[field]) for row in rows] == expected[:n]
        if texts := sent.get("texts"):
            shown = [row["document"]["text"] if texts == "document.text" else row["document"] for row in rows]
            assert shown == [REPLIES[row["index"]] for row in rows]
        return
    contexts, candidates = encoder.encode_contexts(REPLIES)[0][:, 0], encoder.encode_candidates(REPLIES)  # type: ignore[attr-defined]
    expected = contexts if what == "query" else candidates
    expected = expected / np.linalg.norm(expected, axis=1, keepdims=True) if what == "unit" else expected
    rows = content["embeddings"]["float"] if place == "float" else [rows] if place == "embedding" else rows
    vectors = [row["embedding"] if place == "data" else row for row in rows]
    packed = [np.frombuffer(base64.b64decode(one), "<f4") if isinstance(one, str) else one for one in vectors]
    np.testing.assert_allclose(np.array(packed), expected[: len(packed)], atol=1e-5)


OWN_BODIES: dict[str, dict[str, Any]] = {
    "/v1/respond": {"context": "hi"},
    "/v1/explain": {"context": "hi", "text": "hello hi"},
    "/v1/candidates": {"candidates": []},
    "/v1/candidates/remove": {"ids": []},
    "/v1/feedback": {"answer_id": "a", "action": "refused"},
    "/v1/score": {"context": "hi", "candidates": ["hello hi"]},
}


WITH_ONE_VALUE = {"output_dtype", "late_chunking", "images"}


@pytest.mark.deep
def test_every_field_of_a_request_is_read(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its route, at each address. A conversation is read for the log of feedback alone; NVIDIA's scores are raw."""
    seen: dict[type[pydantic.BaseModel], set[str]] = {}

    def read(payload: pydantic.BaseModel, name: str) -> Any:
        if name in type(payload).__dict__.get("__pydantic_fields__", {}):
            seen[type(payload)].add(name)
        return object.__getattribute__(payload, name)

    monkeypatch.setattr(wire.Request, "__getattribute__", read)
    monkeypatch.setattr(fields.Dialect, "__getattribute__", read)
    unread: dict[tuple[str, type], set[str]] = {}
    for path, body in [*OWN_BODIES.items(), *((row["path"], row["body"]) for row in CLIENTS)]:
        seen = defaultdict(set)
        client.post(path, json=body)
        for model, names in seen.items():
            unread[path, model] = unread.get((path, model), {*model.model_fields} - WITH_ONE_VALUE) - names
    assert len(unread) > 30
    without_effect = {wire.RespondRequest: {"conversation"}, ranking.NvidiaRerank: {"raw_scores", "activation"}}
    for (path, model), names in unread.items():
        assert (path, names) == (path, without_effect.get(model, set()))


def test_a_field_of_another_services_format_is_named_as_ignored(client: httpx.Client) -> None:
    """Only OpenAI's format has encoding_format."""
    for path, body in (("/embed", {"inputs": "hi"}), ("/api/embed", {"input": "hi"})):
        answer = client.post(path, json={**body, "encoding_format": "base64"})
        assert "encoding_format" in answer.headers["x-warnings"]


def test_an_address_may_name_the_model(client: httpx.Client) -> None:
    """It wins over a body with the name of a model that is not served; two served names are a mistake."""
    body = {"input": ["hi"], "model": "text-embedding-ada-002"}
    named = client.post("/openai/deployments/support:query/embeddings?api-version=1", json=body)
    query = client.post("/v1/embeddings", json={"input": "hi", "model": "support:query"})
    assert named.json()["data"] == query.json()["data"]
    assert "x-warnings" not in named.headers
    deployed = client.post("/openai/deployments/support/embeddings", json={"input": ["hi"], "model": "support:query"})
    assert deployed.json()["data"] == query.json()["data"]
    plain, of_side = (
        client.post("/embed", json={"inputs": "hi", "model": f"support{side}"}) for side in ("", ":query")
    )
    assert "x-warnings" not in of_side.headers
    empty = client.post("/pipeline/feature-extraction/support", json={"inputs": "hi", "model": ""})
    assert empty.json() == plain.json()
    ranked = {"query": "hi", "documents": ["hello"]}
    latest = client.post("/api/rerank", json=ranked | {"model": "support:latest"})
    assert latest.json()["results"] == client.post("/api/rerank", json=ranked | {"model": "support"}).json()["results"]
    assert client.get("/v1/candidates/").json() == client.get("/v1/candidates").json()
    slashes = client.post("/pipeline/feature-extraction/BAAI/bge-reranker-v2-m3", json={"inputs": "hi"})
    assert slashes.json() == client.post("/embed", json={"inputs": "hi"}).json()
    for path, model, status in (
        ("/openai/deployments/nobody/embeddings", "support", 400),
        ("/openai/deployments/nobody/embeddings", None, 404),
        ("/openai/deployments/support/embeddings", "rerank-v3.5", 400),
        ("/openai/deployments/support/embeddings", "support", 200),
    ):
        assert client.post(path, json=body | {"model": model}).status_code == status, (path, model)
    assert client.post("/api/rerank", json={"query": "hi"}).json() == {"error": "documents: Field required"}
    assert client.get("/infinity/models").json() == client.get("/v1/models").json()


@pytest.mark.deep
def test_many_pairs_are_one_request(client: httpx.Client) -> None:
    """They are not refused as a burst."""
    pairs = {"text_1": REPLIES * 200, "text_2": list(reversed(REPLIES)) * 200}
    rows = client.post("/score", json=pairs).json()["data"]
    assert [row["score"] for row in rows[:5]] == pytest.approx([row["score"] for row in rows[-5:]], abs=1e-5)
    assert len(rows) == 1000


def test_unknown_fields_of_other_services_are_reported(client: httpx.Client, server: Running) -> None:
    body = {"query": "hi", "documents": ["a"], "instruction": "rank", "user": "me", "top_n": None, "own secret": None}
    answer = client.post("/v2/rerank", json=body)
    warned = ["ignored, because this server has no such field: instruction"]
    assert answer.json()["meta"]["warnings"] == warned
    server.wait_for(warned[0])
    texts = client.post("/rerank", json={"query": "hi", "texts": ["a"], "what is this?": 1})
    assert texts.headers["x-warnings"].endswith("what?is?this?")
    assert "meta" not in client.post("/v1/embeddings", json={"input": "a", "drop_params": True}).json()
    refused = client.post("/v1/score", json={"context": "hi", "candidates": ["a"], "user": None})
    assert refused.json()["error"]["message"] == "user is not a field of this route"  # polyrank's own


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/embeddings", {"input": "a", "late_chunking": True}, "late_chunking: Input should be False"),
        ("/v1/embeddings", {"input": "a", "output_dtype": "int8"}, "output_dtype: Input should be 'float'"),
        ("/v1/embeddings", {"input": "a", "input_type": "title"}, "input_type: String should match"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1 has 2 texts and text_2 1; send one text_1"),
        (
            "/v1/ranking",
            {"query": {"text": "hi " * 900}, "passages": ["a"], "truncate": "NONE"},
            "exceeds the limit",
        ),
    ],
)
def test_values_that_would_change_the_result_are_refused(
    client: httpx.Client, path: str, body: dict[str, Any], said: str
) -> None:
    answer = client.post(path, json=body)
    assert 400 <= answer.status_code < 500
    assert said in answer.text


def test_a_limit_on_tokens_is_of_tokens(client: httpx.Client) -> None:
    """Tokens after the limit are not read; texts of more characters but fewer tokens are not affected."""
    long, begins = "restart the router now", "restart the"

    def scores(document: str, **fields: int) -> list[float]:
        bodies = (
            {"query": "my wifi is down", "documents": [document], **fields},
            {"text_1": "my wifi", "text_2": document},
        )
        cohere = client.post("/v2/rerank", json=bodies[0]).json()["results"][0]["relevance_score"]
        named = {"truncate_prompt_tokens": fields.get("max_tokens_per_doc", -1)}
        vllm = client.post("/v1/score", json=bodies[1] | named).json()["data"][0]["score"]
        vectors = {"input": document, "max_tokens": fields.get("max_tokens_per_doc")}
        return [cohere, vllm, *client.post("/v1/embeddings", json=vectors).json()["data"][0]["embedding"]]

    assert scores(long, max_tokens_per_doc=2) == pytest.approx(scores(begins), abs=1e-5)
    assert scores(long, max_tokens_per_doc=len(long) - 1) == pytest.approx(scores(long), abs=1e-5)
    assert scores(long) != pytest.approx(scores(begins), abs=1e-5)


def test_blank_documents_come_last(client: httpx.Client) -> None:
    documents = ["", *REPLIES[:3], " \n"]
    cohere = client.post("/v2/rerank", json={"query": "my wifi", "documents": documents}).json()["results"]
    assert [result["index"] for result in cohere[-2:]] == [0, 4]
    assert cohere[-2]["relevance_score"] == cohere[-1]["relevance_score"] < cohere[-3]["relevance_score"]
    tei = client.post("/rerank", json={"query": "my wifi", "texts": documents}).json()
    assert [row["index"] for row in tei[-2:]] == [0, 4]


def test_the_address_may_name_the_model_of_any_dialect(client: httpx.Client) -> None:
    for texts in ("documents", "texts"):
        body = {"query": "my wifi", texts: REPLIES}
        named = client.post("/rerank?model=support", json=body)
        assert (named.status_code, named.json()) == (200, named.json())
        assert client.post("/rerank?model=nonsense", json=body).status_code == 404
    similar = {"inputs": {"source_sentence": "hi", "sentences": REPLIES[:2]}}
    texts = ("/embed", {"inputs": "hi"}), ("/embed", {"inputs": {"text": "hi"}})
    bodies = (*texts, ("/rerank", {"query": "hi", "texts": REPLIES}), ("/similarity", similar))
    for path, body in bodies:  # clients that have only an address send all of them to /
        for own in (path, "/"):
            named = client.post(f"{own}?model=support", json=body)
            assert (named.status_code, named.json()) == (200, client.post(path, json=body).json())
            assert client.post(f"{own}?model=nonsense", json=body).status_code == 404
    refused = client.post("/rerank?model=support", json={"query": "a", "documents": REPLIES, "model": "other"})
    assert refused.status_code == 422


def test_vectors_in_three_dialects(client: httpx.Client, tiny_backbone: Path) -> None:
    expected = polyrank.load(f"untuned:{tiny_backbone}").encode_candidates(REPLIES[:2])  # type: ignore[attr-defined]
    floats = client.post("/v1/embeddings", json={"input": REPLIES[:2]}).json()
    got = np.array([row["embedding"] for row in floats["data"]], np.float32)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    packed = client.post("/v1/embeddings", json={"input": REPLIES[:2], "encoding_format": "base64"}).json()
    vectors = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in packed["data"]]
    np.testing.assert_allclose(np.array(vectors), expected, atol=1e-5)
    cohere = client.post("/v2/embed", json={"texts": REPLIES[:2], "embedding_types": ["float", "base64"]}).json()
    np.testing.assert_allclose(np.array(cohere["embeddings"]["float"]), expected, atol=1e-5)
    assert cohere["embeddings"]["base64"] == [row["embedding"] for row in packed["data"]]
    assert (cohere["texts"], cohere["response_type"]) == (REPLIES[:2], "embeddings_by_type")
    tei = client.post("/embed", json={"inputs": REPLIES[:2], "normalize": False}).json()
    np.testing.assert_array_equal(np.array(tei, np.float32), got)  # the shortest decimal of a float32 is exact
    units = client.post("/embed", json={"inputs": REPLIES[:2], "normalize": True}).json()
    np.testing.assert_allclose(units, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-5)


def test_an_added_candidate_is_available_to_the_next_request(client: httpx.Client) -> None:
    added = client.post("/v1/candidates", json={"candidates": [{"text": "please restart", "metadata": {"a": 1}}]})
    (id_,) = added.json()["ids"]
    answer = client.post("/v1/respond", json={"context": "please restart it", "k": 9}).json()
    assert id_ in [reply["id"] for reply in answer["results"]]
    assert client.get(f"/v1/candidates/{id_}").json() == {"id": id_, "text": "please restart", "metadata": {"a": 1}}
    again = client.post("/v1/candidates", json={"candidates": [{"text": "please restart"}, {"text": "new one"}]})
    assert again.status_code == 422
    assert client.get("/v1/candidates", params={"q": "new one"}).json()["candidates"] == []  # all or nothing
    assert client.delete(f"/v1/candidates/{id_}").json()["removed"] == 1
    assert client.delete(f"/v1/candidates/{id_}").json()["removed"] == 0
    assert client.get(f"/v1/candidates/{id_}").status_code == 404


def test_a_change_by_another_user_is_not_lost(client: httpx.Client) -> None:
    def save(text: str, previous: dict[str, Any]) -> httpx.Response:
        body = {"candidates": [{"id": "shared", "text": text}], "replace": True, "previous": [previous]}
        return client.post("/v1/candidates", json=body)

    client.post("/v1/candidates", json={"candidates": [{"id": "shared", "text": "one"}]})
    read = client.get("/v1/candidates/shared").json()
    assert save("mine", read).status_code == 200
    assert save("mine", read).status_code == 200  # a repeated request
    refused = save("theirs", read)
    message = "candidate 'shared' was changed or removed after you read it; read it again"
    error = {"message": message, "type": "conflict_error", "param": "previous", "code": "changed"}
    assert (refused.status_code, refused.json()) == (412, {"error": error})
    assert client.get("/v1/candidates/shared").json()["text"] == "mine"
    assert save("theirs", {**read, "text": "mine", "metadata": {"a": 1}}).status_code == 412
    assert save("theirs", {**read, "text": "mine"}).status_code == 200
    client.delete("/v1/candidates/shared")
    assert save("mine", {**read, "text": "theirs"}).status_code == 412
    assert client.get("/v1/candidates/shared").status_code == 404


def test_the_catalogue_page_by_page(client: httpx.Client) -> None:
    def listed(**asked: object) -> list[str]:
        ids: list[str] = []
        while True:
            page = client.get("/v1/candidates", params={"limit": 2, **asked}).json()
            ids += [row["id"] for row in page["candidates"]]
            if page["next"] is None:
                return ids
            asked["after"] = page["next"]

    assert listed() == ["r0", "r1", "r2", "r3", "r4"]
    assert listed(q="THE ROUT") == ["r0"]  # each word anywhere, in any case
    assert listed(q="the") == ["r0", "r1", "r2"]
    assert listed(q="r4") == ["r4"]
    assert listed(q="%") == listed(q="_") == []
    assert listed(filter='team = "tech"') == ["r0", "r2", "r3", "r4"]
    assert listed(filter='not team = "tech"', q="pay") == ["r1"]
    assert client.get("/v1/candidates", params={"filter": "team ="}).status_code == 400
    assert client.get("/v1/candidates", params={"after": "-1"}).status_code == 422


def test_the_log_contains_no_text(server: Running, client: httpx.Client) -> None:
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
def test_errors_have_the_clients_format(
    client: httpx.Client, path: str, body: dict[str, object], status: int, shape: str
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == status
    assert list(answer.json()) == [shape]


def test_errors_name_fields_as_they_were_sent(client: httpx.Client) -> None:
    """An error names only the field: no alternative type, and also a field that is called query."""
    for path, body, said in [
        ("/v2/rerank", {"documents": ["a"]}, "query: Field required"),
        ("/rerank", {"query": "a"}, "documents: Field required"),
        ("/rerank", {"texts": ["a"]}, "query: Field required"),
        ("/rerank", {"query": "a", "texts": [1]}, "texts[0]: Input should be a valid string"),
        ("/rerank", {"documents": ["a"]}, "query: Field required"),
        ("/v1/respond", {"context": "a", "kk": 2}, "kk is not a field of this route"),
        ("/v1/respond", {"context": "a", "K": 2}, '"K is not a field of this route"'),
        ("/v1/respond", {"context": "a", "str": 2, "Int": 3}, '"str is not a field of this route; Int is not a field'),
        ("/v1/candidates", {"candidates": [{"Text": "a"}]}, "candidates[0].Text is not a field of this route"),
        ("/v1/embeddings", {"input": "a", "embedding_type": "int8"}, "embedding_type: Input should be 'float'"),
        ("/v2/rerank", {"query": "a", "documents": [{"title": "b"}]}, "documents[0].text: Field required"),
        ("/v1/respond", {"context": ["a", 1]}, "context[1]: Input should be a valid string"),
        ("/v1/respond", [], "the body is not a JSON object; send one"),
        ("/rerank", [], "the body is not a JSON object; send one"),
    ]:
        answer = client.post(path, json=body)
        assert answer.status_code == (400 if path == "/v1/embeddings" else 422)
        assert said in answer.text
    nothing = client.post("/v1/respond", headers={"content-type": "application/json"})
    assert nothing.json()["error"]["message"] == "the body is not a JSON object; send one"


def test_error_messages_quote_little(client: httpx.Client) -> None:
    long = "x" * 300 + "'"
    twice = client.post("/v1/candidates", json={"candidates": [{"id": long, "text": "a"}, {"id": long, "text": "b"}]})
    assert twice.status_code == 422
    assert "x" * 97 + "..." in twice.text
    assert "x" * 98 not in twice.text


def test_an_id_may_hold_a_slash(client: httpx.Client) -> None:
    added = client.post("/v1/candidates", json={"candidates": [{"id": "faq/a b?", "text": "please restart it"}]})
    assert added.json()["ids"] == ["faq/a b?"]
    for path in ("/v1/candidates/faq%2Fa%20b%3F", "/v1/candidates/faq/a%20b%3F"):
        assert client.get(path).json()["text"] == "please restart it"
    assert client.delete("/v1/candidates/faq%2Fa%20b%3F").json()["removed"] == 1


@pytest.mark.deep
def test_an_index_may_be_served_by_several_names(index: Path) -> None:
    """The server does not block itself."""
    with serving(f"a={index}", f"b={index}") as running, running.client() as client:
        for name, text in (("a", "first text"), ("b", "second text"), ("a", "third text")):
            added = client.post("/v1/candidates", json={"model": name, "candidates": [{"text": text}]})
            assert added.status_code == 200, added.text
            removed = client.post("/v1/candidates/remove", json={"model": name, "ids": added.json()["ids"]})
            assert removed.json()["removed"] == 1


@pytest.mark.deep
def test_a_missing_index_does_not_affect_others(index: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    """Its requests fail without naming its path, the log reports why, and other models still answer."""
    lost = tmp_path / "lost"
    shutil.copytree(index, lost)
    with serving(f"here={index}", f"lost={lost}") as running, running.client() as client:
        lost.rename(tmp_path / "elsewhere")
        answer = client.post("/v1/respond", json={"model": "lost", "context": "hi"})
        assert answer.status_code == 500
        assert str(tmp_path) not in answer.text
        assert str(lost) in running.wait_for(answer.headers["x-request-id"])
        counts = {row["id"]: row["n_candidates"] for row in client.get("/v1/models").json()["data"]}
        assert counts == {"here": len(REPLIES), "lost": None}
        assert client.post("/v1/respond", json={"model": "here", "context": "hi"}).status_code == 200
        # a missing model's file is not the client's fault either
        gone = shutil.copytree(tiny_backbone, tmp_path / "gone")
        weights = load_file(gone / "model.safetensors")
        save_file({name: 2 * values for name, values in weights.items()}, gone / "model.safetensors")
        polyrank.build_index(lost, polyrank.load(f"untuned:{gone}"), [polyrank.Candidate("r0", "hello")])
        shutil.rmtree(gone)
        answer = client.post("/v1/respond", json={"model": "lost", "context": "hi"})
        assert answer.status_code == 500
        assert str(tmp_path) not in answer.text
        running.wait_for(answer.headers["x-request-id"])


def test_every_setting_is_in_the_example_with_its_default() -> None:
    example = Path(__file__).parents[2] / "deploy" / "serve.toml"
    models, settings = read_serving(example)
    assert list(models) == ["support"]
    assert settings == ServingSettings()
    said = example.read_text("utf-8")
    for table in (ServingSettings, LimitSettings, FeedbackSettings):
        for field in dataclasses.fields(table):
            assert re.search(rf"^(# )?{field.name} = |^\[{field.name}\]", said, re.MULTILINE), field.name


def test_invalid_bodies(client: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    deep = "[" * 50_000
    for body, status in [("{", 400), (deep, 400), ('{"context": "\\ud800"}', 400), ("NaN", 400), (b"\xff", 400)]:
        answer = client.post("/v1/respond", content=body, headers=headers)
        assert answer.status_code == status, body[:20]
    for named in ({"content-type": "text/plain"}, {"origin": "http://elsewhere"}):  # as pages elsewhere can send it
        assert client.post("/v1/respond", content='{"context": "hi"}', headers=named).status_code == 415
        assert client.post("/v1/respond", content=iter([b'{"context": "hi"}']), headers=named).status_code == 415
    assert client.post("/v1/respond", content='{"context": "hi"}').status_code == 200
    assert client.post("/v1/respond", content=b"x" * 5_000_000, headers=headers).status_code == 413


@pytest.mark.deep
def test_openapi_names_every_route(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    assert {"/v1/respond", "/v2/rerank", "/v1/embeddings", "/v1/candidates", "/live"} <= set(document["paths"])
    assert "HTTPValidationError" not in json.dumps(document)
    shapes = document["components"]["schemas"]
    fields = [f"{name}.{key}" for name in shapes for key, one in shapes[name].get("properties", {}).items()
              if not one.get("description") and "$ref" not in one]  # fmt: skip
    assert fields == []
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert all(one["description"] for operation in operations for one in operation.get("parameters", ()))
