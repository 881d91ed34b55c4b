"""Correction for hubs: its formula with every kind of encoder, its fit, its folder, and the command line."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from polyrank.scorers.hubs import HubEncoder, save_hubs
from polyrank.scorers.summed import SumEncoder
from polyrank.tuning.hubs import choose_contexts, encode_hubs, fit_hubs
from typer.testing import CliRunner

import polyrank
from polyrank.answering.build import build_index
from polyrank.answering.explain import explain
from polyrank.cli.commands import app
from polyrank.errors import ArtifactError, DataError, PolyrankError, UsageError
from polyrank.ranking.weights import fit_weights
from polyrank.records import Context, ContextLike, Example, contexts_of
from polyrank.scorers.open import load, load_encoder
from polyrank.scorers.protocols import Encoder, Floats

CONTEXTS = [Context(("is it on?",)), Context(("hello", "my wifi is down")), Context(("thanks",))]
QUERIES: list[ContextLike] = ["what now?", ["hi", "the light is red"]]
REPLIES = ["yes", "no", "try again", "restart the router", "you are welcome"]


def expected(encoder: Encoder, weight: float, scale: float) -> NDArray[np.float64]:
    """The formula, from the scores of the encoder alone."""
    elsewhere = encoder.score_pool(CONTEXTS, REPLIES).astype(np.float64)
    hubness = np.log(np.exp(scale * elsewhere).mean(0)) / scale
    result: NDArray[np.float64] = encoder.score_pool(QUERIES, REPLIES) - weight * hubness
    return result


@pytest.mark.parametrize("kind", ["bi", "poly"])
@pytest.mark.parametrize(("weight", "scale"), [(1.0, 1.0), (0.4, 3.0), (0.0, 1.0)])
def test_scores_follow_the_formula(kind: str, weight: float, scale: float, tiny_encoders: dict[str, Path]) -> None:
    encoder = load_encoder(str(tiny_encoders[kind]))
    corrected = encode_hubs(encoder, CONTEXTS, weight=weight, scale=scale)
    np.testing.assert_allclose(corrected.score_pool(QUERIES, REPLIES), expected(encoder, weight, scale), atol=2e-5)


def test_a_sum_is_corrected_as_a_whole_and_a_corrected_encoder_is_part_of_a_sum(
    tiny_encoders: dict[str, Path],
) -> None:
    poly, bi = (load_encoder(str(tiny_encoders[kind])) for kind in ("poly", "bi"))
    whole = encode_hubs(SumEncoder([poly, bi], [1.0, 0.5]), CONTEXTS, weight=0.7)
    np.testing.assert_allclose(
        whole.score_pool(QUERIES, REPLIES), expected(SumEncoder([poly, bi], [1.0, 0.5]), 0.7, 1.0), atol=2e-5
    )
    part = SumEncoder([poly, encode_hubs(bi, CONTEXTS, weight=0.7)], [1.0, 0.5])
    np.testing.assert_allclose(
        part.score_pool(QUERIES, REPLIES),
        poly.score_pool(QUERIES, REPLIES) + 0.5 * expected(bi, 0.7, 1.0),
        atol=2e-5,
    )


def test_the_correction_does_not_depend_on_other_candidates(tiny_encoders: dict[str, Path]) -> None:
    corrected = encode_hubs(load_encoder(str(tiny_encoders["bi"])), CONTEXTS)
    vectors = corrected.encoder.encode_candidates(REPLIES)
    alone = [corrected.hubness(vectors[row : row + 1])[0] for row in range(len(REPLIES))]
    np.testing.assert_array_equal(corrected.hubness(vectors), alone)
    np.testing.assert_array_equal(corrected.encode_candidates(REPLIES), next(corrected.encode_lists([REPLIES])))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("kind", ["bi", "poly"])
def test_an_index_ranks_by_the_corrected_score(
    kind: str, precision: str, tiny_encoders: dict[str, Path], tmp_path: Path
) -> None:
    encoder = encode_hubs(load_encoder(str(tiny_encoders[kind])), CONTEXTS)
    save_hubs(tmp_path / "hubs", encoder, name=str(tiny_encoders[kind]), metadata={})
    build_index(tmp_path / "index", str(tmp_path / "hubs"), REPLIES, precision=precision)  # type: ignore[arg-type]
    rows = expected(encoder.encoder, 1.0, 1.0)
    whole = float(np.abs(encoder.encoder.score_pool(QUERIES, REPLIES)).max())  # int8 rounds g and w H, not g - w H
    tolerance = 1e-4 if precision == "fp32" else 0.01 * whole
    with polyrank.open(tmp_path / "index") as source:
        for row, answer in zip(rows, source.answer_all(QUERIES, len(REPLIES)), strict=True):
            assert answer.exact
            found = {reply.text: reply.score for reply in answer.ranked}
            np.testing.assert_allclose([found[text] for text in REPLIES], row, atol=tolerance)


@pytest.mark.parametrize("kind", ["bi", "poly"])
def test_a_folder_is_reloaded_unchanged_and_damage_is_detected(
    kind: str, tiny_encoders: dict[str, Path], tmp_path: Path
) -> None:
    folder, name = tmp_path / "hubs", str(tiny_encoders[kind])
    encoder = encode_hubs(load_encoder(name), CONTEXTS, weight=0.3, scale=2.0)
    save_hubs(folder, encoder, name=name)
    loaded = load_encoder(str(folder))
    assert isinstance(loaded, HubEncoder)
    assert loaded.fingerprint == encoder.fingerprint
    np.testing.assert_array_equal(loaded.score_pool(QUERIES, REPLIES), encoder.score_pool(QUERIES, REPLIES))
    assert encode_hubs(load_encoder(name), CONTEXTS, weight=0.4, scale=2.0).fingerprint != encoder.fingerprint
    assert encode_hubs(load_encoder(name), CONTEXTS, weight=0.3, scale=1.0).fingerprint != encoder.fingerprint
    others = [*CONTEXTS[:2], Context(("other",))]
    assert encode_hubs(load_encoder(name), others, weight=0.3, scale=2.0).fingerprint != encoder.fingerprint
    with pytest.raises(UsageError, match="already exists"):
        save_hubs(folder, encoder, name=name)
    with pytest.raises(UsageError, match="would be a part of itself"):
        save_hubs(folder, encoder, name=str(folder), replace=True)
    tensors = folder / "hubs.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"\7")
    with pytest.raises(ArtifactError):
        load(folder)


def test_a_folder_of_another_encoder_is_refused(tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    encoder = encode_hubs(load_encoder(str(tiny_encoders["bi"])), CONTEXTS)
    save_hubs(tmp_path / "hubs", encoder, name=str(tiny_encoders["poly"]))
    with pytest.raises(ArtifactError, match="make it again with polyrank hubs"):
        load(tmp_path / "hubs")
    moved = shutil.copytree(tiny_encoders["bi"], tmp_path / "moved")
    save_hubs(tmp_path / "hubs", encoder, name=str(moved), replace=True)
    shutil.rmtree(moved)
    with pytest.raises(UsageError, match="restore it or make it again with polyrank hubs"):
        load(tmp_path / "hubs")


def test_an_explanation_has_a_separate_share_for_other_contexts(tiny_encoders: dict[str, Path]) -> None:
    encoder = encode_hubs(load_encoder(str(tiny_encoders["bi"])), CONTEXTS, weight=0.5)
    why = explain(encoder, QUERIES[1], "no")
    own, share = why.parts.values()
    assert why.score == pytest.approx(own.score + 0.5 * share.score, abs=1e-5)
    assert (share.method, share.weight, share.rest) == ("other contexts", 0.5, share.score)
    assert [turn.share for turn in share.turns] == [0.0, 0.0]
    assert why.rest + sum(turn.share for turn in why.turns) == pytest.approx(why.score, abs=1e-5)


@pytest.mark.parametrize(
    ("weight", "scale", "message"),
    [(-1.0, 1.0, "weight = -1"), (np.nan, 1.0, "weight = nan"), (1.0, 0.0, "scale = 0"), (1.0, np.inf, "scale = inf")],
)
def test_numbers_out_of_range_are_refused(weight: float, scale: float, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        encode_hubs(Hubs(), CONTEXTS, weight=weight, scale=scale)


def test_stored_contexts_that_do_not_fit_are_refused() -> None:
    mask = np.ones((2, 1), np.bool_)
    for contexts, real in (
        (np.ones((2, 1, 9), np.float32), mask),
        (np.ones((3, 1, N + 1), np.float32), mask),
        (np.ones((2, 1, N + 1), np.float32), ~mask),
        (np.ones((0, 1, N + 1), np.float32), mask[:0]),
    ):
        with pytest.raises(ArtifactError, match="do not fit"):
            HubEncoder(Hubs(), contexts, real, weight=1.0, scale=1.0)


N = 40


class Hubs(Encoder):
    """Text "i" matches context "i"; besides, a candidate scores more in every context the larger its number is."""

    dimension, fingerprint = N + 1, "hubs"

    def encode_contexts(self, contexts: Sequence[ContextLike]) -> tuple[Floats, NDArray[np.bool_]]:
        """Which text it is, and 1."""
        numbers = [len(one.turns[-1]) % N for one in contexts_of(contexts)]
        vectors = np.concatenate([np.eye(N)[numbers], np.ones((len(numbers), 1))], axis=1)
        return vectors[:, None].astype(np.float32), np.ones((len(numbers), 1), np.bool_)

    def encode_candidates(self, candidates: Sequence[str]) -> Floats:
        """Twice which text it is, and how much of a hub."""
        numbers = np.array([len(text) for text in candidates])
        return np.concatenate([2 * np.eye(N)[numbers], numbers[:, None] / 4], axis=1).astype(np.float32)


def lists(rng: np.random.Generator, hub: bool) -> list[Example]:
    """Lists of five; without hubs all candidates of a list have the same number but the right one's match."""
    examples = []
    for number in range(200):
        right = int(rng.integers(1, N))
        wrong = rng.permutation([n for n in range(1, N) if n != right])[:4].tolist() if hub else [0] * 4
        texts = tuple("x" * n for n in [right, *wrong])
        examples.append(Example(("x" * right,), texts, (0,), f"{number}"))
    return examples


