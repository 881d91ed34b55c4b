"""A Cross-encoder that learns to correct a trained encoder's scores."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import polyrank
from polyrank import train
from polyrank.cli import app
from polyrank.data import read_examples
from polyrank.errors import ArtifactError, ConfigError, UsageError
from polyrank.loading import resolve_model
from polyrank.loading.recipes import resolve_recipe
from polyrank.models.artifacts import read_config
from polyrank.records import Context, Example
from polyrank.scorers.cross import CrossScorer
from polyrank.scorers.open import load_stage
from polyrank.serving.served import REMEMBERED, Served
from polyrank.serving.tasks import RespondTask, ScoreTask
from polyrank.training.methods import make_step
from polyrank.training.ranker import Ranker, new_ranker, validation_figures
from polyrank.training.rerank import RerankStep, shortlist
from two_stages import Summed


@pytest.fixture(scope="session")
def encoders(tiny_encoders: dict[str, Path]) -> dict[str, str]:
    return {name: str(folder) for name, folder in tiny_encoders.items()}


def recipe(task: dict[str, Path], backbone: Path, first: str, output: Path, **changes: Any) -> dict[str, Any]:
    method = {"kind": "rerank", "first_stage": first} | changes.pop("method", {})
    settings = {"method": method, "negatives": {"n": 3}, "batch_size": 8, "max_steps": 4, "lr": 1e-3, "dropout": 0.0}
    model = {"kind": "cross", "backbone": str(backbone)} | changes.pop("model", {})
    return {
        "model": model,
        "text": {"max_context_tokens": 32, "max_candidate_tokens": 16},
        "data": {name: str(path) for name, path in task.items()},
        "output": str(output),
        "train": settings | {"schedule": {"kind": "constant", "warmup_steps": 0}} | changes,
    }


@pytest.fixture(scope="session")
def trained(
    word_task: dict[str, Path],
    tiny_backbone: Path,
    encoders: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """A re-ranker of a Bi-encoder, with its records; nobody may change it."""
    folder = tmp_path_factory.mktemp("rerank")
    records: list[dict[str, Any]] = []
    plan = recipe(
        word_task, tiny_backbone, encoders["bi"], folder / "run", max_steps=32, epochs=8, lr=5e-3, train_layers="all"
    )
    (result,) = train(plan, report=lambda _, record: records.append(record))
    lists, examples = (read_examples(word_task[name]).examples for name in ("valid", "train"))
    return {"result": result, "records": records, "lists": lists, "examples": examples, "plan": plan}


def test_the_first_step_ranks_as_the_first_stage(
    task: dict[str, Path], tiny_backbone: Path, encoders: dict[str, str], tmp_path: Path
) -> None:
    """With a learning rate of 0 the Cross-encoder's scores stay 0, and the loss is the first stage's own."""
    (result,) = train(recipe(task, tiny_backbone, encoders["poly"], tmp_path / "run", lr=0.0))
    lists = read_examples(task["valid"]).examples
    cross, first = load_stage(result.model), polyrank.load(encoders["poly"])
    assert all((scores == 0).all() for scores in cross.score([e.query for e in lists], [e.candidates for e in lists]))
    both = Summed(first, cross, n_retrieved=4)
    for own, alone in zip(
        both.score([e.query for e in lists], [e.candidates for e in lists]),
        first.score([e.query for e in lists], [e.candidates for e in lists]),
        strict=True,
    ):
        assert np.argsort(-own).tolist() == np.argsort(-alone).tolist()


def test_training_improves_on_the_first_stage(trained: dict[str, Any], encoders: dict[str, str]) -> None:
    first, cross = polyrank.load(encoders["bi"]), load_stage(trained["result"].model)
    alone = validation_figures(first, trained["lists"])
    losses = [record["loss"] for record in trained["records"] if "loss" in record]
    assert losses[-1] < losses[0]
    begin, *_, end = (record for record in trained["records"] if "loss" in record)
    assert begin["first_stage_loss"] == pytest.approx(begin["loss"])  # the network starts with scores of zero
    assert end["loss"] < end["first_stage_loss"]
    assert 0 < end["n_found"] <= len(trained["examples"])
    both = Summed(first, cross, n_retrieved=4)
    reached = validation_figures(both, trained["lists"])
    assert reached["MRR"] > alone["MRR"]
    # the figures of the run are those of both stages
    best = trained["result"].fit.best
    assert best == pytest.approx(reached)
    assert trained["result"].test["metrics"]["R@1"] == pytest.approx(
        validation_figures(Summed(first, cross), trained["lists"])["R@1"]
    )


@pytest.fixture
def step(trained: dict[str, Any]) -> RerankStep:
    """Of a new Cross-encoder, whose head is zero."""
    plan = resolve_recipe(trained["plan"])
    examples, device = trained["examples"], torch.device("cpu")
    ranker = new_ranker(plan.networks[0], examples, precision="fp32", seed=1, device=device)
    made = make_step([ranker], plan.recipe.train, examples, device=device, seed=1, folder=Path())
    assert isinstance(made, RerankStep)
    return made


@pytest.mark.deep
def test_the_loss_is_of_the_sum_over_the_searches_that_find_the_response(
    trained: dict[str, Any], encoders: dict[str, str], step: RerankStep
) -> None:
    first, examples = polyrank.load(encoders["bi"]), trained["examples"]
    responses = sorted({example.response for example in examples})
    head: Any = step.reranker.model.head[-1]  # type: ignore[index]

    def search(example: Example) -> list[str]:
        """The first stage's best 2 of all responses, which are fewer than are drawn."""
        (scores,) = first.score([example.query], [responses])
        return [responses[i] for i in np.argsort(-scores)[:2]]

    def expected(batch: list[tuple[int, Example]], scorer: Any) -> float:
        """The mean loss of the sum of scores, of the searches that find the response."""
        losses = []
        for _, example in batch:
            if (right := example.response) in (best := search(example)):
                total = first.score([example.query], [best])[0] + scorer.score([example.query], [best])[0]
                losses.append(np.log(np.exp(total - total[best.index(right)]).sum()))
        return float(np.mean(losses))

    assert step.n_negatives == 3
    step, batch = replace(step, n_negatives=1), list(enumerate(examples))
    found = [example.response in search(example) for _, example in batch]
    assert 1 < sum(found) < len(batch)
    scorer = CrossScorer(step.reranker.model, step.reranker.texts)
    for generator in (None, torch.Generator().manual_seed(1)):
        if generator is not None:
            with torch.no_grad():
                head.weight.normal_(generator=generator)
        ((loss, n_contexts, figures, _),) = step.losses(step.prepare(batch, 0), 0)
        assert figures is not None
        assert loss.item() == figures["loss"] == pytest.approx(expected(batch, scorer), abs=1e-5)
        assert figures["n_found"] == n_contexts == sum(found)
        if generator is None:
            alone = loss.item()  # a head of zeros adds nothing
        assert float(figures["first_stage_loss"]) == pytest.approx(alone)
    ((loss, _, figures, _),) = step.losses(step.prepare([batch[found.index(False)]], 0), 0)
    assert figures is not None
    assert (loss.item(), figures["n_found"]) == (0, 0)
    loss.backward()
    assert not head.weight.grad.any()


