"""Sums whose encoders train together: the joint network, its gradients, its folder, and errors."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from polyrank.scorers.summed import SumEncoder, save_sum
from safetensors.torch import load_file

import polyrank
from polyrank.config.models import (
    BiConfig,
    ConvertConfig,
    ConvertText,
    CrossConfig,
    ModelConfig,
    PolyConfig,
    SumConfig,
    SumText,
    TextPolicy,
)
from polyrank.config.recipe import DataConfig, Partner, Recipe, recipe_from_dict, recipe_to_dict
from polyrank.config.training import NetworkTraining
from polyrank.errors import ArtifactError, ConfigError, UsageError
from polyrank.loading.models import model_folder, read_sum
from polyrank.loading.recipes import load_recipe
from polyrank.models import SumNetwork, new_model
from polyrank.models.artifacts import load_model, save_model
from polyrank.records import Context, Example
from polyrank.scorers.open import load, load_encoder
from polyrank.text import pad, split_parts
from polyrank.training import DistillStep, train
from polyrank.training.cached import encode_in_chunks
from polyrank.training.methods import make_step
from polyrank.training.ranker import Ranker, new_ranker
from polyrank.training.steps import InBatchStep
from polyrank.training.sums import new_sum
from processes import run
from test_sum import CONTEXTS, REPLIES, WORDS
from train_settings import train_config

CPU = torch.device("cpu")
BATCH = [
    (i, Example((f"my {word}", f"the {word} is {other}"), (f"{other} {word}",), (0,)))
    for i, (word, other) in enumerate(pairwise(WORDS))
]
SMALL = ConvertConfig(
    embedding_dim=16, ffn_dim=32, spans=(3, 5), side_dim=16, side_layers=1, output_dim=8, multi_context=True
)
SUMS: dict[str, tuple[tuple[str, ...], tuple[float, ...]]] = {
    "bi + bi": (("bi", "other"), (1, 0.7)),
    "poly + convert": (("poly", "convert"), (1, 3)),
    "first + bi": (("first", "bi"), (1, 0.2)),
    "bi + poly + convert": (("bi", "poly", "convert"), (0.2, 1, 4)),
}


@pytest.fixture(scope="module")
def models(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model of each kind with random weights and different text settings."""
    folder = tmp_path_factory.mktemp("models")
    backbone = str(tiny_backbone)
    configs = {
        "bi": BiConfig(backbone=backbone, shared_towers=True),
        "poly": PolyConfig(backbone=backbone, n_codes=4, code_init="normal", code_std=1.0),
        "first": PolyConfig(backbone=backbone, n_codes=3, codes="first"),
        "cross": CrossConfig(backbone=backbone),
        "other": BiConfig(backbone=backbone, projection_dim=24),
    }
    for seed, (name, config) in enumerate(configs.items()):
        policy = TextPolicy(max_context_tokens=16 + seed, max_candidate_tokens=12)
        save_model(folder / name, *new_model(config, policy, seed=seed, sample=REPLIES))
    made = new_model(SMALL, ConvertText(min_count=1, n_buckets=16), seed=1, sample=(), corpus=REPLIES)
    save_model(folder / "convert", *made)
    return {name: folder / name for name in (*configs, "convert")}


def config_of(models: dict[str, Path], name: str, **settings: Any) -> SumConfig:
    parts, weights = SUMS[name]
    return SumConfig(parts=tuple(str(models[part]) for part in parts), weights=weights, **settings)


def ranker_of(models: dict[str, Path], name: str, dropout: float | None = 0.0, **settings: Any) -> Ranker:
    training = NetworkTraining(dropout=dropout)
    config = config_of(models, name, **settings)
    return new_sum(config, [model_folder(part) for part in config.parts], training, precision="fp32", device=CPU)


def network_of(ranker: Ranker) -> SumNetwork:
    assert isinstance(ranker.model, SumNetwork)
    return ranker.model


