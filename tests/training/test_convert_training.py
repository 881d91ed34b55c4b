"""ConveRT's loss is the papers', and runs are reproducible bit for bit."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from convert_models import BATCH, CORPUS, POLICY, TINY, make, step_of
from polyrank.config.checked import parse_value
from polyrank.config.methods import ConvertMethod
from polyrank.config.models import ConvertConfig, ConvertText
from polyrank.config.recipe import Recipe, recipe_from_dict
from polyrank.config.train import CONVERT_PRETRAINING, TrainConfig
from polyrank.data import read_examples
from polyrank.errors import ArtifactError, ConfigError
from polyrank.loading.recipes import load_recipe
from polyrank.models import Convert, new_model
from polyrank.models.artifacts import load_model
from polyrank.models.losses import cross_entropy
from polyrank.negatives.hard import collect_right_answers
from polyrank.negatives.random import GivenNegatives
from polyrank.records import Example
from polyrank.scorers.load import make_scorer
from polyrank.scorers.open import load
from polyrank.text import ConvertTexts
from polyrank.training import train
from polyrank.training.convert_step import ConvertStep, annealed_scale
from polyrank.training.methods import make_step
from polyrank.training.optimizer import freeze, make_optimizer
from polyrank.training.ranker import Ranker
from train_settings import loss_of, toy_recipe


def test_another_right_answer_to_the_context_is_not_a_negative() -> None:
    model, texts, _ = make()
    one, other = (Example(("hello",), (text,), (0,)) for text in ("please restart it", "did that help?"))
    batch = [(0, one), (1, other)]
    with_rights, without_rights = (
        step_of(model, texts, smoothing=0.0, rights=known) for known in (collect_right_answers([one, other]), {})
    )
    everything = collect_right_answers([example for _, example in BATCH])  # no context has two
    with torch.no_grad():
        assert float(loss_of(with_rights, batch, number=9)) == pytest.approx(0.0, abs=1e-6)  # no negative is left
        assert float(loss_of(without_rights, batch, number=9)) > 0.01
        assert loss_of(step_of(model, texts, rights=everything), BATCH, number=9) == loss_of(
            step_of(model, texts), BATCH, number=9
        )


def test_a_step_has_every_setting_of_its_recipe() -> None:
    model, texts, _ = make()
    ranker = Ranker(model, texts, make_scorer(model, texts), save=lambda path, metadata: None)
    lengths = [ranker.length(Example(turns, ("yes",), (0,))) for turns in (("hi there", "wifi"), ("wifi", "hi there"))]
    assert lengths == [4, 8]  # characters of the last turn
    assert ranker.length(Example((), ("yes",), (0,), background=("a fact",))) == 0
    loss = cross_entropy(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), torch.ones(1, 2, dtype=torch.bool), 0.25)
    for name, summed in (("mean", False), ("sum", True)):
        method = ConvertMethod(scale_steps=7, smoothing=0.25)
        settings = TrainConfig(method=method, loss=name, batch_size=8, chunk_size=2)  # type: ignore[arg-type]
        examples, device = [example for _, example in BATCH], torch.device("cpu")
        step = make_step([ranker], settings, examples, device=device, seed=1, folder=Path())
        assert isinstance(step, ConvertStep)
        assert (step.scale_steps, step.summed, step.in_batch.chunk_size) == (7, summed, 2)
        own = step.in_batch.loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), torch.ones(1, 2, dtype=torch.bool))
        assert float(own) == pytest.approx(float(loss))


@pytest.mark.parametrize("combination", ["mean", "feed_forward"])
def test_an_empty_text_does_not_blow_up_the_gradient_of_a_new_network(combination: str) -> None:
    """Its first encoding is zero: all biases are. One of 1e12 and more would stop Adadelta for good."""
    config = dataclasses.replace(TINY, combination=combination)
    model, texts, _ = new_model(config, POLICY, seed=1, sample=(), corpus=CORPUS)
    assert isinstance(model, Convert)
    assert isinstance(texts, ConvertTexts)
    empty = [(3, Example((" ",), ("please restart it",), (0,))), (4, Example(("hi",), ("",), (0,)))]
    loss_of(step_of(model, texts), [*BATCH, *empty]).backward()
    assert max(weight.grad.norm() for weight in model.parameters() if weight.grad is not None) < 10


def test_the_loss_is_the_papers() -> None:
    model, texts, _ = make()
    model.eval()
    batch = [BATCH[0], BATCH[2], BATCH[1]]  # the second context has no earlier turns
    examples = [e for _, e in batch]
    with torch.no_grad():
        found = model.context_encodings(texts.contexts([e.query for e in examples]))
        y = model.encode_candidates(texts.candidates([e.candidates[0] for e in examples])).double()

        def loss(h: torch.Tensor, rows: list[int], scale: float) -> float:
            total = 0.0
            for row in rows:
                s = [scale * float(h[row].double() @ y[j]) for j in range(3)]
                logs = [x - math.log(sum(map(math.exp, s))) for x in s]
                total -= 0.8 * logs[row] + 0.2 / 2 * sum(logs[j] for j in range(3) if j != row)
            return total / len(rows)

        final = math.sqrt(12)
        for number, scale in ((0, 1.0), (2, 1 + (final - 1) / 2), (9, final)):
            parts = [loss(found.immediate, [0, 1, 2], scale), loss(found.earlier, [0, 2], scale)]
            parts.append(loss(found.both, [0, 1, 2], scale))
            assert float(loss_of(step_of(model, texts), batch, number=number)) == pytest.approx(sum(parts), rel=1e-5)
            summed = loss_of(step_of(model, texts, summed=True), batch, number=number)  # the loop multiplies by B = 3
            over_rows = sum(n * part for n, part in zip((3, 2, 3), parts, strict=True))
            assert 3 * float(summed) == pytest.approx(over_rows, rel=1e-5)
    single, texts, _ = make(multi_context=False)
    rows = [0, 1, 2]
    with torch.no_grad():
        single.eval()
        found = single.context_encodings(texts.contexts([e.query for e in examples]))
        y = single.encode_candidates(texts.candidates([e.candidates[0] for e in examples])).double()
        assert float(loss_of(step_of(single, texts), batch, number=9)) == pytest.approx(
            loss(found.immediate, rows, final), rel=1e-5
        )


def test_equal_responses_are_not_negatives_but_given_ones_are() -> None:
    model, texts, _ = make()
    model.eval()
    twice = [BATCH[0], (1, Example(("no light",), ("please restart it",), (0,)))]
    with torch.no_grad():
        plain = step_of(model, texts, smoothing=0.0)
        assert float(loss_of(plain, twice, number=9)) == pytest.approx(0.0, abs=1e-6)
        given = [BATCH[0], (1, Example(("no light",), ("thanks!", "please restart it"), (1,)))]
        assert float(loss_of(step_of(model, texts, smoothing=0.0), given, number=9)) == pytest.approx(
            0.0, abs=1e-6
        )  # left out
        assert (
            float(loss_of(step_of(model, texts, smoothing=0.0, negatives=GivenNegatives(9, 1)), given, number=9)) > 0.01
        )


def test_no_right_answer_from_any_source_is_a_negative() -> None:
    """By hand: another row's response and a given text that are right here, too, are not among the negatives."""
    model, texts, _ = make(multi_context=False)
    model.eval()
    examples = [
        Example(("no light",), ("thanks!", "please restart it", "hello"), (1, 2)),
        Example(("hi",), ("hello", "it is red", "thanks!"), (0,)),
        Example(("it is down",), ("please restart it",), (0,)),
    ]
    columns = ["please restart it", "hello", "please restart it", "thanks!", "it is red"]
    wrong = [["thanks!", "it is red"], ["please restart it"] * 2 + ["thanks!", "it is red"], columns[1:2] + columns[3:]]
    with torch.no_grad():
        step = step_of(model, texts, smoothing=0.3, negatives=GivenNegatives(9, 1))
        loss = loss_of(step, list(enumerate(examples)), number=9)
        h = model.context_encodings(texts.contexts([e.query for e in examples])).immediate.double()
        y = dict(zip(columns, model.encode_candidates(texts.candidates(columns)).double(), strict=True))
    total = 0.0
    for row, (example, others) in enumerate(zip(examples, wrong, strict=True)):
        s = [math.sqrt(12) * float(h[row] @ y[text]) for text in (example.response or "", *others)]
        logs = [value - math.log(sum(map(math.exp, s))) for value in s]
        total -= 0.7 * logs[0] + 0.3 * sum(logs[1:]) / len(others)
    assert float(loss) == pytest.approx(total / 3, rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({"smoothing": 0.0}, True),
        ({"smoothing": 1.0}, True),
        ({"smoothing": -0.1}, False),
        ({"scale_steps": 0}, True),
        ({"scale_steps": -1}, False),
    ],
)
def test_settings_at_their_limits_are_accepted_and_beyond_refused(changes: dict[str, Any], fits: bool) -> None:
    if fits:
        assert next(iter(changes.items())) in vars_of(ConvertMethod(**changes)).items()
    else:
        with pytest.raises(ConfigError, match=next(iter(changes))):
            ConvertMethod(**changes)


