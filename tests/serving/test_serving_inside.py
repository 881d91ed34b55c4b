"""The exact answers of every route, with the whole server in this process and without HTTP, which is cheap."""

import asyncio
import base64
import gc
import json
import logging
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import asdict, replace
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

import polyrank

pytest.importorskip("fastapi")
import uvicorn
from starlette.testclient import TestClient
from uvicorn.server import ServerState

from polyrank.config.models import BiConfig, CrossConfig, TextPolicy
from polyrank.config.serving import FeedbackSettings, LimitSettings, ServingSettings
from polyrank.errors import (
    ArtifactError,
    DeadlineError,
    LockedError,
    OfflineError,
    PolyrankError,
    ReadOnlyError,
    UsageError,
)
from polyrank.feedback import FeedbackStore, Reply, Shown
from polyrank.index import open_index, open_writer, write_index
from polyrank.models import new_model
from polyrank.models.artifacts import save_model
from polyrank.ranking.abstention import Abstention
from polyrank.ranking.relevance import Relevance
from polyrank.records import Context
from polyrank.scorers.late import LateScorer
from polyrank.scorers.open import load_encoder
from polyrank.scorers.ranker import Ranker, as_ranker
from polyrank.scorers.terms.counts import Counts
from polyrank.scorers.terms.cross import CrossTerm
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.scorers.terms.protocol import Term
from polyrank.serving.app import _release_idle_locks, _watch_keys, create_app
from polyrank.serving.catalogue import Catalogue
from polyrank.serving.context import MAX_BLOCKING, MAX_SEARCHING, Server
from polyrank.serving.errors import HttpError, http_error
from polyrank.serving.guard import Guard, _address, refuse
from polyrank.serving.jobs import Job, OverloadedError, WaitingThreads
from polyrank.serving.keys import Keys, file_stamp
from polyrank.serving.pool import Pool, RefusedError, StartupError, Worker, WorkerDiedError
from polyrank.serving.protocol import PatientProtocol
from polyrank.serving.routes.feedback import figures
from polyrank.serving.run import _bind, _SignalHandlers, _until_stopped
from polyrank.serving.served import Served
from polyrank.serving.tasks import EmbedTask, RespondTask, ScoreTask, Side, Started
from polyrank.serving.worker import Setup, run_worker
from polyrank.storage.time_limit import TimeLimit, limit_searches
from serving_here import Thread, in_thread

REPLIES = ["restart the router", "pay the bill", "the light is red", "hello hi", "thanks"]
BASIC = ServingSettings()
PARTS = [{"type": "text", "text": letter * 400} for letter in "ab"]
MESSAGES = [{"role": "user", "content": text} for text in ("a", PARTS)]  # no part is too long
LONG = "word " * 100  # more tokens than a model reads


@contextmanager
def inside(models: dict[str, str], settings: ServingSettings = BASIC) -> Iterator[TestClient]:
    """A server whose worker is a thread."""
    with in_thread(Setup.of(models, settings)) as worker:
        app, server = create_app(models, settings, worker)
        headers = {"authorization": f"Bearer {server.keys.secret}"} if not server.keys else {}
        with TestClient(app, base_url="http://localhost", headers=headers) as client:
            limit = time.monotonic() + 60
            while client.get("/ready").status_code != 200:
                assert time.monotonic() < limit
            yield client


@pytest.fixture(scope="module")
def name(tiny_backbone: Path) -> str:
    return f"untuned:{tiny_backbone}"


