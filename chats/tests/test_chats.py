"""Chat exports become dialogues: synthetic files of every format, valid and hostile ones."""

import datetime
import gzip
import io
import json
import subprocess
import sys
import unicodedata
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any

import openpyxl
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings, strategies as st

from polyrank_chats import Chats, import_chats, write_dialogues
from polyrank_chats.errors import DataError, MissingLibraryError, UsageError
from polyrank_chats.forms.tables import GONE
from polyrank_chats.messages import Message
from polyrank_chats.quotations import unquoted
from polyrank_chats.report import Report
from polyrank_chats.threads import threaded
from polyrank_chats.times import DateForm, date_form, read_time

Write = Callable[[str, Any], Path]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
Turns = list[tuple[str, str]]

HEADER = ("conversation_id", "created_at", "author", "role", "message")
ROWS = [
    ("t1", "2024-03-01 09:00:00", "Ann", "customer", "Mein Gerät spinnt, „Router“ blinkt"),
    ("t1", "2024-03-01 09:01:00", "Bob", "agent", "Bitte neu starten.\nDanach warten."),
    ("t2", "2024-03-01 09:01:30", "Cy", "customer", 'refund; please, "now" 😀'),
    ("t1", "2024-03-01 09:02:00", "Bob", "agent", "Geht es?"),
    ("t2", "2024-03-01 09:03:00", "Dee", "agent", "On its way"),
    ("t1", "2024-03-01 09:04:00", "Ann", "customer", "ja"),
]
T1: Turns = [
    ("customer", "Mein Gerät spinnt, „Router“ blinkt"),
    ("agent", "Bitte neu starten.\nDanach warten.\nGeht es?"),
    ("customer", "ja"),
]
T2: Turns = [("customer", 'refund; please, "now" 😀'), ("agent", "On its way")]


def csv_text(rows: list[tuple[str, ...]], separator: str = ",", end: str = "\n") -> str:
    cells = ([f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in row] for row in rows)
    return "".join(separator.join(row) + end for row in cells)


def turns(row: dict[str, Any]) -> Turns:
    return [(turn["speaker"], turn["text"]) for turn in row["turns"]]


def talk(chats: Chats) -> dict[str, Turns]:
    """The turns of each conversation, after a check that no message is lost."""
    report = chats.report
    kept = report.n_turns + report.n_joined
    assert report.n_messages == kept + sum(report.left_out.values()) + report.n_bad
    assert report.n_conversations == len(chats.dialogues) == len({row["id"] for row in chats.dialogues})
    assert sum(report.speakers.values()) == report.n_turns == sum(len(row["turns"]) for row in chats.dialogues)
    return {row["id"]: turns(row) for row in chats.dialogues}


# tables


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_csv_of_any_separator(write: Write, separator: str, end: str) -> None:
    found = import_chats(write("x.csv", csv_text([HEADER, *ROWS], separator, end)))
    assert talk(found) == {"t1": T1, "t2": T2}
    assert [row["time"] for row in found.dialogues] == ["2024-03-01T09:00:00", "2024-03-01T09:01:30"]
    assert (found.report.forms, found.report.n_joined, found.report.n_messages) == (["table"], 1, 6)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_encodings_with_a_byte_order_mark_or_zero_bytes(write: Write, encoding: str) -> None:
    assert talk(import_chats(write("x.csv", csv_text([HEADER, *ROWS]).encode(encoding)))) == {"t1": T1, "t2": T2}


@pytest.mark.parametrize(
    ("encoding", "question", "answer"),
    [
        ("cp1252", "Grüße – mein Gerät läuft nicht, „Größe“ fehlt für 5 €", "Bitte prüfen Sie das Gehäuse."),
        ("cp1252", "¿Cómo está mi envío? Está en camión…", "Señor, llegará mañana."),
        ("cp1252", "Don’t worry, we’ll fix it – café open at 9 …", "The price is €5 – incl. VAT."),
        ("cp1252", "Où êtes-vous ? Les paramètres sont à jour", "À bientôt, ça marche très bien"),
        ("cp1252", "Não consigo acessar a minha conta, você pode ajudar?", "Atenção: a informação não está disponível"),
        ("cp1252", "été chaud", "ok"),
        ("cp1250", "Nemůžu se přihlásit ke svému účtu", "Děkuji, už to funguje správně"),
        ("cp1250", "Nie mogę się zalogować na swoje konto", "Dziękuję, już działa prawidłowo"),
        ("cp1250", "Nem tudok bejelentkezni a fiókomba, kérem segítsen", "Egy hete várok rá, őszintén"),
        ("cp1254", "Hesabıma giriş yapamıyorum, yardımcı olur musunuz?", "Teşekkürler, şimdi çalışıyor"),
        ("cp1251", "Здравствуйте, мой роутер не работает", "Пожалуйста, перезагрузите его"),
        ("cp1251", "Не могу войти в свой аккаунт", "Спасибо, теперь всё работает, меня пустило"),
        ("shift_jis", "こんにちは。ルーターが動きません。", "電源を入れ直してください。"),
    ],
)
def test_older_encodings_are_detected_and_reported(write: Write, encoding: str, question: str, answer: str) -> None:
    rows = [("conversation", "sender", "text"), ("7", "customer", question), ("7", "agent", answer)]
    path = write("x.csv", csv_text(rows).encode(encoding))
    found = import_chats(path)
    assert talk(found) == {"7": [("customer", question), ("agent", answer)]}
    assert any("is not UTF-8; read as" in note for note in found.report.notes)
    assert talk(import_chats(path, encoding=encoding)) == talk(found)
    with pytest.raises(DataError, match="is not utf-8; give its encoding"):
        import_chats(path, encoding="utf-8")
    with pytest.raises(UsageError, match="encoding 'latin-99' is unknown"):
        import_chats(path, encoding="latin-99")


