"""Mutual learning: reference values, isolation of gradients, resuming, recipes."""

import dataclasses
import json
import signal
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from polyrank.config.methods import MutualMethod
from polyrank.config.models import BiConfig, CrossConfig, PolyConfig, TextPolicy
from polyrank.config.recipe import DataConfig, Partner, Recipe, recipe_from_dict, recipe_to_dict
from polyrank.errors import ArtifactError, ConfigError
from polyrank.loading.recipes import load_recipe
from polyrank.models import new_model
from polyrank.models.artifacts import load_model
from polyrank.models.losses import cross_entropy, imitation
from polyrank.negatives.random import RandomNegatives
from polyrank.records import Context, Example
from polyrank.scorers.load import make_scorer
from polyrank.scorers.open import load
from polyrank.training import DistillStep, Imitation, ListwiseStep, MutualStep, train
from polyrank.training.inputs import Lists
from polyrank.training.methods import make_step
from polyrank.training.ranker import Ranker
from polyrank.training.shares import share_of
from polyrank.training.teacher import Teacher
from processes import start
from train_settings import loss_of, losses_of, network_settings, train_config

POLICY = TextPolicy(max_context_tokens=24, max_candidate_tokens=8)
CPU = torch.device("cpu")


def recipe(
    task: dict[str, Path], backbone: Path, output: Path, *, model: Any, partner: Any = None, **changes: Any
) -> Recipe:
    values: dict[str, Any] = {
        "method": "listwise" if partner is None else "mutual", "batch_size": 18, "epochs": 1, "lr": 1e-3,
        "warmup_steps": 2, "schedule": "linear", "train_layers": "all", "precision": "fp32", "n_negatives": 3,
        "dropout": 0.1, **changes,
    }  # fmt: skip

    def placed(config: Any) -> Any:
        return dataclasses.replace(config, backbone=str(backbone))

    train_settings = train_config(**values)
    return Recipe(
        model=placed(model),
        text=POLICY,
        data=DataConfig(train=str(task["train"]), valid=str(task["valid"]) if "valid" in task else None),
        train=train_settings,
        output=str(output),
        reranker=None
        if partner is None
        else Partner(
            model=placed(partner),
            train=network_settings(train_settings, init_from=None),
        ),
    )


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


def curve(folder: Path) -> list[Any]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [(r["step"], r.get("loss"), r.get("valid")) for r in records]


BI, CROSS = BiConfig(reduction="mean"), CrossConfig()


# losses


@given(
    st.lists(st.lists(st.floats(-30, 30), min_size=8, max_size=8), min_size=1, max_size=3),
    st.floats(0.5, 8.0),
    st.integers(1, 4),
)
def test_imitation_is_a_divergence(rows: list[list[float]], temperature: float, width: int) -> None:
    both = torch.tensor(rows).reshape(len(rows), 2, 4)
    allowed = torch.arange(4).expand(len(rows), 4) < width
    value = imitation(both[:, 0], both[:, 1], allowed, temperature)
    assert float(value) >= -1e-5
    assert float(imitation(both[:, 0], both[:, 0] + 3.0, allowed, temperature)) == pytest.approx(0, abs=1e-4)
    p, q = (torch.softmax(both[:, i, :width].double() / temperature, 1) for i in (0, 1))
    by_hand = (q * (q / p).log()).sum(1).mean()
    assert float(value) == pytest.approx(float(by_hand), rel=1e-3, abs=1e-4)


def test_no_gradient_reaches_a_teacher_or_a_masked_column() -> None:
    torch.manual_seed(0)
    student, teacher = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
    allowed = torch.arange(4).expand(3, 4) < torch.tensor([[4], [2], [3]])
    imitation(student, teacher, allowed, 2.0).backward()
    assert student.grad is not None
    assert torch.isfinite(student.grad).all()
    assert teacher.grad is None
    assert (student.grad[~allowed] == 0).all()
    assert (student.grad[allowed] != 0).any()


