"""Tables of SQLite databases as chats and as replies; text exports of LINE and KakaoTalk."""

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from polyrank_chats import Chats, import_chats, read_texts
from polyrank_chats.errors import DataError, UsageError

MESSAGES = (
    "CREATE TABLE messages (id INTEGER PRIMARY KEY, thread TEXT, sent_at INTEGER, sender TEXT, body TEXT, avatar BLOB)",
    "INSERT INTO messages VALUES (1, 'a', 1714557600, 'Ann', 'Is it on?', X'FFD8'),"
    " (2, 'a', 1714557660, 'agent', 'It is ☃', NULL), (3, 'b', 1714557720, 'Ben', '', NULL),"
    " (4, 'b', 1714557780, 'Ben', 'My bill?', NULL), (5, 'b', 1714557840, 'agent', 'It is 10.', NULL)",
)
OTHERS = (
    'CREATE TABLE "strange ""name" (id INTEGER, text TEXT)',
    """INSERT INTO "strange ""name" VALUES (1, 'Restart the router.'), (2, 'Try port 2.'), (3, NULL)""",
    "CREATE VIEW late AS SELECT * FROM messages WHERE id > 3",
)


def database(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
    return path


def turns_of(chats: Chats) -> list[list[str]]:
    return [[f"{turn['speaker']}: {turn['text']}" for turn in row["turns"]] for row in chats.dialogues]


def test_the_only_table_of_a_database_is_read_without_changing_the_file(tmp_path: Path) -> None:
    path = database(tmp_path / "chats.db", *MESSAGES)
    before = path.read_bytes()
    found = import_chats(path)
    assert turns_of(found) == [["customer: Is it on?", "agent: It is ☃"], ["customer: My bill?", "agent: It is 10."]]
    assert [row["time"] for row in found.dialogues] == ["2024-05-01T10:00:00", "2024-05-01T10:03:00"]
    assert found.report.left_out == {"empty text": 1}
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["chats.db"]
    (tmp_path / "packed.gz").write_bytes(gzip.compress(before))
    assert import_chats(tmp_path / "packed.gz").dialogues == found.dialogues


def test_one_of_several_tables_is_named(tmp_path: Path) -> None:
    path = database(tmp_path / "x.sqlite", *MESSAGES, *OTHERS)
    listed = 'messages, strange "name, late$'
    with pytest.raises(UsageError, match=f"with 3 tables; choose one with the option sheet: {listed}"):
        import_chats(path)
    with pytest.raises(UsageError, match=f"has no table 'message'; it has {listed}"):
        import_chats(path, sheet="message")
    assert len(import_chats(path, sheet="messages").dialogues) == 2
    assert turns_of(import_chats(path, sheet="late")) == [["customer: My bill?", "agent: It is 10."]]
    column, rows = read_texts(path, sheet='strange "name')
    assert [row[column] for _, row in rows] == ["Restart the router.", "Try port 2.", None]


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        ((), "is a damaged SQLite database|is empty"),
        (("CREATE TABLE t (a)", "DROP TABLE t"), "is an SQLite database without tables"),
        (("CREATE TABLE t (sender, text)",), "holds no messages"),
    ],
)
def test_databases_without_messages(tmp_path: Path, statements: tuple[str, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        import_chats(database(tmp_path / "x.db", *statements))


def test_damaged_and_large_databases_are_refused(tmp_path: Path) -> None:
    path = database(tmp_path / "x.db", *MESSAGES)
    data = path.read_bytes()
    large = database(tmp_path / "y.db", *MESSAGES, "CREATE VIEW v AS SELECT a.* FROM messages a, messages, messages")
    with pytest.raises(DataError, match="unpacks to more than 9,000 bytes"):
        import_chats(large, sheet="v", max_bytes=9_000)
    path.write_bytes(data[:4096])
    with pytest.raises(DataError, match=r"x\.db: is a damaged SQLite database .*; restore or export it again"):
        import_chats(path)


def test_a_log_that_is_not_merged_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "live.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        with connection:
            for statement in MESSAGES:
                connection.execute(statement)
        with pytest.raises(DataError, match=r"recent rows are only in its log live\.db-wal; close the program"):
            import_chats(path)
    assert len(import_chats(path).dialogues) == 2  # the header still has the flag of a log


LINE = """[LINE] Chat history with Ann
Saved on: 2024/05/03 10:00

2024/05/01(Wed)
10:15\tAnn\tIs it on?
10:16\tKim\t"It is.

Try again"
10:17\tAnn\t[Photo]
10:18\tAnn left the chat.

2024/05/02(Thu)
午後9:05\tAnn\tMy bill?
午後9:06\tKim\tIt is 10.
"""
KAKAOTALK = """Ann 님과 카카오톡 대화
저장한 날짜 : 2024-05-03 15:45:00

--------------- 2024년 5월 1일 수요일 ---------------
[Ann] [오전 10:15] Is it on?
[Kim] [오전 10:16] It is.

Try again
[Ann] [오전 10:17] 사진
--------------- 2024년 5월 2일 목요일 ---------------
[Ann] [오후 9:05] My bill?
[Kim] [오후 9:06] It is 10.
"""
MOBILE = """Ann 님과 카카오톡 대화
2024년 5월 1일 오전 10:15, Ann : Is it on?
2024년 5월 1일 오전 10:16, Kim : It is.

Try again
2024년 5월 2일 오후 9:05, Ann : My bill?
2024년 5월 2일 오후 9:06, Kim : It is 10.
"""


IN_WORDS = {
    "2024년 5월 1일 수요일": "Wednesday, May 1, 2024",
    "2024년 5월 2일 목요일": "Thursday, May 2, 2024",
    "오전 10:15": "10:15 AM",
    "오후 9:05": "9:05 PM",
}
WITH_DOTS = {"/05/0": ".05.0", "(Wed)": " Wednesday", "(Thu)": " 木曜日"}
OF_THE_STATES = {
    "2024/05/01(Wed)": "Wed, 5/1/2024",
    "2024/05/02(Thu)": "Thu, 5/2/2024",
    "午後9:05": "9:05 PM",
    "午後9:06": "9:06 PM",
}


def changed(text: str, words: dict[str, str]) -> str:
    for old, new in words.items():
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(
    ("text", "form", "left_out"),
    [
        (LINE, "chat_log", {"attachment": 1, "system line": 1}),
        (changed(LINE, WITH_DOTS), "chat_log", {"attachment": 1, "system line": 1}),
        (changed(LINE, OF_THE_STATES), "chat_log", {"attachment": 1, "system line": 1}),
        (KAKAOTALK, "chat_log", {"attachment": 1}),
        (changed(KAKAOTALK, IN_WORDS), "chat_log", {"attachment": 1}),
        (MOBILE, "chat_log", {}),
    ],
)
def test_line_and_kakaotalk(tmp_path: Path, text: str, form: str, left_out: dict[str, int]) -> None:
    path = tmp_path / "chat.txt"
    path.write_text(text, "utf-8")
    found = import_chats(path, agent="Kim", date_order="month" if "5/1/" in text else None, skip_bad=True)
    assert found.report.forms == [form]
    assert turns_of(found) == [
        ["customer: Is it on?", "agent: It is.\n\nTry again"],
        ["customer: My bill?", "agent: It is 10."],
    ]
    assert [row["time"] for row in found.dialogues] == ["2024-05-01T10:15:00", "2024-05-02T21:05:00"]
    assert found.report.left_out == left_out
