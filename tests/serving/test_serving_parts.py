"""Parts of a server alone, with several of each: processes, parts of a list, keys, wrong entries, equal scores."""

import asyncio
import base64
import gc
import itertools
import json
import logging
import multiprocessing
import os
import re
import resource
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import astuple, replace
from http import HTTPStatus
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="polyrank[serve] is not installed")
import h11
import uvicorn
from pydantic import ValidationError
from starlette.requests import Request
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

import polyrank
from polyrank.answering.answers import Answer
from polyrank.config.serving import FeedbackSettings, LimitSettings, ServingSettings
from polyrank.errors import ArtifactError, LockedError, OfflineError, ReadOnlyError, ResourceError, UsageError
from polyrank.feedback import FeedbackStore, Outcome, Reply, Shown
from polyrank.feedback.records import MAX_CHARACTERS, MAX_REPLIES
from polyrank.index import open_index
from polyrank.ranking.relevance import Relevance
from polyrank.records import Candidate, Context, Ranked
from polyrank.serving import feedback_log, protocol
from polyrank.serving.app import _answer_error, create_app
from polyrank.serving.catalogue import Catalogue
from polyrank.serving.context import Server
from polyrank.serving.errors import HttpError, http_error, of_validation
from polyrank.serving.feedback_log import FeedbackLog
from polyrank.serving.guard import Guard, _Request
from polyrank.serving.jobs import FIRST_COST, TOKENS_TOGETHER, Job, OverloadedError
from polyrank.serving.keys import Keys
from polyrank.serving.log import _JsonFormatter, _ThreadHandler
from polyrank.serving.metrics import Metrics
from polyrank.serving.pool import (
    ANSWERS_S,
    ATTEMPTS,
    MAX_PAUSE_S,
    Computed,
    Pool,
    RefusedError,
    Worker,
    WorkerDiedError,
)
from polyrank.serving.protocol import PatientProtocol, Requests
from polyrank.serving.routes import health
from polyrank.serving.routes.answering import _shown
from polyrank.serving.routes.embedding import ModelSide
from polyrank.serving.routes.ranking import _ranked
from polyrank.serving.run import OWN_FILES, _bind, serve
from polyrank.serving.served import Served, _without_paths, replies_as_json, vectors_as_json
from polyrank.serving.strict import DEPTH, FIELDS, check_sizes
from polyrank.serving.tasks import EmbedTask, Responded, ScoredTexts, ScoreTask, ServedInfo, Started, Task
from polyrank.serving.wire import NewCandidate, RespondRequest
from polyrank.serving.worker import Setup, _compute, _open_models, _outcomes
from polyrank.storage.time_limit import limited_search, seconds_left, time_is_over
from serving_here import Thread, in_thread
from word_models import WordEncoder

# --- processes --------------------------------------------------------------------------------------------------------


def test_a_server_is_ready_while_one_of_its_processes_answers() -> None:
    async def ready(*ages: float) -> bool:
        """Whether it is; otherwise ``/ready`` names what it waits for."""
        pool, process = Pool(Setup({}, "cpu", "torch", 1), len(ages) or 1), cast(Any, multiprocessing.current_process())
        for number, age in enumerate(ages):
            pool._workers[number] = Worker(process, cast(Any, None), time.monotonic() - age)
        pool.n_ready = len(ages)
        server: Any = SimpleNamespace(draining=False, pool=pool)
        if pool.ready:
            assert (await health.ready(server)).status == "ready"
        else:
            what = "no model process answers" if ages else "the models are being opened"
            with pytest.raises(HttpError, match=f"{what}; try again in a moment"):
                await health.ready(server)
        assert not [one for one in pool._workers.values() if not one.asked]  # each shows whether it answers
        return pool.ready

    idle, busy, hangs = -np.inf, ANSWERS_S / 2, 2 * ANSWERS_S
    for ages, wanted in (
        ((idle,), True), ((busy,), True), ((hangs,), False), ((hangs, idle), True), ((busy, hangs), True),
        ((hangs, hangs), False), ((hangs, idle, hangs), True), ((), False),
    ):  # fmt: skip
        assert asyncio.run(ready(*ages)) is wanted, ages


def test_a_job_whose_processes_die_fails_at_the_third() -> None:
    async def fail() -> None:
        pool = Pool(Setup({}, "cpu", "torch", 1))
        computing = asyncio.create_task(pool.compute("m", [EmbedTask([])], [1]))
        await asyncio.sleep(0)
        for _ in range(ATTEMPTS):
            assert len(pool.waiting) == 1
            own, other = Pipe()
            other.close()
            worker = Worker(cast(Any, Thread()), own)
            await pool._feed(worker)
            worker.kill()
        assert len(pool.waiting) == 0
        with pytest.raises(WorkerDiedError):
            await computing

    asyncio.run(fail())


