"""``polyrank.Client`` and ``AsyncClient`` with real servers: they return what the library returns."""

import asyncio
import gc
import importlib.util
import inspect
import json
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import reduce
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import polyrank
from polyrank.answering.answers import Answer
from polyrank.client.calls import Page, error_of
from polyrank.errors import (
    ArtifactError,
    DataError,
    DeadlineError,
    LockedError,
    MissingExtraError,
    OfflineError,
    ReadOnlyError,
    ResourceError,
    UsageError,
)
from polyrank.records import Candidate, Context, Ranked
from servers import Running
from serving_here import serving_here

REPLIES = [
    Candidate("router", "restart the router", {"team": "tech", "level": 2}),
    Candidate("a/b bill", "pay the bill", {"team": "billing"}),
    Candidate("hi", "hello, how can I help?"),
]
CONTEXT = ["hi", "my wifi is down"]
KEY = "a-key-of-some-length"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("client") / "support"
    polyrank.build_index(folder, "shipped:convert", REPLIES)
    return folder


@pytest.fixture(scope="module")
def server(index: Path) -> Iterator[Running]:
    config = index.parent / "serve.toml"
    config.write_text(f'[feedback]\nfile = "{index.parent / "feedback.db"}"\n', "utf-8")
    with serving_here(f"support={index}", config=config) as running:
        yield running


def test_one_text_is_not_a_list_of_texts() -> None:
    with polyrank.Client("http://127.0.0.1:1") as client:
        for call in (lambda: client.remove("12"), lambda: client.score("hi", "pay")):
            with pytest.raises(TypeError, match=r" = '(12|pay)' is one text; give a list of texts"):
                call()


@pytest.fixture
def client(server: Running) -> Iterator[polyrank.Client]:
    with polyrank.Client(f"{server.url}/#key={server.key}", retries=20) as client:
        yield client


def test_answers_and_explanations_equal_the_librarys(client: polyrank.Client, index: Path) -> None:
    answer, why = client.respond(CONTEXT, k=2), client.explain(CONTEXT, text="pay the bill")
    by_id = client.explain(Context(tuple(CONTEXT)), candidate_id="a/b bill")
    with polyrank.open(index) as replies:
        own, own_why = replies.answer(CONTEXT, k=2), replies.explain(CONTEXT, "pay the bill")
        filtered = replies.answer("hello", filter='team = "billing"')
        scores = replies.scorer.score([CONTEXT], [["pay the bill", "thanks"]])[0].tolist()
    assert (answer.text, [reply.id for reply in answer.ranked]) == (own.text, [reply.id for reply in own.ranked])
    assert [reply.score for reply in answer.ranked] == pytest.approx([reply.score for reply in own.ranked], abs=1e-5)
    assert (answer.exact, answer.n_scored, answer.abstained) == (own.exact, own.n_scored, own.abstained)
    assert answer.ranked[0].metadata == own.ranked[0].metadata
    assert why.score == pytest.approx(own_why.score, abs=1e-5)
    assert [turn.text for turn in why.turns] == CONTEXT
    shares = [token.share for turn in why.turns for token in turn.tokens]
    assert shares == pytest.approx([token.share for turn in own_why.turns for token in turn.tokens], abs=1e-5)
    assert type(why) is polyrank.Explanation
    assert by_id == why
    ids = [reply.id for reply in client.respond("hello", filter='team = "billing"').ranked]
    assert ids == [reply.id for reply in filtered.ranked] == ["a/b bill"]
    assert client.score(CONTEXT, ["pay the bill", "thanks"]) == pytest.approx(scores, abs=1e-5)
    (served,) = client.models()
    assert (served.id, served.kind, served.facts["n_candidates"]) == ("support", "index", 3)


