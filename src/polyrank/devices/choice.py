"""Which device, precision and threads to compute with, and an allocator setting that CPU training wants.

One process has one device. Of several that a launcher has started each takes the GPU of its own number.
"""

import ctypes
import os
import platform
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Literal, cast, get_args

import torch
from torch import Tensor

from polyrank.devices import processes
from polyrank.errors import UsageError

Precision = Literal["auto", "fp32", "bf16"]
INSTRUCTIONS = ("plain", "avx2", "avx-vnni", "avx512", "avx512-vnni", "amx", "dot")  # the last are ARM's

WINDOW_S = 0.2  # seconds, over which the load is looked at: tens of the ticks that it is counted in


def choose_device(name: str = "auto") -> torch.device:
    """ "auto" is CUDA where there is one, else the CPU; of several processes each has a GPU of its own.

    Raises:
        UsageError: the device asked for is not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"device {name!r} is unknown; use auto, cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device {name!r} is not available on this machine; use cpu")
    own = processes.local_number()
    if device.type != "cuda" or own is None:
        return device
    if own >= torch.cuda.device_count():
        raise UsageError(
            f"process {own + 1} of this machine has no GPU of its own among {torch.cuda.device_count()}; start at most"
            " that many, or use --device cpu"
        )
    torch.cuda.set_device(own)  # where messages between processes go through
    return torch.device("cuda", own)


def choose_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """The type of the large products: bf16 where it is asked for, or where "auto" finds hardware for it.

    What "auto" stands for may be set by POLYRANK_PRECISION, for figures that do not depend on the machine.

    Raises:
        UsageError: POLYRANK_PRECISION is no precision.
    """
    if precision == "auto":
        wanted = os.environ.get("POLYRANK_PRECISION", "auto")
        if wanted not in get_args(Precision):
            known = ", ".join(get_args(Precision))
            raise UsageError(f"POLYRANK_PRECISION={wanted!r} is no precision; set it to one of {known}")
        precision = cast(Precision, wanted)
    if precision == "auto":
        fast = torch.cuda.is_bf16_supported(including_emulation=False) if device.type == "cuda" else cpu_has_bf16()
        return torch.bfloat16 if fast else torch.float32
    return torch.bfloat16 if precision == "bf16" else torch.float32


def full_precision(values: Tensor) -> AbstractContextManager[object]:
    """What is computed of ``values`` in here is not narrowed, whatever surrounds it: bf16 is for transformers alone.

    Scores in bf16 would be 1/8 apart between 16 and 32, and ties would decide which model is the best.
    """
    if not torch.is_autocast_enabled(values.device.type):
        return nullcontext()
    return torch.autocast(values.device.type, enabled=False)


@cache
def cpu_info() -> tuple[str, frozenset[str]]:
    """The processor's model and its flags, as Linux tells them; without flags elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    info = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = frozenset(info.get("flags", info.get("features", "")).split())
    return info.get("model name") or platform.processor() or "unknown", flags


def allowed_instructions() -> str:
    """The most of ``INSTRUCTIONS`` that compiled loops may use, from ``POLYRANK_INSTRUCTIONS``; all, if it is not set.

    Raises:
        UsageError: it is none of them.
    """
    name = os.environ.get("POLYRANK_INSTRUCTIONS") or INSTRUCTIONS[-1]
    if name not in INSTRUCTIONS:
        known = ", ".join(INSTRUCTIONS)
        raise UsageError(f"POLYRANK_INSTRUCTIONS={name!r} names no instructions; set it to one of {known}")
    return name


def cpu_has_bf16() -> bool:
    """Whether this processor has instructions for bf16, and may use them; without them it is slower than fp32."""
    few = INSTRUCTIONS.index(allowed_instructions()) < INSTRUCTIONS.index("amx")
    return not few and not cpu_info()[1].isdisjoint({"amx_bf16", "avx512_bf16"})


@cache
def keep_freed_memory() -> bool:
    """Ask glibc to keep freed blocks instead of returning each to the system.

    A training step frees and takes the same large blocks again and again; with glibc's defaults each time is a system
    call and a page fault per 4 KiB. Measured on two AVX-512 cores: MiniLM training 1.4 to 1.6 times faster.

    Returns:
        Whether it was done (only glibc has this).
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4
    done = [library.mallopt(m_mmap_max, 0), library.mallopt(m_trim_threshold, 2**31 - 1)]
    return all([*done, library.mallopt(m_top_pad, 256 * 2**20)])


def set_threads(n: int) -> None:
    """Compute on ``n`` threads from now on, whatever else keeps the processor busy.

    Raises:
        UsageError: it is no number of threads.
    """
    if n < 1:
        raise UsageError(f"{n} threads compute nothing; use at least 1")
    torch.set_num_threads(n)
    _load.watched = False


@contextmanager
def free_cores() -> Iterator[None]:
    """In here torch computes on those of its threads for which there are cores that nobody else keeps busy.

    Every product ends when its last thread does, so a thread that waits for its turn holds up all others, a hundred
    times in one pass. Measured on two cores with three busy processes: one context through a network of six layers
    takes 90 ms on one thread and 900 on two; 512 replies 11 seconds and 27. For inference: scores do not depend on it,
    while in training sums over threads would.
    """
    most = torch.get_num_threads()
    n = most if most == 1 or not _load.watched else max(1, min(most, _load.free()))
    if n == most:
        yield
        return
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(most)


class _Load:
    """How many cores nobody else keeps busy, as Linux counts it; elsewhere all are taken to be free."""

    def __init__(self) -> None:
        self.watched = True
        self._free = os.cpu_count() or 1
        self._then = self._counted()

    def free(self) -> int:
        """Cores that were idle, or busy with this process, for most of the last moments."""
        now = self._counted()
        elapsed = now[0] - self._then[0]
        if elapsed >= WINDOW_S:
            self._free, self._then = round((now[1] - self._then[1]) / elapsed - 0.2), now
        return self._free

    @staticmethod
    def _counted() -> tuple[float, float]:
        """Seconds on the clock, and those in which cores of this process's were idle or busy with it."""
        clock = time.monotonic()
        try:
            names = {f"cpu{core}" for core in os.sched_getaffinity(0)}
            lines = map(str.split, Path("/proc/stat").read_text("ascii").splitlines())
            # the fourth number is of ticks without work, the fifth of those that waited for a disk
            idle = sum(int(line[4]) + int(line[5]) for line in lines if line and line[0] in names)
            return clock, idle / os.sysconf("SC_CLK_TCK") + time.process_time()
        except (OSError, AttributeError, ValueError, IndexError):
            return clock, clock * (os.cpu_count() or 1)


_load = _Load()
