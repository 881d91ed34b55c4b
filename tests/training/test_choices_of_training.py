"""Training chooses its model, its end and its learning rate only by validation; the training data would differ."""

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from convert_models import POLICY, TINY
from polyrank.config.recipe import DataConfig, Recipe
from polyrank.config.train import CONVERT_PRETRAINING, NetworkTraining, TrainConfig
from polyrank.data import read_examples
from polyrank.errors import DataError, ResourceError, UsageError
from polyrank.evaluation import evaluate, summarise
from polyrank.models import Network
from polyrank.models.artifacts import load_model
from polyrank.records import Context, Example
from polyrank.scorers.open import load
from polyrank.training import train
from polyrank.training.data import load_data, read_lists
from polyrank.training.learner import Learner, Loss
from polyrank.training.loop import fit
from polyrank.training.ranker import validation_figures
from train_settings import train_config

Write = Callable[[str, list[dict[str, Any]]], Path]
WORDS = ["wifi", "router", "bill", "light", "restart", "help"]


def rows(turn: int) -> list[dict[str, Any]]:
    """Lists whose right answer contains the question's word, or the word ``turn`` places further."""
    replies = [f"{word} thanks" for word in WORDS]
    return [
        {"context": [f"my {word}"], "candidates": replies, "relevant": [(i + turn) % len(WORDS)]}
        for i, word in enumerate(WORDS)
    ]


def recipe(train_file: Path, valid: Path | None, output: Path, **changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "start": CONVERT_PRETRAINING, "batch_size": 6, "epochs": 25, "optimizer": "adamw", "lr": 0.02,
        "schedule": "constant", "scale_steps": 0, "smoothing": 0.0, "precision": "fp32",
        "evaluate_per_epoch": 1, **changes,
    }  # fmt: skip
    return Recipe(
        model=TINY,
        text=POLICY,
        data=DataConfig(train=str(train_file), valid=None if valid is None else str(valid), kind="candidates"),
        train=train_config(**values),
        output=str(output),
    )