@pytest.fixture(scope="module")
def index(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inside")
    candidates = [
        polyrank.Candidate(f"r{i}", text, {"team": "billing" if "bill" in text else "tech"})
        for i, text in enumerate(REPLIES)
    ]
    polyrank.build_index(folder / "index", polyrank.load(name), candidates)
    return folder / "index"


@pytest.fixture(scope="module")
def client(name: str, index: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    kept = FeedbackSettings(file=str(tmp_path_factory.mktemp("kept") / "feedback.db"), keep_text=True)
    limits = LimitSettings(items=6, turns=4, characters=600, metadata_bytes=200)
    with inside({"support": str(index), "tiny": name}, replace(BASIC, feedback=kept, limits=limits)) as client:
        yield client


def post(client: TestClient, path: str, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


# --- what is served ---------------------------------------------------------------------------------------------------


def test_the_list_of_models(client: TestClient, name: str) -> None:
    rows = client.get("/v1/models").json()["data"]
    fingerprint = polyrank.load(name).fingerprint
    common = {
        "object": "model", "owned_by": "polyrank", "backend": "torch", "scorer": "encoder",
        "fingerprint": fingerprint, "dimension": 32,
    }  # fmt: skip
    for row, own in zip(rows, ({"id": "support", "kind": "index"}, {"id": "tiny", "kind": "model"}), strict=True):
        assert {key: row[key] for key in common if key in row} == {key: common[key] for key in common if key in row}
        assert {key: row[key] for key in own} == own
        assert (row["max_context_tokens"], row["max_candidate_tokens"]) == cuts(name)
        assert row["created"] == rows[0]["created"] > 1e9
        assert client.get(f"/v1/models/{row['id']}").json() == row
    assert (rows[0]["n_candidates"], rows[0]["stages"]) == (5, 1)
    assert rows[1].get("n_candidates") is None
    missing = client.get("/v1/models/nobody")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
    assert missing.json()["error"]["message"] == "model 'nobody' is not served; use one of support, tiny"


def cuts(name: str) -> tuple[int, int]:
    (cut,) = polyrank.load(name).cut[-1:]
    return cut.max_context_tokens, cut.max_candidate_tokens


def test_the_first_model_in_the_format_of_another_service(client: TestClient, name: str) -> None:
    assert client.get("/info").json() == {
        "model_id": "support", "model_sha": polyrank.load(name).fingerprint, "model_dtype": "float32",
        "model_type": {"embedding": {"pooling": "mean"}}, "max_concurrent_requests": 512,
        "max_input_length": cuts(name)[1], "max_batch_tokens": 1_000_000, "max_client_batch_size": 6,
        "auto_truncate": True, "tokenization_workers": 1, "version": polyrank.__version__,
    }  # fmt: skip


def test_it_lives_and_is_ready(client: TestClient) -> None:
    assert client.get("/live").json() == {"status": "live"}
    assert client.get("/ready").json() == {"status": "ready"}


# --- answers ----------------------------------------------------------------------------------------------------------


def test_replies(client: TestClient, index: Path) -> None:
    with polyrank.open(index) as replies:
        expected = replies.answer(["hello", "my wifi is down"], 5)
    answer = post(client, "/v1/respond", context=["hello", "my wifi is down"])
    assert [(reply["id"], reply["text"], reply["metadata"]) for reply in answer["results"]] == [
        (reply.id, reply.text, reply.metadata) for reply in expected.ranked
    ]
    assert [reply["score"] for reply in answer["results"]] == pytest.approx([r.score for r in expected.ranked])
    assert {reply["retrieval_score"] for reply in answer["results"]} == {None}
    assert (answer["model"], answer["abstained"], answer["exact"], answer["confidence"]) == (
        "support", False, True, expected.confidence,
    )  # fmt: skip
    assert (answer["n_scored"], answer["ways"]) == (expected.n_scored, list(expected.ways))
    times = answer["timings_ms"]
    assert set(times) == {"waiting", "computing", "model"}
    assert all(round(value, 3) == value for value in times.values())
    assert 0 <= times["waiting"] < 60_000
    assert 0 < times["model"] <= times["computing"] < 60_000
    assert re.fullmatch("[0-9a-f]{24}", answer["request_id"])
    one = post(client, "/v1/respond", context="hello", k=1, filter='team = "tech"', background=["my bill"])
    assert len(one["results"]) == 1
    with polyrank.open(index) as replies:
        context = polyrank.Context(("hello",), ("my bill",))
        (best,) = replies.answer(context, 1, filter='team = "tech"').ranked
    assert (one["results"][0]["id"], one["results"][0]["score"]) == (best.id, pytest.approx(best.score))


def test_a_reply_that_repeats_the_context_is_left_out_unless_requested(client: TestClient, index: Path) -> None:
    def ids(**fields: Any) -> set[str]:
        return {reply["id"] for reply in post(client, "/v1/respond", context="thanks", k=5, **fields)["results"]}

    assert ids() == ids(allow_echo=False) == {"r0", "r1", "r2", "r3"}
    assert ids(allow_echo=True) == {"r0", "r1", "r2", "r3", "r4"}
    (responded,) = Served("m", str(index)).respond([RespondTask(Context(("thanks",)), 5)])
    assert len(responded.rows) == 4


def test_replies_that_differ_are_returned_on_request(client: TestClient) -> None:
    """As many as the limit allows; a filter that no candidate can pass is named."""
    times = [{"id": f"at{n}", "text": f"it is {n} pm"} for n in (5, 6)]
    post(client, "/v1/candidates", candidates=times)

    def found(**fields: Any) -> int:
        rows = post(client, "/v1/respond", context="when?", **fields)["results"]
        return sum(row["id"] in ("at5", "at6") for row in rows)

    assert [found(k=1_000), found(k=9, any_language=True), found(k=9, diverse=True)] == [2, 2, 1]
    refused = client.post("/v1/respond", json={"context": "when?", "k": 1_001})
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, "k")
    assert post(client, "/v1/respond", context="when?", filter="tier = 1")["notes"] == [
        "no candidate has the field tier of the filter"
    ]
    assert post(client, "/v1/candidates/remove", ids=["at5", "at6"])["removed"] == 2


def test_scores_that_are_not_finite_are_an_error(tiny_backbone: Path, tmp_path: Path) -> None:
    model, texts, config = new_model(
        BiConfig(backbone=str(tiny_backbone)), TextPolicy(max_context_tokens=32), seed=1, sample=()
    )
    with torch.no_grad():
        next(model.parameters()).fill_(torch.inf)
    save_model(tmp_path / "model", model, texts, config)
    with pytest.raises(ArtifactError, match="a score is not finite"):
        Served("m", str(tmp_path / "model")).score([ScoreTask(Context(("hi",)), ["yes"])])


@pytest.mark.parametrize("path", ["/v1/score", "/v1/rerank", "/v2/rerank", "/rerank"])
def test_given_candidates_are_scored(client: TestClient, name: str, path: str) -> None:
    texts = ["hello hi", "restart the router", "pay the bill"]
    (scores,) = polyrank.load(name).score(["my wifi is down"], [texts])
    order = sorted(range(3), key=lambda row: -scores[row])
    squashed = [0.5 + float(score) / (2 + 2 * abs(float(score))) for score in scores]
    if path == "/v1/score":
        answer = post(client, path, model="tiny", context="my wifi is down", candidates=texts)
        assert answer["scores"] == pytest.approx(scores.tolist(), abs=1e-5)
        assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] == n_tokens(name, texts)
        facts = {"context": "my wifi is down", "background": ["the bill", "is high"]}
        (known,) = polyrank.load(name).score([Context.of(*facts.values())], [texts])
        found = post(client, path, model="tiny", candidates=texts, **facts)["scores"]
        assert found == pytest.approx(known.tolist(), abs=1e-5) != pytest.approx(scores.tolist(), abs=1e-3)
        return
    found = post(client, path, model="tiny", query="my wifi is down", documents=texts, top_n=2)
    assert [row["index"] for row in found["results"]] == order[:2]
    assert [row["relevance_score"] for row in found["results"]] == pytest.approx([squashed[i] for i in order[:2]])
    assert all(row.get("document") is None for row in found["results"])
    assert found["meta"]["billed_units"] == {"search_units": 1}
    body = {"model": "tiny", "query": "my wifi is down", "documents": [{"text": text} for text in texts]}
    raw = post(client, path, **body, raw_scores=True, return_documents=True)
    assert [row["relevance_score"] for row in raw["results"]] == pytest.approx([float(scores[i]) for i in order])
    assert [row["document"]["text"] for row in raw["results"]] == [texts[i] for i in order]
    if path == "/rerank":
        rows = post(client, path, query="my wifi is down", texts=texts, return_text=True)
        assert [row["index"] for row in rows] == order
        assert [row["score"] for row in rows] == pytest.approx([squashed[i] for i in order])
        assert [row["text"] for row in rows] == [texts[i] for i in order]
        rows = post(client, path, query="my wifi is down", texts=texts, raw_scores=True)
        assert [row["score"] for row in rows] == pytest.approx([float(scores[i]) for i in order])
        assert all(row.get("text") is None for row in rows)


def n_tokens(name: str, texts: list[str]) -> int:
    """Number of tokens of a context, counted once, and of each text."""
    cut = polyrank.load(name).texts  # type: ignore[attr-defined]
    own = sum(len(ids) for ids in cut.all_candidate_ids(texts))
    return own + len(cut.context_ids(polyrank.Context(("my wifi is down",))))


def test_the_relevance_of_a_calibrated_ranker_is_a_probability(tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    ranker = as_ranker(polyrank.load(str(tiny_encoders["bi"])))
    scores = ranker.score(["my wifi is down"], [REPLIES])[0]
    median = float(np.median(scores))
    for measure, threshold in (("score", 1.5), ("margin", None), ("softmax", None)):  # of the raw scores only
        ranker.abstention = Abstention(measure, 1.5 if measure == "score" else 0.25)  # type: ignore[arg-type]
        ranker.save(tmp_path / measure)
        polyrank.build_index(tmp_path / f"{measure}-index", polyrank.load(tmp_path / measure), REPLIES[:1])
        assert Served("m", str(tmp_path / f"{measure}-index")).info().threshold == threshold
    ranker.abstention = None
    ranker.relevance = Relevance(2.0, -2.0 * median, 0.03)
    ranker.save(tmp_path / "ranker")
    polyrank.build_index(tmp_path / "index", polyrank.load(tmp_path / "ranker"), REPLIES)
    expected = 1 / (1 + np.exp(-2.0 * (np.sort(scores)[::-1] - median)))
    with inside({"ranker": str(tmp_path / "ranker"), "index": str(tmp_path / "index")}) as client:
        for name in ("ranker", "index"):
            asked = {"query": "my wifi is down", "model": name}
            cohere = post(client, "/v2/rerank", documents=REPLIES, **asked)["results"]
            np.testing.assert_allclose([row["relevance_score"] for row in cohere], expected, atol=1e-5)
            raw = post(client, "/v2/rerank", documents=REPLIES, raw_scores=True, **asked)["results"]
            np.testing.assert_allclose([row["relevance_score"] for row in raw], np.sort(scores)[::-1], atol=1e-5)
        tei = post(client, "/rerank?model=ranker", query="my wifi is down", texts=REPLIES)
        np.testing.assert_allclose([row["score"] for row in tei], expected, atol=1e-5)
        sentences = {"source_sentence": "my wifi is down", "sentences": REPLIES}
        similar = post(client, "/similarity?model=ranker", inputs=sentences)
        np.testing.assert_allclose(np.sort(similar)[::-1], expected, atol=1e-5)
        assert client.get("/v1/models/ranker").json()["relevance"] == asdict(ranker.relevance)


def test_nothing_to_score_costs_nothing(client: TestClient) -> None:
    answer = post(client, "/v1/score", model="tiny", context="hi", candidates=[])
    assert (answer["scores"], answer["usage"]) == ([], {"prompt_tokens": 0, "total_tokens": 0})


def test_vectors(client: TestClient, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = polyrank.load(name)
    texts = ["hello hi", "the bill"]
    expected = encoder.encode_candidates(texts)  # type: ignore[attr-defined]
    answer = post(client, "/v1/embeddings", model="tiny", input=texts)
    assert [row["index"] for row in answer["data"]] == [0, 1]
    assert {row["object"] for row in answer["data"]} == {"embedding"}
    np.testing.assert_allclose([row["embedding"] for row in answer["data"]], expected, atol=1e-5)
    read = sum(len(ids) for ids in encoder.texts.all_candidate_ids(texts))  # type: ignore[attr-defined]
    assert (answer["object"], answer["model"]) == ("list", "tiny")
    assert answer["usage"] == {"prompt_tokens": read, "total_tokens": read}
    packed = post(client, "/v1/embeddings", model="tiny", input="hello hi", encoding_format="base64", dimensions=32)
    (row,) = packed["data"]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(row["embedding"]), "<f4"), expected[0], atol=1e-5)
    for n in (0, 32, None):  # clients send 0 for all
        (row,) = post(client, "/v1/embeddings", model="tiny", input="hello hi", dimensions=n)["data"]
        np.testing.assert_allclose(row["embedding"], expected[0], atol=1e-5)
    query = post(client, "/v1/embeddings", model="tiny", input="hello hi", input_type="query")
    contexts = encoder.encode_contexts([polyrank.Context(("hello hi",))])[0][:, 0]  # type: ignore[attr-defined]
    np.testing.assert_allclose(query["data"][0]["embedding"], contexts[0], atol=1e-5)
    read_of_query = len(encoder.texts.context_ids(polyrank.Context(("hello hi",))))  # type: ignore[attr-defined]
    assert query["usage"] == {"prompt_tokens": read_of_query, "total_tokens": read_of_query}
    monkeypatch.setattr("polyrank.serving.context.TOKENS_PER_PART", 1)  # each text is a part
    parts = post(client, "/v1/embeddings", model="tiny", input=texts)
    np.testing.assert_allclose([row["embedding"] for row in parts["data"]], expected, atol=1e-5)
    assert parts["usage"] == answer["usage"]
    cohere = post(
        client,
        "/v2/embed",
        model="tiny",
        texts=texts,
        input_type="search_document",
        embedding_types=["float", "base64"],
    )
    np.testing.assert_allclose(cohere["embeddings"]["float"], expected, atol=1e-5)
    unpacked = [np.frombuffer(base64.b64decode(row), "<f4") for row in cohere["embeddings"]["base64"]]
    np.testing.assert_allclose(unpacked, expected, atol=1e-5)
    assert (cohere["texts"], cohere["response_type"]) == (texts, "embeddings_by_type")
    assert cohere["meta"]["billed_units"] == {"input_tokens": read}
    np.testing.assert_allclose(post(client, "/embed", inputs=texts, normalize=False), expected, atol=1e-5)
    unit = post(client, "/embed", inputs="hello hi", normalize=True)
    np.testing.assert_allclose(unit, expected[:1] / np.linalg.norm(expected[:1]), atol=1e-5)


def test_the_sides_of_a_model_are_not_mixed_up(tiny_encoders: dict[str, Path]) -> None:
    encoder, served = polyrank.load(str(tiny_encoders["bi"])), Served("bi", str(tiny_encoders["bi"]))
    texts = ["how are you today ?", "how are you ?"]

    def sided(side: Side) -> list[tuple[Side, str]]:
        return [(side, text) for text in texts]

    queries, documents = served.embed([EmbedTask(sided("query")), EmbedTask(sided("document")[:1])])
    contexts, _ = encoder.encode_contexts([Context((text,)) for text in texts])  # type: ignore[attr-defined]
    assert np.abs(contexts[:, 0] - encoder.encode_candidates(texts))[0].max() > 1e-2  # type: ignore[attr-defined]
    np.testing.assert_allclose(cast(Any, queries.vectors), contexts[:, 0], atol=1e-5)
    np.testing.assert_allclose(cast(Any, documents.vectors), encoder.encode_candidates(texts[:1]), atol=1e-5)  # type: ignore[attr-defined]
    poly = Served("poly", str(tiny_encoders["poly"]))  # several vectors per context
    (documents,) = poly.embed([EmbedTask(sided("document"))])
    assert cast(Any, documents.vectors).shape == (2, 32)
    with pytest.raises(UsageError, match="poly encodes a context to 4 vectors; request those of documents"):
        poly.embed([EmbedTask(sided("query"))])


def test_a_prefix_makes_a_text_a_context(tiny_encoders: dict[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    """Many applications send queries and documents alike, so both sides would be encoded as candidates."""
    bi = str(tiny_encoders["bi"])
    encoder = cast(polyrank.Encoder, polyrank.load(bi))
    context = encoder.encode_contexts(["how are you today ?"])[0][0, 0]
    candidates = encoder.encode_candidates(["restart the router", "how are you today ?"])
    assert np.abs(context - candidates[1]).max() > 1e-2
    texts = ["query: how are you today ?", "passage: restart the router", "how are you today ?"]
    with inside({"bi": bi}, replace(BASIC, query_prefix="query: ", document_prefix="passage: ")) as client:
        openai = [row["embedding"] for row in post(client, "/v1/embeddings", input=texts)["data"]]
        cohere = post(client, "/v2/embed", texts=texts, input_type="search_document")
        tei = client.post("/embed", json={"inputs": texts, "normalize": False})
        assert "meta" not in post(client, "/v1/embeddings", input=texts)
        for side, vector in (("QUERY", context), ("Retrieval.Query", context), ("Document", candidates[1])):
            (row,) = post(client, "/v1/embeddings", input=texts[-1], input_type=side)["data"]
            np.testing.assert_allclose(row["embedding"], vector, atol=1e-5)
        for path, field in (("/v1/embeddings", "input"), ("/api/embed", "input"), ("/api/embeddings", "prompt")):
            for sent in ("bi:latest", "bi:query", "bi"):
                assert post(client, path, **{field: "hi", "model": sent})["model"] == sent
        for prefix, end in (("query: ", "left"), ("passage: ", "right")):  # a context is truncated at its start
            for direction in ("left", "right"):
                asked = {"inputs": ["hi", prefix + LONG], "truncation_direction": direction}
                assert (client.post("/embed", json=asked).status_code == 200) == (direction == end == "right")
                asked["inputs"] = [prefix + LONG]
                assert (client.post("/embed", json=asked).status_code == 200) == (direction == end)
    for vectors in (openai, cohere["embeddings"]["float"], tei.json()):
        np.testing.assert_allclose(vectors, [context, *candidates], atol=1e-5)
    assert "x-warnings" not in tei.headers
    with inside({"bi": bi}) as client, caplog.at_level("INFO", "polyrank.access"):
        warned = post(client, "/v1/embeddings", input=texts)["meta"]["warnings"]
        assert warned == post(client, "/v2/embed", texts=texts)["meta"]["warnings"]
        assert client.post("/embed", json={"inputs": texts}).headers["x-warnings"] == warned[0]
        assert warned == post(client, "/v1/embeddings", input=texts, model="bi:latest")["meta"]["warnings"]  # by Ollama
        for side in ("query", "candidate"):
            assert "meta" not in post(client, "/v1/embeddings", input=texts, model=f"bi:{side}")
        for side in ("query", "document"):
            assert "meta" not in post(client, "/v1/embeddings", input=texts, input_type=side)
            assert "warnings" not in post(client, "/v2/embed", texts=texts, input_type=f"search_{side}")["meta"]
    assert "names no side, so its texts were encoded as candidates; send model bi:query" in warned[0]
    assert [json.loads(record.message).get("warnings") for record in caplog.records][-10:] == [warned] * 4 + [None] * 6


@pytest.mark.deep
def test_a_second_stage_is_preferred_and_names_share_a_model(tiny_backbone: Path, name: str, tmp_path: Path) -> None:
    policy = TextPolicy(max_context_tokens=24, max_candidate_tokens=12)
    model, texts, config = new_model(CrossConfig(backbone=str(tiny_backbone)), policy, seed=1, sample=REPLIES)
    save_model(tmp_path / "cross", model, texts, config)
    first, second = (polyrank.load(one) for one in (name, str(tmp_path / "cross")))
    terms: list[tuple[Term, list[float]]] = [(EncoderTerm(first), [1.0]), (CrossTerm(second), [1.0])]
    polyrank.Ranker(terms).save(tmp_path / "both")
    models = {"tiny": name, "both": str(tmp_path / "both"), "BAAI/bge-reranker-v2-m3": str(tmp_path / "both")}
    with inside(models) as client:
        assert client.get("/info").json()["model_id"] == "both"
        assert list(client.get("/info").json()["model_type"]) == ["reranker"]
        assert list(client.get("/info?model=tiny").json()["model_type"]) == ["embedding"]
        assert client.get("/info?name=tiny").status_code == 422
        shared, own = (client.post(f"/rerank{named}", json={"query": "hi", "texts": ["hello hi", "pay"]}).json()
                       for named in ("?model=BAAI/bge-reranker-v2-m3", ""))  # fmt: skip
        assert shared == own
        texts = ["hello hi", "pay"]
        bodies = {
            "similarity": {"inputs": {"source_sentence": "hi", "sentences": texts}},
            "rerank": {"query": "hi", "texts": texts}, "embed": {"inputs": texts},
        }  # fmt: skip
        answers = {}
        for path, body in bodies.items():
            for named in ("?model=tiny", "?model=both", ""):
                answers[path, named] = client.post(f"/{path}{named}", json=body).json()
                assert client.post(f"/{named}", json=body).json() == answers[path, named]  # the fields tell the task
        for path, default in (("similarity", "both"), ("rerank", "both"), ("embed", "tiny")):
            assert (answers[path, "?model=tiny"] == answers[path, "?model=both"]) == (path == "embed")  # one encoder
            assert answers[path, ""] == answers[path, f"?model={default}"]
        assert client.get("/v1/models/BAAI/bge-reranker-v2-m3").json()["id"] == "BAAI/bge-reranker-v2-m3"
        texts = ["hello hi", "pay the bill"]
        answer = post(client, "/v1/score", context="hi", candidates=texts, model="both")
        ids = [first.texts.context_ids(Context(("hi",))), *first.texts.all_candidate_ids(texts)]  # type: ignore[attr-defined]
        ids += [second.texts.pair_ids(Context(("hi",)), text)[0] for text in texts]  # type: ignore[attr-defined]
        assert answer["usage"]["total_tokens"] == sum(map(len, ids))
        kinds = [row["model_type"] for row in client.get("/v1/models").json()["data"]]
        assert kinds == ["embedding", "rerank", "rerank"]
        info = cast(Any, client.app).app.state.server.pool.info
        assert [info[one].by_list for one in models] == [False, True, True]  # a shortlist depends on the whole list


def test_paths_origins_and_ids(name: str, caplog: pytest.LogCaptureFixture) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    settings = replace(BASIC, prefix="/desk", cors_origins=("https://desk.example",), unknown_fields="refuse")
    with inside({"tiny": name}, settings) as client, caplog.at_level("INFO", "polyrank.access"):
        for path in ("/desk/v1/rerank", "/v1/rerank/", "//v1//rerank"):
            sent = {"x-request-id": "mine-1", "traceparent": trace, "origin": "https://desk.example"}
            answer = client.post(path, json={"query": "hi", "documents": ["a"]}, headers=sent)
            assert (answer.status_code, answer.json()["id"]) == (200, "mine-1")
            assert (answer.headers["x-request-id"], answer.headers["traceparent"]) == ("mine-1", trace)
            assert answer.headers["access-control-allow-origin"] == "https://desk.example"
            exposed = answer.headers["access-control-expose-headers"].split(", ")
            assert sorted(exposed) == ["retry-after", "x-request-id", "x-warnings"]
        logged = json.loads(caplog.records[-1].message)
        assert (logged["request_id"], logged["traceparent"]) == ("mine-1", trace)
        page = client.get("/desk", follow_redirects=False)  # a proxy may have removed a part before it
        assert (page.status_code, page.headers["location"]) == (307, "desk/")
        other = client.post(
            "/desk/v1/rerank", json={"query": "hi", "documents": ["a"]}, headers={"x-request-id": "a b"}
        )
        assert other.headers["x-request-id"] != "a b"
        body = {"query": "hi", "documents": ["a"]}
        asks = {"origin": "https://desk.example", "access-control-request-method": "POST"}
        assert client.options("/v1/rerank", headers=asks).status_code == 200
        assert client.options("/v1/rerank", headers=asks | {"origin": "https://evil.example"}).status_code == 400
        refused = client.post("/v1/rerank", json=body | {"instruction": "b"})
        assert (refused.status_code, refused.json()["message"]) == (422, "instruction is not a field of this route")


def test_a_model_without_sides_needs_no_warning(client: TestClient) -> None:
    assert "meta" not in post(client, "/v1/embeddings", input=["hello hi"])


def test_the_limits_of_a_ranker_are_the_lowest_of_its_terms(
    tiny_backbone: Path, tiny_encoders: dict[str, Path], tmp_path: Path
) -> None:
    policy, backbone = TextPolicy(max_context_tokens=20, max_candidate_tokens=24), str(tiny_backbone)
    for kind, config in (("bi", BiConfig(backbone=backbone)), ("cross", CrossConfig(backbone=backbone))):
        save_model(tmp_path / kind, *new_model(config, policy, seed=2, sample=REPLIES))
    names = [str(tiny_encoders["bi"]), str(tmp_path / "bi")]  # of 32 and 16, and of 20 and 24 tokens
    texts = [cast(Any, polyrank.load(name)).texts for name in names]
    n_read = sum(len(ids) for one in texts for ids in one.all_candidate_ids(["hello hi", "pay"]))
    n_read += sum(len(one.context_ids(Context(("hi",)))) for one in texts)
    Ranker([(EncoderTerm(load_encoder(name)), [1.0]) for name in names]).save(tmp_path / "both")
    served = Served("both", str(tmp_path / "both"), "cpu")
    (scored,) = served.score([ScoreTask(Context(("hi",)), ["hello hi", "pay"])])
    assert scored.n_tokens == n_read  # of all networks
    info = served.info()
    assert (info.max_context_tokens, info.max_candidate_tokens) == (20, 16)
    assert (info.by_list, info.reranks) == (False, False)
    second = CrossTerm(polyrank.load(str(tmp_path / "cross")))
    Ranker([(EncoderTerm(load_encoder(names[0])), [1.0]), (second, [1.0])]).save(tmp_path / "stages")
    stages = Served("stages", str(tmp_path / "stages"), "cpu")
    info = stages.info()
    assert (info.max_context_tokens, info.max_candidate_tokens) == (20, 16)
    assert (info.by_list, info.reranks) == (True, True)  # a shortlist depends on the whole list
    (scored,) = stages.score([ScoreTask(Context(("hi",)), ["hello hi", "pay"])])
    n_read = len(texts[0].context_ids(Context(("hi",)))) + sum(
        map(len, texts[0].all_candidate_ids(["hello hi", "pay"]))
    )
    n_read += sum(
        len(cast(Any, second.scorer).texts.pair_ids(Context(("hi",)), text)[0]) for text in ("hello hi", "pay")
    )
    assert scored.n_tokens == n_read  # of both stages
    for alone, by_list in (("bm25", True), (str(tmp_path / "cross"), False)):  # statistics of words are of the list
        info = Served("m", alone, "cpu").info()
        assert (info.by_list, info.reranks, info.dimension) == (by_list, True, None)
    assert stages.reopened() is None
    (tmp_path / "cross").rename(tmp_path / "old")
    save_model(tmp_path / "cross", *new_model(CrossConfig(backbone=backbone), policy, seed=2, sample=REPLIES))
    assert stages.reopened() is not None  # a part of it was replaced


@pytest.mark.parametrize(
    ("path", "body", "accepted", "refused"),
    [
        (
            "/rerank?model=tiny", {"query": "." * 599, "texts": ["hello hi", LONG]},
            [{}, {"truncate": True}, {"truncation_direction": "right"}],
            [{"truncate": False}, {"truncation_direction": "left"}, {"truncation_direction": "Left"}],
        ),
        (
            "/score", {"model": "tiny", "text_1": ["hello hi", "." * 599], "text_2": ["hi", "pay"]},  # pairs
            [{}, {"truncate": True}], [{"truncate": False}, {"truncation_direction": "left"}],
        ),
        (
            "/score", {"model": "tiny", "text_1": "." * 599, "text_2": ["hi", "pay"]},
            [{}, {"truncate": True}], [{"truncate": False}, {"truncation_direction": "left"}],
        ),
        (
            "/v2/rerank", {"model": "tiny", "query": "." * 599, "documents": ["hi", LONG]},
            [{}, {"truncate": "END"}], [{"truncate": "NONE"}, {"truncate": "START"}],
        ),
        (
            "/embed?model=tiny", {"inputs": ["hello hi", LONG]},
            [{}, {"truncate": True}, {"truncation_direction": "right"}, {"truncate": False, "inputs": "hello hi"}],
            [{"truncate": False}, {"truncation_direction": "Left"}],
        ),
        (
            "/embed?model=tiny:query", {"inputs": ["hello hi", LONG]},  # a context is truncated at its start
            [{}, {"truncation_direction": "left"}], [{"truncate": False}, {"truncation_direction": "right"}],
        ),
        (
            "/score", {"model": "tiny", "text_1": ["hi", "hello hi"], "text_2": ["hello hi", "." * 599]},
            [{}, {"text_1": ["hi", "." * 599], "text_2": ["hi", "hi"]}],
            [{"truncate": False, "text_1": ["hi", "." * 599], "text_2": ["hi", "hi"]}],
        ),
        (
            "/v2/embed", {"model": "tiny", "texts": [LONG], "input_type": "search_document"},
            [{}, {"truncate": "END"}], [{"truncate": "NONE"}, {"truncate": "START"}],
        ),
        (
            "/v1/embed", {"model": "tiny", "texts": [LONG], "input_type": "search_query"},
            [{}, {"truncate": "START"}], [{"truncate": "NONE"}],
        ),
    ],
)  # fmt: skip
def test_texts_that_are_too_long_are_refused_on_request(
    client: TestClient, name: str, path: str, body: dict[str, Any], accepted: list[dict[str, Any]],
    refused: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for asked in accepted:
        assert client.post(path, json=body | asked).status_code == 200, asked
    limits = "exceeds the limit of tiny ({:,} tokens for a context, {:,} for a candidate)".format(*cuts(name))
    for most in (2_048, 1):  # the texts are one part, or each is one
        monkeypatch.setattr("polyrank.serving.context.TOKENS_PER_PART", most)
        for asked in refused:
            answer = client.post(path, json=body | asked)
            assert answer.status_code == (400 if "/v" in path else 413), asked
            assert limits in answer.text
    own = {"model": "tiny", "query": "hi", "documents": ["hello hi there"], "max_tokens_per_doc": 2, "truncate": "NONE"}
    assert f"{limits}, or the 2 tokens of the request; shorten it" in client.post("/v1/rerank", json=own).text


def test_long_documents_are_read_in_chunks_and_unread_text_is_named(client: TestClient, name: str) -> None:
    filler = " ".join(["bananas are green ."] * 25)
    documents = [f"{filler} the light is red .", f"{filler} restart the router ."]
    asked = {"query": "restart the router", "documents": documents, "model": "tiny", "raw_scores": True}
    whole = post(client, "/v2/rerank", **asked)
    assert (whole["results"][0]["index"], "warnings" in whole["meta"]) == (1, False)
    expected = [reply.score for reply in polyrank.load(name).rank("restart the router", documents)]
    np.testing.assert_allclose([row["relevance_score"] for row in whole["results"]], expected, atol=1e-5)
    assert whole["usage"]["total_tokens"] > 2 * 25 * 4
    starts = post(client, "/v2/rerank", max_chunks_per_doc=1, **asked)
    (warning,) = starts["meta"]["warnings"]
    assert warning == "tiny did not read all of the query, or all chunks of a document; send shorter texts"
    assert len({row["relevance_score"] for row in starts["results"]}) == 1
    tei = client.post("/rerank?model=tiny", json={"query": "." * 599, "texts": documents})
    assert tei.headers["x-warnings"] == warning
    both = client.post("/rerank?model=tiny", json={"query": "." * 599, "texts": documents, "rows": 3})
    assert both.headers["x-warnings"] == f"ignored, because this server has no such field: rows; {warning}"
    assert "x-warnings" not in client.post("/rerank?model=tiny", json={"query": "hi", "texts": documents}).headers
    for first in ("." * 599, ["." * 599, "hi"], ["hi", "." * 599]):  # for one text, or for pairs
        scored = post(client, "/score", model="tiny", text_1=first, text_2=["hello hi", "thanks"])
        assert scored["meta"]["warnings"] == [warning]
    assert "meta" not in post(client, "/score", model="tiny", text_1=["hi", "thanks"], text_2=["hello hi", "thanks"])
    rows: list[list[float]] = []
    for texts, most in ((["hello hi", "thanks hi"], 1), (["hello", "thanks"], -1), (["hello hi", "thanks hi"], -1)):
        sent = {"model": "tiny", "text_1": ["hi", "thanks"], "text_2": texts, "truncate_prompt_tokens": most}
        rows.append([row["score"] for row in post(client, "/score", **sent)["data"]])
    assert rows[0] == pytest.approx(rows[1], abs=1e-5)
    assert rows[0] != pytest.approx(rows[2], abs=1e-5)


def test_a_filter_that_took_too_long_is_refused_for_a_while_or_until_the_index_changes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates = [polyrank.Candidate(f"r{i}", f"hello {i}", {"n": i}) for i in range(500)]
    polyrank.build_index(tmp_path / "index", polyrank.load(name), candidates)
    served, task = Served("m", str(tmp_path / "index")), RespondTask(Context(("hi",)), 3, "n > 3")
    with limit_searches(TimeLimit(0.0)), pytest.raises(DeadlineError, match="took longer than 0 s"):
        served.respond([task])
    with pytest.raises(DeadlineError, match="took longer than 0 s"):  # at once
        served.respond([task])
    (other,) = served.respond([replace(task, filter="n > 4")])
    assert len(other.rows) == 3
    polyrank.build_index(tmp_path / "index", polyrank.load(name), candidates, overwrite=True)  # with the same change
    (again,) = served.respond([task])
    assert len(again.rows) == 3
    with limit_searches(TimeLimit(0.0)), pytest.raises(DeadlineError, match="took longer than 0 s"):
        served.respond([replace(task, filter="n > 5")])
    assert served.respond([replace(task, filter="n > 5", any_language=True)])  # which is another search
    with open_writer(tmp_path / "index") as writer:
        writer.remove(["r0"])
    (again,) = served.respond([replace(task, filter="n > 5")])
    assert len(again.rows) == 3
    monkeypatch.setattr("polyrank.serving.served.TRIED_AGAIN_S", 0.0)
    with limit_searches(TimeLimit(0.0)), pytest.raises(DeadlineError, match="took longer than 0 s"):
        served.respond([replace(task, filter="n > 6")])
    (again,) = served.respond([replace(task, filter="n > 6")])
    assert len(again.rows) == 3
    monkeypatch.setattr("polyrank.serving.served.TRIED_AGAIN_S", 60.0)
    monkeypatch.setattr("polyrank.serving.served.MAX_TOO_SLOW", 2)
    for n in range(10, 15):  # of many, the latest are remembered
        with limit_searches(TimeLimit(0.0)), pytest.raises(DeadlineError, match="took longer than 0 s"):
            served.respond([replace(task, filter=f"n > {n}")])
    for n in (13, 14):
        with pytest.raises(DeadlineError, match="took longer than 0 s"):
            served.respond([replace(task, filter=f"n > {n}")])
    assert len(served.respond([replace(task, filter="n > 10")])[0].rows) == 3


def test_vectors_and_scores_are_of_the_encoder_that_made_the_present_index(
    name: str, mean_pooled_backbone: Path, tmp_path: Path
) -> None:
    encoders = [load_encoder(one) for one in (name, f"untuned:{mean_pooled_backbone}")]
    path = tmp_path / "index"

    def scores(encoder: Any) -> list[float]:
        return encoder.score(["hi"], [REPLIES])[0].tolist()  # type: ignore[no-any-return]

    polyrank.build_index(path, encoders[0], REPLIES)
    with inside({"m": str(path), "alone": name, "again": str(path)}) as client:
        for number, encoder in enumerate((encoders[0], encoders[1], encoders[0])):
            polyrank.build_index(path, encoder, [*REPLIES, *map(str, range(number))], overwrite=True)
            assert len(post(client, "/v1/respond", context="hi", k=9, model="again")["results"]) == 5 + number
            rows = {
                row["id"]: (row["fingerprint"], row.get("n_candidates"))
                for row in client.get("/v1/models").json()["data"]
            }
            now = (encoder.fingerprint, 5 + number)  # of all names that share the index, and of no other
            assert rows == {"m": now, "alone": (encoders[0].fingerprint, None), "again": now}
            (vector,) = encoder.encode_candidates(["new"])
            assert post(client, "/v1/embeddings", input="new")["data"][0]["embedding"] == pytest.approx(
                vector.tolist(), abs=1e-5
            )
            assert post(client, "/v1/score", context="hi", candidates=REPLIES)["scores"] == pytest.approx(
                scores(encoder), abs=1e-5
            )
        # with the old encoder, as the new one cannot be opened; its vectors do not belong into the new index
        vectors = encoders[1].encode_candidates(REPLIES)
        pool = [polyrank.Candidate(text, text) for text in REPLIES]
        write_index(path, pool, vectors, fingerprint="e" * 64, model=str(tmp_path / "none"), overwrite=True)
        refused = client.post("/v1/candidates", json={"model": "m", "candidates": [{"text": "new"}]})
        assert refused.status_code == 500  # the log names both encoders
        with open_index(path) as index:
            assert len(index) == len(REPLIES)
        polyrank.build_index(path, encoders[1], REPLIES, overwrite=True)
        assert post(client, "/v1/candidates", candidates=[{"text": "new"}])["n_candidates"] == len(REPLIES) + 1
        # a damaged index has no encoder: searches report it, and scores are those of the last sound one
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "candidates.db").write_bytes(b"damaged")
        path.rename(tmp_path / "aside")
        (tmp_path / "broken").rename(path)
        assert post(client, "/v1/score", context="hi", candidates=REPLIES)["scores"] == pytest.approx(
            scores(encoders[1]), abs=1e-5
        )
        assert client.post("/v1/respond", json={"context": "hi"}).status_code == 500
        rows = client.get("/v1/models").json()["data"]  # the others are listed all the same
        assert [(row["id"], row.get("n_candidates")) for row in rows] == [("m", None), ("alone", None), ("again", None)]


def test_tasks_of_several_options_are_each_as_alone(index: Path, name: str, tmp_path: Path) -> None:
    """A batch of requests that differ in everything, in mixed order: each result is the one without the others."""
    served = Served("m", str(index))
    contexts = [Context((text,)) for text in ("my wifi is down", "pay the bill", "hello hi", "the bill")]
    responds = [
        RespondTask(context, k, filter, allow_echo=echo, diverse=diverse)
        for context, k, filter, echo, diverse in (
            (contexts[0], 1, None, False, False), (contexts[1], 3, 'team = "tech"', False, False),
            (contexts[1], 5, None, True, False), (contexts[2], 4, None, False, False),
            (contexts[0], 2, None, False, True), (contexts[3], 3, None, False, True),
            (contexts[1], 2, None, False, True),
            (contexts[3], 2, 'team = "tech"', False, False), (contexts[3], 5, None, True, False),
        )
    ]  # fmt: skip
    scores = [
        ScoreTask(context, texts, most)
        for context, texts, most in (
            (contexts[1], [LONG, "thanks", f"{LONG} pay"], 1), (contexts[0], REPLIES, None),
            (contexts[2], ["thanks"], 1), (contexts[3], [LONG], None),
            (contexts[0], [LONG, LONG], 2), (contexts[1], REPLIES[:2], 1),
        )
    ]  # fmt: skip
    scores += [ScoreTask(contexts[0], REPLIES, max_tokens=n) for n in (9, 2, 1)]
    embeds = [
        EmbedTask(texts, forms, n)
        for texts, forms, n in (
            ([("query", "hi"), ("document", "hi"), ("query", LONG)], (), None),
            ([("document", "thanks")], ("float",), None), ([("query", "hi")], ("float",), None),
            ([("document", "pay"), ("query", "the bill")], ("unit-float", "float"), None),
            ([("document", "pay the bill"), ("query", "the bill")], ("float",), 1),
            ([("query", "the bill"), ("document", "pay the bill")], ("float",), 2),
        )
    ]  # fmt: skip

    def parts(results: Sequence[Any]) -> tuple[list[str], list[float]]:
        """The words of results between their numbers with a point, without durations; and these numbers."""
        values = [{name: value for name, value in asdict(one).items() if name != "model_ms"} for one in results]
        text = json.dumps(values, default=lambda one: one.tolist() if isinstance(one, np.ndarray) else one.decode())
        number = r"-?\d+\.\d+(?:e-?\d+)?"
        return re.split(number, text), list(map(float, re.findall(number, text)))

    for tasks in (responds, scores, embeds):
        words, numbers = parts(served.compute(tasks))  # type: ignore[arg-type]  # of one kind
        others, alone = parts([served.compute([task])[0] for task in tasks])  # type: ignore[list-item]
        assert words == others
        assert numbers == pytest.approx(alone, abs=1e-4)
    alike = [*REPLIES, "restart the router please", "please restart the router", "restart it", "the bill", "pay it"]
    polyrank.build_index(tmp_path / "alike", polyrank.load(name), alike)
    other = Served("m", str(tmp_path / "alike"))
    diverse = [RespondTask(context, k, diverse=True) for k in (5, 2, 3) for context in contexts]
    chosen = [[id_ for id_, *_ in one.shown] for one in other.compute(diverse)]  # type: ignore[arg-type]
    assert chosen == [[id_ for id_, *_ in other.compute([task])[0].shown] for task in diverse]
    assert chosen[len(contexts) : 2 * len(contexts)] != [ids[:2] for ids in chosen[: len(contexts)]]
    results = served.compute(scores)
    assert [one.cut for one in results] == [True, False, False, False, True, False, False, True, True]
    (words,) = served.compute([ScoreTask(contexts[0], ["restart", "the", "hello", "thanks"])])  # of one token each
    assert [results[-1].scores[i] for i in (0, 2, 3, 4)] == pytest.approx(words.scores, abs=1e-4)
    assert [one.cut for one in served.compute(embeds)] == [True, False, False, False, True, True]
    for text, cut in ((f"pay {LONG}", True), ("pay the light", False)):  # texts of earlier calls are not kept
        served.compute([RespondTask(Context((text,)), 1)])
        assert [bool(network.texts.cut) for network in served.scorer.networks] == [cut]


def test_turns_and_background_texts_share_a_limit(client: TestClient) -> None:
    for path, more in (("/v1/respond", {}), ("/v1/score", {"candidates": ["hi"]}), ("/v1/explain", {"text": "hi"})):
        post(client, path, context=["a", "b", "c"], background=["d"], **more)
        for turns, facts in ((["a", "b"], ["c", "d", "e"]), (["a", "b", "c", "d"], ["e"])):
            refused = client.post(path, json={"context": turns, "background": facts} | more)
            assert (refused.status_code, refused.json()["error"]["param"]) == (422, "context")
            said = "context has 5 turns and background texts, the limit is 4; send the last ones"
            assert refused.json()["error"]["message"] == said


def test_a_conversation_that_no_record_can_hold_is_refused(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrank.serving.routes.answering.MAX_CHARACTERS", 20)
    for turns, facts in ((["a" * 8, "b" * 7], ["c" * 6]), (["a" * 14, "b" * 7], [])):
        refused = client.post("/v1/respond", json={"context": turns, "background": facts})
        assert (refused.status_code, refused.json()["error"]["param"]) == (422, "context")
        assert refused.json()["error"]["message"] == "context has 21 characters, the limit is 20; send the last turns"
        post(client, "/v1/respond", context=[turns[0][1:], turns[1]], background=facts)


def test_explanations(client: TestClient, index: Path) -> None:
    for facts in ([], ["the light is red", "my router"]):
        with polyrank.open(index) as replies:
            expected = replies.explain(Context.of("my bill", facts), "pay the bill").as_dict()
        for reply in ({"text": "pay the bill"}, {"id": "r1"}):
            answer = post(client, "/v1/explain", context="my bill", background=facts, **reply)
            assert answer.pop("model") == "support"
            assert answer["score"] == pytest.approx(expected["score"], abs=1e-5)
            assert set(answer) == set(json.loads(json.dumps(expected)))
            assert len(answer["background"]) == len(facts)
    missing = client.post("/v1/explain", json={"context": "my bill", "id": "none"})
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    for filter, status in (('team = "billing"', 200), ('team = "tech"', 404)):  # the filter of the answer
        found = client.post("/v1/explain", json={"context": "my bill", "id": "r1", "filter": filter})
        assert found.status_code == status
    for wrong in ({}, {"text": "a", "id": "r1"}):
        refused = client.post("/v1/explain", json={"context": "my bill", **wrong})
        assert (refused.status_code, refused.json()["error"]["param"]) == (422, "text")
        assert refused.json()["error"]["message"] == "send either the reply's text or its id"
    whole = {"context": ["a" * 200, "b" * 100], "background": ["c" * 200], "text": "d" * 100}

    def tokens_so_far() -> float:
        (found,) = re.findall(r'polyrank_tokens_total\{operation="explain"\} (\S+)', client.get("/metrics").text)
        return float(found)

    before = tokens_so_far()
    post(client, "/v1/explain", **whole)
    assert tokens_so_far() - before == 16 * (53 + 28 + 53 + 28 + 600 // 200)  # four characters a token, and three
    for name, more in (("context", ["a" * 200, "b" * 101]), ("background", ["c" * 201]), ("text", "d" * 101)):
        refused = client.post("/v1/explain", json=whole | {name: more})
        assert (refused.status_code, refused.json()["error"]["param"]) == (422, "context")
        assert "context has 601 characters in all, the limit is 600; send the last turns" in refused.text


def test_an_explanation_is_of_the_score_under_the_filter(name: str, tmp_path: Path) -> None:
    """Two replies of one text have different counts."""
    Ranker([(EncoderTerm(load_encoder(name)), [1.0]), (Counts.of({"thanks": 3}), [0.5])]).save(tmp_path / "ranker")
    rows = [
        {"id": "a", "text": "pay the bill", "count": 7, "n": 1},
        {"id": "b", "text": "pay the bill", "count": 2, "n": 2},
    ]
    polyrank.build_index(tmp_path / "index", tmp_path / "ranker", rows)
    with inside({"support": str(tmp_path / "index")}) as client:
        for asked in ({}, {"filter": "n = 1"}, {"filter": "n = 2"}):
            (best,) = post(client, "/v1/respond", context="my bill", k=1, **asked)["results"]
            why = post(client, "/v1/explain", context="my bill", text="pay the bill", **asked)
            assert why["score"] == pytest.approx(best["score"], abs=1e-4)


# --- the catalogue ----------------------------------------------------------------------------------------------------


def test_candidates_are_added_and_removed(client: TestClient) -> None:
    new = [{"id": "new/1", "text": "green light", "metadata": {"team": "new"}}, {"text": "my router"}]
    added = post(client, "/v1/candidates", candidates=new)
    assert added["ids"][0] == "new/1"
    assert added["n_candidates"] == 7
    own = added["ids"][1]
    assert client.get(f"/v1/candidates/{own}").json() == {"id": own, "text": "my router", "metadata": {}}
    assert client.get("/v1/candidates/new%2F1").json()["metadata"] == {"team": "new"}
    again = client.post("/v1/candidates", json={"candidates": new})
    assert (again.status_code, again.json()) == (200, added)
    large = {"candidates": [{"text": "large", "metadata": {"a": "b" * 200}}]}
    refused = client.post("/v1/candidates", json=large)
    assert (refused.status_code, "bytes as JSON, the limit is 200; keep" in refused.text) == (422, True)
    other = client.post("/v1/candidates", json={"candidates": [{"id": "new/1", "text": "red light"}]})
    assert (other.status_code, other.json()["error"]["code"]) == (422, "refused")
    changed = [{"id": "new/1", "text": "green light please"}]
    assert post(client, "/v1/candidates", candidates=changed, replace=True) == {"ids": ["new/1"], "n_candidates": 7}
    assert client.get("/v1/candidates/new/1").json()["text"] == "green light please"
    page = client.get("/v1/candidates", params={"limit": 3}).json()
    assert [row["id"] for row in page["candidates"]] == ["r0", "r1", "r2"]
    assert page["n_candidates"] == 7
    rest = client.get("/v1/candidates", params={"after": page["next"]}).json()
    assert [row["id"] for row in rest["candidates"]] == ["r3", "r4", own, "new/1"]
    assert rest["next"] is None
    for words, wanted in (("bill pay", ["r1"]), ("the light", ["r2"]), ("light  the", ["r2"]), ("the none", [])):
        assert [row["id"] for row in client.get("/v1/candidates", params={"q": words}).json()["candidates"]] == wanted
    found = client.get("/v1/candidates", params={"filter": 'team = "billing"'}).json()
    assert [row["id"] for row in found["candidates"]] == ["r1"]
    reply = post(client, "/v1/respond", context="a green light please", k=100)["results"]
    assert len(reply) == 7
    removed = post(client, "/v1/candidates/remove", ids=["new/1", "none"])
    assert removed == {"removed": 1, "n_candidates": 6}
    assert client.delete(f"/v1/candidates/{own}").json() == {"removed": 1, "n_candidates": 5}
    assert client.delete(f"/v1/candidates/{own}").json() == {"removed": 0, "n_candidates": 5}
    gone = client.get(f"/v1/candidates/{own}")
    assert (gone.status_code, gone.json()["error"]) == (
        404, {"message": "no candidate has this id", "type": "not_found_error", "param": "id", "code": "not_found"},
    )  # fmt: skip


def test_an_index_is_locked_until_its_last_change_was_a_while_ago(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    polyrank.build_index(tmp_path / "index", polyrank.load(name), [polyrank.Candidate("r0", "hello")])
    catalogue = Catalogue(tmp_path / "index")

    def change() -> None:
        assert catalogue.remove(["none"]) == (0, 1)
        with pytest.raises(LockedError):
            open_writer(tmp_path / "index")

    change()
    kept = catalogue._writer  # so that its lock is released by closing it, not by its end
    assert kept is not None
    catalogue.close_if_idle()
    with pytest.raises(LockedError):
        open_writer(tmp_path / "index")
    monkeypatch.setattr("polyrank.serving.catalogue.IDLE_S", 0.0)
    catalogue.close_if_idle()
    open_writer(tmp_path / "index").close()
    change()
    catalogue.close()
    open_writer(tmp_path / "index").close()


def test_the_locks_of_all_idle_indexes_are_released_again_and_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    polyrank.build_index(tmp_path / "0", polyrank.load(name), [polyrank.Candidate("r0", "hello")])
    catalogues = [Catalogue(shutil.copytree(tmp_path / "0", tmp_path / str(n))) for n in (1, 2, 3)]
    server: Any = SimpleNamespace(
        catalogues={one.path: one for one in catalogues}, threads=WaitingThreads(1, "polyrank-test", 4)
    )
    monkeypatch.setattr("polyrank.serving.app.CHECK_S", 0.0)
    monkeypatch.setattr("polyrank.serving.catalogue.IDLE_S", 0.0)

    async def change_and_release() -> None:
        releasing = asyncio.create_task(_release_idle_locks(server))
        async with asyncio.timeout(300):
            for _ in range(2):
                for catalogue in catalogues:
                    catalogue.remove(["none"])
                    assert catalogue._writer is not None
                while any(catalogue._writer is not None for catalogue in catalogues):
                    await asyncio.sleep(0)
        releasing.cancel()

    asyncio.run(change_and_release())
    server.threads.shutdown()
    for catalogue in catalogues:
        open_writer(catalogue.path).close()


# --- feedback ---------------------------------------------------------------------------------------------------------


def test_outcomes_of_replies_are_stored(client: TestClient) -> None:
    shown = post(client, "/v1/respond", context="my bill", k=2, conversation="c1")
    given = {"request_id": shown["request_id"], "action": "taken", "candidate_id": shown["results"][1]["id"]}
    assert post(client, "/v1/feedback", **given) == {"recorded": True}
    assert post(client, "/v1/feedback", **given) == {"recorded": False}
    post(client, "/v1/respond", context="my bill", conversation="c" * 512)  # the longest name
    elsewhere = {
        "request_id": "mine", "action": "refused", "final_text": "no",
        "shown": {"context": ["hi"], "background": ["a fact"], "conversation": "c7", "model": "other",
                  "results": [{"id": "x", "text": "t", "score": 1.0}]},
    }  # fmt: skip
    assert post(client, "/v1/feedback", **elsewhere) == {"recorded": True}
    server: Server = cast(Any, client.app).app.state.server
    assert server.settings.feedback.file is not None
    with FeedbackStore(server.settings.feedback.file, keep_text=True) as store:  # as an application may
        context = Context(("hi",), ("a fact",))
        store.record(Shown("known", (Reply("x", 1.0, "t"),), context, conversation="c7", model="other"))
        found = {request.shown.request_id: request for request in store.requests()}
        first, mine = found[shown["request_id"]], found["mine"]
        assert (first.shown.conversation, first.shown.model, first.shown.context) == (
            "c1", "support", Context(("my bill",)),
        )  # fmt: skip
        assert [(reply.id, reply.text, pytest.approx(reply.score)) for reply in first.shown.replies] == [
            (row["id"], row["text"], row["score"]) for row in shown["results"]
        ]
        assert mine.shown == Shown(
            "mine", (Reply("x", 1.0, "t"),), context, conversation="c7", model="other", time=mine.shown.time
        )
        outcomes = [(one.action, one.reply_id, one.final_text) for each in (first, mine) if (one := each.outcome)]
        assert outcomes == [("taken", given["candidate_id"], None), ("refused", None, "no")]
    assert post(client, "/v1/feedback", **elsewhere | {"request_id": "known"}) == {"recorded": True}
    assert post(client, "/v1/feedback", **elsewhere | {"request_id": "known"}) == {"recorded": False}
    again = [client.post("/v1/respond", json={"context": "hi"}, headers={"x-request-id": "own"}) for _ in range(2)]
    assert [answer.headers["x-request-id"] for answer in again] == ["own"] * 2
    assert len({"own", *(answer.json()["request_id"] for answer in again)}) == 3  # each has its own record
    figures = client.get("/v1/feedback/report").json()
    assert figures["n_requests"] >= 2
    names = {row["name"].partition(" ")[0] for row in figures["by_model"]}  # the name without the weights' fingerprint
    assert names == {"other", "support"}
    wrong = client.post("/v1/feedback", json={"request_id": "mine", "action": "eaten"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (422, "action")


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "message"),
    [
        ("/v1/respond", {"context": []}, 422, "context", "context: "),
        ("/v1/respond", {"context": "a", "k": 0}, 422, "k", "k: "),
        ("/v1/respond", {"context": "a", "k": "2"}, 422, "k", "k: "),
        ("/v1/respond", {"context": "a", "k": 1_000_001}, 422, "k", "k: "),
        ("/v1/respond", {"context": "a", "filter": ""}, 422, "filter", "filter: "),
        ("/v1/respond", {"context": "a", "conversation": "c" * 513}, 422, "conversation", "conversation: "),
        ("/v1/respond", {"context": "a", "model": "tiny"}, 400, "model", "tiny is a model and has no replies; use"),
        ("/v1/respond", {"context": "a", "model": "b" * 200}, 404, "model", f"model '{'b' * 97}...' is not served;"),
        ("/v1/respond", {"context": ["a"] * 5}, 422, "context", "context has 5 turns, the limit is 4; send"),
        ("/v1/respond", {"context": ["a"] * 2, "background": ["b"] * 3}, 422, "context", "context has 5 turns and"),
        ("/v1/respond", {"context": ["a", "b" * 601]}, 422, "context[1]", "context[1] has 601 characters, the limit"),
        ("/v1/respond", {"context": MESSAGES}, 422, "context[1]", "context[1] has 80"),
        ("/v1/score", {"context": "a", "candidates": ["b"] * 7}, 422, "candidates", "candidates has 7 entries, the"),
        ("/v1/score", {"context": "a"}, 422, "candidates", "candidates: Field required"),
        ("/v1/score", {"context": 5, "candidates": [3]}, 422, "context", "context: "),
        ("/v1/embeddings", {"input": [1, 2]}, 400, "input", "input: token ids belong to another vocabulary"),
        ("/v1/embeddings", {"input": [[1], [2]]}, 400, "input", "input: token ids belong to another vocabulary"),
        ("/v1/embeddings", {"input": []}, 400, "input", "input is empty; send at least one text"),
        ("/v1/embeddings", {"input": {"image": "a"}}, 400, "input", "input"),
        ("/v1/embeddings", {"input": "a", "dimensions": 31}, 400, "dimensions", "support has vectors of 32 numbers"),
        ("/v1/candidates", {"candidates": [{"text": ""}]}, 422, "candidates[0].text", "candidates[0].text: "),
        ("/v1/candidates", {"candidates": [{"text": "a", "id": "b" * 513}]}, 422, "candidates[0].id", ""),
        ("/v1/candidates/remove", {}, 422, "ids", "send either ids or a filter"),
    ],
)  # fmt: skip
def test_wrong_requests_are_named(
    client: TestClient, path: str, body: dict[str, Any], status: int, param: str, message: str
) -> None:
    answer = client.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["type"]) == (
        status, param, "not_found_error" if status == 404 else "invalid_request_error",
    )  # fmt: skip
    assert error["message"].startswith(message)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b'{"context": NaN}', 400, "the body is not JSON; send one JSON object in UTF-8"),
        (b'{"context": "\\ud800"}', 400, "the body is not JSON; send one JSON object in UTF-8"),
        (b'{"context": "\xff"}', 400, "the body is not JSON; send one JSON object in UTF-8"),
        (b"[" * 50_000, 400, "the body is not JSON; send one JSON object in UTF-8"),
        (b"[1]", 422, "the body is not a JSON object; send one"),
        (b"", 422, "the body is not a JSON object; send one"),
    ],
)
def test_bodies_are_read_strictly(client: TestClient, body: bytes, status: int, message: str) -> None:
    answer = client.post("/v1/respond", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (status, message)


def test_half_of_a_character_may_be_escaped(client: TestClient) -> None:
    post_ = client.post("/v1/respond", content=b'{"context": "\\ud83d\\ude00", "k": 1}', headers={
        "content-type": "application/vnd.x+json; charset=utf-8"})  # fmt: skip
    assert post_.status_code == 200


def test_unknown_routes_and_methods(client: TestClient) -> None:
    missing, other = client.get("/v2/nothing"), client.get("/v1/respond")
    assert (missing.status_code, missing.json()["error"]["message"]) == (
        404, "this route does not exist; /openapi.json lists all routes",
    )  # fmt: skip
    assert (other.status_code, other.json()["error"]["message"]) == (
        405, "this route has another method; /openapi.json lists it",
    )  # fmt: skip
    assert other.json()["error"]["type"] == "invalid_request_error"
    assert other.headers["allow"] == "POST"
    assert client.get("/v2/rerank").json() == {"message": "this route has another method; /openapi.json lists it"}
    kind = client.post("/v1/respond", content=b"a=1", headers={"content-type": "application/x-www-form-urlencoded"})
    assert (kind.status_code, kind.headers["connection"]) == (415, "close")


def test_the_description_names_errors_and_keys(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    assert not [path for path in document["paths"] if path.startswith("/page")]  # for browsers
    assert list(document["paths"]["/"]) == ["post"]
    assert "TextList" not in json.dumps(document)  # a name of the code
    shapes = {"/v1/respond": "ErrorAnswer", "/v2/embed": "CohereError", "/rerank": "CohereError", "/embed": "TeiError"}
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert operation.get("security") == (None if path in ("/live", "/ready", "/health") else [{"key": []}, {}])
            errors = {status: answer for status, answer in operation["responses"].items() if status >= "400"}
            assert " ".join(sorted(errors)) == "400 401 403 404 408 409 412 413 415 422 429 500 503 504 507"
            assert errors["429"]["description"] == "Too Many Requests"
            used = {answer["content"]["application/json"]["schema"]["$ref"] for answer in errors.values()}
            if path in shapes:
                assert used == {f"#/components/schemas/{shapes[path]}"}
    assert client.get("/openapi.json").json() == document


# --- around the routes ------------------------------------------------------------------------------------------------


def test_every_answer_has_its_headers_and_is_counted(client: TestClient) -> None:
    def figure(text: str, key: str) -> float:
        return next((float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(key)), 0.0)

    before = client.get("/metrics").text
    answers = [client.post("/v1/respond", json={"context": "hi"}) for _ in range(3)]
    answers.append(client.post("/v1/respond", json={}))
    after = client.get("/metrics").text
    for key, more in (
        ('polyrank_requests_total{route="/v1/respond",status="200"}', 3),
        ('polyrank_requests_total{route="/v1/respond",status="422"}', 1),
        ('polyrank_request_seconds_count{route="/v1/respond"}', 4),
        ('polyrank_batch_jobs_count{operation="respond"}', 3),
        ('polyrank_batch_jobs_sum{operation="respond"}', 3),
        ("polyrank_worker_deaths_total", 0),
    ):
        assert figure(after, key) - figure(before, key) == more, key
    edges = {  # which dashboards name
        "request_seconds": "0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1.0 2.5 5.0 10.0 30.0 +Inf",
        "batch_jobs": "1.0 2.0 4.0 8.0 16.0 32.0 64.0 128.0 +Inf",
    }
    for name, upper in edges.items():
        lines = [
            line for line in after.splitlines() if line.startswith(f"polyrank_{name}_bucket") and "respond" in line
        ]
        assert [line.partition('le="')[2].partition('"')[0] for line in lines] == upper.split()
    for key in ("polyrank_model_seconds_total", "polyrank_tokens_total"):
        assert figure(after, f'{key}{{operation="respond"}}') > figure(before, f'{key}{{operation="respond"}}')
    assert figure(after, "polyrank_workers_ready") == 1
    assert figure(after, "polyrank_waiting_requests") == 0
    assert {"polyrank_waiting_requests", "polyrank_feedback_waiting"} <= {*re.split(r"[\s{]", after)}
    assert 0 <= figure(after, "polyrank_feedback_waiting") <= 3  # those of this test: a thread writes them
    feedback = cast(Any, client.app).app.state.server.feedback
    n_lost = figure(after, "polyrank_feedback_lost")
    feedback.lose("a test")
    assert figure(client.get("/metrics").text, "polyrank_feedback_lost") == n_lost + 1
    for answer in answers:
        assert re.fullmatch("[0-9a-f]{24}", answer.headers["x-request-id"])
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answers[0].json()["request_id"] == answers[0].headers["x-request-id"]
    assert len({answer.headers["x-request-id"] for answer in answers}) == 4


def test_a_request_is_logged_without_its_texts(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "polyrank.access"):
        client.get("/live")  # too frequent for the log
        answer = client.delete("/v1/candidates/a-name-of-mine")
    (row,) = map(json.loads, (text for name, _, text in caplog.record_tuples if name == "polyrank.access"))
    assert row.pop("ms") > 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row.pop("time"))
    assert row == {
        "request_id": answer.headers["x-request-id"], "method": "DELETE", "route": "/v1/candidates/{id}",
        "status": 200, "client": "?", "key": "printed",
    }  # fmt: skip


def guarded(
    app: Any, *, limits: LimitSettings | None = None, **options: Any
) -> Callable[..., Coroutine[Any, Any, list[Any]]]:
    """A function that sends a request to an app behind a guard, from a client that waits; it returns the messages."""
    guard = Guard(
        app, keys=Keys(), limits=limits or LimitSettings(), check_capacity=lambda: None, on_answer=lambda *_: None,
        computing=frozenset(), changes=lambda method, path: False, **options,
    )  # fmt: skip

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def request(path: str = "/v1/models", kind: str = "http") -> list[Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": kind, "method": "GET", "path": path, "headers": [(b"host", b"localhost")]}
        await asyncio.wait_for(guard(scope, receive, send), 30)
        return sent

    return request


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ZeroDivisionError("secret"), 500),
        (PermissionError(13, "refused", "secret"), 500),
        (HttpError(500, "known"), 500),
        (HttpError(400, "known"), 400),
    ],
)
def test_an_unknown_error_is_logged_by_its_name(
    caplog: pytest.LogCaptureFixture, error: Exception, status: int, answered: bool
) -> None:
    """Whether or not the app has answered before it failed."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if answered:
            await refuse(http_error(error), scope, send)
        raise error

    sent = asyncio.run(guarded(app)())
    assert [message.get("status") for message in sent] == [status, None]
    assert b"secret" not in sent[1]["body"]
    problems = [json.loads(text) for _, level, text in caplog.record_tuples if level == logging.ERROR]
    names = {ZeroDivisionError: "ZeroDivisionError", PermissionError: "PermissionError: [Errno 13] refused: 'secret'"}
    assert [problem["error"] for problem in problems] == [name for kind, name in names.items() if type(error) is kind]


def test_an_answer_that_fails_in_its_middle_ends_the_connection() -> None:
    """Otherwise the client would take its beginning for all of it; uvicorn ends the connection after an error."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"[1", "more_body": True})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(guarded(app)())


@pytest.mark.parametrize("prefix", ["", "/desk", "/desk/", "/a/b"])
def test_a_prefix_is_removed_and_a_stopping_server_closes_connections(prefix: str) -> None:
    seen = list[str]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["path"])
        await refuse(HttpError(200, ""), scope, send)

    for stopping in (False, True):
        request = guarded(app, prefix=prefix, stopping=lambda: stopping)  # noqa: B023
        for path, wanted in (("/v1/models", "/v1/models"), ("", "/"), ("/", "/"), ("//x//y/", "/x/y")):
            start, _ = asyncio.run(request(prefix.rstrip("/") + path))
            assert seen.pop() == wanted
            assert ((b"connection", b"close") in start["headers"]) is stopping
        assert asyncio.run(request("/v1/models", "websocket")) == [{"type": "websocket.close", "code": 1008}]
    asyncio.run(guarded(app, prefix=prefix)("/desktop"))
    assert seen == ["/desktop"]


def test_requests_end_at_a_limit_except_those_about_the_server() -> None:
    async def statuses() -> list[int]:
        free = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"] != "/live":
                await free.wait()
            await refuse(HttpError(200, ""), scope, send)

        request = guarded(app, limits=LimitSettings(connections=2))
        waiting = [asyncio.ensure_future(request()) for _ in range(2)]
        await asyncio.sleep(0)
        refused, live = await request(), await request("/live")
        free.set()
        answered = await asyncio.gather(*waiting)
        assert json.loads(refused[1]["body"])["error"]["message"].startswith("too many requests are open; try again")
        assert {(b"retry-after", b"1"), (b"connection", b"close")} <= {*refused[0]["headers"]}
        return [sent[0]["status"] for sent in (refused, live, *answered, await request())]

    assert asyncio.run(statuses()) == [503, 200, 200, 200, 200]


@pytest.mark.parametrize(
    ("error", "status", "kind", "code", "retry"),
    [
        (UsageError("a"), 400, "invalid_request_error", "refused", None),
        (LockedError("a"), 409, "conflict_error", "locked", "5"),
        (ReadOnlyError("a"), 507, "storage_error", "read_only", None),
        (OfflineError("a"), 503, "overloaded_error", "offline", "5"),
        (DeadlineError("a"), 504, "timeout_error", "deadline", None),
        (RefusedError("DeadlineError", "a"), 504, "timeout_error", "deadline", None),
        (OverloadedError(2.5), 429, "rate_limit_error", "overloaded", "3"),
        (TimeoutError(), 503, "overloaded_error", "timeout", "2"),
        (WorkerDiedError(), 500, "server_error", "worker_died", None),
        (ZeroDivisionError(), 500, "server_error", "internal", None),
    ],
    ids=str,
)
def test_an_error_has_its_status_and_type(
    error: Exception, status: int, kind: str, code: str, retry: str | None
) -> None:
    answer = http_error(error)
    said = answer.body("/v1/respond")["error"]
    assert (answer.status, said["type"], said["code"], answer.headers.get("retry-after")) == (status, kind, code, retry)


def test_calls_that_wait_for_the_disk_are_limited() -> None:
    async def work(server: Server) -> int:
        free = threading.Event()
        waiting = [asyncio.ensure_future(server.run_blocking(free.wait)) for _ in range(MAX_BLOCKING)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await server.run_blocking(free.wait)
        free.set()
        assert all(await asyncio.gather(*waiting))
        return await server.run_blocking(int, "5")

    _, server = create_app({}, BASIC)
    assert asyncio.run(work(server)) == 5


@pytest.mark.parametrize(
    ("workers", "threads", "each"), [(1, None, None), (2, None, 3), (4, None, 1), (8, None, 1), (8, 5, 5), (1, 5, 5)]
)
def test_workers_share_the_cores_that_the_server_may_use(
    workers: int, threads: int | None, each: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 3, 5, 8, 13})  # a container's, of a large machine
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert Setup.of({}, replace(BASIC, workers=workers, threads=threads)).threads == each


def test_limits_of_the_settings_are_those_of_the_queue() -> None:
    limits = LimitSettings(queue=3, wait_s=7.0, timeout_s=9.0, filter_timeout_s=4.0)
    pool = create_app({}, replace(BASIC, workers=4, limits=limits))[1].pool
    assert (pool.waiting.max_requests, pool.waiting.max_wait_s, pool.timeout_s, pool.n) == (3, 7.0, 9.0, 4)
    assert pool.setup.filter_timeout_s == 4.0
    for n_ready, n in ((0, 1), (1, 1), (3, 3)):  # the work is shared by those that are ready
        pool.n_ready = n_ready
        assert pool.n_computing == n


def test_reports_take_turns(tmp_path: Path) -> None:
    async def work(server: Server) -> int:
        reports = [asyncio.ensure_future(figures(server)) for _ in range(5)]
        await asyncio.sleep(0)
        n_reading = server.searching.n_waiting
        assert [row["n_requests"] for row in await asyncio.gather(*reports)] == [0] * 5
        return n_reading

    _, server = create_app({}, replace(BASIC, feedback=FeedbackSettings(file=str(tmp_path / "feedback.db"))))
    assert asyncio.run(work(server)) == 1


def test_without_keys_only_this_machine_has_access(client: TestClient) -> None:
    for host, status in (("localhost", 200), ("127.0.0.1:80", 200), ("[::1]:5", 200), ("LOCALHOST:1", 200),
                         ("127.1.2.3:80", 200), ("127.0.0.1.2", 403), ("128.0.0.1", 403),
                         ("example.org", 403), ("localhost.example.org", 403), ("", 403), ("[::2]", 403)):  # fmt: skip
        answer = client.get("/v1/models", headers={"host": host})
        assert answer.status_code == status, host
        if status == 403:
            assert answer.json()["error"]["code"] == "no_keys"
    assert client.get("/live", headers={"host": "example.org"}).status_code == 200


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "has no keys; write one per line"),
        ("# a comment\n\n", "has no keys; write one per line"),
        ("k" * 16 + "\n# fine\n" + "k" * 15, "key in line 3 of .* has 15 characters; use at least 16"),
        (None, "cannot read keys from .*; use a file with one key per line"),
    ],
)
def test_files_of_keys(tmp_path: Path, content: str | None, problem: str) -> None:
    if content is not None:
        (tmp_path / "keys").write_text(content)
    with pytest.raises(UsageError, match=problem):
        Keys.read(tmp_path / "keys")


