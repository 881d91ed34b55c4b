"""A simulated device: torch computes on the CPU, and each tensor is marked as on the CPU or on the device.

Operations that mix the two raise an error as with CUDA; waits for the device and copies to it are counted; results are
equal to the CPU's, bit for bit. Tensors that torch creates internally, such as gradients, work with both.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE, MAC, HOST = torch.device("cuda", 0), torch.device("mps", 0), torch.device("cpu")
T = torch.Tensor
WAITS = {
    T.item,
    T.tolist,
    T.__bool__,
    T.__float__,
    T.__int__,
    T.__index__,
    T.nonzero,
    torch.nonzero,
    T.equal,
    torch.equal,
}
WAITS |= {torch.masked_select, T.masked_select, torch.unique, T.unique}
MOVES = {T.to, T.cpu, T.cuda, T.copy_, T.type_as, T.data.__set__, T.grad.__set__}  # type: ignore[attr-defined]
INDEXES = {T.__getitem__, T.__setitem__, T.index_put_, T.index_put, torch.index_put}


class SimulatedDevice(TorchFunctionMode):
    """In its context, ``cuda`` is a device, or ``mps``, which has no fp64.

    Args:
        own: the device.

    Attributes:
        waits: number of times that the host waited for the device, by function.
        copies: tensors copied from the host to the device.
        arriving: copies to the host for which it has not waited yet.
    """

    def __init__(self, own: torch.device = DEVICE) -> None:
        super().__init__()
        self.own = own
        self.waits: Counter[str] = Counter()
        self.copies = 0
        self.arriving: list[T] = []

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function == T.device.__get__:  # type: ignore[attr-defined]
            return place(args[0]) or function(*args)
        if function == T.is_cuda.__get__:  # type: ignore[attr-defined]
            return place(args[0]) == DEVICE  # not on a Mac
        if function is T.pin_memory:
            return args[0]
        if function in (torch.device, torch._C._nn._parse_to, torch._has_compatible_shallow_copy_type):
            return function(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, T)]
        if any(tensor is copy for tensor in tensors for copy in self.arriving):
            raise RuntimeError(f"{_name(function)} reads a copy that has not arrived; wait for its event")
        target = self._target(function, args, kwargs, tensors)
        if function in WAITS or self._reads_mask(function, args):
            self._waited(function, tensors[:1])
        if function is T.numpy and place(args[0]) == self.own:
            raise TypeError("can't convert a tensor of the device to numpy; use Tensor.cpu() first")
        args, kwargs = tree_map(_on_host, args), tree_map(_on_host, kwargs)
        result = function(*args, **kwargs)
        if function in (T.to, T.cpu, T.cuda, T.type_as):
            result = self._moved(args[0], result, target, later=kwargs.get("non_blocking", False))
        elif function == T.data.__set__:  # type: ignore[attr-defined]
            put(args[:1], place(args[1]))
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, T)]
        put(results, target)
        if self.own == MAC and any(leaf.dtype == torch.float64 and place(leaf) == MAC for leaf in results):
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64")
        return result

    def _target(self, function: Any, args: Any, kwargs: Any, tensors: list[T]) -> torch.device:
        """The device of the result."""
        named = [leaf for leaf in (*args, *kwargs.values()) if _names_device(leaf)]
        if function is T.cpu:
            return HOST
        if function is T.cuda:
            return self.own
        if function in (T.to, T.type_as) and len(tensors) > 1:
            return place(tensors[1]) or HOST
        if named:
            return HOST if torch.device(named[0]).type == "cpu" else self.own
        places = {place(tensor) for tensor in tensors} - {None}
        if self.own in places and HOST in places and function not in MOVES:
            on_host = [tensor for tensor in tensors if place(tensor) == HOST and tensor.dim()]
            if function in INDEXES and place(args[0]) == self.own:
                on_host = []  # indices on the host are allowed
            if on_host:
                shapes = ", ".join(str(list(tensor.shape)) for tensor in on_host)
                raise RuntimeError(f"{_name(function)} mixes devices: {shapes} on the CPU, others on the device")
        if function in (T.copy_, T.data.__set__, *INDEXES):  # type: ignore[attr-defined]
            return place(args[0]) or HOST
        return self.own if self.own in places else HOST

    def _moved(self, before: T, after: T, target: torch.device, *, later: bool) -> T:
        if place(before) == target or (place(before) is None and target == HOST):
            return after
        after = after.clone() if after is before else after
        if target == HOST and later:
            self.arriving.append(after)
        elif target == HOST:
            self._waited(T.cpu, [before])
        else:  # a batch from another thread, which this mode does not see, is unmarked and on the host
            self.copies += 1
        return after

    def record_event(self) -> "Event":
        """An event after all work so far, as of a stream."""
        return Event(self, tuple(self.arriving))

    def _waited(self, function: Any, tensors: Iterable[T]) -> None:
        if any(place(tensor) == self.own for tensor in tensors):
            self.waits[_name(function)] += 1

    def _reads_mask(self, function: Any, args: Any) -> bool:
        if function not in (T.__getitem__,) or place(args[0]) != self.own:
            return False
        return any(isinstance(leaf, T) and leaf.dtype == torch.bool for leaf in tree_leaves(args[1]))


@dataclass(frozen=True)
class Event:
    """A point in a simulated device's work, at which some copies have arrived."""

    device: SimulatedDevice
    copies: Sequence[T]

    def synchronize(self) -> None:
        """Wait for it."""
        self.device.waits["Event.synchronize"] += 1
        self.device.arriving = [left for left in self.device.arriving if all(left is not copy for copy in self.copies)]


def place(tensor: Any) -> torch.device | None:
    """The device of a tensor; None if unmarked."""
    return getattr(tensor, "_place", None)


def put(tensors: Iterable[Any], where: torch.device | None) -> None:
    """Mark the device of unmarked tensors."""
    for tensor in tensors:
        if place(tensor) is None or (where is not None and tensor._place != where):
            tensor._place = where


def _names_device(value: Any) -> bool:
    if isinstance(value, torch.device):
        return True
    return isinstance(value, str) and value.partition(":")[0] in ("cpu", "cuda", "mps")


def _on_host(value: Any) -> Any:
    return HOST if _names_device(value) else value


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or str(function)
