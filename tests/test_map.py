"""MAP: an Encoder with a learnt map, its folder, and what it makes of a frozen encoder's vectors."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from polyrank.config.models import BiConfig, ConvertConfig, ConvertText, CrossConfig, PolyConfig, TextPolicy
from polyrank.data import read_examples
from polyrank.errors import ArtifactError, ConfigError, DataError, UsageError
from polyrank.evaluation import evaluate, summarise
from polyrank.frozen.maps import MapConfig, Pairs, Ranking, _first_scale, _fit_one, fit_map, fit_response_map
from polyrank.models import new_model
from polyrank.models.artifacts import save_model
from polyrank.records import Candidate, Context, Example
from polyrank.retrieval.build import build_index
from polyrank.retrieval.retrievers import Retriever
from polyrank.scorers.mapped import MapEncoder, load_map, save_map
from polyrank.scorers.open import load_encoder, open_scorer
from polyrank.scorers.protocols import Encoder
from processes import run

WORDS = ["wifi", "router", "light", "bill", "red", "green", "thanks", "hello"]
REPLIES = [f"{word} please" for word in WORDS]
CONTEXTS = [Context(("my wifi is down",)), Context(("hi", "router light red?"))]
SMALL = ConvertConfig(embedding_dim=16, ffn_dim=32, spans=(3, 5), side_dim=16, side_layers=1, output_dim=8)
QUICK = MapConfig(lr=(1e-2,), l2=(1e-3,), batch_size=8, max_epochs=10)


@pytest.fixture(scope="module")
def models(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One of each kind with random weights."""
    folder = tmp_path_factory.mktemp("models")
    policy, backbone = TextPolicy(max_context_tokens=24, max_candidate_tokens=12), str(tiny_backbone)
    configs = {
        "bi": BiConfig(backbone=backbone),
        "poly": PolyConfig(backbone=backbone, n_codes=4),
        "cross": CrossConfig(backbone=backbone),
        "other": BiConfig(backbone=backbone, projection_dim=32),
    }
    for name, config in configs.items():
        save_model(folder / name, *new_model(config, policy, seed=1, sample=REPLIES))
    made = new_model(SMALL, ConvertText(min_count=1, n_buckets=16), seed=1, sample=(), corpus=REPLIES)
    save_model(folder / "convert", *made)
    return {name: folder / name for name in (*configs, "convert")}


def encoder_of(models: dict[str, Path], name: str) -> Encoder:
    return load_encoder(models[name], device="cpu")


def random_map(encoder: Encoder, seed: int = 0) -> MapEncoder:
    generator = np.random.Generator(np.random.PCG64(seed))
    return MapEncoder(encoder, generator.normal(size=(encoder.dimension,) * 2).astype(np.float32))


def rotated(n: int, n_lists: int, seed: int = 0) -> tuple[Pairs, Ranking]:
    """Responses are contexts turned by a fixed rotation, so that similarity sees nothing and a map can see all."""
    generator = np.random.Generator(np.random.PCG64(seed))
    turn, _ = np.linalg.qr(generator.normal(size=(12, 12)))

    def vectors(k: int) -> tuple[np.ndarray, np.ndarray]:
        contexts = generator.normal(size=(k, 12))
        contexts /= np.linalg.norm(contexts, axis=1, keepdims=True)
        return contexts[:, None].astype(np.float32), (contexts @ turn).astype(np.float32)

    contexts, responses = vectors(n)
    pairs = Pairs(contexts, np.ones((n, 1), np.bool_), responses, np.arange(n))
    contexts, responses = vectors(n_lists)
    rows = tuple((np.arange(10) + i) % n_lists for i in range(n_lists))
    ranking = Ranking(contexts, np.ones((n_lists, 1), np.bool_), responses, rows, ((0,),) * n_lists)
    return pairs, ranking


