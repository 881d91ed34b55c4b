"""Everything that is wrong with a local index, as sentences. No torch."""

import sqlite3
from pathlib import Path

import numpy as np

from polyrank.errors import PolyrankError
from polyrank.index.local import store
from polyrank.index.local.lock import acknowledged, check_acknowledged
from polyrank.index.local.matrix import REMEDY, open_matrix, read_manifest, verified
from polyrank.index.local.reader import LocalIndex
from polyrank.index.local.store import FILE


def local_problems(folder: Path) -> list[str]:
    """Everything that is wrong with a local index: every byte that matters is read."""
    try:
        connection = store.connect(folder, write=False)
    except PolyrankError as error:
        return [str(error)]
    expected = acknowledged(folder)
    problems: list[str] = []
    try:
        with store.transaction(connection, folder, write=False):
            meta = store.read_meta(connection, folder)
            faults = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
            problems += [f"{folder / FILE} is damaged ({fault}); {store.REMEDY}" for fault in faults if fault != "ok"]
            n, digest = 0, 0
            for row in store.scan_rows(connection, folder):
                n, digest = n + 1, digest + int.from_bytes(row.digest, "little")
            store.check_sum(folder, meta, n, digest)
            check_acknowledged(folder, meta.change, expected)
        problems += _matrix_problems(connection, folder)
    except PolyrankError as error:
        problems.append(str(error))
    finally:
        connection.close()
    if not problems:
        try:
            LocalIndex(folder).close()
        except PolyrankError as error:
            problems.append(str(error))
    return problems


def _matrix_problems(connection: sqlite3.Connection, folder: Path) -> list[str]:
    while True:
        name = store.read_meta(connection, folder).matrix
        if not name or not (folder / name).exists():
            return []  # derived, and made again from the truth
        try:
            return _problems_of(folder / name)
        except FileNotFoundError:  # a writer has replaced it
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
