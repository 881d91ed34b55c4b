"""The second stage that compares words: its formula, its fit, its folder, both stages together, the command line."""

import json
import re
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from polyrank.scorers.repetition import RAREST, Repetition, Words, load_repetition, save_repetition
from polyrank.tuning.repetition import fit_repetition
from typer.testing import CliRunner

import polyrank
from polyrank.answering.build import build_index
from polyrank.answering.explain import explain
from polyrank.cli.commands import app
from polyrank.data.same_words import echoes
from polyrank.errors import ArtifactError, DataError, PolyrankError, UsageError
from polyrank.evaluation.protocols import evaluate
from polyrank.loading.models import resolve_model
from polyrank.records import Context, ContextLike, Example, contexts_of
from polyrank.scorers.late import LateScorer
from polyrank.scorers.open import load, load_encoder, load_stage
from polyrank.scorers.protocols import Encoder, Floats, Scorer
from polyrank.scorers.two_stage import TwoStageScorer
from polyrank.serving.served import Served
from polyrank.serving.tasks import EmbedTask, ExplainTask, ScoreTask
from polyrank.training import train

CONTEXT = ["hi there", "My wifi is down.", "Is the light on?"]
REPLIES = ["my wifi is down", "is the light red", "yes", "no", "restart the router", "Hi there!"]
WORDS = ["wifi", "down", "light", "yes", "router"]


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
def test_scores_follow_the_formula(turns: list[str], reply: str, echo: int, overlap: float) -> None:
    for penalty, weight in ((1.0, 0.0), (0.0, 1.0), (-2.0, 3.0)):
        stage = Repetition(penalty=penalty, overlap=weight)
        for order in (turns, turns[::-1]):
            assert stage.score([order], [[reply]])[0].tolist() == [pytest.approx(weight * overlap - penalty * echo)]


def test_background_does_not_count_and_a_context_without_words_scores_0() -> None:
    stage = Repetition(penalty=1.0, overlap=2.0)
    assert stage.score([Context(("hi",), ("I like tea",))], [["I like tea"]])[0].tolist() == [0.0]
    assert stage.score([Context(("",)), Context((" ", "hi"))], [["yes"], ["hi", "yes"]])[1].tolist() == [1.0, 0.0]


def test_random_texts_have_the_scores_of_an_independent_computation() -> None:
    rng = np.random.default_rng(1)

    def text() -> str:
        return " ".join(rng.choice(WORDS, rng.integers(1, 4)))

    contexts = [Context(tuple(text() for _ in range(rng.integers(1, 4)))) for _ in range(50)]
    lists = [[text() for _ in range(7)] for _ in contexts]
    found = Repetition(penalty=1.5, overlap=0.5).score(contexts, lists)
    n_echoes = 0
    for context, texts, row in zip(contexts, lists, found, strict=True):
        said = echoes(context.turns)
        for reply, value in zip(texts, row.tolist(), strict=True):
            b = reply.split()
            shares = [len([w for w in set(b) if w in t.split()]) / len({*b, *t.split()}) for t in context.turns]
            n_echoes += said(reply)
            assert value == pytest.approx(0.5 * max(shares) - 1.5 * said(reply))
    assert n_echoes > 5


COUNTED = Words.of(["the wifi is down", "is it", "the light", "it", *(f"a{n}" for n in range(12))])


def test_a_word_is_as_rare_as_the_texts_that_have_it_are_few() -> None:
    assert Words(16, {"is": 2, "it": 2, "the": 2}) == COUNTED
    assert COUNTED.rarity("it") == np.log(16 / 2)
    assert COUNTED.rarity("wifi") == COUNTED.rarity("unknown") == np.log(16)
    many = Words.of([f"yes {n}" for n in range(20_000)] + ["no and no", "no"])
    assert many.rarity("no") == many.rarity("17") == RAREST  # in 2 of 20,002 texts
    assert many.counts == {"yes": 20_000}
    assert Words.of([]).rarity("yes") == 0.0
    assert Words.of(["Yes", "Yes"]) == Words.of(["Yes"])


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
        "router " * 99 + "light": (rare, 0.0),
        "router" * 900 + " light": (rare, 0.0),  # too long to be kept
    }
    for match, earlier in ((1.0, 0.0), (0.0, 1.0), (0.5, -2.0)):
        stage = Repetition(match=match, earlier=earlier, words=COUNTED)
        expected = [match * newest + earlier * before for newest, before in replies.values()]
        np.testing.assert_allclose(stage.score([context], [list(replies)])[0], expected, rtol=1e-6)
    both = Repetition(penalty=1.0, overlap=2.0, match=0.5, earlier=-1.0, words=COUNTED)
    terms = [Repetition(penalty=1.0, overlap=2.0), Repetition(match=0.5, earlier=-1.0, words=COUNTED)]
    np.testing.assert_allclose(
        both.score([CONTEXT], [REPLIES])[0], sum(stage.score([CONTEXT], [REPLIES])[0] for stage in terms), rtol=1e-5
    )
    assert Repetition(earlier=1.0, words=COUNTED).numbers == {"penalty": 0, "overlap": 0, "match": 0, "earlier": 1}
    with pytest.raises(UsageError, match="need the words"):
        Repetition(match=1.0)


