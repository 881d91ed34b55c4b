"""Encodes texts and trains a recipe on a Ray cluster of two nodes on this machine, while processes are killed.

    python runs/two_nodes.py [-n 200000] [--only encode|train]

The shipped ConveRT encodes random texts. After a third of the blocks the script kills the command itself and starts it
again; after two thirds it kills all processes of the second node with SIGKILL. Then two workers train on the shipped
sample, and the script kills the second node again. Stores "ray" with runs/record.py: the script checks that each text
is present once and that no finished block was written again, and compares the losses with those of one process.
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

sys.path.extend(str(Path(__file__).parents[1] / "tests" / folder) for folder in ("", "cluster"))

import numpy as np
import record

import ray_nodes
from polyrank.bench.machine import describe_machine
from polyrank_ray.blocks import read_blocks, read_plan

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
    """Write ``n`` distinct short texts."""
    generator = np.random.default_rng(1)
    rows = generator.integers(len(WORDS), size=(n, 6))
    lines = (" ".join([*(WORDS[i] for i in row), str(number)]) for number, row in enumerate(rows))
    path.write_text("".join(json.dumps({"id": line.rsplit(" ", 1)[1], "text": line}) + "\n" for line in lines), "utf-8")


def command(nodes: ray_nodes.Nodes, *arguments: Any) -> "subprocess.Popen[str]":
    """Start ``polyrank ray ARGUMENTS`` with two workers on the CPUs of the cluster."""
    words = [sys.executable, "-m", "polyrank", "ray", *map(str, arguments)]
    return subprocess.Popen([*words, "--workers", "2", "--device", "cpu", "--address", nodes.address])


def wait_until(condition: Callable[[], bool], running: "subprocess.Popen[str]") -> None:
    """Wait until the condition holds. The interval spares the disk, which has other users."""
    while not condition():
        if running.poll() is not None:
            raise SystemExit(f"the command ended too early, with exit code {running.returncode}")
        time.sleep(0.02)


def end(running: "subprocess.Popen[str]") -> None:
    """Wait for exit code 0."""
    if running.wait():
        raise SystemExit(f"exit code {running.returncode}")


def encoded(nodes: ray_nodes.Nodes, folder: Path, n: int) -> dict[str, Any]:
    """Encode with both kills."""
    write_texts(folder / "texts.jsonl", n)
    output = folder / "vectors"
    words = ("encode", "shipped:convert", folder / "texts.jsonl", "-o", output, "--index", folder / "index")

    def blocks() -> dict[str, int]:
        return {file.name: file.stat().st_mtime_ns for file in output.glob("block-*")}

    start = time.monotonic()
    running = command(nodes, *words)
    wait_until(lambda: (output / "vectors.json").exists(), running)
    n_blocks = read_plan(output).n_blocks
    wait_until(lambda: len(blocks()) >= n_blocks / 3, running)
    running.kill()
    running.wait()
    first = blocks()
    running = command(nodes, *words)
    wait_until(lambda: len(blocks()) >= n_blocks * 2 / 3, running)
    nodes.kill()
    second = blocks()
    end(running)
    seconds = time.monotonic() - start
    nodes.add()
    last = blocks()
    texts = [candidate.text for part, _ in read_blocks(output) for candidate in part]
    expected = [json.loads(line)["text"] for line in (folder / "texts.jsonl").read_text("utf-8").splitlines()]
    assert texts == expected, "each text must be present once, in the order of the file"
    assert all(last[name] == seen for name, seen in (first | second).items()), "a finished block was written again"
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


def trained(nodes: ray_nodes.Nodes, folder: Path, lr: float) -> dict[str, Any]:
    """Train with one process, and with two workers of which one is killed."""
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
            wait_until(lambda: (folder / "ray" / "checkpoint.safetensors").exists(), running)
            n_steps = len(losses(folder / "ray"))
            nodes.kill()
            end(running)
            nodes.add()
        seconds[name] = round(time.monotonic() - start, 1)
        curves[name] = losses(output)
    assert curves["ray"].keys() == curves["alone"].keys(), "both must log the same steps, each once"
    apart = [abs(curves["ray"][key] / value - 1) for key, value in curves["alone"].items()]
    return {
        "losses": len(apart),
        "losses_when_the_node_was_killed": n_steps,
        "first_and_last_loss": [round(curves["ray"][step, "train"], 4) for step in (1, max(curves["ray"])[0])],
        "greatest_relative_difference": float(f"{max(apart):.2g}"),
        "seconds": seconds,
    }


def main() -> None:
    """Run both parts, or that of ``--only``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=200_000)
    parser.add_argument("--lr", type=float, default=0.3, help="learning rate of the training")
    parser.add_argument("--only", choices=["encode", "train"])
    options = parser.parse_args()
    result = record.read("ray") if options.only else {}
    with tempfile.TemporaryDirectory() as name, ray_nodes.two_nodes() as nodes:
        if options.only != "train":
            result["encode"] = encoded(nodes, Path(name), options.n)
        if options.only != "encode":
            result["train"] = trained(nodes, Path(name), options.lr)
    machine = describe_machine()
    machine["versions"]["ray"] = metadata.version("ray")
    record.write("ray", {**result, "machine": machine})
    print(json.dumps(record.read("ray"), indent=2))


if __name__ == "__main__":
    main()
