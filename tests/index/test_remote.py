"""An index on a Milvus server: it behaves like the local one, and reports a failing server."""

import contextlib
import inspect
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from milvus import Milvus
from polyrank.answering.build import add_to_index, build_index
from polyrank.answering.replies import Replies
from polyrank.errors import ArtifactError, DataError, LockedError, OfflineError, ResourceError, UsageError
from polyrank.index import (
    Block,
    CandidatePage,
    Index,
    IndexWriter,
    LocalIndex,
    LocalWriter,
    open_catalogue,
    open_index,
    open_writer,
    read_filter,
    verify_index,
    write_index,
)
from polyrank.index.remote import (
    Address,
    RemoteIndex,
    RemoteWriter,
    drop_collection,
    list_collections,
    read_address,
    write_remote,
)
from polyrank.index.remote.address import write_address
from polyrank.index.remote.facts import MILVUS, Columns, condition, facts
from polyrank.index.remote.rows import key_of, stored_vectors, stored_width, weighing_vectors
from polyrank.records import Candidate
from polyrank.scorers.ranker import Ranker
from polyrank.scorers.terms.counts import Counts
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.search import NearestSearch
from polyrank.search.lists import search_remote
from postgresql import Postgresql
from processes import run
from servers import serving
from test_filters import metadata_of, passes, trees, written
from test_index import Hashed

pytest.importorskip("pymilvus", reason="pymilvus is not installed; install polyrank[milvus]")
pytest.importorskip("milvus_lite", reason="milvus-lite, the server of these tests, is not installed")


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Milvus]:
    """A server that a test may kill."""
    (tmp_path / "milvus").mkdir()
    server = Milvus(tmp_path / "milvus").start()
    yield server
    server.kill()


NUMBERS = itertools.count()
REMOTE = ["milvus", *(pytest.param(kind, marks=pytest.mark.deep) for kind in ("qdrant", "postgresql"))]
Make = Callable[..., Path]


def address_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> Address:
    """The address of a new collection on a server, or in Qdrant's local mode."""
    if kind != "qdrant":
        new: Address = request.getfixturevalue(kind).address()
        return new
    pytest.importorskip("qdrant_client", reason="qdrant-client is not installed; install polyrank[qdrant]")
    return Address(f"qdrant+file://{folder}/qdrant", f"replies_{next(NUMBERS)}")


@pytest.fixture(params=REMOTE)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    """The address of a new collection, of each kind of server."""
    return address_of(request.param, request, tmp_path)


@pytest.fixture(params=["local", *REMOTE])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """A function that writes a local index, or one on each kind of server."""
    numbers = iter(range(100))

    def local(pool: Sequence[Candidate], vectors: np.ndarray, fingerprint: str = "f" * 64) -> Path:
        path = tmp_path / f"index{next(numbers)}"
        write_index(path, pool, vectors, fingerprint=fingerprint, model="nowhere")
        return path

    def remote(pool: Sequence[Candidate], vectors: np.ndarray, fingerprint: str = "f" * 64) -> Path:
        path = tmp_path / f"index{next(numbers)}"
        address = address_of(request.param, request, tmp_path)
        write_remote(path, address, pool, vectors, fingerprint=fingerprint, model="nowhere")
        return path

    return local if request.param == "local" else remote


def pool_of(n: int, seed: int = 0) -> list[Candidate]:
    words = np.random.default_rng(seed).integers(0, 40, (n, 3))
    return [
        Candidate(f"c{i}", f"reply{i} " + " ".join(f"w{word}" for word in row), {"n": i, "lang": ["en", "de"][i % 2]})
        for i, row in enumerate(words)
    ]


def vectors_of(pool: Sequence[Candidate]) -> np.ndarray:
    return Hashed().encode_candidates([candidate.text for candidate in pool])


def counted(weight: float) -> Ranker:
    """An encoder and counts, of which the index has its own."""
    return Ranker([(EncoderTerm(Hashed()), (1.0,)), (Counts.of({"a reply": 3}), (weight,))])


