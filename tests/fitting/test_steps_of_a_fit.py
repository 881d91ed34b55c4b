"""The parts of a fit without training: its journal, minutes, facts, plans and tables, each with several entries."""

from pathlib import Path
from typing import Any

import pytest

from polyrank.cli.training import TrainingDisplay
from polyrank.fitting.budget import Budget
from polyrank.fitting.data import FitData, part_files, repeated_share
from polyrank.fitting.journal import Journal
from polyrank.fitting.recipes import Planned
from polyrank.fitting.report import Line, Section, commands_of
from polyrank.records import Candidate, Example


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
    damaged.versions = {**damaged.versions, "torch": "another"}
    recalled(damaged, *steps[2])
    assert ran[5:] == ["terms"]


def test_minutes_are_counted_once_and_the_end_has_a_margin() -> None:
    now = [0.0]
    budget = Budget(30.0, spent=lambda: 4.0, clock=lambda: now[0])
    assert budget.left == 26.0
    now[0] = 120.0
    assert budget.left == 24.0
    budget.reserved = 10.0
    assert budget.left == 12.0
    budget.spent = lambda: 20.0
    assert budget.left == -4.0


def pairs(*names: str, reply: str = "hello") -> list[Example]:
    return [
        Example((f"where is it, {name}?",), (f"{reply} {i // 2}", "no"), (0,), name) for i, name in enumerate(names)
    ]


def test_facts_are_those_of_all_parts() -> None:
    data = FitData(
        {}, None, pairs("a#0", "a#1", "b#0", "c#0", "c#1"), pairs("d#0", "e#0", "e#1"), pairs("f#0", "g#0", "g#1"),
        [Candidate("r", "hello"), Candidate("s", "bye")], 0.25,
    )  # fmt: skip
    facts = data.facts()
    assert facts["pairs"] == {"train": 5, "valid": 3, "test": 3}
    assert facts["conversations"] == {"train": 3, "valid": 2, "test": 2}
    assert (facts["replies"], facts["repeated"]) == (2, 0.25)
    assert sum(facts["languages"].values()) == pytest.approx(1)
    assert repeated_share(data.pairs) == 4 / 5
    assert repeated_share([]) == 0


def test_parts_are_found_only_together(tmp_path: Path) -> None:
    for name in ("train.jsonl", "valid.jsonl.gz"):
        (tmp_path / name).touch()
        assert part_files(tmp_path) == {}
    (tmp_path / "test.jsonl").touch()
    (tmp_path / "test.jsonl.gz").touch()
    found = {name: path.name for name, path in part_files(tmp_path).items()}
    assert found == {"train": "train.jsonl", "valid": "valid.jsonl.gz", "test": "test.jsonl"}
    assert part_files(tmp_path / "train.jsonl") == {}