def test_losses_are_fp32_for_scores_of_any_type() -> None:
    scores = torch.randn(2, 3).to(torch.bfloat16)
    everyone = torch.ones(2, 3, dtype=torch.bool)
    assert imitation(scores, scores + 1, everyone, 3.0).dtype == torch.float32


def test_a_gradient_shrinks_with_the_square_of_a_high_temperature() -> None:
    student, teacher = torch.zeros(1, 4, requires_grad=True), torch.tensor([[0.4, -0.2, 0.1, -0.3]])
    sizes = []
    for temperature in (4.0, 64.0):
        student.grad = None
        imitation(student, teacher, torch.ones(1, 4, dtype=torch.bool), temperature).backward()
        assert student.grad is not None
        sizes.append(temperature**2 * float(student.grad.norm()))
    assert sizes[1] == pytest.approx(sizes[0], rel=0.1)


# steps


def make(backbone: Path, config: Any, seed: int = 1, dropout: float = 0.0) -> ListwiseStep:
    model, texts, _ = new_model(
        dataclasses.replace(config, backbone=str(backbone)), POLICY, seed=seed, sample=["thanks"], dropout=dropout
    )
    pool = [f"{word} thanks" for word in ("wifi", "router", "bill", "light", "red", "green")]
    return ListwiseStep(model, texts, CPU, RandomNegatives(pool, 3, seed=5))


BATCH = list(
    enumerate([Example(("my wifi",), ("wifi thanks",), (0,)), Example(("red light",), ("light thanks",), (0,))])
)


@pytest.mark.parametrize(
    ("first", "second"), [(BI, CROSS), (CROSS, BI), (BI, PolyConfig(n_codes=2, code_init="near_zero"))]
)
def test_phases_equal_their_formula_and_reach_only_their_network(tiny_backbone: Path, first: Any, second: Any) -> None:
    a, b = make(tiny_backbone, first), make(tiny_backbone, second, seed=2)
    for step in (a, b):
        step.model.train()
    how = Imitation(alpha=0.7, temperature=2.0)
    own, others = (step.inputs(BATCH, a.lists(BATCH, 0)) for step in (a, b))
    phases = losses_of(MutualStep(a, b, how), BATCH)
    optimizer = torch.optim.SGD(a.model.parameters(), lr=0.05)
    before, allowed = a.values(own)
    theirs, _ = b.values(others)
    one = next(phases)
    torch.testing.assert_close(one, how.loss(before, theirs, allowed))
    one.backward()
    assert any(p.grad is not None for p in a.model.parameters())
    assert all(p.grad is None for p in b.model.parameters())
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    two = next(phases)
    after, _ = a.values(own)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(two, how.loss(theirs, after, allowed))  # with predictions from after the update
    two.backward()
    assert all(p.grad is None for p in a.model.parameters())
    assert any(p.grad is not None for p in b.model.parameters())
    assert next(phases, None) is None
    assert a.model.training


@pytest.mark.parametrize("config", [BI, CROSS, PolyConfig(n_codes=2, code_init="near_zero")])
def test_a_sigmoid_is_of_the_scores_of_pairs_alone(tiny_backbone: Path, config: Any) -> None:
    """As a lone network, and as one of two; masked scores stay 0."""
    plain = make(tiny_backbone, config)
    lists = [["wifi thanks", "bill thanks"], ["light thanks"]]
    raw, allowed = plain.values(plain.inputs(BATCH, lists))
    with_sigmoid = dataclasses.replace(plain, sigmoid=True)
    found, _ = with_sigmoid.values(with_sigmoid.inputs(BATCH, lists))
    wanted = raw.sigmoid() if config is CROSS else raw
    torch.testing.assert_close(found, torch.where(allowed, wanted, 0.0))
    assert allowed.tolist() == [[True, True], [True, False]]
    ranker, files = Ranker(plain.model, plain.texts, make_scorer(plain.model, plain.texts), lambda *_: None), Path()
    examples = [example for _, example in BATCH]
    for method in ("listwise", "mutual"):
        settings = train_config(method=method, sigmoid=True, n_negatives=1, precision="fp32")
        made = make_step([ranker] * 2, settings, examples, device=CPU, seed=1, folder=files)
        for step in (made.first, made.second) if isinstance(made, MutualStep) else (made,):
            assert isinstance(step, ListwiseStep)
            assert step.sigmoid
            torch.testing.assert_close(step.values(step.inputs(BATCH, lists))[0], found)


