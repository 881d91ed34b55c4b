"""A network bound to its text policy, device and precision, and how its texts are batched."""

import copyreg
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from polyrank.devices import distributed
from polyrank.devices.choice import cpu_has_bf16, free_cores
from polyrank.models.network import without_dropout
from polyrank.text import Texts, Tokens, pad
from polyrank.text.tokens import token_batches

Model = TypeVar("Model", bound=nn.Module)
Output = TypeVar("Output")
ROUNDED_TO = 8  # tokens: with 4, batches are small; with 16, much is padding
BATCHES_AT_A_TIME = 64  # that a process computes before it sends them to the others


def tokens_per_batch(device: torch.device) -> int:
    """Padded tokens that a batch should hold: few on a CPU, so that activations stay in its cache.

    Measured on an AVX-512 core with a network of six layers and 384 dimensions: batches of 512 to 1,024 tokens take a
    third less time than those of 4,096, whether texts have 15 tokens or pairs 135. In bf16, by AMX, 1,536 to 2,048 do.
    """
    if device.type != "cpu":
        return 16_384
    return 1536 if cpu_has_bf16() else 1024


class NetworkScorer(Generic[Model]):
    """A network with its text policy, device and precision.

    Args:
        model: the network.
        texts: its text policy.
        fingerprint: identifies the model; an index must have the same. Empty while training.
        device: computes the network.
        dtype: of the large products; results are fp32.
        max_tokens: padded tokens per batch; None: ``tokens_per_batch``.
    """

    max_remembered = 100_000
    """How many candidates' vectors an encoder keeps."""

    precision = "fp32"
    """The name of the type that the transformer's weights are held or multiplied in."""

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

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the name of a model that was opened by one: it is opened again, as prepared weights are not copied."""
        if not (name := getattr(self, "name", "")):
            return copyreg.__newobj__, (type(self),), self.__dict__  # type: ignore[attr-defined]  # as without this
        from polyrank.scorers.open import load_stage

        return load_stage, (name,)

    @property
    def networks(self) -> "tuple[NetworkScorer[Any], ...]":
        """Itself."""
        return (self,)

    def batches(
        self, compute: Callable[[Tokens], Output], rows: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] = ()
    ) -> Iterator[tuple[list[int], Output]]:
        """The network's outputs for rows of ids, in batches of rows of similar length, with the rows' positions.

        Distributed processes share the batches, and each process gets all outputs.
        """
        groups = self.groups(rows)
        return self.outputs(compute, groups, self.padded(groups, rows, segments))

    @property
    def rounds(self) -> bool:
        """Whether the network rounds to few bits on a CPU.

        Padding changes the last bits of attention, and rounding turns this into differences of a percent. So that a
        score does not depend on its batch, a text is then padded to ``width``, whatever the batch.
        """
        return self.device.type == "cpu" and self.precision in ("bf16", "int8")

    def width(self, length: int) -> int:
        """The number of tokens to which a text of a length is padded in a batch of texts like it."""
        if not self.rounds:
            return length
        return max(length, min(-(-length // ROUNDED_TO) * ROUNDED_TO, self.texts.max_positions))

    def groups(self, rows: Sequence[Sequence[int]]) -> list[list[int]]:
        """The positions of the rows of each batch."""
        # on a GPU one batch may hold all rows; on a CPU batches stay those of one process, so results are the same bits
        n = 1 if self.device.type == "cpu" else distributed.world_size()
        return token_batches([self.width(len(row)) for row in rows], self.max_tokens // n, alike=self.rounds)

    def padded(
        self, groups: Sequence[Sequence[int]], rows: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] = ()
    ) -> Iterator[Tokens]:
        """The batches that this process computes, in host memory."""
        for group in groups[distributed.rank() :: distributed.world_size()]:
            kinds = [segments[i] for i in group] if segments else None
            chosen = [rows[i] for i in group]
            yield pad(chosen, kinds, self.texts.subwords.pad_id, self.width(max(map(len, chosen), default=0)))

    def outputs(
        self, compute: Callable[[Tokens], Output], groups: Sequence[list[int]], batches: Iterable[Tokens]
    ) -> Iterator[tuple[list[int], Output]]:
        """The network's outputs for the batches of ``padded``, with the rows' positions."""

        def output(tokens: Tokens) -> Output:
            with free_cores(), inference(self.model, self.device, self.dtype):
                return compute(tokens.to(self.device))

        outputs, n = map(output, batches), distributed.world_size()
        if n == 1:
            yield from zip(groups, outputs, strict=True)
            return
        for start in range(0, len(groups), n * BATCHES_AT_A_TIME):
            part = groups[start : start + n * BATCHES_AT_A_TIME]
            shares = distributed.all_gather([_on_cpu(value) for value in islice(outputs, BATCHES_AT_A_TIME)])
            yield from ((group, shares[i % n][i // n]) for i, group in enumerate(part))


def _on_cpu(output: Any) -> Any:
    """A tensor, or several, on the CPU, which every process can read."""
    return output.cpu() if isinstance(output, torch.Tensor) else tuple(part.cpu() for part in output)


@contextmanager
def inference(model: nn.Module, device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Evaluation mode without gradients, in ``dtype``."""
    narrows = dtype != torch.float32
    with without_dropout(model), torch.inference_mode(), torch.autocast(device.type, dtype, enabled=narrows):
        yield
