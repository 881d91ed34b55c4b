"""The late Cross-encoder: each side alone in the lower layers, one side reading the other in the upper ones."""

import gc
import json
import shutil
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel
from typer.testing import CliRunner

import polyrank
from polyrank import train
from polyrank.answering.build import build_index
from polyrank.answering.replies import Replies
from polyrank.cli import app
from polyrank.config.models import MODEL, BiConfig, CrossConfig, LateConfig, PolyConfig, Side, TextPolicy
from polyrank.data import read_examples
from polyrank.errors import ConfigError, UsageError
from polyrank.index import open_index
from polyrank.models import LateCrossEncoder, new_model
from polyrank.models.artifacts import read_config
from polyrank.models.build import Model
from polyrank.models.transfer import transfer_weights
from polyrank.ranking.relevance import RELEVANCE, Relevance
from polyrank.records import Context
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.exported.export import export_model
from polyrank.scorers.in_int8 import check_int8, read_record
from polyrank.scorers.kept import Kept
from polyrank.scorers.late import LateScorer
from polyrank.scorers.lexical import BM25
from polyrank.scorers.load import Precision, make_scorer
from polyrank.scorers.open import load_stage
from polyrank.scorers.protocols import Scorer
from polyrank.scorers.ranker import Ranker
from polyrank.scorers.terms.cross import CrossTerm
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.storage.document import seal
from polyrank.training.ranker import validation_figures
from two_stages import Summed

CONTEXTS = [["my wifi is down"], ["hi", "the bill is high, very high"], ["red light"]]
LISTS = [["router thanks", "bill", "wifi wifi wifi wifi"], ["bill"], ["green light", "my wifi is down"]]
POLICY = TextPolicy(max_context_tokens=24, max_candidate_tokens=12)