def sum_of(models: dict[str, Path], name: str) -> SumEncoder:
    parts, weights = SUMS[name]
    return SumEncoder([load_encoder(models[part], device="cpu") for part in parts], weights)


def recipe(
    task: dict[str, Path], model: SumConfig, output: Path, *, partner: ModelConfig | None = None, **changes: Any
) -> Recipe:
    values: dict[str, Any] = {
        "batch_size": 24, "epochs": 2, "lr": 2e-3, "warmup_steps": 1, "schedule": "constant", "precision": "fp32",
        "train_layers": "all", "dropout": 0.1, **changes,
    }  # fmt: skip
    settings, policy = train_config(**values), TextPolicy(max_context_tokens=16, max_candidate_tokens=8)
    return Recipe(
        model=model,
        text=SumText(),
        data=DataConfig(train=str(task["train"]), valid=str(task["valid"])),
        train=settings,
        output=str(output),
        reranker=None if partner is None else Partner(model=partner, text=policy, train=settings.of_one_network()),
    )


def losses(folder: Path) -> list[float]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


# texts


def test_joined_rows_of_ids_are_split_into_the_original_ones(models: dict[str, Path]) -> None:
    """Each part receives exactly the tokens that its texts produce."""
    ranker = ranker_of(models, "bi + poly + convert")
    own = [load_model(models[name]).texts for name in ("bi", "poly", "convert")]
    pads = [texts.subwords.pad_id for texts in own]
    replies = ["", "wifi", "red light router bill thanks hello " * 3]
    for together, alone in (
        (ranker.texts.contexts(CONTEXTS), [texts.contexts(CONTEXTS) for texts in own]),
        (ranker.texts.candidates(replies), [texts.candidates(replies) for texts in own]),
        (pad(ranker.texts.all_candidate_ids(replies)), [texts.candidates(replies) for texts in own]),
    ):
        for part, want in zip(split_parts(together, pads), alone, strict=True):
            assert part.ids.tolist() == want.ids.tolist()
            assert part.mask.tolist() == want.mask.tolist()
            assert part.segments.tolist() == want.segments.tolist()
    assert [part.ids.shape for part in split_parts(pad([]), pads)] == [(0, 0)] * 3
    with pytest.raises(ConfigError, match="does not support pairs"):
        ranker.texts.pairs([(CONTEXTS[0], "hi")])


# the network


@pytest.mark.parametrize("name", SUMS)
def test_the_network_scores_like_the_sum(models: dict[str, Path], name: str) -> None:
    made, want = ranker_of(models, name).scorer, sum_of(models, name)
    np.testing.assert_allclose(made.score_pool(CONTEXTS, REPLIES), want.score_pool(CONTEXTS, REPLIES), atol=1e-4)
    lists = [REPLIES[:3], REPLIES[5:]]
    for row, other in zip(made.score(CONTEXTS, lists), want.score(CONTEXTS, lists), strict=True):
        np.testing.assert_allclose(row, other, atol=1e-4)


@pytest.mark.parametrize("name", SUMS)
def test_the_loss_moves_every_part_and_the_weights(models: dict[str, Path], name: str) -> None:
    """A weight's gradient equals a difference quotient, and each part's network gets gradients."""
    ranker = ranker_of(models, name)
    model = network_of(ranker)
    step = InBatchStep(model, ranker.texts, CPU)
    model.train()
    step(BATCH, 0).backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
    assert model.growth.grad is not None
    for part in model.parts:
        assert sum(float(p.grad.abs().sum()) for p in part.parameters() if p.grad is not None) > 0
    slopes = model.growth.grad.tolist()
    for number, slope in enumerate(slopes):
        values = []
        for shift in (-0.01, 0.01):
            with torch.no_grad():
                model.growth[number] = shift
                values.append(float(step(BATCH, 0)))
                model.growth[number] = 0.0
        assert slope == pytest.approx((values[1] - values[0]) / 0.02, rel=0.02, abs=1e-3)
    attending = [number for number, part in enumerate(SUMS[name][0]) if part in ("poly", "first")]
    assert [number for number, slope in enumerate(slopes) if slope == 0.0] == attending


