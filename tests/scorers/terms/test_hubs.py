"""The term of hubs: its formula, its search, its contexts, and that it corrects hubs and only hubs."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

import polyrank
from polyrank import Example
from polyrank.errors import ArtifactError, UsageError
from polyrank.records import Context, ContextLike, contexts_of
from polyrank.scorers.protocols import Encoder, Floats
from polyrank.scorers.terms.hubs import Hubs, choose_contexts
from polyrank.scorers.terms.protocol import Offer
from word_models import WordEncoder

CONTEXTS = [Context(("is it on",)), Context(("hello", "my wifi is down")), Context(("thanks",))]
REPLIES = ["yes", "no", "try again", "restart the router", "you are welcome"]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_scores_follow_the_formula(several: bool, scale: float) -> None:
    encoder = WordEncoder("encoder", 1, several=several)
    term = Hubs.encoded(encoder, CONTEXTS, scale=scale)
    elsewhere = encoder.score_pool(CONTEXTS, REPLIES).astype(np.float64)
    expected = -np.log(np.exp(scale * elsewhere).mean(0)) / scale
    for row in term.score(["what", ["hi", "the light"]], [REPLIES] * 2):
        np.testing.assert_allclose(row[:, 0], expected, atol=1e-5)
    searched = term.encoder((0.6,))
    assert searched is not None
    np.testing.assert_allclose(searched.score_pool(["what"], REPLIES)[0], 0.6 * expected, atol=1e-5)


def test_a_score_does_not_depend_on_other_replies() -> None:
    term = Hubs.encoded(WordEncoder("encoder", 1, several=True), CONTEXTS, scale=1.0)
    alone = np.concatenate([term.numbers([text]) for text in REPLIES])
    np.testing.assert_array_equal(term.numbers(REPLIES), alone)


def test_vectors_of_both_sides_have_about_the_size_of_the_encoders() -> None:
    """As int8 needs, which rounds all numbers of a vector by its greatest."""
    encoder = WordEncoder("encoder", 1)
    term = Hubs.encoded(encoder, CONTEXTS, scale=1.0)
    searched = term.encoder((1.0,))
    assert searched is not None
    of_contexts = (
        np.abs(searched.encode_contexts(CONTEXTS)[0]).max() / np.abs(encoder.encode_contexts(CONTEXTS)[0]).max()
    )
    of_replies = np.abs(searched.encode_candidates(REPLIES)).max() / np.abs(encoder.encode_candidates(REPLIES)).max()
    assert 0.1 < of_contexts < 10
    assert 0.01 < of_replies < 10
    silent = Hubs(encoder, np.zeros((2, 1, 8), np.float32), np.ones((2, 1), np.bool_), scale=1.0).encoder((1.0,))
    assert silent is not None
    assert silent.score_pool(CONTEXTS[:1], REPLIES).tolist() == [[0.0] * len(REPLIES)]


def test_the_fingerprint_depends_on_all_that_determines_a_score() -> None:
    encoder = WordEncoder("encoder", 1)
    terms = [
        Hubs.encoded(encoder, CONTEXTS, scale=1.0),
        Hubs.encoded(encoder, CONTEXTS, scale=2.0),
        Hubs.encoded(encoder, CONTEXTS[:2], scale=1.0),
        Hubs.encoded(encoder, [*CONTEXTS[:2], Context(("hello",))], scale=1.0),
        Hubs.encoded(encoder, [CONTEXTS[1], CONTEXTS[0], CONTEXTS[2]], scale=1.0),
        Hubs.encoded(WordEncoder("encoder", 2), CONTEXTS, scale=1.0),
    ]
    vectors = np.ones((2, 2, encoder.dimension), np.float32)
    masks = [[True, True], [True, True]], [[True, False], [True, True]], [[True, True], [False, True]]
    terms += [Hubs(encoder, vectors, np.array(mask), scale=1.0) for mask in masks]
    assert len({term.fingerprint for term in terms}) == 9
    again = Hubs.encoded(encoder, CONTEXTS, scale=1.0)
    assert again.fingerprint == terms[0].fingerprint
    assert again.contexts is not terms[2].contexts
    assert Hubs.encoded(encoder, CONTEXTS, scale=2.0).contexts is again.contexts  # encoded once in a row
    encoder.fingerprint = ""  # of a model in training, whose weights change
    before = Hubs.encoded(encoder, CONTEXTS, scale=1.0)
    encoder.seed = 2
    assert not np.array_equal(Hubs.encoded(encoder, CONTEXTS, scale=1.0).contexts, before.contexts)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf])
def test_scales_out_of_range_are_refused(scale: float) -> None:
    with pytest.raises(UsageError, match=f"scale = {scale}"):
        Hubs.encoded(WordEncoder("encoder", 1), CONTEXTS, scale=scale)


def test_stored_contexts_that_do_not_fit_are_refused() -> None:
    mask, d = np.ones((2, 1), np.bool_), WordEncoder.dimension
    for contexts, real in (
        (np.ones((2, 1, d + 1), np.float32), mask),
        (np.ones((3, 1, d), np.float32), mask),
        (np.ones((2, 1, d), np.float32), ~mask),
        (np.ones((2, 1, d), np.float32), np.array([[True], [False]])),
        (np.ones((0, 1, d), np.float32), mask[:0]),
    ):
        with pytest.raises(ArtifactError, match="do not fit"):
            Hubs(WordEncoder("encoder", 1), contexts, real, scale=1.0)


def test_contexts_are_chosen_at_random_without_repetition() -> None:
    examples = [Example((str(n % 30),), ("a",), (0,)) for n in range(90)]
    chosen = choose_contexts(examples, 20)
    assert len(set(chosen)) == len(chosen) == 20
    assert chosen == choose_contexts(examples, 20)
    assert chosen != choose_contexts(examples, 20, seed=2)
    assert {one.turns[0] for one in choose_contexts(examples, 99)} == {str(n) for n in range(30)}


N = 40


class HubEncoder(Encoder):
    """Text "x" * i matches context "x" * i; besides, a candidate scores more in every context the longer it is."""

    dimension, fingerprint, name = N + 1, "hubs", "long texts"

    def encode_contexts(self, contexts: Sequence[ContextLike]) -> tuple[Floats, NDArray[np.bool_]]:
        numbers = [len(one.turns[-1]) % N for one in contexts_of(contexts)]
        vectors = np.concatenate([np.eye(N)[numbers], np.ones((len(numbers), 1))], axis=1)
        return vectors[:, None].astype(np.float32), np.ones((len(numbers), 1), np.bool_)

    def encode_candidates(self, candidates: Sequence[str]) -> Floats:
        numbers = np.array([len(text) % N for text in candidates])
        vectors: Floats = np.concatenate([2 * np.eye(N)[numbers], numbers[:, None] / 4], axis=1).astype(np.float32)
        return vectors


def test_hubs_are_corrected() -> None:
    generator = np.random.default_rng(1)
    lists = []
    for number in range(100):
        right = int(generator.integers(1, N))
        wrong = generator.permutation([n for n in range(1, N) if n != right])[:4].tolist()
        lists.append(Example(("x" * right,), tuple("x" * n for n in [right, *wrong]), (0,), str(number)))
    tuning = polyrank.tune([HubEncoder()], lists, without=["words"])
    (row,) = [row for row in tuning.rows if row["kind"] == "hubs"]
    assert 0.5 < row["weights"]["score"] < 1.5
    assert tuning.curve[0]["R@1"]["mean"] < 0.6
    assert tuning.curve[-1]["R@1"]["mean"] > 0.95


def test_an_encoder_that_ranks_no_better_than_chance_has_no_hubs() -> None:
    encoder = WordEncoder("encoder", 1)
    lists = [Example(("a",), ("b", "c"), (0,))]
    assert list(Hubs.offered(Offer((encoder,), lists, scales=(0.0,)))) == []
    (term,) = Hubs.offered(Offer((encoder,), lists, scales=(1.23456,)))
    assert (term.scale, len(term.contexts)) == (1.235, 1)
    assert list(Hubs.offered(Offer((encoder,), (), scales=(1.0,)))) == []
    pairs = [Example((text,), ("b",), (0,)) for text in ("d", "e", "d")]
    (term,) = Hubs.offered(
        Offer((encoder,), lists, pairs, scales=(1.0,))
    )  # contexts of dialogues before those of lists
    np.testing.assert_array_equal(
        sorted(term.contexts[:, 0, 0]), sorted(encoder.encode_contexts(["d", "e"])[0][:, 0, 0])
    )


def test_contexts_of_several_batches_and_sets_keep_their_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrank.scorers.terms.hubs.CONTEXTS_AT_A_TIME", 2)
    encoder = WordEncoder("encoder", 1, several=True)
    contexts = [Context(tuple(f"turn {n}{i}" for i in range(size))) for n, size in enumerate((1, 2, 3, 1, 4))]
    for some in (contexts, contexts[::-1], [Context(("another",)), *contexts[1:]]):
        term, (vectors, mask) = Hubs.encoded(encoder, some, scale=1.0), encoder.encode_contexts(some)
        np.testing.assert_array_equal(term.mask, mask)
        np.testing.assert_array_equal(term.contexts[mask], vectors[mask])
