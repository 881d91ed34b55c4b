"""``polyrank ray``: the same work on a Ray cluster."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from polyrank.cli import interrupts
from polyrank.cli.console import console, one_speaks, talk
from polyrank.cli.options import Json, Runtime, StartAgain
from polyrank.cli.training import TrainingDisplay, show_results
from polyrank.errors import MissingExtraError, UsageError

ray_app = typer.Typer(no_args_is_help=True, callback=one_speaks, help="Train, encode and serve on a Ray cluster.")
Address = Annotated[
    str, typer.Option(help="auto: the cluster that runs on this machine; HOST:PORT; or local: this machine alone.")
]
Workers = Annotated[int, typer.Option(min=1, help="At most so many; they start as there is room for them.")]
Cpus = Annotated[int, typer.Option(min=1, help="CPUs of each, which computes on as many threads.")]
Device = Annotated[str, typer.Option(help="auto: a GPU for each where the cluster has any; cpu or cuda.")]
MaxFailures = Annotated[int, typer.Option(min=0, help="How often it goes on after workers have died.")]


@contextmanager
def _on_ray() -> Iterator[None]:
    try:
        with redirect_stdout(sys.stderr):  # what Ray has to say of its nodes is talk
            yield
    except ModuleNotFoundError as error:  # a part of Ray that is an extra of its own
        raise MissingExtraError(error.name or "ray", "ray") from error


@ray_app.command("train")
def train(
    recipe: Annotated[Path, typer.Argument(help="As for polyrank train; its files on a disk that all nodes see.")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="Change a key: train.lr=5e-5. Repeatable.")] = None,
    workers: Workers = 1,
    cpus: Cpus = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run, or with a finished one for more epochs.")
    ] = False,
    overwrite: StartAgain = False,
    device: Device = "auto",
    address: Address = "auto",
    max_failures: MaxFailures = 3,
    json_: Json = False,
) -> None:
    """Train by a recipe, as polyrank train does, with workers on the nodes of a Ray cluster.

    Losses are those of one process. When a node dies the run goes on behind its last checkpoint with those that are
    left, and with more as soon as there is room for them.
    """
    from polyrank.loading.recipes import load_recipe

    if resume and overwrite:
        raise UsageError("--resume and --overwrite exclude each other; give one")
    plan = load_recipe(recipe, tuple(set_ or ()))
    if not overwrite:
        interrupts.say_way_on("go on with --resume")
    with _on_ray(), TrainingDisplay() as display:
        from polyrank.integrations.ray import train as run

        results = run(
            plan,
            workers=workers,
            cpus=cpus,
            resume=resume,
            overwrite=overwrite,
            device=device,
            address=address,
            max_failures=max_failures,
            report=display.report,
            notify=talk,
        )
    show_results(plan.data, results, json_)


@ray_app.command("encode")
def encode(
    model: Annotated[str, typer.Argument(help="An encoder, as for polyrank index build, that all nodes see.")],
    candidates: Annotated[Path, typer.Argument(help="Replies: a file, or a folder of .parquet, .jsonl or .csv files.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The folder of Parquet files to make, or to go on with.")
    ],
    index: Annotated[Path | None, typer.Option(help="Make an index of them, too.")] = None,
    ann: Annotated[str, typer.Option(help="With --index: see polyrank index build.")] = "none",
    precision: Annotated[str, typer.Option(help="With --index: see polyrank index build.")] = "fp32",
    workers: Workers = 1,
    cpus: Cpus = 1,
    block_size: Annotated[int, typer.Option(min=1, help="Candidates of a file.")] = 4096,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Delete vectors of other candidates or another model; replace the index."),
    ] = False,
    device: Device = "auto",
    backend: Runtime = "torch",
    address: Address = "auto",
    max_failures: MaxFailures = 3,
) -> None:
    """Encode candidates on a Ray cluster to Parquet files of id, text, metadata and vector, and maybe to an index.

    Run it again after an interruption: blocks that are finished are not encoded again.
    """
    from polyrank.index import check_target
    from polyrank.index.local.ann import read_kind
    from polyrank.integrations.ray.blocks import index_blocks
    from polyrank.loading.models import read_backend
    from polyrank.storage.quantized import read_precision

    kind, stored, runtime = read_kind(ann), read_precision(precision), read_backend(backend)
    if index is not None:
        check_target(index, overwrite=overwrite)
    interrupts.say_way_on("run it again, and it goes on where it stopped")
    with _on_ray(), _progress() as progress:
        from polyrank.integrations.ray import encode as run

        n = run(
            model,
            candidates,
            output,
            workers=workers,
            cpus=cpus,
            block_size=block_size,
            overwrite=overwrite,
            device=device,
            backend=runtime,
            address=address,
            max_failures=max_failures,
            progress=progress,
            notify=talk,
        )
    talk(f"{output}: {n:,} candidates encoded")
    if index is not None:
        n = index_blocks(output, index, ann=kind, precision=stored, overwrite=overwrite)
        talk(f"{index}: {n:,} candidates")


@ray_app.command("serve")
def serve(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH...", help="Indexes, pipelines and models; several by name, as NAME=PATH."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file, as for polyrank serve.")] = None,
    replicas: Annotated[int, typer.Option(min=1, help="How many.")] = 2,
    cpus: Cpus = 1,
    host: Annotated[str | None, typer.Option(help="Where Ray's proxy listens.  [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="[default: 8600]")] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="Keys, one in each line; who has none is refused.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.  [default: auto]")] = None,
    backend: Annotated[
        str | None, typer.Option(help="torch, onnx, onnx-int8, openvino or auto.  [default: torch]")
    ] = None,
    address: Address = "auto",
) -> None:
    """Serve what polyrank serve does by replicas on the nodes of a Ray cluster; SIGTERM and Ctrl-C stop it."""
    from polyrank.config.serving import read_serving

    given: dict[str, Any] = {
        "host": host,
        "port": port,
        "api_key_file": None if api_key_file is None else str(api_key_file.absolute()),
        "device": device,
        "backend": backend,
        "threads": cpus,
    }
    models, settings = read_serving(config, paths or (), {name: v for name, v in given.items() if v is not None})
    interrupts.forget()  # the server has signals of its own
    with _on_ray():
        from polyrank.integrations.ray import serve as run

        run(
            models,
            settings,
            replicas=replicas,
            cpus=cpus,
            address=address,
            ready=lambda where: talk(f"listening at {where}: {replicas} replicas of {', '.join(models)}"),
        )


@contextmanager
def _progress() -> Iterator[Any]:
    from rich.progress import Progress

    with Progress(console=console(), disable=not console().is_terminal, transient=True) as display:
        task = display.add_task("encoding", total=None)
        yield lambda done, total: display.update(task, completed=done, total=total)