def vars_of(method: ConvertMethod) -> dict[str, Any]:
    return {name: getattr(method, name) for name in method.__dataclass_fields__}


def test_the_range_is_checked_at_an_interval() -> None:
    """Weights outside the range are noticed only in updates 0, 3 and 6, and the range never shrinks."""
    model, texts, _ = make()
    step, ranges = step_of(model, texts, range_steps=3), []
    with torch.no_grad():
        for number in range(7):
            model.subwords.weight[0, 0] = float(10 + number)
            loss_of(step, BATCH, number=number)
            ranges.append(float(model.subwords.seen[1]))
        model.subwords.weight.mul_(0.1)
        loss_of(step, BATCH, number=9)
    assert ranges == [10.0, 10.0, 10.0, 13.0, 13.0, 13.0, 16.0]
    assert float(model.subwords.seen[1]) == 16.0


def test_smoothing_spreads_over_the_wrong_ones_only() -> None:
    scores, allowed = torch.tensor([[2.0, 0.0, -1.0]]), torch.ones(1, 3, dtype=torch.bool)
    logs = torch.log_softmax(scores, 1)[0]
    wanted = -(0.8 * logs[0] + 0.1 * logs[1] + 0.1 * logs[2])
    assert cross_entropy(scores, torch.tensor([0]), allowed, 0.2) == pytest.approx(float(wanted))


