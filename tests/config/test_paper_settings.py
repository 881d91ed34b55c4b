"""Settings for the papers' variants that are not defaults, each compared with its formula written out."""

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from convert_models import BATCH as CONVERT_BATCH, CONTEXTS, REPLIES, make, step_of
from polyrank.config.models import BiConfig, ConvertConfig, ConvertText, CrossConfig, PolyConfig, TextPolicy
from polyrank.config.recipe import Recipe
from polyrank.config.train import NetworkTraining
from polyrank.data import import_examples
from polyrank.errors import ConfigError, UsageError
from polyrank.evaluation import Evaluation, Record
from polyrank.loading.recipes import load_recipe
from polyrank.models import BiEncoder, CrossEncoder, new_model
from polyrank.models.artifacts import load_model
from polyrank.models.reductions import reduce, reduction_weights
from polyrank.negatives.random import GivenNegatives
from polyrank.ranking.metrics import placement_of
from polyrank.records import Context, Example
from polyrank.scorers.load import make_scorer
from polyrank.text import BackboneTexts, load_subwords
from polyrank.training import InBatchStep, ListwiseStep, train
from polyrank.training.learner import Learner, TrainState
from polyrank.training.optimizer import make_optimizer
from polyrank.training.ranker import own_texts
from polyrank.tuning.intents import IntentSplits, Utterance, held_out
from train_settings import loss_of, update

sys.path.insert(0, str(Path(__file__).parents[2] / "runs" / "papers"))

from evaluate import by_tokens, last_turns, probe

POLICY = TextPolicy(max_context_tokens=40, max_candidate_tokens=12)
CPU = torch.device("cpu")
PAIRS = [
    (0, Example(("my wifi is down",), ("restart the router", "the bill", "hi"), (0,))),
    (1, Example(("hello", "the light is red"), ("please restart it", "thanks", "the bill is too high"), (0,))),
    (2, Example(("hi",), ("hello", "did that", "green"), (0,))),
]


def bi(backbone: Path, *, new_dropout: float = 0.0, **changes: Any) -> tuple[BiEncoder, Any]:
    config = BiConfig(backbone=str(backbone), **{"reduction": "mean", **changes})
    model, texts, _ = new_model(config, POLICY, seed=1, sample=REPLIES, new_dropout=new_dropout)
    assert isinstance(model, BiEncoder)
    return model.eval(), texts


def cross(backbone: Path, *, new_dropout: float = 0.0) -> tuple[CrossEncoder, Any]:
    config = CrossConfig(backbone=str(backbone), head="mlp")
    model, texts, _ = new_model(config, POLICY, seed=1, sample=(), new_dropout=new_dropout)
    assert isinstance(model, CrossEncoder)
    return model.eval(), texts


# the loss of a batch


@pytest.mark.parametrize("clip", [None, 0.5])
def test_the_sum_of_the_losses_is_clipped_and_used_for_the_step(
    tiny_backbone: Path, tmp_path: Path, clip: float | None
) -> None:
    """Plain gradient descent by hand: B times the mean's gradient, clipped to the maximal norm."""
    moves: dict[int, Tensor] = {}
    for weight in (1, 3):
        model, texts = bi(tiny_backbone, projection_dim=4)
        settings = NetworkTraining(lr=1.0, clip_norm=clip, train_layers="all", dropout=0.0)
        learner = Learner(model=model, settings=settings, folder=tmp_path, save_best=lambda _: None)
        trainee = TrainState(learner, 1, loss="mean" if weight == 1 else "sum")
        trainee.optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        before = model.context_tower.projection.weight.detach().clone()  # type: ignore[union-attr,operator]
        loss = loss_of(InBatchStep(model, texts, CPU), PAIRS)
        gradient = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True, allow_unused=True)
        norm = weight * math.sqrt(sum(float(g.square().sum()) for g in gradient if g is not None))
        assert clip is None or norm > clip  # so that clipping has an effect
        assert update(trainee, loss, weight) == float(loss.detach())  # the value in the curves
        moves[weight] = (before - model.context_tower.projection.weight).detach() * norm / min(norm, clip or math.inf)  # type: ignore[operator]
    assert torch.allclose(moves[3], 3 * moves[1], rtol=1e-4, atol=1e-6)