def scores_by_hand(contexts: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Scores of one context [M, D] and candidates [N, D], in fp64."""
    products = vectors.astype(np.float64) @ contexts.astype(np.float64).T
    weights = np.exp(products - products.max(1, keepdims=True))
    return (weights * products).sum(1) / weights.sum(1)


CONTEXTS = ["w1 w2", ["w3 w4", "w5", "reply7 w8"], ["w9"] * 3]


# -- both kinds of index -----------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_a_search_returns_the_best_of_all_with_a_proof(make: Make) -> None:
    pool = pool_of(300)
    vectors = vectors_of(pool)
    with open_index(make(pool, vectors)) as index:
        retriever = Replies(Hashed(), index)
        for context, result in zip(CONTEXTS, retriever.answer_all(CONTEXTS, 10), strict=True):
            turns = [context] if isinstance(context, str) else context
            scores = scores_by_hand(Hashed().encode_candidates(turns), vectors)
            best = np.lexsort((np.arange(300), -scores.astype(np.float32)))[:10]
            assert [reply.id for reply in result.ranked] == [f"c{i}" for i in best]
            assert [reply.score for reply in result.ranked] == scores[best].astype(np.float32).tolist()
            assert [reply.metadata for reply in result.ranked] == [pool[i].metadata for i in best]
            assert result.exact


@pytest.mark.deep
def test_equal_scores_are_in_insertion_order(make: Make) -> None:
    pool = [Candidate(f"t{i}", "the same words", {}) for i in range(200)]
    path = make(pool, vectors_of(pool))
    late = [Candidate("a late one", "the same words", {})]
    with open_writer(path) as writer:
        writer.add(late, vectors_of(late))
    with open_index(path) as index:
        retriever = Replies(Hashed(), index, distinct=False)
        result = retriever.answer("the same", 300)
        assert [reply.id for reply in result.ranked] == [*(f"t{i}" for i in range(200)), "a late one"]
        assert result.exact
        result = retriever.answer("the same", 3)
        assert [reply.id for reply in result.ranked] == ["t0", "t1", "t2"]
        assert result.exact


def test_a_prior_weighs_how_often_replies_were_said(make: Make) -> None:
    said = [(7 * i) % 11 * 10 ** (i % 4) for i in range(300)]
    pool = [replace(one, metadata={**one.metadata, "count": n}) for one, n in zip(pool_of(300), said, strict=True)]
    vectors, path = vectors_of(pool), make(pool, vectors_of(pool))

    def expected(context: str | list[str], weight: float, passing: np.ndarray) -> list[tuple[str, float]]:
        turns = [context] if isinstance(context, str) else context
        offsets = (weight * np.log1p(said)).astype(np.float32)
        scores = (scores_by_hand(Hashed().encode_candidates(turns), vectors) + offsets).astype(np.float32)[passing]
        best = np.lexsort((passing, -scores))[:10]
        return [(f"c{passing[i]}", scores[i]) for i in best]

    with open_index(path) as index:
        for weight in (0.0, 0.3, 40.0):
            retriever = Replies(counted(weight), index)
            for filter, passing in ((None, np.arange(300)), ('lang = "en"', np.arange(0, 300, 2))):
                for context in CONTEXTS:
                    result = retriever.answer(context, 10, filter=filter)
                    assert [(one.id, one.score) for one in result.ranked] == expected(context, weight, passing)
                    assert result.exact
                    assert result.ways == ("plain",) or result.n_scored < 300
        with open_writer(path) as writer:  # a count changes while the index is open
            said[5] = 10**12
            pool[5] = replace(pool[5], metadata={**pool[5].metadata, "count": 10**12})
            writer.add(pool[5:6], vectors[5:6], replace=True)
        result = Replies(counted(40.0), index).answer("w1 w2", 10)
        assert [(one.id, one.score) for one in result.ranked] == expected("w1 w2", 40.0, np.arange(300))
    assert verify_index(path) == []


def test_a_text_is_returned_once(make: Make) -> None:
    pool = [Candidate(f"t{i}", f"text {i // 30}", {}) for i in range(150)]
    with open_index(make(pool, vectors_of(pool))) as index:
        result = Replies(Hashed(), index).answer("text 3", 5, allow_echo=True)
        assert sorted(reply.id for reply in result.ranked) == ["t0", "t120", "t30", "t60", "t90"]
        assert result.exact


def test_a_filter_keeps_passing_candidates(make: Make) -> None:
    pool = pool_of(200)
    vectors = vectors_of(pool)
    path = make(pool, vectors)
    with open_index(path) as index:
        retriever = Replies(Hashed(), index)
        for text, passing in [
            ('lang = "en" and n >= 100', [i for i in range(200) if i % 2 == 0 and i >= 100]),
            ("n in (3, 4, 999)", [3, 4]),
            ('not exists lang or lang = "fr"', []),
        ]:
            result = retriever.answer("w1 w2", 5, filter=text)
            scores = scores_by_hand(Hashed().encode_candidates(["w1 w2"]), vectors[passing])
            expected = [f"c{passing[i]}" for i in np.argsort(-scores, kind="stable")[:5]]
            assert [reply.id for reply in result.ranked] == expected
            assert result.exact
            assert [candidate for _, candidate in index.iter_candidates(read_filter(text))] == [
                pool[i] for i in passing
            ]


@pytest.mark.deep
def test_changes_work_like_those_of_a_dictionary(make: Make) -> None:
    random = np.random.default_rng(7)
    truth = {candidate.id: candidate for candidate in pool_of(20)}
    path = make(list(truth.values()), vectors_of(list(truth.values())))
    with open_writer(path, fingerprint="f" * 64) as writer, open_index(path) as index:
        retriever = Replies(Hashed(), index, distinct=False)
        for step in range(25):
            ids = [f"c{i}" for i in random.choice(30, size=int(random.integers(1, 5)), replace=False)]
            some = [Candidate(id_, f"step{step} w{random.integers(40)}", {"step": step}) for id_ in ids]
            kind = random.integers(3)
            if kind == 0:
                assert writer.remove([*ids, "never there"]) == len(truth.keys() & set(ids))
                truth = {id_: candidate for id_, candidate in truth.items() if id_ not in ids}
            elif kind == 1 and truth.keys() & set(ids):
                with pytest.raises(DataError, match="is already in the index"):
                    writer.add(some, vectors_of(some))
            else:
                change = writer.change
                assert writer.add(some, vectors_of(some), replace=kind == 2) > change
                truth = {id_: candidate for id_, candidate in truth.items() if id_ not in ids}
                truth |= {candidate.id: candidate for candidate in some}
            assert writer.find(["c1", "c2", "c29"]) == {id_: truth[id_] for id_ in ("c1", "c2", "c29") if id_ in truth}
            assert len(writer) == len(truth)
            assert [candidate for _, candidate in index.iter_candidates()] == list(truth.values())
            (ranked,) = retriever.respond(["w1 step3"], 100)
            assert {reply.id: reply.text for reply in ranked} == {c.id: c.text for c in truth.values()}
    assert verify_index(path) == []


def test_replies_answer_and_change(make: Make) -> None:
    path = make(pool_of(30), vectors_of(pool_of(30)))
    with Replies(Hashed(), open_index(path)) as replies:
        (id_,) = replies.add(["quite new words"])
        assert len(replies) == 31
        answer = replies.answer("quite new words", 31, allow_echo=True)
        assert answer.exact
        assert {reply.id for reply in answer.ranked} == {id_, *(f"c{i}" for i in range(30))}
        assert replies.remove([id_]) == 1
        assert "quite new words" not in {reply.text for reply in replies.answer("quite new words", 31).ranked}


def test_pages_are_equal_in_both_kinds(make: Make) -> None:
    pool = [Candidate(f"i{i}", f"Text {i} {'ÄB' if i % 2 else '100%'}", {"n": i}) for i in range(25)]
    path = make(pool, vectors_of(pool))
    with open_catalogue(path) as index:
        page = index.page(n=10)
        assert page.candidates == tuple(pool[:10])
        assert page.n == 25
        assert page.next is not None
        assert index.page(after=page.next, n=10).candidates == tuple(pool[10:20])
        assert index.page(after=page.next, n=15).next is None
        for words, expected in [(["TEXT", "Äb"], pool[1::2]), (["äb"], []), (["100%"], pool[::2]), (["i7"], [pool[7]])]:
            assert index.page(words=words).candidates == tuple(expected), words
        assert index.page(filter=read_filter("n < 2"), n=1).candidates == (pool[0],)
        assert len(index) == 25
        assert index.find(["i3", "nobody", "\ud800"]) == {"i3": pool[3]}


def test_a_page_refuses_arguments_by_name(make: Make) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"n": 0}, "n is 0; give 1 or more"),
        ({"n": -1}, "n is -1; give 1 or more"),
        ({"n": 2.5}, "n = 2.5 is float; give a whole number"),
        ({"n": "3"}, "n = '3' is str; give a whole number"),
        ({"n": 2**63}, "n is a whole number of more than 64 bits; give a smaller one"),
        ({"after": -1}, "after is -1; give 0 or more"),
        ({"after": None}, "after = None is NoneType; give a whole number"),
        ({"words": "wifi"}, "words = 'wifi' is not a list of texts; write one such as"),
        ({"words": [1]}, "words = [1] is not a list of texts"),
        ({"words": None}, "words = None is not a list of texts"),
        ({"words": ["a"] * 251}, "251 words of up to 1 characters are too many; the limits are 250 words and"),
        ({"words": ["a" * 10_001]}, "1 words of up to 10,001 characters are too many"),
        ({"words": ["a", "b" * 10_001, "c"]}, "3 words of up to 10,001 characters are too many"),
        ({"filter": 5}, "filter = 5 is int; write a string such as"),
        ({"filter": "n <"}, "filter, character 4: expected a string in quotes, a number"),
    ]
    with open_catalogue(make(pool_of(3), vectors_of(pool_of(3)))) as index:
        for arguments, problem in wrong:
            with pytest.raises(UsageError, match=f"^{re.escape(problem)}"):
                index.page(**arguments)
        # the limits themselves, a number of NumPy and the text of a filter
        words = ["e"] * 249 + ["%" * 10_000]
        assert index.page(after=2**63 - 1, n=2**63 - 1, words=words) == CandidatePage((), None, 3)
        assert len(index.page(n=np.int64(2), filter="n < 3").candidates) == 2


def test_a_page_starts_after_a_removed_candidate(make: Make) -> None:
    pool = pool_of(3)
    with open_catalogue(make(pool, vectors_of(pool))) as index:
        after = index.page(n=1).next
        assert after is not None
        with open_writer(index.path) as writer:
            writer.remove([pool[0].id])
        assert index.page(after=after).candidates == tuple(pool[1:])


AWKWARD = ['"', "'", "\\", "a\nb", "\t", "%s", "'; drop", "ü😀", "x" * 5000, " ", "\0", "]", "c' or 1 == 1"]


def test_ids_texts_and_metadata_survive_unchanged(make: Make) -> None:
    pool = [Candidate(text, f"reply {text}", {text: [text, 1.0, None, {"x": 2**60}]}) for text in AWKWARD]
    path = make(pool, vectors_of(pool))
    with open_writer(path) as writer, open_index(path) as index:
        assert [candidate for _, candidate in index.iter_candidates()] == pool
        assert writer.find(AWKWARD) == {candidate.id: candidate for candidate in pool}
        assert [index.candidate(text) for text in AWKWARD] == pool
        assert writer.remove(AWKWARD[::2]) == len(AWKWARD[::2])
        assert [candidate.id for _, candidate in index.iter_candidates()] == AWKWARD[1::2]
        with pytest.raises(UsageError, match="has no candidate"):
            index.candidate("nobody")


UNSTORABLE = [
    ([Candidate("a", "x"), Candidate("a", "y")], np.ones((2, 8)), "candidate 2: candidate 1 has the same id 'a'"),
    ([Candidate("a", " ")], np.ones((1, 8)), "its text is empty"),
    ([Candidate("a", "x", {"n": float("nan")})], np.ones((1, 8)), "cannot be written as JSON"),
    ([Candidate("a", "\ud800")], np.ones((1, 8)), "cannot be written as JSON"),
    ([Candidate("a", "x")], np.ones((1, 7)), "has 7 numbers, this index needs 8"),
    ([Candidate("a", "x")], np.zeros((1, 8)), "its vector is zero"),
    ([Candidate("a", "x")], np.full((1, 8), np.inf), "NaN or infinity"),
    ([Candidate("a", "x")], np.ones((2, 8)), "pass one vector per candidate"),
]


def test_an_unstorable_candidate_is_refused_before_any_write(make: Make) -> None:
    path = make(pool_of(3), vectors_of(pool_of(3)))
    good = Candidate("good", "a good one")
    with open_writer(path) as writer:
        for candidates, vectors, problem in UNSTORABLE:
            with pytest.raises(DataError, match=problem):
                writer.add([good, *candidates], np.concatenate([np.ones((1, vectors.shape[1])), vectors]))
            assert len(writer) == 3
            assert not writer.find(["good", "a"])


def test_another_encoder_is_refused(make: Make) -> None:
    path = make(pool_of(3), vectors_of(pool_of(3)))
    with open_index(path) as index, pytest.raises(ArtifactError, match="was made by encoder ffff"):
        Replies(Hashed("0" * 64), index)
    with pytest.raises(ArtifactError, match="was made by encoder ffff"):
        open_writer(path, fingerprint="0" * 64)
    with pytest.raises(ArtifactError, match="was made by encoder ffff"):
        open_index(path, fingerprint="0" * 64)
    with open_writer(path) as writer, pytest.raises(ArtifactError, match="was made by encoder ffff"):
        add_to_index(writer, Hashed("0" * 64), pool_of(1))


def test_one_writer_at_a_time(make: Make) -> None:
    path = make(pool_of(3), vectors_of(pool_of(3)))
    with open_writer(path), pytest.raises(LockedError, match="is being written to"):
        open_writer(path)
    open_writer(path).close()


def test_both_kinds_have_the_same_methods() -> None:
    """Both kinds must implement exactly the protocol's methods, so that callers work with either."""
    assert not {*RemoteIndex.__abstractmethods__, *LocalIndex.__abstractmethods__}
    assert not {*RemoteWriter.__abstractmethods__, *LocalWriter.__abstractmethods__}
    for local, remote, base in ((LocalIndex, RemoteIndex, Index), (LocalWriter, RemoteWriter, IndexWriter)):
        for name in base.__abstractmethods__:
            own, theirs = (inspect.getattr_static(kind, name) for kind in (local, remote))
            assert inspect.isfunction(own) == inspect.isfunction(theirs), name  # a property may be an attribute there
            if inspect.isfunction(own):
                assert inspect.signature(own) == inspect.signature(theirs), name


# -- filters -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def some_metadata() -> list[dict[str, Any]]:
    """Random metadata with edge cases."""
    drawn: list[dict[str, Any]] = []

    @settings(max_examples=75, deadline=None, database=None, derandomize=True)
    @given(metadata_of)
    def draw(metadata: dict[str, Any]) -> None:
        drawn.append(metadata)

    draw()
    numbers = [2**53, 2**53 + 1, 2.0**53, -(2**63), 2**63, 2**64, 1e300, -0.0, 0, 5e-324, 10**400]
    return [*drawn, *({"a": number} for number in numbers), {"a": "x\0y"}, {"a": numbers}, {"a": [[1]]}, {"a": {}}]


@pytest.fixture(scope="module", params=[*REMOTE, "divided"])
def filtered(
    request: pytest.FixtureRequest,
    some_metadata: list[dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Path, RemoteIndex]]:
    """The same candidates in both kinds; the server's in one part, or divided by a field."""
    folder = tmp_path_factory.mktemp("filtered")
    pool = [Candidate(str(i), "text", metadata) for i, metadata in enumerate(some_metadata)]
    vectors = np.ones((len(pool), 2), np.float32)
    write_index(folder / "local", pool, vectors, fingerprint="f", model="m")
    divided = request.param == "divided"
    address = address_of("milvus" if divided else request.param, request, folder)
    field = "a" if divided else ""
    write_remote(folder / "remote", address, pool, vectors, fingerprint="f", model="m", partition_by=field)
    with RemoteIndex(folder / "remote") as index:
        yield folder / "local", index


@given(tree=trees)
def test_a_filter_has_the_same_meaning_on_the_server(
    filtered: tuple[Path, RemoteIndex], some_metadata: list[dict[str, Any]], tree: Any
) -> None:
    read = read_filter(written(tree, json.dumps))
    within = filtered[1].server.condition(filtered[1].columns, read.tree)
    passing = {row["id"] for row in filtered[1].server.scan(within)}
    with open_index(filtered[0]) as local:
        assert passing == {candidate.id for _, candidate in local.iter_candidates(read)}, read
    plain = [i for i, metadata in enumerate(some_metadata[:75])]
    assert {i for i in plain if str(i) in passing} == {i for i in plain if passes(tree, some_metadata[i])}


@pytest.mark.parametrize(
    "text",
    [
        "a = 9007199254740993",
        "a > 9007199254740992",
        "a >= 9.2e18",
        "a < -9223372036854775807",
        "a = 18446744073709551616",
        "a <= 0",
        "a = -0",
        'a = "x"',
        'a <= "x" and not a < "x"',
        "not a > 1 and exists a",
        "a in (1, 2, 9007199254740992)",
        "not (a > 5 or a < 5)",
    ],
)
def test_edge_cases_of_numbers_and_texts(filtered: tuple[Path, RemoteIndex], text: str) -> None:
    read = read_filter(text)
    with open_index(filtered[0]) as local:
        expected = [candidate.id for _, candidate in local.iter_candidates(read)]
    assert expected, "the filter must pass at least one candidate"
    assert [candidate.id for _, candidate in filtered[1].iter_candidates(read)] == expected


def test_a_filter_reads_the_parts_of_its_values_and_changes_move_candidates(milvus: Milvus, tmp_path: Path) -> None:
    pool = [*pool_of(40), Candidate("both", "w1 w2 w3", {"lang": ["en", "de"]}), Candidate("none", "w1 w2")]
    write_remote(
        tmp_path / "ix", milvus.address(), pool, vectors_of(pool), fingerprint="f", model="m", partition_by="lang"
    )
    write_index(tmp_path / "local", pool, vectors_of(pool), fingerprint="f", model="m")
    english = read_filter('lang = "en"')
    moved = [Candidate("c1", pool[1].text, {"n": 1, "lang": "en"}), Candidate("both", "w1 w2 w3")]
    for path in (tmp_path / "ix", tmp_path / "local"):
        with open_writer(path) as writer:
            writer.add(moved, vectors_of(moved), replace=True)
            writer.remove(["c4"])
    query = NearestSearch(vectors_of([Candidate("q", "w1 w2")])[None], np.ones((1, 1), np.bool_), 60)
    with RemoteIndex(tmp_path / "ix") as index, open_index(tmp_path / "local") as local:
        assert (len(index), index.info()["partition_by"]) == (len(local), "lang") == (41, "lang")
        for filter in (english, read_filter('not lang = "en"'), None):
            ((found, result),) = index.search(query, filter)
            ((expected, _),) = local.search(query, filter)
            assert result.exact
            assert {one.id for one in found} == {one.id for one in expected}
        read = index.server.scan(f'partition in ["{Columns(("lang",)).of({"lang": "en"})["partition"]}"]')
        assert {row["id"] for row in read} == {"c1", *(f"c{i}" for i in range(0, 40, 2) if i != 4)}
    assert verify_index(tmp_path / "ix") == []


@given(metadata_of, st.lists(st.sampled_from(['"', "'", "]", "\\", " or ", "\n", "a"]), max_size=4).map("".join))
def test_a_condition_contains_no_text_of_a_user(metadata: dict[str, Any], text: str) -> None:
    allowed = set('abcdefghijklmnopqrstuvwxyz0123456789[]"()<>= ')
    for quoted in (f"a = {json.dumps(text)}", f"a < {json.dumps(text)}", f"not a in ({json.dumps(text)}, 1)"):
        assert set(condition(read_filter(quoted).tree, MILVUS)) <= allowed
    assert all(name.isalnum() and name.isascii() for name in facts(json.loads(json.dumps(metadata))))


# -- certificates ------------------------------------------------------------------------------------------------------


class Lists:
    """An in-memory engine that returns the largest fp32 products, summed in any order, up to a maximal number."""

    kind = "memory"

    def __init__(
        self, vectors: np.ndarray, *, exact: bool = True, order: int = 1, counts: np.ndarray | None = None
    ) -> None:
        self.vectors, self.exact, self.order, self.n_asked = vectors, exact, order, 0
        self.n_said = np.zeros(len(vectors)) if counts is None else counts
        pool = [Candidate(str(i), "x", {"count": float(count)}) for i, count in enumerate(self.n_said)]
        self.width = stored_width(vectors.shape[1])
        self.stored = stored_vectors(pool, vectors, self.width)

    def norm_bound(self) -> float:
        return float(np.linalg.norm(self.stored.astype(np.float64), axis=1).max(initial=0)) * (1 + 1e-9)

    def weighing(self, vectors: np.ndarray, weight: float) -> np.ndarray:
        return weighing_vectors(vectors, weight, self.width)

    def counts(self, rows: np.ndarray) -> np.ndarray:
        return self.n_said[rows]

    def nearest(self, vectors: np.ndarray, n: int) -> list[tuple[list[str], np.ndarray]]:
        self.n_asked = max(self.n_asked, n)
        columns = slice(None, None, self.order)
        products = self.stored[:, columns] @ vectors[:, columns].T  # [N, m]
        best = [np.argsort(-row, kind="stable")[:n] for row in products.T]
        return [(list(map(str, some)), row[some]) for some, row in zip(best, products.T, strict=True)]

    def fetch(self, keys: Sequence[str]) -> Block:
        rows = np.array(list(map(int, keys)), np.int64)[::-1]  # in any order
        return Block(self.vectors[rows], rows)


@given(
    st.integers(0, 10**6),
    st.sampled_from([1, 2, 5]),
    st.sampled_from([1, 3, 20]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.01, 0.7, 50.0]),
)
def test_a_proven_result_is_the_best(seed: int, m: int, k: int, close: bool, backwards: bool, prior: float) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 700))
    vectors = random.normal(size=(n, 6)).astype(np.float32)
    if close:  # scores that differ only by rounding
        vectors = vectors[:1] + (1e-7 * random.integers(-3, 4, (n, 6))).astype(np.float32)
    contexts = random.normal(size=(1, m, 6)).astype(np.float32)
    counts = random.integers(0, 3, n) * random.integers(0, 10 ** random.integers(1, 9), n).astype(np.float64)
    engine = Lists(vectors, order=-1 if backwards else 1, counts=counts)
    (result,) = search_remote(contexts, np.ones((1, m), np.bool_), engine, k, prior=prior)
    said = (prior * np.log1p(counts)).astype(np.float32)
    scores = (scores_by_hand(contexts[0], vectors) + said).astype(np.float32)
    assert result.exact
    expected = np.lexsort((np.arange(n), -scores))[:k]
    assert result.scores == pytest.approx(scores[expected], rel=1e-6)
    if not close or m == 1:
        assert result.rows.tolist() == expected.tolist()


