"""Turn exports of chats into rows of dialogues: tables, JSON of conversations, exports of messengers and help desks.

The import has four steps: list and open the files (``files``), read their messages (``reading``, and a module of
``forms`` for each form), determine speakers and times (``roles``, ``times``), and build dialogues (``dialogues``). The
report lists every guess.

>>> import tempfile
>>> from pathlib import Path
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder) / "export.csv"
...     _ = path.write_text("ticket,sender,message\\n7,Ann,My wifi is down\\n7,support,Restart it\\n")
...     import_chats(path).dialogues
[{'id': '7', 'turns': [{'speaker': 'customer', 'text': 'My wifi is down'}, {'speaker': 'agent', 'text': 'Restart it'}]}]
"""

from polyrank_chats.errors import ChatsError, DataError, MissingLibraryError, UsageError
from polyrank_chats.importer import import_chats
from polyrank_chats.output import write_dialogues
from polyrank_chats.report import Chats, Report
from polyrank_chats.texts_of_tables import read_texts

__all__ = [
    "Chats",
    "ChatsError",
    "DataError",
    "MissingLibraryError",
    "Report",
    "UsageError",
    "import_chats",
    "read_texts",
    "write_dialogues",
]