def test_an_async_client_serves_several_event_loops(server: Running) -> None:
    client = polyrank.AsyncClient(server.url, retries=20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # connections of an event loop that was closed
        first, second = (asyncio.run(client.score("hi", ["a"])) for _ in range(2))
        assert first == second
        asyncio.run(client.aclose())
        del client
        gc.collect()


def test_candidates_are_added_read_and_removed(client: polyrank.Client) -> None:
    assert client.candidate("router") == REPLIES[0]
    assert client.candidate("a/b bill") == REPLIES[1]
    assert client.candidate("nobody") is client.candidate(".") is client.candidate("..") is None
    assert list(client.candidates()) == REPLIES
    assert list(client.candidates("bill")) == list(client.candidates(filter='team = "billing"')) == [REPLIES[1]]
    try:
        (one, two) = client.add(["the outage is over", {"id": "two", "text": "thanks", "lang": "en"}])
        assert two == "two"
        assert client.respond("the outage is over", k=1, allow_echo=True).ranked[0].id == one
        assert one not in [reply.id for reply in client.respond("The outage is over!").ranked]
        before = client.candidate("two")
        assert before is not None
        assert client.add([{"id": "two", "text": "bye"}], replace=True, previous=[before]) == ["two"]
        with pytest.raises(DataError, match="'two' was changed or removed after you read it"):
            client.add([{"id": "two", "text": "see you"}], replace=True, previous=[before])
        stored = client.candidate("two")
        assert stored is not None
        assert stored.text == "bye"
    finally:
        assert client.remove([one, "two", "nobody"]) == 2
    assert (client.add([]), client.add([], replace=True), client.remove([])) == ([], [], 0)  # as for a local index
    client.add([Candidate(f"n{i:03}", f"number {i}") for i in range(250)])  # more than one page
    assert len([one for one in client.respond("a number", 9, diverse=True).ranked if one.id.startswith("n0")]) <= 1
    assert [candidate.id for candidate in client.candidates("number")] == [f"n{i:03}" for i in range(250)]
    assert client.remove([f"n{i:03}" for i in range(250)]) == 250


def test_messages_are_contexts(client: polyrank.Client) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "my wifi is down"}]
    contexts: list[tuple[Any, int]] = [([], 422), ([" "], 422), (messages[:1], 422), ([{"content": "hi"}], 422)]
    want = client.respond("my wifi is down").ranked
    assert client.respond(messages).ranked == want
    sent = httpx.post(f"{client.url}/v1/respond", json={"context": messages}, timeout=60).json()
    assert [reply["id"] for reply in sent["results"]] == [reply.id for reply in want]
    for context, status in contexts:
        assert httpx.post(f"{client.url}/v1/respond", json={"context": context}, timeout=60).status_code == status
    with pytest.raises(UsageError, match="the context is empty"):
        client.respond(" ")


def test_feedback_is_recorded_once(client: polyrank.Client) -> None:
    answer = client.respond("hello", conversation="c1")
    assert client.feedback(answer, "taken", candidate_id=answer.ranked[0].id)
    assert not client.feedback(answer.request_id, "taken", candidate_id=answer.ranked[0].id)
    assert client.report()["taken"] == 1
    here = Answer((Ranked("a", "a", 1.0),), None, False)
    with pytest.raises(UsageError, match="no request_id"):
        client.feedback(here, "taken")


def test_errors_equal_those_of_the_library(client: polyrank.Client, server: Running) -> None:
    with pytest.raises(DataError, match="k"):
        client.respond("hello", k=10**6)
    with pytest.raises(UsageError, match="k is 0; request at least one reply"):
        client.respond("hello", k=0)
    with pytest.raises(UsageError, match="filter"):
        client.respond("hello", filter="team = = 1")
    with pytest.raises(UsageError, match="nobody"):
        client.respond("hello", model="nobody")
    with pytest.raises(UsageError, match="exactly one of the two"):
        client.explain("hello")
    with pytest.raises(DataError, match=r"^candidate 0: "):
        client.add([{"words": "x"}])
    with pytest.raises(DataError, match=r"lone surrogate '.ud800'; use valid Unicode"):
        client.respond("hello \ud800")
    with pytest.raises(TypeError, match="int"):
        client.respond([1])  # type: ignore[list-item]
    with socket.socket() as free:  # bound but not listening, so that connections are refused
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with polyrank.Client(url, retries=1) as lost, pytest.raises(OfflineError, match="does not answer"):
            lost.models()
    with pytest.raises(UsageError, match="http://"):
        polyrank.Client("localhost:8600")
    with pytest.raises(UsageError, match="retries = -1"):
        polyrank.Client(server.url, retries=-1)
    assert repr(client) == f"Client('{server.url}')"


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, None, UsageError), (401, None, UsageError), (404, "not_found", UsageError), (409, "locked", LockedError),
        (413, None, UsageError), (422, None, DataError), (429, "overloaded", ResourceError),
        (500, "internal", ArtifactError), (503, "offline", OfflineError), (503, "starting", ResourceError),
        (504, "deadline", DeadlineError), (507, "storage", ResourceError), (507, "read_only", ReadOnlyError),
        (412, None, DataError), (503, "deadline", DeadlineError), (503, None, ResourceError),
        (504, None, ResourceError),
        (502, None, polyrank.PolyrankError), (418, None, UsageError), (501, None, polyrank.PolyrankError),
    ],
)  # fmt: skip
def test_each_status_has_an_error(status: int, code: str | None, kind: type[Exception]) -> None:
    error = error_of(status, {"error": {"message": "what is wrong", "code": code}})
    assert (type(error), str(error)) == (kind, "what is wrong")
    assert str(status) in str(error_of(status, "<html>a proxy's</html>"))