@pytest.mark.deep
def test_a_run_with_the_sum_equals_the_mean_with_a_scaled_rate(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    """This holds for optimisers whose step is proportional to the gradient, and nearly for Adadelta's first step."""
    curves = {}
    for name, changes in {
        "mean": [], "sum": ['train.loss="sum"'], "clipped mean": ["train.clip_norm=1e-3"],
        "clipped sum": ["train.clip_norm=1e-3", 'train.loss="sum"'],
    }.items():  # fmt: skip
        tables = {
            "model": {"kind": "bi", "backbone": str(tiny_backbone), "reduction": "mean"},
            "text": {"max_context_tokens": 24, "max_candidate_tokens": 8},
            "data": {"train": str(task["train"])},
            "train": {"batch_size": 8, "max_steps": 3, "precision": "fp32", "optimizer": "adadelta", "lr": 1.0,
                      "dropout": 0.0, "weight_decay": 0.0, "train_layers": "all"},
            "output": str(tmp_path / name),
        }  # fmt: skip
        start = [] if any("clip_norm" in change for change in changes) else ["train.clip_norm=1e9"]
        train(load_recipe(tables, [*start, *changes]), device="cpu")
        lines = (tmp_path / name / "metrics.jsonl").read_text("utf-8").splitlines()
        curves[name] = [json.loads(line)["loss"] for line in lines if "loss" in json.loads(line)]
    assert len({curve[0] for curve in curves.values()}) == 1  # curves show the mean in both cases
    assert curves["mean"][1:] != curves["sum"][1:]
    assert curves["clipped mean"] == pytest.approx(curves["clipped sum"], rel=1e-6)  # with clipping this does not hold


# optimisers


@pytest.mark.parametrize("optimizer", ["adamw", "adamax"])
def test_betas_are_passed_to_the_optimiser(tiny_backbone: Path, optimizer: Any) -> None:
    model, _ = bi(tiny_backbone)
    made = make_optimizer(model, NetworkTraining(optimizer=optimizer, betas=(0.9, 0.98)))
    assert {group["betas"] for group in made.param_groups} == {(0.9, 0.98)}
    usual = make_optimizer(model, NetworkTraining(optimizer=optimizer))
    assert {group["betas"] for group in usual.param_groups} == {(0.9, 0.999)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"betas": (0.9, 1.0)}, r"betas = \[0.9, 1.0\] must be below 1"),
        ({"new_dropout": 1.5}, "new_dropout = 1.5 is outside 0 to 1"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NetworkTraining(**changes)


# reductions


def test_the_papers_average_excludes_the_first_output() -> None:
    """ICLR 2020, appendix B: all outputs except the first one."""
    generator = torch.Generator().manual_seed(1)
    outputs = torch.randn(3, 5, 4, generator=generator)
    mask = torch.tensor([[True] * 5, [True, True, True, False, False], [True, False, False, False, False]])
    got = reduce(outputs, mask, "mean_but_first", 16).numpy()
    numbers = outputs.numpy()
    expected = [numbers[0, 1:].mean(0), numbers[1, 1:3].mean(0), numbers[2, 0]]  # a single output is its own mean
    assert np.allclose(got, expected, atol=1e-6)
    assert np.allclose(reduction_weights(mask[:2], "mean_but_first", 16)[1], [0, 0.5, 0.5, 0, 0])


def test_a_model_with_the_papers_average_is_saved_and_ranks_equally(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    model = {"kind": "poly", "backbone": str(tiny_backbone), "reduction": "mean_but_first", "n_codes": 4,
             "projection_dim": 6, "equal_projections": False}  # fmt: skip
    text = {"max_context_tokens": 24, "max_candidate_tokens": 8, "close_last_turn": True, "turn_separator": "[EOT]",
            "new_tokens": ["[EOT]"], "share_pair_budget": False}  # fmt: skip
    tables = {"model": model, "text": text, "data": {"train": str(task["train"])}, "output": str(tmp_path / "run"),
              "train": {"max_steps": 2, "new_dropout": 0.1, "batch_size": 8}}  # fmt: skip
    result = train(tables, device="cpu")[0]
    found = load_model(result.model)
    assert isinstance(found.config, PolyConfig)
    assert (found.config.reduction, found.config.equal_projections) == ("mean_but_first", False)
    assert (found.texts.policy.close_last_turn, found.texts.policy.share_pair_budget) == (True, False)
    assert not torch.equal(found.model.context_tower.projection.weight, found.model.candidate_tower.projection.weight)  # type: ignore[union-attr,operator,arg-type]


# projections and dropout


def test_projections_can_start_differently(tiny_backbone: Path) -> None:
    alike, apart, again = (bi(tiny_backbone, projection_dim=16, equal_projections=e)[0] for e in (True, False, False))
    one, other = ([tower.projection.weight for tower in (m.context_tower, m.candidate_tower)] for m in (alike, apart))  # type: ignore[union-attr]
    assert torch.equal(*one)
    assert torch.equal(one[0], other[0])  # only the candidates' projection differs
    assert not torch.equal(*other)
    assert torch.equal(other[1], again.candidate_tower.projection.weight)  # type: ignore[arg-type]
    bound = 1 / math.sqrt(32)  # torch's default for both: uniform up to 1 / sqrt(inputs)
    assert 0.8 * bound < float(other[1].detach().abs().max()) <= bound
    for changes in ({"projection_dim": None}, {"projection_dim": 16, "shared_towers": True}):
        with pytest.raises(ConfigError, match="equal_projections = false needs two projections"):
            bi(tiny_backbone, equal_projections=False, **changes)


def test_dropout_of_projections_applies_to_their_inputs(tiny_backbone: Path) -> None:
    model, _ = bi(tiny_backbone, projection_dim=8, new_dropout=0.5)
    vectors = torch.ones(200, 32)
    quiet = model.context_tower.project(vectors)
    assert torch.equal(quiet, torch.nn.functional.linear(vectors, model.context_tower.projection.weight))  # type: ignore[arg-type]
    model.train()
    torch.manual_seed(5)
    loud = model.context_tower.project(vectors)
    torch.manual_seed(5)
    kept = torch.nn.functional.dropout(vectors, 0.5)
    assert set(kept.flatten().tolist()) == {0.0, 2.0}
    assert torch.allclose(loud, kept @ model.context_tower.projection.weight.T, atol=1e-6)  # type: ignore[operator]
    plain, _ = bi(tiny_backbone, new_dropout=0.5)  # without a projection it has no effect
    assert torch.equal(plain.train().context_tower.project(vectors), vectors)


def test_dropout_of_a_head_precedes_each_linear_layer(tiny_backbone: Path) -> None:
    model, texts = cross(tiny_backbone, new_dropout=0.4)
    tokens = texts.pairs([(Context(("my wifi is down",)), "restart the router")] * 3)
    first = model.backbone(tokens)[:, 0].detach()
    w1, w2 = model.head[0], model.head[2]
    assert torch.allclose(model(tokens), w2(torch.tanh(w1(first)))[:, 0])  # type: ignore[operator]
    model.train()
    for module in model.backbone.modules():  # its dropout is another setting
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.backbone.eval()
    torch.manual_seed(9)
    got = model(tokens)
    torch.manual_seed(9)
    hidden = torch.tanh(w1(torch.nn.functional.dropout(first, 0.4)))  # type: ignore[operator]
    assert torch.allclose(got, w2(torch.nn.functional.dropout(hidden, 0.4))[:, 0], atol=1e-6)  # type: ignore[operator]


# the sigmoid


def test_the_sigmoid_in_the_loss_follows_equations_4_and_5(tiny_backbone: Path) -> None:
    model, texts = cross(tiny_backbone)
    with torch.no_grad():
        model.head[2].weight *= 50  # type: ignore[operator]  # large scores, which a sigmoid changes
    negatives = GivenNegatives(2, 1, True, {})
    step = ListwiseStep(model, texts, CPU, negatives, sigmoid=True)
    total = 0.0
    for (_, example), row in zip(PAIRS, step.lists(PAIRS, 0), strict=True):
        with torch.no_grad():
            raw = model(texts.pairs([(example.query, text) for text in row])).double().numpy()
        squashed = 1 / (1 + np.exp(-raw))
        total -= math.log(math.exp(squashed[0]) / np.exp(squashed).sum())
    assert float(loss_of(step, PAIRS).detach()) == pytest.approx(total / 3, rel=1e-5)
    assert float(loss_of(ListwiseStep(model, texts, CPU, negatives), PAIRS).detach()) != pytest.approx(
        total / 3, rel=1e-3
    )


# text

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module")
def texts_of(tiny_backbone: Path) -> Callable[..., BackboneTexts]:
    """A tokenizer with one token per separate letter."""
    subwords = load_subwords(tiny_backbone)
    subwords.add(["[EOT]"])
    return lambda max_positions=512, **changes: BackboneTexts(subwords, TextPolicy(**changes), max_positions)


def shown(texts: BackboneTexts, ids: Any) -> str:
    names = [texts.subwords.tokenizer.id_to_token(i) for i in ids]
    return " ".join({"[CLS]": "<", "[SEP]": "|", "[EOT]": "/"}.get(name, name) for name in names)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "< x y / a b / c / |"),  # Tao et al.: [CLS] u1 [EOT] ... un [EOT] [SEP], facts before the turns
        ({"background": "after"}, "< a b / c / x y |"),
        ({"background": "drop"}, "< a b / c / |"),
        ({"background": "drop", "max_context_tokens": 6}, "< b / c / |"),
        ({"background": "drop", "max_context_tokens": 4}, "< c / |"),
        ({"background": "after", "max_context_tokens": 8}, "< b / c / x y |"),
        ({"close_last_turn": False}, "< x y / a b / c |"),
    ],
)
def test_a_separator_can_follow_the_last_turn(
    texts_of: Callable[..., BackboneTexts], changes: dict[str, Any], expected: str
) -> None:
    texts = texts_of(**{"turn_separator": "[EOT]", "close_last_turn": True, **changes})
    assert shown(texts, texts.context_ids(Context(("a b", "c"), ("x y",)))) == expected


