"""Recipes by method: keys of each table, that every key has an effect, and round trips through TOML and JSON."""

import dataclasses
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

from polyrank.cli import main
from polyrank.config.checked import field_types, kinds, read_choice, to_dict, whole_number
from polyrank.config.effects import without_effect
from polyrank.config.methods import ConvertMethod, DistillMethod, InBatchMethod, ListwiseMethod, Method, MutualMethod
from polyrank.config.models import (
    MODEL,
    BiConfig,
    ConvertConfig,
    ConvertText,
    CrossConfig,
    ModelConfig,
    PolyConfig,
    TextPolicy,
)
from polyrank.config.pretrain import PretrainText, ScratchModel, VocabularyConfig, pretrain_recipe_from_dict
from polyrank.config.recipe import DataConfig, Partner, Recipe, recipe_from_dict, recipe_to_dict
from polyrank.config.schedules import (
    ConstantSchedule,
    CosineSchedule,
    InverseSqrtSchedule,
    LinearSchedule,
    PlateauSchedule,
    ScheduleConfig,
)
from polyrank.config.tables import read_tables
from polyrank.config.train import NegativesConfig, NetworkTraining, TrainConfig
from polyrank.errors import ArtifactError, ConfigError, DataError, UsageError
from polyrank.loading.models import model_folder
from polyrank.loading.recipes import load_pretrain_recipe, load_recipe
from polyrank.records import Example
from polyrank.storage.document import read_document, seal
from polyrank.training import methods
from polyrank.training.optimizer import Schedule, clip_gradients, make_optimizer

DATA = DataConfig(train="train.jsonl")
OTHER_METHODS: dict[str, dict[str, Any]] = {  # a second value of each key
    "in_batch": {"smoothing": 0.3, "negatives_weighting": "logq", "matryoshka_dims": (8,)},
    "convert": {"smoothing": 0.3, "scale_steps": 7, "negatives_weighting": "logq"},
    "listwise": {"sigmoid": True},
    "distill": {"alpha": 2.0, "label_weight": 0.5, "temperature": 2.0, "teacher": "other"},
    "mutual": {"alpha": 2.0, "label_weight": 0.5, "temperature": 2.0, "sigmoid": True},
    "rerank": {"first_stage": "other"},
}  # fmt: skip
NEEDED = {"distill": {"teacher": "somewhere"}, "rerank": {"first_stage": "somewhere"}}
OTHER_SCHEDULES: dict[str, dict[str, Any]] = {
    "linear": {"warmup_steps": 3},
    "cosine": {"warmup_steps": 3, "final_lr": 0.5},
    "inverse_sqrt": {"warmup_steps": 3},
    "plateau": {"warmup_steps": 3, "factor": 0.1, "patience": 1},
    "constant": {"warmup_steps": 3},
}
OTHER_NEGATIVES = {
    "n": 2,
    "sources": ("random",),
    "redraw": False,
    "weighting": "as_said",
    "remine_epochs": 2,
    "remine_ranks": (2, 9),
}


def values(train: dict[str, Any], **tables: Any) -> dict[str, Any]:
    return {"model": {"kind": "bi"}, "data": {"train": "train.jsonl"}, "output": "run", **tables, "train": train}


def method_of(name: str, **changes: Any) -> Any:
    return kinds(Method)[name](**NEEDED.get(name, {}) | changes)


# every key has an effect


class Recorder:
    """Replaces a class and records its arguments."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.made = (arguments, named)

    def __repr__(self) -> str:
        return repr(self.made)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The arguments of a training's method as text, without networks and steps."""
    names = (
        "InBatchStep",
        "ConvertStep",
        "MutualStep",
        "DistillStep",
        "RerankStep",
        "ListwiseStep",
        "Teacher",
        "MinedNegatives",
        "GivenNegatives",
        "MixedNegatives",
    )
    for name in names:
        monkeypatch.setattr(methods, name, Recorder)

    def loaded(name: str, **named: Any) -> Any:
        return SimpleNamespace(fingerprint=f"{name} {named}")

    for name in ("load", "load_encoder"):
        monkeypatch.setattr(methods, name, loaded)

    class Encodes:
        dimension, context_tower = 16, SimpleNamespace(prefix=len)

        def __repr__(self) -> str:
            return "a network"

        def zero_head(self) -> None:
            """A Cross-encoder has it."""

    for name in ("EncoderScorer", "Convert", "CrossEncoder", "EncoderNetwork", "TwoTowers"):
        monkeypatch.setattr(methods, name, Encodes)

    def build(settings: TrainConfig) -> str:
        ranker = SimpleNamespace(model=Encodes(), texts=Encodes(), scorer=Encodes())
        rankers = [ranker] * (2 if isinstance(settings.method, MutualMethod) else 1)
        examples = [Example((f"hi {i}",), (f"reply {i % 29}",), (0,)) for i in range(30)]
        device = torch.device("cpu")
        return repr(methods.make_step(rankers, settings, examples, device=device, seed=1, folder=tmp_path))  # type: ignore[arg-type]

    return build


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind, keys in OTHER_METHODS.items() for key in keys])
def test_a_method_reads_each_of_its_keys(built: Any, kind: str, key: str) -> None:
    other = method_of(kind, **{key: OTHER_METHODS[kind][key]})
    assert built(TrainConfig(method=other)) != built(TrainConfig(method=method_of(kind)))


@pytest.mark.parametrize("kind", ["listwise", "distill", "mutual", "rerank"])
@pytest.mark.parametrize("key", OTHER_NEGATIVES)
def test_methods_that_rank_lists_read_each_key_of_the_negatives(built: Any, kind: str, key: str) -> None:
    usual = NegativesConfig(sources=("mined", "random")) if key.startswith("remine") else NegativesConfig()
    changed = dataclasses.replace(usual, **{key: OTHER_NEGATIVES[key]})
    found = [built(TrainConfig(method=method_of(kind), negatives=negatives)) for negatives in (usual, changed)]
    assert found[0] != found[1]


