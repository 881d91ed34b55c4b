"""Suspects: examples whose labels are most likely wrong."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyrank import BM25, Candidate, Example, TfIdf, evaluate
from polyrank.errors import UsageError
from polyrank.evaluation.suspects import find_suspects, is_near_copy, write_suspects
from polyrank.scorers.protocols import Scorer
from processes import run

WORDS = [f"w{n}" for n in range(40)]


def labelled(n: int) -> tuple[list[Example], set[str]]:
    """Lists whose answer repeats the words of the context, but for one in ten, whose label is moved to another."""
    generator, lists, wrong = np.random.default_rng(3), [], set[str]()
    for number in range(n):
        texts = [" ".join(generator.choice(WORDS, 4)) for _ in range(5)]
        right = number % 5
        if number % 10 == 0:
            wrong.add(f"d{number}#0")
        lists.append(Example((texts[right],), tuple(texts), ((right + (number % 10 == 0)) % 5,), f"d{number}#0"))
    return lists, wrong


def test_moved_labels_are_found_first() -> None:
    lists, wrong = labelled(100)
    results = [evaluate(scorer, lists) for scorer in (BM25(), TfIdf())]
    for evaluations in ([results[0]], results):
        found = find_suspects(evaluations, lists)
        assert {suspect["id"] for suspect in found[:10]} == wrong
        margins = [suspect["margin"] for suspect in found]
        assert margins == sorted(margins)
        assert margins[0] < -0.5
        worst = next(example for example in lists if example.id == found[0]["id"])
        assert (found[0]["other"], found[0]["context"]) == (worst.context[0], list(worst.context))
        assert found[0]["given"] == worst.candidates[worst.relevant[0]]


def test_near_copies_of_the_answer_among_the_wrong_are_found() -> None:
    texts = ("Your code is 12.", "your code is 34", "hello", "YOUR CODE IS 12.")
    lists = [*labelled(20)[0], Example((texts[0],), texts, (0,), "copies")]
    found = {one["id"]: one for one in find_suspects([evaluate(BM25(), lists)], lists)}
    assert found["copies"]["near_copies"] == ["your code is 34", "YOUR CODE IS 12."]
    assert is_near_copy("we ship it to you on the very same day", "we ship it to you on the same day")
    assert is_near_copy("pay this bill today", "pay this bill today please")  # four of five words are common
    assert not is_near_copy("pay this bill", "pay this bill today")
    assert not is_near_copy("?", "hello")
    assert is_near_copy("Hi Ann, it is down", "hi Bob! it is down")
    assert not is_near_copy("hi router, it is down", "hi wifi, it is down")  # not the names of people


def test_margins_do_not_depend_on_the_scale_of_scores() -> None:
    class Large(BM25):
        def score(self, contexts: Sequence[Any], candidates: Sequence[Sequence[str]]) -> list[Any]:
            return [300 * row for row in super().score(contexts, candidates)]

    lists = labelled(40)[0]
    plain, large = (
        [one["margin"] for one in find_suspects([evaluate(model, lists)], lists)] for model in (BM25(), Large())
    )
    assert large == pytest.approx(plain, abs=1e-3)
    assert plain[0] > -1


def test_margins_of_several_models_are_means_and_a_margin_of_0_is_not_suspect() -> None:
    lists = labelled(40)[0]
    alone = [evaluate(scorer, lists) for scorer in (BM25(), TfIdf())]
    of_one = [{one["id"]: one for one in find_suspects([each], lists)} for each in alone]
    for each, suspects in zip(alone, of_one, strict=True):  # the same model several times is that model
        assert {one["id"]: one for one in find_suspects([each, each, each], lists)} == suspects
    n_same = 0
    for both in find_suspects(alone, lists):
        first, second = (suspects.get(both["id"], {"other": ""}) for suspects in of_one)
        if first["other"] == second["other"] == both["other"]:
            assert both["margin"] == pytest.approx((first["margin"] + second["margin"]) / 2, abs=1e-3)
            n_same += 1
    assert n_same > 3
    other = [Example(("hi",), ("yes please", "go home now", "maybe later"), (n % 3,), f"d{n}") for n in range(6)]
    assert find_suspects([evaluate(Constant(), other)], other) == []


class Constant(Scorer):
    """All scores are 1."""

    def score(self, contexts: Sequence[Any], candidates: Sequence[Sequence[str]]) -> list[Any]:
        return [np.ones(len(texts), np.float32) for texts in candidates]


def test_near_copies_are_those_of_the_given_answer() -> None:
    """The model prefers another candidate, which has a near-copy too."""
    texts = (
        "we are open until 5 today",
        "We are open until 6 today",
        "pay the bill of 10 euros",
        "pay the bill of 20 euros",
    )
    example = Example((texts[2],), texts, (0,), "d")
    (found,) = find_suspects([evaluate(BM25(), [example, *labelled(20)[0]])], [example, *labelled(20)[0]])[:1]
    assert (found["id"], found["given"], found["other"]) == ("d", texts[0], texts[2])
    assert found["near_copies"] == [texts[1]]


def test_a_pool_has_no_suspects() -> None:
    lists = labelled(10)[0]
    pool = [Candidate(str(i), f"{word} {i}") for i, word in enumerate(WORDS)]
    with pytest.raises(UsageError, match="leave the pool out"):
        find_suspects([evaluate(BM25(), lists, pool=pool)], lists)


def test_every_suspect_is_a_line_that_people_can_read(tmp_path: Path) -> None:
    texts = ("Grüße aus 12 Straßen", "Grüße aus 13 Straßen", "你好\u2028🙂\n")
    lists = [Example(("Straße 5\nhi",), texts, (0,), f"d{n}") for n in range(3)]
    found = find_suspects([evaluate(BM25(), lists)], lists)
    write_suspects(tmp_path / "s.jsonl", found)
    lines = (tmp_path / "s.jsonl").read_bytes().decode().removesuffix("\n").split("\n")
    assert [json.loads(line) for line in lines] == found
    assert len(lines) == 3
    assert all("Grüße aus 12 Straßen" in line for line in lines)
    write_suspects(tmp_path / "none.jsonl", [])
    assert (tmp_path / "none.jsonl").read_bytes() == b""


def test_the_command_writes_them(tmp_path: Path) -> None:
    lists, wrong = labelled(40)
    rows = [
        {"id": e.id, "context": list(e.context), "candidates": list(e.candidates), "relevant": list(e.relevant)}
        for e in lists
    ]
    (tmp_path / "lists.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    done = run("evaluate", "bm25", "lists.jsonl", "--suspects", "odd.jsonl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in (tmp_path / "odd.jsonl").read_text("utf-8").splitlines()]
    assert {one["id"] for one in found[:4]} == wrong
    assert f"wrote odd.jsonl: {len(found)} of 40 examples, the most suspicious first" in done.stderr