@contextmanager
def answering(status: int, body: str, **headers: str) -> Iterator[str]:
    """The URL of another program's server, which answers every request in the same way."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in ({"content-length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def scripted(*answers: str | None) -> Iterator[tuple[str, list[tuple[str, str | None, Any]]]]:
    """The URL of a server with these answers in turn, and what it was sent: path, key and body.

    None: it reads the request, and closes the connection without an answer.
    """
    sent: list[tuple[str, str | None, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            sent.append((self.path, self.headers["authorization"], json.loads(body) if body else None))
            answer = answers[min(len(sent), len(answers)) - 1]
            if answer is None:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()  # and reset
                self.close_connection = True
                return
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer.encode())

        do_GET = do_POST  # noqa: N815  # names that the library calls

        def finish(self) -> None:
            with suppress(OSError, ValueError):
                super().finish()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", sent
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_request_that_may_have_arrived_is_not_repeated(is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have made its change, although its answer was lost."""

    async def add_later(url: str) -> None:
        async with polyrank.AsyncClient(url, retries=3) as client:
            await client.add(["thanks"])

    def add(url: str) -> None:
        with polyrank.Client(url, retries=3) as client:
            client.add(["thanks"])

    monkeypatch.setattr("polyrank.client.clients.time", SimpleNamespace(sleep=lambda _: None))
    with scripted(None) as (url, sent):
        with pytest.raises(OfflineError, match=f"^{url} does not answer"):
            asyncio.run(add_later(url)) if is_async else add(url)
        assert [path for path, *_ in sent] == ["/v1/candidates"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_catalogue_ends_where_the_server_says(is_async: bool) -> None:
    """A page of long candidates is short, and one whose candidates were removed meanwhile is empty."""
    pages, n = [], 0
    for size, following in ((3, "7"), (0, "9 &"), (1, "10"), (200, "210"), (2, None)):
        rows = [{"id": f"c{n + i}", "text": "hi", "metadata": {}} for i in range(size)]
        pages.append(json.dumps({"candidates": rows, "next": following, "n_candidates": 9}))
        n += size

    about = {"filter": "x = 1", "model": "m&n"}

    async def ids(url: str) -> list[str]:
        async with polyrank.AsyncClient(url) as client:
            return [one.id async for one in client.candidates("wifi down", **about)]

    with scripted(*pages) as (url, sent):
        if is_async:
            found = asyncio.run(ids(url))
        else:
            with polyrank.Client(url) as client:
                found = [one.id for one in client.candidates("wifi down", **about)]
    assert found == [f"c{i}" for i in range(n)]
    asked = "/v1/candidates?q=wifi%20down&filter=x%20%3D%201&model=m%26n"
    ends = ["", "&after=7", "&after=9%20%26", "&after=10", "&after=210"]
    assert [path for path, *_ in sent] == [f"{asked}{end}&limit=200" for end in ends]


def test_a_request_has_the_whole_context_and_the_given_key() -> None:
    context = Context(("hi", "my wifi is down"), ("a fact", "another", "a third"))
    for fields, settings, key in (
        ("#key=printed", {}, "Bearer printed"),
        ("#key=printed", {"api_key": "own"}, "Bearer own"),
        ("", {"api_key": "own"}, "Bearer own"),
        ("", {}, None),
        ("#key=", {}, None),
    ):
        with scripted('{"scores": [1, 2.5]}') as (url, sent), polyrank.Client(f"{url}/{fields}", **settings) as client:
            assert client.score(context, ["a", "b"], model="m") == [1.0, 2.5]
            assert client.score("hi", ["a", "b"]) == [1.0, 2.5]
        whole = {"context": ["hi", "my wifi is down"], "background": ["a fact", "another", "a third"], "model": "m"}
        one = {"context": ["hi"], "candidates": ["a", "b"]}
        assert sent == [("/v1/score", key, whole | {"candidates": ["a", "b"]}), ("/v1/score", key, one)]


def test_an_answer_has_every_field_of_the_servers() -> None:
    row = {"id": "a", "text": "restart it", "score": 1.5, "template": "{verb} it", "slots": {"verb": "restart"}}
    rows = [row | {"metadata": {"n": n}, "retrieval_score": first, "rerank_score": second}
            for n, (first, second) in enumerate([(0.5, 2.5), (0.25, None), (None, None)])]  # fmt: skip
    for abstained, exact, confidence in ((True, False, 0.5), (False, True, None), (True, None, None)):
        body = {"results": rows, "abstained": abstained, "exact": exact, "confidence": confidence, "n_scored": 7,
                "ways": ["scan", "graph"], "notes": ["a note", "b"], "request_id": "r"}  # fmt: skip
        with scripted(json.dumps(body)) as (url, _), polyrank.Client(url) as client:
            answer = client.respond("hi")
        stages = [{"retriever": 0.5, "reranker": 2.5}, {"retriever": 0.25}, {}]
        assert answer == Answer(
            tuple(
                Ranked("a", "restart it", 1.5, {"n": n}, own, "{verb} it", {"verb": "restart"})
                for n, own in enumerate(stages)
            ),
            confidence, abstained, exact, 7, ("scan", "graph"), "r", ("a note", "b"),
        )  # fmt: skip


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="this system has no Unix sockets")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # httpx leaves a refused socket open
def test_the_address_may_be_that_of_a_socket(tmp_path: Path) -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.headers['host']} {self.path} {self.headers['authorization']}")
            body = b'{"object": "list", "data": [{"id": "support"}]}'
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    async def names(url: str) -> list[str]:
        async with polyrank.AsyncClient(url) as client:
            return [one.id for one in await client.models()]

    path = tmp_path / "polyrank.sock"
    with socketserver.ThreadingUnixStreamServer(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        with polyrank.Client(f"unix:{path}#key=secret") as client:
            assert [one.id for one in client.models()] == asyncio.run(names(f"unix:{path}")) == ["support"]
        server.shutdown()
        thread.join()
    assert asked == ["localhost /v1/models Bearer secret", "localhost /v1/models None"]
    path.unlink()
    with (
        polyrank.Client(f"unix:{path}", retries=0) as client,
        pytest.raises(OfflineError, match=f"^unix:{path} does not"),
    ):
        client.models()
    with pytest.raises(UsageError, match="does not start with http://, https:// or unix:"):
        polyrank.Client("unix:")


@pytest.mark.parametrize("body", ["<html>hello</html>", "[]", "{}", "null", '{"data": [{"name": "x"}]}'])
def test_the_server_of_another_program_is_named(body: str) -> None:
    with (
        answering(200, body) as url,
        polyrank.Client(url) as client,
        pytest.raises(UsageError, match=rf"^{url} answers, but not as a polyrank server of this version; check"),
    ):
        client.models()


def test_a_model_that_is_being_opened_has_no_kind_yet() -> None:
    body = '{"object": "list", "data": [{"id": "support", "object": "model", "created": 1}]}'
    with answering(200, body) as url, polyrank.Client(url) as client:
        assert [(one.id, one.kind) for one in client.models()] == [("support", "")]


def test_a_redirect_names_the_url_to_use() -> None:
    with (
        answering(308, "", location="https://example.org/rank/v1/models") as url,
        polyrank.Client(url) as client,
        pytest.raises(UsageError, match=rf"^{url} redirects to https://example.org/rank; give that URL"),
    ):
        client.models()


def test_an_error_of_another_program_is_an_error() -> None:
    with (
        answering(404, '{"error": {"code": [404]}}') as url,
        polyrank.Client(url) as client,
        pytest.raises(UsageError, match="the server answered 404"),
    ):
        client.candidate("router")


@pytest.mark.parametrize(
    ("code", "retry_after", "pauses"),
    [
        ("starting", "7", [7.0]),
        ("starting", "0", [0.25]),
        ("starting", "86400", [60.0]),
        ("starting", "9" * 400, [60.0]),
        ("starting", "Fri, 31 Dec 9999 23:59:59 GMT", [60.0]),
        ("starting", "Wed, 21 Oct 2015 07:28:00 GMT", [0.25]),
        ("starting", "Fri, 31 Dec 9999 23:59:59 -0000", [0.25]),  # without a time zone
        ("starting", "Fri, 31 Dec 99999 23:59:59 GMT", [0.25]),
        ("starting", f"Fri, 31 Dec 2100 23:59:59 +{'9' * 20}", [0.25]),
        ("starting", "-7", [0.25]),
        ("starting", "soon", [0.25]),
        ("starting", "²", [0.25]),
        ("offline", "7", []),  # the first attempt may have made a part of the change, so a second may fail or miscount
    ],
)
def test_only_refused_requests_are_repeated(
    code: str, retry_after: str, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("polyrank.client.clients.time", SimpleNamespace(sleep=slept.append))
    body = f'{{"error": {{"message": "not now", "code": "{code}"}}}}'
    with (
        answering(503, body, **{"retry-after": retry_after}) as url,
        polyrank.Client(url, retries=1) as client,
        pytest.raises(polyrank.PolyrankError, match="not now"),
    ):
        client.models()
    assert slept == pauses


def test_pauses_double_up_to_ten_seconds_in_both_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def ask(url: str, retries: int) -> None:
        async with polyrank.AsyncClient(url, retries=retries) as client:
            await client.models()

    monkeypatch.setattr("polyrank.client.clients.time", SimpleNamespace(sleep=slept.append))
    own = SimpleNamespace(sleep=sleep, get_running_loop=asyncio.get_running_loop)  # servers in this process sleep too
    monkeypatch.setattr("polyrank.client.clients.asyncio", own)
    with socket.socket() as free, answering(429, "{}") as busy:
        free.bind(("127.0.0.1", 0))  # but not listening, so that connections are refused
        refusing = f"http://127.0.0.1:{free.getsockname()[1]}"
        for url, error, retries in ((busy, ResourceError, 8), (refusing, OfflineError, 2), (busy, ResourceError, 0)):
            pauses = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0][:retries]
            with polyrank.Client(url, retries=retries) as client, pytest.raises(error):
                client.models()
            assert slept == pauses
            with pytest.raises(error):
                asyncio.run(ask(url, retries))
            assert slept == pauses * 2
            slept.clear()


@pytest.mark.parametrize(("timeout_s", "longest"), [(0.5, 10.0), (15, 15)])
def test_the_longest_requested_pause_depends_on_the_timeout(
    timeout_s: float, longest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("polyrank.client.clients.time", SimpleNamespace(sleep=slept.append))
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=9), usegmt=True)
    with answering(429, "{}", **{"retry-after": "30"}) as busy, answering(429, "{}", **{"retry-after": soon}) as later:
        for url in (busy, later):
            with polyrank.Client(url, timeout_s=timeout_s, retries=1) as client, pytest.raises(ResourceError):
                client.models()
    assert slept[0] == longest
    assert 5 < slept[1] <= 9


