"""Adversarial tests of bounds: a bound that ignores one source of error would lose the right answer.

Scores and errors are computed in extended precision from the formulas; fp32 sums add one number after the other, the
order with the largest rounding error.
"""

from dataclasses import replace
from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from polyrank.index.protocol import Block
from polyrank.search import kernels
from polyrank.search.best import FIRST, Best
from polyrank.search.blocks import bf16_of, norms_of
from polyrank.search.query import Machine, Way
from polyrank.search.scan import bounds_in_bf16, scan
from polyrank.search.scoring import (
    close_bounds,
    mean_of,
    moments_of,
    rounding_of_mean,
    rounding_of_product,
    steepness,
    upper_bounds,
)
from polyrank.search.subspace import Subspace, find_subspace
from polyrank.search.ways import WAYS
from polyrank.storage.quantized import pack as pack_vectors

Floats = NDArray[np.float32]
Long = NDArray[np.longdouble]
D = 64
U = 2.0**-24  # rounding error of one fp32 operation
needs_kernels = pytest.mark.skipif(kernels.package() is None, reason="polyrank-kernels is not installed")
COMPILED = [False, pytest.param(True, marks=needs_kernels)]
SCANS = [name for name in WAYS if name != "bf16 tiles"]  # AMX: see test_kernels
COMPILED_SCANS = [name for name in SCANS if WAYS[name].bits == 8 or name.endswith("tiles")]


def block(vectors: Any, alive: NDArray[np.bool_] | None = None) -> Any:
    return Block(vectors, np.arange(len(vectors)), alive)


def long_scores(contexts: Any, vectors: Any) -> Long:
    """Scores ``[n]`` from the formula, in extended precision."""
    products = np.asarray(vectors, np.longdouble) @ np.asarray(contexts, np.longdouble).T
    return mean_in_full(products)


def mean_in_full(products: Any) -> Long:
    products = np.asarray(products, np.longdouble)
    weights = np.exp(products - products.max(1, keepdims=True))
    return (weights * products).sum(1) / weights.sum(1)


def long_norms(vectors: Any) -> Long:
    return np.sqrt((np.asarray(vectors, np.longdouble) ** 2).sum(1))


def one_after_the_other(vectors: Floats, columns: Floats) -> Floats:
    """Products ``[n, q]`` in fp32, each number added to the sum so far."""
    terms = vectors[:, None, :] * columns[None]
    return np.ascontiguousarray(np.cumsum(terms, axis=2, dtype=np.float32)[:, :, -1])


def steps(d: int, part: float = 0.99) -> Floats:
    """One, followed by numbers whose squares are each lost when added to one."""
    row = np.full(d, np.sqrt(part * U), np.float32)
    row[0] = 1.0
    return row


def adverse(d: int = D) -> Floats:
    """Vectors with one-sided rounding, very different numbers, or tiny numbers."""
    rng = np.random.default_rng(d)
    signs = rng.choice([-1.0, 1.0], d)
    rows = [
        steps(d),
        -3.0 * steps(d),
        np.ones(d),
        signs,
        np.full(d, 1.0 + 2.0**-8 - 2.0**-20),
        signs * np.where(np.arange(d) % 2, 1e3, 1e-3),
        10.0 ** np.linspace(-12, 6, d),
        np.r_[127.0, np.arange(d - 1) % 100 + 0.4999],
        np.r_[-127.0, -(np.arange(d - 1) % 100) - 0.4999],
        np.full(d, 1e-22),
        np.r_[1e-20, np.full(d - 1, 0.4999e-20)],
        np.full(d, 1e9),
        np.r_[1.0, np.zeros(d - 1)],
        np.zeros(d),
        *rng.standard_normal((20, d)),
    ]
    return np.array(rows).astype(np.float32)


# ---- data derived from candidates and contexts ----


@pytest.mark.parametrize("d", [1, 3, D, 1000, 5000])
def test_norms_are_tight_upper_bounds(d: int) -> None:
    vectors = adverse(d)
    truth, norms = long_norms(vectors), norms_of(vectors).astype(np.longdouble)
    assert (norms >= truth).all()
    assert (norms >= 1e-18).all()
    assert (norms <= truth * (1.0 + 4.0 * (d + 8) * U) + 1.1e-18).all()


def test_norms_of_many_rows_are_each_their_own() -> None:
    """Equal to those of a few rows at a time."""
    vectors = np.zeros((9000, 2), np.float32)
    vectors[:, 1] = np.arange(9000)
    np.testing.assert_allclose(norms_of(vectors), np.arange(9000), rtol=1e-5, atol=1e-17)


