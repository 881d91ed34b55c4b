"""Search: every way of scanning equals brute force bit for bit, on random and adversarial pools; bounds hold."""

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from polyrank.errors import ArtifactError, ConfigError, UsageError
from polyrank.index.local.ann import build_ann
from polyrank.index.protocol import Block
from polyrank.models.scoring import scores
from polyrank.search import NearestSearch, Result, kernels, prior_of, score_rows, search
from polyrank.search.best import Best
from polyrank.search.blocks import as_tensor, bf16_of, norms_of
from polyrank.search.lists import shortlist
from polyrank.search.profile import Profile
from polyrank.search.query import Machine
from polyrank.search.scan import _buffers, bounds_in_bf16, scan
from polyrank.search.scoring import (
    mean_of,
    moments_of,
    precise_scores,
    real_vectors,
    rounding_of_mean,
    steepness,
    upper_bounds,
)
from polyrank.search.subspace import find_subspace
from polyrank.search.ways import WAYS, Policy
from polyrank.storage.quantized import PackedVectors, pack

Floats = NDArray[np.float32]
D = 32  # as many bf16 numbers as AMX multiplies at once


def block(
    vectors: Floats | PackedVectors,
    first: int = 0,
    alive: NDArray[np.bool_] | None = None,
    offsets: Floats | None = None,
) -> Any:
    rows = np.arange(first, first + len(vectors))
    return Block(vectors, rows, alive, offsets)


def offsets_in(blocks: list[Any]) -> Floats:
    """Numbers that are added to the candidates' scores."""
    return np.concatenate([np.zeros(len(b.rows), np.float32) if b.offsets is None else b.offsets for b in blocks])


def brute_force(context: Floats, mask: NDArray[np.bool_], blocks: list[Any], k: int) -> tuple[Any, Floats, Any]:
    """Scores by the formula in fp64, and the size of the products, which determines rounding errors."""
    vectors = np.concatenate([b.vectors[:] for b in blocks]).astype(np.float64)
    rows = np.concatenate([b.rows for b in blocks])
    alive = np.concatenate([np.ones(len(b.rows), bool) if b.alive is None else b.alive for b in blocks])
    products = vectors @ context[mask].astype(np.float64).T
    weights = np.exp(products - products.max(1, keepdims=True))
    offsets = offsets_in(blocks).astype(np.float64)
    result = ((weights * products).sum(1) / weights.sum(1) + offsets).astype(np.float32)
    rows, result, size = rows[alive], result[alive], (np.abs(products).max(1) + np.abs(offsets))[alive]
    order = np.lexsort((rows, -result))[:k]
    return rows[order], result[order], size[order]


@dataclass
class Case:
    contexts: Floats
    mask: NDArray[np.bool_]
    blocks: list[Any]
    k: int


needs_kernels = pytest.mark.skipif(kernels.package() is None, reason="polyrank-kernels is not installed")


