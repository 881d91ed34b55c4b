"""``polyrank info``."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

from typer import Argument

from polyrank.cli.console import print_table
from polyrank.cli.options import Json


def info(
    model: Annotated[str, Argument(help="A model, by any of its names, or a ranker.")], json_: Json = False
) -> None:
    """Show a model's kind, fingerprint, and parameters and bytes of each part; for a ranker, its terms and weights."""
    from polyrank.loading.models import resolve_model
    from polyrank.models.artifacts import TensorGroup, read_config, read_sizes, sizes_of

    reference = resolve_model(model)
    if reference.kind == "ranker":
        assert reference.folder is not None, "of a ranker"
        _show_ranker(reference.folder, model, json_=json_)
        return
    if reference.kind == "trained":
        assert reference.folder is not None, "of a trained model"
        kind, parts = read_config(reference.folder)["model"]["kind"], read_sizes(reference.folder)
        fingerprint = reference.fingerprint
    if reference.kind != "trained" or reference.truncate_dim is not None:
        from polyrank.scorers.open import open_model
        from polyrank.scorers.protocols import Encoder

        scorer: Any = open_model(reference, device="cpu", precision="fp32")
        fingerprint = scorer.fingerprint
        if reference.kind != "trained":
            parts = [part for network in scorer.networks for part in sizes_of(network.model.state_dict())]
            kind = "bi" if isinstance(scorer, Encoder) else "cross" if parts else reference.name
    n_parameters, n_bytes = sum(part.n_parameters for part in parts), sum(part.n_bytes for part in parts)
    if json_:
        totals = {"n_parameters": n_parameters, "n_bytes": n_bytes, "n_bytes_fp32": 4 * n_parameters}
        print(
            json.dumps(
                {
                    "kind": kind,
                    "fingerprint": fingerprint,
                    **totals,
                    "parts": [dataclasses.asdict(part) for part in parts],
                }
            )
        )
        return
    rows = []
    for part in [*parts, TensorGroup("all", n_parameters, n_bytes, ())]:
        fp32 = 4 * part.n_parameters
        numbers = (f"{part.n_bytes / 1e6:.2f}", f"{fp32 / 1e6:.2f}", f"{fp32 / max(part.n_bytes, 1):.1f}")
        rows.append((part.name, ", ".join(part.dtypes), f"{part.n_parameters:,}", *numbers))
    print(f"{model}: {kind}, fingerprint {fingerprint}")
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