@pytest.mark.parametrize("candidate", ["", "x", "x y z", "u v w x y z"])
@pytest.mark.parametrize(("positions", "kept"), [(512, 6), (12, 5), (9, 3)])
def test_a_context_is_truncated_once_for_all_its_candidates(
    texts_of: Callable[..., BackboneTexts], candidate: str, positions: int, kept: int
) -> None:
    """To its own budget of 8, or to the network's length minus the longest possible candidate."""
    settings = {"max_context_tokens": 8, "max_candidate_tokens": 6}
    texts = texts_of(positions, share_pair_budget=False, **settings)
    ids, segments = texts.pair_ids(Context((" ".join(LETTERS[:12]),)), candidate)
    context, said, rest = shown(texts, ids).removeprefix("< ").split("|")
    assert context.split() == list(LETTERS[12 - kept : 12])
    assert said.split() == candidate.split()[: 4 if positions > 9 else 3]
    assert (rest, len(ids) <= positions, segments.count(0)) == ("", True, kept + 2)
    if positions == 512:  # without another limit, as in a Bi-encoder
        assert ids[: kept + 1] == texts.context_ids(Context((" ".join(LETTERS[:12]),)))[:-1]
    shared = texts_of(positions, **settings).pair_ids(Context((" ".join(LETTERS[:12]),)), "")[0]
    assert len(shared) - 3 > kept  # without this setting it depends on the candidate