def rounded_to_codes(n: int) -> Floats:
    """Vectors that are codes times a scale, rounded: in fp32 the coding error seems to be zero."""
    rng = np.random.default_rng(n)
    codes = rng.integers(-127, 128, (n, D)).astype(np.float32)
    codes[:, 0] = 127.0
    return codes * rng.random((n, 1), np.float32)


def test_the_error_of_int8_is_never_understated() -> None:
    for vectors in (adverse(), rounded_to_codes(300), np.tile(adverse(70), (200, 1))):
        quantized, d = kernels.quantized_of(vectors), vectors.shape[1]
        kept = quantized.values[:, :d].astype(np.longdouble) * quantized.scales[:, None]
        truth, size = long_norms(vectors - kept), long_norms(vectors)
        assert (quantized.row_errors >= truth).all()
        assert (quantized.row_errors <= truth * 1.001 + 6 * U * size + 1e-17).all()
        assert (truth <= np.abs(vectors).max(1) / 254.0 * 1.0001 * np.sqrt(d) + 1e-28).all()  # nearest codes
        assert (quantized.values[:, d:] == 0).all()
        assert quantized.values.shape[1] % 64 == 0


def test_stored_codes_stay_within_their_stated_error() -> None:
    vectors = rounded_to_codes(50)
    stored = pack_vectors(vectors, "int8")
    quantized = kernels.quantized_of(stored)
    kept = quantized.values.astype(np.longdouble) * quantized.scales[:, None]
    assert (quantized.row_errors >= long_norms(stored[:] - kept)).all()
    assert (quantized.row_errors > 0.0).all()
    assert (quantized.row_errors <= 1e-6 * long_norms(vectors)).all()


def test_the_error_of_bf16_is_never_understated() -> None:
    for vectors in (adverse(), np.tile(adverse(), (200, 1))):
        rounded = bf16_of(vectors)
        truth, size = long_norms(vectors - rounded.values.float().numpy().astype(np.longdouble)), long_norms(vectors)
        assert (rounded.row_errors >= truth).all()
        assert (rounded.row_errors <= truth * 1.001 + 6 * U * size + 1e-17).all()
        assert (truth <= 2.0**-8 * size).all()


def test_stored_bf16_has_no_error() -> None:
    stored = pack_vectors(adverse(), "bf16")
    rounded = bf16_of(stored)
    np.testing.assert_array_equal(rounded.values.float().numpy(), stored[:])
    assert (rounded.row_errors == 0.0).all()