def test_a_silent_server_is_reported_with_the_reason() -> None:
    async def ask(url: str) -> None:
        async with polyrank.AsyncClient(url, timeout_s=0.05) as client:
            await client.models()

    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(OfflineError, match=r"\(ReadTimeout\)"):
        asyncio.run(ask(f"http://127.0.0.1:{silent.getsockname()[1]}"))


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), 1e10, None])
def test_an_impossible_timeout_is_refused(timeout_s: Any) -> None:
    with pytest.raises(UsageError, match=rf"^timeout_s = {timeout_s!r} is outside 0 to 1e.09; give".replace("+", ".")):
        polyrank.Client("http://127.0.0.1:1", timeout_s=timeout_s)


@pytest.mark.parametrize("url", ["http://a:b", "http://[::1"])
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"^url = 'http://.* is not valid \(.*; give a URL such as http://127"):
        polyrank.AsyncClient(url)


def test_requests_wait_for_a_free_connection_however_long_it_takes() -> None:
    with polyrank.Client("http://127.0.0.1:1", timeout_s=3) as client:
        assert client._http.timeout == httpx.Timeout(3, pool=None)
    with polyrank.Client("http://127.0.0.1:1", timeout_s=1e9) as client:  # the longest
        assert client._http.timeout == httpx.Timeout(1e9, pool=None)


