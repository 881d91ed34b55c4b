"""Speed tables: every form of a row finds the same, rows have their columns, targets are looked up."""

import json

import numpy as np
import pytest

from polyrank.bench import bench_scoring
from polyrank.bench.scoring import Papers, make_inputs
from polyrank.errors import UsageError
from polyrank.search import score_rows


def test_rows_of_a_small_table() -> None:
    heard: list[str] = []
    table = bench_scoring(n=3000, d=32, vectors=(4, 16), growth=(500,), growth_d=16, repeats=1, progress=heard.append)
    assert json.loads(json.dumps(table)) == table
    assert len(heard) == 6
    assert {(row["what"], row["m"]) for row in table["rows"]} == {
        *((what, m) for what in ("isotropic", "trained") for m in (4, 16)),
        ("wide", 16),
        ("growth", 64),
    }
    for row in table["rows"]:
        assert row["form"] in ("papers", "exact", "fast", "certified")
        assert row["ms"] > 0
        assert row["recall_at_10"] == 1.0
        assert row["max_abs_error"] <= (1e-4 if row["form"] == "papers" else 0.0) * (30 if row["what"] == "wide" else 1)
        assert ("peak_mb" in row) == (row["what"] == "growth")
    assert {(t["form"], t["m"]) for t in table["targets"]} == {("exact", 16), ("fast", 16)}


def test_the_papers_form_is_the_same_score() -> None:
    context, candidates = make_inputs("isotropic", 5000, 24, 6)
    rows, found = Papers(context, candidates)()
    np.testing.assert_allclose(found, score_rows(context, np.ones(6, bool), candidates[rows]), atol=1e-5)


def test_bad_sizes() -> None:
    with pytest.raises(UsageError, match="below 1"):
        bench_scoring(n=0)
    with pytest.raises(UsageError, match="regime 'odd' is unknown"):
        bench_scoring(n=10, d=4, vectors=(2,), regimes=("odd",))  # type: ignore[arg-type]