def test_a_few_lines_of_another_encoding_leave_a_file_utf_8(write: Write) -> None:
    rows = [("conversation", "sender", "text"), *((str(i // 2), "ab"[i % 2], f"Grüße {i}") for i in range(40))]
    lines = csv_text(rows).encode().split(b"\n")
    lines[12] = lines[12].decode().encode("cp1252")
    found = import_chats(write("x.csv", b"\n".join(lines)))
    texts = [text for turns in talk(found).values() for _, text in turns]
    assert sorted(texts) == sorted(f"Grüße {i}" for i in range(40))
    assert any("1 line not in UTF-8, the first is line 13; read as cp1252" in note for note in found.report.notes)


def sheet_bytes(*sheets: tuple[str, list[tuple[Any, ...]]]) -> bytes:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets:
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    stream = io.BytesIO()
    book.save(stream)
    return stream.getvalue()


@pytest.mark.parametrize("name", ["chats.xlsx", "chats.csv", "chats"])
def test_excel_under_any_name(write: Write, name: str) -> None:
    typed = [(a, datetime.datetime.fromisoformat(b), *rest) for a, b, *rest in ROWS]
    found = import_chats(
        write(name, sheet_bytes(("Empty", []), ("March", [HEADER, *typed, (None,) * 5]), ("x", [("a",)])))
    )
    assert talk(found) == {"t1": T1, "t2": T2}
    assert found.dialogues[0]["time"] == "2024-03-01T09:00:00"
    assert any("read 'March' of the sheets March, x" in note for note in found.report.notes)


def test_a_sheet_by_name_with_numbers_and_times(write: Write) -> None:
    rows = [
        ("Ticket", "Date", "Time", "Speaker", "Body"),
        (1, datetime.date(2024, 4, 3), datetime.time(9, 5), "client", 5),
        (1, datetime.date(2024, 4, 3), datetime.time(9, 4), "advisor", "how many?"),
    ]
    path = write("x.xlsx", sheet_bytes(("notes", [("a", "b"), (1, 2)]), ("log", rows)))
    assert talk(import_chats(path, sheet="log")) == {"1": [("agent", "how many?"), ("customer", "5")]}
    with pytest.raises(UsageError, match="no sheet 'logs'; it has notes, log"):
        import_chats(path, sheet="logs")
    assert (
        "x.xlsx: read 'log' of the sheets notes, log (choose others with the option sheet)"
        in import_chats(path).report.notes
    )
    with pytest.raises(DataError, match=r"no column has a usual name for the sender.*'a', 'b'"):
        import_chats(path, sheet="notes")


def test_parquet_flat_and_nested(tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {name: [row[i] for row in ROWS] for i, name in enumerate(HEADER)}
    columns["created_at"] = list(map(datetime.datetime.fromisoformat, columns["created_at"]))
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "x.parquet")
    assert talk(import_chats(tmp_path / "x.parquet")) == {"t1": T1, "t2": T2}
    records = [[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]] * 2
    pyarrow.parquet.write_table(pyarrow.table({"id": ["a", "b"], "messages": records}), tmp_path / "y.parquet")
    assert talk(import_chats(tmp_path / "y.parquet")) == {
        name: [("customer", "hi"), ("agent", "hello")] for name in "ab"
    }


@pytest.mark.parametrize("form", ["array", "lines", "gzip", "wrapped"])
def test_json_of_messages(write: Write, form: str) -> None:
    rows = [dict(zip(HEADER, row, strict=True)) for row in ROWS]
    lines = "\n".join(map(json.dumps, rows))
    content: Any = {
        "array": rows,
        "lines": lines,
        "gzip": gzip.compress(lines.encode()),
        "wrapped": {"data": rows, "n": 6},
    }[form]
    found = import_chats(write("x.json.gz" if form == "gzip" else "x.json", content))
    assert talk(found) == {"t1": T1, "t2": T2}


def test_named_columns_and_errors_for_missing_ones(write: Write) -> None:
    path = write("x.csv", "Vorgang;wann;wer;was\n1;1.2.2024 8:00;ACME;hallo\n1;1.2.2024 8:01;Kim;hi\n")
    named = {"conversation": "Vorgang", "time": "wann", "sender": "wer", "text": "was"}
    found = import_chats(path, **named, agent="acme")
    assert talk(found) == {"1": [("agent", "hallo"), ("customer", "hi")]}
    assert found.report.notes == []
    assert found.dialogues[0]["time"] == "2024-02-01T08:00:00"
    with pytest.raises(UsageError, match="has no column 'who'; it has 'Vorgang', 'wann', 'wer', 'was'"):
        import_chats(path, **named | {"sender": "who"})
    with pytest.raises(DataError, match="for the text among 'Vorgang', 'wann', 'wer', 'was'; name it"):
        import_chats(path, sender="wer")
    with pytest.raises(DataError, match="has no sender 'Bob'; its senders are 'ACME', 'Kim'"):
        import_chats(path, **named, agent=["ACME", "Bob"])


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("1,soon,agent,x", "'soon' is not a readable time; write times as 2024"),
        (",2024-01-01,agent,x", "no conversation in 'conversation'; fill it in or remove the row"),
        ("1,2024-01-01,,x", "no sender in 'sender'; fill it in or remove the row"),
        ("1,2024-01-01,agent,x,y,z", "6 cells, but the header names 4; check its separators and quotes"),
        ('1,2024-01-01,agent,"a" b', "not CSV: .*; check its quotes"),
        ('1,2024-01-01,agent,"a', "not CSV: .*; check its quotes"),
    ],
)
def test_bad_rows_have_numbers_and_are_skipped_on_request(write: Write, bad: str, problem: str) -> None:
    good = 'conversation,time,sender,text\n1,2024-01-01,customer,"hi\nthere"\n\n1,2024-01-01,agent,hello\n'
    path = write("x.csv", good + "1,2024-01-01,agent\n1,2024-01-01,agent,\n" + bad + "\n")
    with pytest.raises(DataError, match=rf"x\.csv:8: {problem}"):
        import_chats(path)
    found = import_chats(path, skip_bad=True)
    assert talk(found) == {"1": [("customer", "hi\nthere"), ("agent", "hello")]}
    assert (found.report.n_bad, found.report.left_out) == (1, {"empty text": 2})
    assert "x.csv:8: " in found.report.errors[0]
    assert "1 bad row left out (" in str(found.report)


@pytest.mark.parametrize(
    ("name", "said", "made"),
    [
        ("प्रिया शर्मा", "नमस्ते प्रिया शर्मा जी, धन्यवाद प्रिया", "नमस्ते {customer} जी, धन्यवाद {customer}"),
        ("राम", "रामायण राम", "रामायण {customer}"),
        ("राम सेठ", "राम सेठी राम सेठ", "{customer} सेठी {customer}"),
        ("रोहित", "नमस्ते रोहित", "नमस्ते {customer}"),
        ("مُحَمَّد", "أهلا مُحَمَّد", "أهلا {customer}"),
        ("กิตติ", "สวัสดีกิตติ ครับ", "สวัสดี{customer} ครับ"),
        ("İbrahim Kaya", "Merhaba İbrahim, İbrahim Kaya", "Merhaba {customer}, {customer}"),
        (
            unicodedata.normalize("NFD", "José Núñez"),
            "Hola José Núñez, José nuevo",
            "Hola {customer}, {customer} nuevo",
        ),
    ],
)
def test_signs_of_vowels_and_accents_are_parts_of_names(write: Write, name: str, said: str, made: str) -> None:
    texts = [(name, "hi"), ("Ben", said), (name, "ok")]
    rows = [{"conversation": "1", "sender": who, "text": text} for who, text in texts]
    (dialogue,) = import_chats(write("x.json", rows), agent=["Ben"]).dialogues
    assert [turn["text"] for turn in dialogue["turns"]] == ["hi", made, "ok"]


@pytest.mark.parametrize(("n", "rest"), [(20, "'c19';"), (21, "'c19' and 1 more;"), (30, "'c19' and 10 more;")])
def test_of_many_columns_twenty_are_named(write: Write, n: int, rest: str) -> None:
    names = [f"c{i}" for i in range(n)]
    path = write("x.csv", ",".join(names) + "\n" + ",".join("x" * n) + "\n")
    with pytest.raises(DataError, match=f"sender among 'c0', 'c1', .*{rest}"):
        import_chats(path)


def test_rows_after_a_separator_line_have_the_right_numbers(write: Write) -> None:
    text = "conversation;sender;text\n1;customer;hi, there\n1;agent;hello, you\n1;;x\n"
    path = write("x.csv", "sep=;\r\n" + text)
    with pytest.raises(DataError, match=r"x\.csv:5: no sender"):
        import_chats(path)
    assert talk(import_chats(path, skip_bad=True)) == {"1": [("customer", "hi, there"), ("agent", "hello, you")]}


def test_a_time_without_a_date(write: Write) -> None:
    path = write("x.csv", "chat,clock,sender,text\n1,10:15,a,x\n1,10:16,b,y\n")
    with pytest.raises(DataError, match=r"x\.csv:2: '10:15' has no date"):
        import_chats(path, time="clock")


def test_a_clock_next_to_a_date_is_not_reported_as_unreadable(write: Write) -> None:
    rows = "1;13.04.2025;10:15;a;x\n1;13.04.2025;10:16;b;y\n"
    notes = import_chats(write("x.csv", f"Ticket;Datum;Uhrzeit;Von;Nachricht\n{rows}")).report.notes
    assert any("time in 'Datum' and 'Uhrzeit'" in note for note in notes)
    assert not any("not readable" in note for note in notes)
    alone = import_chats(write("y.csv", "Ticket;Uhrzeit;Von;Nachricht\n1;10:15;a;x\n1;10:16;b;y\n")).report.notes
    assert any("column 'Uhrzeit' holds values that are not readable times" in note for note in alone)


def test_questions_and_answers(write: Write) -> None:
    rows = "How do I pay?,By card.,bills\nWhere?,,x\n<p>Who?</p>,<b>We</b> do,x\n,,\n"
    found = import_chats(write("faq.csv", f"Question,Answer,Topic\n{rows}"))
    assert talk(found) == {
        "faq:2": [("customer", "How do I pay?"), ("agent", "By card.")],
        "faq:4": [("customer", "Who?"), ("agent", "We do")],
    }
    assert found.report.left_out == {"unanswered message": 1}
    path = write("no.csv", f"Question,Answer,Topic\n{rows},Ours,x\n")
    with pytest.raises(DataError, match=r"no\.csv:6: no text in 'Question'"):
        import_chats(path)
    assert len(talk(import_chats(path, skip_bad=True))) == 2
    path = write("days.csv", "question,answer,asked on\na?,b,2024-05-13\nc?,d,2024-06-01\n")
    found = import_chats(path)
    assert [row["time"][:10] for row in found.dialogues] == ["2024-05-13", "2024-06-01"]
    assert any("begin at the time in 'asked on'" in note for note in found.report.notes)
    assert found.report.forms == ["questions"]
    own = write("x.json", {"faqs": [{"id": 3, "Thema": "a?", "Text": "b"}]})
    found = import_chats(write("y.json", json.loads(own.read_text())["faqs"]), question="Thema", answer="Text")
    assert talk(found) == {"3": [("customer", "a?"), ("agent", "b")]}
    wrapped = write("z.json", {"faqs": [{"id": 3, "question": "a?", "answer": "b"}, {"question": "c?", "answer": "d"}]})
    assert len(talk(import_chats(wrapped))) == 2
    tickets = write("t.csv", "ticket,question,answer\nT1,a?,b\nT2,c?,d\n")
    assert [*talk(import_chats(tickets, question="question", answer="answer", conversation="ticket"))] == ["T1", "T2"]
    for option in ({"sender": "ticket"}, {"text": "ticket"}):
        with pytest.raises(UsageError, match="no column 'ticket'"):
            import_chats(tickets, question="question", answer="answer", **option)
    with pytest.raises(UsageError, match="no column 'nosuch'"):
        import_chats(tickets, question="question", answer="answer", conversation="nosuch")


# nested JSON


def test_fields_of_messages_are_recognized_in_any_spelling(write: Write) -> None:
    messages = [{"Sender_Name": "Ann", "Message_Text": "hi"}, {"Sender_Name": "Bob", "Message_Text": "hello"}]
    found = import_chats(write("x.json", [{"id": 7, "messages": messages}, {"id": 8, "messages": messages}]))
    assert talk(found) == {name: [("Ann", "hi"), ("Bob", "hello")] for name in ("7", "8")}


def test_openai_records(write: Write) -> None:
    rows = [
        {
            "messages": [
                {"role": "system", "content": "You are kind."},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What is "},
                        {"type": "text", "text": "this?"},
                        {"type": "image_url", "image_url": {"url": "x"}},
                    ],
                },
                {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]},
                {"role": "tool", "content": "{}"},
                {"role": "assistant", "content": "A router."},
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            ]
        }
    ] * 2
    path = write("x.jsonl", "\n".join(map(json.dumps, rows)))
    found = import_chats(path)
    said = [("customer", "What is this?"), ("agent", "A router.")]
    assert talk(found) == {"x:1": said, "x:2": said}
    assert found.report.left_out == {"system line": 4, "empty text": 2, "attachment": 2}


