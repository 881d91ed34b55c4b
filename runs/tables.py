"""The README's tables of quality, from what the runs printed: python runs/tables.py"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

SETS = {"star": 100, "ubuntu-irc": 100, "sgd": 100, "convai2-valid": 20}
ROWS = {
    "bm25": "BM25",
    "untuned": "MiniLM, untuned",
    "sentence-transformers-default": "sentence-transformers, its defaults",
    "sentence-transformers-matched": "sentence-transformers, left truncation, our learning rate",
    "map-untuned": "MiniLM, frozen, with a learnt map (MAP)",
    "bi": "**Bi-encoder**",
    "poly-16": "**Poly-encoder**, 16 learnt codes",
    "poly-64": "**Poly-encoder**, 64 learnt codes",
    "poly-360": "**Poly-encoder**, 360 learnt codes",
    "poly-64-first": "**Poly-encoder**, first 64 tokens",
    "cross": "**Cross-encoder**",
    "sentence-transformers-cross-default": "sentence-transformers' CrossEncoder, its defaults",
    "sentence-transformers-cross-matched": "sentence-transformers' CrossEncoder, left truncation, our learning rate",
}
RESULTS = Path(__file__).parent / "results"


def cell(found: dict[str, dict[str, object]], name: str) -> str:
    """R@1 with its interval in percent, and the paired difference from the Bi-encoder with its p value."""
    if name not in found:
        return ""
    result = found[name]
    low, high = result["intervals"]["R@1"]
    text = f"{100 * result['metrics']['R@1']:.1f} ({100 * low:.1f}-{100 * high:.1f})"
    if result["n_examples"] < max(one["n_examples"] for one in found.values()):
        text += f" of {result['n_examples']}"
    if result.get("against", {}).get("scores", "").endswith("/bi.scores.jsonl") and name not in ("bm25", "untuned"):
        against = result["against"]
        text += f"; {100 * against['difference']:+.1f}, p = {against['p']:.3g}"
    return text


def responses(results: Path) -> None:
    """Response selection on the same budget."""
    files = {name: (results / name).glob("*.json") for name in SETS}
    found = {name: {path.stem: json.loads(path.read_text()) for path in paths} for name, paths in files.items()}
    found = {name: {row: one for row, one in rows.items() if row in ROWS} for name, rows in found.items()}
    print("| scorer | " + " | ".join(f"{name} (1 of {size})" for name, size in SETS.items()) + " |")
    print("|---|" + "---|" * len(SETS))
    for name, title in ROWS.items():
        cells = [cell(rows, name) for rows in found.values()]
        if any(cells):
            print(f"| {title} | " + " | ".join(cells) + " |")


def intents() -> None:
    """Accuracy of intents by encoder and number of training utterances."""
    names, shots = ("banking77", "clinc150", "hwu64"), {"full": "all", "10": "10 per intent", "5": "5 per intent"}
    print("\n| encoder | training | " + " | ".join(names) + " |\n|---|---|" + "---:|" * len(names))
    for folder in sorted((RESULTS / "intents").iterdir()):
        for shot, said in shots.items():
            files = [folder / f"{name}-{shot}.json" for name in names]
            found = [json.loads(file.read_text()) if file.exists() else None for file in files]
            cells = [f"{100 * r['accuracy']:.1f} ± {100 * r['accuracy_std']:.1f}" if r else "" for r in found]
            if any(cells):
                print(f"| {folder.name} | {said} | " + " | ".join(cells) + " |")


def read(path: Path) -> dict[str, Any] | None:
    """A result, if there is one."""
    return json.loads(path.read_text()) if path.exists() else None


def percent(result: dict[str, Any] | None, figure: str = "R@1") -> str:
    """With its interval, where it has one."""
    if result is None:
        return ""
    low, high = (100 * end for end in result["intervals"][figure])
    return f"{100 * result['metrics'][figure]:.1f} ({low:.1f}-{high:.1f})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Rows that hold something besides their name."""
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        if any(row[1:]):
            print("| " + " | ".join(row) + " |")


def converts() -> None:
    """ConveRT from scratch, and what each of its parts is worth in a short training."""
    sets = ("self-dialogue", "sgd", "star", "ubuntu-irc")
    rows = {"bm25": "BM25", "untuned": "MiniLM, untuned"}
    known = [[title, *(percent(read(RESULTS / name / f"{row}.json")) for name in sets)] for row, title in rows.items()]
    names = {
        "single": "ConveRT, single-context",
        "multi": "ConveRT, multi-context",
        "permissive": "**ConveRT**, shipped; never saw sgd",
        "single-tuned": "single-context, fine-tuned on the set",
        "multi-tuned": "multi-context, fine-tuned on the set",
        "shipped-tuned": "shipped, fine-tuned on the set",
    }
    own = [
        [title, *(percent(read(RESULTS / "convert" / f"{row}-{name}.json")) for name in sets)]
        for row, title in names.items()
    ]
    table(["scorer", *sets], known + own)
    ablations = {
        "none": "all of it",
        "b": "B: no relative bias",
        "d": "D: one bucket for unknown characters",
        "e": "E: one reduction head",
        "f": "F: no skips in the side networks",
        "sides": "sides start apart",
        "fp32": "no rounding in training",
    }
    files = [
        [title, *(read(RESULTS / "convert" / f"ablation-{row}-{name}.json") for name in sets[:3])]
        for row, title in ablations.items()
    ]
    table(["variant", *sets[:3]], [[title, *map(percent, found)] for title, *found in files])


def mutual() -> None:
    """Two networks trained apart and together."""
    names = {
        "bi": "Bi-encoder",
        "cross": "Cross-encoder",
        "ensemble": "both, summed",
        "bi-mutual": "Bi-encoder, mutual",
        "cross-mutual": "Cross-encoder, mutual",
        "ensemble-mutual": "both, mutual, summed",
        "bi-heavy": "Bi-encoder, mutual, alpha = 9",
        "cross-heavy": "Cross-encoder, mutual, alpha = 9",
        "ensemble-heavy": "both, mutual, alpha = 9, summed",
        "bi-distilled": "Bi-encoder, distilled from ConveRT",
        "bi-many": "Bi-encoder, more examples",
        "bi-mutual-many": "Bi-encoder, mutual, more examples",
    }
    sets = sorted(path.name for path in (RESULTS / "mutual").iterdir())

    def shown(name: str, row: str) -> str:
        found = read(RESULTS / "mutual" / name / f"{row}.json")
        against = (found or {}).get("against")
        return percent(found) + (f"; {100 * against['difference']:+.1f}, p = {against['p']:.2g}" if against else "")

    table(["trained", *sets], [[title, *(shown(name, row) for name in sets)] for row, title in names.items()])


def stages() -> None:
    """One stage and two, in a pool."""
    for path in sorted(RESULTS.glob("*/stages.json")):
        rows = json.loads(path.read_text())["rows"]
        figures = ("hits@1", "hits@2", "hits@5", "hits@10", "hits@50", "MRR")
        print(f"\n{path.parent.name}, {rows[0]['n_examples']} cases")
        table(
            ["retriever", "then", "of", *figures, "ms"],
            [
                [r["what"], r["form"], str(r["n"] or ""), *(f"{100 * r[f]:.1f}" for f in figures), f"{r['ms']:.0f}"]
                for r in rows
            ],
        )


if __name__ == "__main__":
    responses(RESULTS)
    print()
    responses(RESULTS / "short")
    intents()
    converts()
    mutual()
    stages()
