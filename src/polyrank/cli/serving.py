"""``polyrank serve``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyrank.cli import interrupts
from polyrank.cli.console import talk
from polyrank.cli.options import existing_device
from polyrank.errors import MissingExtraError

if TYPE_CHECKING:
    from polyrank.serving.context import Server


def serve(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH...", help="Indexes, pipelines and models; several by name, as NAME=PATH."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with all settings; options count instead.")] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen at.  [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="0: a free one.  [default: 8600]")] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="Keys, one in each line; who has none is refused.")] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu or cuda.  [default: auto]", callback=existing_device)
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help="torch; an export of the models: onnx, onnx-int8, openvino; auto: the fastest.  [default: torch]"
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that compute, each with all models.  [default: 1]")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads of each of them.  [default: its share of the free cores]")
    ] = None,
    reload: Annotated[
        bool | None, typer.Option("--reload", help="Open what is replaced on disk anew, without losing a request.")
    ] = None,
    feedback: Annotated[
        Path | None, typer.Option(help="Keep in this file which replies are shown and taken; see polyrank feedback.")
    ] = None,
    keep_text: Annotated[
        bool | None, typer.Option("--keep-text", help="With --feedback: what users write is stored, too.")
    ] = None,
    page: Annotated[bool | None, typer.Option("--page/--no-page", help="A page at / to try it.")] = None,
) -> None:
    """Serve replies over HTTP, with a page at /; needs polyrank[serve].

    Of other clients, those of Cohere's and Jina's rerank, OpenAI's embeddings and text-embeddings-inference are
    answered too. SIGTERM and Ctrl-C stop it once what it has taken is answered; SIGHUP opens everything anew.
    """
    from polyrank.config.serving import read_serving

    given: dict[str, Any] = {
        "host": host,
        "port": port,
        "api_key_file": None if api_key_file is None else str(api_key_file),
        "device": device,
        "backend": backend,
        "workers": workers,
        "threads": threads,
        "reload": reload,
        "page": page,
        "feedback_file": None if feedback is None else str(feedback),
        "feedback_keep_text": keep_text,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    models, settings = read_serving(config, paths or (), changes)
    from polyrank.serving.log import log_to_stderr
    from polyrank.serving.run import serve

    def listening(address: str) -> None:
        talk(f"listening at {address}; opening {', '.join(models)}")

    def ready(server: "Server") -> None:
        for name, info in server.pool.info.items():
            n = "" if info.n_candidates is None else f" of {info.n_candidates:,} candidates"
            talk(f"ready: {name}, {info.kind}{n}")

    log_to_stderr()
    interrupts.forget()  # the server has signals of its own
    try:
        serve(models, settings, listening=listening, ready=ready)
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "fastapi", "serve") from error