def test_sharegpt_and_bare_lists(write: Write) -> None:
    record = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}, {"from": "human", "value": "bye"}]
    said = [("customer", "hi"), ("agent", "hello"), ("customer", "bye")]
    shapes: list[Any] = [
        [{"id": "a", "conversations": record}],
        {"ok": True, "response": {"page": 1, "items": [{"id": "a", "messages": record}]}},
        {"a": record},
        {"a": {"messages": record}},
        {"conversations": [{"id": "a", "turns": record}]},
    ]
    for shape in shapes:
        assert talk(import_chats(write("x.json", shape))) == {"a": said}
    assert talk(import_chats(write("x.json", [record, record]))) == {"x:1": said, "x:2": said}
    assert talk(import_chats(write("x.jsonl", json.dumps(record) + "\n" + json.dumps(record)))) == {
        "x:1": said,
        "x:2": said,
    }
    assert talk(import_chats(write("x.json", record)))["x:1"] == said


def test_zendesk(write: Write) -> None:
    def comment(author: int, body: str, minute: int, public: bool = True) -> dict[str, Any]:
        at = f"2024-05-01T10:{minute:02}:00Z"
        return {
            "id": minute,
            "author_id": author,
            "body": body,
            "html_body": f"<p>{body}</p>",
            "public": public,
            "created_at": at,
        }

    ticket = {
        "id": 35,
        "requester_id": 1,
        "description": "My order\nis late",
        "subject": "late",
        "comments": [
            comment(1, "My order\nis late", 0),
            comment(9, "look at this", 1, public=False),
            comment(2, "Sorry!", 2),
        ],
    }
    found = import_chats(write("x.jsonl", json.dumps(ticket) + "\n" + json.dumps(ticket | {"id": 36})))
    assert talk(found) == {name: [("customer", "My order\nis late"), ("agent", "Sorry!")] for name in ("35", "36")}
    assert found.report.left_out == {"internal note": 2}
    users = [{"id": 1, "name": "Ann", "role": "end-user"}, {"id": 2, "name": "Bob", "role": "agent"}]
    found = import_chats(write("y.json", {"tickets": [ticket], "users": users}))
    assert talk(found)["35"] == [("customer", "My order\nis late"), ("agent", "Sorry!")]
    assert found.dialogues[0]["time"] == "2024-05-01T10:00:00"


def test_intercom(write: Write) -> None:
    def part(kind: str, who: str, name: str, body: str | None, at: int) -> dict[str, Any]:
        return {"part_type": kind, "body": body, "created_at": at, "author": {"type": who, "id": name, "name": name}}

    parts = [
        part("comment", "bot", "Fin", "<p>One moment.</p>", 1714557660),
        part("assignment", "admin", "Bob", None, 1714557700),
        part("note", "admin", "Bob", "<p>VIP</p>", 1714557710),
        part("comment", "admin", "Bob", "<div>Try <b>again</b> &amp; wait<br/>please</div>", 1714557720),
        part("comment", "user", "Ann", '<p>ok</p><img src="x">', 1714557780),
    ]
    row = {
        "type": "conversation",
        "id": "77",
        "created_at": 1714557600,
        "source": {
            "type": "conversation",
            "body": "<p>It fails</p>",
            "author": {"type": "user", "id": "Ann", "name": "Ann"},
        },
        "conversation_parts": {"type": "conversation_part.list", "conversation_parts": parts, "total_count": 5},
    }
    found = import_chats(write("x.json", {"type": "conversation.list", "conversations": [row]}))
    said = [("customer", "It fails"), ("bot", "One moment."), ("agent", "Try again & wait\nplease"), ("customer", "ok")]
    assert talk(found) == {"77": said}
    assert found.report.left_out == {"empty text": 1, "internal note": 1}
    assert talk(import_chats(write("x.json", row))) == {"77": said}


def test_freshdesk(write: Write) -> None:
    ticket = {
        "id": 5,
        "requester_id": 11,
        "description": "<div>Bill is wrong</div>",
        "description_text": "Bill is wrong",
        "created_at": "2024-05-01T10:00:00Z",
        "conversations": [
            {
                "body": "<p>Which?</p>",
                "body_text": "Which?",
                "incoming": False,
                "private": False,
                "user_id": 3,
                "created_at": "2024-05-01T11:00:00Z",
            },
            {
                "body": "x",
                "body_text": "look",
                "incoming": False,
                "private": True,
                "user_id": 3,
                "created_at": "2024-05-01T11:01:00Z",
            },
            {
                "body": "May",
                "body_text": "May",
                "incoming": True,
                "private": False,
                "user_id": 11,
                "created_at": "2024-05-01T12:00:00Z",
            },
        ],
    }
    found = import_chats(write("x.json", [ticket]))
    assert talk(found) == {"5": [("customer", "Bill is wrong"), ("agent", "Which?"), ("customer", "May")]}


