"""``polyrank ray``: training, encoding and serving on a Ray cluster.

Its options, messages and exit codes are those of polyrank's commands, which it imports.
"""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, TextIO

import typer
from typer import Argument, Option

from polyrank.cli import interrupts
from polyrank.cli.arguments import take_options
from polyrank.cli.console import encoding_progress, notify
from polyrank.cli.help import add_command, command_group
from polyrank.cli.options import Changes, Json, Resume, StartAgain
from polyrank.cli.serving import ApiKeyFile, ServedPaths, read_options
from polyrank.cli.training import TrainingDisplay, check_resume, show_results

PLAIN = {"add_completion": False, "rich_markup_mode": None}  # help as that of polyrank
ray_app = command_group("ray", "Train, encode and serve on a Ray cluster whose nodes may fail.", **PLAIN)
Address = Annotated[str, Option(help="auto (the cluster on this machine), HOST:PORT, or local (only this machine).")]
Workers = Annotated[int, Option(min=1, help="Maximum number of workers; they start when resources are free.")]
Cpus = Annotated[int, Option(min=1, help="CPUs and threads of each worker.")]
Device = Annotated[str, Option(help="auto (one GPU per worker if the cluster has GPUs), cpu or cuda.")]


def main(arguments: Sequence[str], name: str) -> None:
    """Run a command, which raises polyrank's errors; the entry point of ``polyrank ray``.

    Args:
        arguments: those after the name.
        name: of the command line in its help.
    """
    command = typer.main.get_command(ray_app)
    take_options(command)
    command(list(arguments), prog_name=name, standalone_mode=False)


def _messages_to_stderr() -> redirect_stdout[TextIO]:
    """Ray prints messages about its nodes to stdout."""
    return redirect_stdout(sys.stderr)


@add_command(ray_app, "train", "data/recipe.toml --workers 4 --address 10.0.0.1:6379")
def train(
    recipe: Annotated[Path, Argument(help="A recipe, as for polyrank train; all nodes need access to its files.")],
    changes: Changes = None,
    workers: Workers = 1,
    cpus: Cpus = 1,
    resume: Resume = False,
    overwrite: StartAgain = False,
    device: Device = "auto",
    address: Address = "auto",
    json_: Json = False,
) -> None:
    """Train a model from a recipe, like polyrank train, with workers on the nodes of a Ray cluster.

    The losses equal those of one process. When a node fails, the run continues from its last checkpoint with the other
    workers, and adds workers when resources are free.
    """
    from polyrank import load_recipe

    check_resume(resume, overwrite)
    plan = load_recipe(recipe, changes or ())
    with _messages_to_stderr(), TrainingDisplay() as display:
        from polyrank_ray import train as run

        results = run(
            plan,
            workers=workers,
            cpus=cpus,
            resume=resume,
            overwrite=overwrite,
            device=device,
            address=address,
            report=display.report,
            notify=notify,
        )
    show_results(plan.data, results, json_)


@add_command(ray_app, "encode", "run/model replies.parquet -o vectors --index my-index --workers 8")
def encode(
    model: Annotated[str, Argument(help="An encoder, as for polyrank index build; all nodes need access to it.")],
    candidates: Annotated[Path, Argument(help="Replies: a file, or a folder of .parquet, .jsonl or .csv files.")],
    output: Annotated[Path, Option("-o", "--output", help="The folder of Parquet files to make or to continue.")],
    index: Annotated[Path | None, Option(help="Also make an index.")] = None,
    workers: Workers = 1,
    cpus: Cpus = 1,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Replace vectors of other candidates or another model, and the index.")
    ] = False,
    device: Device = "auto",
    address: Address = "auto",
) -> None:
    """Encode candidates on a Ray cluster to Parquet files of id, text, metadata and vector, and optionally to an index.

    After an interruption, run the command again: it skips the blocks that are finished.
    """
    from polyrank.index import check_target
    from polyrank_ray.blocks import index_blocks

    if index is not None:
        check_target(index, overwrite=overwrite)
    interrupts.set_resume_hint("run it again to continue")
    with _messages_to_stderr(), encoding_progress() as progress:
        from polyrank_ray import encode as run

        n = run(
            model,
            candidates,
            output,
            workers=workers,
            cpus=cpus,
            overwrite=overwrite,
            device=device,
            address=address,
            progress=progress,
            notify=notify,
        )
    notify(f"{output}: {n:,} candidates encoded")
    if index is not None:
        n = index_blocks(output, index, overwrite=overwrite)
        notify(f"{index}: {n:,} candidates")


@add_command(ray_app, "serve", "support=my-index --replicas 4")
def serve(
    paths: ServedPaths = None,
    config: Annotated[Path | None, Option(help="A TOML file, as for polyrank serve.")] = None,
    replicas: Annotated[int, Option(min=1, help="Number of replicas.")] = 2,
    cpus: Cpus = 1,
    host: Annotated[str | None, Option(help="Address of Ray's proxy.  [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, Option(min=1, max=65535, help="Port of Ray's proxy.  [default: 8600]")] = None,
    api_key_file: ApiKeyFile = None,
    address: Address = "auto",
) -> None:
    """Serve over HTTP like polyrank serve, with replicas on the nodes of a Ray cluster. SIGTERM and Ctrl-C stop it."""
    models, settings = read_options(
        config,
        paths,
        host=host,
        port=port,
        api_key_file=api_key_file and api_key_file.absolute(),
        threads=cpus,
    )
    interrupts.restore_handlers()  # the server installs its own handlers
    with _messages_to_stderr():
        from polyrank_ray import serve as run

        run(
            models,
            settings,
            replicas=replicas,
            cpus=cpus,
            address=address,
            ready=lambda where: notify(f"listening at {where}: {replicas} replicas of {', '.join(models)}"),
        )
