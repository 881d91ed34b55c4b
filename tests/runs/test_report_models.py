"""runs/report/models.py: rows of models that have changed since are noticed."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

RUNS = Path(__file__).parents[2] / "runs"
NOW, BEFORE = "a" * 64, "b" * 64


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The faults of two files of rows, where shipped:convert has the fingerprint NOW."""
    monkeypatch.syspath_prepend(str(RUNS))
    from report.models import mixed

    yield lambda *rows: _faults(mixed, tmp_path, rows)
    for name in [name for name in sys.modules if name in ("record", "report") or name.startswith("report.")]:
        del sys.modules[name]


def _faults(mixed: Any, folder: Path, rows: tuple[Any, ...]) -> list[str]:
    (folder / "config.json").write_text(json.dumps({"fingerprint": NOW}), "utf-8")
    lines = [{"name": f"set/{i}", "commit": "0", "result": row} for i, row in enumerate(rows)]
    (folder / "set.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    (folder / "other.jsonl").write_text(json.dumps({"name": "other/0", "result": rows[0]}) + "\n", "utf-8")
    found: list[str] = mixed(folder, {"shipped:convert": folder})
    return found


def row(name: str, **fingerprints: str) -> dict[str, Any]:
    return {"name": name, "metrics": {}, "fingerprints": fingerprints}


def test_rows_of_todays_models_are_right(faults: Any) -> None:
    ranker = row("a/ranker", **{"shipped:convert": NOW, "counts": "1", "a/ranker": "2"})
    again = row("b/ranker", **{"counts": "3"})  # counts are others on each set
    assert (
        faults(row("shipped:convert", **{"shipped:convert": NOW}), [ranker, {"later": again}], {"name": "bm25"}) == []
    )


@pytest.mark.parametrize("fingerprints", [{"shipped:convert": BEFORE}, {}, None])
def test_a_row_of_a_model_that_has_changed_is_found(faults: Any, fingerprints: dict[str, str] | None) -> None:
    stale = {"name": "shipped:convert", "metrics": {}} | (
        {} if fingerprints is None else {"fingerprints": fingerprints}
    )
    found = faults(row("a"), {"rows": [row("a"), stale]})
    assert [line[:27] for line in found] == ["set/1 is of shipped:convert"]


def test_an_earlier_version_has_another_name(faults: Any) -> None:
    assert faults(row("shipped:convert@bbbbbbbb", **{"shipped:convert@bbbbbbbb": BEFORE})) == []


def test_one_name_of_two_models_is_found(faults: Any) -> None:
    found = faults(row("runs/x/model", **{"runs/x/model": NOW}), row("all", **{"runs/x/model": BEFORE}))
    assert [line[:51] for line in found] == ["set/1 and set/0 name two models runs/x/model: bbbbb"]