def checks(folder: Path) -> list[dict[str, float]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [{"step": row["step"], **row["valid"]} for row in found if "valid" in row]


def train_losses(folder: Path) -> list[float]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [row["loss"] for row in found if "loss" in row]


def recall(model: Path, file: Path) -> float:
    scorer = load(model, device="cpu", precision="fp32")
    examples = read_examples(file).examples
    values = scorer.score([e.query for e in examples], [e.candidates for e in examples])
    return float(np.mean([int(np.argmax(row)) == e.relevant[0] for row, e in zip(values, examples, strict=True)]))


@pytest.mark.deep
@pytest.mark.slow
def test_the_best_model_is_chosen_by_validation_not_training_loss(tmp_path: Path, write_rows: Write) -> None:
    """Training data and validation contradict each other: the best fit to the training data validates worst."""
    one, other = write_rows("one.jsonl", rows(0)), write_rows("other.jsonl", rows(1))
    start = train(recipe(one, one, tmp_path / "start", epochs=12), device="cpu")[0]
    assert start.fit.best["R@1"] == 1.0
    turned = {"init_from": str(start.model), "epochs": 12, "lr": 0.003}
    result = train(recipe(other, one, tmp_path / "run", **turned), device="cpu")[0]
    found, losses = checks(tmp_path / "run"), train_losses(tmp_path / "run")
    assert losses[-1] < losses[0] / 2  # by training, the last is the best
    assert found[-1]["R@1"] < max(check["R@1"] for check in found)  # by validation, it is not
    best = next(check for check in found if check["R@1"] == max(c["R@1"] for c in found))
    assert result.fit.best_step == best["step"] < found[-1]["step"]
    assert result.fit.best == {name: best[name] for name in ("loss", "R@1", "MRR")}
    assert recall(result.model, one) == best["R@1"]
    assert load_model(result.model).metadata["validation"] == result.fit.best
    # validated on its training data, the same training keeps another model and stops at another step
    self_judged = train(recipe(other, other, tmp_path / "self", **turned), device="cpu")[0]
    assert self_judged.fit.best_step > result.fit.best_step
    assert recall(self_judged.model, other) > recall(result.model, other)
    early, ends = {**turned, "early_stopping": 3}, []
    for name, valid in (("run", one), ("self", other)):
        reported = [check["R@1"] for check in checks(tmp_path / name)]
        ends.append(train(recipe(other, valid, tmp_path / f"{name}-early", **early), device="cpu")[0].fit.n_steps)
        assert ends[-1] == stops(reported, 3)
    assert ends[0] < ends[1]


def test_settings_that_need_validations_are_named_without_them(tmp_path: Path, write_rows: Write) -> None:
    said: list[str] = []
    plan = recipe(write_rows("train.jsonl", rows(1)), None, tmp_path / "run", epochs=1, early_stopping=2)
    train(plan, device="cpu", notify=said.append)
    assert "warning: train.early_stopping = 2 has no effect: it needs validation examples" in said


def stops(figures: Sequence[float], patience: int) -> int:
    """The check (here also the step) after which ``patience`` checks in a row did not improve, or the last one."""
    for number in range(1, len(figures) + 1):
        if number > patience and max(figures[: number - patience]) >= max(figures[number - patience : number]):
            return number
    return len(figures)


class Number(Network):
    """One weight, whose square is its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def shape(self) -> dict[str, Any]:
        return {}

    def trunks(self) -> list[Any]:
        return []

    def new_parameters(self) -> list[nn.Parameter]:
        return []


class Together:
    """Numbers trained together, with a validation of each after every update."""

    n_steps, ahead = 12, False

    def __init__(self, n: int) -> None:
        self.networks = [Number() for _ in range(n)]

    def rows(self, number: int) -> tuple[None, int]:
        return None, 0

    def counts(self, rows: None) -> dict[str, int]:
        return {"n_examples": 1}

    def check(self, done: int) -> dict[str, float] | None:
        return {"epoch": float(done)}

    def too_large(self, rows: None) -> str:
        return ""

    def prepare(self, rows: None, epoch: int) -> None:
        return None

    def losses(self, batch: None, number: int) -> Iterator[Loss]:
        yield from (Loss(network.weight.square().sum()) for network in self.networks)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_networks_that_train_together_end_once_none_has_improved_for_a_while(tmp_path: Path, n: int) -> None:
    """Each keeps its own best version: of random figures, by hand."""
    generator, ends = np.random.default_rng(n), set()
    for number in range(6):
        figures, together = generator.integers(5, size=(n, 12)).tolist(), Together(n)
        learners = []
        for row, (network, values) in enumerate(zip(together.networks, figures, strict=True)):
            (folder := tmp_path / f"{number}-{row}").mkdir()
            validations = iter([{"loss": 1.0, "R@1": float(value)} for value in values])
            learners.append(
                Learner(
                    model=network, settings=NetworkTraining(train_layers="all"), folder=folder, name=str(row),
                    save_best=lambda _: None, evaluate=partial(next, validations),
                )
            )  # fmt: skip
        results = fit(
            learners, together, together, TrainConfig(precision="fp32", early_stopping=3), seed=1,
            folder=tmp_path, device=torch.device("cpu"),
        )  # fmt: skip
        first_best = [[values.index(max(values[:done])) + 1 for done in range(1, 13)] for values in figures]
        waits = [min(done - best[done - 1] for best in first_best) for done in range(1, 13)]
        end = next((done for done, wait in enumerate(waits, 1) if wait >= 3), 12)
        assert [(one.n_steps, one.best_step) for one in results] == [(end, best[end - 1]) for best in first_best]
        ends.add(end)
    assert len(ends) > 2


def test_updates_do_not_depend_on_validation_lists(tmp_path: Path, write_rows: Write) -> None:
    """With a schedule that ignores validation: equal updates for any validation lists, or without any."""
    one, other = write_rows("one.jsonl", rows(0)), write_rows("other.jsonl", rows(1))
    for name, valid in (("a", one), ("b", other), ("c", None)):
        train(recipe(one, valid, tmp_path / name, epochs=4), device="cpu")
    assert train_losses(tmp_path / "a") == train_losses(tmp_path / "b") == train_losses(tmp_path / "c")
    assert [c["loss"] for c in checks(tmp_path / "a")] != [c["loss"] for c in checks(tmp_path / "b")]
    assert checks(tmp_path / "c") == []


# figures


class Listed:
    """A scorer whose score is the number in a candidate's text."""

    def score(self, contexts: Sequence[Context], candidates: Sequence[Sequence[str]]) -> list[np.ndarray]:
        assert len(contexts) == len(candidates) <= 32
        return [np.array([float(text) for text in texts], np.float32) for texts in candidates]


def figures(*examples: tuple[Sequence[str], tuple[int, ...]]) -> dict[str, float]:
    lists = [Example(("hi",), tuple(texts), relevant) for texts, relevant in examples]
    return validation_figures(Listed(), lists)  # type: ignore[arg-type]  # only ``score`` is called


def test_validation_figures_by_hand() -> None:
    """Scores 0 and ln 3: the right answer's probability is 3/4 or 1/4; in a quarter of 40 lists it is first."""
    three = str(math.log(3))
    found = figures(*[((three, "0"), (0 if i % 4 == 0 else 1,)) for i in range(40)])
    assert found["R@1"] == 0.25
    assert found["MRR"] == pytest.approx((1 + 3 * 0.5) / 4)
    assert found["loss"] == pytest.approx((-math.log(3 / 4) - 3 * math.log(1 / 4)) / 4, rel=1e-6)


def test_validation_of_large_scores_does_not_overflow() -> None:
    assert figures((("1000", "0"), (1,)))["loss"] == pytest.approx(1000)
    assert figures((("-1000", "0"), (1,)))["loss"] == pytest.approx(0)


def test_the_first_right_answer_is_ranked_among_wrong_ones_only() -> None:
    """A second right answer and a copy of a right one are neither negatives nor the loss's target."""
    assert figures((("0", "9", "0", "1"), (0, 1)))["loss"] == pytest.approx(math.log(1 + math.e))
    assert figures((("5", "0", "5"), (0,)))["loss"] == pytest.approx(math.log(1 + math.exp(-5)), rel=1e-5)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_validation_with_a_nan_score_is_the_worst(value: str) -> None:
    found = figures((("1", "0"), (0,)), (("1", value), (0,)))
    assert found == {"loss": math.inf, "R@1": 0.0, "MRR": 0.0}


def test_validation_counts_ties_as_random_draws() -> None:
    wrong = ("0", "1", "2", "3"), (1,)
    assert figures(wrong, (("7", "8", "8.0", "0"), (1,)))["R@1"] == 0.25
    assert figures(wrong, (("7", "8", "8", "0"), (1,)))["R@1"] == 0.5  # a copy of the right answer is also right


# data


def test_training_and_validation_data_come_from_the_recipe(tmp_path: Path, write_rows: Write) -> None:
    learn = write_rows("learn.jsonl", [*rows(0), {"context": ["?"], "candidates": ["a", "b"], "relevant": []}])
    judge = write_rows("judge.jsonl", [{"context": ["?"], "candidates": ["a", "b"], "relevant": []}, *rows(2)])
    plan = recipe(learn, judge, tmp_path / "run")
    examples, valid = load_data(plan.data)
    assert [(e.context, e.response) for e in examples] == [
        ((f"my {word}",), f"{word} thanks") for word in WORDS
    ]  # without the example that has no right answer
    assert [e.response for e in valid] == [f"{word} thanks" for word in (*WORDS[2:], *WORDS[:2])]
    with_limits = DataConfig(train=str(learn), valid=str(judge), kind="candidates", max_train=4, max_valid=2)
    lines: list[str] = []
    few, judges = load_data(with_limits, notify=lines.append)
    assert (lines[1], lines[-1]) == ("using a random subset of 4", f"{judge}: 6 examples of 6 candidates")
    assert judges == valid[:2]
    assert len(few) == 4
    assert few == [example for example in examples if example in few]  # in the order of the file
    assert few != examples[:4]  # random ones, not the first
    other = Recipe(**{**vars_of(plan), "data": with_limits, "train": dataclasses.replace(plan.train, seeds=(9,))})
    assert load_data(other.data)[0] == few  # independent of the training's seed
    both = write_rows("both.jsonl", [{**row, "response": "said", "id": str(i)} for i, row in enumerate(rows(0))])
    as_pairs = DataConfig(train=str(both), valid=str(both), kind="pairs")
    said, lists = load_data(as_pairs)
    assert {e.response for e in said} == {"said"}
    assert [e.response for e in lists] == [e.response for e in examples]  # ``kind`` applies only to the training data
    cached = dataclasses.replace(as_pairs, cache=str(tmp_path / "cache"), valid=None)
    assert {e.response for e in load_data(cached)[0]} == {"said"}
    assert [e.response for e in load_data(cached, said[1:])[0]] == ["said"] * (len(said) - 1)
    for most in (6, 7):
        enough = DataConfig(train=str(learn), kind="candidates", max_train=most)
        assert load_data(enough) == (examples, [])


def vars_of(plan: Recipe) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in plan.__dataclass_fields__}


