"""The address of a remote index: a folder with one small document that names a server and a collection. No torch.

Every function that accepts the path of an index accepts such a folder. The folder holds no secret:
polyrank reads the token from POLYRANK_MILVUS_TOKEN.
"""

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


@dataclass(frozen=True, slots=True)
class Address:
    """A collection on a server.

    Args:
        uri: of the server, such as ``http://127.0.0.1:19530``; https encrypts.
        collection: name of the collection.
        database: that holds it; empty: the server's default.

    >>> Address.of("http://127.0.0.1:19530/replies")
    Address(uri='http://127.0.0.1:19530', collection='replies', database='')
    >>> print(Address.of("https://example.org/shop/replies"))
    https://example.org:19530/shop/replies
    """

    uri: str
    collection: str
    database: str = ""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.uri, self.database, self.collection)))

    @classmethod
    def of(cls, text: str, *, named: bool = True) -> "Address":
        """Parse an address.

        Args:
            text: ``http://HOST:PORT/COLLECTION`` or ``http://HOST:PORT/DATABASE/COLLECTION``.
            named: whether it must name a collection; otherwise ``http://HOST:PORT/DATABASE/`` is a whole database.

        Raises:
            UsageError: the text is not the address of a server and a collection, or contains a password.
        """
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise UsageError(f"{text!r} is not the address of a collection; write http://HOST:PORT/COLLECTION")
        if parts.username is not None or parts.password is not None:
            raise UsageError("the address contains a password, which polyrank would store; set POLYRANK_MILVUS_TOKEN")
        database, _, collection = parts.path.removeprefix("/").rpartition("/")
        for kind, name in (("database", database), ("collection", collection)):
            required = kind == "collection" and named
            if (name or required) and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,254}", name):
                raise UsageError(
                    f"{name!r} is not a {kind} name; use up to 255 letters, digits and _, not a digit first"
                )
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return cls(f"{parts.scheme}://{host}:{port or 19530}", collection, database)


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
