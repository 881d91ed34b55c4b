"""Import chats as rows of dialogues: tables, JSON of conversations, exports of messengers and help desks.

The import has four steps: list and open the files (``members``, ``files``), read their messages (``reading``, and a
module for each form), determine speakers and times (``roles``, ``times``), and build dialogues (``dialogues``). The
report lists every guess.
"""

from polyrank.data.chats.import_report import Chats, ChatsReport
from polyrank.data.chats.importer import GAP_HOURS, import_chats, write_dialogues

__all__ = ["GAP_HOURS", "Chats", "ChatsReport", "import_chats", "write_dialogues"]