def test_hubs_are_found_and_corrected() -> None:
    valid = lists(np.random.default_rng(1), hub=True)
    contexts = [Context(("x" * n,)) for n in range(1, N)]
    corrected, figures = fit_hubs(Hubs(), contexts, valid)
    assert figures["parts"][0]["R@1"] < 0.5
    assert figures["sum"]["R@1"] == 1.0
    assert figures["gain"]["difference"] > 0.5
    assert 0.7 < corrected.weight < 1.3
    texts = list(valid[0].candidates)
    assert corrected.score_pool([valid[0].query], texts)[0].argmax() == 0


def test_scale_and_weight_fit_the_lists() -> None:
    valid = lists(np.random.default_rng(3), hub=True)
    corrected, _ = fit_hubs(Hubs(), [Context(("x" * n,)) for n in range(30, 33)], valid)
    assert corrected.scale != 1
    right = [(0,)] * len(valid)
    own = [Hubs().score_pool([one.query], one.candidates)[0] for one in valid]
    of_hubs = [-corrected.hubness(Hubs().encode_candidates(one.candidates)) for one in valid]
    first, second = fit_weights([own, of_hubs], right)
    assert corrected.weight == pytest.approx(second / first, rel=1e-3)
    assert (corrected.scale,) == pytest.approx(fit_weights([own], right), rel=1e-3)