def test_a_score_does_not_depend_on_other_rows_or_candidates() -> None:
    stage = Repetition(penalty=1.5, overlap=0.7, match=0.3, earlier=-0.2, words=COUNTED)
    whole = stage.score([CONTEXT, ["hi"], CONTEXT], [REPLIES, REPLIES[:2], REPLIES[::-1]])
    alone = [stage.score([CONTEXT], [[reply]])[0][0] for reply in REPLIES]
    assert whole[0].tolist() == alone
    assert whole[2].tolist() == alone[::-1]
    np.testing.assert_array_equal(stage.score_pool([CONTEXT], REPLIES)[0], whole[0])
    assert [len(row) for row in stage.score([CONTEXT, CONTEXT], [[], ["a"]])] == [0, 1]


def test_a_background_without_turns_is_compared() -> None:
    stage = Repetition(penalty=1.0, overlap=1.0, match=1.0, earlier=1.0, words=COUNTED)
    (scores,) = stage.score([Context((), ("the router is blue",))], [["my router", "yes"]])
    np.testing.assert_allclose(scores, [COUNTED.rarity("router"), 0.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "value"), [("penalty", np.inf), ("overlap", np.nan), ("match", np.nan), ("weight", 1e300)]
)
def test_numbers_that_are_not_finite_are_refused(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{name} = {value} of a repetition; give a number between")):
        Repetition(words=COUNTED, **dict[str, Any]({name: value}))


def stage_of(encoder: Encoder, penalty: float = 5.0, overlap: float = 1.0) -> Repetition:
    return Repetition(penalty=penalty, overlap=overlap, corrects=encoder.fingerprint)


@pytest.mark.parametrize("kind", ["bi", "poly"])
def test_two_stages_add_both_scores_within_the_shortlist(kind: str, tiny_encoders: dict[str, Path]) -> None:
    encoder = load_encoder(str(tiny_encoders[kind]))
    stage = stage_of(encoder)
    first, second = encoder.score([CONTEXT], [REPLIES])[0], stage.score([CONTEXT], [REPLIES])[0]
    both = TwoStageScorer(encoder, stage, n_retrieved=len(REPLIES))
    assert both.ensemble == "raw"
    np.testing.assert_allclose(both.score([CONTEXT], [REPLIES])[0], first + second, atol=1e-5)
    three = TwoStageScorer(encoder, stage, n_retrieved=3).score([CONTEXT], [REPLIES])[0]
    best = np.argsort(-first)[:3]
    np.testing.assert_allclose(three[best], (first + second)[best], atol=1e-5)
    assert set(np.argsort(-three)[:3].tolist()) == set(best.tolist())


def test_scores_of_another_encoder_are_not_corrected(tiny_encoders: dict[str, Path]) -> None:
    bi, poly = (load_encoder(str(tiny_encoders[kind])) for kind in ("bi", "poly"))
    with pytest.raises(UsageError, match="corrects the scores of another encoder"):
        TwoStageScorer(poly, stage_of(bi))
    assert TwoStageScorer(poly, stage_of(bi), ensemble="raw").ensemble == "raw"


def test_an_explanation_shows_which_turn_is_repeated(tiny_encoders: dict[str, Path]) -> None:
    encoder = load_encoder(str(tiny_encoders["bi"]))
    stage = stage_of(encoder, penalty=4.0, overlap=0.0)
    why = explain(TwoStageScorer(encoder, stage), CONTEXT, "my wifi is down")
    first, second = why.parts["retriever"], why.parts["reranker"]
    assert why.score == pytest.approx(first.score - 4.0, abs=1e-5)
    assert [turn.share for turn in second.turns] == [0.0, -4.0, 0.0]


class Near(Encoder):
    """A context is near the replies that hold its last word; copies of the last turn are as near as others."""

    dimension, fingerprint = len(WORDS), "near"

    def encode_contexts(self, contexts: Sequence[ContextLike]) -> tuple[Floats, NDArray[np.bool_]]:
        """Which words its last turn has."""
        vectors = self.encode_candidates([one.turns[-1] for one in contexts_of(contexts)])
        return vectors[:, None], np.ones((len(vectors), 1), np.bool_)

    def encode_candidates(self, candidates: Sequence[str]) -> Floats:
        """Which words a text has."""
        return np.array([[word in text.split() for word in WORDS] for text in candidates], np.float32)


class Lengths(Scorer):
    """Each letter beyond the first nine counts."""

    name, fingerprint = "lengths", "lengths"

    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Each context's own candidates."""
        return [np.array([max(0, len(text) - 9) for text in texts], np.float32) for texts in candidates]


def test_another_second_stage_is_added_with_its_weight() -> None:
    stage = Repetition(penalty=2.0, overlap=1.0, reranker=Lengths(), weight=0.5)
    expected = [
        own + 0.5 * more
        for own, more in zip(
            Repetition(penalty=2.0, overlap=1.0).score([CONTEXT], [REPLIES]),
            Lengths().score([CONTEXT], [REPLIES]),
            strict=True,
        )
    ]
    np.testing.assert_allclose(stage.score([CONTEXT], [REPLIES]), expected)
    same, heavier = (Repetition(penalty=2.0, overlap=1.0, reranker=Lengths(), weight=w) for w in (0.5, 1.0))
    assert stage.fingerprint == same.fingerprint
    assert len({stage.fingerprint, heavier.fingerprint, Repetition(penalty=2.0, overlap=1.0).fingerprint}) == 3
    with pytest.raises(UsageError, match="weight = inf"):
        Repetition(penalty=1.0, overlap=0.0, reranker=Lengths(), weight=float("inf"))


class Meaning(Encoder):
    """Every word has a random vector on each side, so that the scores do not depend on equal words."""

    dimension, fingerprint = 8, "meaning"

    def encode_contexts(self, contexts: Sequence[ContextLike]) -> tuple[Floats, NDArray[np.bool_]]:
        """The mean of the words of the newest turn."""
        vectors = [_meaning(one.turns[-1], 1) for one in contexts_of(contexts)]
        return np.array(vectors)[:, None], np.ones((len(vectors), 1), np.bool_)

    def encode_candidates(self, candidates: Sequence[str]) -> Floats:
        """The mean of the words of a text."""
        return np.array([_meaning(text, 2) for text in candidates])


def _meaning(text: str, side: int) -> Floats:
    mean: Floats = np.array([_of_word(word, side) for word in text.split()], np.float32).mean(axis=0)
    return mean


@cache
def _of_word(word: str, side: int) -> NDArray[np.float64]:
    return np.random.default_rng([side, *word.encode()]).normal(size=Meaning.dimension)


VOCABULARY = [f"w{n}" for n in range(25)]


def simulated(n: int, second: Scorer) -> list[Example]:
    """Lists of random texts, whose right reply is drawn as the scores of Meaning and of a second stage predict."""
    rng, examples = np.random.default_rng(7), []

    def text() -> str:
        return " ".join(rng.choice(VOCABULARY, rng.integers(3, 7), p=WORD_SHARES))

    for number in range(n):
        turns, texts = tuple(text() for _ in range(3)), [text() for _ in range(5)]
        if rng.random() < 0.6:
            texts[0] = turns[rng.integers(3)]
        scores = (Meaning().score([turns], [texts])[0] + second.score([turns], [texts])[0]).astype(np.float64)
        right = int((scores + rng.gumbel(size=5)).argmax())
        examples.append(Example(turns, tuple(texts), (right,), str(number)))
    return examples


WORD_SHARES = 1 / np.arange(1, 26) / (1 / np.arange(1, 26)).sum()
WORDS_OF_ALL = Words.of([" ".join(np.random.default_rng(n).choice(VOCABULARY, 5, p=WORD_SHARES)) for n in range(3000)])


@pytest.mark.parametrize(("penalty", "overlap", "match", "earlier"), [(2.0, 1.5, 0.5, -0.4), (-1.5, -2.0, -0.3, 0.5)])
def test_the_fit_finds_the_numbers_that_made_the_answers(
    penalty: float, overlap: float, match: float, earlier: float
) -> None:
    made = Repetition(penalty=penalty, overlap=overlap, match=match, earlier=earlier, words=WORDS_OF_ALL)
    valid = simulated(800, made)
    stage, figures = fit_repetition(Meaning(), valid)
    assert (stage.corrects, stage.reranker, stage.weight) == ("meaning", None, 1.0)
    assert stage.penalty == pytest.approx(penalty, abs=0.6)
    assert stage.overlap == pytest.approx(overlap, abs=1.0)
    assert stage.match == pytest.approx(match, abs=0.15)
    assert stage.earlier == pytest.approx(earlier, abs=0.15)
    assert figures["gain"]["difference"] > 0.05
    assert figures["gain"]["over"] == 0
    assert len(figures["parts"]) == 1
    assert figures["sum"]["R@1"] > figures["parts"][0]["R@1"]
    echoed = [[text in one.context for text in one.candidates] for one in valid]
    assert figures["n_echo"] == sum(map(any, echoed))
    assert figures["n_echo_right"] == sum(row[one.relevant[0]] for row, one in zip(echoed, valid, strict=True))


def test_few_lists_suggest_no_large_numbers() -> None:
    lists = simulated(600, Repetition())  # words in common mean nothing
    judged = lists[200:]
    first = evaluate(Meaning(), judged).answerable
    losses = []
    for start in range(0, 200, 20):
        stage, _ = fit_repetition(Meaning(), lists[start : start + 20])
        second = evaluate(stage, judged).answerable
        losses += [
            (a.scores.argmax() in a.relevant) - ((a.scores + b.scores).argmax() in a.relevant)
            for a, b in zip(first, second, strict=True)
            if a.scores is not None and b.scores is not None
        ]
    assert np.mean(losses) < 0.015  # 0.03 with a wide prior


class Numbers(Scorer):
    """Of two words, the one with the higher number is better, by the sum over a reply."""

    name, fingerprint = "numbers", "numbers"

    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Each context's own candidates."""
        return [np.array([sum(int(w[1:]) for w in text.split()) / 10 for text in texts], np.float32)
                for texts in candidates]  # fmt: skip


def test_another_second_stage_is_weighed_along_on_the_best_candidates() -> None:
    made = Repetition(penalty=2.0, reranker=Numbers(), weight=0.7)
    valid = simulated(500, made)
    stage, figures = fit_repetition(Meaning(), valid, reranker=Numbers(), n_retrieved=4)
    assert isinstance(stage.reranker, Numbers)
    assert stage.weight == pytest.approx(0.7, abs=0.2)
    assert stage.penalty == pytest.approx(2.0, abs=0.7)
    short = []
    for one in valid:  # ties of the first stage are by text
        scores = Meaning().score([one.context], [one.candidates])[0]
        best = sorted(range(5), key=lambda i: (-scores[i], one.candidates[i]))[:4]
        if one.relevant[0] in best:
            texts = tuple(one.candidates[i] for i in best)
            short.append(Example(one.context, texts, (best.index(one.relevant[0]),), one.id))
    assert figures["n_valid"] == len(short) < len(valid)
    alone, _ = fit_repetition(Meaning(), short)
    queries, lists = [one.query for one in short], [one.candidates for one in short]
    right = [one.relevant[0] for one in short]

    def r1(second: Repetition) -> float:
        totals = [a + b for a, b in zip(Meaning().score(queries, lists), second.score(queries, lists), strict=True)]
        return float(np.mean([row.argmax() == i for row, i in zip(totals, right, strict=True)]))

    assert figures["sum"]["R@1"] == pytest.approx(r1(stage))
    assert r1(stage) > r1(alone) + 0.05
    opposite = simulated(150, Repetition(reranker=Numbers(), weight=-0.7))
    without, figures = fit_repetition(Meaning(), opposite, reranker=Numbers())
    assert without.reranker is None  # its weight would be below 0
    far = [Example(("wifi",), ("wifi", "wifi too", "yes"), (2,), str(n)) for n in range(9)]
    with pytest.raises(DataError, match="no list has a right answer among the encoder's 2 best"):
        fit_repetition(Near(), far, reranker=Lengths(), n_retrieved=2)


def test_lists_that_choose_nothing_are_refused() -> None:
    with pytest.raises(DataError, match="no example has a right answer"):
        fit_repetition(Near(), [Example(("a",), ("b",), (0,))])
    wrong = [Example(("wifi",), ("wifi please", "yes"), (1,), str(n)) for n in range(20)]
    with pytest.raises(DataError, match="adds nothing to repetition on 20 lists"):
        fit_repetition(Near(), wrong)


def test_a_folder_is_reloaded_unchanged_and_damage_is_detected(tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    folder, name = tmp_path / "said", str(tiny_encoders["bi"])
    stage = stage_of(load_encoder(name), 5.25, 1 / 3)
    save_repetition(folder, stage, encoder=name)
    loaded = load_stage(folder)
    assert isinstance(loaded, Repetition)
    assert loaded.corrects == stage.corrects
    assert loaded.fingerprint == load_repetition(folder).fingerprint == stage.fingerprint
    np.testing.assert_array_equal(loaded.score_pool([CONTEXT], REPLIES), stage.score_pool([CONTEXT], REPLIES))
    rarely = Repetition(penalty=5.25, match=0.25, earlier=-0.125, words=COUNTED, corrects=stage.corrects)
    save_repetition(tmp_path / "rarely", rarely, encoder=name)
    again = load_stage(tmp_path / "rarely")
    assert isinstance(again, Repetition)
    assert (again.numbers, again.words, again.fingerprint) == (rarely.numbers, COUNTED, rarely.fingerprint)
    np.testing.assert_array_equal(again.score_pool([CONTEXT], REPLIES), rarely.score_pool([CONTEXT], REPLIES))
    fewer = Repetition(penalty=5.25, match=0.25, earlier=-0.125, words=Words(9, {}), corrects=stage.corrects)
    assert fewer.fingerprint != rarely.fingerprint
    others = [(5.0, 1 / 3, stage.corrects), (5.25, 1.0, stage.corrects), (5.25, 1 / 3, "other")]
    prints = {Repetition(penalty=p, overlap=w, corrects=c).fingerprint for p, w, c in others}
    assert len(prints | {stage.fingerprint}) == 4
    with pytest.raises(UsageError, match="already exists"):
        save_repetition(folder, stage, encoder=name)
    with pytest.raises(UsageError, match="would be a part of itself"):
        save_repetition(folder, stage, encoder=str(folder), replace=True)
    save_repetition(folder, stage, encoder=name, replace=True)
    with pytest.raises(UsageError, match="no fingerprint"):
        save_repetition(tmp_path / "other", Repetition(penalty=1.0, overlap=0.0), encoder="mine")
    document = folder / "repetition.json"
    document.write_text(document.read_text("utf-8").replace("5.25", "6.25"), "utf-8")
    with pytest.raises(ArtifactError, match="make it again with polyrank repetition"):
        load_stage(folder)


@pytest.fixture
def valid(tmp_path: Path) -> Path:
    """Candidate lists in which replies that repeat the context are wrong."""
    rows = [
        {"context": ["hello", reply], "candidates": [reply, f"{reply} now", *REPLIES[:3]], "relevant": [1]}
        for reply in REPLIES[3:] * 3
    ]
    path = tmp_path / "valid.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture
def said(tiny_encoders: dict[str, Path], tmp_path: Path) -> Path:
    """The folder of a re-ranker."""
    folder, name = tmp_path / "said", str(tiny_encoders["bi"])
    save_repetition(folder, stage_of(load_encoder(name), penalty=100.0), encoder=name)
    return folder


def test_the_command_writes_a_second_stage(tiny_encoders: dict[str, Path], valid: Path, tmp_path: Path) -> None:
    folder, name = tmp_path / "said", str(tiny_encoders["bi"])
    done = CliRunner().invoke(app, ["repetition", name, "-o", str(folder), "--valid", str(valid)])
    assert done.exit_code == 0, done.output
    assert "over" in done.output
    assert f"a second stage of {name}" in done.output
    assert "on 9 lists of valid.jsonl: R@1" in done.output
    assert "in 9 of these lists a candidate repeats a turn, in 0 a right one does" in done.output
    figures = json.loads(CliRunner().invoke(app, ["info", str(folder), "--json"]).output)
    loaded = load_repetition(folder)
    assert (figures["kind"], figures["n_valid"], figures["encoder"]) == ("repetition", 9, name)
    assert (figures["penalty"], figures["overlap"]) == (loaded.penalty, loaded.overlap)
    assert loaded.corrects == load_encoder(name).fingerprint
    evaluated = CliRunner().invoke(app, ["evaluate", name, str(valid), "--rerank", str(folder), "--json"])
    assert json.loads(evaluated.stdout)["metrics"]["R@1"] == pytest.approx(figures["sum"]["R@1"])

    few = ["repetition", name, "-o", str(tmp_path / "few"), "--valid", str(valid), "--max-valid", "4", "--json"]
    assert json.loads(CliRunner().invoke(app, few).stdout)["n_valid"] == 4
    base = ["repetition", name, "-o", str(folder), "--penalty", "5", "--overlap", "-0.5", "--overwrite"]
    replies = tmp_path / "replies.txt"
    replies.write_text("\n".join(REPLIES), "utf-8")
    done = CliRunner().invoke(app, [*base, "--match", "0.2", "--earlier", "-0.1", "--words", str(replies)])
    assert done.exit_code == 0, done.output
    assert "+0.2 times the rarity of words in common with the newest turn" in done.output
    assert load_repetition(folder).words == Words.of(REPLIES)
    assert (load_repetition(folder).match, load_repetition(folder).earlier) == (0.2, -0.1)
    given = [*base, "--json"]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    assert (load_repetition(folder).penalty, load_repetition(folder).overlap) == (5.0, -0.5)
    info = CliRunner().invoke(app, ["info", str(folder)])
    assert "-0.5 times the words in common, -5 for a repeated turn" in info.output


@pytest.fixture(scope="module")
def late(
    word_task: dict[str, Path],
    tiny_backbone: Path,
    tiny_encoders: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    """A late Cross-encoder that corrects the Bi-encoder."""
    first = str(tiny_encoders["bi"])
    plan = {
        "model": {"kind": "late", "backbone": str(tiny_backbone), "joined_layers": 1},
        "text": {"max_context_tokens": 32, "max_candidate_tokens": 16},
        "data": {name: str(path) for name, path in word_task.items()},
        "output": str(tmp_path_factory.mktemp("late") / "run"),
        "train": {
            "method": {"kind": "rerank", "first_stage": first}, "negatives": {"n": 3}, "batch_size": 8,
            "max_steps": 20, "lr": 1e-3, "init_from": first,
        },
    }  # fmt: skip
    (result,) = train(plan)
    return str(result.model)


def test_it_adds_to_a_late_cross_encoder(
    tiny_encoders: dict[str, Path], late: str, valid: Path, tmp_path: Path
) -> None:
    folder, name = tmp_path / "both", str(tiny_encoders["bi"])
    base = ["repetition", name, "-o", str(folder), "--rerank", late]
    done = CliRunner().invoke(app, [*base, "--penalty", "100"])
    assert done.exit_code == 0, done.output
    assert f"+1 times the score of {late}" in done.output
    loaded, first = load_stage(folder), load_encoder(name)
    assert isinstance(loaded, Repetition)
    assert isinstance(loaded.reranker, LateScorer)
    assert loaded.corrects == first.fingerprint == loaded.reranker.corrects
    assert loaded.fingerprint == json.loads((folder / "repetition.json").read_text("utf-8"))["fingerprint"]
    both = TwoStageScorer(first, loaded, n_retrieved=len(REPLIES))
    alone = TwoStageScorer(load_encoder(name), load_stage(late), n_retrieved=len(REPLIES))
    total, plain = (np.array(stages.score([CONTEXT], [REPLIES])[0]) for stages in (both, alone))
    echo = np.array([100.0 if text in ("my wifi is down", "Hi there!") else 0.0 for text in REPLIES])
    np.testing.assert_allclose(total, plain - echo, atol=1e-4)
    assert loaded.reranker._followed  # it takes the first stage's layers, as it does alone
    assert loaded.n_context_tokens(CONTEXT) == loaded.reranker.n_context_tokens(CONTEXT)
    loaded.score([["wifi " * 99]], [["yes"]])
    assert any(loaded.cut)
    info = json.loads(CliRunner().invoke(app, ["info", str(folder), "--json"]).output)
    assert info["reranker"] == {"model": late, "fingerprint": loaded.reranker.fingerprint, "weight": 1.0}

    done = CliRunner().invoke(app, [*base, "--valid", str(valid), "--overwrite"])
    assert done.exit_code == 0, done.output
    fitted = load_stage(folder)
    assert isinstance(fitted, Repetition)
    assert ("adds nothing" in done.output) == (fitted.reranker is None)
    evaluated = CliRunner().invoke(app, ["evaluate", name, str(valid), "--rerank", str(folder), "--json"])
    assert evaluated.exit_code == 0, evaluated.output


@pytest.mark.parametrize("kind", ["said", "late"])
def test_a_second_stage_that_is_named_alone_ranks_with_its_encoder(
    kind: str, tiny_encoders: dict[str, Path], valid: Path, request: pytest.FixtureRequest
) -> None:
    """On the command line and on a server, where scores and explanations are those of both stages."""
    stage, name = str(request.getfixturevalue(kind)), str(tiny_encoders["bi"])

    def metrics(*model: str) -> Any:
        done = CliRunner().invoke(app, ["evaluate", *model, str(valid), "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)["metrics"]

    assert metrics(stage) == metrics(name, "--rerank", stage)
    both = TwoStageScorer(load_encoder(name), load_stage(stage), n_retrieved=len(REPLIES))
    expected = both.score([CONTEXT], [REPLIES])[0]
    assert np.abs(expected - load_encoder(name).score([CONTEXT], [REPLIES])[0]).max() > 2e-3
    ranked = load(name, rerank=stage).rank(CONTEXT, REPLIES)
    assert [reply.text for reply in ranked] == [REPLIES[i] for i in np.argsort(-expected, kind="stable")]
    with pytest.raises(UsageError, match="only corrects an encoder's scores"):
        load_stage(stage).rank(CONTEXT, REPLIES)
    np.testing.assert_array_equal(load(stage).score([CONTEXT], [REPLIES])[0], expected)
    assert metrics(stage, "--n-retrieved", "2") == metrics(name, "--rerank", stage, "--n-retrieved", "2")
    served = Served("served", stage)
    (scored,) = served.score([ScoreTask(Context(tuple(CONTEXT)), REPLIES)])
    np.testing.assert_allclose(scored.scores, expected, atol=1e-4)
    assert scored.fingerprint == load_stage(stage).fingerprint
    one_turn = Context(("is the wifi down?",))
    (explained,) = served.explain([ExplainTask(one_turn, REPLIES[0])])
    assert json.loads(explained)["score"] == pytest.approx(both.score([one_turn], [REPLIES])[0][0], abs=1e-3)
    (explained,) = served.explain([ExplainTask(Context(tuple(CONTEXT)), REPLIES[0])])
    assert json.loads(explained)["score"] == pytest.approx(expected[0], abs=1e-3)
    assert served.info().kind == "model"
    (embedded,) = served.embed([EmbedTask(REPLIES, "document")])
    assert embedded.vectors is not None
    np.testing.assert_allclose(embedded.vectors, load_encoder(name).encode_candidates(REPLIES), atol=1e-5)


def test_second_stages_cannot_contain_each_other(tiny_encoders: dict[str, Path], said: Path, tmp_path: Path) -> None:
    base = ["repetition", str(tiny_encoders["bi"]), "--penalty", "1", "-o"]
    outer = str(tmp_path / "outer")
    assert CliRunner().invoke(app, [*base, outer, "--rerank", str(said)]).exit_code == 0
    done = CliRunner().invoke(app, [*base, str(said), "--rerank", outer, "--overwrite"])
    assert "would be a part of itself; choose another path" in str(done.exception)
    assert CliRunner().invoke(app, ["info", outer]).exit_code == 0


def test_a_second_stage_without_its_encoder_is_refused(tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    encoder, folder = tmp_path / "encoder", tmp_path / "said"
    shutil.copytree(tiny_encoders["bi"], encoder)
    save_repetition(folder, stage_of(load_encoder(encoder)), encoder=str(encoder))
    shutil.rmtree(encoder)
    with pytest.raises(UsageError, match=r"corrects the scores of .*encoder, which does not exist; restore it"):
        resolve_model(folder).stages()
    shutil.copytree(tiny_encoders["poly"], encoder)
    with pytest.raises(ArtifactError, match=r"encoder is now .*; restore that encoder, or make this re-ranker again"):
        Served("served", str(folder))


def test_the_other_second_stage_must_be_usable(
    tiny_encoders: dict[str, Path], late: str, said: Path, tmp_path: Path
) -> None:
    name = str(tiny_encoders["bi"])

    def refused(*options: str) -> str:
        done = CliRunner().invoke(app, ["repetition", name, "-o", *options])
        assert isinstance(done.exception, PolyrankError), done.output
        return str(done.exception)

    out = str(tmp_path / "out")
    assert "corrects the scores of another encoder" in refused(
        out, "--penalty", "1", "--rerank", str(made_for(tiny_encoders["poly"], tmp_path))
    )
    assert "ranks alone" in refused(out, "--penalty", "1", "--rerank", str(tiny_encoders["poly"]))
    assert "would be a part of itself" in refused(str(said), "--penalty", "1", "--rerank", str(said), "--overwrite")
    assert "no name or no fingerprint" in refused(out, "--rerank", "bm25", "--valid", str(made_lists(tmp_path)))
    assert not Path(out).exists()
    moved = tmp_path / "moved"
    shutil.copytree(said, moved)
    halved = Repetition(
        penalty=1.0, overlap=0.0, corrects=load_encoder(name).fingerprint, reranker=load_stage(moved), weight=0.5
    )
    save_repetition(Path(out), halved, encoder=name)
    loaded = load_stage(out)
    assert loaded.fingerprint == halved.fingerprint
    np.testing.assert_array_equal(loaded.score_pool([CONTEXT], REPLIES), halved.score_pool([CONTEXT], REPLIES))
    with pytest.raises(UsageError, match=r"needs the re-ranker .* open the folder with polyrank\.load"):
        load_repetition(Path(out))  # never scores without it
    shutil.rmtree(moved)
    with pytest.raises(UsageError, match="needs the re-ranker"):
        load_stage(out)
    save_repetition(moved, stage_of(load_encoder(name), penalty=7.0), encoder=name)
    with pytest.raises(ArtifactError, match=r"was made with re-ranker .*; make it again with polyrank repetition"):
        load_stage(out)


def made_for(encoder: Path, tmp_path: Path) -> Path:
    """A re-ranker of an encoder."""
    folder = tmp_path / "made"
    save_repetition(folder, stage_of(load_encoder(str(encoder))), encoder=str(encoder))
    return folder


def made_lists(tmp_path: Path) -> Path:
    """Lists in which words in common decide."""
    path = tmp_path / "lists.jsonl"
    rows = [
        {"context": ["hello", text], "candidates": [f"{text} now", *REPLIES[:3]], "relevant": [0]} for text in REPLIES
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def test_a_pipeline_re_ranks_with_it(tiny_encoders: dict[str, Path], said: Path, tmp_path: Path) -> None:
    index, folder = tmp_path / "index", tmp_path / "pipeline"
    build_index(index, str(tiny_encoders["bi"]), REPLIES)
    made = CliRunner().invoke(app, ["pipeline", "create", str(index), "-o", str(folder), "--rerank", str(said)])
    assert made.exit_code == 0, made.output
    with polyrank.open(folder) as pipeline:
        (replies,) = pipeline.respond([CONTEXT], len(REPLIES), allow_echo=True)
        assert {reply.text for reply in replies[-2:]} == {"my wifi is down", "Hi there!"}
        assert all(-101 < reply.stages["reranker"] <= 1 for reply in replies)
        (without,) = pipeline.respond([CONTEXT], len(REPLIES))
    assert [reply.text for reply in without] == [reply.text for reply in replies[:-2]]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["index", "build", "SAID", "REPLIES", "-o", "OUT"], "SAID"),
        (["sum", "SAID", "shipped:convert", "-o", "OUT", "--weights", "1,1"], "SAID"),
        (["export", "SAID", "--to", "onnx"], "export its parts one by one: "),
        (["average", "SAID", "SAID", "-o", "OUT"], "SAID"),
        (["push", "SAID", "hf:a/b"], "SAID"),
    ],
)
def test_other_commands_refuse_it(command: list[str], message: str, said: Path, tmp_path: Path) -> None:
    (tmp_path / "replies.txt").write_text("yes\nno\n", "utf-8")
    paths = {"SAID": str(said), "REPLIES": str(tmp_path / "replies.txt"), "OUT": str(tmp_path / "out")}
    done = CliRunner().invoke(app, [paths.get(word, word) for word in command])
    assert isinstance(done.exception, PolyrankError), done.output
    assert paths.get(message, message) in str(done.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "either --valid FILE"),
        (["--penalty", "1", "--valid", "valid.jsonl"], "either --valid FILE"),
        (["--penalty", "1", "--max-valid", "5"], "--max-valid 5 applies with --valid"),
        (["--penalty", "1", "--speaker", "agent"], "--speaker agent applies with --valid"),
        (["--valid", "valid.jsonl", "--overlap", "2"], "--overlap 2.0 applies with --penalty"),
        (["--penalty", "nan"], "penalty = nan"),
        (["--penalty", "1", "--match", "2"], "--match and --earlier need --words FILE"),
        (["--penalty", "1", "--words", "x.txt"], "--words x.txt is for --match and --earlier"),
        (["--valid", "valid.jsonl", "--match", "2"], "--match 2.0 applies with --penalty"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: list[str], message: str, tiny_encoders: dict[str, Path], tmp_path: Path
) -> None:
    start = ["repetition", str(tiny_encoders["bi"]), "-o", str(tmp_path / "said")]
    done = CliRunner().invoke(app, [*start, *options])
    assert isinstance(done.exception, PolyrankError)
    assert message in str(done.exception)
    assert not (tmp_path / "said").exists()


def test_an_existing_folder_is_kept(tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "said").mkdir()
    (tmp_path / "said" / "notes.txt").write_text("mine", "utf-8")
    for extra in ([], ["--overwrite"]):
        arguments = ["repetition", str(tiny_encoders["bi"]), "-o", str(tmp_path / "said"), "--penalty", "1"]
        assert isinstance(CliRunner().invoke(app, [*arguments, *extra]).exception, UsageError)
    with pytest.raises(UsageError):
        save_repetition(tmp_path / "said", stage_of(Near()), encoder="near", replace=True)
    assert (tmp_path / "said" / "notes.txt").read_text("utf-8") == "mine"