def test_one_stream_of_json_is_divided(write: Write) -> None:
    def line(name: str, text: str, at: str, bot: bool = False) -> dict[str, Any]:
        return {"type": "Default", "timestamp": at, "content": text, "author": {"name": name, "isBot": bot}}

    discord = {
        "channel": {"name": "help"},
        "messages": [
            line("Ann", "hi", "2024-05-01T10:00:00+02:00"),
            line("Ben", "yo", "2024-05-01T10:01:00+02:00"),
            line("Ann", "new day", "2024-05-02T10:00:00+02:00"),
            line("Ben", "indeed", "2024-05-02T10:01:00+02:00"),
        ],
    }
    found = import_chats(write("help.json", discord))
    assert talk(found) == {"help:1": [("Ann", "hi"), ("Ben", "yo")], "help:2": [("Ann", "new day"), ("Ben", "indeed")]}
    assert found.dialogues[0]["time"] == "2024-05-01T08:00:00"
    messenger = {
        "participants": [{"name": "Ann"}],
        "messages": [
            {"sender_name": "Zo\u00c3\u00ab", "timestamp_ms": 1714557660000, "content": "gr\u00c3\u00bc\u00c3\u009fe"},
            {"sender_name": "Ann", "timestamp_ms": 1714557600000, "content": "hi"},
            {"sender_name": "Ann", "timestamp_ms": 1714557500000, "photos": [{"uri": "x"}]},
        ],
    }
    found = import_chats(write("m.json", messenger))
    assert talk(found) == {"m:1": [("Ann", "hi"), ("Zoë", "grüße")]}
    assert found.report.left_out == {"attachment": 1}


def test_chatgpt_export_follows_the_current_branch(write: Write) -> None:
    def node(name: str, parent: str | None, role: str, text: str) -> dict[str, Any]:
        return {
            "id": name,
            "parent": parent,
            "message": {"author": {"role": role}, "content": {"content_type": "text", "parts": [text]}},
        }

    nodes = [
        node("1", None, "system", ""),
        node("2", "1", "user", "old"),
        node("3", "1", "user", "new"),
        node("4", "3", "assistant", "ok"),
    ]
    row = {"id": "c", "create_time": 1714557600.5, "mapping": {n["id"]: n for n in nodes}, "current_node": "4"}
    found = import_chats(write("conversations.json", [row, row | {"id": "d"}]))
    assert talk(found) == {name: [("customer", "new"), ("agent", "ok")] for name in "cd"}


def test_the_same_id_twice(write: Write) -> None:
    def record(*texts: str) -> dict[str, Any]:
        return {"id": 1, "turns": [{"speaker": "ab"[i % 2], "text": text} for i, text in enumerate(texts)]}

    found = import_chats(write("x.json", [record("hi", "yo"), record("hi", "yo"), record("other", "one")]))
    assert list(talk(found).values()) == [[("a", "hi"), ("b", "yo")], [("a", "other"), ("b", "one")]]
    assert found.report.left_out == {"repeated message": 2}


# messengers


def slack_files(write: Write) -> None:
    write(
        "export/users.json",
        [
            {"id": "U1", "name": "ann", "profile": {"display_name": "Ann"}},
            {"id": "U2", "name": "bob", "real_name": "Bob B"},
        ],
    )
    write("export/channels.json", [{"id": "C1", "name": "help"}])
    day = 1714557600
    write(
        "export/help/2024-05-01.json",
        [
            {
                "type": "message",
                "subtype": "channel_join",
                "user": "U1",
                "text": "<@U1> has joined",
                "ts": f"{day}.000100",
            },
            {
                "type": "message",
                "user": "U1",
                "text": "is &lt;vpn&gt; down <@U2>? see <https://x.org|the page> in <#C1|help> <!here>",
                "ts": f"{day + 1}.000100",
                "thread_ts": f"{day + 1}.000100",
            },
            {"type": "message", "user": "U2", "text": "lunch?", "ts": f"{day + 2}.000100"},
            {"type": "message", "user": "U1", "text": "yes", "ts": f"{day + 3}.000100"},
            {
                "type": "message",
                "user": "U2",
                "text": "fixed &amp; done",
                "ts": f"{day + 9000}.000100",
                "thread_ts": f"{day + 1}.000100",
            },
            {"type": "message", "user": "U2", "text": "", "files": [{"id": "F"}], "ts": f"{day + 9001}.000100"},
        ],
    )
    write(
        "export/help/2024-05-02.json",
        [
            {
                "type": "message",
                "user": "U1",
                "text": "thanks",
                "ts": f"{day + 86400}.000100",
                "thread_ts": f"{day + 1}.000100",
            },
            {
                "type": "message",
                "user": "U3",
                "text": "morning",
                "ts": f"{day + 86401}.0",
                "user_profile": {"real_name": "Cy"},
            },
            {"type": "message", "user": "U1", "text": "hey", "ts": f"{day + 86402}.0"},
        ],
    )
    write("export/quiet/2024-05-02.json", "[]")


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_slack(write: Write, tmp_path: Path, form: str) -> None:
    slack_files(write)
    source = tmp_path / "export"
    if form == "zip":
        source = tmp_path / "export.zip"
        with zipfile.ZipFile(source, "w") as archive:
            for path in sorted((tmp_path / "export").rglob("*.json")):
                archive.write(path, path.relative_to(tmp_path / "export"))
    found = import_chats(source)
    thread = [
        ("Ann", "is <vpn> down @{name}? see the page in #help @here"),
        ("Bob B", "fixed & done"),
        ("Ann", "thanks"),
    ]
    assert talk(found) == {
        "help/1714557601.000100": thread,
        "help:1": [("Bob B", "lunch?"), ("Ann", "yes")],
        "help:2": [("Cy", "morning"), ("Ann", "hey")],
    }
    assert found.report.left_out == {"system line": 1, "attachment": 1}
    assert talk(import_chats(source, agent="u2"))["help:1"] == [("agent", "lunch?"), ("customer", "yes")]


@pytest.mark.deep
def test_the_time_to_read_slack_grows_with_the_number_of_files(write: Write, tmp_path: Path) -> None:
    slack_files(write)
    for number in range(3000):
        write(f"export/quiet{number}/2024-05-02.json", "[]")
    started = process_time()
    assert len(import_chats(tmp_path / "export").dialogues) == 3
    assert process_time() - started < 15


def test_one_day_of_slack(write: Write, tmp_path: Path) -> None:
    slack_files(write)
    found = import_chats(tmp_path / "export/help/2024-05-02.json")
    assert talk(found)["2024-05-02:1"] == [("Cy", "morning"), ("U1", "hey")]


@pytest.mark.parametrize("all_chats", [False, True])
def test_telegram(write: Write, all_chats: bool) -> None:
    def line(number: int, name: str | None, text: Any, at: str, **more: Any) -> dict[str, Any]:
        return {
            "id": number,
            "type": "message",
            "date": at,
            "from": name,
            "from_id": f"user{len(name or '')}",
            "text": text,
            **more,
        }

    chat = {
        "name": "Wifi help",
        "type": "private_group",
        "id": 5,
        "messages": [
            {
                "id": 1,
                "type": "service",
                "date": "2024-05-01T10:00:00",
                "actor": "Ann",
                "actor_id": "user3",
                "action": "create_group",
            },
            line(2, "Ann", ["see ", {"type": "link", "text": "x.org"}, " 🙂"], "2024-05-01T10:00:01"),
            line(3, "Ben", "", "2024-05-01T10:00:02", photo="a.jpg"),
            line(4, "Ben", "שלום", "2024-05-01T10:00:03", photo="a.jpg"),
            line(5, None, "gone", "2024-05-01T23:00:00"),
            line(6, "Ann", "who?", "2024-05-01T23:01:00"),
        ],
    }
    found = import_chats(
        write("result.json", {"about": "", "chats": {"about": "", "list": [chat]}} if all_chats else chat)
    )
    assert talk(found) == {
        "Wifi help:1": [("Ann", "see x.org 🙂"), ("Ben", "שלום")],
        "Wifi help:2": [("user0", "gone"), ("Ann", "who?")],
    }
    assert (found.report.forms, found.report.left_out) == (["conversations"], {"system line": 1, "attachment": 1})


