"""Kills fits of the sample at random moments, resumes each until it is finished, and compares their results.

    python runs/killed_fit.py [--kills 50] [--seed 1]

A fit that runs through makes the ranker and the trained models that all others must make, bit for bit. Stores
fit-kills/sample with runs/record.py: the kills by the step that was finished last, and how many fits agree.
"""

import argparse
import itertools
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from record import write

from polyrank.bench import describe_machine
from polyrank.config.names import SAMPLE
from polyrank.storage.durable import sha256_file

LONGEST_S = 30.0  # from the start of a process to its kill; so much suffices for a step


def main() -> None:
    """Kill, resume, compare, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    moments, killed, results = random.Random(options.seed), Counter[str](), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        data = make_parts(Path(folder) / "data")
        whole = Path(folder) / "whole"
        subprocess.run(command(data, whole), check=True, capture_output=True)
        expected = contents(whole)
        for number in itertools.count():
            output = Path(folder) / str(number)
            for step in kills(command(data, output), output, moments, options.kills - killed.total()):
                killed[step] += 1
                print(f"kill {killed.total()} of {options.kills}: {step}", flush=True)
            results.append(contents(output))
            if killed.total() >= options.kills:
                break
    result = {"kills": dict(killed), "fits": len(results), "equal": sum(one == expected for one in results)}
    write("fit-kills/sample", {**result, "machine": describe_machine()})
    print(result)


def command(data: Path, output: Path) -> list[str]:
    """Of a fit that has time for all its steps."""
    return [sys.executable, "-m", "polyrank", "fit", str(data), "-o", str(output), "--minutes", "90", "--resume"]


def kills(fit: list[str], output: Path, moments: random.Random, at_most: int) -> Iterator[str]:
    """Start a fit until it has finished, and name the last step before each kill."""
    for n in itertools.count():
        process = subprocess.Popen(fit, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            _, printed = process.communicate(timeout=None if n >= at_most else moments.uniform(2, LONGEST_S))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            steps = sorted(output.glob("steps/*.json"), key=lambda file: file.stat().st_mtime)
            yield f"after {steps[-1].stem}" if steps else "before the first"
        else:
            if process.returncode:
                raise SystemExit(printed)
            return


def contents(output: Path) -> dict[str, Any]:
    """The lines of a fit without times, the fingerprint of its ranker, and the digests of all trained weights."""
    report = json.loads((output / "report.json").read_text("utf-8"))
    lines = [(line["step"], line["metrics"], line["gain"], line["kept"]) for line in report["lines"]]
    files = [file for file in output.rglob("*.safetensors") if file.name != "checkpoint.safetensors"]  # it holds times
    weights = {str(file.relative_to(output)): sha256_file(file) for file in files}
    return {"ranker": report["ranker"], "lines": lines, **weights}


def make_parts(folder: Path) -> Path:
    """A part of the sample, whose lists have eight candidates."""
    folder.mkdir()
    valid = (SAMPLE / "valid.jsonl").read_text("utf-8").splitlines()
    for name, rows in (("valid", valid[:6]), ("test", valid[-6:])):
        lists = []
        for row in map(json.loads, rows):
            wrong = [text for n, text in enumerate(row["candidates"]) if n not in row["relevant"]]
            lists.append({**row, "candidates": [row["candidates"][row["relevant"][0]], *wrong[:7]], "relevant": [0]})
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lists), "utf-8")
    said = (SAMPLE / "train.jsonl").read_text("utf-8").splitlines(keepends=True)
    (folder / "train.jsonl").write_text("".join(said[:10]), "utf-8")
    return folder


if __name__ == "__main__":
    main()