def test_frozen_weights_stay_exactly_equal(models: dict[str, Path]) -> None:
    model = network_of(ranker_of(models, "bi + bi", train_weights=False))
    assert model.weights == [1.0, 0.7]
    assert not model.growth.requires_grad
    assert [p is model.growth for p in model.new_parameters()] == [True]


def test_chunks_have_the_gradients_of_the_whole_batch(models: dict[str, Path]) -> None:
    gradients = []
    for size in (None, 3):
        ranker = ranker_of(models, "bi + poly + convert")
        model = network_of(ranker).train()
        InBatchStep(model, ranker.texts, CPU, chunk_size=size)(BATCH, 0).backward()  # type: ignore[no-untyped-call]
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, want in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], want, rtol=1e-3, atol=1e-5)


def test_vectors_of_chunks_are_as_wide_as_the_widest(models: dict[str, Path]) -> None:
    """`first` returns fewer vectors for a short context; the other parts' vectors are joined to each of them."""
    ranker = ranker_of(models, "first + bi")
    model = network_of(ranker).eval()
    tokens = ranker.texts.contexts([Context(("wifi",)), *CONTEXTS, Context(("",))])
    whole, mask = model.encode_contexts(tokens)
    parts, part_mask = encode_in_chunks(model.encode_contexts, tokens, 1)
    assert mask.tolist() == part_mask.tolist()
    torch.testing.assert_close(parts[mask], whole[mask], rtol=1e-4, atol=1e-5)


def test_the_range_of_eight_bits_follows_the_embeddings(models: dict[str, Path]) -> None:
    """As in ConveRT's own training: trained embeddings stay within the range of their stored form."""
    ranker = ranker_of(models, "poly + convert")
    convert: Any = network_of(ranker).parts[1]
    with torch.no_grad():
        convert.subwords.weight[0, 0] = 9.0
    assert float(convert.subwords.seen[1]) < 9.0
    InBatchStep(network_of(ranker), ranker.texts, CPU)(BATCH, 0)
    assert float(convert.subwords.seen[1]) == 9.0


# whole trainings


@pytest.mark.parametrize("name", ["bi + bi", "poly + convert"])
def test_training_lowers_the_loss_changes_all_weights_and_writes_a_sum(
    models: dict[str, Path], task: dict[str, Path], tmp_path: Path, name: str
) -> None:
    (result,) = train(recipe(task, config_of(models, name), tmp_path / "run", epochs=4), device="cpu")
    curve = losses(tmp_path / "run")
    assert np.mean(curve[-3:]) < 0.9 * np.mean(curve[:3])
    made = result.load(device="cpu")
    assert isinstance(made, SumEncoder)
    document = read_sum(result.model)
    assert [Path(part["model"]).parent for part in document["parts"]] == [result.model] * 2
    assert document["metadata"]["validation"] == result.fit.best
    figures = polyrank.summarise(polyrank.evaluate(made, polyrank.read_examples(task["valid"]).examples))["metrics"]
    assert figures["MRR"] == pytest.approx(result.fit.best["MRR"])
    for part, start in zip(made.parts, SUMS[name][0], strict=True):
        before = load_file(models[start] / "model.safetensors")
        after = load_file(Path(part.name) / "model.safetensors")
        assert before.keys() == after.keys()
        moved = [key for key in before if not torch.equal(before[key], after[key])]
        assert len(moved) > len(before) / 2
        # the rest comes from the part: its text settings and tokenizer
        settings = [
            json.loads((folder / "config.json").read_text("utf-8")) for folder in (models[start], Path(part.name))
        ]
        assert (settings[0]["text"], settings[0]["model"]) == (settings[1]["text"], settings[1]["model"])
        assert (models[start] / "tokenizer.json").read_bytes() == (Path(part.name) / "tokenizer.json").read_bytes()
    start_weights = SUMS[name][1]
    moved_weights = [a != b for a, b in zip(made.weights, start_weights, strict=True)]
    assert moved_weights == [part not in ("poly", "first") for part in SUMS[name][0]]
    assert all(0.5 < a / b < 2 for a, b in zip(made.weights, start_weights, strict=True))
    # adding the same parts by hand results in the same sum
    parts = [load_encoder(part["model"], device="cpu") for part in document["parts"]]
    save_sum(tmp_path / "by hand", SumEncoder(parts, [part["weight"] for part in document["parts"]]))
    assert load(tmp_path / "by hand", device="cpu").fingerprint == made.fingerprint == document["fingerprint"]
    # the folder can be moved
    shutil.move(tmp_path / "run", tmp_path / "moved")
    assert load(tmp_path / "moved" / "model", device="cpu").fingerprint == made.fingerprint


