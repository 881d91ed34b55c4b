"""Mails: signatures and quotations of many languages, threads by headers and subjects, and tables of mails."""

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from polyrank_chats import import_chats
from polyrank_chats.forms.mail import _message, by_subject
from polyrank_chats.messages import Message
from polyrank_chats.quotations import unquoted

Write = Callable[[str, Any], Path]

CASES = json.loads((Path(__file__).parent / "mails.json").read_text("utf-8"))
"""The language, a mail and its own words."""


@pytest.mark.parametrize(("language", "text", "wanted"), CASES)
def test_only_the_own_words_of_a_mail_stay(language: str, text: str, wanted: str) -> None:
    assert unquoted(text).split() == wanted.split()


@pytest.mark.parametrize(
    "text",
    ["It broke at 10:05 today.\nAs you wrote:\nfine", "Best\nThat is all", "1. Thanks\n2. Regards", "From: Berlin\nHi"],
)
def test_texts_that_only_look_like_the_end_of_a_mail(text: str) -> None:
    assert unquoted(text) == text


def test_a_line_above_a_quotation_over_three_lines() -> None:
    assert unquoted("Hi\n\nOn Tue, May 7, 2024 at 9:00 AM Support Team\n<s@shop.example>\nwrote:\n\n> hello") == "Hi"
    assert unquoted("Tak\n\npon., 6 maj 2024 o 10:00 Ann Lee\n<ann@x.example> napisał(a):\n> a") == "Tak"


@pytest.mark.parametrize(
    "part", ["On ", "a 1:11 ", "a@b ", "x 10:00\n", "<", "wrote ", "From: x\n", "Regards\n", "-- "]
)
def test_hostile_mails_take_linear_time(part: str) -> None:
    started = process_time()
    unquoted(part * 20_000)
    assert process_time() - started < 5


def mailbox(n: int, *, headers: bool) -> tuple[bytes, dict[str, list[tuple[str, str]]]]:
    """An mbox of threads of customers and three members of staff, both directions, and its truth by the first text."""
    draw = random.Random(3)
    mails, truth = [], {}
    for i in range(n):
        guest, staff = f"Guest {i} <g{i}@gmail.example>", f"Staff {i % 3} <staff{i % 3}@shop.example>"
        ids: list[str] = []
        turns: list[tuple[str, str]] = []
        quoted = ""
        for k in range(draw.randint(2, 5)):
            mail = EmailMessage()
            mail["From"], mail["To"] = (guest, "support@shop.example") if k % 2 == 0 else (staff, guest)
            mail["Subject"] = ("Re: " if k else "") + ("Order" if i % 2 else f"Question {i}")
            mail["Date"] = format_datetime(datetime(2024, 5, 1, tzinfo=UTC) + timedelta(hours=5 * i + 30 * k))
            mail["Message-ID"] = f"<{i}.{k}@{'shop' if k % 2 else 'gmail'}.example>"
            if ids and headers:
                mail["In-Reply-To"], mail["References"] = ids[-1], " ".join(ids)
            ids.append(str(mail["Message-ID"]))
            said = f"text {i} {k}\n\nand more of it"
            sign = "Kind regards,\nGuest" if k % 2 == 0 else "Best regards\nStaff\nShop Ltd.\n+44 20 7946 0958"
            above = f"\n\nOn Mon, 6 May 2024 at 10:00, X <x@y.example> wrote:\n{quoted}" if quoted else ""
            mail.set_content(f"Hello,\n\n{said}\n\n{sign}{above}\n")
            quoted = "\n".join(f"> {line}" for line in said.split("\n"))
            turns.append(("customer" if k % 2 == 0 else "agent", f"Hello,\n\n{said}"))
            mails.append((mail["Date"].datetime, mail))
        truth[turns[0][1]] = turns
    draw.shuffle(mails)
    return b"".join(b"From x Mon May  6 10:00:00 2024\n" + mail.as_bytes() + b"\n\n" for _, mail in mails), truth


@pytest.mark.deep
@pytest.mark.parametrize("headers", [True, False])
def test_conversations_of_a_mailbox(write: Write, headers: bool) -> None:
    data, truth = mailbox(30, headers=headers)
    found = import_chats(write("all.mbox", data), keep_personal=True)
    got = {
        row["turns"][0]["text"]: [(turn["speaker"], turn["text"]) for turn in row["turns"]] for row in found.dialogues
    }
    assert got == truth