def factors(settings: NetworkTraining) -> list[float]:
    schedule, found = Schedule(settings, 20), []
    for step in range(20):
        found.append(schedule.factor(step))
        schedule.observe(1.0)
    return found


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind, keys in OTHER_SCHEDULES.items() for key in keys])
def test_a_schedule_reads_each_of_its_keys(kind: str, key: str) -> None:
    start = kinds(ScheduleConfig)[kind](warmup_steps=1)
    other = dataclasses.replace(start, **{key: OTHER_SCHEDULES[kind][key]})
    assert factors(NetworkTraining(lr=1.0, schedule=other)) != factors(NetworkTraining(lr=1.0, schedule=start))


@pytest.mark.parametrize("kind", sorted(OTHER_METHODS))
def test_every_method_gets_the_chunk_size(kind: str, built: Any) -> None:
    plain, cached = (TrainConfig(method=method_of(kind), chunk_size=size) for size in (None, 3))
    assert built(cached) != built(plain)


def test_the_lists_above_contain_every_key() -> None:
    for union, others in ((Method, OTHER_METHODS), (ScheduleConfig, OTHER_SCHEDULES)):
        assert {kind: {*field_types(config)} for kind, config in kinds(union).items()} == {
            kind: {*keys} for kind, keys in others.items()
        }
    assert {*field_types(NegativesConfig)} == {*OTHER_NEGATIVES}


