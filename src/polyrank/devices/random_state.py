"""The state of torch's random generators, those of the CPU and of the device: to repeat what was drawn."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


def random_state(device: torch.device) -> list[Tensor]:
    """The state of the CPU's generator, and of the device's if it has one."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    elif device.type == "mps":
        states.append(torch.mps.get_rng_state())
    return states


def set_random_state(states: Sequence[Tensor], device: torch.device) -> None:
    """Restore what ``random_state`` returned."""
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
    elif device.type == "mps":
        torch.mps.set_rng_state(states[1])


@contextmanager
def restored_random_state(device: torch.device) -> Iterator[None]:
    """Restore the state afterwards: what is drawn inside does not change what is drawn later.

    >>> with restored_random_state(torch.device("cpu")):
    ...     inside = torch.rand(2)
    >>> torch.equal(inside, torch.rand(2))
    True
    """
    before = random_state(device)
    try:
        yield
    finally:
        set_random_state(before, device)
