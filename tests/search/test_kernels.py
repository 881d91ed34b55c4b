"""The compiled loops in every form, on a processor with every instruction: see tests/emulated.

Products are compared with sums of integers, bounds with the formula in fp64.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from emulated import ARM_EMULATOR, build, build_for_arm, missing, missing_for_arm
from polyrank.bench import profile as bench
from polyrank.bench.machine import describe_machine
from polyrank.errors import ArtifactError, UsageError
from polyrank.index.protocol import Block
from polyrank.search import kernels, score_rows, search
from polyrank.search.best import Best
from polyrank.search.profile import Profile
from polyrank.search.query import Machine
from polyrank.search.scan import _limits, scan
from polyrank.search.scoring import rounding_of_product
from polyrank.search.ways import WAYS, Policy

Floats = NDArray[np.float32]
AVX2, AVX512, VNNI, BF16, TILES, PERMISSION, AVX_VNNI = 1, 2, 4, 8, 16, 32, 64
EVERYTHING = 127
OUTSIDE = np.float32(-12345.0)  # guard values around a result, which must not change
FORMS = ("C plain", "plain", "avx2", "avx-vnni", "avx512", "avx512-vnni", "amx", "ARM plain", "ARM dot")


@dataclass(frozen=True)
class Loops:
    """The library and the tested form of its loops.

    Args:
        library: the library of C functions.
        form: the form's number.
        amx: whether the form uses AMX.
    """

    library: Any
    form: int
    amx: bool

    @property
    def bits(self) -> tuple[kernels.Bits, ...]:
        """Types of rows that the form bounds in tiles."""
        return (8, 16, 32) if self.amx else (8, 32)


def forget() -> None:
    for known in (kernels.package, kernels.best_form):
        known.cache_clear()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("emulated")
    build(folder)
    return folder


@pytest.fixture(scope="session")
def built_in_c(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The loops built without intrinsics."""
    if reason := missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("c")
    build(folder, plain=True)
    return folder


@pytest.fixture(scope="session")
def built_for_arm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := missing_for_arm():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("arm")
    os.environ["POLYRANK_ELSEWHERE"] = f"exec {ARM_EMULATOR} -cpu max {build_for_arm(folder)}"
    return folder


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in ("avx2", "amx") else pytest.mark.deep) for name in FORMS],
)
def loops(request: pytest.FixtureRequest) -> Iterator[Loops]:
    """Make ``polyrank.search`` use the emulated loops, with this form as the best."""
    processor, _, name = request.param.rpartition(" ")
    folder = request.getfixturevalue({"C": "built_in_c", "ARM": "built_for_arm"}.get(processor, "built"))
    with pytest.MonkeyPatch.context() as patch:
        for module in ("polyrank_kernels", "polyrank_kernels._kernels"):
            patch.setitem(sys.modules, module, None)
            patch.delitem(sys.modules, module)
        patch.syspath_prepend(folder)
        patch.setenv("POLYRANK_INSTRUCTIONS", name)
        forget()
        assert kernels.FORMS[kernels.best_form() - 1] == name
        yield Loops(kernels.package().library, kernels.best_form(), kernels.has_amx())
        patch.delitem(sys.modules, "polyrank_kernels", raising=False)
        patch.delitem(sys.modules, "polyrank_kernels._kernels", raising=False)
    forget()


by_amx = pytest.mark.parametrize("loops", ["amx"], indirect=True)
by_two_forms = pytest.mark.parametrize("loops", ["avx2", "amx"], indirect=True)


def within(*shape: int) -> tuple[Floats, Floats]:
    """A result's memory, and the memory including its guards."""
    size = int(np.prod(shape))
    around = np.full(size + 512, OUTSIDE)
    return around[256 : 256 + size].reshape(shape), around


def untouched(around: Floats) -> bool:
    return bool((around[:256] == OUTSIDE).all() and (around[-256:] == OUTSIDE).all())


def address(array: NDArray[Any] | None) -> int | None:
    return None if array is None else array.ctypes.data


def lay(loops: Loops, columns: NDArray[Any]) -> NDArray[np.uint8]:
    """Lay columns in int16 or fp32 into tiles."""
    width, call = (
        (1, loops.library.polyrank_lay_codes) if columns.dtype == np.int16 else (2, loops.library.polyrank_lay_floats)
    )
    tiles = np.empty(loops.library.polyrank_tiles_size(loops.form, *columns.shape, width), np.uint8)
    call(loops.form, columns.ctypes.data, *columns.shape, tiles.ctypes.data)
    return tiles


def products(
    loops: Loops,
    rows: NDArray[np.int8],
    columns: NDArray[np.int16],
    *,
    threads: int = 1,
    tiled: bool = True,
    scales: tuple[Floats, Floats] | None = None,
) -> Floats | None:
    """The bounds, or ``None`` if the loops refuse the arguments, which must write nothing."""
    (n, d), q = rows.shape, len(columns)
    out, around = within(n, q)
    row_scales, column_scales = scales or (np.ones(n, np.float32), np.ones(q, np.float32))
    tiles = lay(loops, columns) if tiled and loops.amx else None
    given = (rows, columns, tiles, row_scales, column_scales, out)
    failed = loops.library.polyrank_products(*map(address, given), n, q, d, loops.form, threads)
    assert untouched(around)
    assert not failed or (out == OUTSIDE).all()
    return None if failed else out