def test_the_pauses_before_a_process_is_started_again_double_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each end of a process and each start that failed is counted."""
    pauses: list[float] = []
    ends: list[int] = []
    own, other = Pipe()
    other.send(Started({}))
    other.close()

    def fail(_: str) -> None:
        raise OSError("no process can be started")

    async def keep_alive() -> None:
        enough = asyncio.Event()

        async def pause(seconds: float) -> None:
            ends.append(len(counted))
            pauses.append(seconds)
            if len(pauses) == 11:
                enough.set()
                await asyncio.Event().wait()

        counted: list[None] = []
        pool = Pool(
            Setup({}, "cpu", "torch", 1), started=Worker(cast(Any, Thread()), own),
            on_batch=lambda batch, seconds: counted.append(None) if batch is None else None,
        )  # fmt: skip
        monkeypatch.setattr(multiprocessing, "get_context", fail)
        monkeypatch.setattr(asyncio, "sleep", pause)
        pool.start()
        await pool.until_ready()
        computing = asyncio.create_task(pool.compute("m", [EmbedTask([])], [1]))
        await asyncio.wait_for(enough.wait(), 60)
        computing.cancel()
        await pool.close()

    asyncio.run(keep_alive())
    assert pauses == pytest.approx([0.1 * 2**n for n in range(9)] + [MAX_PAUSE_S] * 2)
    assert ends == [n + 2 for n in range(11)]


def test_a_batch_is_measured_and_reports_a_model_that_replaced_another(
    tiny_encoders: dict[str, Path], tmp_path: Path
) -> None:
    """Whichever of its requests noticed the replacement."""
    path = tmp_path / "model"
    shutil.copytree(tiny_encoders["bi"], path)
    setup = Setup({"m": str(path), "again": str(path)}, "cpu", "torch", 1)
    task = ScoreTask(Context(("my wifi is down",)), ["restart it", "thanks"])

    async def compute(worker: Worker) -> tuple[list[str], float]:
        pool = Pool(setup, started=worker)
        pool.start()
        await pool.until_ready()
        path.rename(tmp_path / "old")
        shutil.copytree(tiny_encoders["poly"], path)
        await asyncio.gather(*(pool.compute("m", [task], [20]) for _ in range(3)))
        cost = pool.waiting.seconds(Job("m", task, 1, 0.0, asyncio.get_running_loop().create_future()))
        await pool.close()
        return [one.fingerprint for one in pool.info.values()], cost

    with in_thread(setup) as worker:
        fingerprints, cost = asyncio.run(compute(worker))
    assert fingerprints == [polyrank.load(path).fingerprint] * 2
    assert cost > 2 * FIRST_COST  # it took some milliseconds


def test_parts_of_a_refused_request_are_not_computed() -> None:
    async def left() -> list[list[Job]]:
        pool = Pool(Setup({}, "cpu", "torch", 1))
        tasks = [EmbedTask([("document", text)]) for text in "abc"]
        computing = asyncio.create_task(pool.compute("m", tasks, [TOKENS_TOGETHER] * 3))
        other = asyncio.create_task(pool.compute("m", tasks[:1], [TOKENS_TOGETHER]))
        await asyncio.sleep(0)
        (first,) = pool.waiting.next_batch()
        first.result.set_exception(RefusedError("UsageError", "no"))
        with pytest.raises(RefusedError, match="no"):
            await computing
        batches = [pool.waiting.next_batch() for _ in range(2)]
        batches[0][0].result.set_result("done")
        assert (await other).values == ["done"]
        return batches

    assert [len(batch) for batch in asyncio.run(left())] == [1, 0]


def test_times_are_from_the_first_part_that_was_accepted_or_begun() -> None:
    """In milliseconds: waiting for a process, and computing."""

    async def computed() -> Computed[Any]:
        pool = Pool(Setup({}, "cpu", "torch", 1))
        tasks = [EmbedTask([("document", text)]) for text in "abc"]
        computing = asyncio.create_task(pool.compute("m", tasks, [1] * 3))
        await asyncio.sleep(0)
        now = time.monotonic()
        for job, accepted, started in zip(
            pool.waiting.next_batch(), (100.0, 99.5, 100.0), (3.0, 5.0, 4.0), strict=True
        ):
            job.accepted, job.started = now - accepted, now - started
            job.result.set_result(accepted)
        return await computing

    found = asyncio.run(computed())
    assert (found.values, found.waiting_ms) == ([100.0, 99.5, 100.0], pytest.approx(95_000, abs=1e-3))
    assert 5_000 <= found.computing_ms < 65_000


def test_a_request_is_accepted_if_the_processes_together_can_answer_in_time() -> None:
    """Before its body is read, and as a whole."""
    seconds = int(1 / FIRST_COST)  # tokens of a second of one process

    async def refused(waiting_s: int, own_s: int, n_ready: int) -> list[bool]:
        pool = Pool(Setup({}, "cpu", "torch", 1), 3, timeout_s=10.0)
        pool.n_ready = n_ready
        computing = [asyncio.create_task(pool.compute("m", [EmbedTask([])], [waiting_s * seconds]))]
        await asyncio.sleep(0)
        found = []
        try:
            pool.check_capacity()
            found.append(False)
        except OverloadedError:
            found.append(True)
        computing.append(asyncio.create_task(pool.compute("m", [EmbedTask([])], [own_s * seconds])))
        await asyncio.sleep(0)
        found.append(computing[1].done() and isinstance(computing[1].exception(), OverloadedError))
        for task in computing:
            task.cancel()
        return found

    for waiting_s, own_s, n_ready, wanted in (
        (7, 0, 1, [False, False]), (9, 0, 1, [True, True]), (9, 0, 2, [False, False]), (7, 2, 1, [False, True]),
        (7, 2, 2, [False, False]), (15, 0, 2, [False, False]), (17, 0, 2, [True, True]), (15, 2, 2, [False, True]),
        (9, 0, 0, [True, True]),
    ):  # fmt: skip
        assert asyncio.run(refused(waiting_s, own_s, n_ready)) == wanted, (waiting_s, own_s, n_ready)


def test_requests_end_at_a_limit_of_tokens_in_all_their_parts() -> None:
    async def compute(name: str, tasks: Sequence[Task[Any]], tokens: Sequence[int]) -> str:
        return f"{name} {len(tasks)} {sum(tokens)}"

    pool = SimpleNamespace(compute=compute)
    server: Any = SimpleNamespace(check_ready=lambda: None, limits=LimitSettings(tokens=1_200), pool=pool)
    tasks: list[Task[Any]] = [EmbedTask([])] * 3
    assert asyncio.run(Server.compute(server, "m", tasks, [300, 400, 500])) == "m 3 1200"  # type: ignore[comparison-overlap]
    with pytest.raises(HttpError, match="the texts have about 1,201 tokens, the limit is 1,200; send fewer") as refused:
        asyncio.run(Server.compute(server, "m", tasks, [301, 400, 500]))
    assert (refused.value.status, refused.value.code) == (HTTPStatus.UNPROCESSABLE_ENTITY, "too_many")


def test_a_task_that_fails_fails_alone(tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any place in its batch; the others get their results, in their order."""
    served = {"m": Served("m", f"untuned:{tiny_backbone}")}
    texts = ["hello hi", "pay the bill", "restart the router"]
    good = [ScoreTask(Context((text,)), texts) for text in texts]
    alone = [served["m"].score([task])[0].scores for task in good]
    for place in range(4):
        tasks = [*good[:place], ScoreTask(Context(("\ud800",)), texts), *good[place:]]
        outcomes = _outcomes(served, "m", tasks)
        assert [bool(outcome.error) for outcome in outcomes] == [n == place for n in range(4)]
        assert "surrogate" in outcomes[place].message
        scores = [outcome.result.scores for outcome in outcomes if not outcome.error]
        np.testing.assert_allclose(scores, alone, atol=1e-5)
    computed: list[int] = []

    def fails(tasks: Sequence[Task[Any]]) -> Any:
        computed.append(len(tasks))
        raise ArtifactError("a row is damaged")

    monkeypatch.setattr(served["m"], "compute", fails)
    assert [outcome.error for outcome in _outcomes(served, "m", good)] == ["ArtifactError"] * 3
    assert computed == [3, 1, 1, 1]  # never again, because nothing was replaced


