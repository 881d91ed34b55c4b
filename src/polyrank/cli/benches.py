"""``polyrank bench``: measures speed on this machine."""

import json
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from polyrank.cli.console import console, notify, print_table
from polyrank.cli.help import add_command, command_group
from polyrank.cli.options import AllThreads, Device, Json
from polyrank.config.checked import read_choice
from polyrank.config.names import Backend

bench_app = command_group("bench", "Measure speed on this machine.")


@add_command(bench_app, "respond", "shipped:minilm run/model -n 100000", "run/model --backend torch --backend onnx")
def bench_respond(
    models: Annotated[list[str], Argument(metavar="MODEL", help="Models, as for polyrank rank.")],
    texts: Annotated[Path | None, Option(help="A file of replies. Default: the shipped sample.")] = None,
    n: Annotated[list[int] | None, Option("-n", min=1, help="Replies in the index. Repeatable.")] = None,
    backend: Annotated[
        list[str] | None, Option(help="torch, or an export: onnx, onnx-int8, openvino. Repeatable.")
    ] = None,
    device: Device = "auto",
    threads: AllThreads = None,
    json_: Json = False,
) -> None:
    """Time models on this machine: encoding replies and a context, and answering from an index of N replies."""
    from polyrank import bench
    from polyrank.config.names import SAMPLE
    from polyrank.data import read_pool
    from polyrank.loading.models import resolve_model

    for model in models:
        resolve_model(model)
    backends = [read_choice(name, Backend, "backend") for name in backend or ("torch",)]
    _set_threads(threads)
    replies = [candidate.text for candidate in read_pool(texts or SAMPLE / "replies.jsonl")]
    with console().status("measuring") as status:
        result = bench.bench_responding(
            models, replies, sizes=n or (1_000, 100_000), backends=backends, device=device, progress=status.update
        )
    _show(result, json_)


@add_command(bench_app, "profile")
def bench_profile(threads: AllThreads = None, json_: Json = False) -> None:
    """Measure the cost of searches and store it, for searches to choose the fastest method. Answers stay the same."""
    from polyrank import bench

    _set_threads(threads)
    with console().status("measuring") as status:
        result = bench.bench_profile(progress=status.update)
    notify(f"wrote {result['path']}")
    _show(result, json_)


def _set_threads(threads: int | None) -> None:
    """All by default, even if some cores are busy: the figures state the number."""
    import torch

    from polyrank.devices.choice import set_threads

    set_threads(threads or torch.get_num_threads())


def _show(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    machine = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    notify(f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, {versions}")
    columns = list(result["rows"][0])
    rows = [
        [f"{value:,}" if isinstance(value, int | float) else str(value) for value in row.values()]
        for row in result["rows"]
    ]
    print_table(columns, rows, n_left=len(columns))