def test_vocabularies_may_count_repeats() -> None:
    dialogue = [("hi", "yes"), ("bye", "yes"), ("ok", "yes")]
    examples = [Example((first,), (reply, "no"), (0,)) for first, reply in dialogue]
    examples.append(Example(("hi", "yes", "hm"), ("yes",), (0,)))
    counted = list(own_texts(examples))
    assert {text: counted.count(text) for text in counted} == {"hi": 1, "bye": 1, "ok": 1, "hm": 1, "yes": 4, "no": 1}


def test_a_count_of_repeats_reaches_the_vocabulary(tmp_path: Path, task: dict[str, Path]) -> None:
    """ "thanks" ends each of twelve replies, with six examples each."""
    found = {}
    for repeats in (False, True):
        tables = {
            "model": dataclasses.asdict(ConvertConfig(embedding_dim=8, attention_dim=4, ffn_dim=8, spans=(3,),
                                                      side_dim=8, output_dim=8)) | {"kind": "convert"},
            "text": {"min_count": 30, "count_repeats": repeats, "n_buckets": 4},
            "data": {"train": str(task["train"])},
            "train": {"max_steps": 1, "batch_size": 8}, "output": str(tmp_path / f"{repeats}"),
        }  # fmt: skip
        saved = load_model(train(tables, device="cpu")[0].model)
        found[repeats] = "thanks_" in saved.texts.subwords.subwords or any(  # type: ignore[attr-defined]
            subword.strip("_ ") == "thanks"
            for subword in saved.texts.subwords.subwords  # type: ignore[attr-defined]
        )
    assert found == {False: False, True: True}


# protocols


def test_a_breakdown_by_tokens_has_the_papers_classes(
    tiny_backbone: Path, texts_of: Callable[..., BackboneTexts]
) -> None:
    """Tao et al., Figure 4: (0, 50], (50, 100], (100, 360]."""
    scorer = make_scorer(*bi(tiny_backbone), device="cpu")
    scorer.texts = texts_of(max_context_tokens=360)
    sizes = {3: True, 50: False, 51: True, 100: True, 101: False, 360: True}  # of contexts with [CLS] and [SEP]
    examples = [Example(("a " * (n - 2),), ("x", "y"), (0,), str(n)) for n in sizes]
    records = [
        Record(str(n), 1, (0,), None, placement_of(np.array([1.0 if right else 0.0, 0.5]), (0,)))
        for n, right in sizes.items()
    ]
    rows = by_tokens([Evaluation(tuple(records), "pool")], scorer, examples)
    found = [(row["from"], row["to"], row["n_examples"], row["metrics"]["R@1"]) for row in rows]
    assert found == [(1, 50, 2, 0.5), (51, 100, 2, 1.0), (101, None, 2, 0.5)]