def test_the_next_request_is_computed_by_a_model_that_replaced_another(
    tiny_encoders: dict[str, Path], tmp_path: Path
) -> None:
    path, task = tmp_path / "model", ScoreTask(Context(("my wifi is down",)), ["restart it", "thanks"])
    shutil.copytree(tiny_encoders["bi"], path)
    one = Served("a", str(path), "cpu")
    served = {"a": one, "b": one}
    (before,) = _compute(served, "a", [task])
    path.rename(tmp_path / "old")
    shutil.copytree(tiny_encoders["poly"], path)
    for name in ("b", "a"):  # two names of one folder
        (after,) = _compute(served, name, [task])
        assert after.fingerprint == polyrank.load(path).fingerprint != before.fingerprint


def test_a_folder_of_two_names_is_opened_once(tiny_encoders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    open_ = Served.__init__

    def counted(self: Served, name: str, path: str, *options: Any) -> None:
        opened.append(path)
        open_(self, name, path, *options)

    monkeypatch.setattr(Served, "__init__", counted)
    bi, poly = str(tiny_encoders["bi"]), str(tiny_encoders["poly"])
    served = _open_models(Setup({"a": bi, "b": poly, "c": bi}, "cpu", "torch", None))
    assert sorted(opened) == sorted([bi, poly])
    assert served["a"] is served["c"] is not served["b"]


def test_the_parts_of_a_list_are_of_one_model_or_computed_together() -> None:
    """A model may be replaced between the parts of a list, whose scores would not compare."""
    tokens = [1_500] * 3

    def scored(*rounds: Sequence[str]) -> tuple[list[Sequence[str]], list[ScoredTexts]]:
        sent: list[Sequence[str]] = []

        async def compute(_: str, tasks: Sequence[ScoreTask], n: Sequence[int]) -> Any:
            models = rounds[len(sent) > 0]
            sent.append([" ".join(task.texts) for task in tasks])
            assert list(n) == [1_500 * len(task.texts) for task in tasks]
            values = [
                ScoredTexts([1.0] * len(task.texts), 1, False, one) for task, one in zip(tasks, models, strict=True)
            ]
            return SimpleNamespace(values=values)

        server: Any = SimpleNamespace(pool=SimpleNamespace(info={"m": SimpleNamespace(by_list=False)}), compute=compute)
        task = lambda part: ScoreTask(Context(("hi",)), part)  # noqa: E731
        values = asyncio.run(Server.compute_texts(server, "m", ["a", "b", "c"], tokens, task))
        return sent, values

    parts, whole = ["a", "b", "c"], ["a b c"]
    assert scored("xxx")[0] == [parts]
    for models in ("xxy", "xyx", "yxx", "xyz"):
        sent, values = scored(models, "y")
        assert sent == [parts, whole]
        assert [(value.fingerprint, len(value.scores)) for value in values] == [("y", 3)]


def test_work_is_counted_by_operation() -> None:
    metrics, loop = Metrics(), asyncio.new_event_loop()

    def job(task: Task[Any], n: int) -> Job:
        return Job("m", task, n, 0.0, loop.create_future())

    score, embed = ScoreTask(Context(("hi",)), []), EmbedTask([])
    metrics.computed([job(score, 16), job(score, 30), job(score, 4)], 0.5)
    metrics.computed([job(score, 100)], 0.25)
    metrics.computed([job(embed, 7), job(embed, 8)], 2.0)
    for _ in range(2):
        metrics.computed(None, 0.0)
    loop.close()
    lines = dict(line.rpartition(" ")[::2] for line in metrics.text().decode().splitlines() if line[0] != "#")
    for operation, tokens, seconds, batches, jobs in (("score", 150, 0.75, 2, 4), ("embed", 15, 2, 1, 2)):
        for name, value in (("tokens_total", tokens), ("model_seconds_total", seconds),
                            ("batch_jobs_count", batches), ("batch_jobs_sum", jobs)):  # fmt: skip
            assert float(lines[f'polyrank_{name}{{operation="{operation}"}}']) == value
    assert float(lines["polyrank_worker_deaths_total"]) == 2


def test_a_search_ends_at_its_own_limit_and_when_its_client_leaves() -> None:
    """Otherwise the searches of clients that have left would keep others from the few threads."""
    _, server = create_app({}, ServingSettings(limits=LimitSettings(timeout_s=30.0, filter_timeout_s=300.0)))
    begun, left, found = threading.Event(), threading.Event(), list[Any]()

    def search() -> None:
        with limited_search():
            found.append(seconds_left())
            begun.set()
            left.wait(60)
            found.append(time_is_over())

    async def leave() -> None:
        searching = asyncio.create_task(server.run_search(search))
        while not begun.is_set():
            await asyncio.sleep(0)
        searching.cancel()
        await asyncio.gather(searching, return_exceptions=True)
        left.set()

    asyncio.run(leave())
    server.searching.shutdown()
    assert 200 < found[0] <= 300
    assert found[1]


def test_an_index_has_one_writer_under_all_its_names(tmp_path: Path) -> None:
    polyrank.build_index(tmp_path / "index", WordEncoder("words"), ["pay the bill"])
    (tmp_path / "link").symlink_to("index")
    paths = {
        "a": tmp_path / "index",
        "b": tmp_path / "index",
        "c": tmp_path / "link",
        "d": tmp_path / "x" / ".." / "index",
    }
    _, server = create_app({name: str(path) for name, path in paths.items()}, ServingSettings())
    server.pool.info = {name: replace(info(8), index=str(path)) for name, path in paths.items()}
    for name in paths:
        assert server.catalogue(name).remove(["none"]) == (0, 1)  # it is locked for a while
    for catalogue in server.catalogues.values():
        catalogue.close()


@pytest.mark.parametrize(("path", "route"), [("/v1/score", "/v1/score"), ("/v1/none", "none")])
def test_a_request_that_is_refused_early_counts_for_its_route(
    path: str, route: str, caplog: pytest.LogCaptureFixture
) -> None:
    answered: list[tuple[str, int]] = []

    def refuse() -> None:
        raise OverloadedError(2.0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise HttpError(404, "no such route")

    guard = Guard(
        app, keys=Keys(), limits=LimitSettings(), check_capacity=refuse, computing=frozenset({"/v1/score"}),
        on_answer=lambda route, status, seconds: answered.append((route, status)), changes=lambda method, path: False,
    )  # fmt: skip

    async def receive() -> dict[str, Any]:
        return messages.pop() if messages else await asyncio.Future()

    async def send(message: Any) -> None:
        pass

    messages: list[Any] = [{"type": "http.request", "body": b"", "more_body": False}]
    scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"host", b"localhost")]}
    with caplog.at_level("INFO", "polyrank.access"):
        asyncio.run(guard(scope, receive, send))
    assert answered == [(route, 429 if path == route else 404)]
    assert json.loads(caplog.messages[-1])["route"] == route


