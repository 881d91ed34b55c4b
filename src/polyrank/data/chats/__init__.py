"""Own chats as they really come, to rows of dialogues: tables, JSON of conversations, exports of messengers and desks.

The road has four steps: the files of a place (``files``), their messages (``reading``, and a module for each form), who
spoke (``roles``) and when (``times``), and dialogues (``dialogues``). What is guessed on the way is in the report.
"""

from polyrank.data.chats.import_report import Chats, ChatsReport
from polyrank.data.chats.importer import GAP_HOURS, import_chats, write_dialogues

__all__ = ["GAP_HOURS", "Chats", "ChatsReport", "import_chats", "write_dialogues"]
