"""Models that start from a trained one: what they inherit, and what they no longer need."""

import dataclasses
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from convert_models import make as make_convert
from polyrank.config.models import BiConfig, CrossConfig, ModelConfig, PolyConfig, TextPolicy
from polyrank.config.pretrain import ScratchModel
from polyrank.errors import ConfigError, PolyrankError
from polyrank.models import BiEncoder, CrossEncoder, Network, PolyEncoder, new_model
from polyrank.models.artifacts import load_model, save_model
from polyrank.models.pretraining import new_bert
from polyrank.models.start import start_model, transfer_weights
from polyrank.scorers.load import make_scorer

sys.path.insert(0, str(Path(__file__).parents[2] / "runs"))

from layouts import LAYOUTS

T5_TABLES = ("shared.weight", "embed_tokens.weight")
POLICY = TextPolicy(max_context_tokens=24, max_candidate_tokens=8)
OTHER_TURNS = TextPolicy(max_context_tokens=24, max_candidate_tokens=8, new_tokens=("[TURN]",), turn_separator="[TURN]")
REPLIES = ["hello router", "my wifi is down", "thanks", "restart the router please"]
STARTS = {
    "bi": BiConfig(reduction="mean", match_self_score=20.0),
    "two towers": BiConfig(reduction="mean", shared_towers=False),
    "cross": CrossConfig(),
}
GOALS: dict[str, ModelConfig] = {"bi": STARTS["bi"], "poly": PolyConfig(n_codes=4), "cross": CrossConfig()}


def on(config: ModelConfig, backbone: Path) -> ModelConfig:
    return dataclasses.replace(config, backbone=str(backbone))  # type: ignore[call-arg]


def trained(config: ModelConfig, backbone: Path, path: Path, policy: TextPolicy = POLICY) -> Network:
    """A folder with a model whose weights differ from any backbone's."""
    model, texts, resolved = new_model(on(config, backbone), policy, seed=3, sample=REPLIES)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(4)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.01)
    save_model(path, model, texts, resolved)
    return model


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("start", STARTS)
def test_a_start_provides_its_transformer(tiny_backbone: Path, tmp_path: Path, start: str, goal: str) -> None:
    """The weights equal those of a new model with the transformer copied into it, and its backbone is not needed."""
    backbone = tmp_path / "backbone"
    shutil.copytree(tiny_backbone, backbone)
    source = trained(STARTS[start], backbone, tmp_path / "model")
    config = on(GOALS[goal], backbone)
    fresh = new_model(config, POLICY, seed=1, sample=REPLIES)[0]
    transfer_weights(fresh, source, "the start")
    if start != "cross" or goal == "cross":  # a Cross-encoder has no reduction
        shutil.rmtree(backbone)
    model = start_model(config, POLICY, seed=1, sample=REPLIES, start=tmp_path / "model")[0]
    wanted, weights = fresh.state_dict(), model.state_dict()
    assert weights.keys() == wanted.keys()
    for name in wanted.keys() - {"codes"}:  # their start depends on the transformer's training
        if (start != "cross" and goal != "bi") or not name.endswith("scale"):  # fitted to the current outputs
            assert torch.equal(weights[name], wanted[name]), name


@pytest.mark.parametrize("goal", [BiConfig(reduction="mean"), PolyConfig(n_codes=4)], ids=["bi", "poly"])
@pytest.mark.parametrize(
    ("settings", "scale"),
    [({"output_scale": 3.0}, 3.0), ({}, None), ({"match_self_score": 80.0}, 2.0), ({"match_self_score": 20.0}, 1.0)],
    ids=["given", "of the start", "fitted", "fitted alike"],
)
def test_a_started_encoder_has_the_scale_of_its_settings(
    tiny_backbone: Path, tmp_path: Path, goal: BiConfig, settings: dict[str, float], scale: float | None
) -> None:
    """``scale`` is a multiple of the one at which the start has a self score of 20, unless it is given itself."""
    trained(BiConfig(reduction="mean", output_scale=0.5), tiny_backbone, tmp_path / "model")
    config = on(dataclasses.replace(goal, **settings), tiny_backbone)  # type: ignore[arg-type]  # a dict of numbers
    model, texts, resolved = start_model(config, POLICY, seed=1, sample=REPLIES, start=tmp_path / "model")
    assert isinstance(model, BiEncoder | PolyEncoder)
    assert isinstance(resolved, BiConfig)
    assert float(model.context_tower.scale) == pytest.approx(resolved.output_scale)
    assert torch.equal(model.context_tower.scale, model.candidate_tower.scale)
    with torch.no_grad():
        score = float(model.encode_candidates(texts.candidates(REPLIES)).square().sum(1).mean())
    match settings:
        case {"match_self_score": wanted}:
            assert score == pytest.approx(wanted, rel=1e-4)
        case _:
            assert resolved.output_scale == (0.5 if scale is None else scale)