@pytest.fixture(scope="module", autouse=True)
def shipped_profile() -> Iterator[None]:
    """Tests of the number of scored candidates must not depend on this machine's measured profile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polyrank.search.load_profile", Profile)
        yield


POOLS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "random": lambda rng, n: rng.standard_normal((n, D), np.float32),
    "whole numbers, many ties": lambda rng, n: rng.integers(-1, 2, (n, D)).astype(np.float32),
    "copies": lambda rng, n: rng.standard_normal((3, D), np.float32)[rng.integers(3, size=n)],
    "zeros": lambda rng, n: np.zeros((n, D), np.float32),
    "norms from tiny to huge": lambda rng, n: (
        rng.standard_normal((n, D)) * 10.0 ** rng.uniform(-20, 3, (n, 1))
    ).astype(np.float32),
    "close together": lambda rng, n: (1 + 1e-6 * rng.standard_normal((n, D))).astype(np.float32),
}
CONTEXTS: dict[str, Callable[[np.random.Generator, int, int], Floats]] = {
    "random": lambda rng, b, m: rng.standard_normal((b, m, D), np.float32),
    "wide": lambda rng, b, m: 40 * rng.standard_normal((b, m, D), np.float32),
    "flat": lambda rng, b, m: 0.01 * rng.standard_normal((b, m, D), np.float32),
    "no spread": lambda rng, b, m: np.repeat(rng.standard_normal((b, 1, D), np.float32), m, 1),
    "around a mean": lambda rng, b, m: (
        rng.standard_normal((b, 1, D)) + 0.3 * rng.standard_normal((b, m, 2)) @ rng.standard_normal((b, 2, D))
    ).astype(np.float32),
    "mean of zero": lambda rng, b, m: (lambda x: np.concatenate([x, -x], 1)[:, :m])(
        rng.standard_normal((b, (m + 1) // 2, D), np.float32)
    ),
    "zeros": lambda rng, b, m: np.zeros((b, m, D), np.float32),
    "whole numbers": lambda rng, b, m: rng.integers(-1, 2, (b, m, D)).astype(np.float32),
}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_contexts, n_vectors = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 5, 40]))
    contexts = CONTEXTS[draw(st.sampled_from(sorted(CONTEXTS)))](rng, n_contexts, n_vectors)
    mask = rng.random((n_contexts, n_vectors)) < draw(st.sampled_from([0.5, 1.0]))
    mask[:, 0] = True
    blocks, first = [], draw(st.sampled_from([0, 10]))
    for n in draw(st.lists(st.sampled_from([0, 1, 7, 300, 2500, 6000]), min_size=0, max_size=3)):
        alive = rng.random(n) < draw(st.sampled_from([0.0, 0.3, 0.9])) if draw(st.booleans()) else None
        vectors = POOLS[draw(st.sampled_from(sorted(POOLS)))](rng, n)
        spread = draw(st.sampled_from([None, None, 0.0, 0.01, 1.0, 100.0]))  # weights of a prior over candidates
        offsets = None if spread is None else (spread * rng.exponential(size=n)).astype(np.float32)
        blocks.append(block(pack(vectors, draw(st.sampled_from(["fp32", "bf16", "int8"]))), first, alive, offsets))
        first += n + 3
    return Case(contexts, mask, blocks, draw(st.sampled_from([1, 2, 10, 400])))


def same(results: list[Result], case: Case) -> None:
    """Check equality with brute force; rows whose fp64 scores differ by one rounding may swap."""
    for i, one in enumerate(results):
        nothing = np.zeros(0, np.float32)
        rows, truth, size = (
            brute_force(case.contexts[i], case.mask[i], case.blocks, case.k) if case.blocks else (nothing,) * 3
        )
        assert one.exact
        assert one.scores.shape == truth.shape
        off = np.abs(one.scores.astype(np.float64) - truth)
        assert (off <= 2e-7 * np.abs(truth) + 1e-15 * size + 1e-30).all()
        if not np.array_equal(one.rows, rows):
            np.testing.assert_array_equal(one.scores, score_all(case, i, one.rows))
            assert len(set(one.rows.tolist())) == len(rows)


def score_all(case: Case, i: int, rows: NDArray[np.int64]) -> Floats:
    vectors = {r: v for b in case.blocks for r, v in zip(b.rows.tolist(), b.vectors[:], strict=True)}
    chosen = np.array([vectors[r] for r in rows.tolist()], np.float32)
    own = torch.from_numpy(real_vectors(case.contexts[i], case.mask[i])).double()
    return precise_scores(own, chosen, offset_of_rows(case, rows))


def offset_of_rows(case: Case, rows: NDArray[np.int64]) -> Floats:
    added = dict(zip([r for b in case.blocks for r in b.rows.tolist()], offsets_in(case.blocks).tolist(), strict=True))
    return np.array([added[r] for r in rows.tolist()], np.float32)


@given(cases())
def test_exact_search_and_plain_scans_equal_brute_force(case: Case) -> None:
    plain = search(case.contexts, case.mask, case.blocks, case.k, ways=["plain"])
    same(plain, case)
    for compiled, ways in (
        (False, ["plain"]),
        (True, ["plain", "plain tiles"]),
        (True, list(WAYS)),
        (False, list(WAYS)),
    ):
        results = search(case.contexts, case.mask, case.blocks, case.k, compiled=compiled, ways=ways)
        for one, other in zip(plain, results, strict=True):
            np.testing.assert_array_equal(one.rows, other.rows)
            np.testing.assert_array_equal(one.scores, other.scores)
            assert other.exact


@settings(max_examples=25, deadline=None)
@given(cases())
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_scanning_returns_the_same(way: str, compiled: bool, case: Case) -> None:
    """Speed decides where a way is chosen; it must be right everywhere."""
    if not WAYS[way].usable(D, Machine(compiled and kernels.package() is not None, bf16=False)):
        pytest.skip("this machine does not support this way")
    plain = search(case.contexts, case.mask, case.blocks, case.k, ways=["plain"], compiled=False)
    results = search(case.contexts, case.mask, case.blocks, case.k, ways=[way], compiled=compiled)
    for one, other in zip(plain, results, strict=True):
        np.testing.assert_array_equal(one.rows, other.rows)
        np.testing.assert_array_equal(one.scores, other.scores)
        assert other.exact
        assert other.ways in ((way,), ())


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=needs_kernels)])
def test_bf16_is_chosen_where_it_is_fast_and_scores_few(compiled: bool) -> None:
    rng = np.random.default_rng(4)
    pool, context = rng.standard_normal((8_000, 512), np.float32), rng.standard_normal((1, 24, 512), np.float32) / 22
    candidates = block(pool)
    best = Best(context[0], 10)
    with torch.inference_mode():
        machine = Machine(compiled, bf16=True)
        profile = Profile(bf16=(12.0, 0.16), plain_tiles=(45.0, 1.6), int8_tiles=(45.0, 1.6))
        query = Policy(machine, profile).choose(best, [candidates])
        assert query.way.bits == 16
        scan([query], candidates, machine)
    result = best.result(exact=True)
    same([result], Case(context, np.ones((1, 24), bool), [candidates], 10))
    assert result.n_scored < 2000


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 5, 16, 40]), st.sampled_from([1e-3, 1.0, 30.0, 1e3]))
def test_spreads_are_tight_upper_bounds(seed: int, m: int, wide: float) -> None:
    products = torch.from_numpy(wide * np.random.default_rng(seed).standard_normal((700, m))).float()
    double = products.double()
    weights = torch.softmax(double, 1)
    mean = (weights * double).sum(1)
    deviation = (weights * (double - mean[:, None]).square()).sum(1).sqrt()
    # padding of compiled vectors has the weight exp(-80), not zero
    square = (weights * (double - double.amax(1, keepdim=True)).square()).sum(1)
    forms = [moments_of(products.clone()), *([kernels.moments(products)] if kernels.package() else [])]
    for found, best, spread in forms:
        assert (best == products.amax(1)).all()
        assert ((found - mean).abs() <= rounding_of_mean(m) + 2.0**-22 * best.abs()).all()
        assert (spread >= deviation * (1.0 - 1e-6)).all()
        assert (
            spread.square() <= deviation.square() * (1.0 + 1e-6) + 4e-5 * square + 1e-28
        ).all()  # padding has the weight exp(-80)


@given(cases(), st.booleans())
def test_approximate_search_by_exact_indexes_is_exact_where_reported(case: Case, leave_one: bool) -> None:
    indexes: list[Any] = [build_ann(b.vectors, "flat") for b in case.blocks]
    if leave_one and indexes:
        indexes[0] = None
    plain = search(case.contexts, case.mask, case.blocks, case.k, ways=["plain"])
    results = search(case.contexts, case.mask, case.blocks, case.k, mode="approximate", indexes=indexes)
    for one, other in zip(plain, results, strict=True):
        assert set(other.ways) <= {"shortlist", *WAYS}
        if other.exact:
            np.testing.assert_array_equal(one.rows, other.rows)
            np.testing.assert_array_equal(one.scores, other.scores)


@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(CONTEXTS)), st.sampled_from(sorted(POOLS)), st.integers(1, 9))
def test_no_score_is_above_a_bound_of_a_subspace(seed: int, contexts: str, pool: str, n_columns: int) -> None:
    rng = np.random.default_rng(seed)
    vectors, context = POOLS[pool](rng, 200), CONTEXTS[contexts](rng, 1, 30)[0]
    truth = score_rows(context, np.ones(30, bool), vectors)
    subspace = find_subspace(torch.from_numpy(context)).narrow(n_columns)
    norms = torch.from_numpy((np.linalg.norm(vectors.astype(np.float64), axis=1) * (1 + 1e-6)).astype(np.float32))
    products = torch.from_numpy(vectors) @ subspace.columns.T
    tiny = 1e-6 * np.abs(truth) + 1e-30
    for compiled in (False, True) if kernels.package() else (False,):
        coarse, error = subspace.coarse_bounds(products, norms, torch.zeros_like(norms), 0.0, compiled=compiled)
        fine = subspace.fine_bounds(products, error, compiled=compiled)
        assert (coarse.numpy() >= truth - tiny).all()
        assert (fine.numpy() >= truth - tiny).all()


@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(CONTEXTS)), st.sampled_from(sorted(POOLS)))
def test_no_score_is_above_its_bound_in_bf16(seed: int, contexts: str, pool: str) -> None:
    rng = np.random.default_rng(seed)
    vectors, context = POOLS[pool](rng, 200), CONTEXTS[contexts](rng, 1, 7)[0]
    truth = score_rows(context, np.ones(7, bool), vectors)
    query, rounded = WAYS["bf16"].query(Best(context, 1)), bf16_of(vectors)
    assert query.bf16 is not None
    products = (rounded.values @ query.bf16.T).float()
    for compiled in (False, True) if kernels.package() else (False,):
        errors, norms = torch.from_numpy(rounded.row_errors), torch.from_numpy(norms_of(vectors))
        bounds = bounds_in_bf16(query, products.clone(), norms, errors, compiled=compiled)
        assert (bounds.numpy() >= truth - 1e-6 * np.abs(truth) - 1e-30).all()


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.01, 0.3, 2.0, 9.0]), st.sampled_from([0.1, 1.0, 30.0]))
def test_moved_products_move_the_score_within_the_bound(seed: int, moved: float, wide: float) -> None:
    rng = np.random.default_rng(seed)
    products = torch.from_numpy(wide * rng.standard_normal((50, 12)))
    signs = torch.from_numpy(rng.choice([-1.0, 0.0, 1.0], (50, 12)))
    mean, best, spread = moments_of(products.clone())
    other, _ = mean_of(products + moved * signs, torch.empty_like(products))
    error = torch.full_like(mean, moved)
    assert (other <= upper_bounds(mean, best, error, spread, 12)).all()
    assert ((other - mean).abs() <= moved * steepness(12) + 1e-9).all()


@given(cases())
def test_scores_equal_those_of_the_scoring_function(case: Case) -> None:
    results = search(case.contexts, case.mask, case.blocks, case.k)
    for i, one in enumerate(results):
        if len(one.rows):
            vectors = {r: v for b in case.blocks for r, v in zip(b.rows.tolist(), b.vectors[:], strict=True)}
            mine = np.array([vectors[r] for r in one.rows.tolist()], np.float32)
            theirs = scores(*map(torch.from_numpy, (case.contexts[i : i + 1], mine[None], case.mask[i : i + 1])))[0]
            added = offset_of_rows(case, one.rows)
            scale = np.linalg.norm(mine, axis=1).max() * np.linalg.norm(case.contexts[i], axis=1).max() + added.max()
            assert np.abs(theirs.numpy() + added - one.scores).max() <= 1e-4 * max(scale, 1e-30)


def trained_like(n: int = 20_000, d: int = 64) -> Case:
    """Contexts close to their mean and to few directions; each is a reply's vector with noise."""
    rng = np.random.default_rng(11)
    pool = rng.standard_normal((n, d), np.float32)
    means = pool[:3, None] * 0.4
    contexts = means + 0.05 * rng.standard_normal((3, 48, 4)) @ rng.standard_normal((3, 4, d))
    return Case(contexts.astype(np.float32), np.ones((3, 48), bool), [block(pool)], 10)