def test_the_address_may_have_a_path_before_those_of_the_server() -> None:
    for end in ("", "/", "/#key=k"):
        with (
            recording({"data": [], "scores": [1]}) as (url, requests),
            polyrank.Client(f"{url}/a/support{end}") as client,
        ):
            assert (client.url, client.models()) == (f"{url}/a/support", [])
            client.score("hi", ["yes"])
        assert [request[1] for request in requests] == ["/a/support/v1/models", "/a/support/v1/score"]
        assert {request[3] for request in requests} == {"Bearer k" if "key" in end else None}


@pytest.mark.parametrize("wrong", ["", " ", "a-key-of-some-length\n", "two keys", "a\r\nx-other: 1"])
def test_an_invalid_key_is_refused_and_not_shown(wrong: str) -> None:
    for kind in (polyrank.Client, polyrank.AsyncClient):
        with pytest.raises(UsageError, match=r"^api_key is empty, or contains a space or a line break; give one key"):
            kind("http://127.0.0.1:1", api_key=wrong)


def test_values_that_cannot_be_sent_are_data_errors() -> None:
    with polyrank.Client("http://127.0.0.1:1", retries=0) as client:
        for call in (
            lambda: client.candidate("\ud800"),
            lambda: list(client.candidates("\ud800")),
            lambda: list(client.candidates(filter='team = "\ud800"')),
        ):
            with pytest.raises(DataError, match=r"^a text contains the lone surrogate '.ud800'; use valid Unicode"):
                call()
        deep = reduce(lambda inner, _: [inner], range(100_000), list[Any]())
        for value in ({1}, float("inf"), object(), deep):
            with pytest.raises(DataError, match=r"^a value cannot be sent as JSON \(.*; use texts, finite numbers"):
                client.add([Candidate("a", "b", {"x": value})])


