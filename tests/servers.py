"""Real servers: ``polyrank serve`` in a separate process, with requests over HTTP."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from attached import end_with_parent

LISTENING = re.compile(r"listening at ((?:http://|unix:)\S+);")
PRINTED = re.compile(r"#key=(\S+)")


@dataclass
class Running:
    """A running server.

    Args:
        process: the server process; its children compute.
        url: its URL.
        key: for changes, if it has no key file.
        lines: lines of its stderr so far.
    """

    process: "subprocess.Popen[str]"
    url: str = ""
    key: str = ""
    lines: list[str] = field(default_factory=list)
    listening: threading.Event = field(default_factory=threading.Event)
    ready: threading.Event = field(default_factory=threading.Event)
    more: threading.Condition = field(default_factory=threading.Condition)

    def read(self) -> None:
        """Read stderr to its end."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self.more:
                self.lines.append(line.rstrip("\n"))
                self.more.notify_all()
            if match := LISTENING.search(line):
                self.url = match[1]
                self.key = printed[1] if (printed := PRINTED.search(line)) else ""
                self.listening.set()
            if line.startswith("ready: "):
                self.ready.set()
        self.listening.set()
        self.ready.set()

    def client(self, **settings: Any) -> httpx.Client:
        """A client for this server, with the key that it prints."""
        settings.setdefault("headers", {"authorization": f"Bearer {self.key}"} if self.key else {})
        settings.setdefault("verify", False)  # no certificates are read, which takes longer than a request
        return httpx.Client(base_url=self.url, timeout=60, **settings)

    @contextmanager
    def workers_stopped(self) -> Iterator[None]:
        """Inside, the worker processes do nothing. Linux only."""
        end = time.monotonic() + 60
        while not (stopped := self.workers):
            assert time.monotonic() < end, "the server has started no process"
        for child in stopped:
            os.kill(child, signal.SIGSTOP)
        try:
            yield
        finally:
            for child in stopped:
                os.kill(child, signal.SIGCONT)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop it and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)

    def wait_for(self, words: str, since: int = 0) -> str:
        """Wait for a line with these words, from line ``since`` on, and return it."""

        def line() -> str | None:
            return next((line for line in self.lines[since:] if words in line), None)

        with self.more:
            said = self.more.wait_for(line, 60)
        assert said is not None, self.lines[-20:]
        return said

    @property
    def workers(self) -> list[int]:
        """Ids of the worker processes. Linux only."""
        children: list[int] = []
        for thread in Path(f"/proc/{self.process.pid}/task").iterdir():
            children += map(int, (thread / "children").read_text().split())
        workers = []
        for pid in children:
            with suppress(FileNotFoundError):  # it has just ended
                if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    workers.append(pid)
        return workers

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    @property
    def log(self) -> list[dict[str, Any]]:
        """The log entries of requests."""
        return [json.loads(line) for line in self.lines if line.startswith("{")]


@contextmanager
def serving(
    *arguments: str | Path, wait: bool = True, environment: dict[str, str] | None = None, folder: Path | None = None
) -> Iterator[Running]:
    """Start a server at a free port, and stop it at the end of the block.

    Args:
        arguments: arguments of ``polyrank serve``.
        wait: whether to wait until the models are open.
        environment: its environment; None: this process's.
        folder: its working directory; None: this process's.
    """
    command = [sys.executable, "-m", "polyrank", "serve", *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, cwd=folder, preexec_fn=end_with_parent
    )
    running = Running(process)
    reader = threading.Thread(target=running.read, daemon=True)
    reader.start()
    try:
        running.listening.wait(60)
        if wait:
            running.ready.wait(120)
            assert process.poll() is None, running.lines
        yield running
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        reader.join(10)
        assert process.stderr is not None
        process.stderr.close()
