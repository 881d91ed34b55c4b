"""Results of steps that outlive their process."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from polyrank.storage.journal import Journal


def test_a_journal_computes_again_only_what_changed_and_adds_up_the_time_of_the_rest(tmp_path: Path) -> None:
    now, ran = [100.0], list[str]()

    def recalled(journal: Journal, name: str, n: int, seconds: float) -> Any:
        def compute() -> dict[str, int]:
            ran.append(name)
            now[0] += seconds
            return {"n": n}

        return journal.recall(name, {"n": n, "of": {"b": 1, "a": [n]}}, compute)

    steps = [("data", 1, 5.0), ("shipped", 2, 7.0), ("terms", 3, 11.0)]
    first = Journal(tmp_path / "steps", lambda: now[0])
    assert [recalled(first, *step) for step in steps] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert (ran, first.seconds) == (["data", "shipped", "terms"], 0.0)
    again = Journal(tmp_path / "steps", lambda: now[0])
    assert [recalled(again, *step) for step in steps] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert (len(ran), again.seconds) == (3, 23.0)
    changed = Journal(tmp_path / "steps", lambda: now[0])
    assert [recalled(changed, *step) for step in (steps[0], ("shipped", 9, 2.0), steps[2])] == [
        {"n": 1},
        {"n": 9},
        {"n": 3},
    ]
    assert (ran[3:], changed.seconds) == (["shipped"], 16.0)
    (tmp_path / "steps" / "terms.json").write_bytes((tmp_path / "steps" / "terms.json").read_bytes()[:-9])
    damaged = Journal(tmp_path / "steps", lambda: now[0])
    recalled(damaged, *steps[2])
    recalled(damaged, *steps[2])
    assert (ran[4:], damaged.seconds) == (["terms"], 11.0)


@pytest.mark.parametrize("changed", ["polyrank", "numpy", "torch", "transformers"])
def test_another_version_of_what_computes_a_step_computes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    ran: list[int] = []

    def recalled() -> None:
        journal = Journal(tmp_path, lambda: 0.0)
        assert journal.recall("one", {}, lambda: ran.append(1) or {"n": len(ran)}) == {"n": len(ran)}

    recalled()
    recalled()
    assert len(ran) == 1
    if changed == "polyrank":
        monkeypatch.setattr("polyrank.storage.journal.__version__", "another")
    else:
        versions = {changed: "another"}
        monkeypatch.setattr("polyrank.storage.journal.version", lambda name: versions.get(name) or version(name))
    recalled()
    recalled()
    assert len(ran) == 2
