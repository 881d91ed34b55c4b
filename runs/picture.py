"""Plots R@1 on star against the milliseconds to rank 100 candidates, as docs/picture.svg.

python runs/picture.py measure [--data FOLDER] [-n CONTEXTS] [--cross CONTEXTS]   stores "picture" with runs/record.py
python runs/picture.py draw                                                       writes docs/picture.svg

R@1 comes from runs/results. A scorer without a result on the same test lists is timed but not drawn.
"""

import argparse
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Any

import numpy as np
import record
from numpy.typing import NDArray
from report.figures import read
from report.ranking import points

Floats = NDArray[np.float32]
Run = Callable[[int], Floats]  # the scores of one context's candidates, by its number

PICTURE = Path(__file__).parents[1] / "docs/picture.svg"
COLOURS = {"polyrank": "#0b5cad", "others": "#666666"}
OTHERS = ("BM25", "MiniLM, untuned", "sentence-transformers")
# offset of each label from its scorer's point, in points to the right and up; a label on the left ends there
LABELS = {
    "BM25": (9, 5),
    "MiniLM, untuned": (34, -4),
    "sentence-transformers": (34, -15),
    "Bi-encoder": (34, -10),
    "Poly-encoder, 64 codes": (34, 4),
    "ConveRT, shipped": (9, 5),
    "Bi-encoder + ConveRT": (34, 2),
    "Cross-encoder, 64 + 32 tokens": (-10, -4),
}