def test_a_graph_index_proves_nothing_and_a_long_tail_ends_unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    context, mask = np.ones((1, 1, 4), np.float32), np.ones((1, 1), np.bool_)
    (result,) = search_remote(context, mask, Lists(vectors, exact=False), 5)
    assert not result.exact
    assert len(result.rows) == 5
    engine = Lists(np.ones((5000, 4), np.float32), exact=False)
    (result,) = search_remote(context, mask, engine, 5)
    assert engine.n_asked == 100  # once
    # all products are equal, so that no list is long enough to exclude a better candidate
    monkeypatch.setattr("polyrank.search.lists.LONGEST", 100)
    engine = Lists(np.ones((500, 4), np.float32))
    (result,) = search_remote(context, mask, engine, 5)
    assert not result.exact
    assert result.rows.tolist() == [0, 1, 2, 3, 4]
    assert engine.n_asked == 100
    assert len(search_remote(context, mask, engine, 100)[0].rows) == engine.n_asked == 100
    with pytest.raises(UsageError, match="k is 101; a remote index returns 1 to 100"):
        search_remote(context, mask, engine, 101)


def test_an_approximate_search_sends_one_request() -> None:
    vectors = np.random.default_rng(0).normal(size=(5000, 4)).astype(np.float32)
    context, mask = np.random.default_rng(1).normal(size=(1, 9, 4)).astype(np.float32), np.ones((1, 9), np.bool_)
    engine = Lists(vectors)
    (result,) = search_remote(context, mask, engine, 10, exact=False)
    assert engine.n_asked == 100
    assert len(result.rows) == 10
    for mode, n_asked in (("approximate", 100), ("exact", 32)):
        engine, query = Lists(vectors), NearestSearch(context[:, :1], mask[:, :1], 10, mode=mode)  # type: ignore[arg-type]
        (result,) = query.of_engine(engine)
        assert (result.exact, engine.n_asked) == (mode == "exact", n_asked)


