"""Times encoders of several sizes on this machine, and plots their R@1 against it, as docs/sizes.svg.

python runs/sizes.py measure [--data FOLDER] [--rounds 3] [MODEL ...]   stores sizes/MODEL with runs/record.py
python runs/sizes.py draw                                               writes docs/sizes.svg

Each model answers contexts of convai2-valid from an index of the replies of its test lists: one thread, in a process of
its own, and in alternation with the others. R@1 of convai2-valid comes from runs/results.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import record
from picture import plane
from report.models import SHIPPED
from report.sizes import COLOURS, TIMED, points

PICTURE = Path(__file__).parents[1] / "docs/sizes.svg"
PARTS = {"shipped:rerank": ("shipped:minilm", "shipped:late")}  # of a ranker that holds no weights itself
N_REPLIES, N_CONTEXTS = 2000, 40


def once(model: str, data: Path) -> dict[str, float]:
    """Build an index with one model and answer contexts from it; megabytes are of files, and the process's most."""
    import torch

    import polyrank

    torch.set_num_threads(1)
    examples = polyrank.read_examples(data / "convai2-valid/test.jsonl.gz").examples
    replies = list(dict.fromkeys(text for example in examples for text in example.candidates))[:N_REPLIES]
    contexts = [example.query for example in examples[:: len(examples) // N_CONTEXTS]][:N_CONTEXTS]
    with TemporaryDirectory() as folder:
        started = perf_counter()
        scorer = polyrank.load(model)
        loaded = perf_counter() - started
        started = process_time()
        polyrank.build_index(Path(folder) / "index", scorer, replies)
        encoded = process_time() - started
        with polyrank.open(Path(folder) / "index", model=scorer) as answers:
            answers.answer(contexts[0], k=10)  # the first call allocates
            seconds = []
            for context in contexts:
                started = process_time()
                answers.answer(context, k=10)
                seconds.append(process_time() - started)
    return {"ms": 1e3 * median(seconds), "replies_per_second": len(replies) / encoded, "load_s": loaded}


def file_mb(model: str) -> float:
    """Megabytes of the weights of a model."""
    folders = [SHIPPED.get(part, Path(part.removeprefix("untuned:"))) for part in PARTS.get(model, (model,))]
    return sum(path.stat().st_size for folder in folders for path in folder.glob("*.safetensors")) / 1e6


def measure(models: list[str], data: Path, rounds: int) -> None:
    """The medians of several rounds, for each model in turn; processor time, which other work hardly changes."""
    from polyrank.bench.machine import describe_machine

    found: dict[str, list[dict[str, float]]] = {model: [] for model in models}
    for number in range(rounds):
        for model in models:
            command = [sys.executable, __file__, "once", model, "--data", str(data)]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
            )
            assert process.stdout is not None
            text = process.stdout.read()
            _, status, used = os.wait4(process.pid, 0)
            if status:
                raise SystemExit(f"{model} failed")
            found[model].append(json.loads(text) | {"peak_mb": used.ru_maxrss / 1024})
            print(number, model, found[model][-1], flush=True)
    for model, values in found.items():
        middle = {key: round(median(value[key] for value in values), 2) for key in values[0]}
        record.write(
            f"sizes/{TIMED[model]}",
            {
                "machine": describe_machine(),
                "name": model,
                "rounds": rounds,
                "n_replies": N_REPLIES,
                "file_mb": round(file_mb(model), 1),
                **middle,
            },
        )


def draw() -> None:
    """One point for each model: R@1 with its interval against milliseconds; its area grows with its memory."""
    figure, axes = plane(85)
    for point in points():
        x, y, colour = point.timed["ms"], 100 * point.quality["metrics"]["R@1"], COLOURS[point.encoder]
        low, high = (100 * end for end in point.quality["intervals"]["R@1"])
        size = (point.timed["peak_mb"] / 10) ** 0.5 * 2
        axes.errorbar(x, y, [[y - low], [high - y]], fmt="o", markersize=size, capsize=3, color=colour)
        axes.annotate(point.title, (x, y), (12, point.up), textcoords="offset points", color=colour, fontsize=11)
    axes.set_xlim(axes.get_xlim()[0], axes.get_xlim()[1] * 2.5)
    axes.set_ylabel("R@1 of 20 on convai2-valid, %", fontsize=11)
    axes.set_xlabel("CPU ms of an answer, one thread, fp32 (log)", fontsize=11)
    figure.savefig(PICTURE, metadata={"Date": None}, facecolor="white")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "once", "draw"))
    parser.add_argument("models", nargs="*", default=list(TIMED))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.what == "measure":
        measure(options.models, options.data, options.rounds)
    elif options.what == "once":
        print(json.dumps(once(options.models[0], options.data)))
    else:
        draw()


if __name__ == "__main__":
    main()
