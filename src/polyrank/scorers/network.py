"""A network bound to its text policy, device and precision, and how its texts are batched."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from polyrank.devices import distributed
from polyrank.devices.choice import cpu_has_bf16, free_cores
from polyrank.records import ContextLike, contexts_of
from polyrank.text import Texts, Tokens, pad
from polyrank.text.cut import Cut

Model = TypeVar("Model", bound=nn.Module)
Output = TypeVar("Output")
BATCHES_AT_A_TIME = 64  # that a process computes before it tells the others


def token_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Positions grouped so that each padded batch holds at most ``max_tokens`` tokens, longest first.

    Texts of like length go together, so little is computed on padding.

    >>> token_batches([2, 9, 3], max_tokens=9)
    [[1], [2, 0]]
    """
    batches: list[list[int]] = []
    for position in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches and (len(batches[-1]) + 1) * max(lengths[batches[-1][0]], 1) <= max_tokens:
            batches[-1].append(position)
        else:
            batches.append([position])
    return batches


def tokens_per_batch(device: torch.device) -> int:
    """Padded tokens that a batch should hold: on a CPU few, so that what passes between layers stays in its cache.

    Measured on an AVX-512 core with a network of six layers and 384 dimensions: batches of 512 to 1,024 tokens take a
    third less time than those of 4,096, whether texts have 15 tokens or pairs 135. In bf16, by AMX, 1,536 to 2,048 do.
    """
    if device.type != "cpu":
        return 16_384
    return 1536 if cpu_has_bf16() else 1024


class NetworkScorer(Generic[Model]):
    """What scorers with a network have in common.

    Args:
        model: the network.
        texts: its text policy at work.
        fingerprint: names the model, and is what an index must match; empty while training.
        device: where to compute.
        dtype: of the large products; results are fp32.
        max_tokens: padded tokens per batch; None: what suits the device.
    """

    max_remembered = 100_000
    """Candidates whose vectors are kept, where there are vectors."""

    def __init__(
        self,
        model: Model,
        texts: Texts,
        *,
        fingerprint: str = "",
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        max_tokens: int | None = None,
    ) -> None:
        self.device = device or torch.device("cpu")
        self.model, self.texts, self.fingerprint = model, texts, fingerprint
        self.dtype, self.max_tokens = dtype, max_tokens or tokens_per_batch(self.device)

    @property
    def networks(self) -> "tuple[NetworkScorer[Any], ...]":
        """Itself."""
        return (self,)

    @property
    def cut(self) -> tuple[Cut, ...]:
        """What was too long to be read whole."""
        return (self.texts.cut,)

    def n_context_tokens(self, context: ContextLike) -> int | None:
        """How many tokens of a context are read, boundaries included."""
        return len(self.texts.context_ids(contexts_of([context])[0]))

    def batches(
        self, compute: Callable[[Tokens], Output], rows: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] = ()
    ) -> Iterator[tuple[list[int], Output]]:
        """What the network makes of rows of ids, in batches of rows of like length, with the positions of each.

        Processes that work together deal the batches among themselves, and each has the outputs of all.
        """
        n = distributed.world_size()
        # a GPU's batch may be all that is asked for at a time; on a CPU batches stay those of one process, bit for bit
        max_tokens = self.max_tokens if self.device.type == "cpu" else self.max_tokens // n
        batches = token_batches([len(row) for row in rows], max_tokens)

        def output(batch: list[int]) -> Output:
            kinds = [segments[i] for i in batch] if segments else None
            tokens = pad([rows[i] for i in batch], kinds, pad_id=self.texts.subwords.pad_id)
            with free_cores(), inference(self.model, self.device, self.dtype):
                return compute(tokens.to(self.device))

        if n == 1:
            yield from ((batch, output(batch)) for batch in batches)
            return
        for start in range(0, len(batches), n * BATCHES_AT_A_TIME):
            part = batches[start : start + n * BATCHES_AT_A_TIME]
            shares = distributed.all_gather([_on_cpu(output(batch)) for batch in part[distributed.rank() :: n]])
            yield from ((batch, shares[i % n][i // n]) for i, batch in enumerate(part))


def _on_cpu(output: Any) -> Any:
    """A tensor, or several, where every process can read them."""
    return output.cpu() if isinstance(output, torch.Tensor) else tuple(part.cpu() for part in output)


@contextmanager
def inference(model: nn.Module, device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Evaluation mode without gradients, in ``dtype``; the model's own mode comes back afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            yield
    finally:
        model.train(was_training)
