"""A Milvus server from milvus-lite."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from attached import end_with_parent
from polyrank.index.remote import Address


@dataclass
class Milvus:
    """A server in a separate process on loopback; it keeps its data and port when it restarts."""

    folder: Path
    port: int = 0
    process: "subprocess.Popen[bytes] | None" = None
    names: Iterator[int] = field(default_factory=lambda: iter(range(10**6)))

    def start(self) -> "Milvus":
        if not self.port:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "milvus_lite", "server", "--data-dir", str(self.folder / "data")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(self.port)],
                stdout=log,
                stderr=log,
                preexec_fn=end_with_parent,
            )
        return self

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def address(self) -> Address:
        """The address of a new collection."""
        return Address(f"http://127.0.0.1:{self.port}", f"replies_{next(self.names)}")
