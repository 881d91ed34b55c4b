"""Hard negatives: which candidates count as wrong, from any retriever, in a file, and during training."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from polyrank import Replies, build_index
from polyrank.cli import main
from polyrank.cli.mining import mine as mine_command
from polyrank.config.models import BiConfig, TextPolicy
from polyrank.config.recipe import DataConfig, Recipe
from polyrank.config.train import NegativesConfig
from polyrank.data import read_examples, read_pool, write_examples
from polyrank.errors import ArtifactError, ConfigError, UsageError
from polyrank.index import open_index
from polyrank.models import new_model
from polyrank.negatives.hard import (
    HardNegatives,
    choose,
    collect_right_answers,
    hard_candidates,
    same_words,
)
from polyrank.negatives.mine import Mined, from_pool, from_retriever, mine, with_texts
from polyrank.negatives.random import GivenNegatives, MixedNegatives, RandomNegatives, sample_negatives
from polyrank.negatives.remined import MinedNegatives
from polyrank.records import Candidate, Context, Example
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.lexical import BM25, TfIdf
from polyrank.text import Texts
from polyrank.training import ListwiseStep, train
from polyrank.training.batches import BatchOrder
from polyrank.training.methods import make_negatives
from polyrank.training.ranker import Ranker
from train_settings import loss_of, toy_recipe, train_config
from word_models import WordEncoder

POOL = [
    "wifi is down",
    "Wifi is DOWN!",
    "restart the router",
    "the bill is high",
    "thanks",
    "router light is red",
    "wifi",
]
POLICY = TextPolicy(max_context_tokens=24, max_candidate_tokens=8)
TEXTS = st.lists(st.sampled_from([*POOL, "wifi  is down", "red", "?!", ""]), max_size=12)


class Lengths:
    """A small real scorer: longer candidates score higher."""

    def score(self, contexts: Sequence[Context], candidates: Sequence[Sequence[str]]) -> list[np.ndarray]:
        return [np.array([len(text) for text in texts], np.float32) for texts in candidates]

    def score_pool(self, contexts: Sequence[Context], pool: Sequence[str]) -> np.ndarray:
        return np.stack(self.score(contexts, [pool] * len(contexts)))


@given(
    TEXTS,
    st.lists(st.sampled_from(POOL), min_size=1, max_size=2),
    st.integers(1, 5),
    st.integers(0, 6),
)
def test_wrong_candidates_are_wrong_distinct_in_order_and_within_their_ranks(
    ranked: list[str], right: list[str], first: int, more: int
) -> None:
    plan = HardNegatives(n_negatives=3, first_rank=first, last_rank=first + more)
    found = hard_candidates(ranked, right, plan)
    assert not {same_words(text) for text in found} & {same_words(text) for text in right}
    assert len({same_words(text) for text in found}) == len(found) <= more + 1
    everything = hard_candidates(ranked, right, HardNegatives(n_negatives=1, last_rank=99))
    assert found == everything[first - 1 : first + more]
    chosen = choose(found, plan, 4)
    assert chosen == [text for text in found if text in chosen] == choose(found, plan, 4)
    assert len(chosen) == min(3, len(found))


def test_an_encoders_pool_is_searched_and_encoded_once(tiny_backbone: Path) -> None:
    model, texts, _ = new_model(BiConfig(backbone=str(tiny_backbone)), POLICY, seed=1, sample=["hi"])

    class Counting(EncoderScorer):
        n_pools = 0

        def encode_candidates(self, candidates: Sequence[str]) -> np.ndarray:
            self.n_pools += 1
            return super().encode_candidates(candidates)

    scorer, pool = Counting(model, texts), [f"{text} {i}" for i in range(20) for text in POOL]
    retrieve, contexts = from_pool(scorer, [*pool, *pool]), [("my wifi is down",), ("the bill", "is high")]
    found = [retrieve(contexts, depth) for depth in (1, 7, 500)]
    assert scorer.n_pools == 1
    for row, values in enumerate(scorer.score_pool(contexts, pool)):
        score_of = dict(zip(pool, values.tolist(), strict=True))
        best = sorted(values.tolist(), reverse=True)
        for answer in found:
            assert len(set(answer[row])) == len(answer[row])
            np.testing.assert_allclose([score_of[text] for text in answer[row]], best[: len(answer[row])], rtol=1e-5)
        assert [len(answer[row]) for answer in found] == [1, 7, 140]


def test_an_index_is_mined_as_deep_as_its_pool(tmp_path: Path) -> None:
    encoder, pool = WordEncoder("encoder", 1), [f"{text} {i}" for i, text in enumerate(POOL * 3)]
    build_index(tmp_path / "index", encoder, pool, name="encoder")
    contexts = [Context(("my wifi is down",)), Context(("the bill", "is high"))]
    with Replies(encoder, open_index(tmp_path / "index")) as replies:
        for depth in (1, 4, 5, 6, 20, 21):
            found = from_retriever(replies)(contexts, depth)
            assert found == from_pool(encoder, pool)(contexts, depth)
            assert [len(texts) for texts in found] == [depth] * 2


def test_same_words_by_hand() -> None:
    assert same_words("Wi-Fi  is DOWN!!") == same_words("wi fi is down")
    assert same_words("？！") == "?!"  # full-width characters
    assert same_words("no") != same_words("no way")


EXAMPLES = [
    Example(("my wifi is down",), ("wifi is down",), (0,), "a"),
    Example(("the router light",), ("no", "router light is red", "thanks"), (1, 2), "b", ("a fact",)),
    Example(("hello",), (), (), "c"),
]


@pytest.mark.parametrize(
    "retrieve",
    [
        from_pool(BM25(), POOL),
        from_pool(Lengths(), POOL),
        from_pool(TfIdf().fit(POOL), POOL),
    ],
)
def test_mined_examples_never_hold_a_right_answer_as_wrong(retrieve: Any) -> None:
    found = mine(EXAMPLES, retrieve, HardNegatives(n_negatives=2, last_rank=4))
    assert [e.id for e in found.examples] == ["a", "b"]
    assert found.n_skipped == 1
    for before, after in zip(EXAMPLES, found.examples, strict=False):
        right = [before.candidates[i] for i in before.relevant]
        assert [after.candidates[i] for i in after.relevant] == right
        wrong = [text for i, text in enumerate(after.candidates) if i not in after.relevant]
        assert len(wrong) == 2
        assert not {same_words(text) for text in wrong} & {same_words(text) for text in right}
        assert (after.context, after.background) == (before.context, before.background)
    assert found == mine(EXAMPLES, retrieve, HardNegatives(n_negatives=2, last_rank=4))
    assert mine(EXAMPLES, retrieve, HardNegatives(n_negatives=9)).n_short == 2
    assert mine(EXAMPLES[2:], retrieve, HardNegatives(n_negatives=9)) == Mined((), 1, 0, 0, 0.0)


def test_contexts_of_the_same_words_share_their_right_answers() -> None:
    asked = [Example((turn,), (text,), (0,)) for turn, text in (("Is it open?", "yes"), ("is it OPEN", "it is"))]
    found = mine(asked, from_pool(Lengths(), ["yes", "it is", "no"]), HardNegatives(n_negatives=2))
    assert [example.candidates for example in found.examples] == [("yes", "no"), ("it is", "no")]


def test_no_turn_of_the_context_is_a_negative() -> None:
    """The words of a turn decide in mining; a drawn text is left out if it equals a turn."""
    example = Example(("Wifi is down!", "thanks", "the bill is high"), ("no",), (0,))
    settings = HardNegatives(n_negatives=9)
    wrong = mine([example], from_pool(Lengths(), POOL), settings).examples[0].candidates[1:]
    assert set(wrong) == {"restart the router", "router light is red", "wifi"}
    drawn = RandomNegatives(["thanks", "the bill is high", "wifi", "red"], 4, seed=1)
    assert all(set(drawn(0, example, epoch)) == {"wifi", "red"} for epoch in range(5))


def test_mining_equals_a_ranking_by_hand() -> None:
    found = mine(EXAMPLES[:1], from_pool(Lengths(), POOL), HardNegatives(n_negatives=2, first_rank=2, last_rank=3))
    assert found.examples[0].candidates == ("wifi is down", "restart the router", "the bill is high")


def test_a_reranker_drops_candidates_that_it_scores_as_right() -> None:
    retrieve = from_pool(BM25(), POOL)
    plan = HardNegatives(n_negatives=9)
    found = mine(EXAMPLES[:1], retrieve, plan, reranker=Lengths())
    assert set(found.examples[0].candidates[1:]) == {"thanks", "wifi"}  # only these are shorter than the right answer
    assert found.n_doubtful == 3
    assert mine(EXAMPLES[:1] * 40, retrieve, plan, reranker=Lengths()).n_doubtful == 40 * 3  # of two batches
    strict = mine(EXAMPLES[:1], retrieve, plan, reranker=Lengths(), margin=7.0)
    assert strict.examples[0].candidates[1:] == ("wifi",)
    assert mine(EXAMPLES[:1], retrieve, plan, reranker=Lengths(), margin=-100.0).n_doubtful == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_negatives": 0}, "n_negatives 0 is below 1"),
        ({"first_rank": 0}, "count from 1"),
        ({"first_rank": 9, "last_rank": 3}, "ranks 9 to 3 are empty"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        HardNegatives(**{"n_negatives": 3, **changes})
    with pytest.raises(UsageError, match="pool to mine from is empty"):
        from_pool(BM25(), [])


def run(*arguments: str) -> int:
    import sys

    before, sys.argv = sys.argv, ["polyrank", *arguments]
    try:
        main()
    except SystemExit as error:
        return int(error.code or 0)
    finally:
        sys.argv = before
    return 0


def test_the_command_writes_lists_to_train_on(
    task: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "mined.jsonl"
    arguments = ("mine", str(task["train"]), "--from", "bm25", "-o", str(output), "-n", "3", "--ranks", "1:5")
    assert run(*arguments, "--json") == 0
    assert json.loads(capsys.readouterr().out)["mean_negatives"] == 3.0
    found = read_examples(output).examples
    assert [e.context for e in found] == [e.context for e in read_examples(task["train"]).examples]
    assert all(len(e.candidates) == 4 and e.relevant == (0,) for e in found)
    assert run(*arguments) == 2  # the file already exists
    assert run(*arguments, "--overwrite") == 0
    assert run(*arguments[:-1], "five", "--overwrite") == 2
    assert "FIRST:LAST" in capsys.readouterr().err


def test_right_answers_by_id_have_the_texts_of_the_pool_or_the_index(
    tiny_encoders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, output = tmp_path / "ids.jsonl", tmp_path / "mined.jsonl"
    data.write_text('{"context": ["my red bill"], "relevant_ids": ["b"]}\n', "utf-8")
    pool = [{"id": name, "text": text} for name, text in (("a", "red bill"), ("b", "it is high"), ("c", "thanks"))]
    (tmp_path / "pool.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pool), "utf-8")
    build_index(tmp_path / "index", tiny_encoders["bi"], tmp_path / "pool.jsonl")
    command = ("mine", str(data), "-o", str(output), "--overwrite", "--from")
    for options in (("bm25", "--pool", str(tmp_path / "pool.jsonl")), (str(tmp_path / "index"),)):
        assert run(*command, *options) == 0
        ((right, *wrong),) = (example.candidates for example in read_examples(output).examples)
        assert (right, sorted(wrong)) == ("it is high", ["red bill", "thanks"])
    data.write_text('{"context": ["my red bill"], "relevant_ids": ["d"]}\n', "utf-8")
    capsys.readouterr()
    assert run(*command, str(tmp_path / "index")) == 3
    assert f"{data}: no example has a right answer" in capsys.readouterr().err.replace("\n", " ")


def recipe(task: dict[str, Path], backbone: Path, output: Path, **changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "method": "listwise", "batch_size": 18, "epochs": 2, "lr": 3e-3, "warmup_steps": 2, "schedule": "linear",
        "precision": "fp32", "n_negatives": 3, "dropout": 0.0, "remine_epochs": 1, "remine_ranks": (1, 3), **changes,
    }  # fmt: skip
    return toy_recipe(task, output, BiConfig(backbone=str(backbone), reduction="mean"), **values)


def in_training(
    backbone: Path, task: dict[str, Path], n: int | None = None
) -> tuple[list[Example], list[str], Any, Texts]:
    """The first n examples, or all, their distinct responses, and a new Bi-encoder with its texts."""
    examples = read_examples(task["train"]).examples[:n]
    pool = list(dict.fromkeys(example.candidates[0] for example in examples))
    model, texts, _ = new_model(BiConfig(backbone=str(backbone), reduction="mean"), POLICY, seed=1, sample=pool)
    return examples, pool, model, texts


def test_a_network_in_training_mines_its_highest_ranked(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    examples, pool, model, texts = in_training(tiny_backbone, task)
    scorer = EncoderScorer(model, texts)
    plan = HardNegatives(n_negatives=3, last_rank=3)

    def negatives() -> MinedNegatives:
        return MinedNegatives(examples, scorer, pool, plan, every=2, folder=tmp_path)

    found = negatives()
    values = scorer.score_pool([examples[5].query], pool)[0]
    best = [pool[i] for i in np.argsort(-values, kind="stable") if pool[i] != examples[5].candidates[0]][:3]
    assert found(5, examples[5], 0) == best
    for parameter in model.parameters():
        parameter.data.mul_(-0.5)
    assert found(5, examples[5], 1) == best  # until the next mining epoch
    assert negatives()(5, examples[5], 1) == best  # also after a restart, from the file
    scorer.forget()
    values = scorer.score_pool([examples[5].query], pool)[0]
    assert (
        found(5, examples[5], 2)
        == [pool[i] for i in np.argsort(-values, kind="stable") if pool[i] != examples[5].candidates[0]][:3]
    )


def test_a_mining_searches_a_pool_that_it_encodes_once(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scoring the whole pool for each context in turn takes four times as long."""
    examples, pool, model, texts = in_training(tiny_backbone, task)
    assert len(examples) > 32, "of several batches"
    calls: list[int] = []
    encode = EncoderScorer.encode_candidates
    monkeypatch.setattr(EncoderScorer, "encode_candidates", lambda self, each: calls.append(1) or encode(self, each))
    plan = HardNegatives(n_negatives=3, last_rank=3)
    MinedNegatives(examples, EncoderScorer(model, texts), pool, plan, every=1, folder=tmp_path)(0, examples[0], 0)
    assert calls == [1]


