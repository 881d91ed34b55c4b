"""Feedback: acknowledged records survive, texts are stored only on request, and accepted replies become examples."""

import hashlib
import json
import multiprocessing
import os
import random
import re
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import polyrank
from polyrank.cli.commands import app
from polyrank.config.models import CrossConfig, LateConfig, TextPolicy
from polyrank.data import read_examples, write_examples
from polyrank.data.splits import split
from polyrank.errors import ArtifactError, DataError, ResourceError
from polyrank.feedback import (
    Action,
    FeedbackStore,
    Outcome,
    Reply,
    RequestFeedback,
    Shown,
    context_code,
    examples,
    report,
)
from polyrank.feedback.rates import count_taken
from polyrank.feedback.store import SCHEMA
from polyrank.index import write_index
from polyrank.models import new_model
from polyrank.models.artifacts import save_model
from polyrank.records import Candidate, Context
from polyrank.scorers.open import load_encoder
from polyrank.scorers.terms.encoder import EncoderTerm
from processes import run, start

ROOT = Path(__file__).parents[2]
MONDAY = datetime(2026, 1, 5, 12, tzinfo=UTC)
CONTEXT = Context(("hello", "my wifi is down"), ("Ann",))
REPLIES = (Reply("a", 2.5, "restart it"), Reply("b", 0.5, "pay the bill"), Reply("c", None, "thanks"))
SHOWN = Shown("r1", REPLIES, CONTEXT, "chat 7", "my-run/model", "f" * 64, 3, MONDAY)
TAKEN = Outcome("r1", "taken", "b", time=MONDAY + timedelta(minutes=1))


def shown(request_id: str, context: Context | str | None = CONTEXT, replies: str = "abc", **fields: Any) -> Shown:
    """Replies with one-letter ids; each text equals its id."""
    context = None if context is None else Context.of(context)
    return Shown(request_id, tuple(Reply(id_, text=f"text {id_}") for id_ in replies), context, **fields)


# the file


def test_records_are_read_back_unchanged(tmp_path: Path) -> None:
    with FeedbackStore(tmp_path / "new" / "feedback.db", keep_text=True) as store:
        assert store.record(SHOWN) == 1
        assert [*store.requests()] == [RequestFeedback(SHOWN, None, context_code(CONTEXT))]
        edited = Outcome("r2", "edited", "a", "restart it, please")
        assert store.record(TAKEN, replace(SHOWN, request_id="r2", context=None), edited) == 3
        assert len(store) == 2
    with FeedbackStore(tmp_path / "new" / "feedback.db", write=False) as store:
        first, second = store.requests()
        assert (first.shown, first.outcome, first.rank) == (SHOWN, TAKEN, 2)
        assert (second.outcome, second.rank, second.context_code) == (edited, 1, None)
        assert [request.shown.request_id for request in store.requests(since=datetime(2026, 1, 5, 12))] == ["r1", "r2"]
        assert [*store.requests(since=MONDAY + timedelta(seconds=1))] == []


def test_requests_are_in_the_order_in_which_they_were_recorded(tmp_path: Path) -> None:
    """Whatever their times and ids; each with its own outcome."""
    times = {"m": 3, "a": 1, "z": 2, "b": 1, "k": 0}
    with FeedbackStore(tmp_path / "feedback.db") as store:
        for id_, hours in times.items():
            store.record(shown(id_, time=MONDAY + timedelta(hours=hours)))
        for id_ in ("z", "m", "b"):
            store.record(Outcome(id_, "taken", "a", time=MONDAY - timedelta(hours=times[id_])))
        requests = [*store.requests()]
        assert [request.shown.request_id for request in requests] == [*times]
        assert [request.outcome and request.outcome.request_id for request in requests] == ["m", None, "z", "b", None]
        for hours in range(5):
            found = [one.shown.request_id for one in store.requests(since=MONDAY + timedelta(hours=hours))]
            assert found == [id_ for id_, own in times.items() if own >= hours]


def test_equal_contexts_have_equal_codes_and_others_do_not() -> None:
    """A code stands for the texts, their order, and which of them are turns."""
    contexts = [
        Context(turns, background)
        for turns in (("a",), ("a", "b"), ("b", "a"), ("ab",), ("a", "b", "c"), ("a", ""), ("A",))
        for background in ((), ("b",), ("c",), ("b", "c"), ("bc",))
    ]
    codes = [context_code(context) for context in contexts]
    assert len({*codes}) == len(contexts)
    assert codes == [context_code(replace(context)) for context in contexts]
    # files keep codes, so later versions must compute the same
    written = '[["schön 👩","a\\n\\"b\\""],["c"]]'
    assert context_code(Context(("schön 👩", 'a\n"b"'), ("c",))) == hashlib.sha256(written.encode()).hexdigest()


def test_the_name_of_a_file_is_durable_before_its_first_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, sync = list[tuple[int, int]](), os.fsync

    def watched(descriptor: int) -> None:
        status = os.fstat(descriptor)
        synced.append((status.st_dev, status.st_ino))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    for folder in (tmp_path, tmp_path / "new"):
        for _ in range(2):  # the process that created it may have died before it synced the folder
            synced.clear()
            FeedbackStore(folder / "feedback.db").close()
            status = folder.stat()
            assert (status.st_dev, status.st_ino) == synced[-1]


def test_a_file_is_opened_again_only_in_a_child_process(tmp_path: Path) -> None:
    with FeedbackStore(tmp_path / "feedback.db") as store:
        first = store._connection
        for number in range(3):
            if number == 2:
                store.after_fork()  # as the system calls it in a child
            assert store.record(Shown(f"{number}", (Reply("a"),))) == 1
            assert (store._connection is first) == (number < 2)


