"""``polyrank info``."""

import dataclasses
import json
from typing import Annotated

import typer

from polyrank.cli.options import Json
from polyrank.errors import UsageError


def info(
    model: Annotated[str, typer.Argument(help="A model folder, a sum, counts of replies, or shipped:convert.")],
    json_: Json = False,
) -> None:
    """Show a model's kind, fingerprint, and parameters and bytes of each part; for a sum, its encoders."""
    from polyrank.cli.popularity import show_popularity
    from polyrank.cli.sums import show_sum
    from polyrank.loading.folders import folder_kind
    from polyrank.loading.models import model_folder
    from polyrank.models.artifacts import read_config, read_sizes

    folder = model_folder(model)
    if not folder.is_dir():
        raise UsageError(f"{model} is not a model folder; give one, or shipped:convert")
    if (kind := folder_kind(folder)) == "sum":
        show_sum(folder, json_=json_)
        return
    if kind == "popularity":
        show_popularity(folder, json_=json_)
        return
    document, sizes = read_config(folder), read_sizes(folder)
    if json_:
        totals = {name: getattr(sizes, name) for name in ("n_parameters", "n_bytes", "n_bytes_fp32")}
        named = {"kind": document["model"]["kind"], "fingerprint": document["fingerprint"]}
        print(json.dumps({**named, **totals, "parts": [dataclasses.asdict(part) for part in sizes.parts]}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("part", "stored as")
    for column in ("parameters", "MB", "MB in fp32", "times smaller"):
        table.add_column(column, justify="right")
    rows = [(part.name, ", ".join(part.dtypes), part.n_parameters, part.n_bytes) for part in sizes.parts]
    for name, dtypes, n_parameters, n_bytes in [*rows, ("all", "", sizes.n_parameters, sizes.n_bytes)]:
        fp32 = 4 * n_parameters
        numbers = (f"{n_bytes / 1e6:.2f}", f"{fp32 / 1e6:.2f}", f"{fp32 / max(n_bytes, 1):.1f}")
        table.add_row(name, dtypes, f"{n_parameters:,}", *numbers)
    out = Console()
    out.print(
        f"{model}: {document['model']['kind']}, fingerprint {document['fingerprint']}", markup=False, soft_wrap=True
    )
    out.print(table)