def test_the_loss_of_a_batch_is_the_mean_of_those_of_its_searches_that_find_the_response(
    trained: dict[str, Any], step: RerankStep
) -> None:
    step, batch = replace(step, n_negatives=1), list(enumerate(trained["examples"][:6]))

    def losses(rows: list[tuple[int, Example]]) -> tuple[float, int]:
        ((loss, n_found, _, _),) = step.losses(step.prepare(rows, 0), 0)
        return loss.item(), n_found

    alone = [losses([row]) for row in batch]
    found = [loss for loss, n in alone if n == 1]
    assert 1 < len(found) < len(batch)
    mean, n_found = losses(batch)
    assert mean == pytest.approx(sum(found) / len(found), abs=1e-5)
    assert n_found == len(found)


def test_the_first_stage_scores_in_the_precision_of_the_training(
    trained: dict[str, Any], step: RerankStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYRANK_PRECISION", "bf16")  # of a scorer without a precision
    one, examples = step.reranker, trained["examples"]
    ranker = Ranker(one.model, one.texts, CrossScorer(one.model, one.texts), save=lambda path, metadata: None)
    train = trained["plan"]["train"] | {"precision": "fp32"}
    settings = resolve_recipe(trained["plan"] | {"train": train}).recipe.train
    made = make_step([ranker], settings, examples, device=torch.device("cpu"), seed=1, folder=Path())
    assert isinstance(made, RerankStep)
    assert made.first_stage.precision == "fp32"


@pytest.mark.deep
@pytest.mark.parametrize(("n_pool", "n_drawn"), [(20_000, 7), (5, 5)])
def test_the_first_stage_chooses_from_a_part_of_the_responses(
    n_pool: int, n_drawn: int, trained: dict[str, Any], step: RerankStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps the vectors of this part; of 8 responses one is right."""
    monkeypatch.setattr("polyrank.training.methods.N_POOL", n_pool)
    one, examples = step.reranker, trained["examples"]
    ranker = Ranker(one.model, one.texts, CrossScorer(one.model, one.texts), save=lambda path, metadata: None)
    settings = resolve_recipe(trained["plan"]).recipe.train
    made = make_step([ranker], settings, examples, device=torch.device("cpu"), seed=1, folder=Path())
    assert isinstance(made, RerankStep)
    _, lists = made.prepare([*enumerate(examples)], 0)
    drawn = {text for texts in lists for text in texts[1:]}
    assert max(len(texts) for texts in lists) == 1 + n_drawn
    assert len(drawn) == (n_drawn if n_pool == 5 else 8)


@pytest.mark.parametrize(
    ("scores", "n", "expected"),
    [
        ([3, 3, 3], 1, [0, 1]),  # a tie counts as found
        ([3, 3, 4], 1, [0, 2]),
        ([2, 3, 3], 1, [0]),
        ([2, 3, 3, 2], 2, [0, 1, 2]),
        ([2, 1, 1, 1], 2, [0, 1, 2]),  # others keep their order
        ([1], 2, [0]),
    ],
)
def test_a_response_is_trained_on_if_it_is_among_the_best(scores: list[int], n: int, expected: list[int]) -> None:
    assert shortlist(np.float32(scores), n) == expected


def test_an_index_is_ranked_by_the_sum_of_both(
    trained: dict[str, Any], encoders: dict[str, str], tmp_path: Path
) -> None:
    replies = [f"{word} thanks" for word in ("wifi", "bill", "router")]
    polyrank.build_index(tmp_path / "index", encoders["bi"], replies)
    with polyrank.open(tmp_path / "index", model=trained["result"].model) as opened:
        answer = opened.answer("my wifi", 3)
    for reply in answer.ranked:
        assert reply.score == pytest.approx(sum(reply.stages.values()))
        assert reply.stages["reranker"] != 0
    polyrank.build_index(tmp_path / "other", encoders["poly"], replies)
    with pytest.raises(ArtifactError, match="was made by encoder"):
        polyrank.open(tmp_path / "other", model=trained["result"].model)


@pytest.mark.deep
def test_a_served_ranker_scores_by_both_terms(
    trained: dict[str, Any], encoders: dict[str, str], tmp_path: Path
) -> None:
    both, texts = polyrank.load(trained["result"].model), list(dict.fromkeys(trained["lists"][0].candidates))
    polyrank.build_index(tmp_path / "index", both, texts)
    served = Served("m", str(tmp_path / "index"), "cpu")
    context = trained["lists"][0].query
    (scored,) = served.score([ScoreTask(context, texts)])
    np.testing.assert_allclose(scored.scores, both.score([context], [texts])[0], atol=1e-5)
    (found,) = served.compute([RespondTask(context, len(texts), None, True, False)])
    assert [text for _, _, text in found.shown] == [texts[i] for i in np.argsort(-np.array(scored.scores))]


def test_a_served_ranker_keeps_no_long_texts_of_either_term(trained: dict[str, Any], tmp_path: Path) -> None:
    polyrank.build_index(tmp_path / "index", trained["result"].model, ["yes", "no"])
    served = Served("m", str(tmp_path / "index"), "cpu")
    networks = [*served.scorer.networks, *served.encoder.networks]  # type: ignore[union-attr]
    for number in range(5):
        served.compute([RespondTask(Context(("wifi " * 90 + str(number),)), 1, None, False, False)])
    assert max(len(network.texts.cut.contexts) for network in networks) == 1
    assert {network.max_remembered for network in networks} == {REMEMBERED}


@pytest.mark.deep
def test_mining_and_distillation_use_a_correction_only_with_its_first_stage(
    trained: dict[str, Any], word_task: dict[str, Path], encoders: dict[str, str], tiny_backbone: Path, tmp_path: Path
) -> None:
    second, output = str(trained["result"].model), str(tmp_path / "mined.jsonl")
    call = ["mine", str(word_task["train"]), "-o", output, "-n", "50", "--overwrite"]
    alone = CliRunner().invoke(app, [*call, "--from", second])
    assert isinstance(alone.exception, UsageError)
    assert "only corrects the scores of another encoder" in str(alone.exception)
    mined = []
    for options in ([], ["--rerank", second, "--margin", "0"]):
        done = CliRunner().invoke(app, [*call, "--from", encoders["bi"], *options])
        assert done.exit_code == 0, done.output
        mined.append(read_examples(output).examples)
    scorer = Summed(polyrank.load(encoders["bi"]), load_stage(second))
    for every, kept in zip(*mined, strict=True):
        right, *wrong = scorer.score([every.query], [every.candidates])[0]
        below = [text for text, score in zip(every.candidates[1:], wrong, strict=True) if score < right]
        assert sorted(kept.candidates[1:]) == sorted(below)
    plan = recipe(word_task, tiny_backbone, second, tmp_path / "run", method={"kind": "distill", "teacher": second})
    del plan["train"]["method"]["first_stage"]
    with pytest.raises(UsageError, match="only corrects the scores of another encoder"):
        train(plan)


def test_evaluate_ranks_by_both(trained: dict[str, Any]) -> None:
    data = trained["plan"]["data"]["valid"]
    done = CliRunner().invoke(app, ["evaluate", str(trained["result"].model), data, "--json"])
    assert done.exit_code == 0, done.output
    both = polyrank.evaluate(polyrank.load(trained["result"].model), trained["lists"])
    assert json.loads(done.stdout)["metrics"] == pytest.approx(polyrank.summarise(both)["metrics"])


def test_the_first_stage_is_found_from_any_working_directory(
    trained: dict[str, Any], encoders: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = resolve_model(trained["result"].model).stages()
    assert (Path(first.name), second.corrects) == (Path(encoders["bi"]), first.fingerprint)
    assert not Path(read_config(trained["result"].model)["metadata"]["first_stage_name"]).is_absolute()


def test_the_card_names_the_first_stage(trained: dict[str, Any]) -> None:
    card = (trained["result"].model / "README.md").read_text("utf-8")
    assert "whose scores it corrects; all figures are of both" in card


def test_resumed_equals_uninterrupted(
    task: dict[str, Path], tiny_backbone: Path, encoders: dict[str, str], tmp_path: Path
) -> None:

    def plan(output: str, n_steps: int) -> dict[str, Any]:
        """Without validation, so that the last step's model is saved."""
        train, mean = {"train": task["train"]}, {"reduction": "mean"}
        return recipe(train, tiny_backbone, encoders["bi"], tmp_path / output, model=mean, max_steps=n_steps)

    (whole,) = train(plan("whole", 4))
    train(plan("run", 2))
    (resumed,) = train(plan("run", 4), resume=True)
    assert (resumed.model / "model.safetensors").read_bytes() == (whole.model / "model.safetensors").read_bytes()


def test_a_run_does_not_continue_on_another_first_stage(
    task: dict[str, Path], tiny_backbone: Path, encoders: dict[str, str], tmp_path: Path
) -> None:
    first = shutil.copytree(encoders["bi"], tmp_path / "first")
    train(recipe(task, tiny_backbone, str(first), tmp_path / "run", max_steps=2))
    shutil.rmtree(first)
    shutil.copytree(encoders["poly"], first)
    with pytest.raises(ConfigError, match=r"changed since .* use the same as then, or start again"):
        train(recipe(task, tiny_backbone, str(first), tmp_path / "run", max_steps=4), resume=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"kind": "bi"}}, 'train.method.kind = "rerank" trains a Cross-encoder, not model.kind = "bi"'),
        ({"method": {"first_stage": "bm25"}}, "train.method.first_stage = bm25 has no vectors; give an encoder"),
        ({"method": {"first_stage": "nowhere"}}, "nowhere is not a model folder"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    task: dict[str, Path],
    tiny_backbone: Path,
    encoders: dict[str, str],
    tmp_path: Path,
    changes: dict[str, Any],
    message: str,
) -> None:
    """Before any data is read: its files do not exist."""
    files = dict.fromkeys(task, tmp_path / "none.jsonl")
    with pytest.raises((ConfigError, UsageError), match=message):
        train(recipe(files, tiny_backbone, encoders["bi"], tmp_path / "run", **changes))