def test_no_text_is_written_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "feedback.db"
    texts = ["hello", "wifi", "Ann", "restart", "bill", "thanks", "rather", "instead"]
    with FeedbackStore(path) as store:
        store.record(SHOWN, Outcome("r1", "edited", "a", "rather this"))
        store.record(replace(SHOWN, request_id="r2"), Outcome("r2", "refused", final_text="send this instead"))
        store.record(shown("r3", "hello"), Outcome("r3", "edited", "a"))
        written = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        first, second, third = store.requests()
    written += path.read_bytes()
    assert b"my-run/model" in written
    assert b"chat 7" in written
    assert [text for text in texts if text.encode() in written or text.encode("utf-16-le") in written] == []
    assert first.shown.context is None
    assert [(reply.id, reply.score, reply.text) for reply in first.shown.replies] == [
        ("a", 2.5, None),
        ("b", 0.5, None),
        ("c", None, None),
    ]
    assert first.outcome == Outcome("r1", "edited", "a", None, first.outcome.time if first.outcome else MONDAY)
    assert first.context_code == second.context_code == context_code(CONTEXT) != third.context_code


@pytest.mark.parametrize("keep_text", [True, False], ids=["texts", "no texts"])
def test_a_repeated_record_changes_nothing_and_a_different_one_is_refused(tmp_path: Path, keep_text: bool) -> None:
    edited = Outcome("r1", "edited", "a", "restart it twice")
    with FeedbackStore(tmp_path / "feedback.db", keep_text=keep_text) as store:
        assert store.record(SHOWN, edited) == 2
        before = [*store.requests()]
        assert store.record(SHOWN, edited) == 0
        assert store.record(replace(SHOWN, time=MONDAY + timedelta(hours=1)), replace(edited, time=MONDAY)) == 0
        for other in (
            TAKEN,
            replace(edited, final_text="restart it once"),
            replace(edited, reply_id="b"),
            replace(SHOWN, replies=REPLIES[:2]),
            replace(SHOWN, replies=(replace(REPLIES[0], text="another text"), *REPLIES[1:])),
            replace(SHOWN, replies=(replace(REPLIES[0], score=1.0), *REPLIES[1:])),
            replace(SHOWN, context=Context("hi")),
            replace(SHOWN, context=replace(CONTEXT, background=())),
            replace(SHOWN, conversation="chat 8"),
            replace(SHOWN, model="other/model"),
            replace(SHOWN, fingerprint="e" * 64),
            replace(SHOWN, change=4),
        ):
            what = "another outcome" if isinstance(other, Outcome) else "another list of replies"
            with pytest.raises(DataError, match=f"request 'r1' already has {what}; send this one under another id"):
                store.record(shown("r2"), other)
        assert [*store.requests()] == before
    with FeedbackStore(tmp_path / "feedback.db", keep_text=not keep_text) as store:
        assert store.record(SHOWN, edited) == 0


def test_an_outcome_must_refer_to_a_shown_reply(tmp_path: Path) -> None:
    with FeedbackStore(tmp_path / "feedback.db", keep_text=True) as store:
        with pytest.raises(DataError, match="request 'r1' is unknown; send the shown replies"):
            store.record(TAKEN)
        with pytest.raises(DataError, match="is unknown"):
            store.record(TAKEN, SHOWN)
        with pytest.raises(DataError, match="reply 'z' was not shown for request 'r1'; use a reply that was"):
            store.record(SHOWN, replace(TAKEN, reply_id="z"))
        with pytest.raises(DataError, match="without a final text; send the text"):
            store.record(SHOWN, Outcome("r1", "edited", "a"))
        assert len(store) == 0
        assert store.record(Shown("none", ()), Outcome("none", "refused", final_text="my own words")) == 2


def test_other_and_newer_files_are_refused_and_left_unchanged(tmp_path: Path) -> None:
    for name, statements in (
        ("other.db", "CREATE TABLE t (x); INSERT INTO t VALUES (1);"),
        ("newer.db", ";".join([*SCHEMA, "PRAGMA user_version=2"])),
    ):
        connection = sqlite3.connect(tmp_path / name)
        connection.executescript(statements)
        connection.close()
    (tmp_path / "text.db").write_text("no database at all, but longer than SQLite's own header of a hundred bytes" * 3)
    (tmp_path / "folder").mkdir()
    for name, message in (
        ("other.db", "other.db is not a feedback file"),
        ("newer.db", "newer.db has format 2, this version reads up to 1; upgrade polyrank"),
        ("text.db", "is another kind of file, or its start is damaged; .* move it away"),
        ("folder", "is a folder; use the path of a file"),
    ):
        before = (tmp_path / name).read_bytes() if name != "folder" else b""
        for write in (True, False):
            with pytest.raises(ArtifactError, match=message):
                FeedbackStore(tmp_path / name, write=write)
        assert name == "folder" or (tmp_path / name).read_bytes() == before
    with pytest.raises(ArtifactError, match=r"none\.db does not exist"):
        FeedbackStore(tmp_path / "none.db", write=False)
    assert not (tmp_path / "none.db").exists()


def test_an_entry_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for table, column, value in (
        ("shown", "content", "{"),
        ("shown", "content", "[]"),
        ("outcome", "content", '{"action": "liked"}'),
        ("outcome", "time", "soon"),
    ):
        path = tmp_path / "feedback.db"
        path.unlink(missing_ok=True)
        with FeedbackStore(path, keep_text=True) as store:
            store.record(SHOWN, TAKEN)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"UPDATE {table} SET {column} = ?", (value,))
            connection.commit()
        damaged = pytest.raises(ArtifactError, match="request 'r1' is not what was written; move it away")
        with FeedbackStore(path, write=False) as store, damaged:
            [*store.requests()]


# concurrency and crashes


def record_all(path: Path, name: str, n: int, ready: Any) -> None:
    """In a new process: start together with the others."""
    ready.wait()
    with FeedbackStore(path) as store:
        for number in range(n):
            store.record(shown(f"{name} {number}"), Outcome(f"{name} {number}", "taken", "a"))


