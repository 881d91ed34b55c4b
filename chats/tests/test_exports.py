"""Exports of other programs, in forms that ``test_chats`` lacks: turns, speakers, order and dates."""

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from polyrank_chats import Chats, import_chats
from polyrank_chats.errors import DataError, UsageError
from polyrank_chats.forms.mail import unquoted
from polyrank_chats.profiles import kind_of_time
from polyrank_chats.redact import Redactor

Write = Callable[[str, Any], Path]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def turns_of(chats: Chats) -> list[list[str]]:
    """The turns of each conversation as lines with their speakers."""
    return [[f"{turn['speaker']}: {turn['text']}" for turn in row["turns"]] for row in chats.dialogues]


def began(chats: Chats) -> list[str]:
    return [row["time"] for row in chats.dialogues]


def notes(chats: Chats) -> str:
    return " | ".join(chats.report.notes)


# columns by their values

AT = datetime(2024, 5, 13, 9)
STYLES = {
    "createdDateTime": "{:%Y-%m-%dT%H:%M:%SZ}",
    "CreatedDate": "{:%m/%d/%Y %I:%M %p}",
    "Date Created": "{:%d.%m.%Y %H:%M}",
    "Sent on": "{:%a, %d %b %Y %H:%M:%S +0000}",
    "Timestamp (UTC)": "{:%Y-%m-%d %H:%M:%S}",
    "Erstellt am": "{:%d.%m.%y, %H:%M}",
    "Received": "{:%B %d, %Y %H:%M}",
    "created_utc": "{:unix}",
    "dateSent": "{:unix}000",
    "wann": "{:%Y/%m/%d %H:%M}",
}


def written(style: str, at: datetime) -> str:
    return style.replace("{:unix}", str(int((at - datetime(1970, 1, 1)).total_seconds()))).format(at)


@pytest.mark.parametrize("column", STYLES)
@pytest.mark.parametrize("newest_first", [False, True])
def test_times_are_recognized_by_their_values(write: Write, column: str, newest_first: bool) -> None:
    """Two days of a stream; other columns hold times of changes, numbers that look like times, and times of day."""
    lines = [("Ann", "is it on?"), ("Ben", "yes it is"), ("Ann", "thanks"), ("Cy", "a new day"), ("Ben", "indeed")]
    rows = [
        f"{n};{written('{:%Y-%m-%dT%H:%M}', AT + timedelta(days=9))};1700000{n}00;{name};"
        f'"{written(STYLES[column], AT + timedelta(minutes=n, days=n // 3))}";{text}'
        for n, (name, text) in enumerate(lines)
    ]
    header = f"no;updated at;order;author;{column};body"
    found = import_chats(write("x.csv", "\n".join([header, *(rows[::-1] if newest_first else rows)])))
    assert turns_of(found) == [["Ann: is it on?", "Ben: yes it is", "Ann: thanks"], ["Cy: a new day", "Ben: indeed"]]
    assert began(found) == ["2024-05-13T09:00:00", "2024-05-14T09:03:00"]
    assert f"time in {column!r}" in notes(found)
    assert "also times: 'updated at'" in notes(found)


def test_rows_with_dates_only_are_ordered_by_the_file(write: Write) -> None:
    rows = ["c7,15 mai 2024,Ann,hi all", "c7,15 mai 2024,Ben,hello you"]
    rows += ["c8,16 mai 2024,Cy,yo Ben", "c8,16 mai 2024,Ben,yes Cy?"]
    down = [*rows[::-1], "c9,14 mai 2024,Ben,b it is", "c9,13 mai 2024,Ann,a or b"]
    expected = [["Ann: hi all", "Ben: hello you"], ["Cy: yo {name}", "Ben: yes {name}?"]]
    assert sorted(turns_of(import_chats(write("up.csv", "\n".join(["case,Day,Who,Said", *rows]))))) == expected
    found = import_chats(write("down.csv", "\n".join(["case,Day,Who,Said", *down])))
    assert sorted(turns_of(found)) == [["Ann: a or b", "Ben: b it is"], *expected]
    assert (
        "guessed by names and values: conversation in 'case', time in 'Day', sender in 'Who', text in 'Said'"
        in notes(found)
    )


def test_speakers_by_their_numbers(write: Write) -> None:
    """EmpatheticDialogues: the prompt and the mood of each conversation are left out."""
    header = "conv_id,utterance_idx,context,prompt,speaker_idx,utterance,selfeval,tags\n"
    rows = [("hit:0_conv:1", 1, "sad", "My cat ran away.", 7, "My cat ran away_comma_ and I miss her."),
            ("hit:0_conv:1", 2, "sad", "My cat ran away.", 0, "Was she old?"),
            ("hit:1_conv:2", 1, "glad", "I won.", 2, "I won a race."),
            ("hit:1_conv:2", 2, "glad", "I won.", 7, "Congratulations!")]  # fmt: skip
    path = write("train.csv", header + "".join(",".join(map(str, row)) + ",5|5|5,\n" for row in rows))
    first, second = turns_of(import_chats(path))
    assert first == ["7: My cat ran away_comma_ and I miss her.", "0: Was she old?"]
    assert second == ["2: I won a race.", "7: Congratulations!"]


def test_columns_without_usual_names(write: Write) -> None:
    """A repeated id, alternating names, sentences; a state and a priority that only look like names."""
    rows = [
        (
            f"R-{n // 3}",
            f"{AT + timedelta(minutes=n)}",
            ["Ada L", "Help 1"][n % 3 % 2],
            "open",
            n % 2,
            f"it was said {n}",
        )
        for n in range(12)
    ]
    text = "\n".join("\t".join(map(str, row)) for row in [("Ref", "w", "p", "state", "prio", "c"), *rows])
    found = import_chats(write("x.tsv", text))
    assert turns_of(found)[1] == ["customer: it was said 3", "agent: it was said 4", "customer: it was said 5"]
    assert [row["id"] for row in found.dialogues] == ["R-0", "R-1", "R-2", "R-3"]
    assert "guessed by names and values: conversation in 'Ref', time in 'w', sender in 'p', text in 'c'" in notes(found)