def test_a_key_is_sent_as_bearer_or_as_a_password(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"# own\n {'k' * 16} \n{'é' * 20}\n")
    keys = Keys.read(tmp_path / "keys")
    assert (bool(keys), keys.secret) == (True, "")
    assert not Keys()
    assert Keys().secret != Keys().secret
    password = base64.b64encode(f"me:{'k' * 16}".encode()).decode()
    for sent, admitted in (
        (f"Bearer {'k' * 16}", True), (f"bearer  {'k' * 16} ", True), (f"Bearer {'é' * 20}", True),
        (f"Basic {password}", True), (f"basic {password}", True), (f"Basic {'k' * 16}", False),
        (f"Bearer {password}", False), (f"Token {'k' * 16}", False), ("k" * 16, False), ("", False),
        ("Bearer", False), ("Basic ???", False), (f"Bearer {'k' * 17}", False),
    ):  # fmt: skip
        assert (keys.admit(sent.encode()) is not None) is admitted, sent
    (tmp_path / "keys").write_text("other-key-of-mine")
    keys.replace(Keys.read(tmp_path / "keys"))
    assert not keys.admit(f"Bearer {'k' * 16}".encode())
    assert keys.admit(b"Bearer other-key-of-mine")


def test_every_change_of_a_file_of_keys_is_noticed(tmp_path: Path) -> None:
    path, other = tmp_path / "keys", tmp_path / "other"
    path.write_text("k" * 16)
    os.utime(path, ns=(1, 2**60))

    def replace_in_place() -> None:
        path.write_text("n" * 16)
        os.utime(path, ns=(1, 2**60 + 1))

    def keep_the_time() -> None:
        """As programs that copy files with their times do; the system's clock of files has steps of milliseconds."""
        before, end = path.stat().st_ctime_ns, time.monotonic() + 30
        while path.stat().st_ctime_ns == before:
            assert time.monotonic() < end
            path.write_text("o" * 16)
            os.utime(path, ns=(1, 2**60 + 1))

    def append() -> None:
        with path.open("a") as file:
            file.write("p")

    def rename() -> None:
        other.write_text("q" * 17)
        other.rename(path)

    seen = [file_stamp(str(path))]
    for change in (replace_in_place, keep_the_time, append, rename, path.unlink):
        assert file_stamp(str(path)) == seen[-1]
        change()
        seen.append(file_stamp(str(path)))
    assert len({*seen}) == len(seen)
    assert seen[-1] == ()


