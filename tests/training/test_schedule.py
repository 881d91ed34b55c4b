"""Schedules, decay, freezing and clipping, compared with torch's and with numbers computed by hand."""

import copy
import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from convert_models import make
from polyrank.config.methods import ConvertMethod, InBatchMethod, ListwiseMethod, MutualMethod
from polyrank.config.models import BiConfig, CrossConfig, PolyConfig, TextPolicy
from polyrank.config.train import TrainConfig
from polyrank.errors import ConfigError, ResourceError
from polyrank.models import Network, new_model
from polyrank.training.fitting import too_large
from polyrank.training.learner import Learner, Loss, TrainState, explain_out_of_memory
from polyrank.training.optimizer import Schedule, clip_gradients, freeze, make_optimizer
from train_settings import train_config, update

POLICY = TextPolicy(max_context_tokens=24, max_candidate_tokens=8)


def settings(**changes: Any) -> TrainConfig:
    values: dict[str, Any] = {
        "lr": 0.5, "warmup_steps": 0, "schedule": "constant", "train_layers": "all", "clip_norm": None, **changes,
    }  # fmt: skip
    return train_config(**values)


def torchs(kind: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler], n_steps: int) -> list[float]:
    """Learning rates of one of torch's schedulers for an optimiser with rate 0.5, step by step."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler = kind(optimizer)
    rates = []
    for _ in range(n_steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def rates(plan: TrainConfig, n_steps: int) -> list[float]:
    schedule = Schedule(plan, n_steps)
    return [plan.lr * schedule.factor(step) for step in range(n_steps)]


# the factor of a step


@pytest.mark.parametrize("n_steps", [1, 2, 7, 20])
def test_linear_equals_torchs_from_one_to_zero(n_steps: int) -> None:
    wanted = torchs(lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.0, n_steps), n_steps)
    assert rates(settings(schedule="linear"), n_steps) == pytest.approx(wanted)


@pytest.mark.parametrize("final", [0.0, 0.1])
def test_cosine_equals_torchs_and_ends_at_the_final_rate_in_the_last_step(final: float) -> None:
    wanted = torchs(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 9 - 1, final), 9)
    found = rates(settings(schedule="cosine", final_lr=final), 9)
    assert found == pytest.approx(wanted)
    assert (found[0], found[-1]) == pytest.approx((0.5, final))


@pytest.mark.parametrize("kind", ["linear", "cosine", "plateau", "constant"])
def test_warm_up_equals_torchs_and_peaks_in_its_last_step(kind: Any) -> None:
    wanted = torchs(lambda o: torch.optim.lr_scheduler.LinearLR(o, 1 / 4, 1.0, 3), 4)
    assert wanted == pytest.approx([0.125, 0.25, 0.375, 0.5])
    found = rates(settings(schedule=kind, warmup_steps=4), 20)
    assert found[:4] == pytest.approx(wanted)
    assert found[4] == pytest.approx(0.5)  # the rate falls after the warm-up at the earliest
    assert found[5] == pytest.approx(0.5) if kind in ("plateau", "constant") else found[5] < 0.5


def test_after_the_warm_up_the_rate_falls_over_the_remaining_steps() -> None:
    """By hand, for 2 warm-up steps of 7: linear in fifths; cosine of 0 to 4 quarters of a half turn."""
    linear = [0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2]
    half = math.sqrt(0.5)
    cosine = [0.5, 1.0, 1.0, (1 + half) / 2, 0.5, (1 - half) / 2, 0.0]
    for kind, factors in (("linear", linear), ("cosine", cosine)):
        found = rates(settings(schedule=kind, warmup_steps=2), 7)
        assert found == pytest.approx([0.5 * factor for factor in factors])


def test_warm_up_takes_at_most_half_of_the_training() -> None:
    assert rates(settings(warmup_steps=100), 8) == pytest.approx([0.125, 0.25, 0.375, 0.5, 0.5, 0.5, 0.5, 0.5])
    assert rates(settings(warmup_steps=100), 1) == [0.5]
    assert rates(settings(warmup_steps=0), 3) == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("kind", ["linear", "cosine", "plateau", "constant"])
def test_a_rate_of_zero_stays_zero(kind: Any) -> None:
    assert rates(settings(schedule=kind, lr=0.0, warmup_steps=1), 4) == [0.0] * 4


LOSSES = [3.0, 2.0, 2.0, 2.5, 1.9, 1.9, 2.0, 1.95, 1.9, math.nan, 1.0, 1.0, 0.9, 0.95, 0.95, 0.95, 0.95]


@pytest.mark.parametrize("patience", [0, 1, 2, 3])
def test_a_plateau_decays_at_exactly_the_checks_where_torch_does(patience: int) -> None:
    """Patience is the tolerated number of checks without gain; a missing figure counts as a check without gain."""
    schedule = Schedule(settings(schedule="plateau", patience=patience, factor=0.4), 99)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.4, patience=patience, threshold=0.0, threshold_mode="abs"
    )
    found, wanted = [], []
    for loss in LOSSES:
        schedule.observe(loss)
        plateau.step(loss)
        found.append(schedule.factor(50))
        wanted.append(optimizer.param_groups[0]["lr"])
    assert found == pytest.approx(wanted)
    assert found[-1] < 1


def test_a_plateau_by_hand() -> None:
    """With patience 1 the second check without gain decays the rate and resets the count."""
    schedule = Schedule(settings(schedule="plateau", patience=1, factor=0.5), 99)
    found = []
    for loss in (2.0, 2.1, 2.0, 2.2, 1.9, 2.0, 1.9, 1.9, 1.8):
        schedule.observe(loss)
        found.append(schedule.factor(50))
    assert found == [1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]
    assert schedule.best_loss == 1.8


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant"])
def test_only_a_plateau_uses_validation(kind: Any) -> None:
    plan = settings(schedule=kind)
    schedule = Schedule(plan, 9)
    for _ in range(5):
        schedule.observe(1.0)
    assert [plan.lr * schedule.factor(step) for step in range(9)] == rates(plan, 9)


# parameter groups


def named(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, tuple[float, float]]:
    """Rate and decay of each trainable parameter."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def built(backbone: Path, config: Any) -> Network:
    return new_model(dataclasses.replace(config, backbone=str(backbone)), POLICY, seed=1, sample=["hi"], dropout=0.0)[0]