@pytest.mark.parametrize("candidates", [["thanks"], []])
def test_validation_needs_at_least_two_candidates(tmp_path: Path, write_rows: Write, candidates: list[str]) -> None:
    relevant = [0] if candidates else []
    judge = write_rows(
        "judge.jsonl", [{"context": ["hi"], "candidates": candidates or ["a", "b"], "relevant": relevant}]
    )
    with pytest.raises(
        DataError, match=r"judge\.jsonl: (1 different response, too few for candidate lists|no example has the text)"
    ):
        load_data(recipe(write_rows("learn.jsonl", rows(0)), judge, tmp_path / "run").data)


def test_a_finished_run_returns_its_results_again(tmp_path: Path, write_rows: Write) -> None:
    one = write_rows("one.jsonl", rows(0))
    plan = recipe(one, one, tmp_path / "run", epochs=2, seeds=(1, 2))
    said: list[str] = []
    results = train(plan, device="cpu")
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert train(plan, device="cpu", resume=True, notify=said.append) == results
    assert [line for line in said if line.endswith("is finished")] == [
        f"{tmp_path / 'run' / f'seed-{seed}'} is finished" for seed in (1, 2)
    ]
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == files
    assert len(list((tmp_path / "run").rglob("checkpoint.safetensors"))) == 2  # each run can resume from its own
    assert torch.is_grad_enabled()


