"""A remote index: candidates and vectors on a server. No torch."""

from polyrank.index.remote.address import Address as Address, read_address as read_address
from polyrank.index.remote.collections import (
    drop_collection as drop_collection,
    find_collection as find_collection,
    list_collections as list_collections,
)
from polyrank.index.remote.reader import RemoteIndex as RemoteIndex, remote_problems as remote_problems
from polyrank.index.remote.writer import RemoteWriter as RemoteWriter, write_remote as write_remote
