"""Forks under load: gunicorn with ``--preload``, celery's prefork and a pool fork one application, which all use."""

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

import polyrank
from attached import end_with_parent
from forked import TEXTS, queue_of
from polyrank.feedback import FeedbackStore
from polyrank.index import open_index, verify_index
from servers import serving

EACH = 2  # requests of a child
PATIENCE = 120.0  # seconds for an answer
TESTS = Path(__file__).parents[1]
Answers = Iterator[dict[str, Any]]


@contextmanager
def started(folder: Path, server: str, *command: str) -> Iterator["subprocess.Popen[str]"]:
    """A process of Python that ends with the block; its messages are in the folder's ``log``."""
    environment = os.environ | {"FORKED_FOLDER": str(folder), "FORKED_SERVER": server}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True,
            preexec_fn=end_with_parent,
        )  # fmt: skip
        try:
            yield process
        except Exception as error:
            error.add_note((folder / "log").read_text()[-5_000:])
            raise
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


def by_gunicorn(folder: Path, server: str, n: int) -> Answers:
    """Six clients. A connection that a leaving child closes before it has answered is opened again."""
    options = ["--preload", "--workers", "3", "--threads", "2", "--max-requests", str(EACH), "--timeout", "120"]
    options += ["--bind", f"unix:{folder / 'socket'}", "forked.application"]
    with started(folder, server, "-m", "gunicorn", *options) as parent:

        def ask(number: int) -> dict[str, Any]:
            end = time.monotonic() + PATIENCE
            while time.monotonic() < end and parent.poll() is None:
                with suppress(ConnectionError, FileNotFoundError, http.client.RemoteDisconnected):
                    status, body = get(folder / "socket", f"/{number}")
                    assert status == 200, status
                    answer: dict[str, Any] = json.loads(body)
                    return answer
                time.sleep(0.02)
            raise TimeoutError(f"request {number} has no answer")

        with ThreadPoolExecutor(6) as clients:
            for first in count(0, 30):
                yield from clients.map(ask, range(first, first + 30))


def get(path: Path, target: str) -> tuple[int, bytes]:
    """Send a request over a Unix socket."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.settimeout(PATIENCE)
        connection.sock.connect(str(path))
        connection.request("GET", target, headers={"Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def by_celery(folder: Path, server: str, n: int) -> Answers:
    """Tasks through a broker of files."""
    options = ["--pool", "prefork", "--concurrency", "3", "--max-tasks-per-child", str(EACH)]
    options += ["--without-mingle", "--without-gossip", "--without-heartbeat", "-l", "INFO"]
    tasks = queue_of(folder)
    with started(folder, server, "-m", "celery", "-A", "forked.tasks", "worker", *options):
        sent = [tasks.send_task("handle", [number]) for number in range(n * EACH)]
        for one in sent:
            yield one.get(timeout=PATIENCE, interval=0.02)


def by_pool(folder: Path, server: str, n: int) -> Answers:
    """A pool of ``multiprocessing``, whose parent also serves."""
    with started(folder, server, "-m", "forked.application", str(n * EACH), str(EACH)) as parent:
        assert parent.stdout is not None
        yield from map(json.loads, parent.stdout)
        assert parent.wait(PATIENCE) == 0


KINDS = {"gunicorn": by_gunicorn, "celery": by_celery, "pool": by_pool}


def forks(kind: str, n: int, folder: Path) -> dict[str, Any]:
    """Fork about n times; counts what was acknowledged and what of it is missing or wrong.

    Raises:
        Exception: a request was not answered in time.
    """
    model: Any = polyrank.load("shipped:convert", device="cpu", precision="fp32")
    expected = model.score(TEXTS, [TEXTS] * len(TEXTS))
    polyrank.build_index(folder / "index", model, TEXTS)
    began, processes, wrong, numbers = time.monotonic(), set(), Counter[str](), []
    environment = os.environ | {"POLYRANK_PRECISION": "fp32"}
    with serving("shipped:convert", environment=environment) as server:
        for answer in KINDS[kind](folder, server.url, n):
            number, scores = answer["number"], expected[answer["number"] % len(TEXTS)]
            processes.add(answer["process"])
            numbers.append(number)
            for name in ("scores", "asked"):
                wrong[name] += not np.allclose(answer[name], scores, rtol=0.0, atol=1e-4)
            if len(processes) >= n:
                break
    with open_index(folder / "index") as index:
        texts = {candidate.text for _, candidate in index.iter_candidates()}
    with FeedbackStore(folder / "feedback.db", write=False) as store:
        requests = {one.shown.request_id for one in store.requests() if one.outcome is not None}
    lost = [n for n in numbers if f"reply {n}" not in texts or f"request {n}" not in requests]
    damages = verify_index(folder / "index")
    return {
        "forks": len(processes),
        "requests": len(numbers),
        "acknowledged_and_lost": len(lost),
        "wrong_answers": {name: number for name, number in wrong.items() if number},
        "index_problems": len(damages),
        "seconds": round(time.monotonic() - began, 1),
    }