def test_a_correction_that_misleads_gets_weight_0() -> None:
    rng = np.random.default_rng(2)
    valid = [
        Example(("x" * n,), ("x" * n, "x"), (0,), str(number))  # the right answer is always the greater hub
        for number, n in enumerate(rng.integers(2, N, 200).tolist())
    ]
    corrected, figures = fit_hubs(Hubs(), [Context(("x" * N,))], valid)
    assert corrected.weight == 0
    assert (figures["n_valid"], figures["gain"]["over"]) == (200, 0)


def test_lists_that_choose_nothing_are_refused() -> None:
    with pytest.raises(DataError, match="no example has a right answer"):
        fit_hubs(Hubs(), CONTEXTS, [Example(("a",), ("b",), (0,))])
    wrong = [Example(("x" * 7,), ("x" * 2, "x" * 7), (0,), str(n)) for n in range(20)]
    with pytest.raises(DataError, match="no better than chance"):
        fit_hubs(Hubs(), CONTEXTS, wrong)


def test_lists_without_a_wrong_candidate_are_left_out() -> None:
    lists = [Example(("x" * 7,), ("x" * 7, "x" * 2), (0,), str(n)) for n in range(9)]
    only_right = Example(("x",), ("a", "a"), (0,), "right")
    assert fit_hubs(Hubs(), CONTEXTS, [*lists, only_right])[1] == fit_hubs(Hubs(), CONTEXTS, lists)[1]


