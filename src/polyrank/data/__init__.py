"""Read, import, split and write data. No torch here.

``read_examples`` and ``read_pool`` read polyrank's formats, and ``IMPORTERS`` published corpora. Every row becomes an
example, a counted exception, or an error with file and line. The distribution polyrank-chats turns exports of help
desks and messengers into rows of dialogues.
"""

from polyrank.data.candidate_lists import draw_candidates
from polyrank.data.examples import Kind, read_examples, write_examples
from polyrank.data.frequent_replies import frequent_replies
from polyrank.data.importers import IMPORTERS, Importer, import_examples
from polyrank.data.pool import import_pool, read_pool, text_id, write_pool
from polyrank.data.read_report import Loaded, ReadReport
from polyrank.data.replies import read_replies
from polyrank.data.speakers import choose_speaker
from polyrank.data.splits import Split, split, write_split

__all__ = [
    "IMPORTERS",
    "Importer",
    "Kind",
    "Loaded",
    "ReadReport",
    "Split",
    "choose_speaker",
    "draw_candidates",
    "frequent_replies",
    "import_examples",
    "import_pool",
    "read_examples",
    "read_pool",
    "read_replies",
    "split",
    "text_id",
    "write_examples",
    "write_pool",
    "write_split",
]
