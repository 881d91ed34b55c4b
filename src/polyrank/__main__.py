"""``python -m polyrank``."""

from polyrank.cli import program

program()