def test_a_start_with_fewer_words_keeps_its_embeddings(tiny_backbone: Path, tmp_path: Path) -> None:
    source = trained(STARTS["bi"], tiny_backbone, tmp_path / "model")
    config = on(STARTS["bi"], tiny_backbone)
    model, texts, _ = start_model(config, OTHER_TURNS, seed=1, sample=REPLIES, start=tmp_path / "model")
    name = "context_tower.backbone.network.embeddings.word_embeddings.weight"
    old, new = source.state_dict()[name], model.state_dict()[name]
    assert len(new) == len(old) + 1 == len(texts.subwords)  # type: ignore[arg-type]  # texts of a backbone
    assert torch.equal(new[: len(old)], old)
    assert new[-1].abs().sum() > 0
    assert not any(torch.equal(new[-1], row) for row in old)


def test_a_start_keeps_its_own_words(tiny_backbone: Path) -> None:
    """It may answer while a model that begins from it has a further one."""
    config = on(STARTS["bi"], tiny_backbone)
    start = new_model(config, POLICY, seed=1, sample=REPLIES)
    before = make_scorer(*start[:2], device="cpu").score(["[TURN]"], [REPLIES])
    other = new_model(config, OTHER_TURNS, seed=1, sample=REPLIES, start=start)
    assert len(other[1].subwords) == len(start[1].subwords) + 1  # type: ignore[union-attr, arg-type]  # of a backbone
    assert np.array_equal(make_scorer(*start[:2], device="cpu").score(["[TURN]"], [REPLIES]), before)


def test_a_backbone_with_more_words_than_the_start_gets_its_embeddings(tiny_backbone: Path, tmp_path: Path) -> None:
    source = trained(STARTS["bi"], tiny_backbone, tmp_path / "model")
    larger = tmp_path / "larger"
    network, words = AutoModel.from_pretrained(tiny_backbone), AutoTokenizer.from_pretrained(tiny_backbone)
    words.add_tokens(["modem"])
    network.resize_token_embeddings(len(words), mean_resizing=False)
    for part in (network, words):
        part.save_pretrained(larger)
    model, _, _ = start_model(on(STARTS["bi"], larger), POLICY, seed=1, sample=REPLIES, start=tmp_path / "model")
    name = "context_tower.backbone.network.embeddings.word_embeddings.weight"
    old, new = source.state_dict()[name], model.state_dict()[name]
    assert (len(new), new[: len(old)].tolist()) == (len(old) + 1, old.tolist())


@pytest.mark.deep
@pytest.mark.parametrize("shared", [True, False])
def test_a_table_of_words_with_two_names_is_stored_once_and_grows_under_both(shared: bool, tmp_path: Path) -> None:
    """T5 calls its table ``shared`` and ``embed_tokens``; each tower has its own, or both have the same."""
    folder = LAYOUTS["T5 encoder"](tmp_path)
    start = BiConfig(reduction="mean", shared_towers=shared)
    source = trained(start, folder, tmp_path / "model")
    stored = source.stored()
    assert len({tensor.data_ptr() for tensor in stored.values()}) == len(stored)
    assert sum(name.endswith(T5_TABLES) for name in stored) == (1 if shared else 2)

    def tables(model: Network) -> dict[str, torch.Tensor]:
        return {name: tensor for name, tensor in model.state_dict().items() if name.endswith(T5_TABLES)}

    def n_tables(model: Network) -> int:
        return len({tensor.data_ptr() for tensor in tables(model).values()})

    again = load_model(tmp_path / "model").model
    assert again.state_dict().keys() == source.state_dict().keys()
    for name, tensor in source.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    policy = dataclasses.replace(OTHER_TURNS, new_tokens=("[TURN]", *(f"[T{n}]" for n in range(300))))
    model, texts, _ = start_model(on(start, folder), policy, seed=1, sample=REPLIES, start=tmp_path / "model")
    for one in (source, again, model):
        assert len(tables(one)) == 4
        assert n_tables(one) == (1 if shared else 2)
    for name, new in tables(model).items():
        old = source.state_dict()[name]
        assert len(old) < len(new) == len(texts.subwords)  # type: ignore[arg-type]  # texts of a backbone
        assert torch.equal(new[: len(old)], old), name