# --- connections and keys ---------------------------------------------------------------------------------------------


def test_chunks_are_counted_for_each_request_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "CHUNKS", 100)
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    connection = Requests(h11.SERVER, 64 * 1024)

    def read(n_chunks: int) -> int:
        """The number of chunks that are accepted of a request."""
        connection.receive_data(head + b"1\r\nx\r\n" * n_chunks + b"0\r\n\r\n")
        n = 0
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            n += isinstance(event, h11.Data)
        connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
        connection.send(h11.EndOfMessage())
        connection.start_next_cycle()
        return n

    assert [read(n) for n in (100, 3, 70, 1, 100)] == [100, 3, 70, 1, 100]
    with pytest.raises(h11.RemoteProtocolError, match="more than 100 chunks of a few bytes; send larger ones"):
        read(102)  # of a byte each, of which 64 allow one more


def test_a_client_that_reads_again_keeps_its_connection() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        pass

    async def timers() -> list[bool]:
        connection = PatientProtocol(uvicorn.Config(app, log_config=None), ServerState(), {})
        connection.transport = asyncio.Transport()
        connection.flow = FlowControl(connection.transport)
        timers = []
        for _ in range(2):
            connection.pause_writing()
            assert connection._reading is not None
            timers.append(connection._reading)
            assert not timers[-1].cancelled()
            connection.resume_writing()
        return [timer.cancelled() for timer in timers]

    assert asyncio.run(timers()) == [True, True]


def test_an_id_of_a_client_is_kept_if_it_is_short_and_plain() -> None:
    """It is repeated in a header and in the log; feedback has an id of the server."""
    trace = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    for wanted, kept in (
        (b"x" * 128, True), (b"x" * 129, False), (b"a/b:c+d=e@f.g-h_9", True), (b"x", True), (b"", False),
        (b"a b", False), (b"a\n", False), ("é".encode(), False), (b'a"', False),
    ):  # fmt: skip
        for sent, known in ((trace, True), (trace.upper(), False), (trace[1:], False), (trace + b"0", False)):
            scope: dict[str, Any] = {"headers": [(b"x-request-id", wanted), (b"traceparent", sent)]}
            request = _Request(scope, cast(Any, None), cast(Any, None))
            assert (request.id.encode() == wanted) is kept
            assert request.trace == (sent if known else b"")
            assert scope["state"]["request_id"] == request.id
            assert re.fullmatch("[0-9a-f]{24}", scope["state"]["answer_id"])
            assert (scope["state"]["answer_id"] == request.id) is not kept


def test_a_key_of_any_characters_is_sent_in_either_encoding(tmp_path: Path) -> None:
    secrets = ["é" * 20, "naïve-pass-ÿ-phrase", "plain-key-of-length", ":a-key:with-colons::"]
    (tmp_path / "keys").write_text("".join(f"k{n} write {secret}\n" for n, secret in enumerate(secrets)), "utf-8")
    keys = Keys.read(tmp_path / "keys")
    for n, secret in enumerate(secrets):
        for encoding in ("utf-8", "latin-1"):
            sent = [b"Bearer " + secret.encode(encoding)]
            sent += [b"Basic " + base64.b64encode(f"{user}:{secret}".encode(encoding)) for user in ("", "me")]
            for key in map(keys.admit, sent):
                assert key is not None
                assert key.name == f"k{n}"
        assert keys.admit(b"Bearer " + secret[:-1].encode()) is None


@pytest.mark.parametrize("host", ["127..0.1", "a" * 64 + ".example", "nowhere.invalid"])
def test_a_name_that_is_not_one_of_a_host_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match=rf"^cannot listen at {host}:0 \(.*\); choose another `host` or `port`$"):
        _bind(host, 0)