class Tiny(nn.Module):
    """A network with a new parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.old, self.new = nn.Linear(2, 2), nn.Linear(2, 2)

    new_rate = 1.0

    def new_parameters(self) -> list[nn.Parameter]:
        return [*self.new.parameters()]


@pytest.mark.parametrize(
    "change", [{"optimizer": "adamax"}, {"optimizer": "adadelta"}, {"lr": 0.5}, {"new_lr": 0.5}, {"weight_decay": 0.5}]
)
def test_the_optimiser_gets_each_key(change: dict[str, Any]) -> None:
    def made(settings: NetworkTraining) -> str:
        optimizer = make_optimizer(Tiny(), settings)  # type: ignore[arg-type]
        return repr(optimizer)

    assert made(NetworkTraining(**change)) != made(NetworkTraining())


def test_the_maximal_norm_of_gradients_is_used() -> None:
    model = Tiny()
    optimizer = make_optimizer(model, NetworkTraining())  # type: ignore[arg-type]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    clip_gradients(model, optimizer, NetworkTraining(clip_norm=0.5))  # type: ignore[arg-type]
    assert math.sqrt(sum(float((p.grad**2).sum()) for p in model.parameters())) == pytest.approx(0.5)  # type: ignore[operator]


# the schedule of the pre-training papers


def test_inverse_sqrt_equals_its_formula() -> None:
    """lr = peak * min(step / warmup, sqrt(warmup / step)), with steps from 1."""
    schedule = Schedule(NetworkTraining(schedule=InverseSqrtSchedule(warmup_steps=4)), 100)
    wanted = [min(step / 4, math.sqrt(4 / step)) for step in range(1, 101)]
    assert [schedule.factor(step) for step in range(100)] == pytest.approx(wanted)
    cold = Schedule(NetworkTraining(schedule=InverseSqrtSchedule(warmup_steps=0)), 9)
    assert [cold.factor(step) for step in range(9)] == pytest.approx([1 / math.sqrt(step) for step in range(1, 10)])


# foreign keys


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"method": {"kind": "listwise", "alpha": 1.0}}, 'train.method.alpha is a key of kind "distill" or "mutual"'),
        ({"method": {"smothing": 0.1}}, 'did you mean "train.method.smoothing"'),
        ({"schedule": {"kind": "linear", "final_lr": 0.1}}, 'train.schedule.final_lr is a key of kind "cosine"'),
        ({"schedule": {"warmup": 1}}, 'did you mean "train.schedule.warmup_steps"'),
        ({"negatives": {"sources": ["drawn"]}}, "sources = 'drawn' is not one of 'given', 'random', 'mined'"),
        ({"negatives": {"sources": "drawn"}}, "sources = 'drawn' is not one of 'given', 'random', 'mined'"),
        ({"method": {"kind": "listwise"}, "negatives": {"remine": 3}}, 'did you mean "train.negatives.remine_'),
        ({"method": "listwise"}, "train.method = 'listwise' is not a table; write train.method.kind = \"listwise\""),
        ({"schedule": "linear"}, "train.schedule = 'linear' is not a table; write train.schedule.kind = \"linear\""),
        ({"factor": 0.1}, 'unknown key "train.factor"; did you mean "train.schedule.factor"?'),
        ({"temperature": 3.0}, 'unknown key "train.temperature"; did you mean "train.method.temperature"?'),
        ({"steps": 3}, 'unknown key "train.steps"; did you mean "train.max_steps"?'),  # not train.schedule.warmup_steps
        ({"method": {"kind": "distill"}}, 'missing key "train.method.teacher"'),
        ({"method": {"kind": ["listwise"]}}, "is not one of in_batch, convert, listwise, distill, mutual"),
        ({"method": {"kind": "convert"}}, 'train.method.kind = "convert" is not for model.kind = "bi"'),
        ({"method": {"kind": "mutual"}}, "the table [reranker] is the second"),
    ],
)
def test_a_foreign_key_is_refused_with_its_place(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe_from_dict(values(table))
    assert message in str(caught.value)


NOTHING_NEW = "has no effect: this model has no new codes, projections or heads"
NO_PROJECTION = "has no effect: this model has no projections or heads; dropout applies to the others"
MUTUAL = {"kind": "mutual"}
LISTS = {"kind": "listwise"}


@pytest.mark.parametrize(
    ("model", "train", "lines"),
    [
        ({"kind": "convert"}, {"new_lr": 0.1}, [f"train.new_lr = 0.1 {NOTHING_NEW}"]),
        ({"kind": "bi"}, {"new_lr": 0.0}, [f"train.new_lr = 0.0 {NOTHING_NEW}"]),
        ({"kind": "poly", "codes": "last"}, {"decay_new": True}, [f"train.decay_new = true {NOTHING_NEW}"]),
        ({"kind": "poly"}, {"new_dropout": 0.1}, [f"train.new_dropout = 0.1 {NO_PROJECTION}"]),
        (
            {"kind": "bi"}, {"clip_embeddings_norm": 2.0},
            ["train.clip_embeddings_norm = 2.0 has no effect: the word embeddings are not trained"],
        ),
        (
            {"kind": "late"}, {"train_layers": "all", "method": LISTS, "clip_embeddings_norm": 2.0},
            ["train.train_layers = 'all' has no effect: model.joined_layers decides which layers of a late"
             " Cross-encoder are trained",
             "train.clip_embeddings_norm = 2.0 has no effect: the word embeddings are not trained"],
        ),
        (
            {"kind": "poly"}, {"decay_new": True, "optimizer": "adamax"},
            ["train.decay_new = true has no effect: weight_decay is 0"],
        ),
        (
            {"kind": "bi"}, {"betas": [0.5, 0.9], "optimizer": "adadelta"},
            ["train.betas = (0.5, 0.9) has no effect: they are of adamw and adamax"],
        ),
        ({"kind": "bi"}, {"betas": [0.5, 0.9], "optimizer": "adamax"}, []),
        (
            {"kind": "bi"}, {"method": LISTS | {"sigmoid": True}},
            ["train.method.sigmoid = true has no effect: it is for Cross-encoders"],
        ),
        (
            {"kind": "bi"},
            {"negatives": {"sources": ["given"], "weighting": "as_said", "remine_epochs": 2, "remine_ranks": [1, 9]}},
            ["train.negatives.weighting = 'as_said' has no effect: no negatives are random",
             "train.negatives.remine_epochs = 2 has no effect: no negatives are mined",
             "train.negatives.remine_ranks = (1, 9) has no effect: no negatives are mined"],
        ),
        (
            {"kind": "bi"}, {"negatives": {"sources": ["mined"], "redraw": False}},
            ["train.negatives.redraw = false has no effect: it is for given and random negatives"],
        ),
        ({"kind": "bi"}, {"negatives": {"sources": ["mined", "random"], "redraw": False, "remine_epochs": 2}}, []),
        ({"kind": "bi", "projection_dim": 4}, {"new_lr": 0.1, "decay_new": True, "new_dropout": 0.1}, []),
        ({"kind": "poly"}, {"new_lr": 0.1, "decay_new": True}, []),
        ({"kind": "bi"}, {"clip_embeddings_norm": 2.0, "train_layers": "all"}, []),
        ({"kind": "convert"}, {"clip_embeddings_norm": None, "train_layers": "top-1"}, []),
        ({"kind": "bi"}, {"negatives": {"sources": ["mined"], "remine_epochs": 2}}, []),
    ],
)  # fmt: skip
def test_settings_without_effect_are_named_with_the_reason(
    model: dict[str, Any], train: dict[str, Any], lines: list[str]
) -> None:
    assert without_effect(recipe_from_dict(values(train, model=model))) == lines


def test_a_recipe_without_validation_names_the_settings_that_need_one() -> None:
    train = {"early_stopping": 2, "schedule": {"kind": "plateau", "factor": 0.5}}
    found = without_effect(recipe_from_dict(values(train)), validated=False)
    reason = "has no effect: it needs validation examples"
    assert found == [f"train.early_stopping = 2 {reason}", f"train.schedule.factor = 0.5 {reason}"]
    assert without_effect(recipe_from_dict(values(train))) == []


def test_a_network_inherits_a_setting_that_only_the_other_uses() -> None:
    own = {"method": MUTUAL, "new_lr": 0.1, "decay_new": True, "new_dropout": 0.1}
    for first, second in (("bi", "cross"), ("cross", "bi")):
        found = recipe_from_dict(values(own, model={"kind": first}, reranker={"kind": second}))
        assert found.reranker is not None
        assert (found.reranker.train.new_lr, found.reranker.train.decay_new) == (0.1, True)
        assert without_effect(found) == []
    sigmoid = {"method": MUTUAL | {"sigmoid": True}}
    for pair, is_named in (("bi cross", False), ("cross bi", False), ("bi bi", True)):
        one, other = ({"kind": kind} for kind in pair.split())
        assert bool(without_effect(recipe_from_dict(values(sigmoid, model=one, reranker=other)))) is is_named
    second = {"kind": "bi", "train": {"new_lr": 0.2}}
    found = recipe_from_dict(values(own, model={"kind": "cross"}, reranker=second))
    assert without_effect(found) == [f"reranker.train.new_lr = 0.2 {NOTHING_NEW}"]
    for second in ({"kind": "bi"}, {"kind": "poly", "codes": "last"}):  # neither network uses it
        found = recipe_from_dict(values({"method": MUTUAL, "new_lr": 0.1}, reranker=second))
        assert without_effect(found) == [f"train.new_lr = 0.1 {NOTHING_NEW}"]


def test_the_command_line_refuses_and_sets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    place = tmp_path / "recipe.toml"
    place.write_text('output = "run"\n[model]\nkind = "bi"\n[data]\ntrain = "x.jsonl"\n', "utf-8")
    plan = load_recipe(place, ("train.method.kind=listwise", "train.negatives.n=3", "train.schedule.warmup_steps=10"))
    assert plan.train == TrainConfig(
        method=ListwiseMethod(), negatives=NegativesConfig(n=3), schedule=PlateauSchedule(warmup_steps=10)
    )
    monkeypatch.setattr("sys.argv", ["polyrank", "train", str(place), "--set", "train.method.alpha=2"])
    with pytest.raises(SystemExit) as left:
        raise SystemExit(main())
    assert left.value.code == 2
    assert 'train.method.alpha is a key of kind "distill" or "mutual"' in " ".join(capsys.readouterr().err.split())


# ranges


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (TrainConfig, {"batch_size": 0}, "batch_size = 0 must be at least 1"),
        (TrainConfig, {"seeds": ()}, "is empty or repeats a seed"),
        (TrainConfig, {"seeds": (1, 1)}, "is empty or repeats a seed"),
        (TrainConfig, {"seeds": (-1,)}, "seeds = -1 must be at least 0"),
        (TrainConfig, {"batch_size": 1}, 'use 2 or more, or method.kind = "listwise"'),
        (TrainConfig, {"batch_size": 1, "method": ConvertMethod()}, "batch_size = 1 has no other responses"),
        (DataConfig, {"train": "x", "valid_candidates": 1}, "valid_candidates = 1 must be at least 2"),
        (NetworkTraining, {"lr": math.nan}, "lr = nan is not finite"),
        (NetworkTraining, {"dropout": 1.5}, "dropout = 1.5 is outside 0 to 1"),
        (NetworkTraining, {"optimizer": "sgd"}, "is not one of 'adamw', 'adamax', 'adadelta'"),
        (InBatchMethod, {"smoothing": 1.5}, "smoothing = 1.5 is outside 0 to 1"),
        (MutualMethod, {"temperature": 0.0}, "temperature = 0.0 must be above 0"),
        (DistillMethod, {"teacher": "x", "alpha": -1.0}, "alpha = -1.0 must be at least 0"),
        (MutualMethod, {"alpha": 0.0, "label_weight": 0.0}, "label_weight = 0.0 leave no loss; give one above 0"),
        (CosineSchedule, {"final_lr": -1.0}, "final_lr = -1.0 must be at least 0"),
        (PlateauSchedule, {"factor": 2.0}, "factor = 2.0 is outside 0 to 1"),
        (LinearSchedule, {"warmup_steps": -1}, "warmup_steps = -1 must be at least 0"),
        (ConstantSchedule, {"warmup_steps": -1}, "warmup_steps = -1 must be at least 0"),
        (NegativesConfig, {"n": 0}, "n = 0 must be at least 1"),
        (NegativesConfig, {"remine_ranks": (9, 2)}, "is an empty range"),
        (NegativesConfig, {"sources": ()}, "is empty or repeats a source"),
        (NegativesConfig, {"sources": ("given", "given")}, "is empty or repeats a source"),
        (BiConfig, {"projection_dim": 0}, "projection_dim = 0 must be at least 1"),
        (ConvertConfig, {"spans": (3, -1)}, "spans = -1 must be at least 0"),
        (TextPolicy, {"background": "behind"}, "is not one of 'before', 'after', 'drop'"),
        (DataConfig, {"train": "x", "max_train": 0}, "max_train = 0 must be at least 1"),
        (NetworkTraining, {"betas": (0.5, 1.0)}, "betas = [0.5, 1.0] must be below 1"),
        (NetworkTraining, {"betas": (1.0, 0.5)}, "betas = [1.0, 0.5] must be below 1; lower them"),
        (NetworkTraining, {"betas": (0.5, 0.9, 0.9)}, "betas = [0.5, 0.9, 0.9] has 3 numbers; give 2"),
        (NetworkTraining, {"lr": math.inf}, "lr = inf is not finite"),
        (
            TrainConfig,
            {"method": InBatchMethod(negatives_weighting="logq"), "negatives": NegativesConfig(n=3)},
            'method.negatives_weighting = "logq" corrects the frequency of the other responses',
        ),
        (
            TrainConfig,
            {"lora_rank": 4, "train_layers": "top-2"},
            "lora_rank = 4 trains adapters in all layers; leave train_layers = 'top-2' out",
        ),
        (TrainConfig, {"batch_size": 8, "chunk_size": 8}, "chunk_size = 8 is not below the 8 texts of a batch"),
        (
            TrainConfig,
            {"batch_size": 8, "chunk_size": 32, "negatives": NegativesConfig(n=3)},
            "chunk_size = 32 is not below the 32 texts of a batch",
        ),
        (ScratchModel, {"hidden": 100, "heads": 8}, "hidden = 100 is not a multiple of heads = 8"),
    ],
)
def test_ranges_are_refused_by_the_settings_themselves(kind: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(**values)
    assert message in str(caught.value)


def test_settings_at_the_ends_of_their_ranges_are_accepted() -> None:
    assert NegativesConfig(remine_ranks=(3, 3)).remine_ranks == (3, 3)
    assert TrainConfig(batch_size=8, chunk_size=7).chunk_size == 7
    assert TrainConfig(batch_size=8, chunk_size=31, negatives=NegativesConfig(n=3)).chunk_size == 31
    for given, window in ((None, 50), (1, 1), (7, 7)):
        assert TrainConfig(method=ListwiseMethod(), length_window=given).window == window
    for given, window in ((None, 1), (7, 7)):
        assert TrainConfig(length_window=given).window == window
    for alpha, label_weight in ((0.0, 1.0), (1.0, 0.0)):  # one loss is enough
        assert MutualMethod(alpha=alpha, label_weight=label_weight).alpha == alpha
    for optimizer, decay in (("adamw", 0.01), ("adadelta", 0.01), ("adamax", 0.0)):
        assert NetworkTraining(optimizer=optimizer).decay == decay  # type: ignore[arg-type]
        assert NetworkTraining(optimizer=optimizer, weight_decay=0.5).decay == 0.5  # type: ignore[arg-type]
    lowest = CosineSchedule(final_lr=1e-4)
    assert lowest.after_warmup(9, 0, 10, 1e-3) == pytest.approx(0.1)  # of the peak
    assert lowest.after_warmup(9, 0, 10, 0.0) == 0.0


def test_a_pretraining_is_checked_against_the_length_of_its_inputs() -> None:
    tables: dict[str, Any] = {"output": "run", "data": {"train": "x"}, "text": {"max_tokens": 300}}
    for model, train, message in (
        ({"positions": 300}, {"batch_tokens": 300, "micro_batch_tokens": 300}, None),
        ({"positions": 299}, {}, r"text.max_tokens = 300 is above model.positions = 299"),
        ({}, {"batch_tokens": 299}, "train.batch_tokens = 299 is less than one input"),
        ({}, {"micro_batch_tokens": 299}, "train.micro_batch_tokens = 299 is less than one input"),
        ({"backbone": "embedded", "layers": 3, "heads": 2}, {}, "model.layers applies to a network from scratch"),
        ({"backbone": "embedded", "heads": 2}, {}, "model.heads applies to a network from scratch"),
    ):
        recipe = {**tables, "model": model, "train": train}
        if message is None:
            assert pretrain_recipe_from_dict(recipe).train.micro_batch_tokens == 300
        else:
            with pytest.raises(ConfigError, match=message):
                pretrain_recipe_from_dict(recipe)
    for decay in (0.0, 0.1):
        steps = pretrain_recipe_from_dict({**tables, "train": {"weight_decay": decay, "lr": 3e-4}}).train.of_network
        assert (steps.lr, steps.decay, steps.decay_new, steps.train_layers) == (3e-4, decay, decay > 0, "all")
    scratch, continued = {"vocabulary": {"size": 9}}, {"model": {"backbone": "embedded"}, "text": {"max_tokens": 900}}
    assert pretrain_recipe_from_dict(tables | scratch).vocabulary == VocabularyConfig(size=9)
    assert pretrain_recipe_from_dict(tables).vocabulary == VocabularyConfig()
    assert pretrain_recipe_from_dict(tables | continued).vocabulary is None
    with pytest.raises(ConfigError, match="a backbone already has a vocabulary"):
        pretrain_recipe_from_dict(tables | scratch | continued)
    with pytest.raises(ConfigError, match=r"^text\.turn_separator is empty; give a token"):
        pretrain_recipe_from_dict(tables | {"text": {"turn_separator": " "}})


def test_contradictory_recipes_are_refused() -> None:
    lists = TrainConfig(method=ListwiseMethod(), negatives=NegativesConfig(sources=("mined",)))
    for changes, message in (
        ({"model": CrossConfig()}, "no in-batch negatives"),
        ({"model": CrossConfig(), "train": lists}, "needs a network that encodes"),
        ({"model": ConvertConfig()}, "text of model.kind"),
        ({"model": ConvertConfig(), "text": ConvertText()}, 'set "convert" or a method that ranks lists'),
        ({"model": BiConfig(), "train": TrainConfig(method=MutualMethod())}, r"\[reranker\]"),
        *(
            ({"model": model, "train": TrainConfig(method=method_of("rerank"))}, f'not model.kind = "{model.kind}"')
            for model in (BiConfig(), PolyConfig())
        ),
        (
            {
                "model": ConvertConfig(),
                "text": ConvertText(),
                "train": TrainConfig(method=MutualMethod()),
                "reranker": Partner(model=CrossConfig(), train=NetworkTraining()),
            },
            "is for networks with a backbone",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            Recipe(data=DATA, output="run", **changes)
    mined = TrainConfig(method=MutualMethod(), negatives=NegativesConfig(sources=("mined",)))
    for first, second in ((CrossConfig(), BiConfig()), (BiConfig(), CrossConfig())):  # one of two encodes
        pair = Partner(model=second, train=NetworkTraining())  # type: ignore[arg-type]
        assert Recipe(model=first, data=DATA, output="run", train=mined, reranker=pair).train == mined  # type: ignore[arg-type]
    partner = Partner(model=CrossConfig(), train=NetworkTraining())
    with pytest.raises(ConfigError, match="needs a network that encodes"):
        Recipe(model=CrossConfig(), data=DATA, output="run", train=mined, reranker=partner)
    with pytest.raises(ConfigError, match=r"\[reranker\]"):
        Recipe(model=BiConfig(), data=DATA, output="run", reranker=partner)


# round trips


PLANS = {
    "bi": Recipe(model=BiConfig(), data=DATA, output="run"),
    "cross": Recipe(model=CrossConfig(), data=DATA, output="run", train=TrainConfig(method=ListwiseMethod())),
    "convert": Recipe(model=ConvertConfig(), data=DATA, output="run", text=ConvertText(), train=ConvertConfig.tuning),
    "distill": Recipe(
        model=PolyConfig(),
        data=DATA,
        output="run",
        train=TrainConfig(
            method=DistillMethod(teacher="t"),
            schedule=CosineSchedule(final_lr=1e-6),
            negatives=NegativesConfig(sources=("mined",), remine_epochs=2, remine_ranks=(2, 9)),
            seeds=(1, 2),
        ),
    ),
    "mutual": Recipe(
        model=BiConfig(),
        data=DATA,
        output="run",
        train=TrainConfig(method=MutualMethod(alpha=2.0), schedule=InverseSqrtSchedule()),
        reranker=Partner(model=CrossConfig(), train=NetworkTraining(lr=0.1)),
    ),
}


def toml(table: dict[str, Any], name: str = "") -> str:
    """A dictionary as TOML, without None."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items() if not isinstance(value, dict | None)]
    text = (f"[{name}]\n" if name else "") + "".join(f"{line}\n" for line in lines)
    for key, value in table.items():
        if isinstance(value, dict):
            text += toml(value, f"{name}.{key}".strip("."))
    return text


