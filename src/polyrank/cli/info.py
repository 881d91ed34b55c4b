"""``polyrank info``."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

from typer import Argument

from polyrank.cli.console import print_table
from polyrank.cli.options import Json
from polyrank.errors import UsageError


def info(
    model: Annotated[str, Argument(help="A model or ranker folder, or shipped:convert.")],
    json_: Json = False,
) -> None:
    """Show a model's kind, fingerprint, and parameters and bytes of each part; for a ranker, its terms and weights."""
    from polyrank.loading.folders import folder_kind
    from polyrank.loading.models import model_folder
    from polyrank.models.artifacts import TensorGroup, read_config, read_sizes

    folder = model_folder(model)
    if not folder.is_dir():
        raise UsageError(f"{model} is not a model folder; give one, or shipped:convert")
    if (kind := folder_kind(folder)) in ("index", "remote"):
        raise UsageError(f"{model} is not a model; show it with: polyrank index info {model}")
    if kind == "intents":
        raise UsageError(f"{model} predicts intents and does not rank; use it with polyrank intents predict")
    if kind == "ranker":
        _show_ranker(folder, model, json_=json_)
        return
    document, parts = read_config(folder), read_sizes(folder)
    n_parameters, n_bytes = sum(part.n_parameters for part in parts), sum(part.n_bytes for part in parts)
    if json_:
        totals = {"n_parameters": n_parameters, "n_bytes": n_bytes, "n_bytes_fp32": 4 * n_parameters}
        named = {"kind": document["model"]["kind"], "fingerprint": document["fingerprint"]}
        print(json.dumps({**named, **totals, "parts": [dataclasses.asdict(part) for part in parts]}))
        return
    rows = []
    for part in [*parts, TensorGroup("all", n_parameters, n_bytes, ())]:
        fp32 = 4 * part.n_parameters
        numbers = (f"{part.n_bytes / 1e6:.2f}", f"{fp32 / 1e6:.2f}", f"{fp32 / max(part.n_bytes, 1):.1f}")
        rows.append((part.name, ", ".join(part.dtypes), f"{part.n_parameters:,}", *numbers))
    print(f"{model}: {document['model']['kind']}, fingerprint {document['fingerprint']}")
    print_table(("part", "stored as", "parameters", "MB", "MB in fp32", "times smaller"), rows, n_left=2)


def _show_ranker(folder: Path, name: str, *, json_: bool) -> None:
    """Print the terms, their weights, and the figures of the fit."""
    from polyrank.loading.folders import read_model

    _, document = read_model(folder)
    if json_:
        terms = [{key: term[key] for key in ("kind", "name", "fingerprint", "weights")} for term in document["terms"]]
        shown = {key: document[key] for key in ("fingerprint", "n_retrieved", "scale", "threshold", "figures")}
        print(json.dumps({"kind": "ranker", "terms": terms, **shown}))
        return
    print(f"{name}: ranker, fingerprint {document['fingerprint']}")
    rows = [
        (term["kind"], term["name"], ", ".join(f"{feature} {w:.4g}" for feature, w in term["weights"].items()))
        for term in document["terms"]
    ]
    print_table(("term", "name", "weights"), rows, n_left=3)
