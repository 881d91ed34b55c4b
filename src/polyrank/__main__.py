"""``python -m polyrank``."""

from polyrank.cli import main

main()
