"""Extensions by other distributions: commands pass their arguments on, and a missing distribution is named."""

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyrank.data import read_examples, read_replies
from polyrank.errors import DataError, PolyrankError, UsageError
from polyrank.loading.extensions import extension, polyrank_errors
from processes import run

Write = Callable[[str, Any], Path]
CHATS = "ticket,sender,message\n7,Ann,My wifi is down\n7,support,Restart it\n"


@pytest.mark.deep
def test_the_command_turns_chats_into_trainable_dialogues(write: Write, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = run("import", "chats", write("x.csv", CHATS), "--yes", "-o", out)
    assert (done.returncode, "1 conversation of 2 turns" in done.stderr) == (0, True)
    (example,) = read_examples(out, speaker="agent").examples
    assert (example.context, example.candidates) == (("My wifi is down",), ("Restart it",))
    again = run("import", "chats", write("x.csv", CHATS), "-o", out)
    assert (again.returncode, "already exists" in again.stderr) == (2, True)
    assert run("import", "chats", write("y.csv", ""), "-o", tmp_path / "y").returncode == 3
    shown = run("import", "chats", "--help").stdout
    assert "polyrank import chats SOURCE -o FILE" in shown
    assert "--conversation" in shown


def test_a_missing_distribution_is_named(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrank.loading.extensions.entry_points", lambda **_: importlib.metadata.EntryPoints())
    with pytest.raises(
        UsageError, match="polyrank-chats is not installed; install it with: pip install polyrank-chats"
    ):
        read_replies(write("r.csv", "text\nyes\n"))
    with pytest.raises(UsageError, match="polyrank-ray is not installed; install it with: pip install polyrank-ray"):
        extension("ray")


class RefusalError(Exception):
    """An error of an extension."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.exit_code = code


@pytest.mark.parametrize("kind", [UsageError, DataError])
def test_errors_of_extensions_are_polyranks_of_the_same_code(kind: type[PolyrankError]) -> None:
    with pytest.raises(kind, match=f"code {kind.exit_code}") as raised, polyrank_errors():
        raise RefusalError(kind.exit_code)
    assert raised.value.exit_code == kind.exit_code
    with pytest.raises(RefusalError), polyrank_errors():
        raise RefusalError(99)
    with pytest.raises(KeyError), polyrank_errors():
        raise KeyError