@pytest.fixture(scope="session")
def deep_backbone(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny backbone with four layers."""
    folder = tmp_path_factory.mktemp("deep") / "backbone"
    shutil.copytree(tiny_backbone, folder)
    torch.manual_seed(4)
    BertModel(BertConfig.from_pretrained(folder, num_hidden_layers=4)).save_pretrained(folder)
    return folder


def model(
    backbone: Path, reader: Any = "candidate", joined_layers: int = 1, reduction: Any = "mean", new_dropout: float = 0.0
) -> Model:
    config = LateConfig(backbone=str(backbone), reader=reader, joined_layers=joined_layers, reduction=reduction)
    return new_model(config, POLICY, seed=3, sample=[], new_dropout=new_dropout)


def scorer(backbone: Path, *settings: Any) -> LateScorer:
    network, texts, _ = model(backbone, *settings)
    found = make_scorer(network.eval(), texts, device="cpu", precision="fp32")
    assert isinstance(found, LateScorer)
    return found


def masked(network: LateCrossEncoder, own: torch.Tensor, other: torch.Tensor, n_alone: int) -> torch.Tensor:
    """The score of one pair as that of one BERT over both sides with a mask; both sides have equal weights."""
    bert: Any = network.backbone.network
    hidden = torch.cat([bert.embeddings(ids[None], None, None) for ids in (own, other)], 1)
    side = torch.tensor([0] * len(own) + [1] * len(other))
    alone = side[:, None] == side[None, :]
    for number, layer in enumerate(bert.encoder.layer):
        seen = alone if number < n_alone else alone | (side == 0)[:, None]  # the reader sees everything
        hidden = layer(hidden, seen[None, None], None)
    outputs, code = hidden[0, : len(own)], network.pooling.code
    if code is not None:
        weights = torch.tensor([float(output @ code) for output in outputs]).exp()
        return network.head((weights / weights.sum()) @ outputs)[0]  # type: ignore[no-any-return]
    return network.head(outputs[0] if network.pooling.reduction == "first" else outputs.mean(0))[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("reduction", ["mean", "first", "learnt"])
@pytest.mark.parametrize("reader", ["context", "candidate"])
def test_scores_equal_those_of_a_masked_transformer(deep_backbone: Path, reader: str, reduction: str) -> None:
    n_joined = 2 if reduction == "first" else 3
    found = scorer(deep_backbone, reader, n_joined, reduction)
    network = found.model
    if network.pooling.code is not None:
        with torch.no_grad():
            network.pooling.code.normal_(generator=torch.Generator().manual_seed(2))
    n_alone = len(network.backbone.layers()) - n_joined
    for context, texts, values in zip(CONTEXTS, LISTS, found.score(CONTEXTS, LISTS), strict=True):
        for text, value in zip(texts, values, strict=True):
            sides = [found.texts.context_ids(Context.of(context)), found.texts.candidate_ids(text)]
            own, other = map(torch.tensor, sides if reader == "context" else sides[::-1])
            with torch.no_grad():
                expected = float(masked(network, own, other, n_alone))
            assert value == pytest.approx(expected, abs=2e-4)  # inputs are kept in 16 bits


@pytest.mark.parametrize("reader", ["context", "candidate"])
def test_a_score_depends_neither_on_its_batch_nor_on_what_is_kept(tiny_backbone: Path, reader: str) -> None:
    found = scorer(tiny_backbone, reader)
    together = found.score(CONTEXTS, LISTS)
    for context, texts, values in zip(CONTEXTS, LISTS, together, strict=True):
        for text, value in zip(texts, values, strict=True):
            assert scorer(tiny_backbone, reader).score([context], [[text]])[0][0] == pytest.approx(value, abs=1e-6)
    again = found.score(CONTEXTS, LISTS)
    assert all((a == b).all() for a, b in zip(together, again, strict=True))
    found.max_tokens = 8
    for a, b in zip(together, found.score(CONTEXTS, LISTS), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert [len(values) for values in found.score([["hi"], ["wifi"]], [[], []])] == [0, 0]
    order = [1, 0, 0, 2, 1]  # of contexts that repeat
    repeated = scorer(tiny_backbone, reader).score([CONTEXTS[i] for i in order], [LISTS[i] for i in order])
    for i, values in zip(order, repeated, strict=True):
        np.testing.assert_allclose(values, together[i], atol=1e-6)


@pytest.mark.parametrize("kind", [BiConfig, PolyConfig, CrossConfig, LateConfig])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_network_computes_in_the_type_of_its_scorer(tiny_backbone: Path, kind: Any, precision: Any) -> None:
    """Also while it is trained, with weights in fp32; so do the layers that join both sides."""
    config = kind(backbone=str(tiny_backbone), **({"joined_layers": 1} if kind is LateConfig else {}))
    network, texts, _ = new_model(config, POLICY, seed=3, sample=["hi"])
    found = make_scorer(network.eval(), texts, device="cpu", precision=precision)
    seen: list[bool] = []
    for part in (network, *network.trunks()):  # a late Cross-encoder itself joins the sides
        part.register_forward_pre_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    found.score(CONTEXTS, LISTS)
    assert {*seen} == {precision == "bf16"}


def test_a_candidate_is_read_once_within_the_memory_limit(tiny_backbone: Path) -> None:
    found = scorer(tiny_backbone)
    read = texts_read(found, "candidate")
    expected = found.score(CONTEXTS, LISTS)
    n_texts = len({text for texts in LISTS for text in texts})
    assert sum(read) == n_texts
    found.score([["another"]] * 3, LISTS)
    assert sum(read) == n_texts
    _, *others = found.kept
    found.kept.max_bytes = found.kept.n_bytes
    found.score([["hi"]], [["wifi"]])  # takes the place of the oldest
    assert [*found.kept] == [*others, "wifi"]
    found.kept.max_bytes = 0
    for _ in range(2):
        values = found.score(CONTEXTS, LISTS)
        for a, b in zip(values, expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)
        assert ([*found.kept], found.kept.n_bytes) == ([], 0)


@pytest.mark.parametrize(("most_kept", "most_offered"), [(2**20, 0), (0, 2**20)])
def test_candidates_and_what_a_first_stage_reads_have_limits_of_their_own(
    deep_backbone: Path, monkeypatch: pytest.MonkeyPatch, most_kept: int, most_offered: int
) -> None:
    monkeypatch.setattr("polyrank.scorers.late.MAX_KEPT", most_kept)
    monkeypatch.setattr("polyrank.scorers.late.MAX_OFFERED", most_offered)
    late = scorer(deep_backbone)
    both = Summed(encoder(deep_backbone), late)
    contexts, candidates = texts_read(late, "context"), texts_read(late, "candidate")
    for _ in range(2):
        both.score(CONTEXTS, LISTS)
    n_texts = len({text for texts in LISTS for text in texts})
    assert sum(contexts) == (0 if most_offered else 2 * len(CONTEXTS))
    assert sum(candidates) == (n_texts if most_kept else 2 * n_texts)


def test_some_rows_are_scored_with_few_pairs_at_a_time(tiny_backbone: Path) -> None:
    network, texts, _ = model(tiny_backbone)
    late = make_scorer(network.eval(), texts, device="cpu", precision="fp32")
    assert isinstance(late, LateScorer)
    late.max_tokens = 8  # several batches
    sizes: list[int] = []
    hook = network.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[-2])))
    every = late.score(CONTEXTS, LISTS)
    assert (len(sizes) > 1, max(sizes) > 1) == (True, True)
    kept = [inputs for text in late.kept if (inputs := late.kept.get(text)) is not None]
    assert [inputs.base is None for inputs in kept] == [True] * 5  # the rest of a batch is not kept with them
    sizes.clear()
    for rows in ([0], [2, 1], [1]):
        found = late.joined_scores(CONTEXTS, LISTS, rows, chunk_size=1).detach().numpy()
        np.testing.assert_allclose(found, np.concatenate([every[row] for row in rows]), atol=1e-6)
    assert sizes == [1] * 7
    hook.remove()


def test_copies_of_a_text_have_equal_scores(tiny_backbone: Path) -> None:
    found = scorer(tiny_backbone)
    for n in range(1, 20):
        (scores,) = found.score(["my wifi is down"], [["restart the router"] * n])
        assert (len(scores), len(set(scores.tolist()))) == (n, 1)


def texts_read(late: LateScorer, side: Side) -> list[int]:
    """How many texts each further pass of a side reads."""
    read: list[int] = []
    network: Any = late.model.transformer(side).backbone.network
    network.embeddings.register_forward_hook(lambda _module, arguments, _output: read.append(len(arguments[0])))
    return read


def encoder(backbone: Path, precision: Precision = "fp32") -> EncoderScorer:
    network, texts, _ = new_model(BiConfig(backbone=str(backbone)), POLICY, seed=3, sample=[])
    found = make_scorer(network.eval(), texts, device="cpu", precision=precision)
    assert isinstance(found, EncoderScorer)
    return found


@pytest.mark.deep
@pytest.mark.parametrize("joined_layers", [1, 2])
@pytest.mark.parametrize("reader", ["context", "candidate"])
def test_two_stages_read_a_context_once(deep_backbone: Path, reader: str, joined_layers: int) -> None:
    contexts, lists = [*CONTEXTS, CONTEXTS[0]], [*LISTS, ["bill"]]
    alone, late = (scorer(deep_backbone, reader, joined_layers) for _ in range(2))
    both = Summed(encoder(deep_backbone), late)
    read = texts_read(late, "context")
    first = encoder(deep_backbone).score(contexts, lists)
    for _ in range(2):
        expected = [a + b for a, b in zip(first, alone.score(contexts, lists), strict=True)]
        assert all((a == b).all() for a, b in zip(both.score(contexts, lists), expected, strict=True))
    assert read == []
    late.score(contexts[:1], lists[:1])  # without a first stage
    assert read == [1]


def test_replies_read_a_context_once(deep_backbone: Path, tmp_path: Path) -> None:
    first, late = encoder(deep_backbone), scorer(deep_backbone)
    first.fingerprint = "first"
    build_index(tmp_path / "index", first, LISTS[0], name="first")
    ranker = Ranker([(EncoderTerm(first), (1.0,)), (CrossTerm(late), (1.0,))])
    with Replies(ranker, open_index(tmp_path / "index")) as replies:
        read = texts_read(late, "context")
        assert len(replies.respond(CONTEXTS[:1], 2)[0]) == 2
    assert read == []


@pytest.mark.deep
def test_two_stages_that_are_closed_leave_no_memory(deep_backbone: Path) -> None:
    gc.collect()
    gc.disable()
    try:
        both = Summed(encoder(deep_backbone), scorer(deep_backbone))
        both.score(CONTEXTS, LISTS)
        networks = [weakref.ref(scorer.networks[0].model) for scorer in (both.retriever, both.reranker)]
        del both
        assert [network() for network in networks] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("other", ["a lower layer", "words", "precision", "depth", "kind"])
def test_a_late_cross_encoder_reads_contexts_itself_after_another_first_stage(
    deep_backbone: Path, tiny_backbone: Path, other: str
) -> None:
    first: Scorer = encoder(
        tiny_backbone if other == "depth" else deep_backbone, "bf16" if other == "precision" else "fp32"
    )
    if other == "kind":
        first = BM25()
    elif other in ("a lower layer", "words"):
        bert: Any = first.networks[0].model.context_tower.backbone.network
        with torch.no_grad():
            if other == "words":
                bert.embeddings.word_embeddings.weight[-1] += 1
            else:
                bert.encoder.layer[1].output.dense.bias[0] += 1e-3
    late = scorer(deep_backbone)
    both = Summed(first.fitted_to(lambda: ["wifi"]), late)
    assert not any(layer._forward_pre_hooks for network in first.networks for layer in network.model.modules())
    read = texts_read(late, "context")
    both.score(CONTEXTS, LISTS)
    assert sum(read) == len(CONTEXTS)


def test_a_first_stage_with_changed_weights_gives_no_inputs(deep_backbone: Path) -> None:
    first, late = encoder(deep_backbone), scorer(deep_backbone)
    both = Summed(first, late)
    bert: Any = first.networks[0].model.context_tower.backbone.network
    with torch.no_grad():
        bert.encoder.layer[0].output.dense.bias[0] += 1
    first.forget()
    expected = [
        a + b for a, b in zip(first.score(CONTEXTS, LISTS), scorer(deep_backbone).score(CONTEXTS, LISTS), strict=True)
    ]
    assert all((a == b).all() for a, b in zip(both.score(CONTEXTS, LISTS), expected, strict=True))


def test_threads_do_not_mix_what_they_read(deep_backbone: Path) -> None:
    late = scorer(deep_backbone)
    both = Summed(encoder(deep_backbone), late)
    contexts = [[" ".join(["wifi", "bill", "hi", "red"][i % 4 :]) + " router" * (i % 7)] for i in range(60)]
    alone = scorer(deep_backbone)
    expected = [alone.score([context], LISTS[:1])[0] for context in contexts]
    read = texts_read(late, "context")
    first = encoder(deep_backbone)
    with ThreadPoolExecutor(4) as threads:
        found = [*threads.map(lambda context: both.score([context], LISTS[:1])[0], contexts)]
    for context, second, total in zip(contexts, expected, found, strict=True):
        np.testing.assert_allclose(total, first.score([context], LISTS[:1])[0] + second, atol=1e-6)
    assert sum(read) < len(contexts) / 2  # equal contexts of two threads at a time share one entry


def test_threads_may_keep_arrays_at_once() -> None:
    kept = Kept[int, np.ndarray](4_000)

    def keep(seed: int) -> None:
        for key, size in np.random.default_rng(seed).integers(1, 300, (8_000, 2)).tolist():
            kept.add([(key % 50, np.zeros(size, np.uint8))])
            kept.pop(size % 50)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(keep, range(4)))
    finally:
        sys.setswitchinterval(interval)
    assert kept.n_bytes == sum(array.nbytes for key in kept if (array := kept.get(key)) is not None)


def test_only_joined_layers_and_the_head_are_trained(deep_backbone: Path) -> None:
    network, _, _ = model(deep_backbone, "context", 1)
    assert isinstance(network, LateCrossEncoder)
    n = len(network.backbone.layers())
    trained = {name for name, weight in network.named_parameters() if weight.requires_grad}
    own = f"context_tower.backbone.network.encoder.layer.{n - 1}."
    assert {name for name in trained if not name.startswith(own)} == {"head.weight", "head.bias"}
    assert f"{own}attention.self.key.weight" in trained
    assert not any(
        name.startswith(f"candidate_tower.backbone.network.encoder.layer.{n - 1}.") for name in network.state_dict()
    )


def test_new_dropout_precedes_the_head(tiny_backbone: Path) -> None:
    late = scorer(tiny_backbone, "candidate", 1, "mean", 0.4)
    inputs = late.context_inputs(CONTEXTS), late.candidate_inputs(LISTS[0]), [(0, 1), (1, 0), (2, 2)]
    read: list[torch.Tensor] = []
    late.model.head.register_forward_pre_hook(lambda _, values: read.append(values[0].detach()))
    late.joined(*inputs)
    late.model.training = True  # but not its transformers, whose dropout is another setting
    torch.manual_seed(9)
    late.joined(*inputs)
    torch.manual_seed(9)
    assert torch.equal(read[1], torch.nn.functional.dropout(read[0], 0.4))
    assert not torch.equal(read[1], read[0])
    late.model.training = False
    attention: Any = late.model.backbone.layers()[-1].attention.self  # type: ignore[union-attr]  # of a BERT
    attention.train()
    for share in (0.0, 0.5):
        attention.dropout.p = share
        late.joined(*inputs)
    assert torch.allclose(read[2], read[0])
    assert not torch.allclose(read[3], read[0])


@pytest.mark.parametrize("kind", ["late", "cross"])
def test_a_learnt_mean_starts_as_the_mean_and_is_trained(
    word_task: dict[str, Path], deep_backbone: Path, tmp_path: Path, kind: str
) -> None:
    new = {"late": LateConfig, "cross": CrossConfig}[kind]
    started = [
        new_model(new(backbone=str(deep_backbone), reduction=reduction), POLICY, seed=3, sample=[])
        for reduction in ("mean", "learnt")
    ]
    plain, weighted = (
        make_scorer(network.eval(), texts, device="cpu", precision="fp32") for network, texts, _ in started
    )
    for a, b in zip(plain.score(CONTEXTS, LISTS), weighted.score(CONTEXTS, LISTS), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    plan = recipe(word_task, deep_backbone, tmp_path / "run", max_steps=4, precision="bf16")
    plan["model"] = {"kind": kind, "backbone": str(deep_backbone), "reduction": "learnt"}
    (result,) = train(plan, device="cpu")
    loaded = load_stage(result.model, precision="bf16").model  # type: ignore[attr-defined]
    assert loaded.pooling.code.dtype == torch.float32
    assert loaded.pooling.code.abs().max() > 0
    assert any(parameter is loaded.pooling.code for parameter in loaded.new_parameters())


def recipe(task: dict[str, Path], backbone: Path, output: Path, first: Path | None = None, **changes: Any) -> Any:
    method = {"kind": "listwise"} if first is None else {"kind": "rerank", "first_stage": str(first)}
    settings = {"method": method, "negatives": {"n": 3}, "batch_size": 8, "max_steps": 12, "epochs": 9, "lr": 3e-3}
    return {
        "model": {"kind": "late", "backbone": str(backbone), "joined_layers": 1},
        "text": {"max_context_tokens": 16, "max_candidate_tokens": 12},
        "data": {name: str(path) for name, path in task.items()},
        "output": str(output),
        "train": settings | {"schedule": {"kind": "constant", "warmup_steps": 0}} | changes,
    }


@pytest.mark.deep
def test_a_late_cross_encoder_corrects_its_first_stage(
    word_task: dict[str, Path], tiny_backbone: Path, tiny_encoders: dict[str, Path], tmp_path: Path
) -> None:
    first = tiny_encoders["bi"]
    plan = recipe(word_task, tiny_backbone, tmp_path / "run", first, max_steps=60, epochs=15, init_from=str(first))
    (result,) = train(plan)
    lists = read_examples(word_task["valid"]).examples
    late, bi = load_stage(result.model), polyrank.load(first)
    assert isinstance(late, LateScorer)
    assert (late.corrects, late.first_stage) == (bi.fingerprint, str(first))
    document, stated = read_config(result.model), {"scale": 2.0, "offset": -1.0, "error": 0.1}
    metadata = {**document["metadata"], RELEVANCE: stated}
    (result.model / MODEL.file).write_bytes(seal({**document, "metadata": metadata}, MODEL))
    for precision in ("fp32", "bf16", "int8"):
        opened = polyrank.load(result.model, precision=precision)  # type: ignore[arg-type]  # names
        assert [network.precision for network in opened.networks] == [precision] * 2
        assert (opened.name, opened.relevance) == (late.name, Relevance(**stated))
    both = Summed(bi, late, n_retrieved=4)
    assert validation_figures(both, lists)["MRR"] > validation_figures(bi, lists)["MRR"]
    assert result.fit.best == pytest.approx(validation_figures(both, lists))
    # the frozen layers are still those of the first stage
    weights = polyrank.load(first).model.state_dict()  # type: ignore[attr-defined]
    own = late.model.state_dict()
    changed = {name for name in own.keys() & weights.keys() if not torch.equal(own[name], weights[name])}
    last = len(late.model.backbone.layers()) - 1
    assert changed
    assert all(name.startswith(f"candidate_tower.backbone.network.encoder.layer.{last}.") for name in changed)


def test_saved_and_loaded_scores_are_bit_equal_and_a_stopped_run_resumes(
    word_task: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    (whole,) = train(recipe(word_task, tiny_backbone, tmp_path / "whole"), device="cpu")
    (part,) = train(recipe(word_task, tiny_backbone, tmp_path / "part", max_steps=5), device="cpu")
    del part
    (rest,) = train(recipe(word_task, tiny_backbone, tmp_path / "part"), device="cpu", resume=True)
    files = [result.model / "model.safetensors" for result in (whole, rest)]
    assert files[0].read_bytes() == files[1].read_bytes()
    a, b = (load_stage(whole.model, precision="fp32") for _ in range(2))
    assert all((x == y).all() for x, y in zip(a.score(CONTEXTS, LISTS), b.score(CONTEXTS, LISTS), strict=True))


def test_training_takes_inputs_from_the_first_stage_and_resumes_to_the_same_bits(
    word_task: dict[str, Path],
    tiny_backbone: Path,
    tiny_encoders: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []
    compute = LateCrossEncoder.inputs
    monkeypatch.setattr(
        LateCrossEncoder, "inputs", lambda model, side, tokens: (read.append(side), compute(model, side, tokens))[1]
    )
    first = tiny_encoders["bi"]
    found, n_read = [], {}
    for name, stops in {"whole": [8], "resumed": [3, 8], "alone": [8]}.items():
        if name == "alone":
            monkeypatch.setattr(LateScorer, "follow", lambda *_: None)
        for stop in stops:
            read.clear()
            plan = recipe(word_task, tiny_backbone, tmp_path / name, first, max_steps=stop, init_from=str(first))
            plan["train"]["precision"] = "fp32"
            del plan["data"]["valid"], plan["data"]["test"]
            (result,) = train(plan, device="cpu", resume=stop != stops[0])
        found.append((result.model / "model.safetensors").read_bytes())
        n_read[name] = len(read)
    assert len({*found}) == 1
    assert (
        n_read["whole"] == n_read["resumed"] == 2 < n_read["alone"]
    )  # a sentence of each side shows that layers are equal


@pytest.mark.deep
def test_chunks_change_only_rounding(word_task: dict[str, Path], tiny_backbone: Path, tmp_path: Path) -> None:
    found = []
    for size in (None, 3):
        plan = recipe(word_task, tiny_backbone, tmp_path / f"{size}", dropout=0.0, max_steps=4, chunk_size=size)
        (result,) = train(plan, device="cpu")
        found.append(load_stage(result.model, precision="fp32").score(CONTEXTS, LISTS))
    for a, b in zip(*found, strict=True):  # a list's loss does not depend on the head's bias
        np.testing.assert_allclose(a - a[0], b - b[0], atol=1e-5)


@pytest.mark.deep
@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_narrow_weights_score_alike(
    word_task: dict[str, Path], tiny_backbone: Path, tmp_path: Path, precision: Any
) -> None:
    (result,) = train(recipe(word_task, tiny_backbone, tmp_path / "run", max_steps=8), device="cpu")
    exact, narrow = (load_stage(result.model, precision=name) for name in ("fp32", precision))
    values = [np.concatenate(each.score(CONTEXTS, LISTS)) for each in (exact, narrow)]
    assert np.corrcoef(*values)[0, 1] > 0.98
    assert not np.array_equal(*values)
    words = "my wifi is down and the bill is high and the light is red"
    contexts, lists = [["hi"], [words]], [["hi", words], [words, "thanks"]]
    alone = [
        np.concatenate(narrow.score([c] * 2, [[text] for text in texts]))
        for c, texts in zip(contexts, lists, strict=True)
    ]
    for together, single in zip(narrow.score(contexts, lists), alone, strict=True):
        np.testing.assert_allclose(together, single, atol=1e-6)  # padding does not depend on the batch


@pytest.mark.deep
def test_int8_is_checked_and_recorded(word_task: dict[str, Path], tiny_backbone: Path, tmp_path: Path) -> None:
    (result,) = train(recipe(word_task, tiny_backbone, tmp_path / "run", max_steps=8), device="cpu")
    found = check_int8(result.model, read_examples(word_task["valid"]).examples)
    assert read_record(result.model) == found
    assert found.overlap > 0.5


def test_only_a_network_with_the_same_reader_gets_its_weights(tiny_backbone: Path) -> None:
    trained, alike, other = (model(tiny_backbone, reader)[0] for reader in ("candidate", "candidate", "context"))
    cross, _, _ = new_model(CrossConfig(backbone=str(tiny_backbone)), POLICY, seed=1, sample=["hi"])
    for network in (other, cross):
        with pytest.raises(ConfigError, match="it is a late Cross-encoder, of which only the candidate has all layers"):
            transfer_weights(network, trained, "it")
    with torch.no_grad():
        next(trained.parameters()).add_(1.0)
    transfer_weights(alike, trained, "it")
    assert all(torch.equal(a, b) for a, b in zip(alike.parameters(), trained.parameters(), strict=True))


@pytest.mark.deep
def test_another_network_does_not_start_from_its_incomplete_side(
    word_task: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    (late,) = train(recipe(word_task, tiny_backbone, tmp_path / "late", max_steps=1), device="cpu")
    for change in ({"kind": "cross"}, {"kind": "late", "reader": "context"}):
        plan = recipe(word_task, tiny_backbone, tmp_path / "run", init_from=str(late.model))
        plan["model"] = {"backbone": str(tiny_backbone), **change}
        with pytest.raises(ConfigError, match="of which only the candidate has all layers; start from the encoder"):
            train(plan, device="cpu")
    again = recipe(word_task, tiny_backbone, tmp_path / "run", max_steps=1, init_from=str(late.model))
    assert train(again, device="cpu")


def test_wrong_settings_are_refused_with_the_fix(
    word_task: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    for n in (2, 9):
        with pytest.raises(ConfigError, match=rf"joined_layers = {n} leaves none of 2 layers alone; give at most 1$"):
            model(tiny_backbone, "context", n)
    with pytest.raises(ConfigError, match="no in-batch negatives"):
        train(recipe(word_task, tiny_backbone, tmp_path / "b", method={"kind": "in_batch"}))
    (result,) = train(recipe(word_task, tiny_backbone, tmp_path / "run", max_steps=1), device="cpu")
    with pytest.raises(UsageError, match="keeps what it read of candidates"):
        export_model(result.model, "onnx")
    said = CliRunner().invoke(app, ["explain", str(result.model), "my wifi", "--reply", "wifi thanks", "--json"])
    assert said.exit_code == 0, said.output
    assert json.loads(said.stdout)["method"] == "left out"