def files(folder: Path) -> dict[str, bytes]:
    """Files of a trained model, except the recipe, which contains its folder's name."""
    model = folder / "model"
    weights = {str(path.relative_to(folder)): path.read_bytes() for path in model.rglob("*.safetensors")}
    document = read_sum(model)
    return {**weights, "weights": repr([part["weight"] for part in document["parts"]]).encode()}


class StopError(Exception):
    """Ends a run from its report callback, like a crash."""


@pytest.mark.parametrize("chunk_size", [None, 5])
def test_resumed_equals_uninterrupted(
    models: dict[str, Path], task: dict[str, Path], tmp_path: Path, chunk_size: int | None
) -> None:
    def plan(name: str) -> Recipe:
        config = config_of(models, "poly + convert")
        return recipe(task, config, tmp_path / name, chunk_size=chunk_size, checkpoint_steps=1, train_layers="top-1")

    def crash(seed: int, record: dict[str, Any]) -> None:
        if record["step"] == 4 and "loss" in record:
            raise StopError

    (whole,) = train(plan("whole"), device="cpu")
    with pytest.raises(StopError):
        train(plan("interrupted"), device="cpu", report=crash)
    (resumed,) = train(plan("interrupted"), device="cpu", resume=True)
    assert losses(tmp_path / "whole") == losses(tmp_path / "interrupted")
    assert dataclasses.replace(whole.fit, seconds=0) == dataclasses.replace(resumed.fit, seconds=0)
    assert files(tmp_path / "whole") == files(tmp_path / "interrupted")


@pytest.mark.parametrize("method", ["listwise", "distill", "mutual"])
def test_methods_with_lists_and_mined_negatives_take_a_sum(
    models: dict[str, Path], task: dict[str, Path], tmp_path: Path, method: str
) -> None:
    options: dict[str, Any] = {"teacher": str(models["cross"])} if method == "distill" else {"remine_epochs": 1}
    plan = recipe(
        task,
        config_of(models, "poly + convert"),
        tmp_path / "run",
        epochs=1,
        n_negatives=3,
        partner=load_model(models["cross"]).config if method == "mutual" else None,
        method=method,
        **options,
    )
    result, *others = train(plan, device="cpu")
    assert isinstance(result.load(device="cpu"), SumEncoder)
    assert [other.network for other in others] == (["reranker"] if method == "mutual" else [])
    assert (tmp_path / "run" / "teacher-scores.sqlite").exists() == (method == "distill")


