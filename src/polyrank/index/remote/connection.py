"""The connection to a Milvus server: the only module that imports its client. No torch.

Every call has a time limit. Until then it is repeated on a new connection while the server is unreachable.
"""

import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from polyrank.errors import ArtifactError, MissingExtraError, OfflineError, ResourceError, UsageError
from polyrank.index.remote.address import Address
from polyrank.storage import forks
from polyrank.storage.time_limit import check_time_left, seconds_left

TOKEN, NAMED = "POLYRANK_MILVUS_TOKEN", "POLYRANK_MILVUS_URI"
CA = "POLYRANK_MILVUS_CA"
TIMEOUT_S = 20.0  # less than a request to polyrank serve may take
PAUSE_S = 0.2  # between two attempts
NO_COLLECTION, NOT_LOADED = 100, 101
NOT_CONNECTED, REFUSED = 2, ("UNAUTHENTICATED", "PERMISSION_DENIED")


class Connection:
    """A connection that threads share. It opens with the first call.

    Args:
        address: of the server and the collection.
        timeout_s: seconds for each call, including its repetitions.

    Raises:
        MissingExtraError: pymilvus is not installed.
    """

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.address, self.timeout_s = address, timeout_s
        self.library, self._errors = _pymilvus()
        self._lock = forks.new_lock()
        self._client: Any = None
        forks.watch(self)

    def after_fork(self) -> None:
        """In a child process: leave the connection to the parent. The next call opens another."""
        forks.abandon(self._client)
        self._client = None

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if (client := self._client) is not None:
            self._close(client)

    def _close(self, client: Any) -> bool:
        """Close a connection; returns False if another thread has closed it."""
        with self._lock:
            if self._client is not client:
                return False
            self._client = None
        with suppress(Exception):  # the connection is abandoned either way
            client.close()
        return True

    def call(self, method: str, *arguments: Any, **settings: Any) -> Any:
        """Call a method of the library; repeat it while the server is unreachable and time is left.

        Raises:
            OfflineError: the server did not answer in time.
            DeadlineError: the search has no time left.
            ArtifactError: the collection does not exist.
            ResourceError: the server refused.
        """
        deadline, loaded = time.monotonic() + min(self.timeout_s, seconds_left()), False
        while True:
            left = max(deadline - time.monotonic(), PAUSE_S)
            client = None
            try:
                client = self._connected(left)
                return getattr(client, method)(*arguments, timeout=left, **settings)
            except self._errors as error:
                code = _code(error)
                if code == str(NOT_LOADED) and not loaded and method != "load_collection":
                    self.call("load_collection", self.address.collection)  # needed after a restart of the server
                    loaded = True
                    continue
                interrupted = client is not None and not self._close(client)
                check_time_left(PAUSE_S)
                if interrupted and time.monotonic() < deadline:
                    continue
                if code in ("UNAVAILABLE", str(NOT_CONNECTED)) and time.monotonic() + PAUSE_S < deadline:
                    time.sleep(PAUSE_S)
                    continue
                raise self._translated(method, code, error) from error

    def _connected(self, timeout_s: float) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self.library.MilvusClient(
                    uri=self.address.uri,
                    db_name=self.address.database,
                    token=self._token(),
                    server_pem_path=_own_authority(),
                    timeout=timeout_s,
                    dedicated=True,
                    # otherwise a new connection waits as long as the lost one would have
                    grpc_options={"grpc.use_local_subchannel_pool": 1},
                )
            return self._client

    def _token(self) -> str:
        """The token, if the user named this server: a folder of unknown origin may name any."""
        named = os.environ.get(NAMED, "")
        trusted = bool(named) and Address.of(f"{named.rstrip('/')}/", named=False).uri == self.address.uri
        return os.environ.get(TOKEN, "") if trusted else ""

    def _translated(self, method: str, code: str, error: Exception) -> Exception:
        if code in ("UNAVAILABLE", "DEADLINE_EXCEEDED", str(NOT_CONNECTED)):
            hint = f", or set {CA} if its certificate is your own" if self.address.uri.startswith("https") else ""
            return OfflineError(
                f"{self.address.uri} did not answer within {self.timeout_s:g} seconds; start the server and try"
                f" again{hint}"
            )
        if code in REFUSED:
            return UsageError(
                f"{self.address.uri} refuses the credentials; set {TOKEN} to USER:PASSWORD or a token, and {NAMED} to"
                " that address"
            )
        if code == str(NO_COLLECTION):
            return ArtifactError(f"{self.address} does not exist; build it with polyrank index build --remote")
        reason = " ".join(str(getattr(error, "message", error)).split())[:300]
        return ResourceError(f"{self.address} refuses to {method.replace('_', ' ')} ({reason}); see the server's log")


def _own_authority() -> str:
    """The file of certificates that servers are checked against instead of the system's; empty: none.

    Raises:
        UsageError: the file does not exist.
    """
    path = os.environ.get(CA, "")
    if path and not Path(path).is_file():
        raise UsageError(f"{path} does not exist; set {CA} to a file of certificates (PEM)")
    return path


def _pymilvus() -> tuple[ModuleType, tuple[type[Exception], ...]]:
    """The library, and the exceptions that its calls raise."""
    try:
        import pymilvus
        from grpc import RpcError
    except ImportError as error:
        raise MissingExtraError("pymilvus", "milvus") from error
    for name in ("pymilvus", "pymilvus.milvus_client"):  # they log a traceback of each error that they raise
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return pymilvus, (RpcError, pymilvus.exceptions.MilvusException)


def _code(error: Any) -> str:
    """The code of an exception: pymilvus's is a number or a name, gRPC's is a method.

    A failed connection's cause shows whether the server refused the credentials.
    """
    cause = _own_code(error.__cause__)
    return cause if cause in REFUSED else _own_code(error)


def _own_code(error: Any) -> str:
    code = getattr(error, "code", None)
    code = code() if callable(code) else code
    return getattr(code, "name", None) or str(code)