def test_tables_of_mails(write: Write) -> None:
    sign = "\n\nMit freundlichen Grüßen\nBen\n\nVon: Ann\nGesendet: Montag\nAn: Ben\n\nalt"
    rows = [("500A", "2024-05-06T10:00:00Z", "Frage", "ann@x.example", "true", "Geht es?"),
            ("500A", "2024-05-06T11:00:00Z", "AW: Frage", "ben@shop.example", "false", f"Ja.{sign}")]  # fmt: skip
    table = "ParentId,MessageDate,Subject,FromAddress,Incoming,TextBody\n"
    table += "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows)
    found = import_chats(write("EmailMessage.csv", table))
    assert [[(turn["speaker"], turn["text"]) for turn in row["turns"]] for row in found.dialogues] == [
        [("customer", "Geht es?"), ("agent", "Ja.")]
    ]


def test_names_in_other_columns_are_replaced(write: Write) -> None:
    rows = "1,customer,Ann Lee,hi\n1,agent,Ann Lee,Hi Ann\n"
    found = import_chats(write("x.csv", f"ticket,sender,Customer Name,message\n{rows}"))
    assert [turn["text"] for turn in found.dialogues[0]["turns"]] == ["hi", "Hi {customer}"]


def a_mail(number: int, sender: str, subject: str, to: str, cc: str = "", **more: str) -> bytes:
    headers = {"From": sender, "To": to, "Cc": cc, "Subject": subject, "Message-ID": f"<{number}@x.example>"}
    headers |= {"Date": f"Mon, 6 May 2024 {10 + number}:00:00 +0000"} | {
        k.replace("_", "-"): v for k, v in more.items()
    }
    lines = [f"{name}: {value}" for name, value in headers.items() if value]
    return "\r\n".join([*lines, "", f"Text {number}.", ""]).encode()


def read_mail(raw: bytes) -> Message:
    found = _message(message_from_bytes(raw, policy=policy.default), "w")
    assert isinstance(found, Message)
    return found


def test_a_mail_has_all_its_recipients_and_all_mails_that_it_answers() -> None:
    to, cc = "Bea <bea@shop.example>, help@shop.example", "cy@y.example, Dee <dee@z.example>"
    references = {"References": "<1@x.example> <2@x.example>", "In_Reply_To": "<2@x.example> <4@x.example>"}
    mail = read_mail(a_mail(3, "Ann <ann@x.example>", "Re: Wifi", to, cc, **references))
    assert mail.recipients == ("bea@shop.example", "help@shop.example", "cy@y.example", "dee@z.example")
    assert [found.strip("<>") for found in mail.answers] == ["1@x.example", "2@x.example", "4@x.example"]
    assert (mail.sender, mail.sender_id, mail.subject) == ("Ann", "ann@x.example", "Re: Wifi")
    alone = read_mail(a_mail(3, "Ann <ann@x.example>", "Re: Wifi", to, References="<1@x.example>"))
    assert [found.strip("<>") for found in alone.answers] == ["1@x.example"]


def test_a_mail_without_references_answers_the_last_of_its_subject_and_one_of_its_people() -> None:
    help_, others = "help@shop.example", ", ".join(f"p{n}@p{n}.example" for n in range(9))
    mails = [
        a_mail(0, "ann@x.example", "Wifi", help_, "cy@y.example"),
        a_mail(1, help_, "Re: Wifi", "ann@x.example"),
        a_mail(2, "dee@z.example", "Wifi", help_),
        a_mail(3, "cy@y.example", "RE: wifi", help_, others),  # with one person in common
        a_mail(4, "eve@e.example", "Re: Wifi", help_),  # with none but the staff
        a_mail(5, "p8@p8.example", "Re: Wifi", help_),
        a_mail(6, "ann@x.example", "Wifi", help_),  # a new mail
        a_mail(7, help_, "Re: Bill", "ann@x.example"),
    ]
    linked = by_subject([read_mail(raw) for raw in mails])
    answered = {each.text: [found.strip("<>")[0] for found in each.answers] for each in linked}
    assert {text: answers for text, answers in answered.items() if answers} == {
        "Text 1.": ["0"],
        "Text 3.": ["0"],
        "Text 5.": ["3"],
    }