def test_each_key_of_a_file_has_its_own_name_right_and_filter(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secrets = [f"{letter * 15}{n}" for n, letter in enumerate("kmnopq")]
    lines = [
        secrets[0], "", f"web read {secrets[1]}", "# none", f"  shop\twrite  {secrets[2]}   team = \"a b\" and n > 2  ",
        f"other read {secrets[3]} n = 1", secrets[4], f"last write {secrets[5]}",
    ]  # fmt: skip
    (tmp_path / "keys").write_text("\r\n".join(lines), "utf-8-sig")
    for mode, warned in ((0o600, False), (0o640, False), (0o644, True), (0o620, True)):
        (tmp_path / "keys").chmod(mode)
        caplog.clear()
        keys = Keys.read(tmp_path / "keys")
        assert ("other users can" in caplog.text) is warned, oct(mode)
    found = [keys.admit(f"Bearer {secret}".encode()) for secret in secrets]
    assert [(key.name, key.right, key.filter and str(key.filter)) for key in found if key] == [
        ("key-1", "write", None), ("web", "read", None), ("shop", "write", 'team = "a b" and n > 2'),
        ("other", "read", "n = 1"), ("key-7", "write", None), ("last", "write", None),
    ]  # fmt: skip
    for secret in (secrets[0][:-1], secrets[0] + "x", "web", "k" * 15 + "1", ""):
        assert keys.admit(f"Bearer {secret}".encode()) is None
    for again in ("key-1", "web", "last"):
        (tmp_path / "keys").write_text("\n".join([*lines, f"{again} read {'z' * 16}"]), "utf-8")
        with pytest.raises(UsageError, match=f"two keys with the name {again}; use distinct names"):
            Keys.read(tmp_path / "keys")
    for line in ("web admin " + "z" * 16, "web read", "a b c d", f"web  {'z' * 16}"):
        (tmp_path / "keys").write_text(f"{secrets[0]}\n{line}\n", "utf-8")
        with pytest.raises(UsageError, match=r"line 2 of .* is not a key; write KEY, NAME read KEY or NAME"):
            Keys.read(tmp_path / "keys")


def test_a_key_may_see_and_change_only_what_passes_its_filter(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyrank.serving.catalogue.PAGE", 1)  # of the candidates that a filter removes
    texts = {"a1": "restart the router", "a2": "pay the bill", "b1": "restart the router now", "b2": "thanks"}
    rows = [polyrank.Candidate(id_, text, {"shop": id_[0], "tier": int(id_[1])}) for id_, text in texts.items()]
    polyrank.build_index(tmp_path / "index", polyrank.load(name), rows)
    (tmp_path / "keys").write_text(
        'all write a-key-that-is-long\na write a-key-of-the-shop-a shop = "a" or shop = "x"\n'
    )
    others = [polyrank.Candidate("b1", "of another index"), polyrank.Candidate("b3", "pay the bill")]
    polyrank.build_index(tmp_path / "other", polyrank.load(name), others)
    settings = replace(BASIC, api_key_file=str(tmp_path / "keys"))
    with inside({"i": str(tmp_path / "index"), "other": str(tmp_path / "other")}, settings) as client:
        (tmp_path / "index" / "report.json").write_text('{"quotes": ["hi"]}')
        for key, report in (("a-key-of-the-shop-a", None), ("a-key-that-is-long", {"quotes": ["hi"]})):
            found = client.get("/v1/models/i/report", headers={"authorization": f"Bearer {key}"})
            assert (found.status_code, found.json()) == (200, report)
        client.headers["authorization"] = "Bearer a-key-of-the-shop-a"
        for filter, ids in (
            (None, ["a1", "a2"]),
            ("tier = 2", ["a2"]),
            ('shop = "b"', []),
            ("tier = 1 or tier = 2", ["a1", "a2"]),
        ):
            found = post(client, "/v1/respond", context="restart", **({"filter": filter} if filter else {}))
            assert sorted(reply["id"] for reply in found["results"]) == ids
            page = client.get("/v1/candidates", params={"filter": filter} if filter else {}).json()
            assert [row["id"] for row in page["candidates"]] == ids
        assert client.post("/v1/explain", json={"context": "hi", "id": "a1"}).status_code == 200
        for refused in (
            client.post("/v1/explain", json={"context": "hi", "id": "b1"}),
            client.get("/v1/candidates/b1"),
        ):
            assert refused.status_code == 404
        for row in (
            {"text": "foreign", "metadata": {"shop": "b"}}, {"text": "none"},
            {"id": "b1", "text": "mine now", "metadata": {"shop": "a"}},
        ):  # fmt: skip
            refused = client.post("/v1/candidates", json={"candidates": [row], "replace": True})
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "filtered_key"), row
        post(client, "/v1/candidates", candidates=[{"id": "a3", "text": "own", "metadata": {"shop": "a", "tier": 3}}])
        assert post(client, "/v1/candidates/remove", ids=["a1", "b1", "none"]) == {"removed": 1, "n_candidates": 4}
        assert client.delete("/v1/candidates/b2").json()["removed"] == 0
        assert post(client, "/v1/candidates/remove", filter='shop = "b"')["removed"] == 0
        assert post(client, "/v1/candidates/remove", filter="tier >= 1") == {"removed": 2, "n_candidates": 2}
        client.headers["authorization"] = "Bearer a-key-that-is-long"
        assert [row["id"] for row in client.get("/v1/candidates").json()["candidates"]] == ["b1", "b2"]
        assert post(client, "/v1/candidates/remove", filter='shop = "b" and tier = 2')["removed"] == 1
        for wrong in ({}, {"ids": [], "filter": "tier = 1"}):
            assert client.post("/v1/candidates/remove", json=wrong).status_code == 422
        # each route changes and reads the index that a request names
        named = {"params": {"model": "other"}}
        assert client.get("/v1/candidates/b1", **named).json()["text"] == "of another index"  # type: ignore[arg-type]
        listed = client.get("/v1/candidates", **named).json()  # type: ignore[arg-type]
        assert [row["id"] for row in listed["candidates"]] == ["b1", "b3"]
        new = {"candidates": [{"id": "b4", "text": "thanks"}], "model": "other"}
        assert post(client, "/v1/candidates", **new) == {"ids": ["b4"], "n_candidates": 3}
        assert post(client, "/v1/candidates/remove", ids=["b3"], model="other") == {"removed": 1, "n_candidates": 2}
        assert client.delete("/v1/candidates/b1", **named).json() == {"removed": 1, "n_candidates": 1}  # type: ignore[arg-type]
        assert [row["id"] for row in client.get("/v1/candidates").json()["candidates"]] == ["b1"]
    (tmp_path / "keys").write_text("a write a-key-of-the-shop-a shop = = a")
    with pytest.raises(UsageError, match=r"line 1 of .* has a key with a wrong filter: filter, character 8"):
        Keys.read(tmp_path / "keys")


def test_a_key_has_a_share_of_the_feedback_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a-key-that-is-long\nanother-key-that-is-long\n")
    kept = FeedbackSettings(file=str(tmp_path / "feedback.db"), key_bytes=10_000)
    with inside({"m": name}, replace(BASIC, api_key_file=str(tmp_path / "keys"), feedback=kept)) as client:
        body = {"action": "refused", "final_text": "x" * 6_000, "shown": {"results": []}}
        answers = []
        for number, key in enumerate(("a-key-that-is-long", "a-key-that-is-long", "another-key-that-is-long")):
            headers = {"authorization": f"Bearer {key}"}
            answers.append(client.post("/v1/feedback", headers=headers, json=body | {"request_id": str(number)}))
        assert [answer.status_code for answer in answers] == [200, 429, 200]
        assert answers[1].json()["error"]["code"] == "feedback_quota"


@pytest.mark.deep
def test_a_late_cross_encoder_keeps_less_in_a_server() -> None:
    pytest.importorskip("polyrank_models", reason="polyrank-models is not installed")
    (late,) = (one for one in Served("m", "shipped:rerank", "cpu").scorer.networks if isinstance(one, LateScorer))
    assert 0 < late.kept.n_bytes <= late.kept.max_bytes == 256 * 2**20


def test_searches_do_not_delay_changes() -> None:
    async def work(server: Server) -> int:
        free = threading.Event()
        searches = [asyncio.ensure_future(server.run_search(free.wait)) for _ in range(MAX_SEARCHING)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await server.run_search(free.wait)
        changed = await server.run_blocking(int, "5")  # while every search waits
        free.set()
        assert all(await asyncio.gather(*searches))
        return changed

    _, server = create_app({}, BASIC)
    assert asyncio.run(work(server)) == 5


def test_the_log_has_addresses_of_clients_only() -> None:
    assert [_address(text) for text in ("192.0.2.1", "::1", "testclient\n{", "1.2.3.4, 5.6.7.8", "")] == [
        "192.0.2.1", "::1", "?", "?", "?",
    ]  # fmt: skip


def test_keys_and_limits_apply_to_every_route(name: str, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a-key-that-is-long\nshop read a-key-that-reads\n")
    limits = LimitSettings(body_bytes=70_000)
    settings = replace(BASIC, api_key_file=str(tmp_path / "keys"), limits=limits, page=False)
    with inside({"tiny": name}, settings) as client:
        refused = client.get("/v1/models")
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert refused.headers["www-authenticate"] == 'Basic realm="polyrank", charset="UTF-8"'
        client.headers["authorization"] = "Bearer a-key-that-is-long"
        assert client.get("/v1/models", headers={"host": "example.org"}).status_code == 200
        assert client.get("/").status_code == 405  # no page
        for key, status in (("a-key-that-is-long", 400), ("a-key-that-reads", 403)):  # no index; no right
            change = client.delete("/v1/candidates/r0", headers={"authorization": f"Bearer {key}"})
            assert change.status_code == status
        assert change.json()["error"]["code"] == "read_only_key"
        assert client.get("/v1/models", headers={"authorization": "Bearer a-key-that-reads"}).status_code == 200
        off = client.post("/v1/feedback", json={})
        assert (off.status_code, off.json()["error"]["message"]) == (
            404, "this server records no feedback; start it with --feedback FILE",
        )  # fmt: skip
        assert client.get("/v1/feedback/report").status_code == 404
        for size, status in ((70_000, 422), (70_001, 413)):
            body = json.dumps({"context": ""}).encode()
            body += b" " * (size - len(body))
            answer = client.post("/v1/score", content=body, headers={"content-type": "application/json"})
            assert answer.status_code == status
            chunked = client.post(
                "/v1/score", content=iter([body[:100], body[100:]]), headers={"content-type": "application/json"}
            )
            assert chunked.status_code == status
        assert answer.json()["error"]["message"] == "the body is longer than 70,000 bytes; send less at a time"
        no_index = client.post("/v1/respond", json={"context": "hi"})
        assert no_index.status_code == 400
        assert no_index.json()["error"]["message"].startswith("no index is served")
        long = client.post("/v1/score", json={"context": "hi", "candidates": ["word " * 1500] * 4})
        assert long.status_code == 200
        assert len(long.json()["scores"]) == 4


# --- start and stop ---------------------------------------------------------------------------------------------------


def run_here(
    models: dict[str, str], worker: Worker, ready: Callable[[Server], None] = lambda server: None
) -> tuple[list[str], Server]:
    """Run a server at a free port in this process until a signal; returns what happened, and the server."""
    app, server = create_app(models, replace(BASIC, drain_s=0.0), worker)
    happened: list[str] = []

    def on_ready() -> None:
        happened.append("ready")
        ready(server)

    own = uvicorn.Server(uvicorn.Config(app, ws="none", lifespan="on", log_config=None))
    own.capture_signals = nullcontext  # type: ignore[method-assign,assignment]  # as ``serve`` does
    with _bind("127.0.0.1", 0) as bound, pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "collect", lambda: 0)  # slow with the tests' imports
        try:
            asyncio.run(_until_stopped(own, server, bound, lambda: happened.append("listening"), on_ready))
        finally:
            gc.unfreeze()
    return happened, server


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_server(name: str, number: int) -> None:
    models = {"m": name}
    with in_thread(Setup.of(models, BASIC)) as worker:
        happened, server = run_here(models, worker, lambda server: os.kill(os.getpid(), number))
    assert happened == ["listening", "ready"]
    assert server.draining


@pytest.mark.parametrize(("number", "drains"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_one_signal_drains_a_second_ends_at_once_and_another_reads_the_keys(
    number: int, drains: bool, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("a-key-of-the-first-day")
    settings = replace(BASIC, drain_s=300.0, api_key_file=str(tmp_path / "keys"))
    app, server = create_app({"m": "path"}, settings)
    own = uvicorn.Server(uvicorn.Config(app))

    async def signalled() -> None:
        stop = _SignalHandlers(own, server)
        (tmp_path / "keys").write_text("a-key-of-the-second-day")
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), number)
        await asyncio.wait_for(stop.requested.wait(), 10)
        ended, _ = await asyncio.wait({draining := asyncio.create_task(stop.drain())}, timeout=0.02 if drains else 10)
        assert (bool(ended), server.draining, own.force_exit) == (not drains, True, False)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(draining, 10)
        async with asyncio.timeout(10):
            while not own.force_exit:
                await asyncio.sleep(0)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # without a handler it would end the tests
    try:
        asyncio.run(signalled())
    finally:
        signal.signal(signal.SIGHUP, before)
    known = [server.keys.admit(f"Bearer a-key-of-the-{day}-day".encode()) for day in ("first", "second")]
    assert [key is not None for key in known] == [False, True]


@pytest.mark.parametrize("texts", [[f"a-key-of-the-day-{'x' * n}" for n in range(3)], ["x" * 16, "y" * 16, "z" * 16]])
def test_a_file_of_keys_is_read_again_when_it_changes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[str]
) -> None:
    monkeypatch.setattr("polyrank.serving.app.KEYS_S", 0.0)
    file = tmp_path / "keys"
    file.write_text(texts[0])
    _, server = create_app({"m": "path"}, replace(BASIC, api_key_file=str(file)))

    def known() -> list[bool]:
        return [server.keys.admit(f"Bearer {text}".encode()) is not None for text in texts]

    async def watched() -> None:
        watching = asyncio.create_task(_watch_keys(server))
        await asyncio.sleep(0)
        for n, text in enumerate(texts[1:]):  # as an editor that writes it in parts
            file.write_text(text)
            os.utime(file, ns=(n, n))  # the system's clock of files has steps of milliseconds
            await asyncio.sleep(0)
            assert known() == [True, False, False]
        await asyncio.sleep(0)
        assert known() == [False, False, True]
        watching.cancel()

    asyncio.run(watched())


@pytest.mark.parametrize(("content", "code"), [(None, UsageError.exit_code), ("{", 4)])
def test_a_model_that_cannot_be_opened_ends_the_server_with_its_error(
    tmp_path: Path, content: str | None, code: int
) -> None:
    models = {"m": str(tmp_path / "m")}
    if content is not None:
        (tmp_path / "m").mkdir()
        (tmp_path / "m" / "config.json").write_text(content)
    with pytest.raises(PolyrankError) as original:
        polyrank.load(models["m"])
    with in_thread(Setup.of(models, BASIC)) as worker, pytest.raises(StartupError) as error:
        run_here(models, worker)
    assert error.value.exit_code == original.value.exit_code == code
    assert str(error.value) == str(original.value)


def test_until_the_models_are_open_requests_are_to_be_repeated(name: str) -> None:
    own, theirs = Pipe()
    app, server = create_app({"m": name}, BASIC, Worker(cast(Any, Thread()), own))
    body = {"context": "hi", "candidates": REPLIES}
    with (
        pytest.MonkeyPatch.context() as patch,
        TestClient(app, base_url="http://localhost") as client,
    ):
        patch.setattr(signal, "signal", lambda *_: None)
        assert client.get("/live").status_code == 200
        for early in (client.get("/ready"), client.get("/health"), client.head("/ready"), client.head("/health")):
            assert (early.status_code, early.headers["retry-after"]) == (503, "1")
        for ask in (client.get, client.head):
            assert [ask(path).status_code for path in ("/live", "/ready", "/health")] == [200, 503, 503]
        server.pool.failure = StartupError("no memory", 5)  # of a process that ended
        failed = client.post("/v1/score", json=body)
        assert (failed.status_code, failed.headers["retry-after"]) == (503, "5")
        assert failed.json()["error"]["message"] == "the models cannot be opened at present; try again later"
        server.pool.failure = None
        early = client.post("/v1/score", json=body)
        assert (early.status_code, early.json()["error"]["code"]) == (503, "starting")
        assert early.headers["retry-after"] == "1"
        thread = threading.Thread(target=run_worker, args=(theirs, Setup.of({"m": name}, BASIC)))
        server.pool.failure = StartupError("no memory", 5)
        thread.start()
        end = time.monotonic() + 60
        while client.get("/ready").status_code != 200:
            assert time.monotonic() < end
        assert client.post("/v1/score", json=body).status_code == 200
        assert server.pool.failure is None
    thread.join(60)
    assert not thread.is_alive()


def test_a_process_that_dies_while_it_opens_the_models_ends_the_server() -> None:
    own, theirs = Pipe()
    theirs.close()
    with pytest.raises(StartupError, match="the process died while it opened the models") as error:
        run_here({}, Worker(cast(Any, Thread()), own))
    assert error.value.exit_code == 1


@pytest.mark.parametrize(("sent", "code"), [(None, 5), (b"junk", 1)])
def test_a_process_that_cannot_be_reached_has_an_exit_code(sent: bytes | None, code: int) -> None:
    """5: the machine lacks a resource; 1: anything else."""
    own, theirs = Pipe()
    worker = Worker(cast(Any, Thread()), own)
    if sent is None:
        own.close()
    else:
        theirs.send_bytes(sent)
    started = asyncio.run(Pool(Setup({}, "cpu", "torch", 1), started=worker)._start_worker(0))
    assert started[0] is worker
    assert (started[1].exit_code, started[1].error.partition(":")[0]) == (code, "the process could not be started")


def test_a_process_whose_server_ended_meanwhile_ends_without_a_traceback(name: str) -> None:
    for model in (name, "none"):  # it opens the models, or fails to
        own, theirs = Pipe()
        own.close()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(signal, "signal", lambda *_: None)
            run_worker(theirs, Setup.of({"m": model}, BASIC))


@pytest.mark.parametrize(("backend", "device"), [("onnx", "cuda"), ("openvino", "cuda:1")])
def test_exports_are_not_given_a_gpu(tiny_encoders: dict[str, Path], backend: str, device: str) -> None:
    own, theirs = Pipe()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signal, "signal", lambda *_: None)
        run_worker(theirs, Setup({"m": str(tiny_encoders["bi"])}, device, backend, 1))
    started: Started = own.recv()
    assert (started.exit_code, started.error) == (
        2, f"backend {backend} computes on the CPU, not on {device}; use `device=cpu` or `backend=torch`"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            RuntimeError("CUDA out of memory."),
            5,
            "cannot open the models: CUDA out of memory.; free some memory or disk",
        ),
        (RuntimeError("another fault"), 1, "cannot open the models: RuntimeError: another fault"),
    ],
)
def test_a_fault_of_a_library_while_models_are_opened_is_reported(
    name: str, error: Exception, code: int, message: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    own, theirs = Pipe()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signal, "signal", lambda *_: None)
        patch.setattr(torch.nn.Module, "to", fail)
        run_worker(theirs, Setup.of({"m": name}, BASIC))
    started: Started = own.recv()
    assert started.exit_code == code
    assert started.error.startswith(message)