@pytest.mark.parametrize("d", [3, D, 600, 8192])
def test_the_error_of_a_context_is_never_understated(d: int) -> None:
    contexts = adverse(d)
    for context in (*contexts[:, None], contexts):
        best = Best(context, 1)
        query = WAYS["bf16"].query(best)
        assert query.bf16 is not None
        rest = context - query.bf16.float().numpy().astype(np.longdouble)
        assert query.context_error >= long_norms(rest).max()
        assert query.context_error <= long_norms(rest).max() * 1.001 + 6 * U * best.norm + 2e-18
        query = WAYS["int8"].query(best)
        assert query.int16 is not None
        int16 = query.int16.values[:, :d].astype(np.longdouble) * query.int16.scales[:, None]
        truth = long_norms(context - int16).max()
        assert truth * (1.0 - 1e-12) <= query.context_error <= truth * 1.00001 + 1e-30
        # the resolution of int16 with sums in int32
        finest = min(32638, (2**31 - 1) // (127 * d))
        assert truth <= 1.02 * np.sqrt(d) * np.abs(context).max() / (2 * finest - 4) + 1e-28
        assert np.abs(query.int16.values.astype(np.int64)).sum(1).max() * 127 < 2**31
        assert np.isclose(best.norm, long_norms(context).max().astype(float), rtol=1e-12)


def test_columns_in_int16_use_its_whole_range() -> None:
    """32638 is the largest even number that fits, and the largest of long columns is half of what sums allow."""
    for d, largest in ((3, 32638), (64, 32638), (8192, (2**31 - 1) // (127 * 8192) // 2 * 2)):
        columns = kernels.to_int16(torch.full((1, d), -0.7))
        assert (columns.values[:, :d] == -largest).all()
        assert columns.values.shape == (1, -(-d // 64) * 64)
        np.testing.assert_allclose(columns.as_doubles(d).numpy(), -0.7, rtol=1e-6)


@pytest.mark.parametrize("d", [2, 17, D, 500])
def test_a_product_in_fp32_is_off_by_less_than_its_rounding_in_any_order(d: int) -> None:
    """The error comes close to the bound if each number is lost when added."""
    vectors = adverse(d)
    found = one_after_the_other(vectors, vectors)
    exact = vectors.astype(np.longdouble) @ vectors.astype(np.longdouble).T
    allowed = rounding_of_product(d) * long_norms(vectors)[:, None] * long_norms(vectors)
    assert (np.abs(found - exact) <= allowed + 1e-40).all()
    assert abs(found[0, 0] - exact[0, 0]) >= 0.9 * (d - 1) * U
    assert rounding_of_product(d) <= 1.01 * (d + 8) * U


@pytest.mark.parametrize("m", [1, 2, 7, 60, 900])
def test_a_mean_in_fp32_is_off_by_less_than_its_rounding_in_any_order(m: int) -> None:
    rng = np.random.default_rng(m)
    products = np.stack(
        [
            np.r_[0.0, np.full(m - 1, -log(max(m, 2)) - 0.01)],
            np.full(m, 0.1),
            np.r_[-5.0, np.full(m - 1, -5.0 - 16.6)],
            np.linspace(-8.0, 0.0, m),
            *(30.0 * rng.standard_normal((20, m))),
        ]
    ).astype(np.float32)
    exact = mean_in_full(products)
    found, best = mean_of(torch.from_numpy(products.copy()))
    below = products - products.max(1, keepdims=True)
    weights = np.exp(below)
    total, weighted = (np.cumsum(part, axis=1, dtype=np.float32)[:, -1] for part in (weights, weights * below))
    for mean in (found.numpy(), weighted / total + products.max(1)):
        off = np.abs(mean - exact)
        assert (off <= rounding_of_mean(m) + U * np.abs(exact) * 1.01).all()
    assert (best.numpy() == products.max(1)).all()
    assert rounding_of_mean(m) <= 5.0 * (m + 16) * U * (1.0 + log(m))
    assert rounding_of_mean(1) == 0.0


# ---- errors of scores ----


def test_the_bound_is_the_least_of_three() -> None:
    """By hand: M = 100, products whose mean is 1 and best 5, off by 0.1; then by 0.01, 0.5 and 3 with other spreads."""
    rounding = rounding_of_mean(100)

    def bound(mean: float, best: float, error: float, spread: float | None) -> float:
        tensors = [torch.tensor([x], dtype=torch.float64) for x in (mean, best, error)]
        given = None if spread is None else torch.tensor([spread], dtype=torch.float64)
        return float(upper_bounds(*tensors, given, 100)[0]) - rounding - 4.0 * U * abs(best)

    near = 1.0 + 0.1 * (1.0 + exp(0.1) * (0.5 * 1.001 + 0.1))
    assert bound(1.0, 5.0, 0.1, 0.5) == pytest.approx(near, abs=1e-12)
    assert bound(1.0, 5.0, 0.1, None) == pytest.approx(1.0 + 0.1 * (1.0 + 2.0 * log(100)), abs=1e-12)
    assert bound(1.0, 5.0, 0.1, 50.0) == pytest.approx(1.0 + 0.1 * (1.0 + 2.0 * log(100)), abs=1e-12)
    assert bound(4.99, 5.0, 0.1, 0.5) == pytest.approx(5.1, abs=1e-12)
    assert bound(4.99, 5.0, 7.0, 0.0) == pytest.approx(12.0, abs=1e-12)
    assert bound(-9.0, -5.0, 0.0, 1.0) == pytest.approx(-9.0, abs=1e-12)
    steep = 1.0 + 2.0 * log(100)  # too far from these products for the local bound
    assert bound(0.0, 100.0, 4.0, 0.0) == pytest.approx(4.0 * steep, abs=1e-12)
    assert steepness(100) == pytest.approx(steep, abs=1e-12)


@pytest.mark.parametrize("moved", [1e-3, 0.05, 0.4, 1.5, 3.9, 6.0])
def test_worst_case_errors_of_products_stay_below_the_bound(moved: float) -> None:
    """Each product moves up or down by ``moved``, in the direction that increases the score."""
    rng = np.random.default_rng(1)
    for m in (2, 3, 40):
        products = np.concatenate([w * rng.standard_normal((60, m)) for w in (1e-3, 0.3, 1.0, 4.0)])
        products = np.concatenate([products, np.r_[0.0, np.full(m - 1, -log(m) - 1.0)][None]])
        signs = np.where(products == products.max(1, keepdims=True), 1.0, -1.0)
        for _ in range(15):
            other = products + moved * signs
            score = mean_in_full(other).astype(float)
            weights = np.exp(other - other.max(1, keepdims=True))
            slope = weights * (1.0 + other - score[:, None])
            signs = np.where(slope >= 0.0, 1.0, -1.0)
            mean, best, spread = moments_of(torch.from_numpy(products.copy()))
            error = torch.full_like(mean, moved)
            for given in (spread, None):
                assert (score <= upper_bounds(mean, best, error, given, m).numpy()).all()


# ---- a subspace's bounds ----


def spread_context(m: int = 12, d: int = D, inside: int = 3, seed: int = 0) -> Floats:
    """Vectors around a mean, mostly in a few directions."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    scales = np.r_[3.0, 1.0, 0.5, np.full(d - 3, 0.02)][:, None]
    mixture = rng.standard_normal((m, d)) @ (basis * scales.T).T
    return (2.0 * basis[:, 5] + mixture).astype(np.float32)


def extreme_candidates(subspace: Subspace, contexts: Floats) -> Floats:
    """Candidates for which one part of the bound dominates: outside the subspace, along mixtures, inside, far, near."""
    columns, mixing = subspace.columns.double().numpy(), subspace.mixing.double().numpy()
    left_out = contexts.astype(np.float64) - mixing @ columns
    centre, weights = subspace.centre.double().numpy(), subspace.weights.double().numpy()
    along = ((mixing - centre) / weights) @ columns
    rows = [part * scale for part in (left_out, along, contexts, columns) for scale in (1e-3, 1.0, 30.0, 1e4)]
    largest = np.linalg.norm(left_out, axis=1).max()
    rows += [left_out / max(largest, 1e-30) * 1e5, np.tile(steps(contexts.shape[1]), (2, 1)) * 7.0]
    both = (left_out / max(largest, 1e-30))[:, None] + along[None] / np.linalg.norm(along, axis=1).max()
    rows += [both.reshape(-1, contexts.shape[1]) * 50.0]
    return np.concatenate(rows).astype(np.float32)


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize("int16", [False, True])
@pytest.mark.parametrize("n_columns", [1, 2, 4, 16])
def test_no_bound_of_a_subspace_is_below_a_score(compiled: bool, int16: bool, n_columns: int) -> None:
    """And the bound is close for candidates that attain it."""
    contexts = spread_context()
    subspace = find_subspace(torch.from_numpy(contexts), int16=int16).narrow(n_columns)
    vectors = extreme_candidates(subspace, contexts)
    truth = long_scores(contexts, vectors)
    norms = torch.from_numpy(norms_of(vectors))
    none = torch.zeros_like(norms)
    exact = (vectors.astype(np.float64) @ subspace.columns.double().numpy().T).astype(np.float32)
    for products in (exact, one_after_the_other(vectors, subspace.columns.numpy())):
        given = torch.from_numpy(products)
        coarse, error = subspace.coarse_bounds(given, norms, none if compiled else None, compiled=compiled)
        fine = subspace.fine_bounds(given.clone(), error, compiled=compiled)
        for bounds in (coarse, fine):
            assert (bounds.numpy() >= truth - 2.0 * U * np.abs(truth)).all()
        if n_columns < 16:
            loose = (coarse.numpy() - truth) / long_norms(vectors)
            assert loose.min() <= 2e-3  # a candidate attains the bound


@pytest.mark.parametrize("compiled", COMPILED)
def test_the_bounds_of_a_subspace_allow_for_sums_that_lose_every_number(compiled: bool) -> None:
    """The only column is the context's direction, which the candidate follows: its computed product is too small."""
    context = steps(256)[None]
    subspace = find_subspace(torch.from_numpy(context))
    products = torch.from_numpy(one_after_the_other(context, subspace.columns.numpy()))
    norms = torch.from_numpy(norms_of(context))
    truth = float(long_scores(context, context)[0])
    assert float(products[0, 0] * subspace.mixing[0, 0]) < truth - 100 * U
    coarse, error = subspace.coarse_bounds(products, norms, torch.zeros(1) if compiled else None, compiled=compiled)
    fine = subspace.fine_bounds(products, error, compiled=compiled)
    for bound in (float(coarse), float(fine)):
        assert truth <= bound <= truth + 1e-3


@pytest.mark.parametrize("int16", [False, True])
@pytest.mark.parametrize("n_columns", [1, 2, 4, 16])
def test_the_stated_figures_of_a_subspace_are_true(int16: bool, n_columns: int) -> None:
    contexts = spread_context()
    subspace = find_subspace(torch.from_numpy(contexts), int16=int16).narrow(n_columns)
    columns, mixing = subspace.columns.numpy().astype(np.longdouble), subspace.mixing.numpy().astype(np.longdouble)
    if int16:
        assert subspace.int16 is not None
        columns = subspace.int16.as_doubles(D).numpy().astype(np.longdouble)
        assert len(subspace.int16.values) == len(subspace.int16.scales) == len(subspace.columns)
    left_out = long_norms(contexts - mixing @ columns).max()
    assert left_out <= subspace.residual <= 1.001 * left_out + 1e-6
    gram = columns @ columns.T
    assert np.sqrt(((gram - np.eye(len(gram))) ** 2).sum()) <= subspace.skew * 1.001 + 1e-12
    assert subspace.skew <= (1e-3 if int16 else 1e-6)
    np.testing.assert_allclose(subspace.centre.numpy(), mixing.mean(0).astype(float), rtol=1e-5, atol=1e-6)
    around = (mixing - subspace.centre.numpy()) / np.sqrt(subspace.weights.numpy().astype(np.longdouble))
    assert long_norms(around).max() <= subspace.radius <= 1.0001 * long_norms(around).max() + 1e-9


def test_columns_are_the_mean_and_the_main_directions() -> None:
    """No other columns leave a smaller rest, by the singular values of the centred vectors."""
    for m in (12, 200):
        contexts = spread_context(m, seed=m).astype(np.float64)
        subspace = find_subspace(torch.from_numpy(contexts.astype(np.float32)))
        mean = contexts.mean(0)
        direction = mean / np.linalg.norm(mean)
        assert abs(float(subspace.columns[0].double().numpy() @ direction)) >= 1.0 - 1e-7
        around = contexts - np.outer(contexts @ direction, direction)
        values = np.linalg.svd(around, compute_uv=False)
        for q in (2, 4):
            narrow = subspace.narrow(q)
            rest = contexts - narrow.mixing.double().numpy() @ narrow.columns.double().numpy()
            assert (rest**2).sum() <= 1.1 * (values[q - 1 :] ** 2).sum()
        assert len(subspace.columns) == min(16, m, D)


def test_a_zero_mean_has_a_direction_too() -> None:
    contexts = np.concatenate([np.eye(4, D), -np.eye(4, D)]).astype(np.float32)
    subspace = find_subspace(torch.from_numpy(contexts))
    assert subspace.residual < 1e-5
    np.testing.assert_allclose((subspace.mixing @ subspace.columns).numpy(), contexts, atol=1e-5)


@pytest.mark.parametrize("compiled", COMPILED)
def test_the_compiled_coarse_bound_equals_the_formula(compiled: bool) -> None:
    """Including the candidates' coding error, in fp64."""
    contexts = spread_context()
    subspace = find_subspace(torch.from_numpy(contexts)).narrow(4)
    subspace = replace(subspace, rounding=0.01)
    rng = np.random.default_rng(0)
    products = rng.standard_normal((300, 4)).astype(np.float32)
    norms, lost = (3.0 + rng.random(300)).astype(np.float32), (0.1 + rng.random(300)).astype(np.float32)
    products[5], norms[5], lost[5] = 9.0, 1.0, 0.25
    given = torch.from_numpy(products), torch.from_numpy(norms), torch.from_numpy(lost)
    bounds, errors = subspace.coarse_bounds(*given, 2.5, compiled=compiled)
    z, norm = products.astype(np.float64), norms.astype(np.float64) + lost
    slack = 1.0 + 6.0 * 2.0 * rounding_of_product(D) + 2.0 * subspace.skew
    outside = np.sqrt(np.maximum(norm**2 * slack - (z**2).sum(1), 0.0))
    error = subspace.residual * outside + norm * 0.01 + 2.5 * lost.astype(np.float64)
    np.testing.assert_allclose(errors.numpy(), error, rtol=3e-6)
    weighted = np.sqrt((z**2) @ subspace.weights.double().numpy())
    truth = z @ subspace.centre.double().numpy() + subspace.radius * weighted + error
    np.testing.assert_allclose(bounds.numpy(), truth, rtol=1e-5)


@needs_kernels
@pytest.mark.parametrize("n_columns", [1, 4])
def test_a_subspace_over_codes_bounds_their_error(n_columns: int) -> None:
    """The candidate is its codes plus a rest along a context's vector."""
    contexts = spread_context()
    subspace = find_subspace(torch.from_numpy(contexts), int16=True).narrow(n_columns)
    assert subspace.int16 is not None
    rng = np.random.default_rng(0)
    kept = 3.0 * rng.standard_normal((40, D))
    rest = 0.3 * contexts[rng.integers(12, size=40)].astype(np.float64)
    whole = (kept + rest).astype(np.float32)
    products = torch.from_numpy((kept @ subspace.int16.as_doubles(D).numpy().T).astype(np.float32))
    lost = (long_norms(whole - kept) * (1 + 1e-6)).astype(np.float32)
    size = float(long_norms(contexts).max())
    given = torch.from_numpy(norms_of(whole)), torch.from_numpy(lost), size
    truth = long_scores(contexts, whole)
    for compiled in (False, True):
        coarse, error = subspace.coarse_bounds(products.clone(), *given, compiled=compiled)
        assert (coarse.numpy() >= truth - 1e-6 * np.abs(truth)).all()
        assert (subspace.fine_bounds(products.clone(), error, compiled=compiled).numpy() >= truth - 1e-6).all()


# ---- whole searches ----


def lost_and_found(target: Floats, context: Floats, seen: float, n: int = 300) -> tuple[Any, int]:
    """A pool whose best candidate seems to score ``seen``: the others score between that and its true score.

    The others have a single nonzero number, so that they have no rounding error.
    """
    truth = float(long_scores(context, target[None])[0])
    heights = np.linspace(seen, truth, n + 2)[1:-1]
    others = np.zeros((n, len(target)), np.float32)
    others[:, 0] = heights / context[0, 0]
    place = n // 3
    return block(np.insert(others, place, target, 0)), place


def best_of(pool: Any, context: Floats, k: int) -> list[int]:
    truth = long_scores(context, pool.vectors).astype(np.float32)
    return np.lexsort((pool.rows, -truth))[:k].tolist()


def scanned(way: str | Way, context: Floats, pool: Any, k: int, *, compiled: bool) -> list[int]:
    best = Best(context, k)
    with torch.inference_mode():
        query = (WAYS[way] if isinstance(way, str) else way).query(best)
        scan([query], pool, Machine(compiled, bf16=False))
    result = best.result(exact=True)
    assert result.ways == (query.way.name,)
    return result.rows.tolist()


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize("m", [1, 3])
def test_a_scan_in_fp32_allows_for_errors_of_sums(compiled: bool, m: int) -> None:
    """The best candidate's product is one plus many numbers that are lost when added."""
    context = np.tile(steps(256), (m, 1))
    pool, place = lost_and_found(steps(256), context, 1.0)
    assert best_of(pool, context, 1) == [place]
    assert scanned("plain", context, pool, 1, compiled=compiled) == [place]


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("size", [2.0**-9, 1.0, 2.0**9])
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_scan_in_bf16_allows_for_errors_of_candidates(compiled: bool, m: int, size: float, cancelled: bool) -> None:
    """Whatever the size of the context, and also if the computed product is 0, whose own error is none."""
    context = np.full((m, D), size, np.float32)
    target = np.full(D, 1.0 + 2.0**-8 - 2.0**-20, np.float32)  # bf16 rounds it to one
    target[: D // 2 * cancelled] = -1.0
    pool, place = lost_and_found(target, context, 0.0 if cancelled else size * D)
    others = np.arange(len(pool.rows)) != place
    pool.vectors[others, 0] = torch.from_numpy(pool.vectors[others, 0]).bfloat16().float().numpy()
    assert scanned("bf16", context, pool, 1, compiled=compiled) == best_of(pool, context, 1)


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("size", [2.0**-9, 1.0, 2.0**9])
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_scan_in_bf16_allows_for_errors_of_contexts(compiled: bool, m: int, size: float, cancelled: bool) -> None:
    context = np.full((m, D), 1.0 + 2.0**-8 - 2.0**-20, np.float32)
    context[:, 0] = 1.0
    context[:, 1 : 1 + D // 2 * cancelled] = -1.0
    target = np.full(D, size, np.float32)
    pool, place = lost_and_found(target, context, 0.0 if cancelled else size * D)
    assert best_of(pool, context, 1) == [place]
    assert scanned("bf16", context, pool, 1, compiled=compiled) == [place]


@needs_kernels
@pytest.mark.parametrize("m", [1, 3])
def test_a_scan_in_int8_allows_for_errors_of_candidates(m: int) -> None:
    """Every number of the best candidate is just below the middle of two codes."""
    context = np.ones((m, D), np.float32)
    target = np.r_[127.0, np.arange(D - 1) % 7 + 0.4999].astype(np.float32)
    seen = float(127 + (np.arange(D - 1) % 7).sum())
    pool, place = lost_and_found(target, context, seen)
    assert best_of(pool, context, 1) == [place]
    assert scanned("int8", context, pool, 1, compiled=True) == [place]


@needs_kernels
@pytest.mark.parametrize("m", [1, 3])
def test_a_scan_in_int8_allows_for_errors_of_contexts(m: int) -> None:
    """The same for the context's numbers, in int16; the candidate equals its codes."""
    context = np.tile(np.r_[32638.0, np.arange(D - 1) % 7 + 0.4999].astype(np.float32) / 1000, (m, 1))
    target = np.full(D, 127.0, np.float32)
    seen = 127.0 * float(32638 + (np.arange(D - 1) % 7).sum()) / 1000
    pool, place = lost_and_found(target, context, seen)
    assert best_of(pool, context, 1) == [place]
    assert scanned("int8", context, pool, 1, compiled=True) == [place]


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize("n_columns", [1, 2, 4])
@pytest.mark.parametrize("int16", [False, True])
def test_a_scan_by_columns_allows_for_the_rest_outside_them(compiled: bool, n_columns: int, int16: bool) -> None:
    if int16 and not compiled:
        pytest.skip("int8 needs the compiled loops")
    context = spread_context()
    way = replace(WAYS["2 columns int8" if int16 else "2 columns"], n_columns=n_columns)
    subspace = find_subspace(torch.from_numpy(context)).narrow(n_columns)
    left_out = context - (subspace.mixing @ subspace.columns).numpy()
    farthest = left_out[np.linalg.norm(left_out, axis=1).argmax()]
    rng = np.random.default_rng(0)
    for scale in (1.0, 1e4):
        others = rng.standard_normal((400, D)) * 1e-3
        pool = block(np.concatenate([others, farthest[None] * scale, others]).astype(np.float32))
        assert scanned(way, context, pool, 3, compiled=compiled) == best_of(pool, context, 3)


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize("way", SCANS)
def test_every_way_of_scanning_finds_the_best_of_scores_that_are_1e_7_apart(way: str, compiled: bool) -> None:
    if way in COMPILED_SCANS and not compiled:
        pytest.skip("this way needs the compiled loops")
    for seed in range(8):
        rng = np.random.default_rng(seed)
        d = 300
        context = rng.standard_normal((1, d)).astype(np.float32)
        along = context / np.linalg.norm(context)
        noise = rng.standard_normal((1500, d)).astype(np.float32)
        noise -= (noise @ along.T) * along  # large, but without effect on the score
        pool = block((along * (1.0 + 1e-7 * rng.standard_normal((1500, 1))) + 0.2 * noise).astype(np.float32))
        assert scanned(way, context, pool, 3, compiled=compiled) == best_of(pool, context, 3)


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize("way", SCANS)
@pytest.mark.parametrize("m", [2, 5, 20])
def test_every_way_of_scanning_uses_vectors_around_the_mean(m: int, way: str, compiled: bool) -> None:
    """Scores depend on vectors other than the mean; a bound by the mean alone would lose the best."""
    if way in COMPILED_SCANS and not compiled:
        pytest.skip("this way needs the compiled loops")
    rng = np.random.default_rng(m)
    mean = rng.standard_normal(D)
    spread = rng.standard_normal((m, D))
    spread -= spread.mean(0)
    context = (mean + 0.3 * spread).astype(np.float32)
    others = np.outer(1.0 + 1e-3 * rng.random(3000), mean / 4.0)
    axis = spread[0] / np.linalg.norm(spread[0])
    axis -= (axis @ mean) / (mean @ mean) * mean
    pool = block(np.concatenate([others, (mean / 4.0 * 0.99 + 0.5 * axis)[None]]).astype(np.float32))
    assert scanned(way, context, pool, 2, compiled=compiled) == best_of(pool, context, 2)


@pytest.mark.parametrize("place", [0, 40, 150, 299])
def test_many_candidates_at_once_are_sifted_without_loss(place: int) -> None:
    """Candidates without a bound are first scored in fp32."""
    context = steps(256)[None]
    pool, at = lost_and_found(steps(256), context, 1.0)
    order = np.roll(np.arange(len(pool.rows)), place - at)
    pool = block(pool.vectors[order])
    best = Best(context, 1)
    with torch.inference_mode():
        best.offer(pool, np.arange(len(pool.rows)))
    assert best.result(exact=True).rows.tolist() == best_of(pool, context, 1)
    assert best.n_scored <= len(pool.rows)


def test_the_most_promising_are_scored_first() -> None:
    """With exact bounds in any order, little more than the first batch is scored."""
    rng = np.random.default_rng(0)
    pool = block(rng.standard_normal((3000, 16)).astype(np.float32))
    context = rng.standard_normal((1, 16)).astype(np.float32)
    bounds = pool.vectors @ context[0] + np.float32(0.01)
    best = Best(context, 1)
    with torch.inference_mode():
        best.offer(pool, np.arange(3000), bounds)
    assert best.result(exact=True).rows.tolist() == [int(bounds.argmax())]
    assert best.n_scored <= 2 * FIRST


@pytest.mark.parametrize("compiled", COMPILED)
def test_close_bounds_are_close(compiled: bool) -> None:
    """Bounds exceed the score by the products' error times the slope, plus a few roundings."""
    rng = np.random.default_rng(0)
    for m in (1, 30):
        products = rng.standard_normal((500, m)).astype(np.float32)
        error = torch.from_numpy(rng.random(500, np.float32) * 1e-4)
        given = torch.from_numpy(products.copy())
        bounds = close_bounds(given, error, None if compiled else torch.empty_like(given)).numpy()
        truth = mean_in_full(products)
        assert (bounds >= truth + error.numpy()).all()
        most = truth + error.numpy() * steepness(m) + 2 * rounding_of_mean(m) + 1e-5
        assert (bounds <= np.minimum(most, products.max(1) + error.numpy() + 2 * rounding_of_mean(m) + 1e-5)).all()


@pytest.mark.parametrize("compiled", COMPILED)
def test_products_given_in_bf16_may_be_off_by_their_own_rounding(compiled: bool) -> None:
    """A product of 1 + 2^-8 becomes one, without any other error."""
    best = Best(np.r_[1.0, 2.0**-8, np.zeros(D - 2)].astype(np.float32)[None], 1)
    vectors = np.zeros((1, D), np.float32)
    vectors[0, :2] = 1.0
    query = WAYS["bf16"].query(best)
    given = torch.tensor([[1.0 + 2.0**-8]]).bfloat16().float()
    assert given.item() == 1.0
    norms = torch.from_numpy(norms_of(vectors))
    bound = bounds_in_bf16(query, given, norms, torch.zeros(1), compiled=compiled)
    assert 1.0 + 2.0**-8 <= bound.item() <= 1.0 + 2.0**-8 + 1e-4


@pytest.mark.parametrize("compiled", COMPILED)
def test_products_in_bf16_may_be_off_by_the_rounding_of_their_sums(compiled: bool) -> None:
    """One, many numbers that are lost when added, and minus one: all in bf16, with a computed sum of zero."""
    d = 256
    context = np.r_[1.0, np.full(d - 2, 2.0**-12), 1.0].astype(np.float32)[None]
    vectors = np.r_[1.0, np.full(d - 2, 2.0**-12), -1.0].astype(np.float32)[None]
    products = one_after_the_other(vectors, context)
    assert products[0, 0] == 0.0
    assert long_scores(context, vectors)[0] == (d - 2) * U
    query, rows = WAYS["bf16"].query(Best(context, 1)), bf16_of(vectors)
    sizes = torch.from_numpy(norms_of(vectors)), torch.from_numpy(rows.row_errors)
    bound = bounds_in_bf16(query, torch.from_numpy(products), *sizes, compiled=compiled)
    assert (d - 2) * U <= bound.item() <= 8 * d * U


def test_denormal_numbers_that_a_processor_flushes_are_allowed_for() -> None:
    best = Best(np.full((1, D), 1e-20, np.float32), 1)
    vectors = np.full((1, D), 1e-20, np.float32)
    query = WAYS["bf16"].query(best)
    bound = bounds_in_bf16(query, torch.zeros(1, 1), torch.zeros(1), torch.zeros(1), compiled=False)
    assert bound.item() >= long_scores(best.contexts.numpy(), vectors)[0]


@pytest.mark.parametrize("way", SCANS)
@pytest.mark.parametrize("compiled", COMPILED)
def test_every_way_of_scanning_keeps_near_ties_and_copies_apart(way: str, compiled: bool) -> None:
    """Scores 1e-7 apart, equal ones by row, norms from tiny to huge, removed candidates."""
    if way in COMPILED_SCANS and not compiled:
        pytest.skip("this way needs the compiled loops")
    for seed in range(2):
        rng = np.random.default_rng(seed)
        context = spread_context(8, seed=seed)
        centre = context.mean(0)
        near = centre * (1.0 + 1e-7 * rng.integers(0, 7, (700, 1)))
        far = rng.standard_normal((700, D)) * 10.0 ** rng.uniform(-20, -2, (700, 1))
        vectors = np.concatenate([near, far])[rng.permutation(1400)].astype(np.float32)
        alive = rng.random(1400) < 0.8
        pool, k = block(vectors, alive), 25
        truth = long_scores(context, vectors).astype(np.float32)
        truth[~alive] = -np.inf
        rows = np.lexsort((pool.rows, -truth))[:k]
        found = scanned(way, context, pool, k, compiled=compiled)
        np.testing.assert_allclose(truth[found], truth[rows], rtol=0, atol=0)
        assert alive[found].all()