def test_a_usual_name_with_unusual_values_is_not_trusted(write: Write) -> None:
    """``created`` holds names, ``message`` a state, and ``thread`` is nearly always empty."""
    rows = [
        f",Kim,{['sent', 'read'][n % 2]},Kim {n},{['Kim', 'Lee'][n % 2]},{AT + timedelta(minutes=n)}" for n in range(24)
    ]
    found = import_chats(write("x.csv", "\n".join(["thread,created,message,body text,from,on", *rows])))
    assert turns_of(found)[0][:2] == ["Kim: {name} 0", "Lee: {name} 1"]
    assert began(found) == ["2024-05-13T09:00:00"]
    assert "column 'created' holds values that are not readable times, such as 'Kim'" in notes(found)


def test_a_constant_sender_is_not_trusted(write: Write) -> None:
    rows = [f"4,lamp,Ann,Bo,said {n},{AT + timedelta(minutes=n)},{['Ann', 'Bo'][n % 2]}" for n in range(6)]
    found = import_chats(write("x.csv", "\n".join(["ticket,subject,user,agent,comment,at,commenter", *rows])))
    assert turns_of(found) == [[f"{['Ann', 'Bo'][n % 2]}: said {n}" for n in range(6)]]


def test_json_with_unusual_names_becomes_a_table(write: Write) -> None:
    items = [
        {"uid": f"m{n}", "room_ref": f"r-{n // 4}", "dateSent": 1715590800000 + n * 60_000,
         "writer": {"display": ["Ann", "Bo"][n % 2]}, "payload": {"txt": f"it is number {n}"}}
        for n in range(12)
    ]  # fmt: skip
    found = import_chats(write("x.json", {"data": items[::-1], "next": None}))
    assert [(row["id"], len(row["turns"])) for row in found.dialogues] == [("r-2", 4), ("r-1", 4), ("r-0", 4)]
    assert turns_of(found)[2][:2] == ["Ann: it is number 0", "Bo: it is number 1"]
    assert began(found)[2] == "2024-05-13T09:00:00"


def test_channels_are_streams_not_conversations(write: Write) -> None:
    rows = [f"help,{'ab'[n % 2]},t {n},{AT + timedelta(hours=10 * (n // 40), minutes=n)}" for n in range(80)]
    found = import_chats(write("x.csv", "\n".join(["channel,user,text,ts", *rows])))
    assert [row["id"] for row in found.dialogues] == ["help:1", "help:2"]
    assert "a talk for each 'channel', divided at long pauses" in notes(found)


def test_the_assumed_order_of_rows_without_times_is_reported(write: Write) -> None:
    rows = ["9,Ann,thanks", "8,Ben,yes", "7,Ann,is it on?"]
    found = import_chats(write("x.csv", "\n".join(["id,from,text", *rows])))
    assert turns_of(found) == [["Ann: is it on?", "Ben: yes", "Ann: thanks"]]
    assert "no column of times; 'id' decreases, so the last row is the oldest" in notes(found)
    found = import_chats(write("y.csv", "\n".join(["from,text", *(row[2:] for row in rows)])))
    assert turns_of(found)[0][0] == "Ann: thanks"
    assert "no column of times: assuming that the oldest row comes first" in notes(found)


def test_rows_of_named_conversations_may_be_newest_first(write: Write) -> None:
    rows = ["9,b,Ann,thanks", "8,b,Ben,yes", "7,b,Ann,is it on?", "6,a,Ben,hi", "5,a,Ann,hello"]
    found = import_chats(write("x.csv", "\n".join(["id,chat,from,text", *rows])), conversation="chat")
    assert sorted(turns_of(found)) == [["Ann: hello", "Ben: hi"], ["Ann: is it on?", "Ben: yes", "Ann: thanks"]]
    assert "'id' decreases" in notes(found)


def test_an_object_of_questions_is_a_list_of_questions_and_answers(write: Write) -> None:
    asked = {"Where is it?": "Here.", "\u4f55\u6642\uff1f": "Soon.", "\u0645\u062a\u0649\u061f": "Now."}
    found = import_chats(write("faq.json", asked))
    assert turns_of(found) == [[f"customer: {question}", f"agent: {answer}"] for question, answer in asked.items()]
    said = import_chats(write("x.json", [{"from": name, "text": "hi", "seen?": "yes"} for name in ("Ann", "Ben")]))
    assert turns_of(said) == [["Ann: hi", "Ben: hi"]]


def test_messages_are_read_in_the_json_of_cells(write: Write) -> None:
    """As in exports of respond.io and Botpress; a picture has no text."""
    cells = ['{"type": "text", "text": "Is it on?"}', "{'type': 'text', 'text': 'Yes.'}", '{"type": "image"}']
    file = io.StringIO()
    csv.writer(file).writerows([
        ("conversationId", "direction", "payload"),
        *(("7", ("incoming", "outgoing")[n % 2], cell) for n, cell in enumerate(cells)),
    ])  # fmt: skip
    found = import_chats(write("x.csv", file.getvalue()))
    assert turns_of(found) == [["customer: Is it on?", "agent: Yes."]]