def test_nearly_all_are_ruled_out_for_contexts_like_a_trained_encoders() -> None:
    case = trained_like(d=512)
    results = search(case.contexts, case.mask, case.blocks, case.k)
    same(results, case)
    assert max(one.n_scored for one in results) < 500
    plain = search(case.contexts, case.mask, case.blocks, case.k, ways=["plain"])
    assert [(one.n_scored, one.ways) for one in plain] == [(20_000, ("plain",))] * 3


@pytest.mark.deep
def test_an_approximate_index_proves_nothing() -> None:
    case = trained_like(5000)
    index = build_ann(case.blocks[0].vectors, "hnsw")
    truth = search(case.contexts, case.mask, case.blocks, case.k, ways=["plain"])
    found = search(case.contexts, case.mask, case.blocks, case.k, mode="approximate", indexes=[index])
    for one, true in zip(found, truth, strict=True):
        assert not one.exact
        assert one.n_scored < 500
        assert len(set(one.rows.tolist()) & set(true.rows.tolist())) >= 9
        assert one.ways == ("shortlist",)


def test_an_exact_search_uses_no_index_and_an_approximate_one_needs_none() -> None:
    case = trained_like(200)
    unasked: Any = object()
    same(search(case.contexts, case.mask, case.blocks, case.k, indexes=[unasked]), case)
    same(search(case.contexts, case.mask, case.blocks, case.k, mode="approximate"), case)


