"""Counts of replies as an encoder: alone, in sums with every kind of encoder, on disk and from the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polyrank.scorers.popularity import Popularity, load_popularity, save_popularity
from polyrank.scorers.summed import SumEncoder, save_sum
from typer.testing import CliRunner

import polyrank
from polyrank.answering.build import build_index
from polyrank.answering.explain import explain
from polyrank.cli.commands import app
from polyrank.errors import ArtifactError, DataError
from polyrank.scorers.open import load, load_encoder

REPLIES = {"yes": 7, "no": 3, "try again": 1, "restart the router": 2}
CONTEXTS = ["is it on?", ["hello", "my wifi is down"]]


@given(st.dictionaries(st.text(), st.integers(1, 2**40), min_size=1), st.lists(st.text()))
def test_a_score_is_the_logarithm_of_the_count(counts: dict[str, int], others: list[str]) -> None:
    texts = [*counts, *others]
    expected = np.log1p([counts.get(text, 0) for text in texts])
    for row in Popularity.of(counts).score(CONTEXTS, [texts, texts]):
        np.testing.assert_allclose(row, expected, rtol=1e-6)


def test_the_order_of_the_counts_changes_nothing() -> None:
    assert Popularity.of(REPLIES).fingerprint == Popularity.of(dict(reversed(REPLIES.items()))).fingerprint
    assert Popularity.of(REPLIES).fingerprint != Popularity.of({**REPLIES, "no": 4}).fingerprint


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "3"])
def test_invalid_counts_are_refused(count: object) -> None:
    with pytest.raises(DataError, match="whole number above 0"):
        Popularity.of({"yes": count})  # type: ignore[dict-item]  # possible in a file's metadata


def test_nothing_to_count_is_refused() -> None:
    with pytest.raises(DataError, match="0 replies to count"):
        Popularity.of({})


def test_counts_are_reloaded_unchanged_and_damage_is_detected(tmp_path: Path) -> None:
    prior, folder = Popularity.of(REPLIES), tmp_path / "popularity"
    save_popularity(folder, prior)
    loaded = load_popularity(folder)
    assert loaded.fingerprint == prior.fingerprint
    np.testing.assert_array_equal(loaded.score(["a"], [[*REPLIES]])[0], prior.score(["a"], [[*REPLIES]])[0])
    assert not any(text.encode() in file.read_bytes() for file in folder.iterdir() for text in REPLIES if len(text) > 3)
    tensors = folder / "popularity.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"\7")
    with pytest.raises(ArtifactError):
        load(folder)


@pytest.mark.parametrize("kind", ["bi", "poly"])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_an_index_ranks_by_score_and_count(
    kind: str, precision: str, tiny_encoders: dict[str, Path], tmp_path: Path
) -> None:
    """An exact search returns the best by ``score + w log(1 + count)``, also for an encoder with several vectors."""
    save_popularity(tmp_path / "counts", Popularity.of(REPLIES))
    encoder, prior = load_encoder(str(tiny_encoders[kind])), load_encoder(str(tmp_path / "counts"))
    both = SumEncoder([encoder, prior], [1.0, 0.5])
    texts = [*REPLIES, "never said", "nor this"]
    save_sum(tmp_path / "sum", both)
    build_index(tmp_path / "index", str(tmp_path / "sum"), texts, precision=precision)  # type: ignore[arg-type]
    expected = encoder.score_pool(CONTEXTS, texts) + 0.5 * prior.score_pool(CONTEXTS, texts)
    with polyrank.open(tmp_path / "index") as source:
        for row, answer in zip(expected, source.answer_all(CONTEXTS, len(texts)), strict=True):
            assert answer.exact
            tolerance = 1e-4 if precision == "fp32" else 0.05
            found = {reply.text: reply.score for reply in answer.ranked}
            np.testing.assert_allclose([found[text] for text in texts], row, rtol=tolerance, atol=tolerance)
            if precision == "fp32":
                assert [reply.text for reply in answer.ranked] == [texts[i] for i in np.argsort(-row, kind="stable")]


def test_an_explanation_has_a_separate_share_for_the_count(tiny_encoders: dict[str, Path]) -> None:
    encoder, prior = load_encoder(str(tiny_encoders["bi"])), Popularity.of(REPLIES)
    why = explain(SumEncoder([encoder, prior], [1.0, 0.5]), CONTEXTS[1], "no")
    *_, share = why.parts.values()
    assert share.method == "count of replies"
    assert share.rest == share.score == pytest.approx(np.log(4))
    assert [turn.share for turn in share.turns] == [0.0, 0.0]
    assert why.rest + sum(turn.share for turn in why.turns) == pytest.approx(why.score, abs=1e-5)


def test_counts_of_examples_and_of_a_catalogue(tmp_path: Path) -> None:
    pairs, replies = tmp_path / "pairs.jsonl", tmp_path / "replies.jsonl"
    said = [text for text, count in REPLIES.items() for _ in range(count)]
    pairs.write_text("".join(json.dumps({"context": ["hi"], "response": text}) + "\n" for text in said), "utf-8")
    rows = ({"text": text, "count": count} for text, count in REPLIES.items())
    replies.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    for arguments in ([str(pairs)], ["--catalogue", str(replies)]):
        folder = tmp_path / str(len(arguments))
        result = CliRunner().invoke(app, ["popularity", *arguments, "-o", str(folder), "--json"])
        assert result.exit_code == 0, result.output
        assert '"n_replies": 4, "n_said": 13, "most": 7' in result.output
        assert load_encoder(str(folder)).fingerprint == Popularity.of(REPLIES).fingerprint


def test_a_catalogue_without_counts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "replies.jsonl").write_text('{"text": "hello"}\n', "utf-8")
    arguments = ["popularity", "--catalogue", str(tmp_path / "replies.jsonl"), "-o", str(tmp_path / "counts")]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, DataError)
    assert "no field `count`" in str(result.exception)
    assert not (tmp_path / "counts").exists()


@pytest.mark.parametrize("count", ['"many"', "-1", "0", "1.5", "true"])
def test_a_catalogue_with_an_invalid_count_is_refused(count: str, tmp_path: Path) -> None:
    (tmp_path / "replies.jsonl").write_text(f'{{"text": "hello", "metadata": {{"count": {count}}}}}\n', "utf-8")
    arguments = ["popularity", "--catalogue", str(tmp_path / "replies.jsonl"), "-o", str(tmp_path / "counts")]
    assert isinstance(CliRunner().invoke(app, arguments).exception, DataError)


def test_the_counts_of_a_table_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "replies.csv").write_text("text,count\nhello,3\n", "utf-8")
    arguments = ["popularity", "--catalogue", str(tmp_path / "replies.csv"), "-o", str(tmp_path / "counts")]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert load_encoder(str(tmp_path / "counts")).fingerprint == Popularity.of({"hello": 3}).fingerprint
