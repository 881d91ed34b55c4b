"""Real processes that start warm.

Most of what a command costs in a test is the import of torch and transformers. The standard library's fork server has
them imported once and forks: the children are processes of their own, which can be killed, with their own standard
streams and exit code. What is about starting cold, or about streams that fail, starts an interpreter instead.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_warm = multiprocessing.get_context("forkserver")
_warm.set_forkserver_preload(
    [
        "polyrank.cli.commands",
        "polyrank.intents",
        "polyrank.pipeline",
        "polyrank.retrieval",
        "polyrank.scorers",
        "polyrank.training",
        "transformers.models.auto.modeling_auto",
        "transformers.models.auto.tokenization_auto",
        "transformers.models.bert.modeling_bert",
    ]
)


def start(work: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Call a module's function in a process of its own."""
    child = _warm.Process(target=work, args=arguments)
    child.start()
    return child


def run(
    *arguments: str | Path, stdin: str | bytes = "", cwd: Path | None = None, timeout: float = 300
) -> "subprocess.CompletedProcess[str]":
    """``polyrank ARGUMENTS`` in a process of its own, fed and read through files."""
    command = ["polyrank", *map(str, arguments)]
    with tempfile.TemporaryDirectory() as name:
        streams = [Path(name) / stream for stream in ("stdin", "stdout", "stderr")]
        streams[0].write_bytes(stdin.encode() if isinstance(stdin, str) else stdin)
        child = start(_command, command, str(cwd or Path.cwd()), dict(os.environ), *map(str, streams))
        child.join(timeout)
        if child.exitcode is None:
            child.kill()
            raise subprocess.TimeoutExpired(command, timeout)
        out, err = (stream.read_text("utf-8") if stream.exists() else "" for stream in streams[1:])
        return subprocess.CompletedProcess(command, child.exitcode, out, err)


def _command(command: list[str], cwd: str, environment: dict[str, str], stdin: str, stdout: str, stderr: str) -> None:
    for number, path, flags in (
        (0, stdin, os.O_RDONLY),
        (1, stdout, os.O_WRONLY | os.O_CREAT),
        (2, stderr, os.O_WRONLY | os.O_CREAT),
    ):
        os.dup2(os.open(path, flags), number)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # for the process's whole life
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = command
    from polyrank.cli import main

    main()