NETWORKS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "bi": (BiConfig(reduction="mean", projection_dim=8), (".projection.",)),
    "shared": (BiConfig(reduction="mean", shared_towers=True), ()),
    "poly": (PolyConfig(n_codes=3, code_init="uniform"), ("codes",)),
    "cross": (CrossConfig(head="mlp"), ("head.",)),
}


@pytest.mark.parametrize("decay_new", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_has_its_rate_and_its_decay(tiny_backbone: Path, name: str, decay_new: bool) -> None:
    """The backbone's matrices decay, biases and norms do not; new parameters have their own rate and optional decay."""
    config, new = NETWORKS[name]
    model = built(tiny_backbone, config)
    found = named(model, make_optimizer(model, settings(lr=0.1, new_lr=0.3, weight_decay=0.05, decay_new=decay_new)))
    assert set(found) == {name for name, _ in model.named_parameters()}
    n_new = 0
    for parameter, (rate, decay) in found.items():
        is_new = any(part in parameter for part in new)
        plain = parameter.endswith("bias") or "LayerNorm" in parameter
        n_new += is_new
        assert rate == (0.3 if is_new else 0.1), parameter
        assert decay == (0.0 if plain or (is_new and not decay_new) else 0.05), parameter
    assert bool(n_new) == bool(new)


def test_new_parameters_have_the_base_rate_unless_codes_start_near_zero(tiny_backbone: Path) -> None:
    plan = settings(lr=0.01)
    for config, rate in (
        (PolyConfig(n_codes=3, code_init="near_zero"), 0.25),
        (PolyConfig(n_codes=3, code_init="uniform"), 0.01),
        (PolyConfig(n_codes=3, code_init="normal"), 0.01),
    ):
        model = built(tiny_backbone, config)
        found = named(model, make_optimizer(model, plan))
        assert found.pop("codes")[0] == pytest.approx(rate)
        assert {pair[0] for pair in found.values()} == {0.01}
        given = named(model, make_optimizer(model, dataclasses.replace(plan, new_lr=0.5)))
        assert given["codes"][0] == 0.5


@pytest.mark.parametrize(
    ("name", "kind", "decay"),
    [("adamw", torch.optim.AdamW, 0.01), ("adamax", torch.optim.Adamax, 0.0), ("adadelta", torch.optim.Adadelta, 0.01)],
)
def test_optimisers_are_torchs_and_decay_by_default_but_for_adamax(
    tiny_backbone: Path, name: Any, kind: Any, decay: float
) -> None:
    model = built(tiny_backbone, BiConfig(reduction="mean"))
    optimizer = make_optimizer(model, settings(optimizer=name))
    assert type(optimizer) is kind
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, decay}
    if name == "adadelta":
        assert {group["rho"] for group in optimizer.param_groups} == {0.9}
    else:
        assert {group["betas"] for group in optimizer.param_groups} == {(0.9, 0.999)}
    given = make_optimizer(model, settings(optimizer=name, weight_decay=0.3))
    assert {group["weight_decay"] for group in given.param_groups} == {0.0, 0.3}


