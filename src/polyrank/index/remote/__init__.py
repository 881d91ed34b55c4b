"""A remote index: candidates and vectors on a server. No torch."""

from polyrank.index.remote.address import Address, read_address
from polyrank.index.remote.collections import drop_collection, find_collection, list_collections
from polyrank.index.remote.reader import RemoteIndex, remote_problems
from polyrank.index.remote.writer import RemoteWriter, write_remote

__all__ = [
    "Address",
    "RemoteIndex",
    "RemoteWriter",
    "drop_collection",
    "find_collection",
    "list_collections",
    "read_address",
    "remote_problems",
    "write_remote",
]
