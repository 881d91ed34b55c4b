"""How long the host prepares a pair for in-batch training: everything before the network, which is replaced by nothing.

It also counts the tokens that a network computes for each real token. Times are of the thread's processor time, so
other work on the machine changes them less than wall time.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import thread_time
from typing import Any

import torch

from polyrank.bench.machine import describe_machine
from polyrank.config.models import BiConfig, TextPolicy
from polyrank.config.training import TrainConfig
from polyrank.data import write_examples
from polyrank.data.mapped_examples import open_stored
from polyrank.errors import UsageError
from polyrank.models import EncoderNetwork, new_model
from polyrank.models.backbone import GROUP_PADDING
from polyrank.negatives.hard import collect_right_answers
from polyrank.records import Example
from polyrank.text.tokens import like_lengths
from polyrank.training.fitting import ExampleBatches
from polyrank.training.steps import InBatchStep
from polyrank.training.stored_tokens import open_tokens


def bench_host(
    examples: Sequence[Example],
    *,
    batch_size: int = 32,
    repeats: int = 3,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Time the preparation of batches, with examples in memory and on disk (``data.cache``).

    Args:
        examples: pairs of a context and a response.
        batch_size: contexts per update.
        repeats: epochs with warm tokens, after a first one.
        progress: called with the name of the next step.

    Returns:
        ``machine`` and ``rows`` of ``what`` ("prepare"), ``n`` (pairs), ``form`` ("memory" or "disk"), ``first_us``
        (microseconds per pair in the first epoch; on disk this includes writing the tokens), ``us`` (median of the
        other epochs), and computed tokens per real one: ``padded``, if batches are padded as a whole, and ``grouped``,
        in the groups of a device whose attention needs padding. Without padding it is 1.

    Raises:
        UsageError: there are fewer examples than a batch needs.
    """
    if len(examples) < batch_size or repeats < 1:
        raise UsageError(f"{len(examples)} examples are too few for batches of {batch_size}; give more")
    rows = []
    model, texts, _ = new_model(BiConfig(shared_towers=True, output_scale=1.0), TextPolicy(), seed=0, sample=())
    assert isinstance(model, EncoderNetwork), "a Bi-encoder is an encoder"
    with TemporaryDirectory() as folder:
        source = Path(folder) / "train.jsonl"
        write_examples(source, examples)
        stored = open_stored(source, Path(folder) / "cache")
        for form, data in (("memory", examples), ("disk", stored)):
            progress(form)
            started = thread_time()
            tokens = None if data is examples else open_tokens(stored, texts)
            rights = collect_right_answers(data)
            step = InBatchStep(model, texts, torch.device("cpu"), rights=rights, stored=tokens)
            batches = ExampleBatches(data, step, TrainConfig(batch_size=batch_size, epochs=repeats + 1), seed=1)
            times = []
            for epoch in range(repeats + 1):
                for position in range(batches.per_epoch):
                    batches.batch(epoch * batches.per_epoch + position)
                times.append(1e6 * (thread_time() - started) / len(data))
                started = thread_time()
            first, *warm = times
            row: dict[str, Any] = {"what": "prepare", "n": len(data), "form": form}
            rows.append({**row, "first_us": round(first, 1), "us": round(median(warm), 1), **_padding(batches)})
    return {"machine": describe_machine(), "rows": rows}


def _padding(batches: ExampleBatches) -> dict[str, float]:
    """Computed tokens per real one in an epoch."""
    real = padded = grouped = 0
    for number in range(batches.per_epoch):
        inputs = batches.batch(number).prepared
        for share in (inputs.contexts, inputs.candidates):
            lengths = [len(row) for row in share.rows]
            groups = like_lengths(lengths, GROUP_PADDING)
            real += sum(lengths)
            padded += len(lengths) * max(lengths)
            grouped += sum(len(group) * lengths[group[0]] for group in groups)
    return {"padded": round(padded / real, 2), "grouped": round(grouped / real, 2)}