def test_decay_of_adamw_is_decoupled_and_that_of_the_others_joins_the_gradient(tiny_backbone: Path) -> None:
    """Without a gradient AdamW subtracts lr * decay of each weight; Adamax then moves each by its whole rate."""
    for name in ("adamw", "adamax"):
        model = built(tiny_backbone, BiConfig(reduction="mean"))
        weight = model.context_tower.backbone.layers()[0].attention.self.query.weight  # type: ignore[union-attr, operator]
        before = weight.detach().clone()
        optimizer = make_optimizer(model, settings(optimizer=name, lr=0.1, weight_decay=0.5))
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        wanted = before * (1 - 0.1 * 0.5) if name == "adamw" else before - 0.1 * before.sign()
        torch.testing.assert_close(weight.detach(), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("layers", "frozen"), [
    ("all", ()),
    ("all_but_embeddings", ("word_embeddings",)),
    ("top-2", ("embeddings.", "pooler.")),
    ("top-1", ("embeddings.", "layer.0.", "pooler.")),
])  # fmt: skip
@pytest.mark.parametrize("name", NETWORKS)
def test_lower_layers_are_frozen_but_no_new_parameters(
    tiny_backbone: Path, name: str, layers: str, frozen: tuple[str, ...]
) -> None:
    model = built(tiny_backbone, NETWORKS[name][0])
    freeze(model, layers)
    for parameter, value in model.named_parameters():
        assert value.requires_grad == (not any(part in parameter for part in frozen)), parameter
    assert set(named(model, make_optimizer(model, settings()))) == {
        parameter for parameter, value in model.named_parameters() if value.requires_grad
    }


@pytest.mark.parametrize(
    ("layers", "frozen"),
    [
        ("all", ()),
        ("all_but_embeddings", ("subwords.",)),
        ("top-3", ("subwords.", "positions.")),
        ("top-2", ("subwords.", "positions.", "layers.0.")),
        ("top-1", ("subwords.", "positions.", "layers.0.", "layers.1.")),
    ],
)
def test_layers_of_a_convert_are_frozen_too(layers: str, frozen: tuple[str, ...]) -> None:
    model = make()[0]
    freeze(model, layers)
    for parameter, value in model.named_parameters():
        assert value.requires_grad == (not parameter.startswith(frozen or "nothing")), parameter