WHATSAPP = {
    "android us": """12/31/23, 9:15\u202fPM - Messages and calls are end-to-end encrypted.
12/31/23, 9:15\u202fPM - Ann: hello
second line: yes
12/31/23, 9:16\u202fPM - Ben B.: <Media omitted>
12/31/23, 9:17\u202fPM - Ben B.: hi 😀
1/1/24, 12:05\u202fAM - Ann: This message was deleted""",
    "android de": """31.12.23, 21:15 - Nachrichten sind Ende-zu-Ende-verschlüsselt.
31.12.23, 21:15 - Ann: hello
second line: yes
31.12.23, 21:16 - Ben B.: <Medien ausgeschlossen>
31.12.23, 21:17 - Ben B.: hi 😀
01.01.24, 00:05 - Ann: Du hast diese Nachricht gelöscht.""",
    "iphone de": """\u200e[31.12.23, 21:15:03] Gruppe: \u200eNachrichten und Anrufe sind Ende-zu-Ende-verschlüsselt.
[31.12.23, 21:15:03] Ann: hello
second line: yes
\u200e[31.12.23, 21:16:00] Ben B.: \u200eBild weggelassen
[31.12.23, 21:17:00] Ben B.: hi 😀
[01.01.24, 00:05:00] Ann: \u200eDiese Nachricht wurde gelöscht.""",
    "iphone us": """[12/31/23, 9:15:03\u202fPM] ~\u202fGroup: \u200eMessages and calls are end-to-end encrypted.
[12/31/23, 9:15:03\u202fPM] Ann: hello
second line: yes
\u200e[12/31/23, 9:16:00\u202fPM] Ben B.: \u200e<attached: 00000012-PHOTO-2023-12-31.jpg>
[12/31/23, 9:17:00\u202fPM] ~\u202fBen B.: hi 😀
[1/1/24, 12:05:00\u202fAM] Ann: \u200eThis message was deleted.""",
    "android es": """31/12/23, 9:15 p. m. - Los mensajes están cifrados de extremo a extremo.
31/12/23, 9:15 p. m. - Ann: hello
second line: yes
31/12/23, 9:16 p. m. - Ben B.: IMG-20231231-WA0001.jpg (archivo adjunto)
31/12/23, 9:17 p. m. - Ben B.: hi 😀
1/1/24, 12:05 a. m. - Ann: Eliminaste este mensaje.""",
    "android fi": """31.12.2023 klo 21.15 - Viestit ovat salattuja.
31.12.2023 klo 21.15 - Ann: hello
second line: yes
31.12.2023 klo 21.16 - Ben B.: <Media jätettiin pois>
31.12.2023 klo 21.17 - Ben B.: hi 😀
1.1.2024 klo 0.05 - Ann: null""",
    "android nl": """31-12-2023 21:15 - Berichten zijn versleuteld.
31-12-2023 21:15 - Ann: hello
second line: yes
31-12-2023 21:16 - Ben B.: <Media weggelaten>
31-12-2023 21:17 - Ben B.: hi 😀
01-01-2024 00:05 - Ann: Dit bericht is verwijderd""",
    "android iso": """2023-12-31, 9:15 p.m. - Encrypted.
2023-12-31, 9:15 p.m. - Ann: hello
second line: yes
2023-12-31, 9:16 p.m. - Ben B.: <Media omitted>
2023-12-31, 9:17 p.m. - Ben B.: hi 😀
2024-01-01, 12:05 a.m. - Ann: You deleted this message""",
    "iphone zh": """[2023/12/31 下午9:15:03] 群: \u200e消息和通话已进行端到端加密。
[2023/12/31 下午9:15:03] Ann: hello
second line: yes
[2023/12/31 下午9:16:03] Ben B.: \u200e图片已忽略
[2023/12/31 下午9:17:03] Ben B.: hi 😀
[2024/1/1 上午12:05:03] Ann: \u200eThis message was deleted.""",
    "android ar": """\u200f٣١/١٢/٢٠٢٣، ٩:١٥ م - الرسائل مشفرة.
\u200f٣١/١٢/٢٠٢٣، ٢١:١٥ - Ann: hello
second line: yes
\u200f٣١/١٢/٢٠٢٣، ٢١:١٦ - Ben B.: <تم استبعاد الوسائط>
\u200f٣١/١٢/٢٠٢٣، ٢١:١٧ - Ben B.: hi 😀
\u200f٠١/٠١/٢٠٢٤، ٠٠:٠٥ - Ann: null""",
}


@pytest.mark.parametrize("name", WHATSAPP)
def test_whatsapp(write: Write, name: str) -> None:
    found = import_chats(write("chat.txt", WHATSAPP[name]))
    assert talk(found) == {"chat:1": [("Ann", "hello\nsecond line: yes"), ("Ben B.", "hi 😀")]}
    assert found.dialogues[0]["time"][:16] == "2023-12-31T21:15"
    assert sum(found.report.left_out.values()) == 3
    assert found.report.left_out["deleted message"] == 1


@pytest.mark.parametrize(
    "mark", [" <This message was edited>", " \u200e<Diese Nachricht wurde bearbeitet.>", " <Se editó este mensaje.>"]
)
def test_marks_of_edited_messages_are_not_text(write: Write, mark: str) -> None:
    chat = f"1/2/24, 9:15 - Ann: hi <3{mark}\n1/2/24, 9:16 - Ben: <b> is bold"
    assert talk(import_chats(write("chat.txt", chat))) == {"chat:1": [("Ann", "hi <3"), ("Ben", "<b> is bold")]}


def test_whatsapp_on_both_sides_of_a_silence_and_out_of_its_zip(tmp_path: Path) -> None:
    text = (
        "[03/04/2024, 09:00:00] Ann: a\n[03/04/2024, 09:00:30] Ben: b \u200e<This message was edited>\n"
        "[04/04/2024, 09:00:00] Ann: https://x.org: c\n[04/04/2024, 09:00:20] Ben: d <3\n"
        "[04/04/2024, 09:00:25] Ben: e\n"
    )
    with zipfile.ZipFile(tmp_path / "WhatsApp Chat - Ann.zip", "w") as archive:
        archive.writestr("_chat.txt", text)
        archive.writestr("00001-PHOTO.jpg", b"\xff\xd8")
    found = import_chats(tmp_path / "WhatsApp Chat - Ann.zip", keep_personal=True)
    first, second = talk(found).values()
    assert first == [("Ann", "a"), ("Ben", "b")]
    assert second == [("Ann", "https://x.org: c"), ("Ben", "d <3\ne")]
    assert list(talk(found)) == ["WhatsApp Chat - Ann:1", "WhatsApp Chat - Ann:2"]
    assert [row["time"] for row in found.dialogues] == ["2024-04-03T09:00:00", "2024-04-04T09:00:00"]
    assert len(import_chats(tmp_path / "WhatsApp Chat - Ann.zip", gap=48).dialogues) == 1
    assert any("skipped 1 other file" in note for note in found.report.notes)


def test_captions_stay_and_subjects_are_not_senders(write: Write) -> None:
    text = (
        '12/31/23, 9:15 PM - Ann changed the subject from "a: b" to "c: d"\n'
        "12/31/23, 9:15 PM - Ann: IMG-1.jpg (file attached)\nlook at this\n"
        "12/31/23, 9:16 PM - Ben: nice\n"
    )
    found = import_chats(write("x.txt", text))
    assert talk(found) == {"x:1": [("Ann", "look at this"), ("Ben", "nice")]}
    assert found.report.left_out == {"system line": 1}


def test_transcripts(write: Write) -> None:
    text = "Agent: hello\nhow are you?\nAnn: fine:\n\n[10:15] Agent: bye\nAnn: bye\n"
    first = [("agent", "hello\nhow are you?"), ("customer", "fine:")]
    assert talk(import_chats(write("x.txt", text))) == {"x:1": first, "x:2": [("agent", "bye"), ("customer", "bye")]}
    for rule in ("-----", "===", "* * *", "~~~~"):
        assert talk(import_chats(write("x.txt", text.replace("\n\n", f"\n{rule}\n")))).keys() == {"x:1", "x:2"}
    spaced = text.replace("\n", "\n\n").replace("\n\n\n", "\n\n")
    with pytest.raises(DataError, match=r"x\.txt:3: does not begin with a name"):
        import_chats(write("x.txt", spaced))
    assert talk(import_chats(write("x.txt", spaced), skip_bad=True)) == {
        "x": [("agent", "hello"), ("customer", "fine:"), ("agent", "bye"), ("customer", "bye")]
    }