def test_a_candidate_is_shortlisted_by_a_single_vector() -> None:
    """Its products cancel in the mean, which ranks a hundred others first."""
    pool = np.zeros((300, D), np.float32)
    pool[:, :2] = 1
    pool[0, :2] = 3, -3
    contexts = np.zeros((1, 2, D), np.float32)
    contexts[0, 0, 0] = contexts[0, 1, 1] = 10  # products of 30 and -30 with the first, of 10 and 10 with the others
    index = build_ann(pool, "flat")
    (found,) = search(contexts, np.ones((1, 2), bool), [block(pool)], 2, mode="approximate", indexes=[index])
    assert found.ways == ("shortlist",)
    assert found.rows[0] == 0
    np.testing.assert_allclose(found.scores, [30, 10], rtol=1e-6)


class Listed:
    """An inner-product index that fills up its lists, as an inverted file whose lists are short."""

    def __init__(self, vectors: Floats, longest: int) -> None:
        self.vectors, self.longest = vectors, longest

    def search(self, queries: Floats, k: int) -> tuple[Floats, NDArray[np.int64]]:
        products = queries @ self.vectors.T
        positions = np.argsort(-products, axis=1)[:, :k]
        values = np.take_along_axis(products, positions, 1)
        values[:, self.longest :], positions[:, self.longest :] = -np.inf, -1
        return values, positions


class Offered(Best):
    def offer(self, block: Block, positions: NDArray[np.intp], *_: Any, **__: Any) -> None:
        self.positions = [*getattr(self, "positions", []), *positions.tolist()]


