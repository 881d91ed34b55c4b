"""Building an index and searching it."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from polyrank.answering.build import add_to_index, build_index
from polyrank.answering.replies import Replies
from polyrank.errors import ArtifactError, DataError, LockedError, MissingExtraError, UsageError
from polyrank.index import COUNT_FIELD, LocalWriter, as_count, open_catalogue, open_index, verify_index, write_index
from polyrank.index.remote.rows import counts_of
from polyrank.models.scoring import scores
from polyrank.records import Candidate, Context
from polyrank.scorers.protocols import Encoder
from polyrank.search import NearestSearch
from polyrank.storage.quantized import read_precision


class Hashed(Encoder):
    """A small real encoder: a vector per word from a hash, one context vector per turn."""

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
    build_index(path, encoder or Hashed(), pool, name="somewhere")


def test_pages_and_candidates_by_id(tmp_path: Path) -> None:
    build(tmp_path / "index")
    for opened in (open_catalogue, open_index):
        with opened(tmp_path / "index") as index:
            page = index.page(n=2)
            assert (page.candidates, page.n) == (tuple(POOL[:2]), 5)
            assert index.page(after=page.next or 0).candidates == tuple(POOL[2:])
            assert index.page(words=["restart", ""]).candidates == (POOL[1], POOL[4])
            assert index.page(words=["\ud800"]).candidates == ()  # no text contains half a character
            assert index.candidate("3") == POOL[3]
            for unknown in ("nosuch", "\ud800"):
                with pytest.raises(UsageError, match="has no candidate"):
                    index.candidate(unknown)


def test_a_count_is_a_number_above_zero_or_its_digits() -> None:
    counts: list[tuple[object, float]] = [
        (1, 1.0), (0.5, 0.5), ("12", 12.0), ("007", 7.0), (2**70, 2.0**70), ("1" + "0" * 300, 1e300), (1e308, 1e308),
    ]  # fmt: skip
    other: list[object] = [
        0, -1, -0.5, "0", "-1", "1.5", "1e3", "+1", " 1", "1 ", "", "\u0663", "\uff11", "\u00b2", None,
        True, False, [3], {"a": 1},
        float("inf"), float("nan"), "inf", "nan", 10**400, "9" * 400,
    ]  # fmt: skip
    assert [as_count(value) for value, _ in counts] == [count for _, count in counts]
    assert [(value, as_count(value)) for value in other if as_count(value)] == []
    index = [Candidate(f"c{i}", f"text {i}", {COUNT_FIELD: value}) for i, (value, _) in enumerate(counts)]
    assert counts_of(index).tolist() == [count for _, count in counts]


def test_pages_find_zero_characters(tmp_path: Path) -> None:
    odd = Candidate("odd", "Zero\0Down%")
    build(tmp_path / "index", [*POOL, odd])
    with open_catalogue(tmp_path / "index") as index:
        for words in (["\0"], ["\0down"], ["ZERO\0", ""], ["DOWN%"]):
            assert index.page(words=words).candidates == (odd,), words
        for words in (["\0_"], ["\0", "wifi"], ["o%"], ["d_wn"]):
            assert index.page(words=words).candidates == (), words
        assert index.page(words=[""]) == index.page()


def test_reading_a_catalogue_does_not_read_vectors(tmp_path: Path) -> None:
    build(tmp_path / "index")
    (matrix,) = (tmp_path / "index").glob("matrix-*")
    (matrix / "vectors.npy").write_bytes(b"damaged")
    with pytest.raises(ArtifactError, match="is damaged"):
        open_index(tmp_path / "index")
    with open_catalogue(tmp_path / "index") as index:
        assert (len(index), index.find(["3"]), index.model) == (5, {"3": POOL[3]}, "somewhere")
        with LocalWriter(tmp_path / "index") as writer:
            writer.remove(["3"])
        assert index.refresh()
        assert (len(index), index.find(["3"])) == (4, {})
        with pytest.raises(AssertionError, match="without its vectors"):
            index.search(NearestSearch(np.ones((1, 1, 4), np.float32), np.ones((1, 1), np.bool_), 1))


@given(
    st.integers(1, 40), st.integers(1, 3), st.integers(1, 50), st.sampled_from([0.0, 0.1, 30.0]), st.integers(0, 9),
    st.booleans(),
)  # fmt: skip
def test_search_equals_brute_force(
    tmp_path_factory: pytest.TempPathFactory, n: int, m: int, k: int, scale: float, seed: int, distinct: bool
) -> None:
    generator = np.random.default_rng(seed)
    pool = [Candidate(str(i), f"w{generator.integers(12)} w{generator.integers(3)}") for i in range(n)]  # many ties
    path = tmp_path_factory.mktemp("i") / "index"
    encoder = Hashed(scale=max(scale, 1e-3))
    build(path, pool, encoder)
    context = Context(tuple(f"w{generator.integers(12)}" for _ in range(m)))
    found = Replies(encoder, open_index(path), distinct=distinct).respond([context], k)[0]
    values = encoder.score([context], [[c.text for c in pool]])[0]
    rows = (
        {c.text: i for i, c in reversed([*enumerate(pool)])}.values() if distinct else range(n)
    )  # first of equal ones
    order = sorted(rows, key=lambda i: (-values[i], i))[:k]
    assert len(found) == len(order)
    assert {r.id for r in found} <= {str(i) for i in rows}
    np.testing.assert_allclose([r.score for r in found], values[order], rtol=1e-4, atol=1e-5)
    assert len({r.id for r in found}) == len(found)


@pytest.mark.parametrize("n_copies", [1, 7, 300])
def test_equal_texts_take_one_place_of_a_list(tmp_path: Path, n_copies: int) -> None:
    copies = [Candidate(f"c{i}", "wifi down") for i in range(n_copies)]
    pool = [*copies, Candidate("x", "restart it"), *(Candidate(f"d{i}", "thanks") for i in range(n_copies))]
    build(tmp_path / "i", pool)
    contexts = [Context(("my wifi down",)), Context(("many thanks",))]
    with open_index(tmp_path / "i") as index:
        replies, of_all = Replies(Hashed(), index), Replies(Hashed(), index, distinct=False)
        for first, ranked in zip(("c0", "d0"), replies.respond(contexts, 3), strict=True):
            assert ranked[0].id == first
            assert {reply.id for reply in ranked} == {"c0", "x", "d0"}
        assert [len({r.text for r in row}) for row in of_all.respond(contexts, 3)] == [1 if n_copies > 1 else 3] * 2


def test_an_empty_index_answers_nothing(tmp_path: Path) -> None:
    build(tmp_path / "i", [])
    assert Replies(Hashed(), open_index(tmp_path / "i")).respond([Context(("hi",))]) == [[]]


def test_another_encoder_is_refused_with_both_fingerprints(tmp_path: Path) -> None:
    build(tmp_path / "i")
    with pytest.raises(ArtifactError, match=r"f{16}.*e{16}"):
        Replies(Hashed("e" * 64), open_index(tmp_path / "i"))


def test_faulty_candidates_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    vectors = np.ones((5, 3), np.float32)
    vectors[2, 1], vectors[3] = np.nan, 0
    pool = [Candidate("a", "x"), Candidate("a", "y"), Candidate("c", "z"), Candidate("d", "z"), Candidate("e", " ")]
    with pytest.raises(DataError) as caught:
        write_index(tmp_path / "i", pool, vectors, fingerprint="f", model="m")
    for part in ("candidate 1: candidate 0 has the same id 'a'", "candidate 2: its vector holds NaN",
                 "candidate 3: its vector is zero", "candidate 4: its text is empty"):  # fmt: skip
        assert part in str(caught.value)
    with pytest.raises(DataError, match="vectors of shape"):
        write_index(tmp_path / "i", pool[:1], vectors, fingerprint="f", model="m")
    assert not (tmp_path / "i").exists()


WRITER = """
import sys, numpy as np
from pathlib import Path
from polyrank.index import write_index
from polyrank.records import Candidate
for round in range(10_000):
    pool = [Candidate(str(i), f"text {round} {i}") for i in range(200)]
    vectors = np.full((200, 16), round + 1, np.float32)
    write_index(Path(sys.argv[1]), pool, vectors, fingerprint="f", model="m", overwrite=True)
    print(round, flush=True)
