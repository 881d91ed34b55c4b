"""Exports return the network's scores in every batch; wrong exports and exports of other weights are refused."""

import json
import re
import shutil
import sys
import threading
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from polyrank.cli.commands import app
from polyrank.config.models import BiConfig, CrossConfig, ModelConfig, PolyConfig, TextPolicy
from polyrank.errors import ArtifactError, DataError, MissingExtraError, UsageError
from polyrank.loading.models import Backend, export_folder
from polyrank.models import new_model
from polyrank.models.artifacts import load_model, save_model
from polyrank.models.backbone import Backbone
from polyrank.models.exported import ExportedEncoder
from polyrank.ranking.relevance import RELEVANCE, Relevance
from polyrank.records import Context, Example
from polyrank.scorers.chunks import Chunked
from polyrank.scorers.cross import CrossScorer
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.exported import (
    Agreement,
    check_export,
    export_model,
    export_to_sentence_transformers,
    load_exported,
)
from polyrank.scorers.exported.agreement import agreement, worst_cosine
from polyrank.scorers.exported.folder import read_manifest, write_manifest
from polyrank.scorers.exported.graphs import OPSET, _length, _quantize
from polyrank.scorers.exported.sentence_transformers import _turns
from polyrank.scorers.exported.sessions import open_session
from polyrank.scorers.open import load, load_encoder
from polyrank.text import BackboneTexts

POLICY = TextPolicy(max_context_tokens=48, max_candidate_tokens=16)
CONTEXTS = [
    Context(("my wifi is down",)),
    Context(("hi", "hello", "the router light is red", "did it restart that")),
    Context(("bill",)),
    Context(tuple(["please restart the router", "it is too high"] * 12)),
]
CANDIDATES = ["restart the router please", "hi", "is the light green", "", "thanks the bill is too high " * 8]
BACKENDS: list[Backend] = ["onnx", "openvino"]
STATED = Relevance(scale=2.0, offset=-1.0, error=0.1)
LIBRARIES = {"onnx": "onnxruntime", "openvino": "openvino"}


def make(folder: Path, backbone: Path, kind: type[Any], *, seed: int = 0, **settings: Any) -> Path:
    config: ModelConfig = kind(backbone=str(backbone), **settings)
    model, texts, config = new_model(config, POLICY, seed=seed, sample=CANDIDATES)
    save_model(folder, model, texts, config, metadata={RELEVANCE: asdict(STATED)})
    return folder


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    pytest.importorskip(LIBRARIES[request.param])
    backend: Backend = request.param
    return backend