@pytest.mark.parametrize("layers", ["top-0", "top-3", "top-x", "top", "bottom-1", "none"])
def test_missing_layers_cannot_train(tiny_backbone: Path, layers: str) -> None:
    with pytest.raises(ConfigError, match=r"is not all, all_but_embeddings or top-1 to top-2"):
        freeze(built(tiny_backbone, CrossConfig()), layers)


def test_nothing_to_train_is_refused(tiny_backbone: Path) -> None:
    model = built(tiny_backbone, BiConfig(reduction="mean"))
    model.requires_grad_(False)
    with pytest.raises(ConfigError, match="nothing to train"):
        make_optimizer(model, settings())


# clipping


def with_gradients(model: nn.Module, words: float, others: float) -> tuple[float, float]:
    """Set gradients to constants; returns the norms of the word embeddings' gradients and of all others."""
    sizes = {True: 0, False: 0}
    for name, parameter in model.named_parameters():
        is_word = "word_embeddings" in name or name.startswith("subwords.")
        parameter.grad = torch.full_like(parameter, words if is_word else others)
        sizes[is_word] += parameter.numel()
    return words * math.sqrt(sizes[True]), others * math.sqrt(sizes[False])


def norms(model: nn.Module) -> tuple[float, float]:
    squares = {True: 0.0, False: 0.0}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        squares["word_embeddings" in name or name.startswith("subwords.")] += float(parameter.grad.square().sum())
    return math.sqrt(squares[True]), math.sqrt(squares[False])


@pytest.mark.parametrize("kind", ["bi", "shared", "convert"])
def test_embeddings_are_clipped_first_and_the_norm_in_between_is_reported(tiny_backbone: Path, kind: str) -> None:
    """Clips the words' norm w to 3, keeps the others' norm o, then clips the total sqrt(9 + o^2) to 2."""
    model = make()[0] if kind == "convert" else built(tiny_backbone, NETWORKS[kind][0])
    optimizer = make_optimizer(model, settings())
    for clip_words, clip_all in ((3.0, 2.0), (3.0, None), (None, 2.0), (None, None), (1e6, 1e6)):
        words, others = with_gradients(model, 0.5, 0.25)
        norm = float(clip_gradients(model, optimizer, settings(clip_embeddings_norm=clip_words, clip_norm=clip_all)))
        words = min(words, clip_words or math.inf)
        whole = math.hypot(words, others)
        assert norm == pytest.approx(whole, rel=1e-4)
        shrunk = min(1.0, (clip_all or math.inf) / whole)
        assert norms(model) == pytest.approx((words * shrunk, others * shrunk), rel=1e-4)


def test_frozen_parameters_are_not_in_the_norm(tiny_backbone: Path) -> None:
    model = built(tiny_backbone, BiConfig(reduction="mean"))
    freeze(model, "top-1")
    optimizer = make_optimizer(model, settings())
    with_gradients(model, 1.0, 1.0)
    n_trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert float(clip_gradients(model, optimizer, settings(clip_norm=1.0))) == pytest.approx(
        math.sqrt(n_trained), rel=1e-4
    )


# an update


def next_loss(model: nn.Module) -> torch.Tensor:
    """A loss with a gradient for every parameter."""
    return torch.stack([p.square().mean() + p.mean() for p in model.parameters()]).sum()


class Trained:
    """A small ConveRT in a ``Trainee``, with validation figures from a list."""

    def __init__(self, folder: Path, figures: list[dict[str, float]] | None = None, **changes: Any) -> None:
        self.model = make()[0]
        self.figures, self.kept, self.records = figures, [], []  # type: ignore[var-annotated]
        learner = Learner(
            model=self.model,
            settings=settings(**changes),
            folder=folder,
            save_best=self.kept.append,
            evaluate=None if figures is None else lambda: self.figures.pop(0),  # type: ignore[union-attr]
            report=self.records.append,
        )
        self.trainee = TrainState(learner, n_steps=10)

    def loss(self, factor: float = 1.0) -> torch.Tensor:
        return (
            factor * torch.stack([p.float().square().mean() + p.float().mean() for p in self.model.parameters()]).sum()
        )

    def state(self) -> dict[str, torch.Tensor]:
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}


