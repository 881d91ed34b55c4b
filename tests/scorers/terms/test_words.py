"""The term of words: each feature by hand and by an independent computation, and its fit."""

import numpy as np
import pytest

import polyrank
from polyrank import Example
from polyrank.data.same_words import echoes
from polyrank.records import Context
from polyrank.scorers.ranker import Ranker
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.scorers.terms.words import RAREST, WordCounts, Words
from word_models import WordEncoder

COUNTED = WordCounts.of(["the wifi is down", "is it", "the light", "it", *(f"a{n}" for n in range(12))])
MATCH, EARLIER, OVERLAP, ECHO = range(4)


@pytest.mark.parametrize(
    ("turns", "reply", "echo", "overlap"),
    [
        (["My wifi is down."], "my wifi is down", 1, 1.0),
        (["my wifi is down"], "down is my wifi", 0, 1.0),
        (["my wifi is down"], "wifi down down", 0, 0.5),
        (["my wifi is down", "is it on"], "it is on", 0, 1.0),
        (["hi", "my wifi"], "wifi", 0, 0.5),
        (["hi"], "bye", 0, 0.0),
        (["?!"], "?!", 1, 1.0),
        (["?!"], "!", 0, 0.0),
        (["Don’t"], "don't!", 1, 1.0),
        (["hi", "hi"], "hi", 1, 1.0),
    ],
)
def test_repetitions_follow_the_formula(turns: list[str], reply: str, echo: int, overlap: float) -> None:
    for order in (turns, turns[::-1]):
        (features,) = Words(COUNTED).score([order], [[reply]])[0]
        assert features[ECHO] == echo
        assert features[OVERLAP] == pytest.approx(overlap)


def test_a_word_is_as_rare_as_the_texts_that_have_it_are_few() -> None:
    assert WordCounts(16, {"is": 2, "it": 2, "the": 2}) == COUNTED
    assert COUNTED.rarity("it") == np.log(16 / 2)
    assert COUNTED.rarity("wifi") == COUNTED.rarity("unknown") == np.log(16)
    often = ["maybe so"] + ["maybe", "maybe not"] * 2
    many = WordCounts.of([f"yes {n} a{n} b{n}" for n in range(20_000)] + ["no and no", "no", *often, "maybe?"])
    assert many.rarity("no") == many.rarity("17") == RAREST  # in 2 of 20,006 texts
    assert many.counts == {"yes": 20_000, "maybe": 4}  # of which each has the same share, however many words there are
    assert WordCounts.of([]).rarity("yes") == 0.0
    assert WordCounts.of(["Yes", "Yes"]) == WordCounts.of(["Yes"])


def test_rare_words_in_common_with_the_newest_turn_the_background_and_earlier_turns_count() -> None:
    context = Context(("My wifi is down", "The light, is it on?"), ("I like tea",))
    rare, half = np.log(16), np.log(8)
    replies = {
        "light": (rare, 0.0),
        "THE light: the light!": (half + rare, 0.0),
        "tea for my wifi": (rare, 2 * rare),  # "tea"; "my", "wifi"
        "it is down": (2 * half, rare),  # "is" is in both turns, and counts as of the newest one
        "router": (0.0, 0.0),
        "router " * 100 + "light wifi": (0.0, 0.0),  # beyond the first hundred words
        "router " * 100 + "light": (0.0, 0.0),
        "router " * 99 + "light": (rare, 0.0),
        "router" * 900 + " light": (rare, 0.0),  # too long to be kept
    }
    (features,) = Words(COUNTED).score([context], [list(replies)])
    np.testing.assert_allclose(features[:, [MATCH, EARLIER]], list(replies.values()), rtol=1e-6)


