"""Distributed work on several processes, as ``torchrun`` starts them: ranks, and exchanging values.

Every process runs the same program on the same data, reaches the same calls in the same order, and continues with the
same results. Encoding texts is what the processes share; only rank 0 writes files and logs. Outside ``process_group``
each process works alone, and nothing here costs anything. torch is imported inside functions, because the command line
needs its rank before it loads anything.
"""

import atexit
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from polyrank.errors import LostProcessError, PolyrankError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

Result = TypeVar("Result")
TIMEOUT = timedelta(minutes=30)  # for a process that is alive but silent; torch notices at once when one dies


class _State:
    def __init__(self) -> None:
        self.joined = False
        self.failed = False  # a process is lost, and the group with it
        self.sums: tuple[Any, Any] | None = None  # a group, and the one for ``start_sums`` that was made for it


_state = _State()


def launched_as() -> tuple[int, int]:
    """The rank of this process and the number of processes, from the launcher's variables; without one (0, 1).

    Raises:
        UsageError: the launcher's variables are not valid numbers.
    """
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        return 0, 1
    number, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    if not (number.isdecimal() and size.isdecimal() and int(number) < int(size)):
        raise UsageError(f"RANK={number!r} of WORLD_SIZE={size!r} is not a rank; start with torchrun, which sets both")
    return int(number), int(size)


@contextmanager
def process_group() -> Iterator[None]:
    """Join the launcher's processes; inside, they work together, and none leaves before all are done.

    All processes have to enter, and to make the same calls inside. Without a launcher nothing changes.

    Raises:
        LostProcessError: another process has ended, or is silent for half an hour.
    """
    if launched_as()[1] == 1 or _state.joined:
        yield
        return
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    if dist.is_initialized():
        if "gloo" not in (backends := str(dist.get_backend_config())):
            raise UsageError(
                f"the process group uses {backends} only, and polyrank needs gloo for numbers on the CPU; make it with"
                ' "cpu:gloo,cuda:nccl", or leave it to polyrank'
            )
    else:
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        with _explain_lost_process():
            store, number, size = next(rendezvous("env://", timeout=TIMEOUT))
            # torchrun keeps its store when it restarts all processes, with the addresses of those that have ended
            if os.environ.get("GROUP_WORLD_SIZE") == "1":  # agents of several machines may count restarts differently
                store = PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
            dist.init_process_group(backend, store=store, rank=number, world_size=size, timeout=TIMEOUT)
        # later blocks use the same group: the launcher's store holds the addresses of this one
        atexit.register(_destroy_group)
    _state.joined = True
    try:
        yield
        barrier()
    finally:
        _state.joined = False


def _destroy_group() -> None:
    """Leave the group before the process ends, as GPU libraries require.

    Only the last reference to a group ends its threads. One that still runs when Python ends would abort the process.
    """
    import torch.distributed as dist

    _state.sums = None
    if dist.is_initialized() and not _state.failed:
        dist.destroy_process_group()


@contextmanager
def _explain_lost_process() -> Iterator[None]:
    """Turn torch's errors between processes into one sentence."""
    try:
        yield
    except RuntimeError as error:  # the base of all of torch's errors of this kind
        _state.failed = True
        raise LostProcessError(
            "another process of this run has ended or is silent; read its output, and start all of them again (a"
            " training with `resume=True`)"
        ) from error


def rank() -> int:
    """The rank of this process in the process group; 0 outside of one."""
    return launched_as()[0] if _state.joined else 0


def world_size() -> int:
    """How many processes are in the process group; 1 outside of one."""
    return launched_as()[1] if _state.joined else 1


def is_rank_zero() -> bool:
    """Whether this process writes files and logs."""
    return rank() == 0


def barrier() -> None:
    """Wait until every process is here."""
    all_reduce_max(0)


def on_rank_zero(work: Callable[[], Result]) -> Result:
    """Run ``work`` on rank 0 only, and return its result on every rank.

    For reading and changing files that rank 0 owns. A polyrank error inside is raised on every rank.

    Args:
        work: its result must be picklable.
    """
    if world_size() == 1:
        return work()
    outcome: tuple[Any, tuple[int, str] | None] = (None, None)
    if is_rank_zero():
        try:
            outcome = (work(), None)
        except PolyrankError as error:
            _broadcast((None, (error.exit_code, str(error))))
            raise
    result, failure = _broadcast(outcome)
    if failure is not None:
        shared = PolyrankError(failure[1])
        shared.exit_code = failure[0]
        raise shared
    return result  # type: ignore[no-any-return]  # rank 0's, of whatever type


def rank_zero_first(work: Callable[[], Result]) -> Result:
    """Run ``work`` on every rank, but only when rank 0 has finished it, so that the others find the files it wrote."""
    results: list[Result] = []  # not the result of the call, which every rank would receive whole
    on_rank_zero(lambda: results.append(work()))
    return results[0] if results else work()


def _broadcast(value: Any) -> Any:
    import torch.distributed as dist

    values = [value]
    with _explain_lost_process():
        dist.broadcast_object_list(values, src=0)
    return values[0]


def all_reduce_max(value: int) -> int:
    """The maximum over all processes."""
    if world_size() == 1:
        return value
    import torch
    import torch.distributed as dist

    result = torch.tensor(value)
    with _explain_lost_process():
        dist.all_reduce(result, dist.ReduceOp.MAX)
    return int(result)


def all_reduce_sum(values: "Tensor") -> None:
    """Replace ``values`` by their sum over all processes: the same bits in each of them."""
    import torch.distributed as dist

    if world_size() > 1:
        with _explain_lost_process():
            dist.all_reduce(values)


def start_sums() -> Callable[["Tensor"], Callable[[], None]]:
    """A function that starts to replace a tensor by its sum over all processes, and returns one that waits for it.

    All processes have to call this together, then start the same sums in the same order, at any time between other
    calls: a second process group exchanges them.
    """
    import torch.distributed as dist

    if _state.sums is None or _state.sums[0] is not dist.group.WORLD:
        with _explain_lost_process():
            _state.sums = dist.group.WORLD, dist.new_group(timeout=TIMEOUT)

    def start(values: "Tensor") -> Callable[[], None]:
        assert _state.sums is not None, "set above; the group is not kept here, so that it ends with the others"
        with _explain_lost_process():
            work = dist.all_reduce(values, group=_state.sums[1], async_op=True)

        def wait() -> None:
            with _explain_lost_process():
                work.wait()

        return wait

    return start


def all_gather(values: Any) -> list[Any]:
    """The values of all processes, by rank. They are pickled, so tensors should be on the CPU."""
    if world_size() == 1:
        return [values]
    import torch.distributed as dist

    results = [b""] * world_size()
    with _explain_lost_process():
        dist.all_gather_object(results, pickle.dumps(values))
    return [pickle.loads(result) for result in results]


def all_gather_rows(rows: "Tensor", counts: Sequence[int]) -> "Tensor":
    """The rows of all processes, concatenated by rank; of any type, on any device that the backend supports.

    Args:
        rows: ``[counts[rank()], ...]``; all other dimensions and the type are the same in every process.
        counts: how many rows each process has.
    """
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    padded = F.pad(rows.detach(), (*[0, 0] * (rows.dim() - 1), 0, max(counts) - len(rows))).contiguous()
    sent = padded.view(-1).view(torch.uint8)
    received = [torch.empty_like(sent) for _ in counts]
    with _explain_lost_process():
        dist.all_gather(received, sent)
    parts = [part.view(rows.dtype).view(padded.shape)[:n] for part, n in zip(received, counts, strict=True)]
    return torch.cat(parts)