@pytest.mark.parametrize(
    "logged",
    [
        lambda asked, said: {"sessionId": "s", "inputTranscript": asked, "botResponse": said},  # Lex
        lambda asked, said: {
            "session": "s",
            "queryResult": {"queryText": asked, "fulfillmentText": said},
        },  # Dialogflow
        lambda asked, said: {
            "request": {"input": {"text": asked}},
            "response": {"output": {"generic": [{"text": said}]}, "context": {"session_id": "s"}},
        },  # Watson
    ],
)
def test_the_logs_of_bots_have_a_question_and_an_answer_in_each_row(write: Write, logged: Any) -> None:
    rows = [logged("Is it on?", "Yes."), logged("Since when?", "Since six.")]
    found = import_chats(write("x.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
    assert turns_of(found) == [["customer: Is it on?", "agent: Yes.", "customer: Since when?", "agent: Since six."]]


def test_the_head_of_a_transcript_of_salesforce_is_no_message(write: Write) -> None:
    head = '<p align=""center"">Chat Started: Monday, May 13, 2024, 10:30:00 (+0000)</p><p align=""center"">'
    head += 'Chat Origin: Web</p><p align=""center"">Agent Ben D</p>'
    bodies = [
        f'"{head}( 5s ) {name}: Is it on?<br>( 1m 2s ) Ben: Yes.<br>( 2m ) {name}: Bye<br>"' for name in ("Ann", "Cy")
    ]
    rows = [f"{n},{body},LC-{n},2024-05-13T10:3{n}:00Z" for n, body in enumerate(bodies)]
    found = import_chats(write("x.csv", "\n".join(["Id,Body,Name,StartTime", *rows])))
    assert turns_of(found) == [[f"{name}: Is it on?", "Ben: Yes.", f"{name}: Bye"] for name in ("Ann", "Cy")]


def test_the_script_of_twitters_archive(write: Write) -> None:
    said = [("1", "it is late"), ("2", "sorry"), ("1", "thanks"), ("2", "it ships today")]
    messages = [
        {"messageCreate": {"recipientId": "3", "text": text, "mediaUrls": [], "senderId": sender, "id": str(n),
         "createdAt": f"2024-01-0{n}T10:00:00.000Z"}} for n, (sender, text) in enumerate(said, 1)
    ]  # fmt: skip
    talks = [{"dmConversation": {"conversationId": "1-2", "messages": messages[::-1]}}]
    found = import_chats(
        write("direct-messages.js", "window.YTD.direct_messages.part0 = " + json.dumps(talks, indent=2))
    )
    assert turns_of(found) == [[f"{sender}: {text}" for sender, text in said]]
    assert [row["id"] for row in found.dialogues] == ["1-2"]


@pytest.mark.parametrize("nested", [False, True])
def test_all_lists_of_an_object_are_read(write: Write, nested: bool) -> None:
    def tickets(*ids: int) -> Any:
        said = [{"from": "Ann", "text": "is it on?"}, {"from": "Ben", "text": "yes"}]
        listed = [{"id": n, "messages": said} for n in ids]
        return {"conversations": listed} if nested else listed

    found = import_chats(write("x.json", {"open": tickets(1, 2), "archived": tickets(7), "total": 3}))
    assert [row["id"] for row in found.dialogues] == ["1", "2", "7"]


def test_conversations_of_equal_names_stay_apart(write: Write, tmp_path: Path) -> None:
    for place, text in (("2024/01", "first"), ("2025/01", "second")):
        (tmp_path / "logs" / place).mkdir(parents=True)
        (tmp_path / "logs" / place / "15.txt").write_text(f"Ann: {text}\nBen: yes\nAnn: thanks\n")
    found = import_chats(tmp_path / "logs")
    assert [row["id"] for row in found.dialogues] == ["2024/01/15.txt", "2025/01/15.txt"]

    def said(n: int, who: str, text: str) -> dict[str, Any]:
        return {"id": n, "type": "message", "date": f"2024-05-13T09:0{n}:00", "from": who, "from_id": who, "text": text}

    chats = [
        {"name": "Anna", "id": 5 + n, "messages": [said(n, "Anna", f"question {n}"), said(n + 1, "Me", f"answer {n}")]}
        for n in (1, 2)
    ]
    found = import_chats(write("result.json", {"chats": {"list": chats}}))
    assert turns_of(found) == [[f"Anna: question {n}", f"Me: answer {n}"] for n in (1, 2)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", "id,from,text\n1,a,x\n2,b,y\n"),
        ("x.csv", "question,answer\nwhy?,so\n"),
        ("x.txt", "12/31/23, 9:15 PM - Ann: a\n12/31/23, 9:16 PM - Ben: b\n"),
        ("x.txt", "Ann: a\nBen: b\nAnn: c\n"),
        ("x.json", [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]),
    ],
)
def test_a_missing_column_of_times(write: Write, name: str, content: Any) -> None:
    with pytest.raises(UsageError, match="has no column 'Foo'"):
        import_chats(write(name, content), time="Foo")


@pytest.mark.parametrize(
    ("value", "kind"),
    [("2024-05-01", "time"), ("1. Mai 2024", "time"), (1714557600, "maybe"), ("20240501", "maybe"), ("9:15", "clock"),
     ("1899-12-31 09:05:00", "clock"), ("2024-001", ""), ("12-3456", ""), ("10.0.0.1", ""), ("+49 170 1234567", ""),
     ("Version 10 of 2024", ""), ("on 3 May 2024 we met at the station and then left", ""), (True, ""), (7, "")],
)  # fmt: skip
def test_kinds_of_times(value: Any, kind: str) -> None:
    assert kind_of_time(value) == kind


# Microsoft Teams


def teams_message(n: int, name: str | None, content: str, minute: int, **more: Any) -> dict[str, Any]:
    return {
        "id": str(n),
        "messageType": "message",
        "createdDateTime": f"{AT + timedelta(minutes=minute):%Y-%m-%dT%H:%M:%S.123Z}",
        "deletedDateTime": None,
        "from": name and {"application": None, "user": {"id": f"u-{name}", "displayName": name}},
        "body": {"contentType": "html", "content": content},
        "attachments": [],
        **more,
    }


def test_teams_chat_from_the_graph_api(write: Write) -> None:
    events = {"messageType": "systemEventMessage", "from": None, "body": {"contentType": "html", "content": "<event/>"}}
    bot = {"application": {"displayName": "Polly"}, "user": None}
    page = [
        teams_message(6, "Ben", '<p>bye <emoji id="x" alt="👋"></emoji></p>', 900),
        teams_message(5, "Ann", "<p>next morning</p>", 899, chatId="19:a"),
        teams_message(4, "Ann", "", 4, deletedDateTime="2024-05-13T09:09:00Z"),
        teams_message(8, "Ann", '<attachment id="f"></attachment>', 3, attachments=[{"id": "f"}]),
        teams_message(3, None, "poll!", 2, **{"from": bot}),
        teams_message(2, "Ben", '<p><at id="0">Ann</at>&nbsp;yes,<br>it is</p>', 1),
        teams_message(1, "Ann", "<div>is it on?</div>", 0),
        teams_message(0, None, "", 0, **events),
    ]
    for each in page:
        each["chatId"] = "19:a"
    found = import_chats(write("chat.json", {"@odata.context": "https://graph", "value": page}))
    assert turns_of(found) == [
        ["Ann: is it on?", "Ben: {name} yes,\nit is", "Polly: poll!"],
        ["Ann: next morning", "Ben: bye 👋"],
    ]
    assert began(found) == ["2024-05-13T09:00:00", "2024-05-13T23:59:00"]
    assert found.report.forms == ["conversations"]
    assert found.report.left_out == {"system line": 1, "deleted message": 1, "attachment": 1}


@pytest.mark.parametrize("inside", [False, True])
def test_teams_channel_of_posts_and_replies(write: Write, inside: bool) -> None:
    identity = {"channelIdentity": {"teamId": "t", "channelId": "c"}}
    posts = [teams_message(20, "Cy", "second", 30, **identity), teams_message(10, "Ann", "first", 0, **identity)]
    replies = [
        teams_message(12, "Ann", "great", 40, replyToId="10"),
        teams_message(11, "Ben", "done", 20, replyToId="10"),
        teams_message(21, "Ben", "on it", 31, replyToId="20"),
    ]
    if inside:
        for post in posts:
            post["replies"] = [reply for reply in replies if reply["replyToId"] == post["id"]]
    found = import_chats(write("c.json", {"value": posts if inside else [*posts, *replies]}), agent="Ben")
    threads = {row["id"]: lines for row, lines in zip(found.dialogues, turns_of(found), strict=True)}
    assert threads == {
        "10": ["customer: first", "agent: done", "customer: great"],
        "20": ["customer: second", "agent: on it"],
    }


# mail

FIRST = """From: Ann Lee <ann@shop.example>
To: support@polyrank.example
Subject: broken
Message-ID: <a1@shop.example>
Date: Mon, 13 May 2024 09:00:00 +0200

My lamp is
From time to time dark.

--\x20
Ann Lee
Shop
"""
ANSWER = """From: =?utf-8?q?J=C3=BCrgen?= <support@polyrank.example>
Subject: Re: broken
Message-ID: <b1@polyrank.example>
In-Reply-To: <a1@shop.example>
Date: Mon, 13 May 2024 08:30:00 +0000
Content-Type: text/html; charset=utf-8

<div>Which one?<br>The green?</div><div class="gmail_quote">On Mon Ann wrote: <blockquote>My lamp</blockquote></div>
"""
BACK = """From: Ann Lee <ann@shop.example>
Message-ID: <a2@shop.example>
References: <a1@shop.example> <b1@polyrank.example>
Date: Mon, 13 May 2024 13:00:00 +0200

Am 13. Mai 2024 um 10:30 schrieb Jürgen
<support@polyrank.example>:
> Which one?
The red one.
> The green?
No!

Sent from my phone
"""
OUTLOOK = """From: Jürgen <support@polyrank.example>
Message-ID: <b2@polyrank.example>
In-Reply-To: <a2@shop.example>
Date: Tue, 14 May 2024 09:00:00 +0000
Content-Type: text/plain; charset=utf-8

A new one is on its way.

________________________________
From: Ann Lee
Sent: Monday
Subject: Re: broken

The red one.
"""
AWAY = """From: Bo <bo@x.example>
Auto-Submitted: auto-replied
In-Reply-To: <a1@shop.example>
Date: Mon, 13 May 2024 09:00:05 +0200

I am away.
"""
THREAD = [
    "customer: My lamp is\nFrom time to time dark.",
    "agent: Which one?\nThe green?",
    "customer: The red one.\nNo!",
    "agent: A new one is on its way.",
]


def mbox(*mails: str) -> str:
    """A mailbox sorted newest first."""
    start = "From someone@x.example Mon May 13 09:00:00 2024\n"
    return "".join(start + mail.replace("\nFrom time", "\n>From time") + "\n" for mail in mails)


def test_a_mailbox_of_threads(write: Write) -> None:
    found = import_chats(write("INBOX", mbox(AWAY, OUTLOOK, BACK, ANSWER, FIRST)))
    assert turns_of(found) == [THREAD]
    assert began(found) == ["2024-05-13T07:00:00"]
    assert (found.report.forms, found.report.left_out) == (["mail"], {"system line": 1})
    assert found.report.speakers == {"customer": 2, "agent": 2}


def test_threads_continue_across_files_and_folders(write: Write, tmp_path: Path) -> None:
    write("all/inbox.mbox", mbox(FIRST, BACK).replace("\n", "\r\n"))
    write("all/sent/cur/171.M5.host:2,S", ANSWER)
    write("all/sent/b2.eml", OUTLOOK)
    assert turns_of(import_chats(tmp_path / "all")) == [THREAD]
    with pytest.raises(DataError, match=r"only .* wrote \(1 message\)"):
        import_chats(tmp_path / "all/sent/b2.eml")


@pytest.mark.parametrize(
    "mail",
    ["From: x\nDate: y\nContent-Type: text/plain; charset=klingon\n\nhi \xe4", "From: \nSubject: x\nDate: z\n\nhi",
     "From: <\nMIME-Version: 1\nContent-Type: multipart/mixed; boundary=b\n\n--b\n--b--"],
)  # fmt: skip
def test_hostile_mail(write: Write, mail: str) -> None:
    with pytest.raises(DataError, match=r"x\.eml"):
        import_chats(write("x.eml", mail.encode("latin-1")))


# messengers and transcripts


def test_discord(write: Write) -> None:
    def line(n: int, name: str, text: str, kind: str = "Default", **more: Any) -> dict[str, Any]:
        who = {"id": f"{n % 2}", "name": name.lower(), "nickname": name, "isBot": name == "Dyno"}
        at = f"2024-05-13T{9 + n}:00:00.5+00:00"
        return {"id": f"{n}", "type": kind, "timestamp": at, "content": text, "author": who, **more}

    export = {
        "guild": {"id": "1", "name": "Wool"},
        "channel": {"id": "2", "name": "knitting"},
        "messages": [
            line(0, "Mo", "Joined the server.", "GuildMemberJoin"),
            line(1, "Ida", "which needles?"),
            line(2, "Mo", "size 4", "Reply", reference={"messageId": "1"}),
            line(3, "Mo", "Pinned a message.", "ChannelPinnedMessage"),
            line(4, "Ida", "", attachments=[{"url": "x"}]),
            line(5, "Dyno", "rank up!"),
        ],
    }
    found = import_chats(write("Wool - knitting [2].json", export))
    assert turns_of(found) == [["Ida: which needles?", "Mo: size 4"]]
    assert ([row["id"] for row in found.dialogues], began(found)) == (
        ["1"],
        ["2024-05-13T10:00:00.500"[:19]],
    )
    assert (found.report.forms, found.report.left_out) == (
        ["conversations"],
        {"system line": 2, "attachment": 1, "unanswered message": 1},
    )
    bare = [
        {"id": "9", "channel_id": "2", "type": 19, "timestamp": "2024-05-13T09:01:00+00:00", "content": "4",
         "author": {"id": "1", "username": "mo", "global_name": "Mo"}},
        {"id": "8", "channel_id": "2", "type": 0, "timestamp": "2024-05-13T09:00:00+00:00", "content": "which?",
         "author": {"id": "2", "username": "ida", "global_name": None}},
    ]  # fmt: skip
    assert turns_of(import_chats(write("api.json", bare))) == [["ida: which?", "mo: 4"]]


def test_telegram_without_ids_of_senders_is_divided(write: Write) -> None:
    def line(n: int, name: str, month: int, hour: int) -> dict[str, Any]:
        return {
            "id": n,
            "type": "message",
            "date": f"2023-{month:02}-05T{hour:02}:00:00",
            "from": name,
            "text": f"t{n}",
        }

    chat = {"name": "Garden", "type": "personal_chat", "id": 77}
    lines = [line(2 * m + h, "ZF"[h], m, 9 + h) for m in range(1, 11) for h in range(2)]
    found = import_chats(write("result.json", {**chat, "messages": lines}))
    assert turns_of(found) == [[f"customer: t{2 * m}", f"agent: t{2 * m + 1}"] for m in range(1, 11)]
    assert (found.report.forms, began(found)[9]) == (["conversations"], "2023-10-05T09:00:00")


def test_webvtt_and_subrip(write: Write) -> None:
    cues = [("<v Ann Lee>So, is it", ""), ("<v Ann Lee>on &amp; up?</v>", ""), ("<v.loud Ben>It <i>is</i>.</v>", "2\n")]
    stamps = [f"00:00:0{n}.000 --> 00:00:0{n}.900 align:start" for n in range(3)]
    blocks = [f"{extra}{stamp}\n{text}" for stamp, (text, extra) in zip(stamps, cues, strict=True)]
    found = import_chats(write("call.vtt", "\n\n".join(["WEBVTT - call", "NOTE made up", *blocks])))
    assert turns_of(found) == [["Ann Lee: So, is it on & up?", "Ben: It is."]]
    assert found.report.forms == ["transcript"]
    srt = "1\n00:00:01,000 --> 00:00:02,000\nAnn: hello\nthere\n\n2\n00:00:02,000 --> 00:00:03,000\nBen: hi\n"
    assert turns_of(import_chats(write("call.srt", srt))) == [["Ann: hello there", "Ben: hi"]]


def test_prompts_name_their_speakers(write: Write) -> None:
    prompts = [
        "Customer: is it down?\nAgent:",
        "Customer: hello\nAgent: hi\nCustomer: how do I pay?\n\nAgent:",
        "and now:",
        "How do I reach an agent:",
    ]
    rows = [{"prompt": prompt, "completion": " by card\nor cash"} for prompt in prompts]
    last = "agent: by card\nor cash"
    assert turns_of(import_chats(write("x.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))) == [
        ["customer: is it down?", last],
        ["customer: hello", "agent: hi", "customer: how do I pay?", last],
        ["customer: and now:", last],
        ["customer: How do I reach an agent:", last],
    ]


def test_transcripts_in_a_column(write: Write) -> None:
    rows = [
        '1,2024-05-13 09:00,"Agent: hello\nVisitor: hi there\nand you"',
        '2,2024-05-13 10:00,"Visitor: yo\nAgent: yes?\nVisitor: yo"',
    ]
    found = import_chats(write("x.csv", "\n".join(["Chat ID,Started,What was said", *rows])))
    assert turns_of(found) == [
        ["agent: hello", "customer: hi there\nand you"],
        ["customer: yo", "agent: yes?", "customer: yo"],
    ]
    assert ([row["id"] for row in found.dialogues], began(found)[1]) == (["1", "2"], "2024-05-13T10:00:00")
    assert found.report.forms == ["conversations"]
    long = "Agent: hello\nVisitor: it is late\nAgent: which one?\nVisitor: the first"
    rows = [f'{n},2024-05-1{n} 09:00,"{long}"' for n in range(1, 6)]  # most lines begin with a name
    assert len(import_chats(write("y.csv", "\n".join(["ticket,date,transcript", *rows]))).dialogues) == 5


@pytest.mark.parametrize(
    "above",
    ["On Mon, May 13, 2024 at 9:00 AM Ann Lee <ann@x.org>\nwrote:", "Am 13.05.2024 um 09:00 schrieb Ann:",
     "Le lun. 13 mai 2024 à 09:00, Ann <ann@x.org> a écrit\xa0:", "El lun, 13 may 2024 a las 9:00, Ann escribió:"],
)  # fmt: skip
def test_quoted_mail_of_many_programs(above: str) -> None:
    assert unquoted(f"Yes.\n\n{above}\n\n> Is it?\n>> It is\n\nIt is on.") == "Yes.\n\nIt is on."
    assert unquoted(f"Yes.\n\n{above}\n\nIs it?") == "Yes."
    assert unquoted("On Monday she wrote:\nhello") == "On Monday she wrote:\nhello"


def test_transcripts_of_headings_with_times(write: Write) -> None:
    text = "Ann Lee  0:03\nSo,\nis it on?\n\nBen  0:09\nYes.\n\nAnn Lee  1:00:12\nGood.\n"
    found = import_chats(write("call.txt", text))
    assert turns_of(found) == [["Ann Lee: So, is it on?", "Ben: Yes.", "Ann Lee: Good."]]
    assert found.report.forms == ["transcript"]


def test_reddit_s_comments_name_their_parents_with_a_kind(write: Write) -> None:
    rows = [
        {"id": f"k{n}", "parent_id": f"t1_k{n - 1}" if n % 3 else "t3_p", "author": "uv"[n % 2], "body": f"c {n}",
         "link_id": "t3_p", "created_utc": 1715590800 + n, "score": 1715500000 + n}
        for n in range(6)
    ]  # fmt: skip
    found = import_chats(write("x.jsonl", "\n".join(map(json.dumps, rows[::-1]))))
    assert turns_of(found) == [[f"{'uv'[n % 2]}: c {n}" for n in each] for each in (range(3, 6), range(3))]
    assert began(found) == ["2024-05-13T09:00:03", "2024-05-13T09:00:00"]


def test_flags_determine_the_speaker_without_other_columns(write: Write) -> None:
    rows = [f"{n},is it {n},{n % 2},{1715590800 + 60 * n}" for n in range(5)]
    found = import_chats(write("sms.csv", "\n".join(["ROWID,text,is_from_me,date", *rows])))
    assert turns_of(found)[0][:2] == ["customer: is it 0", "agent: is it 1"]


def test_a_text_of_unknown_format_is_not_read_as_a_table(write: Write) -> None:
    with pytest.raises(DataError, match="is text of an unknown form"):
        import_chats(write("x.txt", "Once upon a time\nthere was a router.\n"))


WHATSAPP = {
    "korean": ("2024년 5월 13일 오후 3:05, {} : {}", "삭제된 메시지입니다."),
    "korean iphone": ("[2024. 5. 13. 오후 3:05:07] {}: {}", "삭제된 메시지입니다."),
    "japanese": ("2024/05/13 15:05 - {}: {}", "このメッセージは削除されました"),
    "chinese": ("2024年5月13日 下午3:05 - {}: {}", "此消息已删除"),
    "vietnamese": ("15:05, 13/5/2024 - {}: {}", "Tin nhắn này đã bị xóa"),
    "thai": ("13/5/2567 15:05 - {}: {}", "ข้อความนี้ถูกลบแล้ว"),
    "bulgarian": ("13.05.24 г., 15:05 - {}: {}", "Това съобщение беше изтрито"),
    "canadian": ("2024-05-13 15 h 05 - {}: {}", "Ce message a été supprimé"),
    "hungarian": ("2024. 05. 13. 15:05 - {}: {}", "Ezt az üzenetet törölték"),
    "portuguese": ("13/05/2024 às 15:05 - {}: {}", "Mensagem apagada"),
    "polish": ("13.05.2024, 15:05 - {}: {}", "Ta wiadomość została usunięta"),
}


@pytest.mark.parametrize("locale", WHATSAPP)
def test_whatsapp_of_more_countries(write: Write, locale: str) -> None:
    form, gone = WHATSAPP[locale]
    lines = [
        form.format(*each) for each in [("홍길동", "hi\nthere: 1"), ("Ben", "<Media>"), ("Ben", "yo"), ("Ben", gone)]
    ]
    found = import_chats(write("chat.txt", "\n".join(lines)))
    assert turns_of(found) == [["홍길동: hi\nthere: 1", "Ben: yo"]]
    assert began(found)[0][:16] == "2024-05-13T15:05"
    assert found.report.left_out == {"attachment": 1, "deleted message": 1}


# tables with more than a table in them

ABOVE = "Report: chats\nExported by;Ann;on 2024-06-01\n\n"
TABLE = "Ticket;Sent on;Who wrote;Body\n7;13.05.2024 09:01;Agent 1;certainly; \n7;13.05.2024 09:00;Client;can I?\n"


@pytest.mark.parametrize("pad", ["", ";;;"])
def test_lines_before_the_header_are_passed_over(write: Write, pad: str) -> None:
    text = ABOVE.replace("\n", f"{pad}\n") + TABLE.replace("certainly; ", "certainly")
    found = import_chats(write("x.csv", text), sender="Who wrote")
    assert turns_of(found) == [["customer: can I?", "agent: certainly"]]
    assert "x.csv: skipped 2 rows above the header in row 4" in notes(found)


SAID = [
    "where is my parcel today?",
    "it left the depot this morning",
    "can I change the address?",
    "yes, until the evening",
]


@pytest.mark.parametrize("separator", [";", "\t"])
@pytest.mark.parametrize("first", ["{talk}{}{who}{}{text}", "03/01/2024{}10:0{n}:00{}{who}{}{text}"])
def test_the_first_message_of_a_table_without_a_header_is_read(write: Write, first: str, separator: str) -> None:
    rows = [
        first.replace("{}", separator).format(n=n, talk=7 + n // 2, who=("Zoe", "Me")[n % 2], text=text)
        for n, text in enumerate(SAID)
    ]
    said = [f"{who}: {text}" for who, text in zip(("Zoe", "Me") * 2, SAID, strict=True)]
    found = turns_of(import_chats(write("x.csv", "\n".join(rows))))
    assert found == ([said[:2], said[2:]] if "talk" in first else [said])


@pytest.mark.parametrize("header", ["id;who;text", "1;2;3", ";0;1", "#1;who;text"])
def test_a_header_is_no_message(write: Write, header: str) -> None:
    mark = "t" if "#" in header else ""  # a number above words
    rows = [f"{mark}{7 + n // 2};{('customer', 'agent')[n % 2]};{text}" for n, text in enumerate(SAID)]
    chats = import_chats(write("x.csv", "\n".join([header, *rows])))
    found = turns_of(chats)
    assert chats.report.n_messages == len(SAID)
    assert [turn.partition(": ")[2] for talk in found for turn in talk] == SAID


def test_imessages_have_times_and_names_above_them(write: Write) -> None:
    at = "Jan 02, 2024 10:0{}:00 {}M{}\n{}\n{}\n"
    rows = [
        ("9", "A", "", "+1 555 1234", "can I?"),
        ("8", "P", " (Read by them after 2 minutes)", "Me", "yes,\nyou can"),
    ]
    found = import_chats(write("x.txt", "\n".join(at.format(*row) for row in rows)), gap=24)
    assert [turn["text"] for turn in found.dialogues[0]["turns"]] == ["can I?", "yes,\nyou can"]
    assert began(found) == ["2024-01-02T10:09:00"]


def test_a_day_that_no_month_has_is_no_imessage(write: Write) -> None:
    with pytest.raises(DataError, match="text of an unknown form"):
        import_chats(write("x.txt", "Jan 99, 2024 10:00:00 AM\nMe\nyes\n" * 3))


def test_a_text_with_a_few_commas_is_no_table(write: Write) -> None:
    text = "Notes of a call, 3 May\n\nShe asked twice\nI said yes\nWe agreed, then\nShe left\n"
    with pytest.raises(DataError, match="text of an unknown form"):
        import_chats(write("x.txt", text))


def test_people_named_apart_from_messages_have_their_roles(write: Write) -> None:
    said = [("c1", "can I?"), ("a1", "certainly")]
    talk = {
        "Participants": [{"ParticipantId": i, "ParticipantRole": r} for i, r in (("c1", "CUSTOMER"), ("a1", "AGENT"))],
        "Transcript": [{"Id": f"{n}", "ParticipantId": i, "Content": text} for n, (i, text) in enumerate(said)],
    }
    assert turns_of(import_chats(write("x.json", json.dumps(talk)))) == [["customer: can I?", "agent: certainly"]]


def test_a_text_without_its_quotation_is_preferred(write: Write) -> None:
    rows = [
        {"ticket_id": 1, "from_agent": agent, "body_text": f"{text}\n> before", "stripped_text": text}
        for agent, text in ((False, "can I?"), (True, "certainly"))
    ]
    assert turns_of(import_chats(write("x.json", json.dumps(rows)))) == [["customer: can I?", "agent: certainly"]]


def book(**sheets: list[list[Any]]) -> bytes:
    workbook = openpyxl.Workbook()
    for name, rows in sheets.items():
        sheet = workbook.create_sheet(name)
        for row in rows:
            sheet.append(row)
    workbook.remove(workbook.worksheets[0])
    stream = io.BytesIO()
    workbook.save(stream)
    return stream.getvalue()


def test_a_workbook_with_a_cover_and_a_sheet_for_each_month(write: Write) -> None:
    header = ["Case", "Created", "Author", "Reply text"]
    months = {
        name: [header, [name, datetime(2024, n, 2, 8), "Ann", "hello?"], [name, datetime(2024, n, 2, 9), "Bo", "yes"]]
        for n, name in enumerate(("Jan", "Feb"), 1)
    }
    path = write(
        "x.xlsx", book(Cover=[["All chats"], [None, "of 2024"]], **months, Key=[["Case", "Topic"], ["Jan", "x"]])
    )
    found = import_chats(path, text="Reply text")
    assert turns_of(found) == [["Ann: hello?", "Bo: yes"]] * 2
    assert began(found) == ["2024-01-02T08:00:00", "2024-02-02T08:00:00"]
    assert "read 'Jan' and 'Feb' of the sheets Cover, Jan, Feb, Key" in notes(found)
    assert [row["id"] for row in import_chats(path, text="Reply text", sheet=["Feb"]).dialogues] == ["Feb"]


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (b"SQLite format 3\0", "is an SQLite database"),
        (b"!BDN", r"is an Outlook data file \(.pst\)"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "__substg1.0_".encode("utf-16-le"), "is an Outlook message"),
        (b"PK\x03\x04word/document.xml", "is a Word document"),
        (b"{\\rtf1 hi}", "is an RTF document"),
        (b"BEGIN:VCARD\nFN:Ann\n", "is a file of contacts"),
        (b"\x89PNG\r\n", "is a picture"),
    ],
)
def test_skipped_parts_are_named(write: Write, start: bytes, what: str) -> None:
    with pytest.raises(DataError, match=what):
        import_chats(write("x.csv", start))


# the command


@pytest.mark.deep
def test_on_a_terminal_the_command_asks_about_the_first_conversation(write: Write, run: Run, tmp_path: Path) -> None:
    path, out = write("x.csv", "case,from,text\n7,Client,hi " + "x" * 300 + "\n7,Agent,hello\n"), tmp_path / "out.jsonl"
    here, there = os.openpty()
    os.write(here, b"n\n")
    command = [sys.executable, "-m", "polyrank_chats", str(path), "-o", str(out)]
    done = subprocess.run(command, stdin=there, stdout=there, stderr=there, check=False)
    os.close(there)
    shown = ""
    with suppress(OSError):  # the terminal has closed
        while part := os.read(here, 4096):
            shown += part.decode().replace("\r\n", "")
    os.close(here)
    assert "the first conversation (7):" in shown
    assert "customer: hi " + "x" * 197 + "..." in shown
    assert "Is it right?" in shown
    assert "nothing was written; correct it with --form" in shown
    assert (done.returncode, out.exists()) == (2, False)
    asked = run(path, "-o", out)  # without a terminal the command does not ask
    assert (asked.returncode, "agent: hello" in asked.stderr, out.exists()) == (0, True, True)


# personal data

PERSONAL = {
    "link": ["https://x.example/a?b=c#d", "www.shop.example/track/77", "HTTP://X.example"],
    "email": ["ann.lee+shop@mail.example.org", "ÄNN@x.de"],
    "iban": ["DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432", "FR14-2004-1010-0505-0001-3M02-606"],
    "card": ["4111 1111 1111 1111", "378282246310005", "5500-0000-0000-0004", "4111\u00a01111\u202f1111 1111"],
    "phone": [
        "+44 20 7946 0958",
        "(555) 123-4567",
        "0170 1234567",
        "+49(0)30/901820",
        "030/901820",
        "0044 7911 123456",
    ],
}
NOT_PERSONAL = [
    "2024-05-13", "13.05.2024 10:30", "05/12/2023", "order 4111111111111112", "DE88370400440532013000",
    "v1.2.3", "12:30", "0.1234567", "1,234,567.89", "ticket 12345678", "123-456", "a@b", "0 of 10", "@ann",
]  # fmt: skip


def test_letters_without_case_are_no_account_number() -> None:
    text = "Kod TR12 yazılı olarak geldi"
    assert Redactor()(text) == text


@pytest.mark.parametrize(("what", "text"), [(what, text) for what, texts in PERSONAL.items() for text in texts])
def test_personal_data_are_replaced(what: str, text: str) -> None:
    redactor = Redactor()
    assert redactor(f"it is {text}, OK? {text}.") == f"it is {{{what}}}, OK? {{{what}}}."
    assert redactor.counts == {what: 2}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("my card is 4111 1111 1111 1111 12/27 123", "my card is {card} 12/27 123"),
        ("card no.4111111111111111", "card no.{card}"),
        ("Tel:+49 170 1234567", "Tel:{phone}"),
        ("Tel.0170 1234567", "Tel.{phone}"),
        ("phone:555-123-4567", "phone:{phone}"),
        ("iban de89 3704 0044 0532 0130 00", "iban {iban}"),
        ("+49\u00a0170\u00a01234567", "{phone}"),
        ("it is Jose\u0301", "it is {name}"),
        ("at 12:30:00 or 10.0.0.1", "at 12:30:00 or {ip}"),
    ],
)
def test_personal_data_next_to_other_signs_are_replaced(text: str, wanted: str) -> None:
    assert Redactor(["Jos\u00e9"])(text) == wanted