def test_random_texts_have_the_features_of_an_independent_computation() -> None:
    generator = np.random.default_rng(1)

    def text() -> str:
        return " ".join(generator.choice(["wifi", "down", "light", "yes", "router"], generator.integers(1, 4)))

    contexts = [Context(tuple(text() for _ in range(generator.integers(1, 4)))) for _ in range(50)]
    lists = [[text() for _ in range(7)] for _ in contexts]
    n_echoes = 0
    for context, texts, rows in zip(contexts, lists, Words(COUNTED).score(contexts, lists), strict=True):
        said = echoes(context.turns)
        for reply, features in zip(texts, rows, strict=True):
            b, newest = set(reply.split()), set(context.turns[-1].split())
            shares = [len([w for w in b if w in t.split()]) / len({*b, *t.split()}) for t in context.turns]
            before = {word for turn in context.turns[:-1] for word in turn.split()} - newest
            wanted = [
                sum(map(COUNTED.rarity, b & newest)),
                sum(map(COUNTED.rarity, b & before)),
                max(shares),
                said(reply),
            ]
            np.testing.assert_allclose(features, wanted, rtol=1e-6)
            n_echoes += said(reply)
    assert n_echoes > 5


def test_a_score_does_not_depend_on_other_rows_or_candidates() -> None:
    context, replies = ["hi there", "My wifi is down."], ["my wifi is down", "is the light red", "yes", "Hi there!"]
    whole = Words(COUNTED).score([context, ["hi"], context], [replies, replies[:2], replies[::-1]])
    alone = np.concatenate([Words(COUNTED).score([context], [[reply]])[0] for reply in replies])
    np.testing.assert_array_equal(whole[0], alone)
    np.testing.assert_array_equal(whole[2], alone[::-1])
    assert [len(rows) for rows in Words(COUNTED).score([context, context], [[], ["a"]])] == [0, 1]


def test_contexts_without_turns_or_words_are_compared() -> None:
    (rows,) = Words(COUNTED).score([Context((), ("yes it is", "the router is blue"))], [["my router", "no"]])
    np.testing.assert_allclose(rows, [[COUNTED.rarity("router"), 0, 0, 0], [0, 0, 0, 0]], rtol=1e-6)
    assert Words(COUNTED).score([Context(("",))], [["yes"]])[0].tolist() == [[0.0] * 4]


@pytest.mark.deep
@pytest.mark.parametrize("weights", [(0.5, -0.4, 1.5, -2.0), (-0.3, 0.5, -2.0, 1.5)])
def test_the_fit_finds_the_weights_that_made_the_answers(weights: tuple[float, ...]) -> None:
    """Of either sign; with 800 lists, a prior for few lists hardly matters."""
    generator, encoder, lists = np.random.default_rng(7), WordEncoder("encoder", 1), []
    shares = 1 / np.arange(1, 26)
    vocabulary = [f"w{n}" for n in range(25)]

    def text() -> str:
        return " ".join(generator.choice(vocabulary, generator.integers(3, 7), p=shares / shares.sum()))

    drawn = [(tuple(text() for _ in range(3)), [text() for _ in range(5)]) for _ in range(800)]
    for turns, texts in drawn:
        if generator.random() < 0.6:
            texts[0] = turns[generator.integers(3)]
    true = Words(WordCounts.of(reply for _, texts in drawn for reply in texts))
    ranker = Ranker([(EncoderTerm(encoder), (1.0,)), (true, weights)])
    scores = ranker.score([turns for turns, _ in drawn], [texts for _, texts in drawn])
    for number, ((turns, texts), row) in enumerate(zip(drawn, scores, strict=True)):
        lists.append(Example(turns, tuple(texts), (int((row + generator.gumbel(size=5)).argmax()),), str(number)))
    tuning = polyrank.tune([encoder], lists, without=["hubs"])
    (found,) = [each.weights for each in tuning.ranker.terms if each.term.kind == "words"]
    np.testing.assert_allclose(np.array(found) * tuning.ranker.scale, weights, atol=0.8)
    np.testing.assert_allclose((np.array(found) * tuning.ranker.scale)[:2], weights[:2], atol=0.2)
    assert (np.sign(found) == np.sign(weights)).all()
