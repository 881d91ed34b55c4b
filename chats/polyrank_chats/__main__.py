"""``python -m polyrank_chats``."""

from polyrank_chats.cli import main

main()
