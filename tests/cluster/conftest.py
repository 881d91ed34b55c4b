"""Tests of ``cluster/`` are deep, and need its distribution: ``pip install -c constraints.txt -e ./cluster``."""

from importlib.metadata import entry_points
from pathlib import Path

import pytest

collect_ignore_glob = [] if entry_points(group="polyrank.extensions", name="ray") else ["test_*"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.deep)