def test_a_stopped_server_leaves_no_threads_and_no_lock(name: str, index: Path, tmp_path: Path) -> None:
    shutil.copytree(index, tmp_path / "index")
    before = set(threading.enumerate())
    models = {"tiny": name, "support": str(tmp_path / "index")}
    with inside(models, replace(BASIC, feedback=FeedbackSettings(file=str(tmp_path / "feedback.db")))) as client:
        large = json.dumps({"context": "hi", "candidates": []}).encode() + b" " * 70_000
        headers = {"content-type": "application/json"}
        assert client.post("/v1/score", content=large, headers=headers).status_code == 200  # parsed in a thread
        assert client.get("/v1/feedback/report").status_code == 200
        assert post(client, "/v1/candidates", candidates=[{"text": "restart it"}])["n_candidates"] == 6
        started = {thread.name.rpartition("_")[0] for thread in set(threading.enumerate()) - before}
        assert {"polyrank-json", "polyrank-search", "polyrank-pool"} <= started
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not [thread for thread in left if not thread.startswith("polyrank-pool")]  # these end on their own
    open_writer(tmp_path / "index").close()  # nobody holds its lock, although the last change was a moment ago


def test_feedback_is_written_first_at_the_end(index: Path, tmp_path: Path) -> None:
    """Even if calls still wait for another server, such as those of clients that have left."""
    file, free = tmp_path / "feedback.db", threading.Event()
    try:
        with inside({"support": str(index)}, replace(BASIC, feedback=FeedbackSettings(file=str(file)))) as client:
            server: Server = cast(Any, client.app).app.state.server
            assert client.get("/v1/candidates/r0").status_code == 200  # its index has to be closed
            post(client, "/v1/respond", context="hi", k=1)

            async def wait_in_threads() -> None:
                server_calls = [asyncio.ensure_future(server.run_blocking(free.wait)) for _ in range(MAX_BLOCKING)]
                await asyncio.sleep(0)
                assert server.threads.n_waiting == len(server_calls)

            assert client.portal is not None
            client.portal.call(wait_in_threads)
            assert server.feedback is not None
            (writing,) = server.feedback._thread._threads
            threading.Thread(target=lambda: (writing.join(), free.set()), daemon=True).start()
    finally:
        free.set()
    with FeedbackStore(file, write=False) as store:
        assert len(store) == 1


