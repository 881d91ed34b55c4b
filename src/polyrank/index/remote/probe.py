"""Tries a new collection before it is filled: whether its server finds rows that change their partition. No torch."""

from polyrank.errors import UsageError
from polyrank.index.remote.columns import PARTITION
from polyrank.index.remote.facts import COLUMN
from polyrank.index.remote.milvus import KEY, MilvusCollection, Row

N_ROWS = 8  # one could be in the right partition by chance


def check_partitions(server: MilvusCollection, collection: str, width: int) -> None:
    """Write, move and delete rows. Milvus 2.3 does not find written rows by their partition.

    Args:
        server: has the collection.
        collection: divided, and empty.
        width: numbers per vector.

    Raises:
        UsageError: the server loses rows.
    """
    empty: Row = {"row": 0, "id": "", "text": "", "metadata": "", "digest": "", COLUMN: {}, "vector": [1.0] * width}
    keys = [f"{i:032x}" for i in range(N_ROWS)]
    parts = {letter: [f"{letter}{key[1:]}" for key in keys] for letter in "ab"}
    for into in parts.values():
        rows = [empty | {KEY: key, PARTITION: part} for key, part in zip(keys, into, strict=True)]
        server.write(rows, collection=collection)
    found = {
        letter: [server.count(f'{PARTITION} == "{part}"', collection=collection) for part in into]
        for letter, into in parts.items()
    }
    if found != {"a": [0] * N_ROWS, "b": [1] * N_ROWS}:
        raise UsageError(
            f"{server.address.uri} loses rows of divided collections, as Milvus 2.3 does; leave out `partition_by`, or"
            " use a later version"
        )
    server.delete(keys, collection=collection)