def test_a_socket_is_for_its_user_and_group(tmp_path: Path) -> None:
    for _ in range(2):  # the second replaces the first, at which nobody listens
        with _bind(f"unix:{tmp_path / 'socket'}", 0):
            assert stat.S_IMODE((tmp_path / "socket").stat().st_mode) == 0o660
    with _bind(f"unix:{tmp_path / 'socket'}", 0) as bound:
        bound.listen()
        with pytest.raises(UsageError, match=f"another process listens at {tmp_path / 'socket'}; stop it, or choose"):
            _bind(f"unix:{tmp_path / 'socket'}", 0)
        assert (tmp_path / "socket").is_socket()  # still the first's


@pytest.mark.parametrize(
    ("host", "printed", "most", "n"), [("127.0.0.1", "127.0.0.1", 1_000, 200), ("::1", "[::1]", 100, 100 - OWN_FILES)]
)
def test_a_server_prints_its_url_and_leaves_files_for_itself(
    host: str, printed: str, most: int, n: int, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit on open files, it closes idle connections instead of failing to open its own files."""
    try:
        _bind(host, 0).close()
    except UsageError:
        pytest.skip("this machine has no such address")
    models, addresses = {"m": f"untuned:{tiny_backbone}"}, list[str]()
    settings = ServingSettings(host=host, port=0, device="cpu", limits=LimitSettings(connections=200), drain_s=0.0)
    monkeypatch.setattr(PatientProtocol, "head_s", 0.0, raising=False)
    monkeypatch.setattr(PatientProtocol, "max_connections", 0, raising=False)
    monkeypatch.setattr(gc, "collect", lambda: 0)  # slow with the tests' imports
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10, most))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    with in_thread(Setup.of(models, settings)) as worker:
        monkeypatch.setattr(Worker, "start", lambda setup: worker)
        try:
            serve(
                models, settings, listening=lambda address, secret: addresses.append(address),
                ready=lambda server: os.kill(os.getpid(), signal.SIGINT),
            )  # fmt: skip
        finally:
            gc.unfreeze()
    assert PatientProtocol.max_connections == n
    (address,) = addresses
    assert re.fullmatch(rf"http://{re.escape(printed)}:\d+", address)


# --- bodies and errors ------------------------------------------------------------------------------------------------


def test_a_body_at_every_limit_is_accepted_and_one_above_is_named() -> None:
    limits = LimitSettings(items=6, turns=4, characters=50, values=12)

    def nested(depth: int) -> Any:
        return [nested(depth - 1)] if depth else 1

    for fits, larger, said in (
        ({"context": ["a"] * 4}, {"context": ["a"] * 5}, "context has 5 turns, the limit is 4; send the last ones"),
        ({"x": [{"background": ["a"] * 4}]}, {"x": [{"background": ["a"] * 5}]}, r"x\[0\]\.background has 5 turns"),
        ({"candidates": ["a"] * 6}, {"candidates": ["a"] * 7}, "candidates has 7 entries, the limit is 6; send fewer"),
        ({"context": "a" * 50}, {"context": "a" * 51}, "context has 51 characters, the limit is 50; send a shorter"),
        ({"a": [1] * 5, "b": [1] * 5}, {"a": [1] * 5, "b": [1] * 6}, "the body has 13 JSON values, the limit is 12"),
        ({"a": nested(DEPTH)}, {"a": nested(DEPTH + 1)}, "is nested deeper than 8 levels; flatten it"),
        ({"metadata": {"a": "x" * 99, "b": nested(99)}}, {"data": {"a": "x" * 99}}, r"data\.a has 99 characters"),
        ({"x": [{"metadata": {"a": "x" * 99}}]}, {"x": [{"text": "x" * 99}]}, r"x\[0\]\.text has 99 characters"),
    ):  # fmt: skip
        check_sizes(fits, limits)
        with pytest.raises(HttpError, match=said):
            check_sizes(larger, limits)
    check_sizes({f"f{n}": 1 for n in range(FIELDS)}, LimitSettings())
    with pytest.raises(HttpError, match="the body has 65 fields, the limit is 64"):
        check_sizes({f"f{n}": 1 for n in range(FIELDS + 1)}, LimitSettings())


def test_a_field_at_its_limit_is_accepted_and_one_beyond_it_is_not() -> None:
    for kind, given, name, fitting, wrong in (
        (RespondRequest, {"context": "hi"}, "k", (1, 1_000_000), (0, 1_000_001)),
        (RespondRequest, {"context": "hi"}, "conversation", ("", "c" * 512), ("c" * 513,)),
        (RespondRequest, {"context": "hi"}, "filter", (None, "f"), ("",)),
        (RespondRequest, {}, "context", ("", [""]), ([],)),
        (NewCandidate, {"text": "hi"}, "id", (None, "i", "i" * 512), ("", "i" * 513)),
        (NewCandidate, {}, "text", ("t",), ("",)),
    ):  # fmt: skip
        for value in fitting:
            assert getattr(kind.model_validate(given | {name: value}), name) == value
        for value in wrong:
            with pytest.raises(ValidationError, match=name):
                kind.model_validate(given | {name: value})


def test_the_first_of_several_wrong_fields_is_the_parameter() -> None:
    details = [{"loc": ("body", name, n), "msg": f"wrong {n}", "type": "x"} for n, name in enumerate("abcd")]
    error = of_validation(details)
    assert (error.status, error.param) == (HTTPStatus.UNPROCESSABLE_ENTITY, "a[0]")
    assert error.message == "a[0]: wrong 0; b[1]: wrong 1; c[2]: wrong 2"
    for loc, field in ((("x" * 300,), "x" * 100), (("a", 2, "x" * 300), f"a[2].{'x' * 100}")):
        assert of_validation([{"loc": ("body", *loc), "msg": "wrong", "type": "x"}]).param == field


def test_an_error_has_the_words_of_its_route_and_of_http() -> None:
    for status, kind in ((422, "Validation"), (429, "Overloaded"), (500, "Backend"), (503, "Unhealthy")):
        for path in ("/embed", "/", "/similarity"):
            assert HttpError(status, "x").body(path) == {"error": "x", "error_type": kind}
    message = http_error(UsageError("use `replace=True`, or `any_language=True`, or k=True")).message
    assert message == 'use `"replace": true`, or `"any_language": true`, or k=True'


def test_what_the_operator_must_know_of_a_refusal_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Answers do not name files of the server."""
    scope: Any = {"type": "http", "path": "/v1/candidates", "headers": [], "state": {"request_id": "7"}}
    for error, status, logged in (
        (ResourceError("/disk is full"), 507, True), (ReadOnlyError("/disk"), 507, True),
        (OfflineError("db at http://db"), 503, True), (ArtifactError("/index is damaged"), 500, True),
        (RefusedError("ArtifactError", "/index is damaged"), 500, True), (LockedError("/index"), 409, False),
        (UsageError("k is 0"), 400, False), (TimeoutError(), 503, False),
    ):  # fmt: skip
        caplog.clear()
        answer = asyncio.run(_answer_error(Request(scope), error))
        assert answer.status_code == status
        assert caplog.messages == ([f"request 7: {error}"] if logged else []), error
        assert not logged or str(error).encode() not in answer.body


def test_an_unexpected_error_is_logged_by_its_name() -> None:
    """Its message may have a user's text; so may its traceback, which is not printed."""
    try:
        raise ValueError("my wifi is down")
    except ValueError:
        record = logging.LogRecord("uvicorn.error", logging.ERROR, __file__, 1, "failed: %s", ("m",), sys.exc_info())
    row = json.loads(_JsonFormatter().format(record))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row.pop("time"))
    assert row == {"level": "error", "message": "failed: m", "error": "ValueError"}


