"""Measures a training from data larger than memory: random pairs in Parquet files.

    python runs/large.py -n 200000 -n 2000000 -n 20000000

Prints JSON. For each number of pairs it reports the seconds of a first run, which writes the examples to disk, and of a
second run, which reuses them, until its first checkpoint (after 5 steps) and its end (after 20); and the process's peak
memory without mapped files (RssAnon).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from polyrank.bench.machine import describe_machine

WORDS = np.array("my wifi is down hello thanks the router light red green restart it bill high late".split())  # noqa: SIM905
SHARD = 500_000
RECIPE = """
output = "{output}"
[model]
kind = "convert"
embedding_dim = 64
attention_dim = 16
ffn_dim = 128
spans = [3, 5]
side_dim = 64
side_layers = 1
output_dim = 64
[data]
train = "{train}"
cache = "{cache}"
[train]
max_steps = 20
batch_size = 256
length_window = 50
checkpoint_steps = 5
"""


def write_pairs(folder: Path, n: int) -> None:
    """Write pairs of random words; every other context has two turns."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(1)
    for number, start in enumerate(range(0, n, SHARD)):
        rows = min(SHARD, n - start)
        texts = [" ".join(row) for row in WORDS[generator.integers(len(WORDS), size=(3 * rows, 6))]]
        contexts = [texts[3 * i : 3 * i + 1 + i % 2] for i in range(rows)]
        table = pa.table({"context": contexts, "response": [f"{texts[3 * i + 2]} {start + i}" for i in range(rows)]})
        parquet.write_table(table, folder / f"part-{number:04}.parquet")


def watched(command: list[str], ready: Path) -> tuple[float | None, float, float]:
    """Seconds until the file ``ready`` exists, seconds until the end, and peak anonymous memory in megabytes."""
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    errors: list[str] = []
    assert process.stderr is not None, "it is piped"
    reader = threading.Thread(target=lambda: errors.extend(process.stderr))  # type: ignore[arg-type]
    reader.start()
    at, most = None, 0
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text("utf-8")
        except FileNotFoundError:
            break
        most = max(most, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")), 0)
        if at is None and ready.exists():
            at = time.monotonic() - began
        time.sleep(0.02)
    reader.join()
    if process.wait():
        raise SystemExit("".join(errors))
    return at, time.monotonic() - began, most / 1024


def measure(n: int, folder: Path) -> dict[str, Any]:
    """The figures for ``n`` pairs."""
    data, cache, output = folder / "data", folder / "cache", folder / "run"
    write_pairs(data, n)
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE.format(output=output, train=data, cache=cache), "utf-8")
    command = [sys.executable, "-m", "polyrank", "train", str(recipe), "--threads", "1"]
    _, first_s, first_mb = watched(command, output / "metrics.jsonl")
    started_s, whole_s, mb = watched(
        [*command, "--overwrite", "--set", "train.seeds=[2]"], output / "checkpoint.safetensors"
    )
    size = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
    return {
        "pairs": n,
        "parquet_mb": round(sum(file.stat().st_size for file in data.iterdir()) / 1e6),
        "on_disk_mb": round(size / 1e6),
        "first_run_s": round(first_s, 1),
        "first_run_mb": round(first_mb),
        "next_run_checkpoint_s": started_s and round(started_s, 1),
        "next_run_s": round(whole_s, 1),
        "next_run_mb": round(mb),
    }


def main() -> None:
    """Print one row per number of pairs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("-n", type=int, action="append")
    options = parser.parse_args()
    rows = []
    for n in options.n or [200_000, 2_000_000, 20_000_000]:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(n, Path(folder)))
        print(rows[-1], file=sys.stderr)
    print(json.dumps({"machine": describe_machine(), "load": os.getloadavg(), "steps": 20, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