def test_a_network_predicts_for_the_other_without_dropout_and_learns_with_it(tiny_backbone: Path) -> None:
    """The first network trains with dropout; its predictions for the second one have no dropout."""
    a, b = make(tiny_backbone, BI, dropout=0.5), make(tiny_backbone, CROSS, seed=2)
    own, others = (step.inputs(BATCH, a.lists(BATCH, 0)) for step in (a, b))
    how = Imitation(alpha=0.7, temperature=2.0)
    theirs, allowed = b.values(others)
    ones = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        a.model.train()
        b.model.eval()  # as after a validation
        phases = losses_of(MutualStep(a, b, how), BATCH)
        ones.append(float(next(phases).detach()))
        assert b.model.training
        two = next(phases)
        assert a.model.training
        a.model.eval()
        with torch.no_grad():
            calm, _ = a.values(own)
        torch.testing.assert_close(two, how.loss(theirs, calm, allowed))
        a.model.train()
        assert not torch.allclose(a.values(own)[0], calm)
    assert ones[0] != ones[1]


def test_imitation_by_hand_in_its_parts() -> None:
    """Scores ln 3 and 0 against 0 and 0, all at T = 1: labels ln 4/3, divergence ln(2 / sqrt 3)."""
    values, teacher = torch.tensor([[np.log(3.0), 0.0, 7.0]]), torch.tensor([[0.0, 0.0, -5.0]])
    allowed = torch.tensor([[True, True, False]])
    labels, other = np.log(4 / 3), np.log(2 / np.sqrt(3))
    for alpha, weight in ((1.0, 1.0), (0.5, 2.0), (0.0, 3.0), (2.0, 0.0)):
        how = Imitation(alpha=alpha, temperature=1.0, label_weight=weight)
        assert float(how.loss(values, teacher, allowed)) == pytest.approx(weight * labels + alpha * other, rel=1e-5)


def test_the_first_network_imitates_the_second() -> None:
    """As above, with twice the imitation alone: 2 (p - q) with p = 3/4 and q = 1/2."""
    values = torch.tensor([[np.log(3.0), 0.0, 7.0]], dtype=torch.float32, requires_grad=True)
    teacher = torch.tensor([[0.0, 0.0, -5.0]], requires_grad=True)
    how = Imitation(alpha=2.0, temperature=1.0, label_weight=0.0)
    how.loss(values, teacher, torch.tensor([[True, True, False]])).backward()
    assert values.grad is not None
    assert values.grad[0].tolist() == pytest.approx([0.5, -0.5, 0.0], rel=1e-5)
    assert teacher.grad is None


def test_imitation_has_the_defaults_of_a_recipe() -> None:
    plan = MutualMethod()
    assert Imitation() == Imitation(plan.alpha, plan.temperature, plan.label_weight)
    assert Imitation() == Imitation(1.0, 3.0, 1.0)