def test_a_log_that_nobody_reads_drops_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server would stop otherwise. The first lines are printed when the reader continues."""
    unread, written = os.pipe()
    monkeypatch.setattr(sys, "stderr", os.fdopen(written, "w"))
    monkeypatch.setattr("polyrank.serving.log.MAX_LINES", 3)
    handler = _ThreadHandler()
    lines = ["x" * 200_000, *(f"line {n}" for n in range(9))]  # a pipe holds less than the first

    def log_all() -> None:
        for line in lines:
            handler.emit(logging.LogRecord("polyrank", logging.INFO, __file__, 1, line, (), None))

    logging_ = threading.Thread(target=log_all, daemon=True)
    logging_.start()
    logging_.join(30)
    assert not logging_.is_alive()

    def close_when_written() -> None:
        handler._lines.join()
        sys.stderr.close()

    threading.Thread(target=close_when_written, daemon=True).start()
    found = b""
    while more := os.read(unread, 100_000):
        found += more
    n = found.count(b"\n")
    assert 3 <= n <= 4  # the first may have been dequeued meanwhile
    assert found.decode() == "".join(f"{line}\n" for line in lines[:n])
    os.close(unread)


def test_errors_that_pass_by_say_when_to_try_again() -> None:
    kinds = (ResourceError, LockedError, OfflineError, ReadOnlyError, UsageError)
    assert [http_error(kind("x")).headers.get("retry-after") for kind in kinds] == ["5", "5", "5", None, None]
    for seconds, shown in ((0.0, "1"), (0.2, "1"), (1.0, "1"), (1.01, "2"), (7.5, "8"), (86_399.5, "86400")):
        assert HttpError(429, "x", retry_after=seconds).headers["retry-after"] == shown


def test_an_explanation_names_no_folder_of_the_server() -> None:
    def part(**parts: Any) -> dict[str, Any]:
        return {"score": 1.0, "parts": parts}

    inner = part(**{"1 C:\\models\\first": part(), "bm25": part()})
    whole = part(**{"1 /srv/models/second": inner, "2 shipped:rerank": part(), "/srv/third": part()})
    assert _without_paths(whole) == part(**{
        "1 second": part(**{"1 first": part(), "bm25": part()}), "2 shipped:rerank": part(), "third": part(),
    })  # fmt: skip


def test_replies_and_vectors_become_json_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"retriever": 1.5, "reranker": 0.25}
    ranked = [
        Ranked("a", "Hi Ann", 0.5, {"n": 2**70, "é": ["ü"]}, both, "Hi {customer}", {"customer": "Ann"}),
        Ranked("b", "Is it {order}?", -1.0, {}, {"reranker": 2.0}, "", {"order": None}),
    ]
    rows = replies_as_json(ranked)
    assert [json.loads(row) for row in rows] == [
        {"id": "a", "text": "Hi Ann", "template": "Hi {customer}", "slots": {"customer": "Ann"}, "score": 0.5,
         "retrieval_score": 1.5, "rerank_score": 0.25, "metadata": {"n": 2**70, "é": ["ü"]}},
        {"id": "b", "text": "Is it {order}?", "template": "Is it {order}?", "slots": {"order": None}, "score": -1.0,
         "retrieval_score": None, "rerank_score": 2.0, "metadata": {}},
    ]  # fmt: skip
    n = sum(map(len, rows))
    for limit in (n, n - 1):
        monkeypatch.setattr("polyrank.serving.served.ANSWER_BYTES", limit)
        if limit == n:
            assert replies_as_json(ranked) == rows
        else:
            message = f"the 2 replies have {n:,} bytes, the limit is {n - 1:,}; send a smaller k"
            with pytest.raises(UsageError, match=message):
                replies_as_json(ranked)
    vectors = np.array([[3, 4], [0, 0], [0, -2]], np.float32)
    assert [json.loads(row) for row in vectors_as_json(vectors, "float")] == vectors.tolist()
    unit = np.array([[0.6, 0.8], [0, 0], [0, -1]], np.float32)  # a vector of zeros has no direction
    for form in ("unit-base64", "base64"):
        packed = [np.frombuffer(base64.b64decode(json.loads(row)), "<f4") for row in vectors_as_json(vectors, form)]
        np.testing.assert_allclose(packed, unit if form == "unit-base64" else vectors, atol=1e-7)


def test_a_model_that_moved_with_its_index_is_watched_and_keeps_its_options(
    tiny_encoders: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(tiny_encoders["bi"], tmp_path / "a" / "model")
    polyrank.build_index(tmp_path / "a" / "index", str(tmp_path / "a" / "model"), ["pay the bill"])
    (tmp_path / "a").rename(tmp_path / "b")
    served = Served("m", str(tmp_path / "b" / "index"), "cpu")
    assert served._folders[1:] == [str(tmp_path / "b" / "model")]
    assert served.reopened() is None
    shutil.copytree(tmp_path / "b" / "model", tmp_path / "new")
    shutil.rmtree(tmp_path / "b" / "model")
    (tmp_path / "new").rename(tmp_path / "b" / "model")
    again = served.reopened()
    assert again is not None
    assert again._options == ("cpu", "torch")


def info(dimension: int | None, *, reranks: bool = False) -> ServedInfo:
    return ServedInfo("model", "torch", "fp32", "encoder", "f", dimension, 32, 16, reranks=reranks)


def test_a_name_may_end_like_a_side() -> None:
    """Names of models of Ollama have a colon, and a side follows another one."""
    _, server = create_app(dict.fromkeys(("rank", "m", "bge:query", "nomic:v1"), "path"), ServingSettings())
    server.pool.info = {"rank": info(None, reranks=True)} | {name: info(8) for name in ("m", "bge:query", "nomic:v1")}
    for model, kind, side in (
        (None, None, ("m", "document", False)), ("m", None, ("m", "document", False)),
        ("m:latest", None, ("m", "document", False)), ("m", "query", ("m", "query", True)),
        ("m:query", None, ("m", "query", True)), ("m:candidate", "document", ("m", "document", True)),
        ("bge:query", None, ("bge:query", "document", False)), ("bge:query:query", None, ("bge:query", "query", True)),
        ("nomic:v1", "Search_Query", ("nomic:v1", "query", True)), (":query", None, ("m", "query", True)),
        ("nomic:v1:candidate", None, ("nomic:v1", "document", True)),
    ):  # fmt: skip
        assert astuple(ModelSide.of(server, model, kind)) == side, model
    for model, kind, status in (
        ("m:query", "document", 422), ("m:candidate", "query", 422), ("m:v1", None, 404), ("bge", None, 404),
        ("rank", None, 400), ("rank:query", None, 400),
    ):  # fmt: skip
        with pytest.raises(HttpError) as refused:
            ModelSide.of(server, model, kind)
        assert (refused.value.status, refused.value.param) == (status, "model"), model


def test_a_conversation_at_every_limit_is_accepted() -> None:
    server: Any = SimpleNamespace(limits=LimitSettings(turns=4, characters=50))
    for turns, background in ((["a"] * 4, []), (["a"] * 3, ["b"]), (["a"], ["b"] * 3), (["a" * 50, "b" * 50], [])):
        assert Server.context(server, turns, background) == Context(tuple(turns), tuple(background))
        with pytest.raises(HttpError, match=r"context has 5 turns and background texts, the limit is 4; send the last"):
            Server.context(server, turns + ["a"] * (4 - len(turns) - len(background)), [*background, "b"])
    with pytest.raises(HttpError, match=r"context\[1\] has 51 characters, the limit is 50; send a shorter text"):
        Server.context(server, ["a", "b" * 51, "c"], [])


def test_candidates_that_are_there_already_shift_no_vector(tmp_path: Path) -> None:
    """A client adds many again, of which some are new or have another text."""
    model = WordEncoder("words")
    pool = [Candidate(f"r{n}", text) for n, text in enumerate(["w1", "w2 w3", "w4", "w5 w6", "w7"])]
    polyrank.build_index(tmp_path / "i", model, pool[:3])
    catalogue = Catalogue(tmp_path / "i")
    given = [pool[3], pool[0], Candidate("r1", "w8 w9"), pool[2], pool[4]]
    vectors = model.encode_candidates([candidate.text for candidate in given])
    assert catalogue.add(given, vectors, replace=True) == 5
    assert catalogue.add(given, vectors[::-1], replace=True) == 5  # nothing is new
    shutil.copytree(tmp_path / "i", tmp_path / "copy")
    (tmp_path / "i").rename(tmp_path / "aside")  # replaced while it is open
    (tmp_path / "copy").rename(tmp_path / "i")
    last = Candidate("r5", "w1 w9")
    assert catalogue.add([last], model.encode_candidates([last.text]), replace=False) == 6
    catalogue.close()
    with open_index(tmp_path / "i") as index:
        stored = index.vectors([*(candidate.id for candidate in given), "r5"])
    assert len(stored) == 6
    for candidate, vector in zip(given, vectors, strict=True):
        np.testing.assert_allclose(stored[candidate.id], vector, atol=1e-6)


# --- ranking ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relevance", [None, Relevance(2.0, 0.5, 0.03)])
@pytest.mark.parametrize("threshold", [None, -1.5, 3.0])
def test_equal_scores_keep_their_order_and_the_threshold_is_a_half(
    threshold: float | None, relevance: Relevance | None
) -> None:
    server: Any = SimpleNamespace(
        pool=SimpleNamespace(info={"m": SimpleNamespace(relevance=relevance, threshold=threshold)})
    )
    values, texts = [1.0, 3.0, 1.0, 3.0, -2.0, 3.0], ["a", "b", " ", "d", "e", "f"]
    order = [1, 3, 5, 0, 4, 2]  # the blank text is last
    raw = _ranked(server, "m", values, texts, raw=True)
    assert [row for row, _ in raw] == order
    assert [score for _, score in raw[:5]] == [3.0, 3.0, 3.0, 1.0, -2.0]
    shares = _ranked(server, "m", values, texts, raw=False)
    assert [row for row, _ in shares] == order
    above = [value - (threshold or 0.0) for value in (3.0, 3.0, 3.0, 1.0, -2.0)]
    wanted = [0.5 + x / (2 + 2 * abs(x)) for x in above]
    if relevance is not None:
        wanted = relevance.of(np.array([3.0, 3.0, 3.0, 1.0, -2.0])).tolist()
    assert [share for _, share in shares[:5]] == pytest.approx(wanted)


# --- feedback ---------------------------------------------------------------------------------------------------------


def responded(n: int, characters: int) -> Responded:
    rows = [(f"r{i}", float(-i), "x" * characters) for i in range(n)]
    return Responded(Answer((), None, False, None, None), [], rows, 1.0, 3, "f" * 64)


def test_the_record_of_an_answer_has_the_replies_and_texts_that_fit() -> None:
    context = Context(("hi", " ", "my bill"), ("a fact", ""))
    for n, characters in ((0, 1), (2, 5), (MAX_REPLIES, 5), (MAX_REPLIES + 1, 5), (MAX_REPLIES + 50, 1)):
        shown = _shown("q", "m", context, " c ", responded(n, characters))
        assert [reply.id for reply in shown.replies] == [f"r{i}" for i in range(min(n, MAX_REPLIES))]
        assert {reply.text for reply in shown.replies} <= {"x" * characters}
        assert shown.context == Context(("hi", "my bill"), ("a fact",))
        assert (shown.conversation, shown.model, shown.change) == ("c", "m", 3)
    used = len("himy billa fact")
    for left, fits in ((0, True), (-1, False)):  # of the characters of a record
        shown = _shown("q", "m", context, "", responded(1, MAX_CHARACTERS - used - left))
        assert [reply.text is not None for reply in shown.replies] == [fits]
    assert _shown("q", "m", Context((" ",)), "", responded(1, 1)).context is None


def record(number: int, characters: int = 10) -> Shown:
    return Shown(f"request-{number}", (Reply("a", 1.0, "x" * characters), Reply("b", 0.5, "y")))


def test_a_record_that_is_refused_loses_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whichever of those that are written together; a client may send an id again."""
    log = FeedbackLog(FeedbackSettings(file=str(tmp_path / "feedback.db")))
    log.store.record(record(2), record(5), record(6))
    waiting = [record(n) for n in range(9)]
    for n in (2, 5, 6):
        waiting[n] = Shown(f"request-{n}", (Reply("other"),))
    log._waiting.extend(waiting)
    log._n_queued = sum(map(feedback_log._characters, waiting))
    log._write()
    assert [request.shown.request_id for request in log.store.requests()] == [
        *(f"request-{n}" for n in (2, 5, 6, 0, 1, 3, 4, 7, 8))
    ]
    assert caplog.messages == ["shown replies could not be recorded: DataError"] * 3
    assert (len(log), log._n_queued) == (0, log._n_written)
    log.close()


