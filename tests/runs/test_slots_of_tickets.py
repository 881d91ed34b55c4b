"""No planted value of a customer reaches the catalogue, answers, the log or the feedback: runs/slots.py."""

import sys
from pathlib import Path

import pytest

from polyrank.data import frequent_replies, read_examples

sys.path.insert(0, str(Path(__file__).parents[2] / "runs"))

from slots import leaks, said_as_is, search, tickets, with_slots


@pytest.mark.deep
@pytest.mark.parametrize("least", [1, 2])
def test_no_reply_of_a_catalogue_holds_a_planted_value(least: int) -> None:
    made = tickets(80, seed=least)
    examples = read_examples([ticket.row() for ticket in made], speaker="agent").examples
    catalogue = frequent_replies(examples, min_count=least)
    assert len(catalogue) > 20
    assert not leaks((reply.text for reply in catalogue), set().union(*(ticket.planted for ticket in made)))


@pytest.mark.deep
@pytest.mark.parametrize("least", [1, 2])
def test_no_planted_value_leaks(least: int, tmp_path: Path) -> None:
    made = tickets(80, seed=least)
    examples = read_examples([ticket.row() for ticket in made], speaker="agent").examples
    catalogue = frequent_replies(examples, min_count=least)
    assert len(catalogue) > 20
    found = search(made, catalogue, tmp_path, "shipped:convert")
    assert found == dict.fromkeys(("catalogue", "answers", "log", "feedback"), 0)


def test_planted_values_are_found_without_slots() -> None:
    made = tickets(20)
    examples = read_examples([ticket.row() for ticket in made], speaker="agent").examples
    planted = set().union(*(ticket.planted for ticket in made))
    assert len(leaks(said_as_is(examples), planted)) > 20
    assert not leaks(["Zoebel"], ["Zoe"])
    right = with_slots(examples[0])
    assert right.relevant == (0,)
