"""Measures a cold start: processor time of ``polyrank respond INDEX "..."``, and of ``import torch``.

python runs/start.py [--against SRC] [--times N] | python runs/record.py bench/start

With --against, runs of an earlier version alternate with runs of this one, under the same conditions.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polyrank
from polyrank.answering.build import build_index
from polyrank.bench.machine import describe_machine
from polyrank.config.models import BiConfig, PolyConfig
from polyrank.models import new_model
from polyrank.models.artifacts import save_model
from polyrank.records import Candidate
from polyrank.scorers.open import load_encoder

REPLIES = ["Please restart your router.", "Your refund is on its way.", "Have you tried another cable?"]
RESPOND = "from polyrank.cli import main; main()"


def processor_s(command: list[str], source: Path) -> tuple[float, float]:
    """Processor seconds and wall seconds of a command."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(source)}
    subprocess.run([sys.executable, "-c", *command], env=environment, check=True, stdout=subprocess.DEVNULL)
    after, clock = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, clock


def indexes(home: Path) -> dict[str, list[str]]:
    """Build an index with each of several models; returns a command that answers from each."""
    models = {"ConveRT": "shipped:convert", "untuned MiniLM": "untuned:embedded"}
    for name, config in (("Bi-encoder", BiConfig()), ("Poly-encoder", PolyConfig())):
        model, texts, resolved = new_model(config, None, seed=0, sample=REPLIES)
        models[name] = str(home / name)
        save_model(home / name, model, texts, resolved)
    pool = [Candidate(str(i), text) for i, text in enumerate(REPLIES)]
    for name, model in models.items():
        build_index(home / f"{name} index", load_encoder(model), pool, model=model)
    return {name: [RESPOND, "respond", str(home / f"{name} index"), "my wifi is down"] for name in models}


def main() -> None:
    """Print one JSON object: medians of processor and wall seconds by command and by version."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="the folder src of an earlier version")
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    sources = {"now": Path(polyrank.__file__).parents[1]} | ({"before": options.against} if options.against else {})
    rows = []
    with tempfile.TemporaryDirectory() as home:
        commands = {"import torch": ["import torch"], **indexes(Path(home))}
        for name, command in commands.items():
            taken: dict[str, list[tuple[float, float]]] = {version: [] for version in sources}
            for _ in range(options.times + 1):
                for version, source in sources.items():
                    taken[version].append(processor_s(command, source))
            row: dict[str, object] = {"what": name}
            for version, runs in taken.items():
                processor, clock = zip(*runs[1:], strict=True)  # without the first run, which fills the file cache
                row[version] = {"processor_s": statistics.median(processor), "wall_s": statistics.median(clock)}
            rows.append(row)
    result = {"machine": describe_machine(), "load": os.getloadavg(), "n": options.times, "rows": rows}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
