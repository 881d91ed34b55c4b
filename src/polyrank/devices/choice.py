"""Which device, precision and threads to compute with.

One process uses one device. Under a launcher each process uses the GPU of its local rank.
"""

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

from polyrank.devices import distributed
from polyrank.errors import UsageError

Precision = Literal["auto", "fp32", "bf16", "fp16", "int8"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8}
INSTRUCTIONS = ("plain", "avx2", "avx-vnni", "avx512", "avx512-vnni", "amx", "dot")  # "dot" is ARM's

WINDOW_S = 0.2  # seconds over which the load is measured: tens of the ticks that Linux counts it in


def choose_device(name: str = "auto") -> torch.device:
    """The device of this process; "auto" is CUDA or Apple's "mps", whichever is available, else the CPU.

    Distributed processes do not use "mps": a Mac has one GPU.

    Raises:
        UsageError: the device is unknown or not available.
    """
    rank = int(os.environ.get("LOCAL_RANK", 0)) if distributed.launched_as()[1] > 1 else None  # on its machine
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available() and rank is None}
    if name == "auto":
        name = next((kind for kind, there in available.items() if there), "cpu")
    if name.partition(":")[0] not in ("cpu", *available):
        raise UsageError(f"device {name!r} is unknown; use auto, cpu, cuda or mps")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"device {name!r} is unknown; use auto, cpu, cuda or mps") from error
    if not available.get(device.type, True):
        where = "on this machine" if rank is None or device.type == "cuda" else "to several processes"
        raise UsageError(f"device {name!r} is not available {where}; use cpu")
    n_gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    if rank is None and device.type == "cuda" and (device.index or 0) >= max(n_gpus, 1):
        raise UsageError(f"device {name!r} is not available on this machine: use up to cuda:{n_gpus - 1}")
    if device.type == "cuda":
        # cuDNN's attention makes a plan for every new shape of a batch, and the lengths of texts vary: on an H200 this
        # took most of the time of training a late Cross-encoder, 13 ms per call
        torch.backends.cuda.enable_cudnn_sdp(False)
    if device.type != "cuda" or rank is None:
        return device
    if rank >= torch.cuda.device_count():
        raise UsageError(
            f"process {rank + 1} of this machine has no GPU: the machine has {torch.cuda.device_count()}; start at most"
            " that many processes, or use `device=cpu`"
        )
    torch.cuda.set_device(rank)  # NCCL sends through the current device
    return torch.device("cuda", rank)


def turn_of(number: int, name: str) -> str:
    """The device of one of several independent processes, which take turns on this machine's GPUs.

    Args:
        number: of the process, from 0.
        name: as for ``choose_device``; a name with a number, such as "cuda:1", is the device of all.
    """
    device = choose_device(name)
    if device.type != "cuda" or device.index is not None or torch.cuda.device_count() < 2:
        return name
    return f"cuda:{number % torch.cuda.device_count()}"


def choose_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """The type of the large matrix products; "auto" is bf16 on hardware that is fast at it, else fp32.

    It is never fp16, in which numbers above 65,504 overflow: a network trained in other types may have larger ones.
    "int8", which only ``choose_weights`` knows, counts as "auto".
    The environment variable POLYRANK_PRECISION replaces "auto", for figures that do not depend on the machine.

    Raises:
        UsageError: POLYRANK_PRECISION is not a precision.
    """
    precision = _replaced(precision)
    if precision in ("auto", "int8"):
        if device.type == "cuda":
            fast = torch.cuda.is_bf16_supported(including_emulation=False)
        else:
            fast = device.type == "cpu" and cpu_has_bf16()  # torch does not report which Macs emulate bf16
        return torch.bfloat16 if fast else torch.float32
    return DTYPES[precision]


def choose_weights(precision: Precision, device: torch.device, *, ranks_in_int8: bool = False) -> torch.dtype:
    """The type of a transformer's weights at inference: as ``choose_dtype``, or int8.

    Args:
        precision: "auto" is int8 for a network that ranks alike in it, on CPUs without bf16 instructions.
        device: int8 needs the CPU.
        ranks_in_int8: whether that was checked.

    Raises:
        UsageError: int8 is required and not possible, or POLYRANK_PRECISION is not a precision.
    """
    precision = _replaced(precision)
    possible = device.type == "cpu" and cpu_has_int8()
    if precision == "int8" and not possible:
        raise UsageError(f"8-bit weights are not possible on this {device.type}; use fp32, bf16 or auto")
    if precision == "int8" or (precision == "auto" and ranks_in_int8 and possible and not cpu_has_bf16()):
        return torch.int8
    return choose_dtype(precision, device)


def _replaced(precision: Precision) -> Precision:
    """The precision, or POLYRANK_PRECISION instead of "auto"."""
    wanted = os.environ.get("POLYRANK_PRECISION", "auto") if precision == "auto" else precision
    if wanted not in get_args(Precision):
        names = ", ".join(get_args(Precision))
        name = "POLYRANK_PRECISION" if precision == "auto" else "precision"
        raise UsageError(f"{name}={wanted!r} is not a precision; set it to one of {names}")
    return cast(Precision, wanted)