def test_a_start_on_another_backbone_needs_the_requested_one(tiny_backbone: Path, tmp_path: Path) -> None:
    trained(STARTS["bi"], tiny_backbone, tmp_path / "model")
    with pytest.raises(PolyrankError, match="nowhere"):
        start_model(
            BiConfig(backbone=str(tmp_path / "nowhere")), POLICY, seed=1, sample=REPLIES, start=tmp_path / "model"
        )


def test_a_start_without_a_common_weight_is_refused(tiny_backbone: Path) -> None:
    """Training would begin from scratch, as if nothing were wrong."""
    goal = new_model(on(STARTS["bi"], tiny_backbone), POLICY, seed=1, sample=REPLIES)[0]
    with pytest.raises(ConfigError, match=r"the weights in m do not fit this model \(no common part\)"):
        transfer_weights(goal, make_convert()[0], "m")
    sizes = ScratchModel(layers=1, hidden=16, heads=1, ffn=16, positions=20)
    small, large = (  # fewer words, in vectors of another size
        CrossEncoder(new_bert(own, n_words, padding=0, dropout=0.1, seed=1), head="linear")
        for own, n_words in ((sizes, 9), (dataclasses.replace(sizes, hidden=32), 11))
    )
    with pytest.raises(ConfigError, match=r"the weights in m do not fit this model \(backbone"):
        transfer_weights(large, small, "m", same_words=True)


@pytest.mark.parametrize("goal", GOALS)
def test_a_start_with_other_words_is_refused(tiny_backbone: Path, tmp_path: Path, goal: str) -> None:
    """All shapes are equal, so nothing else would reveal that the embeddings belong to other words."""
    trained(STARTS["bi"], tiny_backbone, tmp_path / "model", OTHER_TURNS)
    other = tmp_path / "other"
    shutil.copytree(tiny_backbone, other)
    file = other / "tokenizer.json"
    file.write_text(file.read_text("utf-8").replace('"wifi"', '"tea"'), "utf-8")
    with pytest.raises(PolyrankError, match="has another vocabulary than the backbone"):
        start_model(on(GOALS[goal], other), OTHER_TURNS, seed=1, sample=REPLIES, start=tmp_path / "model")


def test_a_start_on_a_copy_of_its_backbone_is_accepted(tiny_backbone: Path, tmp_path: Path) -> None:
    source = trained(STARTS["bi"], tiny_backbone, tmp_path / "model", OTHER_TURNS)
    copied = shutil.copytree(tiny_backbone, tmp_path / "copy")
    others = dataclasses.replace(OTHER_TURNS, new_tokens=("[EOT]",), turn_separator="[EOT]")
    model = start_model(on(STARTS["bi"], copied), others, seed=1, sample=REPLIES, start=tmp_path / "model")[0]
    name = "context_tower.backbone.network.embeddings.word_embeddings.weight"
    assert torch.equal(model.state_dict()[name], source.state_dict()[name])
    moved = dataclasses.replace(OTHER_TURNS, new_tokens=("[EOT]", "[TURN]"))  # [TURN] has another row
    with pytest.raises(ConfigError, match=r"the weights in .* do not fit this model \(.*word_embeddings"):
        start_model(on(STARTS["bi"], copied), moved, seed=1, sample=REPLIES, start=tmp_path / "model")


def test_two_towers_do_not_become_one(tiny_backbone: Path, tmp_path: Path) -> None:
    """One network cannot keep both; towers with equal weights may be shared."""
    goal = BiConfig(reduction="mean", shared_towers=True)
    trained(STARTS["two towers"], tiny_backbone, tmp_path / "model")
    with pytest.raises(ConfigError, match=r"has two towers, and model\.shared_towers = true has one network"):
        start_model(on(goal, tiny_backbone), POLICY, seed=1, sample=REPLIES, start=tmp_path / "model")
    fresh, *rest = new_model(on(STARTS["two towers"], tiny_backbone), POLICY, seed=3, sample=REPLIES)
    save_model(tmp_path / "equal", fresh, *rest)
    model = start_model(on(goal, tiny_backbone), POLICY, seed=1, sample=REPLIES, start=tmp_path / "equal")[0]
    name = "candidate_tower.backbone.network.embeddings.word_embeddings.weight"
    assert torch.equal(model.state_dict()[name], fresh.state_dict()[name])