@pytest.fixture(scope="module")
def cross(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Cross-encoder with an ONNX export."""
    pytest.importorskip("onnxruntime")
    path = make(tmp_path_factory.mktemp("cross") / "m", tiny_backbone, CrossConfig)
    export_model(path, "onnx")
    return path


KINDS: list[tuple[type[Any], dict[str, Any]]] = [
    (BiConfig, {"shared_towers": True, "projection_dim": 8}),
    (PolyConfig, {"n_codes": 4}),
    (PolyConfig, {"codes": "last_h1", "n_codes": 5}),
    (CrossConfig, {"head": "mlp"}),
    (CrossConfig, {"reduction": "learnt"}),
]


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_an_export_scores_as_the_network_does(
    tmp_path: Path, tiny_backbone: Path, backend: Backend, kind: type[Any], settings: dict[str, Any]
) -> None:
    if backend == "openvino" and kind is PolyConfig:
        pytest.skip("OpenVINO reads the ONNX graph, and one Poly-encoder is tested below")
    path = make(tmp_path / "m", tiny_backbone, kind, **settings)
    assert export_model(path, backend) >= 0.9999
    exported, reference = load_exported(path, backend, precision="fp32"), load(path, precision="fp32")
    assert (exported.fingerprint, exported.relevance) == (reference.fingerprint, reference.relevance)
    assert exported.relevance == STATED
    lists = [CANDIDATES[: 1 + row] for row in range(len(CONTEXTS))]
    expected = reference.score(CONTEXTS, lists)
    for found, right in zip(exported.score(CONTEXTS, lists), expected, strict=True):
        np.testing.assert_allclose(found, right, atol=1e-4, rtol=1e-4)
    # neither the other texts of a batch nor its size change a score
    exported.max_tokens = 1
    for row in (3, 1):
        exported.forget()
        alone = exported.score([CONTEXTS[row]], [lists[row]])[0]
        np.testing.assert_allclose(alone, expected[row], atol=1e-4, rtol=1e-4)


@pytest.mark.deep
def test_vectors_of_an_export_fit_the_index_of_the_model(tmp_path: Path, tiny_backbone: Path, backend: Backend) -> None:
    path = make(tmp_path / "m", tiny_backbone, PolyConfig, n_codes=3)
    export_model(path, backend)
    own, exported = load_encoder(path), load_encoder(path, backend=backend)
    assert [isinstance(one.networks[0].model, ExportedEncoder) for one in (own, exported)] == [False, True]
    assert (own.fingerprint, own.dimension) == (exported.fingerprint, exported.dimension)
    np.testing.assert_allclose(exported.encode_candidates(CANDIDATES), own.encode_candidates(CANDIDATES), atol=1e-4)
    vectors, mask = exported.encode_contexts(CONTEXTS)
    assert mask.all()
    np.testing.assert_allclose(vectors, own.encode_contexts(CONTEXTS)[0], atol=1e-4)
    assert isinstance(load(str(path), backend=backend), EncoderScorer)


@pytest.mark.deep
def test_an_export_of_other_weights_is_stale(tmp_path: Path, tiny_backbone: Path, cross: Path) -> None:
    path = make(tmp_path / "m", tiny_backbone, CrossConfig, seed=1)
    shutil.copytree(cross / "backends", path / "backends")
    with pytest.raises(
        ArtifactError, match=r"is stale: .* make it again with: polyrank export .* --to onnx --overwrite"
    ):
        load_exported(path, "onnx")
    with pytest.raises(UsageError, match="already exists"):
        export_model(path, "onnx")
    export_model(path, "onnx", replace=True)
    assert isinstance(load_exported(path, "onnx"), CrossScorer)


@pytest.mark.deep
@pytest.mark.parametrize("name", ["pairs.onnx", "export.json"])
def test_every_changed_byte_is_detected(tmp_path: Path, cross: Path, name: str) -> None:
    path = tmp_path / "m"
    shutil.copytree(cross, path)
    place = export_folder(path, "onnx") / name
    whole = place.read_bytes()
    for at in np.linspace(0, len(whole) - 1, 25, dtype=int):
        place.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(ArtifactError, match=r"damaged|too new|stale"):
            load_exported(path, "onnx")
    place.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArtifactError, match="damaged"):
        load_exported(path, "onnx")


def test_every_file_of_an_export_is_verified(tmp_path: Path) -> None:
    for name in ("contexts.onnx", "candidates.onnx"):
        (tmp_path / name).write_bytes(b"a graph")
    write_manifest(tmp_path, backend="onnx", fingerprint="f" * 64, dimension=3, graphs={})
    read = partial(read_manifest, tmp_path, model=tmp_path, backend="onnx", fingerprint="f" * 64)
    assert read()["dimension"] == 3
    stale = r"is stale: it was made from weights f{12}, the model's are e{12}; make it again with: polyrank export"
    with pytest.raises(ArtifactError, match=stale):
        read_manifest(tmp_path, model=tmp_path, backend="onnx", fingerprint="e" * 64)
    for name in ("contexts.onnx", "candidates.onnx"):
        for content in (b"a grapH", None):
            (tmp_path / name).unlink()
            if content is not None:
                (tmp_path / name).write_bytes(content)
            with pytest.raises(ArtifactError, match=rf"{name} is (damaged|missing).*again with: polyrank export"):
                read()
        (tmp_path / name).write_bytes(b"a graph")


@pytest.mark.deep
def test_an_unfaithful_export_is_refused(tmp_path: Path, tiny_backbone: Path) -> None:
    onnx = pytest.importorskip("onnx")
    path = make(tmp_path / "m", tiny_backbone, BiConfig, shared_towers=True)
    assert export_model(path, "onnx") >= 0.9999
    folder = export_folder(path, "onnx")
    document = json.loads((folder / "export.json").read_text())
    graph = onnx.load(folder / "candidates.onnx")
    noise = np.random.default_rng(0)
    for tensor in graph.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.ndim == 2:
            noisy = values + noise.normal(scale=0.2, size=values.shape).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(noisy, tensor.name))
    onnx.save(graph, folder / "candidates.onnx")
    (folder / "export.json").unlink()
    write_manifest(
        folder,
        backend="onnx",
        fingerprint=document["fingerprint"],
        dimension=document["dimension"],
        graphs=document["graphs"],
    )
    with pytest.raises(
        ArtifactError, match=r"worst cosine to fp32 is -?0\.\d{4}, the limit is 0\.999; export to openvino"
    ):
        check_export(path, "onnx")


@pytest.mark.deep
def test_scorers_that_disagree_have_a_low_cosine(tmp_path: Path, tiny_backbone: Path, cross: Path) -> None:
    first: Any = load(make(tmp_path / "a", tiny_backbone, PolyConfig, n_codes=3, code_init="normal"))
    same = load(tmp_path / "a")
    other = load(make(tmp_path / "b", tiny_backbone, PolyConfig, n_codes=3, code_init="normal", seed=1))
    fewer = load(make(tmp_path / "c", tiny_backbone, PolyConfig, n_codes=2, code_init="normal"))
    assert worst_cosine(first, same, CONTEXTS, CANDIDATES) == pytest.approx(1)
    assert worst_cosine(first, other, CONTEXTS, CANDIDATES) < 0.999
    assert worst_cosine(first, fewer, CONTEXTS, CANDIDATES) == -1
    for factor, cosine in ((2, 1), (-1, -1), (np.nan, -1)):  # of the candidates alone

        def encode(texts: list[str], factor: float = factor) -> Any:
            return first.encode_candidates(texts) * np.float32(factor)

        exported: Any = SimpleNamespace(encode_contexts=first.encode_contexts, encode_candidates=encode)
        assert worst_cosine(first, exported, CONTEXTS, CANDIDATES) == pytest.approx(cosine)
    pairs: Any = load(cross)
    scores = pairs.score(CONTEXTS, [CANDIDATES] * len(CONTEXTS))
    for rows, cosine in (([row + 5 for row in scores], 1), ([*scores[:2], -scores[2], scores[3]], -1)):
        exported = SimpleNamespace(score=lambda *_, rows=rows: rows)  # ranks do not change, or those of one context do
        assert worst_cosine(pairs, exported, CONTEXTS, CANDIDATES) == pytest.approx(cosine, abs=1e-4)


def test_a_missing_export_or_library_is_named(
    tmp_path: Path, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "m", tiny_backbone, BiConfig, shared_towers=True)
    with pytest.raises(UsageError, match="has no onnx export; make it with: polyrank export"):
        load_exported(path, "onnx")
    with pytest.raises(UsageError, match="computes on the CPU, not on cuda"):
        load_exported(path, "onnx", device="cuda")
    with pytest.raises(UsageError, match="use the torch backend"):
        load("untuned:embedded", backend="onnx")
    for backend, library in ((b, name) for b in BACKENDS for name in ("onnx", LIBRARIES[b])):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, library, None)  # makes the import fail
            with pytest.raises(MissingExtraError, match=rf'^{library} is .* pip install "polyrank\[{backend}\]"'):
                export_model(path, backend)
    assert not (path / "backends").exists()
    for precision in ("bf16", "fp16", "int8"):
        with pytest.raises(UsageError, match=f"onnx does not compute in {precision}; use auto or fp32, or"):
            load(path, backend="onnx", precision=precision)  # type: ignore[arg-type]  # one of three


@pytest.mark.deep
def test_sentence_transformers_loads_a_bi_encoder(tmp_path: Path, tiny_backbone: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    for number, settings in enumerate(
        ({"reduction": "mean"}, {"reduction": "first", "projection_dim": 8}, {"reduction": "sqrt_n"})
    ):
        path = make(tmp_path / f"m{number}", tiny_backbone, BiConfig, shared_towers=True, output_scale=2.5, **settings)
        export_to_sentence_transformers(path, tmp_path / f"st{number}")
        own = load_encoder(path)
        theirs = library.SentenceTransformer(str(tmp_path / f"st{number}"), device="cpu", local_files_only=True)
        texts = CANDIDATES[:4]
        found = theirs.encode(texts, show_progress_bar=False)
        np.testing.assert_allclose(found, own.encode_candidates(texts), atol=1e-4)
        joined = ["[SEP]".join(context.turns) for context in CONTEXTS[:3]]
        found = theirs.encode(joined, show_progress_bar=False)
        np.testing.assert_allclose(found, own.encode_contexts(CONTEXTS[:3])[0][:, 0], atol=1e-4)
        np.testing.assert_allclose(theirs.similarity(found, found), found @ found.T, rtol=1e-4)


def test_the_card_of_an_export_has_that_librarys_header_and_the_models_facts(
    tmp_path: Path, tiny_backbone: Path
) -> None:
    path = make(tmp_path / "m", tiny_backbone, BiConfig, shared_towers=True, output_scale=1.0)
    export_to_sentence_transformers(path, tmp_path / "st")
    alone = (tmp_path / "st" / "README.md").read_text("utf-8")
    header, usage = alone.removeprefix("---\n").split("---\n", 1)
    assert header == "library_name: sentence-transformers\npipeline_tag: sentence-similarity\n"
    assert 'model.encode_query("Hello![SEP]Where is my parcel?")' in usage
    assert alone.endswith("Texts are cut at 48 tokens.\n")
    own = (
        "---\nlibrary_name: polyrank\nlicense: mit\n---\n\n# A model\n\n## How to load it\n\nold\n\n## Data\n\nchats\n"
    )
    (path / "README.md").write_text(own, "utf-8")
    export_to_sentence_transformers(path, tmp_path / "st", replace=True)
    card = (tmp_path / "st" / "README.md").read_text("utf-8")
    assert card == alone.replace("similarity\n---", "similarity\nlicense: mit\n---") + "\n## Data\n\nchats\n"
    for without in ("# A model\n\n## Data\n\nchats\n", "---\n# After a rule\n\n## Data\n\nchats\n"):
        (path / "README.md").write_text(without, "utf-8")
        export_to_sentence_transformers(path, tmp_path / "st", replace=True)
        assert (tmp_path / "st" / "README.md").read_text("utf-8") == alone + "\n## Data\n\nchats\n"


def test_the_card_of_an_export_says_what_the_library_does_not_do(tmp_path: Path, tiny_backbone: Path) -> None:
    """Contexts that follow it get the model's own vectors."""
    library = pytest.importorskip("sentence_transformers")
    config = BiConfig(backbone=str(tiny_backbone), shared_towers=True, reduction="mean", output_scale=1.0)
    policy = TextPolicy(
        max_context_tokens=48,
        max_candidate_tokens=64,
        max_earlier_turns=2,
        speaker_prefixes=("they: ", "we: "),
        close_last_turn=True,
    )
    save_model(tmp_path / "m", *new_model(config, policy, seed=1, sample=CANDIDATES))
    export_to_sentence_transformers(tmp_path / "m", tmp_path / "st")
    card = (tmp_path / "st" / "README.md").read_text("utf-8")
    assert (
        "by `[SEP]`. Give the last 3 turns at most. Begin the last turn with `they: `, and the turns before it with"
        " `we: `, `they: `. End the last turn with the separator, too. Texts are cut" in card
    )
    theirs = library.SentenceTransformer(str(tmp_path / "st"), device="cpu", local_files_only=True)
    found = theirs.encode(["they: wifi[SEP]we: thanks[SEP]they: my router[SEP]"])
    turns = ["dropped", "wifi", "thanks", "my router"]
    wanted = load_encoder(tmp_path / "m", device="cpu", precision="fp32").encode_contexts([turns])[0][0]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    lengths = json.loads((tmp_path / "st" / "sentence_bert_config.json").read_text("utf-8"))
    assert lengths["max_seq_length"] == 64  # the larger of the two budgets
    texts = load_model(tmp_path / "m").texts
    assert isinstance(texts, BackboneTexts)
    texts.policy = TextPolicy(max_context_tokens=48, max_candidate_tokens=64, max_earlier_turns=0)
    assert _turns(texts) == " Give the last 1 turn at most."


def test_normalized_vectors_are_exported_as_normalized(tmp_path: Path, tiny_backbone: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    path = make(tmp_path / "m", tiny_backbone, BiConfig, shared_towers=True, normalize=True, match_self_score=4.0)
    export_to_sentence_transformers(path, tmp_path / "st")
    theirs = library.SentenceTransformer(str(tmp_path / "st"), device="cpu", local_files_only=True)
    found = theirs.encode(CANDIDATES[:4], show_progress_bar=False)
    np.testing.assert_allclose(2.0 * found, load_encoder(path).encode_candidates(CANDIDATES[:4]), atol=1e-4)
    assert theirs.similarity_fn_name == "cosine"


def test_text_settings_that_the_library_lacks_are_refused_and_prompts_are_exported(
    tmp_path: Path, tiny_backbone: Path
) -> None:
    def saved(name: str, kind: Any, **policy: Any) -> Path:
        config, whole = kind(backbone=str(tiny_backbone)), replace(POLICY, **policy)
        save_model(tmp_path / name, *new_model(config, whole, seed=1, sample=CANDIDATES))
        return tmp_path / name

    shared: Any = partial(BiConfig, shared_towers=True, reduction="mean")
    for kind, policy in (
        (shared, {"slots": True}),
        (CrossConfig, {"start_candidate_of_pair": True}),
        (CrossConfig, {"candidate_prefix": "the "}),
    ):
        (key,) = policy
        with pytest.raises(UsageError, match=rf"sets text\.{key}, which sentence-transformers does not have;"):
            export_to_sentence_transformers(saved(key, kind, **policy), tmp_path / "st")
        shutil.rmtree(tmp_path / key)
    prompts = {"context_prefix": "my ", "candidate_prefix": "the "}
    for kind, policy in ((shared, prompts), (CrossConfig, {"context_prefix": "my "})):
        own = saved(str(len(policy)), kind, **policy)
        export_to_sentence_transformers(own, tmp_path / f"st{len(policy)}")
        lists = [["wifi", "the light"]] * 2
        found, wanted = (load(path).score(["hi", "router"], lists) for path in (tmp_path / f"st{len(policy)}", own))
        np.testing.assert_allclose(found, wanted, atol=1e-4)
        lengths = json.loads((tmp_path / f"st{len(policy)}" / "sentence_bert_config.json").read_text("utf-8"))
        assert lengths["max_seq_length"] == (48 if kind is shared else 48 + 16)  # a pair has both budgets
    own = saved("long", CrossConfig, max_context_tokens=120)
    export_to_sentence_transformers(own, tmp_path / "st-long")
    lengths = json.loads((tmp_path / "st-long" / "sentence_bert_config.json").read_text("utf-8"))
    assert lengths["max_seq_length"] == 128  # of the network


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        (BiConfig, {"shared_towers": True, "reduction": "mean_of_first"}, "reduces by 'mean_of_first'"),
        (PolyConfig, {"shared_towers": True}, "is a PolyEncoder"),
        (CrossConfig, {"reduction": "learnt"}, "reduces by 'learnt'"),
    ],
)
def test_other_models_have_no_sentence_transformers_form(
    tmp_path: Path, tiny_backbone: Path, kind: type[Any], settings: dict[str, Any], reason: str
) -> None:
    path = make(tmp_path / "m", tiny_backbone, kind, **settings)
    with pytest.raises(UsageError, match=reason):
        export_to_sentence_transformers(path, tmp_path / "st")
    assert not (tmp_path / "st").exists()


