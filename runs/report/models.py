"""Which stored rows are of which models: none of a shipped model that has changed since, and no name for two models."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import record

ROOT = Path(__file__).parents[2]
SHIPPED = {
    "shipped:convert": ROOT / "src/polyrank/shipped/convert",
    "shipped:minilm": ROOT / "models/polyrank_models/minilm",
    "shipped:late": ROOT / "models/polyrank_models/late",
}


def mixed(results: Path = record.RESULTS, shipped: Mapping[str, Path] = SHIPPED) -> list[str]:
    """Faults of the stored rows, a line each.

    A shipped model of an earlier version is called "shipped:NAME@FINGERPRINT", and its tables name the version.

    Args:
        results: a folder of files of ``record.py``; all rows of one file are of one experiment.
        shipped: the folder of each shipped model.
    """
    today = {name: json.loads((at / "config.json").read_text("utf-8"))["fingerprint"] for name, at in shipped.items()}
    faults = []
    for path in sorted(results.glob("*.jsonl")):
        seen: dict[str, tuple[str, str]] = {}  # by model: its fingerprint, and the first row
        for line in map(json.loads, path.read_text("utf-8").splitlines()):
            for model, fingerprint in _models(line.get("result")):
                now = today.get(model, fingerprint)
                if fingerprint != now:
                    faults.append(
                        f"{line['name']} is of {model} {fingerprint[:8] or 'without a fingerprint'}, which is now"
                        f" {now[:8]}; run it again, or call it {model}@{fingerprint[:8]}"
                    )
                if "/" not in model or not fingerprint:
                    continue  # terms such as "counts" are others on each set, and early rows state no fingerprint
                first, row = seen.setdefault(model, (fingerprint, line["name"]))
                if fingerprint != first:
                    faults.append(
                        f"{line['name']} and {row} name two models {model}: {fingerprint[:8]} and {first[:8]}"
                    )
    return faults


def _models(result: Any) -> Iterator[tuple[str, str]]:
    """The models of a result's rows, each with its fingerprint; empty if the row states none."""
    match result:
        case {"metrics": _, "name": str(name)}:
            yield from ({name: ""} | result.get("fingerprints", {})).items()
        case dict():
            for value in result.values():
                yield from _models(value)
        case list():
            for value in result:
                yield from _models(value)
