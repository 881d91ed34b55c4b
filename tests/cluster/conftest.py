"""Tests of ``cluster/`` run where its distribution is installed: ``pip install -c constraints.txt -e ./cluster``."""

from importlib.metadata import entry_points

collect_ignore_glob = [] if entry_points(group="polyrank.extensions", name="ray") else ["test_*"]
