"""MAP: an Encoder with a trained map, its folder, and its effect on a frozen encoder's vectors."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from polyrank.scorers.mapped import MapEncoder, load_map, save_map
from polyrank.tuning.maps import (
    MapConfig,
    Pairs,
    Ranking,
    _check_memory,
    _encode_contexts,
    _encode_texts,
    _first_scale,
    _fit_one,
    encode_pairs,
    fit_map,
    fit_response_map,
)

from polyrank.answering.build import build_index
from polyrank.answering.retrievers import Retriever
from polyrank.config.models import BiConfig, ConvertConfig, ConvertText, CrossConfig, PolyConfig, TextPolicy
from polyrank.data import read_examples
from polyrank.errors import ArtifactError, ConfigError, DataError, ResourceError, UsageError
from polyrank.evaluation import evaluate, summarise
from polyrank.models import new_model
from polyrank.models.artifacts import save_model
from polyrank.records import Candidate, Context, Example
from polyrank.scorers.open import load, load_encoder
from polyrank.scorers.protocols import Encoder
from processes import run

WORDS = ["wifi", "router", "light", "bill", "red", "green", "thanks", "hello"]
REPLIES = [f"{word} please" for word in WORDS]
CONTEXTS = [Context(("my wifi is down",)), Context(("hi", "router light red?"))]
SMALL = ConvertConfig(embedding_dim=16, ffn_dim=32, spans=(3, 5), side_dim=16, side_layers=1, output_dim=8)
QUICK = MapConfig(lr=(1e-2,), l2=(1e-3,), batch_size=8, max_epochs=10)


@pytest.fixture(scope="module")
def models(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model of each kind with random weights."""
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
    """Responses are rotated contexts, so that similarity is useless and a map can be perfect."""
    generator = np.random.Generator(np.random.PCG64(seed))
    turn, _ = np.linalg.qr(generator.normal(size=(12, 12)))

    def vectors(k: int) -> tuple[np.ndarray, np.ndarray]:
        contexts = generator.normal(size=(k, 12))
        contexts /= np.linalg.norm(contexts, axis=1, keepdims=True)
        return contexts[:, None].astype(np.float32), (contexts @ turn).astype(np.float32)

    contexts, responses = vectors(n)
    pairs = Pairs(contexts, np.ones((n, 1), np.bool_), responses, np.arange(n), np.arange(n))
    contexts, responses = vectors(n_lists)
    rows = tuple((np.arange(10) + i) % n_lists for i in range(n_lists))
    ranking = Ranking(contexts, np.ones((n_lists, 1), np.bool_), responses, rows, ((0,),) * n_lists)
    return pairs, ranking


@pytest.mark.parametrize("name", ["bi", "poly", "convert"])
def test_scores_equal_the_formula(models: dict[str, Path], name: str) -> None:
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
def test_the_identity_map_equals_the_frozen_encoder(models: dict[str, Path], name: str) -> None:
    encoder = encoder_of(models, name)
    made = MapEncoder(encoder, np.eye(encoder.dimension, dtype=np.float32))
    assert isinstance(made, Encoder)
    np.testing.assert_array_equal(made.score_pool(CONTEXTS, REPLIES), encoder.score_pool(CONTEXTS, REPLIES))
    assert made.fingerprint != encoder.fingerprint
    with pytest.raises(ArtifactError, match="does not fit vectors of dimension"):
        MapEncoder(encoder, np.eye(3, dtype=np.float32))


def test_a_rotation_is_learned() -> None:
    pairs, ranking = rotated(600, 100)
    fit = fit_map(pairs, ranking, MapConfig(lr=(3e-2,), l2=(1e-4,), batch_size=64, max_epochs=30, patience=5))
    assert fit.similarity < 0.4
    assert fit.accuracy == 1.0
    assert ranking.accuracy(fit.matrix) == fit.accuracy


def test_the_same_seed_trains_the_same_bits() -> None:
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