@pytest.mark.deep
@pytest.mark.parametrize("name", ["adamw", "adamax", "adadelta"])
def test_updates_equal_torchs_written_out(tmp_path: Path, name: Any) -> None:
    """Freezing, two clips, decay of matrices only, a rate per step: equal weights after three updates."""
    changes: dict[str, Any] = {
        "optimizer": name, "lr": 0.02, "schedule": "linear", "warmup_steps": 2, "weight_decay": 0.1, "clip_norm": 0.5,
        "clip_embeddings_norm": 0.01,
    }  # fmt: skip
    trained = Trained(tmp_path, **changes)
    plain = copy.deepcopy(trained.model)
    kind = {"adamw": torch.optim.AdamW, "adamax": torch.optim.Adamax, "adadelta": torch.optim.Adadelta}[name]
    decays = [p for n, p in plain.named_parameters() if p.ndim >= 2 and ".bias." not in n]
    spared = [p for n, p in plain.named_parameters() if p.ndim < 2 or ".bias." in n]
    optimizer = kind([{"params": decays, "weight_decay": 0.1}, {"params": spared, "weight_decay": 0.0}], lr=0.02)
    for step, factor in enumerate((0.5, 1.0, 1.0, 7 / 8)):
        assert trained.trainee.set_rates(step) == pytest.approx(0.02 * factor)
        value = update(trained.trainee, trained.loss())
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * factor
        optimizer.zero_grad()
        loss = next_loss(plain)
        loss.backward()
        nn.utils.clip_grad_norm_([plain.subwords.weight], 0.01)
        nn.utils.clip_grad_norm_(list(plain.parameters()), 0.5)
        optimizer.step()
        assert value == pytest.approx(float(loss.detach()))
        assert all(parameter.grad is None for parameter in trained.model.parameters())  # gradients do not accumulate
    for parameter, wanted in zip(trained.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter, wanted)


@pytest.mark.parametrize("name", NETWORKS)
def test_rates_of_all_groups_move_together(tiny_backbone: Path, tmp_path: Path, name: str) -> None:
    """The reported rate is the backbone's, whatever other parameters a network has."""
    config, new = NETWORKS[name]
    model = built(tiny_backbone, config)
    plan = settings(lr=0.01, new_lr=0.25, schedule="linear")
    trainee = TrainState(Learner(model=model, settings=plan, folder=tmp_path, save_best=lambda _: None), n_steps=4)
    for step, factor in ((0, 1.0), (3, 0.25), (1, 0.75)):
        assert trainee.set_rates(step) == pytest.approx(0.01 * factor)
        rates = sorted({group["lr"] for group in trainee.optimizer.param_groups})
        assert rates == pytest.approx([0.01 * factor, *([0.25 * factor] if new else [])])


@pytest.mark.parametrize("bad", ["loss", "gradient"])
def test_a_nan_changes_nothing_and_consecutive_ones_are_counted(tmp_path: Path, bad: str) -> None:
    trained = Trained(tmp_path, lr=0.1)
    trainee = trained.trainee
    assert math.isfinite(update(trainee, trained.loss()))
    before = trained.state()
    moments = copy.deepcopy(trainee.optimizer.state_dict()["state"])
    for count in (1, 2):
        loss = trained.loss(math.inf)
        if bad == "gradient":  # sqrt(0) is 0, but its derivative is infinite
            loss = trained.loss() + (trained.model.subwords.weight * 0).sum().abs().sqrt()
            assert torch.isfinite(loss)
        assert not math.isfinite(update(trainee, loss))
        assert trainee.n_bad == count
        assert all(parameter.grad is None for parameter in trained.model.parameters())
    after = trained.state()
    assert all(torch.equal(after[name], before[name]) for name in before)
    for number, state in trainee.optimizer.state_dict()["state"].items():
        assert all(torch.equal(value, moments[number][key]) for key, value in state.items())
    assert math.isfinite(update(trainee, trained.loss()))
    assert trainee.n_bad == 0
    assert any(not torch.equal(value, before[name]) for name, value in trained.state().items())


