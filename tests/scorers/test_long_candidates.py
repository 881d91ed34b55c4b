"""Long candidates are read to their end, in chunks of which the best counts."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import polyrank
from polyrank import BM25, Candidate, Context, Example
from polyrank.config.models import CrossConfig, TextPolicy
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


def scorers(tiny_encoders: dict[str, Path], tiny_backbone: Path) -> dict[str, Scorer]:
    bi = polyrank.load(str(tiny_encoders["bi"]))
    policy = TextPolicy(max_context_tokens=32, max_candidate_tokens=16)
    cross = make_scorer(*new_model(CrossConfig(backbone=str(tiny_backbone)), policy, seed=1, sample=["thanks"])[:2])
    encoder = polyrank.load(f"untuned:{tiny_backbone}")
    ranker = Ranker([(EncoderTerm(encoder), (1.0,)), (CrossTerm(cross), (1.0,))])  # type: ignore[arg-type]
    return {"bi": bi, "cross": cross, "ranker": ranker, "two stages": Alone(BM25(), bi)}


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
