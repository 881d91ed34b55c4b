"""Encoders of several sizes: what an answer costs, and R@1 on convai2-valid."""

from dataclasses import dataclass

from report.figures import Result, change, machine, ms, prose, read, read_if_there, share, table, times

# a model that runs/sizes.py times, and the name of its figures
TIMED = {
    "shipped:convert": "convert",
    "shipped:minilm": "minilm",
    "shipped:rerank": "rerank",
    "untuned:runs/work/base/all-mpnet-base-v2": "base",
}
COLOURS = {"convert": "#1b7837", "minilm": "#0b5cad", "rerank": "#0b5cad", "base": "#b2182b"}
# encoder, title, result, and how far above its point the plot writes the title
MODELS = (
    ("convert", "ConveRT, shipped", "general/convai2-valid/convert", 4),
    ("minilm", "MiniLM, untuned", "convai2-valid/untuned", -6),
    ("minilm", "MiniLM, shipped", "general/convai2-valid/encoder", -4),
    ("minilm", "MiniLM, 1,920 pairs", "short/convai2-valid/bi", 4),
    ("rerank", "MiniLM, shipped, and second stage", "second/convai2-valid/two", -4),
    ("base", "base, untuned", "base/convai2-valid/untuned", -4),
    ("base", "base, 1,920 pairs", "base-short/convai2-valid/bi", 4),
)
NAMES = {
    "convert": "ConveRT, `shipped:convert`",
    "minilm": "MiniLM, `shipped:minilm`",
    "rerank": "the same and a second stage, `shipped:rerank`",
    "base": "BERT-base's size, all-mpnet-base-v2",
}


@dataclass(frozen=True)
class Point:
    """A model of the plot."""

    encoder: str
    title: str
    timed: Result
    quality: Result
    up: int


def points() -> list[Point]:
    """The models that were timed and evaluated."""
    found = (
        (name, title, read_if_there(f"sizes/{name}"), read_if_there(result), up) for name, title, result, up in MODELS
    )
    return [Point(name, title, timed, quality, up) for name, title, timed, quality, up in found if timed and quality]


def sizes() -> str:
    """Megabytes, milliseconds, and R@1 untuned, shipped and trained."""
    best = {(name, title.partition(", ")[2]): share(read(result)) for name, title, result, _ in MODELS}
    rows = [
        [
            NAMES[name],
            f"{figures['file_mb']:,.0f}",
            f"{figures['peak_mb']:,.0f}",
            ms(figures["ms"]),
            f"{figures['replies_per_second']:,.0f}",
            best.get((name, "untuned"), ""),
            best.get((name, "shipped"), "") or best.get((name, "shipped, and second stage"), ""),
            best.get((name, "1,920 pairs"), ""),
        ]
        for name in NAMES
        if (figures := read_if_there(f"sizes/{name}"))
    ]
    head = ["encoder", "MB on disk", "MB in memory", "ms of an answer", "replies encoded per second", "R@1 untuned",
            "shipped", "trained on 1,920 pairs"]  # fmt: skip
    small, large = read("short/convai2-valid/bi"), read("base-short/convai2-valid/bi")
    gained = change(large["metrics"]["R@1"] - small["metrics"]["R@1"])
    slower = times(read("sizes/base")["ms"] / read("sizes/minilm")["ms"])
    notes = (
        f"""After training on the same 1,920 pairs, the largest encoder differs from MiniLM by {gained} points, and its
        answer takes {slower} times as long (one seed). Without training it is below MiniLM.
        So take MiniLM on a CPU, the large one with a GPU or if answers may be slow, and ConveRT where memory and time
        are short and texts are like those of its training. R@1 is of convai2-valid (1 of 20), which no shipped model
        was trained on.""",
        f"""Times: processor time of a whole answer from 2,000 replies, fp32, {machine("sizes/base")}. Memory: the most
        of the process that made the index and answered. Command: `python runs/sizes.py measure`, after `bash
        runs/base.sh`.""",
    )
    return "\n\n".join([table(head, rows, range(1, 5)), *map(prose, notes)])