def test_a_map_without_gain_is_not_kept() -> None:
    pairs, ranking = rotated(64, 40)
    perfect = replace(ranking, candidates=ranking.contexts[:, 0])  # similarity is always right
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
    matrix = _fit_one(pairs, ranking, config, lr=1e-2, l2=0.0, start=_first_scale(pairs)).matrix
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
    with pytest.raises(UsageError, match="would be a part of itself"):
        save_map(place, made, name=str(place), replace=True)
    opened = load(str(place), device="cpu")
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
    with pytest.raises(UsageError, match="which does not exist"):
        load(str(place))
    shutil.copytree(models["other"], tmp_path / "moved" / "bi")
    with pytest.raises(ArtifactError, match=r"was made with encoder .*; fit it again"):
        load(str(place))
    shutil.rmtree(tmp_path / "moved" / "bi")
    shutil.copytree(models["cross"], tmp_path / "moved" / "bi")
    with pytest.raises(UsageError, match="has no vectors"):
        load(str(place))
    data = (place / "map.safetensors").read_bytes()
    (place / "map.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ArtifactError, match="SHA-256 does not match"):
        load_map(place, made.encoder)


def test_impossible_settings_are_refused(models: dict[str, Path]) -> None:
    encoder = encoder_of(models, "bi")
    pair = Example(("hi",), ("hello",), (0,))
    lists = Example(("hi",), ("hello", "no"), (0,))
    with pytest.raises(DataError, match="a map needs at least 2"):
        fit_response_map(encoder, [pair], [lists], QUICK)
    with pytest.raises(DataError, match="give candidate lists as `valid`"):
        fit_response_map(encoder, [pair, pair], [pair], QUICK)
    for bad in ({"batch_size": 1}, {"lr": ()}, {"l2": (-1.0,)}, {"patience": 0}):
        with pytest.raises(ConfigError):
            MapConfig(**bad)  # type: ignore[arg-type]


def test_the_commands_output_works_with_evaluate(
    models: dict[str, Path], task: dict[str, Path], tmp_path: Path
) -> None:
    place = tmp_path / "map"
    options = ("--lr", "1e-2", "--l2", "1e-3", "--batch-size", "16", "--json")
    made = run("map", task["train"], "--valid", task["valid"], "-o", place, "--encoder", models["bi"], *options)
    assert made.returncode == 0, made.stderr
    figures = json.loads(made.stdout)
    assert figures["map"] >= figures["similarity"]
    found = evaluate(load(str(place), device="cpu"), read_examples(task["valid"]).examples)
    assert summarise(found)["metrics"]["R@1"] == pytest.approx(figures["map"])
    over = run("map", task["train"], "--valid", task["valid"], "-o", place, "--encoder", place, "--overwrite")
    assert (over.returncode, "would be a part of itself" in over.stderr) == (2, True), over.stderr
    shown = run("info", place)
    assert f"a map of {models['bi']}'s response vectors" in shown.stdout, shown.stderr
    assert f"validation R@1 {figures['map']:.4f}" in shown.stdout
    fingerprint = load(str(place), device="cpu").fingerprint
    assert json.loads(run("info", place, "--json").stdout) == {**figures, "kind": "map", "fingerprint": fingerprint}


def test_a_message_names_the_option_of_the_command(
    models: dict[str, Path], task: dict[str, Path], tmp_path: Path
) -> None:
    turns = [{"speaker": name, "text": f"hello from the {name}"} for name in ("agent", "user", "agent")]
    data = tmp_path / "dialogues.jsonl"
    data.write_text(json.dumps({"id": "1", "turns": turns}) + "\n", "utf-8")
    made = run("map", data, "--valid", task["valid"], "-o", tmp_path / "map", "--encoder", models["bi"])
    assert "choose another speaker with --speaker" in made.stderr
    assert "at least 2" in made.stderr  # one pair


def test_two_steps_equal_adam_on_the_whole_loss() -> None:
    """Scale and map are both trained, and only the map decays."""
    pairs, ranking = rotated(8, 40)
    config = MapConfig(batch_size=8, max_epochs=2, seed=3, patience=9)
    start = _first_scale(pairs)
    contexts, responses = torch.from_numpy(pairs.contexts[:, 0]), torch.from_numpy(pairs.responses)
    for l2 in (0.0, 30.0):
        change, log_scale = torch.zeros(12, 12, requires_grad=True), torch.tensor(np.log(start), requires_grad=True)
        optimizer = torch.optim.Adam([change, log_scale], lr=0.05)
        found = []
        for _ in range(2):
            values = log_scale.exp() * contexts @ (torch.eye(12) + change) @ responses.T
            loss = torch.nn.functional.cross_entropy(values, torch.arange(8)) + l2 * change.pow(2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append((log_scale.exp() * (torch.eye(12) + change)).detach().numpy().astype(np.float32).T)
        fit = _fit_one(pairs, ranking, config, lr=0.05, l2=l2, start=start)
        assert fit.n_epochs in (1, 2)
        assert fit.accuracy == max(ranking.accuracy(np.ascontiguousarray(one.T)) for one in found)
        np.testing.assert_allclose(fit.matrix, found[fit.n_epochs - 1].T, rtol=0.02, atol=0.05)


def test_accuracy_is_the_share_of_lists_whose_best_is_right() -> None:
    """Ties count by chance; right answers are positions in the list, not rows of the candidates."""
    candidates = np.array([[1, 0], [0, 1], [2, 0]], np.float32)
    contexts = np.array([[[1, 0]], [[0, 1]], [[1, 0]], [[1, 1]]], np.float32)
    rows = tuple(np.array(row) for row in ([0, 2], [2, 1, 0], [1, 0], [0, 1]))
    ranking = Ranking(contexts, np.ones((4, 1), np.bool_), candidates, rows, ((1,), (0,), (1,), (0,)))
    assert ranking.accuracy(np.eye(2, dtype=np.float32)) == (1 + 0 + 1 + 0.5) / 4
    # the map turns candidates, not contexts: W h_r with W the matrix that moves the first axis to the second
    turn = np.array([[0, 0], [1, 0]], np.float32)
    assert ranking.accuracy(turn) == ((1 / 2) + 1 + (1 / 2) + 1) / 4


def test_scores_start_at_twenty_between_a_pair_of_usual_size() -> None:
    pairs, _ = rotated(50, 20)
    assert _first_scale(pairs) == pytest.approx(20, rel=1e-5)  # all normalized
    bigger = replace(pairs, contexts=pairs.contexts * 4, responses=pairs.responses * np.float32(0.5))
    assert _first_scale(bigger) == pytest.approx(10, rel=1e-5)
    several = replace(pairs, contexts=np.repeat(pairs.contexts, 2, 1), mask=np.ones((50, 2), np.bool_))
    assert _first_scale(several) == 1
    assert np.isfinite(_first_scale(replace(pairs, contexts=pairs.contexts * 0)))


def test_patience_and_the_number_of_epochs() -> None:
    pairs, ranking = rotated(60, 30)
    runs = [_fit_one(pairs, ranking, MapConfig(max_epochs=n, patience=99), 3e-3, 1e-3, 20.0) for n in range(9)]
    assert (runs[0].n_epochs, runs[0].accuracy) == (0, ranking.accuracy(20 * np.eye(ranking.candidates.shape[1])))
    assert [run.accuracy for run in runs] == sorted(run.accuracy for run in runs)
    for patience in (1, 2, 3):
        n = next((e for e in range(1, 9) if e - runs[e].n_epochs >= patience), 8)
        stopped = _fit_one(pairs, ranking, MapConfig(max_epochs=8, patience=patience), 3e-3, 1e-3, 20.0)
        assert (stopped.accuracy, stopped.n_epochs) == (runs[n].accuracy, runs[n].n_epochs)
        np.testing.assert_array_equal(stopped.matrix, runs[n].matrix)


def test_every_rate_is_tried_with_every_decay() -> None:
    pairs, ranking = rotated(64, 40)
    seen: list[tuple[int, int]] = []
    config = MapConfig(lr=(1e-2, 1e-3), l2=(1e-2, 0.0, 1e-3), batch_size=32, max_epochs=2)
    fit = fit_map(pairs, ranking, config, report=lambda what, done, total: seen.append((done, total)))
    assert seen == [(i, 6) for i in range(1, 7)]
    assert [(t["lr"], t["l2"]) for t in fit.trials] == [(lr, l2) for lr in config.lr for l2 in config.l2]
    assert fit.accuracy == max(fit.similarity, *(t["R@1"] for t in fit.trials))
    assert all(t["n_epochs"] in (1, 2) for t in fit.trials)
    # a rate at which numbers overflow is never the best
    wild = fit_map(pairs, ranking, replace(config, lr=(1e30, 1e-2), l2=(1e-3,)))
    assert (wild.trials[0]["n_epochs"], wild.trials[0]["R@1"]) == (0, wild.similarity)
    assert np.isfinite(wild.matrix).all()
    # a last batch of one has no negatives, so it is skipped
    one_left = replace(
        pairs, contexts=pairs.contexts[:33], mask=pairs.mask[:33], keys=pairs.keys[:33], groups=pairs.groups[:33]
    )
    assert np.isfinite(fit_map(one_left, ranking, replace(config, lr=(1e-2,), l2=(0.0,))).matrix).all()


class Lengths(Encoder):
    """An Encoder with one vector per turn; the first holds the length."""

    fingerprint, dimension = "lengths", 2

    def encode_contexts(self, contexts: list[Context]) -> tuple[np.ndarray, np.ndarray]:
        width = max(len(context.turns) for context in contexts)
        vectors, mask = np.full((len(contexts), width, 2), 7, np.float32), np.zeros((len(contexts), width), np.bool_)
        for i, context in enumerate(contexts):
            mask[i, : len(context.turns)] = True
            for j, turn in enumerate(context.turns):
                vectors[i, j] = len(turn), j
        return vectors, mask

    def encode_candidates(self, candidates: list[str]) -> np.ndarray:
        return np.array([[len(text), 1] for text in candidates], np.float32)


def test_contexts_keep_their_order_in_any_batches() -> None:
    """More contexts than one part, with different lengths and numbers of vectors."""
    generator = np.random.Generator(np.random.PCG64(1))
    contexts = [  # contexts of one turn are the shortest, so that whole parts have fewer vectors
        Context(tuple("x" * int(n + 40 * (n_turns > 1)) for n in generator.integers(1, 40, size=n_turns)))
        for n_turns in (1 + i % 3 * (i < 300) for i in range(600))
    ]
    seen: list[tuple[str, int, int]] = []
    vectors, mask = _encode_contexts(Lengths(), contexts, "contexts", lambda *row: seen.append(row))  # type: ignore[arg-type]
    assert seen == [("contexts", 256, 600), ("contexts", 512, 600), ("contexts", 600, 600)]
    assert vectors.shape == (600, 3, 2)
    for context, rows, real in zip(contexts, vectors, mask, strict=True):
        assert real.tolist() == [j < len(context.turns) for j in range(3)]
        assert rows[real].tolist() == [[len(turn), j] for j, turn in enumerate(context.turns)]
    texts = ["x" * (i % 50) for i in range(600)]
    seen.clear()
    found = _encode_texts(Lengths(), texts, "texts", lambda *row: seen.append(row))  # type: ignore[arg-type]
    assert found[:, 0].tolist() == [i % 50 for i in range(600)]
    assert seen == [("texts", 256, 600), ("texts", 512, 600), ("texts", 600, 600)]


def test_encodings_that_exceed_memory_are_refused_first() -> None:
    assert _check_memory(2**20, 2, 1024) is None  # 8 GiB
    with pytest.raises(ResourceError, match=r"1,048,577 contexts of 2 vectors need 8 GiB, above the limit of 8"):
        _check_memory(2**20 + 1, 2, 1024)


def test_a_pool_larger_than_one_part(models: dict[str, Path]) -> None:
    made = MapEncoder(Lengths(), np.array([[0, 2], [1, 0]], np.float32))  # type: ignore[arg-type]
    pool = ["x" * (i % 11) for i in range(8192 + 5)]
    found = made.score_pool([Context(("ab",)), Context(("abc", "a"))], pool)
    # W h_r = (2, length); one vector (2, 0), or two: (3, 0) and (1, 1)
    assert found.shape == (2, 8197)
    np.testing.assert_allclose(found[0], 4.0)
    dots = np.array([[6.0, 2.0 + i % 11] for i in range(8197)])
    weights = np.exp(dots - dots.max(1, keepdims=True))
    np.testing.assert_allclose(found[1], (weights * dots).sum(1) / weights.sum(1), rtol=1e-5)
    assert made.fingerprint != MapEncoder(Lengths(), np.eye(2, dtype=np.float32)).fingerprint  # type: ignore[arg-type]
    unnamed = Lengths()
    unnamed.fingerprint = ""
    assert MapEncoder(unnamed, made.matrix).fingerprint == ""  # type: ignore[arg-type]


def test_uninformative_examples_are_left_out(models: dict[str, Path]) -> None:
    pairs = [Example((f"my {word}",), ("no", reply), (1,)) for word, reply in zip(WORDS, REPLIES, strict=True)]
    lists = [Example((f"the {word}",), tuple(REPLIES), (i,)) for i, word in enumerate(WORDS)]
    useless = [Example(("hi",), ("a", "b"), ()), Example(("hi",), ("a",), (0,)), Example(("hi",))]
    config = replace(QUICK, max_epochs=2)
    encoder = encoder_of(models, "bi")
    want, figures = fit_response_map(encoder, pairs, lists, config)
    got, again = fit_response_map(encoder, [*useless[::2], *pairs], [*lists, *useless], config)
    assert got.matrix.tobytes() == want.matrix.tobytes()
    assert (again["n_train"], again["n_responses"], again["n_valid"]) == (8, 8, 8)
    assert figures == again
    # the response is the right candidate; a second one does not count
    second, _ = fit_response_map(
        encoder, [replace(e, candidates=("x", *e.candidates[1:])) for e in pairs], lists, config
    )
    assert second.matrix.tobytes() == want.matrix.tobytes()
    # a copy of the right answer is also right, and does not lower its figure
    both = [replace(e, candidates=(*e.candidates, e.candidates[i])) for i, e in enumerate(lists)]
    assert fit_response_map(encoder, pairs, both, config)[1]["map"] == figures["map"]
    json.dumps(figures)


def test_other_answers_to_a_context_are_not_wrong_for_it() -> None:
    vectors = np.zeros((4, 1, 2), np.float32)
    # contexts a, b, a, c are answered by 0, 1, 2, 0
    pairs = Pairs(
        vectors, np.ones((4, 1), np.bool_), np.zeros((3, 2), np.float32), np.array([0, 1, 2, 0]), np.array([0, 1, 0, 2])
    )
    assert pairs.wrong(np.array([0, 1])).tolist() == [[False, True], [True, False]]
    assert pairs.wrong(np.array([0, 2])).tolist() == [[False, False], [False, False]]  # both 2 and 0 answer a
    assert pairs.wrong(np.array([3, 2, 1])).tolist() == [[False, True, True], [False, False, True], [True, True, False]]


def test_further_right_answers_of_an_example_are_not_wrong_for_it(models: dict[str, Path]) -> None:
    one, other = (Example((word,), (f"{word} please", "hello please"), (0, 1)) for word in ("wifi", "bill"))
    third = Example(("hello",), ("hello please",), (0,))
    pairs = encode_pairs(encoder_of(models, "bi"), [one, other, third], lambda *_: None)
    assert pairs.wrong(np.arange(3)).tolist() == [[False, True, False], [True, False, False], [True, True, False]]
