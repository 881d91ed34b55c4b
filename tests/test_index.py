"""The index folder, the lexical scorers, and exact retrieval over both."""

import hashlib
import math
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrank.errors import ArtifactError, DataError, UsageError
from polyrank.index import BM25, TfIdf, open_index, verify_index, write_index
from polyrank.index.lexical import words
from polyrank.inference import Encoder
from polyrank.records import Candidate, Context
from polyrank.retrieval import LexicalRetriever, Retriever, build_index
from polyrank.scores import scores


class Hashed:
    """A real small encoder: a vector per word from a hash, one context vector per turn."""

    dimension = 8

    def __init__(self, fingerprint: str = "f" * 64, scale: float = 1.0) -> None:
        self.fingerprint, self.scale = fingerprint, scale

    def _vector(self, text: str) -> np.ndarray:
        total = np.full(self.dimension, 0.01)
        for word in text.split():
            seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "little")
            total += np.random.default_rng(seed).normal(size=self.dimension)
        return (self.scale * total).astype(np.float32)

    def encode_contexts(self, contexts: Sequence[Context]) -> tuple[np.ndarray, np.ndarray]:
        width = max(len(c.turns) for c in contexts)
        vectors = np.zeros((len(contexts), width, self.dimension), np.float32)
        mask = np.zeros((len(contexts), width), np.bool_)
        for i, context in enumerate(contexts):
            for j, turn in enumerate(context.turns):
                vectors[i, j], mask[i, j] = self._vector(turn), True
        return vectors, mask

    def encode_candidates(self, candidates: Sequence[str]) -> np.ndarray:
        return np.stack([self._vector(text) for text in candidates]) if candidates else np.zeros((0, 8), np.float32)

    def score(self, contexts: Sequence[Context], candidates: Sequence[Sequence[str]]) -> list[np.ndarray]:
        vectors, mask = map(torch.from_numpy, self.encode_contexts(contexts))
        return [
            scores(vectors[i : i + 1], torch.from_numpy(self.encode_candidates(texts))[None], mask[i : i + 1])[
                0
            ].numpy()
            for i, texts in enumerate(candidates)
        ]

    def score_pool(self, contexts: Sequence[Context], pool: Sequence[str]) -> np.ndarray:
        return np.stack(self.score(contexts, [pool] * len(contexts)))


POOL = [Candidate(str(i), text) for i, text in enumerate(["wifi down", "restart it", "bill high", "thanks", "restart"])]


def build(path: Path, pool: Sequence[Candidate] = POOL, encoder: Encoder | None = None) -> None:
    build_index(path, encoder or Hashed(), pool, model="somewhere")