def test_dialogues_in_memory_are_read_like_files(tmp_path: Path, write_rows: Write) -> None:
    """Responses are turns of agents, of the recipe's speaker, or of everybody; validation lists have no speaker."""
    said = [(("customer", f"hi {word}"), ("agent", f"{word}!"), ("customer", "bye")) for word in WORDS]
    dialogues = [{"turns": [{"speaker": who, "text": text} for who, text in turns]} for turns in said]
    lists = rows(0)
    file, judge = write_rows("chats.jsonl", dialogues), write_rows("judge.jsonl", lists)
    n_train = {}
    for speaker in (None, "customer", "*"):
        settings = DataConfig(train=str(file), valid=str(judge), speaker=speaker)
        train_part, valid = load_data(settings)
        from_memory, judges = load_data(DataConfig(speaker=speaker), iter(dialogues), lists)
        assert [(e.context, e.response) for e in from_memory] == [(e.context, e.response) for e in train_part]
        assert [e.candidates for e in judges] == [e.candidates for e in valid]
        cached = DataConfig(train=str(file), speaker=speaker, cache=str(tmp_path / "cache"))
        assert [(e.context, e.response) for e in load_data(cached)[0]] == [(e.context, e.response) for e in train_part]
        n_train[speaker] = len(train_part)
    assert n_train == {None: len(WORDS), "customer": len(WORDS), "*": 2 * len(WORDS)}
    for source, given, name in ((file, None, file), (None, dialogues, "train")):
        lines: list[str] = []
        load_data(DataConfig(train=source and str(source)), given, notify=lines.append)
        assert lines[0].startswith(f"{name}: replies are the turns of agent, not of customer; choose another speaker")
        assert lines[1].startswith(f"{name}: 6 rows, 6 examples")


def test_bad_rows_of_a_cached_training_part_are_skipped(tmp_path: Path, write_rows: Write) -> None:
    turns = [{"speaker": "agent", "text": "hi"}, {"speaker": "customer", "text": "bye"}]
    file, cache = write_rows("chats.jsonl", [{"turns": turns}, {"turns": 3}]), str(tmp_path / "cache")
    stored = DataConfig(train=str(file), speaker="customer", skip_bad=True, cache=cache)
    assert [(one.context, one.response) for one in load_data(stored)[0]] == [(("hi",), "bye")]
    with pytest.raises(DataError, match=r"chats\.jsonl:2:"):
        load_data(dataclasses.replace(stored, skip_bad=False))


