"""Model cards: README.md in a trained model's folder, for its readers, without paths of this machine."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyrank._version import __version__
from polyrank.config.models import CARD
from polyrank.config.names import SHIPPED
from polyrank.config.recipe import Recipe
from polyrank.data.values import items_of
from polyrank.errors import PolyrankError
from polyrank.loading.backbones import resolve_backbone
from polyrank.loading.data import resolve_data
from polyrank.loading.folders import read_model
from polyrank.loading.hub import HUB
from polyrank.loading.recipes import NetworkPlan
from polyrank.loading.sharing import without_paths
from polyrank.models.artifacts import sign_card, signed
from polyrank.scorers.in_int8 import read_record
from polyrank.storage.durable import sha256_file, write_file
from polyrank.training.loop import FitResult

KINDS = {
    "bi": "Bi-encoder",
    "poly": "Poly-encoder",
    "cross": "Cross-encoder",
    "late": "late Cross-encoder",
    "convert": "ConveRT",
}
ALWAYS_SHOWN = ("lr", "batch_size", "epochs")
SHOWN_ELSEWHERE = ("output", "data", "seeds")
LICENCE = re.compile(r"\A---\n(?:(?!---\n).*\n)*?license: *(\S+)")  # in the header of a Hugging Face card
UNKNOWN = "not stated"


@dataclass(frozen=True, slots=True)
class DataPart:
    """A part of the data that a model was trained or tested on.

    Args:
        name: "train", "valid" or "test".
        files: their names without folders; "in memory" for examples from memory.
        n_examples: used, after bad rows and examples without a right answer are left out.
        sha256: of the file; of several files, of their digests in order; empty for examples from memory.
    """

    name: str
    files: str
    n_examples: int
    sha256: str = ""


def describe_part(name: str, source: str | None, n_examples: int) -> DataPart:
    """A part of the data with the fingerprint of its files; ``source`` is a path, or None for examples from memory."""
    if source is None:
        return DataPart(name, "in memory", n_examples)
    paths = [ref.path for ref in resolve_data(source)]
    digests = [sha256_file(path) for path in paths]
    whole = digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    files = paths[0].name if len(paths) == 1 else f"{len(paths)} files, {paths[0].name} to {paths[-1].name}"
    return DataPart(name, files, n_examples, whole)


def write_card(
    folder: Path,
    recipe: Recipe,
    network: NetworkPlan,
    parts: list[DataPart],
    *,
    seed: int,
    fit: FitResult,
    n_steps: int,
    test: Mapping[str, Any],
) -> None:
    """Write the card of a trained model, unless its folder has a card that somebody wrote or edited.

    Args:
        folder: of the model.
        recipe: of the training.
        network: the model's part of the plan.
        parts: of the data.
        seed: of the run.
        fit: how the training went.
        n_steps: planned updates.
        test: figures on the test part, see ``summarise``; empty without one.
    """
    path = folder / CARD
    if path.exists() and not signed(folder):
        return
    starts = _starts(network)
    licences = {licence for _, licence in starts}
    header = ["---", "library_name: polyrank"]
    header += [f"license: {licence}" for licence in licences if len(licences) == 1 and licence != UNKNOWN]
    header += [f"base_model: {name.removeprefix(HUB)}" for name, _ in starts if name.startswith(HUB)]
    stopped = "" if fit.finished else f", stopped by train.minutes before {n_steps:,}"
    facts = {
        "Started from": ", ".join(f"`{without_paths(name)}` (licence: {licence})" for name, licence in starts)
        or "random weights",
        "Training": f"{fit.n_steps:,} steps, {fit.n_examples:,} examples{stopped}; seed {seed}",
        "Saved after": f"step {fit.best_step:,}" + (", the best on the validation part" if fit.best else ""),
        "Fingerprint": f"`{read_model(folder)[1].get('fingerprint', '')}`",
    }
    if network.model.kind in ("bi", "poly") and (alike := read_record(folder)) is not None:
        facts["In 8 bits"] = f"{alike}; " + ("used on" if alike.kept else "not used on") + " CPUs without bf16"
    if (first_stage := recipe.train.method.corrects) is not None:
        facts["First stage"] = f"`{without_paths(first_stage)}`, whose scores it corrects; all figures are of both"
    sections = [
        "\n".join([*header, "---"]),
        f"# {KINDS[network.model.kind]} for ranking replies",
        f"Trained with polyrank {__version__}.",
        _table(("", ""), [(f"**{name}**", value) for name, value in facts.items()]),
        "## How to load it",
        '```python\nimport polyrank\n\nmodel = polyrank.load("path/to/this/folder")\n'
        'model.rank("Where is my parcel?", ["It arrives today.", "You are welcome."])\n```',
        "## Data",
        _table(
            ("part", "files", "examples", "SHA-256"),
            [(part.name, part.files, f"{part.n_examples:,}", part.sha256 and f"`{part.sha256}`") for part in parts],
        ),
        "## Recipe",
        "Settings that differ from polyrank's defaults, and the main ones; config.json holds the whole recipe.",
        _table(("key", "value"), [(f"`{key}`", f"`{_shown(value)}`") for key, value in _settings(recipe)]),
    ]
    if fit.best or test:
        sections += ["## Figures", *_figures(fit.best, test)]
    write_file(path, sign_card("\n\n".join(sections) + "\n").encode())


def _starts(network: NetworkPlan) -> list[tuple[str, str]]:
    """Each model or backbone that the training started from, with its licence."""
    if network.start is not None and network.train.init_from is not None:
        return [(network.train.init_from, licence(network.train.init_from, network.start))]
    if (name := getattr(network.model, "backbone", None)) is None:  # a ConveRT
        return []
    with suppress(PolyrankError):  # the backbone of a finished run may be gone
        return [(name, licence(name, resolve_backbone(name, bare_hub_names=False).folder))]
    return [(name, UNKNOWN)]


def licence(name: str, folder: Path) -> str:
    """The licence in the header of a model's card; shipped models have polyrank's.

    >>> licence("shipped:convert", Path("anywhere"))
    'apache-2.0'
    """
    if name.startswith(SHIPPED):
        return "apache-2.0"
    try:
        header = LICENCE.match((folder / CARD).read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        return UNKNOWN
    return header[1] if header else UNKNOWN


def _settings(settings: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings that differ from the defaults of their class, and the main ones, by dotted key."""
    if hasattr(settings, "kind"):
        yield f"{prefix}kind", settings.kind
    for entry in dataclasses.fields(settings):
        value = getattr(settings, entry.name)
        if entry.name in SHOWN_ELSEWHERE:
            continue
        if dataclasses.is_dataclass(value):
            yield from _settings(value, f"{prefix}{entry.name}.")
        elif value != entry.default or entry.name in ALWAYS_SHOWN:
            yield f"{prefix}{entry.name}", value


def _shown(value: Any) -> str:
    return json.dumps(without_paths(json.loads(json.dumps(value))))  # tuples become lists


def _figures(best: Mapping[str, float], test: Mapping[str, Any]) -> Iterator[str]:
    if best:
        yield "Validation: " + ", ".join(f"{name} {value:.4f}" for name, value in sorted(best.items())) + "."
    if test:
        precision = f", in {test['precision']}" if test.get("precision") else ""
        size = " to ".join(f"{size:,}" for size in items_of(test["n_candidates"]))
        yield f"Test: {test['n_examples']:,} examples with {size} candidates each{precision}, in percent."
        percent = {
            name: (f"{100 * value:.1f}", "{:.1f} to {:.1f}".format(*(100 * end for end in test["intervals"][name])))
            for name, value in test["metrics"].items()
        }
        yield _table(("figure", "test", "95% interval"), [(name, *texts) for name, texts in percent.items()])


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