def test_texts_that_only_look_personal_stay() -> None:
    redactor = Redactor(["Lee"])
    assert [redactor(f"it is {text}, OK") for text in NOT_PERSONAL] == [f"it is {text}, OK" for text in NOT_PERSONAL]
    assert redactor("Leeds, lee and Leé") == "Leeds, {name} and Leé"


@pytest.mark.deep
def test_dialogues_hold_personal_data_only_on_request(write: Write, run: Run, tmp_path: Path) -> None:
    rows = ["a@b.example,2024-05-13 09:00,+49 170 1234567,I am Kim: k@x.example"]
    rows += ["a@b.example,2024-05-13 09:01,Kim,call 0170 1234567"]
    path, names = write("x.csv", "\n".join(["chat,at,from,text", *rows])), write("names.txt", "Kim\n\nLee\n")
    found = import_chats(path, redact=["Kim"])
    assert turns_of(found) == [["person 1: I am {name}: {email}", "person 2: call {phone}"]]
    assert [row["id"] for row in found.dialogues] == ["conversation 1"]
    assert (found.report.redacted, found.report.speakers) == (
        {"name": 1, "email": 1, "phone": 1}, {"person 1": 1, "person 2": 1}
    )  # fmt: skip
    assert "; replaced: 1 {name}, 1 {email}, 1 {phone}" in str(found.report)
    kept = import_chats(path, keep_personal=True)
    assert turns_of(kept) == [["+49 170 1234567: I am Kim: k@x.example", "Kim: call 0170 1234567"]]
    with pytest.raises(UsageError, match="leave one of them out"):
        import_chats(path, redact=["Kim"], keep_personal=True)
    done = run(path, "-o", tmp_path / "out.jsonl", "--redact", names, "--yes")
    assert (done.returncode, "person 2: call {phone}" in done.stderr) == (0, True)
    wrong = run(path, "-o", tmp_path / "o.jsonl", "--redact", write("none.txt", "\n"))
    assert (wrong.returncode, "has no names" in wrong.stderr) == (3, True)


def test_links_that_agents_give_often_stay(write: Write) -> None:
    often, once, personal = "https://shop.example/faq", "www.shop.example/x", "https://shop.example/u/7"
    rows = [f"{i},agent,see {often}. {once if i == 1 else ''}\n{i},customer,I was at {personal}\n" for i in (1, 2, 3)]
    found = import_chats(write("x.csv", "chat,from,text\n" + "".join(rows)))
    said = [turn["text"] for row in found.dialogues for turn in row["turns"]]
    assert said == [f"see {often}. {{link}}", "I was at {link}", *[f"see {often}.", "I was at {link}"] * 2]
    assert found.report.redacted == {"link": 4}
    assert "kept 1 link that agents gave in 3 conversations or more" in notes(found)
    two = import_chats(write("y.csv", "chat,from,text\n" + "".join(rows[:2])))
    assert {turn["text"] for row in two.dialogues for turn in row["turns"]} >= {"see {link}."}
    assert "kept" not in notes(two)
    whole = import_chats(write("z.csv", "chat,from,text\n" + "".join(rows)), keep_personal=True)
    assert personal in whole.dialogues[0]["turns"][1]["text"]
    assert "kept" not in notes(whole)