def finest(d: int) -> int:
    """The largest number of a column for which every sum fits into int32."""
    return min(32638, (2**31 - 1) // (127 * d))


SHAPES = [(1, 1, 64), (3, 2, 64), (4, 6, 64), (5, 7, 128), (8, 16, 64), (31, 17, 192), (33, 32, 128), (70, 33, 64)]


@pytest.mark.deep
def test_products_equal_sums_of_integers(loops: Loops) -> None:
    """Exactly: the sum is rounded to fp32 and multiplied by the product of both scales."""
    for n, q, d in SHAPES:
        rng = np.random.default_rng(n * q)
        rows = rng.integers(-127, 128, (n, d)).astype(np.int8)
        columns = rng.integers(-finest(d), finest(d) + 1, (q, d)).astype(np.int16)
        rows[-1], columns[-1] = 127, -finest(d)  # the largest sum
        scales = rng.random(n, np.float32), rng.random(q, np.float32)
        sums = rows.astype(np.int64) @ columns.astype(np.int64).T
        out = products(loops, rows, columns, scales=scales)
        np.testing.assert_array_equal(out, sums.astype(np.float32) * (scales[0][:, None] * scales[1]))


ONE_MEETS_ONE = [(127, 1), (-127, 1), (1, 256), (-1, -256), (127, -1), (-127, 255), (3, -129), (-5, 128), (2, 32638)]


def test_each_position_multiplies_only_its_own(loops: Loops) -> None:
    """Each position of a row multiplies the same position of a column only; both bytes have the right sign."""
    for row, column in ONE_MEETS_ONE:
        rows, columns = np.zeros((64, 64), np.int8), np.zeros((64, 64), np.int16)
        np.fill_diagonal(rows, row)
        np.fill_diagonal(columns, column)
        expected = np.eye(64, dtype=np.float32) * row * column
        np.testing.assert_array_equal(products(loops, rows, columns), expected)
        found = in_tiles(loops, 8, rows, list(columns[:, None]), [NOTHING] * 64)
        np.testing.assert_allclose(found, expected.T, rtol=0, atol=2e-30)


def test_the_largest_sums_are_exact_in_tiles(loops: Loops) -> None:
    for d in (64, 512, 768):
        columns = np.full((17, d), finest(d), np.int16)
        columns[::2] *= -1
        rows = np.full((13, d), 127, np.int8)
        rows[::3] *= -1
        sums = (rows.astype(np.int64) @ columns.astype(np.int64).T).astype(np.float32)
        found = in_tiles(loops, 8, rows, list(columns[:, None]), [NOTHING] * 17)
        np.testing.assert_array_equal(found, sums.T)


def test_threads_share_the_rows(loops: Loops) -> None:
    rng = np.random.default_rng(loops.form)
    columns = rng.integers(-999, 1000, (3, 64)).astype(np.int16)
    for n in (1, 2, 100, 131):
        rows = rng.integers(-127, 128, (n, 64)).astype(np.int8)
        scales = rng.random(n, np.float32), rng.random(3, np.float32)
        alone = products(loops, rows, columns, scales=scales)
        for threads in (2, 3, 5):
            together = products(loops, rows, columns, threads=threads, scales=scales)
            np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize(
    ("has", "forms"),
    [
        (0, [1]),
        (AVX2, [1, 2]),
        (AVX2 + AVX_VNNI, [1, 2, 3]),
        (AVX_VNNI, [1]),
        (AVX2 + AVX512, [1, 2, 4]),
        (AVX2 + AVX512 + VNNI, [1, 2, 4, 5]),
        (EVERYTHING, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_forms_depend_on_the_processor(built: Path, tmp_path: Path, has: int, forms: list[int]) -> None:
    """Forms that the processor lacks are refused."""
    library = another(built, tmp_path, has)
    rows, columns = np.full((5, 64), 2, np.int8), np.full((3, 64), 300, np.int16)
    for form in range(9):
        assert bool(library.polyrank_has(form)) == (form in forms)
        loops = Loops(library, form, amx=form == 6)
        out = products(loops, rows, columns, tiled=False)
        assert out is None if form not in forms else (out == 64 * 600).all()
        if form in forms:
            assert (in_tiles(loops, 8, rows, list(columns[:, None]), [NOTHING] * 3) == 64 * 600).all()
        edges = np.array([0, 1])
        given = (None, None, None, None, edges.ctypes.data, None, 1, 0, 64, None, None, None, 1)
        assert library.polyrank_bounds_in_tiles(form, 8, *given) == (0 if form in forms else -1)


@pytest.mark.deep
@pytest.mark.parametrize(("processor", "has"), [("cortex-a72", False), ("neoverse-n1", True), ("max", True)])
def test_dot_products_are_used_where_arm_has_them(built_for_arm: Path, processor: str, has: bool) -> None:
    head = np.array([0, 1, 7, -1, 0])  # whether it has form 7: see elsewhere.c
    command = [ARM_EMULATOR, "-cpu", processor, str(built_for_arm / "loops")]
    answer = subprocess.run(command, input=head.tobytes(), capture_output=True, check=True).stdout
    assert np.frombuffer(answer, np.int64).tolist() == [has]


def test_unsupported_rows_are_refused(loops: Loops) -> None:
    def taken(d: int, *, tiled: bool = True) -> bool:
        out = products(loops, np.ones((1, d), np.int8), np.ones((1, d), np.int16), tiled=tiled)
        return out is not None and out[0, 0] == d

    assert not taken(96)  # not a multiple of a register
    assert not taken(8192 + 64, tiled=False)
    assert taken(8192, tiled=False)
    assert taken(2048)
    assert taken(64, tiled=False)


def another(built: Path, folder: Path, has: int, lacks: int = 0) -> Any:
    """The library loaded again, as in a process on another processor."""
    path = folder / f"kernels {has} {lacks}.so"
    shutil.copy(built / "polyrank_kernels" / "_kernels.so", path)
    found = ctypes.CDLL(str(path))
    pointer, size, count = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    found.polyrank_products.argtypes = [*[pointer] * 6, *[size] * 3, count, count]
    found.polyrank_tiles_size.argtypes, found.polyrank_tiles_size.restype = [count, size, size, count], size
    found.polyrank_lay_codes.argtypes = [count, pointer, size, size, pointer]
    found.polyrank_bounds_in_tiles.argtypes = [count, count, *[pointer] * 6, *[size] * 3, *[pointer] * 3, count]
    ctypes.c_int.in_dll(found, "emulated_processor").value = has
    ctypes.c_uint32.in_dll(found, "emulated_lacks").value = lacks
    return found


def test_amx_needs_all_its_instructions_and_the_systems_permission(built: Path, tmp_path: Path) -> None:
    """bf16, tiles and int8 of AMX, AVX-512's bf16, and the permission to use the tiles' state."""
    assert another(built, tmp_path, EVERYTHING).polyrank_has(6)
    for has in (EVERYTHING - BF16, EVERYTHING - TILES, EVERYTHING - PERMISSION):
        assert not another(built, tmp_path, has).polyrank_has(6)
    for bit in (22, 24, 25):
        lacking = another(built, tmp_path, EVERYTHING, 1 << bit)
        assert not lacking.polyrank_has(6)
        assert not lacking.polyrank_has(6)  # the second call


def test_arguments_that_tiles_do_not_support_are_refused(loops: Loops) -> None:
    edges = np.array([0, 1])
    for kind, d in (
        (8, 32),
        (16, 48),
        (8, 8192 + 64),
        (16, 2048 + 64),
        (32, 8193),
        *([(32, 2049)] if loops.amx else []),
    ):
        given = (None, None, None, None, edges.ctypes.data, None, 1, 0, d, None, None, None, 1)
        assert loops.library.polyrank_bounds_in_tiles(loops.form, kind, *given) == -1


@pytest.mark.parametrize(("q", "d"), [(1, 64), (16, 64), (17, 128), (32, 192), (33, 64)])
def test_columns_fill_their_tiles_and_no_more(loops: Loops, q: int, d: int) -> None:
    """Tiles have 16 columns. With AMX they are in pairs, and hold each number as a larger and a smaller part."""
    n_tiles = -(-q // 16)
    codes, floats = np.full((q, d), 257, np.int16), np.ones((q, d), np.float32)
    library, form = loops.library, loops.form
    for array, width, call in ((codes, 1, library.polyrank_lay_codes), (floats, 2, library.polyrank_lay_floats)):
        size = library.polyrank_tiles_size(form, q, d, width)
        each = width * 2 * 1024 * d // 64
        assert size == (n_tiles + n_tiles % 2 if loops.amx else n_tiles) * each
        laid = []
        for before in (0x55, 0xAA):
            tiles = np.full(size + 64, before, np.uint8)
            call(form, array.ctypes.data, q, d, tiles.ctypes.data)
            assert (tiles[size:] == before).all()
            laid.append(tiles[:size])
        np.testing.assert_array_equal(*laid)  # every byte was written
        numbers = laid[0] if width == 1 else laid[0].view(np.uint16)
        assert np.count_nonzero(numbers) == q * d * (2 if width == 1 else 1)


@by_amx
def test_numbers_are_split_into_the_nearest_bf16_and_the_rest(loops: Loops) -> None:
    rng = np.random.default_rng(0)
    column = (rng.standard_normal((1, 32)) * 10.0 ** rng.integers(-20, 20, (1, 32))).astype(np.float32)
    column[0, :4] = 1.0, 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, -(1.0 + 2.0**-8 + 2.0**-20)  # ties go to the even neighbour
    tiles = lay(loops, column)
    larger, smaller = tiles.view(np.int16)[:512], tiles.view(np.int16)[512:1024]
    places = [place // 2 * 32 + place % 2 for place in range(32)]
    nearest = torch.from_numpy(column).bfloat16()
    rest = (torch.from_numpy(column) - nearest.float()).bfloat16()
    np.testing.assert_array_equal(larger[places], nearest.view(torch.int16)[0].numpy())
    np.testing.assert_array_equal(smaller[places], rest.view(torch.int16)[0].numpy())


# ---- bounds in tiles ----


def in_tiles(
    loops: Loops,
    bits: int,
    rows: NDArray[Any],
    contexts: list[Any],
    limits: list[tuple[float, ...]],
    norms: Floats | None = None,
    lost: Floats | None = None,
    threads: int = 1,
) -> Floats:
    """Bounds of rows, in int8 with scales of one, bf16 or fp32, for contexts of whole numbers in int8's case."""
    (n, d), columns = rows.shape, np.concatenate(contexts)
    edges = np.cumsum([0, *map(len, contexts)])
    tiles = lay(loops, columns.astype(np.int16 if bits == 8 else np.float32))
    ones = np.ones(max(n, len(columns)), np.float32)
    scales = ones if bits == 8 else None
    norms = np.zeros(n, np.float32) if norms is None else norms
    found, around = within(len(contexts), n)
    given = (rows, scales, tiles, scales, edges, np.array(limits, np.float32))
    sizes = (len(contexts), n, d)
    failed = loops.library.polyrank_bounds_in_tiles(
        loops.form, bits, *map(address, given), *sizes, *map(address, (norms, lost, found)), threads
    )
    assert not failed
    assert untouched(around)
    return found


def in_bits(values: Floats, bits: int) -> NDArray[Any]:
    """Integers that fit, as rows of the given type."""
    if bits == 32:
        return values
    return values.astype(np.int8) if bits == 8 else torch.from_numpy(values).bfloat16().view(torch.int16).numpy()


NOTHING = (0.0, 0.0, 1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("n", "n_contexts", "d"), [(1, 1, 64), (31, 5, 64), (32, 16, 128), (64, 32, 64), (97, 33, 192), (40, 70, 64)]
)
def test_a_context_of_one_vector_is_bounded_by_its_product(loops: Loops, n: int, n_contexts: int, d: int) -> None:
    """Exactly, for integers and a coding error of zero."""
    for bits in loops.bits:
        rng = np.random.default_rng(n)
        rows, columns = (rng.integers(-100, 101, (count, d)).astype(np.float32) for count in (n, n_contexts))
        for threads in (1, 3):
            given = list(columns[:, None]), [NOTHING] * n_contexts
            found = in_tiles(loops, bits, in_bits(rows, bits), *given, threads=threads)
            np.testing.assert_allclose(found, columns @ rows.T, rtol=0, atol=2e-30)


@pytest.mark.parametrize("d", [1, 15, 16, 17, 31, 33, 47, 49, 100])
def test_rows_of_fp32_need_not_be_whole_tiles(loops: Loops, d: int) -> None:
    rng = np.random.default_rng(d)
    rows, columns = (rng.integers(-100, 101, (count, d)).astype(np.float32) for count in (37, 3))
    found = in_tiles(loops, 32, rows, list(columns[:, None]), [NOTHING] * 3)
    np.testing.assert_allclose(found, columns @ rows.T, rtol=0, atol=2e-30)


@pytest.mark.deep
def test_more_rows_than_stay_in_the_cache_and_more_columns(loops: Loops) -> None:
    for bits in loops.bits:
        rng = np.random.default_rng(bits)
        for n, n_contexts in ((16384 + 70, 1), (70, 600)):
            rows, columns = (rng.integers(-9, 10, (count, 64)).astype(np.float32) for count in (n, n_contexts))
            given = list(columns[:, None]), [NOTHING] * n_contexts
            found = in_tiles(loops, bits, in_bits(rows, bits), *given)
            np.testing.assert_allclose(found, columns @ rows.T, rtol=0, atol=2e-30)


def least_in_both_parts() -> float:
    """The number from 1 to 2 with the largest error as a sum of two bf16 numbers."""
    return float(np.float32(1.0 + 2.0**-8 - 2.0**-17 - 2.0**-23))


def test_products_of_fp32_have_only_rounding_errors(loops: Loops) -> None:
    """For sums in any order, if rows are not split."""
    for d in (1, 33, 64, 500):
        rng = np.random.default_rng(d)
        rows, columns = (rng.standard_normal((count, d)).astype(np.float32) for count in (61, 20))
        found = in_tiles(loops, 32, rows, list(columns[:, None]), [NOTHING] * 20)
        exact = columns.astype(np.longdouble) @ rows.astype(np.longdouble).T
        size = np.linalg.norm(columns.astype(np.float64), axis=1)[:, None] * np.linalg.norm(
            rows.astype(np.float64), axis=1
        )
        off = rounding_of_product(d) + (kernels.ROUNDING_OF_TILES if loops.amx else 0.0)
        assert (np.abs(found - exact) <= off * size + 2e-30).all()


@by_amx
@pytest.mark.parametrize("d", [32, 64, 512])
def test_split_products_stay_within_their_stated_error(loops: Loops, d: int) -> None:
    """By ``ROUNDING_OF_TILES`` of both norms plus the rounding of sums, also if all errors have one sign."""
    rng = np.random.default_rng(d)
    rows = rng.standard_normal((40, d)).astype(np.float32)
    columns = rng.standard_normal((20, d)).astype(np.float32)
    rows[0] = columns[0] = least_in_both_parts()
    rows[1], columns[1] = np.float32(-least_in_both_parts()), np.float32(4 * least_in_both_parts())
    rows[2] = np.where(rng.random(d) < 0.5, 1.0, -1.0) * least_in_both_parts() * 2.0 ** rng.integers(-3, 4, d)
    columns[2] = rows[2]
    found = in_tiles(loops, 32, rows, list(columns[:, None]), [NOTHING] * 20)
    exact = columns.astype(np.longdouble) @ rows.astype(np.longdouble).T
    size = np.linalg.norm(columns.astype(np.float64), axis=1)[:, None] * np.linalg.norm(rows.astype(np.float64), axis=1)
    relative = np.abs(found - exact) / size
    assert relative.max() <= kernels.ROUNDING_OF_TILES + rounding_of_product(d)
    assert relative.max() >= 0.9 * kernels.ROUNDING_OF_TILES  # and the constant is nearly the least possible
    assert np.median(relative) <= 2.0**-18  # all products of parts except the smallest


def formula(
    products: NDArray[np.float64], error: Any, of: tuple[float, ...], *, spread: bool, given_back: float = 0.0
) -> NDArray[np.float64]:
    """The least of three bounds, in fp64: see ``polyrank.search.scoring.upper_bounds``.

    ``given_back``: the share of the mean square below the best by which deviations are raised.
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


@pytest.mark.parametrize("m", [2, 16, 500])
def test_bounds_in_tiles_equal_the_formula(loops: Loops, m: int) -> None:
    """One product is far above the others, so that each of the three bounds is the least for some error."""
    for bits in loops.bits:
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
            found = in_tiles(loops, bits, in_bits(rows, bits), [contexts], [of], error, lost)[0]
            least, most = (formula(truth, whole, of, spread=bits != 32, given_back=part) for part in (0.0, 3e-5))
            tiny = 2e-5 * (most - of[3] - truth.min(1)) + 1e-6 * (whole + np.abs(most) + 1.0)
            assert (found >= least - 2e-6 * (1.0 + np.abs(least) + whole)).all()
            assert (found <= most + tiny).all()


def test_rounding_of_the_best_product_depends_on_its_size(loops: Loops) -> None:
    rows, context = np.zeros((4, 64), np.float32), np.zeros((1, 64), np.float32)
    rows[:, 0], context[0, 0] = (0.0625, -0.0625, 2.0, -2.0), 1.0
    found = in_tiles(loops, 32, rows, [context], [(0.0, 0.0, 1.0, 0.0, 0.5)])
    assert found[0].tolist() == [0.09375, -0.03125, 3.0, -1.0]


def test_a_bound_in_tiles_rounds_up(loops: Loops) -> None:
    """For any error, exp is never below the true value by more than rounding."""
    n, m = 2000, 512
    rows, contexts = np.zeros((n, 64), np.int8), np.zeros((m, 64), np.float32)
    rows[:, 0], contexts[1:, 0] = 1, -5.0
    error = np.linspace(1e-3, 0.55, n).astype(np.float32)
    found = in_tiles(loops, 8, rows, [contexts], [(0.0, 1.0, 50.0, 0.0, 0.0)], error)[0]
    truth = rows.astype(np.float64) @ contexts.T.astype(np.float64)
    given = truth, error.astype(np.float64), (0.0, 1.0, 50.0, 0.0, 0.0)
    assert (found < error).all()  # the bound near these products is the least
    assert (found >= formula(*given, spread=True) - 4e-7).all()
    assert (found <= formula(*given, spread=True, given_back=2.1e-5) + 2e-5 * 8.0 * error + 2e-5).all()


def test_contexts_that_share_a_product_keep_their_own_columns_and_limits(loops: Loops) -> None:
    for bits in loops.bits:
        rng = np.random.default_rng(bits)
        rows = rng.integers(-2, 3, (45, 64)).astype(np.float32)
        contexts = [rng.integers(-1, 2, (m, 64)).astype(np.float32) for m in (1, 17, 40, 3)]
        limits = [(1.0 + c, 0.1 * c, 1.0 + c, 0.5 * c, 0.0) for c in range(4)]
        norms, lost = rng.random(45, np.float32), rng.random(45, np.float32)
        together = in_tiles(loops, bits, in_bits(rows, bits), contexts, limits, norms, lost, threads=2)
        for context, limit, mine in zip(contexts, limits, together, strict=True):
            np.testing.assert_array_equal(
                in_tiles(loops, bits, in_bits(rows, bits), [context], [limit], norms, lost)[0], mine
            )
            error = norms * np.float64(limit[1]) + lost * np.float64(limit[0])
            theirs = formula(rows.astype(np.float64) @ context.T, error, limit, spread=bits != 32)
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_bounds_in_tiles_propagate_nan(loops: Loops, value: float) -> None:
    for bits in [b for b in loops.bits if b != 8]:
        rows = np.ones((40, 64), np.float32)
        rows[33, 5] = value
        for m in (1, 4):
            found = in_tiles(
                loops, bits, in_bits(rows, bits), [np.ones((m, 64), np.float32)], [(1.0, 0.0, 2.0, 0.0, 0.0)]
            )
            assert np.flatnonzero(~np.isfinite(found[0])).tolist() == [33]


# ---- means and bounds of a few products ----


def means(loops: Loops, products: Floats, *, spread: bool, threads: int = 1) -> tuple[Floats, Floats, Floats]:
    n, m = products.shape
    found = [within(n) for _ in range(3)]
    places = [address(inside) for inside, _ in found]
    loops.library.polyrank_means(
        products.ctypes.data,
        products.strides[0] // 4,
        n,
        m,
        *places[:2],
        places[2] if spread else None,
        loops.form,
        threads,
    )
    assert all(untouched(around) for _, around in found)
    return found[0][0], found[1][0], found[2][0]


def test_exp_of_the_means_is_accurate_to_fp32(loops: Loops) -> None:
    """The mean of two products 0 and -x is -x w / (1 + w) with w = exp(-x), so every x tests the accuracy of exp."""
    x = np.linspace(1e-3, 79.0, 40_001).astype(np.float32)
    mean, best, spread = means(loops, np.stack([-x, 0.0 * x], 1), spread=True, threads=3)
    w = np.exp(-x.astype(np.float64))
    assert (best == 0.0).all()
    np.testing.assert_allclose(mean, -x * w / (1.0 + w), rtol=1e-6, atol=4e-32)  # padding has the weight exp(-80)
    deviation = x * np.sqrt(w) / (1.0 + w)
    assert (spread >= deviation * (1.0 - 1e-6)).all()
    np.testing.assert_allclose(spread, deviation, rtol=1e-3, atol=1e-15)


def test_products_far_below_the_best_have_no_weight(loops: Loops) -> None:
    """And does not produce infinite or denormal numbers."""
    x = np.array([80.0, 81.0, 100.0, 1e4, 1e30, 3e38], np.float32)
    mean, _, spread = means(loops, np.stack([0.0 * x, -x], 1), spread=True)
    assert (np.abs(mean) <= 1e-30).all()
    assert (spread <= 1e-14).all()
    assert means(loops, np.full((1, 17), -3e38, np.float32), spread=True)[0][0] == np.float32(-3e38)


@pytest.mark.parametrize("m", [1, 2, 3, 15, 16, 17, 31, 32, 33, 100])
def test_means_use_exactly_the_products_of_a_row(loops: Loops, m: int) -> None:
    """Rows have gaps whose values must not count as products; each product is the largest once."""
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
            mean, best, spread = means(loops, inside, spread=wanted, threads=threads)
            assert (best == 2.5).all()
            np.testing.assert_allclose(mean, theirs, rtol=0, atol=3e-6)
            if wanted:
                np.testing.assert_allclose(spread, deviation, rtol=0, atol=1e-3 if m == 1 else 2e-4)
                assert (spread >= deviation * (1.0 - 1e-6)).all()
            else:
                assert (spread == OUTSIDE).all()


def test_bounds_of_a_few_products_equal_the_formula(loops: Loops) -> None:
    rng = np.random.default_rng(1)
    n, q = 101, 5
    wide = rng.standard_normal((n, q + 3)).astype(np.float32)
    own = wide[:, 1 : q + 1]
    norms, lost = (3.0 + rng.random(n)).astype(np.float32), (0.1 + rng.random(n)).astype(np.float32)
    norms[7], lost[7] = 0.5, 0.0
    own[7] = 1.0  # more inside than in total, so the rest is zero
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
        loops.library.polyrank_bounds(*given, address(found), address(off), loops.form, threads)
        np.testing.assert_allclose(off, errors, rtol=2e-6)
        np.testing.assert_allclose(found, bounds, rtol=2e-6, atol=2e-6)
        assert untouched(around)
        assert untouched(around_off)


# ---- search in tiles ----


def pooled(vectors: Floats) -> Block:
    """A block of live candidates."""
    return Block(vectors, np.arange(len(vectors)))


def scanned(way: str, contexts: list[Floats], pool: Block, k: int) -> list[Best]:
    bests = [Best(context, k) for context in contexts]
    with torch.inference_mode():
        scan([WAYS[way].query(best) for best in bests], pool, MACHINE)
    return bests


MACHINE = Machine(compiled=True, bf16=True)


def ways_of(loops: Loops) -> list[str]:
    return [{8: "int8 tiles", 16: "bf16 tiles", 32: "plain tiles"}[bits] for bits in loops.bits]


def test_scans_in_tiles_find_the_best_among_near_ties(loops: Loops) -> None:
    """Scores differ by 1e-7, for contexts with one vector and with several."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        contexts = [rng.standard_normal((m, 64)).astype(np.float32) for m in (9, 30)]
        near = rng.standard_normal((1, 64)) * (1.0 + 1e-7 * rng.integers(0, 9, (600, 1)))
        pool = pooled(near.astype(np.float32))
        for way in ways_of(loops):
            for context, best in zip(contexts, scanned(way, contexts, pool, 5), strict=True):
                truth = score_rows(context, np.ones(len(context), bool), pool.vectors)
                rows = np.lexsort((pool.rows, -truth))[:5]
                assert best.result(exact=True).rows.tolist() == rows.tolist()


def test_scans_in_tiles_rule_out_nearly_all(loops: Loops) -> None:
    rng = np.random.default_rng(2)
    pool = pooled(rng.standard_normal((3000, 64)).astype(np.float32))
    contexts = [rng.standard_normal((10, 64)).astype(np.float32) / 4 for _ in range(2)]
    for way in ways_of(loops):
        for context, best in zip(contexts, scanned(way, contexts, pool, 3), strict=True):
            truth = score_rows(context, np.ones(10, bool), pool.vectors)
            result = best.result(exact=True)
            assert result.rows.tolist() == np.lexsort((pool.rows, -truth))[:3].tolist()
            assert result.n_scored == 3000 if way == "plain tiles" else result.n_scored < 700


def test_rows_with_the_largest_splitting_error_are_found(loops: Loops) -> None:
    """AMX underestimates the best candidate's product the most; the others' products are exact."""
    d = 64
    context = np.full((8, d), least_in_both_parts(), np.float32)
    true = float(context[0].astype(np.float64) @ context[0].astype(np.float64))
    others = np.zeros((400, d), np.float32)
    others[:, 0] = np.float32(true / context[0, 0]) * (1.0 - np.linspace(1e-6, 2.8e-5, 400))
    pool = pooled(np.concatenate([others, context[:1]]))
    [best] = scanned("plain tiles", [context], pool, 1)
    assert best.result(exact=True).rows.tolist() == [400]


@pytest.mark.parametrize("of", ["candidate", "context"])
def test_rows_with_a_large_coding_error_are_found_in_tiles(loops: Loops, of: str) -> None:
    """The coding error of the best candidate, or of its context, is as large as its lead."""
    d = 64
    for bits in [bits for bits in loops.bits if bits != 32]:
        telling = np.full(d, 1.0 + 2.0**-8 - 2.0**-20)  # rounds to ones in bf16
        if bits == 8:
            telling = np.r_[127.0 if of == "candidate" else 32638.0, np.arange(d - 1) % 7 + 0.4999]
        plain = np.full(d, 1.0)
        context, target = (plain, telling) if of == "candidate" else (telling, plain)
        context[0], seen = (1.0 if bits == 16 else context[0]), np.floor(context) @ np.floor(target)
        others = np.zeros((300, d))
        others[:, 0] = np.linspace(seen, context @ target, 302)[1:-1] / context[0]
        pool = pooled(np.concatenate([others, target[None]]).astype(np.float32))
        way = "int8 tiles" if bits == 8 else "bf16 tiles"
        [best] = scanned(way, [context[None].astype(np.float32)], pool, 1)
        assert best.result(exact=True).rows.tolist() == [300]


def test_limits_bound_the_error_of_products(loops: Loops) -> None:
    """By the coding error, (D + 8) roundings and, for split rows, 2^-15 of both norms, and not much more."""
    context = np.random.default_rng(9).standard_normal((30, 64)).astype(np.float32)
    for way in ways_of(loops):
        query, u = WAYS[way].query(Best(context, 1)), 2.0**-24
        norm = float(np.linalg.norm(context.astype(np.float64), axis=1).max())
        size, alone, steep, of_mean, of_best = _limits(query)
        split = 2.0**-15 if loops.amx and way == "plain tiles" else 0.0
        least = query.context_error + (72 * u + split) * norm
        assert (query.context_error > 0.0) == (way != "plain tiles")
        assert least <= alone <= least * 1.00001
        assert norm + least <= size <= (norm + least) * 1.00001
        assert steep == pytest.approx(1.0 + 2.0 * log(30))
        assert of_mean == pytest.approx(4.0 * 46 * u * (1.0 + log(30)))
        assert of_best == 4.0 * u


def test_lengths_of_rows_that_tiles_support(loops: Loops) -> None:
    for bits in (8, 32):
        assert [kernels.in_tiles(bits, d) for d in (1, 33, 2048, 2049, 8192, 8193)] == [True] * 5 + [False]
    assert [kernels.in_tiles(16, d) for d in (32, 48, 2048, 2080)] == [loops.amx, False, loops.amx, False]
    assert [kernels.form_of_tiles(d) for d in (64, 2049)] == [loops.form, 5 if loops.amx else loops.form]


def test_search_in_tiles_equals_a_plain_scan(loops: Loops) -> None:
    rng = np.random.default_rng(6)
    pool = pooled(rng.standard_normal((4500, 64)).astype(np.float32))
    contexts, mask = rng.standard_normal((3, 12, 64)).astype(np.float32), np.ones((3, 12), bool)
    mask[1, 3:] = False
    plain = search(contexts, mask, [pool], 7, ways=["plain"], compiled=False)
    for ways in (list(WAYS), *([way] for way in ways_of(loops))):
        for one, other in zip(search(contexts, mask, [pool], 7, ways=ways), plain, strict=True):
            assert one.rows.tolist() == other.rows.tolist()
            assert one.scores.tolist() == other.scores.tolist()
    pool.vectors[4000, 3] = np.inf
    with pytest.raises(ArtifactError, match="not finite"):
        search(contexts, mask, [pooled(pool.vectors.copy())], 7)


@by_two_forms
@pytest.mark.parametrize("most", [7, pytest.param(8192, marks=pytest.mark.deep)])
def test_contexts_of_all_ways_share_a_scan(loops: Loops, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two contexts for each way, and candidates that are deferred in one part or in several."""
    monkeypatch.setattr("polyrank.search.best.WAITING", most)
    rng, d = np.random.default_rng(most), 64
    machine = Machine(compiled=True, bf16=False)
    names = [name for name in WAYS if WAYS[name].usable(d, machine)] * 2
    assert {"plain tiles", "int8 tiles", "int8", "4 columns int8"} <= {*names}
    contexts = (rng.normal(size=(len(names), 1, d)) + 0.2 * rng.normal(size=(len(names), 17, d))).astype(np.float32)
    pool, alive = (rng.normal(size=d) + 0.01 * rng.normal(size=(700, d))).astype(np.float32), rng.random(700) < 0.8
    shared = Block(pool, np.arange(700) + 5, alive, rng.exponential(size=700).astype(np.float32))
    mask = np.ones(contexts.shape[:2], np.bool_)
    wanted = search(contexts, mask, [shared], 6, ways=["plain"], compiled=False)
    n_alone = []
    for name, vectors in zip(names, contexts, strict=True):
        with torch.inference_mode():
            scan([WAYS[name].query(best := Best(vectors, 6))], shared, machine)
        n_alone.append(best.n_scored)
    for order in (1, -1):
        bests = [Best(vectors, 6) for vectors in contexts]
        with torch.inference_mode():
            scan([WAYS[name].query(best) for name, best in zip(names, bests, strict=True)][::order], shared, machine)
        for name, best, one, n in zip(names, bests, wanted, n_alone, strict=True):
            found = best.result(exact=True)
            assert found.ways == (name,)
            assert found.n_scored == n or "tiles" not in name  # torch rounds in another way if contexts share a product
            np.testing.assert_array_equal(found.rows, one.rows)
            np.testing.assert_array_equal(found.scores, one.scores)


@by_two_forms
@pytest.mark.parametrize("order", [1, -1])
def test_each_part_of_a_block_has_its_own_scales(loops: Loops, order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large block is scanned in parts. A number that counts for no context makes the scales in int8 rise or fall."""
    monkeypatch.setattr(sys.modules[scan.__module__], "ROWS", (50, 50))
    rng, d, machine = np.random.default_rng(5), 64, Machine(compiled=True, bf16=loops.amx)
    names = [name for name in WAYS if WAYS[name].usable(d, machine)]
    vectors = 4 * rng.normal(size=(420, d)).astype(np.float32)
    vectors[:, 0] = np.exp(np.linspace(0.0, 5.0, 420))[::order]
    pool, contexts = pooled(vectors), (rng.normal(size=(3, 1, d)) + 0.2 * rng.normal(size=(3, 5, d))) / 4
    contexts[:, :, 0] = 0.0
    contexts = contexts.astype(np.float32)
    wanted = search(contexts, np.ones((3, 5), np.bool_), [pool], 6, ways=["plain"], compiled=False)
    for name in names:
        bests = [Best(context, 6) for context in contexts]
        with torch.inference_mode():
            scan([WAYS[name].query(best) for best in bests], pool, machine)
        for best, one in zip(bests, wanted, strict=True):
            np.testing.assert_array_equal(best.result(exact=True).rows, one.rows, err_msg=name)


@by_amx
def test_long_rows_are_bounded_in_registers_on_amx_machines(loops: Loops) -> None:
    rng = np.random.default_rng(3)
    pool = pooled(rng.standard_normal((40, 2100)).astype(np.float32))
    context = rng.standard_normal((3, 2100)).astype(np.float32) / 40
    truth = np.lexsort((pool.rows, -score_rows(context, np.ones(3, bool), pool.vectors)))[:2]
    for way in ("plain tiles", "int8 tiles", "int8"):
        [best] = scanned(way, [context], pool, 2)
        assert best.result(exact=True).rows.tolist() == truth.tolist()


def test_a_plan_reads_int8_and_scores_few(loops: Loops) -> None:
    rng = np.random.default_rng(8)
    pool = pooled(rng.standard_normal((20_000, 64)).astype(np.float32))
    best = Best(rng.standard_normal((16, 64)).astype(np.float32) / 6, 5)
    with torch.inference_mode():
        query = Policy(MACHINE, Profile()).choose(best, [pool])
    assert query.way.name == "int8 tiles"


def test_unknown_names_of_instructions_are_refused(loops: Loops, monkeypatch: pytest.MonkeyPatch) -> None:
    assert loops.form
    monkeypatch.setenv("POLYRANK_INSTRUCTIONS", "avx3")
    kernels.best_form.cache_clear()
    with pytest.raises(UsageError, match="'avx3' is unknown; set it to one of plain, avx2"):
        kernels.best_form()
    kernels.best_form.cache_clear()


@by_two_forms
def test_a_profile_measures_the_loops_of_the_best_form(loops: Loops, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("N", 64), ("D", 64), ("MANY", 32), ("CHUNK", 32), ("APART", 1)):
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setattr("polyrank.search.blocks.REPEATS", 1)
    now, products, in_tiles = [0], kernels.products, kernels.bounds_in_tiles  # counts pairs of candidate and column

    def of_products(rows: Any, part: slice, columns: Any, out: torch.Tensor) -> None:
        now[0] += len(rows.values[part]) * len(columns.values)
        products(rows, part, columns, out)

    def of_tiles(rows: Any, vectors: kernels.Tiles, norms: Any, *rest: Any) -> Any:
        now[0] += len(norms) * int(vectors.edges[-1])
        return in_tiles(rows, vectors, norms, *rest)

    monkeypatch.setattr(kernels, "products", of_products)
    monkeypatch.setattr(kernels, "bounds_in_tiles", of_tiles)
    monkeypatch.setattr("polyrank.search.blocks.perf_counter", lambda: now[0])
    measured = bench.measure_profile()
    names = ["compiled_exp", "int8_amx" if loops.amx else "int8"]
    tiles = {32: "plain_tiles", 16: "bf16_tiles", 8: "int8_tiles"}
    names += [name for bits, name in tiles.items() if bits in loops.bits]
    for name in names:
        assert getattr(measured, name) != getattr(Profile(), name)
    for name in names[1:]:  # no cost without columns, and that of all candidates for each
        assert getattr(measured, name) == pytest.approx((1e-4, 1e3 * 1e5)), name
    assert describe_machine()["used"]["polyrank-kernels"] == kernels.FORMS[loops.form - 1]