def test_asyncio_has_the_same(client: polyrank.Client, server: Running) -> None:
    async def ask() -> None:
        async with polyrank.AsyncClient(f"{server.url}/#key={server.key}") as other:
            answers = await asyncio.gather(*(other.respond(CONTEXT, k=2) for _ in range(3)))
            wanted = [reply.id for reply in client.respond(CONTEXT, k=2).ranked]
            assert [[reply.id for reply in answer.ranked] for answer in answers] == [wanted] * 3
            assert await other.explain(CONTEXT, text="thanks") == client.explain(CONTEXT, text="thanks")
            assert await other.score("hi", ["hello"]) == client.score("hi", ["hello"])
            assert await other.add([{"id": "x", "text": "async"}]) == ["x"]
            assert await other.candidate("x") == Candidate("x", "async")
            assert [one.id async for one in other.candidates()] == [one.id for one in client.candidates()]
            assert await other.remove(["x"]) == 1
            assert await other.candidate("x") is None
            assert await other.models() == client.models()
            assert await other.feedback(answers[0], "refused")
            assert await other.report() == client.report()
            with pytest.raises(UsageError, match="filter"):
                await other.respond("hello", filter="= =")
            assert repr(other) == f"AsyncClient('{server.url}')"

    asyncio.run(ask())


def test_both_clients_accept_the_same_arguments() -> None:
    def methods(kind: type) -> dict[str, list[tuple[Any, ...]]]:
        named = inspect.getmembers(kind, inspect.isfunction)
        return {
            name: [(one.name, one.kind, one.default) for one in inspect.signature(it).parameters.values()]
            for name, it in named
            if name[0] != "_"
        }

    blocking, awaited = methods(polyrank.Client), methods(polyrank.AsyncClient)
    assert blocking.pop("close") == awaited.pop("aclose")
    assert blocking == awaited


@pytest.mark.deep
def test_no_torch_is_loaded() -> None:
    code = "import sys, polyrank; polyrank.Client('http://127.0.0.1:1'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    assert Page((), None).next is None


