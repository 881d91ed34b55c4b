"""Everything that is wrong with an index, as sentences. No torch."""

import sqlite3
from pathlib import Path

import numpy as np

from polyrank.errors import PolyrankError
from polyrank.index import store
from polyrank.index.lock import acknowledged, check_acknowledged
from polyrank.index.matrix import REMEDY, open_matrix, read_manifest, verified
from polyrank.index.reader import open_index
from polyrank.index.store import FILE
from polyrank.storage.durable import Place


def verify_index(path: Place) -> list[str]:
    """Read every byte that matters; empty when the index is sound."""
    place = Path(path)
    try:
        connection = store.connect(place, write=False)
    except PolyrankError as error:
        return [str(error)]
    expected = acknowledged(place)
    problems: list[str] = []
    try:
        with store.transaction(connection, place, write=False):
            meta = store.read_meta(connection, place)
            faults = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
            problems += [f"{place / FILE} is damaged ({fault}); {store.REMEDY}" for fault in faults if fault != "ok"]
            n, digest = 0, 0
            for row in store.scan_rows(connection, place):
                n, digest = n + 1, digest + int.from_bytes(row.digest, "little")
            store.check_sum(place, meta, n, digest)
            check_acknowledged(place, meta.change, expected)
        problems += _matrix_problems(connection, place)
    except PolyrankError as error:
        problems.append(str(error))
    finally:
        connection.close()
    if not problems:
        try:
            open_index(place).close()
        except PolyrankError as error:
            problems.append(str(error))
    return problems


def _matrix_problems(connection: sqlite3.Connection, place: Path) -> list[str]:
    while True:
        name = store.read_meta(connection, place).matrix
        if not name or not (place / name).exists():
            return []  # derived, and made again from the truth
        try:
            return _problems_of(place / name)
        except FileNotFoundError:  # a writer has put another in its place
            continue


def _problems_of(folder: Path) -> list[str]:
    problems = []
    try:
        document = read_manifest(folder)
        for name in document["files"]:
            try:
                with verified(folder, name, document):
                    pass
            except PolyrankError as error:
                problems.append(str(error))
        if not problems:
            rows = open_matrix(folder).block.rows
            if (np.diff(rows) <= 0).any():
                problems.append(f"{folder / 'rows.npy'} is not in order; {REMEDY}")
    except PolyrankError as error:
        problems.append(str(error))
    return problems