@pytest.mark.deep
def test_processes_that_create_one_file_at_the_same_time_all_write_to_it(tmp_path: Path) -> None:
    ready = multiprocessing.get_context("forkserver").Barrier(3)
    children = [start(record_all, tmp_path / "feedback.db", name, 5, ready) for name in "abc"]
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 3
    with FeedbackStore(tmp_path / "feedback.db", write=False) as store:
        ids = {request.shown.request_id for request in store.requests() if request.outcome is not None}
    assert ids == {f"{name} {number}" for name in "abc" for number in range(5)}


def test_a_file_that_another_process_creates_is_waited_for(tmp_path: Path) -> None:
    """SQLite immediately refuses to change the journal mode while another connection writes."""
    other = sqlite3.connect(tmp_path / "feedback.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    with (
        closing(sqlite3.connect(tmp_path / "feedback.db", timeout=0)) as impatient,
        pytest.raises(sqlite3.OperationalError, match="locked"),
    ):
        impatient.execute("PRAGMA journal_mode=WAL")
    free = threading.Timer(0.2, other.rollback)
    free.start()
    with FeedbackStore(tmp_path / "feedback.db") as store:
        assert free.finished.is_set()
        store.record(shown("first"))
    other.close()


@pytest.mark.deep
def test_threads_share_one_store_while_another_process_reads(tmp_path: Path) -> None:
    path = tmp_path / "feedback.db"
    with FeedbackStore(path) as store:
        store.record(shown("first"))
        reading = store.requests()
        assert next(reading).shown.request_id == "first"
        news: Counter[int] = Counter()

        def work(name: str) -> None:
            for number in range(10):
                news[store.record(shown(f"{number}"), Outcome(f"{number}", "taken", "a"))] += 1
                store.record(shown(f"{name} {number}"))

        threads = [threading.Thread(target=work, args=(name,)) for name in "abcdef"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert news == {2: 10, 0: 50}
        assert len(store) == 71
        assert [*reading] == []  # a read shows the state at its start
        done = run("feedback", "report", path, "--json")
        assert json.loads(done.stdout)["n_requests"] == 71, done.stderr


def record_and_acknowledge(path: Path, said: Connection) -> None:
    """In a new process: record one request after the other, and print each acknowledged one."""
    with FeedbackStore(path, keep_text=True) as store:
        for number in count():
            store.record(shown(f"{number}"), Outcome(f"{number}", "refused", final_text=f"words {number}"))
            said.send(number)


@pytest.mark.deep
@pytest.mark.parametrize("n", [1, 3, 20, 50])
def test_a_killed_process_keeps_acknowledged_records(tmp_path: Path, n: int) -> None:
    path = tmp_path / "feedback.db"
    receiving, sending = multiprocessing.Pipe(duplex=False)
    child = start(record_and_acknowledge, path, sending)
    sending.close()
    acknowledged = [receiving.recv() for _ in range(n)]
    child.kill()
    child.join()
    while True:
        try:
            acknowledged.append(receiving.recv())
        except EOFError:
            break
    with FeedbackStore(path, keep_text=True) as store:
        there = [(r.shown.request_id, r.outcome and r.outcome.final_text) for r in store.requests()]
        assert there[: len(acknowledged)] == [(f"{i}", f"words {i}") for i in acknowledged]
        assert len(there) - len(acknowledged) in (0, 1)
        assert all(text is not None for _, text in there)
        store.record(shown("after"), Outcome("after", "taken", "a"))


def fill(path: Path, said: Connection) -> None:
    """In a new process with a limit of 200 kB per file: print the acknowledged records and how it ended."""
    import resource  # not available on every system

    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    with FeedbackStore(path, keep_text=True) as store:
        for number in range(1000):
            try:
                store.record(shown(f"{number}", "word " * 500), Outcome(f"{number}", "taken", "a"))
            except ResourceError as error:
                said.send((number, str(error), len(store)))
                return
    said.send((1000, "", 1000))


@pytest.mark.deep
def test_a_full_disk_acknowledges_nothing_and_keeps_earlier_records(tmp_path: Path) -> None:
    path = tmp_path / "feedback.db"
    receiving, sending = multiprocessing.Pipe(duplex=False)
    child = start(fill, path, sending)
    n, message, n_there = receiving.recv()
    child.join()
    assert 5 <= n == n_there < 1000
    assert re.search(r"cannot use .*feedback.db: .*; free some space", message)
    with FeedbackStore(path, keep_text=True) as store:
        assert [request.shown.request_id for request in store.requests()] == [f"{i}" for i in range(n)]
        assert store.record(shown(f"{n}", "word " * 500), Outcome(f"{n}", "taken", "a")) == 2


# validation


def test_replies_are_those_of_the_time_of_the_check() -> None:
    replies = [Reply("a"), Reply("b")]
    shown = Shown("r", replies, time=MONDAY)  # type: ignore[arg-type]
    replies.append(Reply("a"))
    assert shown == Shown("r", (Reply("a"), Reply("b")), time=MONDAY)
    assert hash(shown) == hash(Shown("r", (Reply("a"), Reply("b")), time=MONDAY))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Reply(""), "a reply's id is ''; it needs 1 to 512 characters"),
        (lambda: Reply("x" * 513), "a reply's id has 513 characters, the limit is 512"),
        (lambda: Reply(7), "a reply's id is 7; it needs"),  # type: ignore[arg-type]
        (lambda: Reply("a", float("nan")), "the score nan of reply 'a' is not a finite number"),
        (lambda: Reply("a", 10**400), "of reply 'a' is not a finite number"),
        (lambda: Reply("a", True), "the score True of reply 'a' is not a finite number"),
        *(
            (lambda text=text: Reply("a", text=text), f"the text of a reply is {text!r}; use a non-empty string")
            for text in (" ", "", 0, b"")
        ),
        (lambda: Reply("a", text="\ud800"), "contains a lone surrogate at 0"),
        (lambda: shown("r", "hi", "aba"), "request 'r' shows reply 'a' twice"),
        (lambda: shown("r", "hi", "dabcbc"), "request 'r' shows reply 'b' twice"),
        (lambda: Shown("r", tuple(Reply(f"{i}") for i in range(1001))), "shows 1,001 replies, the limit is 1,000"),
        (lambda: shown("r", Context(())), "the context of request 'r' has no turns"),
        *(
            (lambda n=n: shown("r", Context(("  ",) + ("hi",) * n)), "a turn is '  '; use a non-empty string")
            for n in range(4)
        ),
        (lambda: shown("r", Context(("hi", "  ", "bye"))), "a turn is '  '; use a non-empty string"),
        (lambda: shown("r", Context(("hi", "\udc00 wifi"))), "a turn contains a lone surrogate at 0"),
        (lambda: shown("r", Context(("hi",), ("b", ""))), "a background line is ''; use a non-empty string"),
        (lambda: shown("r", Context(("hi",), ("b", "a\udc00"))), "a background line contains a lone surrogate at 1"),
        (lambda: shown("r", "x" * 1_000_001), "have 1,000,019 characters, the limit is 1,000,000"),
        (lambda: shown("r", Context(("x" * 999_970,), ("y" * 6, "z" * 7)), "abc"), "have 1,000,001 characters, the"),
        (lambda: Outcome("r", "edited", "a", "x" * 1_000_001), "have 1,000,001 characters, the limit is 1,000,000"),
        (lambda: shown("r", model="x" * 513), "the name of a model has 513 characters, the limit is 512; shorten it"),
        (lambda: shown("r", conversation=" "), "the name of a conversation is ' '; it needs 1 to 512 characters"),
        (lambda: shown("r", model="m", fingerprint=" "), "a fingerprint is ' '; it needs 1 to 512 characters"),
        (lambda: shown("r", change=-1), "the index's change -1 is not an integer from 0"),
        (lambda: shown("r", time="today"), "time 'today' is not a datetime"),
        (lambda: Outcome("r", "liked"), "action 'liked' is unknown; use taken, edited, refused"),  # type: ignore[arg-type]
        (lambda: Outcome("r", "taken"), "request 'r': taken names no reply; add its id"),
        (lambda: Outcome("r", "edited"), "request 'r': edited names no reply; add its id"),
        (lambda: Outcome("r", "taken", " "), "a reply's id is ' '; it needs 1 to 512 characters"),
        (lambda: Outcome("r", "edited", "a" * 513, "b"), "a reply's id has 513 characters, the limit is 512"),
        (lambda: Outcome("r", "refused", "a"), "request 'r': refused names a reply; omit its id"),
        (lambda: Outcome("r", "taken", "a", "other"), "taken with a final text; omit it, or send edited"),
        (lambda: Outcome("r", "edited", "a", ""), "the final text is ''"),
        (lambda: Outcome("", "refused"), "a request's id is ''"),
    ],
    ids=count(),
)
def test_wrong_values_are_refused_with_a_remedy(make: Callable[[], object], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        make()


def test_records_at_the_limits_are_accepted() -> None:
    id_ = "x" * 512
    many = tuple(Reply(f"{i}") for i in range(999))
    assert len(Shown(id_, (*many, Reply(id_)), None, id_, id_, id_, 0).replies) == 1_000
    assert shown("r", Context(("x" * 999_969,), ("y" * 6, "z" * 7)), "abc").rank("c") == 3  # of a million characters
    assert Outcome(id_, "edited", id_, "x" * 1_000_000).final_text


# examples


def use(
    request_id: str, context: Context | str, action: Action | None, reply: str | None = None, final: str | None = None,
    **fields: Any,
) -> RequestFeedback:  # fmt: skip
    outcome = None if action is None else Outcome(request_id, action, reply, final)
    return RequestFeedback(shown(request_id, context, **fields), outcome, f"code of {context}")


def made(requests: list[RequestFeedback], **options: Any) -> list[tuple[str, tuple[str, ...], int]]:
    """Last turn, candidates, and number of right ones."""
    exported = examples(requests, **options).examples
    assert all(e.relevant == tuple(range(len(e.relevant))) for e in exported)
    return [
        (e.context[-1], tuple(text.removeprefix("text ") for text in e.candidates), len(e.relevant)) for e in exported
    ]


def test_times_are_in_utc() -> None:
    for time in (datetime(2026, 1, 2, 3), datetime(2026, 1, 2, 5, tzinfo=timezone(timedelta(hours=2)))):
        for record in (Outcome("r", "taken", "b", time=time), shown("r", "hi", time=time)):
            assert record.time.isoformat() == "2026-01-02T03:00:00+00:00"


def test_content_has_texts_unless_they_are_left_out() -> None:
    outcome = Outcome("r", "edited", "b", "better")
    assert outcome.content() == outcome.content(with_texts=True)
    assert outcome.content() == {"action": "edited", "reply_id": "b", "final_text": "better"}
    assert outcome.content(with_texts=False) == {"action": "edited", "reply_id": "b", "final_text": None}
    request = shown("r", "hi")
    assert request.content() == request.content(with_texts=True) != request.content(with_texts=False)


def test_texts_in_the_same_words_are_one_candidate_as_first_shown() -> None:
    texts = {"a": "Bye now!", "b": "Sure.", "c": "bye, now", "d": "sure"}
    listed = Shown("r", tuple(Reply(id_, text=text) for id_, text in texts.items()), Context(("hi",)))
    found = examples([RequestFeedback(listed, Outcome("r", "taken", "b"))]).examples
    assert [example.candidates for example in found] == [("Sure.", "Bye now!")]


def test_a_right_reply_is_as_it_was_first_sent() -> None:
    requests = [use("r", "hi", "edited", "a", "Good bye!"), use("s", "hi", "edited", "b", "good bye")]
    assert made([*requests, use("t", "hi", "refused", final="GOOD BYE")]) == [("hi", ("Good bye!", "c"), 1)]


def test_a_taken_reply_is_right_and_replies_above_it_are_wrong() -> None:
    assert made([use("r", "hi", "taken", "b")]) == [("hi", ("b", "a", "c"), 1)]
    (example,) = examples([use("r", CONTEXT, "taken", "b")]).examples
    assert (example.context, example.background, example.id) == (CONTEXT.turns, CONTEXT.background, "r#0")


def test_an_edited_reply_is_neither_right_nor_wrong() -> None:
    edited = [use("r", "hi", "edited", "b", "better b")]
    assert made(edited) == [("hi", ("better b", "a", "c"), 1)]
    # nor is it wrong in another context where it was not chosen
    assert made([*edited, use("q", "hi", "taken", "a")]) == [("hi", ("better b", "a", "c"), 2)]
    assert made([use("r", "hi", "edited", "b", "Text B!")]) == [("hi", ("Text B!", "a", "c"), 1)]


def test_a_refused_reply_is_wrong() -> None:
    refused = use("r", "hi", "refused")
    assert made([refused]) == []
    assert made([refused], refused=True) == [("hi", ("a", "b", "c"), 0)]
    assert made([use("r", "hi", "refused", final="own words")]) == [("hi", ("own words", "a", "b", "c"), 1)]
    assert made([refused, use("q", "hi", "taken", "d", replies="bd")]) == [("hi", ("d", "a", "b", "c"), 1)]


def test_a_context_is_one_example_in_which_a_right_reply_is_never_wrong() -> None:
    requests = [use("r", "hi", "taken", "b"), use("s", "bye", "taken", "c"), use("t", "hi", "taken", "a")]
    assert made(requests) == [("hi", ("b", "a", "c"), 2), ("bye", ("c", "a", "b"), 1)]


def test_skipped_records_are_counted_by_reason() -> None:
    def without_text(request: RequestFeedback) -> RequestFeedback:
        replies = tuple(Reply(reply.id) for reply in request.shown.replies)
        outcome = request.outcome and replace(request.outcome, final_text=None)
        return replace(request, shown=replace(request.shown, replies=replies, context=None), outcome=outcome)

    bare = [without_text(use(id_, id_, "taken", "b")) for id_ in ("r", "s", "t")]
    bare += [use("u", "u", None), use("v", "v", "refused"), without_text(use("w", "w", "edited", "a", "x"))]
    exported = examples(bare)
    assert exported.examples == []
    assert exported.n_requests == 6
    assert exported.left_out == {
        "the text of the context is unknown": 4,
        "no outcome was recorded": 1,
        "all replies were refused, and no right reply is known": 1,
    }
    contexts = {f"code of {id_}": Context(id_) for id_ in ("r", "s", "w")}
    exported = examples(bare, contexts=contexts, texts={"a": "text a", "b": "text b"})
    assert [(e.context, e.candidates) for e in exported.examples] == [
        (("r",), ("text b", "text a")),
        (("s",), ("text b", "text a")),
    ]
    assert exported.left_out["the text of the right reply is unknown"] == 1
    assert exported.left_out["the text of the context is unknown"] == 1
    assert exported.n_unknown == 2
    both = replace(use("r", "as kept", "taken", "b"), context_code="code of r")  # a kept text precedes one of its code
    assert [example.context for example in examples([both], contexts=contexts).examples] == [("as kept",)]


def test_a_conversation_has_one_name_and_stays_together(tmp_path: Path) -> None:
    requests = []
    for number in range(12):
        turns = (f"question {number}",)
        for step, reply in enumerate("abc"):
            named = {"conversation": f"chat {number}"} if number % 2 else {}
            requests.append(use(f"r{number}.{step}", Context(turns), "taken", reply, **named))
            turns = (*turns, f"text {reply}", f"and {step}?")
    random.Random(3).shuffle(order := [requests[i : i + 3] for i in range(0, 36, 3)])
    exported = examples([request for steps in zip(*order, strict=True) for request in steps]).examples
    names = Counter(example.id.rpartition("#")[0] for example in exported)
    assert names == {f"chat {i}" if i % 2 else f"r{i}.0": 3 for i in range(12)}
    assert len({example.id for example in exported}) == 36
    write_examples(tmp_path / "used.jsonl", exported)
    parts = split(tmp_path / "used.jsonl", valid=0.25, test=0.25, n_candidates=2)
    where = [{e.context[0] for e in part.examples} for part in (parts.train, parts.valid, parts.test)]
    assert [len(first) for first in where] == [6, 3, 3]
    assert len(set.union(*where)) == 12


def test_the_longest_known_beginning_decides_the_conversation() -> None:
    """Several conversations begin alike; facts about the customer are a part of the beginning."""

    def asked(n: int, first: str = "question") -> tuple[str, ...]:
        return (first, *(turn for i in range(n) for turn in ("text a", f"and {i}?")))

    requests = [
        use("r0", Context(asked(0)), "taken", "a", conversation="one"),
        use("r1", Context(asked(1)), "taken", "a", conversation="two"),
        use("r2", Context(asked(2)), "taken", "a"),  # continues "two", which continues what "one" began
        use("r3", Context(asked(3)), "taken", "a"),
        use("r4", Context((*asked(1)[:-1], "what else?")), "taken", "a"),  # continues "one"
        use("r5", Context(asked(1, "other")), "taken", "a"),
        use("r6", Context(asked(2, "other")), "taken", "a"),
        use("r7", Context(asked(0), ("a fact",)), "taken", "a"),
        use("r8", Context(asked(1), ("a fact",)), "taken", "b"),
        use("r9", Context(asked(1), ("another fact",)), "taken", "b"),
    ]
    exported = examples(requests).examples
    assert [example.id for example in exported] == [
        "one#0", "two#0", "two#1", "two#2", "one#1", "r5#0", "r5#1", "r7#0", "r7#1", "r9#0"
    ]  # fmt: skip
    # of two conversations with the same beginning, the earlier one; each of several replies to it continues it
    alike = [
        use("a0", "hi", "taken", "a"),
        use("b0", "hi", "taken", "b"),
        use("c0", "hi", "taken", "a", conversation="later"),
        use("a1", Context(("hi", "text a", "and?")), "taken", "c"),
        use("b1", Context(("hi", "text b", "and?")), "taken", "c"),
    ]
    assert [example.id for example in examples(alike).examples] == ["a0#0", "a0#1", "b0#0"]
    filled = [
        RequestFeedback(Shown(id_, (Reply("a", text="{order} is sent"),), Context(turns)), Outcome(id_, "taken", "a"))
        for id_, turns in (("s", ("Where is AR-12345?",)), ("t", ("Where is AR-12345?", "AR-12345 is sent", "when?")))
    ]
    assert [example.id for example in examples(filled).examples] == ["s#0", "s#1"]


def test_all_requests_of_a_context_without_an_answer_are_counted() -> None:
    requests = [use(id_, context, "refused") for id_, context in (("r", "hi"), ("s", "bye"), ("t", "hi"), ("u", "hi"))]
    reason = "all replies were refused, and no right reply is known"
    assert examples(requests).left_out == {reason: 4}
    unknown = [replace(one, shown=replace(one.shown, replies=(Reply("a"), Reply("b")))) for one in requests]
    exported = examples(unknown, refused=True)
    assert exported.left_out == {"all replies were refused, and none of their texts is known": 4}
    assert exported.n_unknown == 8
    (example,) = examples(requests[:1], refused=True, texts={"a": "a newer text"}).examples
    assert example.candidates[0] == "text a"  # as it was shown


# the report


def test_figures_by_hand() -> None:
    requests = [
        use("1", "x", "taken", "a", time=MONDAY, model="m"),
        use("2", "x", "taken", "b", time=MONDAY + timedelta(days=6), model="m"),
        use("3", "x", "edited", "b", "y", time=MONDAY + timedelta(days=7), model="m", fingerprint="0123456789abcdef"),
        use("4", "x", "refused", replies="a", time=MONDAY + timedelta(days=8)),
        use("5", "x", None, time=MONDAY - timedelta(days=5), model="m"),  # Wednesday, 31 December 2025
    ]
    figures = report(requests)
    everything = {name: figures[name] for name in ("n_requests", "taken", "edited", "refused", "unanswered")}
    assert everything == {"n_requests": 5, "taken": 2, "edited": 1, "refused": 1, "unanswered": 1}
    assert figures["acceptance"] == 3 / 4
    assert figures["interval"] == pytest.approx([0.3006, 0.9544], abs=1e-4)  # from published tables of Wilson
    assert figures["mrr"] == pytest.approx((1 + 1 / 2 + 1 / 2) / 3)
    ranks = [(r["name"], r["n_shown"], r["taken"], r["edited"], r["acceptance"]) for r in figures["by_rank"]]
    assert ranks == [("1", 4, 1, 0, 1 / 4), ("2", 3, 1, 1, 2 / 3), ("3", 3, 0, 0, 0.0)]
    weeks = [(row["name"], row["n_requests"], row["acceptance"], row["mrr"]) for row in figures["by_week"]]
    assert weeks == [("2026-W01", 1, None, None), ("2026-W02", 2, 1.0, 0.75), ("2026-W03", 2, 0.5, 0.5)]
    models = [(row["name"], row["taken"], row["unanswered"]) for row in figures["by_model"]]
    assert models == [("m", 2, 1), ("m (0123456789ab)", 0, 0), ("unknown", 0, 0)]
    assert report([])["acceptance"] is None


def test_a_report_counts_replies_by_rank_and_requests_by_week(tmp_path: Path) -> None:
    table = [
        "rank shown taken edited accepted (%)",
        "1 2 0 0 0.0 (0.0-65.8)",
        "2 1 1 0 100.0 (20.7-100.0)",
        "3 1 0 0 0.0",
    ]
    table += ["week n taken edited refused unanswered accepted (%) MRR", "2026-W02 2 1 0 1 0 50.0 (9.5-90.5) 0.500"]
    table += ["model n taken edited refused unanswered accepted (%) MRR", "my-run/model (ffffffffffff) 1 1 0 0 0 100.0"]
    table += ["[red]bi (ffffffffffff) 1 0 0 1 0 0.0 (0.0-79.3)"]
    table += [
        "2 requests: 1 taken, 0 edited, 1 refused, 0 unanswered; accepted 50.0 (9.5-90.5)%; MRR of used replies 0.500"
    ]
    with FeedbackStore(tmp_path / "feedback.db") as store:
        store.record(SHOWN, TAKEN, replace(SHOWN, request_id="r2", replies=REPLIES[:1], model="[red]bi"))
        store.record(Outcome("r2", "refused"))
    command = ["feedback", "report", str(tmp_path / "feedback.db")]
    printed = CliRunner().invoke(app, command, env={"COLUMNS": "120"}).stdout
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert all(any(line.startswith(row) for line in lines) for row in table), lines


# the command line


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A feedback file with texts."""
    with FeedbackStore(tmp_path / "kept.db", keep_text=True) as store:
        for number, word in enumerate(["wifi", "router", "bill"]):
            request = f"{word}"
            time = MONDAY + timedelta(days=number)
            store.record(shown(request, f"my {word}", time=time), Outcome(request, "taken", "abc"[number]))
        store.record(shown("light", "my light"), Outcome("light", "refused"))
    return tmp_path / "kept.db"


def test_commands_export_and_report(kept: Path, tmp_path: Path) -> None:
    out = tmp_path / "used.jsonl"
    done = run("feedback", "export", kept, "-o", out, "--json")
    assert done.returncode == 0, done.stderr
    why = "all replies were refused, and no right reply is known"
    assert json.loads(done.stdout) == {"n_examples": 3, "n_requests": 4, "left_out": {why: 1}, "n_unknown": 0}
    assert f"1 left out: {why}" in done.stderr
    assert [e.response for e in read_examples(out).examples] == ["text a", "text b", "text c"]
    assert "already exists" in run("feedback", "export", kept, "-o", out).stderr
    done = run("feedback", "export", kept, "-o", out, "--overwrite", "--refused", "--since", "2026-01-05T12:01")
    assert done.returncode == 0, done.stderr
    assert [e.context for e in read_examples(out).examples] == [("my router",), ("my bill",), ("my light",)]
    done = run("feedback", "report", kept)
    assert done.returncode == 0, done.stderr
    assert "4 requests: 3 taken, 0 edited, 1 refused, 0 unanswered; accepted 75.0 (30.1-95.4)%" in done.stdout
    figures = json.loads(run("feedback", "report", kept, "--json").stdout)
    assert [name for name in figures if name.startswith("by_")] == ["by_rank", "by_week", "by_model"]


def test_a_report_is_of_the_requests_since_a_time(kept: Path) -> None:
    for since, counts in (("2026-01-06", [3, 2, 1]), ("2026-01-06T12:00", [3, 2, 1]), ("2026-01-06T12:01", [2, 1, 1])):
        later = CliRunner().invoke(app, ["feedback", "report", str(kept), "--json", "--since", since])
        assert [json.loads(later.stdout)[name] for name in ("n_requests", "taken", "refused")] == counts
    printed = CliRunner().invoke(app, ["feedback", "report", str(kept), "--since", "2026-01-07"]).stdout
    assert "2 requests: 1 taken, 0 edited, 1 refused, 0 unanswered; accepted 50.0 (9.5-90.5)%" in printed


def test_an_export_reports_how_many_texts_of_replies_are_unknown(tmp_path: Path) -> None:
    replies, out = (*REPLIES, Reply("d"), Reply("e"), Reply("f")), str(tmp_path / "used.jsonl")
    with FeedbackStore(tmp_path / "feedback.db", keep_text=True) as store:
        store.record(replace(SHOWN, replies=replies), TAKEN)
    write_index(
        tmp_path / "index", [Candidate("e", "goodbye")], np.ones((1, 2), np.float32), fingerprint="f", model="m"
    )
    for index, n in (([], 3), (["--index", str(tmp_path / "index")], 2)):
        command = ["feedback", "export", str(tmp_path / "feedback.db"), "-o", out, "--overwrite", "--json", *index]
        done = CliRunner().invoke(app, command)
        assert json.loads(done.stdout) == {"n_examples": 1, "n_requests": 1, "left_out": {}, "n_unknown": n}
        assert f"{n} replies that were shown are left out, because their texts are unknown" in done.stderr
        (example,) = read_examples(out).examples
        assert {*example.candidates} == {"restart it", "pay the bill", "thanks", *(["goodbye"] if index else [])}


@pytest.mark.slow
def test_final_texts_are_stored_with_slots(tmp_path: Path) -> None:
    replies = Reply("a", 2.0, "{order} is on its way"), Reply("b", 1.0, "Call 0800 123 456")
    sent = {
        "a": "AR-12345 is on its way",
        "b": "Hi Zoe, call 0800 123 456 about AR-12345",
        "c": "No, Zoe.",
        "d": "I called Zoe",
    }
    with FeedbackStore(tmp_path / "f", keep_text=True) as store:
        for name, text in sent.items():
            store.record(Shown(name, replies, Context("I'm Zoe, where is it?")), Outcome(name, "edited", "a", text))
            store.record(Outcome(name, "edited", "a", text))  # sent again
        assert [request.outcome and request.outcome.final_text for request in store.requests()] == [
            "{order} is on its way",
            "Hi {customer}, call 0800 123 456 about {order}",
            "No, {customer}.",
            "I called {customer}",  # the context alone shows that this is a name
        ]


@pytest.mark.deep
def test_one_command_trains_on_feedback(tiny_backbone: Path, tmp_path: Path) -> None:
    """A store without texts, after answers of a ranker, whose encoder is trained."""
    contexts = [Context(f"question {number}") for number in range(40)]
    rows = [{"context": context.turns, "response": "yes"} for context in contexts]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    pool = [Candidate(f"{letter}{number}", f"text {letter} to {number}") for letter in "abc" for number in range(7)]
    polyrank.build_index(tmp_path / "index", f"untuned:{tiny_backbone}", pool)
    polyrank.Ranker([(EncoderTerm(load_encoder("shipped:convert")), (1.0,))]).save(tmp_path / "best")
    with FeedbackStore(tmp_path / "kept.db") as store:
        for number, context in enumerate(contexts):
            replies = tuple(Reply(one.id) for one in pool[number % 7 :: 7])
            time, reply = MONDAY + timedelta(hours=number), replies[number % 3].id
            store.record(Shown(f"{number}", replies, context, time=time), Outcome(f"{number}", "taken", reply))
    texts = ["--index", tmp_path / "index", "--contexts", tmp_path / "chats.jsonl", "-o", tmp_path / "next"]
    command = ["feedback", "train", tmp_path / "kept.db", tmp_path / "best", *texts]
    done = run(*command, "--set", "train.epochs=1", "--since", "2026-01-06")
    assert done.returncode == 0, done.stderr
    used = {one.context for one in read_examples(tmp_path / "next" / "used.jsonl").examples}
    assert used == {(f"question {number}",) for number in range(12, 40)}  # the first twelve are of Monday
    assert "shipped:convert" in done.stdout
    assert "next/run/model" in done.stdout.replace("\n", "")
    recipe = (tmp_path / "next" / "recipe.toml").read_text("utf-8")
    assert 'negatives = { sources = ["given"], n = 2 }' in recipe
    cross, policy = CrossConfig(backbone=str(tiny_backbone)), TextPolicy(max_context_tokens=16, max_candidate_tokens=8)
    save_model(tmp_path / "cross", *new_model(cross, policy, seed=1, sample=["hi"]))
    late = LateConfig(backbone=str(tiny_backbone), joined_layers=1)
    save_model(tmp_path / "late", *new_model(late, policy, seed=1, sample=["hi"]))
    for model, message in (
        ("shipped:convert", "already exists"),
        ("bm25", "bm25 has no encoder that polyrank trained"),
        (tmp_path / "cross", "cross is a Cross-encoder; give the encoder that answered"),
        (tmp_path / "late", "late is a Cross-encoder; give the encoder that answered"),
        ("none", "none"),
    ):
        done = run("feedback", "train", tmp_path / "kept.db", model, *texts)
        assert (done.returncode != 0, message in done.stderr) == (True, True), done.stderr


def test_commands_refuse_wrong_arguments(kept: Path, tmp_path: Path) -> None:
    for arguments, code, message in (
        (["report", kept, "--since", "soon"], 2, "--since 'soon' is not a date; write 2026-05-31"),
        (["report", kept, "--since", "0001-01-01T00:00+14:00"], 3, "outside the years 1 to 9999 in UTC"),
        (["report", tmp_path / "none.db"], 4, "does not exist"),
        (["export", kept, "-o", kept], 2, "is read by this command; give another file"),
        (["export", kept, "-o", tmp_path / "x.jsonl", "--index", tmp_path / "none"], 4, "is not an index"),
        (["export", kept, "-o", tmp_path / "x.jsonl", "--since", "2999-01-01"], 3, "none of 0 requests"),
    ):
        done = run("feedback", *arguments)  # type: ignore[arg-type]
        assert (done.returncode, message in done.stderr) == (code, True), done.stderr
        assert "Traceback" not in done.stderr


def test_texts_missing_from_the_file_are_looked_up(tmp_path: Path, tiny_backbone: Path) -> None:
    index, chats = tmp_path / "index", tmp_path / "chats.jsonl"
    pool = [Candidate(id_, f"text {id_}") for id_ in "abc"]
    polyrank.build_index(index, f"untuned:{tiny_backbone}", pool)
    turns = ["my wifi is down", "text b", "thanks"]
    chats.write_text(json.dumps({"turns": [{"speaker": "x", "text": text} for text in turns]}) + "\n", "utf-8")
    with FeedbackStore(tmp_path / "bare.db") as store:
        for n in (1, 2):
            request = shown(f"{n}", Context(tuple(turns[:n])), "abcd" if n == 1 else "eabc")
            store.record(request, Outcome(f"{n}", "taken", "bc"[n - 1]))
        store.record(shown("elsewhere", "another question"), Outcome("elsewhere", "taken", "a"))
    command = ["feedback", "export", tmp_path / "bare.db", "-o", tmp_path / "used.jsonl"]
    done = run(*command, "--index", index)
    assert (done.returncode, "3 left out: the text of the context is unknown" in done.stderr) == (3, True)
    done = run(*command, "--index", index, "--contexts", chats)
    assert done.returncode == 0, done.stderr
    assert "1 left out: the text of the context is unknown" in done.stderr
    assert "2 replies that were shown are left out, because their texts are unknown" in done.stderr
    assert [(e.context, e.candidates) for e in read_examples(tmp_path / "used.jsonl").examples] == [
        (("my wifi is down",), ("text b", "text a", "text c")),
        (("my wifi is down", "text b"), ("text c", "text a", "text b")),
    ]


def test_recording_and_reading_import_no_torch() -> None:
    code = "import sys, polyrank.feedback, polyrank.cli.feedback; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_documentation_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    page = (ROOT / "docs" / "feedback.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "docs/feedback.md", "exec"), names)


@pytest.mark.parametrize("action", ["taken", "edited", "refused"])
def test_every_shown_reply_counts_whatever_its_place(action: Action) -> None:
    """Of six replies, the texts of some are kept, of others known to the index, and of one unknown."""
    kept, known = {"a": "text a", "e": "text e"}, {letter: f"index {letter}" for letter in "bcdf"}
    replies = tuple(Reply(letter, text=kept.get(letter)) for letter in "abcdefg")
    texts = kept | known
    for place, letter in enumerate("abcdef"):
        chosen = {
            "taken": Outcome("r", "taken", letter),
            "edited": Outcome("r", "edited", letter, "new words"),
            "refused": Outcome("r", "refused", None, "new words"),
        }[action]
        made = examples([RequestFeedback(Shown("r", replies, CONTEXT), chosen, context_code(CONTEXT))], texts=known)
        (example,) = made.examples
        right = texts[letter] if action == "taken" else "new words"
        wrong = [text for other in "abcdef" if (text := texts[other]) and (action == "refused" or other != letter)]
        assert example.candidates == (right, *wrong), place
        assert (example.relevant, made.n_unknown, made.left_out) == ((0,), 1, {})


def test_counts_are_of_taken_replies() -> None:
    outcomes = [
        Outcome("r", "taken", "a"), Outcome("r", "taken", "b"), Outcome("r", "edited", "a", "new"),
        Outcome("r", "taken", "a"), Outcome("r", "refused"), None,
    ]  # fmt: skip
    requests = [RequestFeedback(shown("r"), outcome, context_code(CONTEXT)) for outcome in outcomes]
    assert count_taken(requests) == {"a": 2, "b": 1}