@pytest.mark.parametrize(("most", "fits"), [(120, True), (30, True), (31, False)])
def test_a_budget_for_a_dropped_background_is_named(
    tiny_backbone: Path, tmp_path: Path, most: int, fits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The default and the value of the start are inherited, so nobody need leave them out."""
    before = dataclasses.replace(POLICY, max_background_tokens=30)
    trained(STARTS["bi"], tiny_backbone, tmp_path / "model", before)
    policy = dataclasses.replace(POLICY, background="drop", max_background_tokens=most)
    for goal in (STARTS["bi"], BiConfig(reduction="sqrt_n")):  # nor is a start's reduction lost if another one is set
        start_model(on(goal, tiny_backbone), policy, seed=1, sample=REPLIES, start=tmp_path / "model")
    named = "settings without effect on this model: text.max_background_tokens"
    assert caplog.messages == [named] * (0 if fits else 2)


@pytest.mark.parametrize("reduction", ["first", "sqrt_n", "mean"])
def test_an_encoder_that_leaves_its_reduction_out_inherits_a_mean(
    tiny_backbone: Path, tmp_path: Path, reduction: Any
) -> None:
    """Others were a choice of that training, and do not make its transformer a sentence encoder."""
    trained(BiConfig(reduction=reduction, output_scale=0.5), tiny_backbone, tmp_path / "model")
    is_mean = reduction == "mean"
    for goal in (BiConfig(), PolyConfig(n_codes=4)):
        resolved = start_model(on(goal, tiny_backbone), POLICY, seed=1, sample=REPLIES, start=tmp_path / "model")[2]
        assert isinstance(resolved, BiConfig)
        assert (resolved.reduction, resolved.match_self_score) == (("mean", 20.0) if is_mean else ("first", None))
        if isinstance(resolved, PolyConfig):
            assert resolved.code_init == ("near_zero" if is_mean else "uniform")


def test_dropout_is_that_of_the_training_also_after_a_start(tiny_backbone: Path, tmp_path: Path) -> None:
    trained(STARTS["bi"], tiny_backbone, tmp_path / "model")
    for dropout, expected in ((None, 0.1), (0.0, 0.0), (0.3, 0.3)):
        model, *_ = start_model(
            CrossConfig(backbone=str(tiny_backbone)), POLICY, seed=1, sample=REPLIES, start=tmp_path / "model",
            dropout=dropout, new_dropout=0.2,
        )  # fmt: skip
        assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {expected}
        assert model.dropout == 0.2


def test_a_start_provides_the_prompts_that_are_not_set(tiny_backbone: Path, tmp_path: Path) -> None:
    before = dataclasses.replace(POLICY, context_prefix="my ", candidate_prefix="the ")
    trained(STARTS["bi"], tiny_backbone, tmp_path / "model", before)
    for given in ({}, {"context_prefix": "hi "}, {"candidate_prefix": "hi "}, {"context_prefix": ""}):
        policy = dataclasses.replace(POLICY, **given)  # type: ignore[arg-type]
        model = start_model(on(STARTS["bi"], tiny_backbone), policy, seed=1, sample=REPLIES, start=tmp_path / "model")
        wanted = {"context_prefix": "my ", "candidate_prefix": "the "} | given
        assert model[1].policy == dataclasses.replace(before, **wanted)  # type: ignore[type-var]


def test_a_start_provides_its_added_tokens(tiny_backbone: Path, tmp_path: Path) -> None:
    source = trained(STARTS["bi"], tiny_backbone, tmp_path / "model", OTHER_TURNS)
    config = CrossConfig(backbone=str(tiny_backbone))
    model, texts, _ = start_model(config, POLICY, seed=1, sample=REPLIES, start=tmp_path / "model")
    assert texts.subwords.id_of("[TURN]") == len(texts.subwords) - 1  # type: ignore[union-attr, attr-defined]
    embeddings = "backbone.network.embeddings.word_embeddings.weight"
    assert torch.equal(model.state_dict()[embeddings], source.state_dict()[f"context_tower.{embeddings}"])