def test_a_loss_that_is_not_finite_changes_nothing_though_its_gradient_and_other_figures_are(tmp_path: Path) -> None:
    trained = Trained(tmp_path, lr=0.1)
    before = trained.state()
    for count, name in enumerate(("loss", "first_stage_loss"), 1):
        figures = {"loss": 1.0, "first_stage_loss": 1.0, "n_found": 2.0, name: math.nan}
        found = trained.trainee.update(iter([Loss(trained.loss(), figures=figures)]))
        assert [key for key, value in found.items() if not math.isfinite(value)] == [name]
        assert trained.trainee.n_bad == count
    assert all(torch.equal(value, before[name]) for name, value in trained.state().items())


# the best version


def figures(*pairs: tuple[float, float]) -> list[dict[str, float]]:
    return [{"loss": loss, "R@1": recall, "MRR": 0.5} for loss, recall in pairs]


def test_the_best_version_is_the_first_with_the_highest_recall(tmp_path: Path) -> None:
    trained = Trained(tmp_path, figures((1.0, 0.2), (2.0, 0.5), (0.1, 0.4), (0.1, 0.5), (9.0, 0.6), (0.5, 0.1)))
    stale = []
    for step in range(1, 7):
        trained.trainee.validate(step, {"epoch": step / 2})
        stale.append(trained.trainee.n_stale)
    assert [(kept["R@1"], kept["loss"]) for kept in trained.kept] == [(0.2, 1.0), (0.5, 2.0), (0.6, 9.0)]
    assert (trained.trainee.best["R@1"], trained.trainee.best_step) == (0.6, 5)
    assert stale == [0, 0, 1, 2, 0, 1]
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert rows == trained.records
    assert [(row["step"], row["epoch"], row["valid"]["R@1"]) for row in rows][:2] == [(1, 0.5, 0.2), (2, 1.0, 0.5)]


def test_the_best_version_by_loss_is_the_first_with_the_lowest(tmp_path: Path) -> None:
    trained = Trained(tmp_path, figures((1.0, 0.2), (0.5, 0.1), (0.5, 0.9), (0.75, 0.9), (0.25, 0.0)))
    learner = dataclasses.replace(trained.trainee.learner, best_by="loss")
    trainee, stale = TrainState(learner, n_steps=10), []
    for step in range(1, 6):
        trainee.validate(step, {"epoch": 1.0})
        stale.append(trainee.n_stale)
    assert [kept["loss"] for kept in trained.kept] == [1.0, 0.5, 0.25]
    assert (trainee.best_step, stale) == (5, [0, 0, 1, 2, 0])


def test_a_recall_of_zero_is_better_than_no_validation(tmp_path: Path) -> None:
    trained = Trained(tmp_path, figures((1.0, 0.0)))
    trained.trainee.validate(3, {"epoch": 1.0})
    assert trained.trainee.best_step == 3