@pytest.mark.parametrize("method", ["mutual", "distill"])
def test_a_step_has_every_setting_of_its_recipe(
    method: str, tiny_backbone: Path, tiny_encoders: dict[str, Path], tmp_path: Path
) -> None:
    both = [make(tiny_backbone, BI), make(tiny_backbone, CROSS, seed=2)][: 1 + (method == "mutual")]
    rankers = [Ranker(one.model, one.texts, make_scorer(one.model, one.texts), lambda *_: None) for one in both]
    teacher = {} if method == "mutual" else {"teacher": str(tiny_encoders["poly"])}
    values: dict[str, Any] = {
        "method": method, "alpha": 0.25, "temperature": 5.0, "label_weight": 0.75, "n_negatives": 1, "chunk_size": 2,
        "redraw": False, "precision": "fp32", **teacher,
    }  # fmt: skip
    own = Imitation().labels
    examples, said = [example for _, example in BATCH], partial(own, smoothing=0.5)

    def made(**changes: Any) -> Any:
        settings = train_config(**(values | changes))
        return make_step(rankers, settings, examples, device=CPU, seed=7, folder=tmp_path, loss=said)

    step = made()
    assert isinstance(step, MutualStep | DistillStep)
    assert step.imitation == Imitation(0.25, 5.0, 0.75, said)
    lists = [step.first, step.second] if isinstance(step, MutualStep) else [step.student]
    assert [(one.model, one.texts) for one in lists] == [(one.model, one.texts) for one in rankers]
    assert [(one.chunk_size, one.loss) for one in lists] == [(2, said)] * len(rankers)
    if isinstance(step, DistillStep):
        assert step.teacher.scorer.fingerprint == load(tiny_encoders["poly"], device="cpu").fingerprint  # type: ignore[attr-defined]  # an encoder
        assert [np.load(file).shape for file in tmp_path.glob("teacher-scores-*.npy")] == [(2, 2)]
        for changes in ({"redraw": True}, {"remine_epochs": 1}):  # lists that do not repeat
            made(**changes)
        assert len([*tmp_path.glob("teacher-scores-*.npy")]) == 1
        made(precision="bf16")  # has other scores
        assert len([*tmp_path.glob("teacher-scores-*.npy")]) == 2


def test_every_candidate_of_a_batch_is_encoded_once(tiny_backbone: Path) -> None:
    step = make(tiny_backbone, BI)
    sizes = []
    step.model.candidate_tower.register_forward_hook(lambda _, args, out: sizes.append(len(out)))  # type: ignore[operator, union-attr]
    lists = step.lists(BATCH, 0)
    step.values(step.inputs(BATCH, lists))
    assert sizes == [len({text for row in lists for text in row})]


def test_fixed_negatives_do_not_change_during_a_run() -> None:
    pool = [f"reply {i}" for i in range(50)]
    example = Example(("hi",), ("reply 3",), (0,))
    fixed, redrawn = (RandomNegatives(pool, 5, seed=1, redraw=redraw) for redraw in (False, True))
    assert fixed(7, example, 0) == fixed(7, example, 3) == redrawn(7, example, 0)
    assert redrawn(7, example, 3) != redrawn(7, example, 0)
    assert fixed(7, example, 0) != fixed(8, example, 0)


# whole trainings


