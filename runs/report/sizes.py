"""Encoders of several sizes: what an answer costs, and R@1 on convai2-valid."""

from dataclasses import dataclass

from report.figures import Result, machine, ms, read, read_if_there, share, table

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
    where = (
        f"Times: processor time, one thread, fp32, {machine('sizes/base')} on the machine; contexts of convai2-valid"
    )
    return f"{table(head, rows, range(1, 5))}\n\n{where}."