def test_the_scale_grows_linearly() -> None:
    values = [annealed_scale(n, 10_000, math.sqrt(512)) for n in (0, 5_000, 10_000, 10**6)]
    assert values == pytest.approx([1.0, (1 + math.sqrt(512)) / 2, math.sqrt(512), math.sqrt(512)])


def recipe(task: dict[str, Path], output: Path, **changes: Any) -> Recipe:
    model = dataclasses.replace(TINY, **changes.pop("model", {}))
    settings = {
        "start": CONVERT_PRETRAINING,
        "batch_size": 8,
        "epochs": 1,
        "optimizer": "adamw",
        "lr": 0.01,
        "scale_steps": 5,
        "precision": "fp32",
        **changes,
    }
    return toy_recipe(task, output, model, POLICY, **settings)


def curve(folder: Path) -> list[Any]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [(r["step"], r.get("loss"), r.get("lr"), r.get("valid")) for r in records]


class CrashError(Exception):
    """Ends a run from its report callback, like a crash."""


def crash_at(step: int) -> Callable[[int, dict[str, Any]], None]:
    def report(_: int, record: dict[str, Any]) -> None:
        if record["step"] == step:
            raise CrashError

    return report


@pytest.mark.parametrize(
    ("optimizer", "rate"), [pytest.param("adadelta", 50.0, marks=pytest.mark.deep), ("adamw", 0.1)]
)
def test_resumed_equals_uninterrupted(task: dict[str, Path], tmp_path: Path, optimizer: str, rate: float) -> None:
    def plan(name: str) -> Recipe:
        changes: dict[str, Any] = {"lr": rate, "scale_steps": 20, "checkpoint_steps": 1}
        return recipe(task, tmp_path / name, optimizer=optimizer, dropout=0.1, **changes)

    train(plan("whole"), device="cpu")
    for step in (2, 8):
        with pytest.raises(CrashError):
            train(plan("broken"), device="cpu", resume=True, report=crash_at(step))
        saved = load_file(tmp_path / "broken" / "checkpoint.safetensors")
        assert float(saved["/buffer.scale"]) == pytest.approx(1 + (math.sqrt(12) - 1) * (step - 2) / 20)
    train(plan("broken"), device="cpu", resume=True)
    assert curve(tmp_path / "broken") == curve(tmp_path / "whole")
    files = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "broken")]
    assert files[0] == files[1]


