"""``polyrank mcp``."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from polyrank.cli.console import notify, use_processor
from polyrank.cli.options import Device, Threads


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