def test_the_commands(cross: Path) -> None:
    found = CliRunner().invoke(app, ["export", str(cross), "--to", "onnx", "--check"])
    assert (found.exit_code, "lowest cosine to fp32" in found.stderr) == (0, True), found.output
    query = json.dumps({"context": ["hi"], "candidates": CANDIDATES})
    answer = CliRunner().invoke(app, ["rank", str(cross), "--backend", "onnx", "--scores-only"], input=query)
    scores = json.loads(answer.stdout)["scores"]
    np.testing.assert_allclose(scores, Chunked(load(cross)).score([Context(("hi",))], [CANDIDATES])[0], atol=1e-4)


def test_the_error_of_an_unfaithful_export_names_another_backend(cross: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrank.scorers.exported.export.MIN_COSINE", 1.5)
    with pytest.raises(ArtifactError, match=r"the onnx export of .* is not faithful: .* export to openvino, set"):
        check_export(cross, "onnx")


def test_a_graph_in_8_bits_takes_the_place_of_the_one_in_fp32(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    kind, weights = onnx.TensorProto.FLOAT, np.random.default_rng(0).normal(size=(300, 300)).astype(np.float32)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "product",
        [onnx.helper.make_tensor_value_info("x", kind, ["B", 300])],
        [onnx.helper.make_tensor_value_info("y", kind, ["B", 300])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    path = tmp_path / "candidates.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=8), path)
    _quantize(path)
    assert [*tmp_path.iterdir()] == [path]
    assert path.stat().st_size < 0.4 * weights.nbytes


def test_artifacts_are_unchanged_by_their_exports(cross: Path) -> None:
    assert load_model(cross).fingerprint == load_exported(cross, "onnx").fingerprint


@pytest.mark.deep
def test_an_8_bit_export_with_the_same_ranking_is_kept(tmp_path: Path, tiny_backbone: Path) -> None:
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    path = make(tmp_path / "m", tiny_backbone, BiConfig, shared_towers=True)
    candidates = [f"{a} {b}" for a in ("hello", "my", "the", "please") for b in ("wifi", "bill", "light", "router")]
    reference = load(path, precision="fp32")
    # the right answer is the one that fp32 ranks first, so that its R@1 is 1
    lists = [
        Example(context.turns, tuple(candidates), (int(np.argmax(scores)),))
        for context, scores in zip(CONTEXTS, reference.score(CONTEXTS, [candidates] * len(CONTEXTS)), strict=True)
    ]
    alike = export_model(path, "onnx-int8", examples=lists)
    assert isinstance(alike, Agreement)
    assert (alike.n, alike.reference_r1) == (len(CONTEXTS), 1.0)
    exported = load_exported(path, "onnx-int8")
    graph = onnx.load(export_folder(path, "onnx-int8") / "candidates.onnx").graph
    assert {node.op_type for node in graph.node} >= {"MatMulInteger", "DynamicQuantizeLinear"}
    vectors, expected = exported.encode_candidates(candidates), reference.encode_candidates(candidates)  # type: ignore[attr-defined, union-attr]
    cosines = (vectors * expected).sum(1) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(expected, axis=1)
    assert 0.9 < cosines.min() < 0.99999  # 8 bits, and no fewer
    assert check_export(path, "onnx-int8", lists) == alike


@pytest.mark.deep
def test_an_8_bit_export_with_another_ranking_is_refused(tmp_path: Path, tiny_backbone: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = make(tmp_path / "m", tiny_backbone, BiConfig, shared_towers=True)
    # one weight of each row is so large that 8 bits round all the others to zero
    artifact = load_model(path)
    with torch.no_grad():
        for name, weight in artifact.model.named_parameters():
            if "dense" in name and weight.dim() == 2:
                weight[:, 0] = 60 * weight.abs().max()
    save_model(tmp_path / "wild", artifact.model, artifact.texts, artifact.config)
    with pytest.raises(ArtifactError, match=r"does not rank in 8 bits as in fp32: on \d+ lists R@1"):
        export_model(tmp_path / "wild", "onnx-int8")
    assert not export_folder(tmp_path / "wild", "onnx-int8").exists()


def test_agreement_of_two_rankings_by_hand() -> None:
    class Fixed:
        def __init__(self, *rows: list[float]) -> None:
            self.rows = [np.array(row, np.float32) for row in rows]

        def score(self, contexts: object, candidates: object) -> list[Any]:
            return self.rows

    lists = [Example(("a",), ("p", "q", "r", "s"), (0,)), Example(("b",), ("p", "q", "r", "s"), (3,))]
    reference, other = Fixed([4, 3, 2, 1], [1, 2, 3, 4]), Fixed([4, 1, 3, 2], [4, 1, 2, 3])
    alike = agreement(reference, other, lists)  # type: ignore[arg-type]
    # the best two of four: {p, q} and {p, r}, then {s, r} and {p, s}; the second list's best is wrong
    assert alike == Agreement(2, 1.0, 0.5, 0.5)
    unknown = [Example(("c",), ("p", "q", "r", "s"), ()), *lists]  # counts only for the overlap
    reference, other = Fixed([1, 2, 3, 4], *reference.rows), Fixed([1, 2, 3, 4], *other.rows)  # type: ignore[arg-type]
    assert agreement(reference, other, unknown) == Agreement(3, 1.0, 0.5, pytest.approx(2 / 3))  # type: ignore[arg-type]
    reference, other = (Fixed(*one.rows[1:]) for one in (reference, other))  # type: ignore[arg-type]
    assert not alike.kept
    assert Agreement(200, 0.5, 0.495, 0.9).kept
    assert not Agreement(200, 0.5, 0.49, 1.0).kept
    with pytest.raises(DataError, match="no example has two or more candidates to rank"):
        agreement(reference, other, [Example(("a",), ("p",), (0,))])  # type: ignore[arg-type]
    assert not Agreement(100, 0.5, 0.5, 0.89).kept


@pytest.mark.deep
def test_pairs_become_lists_for_checking_8_bits(tmp_path: Path, tiny_backbone: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = make(tmp_path / "m", tiny_backbone, BiConfig, shared_towers=True)
    pairs = tmp_path / "pairs.jsonl"
    texts = ("wifi", "bill", "light", "router", "hello")
    pairs.write_text("".join(json.dumps({"context": [f"my {t}"], "response": f"the {t}"}) + "\n" for t in texts))
    said = CliRunner().invoke(app, ["export", str(path), "--to", "onnx-int8", "--valid", str(pairs)])
    assert "on 5 lists R@1" in said.stderr + str(said.exception), said  # whether kept or refused


# --- what is written, read and refused --------------------------------------------------------------------------------


@pytest.mark.deep
def test_the_description_of_an_export(tmp_path: Path, tiny_backbone: Path, cross: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = make(tmp_path / "m", tiny_backbone, PolyConfig, n_codes=3)
    export_model(path, "onnx")
    documents = [json.loads((export_folder(model, "onnx") / "export.json").read_text()) for model in (path, cross)]
    assert [document["dimension"] for document in documents] == [32, 0]  # a Cross-encoder has no vectors
    graphs = {"candidates": "candidates.onnx", "contexts": "contexts.onnx"}
    assert [document["graphs"] for document in documents] == [graphs, {"pairs": "pairs.onnx"}]
    assert [set(document["files"]) for document in documents] == [set(graphs.values()), {"pairs.onnx"}]
    assert documents[0]["fingerprint"] == load_model(path).fingerprint
    with pytest.raises(UsageError, match=rf"{path} has no openvino export; make it with: polyrank export {path} --to"):
        load_exported(path, "openvino")


def test_a_runtime_that_is_missing_is_named_when_an_export_is_opened(
    cross: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r'^onnxruntime is .* pip install "polyrank\[onnx\]"'):
        load_exported(cross, "onnx").score([Context(("hi",))], [["a", "b"]])


def test_each_thread_has_its_own_request_to_openvino(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a scripted library, whose requests each return the array that they hold."""
    opened: list[tuple[str, str, dict[str, Any]]] = []
    requests: list[np.ndarray] = []

    class Graph:
        outputs = ("vectors",)

        def create_infer_request(self) -> Any:
            held = np.zeros(2)
            requests.append(held)

            def infer(arrays: dict[str, Any]) -> dict[str, Any]:
                held[:] = arrays["ids"]
                return {"vectors": held}

            return SimpleNamespace(infer=infer)

    def compile_model(*arguments: Any) -> Graph:
        opened.append(arguments)
        return Graph()

    core = SimpleNamespace(compile_model=compile_model)
    monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace(Core=lambda: core))
    graph = open_session(tmp_path / "g.xml", "openvino", torch.float32)
    first, second = (graph({"ids": np.array([n, n])})[0] for n in (1, 2))
    assert (first.tolist(), second.tolist(), len(requests)) == ([1, 1], [2, 2], 1)
    thread = threading.Thread(target=graph, args=[{"ids": np.array([3, 3])}])
    thread.start()
    thread.join()
    assert [held.tolist() for held in requests] == [[2, 2], [3, 3]]
    open_session(tmp_path / "g.xml", "openvino", torch.bfloat16)
    assert {arguments[:2] for arguments in opened} == {(str(tmp_path / "g.xml"), "CPU")}
    assert [arguments[2]["INFERENCE_PRECISION_HINT"] for arguments in opened] == ["f32", "bf16"]
    assert [arguments[2]["INFERENCE_NUM_THREADS"] for arguments in opened] == [torch.get_num_threads()] * 2

    def refuse(*_: Any) -> Any:
        raise RuntimeError("not a graph\nat line 3")

    core.compile_model = refuse
    with pytest.raises(
        ArtifactError, match=r"openvino cannot read .*/g\.xml \(not a graph\); make the export again on"
    ):
        open_session(tmp_path / "g.xml", "openvino", torch.float32)


@pytest.mark.deep
def test_a_graph_that_no_runtime_reads_is_damaged(tmp_path: Path, tiny_backbone: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = make(tmp_path / "m", tiny_backbone, BiConfig, shared_towers=True)
    export_model(path, "onnx")
    folder = export_folder(path, "onnx")
    document = json.loads((folder / "export.json").read_text())
    (folder / "candidates.onnx").write_bytes(b"not a graph")
    (folder / "export.json").unlink()
    kept = {key: document[key] for key in ("fingerprint", "dimension", "graphs")}
    write_manifest(folder, backend="onnx", **kept)
    with pytest.raises(ArtifactError, match=r"onnx cannot read .*candidates\.onnx \(.*; make the export again on this"):
        check_export(path, "onnx")


@pytest.mark.deep
def test_quantizing_does_not_change_logging(tmp_path: Path, tiny_backbone: Path) -> None:
    import logging

    pytest.importorskip("onnxruntime")
    path = make(tmp_path / "m", tiny_backbone, BiConfig, shared_towers=True)
    lists = [Example(("hi",), ("my wifi is down", "thanks"), ())]
    alike = export_model(path, "onnx-int8", examples=lists)
    assert isinstance(alike, Agreement)
    assert (alike.n, alike.reference_r1, alike.exported_r1) == (1, 0.0, 0.0)  # no list has a right answer
    assert logging.root.manager.disable == 0
    assert sorted(entry.name for entry in export_folder(path, "onnx-int8").iterdir()) == [
        "candidates.onnx",
        "export.json",
    ]


@pytest.mark.parametrize(("n_codes", "longest", "length"), [(0, 128, 16), (4, 128, 16), (14, 128, 16), (15, 128, 17),
                                                            (60, 128, 62), (60, 40, 40), (0, 8, 8)])  # fmt: skip
def test_more_tokens_are_traced_than_there_are_codes(
    n_codes: int, longest: int, length: int, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the graph would cut the number of codes to that of the tokens; no network gets too many tokens."""
    config: Any = PolyConfig(n_codes=n_codes) if n_codes else BiConfig()
    model: Any = new_model(replace(config, backbone=str(tiny_backbone)), None, seed=1, sample=["hi"])[0]
    monkeypatch.setattr(Backbone, "max_positions", longest)
    assert _length(model) == length


def test_agreement_compares_the_ten_best_or_half_of_few() -> None:
    class Fixed:
        def __init__(self, *rows: list[float]) -> None:
            self.rows = [np.array(row, np.float32) for row in rows]

        def score(self, contexts: object, candidates: object) -> list[Any]:
            return self.rows

    few = [Example(("a",), ("p", "q", "r", "s", "t"), (0,))]
    down, turned = [5.0, 4, 3, 2, 1], [5.0, 4, 2, 3, 1]
    found = agreement(Fixed(down), Fixed(turned), few)  # type: ignore[arg-type]
    assert found.overlap == pytest.approx(2 / 3)  # the best three of five
    many = [Example(("a",), tuple(f"c{i}" for i in range(40)), (0,))]
    first, second = (
        list(range(40, 0, -1)),
        [*range(40, 31, -1), *range(31)],
    )  # the same nine best; tenth: the last
    found = agreement(Fixed(first), Fixed(second), many)  # type: ignore[arg-type]
    assert found.overlap == pytest.approx(0.9)


def test_8_bit_contexts_are_also_compared_on_fp32_candidates(tmp_path: Path, tiny_backbone: Path) -> None:
    """Compares the rankings by two unrelated networks, with an index from either of them."""
    first = load(make(tmp_path / "a", tiny_backbone, BiConfig, shared_towers=True))
    second = load(make(tmp_path / "b", tiny_backbone, BiConfig, shared_towers=True, projection_dim=32, seed=4))
    assert isinstance(first, EncoderScorer)
    assert isinstance(second, EncoderScorer)
    texts = CANDIDATES[:4]
    lists = [Example(context.turns, tuple(texts), (row,)) for row, context in enumerate(CONTEXTS)]
    own = [int(np.argmax(scores)) for scores in second.score(CONTEXTS, [texts] * 4)]
    vectors, candidates = second.encode_contexts(CONTEXTS)[0][:, 0], first.encode_candidates(texts)
    mixed = np.argmax(vectors @ candidates.T, 1).tolist()
    right = [sum(best == row for row, best in enumerate(ranked)) / 4 for ranked in (own, mixed)]
    assert agreement(first, second, lists).exported_r1 == min(right)
    both = agreement(first, second, lists).overlap
    tops = [set(np.argsort(-scores)[:2]) for scores in first.score(CONTEXTS, [texts] * 4)]
    others = [
        [set(np.argsort(-scores)[:2]) for scores in second.score(CONTEXTS, [texts] * 4)],
        [set(np.argsort(-row)[:2]) for row in vectors @ candidates.T],
    ]
    shares = [np.mean([len(a & b) / 2 for a, b in zip(tops, way, strict=True)]) for way in others]
    assert both == pytest.approx(min(shares))


def test_an_earlier_folder_for_sentence_transformers_is_replaced_on_demand(tmp_path: Path, tiny_backbone: Path) -> None:
    path = make(tmp_path / "m", tiny_backbone, BiConfig, shared_towers=True, output_scale=2.0)
    export_to_sentence_transformers(path, tmp_path / "st")
    with pytest.raises(UsageError, match="already exists"):
        export_to_sentence_transformers(path, tmp_path / "st")
    (tmp_path / "st" / "modules.json").write_text("[]")
    export_to_sentence_transformers(path, tmp_path / "st", replace=True)
    modules = json.loads((tmp_path / "st" / "modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling", "2_Dense"]
    lengths = json.loads((tmp_path / "st" / "sentence_bert_config.json").read_text())
    assert lengths == {"max_seq_length": 48, "do_lower_case": False}  # the larger of the two budgets
    assert json.loads((tmp_path / "st" / "2_Dense" / "config.json").read_text())["bias"] is False
    plain = make(tmp_path / "plain", tiny_backbone, BiConfig, shared_towers=True, output_scale=1.0)
    export_to_sentence_transformers(plain, tmp_path / "st2")
    assert not (tmp_path / "st2" / "2_Dense").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--to", "sentence-transformers"], "needs an output folder and has no --check"),
        (["--to", "sentence-transformers", "-o", "st", "--check"], "needs an output folder and has no --check"),
        (
            ["--to", "onnx", "--valid", "lists.jsonl"],
            "--valid is for int8 and onnx-int8; an export to onnx is",
        ),
        (["--to", "onnx", "-o", "elsewhere"], "the onnx export goes into the model folder .*; leave out -o"),
        (["--to", "onnx"], "already exists"),
    ],
)
def test_models_that_export_refuses(cross: Path, options: list[str], problem: str) -> None:
    refused = CliRunner().invoke(app, ["export", str(cross), *options])
    assert isinstance(refused.exception, UsageError)
    assert re.search(problem, str(refused.exception))


def test_a_missing_model_is_not_exported(tmp_path: Path) -> None:
    missing = CliRunner().invoke(app, ["export", str(tmp_path / "none"), "--to", "onnx"])
    assert re.search("none is not a model folder; give a model folder", str(missing.exception))


def test_an_included_model_is_found_but_its_folder_is_not_written(tmp_path: Path) -> None:
    command = ["export", "shipped:convert", "--to", "sentence-transformers", "-o", str(tmp_path / "st")]
    assert "is a Convert" in str(CliRunner().invoke(app, command).exception)
    for to in ("onnx", "int8"):
        refused = CliRunner().invoke(app, ["export", "shipped:convert", "--to", to])
        assert "belongs to an installed package" in str(refused.exception)


def test_the_command_for_sentence_transformers(tmp_path: Path, tiny_backbone: Path) -> None:
    path = make(tmp_path / "m", tiny_backbone, BiConfig, shared_towers=True)
    command = ["export", str(path), "--to", "sentence-transformers", "-o", str(tmp_path / "st")]
    written = CliRunner().invoke(app, command)
    assert (written.exit_code, written.stderr) == (0, f"wrote {tmp_path / 'st'}\n")
    assert (tmp_path / "st" / "modules.json").exists()
    assert isinstance(CliRunner().invoke(app, command).exception, UsageError)
    assert CliRunner().invoke(app, [*command, "--overwrite"]).exit_code == 0


def test_an_export_is_replaced_by_the_command(tmp_path: Path, cross: Path) -> None:
    path = tmp_path / "m"
    shutil.copytree(cross, path)
    (export_folder(path, "onnx") / "pairs.onnx").write_bytes(b"")
    written = CliRunner().invoke(app, ["export", str(path), "--to", "onnx", "--overwrite"])
    assert (written.exit_code, written.exception) == (0, None)
    assert re.search(r"onnx: lowest cosine to fp32 [01]\.\d{6}; the minimum is 0\.999", written.stderr)
    assert isinstance(load_exported(path, "onnx"), CrossScorer)


def test_an_existing_export_is_reported_before_any_work(tmp_path: Path, cross: Path) -> None:
    path = tmp_path / "m"
    shutil.copytree(cross, path)
    for file in path.glob("*.safetensors"):
        file.write_bytes(b"")
    with pytest.raises(UsageError, match="already exists"):
        export_model(path, "onnx")
    with pytest.raises(ArtifactError):
        export_model(path, "onnx", replace=True)
