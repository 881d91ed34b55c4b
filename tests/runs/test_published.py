"""The tables of the papers next to polyrank's results, runs/papers/published.py."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "runs" / "papers"))

import published
from published import cells_of, draw, main, needs, read_tables, rows_of, source

PAPERS = Path(__file__).parents[2] / "runs" / "papers"
TABLES = read_tables()


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), "utf-8")


def shown(work: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("sys.argv", ["published.py", name, "--work", str(work)])
    main()
    return capsys.readouterr().out.splitlines()


def numbers(name: str) -> dict[tuple[str, str], set[str]]:
    """Published values by row and place, so that the same place in two tables can be compared."""
    found: dict[tuple[str, str], set[str]] = {}
    for _, parts, values in rows_of(TABLES[name]):
        for (_, place, *_), value in zip(TABLES[name]["columns"], values, strict=bool(values)):
            if own := source(place, parts, value):
                found.setdefault(own, set()).add(value.partition(" ±")[0])
    return found


@pytest.mark.parametrize(
    ("one", "other", "unequal"),
    [("iclr-4", "iclr-10", 0), ("iclr-5", "iclr-9", 0), ("iclr-2", "iclr-10", 0), ("iclr-3", "iclr-10", 1),
     ("arxiv-2", "iclr-2", 1), ("arxiv-3", "iclr-3", 2), ("arxiv-4", "iclr-8", 0), ("arxiv-5", "iclr-9", 4),
     ("iclr-7", "iclr-10", 0), ("iclr-8", "iclr-10", 6), ("convert-3", "convert-4", 0)],
)  # fmt: skip
def test_tables_of_one_paper_agree(one: str, other: str, unequal: int) -> None:
    """The papers print many values twice, which shows slips of the pen; a few differ in the papers themselves."""
    first, second = numbers(one), numbers(other)
    common = first.keys() & second.keys()
    assert len(common) > unequal
    assert len([key for key in common if first[key] != second[key]]) == unequal


@pytest.mark.parametrize("name", TABLES)
def test_a_table_without_results_prints_what_is_published(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown(tmp_path, name, capsys, monkeypatch)
    rows = [line for line in lines if line.startswith("| ")]
    assert rows[1:] == [
        f"| {label.replace('# ', '')} | {' | '.join(values or [''] * len(TABLES[name]['columns']))} |"
        for label, _, values in rows_of(TABLES[name])
    ]
    assert not list(tmp_path.iterdir())


def test_results_stand_beside_the_published_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = {"metrics": {"R@1": 0.75}, "std": {"R@1": 0.0049}, "n_examples": 7801}
    write(tmp_path / "iclr/bert/bi-top-1/convai2.valid.json", seeds)
    write(tmp_path / "iclr/bert/cross/convai2.valid.json", {"metrics": {"R@1": 0.8731}, "n_examples": 7000})
    lines = shown(tmp_path, "iclr-3", capsys, monkeypatch)
    assert "| Top layer | 74.2; 75.0 ± 0.5; +0.8 | 80.6 |" in lines
    assert "| All but Embeddings | 83.3 | 87.3; 87.3; +0.0 |" in lines
    assert "| polyrank's examples | 7,801 | 7,000 |" in lines
    assert not any("not the published files" in line for line in lines)


def test_substitutes_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "WORK", tmp_path)
    for name in ("convai2", "dstc7"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "substitute.txt").write_text("star in their format\n", "utf-8")
    for table, wanted in (("iclr-3", ["convai2"]), ("convert-5", ["dstc7"]), ("tao-3", ["dstc7"]), ("convert-4", [])):
        lines = shown(tmp_path, table, capsys, monkeypatch)
        assert [line.partition(":")[0] for line in lines if "not the published files" in line] == wanted


def test_times_are_averaged_over_seeds_and_added_over_stages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, seconds in ((1, 3600.0), (2, 10800.0)):
        write(tmp_path / f"iclr/bert/bi/dstc7/seed-{seed}/result.json", {"seconds": seconds})
    write(tmp_path / "iclr/bert/bi/convai2/result.json", {"seconds": 1800.0})
    assert "| Bi-encoder | 2.0; 0.5; -1.5 | 4.9; 2.0; -2.9 | 7.9 |" in shown(tmp_path, "iclr-6", capsys, monkeypatch)
    rows = [
        {"form": form, "n": n, "ms": ms}
        for form, n, ms in (("Bi", 100, 5.0), ("Cross", 10, 30.0), ("Cross", 100, 300.0))
    ]
    write(tmp_path / "tao/speed.json", {"rows": rows})
    lines = shown(tmp_path, "tao-2", capsys, monkeypatch)
    assert "| Bi-Enc (ML) -> Cross-Enc (ML) | 73.9 | 82.8 | 90.1 | 80.9 | 64; 35; -29 |" in lines
    assert "| Poly-Enc | 70.9 | 81.1 | 87.0 | 79.2 | 46 |" in lines
    write(
        tmp_path / "iclr/speed-cpu.json", {"rows": [{"form": "Cross", "n": n, "ms": 20.0 * n} for n in (1000, 100_000)]}
    )
    assert "| Cross-encoder | 21.7k; 20,000; -1,700 | 2.2M*; 2,000,000; -200,000 | 2.6k | 266k* |" in shown(
        tmp_path, "iclr-5", capsys, monkeypatch
    )


def test_a_star_marks_a_significant_improvement_of_that_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = {"R@1": (0.05, 0.04), "R@10": (0.01, 0.06), "R@50": (-0.01, 0.01), "MRR": (0.02, 0.001)}
    tests = [{"metric": name, "difference": difference, "p": p} for name, (difference, p) in outcomes.items()]
    figures = {"R@1": 0.7, "R@10": 0.9, "R@50": 0.99, "MRR": 0.8}
    write(tmp_path / "tao/dstc7/bi-mutual.json", {"metrics": figures, "against": {**tests[0], "others": tests[1:]}})
    (row,) = (line for line in shown(tmp_path, "tao-1", capsys, monkeypatch) if line.startswith("| Bi-Enc (ML)"))
    assert row.split(" | ")[1:5] == [
        "72.4°; 70.0*; -2.4",
        "93.7°; 90.0; -3.7",
        "99.2°; 99.0; -0.2",
        "80.1°; 80.0*; -0.1",
    ]


@pytest.mark.parametrize(("model", "millions"), [("single", 20.0), ("pretrain", 21.5)])
def test_all_parts_of_a_convert_are_counted(model: str, millions: float, tmp_path: Path) -> None:
    sizes = {
        "subwords": 16e6,
        "layers": 13e6,
        "positions": 1,
        "reduction": 2,
        "context_side": 4e6,
        "response_side": 3e6,
    }
    if model == "pretrain":
        sizes |= {"earlier_side": 1e6, "combined_side": 5e5}
    parts = [{"name": name, "n_parameters": n} for name, n in sizes.items()]
    write(tmp_path / f"convert/{model}.info.json", {"parts": parts, "n_bytes": 59e6, "n_bytes_fp32": 116e6})
    rows = [[value.mean for _, value in cells if value] for _, cells in cells_of(TABLES["convert-2"], tmp_path)]
    assert [row for row in rows if row] == [pytest.approx([16.0, millions, 116.0, 59.0], abs=1e-4)]


@pytest.mark.deep
@pytest.mark.parametrize(
    ("name", "labels"), [("tao-figure-2", ["10", "800"]), ("tao-figure-4", ["(0, 50]", "(100, 360]"])]
)
def test_a_figure_is_drawn(name: str, labels: list[str], tmp_path: Path) -> None:
    rows = [
        {"form": form, "n": n, "hits@1": n / 1000, "ms": n} for form in ("retriever", "reranker") for n in (10, 800)
    ]
    write(tmp_path / "tao/dstc7-pool/stages.json", {"rows": rows})
    bins = [{"from": start, "n_examples": 5, "metrics": {"R@1": 0.1}} for start in (1, 101)]
    write(tmp_path / "tao/dstc7/bi.json", {"by_tokens": bins})
    table = TABLES[name]
    cells = list(cells_of(table, tmp_path))
    path = tmp_path / "figure.svg"
    assert draw(table, cells, path)
    text = path.read_text("utf-8")
    comments = re.findall(r"<!-- (.*?) -->", text)
    assert {*labels, *table["draw"]} <= {*comments}
    assert ("Bi-Enc" in comments) == (name == "tao-figure-4")
    assert "Cross-Enc (ML)" not in comments
    assert not draw(table, list(cells_of(table, tmp_path / "empty")), tmp_path / "none.svg")
    assert not (tmp_path / "none.svg").exists()


def test_every_table_needs_results_that_its_script_names() -> None:
    """iclr.sh reads the models to train from these paths; the other scripts write fixed names."""
    for name in TABLES:
        assert needs(TABLES[name])
        paper = name.partition("-")[0].replace("arxiv", "iclr")  # its first version
        script = (PAPERS / f"{paper}.sh").read_text("utf-8")
        for file in needs(TABLES[name]):
            if paper == "iclr":
                assert re.fullmatch(
                    r"iclr/(speed-(cpu|cuda)\.json|(bert|books|reddit)/(bi|cross|poly)[-\w]*/"
                    r"(convai2|dstc7|ubuntu-v2|wikipedia)(\.(valid|test)\.json|/\*\*/result\.json))",
                    file,
                )
            elif paper == "tao" and file.count("/") == 2:
                part, stem = file.removesuffix(".json").split("/")[1:]
                written = (f"judge {part} {stem} ", f'judge "$part" {stem} ', f"/{part}/{stem}.json")
                assert any(words in script for words in written)