@pytest.mark.parametrize("name", PLANS)
def test_a_recipe_survives_json_and_toml(name: str, tmp_path: Path) -> None:
    plan = PLANS[name]
    assert recipe_from_dict(json.loads(json.dumps(recipe_to_dict(plan)))) == plan
    place = tmp_path / "recipe.toml"
    written = recipe_to_dict(plan)
    place.write_text(toml(written), "utf-8")
    changes = ("train.clip_norm=none",) if written["train"]["clip_norm"] is None else ()
    found = load_recipe(place, changes)
    data = dataclasses.replace(plan.data, train=str(tmp_path.resolve() / plan.data.train))
    assert found == dataclasses.replace(plan, data=data, output=str(tmp_path.resolve() / "run"))


def test_none_is_a_value_only_of_optional_keys() -> None:
    tables = {"kind": "convert", "quantization": None}
    assert recipe_from_dict(values({}, model=tables)).model == ConvertConfig(quantization="none")
    with pytest.raises(ConfigError, match="is not a list"):
        recipe_from_dict(values({"seeds": None}))
    for key in ("optimizer", "loss", "precision"):
        with pytest.raises(ConfigError, match=f"^train.{key} = 'none' is not one of '"):
            recipe_from_dict(values({key: None}))
    for table, name in (({"codes": None}, "codes"), ({"codes": "last", "reduction": "none"}, "reduction")):
        with pytest.raises(ConfigError, match=f"^model.{name} = 'none' is not one of "):
            recipe_from_dict(values({}, model={"kind": "poly", **table}))
    with pytest.raises(ConfigError, match=r"^train\.negatives\.weighting = 'none' is not one of"):
        recipe_from_dict(values({"negatives": {"weighting": None}}))
    assert recipe_from_dict(values({}, model={"kind": "bi", "reduction": None})).model.reduction is None  # type: ignore[union-attr]