def test_without_httpx_the_client_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    spec = importlib.util.find_spec("polyrank.client.clients")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(MissingExtraError, match=r'^httpx is .* pip install "polyrank\[client\]"'):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


@contextmanager
def recording(answer: dict[str, Any]) -> Iterator[tuple[str, list[tuple[str, str, Any, str | None]]]]:
    """A server that answers all requests alike; its address, and their methods, paths, bodies and keys."""
    requests: list[tuple[str, str, Any, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            requests.append((self.command, self.path, json.loads(body or b"null"), self.headers["authorization"]))
            sent = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_POST  # noqa: N815 - the name that http.server calls

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", requests
        server.shutdown()


def test_every_argument_is_sent_in_its_field() -> None:
    row = {"id": "a", "text": "t", "metadata": {}}
    answer = {
        "ranked": [], "confidence": None, "abstained": True, "scores": [1.0], "ids": ["a"], "removed": 1, **row,
        "candidates": [], "next": None, "recorded": True, "request_id": "r", "data": [],
    }  # fmt: skip
    context = Context(("hi", "my wifi is down"), ("Ann", "gold"))
    said = {"context": ["hi", "my wifi is down"], "background": ["Ann", "gold"]}
    new, old = [Candidate("a", "t", {"x": 1}), Candidate("b", "u")], [Candidate("c", "v", {"y": [2]})]
    rows = [{"id": one.id, "text": one.text, "metadata": one.metadata} for one in (*new, *old)]
    with recording(answer) as (url, requests), polyrank.Client(url) as client:
        with suppress(UsageError, KeyError):  # only the requests matter
            client.respond(context, 7, model="m", filter="x = 1", conversation="c", diverse=True)
        with suppress(UsageError, KeyError):
            client.respond(context, 3, allow_echo=True)
        with suppress(UsageError, KeyError):
            client.respond("hi", 2, any_language=True)
        with suppress(UsageError, KeyError):
            client.explain(context, candidate_id="a", model="m", filter="x = 1")
        client.score(context, ["t", "u"], model="m")
        client.add(new, replace=True, previous=old, model="m")
        client.add(old)
        client.remove(["a", "b"], model="m")
        client.remove(filter="x = 1")
        client.candidate("a/b c?", model="m&n")
        client.candidate("..")
        list(client.candidates("two words", filter='x = "&"', model="m"))
        client.feedback("r", "edited", candidate_id="a", final_text="new")
    assert [request[:3] for request in requests] == [
        ("POST", "/v1/respond", said | {"k": 7, "model": "m", "filter": "x = 1", "conversation": "c", "diverse": True}),
        ("POST", "/v1/respond", said | {"k": 3, "allow_echo": True}),
        ("POST", "/v1/respond", {"context": ["hi"], "k": 2, "any_language": True}),
        ("POST", "/v1/explain", said | {"id": "a", "model": "m", "filter": "x = 1"}),
        ("POST", "/v1/score", said | {"candidates": ["t", "u"], "model": "m"}),
        ("POST", "/v1/candidates", {"candidates": rows[:2], "replace": True, "previous": rows[2:], "model": "m"}),
        ("POST", "/v1/candidates", {"candidates": rows[2:], "replace": False}),
        ("POST", "/v1/candidates/remove", {"ids": ["a", "b"], "model": "m"}),
        ("POST", "/v1/candidates/remove", {"filter": "x = 1"}),
        ("GET", "/v1/candidates/a%2Fb%20c%3F?model=m%26n", None),
        ("GET", "/v1/candidates/%2E%2E", None),
        ("GET", "/v1/candidates?q=two%20words&filter=x%20%3D%20%22%26%22&model=m&limit=200", None),
        ("POST", "/v1/feedback", {"request_id": "r", "action": "edited", "candidate_id": "a", "final_text": "new"}),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "sent"),
    [({}, "Bearer printed"), ({"api_key": KEY}, f"Bearer {KEY}"), ({"api_key": "printed"}, "Bearer printed")],
)
def test_a_given_key_replaces_that_of_the_address(given: dict[str, str], sent: str) -> None:
    with recording({"data": []}) as (url, requests):
        with polyrank.Client(f"{url}/#key=printed", **given) as client:
            client.models()
        with polyrank.Client(url, **given) as client:
            client.models()
    assert [request[3] for request in requests] == [sent, f"Bearer {given['api_key']}" if given else None]
