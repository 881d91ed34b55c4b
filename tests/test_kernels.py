"""The compiled loops in every form, on a processor with every instruction: see tests/emulated.

Products are compared with sums of integers, bounds with the formula in fp64.
"""

import ctypes
import shutil
import sys
from collections.abc import Callable, Iterator
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from emulated import build, missing
from polyrank.errors import ArtifactError
from polyrank.search import kernels, score_rows, search
from polyrank.search.best import Best
from polyrank.search.policy import Policy
from polyrank.search.profile import Profile
from polyrank.search.query import Machine
from polyrank.search.scan import _limits, scan
from polyrank.search.scoring import rounding_of_product
from polyrank.search.ways import WAYS

Floats = NDArray[np.float32]
AVX2, AVX512, VNNI, BF16, TILES, PERMISSION = 1, 2, 4, 8, 16, 32
EVERYTHING = 63
OUTSIDE = np.float32(-12345.0)  # what lies around a result and has to stay


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("emulated")
    build(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def library(built: Path) -> Iterator[Any]:
    """The emulated loops are what ``polyrank.search`` finds installed."""

    def forget() -> None:
        kernels.package.cache_clear()
        kernels.longest_for_tiles.cache_clear()

    with pytest.MonkeyPatch.context() as patch:
        for name in ("polyrank_kernels", "polyrank_kernels._kernels"):
            patch.setitem(sys.modules, name, None)
            patch.delitem(sys.modules, name)
        patch.syspath_prepend(built)
        forget()
        yield kernels.package().library
        patch.delitem(sys.modules, "polyrank_kernels", raising=False)
        patch.delitem(sys.modules, "polyrank_kernels._kernels", raising=False)
    forget()


@pytest.fixture
def processor(library: Any) -> Iterator[Callable[[int], None]]:
    """Says what the processor has."""
    has = ctypes.c_int.in_dll(library, "emulated_processor")

    def become(what: int) -> None:
        has.value = what

    yield become
    has.value = EVERYTHING


def within(*shape: int) -> tuple[Floats, Floats]:
    """A result's memory, and it with what lies around."""
    size = int(np.prod(shape))
    around = np.full(size + 512, OUTSIDE)
    return around[256 : 256 + size].reshape(shape), around


def untouched(around: Floats) -> bool:
    return bool((around[:256] == OUTSIDE).all() and (around[-256:] == OUTSIDE).all())


def address(array: NDArray[Any] | None) -> int | None:
    return None if array is None else array.ctypes.data


def lay_codes(library: Any, columns: NDArray[np.int16]) -> NDArray[np.uint8]:
    tiles = np.empty(library.polyrank_tiles_size(*columns.shape, 1), np.uint8)
    library.polyrank_lay_codes(columns.ctypes.data, *columns.shape, tiles.ctypes.data)
    return tiles


def products(
    library: Any,
    rows: NDArray[np.int8],
    columns: NDArray[np.int16],
    form: int,
    *,
    threads: int = 1,
    tiled: bool = True,
    scales: tuple[Floats, Floats] | None = None,
) -> tuple[int, Floats]:
    """What form was used, and the products."""
    (n, d), q = rows.shape, len(columns)
    out, around = within(n, q)
    row_scales, column_scales = scales or (np.ones(n, np.float32), np.ones(q, np.float32))
    tiles = lay_codes(library, columns) if tiled else None
    given = (rows, columns, tiles, row_scales, column_scales, out)
    used = library.polyrank_products(*map(address, given), n, q, d, form, threads)
    assert untouched(around)
    return used, out


def finest(d: int) -> int:
    """The largest number of a column so that no sum leaves int32."""
    return min(32638, (2**31 - 1) // (127 * d))


SHAPES = [(1, 1, 64), (3, 2, 64), (4, 6, 64), (5, 7, 128), (8, 16, 64), (31, 17, 192), (33, 32, 128), (70, 33, 64)]


@pytest.mark.parametrize("form", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("n", "q", "d"), SHAPES)
def test_every_form_gives_the_sums_of_integers(library: Any, form: int, n: int, q: int, d: int) -> None:
    """To the last bit: the sum is rounded to fp32 and multiplied by the product of both scales."""
    rng = np.random.default_rng(n * q)
    rows = rng.integers(-127, 128, (n, d)).astype(np.int8)
    columns = rng.integers(-finest(d), finest(d) + 1, (q, d)).astype(np.int16)
    rows[-1], columns[-1] = 127, -finest(d)  # the largest sum
    scales = rng.random(n, np.float32), rng.random(q, np.float32)
    used, out = products(library, rows, columns, form, scales=scales)
    sums = rows.astype(np.int64) @ columns.astype(np.int64).T
    assert used == form
    np.testing.assert_array_equal(out, sums.astype(np.float32) * (scales[0][:, None] * scales[1]))


@pytest.mark.parametrize("form", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    ("row", "column"), [(127, 1), (-127, 1), (1, 256), (-1, -256), (127, -1), (-127, 255), (3, -129)]
)
def test_one_number_meets_one_number(library: Any, form: int, row: int, column: int) -> None:
    """Each place of a row meets the same place of a column and no other; high and low bytes have their signs."""
    rows, columns = np.zeros((64, 64), np.int8), np.zeros((64, 64), np.int16)
    np.fill_diagonal(rows, row)
    np.fill_diagonal(columns, column)
    np.testing.assert_array_equal(
        products(library, rows, columns, form)[1], np.eye(64, dtype=np.float32) * row * column
    )


@pytest.mark.parametrize("form", [1, 2, 3, 4, 5])
def test_threads_share_the_rows(library: Any, form: int) -> None:
    rng = np.random.default_rng(form)
    columns = rng.integers(-999, 1000, (3, 64)).astype(np.int16)
    for n in (1, 2, 100, 131):
        rows = rng.integers(-127, 128, (n, 64)).astype(np.int8)
        scales = rng.random(n, np.float32), rng.random(3, np.float32)
        alone = products(library, rows, columns, form, scales=scales)[1]
        for threads in (2, 3, 5):
            together = products(library, rows, columns, form, threads=threads, scales=scales)[1]
            np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize(
    ("has", "forms", "best"),
    [
        (0, [1], 1),
        (AVX2, [1, 2], 2),
        (AVX2 + AVX512, [1, 2, 3], 3),
        (AVX2 + AVX512 + VNNI, [1, 2, 3, 4], 4),
        (EVERYTHING, [1, 2, 3, 4, 5], 5),
    ],
)
def test_the_best_form_that_the_processor_has_is_used(
    built: Path, tmp_path: Path, has: int, forms: list[int], best: int
) -> None:
    """And one that it has not is refused."""
    library = another(built, tmp_path, has)
    rows, columns = np.full((5, 64), 2, np.int8), np.full((3, 64), 300, np.int16)
    used, out = products(library, rows, columns, 0)
    assert used == best
    assert (out == 64 * 600).all()
    for form in (1, 2, 3, 4, 5):
        used, out = products(library, rows, columns, form)
        assert used == (form if form in forms else -1)
        assert (out == (64 * 600 if form in forms else OUTSIDE)).all()


def test_a_form_is_refused_for_rows_that_it_cannot_take(library: Any) -> None:
    def used(d: int, form: int, *, tiled: bool = True) -> int:
        rows, columns = np.ones((1, d), np.int8), np.ones((1, d), np.int16)
        found, out = products(library, rows, columns, form, tiled=tiled)
        assert out[0, 0] == (d if found > 0 else OUTSIDE)
        return found

    for form in (0, 1, 2, 3, 4, 5):
        assert used(96, form) == -1  # not whole registers
        assert used(8192 + 64, form) == -1
    assert [used(8192, form) for form in (0, 1, 2, 3, 4, 5)] == [4, 1, 2, 3, 4, -1]
    assert [used(2048, form) for form in (0, 5)] == [5, 5]
    assert [used(64, form, tiled=False) for form in (0, 5)] == [4, -1]


def another(built: Path, folder: Path, has: int, lacks: int = 0) -> Any:
    """The library once more, as another processor's process loads it."""
    path = folder / f"kernels {has} {lacks}.so"
    shutil.copy(built / "polyrank_kernels" / "_kernels.so", path)
    found = ctypes.CDLL(str(path))
    for name in ("polyrank_products", "polyrank_tiles_size", "polyrank_lay_codes", "polyrank_bounds_in_tiles"):
        ours = getattr(kernels.package().library, name)
        getattr(found, name).argtypes, getattr(found, name).restype = ours.argtypes, ours.restype
    ctypes.c_int.in_dll(found, "emulated_processor").value = has
    ctypes.c_uint32.in_dll(found, "emulated_lacks").value = lacks
    return found


def test_tiles_need_all_that_they_use_and_leave_of_the_system(built: Path, tmp_path: Path) -> None:
    """bf16, tiles and int8 of AMX, AVX-512's bf16, and the permission to use the tiles' state."""
    assert another(built, tmp_path, EVERYTHING).polyrank_longest_for_tiles() == 2048
    for has in (EVERYTHING - BF16, EVERYTHING - TILES, EVERYTHING - PERMISSION):
        assert another(built, tmp_path, has).polyrank_longest_for_tiles() == 0
    for bit in (22, 24, 25):
        lacking = another(built, tmp_path, EVERYTHING, 1 << bit)
        assert lacking.polyrank_longest_for_tiles() == 0
        assert lacking.polyrank_longest_for_tiles() == 0  # asked again
        edges = np.array([0, 1])
        given = (None, None, None, None, edges.ctypes.data, None, 1, 0, 64, None, None, None, 1)
        assert lacking.polyrank_bounds_in_tiles(8, *given) == -1


def test_what_tiles_do_not_take_is_refused(library: Any) -> None:
    edges = np.array([0, 1])
    for kind, d in ((8, 32), (16, 48), (8, 2048 + 64), (16, 2048 + 64), (32, 2049)):
        given = (None, None, None, None, edges.ctypes.data, None, 1, 0, d, None, None, None, 1)
        assert library.polyrank_bounds_in_tiles(kind, *given) == -1


@pytest.mark.parametrize(("q", "d"), [(1, 64), (16, 64), (17, 128), (32, 192), (33, 64)])
def test_columns_fill_their_tiles_and_no_more(library: Any, q: int, d: int) -> None:
    """Tiles come in pairs of 16 columns; each holds 64 bytes of a column, twice: the larger part and the smaller."""
    n_tiles = {1: 2, 16: 2, 17: 2, 32: 2, 33: 4}[q]
    codes, floats = np.ones((q, d), np.int16), np.ones((q, d), np.float32)
    for array, width, call in ((codes, 1, library.polyrank_lay_codes), (floats, 2, library.polyrank_lay_floats)):
        size = library.polyrank_tiles_size(q, d, width)
        assert size == n_tiles * (d * width // 64) * 2 * 1024
        laid = []
        for before in (0x55, 0xAA):
            tiles = np.full(size + 64, before, np.uint8)
            call(array.ctypes.data, q, d, tiles.ctypes.data)
            assert (tiles[size:] == before).all()
            laid.append(tiles[:size])
        np.testing.assert_array_equal(*laid)  # every byte was written
        assert np.count_nonzero(laid[0].view(np.uint16) if width == 2 else laid[0]) == q * d


def test_numbers_are_laid_as_the_nearest_bf16_and_the_rest(library: Any) -> None:
    rng = np.random.default_rng(0)
    column = (rng.standard_normal((1, 32)) * 10.0 ** rng.integers(-20, 20, (1, 32))).astype(np.float32)
    column[0, :4] = 1.0, 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, -(1.0 + 2.0**-8 + 2.0**-20)  # ties go to the even neighbour
    tiles = np.empty(library.polyrank_tiles_size(1, 32, 2), np.uint8)
    library.polyrank_lay_floats(column.ctypes.data, 1, 32, tiles.ctypes.data)
    larger, smaller = tiles.view(np.int16)[:512], tiles.view(np.int16)[512:1024]
    places = [place // 2 * 32 + place % 2 for place in range(32)]
    nearest = torch.from_numpy(column).bfloat16()
    rest = (torch.from_numpy(column) - nearest.float()).bfloat16()
    np.testing.assert_array_equal(larger[places], nearest.view(torch.int16)[0].numpy())
    np.testing.assert_array_equal(smaller[places], rest.view(torch.int16)[0].numpy())


# ---- bounds in tiles ----


def in_tiles(
    library: Any,
    bits: int,
    rows: NDArray[Any],
    contexts: list[Floats],
    limits: list[tuple[float, ...]],
    norms: Floats | None = None,
    lost: Floats | None = None,
    threads: int = 1,
) -> Floats:
    """Bounds of rows, in int8 with scales of one, bf16 or fp32, for contexts of whole numbers in int8's case."""
    (n, d), columns = rows.shape, np.concatenate(contexts)
    edges = np.cumsum([0, *map(len, contexts)])
    tiles = np.empty(library.polyrank_tiles_size(*columns.shape, 1 if bits == 8 else 2), np.uint8)
    whole = columns.astype(np.int16 if bits == 8 else np.float32)
    lay = library.polyrank_lay_codes if bits == 8 else library.polyrank_lay_floats
    lay(whole.ctypes.data, *columns.shape, tiles.ctypes.data)
    ones = np.ones(max(n, len(columns)), np.float32)
    scales = ones if bits == 8 else None
    norms = np.zeros(n, np.float32) if norms is None else norms
    found, around = within(len(contexts), n)
    given = (rows, scales, tiles, scales, edges, np.array(limits, np.float32))
    sizes = (len(contexts), n, d)
    assert not library.polyrank_bounds_in_tiles(
        bits, *map(address, given), *sizes, *map(address, (norms, lost, found)), threads
    )
    assert untouched(around)
    return found


def in_bits(values: Floats, bits: int) -> NDArray[Any]:
    """Whole numbers that fit, as rows of so many bits."""
    if bits == 32:
        return values
    return values.astype(np.int8) if bits == 8 else torch.from_numpy(values).bfloat16().view(torch.int16).numpy()


NOTHING = (0.0, 0.0, 1.0, 0.0, 0.0)


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize(
    ("n", "n_contexts", "d"), [(1, 1, 64), (31, 5, 64), (32, 16, 128), (64, 32, 64), (97, 33, 192), (40, 70, 64)]
)
def test_a_context_of_one_vector_is_bounded_by_its_product(
    library: Any, bits: int, n: int, n_contexts: int, d: int
) -> None:
    """Exactly, where numbers are whole and nothing is said to be lost."""
    rng = np.random.default_rng(n)
    rows, columns = (rng.integers(-100, 101, (count, d)).astype(np.float32) for count in (n, n_contexts))
    for threads in (1, 3):
        given = list(columns[:, None]), [NOTHING] * n_contexts
        found = in_tiles(library, bits, in_bits(rows, bits), *given, threads=threads)
        np.testing.assert_allclose(found, columns @ rows.T, rtol=0, atol=2e-30)


@pytest.mark.parametrize("d", [1, 15, 16, 17, 31, 33, 47, 49, 100])
def test_rows_of_fp32_need_not_be_whole_tiles(library: Any, d: int) -> None:
    rng = np.random.default_rng(d)
    rows, columns = (rng.integers(-100, 101, (count, d)).astype(np.float32) for count in (37, 3))
    found = in_tiles(library, 32, rows, list(columns[:, None]), [NOTHING] * 3)
    np.testing.assert_allclose(found, columns @ rows.T, rtol=0, atol=2e-30)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_more_rows_than_stay_in_the_cache_and_more_columns(library: Any, bits: int) -> None:
    rng = np.random.default_rng(bits)
    for n, n_contexts in ((16384 + 70, 1), (70, 600)):
        rows, columns = (rng.integers(-9, 10, (count, 64)).astype(np.float32) for count in (n, n_contexts))
        given = list(columns[:, None]), [NOTHING] * n_contexts
        found = in_tiles(library, bits, in_bits(rows, bits), *given)
        np.testing.assert_allclose(found, columns @ rows.T, rtol=0, atol=2e-30)


def least_in_both_parts() -> float:
    """Of the numbers from 1 to 2, the one that loses most when it is split into two of bf16."""
    return float(np.float32(1.0 + 2.0**-8 - 2.0**-17 - 2.0**-23))


@pytest.mark.parametrize("d", [32, 64, 512])
def test_split_products_are_off_by_less_than_is_said(library: Any, d: int) -> None:
    """By ``ROUNDING_OF_TILES`` of both norms besides the rounding of sums, also where all errors have one sign."""
    rng = np.random.default_rng(d)
    rows = rng.standard_normal((40, d)).astype(np.float32)
    columns = rng.standard_normal((20, d)).astype(np.float32)
    rows[0] = columns[0] = least_in_both_parts()
    rows[1], columns[1] = np.float32(-least_in_both_parts()), np.float32(4 * least_in_both_parts())
    rows[2] = np.where(rng.random(d) < 0.5, 1.0, -1.0) * least_in_both_parts() * 2.0 ** rng.integers(-3, 4, d)
    columns[2] = rows[2]
    found = in_tiles(library, 32, rows, list(columns[:, None]), [NOTHING] * 20)
    exact = columns.astype(np.longdouble) @ rows.astype(np.longdouble).T
    size = np.linalg.norm(columns.astype(np.float64), axis=1)[:, None] * np.linalg.norm(rows.astype(np.float64), axis=1)
    relative = np.abs(found - exact) / size
    assert relative.max() <= kernels.ROUNDING_OF_TILES + rounding_of_product(d)
    assert relative.max() >= 0.9 * kernels.ROUNDING_OF_TILES  # and hardly less is possible
    assert np.median(relative) <= 2.0**-18  # products of all parts but the smallest


def formula(
    products: NDArray[np.float64], error: Any, of: tuple[float, ...], *, spread: bool, given_back: float = 0.0
) -> NDArray[np.float64]:
    """The least of three bounds, in fp64: see ``polyrank.search.scoring.upper_bounds``.

    ``given_back``: of the mean square below the best, what deviations are raised by.
    """
    best = products.max(1)
    below = products - best[:, None]
    weights = np.exp(below)
    weights /= weights.sum(1, keepdims=True)
    mean, square = (weights * below).sum(1), (weights * below**2).sum(1)
    deviation = np.sqrt(np.maximum(square * (1.0 + given_back) - mean**2, 0.0))
    slope = np.full(len(mean), of[2])
    if spread:
        near = np.minimum(error, 4.0)
        slope = np.minimum(slope, np.where(error < 4.0, 1.0 + np.exp(near) * (1.001 * deviation + near), np.inf))
    return best + np.minimum(mean + error * slope, error) + of[3] + of[4] * np.abs(best)


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("m", [2, 16, 500])
def test_bounds_in_tiles_are_those_of_the_formula(library: Any, bits: int, m: int) -> None:
    """Of products with one far above the others, so that each of the three bounds is the least for some error."""
    n = 300
    rng = np.random.default_rng(m)
    rows = np.zeros((n, 64), np.float32)
    rows[:, 0] = np.where(np.arange(n) % 2, 1.0, -1.0)
    rows[:, 1] = rng.integers(0, 3, n)
    contexts = np.zeros((m, 64), np.float32)
    contexts[:, 1] = -rng.integers(2, 5, m)
    contexts[0] = 0.0
    contexts[:, 0] = 3.0
    error = np.geomspace(1e-4, 20.0, n).astype(np.float32)
    rng.shuffle(error)
    truth = rows.astype(np.float64) @ contexts.astype(np.float64).T
    for lost, of in (
        (None, (5.0, 1.0, 1.0 + 2.0 * log(m), 0.0, 0.0)),
        (error, (0.25, 0.75, 1.5, 0.0, 0.0)),
        (error, (1.0, 0.0, 2.0, 3.0, 0.5)),
    ):
        whole = error.astype(np.float64) * (of[1] + (of[0] if lost is not None else 0.0))
        found = in_tiles(library, bits, in_bits(rows, bits), [contexts], [of], error, lost)[0]
        least, most = (formula(truth, whole, of, spread=bits != 32, given_back=part) for part in (0.0, 3e-5))
        tiny = 2e-5 * (most - of[3] - truth.min(1)) + 1e-6 * (whole + np.abs(most) + 1.0)
        assert (found >= least - 2e-6 * (1.0 + np.abs(least) + whole)).all()
        assert (found <= most + tiny).all()


def test_rounding_of_the_best_product_goes_by_its_size(library: Any) -> None:
    rows, context = np.zeros((4, 64), np.float32), np.zeros((1, 64), np.float32)
    rows[:, 0], context[0, 0] = (0.0625, -0.0625, 2.0, -2.0), 1.0
    found = in_tiles(library, 32, rows, [context], [(0.0, 0.0, 1.0, 0.0, 0.5)])
    assert found[0].tolist() == [0.09375, -0.03125, 3.0, -1.0]


def test_a_bound_in_tiles_rounds_up(library: Any) -> None:
    """exp is never below the true one by more than rounding, whatever the error."""
    n, m = 2000, 512
    rows, contexts = np.zeros((n, 64), np.int8), np.zeros((m, 64), np.float32)
    rows[:, 0], contexts[1:, 0] = 1, -5.0
    error = np.linspace(1e-3, 0.55, n).astype(np.float32)
    found = in_tiles(library, 8, rows, [contexts], [(0.0, 1.0, 50.0, 0.0, 0.0)], error)[0]
    truth = rows.astype(np.float64) @ contexts.T.astype(np.float64)
    given = truth, error.astype(np.float64), (0.0, 1.0, 50.0, 0.0, 0.0)
    assert (found < error).all()  # the bound near these products is the least
    assert (found >= formula(*given, spread=True) - 4e-7).all()
    assert (found <= formula(*given, spread=True, given_back=2.1e-5) + 2e-5 * 8.0 * error + 4e-7).all()


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_contexts_that_share_a_product_keep_their_own_columns_and_limits(library: Any, bits: int) -> None:
    rng = np.random.default_rng(bits)
    rows = rng.integers(-2, 3, (45, 64)).astype(np.float32)
    contexts = [rng.integers(-1, 2, (m, 64)).astype(np.float32) for m in (1, 17, 40, 3)]
    limits = [(1.0 + c, 0.1 * c, 1.0 + c, 0.5 * c, 0.0) for c in range(4)]
    norms, lost = rng.random(45, np.float32), rng.random(45, np.float32)
    together = in_tiles(library, bits, in_bits(rows, bits), contexts, limits, norms, lost, threads=2)
    for context, limit, mine in zip(contexts, limits, together, strict=True):
        np.testing.assert_array_equal(
            in_tiles(library, bits, in_bits(rows, bits), [context], [limit], norms, lost)[0], mine
        )
        error = norms * np.float64(limit[1]) + lost * np.float64(limit[0])
        theirs = formula(rows.astype(np.float64) @ context.T, error, limit, spread=bits != 32)
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_bounds_in_tiles_keep_what_is_not_a_number(library: Any, bits: int, value: float) -> None:
    rows = np.ones((40, 64), np.float32)
    rows[33, 5] = value
    for m in (1, 4):
        found = in_tiles(
            library, bits, in_bits(rows, bits), [np.ones((m, 64), np.float32)], [(1.0, 0.0, 2.0, 0.0, 0.0)]
        )
        assert np.flatnonzero(~np.isfinite(found[0])).tolist() == [33]


# ---- means and bounds of a few products ----


def means(library: Any, products: Floats, *, spread: bool, threads: int = 1) -> tuple[Floats, Floats, Floats]:
    n, m = products.shape
    found = [within(n) for _ in range(3)]
    places = [address(inside) for inside, _ in found]
    library.polyrank_means(
        products.ctypes.data, products.strides[0] // 4, n, m, *places[:2], places[2] if spread else None, threads
    )
    assert all(untouched(around) for _, around in found)
    return found[0][0], found[1][0], found[2][0]


def test_exp_of_the_means_is_true_to_fp32(library: Any) -> None:
    """Of two products 0 and -x, the mean is -x w / (1 + w) with w = exp(-x): every x tells how close exp is."""
    x = np.linspace(1e-3, 79.0, 40_001).astype(np.float32)
    mean, best, spread = means(library, np.stack([-x, 0.0 * x], 1), spread=True, threads=3)
    w = np.exp(-x.astype(np.float64))
    assert (best == 0.0).all()
    np.testing.assert_allclose(mean, -x * w / (1.0 + w), rtol=1e-6, atol=4e-32)  # what fills up weighs exp(-80)
    deviation = x * np.sqrt(w) / (1.0 + w)
    assert (spread >= deviation * (1.0 - 1e-6)).all()
    np.testing.assert_allclose(spread, deviation, rtol=1e-3, atol=1e-15)


def test_what_lies_far_below_weighs_nothing(library: Any) -> None:
    """And makes no infinite or denormal numbers."""
    x = np.array([80.0, 81.0, 100.0, 1e4, 1e30, 3e38], np.float32)
    mean, _, spread = means(library, np.stack([0.0 * x, -x], 1), spread=True)
    assert (np.abs(mean) <= 1e-30).all()
    assert (spread <= 1e-14).all()
    assert means(library, np.full((1, 17), -3e38, np.float32), spread=True)[0][0] == np.float32(-3e38)


@pytest.mark.parametrize("m", [1, 2, 3, 15, 16, 17, 31, 32, 33, 100])
def test_means_take_all_products_of_a_row_and_no_others(library: Any, m: int) -> None:
    """Rows lie apart, with what must not be read as products between them; each product is the largest once."""
    n = 2 * m
    wide = np.full((n, m + 5), 1e9, np.float32)
    inside = wide[:, 2 : m + 2]
    inside[:] = np.minimum(np.random.default_rng(m).standard_normal((n, m)), 2.0)
    inside[np.arange(n), np.arange(n) % m] = 2.5
    double = inside.astype(np.float64)
    weights = np.exp(double - 2.5)
    weights /= weights.sum(1, keepdims=True)
    theirs = (weights * double).sum(1)
    deviation = np.sqrt((weights * (double - theirs[:, None]) ** 2).sum(1))
    for threads in (1, 3):
        for wanted in (True, False):
            mean, best, spread = means(library, inside, spread=wanted, threads=threads)
            assert (best == 2.5).all()
            np.testing.assert_allclose(mean, theirs, rtol=0, atol=1e-6)
            if wanted:
                np.testing.assert_allclose(spread, deviation, rtol=0, atol=1e-3 if m == 1 else 2e-4)
                assert (spread >= deviation * (1.0 - 1e-6)).all()
            else:
                assert (spread == OUTSIDE).all()


def test_bounds_of_a_few_products_are_those_of_the_formula(library: Any) -> None:
    rng = np.random.default_rng(1)
    n, q = 101, 5
    wide = rng.standard_normal((n, q + 3)).astype(np.float32)
    own = wide[:, 1 : q + 1]
    norms, lost = (3.0 + rng.random(n)).astype(np.float32), (0.1 + rng.random(n)).astype(np.float32)
    norms[7], lost[7] = 0.5, 0.0
    own[7] = 1.0  # more inside than there is: nothing is outside
    centre, weights = rng.standard_normal(q).astype(np.float32), rng.random(q).astype(np.float32)
    radius, residual, slack, rounding, size = 1.5, 0.7, 1.25, 0.01, 2.5
    of = kernels.package().Numbers(address(centre), address(weights), radius, residual, slack, rounding, size)
    norm, squares = norms.astype(np.float64) + lost, own.astype(np.float64) ** 2
    outside = np.sqrt(np.maximum(norm**2 * slack - squares.sum(1), 0.0))
    errors = residual * outside + norm * rounding + lost.astype(np.float64) * size
    bounds = errors + own.astype(np.float64) @ centre + radius * np.sqrt(squares @ weights)
    assert outside[7] == 0.0
    for threads in (1, 4):
        (found, around), (off, around_off) = within(n), within(n)
        given = (own.ctypes.data, wide.shape[1], n, q, address(norms), address(lost), ctypes.byref(of))
        library.polyrank_bounds(*given, address(found), address(off), threads)
        np.testing.assert_allclose(off, errors, rtol=2e-6)
        np.testing.assert_allclose(found, bounds, rtol=2e-6, atol=2e-6)
        assert untouched(around)
        assert untouched(around_off)


# ---- search where AMX is ----


class Pool:
    """A block of candidates that are all alive."""

    def __init__(self, vectors: Floats) -> None:
        self.vectors, self.rows, self.alive = vectors, np.arange(len(vectors)), None


def scanned(way: str, contexts: list[Floats], pool: Pool, k: int) -> list[Best]:
    bests = [Best(context, k) for context in contexts]
    with torch.inference_mode():
        scan([WAYS[way].query(best) for best in bests], pool, MACHINE)
    return bests


MACHINE = Machine(torch.device("cpu"), compiled=True, bf16=True)
TILES_WAYS = ("plain tiles", "bf16 tiles", "int8 tiles")


@pytest.mark.parametrize("way", TILES_WAYS)
def test_scans_by_amx_find_the_best_among_near_ties(way: str) -> None:
    """Scores are 1e-7 apart, for contexts of one vector and of several."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        contexts = [rng.standard_normal((m, 64)).astype(np.float32) for m in (9, 30)]
        near = rng.standard_normal((1, 64)) * (1.0 + 1e-7 * rng.integers(0, 9, (600, 1)))
        pool = Pool(near.astype(np.float32))
        for context, best in zip(contexts, scanned(way, contexts, pool, 5), strict=True):
            truth = score_rows(context, np.ones(len(context), bool), pool.vectors)
            rows = np.lexsort((pool.rows, -truth))[:5]
            assert best.result(exact=True).rows.tolist() == rows.tolist()


@pytest.mark.parametrize("way", TILES_WAYS)
def test_scans_by_amx_rule_out_nearly_all(way: str) -> None:
    rng = np.random.default_rng(2)
    pool = Pool(rng.standard_normal((3000, 64)).astype(np.float32))
    contexts = [rng.standard_normal((10, 64)).astype(np.float32) / 4 for _ in range(2)]
    for context, best in zip(contexts, scanned(way, contexts, pool, 3), strict=True):
        truth = score_rows(context, np.ones(10, bool), pool.vectors)
        result = best.result(exact=True)
        assert result.rows.tolist() == np.lexsort((pool.rows, -truth))[:3].tolist()
        assert result.n_scored == 3000 if way == "plain tiles" else result.n_scored < 700


def test_split_rows_that_lose_most_are_still_found() -> None:
    """The best candidate is the one whose product AMX sees lowest; the others it sees as they are."""
    d = 64
    context = np.full((8, d), least_in_both_parts(), np.float32)
    true = float(context[0].astype(np.float64) @ context[0].astype(np.float64))
    others = np.zeros((400, d), np.float32)
    others[:, 0] = np.float32(true / context[0, 0]) * (1.0 - np.linspace(1e-6, 2.8e-5, 400))
    pool = Pool(np.concatenate([others, context[:1]]))
    [best] = scanned("plain tiles", [context], pool, 1)
    assert best.result(exact=True).rows.tolist() == [400]


@pytest.mark.parametrize("way", ["bf16", "int8"])
@pytest.mark.parametrize("of", ["candidate", "context"])
def test_what_coding_loses_is_still_found_by_amx(way: str, of: str) -> None:
    """The best candidate, or its context, loses by its coding all that it has before the others."""
    d = 64
    telling = np.full(d, 1.0 + 2.0**-8 - 2.0**-20)  # ones, in bf16
    if way == "int8":
        telling = np.r_[127.0 if of == "candidate" else 32638.0, np.arange(d - 1) % 7 + 0.4999]
    plain = np.full(d, 1.0)
    context, target = (plain, telling) if of == "candidate" else (telling, plain)
    context[0], seen = (1.0 if way == "bf16" else context[0]), np.floor(context) @ np.floor(target)
    others = np.zeros((300, d))
    others[:, 0] = np.linspace(seen, context @ target, 302)[1:-1] / context[0]
    pool = Pool(np.concatenate([others, target[None]]).astype(np.float32))
    [best] = scanned(f"{way} tiles", [context[None].astype(np.float32)], pool, 1)
    assert best.result(exact=True).rows.tolist() == [300]


@pytest.mark.parametrize("way", TILES_WAYS)
def test_limits_say_how_far_products_may_be_off(way: str) -> None:
    """By what coding loses, by (D + 8) roundings and, of split rows, by 2^-15: of both norms. And no absurd amount."""
    context = np.random.default_rng(9).standard_normal((30, 64)).astype(np.float32)
    query, u = WAYS[way].query(Best(context, 1)), 2.0**-24
    norm = float(np.linalg.norm(context.astype(np.float64), axis=1).max())
    size, alone, steep, of_mean, of_best = _limits(query)
    least = query.context_error + 72 * u * norm + (2.0**-15 * norm if way == "plain tiles" else 0.0)
    assert (query.context_error > 0.0) == (way != "plain tiles")
    assert least <= alone <= least * 1.00001
    assert norm + least <= size <= (norm + least) * 1.00001
    assert steep == pytest.approx(1.0 + 2.0 * log(30))
    assert of_mean == pytest.approx(4.0 * 46 * u * (1.0 + log(30)))
    assert of_best == 4.0 * u


def test_tiles_take_rows_that_are_not_too_long_and_bf16_in_whole_tiles() -> None:
    assert [kernels.in_tiles(8, d) for d in (1, 2048, 2049)] == [True, True, False]
    assert [kernels.in_tiles(16, d) for d in (32, 48, 2048, 2080)] == [True, False, True, False]
    assert [kernels.in_tiles(32, d) for d in (33, 2048, 2049)] == [True, True, False]


def test_search_by_amx_equals_a_plain_scan() -> None:
    rng = np.random.default_rng(6)
    pool = Pool(rng.standard_normal((4500, 64)).astype(np.float32))
    contexts, mask = rng.standard_normal((3, 12, 64)).astype(np.float32), np.ones((3, 12), bool)
    mask[1, 3:] = False
    plain = search(contexts, mask, [pool], 7, ways=["plain"], compiled=False)
    for ways in (list(WAYS), *([way] for way in TILES_WAYS)):
        for one, other in zip(search(contexts, mask, [pool], 7, ways=ways), plain, strict=True):
            assert one.rows.tolist() == other.rows.tolist()
            assert one.scores.tolist() == other.scores.tolist()
    pool.vectors[4000, 3] = np.inf
    with pytest.raises(ArtifactError, match="not finite"):
        search(contexts, mask, [Pool(pool.vectors.copy())], 7)


def test_a_plan_where_amx_is_reads_int8_and_scores_few() -> None:
    rng = np.random.default_rng(8)
    pool = Pool(rng.standard_normal((20_000, 64)).astype(np.float32))
    best = Best(rng.standard_normal((16, 64)).astype(np.float32) / 6, 5)
    with torch.inference_mode():
        query = Policy(MACHINE, Profile()).choose(best, [pool])
    assert query.way.name == "int8 tiles"