def test_a_process_is_ended_once() -> None:
    async def end() -> None:
        pool = Pool(Setup({}, "cpu", "torch", 1), started=worker)
        await pool._end(worker)
        await pool.close()  # ends those that are alive

    worker = Worker(cast(Any, Thread()), Pipe()[0])
    asyncio.run(end())
    assert worker.connection.closed


def test_a_job_is_given_up_when_its_third_process_has_died() -> None:
    async def settle() -> list[Job]:
        pool, loop = Pool(Setup({}, "cpu", "torch", 1)), asyncio.get_running_loop()
        jobs = [Job("m", EmbedTask([]), 16, time.monotonic() + 60, loop.create_future(), n) for n in (2, 3)]
        pool._retry(jobs)
        assert isinstance(jobs[1].result.exception(), WorkerDiedError)
        again = pool.waiting.next_batch()
        assert again == jobs[:1]
        assert again[0].alone
        return again

    assert len(asyncio.run(settle())) == 1


# --- connections ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def listening(
    idle_s: float = 60.0,
    max_connections: int = 10,
    parts: Sequence[bytes] = (b"hi",),
    sent: Callable[[], None] = lambda: None,
) -> AsyncIterator[int]:
    """The port of an app that answers with these parts and then calls ``sent``; its connections are as a server's."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        length = str(sum(map(len, parts))).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        for number, part in enumerate(parts, 1):
            await send({"type": "http.response.body", "body": part, "more_body": number < len(parts)})
        sent()

    config = uvicorn.Config(app, ws="none", log_config=None, timeout_keep_alive=idle_s)
    state = ServerState()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PatientProtocol, "head_s", 60.0, raising=False)
        patch.setattr(PatientProtocol, "max_connections", max_connections, raising=False)
        loop = asyncio.get_running_loop()
        async with await loop.create_server(lambda: PatientProtocol(config, state, {}), "127.0.0.1", 0) as server:
            yield server.sockets[0].getsockname()[1]


GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


def test_a_part_of_a_later_request_does_not_stop_the_timer() -> None:
    async def answers() -> tuple[bytes, bytes]:
        async with listening(idle_s=0.05) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET)
            first = await reader.readuntil(b"hi")
            writer.write(GET[:20])  # the rest never comes
            second = await asyncio.wait_for(reader.read(), 10)
            writer.close()
            return first, second

    first, second = asyncio.run(answers())
    assert first.startswith(b"HTTP/1.1 200 OK")
    assert second.startswith(b"HTTP/1.1 408 Request Timeout")


def test_a_new_connection_replaces_the_one_that_is_idle_for_longest() -> None:
    async def talk() -> tuple[bytes, list[bytes]]:
        async with listening(max_connections=2) as port:
            ends = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            for reader, writer in ends:  # both have been used; the first has been idle for longer
                writer.write(GET)
                await reader.readuntil(b"hi")
            ends.append(await asyncio.open_connection("127.0.0.1", port))
            closed = await asyncio.wait_for(ends[0][0].read(), 10)
            kept = []
            for reader, writer in ends[1:]:
                writer.write(GET)
                kept.append(await reader.readuntil(b"hi"))
            for _, writer in ends:
                writer.close()
            return closed, kept

    closed, kept = asyncio.run(talk())
    assert closed == b""
    assert [answer[:15] for answer in kept] == [b"HTTP/1.1 200 OK"] * 2


def test_an_answer_that_is_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(size: int, n_read: int) -> bytes:
        end = asyncio.Event()
        async with listening(parts=[b"x" * size] * 2, sent=end.set) as port:  # the second waits for the first
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET)
            await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(n_read)
            await asyncio.wait_for(end.wait(), 10)
            writer.close()
            return body

    assert asyncio.run(talk(2**20, 2**21)) == b"x" * 2**21
    monkeypatch.setattr("polyrank.serving.protocol.READING_S", 0.05)
    asyncio.run(talk(2**24, 0))  # more than the system's buffers hold


@pytest.mark.parametrize("most", [20, 100, None])
def test_a_text_takes_as_long_as_what_is_read_of_it(most: int | None) -> None:
    info = SimpleNamespace(max_context_tokens=most, max_candidate_tokens=most and most // 2)
    server: Any = SimpleNamespace(pool=SimpleNamespace(info={"m": info}))
    for length in (0, 3, 40, 68, 69, 400, 3_000):
        n = length // 4 + 3
        chunked = n if n <= (most or 1_024) // 2 else 3 * n
        sides = {"context": min(n, most or 512), "candidate": min(n, (most or 1_024) // 2), "document": chunked}
        for side, wanted in sides.items():
            texts = ["x" * length, "y" * length]
            assert Server.tokens(server, "m", texts, cast(Any, side)) == 2 * wanted + 2 * length // 200