class Rounded(Lists):
    """Its products are off by half of what sums of fp32 may be off, up or down."""

    def __init__(self, vectors: np.ndarray, off: np.ndarray) -> None:
        super().__init__(vectors)
        self.off = off

    def nearest(self, vectors: np.ndarray, n: int) -> list[tuple[list[str], np.ndarray]]:
        self.n_asked = max(self.n_asked, n)
        most = self.norm_bound() * np.linalg.norm(vectors.astype(np.float64), axis=1) * self.width * 2.0**-25
        products = (self.stored.astype(np.float64) @ vectors.T.astype(np.float64) + self.off[:, None] * most).astype(
            "f4"
        )
        best = [np.argsort(-row, kind="stable")[:n] for row in products.T]
        return [(list(map(str, some)), row[some]) for some, row in zip(best, products.T, strict=True)]


@pytest.mark.parametrize("m", [1, 3])
def test_a_proof_allows_for_the_rounding_of_the_engines_products(m: int) -> None:
    """The best candidate is the last of the engine's list, but scores higher than those before by a rounding."""
    vectors = np.full((90, 8), 0.5, np.float32)
    vectors[70] = np.nextafter(np.float32(0.5), np.float32(1))
    contexts = np.full((1, m, 8), 1.0, np.float32)
    engine = Rounded(vectors, np.where(np.arange(90) == 70, -1.0, -0.5))
    for n in (14, 56):  # of its lists, which do not contain the best
        assert "70" not in engine.nearest(engine.weighing(contexts[0], 0.0), n)[0][0]
    (result,) = search_remote(contexts, np.ones((1, m), np.bool_), engine, 1)  # type: ignore[arg-type]
    assert (result.rows.tolist(), result.exact) == ([70], True)