@pytest.mark.parametrize("name", ["bi", "poly", "convert"])
def test_scores_are_the_formula(models: dict[str, Path], name: str) -> None:
    encoder = encoder_of(models, name)
    made = random_map(encoder)
    vectors, mask = made.encode_contexts(CONTEXTS)
    pool = made.score_pool(CONTEXTS, REPLIES)
    for i in range(len(CONTEXTS)):
        for j, reply in enumerate(REPLIES):
            dots = vectors[i][mask[i]].astype(np.float64) @ made.matrix @ encoder.encode_candidates([reply])[0]
            weights = np.exp(dots - dots.max())
            assert pool[i, j] == pytest.approx(float((weights * dots).sum() / weights.sum()), rel=1e-3, abs=1e-4)
    lists = made.score(CONTEXTS, [REPLIES[:3], REPLIES])
    assert [len(row) for row in lists] == [3, len(REPLIES)]
    np.testing.assert_allclose(lists[1], pool[1], rtol=1e-4, atol=1e-5)
    alone = made.score(CONTEXTS[1:], [REPLIES])[0]
    np.testing.assert_allclose(alone, pool[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["bi", "poly", "convert"])
def test_the_identity_is_the_frozen_encoder(models: dict[str, Path], name: str) -> None:
    encoder = encoder_of(models, name)
    made = MapEncoder(encoder, np.eye(encoder.dimension, dtype=np.float32))
    assert isinstance(made, Encoder)
    np.testing.assert_array_equal(made.score_pool(CONTEXTS, REPLIES), encoder.score_pool(CONTEXTS, REPLIES))
    assert made.fingerprint != encoder.fingerprint
    with pytest.raises(ArtifactError, match="does not fit vectors of dimension"):
        MapEncoder(encoder, np.eye(3, dtype=np.float32))


def test_a_rotation_is_learnt() -> None:
    pairs, ranking = rotated(600, 100)
    fit = fit_map(pairs, ranking, MapConfig(lr=(3e-2,), l2=(1e-4,), batch_size=64, max_epochs=30, patience=5))
    assert fit.similarity < 0.4
    assert fit.accuracy == 1.0
    assert ranking.accuracy(fit.matrix) == fit.accuracy


def test_the_same_seed_gives_the_same_bits() -> None:
    pairs, ranking = rotated(200, 50)
    config = MapConfig(lr=(1e-2,), l2=(1e-3,), batch_size=32, max_epochs=3)
    a, b = (fit_map(pairs, ranking, config) for _ in range(2))
    assert a.matrix.tobytes() == b.matrix.tobytes()
    assert fit_map(pairs, ranking, replace(config, seed=2)).matrix.tobytes() != a.matrix.tobytes()


def test_strong_decay_keeps_the_identity() -> None:
    pairs, ranking = rotated(200, 50)
    config = MapConfig(lr=(1e-3,), l2=(1e6,), batch_size=32, max_epochs=2)
    matrix = fit_map(pairs, ranking, config).matrix
    off = matrix / matrix.diagonal().mean() - np.eye(12)
    assert np.abs(off).max() < 0.01


def test_a_map_that_gains_nothing_is_not_taken() -> None:
    pairs, ranking = rotated(64, 40)
    perfect = replace(ranking, candidates=ranking.contexts[:, 0])  # similarity is right always
    fit = fit_map(pairs, perfect, MapConfig(lr=(1e-2,), max_epochs=3))
    assert (fit.similarity, fit.accuracy) == (1.0, 1.0)
    np.testing.assert_allclose(fit.matrix / fit.matrix[0, 0], np.eye(12), atol=1e-6)
    none = fit_map(pairs, ranking, MapConfig(max_epochs=0))
    assert none.accuracy == none.similarity


def test_a_step_follows_the_gradient_of_the_formula() -> None:
    """One batch, one step: Adam's first step moves every entry by lr against the sign of the gradient."""
    pairs, ranking = rotated(6, 40)
    pairs = replace(pairs, keys=np.array([0, 1, 2, 3, 4, 0]))  # the last context has the first one's response
    config = MapConfig(batch_size=6, max_epochs=1)
    _, matrix, _ = _fit_one(pairs, ranking, config, lr=1e-2, l2=0.0, start=_first_scale(pairs))
    c, r = torch.from_numpy(pairs.contexts[:, 0]), torch.from_numpy(pairs.responses)[torch.from_numpy(pairs.keys)]
    start = 20 / float(c.norm(dim=1).mean() * torch.from_numpy(pairs.responses).norm(dim=1).mean())
    change = torch.zeros(12, 12, requires_grad=True)
    values = start * c @ (torch.eye(12) + change) @ r.T
    copies = torch.tensor([[i != j and pairs.keys[i] == pairs.keys[j] for j in range(6)] for i in range(6)])
    loss = torch.nn.functional.cross_entropy(values.masked_fill(copies, -torch.inf), torch.arange(6))
    loss.backward()
    assert change.grad is not None
    want = np.eye(12) - 1e-2 * np.sign(change.grad.numpy())
    scale = np.linalg.norm(matrix) / np.linalg.norm(want)
    clear = np.abs(change.grad.numpy()) > 1e-5
    np.testing.assert_allclose((matrix / scale)[clear], want[clear], atol=1e-4)


@pytest.mark.parametrize("name", ["bi", "poly", "convert"])
def test_fitted_on_texts_saved_and_opened_like_a_model(models: dict[str, Path], tmp_path: Path, name: str) -> None:
    examples = [Example((f"my {word}",), (reply,), (0,)) for word, reply in zip(WORDS, REPLIES, strict=True)] * 4
    valid = [Example((f"the {word}",), tuple(REPLIES), (i,)) for i, word in enumerate(WORDS)]
    seen: list[str] = []
    made, figures = fit_response_map(
        encoder_of(models, name), examples, valid, QUICK, report=lambda what, done, total: seen.append(what)
    )
    assert figures["map"] >= figures["similarity"]
    assert (figures["n_train"], figures["n_responses"], figures["n_valid"]) == (32, 8, 8)
    assert "training contexts" in seen
    place = tmp_path / "map"
    save_map(place, made, name=str(models[name]), metadata=figures)
    opened = open_scorer(str(place), device="cpu")
    assert isinstance(opened, MapEncoder)
    assert opened.fingerprint == made.fingerprint
    np.testing.assert_array_equal(opened.score_pool(CONTEXTS, REPLIES), made.score_pool(CONTEXTS, REPLIES))

    pool = [Candidate(f"r{i}", reply) for i, reply in enumerate(REPLIES)]
    build_index(tmp_path / "index", opened, pool, model=str(place))
    from polyrank.index import open_index

    found = Retriever(load_encoder(place, device="cpu"), open_index(tmp_path / "index")).respond(CONTEXTS, 3)
    for row, ranked in zip(made.score_pool(CONTEXTS, REPLIES), found, strict=True):
        assert [reply.text for reply in ranked] == [REPLIES[i] for i in np.argsort(-row, kind="stable")[:3]]


def test_the_folder_moves_with_its_encoder_and_refuses_another(models: dict[str, Path], tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(models["bi"], home / "bi")
    made = random_map(load_encoder(home / "bi", device="cpu"))
    save_map(home / "map", made, name=str(home / "bi"))
    home.rename(tmp_path / "moved")
    place = tmp_path / "moved" / "map"
    assert load_encoder(place, device="cpu").fingerprint == made.fingerprint
    shutil.rmtree(tmp_path / "moved" / "bi")
    with pytest.raises(UsageError, match="which is not there"):
        open_scorer(str(place))
    shutil.copytree(models["other"], tmp_path / "moved" / "bi")
    with pytest.raises(ArtifactError, match="was fitted on encoder"):
        open_scorer(str(place))
    shutil.rmtree(tmp_path / "moved" / "bi")
    shutil.copytree(models["cross"], tmp_path / "moved" / "bi")
    with pytest.raises(UsageError, match="has no vectors"):
        open_scorer(str(place))
    data = (place / "map.safetensors").read_bytes()
    (place / "map.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ArtifactError, match="SHA-256 does not match"):
        load_map(place, lambda name: made.encoder)


def test_what_cannot_be_is_said(models: dict[str, Path]) -> None:
    encoder = encoder_of(models, "bi")
    pair = Example(("hi",), ("hello",), (0,))
    lists = Example(("hi",), ("hello", "no"), (0,))
    with pytest.raises(DataError, match="a map needs two at least"):
        fit_response_map(encoder, [pair], [lists], QUICK)
    with pytest.raises(DataError, match="give candidate lists with --valid"):
        fit_response_map(encoder, [pair, pair], [pair], QUICK)
    for bad in ({"batch_size": 1}, {"lr": ()}, {"l2": (-1.0,)}, {"patience": 0}):
        with pytest.raises(ConfigError):
            MapConfig(**bad)  # type: ignore[arg-type]


def test_the_command_makes_what_evaluate_takes(models: dict[str, Path], task: dict[str, Path], tmp_path: Path) -> None:
    place = tmp_path / "map"
    options = ("--lr", "1e-2", "--l2", "1e-3", "--batch-size", "16", "--json")
    made = run("map", task["train"], "--valid", task["valid"], "-o", place, "--encoder", models["bi"], *options)
    assert made.returncode == 0, made.stderr
    figures = json.loads(made.stdout)
    assert figures["map"] >= figures["similarity"]
    found = evaluate(open_scorer(str(place), device="cpu"), read_examples(task["valid"]).examples)
    assert summarise(found)["metrics"]["R@1"] == pytest.approx(figures["map"])