def test_texts_that_were_written_do_not_count_as_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feedback_log, "MAX_CHARACTERS", 1_000)
    log = FeedbackLog(FeedbackSettings(file=str(tmp_path / "feedback.db")))
    for number in range(20):  # of 402 characters each
        log.show(record(number, 399))
        asyncio.run(log.record(record(100 + number)))  # when it returns, all before it are written
    assert (log.n_lost, len(log), len(log.store)) == (0, 0, 40)
    log._scheduled = True  # so that the next ones wait
    context = Context(("a" * 300,), ("b" * 300,))
    for number in (200, 201):  # of 606 characters each: turns, facts, replies and their ids
        log.show(replace(record(number, 3), context=context))
    assert (log.n_lost, len(log), log._n_queued - log._n_written) == (1, 1, 606)
    log.close()


def test_lists_are_written_as_they_come_before_and_after_failures(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without an outcome, and also after the first ones: those that wait are lost if the server dies."""
    log, number = FeedbackLog(FeedbackSettings(file=str(tmp_path / "feedback.db"), keep_text=True)), itertools.count()
    connection = log.store._connection

    def show() -> tuple[int, int]:
        log.show(record(next(number), 9_000))
        log._thread.submit(int).result()  # after what was submitted before
        return len(log), len(log.store)

    said = "shown replies cannot be recorded at present: ResourceError"
    for n_failures in (1, 2):
        assert [show() for _ in range(3)] == [(0, 6 * n_failures - 6 + n) for n in (1, 2, 3)]
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count={pages}")  # the disk is full
        assert [show() for _ in range(2)] == [(n, 6 * n_failures - 3) for n in (1, 2)]
        connection.execute("PRAGMA max_page_count=1000000")
        assert show() == (0, 6 * n_failures)  # all three
        assert caplog.messages == [said] * n_failures  # once for each failure, however long it lasts
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count={pages}")
    assert show() == (1, 12)
    connection.execute("PRAGMA max_page_count=1000000")  # the disk has space again before the server stops
    log.close()
    with FeedbackStore(tmp_path / "feedback.db", write=False) as store:
        assert len(store) == 13


def test_a_key_may_send_feedback_again_when_the_day_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = FeedbackLog(FeedbackSettings(file=str(tmp_path / "feedback.db"), key_bytes=3_000))

    def send(now: float, number: int, key: str) -> str:
        monkeypatch.setattr(time, "time", lambda: now)
        try:
            asyncio.run(log.record(record(number, 1_500), key=key))
        except HttpError as error:
            return error.headers["retry-after"]
        return ""

    day = 86_400 * 20_000
    assert [send(day + 100, n, key) for n, key in enumerate(("ann", "ann", "bob", "bob"))] == ["", "86300", "", "86300"]
    assert send(day + 86_000, 4, "ann") == "400"
    assert [send(day + 86_400, n, "ann") for n in (5, 6)] == ["", "86400"]
    log.close()


def test_an_outcome_of_replies_that_are_known_is_new_once(tmp_path: Path) -> None:
    log = FeedbackLog(FeedbackSettings(file=str(tmp_path / "feedback.db")))

    async def recorded(*entries: Shown | Outcome) -> int:
        return await log.record(*entries)

    taken = Outcome("request-1", "taken", "a")
    assert asyncio.run(recorded(record(1))) == 1
    assert asyncio.run(recorded(record(1), taken)) == 1
    assert asyncio.run(recorded(record(1), taken)) == 0
    assert asyncio.run(recorded(record(2), Outcome("request-2", "taken", "b"))) == 2
    log.close()
    with FeedbackStore(tmp_path / "feedback.db", write=False) as store:
        assert [request.rank for request in store.requests()] == [1, 2]
