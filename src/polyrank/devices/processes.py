"""Several processes at one piece of work, as ``torchrun`` starts them: which one this is, and what the others have.

Each runs the same program on the same data, comes to the same calls in the same order, and goes on with the same
results. Shares are dealt where texts are encoded, and the first process alone writes. Outside ``together`` each process
is alone, and nothing here costs anything. torch is imported where it is needed: the command line asks who speaks before
it loads anything.
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
PATIENCE = timedelta(minutes=30)  # for a process that is alive and silent; one that dies is noticed at once


class _State:
    def __init__(self) -> None:
        self.joined = False
        self.failed = False  # somebody is lost, so that there is nobody to part from


_state = _State()


def launched() -> tuple[int, int]:
    """The 0-based number of this process, and how many a launcher has started; of one by itself (0, 1).

    Raises:
        UsageError: the launcher's variables are no numbers.
    """
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        return 0, 1
    number, count = os.environ["RANK"], os.environ["WORLD_SIZE"]
    if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise UsageError(f"RANK={number!r} of WORLD_SIZE={count!r} is no process; start with torchrun, which sets both")
    return int(number), int(count)


def local_number() -> int | None:
    """The number of this process on its own machine, which is that of its GPU; None of one by itself."""
    return int(os.environ.get("LOCAL_RANK", 0)) if launched()[1] > 1 else None


@contextmanager
def together() -> Iterator[None]:
    """In here the processes of a launcher work together, and none leaves before all are done; one by itself just works.

    All have to enter, and to do the same in here.

    Raises:
        LostProcessError: another process has ended, or is silent for half an hour.
    """
    if launched()[1] == 1 or _state.joined:
        yield
        return
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        if "gloo" not in (backends := str(dist.get_backend_config())):
            raise UsageError(
                f"the process group here speaks {backends} only, and numbers on the CPU need gloo; make it with"
                ' "cpu:gloo,cuda:nccl", or leave it to polyrank'
            )
    else:
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        with _talking():
            dist.init_process_group(backend, timeout=PATIENCE)
        # kept for later rounds: the launcher's store holds the addresses of this one
        atexit.register(_part)
    _state.joined = True
    try:
        yield
        wait()
    finally:
        _state.joined = False


def _part() -> None:
    """Leave the others in peace, as libraries for GPUs want it."""
    import torch.distributed as dist

    if dist.is_initialized() and not _state.failed:
        dist.destroy_process_group()


@contextmanager
def _talking() -> Iterator[None]:
    """What goes wrong between processes becomes one sentence."""
    try:
        yield
    except RuntimeError as error:  # all of torch's errors of this kind are
        _state.failed = True
        raise LostProcessError(
            "another process of this run has ended or is silent; see what it said, and start all of them again (a"
            " training with --resume)"
        ) from error


def number() -> int:
    """The 0-based number of this process among those that work together; 0 of one by itself."""
    return launched()[0] if _state.joined else 0


def count() -> int:
    """How many work together."""
    return launched()[1] if _state.joined else 1


def is_first() -> bool:
    """Whether this process is the one that writes."""
    return number() == 0


def wait() -> None:
    """Go on when all have come here."""
    most(0)


def by_first(work: Callable[[], Result]) -> Result:
    """What ``work`` gives in the first process, in all of them; the others do not do it.

    For what looks at files that the first process changes, and for changing them. An error of ours in it is everyone's.

    Args:
        work: gives something that can be pickled.
    """
    if count() == 1:
        return work()
    outcome: tuple[Any, tuple[int, str] | None] = (None, None)
    if is_first():
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
    return result  # type: ignore[no-any-return]  # the first process's


def _broadcast(value: Any) -> Any:
    import torch.distributed as dist

    values = [value]
    with _talking():
        dist.broadcast_object_list(values, src=0)
    return values[0]


def most(value: int) -> int:
    """The greatest of all processes' values."""
    if count() == 1:
        return value
    import torch
    import torch.distributed as dist

    result = torch.tensor(value)
    with _talking():
        dist.all_reduce(result, dist.ReduceOp.MAX)
    return int(result)


def add_up(values: "Tensor") -> None:
    """Put the sum over all processes in the place of ``values``: the same bits in each of them."""
    import torch.distributed as dist

    if count() > 1:
        with _talking():
            dist.all_reduce(values)


def gathered(values: Any) -> list[Any]:
    """All processes' values, in the order of the processes. They are pickled: tensors should be on the CPU."""
    if count() == 1:
        return [values]
    import torch.distributed as dist

    results = [b""] * count()
    with _talking():
        dist.all_gather_object(results, pickle.dumps(values))
    return [pickle.loads(result) for result in results]


def gathered_rows(rows: "Tensor", counts: Sequence[int]) -> "Tensor":
    """All processes' rows, one below the other; of any type, and on any device that can speak to the others.

    Args:
        rows: ``[counts[number()], ...]``, of like shape and type in all processes but for that.
        counts: how many rows each process has.
    """
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    own = F.pad(rows.detach(), (*[0, 0] * (rows.dim() - 1), 0, max(counts) - len(rows))).contiguous()
    sent = own.view(-1).view(torch.uint8)
    received = [torch.empty_like(sent) for _ in counts]
    with _talking():
        dist.all_gather(received, sent)
    parts = [part.view(rows.dtype).view(own.shape)[:n] for part, n in zip(received, counts, strict=True)]
    return torch.cat(parts)
