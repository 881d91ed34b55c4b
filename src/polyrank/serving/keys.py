"""API keys: each has a name, a right and a secret. Knows files and headers, but no routes."""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from polyrank.errors import UsageError
from polyrank.index.filters import Filter, read_filter
from polyrank.serving.log import log

Right = Literal["read", "write"]
MIN_KEY_CHARACTERS = 16
TOO_OPEN = 0o026  # mode bits: others may read, or the group or others may write


@dataclass(frozen=True, slots=True)
class Key:
    """An API key.

    Args:
        name: of its owner, for the log.
        right: "write": full access; "read": everything except changes to candidates.
        digest: SHA-256 of the secret.
        filter: of the candidates that it may see and change; None: all.
    """

    name: str
    right: Right
    digest: bytes
    filter: Filter | None = None


class Keys:
    """All API keys; compared in constant time.

    Args:
        keys: empty: everyone on this machine may read, and changes need a secret that is made here.

    Attributes:
        secret: which the server prints if it has no keys; otherwise empty. A proxy on this machine forwards requests of
            others as its own, so an address does not prove who sent a change.
    """

    def __init__(self, keys: Sequence[Key] = ()) -> None:
        self.secret = "" if keys else secrets.token_urlsafe(24)
        self._keys = tuple(keys) or (Key("printed", "write", _digest(self.secret.encode())),)

    @classmethod
    def read(cls, path: Path) -> "Keys":
        """Read keys from a file: each line has a key, or ``NAME read KEY`` or ``NAME write KEY``, and maybe a filter.

        Empty lines and lines that begin with # are ignored. A key without a name has the right to write.

        Raises:
            UsageError: the file is missing or has no keys, a key is too short, or a line is invalid.
        """
        try:
            lines = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
            mode = path.stat().st_mode
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read keys from {path}; use a file with one key per line") from error
        keys = [_key(path, number, line) for number, line in enumerate(lines, 1) if line and not line.startswith("#")]
        if not keys:
            raise UsageError(f"{path} has no keys; write one per line")
        names = [key.name for key in keys]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UsageError(f"{path} has two keys with the name {twice}; use distinct names")
        if mode & TOO_OPEN:
            log.warning("other users can read or write %s (mode %o); run chmod 600 on it", path, mode & 0o777)
        return cls(keys)

    def replace(self, others: "Keys") -> None:
        """Use these keys from now on."""
        self._keys = others._keys

    def __bool__(self) -> bool:
        return not self.secret

    def admit(self, authorization: bytes) -> Key | None:
        """The key in a header: ``Bearer KEY``, or ``Basic`` with the key as the password, as browsers send it."""
        scheme, _, value = authorization.partition(b" ")
        secret = value.strip()
        if scheme.lower() == b"basic":
            try:
                secret = base64.b64decode(secret, validate=True).partition(b":")[2]
            except binascii.Error:
                return None
        elif scheme.lower() != b"bearer":
            return None
        # clients encode non-ASCII characters as UTF-8 or as Latin-1
        digests = [_digest(secret), _digest(secret.decode("latin-1").encode())]
        matches = [any(hmac.compare_digest(digest, key.digest) for digest in digests) for key in self._keys]
        return next((key for key, matched in zip(self._keys, matches, strict=True) if matched), None)


def file_stamp(path: str | None) -> tuple[int, ...]:
    """Changes whenever a file does; empty if there is none."""
    try:
        status = Path(path or "").stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _key(path: Path, number: int, line: str) -> Key:
    parts = line.split(maxsplit=3)
    name, right, secret, *rest = parts if len(parts) >= 3 else (f"key-{number}", "write", line)
    try:
        condition = read_filter(rest[0]) if rest and right in get_args(Right) else None
    except UsageError as error:
        raise UsageError(f"line {number} of {path} has a key with a wrong filter: {error}") from error
    if right not in get_args(Right) or len(secret.split()) != 1:
        raise UsageError(f"line {number} of {path} is not a key; write KEY, NAME read KEY or NAME write KEY")
    if len(secret) < MIN_KEY_CHARACTERS:
        raise UsageError(
            f"the key in line {number} of {path} has {len(secret)} characters; use at least {MIN_KEY_CHARACTERS}"
        )
    return Key(name, "read" if right == "read" else "write", _digest(secret.encode()), condition)


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
