"""Exports as the programs write them: IRC clients, Zoom, Signal, Facebook, Google, Skype, and help desks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyrank_chats import Chats, import_chats
from polyrank_chats.forms.nested import talks_in
from polyrank_chats.forms.programs import CHANNEL, in_topics

Write = Callable[[str, Any], Path]


def talk(chats: Chats) -> dict[str, list[str]]:
    """The turns of each conversation as lines with their speakers."""
    return {row["id"]: [f"{turn['speaker']}: {turn['text']}" for turn in row["turns"]] for row in chats.dialogues}


def began(chats: Chats) -> list[str]:
    return [row["time"] for row in chats.dialogues]


IRSSI = """--- Log opened Mon Mar 04 20:11:01 2024
20:11 -!- nora [~nora@example.net] has joined #python
20:11 < nora> how do I reverse a list?
20:12 <@tim> nora: use reversed(x)
20:12  * nora tries
20:13 < nora> works, ty
--- Day changed Tue Mar 05 2024
09:30 < otto> is 3.13 out?
09:31 <+tim> not yet
09:32 -!- otto [o@h] has quit [Quit: bye]
--- Log closed Tue Mar 05 10:00:00 2024
"""
WEECHAT = """2024-03-04 20:11:01\t-->\tnora (~nora@example.net) has joined #python
2024-03-04 20:11:30\tnora\thow do I reverse a list?
2024-03-04 20:12:05\t@tim\tnora: use reversed(x)
2024-03-04 20:12:20\t *\tnora tries
2024-03-04 20:13:00\tnora\tworks, ty
2024-03-04 20:13:30\t--\tMode #python [+o tim] by ChanServ
2024-03-04 20:14:00\t<--\tnora (~nora@example.net) has quit (Quit: bye)
"""
LISTS = ["nora: how do I reverse a list?", "tim: {name}: use reversed(x)", "nora: works, ty"]


def test_irc_logs(write: Write) -> None:
    irssi = import_chats(write("python.log", IRSSI))
    assert talk(irssi) == {"python:1": LISTS, "python:2": ["otto: is 3.13 out?", "tim: not yet"]}
    assert began(irssi) == ["2024-03-04T20:11:00", "2024-03-05T09:30:00"]
    assert irssi.report.left_out == {"system line": 3}
    weechat = import_chats(write("irc.weechatlog", WEECHAT))
    assert (talk(weechat), began(weechat)) == ({"irc:1": LISTS}, ["2024-03-04T20:11:30"])
    assert weechat.report.left_out == {"system line": 4}


def test_an_irc_log_without_dates_is_one_conversation(write: Write) -> None:
    lines = [line for line in IRSSI.split("\n")[:6] if not line.startswith("---")]
    chats = import_chats(write("python.log", "\n".join(lines)))
    assert (talk(chats), chats.report.left_out) == ({"python": LISTS}, {"system line": 2})


@pytest.mark.parametrize(
    "text",
    [
        "--- Log opened Mon Mar 04 20:11:01 2024\n20:12 < nora> is 3.13 out?\n20:13 <+tim> not yet\n"
        "--- Log closed Mon Mar 04 20:20:00 2024\n",
        "\nSession Start: Mon Mar 04 20:11:01 2024\nSession Ident: #python\n[20:12] <nora> is 3.13 out?\n"
        "[20:13] <+tim> not yet\nSession Close: Mon Mar 04 20:20:00 2024\n",
        "Conversation with nora@x.example at Mon 04 Mar 2024 08:11:01 PM UTC on tim@x.example/ (jabber)\n"
        "(08:12:00 PM) nora: is 3.13 out?\n(08:13:10 PM) tim: not yet\n",
    ],
    ids=["irssi", "mirc", "pidgin"],
)
def test_lines_at_the_start_and_end_of_a_log_are_days(write: Write, text: str) -> None:
    chats = import_chats(write("python.log", text))
    assert talk(chats) == {"python:1": ["nora: is 3.13 out?", "tim: not yet"]}
    assert began(chats) == ["2024-03-04T20:12:00"]


@pytest.mark.parametrize(
    "text",
    [
        "10:01:05\t From  Dana Wu  to  Everyone:\n\tCan you share the slides?\n10:01:40\t From  Karl  to  Everyone:\n"
        "\tYes,\n\tin a minute\n10:02:10\t From  Dana Wu  to  Karl(Direct Message):\n"
        '\tReplying to "Yes,"\n\t\n\tThanks\n',
        "10:01:05\t From Dana Wu : Can you share the slides?\n10:01:40\t From Karl to Everyone : Yes,\nin a minute\n"
        "10:02:10\t From Dana Wu to Karl(Privately) : Thanks\n",
    ],
    ids=["new", "old"],
)
def test_zooms_chats(write: Write, text: str) -> None:
    chats = import_chats(write("meeting.txt", text))
    assert talk(chats) == {
        "meeting": ["Dana Wu: Can you share the slides?", "Karl: Yes,\nin a minute", "Dana Wu: Thanks"]
    }


def test_signal_export(write: Write) -> None:
    text = (
        "[2021-05-01, 10:00:03] Me: Are you coming?  \n[2021-05-01, 10:02:11] Rosa: yes, at 8  \n(- Me: 👍 -)\n"
        "[2021-05-01, 10:02:40] Rosa: ![](./media/a.jpg)  \n"
        "[2021-05-01, 10:03:00] Me: bring the cards\nand the board  \n"
    )
    chats = import_chats(write("signal/Rosa/chat.md", text).parents[1])
    assert talk(chats) == {"Rosa:1": ["Me: Are you coming?", "Rosa: yes, at 8", "Me: bring the cards\nand the board"]}
    assert chats.report.left_out["attachment"] == 1


def facebook(*messages: tuple[str, int, str]) -> dict[str, Any]:
    """Newest first, each byte of UTF-8 as a character."""

    def broken(text: str) -> str:
        return text.encode().decode("latin-1")

    held = [{"sender_name": broken(n), "timestamp_ms": t * 1000, "content": broken(text)} for n, t, text in messages]
    return {"participants": [{"name": broken(name)} for name, _, _ in messages], "messages": held[::-1]}


def test_facebooks_threads_stay_apart_and_lose_placeholders(write: Write) -> None:
    """Each thread has a file of the same name; its parts belong together."""
    began_at = 1_600_000_000
    zoe = [("Zoë", began_at, "schön, à bientôt 😀"), ("Jan", began_at + 60, "ok")]
    later = [
        ("Zoë", began_at + 120, "Reacted ❤ to your message "), ("Zoë", began_at + 130, "bis um 7?"),
        ("Jan", began_at + 150, "You sent an attachment."), ("Jan", began_at + 160, "Liked a message"),
        ("Jan", began_at + 170, "ja"),
    ]  # fmt: skip
    write("inbox/zoe_1/message_1.json", facebook(*later))
    write("inbox/zoe_1/message_2.json", facebook(*zoe))
    file = write(
        "inbox/bob_2/message_1.json", facebook(("Bob", began_at + 30, "hello"), ("Jan", began_at + 90, "hi Bob"))
    )
    assert talk(import_chats(file.parents[1])) == {
        "zoe_1:1": ["Zoë: schön, à bientôt 😀", "Jan: ok", "Zoë: bis um 7?", "Jan: ja"],
        "bob_2:1": ["Bob: hello", "Jan: hi {name}"],
    }


def test_files_of_the_same_name_in_different_folders_stay_apart(write: Write) -> None:
    write("a/log.csv", "time,sender,message\n2024-01-01 10:00,Ann,hi\n2024-01-01 10:02,Ben,hello\n")
    file = write("b/log.csv", "time,sender,message\n2024-01-01 10:01,Cy,yes\n2024-01-01 10:03,Di,no\n")
    assert talk(import_chats(file.parents[1])) == {
        "a/log.csv:1": ["Ann: hi", "Ben: hello"],
        "b/log.csv:1": ["Cy: yes", "Di: no"],
    }


def test_google_chat(write: Write) -> None:
    """Every message of a chat without threads has its own topic; a list of members is next to the messages."""
    said = [
        ("Ines", "9:15:02\u202fAM", "Did it pass?"),
        ("Rob", "9:16:40\u202fAM", "yes"),
        ("Ines", "12:02:00\u202fPM", "great"),
    ]
    messages = [
        {
            "creator": {"name": name, "email": f"{name}@example.com", "user_type": "Human"},
            "created_date": f"Tuesday, March 5, 2024 at {at} UTC",
            "text": text,
            "topic_id": f"t{number}",
            "message_id": f"abc/t{number}",
        }
        for number, (name, at, text) in enumerate(said)
    ]
    write("Groups/DM abc/group_info.json", {"members": [messages[0]["creator"], messages[1]["creator"]]})
    chats = import_chats(write("Groups/DM abc/messages.json", {"messages": messages}).parents[1])
    assert talk(chats) == {"DM abc:1": ["Ines: Did it pass?", "Rob: yes", "Ines: great"]}
    assert began(chats) == ["2024-03-05T09:15:02"]
    threads = [{**message, "topic_id": "t1" if number < 2 else "t9"} for number, message in enumerate(messages * 2)]
    assert set(talk(import_chats(write("Groups/Space x/messages.json", {"messages": threads})))) == {"t1", "t9"}


def test_skype(write: Write) -> None:
    said = [
        ("petra", "Hi!", "Text"),
        ("petra", '<partlist type="ended"><part identity="me"><name>me</name></part></partlist>', "Event/Call"),
        ("me", 'I&apos;ll call at <b raw_pre="*">six</b>', "RichText"),
        ("petra", 'ok &amp; thanks <ss type="smile">:)</ss>', "RichText"),
        ("petra", "<addmember/>", "ThreadActivity/AddMember"),
    ]
    messages = [
        {
            "id": str(number),
            "displayName": None,
            "originalarrivaltime": f"2021-01-09T18:0{number}:00.1Z",
            "messagetype": kind,
            "content": text,
            "conversationid": "8:petra",
            "from": f"8:{name}",
        }
        for number, (name, text, kind) in enumerate(said)
    ]
    export = {"userId": "8:me", "conversations": [{"id": "8:petra", "displayName": "P", "MessageList": messages[::-1]}]}
    assert talk(import_chats(write("messages.json", export))) == {
        "8:petra": ["8:petra: Hi!", "8:me: I'll call at six", "8:petra: ok & thanks :)"]
    }


def test_mattermost(write: Write) -> None:
    def post(user: str, at: int, text: str, replies: Any = None, **more: Any) -> dict[str, Any]:
        return {"user": user, "message": text, "create_at": at * 1000, "replies": replies or [], **more}

    at = 1_709_200_000
    replies = [post("vic", at + 60, "restart it"), post("uma", at + 90, "works")]
    rows = [
        {"type": "version", "version": 1},
        {"type": "user", "user": {"username": "uma"}},
        {"type": "post", "post": post("uma", at, "vpn is down", replies, team="acme", channel="help")},
        {"type": "post", "post": post("vic", at + 5, "vic joined.", team="acme", channel="help", type="system_join")},
        {"type": "direct_post", "direct_post": post("uma", at, "lunch?", channel_members=["uma", "vic"])},
        {"type": "direct_post", "direct_post": post("vic", at + 9, "yes", channel_members=["uma", "vic"])},
    ]
    chats = import_chats(write("bulk.jsonl", "\n".join(map(json.dumps, rows))))
    assert talk(chats) == {
        "bulk:3/0": ["uma: vpn is down", "vic: restart it", "uma: works"],
        "uma/vic:1": ["uma: lunch?", "vic: yes"],
    }
    assert chats.report.left_out == {"system line": 1, "empty text": 2}


def test_rocket_chats_system_messages(write: Write) -> None:
    said = [("bo", "it is in the wiki", {}), ("al", "where is it?", {}), ("al", "al", {"t": "uj"}), ("bo", "hello", {})]
    messages = [
        {
            "_id": str(n),
            "rid": "GENERAL",
            "msg": text,
            "ts": {"$date": f"2023-09-01T08:0{9 - n}:00.000Z"},
            "u": {"username": name},
            **more,
        }
        for n, (name, text, more) in enumerate(said)
    ]
    (turns,) = talk(import_chats(write("room.json", {"messages": messages, "success": True}))).values()
    assert turns == ["bo: hello", "al: where is it?", "bo: it is in the wiki"]


def test_freshdesks_export_of_tickets(write: Write) -> None:
    def note(number: int, text: str, minute: int, incoming: bool, private: bool = False) -> dict[str, Any]:
        made = f"2023-05-01T09:{minute}:00+02:00"
        user = 31 if incoming else 9
        held = {
            "id": number,
            "body": text,
            "created_at": made,
            "incoming": incoming,
            "private": private,
            "user_id": user,
        }
        return {"helpdesk_note": held}

    notes = [
        note(1, "It left today.", 30, False),
        note(2, "call the carrier", 31, False, True),
        note(3, "Thanks", 45, True),
    ]
    ticket = {
        "id": 7,
        "description": "Where is it?",
        "created_at": "2023-05-01T09:00:00+02:00",
        "requester_id": 31,
        "notes": notes,
    }
    chats = import_chats(write("Tickets0.json", [{"helpdesk_ticket": ticket}]))
    assert talk(chats) == {"7": ["customer: Where is it?", "agent: It left today.", "customer: Thanks"]}
    assert (began(chats), chats.report.left_out) == (["2023-05-01T07:00:00"], {"internal note": 1})


def test_livechat_and_tawk(write: Write) -> None:
    """LiveChat lists the users of each chat, and notes only for agents; tawk.to has letters for roles."""
    said = [
        (10, "smith@acme.test", "How can I help?", "all"),
        (20, "b7ef", "my login fails", "all"),
        (30, "smith@acme.test", "asks again", "agents"),
        (40, "smith@acme.test", "Reset it.", "all"),
    ]
    events = [
        {"created_at": f"2022-05-07T07:11:{at}Z", "type": "message", "text": text, "author_id": who, "visibility": seen}
        for at, who, text, seen in said
    ]
    events.insert(2, {"created_at": "2022-05-07T07:11:25Z", "type": "system_message", "text": "transferred"})
    users = [{"id": "b7ef", "type": "customer", "name": "Tom"}, {"id": "smith@acme.test", "type": "agent", "name": "S"}]
    chats = import_chats(
        write("l.json", {"chats": [{"id": "PJ0", "users": users, "thread": {"id": "K6", "events": events}}]})
    )
    assert talk(chats) == {"PJ0": ["agent: How can I help?", "customer: my login fails", "agent: Reset it."]}
    assert chats.report.left_out == {"system line": 1, "internal note": 1}
    messages = [
        {"sender": sender, "type": "msg", "msg": text, "time": f"2024-04-01T10:00:0{n}.000Z"}
        for n, (sender, text) in enumerate(
            [({"t": "s"}, "Chat started"), ({"t": "v"}, "anyone?"), ({"t": "a", "n": "Sue", "id": "5c"}, "Yes!")]
        )
    ]
    tawk = import_chats(write("tawk.json", {"id": "70fe", "type": "chat", "messages": messages}))
    assert talk(tawk) == {"70fe": ["customer: anyone?", "agent: Yes!"]}


def test_answers_to_answers_stay_in_their_topic() -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "action": "topic_created", "title": "Bills"}, {"id": 2, "action": "topic_created", "title": "Wifi"},
        {"id": 3, "reply_to_message_id": 2}, {"id": 4, "reply_to_message_id": 3}, {"id": 5, "reply_to_message_id": 1},
        {"id": 6}, {"id": 7, "reply_to_message_id": 6}, {"id": 8, "reply_to_message_id": 4},
    ]  # fmt: skip
    in_topics(rows, "Shop")
    assert [row[CHANNEL] for row in rows] == [
        "Shop/Bills", "Shop/Wifi", "Shop/Wifi", "Shop/Wifi", "Shop/Bills", "Shop", "Shop", "Shop/Wifi"
    ]  # fmt: skip


def test_users_are_those_of_the_export_and_of_the_conversation() -> None:
    talk = {"requester": {"id": 8, "name": "Cy"}, "messages": [{"sender": n, "text": f"text {n}"} for n in (7, 8)]}
    export = {
        "users": [{"id": 7, "name": "Ann"}, {"id": 9, "name": "Bea"}],
        "tickets": [talk, {**talk, "requester": {}}],
    }
    people = [
        {id_: person["name"] for id_, person in each.people.items() if person} for each in talks_in([(1, export)])
    ]
    assert people == [{"7": "Ann", "9": "Bea", "8": "Cy"}, {"7": "Ann", "9": "Bea"}]


@pytest.mark.parametrize(("ids", "is_reversed"), [((3, 2, 1), True), ((3, 2, 4), False), ((1, 2, 3), False)])
def test_only_rows_whose_ids_all_decrease_are_turned(ids: tuple[int, ...], is_reversed: bool, write: Any) -> None:
    rows = "".join(f"{n},{['Ann', 'Agent'][i % 2]},text {i}\n" for i, n in enumerate(ids))
    (row,) = import_chats(write("x.csv", f"id,sender,message\n{rows}")).dialogues
    texts = [f"text {i}" for i in range(3)]
    assert [turn["text"] for turn in row["turns"]] == (texts[::-1] if is_reversed else texts)


def test_questions_and_answers_of_stack_exchange_follow_their_ids(write: Any) -> None:
    """The type of a post repeats and has several authors in each value, as a conversation has."""
    posts = []
    for n in range(1, 8):
        asked = f'Id="{n}" PostTypeId="1" Body="&lt;p&gt;Question {n}?&lt;/p&gt;" OwnerUserId="{n}" Title="About {n}"'
        answered = f'Id="{n + 10}" PostTypeId="2" ParentId="{n}" Body="&lt;p&gt;Answer {n}.&lt;/p&gt;"'
        owner = 'OwnerUserId="31"' if n % 2 else 'OwnerDisplayName="user5"'
        posts += [f'{asked} CreationDate="2014-06-0{n}T00:11:06.457"', f'{answered} CreationDate="2014-06-09" {owner}']
    rows = "".join(f"<row {post} />" for post in posts)
    talks = import_chats(write("Posts.xml", f"<posts>{rows}</posts>")).dialogues
    assert [[(turn["speaker"], turn["text"]) for turn in row["turns"]] for row in talks] == [
        [("customer", f"Question {n}?"), ("agent", f"Answer {n}.")] for n in range(1, 8)
    ]


def test_what_an_instruction_refers_to_belongs_to_the_question(write: Any) -> None:
    rows = [("Translate.", "oui", "yes"), ("How are you?", "", "Well.")]
    records = [{"instruction": asked, "input": about, "output": answer} for asked, about, answer in rows]
    talks = import_chats(write("x.json", json.dumps(records))).dialogues
    assert [[turn["text"] for turn in row["turns"]] for row in talks] == [
        ["Translate.\noui", "yes"], ["How are you?", "Well."]
    ]  # fmt: skip