def test_a_sum_teaches_one_encoder(models: dict[str, Path], task: dict[str, Path], tmp_path: Path) -> None:
    """The teacher's scores are the sum's, and a student that only imitates them moves towards them."""
    save_sum(tmp_path / "sum", sum_of(models, "poly + convert"))
    policy = TextPolicy(max_context_tokens=24, max_candidate_tokens=8)
    student = load_model(models["bi"]).config
    settings = train_config(
        method="distill", teacher=str(tmp_path / "sum"), imitation="margin_mse", label_weight=0.0, n_negatives=3,
        batch_size=18, epochs=8, lr=2e-3, schedule="constant", train_layers="all", precision="fp32", dropout=0.0,
        redraw_negatives=False,
    )  # fmt: skip
    examples = list(polyrank.read_examples(task["train"]).examples)
    ranker = new_ranker(student, policy, settings, examples, precision="fp32", seed=1, device=CPU)
    step = make_step([ranker], settings, examples, device=CPU, seed=1, folder=tmp_path)
    assert isinstance(step, DistillStep)
    lists = step.student.lists(list(enumerate(examples[:9])), 0)
    contexts = [example.query for example in examples[:9]]
    parts, weights = SUMS["poly + convert"]
    own = [load(models[part], device="cpu").score(contexts, lists) for part in parts]
    for row, *alone in zip(step.teacher.score(contexts, lists), *own, strict=True):
        want = sum(weight * scores for weight, scores in zip(weights, alone, strict=True))
        np.testing.assert_allclose(row, want, rtol=1e-4, atol=1e-4)
    data = DataConfig(train=str(task["train"]))
    plan = Recipe(model=student, text=policy, data=data, train=settings, output=str(tmp_path / "run"))
    (result,) = train(plan, device="cpu")
    curve = losses(tmp_path / "run")
    assert np.mean(curve[-4:]) < 0.7 * np.mean(curve[:4])
    assert not isinstance(result.load(device="cpu"), SumEncoder)


# the commands


def write_recipe(path: Path, models: dict[str, Path], task: dict[str, Path], parts: Sequence[str] = ()) -> Path:
    names = [str(models[name]) for name in ("bi", "convert")] if not parts else list(parts)
    path.write_text(
        f'output = "run"\n[model]\nkind = "sum"\nparts = {json.dumps(names)}\n'
        f'[data]\ntrain = "{task["train"]}"\nvalid = "{task["valid"]}"\n[train]\nbatch_size = 36\nprecision = "fp32"\n',
        "utf-8",
    )
    return path


@pytest.mark.slow
def test_the_commands_take_a_trained_sum(models: dict[str, Path], task: dict[str, Path], tmp_path: Path) -> None:
    path = write_recipe(tmp_path / "sum.toml", models, task)
    made = run("train", path, "--set", "model.weights=[1, 0.5]", "--set", "train.lr=1e-3", "--device", "cpu", "--json")
    assert made.returncode == 0, made.stderr
    (row,) = json.loads(made.stdout)
    shown = run("info", row["model"])
    assert "trained together; validation loss" in shown.stdout, shown.stderr
    document = read_sum(Path(row["model"]))
    assert document["metadata"]["recipe"]["model"]["weights"] == [1.0, 0.5]
    # a run folder stands for its model, as for any training
    evaluated = run("evaluate", tmp_path / "run", task["valid"], "--json")
    assert json.loads(evaluated.stdout)["metrics"]["MRR"] == pytest.approx(row["best"]["MRR"]), evaluated.stderr
    again = run("train", path, "--device", "cpu")
    assert again.returncode == 2
    assert "holds an earlier run; pass --resume" in again.stderr


# bad input