@pytest.mark.deep
@pytest.mark.parametrize(("ann", "kind"), [("hnsw", "HNSW"), ("sq8", "IVF_SQ8")])
def test_a_compressed_or_graph_index_lists_what_is_then_scored(
    milvus: Milvus, tmp_path: Path, ann: str, kind: str
) -> None:
    pool = pool_of(400)
    vectors = vectors_of(pool)
    write_remote(tmp_path / "ix", milvus.address(), pool, vectors, fingerprint="f" * 64, model="m", ann=ann)
    with RemoteIndex(tmp_path / "ix") as index:
        assert index.info()["kind"] == kind
        result = Replies(Hashed(), index).answer("w1 w2", 10)
        assert not result.exact
        assert result.ways == (f"remote {kind.lower()}",)
        scores = scores_by_hand(Hashed().encode_candidates(["w1 w2"]), vectors)
        best = {f"c{i}" for i in np.argsort(-scores)[:10]}
        assert len(best & {reply.id for reply in result.ranked}) >= 8
        by_id = {candidate.id: score for candidate, score in zip(pool, scores.astype(np.float32), strict=True)}
        assert [reply.score for reply in result.ranked] == [by_id[reply.id] for reply in result.ranked]


def test_a_longer_vector_loosens_the_bound(address: Address, tmp_path: Path) -> None:
    pool = pool_of(5)
    write_remote(tmp_path / "ix", address, pool, vectors_of(pool), fingerprint="f" * 64, model="m")
    with RemoteIndex(tmp_path / "ix") as index, RemoteWriter(tmp_path / "ix") as writer:
        longest = float(np.linalg.norm(vectors_of(pool).astype(np.float64), axis=1).max())
        assert index.norm_bound() >= longest
        writer.add([Candidate("long", "x")], np.full((1, 8), 1e6, np.float32))
        index.refresh()
        assert index.norm_bound() >= 1e6 * np.sqrt(8)
        longest = index.norm_bound()
        index.server.of(index.collection).allow_norms(3)  # as by another writer, which read the bound earlier
        index.refresh()
        assert index.norm_bound() == longest
        assert verify_index(tmp_path / "ix") == []


@pytest.mark.deep
def test_a_search_asks_once_for_the_state_once_for_lists_and_once_for_rows(milvus: Milvus, tmp_path: Path) -> None:
    pool = pool_of(300)
    write_remote(tmp_path / "ix", milvus.address(), pool, vectors_of(pool), fingerprint="f" * 64, model="m")
    with RemoteIndex(tmp_path / "ix") as index:
        call, asked = index.server._call, []

        def recorded(method: str, *arguments: Any, **settings: Any) -> Any:
            asked.append(method)
            return call(method, *arguments, **settings)

        replies = Replies(Hashed(), index)
        replies.answer("w1 w2", 5)  # reads the catalogue's languages, once for each of its versions
        index.server._call = recorded  # type: ignore[method-assign]
        assert replies.answer("w1 w2", 5).exact
        assert asked == ["describe_collection", "search", "get"]


# -- building and replacing --------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_an_index_is_replaced_atomically(address: Address, tmp_path: Path) -> None:
    path, encoder = tmp_path / "ix", Hashed()
    assert build_index(path, encoder, ["one", "two", "two words"], name="m", remote=str(address)) == 3
    assert read_address(path) == address
    with pytest.raises(UsageError, match="already exists"):
        build_index(path, encoder, ["other"], name="m", remote=str(address))
    with pytest.raises(UsageError, match="already exists"):
        build_index(tmp_path / "another", encoder, ["other"], name="m", remote=str(address))
    with open_index(path) as index:
        retriever = Replies(encoder, index)
        bad = np.array([[1.0] * 8, [np.nan] * 8], np.float32)
        with pytest.raises(DataError, match="candidate 1"):
            write_remote(path, address, pool_of(2), bad, fingerprint="f" * 64, model="m", overwrite=True)
        assert {reply.text for reply in retriever.respond(["one"], allow_echo=True)[0]} == {"one", "two", "two words"}
        build_index(path, encoder, ["something else"], name="m", remote=str(address), overwrite=True)
        assert [reply.text for reply in retriever.respond(["one"])[0]] == ["something else"]
        assert index.opening == 2
        # built with another encoder, so that readers of the old index get an error
        build_index(path, Hashed("0" * 64), ["x"], name="m", remote=str(address), overwrite=True)
        with pytest.raises(ArtifactError, match="was made by encoder"):
            retriever.respond(["one"])
        mine = address.collection + "_"
        assert sum(name.startswith(mine) for name in index.server.names()) == 1


@pytest.mark.deep
def test_an_index_has_the_longest_name_that_the_server_accepts(address: Address, tmp_path: Path) -> None:
    address = replace(address, collection="a" * address.longest)
    if address.uri.startswith("qdrant+file"):  # names of files end earlier
        address = replace(address, collection="a" * 200)
    for texts in (["one"], ["one", "two"]):
        build_index(tmp_path / "ix", Hashed(), texts, name="m", remote=str(address), overwrite=True)
        with open_index(tmp_path / "ix") as index:
            assert len(index) == len(texts)
    drop_collection(address)
    assert address.collection not in {name for one in list_collections(address) for name in one.indexes}


def test_collections_of_others_are_left_alone(address: Address, tmp_path: Path) -> None:
    write_remote(tmp_path / "ix", address, pool_of(2), vectors_of(pool_of(2)), fingerprint="f", model="m")
    with RemoteIndex(tmp_path / "ix") as index:
        own = replace(address, collection=index.info()["collection"])
    with pytest.raises(UsageError, match="did not build; choose another name"):
        write_remote(
            tmp_path / "b", own, pool_of(2), vectors_of(pool_of(2)), fingerprint="f", model="m", overwrite=True
        )
    with open_catalogue(tmp_path / "ix") as index:
        assert len(index) == 2


