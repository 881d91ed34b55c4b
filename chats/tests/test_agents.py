"""The agents of chats: by words, by behaviour, by options, and by the answer at a terminal."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from polyrank_chats import import_chats
from polyrank_chats.errors import DataError, UsageError

Write = Callable[[str, Any], Path]
STAFF = ("Bea", "Cy", "Dee", "Eve")


def help_desk(n: int = 40, *, begins: str = "customer") -> list[tuple[int, str, str]]:
    """Conversations of customers, of whom some return, with one of the staff."""
    rows = []
    for i in range(n):
        both = [f"guest {i // 2 if i < 10 else i}", STAFF[i * 7 % 4]]
        both = both if begins == "customer" else both[::-1]
        rows += [(i, who, f"text {i} {k}") for k, who in enumerate((*both, *both))]
    return rows


def csv_of(write: Write, rows: Sequence[tuple[Any, ...]], header: str = "conversation,sender,text") -> Path:
    return write("x.csv", "\n".join([header, *(",".join(map(str, row)) for row in rows)]))


def parts(path: Path, **options: Any) -> list[list[str]]:
    return [[turn["speaker"] for turn in row["turns"]] for row in import_chats(path, **options).dialogues]


@pytest.mark.parametrize("begins", ["customer", "agent"])
def test_agents_by_their_behaviour(write: Write, begins: str) -> None:
    path = csv_of(write, help_desk(begins=begins))
    both = ["customer", "agent"] if begins == "customer" else ["agent", "customer"]
    found = import_chats(path)
    assert parts(path) == [both * 2] * 40
    assert found.report.guessed is not None
    assert set(found.report.guessed) == set(STAFF)
    assert any("agents by their behaviour: " in note for note in found.report.notes)


def test_two_people_who_talk_only_to_each_other(write: Write) -> None:
    chat = [f"{day}.1.24, 9:{minute:02} - {who}: x{day}{minute}" for day in range(1, 9) for minute, who in
            enumerate(("Ann", "Shop"))]  # fmt: skip
    assert parts(write("x.txt", "\n".join(chat).replace("Shop", "Bo"))) == [["customer", "agent"]] * 8


def test_friends_are_not_agents(write: Write) -> None:
    rows = [(i, "ABCD"[(i * 3 + k * (1 + i % 3)) % 4], f"x{i}{k}") for i in range(20) for k in range(4)]
    found = import_chats(csv_of(write, rows))
    assert found.report.guessed == []
    assert {*found.report.speakers} == {*"ABCD"}


def test_the_domain_of_mail_addresses(write: Write) -> None:
    rows = []
    for i in range(12):
        guest = f"g{i}@{('gmail.example', 'web.example', 'home.example')[i % 3]}"
        rows += [(i, guest, f"q{i}"), (i, f"staff{i}@shop.example", f"a{i}")]
    assert parts(csv_of(write, rows)) == [["customer", "agent"]] * 12


@pytest.mark.deep
def test_forgotten_agents_are_named(write: Write) -> None:
    path = csv_of(write, help_desk())
    with pytest.raises(UsageError, match=r"other senders look like agents: (Cy|Eve) \(20\), .*name them too"):
        import_chats(path, agent=["Bea", "Dee"])
    assert parts(path, agent=STAFF) == [["customer", "agent"] * 2] * 40
    some = parts(path, agent=["Bea", "Dee"], customer=["Cy", "Eve"])
    assert sum("agent" in each for each in some) == 20
    assert parts(path, agent=["Bea", "Dee"], customer="*") == some
    assert parts(path, agent=["bea", "DEE", "Cy", "Eve"]) == [["customer", "agent"] * 2] * 40
    with pytest.raises(DataError, match="has no sender 'Zoe'"):
        import_chats(path, agent="Zoe")


@pytest.mark.parametrize("role", ["", "agent"])
def test_customers_of_the_options_are_not_agents(write: Write, role: str) -> None:
    """They look like agents, by their behaviour or by their role; the others are detected without them."""
    rows = [(i, who, text, role if who in STAFF else "") for i, who, text in help_desk()]
    path = csv_of(write, rows, "conversation,sender,text,role")
    expected = [["customer", "customer" if "Bea" in talk else "agent"] * 2
                for talk in ([who for n, who, *_ in rows if n == i] for i in range(40))]  # fmt: skip
    assert sum("agent" in each for each in expected) == 30
    assert parts(path, customer="bea") == expected
    assert "Bea" not in (import_chats(path, customer="Bea").report.guessed or [])
    with pytest.raises(DataError, match="has no sender 'Zoe'; its senders are 'Bea', "):
        import_chats(path, customer=["Bea", "Zoe"])


@pytest.mark.parametrize("name", ["SYSTEM", "system", "Notification"])
def test_every_sender_can_be_the_agent(write: Write, name: str) -> None:
    path = csv_of(write, [(1, "Ann", "hi"), (1, name, "we are closed"), (1, "Ann", "ok")])
    assert parts(path, agent=name) == [["customer", "agent", "customer"]]
    with pytest.raises(DataError, match=r"\(1 by a system: name it with the option agent if it answers\)"):
        import_chats(path)


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        (("user", "operator", "teammate", "user"), ["customer", "bot", "agent", "customer"]),
        (("customer", "operator", "customer"), ["customer", "agent", "customer"]),
        (("contact", "user", "contact"), ["customer", "agent", "customer"]),
        (("user", "assistant", "user"), ["customer", "agent", "customer"]),
    ],
)
def test_words_whose_meaning_depends_on_the_others(write: Write, roles: Sequence[str], expected: list[str]) -> None:
    rows = [(1, f"name {role}", role, f"x{k}") for k, role in enumerate(roles)]
    assert parts(csv_of(write, rows, "conversation,author_name,author_type,body")) == [expected]


def test_roles_of_the_users_of_a_ticket(write: Write) -> None:
    requester, assignee = {"id": 1, "name": "Ann", "role": "end-user"}, {"id": 2, "name": "Bo", "role": "agent"}
    comments = [{"author_id": 1, "body": "hi"}, {"author_id": 2, "body": "hello"}]
    ticket = {"id": 7, "subject": "x", "description": "hi", "requester": requester, "assignee": assignee}
    assert parts(write("x.json", [ticket | {"comments": comments}])) == [["customer", "agent"]]


@pytest.mark.deep
@pytest.mark.parametrize(
    ("typed", "expected"),
    [("1 2 3 4\ny\n", ["customer", "agent"]), ("\ny\n", ["customer", "agent"]), ("9 x\n", None)],
)
def test_a_terminal_asks_for_the_agents(write: Write, tmp_path: Path, typed: str, expected: list[str] | None) -> None:
    path, out = csv_of(write, help_desk()), tmp_path / "out.jsonl"
    here, there = os.openpty()
    os.write(here, typed.encode())
    command = [sys.executable, "-m", "polyrank_chats", str(path), "-o", str(out)]
    done = subprocess.run(command, stdin=there, stdout=there, stderr=there, check=False)
    os.close(there)
    shown = os.read(here, 100_000).decode()
    os.close(here)
    assert "who are the agents?" in shown
    assert "looks like an agent" in shown
    if expected is None:
        assert (done.returncode, out.exists()) == (2, False)
    else:
        rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
        assert [[turn["speaker"] for turn in row["turns"]] for row in rows] == [expected * 2] * 40
