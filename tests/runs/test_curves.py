"""Validation figures of trainings, runs/curves.py: how they are read, drawn and printed."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyrank.errors import DataError, UsageError

sys.path.insert(0, str(Path(__file__).parents[2] / "runs"))

from curves import Check, main, plot_curves, read_curves

CHECKS = (
    {"step": 1, "loss": 3.0},
    {"step": 2, "epoch": 0.5, "valid": {"R@1": 0.25, "loss": 2.0, "MRR": None}},
    {"step": 4, "epoch": 1.0, "valid": {"R@1": 0.5, "loss": 1.0}},
)


def written(path: Path, *records: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collects every figure that matplotlib saves."""
    figure = pytest.importorskip("matplotlib.figure")
    saved: list[Any] = []
    save = figure.Figure.savefig

    def savefig(self: Any, *arguments: Any, **options: Any) -> None:
        saved.append(self)
        save(self, *arguments, **options)

    monkeypatch.setattr(figure.Figure, "savefig", savefig)
    return saved


def lines_of(axes: Any) -> dict[str, list[tuple[float, float]]]:
    """The drawn lines by label."""
    return {
        line.get_label(): [(float(x), float(y)) for x, y in zip(*line.get_data(), strict=True)]
        for line in axes.get_lines()
    }


def legend_of(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_curves_are_named_by_run_network_and_seed(tmp_path: Path) -> None:
    for name in ("plain", "mutual/bi", "mutual/cross", "seeds/1/a", "seeds/2/a"):
        written(tmp_path / name / "metrics.jsonl", *CHECKS)
    written(tmp_path / "named" / "bi.metrics.jsonl", *CHECKS)
    folders = [tmp_path / name for name in ("plain", "mutual", "seeds", "named")]
    found = read_curves(folders)
    assert list(found) == ["plain", "mutual/bi", "mutual/cross", "seeds/1/a", "seeds/2/a", "named/bi"]
    want = [Check(2, 0.5, {"R@1": 0.25, "loss": 2.0}), Check(4, 1.0, {"R@1": 0.5, "loss": 1.0})]
    assert all(curve == want for curve in found.values())
    files = [tmp_path / "plain" / "metrics.jsonl", tmp_path / "named" / "bi.metrics.jsonl"]
    assert list(read_curves(files)) == ["plain", "bi"]
    # equal names are distinguished by their paths
    written(tmp_path / "other" / "plain" / "metrics.jsonl", *CHECKS[:2])
    twice = read_curves([tmp_path / "plain", tmp_path / "other" / "plain", tmp_path / "named"])
    assert list(twice) == [
        str(tmp_path / "plain" / "metrics.jsonl"), str(tmp_path / "other" / "plain" / "metrics.jsonl"), "named/bi",
    ]  # fmt: skip
    assert [len(curve) for curve in twice.values()] == [2, 1, 2]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="has no metrics"):
        read_curves([tmp_path / "plain", tmp_path / "empty"])
    written(tmp_path / "bad" / "metrics.jsonl", CHECKS[0], {"valid": {"R@1": 1.0}})
    with pytest.raises(DataError, match=r"metrics\.jsonl:2: not a record of a training"):
        read_curves([tmp_path / "bad"])


@pytest.mark.deep
def test_curves_are_drawn_by_epoch_if_all_runs_record_it(figures: list[Any], tmp_path: Path) -> None:
    new = [Check(2, 0.5, {"R@1": 0.25, "loss": 2.0}), Check(4, 1.0, {"R@1": 0.5}), Check(6, 1.5, {"loss": 1.5})]
    old = [Check(3, None, {"R@1": 0.1})]
    plot_curves({"new": new}, tmp_path / "a.svg")
    plot_curves({"new": new, "old": old}, tmp_path / "b.svg")
    plot_curves({"new": new}, tmp_path / "c.svg", figure="loss")
    by_epoch, by_step, loss = (figure.axes[0] for figure in figures)
    assert lines_of(by_epoch) == {"new": [(0.5, 25), (1, 50)]}
    assert (by_epoch.get_xlabel(), by_epoch.get_ylabel()) == ("epoch", "validation R@1 (%)")
    assert lines_of(by_step) == {"new": [(2, 25), (4, 50)], "old": [(3, 10)]}
    assert (by_step.get_xlabel(), set(legend_of(by_step))) == ("step", {"new", "old"})
    assert lines_of(loss) == {"new": [(0.5, 2), (1.5, 1.5)]}
    assert loss.get_ylabel() == "validation loss"
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("a.svg", "b.svg", "c.svg"))
    with pytest.raises(UsageError, match=r"no run has the validation figure 'MAP'; choose one of: R@1, loss"):
        plot_curves({"new": new}, tmp_path / "x.svg", figure="MAP")


def curves(n: int, last: float = 0.5) -> dict[str, list[Check]]:
    """Curves of runs that end close to each other."""
    return {
        f"model-{i:02d} with a name": [Check(s, s / 4, {"R@1": last * s / 8 + i / 1000}) for s in range(1, 9)]
        for i in range(n)
    }


@pytest.mark.deep
@pytest.mark.parametrize("n", [1, 2, 30])
def test_lines_are_named_in_the_order_of_their_ends(figures: list[Any], tmp_path: Path, n: int) -> None:
    plot_curves(curves(n), tmp_path / "x.svg")
    (axes,) = figures[0].axes
    assert legend_of(axes) == list(reversed(curves(n)))  # later runs end higher
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axes.get_lines()}
    assert len(looks) == n


def test_seeds_are_thin_lines_around_their_mean(figures: list[Any], tmp_path: Path) -> None:
    runs = {
        f"poly/seed-{seed}": [Check(s, s / 2, {"R@1": 0.1 * seed * s}) for s in (1, 2, 2 + seed)] for seed in (1, 2)
    }
    plot_curves({**runs, "bi/seed-1": [Check(1, 0.5, {"R@1": 0.3})]}, tmp_path / "x.svg")
    (axes,) = figures[0].axes
    assert legend_of(axes) == ["poly (2 seeds)", "bi/seed-1"]
    thick = {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}
    mean = np.asarray(thick["poly (2 seeds)"].get_xydata(), float)
    np.testing.assert_allclose(mean, [[0.5, 15], [1, 30]])  # at common checks
    assert len(axes.get_lines()) == 4


def test_a_file_that_is_no_record_of_a_training(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b"\x7fELF\xd0")
    with pytest.raises(DataError, match=r"metrics\.jsonl is not UTF-8; give the metrics\.jsonl of a training"):
        read_curves([tmp_path / "metrics.jsonl"])


def test_the_script_prints_lines_or_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "old" / "metrics.jsonl", {"step": 2, "valid": {"R@1": 0.2}})
    written(tmp_path / "new" / "metrics.jsonl", *CHECKS)
    monkeypatch.setattr("sys.argv", ["curves.py", str(tmp_path / "old"), str(tmp_path / "new")])
    main()
    assert capsys.readouterr().out.splitlines() == [
        "old\tstep 2\tR@1 0.2000",
        "new\tepoch 0.5\tR@1 0.2500",
        "new\tepoch 1\tR@1 0.5000",
    ]
    monkeypatch.setattr("sys.argv", ["curves.py", str(tmp_path / "new"), "--json"])
    main()
    assert [check["epoch"] for check in json.loads(capsys.readouterr().out)["new"]] == [0.5, 1.0]