def test_contexts_are_chosen_at_random_without_repetition() -> None:
    examples = [Example((str(n % 30),), ("a",), (0,)) for n in range(90)]
    chosen = choose_contexts(examples, 20)
    assert len(set(chosen)) == len(chosen) == 20
    assert chosen == choose_contexts(examples, 20)
    assert chosen != choose_contexts(examples, 20, seed=2)
    assert {one.turns[0] for one in choose_contexts(examples, 99)} == {str(n) for n in range(30)}
    with pytest.raises(DataError, match="0 contexts"):
        choose_contexts([], 3)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Pairs, and candidate lists."""
    pairs, valid = tmp_path / "pairs.jsonl", tmp_path / "valid.jsonl"
    rows = [{"context": [f"is {word} on?"], "response": word} for word in REPLIES]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    lists = [{"context": [word], "candidates": REPLIES, "relevant": [n]} for n, word in enumerate(REPLIES)]
    valid.write_text("".join(json.dumps(row) + "\n" for row in lists), "utf-8")
    return pairs, valid


def test_the_command_writes_an_encoder(
    tiny_encoders: dict[str, Path], files: tuple[Path, Path], tmp_path: Path
) -> None:
    pairs, valid = files
    folder, name = tmp_path / "better", str(tiny_encoders["bi"])
    done = CliRunner().invoke(app, ["hubs", name, str(pairs), "-o", str(folder), "--valid", str(valid)])
    assert done.exit_code == 0, done.output
    assert "R@1" in done.output
    assert "5 contexts of pairs.jsonl" in done.output
    shown = CliRunner().invoke(app, ["info", str(folder), "--json"])
    figures = json.loads(shown.output)
    assert (figures["kind"], figures["n_contexts"], figures["n_valid"]) == ("hubs", 5, 5)
    loaded = load_encoder(str(folder))
    assert isinstance(loaded, HubEncoder)
    assert (loaded.fingerprint, loaded.weight) == (figures["fingerprint"], figures["weight"])

    given = ["hubs", name, str(pairs), "-o", str(folder), "--weight", "0.5", "--max-contexts", "3", "--overwrite"]
    done = CliRunner().invoke(app, [*given, "--scale", "2", "--json"])
    assert done.exit_code == 0, done.output
    loaded = load_encoder(str(folder))
    assert isinstance(loaded, HubEncoder)
    assert (loaded.weight, loaded.scale, len(loaded.contexts)) == (0.5, 2.0, 3)
    refused = CliRunner().invoke(app, ["export", str(folder), "--to", "onnx"])
    assert isinstance(refused.exception, UsageError)
    assert f"export its parts one by one: {name}" in str(refused.exception)
    info = CliRunner().invoke(app, ["info", str(folder)])
    assert f"{name} corrected for hubs" in info.output
    assert "weight 0.5, scale 2, 3 contexts" in info.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "either --valid FILE"),
        (["--weight", "1", "--valid", "valid.jsonl"], "either --valid FILE"),
        (["--weight", "1", "--max-valid", "5"], "--max-valid 5 applies with --valid"),
        (["--valid", "valid.jsonl", "--scale", "2"], "--scale 2.0 applies with --weight"),
        (["--weight", "1", "--scale", "0"], "scale = 0.0"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: list[str], message: str, tiny_encoders: dict[str, Path], files: tuple[Path, Path], tmp_path: Path
) -> None:
    start = ["hubs", str(tiny_encoders["bi"]), str(files[0]), "-o", str(tmp_path / "better")]
    done = CliRunner().invoke(app, [*start, *options])
    assert isinstance(done.exception, PolyrankError)
    assert message in str(done.exception)
    assert not (tmp_path / "better").exists()


def test_an_existing_folder_is_kept(tiny_encoders: dict[str, Path], files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "better").mkdir()
    (tmp_path / "better" / "notes.txt").write_text("mine", "utf-8")
    for extra in ([], ["--overwrite"]):
        arguments = ["hubs", str(tiny_encoders["bi"]), str(files[0]), "-o", str(tmp_path / "better"), "--weight", "1"]
        assert isinstance(CliRunner().invoke(app, [*arguments, *extra]).exception, UsageError)
    assert (tmp_path / "better" / "notes.txt").read_text("utf-8") == "mine"


def test_a_speaker_selects_contexts_of_dialogues_and_lists_keep_theirs(
    tiny_encoders: dict[str, Path], files: tuple[Path, Path], tmp_path: Path
) -> None:
    dialogues = tmp_path / "dialogues.jsonl"
    turns = [
        {"speaker": "user", "text": "hi"},
        {"speaker": "agent", "text": "hello"},
        {"speaker": "user", "text": "ok"},
    ]
    dialogues.write_text(json.dumps({"id": "1", "turns": turns}) + "\n", "utf-8")
    arguments = ["hubs", str(tiny_encoders["bi"]), str(dialogues), "--valid", str(files[1]), "--speaker", "agent"]
    done = CliRunner().invoke(app, [*arguments, "-o", str(tmp_path / "better"), "--json"])
    assert done.exit_code == 0, done.output
    assert '"n_contexts": 1' in done.output
    asked = CliRunner().invoke(app, [*arguments[:-2], "-o", str(tmp_path / "other")])
    shown = " ".join(asked.stderr.split())
    assert "choose another speaker" in shown
    assert "data.speaker" not in shown  # which only recipes have


def test_the_encoder_itself_is_kept(tiny_encoders: dict[str, Path], files: tuple[Path, Path]) -> None:
    name = str(tiny_encoders["bi"])
    done = CliRunner().invoke(app, ["hubs", name, str(files[0]), "-o", name, "--weight", "1", "--overwrite"])
    assert isinstance(done.exception, UsageError)
    assert "would be a part of itself" in str(done.exception)
    load_encoder(name)


class Turns(Hubs):
    """A vector for each turn, so that batches of contexts differ in width."""

    def encode_contexts(self, contexts: Sequence[ContextLike]) -> tuple[Floats, NDArray[np.bool_]]:
        """Vectors of all turns, padded with vectors that a mask hides."""
        turns = [one.turns for one in contexts_of(contexts)]
        width = max(map(len, turns))
        vectors = np.full((len(turns), width, N + 1), 9.0, np.float32)
        for row, texts in enumerate(turns):
            vectors[row, : len(texts)] = super().encode_contexts(list(texts))[0][:, 0]
        return vectors, np.arange(width) < np.array([[len(texts)] for texts in turns])


def test_contexts_of_different_widths_are_stored_together() -> None:
    contexts = [Context(("x" * (1 + n % (N - 1)),)) for n in range(300)]
    contexts[3], contexts[270] = Context(("a", "bb")), Context(("a", "bb", "ccc"))
    corrected = encode_hubs(Turns(), contexts, weight=1.0, scale=0.5)
    assert corrected.contexts.shape == (300, 3, N + 1)
    assert corrected.mask.sum() == 303
    elsewhere = np.concatenate([Turns().score_pool([one], REPLIES) for one in contexts])
    hubness = np.log(np.exp(0.5 * elsewhere.astype(np.float64)).mean(0)) / 0.5
    np.testing.assert_allclose(corrected.hubness(Turns().encode_candidates(REPLIES)), hubness, rtol=1e-5)