@pytest.mark.deep
def test_a_trained_model_reproduces_its_last_validation(task: dict[str, Path], tmp_path: Path) -> None:
    result = train(recipe(task, tmp_path / "run", epochs=2), device="cpu")[0]
    assert result.fit.best["R@1"] > 2 / 12  # chance is 1/12
    scorer = load(result.model, device="cpu", precision="fp32")
    valid = read_examples(task["valid"]).examples
    lists = scorer.score([e.query for e in valid], [e.candidates for e in valid])
    hits = [int(np.argmax(values)) == e.relevant[0] for values, e in zip(lists, valid, strict=True)]
    assert np.mean(hits) == pytest.approx(result.fit.best["R@1"])


@pytest.mark.deep
def test_fine_tuning_starts_from_weights_and_vocabulary(task: dict[str, Path], tmp_path: Path) -> None:
    first = train(recipe(task, tmp_path / "first", lr=1e-4), device="cpu")[0]  # weights stay in their 8-bit range
    start = str(first.model)
    second = train(
        recipe(task, tmp_path / "second", init_from=start, max_steps=1, lr=1e-9, scale_steps=0), device="cpu"
    )
    made, before = load_model(second[0].model), load_model(first.model)
    assert made.texts.subwords.to_bytes() == before.texts.subwords.to_bytes()
    for name, tensor in before.model.named_parameters():
        torch.testing.assert_close(dict(made.model.named_parameters())[name], tensor, atol=1e-3, rtol=1e-2)


def test_an_initial_model_determines_the_vocabulary(task: dict[str, Path], tmp_path: Path) -> None:
    plan = recipe(task, tmp_path / "run", init_from="shipped:convert")
    text = ConvertText(vocabulary=str(tmp_path / "other.json"))
    with pytest.raises(ConfigError, match=r"other\.json, but train\.init_from has"):
        train(dataclasses.replace(plan, text=text), device="cpu")


def test_quantization_can_be_disabled_on_the_command_line() -> None:
    values = {"model": {"kind": "convert", "quantization": parse_value("none")}, "data": {"train": "x"}, "output": "y"}
    plan = recipe_from_dict(values)
    assert isinstance(plan.model, ConvertConfig)
    assert plan.model.quantization == "none"
    assert plan.train.max_steps is None


def test_fine_tuning_has_its_own_defaults(tmp_path: Path) -> None:
    place = tmp_path / "recipe.toml"
    table = 'output = "run"\n[model]\nkind = "convert"\n[data]\ntrain = "x"\n[train]\n'
    place.write_text(f'{table}init_from = "shipped:convert"\nbatch_size = 32\n', "utf-8")
    plan = load_recipe(place).train
    assert (plan.optimizer, plan.method.scale_steps, plan.dropout, plan.batch_size) == ("adamw", 0, 0.2, 32)


def test_the_top_layers_train_with_what_is_above_them() -> None:
    model = make()[0]
    freeze(model, "top-1")
    trained = {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {name.split(".")[0] for name, _ in model.named_parameters()} - {"subwords", "positions"}
    assert {
        name.split(".")[1] for name, p in model.named_parameters() if p.requires_grad and "layers." in name[:7]
    } == {str(len(model.layers) - 1)}


def test_relative_biases_do_not_decay() -> None:
    model = make()[0]
    groups = make_optimizer(model, CONVERT_PRETRAINING).param_groups
    spared = {id(p) for group in groups for p in group["params"] if not group["weight_decay"]}
    biases = [p for name, p in model.named_parameters() if ".bias." in name and p.ndim == 2]
    assert biases
    assert all(id(p) in spared for p in biases)


def test_the_papers_training_is_the_default() -> None:
    plan = recipe_from_dict({"model": {"kind": "convert"}, "data": {"train": "x"}, "output": "y"})
    assert plan.train.optimizer == "adadelta"
    assert (plan.train.lr, plan.train.schedule.final_lr, plan.train.batch_size) == (1.0, 0.001, 512)
    assert plan.train.method.smoothing == 0.2
    assert plan.train.clip_embeddings_norm == 1.0
    assert plan.model == ConvertConfig()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"smoothing": 1.5}, "method.smoothing = 1.5"),
        ({"train_layers": "top-9"}, "top-9"),
        ({"init_from": "nowhere"}, "nowhere"),
    ],
)
def test_impossible_trainings_are_named(
    task: dict[str, Path], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigError, ArtifactError), match=message):
        train(recipe(task, tmp_path / "run", **changes), device="cpu")
