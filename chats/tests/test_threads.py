"""Trees of replies and chats with replies, message by message: several senders, replies, pauses and streams."""

from datetime import datetime, timedelta

import pytest

from polyrank_chats import threads
from polyrank_chats.errors import DataError
from polyrank_chats.messages import Message, Reason
from polyrank_chats.report import Report
from polyrank_chats.threads import PAUSE, threaded

START = datetime(2024, 5, 6, 10)


def said(text: str, *answers: str, minutes: float = 0, is_chat: bool = True, stream: str = "s") -> Message:
    """A message such as "Ann 1", whose text is also its id."""
    at = START + timedelta(minutes=minutes)
    return Message("", stream, text.split()[0], text, None, at, id=text, answers=answers, is_chat=is_chat)


def talks(*messages: Message) -> dict[str | None, list[str]]:
    found: dict[str | None, list[str]] = {}
    for each in threaded(messages, Report()):
        found.setdefault(each.conversation, []).append(each.text)
    return found


def test_a_sender_continues_the_conversation_in_which_he_spoke_last_within_a_pause() -> None:
    pause = PAUSE.total_seconds() / 60
    chat = [
        said("Ann 1"), said("Ben 1", "Ann 1", minutes=1), said("Cy 1", minutes=2), said("Ben 2", "Cy 1", minutes=3),
        said("Ann 2", minutes=pause), said("Cy 2", minutes=pause + 2), said("Ben 3", "Ann 2", minutes=pause + 3),
        said("Ann 3", minutes=2 * pause), said("Ann 4", minutes=3 * pause + 0.1), said("Ann 5", minutes=3 * pause + 1),
    ]  # fmt: skip
    assert talks(*chat) == {
        "Ann 1": ["Ann 1", "Ben 1", "Ann 2", "Ben 3", "Ann 3"],
        "Cy 1": ["Cy 1", "Ben 2", "Cy 2"],
        "Ann 4": ["Ann 4", "Ann 5"],
    }
    two = [each for each in chat if not each.text.startswith("Cy") and each.text != "Ben 2"]
    assert talks(*two) == {None: [each.text for each in two]}  # of two people: one talk, divided at pauses


def test_a_sender_who_names_what_he_answers_begins_with_what_others_answer() -> None:
    chat = [
        said("Ann 1"), said("Ben 1", "Ann 1", minutes=1), said("Ann 2", "Ben 1", minutes=2),
        said("Ann 3", minutes=3), said("Cy 1", "Ann 3", minutes=4),  # a new question, since it is answered
        said("Ann 4", minutes=5),
    ]  # fmt: skip
    assert talks(*chat) == {"Ann 1": ["Ann 1", "Ben 1", "Ann 2"], "Ann 3": ["Ann 3", "Cy 1", "Ann 4"]}


def test_replies_of_one_sender_follow_each_other_and_others_branch() -> None:
    tree = [
        said("Ann 1", is_chat=False),
        *(said(f"Ben {n}", "Ann 1", minutes=n, is_chat=False) for n in (1, 2, 3)),
        said("Cy 1", "Ann 1", minutes=4, is_chat=False),
        said("Dee 1", "Cy 1", minutes=5, is_chat=False),
        said("Eve 1", "Cy 1", minutes=6, is_chat=False),
    ]
    report = Report()
    found: dict[str | None, list[str]] = {}
    for each in threaded(tree, report):
        found.setdefault(each.conversation, []).append(each.text)
    assert found == {
        "Ann 1": ["Ann 1", "Ben 1", "Ben 2", "Ben 3"],
        "Ann 1:2": ["Ann 1", "Cy 1", "Dee 1"],
        "Ann 1:3": ["Ann 1", "Cy 1", "Eve 1"],
    }
    assert report.notes == ["replies branch, so 2 more conversations share their first messages with another"]


def test_streams_ids_and_circles_are_apart() -> None:
    several = [said("Ann 1", is_chat=False, stream=stream) for stream in ("s", "t")]
    several += [said("Ben 1", "Ann 1", is_chat=False, stream=stream) for stream in ("t", "s")]
    assert [(each.stream, each.text) for each in threaded(several, Report())] == [
        ("s", "Ann 1"), ("s", "Ben 1"), ("t", "Ann 1"), ("t", "Ben 1")
    ]  # fmt: skip
    report = Report()
    again = [said("Ann 1", is_chat=False), said("Ann 1", is_chat=False), said("Ben 1", "none", "Ann 1", is_chat=False)]
    assert [each.text for each in threaded(again, report)] == ["Ann 1", "Ben 1"]
    assert report.left_out == {Reason.REPEATED: 1}
    circle = [said(f"{a} 1", f"{b} 1", is_chat=False) for a, b in ("AB", "BC", "CA", "DC")]
    assert talks(*circle) == {"C 1": ["C 1", "B 1", "A 1"], "C 1:2": ["C 1", "D 1"]}


def test_paths_of_too_many_messages_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "MAX_TURNS", 7)
    tree = [said("Ann 1", is_chat=False)]
    for n, name in enumerate(("Ben", "Cy", "Dee"), 1):
        tree.append(said(f"{name} 1", "Ann 1", is_chat=False, minutes=n))
    assert len(threaded(tree, Report())) == 6
    tree.append(said("Eve 1", "Ann 1", is_chat=False, minutes=5))
    with pytest.raises(DataError, match="have more than 7 messages"):
        threaded(tree, Report())
