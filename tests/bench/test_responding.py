"""``polyrank bench``: rows for each model, and the machine."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polyrank
from polyrank.bench import bench_responding, describe_machine, profile
from polyrank.bench.machine import FLAGS, median_seconds
from polyrank.bench.responding import mixtures
from polyrank.errors import UsageError
from polyrank.scorers.terms.counts import Counts
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.scorers.terms.lexical import LexicalTerm
from processes import run

TEXTS = [f"please restart the router number {i} and call again" for i in range(110)]


def test_rows_of_encoders_and_of_models_that_only_score() -> None:
    reported: list[str] = []
    found = bench_responding(
        ["shipped:convert", "bm25"], TEXTS, sizes=(50, 300), n_words=9, repeats=1, progress=reported.append
    )
    assert reported == ["shipped:convert", "bm25"]
    assert [(row["model"], row["what"], row["n"]) for row in found["rows"]] == [
        ("shipped:convert", "encode replies", 110),
        ("shipped:convert", "encode a context", 1),
        ("shipped:convert", "answer", 50),
        ("shipped:convert", "answer", 300),
        ("bm25", "score", 100),
    ]
    for row in found["rows"]:
        once = row["n"] if row["what"] in ("encode replies", "score") else 1
        assert row["per_second"] == pytest.approx(1e3 * once / row["ms"], rel=0.05)


def test_an_answer_of_a_ranker_includes_its_second_stage(tmp_path: Path) -> None:
    """One of texts of usual lengths: 25 of the index, each with its number."""
    encoder, words = polyrank.load("shipped:convert"), polyrank.BM25().fit(TEXTS)
    counts = Counts.of({TEXTS[0]: 3})
    parts = [(EncoderTerm(encoder), (1.0,)), (LexicalTerm(words), (0.5,)), (counts, (0.5,))]
    polyrank.Ranker(parts, n_retrieved=25).save(tmp_path / "ranker")
    read: list[str] = []
    score = polyrank.BM25.score

    def noted(self: polyrank.BM25, contexts: Any, candidates: Any) -> Any:
        read.extend(text for one in candidates for text in one)
        return score(self, contexts, candidates)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(polyrank.BM25, "score", noted)
        found = bench_responding([str(tmp_path / "ranker")], TEXTS, sizes=(300,), n_words=9, repeats=1)
    assert [(row["what"], row["n"]) for row in found["rows"]] == [
        ("encode replies", 110),
        ("encode a context", 1),
        ("answer", 300),
    ]
    assert len(read) == 2 * 25  # the call that allocates, and the timed one
    assert all(text.rpartition(" ")[0] in TEXTS for text in read)


def test_times_are_those_of_the_stated_numbers_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock with which each encoded or scored text takes a second."""
    now, convert, n_words, read = [0.0], type(polyrank.load("shipped:convert")), set[int](), list[float]()

    def count_texts(kind: type, name: str) -> None:
        work = getattr(kind, name)

        def timed(self: Any, *texts: Any) -> Any:
            now[0] += sum(map(len, texts[-1])) if len(texts) > 1 else len(texts[0])
            n_words.update(len(one.turns[-1].split()) for one in texts[0] if isinstance(one, polyrank.Context))
            return work(self, *texts)

        monkeypatch.setattr(kind, name, timed)

    count_texts(convert, "encode_candidates")
    count_texts(convert, "encode_contexts")
    count_texts(polyrank.BM25, "score")

    def clock() -> float:
        read.append(now[0])
        return now[0]

    for module in ("responding", "machine"):
        monkeypatch.setattr(f"polyrank.bench.{module}.perf_counter", clock)
    found = bench_responding(["shipped:convert", "bm25"], TEXTS, sizes=(50, 300), n_words=9, repeats=3)
    assert [(row["what"], row["n"], row["ms"], row["per_second"]) for row in found["rows"]] == [
        ("encode replies", 110, 110_000.0, 1.0),
        ("encode a context", 1, 1000.0, 1.0),
        ("answer", 50, 1000.0, 1.0),  # whose context is encoded
        ("answer", 300, 1000.0, 1.0),
        ("score", 100, 100_000.0, 1.0),
    ]
    assert n_words == {9}
    assert read[:2] == [1.0, 111.0]  # the first text loads libraries, which takes no part of the time


