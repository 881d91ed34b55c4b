"""Read, import, split and write data. No torch here.

``read_examples`` and ``read_pool`` read polyrank's formats, and ``IMPORTERS`` published corpora. Every row becomes an
example, a counted exception, or an error with file and line. The distribution polyrank-chats turns exports of help
desks and messengers into rows of dialogues.
"""

from polyrank.data.candidate_lists import draw_candidates as draw_candidates
from polyrank.data.examples import Kind as Kind, read_examples as read_examples, write_examples as write_examples
from polyrank.data.frequent_replies import frequent_replies as frequent_replies
from polyrank.data.importers import IMPORTERS as IMPORTERS, Importer as Importer, import_examples as import_examples
from polyrank.data.pool import (
    import_pool as import_pool,
    read_pool as read_pool,
    text_id as text_id,
    write_pool as write_pool,
)
from polyrank.data.read_report import Loaded as Loaded, ReadReport as ReadReport
from polyrank.data.replies import read_replies as read_replies
from polyrank.data.speakers import choose_speaker as choose_speaker
from polyrank.data.splits import Split as Split, split as split, write_split as write_split