def test_the_mean_of_all_outputs_ignores_padding(tiny_backbone: Path) -> None:
    from polyrank.config.models import CrossConfig, TextPolicy
    from polyrank.models import new_model
    from polyrank.scorers.load import make_scorer

    policy = TextPolicy(max_context_tokens=32, max_candidate_tokens=16)
    config = CrossConfig(backbone=str(tiny_backbone), reduction="mean")
    model, texts, _ = new_model(config, policy, seed=1, sample=())
    scorer = make_scorer(model.eval(), texts, precision="fp32", frozen=True)
    lists = [["thanks", "please restart the router it is down"], ["hi"]]
    together = scorer.score(["my wifi is down", "hi"], lists)
    for context, row, scores in zip(["my wifi is down", "hi"], lists, together, strict=True):
        for text, score in zip(row, scores, strict=True):
            assert float(scorer.score([context], [[text]])[0][0]) == pytest.approx(float(score), abs=1e-5)
    first, texts, _ = new_model(CrossConfig(backbone=str(tiny_backbone)), policy, seed=1, sample=())
    other = make_scorer(first.eval(), texts, precision="fp32", frozen=True).score(["hi"], [["hi"]])
    assert abs(float(other[0][0]) - float(together[1][0])) > 1e-4


def test_a_teacher_is_looked_up_before_any_data_is_read(
    task: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    plan = recipe(dict.fromkeys(task, tmp_path / "none.jsonl"), tiny_backbone, "", tmp_path / "run")
    plan["train"]["method"] = {"kind": "distill", "teacher": "nowhere"}
    with pytest.raises(UsageError, match="nowhere is not a model folder"):
        train(plan)
