"""A child process shares no lock, connection or thread with its parent: nothing is lost, and nothing waits for ever."""

import multiprocessing
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import polyrank
from forked.load import KINDS, forks
from polyrank.devices import choice
from polyrank.index import open_index, verify_index
from polyrank.index.remote import Address
from polyrank.index.remote.postgresql import PostgresqlTable
from polyrank.storage.forks import new_lock, new_rlock
from servers import serving

pytestmark = [pytest.mark.skipif(not hasattr(os, "fork"), reason="needs forks")]

START = """
import os, sys, threading, traceback
import polyrank
from polyrank.errors import LockedError

def in_child(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = work() or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return pid

def ended(*pids):
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
"""
CHILDREN_ADD = """
from polyrank.index import open_writer
replies = polyrank.open(sys.argv[1], device="cpu", wait_s=60.0)
before = len(replies)
replies.add(["by the parent"])

def add():
    answers = [replies.answer(f"question {i}", 1).text for i in range(10)]
    assert all(answers), answers
    for i in range(3):
        replies.add([f"by child {os.getpid()} {i}"])

children = [in_child(add) for _ in range(4)]
for i in range(3):
    replies.add([f"by the parent {i}"])
assert ended(*children) == [0] * 4
assert len(replies) == before + 16, len(replies)

writer = open_writer(sys.argv[1])
writer.remove(["none"])

def refused():
    try:
        writer.remove(["none"])
        return 2
    except LockedError as error:
        assert f"process {os.getppid()}" in str(error), error

assert ended(*(in_child(refused) for _ in range(4))) == [0] * 4
writer.remove(["none"])  # the children released nothing of its lock
reader, end = os.pipe()

def wait():
    os.read(reader, 1)  # until the parent has closed its writer
    assert writer.remove(["none"]) == 0
    writer.close()
    replies.add(["by a child"])

child = in_child(wait)
writer.close()
os.write(end, b"x")
assert ended(child) == [0]
with polyrank.open(sys.argv[1], device="cpu") as other:
    other.add(["at the end"])
    assert other.answer("by a child", 1, allow_echo=True).text == "by a child"
"""
CHILDREN_SCORE = """
model = polyrank.load(sys.argv[1], device="cpu")
texts = [f"text {i}" for i in range(300)]
expected = model.score(["hi"], [texts])[0]

def score():  # with one thread, whose sums may differ in the last bit
    assert abs(model.score(["hi"], [texts])[0] - expected).max() < 1e-5

codes = ended(*(in_child(score) for _ in range(3)))
assert codes == [0] * 3, codes
"""
CHILDREN_RECORD = """
from polyrank.feedback import FeedbackStore, Reply, Shown
from polyrank.storage.sqlite import transaction
store = FeedbackStore(sys.argv[1])

def record(name, n):
    for i in range(n):
        store.record(Shown(f"{name}-{i}", (Reply("a"),)))

record("parent", 5)
children = [in_child(lambda name=name: record(name, 20)) for name in "abc"]
record("again", 20)
assert ended(*children) == [0] * 3
begun, forking, statements = threading.Event(), threading.Event(), []
os.register_at_fork(before=forking.set)

def write():
    with store._using(), transaction(store._connection, write=True):
        begun.set()
        forking.wait()

def record_alone():
    record("inside", 5)
    assert not [one for one in statements if "INSERT" in one], statements  # of the parent's connection

store._connection.set_trace_callback(statements.append)
thread = threading.Thread(target=write)
thread.start()
begun.wait()
statements.clear()
child = in_child(record_alone)
assert ended(child) == [0]
assert len(store) == 90, len(store)
"""
CHILDREN_ASK = """
client = polyrank.Client(sys.argv[1])
texts = [f"text {i}" for i in range(8)]
expected = {text: client.score(text, texts) for text in texts}

def ask(mine):
    for _ in range(15):
        pairs = zip(client.score(mine, texts), expected[mine], strict=True)
        assert all(abs(a - b) < 1e-4 for a, b in pairs)  # scores of other texts differ by more

codes = ended(*(in_child(lambda text=text: ask(text)) for text in texts[:4]))
assert codes == [0] * 4, codes
"""


