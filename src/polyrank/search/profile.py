"""How long the parts of a search take on this machine, from which the choice of a way of scanning is estimated.

``polyrank bench profile`` measures a profile and keeps it in the user's cache, one for each processor model and number
of threads. If the profile is missing or damaged, the shipped numbers apply. Answers never depend on it.
"""

import os
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from math import isfinite
from pathlib import Path

import torch

from polyrank.config.checked import from_dict
from polyrank.devices.choice import cpu_has_bf16, cpu_info
from polyrank.errors import PolyrankError
from polyrank.search import kernels
from polyrank.search.blocks import shortest
from polyrank.storage.document import DocumentKind, read_document, seal
from polyrank.storage.durable import write_file

PROFILES = DocumentKind(
    name="folder of machine profiles",
    file="profile.json",
    missing="measure one with polyrank bench profile",
    remedy="measure it again with polyrank bench profile",
)
Line = tuple[float, float]  # the cost of reading the candidates, and of multiplying them with each column


@dataclass(frozen=True, slots=True)
class Profile:
    """Milliseconds for 100,000 candidates of 768 dimensions; the defaults are for AMX, or without compiled loops.

    Only their proportions count.

    Args:
        plain: reading candidates in fp32, and each column; a product costs the larger of the two.
        bf16: the same in bf16.
        int8: in int8 by the compiled loops; here and below the two costs add up.
        int8_amx: in int8 by AMX, products alone.
        plain_tiles, bf16_tiles, int8_tiles: by the compiled loops in tiles, including bounds.
        exp: one exponential for each candidate, with its sums.
        compiled_exp: the same by the compiled loops.
        subspace: finding columns for a context, and for each of its vectors; once for a search of any size.
        fine: one product for each candidate that is bounded finely.
        apart: each candidate being scored apart from its neighbours.
    """

    plain: Line = (45.0, 1.6)
    bf16: Line = (12.0, 0.8)
    int8: Line = (5.5, 2.2)
    int8_amx: Line = (8.5, 0.2)
    plain_tiles: Line = (32.0, 0.42)
    bf16_tiles: Line = (13.5, 0.19)
    int8_tiles: Line = (7.0, 0.2)
    exp: float = 0.4
    compiled_exp: float = 0.12
    subspace: Line = (3.0, 0.03)
    fine: float = 1.0
    apart: float = 150.0


# Measured on one core of an AVX-512 machine that was limited to these instructions.
_AVX2 = Profile(
    plain=(31.0, 1.65),
    int8=(1.0, 1.1),
    plain_tiles=(5.0, 1.33),
    int8_tiles=(5.5, 0.77),
    exp=0.14,
    compiled_exp=0.05,
    subspace=(0.4, 0.012),
    fine=0.13,
)
_AVX512 = replace(_AVX2, int8=(1.3, 0.42), plain_tiles=(5.0, 0.77), int8_tiles=(6.0, 0.45))
_SSE2 = replace(_AVX2, int8=(4.0, 3.6), plain_tiles=(20.0, 3.5), int8_tiles=(6.0, 1.75), compiled_exp=0.15)
SHIPPED = {"plain": _SSE2, "avx2": _AVX2, "avx-vnni": _AVX2, "avx512": _AVX512, "avx512-vnni": _AVX512, "dot": _AVX2}


def profile_folder() -> Path:
    """The folder of profiles: ``$XDG_CACHE_HOME/polyrank``, or ``~/.cache/polyrank``."""
    cache_home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache_home if cache_home.is_absolute() else Path.home() / ".cache") / "polyrank"


def profile_key() -> str:
    """The key of this machine's profile: the processor's model, the number of threads, the limit on instructions."""
    limit = os.environ.get("POLYRANK_INSTRUCTIONS")
    return f"{cpu_info()[0]}, {torch.get_num_threads()} threads" + (f", {limit} at most" if limit else "")


def load_profile() -> Profile:
    """The profile measured on this machine with this number of threads, or the shipped numbers."""
    try:
        return _load(profile_folder(), profile_key())
    except RuntimeError:  # the user has no home directory
        return shipped_profile()


def save_profile(profile: Profile) -> Path:
    """Save a profile for this machine and number of threads, next to those of others.

    Raises:
        ResourceError: the disk is full or failing.
    """
    folder = profile_folder()
    try:
        profiles = read_document(folder, PROFILES)["profiles"]
    except (PolyrankError, OSError):
        profiles = {}
    profiles = profiles if isinstance(profiles, dict) else {}
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / PROFILES.file, seal({"profiles": {**profiles, profile_key(): asdict(profile)}}, PROFILES))
    _load.cache_clear()
    return folder / PROFILES.file


@cache
def _load(folder: Path, key: str) -> Profile:
    try:
        profile = from_dict(Profile, read_document(folder, PROFILES)["profiles"][key])
    except (PolyrankError, OSError, TypeError, AttributeError):
        return shipped_profile()
    values = asdict(profile).values()
    lines = [value if isinstance(value, tuple) else (value, value) for value in values]
    good = all(len(line) == 2 and all(isfinite(n) and n > 0.0 for n in line) for line in lines)
    return profile if good else shipped_profile()


@cache
def shipped_profile() -> Profile:
    """The shipped numbers, except bf16: its speed differs tenfold between processors, so it is timed once."""
    form = kernels.best_form()
    shipped = SHIPPED.get(kernels.FORMS[form - 1], Profile()) if form else Profile()
    if not cpu_has_bf16():
        return shipped
    rows, columns = torch.ones(2048, 768), torch.ones(768, 64)
    in_bf16, in_fp32 = (
        shortest(partial(torch.mm, rows.to(dtype), columns.to(dtype))) for dtype in (torch.bfloat16, torch.float32)
    )
    return replace(shipped, bf16=(shipped.bf16[0], shipped.plain[1] * in_bf16 / in_fp32))
