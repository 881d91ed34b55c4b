"""The machine's profile for search, measured in a few seconds; see ``polyrank.search.profile``."""

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyrank.bench.machine import describe_machine
from polyrank.devices.choice import cpu_has_bf16
from polyrank.search import kernels
from polyrank.search.blocks import lay_out, norms_of, shortest
from polyrank.search.profile import Line, Profile, save_profile, shipped_profile
from polyrank.search.scoring import loose_bounds, mean_of, precise_scores
from polyrank.search.subspace import find_subspace

N, D = 32_768, 768
CHUNK = 8192  # rows of a product
FEW, MANY = 2, 64  # columns
APART = 512  # candidates


def bench_profile(*, progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Measure the profile of this machine with torch's number of threads, and save it for later searches.

    Args:
        progress: called with the name of the next step.

    Returns:
        ``machine``, ``path`` (of the file) and ``rows`` of ``what``, ``shipped`` and ``measured``: milliseconds for
        100,000 candidates of 768 dimensions.

    Raises:
        ResourceError: the profile cannot be written.
    """
    profile = measure_profile(progress)
    path = save_profile(profile)
    shipped, measured = _flat(shipped_profile()), _flat(profile)
    rows = [{"what": name, "shipped": shipped[name], "measured": measured[name]} for name in shipped]
    return {"machine": describe_machine(), "path": str(path), "rows": rows}


def measure_profile(progress: Callable[[str], None] = lambda _: None) -> Profile:
    """Measure a profile without saving it. Numbers of instructions or loops that this machine lacks stay as shipped."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((N, D), np.float32)
    rows, columns = torch.from_numpy(vectors), torch.from_numpy(rng.standard_normal((MANY, D), np.float32))
    products = torch.from_numpy(rng.standard_normal((CHUNK, MANY), np.float32))
    error, spare = torch.full((CHUNK,), 0.1), torch.empty_like(products)
    chosen = torch.arange(0, CHUNK, 2)
    compiled = kernels.package() is not None
    with torch.inference_mode():
        progress("products in fp32, exponentials, columns")
        few, many = (1e3 * shortest(partial(find_subspace, columns[:m], int16=compiled)) for m in (16, MANY))
        apart = shortest(lambda: precise_scores(columns[:1].double(), vectors[::64][:APART]))
        profile = Profile(
            plain=_line(rows, columns),
            exp=_unit(shortest(lambda: mean_of(products.clone(), spare)), CHUNK) / MANY,
            fine=_unit(shortest(lambda: loose_bounds(products[chosen], error[chosen], compiled=compiled)), len(chosen))
            / MANY,
            apart=_unit(apart, APART),
            subspace=(few, _positive((many - few) / MANY)),
        )
        if cpu_has_bf16():
            progress("products in bf16")
            profile = replace(profile, bf16=_line(rows.bfloat16(), columns.bfloat16()))
        if compiled:
            progress("compiled loops")
            profile = replace(profile, **_compiled(vectors, rows, columns, products))
    return profile


def _compiled(vectors: np.ndarray[Any, Any], rows: Tensor, columns: Tensor, products: Tensor) -> dict[str, Any]:
    """The profile's fields for the compiled loops."""
    quantized, norms, out = kernels.quantized_of(vectors), norms_of(vectors), torch.empty(N * MANY)

    def multiply(n: int) -> float:
        joined = kernels.join([kernels.to_int16(columns[:n])])
        result = out[: N * n].view(N, n)
        return shortest(lambda: kernels.products(quantized, slice(0, N), joined, result))

    def in_tiles(bits: kernels.Bits, n: int) -> float:
        tiles = kernels.to_tiles([kernels.to_int16(columns[:n]) if bits == 8 else columns[:n]], bits)
        given = quantized if bits == 8 else rows.bfloat16() if bits == 16 else rows
        errors = None if bits == 32 else quantized.row_errors
        limits = [(1.0, 1e-3, 9.0, 1e-5, 1e-6)]
        return shortest(lambda: kernels.bounds_in_tiles(given, tiles, norms, errors, limits))

    fields: dict[str, Any] = {"compiled_exp": _unit(shortest(lambda: kernels.means(products)), CHUNK) / MANY}
    fields["int8_amx" if kernels.has_amx() else "int8"] = _sloped(multiply, FEW)
    names: dict[kernels.Bits, str] = {32: "plain_tiles", 16: "bf16_tiles", 8: "int8_tiles"}
    for bits, name in names.items():
        if kernels.in_tiles(bits, D):
            fields[name] = _sloped(partial(in_tiles, bits), kernels.COLUMNS)
    return fields


def _line(rows: Tensor, columns: Tensor) -> Line:
    """The cost of a product by torch: its minimum, and that of each of many columns."""

    def multiply(n: int) -> float:
        stack = lay_out(columns[:n], N)
        out = torch.empty(CHUNK, n, dtype=rows.dtype)
        return shortest(lambda: [torch.mm(rows[i : i + CHUNK], stack, out=out) for i in range(0, N, CHUNK)])

    return _unit(multiply(FEW), N), _unit(multiply(MANY), N) / MANY


def _sloped(seconds: Callable[[int], float], few: int) -> Line:
    """The cost without columns, and that of each column."""
    least, most = seconds(few), seconds(MANY)
    slope = max(most - least, 0.0) / (MANY - few)
    return _unit(least - few * slope, N), _unit(slope, N)


def _unit(seconds: float, n: int) -> float:
    """Milliseconds for 100,000 candidates."""
    return _positive(1e3 * seconds * 1e5 / n)


def _positive(milliseconds: float) -> float:
    return max(milliseconds, 1e-4)


def _flat(profile: Profile) -> dict[str, float]:
    """The numbers of a profile by name, with four decimals."""
    numbers: dict[str, float] = {}
    for name, value in asdict(profile).items():
        lines = {name: value} if isinstance(value, float) else {name: value[0], f"{name}, each": value[1]}
        numbers |= {key: round(number, 4) for key, number in lines.items()}
    return numbers