def run(code: str, *arguments: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", START + code, *map(str, arguments)], capture_output=True, text=True, timeout=300,
        check=False, env={**os.environ, "OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture
def index(tmp_path: Path) -> Path:
    polyrank.build_index(tmp_path / "index", polyrank.load("shipped:convert"), [f"reply {i}" for i in range(203)])
    return tmp_path / "index"


@pytest.mark.deep
def test_children_of_a_writer_read_and_wait_for_its_lock(index: Path) -> None:
    run(CHILDREN_ADD, index)
    with open_index(index) as opened:
        texts = {candidate.text for _, candidate in opened.iter_candidates()}
    assert len(texts) == 221
    assert {"by the parent", "by the parent 2", "by a child", "at the end"} < texts
    verify_index(index)


@pytest.mark.deep
def test_a_child_scores_like_its_parent() -> None:
    run(CHILDREN_SCORE, "shipped:convert")


@pytest.mark.deep
def test_children_and_their_parent_record_feedback(tmp_path: Path) -> None:
    run(CHILDREN_RECORD, tmp_path / "feedback.db")


@pytest.mark.slow
@pytest.mark.deep
def test_children_of_a_client_get_their_own_answers() -> None:
    with serving("shipped:convert") as server:
        run(CHILDREN_ASK, server.url)


def add_three(path: Path, name: str) -> None:
    with polyrank.open(path, device="cpu", wait_s=60.0) as replies:
        for i in range(3):
            replies.add([f"by {name} {i}"])


@pytest.mark.deep
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_lose_no_change(index: Path, method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    with polyrank.open(index, device="cpu", wait_s=60.0) as replies:
        before = len(replies)
        replies.add(["before"])
        children = [context.Process(target=add_three, args=(index, name)) for name in "ab"]
        for child in children:
            child.start()
        replies.add(["meanwhile"])
        for child in children:
            child.join()
            assert child.exitcode == 0
        assert len(replies) == before + 8
    assert verify_index(index) == []


@pytest.mark.deep
@pytest.mark.parametrize("kind", KINDS)
def test_servers_that_fork_lose_no_change_and_mix_up_no_answer(kind: str, tmp_path: Path) -> None:
    if kind != "pool":
        pytest.importorskip(kind)
    counted = forks(kind, 6, tmp_path)
    assert counted["forks"] >= 6
    assert counted["requests"] > 6
    problems = counted["acknowledged_and_lost"], counted["wrong_answers"], counted["index_problems"]
    assert problems == (0, {}, 0)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # that it has threads, which is the case here
def test_all_locks_are_free_in_a_child_and_as_before_in_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrank.storage.forks.WAIT_S", 0.05)
    held, free = (
        [*(new_lock() for _ in range(6)), *(new_rlock() for _ in range(6))],
        [new_lock(), new_lock(), new_rlock()],
    )
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in held:
            lock.acquire()
        inside.set()
        leave.wait()

    thread = threading.Thread(target=hold, daemon=True)  # so that a failure does not wait for it
    thread.start()
    inside.wait()
    n_threads = torch.get_num_threads()
    monkeypatch.setattr(choice._load, "watched", True)
    choice.set_threads(2)
    began = time.monotonic()
    if (pid := os.fork()) == 0:  # where torch has one thread: those of its parent do not exist
        os._exit(sum(not lock.acquire(blocking=False) for lock in (*held, *free)) + torch.get_num_threads() - 1)
    waited = time.monotonic() - began
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert torch.get_num_threads() == 2
    torch.set_num_threads(n_threads)
    assert 0.05 <= waited < 0.5  # for all locks together
    assert not any(lock.acquire(blocking=False) for lock in held)
    leave.set()
    thread.join()
    taken: list[bool] = []
    other = threading.Thread(target=lambda: taken.extend(lock.acquire(blocking=False) for lock in free))
    other.start()
    other.join()
    assert taken == [True] * 3


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_leaves_the_connection_to_a_server_to_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed; install polyrank[postgresql]")

    class Connection:
        def execute(self, *_: Any) -> Any:
            return SimpleNamespace(description=True, fetchall=lambda: [(3,)])

    monkeypatch.setattr(psycopg, "connect", lambda **_: Connection())
    table = PostgresqlTable(Address("postgresql://h:5432", "replies", "shop"))
    assert table.count() == 3
    del table._client.wait  # which refers to the connection, so that nothing else would keep it
    first = weakref.ref(table._client)
    if (pid := os.fork()) == 0:  # which opens its own and does not close that of its parent
        gone, table_is_new = first() is None, table._client is None and table.count() == 3
        os._exit(gone + 2 * (not table_is_new))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert table._client is first()
