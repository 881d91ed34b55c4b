"""Shared by the peers' scripts: examples and their order as in polyrank's recipes, a schedule, and the comparison."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import record

from polyrank.config.recipe import DataConfig
from polyrank.data import read_examples
from polyrank.evaluation import evaluate, paired_test, read_scores, summarise, write_scores
from polyrank.scorers.protocols import Scorer
from polyrank.training.batches import BatchOrder
from polyrank.training.data import load_data

Pair = tuple[str, str]
SPEAKERS = {"self-dialogue": "*"}  # whose turns are responses, where not the agents'


def arguments(variants: Sequence[str]) -> argparse.Namespace:
    """The command line's arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("variant", choices=variants)
    parser.add_argument("set")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--budget", type=int, default=11520)
    parser.add_argument("--name", default="", help="name of a separate folder, as in runs/real.sh")
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--length-window", type=int, default=1, help="the first tables used 50")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--dropout", type=float, default=0.0, help="for variants with polyrank's settings")
    parser.add_argument("--start", type=Path, help="a folder of the library; default: MiniLM")
    parser.add_argument("--against", default="bi", help="the polyrank model to compare with, in the same folder")
    return parser.parse_args()


def training_pairs(args: argparse.Namespace, between: str = " ") -> list[Pair]:
    """The training examples of polyrank's recipes, with turns joined by ``between``."""
    folder = args.data / args.set
    dialogues = folder / "train.dialogues.jsonl.gz"
    data = (
        DataConfig(train=str(dialogues), speaker=SPEAKERS.get(args.set, "agent"), max_train=args.budget)
        if dialogues.exists()
        else DataConfig(train=str(folder / "train.jsonl.gz"), max_train=args.budget)
    )
    examples, _ = load_data(data, notify=print)
    return [(between.join((*example.background, *example.context)), example.response or "") for example in examples]


def train(
    parameters: Sequence[torch.nn.Parameter],
    pairs: Sequence[Pair],
    loss: Callable[[list[list[str]]], torch.Tensor],
    *,
    batch_size: int,
    lr: float,
    warmup: int,
    args: argparse.Namespace,
    distinct: bool = False,
) -> float:
    """One epoch of AdamW with linear decay and clipping at 1; returns its seconds.

    With ``distinct``, no text occurs twice in a batch.
    """
    optimizer = torch.optim.AdamW(parameters, lr=lr)
    sizes = [len(context) for context, _ in pairs]
    order = BatchOrder(len(pairs), sizes, batch_size, seed=1, window=args.length_window).epoch(0)
    if distinct:
        order = without_duplicates(pairs, [position for batch in order for position in batch], batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / (warmup + 1), (len(order) - step) / max(1, len(order) - warmup)),
    )
    started = time.monotonic()
    for number, batch in enumerate(order):
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            value = loss([list(texts) for texts in zip(*(pairs[i] for i in batch), strict=True)])
        value.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        print(f"step {number + 1}/{len(order)} loss {float(value.detach()):.3f}", flush=True)
    return time.monotonic() - started


def without_duplicates(pairs: Sequence[Pair], order: Sequence[int], batch_size: int) -> list[list[int]]:
    """Batches in which no text occurs twice, filled in this order; an incomplete last batch is left out.

    >>> without_duplicates([("a", "x"), ("b", "x"), ("c", "y"), ("d", "z")], range(4), 2)
    [[0, 2], [1, 3]]
    """
    batches, rest = [], list(order)
    while rest:
        batch: list[int] = []
        seen: set[str] = set()
        later = []
        for at, position in enumerate(rest):
            if len(batch) == batch_size:
                later += rest[at:]
                break
            if seen.isdisjoint(pairs[position]):
                batch.append(position)
                seen.update(pairs[position])
            else:
                later.append(position)
        if len(batch) < batch_size:
            break
        batches.append(batch)
        rest = later
    return batches


def report(name: str, scorer: Scorer, seconds: float, args: argparse.Namespace, *, against: str = "bi") -> None:
    """Evaluate like polyrank's models, compare with polyrank's model ``against``, and store the result."""
    test = read_examples(args.data / args.set / "test.jsonl.gz").examples[: args.limit]
    result = evaluate(scorer, test)
    work = Path("runs") / "work" / args.name / args.set
    work.mkdir(parents=True, exist_ok=True)
    write_scores(work / f"{name}.scores.jsonl", result, scorer=name)
    summary = {"name": name, "train_seconds": seconds, "budget": args.budget, **summarise(result)}
    other = work / f"{against}.scores.jsonl"
    if other.exists() and (known := read_scores(other)).records and len(known.records) == len(result.records):
        summary["against"] = {"scores": against, **paired_test(result, known)}
    record.write("/".join(part for part in (args.name, args.set, name) if part), summary)
    print(json.dumps(summary))
