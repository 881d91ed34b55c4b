"""``polyrank serve`` and ``polyrank mcp``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from polyrank.cli import interrupts
from polyrank.cli.console import notify, use_processor
from polyrank.cli.options import Device, Threads, existing_device
from polyrank.errors import MissingExtraError

if TYPE_CHECKING:
    from polyrank.config.serving import ServingSettings
    from polyrank.serving.context import Server

ServedPaths = Annotated[
    list[str] | None, Argument(metavar="PATH...", help="Indexes, rankers and models, as PATH or NAME=PATH.")
]
ApiKeyFile = Annotated[
    Path | None, Option(help="A file with one key per line; the server refuses requests without a key.")
]


def read_options(
    config: Path | None, paths: list[str] | None, **options: Any
) -> "tuple[dict[str, str], ServingSettings]":
    """Read the paths to serve and the settings: options, except None, override the config file."""
    from polyrank.config.serving import read_serving

    changes = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    return read_serving(config, paths or (), {name: value for name, value in changes.items() if value is not None})


def serve(
    paths: ServedPaths = None,
    config: Annotated[
        Path | None,
        Option(help="A TOML file with these settings and others, see deploy/serve.toml; options override it."),
    ] = None,
    host: Annotated[str | None, Option(help="The address to listen on.  [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, Option(min=0, max=65535, help="0: any free port.  [default: 8600]")] = None,
    api_key_file: ApiKeyFile = None,
    device: Annotated[
        str | None, Option(help="auto, cpu, cuda or mps.  [default: auto]", callback=existing_device)
    ] = None,
    threads: Annotated[
        int | None, Option(min=1, help="CPU threads per worker.  [default: its share of the idle cores]")
    ] = None,
    feedback: Annotated[
        Path | None, Option(help="Record in this file which replies are shown and taken; see polyrank feedback.")
    ] = None,
    keep_text: Annotated[
        bool | None, Option("--keep-text", help="With --feedback: also store the users' texts.")
    ] = None,
    hook: Annotated[
        str | None,
        Option(help="Answer the calls of chatwoot, zendesk or intercom by notes with replies; see [hook] of --config."),
    ] = None,
) -> None:
    """Serve replies over HTTP, with a page at /; needs polyrank[serve].

    The server is compatible with clients of Cohere's and Jina's rerank, OpenAI's embeddings and
    text-embeddings-inference. It opens models and indexes again when they are replaced on disk. SIGTERM and Ctrl-C stop
    it after it has answered the requests that it accepted; SIGHUP reads the keys again.
    """
    models, settings = read_options(
        config,
        paths,
        host=host,
        port=port,
        api_key_file=api_key_file,
        device=device,
        threads=threads,
        feedback_file=feedback,
        feedback_keep_text=keep_text,
        hook_kind=hook,
    )
    from polyrank.serving.log import log_to_stderr
    from polyrank.serving.run import serve

    def listening(address: str, secret: str) -> None:
        has_page = settings.page and not address.startswith("unix:")
        how = f"open {address}/#key={secret}" if has_page else f"give a client {address}#key={secret}"
        changes = f"; to change candidates, {how}" if secret else ""
        notify(f"listening at {address}; loading {', '.join(models)}{changes}")

    def ready(server: "Server") -> None:
        for name, info in server.pool.info.items():
            n = "" if info.n_candidates is None else f" of {info.n_candidates:,} candidates"
            notify(f"ready: {name}, {info.kind}{n}")

    log_to_stderr()
    interrupts.restore_handlers()  # the server installs its own handlers
    try:
        serve(models, settings, listening=listening, ready=ready)
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "fastapi", "serve") from error


def mcp(
    path: Annotated[Path, Argument(metavar="INDEX", help="An index folder.")],
    read_only: Annotated[bool, Option("--read-only", help="Do not let agents add replies.")] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Serve an index to agents over stdin and stdout, by the Model Context Protocol; needs polyrank[mcp].

    Agents get the tools suggest, rank, explain and add.
    """
    from polyrank.answering.opening import open_replies
    from polyrank.integrations.mcp import make_server

    use_processor(threads)
    with open_replies(path, device=device) as replies:
        notify(f"ready: {path}, index of {len(replies):,} candidates")
        make_server(replies, read_only=read_only).run()