def test_dictionaries_of_methods_contain_their_kind() -> None:
    assert to_dict(LinearSchedule(warmup_steps=3)) == {"kind": "linear", "warmup_steps": 3}
    method = {"kind": "in_batch", "smoothing": 0.0, "negatives_weighting": "as_said", "matryoshka_dims": ()}
    assert to_dict(TrainConfig())["method"] == method


# defaults of each model


@pytest.mark.parametrize("kind", kinds(ModelConfig))
@pytest.mark.parametrize("start", [None, "somewhere"])
def test_an_empty_recipe_has_its_models_defaults(kind: str, start: str | None) -> None:
    method = {"method": {"kind": "listwise"}} if kind in ("cross", "late") else {}
    config = kinds(ModelConfig)[kind]
    found = recipe_from_dict(values({"init_from": start, **method}, model={"kind": kind}))
    wanted = config.training if start is None else config.tuning
    changes = {"method": ListwiseMethod()} if kind in ("cross", "late") else {}
    assert found.train == dataclasses.replace(wanted, init_from=start, **changes)
    assert isinstance(found.text, config.text_kind)


def test_a_table_without_a_kind_changes_the_models_default() -> None:
    convert = {"kind": "convert"}
    found = recipe_from_dict(values({"schedule": {"final_lr": 0.5}, "method": {"scale_steps": 5}}, model=convert)).train
    assert found.schedule == CosineSchedule(warmup_steps=0, final_lr=0.5)
    assert found.method == ConvertMethod(scale_steps=5)
    other = recipe_from_dict(
        values({"schedule": {"kind": "linear"}, "method": {"kind": "listwise"}}, model=convert)
    ).train
    assert other.schedule == LinearSchedule(warmup_steps=0)  # keys of both kinds keep the model's values
    assert (other.method, other.negatives) == (ListwiseMethod(), NegativesConfig())
    assert recipe_from_dict(values({})).train == TrainConfig(schedule=PlateauSchedule())