def test_nan_figures_are_never_the_best(tmp_path: Path) -> None:
    trained, stale = Trained(tmp_path, figures((math.inf, 0.9), (1.0, 0.1), (math.nan, 0.9))), list[int]()
    for step in (1, 2, 3):
        trained.trainee.validate(step, {"epoch": 1.0})
        stale.append(trained.trainee.n_stale)
    assert trained.trainee.best_step == 2
    assert stale == [1, 0, 1]  # early stopping counts them
    rows = [json.loads(line)["valid"] for line in (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [row["loss"] for row in rows] == [None, 1.0, None]
    assert [row["R@1"] for row in rows] == [0.9, 0.1, 0.9]


def test_without_validation_the_last_good_one_is_kept(tmp_path: Path) -> None:
    trained = Trained(tmp_path)
    trained.trainee.validate(1, {"epoch": 1.0})
    update(trained.trainee, trained.loss(math.nan))
    trained.trainee.validate(2, {"epoch": 2.0})
    assert (trained.kept, trained.trainee.best_step) == ([{}], 1)
    update(trained.trainee, trained.loss())
    trained.trainee.validate(3, {"epoch": 3.0})
    assert (trained.kept, trained.trainee.best_step) == ([{}, {}], 3)
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_plateau_uses_the_validation_loss(tmp_path: Path) -> None:
    trained = Trained(tmp_path, figures((1.0, 0.1), (1.0, 0.2)), schedule="plateau", factor=0.5)
    rates = []
    for step in (1, 2):
        trained.trainee.validate(step, {"epoch": 1.0})
        rates.append(trained.trainee.set_rates(step))
    assert rates == [0.5, 0.25]


@pytest.mark.parametrize("patience", [1, 2, None])
def test_training_stops_after_exactly_patience_checks_without_gain(tmp_path: Path, patience: int | None) -> None:
    checks = figures((1.0, 0.3), (1.0, 0.2), (1.0, 0.4), (1.0, 0.4), (1.0, 0.4), (1.0, 0.4))
    trained = Trained(tmp_path, checks)
    enough = []
    for step in range(1, 7):
        trained.trainee.validate(step, {"epoch": 1.0})
        enough.append(patience is not None and trained.trainee.n_stale >= patience)
    assert (
        enough
        == {
            1: [False, True, False, True, True, True],
            2: [False, False, False, False, True, True],
            None: [False] * 6,
        }[patience]
    )


def test_records_of_steps_that_will_be_made_again_are_dropped(tmp_path: Path) -> None:
    lines = [json.dumps({"step": step, "loss": 0.5}) for step in (1, 2, 2, 3, 4)]
    trained = Trained(tmp_path)
    metrics = tmp_path / "metrics.jsonl"
    trained.trainee.drop_records_after(2)
    assert not metrics.exists()
    for last, kept in ((4, 5), (2, 3), (0, 0)):
        metrics.write_text("\n".join(lines) + '\n{"step": 5, "lo', "utf-8")  # as after a crash while writing
        trained.trainee.drop_records_after(last)
        assert metrics.read_text("utf-8").splitlines() == lines[:kept]
        trained.trainee.write({"step": 9})
        assert json.loads(metrics.read_text("utf-8").splitlines()[-1]) == {"step": 9}
        assert len(metrics.read_text("utf-8").splitlines()) == kept + 1


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("[enforce fail] not enough memory: you tried to allocate 9 bytes"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError(),
    ],
)
def test_out_of_memory_suggests_half_of_the_batch(error: Exception) -> None:
    for n_contexts, half in ((64, 32), (7, 3), (1, 1)):
        with (
            pytest.raises(ResourceError, match=rf"a batch of {n_contexts} does .* train\.batch_size={half} "),
            explain_out_of_memory(too_large(n_contexts)),
        ):
            raise error


def test_other_errors_stay_unchanged() -> None:
    with pytest.raises(RuntimeError, match="shapes"), explain_out_of_memory(too_large(8)):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


@pytest.mark.parametrize(
    ("method", "given", "window"),
    [
        (InBatchMethod(), None, 1),
        (ConvertMethod(), None, 1),
        (ListwiseMethod(), None, 50),
        (MutualMethod(), None, 50),
        (InBatchMethod(), 50, 50),
        (ListwiseMethod(), 1, 1),
    ],
)
def test_only_lists_are_sorted_by_length_by_default(method: Any, given: int | None, window: int) -> None:
    assert TrainConfig(method=method, length_window=given).window == window