def test_replies_to_replies_are_a_conversation(write: Write) -> None:
    header = ("tweet_id", "author_id", "inbound", "created_at", "text", "response_tweet_id", "in_response_to_tweet_id")
    rows = [
        ("3", "ACME", "False", "Tue Oct 31 22:12:00 +0000 2017", "DM us", "", "2"),
        ("2", "115", "True", "Tue Oct 31 22:11:00 +0000 2017", "it fails", "3", "1.0"),
        ("1", "ACME", "False", "Tue Oct 31 22:10:00 +0000 2017", "all well?", "2", ""),
        ("8", "ACME", "False", "Tue Oct 31 22:11:30 +0000 2017", "sorry", "", "7"),
        ("7", "116", "True", "Tue Oct 31 22:11:20 +0000 2017", "hey", "8", ""),
    ]
    found = import_chats(write("twcs.csv", csv_text([header, *rows])))
    assert talk(found) == {
        "1": [("agent", "all well?"), ("customer", "it fails"), ("agent", "DM us")],
        "7": [("customer", "hey"), ("agent", "sorry")],
    }
    assert found.dialogues[0]["time"] == "2017-10-31T22:10:00"


def test_replies_refer_to_messages_of_their_own_file(write: Write, tmp_path: Path) -> None:
    start = "id,reply_to,sender,text\n1,,Ann,a\n2,,Ben,b\n"
    write("all/x.csv", start + "3,1,Cy,to a\n4,2,Cy,to b\n")
    write("all/y.csv", start + "3,2,Cy,to b\n4,1,Cy,to a\n")
    found = talk(import_chats(tmp_path / "all"))
    assert list(found) == ["x/1", "x/2", "y/1", "y/2"]
    assert all(answer == f"to {question}" for (_, question), (_, answer) in found.values())


def test_a_long_chain_of_replies_is_followed_once() -> None:
    numbers = [*range(1, 2000)]
    chain = [Message("", "", "Ann", "hi", id=str(n), answers=(str(n - 1),)) for n in [*numbers, *reversed(numbers)]]
    started = process_time()
    said = threaded(chain, Report())
    assert {each.conversation for each in said} == {"1"}
    assert process_time() - started < 5


@pytest.mark.parametrize("line", ["<someone@example.org>, " * 20_000, "On " + "x wrote " * 20_000])
def test_long_lines_of_mails_take_linear_time(line: str) -> None:
    started = process_time()
    assert unquoted(f"hello\n{line}\nbye") == f"hello\n{line.rstrip()}\nbye"
    assert process_time() - started < 5


def test_messages_that_answer_each_other_are_one_conversation() -> None:
    circle = [Message("", "", "Ann", "hi", id=one, answers=(other,)) for one, other in ("ab", "bc", "ca")]
    said = threaded(circle, Report())
    assert len({each.conversation for each in said}) == 1
    assert len(said) == 3


# from messages to dialogues


def messages_file(write: Write, *rows: tuple[str, ...], header: str = "conversation,time,sender,text") -> Path:
    return write("x.csv", csv_text([tuple(header.split(",")), *rows]))


def test_rows_are_sorted_by_time_and_equal_times_keep_their_order(write: Write) -> None:
    at = "2024-01-01T10:0{}:00".format
    rows = [
        ("1", at(3), "b", "4"),
        ("1", at(1), "a", "1"),
        ("1", at(2), "b", "2"),
        ("1", at(2), "a", "3"),
        ("1", at(1), "a", "1"),
    ]
    found = import_chats(messages_file(write, *rows))
    assert talk(found) == {"1": [("a", "1"), ("b", "2"), ("a", "3"), ("b", "4")]}
    assert found.report.left_out == {"repeated message": 1}
    newest_first = [("1", at(9), "b", "4"), ("1", at(5), "a", "3"), ("1", at(5), "b", "2"), ("1", at(5), "a", "1")]
    assert [text for _, text in talk(import_chats(messages_file(write, *newest_first)))["1"]] == ["1", "2", "3", "4"]


def test_joining_is_by_sender_not_by_role(write: Write) -> None:
    rows = [("1", "Ann", "user", "a"), ("1", "Bob", "agent", "b"), ("1", "Cy", "agent", "c"), ("1", "Cy", "agent", "d")]
    path = messages_file(write, *rows, header="conversation,name,role,text")
    assert talk(import_chats(path)) == {"1": [("customer", "a"), ("agent", "b"), ("agent", "c\nd")]}
    assert import_chats(path).report.n_joined == 1
    for agent in ("Bob", "bob ", ["Bob"]):
        named = import_chats(path, agent=agent, customer="Cy")
        assert [who for who, _ in talk(named)["1"]] == ["customer", "agent", "customer"]
    assert [who for who, _ in talk(import_chats(path, agent="AGENT"))["1"]] == ["customer", "agent", "agent"]


@pytest.mark.parametrize(
    ("senders", "speakers"),
    [
        (("Customer Service", "Ann"), ("agent", "customer")),
        (("user", "bot"), ("customer", "agent")),
        (("visitor", "bot", "operator"), ("customer", "bot", "agent")),
        (("Ann", "Ben"), ("Ann", "Ben")),
        (("agent 1", "agent 2"), ("agent 1", "agent 2")),
    ],
)
def test_agents_are_recognized_by_usual_words(
    write: Write, senders: tuple[str, ...], speakers: tuple[str, ...]
) -> None:
    rows = [("1", "2024-01-01", sender, str(i)) for i, sender in enumerate(senders)]
    found = import_chats(messages_file(write, *rows))
    assert tuple(who for who, _ in talk(found)["1"]) == speakers
    assert any(
        ("agents by role or name" if "agent" in speakers else "no agent found") in note for note in found.report.notes
    )


@pytest.mark.parametrize(("column", "values"), [("inbound", ("true", "false")), ("is_agent", ("0", "1"))])
def test_agents_are_recognized_by_a_column_of_yes_and_no(write: Write, column: str, values: tuple[str, str]) -> None:
    rows = [("1", "x", values[0], "a"), ("1", "y", values[1], "b")]
    found = import_chats(messages_file(write, *rows, header=f"conversation,author,{column},text"))
    assert talk(found) == {"1": [("customer", "a"), ("agent", "b")]}


@pytest.mark.parametrize(
    ("column", "gone", "kept"),
    [
        ("deleted", "true", "false"),
        ("is_deleted", "1", "0"),
        ("deletedAt", "2024-05-01 11:00", ""),
        ("deleted_at", "1714557600", "NULL"),
        ("deleted_at", "2024-05-01T11:00:00Z", "0000-00-00 00:00:00"),
    ],
)
def test_rows_marked_as_deleted_are_left_out(write: Write, column: str, gone: str, kept: str) -> None:
    rows = [f"1,Ann,hi,{kept}", f"1,Agent,oops,{gone}", f"1,Agent,hello,{kept}", f"1,Ann,thanks,{kept}"]
    found = import_chats(write("x.csv", "\n".join((f"ticket,sender,text,{column}", *rows))))
    assert talk(found) == {"1": [("customer", "hi"), ("agent", "hello"), ("customer", "thanks")]}
    assert found.report.left_out == {"deleted message": 1}


def test_the_roles_of_columns_are_reported(write: Write) -> None:
    rows = [("1", "x", "true", "a"), ("1", "y", "false", "b")]
    found = import_chats(messages_file(write, *rows, header="Chat,nick,From_Customer,msg"))
    guessed = "conversation in 'Chat', sender in 'nick', text in 'msg', role in 'From_Customer'"
    assert f"guessed by names and values: {guessed}" in found.report.notes


