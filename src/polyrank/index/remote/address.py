"""The address of a remote index: a folder with one small document that names a server and a collection. No torch.

Every function that accepts the path of an index accepts such a folder. The folder holds no secret: polyrank reads the
token of a server from the environment.
"""

import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from polyrank.errors import UsageError
from polyrank.loading.folders import REMOTE
from polyrank.storage.document import read_document, seal
from polyrank.storage.durable import new_folder

LOCK = "writer.lock"
FOLDER_FILES = (REMOTE.file, LOCK)  # every file in the folder of a remote index
IN_FILES = "qdrant+file"  # Qdrant's local mode, which has no server
TABLES = "postgresql"
PORTS = {"http": 19530, "https": 19530, "qdrant+http": 6333, "qdrant+https": 6333, IN_FILES: None, TABLES: 5432}


@dataclass(frozen=True, slots=True)
class Address:
    """A collection on a server.

    Args:
        uri: of the server, such as ``http://127.0.0.1:19530`` for Milvus or ``qdrant+http://127.0.0.1:6333``; https
            encrypts.
        collection: name of the collection.
        database: that holds it; empty: the server's default.

    >>> Address.of("http://127.0.0.1:19530/replies")
    Address(uri='http://127.0.0.1:19530', collection='replies', database='')
    >>> print(Address.of("https://example.org/shop/replies"))
    https://example.org:19530/shop/replies
    >>> print(Address.of("qdrant+http://127.0.0.1/replies"), Address.of("qdrant+file:///tmp/store/replies"))
    qdrant+http://127.0.0.1:6333/replies qdrant+file:///tmp/store/replies
    """

    uri: str
    collection: str
    database: str = ""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.uri, self.database, self.collection)))

    @property
    def store(self) -> str:
        """The kind of server: "milvus", "qdrant" or "postgresql"."""
        store = self.uri.partition("://")[0].partition("+")[0]
        return "milvus" if store in ("http", "https") else store

    @property
    def longest(self) -> int:
        """Characters of the longest name."""
        return 63 if self.store == TABLES else 255

    @property
    def variable(self) -> str:
        """Beginning of the names of the environment variables of this kind of server."""
        return f"POLYRANK_{self.store.upper()}"

    @property
    def encrypted(self) -> bool:
        """Whether the connection is encrypted."""
        return self.uri.partition(":")[0].endswith("https")

    @property
    def authority(self) -> str:
        """The file of certificates that servers are checked against instead of the system's; empty: none.

        Raises:
            UsageError: the file does not exist.
        """
        path = os.environ.get(f"{self.variable}_CA", "")
        if path and not Path(path).is_file():
            raise UsageError(f"{path} does not exist; set {self.variable}_CA to a file of certificates (PEM)")
        return path

    @property
    def token(self) -> str:
        """The token, if the user named this server: a folder of unknown origin may name any."""
        named = os.environ.get(f"{self.variable}_URI", "")
        trusted = bool(named) and Address.of(f"{named.rstrip('/')}/", named=False).uri == self.uri
        return os.environ.get(f"{self.variable}_TOKEN", "") if trusted else ""

    @classmethod
    def of(cls, text: str, *, named: bool = True) -> "Address":
        """Parse an address.

        Args:
            text: ``http://HOST:PORT/COLLECTION`` or ``http://HOST:PORT/DATABASE/COLLECTION`` of Milvus,
                ``qdrant+http://HOST:PORT/COLLECTION``, ``qdrant+file:///FOLDER/COLLECTION``, or
                ``postgresql://HOST:PORT/DATABASE/NAME``.
            named: whether it must name a collection; otherwise ``http://HOST:PORT/DATABASE/`` is a whole database.

        Raises:
            UsageError: the text is not the address of a server and a collection, or contains a password.
        """
        try:
            parts = urlsplit(text)
            port = parts.port or PORTS.get(parts.scheme)
        except ValueError:
            parts, port = urlsplit(""), None
        in_files = parts.scheme == IN_FILES
        if parts.scheme not in PORTS or bool(parts.hostname) == in_files or parts.query or parts.fragment:
            raise UsageError(
                f"{text!r} is not the address of a collection; write http://HOST:PORT/NAME for Milvus,"
                " qdrant+http://HOST:PORT/NAME or postgresql://HOST:PORT/DATABASE/NAME"
            )
        database, _, collection = parts.path.removeprefix("/").rpartition("/")
        folder, database = (f"/{database}", "") if in_files else ("", database)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        address = cls(f"{parts.scheme}://{folder or f'{host}:{port}'}", collection, database)
        if parts.username is not None or parts.password is not None:
            raise UsageError(
                f"the address contains a password, which polyrank would store; set {address.variable}_TOKEN"
            )
        for kind, name in (("database", database), ("collection", collection)):
            required = kind == "collection" and named
            if required and not name:
                raise UsageError(f"{text!r} names no collection; add its name, as in {text.rstrip('/')}/replies")
            if (name or required) and not re.fullmatch(rf"[A-Za-z_][A-Za-z0-9_]{{0,{address.longest - 1}}}", name):
                allowed = f"up to {address.longest} letters, digits and _, not a digit first"
                raise UsageError(f"{name!r} is not a {kind} name; use {allowed}")
        if database and address.store == "qdrant":
            raise UsageError(f"{text!r} names a database, which Qdrant lacks; leave {database!r} out")
        if named and address.store == TABLES and not database:
            raise UsageError(f"{text!r} names no database; write postgresql://HOST:PORT/DATABASE/NAME")
        return address


def read_address(path: Path) -> Address:
    """The address that a folder names.

    Raises:
        ArtifactError: the document is missing or damaged.
    """
    document = read_document(path, REMOTE)
    return Address(str(document["uri"]), str(document["collection"]), str(document["database"]))


def write_address(path: Path, address: Address, *, replace: bool = False) -> None:
    """Write the folder."""
    with new_folder(path, replace=replace, own_files=FOLDER_FILES) as folder:
        (folder / REMOTE.file).write_bytes(seal(asdict(address), REMOTE))