@pytest.mark.parametrize(
    ("settings_", "problem"),
    [
        ({"remote": "ftp://host/replies"}, "is not the address of a collection"),
        ({"remote": "http://host:99999/replies"}, "is not the address of a collection"),
        ({"remote": "http://host"}, "'http://host' names no collection; add its name, as in http://host/replies"),
        ({"remote": "http://host/a-b"}, "'a-b' is not a collection name"),
        ({"remote": "http://me:secret@host/replies"}, "contains a password"),
        ({"remote": "http://host/replies", "precision": "int8"}, "holds fp32, not int8"),
        ({"remote": "http://host/replies", "ann": "auto"}, "'auto'; use none, flat, hnsw, sq8, ivfpq, diskann"),
        ({"partition_by": "lang"}, "`partition_by` is 'lang', and a local index is one part; leave it out"),
        (
            {"remote": "http://host/replies", "partition_by": "a or exists b"},
            "cannot be divided by 'a or exists b'; name",
        ),
    ],
    ids=["scheme", "port", "nothing", "name", "password", "precision", "ann", "local", "field"],
)
def test_impossible_settings(tmp_path: Path, settings_: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        build_index(tmp_path / "ix", Hashed(), ["x"], name="m", **settings_)
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "ix").exists()


def test_a_server_that_does_not_exist(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = Address(f"http://127.0.0.1:{free.getsockname()[1]}", "replies")
    with pytest.raises(OfflineError, match=r"did not answer within 1 seconds"):
        write_remote(
            tmp_path / "ix", address, pool_of(1), vectors_of(pool_of(1)), fingerprint="f", model="m", timeout_s=1
        )
    assert not (tmp_path / "ix").exists()


def test_a_server_that_lost_the_collection(address: Address, tmp_path: Path) -> None:
    write_remote(tmp_path / "ix", address, pool_of(1), vectors_of(pool_of(1)), fingerprint="f", model="m")
    with RemoteIndex(tmp_path / "ix") as index:
        index.server.drop_alias(address.collection)
        with pytest.raises(ArtifactError, match="does not exist; build it"):
            index.refresh()


def test_a_changed_row_is_refused(address: Address, tmp_path: Path) -> None:
    pool = pool_of(10)
    write_remote(tmp_path / "ix", address, pool, vectors_of(pool), fingerprint="f" * 64, model="m")
    assert verify_index(tmp_path / "ix") == []
    with RemoteIndex(tmp_path / "ix") as index:
        (row,) = index.server.get([key_of("c3")])
        index.server.write([{**row, "facts": {}, "text": "another text"}])
        (problem,) = verify_index(tmp_path / "ix")
        assert "candidate 'c3' is not what was written" in problem
        with pytest.raises(ArtifactError, match="'c3' is not what was written"):
            Replies(Hashed(), index).respond(["w1"], 10)
        with RemoteWriter(tmp_path / "ix") as writer:
            writer.add(pool[3:4], vectors_of(pool[3:4]), replace=True)
        assert verify_index(tmp_path / "ix") == []


def test_values_too_long_for_the_server(milvus: Milvus, tmp_path: Path) -> None:
    pool = pool_of(1)
    write_remote(tmp_path / "ix", milvus.address(), pool, vectors_of(pool), fingerprint="f", model="m")
    long = {
        "text has 66,000 bytes": Candidate("long", "ü" * 33_000),
        "metadata have 66,009 bytes": Candidate("long", "x", {"a": "ü" * 33_000}),
        "to filter by": Candidate("long", "x", {"a": list(range(3000))}),
    }
    with RemoteWriter(tmp_path / "ix") as writer:
        for problem, candidate in long.items():
            with pytest.raises(DataError, match=problem):
                writer.add([Candidate("short", "x"), candidate], np.ones((2, 8), np.float32))
            assert len(writer) == 1
        writer.compact()
        assert len(writer) == 1
        with pytest.raises(UsageError, match="polyrank index list --json"):
            writer.snapshot(tmp_path / "copy")


# -- a server that dies ------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_nothing_acknowledged_is_lost_when_the_server_is_killed_while_it_writes(mortal: Milvus, tmp_path: Path) -> None:
    path, random = tmp_path / "ix", np.random.default_rng(3)
    truth = {c.id: c.text for c in pool_of(50)}
    write_remote(path, mortal.address(), pool_of(50), vectors_of(pool_of(50)), fingerprint="f" * 64, model="m")
    sent: dict[str, set[str | None]] = {}  # texts that an unacknowledged change may have left

    def write_on(life: int, acknowledged: threading.Event) -> None:
        nonlocal truth, sent
        with RemoteWriter(path) as writer:
            writer._index.server.timeout_s = 1
            for step in itertools.count():
                ids = [f"c{i}" for i in random.choice(120, size=20, replace=False)]
                some = [Candidate(id_, f"life{life} step{step} w{id_}", {}) for id_ in ids]
                if step % 5 == 4:
                    sent = {id_: {truth.get(id_), None} for id_ in ids}
                    writer.remove(ids)
                    truth = {id_: text for id_, text in truth.items() if id_ not in ids}
                else:
                    sent = {c.id: {truth.get(c.id), c.text} for c in some}
                    writer.add(some, vectors_of(some), replace=True)
                    truth |= {c.id: c.text for c in some}
                sent = {}
                if step == 3 + life:
                    acknowledged.set()

    def kill(acknowledged: threading.Event) -> None:
        acknowledged.wait(60)
        mortal.kill()  # SIGKILL while the other thread is writing

    for life in range(4):
        acknowledged = threading.Event()
        killer = threading.Thread(target=kill, args=[acknowledged])
        killer.start()
        with pytest.raises(OfflineError):
            write_on(life, acknowledged)
        killer.join()
        mortal.start()
        with RemoteIndex(path) as index:
            there = {candidate.id: candidate.text for _, candidate in index.iter_candidates()}
            assert verify_index(path) == []
            for id_ in truth.keys() | there.keys() | sent.keys():
                assert there.get(id_) in sent.get(id_, {truth.get(id_)}), (life, id_)
            (ranked,) = Replies(Hashed(), index, distinct=False).respond(["w1"], 500)
            assert {reply.id: reply.text for reply in ranked} == there
        truth = there


@pytest.mark.deep
def test_a_reader_continues_when_the_server_is_back(mortal: Milvus, tmp_path: Path) -> None:
    path = tmp_path / "ix"
    write_remote(path, mortal.address(), pool_of(20), vectors_of(pool_of(20)), fingerprint="f" * 64, model="m")
    with RemoteIndex(path) as index:
        before = Replies(Hashed(), index).respond(CONTEXTS)
        mortal.kill()
        mortal.start()  # the server is still starting when the search arrives
        assert Replies(Hashed(), index).respond(CONTEXTS) == before
        mortal.kill()
        index.server.timeout_s = 0.5
        started = time.monotonic()
        with pytest.raises(OfflineError, match=r"did not answer within 0.5 seconds; start the server"):
            Replies(Hashed(), index).respond(CONTEXTS)
        assert time.monotonic() - started < 20


@pytest.mark.deep
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system cannot stop a process with SIGSTOP")
def test_a_hanging_server_causes_an_error_in_time(mortal: Milvus, tmp_path: Path) -> None:
    path = tmp_path / "ix"
    write_remote(path, mortal.address(), pool_of(20), vectors_of(pool_of(20)), fingerprint="f" * 64, model="m")
    assert mortal.process is not None
    with RemoteIndex(path, timeout_s=1) as index, RemoteWriter(path) as writer:
        writer._index.server.timeout_s = 1
        os.kill(mortal.process.pid, signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(OfflineError, match="did not answer within 1 seconds"):
            Replies(Hashed(), index).respond(["w1"])
        with pytest.raises(OfflineError):
            writer.remove(["c1"])
        assert time.monotonic() - started < 30
        os.kill(mortal.process.pid, signal.SIGCONT)
        index.server.timeout_s = writer._index.server.timeout_s = 20
        assert writer.remove(["c1", "c2"]) == 2
        assert len(index) == 18


@pytest.mark.deep
def test_repeating_an_interrupted_change_completes_it(mortal: Milvus, tmp_path: Path) -> None:
    path = tmp_path / "ix"
    pool = pool_of(1300)  # needs three requests
    write_remote(path, mortal.address(), pool[:1], vectors_of(pool[:1]), fingerprint="f" * 64, model="m")
    with RemoteWriter(path) as writer:
        write, n_written = writer._index.server.write, 0

        def once_more(rows: Sequence[dict[str, Any]]) -> None:
            nonlocal n_written
            if n_written:  # the server dies between the first request and the second
                mortal.kill()
                writer._index.server.timeout_s = 1
            write(rows)
            n_written += len(rows)

        writer._index.server.write = once_more  # type: ignore[method-assign]
        with pytest.raises(OfflineError, match=r"512 of 1,299 candidates were acknowledged; add them all again"):
            writer.add(pool[1:], vectors_of(pool[1:]))
    mortal.start()
    with RemoteWriter(path) as writer:
        assert len(writer) == 513
        assert verify_index(path) == []
        # rows that exist with equal content stay unchanged
        assert add_to_index(writer, Hashed(), pool) == 787
        assert len(writer) == 1300
        assert verify_index(path) == []
        assert writer.find([c.id for c in pool]) == {c.id: c for c in pool}


def test_a_request_that_the_server_refuses_names_it(milvus: Milvus, tmp_path: Path) -> None:
    write_remote(tmp_path / "ix", milvus.address(), pool_of(1), vectors_of(pool_of(1)), fingerprint="f", model="m")
    with (
        RemoteIndex(tmp_path / "ix") as index,
        pytest.raises(ResourceError, match=r"refuses to query \(.*see the server"),
    ):
        list(index.server.scan("no such thing"))


@pytest.mark.deep
def test_without_the_library_the_error_names_the_package(tmp_path: Path) -> None:
    addresses = ["http://h:1/replies", "qdrant+http://h:1/replies", "postgresql://h:1/database/replies"]
    folders = [tmp_path / str(i) for i in range(3)]
    for folder, address in zip(folders, addresses, strict=True):
        write_address(folder, Address.of(address))
    code = (
        "import sys; sys.modules |= dict.fromkeys(['pymilvus', 'qdrant_client', 'psycopg'])\n"
        "from polyrank.index import open_index\n"
        "assert not {'torch', 'grpc', 'httpx'} & set(sys.modules)\n"
        "for path in sys.argv[1:]:\n"
        "    try: open_index(path)\n"
        "    except Exception as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code, *folders], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [
        f'{library} is not installed; install it with: pip install "polyrank[{extra}]"'
        for library, extra in (("pymilvus", "milvus"), ("qdrant-client", "qdrant"), ("psycopg", "postgresql"))
    ]


def test_qdrant_answers_as_a_local_index(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    pytest.importorskip("qdrant_client", reason="qdrant-client is not installed; install polyrank[qdrant]")
    from qdrant_client import QdrantClient, models

    pool = [*pool_of(30), Candidate("array", "w1", {"n": [20, 40, -5]}), Candidate("long", "w1", {"lang": "x" * 121})]
    settings = {"fingerprint": "f" * 64, "model": "m"}
    write_index(tmp_path / "local", pool, vectors_of(pool), **settings)
    write_remote(tmp_path / "ix", address_of("qdrant", request, tmp_path), pool, vectors_of(pool), **settings)
    with open_index(tmp_path / "local") as local, open_index(tmp_path / "ix") as index:
        expected, result = (
            Replies(Hashed(), one).answer(CONTEXTS[1], 5, filter='n > 9 and lang = "en"') for one in (local, index)
        )
        assert (result.ranked, result.exact) == (expected.ranked, True)
        for kind in ("<", "<=", ">", ">="):
            for term in (f"n {kind} 9", f'lang {kind} "de"', f'lang {kind} "{"x" * 120}"'):
                read = read_filter(term)
                passing = ([candidate.id for _, candidate in one.iter_candidates(read)] for one in (local, index))
                assert next(passing) == next(passing), term
    new = Candidate("new", "w1 w2 w3", {"lang": "en"})
    for path in (tmp_path / "local", tmp_path / "ix"):
        with open_writer(path) as writer:
            writer.remove([expected.ranked[0].id])
            writer.add([new], 100 * vectors_of([new]))  # longer than all others
    with open_index(tmp_path / "local") as local, open_index(tmp_path / "ix") as index:
        expected, result = (Replies(Hashed(), one).answer(CONTEXTS[1], 40) for one in (local, index))
        assert (result.ranked, result.exact, len(result.ranked)) == (expected.ranked, True, 31)
    with RemoteIndex(tmp_path / "ix") as index:
        longest, queries = float(np.linalg.norm(100 * vectors_of([new]))), np.zeros((2, index.width), np.float32)
        assert longest < index.server.describe().norm <= 2 * longest
        stored = index.vectors([candidate.id for candidate in (*pool, new)])
        queries[:, :8] = stored["c7"], stored["c3"]
        for query, found in zip(queries, index.server.nearest(queries, 3, "", kind=index.kind), strict=True):
            products = {id_: float(vector @ query[:8]) for id_, vector in stored.items()}
            best = sorted(products, key=lambda id_: -products[id_])[:3]
            assert [key for key, _ in found] == [key_of(id_) for id_ in best]
            assert [product for _, product in found] == pytest.approx([products[id_] for id_ in best], rel=1e-5)
    address = read_address(tmp_path / "ix")
    with contextlib.closing(QdrantClient(path=address.uri.partition("://")[2])) as client:
        client.create_collection("others", vectors_config=models.VectorParams(size=8, distance=models.Distance.DOT))
    assert [one.indexes for one in list_collections(address)] == [(address.collection,)]


def test_a_token_is_for_the_server_that_the_user_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other gets it: not one of the same kind, at another port, without encryption or with a name that begins so."""
    for uri, name, more in (
        ("qdrant+https://h:6333", "QDRANT", ["qdrant+http://h:6333", "https://h:6333"]),
        ("postgresql://h:5432", "POSTGRESQL", []),
        ("http://h:19530", "MILVUS", ["https://h:19530", "qdrant+http://h:19530"]),
    ):
        others = [uri.replace("//h", "//evil"), uri.replace("//h", "//h.evil"), f"{uri}0", f"{uri[:-1]}9", *more]
        monkeypatch.setenv(f"POLYRANK_{name}_TOKEN", "secret")
        assert Address(uri, "replies").token == ""
        for named in (uri, f"{uri}/", uri.rpartition(":")[0]):  # the last with the usual port
            monkeypatch.setenv(f"POLYRANK_{name}_URI", named)
            assert Address(uri, "replies").token == "secret"
            assert [other for other in others if Address(other, "replies").token] == []
        monkeypatch.delenv(f"POLYRANK_{name}_URI")


# -- PostgreSQL --------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_a_graph_lists_candidates_and_the_table_is_compared_otherwise(postgresql: Postgresql, tmp_path: Path) -> None:
    pool = pool_of(400)
    vectors = vectors_of(pool)
    write_remote(tmp_path / "ix", postgresql.address(), pool, vectors, fingerprint="f" * 64, model="m", ann="hnsw")
    scores = scores_by_hand(Hashed().encode_candidates(["w1 w2"]), vectors)
    with RemoteIndex(tmp_path / "ix") as index:
        result = Replies(Hashed(), index).answer("w1 w2", 10)
        assert (result.exact, result.ways) == (False, ("remote hnsw",))
        best = {f"c{i}" for i in np.argsort(-scores)[:10]}
        assert len(best & {reply.id for reply in result.ranked}) >= 8
        few = Replies(Hashed(), index).answer("w1 w2", 10, filter="n < 11")
        assert sorted(reply.id for reply in few.ranked) == sorted(f"c{i}" for i in np.argsort(-scores[:11])[:10])
        ((hits,),) = [index.server.nearest(np.ones((1, index.width), np.float32), 300, "", kind="HNSW")]
        assert len(hits) == 300
    with pytest.raises(UsageError, match="a remote index cannot have index type 'diskann'; use none, flat, hnsw"):
        write_remote(tmp_path / "b", postgresql.address(), pool, vectors, fingerprint="f", model="m", ann="diskann")
    with pytest.raises(UsageError, match="cannot be divided by a field"):
        write_remote(
            tmp_path / "b", postgresql.address(), pool, vectors, fingerprint="f", model="m", partition_by="lang"
        )


@pytest.mark.deep
def test_an_index_that_others_add_keeps_answers_exact(postgresql: Postgresql, tmp_path: Path) -> None:
    pool = pool_of(300)
    vectors = vectors_of(pool)
    write_remote(tmp_path / "ix", postgresql.address(), pool, vectors, fingerprint="f" * 64, model="m")
    with RemoteIndex(tmp_path / "ix") as index:
        before = Replies(Hashed(), index).answer("w1 w2", 10)
        table = f'"{index.collection}"'
        index.server._call("execute", f"create index on {table} using ivfflat (vector vector_ip_ops) with (lists = 50)")
        index.server._call("execute", "set enable_seqscan = off")
        assert Replies(Hashed(), index).answer("w1 w2", 10) == before
        assert before.exact


@pytest.mark.deep
def test_wrong_databases_users_and_tables_are_named(
    postgresql: Postgresql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = postgresql.address()
    pool, vectors = pool_of(1), vectors_of(pool_of(1))
    with pytest.raises(ResourceError, match='database "nowhere" does not exist'):
        write_remote(tmp_path / "a", replace(address, database="nowhere"), pool, vectors, fingerprint="f", model="m")
    postgresql.sql(address, "create table others (id int); create view shown as table others")
    for name in ("others", "shown"):
        with pytest.raises(UsageError, match="did not build; choose another name"):
            write_remote(
                tmp_path / "a", replace(address, collection=name), pool, vectors,
                fingerprint="f", model="m", overwrite=True,
            )  # fmt: skip
    monkeypatch.setenv("POLYRANK_POSTGRESQL_TOKEN", "nobody-knows:secret")
    with pytest.raises(ResourceError, match='role "nobody-knows" does not exist'):
        write_remote(tmp_path / "a", address, pool, vectors, fingerprint="f", model="m")


@pytest.mark.deep
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system cannot stop a process with SIGSTOP")
def test_postgresql_that_hangs_or_restarts(postgresql: Postgresql, tmp_path: Path) -> None:
    write_remote(
        tmp_path / "ix", postgresql.address(), pool_of(20), vectors_of(pool_of(20)), fingerprint="f" * 64, model="m"
    )
    with RemoteIndex(tmp_path / "ix") as index:
        before = Replies(Hashed(), index).respond(CONTEXTS)
        index.server.timeout_s = 0.5
        ((backend,),) = index.server._call("execute", "select pg_backend_pid()")
        os.kill(backend, signal.SIGSTOP)
        try:
            with pytest.raises(OfflineError, match=r"did not answer within 0\.5 seconds; start the server"):
                len(index)
        finally:
            os.kill(backend, signal.SIGCONT)
        with contextlib.suppress(OfflineError):
            index.server._call("execute", "select pg_terminate_backend(pid) from pg_stat_activity")
        index.server.timeout_s = 20
        assert Replies(Hashed(), index).respond(CONTEXTS) == before


# -- commands and the server ------------------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.slow
def test_commands_accept_the_folder_of_a_remote_index(milvus: Milvus, tmp_path: Path) -> None:
    replies = [{"id": f"r{i}", "text": f"reply number {i}", "lang": ["en", "de"][i % 2]} for i in range(6)]
    (tmp_path / "replies.jsonl").write_text("".join(json.dumps(row) + "\n" for row in replies), "utf-8")
    (tmp_path / "more.jsonl").write_text('{"id": "new", "text": "a new reply", "lang": "en"}\n', "utf-8")
    path, address = tmp_path / "ix", str(milvus.address())

    def notify(*arguments: str | Path, code: int = 0) -> str:
        done = run(*arguments)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout if code == 0 else done.stderr

    notify("index", "build", "shipped:convert", tmp_path / "replies.jsonl", "-o", path, "--remote", address)
    notify("index", "add", path, tmp_path / "more.jsonl")
    notify("index", "remove", path, "--filter", 'lang = "de"')
    assert notify("index", "list", path).splitlines() == [
        *(f"r{i}\treply number {i}" for i in (0, 2, 4)),
        "new\ta new reply",
    ]
    answer = json.loads(notify("respond", path, "which number is it", "--filter", 'lang in ("en", "de")'))
    assert {reply["id"] for reply in answer["results"]} == {"r0", "r2", "r4", "new"}
    assert answer["exact"]
    assert json.loads(notify("index", "info", path))["remote"] == address
    notify("index", "verify", path)
    assert "back up the server" in notify("index", "snapshot", path, "-o", tmp_path / "copy", code=2)
    assert len(notify("index", "list", path, "--json").splitlines()) == 4


@pytest.mark.deep
@pytest.mark.slow
def test_a_server_answers_from_a_remote_index_and_changes_it(mortal: Milvus, tmp_path: Path) -> None:
    pool = [Candidate(f"r{i}", f"reply number {i}", {"n": i}) for i in range(5)]
    build_index(tmp_path / "ix", "shipped:convert", pool, remote=str(mortal.address()))
    with serving(tmp_path / "ix") as server, server.client() as client:
        assert client.get("/v1/candidates?limit=2").json()["n_candidates"] == 5
        new = {"candidates": [{"id": "new", "text": "a quite new reply", "metadata": {"n": 9}}]}
        assert client.post("/v1/candidates", json=new).status_code == 200
        asked = {"context": ["which number"], "k": 10, "filter": "n > 2"}
        answer = client.post("/v1/respond", json=asked)
        assert answer.status_code == 200, answer.text
        assert {reply["id"] for reply in answer.json()["results"]} == {"r3", "r4", "new"}
        assert client.get("/v1/candidates/new").json()["text"] == "a quite new reply"
        assert client.delete("/v1/candidates/new").status_code == 200
        assert client.get("/v1/candidates").json()["n_candidates"] == 5
        mortal.kill()
        refused = client.post("/v1/respond", json=asked)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "offline")
        assert "retry-after" in refused.headers
        mortal.start()
        assert client.post("/v1/respond", json=asked).status_code == 200