def test_a_second_network_has_its_own_schedule() -> None:
    own = {"kind": "cross", "train": {"lr": 1e-4, "schedule": {"warmup_steps": 3}}}
    mutual = {"method": {"kind": "mutual"}, "schedule": {"kind": "linear", "warmup_steps": 20}, "init_from": "x"}
    found = recipe_from_dict(values(mutual, reranker=own))
    assert found.reranker is not None
    assert found.reranker.train == NetworkTraining(lr=1e-4, schedule=LinearSchedule(warmup_steps=3))
    assert found.train.schedule == LinearSchedule(warmup_steps=20)
    for key in ("batch_size", "method", "negatives"):
        with pytest.raises(ConfigError, match=f"reranker.train.{key} is common to both networks"):
            recipe_from_dict(values(mutual, reranker={"kind": "cross", "train": {key: 1}}))
    with pytest.raises(ConfigError, match=r'did you mean "reranker\.train\.schedule\.final_lr"'):
        recipe_from_dict(values(mutual, reranker={"kind": "cross", "train": {"final_lr": 1.0}}))


def test_too_few_responses_name_the_key(built: Any) -> None:
    with pytest.raises(DataError, match=r"lower train\.negatives\.n"):
        built(TrainConfig(method=ListwiseMethod(), negatives=NegativesConfig(n=30)))


def test_a_recipe_may_start_with_a_byte_order_mark(tmp_path: Path) -> None:
    text = 'output = "run"\n[model]\nkind = "bi"\n[data]\ntrain = "x.jsonl"\n'
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(text, "utf-8")
    plain = load_recipe(recipe)
    recipe.write_text(text, "utf-8-sig")
    assert load_recipe(recipe) == plain
    recipe.write_text(text, "utf-16")
    with pytest.raises(ConfigError, match="is not UTF-8, which TOML requires; save it as UTF-8"):
        load_recipe(recipe)
    with pytest.raises(ConfigError, match=r"is a folder; give the path of a \.toml file"):
        load_recipe(tmp_path)


