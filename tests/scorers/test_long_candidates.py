"""Long candidates are read to their end, in chunks of which the best counts."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

import polyrank
from polyrank import BM25, Candidate, Context, Example
from polyrank.config.models import BiConfig, CrossConfig, TextPolicy
from polyrank.models import new_model
from polyrank.scorers.chunks import Chunked, split
from polyrank.scorers.load import make_scorer
from polyrank.scorers.protocols import Scorer
from polyrank.scorers.ranker import Ranker
from polyrank.scorers.terms.counts import Counts
from polyrank.scorers.terms.cross import CrossTerm
from polyrank.scorers.terms.encoder import EncoderTerm
from two_stages import Alone

FILLER = "bananas are green . the light is red . " * 30
ANSWER = "please restart the router ."
QUERY = "my wifi is down"
LATE, OTHER = f"{FILLER}{ANSWER} {FILLER}", f"{FILLER}thanks . {FILLER}"


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 12), st.sampled_from([" ", "\n"]))
def test_runs_cover_a_text_overlap_and_fit(sizes: list[int], budget: int, between: str) -> None:
    sentences = [" ".join(f"w{n}{i}" for i in range(size)) + "." for n, size in enumerate(sizes)]
    text = between.join(sentences)
    starts = np.cumsum([0, *(len(word) + 1 for word in text.split())])
    tokens = [(int(start), int(start) + len(word)) for start, word in zip(starts, text.split(), strict=False)]
    runs, alone = split(text, tokens, budget)
    for start, end in (*runs, *alone):
        assert 1 <= len(text[start:end].split()) <= budget
    covered = {place for start, end in runs for place in range(start, end)}
    assert all(place in covered for place, letter in enumerate(text) if not letter.isspace())
    assert all(after[0] > before[0] for before, after in pairwise(runs))
    for size, sentence in zip(sizes, sentences, strict=True):
        if size <= budget and (between == "\n" or sum(sizes) > budget):
            assert sentence in [text[start:end] for start, end in alone]


def test_a_text_without_spaces_is_split_between_sentences() -> None:
    text = "你好吗。我很好！谢谢你？好"
    runs, alone = split(text, [(at, at + 1) for at in range(len(text))], 4)
    assert [text[start:end] for start, end in alone] == ["你好吗。", "我很好！", "谢谢你？", "好"]
    assert [text[start:end] for start, end in runs] == ["你好吗。", "我很好！", "谢谢你？", "好"]


def scorers(tiny_encoders: dict[str, Path], tiny_backbone: Path) -> dict[str, Scorer]:
    bi = polyrank.load(str(tiny_encoders["bi"]))
    policy = TextPolicy(max_context_tokens=32, max_candidate_tokens=16)
    cross = make_scorer(*new_model(CrossConfig(backbone=str(tiny_backbone)), policy, seed=1, sample=["thanks"])[:2])
    encoder = polyrank.load(f"untuned:{tiny_backbone}")
    ranker = Ranker([(EncoderTerm(encoder), (1.0,)), (CrossTerm(cross), (1.0,))])  # type: ignore[arg-type]
    return {"bi": bi, "cross": cross, "ranker": ranker, "two stages": Alone(BM25(), bi)}


def test_chunks_of_punctuation_only_are_short() -> None:
    runs, alone = split("!" * 1_000, [(at, at + 1) for at in range(1_000)], budget=10)
    assert max(end - start for start, end in (*runs, *alone)) < 20


def test_every_kind_of_scorer_reads_to_the_end(tiny_encoders: dict[str, Path], tiny_backbone: Path) -> None:
    for name, scorer in scorers(tiny_encoders, tiny_backbone).items():
        chunked = Chunked(scorer)
        chunks = chunked.chunks(Context((QUERY,)), LATE)
        assert ANSWER in chunks, name
        (scores,) = chunked.score([QUERY], [[LATE, OTHER, ANSWER]])
        if scorer.chooser is scorer:
            assert scores[0] == pytest.approx(scorer.score([QUERY], [chunks])[0].max(), abs=1e-5), name
        assert not any(cut.candidates for cut in scorer.cut), name
        (ranked, *_) = scorer.rank(QUERY, [LATE, OTHER], 1)
        assert ranked.score == pytest.approx(scores[:2].max(), abs=1e-5)
        assert ranked.text in (LATE, OTHER)


def test_a_document_counts_as_its_best_chunk(tiny_backbone: Path) -> None:
    scorer = polyrank.load(f"untuned:{tiny_backbone}")
    chunked = Chunked(scorer)
    chunks = chunked.chunks(Context((QUERY,)), LATE)
    expected = scorer.score([QUERY], [chunks])[0].max()
    assert chunked.score([QUERY], [[LATE]])[0][0] == pytest.approx(expected, abs=1e-6)
    first = Chunked(scorer, 1)
    assert max(map(len, first.chunks(Context((QUERY,)), LATE))) < len(LATE) / 4
    assert (first.unread, chunked.unread) == ({LATE}, set())


@pytest.mark.parametrize("name", ["bi", pytest.param("cross", marks=pytest.mark.deep)])
def test_each_of_several_long_candidates_counts_as_its_own_best_chunk(
    name: str, tiny_encoders: dict[str, Path], tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [LATE, f"{ANSWER} {FILLER * 2}", "thanks", OTHER, LATE, f"{FILLER}{ANSWER}", ANSWER]
    scorer = scorers(tiny_encoders, tiny_backbone)[name]
    chunked, chunks = Chunked(scorer), Chunked(scorer).chunks
    wanted = [scorer.score([QUERY], [chunks(Context((QUERY,)), text)])[0].max() for text in texts]
    (found,) = chunked.score([QUERY], [texts])
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    both = chunked.score(["hello", QUERY], [texts[::-1], texts])  # each context its own list
    np.testing.assert_allclose(both[1], wanted, atol=1e-5)
    every = chunks(Context((QUERY,)), LATE)
    for most in (1, 2, 3):
        few = Chunked(scorer, most)
        read = few.chunks(Context((QUERY,)), LATE)
        assert len([one for one in read if read.index(one) < most]) == most
        assert read[:most] == every[:most]
        end = max(LATE.index(one) + len(one) for one in read[:most])
        assert all(LATE.index(one) + len(one) <= end for one in read)
        few.chunks(Context((QUERY,)), OTHER)
        assert few.unread == {LATE, OTHER}
    monkeypatch.setattr("polyrank.scorers.chunks.MAX_REMEMBERED", 2)
    for text in (LATE, OTHER, f"{LATE} again"):
        few.chunks(Context((QUERY,)), text)
    assert few.unread == {f"{LATE} again"}  # of those that are remembered


def test_chunks_leave_room_for_the_prompt_of_candidates(tiny_backbone: Path) -> None:
    policy = TextPolicy(
        max_context_tokens=32, max_candidate_tokens=20, candidate_prefix="the light is red and my wifi "
    )
    scorer = make_scorer(*new_model(BiConfig(backbone=str(tiny_backbone)), policy, seed=1, sample=["hi"])[:2])
    for chunk in Chunked(scorer).chunks(Context((QUERY,)), LATE):
        scorer.encode_candidates([chunk])
    assert not scorer.cut[0].candidates


def test_only_the_network_that_truncates_reads_chunks(tiny_backbone: Path) -> None:
    """A candidate is split if one of several networks would cut it, and counts of cut texts stay as they were."""
    config, policies = (
        BiConfig(backbone=str(tiny_backbone)),
        [TextPolicy(max_context_tokens=32, max_candidate_tokens=n) for n in (16, 100)],
    )
    short, long = (make_scorer(*new_model(config, policy, seed=1, sample=["hi"])[:2]) for policy in policies)
    text = "the light is red . my wifi is down . it did that . please restart the router . thanks"
    unknown = "internationalization jeopardizes quixotic xylophones . " * 5  # one token each, or many
    alone = [Chunked(short).chunks(Context((QUERY,)), one) for one in (text, unknown)]
    assert min(map(len, alone)) > 1
    other_words = polyrank.load("shipped:convert")
    for parts in ((short, long), (long, short), (other_words, short), (short, other_words)):
        ranker = Ranker([(EncoderTerm(part), (1.0,)) for part in parts])  # type: ignore[arg-type]
        assert [Chunked(ranker).chunks(Context((QUERY,)), one) for one in (text, unknown)] == alone
    assert Chunked(long).chunks(Context((QUERY,)), text) == [text]
    short.score([QUERY], [["thanks " * 40]])
    before = [set(cut.candidates) for cut in short.cut]
    Chunked(short).chunks(Context((QUERY,)), text)
    assert [set(cut.candidates) for cut in short.cut] == before != [set()] * len(before)


def test_what_fits_is_read_whole(tiny_encoders: dict[str, Path], tiny_backbone: Path) -> None:
    texts = ["hello . thanks .", "", " ", "pay the bill . restart it ."]
    for scorer in scorers(tiny_encoders, tiny_backbone).values():
        np.testing.assert_array_equal(Chunked(scorer).score([QUERY], [texts])[0], scorer.score([QUERY], [texts])[0])
    assert Chunked(BM25()).chunks(Context((QUERY,)), LATE) == [LATE]


def test_evaluation_of_lists_reads_to_the_end(tiny_backbone: Path) -> None:
    scorer = polyrank.load(f"untuned:{tiny_backbone}")
    example = Example((ANSWER,), (OTHER, LATE), (1,))
    (record,) = polyrank.evaluate(scorer, [example]).records
    assert record.placement.groups[0].n_above == 0
    assert record.scores is not None
    assert record.scores[1] > record.scores[0]


def test_counts_of_metadata_stay_with_their_documents(tiny_backbone: Path) -> None:
    encoder = polyrank.load(f"untuned:{tiny_backbone}")
    ranker = Ranker([(EncoderTerm(encoder), (1.0,)), (Counts.of({"thanks": 3}), (1.0,))])  # type: ignore[arg-type]
    pool = [Candidate("a", LATE, {"count": 50}), Candidate("b", ANSWER, {"count": 1}), Candidate("c", LATE)]
    scores = {reply.id: reply.score for reply in ranker.rank(QUERY, pool)}
    assert scores["a"] - scores["c"] == pytest.approx(np.log1p(50), abs=1e-5)


@pytest.mark.parametrize("budget", [4, 7, 8, 20])
def test_a_run_starts_in_the_second_half_of_the_one_before(budget: int) -> None:
    words = [f"w{n}." for n in range(60)]
    text = " ".join(words)
    starts = [text.index(word) for word in words]
    runs, _ = split(text, [(start, start + len(word) - 1) for start, word in zip(starts, words, strict=True)], budget)
    firsts = [starts.index(start) for start, _ in runs]
    steps = {after - before for before, after in pairwise(firsts)}
    assert len(steps) == 1
    assert budget / 2 <= steps.pop() <= budget / 2 + 1
    assert runs[-1][1] == len(text)
    for n in (budget - 1, budget, budget + 1):  # a paragraph that fits is one piece
        paragraph = " ".join(words[:n])
        both = f"{paragraph}\n{paragraph}"
        _, alone = split(both, [match.span() for match in re.finditer(r"\w+", both)], budget)
        assert (both[slice(*alone[0])] == paragraph) == (n <= budget)