def measure(data: Path, n: int, n_cross: int) -> dict[str, Any]:
    """Time every kind of scorer, context by context, in alternation.

    ``ms`` is processor time of one thread, which other work on the machine hardly changes.
    """
    import torch
    from papers.combining import by_z_score
    from sentence_transformers import SentenceTransformer

    from polyrank.bench.machine import describe_machine
    from polyrank.config.models import BiConfig, CrossConfig, ModelConfig, PolyConfig, TextPolicy
    from polyrank.data import read_examples
    from polyrank.loading.backbones import resolve_backbone
    from polyrank.models import new_model
    from polyrank.ranking.top import top_rows
    from polyrank.scorers.encoded import score_row
    from polyrank.scorers.lexical import BM25
    from polyrank.scorers.load import make_scorer, untuned_scorer
    from polyrank.scorers.open import load as open_model
    from polyrank.scorers.protocols import Encoder, Scorer

    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    examples = read_examples(data / "star/test.jsonl.gz").examples[:n]
    n, n_cross = len(examples), min(n_cross, len(examples))
    contexts, lists = [example.query for example in examples], [list(example.candidates) for example in examples]
    texts = list(dict.fromkeys(text for candidates in lists for text in candidates))
    rows = {text: row for row, text in enumerate(texts)}
    positions = [[rows[text] for text in candidates] for candidates in lists]
    policy = TextPolicy(max_context_tokens=128, max_candidate_tokens=48)
    short = TextPolicy(max_context_tokens=64, max_candidate_tokens=32)

    def network(config: ModelConfig, texts_as: TextPolicy = policy) -> Any:
        model, tokens, _ = new_model(config, texts_as, seed=0, sample=texts[:256])
        return make_scorer(model, tokens, device="cpu", precision="fp32", frozen=True)

    def whole(scorer: Scorer) -> Run:
        return lambda i: scorer.score([contexts[i]], [lists[i]])[0]

    def encoder(scorer: Encoder, encoded: Floats) -> Run:
        def run(i: int) -> Floats:
            vectors, mask = scorer.encode_contexts([contexts[i]])
            return score_row(vectors[0], mask[0], encoded[positions[i]])

        return run

    def library() -> Run:
        model = SentenceTransformer(str(resolve_backbone("embedded").folder), device="cpu")
        model.max_seq_length = 128
        options = {"normalize_embeddings": True, "show_progress_bar": False}
        joined = [" ".join(context.turns) for context in contexts]
        return lambda i: vectors[positions[i]] @ model.encode([joined[i]], **options)[0]

    untuned = untuned_scorer("embedded", policy, device="cpu", precision="fp32")
    vectors = untuned.encode_candidates(texts)  # for all scorers, since the time does not depend on their values
    bi, cross = encoder(network(BiConfig()), vectors), network(CrossConfig())
    shipped = open_model("shipped:convert", device="cpu", precision="fp32")
    assert isinstance(shipped, Encoder), "shipped:convert is an encoder"
    convert = encoder(shipped, shipped.encode_candidates(texts))

    def two_stages(i: int) -> Floats:
        first = bi(i)
        best = top_rows(first, 10)
        second = cross.score([contexts[i]], [[lists[i][row] for row in best]])[0]
        return by_z_score(first[best], second)

    runs: dict[str, tuple[Run, int]] = {
        "BM25": (whole(BM25().fit(texts)), n),
        "ConveRT, shipped": (convert, n),
        "MiniLM, untuned": (encoder(untuned, vectors), n),
        "sentence-transformers": (library(), n),
        "Bi-encoder": (bi, n),
        "Poly-encoder, 64 codes": (encoder(network(PolyConfig(n_codes=64)), vectors), n),
        "Bi-encoder + ConveRT": (lambda i: by_z_score(bi(i), convert(i)), n),
        "two stages, ten best by Cross-encoder": (two_stages, n_cross),
        "Cross-encoder, 64 + 32 tokens": (whole(network(CrossConfig(), short)), n_cross),
        "Cross-encoder": (whole(cross), n_cross),
    }
    for run, _ in runs.values():
        run(0)
    seconds: dict[str, list[tuple[float, float]]] = {form: [] for form in runs}
    for i in range(n):
        for form, (run, limit) in runs.items():
            if i % (n // limit) == 0:  # evenly spaced, since neighbours come from one conversation
                started = process_time(), perf_counter()
                run(i)
                seconds[form].append((process_time() - started[0], perf_counter() - started[1]))
    table = []
    for form, values in seconds.items():
        spent, passed = ([1e3 * value for value in column] for column in zip(*values, strict=True))
        low, middle, high = (round(value, 3) for value in quantiles(spent, n=4, method="inclusive"))
        table.append(
            {
                "form": form,
                "n": len(values),
                "ms": middle,
                "quartiles": [low, high],
                "wall_ms": round(median(passed), 3),
            }
        )
    return {
        "machine": describe_machine(),
        "load": round(load, 2),
        "precision": "fp32",
        "sentence-transformers": version("sentence-transformers"),
        "rows": table,
    }


def plane(highest: int) -> tuple[Any, Any]:
    """A figure and its axes: percent, from 0 to the highest, against milliseconds on a logarithmic scale."""
    import matplotlib as mpl

    from polyrank.evaluation.plots import new_figure

    mpl.rcParams["svg.hashsalt"] = "polyrank"  # otherwise the ids in the file change with each drawing
    figure = new_figure(8.5)
    axes = figure.subplots()
    axes.grid(which="major", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xscale("log")
    axes.set_ylim(0, highest)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw() -> None:
    """Draw points with intervals of R@1 and their labels."""
    figure, axes = plane(75)
    fewer = []
    for timed, quality in points():
        if quality is None:
            continue
        form, x, y = timed["form"], timed["ms"], 100 * quality["metrics"]["R@1"]
        low, high = (100 * end for end in quality["intervals"]["R@1"])
        colour = COLOURS["others" if form in OTHERS else "polyrank"]
        few = quality["n_examples"] < 1000
        axes.errorbar(x, y, [[y - low], [high - y]], fmt="o", markersize=8, capsize=3, color=colour,
                      markerfacecolor="white" if few else colour)  # fmt: skip
        dx, dy = LABELS[form]
        line = {"arrowstyle": "-", "color": colour, "linewidth": 0.8} if dx > 9 else None
        axes.annotate(form, (x, y), (dx, dy), textcoords="offset points", ha="left" if dx > 0 else "right",
                      color=colour, fontsize=11, arrowprops=line)  # fmt: skip
        if few:
            fewer.append(f"hollow: {quality['n_examples']} examples, trained on other lists")
    axes.set_xlim(right=axes.get_xlim()[1] * 1.1)
    axes.set_ylabel("R@1 of 100 on star, %, and 95% interval", fontsize=11)
    caption = "CPU ms to rank 100 candidates for one context, one thread, fp32 (log)"
    axes.set_xlabel(f"{caption}\n1,000 examples; {'; '.join(fewer)}" if fewer else caption, fontsize=11)
    figure.savefig(PICTURE, metadata={"Date": None}, facecolor="white")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "draw"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("-n", type=int, default=100)
    parser.add_argument("--cross", type=int, default=20, help="contexts to time a Cross-encoder on")
    options = parser.parse_args()
    if options.what == "measure":
        record.write("picture", measure(options.data, options.n, options.cross))
    else:
        read("picture")  # fails unless "measure" has run
        draw()


if __name__ == "__main__":
    main()