def test_a_plan_counts_its_updates_and_changes_only_its_recipe(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.jsonl" for name in ("train", "valid", "test")}
    data = FitData(files, "agent", pairs(*(f"p{i}" for i in range(10))), [], [], [], 0.0)
    tables: dict[str, Any] = {"model": {"kind": "bi"}, "train": {"epochs": 3, "batch_size": 4, "lr": 1e-5}}
    for part, n_steps in (({}, 9), ({"max_train": 8}, 6), ({"max_train": 5}, 6), ({"max_train": 99}, 9)):
        planned = Planned("x", "x", tables | ({"data": part} if part else {}))
        assert planned.n_steps(data) == n_steps
        recipe = planned.recipe(data, tmp_path / "run", max_steps=7, lr=2e-5)
        assert recipe["data"] | part == recipe["data"]
        assert recipe["data"]["train"] == str(files["train"])
        assert (recipe["data"]["speaker"], "test" in recipe["data"]) == ("agent", False)
        assert recipe["train"]["max_steps"] == 7
        assert (recipe["train"]["lr"], tables["train"]["lr"]) == (2e-5, 1e-5)
        assert (recipe["model"], recipe["output"]) == ({"kind": "bi"}, str(tmp_path / "run"))


def test_a_line_shows_what_was_measured() -> None:
    figure = {"mean": 0.5, "low": 0.25, "high": 0.75}
    whole = Line("step", {"MRR": figure}, figure, True, 1.25, 3.04, "why")
    assert whole.cells() == ["step", "50.0 (25.0 to 75.0)", "+50.0 (+25.0 to +75.0)", "kept: why", "1.2", "3.0"]
    assert Line("a", kept=False, note="why").cells() == ["a", "", "", "not kept: why", "", ""]
    assert Line("a", kept=False).cells()[3] == "not kept"
    assert Line("a", note="alone").cells() == ["a", "", "", "alone", "", ""]
    assert Line("a", milliseconds=0.0).cells()[5] == "0.0"
    section = Section(
        "T", ["one.", "two & 3."], ["a", "b"], [["1", "x\ny|z"], ["2", "<b>"]], ["polyrank a", "polyrank b"]
    )
    assert section.markdown() == (
        "## T\n\none.\n\ntwo & 3.\n\n| a | b |\n| --- | --- |\n| 1 | x y\\|z |\n| 2 | \\<b> |"
        "\n\n```sh\npolyrank a\npolyrank b\n```"
    )
    assert section.html().count("<tr>") == 3
    assert "<p>two &amp; 3.</p>" in section.html()
    assert "<td>&lt;b&gt;</td>" in section.html()
    assert "polyrank a\npolyrank b\n</code></pre>" in section.html()


def test_the_commands_make_the_ranker_of_all_its_models(tmp_path: Path) -> None:
    for name in ("bi", "late"):
        (tmp_path / "runs" / name / "model").mkdir(parents=True)
    models = ["shipped:minilm", *(str(tmp_path / "runs" / name / "model") for name in ("bi", "late"))]
    files = {name: Path(f"{name}.jsonl") for name in ("train", "valid", "test")}
    for ms, option in ((None, ""), (50.0, " --ms 50")):
        found = commands_of(tmp_path, files, models, {"ms": ms, "precision": 0.75})
        assert found == [
            *(f"polyrank train {tmp_path}/runs/{name}/recipe.json" for name in ("bi", "late")),
            f"polyrank tune {' '.join(models)} --valid valid.jsonl --dialogues train.jsonl -o best{option}"
            " --precision 0.75",
            "polyrank evaluate best test.jsonl",
            f"polyrank index build best {tmp_path}/replies.jsonl -o my-index",
        ]


def test_trainings_at_the_same_time_show_their_own_figures(capsys: pytest.CaptureFixture[str]) -> None:
    def record(step: int, loss: float, n: int, seconds: float) -> dict[str, Any]:
        return {"step": step, "n_steps": 100, "loss": loss, "n_examples": n, "seconds": seconds}

    with TrainingDisplay() as display:
        display.report("Bi-encoder", record(50, 2.0, 500, 1.0))
        display.report("Bi-encoder", {"step": 50, "valid": {"loss": 1.5, "R@1": 0.25}})
        display.report(1, record(50, 3.0, 100, 10.0))
        display.report("Bi-encoder", record(100, 1.0, 1000, 2.0))
        display.report("Bi-encoder", record(100, 1.0, 100, 1.0))  # began again
    assert capsys.readouterr().err.splitlines() == [
        "Bi-encoder step 50/100: loss 2.000; 500 examples/s",
        "Bi-encoder step 50: valid loss 1.500 R@1 0.250",
        "seed 1 step 50/100: loss 3.000; 10 examples/s",
        "Bi-encoder step 100/100: loss 1.000; valid loss 1.500 R@1 0.250; 500 examples/s",
        "Bi-encoder step 100/100: loss 1.000; valid loss 1.500 R@1 0.250; 100 examples/s",
    ]
