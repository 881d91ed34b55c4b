"""The number of threads of a computation on a shared machine."""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from attached import end_with_parent
from polyrank.devices import choice as devices, distributed
from polyrank.devices.choice import choose_device, free_cores, set_threads, turn_of
from polyrank.devices.random_state import restored_random_state
from polyrank.errors import LostProcessError, PolyrankError, ResourceError, UsageError

CORES = len(os.sched_getaffinity(0))


@pytest.fixture
def three_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch may use three threads, and the load is not cached."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    monkeypatch.setattr(devices, "_load", devices._Load())
    yield
    torch.set_num_threads(before)


def spin(until: float) -> None:
    """Keep a core busy until ``end``."""
    while time.monotonic() < until:
        pass


@pytest.mark.deep
def test_cores_busy_with_other_work_are_not_used(three_threads: None) -> None:
    others = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=end_with_parent)
        for _ in range(4 * CORES)
    ]
    try:
        spin(time.monotonic() + 0.5)  # the others have started
        devices._load.free()
        spin(time.monotonic() + 1)
        assert devices._load.free() <= max(1, CORES // 2)
        with free_cores():
            assert torch.get_num_threads() <= max(1, CORES // 2)
        assert torch.get_num_threads() == 3
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_threads_are_between_one_and_torchs(three_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for n_free, n_threads in ((-1, 1), (0, 1), (2, 2), (3, 3), (64, 3)):
        monkeypatch.setattr(devices._load, "_free", n_free)
        monkeypatch.setattr(devices, "WINDOW_S", 1e9)  # the load is cached from now on
        with free_cores():
            assert torch.get_num_threads() == n_threads
        with pytest.raises(KeyError), free_cores():
            raise KeyError
        assert torch.get_num_threads() == 3


def test_a_requested_number_of_threads_is_kept(three_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    set_threads(2)
    monkeypatch.setattr(devices._load, "_free", 1)
    with free_cores():
        assert torch.get_num_threads() == 2
    with pytest.raises(UsageError, match="0 threads are too few"):
        set_threads(0)


def test_a_gpu_that_emulates_bf16_computes_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """T4 and V100: torch reports emulated bf16 as supported, but it is slower than fp32."""
    monkeypatch.delenv("POLYRANK_PRECISION", raising=False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert devices.choose_dtype("auto", torch.device("cuda")) == torch.float32
    assert devices.choose_dtype("bf16", torch.device("cuda")) == torch.bfloat16


@pytest.mark.parametrize(("cuda", "mps", "chosen"), [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")])
def test_auto_is_cuda_then_mps_then_the_cpu(
    cuda: bool, mps: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    kernels = torch.nn.attention.SDPBackend
    with torch.nn.attention.sdpa_kernel([kernels.MATH, kernels.CUDNN_ATTENTION]):  # undone at the end
        assert choose_device().type == chosen
        assert torch.backends.cuda.cudnn_sdp_enabled() == (not cuda)
    assert choose_device("cpu").type == "cpu"
    if mps:
        assert choose_device("mps").type == "mps"
    else:
        with pytest.raises(UsageError, match="'mps' is not available on this machine; use cpu"):
            choose_device("mps")


def test_a_device_that_does_not_exist_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("xpu", "hip", "meta", "gpu", "", "cpu:x", "vulkan:0"):
        with pytest.raises(UsageError, match=f"^device '{name}' is unknown; use auto, cpu, cuda or mps$"):
            choose_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):  # undone at the end
        assert choose_device("cuda:1") == torch.device("cuda", 1)
        with pytest.raises(UsageError, match="'cuda:2' is not available on this machine: use up to cuda:1"):
            choose_device("cuda:2")


def test_apples_gpu_serves_one_process_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYRANK_PRECISION", raising=False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert devices.choose_dtype("auto", choose_device("mps")) == torch.float32
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    assert choose_device().type == "cpu"
    with pytest.raises(UsageError, match="'mps' is not available to several processes; use cpu"):
        choose_device("mps")


def test_processes_take_turns_on_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has GPUs")
    assert [turn_of(number, "auto") for number in range(2)] == ["auto", "auto"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for n, expected in ((1, ["auto"] * 4), (3, ["cuda:0", "cuda:1", "cuda:2", "cuda:0"])):
        monkeypatch.setattr(torch.cuda, "device_count", lambda n=n: n)
        assert [turn_of(number, "auto") for number in range(4)] == expected
    assert turn_of(1, "cuda") == "cuda:1"
    assert (turn_of(1, "cpu"), turn_of(1, "cuda:2")) == ("cpu", "cuda:2")


def launch(monkeypatch: pytest.MonkeyPatch, number: object, size: object) -> None:
    """Set the launcher's variables."""
    for name, value in {"RANK": number, "WORLD_SIZE": size, "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, str(value))


class Ranks:
    """Ranks that take turns in this process; each receives what the others sent in their last turns."""

    def __init__(self, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n, self.number, self.patch = n, 0, monkeypatch
        self.sent: dict[int, Any] = {}
        monkeypatch.setattr(distributed._state, "joined", True)
        monkeypatch.setattr(dist, "broadcast_object_list", self.broadcast)
        monkeypatch.setattr(dist, "all_gather_object", self.all_gather)

    def __iter__(self) -> Iterator[int]:
        for number in range(self.n):
            self.number = number
            launch(self.patch, number, self.n)
            yield number

    def broadcast(self, values: list[Any], src: int) -> None:
        self.sent[self.number] = values[0]
        values[0] = self.sent[src]

    def all_gather(self, received: list[Any], value: Any) -> None:
        self.sent[self.number] = value
        received[:] = [self.sent.get(number, value) for number in range(len(received))]


def test_every_rank_receives_the_values_of_all_by_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [{"loss": 1.5}, None, [np.arange(3)], "hello"]
    ranks = Ranks(4, monkeypatch)
    for _ in range(2):  # in their first turns the ranks only send
        found = [distributed.all_gather(values[number]) for number in ranks]
    assert [repr(received) for received in found] == [repr(values)] * 4
    monkeypatch.setattr(distributed._state, "joined", False)
    assert [distributed.all_gather(values[number]) for number in ranks] == [[value] for value in values]


def test_rank_zero_works_alone_and_every_rank_has_its_result_or_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, n_calls = Ranks(3, monkeypatch), 0

    def work() -> str:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 2:
            raise ResourceError("the disk is full")
        return f"result of rank {distributed.rank()}"

    assert [distributed.on_rank_zero(work) for _ in ranks] == ["result of rank 0"] * 3
    for _ in ranks:
        with pytest.raises(PolyrankError, match=r"^the disk is full$") as raised:
            distributed.on_rank_zero(work)
        assert raised.value.exit_code == ResourceError.exit_code != PolyrankError.exit_code
    assert n_calls == 2
    monkeypatch.setattr(distributed._state, "joined", False)
    assert [distributed.on_rank_zero(work) for _ in ranks] == ["result of rank 0"] * 3  # without a group
    assert n_calls == 5


def test_every_rank_works_once_rank_zero_before_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, calls = Ranks(3, monkeypatch), list[tuple[int, int]]()

    def work() -> int:
        calls.append((distributed.rank(), len(ranks.sent)))
        return distributed.rank()

    assert [distributed.rank_zero_first(work) for _ in ranks] == [0, 1, 2]
    assert calls == [(0, 0), (1, 2), (2, 3)]  # rank 0 before it sends, the others when they have received
    assert ranks.sent == dict.fromkeys(range(3), (None, None))  # no rank receives another's result


def test_a_group_is_left_at_the_end_unless_a_process_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """To leave a group, torch may wait for the lost process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    monkeypatch.setattr(distributed._state, "failed", True)
    distributed._destroy_group()
    assert dist.is_initialized()
    monkeypatch.setattr(distributed._state, "failed", False)
    distributed._destroy_group()
    assert not dist.is_initialized()
    distributed._destroy_group()  # a group that the program has left itself


def test_free_time_is_in_seconds() -> None:
    stat, uptime = Path("/proc/stat"), Path("/proc/uptime")
    if not stat.exists():
        pytest.skip("only Linux counts the time in which cores are idle")
    _, seconds = devices._Load._measure()
    n_cores = sum(line.startswith("cpu") for line in stat.read_text("ascii").splitlines()) - 1
    assert 0 < seconds < float(uptime.read_text("ascii").split()[0]) * n_cores + time.process_time() + 1


def test_by_default_all_instructions_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYRANK_INSTRUCTIONS", raising=False)
    assert devices.allowed_instructions() == devices.INSTRUCTIONS[-1]


@pytest.mark.parametrize("n_gpus", [1, 3])
def test_each_process_has_a_gpu_of_its_own(n_gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    launch(monkeypatch, 0, 5)
    for number in range(5):
        monkeypatch.setenv("LOCAL_RANK", str(number))
        if number < n_gpus:
            assert choose_device() == choose_device("cuda") == torch.device("cuda", number)
        else:
            with pytest.raises(UsageError, match=f"process {number + 1} of this machine has no GPU.* has {n_gpus}"):
                choose_device()
    assert chosen == [number for number in range(n_gpus) for _ in range(2)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="'cuda' is not available on this machine; use cpu"):
        choose_device("cuda")


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "MASTER_ADDR"])
def test_only_all_variables_together_are_a_launchers(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launch(monkeypatch, 1, 2)
    assert distributed.launched_as() == (1, 2)
    monkeypatch.delenv(missing)
    assert distributed.launched_as() == (0, 1)


@pytest.mark.parametrize("start", [(0, 1), (2, 3), (3, 3), (4, 3), ("", 2), (-1, 2)])
def test_a_rank_is_below_the_number_of_processes(start: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    number, size = start
    launch(monkeypatch, number, size)
    if number in range(size):
        assert distributed.launched_as() == start
    else:
        with pytest.raises(UsageError, match=f"RANK='{number}' of WORLD_SIZE='{size}' is not a rank"):
            distributed.launched_as()


@pytest.fixture
def products() -> Iterator[Any]:
    """Torch's settings of products on GPUs, which a test may change."""
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    yield settings
    settings.fp32_precision = before


@pytest.mark.parametrize("before", ["tf32", "ieee"])
def test_the_programs_own_precision_of_products_is_restored(before: str, products: Any) -> None:
    products.fp32_precision = before
    for inside, precision in ((devices.fast_products, "tf32"), (devices.full_products, "ieee")):
        with inside(torch.device("cuda")):
            assert products.fp32_precision == precision
        assert products.fp32_precision == before
        with pytest.raises(KeyError), inside(torch.device("cuda")):
            raise KeyError
        assert products.fp32_precision == before
        with inside(torch.device("cpu")):
            assert products.fp32_precision == before


ARM = (
    "processor : 0\nBogoMIPS : 50.00\nFeatures\t: fp asimd bf16 i8mm\n\nprocessor : 1\nFeatures : fp asimd bf16 i8mm\n"
)
INTEL = "processor : 0\nmodel name\t: A Processor @ 2 GHz: fast\nflags\t\t: fpu avx2 amx_bf16\n"


def test_the_flags_of_both_kinds_of_processors_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "processor", lambda: "")  # as on many systems
    for text, name, flags in ((ARM, None, {"fp", "asimd", "bf16", "i8mm"}),
                              (INTEL, "A Processor @ 2 GHz: fast", {"fpu", "avx2", "amx_bf16"})):  # fmt: skip
        monkeypatch.setattr(Path, "read_text", lambda self, *_, text=text: text)
        model, found = devices.cpu_info.__wrapped__()
        assert found == flags
        assert model == (name or "unknown")


def test_time_of_idle_cores_that_wait_for_a_disk_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    lines = [f"cpu{core} 7 7 7 {2 * ticks} {3 * ticks} 7 7" for core in range(64)]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5, 63}, raising=False)
    monkeypatch.setattr(Path, "read_text", lambda *_: "\n".join(["cpu 1 1 1 1 1", *lines, "", "intr 5"]))
    _, seconds = devices._Load._measure()
    assert seconds == pytest.approx(3 * 5 + time.process_time(), abs=0.5)


def test_free_cores_are_those_since_the_last_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """On two cores, whose idle seconds and those of this process grow by known amounts."""
    clock, idle, own = 100.0, 7.0, 3.0
    monkeypatch.setattr(devices.time, "monotonic", lambda: clock)
    monkeypatch.setattr(devices.time, "process_time", lambda: own)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    ticks = os.sysconf("SC_CLK_TCK")
    monkeypatch.setattr(
        Path, "read_text", lambda *_: f"cpu0 0 0 0 {ticks * idle / 2:.0f} 0\ncpu1 0 0 0 0 {ticks * idle / 2:.0f}"
    )
    load = devices._Load()
    for seconds, idle_s, own_s, free in ((10, 19, 0, 2), (10, 0, 12, 1), (0.1, 0.2, 0, 1), (20, 2, 1, 0), (1, 0, 2, 2)):
        clock, idle, own = clock + seconds, idle + idle_s, own + own_s
        assert load.free() == free

    def fail(*_: Any) -> str:
        raise OSError("no /proc")

    monkeypatch.setattr(Path, "read_text", fail)
    load = devices._Load()
    for seconds in (0.1, 1, 1000):  # other systems
        clock += seconds
        assert load.free() == os.cpu_count()
    monkeypatch.setattr(os, "cpu_count", lambda: None)  # of unknown systems, one core is free
    load = devices._Load()
    clock += 1000
    assert load.free() == 1


PROCESSORS = {  # flags, and whether the processor can multiply in int8 and in bf16
    "": (False, False),
    "fp asimd bf16 i8mm": (False, False),
    "fpu avx2": (True, False),
    "fpu avx2 avx_vnni avx512f avx512_vnni": (True, False),
    "fpu avx2 avx512f avx512_bf16": (True, True),
    "fpu avx2 avx512f avx512_bf16 amx_bf16 amx_int8": (True, True),
    "fpu avx2 amx_bf16": (True, True),
}


@pytest.mark.parametrize("flags", PROCESSORS)
def test_types_are_those_of_the_processors_allowed_instructions(flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each type is used from the first POLYRANK_INSTRUCTIONS that allow it, and int8 only if torch has its products."""
    cpu, mac = torch.device("cpu"), torch.device("mps")
    monkeypatch.delenv("POLYRANK_PRECISION", raising=False)
    monkeypatch.setattr(devices, "cpu_info", devices.cpu_info.__wrapped__)  # not cached
    monkeypatch.setattr(Path, "read_text", lambda *_: f"processor : 0\nflags\t\t: {flags}\n")
    for library, products in ((True, {"qlinear_pointwise": None}), (False, {"qlinear_pointwise": None}), (True, {})):
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda there=library: there)
        monkeypatch.setattr(torch.ops, "onednn", SimpleNamespace(**products), raising=False)
        for name in (None, *devices.INSTRUCTIONS):
            number = devices.INSTRUCTIONS.index(name or "dot")
            monkeypatch.setenv("POLYRANK_INSTRUCTIONS", name or "")
            int8, bf16 = PROCESSORS[flags]
            int8, bf16 = int8 and library and bool(products) and number >= 1, bf16 and number >= 5
            assert (devices.cpu_has_int8(), devices.cpu_has_bf16()) == (int8, bf16)
            plain = torch.bfloat16 if bf16 else torch.float32
            for asked in ("auto", "int8"):
                assert devices.choose_dtype(asked, cpu) == plain
                assert devices.choose_dtype(asked, mac) == torch.float32
            assert devices.choose_weights("auto", cpu) == plain
            assert devices.choose_weights("auto", mac, ranks_in_int8=True) == torch.float32
            rounded = torch.int8 if int8 and not bf16 else plain
            assert devices.choose_weights("auto", cpu, ranks_in_int8=True) == rounded
            for fixed, kind in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
                assert (
                    devices.choose_weights(fixed, cpu, ranks_in_int8=True) == devices.choose_dtype(fixed, cpu) == kind
                )
            if int8:
                assert devices.choose_weights("int8", cpu) == torch.int8
            else:
                with pytest.raises(UsageError, match="8-bit weights are not possible on this cpu"):
                    devices.choose_weights("int8", cpu)


def test_sums_are_exchanged_in_a_group_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One per group of the program, which may leave its group and make another."""
    all_reduce, groups, waited = dist.all_reduce, list[Any](), list[int]()

    def recorded(values: torch.Tensor, *, group: Any, async_op: bool) -> SimpleNamespace:
        groups.append(group)
        work = all_reduce(values, group=group, async_op=async_op)
        return SimpleNamespace(wait=lambda: waited.append(work.wait()))

    monkeypatch.setattr(dist, "all_reduce", recorded)
    monkeypatch.setattr(distributed._state, "sums", None)
    for number, leave in enumerate((dist.destroy_process_group, distributed._destroy_group)):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        values = torch.full((3,), float(number))
        waits = [distributed.start_sums()(values) for _ in range(2)]
        assert not waited
        for n_waited, wait in enumerate(waits, 1):
            wait()
            assert len(waited) == n_waited
        waited.clear()
        assert values.tolist() == [number] * 3
        first, second = groups[-2:]
        assert first is second is not dist.group.WORLD
        assert dist.get_process_group_ranks(first) == [0]  # refused for a group that has ended
        leave()
    assert groups[0] is not groups[-1]
    assert distributed._state.sums is None


def test_processes_are_together_in_the_outermost_block_and_wait_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    monkeypatch.setattr(dist, "all_reduce", lambda *_: waits.append(distributed.rank()))
    launch(monkeypatch, 1, 2)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # by the program
    try:
        for error in (None, KeyError()):
            with suppress(KeyError), distributed.process_group():
                with distributed.process_group():
                    assert (distributed.rank(), distributed.world_size()) == (1, 2)
                assert (distributed.rank(), distributed.world_size(), waits) == (1, 2, [])
                if error:
                    raise error
            assert (distributed.rank(), distributed.world_size()) == (0, 1)
            assert waits == ([1] if error is None else [])  # a process that failed does not wait for the others
            waits.clear()
        assert dist.is_initialized()
        monkeypatch.setattr(dist, "get_backend_config", lambda: "cuda:nccl")
        with pytest.raises(UsageError, match="uses cuda:nccl only"), distributed.process_group():
            pytest.fail("no numbers on the CPU can be exchanged")
        assert (distributed.rank(), distributed.world_size()) == (0, 1)
    finally:
        dist.destroy_process_group()


def start_and_wait(values: torch.Tensor) -> None:
    distributed.start_sums()(values)()


EXCHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "broadcast_object_list": lambda _: distributed.on_rank_zero(lambda: 1),
    "all_gather_object": distributed.all_gather,
    "all_gather": lambda values: distributed.all_gather_rows(values, [3, 3]),
    "all_reduce": distributed.all_reduce_sum,
    "all_reduce, maximum": lambda _: distributed.barrier(),
    "all_reduce, started": start_and_wait,
    "new_group": start_and_wait,
    "wait": start_and_wait,
}


@pytest.mark.parametrize("name", EXCHANGES)
def test_each_exchange_reports_a_lost_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(distributed._state, "failed", False)
    monkeypatch.setattr(distributed._state, "joined", True)
    monkeypatch.setattr(distributed._state, "sums", None)
    monkeypatch.setattr(dist, "new_group", lambda **_: None)
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: SimpleNamespace(wait=fail))
    if name != "wait":
        monkeypatch.setattr(dist, name.partition(",")[0], fail)
    launch(monkeypatch, 0, 2)
    with pytest.raises(LostProcessError, match="another process of this run has ended"):
        EXCHANGES[name](torch.ones(3))
    assert distributed._state.failed


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
@pytest.mark.parametrize("kind", [torch.float32, torch.int64, torch.bool])
def test_rows_of_all_processes_are_joined_by_rank(
    shape: tuple[int, ...], kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = [2, 0, 3, 1]
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(0, 2, (n, *shape), generator=generator).to(kind) for n in counts]

    def all_gather(received: list[torch.Tensor], sent: torch.Tensor) -> None:
        """Receive what each process would send: its rows, filled up to the most."""
        for into, own in zip(received, rows, strict=True):
            filled = torch.cat([own, torch.zeros(3 - len(own), *shape, dtype=kind)])
            into.copy_(filled.contiguous().view(-1).view(torch.uint8))
            assert len(into) == len(sent)

    monkeypatch.setattr(dist, "all_gather", all_gather)
    for own in rows:
        assert torch.equal(distributed.all_gather_rows(own, counts), torch.cat(rows))


def test_the_maximum_of_all_processes_is_that_of_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value is reduced with those of other processes by the operation that is requested."""
    operations = {dist.ReduceOp.MAX: torch.maximum, dist.ReduceOp.MIN: torch.minimum, dist.ReduceOp.SUM: torch.add}
    monkeypatch.setattr(distributed, "world_size", lambda: 3)
    for own, others in ((5, (2, 9)), (9, (2, 5)), (0, (0, 0)), (-4, (-7, -5))):

        def all_reduce(values: torch.Tensor, op: Any = dist.ReduceOp.SUM, others: tuple[int, ...] = others) -> None:
            for other in others:
                values.copy_(operations[op](values, torch.full_like(values, other)))

        monkeypatch.setattr(dist, "all_reduce", all_reduce)
        assert distributed.all_reduce_max(own) == max(own, *others)
        total = torch.tensor([float(own)])
        distributed.all_reduce_sum(total)
        assert total.tolist() == [own + sum(others)]


def test_the_state_of_every_generator_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    state = [torch.tensor([1])]
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: state[0])
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda given: state.__setitem__(0, given))
    before = torch.get_rng_state()
    for error in (None, UsageError("x"), KeyboardInterrupt()):
        with suppress(UsageError, KeyboardInterrupt), restored_random_state(torch.device("mps")):
            state[0] = torch.tensor([2])
            torch.rand(3)
            if error is not None:
                raise error
        assert state[0].item() == 1
        assert torch.equal(torch.get_rng_state(), before)


def test_an_unknown_precision_names_where_it_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYRANK_PRECISION", "fp31")
    with pytest.raises(UsageError, match=r"POLYRANK_PRECISION='fp31' is not a precision; set it to one of .*fp32"):
        devices.choose_dtype("auto", torch.device("cpu"))
    monkeypatch.delenv("POLYRANK_PRECISION")
    with pytest.raises(UsageError, match=r"^precision='fp31' is not a precision"):
        devices.choose_dtype("fp31", torch.device("cpu"))  # type: ignore[arg-type]
