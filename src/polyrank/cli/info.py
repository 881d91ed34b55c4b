"""``polyrank info``."""

import dataclasses
import json
from collections.abc import Callable
from typing import Annotated

from typer import Argument

from polyrank.cli.console import print_table
from polyrank.cli.options import Json
from polyrank.errors import UsageError


def info(
    model: Annotated[str, Argument(help="A model folder, a sum, counts of replies, or shipped:convert.")],
    json_: Json = False,
) -> None:
    """Show a model's kind, fingerprint, and parameters and bytes of each part; for a sum, its encoders."""
    from polyrank.cli.hubs import show_hubs
    from polyrank.cli.maps import show_map
    from polyrank.cli.popularity import show_popularity
    from polyrank.cli.repetitions import show_repetition
    from polyrank.cli.sums import show_sum
    from polyrank.loading.folders import FolderKind, folder_kind
    from polyrank.loading.models import model_folder
    from polyrank.models.artifacts import read_config, read_sizes

    folder = model_folder(model)
    if not folder.is_dir():
        raise UsageError(f"{model} is not a model folder; give one, or shipped:convert")
    if (kind := folder_kind(folder)) in ("pipeline", "index", "remote"):
        command = "pipeline" if kind == "pipeline" else "index"
        raise UsageError(f"{model} is not a model; show it with: polyrank {command} info {model}")
    if kind == "intents":
        raise UsageError(f"{model} predicts intents and does not rank; use it with polyrank intents predict")
    shows: dict[FolderKind, Callable[..., None]] = {
        "sum": show_sum,
        "hubs": show_hubs,
        "repetition": show_repetition,
        "popularity": show_popularity,
        "map": show_map,
    }
    if show := shows.get(kind):
        show(folder, json_=json_)
        return
    document, sizes = read_config(folder), read_sizes(folder)
    if json_:
        totals = {name: getattr(sizes, name) for name in ("n_parameters", "n_bytes", "n_bytes_fp32")}
        named = {"kind": document["model"]["kind"], "fingerprint": document["fingerprint"]}
        print(json.dumps({**named, **totals, "parts": [dataclasses.asdict(part) for part in sizes.parts]}))
        return
    parts = [(part.name, ", ".join(part.dtypes), part.n_parameters, part.n_bytes) for part in sizes.parts]
    rows = []
    for name, dtypes, n_parameters, n_bytes in [*parts, ("all", "", sizes.n_parameters, sizes.n_bytes)]:
        fp32 = 4 * n_parameters
        numbers = (f"{n_bytes / 1e6:.2f}", f"{fp32 / 1e6:.2f}", f"{fp32 / max(n_bytes, 1):.1f}")
        rows.append((name, dtypes, f"{n_parameters:,}", *numbers))
    print(f"{model}: {document['model']['kind']}, fingerprint {document['fingerprint']}")
    print_table(("part", "stored as", "parameters", "MB", "MB in fp32", "times smaller"), rows, n_left=2)
