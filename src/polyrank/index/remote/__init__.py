"""A remote index: candidates and vectors in a Milvus server, with the surface of the local index. No torch."""

from polyrank.index.remote.address import Address, is_remote, read_address
from polyrank.index.remote.reader import RemoteIndex, remote_problems
from polyrank.index.remote.writer import RemoteWriter, write_remote

__all__ = ["Address", "RemoteIndex", "RemoteWriter", "is_remote", "read_address", "remote_problems", "write_remote"]