def test_recipes_of_sums_are_checked(models: dict[str, Path], task: dict[str, Path], tmp_path: Path) -> None:
    path = write_recipe(tmp_path / "sum.toml", models, task)
    found = load_recipe(path)
    assert found.model == SumConfig(parts=(str(models["bi"]), str(models["convert"])))
    assert found.text == SumText()
    assert recipe_from_dict(recipe_to_dict(found)) == found
    parts = f'model.parts=["{models["bi"]}", "{{}}"]'
    cases = {
        'model.parts=["a", "b"]': r"model.parts = a is not a model folder; give one that training wrote",
        parts.format("untuned:embedded"): "model.parts = untuned:embedded is not a model folder",
        f'model.parts=["{models["bi"]}"]': r"model.parts = \[.*\] has fewer than two encoders; give two or more",
        "model.weights=[1]": r"model.weights = \[1.0\] does not fit 2 parts; give one for each",
        "model.weights=[1, 0]": "model.weights = 0.0 must be above 0",
        "model.train_weights=1": "model.train_weights = 1 is int; it must be bool",
        "model.n_codes=3": "unknown key|is a key of kind",
        "text.max_context_tokens=9": 'unknown key "text.max_context_tokens"; this table has no keys; leave it out',
        "train.method.kind=convert": 'train.method.kind = "convert" is not for model.kind = "sum"',
        f'train.init_from="{models["bi"]}"': "does not apply to a sum, whose encoders come from model.parts",
    }
    for change, message in cases.items():
        with pytest.raises(ConfigError, match=message):
            load_recipe(path, [change])
    with pytest.raises(UsageError, match="does not ship with polyrank"):
        load_recipe(path, [parts.format("shipped:nothing")])
    assert load_recipe(path, [parts.format("shipped:convert")]).model.kind == "sum"
    folder = tmp_path / "hugging"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}', "utf-8")
    with pytest.raises(ConfigError, match=r"is a Hugging Face model; train a Bi-encoder with backbone ="):
        load_recipe(path, [parts.format(folder)])
    save_sum(tmp_path / "sum", sum_of(models, "bi + bi"))
    with pytest.raises(ConfigError, match="is a sum; name its encoders instead"):
        load_recipe(path, [parts.format(tmp_path / "sum")])


def test_dropout_of_projections_needs_a_part_with_one(models: dict[str, Path]) -> None:
    settings = NetworkTraining(new_dropout=0.1)
    for name, fits in (("bi + bi", True), ("poly + convert", False)):
        config = config_of(models, name)
        with nullcontext() if fits else pytest.raises(ConfigError, match=r"new_dropout = 0\.1 has no effect, because"):
            new_sum(config, [model_folder(part) for part in config.parts], settings, precision="fp32", device=CPU)


@pytest.mark.parametrize(
    ("parts", "weights", "message"),
    [
        (("bi", "cross"), None, "cross is a Cross-encoder, which has no vectors; name encoders only"),
        (("poly", "first"), None, "both give a context several vectors"),
        (("bi", "poly"), (1.0, 2.0), "give 0.5,1, which rank the same"),
    ],
)
def test_models_that_cannot_form_a_sum_are_refused(
    models: dict[str, Path], task: dict[str, Path], tmp_path: Path, parts: Sequence[str], weights: Any, message: str
) -> None:
    config = SumConfig(parts=tuple(str(models[part]) for part in parts), weights=weights)
    with pytest.raises(ConfigError, match=message):
        train(recipe(task, config, tmp_path / "run"), device="cpu")
    assert not (tmp_path / "run" / "model").exists()


def test_initial_models_are_never_overwritten(
    models: dict[str, Path],
    task: dict[str, Path],
    tmp_path: Path,
    write_rows: Callable[[str, list[dict[str, Any]]], Path],
) -> None:
    shutil.copytree(models["bi"], tmp_path / "run" / "model")
    inside = SumConfig(parts=(str(tmp_path / "run" / "model"), str(models["convert"])))
    with pytest.raises(UsageError, match=r"run/model, which the sum starts from, is inside .*run; choose another"):
        train(recipe(task, inside, tmp_path / "run"), device="cpu", overwrite=True)
    # a trained sum is replaced by neither another kind of model nor by polyrank sum
    plan = recipe(task, config_of(models, "bi + bi"), tmp_path / "sum", epochs=1)
    train(plan, device="cpu")
    alone = dataclasses.replace(plan, model=load_model(models["bi"]).config, text=TextPolicy())
    for attempt in (
        lambda: train(alone, device="cpu", overwrite=True),
        lambda: save_sum(tmp_path / "sum" / "model", sum_of(models, "bi + bi"), replace=True),
    ):
        with pytest.raises(UsageError, match=r"would be lost: (README\.md, )?part-1, part-2"):
            attempt()
    damaged = tmp_path / "sum" / "model" / "part-1" / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with pytest.raises(ArtifactError, match=r"part-1"):
        load(tmp_path / "sum" / "model")
