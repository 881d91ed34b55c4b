"""An application that opens everything before it forks: for gunicorn's ``--preload``, celery's prefork, and a pool.

It has an index that it has written to, a model that has scored, a feedback file, and a client with an open connection.
``FORKED_FOLDER`` names its folder, ``FORKED_SERVER`` the server of its client.

    python -m forked.application REQUESTS EACH    # a pool whose processes end after EACH requests; prints the answers
"""

import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import polyrank
from forked import TEXTS
from polyrank.feedback import FeedbackStore, Outcome, Reply, Shown

FOLDER = Path(os.environ["FORKED_FOLDER"])
REPLIES = polyrank.open(FOLDER / "index", device="cpu", wait_s=120.0)
MODEL: Any = polyrank.load("shipped:convert", device="cpu", precision="fp32")
FEEDBACK = FeedbackStore(FOLDER / "feedback.db")
CLIENT = polyrank.Client(os.environ["FORKED_SERVER"])


def handle(number: int) -> dict[str, Any]:
    """Serve a request; what this returns is acknowledged."""
    text = TEXTS[number % len(TEXTS)]
    scores = MODEL.score([text], [TEXTS])[0].tolist()
    asked = CLIENT.score(text, TEXTS)
    REPLIES.add([f"reply {number}"])
    FEEDBACK.record(Shown(f"request {number}", (Reply("a"),)), Outcome(f"request {number}", "taken", "a"))
    assert REPLIES.answer(text, 1, allow_echo=True).text
    return {"number": number, "process": os.getpid(), "scores": scores, "asked": list(asked)}


handle(-1)  # before the forks


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """For gunicorn: the path is the request's number."""
    answer = handle(int(environ["PATH_INFO"].strip("/")))
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(answer).encode()]


def pool(n: int, each: int) -> None:
    """Serve n requests in three processes, each replaced after some, while two threads of this process serve others."""
    printing, done = threading.Lock(), threading.Event()

    def put(answer: dict[str, Any]) -> None:
        with printing:
            print(json.dumps(answer), flush=True)

    def serve_meanwhile(number: int) -> None:
        while not done.is_set():
            put(handle(number))
            number += 2

    threads = [threading.Thread(target=serve_meanwhile, args=(n + i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    with multiprocessing.get_context("fork").Pool(3, maxtasksperchild=each) as workers:
        for answer in workers.imap_unordered(handle, range(n), chunksize=1):
            put(answer)
    done.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    pool(*map(int, sys.argv[1:]))