def test_negatives_are_mined_from_the_ranks_of_the_settings(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    examples, pool, model, texts = in_training(tiny_backbone, task)
    scorer = EncoderScorer(model, texts)
    ranker = Ranker(model, texts, scorer, lambda *_: None)
    settings = NegativesConfig(n=3, sources=("mined",), remine_epochs=1, remine_ranks=(2, 4))
    lines: list[str] = []
    negatives = make_negatives([ranker], settings, examples, seed=1, folder=tmp_path, notify=lines.append)
    for number, example in enumerate(examples[:5]):
        values = scorer.score_pool([example.query], pool)[0]
        wrong = [pool[i] for i in np.argsort(-values, kind="stable") if pool[i] != example.candidates[0]]
        assert negatives(number, example, 0) == wrong[1:4]
    n, n_pool = len(examples), len(pool)
    assert lines == [f"mining wrong responses for {n} examples among {n_pool} responses"]
    drawn, settings = list[list[list[str]]](), replace(settings, n=1, remine_ranks=(1, 9))
    for seed in (1, 1, 2):  # which of the ranks are used
        (folder := tmp_path / f"{len(drawn)}").mkdir()
        negatives = make_negatives([ranker], settings, examples, seed=seed, folder=folder)
        drawn.append([negatives(number, example, 0) for number, example in enumerate(examples[:5])])
    assert drawn[0] == drawn[1] != drawn[2]


def test_mining_in_bf16_keeps_every_weights_gradient(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    """Mining happens inside the step, which must not reuse weights that were cast without a gradient."""
    examples, pool, model, texts = in_training(tiny_backbone, task, n=12)
    scorer = EncoderScorer(model, texts, dtype=torch.bfloat16)
    negatives = MinedNegatives(examples, scorer, pool, HardNegatives(n_negatives=2), every=1, folder=tmp_path)
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(ListwiseStep(model, texts, torch.device("cpu"), negatives), list(enumerate(examples[:4])))
    loss.backward()
    without = [n for n, p in model.named_parameters() if p.ndim == 2 and "pooler" not in n and p.grad is None]
    assert without == []


def test_too_few_mined_negatives_are_filled_up(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    examples, pool, model, texts = in_training(tiny_backbone, task)
    plan = HardNegatives(n_negatives=5, last_rank=2)
    negatives = MinedNegatives(examples, EncoderScorer(model, texts), pool, plan, every=1, folder=tmp_path)
    assert len(negatives(3, examples[3], 0)) == 2
    found = MixedNegatives([negatives, RandomNegatives(pool, 5, 1)], 5)(3, examples[3], 0)
    assert len(set(found)) == 5
    assert found[:2] == negatives(3, examples[3], 0)
    assert examples[3].candidates[0] not in found


@pytest.mark.deep
def test_training_on_mined_negatives_repeats_itself(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    losses: list[list[float]] = []
    task = {"train": task["train"]}  # validation would add only time
    for name in ("a", "b", "drawn"):
        changes: dict[str, Any] = {"negatives.sources": ("given", "random")} if name == "drawn" else {}
        said: list[str] = []
        train(recipe(task, tiny_backbone, tmp_path / name, **changes), notify=said.append)
        assert sum("mining wrong responses for 72 " in line for line in said) == (0 if changes else 2)  # of epochs
        lines = (tmp_path / name / "metrics.jsonl").read_text("utf-8").splitlines()
        losses.append([r["loss"] for r in map(json.loads, lines) if "loss" in r])
    assert losses[0] == losses[1] != losses[2]
    assert not list((tmp_path / "a").glob("mined-*"))


# candidates that are never negatives, and how negatives are drawn


class Fixed:
    """Scores in the pool's order: the first texts score highest. It records its calls."""

    def __init__(self) -> None:
        self.n_forgotten = 0

    def score_pool(self, contexts: Sequence[Context], pool: Sequence[str]) -> np.ndarray:
        return np.tile(-np.arange(len(pool), dtype=np.float32), (len(contexts), 1))

    def forget(self) -> None:
        self.n_forgotten += 1


TWICE = [
    Example(("how do i reset",), ("press reset", "no"), (0,)),
    Example(("hello",), ("hi", "hi there", "go away"), (0, 1)),
    Example(("how do i reset",), ("hold the button",), (0,)),
    Example(("how do i reset",), ("call us",), (0,), background=("a fact",)),
]
RANKED = ["Press reset!", "hold the button", "call us", "hi there", "hi", "press reset", "bye", "thanks", "go away"]


def given_then_drawn(pool: Sequence[str], n: int, seed: int, **named: Any) -> MixedNegatives:
    return MixedNegatives([GivenNegatives(n, seed, **named), RandomNegatives(pool, n, seed, **named)], n)


def mined(folder: Path, pool: Sequence[str] = RANKED, n: int = 3, **changes: Any) -> MixedNegatives:
    plan = HardNegatives(**{"n_negatives": n, "first_rank": 1, "last_rank": n, **changes})
    scorer: Any = Fixed()
    found = MinedNegatives(TWICE, scorer, pool, plan, every=2, folder=folder)
    rest = given_then_drawn(pool, n, 1, rights=collect_right_answers(TWICE))
    return MixedNegatives([found, rest], n)


def test_in_training_no_right_answer_of_the_same_context_is_mined(tmp_path: Path) -> None:
    """By hand: not the example's answers, nor other examples' answers to the context, nor texts with the same words."""
    found = mined(tmp_path)
    for epoch in (0, 2):  # mined again
        assert found(0, TWICE[0], epoch) == ["call us", "hi there", "hi"]
        assert found(1, TWICE[1], epoch) == ["Press reset!", "hold the button", "call us"]
        assert found(2, TWICE[2], epoch) == ["call us", "hi there", "hi"]
        assert found(3, TWICE[3], epoch) == ["Press reset!", "hold the button", "hi there"]  # its background differs
    scorer: Any = Fixed()  # nor turns of the context, in the same words
    said, plan = Example(("Call us!", "hi", "no"), ("bye",), (0,)), HardNegatives(n_negatives=4, last_rank=4)
    own = MinedNegatives([said], scorer, RANKED, plan, every=1, folder=tmp_path / "turns")
    (tmp_path / "turns").mkdir()
    assert own(0, said, 0) == ["Press reset!", "hold the button", "hi there", "thanks"]
    (tmp_path / "other").mkdir()
    pool = ["hi there", "hi", "bye", "hold the button", "thanks"]
    assert mined(tmp_path / "other", pool)(1, TWICE[1], 0) == ["bye", "hold the button", "thanks"]


@pytest.mark.parametrize("n_right", [21, 22, 23, 88, 150])  # the first 22 texts are read at once, then four times more
def test_in_training_many_right_answers_leave_the_ranks_of_the_wrong_ones_full(tmp_path: Path, n_right: int) -> None:
    examples = [Example(("hi",), (f"answer {number}",), (0,)) for number in range(n_right)]
    pool, scorer = [*(example.candidates[0] for example in examples), "bye", "thanks"], Fixed()
    plan = HardNegatives(n_negatives=2, last_rank=2)
    found = MinedNegatives(examples, scorer, pool, plan, every=1, folder=tmp_path)  # type: ignore[arg-type]  # a double
    assert found(0, examples[0], 0) == ["bye", "thanks"]


@pytest.mark.parametrize(("first", "last"), [(1, 2), (2, 2), (2, 4), (3, 9)])
def test_in_training_the_requested_ranks_are_mined(tmp_path: Path, first: int, last: int) -> None:
    wrong = ["call us", "hi there", "hi", "bye", "thanks", "go away"]  # for the first context, in order
    n = min(last, len(wrong)) - first + 1
    assert mined(tmp_path, n=n, first_rank=first, last_rank=last)(0, TWICE[0], 0) == wrong[first - 1 : last]


def test_negatives_that_fill_up_are_never_right_answers(tmp_path: Path) -> None:
    pool = ["press reset", "hold the button", "bye", "hello there", "thanks"]
    for position in (0, 2):
        found = mined(tmp_path, pool, n=3, last_rank=1)(position, TWICE[position], 0)
        assert found[0] == "bye"
        assert set(found[1:]) <= {"hello there", "thanks", "no"}
        assert len(set(found)) == len(found) >= 2


def test_ids_are_resolved_only_without_an_answer() -> None:
    pool = [Candidate("r1", "hello"), Candidate("r2", "bye"), Candidate("r3", "no")]
    examples = [
        Example(("a",), ("given wrong",), (), relevant_ids=("r2", "r9", "r1")),
        Example(("b",), ("own",), (0,), relevant_ids=("r1",)),
        Example(("c",), (), (), relevant_ids=("r9",)),
        Example(("d",), ("x",), ()),
    ]
    found = with_texts(examples, pool)
    assert found[0] == Example(("a",), ("bye", "hello", "given wrong"), (0, 1))
    assert found[1:] == examples[1:]


def test_mined_lists_of_graded_answers_are_read_again(tmp_path: Path) -> None:
    """Grades are of ids in a pool, which the lists replace."""
    judged = [Example((f"topic {n}?",), (f"topic {n}",), (0,), f"q{n}", (), (f"d{n}",), (2,)) for n in range(4)]
    retrieve = from_pool(BM25(), [f"topic {n}" for n in range(9)])
    mined = mine(judged, retrieve, HardNegatives(n_negatives=2, last_rank=5)).examples
    assert {(len(each.candidates), each.relevant_ids, each.grades) for each in mined} == {(3, (), ())}
    write_examples(tmp_path / "mined.jsonl", mined)
    assert read_examples(tmp_path / "mined.jsonl").examples == [*mined]


def test_dates_of_a_parquet_pool_become_text(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    table = pyarrow.table({"text": ["hello"], "id": ["r1"], "said": [date(2020, 1, 13)], "by": [None]})
    parquet.write_table(table, tmp_path / "pool.parquet")
    assert read_pool(tmp_path / "pool.parquet") == [Candidate("r1", "hello", {"said": "2020-01-13"})]


def test_lists_are_mined_for_so_many_epochs_and_read_again(tmp_path: Path) -> None:
    found = mined(tmp_path)
    for epoch in range(5):
        found(0, TWICE[0], epoch)
        assert sorted(path.name for path in tmp_path.iterdir()) == [f"mined-{e}.npy" for e in (0, 2, 4) if e <= epoch]
    scorer: Any = found.sources[0].scorer  # type: ignore[attr-defined]  # of the mined ones
    assert scorer.n_forgotten == 6  # cached vectors of old weights, before and after each mining
    places = np.load(tmp_path / "mined-2.npy")
    assert [RANKED[i] for i in places[1]] == ["Press reset!", "hold the button", "call us"]
    np.save(tmp_path / "mined-2.npy", places[:, ::-1])
    assert mined(tmp_path)(1, TWICE[1], 3) == ["call us", "hold the button", "Press reset!"]


def test_lists_that_would_run_code_are_not_read(tmp_path: Path) -> None:
    np.save(tmp_path / "mined-0.npy", np.array([[Example(("hi",))]], dtype=object), allow_pickle=True)
    with pytest.raises(ArtifactError, match="allow_pickle=False"):
        mined(tmp_path)(0, TWICE[0], 0)


@pytest.mark.parametrize("change", [lambda rows: rows[:-1], lambda rows: rows + 99, lambda rows: rows.astype(float)])
def test_lists_of_other_examples_are_refused(tmp_path: Path, change: Any) -> None:
    mined(tmp_path)(0, TWICE[0], 0)
    np.save(tmp_path / "mined-0.npy", change(np.load(tmp_path / "mined-0.npy")))
    with pytest.raises(ArtifactError, match=r"mined-0\.npy does not fit the examples; train again"):
        mined(tmp_path)(0, TWICE[0], 0)
    for damaged in ((tmp_path / "mined-0.npy").read_bytes()[:-5], b""):
        (tmp_path / "mined-0.npy").write_bytes(damaged)
        with pytest.raises(ArtifactError, match=r"mined-0\.npy is damaged"):
            mined(tmp_path)(0, TWICE[0], 0)


def test_each_mining_and_each_example_draws_other_ranks(tmp_path: Path) -> None:
    """Half of 40 wrong texts, all of which become negatives in a few epochs; the seed decides which."""
    wrong = [f"text {n}" for n in range(40)]
    examples, lists = [Example(("hi",), (wrong[0],), (0,)), Example(("hey",), (wrong[0],), (0,))], list[list[str]]()
    for seed in (1, 2):
        plan, folder = HardNegatives(n_negatives=20, last_rank=39, seed=seed), tmp_path / str(seed)
        folder.mkdir()
        scorer: Any = Fixed()
        found = MinedNegatives(examples, scorer, wrong, plan, every=1, folder=folder)
        for position, example in enumerate(examples):
            drawn = [found(position, example, epoch) for epoch in range(12)]
            assert drawn == [choose(wrong[1:], plan, epoch, position) for epoch in range(12)]
            assert {text for texts in drawn for text in texts} == {*wrong[1:]}
            lists += drawn
    assert len({tuple(texts) for texts in lists}) == len(lists) == 48


@pytest.mark.parametrize("place", [(0, 0), (2, 1), (-1, -1)])
def test_lists_hold_rows_of_the_pool_or_none(tmp_path: Path, place: tuple[int, int]) -> None:
    """The rows of another pool would be other texts, or an error in the middle of training."""
    mined(tmp_path)(0, TWICE[0], 0)
    file, number = tmp_path / "mined-0.npy", place[0] % len(TWICE)
    rows = np.load(file)
    for value, fits in ((-1, True), (0, True), (len(RANKED) - 1, True), (len(RANKED), False), (-2, False)):
        rows[place] = value
        np.save(file, rows)
        found: Any = mined(tmp_path).sources[0]  # type: ignore[attr-defined]  # the mined ones
        if fits:
            assert found(number, TWICE[number], 0) == [RANKED[row] for row in rows[number] if row != -1]
        else:
            with pytest.raises(ArtifactError, match=r"mined-0\.npy does not fit the examples"):
                found(number, TWICE[number], 0)


@pytest.mark.parametrize("name", ["", "retriever", "reranker"])
def test_lost_lists_are_an_error_once_their_epoch_has_begun(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(exist_ok=True)
    rows = [{"step": 1, "n_examples": 4}, {"step": 2, "n_examples": 8}, {"step": 2, "epoch": 2.0, "valid": {}}]
    for n_rows, epoch, lost in ((2, 2, False), (2, 0, True), (1, 0, True)):
        kept = "".join(json.dumps(row) + "\n" for row in (rows if n_rows == 2 else rows[:1]))
        (tmp_path / name / "metrics.jsonl").write_text(kept, "utf-8")
        if lost:
            with pytest.raises(ArtifactError, match=rf"mined-{epoch}\.npy is missing"):
                mined(tmp_path)(0, TWICE[0], epoch)
        else:
            assert mined(tmp_path)(0, TWICE[0], epoch)
            (tmp_path / f"mined-{epoch}.npy").unlink()
    more = json.dumps({"step": 3, "n_examples": 9}) + "\n"  # the third epoch has used one example
    (tmp_path / name / "metrics.jsonl").write_text(more, "utf-8")
    with pytest.raises(ArtifactError, match=r"mined-2\.npy is missing"):
        mined(tmp_path)(0, TWICE[0], 2)


def test_given_negatives_come_first_and_right_answers_never() -> None:
    example = Example(("hi",), ("a", "right", "b", "a", "also", "right"), (1, 4))
    pool = ["right", "also", "a", "b", "c", "d", "e"]
    for epoch in range(20):
        for n in (1, 2, 3, 5):
            wrong = given_then_drawn(pool, n, 5)(0, example, epoch)
            assert wrong[:2] == ["a", "b"] or (n == 1 and wrong[0] in "ab")
            assert len(set(wrong)) == len(wrong) == n
            assert set(wrong[2:]) <= {"c", "d", "e"}
    assert len(given_then_drawn(pool, 9, 5)(0, example, 0)) == 5  # the pool has no more


def test_surplus_given_negatives_are_drawn_each_epoch_or_once() -> None:
    """Otherwise a Cross-encoder would by default train on the first 15 of 100 options in every epoch."""
    options = [f"option {i}" for i in range(100)]
    example = Example(("hi",), ("right", *options), (0,))
    redrawn, fixed = (GivenNegatives(15, seed=1, redraw=redraw) for redraw in (True, False))
    lists = [redrawn(3, example, epoch) for epoch in range(40)]
    assert all(len(row) == 15 and row == sorted(row, key=options.index) for row in lists)
    assert {text for row in lists for text in row} == {*options}
    assert fixed(3, example, 5) == fixed(3, example, 0) == lists[0] != fixed(4, example, 0)


def test_sources_are_mixed_in_their_order() -> None:
    example = Example(("hi",), ("right", "a", "b", "c"), (0,))
    pool = ["right", "a", "b", "c", *"defgh"]
    given, drawn = GivenNegatives(9, 1), RandomNegatives(pool, 9, 1)
    for epoch in range(20):
        wrong = MixedNegatives([given, drawn], 5)(0, example, epoch)
        assert wrong[:3] == ["a", "b", "c"]
        assert len({*wrong} - {"right"}) == 5
    assert MixedNegatives([given], 9)(0, example, 0) == ["a", "b", "c"]
    only_drawn = {text for epoch in range(20) for text in MixedNegatives([drawn], 3)(0, example, epoch)}
    assert only_drawn == {*"abcdefgh"}


def test_right_answers_of_the_context_elsewhere_are_never_drawn() -> None:
    data = [Example(("hi",), (text,), (0,)) for text in ("hello", "hey", "good day")]
    data += [Example(("hi",), ("yo", "hey", "no"), (0,)), Example(("bye",), ("see you",), (0,))]
    pool = ["hello", "hey", "good day", "yo", "see you", "wait", "why"]
    draw = given_then_drawn(pool, 3, 1, rights=collect_right_answers(data))
    for epoch in range(20):
        assert set(draw(0, data[0], epoch)) == {"see you", "wait", "why"}
        assert draw(3, data[3], epoch)[0] == "no"  # "hey" is a given negative, but right elsewhere
        assert not set(draw(3, data[3], epoch)) & {"hello", "hey", "good day", "yo"}
    assert draw(4, data[4], 0) == given_then_drawn(pool, 3, 1)(4, data[4], 0)  # other examples' draws are unchanged


@pytest.mark.deep
def test_draws_are_uniform_over_the_pool_without_the_taken() -> None:
    """4,000 draws of 2 of the 6 others: each is drawn 1,333 times on average, with a standard deviation of 30."""
    pool = [f"r{i}" for i in range(8)]
    draw = given_then_drawn(pool, 3, 2)
    example = Example(("hi",), ("r0", "r1"), (0,))
    counts = Counter(text for position in range(4000) for text in draw(position, example, 0))
    assert counts.pop("r1") == 4000  # given
    assert set(counts) == {f"r{i}" for i in range(2, 8)}
    assert all(abs(count - 4000 / 3) < 150 for count in counts.values())
    drawn = np.concatenate([sample_negatives(6, 3, seed=1, epoch=0, index=i) for i in range(2000)])
    assert abs(np.bincount(drawn, minlength=6) - 1000).max() < 130


def test_draws_are_a_function_of_seed_epoch_and_position() -> None:
    pool = [f"r{i}" for i in range(1000)]
    example = Example(("hi",), ("r0",), (0,))
    keys = [(seed, epoch, position) for seed in (1, 2) for epoch in (0, 1) for position in (0, 1)]
    found = [tuple(RandomNegatives(pool, 5, seed=s)(p, example, e)) for s, e, p in keys]
    assert len(set(found)) == len(found)
    assert found == [tuple(RandomNegatives(pool, 5, seed=s)(p, example, e)) for s, e, p in keys]
    fixed = [tuple(RandomNegatives(pool, 5, seed=s, redraw=False)(p, example, e)) for s, e, p in keys]
    assert fixed[:2] == fixed[2:4] == found[:2]
    assert fixed[4:6] == fixed[6:] == found[4:6]
    direct = [sample_negatives(1000, 5, seed=s, epoch=e, index=p).tolist() for s, e, p in keys]
    assert len({tuple(row) for row in direct}) == len(keys)


def test_choices_among_ranks_are_uniform_in_order_and_differ_by_seed_and_key() -> None:
    texts = [f"r{i}" for i in range(6)]
    plan = HardNegatives(n_negatives=2, seed=3)
    counts = Counter(text for key in range(3000) for text in choose(texts, plan, 0, key))
    assert all(abs(count - 1000) < 130 for count in counts.values())
    rows = [[tuple(choose(texts, replace(plan, seed=s), e, 7 + i)) for i in range(30)] for s in (0, 1) for e in (0, 1)]
    assert all(list(pair) == sorted(pair) for row in rows for pair in row)
    assert len({tuple(row) for row in rows}) == 4
    assert choose(texts[:2], plan, 1) == texts[:2]


def test_a_reranker_keeps_negatives_below_the_worst_right_answer_minus_the_margin() -> None:
    """Lengths 10 and 4 are right: 2 and 1 are below 4 - 1, and 3 is not."""
    example = Example(("hi",), ("a" * 10, "b" * 4), (0, 1))
    pool = ["c" * n for n in (9, 5, 3, 2, 1)]
    found = mine([example], from_pool(Lengths(), pool), HardNegatives(n_negatives=5), reranker=Lengths(), margin=1.0)
    assert found.examples[0].candidates == ("a" * 10, "b" * 4, "cc", "c")
    assert found.examples[0].relevant == (0, 1)
    assert (found.n_doubtful, found.n_short, found.n_skipped, found.mean_negatives) == (3, 1, 0, 2.0)


def test_the_best_of_a_pool_are_sorted_with_ties_in_its_order() -> None:
    pool = ["bb", "a", "cc", "dd", "eee", "f", "a"]
    for depth, wanted in ((1, ["eee"]), (3, ["eee", "bb", "cc"]), (5, ["eee", "bb", "cc", "dd", "a"])):
        assert from_pool(Lengths(), pool)([Context(("hi",))], depth) == [wanted]
    assert from_pool(Lengths(), pool)([Context(("hi",))], 99) == [["eee", "bb", "cc", "dd", "a", "f"]]


def test_mining_over_batches_keeps_examples_and_their_lists_together() -> None:
    """70 examples form three batches; each has its own context and answer."""
    examples = [Example((f"w{i}",), (f"w{i} yes",), (0,), id=str(i)) for i in range(70)]
    pool = [f"w{i} {end}" for i in range(70) for end in ("yes", "no")]
    found = mine(examples, from_pool(BM25(), pool), HardNegatives(n_negatives=1, last_rank=1)).examples
    assert [(e.id, e.candidates) for e in found] == [(str(i), (f"w{i} yes", f"w{i} no")) for i in range(70)]


def batch_order(
    lengths: Sequence[int], batch_size: int, *, seed: int, epoch: int, window: int = 50
) -> list[NDArray[np.int64]]:
    return BatchOrder(len(lengths), lengths, batch_size, seed=seed, window=window).epoch(epoch)


def test_batches_hold_every_example_once_and_sort_windows_by_length() -> None:
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 99, 103).tolist()
    sorted_, plain = (batch_order(lengths, 4, seed=1, epoch=0, window=window) for window in (5, 1))
    for batches in (sorted_, plain):
        assert sorted(np.concatenate(batches).tolist()) == list(range(103))
        assert sorted(map(len, batches)) == [3, *[4] * 25]
    spread = [np.mean([np.ptp([lengths[i] for i in batch]) for batch in batches]) for batches in (sorted_, plain)]
    assert spread[0] < spread[1] / 2.5
    within = [[lengths[i] for i in batch] for batch in sorted_]
    assert all(row == sorted(row) for row in within)
    assert any([lengths[i] for i in batch] != sorted(lengths[i] for i in batch) for batch in plain)
    firsts = [row[0] for row in within]
    assert firsts != sorted(firsts)  # the batches are shuffled
    others = [batch_order(lengths, 4, seed=s, epoch=e, window=1) for s, e in ((1, 1), (2, 0), (1, 0))]
    assert [np.array_equal(other[0], plain[0]) for other in others] == [False, False, True]
    with pytest.raises(ValueError, match="batch_size 0"):
        batch_order(lengths, 0, seed=1, epoch=0)
    windows = batch_order(list(range(16, 0, -1)), 2, seed=1, epoch=0, window=2)  # a window holds 4 examples
    wanted = []
    for four in batch_order([1] * 16, 4, seed=1, epoch=0, window=1):  # the same four, unsorted
        part = sorted(four.tolist(), reverse=True)  # shorter examples have higher numbers
        wanted += [part[:2], part[2:]]
    assert sorted(batch.tolist() for batch in windows) == sorted(wanted)


def test_other_answers_to_the_same_context_are_not_mined() -> None:
    asked = [Example(("how do i reset",), (text,), (0,)) for text in ("hold the button", "press reset")]
    found = mine(asked, from_pool(BM25(), ["hold the button", "press reset", "bye"]), HardNegatives(n_negatives=2))
    assert [example.candidates for example in found.examples] == [("hold the button", "bye"), ("press reset", "bye")]


def test_many_right_answers_leave_the_ranks_of_the_wrong_ones_full() -> None:
    right = [f"reset button {number}" for number in range(60)]
    asked = [Example(("how do i use the reset button",), (text,), (0,)) for text in right]
    wrong = ["the button", "a button", "no button"]
    found = mine(asked, from_pool(BM25(), [*right, *wrong]), HardNegatives(n_negatives=3, last_rank=3))
    assert (found.n_short, found.mean_negatives) == (0, 3)
    assert {example.candidates[1:] for example in found.examples} == {tuple(wrong)}


def test_an_example_with_many_right_answers_may_be_any_of_a_batch() -> None:
    """The texts to read and the draws depend on the example, not on its place in a batch."""
    right = tuple(f"reset {number}" for number in range(40))
    asked = [Example((f"hello x{n}",), ("bye",), (0,)) for n in range(40)]  # no text has the word with the number
    asked[3] = asked[35] = Example(("how do i reset",), right, (*range(40),))
    asked += [Example((f"hello x{n}",), ("bye",), (0,)) for n in range(40, 70)]
    pool = [*right, "bye", *(f"reset or {word}" for word in ("hello", "hi", "what"))]
    found = mine(asked, from_pool(BM25(), pool), HardNegatives(n_negatives=3, last_rank=3))
    assert found.n_short == 0
    assert [set(found.examples[row].candidates[40:]) for row in (3, 35)] == [set(pool[-3:])] * 2
    drawn = mine(asked, from_pool(BM25(), pool), HardNegatives(n_negatives=2, last_rank=20)).examples
    first, second = ([drawn[row + start].candidates[1:] for row in range(32) if row != 3] for start in (0, 32))
    assert len({*first}) > 1
    assert first != second  # of the same texts
    unanswered = replace(asked[0], relevant=())  # the other examples keep their draws
    others = mine([unanswered, *asked[1:]], from_pool(BM25(), pool), HardNegatives(n_negatives=2, last_rank=20))
    assert others.examples == drawn[1:]


def test_right_answers_may_be_named_by_id(tmp_path: Path) -> None:
    rows = [{"context": ["hello there"], "relevant_ids": ["r1"]}, {"context": ["bye"], "relevant_ids": ["r2"]}]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    pool = [{"id": f"r{i}", "text": text} for i, text in enumerate(("what", "hello to you", "bye to you"))]
    (tmp_path / "pool.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pool), "utf-8")
    command = ("mine", str(tmp_path / "q.jsonl"), "--from", "bm25", "-n", "1", "-o", str(tmp_path / "mined.jsonl"))
    assert run(*command) == 2  # the text of r1 is unknown
    assert not (tmp_path / "mined.jsonl").exists()
    assert run(*command, "--pool", str(tmp_path / "pool.jsonl")) == 0
    assert [e.response for e in read_examples(tmp_path / "mined.jsonl").examples] == ["hello to you", "bye to you"]


def test_a_run_is_started_again_over_runs_of_several_seeds(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    plan = Recipe(
        model=BiConfig(backbone=str(tiny_backbone), reduction="mean"),
        text=TextPolicy(max_context_tokens=24, max_candidate_tokens=8),
        data=DataConfig(train=str(task["train"])),
        train=train_config(method="listwise", n_negatives=2, batch_size=24, seeds=(1, 2)),
        output=str(tmp_path / "run"),
    )
    said: list[str] = []
    train(plan, notify=said.append)
    changed = replace(plan, train=train_config(plan.train, seeds=(1,), remine_epochs=1))
    train(changed, overwrite=True, notify=said.append)
    assert [folder.parent.name for folder in (tmp_path / "run").rglob("metrics.jsonl")] == ["run"]
    with pytest.raises(ConfigError, match="repeats a seed"):
        train(replace(plan, train=replace(plan.train, seeds=(1, 1))), overwrite=True)


def test_the_default_ranks_are_the_same_everywhere() -> None:
    settings, recipe = HardNegatives(n_negatives=100), NegativesConfig()
    ranked = [f"reply {number}" for number in range(200)]
    first, last = recipe.remine_ranks
    assert hard_candidates(ranked, [], settings) == ranked[first - 1 : last]
    assert signature(mine_command).parameters["ranks"].default == f"{settings.first_rank}:{settings.last_rank}"
    assert signature(mine).parameters["margin"].default == 0.0


def test_right_answers_of_further_examples_are_not_wrong() -> None:
    said = (("wifi", "ok"), ("WiFi!", POOL[2]), ("wifi?", POOL[4]))
    example, *others = (Example((context,), (right,), (0,)) for context, right in said)
    settings = HardNegatives(n_negatives=len(POOL), last_rank=len(POOL))
    found = [mine([example], from_pool(BM25(), POOL), settings, further=more).examples[0] for more in ((), others)]
    assert {*found[0].candidates} - {*found[1].candidates} == {POOL[2], POOL[4]}