def test_a_change_may_have_spaces_and_none_in_any_case() -> None:
    tables = {"model": {"kind": "bi"}, "output": "run"}
    changes = [
        " train.lr = 1e-3 ",
        "data.speaker =  the agent ",
        "train.clip_norm=None",
        "data.kind= NONE",
        'text.background="after"',
    ]
    found = load_recipe(tables | {"data": {"kind": "pairs"}}, changes)
    assert (found.train.lr, found.data.speaker, found.train.clip_norm) == (1e-3, "the agent", None)
    assert (found.data.kind, found.text.background) == (None, "after")
    for change, problem in (
        ("train.lr", "'train.lr' is not KEY=VALUE"), ("=3", "'=3' is not KEY=VALUE"), ("", "'' is not KEY=VALUE"),
        ("output.train.lr=3", "'output.train.lr=3': output is not a table; give a key inside a table"),
        ("train.lr=9223372036854775808", "train.lr is a whole number of more than 64 bits"),
        ("train.seeds=[1, -9223372036854775808]", "train.seeds is a whole number of more than 64 bits"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=re.escape(problem)):
            load_recipe(tables, [change])
    for table, value in (("data", []), ("text", 0), ("train", ""), ("reranker", False)):
        with pytest.raises(ConfigError, match=re.escape(f"{table} = {value!r} is not a table; write [{table}]")):
            load_recipe({**tables, table: value})


@pytest.mark.parametrize(
    ("key", "given", "write"),
    [
        ("seeds", '"1,2"', "[1, 2]"),
        ("seeds", "1,2", "[1, 2]"),
        ("seeds", "(3, 4)", "[3, 4]"),
        ("seeds", "7", "[7]"),
        ("seeds", "one", "one such as [1, 2]"),
        ("betas", "0.5,0.9", "[0.5, 0.9]"),
    ],
)
def test_the_suggested_text_for_a_list_is_valid(tmp_path: Path, key: str, given: str, write: str) -> None:
    recipe = tmp_path / "recipe.toml"
    tables = '[model]\nkind = "bi"\n[data]\ntrain = "x.jsonl"\n'
    recipe.write_text(f'output = "run"\n{tables}', "utf-8")
    with pytest.raises(ConfigError, match=re.escape(f"is not a list; write {write}")):
        load_recipe(recipe, (f"train.{key}={given}",))
    wanted = write.removeprefix("one such as ")
    train = load_recipe(recipe, (f"train.{key}={wanted}",)).train
    assert list(train.seeds if key == "seeds" else train.betas) == json.loads(wanted)  # type: ignore[union-attr]


def test_tables_are_read_like_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {"model": {"kind": "bi"}, "data": {"train": "t.jsonl", "test": "x.jsonl"}, "output": "run"}
    (tmp_path / "r.toml").write_text(
        'output = "run"\n[model]\nkind = "bi"\n[data]\ntrain = "t.jsonl"\ntest = "x.jsonl"\n', encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    assert load_recipe(tables, ["train.lr=1e-3"]) == load_recipe(tmp_path / "r.toml", ["train.lr=1e-3"])
    assert load_recipe("r.toml").data.test == str(tmp_path / "x.jsonl")
    assert tables == {"model": {"kind": "bi"}, "data": {"train": "t.jsonl", "test": "x.jsonl"}, "output": "run"}


def test_the_default_convert_is_the_papers() -> None:
    """ConveRT, section 3 and its table of settings."""
    assert to_dict(ConvertConfig()) == {
        "kind": "convert",
        "embedding_dim": 512,
        "attention_dim": 64,
        "ffn_dim": 2048,
        "spans": (3, 5, 48, 48, 48, 48),
        "position_periods": (47, 11),
        "n_heads": 1,
        "relative_bias": True,
        "reduction_heads": 2,
        "side_dim": 1024,
        "side_layers": 3,
        "side_skips": True,
        "equal_sides": False,
        "output_dim": 512,
        "multi_context": False,
        "combination": "feed_forward",
        "quantization": "float16",
        "scale_embeddings": True,
        "dropout": 0.0,
    }


def test_a_backbone_as_a_start_is_distinguished_from_damage(tiny_backbone: Path, tmp_path: Path) -> None:
    recipe = {"model": {"kind": "bi"}, "output": "run", "data": {"train": "t.jsonl"}}
    with pytest.raises(ConfigError, match="is a Hugging Face model; write it as backbone"):
        load_recipe({**recipe, "train": {"init_from": str(tiny_backbone)}})
    (tmp_path / "config.json").write_text("{", "utf-8")
    with pytest.raises(ArtifactError):
        load_recipe({**recipe, "train": {"init_from": str(tmp_path)}})


def test_paths_of_a_file_are_relative_to_it_and_those_of_changes_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recipes").mkdir()
    file = tmp_path / "recipes" / "r.toml"
    data = 'train = "a.jsonl"\nvalid = "/b.jsonl"\ncache = "c"'
    file.write_text(f'output = "run"\n[model]\nkind = "bi"\n[data]\n{data}\n', "utf-8")
    monkeypatch.chdir(tmp_path)
    found = load_recipe(file, ['data.test="c.jsonl"'])
    assert (found.output, found.data.train) == (str(tmp_path / "recipes/run"), str(tmp_path / "recipes/a.jsonl"))
    assert (found.data.valid, found.data.test) == ("/b.jsonl", str(tmp_path / "c.jsonl"))
    assert found.data.cache == str(tmp_path / "recipes/c")
    assert load_recipe(file, ["data.train=k=v.jsonl"]).data.train == str(tmp_path / "k=v.jsonl")
    file.with_name("convert.toml").write_text(
        'output = "run"\n[model]\nkind = "convert"\n[text]\nvocabulary = "words.txt"\n', "utf-8"
    )
    assert load_recipe(file.with_name("convert.toml")).text.vocabulary == str(tmp_path / "recipes/words.txt")  # type: ignore[union-attr]
    assert load_recipe(file, ['output="other"']).output == str(tmp_path / "other")
    assert load_recipe(file, ["data.valid=none"]).data.valid is None
    tables = {"output": "run", "data": {"train": "a.jsonl"}}
    assert load_pretrain_recipe(tables, ["output=there"]).output == str(tmp_path / "there")
    nested, _ = read_tables({"a": {"b": {"c": "x"}}}, paths=("a.b.c",))
    assert nested == {"a": {"b": {"c": str(tmp_path / "x")}}}


@pytest.mark.parametrize("also", ["", "none, auto"])
def test_every_choice_is_accepted_and_named(also: str) -> None:
    for name in ("rows", "columns", "cells"):
        assert read_choice(name, Literal["rows", "columns", "cells"], "count", also=also) == name
    with pytest.raises(UsageError) as refused:
        read_choice("cell", Literal["rows", "columns", "cells"], "count", also=also)
    names = "none, auto, rows, columns" if also else "rows, columns"
    assert str(refused.value) == f"unknown count 'cell'; choose {names} or cells"


def test_whole_numbers_have_64_bits_and_a_least_value() -> None:
    for value in (2**63 - 1, 1 - 2**63, 0, np.int64(-7)):
        assert (whole_number(value, "n"), type(whole_number(value, "n"))) == (value, int)
    for value in (2**63, -(2**63)):
        with pytest.raises(UsageError, match=r"^n is a whole number of more than 64 bits; give a smaller one$"):
            whole_number(value, "n")
    for value, kind in ((True, "bool"), (2.0, "float"), ("3", "str"), (None, "NoneType")):
        with pytest.raises(UsageError, match=f"^n = {value!r} is {kind}; give a whole number$"):
            whole_number(value, "n")
    for least in (-2, 0, 1, 5):
        assert whole_number(least, "n", least=least) == least
        with pytest.raises(UsageError, match=f"^n is {least - 1}; give {least} or more$"):
            whole_number(least - 1, "n", least=least)


@pytest.mark.parametrize("name", ["max_context_tokens", "max_candidate_tokens"])
def test_budgets_are_from_4_to_the_longest_input(name: str) -> None:
    for longest in (72, 300, 512):
        for budget in (4, 5, longest - 1, longest):
            TextPolicy(**{"max_context_tokens": 50, "max_candidate_tokens": 50, name: budget}).check_budgets(longest)
        for budget in (3, longest + 1):
            policy = TextPolicy(**{"max_context_tokens": 50, "max_candidate_tokens": 50, name: budget})
            with pytest.raises(ConfigError) as refused:
                policy.check_budgets(longest)
            assert str(refused.value).startswith(f"text.{name} = {budget} is outside 4 to {longest}, the network")
    PretrainText(max_tokens=30, max_response_tokens=26)
    with pytest.raises(ConfigError):
        PretrainText(max_tokens=30, max_response_tokens=27)


def test_a_recipe_overrides_what_it_inherits_in_every_table() -> None:
    inherited = {
        "model": {"n_codes": 7, "codes": "first"}, "text": {"max_context_tokens": 90, "slots": True},
        "reranker": {"head": "mlp", "backbone": "inherited"},
    }  # fmt: skip
    tables = {
        "model": {"kind": "poly", "n_codes": 9}, "text": {"max_context_tokens": 80}, "output": "run",
        "train": {"method": {"kind": "mutual"}, "init_from": "start", "lr": 0.5, "batch_size": 3},
        "reranker": {"kind": "cross", "backbone": "own", "train": {"lr": 0.25}},
    }  # fmt: skip
    recipe: Any = recipe_from_dict(tables, inherited)
    assert (recipe.model.n_codes, recipe.model.codes) == (9, "first")
    assert (recipe.text.max_context_tokens, recipe.text.slots) == (80, True)
    assert (recipe.reranker.model.head, recipe.reranker.model.backbone) == ("mlp", "own")
    assert (recipe.train.init_from, recipe.reranker.train.init_from) == ("start", None)
    assert (recipe.train.lr, recipe.reranker.train.lr) == (0.5, 0.25)
    assert (recipe.train.batch_size, recipe.reranker.train.clip_norm) == (3, recipe.train.clip_norm)
    tables["reranker"]["train"]["init_from"] = "other"
    assert recipe_from_dict(tables, inherited).reranker.train.init_from == "other"  # type: ignore[union-attr]
    assert inherited["model"] == {"n_codes": 7, "codes": "first"}


def test_a_model_to_start_from_needs_its_vocabularys_file_no_more(tmp_path: Path) -> None:
    """Its folder has the subwords. The other settings of its texts are inherited."""
    document = read_document(model_folder("shipped:convert"), MODEL)
    text = {**document["text"], "vocabulary": str(tmp_path / "gone.json"), "max_earlier_tokens": 7}
    (tmp_path / MODEL.file).write_bytes(seal({**document, "text": text}, MODEL))
    tables = {"model": {"kind": "convert"}, "output": "run", "train": {"init_from": str(tmp_path)}}
    found: Any = load_recipe({**tables, "data": {"train": "x"}}).text
    assert (found.vocabulary, found.max_earlier_tokens) == (None, 7)


def test_the_usual_settings_of_a_network_that_starts_trained_are_its_tuning() -> None:
    for start, usual in ((None, ConvertConfig.training), ("start", ConvertConfig.tuning)):
        tables = {"model": {"kind": "convert"}, "output": "run", "train": {"init_from": start} if start else {}}
        recipe = recipe_from_dict(tables)
        assert recipe.train.lr == usual.lr
        assert without_effect(recipe) == without_effect(recipe, validated=True) == []