def test_earlier_turns_can_be_hidden_from_a_model() -> None:
    example = Example(("a", "b", "c"), ("x", "y"), (1,), background=("fact",))
    assert [e.context for n in (1, 2, 9) for e in last_turns([example], n)] == [("c",), ("b", "c"), ("a", "b", "c")]
    assert last_turns([example], 1)[0].background == ("fact",)


def test_probes_rank_with_one_encoding_of_a_convert() -> None:
    """ConveRT, section 4: the immediate context's sub-network alone."""
    model, texts, _ = make()
    scorer = make_scorer(model.eval(), texts, device="cpu")
    with torch.no_grad():
        encodings = model.context_encodings(texts.contexts(CONTEXTS))
        y = model.encode_candidates(texts.candidates(REPLIES))
    for encoding, h in (("immediate", encodings.immediate), ("earlier", encodings.earlier), ("both", encodings.both)):
        probe(scorer, encoding)
        got = np.array(scorer.score(CONTEXTS, [REPLIES] * len(CONTEXTS)))
        assert np.allclose(got, (model.scale * h @ y.T).numpy(), atol=1e-4)
    single, single_texts, _ = make(multi_context=False)
    with pytest.raises(UsageError, match="is not a multi-context ConveRT"):
        probe(make_scorer(single, single_texts, device="cpu"), "immediate")
    assert loss_of(step_of(model, texts), CONVERT_BATCH).isfinite()


def test_intents_in_three_parts() -> None:
    """80/10/10 of each intent, and no text in two parts."""
    utterances = tuple(Utterance(f"{intent} {i}", intent) for intent in "abc" for i in range(100))
    parts = held_out(IntentSplits(utterances), 0.1)
    assert [len(part) for part in (parts.train, parts.dev, parts.test)] == [240, 30, 30]
    assert sorted((*parts.train, *parts.dev, *parts.test), key=lambda u: u.text) == sorted(
        utterances, key=lambda u: u.text
    )
    assert [sum(u.intent == "a" for u in part) for part in (parts.train, parts.dev, parts.test)] == [80, 10, 10]
    assert held_out(IntentSplits(utterances), 0.1) == parts


@pytest.mark.deep
def test_the_command_line_has_the_protocols(tmp_path: Path) -> None:
    articles = [f"Title {i}\tThe {word} is red.\tIt is a {word}." for i, word in enumerate(("cat", "dog", "bird"))]
    (tmp_path / "wiki.txt").write_text("\n".join(articles), "utf-8")
    queries = set()
    for seed in range(3):
        examples = import_examples("wikipedia", tmp_path / "wiki.txt", seed=seed, max_words=4).examples
        assert all(len((example.response or "").split()) <= 4 for example in examples)
        queries.add(tuple(example.context[0] for example in examples))
    assert len(queries) > 1
    with pytest.raises(UsageError, match="`seed` does not apply to pairs"):
        import_examples("pairs", tmp_path / "wiki.txt", seed=1)

    candidates = ["the cat", "the dog", "red"]
    rows = [
        {"id": word, "context": [f"about the {word}", "it is red"], "candidates": candidates, "relevant": right}
        for right, word in enumerate(("cat", "dog"))
    ]
    lists = tmp_path / "lists.jsonl"
    lists.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    script = [sys.executable, "runs/papers/evaluate.py", "bm25", lists]
    call = partial(subprocess.run, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    last = call([*script, "--last-turns", "1", "--metric", "R@1,MAP"])
    assert json.loads(last.stdout)["by_turns"][0]["metrics"]["R@1"] == 0, last.stderr  # only "red" remains
    for options, message in (
        (("--breakdown", "tokens"), "bm25 is lexical"),
        (("--probe", "immediate"), "bm25 is not a multi-context ConveRT"),
    ):
        assert message in call([*script, *options]).stderr
    assert isinstance(load_recipe({"model": {"kind": "bi"}, "output": "x"}), Recipe)
    assert ConvertText().count_repeats is False