def test_a_late_column_does_not_change_the_roles_of_others(write: Write) -> None:
    rows = [{"chat": n // 2, "sender": "ab"[n % 2], "message": f"m{n}"} for n in range(200)]
    late = {"chat": 0, "sender": "a", "message": "said", "text": "another"}  # "text" would be preferred
    found = import_chats(write("x.jsonl", "".join(json.dumps(row) + "\n" for row in [*rows, late])))
    assert talk(found)["0"] == [("customer", "m0"), ("agent", "m1"), ("customer", "said")]
    seen = import_chats(write("x.jsonl", "".join(json.dumps(row) + "\n" for row in [*rows[1:], late])))
    assert talk(seen)["0"] == [("agent", "m1"), ("customer", "another")]


def test_the_first_three_bad_rows_are_reported_and_all_counted(write: Write) -> None:
    rows = [("1", "2024-01-01", "a", "x"), ("1", "2024-01-01", "b", "y")]
    found = import_chats(messages_file(write, *rows, *[("1", "soon", "a", "x")] * 5), skip_bad=True)
    assert found.report.n_bad == 5
    assert [message.partition(": ")[0].rpartition(":")[2] for message in found.report.errors] == ["4", "5", "6"]


def test_folders_of_several_forms_and_ids_of_two_files(write: Write, tmp_path: Path) -> None:
    write("all/a.csv", "conversation,sender,text\n1,customer,a\n1,agent,c\n")
    write(
        "all/b.jsonl", {"id": 1, "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    )
    write("all/README.md", "x")
    write("all/.hidden.csv", "x")
    found = import_chats(tmp_path / "all")
    assert list(talk(found)) == ["a/1", "b/1"]
    assert found.report.forms == ["table", "conversations"]
    assert "skipped 1 other file, such as pictures" in found.report.notes


def test_files_that_differ_only_in_their_suffix_are_not_mixed(write: Write, tmp_path: Path) -> None:
    write("all/call.vtt", "WEBVTT\n\n00:01.000 --> 00:02.000\n<v Ann>a\n\n00:02.000 --> 00:03.000\n<v Ben>b\n")
    write("all/call.srt", "1\n00:00:01,000 --> 00:00:02,000\nCy: c\n\n2\n00:00:02,000 --> 00:00:03,000\nDee: d\n")
    found = talk(import_chats(tmp_path / "all"))
    assert found == {"call.srt": [("Cy", "c"), ("Dee", "d")], "call.vtt": [("Ann", "a"), ("Ben", "b")]}


@pytest.mark.deep
def test_messages_without_times_and_ids_form_limited_conversations(write: Write) -> None:
    rows = [(f"{'ab'[i % 2]}", f"text {i}") for i in range(5001)]
    path = messages_file(write, *rows, header="sender,text")
    with pytest.raises(
        DataError, match=r"x\.csv:2: the conversation that begins here has 5,001 messages, the limit is 5,000;"
    ):
        import_chats(path)
    path = messages_file(write, *rows[:5000], header="sender,text")
    found = import_chats(path)
    assert len(talk(found)["x:1"]) == 5000
    assert "5,000 messages without a conversation not divided: no times" in found.report.notes


def test_marked_sections_of_html_are_left_out(write: Write) -> None:
    found = import_chats(
        messages_file(write, ("1", "", "a", "<p>Hi <![foo bar]>there<![endif]></p>"), ("1", "", "b", "yo"))
    )
    assert talk(found)["1"] == [("a", "Hi there"), ("b", "yo")]


def test_logs_with_months_of_other_languages(write: Write) -> None:
    path = write("x.log", "--- Log opened lun ene 01 10:00:00 2024\n10:15 <ann> hi\n10:16 <bob> yo\n")
    assert [*talk(import_chats(path)).values()] == [[("ann", "hi"), ("bob", "yo")]]


def test_fields_of_unusual_types_are_not_ids(write: Write, tmp_path: Path) -> None:
    held = {"author": {"role": "user"}, "content": {"parts": ["hi"]}}
    nodes = {"a": {"message": held, "parent": [1]}}
    with pytest.raises(DataError):
        import_chats(write("x.json", [{"id": "1", "mapping": nodes, "current_node": [1]}]))
    said = [
        {"type": "message", "subtype": [], "user": name, "text": "x", "ts": f"170000000{i}.1"}
        for i, name in enumerate("ab")
    ]
    with pytest.raises(DataError, match="system"):
        import_chats(write("2026-01-01.json", said))


def test_html_bodies_and_texts_that_look_like_html(write: Write) -> None:
    quoted = '<div class="gmail_quote">On Monday <p>you</p> wrote</div>'
    mail = f"<div>Hi,<br>it is <b>5 &lt; 6</b></div><style>p{{}}</style>{quoted}<p>Bye</p>"
    found = import_chats(messages_file(write, ("1", "", "a", mail), ("1", "", "b", "use <b> for a < b & c &amp; d")))
    assert talk(found)["1"] == [("a", "Hi,\nit is 5 < 6\nBye"), ("b", "use <b> for a < b & c &amp; d")]


# times


@pytest.mark.parametrize(
    ("value", "order", "expected"),
    [
        ("2024-04-03", "day", "2024-04-03T00:00:00"),
        ("2024/04/03 10:00", "day", "2024-04-03T10:00:00"),
        ("2024-04-03T10:00:00Z", "day", "2024-04-03T10:00:00"),
        ("2024-04-03 10:00:00 +0200", "day", "2024-04-03T08:00:00"),
        ("3/4/2024 9:05 pm", "day", "2024-04-03T21:05:00"),
        ("3/4/2024 9:05 pm", "month", "2024-03-04T21:05:00"),
        ("24/3/4 9:05", "year", "2024-03-04T09:05:00"),
        ("Wed, 03 Apr 2024 10:00:00 PDT", "day", "2024-04-03T17:00:00"),
        ("Wed, 03 Apr 2024 10:00:00 IST", "day", "2024-04-03T04:30:00"),
        ("2024-04-03 10:00 JST", "day", "2024-04-03T01:00:00"),
        ("Wed Apr 3 10:00:00 2024", "day", "2024-04-03T10:00:00"),
        ("Apr 3, 2024 at 10:00 AM", "day", "2024-04-03T10:00:00"),
        ("1712138400", "day", "2024-04-03T10:00:00"),
        ("1712138400000", "day", "2024-04-03T10:00:00"),
        (1712138400.25, "day", "2024-04-03T10:00:00.250000"),
        ("45385.5", "day", "2024-04-03T12:00:00"),
        ("20240403", "day", "2024-04-03T00:00:00"),
        (datetime.date(2024, 4, 3), "day", "2024-04-03T00:00:00"),
        (
            datetime.datetime(2024, 4, 3, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
            "day",
            "2024-04-03T00:00:00",
        ),
    ],
)
def test_times_of_many_forms(value: Any, order: Any, expected: str) -> None:
    found = read_time(value, DateForm(order))
    assert found is not None
    assert found.isoformat() == expected


@pytest.mark.parametrize(
    "value", ["noon", "10:15", "12", -5, 1e300, pytest.param(10**400, id="1e400"), True, "2024-13-45", "May"]
)
def test_values_that_are_not_times(value: Any) -> None:
    with pytest.raises(ValueError, match=r"is not a|has no date"):
        read_time(value)
    assert read_time("") is read_time(None) is read_time("  ") is None


@given(
    st.dates(datetime.date(2001, 1, 1), datetime.date(2031, 12, 31)),
    st.sampled_from(["day", "month"]),
    st.integers(0, 60),
)
def test_the_order_of_dates_is_inferred_from_the_whole_file(first: datetime.date, order: Any, n: int) -> None:
    days = [first + datetime.timedelta(days=i) for i in range(n + 1)]
    written = {"day": "{d}/{m}/{y}", "month": "{m}/{d}/{y}"}[order]
    texts = [written.format(d=day.day, m=day.month, y=day.year) for day in days]
    form, guessed = date_form(texts)
    if not guessed:
        assert [read_time(text, form) for text in texts] == [
            datetime.datetime.combine(day, datetime.time()) for day in days
        ]
    if n >= 31:
        assert (form.order, guessed) == (order, False)  # a day is above 12


def test_a_guessed_order_is_reported_and_can_be_set(write: Write) -> None:
    path = messages_file(write, ("1", "3/4/2024 9:00", "a", "x"), ("1", "3/4/2024 9:01", "b", "y"))
    found = import_chats(path)
    assert found.dialogues[0]["time"] == "2024-04-03T09:00:00"
    assert any("dates are ambiguous" in note for note in found.report.notes)
    named = import_chats(path, date_order="month")
    assert named.dialogues[0]["time"] == "2024-03-04T09:00:00"
    assert not any("dates" in note for note in named.report.notes)


# hostile files


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("x.csv", b"", "is empty; give a file with messages"),
        ("x.csv", b"\xef\xbb\xbf\n", "is empty; give a file with messages"),
        ("x.csv", "conversation,sender,text\n", "holds no messages"),
        ("x.json", "[]", "holds no messages"),
        ("x.json", "{}", "holds no messages"),
        ("x.json", '["a", "b"]', "no column has a usual name for the sender among 'text'"),
        ("x.json", "[" * 100_000, "nested too deeply"),
        ("x.json", f'[{{"sender": "a", "text": {"[" * 900}"b"{"]" * 900}}}]', "nested too deeply"),
        ("x.jsonl", '{"a": ' + "[" * 100_000, r"x\.jsonl:1: nested too deeply; give flatter JSON"),
        ("x.jsonl", '{"a": 1}\n{"a": ' + "[" * 100_000, r"x\.jsonl:2: nested too deeply; give flatter JSON"),
        ("x.json", f'[{{"sender": "a", "text": {"1" * 5000}}}]', "cannot be read .* shorter numbers"),
        ("x.json", '[{"sender": "a",\n "text": "b"}, {"se', r"x\.json:2: not JSON: .*; the file may be truncated"),
        (
            "x.jsonl",
            '{"sender": "a", "text": "b"}\n{"se',
            r"x\.jsonl:2: not JSON: .* at character 2; the file may be truncated",
        ),
        ("x.json", '[{"sender": "a", "text": "\\ud800"}]', r"x\.json:1: cannot be read .*; write whole characters"),
        ("x.xls", "<html><table><tr><td>a</td></tr></table></html>", "is an HTML page; export the chats as JSON, CSV"),
        (
            "x.jsonl",
            '{"context": ["a"], "response": "b"}',
            "holds examples, not chats; use it with train and evaluate",
        ),
        ("x.csv", b"%PDF-1.7", "is a PDF; export the chats as"),
        ("x.db", b"SQLite format 3\0", "is an SQLite database; export the chats as JSON"),
        ("x.xlsx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "is not a valid workbook"),
        (
            "x.xlsx",
            b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600) + "EncryptedPackage".encode("utf-16-le"),
            "has a password; save it without one",
        ),
        ("x.zip", b"PK\x03\x04" + bytes(50), "is not a valid workbook"),
        ("x.parquet", b"PAR1" + bytes(50), "not a valid Parquet file"),
        ("x.csv.gz", gzip.compress(b"a,b\n1,2", mtime=0)[:-5], "damaged gzip"),
        (
            "x.csv",
            bytes(range(128, 256)) * 9 + bytes(range(32)) * 9,
            "is not readable text, or only partly|no column",
        ),
        (
            "x.txt",
            "12/31/23, 9:15 PM - Encrypted.\n12/31/23, 9:16 PM - Ann left\n",
            r"holds no usable message \(2 system lines\)",
        ),
        (
            "x.txt",
            "12/31/23, 9:15 PM - Ann: a\n12/31/23, 9:16 PM - Ann: b\n",
            r"only 'Ann' wrote \(2 messages\); name the column of senders",
        ),
        (
            "x.csv",
            "conversation,time,sender,text\n1,0001-01-01T00:00:00+01:00,a,x\n1,2024-01-01,b,y\n",
            r"x\.csv:2: 0001-01-01T00:00:00\+01:00 is outside of the years 1 to 9999 in UTC",
        ),
        (
            "x.log",
            "--- Log opened lun xyz 01 10:00:00 2024\n10:15 <ann> hi\n",
            r"x\.log:2: 'xyz 01 2024 10:15' is not a",
        ),
        ("x.csv", "conversation,sender,text\n1,a,x\n2,b,y\n", "none of 2 messages answers another"),
        (
            "x.csv",
            "1,2024-01-01,Ann,hi\n1,2024-01-01,Ben,yo\n",
            "no column has a usual name for the sender among 'column 1', .*add a header",
        ),
    ],
)
def test_hostile_files_get_one_sentence(write: Write, name: str, content: Any, problem: str) -> None:
    path = write(name, content)
    with pytest.raises(DataError, match=problem) as caught:
        import_chats(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_hostile_places(tmp_path: Path, write: Write) -> None:
    with pytest.raises(DataError, match="none: cannot be read: No such file or directory; check the path"):
        import_chats(tmp_path / "none")
    with pytest.raises(DataError, match="holds no file of a supported type"):
        import_chats(tmp_path)
    write("two/a.csv", "conversation,sender,text\n1,a,x\n1,b,y\n")
    write("two/b.csv", "")
    with pytest.raises(DataError, match=r"b\.csv: is empty"):
        import_chats(tmp_path / "two")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"form": "slak"}, "form 'slak' is unknown; use mail, chat_log, .*, table or none"),
        ({"date_order": "dmy"}, "date_order 'dmy' is unknown; use day, month, year or none"),
        ({"gap": 0}, "gap is 0; give the hours of silence"),
        ({"form": "mail"}, "does not have the form mail; choose another form or none"),
        ({"question": "q"}, "no column 'q'"),
    ],
)
def test_impossible_arguments(write: Write, options: dict[str, Any], problem: str) -> None:
    path = messages_file(write, ("1", "", "a", "x"), ("1", "", "b", "y"))
    with pytest.raises(UsageError, match=problem):
        import_chats(path, **options)