@pytest.mark.parametrize("kind", [polyrank.BM25, polyrank.TfIdf])
def test_lexical_models_are_timed_with_the_statistics_of_the_replies(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted, fit = list[list[str]](), kind.fit

    def noted(self: Any, texts: Any) -> Any:
        fitted.append([*texts])
        return fit(self, texts)

    monkeypatch.setattr(kind, "fit", noted)
    bench_responding([kind.__name__.lower()], TEXTS, n_words=9, repeats=1)
    assert fitted == [TEXTS]


def test_mixtures_have_the_norms_of_vectors() -> None:
    vectors = np.random.default_rng(0).standard_normal((20, 8)).astype(np.float32)
    many = mixtures(vectors, 9000)  # more than are mixed at a time
    np.testing.assert_array_equal(many, mixtures(vectors, 9000))  # measurements are of the same index
    np.testing.assert_array_equal(many[:20], vectors)
    np.testing.assert_array_equal(mixtures(vectors, 7), vectors[:7])
    norms, found = np.linalg.norm(vectors, axis=1), np.linalg.norm(many, axis=1)
    assert np.isclose(found[:, None], norms, rtol=1e-5).any(1).all()
    assert len(np.unique(many.round(4), axis=0)) > 8000  # the others are mixtures of a vector and itself


def test_forms_take_turns_and_have_the_median_of_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    now, order, times = [0.0], list[str](), {"a": iter([9.0, 1.0, 2.0]), "b": iter([4.0, 30.0, 5.0])}

    def run(form: str) -> None:
        order.append(form)
        now[0] += next(times[form])

    monkeypatch.setattr("polyrank.bench.machine.perf_counter", lambda: now[0])
    assert median_seconds({form: lambda form=form: run(form) for form in "ab"}, 3) == {"a": 2.0, "b": 5.0}
    assert order == [*"ababab"]


def test_a_cost_by_columns_is_split_into_that_of_none_and_that_of_each() -> None:
    unit = 1e3 * 1e5 / profile.N  # milliseconds for 100,000 candidates
    assert profile._sloped(lambda n: 2.0 + 0.5 * n, 2) == pytest.approx((2.0 * unit, 0.5 * unit))
    assert profile._sloped(lambda n: 3.0, 2) == pytest.approx((3.0 * unit, 1e-4))
    assert profile._sloped(lambda n: 0.5 * n, 2) == pytest.approx((1e-4, 0.5 * unit))


def test_a_hundred_texts_are_enough_for_each_backend_and_device() -> None:
    reported: list[str] = []
    with pytest.raises(UsageError, match="bm25 has no onnx export"):
        bench_responding(["bm25"], TEXTS[:100], backends=("torch", "onnx"), repeats=1, progress=reported.append)
    assert reported == ["bm25", "bm25 onnx"]
    with pytest.raises(UsageError, match="device 'nowhere' is unknown"):
        bench_responding(["shipped:convert"], TEXTS, device="nowhere")


@pytest.mark.parametrize("wrong", [{"sizes": (5, 0)}, {"repeats": 0}, {"n_words": 0}])
def test_counts_below_1_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"\(here 110\), and sizes and counts of 1 or more"):
        bench_responding(["bm25"], TEXTS, **wrong)


def test_the_machine_is_this_one() -> None:
    machine = describe_machine()
    assert machine["cores"] == len(os.sched_getaffinity(0))
    assert machine["threads"] == torch.get_num_threads()
    assert machine["system"] == f"{os.uname().sysname} {os.uname().machine}"
    known = Path("/proc/cpuinfo").read_text().split()
    assert machine["flags"] == [flag for flag in FLAGS if flag in known]
    lines = Path("/proc/meminfo").read_text().splitlines()
    assert machine["memory_gb"] == pytest.approx(int(lines[0].split()[1]) * 1024 / 1e9, abs=0.1)
    assert {"python", "polyrank", "numpy", "torch", "transformers"} <= set(machine["versions"])
    versions = machine["versions"]["torch"], torch.__version__  # one of them may end in + and the build
    assert len({version.partition("+")[0] for version in versions}) == 1


@pytest.mark.deep
def test_the_command_prints_a_table_or_json(tmp_path: Path) -> None:
    replies = tmp_path / "replies.txt"
    replies.write_text("\n".join(TEXTS), "utf-8")
    shown = run("bench", "respond", "shipped:convert", "--texts", replies, "-n", "20", "-n", "30")
    assert (shown.returncode, "encode a context" in shown.stdout) == (0, True), shown.stderr
    assert re.findall(r"answer +│ +(\d+)", shown.stdout) == ["20", "30"]
    found = run("bench", "respond", "bm25", "--texts", replies, "--threads", "1", "--json")
    result = json.loads(found.stdout)
    assert result["machine"]["threads"] == 1
    assert {row["model"] for row in result["rows"]} == {"bm25"}
    with pytest.raises(UsageError, match="give at least 100 texts"):
        bench_responding(["bm25"], TEXTS[:9])
