"""Training: it learns, is reproducible bit for bit, survives kills, and reports errors."""

import ctypes
import dataclasses
import json
import os
import platform
import resource
import signal
import time
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polyrank.config.checked import from_dict
from polyrank.config.methods import ListwiseMethod
from polyrank.config.models import BiConfig, CrossConfig, PolyConfig, TextPolicy
from polyrank.config.recipe import DataConfig, Recipe
from polyrank.config.train import NegativesConfig, TrainConfig
from polyrank.data import read_examples
from polyrank.devices.choice import cpu_has_int8
from polyrank.errors import ArtifactError, ConfigError, DataError, DivergedError, ResourceError, UsageError
from polyrank.evaluation import evaluate, summarise
from polyrank.loading.recipes import NetworkPlan, load_recipe
from polyrank.models import new_model
from polyrank.models.artifacts import load_model
from polyrank.models.backbone import load_backbone
from polyrank.models.losses import cross_entropy
from polyrank.negatives.random import GivenNegatives, MixedNegatives, RandomNegatives
from polyrank.records import Context, Example
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.in_int8 import read_record
from polyrank.scorers.load import make_scorer
from polyrank.scorers.open import load
from polyrank.training import InBatchStep, ListwiseStep, train
from polyrank.training.fitting import ExampleOrder, check_steps
from polyrank.training.methods import make_negatives, make_step
from polyrank.training.optimizer import make_optimizer
from polyrank.training.ranker import Ranker, distinct_texts, make_learner, new_ranker, own_texts, validation_figures
from polyrank.training.signals import stop_on_signals
from processes import join, run, start
from train_settings import loss_of, toy_recipe, train_config

POLICY = TextPolicy(max_context_tokens=24, max_candidate_tokens=8)
CPU = torch.device("cpu")


def recipe(task: dict[str, Path], backbone: Path, output: Path, model: Any = None, **changes: Any) -> Recipe:
    settings: dict[str, Any] = {
        "batch_size": 8, "epochs": 2, "lr": 1e-3, "warmup_steps": 2, "schedule": "linear", "train_layers": "all",
        "precision": "fp32", **changes,
    }  # fmt: skip
    model = model or PolyConfig(n_codes=3, code_init="near_zero")
    return toy_recipe(task, output, dataclasses.replace(model, backbone=str(backbone)), **settings)


def plan_of(model: BiConfig, settings: TrainConfig) -> NetworkPlan:
    return NetworkPlan(name="", model=model, text=POLICY, train=settings, start=None)


def losses(folder: Path) -> list[Any]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [(r["step"], r.get("loss"), r.get("valid")) for r in records]


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


@pytest.mark.deep
@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (
            BiConfig(reduction="mean", shared_towers=True, projection_dim=16),
            {"optimizer": "adamax", "batch_size": 12, "lr": 5e-3},
        ),
        (
            PolyConfig(n_codes=4, code_init="near_zero", reduction="mean"),
            {"batch_size": 12, "epochs": 4, "lr": 3e-3},
        ),
        (CrossConfig(), {"method": "listwise", "n_negatives": 3, "epochs": 12, "lr": 2e-3}),
    ],
)
def test_each_kind_learns_the_toy_task(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path, model: Any, changes: dict[str, Any]
) -> None:
    result = train(recipe(task, tiny_backbone, tmp_path / "run", model, dropout=0.0, **changes))[0]
    assert result.fit.best["R@1"] > 2 / 12  # chance is 1/12
    first, last = losses(tmp_path / "run")[0][1], [loss for _, loss, _ in losses(tmp_path / "run") if loss][-1]
    assert last < first
    loaded = load(result.model, device="cpu", precision="fp32")
    valid = read_examples(task["valid"]).examples
    hits = [
        int(np.argmax(values)) == example.relevant[0]
        for example, values in zip(
            valid, loaded.score([e.query for e in valid], [e.candidates for e in valid]), strict=True
        )
    ]
    assert np.mean(hits) == pytest.approx(result.fit.best["R@1"])