def test_validation_and_test_lists_are_read_alike(tmp_path: Path, write_rows: Write) -> None:
    """Neither has the speaker of the training part, unless it holds dialogues; bad rows are skipped in both."""
    pairs = [{"context": f"my {word}", "response": f"{word} thanks"} for word in WORDS]
    said = [(("agent", f"hi {word}"), ("customer", f"my {word}")) for word in WORDS]
    dialogues = [{"turns": [{"speaker": who, "text": text} for who, text in turns]} for turns in said]
    files = [write_rows("pairs.jsonl", [{"context": 3}, *pairs]), write_rows("chats.jsonl", [*dialogues, {"turns": 3}])]
    for part in ("valid", "test"):
        for file, first in zip(files, ("wifi thanks", "my wifi"), strict=True):
            lines: list[str] = []
            data = DataConfig(speaker="customer", skip_bad=True, valid_candidates=4, **{part: str(file)})
            lists = read_lists(data, part, notify=lines.append)
            assert [len(example.candidates) for example in lists] == [4] * len(WORDS)
            assert lists[0].response == first
            assert lines[-1] == f"{file}: 6 examples of 4 candidates"
        for sizes, shown in (((3, 2, 4), "2 to 4"), ((3, 3), "3")):
            rows = [{"context": "?", "candidates": [*"abcd"[:n]], "relevant": [0]} for n in sizes]
            read_lists(DataConfig(**{part: str(write_rows("sizes.jsonl", rows))}), part, notify=lines.append)
            assert lines[-1].endswith(f"sizes.jsonl: {len(sizes)} examples of {shown} candidates")
        with pytest.raises(DataError, match=rf"^{part}: no list has a right and a wrong .* as data\.{part}$"):
            read_lists(data, part, [{"context": "hi", "candidates": ["a", "a"], "relevant": 0}])


def test_figures_of_the_training_are_those_of_the_model(tmp_path: Path, write_rows: Write) -> None:
    train_file = write_rows("train.jsonl", rows(0))
    only_right = {"context": ["thanks"], "candidates": ["welcome", "welcome"], "relevant": [0]}  # no scorer can fail
    valid, held_out = write_rows("valid.jsonl", rows(1)), write_rows("test.jsonl", [*rows(1)[1:], only_right])
    said: list[str] = []
    plan = dataclasses.replace(recipe(train_file, valid, tmp_path / "run", epochs=2))
    plan = dataclasses.replace(plan, data=dataclasses.replace(plan.data, test=str(held_out)))
    (result,) = train(plan, notify=said.append)
    assert result.test["n_examples"] == 5
    of_test, found = (summarise(evaluate(result.load(), read_examples(part).examples)) for part in (held_out, valid))
    assert result.test["metrics"] == of_test["metrics"]
    assert result.fit.best["R@1"] == pytest.approx(found["metrics"]["R@1"])
    assert any("without 1 that have no wrong candidate" in line for line in said)
    assert f"evaluating {result.model} on the 5 examples of {held_out}" in said
    with pytest.raises(UsageError, match="'no such device' is unknown"):
        result.load(device="no such device")
    assert result.test["precision"] == result.load().precision
    (again,) = train(plan, resume=True)
    assert again.test == result.test


def test_a_network_that_is_too_large_is_refused_with_the_name_of_the_device(tmp_path: Path, write_rows: Write) -> None:
    plan = recipe(write_rows("train.jsonl", rows(0)), None, tmp_path / "run")
    model = dataclasses.replace(TINY, side_dim=2**40)
    with pytest.raises(ResourceError, match="the network does not fit into the free memory of cpu; use another device"):
        train(dataclasses.replace(plan, model=model))


def test_equal_responses_leave_nothing_to_learn(tmp_path: Path) -> None:
    pairs = [Example((f"turn {n}",), ("ok",), (0,)) for n in range(8)]
    plan = recipe(tmp_path / "none.jsonl", None, tmp_path / "run")
    with pytest.raises(DataError, match="all responses are equal"):
        train(plan, pairs)


def test_equal_contexts_leave_nothing_to_learn(tmp_path: Path) -> None:
    pairs = [Example(("hello?",), (f"answer {n}",), (0,)) for n in range(8)]
    plan = recipe(tmp_path / "none.jsonl", None, tmp_path / "run")
    with pytest.raises(DataError, match="all contexts are equal, so every response answers each"):
        train(plan, pairs)


def test_lists_that_cannot_be_ranked_are_no_validation(tmp_path: Path, write_rows: Write) -> None:
    only_right = {"context": ["thanks"], "candidates": ["welcome", "welcome"], "relevant": [0]}
    plan = recipe(write_rows("train.jsonl", rows(0)), write_rows("valid.jsonl", [only_right]), tmp_path / "run")
    with pytest.raises(DataError, match=r"valid\.jsonl: no list has a right and a wrong candidate; .* data\.valid"):
        train(plan)