def fast_products(device: torch.device) -> AbstractContextManager[None]:
    """Inside, fp32 matrix products on CUDA may round their factors to TF32's 11 bits, on GPUs that have it."""
    return _fp32_products(device, "tf32")


def full_products(device: torch.device) -> AbstractContextManager[None]:
    """Inside, fp32 matrix products on CUDA do not round their factors, even if the program has allowed TF32."""
    return _fp32_products(device, "ieee")


@contextmanager
def _fp32_products(device: torch.device, precision: str) -> Iterator[None]:
    if device.type != "cuda":
        yield
        return
    settings = torch.backends.cuda.matmul
    before, settings.fp32_precision = settings.fp32_precision, precision
    try:
        yield
    finally:
        settings.fp32_precision = before


def full_precision(values: Tensor) -> AbstractContextManager[object]:
    """Turn autocast off on the device of ``values``: only transformers compute in bf16.

    Scores in bf16 would be 1/8 apart between 16 and 32, and ties would decide which model is the best.
    """
    if not torch.is_autocast_enabled(values.device.type):
        return nullcontext()
    return torch.autocast(values.device.type, enabled=False)


@cache
def cpu_info() -> tuple[str, frozenset[str]]:
    """The processor's model and its flags, from Linux's /proc/cpuinfo; on other systems without flags."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    info = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = frozenset(info.get("flags", info.get("features", "")).split())
    return info.get("model name") or platform.processor() or "unknown", flags


def allowed_instructions() -> str:
    """The last of ``INSTRUCTIONS`` that compiled loops may use, from ``POLYRANK_INSTRUCTIONS``; by default all.

    Raises:
        UsageError: ``POLYRANK_INSTRUCTIONS`` is not one of them.
    """
    name = os.environ.get("POLYRANK_INSTRUCTIONS") or INSTRUCTIONS[-1]
    if name not in INSTRUCTIONS:
        names = ", ".join(INSTRUCTIONS)
        raise UsageError(f"POLYRANK_INSTRUCTIONS={name!r} is unknown; set it to one of {names}")
    return name


def cpu_has_bf16() -> bool:
    """Whether this processor has bf16 instructions and may use them; without them bf16 is slower than fp32."""
    few = INSTRUCTIONS.index(allowed_instructions()) < INSTRUCTIONS.index("amx")
    return not few and not cpu_info()[1].isdisjoint({"amx_bf16", "avx512_bf16"})


def cpu_has_int8() -> bool:
    """Whether torch can multiply 8-bit matrices by this processor's AVX2 or later instructions, and may use them."""
    few = INSTRUCTIONS.index(allowed_instructions()) < INSTRUCTIONS.index("avx2")
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return not few and "avx2" in cpu_info()[1] and available and hasattr(torch.ops.onednn, "qlinear_pointwise")


def _compute_alone() -> None:
    """In a child process: its parent's threads do not exist there, and OpenMP would wait for them for ever."""
    set_threads(1)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no forks
    os.register_at_fork(after_in_child=_compute_alone)


def set_threads(n: int) -> None:
    """Compute on ``n`` threads from now on, even if other processes keep the processor busy.

    Raises:
        UsageError: ``n`` is below 1.
    """
    if n < 1:
        raise UsageError(f"{n} threads are too few; use at least 1")
    torch.set_num_threads(n)
    _load.watched = False


@contextmanager
def free_cores() -> Iterator[None]:
    """Inside, torch uses no more threads than there are cores that other processes leave free.

    A matrix product ends when its last thread ends, so a thread that waits for a core delays all others, a hundred
    times in one forward pass. Measured on two cores with three busy processes: one context through a network of six
    layers takes 90 ms on one thread and 900 ms on two; 512 replies take 11 s and 27 s. Use it for inference only:
    scores do not depend on the number of threads, but the sums of training do.
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
    """How many cores other processes leave free, from Linux's /proc/stat; other systems count all cores as free."""

    def __init__(self) -> None:
        self.watched = True
        self._free = os.cpu_count() or 1
        self._then = self._measure()

    def free(self) -> int:
        """Cores that were idle, or busy with this process, since the last measurement."""
        now = self._measure()
        elapsed = now[0] - self._then[0]
        if elapsed >= WINDOW_S:
            self._free, self._then = round((now[1] - self._then[1]) / elapsed - 0.2), now
        return self._free

    @staticmethod
    def _measure() -> tuple[float, float]:
        """The clock in seconds, and the seconds in which this process's cores were idle or busy with it."""
        clock = time.monotonic()
        try:
            names = {f"cpu{core}" for core in os.sched_getaffinity(0)}
            lines = map(str.split, Path("/proc/stat").read_text("ascii").splitlines())
            # the fourth number counts idle ticks, the fifth ticks that waited for a disk
            idle = sum(int(line[4]) + int(line[5]) for line in lines if line and line[0] in names)
            return clock, idle / os.sysconf("SC_CLK_TCK") + time.process_time()
        except (OSError, AttributeError, ValueError, IndexError):
            return clock, clock * (os.cpu_count() or 1)


_load = _Load()
