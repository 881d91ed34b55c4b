"""Kills trainings with SIGKILL at random moments and resumes them; each must end like an uninterrupted training.

    python runs/kills.py -n 20 [--only pretraining "streamed, two processes"] [--seed 1]

The trainings are a pre-training from scratch, and a ConveRT's training from examples on disk (``data.cache``, a folder
of Parquet files) in two processes started as torchrun does. The script kills one or both of the two; the other one ends
by itself, or, before the processes have connected, is ended as by torchrun.
Stores "kills" with runs/record.py. Exits with 1 if a metric or a bit of the model differs.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import record

from polyrank.bench.machine import describe_machine
from polyrank.errors import LostProcessError, PolyrankError
from processes import as_launched, start

WORDS = "my wifi is down hello thanks the router light red green restart it bill high late".split()  # noqa: SIM905
CLOCKS = ("seconds", "tokens_per_s", "examples_per_s")
PATIENCE = 30  # seconds, as torchrun's
PRETRAINING = {
    "model": {"layers": 1, "hidden": 32, "heads": 2, "ffn": 64, "positions": 32},
    "vocabulary": {"size": 100},
    "text": {"max_tokens": 24, "max_response_tokens": 8},
    "train": {"steps": 150, "batch_tokens": 400, "evaluate_steps": 40, "checkpoint_steps": 7},
}
STREAMED = {
    "model": {
        "kind": "convert", "embedding_dim": 32, "attention_dim": 16, "ffn_dim": 64, "spans": [3, 5], "side_dim": 32,
        "side_layers": 1, "output_dim": 32,
    },
    "train": {"max_steps": 120, "batch_size": 32, "checkpoint_steps": 7, "evaluate_per_epoch": 3},
}  # fmt: skip


def work(kind: str, tables: dict[str, Any], variables: dict[str, str]) -> None:
    """Run one process of a training, which begins or resumes."""
    os.environ.update(variables)
    import torch

    from polyrank.training import train
    from polyrank.training.pretraining import pretrain

    torch.set_num_threads(1)
    try:
        if kind == "pretraining":
            pretrain(tables, resume=True)
        else:
            train(tables, resume=True)
    except PolyrankError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


KINDS: dict[str, tuple[dict[str, Any], int]] = {
    "pretraining": (PRETRAINING, 1),
    "streamed, two processes": (STREAMED, 2),
}


def write_data(folder: Path) -> dict[str, Any]:
    """Write dialogues of random turns as JSON lines, and as pairs in four Parquet files."""
    draw = random.Random(1)
    turns = [[" ".join(draw.choices(WORDS, k=draw.randint(2, 8))) for _ in range(5)] for _ in range(400)]
    (folder / "dialogues.jsonl").write_text(
        "".join(json.dumps({"turns": [{"speaker": "a", "text": text} for text in row]}) + "\n" for row in turns),
        "utf-8",
    )
    (folder / "shards").mkdir()
    for number in range(4):
        rows = [(row[:at], row[at]) for row in turns[number::4] for at in range(1, 5)]
        contexts, responses = zip(*rows, strict=True)
        table = pa.table({"context": list(contexts), "response": list(responses)})
        parquet.write_table(table, folder / "shards" / f"part-{number}.parquet")
    return {
        "pretraining": {"train": str(folder / "dialogues.jsonl"), "valid": str(folder / "dialogues.jsonl")},
        "streamed, two processes": {"train": str(folder / "shards"), "cache": str(folder / "cache")},
    }


def outcome(folder: Path) -> tuple[Any, dict[str, bytes]]:
    """Every metrics record without its timings, and every byte of the model."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    records = [{key: value for key, value in line.items() if key not in CLOCKS} for line in lines]
    files = sorted(path for path in (folder / "model").rglob("*") if path.is_file())
    return records, {str(path.relative_to(folder)): path.read_bytes() for path in files}


def attempt(kind: str, tables: dict[str, Any], n: int, draw: random.Random, seconds: float | None) -> str:
    """Start or resume n processes, and kill some of them after ``seconds`` (None: none); returns the outcome."""
    children = [start(work, kind, tables, variables) for variables in as_launched(n)]
    end = time.monotonic() + (10 * PATIENCE if seconds is None else seconds)
    for child in children:
        child.join(max(0.0, end - time.monotonic()))
    killed = [child for child in children if child.is_alive()]
    if killed and seconds is None:
        end_all(children)
        return "violation: hangs"
    if killed:
        killed = draw.sample(killed, draw.randint(1, len(killed)))
        for child in killed:
            child.kill()
    codes = end_all(children)
    if not set(codes) <= ({0, -signal.SIGKILL, -signal.SIGTERM, 143, LostProcessError.exit_code} if killed else {0}):
        return f"violation: exit codes {codes}"
    if not killed:
        return "ended"
    if len(killed) == n:
        return "killed"
    if {143, -signal.SIGTERM} & set(codes) or codes.count(-signal.SIGKILL) > len(killed):
        return "one killed, the other ended by the launcher"
    return "one killed, the other ended by itself"


def end_all(children: list[BaseProcess]) -> list[int | None]:
    """Wait for processes to end, and end the others as torchrun does, since they may wait for one another."""
    for end in (lambda child: None, BaseProcess.terminate, BaseProcess.kill):
        for child in children:
            if child.is_alive():
                end(child)
        until = time.monotonic() + PATIENCE
        for child in children:
            child.join(max(0.0, until - time.monotonic()))
    return [child.exitcode for child in children]


def kills(kind: str, n: int, folder: Path, draw: random.Random) -> dict[str, Any]:
    """Kill ``n`` times, in as many runs as that needs."""
    shape, n_processes = KINDS[kind]
    run = folder / "run"  # the same for all, since a model records its training's folder
    tables = {**shape, "data": write_data(folder)[kind], "output": str(run)}
    counts: Counter[str] = Counter()
    for name in ("first", "second"):  # the first one also fills the cache
        began = time.monotonic()
        counts[attempt(kind, tables, n_processes, draw, None)] += 1
        whole_s = time.monotonic() - began
        run.rename(folder / name)
    expected = outcome(folder / "first")
    counts["other figures"] += outcome(folder / "second") != expected
    n_killed = n_runs = 0
    while n_killed < n:
        result = ""
        while result != "ended" and not result.startswith("violation"):
            result = attempt(kind, tables, n_processes, draw, draw.uniform(0, whole_s))
            counts[result] += 1
            n_killed += "killed" in result
        counts["other figures"] += result == "ended" and outcome(run) != expected
        n_runs += 1
        shutil.rmtree(run, ignore_errors=True)
        print(f"{kind}: {n_killed} of {n} kills, {n_runs} runs, {dict(counts)}", flush=True)
    n_violations = counts["other figures"] + sum(n for name, n in counts.items() if name.startswith("violation"))
    return {"kills": n_killed, "runs": n_runs, "seconds": round(whole_s, 1), **counts, "n_violations": n_violations}


def main() -> None:
    """Each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=20, help="kills per training")
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    parts = {}
    for kind in options.only:
        with tempfile.TemporaryDirectory() as name:
            parts[kind] = kills(kind, options.n, Path(name), random.Random(options.seed))
    record.write("kills", {"machine": describe_machine(), "parts": parts})
    raise SystemExit(any(part["n_violations"] for part in parts.values()))


if __name__ == "__main__":
    main()