"""


@pytest.mark.deep
@pytest.mark.parametrize("rounds", [1, 3, 6])
def test_a_killed_writer_leaves_a_whole_index(tmp_path: Path, rounds: int) -> None:
    path = tmp_path / "i"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) >= rounds:
                os.kill(child.pid, signal.SIGKILL)
                break
    found = open_index(path)  # the index exists at any moment
    number = int(found.candidates([1])[0].text.split()[1])
    assert number >= rounds
    assert float(found.blocks()[0].vectors[7, 3]) == number + 1


def test_an_existing_index_is_not_replaced_by_default(tmp_path: Path) -> None:
    build(tmp_path / "i")
    with pytest.raises(UsageError, match="already exists"):
        build(tmp_path / "i")


def test_only_an_index_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("years of work")
    with pytest.raises(UsageError, match="holds other files"):
        build_index(tmp_path / "thesis", Hashed(), POOL, name="m", overwrite=True)
    with pytest.raises(UsageError, match="holds other files"):
        write_index(tmp_path / "thesis", [], np.zeros((0, 8), np.float32), fingerprint="f", model="m", overwrite=True)
    assert (tmp_path / "thesis" / "chapter1.tex").read_text() == "years of work"


def test_an_index_that_another_process_makes_meanwhile_keeps_its_changes(tmp_path: Path) -> None:
    def slow() -> Iterator[np.ndarray]:
        build(tmp_path / "i")  # another process is faster
        with LocalWriter(tmp_path / "i") as writer:
            add_to_index(writer, Hashed(), [Candidate("new", "acknowledged")])
        yield Hashed().encode_candidates([c.text for c in POOL])

    def replace(vectors: Iterable[np.ndarray]) -> None:
        write_index(tmp_path / "i", POOL, vectors, fingerprint="f" * 64, model="m", overwrite=True)

    with pytest.raises(LockedError, match=r"another process has made .* meanwhile; run it again to replace it"):
        replace(slow())
    with open_index(tmp_path / "i") as index:
        assert [c.id for _, c in index.iter_candidates()] == [*(c.id for c in POOL), "new"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["i"]
    replace([Hashed().encode_candidates([c.text for c in POOL])])


def test_an_empty_folder_becomes_one_index(tmp_path: Path) -> None:
    def slow() -> Iterator[np.ndarray]:
        with pytest.raises(LockedError, match="is being written to"):
            build_index(tmp_path, Hashed(), POOL, name="m", overwrite=True)
        yield Hashed().encode_candidates([c.text for c in POOL])

    write_index(tmp_path, POOL, slow(), fingerprint="f" * 64, model="m", overwrite=True)
    assert verify_index(tmp_path) == []


def test_replacing_an_index_encodes_only_new_texts(tmp_path: Path) -> None:
    assert build_index(tmp_path / "i", Hashed(), POOL, name="m") == 5
    reported: list[tuple[int, int]] = []
    changed = [*POOL[1:], Candidate("new", "hello there"), Candidate("again", "hello there")]
    n = build_index(
        tmp_path / "i", Hashed(), changed, name="m", overwrite=True, progress=lambda *counts: reported.append(counts)
    )
    assert (n, reported) == (1, [(1, 1)])
    with open_index(tmp_path / "i") as index:
        assert [c for _, c in index.iter_candidates()] == changed
        want = Hashed().encode_candidates([c.text for c in changed])
        np.testing.assert_array_equal(index.blocks()[0].vectors, want)
    assert build_index(tmp_path / "i", Hashed("e" * 64), changed, name="m", overwrite=True) == 5
    # quantized vectors are reused for the same precision, and never for a finer one
    again = [
        build_index(tmp_path / "i", Hashed("e" * 64), changed, name="m", precision=precision, overwrite=True)
        for precision in map(read_precision, ("int8", "int8", "bf16", "fp32", "fp32"))
    ]
    assert again == [0, 0, 5, 5, 0]


def test_texts_are_encoded_part_by_part_and_equal_ones_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyrank.answering import build

    monkeypatch.setattr(build, "TEXTS_AT_A_TIME", 4)
    texts = [f"reply {i % 7}" for i in range(30)]
    encoder, sizes = Hashed(), list[int]()
    encode = encoder.encode_candidates
    encoder.encode_candidates = lambda texts: (sizes.append(len(texts)), encode(texts))[1]  # type: ignore[method-assign]
    assert build_index(tmp_path / "i", encoder, [Candidate(f"{i}", t) for i, t in enumerate(texts)], name="m") == 7
    assert (max(sizes), sum(sizes)) == (4, 7)
    with open_index(tmp_path / "i") as index:
        np.testing.assert_array_equal(index.blocks()[0].vectors, encode(texts))


def test_a_retriever_reflects_the_writers_changes(tmp_path: Path) -> None:
    build(tmp_path / "i")
    encoder = Hashed()
    with open_index(tmp_path / "i") as index, LocalWriter(tmp_path / "i") as writer:
        replies = Replies(encoder, index)
        context = [Context(("a purple elephant",))]
        add_to_index(writer, encoder, [Candidate("p", "purple elephant")])
        assert replies.respond(context, 1)[0][0].id == "p"
        writer.remove(["p"])
        assert replies.respond(context, 1)[0][0].id != "p"
        with pytest.raises(ArtifactError, match=r"f{16}.*e{16}"):
            add_to_index(writer, Hashed("e" * 64), [Candidate("q", "x")])


def test_existing_candidates_are_left_unchanged(tmp_path: Path) -> None:
    build(tmp_path / "i")
    encoder = Hashed()
    with LocalWriter(tmp_path / "i") as writer:
        before = writer.change
        assert add_to_index(writer, encoder, POOL[1:3]) == 0
        assert add_to_index(writer, encoder, POOL[1:3], replace=True) == 0
        assert writer.change == before
        assert add_to_index(writer, encoder, [*POOL, Candidate("n", "new")]) == 1
        for other in (Candidate("1", "other"), Candidate("1", POOL[1].text, {"k": 1})):
            with pytest.raises(DataError, match=r"candidate 0: id '1' is already in the index; set `replace=True"):
                add_to_index(writer, encoder, [other])
            assert add_to_index(writer, encoder, [other], replace=True) == 1
            assert writer.find(["1", "nosuch", "\ud800"]) == {"1": other}
        assert len(writer) == len(POOL) + 1


def numbered(path: Path, generation: int, n: int = 30) -> None:
    """An index whose texts contain its number; each index has other vectors."""
    pool = [Candidate(f"c{i}", f"generation {generation} reply {i}") for i in range(n)]
    build_index(path, Hashed(), pool, name="m", overwrite=True)


@pytest.mark.deep
def test_threads_share_retrievers_while_the_index_is_changed_and_replaced(tmp_path: Path) -> None:
    numbered(tmp_path / "i", 0)
    encoder, context = Hashed(), Context(("reply 3",))
    faults: list[str] = []
    done = threading.Event()
    with open_index(tmp_path / "i") as index:
        replies = Replies(encoder, index)

        def ask() -> None:
            try:
                while not done.is_set():
                    found = replies.respond([context], 5)[0]
                    known = encoder.score([context], [[reply.text for reply in found]])[0]
                    if not np.allclose([reply.score for reply in found], known, rtol=1e-5):
                        faults.append(f"{found} but {known}")
            except Exception as error:
                faults.append(repr(error))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for generation in range(1, 13):
            with LocalWriter(tmp_path / "i") as writer:
                for i in range(10):
                    writer.remove([f"c{i}"])
            numbered(tmp_path / "i", generation)
        done.set()
        for thread in threads:
            thread.join()
        assert faults == []
        assert replies.respond([context], 1)[0][0].text.startswith("generation 12 ")


def test_a_missing_library_is_reported_before_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    encoder = Hashed()
    encoder.encode_candidates = lambda texts: pytest.fail("encoded")  # type: ignore[method-assign]
    with pytest.raises(MissingExtraError, match="faiss"):
        build_index(tmp_path / "i", encoder, POOL, name="m", ann="auto")


def test_an_index_behind_a_link_is_replaced_at_its_target(tmp_path: Path) -> None:
    build(tmp_path / "v1")
    (tmp_path / "current").symlink_to(tmp_path / "v1")
    numbered(tmp_path / "current", 1)
    assert (tmp_path / "current").is_symlink()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["current", "v1"]
    with open_index(tmp_path / "v1") as index:
        assert len(index) == 30


def test_replies_change_the_index_to_which_a_link_was_changed(tmp_path: Path) -> None:
    for name in ("v1", "v2"):
        numbered(tmp_path / name, 1)
    link = tmp_path / "current"
    link.symlink_to("v1")
    with Replies(Hashed(), open_index(link)) as replies:
        assert replies.remove(["c1"]) == 1
        link.unlink()
        link.symlink_to("v2")
        assert replies.remove(["c1", "c2"]) == 2
        LocalWriter(tmp_path / "v1").close()  # its lock is free
    with open_index(tmp_path / "v2") as index:
        assert len(index) == 28


def test_a_full_disk_when_a_writer_closes_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The changes are durable, so a caller that saw an error would believe that they failed."""
    resource = pytest.importorskip("resource")
    numbered(tmp_path / "i", 1)
    more = [Candidate(f"n{i}", "text" * 100) for i in range(100)]
    writer = LocalWriter(tmp_path / "i")
    writer.add(more, np.ones((100, Hashed.dimension), np.float32))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "i/candidates.db").stat().st_size, limits[1]))
    try:
        writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "all changes are durable" in caplog.text
    assert verify_index(tmp_path / "i") == []
    with LocalWriter(tmp_path / "i") as again:
        assert len(again) == 130


@pytest.mark.deep
def test_threads_make_the_first_changes_of_replies(tmp_path: Path) -> None:
    """Each would open its own writer, and all but one would be refused by the lock of the first."""
    numbered(tmp_path / "i", 1, 60)
    for turn in range(5):
        with Replies(Hashed(), open_index(tmp_path / "i")) as replies, ThreadPool(4) as threads:
            names = [f"c{turn * 8 + i}" for i in range(8)]
            assert threads.map(lambda name, replies=replies: replies.remove([name]), names, 1) == [1] * 8
    with open_index(tmp_path / "i") as index:
        assert len(index) == 20
