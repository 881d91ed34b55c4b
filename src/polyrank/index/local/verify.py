"""Finds everything that is wrong with a local index. No torch."""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np

from polyrank.errors import PolyrankError
from polyrank.index.local import store
from polyrank.index.local.lock import acknowledged_change, check_acknowledged
from polyrank.index.local.matrix import REMEDY, open_matrix, read_manifest, verified
from polyrank.index.local.reader import LocalIndex
from polyrank.loading.folders import INDEX_FILE


def local_problems(folder: Path) -> list[str]:
    """Everything that is wrong with a local index, one sentence each; reads every byte that matters."""
    problems: list[str] = []
    try:
        with closing(store.connect(folder, write=False)) as connection:
            expected = acknowledged_change(folder)
            with store.transaction(connection, folder, write=False):
                meta = store.read_meta(connection, folder)
                faults = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
                problems += [
                    f"{folder / INDEX_FILE} is damaged ({what}); {store.REMEDY}" for what in faults if what != "ok"
                ]
                for _ in store.scan_all_rows(connection, folder, meta):
                    pass
                check_acknowledged(folder, meta.change, expected)
            problems += _matrix_problems(connection, folder)
        if not problems:
            LocalIndex(folder).close()
    except PolyrankError as error:
        problems.append(str(error))
    return problems


def _matrix_problems(connection: sqlite3.Connection, folder: Path) -> list[str]:
    while True:
        name = store.read_meta(connection, folder).matrix
        if not name or not (folder / name).exists():
            return []  # derived: it can be rebuilt
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
        if not problems and (np.diff(open_matrix(folder).block.rows) <= 0).any():
            problems.append(f"{folder / 'rows.npy'} is not in ascending order; {REMEDY}")
    except PolyrankError as error:
        problems.append(str(error))
    return problems
