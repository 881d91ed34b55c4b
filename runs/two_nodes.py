"""On a Ray cluster of two nodes of this machine: texts encoded and a recipe trained, with processes that are killed.

    python runs/two_nodes.py [-n 200000] [--only encode|train]

Made-up texts are encoded by the shipped ConveRT. When a third of the blocks are written the command itself is killed
and started again; at two thirds the second node is killed, all its processes with SIGKILL. Then the shipped sample is
trained on by two workers, and the second node is killed again. Keeps ray by runs/record.py: that each text is there
once, that no finished block was written again, and how far the losses are from those of one process.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
import record

import cluster
from polyrank.bench.machine import describe_machine
from polyrank.integrations.ray.blocks import read_blocks, read_plan

WORDS = "my wifi is down hello thanks the router light red green restart it bill high late".split()  # noqa: SIM905
RECIPE = """
output = "{output}"
[model]
kind = "convert"
[data]
train = "{sample}/train.jsonl"
valid = "{sample}/valid.jsonl"
speaker = "agent"
kind = "dialogues"
[train]
init_from = "shipped:convert"
lr = {lr}
batch_size = 64
epochs = 3
dropout = 0.0
precision = "fp32"
optimizer = "adadelta"
"""


def write_texts(path: Path, n: int) -> None:
    """Distinct short texts."""
    generator = np.random.default_rng(1)
    rows = generator.integers(len(WORDS), size=(n, 6))
    lines = (" ".join([*(WORDS[i] for i in row), str(number)]) for number, row in enumerate(rows))
    path.write_text("".join(json.dumps({"id": line.rsplit(" ", 1)[1], "text": line}) + "\n" for line in lines), "utf-8")


def command(nodes: cluster.Nodes, *arguments: Any) -> "subprocess.Popen[str]":
    """``polyrank ray ARGUMENTS`` with two workers on the CPUs of the cluster."""
    words = [sys.executable, "-m", "polyrank", "ray", *map(str, arguments)]
    return subprocess.Popen([*words, "--workers", "2", "--device", "cpu", "--address", nodes.address])


def when(condition: Callable[[], bool], running: "subprocess.Popen[str]") -> None:
    """Go on once it holds; it is looked at as often as a disk that others use bears."""
    while not condition():
        if running.poll() is not None:
            raise SystemExit(f"ended with {running.returncode} before its time")
        time.sleep(0.02)


def end(running: "subprocess.Popen[str]") -> None:
    """Wait for a good end."""
    if running.wait():
        raise SystemExit(f"exit code {running.returncode}")


def encoded(nodes: cluster.Nodes, folder: Path, n: int) -> dict[str, Any]:
    """Encode, with both kills."""
    write_texts(folder / "texts.jsonl", n)
    output = folder / "vectors"
    words = ("encode", "shipped:convert", folder / "texts.jsonl", "-o", output, "--index", folder / "index")

    def blocks() -> dict[str, int]:
        return {file.name: file.stat().st_mtime_ns for file in output.glob("block-*")}

    start = time.monotonic()
    running = command(nodes, *words)
    when(lambda: (output / "vectors.json").exists(), running)
    n_blocks = read_plan(output).n_blocks
    when(lambda: len(blocks()) >= n_blocks / 3, running)
    running.kill()
    running.wait()
    first = blocks()
    running = command(nodes, *words)
    when(lambda: len(blocks()) >= n_blocks * 2 / 3, running)
    nodes.kill()
    second = blocks()
    end(running)
    seconds = time.monotonic() - start
    nodes.add()
    last = blocks()
    texts = [candidate.text for part, _ in read_blocks(output) for candidate in part]
    asked = [json.loads(line)["text"] for line in (folder / "texts.jsonl").read_text("utf-8").splitlines()]
    assert texts == asked, "each text is there once, in the order of the file"
    assert all(last[name] == seen for name, seen in (first | second).items()), "no finished block was written again"
    return {
        "texts": len(set(texts)),
        "blocks": n_blocks,
        "when_the_command_was_killed": len(first),
        "when_the_node_was_killed": len(second),
        "written_again": 0,
        "seconds": round(seconds, 1),
    }


def losses(run: Path) -> dict[tuple[int, str], float]:
    """Training and validation losses by step."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    return {(r["step"], "valid" if "valid" in r else "train"): r.get("valid", r)["loss"] for r in rows}


def trained(nodes: cluster.Nodes, folder: Path, lr: float) -> dict[str, Any]:
    """Train by one process and by two workers, one of which dies."""
    sample = Path(__file__).parents[1] / "src" / "polyrank" / "sample"
    curves, seconds = {}, {}
    for name in ("alone", "ray"):
        output = folder / name
        (folder / f"{name}.toml").write_text(RECIPE.format(output=output, sample=sample, lr=lr))
        start = time.monotonic()
        if name == "alone":
            subprocess.run([sys.executable, "-m", "polyrank", "train", str(folder / "alone.toml")], check=True)
        else:
            running = command(nodes, "train", folder / "ray.toml")
            when(lambda: (folder / "ray" / "checkpoint.safetensors").exists(), running)
            n_steps = len(losses(folder / "ray"))
            nodes.kill()
            end(running)
            nodes.add()
        seconds[name] = round(time.monotonic() - start, 1)
        curves[name] = losses(output)
    assert curves["ray"].keys() == curves["alone"].keys(), "the same steps, each once"
    apart = [abs(curves["ray"][key] / value - 1) for key, value in curves["alone"].items()]
    return {
        "losses": len(apart),
        "losses_when_the_node_was_killed": n_steps,
        "first_and_last_loss": [round(curves["ray"][step, "train"], 4) for step in (1, max(curves["ray"])[0])],
        "greatest_relative_difference": float(f"{max(apart):.2g}"),
        "seconds": seconds,
    }


def main() -> None:
    """Run it all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=200_000)
    parser.add_argument("--lr", type=float, default=0.3, help="of the training")
    parser.add_argument("--only", choices=["encode", "train"])
    asked = parser.parse_args()
    result = record.read("ray") if asked.only else {}
    with tempfile.TemporaryDirectory() as name, cluster.two_nodes() as nodes:
        if asked.only != "train":
            result["encode"] = encoded(nodes, Path(name), asked.n)
        if asked.only != "encode":
            result["train"] = trained(nodes, Path(name), asked.lr)
    machine = describe_machine()
    machine["versions"]["ray"] = metadata.version("ray")
    record.write("ray", {**result, "machine": machine})
    print(json.dumps(record.read("ray"), indent=2))


if __name__ == "__main__":
    main()