@pytest.mark.deep
def test_alpha_zero_is_exactly_the_two_plain_trainings(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    train(recipe(task, tiny_backbone, tmp_path / "both", model=BI, partner=CROSS, alpha=0.0))
    train(recipe(task, tiny_backbone, tmp_path / "bi", model=BI))
    train(recipe(task, tiny_backbone, tmp_path / "cross", model=CROSS))
    for name, alone in (("retriever", "bi"), ("reranker", "cross")):
        assert curve(tmp_path / "both" / name) == curve(tmp_path / alone)
        assert weights(tmp_path / "both" / name) == weights(tmp_path / alone)


@pytest.mark.deep
def test_mutual_learning_moves_both_and_keeps_the_best_of_each(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    plan = recipe(
        task,
        tiny_backbone,
        tmp_path / "run",
        model=BI,
        partner=CROSS,
        epochs=4,
        lr=5e-3,
        dropout=0.0,
        evaluate_per_epoch=1,
    )
    results = train(plan)
    assert [r.network for r in results] == ["retriever", "reranker"]
    for result in results:
        checks = [valid["R@1"] for _, _, valid in curve(result.model.parent) if valid]
        assert result.fit.best["R@1"] == max(checks)
        load(result.model, device="cpu")
    assert results[0].fit.best["R@1"] > 2 / 12
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert train(plan, resume=True) == results  # finished: nothing to do


def test_a_frozen_partner_is_exactly_distillation(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    task = {"train": task["train"]}
    teacher = train(recipe(task, tiny_backbone, tmp_path / "teacher", model=CROSS, max_steps=1))[0].model
    mutual = recipe(task, tiny_backbone, tmp_path / "mutual", model=BI, partner=CROSS, dropout=0.0, alpha=2.0)
    assert mutual.reranker is not None
    frozen = dataclasses.replace(mutual.reranker.train, lr=0.0, weight_decay=0.0, init_from=str(teacher))
    said: list[str] = []
    pair = train(
        dataclasses.replace(mutual, reranker=dataclasses.replace(mutual.reranker, train=frozen)), notify=said.append
    )
    both = [load_model(one.model).model for one in pair]
    n_parameters = sum(weight.numel() for model in both for weight in model.parameters())
    assert f"seed 1: {n_parameters:,} parameters on cpu" in said
    alone = recipe(
        task,
        tiny_backbone,
        tmp_path / "alone",
        model=BI,
        method="distill",
        teacher=str(teacher),
        dropout=0.0,
        alpha=2.0,
    )
    train(alone)
    taught, distilled = (
        [loss for _, loss, _ in curve(tmp_path / name) if loss is not None] for name in ("mutual/retriever", "alone")
    )
    assert len(taught) == 4
    assert taught == pytest.approx(distilled, rel=1e-4)
    assert weights(tmp_path / "mutual" / "reranker") == weights(tmp_path / "teacher")  # it did not change


@pytest.mark.deep
@pytest.mark.parametrize(
    ("model", "partner"),
    [
        (PolyConfig(n_codes=2, code_init="near_zero"), CROSS),
        (BI, PolyConfig(n_codes=2, code_init="near_zero")),
    ],
)
def test_any_two_kinds(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path, model: Any, partner: Any) -> None:
    plan = recipe(task, tiny_backbone, tmp_path / "run", model=model, partner=partner, max_steps=2, dropout=0.0)
    for result in train(plan):
        assert all(np.isfinite(loss) for _, loss, _ in curve(result.model.parent) if loss is not None)
        scores = load(result.model, device="cpu").score([Context(("my wifi",))], [["wifi thanks", "bill"]])[0]
        assert np.isfinite(scores).all()


def train_aloud(plan: Recipe, said: Connection) -> None:
    """Train in a new process and report each step of each network."""
    torch.set_num_threads(1)
    train(plan, resume=True, report=lambda seed, row: said.send((row["step"], row["network"])))


def test_killed_and_resumed_equals_uninterrupted(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    def plan(name: str) -> Recipe:
        return recipe(
            task, tiny_backbone, tmp_path / name, model=BI, partner=CROSS, checkpoint_steps=5, schedule="plateau",
            evaluate_per_epoch=1, epochs=2, remine_epochs=1, remine_ranks=(1, 6),
        )  # fmt: skip

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train(plan("whole"))
        receiving, sending = Pipe(duplex=False)
        child = start(train_aloud, plan("killed"), sending)
        sending.close()
        while receiving.recv() != (7, "retriever"):  # in the middle of a step and of an epoch
            pass
        child.kill()
        child.join(60)
        assert child.exitcode == -signal.SIGKILL
        mined = tmp_path / "killed" / "mined-1.npy"
        kept = mined.read_bytes()
        mined.unlink()
        with pytest.raises(ArtifactError, match=r"mined-1\.npy is missing, and the weights"):
            train(plan("killed"), resume=True)
        mined.write_bytes(kept)
        train(plan("killed"), resume=True)
    finally:
        torch.set_num_threads(threads)
    for name in ("retriever", "reranker"):
        assert curve(tmp_path / "killed" / name) == curve(tmp_path / "whole" / name)
        assert weights(tmp_path / "killed" / name) == weights(tmp_path / "whole" / name)
    assert sorted(path.name for path in (tmp_path / "killed").glob("mined-*")) == ["mined-0.npy", "mined-1.npy"]


# a frozen teacher's scores


class Lengths:
    """A small real teacher that counts letters, and records its calls."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def score(self, contexts: Any, candidates: Any) -> list[np.ndarray]:
        self.asked += [text for texts in candidates for text in texts]
        return [np.array([len(text) / 3 for text in texts], np.float32) for texts in candidates]

    def score_pool(self, contexts: Any, pool: Any) -> np.ndarray:
        return np.stack(self.score(contexts, [pool] * len(contexts)))


def lists_of(*lists: list[str]) -> Lists:
    """Lists without tokens."""
    allowed = torch.tensor([[column < len(texts) for column in range(max(map(len, lists)))] for texts in lists])
    examples = [Example(("hi",), tuple(texts), (0,)) for texts in lists]
    keys = torch.zeros(allowed.shape, dtype=torch.int64)
    return Lists(examples, list(lists), allowed, share_of([[1]] * len(lists), pad_id=0), keys)


def test_a_teacher_scores_lists_that_repeat_once(tmp_path: Path) -> None:
    """A resumed training reads the scores of the first; a batch with an unknown list is scored as a whole."""
    scorer, file = Lengths(), tmp_path / "scores.npy"
    first, other = lists_of(["a", "bb"], ["ccc", "a", "bb"]), lists_of(["bb"])
    wanted = torch.tensor([[1, 2, 0], [3, 1, 2]]) / 3
    for _ in range(2):
        teacher = Teacher(scorer, file, n_examples=5, n_candidates=4)
        torch.testing.assert_close(teacher.scores([4, 0], first), wanted)
        assert len(scorer.asked) == 5
    torch.testing.assert_close(teacher.scores([0, 4], lists_of(*first.lists[::-1])), wanted.flip(0))
    assert len(scorer.asked) == 5
    torch.testing.assert_close(teacher.scores([2], other), torch.tensor([[2 / 3]]))
    teacher.scores([1, 0], first)
    assert len(scorer.asked) == 6 + 5


def test_a_teacher_of_lists_that_differ_keeps_no_scores(tmp_path: Path) -> None:
    scorer = Lengths()
    teacher = Teacher(scorer)
    for _ in range(2):
        torch.testing.assert_close(teacher.scores([0], lists_of(["a", "bbb"])), torch.tensor([[1 / 3, 1]]))
    assert len(scorer.asked) == 4


@pytest.mark.parametrize("content", [b"something else " * 100, b""])
def test_a_damaged_file_of_scores_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "scores.npy").write_bytes(content)
    with pytest.raises(ArtifactError, match=r"scores\.npy is damaged .*delete it"):
        Teacher(Lengths(), tmp_path / "scores.npy", n_examples=2, n_candidates=2)


def test_a_file_of_scores_of_other_examples_is_refused(tmp_path: Path) -> None:
    Teacher(Lengths(), tmp_path / "scores.npy", n_examples=2, n_candidates=2)
    with pytest.raises(ArtifactError, match=r"scores\.npy does not fit the examples; delete it"):
        Teacher(Lengths(), tmp_path / "scores.npy", n_examples=3, n_candidates=2)


@pytest.mark.deep
def test_distillation_scores_each_list_once_if_it_repeats(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    task = {"train": task["train"]}
    teacher = train(recipe(task, tiny_backbone, tmp_path / "teacher", model=CROSS, max_steps=1))[0].model
    changes: dict[str, Any] = {"method": "distill", "teacher": str(teacher), "dropout": 0.0}
    train(recipe(task, tiny_backbone, tmp_path / "a", model=BI, epochs=2, redraw=False, **changes))
    (file,) = (tmp_path / "a").glob("teacher-scores-*.npy")
    scores = np.load(file)
    assert scores.shape == (72, 4)
    assert np.isfinite(scores).all()
    plan = recipe(task, tiny_backbone, tmp_path / "a", model=BI, epochs=2, redraw=False, **changes)
    other = dataclasses.replace(plan, train=dataclasses.replace(plan.train, precision="bf16"))
    train(dataclasses.replace(other, output=str(tmp_path / "a")), overwrite=True)
    assert [*(tmp_path / "a").glob("teacher-scores-*.npy")] != [file]  # another precision has other scores
    train(recipe(task, tiny_backbone, tmp_path / "b", model=BI, redraw=False, label_weight=0.0, max_steps=1, **changes))
    assert curve(tmp_path / "a")[0][1] != curve(tmp_path / "b")[0][1]
    for name, negatives in (("c", {}), ("d", {"redraw": False, "remine_epochs": 1})):  # drawn or mined again
        train(recipe(task, tiny_backbone, tmp_path / name, model=BI, max_steps=1, **changes, **negatives))
        assert not [*(tmp_path / name).glob("teacher-scores-*")]


def test_with_a_label_weight_of_zero_only_the_teacher_counts(tiny_backbone: Path) -> None:
    step = make(tiny_backbone, BI)
    lists = step.lists(BATCH, 0)
    values, allowed = step.values(step.inputs(BATCH, lists))
    teacher = torch.tensor([[len(text) / 3 for text in row] for row in lists])
    loss = loss_of(DistillStep(step, Teacher(Lengths()), Imitation(label_weight=0.0)), BATCH)
    torch.testing.assert_close(loss, imitation(values, teacher, allowed, 3.0))
    plain = loss_of(DistillStep(step, Teacher(Lengths()), Imitation(alpha=0.0)), BATCH)
    torch.testing.assert_close(plain, cross_entropy(values, torch.zeros(2, dtype=torch.int64), allowed))


# recipes


def write_recipe(folder: Path, **changes: str) -> Path:
    parts = {
        "train": 'method.kind = "mutual"\nlr = 1e-3\nweight_decay = 0.5',
        "reranker": 'kind = "cross"\nhead = "mlp"',
        "reranker.train": "lr = 1e-4",
        "text": "max_candidate_tokens = 30",
        **changes,
    }
    body = "".join(f"[{name}]\n{lines}\n" for name, lines in parts.items() if lines != "none")
    path = folder / "recipe.toml"
    path.write_text(f'output = "run"\n[model]\nkind = "bi"\n[data]\ntrain = "train.jsonl"\n{body}', "utf-8")
    return path


def test_the_second_network_has_its_own_settings(tmp_path: Path) -> None:
    plan = load_recipe(write_recipe(tmp_path), ("reranker.train.dropout=0.3",))
    partner = plan.reranker
    assert partner is not None
    assert partner.model == CrossConfig(head="mlp")
    assert plan.text == TextPolicy(max_candidate_tokens=30)
    assert partner.train == network_settings(plan.train, lr=1e-4, dropout=0.3)
    assert recipe_from_dict(json.loads(json.dumps(recipe_to_dict(plan)))) == plan


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reranker.train": "batch_size = 3"}, "reranker.train.batch_size is common to both networks"),
        ({"reranker.train": "learning_rate = 3"}, 'unknown key "reranker.train.learning_rate"'),
        ({"reranker": 'kind = "crss"'}, "reranker.kind = 'crss' is not one of bi, poly, cross"),
        ({"reranker": 'kind = "cross"\nhaed = "mlp"'}, 'did you mean "reranker.head"'),
        ({"reranker": 'kind = "convert"'}, "reranker.kind = 'convert' is not one of bi, poly, cross"),
        ({"train": 'method.kind = "mutul"'}, "train.method.kind = 'mutul' is not one of"),
    ],
)
def test_mistakes_in_the_second_network_are_named(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe(write_recipe(tmp_path, **changes))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "mutual"}, r"the table \[reranker\] is the second"),
        ({"method": "distill"}, 'missing key "train.method.teacher"'),
        ({"teacher": "somewhere"}, 'key of kind "distill"'),
        ({"remine_epochs": 0}, "negatives.remine_epochs = 0 must be at least 1"),
        ({"temperature": 0.0}, 'key of kind "distill" or "mutual"'),
        ({"alpha": -1.0}, 'key of kind "distill" or "mutual"'),
        ({"remine_epochs": 1, "remine_ranks": (3,)}, "has 1 numbers; give 2"),
    ],
)
def test_methods_without_their_requirements_are_refused(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(recipe(task, tiny_backbone, tmp_path / "run", model=BI, **changes))


def test_a_cross_encoder_alone_cannot_mine(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a network that encodes"):
        train(recipe(task, tiny_backbone, tmp_path / "run", model=CROSS, remine_epochs=1))