def test_two_runs_are_bit_equal_and_seeds_differ(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    train(recipe(task, tiny_backbone, tmp_path / "a", batch_size=24))
    plan, said = recipe(task, tiny_backbone, tmp_path / "seeds", batch_size=24, seeds=(1, 2)), list[str]()
    reported: dict[int, list[Any]] = {1: [], 2: []}
    results = train(
        plan,
        report=lambda seed, r: reported[seed].append((r["step"], r.get("loss"), r.get("valid"))),
        notify=said.append,
    )
    assert [r.seed for r in results] == [1, 2]
    assert {read_record(result.model) is not None for result in results} == {cpu_has_int8()}
    kept = [load_model(result.model) for result in results]
    assert [model.metadata["seed"] for model in kept] == [1, 2]
    assert [model.metadata["recipe"]["train"]["batch_size"] for model in kept] == [24, 24]
    n_weights = sum(parameter.numel() for parameter in kept[0].model.parameters())
    for seed in (1, 2):
        assert reported[seed] == losses(tmp_path / "seeds" / f"seed-{seed}")
        assert any(line.startswith(f"seed {seed}: {n_weights:,} parameters on ") for line in said)
    assert losses(tmp_path / "seeds" / "seed-1") == losses(tmp_path / "a")
    assert weights(tmp_path / "seeds" / "seed-1") == weights(tmp_path / "a")
    assert weights(tmp_path / "seeds" / "seed-2") != weights(tmp_path / "a")


def train_aloud(plan: Recipe, said: Connection) -> None:
    """Train in a new process and report each step."""
    torch.set_num_threads(1)
    train(plan, resume=True, report=lambda seed, row: said.send(row["step"]))


@pytest.mark.deep
def test_killed_and_resumed_equals_uninterrupted(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    def plan(name: str) -> Recipe:
        return recipe(
            task, tiny_backbone, tmp_path / name, checkpoint_steps=2, schedule="plateau", dropout=0.1, epochs=3
        )

    torch.set_num_threads(1)
    train(plan("whole"))
    receiving, sending = Pipe(duplex=False)
    child = start(train_aloud, plan("killed"), sending)
    sending.close()
    with suppress(EOFError):
        while receiving.recv() < 9:
            pass
        child.kill()
    child.join(120)
    assert child.exitcode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "result.json").exists()
    train(plan("killed"), resume=True)
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")


@pytest.mark.deep
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_first_signal_saves_and_prints_how_to_resume(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path, number: int, code: int
) -> None:
    write_recipe(task, tiny_backbone, tmp_path, epochs=500, extra="checkpoint_steps = 1")
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"

    def interrupt(child: BaseProcess) -> None:
        deadline = time.monotonic() + 300
        while not checkpoint.exists():
            assert child.exitcode is None
            assert time.monotonic() < deadline
            os.sched_yield()
        assert child.pid is not None
        os.kill(child.pid, number)

    done = run("train", tmp_path / "recipe.toml", meanwhile=interrupt)
    talk = done.stderr
    assert done.returncode == code
    assert "--resume" in talk
    assert "error: " not in talk
    assert "Traceback" not in talk
    assert checkpoint.exists()


def raise_twice(first: int, second: int) -> None:
    """Runs in a new process, which the second signal ends."""
    with stop_on_signals():
        signal.raise_signal(first)
        signal.raise_signal(second)


@pytest.mark.deep
@pytest.mark.parametrize("order", [(signal.SIGTERM, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)])
def test_a_second_signal_ends_at_once(order: tuple[int, int]) -> None:
    child = start(raise_twice, *order)
    child.join(60)
    assert child.exitcode == 128 + order[1]


def write_recipe(task: dict[str, Path], backbone: Path, folder: Path, epochs: int = 1, extra: str = "") -> Path:
    path = folder / "recipe.toml"
    path.write_text(
        f'output = "run"\n[model]\nkind = "bi"\nbackbone = "{backbone}"\n[text]\nmax_context_tokens = 24\n'
        f'max_candidate_tokens = 8\n[data]\ntrain = "{task["train"]}"\nvalid = "{task["valid"]}"\n'
        f"[train]\nepochs = {epochs}\nbatch_size = 8\n{extra}\n",
        "utf-8",
    )
    return path


def test_damaged_checkpoints_are_refused(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    plan = recipe({"train": task["train"]}, tiny_backbone, tmp_path / "run", max_steps=1)
    train(plan)
    (tmp_path / "run" / "result.json").unlink()
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(ArtifactError, match=r"checkpoint\.safetensors is damaged"):
        train(plan, resume=True)


@pytest.mark.deep
def test_early_stopping_works_after_a_kill(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    still: dict[str, Any] = {"batch_size": 24, "epochs": 9, "lr": 0.0}
    plan = recipe(task, tiny_backbone, tmp_path / "run", **still, evaluate_per_epoch=3, early_stopping=2)
    assert train(plan)[0].fit.n_steps == 3  # the first of three validations is the best
    before = losses(tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()  # as after a kill just before it was written
    assert train(plan, resume=True)[0].fit.n_steps == 3
    assert losses(tmp_path / "run") == before


def test_an_earlier_run_is_not_overwritten_without_the_option(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    plan = recipe({"train": task["train"]}, tiny_backbone, tmp_path / "run", max_steps=1)
    train(plan)
    with pytest.raises(UsageError, match="resume=True"):
        train(plan)
    changed = dataclasses.replace(plan, train=dataclasses.replace(plan.train, lr=1.0))
    for overwrite in (False, True):  # with both options, the run is resumed
        with pytest.raises(ConfigError, match="differs"):
            train(changed, resume=True, overwrite=overwrite)
    assert train(plan, resume=True)[0].fit.n_steps > 0  # finished: nothing to do
    train(plan, overwrite=True)


def test_repeated_nan_losses_end_the_training_with_an_error(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    model = BiConfig(reduction="mean", output_scale=1e38)
    plan = recipe(task, tiny_backbone, tmp_path / "run", model, epochs=9)
    with pytest.raises(DivergedError, match="11 steps in a row, more than 10; no checkpoint was saved yet"):
        train(plan)


@pytest.mark.parametrize("change", ["train.lr=1e30", "model.output_scale=1e30"])
def test_no_model_with_nan_losses_is_kept(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path, change: str
) -> None:
    path = write_recipe(
        task, tiny_backbone, tmp_path, epochs=2, extra="schedule.warmup_steps = 0\ncheckpoint_steps = 1"
    )
    with pytest.raises(DivergedError, match=r"not finite for \d+ steps|no loss was finite"):
        train(load_recipe(path, (change, "train.precision=fp32")))
    kept = tmp_path / "run" / "model"
    if kept.exists():
        assert all(torch.isfinite(tensor).all() for tensor in load_model(kept).model.state_dict().values())
    text = (tmp_path / "run" / "metrics.jsonl").read_text("utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    assert all(row["valid"]["loss"] is None for row in rows if "valid" in row)
    assert "NaN" not in text
    assert "Infinity" not in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train.lr=nan", "train.lr = nan is not finite"),
        ("train.lr=-1", "train.lr = -1.0 must be at least 0"),
        ("train.batch_size=0", "train.batch_size = 0 must be at least 1"),
        ("train.epochs=0", "train.epochs = 0 must be at least 1"),
        ("train.max_steps=0", "train.max_steps = 0 must be at least 1"),
        ("train.seeds=[-1]", "train.seeds = -1 must be at least 0"),
        ("train.dropout=1.5", "train.dropout = 1.5 is outside 0 to 1"),
        ("train.schedule.warmup_steps=" + "9" * 400, "more than 64 bits"),
        ("data.max_train=-1", "data.max_train = -1 must be at least 1"),
        ("model.projection_dim=0", "model.projection_dim = 0 must be at least 1"),
        ("text.max_background_tokens=-4", "text.max_background_tokens = -4 must be at least 0"),
        ("output=3", "output = 3 is not a folder"),
    ],
)
def test_impossible_numbers_are_named(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path, change: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe(write_recipe(task, tiny_backbone, tmp_path), (change,))
    assert message in str(caught.value)


@pytest.mark.parametrize("layers", ["top-1", "all_but_embeddings", "all"])
def test_only_the_requested_layers_train(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path, layers: str
) -> None:
    from polyrank.models.artifacts import load_model

    changes: dict[str, Any] = {"max_steps": 1, "warmup_steps": 0, "train_layers": layers}
    plan = recipe({"train": task["train"]}, tiny_backbone, tmp_path / "run", BiConfig(reduction="mean"), **changes)
    fresh, _, _ = new_model(plan.model, POLICY, seed=1, sample=["thanks"])
    before = dict(fresh.named_parameters())
    moved = {
        name
        for name, p in load_model(train(plan)[0].model).model.named_parameters()
        if not torch.equal(p.detach(), before[name].detach())
    }
    words = {name for name in moved if "word_embeddings" in name}
    lower = {name for name in moved if "layer.0." in name}
    assert {name for name in moved if "layer.1." in name}
    assert bool(words) == (layers == "all")
    assert bool(lower) == (layers != "top-1")


def test_in_batch_loss_equals_its_formula_with_right_answers_masked(tiny_backbone: Path) -> None:
    from polyrank.models.scoring import scores

    model, texts, _ = new_model(BiConfig(backbone=str(tiny_backbone), reduction="mean"), POLICY, seed=1, sample=["hi"])
    model.eval()
    examples = [
        Example(("my wifi",), ("thanks",), (0,)),
        Example(("hello",), ("thanks",), (0,)),
        Example(("the bill",), ("too high",), (0,)),
        Example(("red light",), ("restart it", "did that"), (0,)),  # one given negative
        # three right answers, one given negative; the third answer is not a column
        Example(("the light",), ("please", "too high", "did that", "red light"), (0, 2, 3)),
    ]
    loss = loss_of(InBatchStep(model, texts, CPU, negatives=GivenNegatives(9, 1)), list(enumerate(examples)))  # type: ignore[arg-type]
    columns = ["thanks", "thanks", "too high", "restart it", "please", "did that"]
    right = [{"thanks"}, {"thanks"}, {"too high"}, {"restart it"}, {"please", "did that"}]
    vectors, mask = model.encode_contexts(texts.contexts([e.query for e in examples]))  # type: ignore[operator]
    values = scores(vectors, model.encode_candidates(texts.candidates(columns))[None], mask)  # type: ignore[operator]
    expected = []
    for i, own in enumerate(right):
        others = [j for j, text in enumerate(columns) if text not in own]
        expected.append(torch.logsumexp(values[i, [i, *others]], 0) - values[i, i])
    torch.testing.assert_close(loss, torch.stack(expected).mean(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("negatives", "n_columns"),
    [
        (None, 4),  # only the batch's other responses
        (NegativesConfig(sources=("given",), n=99), 4 + 4 * 99),
        (NegativesConfig(sources=("given",), n=5), 4 + 4 * 5),
        (NegativesConfig(sources=("random",), n=3), 8),  # of 8 responses in all
    ],
)
def test_the_recipe_selects_a_batchs_negatives(tiny_backbone: Path, negatives: Any, n_columns: int) -> None:
    """A file of lists of 100 in batches of 4: 4 x 4 scores unless the recipe requests more."""
    model, texts, _ = new_model(
        BiConfig(backbone=str(tiny_backbone), shared_towers=False), POLICY, seed=1, sample=["hi"]
    )
    data = [
        Example((f"hi {i}",), (f"reply {i}", *(f"option {i} {j}" for j in range(99))), (0,), str(i)) for i in range(8)
    ]
    ranker = Ranker(model, texts, make_scorer(model, texts), save=lambda path, metadata: None)
    settings = TrainConfig(batch_size=4, negatives=negatives)
    step = make_step([ranker], settings, data, device=CPU, seed=1, folder=Path())
    sizes: list[int] = []
    model.candidate_tower.register_forward_hook(lambda _, args, out: sizes.append(len(out)))  # type: ignore[operator, union-attr]
    loss_of(step, list(enumerate(data[:4])))
    n = sum(sizes)  # in one group of texts of similar length or in several
    assert n == n_columns or (negatives and negatives.sources == ("random",) and 4 < n <= n_columns)
    if negatives is not None:
        assert isinstance(step, InBatchStep)
        found = step.prepare([(5, data[5]), (2, data[2])], 3).columns
        wanted = make_negatives([], negatives, data, seed=1, folder=Path())
        assert found == [*dict.fromkeys(["reply 5", "reply 2", *wanted(5, data[5], 3), *wanted(2, data[2], 3)])]
        for seed in (1, 2):
            lists = TrainConfig(method=ListwiseMethod(), batch_size=4, negatives=negatives)
            step = make_step([ranker], lists, data, device=CPU, seed=seed, folder=Path())
            wanted = make_negatives([], negatives, data, seed=seed, folder=Path())
            assert isinstance(step, ListwiseStep)
            assert step.lists([(5, data[5])], 3) == [["reply 5", *wanted(5, data[5], 3)]]


@pytest.mark.parametrize("sources", [("given",), ("random",), ("given", "random"), ("random", "given")])
def test_negatives_follow_every_setting_of_the_recipe(sources: Any, tmp_path: Path) -> None:
    """Number, seed and redrawing, whatever their source; no right answer to the context is among them."""
    wrong = [f"wrong {n}" for n in range(40)]
    first = Example(("hi",), ("hello", "hey", *wrong), (0,))
    data = [first, Example(("hi",), ("hey",), (0,)), *(Example((f"ask {n}",), (f"said {n}",), (0,)) for n in range(40))]

    def lists(*, seed: int = 1, **changes: Any) -> list[list[str]]:
        settings = NegativesConfig(sources=sources, **{"n": 6, **changes})
        return [make_negatives([], settings, data, seed=seed, folder=tmp_path)(0, first, epoch) for epoch in range(3)]

    texts_of = {"given": wrong, "random": [f"said {n}" for n in range(40)]}
    allowed = {text for source in sources for text in texts_of[source]}
    for n in (1, 6, 9):
        assert all(len(row) == len({*row} & allowed) == n for row in lists(n=n))
    assert all({*row} <= {*texts_of[sources[0]]} for row in lists())  # the first source has enough
    drawn, fixed = lists(), lists(redraw=False)
    assert len({*map(tuple, drawn)}) == 3
    assert fixed == [drawn[0]] * 3
    assert lists() == drawn
    assert lists(seed=2, redraw=False)[0] != drawn[0]


def test_given_negatives_need_lists(tiny_backbone: Path, tmp_path: Path) -> None:
    settings = NegativesConfig(sources=("given",))
    with pytest.raises(DataError, match='has no other source; add "random"'):
        make_negatives([], settings, [Example(("hi",), ("hello",), (0,))], seed=1, folder=tmp_path)
    few = [Example(("hi",), ("hello", "bye"), (0,)), Example(("so",), ("what",), (0,))]
    found = make_negatives([], settings, few, seed=1, folder=tmp_path)
    assert [found(i, example, 0) for i, example in enumerate(few)] == [["bye"], []]


def test_unused_given_candidates_are_reported(tiny_backbone: Path, tmp_path: Path, write_rows: Any) -> None:
    rows = [
        {"context": [f"hi {i}"], "candidates": [f"thanks {i}", "no"][: 2 - i // 2], "relevant": [0]} for i in range(3)
    ]
    task = {"train": write_rows("lists.jsonl", rows)}
    for number, changes in enumerate(({}, {"negatives": {"sources": ["given"]}})):
        said: list[str] = []
        plan = recipe(task, tiny_backbone, tmp_path / str(number), epochs=1)
        train(dataclasses.replace(plan, train=from_dict(TrainConfig, changes, "train", plan.train)), notify=said.append)
        assert any("2 of 3 training examples come with wrong candidates" in line for line in said) == (not changes)


def test_another_pairs_right_answer_to_the_context_is_not_a_negative(tiny_backbone: Path) -> None:
    """Two pairs of one context in a batch: neither response is a negative for it, nor is a third pair's response."""
    from polyrank.models.scoring import scores

    model, texts, _ = new_model(BiConfig(backbone=str(tiny_backbone), reduction="mean"), POLICY, seed=1, sample=["hi"])
    model.eval()
    data = [
        Example(("hi",), ("hello",), (0,)),
        Example(("hi",), ("thanks",), (0,)),
        Example(("the bill",), ("too high",), (0,)),
        Example(("hi",), ("too high",), (0,)),  # in another batch
        Example(("hi",), ("please",), (0,), background=("old",)),  # another context
        Example(("red light",), ("restart it", "thanks"), (0,)),  # a given negative counts only where it is wrong
    ]
    batch = [(i, data[i]) for i in (0, 1, 2, 4, 5)]
    columns = ["hello", "thanks", "too high", "please", "restart it"]
    wrong = [[3, 4], [3, 4], [0, 1, 3, 4], [0, 1, 2, 4], [0, 1, 2, 3]]
    vectors, mask = model.encode_contexts(texts.contexts([e.query for _, e in batch]))  # type: ignore[operator]
    values = scores(vectors, model.encode_candidates(texts.candidates(columns))[None], mask)  # type: ignore[operator]
    losses = [torch.logsumexp(values[i, [i, *others]], 0) - values[i, i] for i, others in enumerate(wrong)]
    ranker = Ranker(model, texts, make_scorer(model, texts), save=lambda path, metadata: None)
    settings = TrainConfig(negatives=NegativesConfig(sources=("given",)))
    step = make_step([ranker], settings, data, device=CPU, seed=1, folder=Path())
    torch.testing.assert_close(loss_of(step, batch), torch.stack(losses).mean(), atol=1e-5, rtol=1e-5)
    make_step([ranker], TrainConfig(), [data[0], data[4]], device=CPU, seed=1, folder=Path())  # two contexts


def test_in_batch_smoothing_is_over_the_wrong_columns(tiny_backbone: Path) -> None:
    from polyrank.models.scoring import scores

    model, texts, _ = new_model(BiConfig(backbone=str(tiny_backbone), reduction="mean"), POLICY, seed=1, sample=["hi"])
    model.eval()
    replies = ["thanks", "too high", "restart it"]
    examples = [Example((text,), (reply,), (0,)) for text, reply in zip(("hi", "bill", "red"), replies, strict=True)]
    step = InBatchStep(model, texts, CPU, partial(cross_entropy, smoothing=0.3))  # type: ignore[arg-type]
    with torch.no_grad():
        loss = loss_of(step, list(enumerate(examples)))
        vectors, mask = model.encode_contexts(texts.contexts([e.query for e in examples]))  # type: ignore[operator]
        logs = scores(vectors, model.encode_candidates(texts.candidates(replies))[None], mask).log_softmax(1)  # type: ignore[operator]
    own = logs.diagonal()
    torch.testing.assert_close(loss, -(0.7 * own + 0.3 * (logs.sum(1) - own) / 2).mean())


def test_a_pool_needs_one_more_response_than_negatives(tiny_backbone: Path, tmp_path: Path) -> None:
    settings = train_config(precision="fp32", method="listwise", n_negatives=3)
    examples = [Example((f"hi {i}",), (f"reply {i}",), (0,)) for i in range(4)]
    model = BiConfig(backbone=str(tiny_backbone))
    ranker = new_ranker(plan_of(model, settings), examples, precision="fp32", seed=1, device=CPU)
    assert settings.negatives is not None
    negatives = make_negatives([ranker], settings.negatives, examples, seed=1, folder=tmp_path)
    assert sorted(negatives(1, examples[1], 0)) == ["reply 0", "reply 2", "reply 3"]
    twice = [*examples, Example(("again",), ("reply 0",), (0,))]
    with pytest.raises(DataError, match="4 distinct responses are too few to draw 4"):
        make_negatives([ranker], dataclasses.replace(settings.negatives, n=4), twice, seed=1, folder=tmp_path)


def test_validation_and_saving_use_the_current_weights(tiny_backbone: Path, tmp_path: Path) -> None:
    """Weights have changed since the last validation, so its candidate vectors must not be reused."""
    examples = [Example((f"my {word}",), ("wifi", "bill", "router"), (i,)) for i, word in enumerate(("bill", "red"))]
    config = BiConfig(backbone=str(tiny_backbone), reduction="mean", shared_towers=True, projection_dim=16)
    settings, metadata = TrainConfig(dropout=0.3, new_dropout=0.4), {"seed": 4}
    ranker = new_ranker(plan_of(config, settings), examples, precision="fp32", seed=1, device=CPU)
    assert {module.p for module in ranker.model.modules() if isinstance(module, torch.nn.Dropout)} == {0.3}
    assert ranker.model.context_tower.dropout == 0.4  # type: ignore[union-attr]  # before the projection
    assert [ranker.length(example) for example in examples] == [4, 4]  # with both special tokens
    reported: list[Any] = []
    learner = make_learner(
        ranker,
        settings,
        tmp_path / "deep" / "run",
        examples,
        metadata=metadata,
        report=reported.append,
        name="reranker",
    )
    assert (learner.name, learner.folder, learner.settings) == ("reranker", tmp_path / "deep" / "run", settings)
    assert learner.model is ranker.model
    assert learner.report == reported.append
    assert learner.evaluate is not None
    before = learner.evaluate()
    with torch.no_grad():
        for parameter in ranker.model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    after = learner.evaluate()
    assert after["loss"] != before["loss"]
    for figures in (before, after):  # the later file replaces the earlier one
        learner.save_best(dict(figures))
    kept = load_model(tmp_path / "deep" / "run" / "model")
    assert kept.metadata == {"seed": 4, "validation": after}
    again = validation_figures(load(tmp_path / "deep" / "run" / "model", device="cpu", precision="fp32"), examples)
    assert again["loss"] == pytest.approx(after["loss"], rel=1e-5)
    alone = make_learner(ranker, settings, tmp_path / "b", [], metadata=metadata, report=reported.append)
    assert (alone.name, alone.evaluate) == ("", None)


def test_texts_are_distinct_and_in_order_of_appearance() -> None:
    examples = [Example(("a", "b"), ("c", "a"), (0,), background=("d",)), Example(("b", "e"), ("f",), (0,))]
    assert list(distinct_texts(examples)) == ["a", "b", "c", "d", "e", "f"]
    examples.append(Example(("b",), ("x", "c", "g"), (1, 2)))  # two right answers, of which the first is the response
    assert list(own_texts(examples)) == ["b", "c", "e", "f", "b", "c", "a", "d", "x", "g"]


def test_given_negatives_need_no_pool(tiny_backbone: Path, tmp_path: Path, write_rows: Any) -> None:
    wrong = ["did that", "please", "too high"]
    rows = [{"context": [text], "candidates": ["thanks", *wrong], "relevant": [0]} for text in ("hi", "hello")]
    task = {"train": write_rows("faq.jsonl", rows), "valid": write_rows("valid.jsonl", rows)}
    plan = recipe(task, tiny_backbone, tmp_path / "run", CrossConfig(), method="listwise", n_negatives=3, epochs=1)
    train(plan)
    more = dataclasses.replace(plan, train=train_config(plan.train, n_negatives=4), output=str(tmp_path / "2"))
    with pytest.raises(DataError, match="1 distinct responses are too few to draw 4"):
        train(more)
    task["train"] = write_rows("some.jsonl", [*rows, {**rows[0], "candidates": ["thanks", "please"]}])
    some = recipe(task, tiny_backbone, tmp_path / "3", CrossConfig(), method="listwise", n_negatives=3, epochs=1)
    with pytest.raises(DataError, match="1 distinct responses are too few to draw 3"):
        train(some)


def test_validation_loss_equals_the_training_loss(tiny_backbone: Path) -> None:
    model, texts, _ = new_model(BiConfig(backbone=str(tiny_backbone)), POLICY, seed=1, sample=["hi"])
    scorer = EncoderScorer(model, texts)  # type: ignore[arg-type]
    candidates = ("too high", "thanks", "please", "thanks", "did that")
    found = validation_figures(scorer, [Example(("hi",), candidates, (1, 2))])
    values = torch.from_numpy(scorer.score([Context(("hi",))], [candidates])[0])
    expected = torch.logsumexp(values[[0, 1, 4]], 0) - values[1]  # neither a right answer nor its copy is a negative
    assert found["loss"] == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("optimizer", ["adamw", "adamax"])
def test_decay_spares_codes_biases_and_all_under_adamax(tiny_backbone: Path, optimizer: Any) -> None:
    config = PolyConfig(backbone=str(tiny_backbone), n_codes=3, code_init="near_zero")
    model = new_model(config, POLICY, seed=1, sample=["hi"])[0]
    groups = make_optimizer(model, train_config(optimizer=optimizer, lr=1e-4)).param_groups
    found = {(group["lr"], group["weight_decay"]): len(group["params"]) for group in groups}
    assert found[25e-4, 0.0] == 1  # the codes, which start near zero
    assert ((1e-4, 0.01) in found) == (optimizer == "adamw")
    papers = dataclasses.replace(config, code_init="uniform")
    model = new_model(papers, POLICY, seed=1, sample=["hi"])[0]
    groups = make_optimizer(model, train_config(optimizer=optimizer, lr=1e-4)).param_groups
    assert {group["lr"] for group in groups} == {1e-4}


def test_new_tokens_differ(tiny_backbone: Path) -> None:
    policy = dataclasses.replace(POLICY, new_tokens=("[EOT]", "[USR]"))
    tables = []
    for _ in range(2):
        model, texts, _ = new_model(BiConfig(backbone=str(tiny_backbone)), policy, seed=1, sample=["hi"])
        tables.append(model.backbone.embeddings().weight.detach())  # type: ignore[union-attr, arg-type]
        ids = [texts.subwords.tokenizer.token_to_id(token) for token in policy.new_tokens]  # type: ignore[union-attr]
    assert torch.equal(*tables)
    new, old = tables[0][ids], tables[0][: min(ids)]
    assert not torch.allclose(new[0], new[1])
    assert float(new.norm(dim=1).mean()) == pytest.approx(float(old.norm(dim=1).mean()), rel=0.5)


@pytest.mark.parametrize("kind", ["distilbert", "electra", "roberta"])
def test_dropout_is_set_under_any_name(tmp_path: Path, kind: str) -> None:
    from transformers import AutoConfig, AutoModel

    sizes = {"dim": 32, "n_heads": 2, "n_layers": 1, "hidden_dim": 64} if kind == "distilbert" else {
        "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 64,
    }  # fmt: skip
    AutoModel.from_config(AutoConfig.for_model(kind, vocab_size=50, **sizes)).save_pretrained(tmp_path)
    rates = {module.p for module in load_backbone(tmp_path, 0.0).modules() if isinstance(module, torch.nn.Dropout)}
    assert rates == {0.0}


def test_negatives_are_redrawn_each_epoch_and_never_right(tiny_backbone: Path) -> None:
    model, texts, _ = new_model(CrossConfig(backbone=str(tiny_backbone)), POLICY, seed=1, sample=[])
    pool = [f"reply {i}" for i in range(50)]
    drawn = RandomNegatives(pool, 9, seed=7)
    step = ListwiseStep(model, texts, CPU, MixedNegatives([GivenNegatives(9, 7), drawn], 9))
    example = Example(("hi",), ("reply 3", "given wrong"), (0,))
    lists = [step.lists([(4, example)], epoch)[0] for epoch in (0, 1)]
    assert lists[0] != lists[1]
    assert lists[0] == step.lists([(4, example)], 0)[0]
    for found in lists:
        assert found[:2] == ["reply 3", "given wrong"]
        assert len(set(found)) == 10


def test_validations_happen_at_the_right_steps() -> None:
    assert sorted(check_steps(5, 10, 2)) == [5]
    assert sorted(check_steps(20, 10, 2)) == [5, 10, 15, 20]
    assert sorted(check_steps(7, 3, 1)) == [3, 6, 7]
    examples = [Example(("hi",), (f"answer {i}",), (0,)) for i in range(14)]
    for batch_size, epochs, each, reached in (
        (4, 2, 4, [n / 4 for n in range(1, 9)]),
        (2, 1, 3, [None, 0.2857, None, None, 0.7143, None, 1.0]),
    ):
        settings = train_config(batch_size=batch_size, epochs=epochs, evaluate_per_epoch=each)
        order = ExampleOrder(examples, lambda example: 1, settings, seed=1)
        assert [(order.check(done) or {}).get("epoch") for done in range(1, 1 + len(reached))] == reached


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train.learning_rate=1", 'unknown key "train.learning_rate"'),
        ("train.max_stepz=1", 'did you mean "train.max_steps"'),
        ("train.batch_size=big", "it must be int"),
        ("model.kind=poli", "is not one of bi, poly, cross"),
        ("train.optimizer=sgd", "is not one of 'adamw', 'adamax'"),
        ("trian.lr=1", 'did you mean "train"'),
        ("train.lr", "is not KEY=VALUE"),
    ],
)
def test_recipe_mistakes_are_named(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path, change: str, message: str
) -> None:
    path = write_recipe(task, tiny_backbone, tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_recipe(path, (change,))
    assert message in str(caught.value)


def test_cross_encoders_need_listwise_and_data_needs_answers(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path, write_rows: Any
) -> None:
    with pytest.raises(ConfigError, match="listwise"):
        train(recipe(task, tiny_backbone, tmp_path / "run", CrossConfig()))
    empty = write_rows("none.jsonl", [{"context": ["hi"], "candidates": ["a", "b"], "relevant": []}])
    with pytest.raises(DataError, match="no example has the text of a right answer"):
        train(recipe({**task, "train": empty}, tiny_backbone, tmp_path / "run"))


def test_a_poly_encoder_starts_from_a_bi_encoder(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    first = BiConfig(reduction="mean", output_scale=2.0)
    bi = train(recipe(task, tiny_backbone, tmp_path / "bi", first, max_steps=3))[0]
    start_from = recipe(
        task, tiny_backbone, tmp_path / "poly",
        PolyConfig(n_codes=3, code_init="near_zero", reduction="mean"),
        init_from=str(bi.model), max_steps=1, lr=0.0, weight_decay=0.0,
    )  # fmt: skip
    poly = train(start_from)[0]
    valid = read_examples(task["valid"]).examples
    contexts, lists = [e.query for e in valid], [e.candidates for e in valid]
    a = load(bi.model, precision="fp32", device="cpu").score(contexts, lists)
    scorer = load(poly.model, precision="fp32", device="cpu")
    near = np.stack(scorer.score(contexts, lists))
    np.testing.assert_allclose(np.stack(a), near, rtol=0.05)
    assert isinstance(scorer, EncoderScorer)
    scorer.model.codes.data.zero_()  # type: ignore[operator, union-attr]  # a PolyEncoder's
    np.testing.assert_allclose(np.stack(a), np.stack(scorer.score(contexts, lists)), rtol=1e-4)  # which give the mean


@pytest.mark.deep
@pytest.mark.parametrize(("first", "second"), [(BiConfig(), CrossConfig()), (CrossConfig(), PolyConfig(n_codes=3))])
def test_encoders_and_cross_encoders_start_from_each_others_transformer(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path, first: Any, second: Any
) -> None:
    still: dict[str, Any] = {"method": "listwise", "n_negatives": 2, "max_steps": 1, "weight_decay": 0.0}
    start = train(recipe(task, tiny_backbone, tmp_path / "first", first, warmup_steps=0, **still))[0].model
    plan = recipe(task, tiny_backbone, tmp_path / "second", second, lr=0.0, init_from=str(start), **still)
    before, after = (load_model(folder).model.state_dict() for folder in (start, train(plan)[0].model))
    same = [
        torch.equal(after[name], before[source])
        for name in after
        for source in before
        if name.split("backbone.")[1:] == source.split("backbone.")[1:] != [] and "candidate" not in source
    ]
    assert len(same) >= 20
    assert all(same)
    fresh = new_model(plan.model, POLICY, seed=1, sample=["hello"])[0].state_dict()
    assert any(not torch.equal(fresh[name], after[name]) for name in after if "backbone." in name)


@pytest.mark.deep
def test_a_second_training_starts_where_the_first_ended(
    mean_pooled_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    table = f'output = "run"\n[model]\nkind = "bi"\nbackbone = "{mean_pooled_backbone}"\n'
    table += f'[data]\ntrain = "{task["train"]}"\n'
    place = tmp_path / "recipe.toml"
    text = "[text]\nmax_context_tokens = 24\nmax_candidate_tokens = 8\n"
    place.write_text(f"{table}{text}[train]\nmax_steps = 2\n", "utf-8")
    first = train(load_recipe(place))[0].model
    scale = json.loads((first / "config.json").read_bytes())["model"]["output_scale"]
    place.write_text(f'{table}[train]\nlr = 0.0\nmax_steps = 1\ninit_from = "{first}"\n', "utf-8")
    again = load_recipe(place, (f'output="{tmp_path}/again"',))
    assert isinstance(again.model, BiConfig)
    assert (again.model.output_scale, again.model.match_self_score) == (scale, None)
    assert again.text == POLICY
    assert weights(train(again)[0].model.parent) == weights(first.parent)
    other = load_recipe(place, ("model.match_self_score=5.0",)).model
    assert isinstance(other, BiConfig)
    assert (other.output_scale, other.match_self_score) == (None, 5.0)
    cosine = load_recipe(place, ("model.normalize=true", f'output="{tmp_path}/cosine"'))
    assert isinstance(cosine.model, BiConfig)
    assert (cosine.model.output_scale, cosine.model.match_self_score) == (None, 20.0)
    of_one_length = train(cosine)[0].model
    assert weights(of_one_length.parent) == weights(first.parent)
    place.write_text(f'{table}[train]\ninit_from = "{of_one_length}"\n', "utf-8")
    for changes, kept in (((), True), (("model.normalize=false",), False), (("model.match_self_score=5.0",), True)):
        goes_on = load_recipe(place, changes).model
        assert isinstance(goes_on, BiConfig)
        assert goes_on.normalize is kept
        new_model(goes_on, POLICY, seed=1, sample=["hello"])


def test_the_scale_of_a_new_encoder_is_fitted_to_many_responses(tiny_backbone: Path) -> None:
    model = BiConfig(backbone=str(tiny_backbone), reduction="mean", match_self_score=20.0)
    examples = [Example((f"hi {i}",), (" ".join(["bill"] * (1 + i)),), (0,)) for i in range(7)]
    scales = []
    for some in (examples, examples[:2]):
        made = new_ranker(plan_of(model, TrainConfig()), some, precision="fp32", seed=1, device=CPU).model
        alone, _, _ = new_model(model, POLICY, seed=1, sample=[example.candidates[0] for example in some])
        scales.append(float(made.context_tower.scale))  # type: ignore[arg-type, union-attr]
        assert scales[-1] == float(alone.context_tower.scale)  # type: ignore[arg-type, union-attr]
    assert scales[0] != scales[1]


@pytest.mark.deep
def test_a_scale_is_fitted_to_the_weights_that_training_starts_from(
    mean_pooled_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    still: dict[str, Any] = {"method": "listwise", "n_negatives": 2, "max_steps": 1, "warmup_steps": 0}
    cross = train(recipe(task, mean_pooled_backbone, tmp_path / "cross", CrossConfig(), **{**still, "lr": 0.1}))[
        0
    ].model
    plan = recipe(task, mean_pooled_backbone, tmp_path / "bi", BiConfig(), **{**still, "lr": 0.0}, init_from=str(cross))
    bi = train(plan)[0].model
    encoder = load(bi, device="cpu", precision="fp32")
    assert isinstance(encoder, EncoderScorer)
    replies = [example.response or "" for example in read_examples(task["train"]).examples]
    vectors = encoder.encode_candidates(replies)
    assert float((vectors**2).sum(1).mean()) == pytest.approx(20.0, rel=0.05)
    saved = json.loads((bi / "config.json").read_bytes())["model"]["output_scale"]
    assert float(load_model(bi).model.state_dict()["context_tower.scale"]) == pytest.approx(saved)


def test_negatives_come_from_a_part_of_the_responses_if_a_first_stage_scores_them(tmp_path: Path) -> None:
    examples = [Example((f"hi {i}",), (f"reply {i}",), (0,)) for i in range(40)]
    settings = NegativesConfig(n=5, sources=("random",))
    for n_pool, n_expected in ((12, 12), (None, 40), (99, 40)):
        negatives = make_negatives([], settings, examples, seed=1, folder=tmp_path, n_pool=n_pool)
        drawn = {text for epoch in range(20) for i, e in enumerate(examples) for text in negatives(i, e, epoch)}
        assert len(drawn) == n_expected


def test_negatives_are_drawn_as_often_as_they_are_said_or_equally_often(tmp_path: Path) -> None:
    examples = [Example((f"hi {i}",), ("thanks" if i % 2 else f"reply {i}",), (0,)) for i in range(80)]
    shares = {}
    for weighting in ("uniform", "as_said"):
        settings = NegativesConfig(n=1, sources=("random",), weighting=weighting)  # type: ignore[arg-type]
        negatives = make_negatives([], settings, examples, seed=1, folder=tmp_path)
        drawn = [negatives(0, examples[0], epoch) for epoch in range(400)]
        shares[weighting] = sum(texts == ["thanks"] for texts in drawn) / 400
    assert shares["uniform"] < 0.08  # 1 of 40
    assert 0.4 < shares["as_said"] < 0.6  # 40 of 79


@pytest.mark.deep
def test_a_batch_that_exceeds_memory_suggests_a_smaller_one(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    rows = [{"context": ["wifi " * 120 + str(i)], "response": f"bill {i}"} for i in range(256)]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    task = {**task, "train": tmp_path / "long.jsonl"}
    plan = recipe(task, tiny_backbone, tmp_path / "run", batch_size=256)
    plan = dataclasses.replace(plan, text=TextPolicy(max_context_tokens=128, max_candidate_tokens=72))
    assert join([start(train_in_little_memory, plan, tmp_path / "said")]) == [ResourceError.exit_code] == [5]
    assert "a batch of 256 does not fit into memory; try train.batch_size=128" in (tmp_path / "said").read_text()


def train_in_little_memory(plan: Recipe, said: Path) -> None:
    """Train with 256 MiB of address space more than after all imports: threads reserve 64 or more."""
    torch.set_num_threads(1)

    def limit(text: str) -> None:
        if text.startswith("seed"):
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), used + (256 << 20)))

    try:
        train(plan, notify=limit)
    except ResourceError as error:
        said.write_text(str(error))
        raise SystemExit(error.exit_code) from None


@pytest.mark.deep
def test_training_from_memory_equals_training_from_files(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    plan = recipe(task, tiny_backbone, tmp_path / "files", max_steps=4)
    plan = dataclasses.replace(plan, data=dataclasses.replace(plan.data, test=str(task["valid"])))
    (by_file,) = train(plan, device="cpu")
    bare = dataclasses.replace(plan, data=DataConfig(), output=str(tmp_path / "memory"))
    examples, valid = (read_examples(task[part]).examples for part in ("train", "valid"))
    (from_memory,) = train(bare, iter(examples), valid, device="cpu")
    assert weights(tmp_path / "memory") == weights(tmp_path / "files")
    assert from_memory.fit.best == by_file.fit.best
    assert from_memory.test == {}
    judged = summarise(evaluate(from_memory.load(device="cpu"), valid))
    assert by_file.test["metrics"] == pytest.approx(judged["metrics"])
    assert train(plan, device="cpu", resume=True)[0].test == by_file.test  # also from a finished run
    with pytest.raises(ConfigError, match=r"data\.train"):
        train(dataclasses.replace(bare, output=str(tmp_path / "none")))
    with pytest.raises(DataError, match=r"row:0: unknown kind of row"):
        train(bare, [{"context": "hi"}], overwrite=True)


class AllocatorFigures(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [(f"figure_{number}", ctypes.c_size_t) for number in range(10)]

    @property
    def n_mapped_bytes(self) -> int:
        """Bytes in blocks that the system mapped separately: ``hblkhd``."""
        return int(self.figure_4)


def train_and_allocate(plan: Recipe, file: Path) -> None:
    """Train, then record whether glibc still maps a large block separately."""
    train(plan)
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype, libc.malloc.restype = AllocatorFigures, ctypes.c_void_p
    before, block = libc.mallinfo2().n_mapped_bytes, libc.malloc(ctypes.c_size_t(2**26))
    file.write_text(str(libc.mallinfo2().n_mapped_bytes - before >= 2**26))
    libc.free(ctypes.c_void_p(block))


@pytest.mark.deep
@pytest.mark.skipif(platform.libc_ver() < ("glibc", "2.33"), reason="needs glibc's mallinfo2")
def test_training_leaves_the_allocator_of_its_process_alone(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    child = start(train_and_allocate, recipe(task, tiny_backbone, tmp_path / "run", max_steps=1), tmp_path / "said")
    child.join(100)
    assert (tmp_path / "said").read_text() == "True"
