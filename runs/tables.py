"""The README's tables of quality, from what the runs printed: python runs/tables.py"""

import json
from pathlib import Path

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
    "sentence-transformers-cross": "sentence-transformers' CrossEncoder",
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


def responses() -> None:
    """Response selection on the same budget."""
    found = {
        name: {path.stem: json.loads(path.read_text()) for path in (RESULTS / name).glob("*.json")} for name in SETS
    }
    for results in found.values():
        for name in [name for name in results if name not in ROWS]:
            del results[name]
    print("| scorer | " + " | ".join(f"{name} (1 of {size})" for name, size in SETS.items()) + " |")
    print("|---|" + "---|" * len(SETS))
    for name, title in ROWS.items():
        cells = [cell(results, name) for results in found.values()]
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


if __name__ == "__main__":
    responses()
    intents()
