"""A PostgreSQL server with pgvector, from the package pgserver."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from attached import end_with_parent
from polyrank.index.remote import Address


@dataclass
class Postgresql:
    """A server in a separate process on loopback, which accepts the user postgres with any password."""

    port: int
    process: "subprocess.Popen[bytes]"
    folder: Path
    n_names: int = field(default=0)

    @classmethod
    def start(cls) -> "Postgresql":
        pgserver = pytest.importorskip("pgserver", reason="pgserver, the server of these tests, is not installed")
        folder = Path(tempfile.mkdtemp(prefix="polyrank-postgresql-"))
        # PostgreSQL refuses to run as root, and other users may not read root's files
        user = "nobody" if os.geteuid() == 0 else None
        package = Path(pgserver.__file__).parent
        for part in ("pgserver/pginstall", "pgserver.libs"):
            shutil.copytree(package.parent / part, folder / part)
        folder.chmod(0o755)
        (folder / "data").mkdir(0o700)
        if user:
            shutil.chown(folder / "data", user)
        programs = folder / "pgserver" / "pginstall" / "bin"
        common = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder / "data", "user": user}
        subprocess.run(
            [programs / "initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust", "--no-sync"],
            check=True,
            **common,
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [programs / "postgres", "-D", folder / "data", "-p", str(port), "-h", "127.0.0.1", "-k", ""]
        process = subprocess.Popen([*command, "-c", "fsync=off"], **common, preexec_fn=end_with_parent)
        return cls(port, process, folder)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)  # frees the shared memory; a kill leaves it
        self.process.wait(60)
        shutil.rmtree(self.folder)

    def address(self) -> Address:
        """The address of a new table."""
        self.n_names += 1
        return Address(f"postgresql://127.0.0.1:{self.port}", f"replies_{self.n_names}", "postgres")

    def sql(self, address: Address, statements: str) -> None:
        """Execute statements in the database of an address."""
        import psycopg

        with psycopg.connect(host="127.0.0.1", port=self.port, dbname=address.database, user="postgres") as connection:
            connection.execute(statements)