@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 50), st.sampled_from([0.0, 0.1, 30.0]), st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_search_equals_brute_force(
    tmp_path_factory: pytest.TempPathFactory, n: int, m: int, k: int, scale: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    pool = [Candidate(str(i), f"w{generator.integers(12)} w{generator.integers(12)}") for i in range(n)]  # many ties
    path = tmp_path_factory.mktemp("i") / "index"
    encoder = Hashed(scale=max(scale, 1e-3))
    build(path, pool, encoder)
    context = Context(tuple(f"w{generator.integers(12)}" for _ in range(m)))
    found = Retriever(encoder, open_index(path)).respond([context], k)[0]
    values = encoder.score([context], [[c.text for c in pool]])[0]
    assert len(found) == min(k, n)
    order = sorted(range(n), key=lambda i: (-values[i], i))[:k]
    np.testing.assert_allclose([r.score for r in found], values[order], rtol=1e-4, atol=1e-5)
    assert len({r.id for r in found}) == len(found)


def test_chunks_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import polyrank.retrieval

    build(tmp_path / "i", [Candidate(str(i), f"w{i}") for i in range(50)])
    retriever = Retriever(Hashed(), open_index(tmp_path / "i"))
    whole = retriever.respond([Context(("w3", "w4"))], 50)
    monkeypatch.setattr(polyrank.retrieval, "CHUNK", 7)
    parts = retriever.respond([Context(("w3", "w4"))], 50)
    assert [r.id for r in whole[0]] == [r.id for r in parts[0]]
    np.testing.assert_allclose([r.score for r in whole[0]], [r.score for r in parts[0]], rtol=1e-5)


def test_an_empty_index_answers_nothing(tmp_path: Path) -> None:
    build(tmp_path / "i", [])
    assert Retriever(Hashed(), open_index(tmp_path / "i")).respond([Context(("hi",))]) == [[]]


def test_another_encoder_is_refused_with_both_fingerprints(tmp_path: Path) -> None:
    build(tmp_path / "i")
    with pytest.raises(ArtifactError, match=r"f{16}.*e{16}"):
        Retriever(Hashed("e" * 64), open_index(tmp_path / "i"))


def test_faulty_candidates_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    vectors = np.ones((5, 3), np.float32)
    vectors[2, 1], vectors[3] = np.nan, 0
    pool = [Candidate("a", "x"), Candidate("a", "y"), Candidate("c", "z"), Candidate("d", "z"), Candidate("e", " ")]
    with pytest.raises(DataError) as caught:
        write_index(tmp_path / "i", pool, vectors, fingerprint="f", model="m")
    for part in ("candidate 1: id 'a'", "candidate 2: its vector holds NaN", "candidate 3: its vector is zero",
                 "candidate 4: its text is empty"):  # fmt: skip
        assert part in str(caught.value)
    with pytest.raises(DataError, match="vectors of shape"):
        write_index(tmp_path / "i", pool[:1], vectors, fingerprint="f", model="m")
    assert not (tmp_path / "i").exists()


def test_every_flipped_bit_and_every_cut_is_found(tmp_path: Path) -> None:
    build(tmp_path / "i", POOL[:2])
    whole = open_index(tmp_path / "i")
    for path in sorted((tmp_path / "i").iterdir()):
        data = path.read_bytes()
        for place in range(len(data)):
            damaged = bytearray(data)
            damaged[place] ^= 1 << (place % 8)
            path.write_bytes(damaged)
            if not verify_index(tmp_path / "i"):  # white space of index.json: harmless
                assert open_index(tmp_path / "i").document == whole.document
                assert path.name == "index.json"
        for length in (0, 1, len(data) // 2, len(data) - 1):
            path.write_bytes(data[:length])
            assert any(path.name in problem for problem in verify_index(tmp_path / "i"))
            with pytest.raises(ArtifactError, match=path.name):
                open_index(tmp_path / "i")
        path.unlink()
        assert any(path.name in problem for problem in verify_index(tmp_path / "i"))
        path.write_bytes(data)
    assert verify_index(tmp_path / "i") == []


WRITER = """
import sys, numpy as np
from pathlib import Path
from polyrank.index import write_index
from polyrank.records import Candidate
for round in range(10_000):
    pool = [Candidate(str(i), f"text {round} {i}") for i in range(200)]
    vectors = np.full((200, 16), round + 1, np.float32)
    write_index(Path(sys.argv[1]), pool, vectors, fingerprint="f", model="m", replace=True)
    print(round, flush=True)
"""


@pytest.mark.parametrize("rounds", [1, 3, 6])
def test_a_killed_writer_leaves_a_whole_index(tmp_path: Path, rounds: int) -> None:
    path = tmp_path / "i"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) >= rounds:
                os.kill(child.pid, signal.SIGKILL)
                break
    found = open_index(path)  # at no instant is there none
    number = int(found.candidates[0].text.split()[1])
    assert number >= rounds
    assert float(found.vectors[7, 3]) == number + 1


def test_an_existing_index_is_not_replaced_unasked(tmp_path: Path) -> None:
    build(tmp_path / "i")
    with pytest.raises(UsageError, match="already exists"):
        build(tmp_path / "i")


CORPUS = ["my wifi is down", "restart the router", "thanks", "the bill is too high high", "wifi wifi router", ""]
QUERIES = [Context(("my wifi router is is down",)), Context(("bill",), ("the wifi",)), Context(("",))]


def test_bm25_equals_its_formula() -> None:
    mean = sum(max(len(words(t)), 1) for t in CORPUS) / len(CORPUS)
    for query, got in zip(QUERIES, BM25().fit(CORPUS).score(QUERIES, [CORPUS] * 3), strict=True):
        for text, score in zip(CORPUS, got, strict=True):
            expected = 0.0
            for word in [w for t in (*query.background, *query.turns) for w in words(t)]:
                df = sum(word in words(t) for t in CORPUS)
                tf = words(text).count(word)
                idf = math.log(1 + (len(CORPUS) - df + 0.5) / (df + 0.5))
                expected += idf * tf / (tf + 1.5 * (0.25 + 0.75 * len(words(text)) / mean))
            assert score == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", [BM25, TfIdf])
def test_lists_and_pools_agree(kind: type[BM25] | type[TfIdf]) -> None:
    fitted = kind().fit(CORPUS)
    np.testing.assert_allclose(
        fitted.score_pool(QUERIES, CORPUS), np.stack(fitted.score(QUERIES, [CORPUS] * 3)), atol=1e-5
    )
    other = [*CORPUS, "quite another reply", "wifi"]
    np.testing.assert_allclose(
        fitted.score_pool(QUERIES, other), np.stack(fitted.score(QUERIES, [other] * 3)), atol=1e-5
    )
    unfitted = kind()
    np.testing.assert_allclose(
        unfitted.score_pool(QUERIES, CORPUS), np.stack(unfitted.score(QUERIES, [CORPUS] * 3)), atol=1e-5
    )


def test_tfidf_is_a_cosine() -> None:
    values = TfIdf().fit(CORPUS).score([Context(("my wifi is down",))], [CORPUS])[0]
    assert values[0] == pytest.approx(1)
    assert values[2] == 0
    n = len(CORPUS)

    def idf(df: int) -> float:
        return 1 + math.log((1 + n) / (1 + df))

    query = {"wifi": idf(2), "my": idf(1), "is": idf(2), "down": idf(1)}
    text = {"wifi": 2 * idf(2), "router": idf(2)}
    norm = math.sqrt(sum(v * v for v in query.values())) * math.sqrt(sum(v * v for v in text.values()))
    assert values[4] == pytest.approx(query["wifi"] * text["wifi"] / norm, abs=1e-6)


def test_a_lexical_retriever_finds_the_obvious() -> None:
    found = LexicalRetriever(BM25().fit([c.text for c in POOL]), POOL).respond([Context(("my bill is high",))], 2)[0]
    assert found[0].text == "bill high"
    assert len(found) == 2