@pytest.mark.parametrize("longest", [2, 7, 99])
@pytest.mark.parametrize("m", [1, 3])
def test_a_shortlist_is_of_the_mean_the_vectors_and_the_offsets(
    m: int, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyrank.search.lists.SHORTLIST", 5)
    generator = np.random.default_rng(m)
    pool, contexts = generator.normal(size=(40, 6)).astype(np.float32), generator.normal(size=(m, 6)).astype(np.float32)
    alive, offsets = generator.random(40) < 0.6, generator.normal(size=40).astype(np.float32)
    n_listed = int(np.ceil(5 * 40 / alive.sum()))
    wanted: set[int] = {*np.argsort(-offsets)[:n_listed].tolist()}
    products = contexts @ pool.T
    wanted |= {*np.argsort(-products.mean(0))[: min(n_listed, longest)].tolist()}
    listed = [(-row[i], i) for row in products for i in np.argsort(-row)[: min(n_listed, longest)].tolist()]
    wanted |= {*list(dict.fromkeys(i for _, i in sorted(listed)))[:n_listed]}
    best = Offered(contexts, 2)
    found = shortlist(best, block(pool, alive=alive, offsets=offsets), Listed(pool, longest))
    assert (found, sorted(best.positions)) == (sum(alive[i] for i in wanted), sorted(wanted))
    many = Offered(contexts, 99)  # more than there are
    assert shortlist(many, block(pool, alive=alive), Listed(pool, 99)) == alive.sum()
    assert alive[many.positions].sum() == alive.sum()
    only = np.zeros(40, np.bool_)
    only[np.argsort(products.mean(0))[:3]] = True  # three rows, and the lists hold fewer of them than k
    few = Offered(contexts, 3)
    found = shortlist(few, block(pool, alive=only), Listed(pool, 1))
    assert (found < 3, hasattr(few, "positions")) == (True, False)


class ListedInTurn(Listed):
    """The number of positions that it is given, for one context after the other."""

    def __init__(self, vectors: Floats, lengths: list[int]) -> None:
        super().__init__(vectors, 0)
        self.lengths = lengths

    def search(self, queries: Floats, k: int) -> tuple[Floats, NDArray[np.int64]]:
        self.longest, *self.lengths = self.lengths
        return super().search(queries, k)


@pytest.mark.parametrize("seed", range(3))
def test_a_block_is_scanned_for_those_contexts_whose_list_is_too_short(seed: int) -> None:
    """A list needs k live candidates, or all if there are fewer; each of several contexts has its own lists."""
    rng = np.random.default_rng(seed)
    k, lengths = 5, [[0, 1, 4, 5, 9, 30, 5], [9, 5, 30, 4, 0, 1, 4], [2, 3, 0, 3, 2, 3, 1]]
    pools = [rng.normal(size=(n, D)).astype(np.float32) for n in (30, 30, 3)]
    blocks = [block(pool, 100 * number) for number, pool in enumerate(pools)]
    contexts, mask = rng.normal(size=(7, 1, D)).astype(np.float32), np.ones((7, 1), np.bool_)
    indexes: list[Any] = [ListedInTurn(pool, of_block) for pool, of_block in zip(pools, lengths, strict=True)]
    found = search(contexts, mask, blocks, k, mode="approximate", indexes=indexes, ways=["plain"])
    for i, one in enumerate(found):
        offered: dict[int, float] = {}
        scored, whole = 0, True
        for number, pool in enumerate(pools):
            products, listed = pool @ contexts[i, 0], lengths[number][i]
            is_enough = listed >= min(k, len(pool))
            rows = np.argsort(-products)[: listed if is_enough else None]
            offered |= {100 * number + int(row): float(products[row]) for row in rows}
            scored, whole = scored + len(rows), whole and len(rows) == len(pool)
        assert one.rows.tolist() == sorted(offered, key=offered.__getitem__, reverse=True)[:k]
        assert (one.exact, one.n_scored) == (whole, scored)
        assert {*one.ways} == {
            "shortlist" if of[i] >= min(k, len(pools[n])) else "plain" for n, of in enumerate(lengths)
        }


@pytest.mark.parametrize("way", ["bf16", "2 columns", "16 columns"])
@pytest.mark.parametrize(("most", "removed"), [(0, 0.0), (150, 0.0), (150, 0.3), (500, 0.0)])
def test_candidates_may_be_deferred_in_several_parts(
    most: int, removed: float, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyrank.search.best.WAITING", most)
    monkeypatch.setattr(sys.modules["polyrank.search.scan"], "ROWS", (64, 64))
    rng = np.random.default_rng(most)
    pool = np.sort(rng.normal(size=(1500, 1)), 0) * 0.01 + rng.normal(size=(1, D)) + rng.normal(size=(1500, D)) * 1e-4
    case = Case(rng.normal(size=(2, 17, D)).astype(np.float32), np.ones((2, 17), np.bool_), [], 9)
    alive = rng.random(1500) >= removed
    case.blocks += [block(pool.astype(np.float32)[part], part.start, alive[part] if removed else None)
                    for part in (slice(0, 900), slice(900, 1500))]  # fmt: skip
    same(search(case.contexts, case.mask, case.blocks, case.k, ways=[way]), case)


@pytest.mark.parametrize("backwards", [False, True])
def test_contexts_that_are_scanned_in_several_ways_share_a_block(backwards: bool) -> None:
    """Two contexts for each way, which scan together, however they are ordered."""
    machine = Machine(compiled=False, bf16=False)
    names = [name for name in WAYS if WAYS[name].usable(D, machine)][:: -1 if backwards else 1] * 2
    rng = np.random.default_rng(8)
    contexts = CONTEXTS["around a mean"](rng, len(names), 17)
    pool, offsets = rng.normal(size=(900, D)).astype(np.float32), rng.exponential(size=900).astype(np.float32)
    shared = block(pool, 5, rng.random(900) < 0.8, offsets)
    bests = [Best(vectors, 6) for vectors in contexts]
    with torch.inference_mode():
        scan([WAYS[name].query(best) for name, best in zip(names, bests, strict=True)], shared, machine)
    found = [best.result(exact=True) for best in bests]
    same(found, Case(contexts, np.ones(contexts.shape[:2], np.bool_), [shared], 6))
    assert [one.ways for one in found] == [(name,) for name in names]


@torch.inference_mode()
def test_threads_have_memory_of_their_own() -> None:
    """A buffer is used again in its thread, also for other shapes, and never by two threads."""
    kept = _buffers.take("products", 3, 4).fill_(1.0)
    others: list[torch.Tensor] = []

    def search_elsewhere() -> None:
        with torch.inference_mode():
            others.append(_buffers.take("products", 3, 4).fill_(2.0))

    for _ in range(2):
        thread = threading.Thread(target=search_elsewhere)
        thread.start()
        thread.join()
    assert (kept == 1.0).all()
    assert all((other == 2.0).all() for other in others)
    assert _buffers.take("products", 2, 6).data_ptr() == kept.data_ptr()
    for shape in ((5, 4), (3, 9), (1, 1)):
        assert _buffers.take("products", *shape).shape == shape
    assert _buffers.take("products", 3, 4, torch.bfloat16).dtype == torch.bfloat16
    assert _buffers.take("spare", 1, 1).data_ptr() != _buffers.take("products", 1, 1).data_ptr()


def test_a_score_with_its_offset_is_rounded_once() -> None:
    """Products of two numbers of 24 bits are exact in fp64."""
    rng = np.random.default_rng(3)
    context, pool, offsets = (rng.normal(size=(n, 1)).astype(np.float32) for n in (1, 4000, 4000))
    wanted = (context[0].astype(np.float64) * pool + offsets).astype(np.float32)[:, 0]
    twice = (context[0] * pool + offsets)[:, 0]
    assert (wanted != twice).any()
    (found,) = search(context[None], np.array([[True]]), [block(pool, offsets=offsets[:, 0])], 4000)
    np.testing.assert_array_equal(found.scores, np.sort(wanted)[::-1])
    np.testing.assert_array_equal(wanted[found.rows], found.scores)


def test_each_prior_has_its_own_offsets() -> None:
    generator = np.random.default_rng(1)
    pool, context = generator.normal(size=(30, 4)).astype(np.float32), generator.normal(size=(2, 4)).astype(np.float32)
    one, real = block(pool, 7), np.ones((1, 2), np.bool_)
    for prior in (0.5, 2.0, 0.5):
        query = NearestSearch(context[None], real, 5, prior=prior)
        (found,) = query.of_blocks([one], [None], lambda rows: rows.astype(np.float64))
        wanted = score_rows(context, real[0], pool) + prior_of(one.rows.astype(np.float64), prior)
        assert found.rows.tolist() == (7 + np.argsort(-wanted)[:5]).tolist()
        np.testing.assert_allclose(found.scores, np.sort(wanted)[::-1][:5], rtol=1e-5)
    # the parts of an index: one without rows, one with an inner-product index, and one that is scanned
    parts = [block(pool[:0]), block(pool, 7), block(pool[::-1].copy(), 50)]
    rows = np.concatenate([part.rows for part in parts])
    scores = np.concatenate([score_rows(context, real[0], part.vectors) for part in parts])
    for prior, mode in ((0.5, "approximate"), (2.0, "exact"), (0.0, "approximate")):
        listed: list[Any] = [None, Listed(pool, 9), None]
        both = NearestSearch(context[None], real, 8, mode, prior)  # type: ignore[arg-type]
        (found,) = both.of_blocks(parts, listed, lambda rows: rows.astype(np.float64) % 11)
        wanted = (scores + prior_of(rows.astype(np.float64) % 11, prior)).astype(np.float32)
        best = np.lexsort((rows, -wanted))[:8]
        is_exact = mode == "exact" or prior > 0  # all offsets of so few are listed
        assert (found.exact, found.rows[0]) == (is_exact, rows[best[0]])
        if is_exact:
            assert found.rows.tolist() == rows[best].tolist()
        assert {*found.ways} == ({"plain", "shortlist"} if mode == "approximate" else {"plain"})
        values = dict(zip(rows.tolist(), wanted.tolist(), strict=True))
        np.testing.assert_allclose(found.scores, [values[row] for row in found.rows.tolist()], rtol=1e-5)


def test_scores_in_several_parts_have_their_own_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrank.search.scoring.ROWS_AT_A_TIME", 3)
    generator = np.random.default_rng(1)
    pool, offsets = generator.normal(size=(10, 4)).astype(np.float32), generator.normal(size=10).astype(np.float32)
    contexts = torch.from_numpy(generator.normal(size=(2, 4)))
    alone = [precise_scores(contexts, pool[i : i + 1], offsets[i : i + 1])[0] for i in range(10)]
    np.testing.assert_array_equal(precise_scores(contexts, pool, offsets), alone)


@pytest.mark.parametrize(("m", "dimension"), [(1, 4), (3, 5), (6, 3), (30, 40), (5, 1)])
def test_columns_are_orthonormal_and_at_most_as_many_as_directions(m: int, dimension: int) -> None:
    subspace = find_subspace(torch.randn(m, dimension, generator=torch.Generator().manual_seed(m)))
    assert len(subspace.columns) == min(m, dimension, 16)
    assert subspace.skew < 1e-5


def test_an_approximate_index_that_returns_all_proves_all() -> None:
    case = trained_like(60)
    index = build_ann(case.blocks[0].vectors, "hnsw")
    found = search(case.contexts, case.mask, case.blocks, case.k, mode="approximate", indexes=[index])
    same(found, case)
    assert [one.n_scored for one in found] == [60] * 3


def test_a_result_does_not_depend_on_other_contexts() -> None:
    rng = np.random.default_rng(2)
    pool = rng.standard_normal((5000, D), np.float32)
    contexts, mask = rng.standard_normal((40, 20, D), np.float32), rng.random((40, 20)) < 0.8
    mask[:, 3] = True
    together = search(contexts, mask, [block(pool)], 7)
    split = search(contexts, mask, [block(pool[:100]), block(pool[100:].copy(), 100)], 7, ways=["plain"])
    alone = [search(contexts[i : i + 1], mask[i : i + 1], [block(pool)], 7)[0] for i in range(40)]
    for a, b, c in zip(together, split, alone, strict=True):
        assert a.rows.tolist() == b.rows.tolist() == c.rows.tolist()
        assert a.scores.tolist() == b.scores.tolist() == c.scores.tolist()


def test_read_only_memory_maps_are_searched_in_place(tmp_path: Any) -> None:
    rng = np.random.default_rng(3)
    pool, contexts = rng.standard_normal((6000, D), np.float32), rng.standard_normal((1, 9, D), np.float32)
    np.save(tmp_path / "vectors.npy", pool)
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    case = Case(contexts, np.ones((1, 9), bool), [block(mapped)], 5)
    same(search(contexts, case.mask, case.blocks, 5), case)
    np.testing.assert_array_equal(mapped, pool)


def test_a_tensor_of_read_only_memory_gives_no_warning() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    array.flags.writeable = False
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # otherwise torch warns only once per process
    try:
        found = as_tensor(array)
    finally:
        torch.set_warn_always(before)
    assert found.data_ptr() == array.ctypes.data


def test_stored_int8_is_searched_in_place() -> None:
    """Without a copy in memory, and with the same results as for the decoded numbers."""
    rng = np.random.default_rng(5)
    stored = pack(rng.standard_normal((20_000, 256), np.float32), "int8")
    assert isinstance(stored, PackedVectors)
    quantized = kernels.quantized_of(stored)
    assert quantized.values.base is stored.values or quantized.values is stored.values
    assert quantized.scales is stored.scales
    contexts = rng.standard_normal((1, 1, 256), np.float32) + 0.05 * rng.standard_normal((2, 16, 256), np.float32)
    mask = np.ones((2, 16), np.bool_)
    plain = search(contexts, mask, [block(stored[:])], 10, ways=["plain"])
    for compiled in (True, False):
        for one, other in zip(search(contexts, mask, [block(stored)], 10, compiled=compiled), plain, strict=True):
            np.testing.assert_array_equal(one.rows, other.rows)
            np.testing.assert_array_equal(one.scores, other.scores)
            assert one.n_scored < 10_000 or not compiled or kernels.package() is None


def test_wide_products_do_not_produce_denormal_numbers() -> None:
    products = torch.tensor([[0.0, -79.0, -90.0, -1e30]])
    spare = torch.empty_like(products)
    mean_of(products.clone(), spare)
    assert spare.abs().max() == 0.0 or spare[spare != 0].abs().min() >= torch.finfo(torch.float32).tiny


def test_few_products_in_int8_are_enough_for_one_vector() -> None:
    rng = np.random.default_rng(8)
    pool, contexts = rng.standard_normal((20_000, 50), np.float32), rng.standard_normal((2, 1, 50), np.float32)
    case = Case(contexts, np.ones((2, 1), bool), [block(pool)], 10)
    found = search(contexts, case.mask, case.blocks, 10)
    same(found, case)
    if kernels.package() is not None:
        assert max(one.n_scored for one in found) < 2000


@needs_kernels
@pytest.mark.parametrize("form", range(1, len(kernels.FORMS) + 1))
@pytest.mark.parametrize(("n", "q", "d"), [(1, 1, 1), (9, 3, 31), (13, 17, 96), (2100, 8, 70), (65, 40, 256)])
def test_compiled_products_equal_sums_of_integers(form: int, n: int, q: int, d: int) -> None:
    rng = np.random.default_rng(n)
    vectors, columns = rng.standard_normal((n, d), np.float32), rng.standard_normal((q, d), np.float32)
    vectors[0], columns[0] = 1e3, -1e3  # the largest sums
    rows, joined = kernels.quantized_of(vectors), kernels.join([kernels.to_int16(torch.from_numpy(columns))])
    out = torch.full((n, q), torch.nan)
    try:
        kernels.products(rows, slice(0, n), joined, out, form)
    except RuntimeError:
        pytest.skip("this machine does not support this form")
    sums = rows.values.astype(np.int64) @ joined.values.astype(np.int64).T
    np.testing.assert_allclose(out.numpy(), sums * rows.scales[:, None].astype(np.float64) * joined.scales, rtol=3e-7)
    kept = rows.values[:, :d].astype(np.float64) * rows.scales[:, None]
    lost = np.linalg.norm(vectors - kept, axis=1)
    assert (rows.row_errors >= lost).all()
    assert (rows.row_errors <= lost * 1.001 + 1e-6 * np.linalg.norm(vectors, axis=1) + 1e-18).all()


@needs_kernels
@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize(("n", "d"), [(1, 64), (31, 96), (700, 768), (2050, 100)])
def test_bounds_in_tiles_follow_from_the_products(bits: kernels.Bits, n: int, d: int) -> None:
    """For several contexts at once, with numbers of vectors that do not fill a tile."""
    if not kernels.in_tiles(bits, d):
        pytest.skip("bf16 rows need AMX and whole tiles")
    rng = np.random.default_rng(n)
    vectors = torch.from_numpy(rng.standard_normal((n, d), np.float32))
    contexts = [torch.from_numpy(rng.standard_normal((m, d), np.float32)) for m in (1, 17, 40)]
    rows: kernels.Quantized | torch.Tensor = vectors
    there, columns = vectors.double(), [context.double() for context in contexts]
    given: list[torch.Tensor | kernels.Int16Columns] = list(contexts)
    near = kernels.ROUNDING_OF_TILES
    if bits == 8:
        rows, int16 = kernels.quantized_of(vectors.numpy()), [kernels.to_int16(context) for context in contexts]
        there = torch.from_numpy(rows.values[:, :d] * rows.scales[:, None].astype(np.float64))
        given, columns, near = list(int16), [c.as_doubles(d) for c in int16], 2.0**-22
    elif bits == 16:
        rows, near = vectors.bfloat16(), 0.0
        there, columns = rows.double(), [context.bfloat16().double() for context in contexts]
    norms, lost = norms_of(vectors.numpy()), np.linspace(0.0, 0.1, n, dtype=np.float32)
    limits = [(1.5, 1e-3, steepness(len(c)), rounding_of_mean(len(c)), 4.0 * 2.0**-24) for c in contexts]
    found = kernels.bounds_in_tiles(rows, kernels.to_tiles(given, bits), norms, None if bits == 32 else lost, limits)
    for column, bounds in zip(columns, found, strict=True):
        m, products = len(column), there @ column.T
        off = (near + (d + 8) * 2.0**-24) * there.norm(dim=1) * column.norm(dim=1).max()  # error of the products
        mean, best, spread = moments_of(products.clone())
        error = 1e-3 * torch.from_numpy(norms) + (0.0 if bits == 32 else 1.5 * torch.from_numpy(lost))
        theirs = upper_bounds(mean, best, error.double(), None if bits == 32 else spread, m)
        slack = 3.0 * off * steepness(m) + 1e-5 * (1.0 + theirs.abs())
        assert ((torch.from_numpy(bounds) - theirs).abs() <= slack).all()


@needs_kernels
def test_infinite_numbers_are_refused_in_tiles_too() -> None:
    pool = np.random.default_rng(0).standard_normal((9000, 64), np.float32)
    pool[8000, 3] = np.inf
    contexts = np.random.default_rng(1).standard_normal((1, 16, 64), np.float32)
    for way in ("plain tiles", "int8 tiles", *(["bf16 tiles"] if kernels.has_amx() else [])):
        with pytest.raises(ArtifactError, match="not finite"):
            search(contexts, np.ones((1, 16), bool), [block(pool)], 5, ways=[way])


@needs_kernels
@pytest.mark.parametrize("m", [1, 2, 15, 16, 17, 360])
@pytest.mark.parametrize("wide", [1e-3, 1.0, 50.0, 1e30])
def test_compiled_means_equal_the_means(m: int, wide: float) -> None:
    products = torch.from_numpy(wide * np.random.default_rng(m).standard_normal((1500, m + 3))).float()[:, 1 : m + 1]
    mean, best = kernels.means(products)
    theirs, top = mean_of(products.double(), torch.empty(1500, m, dtype=torch.float64))
    assert (best == products.amax(1)).all()
    error = rounding_of_mean(m) + 2.0**-23 * top.abs()
    assert ((mean - theirs).abs() <= error).all()


@needs_kernels
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_compiled_means_propagate_nan(value: float) -> None:
    for place in (0, 16, 19):
        products = torch.ones(3, 20)
        products[1, place] = value
        mean, _ = kernels.means(products)
        assert mean.isnan().tolist() == [False, True, False]


def test_compiled_loops_of_another_version_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polyrank_kernels", None)
    try:
        for version in (None, 1, kernels.API - 1, kernels.API + 1, kernels.API):  # the first had no API
            folder = tmp_path / str(version)
            folder.mkdir()
            (folder / "polyrank_kernels.py").write_text("" if version is None else f"API = {version}\n", "utf-8")
            monkeypatch.delitem(sys.modules, "polyrank_kernels")
            monkeypatch.syspath_prepend(folder)
            kernels.package.cache_clear()
            if version == kernels.API:
                assert kernels.package().__file__ == str(folder / "polyrank_kernels.py")
                continue
            with pytest.raises(ConfigError, match=f"version {version or 1} of .*install the polyrank-kernels released"):
                kernels.package()
    finally:
        kernels.package.cache_clear()


def test_bad_input() -> None:
    good, mask, pool = np.ones((1, 2, D), np.float32), np.ones((1, 2), bool), block(np.ones((5, D), np.float32))
    with pytest.raises(UsageError, match="k is 0"):
        search(good, mask, [pool], 0)
    with pytest.raises(UsageError, match="mode 'slow' is unknown"):
        search(good, mask, [pool], 1, mode="slow")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"not \[B, M, D\]"):
        search(good, mask[0], [pool], 1)
    with pytest.raises(UsageError, match="the encoder that made the index"):
        search(good[:, :, :3], mask, [pool], 1)
    with pytest.raises(UsageError, match="has 0 vectors"):
        search(good, ~mask, [pool], 1)
    with pytest.raises(UsageError, match="not finite"):
        search(good * np.float32(np.nan), mask, [pool], 1)
    partly = good.copy()
    partly[0, 1, 2] = np.inf
    with pytest.raises(UsageError, match="a context vector is not finite"):
        search(partly, mask, [pool], 1)
    with pytest.raises(UsageError, match="2 indexes for 1 blocks"):
        search(good, mask, [pool], 1, mode="approximate", indexes=[None, None])
    for ways in ([], ["slow"]):
        with pytest.raises(UsageError, match=r"supports none of the ways .*; use some of plain"):
            search(good, mask, [pool], 1, ways=ways)
    for value in (np.nan, np.inf, -np.inf):
        damaged = np.ones((9000, D), np.float32)
        damaged[7777, 1] = value
        for ways, compiled in ((["plain"], True), (["plain"], False), (list(WAYS), True), (list(WAYS), False)):
            with pytest.raises(ArtifactError, match="not finite"):
                search(good, mask, [block(damaged)], 1, ways=ways, compiled=compiled)
