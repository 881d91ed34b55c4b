"""Real processes with a warm start.

Most of a command's time in a test is the import of torch, transformers and Typer's parts. The standard library's fork
server imports them once and forks: the children are separate processes that a test can kill, with their own standard
streams and exit code. Tests of cold starts or of failing streams start an interpreter instead.
"""

import gc
import json
import multiprocessing
import os
import runpy
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_warm = multiprocessing.get_context("forkserver")
_warm.set_forkserver_preload(
    [
        "polyrank.cli.commands",
        "polyrank.tuning.intents",
        "polyrank.answering.replies",
        "polyrank.scorers.open",
        "polyrank.training",
        "transformers.models.auto.tokenization_auto",
        "torch._dynamo",  # the first update of an optimiser imports it
        # what Typer and Rich import when a command first parses, counts or draws
        "typer._adapters",
        "pydantic.main",
        "pydantic.types",
        "rich.live",
        "rich.progress",
        "rich.table",
    ]
)


def start(work: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Call a module's function in a new process."""
    child = _warm.Process(target=_attached, args=(work, *arguments))
    child.start()
    return child


def _attached(work: Callable[..., None], *arguments: Any) -> None:
    """Run the work, and end with the requesting process; its parent is the fork server, which lives as long as that."""
    gc.freeze()  # the objects of the imported libraries, which each garbage collection would visit again
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    work(*arguments)


def _end_with(tests: BaseProcess) -> None:
    tests.join()
    os.kill(os.getpid(), signal.SIGKILL)


def run(
    *arguments: str | Path,
    stdin: str | bytes = "",
    cwd: Path | None = None,
    timeout: float = 300,
    meanwhile: Callable[[BaseProcess], None] = lambda child: None,
) -> "subprocess.CompletedProcess[str]":
    """Run ``polyrank ARGUMENTS`` in a new process with files as streams; ``meanwhile(process)`` runs next to it."""
    command = ["polyrank", *map(str, arguments)]
    with tempfile.TemporaryDirectory() as name:
        streams = [Path(name) / stream for stream in ("stdin", "stdout", "stderr")]
        streams[0].write_bytes(stdin.encode() if isinstance(stdin, str) else stdin)
        child = start(_command, command, str(cwd or Path.cwd()), dict(os.environ), *map(str, streams))
        try:
            meanwhile(child)
        except BaseException:
            child.kill()
            raise
        child.join(timeout)
        if child.exitcode is None:
            child.kill()
            raise subprocess.TimeoutExpired(command, timeout)
        out, err = (stream.read_text("utf-8") if stream.exists() else "" for stream in streams[1:])
        return subprocess.CompletedProcess(command, child.exitcode, out, err)


def run_together(n: int, *arguments: str | Path, timeout: float = 300) -> "list[subprocess.CompletedProcess[str]]":
    """Run ``polyrank ARGUMENTS`` in n connected processes, as ``torchrun`` does."""
    command = ["polyrank", *map(str, arguments)]
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / str(number) for number in range(n)]
        children = []
        for folder, variables in zip(folders, as_launched(n), strict=True):
            folder.mkdir()
            streams = [str(folder / stream) for stream in ("stdin", "stdout", "stderr")]
            (folder / "stdin").touch()
            children.append(start(_command, command, str(Path.cwd()), {**os.environ, **variables}, *streams))
        codes = join(children, timeout)
        said = [[(folder / stream).read_text("utf-8") for stream in ("stdout", "stderr")] for folder in folders]
    return [subprocess.CompletedProcess(command, code, *texts) for code, texts in zip(codes, said, strict=True)]


def work_together(n: int, work: Callable[..., None], *arguments: Any) -> list[int]:
    """Call a module's function in each of n distributed processes with one thread; returns exit codes."""
    return join([start(_as_one_of_them, variables, work, arguments) for variables in as_launched(n)])


def _as_one_of_them(variables: dict[str, str], work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    import torch

    os.environ.update(variables)
    torch.set_num_threads(1)
    work(*arguments)


def as_launched(n: int) -> list[dict[str, str]]:
    """The environment variables of ``torchrun`` for each of n processes on this machine; none for a single one."""
    if n == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{**shared, "RANK": str(number), "LOCAL_RANK": str(number)} for number in range(n)]


SHIM = """#!{python} -IS
import json, os, socket, sys
if sys.argv[1:2] == ["-c"]:
    os.execv({python!r}, sys.argv)
with socket.socket(socket.AF_UNIX) as warm:
    warm.connect({address!r})
    asked = [[{name!r}, *sys.argv[1:]], os.getcwd(), dict(os.environ), os.getpid()]
    warm.sendall(json.dumps(asked).encode() + bytes([10]))
    sys.exit(int(warm.makefile().readline() or 1))
"""


class _Warm(socketserver.StreamRequestHandler):
    """Runs what a shim was called with in a new process that has the shim's streams."""

    def handle(self) -> None:
        command, cwd, environment, shim = json.loads(self.rfile.readline())
        child = start(_command, command, cwd, environment, *(f"/proc/{shim}/fd/{number}" for number in range(3)))
        child.join()
        self.wfile.write(b"%d\n" % child.exitcode)


@contextmanager
def warm_commands() -> Iterator[str]:
    """A value of PATH in which ``polyrank ARGUMENTS`` and ``python FILE ARGUMENTS`` of a script start warm."""
    with tempfile.TemporaryDirectory() as name:
        folder, address = Path(name), f"{name}/socket"
        for shim in ("polyrank", "python"):
            (folder / shim).write_text(SHIM.format(python=sys.executable, address=address, name=shim), "utf-8")
            (folder / shim).chmod(0o755)
        with socketserver.ThreadingUnixStreamServer(address, _Warm) as server:
            threading.Thread(target=server.serve_forever).start()
            try:
                yield f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
            finally:
                server.shutdown()


def join(children: list[BaseProcess], timeout: float = 300) -> list[int]:
    """Wait for processes and return their exit codes; ends all of them if one hangs."""
    for child in children:
        child.join(timeout)
    codes = [child.exitcode for child in children]
    if None in codes:
        for child in children:
            child.kill()
        raise subprocess.TimeoutExpired(str(children), timeout)
    return [code for code in codes if code is not None]


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
    if "OMP_NUM_THREADS" in environment:  # torch reads it at import
        import torch

        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    if command[0] == "python":
        sys.argv = command[1:]
        sys.path.insert(0, str(Path(command[1]).resolve().parent))
        runpy.run_path(command[1], run_name="__main__")
        return
    sys.argv = command
    from polyrank.cli import main

    main()


def files_open_in(folder: Path, pattern: str = "*") -> list[Path]:
    """Open files of this process below a folder whose names match."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [file for file in (link.readlink() for link in links) if file.is_relative_to(folder) and file.match(pattern)]