def test_a_missing_library_is_named(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingLibraryError, match=r'install it with: pip install "polyrank-chats\[parquet\]"'):
        import_chats(write("x.parquet", b"PAR1"))


SPOKEN = (
    st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1)
    .map(lambda text: unicodedata.normalize("NFC", text.strip()))
    .filter(lambda text: text and text not in GONE and "<" not in text and "&" not in text)
)


@pytest.mark.deep
@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("ab"), SPOKEN), min_size=1, max_size=30))
def test_tables_return_all_messages(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]]) -> None:
    expected = {}
    for name in dict.fromkeys(name for name, _, _ in rows):
        said = [(sender, text) for own, sender, text in rows if own == name]
        if len({sender for sender, _ in said}) > 1:
            expected[name] = said
    folder = tmp_path_factory.mktemp("table")
    (folder / "x.csv").write_text(csv_text([("conversation", "sender", "text"), *rows]), "utf-8", newline="")
    records = [{"conversation": a, "sender": b, "text": c} for a, b, c in rows]
    (folder / "x.json").write_text(json.dumps(records), "utf-8")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), folder / "x.parquet")
    for name in ("x.csv", "x.json", "x.parquet"):
        if expected:
            joined = talk(import_chats(folder / name))
            assert set(expected) <= set(joined)
            for key, said in joined.items():
                assert all(a[0] != b[0] for a, b in pairwise(said))
                assert "\n".join(text for _, text in said) == "\n".join(text for _, text in expected[key])
        else:
            with pytest.raises(DataError):
                import_chats(folder / name)


# the command


@pytest.mark.deep
def test_the_command_reports_its_guesses_and_writes_dialogues(write: Write, run: Run, tmp_path: Path) -> None:
    source, out = write("x.csv", csv_text([HEADER, *ROWS], ";").encode("cp1252", "replace")), tmp_path / "out.jsonl.gz"
    done = run(source, "-o", out)
    assert done.returncode == 0, done.stderr
    assert "conversation in 'conversation_id', time in 'created_at', sender in 'author'" in done.stderr.replace(
        "\n", " "
    )
    assert "read as cp1252" in done.stderr
    assert "2 conversations of 5 turns (customer 3, agent 2)" in done.stderr
    with gzip.open(out, "rt", encoding="utf-8") as lines:
        assert [row["id"] for row in map(json.loads, lines)] == ["t1", "t2"]
    again = run(source, "-o", out)
    assert (again.returncode, "already exists" in again.stderr) == (2, True)
    assert run(source, "-o", source, "--overwrite").returncode == 2
    assert source.read_bytes().startswith(b'"conversation_id"')
    wrong = run(source, "-o", out, "--overwrite", "--sender", "who")
    assert (wrong.returncode, "it has 'conversation_id', 'created_at'" in wrong.stderr) == (2, True)


def test_dialogues_are_written_and_read_back(write: Write, tmp_path: Path) -> None:
    found = import_chats(write("x.csv", csv_text([HEADER, *ROWS])))
    write_dialogues(tmp_path / "out.jsonl", found.dialogues)
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()] == found.dialogues
    again = import_chats(tmp_path / "out.jsonl")
    assert talk(again) == talk(found)
    assert [row["time"] for row in again.dialogues] == [row["time"] for row in found.dialogues]
